/* moe_plan.h - a mixture-of-experts layer made ready: what llmk_moe_forward runs on. */
#ifndef LLMK_MOE_PLAN_H
#define LLMK_MOE_PLAN_H

#include "ops/grouped.h"

/* Memory of ours, or a retained buffer of the caller's. */
#define MOE_PLAN_BUFFERS 20
/* Shares into which the down product's K may be split. */
#define MOE_MOST_WAYS 8u

struct llmk_moe_plan {
    llmk_context *ctx;
    uint64_t max_tokens;
    llmk_dtype x_dtype, inner;
    uint32_t k, id_end, held; /* experts a token; that ids are less than; held here */
    uint64_t hidden;          /* H */
    bool routes;
    moe_routing routing;
    llmk_view gate, router_bias, correction, map;
    const llmk_weights *gate_weights, *down_weights;
    llmk_view gate_bias, down_bias;
    llmk_view whole_gate_bias; /* gate_bias has the gate's half of it, gated.up_bias up's */
    grouped_gate gated;

    bool has_shared;
    const llmk_weights *shared_gate_weights, *shared_down_weights;
    grouped_gate shared_gated;
    llmk_view shared_router;

    /* Scratch. sort: a schedule, then source and inverse, max_tokens * k each. */
    cl_mem logits, ids, weights, sort, hidden_rows, rows, shared_hidden, shared_rows, shared_logit;
    uint64_t row_room;   /* rows that `rows` has room for */
    cl_mem meet;         /* where work-groups of the router meet; NULL where nothing is routed */
    cl_mem gathered;     /* x's rows in the order of the groups; NULL where no variant wants them */
    llmk_workspace *use; /* of no bytes: who is using the plan */
    cl_mem buffers[MOE_PLAN_BUFFERS];
    size_t buffer_count;
};

/* Where in `sort` source begins, behind the schedule with the most counters of any variant. */
static inline uint64_t llmk_moe_pairs_at(const llmk_moe_plan *p)
{
    return llmk_grouped_schedule_size(p->held) +
           llmk_grouped_layer_counters(p->held, p->max_tokens * p->k, 1);
}

/* The products of the variant that a call takes whose tensors are contiguous (moe_forward.c). */
const grouped_products *llmk_moe_products(const llmk_moe_plan *plan, uint64_t tokens);

/* What a call does, and in how many kernels. */
typedef struct moe_steps {
    bool route_few;       /* logits, routing and dispatch in one kernel, */
    bool gathers;         /* which also puts x's rows into the order of the groups */
    bool select_dispatch; /* routing and dispatch in one kernel after the logits */
    bool layer;           /* both products in one kernel */
    bool combine;         /* the down product adds up */
    uint32_t height;      /* of tiles */
    uint32_t kernels;
} moe_steps;

/* given: routing is. */
moe_steps llmk_moe_steps(const llmk_moe_plan *plan, uint64_t tokens, bool given,
                         const grouped_products *products);

#endif
