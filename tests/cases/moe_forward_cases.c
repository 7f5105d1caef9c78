/* moe_forward_cases.c - whole mixture-of-experts layers, of models and of odd shapes. */
#include "cases/case_internal.h"
#include "cases/case_parallel.h"
#include "cases/expert_weights.h"
#include "cases/moe_models.h"
#include "reference/moe_layer_reference.h"
#include "reference/moe_reference.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { ROUTING_UNIFORM, ROUTING_ZIPF, ROUTING_HOT };
static const char *const routing_names[] = {"uniform", "zipf", "hot", NULL};
enum { IDS_ROUTED, IDS_ANY, IDS_ONE, IDS_WILD, IDS_NONE };
static const char *const ids_names[] = {"routed", "any", "one", "wild", "none", NULL};
static const char *const activation_names[] = {"model", "silu",    "gelu_erf", "gelu_tanh",
                                               "relu2", "clamped", NULL};
static const char *const layout_names[] = {"model", "split", "packed", "interleaved", NULL};

static const case_field fields[] = {
    {"model", CASE_ENUM, 0, moe_model_names, "the layer of a model"},
    {"scale", CASE_U64, 1, NULL, "divides the model's experts and widths"},
    {"t", CASE_U64, 1, NULL, "tokens"},
    {"e", CASE_U64, 0, NULL, "experts; 0: the model's"},
    {"k", CASE_U64, 0, NULL, "experts a token; 0: the model's"},
    {"h", CASE_U64, 0, NULL, "hidden size; 0: the model's"},
    {"f", CASE_U64, 0, NULL, "width of an expert; 0: the model's"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "type of x"},
    {"inner", CASE_ENUM, 0, case_float_or_none_names, "type between the products; none: x's"},
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "type of y"},
    {"gate", CASE_ENUM, LLMK_F16, case_float_names, "type of the router's weights"},
    {"routing", CASE_ENUM, 0, routing_names,
     "how the router spreads tokens: zipf of 1.2, or over a "
     "hot eighth of the experts"},
    {"ids", CASE_ENUM, 0, ids_names,
     "the routing is given: any, one expert, out of range, nothing"},
    {"held", CASE_U64, 0, NULL, "experts held here, with a map; 0: all"},
    {"shared", CASE_FLAG, 0, NULL, "with the model's shared expert"},
    {"max", CASE_U64, 0, NULL, "tokens that the plan is for; 0: t"},
    {"act", CASE_ENUM, 0, activation_names, "activation"},
    {"layout", CASE_ENUM, 0, layout_names, "where gate and up lie"},
    {"bias", CASE_ENUM, 0, case_float_or_none_names,
     "type of the experts' biases; none: the model's, bf16"},
    {"gap", CASE_U64, 0, NULL, "elements between rows of x and y"},
    {"inner_stride", CASE_U64, 1, NULL, "innermost stride of x and y"},
    {"pad", CASE_U64, 0, NULL, "elements by which tensors start off their alignment"},
    EXPERT_WEIGHTS_FIELDS,
};

