// The linear layer on mma.sync for weights of 4 or 8 bits and more rows of x than linear_stream.cl
// takes. The weights are the instruction's A: they pass through local memory as they are packed and
// become halves in registers. x is B. The build chooses
//
//     -DX=f16 | bf16   -DW=u4_nv | s8_nv   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DSPAN=32   groups of 32 (of another multiple of it, not of 64); minimums
//     -DSPAN=64   groups of a multiple of 64
//
// A work-group computes 128 columns of y, each of its waves 32, for 64 rows or (kernel
// linear_packed_32) for 32. Sums of a group are kept apart until its scale is known to hold for all
// of them, so that scales cost no accuracy.
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/async_copy.clh"
#include "linear/linear_groups.clh"
#include "linear/linear_finish.clh"

#define WAVES    4
#define ITEMS    (WAVES * FRAGMENT_WAVE)
#define TILES    2 // blocks of 16 rows of W, of a wave
#define TILE_N   (WAVES * TILES * 16)
#define STEP_K   64
#define MINIMUMS (W_IS_U4 && SPAN == 32)

// A stage of local memory: x, 8 chunks of 16 bytes a row, then W, its tiles one after the other.
#define X_CHUNKS (STEP_K / 8)
#define LANES    (W_IS_U4 ? 32 : 64) // chunks of a block of 16 rows
#define W_CHUNKS (TILE_N / 16 * LANES)
#define STAGES   (W_IS_U4 ? 4 : 3)
#define STAGE(parts) ((parts)*8 * X_CHUNKS + W_CHUNKS)
#define MAX_PARTS    8 // of eight rows of x
#define X_COPIES(parts) ((parts)*8 * X_CHUNKS / ITEMS)
#define MAX_X_COPIES 4
#define W_COPIES     (W_CHUNKS / ITEMS)

// At the end the waves' sums lie in local memory as rows of y.
#define SUM_PITCH (TILES * 16 + 4)

// The four lanes of a quad read half a row, those of two quads different halves of the banks.
static inline uint x_index(uint row, uint chunk) { return row * X_CHUNKS + (chunk ^ row % 2 * 4); }

typedef struct {
    global const ushort *x[MAX_X_COPIES]; // beginnings of rows
    global const uint4 *w[W_COPIES];      // chunks of the first step
    uint chunk, to;                       // of x
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, ulong row, uint block, const uint parts)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    c.chunk = item % X_CHUNKS;
    c.to = x_index(item / X_CHUNKS, c.chunk); // of rows a multiple of 2 apart
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(parts); i++) {
        const ulong r = min(row + (item + i * ITEMS) / X_CHUNKS, a.m - 1);
        c.x[i] = (global const ushort *)a.x + row_begin(a.x_rows, r);
    }
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++) {
        const uint at = item + i * ITEMS;
        const uint b = min(block + at / LANES, (a.n - 1) / 16);
        c.w[i] = (global const uint4 *)(a.data + b * a.pitch) + at % LANES;
    }
    return c;
}

LINEAR_INLINE void fetch(const linear_t a, const copies_t *c, uint step, local uint4 *stage,
                         const uint parts)
{
    uint4 held;
    const uint chunk = step * X_CHUNKS + c->chunk;
    local uint4 *to = stage + c->to;
    if (a.x_access == X_ALIGNED && chunk < a.k / 8) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < X_COPIES(parts); i++)
            async_copy(to + i * ITEMS, (global const uint4 *)c->x[i] + chunk, &held);
    } else {
        FRAGMENT_UNROLL
        for (uint i = 0; i < X_COPIES(parts); i++)
            async_put(to + i * ITEMS, gather(a, c->x[i], chunk * 8), &held);
    }
    // Rows of W are filled up to whole steps, but for 8 bits in tiles of half a step.
    const uint tiles = (a.k + 31) / 32;
    local uint4 *w = stage + parts * 8 * X_CHUNKS + get_local_id(0);
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++) {
        const bool second = !W_IS_U4 && step * 2 + 1 >= tiles && (get_local_id(0) + i * ITEMS) % LANES >= 32;
        if (second) // the tile before it again, for x that is 0
            async_copy(w + i * ITEMS, c->w[i] + step * LANES - 32, &held);
        else
            async_copy(w + i * ITEMS, c->w[i] + step * LANES, &held);
    }
}

