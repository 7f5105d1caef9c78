// The linear layer on wgmma for up to 128 rows of x, where the time is that of reading W once: f16 or
// bf16 x and W, f32 sums. From its sm_90a image only; docs/matrix-units.md explains it.
//
// The rows of W are A, all rows of x are B. A work-group is three warpgroups: two multiply ROWS / 2
// rows of W each, of the third one item brings boxes of x and another W, 64 of K at a time. Tiles are
// shared out along K (linear_split.clh), so that all units read as much.
//
//     -DX=f16 | bf16
#define NV90_TYPE X
#define ROWS   128 // of W in a tile
#define TILE_M 128
#define TILE_N ROWS
#define STAGES 7

#include "common/nv.clh"
#include "common/nv90.clh"
#include "common/nv90_pair.clh"
#include "linear/linear_common.clh"
#include "linear/linear_rows.clh"
#include "linear/linear_wgmma.clh"
#include "linear/linear_wgmma_boxes.clh"
#include "linear/linear_split.clh"

#define NEIGHBOURS (ROWS / 64) // in y, of a lane
#define UNIT       (ROWS / 8)  // rows of W of one warp
#define SUMS       (TILE_M * ROWS / 256)
#include "linear/linear_wgmma_few_end.clh"

// Made by each who needs it, lest ptxas keep it in memory.
LINEAR_INLINE share_t share_of(const linear_t a, uint split_whole, uint split_per)
{
    const share_t o = SPLIT_SHARE(hidden((a.n + ROWS - 1) / ROWS),
                                  hidden((a.k + TILE_K - 1) / TILE_K));
    return o;
}

// ---- Items that copy

// The first stages, by all that multiply, at once: each is full when its copies have landed, which
// boxes would do only once their maps are made. An item copies the same chunk of rows 32 apart,
// swizzled alike.
LINEAR_INLINE void bring_first(const linear_t a, uint column, uint k, stages_t s, uint count)
{
    const uint item = (uint)get_local_id(0), row = item / 8, chunk = item % 8;
    global const ushort *x = (global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0;
    const uint w_row = column + nv90_unit_row(row, UNIT);
    _Pragma("unroll 1")
    for (uint stage = 0; stage < count; stage++) {
        const uint to = s.tiles + stage * STAGE + nv90_offset(row, chunk);
        const uint at = k + stage * TILE_K + chunk * 8, bytes = at < a.k ? 16 : 0;
        UNROLL
        for (uint i = 0; i < ROWS / 32; i++) {
            const uint r = w_row + 2 * i % 8 * UNIT + i / 4 * 2, in = min(r, a.n - 1);
            nv90_copy(to + X_BYTES + i * 32 * NV90_ROW, a.data + in * a.pitch + (ulong)at * 2,
                      r < a.n ? bytes : 0, 0, 1);
        }
        UNROLL
        for (uint i = 0; i < TILE_M / 32; i++)
            nv90_copy(to + i * 32 * NV90_ROW, x + 32 * i * a.x_rows.s0 + at, bytes, row + 32 * i,
                      (uint)a.m);
        nv90_barrier_arrive_copied(s.full + stage * 8);
    }
    nv90_team_sync();
    for (uint stage = 0; stage < count && item % 128 == 0; stage++)
        nv90_barrier_arrive(s.full + stage * 8); // as the two do that bring boxes
}

LINEAR_INLINE uint first_stages(const share_t o, const piece_t p)
{
    return piece_is_there(o, p) ? min(p.end - p.begin, (uint)STAGES) : 0;
}

// What comes after them, in boxes, of x by one item and of W by another.
LINEAR_INLINE void bring(const share_t o, stages_t s, ulong map, bool is_x, uint x_rows)
{
    piece_t p = piece_first(o);
    uint brought = first_stages(o, p);
    for (uint i = 0; i < brought; i++)
        next_stage(&s);
    for (; piece_is_there(o, p); p = piece_next(o, p)) {
        for (uint k = (p.begin + brought) * TILE_K; k < p.end * TILE_K; k += TILE_K) {
            const uint to = s.tiles + s.slot * STAGE, full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            nv90_barrier_expect(full, (is_x ? x_rows : ROWS) * NV90_ROW);
            if (is_x)
                nv90_box_rows(to, map, k, 0, full);
            else
                nv90_box_units(to + X_BYTES, map, k, p.tile * 8, full);
            next_stage(&s);
        }
        brought = 0;
    }
}

// ---- The warpgroups that multiply

#define NV90_NAMES_8 NV90_PART_0L
NV90_MULTIPLY(32, 16, "%16", "%17")
NV90_MULTIPLY(16, 8, "%8", "%9")
NV90_END(16, 8)

// A piece of a tile, by n rows of x: true where the sums are those of all of the tile. *copied: stages
// that bring_first brings, whose bytes are not the copy unit's.
#define MULTIPLY_PIECE(n)                                                                          \
    LINEAR_INLINE bool multiply_piece_##n(const share_t o, const piece_t p, float *sums, stages_t *s, \
                                          uint *copied, uint w_at, global float *places,           \
                                          global uint *counts)                                     \
    {                                                                                              \
        uint last = 0;                                                                             \
        for (uint at = p.begin; at < p.end; at++) {                                                \
            const uint stage = s->tiles + s->slot * STAGE;                                         \
            nv90_barrier_wait(s->full + s->slot * 8, s->phase);                                    \
            if (*copied > 0) {                                                                     \
                nv90_proxy_fence();                                                                \
                *copied -= 1;                                                                      \
            }                                                                                      \
            nv90_multiply_##n(sums, nv90_descriptor(stage + w_at), nv90_descriptor(stage));        \
            if (at > p.begin)                                                                      \
                free_stage(s, last);                                                               \
            last = s->slot;                                                                        \
            next_stage(s);                                                                         \
        }                                                                                          \
        nv90_end_##n(sums);                                                                        \
        free_stage(s, last);                                                                       \
        if (piece_is_whole(o, p))                                                                  \
            return true;                                                                           \
        if ((n) == TILE_M)                                                                         \
            return split_meet(o, p, places, counts, sums, SUMS, (uint)get_local_id(0) / 32, 8);    \
        float used[PAIRS * (n) / 2];                                                               \
        UNROLL                                                                                     \
        for (uint i = 0; i < PAIRS * (n) / 2; i++)                                                 \
            used[i] = sums[i / ((n) / 2) * (SUMS / PAIRS) + i % ((n) / 2)];                        \
        if (!split_meet(o, p, places, counts, used, PAIRS * (n) / 2, (uint)get_local_id(0) / 32, 8)) \
            return false;                                                                          \
        UNROLL                                                                                     \
        for (uint i = 0; i < PAIRS * (n) / 2; i++)                                                 \
            sums[i / ((n) / 2) * (SUMS / PAIRS) + i % ((n) / 2)] = used[i];                        \
        return true;                                                                               \
    }
