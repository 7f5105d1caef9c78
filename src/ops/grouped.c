/* grouped.c - launching products of groups of rows with the matrices of experts. */
#include "ops/grouped.h"

#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/subgroup.h"

/* cl/grouped_linear/grouped_tile.cl, grouped_few.cl */
#define TILE_ROWS    64u
#define TILE_COLUMNS 64u
#define FEW_COLUMNS  16u
#define FEW_ITEMS    128u
#define FEW_TEAM     32u

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
    llmk_arg_u32(k, llmk_view_dtype(&p->bias));
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
    llmk_arg_u32(k, llmk_view_dtype(&g->up_bias));
    llmk_arg_u32(k, g->activation);
    llmk_arg_f32(k, g->limit);
    llmk_arg_f32(k, g->alpha);
}

void llmk_grouped_arg_down(llmk_kernel *k, const grouped_problem *down)
{
    const llmk_weights *w = down->weights;
    llmk_arg_buffer(k, w->segments[0].data);
    llmk_arg_u64(k, w->pitch);
    llmk_arg_u32(k, (uint32_t)w->n);
    llmk_arg_u32(k, (uint32_t)w->depth);
    llmk_arg_view(k, &down->bias);
    llmk_arg_u32(k, llmk_view_dtype(&down->bias));
    llmk_arg_view(k, &down->y);
    llmk_arg_u32(k, down->y.dtype);
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

/* ---- Portable kernels ---- */

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

/* How the kernels of a file for some types are built. */
typedef char built_as[64];

static const char *portable_defines(const grouped_problem *p, built_as text)
{
    return llmk_linear_defines(p->x.dtype, p->weights->layout, text);
}

static llmk_status launch_kind(llmk_launch *launch, const grouped_problem *p, bool ref,
                               const char *defines)
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
    for (size_t i = 0; i < p->weights->segment_count; i++) {
        const llmk_segment *s = &p->weights->segments[i];
        llmk_kernel k = llmk_kernel_open(launch, files[kind], defines, kernels[kind][gated]);
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

static llmk_status launch_combine(llmk_launch *launch, const grouped_problem *p,
                                  const grouped_combine *combine, const char *defines)
{
    llmk_kernel k =
        llmk_kernel_open(launch, "grouped_linear/grouped_few.cl", defines, "grouped_few_combine");
    llmk_grouped_arg(&k, p, &p->weights->segments[0]);
    llmk_grouped_arg_combine(&k, p, combine);
    return llmk_kernel_enqueue(
        &k, (size_t[]){(size_t)((p->weights->n + FEW_COLUMNS - 1) / FEW_COLUMNS), 1, 1},
        (size_t[]){FEW_ITEMS, 1, 1});
}

static llmk_status portable_launch(llmk_launch *launch, const grouped_problem *p)
{
    built_as text;
    return launch_kind(launch, p, false, portable_defines(p, text));
}

static llmk_status portable_combine(llmk_launch *launch, const grouped_problem *p,
                                    const grouped_combine *combine)
{
    built_as text;
    return launch_combine(launch, p, combine, portable_defines(p, text));
}

const grouped_products llmk_grouped_portable = {
    .supports = portable_supports,
    .height = portable_height,
    .launch = portable_launch,
    .combine = portable_combine,
};

/* ---- The portable kernels for few rows, with sub-groups, in the types that are common ---- */

static bool subgroup_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    static const llmk_layout same[] = {[LLMK_F32] = LLMK_LAYOUT_F32_PORTABLE,
                                       [LLMK_F16] = LLMK_LAYOUT_F16_PORTABLE,
                                       [LLMK_BF16] = LLMK_LAYOUT_BF16_PORTABLE};
    const llmk_layout layout = p->weights->layout;
    if (!portable_supports(ctx, p, why))
        return false;
    if (layout != LLMK_LAYOUT_S8_PORTABLE && layout != LLMK_LAYOUT_U4_PORTABLE &&
        layout != same[p->x.dtype])
        return llmk_no(why, "does not read the layout %s with x of %s", llmk_layout_name(layout),
                       llmk_dtype_name(p->x.dtype));
    const bool layer = llmk_variant_is_forced(ctx, "moe_forward", "subgroup");
    return llmk_subgroup_supported(ctx, layer ? "moe_forward" : "grouped_linear", why) &&
           (llmk_subgroup_expected(ctx) <= FEW_TEAM ||
            llmk_no(why, "for sub-groups of at most %u", FEW_TEAM));
}

static bool subgroup_suits(uint64_t rows, uint64_t experts, bool codes, llmk_reason *why)
{
    (void)codes;
    return rows <= LLMK_GROUPED_FEW * experts ||
           llmk_no(why, "for at most %u rows an expert, on average", LLMK_GROUPED_FEW);
}

static uint32_t subgroup_height(uint64_t rows, uint64_t experts, bool few, bool codes)
{
    (void)rows, (void)experts, (void)few, (void)codes;
    return LLMK_GROUPED_FEW;
}

static const char *subgroup_defines(const llmk_launch *launch, const grouped_problem *p,
                                    built_as text)
{
    built_as typed;
    llmk_join(text, sizeof(built_as), portable_defines(p, typed),
              " -DSUBGROUP=", llmk_digits(llmk_subgroup_required(launch->ctx)), NULL);
    return text;
}

static llmk_status subgroup_launch(llmk_launch *launch, const grouped_problem *p)
{
    built_as text;
    return launch_kind(launch, p, false, subgroup_defines(launch, p, text));
}

static llmk_status subgroup_combine(llmk_launch *launch, const grouped_problem *p,
                                    const grouped_combine *combine)
{
    built_as text;
    return launch_combine(launch, p, combine, subgroup_defines(launch, p, text));
}

const grouped_products llmk_grouped_subgroup = {
    .supports = subgroup_supports,
    .suits = subgroup_suits,
    .height = subgroup_height,
    .launch = subgroup_launch,
    .combine = subgroup_combine,
};

/* ---- As the formulas read ---- */

static bool ref_supports(llmk_context *ctx, const grouped_problem *p, llmk_reason *why)
{
    (void)ctx, (void)p, (void)why;
    return true;
}

static llmk_status ref_launch(llmk_launch *launch, const grouped_problem *p)
{
    return launch_kind(launch, p, true, "");
}

const grouped_products llmk_grouped_ref = {
    .ref = true,
    .supports = ref_supports,
    .height = portable_height,
    .launch = ref_launch,
};
