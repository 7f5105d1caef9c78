/* moe_route.c - the router: logits, the choice of experts, their weights. */
#include "ops/elementwise.h"
#include "ops/moe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

llmk_view llmk_moe_view(cl_mem buffer, llmk_dtype dtype, uint64_t rows, uint64_t cols)
{
    return (llmk_view){
        .present = true,
        .unit = true,
        .simple = true,
        .align = cols * llmk_dtype_bits(dtype) / 8 % 16 == 0 ? 16 : llmk_dtype_bits(dtype) / 8,
        .buffer = buffer,
        .dtype = dtype,
        .count = rows * cols,
        .nrows = rows,
        .ncols = cols,
        .rank = 2,
        .dim = {rows, cols},
        .rows = {.n1 = 1, .n2 = 1, .s0 = cols, .inner = 1},
    };
}

/* ---- The problem ---- */

void llmk_moe_check_routing(llmk_checker *c, llmk_moe_score score, uint32_t flags, uint64_t groups,
                            uint64_t top_groups, float scale, float eps, uint64_t experts,
                            uint64_t k, moe_routing *out)
{
    const bool grouped = groups > 1;
    llmk_check_that(c, score >= LLMK_MOE_SOFTMAX && score <= LLMK_MOE_TOPK_SOFTMAX,
                    LLMK_INVALID_ARGUMENT, "score is %d; expected %d to %d", (int)score,
                    LLMK_MOE_SOFTMAX, LLMK_MOE_TOPK_SOFTMAX);
    llmk_check_flags(c, flags, LLMK_MOE_RENORMALIZE);
    llmk_check_that(c, !grouped || (groups <= experts && experts % groups == 0),
                    LLMK_INVALID_ARGUMENT,
                    "groups is %llu; expected a divisor of %llu, the experts",
                    (unsigned long long)groups, (unsigned long long)experts);
    llmk_check_that(c, grouped ? top_groups >= 1 && top_groups <= groups : top_groups <= groups,
                    LLMK_INVALID_ARGUMENT, "top_groups is %llu; expected %s %llu, groups",
                    (unsigned long long)top_groups, grouped ? "1 to" : "at most",
                    (unsigned long long)groups);
    llmk_check_that(c, !grouped || experts / groups * top_groups >= k, LLMK_INVALID_ARGUMENT,
                    "top_groups is %llu, of %llu experts each; expected at least k, %llu, experts",
                    (unsigned long long)top_groups,
                    (unsigned long long)(grouped ? experts / groups : 0), (unsigned long long)k);
    llmk_check_that(c, scale >= 0 && isfinite(scale), LLMK_INVALID_ARGUMENT,
                    "scale is %g; expected a finite number > 0, or 0", (double)scale);
    llmk_check_that(c, eps >= 0 && isfinite(eps), LLMK_INVALID_ARGUMENT,
                    "eps is %g; expected a finite number > 0, or 0", (double)eps);
    *out = (moe_routing){.score = score,
                         .renormalize = flags & LLMK_MOE_RENORMALIZE,
                         .groups = grouped ? (uint32_t)groups : 1,
                         .top_groups = grouped ? (uint32_t)top_groups : 1,
                         .scale = scale > 0 ? scale : 1,
                         .eps = eps > 0 ? eps : 1e-20f};
}

static uint64_t workspace_bytes(const void *problem)
{
    const moe_route_problem *p = problem;
    return p->x.present && !p->out_logits.present ? p->tokens * p->experts * sizeof(cl_float) : 0;
}

