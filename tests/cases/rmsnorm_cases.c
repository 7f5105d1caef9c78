/* rmsnorm_cases.c - cases of llmk_rmsnorm. */
#include "cases/layout.h"
#include "reference/norm_reference.h"

#include <math.h>

static const char *const over_names[] = {"none", "x", "residual", NULL};

static const case_field fields[] = {
    LAYOUT_FIELDS,
    {"h", CASE_U64, 64, NULL, "elements of a row"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "type of x"},
    {"w", CASE_ENUM, LLMK_F16, case_float_or_none_names, "type of the weight, or none"},
    {"r", CASE_ENUM, 0, case_float_or_none_names, "type of the residual, or none"},
    {"s", CASE_ENUM, 0, case_float_or_none_names, "type of the sum, or none"},
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "type of y"},
    {"over", CASE_ENUM, 0, over_names, "y in place over"},
    {"sover", CASE_ENUM, 0, over_names, "sum in place over"},
    {"eps", CASE_FLOAT, 1e-5, NULL, "eps"},
    {"default_eps", CASE_FLAG, 0, NULL, "leave eps to the library"},
    {"double", CASE_FLAG, 0, NULL, "round before the weight too"},
    {"plus1", CASE_FLAG, 0, NULL, "multiply by 1 + w"},
    {"scale", CASE_FLOAT, 1.1, NULL, "size of x; 0: zeros"},
    {"rscale", CASE_FLOAT, 0.9, NULL, "size of the residual"},
    {"odd", CASE_FLAG, 0, NULL, "a NaN in the first row, infinity in the second"},
};

