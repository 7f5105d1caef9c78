/* quantize_cases.c - cases of llmk_quantize. */
#include "cases/quant_fields.h"

#include <float.h>
#include <math.h>

enum {
    DATA_NORMAL,
    DATA_UNIFORM,
    DATA_ZERO,
    DATA_POSITIVE,
    DATA_NEGATIVE,
    DATA_OUTLIER,
    DATA_HUGE,
    DATA_TINY,
    DATA_SUBNORMAL,
    DATA_SPECIAL,
    DATA_TIES,
    DATA_SPARSE
};
static const char *const data_names[] = {"normal",  "uniform", "zero", "positive",  "negative",
                                         "outlier", "huge",    "tiny", "subnormal", "special",
                                         "ties",    "sparse",  NULL};

static const case_field fields[] = {
    QUANT_FIELDS,
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "dtype of x"},
    {"data", CASE_ENUM, DATA_NORMAL, data_names, "what x holds"},
};

static double largest(llmk_dtype dtype)
{
    return dtype == LLMK_F16 ? 65504 : dtype == LLMK_BF16 ? 0x1.fep127 : (double)FLT_MAX;
}

static void fill(case_run *run, case_tensor *x, int data)
{
    const bool uniform = data == DATA_UNIFORM || data == DATA_HUGE;
    double scale = 1;
    if (data == DATA_HUGE)
        scale = largest(x->dtype);
    if (data == DATA_TINY) /* about where scales stop shrinking; f16: its subnormals */
        scale = x->dtype == LLMK_F16 ? 0x1p-22 : 0x1p-98;
    if (data == DATA_SUBNORMAL)
        scale = x->dtype == LLMK_F16 ? 0x1p-24 : 0x1p-130;
    case_fill_values(run, x,
                     data == DATA_ZERO ? CASE_ZERO
                     : uniform         ? CASE_UNIFORM
                                       : CASE_NORMAL,
                     scale, 1);
    double *v = x->values;
    for (uint64_t i = 0; i < x->count; i++) {
        if (data == DATA_POSITIVE)
            v[i] = fabs(v[i]) + 1;
        if (data == DATA_NEGATIVE)
            v[i] = -fabs(v[i]) - 1;
        if (data == DATA_OUTLIER && i % 97 == 5)
            v[i] *= 1000;
        if (data == DATA_HUGE && i % 13 == 5)
            v[i] = i % 2 ? scale : -scale;
        if (data == DATA_SPECIAL && i % 11 < 3)
            v[i] = i % 11 == 0 ? (double)NAN : i % 11 == 1 ? (double)INFINITY : -(double)INFINITY;
        if (data == DATA_SPECIAL && i >= x->count / 2 && i < x->count / 2 + x->dim[1])
            v[i] = (double)NAN; /* most of a row, whole groups among it */
        if (data == DATA_TIES)  /* scale 1, every other value a tie */
            v[i] = i % x->dim[1] == 0 ? 127 : (double)(i * 7 % 255) / 2 - 63.5;
        if (data == DATA_SPARSE && i / 16 % 3 != 0)
            v[i] = 0;
        v[i] = case_round(x->dtype, v[i]);
    }
}

static bool prepare(case_run *run, const case_line *line, void *args)
{
    llmk_quantize_args *a = args;
    const quant_shape s = quant_shape_of(line);
    if (!quant_line_ok(run, &s))
        return false;
    a->scheme = s.scheme;
    a->group_size = s.group_size;
    case_tensor *x = quant_add_matrix(run, "x", CASE_INPUT, case_dtype(line, "x"), &s, &a->x);
    case_tensor *q =
        quant_add_matrix(run, "q", CASE_OUTPUT,
                         s.scheme >= LLMK_QUANT_INT4_SYMMETRIC ? LLMK_U4 : LLMK_I8, &s, &a->q);
    case_tensor *scale = quant_add_scales(run, "scale", CASE_OUTPUT, LLMK_F32, &s, &a->scale);
    case_tensor *zero = NULL;
    if (s.scheme == LLMK_QUANT_INT4_ASYMMETRIC)
        zero = quant_add_scales(run, "zero", CASE_OUTPUT, LLMK_U8, &s, &a->zero);
    if (!case_declared(run))
        return false;
    fill(run, x, (int)case_get(line, "data"));
    if (case_timing_only(run))
        return true;
    quant_reference(&s, x->values,
                    &(quant_result){
                        .q = case_expect(run, q),
                        .q_bound = case_bound(run, q),
                        .scale = case_expect(run, scale),
                        .scale_bound = case_bound(run, scale),
                        .zero = zero ? case_expect(run, zero) : NULL,
                        .zero_bound = zero ? case_bound(run, zero) : NULL,
                    });
    return true;
}

static bool prepare_set(case_run *run, const case_line *line, void *args, size_t set)
{
    (void)line, (void)set;
    llmk_quantize_args *a = args;
    uint64_t bytes = 0;
    const llmk_status status = llmk_quantize_workspace_size(case_context(run), a, &bytes);
    return case_workspace(run, status, bytes, &a->workspace);
}

static double flops(const case_line *line)
{
    return 4 * case_get(line, "n") * case_get(line, "k"); /* widen the range twice, scale, round */
}

