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

#include "linear/linear_wgmma_codes.clh"

#define SPLIT_LANE (hidden((uint)get_local_id(0)) % 32)
#include "linear/linear_split.clh"
#include "linear/linear_units.clh"

// A stage has two parts, tiles of the layout, of 16 bytes a lane: A of PART products.
#define PART     (W_IS_U4 ? 4 : 2)
#define PRODUCTS (2 * PART)
#define STAGE_K  (PRODUCTS * 16)

// The warpgroups that multiply: `columns` of them have 64 columns of y each, `rows` of them t rows.
#define SHAPE(t, columns, rows) ((t) | (columns) << 8 | (rows) << 16)
#define T(h)       ((h)&255)
#define WARPS(h)   (COLUMNS(h) * ROWS(h) * 4)
#define TIGHT(h)   (GROUPED == 1 || T(h) > 64)            // in registers
#define BATCH(h)   (W_IS_U4 && !TIGHT(h) ? 4 : 2)         // products that begin together
#define COLUMNS(h) ((h) >> 8 & 255)
#define ROWS(h)    ((h) >> 16)
#define TILE_N(h)  (COLUMNS(h) * 64)
#ifndef STAGE_ROWS // of x for which a stage has room, where tiles may have fewer
#define TILE_M(h)  (ROWS(h) * T(h))
#else
#define TILE_M(h)  STAGE_ROWS
#endif
#define W_BYTES(h) (TILE_N(h) / 16 * 1024) // two parts of each block of 16 rows
#ifndef PART_BYTES // from a part of a block to the next
#define PART_BYTES(h) (W_BYTES(h) / 2)
#endif
#define G_BYTES(h) (TILE_N(h) / 2 * 16)
#define X_BYTES(h) (TILE_M(h) * STAGE_K * 2)
#define COPIED(h)  (X_BYTES(h) + W_BYTES(h))
#define STAGE(h)   (COPIED(h) + G_BYTES(h))
#define SPACE(h)   (229376 - WARPS(h) * PATCH_SIZE * 4) // of local memory
#define STAGES(h)  (SPACE(h) / STAGE(h) < 8 ? SPACE(h) / STAGE(h) : 8)
#ifndef ENDS // whether products are over at the end of each stage
#define ENDS(h) GROUPED
#endif
#define MAX_T      (GROUPED == 1 ? 64 : 128)

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
// By each warp that multiplies. (free_stage() takes a predicate.)
static inline void leave_stage(const stages_t *s) { nv90_barrier_arrive_warp(s->free + s->slot * 8); }
LINEAR_INLINE stages_t next_stage(stages_t s, const uint h) { return stage_after(s, STAGES(h)); }

// ---- The warps that copy

// Those that multiply have no registers for what finds a tile: they are told with the first stage of a
// piece. No stages: it was the last. Pieces that are under way are no more than stages, and one.
typedef struct {
    uint stages, tile, row, column;
} told_t;
#define TOLD 16

// What the weights of a group have in common, for a lane's two rows.
typedef struct {
#if GROUPED == 2
    unit_t unit;
#else
    float2 scale;
#endif
    halves_zeros zeros;
} group_t;

// In a stage: 16 bytes.
LINEAR_INLINE uint4 record_of(const linear_t a, raw_group raw, uint *unit)
{
#if GROUPED == 2
    const unit_t u = unit_after(a, *unit, raw);
    *unit = u.scales;
    return (uint4)(as_uint(u.turn.x), as_uint(u.turn.y), u.zeros, u.scales);
#else
    const float2 scale = group_scales(a, raw);
    const halves_zeros zeros = group_zeros(a, raw);
    return (uint4)(as_uint(scale.x), as_uint(scale.y), zeros.upper, zeros.lower);
#endif
}
LINEAR_INLINE group_t group_in(uint4 v)
{
#if GROUPED == 2
    return (group_t){{(float2)(as_float(v.x), as_float(v.y)), v.z, v.w}, unit_zeros(v.z)};
#else
    return (group_t){(float2)(as_float(v.x), as_float(v.y)), {v.z, v.w}};
#endif
}

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
                    told[number % TOLD] =
                        (told_t){p.end - p.begin, p.tile, tile.row, tile.column};
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

