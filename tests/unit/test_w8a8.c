/* test_w8a8.c - LLMK_LINEAR_W8A8: which weights it takes, sums at the edge of 32 bits, every
 * product of two codes, and how far the result is from that of unquantised x. */
#include "core/weights.h"
#include "support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const variants[] = {
    "linear:ref",     "linear:portable",  "linear:emulated-nv-w8a8", "linear:emulated-nv-w8a8-wide",
    "linear:nv-w8a8", "linear:nv90-w8a8", "linear:nv-w8a8-wide"};
#define VARIANTS (sizeof variants / sizeof *variants)

/* Scales of 1. */
static llmk_weights *make_weights(fixture *f, const int8_t *codes, uint64_t n, uint64_t k)
{
    float *scales = malloc(n * sizeof *scales);
    for (uint64_t i = 0; i < n; i++)
        scales[i] = 1;
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_W8;
    desc.n = n;
    desc.k = k;
    desc.data = (llmk_source){.host = codes, .size = n * k};
    desc.scales = (llmk_source){.host = scales, .size = n * sizeof *scales};
    llmk_weights *w = NULL;
    if (llmk_weights_create_as(f->ctx, &desc, LLMK_CLASS_NV, 0, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    free(scales);
    return w;
}

static void multiply(fixture *f, const llmk_weights *w, const float *x, uint64_t m, float *y)
{
    cl_context cl = llmk_context_cl_context(f->ctx);
    cl_mem bx =
        clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, m * w->k * sizeof *x, (void *)(uintptr_t)x, NULL);
    cl_mem by = clCreateBuffer(cl, 0, m * w->n * sizeof *y, NULL, NULL);
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_matrix(bx, LLMK_F32, m, w->k);
    args.weights = w;
    args.y = llmk_matrix(by, LLMK_F32, m, w->n);
    args.flags = LLMK_LINEAR_W8A8;
    uint64_t bytes = 0;
    assert_int_equal(llmk_linear_workspace_size(f->ctx, &args, &bytes), LLMK_OK);
    assert_true(bytes >= m * ((w->k + 63) / 64 * 64 + 4));
    assert_int_equal(llmk_workspace_create(f->ctx, bytes, &args.workspace), LLMK_OK);
    if (llmk_linear(f->ctx, f->queue, &args, NULL) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    assert_int_equal(
        clEnqueueReadBuffer(f->queue, by, CL_TRUE, 0, m * w->n * sizeof *y, y, 0, NULL, NULL),
        CL_SUCCESS);
    llmk_workspace_free(args.workspace);
    clReleaseMemObject(bx);
    clReleaseMemObject(by);
}

/* Column c of W holds code c - 128 in every row; row r of x has one element of 127, which makes the
 * scale 1, one of r - 64, and zeros. */
static void test_codes(void **state)
{
    enum { M = 128, N = 20, K = 257 };
    (void)state;
    int8_t *codes = malloc((size_t)N * K);
    float *x = malloc(sizeof *x * M * K), *y = malloc(sizeof *y * M * N);
    for (unsigned i = 0; i < N * K; i++)
        codes[i] = (int8_t)(i % K < 256 ? (int)(i % K) - 128 : 0);
    for (size_t v = 0; v < VARIANTS; v++) {
        fixture f;
        if (open_fixture(&f, variants[v])) {
            llmk_weights *w = make_weights(&f, codes, N, K);
            for (unsigned at = 0; at < 256; at += 37) {
                memset(x, 0, sizeof *x * M * K);
                for (unsigned r = 0; r < M; r++) {
                    x[r * K + 256] = 127;
                    x[r * K + (at + r) % 256] = (float)r - 64;
                }
                multiply(&f, w, x, M, y);
                for (unsigned i = 0; i < M * N; i++) {
                    const unsigned r = i / N;
                    assert_true(y[i] == ((float)r - 64) * ((float)((at + r) % 256) - 128));
                }
            }
            llmk_weights_free(w);
        }
        close_fixture(&f);
    }
    free(codes);
    free(x);
    free(y);
}

/* -128 times 127, as often as the largest K allows; the emulator is slow. */
static void test_largest_sum(void **state)
{
    (void)state;
    const uint64_t most = 131072;
    int8_t *codes = malloc(most);
    float *x = malloc(sizeof *x * most);
    memset(codes, -128, most);
    for (uint64_t i = 0; i < most; i++)
        x[i] = 127;
    for (size_t v = 0; v < VARIANTS; v++) {
        fixture f;
        if (open_fixture(&f, variants[v])) {
            const uint64_t k = strstr(variants[v], "emulated") ? 4096 : most;
            llmk_weights *w = make_weights(&f, codes, 1, k);
            float y;
            multiply(&f, w, x, 1, &y);
            assert_true(y == -128.0f * 127.0f * (float)k);
            llmk_weights_free(w);
        }
        close_fixture(&f);
    }
    free(codes);
    free(x);
}

static void refuse(fixture *f, const llmk_weights_desc *desc, const char *word)
{
    llmk_weights *w = NULL;
    if (llmk_weights_create(f->ctx, desc, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    cl_mem buffer =
        clCreateBuffer(llmk_context_cl_context(f->ctx), 0, (size_t)desc->k * 4, NULL, NULL);
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_vector(buffer, LLMK_F16, desc->k);
    args.weights = w;
    args.y =
        llmk_matrix_strided(buffer, (desc->k * 2 + 15) / 16 * 16, LLMK_F16, 1, desc->n, desc->n);
    args.y.rank = 1;
    args.y.dim[0] = desc->n;
    args.y.stride[0] = 1;
    args.flags = LLMK_LINEAR_W8A8;
    const llmk_status status = llmk_linear(f->ctx, f->queue, &args, NULL);
    if (status != LLMK_INVALID_ARGUMENT && status != LLMK_INVALID_SHAPE)
        fail_msg("%s: %s", word, llmk_status_string(status));
    if (!strstr(llmk_error_message(), word))
        fail_msg("%s is not in: %s", word, llmk_error_message());
    clReleaseMemObject(buffer);
    llmk_weights_free(w);
}

static void test_refusals(void **state)
{
    fixture *f = *state;
    static uint8_t data[4 * 64];
    static float scales[64];
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.n = 1;
    desc.k = 64;
    desc.data = (llmk_source){.host = data, .size = 64};
    desc.scales = (llmk_source){.host = scales, .size = sizeof scales};
    desc.format = LLMK_FORMAT_W8;
    refuse(f, &desc, "workspace is NULL");
    desc.group_size = 32;
    refuse(f, &desc, "2 scales a row");
    desc.group_size = 0;
    desc.format = LLMK_FORMAT_W4;
    refuse(f, &desc, "the weights are u4");
    desc.scales = (llmk_source){0};
    desc.format = LLMK_FORMAT_F16;
    desc.data.size = sizeof data;
    refuse(f, &desc, "the weights are f16");
    int8_t *codes = calloc(131073, 1);
    desc.format = LLMK_FORMAT_W8;
    desc.k = 131073;
    desc.data = (llmk_source){.host = codes, .size = 131073};
    desc.scales = (llmk_source){.host = scales, .size = sizeof scales};
    refuse(f, &desc, "131072");
    free(codes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_largest_sum),
        cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
    };
    unsetenv("LLMK_VARIANT"); /* it would win over the variants that are forced here */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
