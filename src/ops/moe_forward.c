/* moe_forward.c - a whole mixture-of-experts layer: routing, dispatch, experts, combine. */
#include "ops/elementwise.h"
#include "ops/gated.h"
#include "ops/linear.h"
#include "ops/linear_selftest.h"
#include "ops/moe_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct problem {
    const llmk_moe_plan *plan;
    llmk_view x, ids, weights, y;
} problem;

/* The plan's tensors, which no call may write. */
static void check_inputs_of(llmk_checker *c, const llmk_moe_plan *plan)
{
    llmk_check_input_of(c, "the plan's gate", &plan->gate);
    llmk_check_input_of(c, "the plan's router_bias", &plan->router_bias);
    llmk_check_input_of(c, "the plan's correction", &plan->correction);
    llmk_check_input_of(c, "the plan's map", &plan->map);
    llmk_check_input_of(c, "the plan's gate_bias", &plan->whole_gate_bias);
    if (plan->gated.up != plan->gate_weights)
        llmk_check_input_of(c, "the plan's up_bias", &plan->gated.up_bias);
    llmk_check_input_of(c, "the plan's down_bias", &plan->down_bias);
    llmk_check_input_of(c, "the plan's shared_router", &plan->shared_router);
}

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *out)
{
    llmk_moe_forward_args a;
    problem *p = out;
    LLMK_TRY(llmk_take_args("moe_forward", args, sizeof a, sizeof a, &a));
    if (!a.plan)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "moe_forward: plan is NULL");
    const llmk_moe_plan *plan = p->plan = a.plan;
    llmk_checker c = llmk_check_begin(ctx, "moe_forward", dry);
    llmk_check_flags(&c, a.flags, 0);
    llmk_check_that(&c, plan->ctx == ctx, LLMK_INVALID_ARGUMENT, "plan belongs to another context");
    llmk_check_tensor(&c, "x", &a.x, LLMK_BIT(plan->x_dtype), LLMK_INPUT, &p->x);
    llmk_check_matrix(&c, "x", &p->x, p->x.nrows, plan->hidden);
    llmk_check_that(&c, p->x.nrows <= plan->max_tokens, LLMK_INVALID_SHAPE,
                    "x has %llu rows; the plan is for at most %llu", (unsigned long long)p->x.nrows,
                    (unsigned long long)plan->max_tokens);
    llmk_check_optional(&c, "ids", &a.ids, LLMK_BIT(LLMK_I32), LLMK_INPUT, &p->ids);
    if (p->ids.present) {
        llmk_check_matrix(&c, "ids", &p->ids, p->x.nrows, plan->k);
        llmk_check_that(&c, a.weights.buffer || (dry && a.weights.dtype), LLMK_INVALID_ARGUMENT,
                        "ids are given, but no weights; expected both, or none");
        llmk_check_tensor(&c, "weights", &a.weights, LLMK_FLOATS, LLMK_INPUT, &p->weights);
        llmk_check_matrix(&c, "weights", &p->weights, p->x.nrows, plan->k);
    } else {
        llmk_check_that(&c, plan->routes, LLMK_INVALID_ARGUMENT,
                        "ids are absent, and the plan has no gate to make them");
        llmk_check_absent(&c, "weights", &a.weights, "ids are absent");
    }
    llmk_check_tensor(&c, "y", &a.y, LLMK_FLOATS, LLMK_OUTPUT, &p->y);
    llmk_check_matrix(&c, "y", &p->y, p->x.nrows, plan->hidden);
    check_inputs_of(&c, plan);
    return llmk_check_end(&c);
}

static bool is_empty(const void *problem_)
{
    return ((const problem *)problem_)->x.nrows == 0;
}

static void key(const void *problem_, char *text, size_t size)
{
    const problem *p = problem_;
    const llmk_moe_plan *plan = p->plan;
    char gate[64], down[64];
    llmk_linear_weights_key(plan->gate_weights, gate, sizeof gate);
    llmk_linear_weights_key(plan->down_weights, down, sizeof down);
    llmk_join(text, size, "x=", llmk_dtype_name(plan->x_dtype), " h=", llmk_dtype_name(plan->inner),
              " y=", llmk_dtype_name(p->y.dtype), " up=", gate, " down=", down,
              " act=", llmk_digits(plan->gated.activation),
              plan->gate_weights == plan->gated.up
                  ? plan->gated.step == 2 ? " interleaved" : " packed"
                  : "",
              NULL);
}

