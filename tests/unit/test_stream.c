/*
 * test_stream.c - the linear layer for few rows of x on NVIDIA's matrix unit, where there is one,
 * and emulated: every code less every zero exactly; activations at the edges of their types; rows
 * that do not depend on how many there are.
 */
#include "core/half.h"
#include "core/weights.h"
#include "support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 16

static const char *const variants[] = {"linear:emulated-nv-stream", "linear:nv-stream"};

/* y[m, n] = x[m, k] times the weights. */
static void multiply(fixture *f, const llmk_weights *w, llmk_dtype type, const float *x, uint64_t m,
                     float *y)
{
    cl_context cl = llmk_context_cl_context(f->ctx);
    uint16_t *halves = malloc(m * w->k * sizeof *halves);
    for (uint64_t i = 0; i < m * w->k; i++)
        halves[i] = type == LLMK_F16 ? llmk_f32_to_f16(x[i]) : llmk_f32_to_bf16(x[i]);
    cl_mem bx = clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, m * w->k * sizeof *halves, halves, NULL);
    cl_mem by = clCreateBuffer(cl, 0, m * w->n * sizeof *y, NULL, NULL);
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_matrix(bx, type, m, w->k);
    args.weights = (llmk_weights *)w;
    args.y = llmk_matrix(by, LLMK_F32, m, w->n);
    if (llmk_linear(f->ctx, f->queue, &args, NULL) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    assert_int_equal(
        clEnqueueReadBuffer(f->queue, by, CL_TRUE, 0, m * w->n * sizeof *y, y, 0, NULL, NULL),
        CL_SUCCESS);
    clReleaseMemObject(bx);
    clReleaseMemObject(by);
    free(halves);
}