// A wave's sums of its 32 columns and 8 * parts rows.
typedef struct {
    float total[TILES][MAX_PARTS][4], span[TILES][MAX_PARTS][4], x[MAX_PARTS][4];
    raw_group raw[TILES], next[TILES]; // of this group, and of the one that follows
    halves_zeros zeros[TILES];
} sums_t;

// Asks for scales and zeros of the group of element k.
LINEAR_INLINE void load_groups(const linear_t a, fragment_unit unit, sums_t *s, uint block, uint k)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++)
        s->next[n] = load_group(a, min(block + n, (a.n - 1) / 16), k, unit.lane / 4);
}

// The next group begins; the one after it is that of element `after`.
LINEAR_INLINE void begin_span(const linear_t a, fragment_unit unit, sums_t *s, uint block,
                              uint after, const uint parts)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        s->raw[n] = s->next[n];
        s->zeros[n] = group_zeros(a, s->raw[n]);
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->span[n][p][e] = 0.0f;
        }
    }
    if (MINIMUMS) {
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->x[p][e] = 0.0f;
        }
    }
    load_groups(a, unit, s, block, after);
}

LINEAR_INLINE void end_span(const linear_t a, sums_t *s, const uint parts)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        const float2 scale = group_scales(a, s->raw[n]);
        const float2 minimum = MINIMUMS && a.scale_kind == SCALE_F16_MIN
                                   ? minimums_of(s->raw[n].scale)
                                   : (float2)(0.0f, 0.0f);
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++) {
                s->total[n][p][e] += (e < 2 ? scale.x : scale.y) * s->span[n][p][e];
                if (MINIMUMS && a.scale_kind == SCALE_F16_MIN)
                    s->total[n][p][e] += (e < 2 ? minimum.x : minimum.y) * s->x[p][e];
            }
        }
    }
}

// A lane's chunk of each block: of 4 bits all of a step, of 8 bits one half.
LINEAR_INLINE void load_w(fragment_unit unit, local const uint4 *stage, uint half_k, uint w[TILES][4],
                          const uint parts)
{
    local const uint4 *from = stage + parts * 8 * X_CHUNKS + unit.wave * TILES * LANES + unit.lane;
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        const uint4 v = from[n * LANES + half_k * 32];
        w[n][0] = v.x;
        w[n][1] = v.y;
        w[n][2] = v.z;
        w[n][3] = v.w;
    }
}

// The 32 weights along K of a stage that begin with its `half_k`-th.
LINEAR_INLINE void multiply(const linear_t a, fragment_unit unit, sums_t *s,
                            local const uint4 *stage, uint half_k, uint codes[TILES][4],
                            const uint parts)
{
    const uint g = unit.lane / 4, q = unit.lane % 4;
    const uint ones[4] = {HALVES_ONE, HALVES_ONE, HALVES_ONE, HALVES_ONE};
    uint x[MAX_PARTS][4];
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        const uint4 v = stage[x_index(p * 8 + g, half_k * 4 + q)];
        x[p][0] = v.x;
        x[p][1] = v.y;
        x[p][2] = v.z;
        x[p][3] = v.w;
    }
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        FRAGMENT_UNROLL
        for (uint j = 0; j < 2; j++) {
            uint w[4];
            if (W_IS_U4)
                u4_operands(codes[n][half_k * 2 + j], s->zeros[n], w);
            else
                s8_operands(codes[n][j], codes[n][2 + j], s->zeros[n], w);
            FRAGMENT_UNROLL
            for (uint p = 0; p < parts; p++)
                mma_instruction(unit, s->span[n][p], w, x[p] + 2 * j);
        }
    }
    if (MINIMUMS && a.scale_kind == SCALE_F16_MIN) {
        FRAGMENT_UNROLL
        for (uint j = 0; j < 2; j++) {
            FRAGMENT_UNROLL
            for (uint p = 0; p < parts; p++)
                mma_instruction(unit, s->x[p], ones, x[p] + 2 * j);
        }
    }
}