static llmk_workspace *workspace(const void *problem_)
{
    return ((const problem *)problem_)->plan->use;
}

/* ---- Stages ---- */

/* A stretch of the plan's sort buffer. */
static llmk_view sort_view(const llmk_moe_plan *plan, uint64_t first, uint64_t rows, uint64_t cols)
{
    llmk_view v = llmk_moe_view(plan->sort, LLMK_I32, rows, cols);
    v.rows.offset = first;
    return v;
}

static moe_dispatch dispatch_of(const problem *p, const moe_steps *steps)
{
    const llmk_moe_plan *plan = p->plan;
    const uint64_t tokens = p->x.nrows, pairs = tokens * plan->k;
    const uint64_t source = llmk_moe_pairs_at(plan);
    return (moe_dispatch){
        .ids = p->ids.present ? p->ids : llmk_moe_view(plan->ids, LLMK_I32, tokens, plan->k),
        .map = plan->map,
        .offsets = sort_view(plan, 0, 1, plan->held + 1),
        .tiles = plan->sort,
        .tiles_at = plan->held + 1,
        .zeros = steps->layer ? llmk_grouped_layer_counters(plan->held, pairs, steps->height)
                              : LLMK_GROUPED_COUNTERS,
        .height = steps->height,
        .id_end = plan->id_end,
        .experts = plan->held,
        .source = sort_view(plan, source, 1, pairs),
        .inverse = sort_view(plan, source + pairs, tokens, plan->k),
        .gathered = steps->gathers ? plan->gathered : NULL,
    };
}

/* Ids, weights, and the pairs sorted. */
static llmk_status route(llmk_launch *launch, const problem *p, const moe_steps *steps,
                         const moe_dispatch *dispatch, bool ref)
{
    const llmk_moe_plan *plan = p->plan;
    const uint64_t tokens = p->x.nrows;
    if (p->ids.present)
        return llmk_moe_launch_dispatch(launch, dispatch, ref);
    moe_route_problem r = {
        .x = p->x,
        .gate = plan->gate,
        .router_bias = plan->router_bias,
        .correction = plan->correction,
        .ids = dispatch->ids,
        .weights = llmk_moe_view(plan->weights, LLMK_F32, tokens, plan->k),
        .tokens = tokens,
        .experts = plan->id_end,
        .k = plan->k,
        .routing = plan->routing,
    };
    r.logits = llmk_moe_view(plan->logits, LLMK_F32, tokens, plan->id_end);
    if (steps->route_few)
        return llmk_moe_launch_route_few(launch, &r, dispatch, plan->meet);
    LLMK_TRY(llmk_moe_launch_logits(launch, &r.x, &r.gate, &r.router_bias, &r.logits, ref));
    r.router_bias = (llmk_view){0};
    if (ref)
        LLMK_TRY(llmk_moe_launch_select_ref(launch, &r));
    else
        LLMK_TRY(llmk_moe_launch_select(launch, &r, steps->select_dispatch ? dispatch : NULL));
    return steps->select_dispatch ? LLMK_OK : llmk_moe_launch_dispatch(launch, dispatch, ref);
}

