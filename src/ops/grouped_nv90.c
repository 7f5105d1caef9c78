/*
 * grouped_nv90.c - grouped products on wgmma, cl/grouped_linear/grouped_wgmma.cl, and both of a
 * layer in one kernel, grouped_wgmma_layer.cl, on NVIDIA GPUs of compute capability 9.0 and from
 * their images, since no driver assembles wgmma from source.
 */
#include "ops/elementwise.h"
#include "ops/grouped.h"
#include "ops/linear.h"

#define TILE_M    192u /* rows of x, at most */
#define TILE_N    256u
#define BLOCK     32u /* rows of W that the copy unit brings at once */
#define ITEMS     384u
#define MAX_K     ((uint64_t)1 << 26)
#define MAX_TILES ((uint64_t)1 << 28)
#define MIN_ROWS                                                                                   \
    16u /* of an expert, on average; less in large calls, where a start counts for less */
#define MIN_OF_MANY 4u
#define MANY        1024u

static bool is_half(const llmk_weights *w, llmk_dtype x)
{
    return (w->layout == LLMK_LAYOUT_F16_PORTABLE && x == LLMK_F16) ||
           (w->layout == LLMK_LAYOUT_BF16_PORTABLE && x == LLMK_BF16);
}

bool llmk_grouped_may_gather(llmk_context *ctx, const llmk_weights *w, llmk_dtype x)
{
    llmk_reason why;
    const bool codes = llmk_grouped_is_codes(w) && (x == LLMK_F16 || x == LLMK_BF16);
    return (is_half(w, x) || codes) && llmk_linear_has_wgmma(ctx, &why);
}

bool llmk_grouped_has_boxes(const grouped_problem *p, llmk_reason *why)
{
    if (p->source.present ? !p->gathered || !p->x.unit
                          : !p->x.unit || !p->x.simple || p->x.align < 16 || p->x.rows.s0 == 0 ||
                                p->x.rows.s0 % 8)
        return llmk_no(why,
                       "for rows of x that lie in the order of the groups, with one stride and "
                       "on 16-byte boundaries");
    return (p->y.unit && p->y.simple && p->y.align >= 16) ||
           llmk_no(why, "for rows of y on 16-byte boundaries");
}

/* Rows of W of a group, gate's and up's. */
static uint64_t columns_of(const grouped_problem *p)
{
    return (uint64_t)llmk_grouped_outputs(p) * (p->gate ? 2 : 1);
}

static bool supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    const llmk_weights *w = p->weights;
    if (!llmk_linear_has_wgmma(ctx, why))
        return false;
    if (!is_half(w, p->x.dtype))
        return llmk_no(why, "for f16 or bf16 x and weights of the same type");
    if (w->k == 0 || w->k % 8 || w->k > MAX_K)
        return llmk_no(why, "k is %llu: for multiples of 8 up to %llu", (unsigned long long)w->k,
                       (unsigned long long)MAX_K);
    if (llmk_grouped_outputs(p) % BLOCK)
        return llmk_no(why, "for multiples of %u outputs", BLOCK);
    if (!llmk_grouped_has_boxes(p, why))
        return false;
    if ((p->rows / TILE_M + w->experts + 1) * (columns_of(p) / TILE_N + 1) > MAX_TILES)
        return llmk_no(why, "too many rows");
    return true;
}

static bool suits(uint64_t rows, uint64_t experts, bool codes, llmk_reason *why)
{
    (void)codes;
    return rows >= MIN_ROWS * experts || (rows >= MANY && rows >= MIN_OF_MANY * experts) ||
           llmk_no(why, "for %u rows an expert and more, on average, %u from %u rows on", MIN_ROWS,
                   MIN_OF_MANY, MANY);
}

static uint32_t height(uint64_t rows, uint64_t experts, bool few, bool codes)
{
    (void)rows, (void)experts, (void)few, (void)codes;
    return TILE_M;
}

llmk_status llmk_grouped_gather(llmk_launch *launch, const grouped_problem *p, grouped_problem *out)
{
    *out = *p;
    if (!p->source.present)
        return LLMK_OK;
    out->x = llmk_moe_view(p->gathered, p->x.dtype, p->rows, p->weights->k);
    out->source = (llmk_view){0};
    return llmk_moe_launch_gather(launch, &p->x, &p->source, p->fan, &out->x, false);
}

static llmk_status launch_all(llmk_launch *launch, const grouped_problem *p)
{
    static const char *const kernels[] = {"grouped_wgmma", "grouped_wgmma_gated"};
    const uint32_t units = launch->ctx->caps.compute_units;
    const bool gated = p->gate != NULL;
    const uint32_t most_ways = p->most_ways ? p->most_ways : 1;
    char defines[16];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), NULL);
    grouped_problem g;
    LLMK_TRY(llmk_grouped_gather(launch, p, &g));
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *s = &p->weights->segments[i];
        const uint64_t tiles =
            llmk_grouped_most_tiles(&g, s) * ((columns_of(p) + TILE_N - 1) / TILE_N) * most_ways;
        llmk_kernel k =
            llmk_kernel_open(launch, "grouped_linear/grouped_wgmma.cl", defines, kernels[gated]);
        llmk_grouped_arg(&k, &g, s);
        if (gated)
            llmk_grouped_arg_gate(&k, p->gate, &p->gate->up->segments[i]);
        else
            llmk_arg_u32(&k, most_ways);
        LLMK_TRY(llmk_kernel_enqueue(&k, (size_t[]){tiles < units ? (size_t)tiles : units, 1, 1},
                                     (size_t[]){ITEMS, 1, 1}));
    }
    return LLMK_OK;
}

static uint64_t most_tiles(const grouped_problem *p)
{
    return llmk_grouped_most_tiles(p, &p->weights->segments[0]) *
           ((columns_of(p) + TILE_N - 1) / TILE_N);
}

static llmk_status launch_layer(llmk_launch *launch, const grouped_problem *up,
                                const grouped_problem *down)
{
    const uint32_t most_ways = down->most_ways ? down->most_ways : 1;
    const uint32_t units = launch->ctx->caps.compute_units;
    char defines[16];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(up->x.dtype), NULL);
    grouped_problem g;
    LLMK_TRY(llmk_grouped_gather(launch, up, &g));
    const uint64_t tiles = most_tiles(&g) + most_tiles(down) * most_ways;
    llmk_kernel k = llmk_kernel_open(launch, "grouped_linear/grouped_wgmma_layer.cl", defines,
                                     "grouped_wgmma_layer");
    llmk_grouped_arg(&k, &g, &g.weights->segments[0]);
    llmk_grouped_arg_gate(&k, g.gate, &g.gate->up->segments[0]);
    llmk_grouped_arg_down(&k, down);
    llmk_arg_u32(&k, most_ways);
    return llmk_kernel_enqueue(&k, (size_t[]){tiles < units ? (size_t)tiles : units, 1, 1},
                               (size_t[]){ITEMS, 1, 1});
}

const grouped_products llmk_grouped_nv90 = {
    .gathers = true,
    .splits = true,
    .supports = supports,
    .suits = suits,
    .height = height,
    .launch = launch_all,
    .layer = launch_layer,
};