MULTIPLY_PIECE(16)
MULTIPLY_PIECE(32)
MULTIPLY_PIECE(64)
MULTIPLY_PIECE(128)

LINEAR_INLINE void multiply(const linear_t a, const share_t o, stages_t s, global float *places,
                            global uint *counts)
{
    const uint item = (uint)get_local_id(0), warp = item / 32, lane = item % 32;
    const uint w_at = X_BYTES + nv90_uniform(item / 128) * (64 * NV90_ROW);
    uint copied = first_stages(o, piece_first(o));
    for (piece_t p = piece_first(o); piece_is_there(o, p); p = piece_next(o, p)) {
        float sums[SUMS];
        UNROLL
        for (uint i = 0; i < SUMS; i++)
            sums[i] = 0.0f;
        bool has_all;
#define PIECE(n)                                                                                   \
    if (a.m > (n) / 2 || (n) == 16)                                                                \
        has_all = multiply_piece_##n(o, p, sums, &s, &copied, w_at, places, counts);               \
    else
        PIECE(128) PIECE(64) PIECE(32) PIECE(16) has_all = false;
        if (has_all)
            store_few(a, sums, p.tile * ROWS + warp * UNIT + lane / 4 * NEIGHBOURS, lane % 4 * 2);
    }
}

kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void linear_wgmma_few(LINEAR_PARAMETERS, SPLIT_PARAMETERS)
{
    BOX_LOCALS(2);
    local uint slot[1];
    const linear_t a = LINEAR_ARGUMENTS;
    const uint item = (uint)get_local_id(0);
    init_stages(item, s, 2);

    if (item < 256) {
        // Before there are copies under way, which may not be while registers move.
        nv90_registers_up(232);
        const share_t o = share_of(a, split_whole, split_per);
        const piece_t p = piece_first(o);
        bring_first(a, p.tile * ROWS, p.begin * TILE_K, s, first_stages(o, p));
        multiply(a, o, s, split_sums, split_counts);
    } else {
        nv90_registers_down(40);
        const uint x_box = ((uint)m + 7) / 8 * 8;
        MAKE_MAPS(item, map, a, x_rows, x_box, item == W_ITEM,
                  nv90_map_units(map + NV90_MAP_BYTES, data, k, n / UNIT, pitch, UNIT), slot);
        if (item < SLOT_ITEM) {
            const ulong published = publish_map(item, map, slot);
            if (item == X_ITEM || item == W_ITEM)
                bring(share_of(a, split_whole, split_per), s, published, item == X_ITEM, x_box);
        }
    }
    end_boxes(item, slot);
}
