/* quantize.c - x to codes and scales. */
#include "ops/quant.h"

#include <stdio.h>

/* ---- Arguments ---- */

static uint64_t bytes_of(llmk_quant_scheme scheme)
{
    /* A range, two floats, of each work-group. */
    return scheme == LLMK_QUANT_INT8_TENSOR ? 2 * sizeof(cl_float) * LLMK_PARTIALS : 0;
}

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *problem)
{
    llmk_quantize_args a;
    llmk_quant_problem *p = problem;
    LLMK_TRY(llmk_take_args("quantize", args, sizeof a, sizeof a, &a));
    llmk_checker c = llmk_check_begin(ctx, "quantize", dry);
    llmk_check_flags(&c, a.flags, 0);
    llmk_check_workspace(&c, a.workspace, bytes_of(a.scheme));
    p->workspace = bytes_of(a.scheme) > 0 ? a.workspace : NULL;
    return llmk_check_quant(&c, "x", &a.x, LLMK_INPUT, &a.q, &a.scale, &a.zero, a.scheme,
                            a.group_size, p);
}

static bool is_empty(const void *problem)
{
    return ((const llmk_quant_problem *)problem)->x.count == 0;
}

static void key(const void *problem, char *text, size_t size)
{
    const llmk_quant_problem *p = problem;
    llmk_join(text, size, "x=", llmk_dtype_name(p->x.dtype),
              " scheme=", llmk_digits((uint32_t)p->scheme), NULL);
}

static llmk_workspace *workspace(const void *problem)
{
    return ((const llmk_quant_problem *)problem)->workspace;
}

static uint64_t workspace_bytes(const void *problem)
{
    const llmk_quant_problem *p = problem;
    return bytes_of(p->scheme);
}

static cl_mem workspace_buffer(const llmk_quant_problem *p)
{
    return p->workspace ? p->workspace->buffer : NULL; /* NULL in a dry run */
}

/* ---- ref ---- */

#define REF_FILE "quantize/quantize_ref.cl"

static llmk_status ref_tensor_scale(llmk_launch *l, const llmk_quant_problem *p)
{
    const size_t local = llmk_quant_local(l->ctx);
    llmk_kernel k = llmk_kernel_open(l, REF_FILE, "", "quantize_tensor_range");
    llmk_arg_view(&k, &p->x);
    llmk_arg_u32(&k, p->x.dtype);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_buffer(&k, workspace_buffer(p));
    LLMK_TRY(
        llmk_kernel_enqueue(&k, (size_t[]){LLMK_PARTIALS / local, 1, 1}, (size_t[]){local, 1, 1}));

    k = llmk_kernel_open(l, REF_FILE, "", "quantize_tensor_scale");
    llmk_arg_buffer(&k, workspace_buffer(p));
    llmk_arg_u32(&k, LLMK_PARTIALS);
    llmk_arg_view(&k, &p->scale);
    return llmk_kernel_enqueue(&k, (size_t[]){1, 1, 1}, (size_t[]){1, 1, 1});
}

static llmk_status ref_group_scales(llmk_launch *l, const llmk_quant_problem *p)
{
    const size_t local = llmk_quant_local(l->ctx);
    const uint64_t groups = p->x.nrows * p->row_groups;
    llmk_kernel k = llmk_kernel_open(l, REF_FILE, "", "quantize_group_scales");
    llmk_arg_view(&k, &p->x);
    llmk_arg_u32(&k, p->x.dtype);
    llmk_arg_view(&k, &p->scale);
    llmk_arg_view(&k, &p->zero);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_u64(&k, p->group_size);
    llmk_arg_u64(&k, p->row_groups);
    llmk_arg_u32(&k, p->scheme);
    return llmk_kernel_enqueue(&k, (size_t[]){(groups + local - 1) / local, 1, 1},
                               (size_t[]){local, 1, 1});
}

