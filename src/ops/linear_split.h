/*
 * linear_split.h - tiles of y that several work-groups share along K (cl/linear/linear_pieces.clh,
 * linear_split.clh), so that all of them end at about the same time.
 *
 * A work-group that has a part of a tile puts its sums into the workspace; the last one of a tile
 * adds them up, or all of them do, each some rows (linear_packed.c). Work-groups may own tiles,
 * which they begin (linear_nv90_packed.c). Without a workspace, or where a row's bits may not depend
 * on M, tiles are whole.
 */
#ifndef LLMK_LINEAR_SPLIT_H
#define LLMK_LINEAR_SPLIT_H

#include "ops/linear.h"

/* Sums of a tile, and warps that multiply one, at most. */
#define LLMK_SPLIT_SUMS  ((size_t)128 * 256)
#define LLMK_SPLIT_WARPS 16u

/* Bytes of workspace that serve any such call on the device, or this one; 0 where there is no use
 * for them. */
uint64_t llmk_linear_split_bytes_on(llmk_context *ctx);
uint64_t llmk_linear_split_bytes(const linear_problem *p);

/* Where they begin in it: behind the codes of W8A8. */
uint64_t llmk_linear_split_first(const linear_problem *p);

/* Whether `tiles` tiles, of so many stages, may be shared out among `groups` work-groups. */
bool llmk_linear_may_split(const linear_problem *p, uint64_t tiles, uint64_t stages,
                           uint32_t groups);

/* The tiles of a segment, and those of them that fill whole turns of all places: `each` of a
 * compute unit, or one where tiles are so few. */
typedef struct linear_turns {
    uint64_t tiles, whole;
    uint32_t places;
} linear_turns;
linear_turns llmk_linear_turns(const llmk_launch *launch, const linear_problem *p,
                               const llmk_segment *segment, const linear_recipe *r, uint32_t each);

/* Stages of K for each of `groups` work-groups that share `tiles` tiles. */
static inline uint64_t llmk_linear_split_per(uint64_t tiles, uint64_t stages, uint32_t groups)
{
    return (tiles * stages + groups - 1) / groups;
}

/* The arguments in the order of SPLIT_PARAMETERS: the first `whole` tiles are not shared, of the
 * others each work-group has `per` stages; all are whole where per is 0. */
void llmk_linear_split_arguments(llmk_kernel *k, const linear_problem *p, uint32_t whole,
                                 uint32_t per);

#endif
