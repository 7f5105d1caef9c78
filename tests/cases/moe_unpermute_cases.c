/* moe_unpermute_cases.c - the combine: weighted rows added up for each token. */
#include "cases/case.h"
#include "reference/moe_reference.h"

#include <math.h>

static const case_field fields[] = {
    {"t", CASE_U64, 1, NULL, "tokens"},
    {"k", CASE_U64, 2, NULL, "experts a token"},
    {"h", CASE_U64, 64, NULL, "columns"},
    {"r", CASE_U64, 0, NULL, "rows; 0: one a pair"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "type of the rows"},
    {"w", CASE_ENUM, LLMK_F32, case_float_or_none_names, "type of the weights, or none"},
    {"res", CASE_ENUM, 0, case_float_or_none_names, "type of the residual, or none"},
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "type of y"},
    {"inplace", CASE_FLAG, 0, NULL, "y over the residual"},
    {"skip", CASE_FLAG, 0, NULL, "some pairs have no row"},
    {"nan", CASE_FLAG, 0, NULL, "with skip: weights of pairs without a row are NaN"},
    {"gap", CASE_U64, 0, NULL, "elements between rows"},
    {"inner", CASE_U64, 1, NULL, "innermost stride"},
    {"pad", CASE_U64, 0, NULL, "elements by which tensors start off their alignment"},
};

static const case_entry entries[] = {
    {"", CASE_QUICK},
    {"t=0", CASE_QUICK},
    {"t=3 h=0", CASE_QUICK},
    {"t=5 h=1", CASE_QUICK},
    {"t=5 h=7 k=3", CASE_QUICK},
    {"t=33 h=128 k=8", CASE_QUICK},
    {"t=9 h=111 k=4 w=none", CASE_QUICK},
    {"t=9 h=104 k=4 w=f16 y=f32", CASE_QUICK},
    {"t=9 h=104 k=4 w=bf16 x=bf16 y=bf16", CASE_QUICK},
    {"t=9 h=104 k=4 x=f32 y=f32 res=f32", CASE_QUICK},
    {"t=9 h=104 k=4 x=f32 y=f16 res=f16 skip", CASE_QUICK},
    {"t=9 h=105 k=4 res=f32 skip nan", CASE_QUICK},
    {"t=9 h=104 k=4 res=f16 inplace", CASE_QUICK},
    {"t=9 h=104 k=4 r=10 skip", CASE_QUICK},
    {"t=4 h=40 k=3 r=0 skip gap=3", CASE_QUICK},
    {"t=4 h=40 k=3 gap=8 res=bf16", CASE_QUICK},
    {"t=4 h=40 k=3 pad=1", CASE_QUICK},
    {"t=4 h=40 k=3 inner=2 res=f16 gap=1", CASE_QUICK},
    {"t=2 h=24 k=1024", CASE_QUICK},

    {"t=1 h=128", CASE_FULL},
    {"t=1 h=1024", CASE_FULL},
    {"t=1 h=4096", CASE_FULL},
    {"t=32 h=128", CASE_FULL},
    {"t=128 h=128", CASE_FULL},
    {"t=128 h=1024", CASE_FULL},
    {"t=512 h=4096", CASE_FULL},
    {"t=32 h=1024", CASE_FULL},
    {"t=128 h=4096", CASE_FULL},
    {"t=512 h=128", CASE_FULL},
    {"t=512 h=1024 k=4", CASE_FULL},
    {"t=512 h=4096 k=8 x=f32", CASE_FULL},
    {"t=32 h=4096 k=4", CASE_FULL},
    {"t=128 h=1024 k=8", CASE_FULL},
};

static case_tensor *add(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                        uint64_t rows, uint64_t cols, llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    case_tensor *t = case_add_tensor(run, name, role, dtype, 2, (uint64_t[]){rows, cols}, slot);
    const uint64_t inner = case_u64(line, "inner");
    t->pad = case_u64(line, "pad");
    t->stride[1] = inner;
    t->stride[0] = case_plus(case_times(cols, inner), case_u64(line, "gap"));
    return t;
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_moe_unpermute_args *args = args_;
    const uint64_t tokens = case_u64(line, "t"), k = case_u64(line, "k"), h = case_u64(line, "h");
    const uint64_t pairs = case_times(tokens, k);
    const uint64_t count = case_u64(line, "r") ? case_u64(line, "r") : pairs;
    const llmk_dtype w = case_dtype(line, "w"), res = case_dtype(line, "res");
    if (case_flag(line, "inplace") && res != case_dtype(line, "y"))
        return case_refuse(run, "inplace: y and the residual need the same type");
    case_tensor *x = add(run, "rows", CASE_INPUT, case_dtype(line, "x"), count, h, &args->rows);
    case_tensor *inverse = add(run, "inverse", CASE_INPUT, LLMK_I32, tokens, k, &args->inverse);
    case_tensor *weights = w ? add(run, "weights", CASE_INPUT, w, tokens, k, &args->weights) : NULL;
    case_tensor *residual =
        res ? add(run, "residual", CASE_INPUT, res, tokens, h, &args->residual) : NULL;
    case_tensor *y = add(run, "y", CASE_OUTPUT, case_dtype(line, "y"), tokens, h, &args->y);
    if (case_flag(line, "inplace"))
        case_in_place(run, y, residual);
    if (!case_declared(run))
        return false;
    case_fill_values(run, x, CASE_UNIFORM, 2, 1);
    if (weights)
        case_fill_values(run, weights, CASE_UNIFORM, 1, 2);
    if (residual)
        case_fill_values(run, residual, CASE_UNIFORM, 2, 3);
    for (uint64_t i = 0; i < pairs; i++) {
        const uint64_t r = moe_random(7, i);
        const bool none = count == 0 || (case_flag(line, "skip") && r % 3 == 0);
        inverse->values[i] = !none ? (double)(r / 3 % count) : i % 2 ? -1 : (double)count + 3;
        if (none && weights && case_flag(line, "nan"))
            weights->values[i] = (double)NAN;
    }
    if (case_timing_only(run))
        return true;
    double *expected = case_expect(run, y), *bound = case_bound(run, y);
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t c = 0; c < h; c++) {
            const uint64_t at = t * h + c;
            double sum = residual ? residual->values[at] : 0, terms = fabs(sum);
            for (uint64_t j = t * k; j < (t + 1) * k; j++) {
                const double from = inverse->values[j];
                if (from < 0 || from >= (double)count)
                    continue;
                const double term =
                    (weights ? weights->values[j] : 1) * x->values[(uint64_t)from * h + c];
                sum += term;
                terms += fabs(term);
            }
            const double error = ((double)k + 3) * 0x1p-24 * terms + (double)k * 0x1p-126;
            expected[at] = sum;
            bound[at] = error + case_rounding(y->dtype, fabs(sum) + error);
        }
    return true;
}

static double flops(const case_line *line)
{
    return 2 * case_get(line, "t") * case_get(line, "k") * case_get(line, "h");
}

CASE_OP(moe_unpermute, LLMK_OP_MOE_UNPERMUTE, NULL);
