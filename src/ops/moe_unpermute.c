/* moe_unpermute.c - the combine: rows of experts, weighted and added up for each token. */
#include "ops/elementwise.h"
#include "ops/moe.h"

#include <stdio.h>

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *problem)
{
    llmk_moe_unpermute_args a;
    moe_combine *p = problem;
    LLMK_TRY(llmk_take_args("moe_unpermute", args, sizeof a, sizeof a, &a));
    llmk_checker c = llmk_check_begin(ctx, "moe_unpermute", dry);
    llmk_check_flags(&c, a.flags, 0);
    llmk_check_tensor(&c, "rows", &a.rows, LLMK_FLOATS, LLMK_INPUT, &p->x);
    llmk_check_that(&c, p->x.rank == 2 && p->x.nrows <= LLMK_MOE_MAX_PAIRS, LLMK_INVALID_SHAPE,
                    "rows has rank %u and %llu rows; expected rank 2, and at most %llu", p->x.rank,
                    (unsigned long long)p->x.nrows, (unsigned long long)LLMK_MOE_MAX_PAIRS);
    llmk_check_tensor(&c, "inverse", &a.inverse, LLMK_BIT(LLMK_I32), LLMK_INPUT, &p->inverse);
    llmk_check_that(&c, p->inverse.rank == 2 && p->inverse.ncols <= INT32_MAX, LLMK_INVALID_SHAPE,
                    "inverse has rank %u and %llu columns; expected [T, k], k less than 2^31",
                    p->inverse.rank, (unsigned long long)p->inverse.ncols);
    llmk_check_optional(&c, "weights", &a.weights, LLMK_FLOATS, LLMK_INPUT, &p->weights);
    llmk_check_matrix(&c, "weights", &p->weights, p->inverse.nrows, p->inverse.ncols);
    llmk_check_optional(&c, "residual", &a.residual, LLMK_FLOATS, LLMK_INPUT, &p->residual);
    llmk_check_matrix(&c, "residual", &p->residual, p->inverse.nrows, p->x.ncols);
    llmk_check_tensor(&c, "y", &a.y, LLMK_FLOATS, LLMK_OUTPUT, &p->y);
    llmk_check_matrix(&c, "y", &p->y, p->inverse.nrows, p->x.ncols);
    llmk_check_in_place(&c, &p->y, &p->residual);
    return llmk_check_end(&c);
}

static bool is_empty(const void *problem)
{
    return ((const moe_combine *)problem)->y.count == 0;
}

static void key(const void *problem, char *text, size_t size)
{
    const moe_combine *p = problem;
    llmk_join(text, size, "x=", llmk_dtype_name(p->x.dtype),
              " w=", p->weights.present ? llmk_dtype_name(p->weights.dtype) : "none",
              " r=", p->residual.present ? llmk_dtype_name(p->residual.dtype) : "none",
              " y=", llmk_dtype_name(p->y.dtype), NULL);
}

/* ---- Launching ---- */

llmk_status llmk_moe_launch_combine(llmk_launch *launch, const moe_combine *p, bool ref)
{
    char defines[16];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), NULL);
    llmk_kernel k = llmk_kernel_open(
        launch,
        ref ? "moe_unpermute/moe_unpermute_ref.cl" : "moe_unpermute/moe_unpermute_portable.cl",
        ref ? "" : defines, ref ? "moe_unpermute_ref" : "moe_unpermute");
    llmk_arg_view(&k, &p->x);
    if (ref)
        llmk_arg_u32(&k, p->x.dtype);
    llmk_arg_u32(&k, (uint32_t)p->x.nrows);
    llmk_arg_view(&k, &p->inverse);
    llmk_arg_view(&k, &p->weights);
    llmk_arg_u32(&k, llmk_view_dtype(&p->weights));
    llmk_arg_view(&k, &p->residual);
    llmk_arg_u32(&k, llmk_view_dtype(&p->residual));
    llmk_arg_buffer(&k, p->residual_logit);
    llmk_arg_view(&k, &p->y);
    llmk_arg_u32(&k, p->y.dtype);
    llmk_arg_u64(&k, p->y.nrows);
    llmk_arg_u64(&k, p->y.ncols);
    llmk_arg_u32(&k, (uint32_t)p->inverse.ncols);
    if (!ref) {
        llmk_arg_u32(&k, llmk_aligned_rows((const llmk_view *[]){&p->x, &p->residual, &p->y}, 3));
        llmk_arg_buffer(&k, p->ways);
        llmk_arg_u32(&k, p->ways_at);
    }
    const llmk_grid grid = ref ? llmk_element_grid(p->y.nrows, p->y.ncols)
                               : llmk_tile_grid(&launch->ctx->caps, p->y.nrows, p->y.ncols, 1, 0);
    return llmk_kernel_enqueue(&k, grid.groups, grid.local);
}

