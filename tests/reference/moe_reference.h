/* moe_reference.h - the stages of a mixture of experts in f64, and the bounds on their errors. */
#ifndef MOE_REFERENCE_H
#define MOE_REFERENCE_H

#include <llmk/llmk.h>

/* ---- Numbers for inputs ---- */

/* The index-th of a stream: 64 bits, or uniform in [-1, 1]. */
uint64_t moe_random(uint64_t seed, uint64_t index);
double moe_uniform(uint64_t seed, uint64_t index);

/* ---- Routing ---- */

typedef struct moe_router_f64 {
    llmk_moe_score score;
    uint64_t experts, k, groups, top_groups;
    bool renormalize;
    double scale, eps;
    const double *correction; /* [E] or NULL */
} moe_router_f64;

/* Room that moe_reference_route works in, for E experts. */
typedef struct moe_router_room {
    double *choice, *choice_error, *group;
    uint8_t *state;
} moe_router_room;
bool moe_router_room_make(moe_router_room *room, uint64_t experts);
void moe_router_room_free(moe_router_room *room);

/* logit = x gate^T + bias of one token, and the bound on the error of each. */
void moe_reference_logits(uint64_t hidden, uint64_t experts, const double *x, const double *gate,
                          const double *bias, double *logit, double *error);
/* One token: ids[k], weights[k] and their bounds. error: of the logits. False where a decision is
 * closer than errors allow, so that the ids may be others. */
bool moe_reference_route(const moe_router_f64 *r, const moe_router_room *room, const double *logit,
                         const double *error, double *ids, double *weights, double *bound);

/* ---- Dispatch ---- */

/* pairs ids, k a token; map [map_count] or NULL; offsets [experts + 1], source and inverse
 * [pairs]. */
void moe_reference_permute(const double *ids, uint64_t pairs, const double *map, uint64_t map_count,
                           uint64_t experts, double *offsets, double *source, double *inverse);

#endif
