/* elementwise.c - grids and requirements that the row-wise and elementwise operators share. */
#include "ops/elementwise.h"

#define GPU_ITEMS 128
/* PoCL compiles a kernel anew for every local size, so a CPU gets one. */
#define CPU_ITEMS 64
/* The second dimension of a grid; NVIDIA's limit is 65535. */
#define MAX_ROW_GROUPS 32768

static size_t ceil_div(uint64_t a, uint64_t b)
{
    return (size_t)(a / b + (a % b != 0));
}

uint32_t llmk_tile_items(const llmk_launch *launch)
{
    return launch->config ? launch->config->value[0] : 0;
}

llmk_grid llmk_tile_grid(const llmk_caps *caps, uint64_t rows, uint64_t cols, uint32_t vecs,
                         uint32_t wanted)
{
    size_t items = wanted ? wanted : CPU_ITEMS, rows_a_group = 1;
    if (!llmk_is_cpu(caps)) {
        const size_t usual = wanted ? wanted : GPU_ITEMS;
        const size_t most = caps->max_work_group < usual ? caps->max_work_group : usual;
        /* As few tiles as there must be, of even width; short rows share a work-group. */
        const size_t tiles = ceil_div(cols, (uint64_t)8 * vecs * most);
        const size_t needed = ceil_div(ceil_div(cols, tiles), (uint64_t)8 * vecs);
        for (items = 1; items < needed && items < 32; items *= 2)
            ;
        if (items < needed)
            items = 32 * ceil_div(needed, 32);
        if (items > most)
            items = most;
        rows_a_group = most / items;
        if (rows > 0 && rows_a_group > rows)
            rows_a_group = (size_t)rows;
    }
    const size_t row_groups = ceil_div(rows, rows_a_group);
    return (llmk_grid){{ceil_div(cols, (uint64_t)8 * vecs * items),
                        row_groups < MAX_ROW_GROUPS ? row_groups : MAX_ROW_GROUPS, 1},
                       {items, rows_a_group, 1}};
}

llmk_grid llmk_element_grid(uint64_t rows, uint64_t cols)
{
    return (llmk_grid){
        {ceil_div(cols, CPU_ITEMS), rows < MAX_ROW_GROUPS ? (size_t)rows : MAX_ROW_GROUPS, 1},
        {CPU_ITEMS, 1, 1}};
}

bool llmk_unit_rows(const llmk_view *const *views, const char *const *names, size_t count,
                    llmk_reason *why)
{
    for (size_t i = 0; i < count; i++)
        if (views[i]->present && !views[i]->unit)
            return llmk_no(why, "%s has an innermost stride other than 1", names[i]);
    return true;
}

bool llmk_aligned_rows(const llmk_view *const *views, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (views[i]->present && views[i]->align < 16)
            return false;
    return true;
}

bool llmk_nv_supported(llmk_context *ctx, llmk_reason *why)
{
    if (ctx->caps.vendor != LLMK_VENDOR_NVIDIA)
        return llmk_no(why, "not an NVIDIA device");
    if (ctx->caps.compute_capability < 80)
        return llmk_no(why, "compute capability %u.%u; 8.0 is needed",
                       ctx->caps.compute_capability / 10, ctx->caps.compute_capability % 10);
    if (!llmk_probe_inline_ptx(ctx))
        return llmk_no(why, "the driver does not take inline PTX");
    return true;
}
