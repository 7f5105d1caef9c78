/*
 * linear_tiled.c - the linear layer on matrix units: cl/linear/linear_tiled.cl in its
 * configurations, and linear_tiled_plain.cl in place of one of them. docs/matrix-units.md explains
 * the kernel, docs/notes/performance.md the sizes chosen here.
 */
#include "ops/linear.h"
#include "ops/linear_split.h"

#include <stdio.h>

/* Waves and fragments; at most 48 KiB of local memory on NVIDIA's, 64 on AMD's. */
typedef struct tile {
    const char *defines;
    uint32_t rows, columns, waves, items, local_bytes;
} tile;

/* A fragment is 16 x 16. */
static const tile nv_tile = {
    .defines =
        "-DWAVES_M=2 -DWAVES_N=2 -DFRAGMENTS_M=4 -DFRAGMENTS_N=4 -DCHUNKS=4 -DSTAGES=3 -DPATCH=4",
    .rows = 128,
    .columns = 128,
    .waves = 4,
    .items = 128,
    .local_bytes = 48 << 10};
static const tile nv_wide_tile = {
    .defines =
        "-DWAVES_M=2 -DWAVES_N=4 -DFRAGMENTS_M=4 -DFRAGMENTS_N=4 -DCHUNKS=4 -DSTAGES=2 -DPATCH=4",
    .rows = 128,
    .columns = 256,
    .waves = 8,
    .items = 256,
    .local_bytes = 48 << 10};
/* A fragment is 32 x 32. */
static const tile amd_tile = {
    .defines =
        "-DWAVES_M=2 -DWAVES_N=2 -DFRAGMENTS_M=2 -DFRAGMENTS_N=2 -DCHUNKS=4 -DSTAGES=2 -DPATCH=1",
    .rows = 128,
    .columns = 128,
    .waves = 4,
    .items = 256,
    .local_bytes = 32 << 10};
static const tile amd_wide_tile = {
    .defines =
        "-DWAVES_M=4 -DWAVES_N=2 -DFRAGMENTS_M=2 -DFRAGMENTS_N=4 -DCHUNKS=4 -DSTAGES=2 -DPATCH=1",
    .rows = 256,
    .columns = 256,
    .waves = 8,
    .items = 512,
    .local_bytes = 64 << 10};

#define NV_UNIT           "-DFRAGMENT_MMA -DASYNC_COPY_CP "
#define AMD_UNIT          "-DFRAGMENT_MFMA=32 -DASYNC_COPY_HELD "
#define EMULATED_NV_UNIT  "-DFRAGMENT_MMA -DFRAGMENT_EMULATED "
#define EMULATED_AMD_UNIT AMD_UNIT "-DFRAGMENT_EMULATED "

typedef struct config {
    const char *name; /* of the variant */
    const char *unit; /* and its copies */
    const tile *tile;
    bool codes; /* W8A8 */
} config;

static const config nv_wide = {"nv-wide", NV_UNIT, &nv_wide_tile, false};
static const config nv = {"nv", NV_UNIT, &nv_tile, false};
static const config amd_wide = {"amd-wide", AMD_UNIT, &amd_wide_tile, false};
static const config amd = {"amd", AMD_UNIT, &amd_tile, false};
static const config amd_w8a8_wide = {"amd-w8a8-wide", AMD_UNIT, &amd_wide_tile, true};
static const config amd_w8a8 = {"amd-w8a8", AMD_UNIT, &amd_tile, true};
static const config emulated_nv_wide = {"emulated-nv-wide", EMULATED_NV_UNIT, &nv_wide_tile, false};
static const config emulated_nv = {"emulated-nv", EMULATED_NV_UNIT, &nv_tile, false};
static const config emulated_amd_wide = {"emulated-amd-wide", EMULATED_AMD_UNIT, &amd_wide_tile,
                                         false};
static const config emulated_amd = {"emulated-amd", EMULATED_AMD_UNIT, &amd_tile, false};
/* No wide one: its tile is emulated-amd-wide's, its type this one's. */
static const config emulated_amd_w8a8 = {"emulated-amd-w8a8", EMULATED_AMD_UNIT, &amd_tile, true};

/* The emulator's scratch: 4 KiB a wave, and room between. */
#define EMULATOR_BYTES(waves) ((waves)*4096 + 2048)

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

