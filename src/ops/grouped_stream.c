/*
 * grouped_stream.c - products of groups of few rows on mma.sync,
 * cl/grouped_linear/grouped_stream.cl: weights in its layouts, and weights of x's own 16-bit type.
 */
#include "ops/elementwise.h"
#include "ops/grouped.h"
#include "ops/linear.h"

#define LOW             8u  /* rows of a tile, */
#define HIGH            32u /* and where experts have more, */
#define HIGH_CODES      16u /* of codes */
#define COLUMNS         32u /* of a work-group; of gated pairs, and where it adds up, */
#define COLUMNS_PAIRED  16u
#define COLUMNS_COMBINE 16u
#define WARP            32u
/* Warps of a work-group: of low tiles, by what W is, where it adds up, and of all others. */
#define ROWS_WARPS          8u
#define CODES_WARPS         2u
#define COMBINE_CODES_WARPS 16u /* but 4-bit ones with many scales, which take more registers */
#define MORE_WARPS          4u
#define MOST_WARPS          16u
/* Work-groups of these that find room on a compute unit. Where W is rows of many experts, so many
 * times as many are launched: they take turns, since most tiles that there may be may not be
 * there. */
#define ROWS_RESIDENT 3u
#define MORE_RESIDENT 4u
#define TURNS         4u
#define MANY_TILES    32u
/* What the kernels take at most; emulated, the warps' scratch too. */
#define LOCAL_BYTES    (24u << 10)
#define EMULATOR_BYTES (MOST_WARPS * (5u << 10))
/* Rows an expert, on average, up to which these kernels are taken; of codes any. */
#define MANY_ROWS 64u
/* And up to which tiles are low: few experts have more rows than one of those. */
#define FEW_ROWS   1u
#define MAX_DEPTH  ((uint64_t)1 << 20)
#define MAX_BLOCKS 65535u /* of columns: work-groups along a second dimension */

static bool reads(const llmk_weights *w, llmk_dtype x, llmk_reason *why)
{
    const llmk_layout rows = x == LLMK_F16 ? LLMK_LAYOUT_F16_PORTABLE : LLMK_LAYOUT_BF16_PORTABLE;
    if (!llmk_grouped_is_codes(w) && w->layout != rows)
        return llmk_no(why, "does not read the layout %s with x of %s", llmk_layout_name(w->layout),
                       llmk_dtype_name(x));
    if (w->experts > 1 && w->n % w->block != 0)
        return llmk_no(why, "experts of %llu rows share blocks of %u", (unsigned long long)w->n,
                       w->block);
    if (w->depth == 0 || w->depth > MAX_DEPTH)
        return llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)w->k,
                       (unsigned long long)MAX_DEPTH);
    return true;
}

static bool supports(llmk_context *ctx, const grouped_problem *p, uint32_t local_bytes,
                     llmk_reason *why)
{
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    if (!reads(p->weights, p->x.dtype, why) || (p->gate && !reads(p->gate->up, p->x.dtype, why)))
        return false;
    const uint64_t blocks = (llmk_grouped_outputs(p) + UINT64_C(15)) / 16;
    const uint64_t tiles = p->weights->experts + 1 + p->rows / LOW;
    if (blocks > MAX_BLOCKS || tiles > UINT32_MAX / (blocks + 1))
        return llmk_no(why, "too many work-groups");
    if (p->gate && llmk_grouped_is_codes(p->weights) && p->gate->step == 1 &&
        p->gate->up_first % 16 != 0)
        return llmk_no(why, "up begins within a block of 16 rows");
    if (ctx->caps.max_work_group < MOST_WARPS * WARP || ctx->caps.local_bytes < local_bytes)
        return llmk_no(why, "needs work-groups of %u and %u bytes of local memory",
                       MOST_WARPS * WARP, local_bytes);
    return true;
}

static bool nv_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    return llmk_nv_supported(ctx, why) && supports(ctx, p, LOCAL_BYTES, why);
}

