/* test_row_bits.c - operators made of several kernels or products: a row of y has the same bits
 * whatever M is, where the call or the variant says so. */
#include "cases/case.h"
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
        !(r = case_run_new(ctx, queue, &line, 1, true, error, sizeof error)))
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

int main(void)
{
    enum { COUNT = sizeof settings / sizeof *settings };
    struct CMUnitTest tests[COUNT];
    unsetenv("LLMK_VARIANT"); /* it would win over the variants that are forced here */
    for (size_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){settings[i].line, test_setting, NULL, NULL,
                                       (void *)(uintptr_t)&settings[i]};
    return _cmocka_run_group_tests("bits of rows", tests, COUNT, NULL, NULL);
}
