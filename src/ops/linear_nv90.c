/*
 * linear_nv90.c - the linear layer on wgmma: cl/linear/linear_wgmma.cl, linear_wgmma_tall.cl and
 * linear_wgmma_shared.cl, on NVIDIA GPUs of compute capability 9.0 and from their images, since no
 * driver assembles wgmma from source. Weights of 4 and 8 bits: linear_nv90_packed.c.
 */
#include "ops/linear_nv90.h"
#include "core/image.h"
#include "ops/linear_split.h"

#define FILE_NAME   "linear/linear_wgmma.cl"
#define SHARED_NAME "linear/linear_wgmma_shared.cl"
#define TALL_NAME   "linear/linear_wgmma_tall.cl"
#define TILE_M      128
#define TILE_N      256
#define ITEMS       384
#define WARPS       8  /* that multiply */
#define MIN_ROWS    17 /* fewer are served better (linear_stream.c), more worse */

static bool has_images(llmk_context *ctx, llmk_reason *why)
{
    static const char *const images[][2] = {
        {FILE_NAME, "-DX=f16"},
        {FILE_NAME, "-DX=bf16"},
        {SHARED_NAME, "-DX=f16"},
        {SHARED_NAME, "-DX=bf16"},
        {TALL_NAME, "-DX=f16"},
        {TALL_NAME, "-DX=bf16"},
        {LLMK_NV90_FEW_NAME, "-DX=f16"},
        {LLMK_NV90_FEW_NAME, "-DX=bf16"},
        {LLMK_NV90_GATED_NAME, "-DX=f16"},
        {LLMK_NV90_GATED_NAME, "-DX=bf16"},
        {LLMK_NV90_PACKED_NAME, "-DX=f16 -DW=u4_nv -DGROUPED=0"},
        {LLMK_NV90_PACKED_NAME, "-DX=f16 -DW=u4_nv -DGROUPED=1"},
        {LLMK_NV90_PACKED_NAME, "-DX=f16 -DW=u4_nv -DGROUPED=2"},
        {LLMK_NV90_PACKED_NAME, "-DX=f16 -DW=s8_nv -DGROUPED=0"},
        {LLMK_NV90_PACKED_NAME, "-DX=f16 -DW=s8_nv -DGROUPED=1"},
        {LLMK_NV90_PACKED_NAME, "-DX=bf16 -DW=u4_nv -DGROUPED=0"},
        {LLMK_NV90_PACKED_NAME, "-DX=bf16 -DW=u4_nv -DGROUPED=1"},
        {LLMK_NV90_PACKED_NAME, "-DX=bf16 -DW=u4_nv -DGROUPED=2"},
        {LLMK_NV90_PACKED_NAME, "-DX=bf16 -DW=s8_nv -DGROUPED=0"},
        {LLMK_NV90_PACKED_NAME, "-DX=bf16 -DW=s8_nv -DGROUPED=1"},
        {LLMK_NV90_NARROW_NAME, "-DX=f16"},
        {LLMK_NV90_NARROW_NAME, "-DX=bf16"},
        {"linear/linear_w8a8_wgmma.cl", ""},
        {"grouped_linear/grouped_wgmma.cl", "-DX=f16"},
        {"grouped_linear/grouped_wgmma.cl", "-DX=bf16"},
        {"grouped_linear/grouped_wgmma_layer.cl", "-DX=f16"},
        {"grouped_linear/grouped_wgmma_layer.cl", "-DX=bf16"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=f16 -DW=u4_nv -DGROUPED=0"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=f16 -DW=u4_nv -DGROUPED=1"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=f16 -DW=u4_nv -DGROUPED=2"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=f16 -DW=s8_nv -DGROUPED=0"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=f16 -DW=s8_nv -DGROUPED=1"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=bf16 -DW=u4_nv -DGROUPED=0"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=bf16 -DW=u4_nv -DGROUPED=1"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=bf16 -DW=u4_nv -DGROUPED=2"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=bf16 -DW=s8_nv -DGROUPED=0"},
        {"grouped_linear/grouped_wgmma_packed.cl", "-DX=bf16 -DW=s8_nv -DGROUPED=1"},
    };
    int known = atomic_load(&ctx->wgmma);
    if (known < 0) {
        known = true;
        for (size_t i = 0; known && i < LLMK_COUNT(images); i++)
            known = llmk_image_comes_first(ctx, images[i][0], images[i][1]);
        atomic_store(&ctx->wgmma, known);
    }
    return known ||
           llmk_no(why, "no driver assembles it from source, and there is no sm_90a image of it in "
                        "this library, or LLMK_IMAGE forbids it");
}

static bool is_hopper(const llmk_context *ctx, llmk_reason *why)
{
    return (ctx->caps.vendor == LLMK_VENDOR_NVIDIA && ctx->caps.compute_capability == 90) ||
           llmk_no(why, "for NVIDIA GPUs of compute capability 9.0");
}

bool llmk_linear_has_wgmma(llmk_context *ctx, llmk_reason *why)
{
    return is_hopper(ctx, why) && has_images(ctx, why);
}

bool llmk_linear_nv90_has_k(uint64_t k, llmk_reason *why)
{
    const uint64_t most = (uint64_t)1 << 26;
    return (k > 0 && k <= most) || llmk_no(why, "k is %llu: for 1 ... %llu", (unsigned long long)k,
                                           (unsigned long long)most);
}

static uint64_t tiles_of(uint64_t m, uint64_t n)
{
    return (m + TILE_M - 1) / TILE_M * ((n + TILE_N - 1) / TILE_N);
}

bool llmk_linear_nv90_has_x_boxes(const linear_problem *p)
{
    return p->x.unit && p->x.simple && p->x.align >= 16 && p->x.ncols % 8 == 0 &&
           (p->x.nrows <= 1 || (p->x.rows.s0 > 0 && p->x.rows.s0 % 8 == 0));
}

/* And W. The kernel decides the same for itself; what the unit can not bring is copied by items,
 * which is slower than the variants that follow. */
bool llmk_linear_nv90_has_boxes(const linear_problem *p, llmk_reason *why)
{
    bool has = llmk_linear_nv90_has_x_boxes(p);
    for (size_t i = 0; has && i < p->weights->segment_count; i++)
        has = p->weights->segments[i].rows % 32 == 0;
    return has || llmk_no(why, "for rows of x with one stride and on 16-byte boundaries, k a "
                               "multiple of 8, and multiples of 32 rows of W");
}

bool llmk_linear_nv90_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    const uint64_t m = p->x.nrows, k = p->weights->k;
    if (!is_hopper(ctx, why) || !llmk_linear_is_half(p, why))
        return false;
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "nv90")) {
        if (m < MIN_ROWS && !p->batch_invariant)
            return llmk_no(why, "for %d rows of x and more", MIN_ROWS);
        if (!llmk_linear_nv90_has_boxes(p, why))
            return false;
    }
    if (!llmk_linear_nv90_has_k(k, why))
        return false;
    if (m > INT32_MAX || tiles_of(m, p->weights->n) > LLMK_NV90_MAX_TILES)
        return llmk_no(why, "too many rows");
    return has_images(ctx, why);
}