static llmk_status check(llmk_context *ctx, const void *args, bool dry, void *problem)
{
    llmk_moe_route_args a;
    moe_route_problem *p = problem;
    LLMK_TRY(llmk_take_args("moe_route", args, sizeof a, sizeof a, &a));
    llmk_checker c = llmk_check_begin(ctx, "moe_route", dry);
    llmk_check_optional(&c, "x", &a.x, LLMK_FLOATS, LLMK_INPUT, &p->x);
    if (p->x.present) {
        llmk_check_that(&c, a.gate.buffer || (dry && a.gate.dtype), LLMK_INVALID_ARGUMENT,
                        "x is given, but no gate; expected both, or logits");
        llmk_check_tensor(&c, "gate", &a.gate, LLMK_FLOATS, LLMK_INPUT, &p->gate);
        llmk_check_absent(&c, "logits", &a.logits, "x is");
        llmk_check_that(&c, p->gate.rank == 2, LLMK_INVALID_SHAPE, "gate.rank is %u; expected 2",
                        p->gate.rank);
        llmk_check_matrix(&c, "gate", &p->gate, p->gate.nrows, p->x.ncols);
    } else {
        llmk_check_absent(&c, "gate", &a.gate, "x is not");
        llmk_check_absent(&c, "out_logits", &a.out_logits, "x is not");
        llmk_check_tensor(&c, "logits", &a.logits, LLMK_FLOATS, LLMK_INPUT, &p->logits);
        llmk_check_that(&c, p->logits.rank == 2, LLMK_INVALID_SHAPE,
                        "logits.rank is %u; expected 2", p->logits.rank);
    }
    const uint64_t experts = p->x.present ? p->gate.nrows : p->logits.ncols;
    p->tokens = p->x.present ? p->x.nrows : p->logits.nrows;
    llmk_check_that(&c, experts >= 1 && experts <= LLMK_MOE_MAX_EXPERTS, LLMK_INVALID_SHAPE,
                    "%s has %llu experts; expected 1 to %u", p->x.present ? "gate" : "logits",
                    (unsigned long long)experts, LLMK_MOE_MAX_EXPERTS);
    llmk_check_optional(&c, "router_bias", &a.router_bias, LLMK_FLOATS, LLMK_INPUT,
                        &p->router_bias);
    llmk_check_vector(&c, "router_bias", &p->router_bias, experts);
    llmk_check_optional(&c, "correction", &a.correction, LLMK_FLOATS, LLMK_INPUT, &p->correction);
    llmk_check_vector(&c, "correction", &p->correction, experts);
    llmk_check_tensor(&c, "ids", &a.ids, LLMK_BIT(LLMK_I32), LLMK_OUTPUT, &p->ids);
    const uint64_t k = p->ids.ncols;
    llmk_check_matrix(&c, "ids", &p->ids, p->tokens, k);
    llmk_check_that(&c, k >= 1 && k <= experts, LLMK_INVALID_SHAPE,
                    "ids has %llu columns, experts a token; expected 1 to %llu",
                    (unsigned long long)k, (unsigned long long)experts);
    llmk_check_that(
        &c, p->tokens <= LLMK_MOE_MAX_PAIRS / (experts ? experts : 1), LLMK_INVALID_SHAPE,
        "%s has %llu tokens of %llu experts; expected less than 2^30 logits",
        p->x.present ? "x" : "logits", (unsigned long long)p->tokens, (unsigned long long)experts);
    llmk_check_tensor(&c, "weights", &a.weights, LLMK_BIT(LLMK_F32), LLMK_OUTPUT, &p->weights);
    llmk_check_matrix(&c, "weights", &p->weights, p->tokens, k);
    llmk_check_optional(&c, "out_logits", &a.out_logits, LLMK_BIT(LLMK_F32), LLMK_OUTPUT,
                        &p->out_logits);
    llmk_check_matrix(&c, "out_logits", &p->out_logits, p->tokens, experts);
    llmk_moe_check_routing(&c, a.score, a.flags, a.groups, a.top_groups, a.scale, a.eps, experts, k,
                           &p->routing);
    p->experts = (uint32_t)experts;
    p->k = (uint32_t)k;
    llmk_check_that(&c, a.workspace || dry || !workspace_bytes(p), LLMK_INVALID_ARGUMENT,
                    "workspace is NULL and out_logits absent; expected one of them");
    if (c.status == LLMK_OK)
        llmk_check_workspace(&c, a.workspace, workspace_bytes(p));
    if (workspace_bytes(p) > 0)
        p->workspace = a.workspace;
    return llmk_check_end(&c);
}

static bool is_empty(const void *problem)
{
    const moe_route_problem *p = problem;
    return p->tokens == 0;
}

static const char *type_or_none(const llmk_view *view)
{
    return view->present ? llmk_dtype_name(view->dtype) : "none";
}

static void key(const void *problem, char *text, size_t size)
{
    const moe_route_problem *p = problem;
    llmk_join(text, size, "score=", llmk_digits(p->routing.score), " x=", type_or_none(&p->x),
              " gate=", type_or_none(&p->gate), " logits=", type_or_none(&p->logits),
              " bias=", type_or_none(&p->router_bias), " correction=", type_or_none(&p->correction),
              p->routing.groups > 1 ? " groups" : "", p->routing.renormalize ? " renorm" : "",
              NULL);
}

