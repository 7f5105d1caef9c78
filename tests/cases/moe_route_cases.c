/* moe_route_cases.c - the router: scores, groups, ties, odd logits. */
#include "cases/case.h"
#include "reference/moe_reference.h"

#include <math.h>

static const char *const score_names[] = {
    "", "softmax", "sigmoid", "sqrt_softplus", "topk_softmax", NULL};
enum { LOGITS_RANDOM, LOGITS_ODD, LOGITS_TIES, LOGITS_EQUAL, LOGITS_NAN };
static const char *const data_names[] = {"random", "odd", "ties", "equal", "nan", NULL};

static const case_field fields[] = {
    {"t", CASE_U64, 1, NULL, "tokens"},
    {"e", CASE_U64, 8, NULL, "experts"},
    {"k", CASE_U64, 2, NULL, "experts a token"},
    {"h", CASE_U64, 0, NULL, "columns of x; 0: the logits are given"},
    {"score", CASE_ENUM, LLMK_MOE_SOFTMAX, score_names, "score"},
    {"renorm", CASE_FLAG, 0, NULL, "weights of a token add up to scale"},
    {"groups", CASE_U64, 0, NULL, "groups of experts"},
    {"top", CASE_U64, 0, NULL, "groups kept"},
    {"scale", CASE_FLOAT, 0, NULL, "scale of the weights"},
    {"eps", CASE_FLOAT, 0, NULL, "least divisor"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "type of x"},
    {"gate", CASE_ENUM, LLMK_F16, case_float_names, "type of the router's weights"},
    {"logits", CASE_ENUM, LLMK_F32, case_float_names, "type of given logits"},
    {"rb", CASE_ENUM, 0, case_float_or_none_names, "type of the router's bias, or none"},
    {"corr", CASE_ENUM, 0, case_float_or_none_names, "type of the correction, or none"},
    {"out", CASE_FLAG, 0, NULL, "the logits are stored"},
    {"size", CASE_FLOAT, 2, NULL, "size of the logits"},
    {"data", CASE_ENUM, 0, data_names, "the logits; of x and gate, ties: whole numbers"},
    {"gap", CASE_U64, 0, NULL, "elements between rows"},
    {"inner", CASE_U64, 1, NULL, "innermost stride"},
    {"pad", CASE_U64, 0, NULL, "elements by which tensors start off their alignment"},
};

