// The linear layer for up to sixteen rows of x and weights of 4 or 8 bits, on mma.sync: the time is
// that of reading W once. The weights are the instruction's A, in the layouts u4-affine/nv and
// s8/nv, whose bytes go from memory to its registers with nothing in between; x is B, eight rows at
// a time, read by the lanes that need it. docs/matrix-units.md explains it. The build chooses
//
//     -DX=f16 | bf16   -DW=u4_nv | s8_nv   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DWARPS=4 | 8 | 16    share the rows of a work-group: each takes every WARPS-th step along K;
//                           4 and 16 for scales of whole steps and the kinds plain and zeros alone
//     -DTILES=1 | 2         blocks of 16 rows of W in a work-group
//     -DSPAN=1 | 2 | 4      times 32 weights along K have one scale: groups are multiples of that;
//                           0: a row has one scale
//     -DGATED               with TILES=2: a block of gate and one of up, and their activation
//
// The order of a sum depends on WARPS and SPAN alone, not on how many rows of x go together.
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/halves.clh"
#include "linear/linear_groups.clh"
#include "linear/linear_stream.clh"

#define LOADS     2                         // 16-byte loads of a step, for each tile
#define LOAD_K    (W_IS_U4 ? 64 : 32)  // weights along K of one
#define STEP_K    (LOADS * LOAD_K)
#define SPAN_K    (WHOLE ? STEP_K : SPAN * 32)
#define WHOLE     (SPAN == 0) // scales are applied at the end
#define SPANS     (WHOLE ? 1 : STEP_K / SPAN_K)
#define SPAN_SHIFT (SPAN == 4 ? 7 : SPAN == 2 ? 6 : 5) // log2 of SPAN_K
#define HALVES     (STEP_K / 32)
#define MAX_TILES 2

// Only blocks of 32 weights come with minimums.
#define MINIMUMS (W_IS_U4 && SPAN == 1)

// ---- Scales and zeros of a lane's two rows

// Where they are found: what the tiles share.
typedef struct {
    bool narrow;          // scales of two bytes
    bool zeros, minimums; // of their own
    uint ratio;
} groups_t;

// What a kernel knows of them. All but ANY: scales of two bytes, no minimums.
enum { PLAIN, ZEROS, ANY };

LINEAR_INLINE groups_t groups_of(const linear_t a, const uint kind)
{
    groups_t g;
    g.narrow = kind != ANY || a.scale_kind == SCALE_F16 || a.scale_kind == SCALE_BF16;
    g.zeros = kind == ZEROS || (kind == ANY && a.zeros);
    g.minimums = MINIMUMS && kind == ANY && a.scale_kind == SCALE_F16_MIN;
    g.ratio = !WHOLE && a.groups > 1 ? ratio_of_groups(a, SPAN_SHIFT) : 0;
    return g;
}

LINEAR_INLINE float2 scales_of(const linear_t a, groups_t g, uint2 raw)
{
    if (!g.narrow && a.scale_kind == SCALE_F32)
        return as_float2(raw);
    if (a.scale_kind == SCALE_BF16)
        return as_float2((uint2)(raw.x << 16, raw.x & 0xffff0000u));
    const uint second = g.minimums ? raw.y : raw.x >> 16;
    return (float2)(f16_bits_to_float((ushort)raw.x), f16_bits_to_float((ushort)second));
}

// Codes of 4 bits are multiplied in units.
#define UNIT (W_IS_U4 ? CODE_UNIT : 1.0f)
#define ONES (W_IS_U4 ? UNIT_PAIR : HALVES_ONE)

LINEAR_INLINE halves_zeros unit_zeros(uint raw)
{
    return W_IS_U4 ? u4_unit_zeros(raw) : zeros_of(raw);
}

// ---- The product

typedef struct {
    global const uint4 *data; // this lane's, of step 0 and group 0
    uint entry; // this lane's in the tables of scales and zeros, of group 0
    uint w[LOADS][4]; // of this step
    raw_group raw[SPANS];
    halves_zeros zero;
    float sum[MAX_PARTS][4]; // of the span
    float total[MAX_PARTS][4];
} tile_t;

