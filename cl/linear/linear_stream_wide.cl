// As linear_stream.cl, for nine to sixteen rows of x, plain rows of whole steps along K, and weights of
// 4 bits in groups of whole steps. A warp multiplies what it has read of x by seven blocks of W. x,
// codes, scales and zeros come by copies to local memory, a step or two ahead, into a place of the
// warp's own, so that no warp waits for another before the end. docs/matrix-units.md explains it.
//
// For compute capability 9.0: a work-group has more than 48 KiB of local memory. The build chooses
//
//     -DX=f16 | bf16   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DSPAN=4 | 0     groups are multiples of 128 weights along K; a row has one scale
//
// Work-groups are of 112 columns, two a unit.
#define W             u4_nv
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#define ASYNC_COPY_CP
#endif
#define WARPS 4 // share the rows of a work-group: each takes every fourth step along K
#define TILES 7 // blocks of 16 rows of W
#include "common/async_copy.clh"
#include "common/halves.clh"
#include "linear/linear_groups.clh"
#include "linear/linear_stream.clh"

#define ROWS   16
#define LOADS  2 // 16-byte loads of a step, for each tile
#define STEP_K (LOADS * 64)
#define STEP_SHIFT 7       // log2 of it
#define WHOLE  (SPAN == 0) // scales are applied at the end
#define LANES  FRAGMENT_WAVE
#define FIRST  4 // tiles that are multiplied first, and whose codes are copied by themselves

// A slot, of which a warp has two, holds a step: in vectors of 16 bytes rows of x, codes, two vectors
// of scales for each tile and half a vector of zeros. It begins on a line of 128 bytes, since
// copies of whole lines to places between two lines are much slower.
#define X_CHUNKS (STEP_K / 8)
#define CODES    (ROWS * X_CHUNKS)
#define OWN      (LOADS * LANES) // of a tile
#define SCALES   (CODES + TILES * OWN)
#define ZEROS    (SCALES + 2 * TILES)
#define LINE     8
#define SLOT     (((WHOLE ? SCALES : ZEROS + (TILES + 1) / 2) + LINE - 1) / LINE * LINE)

#define X_COPIES (ROWS * X_CHUNKS / LANES) // of a lane

// What a lane copies.
typedef struct {
    global const uint4 *data[TILES]; // of step 0
    global const uint4 *x[X_COPIES];
    global const uchar *groups; // of scales, or zeros, of group 0
    uint steps, ratio;
} source_t;

// Of chunks that eight lanes read at once, four are of an even row and four of an odd one.
LINEAR_INLINE uint x_place(uint row, uint chunk)
{
    return row * X_CHUNKS + (chunk ^ row % 2 * 4);
}

// Rows of x beyond M are the last one again; their sums are not stored.
LINEAR_INLINE source_t source_of(const linear_t a, fragment_unit unit, uint first_block, ulong m0)
{
    source_t s;
    const uint last_block = (a.n - 1) / 16;
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++)
        s.data[n] = (global const uint4 *)(a.data + min(first_block + n, last_block) * a.pitch) +
                    unit.lane;
    FRAGMENT_UNROLL
    for (uint j = 0; j < X_COPIES; j++) {
        const ulong m = min(m0 + (j * LANES + unit.lane) / X_CHUNKS, a.m - 1);
        s.x[j] = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset +
                                        m * a.x_rows.s0) +
                 unit.lane % X_CHUNKS;
    }
    s.steps = a.k / STEP_K;
    const bool is_scale = unit.lane < 2 * TILES;
    const uint n = is_scale ? unit.lane / 2 : unit.lane - 2 * TILES;
    const ulong entry = (ulong)min(first_block + n, last_block) * a.groups * 8;
    s.groups = is_scale ? a.scales + entry * 4 + unit.lane % 2 * 16 : a.zeros + entry;
    s.ratio = !WHOLE && a.groups > 1 ? ratio_of_groups(a, STEP_SHIFT) : 0;
    return s;
}