LINEAR_INLINE void packed(const linear_t a, fragment_unit unit, local uint4 *memory, ulong m_first,
                          const uint parts)
{
    const ulong2 tile = tile_of();
    const ulong row = m_first + tile.y * parts * 8;
    const uint column = (uint)tile.x * TILE_N;
    const uint block = column / 16 + unit.wave * TILES; // of this wave
    const uint steps = (a.k + STEP_K - 1) / STEP_K;
    // Steps of a group, whose sums may be added up before they are scaled.
    const uint period = SPAN == 32 ? 1 : a.groups == 1 ? steps : a.group_size / STEP_K;

    const copies_t copies = copies_of(a, row, column / 16, parts);
    FRAGMENT_UNROLL
    for (uint i = 0; i < STAGES - 1; i++) {
        if (i < steps)
            fetch(a, &copies, i, memory + i * STAGE(parts), parts);
        async_commit();
    }
    sums_t s;
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s.total[n][p][e] = 0.0f;
        }
    }
    load_groups(a, unit, &s, block, 0);
    uint slot = 0, phase = 0; // the stage of this step; the step within its group
    for (uint step = 0; step < steps; step++) {
        async_wait(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);
        // The stage before this one is free: all waves are past it.
        if (step + STAGES - 1 < steps)
            fetch(a, &copies, step + STAGES - 1,
                  memory + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE(parts), parts);
        async_commit();
        local const uint4 *stage = memory + slot * STAGE(parts);
        if (phase == 0)
            begin_span(a, unit, &s, block,
                       SPAN == 32 ? step * STEP_K + 32 : (step + period) * STEP_K, parts);
        uint w[TILES][4];
        load_w(unit, stage, 0, w, parts);
        multiply(a, unit, &s, stage, 0, w, parts);
        if (SPAN == 32) {
            end_span(a, &s, parts);
            begin_span(a, unit, &s, block, (step + 1) * STEP_K, parts);
        }
        if (!W_IS_U4)
            load_w(unit, stage, 1, w, parts);
        multiply(a, unit, &s, stage, 1, w, parts);
        phase = phase + 1 < period ? phase + 1 : 0;
        if (phase == 0 || step + 1 == steps)
            end_span(a, &s, parts);
        slot = slot + 1 < STAGES ? slot + 1 : 0;
    }

    async_wait(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    local float *sums = (local float *)memory + unit.wave * (parts * 8 * SUM_PITCH);
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                sums[(p * 8 + mma_column(unit, e)) * SUM_PITCH + n * 16 + mma_row(unit, e)] =
                    s.total[n][p][e];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    _Pragma("unroll 1")
    for (uint i = unit.lane; i < parts * 8 * TILES * 2; i += FRAGMENT_WAVE) {
        const uint r = i / (TILES * 2), c = i % (TILES * 2) * 8;
        if (row + r < a.m && block * 16 + c < a.n)
            finish8(a, row + r, block * 16 + c, sums + r * SUM_PITCH + c);
    }
}

#define PACKED(name, parts)                                                                        \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(2) void name(               \
        LINEAR_PARAMETERS)                                                                         \
    {                                                                                              \
        local uint4 memory[STAGES * STAGE(parts)];                                                 \
        FRAGMENT_UNIT(unit, WAVES);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        packed(a, unit, memory, m_first, parts);                                                   \
    }

PACKED(linear_packed_32, 4)
#if SPAN == 64
PACKED(linear_packed_64, 8)
#endif
