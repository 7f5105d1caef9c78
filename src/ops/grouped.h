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
    uint32_t height; /* of the schedule's tiles: llmk_grouped_height */
    uint64_t rows;   /* of all groups */
    uint32_t fan;    /* row r has row source[r] / fan of x */
    const grouped_gate *gate; /* or NULL */
} grouped_problem;

/* What grouped_few_combine adds up: y[t] of weights and residual. */
typedef struct grouped_combine {
    llmk_view weights, residual;
    cl_mem residual_logit;
} grouped_combine;

/* The rows of a tile where `rows` rows are spread over `experts`. */
uint32_t llmk_grouped_height(uint64_t rows, uint64_t experts);
#define LLMK_GROUPED_FEW 4u
/* Tokens that grouped_few_combine takes at most. */
#define LLMK_GROUPED_FEW_TOKENS 8u

/* Elements (i32) of a schedule. */
static inline uint64_t llmk_grouped_schedule_size(uint64_t groups)
{
    return 2 * (groups + 1);
}

bool llmk_grouped_reads(const llmk_weights *w, llmk_reason *why);
/* A kernel for each segment of the weights. */
llmk_status llmk_grouped_launch(llmk_launch *launch, const grouped_problem *p, bool ref);
/* One kernel: p->source and p->fan say which token a row is of; weights in one segment. */
llmk_status llmk_grouped_launch_combine(llmk_launch *launch, const grouped_problem *p,
                                        const grouped_combine *combine);

#endif
