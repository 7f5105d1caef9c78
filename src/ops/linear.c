/* linear.c - y = x W^T + bias + residual, for weights in any layout. */
#include "ops/linear.h"
#include "ops/linear_selftest.h"
#include "ops/linear_split.h"
#include "ops/subgroup.h"

#include <stdio.h>

/* Numbered as in cl/linear/linear_common.clh. */
typedef enum x_access { X_STRIDED = 0, X_UNIT = 1, X_ALIGNED = 2, X_ORDERED = 3 } x_access;

static uint64_t workspace_bytes(const void *problem)
{
    const linear_problem *p = problem;
    const uint64_t split = llmk_linear_split_bytes(p);
    return !p->w8a8 ? split
           : split  ? llmk_linear_split_first(p) + split
                    : llmk_linear_w8a8_bytes(p->x.nrows, p->weights->k);
}

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *problem)
{
    linear_problem *p = problem;
    llmk_linear_args a;
    LLMK_TRY(llmk_take_args("linear", args, offsetof(llmk_linear_args, workspace), sizeof a, &a));
    if (!a.weights)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "linear: weights is NULL");
    const uint64_t n = a.weights->n, k = a.weights->k;
    p->weights = a.weights;
    llmk_checker c = llmk_check_begin(ctx, "linear", dry);
    llmk_check_that(&c, a.weights->ctx == ctx, LLMK_INVALID_ARGUMENT,
                    "weights belong to another context");
    llmk_check_that(&c, a.weights->experts == 1, LLMK_INVALID_ARGUMENT,
                    "weights hold %llu experts; expected one matrix (llmk_grouped_linear)",
                    (unsigned long long)a.weights->experts);
    llmk_check_tensor(&c, "x", &a.x, LLMK_FLOATS, LLMK_INPUT, &p->x);
    llmk_check_that(&c, p->x.ncols == k, LLMK_INVALID_SHAPE,
                    "x has %llu columns; the weights have k = %llu", (unsigned long long)p->x.ncols,
                    (unsigned long long)k);
    llmk_check_optional(&c, "bias", &a.bias, LLMK_FLOATS, LLMK_INPUT, &p->bias);
    llmk_check_vector(&c, "bias", &p->bias, n);
    llmk_check_optional(&c, "residual", &a.residual, LLMK_FLOATS, LLMK_INPUT, &p->residual);
    llmk_check_rows_like(&c, "residual", &p->residual, "x", &p->x, n);
    llmk_check_tensor(&c, "y", &a.y, LLMK_FLOATS, LLMK_OUTPUT, &p->y);
    llmk_check_rows_like(&c, "y", &p->y, "x", &p->x, n);
    llmk_check_in_place(&c, &p->y, &p->residual);
    llmk_check_flags(&c, a.flags, LLMK_LINEAR_BATCH_INVARIANT | LLMK_LINEAR_W8A8);
    p->batch_invariant = a.flags & LLMK_LINEAR_BATCH_INVARIANT;
    p->w8a8 = a.flags & LLMK_LINEAR_W8A8;
    if (p->w8a8) {
        llmk_linear_w8a8_check(&c, a.weights);
        llmk_check_workspace(&c, a.workspace, llmk_linear_w8a8_bytes(p->x.nrows, k));
    } else if (a.workspace) {
        llmk_check_workspace(&c, a.workspace, llmk_linear_split_bytes(p));
    }
    if (workspace_bytes(p) > 0)
        p->workspace = a.workspace;
    return llmk_check_end(&c);
}

static bool is_empty(const void *problem)
{
    const linear_problem *p = problem;
    return p->y.count == 0;
}

void llmk_linear_weights_key(const llmk_weights *w, char *text, size_t size)
{
    static const char *const scales[] = {
        [LLMK_SCALE_NONE] = "none",       [LLMK_SCALE_F32] = "f32",   [LLMK_SCALE_F16] = "f16",
        [LLMK_SCALE_F16_MIN] = "f16+min", [LLMK_SCALE_BF16] = "bf16", [LLMK_SCALE_Q4_K] = "q4_k",
        [LLMK_SCALE_Q6_K] = "q6_k",
    };
    llmk_join(text, size, llmk_layout_name(w->layout), ",", scales[w->scale_kind],
              w->has_zeros ? ",zeros" : "", w->order ? ",order" : "", NULL);
}

