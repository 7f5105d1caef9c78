// The linear layer for up to sixteen rows of x and weights of 4 bits on mma.sync, for compute capability
// 9.0, from its sm_90a image only: for many columns of y. As linear_stream.cl, but a work-group fills
// a compute unit and has up to 16 blocks of 16 rows of W; its warps share K, and what a warp has of x
// stays in registers for all of these blocks. x and weights come by bulk copies into local memory,
// where each warp has a ring of its own. docs/matrix-units.md explains it.
//
//     -DX=f16 | bf16   -DW=u4_nv
//
// K is a multiple of PIECE, groups are PIECE / 2 or multiples of PIECE, or a row has one; scales are of
// two bytes, and zeros go with groups of PIECE / 2. Rows of x are in the order of W, on 16-byte boundaries.
#define NV90_TYPE     X
#define FRAGMENT_TYPE X
#define FRAGMENT_MMA

#include "common/nv.clh"
#include "common/nv90.clh"
#include "linear/linear_finish.clh"
#include "linear/linear_groups.clh"

#define UNROLL _Pragma("unroll")

#define WARPS      16
#define ITEMS      (WARPS * 32)
#define PIECE      256 // of K, a warp's at one time
#define PARTS      2   // of eight rows of x

// A slot of a ring has a block's codes of a piece, and its scales and zeros; or four rows of x, whose
// pitch spreads them over the banks.
#define SLOTS      4
#define CODE_BYTES (PIECE / 64 * NV_TILE_BYTES)
#define ZEROS_AT   (CODE_BYTES + 64)
#define X_ROWS     4
#define X_ITEMS    (PARTS * 8 / X_ROWS)
#define X_BYTES    (PIECE * 2)
#define X_PITCH    (X_BYTES + 64)
#define SLOT       (X_ROWS * X_PITCH - 64)
#define RING       (SLOTS * SLOT)

// The warps' sums of a block meet in one of so many places. Warp i adds up those of block i, when it is
// LATER blocks further.
#define PLACES      4
#define LATER       2
#define PLACE_BYTES (WARPS * 1024)
#define PATCH_PITCH 20

#if FRAGMENT_IS_F16
#define FACTOR_UPPER 0x78007800u // 2^15
#define FACTOR_LOWER 0x68006800u // 2^11
#define CODE_UNIT    0x1p-9f
#else
#define FACTOR_UPPER 0x7f007f00u // 2^127
#define FACTOR_LOWER 0x7d007d00u // 2^123
#define CODE_UNIT    0x1p-6f
#endif
#define SIGNS 0x80008000u
LINEAR_INLINE void subnormal_operands(uint w, const uint *z, uint *v)
{
    UNROLL
    for (uint i = 0; i < 2; i++) {
        const uint c = w >> i * 8;
        v[2 * i] = halves_fma(c & 0x000f000fu, FACTOR_UPPER, z[0]);
        v[2 * i + 1] = halves_fma(c & 0x00f000f0u, FACTOR_LOWER, z[1]);
    }
}
LINEAR_INLINE uint negative_zero(uint zero) { return halves_fma(zero * 0x00010001u, FACTOR_UPPER ^ SIGNS, 0u); }

// The pieces of a warp: one of WARPS neighbours in each turn. Work-groups begin with different turns, so
// that not all read the same of x.
typedef struct {
    uint pieces, turns, warp, shift;
} turns_t;

LINEAR_INLINE uint piece_of(turns_t t, uint turn)
{
    uint i = turn + t.shift;
    i -= i >= t.turns ? t.turns : 0;
    return i * WARPS + t.warp;
}

// A warp's ring. For each turn X_ITEMS items of x go through it, then the blocks; an item comes into the
// slot of the one SLOTS before it, as soon as that has been read.
typedef struct {
    uint slots, full; // addresses; of the barriers
    uint next;        // item, counted from the first turn on
    global const uchar *codes, *scales, *zeros; // of the next block
} ring_t;