static llmk_workspace *workspace(const void *problem)
{
    return ((const moe_route_problem *)problem)->workspace;
}

/* ---- Launching ---- */

static void arg_vector(llmk_kernel *k, const llmk_view *view)
{
    llmk_arg_view(k, view);
    llmk_arg_u32(k, llmk_view_dtype(view));
}

static void arg_routing(llmk_kernel *k, const moe_routing *r)
{
    llmk_arg_u32(k, r->score);
    llmk_arg_u32(k, r->groups > 1 ? r->groups : 0);
    llmk_arg_u32(k, r->groups > 1 ? r->top_groups : 0);
    llmk_arg_u32(k, r->renormalize);
    llmk_arg_f32(k, r->scale);
    llmk_arg_f32(k, r->eps);
}

#define REF_FILE "moe_route/moe_route_ref.cl"

static llmk_status launch_logits_ref(llmk_launch *launch, const llmk_view *x, const llmk_view *gate,
                                     const llmk_view *router_bias, const llmk_view *logits)
{
    llmk_kernel k = llmk_kernel_open(launch, REF_FILE, "", "moe_logits_ref");
    arg_vector(&k, x);
    arg_vector(&k, gate);
    arg_vector(&k, router_bias);
    llmk_arg_view(&k, logits);
    llmk_arg_u64(&k, x->nrows);
    llmk_arg_u64(&k, x->ncols);
    llmk_arg_u32(&k, (uint32_t)gate->nrows);
    const llmk_grid grid = llmk_element_grid(x->nrows, gate->nrows);
    return llmk_kernel_enqueue(&k, grid.groups, grid.local);
}

/* What both variants' kernels that choose take, up to the options. */
static void arg_chosen(llmk_kernel *k, const moe_route_problem *p)
{
    arg_vector(k, &p->logits);
    arg_vector(k, &p->router_bias);
    arg_vector(k, &p->correction);
    llmk_arg_view(k, &p->ids);
    llmk_arg_view(k, &p->weights);
    llmk_arg_u64(k, p->tokens);
    llmk_arg_u32(k, p->experts);
    llmk_arg_u32(k, p->k);
    arg_routing(k, &p->routing);
}

llmk_status llmk_moe_launch_select_ref(llmk_launch *launch, const moe_route_problem *p)
{
    llmk_kernel k = llmk_kernel_open(launch, REF_FILE, "", "moe_route_ref");
    arg_chosen(&k, p);
    const size_t local = 16;
    return llmk_kernel_enqueue(&k, (size_t[]){(size_t)((p->tokens + local - 1) / local), 1, 1},
                               (size_t[]){local, 1, 1});
}

/* cl/moe_route/moe_logits_portable.cl, moe_route_portable.cl */
#define LOGITS_ITEMS      128u
#define LOGITS_TEAMS      4u
#define LOGITS_TOKENS     4u
#define LOGITS_EXPERTS    4u /* of a team */
#define MAX_ROW_GROUPS    32768u
#define SELECT_LANES      32u
#define SELECT_MOST_LANES 128u
#define SELECT_TOKENS     4u /* of a work-group, or where one has all, at most: */
#define SELECT_FEW_TOKENS 8u
#define MOST_PAIRS        512u /* that one work-group sorts */

