/*
 * linear_stream.c - the linear layer for up to sixteen rows of x and weights in the layouts of
 * mma.sync: cl/linear/linear_stream.cl. docs/notes/performance.md has the sizes chosen here.
 */
#include "ops/elementwise.h"
#include "ops/linear.h"

#define MAX_ROWS 16u
#define WARP     32u
/* The kernel divides spans by those of a group, by a multiplication that is right so far. */
#define MAX_DEPTH ((uint64_t)1 << 20)

static bool fits(const llmk_context *ctx, const linear_problem *p, uint32_t warps, uint32_t bytes,
                 llmk_reason *why)
{
    const llmk_weights *w = p->weights;
    if (!(LLMK_LAYOUT_BIT(w->layout) & LLMK_LAYOUTS_NV))
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(w->layout));
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    if (p->x.nrows > MAX_ROWS)
        return llmk_no(why, "for at most %u rows of x", MAX_ROWS);
    if (w->depth == 0 || w->depth > MAX_DEPTH)
        return llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)w->k,
                       (unsigned long long)MAX_DEPTH);
    if (ctx->caps.max_work_group < warps * WARP || ctx->caps.local_bytes < bytes)
        return llmk_no(why, "needs work-groups of %u and %u bytes of local memory", warps * WARP,
                       bytes);
    return true;
}

/* Warps that share 32 rows of W along K: the fewer work-groups there are for a compute unit, the
 * more. Depends on the weights and the device alone, so that a row of x gives the same bits whatever
 * its neighbours. */
static uint32_t warps_of(const llmk_context *ctx, const llmk_weights *w)
{
    const uint64_t groups = (w->n + 31) / 32, units = ctx->caps.compute_units;
    return groups >= 2 * units ? 8 : groups >= units + units / 2 ? 16 : 32;
}

bool llmk_linear_nv_stream_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    return llmk_nv_supported(ctx, why) && fits(ctx, p, warps_of(ctx, p->weights), 48 << 10, why);
}

#define EMULATED_WARPS 8u

bool llmk_linear_emulated_nv_stream_supports(llmk_context *ctx, const void *problem,
                                             llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "emulated-nv-stream"))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return fits(ctx, problem, EMULATED_WARPS, 64 << 10, why);
}

/* The weights along K that the kernel applies one scale to, in units of 32. */
static uint32_t span_of(const llmk_weights *w)
{
    uint32_t span = w->layout == LLMK_LAYOUT_U4_NV ? 4 : 2;
    while (w->groups > 1 && w->group_size % (32 * span) != 0)
        span /= 2;
    return span;
}

static llmk_status launch_stream(llmk_launch *launch, const linear_problem *p, uint32_t warps,
                                 const char *unit)
{
    static const char *const kernels[2][3] = {
        {"linear_stream_32x16", "linear_stream_32x16_affine", "linear_stream_32x16_gathered"},
        {"linear_stream_32x8", "linear_stream_32x8_affine", "linear_stream_32x8_gathered"}};
    const llmk_weights *w = p->weights;
    const bool eight = p->x.nrows <= 8;
    const bool gathered = w->order || !p->x.unit || p->x.align < 16 || w->k % 8 != 0;
    const bool affine = w->has_zeros || w->scale_kind == LLMK_SCALE_F16_MIN;
    char defines[96];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype),
              w->layout == LLMK_LAYOUT_U4_NV ? " -DW=u4_nv" : " -DW=s8_nv", " -DWARPS=",
              llmk_digits(warps), " -DSPAN=", llmk_digits(span_of(w)), " -DFRAGMENT_MMA", unit, NULL);
    const linear_recipe r = {
        .file = "linear/linear_stream.cl",
        .defines = defines,
        .kernel = kernels[eight][gathered ? 2 : affine],
        .rows = eight ? 8 : 16,
        .columns = 32,
        .local = {(size_t)warps * WARP, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_nv_stream_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    return launch_stream(launch, p, warps_of(launch->ctx, p->weights), "");
}

llmk_status llmk_linear_emulated_nv_stream_launch(llmk_launch *launch, const void *problem)
{
    return launch_stream(launch, problem, EMULATED_WARPS, " -DFRAGMENT_EMULATED");
}
