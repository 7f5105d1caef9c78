// RMSNorm, the reference: any types, any strides, one work-item a row.
#include "common/rows.clh"
#include "common/types.clh"

#define DOUBLE_ROUNDING 1u
#define WEIGHT_PLUS_ONE 2u

static inline float load_sum(global const void *x, uint x_dtype, ulong xi,
                             global const void *residual, uint residual_dtype, ulong ri)
{
    const float v = load_any(x, x_dtype, xi);
    return residual_dtype ? v + load_any(residual, residual_dtype, ri) : v;
}

kernel void rmsnorm_ref(global const void *x, const rows_t x_rows,
                        global const void *weight, const rows_t weight_rows,
                        global const void *residual, const rows_t residual_rows,
                        global void *sum, const rows_t sum_rows,
                        global void *y, const rows_t y_rows,
                        const uint x_dtype, const uint weight_dtype, const uint residual_dtype,
                        const uint sum_dtype, const uint y_dtype, // DT_NONE: absent
                        const ulong rows, const ulong h, const float eps, const uint flags)
{
    const ulong row = get_global_id(0);
    if (row >= rows)
        return;
    const ulong x0 = row_begin(x_rows, row), w0 = row_begin(weight_rows, 0);
    const ulong r0 = row_begin(residual_rows, row);
    const ulong s0 = row_begin(sum_rows, row), y0 = row_begin(y_rows, row);

    // Compensated (Kahan): the error does not grow with h.
    float squares = 0.0f, lost = 0.0f;
    for (ulong c = 0; c < h; c++) {
        const float s = load_sum(x, x_dtype, x0 + c * x_rows.inner, residual, residual_dtype,
                                 r0 + c * residual_rows.inner);
        const float term = s * s - lost, next = squares + term;
        lost = isinf(next) ? 0.0f : (next - squares) - term;
        squares = next;
    }
    const float scale = rsqrt(squares / (float)h + eps);

    for (ulong c = 0; c < h; c++) {
        const float s = load_sum(x, x_dtype, x0 + c * x_rows.inner, residual, residual_dtype,
                                 r0 + c * residual_rows.inner);
        float v = s * scale;
        if (flags & DOUBLE_ROUNDING)
            v = round_any(y_dtype, v);
        if (weight_dtype) {
            const float w = load_any(weight, weight_dtype, w0 + c * weight_rows.inner);
            v *= flags & WEIGHT_PLUS_ONE ? 1.0f + w : w;
        }
        if (sum_dtype)
            store_any(sum, sum_dtype, s0 + c * sum_rows.inner, s);
        store_any(y, y_dtype, y0 + c * y_rows.inner, v);
    }
}
