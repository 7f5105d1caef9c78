/*
 * linear_stream.c - the linear layer for up to sixteen rows of x on mma.sync: weights in its
 * layouts, cl/linear/linear_stream.cl, and weights of x's own 16-bit type,
 * cl/linear/linear_rows_stream.cl. docs/notes/performance.md has the sizes chosen here.
 */
#include "ops/elementwise.h"
#include "ops/linear.h"

#define MAX_ROWS       16u
#define WARP           32u
#define EMULATOR_BYTES (5u << 10) /* of local memory, for a warp */
/* The kernel divides spans by those of a group, by a multiplication that is right so far. */
#define MAX_DEPTH ((uint64_t)1 << 20)

typedef struct shape {
    const char *defines;
    uint32_t warps, columns; /* that share so many rows of W */
    uint32_t local_bytes;    /* the sums of eight rows of x */
} shape;

#define PLAIN_16_COLUMNS 32u /* of sixteen plain rows of x, in either */

static const shape large = {" -DTILES=2 -DWARPS=8", 8, 32, 8 * 8 * 36 * 4};
static const shape small = {" -DTILES=1 -DWARPS=16", 16, 16, 16 * 8 * 36 * 4};

/* Where there are few work-groups for a compute unit, smaller ones with more warps. Depends on the
 * weights and the device alone, so that a row of x gives the same bits whatever its neighbours. */
static const shape *shape_of(const llmk_context *ctx, const llmk_weights *w)
{
    if (ctx->is_trial) /* of few rows of W: either has its turn */
        return w->groups == 1 ? &large : &small;
    return (w->n + 31) / 32 >= UINT64_C(2) * ctx->caps.compute_units ? &large : &small;
}

static const shape large_rows = {" -DWARPS=8", 8, 32, 8 * 8 * 36 * 4};
static const shape small_rows = {" -DWARPS=16", 16, 32, 16 * 8 * 36 * 4};

static const shape *rows_shape_of(const llmk_context *ctx, const llmk_weights *w)
{
    return shape_of(ctx, w) == &large ? &large_rows : &small_rows;
}

static bool fits(const llmk_context *ctx, const linear_problem *p, const shape *s,
                 uint32_t emulator_bytes, llmk_reason *why)
{
    const llmk_weights *w = p->weights;
    if (p->x.nrows > MAX_ROWS)
        return llmk_no(why, "for at most %u rows of x", MAX_ROWS);
    if (!llmk_linear_may_vary(p, why))
        return false;
    if (w->depth == 0 || w->depth > MAX_DEPTH)
        return llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)w->k,
                       (unsigned long long)MAX_DEPTH);
    const uint32_t bytes = s->local_bytes + emulator_bytes;
    if (ctx->caps.max_work_group < s->warps * WARP || ctx->caps.local_bytes < bytes)
        return llmk_no(why, "needs work-groups of %u and %u bytes of local memory", s->warps * WARP,
                       bytes);
    return true;
}

static bool reads_codes(const linear_problem *p, llmk_reason *why)
{
    if (!(LLMK_LAYOUT_BIT(p->weights->layout) & LLMK_LAYOUTS_NV))
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(p->weights->layout));
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    return true;
}

bool llmk_linear_nv_stream_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    return llmk_nv_supported(ctx, why) && reads_codes(p, why) &&
           fits(ctx, p, shape_of(ctx, p->weights), 0, why);
}

bool llmk_linear_nv_rows_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "nv-rows"))
        return llmk_no(why, "only where forced: it has not run on a GPU yet");
    return llmk_nv_supported(ctx, why) && llmk_linear_is_half(p, why) &&
           fits(ctx, p, rows_shape_of(ctx, p->weights), 0, why);
}

bool llmk_linear_emulated_nv_stream_supports(llmk_context *ctx, const void *problem,
                                             llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "emulated-nv-stream"))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return reads_codes(problem, why) && fits(ctx, problem, &large, 8 * EMULATOR_BYTES, why);
}