static const case_entry entries[] = {
    {"", CASE_QUICK},
    {"t=0", CASE_QUICK},
    {"t=8", CASE_QUICK},
    {"t=9", CASE_QUICK},
    {"t=40", CASE_QUICK},
    {"t=200 max=300", CASE_QUICK},
    {"t=5 e=1 k=1", CASE_QUICK},
    {"t=3 e=4 k=4 h=33 f=17 y=f32", CASE_QUICK},
    {"t=70 e=4 k=4 h=33 f=17 y=f32", CASE_QUICK},
    {"t=5 e=60 k=4", CASE_QUICK},
    {"t=4 e=160 k=6 h=40 f=24", CASE_QUICK},
    {"t=3 e=512 k=10 h=16 f=16", CASE_QUICK},
    {"t=2 e=1024 k=300 h=8 f=8", CASE_QUICK},
    {"t=64 routing=zipf y=f32", CASE_QUICK},
    {"t=64 e=32 routing=hot y=f32", CASE_QUICK},
    /* the routing is given */
    {"t=7 ids=any y=f32", CASE_QUICK},
    {"t=60 ids=any y=f32", CASE_QUICK},
    {"t=8 k=6 ids=one y=f32", CASE_QUICK},
    {"t=100 ids=one y=f32", CASE_QUICK},
    {"t=6 ids=wild y=f32", CASE_QUICK},
    {"t=90 k=4 ids=wild y=f32", CASE_QUICK},
    {"t=5 ids=none", CASE_QUICK},
    {"t=90 ids=none", CASE_QUICK},
    /* an expert map */
    {"t=5 e=24 held=7 k=4 y=f32", CASE_QUICK},
    {"t=90 e=24 held=7 k=4 y=f32", CASE_QUICK},
    /* models, made small */
    {"model=mixtral-8x7b scale=64 t=3", CASE_QUICK},
    {"model=deepseek-v3 scale=64 t=3 shared", CASE_QUICK},
    {"model=deepseek-v3 scale=32 t=50 shared y=f32", CASE_QUICK},
    {"model=deepseek-v2 scale=20 t=4 shared", CASE_QUICK},
    {"model=qwen2-57b scale=28 t=5 shared y=f32", CASE_QUICK},
    {"model=qwen2-57b-top4 scale=28 t=70 shared y=f32", CASE_QUICK},
    {"model=qwen3-30b scale=16 t=6", CASE_QUICK},
    {"model=gpt-oss-20b scale=16 t=4 x=bf16 y=bf16", CASE_QUICK},
    {"model=gpt-oss-20b scale=16 t=40 x=bf16 y=f32", CASE_QUICK},
    /* activations, layouts, biases */
    {"t=4 act=gelu_tanh layout=packed bias=f16 y=f32", CASE_QUICK},
    {"t=70 act=gelu_erf layout=packed bias=f32 y=f32", CASE_QUICK},
    {"t=70 act=relu2 layout=interleaved bias=f16 y=f32", CASE_QUICK},
    {"t=4 act=clamped layout=split bias=bf16 y=f32 shared", CASE_QUICK},
    /* formats */
    {"t=4 w=bf16 x=bf16 y=bf16", CASE_QUICK},
    {"t=4 w=f32 x=f32 y=f32 gate=f32", CASE_QUICK},
    {"t=70 w=f32 x=f32 y=f32 gate=f32", CASE_QUICK},
    {"t=4 w=w8 y=f32", CASE_QUICK},
    {"t=4 w=w4 group=32 y=f32", CASE_QUICK},
    {"t=70 w=w4 group=32 layout=packed y=f32", CASE_QUICK},
    {"t=4 w=gptq_v1 group=32 order=act layout=packed y=f32", CASE_QUICK},
    {"t=70 w=gptq_v2 group=32 order=act layout=interleaved y=f32", CASE_QUICK},
    {"t=4 w=awq_gemm group=32 y=f32 array", CASE_QUICK},
    {"t=4 w=q4_0 y=f32", CASE_QUICK},
    {"t=70 w=q8_0 y=f32", CASE_QUICK},
    {"t=4 h=256 f=256 e=3 w=q4_k y=f32", CASE_QUICK},
    {"t=4 w=w4 group=32 shared nv y=f32", CASE_QUICK},
    {"t=70 w=w8 shared nv layout=packed y=f32", CASE_QUICK},
    /* K in whole steps, experts in layouts of matrix units */
    {"t=1 h=256 f=128 y=f32", CASE_QUICK},
    {"t=8 h=128 f=144 y=f32 layout=packed bias=f16", CASE_QUICK},
    {"t=40 h=256 f=128 y=f32 layout=interleaved", CASE_QUICK},
    {"t=6 h=128 f=128 k=5 ids=one y=f32", CASE_QUICK},
    {"t=8 e=100 k=40 h=128 f=128 y=f32", CASE_QUICK},
    {"t=5 h=128 f=128 e=24 held=7 k=4 act=clamped bias=f32 shared y=f32", CASE_QUICK},
    {"t=1 h=256 f=256 w=w4 group=128 zeros=none nv y=f32", CASE_QUICK},
    {"t=3 h=256 f=256 w=w4 group=128 nv y=f32", CASE_QUICK},
    {"t=40 h=256 f=256 w=w4 group=128 nv layout=packed y=f32", CASE_QUICK},
    {"t=7 h=256 f=256 w=w4 group=64 nv layout=interleaved bias=f16 y=f32", CASE_QUICK},
    {"t=40 h=256 f=48 w=w8 nv layout=packed y=f32", CASE_QUICK},
    {"t=8 h=128 f=128 w=w8 nv layout=interleaved x=bf16 y=bf16", CASE_QUICK},
    {"t=4 h=256 f=256 w=gptq_v1 group=32 order=act layout=packed nv y=f32", CASE_QUICK},
    {"t=30 h=256 f=128 w=w4 group=32 nv split=40000 y=f32", CASE_QUICK},
    {"t=4 h=128 f=72 w=w8 nv layout=packed y=f32", CASE_QUICK}, /* up begins within a block */
    /* types, strides, buffers */
    {"t=4 inner=f32 y=f32", CASE_QUICK},
    {"t=70 inner=bf16 y=f32", CASE_QUICK},
    {"t=5 gap=3", CASE_QUICK},
    {"t=70 gap=8 pad=1", CASE_QUICK},
    {"t=5 inner_stride=2", CASE_QUICK},
    {"t=4 split=20000 y=f32", CASE_QUICK},
    {"t=70 split=20000 y=f32 layout=packed", CASE_QUICK},
    /* many rows an expert, in multiples of 32 outputs: for wgmma */
    {"t=64 e=1 k=1 h=96 f=160 y=f32", CASE_QUICK},
    {"t=129 e=1 k=1 h=72 f=32 y=f32 layout=packed", CASE_QUICK},
    {"t=300 e=3 k=2 h=160 f=96 y=f32 bias=f16 layout=packed", CASE_QUICK},
    {"t=300 e=3 k=2 h=96 f=288 act=gelu_erf x=bf16 w=bf16 y=f32", CASE_QUICK},
    {"t=200 e=4 act=relu2 layout=interleaved bias=f32 y=f32", CASE_QUICK},
    {"t=200 e=4 act=clamped layout=interleaved x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"t=150 e=4 act=gelu_tanh layout=packed inner=bf16 y=f32", CASE_QUICK},
    {"t=400 e=60 k=4 routing=zipf y=f32", CASE_QUICK},
    {"t=200 k=4 ids=wild y=f32", CASE_QUICK},
    {"t=300 e=24 held=7 k=4 y=f32", CASE_QUICK},
    {"t=150 split=20000 y=f32 layout=packed", CASE_QUICK},
    {"model=qwen2-57b-top4 scale=28 t=200 shared y=f32", CASE_QUICK},
    {"t=300 e=1 k=1 h=96 f=160 y=f32", CASE_QUICK},
    {"t=600 e=4 layout=packed bias=f16 y=f32", CASE_QUICK},
    {"t=600 e=4 act=gelu_erf x=bf16 w=bf16 y=f32", CASE_QUICK},
    {"t=600 e=4 act=clamped layout=interleaved bias=f32 inner=bf16 y=f32", CASE_QUICK},
    {"t=1300 k=2 routing=hot y=f32", CASE_QUICK},
    {"t=200 e=4 h=256 f=160 w=w4 group=128 nv layout=packed bias=f16 y=f32", CASE_QUICK},
    {"t=150 e=4 h=128 f=96 w=w8 nv layout=interleaved y=f32", CASE_QUICK},
    {"t=140 e=2 k=1 h=128 f=144 w=w4 group=128 nv act=gelu_erf shared y=f32", CASE_QUICK},
    /* few tiles of the down product: K is split */
    {"t=20 e=32 k=1 h=32 f=512 ids=one y=f32", CASE_QUICK},
    {"t=60 e=40 k=2 h=32 f=640 ids=one bias=f16 y=f32", CASE_QUICK},
    {"t=200 e=2 k=1 h=160 f=1024 y=f32", CASE_QUICK},
    /* many experts, few of which have rows */
    {"t=30 e=40 k=2 h=128 f=128 routing=hot y=f32", CASE_QUICK},
    {"t=16 e=40 k=2 h=128 f=128 y=f32", CASE_QUICK},

    /* the models with F = 512, as the reference project has them */
    {"model=mixtral-8x7b f=512 t=1", CASE_FULL},
    {"model=mixtral-8x7b f=512 t=32", CASE_FULL},
    {"model=mixtral-8x7b f=512 t=128", CASE_FULL},
    {"model=mixtral-8x7b f=512 t=512", CASE_FULL},
    {"model=qwen2-57b-top4 f=512 t=1", CASE_FULL},
    {"model=qwen2-57b-top4 f=512 t=32", CASE_FULL},
    {"model=qwen2-57b-top4 f=512 t=128", CASE_FULL},
    {"model=deepseek-v3 h=1024 f=512 t=1", CASE_FULL},
    {"model=deepseek-v3 h=1024 f=512 t=32", CASE_FULL},
    {"model=deepseek-v3 h=1024 f=512 t=128 shared scale=2", CASE_FULL},
    {"model=qwen1.5-moe scale=4 t=33 shared", CASE_FULL},
    {"model=gpt-oss-120b scale=4 t=32 x=bf16 y=bf16 w=w4 group=32", CASE_FULL},
    {"model=mixtral-8x7b scale=4 t=8 w=w4 group=128", CASE_FULL},
    {"model=mixtral-8x7b scale=4 t=128 w=gptq_v1 group=128 layout=packed order=act", CASE_FULL},
    {"model=qwen3-30b scale=2 t=64 routing=zipf", CASE_FULL},
    {"model=qwen3-30b scale=2 t=64 routing=hot w=w8", CASE_FULL},
};

/* A small tensor that the plan has: its values, and whether there is one. */
typedef struct part {
    llmk_dtype dtype; /* 0: absent */
    uint64_t rows, cols;
    double *values;
} part;

enum { GATE, ROUTER_BIAS, CORRECTION, MAP, GATE_BIAS, UP_BIAS, DOWN_BIAS, SHARED_ROUTER, PARTS };

typedef struct layer {
    moe_model m;
    uint64_t tokens, held;
    bool given;
    llmk_activation activation;
    llmk_gate_layout layout;
    llmk_dtype inner;
    part parts[PARTS];
    expert_weights gate, up, down, shared_gate, shared_up, shared_down;
    uint64_t touched; /* experts held here that some token has */
} layer;

static bool is_split(const layer *l)
{
    return l->layout == LLMK_GATE_SPLIT;
}

static bool shape(case_run *run, const case_line *line, layer *l)
{
    const uint64_t divisor = case_u64(line, "scale");
    if (divisor < 1)
        return case_refuse(run, "scale is 0");
    moe_model *m = &l->m;
    *m = moe_model_scaled(&moe_models[case_u64(line, "model")], divisor);
    if (case_u64(line, "e"))
        m->experts = case_u64(line, "e");
    if (case_u64(line, "k"))
        m->k = case_u64(line, "k");
    if (case_u64(line, "h"))
        m->hidden = case_u64(line, "h");
    if (case_u64(line, "f"))
        m->width = case_u64(line, "f");
    if (case_flag(line, "shared") && !m->shared_width)
        m->shared_width = m->width;
    if (!case_flag(line, "shared"))
        m->shared_width = 0;
    if (m->experts < 1 || m->experts > 1024 || m->k < 1 || m->k > m->experts)
        return case_refuse(run, "expected 1 to e experts a token, e at most 1024");
    if (m->groups && (m->experts % m->groups || m->experts / m->groups * m->top_groups < m->k))
        return case_refuse(run, "e and k do not fit the model's groups");
    l->tokens = case_u64(line, "t");
    l->given = case_get(line, "ids") != IDS_ROUTED;
    l->held = case_u64(line, "held") ? case_u64(line, "held") : m->experts;
    if (l->held > m->experts)
        return case_refuse(run, "held is more than the experts there are");
    l->activation =
        case_get(line, "act") != 0 ? (llmk_activation)case_get(line, "act") : m->activation;
    l->layout = case_get(line, "layout") != 0
                    ? (llmk_gate_layout)((int)case_get(line, "layout") - 1)
                    : m->layout;
    l->inner = case_dtype(line, "inner") ? case_dtype(line, "inner") : case_dtype(line, "x");
    return true;
}

static void plan_parts(const case_line *line, layer *l)
{
    const moe_model *m = &l->m;
    const llmk_dtype bias = case_dtype(line, "bias") ? case_dtype(line, "bias")
                            : m->expert_bias         ? LLMK_BF16
                                                     : LLMK_DTYPE_NONE;
    const bool routes = !l->given;
    const bool biased = m->router_bias || case_get(line, "routing") != ROUTING_UNIFORM;
    const llmk_dtype none = LLMK_DTYPE_NONE;
    l->parts[GATE] = (part){routes ? case_dtype(line, "gate") : none, m->experts, m->hidden, NULL};
    l->parts[ROUTER_BIAS] = (part){routes && biased ? LLMK_F32 : none, 1, m->experts, NULL};
    l->parts[CORRECTION] = (part){routes && m->correction ? LLMK_F32 : none, 1, m->experts, NULL};
    l->parts[MAP] = (part){case_u64(line, "held") ? LLMK_I32 : none, 1, m->experts, NULL};
    l->parts[GATE_BIAS] = (part){bias, l->held, is_split(l) ? m->width : 2 * m->width, NULL};
    l->parts[UP_BIAS] = (part){is_split(l) ? bias : none, l->held, m->width, NULL};
    l->parts[DOWN_BIAS] = (part){bias, l->held, m->hidden, NULL};
    l->parts[SHARED_ROUTER] = (part){
        m->shared_width && m->shared_router ? case_dtype(line, "gate") : none, 1, m->hidden, NULL};
}

static bool describe_weights(case_run *run, layer *l)
{
    const moe_model *m = &l->m;
    const uint64_t twice = is_split(l) ? 1 : 2;
    return expert_weights_describe(run, &l->gate, l->held, twice * m->width, m->hidden) &&
           (!is_split(l) || expert_weights_describe(run, &l->up, l->held, m->width, m->hidden)) &&
           expert_weights_describe(run, &l->down, l->held, m->hidden, m->width) &&
           (!m->shared_width ||
            (expert_weights_describe(run, &l->shared_gate, 1, twice * m->shared_width, m->hidden) &&
             (!is_split(l) ||
              expert_weights_describe(run, &l->shared_up, 1, m->shared_width, m->hidden)) &&
             expert_weights_describe(run, &l->shared_down, 1, m->hidden, m->shared_width)));
}

static bool fill_weights(case_run *run, layer *l)
{
    return expert_weights_fill(run, &l->gate, 100) &&
           (!is_split(l) || expert_weights_fill(run, &l->up, 3000)) &&
           expert_weights_fill(run, &l->down, 6000) &&
           (!l->m.shared_width ||
            (expert_weights_fill(run, &l->shared_gate, 9000) &&
             (!is_split(l) || expert_weights_fill(run, &l->shared_up, 9001)) &&
             expert_weights_fill(run, &l->shared_down, 9002)));
}

/* x of this size makes gate and up a few units, whatever H; as it occurs it is of deviation 1, as
 * that of bench/peers. */
static double x_size(case_run *run, const layer *l)
{
    return case_as_they_occur(run) ? 1 : 8 / sqrt((double)(l->m.hidden > 64 ? l->m.hidden : 64));
}

static double part_value(case_run *run, const layer *l, int which, uint64_t i)
{
    const case_line *line = case_run_line(run);
    const moe_model *m = &l->m;
    const double uniform = moe_uniform(40 + (uint64_t)which, i);
    switch (which) {
    case GATE: /* logits of a standard deviation of about 1.3 */
        return case_as_they_occur(run)
                   ? 0.02 * case_normal(40, i)
                   : uniform * 3 * 1.28 / sqrt((double)m->hidden) / x_size(run, l);
    case ROUTER_BIAS:
        if (case_get(line, "routing") == ROUTING_ZIPF)
            return -1.2 * log((double)(i + 1));
        if (case_get(line, "routing") == ROUTING_HOT)
            return i < (m->experts / 8 > m->k ? m->experts / 8 : m->k) ? 6 : 0;
        return uniform;
    case CORRECTION:
        return 0.2 * uniform;
    case MAP: /* every so many, in descending order */
        return i % (m->experts / l->held) == 0 && i / (m->experts / l->held) < l->held
                   ? (double)(l->held - 1 - i / (m->experts / l->held))
                   : -1;
    case SHARED_ROUTER:
        return uniform / x_size(run, l) / sqrt((double)m->hidden);
    default:
        return uniform;
    }
}

static void fill_parts(case_run *run, layer *l)
{
    for (int which = 0; which < PARTS; which++) {
        part *p = &l->parts[which];
        if (!p->dtype)
            continue;
        p->values = case_alloc(run, (p->rows * p->cols + 1) * sizeof *p->values);
        for (uint64_t i = 0; i < p->rows * p->cols; i++)
            p->values[i] = case_round(p->dtype, part_value(run, l, which, i));
    }
}

/* ---- Routing ---- */

typedef struct routing {
    double *ids, *weights, *bound; /* [t, k] */
} routing;

typedef struct router_work {
    const layer *l;
    double *x; /* [t, H] */
    const routing *out;
    bool any; /* unclear decisions will do */
    atomic_bool failed, unclear;
} router_work;

static void route_part(void *work_, uint64_t begin, uint64_t end)
{
    router_work *work = work_;
    const layer *l = work->l;
    const routing *out = work->out;
    const moe_model *m = &l->m;
    const moe_router_f64 router = {.score = m->score,
                                   .experts = m->experts,
                                   .k = m->k,
                                   .groups = m->groups,
                                   .top_groups = m->top_groups,
                                   .renormalize = m->renormalize,
                                   .scale = m->scale,
                                   .eps = 1e-20,
                                   .correction = l->parts[CORRECTION].values};
    double *logit = malloc(2 * m->experts * sizeof *logit), *error = logit + m->experts;
    moe_router_room room;
    const bool good = moe_router_room_make(&room, m->experts) && logit;
    for (uint64_t t = begin; good && t < end; t++) {
        bool clear = false;
        double *row = work->x + t * m->hidden;
        for (int attempt = 0; !clear && attempt < 100; attempt++) {
            if (attempt) { /* another row */
                const double first = row[0];
                memmove(row, row + 1, (m->hidden - 1) * sizeof *row);
                row[m->hidden - 1] = first;
            }
            moe_reference_logits(m->hidden, m->experts, row, l->parts[GATE].values,
                                 l->parts[ROUTER_BIAS].values, logit, error);
            clear = moe_reference_route(&router, &room, logit, error, out->ids + t * m->k,
                                        out->weights + t * m->k, out->bound + t * m->k) ||
                    work->any;
        }
        if (!clear)
            work->unclear = true;
    }
    if (!good)
        work->failed = true;
    moe_router_room_free(&room);
    free(logit);
}

static bool route(case_run *run, const layer *l, case_tensor *x, const routing *out)
{
    router_work work = {.l = l, .x = x->values, .out = out, .any = case_timing_only(run)};
    case_parallel(l->tokens, 4, route_part, &work);
    if (work.failed)
        return case_refuse(run, "the host has no memory for the router's reference");
    return !work.unclear || case_refuse(run, "no tokens whose experts are clear were found");
}

static void give(const case_line *line, const layer *l, case_tensor *ids, case_tensor *weights)
{
    const uint64_t experts = l->m.experts;
    for (uint64_t i = 0; i < ids->count; i++) {
        const uint64_t r = moe_random(17, i);
        switch ((int)case_get(line, "ids")) {
        case IDS_ONE:
            ids->values[i] = (double)(experts / 2);
            break;
        case IDS_NONE:
            ids->values[i] = i % 2 ? -1 : (double)experts;
            break;
        case IDS_WILD:
            ids->values[i] = r % 3 ? (double)(r / 3 % experts) : (double)(r / 3 % 1000000) - 500000;
            break;
        default:
            ids->values[i] = (double)(r % experts);
        }
        weights->values[i] = case_round(weights->dtype, moe_uniform(18, i));
    }
}

/* The expert held here of a pair, or -1. */
static int64_t held_of(const layer *l, double id)
{
    if (!(id >= 0 && id < (double)l->m.experts))
        return -1;
    const double *map = l->parts[MAP].values;
    return (int64_t)(map ? map[(uint64_t)id] : id);
}

static void count_touched(case_run *run, layer *l, const double *ids)
{
    uint8_t *seen = case_alloc(run, l->held);
    for (uint64_t i = 0; i < l->tokens * l->m.k; i++) {
        const int64_t e = held_of(l, ids[i]);
        if (e >= 0 && !seen[e]) {
            seen[e] = 1;
            l->touched++;
        }
    }
}

/* ---- What y should be ---- */

typedef struct sums {
    const bool *picked;         /* [t]: the others are not computed */
    double *sum, *error, *size; /* [t, H] */
} sums;

/* weight, known to weight_error, times the rows out of tokens[rows], known to bound. */
static void add_rows(const layer *l, const sums *s, uint64_t rows, const uint64_t *tokens,
                     const double *weight, const double *weight_error, const double *out,
                     const double *bound)
{
    const uint64_t hidden = l->m.hidden;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < hidden; c++) {
            const uint64_t at = tokens[r] * hidden + c, from = r * hidden + c;
            const double most = fabs(out[from]) + bound[from];
            s->sum[at] += weight[r] * out[from];
            s->error[at] += fabs(weight[r]) * bound[from] + weight_error[r] * most;
            s->size[at] += (fabs(weight[r]) + weight_error[r]) * most;
        }
}

