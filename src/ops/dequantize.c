/* dequantize.c - codes and scales to values. */
#include "ops/quant.h"

#include <math.h>
#include <stdio.h>

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *problem)
{
    llmk_dequantize_args a;
    LLMK_TRY(llmk_take_args("dequantize", args, sizeof a, sizeof a, &a));
    llmk_checker c = llmk_check_begin(ctx, "dequantize", dry);
    llmk_check_flags(&c, a.flags, 0);
    return llmk_check_quant(&c, "y", &a.y, LLMK_OUTPUT, &a.q, &a.scale, &a.zero, a.scheme,
                            a.group_size, problem);
}

static bool is_empty(const void *problem)
{
    return ((const llmk_quant_problem *)problem)->x.count == 0;
}

static void key(const void *problem, char *text, size_t size)
{
    const llmk_quant_problem *p = problem;
    llmk_join(text, size, "y=", llmk_dtype_name(p->x.dtype),
              " scheme=", llmk_digits((uint32_t)p->scheme),
              llmk_quant_one_scale(p) ? "" : " odd-groups", NULL);
}

static llmk_status ref_launch(llmk_launch *l, const void *problem)
{
    const llmk_quant_problem *p = problem;
    const size_t local = llmk_quant_local(l->ctx);
    llmk_kernel k = llmk_kernel_open(l, "dequantize/dequantize_ref.cl", "", "dequantize");
    llmk_arg_view(&k, &p->q);
    llmk_arg_view(&k, &p->scale);
    llmk_arg_view(&k, &p->zero);
    llmk_arg_view(&k, &p->x);
    llmk_arg_u32(&k, p->x.dtype);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_u64(&k, p->group_size);
    llmk_arg_u32(&k, p->scheme);
    return llmk_kernel_enqueue(&k, (size_t[]){(p->x.count + local - 1) / local, 1, 1},
                               (size_t[]){local, 1, 1});
}

static llmk_status portable_launch(llmk_launch *l, const void *problem)
{
    const llmk_quant_problem *p = problem;
    const size_t local = llmk_quant_local(l->ctx);
    const uint64_t chunks = p->x.nrows * ((p->x.ncols + 7) / 8);
    char defines[64];
    llmk_join(defines, sizeof defines, "-DY=", llmk_dtype_name(p->x.dtype),
              " -DQ=", llmk_dtype_name(p->q.dtype), NULL);
    llmk_kernel k = llmk_kernel_open(l, "dequantize/dequantize_portable.cl", defines, "dequantize");
    llmk_arg_view(&k, &p->q);
    llmk_arg_view(&k, &p->scale);
    llmk_arg_view(&k, &p->zero);
    llmk_arg_view(&k, &p->x);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_u64(&k, p->group_size);
    llmk_arg_u32(&k, p->scheme);
    llmk_arg_u32(&k, llmk_quant_one_scale(p));
    llmk_arg_u32(&k, llmk_quant_wide(p));
    return llmk_kernel_enqueue(&k, (size_t[]){(chunks + local - 1) / local, 1, 1},
                               (size_t[]){local, 1, 1});
}

/* Any codes and scales will do: those that the host makes of random values. */
static llmk_status self_test(llmk_trial *t, const void *problem)
{
    enum {
        ROWS = LLMK_QUANT_TEST_ROWS,
        COLS = LLMK_QUANT_TEST_COLS,
        PITCH = LLMK_QUANT_TEST_PITCH
    };
    const llmk_quant_problem *p = problem;
    const bool int4 = llmk_quant_is_int4(p->scheme);
    const uint64_t group_size = !int4 ? 0 : llmk_quant_one_scale(p) ? 32 : 20;
    const uint64_t groups = int4 ? (COLS + group_size - 1) / group_size : 1;
    const uint64_t scales = p->scheme == LLMK_QUANT_INT8_TENSOR ? 1 : ROWS * groups;
    const size_t row_bytes = int4 ? COLS / 2 : COLS, pitch = int4 ? PITCH / 2 : PITCH;

    const float *values;
    llmk_trial_input(t, LLMK_F32, ROWS, COLS, 1, 3.0f, &values);
    const llmk_tensor y = llmk_trial_output(t, p->x.dtype, ROWS, PITCH);
    if (t->status != LLMK_OK)
        return t->status;
    uint8_t packed[LLMK_QUANT_TEST_COUNT], codes[ROWS * PITCH] = {0}, zero[LLMK_QUANT_TEST_COUNT];
    float scale[LLMK_QUANT_TEST_COUNT], restored[LLMK_QUANT_TEST_COUNT];
    LLMK_TRY(llmk_quantize_host(p->scheme, ROWS, COLS, group_size, values, packed, scale, zero));
    LLMK_TRY(
        llmk_dequantize_host(p->scheme, ROWS, COLS, group_size, packed, scale, zero, restored));
    for (size_t r = 0; r < ROWS; r++)
        memcpy(codes + r * pitch, packed + r * row_bytes, row_bytes);

    llmk_dequantize_args a = LLMK_INIT(llmk_dequantize_args);
    a.scheme = p->scheme;
    a.group_size = group_size;
    a.q = llmk_matrix_strided(llmk_trial_buffer(t, codes, ROWS * pitch), 0,
                              int4 ? LLMK_U4 : LLMK_I8, ROWS, COLS, PITCH);
    cl_mem scale_buffer = llmk_trial_buffer(t, scale, scales * sizeof *scale);
    a.scale = int4 ? llmk_matrix(scale_buffer, LLMK_F32, ROWS, groups)
                   : llmk_vector(scale_buffer, LLMK_F32, scales);
    if (p->scheme == LLMK_QUANT_INT4_ASYMMETRIC)
        a.zero = llmk_matrix(llmk_trial_buffer(t, zero, scales), LLMK_U8, ROWS, groups);
    a.y = llmk_matrix_strided(y.buffer, 0, p->x.dtype, ROWS, COLS, PITCH);
    llmk_trial_run(t, &a);

    double expected[ROWS * PITCH];
    for (size_t i = 0; i < LLMK_COUNT(expected); i++)
        expected[i] = i % PITCH < COLS ? (double)restored[i / PITCH * COLS + i % PITCH] : NAN;
    llmk_trial_compare(t, "y", &y, expected, 0, 0);
    return t->status;
}

static const llmk_variant variants[] = {
    {"portable", llmk_quant_portable_supports, portable_launch},
    {"ref", llmk_any_supported, ref_launch},
};

const llmk_operator llmk_operator_dequantize = {
    .id = LLMK_OP_DEQUANTIZE,
    .name = "dequantize",
    .problem_size = sizeof(llmk_quant_problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
};

llmk_status llmk_dequantize(llmk_context *ctx, cl_command_queue queue,
                            const llmk_dequantize_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_dequantize, ctx, queue, args, events);
}