bool llmk_linear_emulated_nv_rows_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "emulated-nv-rows"))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return llmk_linear_is_half(problem, why) &&
           fits(ctx, problem, &large_rows, 8 * EMULATOR_BYTES, why);
}

/* The weights along K that the kernel applies one scale to, in units of 32; 0: a row of W. */
static uint32_t span_of(const llmk_weights *w)
{
    if (w->scale_kind == LLMK_SCALE_F16_MIN)
        return 1;
    if (w->groups == 1)
        return 0;
    uint32_t span = w->layout == LLMK_LAYOUT_U4_NV ? 4 : 2;
    while (span > 1 && w->group_size % (32 * span) != 0)
        span /= 2;
    return span;
}

/* Whether x is other than whole vectors. */
static bool is_gathered(const linear_problem *p)
{
    return p->weights->order || !p->x.unit || p->x.align < 16 || p->weights->k % 8 != 0;
}

static llmk_status launch_stream(llmk_launch *launch, const linear_problem *p, const shape *s,
                                 const char *unit)
{
    static const char *const kernels[2][3] = {
        {"linear_stream_16", "linear_stream_16_affine", "linear_stream_16_gathered"},
        {"linear_stream_8", "linear_stream_8_affine", "linear_stream_8_gathered"}};
    const llmk_weights *w = p->weights;
    const bool eight = p->x.nrows <= 8;
    const bool gathered = is_gathered(p);
    const bool narrow = w->scale_kind == LLMK_SCALE_F16 || w->scale_kind == LLMK_SCALE_BF16;
    const bool affine = w->has_zeros || (w->groups > 1 && !narrow);
    const bool plain_16 = !eight && !gathered && !affine;
    char defines[96];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype),
              w->layout == LLMK_LAYOUT_U4_NV ? " -DW=u4_nv" : " -DW=s8_nv", s->defines,
              " -DSPAN=", llmk_digits(span_of(w)), " -DFRAGMENT_MMA", unit, NULL);
    const linear_recipe r = {.file = "linear/linear_stream.cl",
                             .defines = defines,
                             .kernel = kernels[eight][gathered ? 2 : affine],
                             .rows = eight ? 8 : 16,
                             .columns = plain_16 ? PLAIN_16_COLUMNS : s->columns,
                             .local = {(size_t)s->warps * WARP, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_nv_stream_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const shape *s = shape_of(launch->ctx, p->weights);
    if (launch->config)
        s = launch->config->value[0] ? &small : &large;
    return launch_stream(launch, p, s, "");
}

llmk_status llmk_linear_emulated_nv_stream_launch(llmk_launch *launch, const void *problem)
{
    return launch_stream(launch, problem, &large, " -DFRAGMENT_EMULATED");
}

static llmk_status launch_rows(llmk_launch *launch, const linear_problem *p, const shape *s,
                               const char *unit)
{
    static const char *const kernels[2][2] = {
        {"linear_rows_stream_16", "linear_rows_stream_16_gathered"},
        {"linear_rows_stream_8", "linear_rows_stream_8_gathered"}};
    const bool eight = p->x.nrows <= 8;
    char defines[96];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), s->defines,
              " -DFRAGMENT_MMA", unit, NULL);
    const linear_recipe r = {.file = "linear/linear_rows_stream.cl",
                             .defines = defines,
                             .kernel = kernels[eight][is_gathered(p)],
                             .rows = eight ? 8 : 16,
                             .columns = s->columns,
                             .local = {(size_t)s->warps * WARP, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_nv_rows_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    return launch_rows(launch, p, rows_shape_of(launch->ctx, p->weights), "");
}

llmk_status llmk_linear_emulated_nv_rows_launch(llmk_launch *launch, const void *problem)
{
    return launch_rows(launch, problem, &large_rows, " -DFRAGMENT_EMULATED");
}
