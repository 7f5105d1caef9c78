/*
 * linear_tiled.c - the linear layer on matrix units: cl/linear/linear_tiled.cl in its
 * configurations, and linear_tiled_plain.cl in place of one of them. docs/matrix-units.md explains
 * the kernel, docs/notes/performance.md the sizes chosen here.
 */
#include "ops/linear.h"

#include <stdio.h>

typedef struct config {
    const char *name;    /* of the variant */
    const char *defines; /* matrix unit and copies, then the tile */
    uint32_t rows, columns, items, local_bytes;
} config;

/* Waves and fragments; 48 KiB of local memory at most. A fragment is 16 x 16, a chunk 8 halves. */
#define NV_UNIT "-DFRAGMENT_MMA -DASYNC_COPY_CP "
#define NV_TILE                                                                                    \
    "-DWAVES_M=2 -DWAVES_N=2 -DFRAGMENTS_M=4 -DFRAGMENTS_N=4 -DCHUNKS=4 -DSTAGES=3 -DPATCH=4"
#define NV_WIDE_TILE                                                                               \
    "-DWAVES_M=2 -DWAVES_N=4 -DFRAGMENTS_M=4 -DFRAGMENTS_N=4 -DCHUNKS=4 -DSTAGES=2 -DPATCH=4"
/* A fragment is 32 x 32. */
#define AMD_UNIT "-DFRAGMENT_MFMA=32 -DASYNC_COPY_HELD "
#define AMD_TILE                                                                                   \
    "-DWAVES_M=2 -DWAVES_N=2 -DFRAGMENTS_M=2 -DFRAGMENTS_N=2 -DCHUNKS=4 -DSTAGES=2 -DPATCH=1"
/* The same tiles; the emulator's scratch is 4 KiB a wave. */
#define EMULATED_NV_UNIT  "-DFRAGMENT_MMA -DFRAGMENT_EMULATED "
#define EMULATED_AMD_UNIT AMD_UNIT "-DFRAGMENT_EMULATED "

static const config nv_wide = {"nv-wide", NV_UNIT NV_WIDE_TILE, 128, 256, 256, 48 << 10};
static const config nv = {"nv", NV_UNIT NV_TILE, 128, 128, 128, 48 << 10};
static const config amd = {"amd", AMD_UNIT AMD_TILE, 128, 128, 256, 32 << 10};
static const config emulated_nv = {"emulated-nv", EMULATED_NV_UNIT NV_TILE, 128, 128,
                                   128,           (48 + 18) << 10};
static const config emulated_nv_wide = {
    "emulated-nv-wide", EMULATED_NV_UNIT NV_WIDE_TILE, 128, 256, 256, (48 + 34) << 10};
static const config emulated_amd = {"emulated-amd", EMULATED_AMD_UNIT AMD_TILE, 128, 128, 256,
                                    (32 + 18) << 10};

/* The kernel counts chunks within a tile of W in 32 bits. */
#define MAX_K ((uint64_t)1 << 26)

/* ---- What they support ---- */

bool llmk_linear_is_half(const linear_problem *p, llmk_reason *why)
{
    const llmk_layout layout = p->weights->layout;
    if (layout != LLMK_LAYOUT_F16_PORTABLE && layout != LLMK_LAYOUT_BF16_PORTABLE)
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(layout));
    const llmk_dtype dtype = layout == LLMK_LAYOUT_F16_PORTABLE ? LLMK_F16 : LLMK_BF16;
    if (p->x.dtype != dtype)
        return llmk_no(why, "x is %s and the weights are %s: for one type only",
                       llmk_dtype_name(p->x.dtype), llmk_dtype_name(dtype));
    return true;
}

static bool fits(const llmk_context *ctx, const linear_problem *p, const config *c,
                 llmk_reason *why)
{
    if (!llmk_linear_is_half(p, why))
        return false;
    if (p->weights->k == 0 || p->weights->k > MAX_K)
        return llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)p->weights->k,
                       (unsigned long long)MAX_K);
    if (ctx->caps.max_work_group < c->items || ctx->caps.local_bytes < c->local_bytes)
        return llmk_no(why, "needs work-groups of %u and %u bytes of local memory", c->items,
                       c->local_bytes);
    return true;
}

/* Whether linear_tiled_plain.cl serves: nv's tile, in which it is the faster kernel. */
#define PLAIN_TILE 128u
#define PLAIN_STEP 32u

