// Gate and up on any device: a work-group computes 64 rows by 32 outputs of y. A gate and an up
// column lie beside each other in its tile of products, so that both are in the same item's
// registers.
#include "linear/linear_tile.clh"
#include "linear/linear_gated.clh"

kernel __attribute__((reqd_work_group_size(16, 8, 1))) RESIDENT(3) void
gated_linear_tile(LINEAR_PARAMETERS, GATE_PARAMETERS)
{
    local float4 x_tile[DEPTH * PITCH / 4], w_tile[DEPTH * PITCH / 4];
    const linear_t a = LINEAR_ARGUMENTS;
    const gate_t gate = GATE_ARGUMENTS;
    const uint tx = get_local_id(0), line = (get_local_id(1) * 16 + tx) % TILE;
    const uint f0 = (uint)get_group_id(0) * (TILE / 2);
    const ulong m0 = m_first + get_group_id(1) * TILE;

    linear_t w = a;
    uint w_row = min(f0 + line / 2, outputs - 1) * step;
    if (line % 2) { // an item loads rows of gate, or of up
        w = up_of(a, gate);
        w_row += up_first;
    }
    float4 sum[8];
    tile_product(w, row_begin(x_rows, min(m0 + line, m - 1)), w_row, x_tile, w_tile, sum);
    float out[8][4]; // indexed by variables, which sum must not be to stay in registers
#pragma unroll
    for (uint i = 0; i < 8; i++)
        vstore4(sum[i], 0, out[i]);
#pragma unroll 1
    for (uint i = 0; i < 8; i++)
#pragma unroll 1
        for (uint j = 0; j < 2; j++) {
            const ulong row = m0 + tile_row(i);
            const uint f = f0 + tx * 2 + j;
            if (row < m && f < outputs)
                finish_gated(a, gate, row, f, out[i][2 * j], out[i][2 * j + 1]);
        }
}
