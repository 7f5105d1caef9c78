/* grouped.c - launching products of groups of rows with the matrices of experts. */
#include "ops/grouped.h"

#include "ops/elementwise.h"
#include "ops/linear.h"

/* cl/grouped_linear/grouped_tile.cl, grouped_few.cl */
#define TILE_ROWS    64u
#define TILE_COLUMNS 64u
#define FEW_COLUMNS  16u
#define FEW_ITEMS    128u

/* ---- Arguments ---- */

/* Experts first ... last - 1, and with the last of them the groups that are no expert's. */
void llmk_grouped_arg(llmk_kernel *k, const grouped_problem *p, const llmk_segment *s)
{
    const llmk_weights *w = p->weights;
    const uint32_t first = w->n ? (uint32_t)(s->first / w->n) : 0;
    const uint32_t last = w->n ? (uint32_t)((s->first + s->rows) / w->n) : 0;
    llmk_arg_view(k, &p->x);
    llmk_arg_u32(k, (uint32_t)p->x.nrows);
    llmk_arg_u32(k, p->x.dtype);
    llmk_arg_u32(k, llmk_linear_access(w, &p->x));
    llmk_arg_buffer(k, s->data);
    llmk_arg_buffer(k, s->scales);
    llmk_arg_buffer(k, s->zeros);
    llmk_arg_buffer(k, w->order);
    llmk_arg_u64(k, w->pitch);
    llmk_arg_u32(k, (uint32_t)w->n);
    llmk_arg_u32(k, (uint32_t)w->depth);
    llmk_arg_u32(k, w->groups);
    llmk_arg_u32(k, w->group_size);
    llmk_arg_u32(k, llmk_linear_shift(w->group_size));
    llmk_arg_u32(k, w->scale_kind);
    llmk_arg_f32(k, w->zero);
    llmk_arg_buffer(k, p->schedule);
    llmk_arg_u32(k, p->groups);
    llmk_arg_u32(k, first);
    llmk_arg_u32(k, last == w->experts ? p->groups : last);
    llmk_arg_u32(k, p->rest);
    llmk_arg_u32(k, (uint32_t)p->rows);
    llmk_arg_view(k, &p->source);
    llmk_arg_u32(k, p->fan);
    llmk_arg_view(k, &p->bias);
    llmk_arg_u32(k, llmk_moe_dtype(&p->bias));
    llmk_arg_view(k, &p->y);
    llmk_arg_u32(k, p->y.dtype);
}

void llmk_grouped_arg_gate(llmk_kernel *k, const grouped_gate *g, const llmk_segment *s)
{
    llmk_arg_buffer(k, s->data);
    llmk_arg_buffer(k, s->scales);
    llmk_arg_buffer(k, s->zeros);
    llmk_arg_u32(k, g->outputs);
    llmk_arg_u32(k, g->step);
    llmk_arg_u32(k, g->up_first);
    llmk_arg_view(k, &g->up_bias);
    llmk_arg_u32(k, llmk_moe_dtype(&g->up_bias));
    llmk_arg_u32(k, g->activation);
    llmk_arg_f32(k, g->limit);
    llmk_arg_f32(k, g->alpha);
}

void llmk_grouped_arg_combine(llmk_kernel *k, const grouped_problem *p, const grouped_combine *c)
{
    llmk_arg_view(k, &c->weights);
    llmk_arg_u32(k, c->weights.dtype);
    llmk_arg_u32(k, (uint32_t)p->y.nrows);
    llmk_arg_u32(k, p->fan);
    llmk_arg_view(k, &c->residual);
    llmk_arg_buffer(k, c->residual_logit);
}

uint64_t llmk_grouped_most_tiles(const grouped_problem *p, const llmk_segment *s)
{
    const uint64_t experts = p->weights->n ? s->rows / p->weights->n : 0;
    const uint64_t most =
        p->schedule ? experts + 1 + p->rows / p->height : (p->rows + p->height - 1) / p->height;
    return most < p->rows ? most : p->rows;
}

/* ---- Portable kernels, and those that are as the formulas read ---- */

