/* gated_linear.c - gate, up and activation in one call. */
#include "ops/elementwise.h"
#include "ops/gated.h"
#include "ops/gated_linear_grouped.h"
#include "ops/linear_selftest.h"

#include <math.h>
#include <stdio.h>

typedef struct problem {
    linear_problem
        l; /* first: variants of the linear layer take it. Of the gate; y is the result */
    linear_gate gate;
    llmk_gate_layout layout;
    llmk_view whole_bias; /* of gate and up, where the weights hold both */
    llmk_workspace *workspace;
} problem;

/* ---- The problem ---- */

/* The composite's scratch holds both sums of so many rows at a time, each row `pitch` floats. */
#define SCRATCH_BYTES (UINT64_C(64) << 20)
#define SCRATCH_ROWS  256u /* whole tiles of rows, where there is room */

static uint64_t pitch_of(uint64_t outputs)
{
    return (outputs + 7) / 8 * 8;
}

static uint64_t rows_at_once(uint64_t rows, uint64_t outputs)
{
    const uint64_t row_bytes = 2 * sizeof(cl_float) * pitch_of(outputs);
    uint64_t most = row_bytes ? SCRATCH_BYTES / row_bytes : rows;
    if (most > SCRATCH_ROWS)
        most = most / SCRATCH_ROWS * SCRATCH_ROWS;
    if (most == 0)
        most = 1;
    return rows < most ? rows : most;
}

static uint64_t bytes_of(uint64_t rows, uint64_t outputs)
{
    return rows_at_once(rows, outputs) * 2 * sizeof(cl_float) * pitch_of(outputs);
}

static void check_weights(llmk_checker *c, const char *name, const llmk_weights *w)
{
    llmk_check_that(c, w->ctx == c->ctx, LLMK_INVALID_ARGUMENT, "%s belong to another context",
                    name);
    llmk_check_that(c, w->experts == 1, LLMK_INVALID_ARGUMENT,
                    "%s hold %llu experts; expected one matrix", name,
                    (unsigned long long)w->experts);
}

static void check_split(llmk_checker *c, const llmk_gated_linear_args *a, problem *p)
{
    const llmk_weights *gate = a->gate_weights, *up = a->up_weights;
    check_weights(c, "up_weights", up);
    llmk_check_that(c, up->n == gate->n && up->k == gate->k, LLMK_INVALID_SHAPE,
                    "up_weights are [%llu, %llu]; expected gate_weights' shape, [%llu, %llu]",
                    (unsigned long long)up->n, (unsigned long long)up->k,
                    (unsigned long long)gate->n, (unsigned long long)gate->k);
    llmk_check_optional(c, "gate_bias", &a->gate_bias, LLMK_FLOATS, LLMK_INPUT, &p->l.bias);
    llmk_check_vector(c, "gate_bias", &p->l.bias, gate->n);
    llmk_check_optional(c, "up_bias", &a->up_bias, LLMK_FLOATS, LLMK_INPUT, &p->gate.up_bias);
    llmk_check_vector(c, "up_bias", &p->gate.up_bias, gate->n);
}