static moe_experts_f64 experts_of(const layer *l, const expert_weights *gate,
                                  const expert_weights *up, const expert_weights *down,
                                  uint64_t width)
{
    const bool split = is_split(l), interleaved = l->layout == LLMK_GATE_INTERLEAVED;
    return (moe_experts_f64){.hidden = l->m.hidden,
                             .width = width,
                             .made = gate->made,
                             .gate = gate->each,
                             .up = split ? up->each : NULL,
                             .down = down->each,
                             .step = interleaved ? 2 : 1,
                             .up_first = split         ? 0
                                         : interleaved ? 1
                                                       : width,
                             .activation = l->activation,
                             .limit = 7,
                             .alpha = (double)1.702f,
                             .inner = l->inner};
}

static bool add_experts(case_run *run, const layer *l, const case_tensor *x, const routing *r,
                        const sums *s)
{
    const moe_model *m = &l->m;
    const uint64_t pairs = l->tokens * m->k;
    moe_experts_f64 experts = experts_of(l, &l->gate, &l->up, &l->down, m->width);
    experts.gate_bias = l->parts[GATE_BIAS].values;
    experts.up_bias = is_split(l) ? l->parts[UP_BIAS].values : l->parts[GATE_BIAS].values;
    experts.bias_pitch = l->parts[GATE_BIAS].cols;
    experts.down_bias = l->parts[DOWN_BIAS].values;
    uint64_t *tokens = case_alloc(run, (pairs + 1) * sizeof *tokens);
    double *weight = case_alloc(run, 2 * (pairs + 1) * sizeof *weight);
    double *weight_error = weight + pairs + 1;
    /* Where one expert's weights stand for all, all rows go through it at once. */
    const bool same = l->gate.made == 1 && !experts.gate_bias && !experts.down_bias;
    bool good = true;
    for (uint64_t e = 0; good && e < (same ? 1 : l->held); e++) {
        uint64_t rows = 0;
        for (uint64_t i = 0; i < pairs; i++)
            if (s->picked[i / m->k] &&
                (same ? held_of(l, r->ids[i]) >= 0 : held_of(l, r->ids[i]) == (int64_t)e)) {
                tokens[rows] = i / m->k;
                weight[rows] = r->weights[i];
                weight_error[rows++] = r->bound[i];
            }
        double *in = malloc((rows * m->hidden + 1) * sizeof *in);
        double *out = malloc((rows * m->hidden + 1) * 2 * sizeof *out);
        good = in && out;
        for (uint64_t i = 0; good && i < rows; i++)
            memcpy(in + i * m->hidden, x->values + tokens[i] * m->hidden, m->hidden * sizeof *in);
        if (good && rows > 0) {
            double *bound = out + rows * m->hidden;
            good = moe_reference_expert(&experts, e, rows, in, out, bound);
            if (good)
                add_rows(l, s, rows, tokens, weight, weight_error, out, bound);
        }
        free(in);
        free(out);
    }
    return good || case_refuse(run, "the host has no memory for the reference");
}