static void key(const void *problem, char *text, size_t size)
{
    const linear_problem *p = problem;
    char weights[64];
    llmk_linear_weights_key(p->weights, weights, sizeof weights);
    llmk_join(text, size, "x=", llmk_dtype_name(p->x.dtype), " w=", weights,
              " y=", llmk_dtype_name(p->y.dtype), p->w8a8 ? " w8a8" : "", NULL);
}

static llmk_workspace *workspace(const void *problem)
{
    return ((const linear_problem *)problem)->workspace;
}

/* ---- Launching ---- */

/* Work-groups in the second dimension: some devices allow 65535. */
#define MAX_ROW_GROUPS 32768u

uint32_t llmk_linear_access(const llmk_weights *w, const llmk_view *x)
{
    if (w->order)
        return X_ORDERED;
    if (!x->unit)
        return X_STRIDED;
    return x->align >= 16 ? X_ALIGNED : X_UNIT;
}

uint32_t llmk_linear_shift(uint32_t v)
{
    uint32_t shift = 0;
    if (v & (v - 1))
        return 32;
    while (v >> shift > 1)
        shift++;
    return shift;
}

/* Of a segment. Weights that hold gate and up together lie in one. */
static uint64_t outputs_of(const linear_problem *p, const llmk_segment *segment)
{
    return p->gate && p->gate->up == p->weights ? p->gate->outputs : segment->rows;
}

/* The arguments in the order of GATE_PARAMETERS. */
static void arg_gate(llmk_kernel *k, const linear_gate *g, const llmk_segment *up, uint64_t outputs)
{
    llmk_arg_buffer(k, up->data);
    llmk_arg_buffer(k, up->scales);
    llmk_arg_buffer(k, up->zeros);
    llmk_arg_u32(k, (uint32_t)outputs);
    llmk_arg_u32(k, g->step);
    llmk_arg_u32(k, g->up_first);
    llmk_arg_view(k, &g->up_bias);
    llmk_arg_u32(k, g->up_bias.dtype);
    llmk_arg_u32(k, g->activation);
    llmk_arg_f32(k, g->limit);
    llmk_arg_f32(k, g->alpha);
}

/* The arguments in the order of LINEAR_PARAMETERS. */
static llmk_status enqueue(llmk_launch *launch, const linear_problem *p, const linear_recipe *r,
                           const llmk_segment *segment, uint64_t first_row, uint64_t rows)
{
    const llmk_weights *w = p->weights;
    llmk_kernel k = llmk_kernel_open(launch, r->file, r->defines, r->kernel);
    llmk_arg_view(&k, &p->x);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, first_row);
    llmk_arg_u32(&k, p->x.dtype);
    llmk_arg_u32(&k, llmk_linear_access(w, &p->x));
    llmk_arg_buffer(&k, segment->data);
    llmk_arg_buffer(&k, segment->scales);
    llmk_arg_buffer(&k, segment->zeros);
    llmk_arg_buffer(&k, w->order);
    llmk_arg_u64(&k, w->pitch);
    llmk_arg_u32(&k, (uint32_t)segment->rows);
    llmk_arg_u32(&k, (uint32_t)w->depth);
    llmk_arg_u32(&k, (uint32_t)segment->first);
    llmk_arg_u32(&k, w->groups);
    llmk_arg_u32(&k, w->group_size);
    llmk_arg_u32(&k, llmk_linear_shift(w->group_size));
    llmk_arg_u32(&k, w->scale_kind);
    llmk_arg_f32(&k, w->zero);
    llmk_arg_view(&k, &p->bias);
    llmk_arg_u32(&k, p->bias.dtype);
    llmk_arg_view(&k, &p->residual);
    llmk_arg_u32(&k, p->residual.dtype);
    llmk_arg_view(&k, &p->y);
    llmk_arg_u32(&k, p->y.dtype);
    const uint64_t outputs = outputs_of(p, segment);
    if (p->gate)
        arg_gate(&k, p->gate, &p->gate->up->segments[segment - w->segments], outputs);
    if (r->has_codes)
        llmk_linear_w8a8_arguments(&k, p);
    if (r->has_last)
        llmk_arg_u32(&k, r->last);
    if (r->has_split)
        llmk_linear_split_arguments(&k, p, r->whole, r->per);
    size_t groups[3] = {(size_t)((outputs + r->columns - 1) / r->columns),
                        (size_t)((rows + r->rows - 1) / r->rows), 1};
    if (r->groups) {
        groups[0] = r->groups;
        groups[1] = 1;
    }
    return llmk_kernel_enqueue(&k, groups, r->local);
}

