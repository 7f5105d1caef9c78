// Dequantisation, 8 elements an item. Y: y's dtype; Q: i8 or u4. Innermost strides are 1.
#include "common/chunk.clh"
#include "common/quant.clh"
#include "common/rows.clh"
#include "common/types.clh"

kernel void dequantize(global const uchar *q, const rows_t qr, global const float *scale,
                       const rows_t sr, global const uchar *zero, const rows_t zr,
                       global elem(Y) *y, const rows_t yr, const ulong rows, const ulong cols,
                       const ulong group_size, const uint scheme, const uint one_scale,
                       const uint wide)
{
    const ulong row_chunks = (cols + 7) / 8;
    const ulong2 at = divide(get_global_id(0), row_chunks);
    if (at.x >= rows)
        return;
    const ulong col = at.y * 8;
    const uint n = (uint)min(cols - col, (ulong)8);
    const float8 codes = codes_fetch8(Q)(q, row_begin(qr, at.x) + col, n, wide);
    const ulong scales = row_begin(sr, at.x), zeros = row_begin(zr, at.x);
    const float common_zero = scheme == QUANT_INT4_SYMMETRIC ? 8.0f : 0.0f;
    float8 values;
    if (one_scale) { // no chunk reaches into a second group
        const ulong group = divide(col, group_size).x;
        const float z = scheme == QUANT_INT4_ASYMMETRIC ? (float)zero[zeros + group * zr.inner]
                                                        : common_zero;
        values = (codes - z) * scale[scales + group * sr.inner];
    } else {
        float a[8];
        vstore8(codes, 0, a);
        for (uint j = 0; j < 8; j++) {
            const ulong group = divide(min(col + j, cols - 1), group_size).x;
            const float z = scheme == QUANT_INT4_ASYMMETRIC
                                ? (float)zero[zeros + group * zr.inner]
                                : common_zero;
            a[j] = (a[j] - z) * scale[scales + group * sr.inner];
        }
        values = vload8(0, a);
    }
    put8(Y)(y, row_begin(yr, at.x) + col, n, wide, values);
}
