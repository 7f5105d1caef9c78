/* gated_activation.c - SwiGLU and kin: y = activation(gate + gate_bias) * (up + up_bias). */
#include "ops/elementwise.h"
#include "ops/gated.h"

#include <stdio.h>

#define VECS 1 /* vectors of eight outputs a work-item */

/* Gate and up are [..., D] here whatever the layout, and so are the biases: packed and interleaved
 * tensors are seen twice. */
typedef struct problem {
    llmk_view gate, up, gate_bias, up_bias, y;
    llmk_activation activation;
    bool interleaved;
    bool vectors; /* on 16-byte boundaries, D a multiple of 8 */
    float limit, alpha;
} problem;

/* ---- The problem ---- */

/* Half of the columns of `whole`, from `first` on and `step` apart. */
static llmk_view half_of(const llmk_view *whole, uint64_t first, uint64_t step)
{
    return llmk_view_columns(whole, first, whole->ncols / 2, step);
}

static void check_split(llmk_checker *c, const llmk_gated_activation_args *args, problem *p)
{
    llmk_check_tensor(c, "up", &args->up, LLMK_FLOATS, LLMK_INPUT, &p->up);
    llmk_check_same_shape(c, "up", &p->up, "gate", &p->gate);
    llmk_check_that(c, p->up.dtype == p->gate.dtype, LLMK_INVALID_DTYPE,
                    "up.dtype is %s; expected gate's, %s", llmk_dtype_name(p->up.dtype),
                    llmk_dtype_name(p->gate.dtype));
    llmk_check_optional(c, "up_bias", &args->up_bias, LLMK_FLOATS, LLMK_INPUT, &p->up_bias);
    if (p->up_bias.present)
        llmk_check_vector(c, "up_bias", &p->up_bias, p->gate.ncols);
    llmk_check_same_shape(c, "y", &p->y, "gate", &p->gate);
    llmk_check_in_place(c, &p->y, &p->gate);
    llmk_check_in_place(c, &p->y, &p->up);
}

static void check_joined(llmk_checker *c, const llmk_gated_activation_args *args, problem *p)
{
    static const char why[] = "gate holds both halves in this layout";
    llmk_check_absent(c, "up", &args->up, why);
    llmk_check_absent(c, "up_bias", &args->up_bias, why);
    llmk_check_that(c, p->gate.ncols % 2 == 0, LLMK_INVALID_SHAPE,
                    "the last dimension of gate is %llu; expected an even number, 2 D",
                    (unsigned long long)p->gate.ncols);
    llmk_check_rows_like(c, "y", &p->y, "gate", &p->gate, p->gate.ncols / 2);
}

static void split_views(problem *p, llmk_gate_layout layout)
{
    const uint64_t up = layout == LLMK_GATE_PACKED ? p->gate.ncols / 2 : 1;
    const uint64_t step = layout == LLMK_GATE_PACKED ? 1 : 2;
    p->up = half_of(&p->gate, up, step);
    p->up_bias = half_of(&p->gate_bias, up, step);
    p->gate = half_of(&p->gate, 0, step);
    p->gate_bias = half_of(&p->gate_bias, 0, step);
}

static llmk_status check(llmk_context *ctx, const void *given, bool dry, void *out)
{
    llmk_gated_activation_args args;
    LLMK_TRY(llmk_take_args("gated_activation", given, sizeof args, sizeof args, &args));
    problem *p = out;
    llmk_checker c = llmk_check_begin(ctx, "gated_activation", dry);
    llmk_check_flags(&c, args.flags, 0);
    llmk_check_gated(&c, args.activation, args.layout, args.limit, args.alpha);
    llmk_check_tensor(&c, "gate", &args.gate, LLMK_FLOATS, LLMK_INPUT, &p->gate);
    llmk_check_optional(&c, "gate_bias", &args.gate_bias, LLMK_FLOATS, LLMK_INPUT, &p->gate_bias);
    if (p->gate_bias.present)
        llmk_check_vector(&c, "gate_bias", &p->gate_bias, p->gate.ncols);
    llmk_check_tensor(&c, "y", &args.y, LLMK_FLOATS, LLMK_OUTPUT, &p->y);
    if (args.layout == LLMK_GATE_SPLIT)
        check_split(&c, &args, p);
    else
        check_joined(&c, &args, p);
    LLMK_TRY(llmk_check_end(&c));

    p->activation = args.activation;
    p->interleaved = args.layout == LLMK_GATE_INTERLEAVED;
    p->limit = llmk_gated_limit(args.limit);
    p->alpha = llmk_gated_alpha(args.alpha);
    const llmk_view *views[] = {&p->gate, &p->up, &p->gate_bias, &p->up_bias, &p->y};
    p->vectors = llmk_aligned_rows(views, LLMK_COUNT(views)); /* before interleaved ones are cut */
    if (args.layout != LLMK_GATE_SPLIT)
        split_views(p, args.layout);
    if (args.layout == LLMK_GATE_PACKED)
        p->vectors = llmk_aligned_rows(views, LLMK_COUNT(views));
    p->vectors = p->vectors && p->y.ncols % 8 == 0;
    if (!p->gate_bias.present && !p->up_bias.present)
        llmk_views_flatten((llmk_view *const[]){&p->gate, &p->up, &p->y}, 3);
    return LLMK_OK;
}

