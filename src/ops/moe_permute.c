/* moe_permute.c - the dispatch of experts: pairs of token and expert sorted by expert. */
#include "ops/elementwise.h"
#include "ops/moe.h"

#include <stdio.h>

typedef struct permute_problem {
    moe_dispatch dispatch;
    llmk_view x, rows;
} permute_problem;

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *problem)
{
    llmk_moe_permute_args a;
    permute_problem *p = problem;
    moe_dispatch *d = &p->dispatch;
    LLMK_TRY(llmk_take_args("moe_permute", args, sizeof a, sizeof a, &a));
    llmk_checker c = llmk_check_begin(ctx, "moe_permute", dry);
    llmk_check_flags(&c, a.flags, 0);
    llmk_check_that(&c, a.experts >= 1 && a.experts <= LLMK_MOE_MAX_EXPERTS, LLMK_INVALID_ARGUMENT,
                    "experts is %llu; expected 1 to %u", (unsigned long long)a.experts,
                    LLMK_MOE_MAX_EXPERTS);
    const uint32_t whole = LLMK_BIT(LLMK_I32);
    llmk_check_tensor(&c, "ids", &a.ids, whole, LLMK_INPUT, &d->ids);
    llmk_check_that(&c, d->ids.rank == 2 && d->ids.ncols >= 1, LLMK_INVALID_SHAPE,
                    "ids has rank %u and %llu columns; expected [T, k], k at least 1", d->ids.rank,
                    (unsigned long long)d->ids.ncols);
    llmk_check_that(&c, d->ids.count <= LLMK_MOE_MAX_PAIRS, LLMK_INVALID_SHAPE,
                    "ids has %llu elements; at most %llu are supported",
                    (unsigned long long)d->ids.count, (unsigned long long)LLMK_MOE_MAX_PAIRS);
    llmk_check_optional(&c, "map", &a.map, whole, LLMK_INPUT, &d->map);
    llmk_check_that(&c, !d->map.present || (d->map.rank == 1 && d->map.count <= INT32_MAX),
                    LLMK_INVALID_SHAPE, "map.rank is %u; expected 1, and less than 2^31 experts",
                    d->map.rank);
    llmk_check_optional(&c, "x", &a.x, LLMK_FLOATS, LLMK_INPUT, &p->x);
    llmk_check_tensor(&c, "offsets", &a.offsets, whole, LLMK_OUTPUT, &d->offsets);
    llmk_check_vector(&c, "offsets", &d->offsets, a.experts + 1);
    llmk_check_tensor(&c, "source", &a.source, whole, LLMK_OUTPUT, &d->source);
    llmk_check_vector(&c, "source", &d->source, d->ids.count);
    llmk_check_tensor(&c, "inverse", &a.inverse, whole, LLMK_OUTPUT, &d->inverse);
    llmk_check_matrix(&c, "inverse", &d->inverse, d->ids.nrows, d->ids.ncols);
    llmk_check_optional(&c, "rows", &a.rows, LLMK_FLOATS, LLMK_OUTPUT, &p->rows);
    llmk_check_that(&c, p->x.present == p->rows.present, LLMK_INVALID_ARGUMENT,
                    "%s is given, but not %s; expected both or none", p->x.present ? "x" : "rows",
                    p->x.present ? "rows" : "x");
    llmk_check_matrix(&c, "x", &p->x, d->ids.nrows, p->x.ncols);
    llmk_check_matrix(&c, "rows", &p->rows, d->ids.count, p->x.ncols);
    llmk_check_that(&c, p->x.dtype == p->rows.dtype, LLMK_INVALID_DTYPE,
                    "rows.dtype is %s; expected x's, %s", llmk_dtype_name(p->rows.dtype),
                    llmk_dtype_name(p->x.dtype));
    d->height = 1;
    d->experts = (uint32_t)a.experts;
    d->id_end = d->map.present ? (uint32_t)d->map.count : d->experts;
    return llmk_check_end(&c);
}

/* Offsets are written whatever there is to sort. */
static bool is_empty(const void *problem)
{
    (void)problem;
    return false;
}

