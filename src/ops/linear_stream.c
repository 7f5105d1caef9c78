/*
 * linear_stream.c - the linear layer for up to sixteen rows of x on NVIDIA: weights in the layouts
 * of mma.sync, cl/linear/linear_stream.cl and, for nine rows and more, linear_stream_wide.cl, and
 * weights of x's own 16-bit type, cl/linear/linear_rows_stream.cl and, for one or two rows,
 * linear_dot.cl.
 * docs/notes/performance.md has the sizes chosen here.
 */
#include "core/image.h"
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

static const shape fine = {" -DTILES=2 -DWARPS=4", 4, 32, 4 * 8 * 36 * 4};
static const shape large = {" -DTILES=2 -DWARPS=8", 8, 32, 8 * 8 * 36 * 4};
static const shape small = {" -DTILES=1 -DWARPS=16", 16, 16, 16 * 8 * 36 * 4};

/* Of a gated pair a work-group takes a block of either. */
static const shape fine_gated = {" -DTILES=2 -DWARPS=4", 4, 16, 4 * 8 * 36 * 4};
static const shape large_gated = {" -DTILES=2 -DWARPS=8", 8, 16, 8 * 8 * 36 * 4};
static const shape small_gated = {" -DTILES=2 -DWARPS=16", 16, 16, 16 * 8 * 36 * 4};

uint32_t llmk_linear_span(const llmk_weights *w)
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

bool llmk_linear_gathers(const llmk_weights *w, const llmk_view *x, uint32_t step)
{
    return w->order || !x->unit || !x->simple || x->align < 16 || w->k % step != 0;
}

/* The kinds of kernel, from what is known of x, scales and zeros. */
enum { PLAIN, ZEROS, ANY, GATHERED };

static int kind_of(const linear_problem *p)
{
    const llmk_weights *w = p->weights;
    const bool narrow = w->scale_kind == LLMK_SCALE_F16 || w->scale_kind == LLMK_SCALE_BF16;
    if (llmk_linear_gathers(w, &p->x, w->layout == LLMK_LAYOUT_U4_NV ? 128 : 64))
        return GATHERED;
    return w->groups > 1 && !narrow ? ANY : w->has_zeros ? ZEROS : PLAIN;
}

bool llmk_linear_stream_has_sizes(const linear_problem *p)
{
    const uint32_t span = llmk_linear_span(p->weights);
    return kind_of(p) < ANY &&
           (span == 0 || (span == 4 && p->weights->layout == LLMK_LAYOUT_U4_NV));
}

/* Where there are few work-groups for a compute unit, smaller ones with more warps. Depends on the
 * weights, the device, the kind and whether there are more than eight rows of x, so that up to
 * eight give the same bits whatever their neighbours, and so do nine to sixteen. */
static const shape *shape_of(const llmk_context *ctx, const linear_problem *p)
{
    const llmk_weights *w = p->weights;
    const uint64_t rows = p->gate ? 2 * p->gate->outputs : w->n;
    const uint64_t groups = (rows + 31) / 32, units = ctx->caps.compute_units;
    const bool trial = ctx->is_trial; /* in which each has its turn */
    const bool few = trial ? w->groups > 1 && p->x.nrows <= 8 : groups < 2 * units;
    const bool many =
        w->layout == LLMK_LAYOUT_U4_NV && (p->x.nrows > 8 || (!trial && groups >= 5 * units));
    if (!llmk_linear_stream_has_sizes(p))
        return p->gate ? &large_gated : &large;
    if (few)
        return p->gate ? &small_gated : &small;
    if (many)
        return p->gate ? &fine_gated : &fine;
    return p->gate ? &large_gated : &large;
}

/* cl/linear/linear_stream_wide.cl */
#define WIDE_FILE    "linear/linear_stream_wide.cl"
#define WIDE_WARPS   4u
#define WIDE_COLUMNS 112u
#define WIDE_A_UNIT  2u    /* work-groups that find room on a compute unit */
#define WIDE_DEPTH   8192u /* less was not measured */

static const char *wide_defines(const linear_problem *p, const char *unit, char text[64])
{
    llmk_join(text, 64, "-DX=", llmk_dtype_name(p->x.dtype),
              " -DSPAN=", llmk_digits(llmk_linear_span(p->weights)), " -DFRAGMENT_MMA", unit, NULL);
    return text;
}

