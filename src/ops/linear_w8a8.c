/*
 * linear_w8a8.c - the linear layer with x quantised to int8 on the way (LLMK_LINEAR_W8A8):
 * cl/linear/linear_w8a8*.cl.
 */
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/linear_selftest.h"
#include "ops/linear_split.h"

#include <math.h>

#define ROW_ITEMS   128u
#define LOCAL_BYTES (48u << 10)
#define PITCH_STEP  64u /* codes of a row are filled up to a multiple of it */

/* No sum of products of -127 ... 127 and -128 ... 127 leaves 32 bits. */
#define MAX_K (UINT64_C(1) << 17)

/* ---- The problem ---- */

static uint64_t pitch_of(uint64_t k)
{
    return (k + PITCH_STEP - 1) / PITCH_STEP * PITCH_STEP;
}

uint64_t llmk_linear_w8a8_bytes(uint64_t m, uint64_t k)
{
    return m * (pitch_of(k) + sizeof(cl_float));
}

void llmk_linear_w8a8_check(llmk_checker *c, const llmk_weights *w)
{
    const bool is_s8 = w->layout == LLMK_LAYOUT_S8_PORTABLE || w->layout == LLMK_LAYOUT_S8_NV;
    llmk_check_that(c, is_s8 && w->groups <= 1 && !w->has_zeros && w->zero == 0 && !w->order,
                    LLMK_INVALID_ARGUMENT,
                    "flags have LLMK_LINEAR_W8A8; the weights are %s with %u scales a row%s: "
                    "expected int8 with one, without zeros",
                    llmk_layout_name(w->layout), w->groups,
                    w->has_zeros || w->zero != 0 ? " and zeros" : "");
    llmk_check_that(c, w->k <= MAX_K, LLMK_INVALID_SHAPE,
                    "flags have LLMK_LINEAR_W8A8; the weights have k = %llu, at most %llu are "
                    "summed up in 32 bits",
                    (unsigned long long)w->k, (unsigned long long)MAX_K);
}

void llmk_linear_w8a8_arguments(llmk_kernel *k, const linear_problem *p)
{
    llmk_arg_buffer(k, p->workspace ? p->workspace->buffer : NULL); /* NULL in a dry run */
    llmk_arg_u32(k, (uint32_t)pitch_of(p->weights->k));
}

/* ---- Variants ---- */

llmk_status llmk_linear_w8a8_quantise(llmk_launch *launch, const linear_problem *p,
                                      linear_code_order order)
{
    char defines[16];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), NULL);
    const bool plain =
        p->x.unit && p->x.align >= 16 && p->weights->k % 16 == 0 && p->weights->k > 0;
    const linear_recipe r = {.file = "linear/linear_w8a8_rows.cl",
                             .defines = defines,
                             .kernel = plain ? "linear_w8a8_rows_plain" : "linear_w8a8_rows",
                             .rows = 1,
                             .columns = UINT32_MAX,
                             .local = {ROW_ITEMS, 1, 1},
                             .has_codes = true,
                             .has_last = true,
                             .last = order};
    return llmk_linear_run_segment(launch, p, &r, &p->weights->segments[0]);
}

llmk_status llmk_linear_w8a8_ref_launch(llmk_launch *launch, const linear_problem *p)
{
    const linear_recipe r = {.file = "linear/linear_w8a8_ref.cl",
                             .defines = "",
                             .kernel = "linear_w8a8_ref",
                             .rows = 1,
                             .columns = 64,
                             .local = {64, 1, 1},
                             .has_last = true,
                             .last = p->weights->layout == LLMK_LAYOUT_S8_NV};
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_w8a8_portable_launch(llmk_launch *launch, const linear_problem *p)
{
    const bool cpu = llmk_is_cpu(&launch->ctx->caps);
    const size_t side = cpu ? 1 : 8;
    const linear_recipe r = {.file = "linear/linear_w8a8.cl",
                             .defines =
                                 p->weights->layout == LLMK_LAYOUT_S8_NV ? "-DW=s8_nv" : "-DW=s8",
                             .kernel = "linear_w8a8",
                             .rows = 4 * side,
                             .columns = 2 * side,
                             .local = {side, side, 1},
                             .has_codes = true};
    LLMK_TRY(llmk_linear_w8a8_quantise(launch, p, LINEAR_CODES_PLAIN));
    return llmk_linear_run(launch, p, &r);
}

/* cl/linear/linear_w8a8_mma.cl, in work-groups of four waves and of eight. */
typedef struct config {
    const char *name; /* of the emulated variant */
    const char *defines;
    uint32_t items, columns, emulator_bytes;
} config;

static const config narrow = {"emulated-nv-w8a8", "-DWAVES=4", 128, 128, 18u << 10};
static const config wide = {"emulated-nv-w8a8-wide", "-DWAVES=8", 256, 256, 34u << 10};

static uint64_t tiles_of(const linear_problem *p, const config *c)
{
    return (p->x.nrows + 127) / 128 * ((p->weights->n + c->columns - 1) / c->columns);
}

static bool reads(const linear_problem *p, llmk_reason *why)
{
    if (!p->w8a8)
        return llmk_no(why, "for LLMK_LINEAR_W8A8 only");
    if (p->weights->layout != LLMK_LAYOUT_S8_NV)
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(p->weights->layout));
    return p->weights->k > 0 || llmk_no(why, "k is 0");
}

