/*
 * linear_nv90_few.c - the linear layer on wgmma for up to 128 rows of x, where reading W is what takes
 * the time: cl/linear/linear_wgmma_few.cl, on NVIDIA GPUs of compute capability 9.0.
 */
#include "ops/linear_nv90.h"
#include "ops/linear_split.h"

#define MIN_ROWS  3 /* fewer are served better by nv-dot */
#define MOST_ROWS 128
#define ITEMS     384
#define STEP      64u /* of K, a stage */

/* Rows of W in a tile. */
enum { LOW = 128, HIGH = 256 };

bool llmk_linear_nv90_few_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const linear_problem *p = problem;
    const uint64_t m = p->x.nrows;
    if (!llmk_linear_has_wgmma(ctx, why) || !llmk_linear_is_half(p, why) ||
        !llmk_linear_may_vary(p, why) || !llmk_linear_nv90_has_k(p->weights->k, why))
        return false;
    if (m < MIN_ROWS || m > MOST_ROWS)
        return llmk_no(why, "for %d ... %d rows of x", MIN_ROWS, MOST_ROWS);
    return llmk_linear_nv90_has_boxes(p) ||
           llmk_no(why,
                   "for rows of x with one stride and on 16-byte boundaries, k a multiple of 8, "
                   "and multiples of 32 rows of W");
}

/* Tiles that do not fill a round are shared along K by all units. */
static linear_recipe recipe_for(const linear_problem *p, uint64_t n, uint32_t rows, uint32_t units)
{
    const uint64_t stages = (p->weights->k + STEP - 1) / STEP, tiles = (n + rows - 1) / rows;
    const uint64_t rest = tiles % units, per = llmk_linear_split_per(rest, stages, units);
    const bool shared = rest && llmk_linear_may_split(p, rest, per * units, units);
    return (linear_recipe){.file = LLMK_NV90_FEW_NAME,
                           .kernel = "linear_wgmma_few",
                           .rows = MOST_ROWS,
                           .columns = rows,
                           .local = {ITEMS, 1, 1},
                           .groups = shared || tiles > units ? units : (uint32_t)tiles,
                           .has_split = true,
                           .whole = (uint32_t)(tiles - rest),
                           .per = shared ? (uint32_t)per : 0};
}

/* Low tiles are in fewer parts, whose sums are fewer; high ones want half as much x out of the L2. In a
 * trial each has its turn. */
static uint32_t rows_for(const llmk_launch *launch, const linear_problem *p)
{
    if (launch->config)
        return launch->config->value[0];
    if (launch->ctx->is_trial)
        return p->x.nrows % 2 ? LOW : HIGH;
    return LOW;
}

llmk_status llmk_linear_nv90_few_launch(llmk_launch *launch, const void *problem)
{
    const linear_problem *p = problem;
    const uint32_t units = launch->ctx->caps.compute_units;
    const bool half = p->x.dtype == LLMK_F16;
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *segment = &p->weights->segments[i];
        const uint32_t rows = rows_for(launch, p);
        linear_recipe r = recipe_for(p, segment->rows, rows, units);
        r.defines = rows == LOW ? half ? "-DX=f16 -DROWS=128" : "-DX=bf16 -DROWS=128"
                    : half      ? "-DX=f16 -DROWS=256"
                                : "-DX=bf16 -DROWS=256";
        LLMK_TRY(llmk_linear_run_segment(launch, p, &r, segment));
    }
    return LLMK_OK;
}
