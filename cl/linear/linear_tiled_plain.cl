// linear_tiled.cl for plain rows of x, NVIDIA's matrix unit and asynchronous copies: rows of x on
// 16-byte boundaries and one stride apart, K in whole stages, N a multiple of 8 and at least a
// tile's. Sums of whole tiles have the bits of linear_tiled.cl's. A warp has one set of operands:
// fragments of W are asked for one ahead, those of x replaced as the last of W is multiplied by them.
//
// Tiles of a last turn that is not full may be shared along K (linear_pieces.clh).
//
// Nothing runs for free beside mma.sync, so there is little else: STAGES stages are unrolled, which
// makes constants of places in local memory, and of all addresses in memory but sixteen bytes' of each
// copy, moved on every STAGES stages. The build chooses
//
//     -DX=f16 | bf16   -DFRAGMENT_MMA -DASYNC_COPY_CP, or -DFRAGMENT_EMULATED instead of the latter
#define FRAGMENT_TYPE X

#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/async_copy.clh"
#include "common/halves.clh"
#include "linear/linear_packed_place.clh"
#include "linear/linear_plain_rows.clh"

#define WARPS_M   2
#define WARPS_N   2
#define FRAGMENTS 4 // in either direction, of a warp
#define CHUNKS    4 // of 16 bytes along K, in a stage
#define STAGES    3

#define ITEMS  (WARPS_M * WARPS_N * FRAGMENT_WAVE)
#define WARP   (FRAGMENTS * FRAGMENT_SIZE) // rows and columns
#define TILE   (2 * WARP)
#define STEPS  (CHUNKS / FRAGMENT_CHUNKS)
#define COPIES (TILE * CHUNKS / ITEMS) // of an item, of x and of W
#define W_TILE (TILE * CHUNKS)         // where W begins in a stage
#define STAGE  (2 * TILE * CHUNKS)

// At the end each warp turns its sums into rows, 16 at a time. The pitch spreads them over the
// banks.
#define PATCH_PITCH (WARP + 8)

// What an item copies of every stage: the same chunk of rows ITEMS / CHUNKS apart, a multiple of 8,
// so that all are swizzled alike.
typedef struct {
    global const uint4 *x[COPIES], *w[COPIES];
    uint to;
} copies_t;

static inline copies_t copies_of(const linear_t a, ulong row, uint column, uint first)
{
    copies_t c;
    const uint item = (uint)get_local_id(0), chunk = item % CHUNKS;
    c.to = tile_index(item / CHUNKS, chunk, CHUNKS);
    FRAGMENT_UNROLL
    for (uint i = 0; i < COPIES; i++) {
        const uint r = (item + i * ITEMS) / CHUNKS;
        const ulong x_row = min(row + r, a.m - 1);
        c.x[i] = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset +
                                        x_row * a.x_rows.s0) +
                 first * CHUNKS + chunk;
        c.w[i] = (global const uint4 *)(a.data + (column + r) * a.pitch) + first * CHUNKS + chunk;
    }
    return c;
}

static inline void advance(copies_t *c, const uint stages)
{
    FRAGMENT_UNROLL
    for (uint i = 0; i < COPIES; i++) {
        c->x[i] += stages * CHUNKS;
        c->w[i] += stages * CHUNKS;
    }
}

// That of `stage`, counted from where the copies are.
static inline void fetch(const copies_t *c, const uint stage, local uint4 *to)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < COPIES; i++)
        async_copy(to + c->to + i * ITEMS, c->x[i] + stage * CHUNKS, &held);
    FRAGMENT_UNROLL
    for (uint i = 0; i < COPIES; i++)
        async_copy(to + c->to + W_TILE + i * ITEMS, c->w[i] + stage * CHUNKS, &held);
}

static inline fragment_a load_x(fragment_unit unit, local const uint4 *stage, uint step, uint i)
{
    return fragment_load_a(unit, stage, CHUNKS, unit.wave % WARPS_M * WARP + i * FRAGMENT_SIZE,
                           step * FRAGMENT_CHUNKS);
}
static inline fragment_b load_w(fragment_unit unit, local const uint4 *stage, uint step, uint j)
{
    return fragment_load_b(unit, stage + W_TILE, CHUNKS,
                           unit.wave / WARPS_M * WARP + j * FRAGMENT_SIZE, step * FRAGMENT_CHUNKS);
}

