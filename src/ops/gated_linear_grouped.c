/* gated_linear_grouped.c - gate, up and activation of many rows by the kernels of experts. */
#include "ops/gated_linear_grouped.h"

#define MIN_ROWS 17u /* fewer are served better by nv-stream, or as two products */
/* Of f16 and bf16 without wgmma: tiles of the linear layer are wider. */
#define MOST_ROWS 64u

/* All rows are those of the only expert. */
static grouped_problem grouped_of(const linear_problem *l, const grouped_products *products,
                                  grouped_gate *gate)
{
    *gate = (grouped_gate){.up = l->gate->up,
                           .outputs = (uint32_t)l->gate->outputs,
                           .step = l->gate->step,
                           .up_first = l->gate->up_first,
                           .up_bias = l->gate->up_bias,
                           .activation = l->gate->activation,
                           .limit = l->gate->limit,
                           .alpha = l->gate->alpha};
    const bool codes = llmk_grouped_is_codes(l->weights);
    llmk_view x = l->x;
    if (x.nrows == 1) /* has no distance to the next, which the copy unit is told all the same */
        x.rows.s0 = x.ncols;
    return (grouped_problem){.x = x,
                             .bias = l->bias,
                             .y = l->y,
                             .weights = l->weights,
                             .groups = 1,
                             .rest = UINT32_MAX,
                             .height = products->height(l->x.nrows, 1, false, codes),
                             .fan = 1,
                             .rows = l->x.nrows,
                             .gate = gate};
}

static bool is_wgmma(const grouped_products *products)
{
    return products == &llmk_grouped_nv90 || products == &llmk_grouped_nv90_packed;
}

/* Rows of x that these products are for, where two of the linear layer could be taken instead. */
static uint64_t most_rows(const grouped_products *products, const llmk_weights *w)
{
    if (is_wgmma(products))
        return UINT64_MAX;
    if (llmk_grouped_is_codes(w))
        return 0;
    return w->layout == LLMK_LAYOUT_F16_PORTABLE || w->layout == LLMK_LAYOUT_BF16_PORTABLE
               ? MOST_ROWS
               : UINT64_MAX;
}

bool llmk_gated_grouped_supports(llmk_context *ctx, const grouped_products *products,
                                 const char *name, const linear_problem *p, bool has_scratch,
                                 llmk_reason *why)
{
    const uint64_t rows = p->x.nrows;
    grouped_gate gate;
    const grouped_problem g = grouped_of(p, products, &gate);
    if (!products->supports(ctx, &g, why))
        return false;
    if (p->residual.present)
        return llmk_no(why, "adds no residual");
    if (p->weights->segment_count != 1 || p->gate->up->segment_count != 1)
        return llmk_no(why, "for weights in one buffer");
    if (rows > INT32_MAX)
        return llmk_no(why, "too many rows");
    if (ctx->is_trial || llmk_variant_is_forced(ctx, "gated_linear", name))
        return true;
    if (rows < MIN_ROWS)
        return llmk_no(why, "for %u rows of x and more", MIN_ROWS);
    if (has_scratch && rows > most_rows(products, p->weights))
        return llmk_no(why, "for at most %u rows of such weights, given a workspace",
                       (uint32_t)most_rows(products, p->weights));
    return llmk_linear_may_vary(p, why) &&
           (!products->suits || products->suits(rows, 1, llmk_grouped_is_codes(p->weights), why));
}

llmk_status llmk_gated_grouped_launch(llmk_launch *launch, const grouped_products *products,
                                      const linear_problem *p)
{
    grouped_gate gate;
    const grouped_problem g = grouped_of(p, products, &gate);
    return products->launch(launch, &g);
}
