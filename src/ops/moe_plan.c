/* moe_plan.c - mixture-of-experts layers made ready: the description checked, scratch allocated. */
#include "ops/moe_plan.h"

#include "ops/gated.h"
#include "ops/linear.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- Weights ---- */

static void check_weights(llmk_checker *c, const char *name, const llmk_weights *w,
                          uint64_t experts, uint64_t n, uint64_t k)
{
    llmk_check_that(c, w != NULL, LLMK_INVALID_ARGUMENT, "%s is NULL", name);
    if (c->status != LLMK_OK || !w)
        return;
    llmk_check_that(c, w->ctx == c->ctx, LLMK_INVALID_ARGUMENT, "%s belong to another context",
                    name);
    llmk_check_that(c, w->experts == experts, LLMK_INVALID_SHAPE,
                    "%s have %" PRIu64 " experts; expected %" PRIu64, name, w->experts, experts);
    llmk_check_that(c, w->n == n && w->k == k, LLMK_INVALID_SHAPE,
                    "%s are [%" PRIu64 ", %" PRIu64 "]; expected [%" PRIu64 ", %" PRIu64 "]", name,
                    w->n, w->k, n, k);
    llmk_check_that(c, w->experts > 1 || w->segment_count <= 1, LLMK_UNSUPPORTED,
                    "%s are of one expert and lie in %zu buffers; one is supported", name,
                    w->segment_count);
}

/* Gate and up go through one kernel: it sees one of them, and the other's buffers. */
static void check_pair(llmk_checker *c, const char *name, const llmk_weights *a,
                       const llmk_weights *b)
{
    if (c->status != LLMK_OK || !a || !b)
        return;
    llmk_reason why = {""};
    llmk_check_that(c, llmk_linear_goes_with(a, b, &why), LLMK_UNSUPPORTED, "%s have %s", name,
                    why.text);
}

/* The gate's half of a bias [E, 2F], or up's. */
static llmk_view half_of(const llmk_view *whole, const grouped_gate *gate, bool up)
{
    llmk_view half = *whole;
    if (!whole->present)
        return half;
    half.ncols = gate->outputs;
    half.rows.offset += up ? gate->up_first * whole->rows.inner : 0;
    half.rows.inner *= gate->step;
    return half;
}

/* A gated pair of weights [.., H] of F outputs; *f: 0 is set. */
static void check_gated(llmk_checker *c, const char *gate_name, const llmk_weights *gate,
                        const char *up_name, const llmk_weights *up, const llmk_moe_desc *d,
                        uint64_t experts, uint64_t hidden, grouped_gate *out)
{
    const bool split = d->layout == LLMK_GATE_SPLIT;
    const uint64_t n = gate ? gate->n : 0, outputs = split ? n : n / 2;
    check_weights(c, gate_name, gate, experts, n, hidden);
    llmk_check_that(c, split || n % 2 == 0, LLMK_INVALID_SHAPE,
                    "%s have n = %" PRIu64 "; expected an even number, 2 F", gate_name, n);
    if (split) {
        check_weights(c, up_name, up, experts, n, hidden);
        check_pair(c, up_name, gate, up);
    } else {
        llmk_check_that(c, up == NULL, LLMK_INVALID_ARGUMENT,
                        "%s are given; the gate's hold both in this layout", up_name);
    }
    *out = (grouped_gate){.up = split ? up : gate,
                          .outputs = (uint32_t)outputs,
                          .step = d->layout == LLMK_GATE_INTERLEAVED ? 2 : 1,
                          .up_first = split                                ? 0
                                      : d->layout == LLMK_GATE_INTERLEAVED ? 1
                                                                           : (uint32_t)outputs,
                          .activation = d->activation,
                          .limit = llmk_gated_limit(d->limit),
                          .alpha = llmk_gated_alpha(d->alpha)};
}

/* ---- The description ---- */