static bool is_code(const linear_problem *p, llmk_reason *why)
{
    if (!p->w8a8)
        return llmk_no(why, "for LLMK_LINEAR_W8A8 only");
    return p->weights->layout == LLMK_LAYOUT_S8_PORTABLE ||
           llmk_no(why, "does not read the layout %s", llmk_layout_name(p->weights->layout));
}

static bool fits(const llmk_context *ctx, const linear_problem *p, const config *c,
                 uint32_t more_bytes, llmk_reason *why)
{
    if (c->codes ? !is_code(p, why) : !llmk_linear_is_half(p, why))
        return false;
    if (p->weights->k == 0 || p->weights->k > MAX_K)
        return llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)p->weights->k,
                       (unsigned long long)MAX_K);
    const uint32_t bytes = c->tile->local_bytes + more_bytes;
    if (ctx->caps.max_required_group < c->tile->items || ctx->caps.local_bytes < bytes)
        return llmk_no(why, "needs work-groups of %u and %u bytes of local memory", c->tile->items,
                       bytes);
    return true;
}

/* Whether linear_tiled_plain.cl serves: nv's tile, in which it is the faster kernel. */
#define PLAIN_TILE 128u
#define PLAIN_STEP 32u

static bool is_plain(const linear_problem *p)
{
    const llmk_weights *w = p->weights;
    if (!p->x.unit || !p->x.simple || p->x.align < 16 || w->k % PLAIN_STEP != 0 ||
        p->x.rows.s0 > UINT32_MAX / PLAIN_TILE ||
        (p->x.nrows / PLAIN_TILE + 1) * (w->n / PLAIN_TILE + 1) > INT32_MAX)
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

static bool has_mfma(const llmk_context *ctx, const config *c, llmk_reason *why)
{
    const char *device = ctx->caps.device_name;
    const bool is_942 = strncmp(device, "gfx942", 6) == 0,
               is_90a = strncmp(device, "gfx90a", 6) == 0;
    if (ctx->caps.vendor != LLMK_VENDOR_AMD || !(is_942 || (is_90a && !c->codes)))
        return llmk_no(why, c->codes ? "for gfx942" : "for gfx90a and gfx942");
    return true;
}

/* Wide tiles need half as much from the cache, but one of them fills a compute unit: only where
 * there are several for each. */
static bool fills(const llmk_context *ctx, const linear_problem *p, const config *c,
                  llmk_reason *why)
{
    const uint64_t tiles = (p->x.nrows + c->tile->rows - 1) / c->tile->rows *
                           ((p->weights->n + c->tile->columns - 1) / c->tile->columns);
    if (tiles < 4 * (uint64_t)ctx->caps.compute_units && !ctx->is_trial &&
        !llmk_variant_is_forced(ctx, "linear", c->name))
        return llmk_no(why, "%llu tiles are too few for this device", (unsigned long long)tiles);
    return true;
}

/* nv has the faster kernel for plain rows. */
static bool is_better(const llmk_context *ctx, const linear_problem *p, llmk_reason *why)
{
    return !is_plain(p) || ctx->is_trial || llmk_variant_is_forced(ctx, "linear", nv_wide.name) ||
           llmk_no(why, "nv is faster for plain rows of x");
}

static bool is_emulated(const llmk_context *ctx, const config *c, llmk_reason *why)
{
    return ctx->is_trial || llmk_variant_is_forced(ctx, "linear", c->name) ||
           llmk_no(why, "emulates a matrix unit: for tests, only where forced");
}

/* ---- Launching ---- */

static llmk_status launch_tiled(llmk_launch *launch, const linear_problem *p, const config *c)
{
    char defines[224];
    llmk_join(defines, sizeof defines, "-DX=", c->codes ? "s8" : llmk_dtype_name(p->x.dtype), " ",
              c->unit, c->tile->defines, NULL);
    const linear_recipe r = {.file = "linear/linear_tiled.cl",
                             .defines = defines,
                             .kernel = "linear_tiled",
                             .rows = c->tile->rows,
                             .columns = c->tile->columns,
                             .local = {c->tile->items, 1, 1},
                             .has_codes = c->codes};
    if (c->codes)
        LLMK_TRY(llmk_linear_w8a8_quantise(launch, p, LINEAR_CODES_PLAIN));
    return llmk_linear_run(launch, p, &r);
}

/* Work-groups of nv's tile on a compute unit; stages of a part, at least; eighths of a last turn's
 * places, from which on parts of tiles gain less than it takes them to meet. */
#define PLACES            2u
#define LEAST_STAGES      16u
#define MOST_TURN_EIGHTHS 7u

/* Those tiles of a segment that do not fill a turn are shared out among all places. */
static void share_out(const llmk_launch *launch, const linear_problem *p,
                      const llmk_segment *segment, linear_recipe *r)
{
    const linear_turns t = llmk_linear_turns(launch, p, segment, r, PLACES);
    const uint64_t stages = p->weights->k / PLAIN_STEP, left = t.tiles - t.whole;
    r->groups = (uint32_t)t.tiles;
    if (left == 0 || left * 8 > t.places * (uint64_t)MOST_TURN_EIGHTHS ||
        !llmk_linear_may_split(p, left, stages, launch->ctx->caps.compute_units))
        return;
    const uint64_t even = llmk_linear_split_per(left, stages, t.places);
    const uint64_t per = even > LEAST_STAGES ? even : LEAST_STAGES;
    if (per >= stages)
        return;
    r->whole = (uint32_t)t.whole;
    r->per = (uint32_t)per;
    r->groups = r->whole + (uint32_t)((left * stages + per - 1) / per);
}

/* nv's tile, by the faster kernel where it serves. */
static llmk_status launch_nv(llmk_launch *launch, const linear_problem *p, const config *c)
{
    if (!is_plain(p))
        return launch_tiled(launch, p, c);
    char defines[80];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), " ", c->unit, NULL);
    defines[strlen(defines) - 1] = '\0'; /* the unit's last space */
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        linear_recipe r = {.file = "linear/linear_tiled_plain.cl",
                           .defines = defines,
                           .kernel = "linear_tiled_plain",
                           .rows = c->tile->rows,
                           .columns = c->tile->columns,
                           .local = {c->tile->items, 1, 1},
                           .has_split = true};
        share_out(launch, p, &p->weights->segments[i], &r);
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, &p->weights->segments[i]));
    }
    return LLMK_OK;
}