llmk_status llmk_linear_run_segment(llmk_launch *launch, const linear_problem *p,
                                    const linear_recipe *r, const llmk_segment *segment)
{
    const uint64_t step = r->groups ? p->x.nrows : MAX_ROW_GROUPS * r->rows;
    for (uint64_t row = 0; row < p->x.nrows; row += step) {
        const uint64_t left = p->x.nrows - row;
        LLMK_TRY(enqueue(launch, p, r, segment, row, left < step ? left : step));
    }
    return LLMK_OK;
}

llmk_status llmk_linear_run(llmk_launch *launch, const linear_problem *p, const linear_recipe *r)
{
    for (size_t i = 0; i < p->weights->segment_count; i++)
        LLMK_TRY(llmk_linear_run_segment(launch, p, r, &p->weights->segments[i]));
    return LLMK_OK;
}

const char *llmk_linear_defines(llmk_dtype x, llmk_layout layout, char text[32])
{
    static const char *const layouts[] = {
        [LLMK_LAYOUT_F32_PORTABLE] = "f32",   [LLMK_LAYOUT_F16_PORTABLE] = "f16",
        [LLMK_LAYOUT_BF16_PORTABLE] = "bf16", [LLMK_LAYOUT_S8_PORTABLE] = "s8",
        [LLMK_LAYOUT_U4_PORTABLE] = "u4",     [LLMK_LAYOUT_Q6_K_PORTABLE] = "q6_k",
        [LLMK_LAYOUT_Q4_K_PORTABLE] = "q4_k", [LLMK_LAYOUT_U4_NV] = "u4_nv",
        [LLMK_LAYOUT_S8_NV] = "s8_nv",
    };
    llmk_join(text, 32, "-DX=", llmk_dtype_name(x), " -DW=", layouts[layout], NULL);
    return text;
}

static const char *typed_defines(const linear_problem *p, char text[32])
{
    return llmk_linear_defines(p->x.dtype, p->weights->layout, text);
}

bool llmk_linear_goes_with(const llmk_weights *gate, const llmk_weights *up, llmk_reason *why)
{
    if (gate->layout != up->layout || gate->scale_kind != up->scale_kind ||
        gate->zero != up->zero || gate->has_zeros != up->has_zeros ||
        gate->group_size != up->group_size || gate->groups != up->groups ||
        gate->segment_count != up->segment_count)
        return llmk_no(why, "another format, other groups or other buffers than the gate's");
    if (gate->order_hash != up->order_hash)
        return llmk_no(why, "another g_idx than the gate's: make one packed object of both");
    for (size_t i = 0; i < gate->segment_count; i++)
        if (gate->segments[i].rows != up->segments[i].rows)
            return llmk_no(why, "other buffers than the gate's");
    return true;
}

/* ---- Variants ---- */

bool llmk_linear_is_plain(const linear_problem *p, llmk_reason *why)
{
    return !p->w8a8 || llmk_no(why, "does not quantise x");
}

static bool reads(const linear_problem *p, uint32_t layouts, llmk_reason *why)
{
    if (!llmk_linear_is_plain(p, why))
        return false;
    if (layouts & LLMK_LAYOUT_BIT(p->weights->layout))
        return true;
    return llmk_no(why, "does not read the layout %s", llmk_layout_name(p->weights->layout));
}