bool llmk_linear_stream_may_be_wide(const llmk_context *ctx, const linear_problem *p, bool emulated,
                                    llmk_reason *why)
{
    if (p->gate || p->weights->layout != LLMK_LAYOUT_U4_NV || p->x.nrows <= 8 ||
        p->x.nrows > MAX_ROWS || !llmk_linear_stream_has_sizes(p))
        return llmk_no(why, "for nine to sixteen rows of x, of whole steps, and weights of 4 bits "
                            "in groups of 128 and multiples of it, with scales of two bytes");
    char text[64];
    return emulated ||
           (ctx->caps.vendor == LLMK_VENDOR_NVIDIA && ctx->caps.compute_capability == 90 &&
            llmk_image_comes_first(ctx, WIDE_FILE, wide_defines(p, "", text))) ||
           llmk_no(why, "for the sm_90a image on GPUs of compute capability 9.0");
}

/* Where its work-groups, of which a unit has fewer than of others, leave few places empty. In a
 * trial either has its turn. */
static bool is_wide(const llmk_context *ctx, const linear_problem *p)
{
    const uint64_t groups = (p->weights->n + WIDE_COLUMNS - 1) / WIDE_COLUMNS;
    const uint64_t places = (uint64_t)WIDE_A_UNIT * ctx->caps.compute_units;
    const uint64_t rounds = (groups + places - 1) / places;
    const bool fills = groups * 10 >= rounds * places * 9 && p->weights->k >= WIDE_DEPTH;
    llmk_reason why;
    return (ctx->is_trial ? p->x.nrows < MAX_ROWS : fills) &&
           llmk_linear_stream_may_be_wide(ctx, p, false, &why);
}

static const shape large_rows = {" -DWARPS=8", 8, 32, 8 * 8 * 36 * 4};
static const shape small_rows = {" -DWARPS=16", 16, 32, 16 * 8 * 36 * 4};

static const shape *rows_shape_of(const llmk_context *ctx, const llmk_weights *w)
{
    return (w->n + 31) / 32 < UINT64_C(2) * ctx->caps.compute_units ? &small_rows : &large_rows;
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

/* Blocks of up begin where those of the gate do. */
static bool fits_gate(const linear_problem *p, llmk_reason *why)
{
    const linear_gate *g = p->gate;
    if (!g)
        return true;
    if (g->step != 1 || g->up_first % p->weights->block != 0)
        return llmk_no(why, "gate and up share blocks of %u rows", p->weights->block);
    return true;
}

static bool reads_codes(const linear_problem *p, llmk_reason *why)
{
    if (!llmk_linear_is_plain(p, why))
        return false;
    if (!(LLMK_LAYOUT_BIT(p->weights->layout) & LLMK_LAYOUTS_NV))
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(p->weights->layout));
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    return fits_gate(p, why);
}

bool llmk_linear_nv_stream_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    return llmk_nv_supported(ctx, why) && reads_codes(p, why) &&
           fits(ctx, p, shape_of(ctx, p), 0, why);
}

bool llmk_linear_nv_rows_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    return llmk_nv_supported(ctx, why) && llmk_linear_is_half(p, why) &&
           fits(ctx, p, rows_shape_of(ctx, p->weights), 0, why);
}

bool llmk_linear_emulated_nv_stream_supports(llmk_context *ctx, const void *problem,
                                             llmk_reason *why)
{
    const char *op = ((const linear_problem *)problem)->gate ? "gated_linear" : "linear";
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, op, "emulated-nv-stream"))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return reads_codes(problem, why) && fits(ctx, problem, &fine, 4 * EMULATOR_BYTES, why);
}

bool llmk_linear_emulated_nv_rows_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "emulated-nv-rows"))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return llmk_linear_is_half(problem, why) &&
           fits(ctx, problem, &large_rows, 8 * EMULATOR_BYTES, why);
}