static void check_options(llmk_checker *c, const llmk_moe_desc *d)
{
    llmk_check_that(c, d->x_dtype >= LLMK_F32 && d->x_dtype <= LLMK_BF16, LLMK_INVALID_DTYPE,
                    "x_dtype is %s; expected f32, f16 or bf16", llmk_dtype_name(d->x_dtype));
    llmk_check_that(c, (unsigned)d->inner <= LLMK_BF16, LLMK_INVALID_DTYPE,
                    "inner is %s; expected 0, f32, f16 or bf16", llmk_dtype_name(d->inner));
    llmk_check_gated(c, d->activation, d->layout, d->limit, d->alpha);
}

static void check_router(llmk_checker *c, const llmk_moe_desc *d, llmk_moe_plan *p)
{
    const uint64_t experts = p->id_end, k = d->experts_a_token;
    llmk_check_that(c, k >= 1 && k <= experts, LLMK_INVALID_ARGUMENT,
                    "experts_a_token is %" PRIu64 "; expected 1 to %" PRIu64, k, experts);
    llmk_check_optional(c, "gate", &d->gate, LLMK_FLOATS, LLMK_INPUT, &p->gate);
    p->routes = p->gate.present;
    if (!p->routes) {
        static const char why[] = "there is no gate";
        llmk_check_absent(c, "router_bias", &d->router_bias, why);
        llmk_check_absent(c, "correction", &d->correction, why);
        llmk_check_that(c,
                        d->score == LLMK_MOE_SCORE_NONE && d->flags == 0 && d->groups == 0 &&
                            d->top_groups == 0 && d->scale == 0 && d->eps == 0,
                        LLMK_INVALID_ARGUMENT,
                        "score is %d, flags 0x%x: options of routing go with a gate", (int)d->score,
                        d->flags);
        return;
    }
    llmk_check_matrix(c, "gate", &p->gate, experts, p->hidden);
    llmk_check_optional(c, "router_bias", &d->router_bias, LLMK_FLOATS, LLMK_INPUT,
                        &p->router_bias);
    llmk_check_vector(c, "router_bias", &p->router_bias, experts);
    llmk_check_optional(c, "correction", &d->correction, LLMK_FLOATS, LLMK_INPUT, &p->correction);
    llmk_check_vector(c, "correction", &p->correction, experts);
    llmk_moe_check_routing(c, d->score, d->flags, d->groups, d->top_groups, d->scale, d->eps,
                           experts, k, &p->routing);
}

static void check_shared(llmk_checker *c, const llmk_moe_desc *d, llmk_moe_plan *p)
{
    p->has_shared = d->shared_gate_weights || d->shared_down_weights;
    if (!p->has_shared) {
        llmk_check_that(c, d->shared_up_weights == NULL, LLMK_INVALID_ARGUMENT,
                        "shared_up_weights are given without shared_gate_weights");
        llmk_check_absent(c, "shared_router", &d->shared_router, "there is no shared expert");
        return;
    }
    check_gated(c, "shared_gate_weights", d->shared_gate_weights, "shared_up_weights",
                d->shared_up_weights, d, 1, p->hidden, &p->shared_gated);
    check_weights(c, "shared_down_weights", d->shared_down_weights, 1, p->hidden,
                  p->shared_gated.outputs);
    llmk_check_that(c, p->shared_gated.outputs >= 1, LLMK_INVALID_SHAPE,
                    "shared_gate_weights are empty");
    p->shared_gate_weights = d->shared_gate_weights;
    p->shared_down_weights = d->shared_down_weights;
    llmk_check_optional(c, "shared_router", &d->shared_router, LLMK_FLOATS, LLMK_INPUT,
                        &p->shared_router);
    llmk_check_matrix(c, "shared_router", &p->shared_router, 1, p->hidden);
}

