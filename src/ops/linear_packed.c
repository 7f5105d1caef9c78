/*
 * linear_packed.c - the linear layer for more rows of x than linear_stream.c takes and weights in
 * the layouts of mma.sync: cl/linear/linear_packed.cl, or where rows of x are plain and groups
 * of whole steps, linear_packed_wide.cl and linear_packed_pair.cl. docs/notes/performance.md has
 * the sizes chosen here.
 */
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/linear_split.h"

#define ITEMS       128u
#define PAIR_ITEMS  256u
#define COLUMNS     128u
#define LOCAL_BYTES (48u << 10)
#define SCRATCH     (36u << 10) /* the emulator's */

static bool fits(const llmk_context *ctx, const linear_problem *p, uint32_t bytes, llmk_reason *why)
{
    const llmk_weights *w = p->weights;
    if (!llmk_linear_is_plain(p, why))
        return false;
    if (!(LLMK_LAYOUT_BIT(w->layout) & LLMK_LAYOUTS_NV))
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(w->layout));
    if (p->x.dtype != LLMK_F16 && p->x.dtype != LLMK_BF16)
        return llmk_no(why, "x is %s: for f16 and bf16", llmk_dtype_name(p->x.dtype));
    if (w->depth == 0)
        return llmk_no(why, "k is 0");
    if (ctx->caps.max_work_group < PAIR_ITEMS || ctx->caps.local_bytes < bytes)
        return llmk_no(why, "needs work-groups of %u and %u bytes of local memory", PAIR_ITEMS,
                       bytes);
    return true;
}

bool llmk_linear_nv_packed_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    return llmk_nv_supported(ctx, why) && fits(ctx, problem, LOCAL_BYTES, why);
}

bool llmk_linear_emulated_nv_packed_supports(llmk_context *ctx, const void *problem,
                                             llmk_reason *why)
{
    if (!ctx->is_trial && !llmk_variant_is_forced(ctx, "linear", "emulated-nv-packed"))
        return llmk_no(why, "emulates a matrix unit: for tests, only where forced");
    return fits(ctx, problem, LOCAL_BYTES + SCRATCH, why);
}

bool llmk_linear_packed_is_short(const llmk_weights *w)
{
    return (w->groups > 1 && w->group_size % 64 != 0) || w->scale_kind == LLMK_SCALE_F16_MIN;
}

/* Tiles of linear_packed_wide.cl and linear_packed_pair.cl. */
typedef struct wide_tile {
    const char *file, *kernel;
    uint32_t rows, columns, items;
    llmk_layout layout;
    uint32_t step;   /* along K */
    uint32_t places; /* of a compute unit */
} wide_tile;

#define WIDE "linear/linear_packed_wide.cl"
#define PAIR "linear/linear_packed_pair.cl"
static const wide_tile few_rows = {WIDE,  "linear_packed_wide_32", 32, 128,
                                   ITEMS, LLMK_LAYOUT_U4_NV,       64, 3};
static const wide_tile s8_rows = {WIDE,  "linear_packed_wide_128", 128, 128,
                                  ITEMS, LLMK_LAYOUT_S8_NV,        32,  2};
static const wide_tile pair = {PAIR,       "linear_packed_pair", 64, 448,
                               PAIR_ITEMS, LLMK_LAYOUT_U4_NV,    64, 1};

#define GROUP_STEP 64u /* groups are whole ones */

static bool takes(const linear_problem *p, const wide_tile *t)
{
    const llmk_weights *w = p->weights;
    if (w->layout != t->layout || w->order || !p->x.unit || !p->x.simple || p->x.align < 16 ||
        w->k % t->step != 0 || p->x.rows.s0 > UINT32_MAX / t->rows ||
        (p->x.nrows / t->rows + 1) * (w->n / t->columns + 1) > INT32_MAX ||
        w->n / 2 + 16 > UINT32_MAX / w->groups || w->scale_kind == LLMK_SCALE_F16_MIN)
        return false;
    /* Quotients of scales with more exponents could overflow. */
    if (w->groups > 1 && (w->layout != LLMK_LAYOUT_U4_NV || w->scale_kind != LLMK_SCALE_F16 ||
                          w->group_size % GROUP_STEP != 0))
        return false;
    for (size_t i = 0; i < w->segment_count; i++)
        if (w->segments[i].rows < t->columns)
            return false;
    return true;
}

static const wide_tile *const wide_tiles[] = {&few_rows, &pair, &s8_rows};

/* NULL: none such. */
static const wide_tile *wide_tile_of_size(const linear_problem *p, uint32_t rows, uint32_t columns)
{
    for (size_t i = 0; i < LLMK_COUNT(wide_tiles); i++)
        if (wide_tiles[i]->rows == rows && wide_tiles[i]->columns == columns &&
            takes(p, wide_tiles[i]))
            return wide_tiles[i];
    return NULL;
}

bool llmk_linear_packed_takes_tile(const linear_problem *p, uint32_t rows, uint32_t columns)
{
    return wide_tile_of_size(p, rows, columns) != NULL;
}

/* NULL: none. A batch-invariant call of few rows, too, takes what serves many. */
static const wide_tile *wide_tile_of(const llmk_launch *launch, const linear_problem *p)
{
    if (launch->config) /* value: columns and rows of a wide tile; or rows, and 0 */
        return wide_tile_of_size(p, launch->config->value[1], launch->config->value[0]);
    const wide_tile *tile = &pair;
    if (p->weights->layout != LLMK_LAYOUT_U4_NV)
        tile = p->x.nrows > 64 || p->batch_invariant ? &s8_rows : NULL;
    else if (p->x.nrows <= few_rows.rows && !p->batch_invariant)
        tile = &few_rows;
    return tile && takes(p, tile) ? tile : NULL;
}

