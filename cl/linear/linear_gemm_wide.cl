// The linear layer for many rows of x on GPUs, f32: as linear_gemm.cl, whose sums it makes in the same
// order, but a work-group computes 64 x 128 of y and an item 8 x 8. That halves what is read from
// local memory for a product, and takes some 200 registers.
#include "linear/linear_tile.clh"

#define COLUMNS 128
#define W_PITCH (COLUMNS + 4)

kernel __attribute__((reqd_work_group_size(16, 8, 1))) void linear_gemm_wide(LINEAR_PARAMETERS)
{
    local float4 x_tile[DEPTH * PITCH / 4], w_tile[DEPTH * W_PITCH / 4];
    const linear_t a = LINEAR_ARGUMENTS;
    const uint tx = get_local_id(0), ty = get_local_id(1), item = ty * 16 + tx;
    const uint n0 = (uint)get_group_id(0) * COLUMNS;
    const ulong m0 = m_first + get_group_id(1) * TILE;

    // Beyond the edges the last row is loaded again; its products are not stored.
    const uint line = item % TILE, half_k = item / TILE * 16;
    const ulong x_row = row_begin(x_rows, min(m0 + line, m - 1));
    const uint w_row[2] = {min(n0 + line, n - 1), min(n0 + TILE + line, n - 1)};

    float4 sum[8][2];
#pragma unroll
    for (uint i = 0; i < 8; i++)
        sum[i][0] = sum[i][1] = 0.0f;
    for (uint k0 = 0; k0 < k; k0 += DEPTH) {
        const uint at = k0 + half_k;
        const float16 xv = x16(a, x_row, at);
        const float16 w0 = at < k ? weight16(W)(a, w_row[0], at) : (float16)0.0f;
        const float16 w1 = at < k ? weight16(W)(a, w_row[1], at) : (float16)0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        put_column((local float *)x_tile + half_k * PITCH + line, PITCH, xv);
        put_column((local float *)w_tile + half_k * W_PITCH + line, W_PITCH, w0);
        put_column((local float *)w_tile + half_k * W_PITCH + TILE + line, W_PITCH, w1);
        barrier(CLK_LOCAL_MEM_FENCE);
        float4 part[8][2]; // a sum of its own for each tile: docs/numerics-linear.md
#pragma unroll
        for (uint i = 0; i < 8; i++)
            part[i][0] = part[i][1] = 0.0f;
#pragma unroll 4
        for (uint d = 0; d < DEPTH; d++) {
            const float4 lo = x_tile[d * (PITCH / 4) + ty], hi = x_tile[d * (PITCH / 4) + 8 + ty];
#pragma unroll
            for (uint j = 0; j < 2; j++) {
                const float4 w = w_tile[d * (W_PITCH / 4) + j * 16 + tx];
                part[0][j] += lo.x * w;
                part[1][j] += lo.y * w;
                part[2][j] += lo.z * w;
                part[3][j] += lo.w * w;
                part[4][j] += hi.x * w;
                part[5][j] += hi.y * w;
                part[6][j] += hi.z * w;
                part[7][j] += hi.w * w;
            }
        }
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            sum[i][0] += part[i][0];
            sum[i][1] += part[i][1];
        }
    }

    float4 out[16]; // indexed by a variable, which sum must not be to stay in registers
#pragma unroll
    for (uint i = 0; i < 16; i++)
        out[i] = sum[i / 2][i % 2];
#pragma unroll 1
    for (uint i = 0; i < 16; i++)
        finish4(a, m0 + tile_row(i / 2), n0 + i % 2 * TILE + tx * 4, out[i]);
}
