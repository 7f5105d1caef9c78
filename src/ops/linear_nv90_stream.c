/*
 * linear_nv90_stream.c - the linear layer for few rows of x, weights of 4 bits and so many columns
 * that they fill the device: cl/linear/linear_stream90.cl, for NVIDIA GPUs of compute capability
 * 9.0. docs/notes/performance.md has the estimate.
 */
#include "ops/linear_nv90.h"

#define STEP_K    128
#define ACROSS    2 /* warps beside each other */
#define BLOCKS    7 /* of 16 columns, of a warp */
#define MAX_ROWS  32

/* Kernels by rows of x, and how long a step of a block takes on an H200, in ps. */
typedef struct stream_kernel {
    const char *plain, *zeros;
    uint32_t rows, items, block;
} stream_kernel;

static const stream_kernel kernels[] = {
    {"linear_stream90_8", "linear_stream90_8_zeros", 8, 512, 33000},
    {"linear_stream90_16", "linear_stream90_16_zeros", 16, 512, 37000},
    {"linear_stream90_32", "linear_stream90_32_zeros", 32, 256, 50000},
};

static const stream_kernel *kernel_for(uint64_t rows)
{
    size_t i = 0;
    while (kernels[i].rows < rows)
        i++;
    return &kernels[i];
}

/* Blocks of a warp such that work-groups, each of which fills a compute unit, end soonest: the
 * number of them that the fullest unit has, one turn after the other. */
static uint32_t count_for(const llmk_context *ctx, uint64_t columns, uint64_t *turns)
{
    const uint64_t blocks = (columns + 15) / 16;
    const uint64_t units = ctx->caps.compute_units;
    uint32_t best = 1;
    *turns = UINT64_MAX;
    for (uint32_t count = 1; count <= BLOCKS && ACROSS * count <= blocks; count++) {
        const uint64_t groups = (blocks + ACROSS * count - 1) / (ACROSS * count);
        const uint64_t t = (groups + units - 1) / units * count * ACROSS;
        if (t <= *turns || ctx->is_trial) { /* in which the largest has its turn */
            *turns = t;
            best = count;
        }
    }
    return best;
}

/* Fewer rows than the first kernel of this file pays for, or others serve better. */
static bool pays(const llmk_context *ctx, const linear_problem *p)
{
    const llmk_weights *w = p->weights;
    uint64_t time = 0;
    for (size_t i = 0; i < w->segment_count; i++) {
        uint64_t turns;
        count_for(ctx, w->segments[i].rows, &turns);
        time += turns;
    }
    return time > 0;
}

bool llmk_linear_nv90_stream_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    if (!llmk_linear_has_wgmma(ctx, why) || !llmk_linear_is_plain(p, why) ||
        !llmk_linear_may_vary(p, why))
        return false;
    if (w->layout != LLMK_LAYOUT_U4_NV)
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(w->layout));
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    if (p->x.nrows > MAX_ROWS)
        return llmk_no(why, "for at most %u rows of x", MAX_ROWS);
    for (size_t i = 0; i < w->segment_count; i++)
        if (w->segments[i].rows <= 16)
            return llmk_no(why, "for 17 rows of W and more");
    if (w->k == 0 || llmk_linear_gathers(w, &p->x, STEP_K))
        return llmk_no(why, "for rows of x in the order of the weights, with one stride and on "
                            "16-byte boundaries, and k a multiple of %u", STEP_K);
    if (w->scale_kind != LLMK_SCALE_F16 && w->scale_kind != LLMK_SCALE_BF16)
        return llmk_no(why, "for scales of two bytes, and no minimums");
    if (w->groups > 1 && w->group_size % STEP_K != 0)
        return llmk_no(why, "for groups of a multiple of %u, or one in a row", STEP_K);
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "nv90-stream") && !pays(ctx, p))
        return llmk_no(why, "too few columns to fill the device");
    return true;
}

llmk_status llmk_linear_nv90_stream_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    const stream_kernel *kernel = kernel_for(p->x.nrows);
    char defines[32];
    for (size_t i = 0; i < w->segment_count; i++) {
        const llmk_segment *segment = &w->segments[i];
        uint64_t turns;
        const uint32_t count = count_for(launch->ctx, segment->rows, &turns);
        const linear_recipe r = {.file = LLMK_NV90_STREAM_NAME,
                                 .defines =
                                     llmk_linear_defines(p->x.dtype, w->layout, defines),
                                 .kernel = w->has_zeros ? kernel->zeros : kernel->plain,
                                 .rows = kernel->rows,
                                 .columns = (uint64_t)ACROSS * count * 16,
                                 .local = {kernel->items, 1, 1},
                                 .has_last = true,
                                 .last = count};
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}