static const case_entry entries[] = {
    /* every kind of width: one, odd, even but unaligned, with and without a full last vector */
    {"h=1", CASE_QUICK},
    {"h=2 rank1", CASE_QUICK},
    {"h=7", CASE_QUICK},
    {"h=8", CASE_QUICK},
    {"h=64", CASE_QUICK},
    {"h=64 rows=1", CASE_QUICK},
    {"h=64 rank1", CASE_QUICK},
    {"h=111", CASE_QUICK},
    {"h=128 rows=77", CASE_QUICK},
    {"h=248", CASE_QUICK},
    {"h=256", CASE_QUICK},
    {"h=264", CASE_QUICK},
    {"h=500", CASE_QUICK},
    {"h=504 rows=5", CASE_QUICK},
    {"h=512", CASE_QUICK},
    {"h=520", CASE_QUICK},
    {"h=769", CASE_QUICK},
    {"h=2880", CASE_QUICK},
    {"h=3584 x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"h=4096", CASE_QUICK},
    {"h=4104", CASE_QUICK},
    {"h=5125 x=f32 w=f32 y=f32", CASE_QUICK},
    {"h=8192 rows=2 x=f32 w=f32 y=f32", CASE_QUICK},
    {"h=16384 rows=2 x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"h=16392 rows=2", CASE_QUICK},
    /* zero rows */
    {"rows=0", CASE_QUICK},
    {"rows=4 d1=0 d0=0 h=64 x=f32 y=f32", CASE_QUICK},
    {"d1=2 rows=0 x=f32 y=f32", CASE_QUICK},
    /* types */
    {"h=72 x=f32 w=f16 y=f16", CASE_QUICK},
    {"h=72 x=f16 w=f32 y=f32", CASE_QUICK},
    {"h=73 x=f16 w=bf16 y=f32", CASE_QUICK},
    {"h=72 x=bf16 w=f32 y=f32", CASE_QUICK},
    {"h=72 w=none", CASE_QUICK},
    {"h=71 w=none plus1 x=bf16 y=bf16", CASE_QUICK},
    {"h=72 x=f32 w=f32 r=f32 s=f32 y=f16", CASE_QUICK},
    {"h=72 x=f16 w=f16 r=f32 s=f32 y=f16", CASE_QUICK},
    {"h=72 x=f16 w=f32 r=bf16 s=bf16 y=f16", CASE_QUICK},
    {"h=75 x=f16 w=f32 r=bf16 s=f32 y=f16", CASE_QUICK},
    {"h=600 x=bf16 w=bf16 r=bf16 s=bf16 y=bf16", CASE_QUICK},
    {"h=600 x=f32 w=bf16 r=f16 s=bf16 y=f32", CASE_QUICK},
    {"h=64 s=f16", CASE_QUICK},
    {"h=64 s=f32", CASE_QUICK},
    {"h=64 r=f16", CASE_QUICK},
    /* in place */
    {"h=64 over=x", CASE_QUICK},
    {"h=1100 over=x", CASE_QUICK},
    {"h=67 over=x", CASE_QUICK},
    {"h=64 r=f16 s=f16 sover=residual", CASE_QUICK},
    {"h=64 r=f16 s=f16 sover=residual over=x", CASE_QUICK},
    {"h=1103 r=f16 s=f16 sover=residual over=x", CASE_QUICK},
    {"h=1200 r=f16 s=f16 sover=x over=residual", CASE_QUICK},
    {"h=65 r=f16 s=f16 sover=x over=residual gap=3", CASE_QUICK},
    {"h=64 s=f16 sover=x", CASE_QUICK},
    /* strides and alignment */
    {"h=64 rows=5 gap=8 r=f16 s=f16", CASE_QUICK},
    {"h=64 rows=5 gap=1 r=f16 s=f16", CASE_QUICK},
    {"h=600 rows=5 gap=4 r=f16 s=f16", CASE_QUICK},
    {"h=64 pad=1", CASE_QUICK},
    {"h=64 pad=4 x=f32 w=f32 r=f32 s=f32 y=f32", CASE_QUICK},
    {"h=64 pad=3 x=f32 w=f32 r=f32 s=f32 y=f32", CASE_QUICK},
    {"h=64 inner=2 r=f16 s=f16", CASE_QUICK},
    {"h=65 inner=3 x=bf16 w=f32 y=f32 gap=5", CASE_QUICK},
    {"h=64 d1=3 rows=5 hole=8 r=f16 s=f16", CASE_QUICK},
    {"h=64 d0=2 d1=3 rows=5 gap=8 hole=16 r=f16 s=f16", CASE_QUICK},
    {"h=33 d0=2 d1=3 rows=2 gap=1 hole=7 x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"h=96 d0=2 d1=3 rows=5", CASE_QUICK},
    /* sizes of the inputs, eps */
    {"h=111 scale=1e-4", CASE_QUICK},
    {"h=112 scale=1e-4 x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"h=112 scale=1e-4 eps=1e-8 x=f32 w=f32 y=f32", CASE_QUICK},
    {"h=112 scale=1e3", CASE_QUICK},
    {"h=112 scale=1e3 rscale=1e-2 r=f16 s=f16", CASE_QUICK},
    {"h=112 scale=1e-3 rscale=30 r=f16 s=f16", CASE_QUICK},
    {"h=112 scale=3e4 rscale=6e4 r=f16 s=f16", CASE_QUICK},
    {"h=112 scale=0", CASE_QUICK},
    {"h=112 scale=0 eps=0", CASE_QUICK},
    {"h=112 eps=0 x=f32 w=f32 y=f32", CASE_QUICK},
    {"h=112 default_eps scale=1e-3 x=f32 w=f32 y=f32", CASE_QUICK},
    {"h=112 eps=1 x=f32 w=f32 y=f32", CASE_QUICK},
    {"h=112 odd", CASE_QUICK},
    {"h=611 odd x=bf16 w=bf16 r=bf16 s=bf16 y=bf16", CASE_QUICK},
    /* options */
    {"h=200 double", CASE_QUICK},
    {"h=1001 double x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"h=200 double x=f32 w=f32 y=f32", CASE_QUICK},
    {"h=200 plus1 x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"h=1003 plus1 w=f32", CASE_QUICK},
    {"h=200 plus1 double r=f16 s=f16", CASE_QUICK},

    /* the reference project's matrix */
    {"rows=128 h=64 x=f32 w=f32 y=f32", CASE_FULL},
    {"rows=128 h=128 x=f32 w=f32 y=f32", CASE_FULL},
    {"rows=128 h=256 x=bf16 w=bf16 y=bf16", CASE_FULL},
    {"rows=128 h=512", CASE_FULL},
    {"rows=128 h=1024 x=f32 w=f32 y=f32", CASE_FULL},
    {"rows=128 h=2048 x=bf16 w=bf16 y=bf16", CASE_FULL},
    {"rows=128 h=4096", CASE_FULL},
    {"rows=128 h=8192", CASE_FULL},
    {"d1=1 rows=128 h=1024", CASE_FULL},
    {"d1=2 rows=512 h=2048", CASE_FULL},
    {"d1=4 rows=1024 h=4096", CASE_FULL},
    {"d1=8 rows=2048 h=1024 x=bf16 w=bf16 y=bf16", CASE_FULL},
    {"d1=8 rows=2048 h=1024 r=f16 s=f16", CASE_FULL},
    /* models */
    {"rows=16384 h=4096", CASE_FULL},
    {"rows=16384 h=4096 r=f16 s=f16", CASE_FULL},
    {"rows=16384 h=4096 r=f16 s=f16 sover=residual over=x", CASE_FULL},
    {"rows=2048 h=4096", CASE_FULL},
    {"rows=2048 h=4096 r=f16 s=f16", CASE_FULL},
    {"rows=1 h=4096", CASE_FULL},
    {"rows=1 h=4096 r=f16 s=f16", CASE_FULL},
    {"rows=1 h=16384 x=bf16 w=bf16 y=bf16", CASE_FULL},
    {"rows=2048 h=8192 x=bf16 w=bf16 y=bf16", CASE_FULL},
    {"rows=2048 h=16384 x=bf16 w=bf16 r=bf16 s=bf16 y=bf16", CASE_FULL},
    {"rows=2048 h=2880 x=bf16 w=bf16 r=bf16 s=bf16 y=bf16", CASE_FULL},
    {"rows=2048 h=5125", CASE_FULL},
    {"rows=131072 h=128 x=bf16 w=bf16 y=bf16", CASE_FULL},
    {"rows=2 h=262144 x=f32 w=f32 y=f32", CASE_FULL},
    {"rows=100000 h=1", CASE_FULL},
};

static void put_odd_values(case_tensor *x, uint64_t h)
{
    if (x->count > 0)
        x->values[0] = (double)NAN;
    if (x->count > h)
        x->values[h] = (double)INFINITY;
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_rmsnorm_args *args = args_;
    const uint64_t h = case_u64(line, "h");
    const llmk_dtype w = case_dtype(line, "w"), r = case_dtype(line, "r");
    const llmk_dtype s = case_dtype(line, "s"), y = case_dtype(line, "y");
    const double scale = case_get(line, "scale"), rscale = case_get(line, "rscale");
    case_tensor *tx = layout_tensor(run, "x", CASE_INPUT, case_dtype(line, "x"), h, 1, &args->x);
    case_tensor *tw = w ? layout_vector(run, "weight", w, h, &args->weight) : NULL;
    case_tensor *tr =
        r ? layout_tensor(run, "residual", CASE_INPUT, r, h, 2, &args->residual) : NULL;
    case_tensor *ts = s ? layout_tensor(run, "sum", CASE_OUTPUT, s, h, 3, &args->sum) : NULL;
    case_tensor *ty = layout_tensor(run, "y", CASE_OUTPUT, y, h, 4, &args->y);

    case_tensor *const under[] = {NULL, tx, tr};
    const unsigned over = (unsigned)case_get(line, "over");
    const unsigned sover = (unsigned)case_get(line, "sover");
    if ((over == 2 || sover == 2) && !tr)
        return case_refuse(run, "in place over a residual that there is not");
    if (sover && !ts)
        return case_refuse(run, "sover without a sum");
    if (over)
        case_in_place(run, ty, under[over]);
    if (sover)
        case_in_place(run, ts, under[sover]);
    if (!case_declared(run))
        return false;
    case_fill_values(run, tx, scale == 0 ? CASE_ZERO : CASE_NORMAL, scale, 1);
    if (case_flag(line, "odd"))
        put_odd_values(tx, h);
    if (tw)
        case_fill_values(run, tw, CASE_UNIFORM, 2, 2);
    if (tr)
        case_fill_values(run, tr, CASE_NORMAL, rscale, 3);

    const bool default_eps = case_flag(line, "default_eps");
    args->eps = default_eps ? 0 : (float)case_get(line, "eps");
    args->flags = (args->eps == 0 && !default_eps ? LLMK_RMSNORM_EPS_ZERO : 0) |
                  (case_flag(line, "double") ? LLMK_RMSNORM_DOUBLE_ROUNDING : 0) |
                  (case_flag(line, "plus1") ? LLMK_RMSNORM_WEIGHT_PLUS_ONE : 0);
    if (case_timing_only(run))
        return true;
    reference_rmsnorm(&(rmsnorm_reference){
        .rows = layout_rows(line),
        .h = h,
        .x = tx->values,
        .weight = tw ? tw->values : NULL,
        .residual = tr ? tr->values : NULL,
        .eps = default_eps ? (double)1e-6f : (double)args->eps,
        .double_rounding = case_flag(line, "double"),
        .weight_plus_one = case_flag(line, "plus1"),
        .y_dtype = y,
        .sum_dtype = s,
        .y = case_expect(run, ty),
        .y_bound = case_bound(run, ty),
        .sum = ts ? case_expect(run, ts) : NULL,
        .sum_bound = ts ? case_bound(run, ts) : NULL,
    });
    return true;
}

/* A square and an addition for the sum, two products for y. */
static double flops(const case_line *line)
{
    return 4 * (double)layout_rows(line) * case_get(line, "h");
}

CASE_OP(rmsnorm, LLMK_OP_RMSNORM, NULL);