static bool fits(const llmk_context *ctx, const linear_problem *p, const config *c, uint32_t bytes,
                 llmk_reason *why)
{
    if (!reads(p, why))
        return false;
    if (ctx->caps.max_work_group < c->items || ctx->caps.local_bytes < bytes)
        return llmk_no(why, "needs work-groups of %u and %u bytes of local memory", c->items,
                       bytes);
    return true;
}

/* Wide tiles only where there are several for each compute unit. */
bool llmk_linear_nv_w8a8_wide_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    if (!llmk_nv_supported(ctx, why) || !fits(ctx, p, &wide, LOCAL_BYTES, why))
        return false;
    if (tiles_of(p, &wide) < 4 * (uint64_t)ctx->caps.compute_units && !ctx->is_trial &&
        !llmk_variant_is_forced(ctx, "linear", "nv-w8a8-wide"))
        return llmk_no(why, "%llu tiles are too few for this device",
                       (unsigned long long)tiles_of(p, &wide));
    return true;
}

bool llmk_linear_nv_w8a8_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    return llmk_nv_supported(ctx, why) && fits(ctx, problem, &narrow, LOCAL_BYTES, why);
}

static bool emulated_supports(llmk_context *ctx, const void *problem, const config *c,
                              llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", c->name))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return fits(ctx, problem, c, LOCAL_BYTES + c->emulator_bytes, why);
}

bool llmk_linear_emulated_nv_w8a8_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    return emulated_supports(ctx, problem, &narrow, why);
}

bool llmk_linear_emulated_nv_w8a8_wide_supports(llmk_context *ctx, const void *problem,
                                                llmk_reason *why)
{
    return emulated_supports(ctx, problem, &wide, why);
}

/* Of four waves, tiles of 128 rows where they fill the device: those of 64 need half as much again
 * from the cache. */
static llmk_status launch_mma(llmk_launch *launch, const linear_problem *p, const config *c,
                              const char *unit)
{
    static const struct {
        const char *kernel;
        uint32_t rows;
    } kernels[] = {{"linear_w8a8_wide", 128},
                   {"linear_w8a8_128", 128},
                   {"linear_w8a8_64", 64},
                   {"linear_w8a8_32", 32}};
    const uint64_t m = p->x.nrows;
    const bool fills = launch->ctx->is_trial || tiles_of(p, c) >= launch->ctx->caps.compute_units;
    const size_t i = c == &wide ? 0 : m > 64 && fills ? 1 : m > 32 ? 2 : 3;
    char defines[64];
    llmk_join(defines, sizeof defines, c->defines, " -DFRAGMENT_MMA", unit, NULL);
    const linear_recipe r = {.file = "linear/linear_w8a8_mma.cl",
                             .defines = defines,
                             .kernel = kernels[i].kernel,
                             .rows = kernels[i].rows,
                             .columns = c->columns,
                             .local = {c->items, 1, 1},
                             .has_codes = true};
    LLMK_TRY(llmk_linear_w8a8_quantise(launch, p, LINEAR_CODES_NV));
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_nv_w8a8_wide_launch(llmk_launch *launch, const void *problem)
{
    return launch_mma(launch, problem, &wide, " -DASYNC_COPY_CP");
}

llmk_status llmk_linear_nv_w8a8_launch(llmk_launch *launch, const void *problem)
{
    return launch_mma(launch, problem, &narrow, " -DASYNC_COPY_CP");
}

llmk_status llmk_linear_emulated_nv_w8a8_wide_launch(llmk_launch *launch, const void *problem)
{
    return launch_mma(launch, problem, &wide, " -DFRAGMENT_EMULATED");
}

llmk_status llmk_linear_emulated_nv_w8a8_launch(llmk_launch *launch, const void *problem)
{
    return launch_mma(launch, problem, &narrow, " -DFRAGMENT_EMULATED");
}

/* ---- On wgmma: cl/linear/linear_w8a8_wgmma.cl ---- */

#define STAGE_K 128

typedef struct wgmma_tile {
    const char *kernel;
    uint32_t rows, columns;
    uint32_t time;  /* of a stage, in nanoseconds on an H200 */
    uint32_t end;   /* of the end of a tile */
    uint32_t meet;  /* and of sums that meet */
    uint32_t trial; /* the most rows of x in trials, where each has its turn */
} wgmma_tile;

/* How a segment is computed. Tiles of up to 128 rows may be narrower than the kernel's. The first
 * `whole` tiles are one work-group's each, the others are shared, `per` stages a work-group. */
typedef struct wgmma_plan {
    const wgmma_tile *tile;
    uint32_t width, groups, whole, per;
    uint64_t time;
} wgmma_plan;

#define MAX_TILES ((uint64_t)1 << 28)

bool llmk_linear_nv90_w8a8_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    if (!reads(p, why))
        return false;
    if (p->x.nrows > INT32_MAX || (p->x.nrows / 32 + 1) * (p->weights->n / 128 + 1) > MAX_TILES)
        return llmk_no(why, "too many rows");
    return llmk_linear_has_wgmma(ctx, why);
}

