/*
 * linear_nv90_stream.c - the linear layer for 9 to 16 rows of x, weights of 4 bits and so many
 * columns that they fill the device: cl/linear/linear_stream90.cl, for NVIDIA GPUs of compute
 * capability 9.0. docs/notes/performance.md has the estimate.
 */
#include "ops/linear_nv90.h"

#define ITEMS    480u
#define STEP_K   128u
#define COLUMNS  32u /* of a warp */
#define ACROSS   7u  /* warps beside each other, at most, in a work-group, which fills a unit */
#define MIN_ROWS 9
#define MAX_ROWS 16

/* Warps beside each other such that the unit that has most columns has least. In a trial, whose
 * problems are small, as many as can be. */
static uint32_t across_for(const llmk_context *ctx, uint64_t columns, uint64_t *most)
{
    const uint64_t pairs = (columns + COLUMNS - 1) / COLUMNS, units = ctx->caps.compute_units;
    uint32_t best = 1;
    *most = UINT64_MAX;
    for (uint32_t across = 1; across <= ACROSS && across <= pairs; across++) {
        const uint64_t groups = (pairs + across - 1) / across;
        const uint64_t of_unit = (groups + units - 1) / units * across;
        if (of_unit <= *most || ctx->is_trial) {
            *most = of_unit;
            best = across;
        }
    }
    return best;
}

/* Whether it takes less time than nv-stream by estimate, in ns on an H200: here each unit does its
 * blocks' pieces, there all units share them, and x is read once for every two blocks. */
static bool pays(const llmk_context *ctx, const linear_problem *p)
{
    const llmk_weights *w = p->weights;
    const uint64_t steps = w->k / STEP_K;
    uint64_t here = 0, there = 0;
    for (size_t i = 0; i < w->segment_count; i++) {
        uint64_t most;
        across_for(ctx, w->segments[i].rows, &most);
        here += 3000 + most * steps * 70;
        there += 2000 + (w->segments[i].rows / COLUMNS * steps * 97 + ctx->caps.compute_units - 1) /
                            ctx->caps.compute_units;
    }
    return here < there;
}

bool llmk_linear_nv90_stream_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    const bool asked = ctx->is_trial || llmk_variant_is_forced(ctx, "linear", "nv90-stream");
    if (!llmk_linear_has_wgmma(ctx, why) || !llmk_linear_is_plain(p, why) ||
        !llmk_linear_may_vary(p, why))
        return false;
    if (w->layout != LLMK_LAYOUT_U4_NV)
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(w->layout));
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    if (p->x.nrows > MAX_ROWS || (p->x.nrows < MIN_ROWS && !asked))
        return llmk_no(why, "for %d to %d rows of x", MIN_ROWS, MAX_ROWS);
    if (w->k == 0 || w->k > INT32_MAX || llmk_linear_gathers(w, &p->x, STEP_K))
        return llmk_no(why, "for rows of x in the order of the weights, with one stride and on "
                            "16-byte boundaries, and k a multiple of %u",
                       STEP_K);
    if (w->scale_kind != LLMK_SCALE_F16 && w->scale_kind != LLMK_SCALE_BF16)
        return llmk_no(why, "for scales of two bytes, and no minimums");
    if (w->groups > 1 && w->group_size % STEP_K != 0)
        return llmk_no(why, "for groups of a multiple of %u, or one a row", STEP_K);
    if (!asked && !pays(ctx, p))
        return llmk_no(why, "too few columns to fill the device");
    return true;
}

llmk_status llmk_linear_nv90_stream_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    char defines[32];
    for (size_t i = 0; i < w->segment_count; i++) {
        const llmk_segment *segment = &w->segments[i];
        uint64_t most;
        const uint32_t across = across_for(launch->ctx, segment->rows, &most);
        const linear_recipe r = {.file = LLMK_NV90_STREAM_NAME,
                                 .defines = llmk_linear_defines(p->x.dtype, w->layout, defines),
                                 .kernel = w->has_zeros ? "linear_stream90_16_zeros"
                                                        : "linear_stream90_16",
                                 .rows = MAX_ROWS,
                                 .columns = (uint64_t)COLUMNS * across,
                                 .local = {ITEMS, 1, 1},
                                 .has_last = true,
                                 .last = across};
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}