/* The products of the experts: gate and up, and down. */
static void problems_of(const problem *p, const moe_dispatch *dispatch, grouped_problem out[2])
{
    const llmk_moe_plan *plan = p->plan;
    const uint64_t pairs = p->x.nrows * plan->k;
    grouped_problem g = {
        .x = p->x,
        .bias = plan->gate_bias,
        .y = llmk_moe_view(plan->hidden_rows, plan->inner, pairs, plan->gated.outputs),
        .source = dispatch->source,
        .weights = plan->gate_weights,
        .schedule = plan->sort,
        .groups = plan->held,
        .rest = UINT32_MAX,
        .height = dispatch->height,
        .rows = pairs,
        .fan = plan->k,
        .gate = &plan->gated,
        .gathered = plan->gathered,
    };
    if (dispatch->gathered) {
        g.x = llmk_moe_view(plan->gathered, p->x.dtype, pairs, plan->hidden);
        g.source = (llmk_view){0};
    }
    out[0] = g;
    g.x = g.y;
    g.bias = plan->down_bias;
    g.y = llmk_moe_view(plan->rows, LLMK_F32, pairs, plan->hidden);
    g.source = (llmk_view){0}; /* h lies in the order of the groups */
    g.weights = plan->down_weights;
    g.gate = NULL;
    if (plan->down_weights->segment_count == 1 && pairs > 0) {
        const uint64_t ways = plan->row_room / pairs;
        g.most_ways = ways < MOE_MOST_WAYS ? (uint32_t)ways : MOE_MOST_WAYS;
    }
    out[1] = g;
}

/* Those of the shared expert, whose rows are the tokens. */
static void shared_problems_of(const problem *p, grouped_problem out[2])
{
    const llmk_moe_plan *plan = p->plan;
    const uint64_t tokens = p->x.nrows;
    grouped_problem g = {
        .x = p->x,
        .y = llmk_moe_view(plan->shared_hidden, plan->inner, tokens, plan->shared_gated.outputs),
        .weights = plan->shared_gate_weights,
        .gate = &plan->shared_gated,
        .rest = UINT32_MAX,
        .groups = 1,
        .rows = tokens,
        .fan = 1,
    };
    out[0] = g;
    g.x = g.y;
    g.y = llmk_moe_view(plan->shared_rows, LLMK_F32, tokens, plan->hidden);
    g.weights = plan->shared_down_weights;
    g.gate = NULL;
    out[1] = g;
}

/* The shared expert's outputs, and the logits that gate them. */
static llmk_status run_shared(llmk_launch *launch, const problem *p,
                              const grouped_products *products)
{
    const llmk_moe_plan *plan = p->plan;
    const uint64_t tokens = p->x.nrows;
    if (plan->shared_router.present) {
        const llmk_view logits = llmk_moe_view(plan->shared_logit, LLMK_F32, tokens, 1), none = {0};
        LLMK_TRY(llmk_moe_launch_logits(launch, &p->x, &plan->shared_router, &none, &logits,
                                        products->ref));
    }
    grouped_problem g[2];
    shared_problems_of(p, g);
    for (size_t i = 0; i < 2; i++) {
        llmk_reason why;
        const grouped_products *own =
            products->supports(launch->ctx, &g[i], &why) ? products : &llmk_grouped_portable;
        g[i].height = own->height(tokens, 1, tokens <= LLMK_GROUPED_FEW_TOKENS,
                                  llmk_grouped_is_codes(g[i].weights));
        LLMK_TRY(own->launch(launch, &g[i]));
    }
    return LLMK_OK;
}

static llmk_status launch(llmk_launch *l, const grouped_products *products, const problem *p)
{
    const llmk_moe_plan *plan = p->plan;
    const uint64_t tokens = p->x.nrows;
    moe_steps steps = llmk_moe_steps(plan, tokens, p->ids.present, products);
    if (l->config)
        steps.height = l->config->value[0];
    const moe_dispatch dispatch = dispatch_of(p, &steps);
    const llmk_view weights =
        p->ids.present ? p->weights : llmk_moe_view(plan->weights, LLMK_F32, tokens, plan->k);
    llmk_view residual = {0};
    if (plan->has_shared) {
        LLMK_TRY(run_shared(l, p, products));
        residual = llmk_moe_view(plan->shared_rows, LLMK_F32, tokens, plan->hidden);
    }
    LLMK_TRY(route(l, p, &steps, &dispatch, products->ref));
    grouped_problem g[2];
    problems_of(p, &dispatch, g);
    if (steps.layer)
        LLMK_TRY(products->layer(l, &g[0], &g[1]));
    else
        LLMK_TRY(products->launch(l, &g[0]));
    if (steps.combine) {
        g[1].y = p->y;
        g[1].source = dispatch.source;
        const grouped_combine combine = {weights, residual, plan->shared_logit};
        return products->combine(l, &g[1], &combine);
    }
    if (!steps.layer)
        LLMK_TRY(products->launch(l, &g[1]));
    const moe_combine combine = {.x = g[1].y,
                                 .inverse = dispatch.inverse,
                                 .weights = weights,
                                 .residual = residual,
                                 .y = p->y,
                                 .residual_logit = plan->shared_logit,
                                 .ways = products->splits ? plan->sort : NULL,
                                 .ways_at = (uint32_t)llmk_grouped_ways_at(plan->held)};
    return llmk_moe_launch_combine(l, &combine, products->ref);
}