/* Tiles of 256 columns have no registers for rows of more than one stride. */
bool llmk_linear_w8a8_may_pair(const linear_problem *p)
{
    return p->y.simple && (!p->residual.present || p->residual.simple);
}

/* Where x is few rows, the time is that of reading W: four nanoseconds a row of a stage. Of half as
 * many columns one warpgroup has none. */
static uint64_t stage_time(const wgmma_tile *t, uint64_t width, uint64_t rows)
{
    const uint64_t memory = 4 * width / rows;
    const uint64_t products = width * 2 > t->columns ? t->time : t->time * 3 / 5;
    return memory > products ? memory : products;
}

/* So many columns that the tiles fill as few rounds of the device. */
static wgmma_plan plan_whole(const wgmma_tile *t, uint64_t m, const llmk_segment *segment,
                             uint64_t stages, uint32_t units)
{
    const uint64_t rows = (m + t->rows - 1) / t->rows, n = segment->rows;
    uint64_t width = t->columns, tiles = rows * ((n + width - 1) / width);
    const uint64_t rounds = (tiles + units - 1) / units, columns = rounds * units / rows;
    if (t->rows <= 128)
        width = ((n + columns - 1) / columns + 31) / 32 * 32;
    tiles = rows * ((n + width - 1) / width);
    return (wgmma_plan){.tile = t,
                        .width = (uint32_t)width,
                        .groups = tiles < units ? (uint32_t)tiles : units,
                        .whole = UINT32_MAX,
                        .time = rounds * (stages * stage_time(t, width, rows) + t->end)};
}

/* The last rounds, of which one is full, shared. */
static wgmma_plan plan_shared(const wgmma_tile *t, const linear_problem *p,
                              const llmk_segment *segment, uint64_t stages, uint32_t units)
{
    const uint64_t rows = (p->x.nrows + t->rows - 1) / t->rows;
    const uint64_t tiles = rows * ((segment->rows + t->columns - 1) / t->columns);
    const uint64_t rounds = tiles / units, whole = rounds > 1 ? (rounds - 1) * units : 0;
    const uint64_t per = llmk_linear_split_per(tiles - whole, stages, units);
    const uint64_t time = stage_time(t, t->columns, rows);
    wgmma_plan plan = {t, t->columns, units, (uint32_t)whole, (uint32_t)per, UINT64_MAX};
    if (tiles % units != 0 && llmk_linear_may_split(p, tiles - whole, stages, units))
        plan.time =
            whole / units * (stages * time + t->end) + per * time + (uint64_t)2 * t->end + t->meet;
    return plan;
}

/* As asked, or what is estimated to end first. */
static wgmma_plan plan_for(const llmk_launch *launch, const linear_problem *p,
                           const llmk_segment *segment)
{
    static const wgmma_tile tiles[] = {
        {"linear_w8a8_wgmma_32x128", 32, 128, 220, 1000, 10000, 20},
        {"linear_w8a8_wgmma_32x256", 32, 256, 330, 1000, 12000, 32},
        {"linear_w8a8_wgmma_64x128", 64, 128, 270, 1500, 12000, 50},
        {"linear_w8a8_wgmma_64x256", 64, 256, 470, 1500, 16000, 64},
        {"linear_w8a8_wgmma_128x128", 128, 128, 440, 2000, 16000, 100},
        {"linear_w8a8_wgmma_128x256", 128, 256, 760, 3000, 25000, 128},
        {"linear_w8a8_wgmma_256x128", 256, 128, 660, 3000, 25000, UINT32_MAX}};
    const uint64_t m = p->x.nrows, stages = (p->weights->depth + STAGE_K - 1) / STAGE_K;
    const uint32_t units = launch->ctx->caps.compute_units;
    const llmk_config *c = launch->config;
    const bool trial = launch->ctx->is_trial;
    wgmma_plan best = {.time = UINT64_MAX};
    for (size_t i = 0; i < LLMK_COUNT(tiles); i++) {
        const wgmma_tile *t = &tiles[i];
        if (t->columns == 256 && !llmk_linear_w8a8_may_pair(p))
            continue;
        const wgmma_plan whole = plan_whole(t, m, segment, stages, units);
        const wgmma_plan shared = plan_shared(t, p, segment, stages, units);
        /* In trials the odd ones are whole. */
        const bool is_shared =
            trial ? shared.time < UINT64_MAX && m % 2 == 0 : shared.time < whole.time;
        const wgmma_plan plan = is_shared ? shared : whole;
        if ((c && c->value[0] == t->rows && c->value[1] == t->columns) || (trial && m <= t->trial))
            return plan;
        if (plan.time < best.time)
            best = plan;
    }
    return best;
}

