/*
 * gated_linear_nv90.c - gate, up and SiLU of many rows on wgmma, by tall tiles that hold both,
 * cl/linear/linear_wgmma_tall_gated.cl.
 */
#include "ops/gated_linear_grouped.h"
#include "ops/linear_nv90.h"

#define TILE_M 256u
#define TILE_N 96u /* outputs, at most */
#define ITEMS  384u
/* Of fewer rows the kernels of experts, whose tiles are of any height, waste less. */
#define MIN_ROWS 193u

bool llmk_gated_tall_supports(llmk_context *ctx, const linear_problem *p, llmk_reason *why)
{
    const llmk_view *b = &p->gate->up_bias;
    if (!llmk_linear_has_wgmma(ctx, why) || !llmk_linear_is_half(p, why) ||
        !llmk_linear_may_vary(p, why) || !llmk_linear_nv90_has_k(p->weights->k, why))
        return false;
    if (p->gate->activation != LLMK_SILU || p->y.dtype == LLMK_F32)
        return llmk_no(why, "for SiLU and y of 16 bits");
    if (p->x.nrows < MIN_ROWS || p->x.nrows > INT32_MAX)
        return llmk_no(why, "for %u rows of x and more", MIN_ROWS);
    if (ctx->is_trial && p->x.nrows % 2 == 0)
        return llmk_no(why, "not this time"); /* the kernels of experts have their turn */
    return (p->weights->segment_count == 1 && llmk_linear_nv90_is_even(p) &&
            (!b->present || (b->unit && b->align >= 16))) ||
           llmk_no(why, "for tensors whose rows are whole vectors, and weights in one buffer");
}

llmk_status llmk_gated_tall_launch(llmk_launch *launch, const linear_problem *p)
{
    const uint32_t units = launch->ctx->caps.compute_units;
    uint64_t tiles = 0;
    const uint32_t columns = llmk_linear_nv90_gated_columns(launch, p, &tiles);
    const linear_recipe r = {.file = LLMK_NV90_GATED_NAME,
                             .defines = p->x.dtype == LLMK_F16 ? "-DX=f16" : "-DX=bf16",
                             .kernel = "linear_wgmma_tall_gated",
                             .rows = TILE_M,
                             .columns = TILE_N,
                             .local = {ITEMS, 1, 1},
                             .groups = tiles < units ? (uint32_t)tiles : units,
                             .has_last = true,
                             .last = columns};
    return llmk_linear_run(launch, p, &r);
}
