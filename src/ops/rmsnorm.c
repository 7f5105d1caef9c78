/* rmsnorm.c - RMSNorm, with the residual addition fused. */
#include "ops/elementwise.h"
#include "ops/subgroup.h"

#include <math.h>
#include <stdio.h>

#define DEFAULT_EPS 1e-6f
/* Columns are counted in 32 bits within a row. */
#define MAX_COLS (UINT64_C(1) << 31)
/* The kernels loop over the rows beyond. */
#define MAX_GROUPS (UINT64_C(1) << 22)

/* ---- Configurations ---- */

/* A row takes `items` work-items or fewer, of `vecs` vectors of eight elements. Up to 8 vecs items
 * columns a row can stay in registers; about 24 a work-item and 8 to 16 more a vector are needed,
 * which bounds vecs * items on a GPU. */
typedef struct config {
    uint32_t vecs, items;
} config;

static const config gpu_configs[] = {{1, 32}, {2, 256}, {4, 512}};
/* rmsnorm_full: columns a multiple of what a sub-group of 32 takes. */
#define FULL_VECS UINT32_C(4)
#define FULL_STEP (UINT64_C(8) * FULL_VECS * 32)
static const config full_config = {FULL_VECS, 512};
/* One local size: PoCL compiles a kernel anew for each. */
static const config cpu_configs[] = {{4, 16}};

static uint64_t capacity(const config *f)
{
    return UINT64_C(8) * f->vecs * f->items;
}

/* The first that holds the row, or the last. */
static const config *choose_config(const llmk_caps *caps, uint64_t cols, bool full)
{
    const bool cpu = llmk_is_cpu(caps);
    const config *configs = cpu ? cpu_configs : gpu_configs;
    const size_t count = cpu ? LLMK_COUNT(cpu_configs) : LLMK_COUNT(gpu_configs);
    if (full)
        return &full_config;
    for (size_t i = 0; i + 1 < count; i++)
        if (cols <= capacity(&configs[i]))
            return &configs[i];
    return &configs[count - 1];
}

/* Work-items a row and rows a work-group, which is of whole sub-groups: of 32 items, or of
 * `subgroup` if these are more. */
static void choose_local(const llmk_caps *caps, const config *f, uint64_t cols, uint32_t subgroup,
                         size_t local[3])
{
    enum { SMALL_GROUP = 128 };
    local[0] = f->items;
    local[1] = local[2] = 1;
    if (llmk_is_cpu(caps)) {
        if (subgroup) { /* tests: rows of parts of a sub-group, of one, and of several */
            local[0] = cols <= capacity(f) ? 16 : 64;
            local[1] = 64 / local[0];
        }
        return;
    }
    if (subgroup < 32)
        subgroup = 32;
    const uint64_t width = UINT64_C(8) * f->vecs, needed = (cols + width - 1) / width;
    size_t items = 1;
    while (items < needed && items < subgroup)
        items *= 2;
    if (items < needed)
        items = needed < f->items ? (needed + subgroup - 1) / subgroup * subgroup : f->items;
    if (items > caps->max_work_group)
        items = caps->max_work_group;
    local[0] = items;
    if (f != &full_config && items < SMALL_GROUP && SMALL_GROUP <= caps->max_work_group)
        local[1] = SMALL_GROUP / items;
}

/* ---- The problem ---- */

typedef struct problem {
    llmk_view x, weight, residual, sum, y;
    float eps;
    uint32_t flags;
    bool full; /* rmsnorm_full will do */
    const config *config;
} problem;

static bool aligned_rows(const problem *p)
{
    const llmk_view *views[] = {&p->x, &p->weight, &p->residual, &p->sum, &p->y};
    return llmk_aligned_rows(views, LLMK_COUNT(views));
}

