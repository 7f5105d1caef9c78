/* grouped_linear.c - a linear layer for each expert, of rows put together by expert. */
#include "ops/elementwise.h"
#include "ops/grouped.h"
#include "ops/linear.h"
#include "ops/linear_selftest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct problem {
    grouped_problem g;
    llmk_view offsets;
    llmk_workspace *workspace;
} problem;

static uint64_t bytes_of(const llmk_weights *w)
{
    return llmk_grouped_schedule_size(w->experts + 1) * sizeof(cl_int);
}

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *out)
{
    llmk_grouped_linear_args a;
    problem *p = out;
    grouped_problem *g = &p->g;
    LLMK_TRY(llmk_take_args("grouped_linear", args, sizeof a, sizeof a, &a));
    if (!a.weights)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "grouped_linear: weights is NULL");
    const llmk_weights *w = a.weights;
    llmk_checker c = llmk_check_begin(ctx, "grouped_linear", dry);
    llmk_check_flags(&c, a.flags, 0);
    llmk_check_that(&c, w->ctx == ctx, LLMK_INVALID_ARGUMENT, "weights belong to another context");
    llmk_check_that(&c, w->experts <= LLMK_MOE_MAX_EXPERTS, LLMK_INVALID_SHAPE,
                    "weights have %llu experts; at most %u are supported",
                    (unsigned long long)w->experts, LLMK_MOE_MAX_EXPERTS);
    llmk_check_that(&c, w->experts > 1 || w->segment_count <= 1, LLMK_UNSUPPORTED,
                    "weights of one expert lie in %zu buffers; one is supported", w->segment_count);
    llmk_check_tensor(&c, "x", &a.x, LLMK_FLOATS, LLMK_INPUT, &g->x);
    llmk_check_that(&c, g->x.rank == 2 && g->x.nrows <= LLMK_MOE_MAX_PAIRS, LLMK_INVALID_SHAPE,
                    "x has rank %u and %llu rows; expected rank 2, and at most %llu", g->x.rank,
                    (unsigned long long)g->x.nrows, (unsigned long long)LLMK_MOE_MAX_PAIRS);
    llmk_check_that(&c, g->x.ncols == w->k, LLMK_INVALID_SHAPE,
                    "x has %llu columns; the weights have k = %llu", (unsigned long long)g->x.ncols,
                    (unsigned long long)w->k);
    llmk_check_tensor(&c, "offsets", &a.offsets, LLMK_BIT(LLMK_I32), LLMK_INPUT, &p->offsets);
    llmk_check_vector(&c, "offsets", &p->offsets, w->experts + 1);
    llmk_check_optional(&c, "source", &a.source, LLMK_BIT(LLMK_I32), LLMK_INPUT, &g->source);
    const uint64_t rows = g->source.present ? g->source.count : g->x.nrows;
    llmk_check_that(&c, !g->source.present || (g->source.rank == 1 && rows <= LLMK_MOE_MAX_PAIRS),
                    LLMK_INVALID_SHAPE,
                    "source has rank %u and %llu elements; expected rank 1, and at most %llu",
                    g->source.rank, (unsigned long long)rows,
                    (unsigned long long)LLMK_MOE_MAX_PAIRS);
    llmk_check_that(&c, rows == 0 || g->x.nrows > 0, LLMK_INVALID_SHAPE,
                    "x has no rows, source %llu", (unsigned long long)rows);
    llmk_check_that(&c, g->source.present ? a.experts_a_token <= INT32_MAX : a.experts_a_token <= 1,
                    LLMK_INVALID_ARGUMENT, "experts_a_token is %llu; expected %s",
                    (unsigned long long)a.experts_a_token,
                    g->source.present ? "less than 2^31" : "0 or 1 without source");
    llmk_check_optional(&c, "bias", &a.bias, LLMK_FLOATS, LLMK_INPUT, &g->bias);
    llmk_check_matrix(&c, "bias", &g->bias, w->experts, w->n);
    llmk_check_tensor(&c, "y", &a.y, LLMK_FLOATS, LLMK_OUTPUT, &g->y);
    llmk_check_matrix(&c, "y", &g->y, rows, w->n);
    llmk_check_workspace(&c, a.workspace, bytes_of(w));
    p->workspace = a.workspace;
    g->weights = w;
    g->schedule = a.workspace ? a.workspace->buffer : NULL;
    g->groups = (uint32_t)w->experts + 1;
    g->rest = (uint32_t)w->experts;
    g->rows = rows;
    g->fan = a.experts_a_token ? (uint32_t)a.experts_a_token : 1;
    return llmk_check_end(&c);
}