static llmk_status ref_launch(llmk_launch *l, const void *problem)
{
    const llmk_quant_problem *p = problem;
    const size_t local = llmk_quant_local(l->ctx);
    const uint64_t items = llmk_quant_is_int4(p->scheme) ? p->x.count / 2 : p->x.count;
    LLMK_TRY(p->scheme == LLMK_QUANT_INT8_TENSOR ? ref_tensor_scale(l, p) : ref_group_scales(l, p));
    llmk_kernel k = llmk_kernel_open(l, REF_FILE, "", "quantize_codes");
    llmk_arg_view(&k, &p->x);
    llmk_arg_u32(&k, p->x.dtype);
    llmk_arg_view(&k, &p->q);
    llmk_arg_view(&k, &p->scale);
    llmk_arg_view(&k, &p->zero);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_u64(&k, p->group_size);
    llmk_arg_u32(&k, p->scheme);
    return llmk_kernel_enqueue(&k, (size_t[]){(items + local - 1) / local, 1, 1},
                               (size_t[]){local, 1, 1});
}

/* ---- portable ---- */

#define PORTABLE_FILE "quantize/quantize_portable.cl"

static llmk_status portable_tensor(llmk_launch *l, const llmk_quant_problem *p, const char *defines)
{
    const size_t local = llmk_quant_local(l->ctx), range = 2 * sizeof(cl_float);
    const uint64_t chunks = p->x.nrows * ((p->x.ncols + 7) / 8);
    const uint32_t groups = llmk_quant_stage_groups(l->ctx, chunks);
    llmk_kernel k = llmk_kernel_open(l, PORTABLE_FILE, defines, "quantize_tensor_range");
    llmk_arg_view(&k, &p->x);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_u32(&k, llmk_quant_wide(p));
    llmk_arg_buffer(&k, workspace_buffer(p));
    llmk_arg_local(&k, local * range);
    LLMK_TRY(llmk_kernel_enqueue(&k, (size_t[]){groups, 1, 1}, (size_t[]){local, 1, 1}));

    k = llmk_kernel_open(l, PORTABLE_FILE, defines, "quantize_tensor_codes");
    llmk_arg_view(&k, &p->x);
    llmk_arg_view(&k, &p->q);
    llmk_arg_view(&k, &p->scale);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_u32(&k, llmk_quant_wide(p));
    llmk_arg_buffer(&k, workspace_buffer(p));
    llmk_arg_u32(&k, groups);
    llmk_arg_local(&k, local * range);
    return llmk_kernel_enqueue(&k, (size_t[]){groups, 1, 1}, (size_t[]){local, 1, 1});
}

static llmk_status portable_launch(llmk_launch *l, const void *problem)
{
    const llmk_quant_problem *p = problem;
    char defines[64];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype),
              " -DQ=", llmk_dtype_name(p->q.dtype), NULL);
    if (p->scheme == LLMK_QUANT_INT8_TENSOR)
        return portable_tensor(l, p, defines);

    /* As many items to a group as it has chunks of 8, within the work-group. */
    const size_t local = llmk_quant_local(l->ctx);
    uint32_t team_log2 = 0;
    while (((size_t)1 << team_log2) < local && ((uint64_t)8 << team_log2) < p->group_size)
        team_log2++;
    const uint64_t teams = local >> team_log2, groups = p->x.nrows * p->row_groups;
    llmk_kernel k = llmk_kernel_open(l, PORTABLE_FILE, defines, "quantize_groups");
    llmk_arg_view(&k, &p->x);
    llmk_arg_view(&k, &p->q);
    llmk_arg_view(&k, &p->scale);
    llmk_arg_view(&k, &p->zero);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_u64(&k, p->group_size);
    llmk_arg_u64(&k, p->row_groups);
    llmk_arg_u32(&k, p->scheme);
    llmk_arg_u32(&k, team_log2);
    llmk_arg_u32(&k, llmk_quant_wide(p));
    llmk_arg_local(&k, local * 2 * sizeof(cl_float));
    return llmk_kernel_enqueue(&k, (size_t[]){(groups + teams - 1) / teams, 1, 1},
                               (size_t[]){local, 1, 1});
}

/* ---- Self-test ---- */

