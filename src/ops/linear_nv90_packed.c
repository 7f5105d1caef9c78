/*
 * linear_nv90_packed.c - the linear layer on wgmma with weights of 4 and 8 bits:
 * cl/linear/linear_wgmma_packed.cl. What it needs of the device is in linear_nv90.c.
 */
#include "ops/linear_nv90.h"

#define TILE_N 128
#define ITEMS  384

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
    /* nv-stream takes fewer; of 8 bits nv-packed is as fast up to one of its tiles. */
    const uint32_t least = llmk_layout_is_u4(w->layout) ? 17 : 65;
    if (p->x.nrows < least && !p->batch_invariant && !ctx->is_trial &&
        !llmk_variant_is_forced(ctx, "linear", "nv90-packed"))
        return llmk_no(why, "for %u rows of x and more", least);
    if (!llmk_linear_nv90_has_k(w->k, why))
        return false;
    if (p->x.nrows > INT32_MAX || (p->x.nrows / 32 + 1) * (w->n / TILE_N + 1) > LLMK_NV90_MAX_TILES)
        return llmk_no(why, "too many rows");
    return true;
}

typedef struct packed_width {
    const char *kernel;
    uint32_t rows;
    uint32_t u4, s8; /* the time of a tile of them, in 128ths of one of 128 rows */
} packed_width;

/* Rows of x in a tile: as asked, or what is estimated to end first. In a trial, whose problems are
 * small, every width has its turn. */
static const packed_width *width_of(const llmk_launch *launch, const linear_problem *p, uint64_t n)
{
    const llmk_context *ctx = launch->ctx;
    static const packed_width widths[] = {{"linear_wgmma_packed_32", 32, 81, 92},
                                          {"linear_wgmma_packed_64", 64, 92, 104},
                                          {"linear_wgmma_packed_128", 128, 128, 128},
                                          {"linear_wgmma_packed_256", 256, 0, 178}};
    const bool u4 = llmk_layout_is_u4(p->weights->layout);
    const bool no_256 = u4 || p->weights->groups > 1;
    const uint32_t units = ctx->caps.compute_units;
    const packed_width *best = widths;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < LLMK_COUNT(widths) - no_256; i++) {
        const packed_width *w = &widths[i];
        if (launch->config && launch->config->value[0] == w->rows)
            return w;
        const uint64_t rows = (p->x.nrows + w->rows - 1) / w->rows;
        const uint64_t tiles = rows * ((n + TILE_N - 1) / TILE_N);
        const uint64_t time =
            ctx->is_trial ? rows : (tiles + units - 1) / units * (u4 ? w->u4 : w->s8);
        if (time < least) {
            least = time;
            best = w;
        }
    }
    return best;
}

llmk_status llmk_linear_nv90_packed_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const llmk_weights *w = p->weights;
    const uint32_t units = launch->ctx->caps.compute_units;
    char defines[64];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype),
              llmk_layout_is_u4(w->layout) ? " -DW=u4_nv" : " -DW=s8_nv",
              w->groups > 1 ? " -DGROUPED=1" : " -DGROUPED=0", NULL);
    for (size_t i = 0; i < w->segment_count; i++) {
        const llmk_segment *segment = &w->segments[i];
        const packed_width *width = width_of(launch, p, segment->rows);
        const uint64_t tiles =
            (p->x.nrows + width->rows - 1) / width->rows * ((segment->rows + TILE_N - 1) / TILE_N);
        const linear_recipe r = {.file = LLMK_NV90_PACKED_NAME,
                                 .defines = defines,
                                 .kernel = width->kernel,
                                 .rows = width->rows,
                                 .columns = TILE_N,
                                 .local = {ITEMS, 1, 1},
                                 .groups = tiles < units ? (uint32_t)tiles : units};
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}
