/* add_cases.c - cases of llmk_add. */
#include "cases/layout.h"
#include "reference/norm_reference.h"

#include <math.h>

static const char *const over_names[] = {"none", "a", "b", NULL};

static const case_field fields[] = {
    LAYOUT_FIELDS,
    {"cols", CASE_U64, 64, NULL, "elements of a row"},
    {"a", CASE_ENUM, LLMK_F16, case_float_names, "type of a"},
    {"b", CASE_ENUM, LLMK_F16, case_float_names, "type of b"},
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "type of y"},
    {"over", CASE_ENUM, 0, over_names, "y in place over"},
    {"ascale", CASE_FLOAT, 1.1, NULL, "size of a; 0: zeros"},
    {"bscale", CASE_FLOAT, 0.7, NULL, "size of b"},
    {"odd", CASE_FLAG, 0, NULL, "NaN and infinities in a, the opposite infinity in b"},
};

static const case_entry entries[] = {
    /* sizes */
    {"rank1 cols=1", CASE_QUICK},
    {"rank1 cols=7", CASE_QUICK},
    {"rank1 cols=8", CASE_QUICK},
    {"rank1 cols=1000", CASE_QUICK},
    {"rank1 cols=1023", CASE_QUICK},
    {"rank1 cols=1024", CASE_QUICK},
    {"rank1 cols=1025", CASE_QUICK},
    {"rank1 cols=4104", CASE_QUICK},
    {"rows=1 cols=64", CASE_QUICK},
    {"rows=5 cols=111", CASE_QUICK},
    {"rows=7 cols=769", CASE_QUICK},
    {"rows=16 cols=2880", CASE_QUICK},
    {"rows=3 cols=8192", CASE_QUICK},
    {"rows=40000 cols=1", CASE_QUICK},
    {"rows=40000 cols=2 gap=1", CASE_QUICK},
    {"rows=0", CASE_QUICK},
    {"cols=0", CASE_QUICK},
    {"rank1 cols=0", CASE_QUICK},
    {"d1=0 d0=0 rows=3 cols=16", CASE_QUICK},
    /* types */
    {"cols=72 a=f32 b=f32 y=f32", CASE_QUICK},
    {"cols=73 a=f32 b=f32 y=f32", CASE_QUICK},
    {"cols=72 a=bf16 b=bf16 y=bf16", CASE_QUICK},
    {"cols=73 a=bf16 b=bf16 y=bf16", CASE_QUICK},
    {"cols=72 a=f32 b=f16 y=f32", CASE_QUICK},
    {"cols=73 a=f32 b=bf16 y=f32", CASE_QUICK},
    {"cols=72 a=f16 b=f32 y=f16", CASE_QUICK},
    {"cols=72 a=f16 b=bf16 y=f16", CASE_QUICK},
    {"cols=75 a=f16 b=f32 y=f16", CASE_QUICK},
    {"cols=72 a=bf16 b=f32 y=bf16", CASE_QUICK},
    {"cols=72 a=f32 b=f32 y=f16", CASE_QUICK},
    {"cols=72 a=f32 b=f32 y=bf16", CASE_QUICK},
    {"cols=72 a=f16 b=f16 y=f32", CASE_QUICK},
    {"cols=72 a=bf16 b=bf16 y=f32", CASE_QUICK},
    {"cols=72 a=bf16 b=f16 y=f16", CASE_QUICK},
    /* in place */
    {"cols=64 over=a", CASE_QUICK},
    {"cols=64 over=b", CASE_QUICK},
    {"cols=67 over=a gap=3", CASE_QUICK},
    {"cols=67 over=b gap=3", CASE_QUICK},
    {"cols=64 over=a a=f32 b=f16 y=f32", CASE_QUICK},
    {"cols=64 over=b a=f16 b=f32 y=f32 gap=8", CASE_QUICK},
    /* strides and alignment */
    {"rows=5 cols=64 gap=8", CASE_QUICK},
    {"rows=5 cols=64 gap=1", CASE_QUICK},
    {"rows=5 cols=1032 gap=4", CASE_QUICK},
    {"cols=64 pad=1", CASE_QUICK},
    {"cols=64 pad=8", CASE_QUICK},
    {"cols=64 pad=4 a=f32 b=f32 y=f32", CASE_QUICK},
    {"cols=64 inner=2", CASE_QUICK},
    {"cols=65 inner=3 gap=5 a=bf16 b=f32 y=f32", CASE_QUICK},
    {"d1=3 rows=5 cols=64 hole=8", CASE_QUICK},
    {"d0=2 d1=3 rows=5 cols=64 gap=8 hole=16", CASE_QUICK},
    {"d0=2 d1=3 rows=2 cols=33 gap=1 hole=7", CASE_QUICK},
    {"d0=2 d1=3 rows=5 cols=96", CASE_QUICK},
    /* values */
    {"cols=111 ascale=1e-4 bscale=1e-4", CASE_QUICK},
    {"cols=112 ascale=1e3 bscale=1e-2", CASE_QUICK},
    {"cols=112 ascale=3e4 bscale=3e4", CASE_QUICK},
    {"cols=112 ascale=1e-7 bscale=1e-7", CASE_QUICK},
    {"cols=112 ascale=0 bscale=1", CASE_QUICK},
    {"cols=112 ascale=3e38 bscale=1e38 a=bf16 b=bf16 y=bf16", CASE_QUICK},
    {"cols=112 odd", CASE_QUICK},
    {"cols=113 odd a=bf16 b=bf16 y=bf16", CASE_QUICK},

    {"rows=16384 cols=4096", CASE_FULL},
    {"rows=16384 cols=4096 a=bf16 b=bf16 y=bf16 over=a", CASE_FULL},
    {"rows=16384 cols=4096 a=f32 b=f16 y=f32", CASE_FULL},
    {"rows=2048 cols=5125", CASE_FULL},
    {"rows=2048 cols=8192 gap=64", CASE_FULL},
    {"rows=1 cols=4096", CASE_FULL},
    {"rows=100000 cols=33 gap=1 a=f32 b=f32 y=f32", CASE_FULL},
};

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_add_args *args = args_;
    const uint64_t cols = case_u64(line, "cols");
    const llmk_dtype y = case_dtype(line, "y");
    const double ascale = case_get(line, "ascale");
    case_tensor *a = layout_tensor(run, "a", CASE_INPUT, case_dtype(line, "a"), cols, 1, &args->a);
    case_tensor *b = layout_tensor(run, "b", CASE_INPUT, case_dtype(line, "b"), cols, 2, &args->b);
    case_tensor *ty = layout_tensor(run, "y", CASE_OUTPUT, y, cols, 3, &args->y);
    if (case_get(line, "over") != 0)
        case_in_place(run, ty, case_get(line, "over") == 1 ? a : b);
    if (!case_declared(run))
        return false;
    case_fill_values(run, a, ascale == 0 ? CASE_ZERO : CASE_NORMAL, ascale, 1);
    case_fill_values(run, b, CASE_NORMAL, case_get(line, "bscale"), 2);
    if (case_flag(line, "odd") && a->count >= 4) {
        a->values[0] = (double)NAN;
        a->values[1] = (double)INFINITY;
        a->values[2] = -(double)INFINITY;
        a->values[3] = (double)INFINITY;
        b->values[3] = -(double)INFINITY;
    }
    if (case_timing_only(run))
        return true;
    double *expected = case_expect(run, ty), *bound = case_bound(run, ty);
    for (uint64_t i = 0; i < ty->count; i++)
        expected[i] = reference_add(y, a->values[i], b->values[i], &bound[i]);
    return true;
}

static double flops(const case_line *line)
{
    return (double)layout_rows(line) * case_get(line, "cols");
}

CASE_OP(add, LLMK_OP_ADD, NULL);
