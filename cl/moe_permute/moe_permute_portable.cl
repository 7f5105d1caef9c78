// The dispatch, a work-group for each expert held. Every one counts all pairs, so that none waits
// for another: counts are integers, whose sum does not depend on the order. Then each item takes a
// stretch of the pairs, which makes the sort stable.
#include "common/types.clh"
#include "moe_permute/moe_dispatch.clh"

#define MAX_EXPERTS 1024
#define ITEMS       128

// The sum of v over the items before this one and, in *all, over all of them.
static inline uint sum_before(uint v, local uint *scratch, uint *all)
{
    const uint item = get_local_id(0);
    scratch[item] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint before = 0, sum = 0;
    for (uint i = 0; i < ITEMS; i++) {
        before += i < item ? scratch[i] : 0;
        sum += scratch[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    *all = sum;
    return before;
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
moe_permute(global const int *ids, const rows_t ids_rows, const uint pairs, const uint k,
            DISPATCH_PARAMETERS)
{
    local uint count[MAX_EXPERTS], scratch[ITEMS];
    const uint item = get_local_id(0), mine = (uint)get_group_id(0);
#define EXPERT(i)                                                                                  \
    expert_of(ids[row_begin(ids_rows, (i) / k) + (i) % k * ids_rows.inner], map, map_rows, id_end, \
              held)
    for (uint e = item; e < held; e += ITEMS)
        count[e] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = item; i < pairs; i += ITEMS) {
        const int e = EXPERT(i);
        if (e >= 0)
            atomic_inc(&count[e]);
        else if (mine == 0)
            put_inverse(inverse, inverse_rows, i, k, -1);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint rows = 0, row_tiles = 0, begin, tile;
    for (uint e = item; e < mine; e += ITEMS) {
        rows += count[e];
        row_tiles += (count[e] + height - 1) / height;
    }
    sum_before(rows, scratch, &begin);
    sum_before(row_tiles, scratch, &tile);
    if (item == 0) {
        offsets[offsets_rows.offset + mine * offsets_rows.inner] = begin;
        if (tiles)
            tiles[tiles_at + mine] = tile;
    }
    if (mine + 1 == held) { // the end, and what has no pair
        const uint end = begin + count[mine];
        if (item == 0) {
            offsets[offsets_rows.offset + held * offsets_rows.inner] = end;
            if (tiles)
                tiles[tiles_at + held] = tile + (count[mine] + height - 1) / height;
        }
        for (uint row = end + item; row < pairs; row += ITEMS)
            source[source_rows.offset + row * source_rows.inner] = -1;
    }

    const uint stretch = (pairs + ITEMS - 1) / ITEMS;
    const uint first = min(item * stretch, pairs), last = min(first + stretch, pairs);
    uint found = 0, all;
    for (uint i = first; i < last; i++)
        found += EXPERT(i) == (int)mine;
    uint row = begin + sum_before(found, scratch, &all);
    for (uint i = first; i < last && found; i++)
        if (EXPERT(i) == (int)mine) {
            source[source_rows.offset + row * source_rows.inner] = i;
            put_inverse(inverse, inverse_rows, i, k, row++);
        }
}