static const case_entry entries[] = {
    {"", CASE_QUICK},
    {"t=0", CASE_QUICK},
    {"t=5 e=1 k=1", CASE_QUICK},
    {"t=33 renorm", CASE_QUICK},
    {"t=7 e=8 k=8", CASE_QUICK},
    {"t=5 e=60 k=4", CASE_QUICK},
    {"t=3 e=160 k=6 groups=8 top=3 scale=16", CASE_QUICK},
    {"t=3 e=256 k=8 score=sigmoid corr=f32 renorm groups=8 top=4 scale=2.5", CASE_QUICK},
    {"t=2 e=512 k=10 renorm", CASE_QUICK},
    {"e=1024 k=1024 score=sigmoid renorm", CASE_QUICK},
    {"t=3 e=1000 k=33 score=sqrt_softplus corr=f32 groups=10 top=4", CASE_QUICK},
    {"t=6 e=32 k=4 score=topk_softmax rb=bf16", CASE_QUICK},
    {"t=6 e=128 k=4 score=topk_softmax corr=f16", CASE_QUICK},
    {"t=9 e=64 k=6 score=sqrt_softplus renorm scale=1.5", CASE_QUICK},
    {"t=9 e=64 k=6 score=sqrt_softplus corr=f32 renorm", CASE_QUICK},
    {"t=4 e=12 k=3 groups=12 top=5 corr=f32", CASE_QUICK},
    {"t=4 e=12 k=3 groups=1 top=1", CASE_QUICK},
    /* the product */
    {"h=64", CASE_QUICK},
    {"t=3 h=64 out", CASE_QUICK},
    {"t=5 e=60 k=4 h=100 out data=ties", CASE_QUICK},
    {"t=13 e=20 k=4 h=2048 x=bf16 gate=f32 renorm out", CASE_QUICK},
    {"t=4 e=17 k=3 h=999 x=f32 gate=bf16 out rb=f32", CASE_QUICK},
    {"t=9 e=256 k=8 h=512 score=sigmoid corr=f32 renorm groups=8 top=4 scale=2.5 data=ties out",
     CASE_QUICK},
    {"t=5 e=32 k=4 h=2880 score=topk_softmax rb=f16 data=ties", CASE_QUICK},
    {"t=3 e=9 k=2 h=1 out data=ties", CASE_QUICK},
    {"t=0 h=8 out", CASE_QUICK},
    /* values */
    {"t=8 e=16 k=4 size=100", CASE_QUICK},
    {"t=8 e=16 k=4 size=100 renorm", CASE_QUICK},
    {"t=8 e=16 k=4 size=1e-4", CASE_QUICK},
    {"t=8 e=16 k=4 size=100 score=sigmoid renorm", CASE_QUICK},
    {"t=8 e=16 k=4 size=1e-4 score=sigmoid", CASE_QUICK},
    {"t=8 e=16 k=4 size=100 score=sqrt_softplus", CASE_QUICK},
    {"t=8 e=16 k=4 size=1000 score=topk_softmax", CASE_QUICK},
    {"t=8 e=16 k=4 size=100 score=sigmoid renorm eps=0.5", CASE_QUICK},
    {"t=5 e=24 k=5 data=ties", CASE_QUICK},
    {"t=5 e=24 k=5 data=ties groups=4 top=2", CASE_QUICK},
    {"t=5 e=24 k=5 data=equal", CASE_QUICK},
    {"t=5 e=24 k=5 data=equal groups=6 top=2", CASE_QUICK},
    {"t=5 e=24 k=7 data=odd", CASE_QUICK},
    {"t=5 e=24 k=7 data=odd score=sigmoid corr=f32 renorm", CASE_QUICK},
    {"t=5 e=24 k=7 data=odd score=sqrt_softplus groups=4 top=3", CASE_QUICK},
    {"t=5 e=24 k=7 data=odd score=topk_softmax corr=f32 groups=4 top=2", CASE_QUICK},
    {"t=5 e=24 k=7 data=nan", CASE_QUICK},
    {"t=5 e=24 k=24 data=odd", CASE_QUICK},
    {"t=5 e=24 k=7 data=nan score=sigmoid corr=f32 groups=4 top=2 renorm", CASE_QUICK},
    /* types and strides */
    {"t=5 e=24 k=3 logits=f16 gap=3", CASE_QUICK},
    {"t=5 e=24 k=3 logits=bf16 inner=2 pad=1 corr=f32 rb=f16", CASE_QUICK},
    {"t=5 e=24 k=3 h=40 gap=8 out", CASE_QUICK},
    {"t=5 e=24 k=3 h=40 gap=3 out rb=f32", CASE_QUICK},
    {"t=5 e=24 k=3 h=40 inner=3 out", CASE_QUICK},
    {"t=5 e=24 k=3 h=40 pad=1", CASE_QUICK},

    {"t=1 e=8 k=2 h=512", CASE_FULL},
    {"t=32 e=8 k=2 h=512", CASE_FULL},
    {"t=128 e=8 k=2 h=512 renorm", CASE_FULL},
    {"t=512 e=8 k=2 h=512", CASE_FULL},
    {"t=1 e=64 k=4 h=512", CASE_FULL},
    {"t=32 e=64 k=4 h=512", CASE_FULL},
    {"t=128 e=64 k=4 h=512", CASE_FULL},
    {"t=512 e=64 k=4 h=512", CASE_FULL},
    {"t=1 e=256 k=8 h=512", CASE_FULL},
    {"t=32 e=256 k=8 h=512", CASE_FULL},
    {"t=128 e=256 k=8 h=512", CASE_FULL},
    {"t=512 e=256 k=8 h=512", CASE_FULL},
    {"t=1 e=8 k=2 h=512 score=sigmoid", CASE_FULL},
    {"t=32 e=8 k=2 h=512 score=sigmoid", CASE_FULL},
    {"t=128 e=8 k=2 h=512 score=sigmoid", CASE_FULL},
    {"t=512 e=8 k=2 h=512 score=sigmoid renorm", CASE_FULL},
    {"t=1 e=64 k=4 h=512 score=sigmoid", CASE_FULL},
    {"t=32 e=64 k=4 h=512 score=sigmoid", CASE_FULL},
    {"t=128 e=64 k=4 h=512 score=sigmoid renorm", CASE_FULL},
    {"t=512 e=64 k=4 h=512 score=sigmoid", CASE_FULL},
    {"t=1 e=256 k=8 h=512 score=sigmoid corr=f32 renorm", CASE_FULL},
    {"t=32 e=256 k=8 h=512 score=sigmoid corr=f32 renorm", CASE_FULL},
    {"t=128 e=256 k=8 h=512 score=sigmoid corr=f32 renorm groups=8 top=4", CASE_FULL},
    {"t=512 e=256 k=8 h=512 score=sigmoid corr=f32 renorm groups=8 top=4 scale=2.5", CASE_FULL},
    {"t=64 e=160 k=6 h=5120 groups=8 top=3 scale=16 out", CASE_FULL},
    {"t=130 e=512 k=10 h=2048 renorm x=bf16 gate=bf16 out", CASE_FULL},
    {"t=300 e=1024 k=8 score=sigmoid corr=f32 groups=16 top=4", CASE_FULL},
};

