/*
 * grouped_nv90_packed.c - grouped products on wgmma with weights of 4 and 8 bits,
 * cl/grouped_linear/grouped_wgmma_packed.cl.
 */
#include "ops/elementwise.h"
#include "ops/grouped.h"
#include "ops/linear.h"

#define HEIGHT    128u /* rows of x of the schedule's tiles */
#define TILE_N    256u /* rows of W, of gated pairs the gate's and up's */
#define ITEMS     640u
#define MAX_K     ((uint64_t)1 << 26)
#define MAX_TILES ((uint64_t)1 << 28)
#define MIN_ROWS  12u /* of an expert, on average: fewer are served better by nv-stream */

/* What a stage has of K; a scale must hold for all of it. */
static uint32_t stage_of(const llmk_weights *w)
{
    return llmk_layout_is_u4(w->layout) ? 128 : 64;
}

/* What GROUPED of the kernels is: sums in units of the scales want scales of f16. */
static uint32_t groups_of(const llmk_weights *w)
{
    if (w->groups <= 1)
        return 0;
    return llmk_layout_is_u4(w->layout) && w->scale_kind == LLMK_SCALE_F16 ? 2 : 1;
}

static bool reads(const llmk_weights *w, llmk_reason *why)
{
    if (!llmk_grouped_is_codes(w))
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(w->layout));
    if (w->order || w->scale_kind == LLMK_SCALE_F16_MIN)
        return llmk_no(why, "not for weights with an order or minimums");
    if (w->groups > 1 && w->group_size % stage_of(w) != 0)
        return llmk_no(why, "for groups of a multiple of %u, or one in a row", stage_of(w));
    if (w->n % w->block != 0)
        return llmk_no(why, "experts of %llu rows are no whole blocks of %u",
                       (unsigned long long)w->n, w->block);
    return (w->k > 0 && w->k % 8 == 0 && w->k <= MAX_K) ||
           llmk_no(why, "k is %llu: for multiples of 8 up to %llu", (unsigned long long)w->k,
                   (unsigned long long)MAX_K);
}

static bool supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    const llmk_weights *w = p->weights;
    if (!llmk_linear_has_wgmma(ctx, why) || !reads(w, why) || (p->gate && !reads(p->gate->up, why)))
        return false;
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    if (llmk_grouped_outputs(p) % 4)
        return llmk_no(why, "for multiples of 4 outputs");
    if (p->gate && p->gate->step == 1 && p->gate->up_first % w->block != 0)
        return llmk_no(why, "up begins within a block of %u rows", w->block);
    if (!llmk_grouped_has_boxes(p, why))
        return false;
    if ((p->bias.present && !p->bias.simple) ||
        (p->gate && p->gate->up_bias.present && !p->gate->up_bias.simple))
        return llmk_no(why, "for biases whose rows have one stride");
    if ((p->rows / HEIGHT + w->experts + 1) * (w->n / (TILE_N / 2) + 1) > MAX_TILES)
        return llmk_no(why, "too many rows");
    return true;
}

static bool suits(uint64_t rows, uint64_t experts, bool codes, llmk_reason *why)
{
    (void)codes;
    return rows >= MIN_ROWS * experts ||
           llmk_no(why, "for %u rows an expert and more, on average", MIN_ROWS);
}

static uint32_t height(uint64_t rows, uint64_t experts, bool few, bool codes)
{
    (void)rows, (void)experts, (void)few, (void)codes;
    return HEIGHT;
}

static llmk_status launch_all(llmk_launch *launch, const grouped_problem *p)
{
    const uint32_t units = launch->ctx->caps.compute_units;
    const bool gated = p->gate != NULL;
    const llmk_weights *w = p->weights;
    const uint64_t columns = (uint64_t)llmk_grouped_outputs(p) * (gated ? 2 : 1);
    char defines[64];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype),
              llmk_layout_is_u4(w->layout) ? " -DW=u4_nv" : " -DW=s8_nv",
              " -DGROUPED=", llmk_digits(groups_of(w)), NULL);
    grouped_problem g;
    LLMK_TRY(llmk_grouped_gather(launch, p, &g));
    for (size_t i = 0; i < w->segment_count; i++) {
        const llmk_segment *s = &w->segments[i];
        const uint64_t tiles = llmk_grouped_most_tiles(&g, s) * ((columns + TILE_N - 1) / TILE_N);
        llmk_kernel k =
            llmk_kernel_open(launch, "grouped_linear/grouped_wgmma_packed.cl", defines,
                             gated ? "grouped_wgmma_packed_gated" : "grouped_wgmma_packed");
        llmk_grouped_arg(&k, &g, s);
        if (gated)
            llmk_grouped_arg_gate(&k, p->gate, &p->gate->up->segments[i]);
        LLMK_TRY(llmk_kernel_enqueue(&k, (size_t[]){tiles < units ? (size_t)tiles : units, 1, 1},
                                     (size_t[]){ITEMS, 1, 1}));
    }
    return LLMK_OK;
}

const grouped_products llmk_grouped_nv90_packed = {
    .gathers = true,
    .supports = supports,
    .suits = suits,
    .height = height,
    .launch = launch_all,
};
