/* linear_nv90.h - what the variants of the linear layer on wgmma share (linear_nv90.c). */
#ifndef LLMK_LINEAR_NV90_H
#define LLMK_LINEAR_NV90_H

#include "ops/linear.h"

#define LLMK_NV90_PACKED_NAME "linear/linear_wgmma_packed.cl"
#define LLMK_NV90_GATED_NAME  "linear/linear_wgmma_tall_gated.cl"
#define LLMK_NV90_FEW_NAME    "linear/linear_wgmma_few.cl"
#define LLMK_NV90_NARROW_NAME "linear/linear_wgmma_narrow.cl"
#define LLMK_NV90_MAX_TILES   ((uint64_t)1 << 28)

/* Whether the copy unit can bring x. K is asked too, so that one row is not told apart from more.
 */
bool llmk_linear_nv90_has_x_boxes(const linear_problem *p);
/* And weights of x's type. */
bool llmk_linear_nv90_has_boxes(const linear_problem *p, llmk_reason *why);
bool llmk_linear_nv90_has_k(uint64_t k, llmk_reason *why);
/* Nanoseconds for a tile of 256 rows of x by 16 `width` of W, by estimate. */
uint64_t llmk_linear_nv90_tall_time(uint32_t width, uint64_t k);

#endif