// Rows of x, item i of them; and the i-th block is asked for, so that memory is not idle until it can
// come into the ring.
LINEAR_INLINE void feed_x(const linear_t a, ring_t *r, const ulong m0, uint first, uint count, uint piece,
                          uint i)
{
    const uint to = r->slots + r->next % SLOTS * SLOT, full = r->full + r->next % SLOTS * 8;
    r->next++;
    if (get_local_id(0) % 32 == 0) {
        if (i < count)
            nv90_prefetch(a.data + (first + i) * a.pitch + piece * CODE_BYTES, CODE_BYTES);
        nv90_barrier_expect(full, X_ROWS * X_BYTES);
        _Pragma("unroll 1")
        for (uint row = 0; row < X_ROWS; row++)
            nv90_bulk(to + row * X_PITCH,
                      (global const ushort *)a.x + a.x_rows.offset +
                          min(m0 + i * X_ROWS + row, a.m - 1) * a.x_rows.s0 + piece * PIECE,
                      X_BYTES, full);
    }
}

LINEAR_INLINE void feed_blocks(const linear_t a, ring_t *r, uint first, uint piece, const bool zeros)
{
    const uint group = a.group_size == PIECE / 2 ? piece * 2 : group_of_k(a, piece * PIECE);
    const ulong entry = (ulong)first * a.groups + group;
    r->codes = a.data + first * a.pitch + piece * CODE_BYTES;
    r->scales = a.scales + entry * 32;
    if (zeros)
        r->zeros = a.zeros + entry * 8;
}
LINEAR_INLINE void feed_block(const linear_t a, ring_t *r, const bool zeros)
{
    const uint to = r->slots + r->next % SLOTS * SLOT, full = r->full + r->next % SLOTS * 8;
    const uint scale_bytes = a.group_size == PIECE / 2 ? 64 : 32;
    r->next++;
    if (get_local_id(0) % 32 == 0) {
        nv90_barrier_expect(full, CODE_BYTES + scale_bytes + (zeros ? 16 : 0));
        nv90_bulk(to, r->codes, CODE_BYTES, full);
        nv90_bulk(to + CODE_BYTES, r->scales, scale_bytes, full);
        if (zeros)
            nv90_bulk(to + ZEROS_AT, r->zeros, 16, full);
    }
    r->codes += a.pitch;
    r->scales += a.groups * 32;
    if (zeros)
        r->zeros += a.groups * 8;
}

// Item `item` is there.
LINEAR_INLINE void wait_item(const ring_t *r, uint item)
{
    nv90_barrier_wait(r->full + item % SLOTS * 8, item / SLOTS & 1);
}

// Of a block, by the codes in a slot.
LINEAR_INLINE void multiply(const linear_t a, fragment_unit unit, uint slot, uint x[PIECE / 32][PARTS][4],
                            const uint one_zero, const bool zeros, float total[PARTS][4])
{
    const uint g = unit.lane / 4, second = a.group_size == PIECE / 2 ? 32 : 0;
    UNROLL
    for (uint half_piece = 0; half_piece < 2; half_piece++) {
        const uint group_at = slot + CODE_BYTES + half_piece * second;
        local const uint *raw = (local const uint *)(size_t)(group_at + g * 4);
        uint z[2] = {one_zero, one_zero};
        if (zeros) {
            const uint both = *(local const uchar *)(size_t)(slot + ZEROS_AT + half_piece * 8 + g);
            z[0] = negative_zero(both & 15);
            z[1] = negative_zero(both >> 4);
        }
        float sum[PARTS][4];
        UNROLL
        for (uint i = 0; i < 4 * PARTS; i++)
            sum[i / 4][i % 4] = 0.0f;
        UNROLL
        for (uint j = 0; j < 2; j++) {
            const uint tile = half_piece * 2 + j;
            const uint4 c = nv90_get(slot + tile * NV_TILE_BYTES + unit.lane * 16);
            UNROLL
            for (uint i = 0; i < 4; i++) {
                uint v[4];
                subnormal_operands(i == 0 ? c.x : i == 1 ? c.y : i == 2 ? c.z : c.w, z, v);
                UNROLL
                for (uint p = 0; p < PARTS; p++)
                    mma_instruction(unit, sum[p], v, x[tile * 2 + i / 2][p] + i % 2 * 2);
            }
        }
        const float2 scale = group_scales(a, (raw_group){(uint2)(*raw, 0u), 0});
        UNROLL
        for (uint i = 0; i < 4 * PARTS; i++) {
            const float f = (i % 4 < 2 ? scale.x : scale.y) * sum[i / 4][i % 4];
            total[i / 4][i % 4] = half_piece ? total[i / 4][i % 4] + f : f;
        }
    }
}