bool llmk_linear_may_vary(const linear_problem *p, llmk_reason *why)
{
    return !p->batch_invariant ||
           llmk_no(why, "sums in another order than what serves more rows of x: not for "
                        "batch-invariant calls");
}

static bool cpu_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    if (!llmk_is_cpu(&ctx->caps))
        return llmk_no(why, "for CPUs only");
    return reads(problem, LLMK_LAYOUTS_PORTABLE, why);
}

/* Codes in groups of whole blocks of sixteen words, or of halves or quarters of them. */
static bool cpu_codes_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    if (!llmk_is_cpu(&ctx->caps))
        return llmk_no(why, "for CPUs only");
    if (!reads(p,
               LLMK_LAYOUT_BIT(LLMK_LAYOUT_S8_PORTABLE) | LLMK_LAYOUT_BIT(LLMK_LAYOUT_U4_PORTABLE) |
                   LLMK_LAYOUT_BIT(LLMK_LAYOUT_Q4_K_PORTABLE),
               why))
        return false;
    const uint32_t block = w->layout == LLMK_LAYOUT_S8_PORTABLE ? 64 : 128, g = w->group_size;
    return w->groups == 1 || g % block == 0 || g == 32 || g == 64 ||
           llmk_no(why, "groups of %u weights cut its blocks of %u", g, block);
}

#define STRIP 64u /* rows of W of a work-item, at most: cl/linear/linear_cpu_codes.cl */

static llmk_status cpu_codes_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    uint32_t rows = 1;
    while (rows < 8 && rows < p->x.nrows)
        rows *= 2;
    /* Each compute unit gets several strips, so that all of them end together. */
    const uint64_t share = p->weights->n / (UINT64_C(8) * launch->ctx->caps.compute_units);
    const uint32_t strip = (uint32_t)(share < 8 ? 8 : share > STRIP ? STRIP : share / 8 * 8);
    char typed[32], defines[64];
    llmk_join(defines, sizeof defines, typed_defines(p, typed), " -DROWS=", llmk_digits(rows),
              NULL);
    const linear_recipe r = {.file = "linear/linear_cpu_codes.cl",
                             .defines = defines,
                             .kernel = "linear_cpu_codes",
                             .rows = rows,
                             .columns = strip,
                             .local = {1, 1, 1},
                             .has_last = true,
                             .last = strip};
    return llmk_linear_run(launch, p, &r);
}

