/* test_full_moe.c - experts that have more than 2^31 weights together, and more than 2^30 bytes in
 * a buffer: all have the same ones, so that rows of the last expert must be those of the first. */
#include "core/weights.h"
#include "support/device.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 1024, OUTPUTS = 1024, DEPTH = 2112, ROWS = 5 };

static void test_large_experts(void **state)
{
    fixture *f = *state;
    const size_t code_bytes = (size_t)OUTPUTS * DEPTH / 2, groups = DEPTH / 32;
    uint8_t *codes = malloc(code_bytes);
    float *scales = malloc(OUTPUTS * groups * sizeof *scales);
    static llmk_expert_source sources[EXPERTS];
    assert_true(codes && scales);
    for (size_t i = 0; i < code_bytes; i++)
        codes[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < OUTPUTS * groups; i++)
        scales[i] = (float)(i % 7 + 1) / 64;
    for (size_t e = 0; e < EXPERTS; e++) {
        sources[e].data = (llmk_source){.host = codes, .size = code_bytes};
        sources[e].scales =
            (llmk_source){.host = scales, .size = OUTPUTS * groups * sizeof *scales};
    }
    llmk_weights_desc d = LLMK_INIT(llmk_weights_desc);
    d.format = LLMK_FORMAT_W4;
    d.n = OUTPUTS;
    d.k = DEPTH;
    d.group_size = 32;
    d.experts = EXPERTS;
    d.expert_sources = sources;
    llmk_weights *w = NULL;
    const llmk_status status = llmk_weights_create(f->ctx, &d, &w);
    free(codes);
    free(scales);
    if (status == LLMK_OUT_OF_DEVICE_MEMORY)
        skip();
    assert_int_equal(status, LLMK_OK);
    assert_true(w->n * w->k * w->experts > (uint64_t)1 << 31);

    /* One row of x for each of the first, a middle and the last expert; two for the last. */
    static int32_t offsets[EXPERTS + 1];
    for (int e = 0; e <= EXPERTS; e++)
        offsets[e] = (e > 0) + (e > 1) + (e > 700) + 2 * (e > EXPERTS - 1);
    static float x[ROWS * DEPTH], y[ROWS * OUTPUTS];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)(i % DEPTH % 13) / 8 - 0.5f;
    cl_context cl = llmk_context_cl_context(f->ctx);
    const cl_mem_flags copy = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
    cl_mem bx = clCreateBuffer(cl, copy, sizeof x, x, NULL);
    cl_mem by = clCreateBuffer(cl, CL_MEM_READ_WRITE, sizeof y, NULL, NULL);
    cl_mem bo = clCreateBuffer(cl, copy, sizeof offsets, offsets, NULL);
    llmk_grouped_linear_args a = LLMK_INIT(llmk_grouped_linear_args);
    uint64_t bytes = 0;
    a.x = llmk_matrix(bx, LLMK_F32, ROWS, DEPTH);
    a.weights = w;
    a.offsets = llmk_vector(bo, LLMK_I32, EXPERTS + 1);
    a.y = llmk_matrix(by, LLMK_F32, ROWS, OUTPUTS);
    assert_int_equal(llmk_grouped_linear_workspace_size(f->ctx, &a, &bytes), LLMK_OK);
    assert_int_equal(llmk_workspace_create(f->ctx, bytes, &a.workspace), LLMK_OK);
    assert_int_equal(llmk_grouped_linear(f->ctx, f->queue, &a, NULL), LLMK_OK);
    assert_int_equal(clEnqueueReadBuffer(f->queue, by, CL_TRUE, 0, sizeof y, y, 0, NULL, NULL),
                     CL_SUCCESS);
    for (size_t row = 1; row < ROWS; row++)
        assert_memory_equal(y, y + row * OUTPUTS, OUTPUTS * sizeof *y);
    assert_true(y[0] == y[0] && y[0] != 0);
    llmk_workspace_free(a.workspace);
    llmk_weights_free(w);
    clReleaseMemObject(bx);
    clReleaseMemObject(by);
    clReleaseMemObject(bo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_large_experts, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
