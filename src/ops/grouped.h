/*
 * grouped.h - products of groups of rows with the matrices of experts, plain or as gated pairs: the
 * stages of llmk_grouped_linear and llmk_moe_forward.
 */
#ifndef LLMK_GROUPED_H
#define LLMK_GROUPED_H

#include "ops/moe.h"

/* The gate and up products of a gated activation, when they are one stage. Output f is made of rows
 * f * step of the gate's matrix and up_first + f * step of up's. */
typedef struct grouped_gate {
    const llmk_weights *up; /* the gate's own where both are in one object */
    uint32_t outputs, step, up_first;
    llmk_view up_bias;
    llmk_activation activation;
    float limit, alpha;
} grouped_gate;

typedef struct grouped_problem {
    llmk_view x, bias, y, source; /* bias: [experts, outputs] */
    const llmk_weights *weights;
    cl_mem schedule; /* cl/grouped_linear/grouped_schedule.clh; NULL: all rows are expert 0's */
    uint32_t groups; /* of the schedule */
    uint32_t rest;   /* the group whose rows are zeros, or UINT32_MAX */
    uint32_t height; /* of the schedule's tiles */
    uint32_t fan;    /* row r has row source[r] / fan of x */
    uint64_t rows;   /* of all groups */
    const grouped_gate *gate; /* or NULL */
    cl_mem gathered;          /* scratch: x's rows in the order of the groups; or NULL */
    uint32_t most_ways; /* where y has room for shares of K, one behind the other: how many; or 0 */
} grouped_problem;

/* What is added up where the down product combines: y[t] of weights and residual. */
typedef struct grouped_combine {
    llmk_view weights, residual;
    cl_mem residual_logit;
} grouped_combine;

/* Tokens of which the down product also adds up the experts' rows, at most. */
#define LLMK_GROUPED_FEW_TOKENS 8u
/* Rows of a tile of the portable kernels for few of them. */
#define LLMK_GROUPED_FEW 4u

/* Whether x's rows may have to be gathered: of such weights, on this device (grouped_nv90.c). */
bool llmk_grouped_may_gather(llmk_context *ctx, const llmk_weights *w, llmk_dtype x);
/* Whether the copy unit can bring rows of x, gathered where there is a source, and rows of y take
 * whole vectors. */
bool llmk_grouped_has_boxes(const grouped_problem *p, llmk_reason *why);
/* p with its rows of x, each as often as it has experts, in the order of the groups. */
llmk_status llmk_grouped_gather(llmk_launch *launch, const grouped_problem *p,
                                grouped_problem *out);

/* Elements (i32) of a schedule, and which says how many shares of K a product has made. */
static inline uint64_t llmk_grouped_schedule_size(uint64_t groups)
{
    return 2 * (groups + 1) + 3;
}
static inline uint64_t llmk_grouped_ways_at(uint64_t groups)
{
    return 2 * (groups + 1) + 2;
}

/* Counters behind a schedule: of tiles and work-groups, and where both products of a layer are
 * one kernel, of how many of its columns are there for each row of tiles, too. */
#define LLMK_GROUPED_COUNTERS 2u
static inline uint32_t llmk_grouped_layer_counters(uint64_t groups, uint64_t rows, uint32_t height)
{
    return LLMK_GROUPED_COUNTERS + 1 + (uint32_t)(groups + rows / height);
}

