/*
 * linear_nv90.c - the linear layer on wgmma: cl/linear/linear_wgmma.cl, on NVIDIA GPUs of compute
 * capability 9.0 and from its images, since no driver assembles wgmma from source.
 */
#include "core/image.h"
#include "ops/linear.h"

#define FILE_NAME "linear/linear_wgmma.cl"
#define TILE_M    128
#define TILE_N    256
#define ITEMS     384
#define MIN_ROWS  64 /* fewer leave more than half of a tile empty */
#define READY     0  /* 1 as soon as the kernel as it is has run */
#define MAX_TILES ((uint64_t)1 << 28)
#define MAX_K     ((uint64_t)1 << 26)

static bool has_images(llmk_context *ctx)
{
    int known = atomic_load(&ctx->wgmma);
    if (known < 0) {
        known = llmk_image_comes_first(ctx, FILE_NAME, "-DX=f16") &&
                llmk_image_comes_first(ctx, FILE_NAME, "-DX=bf16");
        atomic_store(&ctx->wgmma, known);
    }
    return known;
}

static uint64_t tiles_of(uint64_t m, uint64_t n)
{
    return (m + TILE_M - 1) / TILE_M * ((n + TILE_N - 1) / TILE_N);
}

/* Whether the copy unit can bring x and W. The kernel decides the same for itself; what it can not
 * bring is copied by items, which is slower than the variants that follow. */
static bool has_boxes(const linear_problem *p)
{
    if (!p->x.unit || !p->x.simple || p->x.align < 16 || p->x.rows.s0 == 0 || p->x.rows.s0 % 8)
        return false;
    for (size_t i = 0; i < p->weights->segment_count; i++)
        if (p->weights->segments[i].rows % 32)
            return false;
    return true;
}

bool llmk_linear_nv90_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    const uint64_t m = p->x.nrows, k = p->weights->k;
    if (ctx->caps.vendor != LLMK_VENDOR_NVIDIA || ctx->caps.compute_capability != 90)
        return llmk_no(why, "for NVIDIA GPUs of compute capability 9.0");
    if (!llmk_linear_is_half(p, why))
        return false;
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "nv90")) {
        if (!READY)
            return llmk_no(why, "only where forced: its last changes have not run on a GPU yet");
        if (m < MIN_ROWS && !p->batch_invariant)
            return llmk_no(why, "for %d rows of x and more", MIN_ROWS);
        if (!has_boxes(p))
            return llmk_no(why, "for rows of x with one stride and on 16-byte boundaries, and "
                                "multiples of 32 rows of W");
    }
    if (k == 0 || k > MAX_K)
        return llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)k,
                       (unsigned long long)MAX_K);
    if (m > INT32_MAX || tiles_of(m, p->weights->n) > MAX_TILES)
        return llmk_no(why, "too many rows");
    if (!has_images(ctx))
        return llmk_no(why, "no driver assembles it from source, and there is no sm_90a image of "
                            "it in this library, or LLMK_IMAGE forbids it");
    return true;
}

/* Into how many parts the tiles are cut that do not fill a round of the device. Narrow tiles need
 * more from local memory for what they compute. */
static uint32_t cut_of(uint64_t tiles, uint32_t units)
{
    static const struct {
        uint32_t parts, cost; /* cost of a part, in sixteenths of a tile */
    } cuts[] = {{1, 16}, {2, 10}, {4, 7}};
    const uint64_t rest = tiles % units;
    uint32_t best = 1;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < LLMK_COUNT(cuts); i++) {
        const uint64_t cost = (rest * cuts[i].parts + units - 1) / units * cuts[i].cost;
        if (cost < least) {
            least = cost;
            best = cuts[i].parts;
        }
    }
    return best;
}

llmk_status llmk_linear_nv90_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const uint32_t units = launch->ctx->caps.compute_units;
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *segment = &p->weights->segments[i];
        const uint64_t tiles = tiles_of(p->x.nrows, segment->rows);
        uint32_t cut = cut_of(tiles, units);
        if (launch->ctx->is_trial) /* whose problems are small: every width has its turn */
            cut = p->x.nrows < MIN_ROWS ? 4 : p->x.align < 16 ? 2 : 1;
        if (launch->config)
            cut = launch->config->value[0];
        const uint64_t parts = tiles * cut;
        const linear_recipe r = {.file = FILE_NAME,
                                 .defines = p->x.dtype == LLMK_F16 ? "-DX=f16" : "-DX=bf16",
                                 .kernel = "linear_wgmma",
                                 .rows = TILE_M,
                                 .columns = TILE_N,
                                 .local = {ITEMS, 1, 1},
                                 .groups = parts < units ? (uint32_t)parts : units,
                                 .has_last = true,
                                 .last = cut};
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}
