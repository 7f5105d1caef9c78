/* test_gated_linear.c - what llmk_gated_linear does with and without a workspace. */
#include "core/core.h"
#include "support/device.h"

#include <stdlib.h>
#include <string.h>

static llmk_weights *make_weights(fixture *f, llmk_format format, uint64_t n)
{
    void *zeros = calloc(n, 4);
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = format;
    desc.n = n;
    desc.k = 1;
    desc.data = (llmk_source){.host = zeros, .size = n * 4};
    llmk_weights *w = NULL;
    if (llmk_weights_create(f->ctx, &desc, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    free(zeros);
    return w;
}

/* As for llmk_prepare: without buffers. */
static llmk_gated_linear_args args_of(const llmk_weights *gate, const llmk_weights *up, uint64_t m,
                                      uint64_t n)
{
    llmk_gated_linear_args args = LLMK_INIT(llmk_gated_linear_args);
    args.activation = LLMK_SILU;
    args.layout = up ? LLMK_GATE_SPLIT : LLMK_GATE_PACKED;
    args.x = llmk_matrix(NULL, LLMK_F16, m, 1);
    args.gate_weights = gate;
    args.up_weights = up;
    args.y = llmk_matrix(NULL, LLMK_F16, m, n);
    return args;
}

static void test_size(void **state)
{
    fixture *f = *state;
    static const uint64_t rows[] = {0, 1, 292, 293, 2048, UINT64_C(1) << 40};
    llmk_weights *w = make_weights(f, LLMK_FORMAT_F16, 28672);
    for (size_t i = 0; i < LLMK_COUNT(rows); i++) {
        const llmk_gated_linear_args args = args_of(w, w, rows[i], 28672);
        uint64_t bytes = 1;
        assert_int_equal(llmk_gated_linear_workspace_size(f->ctx, &args, &bytes), LLMK_OK);
        const uint64_t at_once = rows[i] < 256 ? rows[i] : 256; /* of 292 that fit */
        assert_int_equal(bytes, at_once * 28672 * 8);
        assert_true(bytes <= 64 << 20);
    }
    llmk_weights_free(w);
}

static const char *chosen(fixture *f, const llmk_gated_linear_args *args)
{
    static llmk_variant_info infos[16];
    size_t count = 0;
    assert_int_equal(llmk_explain(f->ctx, LLMK_OP_GATED_LINEAR, args, infos, 16, &count), LLMK_OK);
    for (size_t i = 0; i < count && i < 16; i++)
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN)
            return infos[i].name;
    return "none";
}

/* Of more rows than nv-stream takes. */
static void test_choice(void **state)
{
    fixture *f = *state;
    llmk_weights *gate = make_weights(f, LLMK_FORMAT_F16, 24),
                 *up = make_weights(f, LLMK_FORMAT_F32, 24);
    llmk_workspace *workspace = NULL;
    llmk_gated_linear_args args = args_of(gate, gate, 20, 24);
    uint64_t bytes = 0;
    assert_int_equal(llmk_gated_linear_workspace_size(f->ctx, &args, &bytes), LLMK_OK);
    assert_int_equal(llmk_workspace_create(f->ctx, bytes, &workspace), LLMK_OK);
    const bool on_cpu = llmk_is_cpu(&f->ctx->caps); /* others have variants of their own */
    if (on_cpu)
        assert_string_equal(chosen(f, &args), "portable");
    args.workspace = workspace;
    if (on_cpu)
        assert_string_equal(chosen(f, &args), "composite");
    args.up_weights = up; /* of another format */
    assert_string_equal(chosen(f, &args), "composite");
    args.workspace = NULL;
    assert_string_equal(chosen(f, &args), "none");
    assert_int_equal(llmk_prepare(f->ctx, LLMK_OP_GATED_LINEAR, &args), LLMK_NO_VARIANT);
    assert_non_null(strstr(llmk_error_message(), "there is no workspace (of 3840 bytes)"));
    assert_non_null(strstr(llmk_error_message(), "up_weights have another format"));
    llmk_workspace_free(workspace);
    llmk_weights_free(gate);
    llmk_weights_free(up);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_size, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_choice, set_up, tear_down),
    };
    unsetenv("LLMK_VARIANT");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
