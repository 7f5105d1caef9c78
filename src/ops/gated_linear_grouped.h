/*
 * gated_linear_grouped.h - gate, up and activation by the kernels of experts' gated pairs: all rows
 * of x are those of one expert.
 */
#ifndef LLMK_GATED_LINEAR_GROUPED_H
#define LLMK_GATED_LINEAR_GROUPED_H

#include "ops/grouped.h"
#include "ops/linear.h"

/* X(name, id of llmk_grouped_<id>) */
#define LLMK_GATED_VARIANTS(X)                                                                     \
    X("nv90-packed", nv90_packed)                                                                  \
    X("nv", nv)                                                                                    \
    X("amd", amd)                                                                                  \
    X("emulated-nv", emulated_nv)

/* Of a pair that one kernel can compute; `name` is that of the variant, has_scratch: whether two
 * products and their activation could do it instead. */
bool llmk_gated_grouped_supports(llmk_context *ctx, const grouped_products *products,
                                 const char *name, const linear_problem *p, bool has_scratch,
                                 llmk_reason *why);
llmk_status llmk_gated_grouped_launch(llmk_launch *launch, const grouped_products *products,
                                      const linear_problem *p);

/* Tall tiles of both on wgmma (gated_linear_nv90.c). */
bool llmk_gated_tall_supports(llmk_context *ctx, const linear_problem *p, llmk_reason *why);
llmk_status llmk_gated_tall_launch(llmk_launch *launch, const linear_problem *p);

#endif