static bool is_empty(const void *problem_)
{
    const problem *p = problem_;
    return p->y.count == 0;
}

/* ---- Variants ---- */

static void set_tensors(llmk_kernel *k, const problem *p)
{
    llmk_arg_view(k, &p->gate);
    llmk_arg_view(k, &p->up);
    llmk_arg_view(k, &p->gate_bias);
    llmk_arg_view(k, &p->up_bias);
    llmk_arg_view(k, &p->y);
}

static void set_options(llmk_kernel *k, const problem *p)
{
    llmk_arg_u64(k, p->y.nrows);
    llmk_arg_u64(k, p->y.ncols);
    llmk_arg_u32(k, p->activation);
    llmk_arg_f32(k, p->limit);
    llmk_arg_f32(k, p->alpha);
}

static llmk_status launch_ref(llmk_launch *launch, const void *problem_)
{
    const problem *p = problem_;
    llmk_kernel k = llmk_kernel_open(launch, "gated_activation/gated_activation_ref.cl", "",
                                     "gated_activation_ref");
    set_tensors(&k, p);
    llmk_arg_u32(&k, p->gate.dtype);
    llmk_arg_u32(&k, p->up.dtype);
    llmk_arg_u32(&k, llmk_view_dtype(&p->gate_bias));
    llmk_arg_u32(&k, llmk_view_dtype(&p->up_bias));
    llmk_arg_u32(&k, p->y.dtype);
    set_options(&k, p);
    const llmk_grid grid = llmk_element_grid(p->y.nrows, p->y.ncols);
    return llmk_kernel_enqueue(&k, grid.groups, grid.local);
}

static llmk_status launch_tiles(llmk_launch *launch, const problem *p, const char *file)
{
    char defines[64];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->gate.dtype),
              " -DY=", llmk_dtype_name(p->y.dtype), " -DVECS=", llmk_digits((uint32_t)VECS), NULL);
    const bool plain_silu =
        p->activation == LLMK_SILU && !p->gate_bias.present && !p->up_bias.present;
    llmk_kernel k = llmk_kernel_open(launch, file, defines,
                                     !p->vectors      ? "gated_activation_elements"
                                     : p->interleaved ? "gated_activation_interleaved"
                                     : plain_silu     ? "gated_activation_silu"
                                                      : "gated_activation");
    set_tensors(&k, p);
    llmk_arg_u32(&k, llmk_view_dtype(&p->gate_bias));
    llmk_arg_u32(&k, llmk_view_dtype(&p->up_bias));
    set_options(&k, p);
    if (!p->vectors)
        llmk_arg_u32(&k, p->interleaved ? 2 : 1);
    const llmk_grid grid =
        llmk_tile_grid(&launch->ctx->caps, p->y.nrows, p->y.ncols, VECS, llmk_tile_items(launch));
    return llmk_kernel_enqueue(&k, grid.groups, grid.local);
}

static llmk_status launch_portable(llmk_launch *launch, const void *problem_)
{
    return launch_tiles(launch, problem_, "gated_activation/gated_activation_portable.cl");
}

static llmk_status launch_nv(llmk_launch *launch, const void *problem_)
{
    return launch_tiles(launch, problem_, "gated_activation/gated_activation_nv.cl");
}

static bool supports_portable(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    (void)ctx;
    const problem *p = problem_;
    const uint64_t inner = p->interleaved ? 2 : 1;
    const bool cut = p->y.ncols > 1; /* else there is no stride to speak of */
    if (cut && (p->gate.rows.inner != inner || p->up.rows.inner != inner || !p->y.unit))
        return llmk_no(why, "gate, up or y has an innermost stride other than 1");
    if (cut && ((p->gate_bias.present && p->gate_bias.rows.inner != inner) ||
                (p->up_bias.present && p->up_bias.rows.inner != inner)))
        return llmk_no(why, "a bias has a stride other than 1");
    return true;
}

static bool supports_nv(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    return llmk_nv_supported(ctx, why) && supports_portable(ctx, problem_, why);
}

static const llmk_variant variants[] = {
    {"nv", supports_nv, launch_nv},
    {"portable", supports_portable, launch_portable},
    {"ref", llmk_any_supported, launch_ref},
};

