/* test_tune_cases.c - runs made for tuning: numbers as they occur in every format, a sample of the
 * outputs to compare with, and what is wrong still found. */
#include "llmk_cmocka.h"

#include "cases/case.h"

static const char *const lines[] = {
    "linear m=3 n=200 k=512",
    "linear m=2 n=67 k=100 x=bf16 w=bf16 y=bf16",
    "linear m=2 n=200 k=256 w=w8",
    "linear m=2 n=200 k=256 w=w8 group=64 rowpad=3",
    "linear m=2 n=200 k=256 w=w4 group=128",
    "linear m=2 n=200 k=250 w=w4 group=128 zeros=none",
    "linear m=2 n=200 k=256 w=q8_0",
    "linear m=2 n=200 k=256 w=q4_0",
    "linear m=2 n=200 k=256 w=q4_1",
    "linear m=2 n=200 k=256 w=q4_k",
    "linear m=2 n=200 k=256 w=q6_k",
    "linear m=2 n=200 k=256 w=gptq_v1 group=64 order=act",
    "linear m=2 n=200 k=256 w=gptq_v2 group=64 bits=8",
    "linear m=2 n=200 k=256 w=awq_gemm group=64",
    "linear m=2 n=200 k=256 w=ct group=64 zeros=i8",
    "linear m=2 n=200 k=256 w=w8a8",
    "linear m=3 n=5 k=0 w=w8 bias=f32",
    "linear m=70 n=2200 k=1024", /* sampled */
    "grouped_linear r=40 e=5 n=200 k=256 bias=f16",
    "gated_linear m=3 n=200 k=256 w=w4 group=64",
    "moe_forward t=5 routing=zipf",
    "moe_forward model=gpt-oss-20b scale=16 t=4 x=bf16 y=bf16",
    "moe_forward model=deepseek-v3 scale=32 t=9 shared w=w8",
    "rmsnorm rows=9 h=512",
};

static void test_lines(void **state)
{
    (void)state;
    llmk_context *ctx = NULL;
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
    cl_command_queue queue = case_queue_new(ctx);
    assert_non_null(queue);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char error[512];
        case_line line;
        if (!case_parse(lines[i], &line, error, sizeof error))
            fail_msg("%s: %s", lines[i], error);
        case_run *run = case_run_new(ctx, queue, &line, 1, CASE_TO_TUNE, error, sizeof error);
        if (!run)
            fail_msg("%s: %s", lines[i], error);
        case_result result = case_run_check(run);
        if (!result.ok)
            fail_msg("%s: %s", lines[i], result.message);
        assert_true(result.nmse < 1e-3); /* and some were compared */
        case_run_sabotage(run, CASE_WRONG);
        assert_false(case_run_check(run).ok);
        case_run_sabotage(run, CASE_OUTSIDE);
        assert_false(case_run_check(run).ok);
        case_run_free(run);
    }
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
