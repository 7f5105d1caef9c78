// The linear layer on wgmma for weights of 4 or 8 bits, for compute capability 9.0, from its sm_90a
// image only. y^T = W x^T: the weights are the instruction's A, which it takes from registers, where
// they become halves; x is B, in local memory. docs/matrix-units.md explains it.
//
// A work-group is five warpgroups. Four multiply, 64 rows of W by up to 128 of x each; warps of the
// fifth bring x and the packed weights, STAGE_K of K at a time, and what groups have in common.
// Work-groups stay and take one tile of y after the other, or parts of tiles. A kernel's number is the
// rows of x of its tile. x has one stride, on 16-byte boundaries.
//
//     -DX=f16 | bf16   -DW=u4_nv | s8_nv
//     -DGROUPED=0   one scale a row of W     -DGROUPED=1   groups of a multiple of STAGE_K
//     -DGROUPED=2   the same, scales of f16: sums are in their units (linear_units.clh)
#define NV90_TYPE     X
#define FRAGMENT_TYPE X
#define FRAGMENT_MMA

#include "linear/linear_wgmma_packed.clh"

#define SPLIT_LANE (hidden((uint)get_local_id(0)) % 32)
#include "linear/linear_split.clh"

static inline uint tiles_of(const linear_t a, const uint h)
{
    return count_tiles(a, TILE_M(h), TILE_N(h));
}
// per: the stages that owners have in the upper half.
LINEAR_INLINE share_t share_of(linear_t a, uint whole, uint per, const uint h)
{
    a.m = hidden((uint)a.m);
    a.n = hidden(a.n);
    return (share_t){(uint)get_group_id(0),
                     (uint)get_num_groups(0),
                     tiles_of(a, h),
                     (a.k + STAGE_K - 1) / STAGE_K,
                     whole,
                     per & 0xffff,
                     per >> 16};
}
static inline place_t place_of(const linear_t a, uint index, const uint h)
{
    return place_of_tile_anew(a, index, TILE_M(h), TILE_N(h));
}

// ---- The warps that copy

// Those that multiply have no registers for what finds a tile: they are told with the first stage of a
// piece. No stages: it was the last. Pieces that are under way are no more than stages, and one.
typedef struct {
    uint stages, tile, row, column;
} told_t;
#define TOLD 16

// While maps are made: the first codes of a block are on their way, and its scales.
LINEAR_INLINE void expect_codes(const linear_t a, const share_t share, uint block, const uint h)
{
    const piece_t p = piece_first(share);
    if (piece_is_there(share, p)) {
        const ulong row = min(place_of(a, p.tile, h).column / 16 + block, (a.n - 1) / 16);
        const ulong from = p.begin * 1024ul;
        nv90_prefetch(a.data + row * a.pitch + from,
                      (uint)min(a.pitch - from, (ulong)STAGES(h) * 1024));
        if (GROUPED) {
            const uint bytes = a.scale_kind == SCALE_F32 ? 64 : 32;
            const uint first = group_of_k(a, p.begin * STAGE_K);
            const uint groups = group_of_k(a, (p.end - 1) * STAGE_K) - first + 1;
            nv90_prefetch((global const uchar *)a.scales + (row * a.groups + first) * bytes,
                          groups * bytes);
        }
    }
}

// By a warp of which an item asks: boxes of x, of which it tells, or of the codes.
LINEAR_INLINE void bring_boxes(const linear_t a, stages_t s, const share_t share, ulong map,
                               local told_t *told, const uint h, const bool of_x)
{
    const bool asks = get_local_id(0) % 32 == 0;
    uint number = 0;
    for (piece_t p = piece_first(share); piece_is_there(share, p); p = piece_next(share, p)) {
        const place_t tile = place_of(a, p.tile, h);
        for (uint stage = p.begin; stage < p.end; stage++) {
            const uint to = s.tiles + s.slot * STAGE(h), full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            if (asks && of_x) {
                if (stage == p.begin)
                    told[number % TOLD] = (told_t){p.end - p.begin, p.tile, tile.row, tile.column};
                nv90_barrier_expect(full, X_BYTES(h));
                for (uint part = 0; part < STAGE_K; part += 64)
                    nv90_box_rows(to + part * (TILE_M(h) * 2), map, stage * STAGE_K + part,
                                  tile.row, full);
            } else if (asks) {
                nv90_barrier_expect(full, W_BYTES(h));
                nv90_box_codes(to + X_BYTES(h), map, stage * 2, tile.column / 16, full);
            }
            s = next_stage(s, h);
        }
        number++;
    }
    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
    if (asks) {
        if (of_x)
            told[number % TOLD].stages = 0;
        nv90_barrier_arrive(s.full + s.slot * 8);
    }
}

