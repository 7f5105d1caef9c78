/* test_batch_invariant.c - with LLMK_LINEAR_BATCH_INVARIANT a row of y has the same bits whatever M
 * is. Prints the variant that each M uses, and the one without the flag. */
#include "core/weights.h"
#include "reference/linear_reference.h"
#include "support/device.h"
#include "support/rng.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t row_counts[] = {1, 8, 9, 16, 17, 64, 65, 512};
#define ROW_COUNTS (sizeof row_counts / sizeof *row_counts)
#define MOST_ROWS  512

typedef struct setting {
    const char *name, *variant; /* NULL: the device's own choice */
    llmk_format format;
    uint64_t n, k, group, rows; /* rows: the most; the emulator is slow */
    llmk_dtype x;
    llmk_layout_class layouts;
} setting;

static const setting settings[] = {
    {"f32", NULL, LLMK_FORMAT_F32, 70, 519, 0, 512, LLMK_F32, LLMK_CLASS_OF_DEVICE},
    {"f16", NULL, LLMK_FORMAT_F16, 96, 1048, 0, 512, LLMK_F16, LLMK_CLASS_OF_DEVICE},
    {"bf16", NULL, LLMK_FORMAT_BF16, 33, 264, 0, 512, LLMK_BF16, LLMK_CLASS_OF_DEVICE},
    {"w8", NULL, LLMK_FORMAT_W8, 70, 1032, 0, 512, LLMK_F16, LLMK_CLASS_OF_DEVICE},
    {"w4, groups of 128", NULL, LLMK_FORMAT_W4, 70, 1032, 128, 512, LLMK_F16, LLMK_CLASS_OF_DEVICE},
    {"q4_1", NULL, LLMK_FORMAT_GGUF_Q4_1, 70, 1056, 0, 512, LLMK_F16, LLMK_CLASS_OF_DEVICE},
    {"w4 on the emulated matrix unit", "linear:emulated-nv-packed", LLMK_FORMAT_W4, 33, 200, 64, 65,
     LLMK_F16, LLMK_CLASS_NV},
    {"w4 on the emulated matrix unit, wide tiles", "linear:emulated-nv-packed", LLMK_FORMAT_W4, 456,
     256, 64, 65, LLMK_F16, LLMK_CLASS_NV},
    {"w8 on the emulated matrix unit, wide tiles", "linear:emulated-nv-packed", LLMK_FORMAT_W8, 136,
     160, 0, 65, LLMK_F16, LLMK_CLASS_NV},
    {"f16 on the emulated matrix unit, plain rows", "linear:emulated-nv", LLMK_FORMAT_F16, 136, 160,
     0, 17, LLMK_F16, LLMK_CLASS_OF_DEVICE},
    {"f16 on the emulated matrix unit", "linear:emulated-nv", LLMK_FORMAT_F16, 33, 200, 0, 17,
     LLMK_F16, LLMK_CLASS_OF_DEVICE},
};

static const char *chosen(llmk_context *ctx, const llmk_linear_args *args)
{
    static llmk_variant_info infos[64];
    size_t count = 0;
    assert_int_equal(llmk_explain(ctx, LLMK_OP_LINEAR, args, infos, LLMK_COUNT(infos), &count),
                     LLMK_OK);
    for (size_t i = 0; i < count && i < LLMK_COUNT(infos); i++)
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN)
            return infos[i].name;
    return "none";
}