// Codes of tiles from ... to - 1. Beyond the last step they are its own again, as scales are; x is 0.
LINEAR_INLINE void copy_codes(const source_t s, local uint4 *slot, fragment_unit unit, uint step,
                              const uint from, const uint to)
{
    uint4 held;
    step = min(step, s.steps - 1);
    FRAGMENT_UNROLL
    for (uint n = from; n < to; n++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < LOADS; i++)
            async_copy(slot + CODES + n * OWN + i * LANES + unit.lane,
                       s.data[n] + step * OWN + i * LANES, &held);
    }
}

// All else of a step.
LINEAR_INLINE void copy_rest(const linear_t a, const source_t s, local uint4 *slot,
                             fragment_unit unit, uint step, const bool zeros)
{
    uint4 held;
    const bool past = step >= s.steps;
    copy_codes(s, slot, unit, step, FIRST, TILES);
    step = min(step, s.steps - 1);
    FRAGMENT_UNROLL
    for (uint j = 0; j < X_COPIES; j++)
        async_copy_or_zero(slot + x_place((j * LANES + unit.lane) / X_CHUNKS, unit.lane % X_CHUNKS),
                           s.x[j] + step * X_CHUNKS, !past);
    if (WHOLE)
        return;
    const uint group = min(mul_hi(2 * step + 1, s.ratio), a.groups - 1);
    if (unit.lane < 2 * TILES)
        async_copy(slot + SCALES + unit.lane, (global const uint4 *)(s.groups + group * 32), &held);
    else if (zeros && unit.lane < 3 * TILES)
        async_copy8((local uint2 *)(slot + ZEROS) + unit.lane - 2 * TILES,
                    (global const uint2 *)(s.groups + group * 8));
}

// x of a step, in registers: by 32 of K and eight rows.
typedef struct {
    uint v[4][2][4];
} x_t;

LINEAR_INLINE x_t load_step_of_x(local const uint4 *slot, fragment_unit unit)
{
    x_t x;
    FRAGMENT_UNROLL
    for (uint i = 0; i < 8; i++) {
        const uint4 v = load_local(slot + x_place(unit.lane / 4, i / 2 % 2 * 4 + unit.lane % 4) +
                                   i / 4 * 8 + i % 2 * 8 * X_CHUNKS);
        x.v[i / 2][i % 2][0] = v.x;
        x.v[i / 2][i % 2][1] = v.y;
        x.v[i / 2][i % 2][2] = v.z;
        x.v[i / 2][i % 2][3] = v.w;
    }
    return x;
}

LINEAR_INLINE float2 scales_of(const linear_t a, uint raw)
{
    if (a.scale_kind == SCALE_BF16)
        return as_float2((uint2)(raw << 16, raw & 0xffff0000u));
    return (float2)(f16_bits_to_float((ushort)raw), f16_bits_to_float((ushort)(raw >> 16)));
}

// A step's products of tiles from ... to - 1.
LINEAR_INLINE void multiply(const linear_t a, fragment_unit unit, local const uint4 *slot, x_t x,
                            const uint from, const uint to, const bool zeros,
                            halves_zeros zero[TILES], float total[TILES][2][4])
{
    const uint g = unit.lane / 4;
    float sum[TILES][2][4];
    FRAGMENT_UNROLL
    for (uint n = from; n < to; n++) {
        if (!WHOLE && zeros)
            zero[n] = u4_unit_zeros(((local const uchar *)(slot + ZEROS))[n * 8 + g]);
        FRAGMENT_UNROLL
        for (uint e = 0; e < 8; e++)
            sum[n][e / 4][e % 4] = WHOLE ? total[n][e / 4][e % 4] : 0.0f;
    }
    FRAGMENT_UNROLL
    for (uint i = 0; i < LOADS; i++) {
        uint w[TILES][4];
        FRAGMENT_UNROLL
        for (uint n = from; n < to; n++) {
            const uint4 v = load_local(slot + CODES + n * OWN + i * LANES + unit.lane);
            w[n][0] = v.x;
            w[n][1] = v.y;
            w[n][2] = v.z;
            w[n][3] = v.w;
        }
        FRAGMENT_UNROLL
        for (uint j = 0; j < 4; j++) {
            FRAGMENT_UNROLL
            for (uint n = from; n < to; n++) {
                uint v[4];
                u4_unit_operands(w[n][j], zero[n], v);
                FRAGMENT_UNROLL
                for (uint p = 0; p < 2; p++)
                    mma_instruction(unit, sum[n][p], v, x.v[2 * i + j / 2][p] + j % 2 * 2);
            }
        }
    }
    FRAGMENT_UNROLL
    for (uint n = from; n < to; n++) {
        const float2 scale =
            WHOLE ? (float2)(1.0f) : scales_of(a, ((local const uint *)(slot + SCALES))[n * 8 + g]);
        FRAGMENT_UNROLL
        for (uint e = 0; e < 8; e++) {
            float *to_sum = &total[n][e / 4][e % 4];
            const float v = sum[n][e / 4][e % 4];
            *to_sum = WHOLE ? v : *to_sum + (e % 4 < 2 ? scale.x : scale.y) * v;
        }
    }
}