/* How the products of a variant are computed. Both operators have a variant for each. */
typedef struct grouped_products {
    bool ref;     /* the other stages as the formulas read, too */
    bool gathers; /* a kernel before the first product, which writes p->gathered: x has 16 bits */
    bool splits;  /* K, where p->most_ways allows: not of gated pairs */
    /* Whether such x and weights can be computed on this device, whatever the numbers of rows. */
    bool (*supports)(llmk_context *ctx, const grouped_problem *p, llmk_reason *why);
    /* Whether `rows` rows spread over `experts` are what it is for, where nothing forces it; NULL:
     * any are. codes: the first product's weights are llmk_grouped_is_codes. */
    bool (*suits)(uint64_t rows, uint64_t experts, bool codes, llmk_reason *why);
    /* The rows of a tile. few: of at most LLMK_GROUPED_FEW_TOKENS tokens, as `combine` wants it;
     * codes: some weights are. */
    uint32_t (*height)(uint64_t rows, uint64_t experts, bool few, bool codes);
    /* A kernel for each segment of the weights. */
    llmk_status (*launch)(llmk_launch *launch, const grouped_problem *p);
    /* Both products of a layer in one kernel, of weights of one type in one segment each, and x
     * and h of that type. The schedule's counters are llmk_grouped_layer_counters. NULL: none. */
    llmk_status (*layer)(llmk_launch *launch, const grouped_problem *up,
                         const grouped_problem *down);
    /* One kernel: p->source and p->fan say which token a row is of; weights in one segment. NULL:
     * none. */
    llmk_status (*combine)(llmk_launch *launch, const grouped_problem *p,
                           const grouped_combine *combine);
} grouped_products;

extern const grouped_products llmk_grouped_nv90, llmk_grouped_portable, llmk_grouped_ref;
extern const grouped_products llmk_grouped_nv90_packed, llmk_grouped_subgroup;
extern const grouped_products llmk_grouped_nv_stream, llmk_grouped_emulated_nv_stream;
extern const grouped_products llmk_grouped_nv, llmk_grouped_emulated_nv;
extern const grouped_products llmk_grouped_amd, llmk_grouped_emulated_amd;

/* X(name, id of llmk_grouped_<id>), in order of preference. */
#define LLMK_GROUPED_VARIANTS(X)                                                                   \
    X("nv90", nv90)                                                                                \
    X("nv90-packed", nv90_packed)                                                                  \
    X("nv-stream", nv_stream)                                                                      \
    X("nv", nv)                                                                                    \
    X("amd", amd)                                                                                  \
    X("subgroup", subgroup)                                                                        \
    X("portable", portable)                                                                        \
    X("emulated-nv-stream", emulated_nv_stream)                                                    \
    X("emulated-nv", emulated_nv)                                                                  \
    X("emulated-amd", emulated_amd)                                                                \
    X("ref", ref)

/* Rows of an operator's table of variants, and their functions, which call the operator's own
 *     supports(ctx, products, name, problem, why)   launch(launch, products, problem) */
#define LLMK_GROUPED_FUNCTIONS(name, id)                                                           \
    static bool id##_supports(llmk_context *ctx, const void *p, llmk_reason *why)                  \
    {                                                                                              \
        return supports(ctx, &llmk_grouped_##id, name, p, why);                                    \
    }                                                                                              \
    static llmk_status id##_launch(llmk_launch *l, const void *p)                                  \
    {                                                                                              \
        return launch(l, &llmk_grouped_##id, p);                                                   \
    }
#define LLMK_GROUPED_ROW(name, id) {name, id##_supports, id##_launch},

/* ---- What products share (grouped.c) ---- */

/* Columns of y. */
static inline uint32_t llmk_grouped_outputs(const grouped_problem *p)
{
    return p->gate ? p->gate->outputs : (uint32_t)p->weights->n;
}
/* The arguments of GROUPED_PARAMETERS, for a segment of the weights, and of GATED_PARAMETERS. */
void llmk_grouped_arg(llmk_kernel *k, const grouped_problem *p, const llmk_segment *s);
void llmk_grouped_arg_gate(llmk_kernel *k, const grouped_gate *g, const llmk_segment *s);
/* What a kernel of both products takes of the second one. */
void llmk_grouped_arg_down(llmk_kernel *k, const grouped_problem *down);
/* And those of a combining kernel after them. */
void llmk_grouped_arg_combine(llmk_kernel *k, const grouped_problem *p, const grouped_combine *c);
/* Whether weights are codes in the order of NVIDIA's matrix units. */
static inline bool llmk_grouped_is_codes(const llmk_weights *w)
{
    return (LLMK_LAYOUT_BIT(w->layout) & LLMK_LAYOUTS_NV) != 0;
}
/* Tiles that the rows may be cut into at most, of the groups of one segment. */
uint64_t llmk_grouped_most_tiles(const grouped_problem *p, const llmk_segment *s);

#endif
