// Grouped products for groups of many rows: a work-group computes a 64 x 64 tile of one group's
// outputs. Of gated pairs it is 64 rows by 32 outputs, a gate and an up column beside each other,
// so that both are in the same item's registers. No early return of a whole work-group: PoCL 3 then
// forgets conditions after barriers.
#include "grouped_linear/grouped_common.clh"
#include "linear/linear_tile.clh"

kernel __attribute__((reqd_work_group_size(16, 8, 1))) void grouped_tile(GROUPED_PARAMETERS)
{
    local float4 x_tile[DEPTH * PITCH / 4], w_tile[DEPTH * PITCH / 4];
    const tile_t tile =
        tile_at((uint)get_group_id(0), schedule, schedule_groups, first, last, rows, TILE);
    const uint tx = get_local_id(0), line = (get_local_id(1) * 16 + tx) % TILE;
    const uint n0 = (uint)get_group_id(1) * TILE;
    float4 sum[8];
#pragma unroll
    for (uint i = 0; i < 8; i++)
        sum[i] = 0.0f;
    if (tile.rows > 0 && tile.group != empty) {
        const linear_t a = GROUPED_EXPERT(tile.group);
        const uint row = tile.begin + min(line, tile.rows - 1);
        tile_product(a, row_begin(x_rows, x_row_of(row, source, source_rows, fan, x_count)),
                     (tile.group - first) * n + min(n0 + line, n - 1), x_tile, w_tile, sum);
    }
    float out[8][4]; // indexed by variables, which sum must not be to stay in registers
#pragma unroll
    for (uint i = 0; i < 8; i++)
        vstore4(sum[i], 0, out[i]);
#pragma unroll 1
    for (uint i = 0; i < 8; i++)
#pragma unroll 1
        for (uint j = 0; j < 4; j++) {
            const uint column = n0 + tx * 4 + j;
            if (tile_row(i) >= tile.rows || column >= n)
                continue;
            const float b = tile.group == empty
                                ? 0.0f
                                : bias_of(bias, bias_type, bias_rows, tile.group, column);
            store_any(y, y_type,
                      row_begin(y_rows, tile.begin + tile_row(i)) + column * y_rows.inner,
                      out[i][j] + b);
        }
}

kernel __attribute__((reqd_work_group_size(16, 8, 1))) RESIDENT(3) void
grouped_tile_gated(GROUPED_PARAMETERS, GATED_PARAMETERS)
{
    local float4 x_tile[DEPTH * PITCH / 4], w_tile[DEPTH * PITCH / 4];
    const tile_t tile =
        tile_at((uint)get_group_id(0), schedule, schedule_groups, first, last, rows, TILE);
    const uint tx = get_local_id(0), line = (get_local_id(1) * 16 + tx) % TILE;
    const uint f0 = (uint)get_group_id(1) * (TILE / 2);
    float4 sum[8];
#pragma unroll
    for (uint i = 0; i < 8; i++)
        sum[i] = 0.0f;
    if (tile.rows > 0) {
        linear_t a = GROUPED_EXPERT(tile.group);
        uint w_row = (tile.group - first) * n + min(f0 + line / 2, outputs - 1) * step;
        if (line % 2) { // an item loads rows of gate, or of up
            a.data = up_data;
            a.scales = up_scales;
            a.zeros = up_zeros;
            w_row += up_first;
        }
        const uint row = tile.begin + min(line, tile.rows - 1);
        tile_product(a, row_begin(x_rows, x_row_of(row, source, source_rows, fan, x_count)), w_row,
                     x_tile, w_tile, sum);
    }
    float out[8][4];
#pragma unroll
    for (uint i = 0; i < 8; i++)
        vstore4(sum[i], 0, out[i]);
#pragma unroll 1
    for (uint i = 0; i < 8; i++)
#pragma unroll 1
        for (uint j = 0; j < 2; j++) {
            const uint f = f0 + tx * 2 + j;
            if (tile_row(i) >= tile.rows || f >= outputs)
                continue;
            const float gate =
                out[i][2 * j] + bias_of(bias, bias_type, bias_rows, tile.group, f);
            const float up = out[i][2 * j + 1] +
                             bias_of(up_bias, up_bias_type, up_bias_rows, tile.group, f);
            store_any(y, y_type, row_begin(y_rows, tile.begin + tile_row(i)) + f * y_rows.inner,
                      gated(activation, gate, up, limit, alpha));
        }
}