static void check_biases(llmk_checker *c, const llmk_moe_desc *d, llmk_moe_plan *p)
{
    const bool split = d->layout == LLMK_GATE_SPLIT;
    const uint64_t outputs = p->gated.outputs;
    llmk_check_optional(c, "gate_bias", &d->gate_bias, LLMK_FLOATS, LLMK_INPUT, &p->gate_bias);
    llmk_check_matrix(c, "gate_bias", &p->gate_bias, p->held, split ? outputs : 2 * outputs);
    p->whole_gate_bias = p->gate_bias;
    if (split) {
        llmk_check_optional(c, "up_bias", &d->up_bias, LLMK_FLOATS, LLMK_INPUT, &p->gated.up_bias);
        llmk_check_matrix(c, "up_bias", &p->gated.up_bias, p->held, outputs);
    } else {
        llmk_check_absent(c, "up_bias", &d->up_bias, "gate_bias holds both in this layout");
        p->gated.up_bias = half_of(&p->gate_bias, &p->gated, true);
    }
    llmk_check_optional(c, "down_bias", &d->down_bias, LLMK_FLOATS, LLMK_INPUT, &p->down_bias);
    llmk_check_matrix(c, "down_bias", &p->down_bias, p->held, p->hidden);
}

static llmk_status check(llmk_context *ctx, const llmk_moe_desc *d, uint64_t max_tokens,
                         llmk_moe_plan *p)
{
    llmk_checker c = llmk_check_begin(ctx, "moe_plan", false);
    check_options(&c, d);
    const uint64_t held = d->gate_weights ? d->gate_weights->experts : 0;
    llmk_check_that(&c, held <= LLMK_MOE_MAX_EXPERTS, LLMK_INVALID_SHAPE,
                    "gate_weights have %" PRIu64 " experts; at most %u are supported", held,
                    LLMK_MOE_MAX_EXPERTS);
    p->hidden = d->gate_weights ? d->gate_weights->k : 0;
    p->held = (uint32_t)held;
    check_gated(&c, "gate_weights", d->gate_weights, "up_weights", d->up_weights, d, held,
                p->hidden, &p->gated);
    check_weights(&c, "down_weights", d->down_weights, held, p->hidden, p->gated.outputs);
    p->gate_weights = d->gate_weights;
    p->down_weights = d->down_weights;
    llmk_check_that(&c, p->hidden >= 1 && p->gated.outputs >= 1, LLMK_INVALID_SHAPE,
                    "gate_weights are empty");
    llmk_check_optional(&c, "map", &d->map, LLMK_BIT(LLMK_I32), LLMK_INPUT, &p->map);
    llmk_check_that(&c,
                    !p->map.present || (p->map.rank == 1 && p->map.count >= 1 &&
                                        p->map.count <= LLMK_MOE_MAX_EXPERTS),
                    LLMK_INVALID_SHAPE,
                    "map has rank %u and %" PRIu64 " experts; expected rank 1, and 1 to %u",
                    p->map.rank, p->map.count, LLMK_MOE_MAX_EXPERTS);
    p->id_end = p->map.present ? (uint32_t)p->map.count : p->held;
    check_router(&c, d, p);
    check_biases(&c, d, p);
    check_shared(&c, d, p);
    const uint64_t most = p->id_end > d->experts_a_token ? p->id_end : d->experts_a_token;
    llmk_check_that(&c, max_tokens >= 1 && max_tokens <= LLMK_MOE_MAX_PAIRS / (most ? most : 1),
                    LLMK_INVALID_ARGUMENT,
                    "max_tokens is %" PRIu64 "; expected 1 to %" PRIu64 ", 2^30 pairs", max_tokens,
                    LLMK_MOE_MAX_PAIRS / (most ? most : 1));
    LLMK_TRY(llmk_check_end(&c));
    if (d->layout != LLMK_GATE_SPLIT)
        p->gate_bias = half_of(&p->gate_bias, &p->gated, false);
    p->max_tokens = max_tokens;
    p->x_dtype = d->x_dtype;
    p->inner = d->inner ? d->inner : d->x_dtype;
    p->k = (uint32_t)d->experts_a_token;
    return LLMK_OK;
}

/* ---- Memory ---- */

#define SHARES_BYTES (UINT64_C(64) << 20)