static llmk_status cpu_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const uint32_t *asked = launch->config ? launch->config->value : NULL; /* rows, columns */
    const bool few = asked ? asked[0] == 1 && asked[1] == 4 : p->x.nrows < 4;
    const bool usual = few || !asked || (asked[0] == 8 && asked[1] == 3);
    const uint32_t rows = asked ? asked[0] : few ? 1 : 8, columns = asked ? asked[1] : few ? 4 : 3;
    char typed[32], defines[64];
    typed_defines(p, typed);
    llmk_join(defines, sizeof defines, typed, " -DROWS=", llmk_digits(rows),
              " -DCOLUMNS=", llmk_digits(columns), NULL);
    const linear_recipe r = {.file = "linear/linear_cpu.cl",
                             .defines = usual ? typed : defines,
                             .kernel = !usual ? "linear_cpu_block"
                                       : few  ? "linear_cpu_1x4"
                                              : "linear_cpu_8x3",
                             .rows = rows,
                             .columns = columns,
                             .local = {1, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

/* cl/linear/linear_gemv.cl */
#define GEMV_ITEMS    128u
#define GEMV_ROWS     8u
#define GEMV_MIN_TEAM 32u /* neighbours that read neighbouring chunks */

static bool gemv_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    (void)ctx;
    const linear_problem *p = problem;
    if (p->x.nrows > GEMV_ROWS)
        return llmk_no(why, "for at most %u rows of x", GEMV_ROWS);
    if (!llmk_linear_may_vary(p, why))
        return false;
    const uint32_t chunk = p->weights->layout == LLMK_LAYOUT_U4_PORTABLE ? 32 : 16;
    if (p->weights->groups > 1 && p->weights->group_size % chunk != 0)
        return llmk_no(why, "groups of %u weights cut its chunks of %u", p->weights->group_size,
                       chunk);
    return reads(p, LLMK_LAYOUTS_PORTABLE | LLMK_LAYOUTS_NV, why);
}

/* Items that share four rows of W: few enough that each has work, as many as it takes to give every
 * compute unit about a thousand; at least `team`. Depends on the weights and the device alone, so
 * that a row of x gives the same bits whatever its neighbours. */
static uint32_t gemv_team(const llmk_context *ctx, const llmk_weights *w, uint32_t team)
{
    while (team < GEMV_ITEMS && (uint64_t)team * 16 < w->pitch / w->block &&
           (w->n / 4 + 1) * team < (uint64_t)ctx->caps.compute_units * 1024)
        team *= 2;
    return team;
}

static llmk_status launch_gemv(llmk_launch *launch, const linear_problem *p, const char *defines,
                               uint32_t min_team)
{
    static const char *const kernels[] = {"linear_gemv_1", "linear_gemv_2", "linear_gemv_4",
                                          "linear_gemv_8"};
    const uint32_t team =
        launch->config ? launch->config->value[0] : gemv_team(launch->ctx, p->weights, min_team);
    uint32_t i = 0;
    while (1u << i < p->x.nrows)
        i++;
    const linear_recipe r = {.file = "linear/linear_gemv.cl",
                             .defines = defines,
                             .kernel = kernels[i],
                             .rows = 1u << i,
                             .columns = UINT64_C(4) * (GEMV_ITEMS / team),
                             .local = {GEMV_ITEMS, 1, 1},
                             .has_last = true,
                             .last = team};
    return llmk_linear_run(launch, p, &r);
}

static llmk_status gemv_launch(llmk_launch *launch, const void *problem)
{
    char defines[32];
    return launch_gemv(launch, problem, typed_defines(problem, defines), GEMV_MIN_TEAM);
}

/* Float weights of another type than x. */
static bool mixes_floats(const linear_problem *p)
{
    static const llmk_layout same[] = {[LLMK_F32] = LLMK_LAYOUT_F32_PORTABLE,
                                       [LLMK_F16] = LLMK_LAYOUT_F16_PORTABLE,
                                       [LLMK_BF16] = LLMK_LAYOUT_BF16_PORTABLE};
    const llmk_layout layout = p->weights->layout;
    return (layout == LLMK_LAYOUT_F32_PORTABLE || layout == LLMK_LAYOUT_F16_PORTABLE ||
            layout == LLMK_LAYOUT_BF16_PORTABLE) &&
           layout != same[p->x.dtype];
}

/* gemv with sub-groups, in the types that are common: each pair is four images more. */
static bool subgroup_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    if (!gemv_supports(ctx, problem, why))
        return false;
    if (!reads(p, LLMK_LAYOUTS_PORTABLE & ~LLMK_LAYOUTS_K_QUANTS, why))
        return false;
    if (mixes_floats(p))
        return llmk_no(why, "x is %s: float weights of another type", llmk_dtype_name(p->x.dtype));
    return llmk_subgroup_supported(ctx, "linear", why);
}

static llmk_status subgroup_launch(llmk_launch *launch, const void *problem)
{
    const uint32_t size = llmk_subgroup_expected(launch->ctx);
    char typed[32], defines[64];
    llmk_join(defines, sizeof defines, typed_defines(problem, typed),
              " -DSUBGROUP=", llmk_digits(llmk_subgroup_required(launch->ctx)), NULL);
    return launch_gemv(launch, problem, defines, size > GEMV_MIN_TEAM ? size : GEMV_MIN_TEAM);
}

static bool portable_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    if (p->w8a8)
        return ctx->caps.max_work_group >= 128 ||
               llmk_no(why, "work-groups of 128 items are too large for the device");
    return reads(p, LLMK_LAYOUTS_PORTABLE | LLMK_LAYOUTS_NV, why);
}

/* Whether wide tiles of f32 fill the device twice. The order of sums is that of the others. A trial
 * is too small for it on most devices: there they have the self-test's wider products. */
