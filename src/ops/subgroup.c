/* subgroup.c - the sizes of sub-groups. docs/adding-a-device.md explains them. */
#include "ops/subgroup.h"

/* With images in cl/manifest.txt, in order of preference: 16 first, because the GPUs that list
 * sizes (Intel's) have it, and registers for the kernels of the linear layer at no larger one. */
static const uint32_t sizes[] = {16, 32, 64};

#define MIN_SIZE 8u

uint32_t llmk_subgroup_required(const llmk_context *ctx)
{
    if (ctx->forced_subgroup)
        return ctx->forced_subgroup;
    for (size_t i = 0; i < LLMK_COUNT(sizes); i++)
        if (ctx->caps.subgroup_sizes & sizes[i])
            return sizes[i];
    return 0;
}

uint32_t llmk_subgroup_expected(llmk_context *ctx)
{
    const uint32_t required = llmk_subgroup_required(ctx);
    return required ? required : llmk_probe_subgroup_size(ctx);
}

bool llmk_subgroup_supported(llmk_context *ctx, const char *op, llmk_reason *why)
{
    /* CPUs run sub-groups as loops with more to do between barriers. Asked first, so that they are
     * not probed in vain. */
    if (llmk_is_cpu(&ctx->caps) && !ctx->is_trial && !llmk_variant_is_forced(ctx, op, "subgroup"))
        return llmk_no(why, "slower than other variants on a CPU: only where forced");
    if (ctx->forced_subgroup && !(ctx->caps.subgroup_sizes & ctx->forced_subgroup))
        return llmk_no(why, "LLMK_SUBGROUP is %u, a size that the device does not list",
                       ctx->forced_subgroup);
    const uint32_t size = llmk_subgroup_expected(ctx);
    if (llmk_probe_subgroup_size(ctx) == 0)
        return llmk_no(why, "the device has no sub-groups");
    if (size < MIN_SIZE) /* sums would be longer chains than docs/numerics-norm.md allows */
        return llmk_no(why, "sub-groups of %u; at least %u are needed", size, MIN_SIZE);
    return true;
}