// A work-group's outputs: TILES blocks of 16 rows of W by sixteen rows of x. Beyond N the last block
// is computed again and not stored.
LINEAR_INLINE void stream(const linear_t a, fragment_unit unit, local uint4 *slots, const ulong m0,
                          const bool zeros)
{
    const uint first_block = (uint)get_group_id(0) * TILES;
    const source_t s = source_of(a, unit, first_block, m0);
    const uint turns = (s.steps + WARPS - 1) / WARPS;
    local uint4 *slot = slots + unit.wave * (2 * SLOT), *other = slot + SLOT;
    copy_codes(s, slot, unit, unit.wave, 0, FIRST);
    copy_rest(a, s, slot, unit, unit.wave, zeros);
    async_commit();
    copy_codes(s, other, unit, unit.wave + WARPS, 0, FIRST);
    async_commit();

    float total[TILES][2][4];
    halves_zeros zero[TILES];
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        const uint block = min(first_block + n, (a.n - 1) / 16);
        zero[n] = u4_unit_zeros(WHOLE && zeros ? a.zeros[block * 8 + unit.lane / 4]
                                               : (uint)a.zero * 0x11u);
        FRAGMENT_UNROLL
        for (uint e = 0; e < 8; e++)
            total[n][e / 4][e % 4] = 0.0f;
    }
    _Pragma("unroll 1")
    for (uint turn = 0; turn < turns; turn++) {
        const uint step = turn * WARPS + unit.wave;
        async_wait(1);
        warp_barrier(); // what any lane copied is there, and the other slot is read
        if (turn + 1 < turns)
            copy_rest(a, s, other, unit, step + WARPS, zeros);
        async_commit();
        const x_t x = load_step_of_x(slot, unit);
        multiply(a, unit, slot, x, 0, FIRST, zeros, zero, total);
        if (turn + 2 < turns)
            copy_codes(s, slot, unit, step + 2 * WARPS, 0, FIRST);
        async_commit();
        multiply(a, unit, slot, x, FIRST, TILES, zeros, zero, total);
        local uint4 *last = slot;
        slot = other;
        other = last;
    }

    local float *sums = (local float *)slots;
    FRAGMENT_UNROLL
    for (uint p = 0; p < 2; p++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        FRAGMENT_UNROLL
        for (uint n = 0; n < TILES; n++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                total[n][p][e] *= 1 / CODE_UNIT;
            put_sums(unit, sums, TILES, n, total[n][p]);
        }
        finish_part(a, sums, TILES, first_block, m0 + p * 8, WHOLE);
    }
}

#define STREAM(name, zeros)                                                                        \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))                                      \
    RESIDENT(2) void name(LINEAR_PARAMETERS)                                                       \
    {                                                                                              \
        local uint4 __attribute__((aligned(LINE * 16))) slots[WARPS * 2 * SLOT];                   \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        stream(a, unit, slots, m_first, zeros);                                                    \
    }

STREAM(linear_stream_wide, false)
STREAM(linear_stream_wide_zeros, true)