llmk_status llmk_moe_launch_logits(llmk_launch *launch, const llmk_view *x, const llmk_view *gate,
                                   const llmk_view *router_bias, const llmk_view *logits, bool ref)
{
    if (ref)
        return launch_logits_ref(launch, x, gate, router_bias, logits);
    char defines[32];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(x->dtype),
              " -DG=", llmk_dtype_name(gate->dtype), NULL);
    const uint64_t step = (uint64_t)MAX_ROW_GROUPS * LOGITS_TOKENS;
    /* Teams that share K, where there is less to do than teams. */
    const uint64_t n = gate->nrows, teams = (x->nrows + 3) / 4 * ((n + 3) / 4);
    const uint64_t room = (uint64_t)launch->ctx->caps.compute_units * LOGITS_TEAMS;
    const uint32_t ways = teams <= room || n <= LOGITS_EXPERTS                     ? LOGITS_TEAMS
                          : teams <= 2 * room || n <= UINT64_C(2) * LOGITS_EXPERTS ? 2
                                                                                   : 1;
    const uint64_t experts = (uint64_t)(LOGITS_TEAMS / ways) * LOGITS_EXPERTS;
    for (uint64_t first = 0; first < x->nrows; first += step) {
        const uint64_t end = x->nrows - first < step ? x->nrows : first + step;
        llmk_kernel k =
            llmk_kernel_open(launch, "moe_route/moe_logits_portable.cl", defines, "moe_logits");
        llmk_arg_view(&k, x);
        llmk_arg_view(&k, gate);
        arg_vector(&k, router_bias);
        llmk_arg_view(&k, logits);
        llmk_arg_u64(&k, first);
        llmk_arg_u64(&k, end);
        llmk_arg_u32(&k, (uint32_t)x->ncols);
        llmk_arg_u32(&k, (uint32_t)n);
        llmk_arg_u32(&k, x->align >= 16 && gate->align >= 16);
        llmk_arg_u32(&k, ways);
        LLMK_TRY(llmk_kernel_enqueue(
            &k,
            (size_t[]){(size_t)((n + experts - 1) / experts),
                       (size_t)((end - first + LOGITS_TOKENS - 1) / LOGITS_TOKENS), 1},
            (size_t[]){LOGITS_ITEMS, 1, 1}));
    }
    return LLMK_OK;
}

/* Items of a token: each expert is compared with all others. More sizes than few would be more
 * programs on a CPU. */
static uint32_t select_lanes(const llmk_caps *caps, uint64_t rows, uint32_t experts)
{
    const bool many = !llmk_is_cpu(caps) && experts > 64;
    return many && caps->max_work_group >= SELECT_MOST_LANES * rows ? SELECT_MOST_LANES
                                                                    : SELECT_LANES;
}

static size_t select_local_bytes(uint64_t rows, uint32_t lanes, uint32_t experts, uint32_t groups,
                                 uint32_t k)
{
    return (size_t)rows * sizeof(cl_uint) * (2 * experts + 2 * groups + k + lanes);
}

/* SELECT_PARAMETERS, for so many rows of so many items. */
static void arg_select(llmk_kernel *k, const moe_route_problem *p, uint64_t rows, uint32_t lanes)
{
    arg_chosen(k, p);
    llmk_arg_local(k, (size_t)rows * p->experts * sizeof(cl_float));
    llmk_arg_local(k, (size_t)rows * p->experts * sizeof(cl_uint));
    llmk_arg_local(k, (size_t)rows * 2 * p->routing.groups * sizeof(cl_uint));
    llmk_arg_local(k, (size_t)rows * p->k * sizeof(cl_int));
    llmk_arg_local(k, (size_t)rows * lanes * sizeof(cl_float));
}

/* SORT_INTS, what dispatch_few takes. */
static size_t sort_bytes(uint64_t pairs, uint32_t held)
{
    return (size_t)(4 * ((pairs + 3) / 4) + (held + UINT64_C(1)) * ((pairs + 31) / 32 + 3) +
                    UINT64_C(2) * (held / 16)) *
           sizeof(cl_int);
}

/* Rows of items of the one work-group that has all tokens. */
static uint64_t few_rows(uint64_t tokens)
{
    return tokens == 1 ? 1 : SELECT_FEW_TOKENS;
}

bool llmk_moe_selects_and_dispatches(const llmk_caps *caps, const moe_route_problem *p,
                                     uint32_t held)
{
    const uint64_t rows = few_rows(p->tokens);
    const uint32_t lanes = select_lanes(caps, rows, p->experts);
    return p->tokens <= SELECT_FEW_TOKENS && p->tokens * p->k <= MOST_PAIRS &&
           caps->max_work_group >= lanes * rows &&
           select_local_bytes(rows, lanes, p->experts, p->routing.groups, p->k) +
                   sort_bytes(p->tokens * p->k, held) <=
               caps->local_bytes;
}

