// The linear layer, as the formula reads: one work-item an output, every type and layout at run
// time, any strides. Sums of 32 products are added up, which keeps the error as far below that of
// one long sum as the other variants' is.
#include "linear/linear_any.clh"

kernel void linear_ref(LINEAR_PARAMETERS, const uint layout)
{
    const linear_t a = LINEAR_ARGUMENTS;
    const uint column = get_global_id(0);
    const ulong row = m_first + get_global_id(1);
    if (column >= n)
        return;
    const ulong begin = row_begin(x_rows, row);
    float sum = 0.0f;
    for (uint k0 = 0; k0 < k; k0 += 32) {
        float part = 0.0f;
        for (uint i = k0; i < min(k0 + 32, k); i++)
            part += load_any(x, x_type, begin + column_of(a, i) * x_rows.inner) *
                    weight(a, layout, column, i);
        sum += part;
    }
    finish(a, row, column, sum);
}