/* The plain norm of whole vectors: no residual, no sum, a weight of x's type. */
static bool is_full(const llmk_caps *caps, const problem *p)
{
    return !llmk_is_cpu(caps) && !p->residual.present && !p->sum.present && p->weight.present &&
           p->weight.dtype == p->x.dtype && p->x.ncols % FULL_STEP == 0 &&
           p->x.ncols <= UINT64_C(8) * FULL_VECS * full_config.items &&
           p->x.ncols <= UINT64_C(8) * FULL_VECS * caps->max_work_group &&
           p->x.nrows <= MAX_GROUPS && aligned_rows(p);
}

static llmk_status check(llmk_context *ctx, const void *given, bool dry, void *out)
{
    llmk_rmsnorm_args args;
    LLMK_TRY(llmk_take_args("rmsnorm", given, sizeof args, sizeof args, &args));
    problem *p = out;
    llmk_checker c = llmk_check_begin(ctx, "rmsnorm", dry);
    llmk_check_flags(&c, args.flags,
                     LLMK_RMSNORM_DOUBLE_ROUNDING | LLMK_RMSNORM_WEIGHT_PLUS_ONE |
                         LLMK_RMSNORM_EPS_ZERO);
    llmk_check_that(&c, args.eps >= 0 && isfinite(args.eps), LLMK_INVALID_ARGUMENT,
                    "eps is %g; expected a finite number >= 0", (double)args.eps);
    llmk_check_that(&c, !(args.flags & LLMK_RMSNORM_EPS_ZERO) || args.eps == 0,
                    LLMK_INVALID_ARGUMENT, "eps is %g; expected 0 with LLMK_RMSNORM_EPS_ZERO",
                    (double)args.eps);
    llmk_check_tensor(&c, "x", &args.x, LLMK_FLOATS, LLMK_INPUT, &p->x);
    llmk_check_optional(&c, "weight", &args.weight, LLMK_FLOATS, LLMK_INPUT, &p->weight);
    llmk_check_optional(&c, "residual", &args.residual, LLMK_FLOATS, LLMK_INPUT, &p->residual);
    llmk_check_optional(&c, "sum", &args.sum, LLMK_FLOATS, LLMK_OUTPUT, &p->sum);
    llmk_check_tensor(&c, "y", &args.y, LLMK_FLOATS, LLMK_OUTPUT, &p->y);
    llmk_check_that(&c, p->x.ncols >= 1, LLMK_INVALID_SHAPE,
                    "the last dimension of x is 0; expected at least 1");
    if (p->weight.present)
        llmk_check_vector(&c, "weight", &p->weight, p->x.ncols);
    llmk_check_same_shape(&c, "residual", &p->residual, "x", &p->x);
    llmk_check_same_shape(&c, "sum", &p->sum, "x", &p->x);
    llmk_check_same_shape(&c, "y", &p->y, "x", &p->x);
    llmk_check_in_place(&c, &p->sum, &p->residual);
    llmk_check_in_place(&c, &p->sum, &p->x);
    llmk_check_in_place(&c, &p->y, &p->x);
    llmk_check_in_place(&c, &p->y, &p->residual);
    LLMK_TRY(llmk_check_end(&c));
    p->eps = args.eps == 0 && !(args.flags & LLMK_RMSNORM_EPS_ZERO) ? DEFAULT_EPS : args.eps;
    p->full = is_full(&ctx->caps, p);
    p->config = choose_config(&ctx->caps, p->x.ncols, p->full);
    p->flags = args.flags;
    if (!p->weight.present) /* its factor is 1, not 1 + 1 */
        p->flags &= ~LLMK_RMSNORM_WEIGHT_PLUS_ONE;
    return LLMK_OK;
}

static bool is_empty(const void *problem_)
{
    const problem *p = problem_;
    return p->x.nrows == 0;
}

/* ---- Variants ---- */

static void set_tensors(llmk_kernel *k, const problem *p)
{
    llmk_arg_view(k, &p->x);
    llmk_arg_view(k, &p->weight);
    llmk_arg_view(k, &p->residual);
    llmk_arg_view(k, &p->sum);
    llmk_arg_view(k, &p->y);
}

