/* test_row_bits.c - operators made of several kernels or products: a row of y has the same bits
 * whatever M is, where the call or the variant says so. */
#include "cases/case.h"
#include "core/core.h"
#include "support/device.h"

#include <stdlib.h>
#include <string.h>

typedef struct setting {
    const char *line, *variant; /* without m */
    uint64_t rows;              /* the most */
} setting;

static const setting settings[] = {
    {"linear n=70 k=519 w=w8a8 y=f32", NULL, 130},
    {"linear n=70 k=519 w=w8a8 y=f32 layout=nv", "linear:emulated-nv-w8a8", 130},
    {"linear n=70 k=519 w=w8a8 y=f32 layout=nv", "linear:emulated-nv-w8a8-wide", 17},
    {"linear n=300 k=1100 w=w8a8 y=f32", "linear:nv90-w8a8", 130},
    {"gated_linear n=70 k=519 y=f32 invariant", NULL, 65},
    {"gated_linear n=70 k=519 y=f32 invariant bare", NULL, 65},
    {"gated_linear n=33 k=256 w=w4 group=64 layout=packed y=f32 invariant", NULL, 65},
    {"gated_linear n=33 k=520 w=w4 group=64 y=f32 nv", "gated_linear:emulated-nv-stream", 16},
    {"gated_linear n=33 k=520 w=w8 y=f32 nv", "gated_linear:emulated-nv-stream", 16},
};

/* The first rows are the same whatever m is: values are made by their places. */
static void run(llmk_context *ctx, cl_command_queue queue, const setting *s, uint64_t m,
                uint64_t *width, float **y)
{
    char text[256], error[512];
    case_line line;
    snprintf(text, sizeof text, "%s m=%llu", s->line, (unsigned long long)m);
    case_run *r = NULL;
    if (!case_parse(text, &line, error, sizeof error) ||
        !(r = case_run_new(ctx, queue, &line, 1, CASE_TO_TIME, error, sizeof error)))
        fail_msg("%s: %s", text, error);
    *width = case_u64(&line, "n");
    *y = malloc(m * *width * sizeof **y);
    assert_non_null(*y);
    if (case_run_enqueue(r, 0, NULL) != LLMK_OK)
        fail_msg("%s: %s", text, llmk_error_message());
    llmk_tensor t;
    if (line.op->op == LLMK_OP_LINEAR)
        t = ((const llmk_linear_args *)case_run_args(r, 0))->y;
    else
        t = ((const llmk_gated_linear_args *)case_run_args(r, 0))->y;
    assert_int_equal(clEnqueueReadBuffer(queue, t.buffer, CL_TRUE, t.offset,
                                         m * *width * sizeof **y, *y, 0, NULL, NULL),
                     CL_SUCCESS);
    case_run_free(r);
}

static void test_setting(void **state)
{
    static const uint64_t counts[] = {1, 2, 8, 9, 16, 17, 64, 65, 130};
    const setting *s = *state;
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.variant = s->variant;
    llmk_context *ctx = NULL;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    if (s->variant && !can_force(ctx, s->variant)) {
        llmk_context_free(ctx);
        skip();
    }
    cl_command_queue queue = case_queue_new(ctx);
    float *all = NULL;
    uint64_t width, known = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] <= s->rows; i++) {
        float *y;
        run(ctx, queue, s, counts[i], &width, &y);
        if (all)
            assert_memory_equal(y, all, known * width * sizeof *y);
        free(all);
        all = y;
        known = counts[i];
    }
    free(all);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

/* Counts what is built of the wide tile and of the other. */
typedef struct builds {
    unsigned wide, narrow;
} builds;

static void on_log(void *user, llmk_log_level level, const char *message)
{
    builds *b = user;
    (void)level;
    b->wide += strstr(message, "linear/linear_gemm_wide.cl (-DX=f32 -DW=f32): built") != NULL;
    b->narrow += strstr(message, "linear/linear_gemm.cl (-DX=f32 -DW=f32): built") != NULL;
}

static llmk_context *open_portable(uint32_t flags, uint32_t units, builds *b)
{
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    llmk_context *ctx = NULL;
    options.variant = "linear:portable";
    options.cache_dir = "off";
    options.flags = flags;
    options.log = on_log;
    options.log_user = b;
    options.log_level = LLMK_LOG_DEBUG;
    *b = (builds){0, 0};
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    ctx->caps.compute_units = units;
    return ctx;
}

#define WIDE_LINE "linear n=150 k=519 x=f32 w=f32 y=f32"

/* Whether the portable product of f32 takes its wide tile is up to the number of compute units:
 * with one it does, with very many it does not. It is right both times, and has the same bits. */
static void test_wide_tile(void **state)
{
    static const setting s = {WIDE_LINE, NULL, 0};
    enum { M = 70, N = 150 };
    float *y[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        char error[512];
        uint64_t width;
        case_line line;
        builds b;
        llmk_context *ctx = open_portable(LLMK_CONTEXT_NO_SELFTEST, i == 0 ? 1 : 1u << 20, &b);
        cl_command_queue queue = case_queue_new(ctx);
        run(ctx, queue, &s, M, &width, &y[i]);
        assert_int_equal(width, N);
        assert_int_equal(b.wide, i == 0);
        assert_int_equal(b.narrow, i == 1);
        assert_true(case_parse(WIDE_LINE " m=70", &line, error, sizeof error));
        case_run *r = case_run_new(ctx, queue, &line, 1, CASE_TO_CHECK, error, sizeof error);
        assert_non_null(r);
        const case_result result = case_run_check(r);
        if (!result.ok)
            fail_msg("tile %u: %s", i, result.message);
        case_run_free(r);
        clReleaseCommandQueue(queue);
        llmk_context_free(ctx);
    }
    assert_memory_equal(y[0], y[1], sizeof(float) * M * N);
    free(y[0]);
    free(y[1]);
}

/* The self-test runs both tiles, whatever the device. */
static void test_wide_tile_is_tried(void **state)
{
    static const setting s = {WIDE_LINE, NULL, 0};
    float *y;
    uint64_t width;
    builds b;
    (void)state;
    llmk_context *ctx = open_portable(0, 1u << 20, &b);
    cl_command_queue queue = case_queue_new(ctx);
    run(ctx, queue, &s, 1, &width, &y);
    assert_int_equal(b.wide, 1);   /* by the trial */
    assert_int_equal(b.narrow, 2); /* by the trial and the call */
    free(y);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

int main(void)
{
    enum { COUNT = sizeof settings / sizeof *settings };
    struct CMUnitTest tests[COUNT + 2];
    unsetenv("LLMK_CACHE"); /* they would win over what the contexts here are given */
    unsetenv("LLMK_VARIANT");
    for (size_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){settings[i].line, test_setting, NULL, NULL,
                                       (void *)(uintptr_t)&settings[i]};
    tests[COUNT] = (struct CMUnitTest)cmocka_unit_test(test_wide_tile);
    tests[COUNT + 1] = (struct CMUnitTest)cmocka_unit_test(test_wide_tile_is_tried);
    return _cmocka_run_group_tests("bits of rows", tests, COUNT + 2, NULL, NULL);
}
