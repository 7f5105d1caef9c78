// Dequantisation, plainly: one element an item. Any dtype of y, any strides.
#include "common/quant.clh"
#include "common/rows.clh"
#include "common/types.clh"

kernel void dequantize(global const uchar *q, const rows_t qr, global const float *scale,
                       const rows_t sr, global const uchar *zero, const rows_t zr, global void *y,
                       const rows_t yr, const uint yt, const ulong rows, const ulong cols,
                       const ulong group_size, const uint scheme)
{
    const ulong row = get_global_id(0) / cols, col = get_global_id(0) % cols;
    if (row >= rows)
        return;
    const ulong group = col / group_size, at = row_begin(qr, row) + col * qr.inner;
    int code;
    if (scheme <= QUANT_INT8_CHANNEL)
        code = (char)q[at];
    else
        code = (q[at / 2] >> at % 2 * 4 & 15) -
               (scheme == QUANT_INT4_ASYMMETRIC ? zero[row_begin(zr, row) + group * zr.inner] : 8);
    store_any(y, yt, row_begin(yr, row) + col * yr.inner,
              (float)code * scale[row_begin(sr, row) + group * sr.inner]);
}
