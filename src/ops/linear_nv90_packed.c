/*
 * linear_nv90_packed.c - the linear layer on wgmma with weights of 4 and 8 bits:
 * cl/linear/linear_wgmma_packed.cl and linear_wgmma_narrow.cl. What it needs of the device is in
 * linear_nv90.c.
 */
#include "ops/linear_nv90.h"
#include "ops/linear_split.h"

#define MIN_ROWS 17

/* What a stage of the pipeline has of K; a scale must hold for all of it. */
static uint32_t stage_of(const llmk_weights *w)
{
    return llmk_layout_is_u4(w->layout) ? 128 : 64;
}

bool llmk_linear_nv90_packed_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    if (!llmk_linear_has_wgmma(ctx, why) || !llmk_linear_is_plain(p, why))
        return false;
    if (!(LLMK_LAYOUT_BIT(w->layout) & LLMK_LAYOUTS_NV))
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(w->layout));
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    if (w->order || !llmk_linear_nv90_has_x_boxes(p))
        return llmk_no(why, "for rows of x in the order of the weights, with one stride and on "
                            "16-byte boundaries, and k a multiple of 8");
    if (w->scale_kind == LLMK_SCALE_F16_MIN)
        return llmk_no(why, "not for weights with minimums");
    if (w->groups > 1 && w->group_size % stage_of(w) != 0)
        return llmk_no(why, "for groups of a multiple of %u, or one in a row", stage_of(w));
    /* nv-stream takes fewer. */
    if (p->x.nrows < MIN_ROWS && !p->batch_invariant && !ctx->is_trial &&
        !llmk_variant_is_forced(ctx, "linear", "nv90-packed"))
        return llmk_no(why, "for %d rows of x and more", MIN_ROWS);
    if (!llmk_linear_nv90_has_k(w->k, why))
        return false;
    if (p->x.nrows > INT32_MAX || (p->x.nrows / 32 + 1) * (w->n / 128 + 1) > LLMK_NV90_MAX_TILES)
        return llmk_no(why, "too many rows");
    return true;
}

/* What GROUPED of the kernels is: sums in units of the scales want scales of f16. */
static uint32_t groups_of(const llmk_weights *w)
{
    if (w->groups <= 1)
        return 0;
    return llmk_layout_is_u4(w->layout) && w->scale_kind == LLMK_SCALE_F16 ? 2 : 1;
}

/* A kernel, its tile of y, and how long its stages and the end of a tile take on an H200, in ns. */
typedef struct packed_shape {
    const char *kernel;
    uint32_t rows, columns;
    uint32_t u4, s8, end;
    bool narrow; /* of two warpgroups */
} packed_shape;

/* Of linear_wgmma_narrow.cl, whose tiles are all whole. */
static bool is_tall(const packed_shape *s)
{
    return s->rows == 256;
}

/* Tiles that are whole, and how the others are shared: the stages of each owner, and of each
 * work-group that owns no tile in the lower 16 bits (linear_split.h). */
typedef struct packed_plan {
    const packed_shape *shape;
    uint32_t groups, whole, per;
    uint64_t time;
} packed_plan;

/* What a part of a tile takes beside its stages, in ns. */
#define MEET_TIME(shape) (700 + (shape)->rows * (shape)->columns / 5)

/* The last tiles, which fill no whole round, have owners: `left` of a tile's stages are for others,
 * so that all end at about the same time. */
static packed_plan plan_of(const llmk_launch *launch, const linear_problem *p,
                           const packed_shape *shape, uint64_t n)
{
    const llmk_weights *w = p->weights;
    const bool trial = launch->ctx->is_trial;
    const uint64_t stage = llmk_layout_is_u4(w->layout) ? shape->u4 : shape->s8;
    const uint64_t units = launch->ctx->caps.compute_units;
    const uint64_t tiles =
        (p->x.nrows + shape->rows - 1) / shape->rows * ((n + shape->columns - 1) / shape->columns);
    const uint64_t stages = (w->depth + stage_of(w) - 1) / stage_of(w);
    const uint64_t tile = stages * stage + shape->end;
    packed_plan plan = {.shape = shape,
                        .groups = (uint32_t)(tiles < units ? tiles : units),
                        .time = (tiles + units - 1) / units * tile};
    const uint64_t rest = tiles % units, others = units - rest;
    if (is_tall(shape) || rest == 0 || stages < 2 || stages > UINT16_MAX ||
        !llmk_linear_may_split(p, rest, stages, (uint32_t)units))
        return plan;
    const uint64_t meet = MEET_TIME(shape), best = (stages * stage + meet) * others / units;
    const uint64_t left = trial ? (stages + 1) / 2 : best > meet ? (best - meet) / stage : 0;
    if (left == 0 || left >= stages)
        return plan;
    const uint64_t per = llmk_linear_split_per(rest, left, (uint32_t)others);
    if (per > UINT16_MAX)
        return plan;
    const uint64_t own = stages - left, owners = own * stage + meet;
    const uint64_t row = per * stage + (per / left + 1) * meet;
    const uint64_t time = tiles / units * tile + (owners > row ? owners : row) + shape->end;
    if (time < plan.time || trial)
        plan = (packed_plan){shape, (uint32_t)units, (uint32_t)(tiles - rest),
                             (uint32_t)(own << 16 | per), time};
    return plan;
}