LINEAR_INLINE void clear(float sum[MAX_PARTS][4], const uint parts)
{
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        FRAGMENT_UNROLL
        for (uint e = 0; e < 4; e++)
            sum[p][e] = 0.0f;
    }
}

LINEAR_INLINE uint zero_of_group(const linear_t a, const tile_t *t, uint group)
{
    const uint i = t->entry + group * 8;
    return W_IS_U4 ? a.zeros[i] : ((global const ushort *)a.zeros)[i];
}

LINEAR_INLINE void find_tile(const linear_t a, tile_t *t, groups_t g, uint block, uint lane)
{
    t->data = (global const uint4 *)(a.data + block * a.pitch) + lane;
    t->entry = block * a.groups * 8 + lane / 4;
    const uint one = W_IS_U4 ? (uint)a.zero * 0x11u : ((uint)(int)a.zero & 255) * 0x0101u;
    t->zero = unit_zeros(WHOLE && g.zeros ? zero_of_group(a, t, 0) : one);
}

// edge: whether the last step may go beyond the last group.
LINEAR_INLINE void load_step(const linear_t a, tile_t *t, groups_t g, uint step, const bool edge)
{
    global const uint4 *data = t->data + step * (LOADS * NV_TILE_BYTES / 16);
    FRAGMENT_UNROLL
    for (uint i = 0; i < LOADS; i++) {
        const uint4 v = load_codes(data + i * (NV_TILE_BYTES / 16));
        t->w[i][0] = v.x;
        t->w[i][1] = v.y;
        t->w[i][2] = v.z;
        t->w[i][3] = v.w;
    }
    if (WHOLE)
        return;
    FRAGMENT_UNROLL
    for (uint i = 0; i < SPANS; i++) {
        uint group = mul_hi(2 * (step * SPANS + i) + 1, g.ratio);
        if (edge)
            group = min(group, a.groups - 1);
        if (g.narrow)
            t->raw[i].scale.x = ((global const uint *)a.scales)[t->entry + group * 8];
        else
            t->raw[i].scale = ((global const uint2 *)a.scales)[t->entry + group * 8];
        if (g.zeros)
            t->raw[i].zero = zero_of_group(a, t, group);
    }
}

LINEAR_INLINE void begin_span(tile_t *t, groups_t g, uint span, const uint parts)
{
    if (g.zeros)
        t->zero = unit_zeros(t->raw[span].zero);
    clear(t->sum, parts);
}

// x_sum: that of the span's x, whose rows are all the same.
LINEAR_INLINE void end_span(const linear_t a, tile_t *t, groups_t g, uint span, const uint parts,
                            float x_sum[MAX_PARTS][4])
{
    const float2 scale = scales_of(a, g, t->raw[span].scale);
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        FRAGMENT_UNROLL
        for (uint e = 0; e < 4; e++)
            t->total[p][e] += (e < 2 ? scale.x : scale.y) * t->sum[p][e];
    }
    if (g.minimums) {
        const float2 minimum = minimums_of(t->raw[span].scale);
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                t->total[p][e] += (e < 2 ? minimum.x : minimum.y) * x_sum[p][e];
        }
    }
}

// The 32 weights along K of load i that begin with its `half`-th.
LINEAR_INLINE void multiply(fragment_unit unit, tile_t *t, const bool minimums, uint i, uint half_k,
                            const uint tiles, const uint parts, uint x[MAX_PARTS][4],
                            float x_sum[MAX_PARTS][4])
{
    const uint ones[4] = {ONES, ONES, ONES, ONES};
    FRAGMENT_UNROLL
    for (uint j = 0; j < 2; j++) {
        FRAGMENT_UNROLL
        for (uint n = 0; n < tiles; n++) {
            uint w[4];
            if (W_IS_U4)
                u4_unit_operands(t[n].w[i][2 * half_k + j], t[n].zero, w);
            else
                s8_operands(t[n].w[i][j], t[n].w[i][2 + j], t[n].zero, w);
            FRAGMENT_UNROLL
            for (uint p = 0; p < parts; p++)
                mma_instruction(unit, t[n].sum[p], w, x[p] + 2 * j);
        }
        if (minimums) {
            FRAGMENT_UNROLL
            for (uint p = 0; p < parts; p++)
                mma_instruction(unit, x_sum[p], ones, x[p] + 2 * j);
        }
    }
}