typedef struct {
    fragment_acc sum[FRAGMENTS][FRAGMENTS];
    fragment_a x[FRAGMENTS];
    fragment_b w[2];
} work_t;

// The products of the stage in `slot`, whose first operands are there; loads the first of the next.
// more: whether a stage is to be copied in its place, the slot-th of the copies'.
LINEAR_INLINE void multiply_stage(fragment_unit unit, work_t *s, const copies_t *copies,
                                  local uint4 *tiles, const uint slot, const bool more)
{
    local uint4 *stage = tiles + slot * STAGE;
    FRAGMENT_UNROLL
    for (uint step = 0; step < STEPS; step++) {
        FRAGMENT_UNROLL
        for (uint j = 0; j + 1 < FRAGMENTS; j++) {
            s->w[(j + 1) % 2] = load_w(unit, stage, step, j + 1);
            FRAGMENT_UNROLL
            for (uint i = 0; i < FRAGMENTS; i++)
                fragment_multiply_add(unit, &s->sum[i][j], s->x[i], s->w[j % 2]);
        }
        if (step + 1 == STEPS) {
            async_wait(STAGES - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            // The next stage is there, and all warps have loaded the last of this one. Past the end
            // what is loaded here is not used.
            if (more)
                fetch(copies, slot, stage);
            async_commit();
            stage = tiles + (slot + 1) % STAGES * STAGE;
        }
        const uint next = (step + 1) % STEPS;
        s->w[0] = load_w(unit, stage, next, 0);
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENTS; i++) {
            fragment_multiply_add(unit, &s->sum[i][FRAGMENTS - 1], s->x[i], s->w[1]);
            s->x[i] = load_x(unit, stage, next, i);
        }
    }
}

// This work-group's tiles: one of the first `whole`, or else a share of the others.
typedef struct {
    share_t share;
    uint first; // tile
} part_t;

LINEAR_INLINE part_t part_here(const linear_t a, uint whole, uint per)
{
    const uint id = (uint)get_group_id(0), groups = (uint)get_num_groups(0);
    const uint stages = a.k / (CHUNKS * 8);
    if (id < whole) {
        const part_t p = {{0, 1, 1, stages, 1, 0, 0}, id};
        return p;
    }
    const uint tiles = (uint)((a.m + TILE - 1) / TILE) * ((a.n + TILE - 1) / TILE);
    const part_t p = {{id - whole, groups - whole, tiles - whole, stages, 0, per, 0}, whole};
    return p;
}

typedef struct {
    ulong row;
    uint first_column, column;
} corner_t;

// The last tile ends with W, and begins within the one before it.
LINEAR_INLINE corner_t corner_of(const linear_t a, uint id)
{
    const ulong rows = (a.m + TILE - 1) / TILE, columns = (a.n + TILE - 1) / TILE;
    const ulong2 tile = tile_at(id, columns, rows);
    const corner_t c = {tile.y * TILE, (uint)tile.x * TILE, min((uint)tile.x * TILE, a.n - TILE)};
    return c;
}

LINEAR_INLINE piece_t piece_at(const share_t share, uint n)
{
    piece_t p = piece_first(share);
    for (; n > 0; n--)
        p = piece_next(share, p);
    return p;
}

LINEAR_INLINE void multiply_piece(const linear_t a, fragment_unit unit, work_t *s,
                                  local uint4 *tiles, const piece_t p, const corner_t at)
{
    const uint count = p.end - p.begin;
    copies_t copies = copies_of(a, at.row, at.column, p.begin);
    FRAGMENT_UNROLL
    for (uint i = 0; i < STAGES; i++) {
        if (i < count)
            fetch(&copies, i, tiles + i * STAGE);
        async_commit();
    }
    advance(&copies, STAGES);
    async_wait(STAGES - 1);
    barrier(CLK_LOCAL_MEM_FENCE);

    FRAGMENT_UNROLL
    for (uint i = 0; i < FRAGMENTS; i++) {
        FRAGMENT_UNROLL
        for (uint j = 0; j < FRAGMENTS; j++)
            s->sum[i][j] = fragment_zero();
        s->x[i] = load_x(unit, tiles, 0, i);
    }
    s->w[0] = load_w(unit, tiles, 0, 0);
    uint t = 0;
    _Pragma("unroll 1") for (; t + STAGES <= count; t += STAGES)
    {
        FRAGMENT_UNROLL
        for (uint slot = 0; slot < STAGES; slot++)
            multiply_stage(unit, s, &copies, tiles, slot, t + STAGES + slot < count);
        advance(&copies, STAGES);
    }
    FRAGMENT_UNROLL
    for (uint slot = 0; slot + 1 < STAGES; slot++) {
        if (t + slot < count)
            multiply_stage(unit, s, &copies, tiles, slot, false);
    }
    async_wait(0);
}