/* Whether a shape is for this call. Tall tiles are not in the bits of the others. */
static bool serves(const llmk_launch *launch, const linear_problem *p, const packed_shape *shape)
{
    const llmk_weights *w = p->weights;
    if (is_tall(shape))
        return !llmk_layout_is_u4(w->layout) && w->groups <= 1 && !p->batch_invariant &&
               !(launch->ctx->is_trial && p->workspace);
    return !(launch->ctx->is_trial && p->workspace && shape->narrow);
}

#define NARROW_64                                                                                  \
    {                                                                                              \
        "linear_wgmma_packed_64_narrow", 64, 128, 600, 400, 3000, true                             \
    }

/* As asked, or what is estimated to end first. In a trial, whose problems are small, every shape
 * has its turn: of two for as many rows the narrow one without a workspace. */
static packed_plan best_plan(const llmk_launch *launch, const linear_problem *p, uint64_t n)
{
    static const packed_shape units[] = {
        {"linear_wgmma_packed_32", 32, 256, 800, 430, 3000, false},
        {"linear_wgmma_packed_64", 64, 256, 950, 495, 3000, false},
        {"linear_wgmma_packed_128", 128, 256, 1390, 670, 3500, false},
        NARROW_64,
        {"linear_wgmma_narrow_256", 256, 128, 0, 645, 3500, true}};
    static const packed_shape totals[] = {
        {"linear_wgmma_packed_32", 32, 256, 850, 500, 3000, false},
        {"linear_wgmma_packed_64", 64, 256, 1000, 600, 3000, false},
        {"linear_wgmma_packed_128", 128, 128, 1000, 600, 3000, false},
        NARROW_64,
        {"linear_wgmma_narrow_256", 256, 128, 0, 645, 3500, true}};
    const packed_shape *all = groups_of(p->weights) == 1 ? totals : units;
    const llmk_config *config = launch->config;
    packed_plan best = {.time = UINT64_MAX};
    for (size_t i = 0; i < LLMK_COUNT(units); i++) {
        if (!serves(launch, p, all + i))
            continue;
        packed_plan plan = plan_of(launch, p, all + i, n);
        const uint32_t rows = all[i].rows;
        if (config && config->value[0] == rows && config->value[1] == all[i].narrow)
            return plan;
        if (launch->ctx->is_trial)
            plan.time = rows >= p->x.nrows ? rows - i : 1024 - rows;
        if (plan.time < best.time)
            best = plan;
    }
    return best;
}

llmk_status llmk_linear_nv90_packed_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    for (size_t i = 0; i < w->segment_count; i++) {
        const llmk_segment *segment = &w->segments[i];
        const packed_plan plan = best_plan(launch, p, segment->rows);
        const bool narrow = plan.shape->narrow, tall = is_tall(plan.shape);
        const char *type = llmk_dtype_name(p->x.dtype);
        char defines[64];
        llmk_join(defines, sizeof defines, "-DX=", type,
                  tall ? NULL : " -DW=", llmk_layout_is_u4(w->layout) ? "u4_nv" : "s8_nv",
                  " -DGROUPED=", llmk_digits(groups_of(w)), NULL);
        const linear_recipe r = {.file = tall ? LLMK_NV90_NARROW_NAME : LLMK_NV90_PACKED_NAME,
                                 .defines = defines,
                                 .kernel = plan.shape->kernel,
                                 .rows = plan.shape->rows,
                                 .columns = plan.shape->columns,
                                 .local = {narrow ? 384 : 640, 1, 1},
                                 .groups = plan.groups,
                                 .has_split = !tall,
                                 .whole = plan.whole,
                                 .per = plan.per};
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}