/* How a segment is computed, and how long that takes by estimate: stages of K at so many
 * nanoseconds each, and the end of a tile, as measured on an H200. */
typedef struct plan {
    enum { PLAIN, SHARED_BY_2, SHARED_BY_4, TALL } kind;
    uint32_t last;  /* the kernel's last argument, where tiles are not shared */
    uint32_t per;   /* where they are: stages of K of a work-group */
    uint64_t tiles; /* that fill as many work-groups */
    uint64_t time;
} plan;

typedef struct tile_time {
    uint32_t stage, end;
} tile_time;

static uint64_t time_of(tile_time t, uint64_t k)
{
    return (k + 63) / 64 * t.stage + t.end;
}

static const tile_time whole_time = {672, 3900}; /* of a tile of 128 x 256 */

/* Tiles of 128 x 256. Those that do not fill a round of the device are cut into parts, which need
 * more bytes for what they compute. */
static plan plan_cut(uint64_t m, uint64_t n, uint64_t k, uint32_t units, uint32_t wanted)
{
    const struct {
        uint32_t parts;
        tile_time time; /* of a part */
    } cuts[] = {{1, whole_time}, {2, {390, 2000}}, {4, {350, 1300}}};
    const uint64_t tiles = tiles_of(m, n), rest = tiles % units;
    plan best = {.time = UINT64_MAX};
    for (size_t i = 0; i < LLMK_COUNT(cuts); i++) {
        const uint32_t parts = cuts[i].parts;
        const uint64_t time = tiles / units * time_of(whole_time, k) +
                              (rest * parts + units - 1) / units * time_of(cuts[i].time, k);
        if (parts == wanted || (!wanted && time < best.time))
            best = (plan){.last = parts, .tiles = tiles * parts, .time = time};
    }
    return best;
}