static bool portable_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    (void)ctx;
    const moe_combine *p = problem;
    return llmk_unit_rows((const llmk_view *[]){&p->x, &p->residual, &p->y},
                          (const char *[]){"rows", "residual", "y"}, 3, why);
}

static llmk_status portable_launch(llmk_launch *launch, const void *problem)
{
    return llmk_moe_launch_combine(launch, problem, false);
}

static llmk_status ref_launch(llmk_launch *launch, const void *problem)
{
    return llmk_moe_launch_combine(launch, problem, true);
}

static const llmk_variant variants[] = {
    {"portable", portable_supports, portable_launch},
    {"ref", llmk_any_supported, ref_launch},
};

/* ---- Self-test ---- */

/* 40 columns go by vectors, 37 of the same rows by elements. */
static llmk_status self_test(llmk_trial *t, const void *problem)
{
    enum { ROWS = 9, TOKENS = 5, K = 3, COLS = 40 };
    const moe_combine *p = problem;
    const float *x, *weights = NULL, *residual = NULL;
    int32_t inverse[TOKENS * K];
    for (int32_t i = 0; i < TOKENS * K; i++)
        inverse[i] = i * 5 % 11 - 1; /* -1 and 9 are no rows */
    llmk_moe_unpermute_args a = LLMK_INIT(llmk_moe_unpermute_args);
    a.rows = llmk_trial_input(t, p->x.dtype, ROWS, COLS, 1, 2.0f, &x);
    a.inverse = llmk_matrix(llmk_trial_buffer(t, inverse, sizeof inverse), LLMK_I32, TOKENS, K);
    if (p->weights.present)
        a.weights = llmk_trial_input(t, p->weights.dtype, TOKENS, K, 2, 1.0f, &weights);
    if (p->residual.present)
        a.residual = llmk_trial_input(t, p->residual.dtype, TOKENS, COLS, 3, 2.0f, &residual);
    double *expected = llmk_trial_doubles(t, (size_t)TOKENS * COLS);
    for (size_t cols = COLS; t->status == LLMK_OK && cols >= COLS - 3; cols -= 3) {
        for (size_t i = 0; i < TOKENS * cols; i++) {
            const size_t token = i / cols, c = i % cols;
            double sum = residual ? (double)residual[token * COLS + c] : 0;
            for (size_t j = token * K; j < (token + 1) * K; j++)
                if (inverse[j] >= 0 && inverse[j] < ROWS)
                    sum += (weights ? (double)weights[j] : 1) *
                           (double)x[(size_t)inverse[j] * COLS + c];
            expected[i] = sum;
        }
        a.rows.dim[1] = a.residual.dim[1] = cols;
        a.y = llmk_trial_output(t, p->y.dtype, TOKENS, cols);
        llmk_trial_run(t, &a);
        llmk_trial_compare(t, "y", &a.y, expected, 1e-6, 5e-6);
    }
    return t->status;
}

const llmk_operator llmk_operator_moe_unpermute = {
    .id = LLMK_OP_MOE_UNPERMUTE,
    .name = "moe_unpermute",
    .problem_size = sizeof(moe_combine),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
};

llmk_status llmk_moe_unpermute(llmk_context *ctx, cl_command_queue queue,
                               const llmk_moe_unpermute_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_moe_unpermute, ctx, queue, args, events);
}
