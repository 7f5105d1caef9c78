// The linear layer for nine to sixteen rows of x and weights of 4 bits on mma.sync, for compute
// capability 9.0, from its sm_90a image only: for many columns of y. As linear_stream.cl, weights go
// from memory to registers, there two steps ahead; but a work-group fills a compute unit, and all of
// its warps read x in local memory, where one warp brings it, so that each unit reads it once.
// docs/matrix-units.md explains it.
//
//     -DX=f16 | bf16   -DW=u4_nv
//
// Groups are multiples of STEP_K, or a row has one; scales are of two bytes. Rows of x are whole
// steps, in the order of W and on 16-byte boundaries.
#define NV90_TYPE     X
#define FRAGMENT_TYPE X
#define FRAGMENT_MMA

#include "common/nv.clh"
#include "common/nv90.clh"
#include "linear/linear_groups.clh"

#define UNROLL _Pragma("unroll")

#define WARPS     14 // that multiply; those of the same columns take turns at steps along K
#define ITEMS     ((WARPS + 1) * 32)
#define TILES     2 // blocks of 16 rows of W, of a warp
#define PARTS     2 // of eight rows of x
#define STEP_K    128
#ifndef SETS
#define SETS      3 // of codes in registers: of this step and the next ones
#endif

// x in local memory: stages of a few steps. The pitch spreads rows over the banks.
#define STEPS   4
#ifndef STAGES
#define STAGES  6
#endif
#define X_PITCH (STEPS * STEP_K * 2 + 64)
#define X_ROWS  (PARTS * 8)
#define X_STAGE (X_ROWS * X_PITCH)
#define SUM_PITCH (TILES * 16 + 4)

// The stages of x: work-groups begin with different ones, so that not all read the same of x.
typedef struct {
    uint at, full, free; // addresses: of the first place, its barriers
    uint count, first;
} stages_t;

LINEAR_INLINE uint stage_at(stages_t s, uint i)
{
    const uint stage = i + s.first;
    return stage - (stage >= s.count ? s.count : 0);
}

// By a warp. Rows beyond M are the last one again.
LINEAR_INLINE void bring_x(const linear_t a, stages_t s, const ulong m0)
{
    const uint lane = (uint)get_local_id(0) % 32;
    global const ushort *x =
        (global const ushort *)a.x + a.x_rows.offset + min(m0 + lane, a.m - 1) * a.x_rows.s0;
    for (uint i = 0; i < s.count; i++) {
        const uint place = i % STAGES, full = s.full + place * 8, k = stage_at(s, i) * (STEPS * STEP_K);
        const uint bytes = min(a.k - k, (uint)(STEPS * STEP_K)) * 2;
        nv90_barrier_wait(s.free + place * 8, (i / STAGES & 1) ^ 1);
        if (lane == 0)
            nv90_barrier_expect(full, X_ROWS * bytes);
        nv90_warp_sync();
        if (lane < X_ROWS)
            nv90_bulk(s.at + place * X_STAGE + lane * X_PITCH, x + k, bytes, full);
    }
}

// What a step takes from memory.
typedef struct {
    uint4 codes[TILES][2];
    uint scale[TILES], zero[TILES];
} step_t;

// Where a lane finds that, of step 0; and the steps that it loads, one after the other.
typedef struct {
    ulong codes[TILES];
    uint entry[TILES]; // in the tables of scales and zeros
    uint ratio;        // group of a step: mul_hi(2 step + 1, ratio)
    uint steps, all;   // of K, of all stages
    uint next, deep;
} place_t;

LINEAR_INLINE void load_step(const linear_t a, step_t *v, place_t *t, const bool zeros)
{
    const uint step = min(t->next, t->steps - 1), group = mul_hi(2 * step + 1, t->ratio) * 8;
    UNROLL
    for (uint n = 0; n < TILES; n++) {
        global const uint4 *codes = (global const uint4 *)(t->codes[n] + step * (2 * NV_TILE_BYTES));
        v->codes[n][0] = load_codes(codes);
        v->codes[n][1] = load_codes(codes + NV_TILE_BYTES / 16);
        v->scale[n] = ((global const uint *)a.scales)[t->entry[n] + group];
        if (zeros)
            v->zero[n] = a.zeros[t->entry[n] + group];
    }
    t->next += t->deep;
    t->next -= t->next >= t->all ? t->all : 0;
}