static llmk_status launch_ref(llmk_launch *launch, const void *problem_)
{
    enum { ITEMS = 16 };
    const problem *p = problem_;
    llmk_kernel k = llmk_kernel_open(launch, "rmsnorm/rmsnorm_ref.cl", "", "rmsnorm_ref");
    set_tensors(&k, p);
    llmk_arg_u32(&k, p->x.dtype);
    llmk_arg_u32(&k, llmk_view_dtype(&p->weight));
    llmk_arg_u32(&k, llmk_view_dtype(&p->residual));
    llmk_arg_u32(&k, llmk_view_dtype(&p->sum));
    llmk_arg_u32(&k, p->y.dtype);
    llmk_arg_u64(&k, p->x.nrows);
    llmk_arg_u64(&k, p->x.ncols);
    llmk_arg_f32(&k, p->eps);
    llmk_arg_u32(&k, p->flags);
    return llmk_kernel_enqueue(&k, (const size_t[3]){(p->x.nrows + ITEMS - 1) / ITEMS, 1, 1},
                               (const size_t[3]){ITEMS, 1, 1});
}

/* subgroup: the size that the kernel counts on, 0 for none; `required` goes to the defines, NULL
 * where the file has no such. */
static llmk_status launch_rows(llmk_launch *launch, const problem *p, const char *file,
                               uint32_t subgroup, const char *required)
{
    const llmk_caps *caps = &launch->ctx->caps;
    const uint64_t rows = p->x.nrows, cols = p->x.ncols;
    const llmk_config *tuned = launch->config;
    const config asked = {tuned ? tuned->value[0] : 0, tuned ? tuned->value[1] : 0};
    const config *f = tuned ? &asked : p->config;
    size_t local[3];
    choose_local(caps, f, cols, subgroup, local);
    const bool aligned = cols % 8 == 0 && aligned_rows(p);
    const uint64_t held = UINT64_C(8) * f->vecs * local[0];
    const bool resident = aligned && cols <= held, full = p->full && !tuned && cols == held;

    char defines[64];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype),
              " -DY=", llmk_dtype_name(p->y.dtype), " -DVECS=", llmk_digits((uint32_t)f->vecs),
              required ? " -DSUBGROUP=" : "", required ? required : "", NULL);
    llmk_kernel k = llmk_kernel_open(launch, file, defines,
                                     full                  ? "rmsnorm_full"
                                     : !resident           ? "rmsnorm_looped"
                                     : p->residual.present ? "rmsnorm_resident_residual"
                                                           : "rmsnorm_resident");
    set_tensors(&k, p);
    llmk_arg_u32(&k, llmk_view_dtype(&p->weight));
    llmk_arg_u32(&k, llmk_view_dtype(&p->residual));
    llmk_arg_u32(&k, llmk_view_dtype(&p->sum));
    llmk_arg_u64(&k, rows);
    llmk_arg_u32(&k, (uint32_t)cols);
    llmk_arg_f32(&k, 1.0f / (float)cols);
    llmk_arg_f32(&k, p->eps);
    llmk_arg_u32(&k, p->flags);
    if (!resident)
        llmk_arg_u32(&k, aligned);
    const uint64_t groups = (rows + local[1] - 1) / local[1];
    return llmk_kernel_enqueue(
        &k, (const size_t[3]){groups < MAX_GROUPS ? groups : MAX_GROUPS, 1, 1}, local);
}

static llmk_status launch_portable(llmk_launch *launch, const void *problem_)
{
    return launch_rows(launch, problem_, "rmsnorm/rmsnorm_portable.cl", 0, NULL);
}

static llmk_status launch_nv(llmk_launch *launch, const void *problem_)
{
    return launch_rows(launch, problem_, "rmsnorm/rmsnorm_nv.cl", 32, NULL);
}