#define LEAST_K 512u
/* Of tiles for all places, from which a last turn that is not full is little. */
#define MOST_TURNS (uint64_t)4
/* Eighths of a tile: parts with more of it gain less than it takes them to meet. */
#define MOST_TILE_EIGHTHS 7u

#define MOST_PARTS 255 /* of a tile: nv_trade.clh counts them in 8 bits */

/* Parts of tiles, one for each work-group, if that takes little longer than to share all of K out
 * evenly, in parts that begin and end anywhere: each tile's work-groups finish it together. The
 * recipe has then `whole` parts of a tile, of `per` stages. */
static bool in_parts(const linear_turns *t, uint64_t stages, uint64_t least, linear_recipe *r)
{
    const uint64_t parts = t->whole == 0 ? t->places / t->tiles : 1;
    const uint64_t even = (stages + parts - 1) / parts, per = even > least ? even : least;
    if (per * 8 > stages * MOST_TILE_EIGHTHS ||
        per > llmk_linear_split_per(t->tiles, stages, t->places) + least)
        return false;
    const uint64_t used = (stages + per - 1) / per;
    if (used > MOST_PARTS)
        return false;
    r->kernel = "linear_packed_pair_parts";
    r->groups = (uint32_t)(t->tiles * used);
    r->whole = (uint32_t)used;
    r->per = (uint32_t)per;
    return true;
}

/* How tiles of a segment are shared out (linear_split.h): the work-groups, and what each has. */
static void share_out(const llmk_launch *launch, const linear_problem *p, const wide_tile *tile,
                      const llmk_segment *segment, linear_recipe *r)
{
    const llmk_weights *w = p->weights;
    const linear_turns t = llmk_linear_turns(launch, p, segment, r, tile->places);
    const uint64_t left = t.tiles - t.whole;
    const uint32_t stage = w->groups > 1 ? w->group_size : tile->step; /* of K, for the kernel */
    const uint64_t stages = (w->k + stage - 1) / stage;
    r->groups = (uint32_t)t.tiles;
    if (tile == &few_rows || left == 0 || t.tiles >= MOST_TURNS * t.places ||
        !llmk_linear_may_split(p, left, stages, launch->ctx->caps.compute_units))
        return;
    const uint64_t least = (LEAST_K + stage - 1) / stage;
    if (tile == &pair && in_parts(&t, stages, least, r)) {
        r->per *= stage / tile->step;
        return;
    }
    const uint64_t even = llmk_linear_split_per(left, stages, t.places);
    const uint64_t per = even > least ? even : least;
    if (per * 8 > stages * MOST_TILE_EIGHTHS)
        return;
    const uint64_t sharers = (left * stages + per - 1) / per;
    r->groups = t.whole ? t.places : (uint32_t)sharers;
    r->whole = (uint32_t)t.whole;
    r->per = (uint32_t)per;
}

static llmk_status launch_wide(llmk_launch *launch, const linear_problem *p, const wide_tile *tile,
                               const char *unit)
{
    const char *w = llmk_layout_is_u4(p->weights->layout) ? " -DW=u4_nv" : " -DW=s8_nv";
    const char *grouped = p->weights->groups > 1 ? " -DGROUPED=1" : " -DGROUPED=0";
    char defines[128];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype), tile == &pair ? "" : w,
              grouped, " -DFRAGMENT_MMA", unit, NULL);
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *segment = &p->weights->segments[i];
        linear_recipe r = {.file = tile->file,
                           .defines = defines,
                           .kernel = tile->kernel,
                           .rows = tile->rows,
                           .columns = tile->columns,
                           .local = {tile->items, 1, 1},
                           .has_split = true};
        share_out(launch, p, tile, segment, &r);
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}

static llmk_status launch_packed(llmk_launch *launch, const linear_problem *p, const char *unit)
{
    const wide_tile *wide = wide_tile_of(launch, p);
    if (wide)
        return launch_wide(launch, p, wide, unit);
    const llmk_weights *w = p->weights;
    const bool short_groups = llmk_linear_packed_is_short(w);
    const bool few =
        short_groups || (launch->config ? launch->config->value[0] == 32 : p->x.nrows <= 32);
    char defines[96];
    llmk_join(defines, sizeof defines, "-DX=", llmk_dtype_name(p->x.dtype),
              llmk_layout_is_u4(w->layout) ? " -DW=u4_nv" : " -DW=s8_nv",
              short_groups ? " -DSPAN=32" : " -DSPAN=64", " -DFRAGMENT_MMA", unit, NULL);
    const linear_recipe r = {.file = "linear/linear_packed.cl",
                             .defines = defines,
                             .kernel = few ? "linear_packed_32" : "linear_packed_64",
                             .rows = few ? 32 : 64,
                             .columns = COLUMNS,
                             .local = {ITEMS, 1, 1}};
    return llmk_linear_run(launch, p, &r);
}

llmk_status llmk_linear_nv_packed_launch(llmk_launch *launch, const void *problem)
{
    return launch_packed(launch, problem, " -DASYNC_COPY_CP");
}

llmk_status llmk_linear_emulated_nv_packed_launch(llmk_launch *launch, const void *problem)
{
    return launch_packed(launch, problem, " -DFRAGMENT_EMULATED");
}