/* ---- The variants: which devices, and what else ---- */

#define VARIANT(id, launch_it, condition)                                                          \
    bool llmk_linear_##id##_supports(llmk_context *ctx, const void *problem, llmk_reason *why)     \
    {                                                                                              \
        return condition;                                                                          \
    }                                                                                              \
    llmk_status llmk_linear_##id##_launch(llmk_launch *launch, const void *problem)                \
    {                                                                                              \
        return launch_it(launch, problem, &(id));                                                  \
    }
#define FITS(id)  fits(ctx, problem, &(id), 0, why)
#define FILLS(id) FITS(id) && fills(ctx, problem, &(id), why)
#define EMULATED(id)                                                                               \
    is_emulated(ctx, &(id), why) && fits(ctx, problem, &(id), EMULATOR_BYTES((id).tile->waves), why)

VARIANT(nv_wide, launch_tiled, has_mma(ctx, why) && FILLS(nv_wide) && is_better(ctx, problem, why))
VARIANT(nv, launch_nv, has_mma(ctx, why) && FITS(nv))
VARIANT(amd_wide, launch_tiled, has_mfma(ctx, &amd_wide, why) && FILLS(amd_wide))
VARIANT(amd, launch_tiled, has_mfma(ctx, &amd, why) && FITS(amd))
VARIANT(amd_w8a8_wide, launch_tiled, has_mfma(ctx, &amd_w8a8_wide, why) && FILLS(amd_w8a8_wide))
VARIANT(amd_w8a8, launch_tiled, has_mfma(ctx, &amd_w8a8, why) && FITS(amd_w8a8))
VARIANT(emulated_nv_wide, launch_tiled, EMULATED(emulated_nv_wide))
VARIANT(emulated_nv, launch_nv, EMULATED(emulated_nv))
VARIANT(emulated_amd_wide, launch_tiled, EMULATED(emulated_amd_wide))
VARIANT(emulated_amd, launch_tiled, EMULATED(emulated_amd))
VARIANT(emulated_amd_w8a8, launch_tiled, EMULATED(emulated_amd_w8a8))