static bool add_shared(case_run *run, const layer *l, const case_tensor *x, const sums *s)
{
    const uint64_t hidden = l->m.hidden;
    if (!l->m.shared_width)
        return true;
    const moe_experts_f64 experts =
        experts_of(l, &l->shared_gate, &l->shared_up, &l->shared_down, l->m.shared_width);
    double *out = case_alloc(run, 2 * hidden * sizeof *out);
    for (uint64_t t = 0; t < l->tokens; t++) {
        double weight = 1, weight_error = 0;
        const double *row = x->values + t * hidden;
        if (!s->picked[t])
            continue;
        if (l->parts[SHARED_ROUTER].values) {
            double logit, error;
            moe_reference_logits(hidden, 1, row, l->parts[SHARED_ROUTER].values, NULL, &logit,
                                 &error);
            weight = 1 / (1 + exp(-logit));
            weight_error = weight * (16 * 0x1p-24 + expm1(error));
        }
        if (!moe_reference_expert(&experts, 0, 1, row, out, out + hidden))
            return case_refuse(run, "the host has no memory for the reference");
        add_rows(l, s, 1, &t, &weight, &weight_error, out, out + hidden);
    }
    return true;
}

/* Above 2^31 multiply-adds, or 2^29 where a sample will do, only some tokens are computed. */
static bool expect(case_run *run, const layer *l, const case_tensor *x, const routing *r,
                   case_tensor *y)
{
    const moe_model *m = &l->m;
    const double work = 3.0 * (double)m->hidden * (double)(m->k * m->width + m->shared_width);
    const uint64_t least = 4096 / m->hidden + 2;
    uint64_t picks = (uint64_t)((case_samples(run) ? 0x1p29 : 0x1p31) / work);
    picks = picks < least ? least : picks;
    bool *picked = case_alloc(run, l->tokens + 1);
    for (uint64_t t = 0; t < l->tokens; t++)
        picked[t] = picks >= l->tokens || t + 1 == l->tokens ||
                    t * picks / l->tokens != (t + 1) * picks / l->tokens || t == 0;
    const sums s = {picked, case_expect(run, y), case_bound(run, y),
                    case_alloc(run, (y->count + 1) * sizeof(double))};
    if (!add_experts(run, l, x, r, &s) || !add_shared(run, l, x, &s))
        return false;
    for (uint64_t i = 0; i < y->count; i++) {
        s.error[i] += ((double)m->k + 4) * 0x1p-24 * s.size[i] + (double)(m->k + 1) * 0x1p-126;
        s.error[i] += case_rounding(y->dtype, fabs(s.sum[i]) + s.error[i]);
        if (!picked[i / m->hidden])
            s.error[i] = (double)INFINITY;
    }
    return true;
}