static bool is_wide(const llmk_context *ctx, const linear_problem *p)
{
    const uint64_t tiles = (p->x.nrows + 63) / 64 * ((p->weights->n + 127) / 128);
    return p->x.dtype == LLMK_F32 && p->weights->layout == LLMK_LAYOUT_F32_PORTABLE &&
           (ctx->is_trial ? p->weights->n >= LLMK_LINEAR_TRIAL_WIDE_N
                          : tiles >= UINT64_C(2) * ctx->caps.compute_units);
}

static llmk_status portable_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    if (p->w8a8)
        return llmk_linear_w8a8_portable_launch(launch, p);
    const bool wide = is_wide(launch->ctx, p);
    char defines[32];
    const linear_recipe r = {.file = wide ? "linear/linear_gemm_wide.cl" : "linear/linear_gemm.cl",
                             .defines = typed_defines(p, defines),
                             .kernel = wide ? "linear_gemm_wide" : "linear_gemm",
                             .rows = 64,
                             .columns = wide ? 128 : 64,
                             .local = {16, 8, 1}};
    return llmk_linear_run(launch, p, &r);
}

static llmk_status ref_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    if (p->w8a8)
        return llmk_linear_w8a8_ref_launch(launch, p);
    const linear_recipe r = {.file = "linear/linear_ref.cl",
                             .defines = "",
                             .kernel = "linear_ref",
                             .rows = 1,
                             .columns = 64,
                             .local = {64, 1, 1},
                             .has_last = true,
                             .last = p->weights->layout};
    return llmk_linear_run(launch, p, &r);
}

static const llmk_variant variants[] = {
    LLMK_LINEAR_ROW("coopmat", coopmat),
    {"cpu-codes", cpu_codes_supports, cpu_codes_launch},
    {"cpu", cpu_supports, cpu_launch},
    LLMK_LINEAR_ROW("nv-stream", nv_stream),
    LLMK_LINEAR_ROW("nv-dot", nv_dot),
    LLMK_LINEAR_ROW("nv90-few", nv90_few),
    LLMK_LINEAR_ROW("nv-rows", nv_rows),
    LLMK_LINEAR_ROW("nv90-packed", nv90_packed),
    LLMK_LINEAR_ROW("nv-packed", nv_packed),
    LLMK_LINEAR_ROW("nv90-w8a8", nv90_w8a8),
    LLMK_LINEAR_ROW("nv-w8a8-wide", nv_w8a8_wide),
    LLMK_LINEAR_ROW("nv-w8a8", nv_w8a8),
    LLMK_LINEAR_ROW("amd-w8a8-wide", amd_w8a8_wide),
    LLMK_LINEAR_ROW("amd-w8a8", amd_w8a8),
    {"subgroup", subgroup_supports, subgroup_launch},
    {"gemv", gemv_supports, gemv_launch},
    LLMK_LINEAR_TILED_VARIANTS,
    {"portable", portable_supports, portable_launch},
    {"ref", llmk_any_supported, ref_launch},
    LLMK_LINEAR_EMULATED_VARIANTS,
};

/* ---- Tuning ---- */

#define CPU_CONFIG(rows, columns)                                                                  \
    {                                                                                              \
        "cpu", #rows "x" #columns, {rows, columns}, 1, 0                                           \
    }
#define TEAM_CONFIG(variant, team)                                                                 \
    {                                                                                              \
        variant, "team-" #team, {team}, GEMV_ITEMS, 0                                              \
    }

