/*
 * linear_nv90_stream.c - the linear layer for 9 to 16 rows of x, weights of 4 bits and so many
 * columns that tiles fill the device: cl/linear/linear_stream90.cl, for NVIDIA GPUs of compute
 * capability 9.0. docs/notes/performance.md has what was measured.
 */
#include "ops/linear_nv90.h"

#define ITEMS    512u
#define STEP_K   128u
#define COLUMNS  224u /* of a work-group, which fills a compute unit */
#define MIN_ROWS 9
#define MAX_ROWS 16
/* The kernel divides steps by those of a group, by a multiplication that is right so far. */
#define MAX_K ((uint64_t)1 << 20)

/* Whether it takes less time than nv-stream by what was measured on an H200: the units have tiles in
 * turns, which must be full enough, and as deep as to pay for their ends. */
#define LEAST_PERCENT 94
#define LEAST_K       4096

static bool pays(const llmk_context *ctx, const llmk_weights *w)
{
    const uint64_t units = ctx->caps.compute_units;
    uint64_t blocks = 0, turns = 0; /* of 16 columns; of all units */
    for (size_t i = 0; i < w->segment_count; i++) {
        const uint64_t tiles = (w->segments[i].rows + COLUMNS - 1) / COLUMNS;
        blocks += w->segments[i].rows / 16;
        turns += (tiles + units - 1) / units;
    }
    return w->k >= LEAST_K && blocks * 100 >= turns * units * (COLUMNS / 16) * LEAST_PERCENT;
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
    if (w->k == 0 || w->k > MAX_K || llmk_linear_gathers(w, &p->x, STEP_K))
        return llmk_no(why,
                       "for rows of x in the order of the weights, with one stride and on "
                       "16-byte boundaries, and k a multiple of %u",
                       STEP_K);
    if (w->scale_kind != LLMK_SCALE_F16 && w->scale_kind != LLMK_SCALE_BF16)
        return llmk_no(why, "for scales of two bytes, and no minimums");
    if (w->groups > 1 && w->group_size % STEP_K != 0)
        return llmk_no(why, "for groups of a multiple of %u, or one a row", STEP_K);
    if (!asked && !pays(ctx, w))
        return llmk_no(why, "for tiles of %u columns that fill the device, and k from %d on",
                       COLUMNS, LEAST_K);
    return true;
}

llmk_status llmk_linear_nv90_stream_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    char defines[32];
    const linear_recipe r = {
        .file = LLMK_NV90_STREAM_NAME,
        .defines = llmk_linear_defines(p->x.dtype, p->weights->layout, defines),
        .kernel = p->weights->has_zeros ? "linear_stream90_16_zeros" : "linear_stream90_16",
        .rows = MAX_ROWS,
        .columns = COLUMNS,
        .local = {ITEMS, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}