static case_tensor *add(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                        uint64_t rows, uint64_t cols, llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    const uint64_t gap = case_u64(line, "gap"), inner = case_u64(line, "inner");
    const bool vector = rows == UINT64_MAX;
    const uint64_t dim[2] = {vector ? cols : rows, cols};
    case_tensor *t = case_add_tensor(run, name, role, dtype, vector ? 1 : 2, dim, slot);
    t->pad = case_u64(line, "pad");
    t->stride[vector ? 0 : 1] = inner;
    if (!vector)
        t->stride[0] = case_plus(case_times(cols, inner), gap);
    return t;
}
#define VECTOR UINT64_MAX

static double odd_logit(int data, double value, uint64_t i)
{
    if (data == LOGITS_ODD && i % 5 < 3 && i % 3)
        return i % 5 == 0 ? (double)NAN : i % 5 == 1 ? -(double)INFINITY : (double)INFINITY;
    if (data == LOGITS_NAN)
        return (double)NAN;
    return data == LOGITS_TIES ? rint(value) : data == LOGITS_EQUAL ? 0.5 : value;
}

/* Whole numbers over 8: their products and sums are exact in f32. */
static void coarsen(case_tensor *t)
{
    for (uint64_t i = 0; i < t->count; i++)
        t->values[i] = rint(t->values[i] * 8) / 8;
}

/* The elements of a row, one further. */
static void rotate(double *row, uint64_t count)
{
    const double first = row[0];
    memmove(row, row + 1, (count - 1) * sizeof *row);
    row[count - 1] = first;
}

typedef struct tensors {
    case_tensor *x, *gate, *logits, *bias, *correction, *ids, *weights, *out;
} tensors;

