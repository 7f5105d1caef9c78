// The linear layer for many rows of x: a work-group computes a 64 x 64 tile of y from tiles of x
// and W that it brings into local memory as floats, 32 deep; an item computes 8 x 4 outputs of it.
#include "linear/linear_typed.clh"

#define TILE  64
#define DEPTH 32
#define PITCH (TILE + 4) // rows of the local tiles stay on 16-byte boundaries

// Stores 16 elements along k as a column of a local tile [DEPTH][PITCH].
static inline void put_column(local float *tile, float16 v)
{
    tile[0 * PITCH] = v.s0;
    tile[1 * PITCH] = v.s1;
    tile[2 * PITCH] = v.s2;
    tile[3 * PITCH] = v.s3;
    tile[4 * PITCH] = v.s4;
    tile[5 * PITCH] = v.s5;
    tile[6 * PITCH] = v.s6;
    tile[7 * PITCH] = v.s7;
    tile[8 * PITCH] = v.s8;
    tile[9 * PITCH] = v.s9;
    tile[10 * PITCH] = v.sa;
    tile[11 * PITCH] = v.sb;
    tile[12 * PITCH] = v.sc;
    tile[13 * PITCH] = v.sd;
    tile[14 * PITCH] = v.se;
    tile[15 * PITCH] = v.sf;
}

kernel __attribute__((reqd_work_group_size(16, 8, 1))) void linear_gemm(LINEAR_PARAMETERS)
{
    local float4 x_tile[DEPTH * PITCH / 4], w_tile[DEPTH * PITCH / 4];
    const linear_t a = LINEAR_ARGUMENTS;
    const uint tx = get_local_id(0), ty = get_local_id(1), item = ty * 16 + tx;
    const uint n0 = (uint)get_group_id(0) * TILE;
    const ulong m0 = m_first + get_group_id(1) * TILE;

    // What this item loads: half the depth of one row of x and one of W. Beyond the edges the last
    // row is loaded again; its products are not stored.
    const uint line = item % TILE, half_k = item / TILE * 16;
    const ulong x_row = row_begin(x_rows, min(m0 + line, m - 1));
    const uint w_row = min(n0 + line, n - 1);

    float4 sum[8];
#pragma unroll
    for (uint i = 0; i < 8; i++)
        sum[i] = 0.0f;
    for (uint k0 = 0; k0 < k; k0 += DEPTH) {
        const uint at = k0 + half_k;
        const float16 xv = x16(a, x_row, at);
        const float16 wv = at < k ? weight16(W)(a, w_row, at) : (float16)0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        put_column((local float *)x_tile + half_k * PITCH + line, xv);
        put_column((local float *)w_tile + half_k * PITCH + line, wv);
        barrier(CLK_LOCAL_MEM_FENCE);
        float4 part[8]; // a sum of its own for each tile: docs/numerics-linear.md
#pragma unroll
        for (uint i = 0; i < 8; i++)
            part[i] = 0.0f;
        for (uint d = 0; d < DEPTH; d++) {
            const float4 lo = x_tile[d * (PITCH / 4) + ty], hi = x_tile[d * (PITCH / 4) + 8 + ty];
            const float4 w = w_tile[d * (PITCH / 4) + tx];
            part[0] += lo.x * w;
            part[1] += lo.y * w;
            part[2] += lo.z * w;
            part[3] += lo.w * w;
            part[4] += hi.x * w;
            part[5] += hi.y * w;
            part[6] += hi.z * w;
            part[7] += hi.w * w;
        }
#pragma unroll
        for (uint i = 0; i < 8; i++)
            sum[i] += part[i];
    }
    float4 out[8]; // indexed by a variable, which sum must not be to stay in registers
#pragma unroll
    for (uint i = 0; i < 8; i++)
        out[i] = sum[i];
#pragma unroll 1
    for (uint i = 0; i < 8; i++) {
        const ulong row = m0 + (i < 4 ? 0 : 32) + ty * 4 + i % 4;
        const uint column = n0 + tx * 4;
        if (row < m) {
            if (column < n)
                finish(a, row, column, out[i].x);
            if (column + 1 < n)
                finish(a, row, column + 1, out[i].y);
            if (column + 2 < n)
                finish(a, row, column + 2, out[i].z);
            if (column + 3 < n)
                finish(a, row, column + 3, out[i].w);
        }
    }
}