/* ---- Variants ---- */

static bool supports(llmk_context *ctx, const grouped_products *products, const char *name,
                     const problem *p, llmk_reason *why)
{
    const llmk_moe_plan *plan = p->plan;
    const bool chosen = !ctx->is_trial && !llmk_variant_is_forced(ctx, "moe_forward", name);
    if (products->ref)
        return true;
    if (!llmk_moe_may_dispatch(&ctx->caps, why) ||
        (plan->routes && !p->ids.present &&
         !llmk_moe_may_route(&ctx->caps, plan->id_end, plan->k, plan->routing.groups, why)))
        return false;
    grouped_problem g[4];
    const moe_dispatch dispatch = dispatch_of(p, &(moe_steps){0});
    problems_of(p, &dispatch, g);
    for (size_t i = 0; i < 2; i++)
        if (!products->supports(ctx, &g[i], why))
            return false;
    if (plan->has_shared)
        shared_problems_of(p, g + 2);
    for (size_t i = 2; plan->has_shared && i < 4; i++)
        if (!llmk_grouped_portable.supports(ctx, &g[i], why))
            return false;
    if (chosen && products->suits &&
        !products->suits(g[0].rows, plan->held, llmk_grouped_is_codes(plan->gate_weights), why))
        return false;
    return llmk_unit_rows((const llmk_view *[]){&p->x, &p->y, &plan->gate, &plan->shared_router},
                          (const char *[]){"x", "y", "gate", "shared_router"}, 4, why);
}

LLMK_GROUPED_VARIANTS(LLMK_GROUPED_FUNCTIONS)
static const llmk_variant variants[] = {LLMK_GROUPED_VARIANTS(LLMK_GROUPED_ROW)};

const grouped_products *llmk_moe_products(const llmk_moe_plan *plan, uint64_t tokens)
{
#define PRODUCTS(name, id) &llmk_grouped_##id,
    static const grouped_products *const all[] = {LLMK_GROUPED_VARIANTS(PRODUCTS)};
#undef PRODUCTS
    const problem p = {.plan = plan,
                       .x = llmk_moe_view(NULL, plan->x_dtype, tokens, plan->hidden),
                       .y = llmk_moe_view(NULL, plan->x_dtype, tokens, plan->hidden)};
    llmk_reason why;
    for (size_t i = 0; i < LLMK_COUNT(all); i++)
        if (llmk_variant_is_forced(plan->ctx, "moe_forward", variants[i].name))
            return all[i];
    for (size_t i = 0; i < LLMK_COUNT(all); i++)
        if (variants[i].supports(plan->ctx, &p, &why))
            return all[i];
    return &llmk_grouped_ref;
}

static const llmk_config configs[] = {
    {"portable", "height-4", {LLMK_GROUPED_FEW}, 0, 0},
    {"portable", "height-64", {64}, 0, 0},
};

static bool config_fits(const llmk_context *ctx, const void *problem_, const llmk_config *config,
                        llmk_reason *why)
{
    const problem *p = problem_;
    (void)ctx;
    return config->value[0] == LLMK_GROUPED_FEW || p->x.nrows > LLMK_GROUPED_FEW_TOKENS ||
           llmk_no(why, "calls of up to %u tokens have tiles of %u rows", LLMK_GROUPED_FEW_TOKENS,
                   LLMK_GROUPED_FEW);
}

static const char *const size_names[] = {"t", "experts", "h", "f", NULL};

