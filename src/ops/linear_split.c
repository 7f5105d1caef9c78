/* linear_split.c - see linear_split.h. */
#include "ops/linear_split.h"
#include "ops/elementwise.h"

#define PLACES 2 /* of a work-group: the end of a tile, the beginning of another */

static uint64_t bytes_for(uint32_t groups)
{
    return (uint64_t)groups * PLACES * LLMK_SPLIT_SUMS * sizeof(float);
}

uint64_t llmk_linear_split_bytes_on(llmk_context *ctx)
{
    llmk_reason why;
    const bool any = llmk_nv_supported(ctx, &why) ||
                     llmk_variant_is_forced(ctx, "linear", "emulated-nv-packed") ||
                     llmk_variant_is_forced(ctx, "linear", "emulated-nv");
    return any ? bytes_for(ctx->caps.compute_units) : 0;
}

uint64_t llmk_linear_split_bytes(const linear_problem *p)
{
    llmk_reason why;
    const uint64_t fewest = llmk_linear_is_half(p, &why) ? 3 : 17; /* nv90-few, the others */
    const bool halves = !p->batch_invariant && p->x.nrows >= fewest &&
                        (p->x.dtype == LLMK_F16 || p->x.dtype == LLMK_BF16);
    const bool any = p->w8a8 ? p->weights->layout == LLMK_LAYOUT_S8_NV : halves;
    return any ? llmk_linear_split_bytes_on(p->weights->ctx) : 0;
}

uint64_t llmk_linear_split_first(const linear_problem *p)
{
    return p->w8a8 ? (llmk_linear_w8a8_bytes(p->x.nrows, p->weights->k) + 255) / 256 * 256 : 0;
}

/* Sums of W8A8 are exact, whoever adds them. */
bool llmk_linear_may_split(const linear_problem *p, uint64_t tiles, uint64_t stages,
                           uint32_t groups)
{
    return p->workspace && (p->w8a8 || !p->batch_invariant) &&
           p->workspace->bytes >= llmk_linear_split_first(p) + bytes_for(groups) &&
           tiles * LLMK_SPLIT_WARPS <= LLMK_WORKSPACE_COUNTS && tiles * stages <= INT32_MAX;
}

linear_turns llmk_linear_turns(const llmk_launch *launch, const linear_problem *p,
                               const llmk_segment *segment, const linear_recipe *r, uint32_t each)
{
    const uint32_t units = launch->ctx->caps.compute_units;
    const uint64_t tiles =
        (p->x.nrows + r->rows - 1) / r->rows * ((segment->rows + r->columns - 1) / r->columns);
    const uint32_t places = tiles <= units ? units : each * units;
    return (linear_turns){tiles, tiles / places * places, places};
}

void llmk_linear_split_arguments(llmk_kernel *k, const linear_problem *p, uint32_t whole,
                                 uint32_t per)
{
    llmk_arg_buffer(k, per ? p->workspace->buffer : NULL);
    llmk_arg_buffer(k, per ? p->workspace->counts : NULL);
    llmk_arg_u32(k, per ? whole : UINT32_MAX);
    llmk_arg_u32(k, per);
}
