// The dispatch, a work-group for each expert held. Every one counts all pairs, so that none waits
// for another: counts are integers, whose sum does not depend on the order. Each item has a stretch of
// the pairs, which makes the sort stable: 32 of them, of which a bit each says whether they are its
// expert's, or if there are more than BLOCK pairs, longer ones that are read twice.
#include "common/types.clh"
#include "moe_permute/moe_dispatch.clh"

#define MAX_EXPERTS 1024
#define ITEMS       256
#define SPAN        16 // items that are summed up at once
#define BATCH       8  // pairs whose ids are asked for at once
#define MOST_COPIES 32 // of a counter: items that have their own do not wait for each other
#define BLOCK       (ITEMS * 32)

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

// What is known of the pairs.
typedef struct {
    global const int *ids;
    rows_t rows;
    bool is_flat; // ids lie one behind the other
    uint pairs, k;
    global const int *map;
    rows_t map_rows;
    uint id_end, held;
} pairs_t;

static inline int id_at(const pairs_t p, uint pair)
{
    return p.ids[p.is_flat ? p.rows.offset + pair * p.rows.inner
                           : row_begin(p.rows, pair / p.k) + pair % p.k * p.rows.inner];
}

// What a work-group counts: pairs of each expert, `copies` counters each; whether some pair has none;
// which pairs are its own expert's.
typedef struct {
    local uint *count, *lost, *bits;
    uint copies;
    int mine;
} counts_t;

static inline int count_one(const pairs_t p, const counts_t c, int id)
{
    const int expert = expert_of(id, p.map, p.map_rows, p.id_end, p.held);
    if (expert >= 0)
        atomic_inc(&c.count[expert * c.copies + get_local_id(0) % c.copies]);
    else
        atomic_or(c.lost, 1u);
    return expert == c.mine;
}

// Up to BLOCK pairs, of which items take turns.
static inline void count_few(const pairs_t p, const counts_t c)
{
    const uint item = get_local_id(0);
    for (uint i0 = item; i0 < p.pairs; i0 += BATCH * ITEMS) {
        int id[BATCH];
#pragma unroll
        for (uint i = 0; i < BATCH; i++)
            id[i] = p.ids[p.rows.offset + min(i0 + i * ITEMS, p.pairs - 1) * p.rows.inner];
#pragma unroll
        for (uint i = 0; i < BATCH; i++) {
            const uint at = i0 + i * ITEMS;
            if (at < p.pairs && count_one(p, c, id[i]))
                atomic_or(&c.bits[at / 32], 1u << at % 32);
        }
    }
}

// Those of an item's stretch; how many are its expert's.
static inline uint count_stretch(const pairs_t p, const counts_t c, uint first, uint last)
{
    uint found = 0;
    for (uint i = first; i < last; i++)
        found += count_one(p, c, id_at(p, i));
    return found;
}

#define PUT_PAIR(to, pair)                                                                         \
    do {                                                                                           \
        const uint row_ = (to), pair_ = (pair);                                                    \
        source[source_rows.offset + row_ * source_rows.inner] = (int)pair_;                        \
        put_inverse(inverse, inverse_rows, pair_, k, (int)row_);                                   \
    } while (0)

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
moe_permute(global const int *ids, const rows_t ids_rows, const uint pairs, const uint k,
            DISPATCH_PARAMETERS)
{
    local uint count[MAX_EXPERTS], bits[ITEMS], lost[1];
    local uint4 scratch[ITEMS + ITEMS / SPAN];
    const uint item = get_local_id(0), mine = (uint)get_group_id(0);
    const bool is_flat = ids_rows.n1 * ids_rows.n2 <= 1 && ids_rows.s0 == k * ids_rows.inner;
    const bool is_few = is_flat && pairs <= BLOCK;
    const pairs_t p = {ids, ids_rows, is_flat, pairs, k, map, map_rows, id_end, held};
    const counts_t c = {count, lost, bits, min(MAX_EXPERTS / held, (uint)MOST_COPIES), (int)mine};
    for (uint e = item; e < held * c.copies; e += ITEMS)
        count[e] = 0;
    bits[item] = 0;
    if (item == 0)
        *lost = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint stretch = is_few ? 32 : (pairs + ITEMS - 1) / ITEMS;
    const uint first = min(item * stretch, pairs), last = min(first + stretch, pairs);
    uint found = 0;
    if (is_few)
        count_few(p, c);
    else
        found = count_stretch(p, c, first, last);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint word = bits[item];
    if (is_few)
        found = popcount(word);

    uint rows = 0, row_tiles = 0, own = 0; // of the experts before, of this one
    for (uint e = item; e <= mine; e += ITEMS) {
        uint n = 0;
        for (uint i = 0; i < c.copies; i++)
            n += count[e * c.copies + i];
        if (e == mine) {
            own = n;
        } else {
            rows += n;
            row_tiles += (n + height - 1) / height;
        }
    }
    uint4 all;
    const uint before = sum_before((uint4)(rows, row_tiles, own, found), scratch, &all).w;
    const uint begin = all.x, tile = all.y, end = begin + all.z;
    uint row = begin + before;
    for (; word; word &= word - 1, row++)
        PUT_PAIR(row, first + popcount((word & -word) - 1));
    for (uint i = first; i < last && found && !is_few; i++)
        if (expert_of(id_at(p, i), map, map_rows, id_end, held) == (int)mine)
            PUT_PAIR(row++, i);
    if (item == 0) {
        offsets[offsets_rows.offset + mine * offsets_rows.inner] = (int)begin;
        if (tiles)
            tiles[tiles_at + mine] = (int)tile;
    }
    if (mine == 0 && *lost)
        for (uint i = item; i < pairs; i += ITEMS)
            if (expert_of(id_at(p, i), map, map_rows, id_end, held) < 0)
                put_inverse(inverse, inverse_rows, i, k, -1);
    if (mine + 1 == held) { // the end, and what has no pair
        if (item == 0)
            offsets[offsets_rows.offset + held * offsets_rows.inner] = (int)end;
        for (uint i = item; tiles && i <= zeros; i += ITEMS)
            tiles[tiles_at + held + i] = i == 0 ? (int)(tile + (all.z + height - 1) / height) : 0;
        for (uint r = end + item; r < pairs; r += ITEMS)
            source[source_rows.offset + r * source_rows.inner] = -1;
    }
}