// One pass for every row of fragments: sums in registers must be named by constants, the rest is there
// once.
LINEAR_INLINE void store_tile(const linear_t a, fragment_unit unit, const work_t *s,
                              local uint4 *tiles, const corner_t at)
{
    local float *patch = (local float *)tiles + unit.wave * FRAGMENT_SIZE * PATCH_PITCH;
    const ulong r0 = at.row + unit.wave % WARPS_M * WARP;
    const uint c0 = at.column + unit.wave / WARPS_M * WARP;
    const rows8_t to = rows8_of(a, r0, c0, WARP);
    _Pragma("unroll 1") for (uint pass = 0; pass < FRAGMENTS; pass++)
    {
        FRAGMENT_UNROLL
        for (uint f = 0; f < FRAGMENTS * FRAGMENTS; f++) {
            if (f / FRAGMENTS != pass)
                continue;
            FRAGMENT_UNROLL
            for (uint e = 0; e < FRAGMENT_ELEMENTS; e++)
                patch[fragment_row(unit, e) * PATCH_PITCH + f % FRAGMENTS * FRAGMENT_SIZE +
                      fragment_column(unit, e)] =
                    fragment_get(s->sum[f / FRAGMENTS][f % FRAGMENTS], e);
        }
        warp_barrier();
        const uint first = pass * FRAGMENT_SIZE;
        if (to.plain && c0 >= at.first_column) {
            FRAGMENT_UNROLL
            for (uint i = 0; i < FRAGMENT_SIZE * WARP / 8 / FRAGMENT_WAVE; i++) {
                const uint v = unit.lane + i * FRAGMENT_WAVE, r = v / (WARP / 8),
                           c = v % (WARP / 8) * 8;
                if (r0 + first + r < a.m)
                    store_row8(to, first + r, c, patch + r * PATCH_PITCH + c);
            }
        } else {
            _Pragma("unroll 1") for (uint v = unit.lane; v < FRAGMENT_SIZE * WARP / 8;
                                     v += FRAGMENT_WAVE)
            {
                const uint r = v / (WARP / 8), c = v % (WARP / 8) * 8;
                if (r0 + first + r < a.m && c0 + c >= at.first_column)
                    finish8(a, r0 + first + r, c0 + c, patch + r * PATCH_PITCH + c);
            }
        }
        warp_barrier();
    }
}

LINEAR_INLINE void work(const linear_t a, fragment_unit unit, local uint4 *tiles, const meet_t meet,
                        const uint whole, const uint per)
{
    _Pragma("unroll 1") for (uint n = 0;; n++)
    {
        work_t s;
        {
            const part_t part = part_here(a, whole, per);
            const piece_t p = piece_at(part.share, n);
            if (!piece_is_there(part.share, p))
                break;
            multiply_piece(a, unit, &s, tiles, p, corner_of(a, part.first + p.tile));
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        // Worked out again, all this needs no registers while there are products.
        n = forgotten(n);
        unit.lane = forgotten((uint)get_local_id(0)) % FRAGMENT_WAVE;
        unit.wave = forgotten((uint)get_local_id(0)) / FRAGMENT_WAVE;
        const part_t part = part_here(a, forgotten(whole), forgotten(per));
        const piece_t p = piece_at(part.share, n);
        bool stores = true;
        if (!piece_is_whole(part.share, p))
            stores = packed_meet(part.share, p, meet, &s.sum[0][0].v[0],
                                 FRAGMENTS * FRAGMENTS * FRAGMENT_ELEMENTS, tiles, unit.wave,
                                 WARPS_M * WARPS_N);
        if (stores)
            store_tile(a, unit, &s, tiles, corner_of(a, part.first + p.tile));
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
RESIDENT(2) void linear_tiled_plain(LINEAR_PARAMETERS, SPLIT_PARAMETERS)
{
    local uint4 tiles[STAGES * STAGE];
    FRAGMENT_UNIT(unit, WARPS_M * WARPS_N);
    const linear_t a = LINEAR_ARGUMENTS;
    const meet_t meet = {split_sums, split_counts};
    work(a, unit, tiles, meet, split_whole, split_per);
}
