/*
 * moe.h - what the operators of a mixture of experts share: the problems of their stages, which
 * llmk_moe_forward launches on its plan's memory as the public operators do on the caller's.
 */
#ifndef LLMK_MOE_H
#define LLMK_MOE_H

#include "core/weights.h"
#include "ops/operator.h"

#define LLMK_MOE_MAX_EXPERTS 1024u
/* Pairs of token and expert, and rows of experts: counted in int. */
#define LLMK_MOE_MAX_PAIRS ((uint64_t)INT32_MAX / 2)

/* A contiguous matrix in memory of ours. */
llmk_view llmk_moe_view(cl_mem buffer, llmk_dtype dtype, uint64_t rows, uint64_t cols);

/* ---- Routing (moe_route.c) ---- */

typedef struct moe_routing {
    llmk_moe_score score;
    bool renormalize;
    uint32_t groups, top_groups; /* 1 and 1: none */
    float scale, eps;
} moe_routing;

typedef struct moe_route_problem {
    llmk_view x, gate, logits, router_bias, correction, ids, weights, out_logits;
    uint64_t tokens;
    uint32_t experts, k;
    moe_routing routing;
    llmk_workspace *workspace;
} moe_route_problem;

/* Checks options that go with E experts, of which k are chosen. */
void llmk_moe_check_routing(llmk_checker *c, llmk_moe_score score, uint32_t flags, uint64_t groups,
                            uint64_t top_groups, float scale, float eps, uint64_t experts,
                            uint64_t k, moe_routing *out);

/* logits = x gate^T + router_bias. */
llmk_status llmk_moe_launch_logits(llmk_launch *launch, const llmk_view *x, const llmk_view *gate,
                                   const llmk_view *router_bias, const llmk_view *logits, bool ref);

/* Whether the device has room for the portable kernels that make logits and choose. */
bool llmk_moe_may_route(const llmk_caps *caps, uint32_t experts, uint32_t k, uint32_t groups,
                        llmk_reason *why);

struct moe_dispatch;
/* From p->logits; dispatch: sort what was chosen too, where llmk_moe_selects_and_dispatches. */
llmk_status llmk_moe_launch_select(llmk_launch *launch, const moe_route_problem *p,
                                   const struct moe_dispatch *dispatch);
bool llmk_moe_selects_and_dispatches(const llmk_caps *caps, const moe_route_problem *p,
                                     uint32_t held);
llmk_status llmk_moe_launch_select_ref(llmk_launch *launch, const moe_route_problem *p);

/* Tokens that one kernel routes at most, from x to their places among the sorted pairs, and what it
 * needs for that in `meet`: so many i32, 0 before and after. */
#define MOE_FEW_TOKENS 128u
#define MOE_MEET_SIZE  (3 + MOE_FEW_TOKENS)
bool llmk_moe_routes_few(const llmk_caps *caps, const moe_route_problem *p, uint32_t held);
llmk_status llmk_moe_launch_route_few(llmk_launch *launch, const moe_route_problem *p,
                                      const struct moe_dispatch *dispatch, cl_mem meet);

/* ---- Dispatch (moe_permute.c) ---- */

typedef struct moe_dispatch {
    llmk_view ids, map, offsets, source, inverse;
    cl_mem tiles; /* from element tiles_at on i32 [experts + 1], then zeros; or NULL */
    uint32_t tiles_at, zeros;
    uint32_t height; /* of a tile */
    uint32_t id_end; /* ids are less */
    uint32_t experts;
    cl_mem gathered; /* rows of x in the order of the sorted pairs, where one kernel does it all; or
                        NULL */
} moe_dispatch;

/* Whether the device has room for the portable kernel that sorts. */
bool llmk_moe_may_dispatch(const llmk_caps *caps, llmk_reason *why);

/* The arguments of DISPATCH_PARAMETERS. */
void llmk_moe_arg_dispatch(llmk_kernel *k, const moe_dispatch *d);
llmk_status llmk_moe_launch_dispatch(llmk_launch *launch, const moe_dispatch *d, bool ref);
/* Row r of `rows` is row source[r] / k of x, or zeros where source[r] < 0. */
llmk_status llmk_moe_launch_gather(llmk_launch *launch, const llmk_view *x, const llmk_view *source,
                                   uint32_t k, const llmk_view *rows, bool ref);

typedef struct moe_combine {
    llmk_view x, inverse, weights, residual, y;
    cl_mem residual_logit; /* f32 [T]: the residual is multiplied by its sigmoid; or NULL */
    cl_mem ways;           /* element ways_at is of how many shares x's rows are sums; or NULL */
    uint32_t ways_at;
} moe_combine;

llmk_status llmk_moe_launch_combine(llmk_launch *launch, const moe_combine *p, bool ref);

#endif