static void check_joined(llmk_checker *c, const llmk_gated_linear_args *a, problem *p)
{
    const uint64_t n = a->gate_weights->n;
    llmk_check_that(c, a->up_weights == NULL, LLMK_INVALID_ARGUMENT,
                    "up_weights are given; gate_weights hold both in this layout");
    llmk_check_absent(c, "up_bias", &a->up_bias, "gate_bias holds both in this layout");
    llmk_check_that(c, n % 2 == 0, LLMK_INVALID_SHAPE,
                    "gate_weights have n = %llu; expected an even number, 2 N",
                    (unsigned long long)n);
    llmk_check_optional(c, "gate_bias", &a->gate_bias, LLMK_FLOATS, LLMK_INPUT, &p->whole_bias);
    llmk_check_vector(c, "gate_bias", &p->whole_bias, n);
}

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *out)
{
    problem *p = out;
    linear_problem *l = &p->l;
    llmk_gated_linear_args a;
    LLMK_TRY(llmk_take_args("gated_linear", args, sizeof a, sizeof a, &a));
    if (!a.gate_weights)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "gated_linear: gate_weights is NULL");
    const bool split = a.layout == LLMK_GATE_SPLIT, interleaved = a.layout == LLMK_GATE_INTERLEAVED;
    if (split && !a.up_weights)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "gated_linear: up_weights is NULL");
    const llmk_weights *w = a.gate_weights;
    const uint64_t outputs = split ? w->n : w->n / 2;
    llmk_checker c = llmk_check_begin(ctx, "gated_linear", dry);
    llmk_check_flags(&c, a.flags, LLMK_LINEAR_BATCH_INVARIANT);
    llmk_check_gated(&c, a.activation, a.layout, a.limit, a.alpha);
    check_weights(&c, "gate_weights", w);
    llmk_check_tensor(&c, "x", &a.x, LLMK_FLOATS, LLMK_INPUT, &l->x);
    llmk_check_that(&c, l->x.ncols == w->k, LLMK_INVALID_SHAPE,
                    "x has %llu columns; gate_weights have k = %llu",
                    (unsigned long long)l->x.ncols, (unsigned long long)w->k);
    if (split)
        check_split(&c, &a, p);
    else
        check_joined(&c, &a, p);
    llmk_check_optional(&c, "residual", &a.residual, LLMK_FLOATS, LLMK_INPUT, &l->residual);
    llmk_check_rows_like(&c, "residual", &l->residual, "x", &l->x, outputs);
    llmk_check_tensor(&c, "y", &a.y, LLMK_FLOATS, LLMK_OUTPUT, &l->y);
    llmk_check_rows_like(&c, "y", &l->y, "x", &l->x, outputs);
    llmk_check_in_place(&c, &l->y, &l->residual);
    if (a.workspace)
        llmk_check_workspace(&c, a.workspace, bytes_of(l->x.nrows, outputs));
    LLMK_TRY(llmk_check_end(&c));

    p->layout = a.layout;
    p->workspace = a.workspace;
    l->weights = w;
    l->batch_invariant = a.flags & LLMK_LINEAR_BATCH_INVARIANT;
    l->gate = &p->gate;
    p->gate.up = split ? a.up_weights : w;
    p->gate.outputs = outputs;
    p->gate.step = interleaved ? 2 : 1;
    p->gate.up_first = split ? 0 : interleaved ? 1 : (uint32_t)outputs;
    p->gate.activation = a.activation;
    p->gate.limit = llmk_gated_limit(a.limit);
    p->gate.alpha = llmk_gated_alpha(a.alpha);
    if (!split) {
        l->bias = llmk_view_columns(&p->whole_bias, 0, outputs, p->gate.step);
        p->gate.up_bias =
            llmk_view_columns(&p->whole_bias, p->gate.up_first, outputs, p->gate.step);
    }
    return LLMK_OK;
}

static bool is_empty(const void *problem_)
{
    return ((const problem *)problem_)->l.y.count == 0;
}

static void key(const void *problem_, char *text, size_t size)
{
    static const char *const layouts[] = {"split", "packed", "interleaved"};
    const problem *p = problem_;
    char gate[64], up[64];
    llmk_linear_weights_key(p->l.weights, gate, sizeof gate);
    llmk_linear_weights_key(p->gate.up, up, sizeof up);
    llmk_join(text, size, "x=", llmk_dtype_name(p->l.x.dtype), " gate=", gate, " up=", up,
              " y=", llmk_dtype_name(p->l.y.dtype), " act=", llmk_digits(p->gate.activation), " ",
              layouts[p->layout], NULL);
}

static llmk_workspace *workspace(const void *problem_)
{
    return ((const problem *)problem_)->workspace;
}

static uint64_t workspace_bytes(const void *problem_)
{
    const problem *p = problem_;
    return is_empty(p) ? 0 : bytes_of(p->l.x.nrows, p->gate.outputs);
}

/* ---- Kernels that compute both ---- */

static bool is_pair(const problem *p, llmk_reason *why)
{
    llmk_reason other = {""};
    if (!llmk_linear_goes_with(p->l.weights, p->gate.up, &other))
        return llmk_no(why, "up_weights have %s", other.text);
    if (p->layout != LLMK_GATE_SPLIT && p->l.weights->segment_count > 1)
        return llmk_no(why, "gate and up lie in %zu buffers together", p->l.weights->segment_count);
    return true;
}