static llmk_status launch_subgroup(llmk_launch *launch, const void *problem_)
{
    return launch_rows(launch, problem_, "rmsnorm/rmsnorm_subgroup.cl",
                       llmk_subgroup_expected(launch->ctx),
                       llmk_digits(llmk_subgroup_required(launch->ctx)));
}

static bool supports_portable(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    (void)ctx;
    const problem *p = problem_;
    const llmk_view *views[] = {&p->x, &p->weight, &p->residual, &p->sum, &p->y};
    static const char *const names[] = {"x", "weight", "residual", "sum", "y"};
    if (p->x.ncols > MAX_COLS)
        return llmk_no(why, "rows of more than 2^31 elements");
    return llmk_unit_rows(views, names, LLMK_COUNT(views), why);
}

static bool supports_nv(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    return llmk_nv_supported(ctx, why) && supports_portable(ctx, problem_, why);
}

/* In the types that are common: each pair is twelve images more. */
static bool supports_subgroup(llmk_context *ctx, const void *problem_, llmk_reason *why)
{
    const problem *p = problem_;
    if (p->x.dtype != p->y.dtype)
        return llmk_no(why, "x is %s and y is %s: for one type only", llmk_dtype_name(p->x.dtype),
                       llmk_dtype_name(p->y.dtype));
    return supports_portable(ctx, problem_, why) && llmk_subgroup_supported(ctx, "rmsnorm", why);
}

static const llmk_variant variants[] = {
    {"nv", supports_nv, launch_nv},
    {"subgroup", supports_subgroup, launch_subgroup},
    {"portable", supports_portable, launch_portable},
    {"ref", llmk_any_supported, launch_ref},
};

/* VECS x ITEMS. */
#define ROW_CONFIG(variant, vecs, items)                                                           \
    {                                                                                              \
        variant, #vecs "x" #items, {vecs, items}, items, 0                                         \
    }
static const llmk_config configs[] = {
    ROW_CONFIG("nv", 1, 256),       ROW_CONFIG("nv", 1, 512),       ROW_CONFIG("nv", 2, 256),
    ROW_CONFIG("nv", 2, 512),       ROW_CONFIG("nv", 4, 128),       ROW_CONFIG("nv", 4, 256),
    ROW_CONFIG("portable", 1, 16),  ROW_CONFIG("portable", 2, 16),  ROW_CONFIG("portable", 4, 8),
    ROW_CONFIG("portable", 4, 16),  ROW_CONFIG("portable", 4, 32),  ROW_CONFIG("portable", 1, 256),
    ROW_CONFIG("portable", 2, 256), ROW_CONFIG("portable", 4, 256), ROW_CONFIG("portable", 4, 512),
};

/* Small work-groups are for CPUs, large ones for others. */
static bool config_fits(const llmk_context *ctx, const void *problem_, const llmk_config *c,
                        llmk_reason *why)
{
    (void)problem_;
    const bool small = c->items <= 32;
    return small == llmk_is_cpu(&ctx->caps) ||
           llmk_no(why, "work-groups of %u items are for %s", c->items, small ? "CPUs" : "GPUs");
}

static const char *const size_names[] = {"rows", "h", NULL};

static bool sizes_of(const void *problem_, uint64_t sizes[LLMK_TUNING_SIZES])
{
    const problem *p = problem_;
    sizes[0] = p->x.nrows;
    sizes[1] = p->x.ncols;
    return true;
}

/* ---- Self-test ---- */

static void key(const void *problem_, char *out, size_t size)
{
    const problem *p = problem_;
    llmk_join(out, size, "x=", llmk_dtype_name(p->x.dtype),
              " w=", p->weight.present ? llmk_dtype_name(p->weight.dtype) : "none",
              " r=", p->residual.present ? llmk_dtype_name(p->residual.dtype) : "none",
              " s=", p->sum.present ? llmk_dtype_name(p->sum.dtype) : "none",
              " y=", llmk_dtype_name(p->y.dtype), " vecs=", llmk_digits((uint32_t)p->config->vecs),
              p->full ? " full" : "", NULL);
}