llmk_status llmk_moe_launch_select(llmk_launch *launch, const moe_route_problem *p,
                                   const moe_dispatch *dispatch)
{
    const uint64_t rows = dispatch ? few_rows(p->tokens) : SELECT_TOKENS;
    const uint32_t lanes = select_lanes(&launch->ctx->caps, rows, p->experts);
    llmk_kernel k = llmk_kernel_open(launch, "moe_route/moe_route_portable.cl", "",
                                     dispatch ? "moe_select_dispatch" : "moe_select");
    arg_select(&k, p, rows, lanes);
    if (dispatch) {
        llmk_moe_arg_dispatch(&k, dispatch);
        llmk_arg_local(&k, sort_bytes(p->tokens * p->k, dispatch->experts));
    }
    return llmk_kernel_enqueue(&k, (size_t[]){(size_t)((p->tokens + rows - 1) / rows), 1, 1},
                               (size_t[]){lanes, (size_t)rows, 1});
}

/* cl/moe_route/moe_route_few.cl */
#define FEW_ITEMS   256u
#define FEW_TOKENS  2u /* of a work-group; or one, where that is at most one work-group a unit */
#define FEW_EXPERTS 8u
#define FEW_BYTES                                                                                  \
    ((FEW_TOKENS * FEW_EXPERTS * (FEW_ITEMS + 2) + 2 * FEW_ITEMS) * sizeof(cl_float) + 64)
#define MOST_LOGITS 4096u /* more want larger tiles of the product */

bool llmk_moe_routes_few(const llmk_caps *caps, const moe_route_problem *p, uint32_t held)
{
    return caps->vendor == LLMK_VENDOR_NVIDIA && p->tokens <= MOE_FEW_TOKENS &&
           (p->tokens <= SELECT_FEW_TOKENS || p->tokens * p->experts <= MOST_LOGITS) &&
           p->tokens * p->k <= MOST_PAIRS && p->x.ncols <= INT32_MAX &&
           caps->max_work_group >= FEW_ITEMS &&
           select_local_bytes(FEW_TOKENS, FEW_ITEMS / FEW_TOKENS, p->experts, p->routing.groups,
                              p->k) +
                   FEW_BYTES + sort_bytes(p->tokens * p->k, held) <
               caps->local_bytes;
}

llmk_status llmk_moe_launch_route_few(llmk_launch *launch, const moe_route_problem *p,
                                      const moe_dispatch *dispatch, cl_mem meet)
{
    const uint64_t parts = (p->experts + FEW_EXPERTS - 1) / FEW_EXPERTS;
    const uint32_t tokens = p->tokens * parts <= launch->ctx->caps.compute_units ? 1 : FEW_TOKENS;
    const uint32_t lanes = FEW_ITEMS / tokens;
    llmk_kernel k = llmk_kernel_open(launch, "moe_route/moe_route_few.cl",
                                     tokens == 1 ? "-DTOKENS=1" : "-DTOKENS=2", "moe_route_few");
    moe_route_problem chosen = *p;
    chosen.router_bias = (llmk_view){0};
    arg_vector(&k, &p->x);
    arg_vector(&k, &p->gate);
    llmk_arg_u32(&k, (uint32_t)p->x.ncols);
    llmk_arg_u32(&k, p->x.align >= 16 && p->gate.align >= 16 &&
                         (!dispatch->gathered || p->x.ncols % 8 == 0));
    arg_vector(&k, &p->router_bias);
    arg_select(&k, &chosen, tokens, lanes);
    llmk_moe_arg_dispatch(&k, dispatch);
    llmk_arg_local(&k, sort_bytes(p->tokens * p->k, dispatch->experts));
    llmk_arg_local(&k, sizeof(cl_int));
    llmk_arg_buffer(&k, meet);
    llmk_arg_buffer(&k, dispatch->gathered);
    const uint64_t blocks = (p->tokens + tokens - 1) / tokens;
    const uint64_t copies = dispatch->gathered ? p->tokens : 0;
    return llmk_kernel_enqueue(&k, (size_t[]){(size_t)(parts * blocks + copies), 1, 1},
                               (size_t[]){lanes, tokens, 1});
}

static llmk_status launch(llmk_launch *l, const moe_route_problem *problem, bool ref)
{
    moe_route_problem p = *problem;
    if (p.x.present) {
        p.logits = p.out_logits.present ? p.out_logits
                                        : llmk_moe_view(p.workspace ? p.workspace->buffer : NULL,
                                                        LLMK_F32, p.tokens, p.experts);
        LLMK_TRY(llmk_moe_launch_logits(l, &p.x, &p.gate, &p.router_bias, &p.logits, ref));
        p.router_bias = (llmk_view){0};
    }
    return ref ? llmk_moe_launch_select_ref(l, &p) : llmk_moe_launch_select(l, &p, NULL);
}