static bool nv_stream_supports(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    return is_pair(problem_, why) && llmk_linear_nv_stream_supports(ctx, problem_, why);
}

static bool emulated_nv_stream_supports(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    return is_pair(problem_, why) && llmk_linear_emulated_nv_stream_supports(ctx, problem_, why);
}

static bool supports(llmk_context *ctx, const grouped_products *products, const char *name,
                     const problem *p, llmk_reason *why)
{
    return is_pair(p, why) &&
           llmk_gated_grouped_supports(ctx, products, name, &p->l, p->workspace != NULL, why);
}

static llmk_status launch(llmk_launch *l, const grouped_products *products, const problem *p)
{
    return llmk_gated_grouped_launch(l, products, &p->l);
}

LLMK_GATED_VARIANTS(LLMK_GROUPED_FUNCTIONS)

static bool nv90_supports(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    const problem *p = problem_;
    return (is_pair(p, why) && llmk_gated_tall_supports(ctx, &p->l, why)) ||
           supports(ctx, &llmk_grouped_nv90, "nv90", p, why);
}

static llmk_status nv90_launch(llmk_launch *l, const void *problem_)
{
    const problem *p = problem_;
    llmk_reason why;
    return llmk_gated_tall_supports(l->ctx, &p->l, &why) ? llmk_gated_tall_launch(l, &p->l)
                                                         : launch(l, &llmk_grouped_nv90, p);
}

static bool portable_supports(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    if (ctx->caps.max_work_group < 128)
        return llmk_no(why, "work-groups of 128 items are too large for the device");
    return is_pair(problem_, why);
}

static llmk_status portable_launch(llmk_launch *launch, const void *problem_)
{
    const problem *p = problem_;
    char defines[32];
    const linear_recipe r = {.file = "gated_linear/gated_linear_tile.cl",
                             .defines =
                                 llmk_linear_defines(p->l.x.dtype, p->l.weights->layout, defines),
                             .kernel = "gated_linear_tile",
                             .rows = 64,
                             .columns = 32,
                             .local = {16, 8, 1}};
    return llmk_linear_run(launch, &p->l, &r);
}

#define REF_FILE "gated_linear/gated_linear_ref.cl"

static bool ref_supports(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    (void)ctx;
    return is_pair(problem_, why);
}

static llmk_status ref_launch(llmk_launch *launch, const void *problem_)
{
    const problem *p = problem_;
    const linear_recipe r = {.file = REF_FILE,
                             .defines = "",
                             .kernel = "gated_linear_ref",
                             .rows = 1,
                             .columns = 64,
                             .local = {64, 1, 1},
                             .has_last = true,
                             .last = p->l.weights->layout};
    return llmk_linear_run(launch, &p->l, &r);
}

/* ---- Two products, or one of both, and their activation ---- */

static bool composite_supports(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    (void)ctx;
    const problem *p = problem_;
    if (!p->workspace)
        return llmk_no(why, "there is no workspace (of %llu bytes)",
                       (unsigned long long)bytes_of(p->l.x.nrows, p->gate.outputs));
    return true;
}

/* Rows that follow each other at one distance. */
static uint64_t run_of(const llmk_view *v)
{
    return !v->present || v->simple ? UINT64_MAX : v->rows.n2 > 1 ? v->rows.n2 : v->rows.n1;
}

static uint64_t row_begin(const llmk_rows *r, uint64_t row)
{
    const uint64_t rest = row / r->n2;
    return r->offset + rest / r->n1 * r->s0 + rest % r->n1 * r->s1 + row % r->n2 * r->s2;
}

/* Rows first ... first + count - 1, which are of one run. */
static llmk_view rows_of(const llmk_view *whole, uint64_t first, uint64_t count)
{
    llmk_view v = *whole;
    if (!whole->present)
        return v;
    const uint64_t begin = row_begin(&whole->rows, first);
    v.rows = (llmk_rows){.offset = begin, .n1 = 1, .n2 = 1, .inner = whole->rows.inner};
    if (count > 1)
        v.rows.s0 = row_begin(&whole->rows, first + 1) - begin;
    v.simple = true;
    v.first_align = v.align;
    v.rank = 2;
    v.dim[0] = count;
    v.dim[1] = v.ncols;
    v.nrows = count;
    v.count = count * v.ncols;
    return v;
}

