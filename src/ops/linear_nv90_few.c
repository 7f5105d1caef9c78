/*
 * linear_nv90_few.c - the linear layer on wgmma for up to 128 rows of x, where reading W is what takes
 * the time: cl/linear/linear_wgmma_few.cl, on NVIDIA GPUs of compute capability 9.0.
 */
#include "ops/linear_nv90.h"
#include "ops/linear_split.h"

#define MIN_ROWS  3 /* fewer are served better by nv-dot */
#define MOST_ROWS 128
#define ITEMS     384
#define STEP      64u /* of K, a stage */
#define W_ROWS    128 /* of a tile */

/* What serves as well or better elsewhere: nv-rows, and nv90 with tiles of many rows of x. */
#define LARGE       ((uint64_t)1 << 27) /* weights */
#define NV_ROWS     16
#define BETTER_ROWS 64

static uint64_t tiles_of(uint64_t n)
{
    return (n + W_ROWS - 1) / W_ROWS;
}

/* Tiles that do not fill a round are shared along K by all units: so many stages for each; 0: they
 * are not. */
static uint64_t share_of(const linear_problem *p, uint64_t n, uint32_t units)
{
    const uint64_t stages = (p->weights->k + STEP - 1) / STEP, rest = tiles_of(n) % units;
    const uint64_t per = llmk_linear_split_per(rest, stages, units);
    return rest && llmk_linear_may_split(p, rest, per * units, units) ? per : 0;
}

bool llmk_linear_nv90_few_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    const uint64_t m = p->x.nrows, n = llmk_weights_first_rows(w);
    const uint32_t units = ctx->caps.compute_units;
    if (!llmk_linear_has_wgmma(ctx, why) || !llmk_linear_is_half(p, why) ||
        !llmk_linear_may_vary(p, why) || !llmk_linear_nv90_has_k(w->k, why))
        return false;
    if (m < MIN_ROWS || m > MOST_ROWS)
        return llmk_no(why, "for %d ... %d rows of x", MIN_ROWS, MOST_ROWS);
    if (!llmk_linear_nv90_has_boxes(p, why))
        return false;
    if (ctx->is_trial || llmk_variant_is_forced(ctx, "linear", "nv90-few"))
        return true;
    if (m > BETTER_ROWS || (m <= NV_ROWS && w->n * w->k < LARGE))
        return llmk_no(why, "for up to %d rows of x, and %d or more where W is small", BETTER_ROWS,
                       NV_ROWS + 1);
    return share_of(p, n, units) || tiles_of(n) >= units ||
           llmk_no(why, "for tiles that fill the device, or a workspace to share them");
}

llmk_status llmk_linear_nv90_few_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const uint32_t units = launch->ctx->caps.compute_units;
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *segment = &p->weights->segments[i];
        const uint64_t tiles = tiles_of(segment->rows), per = share_of(p, segment->rows, units);
        const linear_recipe r = {.file = LLMK_NV90_FEW_NAME,
                                 .defines = p->x.dtype == LLMK_F16 ? "-DX=f16" : "-DX=bf16",
                                 .kernel = "linear_wgmma_few",
                                 .rows = MOST_ROWS,
                                 .columns = W_ROWS,
                                 .local = {ITEMS, 1, 1},
                                 .groups = per || tiles > units ? units : (uint32_t)tiles,
                                 .has_split = true,
                                 .whole = (uint32_t)(tiles - tiles % units),
                                 .per = (uint32_t)per};
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}