static void key(const void *problem, char *text, size_t size)
{
    const permute_problem *p = problem;
    llmk_join(text, size, "x=", p->x.present ? llmk_dtype_name(p->x.dtype) : "none",
              p->dispatch.map.present ? " map" : "", NULL);
}

/* ---- Launching ---- */

/* cl/moe_permute/moe_permute_portable.cl */
#define ITEMS 256u

void llmk_moe_arg_dispatch(llmk_kernel *k, const moe_dispatch *d)
{
    llmk_arg_view(k, &d->map);
    llmk_arg_u32(k, d->id_end);
    llmk_arg_u32(k, d->experts);
    llmk_arg_u32(k, d->height);
    llmk_arg_view(k, &d->offsets);
    llmk_arg_buffer(k, d->tiles);
    llmk_arg_u32(k, d->tiles_at);
    llmk_arg_u32(k, d->zeros);
    llmk_arg_view(k, &d->source);
    llmk_arg_view(k, &d->inverse);
}

llmk_status llmk_moe_launch_dispatch(llmk_launch *launch, const moe_dispatch *d, bool ref)
{
    llmk_kernel k = llmk_kernel_open(
        launch, ref ? "moe_permute/moe_permute_ref.cl" : "moe_permute/moe_permute_portable.cl", "",
        ref ? "moe_permute_ref" : "moe_permute");
    llmk_arg_view(&k, &d->ids);
    llmk_arg_u32(&k, (uint32_t)d->ids.count);
    llmk_arg_u32(&k, (uint32_t)d->ids.ncols);
    llmk_moe_arg_dispatch(&k, d);
    return llmk_kernel_enqueue(&k, (size_t[]){ref ? 1 : d->experts, 1, 1},
                               (size_t[]){ref ? 1 : ITEMS, 1, 1});
}

llmk_status llmk_moe_launch_gather(llmk_launch *launch, const llmk_view *x, const llmk_view *source,
                                   uint32_t k, const llmk_view *rows, bool ref)
{
    if (rows->count == 0)
        return LLMK_OK;
    char defines[16];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(x->dtype), NULL);
    llmk_kernel kernel = llmk_kernel_open(
        launch, ref ? "moe_permute/moe_permute_ref.cl" : "moe_permute/moe_gather_portable.cl",
        ref ? "" : defines, ref ? "moe_gather_ref" : "moe_gather");
    llmk_arg_view(&kernel, x);
    if (ref)
        llmk_arg_u32(&kernel, x->dtype);
    llmk_arg_view(&kernel, source);
    llmk_arg_u32(&kernel, k);
    llmk_arg_view(&kernel, rows);
    llmk_arg_u64(&kernel, rows->nrows);
    llmk_arg_u64(&kernel, rows->ncols);
    if (!ref)
        llmk_arg_u32(&kernel, x->align >= 16 && rows->align >= 16);
    const llmk_grid grid = ref ? llmk_element_grid(rows->nrows, rows->ncols)
                               : llmk_tile_grid(&launch->ctx->caps, rows->nrows, rows->ncols, 1, 0);
    return llmk_kernel_enqueue(&kernel, grid.groups, grid.local);
}

static llmk_status launch(llmk_launch *launch, const permute_problem *p, bool ref)
{
    const moe_dispatch *d = &p->dispatch;
    LLMK_TRY(llmk_moe_launch_dispatch(launch, d, ref));
    return llmk_moe_launch_gather(launch, &p->x, &d->source, (uint32_t)d->ids.ncols, &p->rows, ref);
}

bool llmk_moe_may_dispatch(const llmk_caps *caps, llmk_reason *why)
{
    return caps->max_work_group >= ITEMS ||
           llmk_no(why, "work-groups of %u items are too large for the device", ITEMS);
}

static bool portable_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const permute_problem *p = problem;
    if (!llmk_moe_may_dispatch(&ctx->caps, why))
        return false;
    return llmk_unit_rows((const llmk_view *[]){&p->x, &p->rows}, (const char *[]){"x", "rows"}, 2,
                          why);
}