static llmk_weights *create(fixture *f, const llmk_weights_desc *desc)
{
    llmk_weights *w = NULL;
    if (llmk_weights_create_as(f->ctx, desc, LLMK_CLASS_NV, 0, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    return w;
}

/* ---- Codes: column k of every row holds the k-th, row n's zero is the n-th, the scale 1 ---- */

static void check_codes(fixture *f, llmk_dtype type, uint32_t bits)
{
    const uint64_t count = UINT64_C(1) << bits;
    uint8_t *codes = malloc(count * count * bits / 8);
    int8_t *zeros = malloc(count);
    uint16_t *scales = malloc(count * sizeof *scales);
    float *x = malloc(MAX_ROWS * count * sizeof *x), *y = malloc(MAX_ROWS * count * sizeof *y);
    for (uint64_t n = 0; n < count; n++) {
        zeros[n] = (int8_t)((int)n - (int)count / 2);
        scales[n] = llmk_f32_to_f16(1);
        for (uint64_t i = 0; i < count * bits / 8; i++)
            codes[n * count * bits / 8 + i] = (uint8_t)(bits == 8 ? i : 2 * i | (2 * i + 1) << 4);
    }
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_COMPRESSED_TENSORS;
    desc.bits = bits;
    desc.n = desc.k = count;
    desc.scale_dtype = LLMK_F16;
    desc.zero_dtype = LLMK_I8;
    desc.data = (llmk_source){.host = codes, .size = count * count * bits / 8};
    desc.scales = (llmk_source){.host = scales, .size = count * sizeof *scales};
    desc.zeros = (llmk_source){.host = zeros, .size = count};
    llmk_weights *w = create(f, &desc);
    for (uint64_t first = 0; first < count; first += MAX_ROWS) {
        for (uint64_t i = 0; i < MAX_ROWS * count; i++)
            x[i] = i / count + first == i % count;
        multiply(f, w, type, x, MAX_ROWS, y);
        for (uint64_t i = 0; i < MAX_ROWS * count; i++)
            assert_true(y[i] == (float)(first + i / count) - (float)(i % count));
    }
    llmk_weights_free(w);
    free(codes);
    free(zeros);
    free(scales);
    free(x);
    free(y);
}

static void test_codes(void **state)
{
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        fixture f;
        if (open_fixture(&f, variants[v]))
            for (uint32_t bits = 4; bits <= 8; bits += 4) {
                check_codes(&f, LLMK_F16, bits);
                check_codes(&f, LLMK_BF16, bits);
            }
        close_fixture(&f);
    }
}

/* ---- Random weights of 4 bits in groups of 64 ---- */

enum { N = 40, K = 320, GROUP = 64 };

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

static llmk_weights *create_random(fixture *f)
{
    uint8_t codes[N][K / 2], zeros[N][K / GROUP];
    float scales[N][K / GROUP];
    uint32_t state = 7;
    for (unsigned n = 0; n < N; n++) {
        for (unsigned i = 0; i < K / 2; i++)
            codes[n][i] = (uint8_t)next(&state);
        for (unsigned g = 0; g < K / GROUP; g++) {
            zeros[n][g] = next(&state) & 15;
            scales[n][g] = (float)(1 + next(&state) % 8) / 64;
        }
    }
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_W4;
    desc.n = N;
    desc.k = K;
    desc.group_size = GROUP;
    desc.data = (llmk_source){.host = codes, .size = sizeof codes};
    desc.scales = (llmk_source){.host = scales, .size = sizeof scales};
    desc.zeros = (llmk_source){.host = zeros, .size = sizeof zeros};
    return create(f, &desc);
}

/* Rows with the largest finite values, infinities and NaN come out as the reference says, and leave
 * their neighbours alone. */
static void test_edges(void **state)
{
    static const float edges[MAX_ROWS] = {6e4f,  -6e4f, INFINITY, 1, -INFINITY, 1, NAN, 1,
                                          65504, 1e-7f, 1,        0, INFINITY,  1, NAN, -65504};
    (void)state;
    float x[MAX_ROWS * K], y[MAX_ROWS * N], expected[MAX_ROWS * N];
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        for (llmk_dtype type = LLMK_F16; type <= LLMK_BF16; type++) {
            fixture f, ref;
            if (open_fixture(&f, variants[v]) && open_fixture(&ref, "linear:ref")) {
                uint32_t seed = 3;
                for (unsigned i = 0; i < MAX_ROWS * K; i++)
                    x[i] = (float)(int)(next(&seed) % 257) / 64 - 2;
                for (unsigned m = 0; m < MAX_ROWS; m++)
                    x[m * K + m * 19 % K] = edges[m];
                llmk_weights *w = create_random(&f), *same = create_random(&ref);
                multiply(&f, w, type, x, MAX_ROWS, y);
                multiply(&ref, same, type, x, MAX_ROWS, expected);
                for (unsigned i = 0; i < MAX_ROWS * N; i++) {
                    const float e = expected[i];
                    if (isnan(e)   ? !isnan(y[i])
                        : isinf(e) ? y[i] != e
                                   : !(fabsf(y[i] - e) <= 1e-6f * (fabsf(edges[i / N]) + 1000)))
                        fail_msg("y[%u, %u] is %g; expected %g", i / N, i % N, (double)y[i],
                                 (double)e);
                }
                llmk_weights_free(w);
                llmk_weights_free(same);
                close_fixture(&ref);
            }
            close_fixture(&f);
        }
}

/* A row has the bits that it has among others, up to eight and from nine on. */
static void test_invariance(void **state)
{
    (void)state;
    float x[MAX_ROWS * K], all[MAX_ROWS * N], few[MAX_ROWS * N];
    uint32_t seed = 5;
    for (unsigned i = 0; i < MAX_ROWS * K; i++)
        x[i] = (float)(int)(next(&seed) % 4001) / 1000 - 2;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        fixture f;
        if (open_fixture(&f, variants[v])) {
            llmk_weights *w = create_random(&f);
            for (unsigned most = 8; most <= MAX_ROWS; most += 8) {
                multiply(&f, w, LLMK_F16, x, most, all);
                for (unsigned m = most - 7; m < most; m += 3)
                    for (unsigned first = 0; first + m <= most; first += 5) {
                        multiply(&f, w, LLMK_F16, x + first * K, m, few);
                        assert_memory_equal(few, all + first * N, m * N * sizeof *few);
                    }
            }
            llmk_weights_free(w);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_invariance),
    };
    unsetenv("LLMK_VARIANT"); /* it would win over the variants that are forced here */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