/* ---- The case ---- */

static case_tensor *add(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                        uint64_t rows, uint64_t cols, llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    const uint64_t inner = case_u64(line, "inner_stride");
    case_tensor *t = case_add_tensor(run, name, role, dtype, 2, (uint64_t[]){rows, cols}, slot);
    t->pad = case_u64(line, "pad");
    t->stride[1] = inner;
    t->stride[0] = case_plus(case_times(cols, inner), case_u64(line, "gap"));
    return t;
}

/* The plan's memory: buffers that the device can have. */
static bool reserve_plan(case_run *run, const case_line *line, const layer *l)
{
    const moe_model *m = &l->m;
    const uint64_t most = case_u64(line, "max") ? case_u64(line, "max") : l->tokens;
    const uint64_t pairs = case_times(most, m->k);
    const uint64_t wide = m->hidden > m->width ? m->hidden : m->width;
    const uint64_t largest = case_times(pairs > most ? pairs : most, case_times(4, wide));
    cl_ulong limit = 0;
    clGetDeviceInfo(llmk_context_cl_device(case_context(run)), CL_DEVICE_MAX_MEM_ALLOC_SIZE,
                    sizeof limit, &limit, NULL);
    if (most < l->tokens || case_times(most, m->experts) > INT32_MAX / 2)
        return case_refuse(run, "max is less than t, or more than 2^30 pairs");
    if (largest > limit)
        return case_skip(run, "a plan for %llu tokens takes a buffer of %llu MiB",
                         (unsigned long long)most, (unsigned long long)largest >> 20);
    case_reserve(run, "the plan's buffers", 0, case_times(2, largest));
    return true;
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_moe_forward_args *args = args_;
    layer *l = case_alloc(run, sizeof *l);
    if (!shape(run, line, l) || !reserve_plan(run, line, l))
        return false;
    plan_parts(line, l);
    if (!describe_weights(run, l))
        return false;
    const moe_model *m = &l->m;
    const uint64_t t = l->tokens, k = m->k;
    case_reserve(run, "the router's weights", case_times(m->experts, case_times(m->hidden, 8)), 0);
    case_tensor *x = add(run, "x", CASE_INPUT, case_dtype(line, "x"), t, m->hidden, &args->x);
    case_tensor *ids = NULL, *weights = NULL;
    if (l->given) {
        ids = add(run, "ids", CASE_INPUT, LLMK_I32, t, k, &args->ids);
        weights = add(run, "weights", CASE_INPUT, LLMK_F32, t, k, &args->weights);
    }
    case_tensor *y = add(run, "y", CASE_OUTPUT, case_dtype(line, "y"), t, m->hidden, &args->y);
    if (!case_declared(run) || !fill_weights(run, l))
        return false;
    case_keep(run, l);
    case_fill_values(run, x, CASE_UNIFORM, x_size(run, l), 1);
    fill_parts(run, l);
    routing r = {NULL, NULL, case_alloc(run, (t * k + 1) * sizeof *r.bound)};
    if (l->given) {
        give(line, l, ids, weights);
        r.ids = ids->values;
        r.weights = weights->values;
    } else {
        r.ids = case_alloc(run, (t * k + 1) * sizeof *r.ids);
        r.weights = case_alloc(run, (t * k + 1) * sizeof *r.weights);
        if (!route(run, l, x, &r))
            return false;
    }
    count_touched(run, l, r.ids);
    return case_timing_only(run) || expect(run, l, x, &r, y);
}