static llmk_status launch_stream(llmk_launch *launch, const linear_problem *p, const shape *s,
                                 const char *unit)
{
    static const char *const kernels[2][4] = {{"linear_stream_16", "linear_stream_16_zeros",
                                               "linear_stream_16_any", "linear_stream_16_gathered"},
                                              {"linear_stream_8", "linear_stream_8_zeros",
                                               "linear_stream_8_any", "linear_stream_8_gathered"}};
    const llmk_weights *w = p->weights;
    const bool eight = p->x.nrows <= 8;
    char defines[96];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype),
              w->layout == LLMK_LAYOUT_U4_NV ? " -DW=u4_nv" : " -DW=s8_nv", s->defines,
              " -DSPAN=", llmk_digits(llmk_linear_span(w)), p->gate ? " -DGATED" : "",
              " -DFRAGMENT_MMA", unit, NULL);
    const linear_recipe r = {.file = "linear/linear_stream.cl",
                             .defines = defines,
                             .kernel = kernels[eight][kind_of(p)],
                             .rows = eight ? 8 : 16,
                             .columns = s->columns,
                             .local = {(size_t)s->warps * WARP, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

static llmk_status launch_wide(llmk_launch *launch, const linear_problem *p, const char *unit)
{
    char text[64];
    const linear_recipe r = {.file = WIDE_FILE,
                             .defines = wide_defines(p, unit, text),
                             .kernel = kind_of(p) == ZEROS ? "linear_stream_wide_zeros"
                                                           : "linear_stream_wide",
                             .rows = MAX_ROWS,
                             .columns = WIDE_COLUMNS,
                             .local = {(size_t)WIDE_WARPS * WARP, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_nv_stream_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    static const shape *const shapes[] = {&fine, &large, &small}; /* of configurations */
    if (launch->config ? launch->config->value[0] == LLMK_STREAM_WIDE : is_wide(launch->ctx, p))
        return launch_wide(launch, p, "");
    return launch_stream(
        launch, p, launch->config ? shapes[launch->config->value[0]] : shape_of(launch->ctx, p),
        "");
}

llmk_status llmk_linear_emulated_nv_stream_launch(llmk_launch *launch, const void *problem)
{
    const bool gated = ((const linear_problem *)problem)->gate != NULL;
    if (launch->config)
        return launch_wide(launch, problem, " -DFRAGMENT_EMULATED");
    return launch_stream(launch, problem, gated ? &fine_gated : &fine, " -DFRAGMENT_EMULATED");
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
                             .kernel = kernels[eight][llmk_linear_gathers(p->weights, &p->x, 8)],
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

/* ---- One or two rows of x ---- */

#define DOT_ITEMS 256u
#define DOT_ROWS  2u /* of W, and the most of x */

static bool is_dot(const llmk_context *ctx, const linear_problem *p, llmk_reason *why)
{
    if (!llmk_linear_is_half(p, why) || !llmk_linear_may_vary(p, why))
        return false;
    if (p->x.nrows > DOT_ROWS)
        return llmk_no(why, "for at most %u rows of x", DOT_ROWS);
    if (llmk_linear_gathers(p->weights, &p->x, 8) || p->weights->k == 0)
        return llmk_no(why, "for rows of x of whole vectors");
    if (ctx->caps.max_work_group < DOT_ITEMS)
        return llmk_no(why, "needs work-groups of %u", DOT_ITEMS);
    return true;
}

bool llmk_linear_nv_dot_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    return llmk_nv_supported(ctx, why) && is_dot(ctx, problem, why);
}

bool llmk_linear_emulated_nv_dot_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "emulated-nv-dot"))
        return llmk_no(why, "emulates a sub-group: for tests, only where forced");
    return is_dot(ctx, problem, why);
}

static llmk_status launch_dot(llmk_launch *launch, const linear_problem *p, const char *unit)
{
    char defines[48];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), unit, NULL);
    const linear_recipe r = {.file = "linear/linear_dot.cl",
                             .defines = defines,
                             .kernel = p->x.nrows == 1 ? "linear_dot_1" : "linear_dot_2",
                             .rows = DOT_ROWS,
                             .columns = DOT_ROWS,
                             .local = {DOT_ITEMS, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_nv_dot_launch(llmk_launch *launch, const void *problem)
{
    return launch_dot(launch, problem, "");
}

llmk_status llmk_linear_emulated_nv_dot_launch(llmk_launch *launch, const void *problem)
{
    return launch_dot(launch, problem, " -DFRAGMENT_EMULATED");
}
