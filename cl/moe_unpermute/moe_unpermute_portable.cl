// The combine: rows of x (-DX=f32, f16 or bf16) times their weights, added up in the order of a
// token's experts, eight columns an item. wide: rows of x, the residual and y are on 16-byte
// boundaries. Where K was split, the rows' other shares follow, x_count rows each.
#include "common/chunk.clh"
#include "common/rows.clh"

static inline void put8_any(global void *p, uint type, ulong i, uint n, uint wide, float8 v)
{
    if (type == DT_F32)
        f32_put8((global float *)p, i, n, wide, v);
    else if (type == DT_F16)
        f16_put8((global ushort *)p, i, n, wide, v);
    else
        bf16_put8((global ushort *)p, i, n, wide, v);
}

kernel void moe_unpermute(global const elem(X) *x, const rows_t x_rows, const uint x_count,
                          global const int *inverse, const rows_t inverse_rows,
                          global const void *weights, const rows_t weights_rows,
                          const uint weights_type, // 0: all 1
                          global const void *residual, const rows_t residual_rows,
                          const uint residual_type,           // 0: absent
                          global const float *residual_logit, // NULL: the residual counts whole
                          global void *y, const rows_t y_rows, const uint y_type, const ulong rows,
                          const ulong cols, const uint k, const uint wide,
                          global const int *ways, const uint ways_at) // NULL: x's rows are whole
{
    const ulong c = get_global_id(0) * 8;
    if (c >= cols)
        return;
    const uint n = min(cols - c, (ulong)8), shares = ways ? (uint)ways[ways_at] : 1;
    for (ulong row = get_global_id(1); row < rows; row += get_global_size(1)) {
        float8 sum = 0.0f;
        for (uint j = 0; j < k; j++) {
            const uint from = inverse[row_begin(inverse_rows, row) + j * inverse_rows.inner];
            if (from >= x_count)
                continue;
            const float w = weights_type
                                ? load_any(weights, weights_type,
                                           row_begin(weights_rows, row) + j * weights_rows.inner)
                                : 1.0f;
            float8 v = fetch8(X)(x, row_begin(x_rows, from) + c, n, wide);
            for (uint share = 1; share < shares; share++)
                v += fetch8(X)(x, row_begin(x_rows, from + share * x_count) + c, n, wide);
            sum += w * v;
        }
        if (residual_type) {
            const float8 r =
                fetch8_any(residual, residual_type, row_begin(residual_rows, row) + c, n, wide);
            sum += residual_logit ? r / (1.0f + exp(-residual_logit[row])) : r;
        }
        put8_any(y, y_type, row_begin(y_rows, row) + c, n, wide, sum);
    }
}
