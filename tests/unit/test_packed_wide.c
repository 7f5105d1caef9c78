/*
 * test_packed_wide.c - the linear layer on NVIDIA's matrix unit, where there is one, and emulated,
 * with sums that count in units of their group's scale: groups next to each other whose scales are
 * 0, the smallest and the largest that f16 has, of either sign; rows of x that are 0 in some.
 */
#include "llmk_cmocka.h"

#include "cases/case.h"
#include "core/half.h"
#include "core/weights.h"
#include "reference/linear_reference.h"
#include "support/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N 456
#define K 512
#define M 40

typedef struct variant {
    const char *name;
    uint32_t group;
} variant;

static const uint16_t scales[] = {0,      1,      0x7bff, 0x8000, 0xbc00, 0x0400,
                                  0xfbff, 0x3c00, 0,      0,      0x8001};

static linear_weights make_weights(uint32_t group)
{
    linear_weights w = {.format = LLMK_FORMAT_W4, .n = N, .k = K, .group = group};
    w.scale_type = LLMK_F16;
    linear_weights_set_sizes(&w);
    w.data = calloc(1, w.data_bytes);
    w.scales = calloc(1, w.scales_bytes + 1);
    w.zeros = calloc(1, w.zeros_bytes + 1);
    assert_true(w.data && w.scales && w.zeros && linear_weights_fill(&w, 3));
    rng random = {5};
    for (size_t i = 0; i < (size_t)N * (K / group); i++)
        ((uint16_t *)w.scales)[i] = scales[rng_next(&random) % (sizeof scales / sizeof *scales)];
    return w;
}

/* Elements of f16; group g of row r is 0 where the bits of r and g say so. */
static void fill_x(uint16_t *halves, double *x, uint32_t group)
{
    rng random = {7};
    for (size_t i = 0; i < (size_t)M * K; i++) {
        const size_t row = i / K, g = i % K / group;
        const float v = (float)((int)(rng_next(&random) % 4097) - 2048) / 2048.0f;
        halves[i] = row >> g % 4 & 1 ? 0 : llmk_f32_to_f16(v);
        x[i] = (double)llmk_f16_to_f32(halves[i]);
    }
}

static void test_scales(void **state)
{
    const variant *v = *state;
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.variant = v->name;
    llmk_context *ctx = NULL;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    if (strstr(v->name, ":emulated") ? ctx->caps.vendor == LLMK_VENDOR_NVIDIA
                                     : ctx->caps.vendor != LLMK_VENDOR_NVIDIA) {
        llmk_context_free(ctx);
        skip();
    }
    cl_command_queue queue = case_queue_new(ctx);
    cl_context cl = llmk_context_cl_context(ctx);
    linear_weights source = make_weights(v->group);
    const llmk_weights_desc desc = linear_weights_describe(&source);
    llmk_weights *w = NULL;
    if (llmk_weights_create_as(ctx, &desc, LLMK_CLASS_NV, 0, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());

    uint16_t *halves = calloc((size_t)M * K, sizeof *halves);
    double *x = calloc((size_t)M * K, sizeof *x), *exact = calloc((size_t)M * N, sizeof *exact);
    double *bound = calloc((size_t)M * N, sizeof *bound);
    float *y = calloc((size_t)M * N, sizeof *y);
    assert_true(halves && x && exact && bound && y);
    fill_x(halves, x, v->group);
    cl_mem xb = clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, (size_t)M * K * 2, halves, NULL);
    cl_mem yb = clCreateBuffer(cl, CL_MEM_READ_WRITE, (size_t)M * N * 4, NULL, NULL);
    const uint64_t rows[] = {20, M}; /* a tile for either */
    for (size_t i = 0; i < 2; i++) {
        llmk_linear_args args = LLMK_INIT(llmk_linear_args);
        args.x = llmk_matrix(xb, LLMK_F16, rows[i], K);
        args.weights = w;
        args.y = llmk_matrix(yb, LLMK_F32, rows[i], N);
        if (llmk_linear(ctx, queue, &args, NULL) != LLMK_OK)
            fail_msg("%s", llmk_error_message());
        assert_int_equal(
            clEnqueueReadBuffer(queue, yb, CL_TRUE, 0, rows[i] * N * 4, y, 0, NULL, NULL),
            CL_SUCCESS);
        const linear_problem_f64 p = {
            .w = &source, .m = rows[i], .x = x, .y_type = LLMK_F32, .y = exact, .bound = bound};
        assert_true(linear_reference(&p));
        for (size_t j = 0; j < rows[i] * N; j++)
            if (!(fabs((double)y[j] - exact[j]) <= bound[j]))
                fail_msg("m=%zu n=%zu: %g, not %g +- %g", j / N, j % N, (double)y[j], exact[j],
                         bound[j]);
    }
    clReleaseMemObject(xb);
    clReleaseMemObject(yb);
    llmk_weights_free(w);
    free(halves);
    free(x);
    free(exact);
    free(bound);
    free(y);
    free(source.data);
    free(source.scales);
    free(source.zeros);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

int main(void)
{
    static variant emulated = {"linear:emulated-nv-packed", 64},
                   emulated_64 = {"linear:emulated-nv-packed@64x448", 128},
                   nv = {"linear:nv-packed", 64}, nv_64 = {"linear:nv-packed@64x448", 128};
    const struct CMUnitTest tests[] = {
        {"emulated", test_scales, NULL, NULL, &emulated},
        {"emulated, 64 rows", test_scales, NULL, NULL, &emulated_64},
        {"nv-packed", test_scales, NULL, NULL, &nv},
        {"nv-packed, 64 rows", test_scales, NULL, NULL, &nv_64},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