// x of a step: eight elements for each 32, of a lane's row of each eight. Rows beyond M are the last
// one again; their sums are not stored. Gathered: in any layout and order, or K is not whole steps.
LINEAR_INLINE void load_x(const linear_t a, const ulong x_row[MAX_PARTS], uint k, const uint parts,
                          const bool gathered, uint x[HALVES][MAX_PARTS][4])
{
    const bool vectors = a.x_access == X_ALIGNED && a.k % 8 == 0;
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        global const uint4 *row =
            (global const uint4 *)((global const ushort *)a.x + x_row[p] + (gathered ? 0 : k));
        FRAGMENT_UNROLL
        for (uint h = 0; h < HALVES; h++) {
            const uint4 v = !gathered ? (FRAGMENT_IS_PAST(k, a.k) ? (uint4)(0u) : row[h * 4])
                            : vectors ? x8(a, x_row[p], true, k + h * 32, false)
                                      : x8(a, x_row[p], true, k + h * 32, true);
            x[h][p][0] = v.x;
            x[h][p][1] = v.y;
            x[h][p][2] = v.z;
            x[h][p][3] = v.w;
        }
    }
}

// A work-group's outputs: `tiles` blocks of 16 rows of W by 8 `parts` rows of x. Beyond N the last
// block is computed again and not stored. gate: 0, or two tiles are one block of outputs.
LINEAR_INLINE void stream(const linear_t a, fragment_unit unit, local float *sums, const ulong m0,
                          const uint tiles, const uint parts, const uint kind, const bool gathered,
                          const gate_t *gate)
{
    const uint g = unit.lane / 4, q = unit.lane % 4;
    const uint first_block = (uint)get_group_id(0) * (gate ? 1 : tiles);
    const uint last_block = ((gate ? gate->outputs : a.n) - 1) / 16;
    tile_t t[MAX_TILES];
    ulong x_row[MAX_PARTS];
    float x_sum[MAX_PARTS][4];
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        const ulong m = min(m0 + p * 8 + g, a.m - 1);
        x_row[p] = gathered ? row_begin(a.x_rows, m) : a.x_rows.offset + m * a.x_rows.s0;
    }
    const groups_t groups = groups_of(a, kind);
    const linear_t up = gate ? up_of(a, *gate) : a;
    FRAGMENT_UNROLL
    for (uint n = 0; n < tiles; n++) {
        if (gate && n == 1)
            find_tile(up, &t[n], groups, first_block + gate->up_first / 16, unit.lane);
        else
            find_tile(a, &t[n], groups, min(first_block + n, last_block), unit.lane);
        clear(t[n].sum, parts);
        clear(t[n].total, parts);
    }

    const uint steps = (a.k + STEP_K - 1) / STEP_K, turns = FRAGMENT_TURNS(steps, WARPS);
    _Pragma("unroll 1")
    for (uint step = unit.wave; step < turns; step += WARPS) {
        uint x[HALVES][MAX_PARTS][4];
        FRAGMENT_UNROLL
        for (uint n = 0; n < tiles; n++)
            load_step(gate && n == 1 ? up : a, &t[n], groups,
                      FRAGMENT_IS_PAST(step, steps) ? steps - 1 : step,
                      (kind != PLAIN) | (WARPS == 16));
        // Worked out anew: kept, it costs a register that linear_stream_8_zeros does not have.
        load_x(a, x_row, forgotten(step) * STEP_K + q * 8, parts, gathered, x);
        FRAGMENT_UNROLL
        for (uint h = 0; h < HALVES; h++) {
            const uint span = h * 32 / SPAN_K;
            if (!WHOLE && h * 32 % SPAN_K == 0) {
                clear(x_sum, parts);
                FRAGMENT_UNROLL
                for (uint n = 0; n < tiles; n++)
                    begin_span(&t[n], groups, span, parts);
            }
            multiply(unit, t, groups.minimums, h * 32 / LOAD_K, h % (LOAD_K / 32), tiles, parts,
                     x[h], x_sum);
            if (!WHOLE && (h + 1) * 32 % SPAN_K == 0) {
                FRAGMENT_UNROLL
                for (uint n = 0; n < tiles; n++)
                    end_span(a, &t[n], groups, span, parts, x_sum);
            }
        }
    }

    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        if (p > 0)
            barrier(CLK_LOCAL_MEM_FENCE);
        FRAGMENT_UNROLL
        for (uint n = 0; n < tiles; n++) {
            float *sum = WHOLE ? t[n].sum[p] : t[n].total[p];
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                sum[e] *= 1 / UNIT;
            put_sums(unit, sums, tiles, n, sum);
        }
        if (gate)
            finish_gated_part(a, *gate, sums, first_block, m0 + p * 8, WHOLE);
        else
            finish_part(a, sums, tiles, first_block, m0 + p * 8, WHOLE);
    }
}