static void free_buffer(void *buffer)
{
    clReleaseMemObject(buffer);
}

static void free_plan(void *plan)
{
    llmk_moe_plan_free(plan);
}

/* The tensor on the device, NaN around it. */
static bool upload(case_run *run, const part *p, llmk_tensor *out)
{
    enum { GUARD = 256 };
    if (!p->dtype)
        return true;
    const uint64_t bytes = case_bytes(p->dtype, p->rows * p->cols);
    uint8_t *image = malloc(bytes + 2 * (size_t)GUARD);
    if (!image)
        return case_refuse(run, "the host has no memory for the plan's tensors");
    memset(image, 0xff, bytes + 2 * (size_t)GUARD);
    for (uint64_t i = 0; i < p->rows * p->cols; i++)
        case_encode(p->dtype, image + GUARD, i, p->values[i]);
    cl_int code;
    cl_mem buffer = clCreateBuffer(run->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                   bytes + 2 * (size_t)GUARD, image, &code);
    free(image);
    if (!buffer)
        return case_skip(run, "a tensor of the plan: OpenCL error %d", code);
    case_cleanup(run, free_buffer, buffer);
    case_count_bytes(run, bytes, 0);
    *out = p->rows == 1 ? llmk_vector(buffer, p->dtype, p->cols)
                        : llmk_matrix(buffer, p->dtype, p->rows, p->cols);
    out->offset = GUARD;
    return true;
}

