/* error_report.c - how far an approximation is from its reference. */
#include "ops/quant.h"

#include <stdio.h>

/* sums_t and maxima_t of cl/error_report/error_stats.clh, one of each a partial. */
#define SUMS_BYTES      48u
#define MAXIMA_BYTES    8u
#define WORKSPACE_BYTES ((uint64_t)LLMK_PARTIALS * (SUMS_BYTES + MAXIMA_BYTES))

typedef struct report_problem {
    llmk_view reference, approximation, report;
    llmk_workspace *workspace;
} report_problem;

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *problem)
{
    llmk_error_report_args a;
    report_problem *p = problem;
    LLMK_TRY(llmk_take_args("error_report", args, sizeof a, sizeof a, &a));
    llmk_checker c = llmk_check_begin(ctx, "error_report", dry);
    llmk_check_flags(&c, a.flags, 0);
    llmk_check_tensor(&c, "reference", &a.reference, LLMK_FLOATS, LLMK_INPUT, &p->reference);
    llmk_check_tensor(&c, "approximation", &a.approximation, LLMK_FLOATS, LLMK_INPUT,
                      &p->approximation);
    llmk_check_same_shape(&c, "approximation", &p->approximation, "reference", &p->reference);
    llmk_check_tensor(&c, "report", &a.report, LLMK_BIT(LLMK_F32), LLMK_OUTPUT, &p->report);
    llmk_check_vector(&c, "report", &p->report, sizeof(llmk_error_stats) / sizeof(float));
    llmk_check_workspace(&c, a.workspace, WORKSPACE_BYTES);
    p->workspace = a.workspace;
    LLMK_TRY(llmk_check_end(&c));
    llmk_views_flatten((llmk_view *[]){&p->reference, &p->approximation}, 2);
    return LLMK_OK;
}

/* Nothing to compare has a report too. */
static bool is_empty(const void *problem)
{
    (void)problem;
    return false;
}

static void key(const void *problem, char *text, size_t size)
{
    const report_problem *p = problem;
    llmk_join(text, size, "r=", llmk_dtype_name(p->reference.dtype),
              " a=", llmk_dtype_name(p->approximation.dtype), NULL);
}

static llmk_workspace *workspace(const void *problem)
{
    return ((const report_problem *)problem)->workspace;
}

static uint64_t workspace_bytes(const void *problem)
{
    (void)problem;
    return WORKSPACE_BYTES;
}

static void arg_workspace(llmk_kernel *k, const report_problem *p)
{
    llmk_arg_buffer(k, p->workspace ? p->workspace->buffer : NULL); /* NULL in a dry run */
}

/* ---- ref ---- */

static llmk_status ref_launch(llmk_launch *l, const void *problem)
{
    static const char file[] = "error_report/error_report_ref.cl";
    static const char *const stages[] = {"error_maxima", "error_sums"};
    const report_problem *p = problem;
    const size_t local = llmk_quant_local(l->ctx);
    for (size_t i = 0; i < LLMK_COUNT(stages); i++) {
        llmk_kernel k = llmk_kernel_open(l, file, "", stages[i]);
        llmk_arg_view(&k, &p->reference);
        llmk_arg_u32(&k, p->reference.dtype);
        llmk_arg_view(&k, &p->approximation);
        llmk_arg_u32(&k, p->approximation.dtype);
        llmk_arg_u64(&k, p->reference.nrows);
        llmk_arg_u64(&k, p->reference.ncols);
        arg_workspace(&k, p);
        LLMK_TRY(llmk_kernel_enqueue(&k, (size_t[]){LLMK_PARTIALS / local, 1, 1},
                                     (size_t[]){local, 1, 1}));
    }
    llmk_kernel k = llmk_kernel_open(l, file, "", "error_report");
    arg_workspace(&k, p);
    llmk_arg_u32(&k, LLMK_PARTIALS);
    llmk_arg_view(&k, &p->report);
    return llmk_kernel_enqueue(&k, (size_t[]){1, 1, 1}, (size_t[]){1, 1, 1});
}

/* ---- portable ---- */

static bool portable_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const report_problem *p = problem;
    (void)ctx;
    if (!p->reference.unit || !p->approximation.unit)
        return llmk_no(why, "the innermost stride of a tensor is not 1");
    return true;
}

