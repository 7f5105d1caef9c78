// Gated activation, the reference: any types, any strides (so any layout), one work-item an
// element.
#include "common/gated.clh"
#include "common/rows.clh"
#include "common/types.clh"

kernel void gated_activation_ref(global const void *gate, const rows_t gate_rows,
                                 global const void *up, const rows_t up_rows,
                                 global const void *gate_bias, const rows_t gate_bias_rows,
                                 global const void *up_bias, const rows_t up_bias_rows,
                                 global void *y, const rows_t y_rows,
                                 const uint gate_dtype, const uint up_dtype,
                                 const uint gate_bias_dtype, const uint up_bias_dtype, // 0: absent
                                 const uint y_dtype, const ulong rows, const ulong cols,
                                 const uint activation, const float limit, const float alpha)
{
    const ulong c = get_global_id(0);
    if (c >= cols)
        return;
    for (ulong row = get_global_id(1); row < rows; row += get_global_size(1)) {
        float g = load_any(gate, gate_dtype, row_begin(gate_rows, row) + c * gate_rows.inner);
        float u = load_any(up, up_dtype, row_begin(up_rows, row) + c * up_rows.inner);
        if (gate_bias_dtype)
            g += load_any(gate_bias, gate_bias_dtype,
                          gate_bias_rows.offset + c * gate_bias_rows.inner);
        if (up_bias_dtype)
            u += load_any(up_bias, up_bias_dtype, up_bias_rows.offset + c * up_bias_rows.inner);
        store_any(y, y_dtype, row_begin(y_rows, row) + c * y_rows.inner,
                  gated(activation, g, u, limit, alpha));
    }
}
