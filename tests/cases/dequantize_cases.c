/* dequantize_cases.c - cases of llmk_dequantize. */
#include "cases/quant_fields.h"

#include <math.h>

static const case_field fields[] = {
    QUANT_FIELDS,
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "dtype of y"},
    {"size", CASE_FLOAT, 0.1, NULL, "largest scale"},
};

static bool prepare(case_run *run, const case_line *line, void *args)
{
    llmk_dequantize_args *a = args;
    const quant_shape s = quant_shape_of(line);
    if (!quant_line_ok(run, &s))
        return false;
    a->scheme = s.scheme;
    a->group_size = s.group_size;
    case_tensor *q = quant_add_matrix(
        run, "q", CASE_INPUT, s.scheme >= LLMK_QUANT_INT4_SYMMETRIC ? LLMK_U4 : LLMK_I8, &s, &a->q);
    case_tensor *scale = quant_add_scales(run, "scale", CASE_INPUT, LLMK_F32, &s, &a->scale);
    case_tensor *zero = NULL;
    if (s.scheme == LLMK_QUANT_INT4_ASYMMETRIC)
        zero = quant_add_scales(run, "zero", CASE_INPUT, LLMK_U8, &s, &a->zero);
    const llmk_dtype dtype = case_dtype(line, "y");
    case_tensor *y = quant_add_matrix(run, "y", CASE_OUTPUT, dtype, &s, &a->y);
    if (!case_declared(run))
        return false;

    case_fill_values(run, q, CASE_CODES, 1, 1);
    case_fill_values(run, scale, CASE_UNIFORM, case_get(line, "size"), 2);
    for (uint64_t i = 0; i < scale->count; i++)
        scale->values[i] = fabs(scale->values[i]);
    for (uint64_t i = 0; zero && i < zero->count; i++)
        zero->values[i] = (double)(i * 7 % 16);
    if (case_timing_only(run))
        return true;
    double *bound = case_bound(run, y);
    dequant_reference(&s, q->values, scale->values, zero ? zero->values : NULL, case_expect(run, y),
                      bound);
    for (uint64_t i = 0; i < y->count; i++) /* f32, then y's dtype; f32 itself is rounded once */
        bound[i] = case_rounding(dtype, fabs(y->values[i]) + bound[i]) +
                   (dtype == LLMK_F32 ? 0 : bound[i]);
    return true;
}

static double flops(const case_line *line)
{
    return 2 * case_get(line, "n") * case_get(line, "k");
}

static const case_entry entries[] = {
    {"scheme=int8-tensor n=4 k=256", CASE_QUICK},
    {"scheme=int8-tensor n=1 k=1", CASE_QUICK},
    {"scheme=int8-tensor n=7 k=111 y=f32", CASE_QUICK},
    {"scheme=int8-tensor n=3 k=200 y=bf16 stride=208", CASE_QUICK},
    {"scheme=int8-tensor n=5 k=63 stride=71 pad=3", CASE_QUICK},
    {"scheme=int8-tensor n=3 k=40 inner=2 y=f32", CASE_QUICK},
    {"scheme=int8-tensor n=64 k=520", CASE_QUICK},
    {"scheme=int8-tensor n=4 k=64 size=1000", CASE_QUICK},
    {"scheme=int8-tensor n=0 k=64", CASE_QUICK},
    {"scheme=int8-tensor n=3 k=0", CASE_QUICK},
    {"n=4 k=256", CASE_QUICK},
    {"n=4 k=256 y=f32", CASE_QUICK},
    {"n=4 k=256 y=bf16", CASE_QUICK},
    {"n=1 k=1 y=f32", CASE_QUICK},
    {"n=5 k=7 y=f32", CASE_QUICK},
    {"n=9 k=8", CASE_QUICK},
    {"n=9 k=9", CASE_QUICK},
    {"n=3 k=111 y=bf16", CASE_QUICK},
    {"n=3 k=500 stride=504", CASE_QUICK},
    {"n=2 k=3584 y=bf16", CASE_QUICK},
    {"n=2 k=5125", CASE_QUICK},
    {"n=5 k=96 stride=100 pad=1 y=f32", CASE_QUICK},
    {"n=5 k=96 stride=104 pad=8", CASE_QUICK},
    {"n=6 k=64 inner=3 scale_inner=2", CASE_QUICK},
    {"n=70 k=16 scale_inner=3", CASE_QUICK},
    {"n=4 k=64 size=1e-6", CASE_QUICK},
    {"n=4 k=64 size=600", CASE_QUICK},
    {"n=4 k=64 size=1e36 y=bf16", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=256 g=32", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=256 g=64 y=f32", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=256 g=128 y=bf16", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=200", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=200 g=128", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=70 g=32 y=f32", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=60 g=20", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=60 g=20 y=f32", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=64 g=2", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=64 g=6 y=bf16", CASE_QUICK},
    {"scheme=int4-symmetric n=2 k=2 g=32", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=66 g=6 stride=70 pad=1", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=64 g=32 inner=2 scale_inner=2", CASE_QUICK},
    {"scheme=int4-symmetric n=5 k=72 g=24 stride=80", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=128 g=32 size=10000", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=256 g=32", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=256 g=64 y=bf16", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=256 g=128 y=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=200", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=200 y=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=94 g=32 stride=96 scale_inner=2", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=60 g=20 inner=2 y=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=60 g=20 scale_inner=2", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=60 g=14 y=bf16", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=34 g=10 stride=50 pad=2 y=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=70 k=8 g=8", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=64 g=32 size=1e-6", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=64 g=32 size=1e37 y=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=0 k=64 g=32", CASE_QUICK},
    {"scheme=int4-asymmetric n=5 k=0", CASE_QUICK},
    {"scheme=int8-tensor n=1000 k=1031 y=f32", CASE_FULL},
    {"scheme=int8-tensor n=4096 k=512 stride=544 y=bf16", CASE_FULL},
    {"n=4096 k=1024", CASE_FULL},
    {"n=3 k=100003 y=f32", CASE_FULL},
    {"scheme=int4-symmetric n=2048 k=1024 g=128", CASE_FULL},
    {"scheme=int4-symmetric n=512 k=2880 g=32 y=bf16", CASE_FULL},
    {"scheme=int4-asymmetric n=2048 k=1024 g=128", CASE_FULL},
    {"scheme=int4-asymmetric n=1111 k=770 g=64 y=f32", CASE_FULL},
    {"scheme=int4-asymmetric n=300 k=5126 g=2 y=bf16", CASE_FULL},
};

CASE_OP(dequantize, LLMK_OP_DEQUANTIZE, NULL);