static const llmk_config configs[] = LLMK_TILE_CONFIGS;

static const char *const size_names[] = {"rows", "d", NULL};

static bool sizes_of(const void *problem_, uint64_t sizes[LLMK_TUNING_SIZES])
{
    const problem *p = problem_;
    sizes[0] = p->y.nrows;
    sizes[1] = p->y.ncols;
    return true;
}

/* ---- Self-test ---- */

static void key(const void *problem_, char *out, size_t size)
{
    const problem *p = problem_;
    llmk_join(out, size, "activation=", llmk_digits((uint32_t)p->activation),
              p->interleaved ? " interleaved" : "", " x=", llmk_dtype_name(p->gate.dtype),
              " gate_bias=", p->gate_bias.present ? llmk_dtype_name(p->gate_bias.dtype) : "none",
              " up_bias=", p->up_bias.present ? llmk_dtype_name(p->up_bias.dtype) : "none",
              " y=", llmk_dtype_name(p->y.dtype), NULL);
}

static double gated(const problem *p, double g, double u)
{
    return llmk_gated_host(p->activation, (double)p->limit, (double)p->alpha, g, u);
}

/* A packed or interleaved tensor of 2 D columns: 40 go by vectors, 37 of the same rows by elements.
 * Split tensors are tested as packed ones: the kernels see no difference. */
static llmk_status self_test(llmk_trial *t, const void *problem_)
{
    enum { ROWS = 3 };
    const size_t most = 40;
    const problem *p = problem_;
    const float *x, *bias = NULL;
    llmk_gated_activation_args args = LLMK_INIT(llmk_gated_activation_args);
    args.activation = p->activation;
    args.layout = p->interleaved ? LLMK_GATE_INTERLEAVED : LLMK_GATE_PACKED;
    args.limit = p->activation == LLMK_SWIGLU_CLAMPED ? p->limit : 0;
    args.alpha = p->activation == LLMK_SWIGLU_CLAMPED ? p->alpha : 0;
    args.gate = llmk_trial_input(t, p->gate.dtype, ROWS, 2 * most, 1, 9.0f, &x);
    const llmk_view *biased = p->gate_bias.present ? &p->gate_bias : &p->up_bias;
    if (biased->present) {
        args.gate_bias = llmk_trial_input(t, biased->dtype, 1, 2 * most, 2, 1.0f, &bias);
        args.gate_bias = llmk_vector(args.gate_bias.buffer, biased->dtype, 2 * most);
    }
    double *expected = llmk_trial_doubles(t, ROWS * most);
    for (size_t cols = most; t->status == LLMK_OK && cols >= most - 3; cols -= 3) {
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < cols; c++) {
                const size_t g = p->interleaved ? 2 * c : c, u = p->interleaved ? g + 1 : cols + c;
                const float *row = x + r * 2 * most;
                expected[r * cols + c] = gated(p, (double)row[g] + (bias ? (double)bias[g] : 0),
                                               (double)row[u] + (bias ? (double)bias[u] : 0));
            }
        args.gate.dim[1] = 2 * cols;
        args.gate_bias.dim[0] = bias ? 2 * cols : 0;
        args.y = llmk_trial_output(t, p->y.dtype, ROWS, cols);
        llmk_trial_run(t, &args);
        llmk_trial_compare(t, "y", &args.y, expected, 4e-5, 1e-6);
    }
    return t->status;
}

const llmk_operator llmk_operator_gated_activation = {
    .id = LLMK_OP_GATED_ACTIVATION,
    .name = "gated_activation",
    .problem_size = sizeof(problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
    .size_names = size_names,
    .sizes = sizes_of,
    .configs = configs,
    .config_count = LLMK_COUNT(configs),
};

llmk_status llmk_gated_activation_within(llmk_launch *launch, const llmk_view *gate,
                                         const llmk_view *up, const llmk_view *y,
                                         llmk_activation activation, float limit, float alpha)
{
    problem p = {.gate = *gate,
                 .up = *up,
                 .y = *y,
                 .activation = activation,
                 .interleaved = gate->rows.inner == 2,
                 .limit = limit,
                 .alpha = alpha};
    const llmk_view *rows[] = {gate, p.interleaved ? gate : up, y};
    p.vectors = llmk_aligned_rows(rows, LLMK_COUNT(rows)) && y->ncols % 8 == 0;
    llmk_views_flatten((llmk_view *const[]){&p.gate, &p.up, &p.y}, 3);
    return llmk_operate_within(launch, &llmk_operator_gated_activation, &p);
}

llmk_status llmk_gated_activation(llmk_context *ctx, cl_command_queue queue,
                                  const llmk_gated_activation_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_gated_activation, ctx, queue, args, events);
}