/* Every decision of a token must be clear: otherwise its row of x, or of the logits, is changed. */
static bool expect(case_run *run, const case_line *line, const tensors *t)
{
    const uint64_t tokens = case_u64(line, "t"), experts = case_u64(line, "e"),
                   k = case_u64(line, "k"), hidden = case_u64(line, "h");
    const moe_router_f64 router = {
        .score = (llmk_moe_score)case_get(line, "score"),
        .experts = experts,
        .k = k,
        .groups = case_u64(line, "groups"),
        .top_groups = case_u64(line, "top"),
        .renormalize = case_flag(line, "renorm"),
        .scale = case_get(line, "scale") > 0 ? (double)(float)case_get(line, "scale") : 1,
        .eps = case_get(line, "eps") > 0 ? (double)(float)case_get(line, "eps") : 1e-20,
        .correction = t->correction ? t->correction->values : NULL,
    };
    double *logit = case_alloc(run, experts * sizeof *logit);
    double *error = case_alloc(run, experts * sizeof *error);
    double *ids = case_expect(run, t->ids), *weights = case_expect(run, t->weights);
    double *bound = case_bound(run, t->weights);
    double *out = t->out ? case_expect(run, t->out) : NULL;
    double *out_bound = t->out ? case_bound(run, t->out) : NULL;
    const bool exact = case_get(line, "data") == LOGITS_TIES;
    moe_router_room room;
    bool good = moe_router_room_make(&room, experts);
    for (uint64_t i = 0; good && i < tokens; i++) {
        bool clear = false;
        for (int attempt = 0; !clear && attempt < 100; attempt++) {
            double *row = hidden ? t->x->values + i * hidden : t->logits->values + i * experts;
            if (attempt)
                rotate(row, hidden ? hidden : experts);
            if (hidden)
                moe_reference_logits(hidden, experts, row, t->gate->values,
                                     t->bias ? t->bias->values : NULL, logit, error);
            for (uint64_t e = 0; e < experts; e++) {
                if (!hidden) {
                    const double b = t->bias ? t->bias->values[e] : 0;
                    logit[e] = row[e] + b;
                    error[e] = b != 0 && isfinite(logit[e]) ? 0x1p-24 * fabs(logit[e]) : 0;
                }
                if (exact)
                    error[e] = 0;
            }
            clear = moe_reference_route(&router, &room, logit, error, ids + i * k, weights + i * k,
                                        bound + i * k);
        }
        for (uint64_t e = 0; out && e < experts; e++) {
            out[i * experts + e] = logit[e];
            out_bound[i * experts + e] = error[e];
        }
        if (!clear)
            good = case_refuse(run, "no logits whose choices are clear were found");
    }
    moe_router_room_free(&room);
    return good;
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_moe_route_args *args = args_;
    const uint64_t tokens = case_u64(line, "t"), experts = case_u64(line, "e"),
                   k = case_u64(line, "k"), hidden = case_u64(line, "h"),
                   groups = case_u64(line, "groups");
    const llmk_dtype rb = case_dtype(line, "rb"), corr = case_dtype(line, "corr");
    const int data = (int)case_get(line, "data");
    if (experts > 1024 || k > experts || k == 0)
        return case_refuse(run, "expected 1 to e experts a token, e at most 1024");
    const uint64_t top = case_u64(line, "top");
    if (groups > 1 ? experts % groups || top < 1 || top > groups || experts / groups * top < k
                   : top > groups)
        return case_refuse(run, "groups and top do not fit e and k");
    if (groups <= 1 && case_u64(line, "top") > groups)
        return case_refuse(run, "top is %llu; expected at most groups, %llu",
                           (unsigned long long)case_u64(line, "top"), (unsigned long long)groups);
    if (hidden && data != LOGITS_RANDOM && data != LOGITS_TIES)
        return case_refuse(run, "odd data goes with given logits");
    if (!hidden && case_flag(line, "out"))
        return case_refuse(run, "out goes with h");
    args->score = (llmk_moe_score)case_get(line, "score");
    args->flags = case_flag(line, "renorm") ? LLMK_MOE_RENORMALIZE : 0;
    args->groups = groups;
    args->top_groups = case_u64(line, "top");
    args->scale = (float)case_get(line, "scale");
    args->eps = (float)case_get(line, "eps");
    tensors t = {0};
    if (hidden) {
        t.x = add(run, "x", CASE_INPUT, case_dtype(line, "x"), tokens, hidden, &args->x);
        t.gate =
            add(run, "gate", CASE_INPUT, case_dtype(line, "gate"), experts, hidden, &args->gate);
    } else {
        t.logits = add(run, "logits", CASE_INPUT, case_dtype(line, "logits"), tokens, experts,
                       &args->logits);
    }
    if (rb)
        t.bias = add(run, "router_bias", CASE_INPUT, rb, VECTOR, experts, &args->router_bias);
    if (corr)
        t.correction = add(run, "correction", CASE_INPUT, corr, VECTOR, experts, &args->correction);
    t.ids = add(run, "ids", CASE_OUTPUT, LLMK_I32, tokens, k, &args->ids);
    t.weights = add(run, "weights", CASE_OUTPUT, LLMK_F32, tokens, k, &args->weights);
    if (case_flag(line, "out"))
        t.out = add(run, "out_logits", CASE_OUTPUT, LLMK_F32, tokens, experts, &args->out_logits);
    if (!case_declared(run))
        return false;
    const double size = case_get(line, "size");
    if (hidden) {
        case_fill_values(run, t.x, CASE_UNIFORM, 1, 1);
        case_fill_values(run, t.gate, CASE_UNIFORM,
                         data == LOGITS_TIES ? 1 : size * 3 / sqrt((double)hidden), 2);
        if (data == LOGITS_TIES) {
            coarsen(t.x);
            coarsen(t.gate);
        }
    } else {
        case_fill_values(run, t.logits, CASE_NORMAL, size, 3);
        for (uint64_t i = 0; i < t.logits->count; i++)
            t.logits->values[i] =
                case_round(t.logits->dtype, odd_logit(data, t.logits->values[i], i));
    }
    if (t.bias) {
        case_fill_values(run, t.bias, CASE_UNIFORM, 1, 4);
        coarsen(t.bias);
    }
    if (t.correction)
        case_fill_values(run, t.correction, CASE_UNIFORM, 0.3, 5);
    return case_timing_only(run) || expect(run, line, &t);
}

static bool prepare_set(case_run *run, const case_line *line, void *args_, size_t set)
{
    (void)line, (void)set;
    llmk_moe_route_args *args = args_;
    uint64_t bytes = 0;
    const llmk_status status = llmk_moe_route_workspace_size(case_context(run), args, &bytes);
    return (status == LLMK_OK && bytes == 0) ||
           case_workspace(run, status, bytes, &args->workspace);
}

/* The product, and an exponential a logit. */
static double flops(const case_line *line)
{
    return case_get(line, "t") * case_get(line, "e") * (2 * case_get(line, "h") + 4);
}

CASE_OP(moe_route, LLMK_OP_MOE_ROUTE, prepare_set);