static bool is_empty(const void *problem_)
{
    return ((const problem *)problem_)->g.y.count == 0;
}

static void key(const void *problem_, char *text, size_t size)
{
    const grouped_problem *g = &((const problem *)problem_)->g;
    char weights[64];
    llmk_linear_weights_key(g->weights, weights, sizeof weights);
    llmk_join(text, size, "x=", llmk_dtype_name(g->x.dtype), " w=", weights,
              " y=", llmk_dtype_name(g->y.dtype), NULL);
}

static llmk_workspace *workspace(const void *problem_)
{
    return ((const problem *)problem_)->workspace;
}

static uint64_t workspace_bytes(const void *problem_)
{
    const problem *p = problem_;
    return p->g.weights ? bytes_of(p->g.weights) : 0;
}

/* ---- Variants ---- */

static bool supports(llmk_context *ctx, const grouped_products *products, const char *name,
                     const problem *p, llmk_reason *why)
{
    const bool chosen = !ctx->is_trial && !llmk_variant_is_forced(ctx, "grouped_linear", name);
    return products->supports(ctx, &p->g, why) &&
           (!chosen || !products->suits ||
            products->suits(p->g.rows, p->g.weights->experts, llmk_grouped_is_codes(p->g.weights),
                            why));
}

static llmk_status launch(llmk_launch *l, const grouped_products *products, const problem *p)
{
    const bool ref = products->ref;
    grouped_problem g = p->g;
    g.height =
        products->height(g.rows, g.weights->experts, false, llmk_grouped_is_codes(g.weights));
    if (l->config)
        g.height = l->config->value[0];
    llmk_kernel k = llmk_kernel_open(
        l, ref ? "grouped_linear/grouped_ref.cl" : "grouped_linear/grouped_schedule.cl", "",
        ref ? "grouped_schedule_ref" : "grouped_schedule");
    llmk_arg_view(&k, &p->offsets);
    llmk_arg_u32(&k, (uint32_t)g.weights->experts);
    llmk_arg_u32(&k, (uint32_t)g.rows);
    llmk_arg_u32(&k, g.height);
    llmk_arg_buffer(&k, g.schedule);
    LLMK_TRY(llmk_kernel_enqueue(&k, (size_t[]){1, 1, 1}, (size_t[]){ref ? 1 : 128, 1, 1}));
    return products->launch(l, &g);
}

LLMK_GROUPED_VARIANTS(LLMK_GROUPED_FUNCTIONS)
static const llmk_variant variants[] = {LLMK_GROUPED_VARIANTS(LLMK_GROUPED_ROW)};

static const llmk_config configs[] = {
    {"portable", "height-4", {LLMK_GROUPED_FEW}, 0, 0},
    {"portable", "height-64", {64}, 0, 0},
};

static const char *const size_names[] = {"rows", "experts", "n", "k", NULL};

static bool sizes_of(const void *problem_, uint64_t sizes[LLMK_TUNING_SIZES])
{
    const grouped_problem *g = &((const problem *)problem_)->g;
    sizes[0] = g->rows;
    sizes[1] = g->weights->experts;
    sizes[2] = g->weights->n;
    sizes[3] = g->weights->k;
    return true;
}

/* ---- Self-test ---- */

enum { EXPERTS = 5, TOKENS = 70, FEW_TOKENS = 18, MOST_TOKENS = 1290 };
enum { EVEN_OUTPUTS = 288, EVEN_DEPTH = 160 }; /* of the kernels on wgmma, whose tile is 256 x 64 */

/* Offsets of groups without rows among others; the last rows are nobody's. plain: x's rows lie as
 * the groups do, and there is no bias. */