static llmk_weights *make_weights(llmk_context *ctx, const setting *s)
{
    linear_weights source = {
        .format = s->format, .n = s->n, .k = s->k, .group = s->group, .scale_type = LLMK_F16};
    linear_weights_set_sizes(&source);
    source.data = calloc(1, source.data_bytes);
    source.scales = calloc(1, source.scales_bytes + 1);
    source.zeros = calloc(1, source.zeros_bytes + 1);
    assert_true(linear_weights_fill(&source, 7));
    const llmk_weights_desc desc = linear_weights_describe(&source);
    llmk_weights *w = NULL;
    if (llmk_weights_create_as(ctx, &desc, s->layouts, 0, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    free(source.data);
    free(source.scales);
    free(source.zeros);
    return w;
}

/* Numbers of either type are as good as any: exponents near 1, all mantissas. */
static void fill(uint8_t *bytes, size_t elements, llmk_dtype dtype)
{
    rng random = {11};
    for (size_t i = 0; i < elements; i++) {
        const uint32_t r = (uint32_t)rng_next(&random);
        const uint32_t sign = r >> 31;
        if (dtype == LLMK_F32) {
            const uint32_t v = sign << 31 | (126 + (r & 1)) << 23 | (r >> 5 & 0x7fffff);
            memcpy(bytes + 4 * i, &v, 4);
        } else {
            const unsigned bits = dtype == LLMK_F16 ? 10 : 7, one = dtype == LLMK_F16 ? 15 : 127;
            const uint16_t v =
                (uint16_t)(sign << 15 | (one - (r & 1)) << bits | (r >> 5 & ((1u << bits) - 1)));
            memcpy(bytes + 2 * i, &v, 2);
        }
    }
}

static void test_setting(void **state)
{
    const setting *s = *state;
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.variant = s->variant;
    llmk_context *ctx = NULL;
    if (llmk_context_create(&options, &ctx) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    if (s->variant && !can_force(ctx, s->variant)) {
        llmk_context_free(ctx);
        skip();
    }
    cl_command_queue queue = case_queue_new(ctx);
    llmk_weights *w = make_weights(ctx, s);
    const size_t x_row = s->k * (s->x == LLMK_F32 ? 4 : 2), y_row = s->n * 4;
    uint8_t *x = malloc(MOST_ROWS * x_row), *first = malloc(MOST_ROWS * y_row),
            *y = malloc(MOST_ROWS * y_row);
    assert_true(x && first && y);
    fill(x, MOST_ROWS * s->k, s->x);
    cl_context cl = llmk_context_cl_context(ctx);
    cl_mem xb = clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, MOST_ROWS * x_row, x, NULL);
    cl_mem yb = clCreateBuffer(cl, CL_MEM_READ_WRITE, MOST_ROWS * y_row, NULL, NULL);
    print_message("%s:", s->name);
    uint64_t known = 0; /* rows of `first` */
    for (size_t i = 0; i < ROW_COUNTS && row_counts[i] <= s->rows; i++) {
        const uint64_t m = row_counts[i];
        llmk_linear_args args = LLMK_INIT(llmk_linear_args);
        args.x = llmk_matrix(xb, s->x, m, s->k);
        args.weights = w;
        args.y = llmk_matrix(yb, LLMK_F32, m, s->n);
        const char *free_choice = s->variant ? "" : chosen(ctx, &args);
        print_message(" m=%llu %s", (unsigned long long)m, free_choice);
        args.flags = LLMK_LINEAR_BATCH_INVARIANT;
        print_message("%s%s%s", *free_choice ? " (invariant: " : "", chosen(ctx, &args),
                      *free_choice ? ")" : "");
        if (llmk_linear(ctx, queue, &args, NULL) != LLMK_OK)
            fail_msg("%s", llmk_error_message());
        assert_int_equal(clEnqueueReadBuffer(queue, yb, CL_TRUE, 0, m * y_row, y, 0, NULL, NULL),
                         CL_SUCCESS);
        assert_memory_equal(y, first, known * y_row);
        memcpy(first, y, m * y_row);
        known = m;
    }
    print_message("\n");
    /* The same bits again, and at other places among other rows. */
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    const uint64_t m = known > 9 ? 9 : known;
    args.x = llmk_matrix(xb, s->x, m, s->k);
    args.x.offset = (known - m) / 8 * 8 * x_row;
    args.weights = w;
    args.y = llmk_matrix(yb, LLMK_F32, m, s->n);
    args.flags = LLMK_LINEAR_BATCH_INVARIANT;
    assert_int_equal(llmk_linear(ctx, queue, &args, NULL), LLMK_OK);
    assert_int_equal(clEnqueueReadBuffer(queue, yb, CL_TRUE, 0, m * y_row, y, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_memory_equal(y, first + (known - m) / 8 * 8 * y_row, m * y_row);
    clReleaseMemObject(xb);
    clReleaseMemObject(yb);
    free(x);
    free(first);
    free(y);
    llmk_weights_free(w);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

int main(void)
{
    enum { COUNT = sizeof settings / sizeof *settings };
    struct CMUnitTest tests[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){settings[i].name, test_setting, NULL, NULL,
                                       (void *)(uintptr_t)&settings[i]};
    return _cmocka_run_group_tests("batch invariant", tests, COUNT, NULL, NULL);
}
