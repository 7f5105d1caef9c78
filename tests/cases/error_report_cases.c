/* error_report_cases.c - cases of llmk_error_report. */
#include "cases/case.h"
#include "reference/quant_reference.h"

#include <float.h>
#include <math.h>

enum {
    DATA_CLOSE,
    DATA_EQUAL,
    DATA_UNRELATED,
    DATA_ZERO,
    DATA_HUGE,
    DATA_TINY,
    DATA_MIXED,
    DATA_BAD_REFERENCE,
    DATA_BAD_APPROXIMATION
};
static const char *const data_names[] = {
    "close", "equal",         "unrelated",         "zero", "huge", "tiny",
    "mixed", "bad-reference", "bad-approximation", NULL};

static const case_field fields[] = {
    {"b", CASE_U64, 1, NULL, "outermost dimension; more than 1: three dimensions"},
    {"n", CASE_U64, 1, NULL, "rows"},
    {"k", CASE_U64, 1, NULL, "columns"},
    {"r", CASE_ENUM, LLMK_F16, case_float_names, "dtype of the reference"},
    {"a", CASE_ENUM, LLMK_F16, case_float_names, "dtype of the approximation"},
    {"stride", CASE_U64, 0, NULL, "row stride of the reference; 0: packed"},
    {"a_stride", CASE_U64, 0, NULL, "row stride of the approximation; 0: packed"},
    {"inner", CASE_U64, 1, NULL, "innermost stride of both"},
    {"pad", CASE_U64, 0, NULL, "elements by which the reference starts off its alignment"},
    {"report_inner", CASE_U64, 1, NULL, "stride of the report"},
    {"data", CASE_ENUM, DATA_CLOSE, data_names, "what they hold"},
};

static case_tensor *add(case_run *run, const char *name, llmk_dtype dtype, uint64_t stride,
                        llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    const uint64_t b = case_u64(line, "b"), n = case_u64(line, "n"), k = case_u64(line, "k");
    const uint64_t inner = case_u64(line, "inner");
    const uint64_t row = case_times(stride ? stride : k, inner);
    const uint32_t rank = b > 1 ? 3 : 2;
    case_tensor *t = case_add_tensor(run, name, CASE_INPUT, dtype, rank,
                                     b > 1 ? (uint64_t[]){b, n, k} : (uint64_t[]){n, k}, slot);
    t->stride[rank - 1] = inner;
    t->stride[rank - 2] = row;
    if (rank == 3) /* with a gap, so that the two do not fold into one */
        t->stride[0] = case_times(n + 1, row);
    return t;
}

static void fill(case_run *run, case_tensor *r, case_tensor *a, int data)
{
    double scale = 1;
    if (data == DATA_HUGE)
        scale = r->dtype == LLMK_F16 ? 60000 : 3e38;
    if (data == DATA_TINY)
        scale = r->dtype == LLMK_F16 ? 1e-6 : 1e-33;
    case_fill_values(run, r, data == DATA_ZERO ? CASE_ZERO : CASE_UNIFORM, scale, 1);
    case_fill_values(run, a, CASE_UNIFORM, scale, 2);
    for (uint64_t i = 0; i < r->count; i++) {
        if (data == DATA_MIXED)
            r->values[i] = case_round(r->dtype, ldexp(r->values[i], -(int)(i % 13)));
        if (data == DATA_EQUAL)
            a->values[i] = r->values[i];
        else if (data != DATA_UNRELATED && data != DATA_ZERO) /* the noise is 40 dB down */
            a->values[i] = case_round(a->dtype, r->values[i] + 0.01 * a->values[i]);
        if (data == DATA_BAD_REFERENCE && i % 7 < 2)
            r->values[i] = i % 7 ? (double)NAN : (double)INFINITY;
        if (data == DATA_BAD_APPROXIMATION && i == r->count / 2)
            a->values[i] = (double)NAN;
    }
}

static bool prepare(case_run *run, const case_line *line, void *args)
{
    llmk_error_report_args *a = args;
    case_tensor *r =
        add(run, "reference", case_dtype(line, "r"), case_u64(line, "stride"), &a->reference);
    case_tensor *x = add(run, "approximation", case_dtype(line, "a"), case_u64(line, "a_stride"),
                         &a->approximation);
    r->pad = case_u64(line, "pad");
    case_tensor *report =
        case_add_tensor(run, "report", CASE_OUTPUT, LLMK_F32, 1, (uint64_t[]){8}, &a->report);
    report->stride[0] = case_u64(line, "report_inner");
    if (!case_declared(run))
        return false;
    fill(run, r, x, (int)case_get(line, "data"));
    if (!case_timing_only(run))
        error_report_reference(r->count, r->values, x->values, case_expect(run, report),
                               case_bound(run, report));
    return true;
}

static bool prepare_set(case_run *run, const case_line *line, void *args, size_t set)
{
    (void)line, (void)set;
    llmk_error_report_args *a = args;
    uint64_t bytes = 0;
    const llmk_status status = llmk_error_report_workspace_size(case_context(run), a, &bytes);
    return case_workspace(run, status, bytes, &a->workspace);
}

static double flops(const case_line *line)
{
    return 8 * case_get(line, "b") * case_get(line, "n") * case_get(line, "k");
}