static llmk_status portable_launch(llmk_launch *l, const void *problem)
{
    static const char file[] = "error_report/error_report_portable.cl";
    static const char *const stages[] = {"error_maxima", "error_sums"};
    const report_problem *p = problem;
    const uint64_t chunks = p->reference.nrows * ((p->reference.ncols + 7) / 8);
    const size_t local = llmk_quant_local(l->ctx);
    const uint32_t groups = llmk_quant_stage_groups(l->ctx, chunks);
    char defines[64];
    llmk_join(defines, sizeof defines, "-DR=", llmk_dtype_name(p->reference.dtype),
              " -DA=", llmk_dtype_name(p->approximation.dtype), NULL);
    for (size_t i = 0; i < LLMK_COUNT(stages); i++) {
        llmk_kernel k = llmk_kernel_open(l, file, defines, stages[i]);
        llmk_arg_view(&k, &p->reference);
        llmk_arg_view(&k, &p->approximation);
        llmk_arg_u64(&k, p->reference.nrows);
        llmk_arg_u64(&k, p->reference.ncols);
        llmk_arg_u32(&k, p->reference.align >= 16 && p->approximation.align >= 16);
        arg_workspace(&k, p);
        llmk_arg_local(&k, local * MAXIMA_BYTES);
        if (i == 1)
            llmk_arg_local(&k, local * SUMS_BYTES);
        LLMK_TRY(llmk_kernel_enqueue(&k, (size_t[]){groups, 1, 1}, (size_t[]){local, 1, 1}));
    }
    llmk_kernel k = llmk_kernel_open(l, file, defines, "error_report");
    arg_workspace(&k, p);
    llmk_arg_u32(&k, groups);
    llmk_arg_view(&k, &p->report);
    llmk_arg_local(&k, local * MAXIMA_BYTES);
    llmk_arg_local(&k, local * SUMS_BYTES);
    return llmk_kernel_enqueue(&k, (size_t[]){1, 1, 1}, (size_t[]){local, 1, 1});
}

/* ---- Self-test ---- */

static llmk_status self_test(llmk_trial *t, const void *problem)
{
    enum {
        ROWS = LLMK_QUANT_TEST_ROWS,
        COLS = LLMK_QUANT_TEST_COLS,
        PITCH = LLMK_QUANT_TEST_PITCH
    };
    const report_problem *p = problem;
    const float *reference, *approximation;
    const llmk_tensor r = llmk_trial_input(t, p->reference.dtype, ROWS, PITCH, 1, 3.0f, &reference);
    const llmk_tensor a =
        llmk_trial_input(t, p->approximation.dtype, ROWS, PITCH, 2, 3.0f, &approximation);
    const llmk_tensor report = llmk_trial_output(t, LLMK_F32, 1, 8);
    if (t->status != LLMK_OK)
        return t->status;

    llmk_error_report_args args = LLMK_INIT(llmk_error_report_args);
    args.reference = llmk_matrix_strided(r.buffer, 0, r.dtype, ROWS, COLS, PITCH);
    args.approximation = llmk_matrix_strided(a.buffer, 0, a.dtype, ROWS, COLS, PITCH);
    args.report = llmk_vector(report.buffer, LLMK_F32, 8);
    LLMK_TRY(llmk_workspace_create(t->ctx, WORKSPACE_BYTES, &args.workspace));
    llmk_trial_run(t, &args);
    llmk_workspace_free(args.workspace);

    float packed[2][LLMK_QUANT_TEST_COUNT];
    for (size_t row = 0; row < ROWS; row++) {
        memcpy(packed[0] + row * COLS, reference + row * PITCH, COLS * sizeof(float));
        memcpy(packed[1] + row * COLS, approximation + row * PITCH, COLS * sizeof(float));
    }
    llmk_error_stats stats;
    LLMK_TRY(llmk_error_report_host(LLMK_QUANT_TEST_COUNT, packed[0], packed[1], &stats));
    const double expected[8] = {stats.max_abs, stats.mean_abs, stats.mean_rel, stats.snr_db,
                                stats.count};
    llmk_trial_compare(t, "report", &report, expected, 1e-5, 1e-5);
    return t->status;
}

/* ---- The operator ---- */

static const llmk_variant variants[] = {
    {"portable", portable_supports, portable_launch},
    {"ref", llmk_any_supported, ref_launch},
};

const llmk_operator llmk_operator_error_report = {
    .id = LLMK_OP_ERROR_REPORT,
    .name = "error_report",
    .problem_size = sizeof(report_problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
    .workspace = workspace,
    .workspace_bytes = workspace_bytes,
};
_Static_assert(sizeof(report_problem) <= LLMK_PROBLEM_SIZE, "raise LLMK_PROBLEM_SIZE");

llmk_status llmk_error_report_workspace_size(llmk_context *ctx, const llmk_error_report_args *args,
                                             uint64_t *bytes)
{
    return llmk_operate_workspace_size(&llmk_operator_error_report, ctx, args, bytes);
}

llmk_status llmk_error_report(llmk_context *ctx, cl_command_queue queue,
                              const llmk_error_report_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_error_report, ctx, queue, args, events);
}