// The places of the sums, and their barriers: all warps have put theirs; they have been added up.
typedef struct {
    uint at, full, free;
} places_t;

LINEAR_INLINE void put_sums(places_t s, fragment_unit unit, uint number, bool any, float total[PARTS][4])
{
    const uint place = number % PLACES;
    if (number >= PLACES)
        nv90_barrier_wait(s.free + place * 8, number / PLACES - 1 & 1);
    if (any) {
        UNROLL
        for (uint p = 0; p < PARTS; p++)
            nv90_put(s.at + place * PLACE_BYTES + unit.wave * 1024 + p * 512 + unit.lane * 16,
                     (uint4)(as_uint(total[p][0]), as_uint(total[p][1]), as_uint(total[p][2]),
                             as_uint(total[p][3])));
    }
    nv90_warp_sync();
    if (unit.lane == 0)
        nv90_barrier_arrive(s.full + place * 8);
}

// Those of `warps`, in their order.
LINEAR_INLINE void add_sums(places_t s, fragment_unit unit, uint number, uint warps, float4 sum[PARTS])
{
    const uint place = number % PLACES;
    nv90_barrier_wait(s.full + place * 8, number / PLACES & 1);
    UNROLL
    for (uint w = 0; w < WARPS; w++) {
        UNROLL
        for (uint p = 0; w < warps && p < PARTS; p++)
            sum[p] += as_float4(nv90_get(s.at + place * PLACE_BYTES + w * 1024 + p * 512 + unit.lane * 16));
    }
    nv90_warp_sync();
    if (unit.lane == 0)
        nv90_barrier_arrive(s.free + place * 8);
}