static llmk_status portable_launch(llmk_launch *l, const void *problem)
{
    return launch(l, problem, false);
}

bool llmk_moe_may_route(const llmk_caps *caps, uint32_t experts, uint32_t k, uint32_t groups,
                        llmk_reason *why)
{
    if (caps->max_work_group < LOGITS_ITEMS)
        return llmk_no(why, "work-groups of %u items are too large for the device", LOGITS_ITEMS);
    return select_local_bytes(SELECT_TOKENS, SELECT_MOST_LANES, experts, groups, k) <=
               caps->local_bytes ||
           llmk_no(why, "%u experts take more than the device's local memory", experts);
}

static bool portable_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const moe_route_problem *p = problem;
    if (!llmk_moe_may_route(&ctx->caps, p->experts, p->k, p->routing.groups, why))
        return false;
    if (p->x.ncols > INT32_MAX)
        return llmk_no(why, "rows of x are too long");
    return llmk_unit_rows((const llmk_view *[]){&p->x, &p->gate}, (const char *[]){"x", "gate"}, 2,
                          why);
}

static llmk_status ref_launch(llmk_launch *l, const void *problem)
{
    return launch(l, problem, true);
}

static const llmk_variant variants[] = {
    {"portable", portable_supports, portable_launch},
    {"ref", llmk_any_supported, ref_launch},
};

/* ---- Self-test ---- */

enum { TOKENS = 5, EXPERTS = 24, CHOSEN = 3, HIDDEN = 37, GROUPS = 4, TOP_GROUPS = 2 };

static double score_of(llmk_moe_score score, double logit, double sum)
{
    return score == LLMK_MOE_SIGMOID         ? 1 / (1 + exp(-logit))
           : score == LLMK_MOE_SQRT_SOFTPLUS ? sqrt(log1p(exp(logit)))
                                             : exp(logit) / sum;
}

/* The largest of `choice` from `first` on, which is then taken. */
static size_t take_best(double *choice, size_t first, size_t count)
{
    size_t best = first;
    for (size_t e = first; e < first + count; e++)
        best = choice[e] > choice[best] ? e : best;
    choice[best] = -1e30;
    return best;
}

static void exclude_groups(double *choice, bool two)
{
    const size_t width = EXPERTS / GROUPS;
    double copy[EXPERTS], score[GROUPS];
    memcpy(copy, choice, sizeof copy);
    for (size_t g = 0; g < GROUPS; g++) {
        score[g] = choice[take_best(copy, g * width, width)];
        if (two)
            score[g] += choice[take_best(copy, g * width, width)];
    }
    bool kept[GROUPS] = {false};
    for (size_t i = 0; i < TOP_GROUPS; i++)
        kept[take_best(score, 0, GROUPS)] = true;
    for (size_t e = 0; e < EXPERTS; e++)
        if (!kept[e / width])
            choice[e] = -1e30;
}

static void expect(const moe_route_problem *p, const double *logit, const float *correction,
                   double *ids, double *weights)
{
    const llmk_moe_score score = p->routing.score;
    double choice[EXPERTS], sum = 0, total = 0;
    for (size_t e = 0; e < EXPERTS; e++)
        sum += exp(logit[e]);
    for (size_t e = 0; e < EXPERTS; e++) {
        const bool plain = !correction || score == LLMK_MOE_TOPK_SOFTMAX;
        choice[e] = (plain ? logit[e] : score_of(score, logit[e], sum)) +
                    (correction ? (double)correction[e] : 0);
    }
    if (p->routing.groups > 1)
        exclude_groups(choice, correction != NULL);
    for (size_t j = 0; j < CHOSEN; j++)
        ids[j] = (double)take_best(choice, 0, EXPERTS);
    if (score == LLMK_MOE_TOPK_SOFTMAX) {
        sum = 0;
        for (size_t j = 0; j < CHOSEN; j++)
            sum += exp(logit[(size_t)ids[j]]);
    }
    for (size_t j = 0; j < CHOSEN; j++)
        total += weights[j] = score_of(score, logit[(size_t)ids[j]], sum);
    for (size_t j = 0; j < CHOSEN; j++)
        weights[j] /= p->routing.renormalize ? total : 1;
}

