// Rows of x (-DX=f32, f16 or bf16) in the order of the sorted pairs; zeros where there is no pair.
// wide: rows of x and y are on 16-byte boundaries.
#include "common/chunk.clh"
#include "common/rows.clh"

kernel void moe_gather(global const elem(X) *x, const rows_t x_rows, global const int *source,
                       const rows_t source_rows, const uint k, global elem(X) *y,
                       const rows_t y_rows, const ulong rows, const ulong cols, const uint wide)
{
    const ulong c = get_global_id(0) * 8;
    if (c >= cols)
        return;
    const uint n = min(cols - c, (ulong)8);
    for (ulong row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const int pair = source[source_rows.offset + row * source_rows.inner];
        float8 v = 0.0f;
        if (pair >= 0)
            v = fetch8(X)(x, row_begin(x_rows, (uint)pair / k) + c, n, wide);
        put8(X)(y, row_begin(y_rows, row) + c, n, wide, v);
    }
}