static bool sizes_of(const void *problem_, uint64_t sizes[LLMK_TUNING_SIZES])
{
    const problem *p = problem_;
    sizes[0] = p->x.nrows;
    sizes[1] = p->plan->held;
    sizes[2] = p->plan->hidden;
    sizes[3] = p->plan->gated.outputs;
    return true;
}

/* ---- Self-test ---- */

enum { EXPERTS = 4, CHOSEN = 2, FEW = 5, MANY = 40 };
/* Of the kernels on wgmma, whose tiles are up to 128 or 192 rows x 256 x 64. */
enum { EVEN_HIDDEN = 160, EVEN_OUTPUTS = 96, EVEN_MANY = 200, EVEN_MOST = 600 };

static double activated(const grouped_gate *g, double gate, double up)
{
    return llmk_gated_host(g->activation, (double)g->limit, (double)g->alpha, gate, up);
}

typedef struct layer {
    const double *gate, *up, *down; /* up: NULL where the gate has both */
    uint64_t hidden, outputs;
} layer;

static double dot(const float *x, const double *w, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)x[i] * w[i];
    return sum;
}

/* Adds weight times the expert's output to y; returns the largest sum of magnitudes. */
static double add_expert(const layer *l, const grouped_gate *g, const float *x, uint64_t e,
                         double weight, double *h, double *y)
{
    const uint64_t n = l->up ? l->outputs : 2 * l->outputs;
    double largest = 0;
    for (uint64_t f = 0; f < l->outputs; f++) {
        const uint64_t row = e * n + f * g->step;
        h[f] = activated(
            g, dot(x, l->gate + row * l->hidden, l->hidden),
            dot(x, (l->up ? l->up : l->gate) + (row + g->up_first) * l->hidden, l->hidden));
    }
    for (uint64_t c = 0; c < l->hidden; c++) {
        double magnitude = 0;
        for (uint64_t f = 0; f < l->outputs; f++) {
            const double product = weight * h[f] * l->down[(e * l->hidden + c) * l->outputs + f];
            y[c] += product;
            magnitude += fabs(product);
        }
        largest = fmax(largest, magnitude);
    }
    return largest;
}

static llmk_status try_tokens(llmk_trial *t, llmk_moe_plan *plan, const layer *l,
                              const float *router, llmk_dtype y_dtype, uint64_t tokens)
{
    const float *x;
    double logit[EXPERTS], largest = 0;
    llmk_moe_forward_args a = LLMK_INIT(llmk_moe_forward_args);
    grouped_gate gate = plan->gated;
    gate.up_first = l->up ? 0 : gate.step == 2 ? 1 : (uint32_t)l->outputs;
    a.plan = plan;
    const float size = llmk_gated_trial_size(gate.activation);
    a.x = llmk_trial_input(t, plan->x_dtype, tokens, l->hidden, 1, size, &x);
    a.y = llmk_trial_output(t, y_dtype, tokens, l->hidden);
    double *y = llmk_trial_doubles(t, tokens * l->hidden), *h = llmk_trial_doubles(t, l->outputs);
    if (t->status != LLMK_OK)
        return t->status;
    for (uint64_t i = 0; i < tokens; i++) {
        const float *row = x + i * l->hidden;
        size_t best = 0, second = 1;
        for (size_t e = 0; e < EXPERTS; e++) {
            logit[e] = 0;
            for (uint64_t c = 0; c < l->hidden; c++)
                logit[e] += (double)row[c] * router[e * l->hidden + c];
            if (e > 0 && logit[e] > logit[best]) {
                second = best;
                best = e;
            } else if (e > 1 && logit[e] > logit[second]) {
                second = e;
            }
        }
        const double weight = 1 / (1 + exp(logit[second] - logit[best]));
        double *out = y + i * l->hidden;
        largest = fmax(largest, add_expert(l, &gate, row, best, weight, h, out) +
                                    add_expert(l, &gate, row, second, 1 - weight, h, out));
    }
    const double inner = plan->inner == LLMK_F32 ? 0 : plan->inner == LLMK_F16 ? 1e-3 : 8e-3;
    llmk_trial_run(t, &a);
    llmk_trial_compare(t, "y", &a.y, y, 0, largest * (inner + 1e-4));
    return t->status;
}

