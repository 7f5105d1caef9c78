// Quantisation, plainly: the scales, then the codes. Any dtype of x, any strides.
#include "common/quant.clh"
#include "common/rows.clh"
#include "common/types.clh"

// partial[i] = the range of elements i, i + n, i + 2n ... of n work-items.
kernel void quantize_tensor_range(global const void *x, const rows_t xr, const uint xt,
                                  const ulong rows, const ulong cols, global float2 *partial)
{
    float2 range = (float2)(0.0f);
    for (ulong i = get_global_id(0); i < rows * cols; i += get_global_size(0))
        range = range_widen(range, load_any(x, xt, row_begin(xr, i / cols) + i % cols * xr.inner));
    partial[get_global_id(0)] = range;
}

kernel void quantize_tensor_scale(global const float2 *partial, const uint partials,
                                  global float *scale, const rows_t sr)
{
    float2 range = (float2)(0.0f);
    for (uint i = 0; i < partials; i++)
        range = range_join(range, partial[i]);
    scale[sr.offset] = quant_of_range(QUANT_INT8_TENSOR, range).scale;
}

// One work-item a group.
kernel void quantize_group_scales(global const void *x, const rows_t xr, const uint xt,
                                  global float *scale, const rows_t sr, global uchar *zero,
                                  const rows_t zr, const ulong rows, const ulong cols,
                                  const ulong group_size, const ulong row_groups,
                                  const uint scheme)
{
    const ulong row = get_global_id(0) / row_groups, group = get_global_id(0) % row_groups;
    if (row >= rows)
        return;
    const ulong end = min(cols, (group + 1) * group_size);
    float2 range = (float2)(0.0f);
    for (ulong col = group * group_size; col < end; col++)
        range = range_widen(range, load_any(x, xt, row_begin(xr, row) + col * xr.inner));
    const quant_t t = quant_of_range(scheme, range);
    scale[row_begin(sr, row) + group * sr.inner] = t.scale;
    if (scheme == QUANT_INT4_ASYMMETRIC)
        zero[row_begin(zr, row) + group * zr.inner] = (uchar)t.zero;
}

// One work-item a byte of q: one i8 code, or two of u4.
kernel void quantize_codes(global const void *x, const rows_t xr, const uint xt, global uchar *q,
                           const rows_t qr, global const float *scale, const rows_t sr,
                           global const uchar *zero, const rows_t zr, const ulong rows,
                           const ulong cols, const ulong group_size, const uint scheme)
{
    const uint codes = scheme <= QUANT_INT8_CHANNEL ? 1 : 2;
    const ulong row = get_global_id(0) / (cols / codes);
    const ulong col = get_global_id(0) % (cols / codes) * codes;
    if (row >= rows)
        return;
    const ulong group = col / group_size;
    const quant_t t = quant_of_scale(
        scheme, scale[row_begin(sr, row) + group * sr.inner],
        scheme == QUANT_INT4_ASYMMETRIC ? (float)zero[row_begin(zr, row) + group * zr.inner]
        : scheme == QUANT_INT4_SYMMETRIC ? 8.0f : 0.0f);
    const ulong from = row_begin(xr, row) + col * xr.inner;
    const ulong to = row_begin(qr, row) + col * qr.inner;
    const int code = (int)quant_code(t, load_any(x, xt, from));
    if (codes == 1)
        q[to] = (uchar)code;
    else
        q[to / 2] = (uchar)(code | (int)quant_code(t, load_any(x, xt, from + xr.inner)) << 4);
}
