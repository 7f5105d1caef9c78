/* grouped.c - launching products of groups of rows with the matrices of experts. */
#include "ops/grouped.h"

#include "ops/elementwise.h"
#include "ops/linear.h"

/* cl/grouped_linear/grouped_tile.cl, grouped_few.cl */
#define TILE_ROWS    64u
#define TILE_COLUMNS 64u
#define FEW_COLUMNS  16u
#define FEW_ITEMS    128u

uint32_t llmk_grouped_height(uint64_t rows, uint64_t experts)
{
    return rows <= LLMK_GROUPED_FEW * experts ? LLMK_GROUPED_FEW : TILE_ROWS;
}

bool llmk_grouped_reads(const llmk_weights *w, llmk_reason *why)
{
    const uint32_t layouts = LLMK_LAYOUTS_PORTABLE | LLMK_LAYOUTS_NV;
    if (!(LLMK_LAYOUT_BIT(w->layout) & layouts))
        return llmk_no(why, "does not read the layout %s", llmk_layout_name(w->layout));
    if (w->experts > 1 && w->n % w->block != 0)
        return llmk_no(why, "experts of %llu rows share blocks of %u", (unsigned long long)w->n,
                       w->block);
    return true;
}

static uint32_t outputs_of(const grouped_problem *p)
{
    return p->gate ? p->gate->outputs : (uint32_t)p->weights->n;
}

/* The arguments of GROUPED_PARAMETERS: experts first ... last - 1, and where `last_segment` the
 * groups after them. */
static void arg_grouped(llmk_kernel *k, const grouped_problem *p, const llmk_segment *s)
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

static void arg_gate(llmk_kernel *k, const grouped_gate *g, const llmk_segment *s)
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

/* Tiles that the rows may be cut into at most, of the groups of one segment. */
static uint64_t most_tiles(const grouped_problem *p, const llmk_segment *s)
{
    const uint64_t experts = p->weights->n ? s->rows / p->weights->n : 0;
    const uint64_t most =
        p->schedule ? experts + 1 + p->rows / p->height : (p->rows + p->height - 1) / p->height;
    return most < p->rows ? most : p->rows;
}

llmk_status llmk_grouped_launch(llmk_launch *launch, const grouped_problem *p, bool ref)
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
    char typed[32];
    llmk_linear_defines(p->x.dtype, p->weights->layout, typed);
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *s = &p->weights->segments[i];
        llmk_kernel k =
            llmk_kernel_open(launch, files[kind], ref ? "" : typed, kernels[kind][gated]);
        arg_grouped(&k, p, s);
        if (gated)
            arg_gate(&k, p->gate, &p->gate->up->segments[i]);
        llmk_grid grid = {{(size_t)most_tiles(p, s), (outputs_of(p) + columns - 1) / columns, 1},
                          {few ? FEW_ITEMS : 16, few ? 1 : 8, 1}};
        if (ref) {
            llmk_arg_u32(&k, p->weights->layout);
            grid = llmk_element_grid(p->rows, outputs_of(p));
        }
        LLMK_TRY(llmk_kernel_enqueue(&k, grid.groups, grid.local));
    }
    return LLMK_OK;
}

llmk_status llmk_grouped_launch_combine(llmk_launch *launch, const grouped_problem *p,
                                        const grouped_combine *combine)
{
    char typed[32];
    llmk_linear_defines(p->x.dtype, p->weights->layout, typed);
    llmk_kernel k =
        llmk_kernel_open(launch, "grouped_linear/grouped_few.cl", typed, "grouped_few_combine");
    arg_grouped(&k, p, &p->weights->segments[0]);
    llmk_arg_view(&k, &combine->weights);
    llmk_arg_u32(&k, combine->weights.dtype);
    llmk_arg_u32(&k, (uint32_t)p->y.nrows);
    llmk_arg_u32(&k, p->fan);
    llmk_arg_view(&k, &combine->residual);
    llmk_arg_buffer(&k, combine->residual_logit);
    return llmk_kernel_enqueue(
        &k, (size_t[]){(size_t)((p->weights->n + FEW_COLUMNS - 1) / FEW_COLUMNS), 1, 1},
        (size_t[]){FEW_ITEMS, 1, 1});
}
