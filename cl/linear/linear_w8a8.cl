// W8A8 on any device: a work-item computes a block of outputs as dot products of 16-wide vectors of
// bytes along K. Products of bytes fit 16 bits, and so do two of them added: what compilers make of
// that is as fast as their devices have it. -DW=s8 | s8_nv
#include "linear/linear_nv.clh"
#include "linear/linear_w8a8.clh"

#define ROWS    4 // of x
#define COLUMNS 2
#define codes16(T)  LLMK_PASTE(T, _codes16)
#define scale_of(T) LLMK_PASTE(T, _scale_of)

LINEAR_INLINE char16 s8_codes16(const linear_t a, uint n, uint k)
{
    return *(global const char16 *)(a.data + n * a.pitch + k);
}
LINEAR_INLINE char16 s8_nv_codes16(const linear_t a, uint n, uint k)
{
    return as_char16((uint4)(s8_nv_codes8(a, n, k), s8_nv_codes8(a, n, k + 8)));
}
LINEAR_INLINE float s8_scale_of(const linear_t a, uint n) { return scale_at(a, n, 0).x; }
LINEAR_INLINE float s8_nv_scale_of(const linear_t a, uint n) { return nv_scale_at(a, n, 0).x; }

// 127 * 128 * 2 < 2^15.
LINEAR_INLINE int8 dot16(char16 a, char16 b)
{
    const short16 products = convert_short16(a) * convert_short16(b);
    return convert_int8(products.lo + products.hi);
}

kernel void linear_w8a8(LINEAR_PARAMETERS, W8A8_PARAMETERS)
{
    const linear_t a = LINEAR_ARGUMENTS;
    const uint n0 = (uint)get_global_id(0) * COLUMNS;
    const ulong m0 = m_first + get_global_id(1) * ROWS;
    if (n0 >= n || m0 >= m) // no barriers here
        return;
    // At the edges the last row or column is computed again and not stored.
    global const uchar *x_row[ROWS];
    uint w_row[COLUMNS];
    int8 sum[ROWS][COLUMNS];
#pragma unroll
    for (uint i = 0; i < ROWS; i++)
        x_row[i] = codes + min(m0 + i, m - 1) * code_pitch;
#pragma unroll
    for (uint j = 0; j < COLUMNS; j++)
        w_row[j] = min(n0 + j, n - 1);
#pragma unroll
    for (uint i = 0; i < ROWS; i++)
#pragma unroll
        for (uint j = 0; j < COLUMNS; j++)
            sum[i][j] = 0;
    for (uint at = 0; at < k; at += 16) {
        char16 w[COLUMNS];
#pragma unroll
        for (uint j = 0; j < COLUMNS; j++)
            w[j] = codes16(W)(a, w_row[j], at);
#pragma unroll
        for (uint i = 0; i < ROWS; i++) {
            const char16 v = *(global const char16 *)(x_row[i] + at);
#pragma unroll
            for (uint j = 0; j < COLUMNS; j++)
                sum[i][j] += dot16(v, w[j]);
        }
    }
    int total[ROWS][COLUMNS]; // indexed by variables, which sum must not be to stay in registers
#pragma unroll
    for (uint i = 0; i < ROWS; i++)
#pragma unroll
        for (uint j = 0; j < COLUMNS; j++) {
            const int4 four = sum[i][j].lo + sum[i][j].hi;
            total[i][j] = four.x + four.y + four.z + four.w;
        }
    global const float *x_scale = scales_of_x(codes, code_pitch, m);
#pragma unroll 1
    for (uint i = 0; i < ROWS && m0 + i < m; i++)
#pragma unroll 1
        for (uint j = 0; j < COLUMNS && n0 + j < n; j++) {
            float v = 0.0f;
            if (k > 0)
                v = w8a8_value(total[i][j], x_scale[m0 + i], scale_of(W)(a, n0 + j));
            finish(a, m0 + i, n0 + j, v);
        }
}