static llmk_status self_test(llmk_trial *t, const void *problem)
{
    enum {
        ROWS = LLMK_QUANT_TEST_ROWS,
        COLS = LLMK_QUANT_TEST_COLS,
        PITCH = LLMK_QUANT_TEST_PITCH
    };
    const llmk_quant_problem *p = problem;
    const bool int4 = llmk_quant_is_int4(p->scheme);
    const uint64_t group_size = int4 ? 32 : 0;
    const uint64_t groups = int4 ? (COLS + 31) / 32 : 1;
    const uint64_t scales = p->scheme == LLMK_QUANT_INT8_TENSOR ? 1 : ROWS * groups;
    const uint64_t pitch = int4 ? PITCH / 2 : PITCH; /* bytes */

    const float *padded;
    const llmk_tensor x = llmk_trial_input(t, p->x.dtype, ROWS, PITCH, 1, 3.0f, &padded);
    const llmk_tensor q = llmk_trial_output(t, int4 ? LLMK_U8 : LLMK_I8, ROWS, pitch);
    const llmk_tensor scale = llmk_trial_output(t, LLMK_F32, 1, scales);
    const llmk_tensor zero = llmk_trial_output(t, LLMK_U8, 1, scales);
    if (t->status != LLMK_OK)
        return t->status;

    llmk_quantize_args a = LLMK_INIT(llmk_quantize_args);
    a.scheme = p->scheme;
    a.group_size = group_size;
    a.x = llmk_matrix_strided(x.buffer, 0, p->x.dtype, ROWS, COLS, PITCH);
    a.q = llmk_matrix_strided(q.buffer, 0, int4 ? LLMK_U4 : LLMK_I8, ROWS, COLS, PITCH);
    a.scale = int4 ? llmk_matrix(scale.buffer, LLMK_F32, ROWS, groups)
                   : llmk_vector(scale.buffer, LLMK_F32, scales);
    if (p->scheme == LLMK_QUANT_INT4_ASYMMETRIC)
        a.zero = llmk_matrix(zero.buffer, LLMK_U8, ROWS, groups);
    LLMK_TRY(llmk_workspace_create(t->ctx, bytes_of(p->scheme), &a.workspace));
    llmk_trial_run(t, &a);
    llmk_workspace_free(a.workspace);

    float values[LLMK_QUANT_TEST_COUNT], host_scale[LLMK_QUANT_TEST_COUNT];
    uint8_t codes[LLMK_QUANT_TEST_COUNT], host_zero[LLMK_QUANT_TEST_COUNT];
    for (size_t r = 0; r < ROWS; r++)
        memcpy(values + r * COLS, padded + r * PITCH, COLS * sizeof *values);
    LLMK_TRY(llmk_quantize_host(p->scheme, ROWS, COLS, group_size, values, codes, host_scale,
                                host_zero));
    double expected[ROWS * PITCH];
    const size_t row_bytes = int4 ? COLS / 2 : COLS;
    for (size_t i = 0; i < ROWS * pitch; i++) {
        const size_t row = i / pitch, byte = i % pitch;
        const uint8_t code = byte < row_bytes ? codes[row * row_bytes + byte] : 0xff; /* poison */
        expected[i] = int4 ? code : (int8_t)code;
    }
    llmk_trial_compare(t, "q", &q, expected, 0, 0);
    for (size_t i = 0; i < scales; i++)
        expected[i] = host_scale[i];
    llmk_trial_compare(t, "scale", &scale, expected, 0, 0);
    for (size_t i = 0; i < scales; i++)
        expected[i] = p->scheme == LLMK_QUANT_INT4_ASYMMETRIC ? host_zero[i] : 0xff;
    llmk_trial_compare(t, "zero", &zero, expected, 0, 0);
    return t->status;
}

/* ---- The operator ---- */

static const llmk_variant variants[] = {
    {"portable", llmk_quant_portable_supports, portable_launch},
    {"ref", llmk_any_supported, ref_launch},
};

const llmk_operator llmk_operator_quantize = {
    .id = LLMK_OP_QUANTIZE,
    .name = "quantize",
    .problem_size = sizeof(llmk_quant_problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
    .workspace = workspace,
    .workspace_bytes = workspace_bytes,
};
_Static_assert(sizeof(llmk_quant_problem) <= LLMK_PROBLEM_SIZE, "raise LLMK_PROBLEM_SIZE");

llmk_status llmk_quantize_workspace_size(llmk_context *ctx, const llmk_quantize_args *args,
                                         uint64_t *bytes)
{
    return llmk_operate_workspace_size(&llmk_operator_quantize, ctx, args, bytes);
}

llmk_status llmk_quantize(llmk_context *ctx, cl_command_queue queue, const llmk_quantize_args *args,
                          const llmk_events *events)
{
    return llmk_operate(&llmk_operator_quantize, ctx, queue, args, events);
}