static llmk_status keep(llmk_moe_plan *p, const llmk_view *view)
{
    if (!view->present)
        return LLMK_OK;
    const cl_int err = clRetainMemObject(view->buffer);
    if (err != CL_SUCCESS)
        return llmk_fail_prefix(llmk_fail_cl(p->ctx, err, "clRetainMemObject"), "moe_plan");
    p->buffers[p->buffer_count++] = view->buffer;
    return LLMK_OK;
}

static llmk_status allocate(llmk_moe_plan *p, const char *what, uint64_t rows, uint64_t cols,
                            uint64_t size, cl_mem *out)
{
    uint64_t bytes;
    cl_int err;
    if (__builtin_mul_overflow(rows, cols * size, &bytes) || bytes > p->ctx->caps.max_alloc_bytes)
        return llmk_fail(LLMK_OUT_OF_DEVICE_MEMORY,
                         "moe_plan: max_tokens is %" PRIu64 "; %s of %" PRIu64 " rows of %" PRIu64
                         " does not fit the device's largest allocation of %" PRIu64 " bytes",
                         p->max_tokens, what, rows, cols, p->ctx->caps.max_alloc_bytes);
    *out = clCreateBuffer(p->ctx->cl, CL_MEM_READ_WRITE, (size_t)bytes, NULL, &err);
    if (!*out)
        return llmk_fail_prefix(llmk_fail_cl(p->ctx, err, "clCreateBuffer"),
                                "moe_plan: %" PRIu64 " bytes for %s", bytes, what);
    p->buffers[p->buffer_count++] = *out;
    return LLMK_OK;
}

static llmk_status allocate_meet(llmk_moe_plan *p)
{
    cl_int zeros[MOE_MEET_SIZE] = {0}, err;
    p->meet = clCreateBuffer(p->ctx->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof zeros,
                             zeros, &err);
    if (!p->meet)
        return llmk_fail_prefix(llmk_fail_cl(p->ctx, err, "clCreateBuffer"), "moe_plan");
    p->buffers[p->buffer_count++] = p->meet;
    return LLMK_OK;
}

/* Rows of experts' outputs, and where they are few, of the shares that K may be split into. */
static uint64_t rows_with_shares(const llmk_moe_plan *p)
{
    const uint64_t pairs = p->max_tokens * p->k, most = SHARES_BYTES / (4 * p->hidden);
    return most <= pairs ? pairs : most < MOE_MOST_WAYS * pairs ? most : MOE_MOST_WAYS * pairs;
}

static llmk_status allocate_all(llmk_moe_plan *p)
{
    const uint64_t tokens = p->max_tokens, pairs = tokens * p->k;
    const uint64_t inner = llmk_dtype_bits(p->inner) / 8;
    const llmk_view *views[] = {&p->gate,      &p->router_bias,  &p->correction,
                                &p->map,       &p->gate_bias,    &p->gated.up_bias,
                                &p->down_bias, &p->shared_router};
    for (size_t i = 0; i < LLMK_COUNT(views); i++)
        LLMK_TRY(keep(p, views[i]));
    if (p->routes) {
        LLMK_TRY(allocate(p, "the logits", tokens, p->id_end, 4, &p->logits));
        LLMK_TRY(allocate_meet(p));
    }
    LLMK_TRY(allocate(p, "the ids", tokens, p->k, 4, &p->ids));
    LLMK_TRY(allocate(p, "the routing's weights", tokens, p->k, 4, &p->weights));
    LLMK_TRY(allocate(p, "the dispatch", 1, llmk_moe_pairs_at(p) + 2 * pairs, 4, &p->sort));
    LLMK_TRY(allocate(p, "h", pairs, p->gated.outputs, inner, &p->hidden_rows));
    p->row_room = rows_with_shares(p);
    LLMK_TRY(allocate(p, "the experts' outputs", p->row_room, p->hidden, 4, &p->rows));
    if (llmk_grouped_may_gather(p->ctx, p->gate_weights, p->x_dtype))
        LLMK_TRY(allocate(p, "the experts' rows of x", pairs, p->hidden, 2, &p->gathered));
    if (p->has_shared) {
        LLMK_TRY(
            allocate(p, "the shared h", tokens, p->shared_gated.outputs, inner, &p->shared_hidden));
        LLMK_TRY(allocate(p, "the shared output", tokens, p->hidden, 4, &p->shared_rows));
    }
    if (p->shared_router.present)
        LLMK_TRY(allocate(p, "the shared expert's logits", tokens, 1, 4, &p->shared_logit));
    return llmk_workspace_create(p->ctx, 0, &p->use);
}

