/* add.c - y = a + b. */
#include "ops/elementwise.h"

#include <stdio.h>

#define VECS 2 /* vectors of eight elements that a work-item adds: two loads each in flight */

typedef struct problem {
    llmk_view a, b, y;
} problem;

static llmk_status check(llmk_context *ctx, const void *given, bool dry, void *out)
{
    llmk_add_args args;
    LLMK_TRY(llmk_take_args("add", given, sizeof args, sizeof args, &args));
    problem *p = out;
    llmk_checker c = llmk_check_begin(ctx, "add", dry);
    llmk_check_flags(&c, args.flags, 0);
    llmk_check_tensor(&c, "a", &args.a, LLMK_FLOATS, LLMK_INPUT, &p->a);
    llmk_check_tensor(&c, "b", &args.b, LLMK_FLOATS, LLMK_INPUT, &p->b);
    llmk_check_tensor(&c, "y", &args.y, LLMK_FLOATS, LLMK_OUTPUT, &p->y);
    llmk_check_same_shape(&c, "b", &p->b, "a", &p->a);
    llmk_check_same_shape(&c, "y", &p->y, "a", &p->a);
    llmk_check_in_place(&c, &p->y, &p->a);
    llmk_check_in_place(&c, &p->y, &p->b);
    LLMK_TRY(llmk_check_end(&c));
    llmk_views_flatten((llmk_view *const[]){&p->a, &p->b, &p->y}, 3);
    return LLMK_OK;
}

static bool is_empty(const void *problem_)
{
    const problem *p = problem_;
    return p->a.count == 0;
}

/* ---- Variants ---- */

static llmk_status launch_ref(llmk_launch *launch, const void *problem_)
{
    const problem *p = problem_;
    llmk_kernel k = llmk_kernel_open(launch, "add/add_ref.cl", "", "add_ref");
    llmk_arg_view(&k, &p->a);
    llmk_arg_view(&k, &p->b);
    llmk_arg_view(&k, &p->y);
    llmk_arg_u32(&k, p->a.dtype);
    llmk_arg_u32(&k, p->b.dtype);
    llmk_arg_u32(&k, p->y.dtype);
    llmk_arg_u64(&k, p->a.nrows);
    llmk_arg_u64(&k, p->a.ncols);
    const llmk_grid grid = llmk_element_grid(p->a.nrows, p->a.ncols);
    return llmk_kernel_enqueue(&k, grid.groups, grid.local);
}

static llmk_status launch_tiles(llmk_launch *launch, const problem *p, const char *file)
{
    char defines[64];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->a.dtype),
              " -DY=", llmk_dtype_name(p->y.dtype), " -DVECS=", llmk_digits(VECS), NULL);
    const bool vectors =
        p->a.ncols % 8 == 0 && llmk_aligned_rows((const llmk_view *[]){&p->a, &p->b, &p->y}, 3);
    llmk_kernel k =
        llmk_kernel_open(launch, file, defines, vectors ? "add_vectors" : "add_elements");
    llmk_arg_view(&k, &p->a);
    llmk_arg_view(&k, &p->b);
    llmk_arg_view(&k, &p->y);
    llmk_arg_u32(&k, p->b.dtype);
    llmk_arg_u64(&k, p->a.nrows);
    llmk_arg_u64(&k, p->a.ncols);
    const llmk_grid grid =
        llmk_tile_grid(&launch->ctx->caps, p->a.nrows, p->a.ncols, VECS, llmk_tile_items(launch));
    return llmk_kernel_enqueue(&k, grid.groups, grid.local);
}

static llmk_status launch_portable(llmk_launch *launch, const void *problem_)
{
    return launch_tiles(launch, problem_, "add/add_portable.cl");
}

static llmk_status launch_nv(llmk_launch *launch, const void *problem_)
{
    return launch_tiles(launch, problem_, "add/add_nv.cl");
}

static bool supports_portable(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    (void)ctx;
    const problem *p = problem_;
    return llmk_unit_rows((const llmk_view *[]){&p->a, &p->b, &p->y},
                          (const char *[]){"a", "b", "y"}, 3, why);
}

static bool supports_nv(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    return llmk_nv_supported(ctx, why) && supports_portable(ctx, problem_, why);
}

static const llmk_variant variants[] = {
    {"nv", supports_nv, launch_nv},
    {"portable", supports_portable, launch_portable},
    {"ref", llmk_any_supported, launch_ref},
};

static const llmk_config configs[] = LLMK_TILE_CONFIGS;

static const char *const size_names[] = {"rows", "cols", NULL};

static bool sizes_of(const void *problem_, uint64_t sizes[LLMK_TUNING_SIZES])
{
    const problem *p = problem_;
    sizes[0] = p->a.nrows;
    sizes[1] = p->a.ncols;
    return true;
}

/* ---- Self-test ---- */

static void key(const void *problem_, char *out, size_t size)
{
    const problem *p = problem_;
    llmk_join(out, size, "a=", llmk_dtype_name(p->a.dtype), " b=", llmk_dtype_name(p->b.dtype),
              " y=", llmk_dtype_name(p->y.dtype), NULL);
}

/* 40 columns go by vectors, 37 of the same rows by elements. */
static llmk_status self_test(llmk_trial *t, const void *problem_)
{
    enum { ROWS = 3, COLS = 40 };
    const problem *p = problem_;
    const float *a, *b;
    llmk_add_args args = LLMK_INIT(llmk_add_args);
    args.a = llmk_trial_input(t, p->a.dtype, ROWS, COLS, 1, 4.0f, &a);
    args.b = llmk_trial_input(t, p->b.dtype, ROWS, COLS, 2, 4.0f, &b);
    args.a.stride[0] = args.b.stride[0] = COLS;
    double *expected = llmk_trial_doubles(t, (size_t)ROWS * COLS);
    for (size_t cols = COLS; t->status == LLMK_OK && cols >= COLS - 3; cols -= 3) {
        for (size_t i = 0; i < ROWS * cols; i++) {
            const size_t at = i / cols * COLS + i % cols;
            expected[i] = (double)a[at] + (double)b[at];
        }
        args.a.dim[1] = args.b.dim[1] = cols;
        args.y = llmk_trial_output(t, p->y.dtype, ROWS, cols);
        llmk_trial_run(t, &args);
        llmk_trial_compare(t, "y", &args.y, expected, 1e-6, 0);
    }
    return t->status;
}

const llmk_operator llmk_operator_add = {
    .id = LLMK_OP_ADD,
    .name = "add",
    .problem_size = sizeof(problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
    .size_names = size_names,
    .sizes = sizes_of,
    .configs = configs,
    .config_count = LLMK_COUNT(configs),
};

llmk_status llmk_add(llmk_context *ctx, cl_command_queue queue, const llmk_add_args *args,
                     const llmk_events *events)
{
    return llmk_operate(&llmk_operator_add, ctx, queue, args, events);
}
