/*
 * grouped_nv90.c - grouped products on wgmma, cl/grouped_linear/grouped_wgmma.cl, on NVIDIA GPUs
 * of compute capability 9.0 and from its images, since no driver assembles wgmma from source.
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

/* Tiles of a segment, whole in K. */
static uint64_t most_tiles(const grouped_problem *p, const llmk_segment *s)
{
    return llmk_grouped_most_tiles(p, s) * ((columns_of(p) + TILE_N - 1) / TILE_N);
}

/* A segment of a gated pair, of a product, or of both where its x is what the pair writes; or NULL. */
static llmk_status launch_segment(llmk_launch *launch, const grouped_problem *up,
                                  const grouped_problem *down, size_t segment)
{
    const grouped_gate no_gate = {.step = 1};
    grouped_problem first = up ? *up : *down;
    if (!up)
        first.y = down->x;
    const llmk_segment *s = &first.weights->segments[segment];
    const llmk_segment *d = down ? &down->weights->segments[segment] : NULL;
    const uint32_t most_ways = down && down->most_ways ? down->most_ways : 1;
    const uint64_t tiles =
        (up ? most_tiles(up, s) : 0) + (down ? most_tiles(down, d) * most_ways : 0);
    const uint32_t units = launch->ctx->caps.compute_units;
    char defines[16];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(first.x.dtype), NULL);
    llmk_kernel k =
        llmk_kernel_open(launch, "grouped_linear/grouped_wgmma.cl", defines, "grouped_wgmma");
    llmk_grouped_arg(&k, &first, s);
    llmk_grouped_arg_gate(&k, up ? up->gate : &no_gate, up ? &up->gate->up->segments[segment] : s);
    llmk_grouped_arg_down(&k, down, d);
    llmk_arg_u32(&k, most_ways);
    return llmk_kernel_enqueue(&k, (size_t[]){tiles < units ? (size_t)tiles : units, 1, 1},
                               (size_t[]){ITEMS, 1, 1});
}

static llmk_status launch_all(llmk_launch *launch, const grouped_problem *p)
{
    grouped_problem g;
    LLMK_TRY(llmk_grouped_gather(launch, p, &g));
    for (size_t i = 0; i < p->weights->segment_count; i++)
        LLMK_TRY(launch_segment(launch, p->gate ? &g : NULL, p->gate ? NULL : &g, i));
    return LLMK_OK;
}

static llmk_status launch_layer(llmk_launch *launch, const grouped_problem *up,
                                const grouped_problem *down)
{
    grouped_problem g;
    LLMK_TRY(llmk_grouped_gather(launch, up, &g));
    return launch_segment(launch, &g, down, 0);
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