llmk_status llmk_moe_plan_create(llmk_context *ctx, const llmk_moe_desc *desc, uint64_t max_tokens,
                                 llmk_moe_plan **out)
{
    llmk_moe_desc d;
    if (!out)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "moe_plan: out is NULL");
    *out = NULL;
    if (!ctx)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "moe_plan: ctx is NULL");
    LLMK_TRY(llmk_context_usable(ctx));
    LLMK_TRY(llmk_take_struct("moe_plan", "desc", desc, sizeof d, sizeof d, &d));
    llmk_moe_plan *p = calloc(1, sizeof *p);
    if (!p)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "moe_plan: out of memory");
    llmk_status status = check(ctx, &d, max_tokens, p);
    if (status != LLMK_OK) {
        free(p);
        return status;
    }
    p->ctx = ctx;
    llmk_context_retain(ctx);
    status = allocate_all(p);
    if (status == LLMK_OK)
        *out = p;
    else
        llmk_moe_plan_free(p);
    return status;
}

void llmk_moe_plan_free(llmk_moe_plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; i < plan->buffer_count; i++)
        clReleaseMemObject(plan->buffers[i]);
    llmk_workspace_free(plan->use);
    llmk_context_free(plan->ctx);
    free(plan);
}

/* ---- Steps ---- */

moe_steps llmk_moe_steps(const llmk_moe_plan *p, uint64_t tokens, bool given,
                         const grouped_products *products)
{
    const uint64_t pairs = tokens * p->k;
    const bool few = tokens <= LLMK_GROUPED_FEW_TOKENS;
    const bool codes =
        llmk_grouped_is_codes(p->gate_weights) || llmk_grouped_is_codes(p->down_weights);
    moe_steps s = {.height = products->height(pairs, p->held, few, codes)};
    const uint32_t down = (uint32_t)p->down_weights->segment_count;
    const uint32_t up = (uint32_t)p->gate_weights->segment_count;
    const moe_route_problem route = {.x = {.ncols = p->hidden},
                                     .gate = p->gate,
                                     .tokens = tokens,
                                     .experts = p->id_end,
                                     .k = p->k,
                                     .routing = p->routing};
    const bool routes = !products->ref && !given;
    s.route_few = routes && llmk_moe_routes_few(&p->ctx->caps, &route, p->held);
    s.gathers = s.route_few && products->gathers;
    s.select_dispatch =
        routes && !s.route_few && llmk_moe_selects_and_dispatches(&p->ctx->caps, &route, p->held);
    s.combine = products->combine && few && down == 1;
    s.layer = products->layer && up == 1 && down == 1 && p->inner == p->x_dtype;
    /* Logits, choice and dispatch. */
    s.kernels = given || s.route_few ? 1 : s.select_dispatch ? 2 : 3;
    s.kernels += (products->gathers && !s.gathers) + up + (s.combine ? 1 : down + 1) - s.layer;
    if (p->has_shared)
        s.kernels += p->shared_router.present ? 3 : 2;
    return s;
}

uint32_t llmk_moe_plan_kernels(const llmk_moe_plan *plan, uint64_t tokens)
{
    if (!plan || tokens == 0)
        return 0;
    return llmk_moe_steps(plan, tokens, !plan->routes, llmk_moe_products(plan, tokens)).kernels;
}