static bool create_weights(case_run *run, const layer *l, llmk_moe_desc *d)
{
    const llmk_weights *all[] = {NULL, NULL, NULL};
    const bool split = is_split(l);
    if (!expert_weights_create(run, &l->gate, false, &d->gate_weights) ||
        (split && !expert_weights_create(run, &l->up, false, &d->up_weights)) ||
        !expert_weights_create(run, &l->down, false, &d->down_weights))
        return false;
    all[0] = d->gate_weights;
    all[1] = d->up_weights;
    all[2] = d->down_weights;
    for (size_t i = 0; i < 3; i++) {
        llmk_weights_info info = LLMK_INIT(llmk_weights_info);
        if (all[i] && llmk_weights_get_info(all[i], &info) == LLMK_OK)
            case_count_bytes(run, info.device_bytes / l->held * l->touched, 0);
    }
    return !l->m.shared_width ||
           (expert_weights_create(run, &l->shared_gate, true, &d->shared_gate_weights) &&
            (!split || expert_weights_create(run, &l->shared_up, true, &d->shared_up_weights)) &&
            expert_weights_create(run, &l->shared_down, true, &d->shared_down_weights));
}

static bool prepare_set(case_run *run, const case_line *line, void *args_, size_t set)
{
    (void)set;
    llmk_moe_forward_args *args = args_;
    const layer *l = case_kept(run);
    const moe_model *m = &l->m;
    llmk_moe_desc d = LLMK_INIT(llmk_moe_desc);
    d.x_dtype = case_dtype(line, "x");
    d.inner = case_dtype(line, "inner");
    d.experts_a_token = m->k;
    if (!l->given) {
        d.score = m->score;
        d.flags = m->renormalize ? LLMK_MOE_RENORMALIZE : 0;
        d.groups = m->groups;
        d.top_groups = m->top_groups;
        d.scale = (float)m->scale;
    }
    d.activation = l->activation;
    d.layout = l->layout;
    llmk_tensor *const slots[PARTS] = {&d.gate,      &d.router_bias,  &d.correction,
                                       &d.map,       &d.gate_bias,    &d.up_bias,
                                       &d.down_bias, &d.shared_router};
    for (int i = 0; i < PARTS; i++)
        if (!upload(run, &l->parts[i], slots[i]))
            return false;
    llmk_tensor *const matrices[] = {&d.gate, &d.gate_bias, &d.up_bias, &d.down_bias,
                                     &d.shared_router};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        if (matrices[i]->buffer && matrices[i]->rank == 1) { /* of one row */
            const uint64_t offset = matrices[i]->offset;
            *matrices[i] =
                llmk_matrix(matrices[i]->buffer, matrices[i]->dtype, 1, matrices[i]->dim[0]);
            matrices[i]->offset = offset;
        }
    if (!create_weights(run, l, &d))
        return false;
    const uint64_t most = case_u64(line, "max") ? case_u64(line, "max") : l->tokens;
    const llmk_status status =
        llmk_moe_plan_create(case_context(run), &d, most ? most : 1, &args->plan);
    if (status == LLMK_OUT_OF_DEVICE_MEMORY)
        return case_skip(run, "%s", llmk_error_message());
    if (status != LLMK_OK)
        return case_refuse(run, "%s", llmk_error_message());
    case_cleanup(run, free_plan, args->plan);
    return true;
}

static double flops(const case_line *line)
{
    layer l = {0};
    case_run unused = {0};
    if (!shape(&unused, line, &l))
        return 0;
    const moe_model *m = &l.m;
    return 2 * (double)l.tokens * (double)m->hidden *
           (3 * (double)(m->k * m->width + m->shared_width) + (double)m->experts);
}

CASE_OP(moe_forward, LLMK_OP_MOE_FORWARD, prepare_set);