/* A matrix of floats in the workspace, from element `first` on. */
static llmk_view scratch(const problem *p, uint64_t first, uint64_t rows, uint64_t cols,
                         uint64_t pitch)
{
    return (llmk_view){.present = true,
                       .unit = true,
                       .simple = true,
                       .align = 16,
                       .first_align = 16,
                       .buffer = p->workspace->buffer,
                       .dtype = LLMK_F32,
                       .count = rows * cols,
                       .nrows = rows,
                       .ncols = cols,
                       .rank = 2,
                       .dim = {rows, cols},
                       .rows = {.offset = first, .n1 = 1, .n2 = 1, .s0 = pitch, .inner = 1}};
}

static llmk_status multiply(llmk_launch *launch, const problem *p, const llmk_weights *w,
                            const llmk_view *bias, const llmk_view *x, const llmk_view *y)
{
    const linear_problem l = {
        .weights = w, .x = *x, .bias = *bias, .y = *y, .batch_invariant = p->l.batch_invariant};
    return llmk_operate_within(launch, &llmk_operator_linear, &l);
}

/* With a residual, or where a row must not depend on the alignment of others, one by one. */
static llmk_status combine(llmk_launch *launch, const problem *p, const llmk_view *gate,
                           const llmk_view *up, uint64_t first, uint64_t rows)
{
    const llmk_view residual = rows_of(&p->l.residual, first, rows);
    const llmk_view y = rows_of(&p->l.y, first, rows);
    if (!residual.present && !p->l.batch_invariant)
        return llmk_gated_activation_within(launch, gate, up, &y, p->gate.activation, p->gate.limit,
                                            p->gate.alpha);
    llmk_kernel k = llmk_kernel_open(launch, REF_FILE, "", "gated_linear_combine");
    llmk_arg_view(&k, gate);
    llmk_arg_view(&k, up);
    llmk_arg_view(&k, &residual);
    llmk_arg_u32(&k, llmk_view_dtype(&residual));
    llmk_arg_view(&k, &y);
    llmk_arg_u32(&k, y.dtype);
    llmk_arg_u64(&k, rows);
    llmk_arg_u64(&k, p->gate.outputs);
    llmk_arg_u32(&k, p->gate.activation);
    llmk_arg_f32(&k, p->gate.limit);
    llmk_arg_f32(&k, p->gate.alpha);
    const llmk_grid grid = llmk_element_grid(rows, p->gate.outputs);
    return llmk_kernel_enqueue(&k, grid.groups, grid.local);
}

static llmk_status run_rows(llmk_launch *launch, const problem *p, uint64_t first, uint64_t rows)
{
    const uint64_t outputs = p->gate.outputs, pitch = pitch_of(outputs);
    const llmk_view x = rows_of(&p->l.x, first, rows);
    if (p->layout == LLMK_GATE_SPLIT) {
        const llmk_view gate = scratch(p, 0, rows, outputs, pitch),
                        up = scratch(p, rows * pitch, rows, outputs, pitch);
        LLMK_TRY(multiply(launch, p, p->l.weights, &p->l.bias, &x, &gate));
        LLMK_TRY(multiply(launch, p, p->gate.up, &p->gate.up_bias, &x, &up));
        return combine(launch, p, &gate, &up, first, rows);
    }
    const llmk_view both = scratch(p, 0, rows, 2 * outputs, 2 * pitch);
    LLMK_TRY(multiply(launch, p, p->l.weights, &p->whole_bias, &x, &both));
    const llmk_view gate = llmk_view_columns(&both, 0, outputs, p->gate.step),
                    up = llmk_view_columns(&both, p->gate.up_first, outputs, p->gate.step);
    return combine(launch, p, &gate, &up, first, rows);
}

static llmk_status composite_launch(llmk_launch *launch, const void *problem_)
{
    const problem *p = problem_;
    const uint64_t rows = p->l.x.nrows, step = rows_at_once(rows, p->gate.outputs);
    const llmk_view *views[] = {&p->l.x, &p->l.residual, &p->l.y};
    uint64_t run = rows; /* the shortest one divides the others */
    for (size_t i = 0; i < LLMK_COUNT(views); i++)
        run = run_of(views[i]) < run ? run_of(views[i]) : run;
    for (uint64_t row = 0, count; row < rows; row += count) {
        const uint64_t left = run - row % run;
        count = left < step ? left : step;
        LLMK_TRY(run_rows(launch, p, row, count));
    }
    return LLMK_OK;
}

