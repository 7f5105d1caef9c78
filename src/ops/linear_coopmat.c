/*
 * linear_coopmat.c - the linear layer on SPIR-V's cooperative matrices: when
 * cl/linear/linear_coopmat.cl is offered, and its work-groups. docs/matrix-units.md explains it.
 */
#include "core/image.h"
#include "ops/linear.h"
#include "ops/subgroup.h"

#define FILE_NAME "linear/linear_coopmat.cl"
#define EMULATED  "-DCOOPMAT_EMULATED"
#define TILE      64u /* rows and columns of y */
#define WAVES     4u  /* a quarter of the tile each */
#define MIN_ROWS  16u /* of a fragment */
#define MAX_K     (UINT64_C(1) << 31)
#define LOCAL     (18u << 10)

static const char *defines_of(const llmk_context *ctx, char text[32])
{
    llmk_join(text, 32, "-DSUBGROUP=", llmk_digits(llmk_subgroup_required(ctx)), NULL);
    return text;
}

static uint32_t items_of(const llmk_context *ctx, uint32_t subgroup)
{
    const uint32_t items = WAVES * subgroup;
    return items <= ctx->caps.max_work_group ? items : ctx->caps.max_work_group;
}

static bool fits(const llmk_context *ctx, const linear_problem *p, llmk_reason *why)
{
    if (p->weights->layout != LLMK_LAYOUT_F16_PORTABLE || p->x.dtype != LLMK_F16)
        return llmk_no(why, "for x and weights of f16");
    if (p->weights->k == 0 || p->weights->k > MAX_K)
        return llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)p->weights->k,
                       (unsigned long long)MAX_K);
    if (ctx->caps.local_bytes < LOCAL)
        return llmk_no(why, "needs %u bytes of local memory", LOCAL);
    return true;
}

/* Drivers take what they cannot run: the device must have said that it can (or the user, for it),
 * and then the self-test decides. */
static bool is_offered(llmk_context *ctx, const linear_problem *p, llmk_reason *why)
{
    if (ctx->is_trial)
        return true;
    if (!ctx->caps.cooperative_matrix)
        return llmk_no(why, "the device does not list SPV_KHR_cooperative_matrix among its SPIR-V "
                            "extensions (LLMK_COOPMAT=on: try nevertheless)");
    if (p->x.nrows < MIN_ROWS && !p->batch_invariant &&
        !llmk_variant_is_forced(ctx, "linear", "coopmat"))
        return llmk_no(why, "for %u rows of x and more", MIN_ROWS);
    return true;
}

bool llmk_linear_coopmat_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    char defines[32];
    if (!fits(ctx, problem, why) || !is_offered(ctx, problem, why))
        return false;
    if (!llmk_image_comes_first(ctx, FILE_NAME, defines_of(ctx, defines)))
        return llmk_no(why, "exists only as a SPIR-V image, which this library has not or this "
                            "device does not take");
    if (llmk_subgroup_expected(ctx) == 0)
        return llmk_no(why, "the device has no sub-groups");
    return true;
}

bool llmk_linear_emulated_coopmat_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "emulated-coopmat"))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return fits(ctx, problem, why);
}

static llmk_status launch_with(llmk_launch *launch, const void *problem, const char *defines,
                               uint32_t items)
{
    const linear_recipe r = {.file = FILE_NAME,
                             .defines = defines,
                             .kernel = "linear_coopmat",
                             .rows = TILE,
                             .columns = TILE,
                             .local = {items, 1, 1}};
    return llmk_linear_run(launch, problem, &r);
}

llmk_status llmk_linear_coopmat_launch(llmk_launch *launch, const void *problem)
{
    char defines[32];
    return launch_with(launch, problem, defines_of(launch->ctx, defines),
                       items_of(launch->ctx, llmk_subgroup_expected(launch->ctx)));
}

llmk_status llmk_linear_emulated_coopmat_launch(llmk_launch *launch, const void *problem)
{
    return launch_with(launch, problem, EMULATED, items_of(launch->ctx, 16));
}