static const case_entry entries[] = {
    {"n=4 k=256", CASE_QUICK},
    {"n=1 k=1", CASE_QUICK},
    {"n=1 k=2 data=unrelated", CASE_QUICK},
    {"n=3 k=7", CASE_QUICK},
    {"n=9 k=8", CASE_QUICK},
    {"n=9 k=9", CASE_QUICK},
    {"n=7 k=111", CASE_QUICK},
    {"n=64 k=520", CASE_QUICK},
    {"n=5 k=5125", CASE_QUICK},
    {"n=1 k=30000", CASE_QUICK},
    {"n=5 k=64 stride=72", CASE_QUICK},
    {"n=5 k=64 a_stride=72", CASE_QUICK},
    {"n=5 k=63 stride=71 a_stride=65", CASE_QUICK},
    {"n=5 k=64 pad=1", CASE_QUICK},
    {"n=5 k=64 stride=80 a_stride=64 pad=8", CASE_QUICK},
    {"n=5 k=60 inner=2", CASE_QUICK},
    {"n=5 k=60 report_inner=3", CASE_QUICK},
    {"b=3 n=4 k=32", CASE_QUICK},
    {"b=3 n=4 k=30 stride=33 report_inner=2", CASE_QUICK},
    {"b=3 n=1 k=40 inner=3", CASE_QUICK},
    {"b=2 n=5 k=24 a_stride=40", CASE_QUICK},
    {"n=4 k=100 data=equal", CASE_QUICK},
    {"n=4 k=100 data=unrelated", CASE_QUICK},
    {"n=4 k=100 data=zero", CASE_QUICK},
    {"n=4 k=100 data=huge", CASE_QUICK},
    {"n=4 k=100 data=tiny", CASE_QUICK},
    {"n=4 k=100 data=mixed", CASE_QUICK},
    {"n=4 k=100 data=bad-reference", CASE_QUICK},
    {"n=4 k=100 data=bad-approximation", CASE_QUICK},
    {"n=0 k=8", CASE_QUICK},
    {"n=8 k=0", CASE_QUICK},
    {"n=4 k=256 r=f32 a=f32", CASE_QUICK},
    {"n=1 k=1 r=f32 a=f32", CASE_QUICK},
    {"n=7 k=111 r=f32 a=f32", CASE_QUICK},
    {"n=64 k=516 r=f32 a=f32", CASE_QUICK},
    {"n=5 k=64 stride=67 r=f32 a=f32", CASE_QUICK},
    {"n=5 k=60 inner=2 r=f32 a=f32", CASE_QUICK},
    {"n=4 k=100 data=equal r=f32 a=f32", CASE_QUICK},
    {"n=4 k=100 data=zero r=f32 a=f32", CASE_QUICK},
    {"n=4 k=100 data=unrelated r=f32 a=f32", CASE_QUICK},
    {"n=4 k=100 data=huge r=f32 a=f32", CASE_QUICK},
    {"n=4 k=100 data=tiny r=f32 a=f32", CASE_QUICK},
    {"n=4 k=100 data=mixed r=f32 a=f32", CASE_QUICK},
    {"n=4 k=100 data=bad-reference r=f32 a=f32", CASE_QUICK},
    {"n=4 k=100 data=bad-approximation r=f32 a=f32", CASE_QUICK},
    {"n=4 k=256 r=f32 a=bf16", CASE_QUICK},
    {"n=7 k=111 r=f32 a=bf16", CASE_QUICK},
    {"n=5 k=64 a_stride=65 r=f32 a=bf16", CASE_QUICK},
    {"n=64 k=520 r=f32 a=bf16", CASE_QUICK},
    {"n=4 k=100 data=huge r=f32 a=bf16", CASE_QUICK},
    {"n=4 k=100 data=mixed r=f32 a=bf16", CASE_QUICK},
    {"n=4 k=256 r=f32 a=f16", CASE_QUICK},
    {"n=7 k=111 r=f32 a=f16", CASE_QUICK},
    {"n=4 k=100 data=mixed r=f32 a=f16", CASE_QUICK},
    {"b=2 n=3 k=48 r=f32 a=f16", CASE_QUICK},
    {"n=0 k=8 r=f32 a=f16", CASE_QUICK},
    {"n=4 k=256 r=bf16 a=bf16", CASE_FULL},
    {"n=7 k=111 r=bf16 a=f32", CASE_FULL},
    {"n=7 k=111 r=bf16 a=f16", CASE_FULL},
    {"n=7 k=111 r=f16 a=f32", CASE_FULL},
    {"n=7 k=111 r=f16 a=bf16", CASE_FULL},
    {"n=1024 k=4096", CASE_FULL},
    {"n=1000 k=4099 stride=4104", CASE_FULL},
    {"n=2048 k=2048 r=f32 a=f32", CASE_FULL},
    {"n=1 k=5000001 r=f32 a=f32 data=mixed", CASE_FULL},
    {"n=20 k=100001 r=f32 a=bf16", CASE_FULL},
    {"n=3 k=300000 r=f32 a=f32 data=unrelated", CASE_FULL},
};

CASE_OP(error_report, LLMK_OP_ERROR_REPORT, prepare_set);