static llmk_status run(llmk_trial *t, const problem *p, const llmk_weights *weights,
                       const double *w, const int32_t *offsets, uint64_t rows, bool plain)
{
    const grouped_problem *g = &p->g;
    const uint64_t k = weights->k, outputs = weights->n;
    const float *x, *bias = NULL;
    llmk_grouped_linear_args a = LLMK_INIT(llmk_grouped_linear_args);
    a.weights = weights;
    a.x = llmk_trial_input(t, g->x.dtype, rows, k, 1, 1.0f, &x);
    if (!plain)
        a.bias = llmk_trial_input(t, LLMK_F32, EXPERTS, outputs, 2, 1.0f, &bias);
    a.offsets = llmk_vector(llmk_trial_buffer(t, offsets, (EXPERTS + 1) * sizeof *offsets),
                            LLMK_I32, EXPERTS + 1);
    int32_t source[TOKENS];
    for (uint64_t r = 0; r < rows && !plain; r++)
        source[r] = (int32_t)(r * 7 % rows * 2);
    if (!plain) {
        a.source = llmk_vector(llmk_trial_buffer(t, source, rows * sizeof *source), LLMK_I32, rows);
        a.experts_a_token = 2;
    }
    a.y = llmk_trial_output(t, g->y.dtype, rows, outputs);
    double *expected = llmk_trial_doubles(t, rows * outputs);
    if (t->status != LLMK_OK)
        return t->status;
    LLMK_TRY(llmk_workspace_create(t->ctx, bytes_of(weights), &a.workspace));
    double largest = 0;
    for (uint64_t e = 0; e < EXPERTS; e++)
        for (uint64_t r = (uint64_t)offsets[e]; r < (uint64_t)offsets[e + 1]; r++) {
            const float *row = x + (plain ? r : (uint64_t)source[r] / 2) * k;
            for (uint64_t n = 0; n < outputs; n++) {
                double sum = bias ? (double)bias[e * outputs + n] : 0, magnitude = 0;
                for (uint64_t i = 0; i < k; i++) {
                    const double product = (double)row[i] * w[(e * outputs + n) * k + i];
                    sum += product;
                    magnitude += fabs(product);
                }
                expected[r * outputs + n] = sum;
                largest = fmax(largest, magnitude);
            }
        }
    llmk_trial_run(t, &a);
    llmk_trial_compare(t, "y", &a.y, expected, 0, 150.0 / 16777216 * largest);
    llmk_workspace_free(a.workspace);
    return t->status;
}

/* whole: one group of weights a row, where there are groups. */
static llmk_status try_weights(llmk_trial *t, const problem *p, bool whole)
{
    static const int32_t few[EXPERTS + 1] = {0, 9, 9, 10, 17, 17}; /* tiles of 4, 1, 3 rows */
    static const int32_t many[EXPERTS + 1] = {0, 66, 66, 66, 67, 68};
    static const int32_t most[EXPERTS + 1] = {0, 1200, 1201, 1201, 1261, 1281};
    const llmk_weights *like = p->g.weights;
    const bool even = !strncmp(t->variant->name, "nv90", 4);
    llmk_weights *weights = NULL;
    double *w = NULL;
    const uint64_t outputs = even              ? EVEN_OUTPUTS
                             : like->block > 1 ? 48 /* experts share no blocks */
                                               : 37;
    LLMK_TRY(llmk_linear_trial_weights(
        t, like, EXPERTS, outputs,
        even ? EVEN_DEPTH
             : llmk_linear_trial_depth(like, strstr(t->variant->name, "nv-stream") != NULL),
        whole, &w, &weights));
    llmk_status status = run(t, p, weights, w, few, FEW_TOKENS, even);
    if (status == LLMK_OK)
        status = run(t, p, weights, w, many, TOKENS, even);
    if (status == LLMK_OK && even)
        status = run(t, p, weights, w, most, MOST_TOKENS, true);
    llmk_weights_free(weights);
    return status;
}

static llmk_status self_test(llmk_trial *t, const void *problem_)
{
    LLMK_TRY(try_weights(t, problem_, false));
    return strcmp(t->variant->name, "nv90-packed") ? LLMK_OK : try_weights(t, problem_, true);
}

const llmk_operator llmk_operator_grouped_linear = {
    .id = LLMK_OP_GROUPED_LINEAR,
    .name = "grouped_linear",
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
    .workspace = workspace,
    .workspace_bytes = workspace_bytes,
};
_Static_assert(sizeof(problem) <= LLMK_PROBLEM_SIZE, "raise LLMK_PROBLEM_SIZE");

llmk_status llmk_grouped_linear_workspace_size(llmk_context *ctx,
                                               const llmk_grouped_linear_args *args,
                                               uint64_t *bytes)
{
    return llmk_operate_workspace_size(&llmk_operator_grouped_linear, ctx, args, bytes);
}

llmk_status llmk_grouped_linear(llmk_context *ctx, cl_command_queue queue,
                                const llmk_grouped_linear_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_grouped_linear, ctx, queue, args, events);
}