static bool nv_suits(uint64_t rows, uint64_t experts, bool codes, llmk_reason *why)
{
    return codes || rows <= MANY_ROWS * experts ||
           llmk_no(why, "for at most %u rows an expert", MANY_ROWS);
}

static bool emulated_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    return supports(ctx, p, LOCAL_BYTES + EMULATOR_BYTES, why);
}

static bool emulated_suits(uint64_t rows, uint64_t experts, bool codes, llmk_reason *why)
{
    (void)rows, (void)experts, (void)codes;
    return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
}

static uint32_t height(uint64_t rows, uint64_t experts, bool few, bool codes)
{
    if (few || rows <= FEW_ROWS * experts)
        return LOW;
    return codes ? HIGH_CODES : HIGH;
}

enum { STAGE_LINEAR, STAGE_GATED, STAGE_COMBINE };
enum { PLAIN, ZEROS, AFFINE, GATHERED, IN_TURN };

static int kind_of(const grouped_problem *p)
{
    const llmk_weights *w = p->weights;
    const bool narrow = w->scale_kind == LLMK_SCALE_F16 || w->scale_kind == LLMK_SCALE_BF16;
    const uint32_t step = w->layout == LLMK_LAYOUT_S8_NV ? 64 : 128; /* of any of the kernels */
    if (llmk_linear_gathers(w, &p->x, step))
        return GATHERED;
    if (!llmk_grouped_is_codes(w)) /* whole blocks of rows of W */
        return llmk_grouped_outputs(p) % (p->gate ? COLUMNS_PAIRED : COLUMNS) ? GATHERED : PLAIN;
    return w->groups > 1 && !narrow ? AFFINE : w->has_zeros ? ZEROS : PLAIN;
}

static llmk_kernel open_kernel(llmk_launch *launch, const grouped_problem *p, const char *unit,
                               int stage, int kind)
{
    static const char *const kernels[][2][IN_TURN + 1] = {
        [STAGE_LINEAR] = {{"grouped_stream_low", "grouped_stream_low_zeros",
                           "grouped_stream_low_affine", "grouped_stream_gathered",
                           "grouped_stream_low_turns"},
                          {"grouped_stream_high", "grouped_stream_high_zeros",
                           "grouped_stream_high_affine", "grouped_stream_gathered",
                           "grouped_stream_high_turns"}},
        [STAGE_GATED] = {{"grouped_stream_gated_low", "grouped_stream_gated_low_zeros",
                          "grouped_stream_gated_low_affine", "grouped_stream_gated_gathered",
                          "grouped_stream_gated_low_turns"},
                         {"grouped_stream_gated_high", "grouped_stream_gated_high_zeros",
                          "grouped_stream_gated_high_affine", "grouped_stream_gated_gathered",
                          "grouped_stream_gated_high_turns"}},
        [STAGE_COMBINE] = {{"grouped_stream_combine", "grouped_stream_combine_zeros",
                            "grouped_stream_combine_affine", "grouped_stream_combine_gathered"}}};
    const bool high = stage != STAGE_COMBINE && p->height != LOW;
    const llmk_weights *w = p->weights;
    char typed[32], defines[96];
    llmk_linear_defines(p->x.dtype, w->layout, typed);
    llmk_join(defines, sizeof defines, typed, llmk_grouped_is_codes(w) ? " -DSPAN=" : "",
              llmk_grouped_is_codes(w) ? llmk_digits(llmk_linear_span(w)) : "", " -DFRAGMENT_MMA",
              unit, NULL);
    return llmk_kernel_open(launch, "grouped_linear/grouped_stream.cl", defines,
                            kernels[stage][high][kind]);
}

static uint32_t warps_of(const grouped_problem *p)
{
    const bool low = p->height == LOW && kind_of(p) != GATHERED;
    if (llmk_grouped_is_codes(p->weights))
        return low ? CODES_WARPS : MORE_WARPS;
    return low ? ROWS_WARPS : MORE_WARPS;
}