/* Or each of them is shared along K by 2 or 4 work-groups, which wait for each other and finish as
 * many columns each (linear_wgmma_trade.clh): all of them have to be on the device at one time. */
#define SHARED_STAGE 730 /* ns */
#define TRADE_TIME   1500
#define OTHER_TIME   1000 /* for each other part */
#define LEAST_STAGES 5    /* of a part */

static plan plan_shared(const linear_problem *p, uint64_t n, uint32_t units)
{
    const uint64_t tiles = tiles_of(p->x.nrows, n), stages = (p->weights->k + 63) / 64;
    plan best = {.time = UINT64_MAX};
    for (uint64_t parts = 2; llmk_linear_nv90_has_boxes(p, NULL) && parts <= 4; parts *= 2) {
        const uint64_t per = (stages + parts - 1) / parts;
        const uint64_t time = per * SHARED_STAGE + TRADE_TIME + (parts - 1) * OTHER_TIME;
        if (time < best.time && per >= LEAST_STAGES && tiles * parts <= units &&
            units * WARPS <= LLMK_WORKSPACE_COUNTS &&
            llmk_linear_may_split(p, tiles, per * parts, units))
            best = (plan){.kind = parts == 2 ? SHARED_BY_2 : SHARED_BY_4,
                          .per = (uint32_t)per,
                          .tiles = tiles * parts,
                          .time = time};
    }
    return best;
}

bool llmk_linear_nv90_may_share(const llmk_context *ctx, const linear_problem *p)
{
    return plan_shared(p, llmk_weights_first_rows(p->weights), ctx->caps.compute_units).tiles > 0;
}

/* Tiles of 256 x up to 192: `columns` columns of them, of two widths that differ by 16. A
 * work-group that begins with the first tile has most of the wide ones. */
#define TALL_M     256
#define TALL_UNIT  16u
#define TALL_UNITS 12 /* at most, in the width of a tile */

uint64_t llmk_linear_nv90_tall_time(uint32_t width, uint64_t k)
{
    static const tile_time times[TALL_UNITS + 1] = {
        {0, 0},      {490, 500},  {500, 600},  {516, 750},  {532, 900},  {556, 1100}, {580, 1300},
        {630, 1450}, {681, 1600}, {760, 1800}, {840, 2000}, {912, 2200}, {983, 2400}};
    return time_of(times[width], k);
}

static plan plan_columns(uint64_t m, uint64_t n, uint64_t k, uint32_t units, uint64_t columns)
{
    const uint64_t rows = (m + TALL_M - 1) / TALL_M, blocks = n / TALL_UNIT;
    const uint32_t width = (uint32_t)((blocks + columns - 1) / columns);
    const uint64_t wide = blocks - (width - 1) * columns;
    const uint64_t most_wide = (rows * wide + units - 1) / units;
    const uint64_t most = (rows * columns + units - 1) / units;
    return (plan){.kind = TALL,
                  .last = (uint32_t)(16 * wide + width),
                  .tiles = rows * columns,
                  .time = most_wide * llmk_linear_nv90_tall_time(width, k) +
                          (most - most_wide) * llmk_linear_nv90_tall_time(width - 1, k)};
}