static bool portable_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    const uint32_t layouts = LLMK_LAYOUTS_PORTABLE | LLMK_LAYOUTS_NV;
    const llmk_weights *all[] = {p->weights, p->gate ? p->gate->up : NULL};
    if (ctx->caps.max_work_group < FEW_ITEMS)
        return llmk_no(why, "work-groups of %u items are too large for the device", FEW_ITEMS);
    for (size_t i = 0; i < LLMK_COUNT(all); i++) {
        const llmk_weights *w = all[i];
        if (w && !(LLMK_LAYOUT_BIT(w->layout) & layouts))
            return llmk_no(why, "does not read the layout %s", llmk_layout_name(w->layout));
        if (w && w->experts > 1 && w->n % w->block != 0)
            return llmk_no(why, "experts of %llu rows share blocks of %u", (unsigned long long)w->n,
                           w->block);
    }
    return true;
}

static uint32_t portable_height(uint64_t rows, uint64_t experts, bool few, bool codes)
{
    (void)codes;
    return few || rows <= LLMK_GROUPED_FEW * experts ? LLMK_GROUPED_FEW : TILE_ROWS;
}

static llmk_status launch_kind(llmk_launch *launch, const grouped_problem *p, bool ref)
{
    static const char *const kernels[3][2] = {{"grouped_tile", "grouped_tile_gated"},
                                              {"grouped_few", "grouped_few_gated"},
                                              {"grouped_ref", "grouped_gated_ref"}};
    static const char *const files[] = {"grouped_linear/grouped_tile.cl",
                                        "grouped_linear/grouped_few.cl",
                                        "grouped_linear/grouped_ref.cl"};
    const bool few = p->height == LLMK_GROUPED_FEW, gated = p->gate != NULL;
    const size_t kind = ref ? 2 : few;
    const uint32_t columns = (few ? FEW_COLUMNS : TILE_COLUMNS) / (gated ? 2 : 1);
    const uint32_t outputs = llmk_grouped_outputs(p);
    char typed[32];
    llmk_linear_defines(p->x.dtype, p->weights->layout, typed);
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *s = &p->weights->segments[i];
        llmk_kernel k =
            llmk_kernel_open(launch, files[kind], ref ? "" : typed, kernels[kind][gated]);
        llmk_grouped_arg(&k, p, s);
        if (gated)
            llmk_grouped_arg_gate(&k, p->gate, &p->gate->up->segments[i]);
        llmk_grid grid = {
            {(size_t)llmk_grouped_most_tiles(p, s), (outputs + columns - 1) / columns, 1},
            {few ? FEW_ITEMS : 16, few ? 1 : 8, 1}};
        if (ref) {
            llmk_arg_u32(&k, p->weights->layout);
            grid = llmk_element_grid(p->rows, outputs);
        }
        LLMK_TRY(llmk_kernel_enqueue(&k, grid.groups, grid.local));
    }
    return LLMK_OK;
}

static llmk_status portable_launch(llmk_launch *launch, const grouped_problem *p)
{
    return launch_kind(launch, p, false);
}

static llmk_status portable_combine(llmk_launch *launch, const grouped_problem *p,
                                    const grouped_combine *combine)
{
    char typed[32];
    llmk_linear_defines(p->x.dtype, p->weights->layout, typed);
    llmk_kernel k =
        llmk_kernel_open(launch, "grouped_linear/grouped_few.cl", typed, "grouped_few_combine");
    llmk_grouped_arg(&k, p, &p->weights->segments[0]);
    llmk_grouped_arg_combine(&k, p, combine);
    return llmk_kernel_enqueue(
        &k, (size_t[]){(size_t)((p->weights->n + FEW_COLUMNS - 1) / FEW_COLUMNS), 1, 1},
        (size_t[]){FEW_ITEMS, 1, 1});
}

const grouped_products llmk_grouped_portable = {
    .supports = portable_supports,
    .height = portable_height,
    .launch = portable_launch,
    .combine = portable_combine,
};

static bool ref_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    (void)ctx, (void)p, (void)why;
    return true;
}

static llmk_status ref_launch(llmk_launch *launch, const grouped_problem *p)
{
    return launch_kind(launch, p, true);
}

const grouped_products llmk_grouped_ref = {
    .ref = true,
    .supports = ref_supports,
    .height = portable_height,
    .launch = ref_launch,
};