llmk_status llmk_linear_nv90_w8a8_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    LLMK_TRY(llmk_linear_w8a8_quantise(launch, p, LINEAR_CODES_NV90));
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *segment = &p->weights->segments[i];
        const wgmma_plan plan = plan_for(launch, p, segment);
        const linear_recipe r = {.file = "linear/linear_w8a8_wgmma.cl",
                                 .defines = "",
                                 .kernel = plan.tile->kernel,
                                 .rows = plan.tile->rows,
                                 .columns = plan.width,
                                 .local = {384, 1, 1},
                                 .groups = plan.groups,
                                 .has_codes = true,
                                 .has_last = true,
                                 .last = plan.width,
                                 .has_split = true,
                                 .whole = plan.whole,
                                 .per = plan.per};
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}

/* ---- Self-test ---- */

static llmk_status try_rows(llmk_trial *t, const linear_problem *like, const llmk_weights *weights,
                            const double *w, llmk_workspace *workspace, uint64_t m)
{
    const uint64_t n = weights->n, k = weights->k;
    const float *x, *residual;
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_trial_input(t, like->x.dtype, m, k, 1, 1.0f, &x);
    args.weights = weights;
    args.residual = llmk_trial_input(t, LLMK_F32, m, n, 3, 1.0f, &residual);
    args.y = llmk_trial_output(t, like->y.dtype, m, n);
    args.flags = LLMK_LINEAR_W8A8;
    args.workspace = workspace;
    double *expected = llmk_trial_doubles(t, m * n), largest = 0, step = 0;
    double *room = llmk_trial_doubles(t, m * (k + 1));
    if (t->status != LLMK_OK)
        return t->status;
    float *scale = (float *)room;
    int8_t *codes = (int8_t *)(room + m);
    LLMK_TRY(llmk_quantize_host(LLMK_QUANT_INT8_CHANNEL, m, k, 0, x, codes, scale, NULL));
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++) {
            double sum = 0;
            for (uint64_t l = 0; l < k; l++) {
                sum += codes[i * k + l] * w[j * k + l];
                step = fmax(step, fabs((double)scale[i] * w[j * k + l]));
            }
            expected[i * n + j] = (double)scale[i] * sum + (double)residual[i * n + j];
            largest = fmax(largest, fabs(expected[i * n + j]) + 1);
        }
    llmk_trial_run(t, &args);
    /* A code that x is halfway between may be either. */
    llmk_trial_compare(t, "y", &args.y, expected, 0, 1.01 * step + 1e-6 * largest);
    return t->status;
}

llmk_status llmk_linear_w8a8_self_test(llmk_trial *t, const linear_problem *like)
{
    static const uint64_t rows[] = {5, 40, 70, 30, 64, 128, 200};
    const bool nv90 = t->variant->launch == llmk_linear_nv90_w8a8_launch;
    const size_t count = nv90 ? 7 : 3;
    llmk_workspace *workspace = NULL;
    /* Parts of tiles begin on a multiple of 256. */
    LLMK_TRY(llmk_workspace_create(
        t->ctx, llmk_linear_w8a8_bytes(rows[count - 1], 256) + 255 + llmk_linear_split_bytes(like),
        &workspace));
    llmk_status status = LLMK_OK;
    for (unsigned i = 0; status == LLMK_OK && i < count; i++) {
        llmk_weights *weights = NULL;
        double *w = NULL;
        status = llmk_linear_trial_matrix(t, like->weights, 70,
                                          llmk_linear_trial_columns(like->weights, i & 1), false,
                                          &w, &weights);
        if (status == LLMK_OK)
            status = try_rows(t, like, weights, w, workspace, rows[i]);
        llmk_weights_free(weights);
    }
    llmk_workspace_free(workspace);
    return status;
}