// x: the address of this lane's, of the step.
LINEAR_INLINE void multiply(const linear_t a, fragment_unit unit, const step_t *v, uint x, halves_zeros one_zero,
                            const bool zeros, float total[TILES][PARTS][4])
{
    float sum[TILES][PARTS][4];
    halves_zeros z[TILES];
    UNROLL
    for (uint n = 0; n < TILES; n++) {
        z[n] = zeros ? u4_unit_zeros(v->zero[n] & 15, v->zero[n] >> 4) : one_zero;
        UNROLL
        for (uint e = 0; e < 4 * PARTS; e++)
            sum[n][e / 4][e % 4] = 0.0f;
    }
    UNROLL
    for (uint h = 0; h < STEP_K / 32; h++) {
        uint xs[PARTS][4];
        UNROLL
        for (uint p = 0; p < PARTS; p++) {
            const uint4 c = nv90_get(x + p * 8 * X_PITCH + h * 64);
            xs[p][0] = c.x;
            xs[p][1] = c.y;
            xs[p][2] = c.z;
            xs[p][3] = c.w;
        }
        UNROLL
        for (uint j = 0; j < 2; j++) {
            UNROLL
            for (uint n = 0; n < TILES; n++) {
                const uint4 c = v->codes[n][h / 2];
                uint w[4];
                u4_unit_operands(h % 2 ? (j ? c.w : c.z) : j ? c.y : c.x, z[n], w);
                UNROLL
                for (uint p = 0; p < PARTS; p++)
                    mma_instruction(unit, sum[n][p], w, xs[p] + 2 * j);
            }
        }
    }
    UNROLL
    for (uint n = 0; n < TILES; n++) {
        const float2 scale = group_scales(a, (raw_group){(uint2)(v->scale[n], 0u), 0});
        UNROLL
        for (uint e = 0; e < 4 * PARTS; e++)
            total[n][e / 4][e % 4] += (e % 4 < 2 ? scale.x : scale.y) * sum[n][e / 4][e % 4];
    }
}

LINEAR_INLINE void add_steps(const linear_t a, fragment_unit unit, stages_t s, uint block, uint deep,
                             uint depth, const bool zeros, float total[TILES][PARTS][4])
{
    const uint last = (a.n - 1) / 16, count = s.count * (STEPS / deep);
    const halves_zeros one_zero = u4_unit_zeros((uint)a.zero, (uint)a.zero);
    const uint lane_x = unit.lane / 4 * X_PITCH + unit.lane % 4 * 16;
    const uint shift = a.group_shift - 7, spans = a.group_size / STEP_K;
    place_t t = {.steps = a.k / STEP_K, .all = s.count * STEPS, .next = s.first * STEPS + depth, .deep = deep};
    if (a.groups > 1)
        t.ratio = a.group_shift < 32 ? 0x80000000u >> shift : (0x80000000u + spans - 1) / spans;
    else
        t.ratio = 0;
    step_t v[SETS];
    UNROLL
    for (uint n = 0; n < TILES; n++) {
        const uint b = min(block + n, last);
        t.codes[n] = (ulong)a.data + b * a.pitch + unit.lane * 16;
        t.entry[n] = b * a.groups * 8 + unit.lane / 4;
    }
    uint step = t.next, place = 0, phase = 0, depth_in = depth;
    UNROLL
    for (uint j = 0; j < SETS - 1; j++)
        load_step(a, &v[j], &t, zeros);
    _Pragma("unroll 1")
    for (uint i = 0;;) {
        UNROLL
        for (uint j = 0; j < SETS; j++) {
            load_step(a, &v[(j + SETS - 1) % SETS], &t, zeros); // at the end some that nobody uses
            nv90_barrier_wait(s.full + place * 8, phase);
            if (step < t.steps)
                multiply(a, unit, &v[j], s.at + place * X_STAGE + lane_x + depth_in * (STEP_K * 2), one_zero,
                         zeros, total);
            depth_in += deep;
            if (depth_in >= STEPS) { // the stage's last
                depth_in = depth;
                nv90_warp_sync();
                if (unit.lane == 0)
                    nv90_barrier_arrive(s.free + place * 8);
                const bool wraps = ++place == STAGES;
                place = wraps ? 0 : place;
                phase ^= wraps;
            }
            step += deep;
            step -= step >= t.all ? t.all : 0;
            if (++i == count)
                return;
        }
    }
}

