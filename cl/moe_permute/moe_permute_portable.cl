// The dispatch, a work-group for each expert held. Every one counts all pairs, so that none waits
// for another: counts are integers, whose sum does not depend on the order. Each item takes a stretch
// of the pairs, which makes the sort stable.
#include "common/types.clh"
#include "moe_permute/moe_dispatch.clh"

#define MAX_EXPERTS 1024
#define ITEMS       256
#define SPAN        16 // items that are summed up at once
#define BATCH       8  // pairs whose ids are asked for at once
#define MOST_COPIES 32 // of a counter: items that have their own do not wait for each other
#define KEPT        64 // pairs of a stretch of which an item remembers which are its expert's

// The sums of v over the items before this one and, in *all, over all of them.
static inline uint4 sum_before(uint4 v, local uint4 *scratch, uint4 *all)
{
    const uint item = get_local_id(0), span = item / SPAN;
    scratch[item] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint4 before = 0, sum = 0;
    if (item % SPAN == 0) {
        for (uint i = 0; i < SPAN; i++)
            sum += scratch[item + i];
        scratch[ITEMS + span] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = 0;
    for (uint i = 0; i < ITEMS / SPAN; i++) {
        before += i < span ? scratch[ITEMS + i] : (uint4)(0);
        sum += scratch[ITEMS + i];
    }
    for (uint i = span * SPAN; i < item; i++)
        before += scratch[i];
    *all = sum;
    return before;
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
moe_permute(global const int *ids, const rows_t ids_rows, const uint pairs, const uint k,
            DISPATCH_PARAMETERS)
{
    local uint count[MAX_EXPERTS];
    local uint4 scratch[ITEMS + ITEMS / SPAN];
    const uint item = get_local_id(0), mine = (uint)get_group_id(0);
    const uint copies = min(MAX_EXPERTS / held, (uint)MOST_COPIES), copy = item % copies;
    const bool is_flat = ids_rows.n1 * ids_rows.n2 <= 1 && ids_rows.s0 == k * ids_rows.inner;
#define ID(i)                                                                                      \
    ids[is_flat ? ids_rows.offset + (i) * ids_rows.inner                                           \
                : row_begin(ids_rows, (i) / k) + (i) % k * ids_rows.inner]
#define EXPERT(i) expert_of(ID(i), map, map_rows, id_end, held)
    for (uint e = item; e < held * copies; e += ITEMS)
        count[e] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);

    const uint stretch = (pairs + ITEMS - 1) / ITEMS;
    const uint first = min(item * stretch, pairs), last = min(first + stretch, pairs);
    uint found = 0;
    ulong kept = 0; // bit i: pair first + i is this expert's
    for (uint i0 = first; i0 < last; i0 += BATCH) {
        int expert[BATCH];
#pragma unroll
        for (uint i = 0; i < BATCH; i++)
            expert[i] = ID(min(i0 + i, last - 1));
#pragma unroll
        for (uint i = 0; i < BATCH; i++)
            expert[i] = expert_of(expert[i], map, map_rows, id_end, held);
#pragma unroll
        for (uint i = 0; i < BATCH; i++) {
            if (i0 + i >= last)
                continue;
            if (expert[i] >= 0)
                atomic_inc(&count[expert[i] * copies + copy]);
            else if (mine == 0)
                put_inverse(inverse, inverse_rows, i0 + i, k, -1);
            if (expert[i] == (int)mine) {
                found++;
                kept |= (ulong)1 << (i0 + i - first) % KEPT;
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint rows = 0, row_tiles = 0, own = 0; // of the experts before, of this one
    for (uint e = item; e <= mine; e += ITEMS) {
        uint c = 0;
        for (uint i = 0; i < copies; i++)
            c += count[e * copies + i];
        if (e == mine) {
            own = c;
        } else {
            rows += c;
            row_tiles += (c + height - 1) / height;
        }
    }
    uint4 all;
    const uint before = sum_before((uint4)(rows, row_tiles, own, found), scratch, &all).w;
    const uint begin = all.x, tile = all.y, end = begin + all.z;
    if (item == 0) {
        offsets[offsets_rows.offset + mine * offsets_rows.inner] = begin;
        if (tiles)
            tiles[tiles_at + mine] = tile;
    }
    if (mine + 1 == held) { // the end, and what has no pair
        if (item == 0)
            offsets[offsets_rows.offset + held * offsets_rows.inner] = end;
        if (tiles && item < 3)
            tiles[tiles_at + held + item] = item == 0 ? tile + (all.z + height - 1) / height : 0;
        for (uint row = end + item; row < pairs; row += ITEMS)
            source[source_rows.offset + row * source_rows.inner] = -1;
    }

    uint row = begin + before;
    if (stretch > KEPT)
        kept = found ? ~(ulong)0 : 0;
    for (uint i = first; i < last && kept; i++) {
        const bool is_mine =
            stretch > KEPT ? EXPERT(i) == (int)mine : (kept >> (i - first) & 1) != 0;
        if (is_mine) {
            source[source_rows.offset + row * source_rows.inner] = i;
            put_inverse(inverse, inverse_rows, i, k, row++);
        }
    }
}
