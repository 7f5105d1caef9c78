// The linear layer for many rows of x: a work-group computes a 64 x 64 tile of y.
#include "linear/linear_tile.clh"

kernel __attribute__((reqd_work_group_size(16, 8, 1))) void linear_gemm(LINEAR_PARAMETERS)
{
    local float4 x_tile[DEPTH * PITCH / 4], w_tile[DEPTH * PITCH / 4];
    const linear_t a = LINEAR_ARGUMENTS;
    const uint tx = get_local_id(0), ty = get_local_id(1), item = ty * 16 + tx;
    const uint n0 = (uint)get_group_id(0) * TILE;
    const ulong m0 = m_first + get_group_id(1) * TILE;

    // Beyond the edges the last row is loaded again; its products are not stored.
    const uint line = item % TILE;
    const ulong x_row = row_begin(x_rows, min(m0 + line, m - 1));
    const uint w_row = min(n0 + line, n - 1);

    float4 sum[8];
    tile_product(a, x_row, w_row, x_tile, w_tile, sum);
    float4 out[8]; // indexed by a variable, which sum must not be to stay in registers
#pragma unroll
    for (uint i = 0; i < 8; i++)
        out[i] = sum[i];
#pragma unroll 1
    for (uint i = 0; i < 8; i++)
        finish4(a, m0 + tile_row(i), n0 + tx * 4, out[i]);
}