static llmk_status launch_stream(llmk_launch *launch, const grouped_problem *p, const char *unit)
{
    const bool gated = p->gate != NULL, codes = llmk_grouped_is_codes(p->weights);
    const uint32_t columns = gated ? COLUMNS_PAIRED : COLUMNS;
    const uint64_t blocks = (llmk_grouped_outputs(p) + columns - 1) / columns;
    const uint32_t warps = warps_of(p), units = launch->ctx->caps.compute_units;
    const uint64_t turns =
        TURNS * (uint64_t)units * (warps == ROWS_WARPS ? ROWS_RESIDENT : MORE_RESIDENT);
    const int kind = kind_of(p);
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *s = &p->weights->segments[i];
        const uint64_t tiles = llmk_grouped_most_tiles(p, s), most = tiles * blocks;
        const bool in_turn = !codes && kind == PLAIN && tiles >= MANY_TILES && most > turns;
        const uint64_t room = (uint64_t)units * MORE_RESIDENT;
        llmk_kernel k = open_kernel(launch, p, unit, gated ? STAGE_GATED : STAGE_LINEAR,
                                    in_turn ? IN_TURN : kind);
        llmk_grouped_arg(&k, p, s);
        if (gated)
            llmk_grouped_arg_gate(&k, p->gate, &p->gate->up->segments[i]);
        llmk_arg_u32(&k, p->height);
        if (!gated) {
            llmk_arg_u32(&k, p->most_ways ? p->most_ways : 1);
            llmk_arg_u32(&k, (uint32_t)(room < most ? room : most));
        }
        LLMK_TRY(llmk_kernel_enqueue(&k, (size_t[]){(size_t)(in_turn ? turns : most), 1, 1},
                                     (size_t[]){(size_t)warps * WARP, 1, 1}));
    }
    return LLMK_OK;
}

static llmk_status combine_stream(llmk_launch *launch, const grouped_problem *p,
                                  const grouped_combine *combine, const char *unit)
{
    const size_t blocks = (size_t)((p->weights->n + COLUMNS_COMBINE - 1) / COLUMNS_COMBINE);
    llmk_kernel k = open_kernel(launch, p, unit, STAGE_COMBINE, kind_of(p));
    llmk_grouped_arg(&k, p, &p->weights->segments[0]);
    llmk_grouped_arg_combine(&k, p, combine);
    llmk_arg_u32(&k, p->height);
    const llmk_weights *w = p->weights;
    const uint32_t span = llmk_linear_span(w);
    const bool fine = w->layout == LLMK_LAYOUT_U4_NV && (span == 1 || span == 2);
    const size_t warps = llmk_grouped_is_codes(w) && !fine ? COMBINE_CODES_WARPS : ROWS_WARPS;
    return llmk_kernel_enqueue(&k, (size_t[]){blocks, 1, 1}, (size_t[]){warps * WARP, 1, 1});
}

static llmk_status nv_launch(llmk_launch *launch, const grouped_problem *p)
{
    return launch_stream(launch, p, "");
}

static llmk_status nv_combine(llmk_launch *launch, const grouped_problem *p,
                              const grouped_combine *combine)
{
    return combine_stream(launch, p, combine, "");
}

static llmk_status emulated_launch(llmk_launch *launch, const grouped_problem *p)
{
    return launch_stream(launch, p, " -DFRAGMENT_EMULATED");
}

static llmk_status emulated_combine(llmk_launch *launch, const grouped_problem *p,
                                    const grouped_combine *combine)
{
    return combine_stream(launch, p, combine, " -DFRAGMENT_EMULATED");
}

const grouped_products llmk_grouped_nv_stream = {
    .splits = true,
    .supports = nv_supports,
    .suits = nv_suits,
    .height = height,
    .launch = nv_launch,
    .combine = nv_combine,
};

const grouped_products llmk_grouped_emulated_nv_stream = {
    .splits = true,
    .supports = emulated_supports,
    .suits = emulated_suits,
    .height = height,
    .launch = emulated_launch,
    .combine = emulated_combine,
};
