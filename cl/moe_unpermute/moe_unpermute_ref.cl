// The combine, one work-item an element.
#include "common/rows.clh"
#include "common/types.clh"

kernel void moe_unpermute_ref(global const void *x, const rows_t x_rows, const uint x_type,
                              const uint x_count, global const int *inverse,
                              const rows_t inverse_rows, global const void *weights,
                              const rows_t weights_rows, const uint weights_type, // 0: all 1
                              global const void *residual, const rows_t residual_rows,
                              const uint residual_type,                         // 0: absent
                              global const float *residual_logit, // NULL: the residual counts whole
                              global void *y, const rows_t y_rows, const uint y_type,
                              const ulong rows, const ulong cols, const uint k)
{
    const ulong c = get_global_id(0);
    if (c >= cols)
        return;
    for (ulong row = get_global_id(1); row < rows; row += get_global_size(1)) {
        float sum = 0.0f;
        for (uint j = 0; j < k; j++) {
            const uint from = inverse[row_begin(inverse_rows, row) + j * inverse_rows.inner];
            if (from >= x_count)
                continue;
            const float w = weights_type
                                ? load_any(weights, weights_type,
                                           row_begin(weights_rows, row) + j * weights_rows.inner)
                                : 1.0f;
            sum += w * load_any(x, x_type, row_begin(x_rows, from) + c * x_rows.inner);
        }
        if (residual_type) {
            const float r = load_any(residual, residual_type,
                                     row_begin(residual_rows, row) + c * residual_rows.inner);
            sum += residual_logit ? r / (1.0f + exp(-residual_logit[row])) : r;
        }
        store_any(y, y_type, row_begin(y_rows, row) + c * y_rows.inner, sum);
    }
}