LINEAR_INLINE void stream(linear_t a, uint memory, uint barriers, local float *patches, const ulong m0,
                          const uint count, const bool zeros)
{
    a.scale_kind = a.scale_kind == SCALE_BF16 ? SCALE_BF16 : SCALE_F16; // spares asking for others
    const uint lane = (uint)get_local_id(0) % 32;
    const uint warp = nv90_uniform((uint)get_local_id(0) / 32);
    const fragment_unit unit = {lane, warp};
    // The last work-group's columns end with the last; it does not store those of the one before it.
    const uint blocks = (a.n + 15) / 16, first = min((uint)get_group_id(0) * count, blocks - count);
    const uint pieces = a.k / PIECE, turns = (pieces + WARPS - 1) / WARPS;
    const turns_t t = {pieces, turns, warp, (uint)get_group_id(0) % turns};
    const places_t places = {memory + WARPS * RING, barriers + WARPS * SLOTS * 8,
                             barriers + (WARPS * SLOTS + PLACES) * 8};
    ring_t r = {.slots = memory + warp * RING, .full = barriers + warp * SLOTS * 8};
    if (lane == 0) {
        UNROLL
        for (uint i = 0; i < SLOTS; i++)
            nv90_barrier_init(r.full + i * 8, 1);
        if (warp < PLACES) {
            nv90_barrier_init(places.full + warp * 8, WARPS);
            nv90_barrier_init(places.free + warp * 8, 1);
        }
    }
    nv90_warp_sync();
    if (piece_of(t, 0) < pieces) {
        _Pragma("unroll 1")
        for (uint i = 0; i < X_ITEMS; i++)
            feed_x(a, &r, m0, first, count, piece_of(t, 0), i);
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const uint one_zero = negative_zero((uint)a.zero);
    float4 sum[PARTS];
    UNROLL
    for (uint p = 0; p < PARTS; p++)
        sum[p] = 0.0f;
    uint item = 0, number = 0;
    _Pragma("unroll 1")
    for (uint turn = 0; turn < turns; turn++) {
        const uint piece = piece_of(t, turn), after = turn + 1 < turns ? piece_of(t, turn + 1) : pieces;
        const bool any = piece < pieces;
        const uint warps = min(pieces - (piece - warp), (uint)WARPS);
        uint x[PIECE / 32][PARTS][4];
        if (any) {
            feed_blocks(a, &r, first, piece, zeros);
            UNROLL
            for (uint p = 0; p < PARTS; p++) {
                wait_item(&r, item);
                wait_item(&r, item + 1);
                const uint at = r.slots + (item + lane / 16) % SLOTS * SLOT + lane / 4 % 4 * X_PITCH + lane % 4 * 16;
                UNROLL
                for (uint h = 0; h < PIECE / 32; h++) {
                    const uint4 v = nv90_get(at + h * 64);
                    x[h][p][0] = v.x;
                    x[h][p][1] = v.y;
                    x[h][p][2] = v.z;
                    x[h][p][3] = v.w;
                }
                item += 2;
            }
            nv90_warp_sync();
            _Pragma("unroll 1")
            for (uint i = 0; i < SLOTS; i++)
                if (i < count)
                    feed_block(a, &r, zeros);
                else if (after < pieces)
                    feed_x(a, &r, m0, first, count, after, i - count);
        } else if (after < pieces) {
            _Pragma("unroll 1")
            for (uint i = 0; i < X_ITEMS; i++)
                feed_x(a, &r, m0, first, count, after, i);
        }
        _Pragma("unroll 1")
        for (uint b = 0; b < count + LATER; b++) {
            float total[PARTS][4];
            if (any && b < count) {
                wait_item(&r, item);
                multiply(a, unit, r.slots + item % SLOTS * SLOT, x, one_zero, zeros, total);
                nv90_warp_sync();
                if (b + SLOTS < count)
                    feed_block(a, &r, zeros);
                else if (after < pieces)
                    feed_x(a, &r, m0, first, count, after, b + SLOTS - count);
                item++;
            }
            if (b < count)
                put_sums(places, unit, number++, any, total);
            if (b == warp + LATER)
                add_sums(places, unit, turn * count + warp, warps, sum);
        }
    }

    local float *patch = patches + warp * (RING / 4); // its ring is empty
    UNROLL
    for (uint p = 0; p < PARTS; p++) {
        const float s[4] = {sum[p].x, sum[p].y, sum[p].z, sum[p].w};
        UNROLL
        for (uint e = 0; e < 4; e++)
            patch[(p * 8 + mma_column(unit, e)) * PATCH_PITCH + mma_row(unit, e)] = s[e] * (1 / CODE_UNIT);
    }
    nv90_warp_sync();
    const uint block = first + warp;
    if (warp < count && block >= (uint)get_group_id(0) * count && m0 + lane / 2 < a.m &&
        block * 16 + lane % 2 * 8 < a.n)
        finish8(a, m0 + lane / 2, block * 16 + lane % 2 * 8, patch + lane / 2 * PATCH_PITCH + lane % 2 * 8);
}

#define STREAM(name, zeros)                                                                        \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(1) void name(               \
        LINEAR_PARAMETERS, const uint count)                                                       \
    {                                                                                              \
        local uchar memory[WARPS * RING + PLACES * PLACE_BYTES] __attribute__((aligned(128)));     \
        local ulong barriers[WARPS * SLOTS + 2 * PLACES];                                          \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        stream(a, (uint)(size_t)memory, (uint)(size_t)barriers, (local float *)memory, m_first,    \
               count, zeros);                                                                      \
    }

STREAM(linear_stream90_16, false)
STREAM(linear_stream90_16_zeros, true)
