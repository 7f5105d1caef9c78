// Gate and up, as the formula reads: one work-item an output, every type and layout at run time, any
// strides; sums of 32 products are added up, as in linear_ref.cl. And the end of two products that
// other kernels have made.
#include "linear/linear_any.clh"
#include "linear/linear_gated.clh"

static inline float product(const linear_t a, uint layout, ulong x_begin, uint w_row)
{
    float sum = 0.0f;
    for (uint k0 = 0; k0 < a.k; k0 += 32) {
        float part = 0.0f;
        for (uint i = k0; i < min(k0 + 32, a.k); i++)
            part += load_any(a.x, a.x_type, x_begin + column_of(a, i) * a.x_rows.inner) *
                    weight(a, layout, w_row, i);
        sum += part;
    }
    return sum;
}

kernel void gated_linear_ref(LINEAR_PARAMETERS, GATE_PARAMETERS, const uint layout)
{
    const linear_t a = LINEAR_ARGUMENTS;
    const gate_t gate = GATE_ARGUMENTS;
    const uint f = get_global_id(0);
    const ulong row = m_first + get_global_id(1);
    if (f >= outputs)
        return;
    const ulong begin = row_begin(x_rows, row);
    const float g = product(a, layout, begin, f * step);
    const float u = product(up_of(a, gate), layout, begin, up_first + f * step);
    finish_gated(a, gate, row, f, g, u);
}

// gate and up hold the sums with their biases.
kernel void gated_linear_combine(global const float *gate, const rows_t gate_rows,
                                 global const float *up, const rows_t up_rows,
                                 global const void *residual, const rows_t residual_rows,
                                 const uint residual_type, // 0: absent
                                 global void *y, const rows_t y_rows, const uint y_type,
                                 const ulong rows, const ulong cols, const uint activation,
                                 const float limit, const float alpha)
{
    const ulong c = get_global_id(0);
    if (c >= cols)
        return;
    for (ulong row = get_global_id(1); row < rows; row += get_global_size(1)) {
        float v = gated(activation, gate[row_begin(gate_rows, row) + c * gate_rows.inner],
                        up[row_begin(up_rows, row) + c * up_rows.inner], limit, alpha);
        if (residual_type)
            v += load_any(residual, residual_type,
                          row_begin(residual_rows, row) + c * residual_rows.inner);
        store_any(y, y_type, row_begin(y_rows, row) + c * y_rows.inner, v);
    }
}