// Two warps have the groups, a lane those of each 32nd pair of rows. They come from far away: where there
// are registers they are asked for a stage ahead.
#define RECORDS(h) (TILE_N(h) / 128)
LINEAR_INLINE void bring_groups(linear_t a, stages_t s, uint whole, uint per, uint warp,
                                const uint h)
{
    const uint lane = (uint)get_local_id(0) % 32;
    if (GROUPED == 2)
        a.scale_kind = SCALE_F16;
    for (piece_t p = piece_first(share_of(a, whole, per, h));
         piece_is_there(share_of(a, whole, per, h), p);
         p = piece_next(share_of(a, whole, per, h), p)) {
        const uint first = place_of(a, p.tile, h).column / 16 + lane / 8;
        raw_group raw[2], next[2];
        uint from[2], unit[2];
        UNROLL
        for (uint j = 0; j < RECORDS(h); j++) {
            const uint block = min(first + (warp * RECORDS(h) + j) * 4, (a.n - 1) / 16);
            from[j] = block * a.groups * 8 + lane % 8;
            next[j] = raw_of(a, from[j] + group_of_k(a, p.begin * STAGE_K) * 8);
            unit[j] = 0x3c003c00u; // 1
        }
        for (uint stage = p.begin; stage < p.end; stage++) {
            const uint of = TIGHT(h) ? stage : min(stage + 1, p.end - 1);
            const uint group = group_of_k(a, of * STAGE_K);
            UNROLL
            for (uint j = 0; j < RECORDS(h); j++) {
                raw[j] = next[j];
                next[j] = raw_of(a, from[j] + group * 8);
                if (TIGHT(h))
                    raw[j] = next[j];
            }
            const uint to = s.tiles + s.slot * STAGE(h) + COPIED(h) + lane * 16;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            UNROLL
            for (uint j = 0; j < RECORDS(h); j++)
                nv90_put(to + (warp * RECORDS(h) + j) * 512, record_of(a, raw[j], unit + j));
            nv90_warp_sync();
            if (lane == 0)
                nv90_barrier_arrive(s.full + s.slot * 8);
            s = next_stage(s, h);
        }
    }
    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
    if (lane == 0)
        nv90_barrier_arrive(s.full + s.slot * 8);
}

// The place of a warp's products among those of a stage: blocks of W, rows of x.
LINEAR_INLINE uint block_of(uint warp, const uint h)
{
    return ROWS(h) == 1 ? warp : warp % (4 * COLUMNS(h));
}
LINEAR_INLINE uint rows_of(uint warp, const uint h)
{
    return ROWS(h) == 1 ? 0 : warp / (4 * COLUMNS(h)) * T(h);
}

// Rows `from` ... from + PATCH - 1 of the warp's. What it needs beside the sums it finds anew.
LINEAR_INLINE void store_patch(linear_t a, const float *total, uint from, local const told_t *told,
                               local float *patches, const uint h)
{
    a.first = hidden(a.first);
    a.y_type = hidden(a.y_type);
    a.bias_type = hidden(a.bias_type);
    a.residual_type = hidden(a.residual_type);
    a.y_rows.n1 = hidden((uint)a.y_rows.n1);
    a.residual_rows.n1 = hidden((uint)a.residual_rows.n1);
    const uint item = hidden((uint)get_local_id(0)), lane = item % 32, warp = item / 32;
    finish_patch(a, total, told->row + rows_of(warp, h) + from,
                 told->column + block_of(warp, h) * 16, patches + warp * PATCH_SIZE, lane);
}

LINEAR_INLINE lane_t lane_of(stages_t s, const uint h)
{
    const uint item = hidden((uint)get_local_id(0)), lane = item % 32;
    const uint block = block_of(item / 32, h), row = block * 4 + lane / 8; // of two rows of W
    return (lane_t){X_BYTES(h) + nv90_quad_word(row, lane), COPIED(h) + (block * 8 + lane / 4) * 16,
                    pairs_of(lane),
                    nv90_descriptor(s.tiles + rows_of((uint)get_local_id(0) / 32, h) * NV90_ROW)};
}

