// Grouped products, as the formulas read: one work-item an output, every type and layout at run
// time, any strides.
#include "grouped_linear/grouped_common.clh"
#include "linear/linear_any.clh"

// A schedule from the caller's offsets, by one item: whatever they are, groups lie one after the
// other within the rows. The last group has what is left.
kernel void grouped_schedule_ref(global const int *offsets, const rows_t offsets_rows,
                                 const uint experts, const uint rows, const uint height,
                                 global int *schedule)
{
    global int *tiles = schedule + experts + 2;
    int begin = 0, tile = 0;
    schedule[0] = tiles[0] = tiles[experts + 2] = tiles[experts + 3] = 0;
    for (uint g = 0; g <= experts; g++) {
        int end = rows;
        if (g < experts)
            end = clamp(offsets[offsets_rows.offset + (g + 1) * offsets_rows.inner], begin, end);
        tile += (end - begin + (int)height - 1) / (int)height;
        schedule[g + 1] = end;
        tiles[g + 1] = tile;
        begin = end;
    }
}

static inline float product(const linear_t a, uint layout, ulong x_begin, uint w_row)
{
    float sum = 0.0f;
    for (uint k0 = 0; k0 < a.k; k0 += 32) {
        float part = 0.0f;
        for (uint i = k0; i < min(k0 + 32, a.k); i++)
            part += load_any(a.x, a.x_type, x_begin + column_of(a, i) * a.x_rows.inner) *
                    weight(a, layout, w_row, i);
        sum += part;
    }
    return sum;
}

static inline uint group_of(uint row, global const int *schedule, uint groups)
{
    uint g = 0;
    while (schedule && g < groups && (uint)schedule[g + 1] <= row)
        g++;
    return g;
}

kernel void grouped_ref(GROUPED_PARAMETERS, const uint layout)
{
    const uint column = get_global_id(0);
    if (column >= n)
        return;
    for (uint row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const uint e = group_of(row, schedule, schedule_groups);
        if (e < first || e >= last)
            continue;
        float v = 0.0f;
        if (e != empty) {
            const linear_t a = GROUPED_EXPERT(e);
            const ulong x_begin =
                row_begin(x_rows, x_row_of(row, source, source_rows, fan, x_count));
            v = product(a, layout, x_begin, (e - first) * n + column) +
                bias_of(bias, bias_type, bias_rows, e, column);
        }
        store_any(y, y_type, row_begin(y_rows, row) + column * y_rows.inner, v);
    }
}

kernel void grouped_gated_ref(GROUPED_PARAMETERS, GATED_PARAMETERS, const uint layout)
{
    const uint column = get_global_id(0);
    if (column >= outputs)
        return;
    for (uint row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const uint e = group_of(row, schedule, schedule_groups);
        if (e < first || e >= last)
            continue;
        const linear_t a = GROUPED_EXPERT(e);
        linear_t b = a;
        b.data = up_data;
        b.scales = up_scales;
        b.zeros = up_zeros;
        const ulong x_begin = row_begin(x_rows, x_row_of(row, source, source_rows, fan, x_count));
        const uint w_row = (e - first) * n + column * step;
        const float gate = product(a, layout, x_begin, w_row) +
                           bias_of(bias, bias_type, bias_rows, e, column);
        const float up = product(b, layout, x_begin, w_row + up_first) +
                         bias_of(up_bias, up_bias_type, up_bias_rows, e, column);
        store_any(y, y_type, row_begin(y_rows, row) + column * y_rows.inner,
                  gated(activation, gate, up, limit, alpha));
    }
}
