// The dispatch, as one item does it: the pairs of every expert in turn.
#include "common/types.clh"
#include "moe_permute/moe_dispatch.clh"

kernel void moe_permute_ref(global const int *ids, const rows_t ids_rows, const uint pairs,
                            const uint k, DISPATCH_PARAMETERS)
{
    int row = 0, tile = 0;
    for (uint i = 0; i < pairs; i++)
        put_inverse(inverse, inverse_rows, i, k, -1);
    for (uint e = 0; e < held; e++) {
        const int begin = row;
        offsets[offsets_rows.offset + e * offsets_rows.inner] = begin;
        if (tiles)
            tiles[tiles_at + e] = tile;
        for (uint i = 0; i < pairs; i++) {
            const int id = ids[row_begin(ids_rows, i / k) + i % k * ids_rows.inner];
            if (expert_of(id, map, map_rows, id_end, held) == (int)e) {
                source[source_rows.offset + row * source_rows.inner] = i;
                put_inverse(inverse, inverse_rows, i, k, row++);
            }
        }
        tile += (row - begin + (int)height - 1) / (int)height;
    }
    offsets[offsets_rows.offset + held * offsets_rows.inner] = row;
    for (uint i = 0; tiles && i <= zeros; i++)
        tiles[tiles_at + held + i] = i == 0 ? tile : 0;
    for (; row < (int)pairs; row++)
        source[source_rows.offset + row * source_rows.inner] = -1;
}

// Rows of x in the order of the pairs; zeros where there is no pair.
kernel void moe_gather_ref(global const void *x, const rows_t x_rows, const uint type,
                           global const int *source, const rows_t source_rows, const uint k,
                           global void *y, const rows_t y_rows, const ulong rows, const ulong cols)
{
    const ulong c = get_global_id(0);
    if (c >= cols)
        return;
    for (ulong row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const int pair = source[source_rows.offset + row * source_rows.inner];
        const float v =
            pair < 0 ? 0.0f
                     : load_any(x, type, row_begin(x_rows, (uint)pair / k) + c * x_rows.inner);
        store_any(y, type, row_begin(y_rows, row) + c * y_rows.inner, v);
    }
}