static const case_entry entries[] = {
    /* One scale for the tensor. */
    {"scheme=int8-tensor n=4 k=256", CASE_QUICK},
    {"scheme=int8-tensor n=1 k=1", CASE_QUICK},
    {"scheme=int8-tensor n=7 k=111 x=f32", CASE_QUICK},
    {"scheme=int8-tensor n=3 k=200 x=bf16 stride=208", CASE_QUICK},
    {"scheme=int8-tensor n=5 k=63 stride=71 pad=3", CASE_QUICK},
    {"scheme=int8-tensor n=3 k=40 inner=2 x=f32", CASE_QUICK},
    {"scheme=int8-tensor n=64 k=520", CASE_QUICK},
    {"scheme=int8-tensor n=4 k=64 data=zero", CASE_QUICK},
    {"scheme=int8-tensor n=4 k=64 data=special", CASE_QUICK},
    {"scheme=int8-tensor n=4 k=64 data=huge x=f32", CASE_QUICK},
    {"scheme=int8-tensor n=4 k=64 data=ties", CASE_QUICK},
    {"scheme=int8-tensor n=2 k=64 data=subnormal x=f32", CASE_QUICK},
    {"scheme=int8-tensor n=0 k=64", CASE_QUICK},
    {"scheme=int8-tensor n=3 k=0", CASE_QUICK},
    /* One a row. */
    {"n=4 k=256", CASE_QUICK},
    {"n=1 k=1", CASE_QUICK},
    {"n=5 k=7 x=f32", CASE_QUICK},
    {"n=9 k=8", CASE_QUICK},
    {"n=3 k=111 x=bf16", CASE_QUICK},
    {"n=3 k=500 stride=504", CASE_QUICK},
    {"n=2 k=3584 x=bf16", CASE_QUICK},
    {"n=2 k=5125", CASE_QUICK},
    {"n=5 k=96 stride=100 pad=1 x=f32", CASE_QUICK},
    {"n=6 k=64 inner=3 scale_inner=2", CASE_QUICK},
    {"n=70 k=16 scale_inner=3", CASE_QUICK},
    {"n=4 k=64 data=zero x=f32", CASE_QUICK},
    {"n=4 k=66 data=special", CASE_QUICK},
    {"n=4 k=66 data=special x=f32", CASE_QUICK},
    {"n=4 k=96 data=huge", CASE_QUICK},
    {"n=4 k=96 data=huge x=f32", CASE_QUICK},
    {"n=4 k=96 data=huge x=bf16", CASE_QUICK},
    {"n=4 k=96 data=tiny x=f32", CASE_QUICK},
    {"n=4 k=96 data=tiny", CASE_QUICK},
    {"n=4 k=96 data=subnormal x=bf16", CASE_QUICK},
    {"n=4 k=96 data=ties", CASE_QUICK},
    {"n=4 k=512 data=outlier", CASE_QUICK},
    {"n=4 k=96 data=sparse x=bf16", CASE_QUICK},
    /* Groups of four bits. */
    {"scheme=int4-symmetric n=4 k=256 g=32", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=256 g=64 x=f32", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=256 g=128 x=bf16", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=200", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=200 g=128", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=70 g=32 x=f32", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=60 g=20", CASE_QUICK},
    {"scheme=int4-symmetric n=2 k=2 g=32", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=66 g=6 stride=70 pad=1", CASE_QUICK},
    {"scheme=int4-symmetric n=3 k=64 g=32 inner=2 scale_inner=2", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=128 g=32 data=special", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=128 g=32 data=huge x=f32", CASE_QUICK},
    {"scheme=int4-symmetric n=4 k=128 g=32 data=sparse x=bf16", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=256 g=32", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=256 g=64 x=bf16", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=256 g=128 x=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=200", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=94 g=32 stride=96 scale_inner=2", CASE_QUICK},
    {"scheme=int4-asymmetric n=3 k=60 g=20 inner=2 x=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=128 g=32 data=positive", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=128 g=32 data=negative x=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=128 g=32 data=special x=bf16", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=128 g=32 data=huge", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=128 g=32 data=huge x=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=128 g=32 data=tiny x=f32", CASE_QUICK},
    {"scheme=int4-asymmetric n=4 k=128 g=32 data=sparse", CASE_QUICK},
    {"scheme=int4-asymmetric n=0 k=64 g=32", CASE_QUICK},
    /* Real layers, and rows longer than a work-group's reach. */
    {"scheme=int8-tensor n=1024 k=1024", CASE_FULL},
    {"scheme=int8-tensor n=1000 k=1031 x=f32", CASE_FULL},
    {"scheme=int8-tensor n=4096 k=512 stride=544 x=bf16", CASE_FULL},
    {"n=4096 k=1024", CASE_FULL},
    {"n=3 k=100003 x=f32", CASE_FULL},
    {"n=8 k=16384 x=bf16", CASE_FULL},
    {"scheme=int4-symmetric n=2048 k=1024 g=128", CASE_FULL},
    {"scheme=int4-symmetric n=4 k=100002 x=f32", CASE_FULL},
    {"scheme=int4-symmetric n=512 k=2880 g=32 x=bf16", CASE_FULL},
    {"scheme=int4-asymmetric n=2048 k=1024 g=128", CASE_FULL},
    {"scheme=int4-asymmetric n=1111 k=770 g=64 x=f32", CASE_FULL},
    {"scheme=int4-asymmetric n=300 k=5126 g=2 x=bf16", CASE_FULL},
};

CASE_OP(quantize, LLMK_OP_QUANTIZE, prepare_set);
