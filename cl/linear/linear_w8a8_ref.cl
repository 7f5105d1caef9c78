// W8A8 as the formula reads: one work-item an output, which quantises its row of x anew.
#include "common/quant.clh"
#include "linear/linear_nv.clh"
#include "linear/linear_w8a8.clh"

kernel void linear_w8a8_ref(LINEAR_PARAMETERS, const uint nv)
{
    const linear_t a = LINEAR_ARGUMENTS;
    const uint column = get_global_id(0);
    const ulong row = m_first + get_global_id(1), begin = row_begin(x_rows, row);
    if (column >= n)
        return;
    float2 range = (float2)(0.0f);
    for (uint i = 0; i < k; i++)
        range = range_widen(range, load_any(x, x_type, begin + i * x_rows.inner));
    const quant_t t = quant_of_range(QUANT_INT8_CHANNEL, range);
    int sum = 0;
    for (uint i = 0; i < k; i++) {
        const int code = (int)quant_code(t, load_any(x, x_type, begin + i * x_rows.inner));
        int w;
        if (nv) {
            const uint2 eight = s8_nv_codes8(a, column, i & ~7u);
            w = (char)((i & 4 ? eight.y : eight.x) >> i % 4 * 8);
        } else {
            w = ((global const char *)(data + column * pitch))[i];
        }
        sum += code * w;
    }
    float v = 0.0f;
    if (k > 0)
        v = w8a8_value(sum, t.scale, nv ? nv_scale_at(a, column, 0).x : scale_at(a, column, 0).x);
    finish(a, row, column, v);
}