// columns: warps beside each other; deep: that share K, 2 or 4.
LINEAR_INLINE void stream(linear_t a, uint memory, uint barriers, local float *sums, const ulong m0,
                          const uint columns, const uint deep, const bool zeros)
{
    a.scale_kind = a.scale_kind == SCALE_BF16 ? SCALE_BF16 : SCALE_F16; // spares asking for others
    const uint lane = (uint)get_local_id(0) % 32;
    const uint warp = nv90_uniform((uint)get_local_id(0) / 32);
    const uint width = columns * TILES * 16, first = (uint)get_group_id(0) * width;
    const uint stages = (a.k + STEPS * STEP_K - 1) / (STEPS * STEP_K);
    const stages_t s = {memory, barriers, barriers + STAGES * 8, stages, (uint)get_group_id(0) % stages};
    if (warp == WARPS && lane == 0) {
        UNROLL
        for (uint i = 0; i < STAGES; i++) {
            nv90_barrier_init(s.full + i * 8, 1);
            nv90_barrier_init(s.free + i * 8, columns * deep);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float total[TILES][PARTS][4];
    UNROLL
    for (uint i = 0; i < TILES * PARTS * 4; i++)
        total[i / 8][i / 4 % 2][i % 4] = 0.0f;
    const fragment_unit unit = {lane, warp};
    if (warp == WARPS)
        bring_x(a, s, m0);
    else if (warp < columns * deep)
        add_steps(a, unit, s, first / 16 + warp % columns * TILES, deep, warp / columns, zeros, total);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp < columns * deep) {
        local float *to = sums + warp * (X_ROWS * SUM_PITCH);
        UNROLL
        for (uint i = 0; i < TILES * PARTS * 4; i++)
            to[(i / 4 % 2 * 8 + mma_column(unit, i % 4)) * SUM_PITCH + i / 8 * 16 + mma_row(unit, i % 4)] =
                total[i / 8][i / 4 % 2][i % 4];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint o = (uint)get_local_id(0); o < X_ROWS * width; o += ITEMS) {
        const uint c = o % width, r = o / width;
        if (first + c < a.n && m0 + r < a.m) {
            local const float *from = sums + c / (TILES * 16) * (X_ROWS * SUM_PITCH) + r * SUM_PITCH + c % (TILES * 16);
            float sum = 0.0f;
            for (uint d = 0; d < deep; d++)
                sum += from[d * columns * (X_ROWS * SUM_PITCH)];
            finish(a, m0 + r, first + c, sum * (1 / CODE_UNIT));
        }
    }
}

#define STREAM(name, zeros)                                                                        \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(1) void name(               \
        LINEAR_PARAMETERS, const uint columns)                                                     \
    {                                                                                              \
        local uchar memory[STAGES * X_STAGE] __attribute__((aligned(128)));                        \
        local ulong barriers[2 * STAGES];                                                          \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        stream(a, (uint)(size_t)memory, (uint)(size_t)barriers, (local float *)memory, m_first,    \
               columns, columns > 3 ? 2 : 4, zeros);                                               \
    }

STREAM(linear_stream90_16, false)
STREAM(linear_stream90_16_zeros, true)