/* whole: one group of weights a row, where there are groups. */
static llmk_status try_layer(llmk_trial *t, const problem *p, bool whole)
{
    const llmk_moe_plan *like = p->plan;
    const bool split = like->gate_weights != like->gated.up;
    llmk_weights *gate = NULL, *up = NULL, *down = NULL;
    llmk_moe_plan *plan = NULL;
    double *wg = NULL, *wu = NULL, *wd = NULL;
    const float *router = NULL;
    const bool even = !strncmp(t->variant->name, "nv90", 4), codes = even && t->variant->name[4];
    const bool steps = strstr(t->variant->name, "nv-stream") != NULL;
    const uint64_t hidden = even ? EVEN_HIDDEN : llmk_linear_trial_depth(like->gate_weights, steps);
    const uint64_t outputs = codes  ? EVEN_HIDDEN
                             : even ? EVEN_OUTPUTS
                                    : llmk_linear_trial_depth(like->down_weights, steps);
    const uint64_t many = even ? EVEN_MANY : MANY, most = even ? EVEN_MOST : MANY;
    llmk_moe_desc d = LLMK_INIT(llmk_moe_desc);
    llmk_status status = llmk_linear_trial_weights(
        t, like->gate_weights, EXPERTS, split ? outputs : 2 * outputs, hidden, whole, &wg, &gate);
    if (status == LLMK_OK && split)
        status = llmk_linear_trial_weights(t, like->gate_weights, EXPERTS, outputs, hidden, whole,
                                           &wu, &up);
    if (status == LLMK_OK)
        status = llmk_linear_trial_weights(t, like->down_weights, EXPERTS, hidden, outputs, whole,
                                           &wd, &down);
    if (status == LLMK_OK) {
        const bool clamped = like->gated.activation == LLMK_SWIGLU_CLAMPED;
        d.x_dtype = like->x_dtype;
        d.inner = like->inner;
        d.experts_a_token = CHOSEN;
        d.score = LLMK_MOE_TOPK_SOFTMAX;
        d.gate = llmk_trial_input(t, LLMK_F32, EXPERTS, hidden, 2, 0.3f, &router);
        d.activation = like->gated.activation;
        d.layout = split                   ? LLMK_GATE_SPLIT
                   : like->gated.step == 2 ? LLMK_GATE_INTERLEAVED
                                           : LLMK_GATE_PACKED;
        d.limit = clamped ? like->gated.limit : 0;
        d.alpha = clamped ? like->gated.alpha : 0;
        d.gate_weights = gate;
        d.up_weights = up;
        d.down_weights = down;
        status = t->status;
    }
    if (status == LLMK_OK)
        status = llmk_moe_plan_create(t->ctx, &d, most, &plan);
    const layer l = {wg, wu, wd, hidden, outputs};
    if (status == LLMK_OK)
        status = try_tokens(t, plan, &l, router, p->y.dtype, FEW);
    if (status == LLMK_OK)
        status = try_tokens(t, plan, &l, router, p->y.dtype, many);
    if (status == LLMK_OK && most > many)
        status = try_tokens(t, plan, &l, router, p->y.dtype, most);
    llmk_moe_plan_free(plan);
    llmk_weights_free(gate);
    llmk_weights_free(up);
    llmk_weights_free(down);
    return status;
}

static llmk_status self_test(llmk_trial *t, const void *problem_)
{
    LLMK_TRY(try_layer(t, problem_, false));
    return strcmp(t->variant->name, "nv90-packed") ? LLMK_OK : try_layer(t, problem_, true);
}

const llmk_operator llmk_operator_moe_forward = {
    .id = LLMK_OP_MOE_FORWARD,
    .name = "moe_forward",
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
    .workspace = workspace,
};
_Static_assert(sizeof(problem) <= LLMK_PROBLEM_SIZE, "raise LLMK_PROBLEM_SIZE");

llmk_status llmk_moe_forward(llmk_context *ctx, cl_command_queue queue,
                             const llmk_moe_forward_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_moe_forward, ctx, queue, args, events);
}