// What a pair of rows has in common, of scales and zeros number i; those of the next group are 8 on.
LINEAR_INLINE raw_group raw_of(const linear_t a, uint i)
{
    raw_group r = {(uint2)(0u), 0};
    if (a.scale_kind == SCALE_F32)
        r.scale = ((global const uint2 *)a.scales)[i];
    else
        r.scale.x = ((global const uint *)a.scales)[i];
    if (a.zeros)
        r.zero = W_IS_U4 ? a.zeros[i] : ((global const ushort *)a.zeros)[i];
    return r;
}

// Two warps have the groups, a lane those of each 32nd pair of rows. They come from far away: where there
// are registers they are asked for a stage ahead.
#define RECORDS(h) (TILE_N(h) / 128)
LINEAR_INLINE void bring_groups(linear_t a, stages_t s, const share_t share, uint warp, const uint h)
{
    const uint lane = (uint)get_local_id(0) % 32;
    if (GROUPED == 2)
        a.scale_kind = SCALE_F16;
    for (piece_t p = piece_first(share); piece_is_there(share, p); p = piece_next(share, p)) {
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

// ---- Weights to operands
//
// Of every 32 along K the layout gives lane q of a quad weights 8q ... 8q+7, four pairs. wgmma wants
// pair q of each eight: a lane reads the words that have it from where those of all four lanes lie,
// and of two of them selects.

// Of a part: of four lanes, word q / 2 of the first and of the second half of their 16 bytes.
typedef struct {
    uint v[2][4];
} codes_t;

// Bytes of two such words that are of pair q % 2, in the order of one lane's. swapped: the words are.
static inline uint pairs_of(uint lane, uint swapped)
{
    const uint odd = lane & 1;
    return (W_IS_U4 ? 0x6240 + odd * 0x1111 : 0x5410 + odd * 0x2222) ^ swapped * 0x4444;
}

// The operands of product i of a part, whose codes these are.
LINEAR_INLINE void operands(uint *a, codes_t codes, uint pairs, const uint i, halves_zeros z)
{
#if W_IS_U4
    const uint *v = codes.v[i / 2] + i % 2 * 2;
    const uint w = bytes_select(v[0], v[1], pairs);
#if GROUPED == 2
    unit_operands(w, z, a);
#else
    u4_operands(w, z, a);
#endif
#else
    const uint j = i * 2;
    s8_operands(bytes_select(codes.v[0][j], codes.v[0][j + 1], pairs),
                bytes_select(codes.v[1][j], codes.v[1][j + 1], pairs), z, a);
#endif
}

// ---- The warpgroups that multiply

typedef struct {
    uint codes_at, group_at; // in a stage
    uint pairs;
    ulong x; // what wgmma is told of stage 0
} lane_t;

// Of a batch of products that begins with product i of a stage.
LINEAR_INLINE codes_t codes_of(const stages_t *s, const uint i, lane_t l, const uint h)
{
    const uint part = i / PART, first = W_IS_U4 ? i % PART / 2 : 0;
    codes_t codes;
    UNROLL
    for (uint j = first; j < (W_IS_U4 ? first + BATCH(h) / 2 : 2); j++)
        UNROLL
        for (uint lane = 0; lane < 4; lane++)
            codes.v[j][lane] =
                nv90_get_word(s->tiles + s->slot * STAGE(h) + (l.codes_at ^ lane / 2 * 32) +
                              (part * PART_BYTES(h) + j * 8 + lane % 2 * 16));
    return codes;
}
LINEAR_INLINE group_t stage_group(const stages_t *s, lane_t l, const uint h)
{
    return group_in(nv90_get(s->tiles + s->slot * STAGE(h) + l.group_at));
}

// Products BATCH i and after of a stage.
LINEAR_INLINE void multiply(float *sums, const uint *a, const stages_t *s, lane_t l, const uint i,
                            uint keep, const uint h)
{
    // Rows of a tile of x are 64 of K.
    const uint product = i * BATCH(h), x = product / 4 * (TILE_M(h) * NV90_ROW) + product % 4 * 32;
    const ulong b = nv90_descriptor_at(l.x, s->slot * (STAGE(h) / 16) + x / 16);
    if (T(h) == 32 && BATCH(h) == 4)
        nv90_multiply_a4_32(sums, a, b, keep);
    else if (T(h) == 32)
        nv90_multiply_a2_32(sums, a, b, keep);
    else if (T(h) == 48 && BATCH(h) == 4)
        nv90_multiply_a4_48(sums, a, b, keep);
    else if (T(h) == 48)
        nv90_multiply_a2_48(sums, a, b, keep);
    else if (T(h) == 64 && BATCH(h) == 4)
        nv90_multiply_a4_64(sums, a, b, keep);
    else if (T(h) == 64)
        nv90_multiply_a2_64(sums, a, b, keep);
#if MAX_T == 128
    else if (T(h) == 96)
        nv90_multiply_a2_96(sums, a, b, keep);
    else
        nv90_multiply_a2_128(sums, a, b, keep);
#endif
}
LINEAR_INLINE void held(uint *a, const uint h)
{
    if (BATCH(h) == 4)
        nv90_held_4(a);
    else
        nv90_held_2(a);
}
LINEAR_INLINE void end(float *sums, const uint h)
{
    if (T(h) == 32)
        nv90_end_32(sums);
    else if (T(h) == 48)
        nv90_end_48(sums);
    else if (T(h) == 64)
        nv90_end_64(sums);
#if MAX_T == 128
    else if (T(h) == 96)
        nv90_end_96(sums);
    else
        nv90_end_128(sums);
#endif
}
LINEAR_INLINE void scale(float *to, const float *sums, float2 scale, const uint h)
{
    UNROLL
    for (uint i = 0; i < T(h) / 2; i++) {
        const float f = i / 2 % 2 ? scale.y : scale.x;
        to[i] = GROUPED == 1 ? to[i] + f * sums[i] : f * sums[i];
    }
}

// `count` stages. Operands are made a batch of products ahead, while those before are running, of codes
// that are asked for a part ahead. to: the sums of all groups; sums itself but for GROUPED == 1.
LINEAR_INLINE void sum_stages(const linear_t a, uint count, stages_t *stages, lane_t l,
                              float *sums, float *to, const uint h)
{
    const bool never = a.pitch == 0;
    const uint batches = PRODUCTS / BATCH(h);
    stages_t s = *stages, after = s;
    uint set[2 * 16];
    UNROLL
    for (uint i = 0; i < T(h) / 2; i++)
        to[i] = 0.0f;
    UNROLL
    for (uint i = 0; i < 8 * BATCH(h); i++)
        set[i] = 0;
    group_t group = stage_group(&s, l, h);
    codes_t codes = codes_of(&s, 0, l, h);
    UNROLL
    for (uint i = 0; i < BATCH(h); i++)
        operands(set + 4 * i, codes, l.pairs, i, group.zeros);
    for (uint stage = 0; stage < count; stage++) {
        const bool last = stage + 1 == count;
        group_t next = group;
        UNROLL
        for (uint i = 0; i < batches; i++) {
            const uint made = (i + 1) % batches * BATCH(h); // of the next stage, where it is 0
            uint *const other = set + (i + 1) % 2 * 4 * BATCH(h);
            multiply(sums, set + i % 2 * 4 * BATCH(h), &s, l, i, GROUPED == 1 ? i > 0 : 1, h);
            if (made == 0) {
                // The next stage; at the end, this one again.
                after = s;
                if (!last) {
                    after = next_stage(s, h);
                    nv90_barrier_wait(after.full + after.slot * 8, after.phase);
                }
                if (GROUPED)
                    next = stage_group(&after, l, h);
            }
            if (!TIGHT(h))
                codes = codes_of(made ? &s : &after, made, l, h);
            held(other, h);
            if (TIGHT(h))
                codes = codes_of(made ? &s : &after, made, l, h);
            if (!ENDS(h) && i == 0 && stage > 0)
                leave_stage(&after); // that of the stage before
            UNROLL
            for (uint j = 0; j < BATCH(h); j++)
                operands(other + 4 * j, codes, l.pairs, (made + j) % PART,
                         made ? group.zeros : next.zeros);
        }
        if (ENDS(h)) {
            nv90_make_first(never, s.full, set, 4 * BATCH(h));
            end(sums, h);
            if (GROUPED || !last)
                leave_stage(&s);
#if GROUPED == 2
            if (last)
                break;
            scale(sums, sums, next.unit.turn, h);
#elif GROUPED
            scale(to, sums, group.scale, h);
#endif
            group = next;
        }
        const stages_t done = s;
        s = after;
        after = done;
    }
#if GROUPED == 2
    scale(sums, sums, unit_scales(group.unit.scales) * UNIT, h);
#elif !GROUPED
    end(sums, h);
    const float2 factors = stage_group(&s, l, h).scale; // again
    leave_stage(&s);
    scale(to, sums, factors, h);
#endif
    *stages = next_stage(s, h);
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

LINEAR_INLINE void multiply_tiles(linear_t a, stages_t s, local const told_t *told, uint whole,
                                  uint per, global float *places, global uint *counts,
                                  local float *patches, const uint h)
{
    const uint item = (uint)get_local_id(0), lane = item % 32, of_w = block_of(item / 32, h);
    const uint row = of_w * 4 + lane / 8; // of 128 bytes, of two rows of W
    const lane_t l = {X_BYTES(h) + row * NV90_ROW + ((lane & 4) ^ (row & 6)) * 16 + lane % 4 / 2 * 4,
                      COPIED(h) + (of_w * 8 + lane / 4) * 16, pairs_of(lane, row & 1),
                      nv90_descriptor(s.tiles + rows_of(item / 32, h) * NV90_ROW)};
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
        sum_stages(a, count, &s, l, sums, total, h);

        local const told_t *tile = told + hidden(number) % TOLD;
        const uint stages = (a.k + STAGE_K - 1) / STAGE_K;
        bool all = count == stages;
        if (!all) {
            const share_t share = share_of(a, whole, per, h);
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

// Registers go from the last warpgroup to those that multiply.
LINEAR_INLINE void take_registers(const uint h)
{
    if (WARPS(h) == 8)
        nv90_registers_up(216);
    else if (TIGHT(h))
        nv90_registers_up(112);
    else
        nv90_registers_up(104);
}
LINEAR_INLINE void give_registers(const uint h)
{
    if (WARPS(h) == 8)
        nv90_registers_down(72);
    else if (TIGHT(h))
        nv90_registers_down(32);
    else
        nv90_registers_down(64);
}

#ifndef PACKED_EXPERTS // grouped_wgmma_packed.cl
#define ITEMS(h) (WARPS(h) * 32)
#define PACKED(number, shape)                                                                      \
    kernel __attribute__((reqd_work_group_size(ITEMS(shape) + 128, 1, 1))) RESIDENT(1) void               \
        linear_wgmma_packed_##number(LINEAR_PARAMETERS, SPLIT_PARAMETERS)                          \
    {                                                                                              \
        const uint h = shape;                                                                      \
        local uchar tiles[STAGES(shape) * STAGE(shape)] __attribute__((aligned(1024)));            \
        local uchar maps[2 * NV90_MAP_BYTES] __attribute__((aligned(128)));                        \
        local float patches[WARPS(shape) * PATCH_SIZE] __attribute__((aligned(16)));                      \
        local ulong barriers[2 * STAGES(shape)];                                                   \
        local told_t told[TOLD];                                                                   \
        local uint slot;                                                                           \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        const uint item = (uint)get_local_id(0), full = (uint)(size_t)barriers;                    \
        const stages_t s = {(uint)(size_t)tiles, full, full + STAGES(h) * 8, 0, 0};                \
        if (item < STAGES(h)) {                                                                    \
            nv90_barrier_init(s.full + item * 8, 4);                                                \
            nv90_barrier_init(s.free + item * 8, WARPS(h));                                           \
        }                                                                                          \
        const uint map = (uint)(size_t)maps;                                                       \
        if (item == ITEMS(h))                                                                         \
            nv90_map_rows(map, (global const ushort *)x + x_rows.offset, k, (uint)m,               \
                          m > 1 ? x_rows.s0 * 2 : 16, TILE_M(h));                                  \
        else if (item == ITEMS(h) + 32)                                                               \
            nv90_map_codes(map + NV90_MAP_BYTES, data, pitch, (n + 15) / 16, TILE_N(h) / 16);      \
        else if (item == ITEMS(h) + 64)                                                               \
            slot = nv90_take_slot();                                                               \
        else if (item >= ITEMS(h) + 96 && item < ITEMS(h) + 96 + TILE_N(h) / 16)                         \
            expect_codes(a, share_of(a, split_whole, split_per, h), item % 32, h);                 \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (item < ITEMS(h)) {                                                                        \
            take_registers(h); \
            multiply_tiles(a, s, told, split_whole, split_per, split_sums, split_counts, patches,  \
                           h);                                                                     \
        } else {                                                                                   \
            give_registers(h); \
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
                bring_groups(a, s, share, warp - 2, h);                                            \
            }                                                                                      \
        }                                                                                          \
        /* All boxes have arrived. */                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (hidden((uint)get_local_id(0)) == ITEMS(h))                                                                         \
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
#endif
