/*
 * gated_linear_nv90.c - gate, up and SiLU of many rows on wgmma, by tall tiles that hold both,
 * cl/linear/linear_wgmma_tall_gated.cl.
 */
#include "ops/gated_linear_grouped.h"
#include "ops/linear_nv90.h"

#define TILE_M     256u
#define UNIT       16u /* outputs */
#define MIN_UNITS  4u  /* of a tile */
#define MOST_UNITS 6u
#define ITEMS      384u
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

/* The width of tiles that takes least; in a trial each has its turn. */
static uint32_t units_of(const llmk_launch *launch, const linear_problem *p, uint64_t *tiles)
{
    const uint64_t groups = launch->ctx->caps.compute_units, blocks = p->gate->outputs / UNIT;
    const uint64_t rows = (p->x.nrows + TILE_M - 1) / TILE_M;
    uint64_t least = UINT64_MAX;
    uint32_t best = MOST_UNITS;
    for (uint32_t units = MOST_UNITS; units >= MIN_UNITS; units--) {
        const uint64_t count = rows * ((blocks + units - 1) / units);
        const uint64_t time =
            (count + groups - 1) / groups * llmk_linear_nv90_tall_time(2 * units, p->weights->k);
        if (launch->ctx->is_trial ? units == MIN_UNITS + p->x.nrows % 3 : time < least) {
            least = time;
            best = units;
            *tiles = count;
        }
    }
    return best;
}

llmk_status llmk_gated_tall_launch(llmk_launch *launch, const linear_problem *p)
{
    const uint32_t most = launch->ctx->caps.compute_units;
    uint64_t tiles = 0;
    const uint32_t units = units_of(launch, p, &tiles);
    const linear_recipe r = {.file = LLMK_NV90_GATED_NAME,
                             .defines = p->x.dtype == LLMK_F16 ? "-DX=f16" : "-DX=bf16",
                             .kernel = "linear_wgmma_tall_gated",
                             .rows = TILE_M,
                             .columns = (uint64_t)units * UNIT,
                             .local = {ITEMS, 1, 1},
                             .groups = tiles < most ? (uint32_t)tiles : most,
                             .has_last = true,
                             .last = units};
    return llmk_linear_run(launch, p, &r);
}
