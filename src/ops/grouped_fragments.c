/*
 * grouped_fragments.c - products of groups of many rows on any matrix unit,
 * cl/grouped_linear/grouped_fragments.cl: f16 or bf16 x, and weights of the same type or codes.
 */
#include "ops/elementwise.h"
#include "ops/grouped.h"
#include "ops/linear.h"

#include <string.h>

#define TILE_M  64u
#define TILE_N  128u /* rows of W */
#define STAGE_K 32u  /* of groups of codes */
#define WAVES   4u
#define MAX_K   ((uint64_t)1 << 26)
/* Rows an expert, on average, from which on these kernels are taken. */
#define MIN_ROWS 8u
/* Of the kernels, and where they are emulated. */
#define LOCAL_BYTES    (40u << 10)
#define EMULATOR_BYTES (WAVES * 4096u + 2048u)

#define PORTABLE (LLMK_LAYOUTS_PORTABLE & ~LLMK_LAYOUT_BIT(LLMK_LAYOUT_F32_PORTABLE))

typedef struct unit {
    const char *defines;
    uint32_t wave;
    uint32_t layouts; /* that weights may have */
} unit;

static const unit nv = {" -DFRAGMENT_MMA -DASYNC_COPY_CP", 32, PORTABLE | LLMK_LAYOUTS_NV};
static const unit amd = {" -DFRAGMENT_MFMA=32 -DASYNC_COPY_HELD", 64, PORTABLE};
static const unit emulated_nv = {" -DFRAGMENT_MMA -DFRAGMENT_EMULATED", 32,
                                 PORTABLE | LLMK_LAYOUTS_NV};
static const unit emulated_amd = {" -DFRAGMENT_MFMA=32 -DASYNC_COPY_HELD -DFRAGMENT_EMULATED", 64,
                                  PORTABLE};

static bool is_half(const llmk_weights *w)
{
    return w->layout == LLMK_LAYOUT_F16_PORTABLE || w->layout == LLMK_LAYOUT_BF16_PORTABLE;
}

static bool reads(const llmk_weights *w, llmk_dtype x, const unit *u, llmk_reason *why)
{
    const llmk_layout rows = x == LLMK_F16 ? LLMK_LAYOUT_F16_PORTABLE : LLMK_LAYOUT_BF16_PORTABLE;
    if (x != LLMK_F16 && x != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(x));
    if (!(LLMK_LAYOUT_BIT(w->layout) & u->layouts) || (is_half(w) && w->layout != rows))
        return llmk_no(why, "does not read the layout %s with x of %s", llmk_layout_name(w->layout),
                       llmk_dtype_name(x));
    if (w->layout != LLMK_LAYOUT_Q6_K_PORTABLE && w->groups > 1 && w->group_size % STAGE_K != 0)
        return llmk_no(why, "for groups of a multiple of %u, or one in a row", STAGE_K);
    if (w->experts > 1 && w->n % w->block != 0)
        return llmk_no(why, "experts of %llu rows share blocks of %u", (unsigned long long)w->n,
                       w->block);
    return (w->k > 0 && w->k <= MAX_K) ||
           llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)w->k,
                   (unsigned long long)MAX_K);
}

static bool supports(llmk_context *ctx, const grouped_problem *p, const unit *u, uint32_t bytes,
                     llmk_reason *why)
{
    if (!reads(p->weights, p->x.dtype, u, why) ||
        (p->gate && !reads(p->gate->up, p->x.dtype, u, why)))
        return false;
    if (ctx->caps.max_required_group < WAVES * u->wave || ctx->caps.local_bytes < bytes)
        return llmk_no(why, "needs work-groups of %u and %u bytes of local memory", WAVES * u->wave,
                       bytes);
    return true;
}

static bool nv_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    return llmk_nv_supported(ctx, why) && supports(ctx, p, &nv, LOCAL_BYTES, why);
}

static bool amd_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    const char *device = ctx->caps.device_name;
    if (ctx->caps.vendor != LLMK_VENDOR_AMD ||
        (strncmp(device, "gfx942", 6) != 0 && strncmp(device, "gfx90a", 6) != 0))
        return llmk_no(why, "for gfx90a and gfx942");
    return supports(ctx, p, &amd, LOCAL_BYTES, why);
}

static bool emulated_nv_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    return supports(ctx, p, &emulated_nv, LOCAL_BYTES + EMULATOR_BYTES, why);
}

static bool emulated_amd_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    return supports(ctx, p, &emulated_amd, LOCAL_BYTES + EMULATOR_BYTES, why);
}

static bool suits(uint64_t rows, uint64_t experts, bool codes, llmk_reason *why)
{
    (void)codes;
    return rows >= MIN_ROWS * experts ||
           llmk_no(why, "for %u rows an expert and more, on average", MIN_ROWS);
}

static bool never_suits(uint64_t rows, uint64_t experts, bool codes, llmk_reason *why)
{
    (void)rows, (void)experts, (void)codes;
    return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
}

static uint32_t height(uint64_t rows, uint64_t experts, bool few, bool codes)
{
    (void)rows, (void)experts, (void)few, (void)codes;
    return TILE_M;
}

static llmk_status launch_all(llmk_launch *launch, const grouped_problem *p, const unit *u)
{
    const bool gated = p->gate != NULL;
    const uint32_t columns = gated ? TILE_N / 2 : TILE_N;
    const size_t blocks = (llmk_grouped_outputs(p) + columns - 1) / columns;
    char typed[32], defines[96];
    llmk_linear_defines(p->x.dtype, p->weights->layout, typed);
    if (is_half(p->weights)) /* of x's type */
        llmk_join(typed, sizeof typed, "-DX=", llmk_dtype_name(p->x.dtype), NULL);
    llmk_join(defines, sizeof defines, typed, u->defines, NULL);
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *s = &p->weights->segments[i];
        llmk_kernel k = llmk_kernel_open(launch, "grouped_linear/grouped_fragments.cl", defines,
                                         gated ? "grouped_fragments_gated" : "grouped_fragments");
        llmk_grouped_arg(&k, p, s);
        if (gated)
            llmk_grouped_arg_gate(&k, p->gate, &p->gate->up->segments[i]);
        LLMK_TRY(llmk_kernel_enqueue(&k,
                                     (size_t[]){(size_t)llmk_grouped_most_tiles(p, s), blocks, 1},
                                     (size_t[]){(size_t)WAVES * u->wave, 1, 1}));
    }
    return LLMK_OK;
}

#define LAUNCH(id)                                                                                 \
    static llmk_status id##_launch(llmk_launch *launch, const grouped_problem *p)                  \
    {                                                                                              \
        return launch_all(launch, p, &(id));                                                       \
    }
LAUNCH(nv)
LAUNCH(amd)
LAUNCH(emulated_nv)
LAUNCH(emulated_amd)

const grouped_products llmk_grouped_nv = {
    .supports = nv_supports, .suits = suits, .height = height, .launch = nv_launch};
const grouped_products llmk_grouped_amd = {
    .supports = amd_supports, .suits = suits, .height = height, .launch = amd_launch};
const grouped_products llmk_grouped_emulated_nv = {.supports = emulated_nv_supports,
                                                   .suits = never_suits,
                                                   .height = height,
                                                   .launch = emulated_nv_launch};
const grouped_products llmk_grouped_emulated_amd = {.supports = emulated_amd_supports,
                                                    .suits = never_suits,
                                                    .height = height,
                                                    .launch = emulated_amd_launch};