static const llmk_variant variants[] = {
    {"nv-stream", nv_stream_supports, llmk_linear_nv_stream_launch},
    {"nv90", nv90_supports, nv90_launch},
    {"nv90-packed", nv90_packed_supports, nv90_packed_launch},
    {"nv", nv_supports, nv_launch},
    {"amd", amd_supports, amd_launch},
    {"composite", composite_supports, composite_launch},
    {"portable", portable_supports, portable_launch},
    {"ref", ref_supports, ref_launch},
    {"emulated-nv-stream", emulated_nv_stream_supports, llmk_linear_emulated_nv_stream_launch},
    {"emulated-nv", emulated_nv_supports, emulated_nv_launch},
};

/* ---- Self-test ---- */

/* How a variant is tried: outputs, and rows of x where they are not few. On wgmma rows are 300, and
 * 303, 305, 307, of which each has other tiles where such are tall (gated_linear_nv90.c). */
typedef struct measures {
    bool grouped, even; /* the kernels of experts; those on wgmma */
    uint64_t outputs, rows;
} measures;

static measures measures_of(const llmk_variant *v)
{
#define LAUNCHES(name, id) v->launch == id##_launch ||
    const bool even = v->launch == nv90_launch || v->launch == nv90_packed_launch;
    const bool few = v->launch == llmk_linear_nv_stream_launch ||
                     v->launch == llmk_linear_emulated_nv_stream_launch;
    return (measures){.grouped = even || LLMK_GATED_VARIANTS(LAUNCHES) false,
                      .even = even,
                      .outputs = even ? 160 : 48,
                      .rows = even  ? 400
                              : few ? 16
                                    : 70};
#undef LAUNCHES
}

typedef struct sides {
    const llmk_weights *gate, *up; /* up: NULL where the gate has both */
    const double *gate_values, *up_values;
} sides;

static double dot(const float *x, const double *w, uint64_t count, double *magnitude)
{
    double sum = 0;
    *magnitude = 1;
    for (uint64_t i = 0; i < count; i++) {
        sum += (double)x[i] * w[i];
        *magnitude += fabs((double)x[i] * w[i]);
    }
    return sum;
}

static llmk_status try_rows(llmk_trial *t, const problem *like, const sides *s,
                            llmk_workspace *scratch, uint64_t rows)
{
    const uint64_t n = s->up ? s->gate->n : s->gate->n / 2, k = s->gate->k;
    const bool packed = like->layout == LLMK_GATE_PACKED,
               clamped = like->gate.activation == LLMK_SWIGLU_CLAMPED;
    const float *x, *bias, *residual = NULL;
    llmk_gated_linear_args a = LLMK_INIT(llmk_gated_linear_args);
    a.activation = like->gate.activation;
    a.layout = like->layout;
    a.limit = clamped ? like->gate.limit : 0;
    a.alpha = clamped ? like->gate.alpha : 0;
    const float size = llmk_gated_trial_size(like->gate.activation);
    a.x = llmk_trial_input(t, like->l.x.dtype, rows, k, 1, size, &x);
    a.gate_weights = s->gate;
    a.up_weights = s->up;
    a.gate_bias = llmk_trial_input(t, LLMK_F32, 1, s->gate->n, 2, 1.0f, &bias);
    a.gate_bias = llmk_vector(a.gate_bias.buffer, LLMK_F32, s->gate->n);
    if (!measures_of(t->variant).grouped)
        a.residual = llmk_trial_input(t, LLMK_F32, rows, n, 3, 1.0f, &residual);
    a.y = llmk_trial_output(t, like->l.y.dtype, rows, n);
    a.workspace = scratch;
    double *expected = llmk_trial_doubles(t, rows * n), largest = 0;
    if (t->status != LLMK_OK)
        return t->status;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t f = 0; f < n; f++) {
            const uint64_t g = s->up || packed ? f : 2 * f, u = s->up    ? f
                                                                : packed ? n + f
                                                                         : 2 * f + 1;
            double gate_size, up_size;
            const double gate =
                dot(x + r * k, s->gate_values + g * k, k, &gate_size) + (double)bias[g];
            const double up =
                dot(x + r * k, (s->up ? s->up_values : s->gate_values) + u * k, k, &up_size) +
                (s->up ? 0 : (double)bias[u]);
            expected[r * n + f] = llmk_gated_host(like->gate.activation, (double)like->gate.limit,
                                                  (double)like->gate.alpha, gate, up) +
                                  (residual ? (double)residual[r * n + f] : 0);
            const double steep = like->gate.activation == LLMK_RELU2 ? 1 + fabs(gate) : 1;
            largest = fmax(largest, steep * (gate_size + 1) * (up_size + 1));
        }
    llmk_trial_run(t, &a);
    /* 150 roundings of each sum (linear_selftest.c), and those of the activation. */
    llmk_trial_compare(t, "y", &a.y, expected, 1e-5, 4 * 150.0 / 16777216 * largest);
    return t->status;
}