static void expect(const llmk_rmsnorm_args *args, size_t rows, size_t cols, size_t stride,
                   const float *x, const float *weight, const float *residual, double *sum,
                   double *y)
{
    for (size_t r = 0; r < rows; r++) {
        double *s = sum + r * cols, squares = 0;
        for (size_t c = 0; c < cols; c++) {
            s[c] = x[r * stride + c] + (residual ? (double)residual[r * stride + c] : 0);
            squares += s[c] * s[c];
        }
        const double scale = 1 / sqrt(squares / (double)cols + (double)args->eps);
        const double one = args->flags & LLMK_RMSNORM_WEIGHT_PLUS_ONE ? 1 : 0;
        for (size_t c = 0; c < cols; c++)
            y[r * cols + c] = s[c] * scale * (weight ? one + (double)weight[c] : 1);
    }
}

/* Two runs of the problem's configuration on the same inputs: rows that stay in registers; then,
 * with every option and, but for rmsnorm_full, a little shorter, rows that do not. */
static llmk_status self_test(llmk_trial *t, const void *problem_)
{
    enum { ROWS = 3 };
    const problem *p = problem_;
    /* The shortest rows that use it, and a few elements more. */
    const bool smallest = p->config == gpu_configs || p->config == cpu_configs;
    const size_t cols = p->full ? FULL_STEP : smallest ? 40 : capacity(p->config - 1) + 8;
    const float *x, *weight = NULL, *residual = NULL;
    llmk_rmsnorm_args args = LLMK_INIT(llmk_rmsnorm_args);
    args.eps = 1e-5f;
    args.x = llmk_trial_input(t, p->x.dtype, ROWS, cols, 1, 2.0f, &x);
    if (p->weight.present) {
        args.weight = llmk_trial_input(t, p->weight.dtype, 1, cols, 2, 1.0f, &weight);
        args.weight = llmk_vector(args.weight.buffer, p->weight.dtype, cols);
    }
    if (p->residual.present)
        args.residual = llmk_trial_input(t, p->residual.dtype, ROWS, cols, 3, 1.0f, &residual);
    double *sum = llmk_trial_doubles(t, ROWS * cols), *y = llmk_trial_doubles(t, ROWS * cols);
    for (int run = 0; run < 2 && t->status == LLMK_OK; run++) {
        const size_t n = run == 1 && !p->full ? cols - 3 : cols;
        args.x.dim[1] = args.residual.dim[1] = args.weight.dim[0] = n;
        args.y = llmk_trial_output(t, p->y.dtype, ROWS, n);
        if (p->sum.present)
            args.sum = llmk_trial_output(t, p->sum.dtype, ROWS, n);
        expect(&args, ROWS, n, cols, x, weight, residual, sum, y);
        llmk_trial_run(t, &args);
        llmk_trial_compare(t, "y", &args.y, y, run == 0 ? 4e-6 : 1.0 / 128, 1e-6);
        if (p->sum.present)
            llmk_trial_compare(t, "sum", &args.sum, sum, 1e-6, 0);
        args.flags = LLMK_RMSNORM_WEIGHT_PLUS_ONE | LLMK_RMSNORM_DOUBLE_ROUNDING;
    }
    return t->status;
}

const llmk_operator llmk_operator_rmsnorm = {
    .id = LLMK_OP_RMSNORM,
    .name = "rmsnorm",
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
    .config_fits = config_fits,
};

llmk_status llmk_rmsnorm(llmk_context *ctx, cl_command_queue queue, const llmk_rmsnorm_args *args,
                         const llmk_events *events)
{
    return llmk_operate(&llmk_operator_rmsnorm, ctx, queue, args, events);
}