static const llmk_config configs[] = {
    CPU_CONFIG(1, 4),
    CPU_CONFIG(1, 8),
    CPU_CONFIG(2, 4),
    CPU_CONFIG(4, 4),
    CPU_CONFIG(8, 3),
    {"nv-stream", "fine", {0}, 128, 0},
    {"nv-stream", "large", {1}, 256, 0},
    {"nv-stream", "small", {2}, 512, 0},
    {"nv-stream", "wide", {LLMK_STREAM_WIDE}, 128, 0},
    {"emulated-nv-stream", "wide", {LLMK_STREAM_WIDE}, 128, 0},
    {"nv90-packed", "32", {32}, 0, 0},
    {"nv90-packed", "64", {64}, 0, 0},
    {"nv90-packed", "128", {128}, 0, 0},
    {"nv90-packed", "64x128", {64, 1}, 0, 0},
    {"nv90-packed", "256x128", {256, 1}, 0, 0},
    {"nv90-w8a8", "32x128", {32, 128}, 0, 0},
    {"nv90-w8a8", "64x128", {64, 128}, 0, 0},
    {"nv90-w8a8", "32x256", {32, 256}, 0, 0},
    {"nv90-w8a8", "64x256", {64, 256}, 0, 0},
    {"nv90-w8a8", "128x128", {128, 128}, 0, 0},
    {"nv90-w8a8", "128x256", {128, 256}, 0, 0},
    {"nv90-w8a8", "256x128", {256, 128}, 0, 0},
    {"nv-packed", "32", {32}, 0, 0},
    {"nv-packed", "64", {64}, 0, 0},
    {"nv-packed", "32x128", {128, 32}, 0, 0},
    {"nv-packed", "64x448", {448, 64}, 0, 0},
    {"nv-packed", "128x128", {128, 128}, 0, 0},
    {"emulated-nv-packed", "64x448", {448, 64}, 0, 0},
    {"emulated-nv-packed", "128x128", {128, 128}, 0, 0},
    TEAM_CONFIG("subgroup", 32),
    TEAM_CONFIG("subgroup", 64),
    TEAM_CONFIG("subgroup", 128),
    TEAM_CONFIG("gemv", 32),
    TEAM_CONFIG("gemv", 64),
    TEAM_CONFIG("gemv", 128),
    {"nv90", "tall", {0}, 0, 0},
    {"nv90", "cut-1", {1}, 0, 0},
    {"nv90", "cut-2", {2}, 0, 0},
    {"nv90", "cut-4", {4}, 0, 0},
    {"nv90", "shared", {LLMK_NV90_SHARED}, 0, 0},
};

static bool config_fits(const llmk_context *ctx, const void *problem, const llmk_config *c,
                        llmk_reason *why)
{
    const llmk_weights *w = ((const linear_problem *)problem)->weights;
    const bool u4 = llmk_layout_is_u4(w->layout);
    const bool packed = strstr(c->variant, "nv-packed") != NULL,
               nv90 = strcmp(c->variant, "nv90") == 0;
    if (nv90 && c->value[0] == 0 && !llmk_linear_nv90_is_even(problem))
        return llmk_no(why, "tall tiles are for what copies of boxes and of vectors can move");
    if (nv90 && c->value[0] == LLMK_NV90_SHARED && !llmk_linear_nv90_may_share(ctx, problem))
        return llmk_no(why, "for calls with a workspace, x and W that copies of boxes can "
                            "move, and tiles that fill at most half of the device");
    if (packed && c->value[0] == 64 && llmk_linear_packed_is_short(w))
        return llmk_no(why, "short groups take tiles of 32 rows");
    if (packed && c->value[1] && !llmk_linear_packed_takes_tile(problem, c->value[1], c->value[0]))
        return llmk_no(why, "wide tiles are for plain rows of x: 128x128 for weights of 8 bits in "
                            "one group, the others for those of 4 bits in groups of whole steps");
    if (strcmp(c->name, "wide") == 0)
        return llmk_linear_stream_may_be_wide(ctx, problem, c->variant[0] == 'e', why);
    if (strcmp(c->variant, "nv-stream") == 0 && strcmp(c->name, "fine") == 0 && !u4)
        return llmk_no(why, "for weights of 4 bits");
    if (strcmp(c->variant, "nv-stream") == 0 && strcmp(c->name, "large") != 0 &&
        !llmk_linear_stream_has_sizes(problem))
        return llmk_no(why, "for rows of x of whole steps, and scales of two bytes for them");
    if (strcmp(c->variant, "nv90-packed") == 0 && c->value[0] == 256 && (u4 || w->groups > 1))
        return llmk_no(why, "tiles of 256 rows are for weights of 8 bits in one group a row");
    if (strcmp(c->variant, "nv90-w8a8") == 0 && c->value[1] == 256 &&
        !llmk_linear_w8a8_may_pair(problem))
        return llmk_no(why, "tiles of 256 columns are for rows of y and residual of one stride");
    return true;
}

