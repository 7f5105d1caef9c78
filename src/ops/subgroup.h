/* subgroup.h - what the `subgroup` variants of the operators share. */
#ifndef LLMK_SUBGROUP_H
#define LLMK_SUBGROUP_H

#include "ops/operator.h"

/* Whether the device has sub-groups, and `op`'s subgroup variant is to use them. */
bool llmk_subgroup_supported(llmk_context *ctx, const char *op, llmk_reason *why);

/* The N of -DSUBGROUP=N in cl/common/subgroup.clh: the size to require, 0 where the device lists
 * none. */
uint32_t llmk_subgroup_required(const llmk_context *ctx);

/* The size to expect and to choose work-groups for; what runs may still be another. */
uint32_t llmk_subgroup_expected(llmk_context *ctx);

#endif