static bool is_plain(const linear_problem *p)
{
    const llmk_weights *w = p->weights;
    if (!p->x.unit || !p->x.simple || p->x.align < 16 || w->k % PLAIN_STEP != 0 ||
        p->x.rows.s0 > UINT32_MAX / PLAIN_TILE)
        return false;
    for (size_t i = 0; i < w->segment_count; i++)
        if (w->segments[i].rows < PLAIN_TILE || w->segments[i].rows % 8 != 0)
            return false;
    return true;
}

static bool has_mma(llmk_context *ctx, llmk_reason *why)
{
    if (ctx->caps.vendor != LLMK_VENDOR_NVIDIA || ctx->caps.compute_capability < 80)
        return llmk_no(why, "for NVIDIA GPUs of compute capability 8.0 and later");
    if (!llmk_probe_inline_ptx(ctx))
        return llmk_no(why, "the driver does not take inline PTX");
    return true;
}

bool llmk_linear_nv_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    return has_mma(ctx, why) && fits(ctx, problem, &nv, why);
}

/* Wide tiles need half as much from the cache, but one of them fills a compute unit: only where
 * there are several for each, and nv has no better kernel. */
bool llmk_linear_nv_wide_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    if (!has_mma(ctx, why) || !fits(ctx, p, &nv_wide, why))
        return false;
    if (is_plain(p) && !ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", nv_wide.name))
        return llmk_no(why, "nv is faster for plain rows of x");
    const uint64_t tiles = (p->x.nrows + nv_wide.rows - 1) / nv_wide.rows *
                           ((p->weights->n + nv_wide.columns - 1) / nv_wide.columns);
    if (tiles < 4 * (uint64_t)ctx->caps.compute_units && !ctx->is_trial &&
        !llmk_variant_is_forced(ctx, "linear", nv_wide.name))
        return llmk_no(why, "%llu tiles are too few for this device", (unsigned long long)tiles);
    return true;
}

bool llmk_linear_amd_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const char *device = ctx->caps.device_name;
    if (ctx->caps.vendor != LLMK_VENDOR_AMD ||
        (strncmp(device, "gfx942", 6) != 0 && strncmp(device, "gfx90a", 6) != 0))
        return llmk_no(why, "for gfx90a and gfx942");
    return fits(ctx, problem, &amd, why);
}

static bool emulated_supports(llmk_context *ctx, const void *problem, const config *c,
                              llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", c->name))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return fits(ctx, problem, c, why);
}

bool llmk_linear_emulated_nv_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    return emulated_supports(ctx, problem, &emulated_nv, why);
}

bool llmk_linear_emulated_nv_wide_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    return emulated_supports(ctx, problem, &emulated_nv_wide, why);
}

bool llmk_linear_emulated_amd_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    return emulated_supports(ctx, problem, &emulated_amd, why);
}

/* ---- Launching ---- */

static llmk_status launch_tiled(llmk_launch *launch, const linear_problem *p, const config *c)
{
    char defines[224];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), " ", c->defines, NULL);
    const linear_recipe r = {.file = "linear/linear_tiled.cl",
                             .defines = defines,
                             .kernel = "linear_tiled",
                             .rows = c->rows,
                             .columns = c->columns,
                             .local = {c->items, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

static llmk_status launch_nv(llmk_launch *launch, const linear_problem *p, const config *c,
                             const char *unit)
{
    if (!is_plain(p))
        return launch_tiled(launch, p, c);
    char defines[64];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), unit, NULL);
    const linear_recipe r = {.file = "linear/linear_tiled_plain.cl",
                             .defines = defines,
                             .kernel = "linear_tiled_plain",
                             .rows = c->rows,
                             .columns = c->columns,
                             .local = {c->items, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_nv_launch(llmk_launch *launch, const void *problem)
{
    return launch_nv(launch, problem, &nv, " -DFRAGMENT_MMA -DASYNC_COPY_CP");
}

llmk_status llmk_linear_emulated_nv_launch(llmk_launch *launch, const void *problem)
{
    return launch_nv(launch, problem, &emulated_nv, " -DFRAGMENT_MMA -DFRAGMENT_EMULATED");
}

#define LAUNCH(id)                                                                                 \
    llmk_status llmk_linear_##id##_launch(llmk_launch *launch, const void *problem)                \
    {                                                                                              \
        return launch_tiled(launch, problem, &(id));                                               \
    }

LAUNCH(nv_wide)
LAUNCH(amd)
LAUNCH(emulated_nv_wide)
LAUNCH(emulated_amd)