// How many work-groups find room on a compute unit, which bounds their registers. Short spans need
// more of them, and so does the end of gated pairs.
#if WARPS == 8
#define ANY_8  RESIDENT(2)
#define ANY_16 RESIDENT(1)
#if SPAN == 1 || SPAN == 2
#define PLAIN_8  RESIDENT(2)
#define PLAIN_16 RESIDENT(1)
#elif W_IS_U4 || defined(GATED)
#define PLAIN_8  RESIDENT(3)
#define PLAIN_16 RESIDENT(2)
#else
#define PLAIN_8  RESIDENT(4)
#define PLAIN_16 RESIDENT(2)
#endif
#elif WARPS == 4 && defined(GATED)
#define PLAIN_8  RESIDENT(5)
#define PLAIN_16 RESIDENT(3)
#elif WARPS == 4
#define PLAIN_8  RESIDENT(7)
#define PLAIN_16 RESIDENT(4)
#elif TILES == 1
#define PLAIN_8  RESIDENT(2)
#define PLAIN_16 RESIDENT(2)
#else
#define PLAIN_8  RESIDENT(1)
#define PLAIN_16 RESIDENT(1)
#endif

#ifdef GATED
#define STREAM_PARAMETERS LINEAR_PARAMETERS, GATE_PARAMETERS
#define STREAM_GATE                                                                                \
    const gate_t pair = GATE_ARGUMENTS;                                                            \
    const gate_t *gate = &pair
#else
#define STREAM_PARAMETERS LINEAR_PARAMETERS
#define STREAM_GATE       const gate_t *gate = 0
#endif

#define STREAM(name, bound, tiles, parts, kind, gathered)                                          \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) bound void name(STREAM_PARAMETERS)   \
    {                                                                                              \
        local float sums[WARPS * 8 * SUM_PITCH(tiles)];                                            \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        STREAM_GATE;                                                                               \
        stream(a, unit, sums, m_first, tiles, parts, kind, gathered, gate);                        \
    }

// By rows of x, eight or sixteen.
STREAM(linear_stream_8, PLAIN_8, TILES, 1, PLAIN, false)
STREAM(linear_stream_16, PLAIN_16, TILES, 2, PLAIN, false)
STREAM(linear_stream_8_zeros, PLAIN_8, TILES, 1, ZEROS, false)
STREAM(linear_stream_16_zeros, PLAIN_16, TILES, 2, ZEROS, false)
// Of these there is one size, which keeps images few.
#if WARPS == 8 || defined(FRAGMENT_EMULATED)
#ifndef ANY_8
#define ANY_8
#define ANY_16
#endif
STREAM(linear_stream_8_any, ANY_8, TILES, 1, ANY, false)
STREAM(linear_stream_16_any, ANY_16, TILES, 2, ANY, false)
STREAM(linear_stream_8_gathered, ANY_8, TILES, 1, ANY, true)
STREAM(linear_stream_16_gathered, ANY_16, TILES, 2, ANY, true)
#endif
