// Addition, the reference: any types, any strides, one work-item an element.
#include "common/rows.clh"
#include "common/types.clh"

kernel void add_ref(global const void *a, const rows_t a_rows, global const void *b,
                    const rows_t b_rows, global void *y, const rows_t y_rows, const uint a_dtype,
                    const uint b_dtype, const uint y_dtype, const ulong rows, const ulong cols)
{
    const ulong c = get_global_id(0);
    if (c >= cols)
        return;
    for (ulong row = get_global_id(1); row < rows; row += get_global_size(1))
        store_any(y, y_dtype, row_begin(y_rows, row) + c * y_rows.inner,
                  load_any(a, a_dtype, row_begin(a_rows, row) + c * a_rows.inner) +
                      load_any(b, b_dtype, row_begin(b_rows, row) + c * b_rows.inner));
}
