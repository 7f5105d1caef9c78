// The dispatch, as one item does it: a counting sort.
#include "common/types.clh"
#include "moe_permute/moe_dispatch.clh"

#define MAX_EXPERTS 1024

kernel void moe_permute_ref(global const int *ids, const rows_t ids_rows, const uint pairs,
                            const uint k, DISPATCH_PARAMETERS)
{
    int next[MAX_EXPERTS + 1];
    for (uint e = 0; e <= held; e++)
        next[e] = 0;
    for (uint i = 0; i < pairs; i++) {
        const int id = ids[row_begin(ids_rows, i / k) + i % k * ids_rows.inner];
        const int e = expert_of(id, map, map_rows, id_end, held);
        if (e >= 0)
            next[e]++;
    }
    int begin = 0, tile = 0;
    for (uint e = 0; e <= held; e++) {
        const int count = next[e];
        offsets[offsets_rows.offset + e * offsets_rows.inner] = begin;
        if (tiles)
            tiles[tiles_at + e] = tile;
        next[e] = begin;
        begin += count;
        tile += (count + (int)height - 1) / (int)height;
    }
    for (uint i = 0; i < pairs; i++) {
        const int id = ids[row_begin(ids_rows, i / k) + i % k * ids_rows.inner];
        const int e = expert_of(id, map, map_rows, id_end, held);
        put_inverse(inverse, inverse_rows, i, k, e >= 0 ? next[e] : -1);
        if (e >= 0)
            source[source_rows.offset + (uint)next[e]++ * source_rows.inner] = i;
    }
    for (uint row = begin; row < pairs; row++)
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