static const char *const size_names[] = {"m", "n", "k", NULL};

/* A row of a batch-invariant call has one order of summation, whatever M. */
static bool sizes_of(const void *problem, uint64_t sizes[LLMK_TUNING_SIZES])
{
    const linear_problem *p = problem;
    sizes[0] = p->x.nrows;
    sizes[1] = p->weights->n;
    sizes[2] = p->weights->k;
    return !p->batch_invariant;
}

static llmk_status self_test(llmk_trial *t, const void *problem)
{
    const linear_problem *p = problem;
    if (p->w8a8)
        return llmk_linear_w8a8_self_test(t, p);
    if (t->variant->launch == llmk_linear_nv90_packed_launch)
        return llmk_linear_self_test_wide(t, p->x.dtype, p->weights, p->y.dtype);
    if (t->variant->launch == llmk_linear_nv90_few_launch)
        return llmk_linear_self_test_boxes(t, p->x.dtype, p->weights, p->y.dtype);
    if (t->variant->launch == llmk_linear_nv90_launch)
        LLMK_TRY(llmk_linear_self_test_tall(t, p->x.dtype, p->weights, p->y.dtype));
    if (t->variant->launch == cpu_codes_launch)
        return llmk_linear_self_test_codes(t, p->x.dtype, p->weights, p->y.dtype);
    const bool few = t->variant->launch == gemv_launch || t->variant->launch == subgroup_launch;
    const bool dot = t->variant->launch == llmk_linear_nv_dot_launch ||
                     t->variant->launch == llmk_linear_emulated_nv_dot_launch;
    const bool codes = t->variant->launch == llmk_linear_nv_stream_launch ||
                       t->variant->launch == llmk_linear_emulated_nv_stream_launch;
    const bool stream = codes || t->variant->launch == llmk_linear_nv_rows_launch ||
                        t->variant->launch == llmk_linear_emulated_nv_rows_launch;
    const bool packed = t->variant->launch == llmk_linear_nv_packed_launch ||
                        t->variant->launch == llmk_linear_emulated_nv_packed_launch;
    const bool tiled = packed || t->variant->launch == llmk_linear_nv_launch ||
                       t->variant->launch == llmk_linear_emulated_nv_launch;
    if (tiled)
        LLMK_TRY(llmk_linear_self_test_plain(t, p->x.dtype, p->weights, p->y.dtype, 70,
                                             packed ? 456 : 264));
    if (packed) /* tiles of few rows */
        LLMK_TRY(llmk_linear_self_test_plain(t, p->x.dtype, p->weights, p->y.dtype, 20, 264));
    for (uint64_t m = 8; codes && m <= 16; m += 4)
        LLMK_TRY(llmk_linear_self_test_plain(t, p->x.dtype, p->weights, p->y.dtype, m, 70));
    return llmk_linear_self_test(t, p->x.dtype, p->weights, p->y.dtype,
                                 dot      ? 2
                                 : few    ? GEMV_ROWS
                                 : stream ? 16
                                          : 70,
                                 few || stream);
}

const llmk_operator llmk_operator_linear = {
    .id = LLMK_OP_LINEAR,
    .name = "linear",
    .problem_size = sizeof(linear_problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
    .workspace = workspace,
    .workspace_bytes = workspace_bytes,
    .size_names = size_names,
    .sizes = sizes_of,
    .configs = configs,
    .config_count = LLMK_COUNT(configs),
    .config_fits = config_fits,
};

llmk_status llmk_linear_workspace_size(llmk_context *ctx, const llmk_linear_args *args,
                                       uint64_t *bytes)
{
    return llmk_operate_workspace_size(&llmk_operator_linear, ctx, args, bytes);
}

llmk_status llmk_linear(llmk_context *ctx, cl_command_queue queue, const llmk_linear_args *args,
                        const llmk_events *events)
{
    return llmk_operate(&llmk_operator_linear, ctx, queue, args, events);
}