static llmk_status portable_launch(llmk_launch *l, const void *problem)
{
    return launch(l, problem, false);
}

static llmk_status ref_launch(llmk_launch *l, const void *problem)
{
    return launch(l, problem, true);
}

static const llmk_variant variants[] = {
    {"portable", portable_supports, portable_launch},
    {"ref", llmk_any_supported, ref_launch},
};

/* ---- Self-test ---- */

static llmk_status self_test(llmk_trial *t, const void *problem)
{
    enum { TOKENS = 50, K = 3, PAIRS = TOKENS * K, GLOBAL = 9, HELD = 5, COLS = 24 };
    const permute_problem *p = problem;
    int32_t ids[PAIRS];
    static const int32_t map[GLOBAL] = {4, -1, 0, 7, 3, 1, -5, -1, 2};
    for (int32_t i = 0; i < PAIRS; i++)
        ids[i] = i * i % 13 - 2; /* some out of range */
    const float *x = NULL;
    llmk_moe_permute_args a = LLMK_INIT(llmk_moe_permute_args);
    const bool mapped = p->dispatch.map.present;
    a.experts = mapped ? HELD : GLOBAL;
    a.ids = llmk_matrix(llmk_trial_buffer(t, ids, sizeof ids), LLMK_I32, TOKENS, K);
    if (mapped)
        a.map = llmk_vector(llmk_trial_buffer(t, map, sizeof map), LLMK_I32, GLOBAL);
    if (p->x.present) {
        a.x = llmk_trial_input(t, p->x.dtype, TOKENS, COLS, 1, 1.0f, &x);
        a.rows = llmk_trial_output(t, p->x.dtype, PAIRS, COLS);
    }
    a.offsets = llmk_vector(llmk_trial_output(t, LLMK_I32, 1, a.experts + 1).buffer, LLMK_I32,
                            a.experts + 1);
    a.source = llmk_vector(llmk_trial_output(t, LLMK_I32, 1, PAIRS).buffer, LLMK_I32, PAIRS);
    a.inverse = llmk_trial_output(t, LLMK_I32, TOKENS, K);
    if (t->status != LLMK_OK)
        return t->status;
    double offsets[GLOBAL + 1], source[PAIRS], inverse[PAIRS];
    double *rows = llmk_trial_doubles(t, (size_t)PAIRS * COLS);
    if (!rows)
        return t->status;
    size_t row = 0;
    for (size_t i = 0; i < PAIRS; i++)
        source[i] = inverse[i] = -1;
    for (size_t e = 0; e < a.experts; e++) {
        offsets[e] = (double)row;
        for (size_t i = 0; i < PAIRS; i++) {
            const bool inside = ids[i] >= 0 && ids[i] < GLOBAL;
            if (!inside || (mapped ? map[ids[i]] : ids[i]) != (int32_t)e)
                continue;
            for (size_t c = 0; x && c < COLS; c++)
                rows[row * COLS + c] = (double)x[i / K * COLS + c];
            inverse[i] = (double)row;
            source[row++] = (double)i;
        }
    }
    offsets[a.experts] = (double)row;
    llmk_trial_run(t, &a);
    llmk_trial_compare(t, "offsets", &a.offsets, offsets, 0, 0);
    llmk_trial_compare(t, "source", &a.source, source, 0, 0);
    llmk_trial_compare(t, "inverse", &a.inverse, inverse, 0, 0);
    if (x)
        llmk_trial_compare(t, "rows", &a.rows, rows, 0, 0);
    return t->status;
}

const llmk_operator llmk_operator_moe_permute = {
    .id = LLMK_OP_MOE_PERMUTE,
    .name = "moe_permute",
    .problem_size = sizeof(permute_problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
};
_Static_assert(sizeof(permute_problem) <= LLMK_PROBLEM_SIZE, "raise LLMK_PROBLEM_SIZE");

llmk_status llmk_moe_permute(llmk_context *ctx, cl_command_queue queue,
                             const llmk_moe_permute_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_moe_permute, ctx, queue, args, events);
}