/* As few columns as can be, or so many that all work-groups have the same number of tiles. */
static plan plan_tall(uint64_t m, uint64_t n, uint64_t k, uint32_t units)
{
    const uint64_t rows = (m + TALL_M - 1) / TALL_M, blocks = n / TALL_UNIT;
    const uint64_t fewest = (blocks + TALL_UNITS - 1) / TALL_UNITS;
    plan best = plan_columns(m, n, k, units, fewest);
    for (uint64_t i = 0, each = (rows * fewest + units - 1) / units; i < 4; i++, each++) {
        const uint64_t most = each * units / rows, columns = most < blocks ? most : blocks;
        const plan p = plan_columns(m, n, k, units, columns > fewest ? columns : fewest);
        if (p.time < best.time)
            best = p;
    }
    return best;
}

static bool has_rows_of_vectors(const llmk_view *v)
{
    return !v->present || (v->unit && v->simple && v->align >= 16);
}

bool llmk_linear_nv90_is_even(const linear_problem *p)
{
    return llmk_linear_nv90_has_boxes(p, NULL) && has_rows_of_vectors(&p->bias) &&
           has_rows_of_vectors(&p->residual) && has_rows_of_vectors(&p->y);
}

/* In a trial, whose problems are small, every kind has its turn. */
static plan plan_of(const llmk_launch *launch, const linear_problem *p, uint64_t n)
{
    const uint32_t units = launch->ctx->caps.compute_units;
    const uint64_t m = p->x.nrows, k = p->weights->k;
    const bool can = llmk_linear_nv90_is_even(p);
    const plan shared = plan_shared(p, n, units);
    if (launch->ctx->is_trial && shared.tiles)
        return shared;
    if (launch->ctx->is_trial && can && m > TALL_M)
        return plan_columns(m, n, k, units, (n / TALL_UNIT + TALL_UNITS - 1) / TALL_UNITS);
    if (launch->ctx->is_trial)
        return plan_cut(m, n, k, units, m < MIN_ROWS ? 4 : p->x.align < 16 ? 2 : 1);
    const uint32_t wanted = launch->config ? launch->config->value[0] : 0;
    if (wanted == LLMK_NV90_SHARED && shared.tiles)
        return shared;
    if (wanted)
        return plan_cut(m, n, k, units, wanted == LLMK_NV90_SHARED ? 0 : wanted);
    if (launch->config)
        return plan_tall(m, n, k, units);
    /* Two hundredths are less than the estimate is worth. */
    plan best = plan_cut(m, n, k, units, 0);
    const plan others[] = {can ? plan_tall(m, n, k, units) : best, shared};
    for (size_t i = 0; i < LLMK_COUNT(others); i++)
        if (others[i].time < best.time - best.time / 50)
            best = others[i];
    return best;
}

llmk_status llmk_linear_nv90_launch(llmk_launch *launch, const void *problem)
{
    static const struct {
        const char *file, *kernel;
    } kinds[] = {[PLAIN] = {FILE_NAME, "linear_wgmma"},
                 [SHARED_BY_2] = {SHARED_NAME, "linear_wgmma_shared_2"},
                 [SHARED_BY_4] = {SHARED_NAME, "linear_wgmma_shared_4"},
                 [TALL] = {TALL_NAME, "linear_wgmma_tall"}};
    const linear_problem *p = problem;
    const uint32_t units = launch->ctx->caps.compute_units;
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *segment = &p->weights->segments[i];
        const plan chosen = plan_of(launch, p, segment->rows);
        const bool tall = chosen.kind == TALL;
        const linear_recipe r = {.file = kinds[chosen.kind].file,
                                 .defines = p->x.dtype == LLMK_F16 ? "-DX=f16" : "-DX=bf16",
                                 .kernel = kinds[chosen.kind].kernel,
                                 .rows = tall ? TALL_M : TILE_M,
                                 .columns = tall ? TALL_UNITS * TALL_UNIT : TILE_N,
                                 .local = {ITEMS, 1, 1},
                                 .groups = chosen.tiles < units ? (uint32_t)chosen.tiles : units,
                                 .has_last = !chosen.per,
                                 .last = chosen.last,
                                 .has_split = chosen.per > 0,
                                 .per = chosen.per};
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}