static llmk_status self_test(llmk_trial *t, const void *problem)
{
    const moe_route_problem *p = problem;
    const float *x = NULL, *gate = NULL, *logits = NULL, *bias = NULL, *correction = NULL;
    llmk_moe_route_args a = LLMK_INIT(llmk_moe_route_args);
    a.score = p->routing.score;
    a.flags = p->routing.renormalize ? LLMK_MOE_RENORMALIZE : 0;
    a.groups = p->routing.groups > 1 ? GROUPS : 0;
    a.top_groups = p->routing.groups > 1 ? TOP_GROUPS : 0;
    if (p->x.present) {
        a.x = llmk_trial_input(t, p->x.dtype, TOKENS, HIDDEN, 1, 1.0f, &x);
        a.gate = llmk_trial_input(t, p->gate.dtype, EXPERTS, HIDDEN, 2, 1.0f, &gate);
        a.out_logits = llmk_trial_output(t, LLMK_F32, TOKENS, EXPERTS);
    } else {
        a.logits = llmk_trial_input(t, p->logits.dtype, TOKENS, EXPERTS, 3, 4.0f, &logits);
    }
    if (p->router_bias.present) {
        a.router_bias = llmk_trial_input(t, p->router_bias.dtype, 1, EXPERTS, 4, 1.0f, &bias);
        a.router_bias = llmk_vector(a.router_bias.buffer, p->router_bias.dtype, EXPERTS);
    }
    if (p->correction.present) {
        a.correction = llmk_trial_input(t, p->correction.dtype, 1, EXPERTS, 5, 0.5f, &correction);
        a.correction = llmk_vector(a.correction.buffer, p->correction.dtype, EXPERTS);
    }
    a.ids = llmk_trial_output(t, LLMK_I32, TOKENS, CHOSEN);
    a.weights = llmk_trial_output(t, LLMK_F32, TOKENS, CHOSEN);
    double ids[TOKENS * CHOSEN], weights[TOKENS * CHOSEN], logit[TOKENS * EXPERTS];
    if (t->status != LLMK_OK)
        return t->status;
    for (size_t i = 0; i < LLMK_COUNT(logit); i++) {
        logit[i] = (bias ? (double)bias[i % EXPERTS] : 0) + (logits ? (double)logits[i] : 0);
        for (size_t h = 0; x && h < HIDDEN; h++)
            logit[i] += (double)x[i / EXPERTS * HIDDEN + h] * gate[i % EXPERTS * HIDDEN + h];
    }
    for (size_t i = 0; i < TOKENS; i++)
        expect(p, logit + i * EXPERTS, correction, ids + i * CHOSEN, weights + i * CHOSEN);
    llmk_trial_run(t, &a);
    llmk_trial_compare(t, "ids", &a.ids, ids, 0, 0);
    llmk_trial_compare(t, "weights", &a.weights, weights, 1e-4, 1e-6);
    if (x)
        llmk_trial_compare(t, "out_logits", &a.out_logits, logit, 0, 1e-4);
    return t->status;
}

const llmk_operator llmk_operator_moe_route = {
    .id = LLMK_OP_MOE_ROUTE,
    .name = "moe_route",
    .problem_size = sizeof(moe_route_problem),
    .check = check,
    .is_empty = is_empty,
    .variants = variants,
    .variant_count = LLMK_COUNT(variants),
    .key = key,
    .self_test = self_test,
    .workspace = workspace,
    .workspace_bytes = workspace_bytes,
};
_Static_assert(sizeof(moe_route_problem) <= LLMK_PROBLEM_SIZE, "raise LLMK_PROBLEM_SIZE");

llmk_status llmk_moe_route_workspace_size(llmk_context *ctx, const llmk_moe_route_args *args,
                                          uint64_t *bytes)
{
    return llmk_operate_workspace_size(&llmk_operator_moe_route, ctx, args, bytes);
}

llmk_status llmk_moe_route(llmk_context *ctx, cl_command_queue queue,
                           const llmk_moe_route_args *args, const llmk_events *events)
{
    return llmk_operate(&llmk_operator_moe_route, ctx, queue, args, events);
}