LINEAR_INLINE void multiply_tiles(linear_t a, stages_t s, local const told_t *told, uint whole,
                                  uint per, global float *places, global uint *counts,
                                  local float *patches, const uint h)
{
    for (uint number = 0;; number++) {
        nv90_barrier_wait(s.full + s.slot * 8, s.phase);
        const uint count = told[number % TOLD].stages;
        if (count == 0)
            break;
        float sums[MAX_T / 2], totals[GROUPED == 1 ? MAX_T / 2 : 1];
        float *total = GROUPED == 1 ? totals : sums;
        UNROLL
        for (uint i = 0; i < T(h) / 2; i++)
            sums[i] = 0.0f;
        sum_stages(a, count, &s, lane_of(s, h), sums, total, h);

        local const told_t *tile = told + hidden(number) % TOLD;
        const uint stages = (a.k + STAGE_K - 1) / STAGE_K;
        bool all = count == stages;
        if (!all) {
            const share_t share = share_of(a, hidden(whole), hidden(per), h);
            const piece_t piece = {.tile = tile->tile};
            all = split_meet(share, piece, places, counts, total, T(h) / 2,
                             hidden((uint)get_local_id(0)) / 32, WARPS(h));
        }
        const bool plain = is_plain(a);
        if (all && plain) {
            const uint self = hidden((uint)get_local_id(0)), warp = self / 32;
            store_plain(a, total, tile->row + rows_of(warp, h),
                        tile->column + block_of(warp, h) * 16, patches + warp * PATCH_SIZE,
                        self % 32, T(h));
        }
        const uint other = all && !plain; // in no predicate
        UNROLL
        for (uint i = 0; i < T(h); i += PATCH)
            if (hidden(other))
                store_patch(a, total + i / 2, i, tile, patches, h);
    }
}

#define ITEMS(h) (WARPS(h) * 32)
#define PACKED(number, shape)                                                                      \
    kernel __attribute__((reqd_work_group_size(ITEMS(shape) + 128, 1, 1)))                         \
    RESIDENT(1) void linear_wgmma_packed_##number(LINEAR_PARAMETERS, SPLIT_PARAMETERS)             \
    {                                                                                              \
        const uint h = shape;                                                                      \
        local uchar tiles[STAGES(shape) * STAGE(shape)] __attribute__((aligned(1024)));            \
        local uchar maps[2 * NV90_MAP_BYTES] __attribute__((aligned(128)));                        \
        local float patches[WARPS(shape) * PATCH_SIZE] __attribute__((aligned(16)));               \
        local ulong barriers[2 * STAGES(shape)];                                                   \
        local told_t told[TOLD];                                                                   \
        local uint slot;                                                                           \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        const uint item = (uint)get_local_id(0), full = (uint)(size_t)barriers;                    \
        const stages_t s = {(uint)(size_t)tiles, full, full + STAGES(h) * 8, 0, 0};                \
        if (item < STAGES(h)) {                                                                    \
            nv90_barrier_init(s.full + item * 8, 4);                                               \
            nv90_barrier_init(s.free + item * 8, WARPS(h));                                        \
        }                                                                                          \
        const uint map = (uint)(size_t)maps;                                                       \
        if (item == ITEMS(h))                                                                      \
            nv90_map_rows(map, (global const ushort *)x + x_rows.offset, k, (uint)m,               \
                          m > 1 ? x_rows.s0 * 2 : 16, TILE_M(h));                                  \
        else if (item == ITEMS(h) + 32)                                                            \
            nv90_map_codes(map + NV90_MAP_BYTES, data, pitch, (n + 15) / 16, TILE_N(h) / 16);      \
        else if (item == ITEMS(h) + 64)                                                            \
            slot = nv90_take_slot();                                                               \
        else if (item >= ITEMS(h) + 96 && item < ITEMS(h) + 96 + TILE_N(h) / 16)                   \
            expect_codes(a, share_of(a, split_whole, split_per, h), item % 32, h);                 \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (item < ITEMS(h)) {                                                                     \
            take_registers(h);                                                                     \
            multiply_tiles(a, s, told, split_whole, split_per, split_sums, split_counts, patches,  \
                           h);                                                                     \
        } else {                                                                                   \
            give_registers(h);                                                                     \
            const share_t share = share_of(a, split_whole, split_per, h);                          \
            const uint warp = hidden((uint)get_local_id(0)) / 32 - WARPS(h);                       \
            if (warp < 2) {                                                                        \
                const ulong published = nv90_map_of(slot, warp);                                   \
                nv90_map_publish(published, map + warp * NV90_MAP_BYTES);                          \
                if (warp == 0)                                                                     \
                    bring_boxes(a, s, share, published, told, h, true);                            \
                else                                                                               \
                    bring_boxes(a, s, share, published, told, h, false);                           \
            } else {                                                                               \
                bring_groups(a, s, split_whole, split_per, warp - 2, h);                           \
            }                                                                                      \
        }                                                                                          \
        /* All boxes have arrived. */                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (hidden((uint)get_local_id(0)) == ITEMS(h))                                             \
            nv90_give_slot(slot);                                                                  \
    }

PACKED(32, SHAPE(32, 4, 1))
PACKED(64, SHAPE(64, 4, 1))
PACKED(64_narrow, SHAPE(64, 2, 1))
#if GROUPED == 1
PACKED(128, SHAPE(64, 2, 2))
#else
PACKED(128, SHAPE(128, 4, 1))
#endif