/* With whole vectors of x and, where the format has such, without. */
static uint64_t columns_of(const llmk_trial *t, const llmk_weights *like, bool odd)
{
    const measures m = measures_of(t->variant);
    if (!m.grouped)
        return llmk_linear_trial_columns(like, odd);
    return m.even ? 160 : llmk_linear_trial_depth(like, false);
}

/* Of several groups along K, and of one. */
static llmk_status make_matrix(llmk_trial *t, const llmk_weights *like, uint64_t n, uint64_t k,
                               bool grouped, double **values, llmk_weights **out)
{
    if (!measures_of(t->variant).grouped)
        return llmk_linear_trial_matrix(t, like, n, k, grouped, values, out);
    return llmk_linear_trial_weights(t, like, 1, n, k, !grouped, values, out);
}

static llmk_status self_test(llmk_trial *t, const void *problem_)
{
    const problem *like = problem_;
    const bool split = like->layout == LLMK_GATE_SPLIT;
    const measures m = measures_of(t->variant);
    llmk_workspace *scratch = NULL;
    if (t->variant->launch == composite_launch)
        LLMK_TRY(llmk_workspace_create(t->ctx, bytes_of(m.rows, m.outputs), &scratch));
    llmk_status status = LLMK_OK;
    for (uint64_t i = 0; status == LLMK_OK && i < (m.even ? 5 : 4); i++) {
        const uint64_t rows = i == 1 || (i == 2 && !m.even) ? 5
                              : m.even && i > 0             ? m.rows + 2 * i - 1
                                                            : m.rows;
        const bool odd = i & 1, grouped = i & 2;
        uint64_t k = columns_of(t, like->l.weights, odd);
        if (split) { /* of two formats: one that both can have */
            const uint64_t other = columns_of(t, like->gate.up, odd);
            k = k == other ? k : k > 256 || other > 256 ? 512 : 256;
        }
        llmk_weights *gate = NULL, *up = NULL;
        double *gate_values = NULL, *up_values = NULL;
        status = make_matrix(t, like->l.weights, split ? m.outputs : 2 * m.outputs, k, grouped,
                             &gate_values, &gate);
        if (status == LLMK_OK && split)
            status = make_matrix(t, like->gate.up, m.outputs, k, grouped, &up_values, &up);
        const sides s = {gate, up, gate_values, up_values};
        if (status == LLMK_OK)
            status = try_rows(t, like, &s, scratch, rows);
        llmk_weights_free(gate);
        llmk_weights_free(up);
    }
    llmk_workspace_free(scratch);
    return status;
}

/* ---- The operator ---- */

const llmk_operator llmk_operator_gated_linear = {
    .id = LLMK_OP_GATED_LINEAR,
    .name = "gated_linear",
    .problem_size = sizeof(problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
    .workspace = workspace,
    .workspace_bytes = workspace_bytes,
};
_Static_assert(sizeof(problem) <= LLMK_PROBLEM_SIZE, "raise LLMK_PROBLEM_SIZE");

llmk_status llmk_gated_linear_workspace_size(llmk_context *ctx, const llmk_gated_linear_args *args,
                                             uint64_t *bytes)
{
    return llmk_operate_workspace_size(&llmk_operator_gated_linear, ctx, args, bytes);
}

llmk_status llmk_gated_linear(llmk_context *ctx, cl_command_queue queue,
                              const llmk_gated_linear_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_gated_linear, ctx, queue, args, events);
}
