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

// A work-group has 224 columns, in pairs of blocks of 16; x goes through local memory in stages of 16
// steps along K. Of each stage all warps have seven steps of a pair: 14 warps stay with one, whose even
// or odd steps they take, but for the last two, which two helpers take for all pairs. These keep their
// sums in local memory.
#define WARPS      16
#define ITEMS      (WARPS * 32)
#define PAIRS      7
#define HELPERS    14 // the first
#define COLUMNS    (PAIRS * 32)
#define STEP_K     128
#define STEP_BYTES (2 * NV_TILE_BYTES)
#define SETS       3 // of codes in registers: of this step and the next ones

#define PARTS    2 // of eight rows of x
#define X_ROWS   (PARTS * 8)
#define STAGES   3
#define STEPS    16 // in a stage, QUARTER at one time
#define QUARTER  4
#define X_PITCH  (STEPS * STEP_K * 2 + 64) // spreads rows over the banks
#define X_STAGE  (X_ROWS * X_PITCH)
#define SUM_PITCH 36

// ---- x. Rows beyond M are the last one again.

typedef struct {
    uint at, full, free; // addresses: of the first place, its barriers (of each quarter; of all)
} stages_t;

LINEAR_INLINE void bring_stage(const linear_t a, stages_t s, uint stage, const ulong m0)
{
    const uint lane = (uint)get_local_id(0) % 32, place = stage % STAGES;
    if (stage >= STAGES)
        nv90_barrier_wait(s.free + place * 8, stage / STAGES - 1 & 1);
    for (uint i = 0; i < STEPS / QUARTER; i++) {
        const uint k = stage * (STEPS * STEP_K) + i * (QUARTER * STEP_K);
        if (k >= a.k)
            return;
        const uint bytes = min(a.k - k, (uint)(QUARTER * STEP_K)) * 2;
        const uint full = s.full + (place * (STEPS / QUARTER) + i) * 8;
        if (lane == 0)
            nv90_barrier_expect(full, X_ROWS * bytes);
        nv90_warp_sync();
        if (lane < X_ROWS)
            nv90_bulk(s.at + place * X_STAGE + lane * X_PITCH + i * (QUARTER * STEP_K * 2),
                      (global const ushort *)a.x + a.x_rows.offset +
                          min(m0 + lane, a.m - 1) * a.x_rows.s0 + k,
                      bytes, full);
    }
}

// ---- W

// The steps of a warp.
typedef struct {
    uint stage, i;
} walk_t;

LINEAR_INLINE uint step_of(walk_t w, uint warp)
{
    return w.stage * STEPS + (warp >= HELPERS ? warp : 2 * w.i + warp / PAIRS);
}
LINEAR_INLINE uint pair_of(walk_t w, uint warp) { return warp >= HELPERS ? w.i : warp % PAIRS; }
LINEAR_INLINE walk_t after(walk_t w)
{
    const bool last = w.i + 1 == PAIRS;
    return (walk_t){w.stage + last, last ? 0 : w.i + 1};
}

// What a step takes from memory.
typedef struct {
    uint4 codes[2][2];
    uint scale[2], zero[2];
} step_t;

// ratio: the group of a step is mul_hi(2 step + 1, ratio).
LINEAR_INLINE void load_step(const linear_t a, step_t *v, walk_t w, uint warp, uint ratio, const bool zeros)
{
    const uint lane = (uint)get_local_id(0) % 32;
    const uint step = min(step_of(w, warp), a.k / STEP_K - 1), group = mul_hi(2 * step + 1, ratio);
    const uint block = (uint)get_group_id(0) * (2 * PAIRS) + pair_of(w, warp) * 2, last = (a.n - 1) / 16;
    UNROLL
    for (uint n = 0; n < 2; n++) {
        const uint b = min(block + n, last);
        global const uchar *from = a.data + b * a.pitch + step * STEP_BYTES;
        global const uint4 *codes = (global const uint4 *)(from + lane * 16);
        const uint entry = (b * a.groups + group) * 8 + lane / 4;
        v->codes[n][0] = load_codes(codes);
        v->codes[n][1] = load_codes(codes + NV_TILE_BYTES / 16);
        v->scale[n] = ((global const uint *)a.scales)[entry];
        if (zeros)
            v->zero[n] = a.zeros[entry];
    }
}

// x: the address of this lane's, of the step.
LINEAR_INLINE void multiply(const linear_t a, fragment_unit unit, const step_t *v, uint x,
                            halves_zeros one_zero, const bool zeros, float total[2][PARTS][4])
{
    float sum[2][PARTS][4];
    halves_zeros z[2];
    UNROLL
    for (uint n = 0; n < 2; n++) {
        z[n] = zeros ? u4_unit_zeros(v->zero[n]) : one_zero;
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
            for (uint n = 0; n < 2; n++) {
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
    for (uint n = 0; n < 2; n++) {
        const float2 scale = group_scales(a, (raw_group){(uint2)(v->scale[n], 0u), 0});
        UNROLL
        for (uint e = 0; e < 4 * PARTS; e++)
            total[n][e / 4][e % 4] += (e % 4 < 2 ? scale.x : scale.y) * sum[n][e / 4][e % 4];
    }
}

// A helper's sums of a pair, at `at`.
LINEAR_INLINE void keep(uint at, float total[2][PARTS][4])
{
    UNROLL
    for (uint i = 0; i < 2 * PARTS; i++) {
        const float *t = total[i / PARTS][i % PARTS];
        nv90_put(at + i * 512, (uint4)(as_uint(t[0]), as_uint(t[1]), as_uint(t[2]), as_uint(t[3])));
    }
}
LINEAR_INLINE void take(uint at, float total[2][PARTS][4])
{
    UNROLL
    for (uint i = 0; i < 2 * PARTS; i++) {
        float *t = total[i / PARTS][i % PARTS];
        const float4 v = as_float4(nv90_get(at + i * 512));
        t[0] = v.x;
        t[1] = v.y;
        t[2] = v.z;
        t[3] = v.w;
    }
}
#define KEPT_BYTES (2 * PARTS * 512)

LINEAR_INLINE void put_sums(local float *sums, fragment_unit unit, float total[2][PARTS][4])
{
    UNROLL
    for (uint i = 0; i < 2 * PARTS * 4; i++)
        sums[(i / 4 % PARTS * 8 + mma_column(unit, i % 4)) * SUM_PITCH + i / (4 * PARTS) * 16 +
             mma_row(unit, i % 4)] = total[i / (4 * PARTS)][i / 4 % PARTS][i % 4];
}

// Of parts WARPS + 7 h + p: those of helper h for pair p.
#define PART_SUMS (X_ROWS * SUM_PITCH)

LINEAR_INLINE void stream(linear_t a, uint memory, uint kept, uint barriers, local float *sums,
                          const ulong m0, const bool zeros)
{
    a.scale_kind = a.scale_kind == SCALE_BF16 ? SCALE_BF16 : SCALE_F16; // spares asking for others
    const uint lane = (uint)get_local_id(0) % 32;
    const uint warp = nv90_uniform((uint)get_local_id(0) / 32);
    const fragment_unit unit = {lane, warp};
    const bool helps = warp >= HELPERS;
    const uint steps = a.k / STEP_K, stages = (steps + STEPS - 1) / STEPS;
    const uint spans = a.group_size / STEP_K;
    const uint ratio = a.groups == 1         ? 0
                       : a.group_shift < 32 ? 0x80000000u >> (a.group_shift - 7)
                                            : (0x80000000u + spans - 1) / spans;
    const stages_t s = {memory, barriers, barriers + STAGES * (STEPS / QUARTER) * 8};
    step_t v[SETS];
    walk_t next = {0, 0}, now = {0, 0};
    UNROLL
    for (uint j = 0; j < SETS - 1; j++) {
        load_step(a, &v[j], next, warp, ratio, zeros);
        next = after(next);
    }
    float total[2][PARTS][4];
    UNROLL
    for (uint i = 0; i < 2 * PARTS * 4; i++)
        total[i / (4 * PARTS)][i / 4 % PARTS][i % 4] = 0.0f;
    const uint mine = kept + (warp - HELPERS) * (PAIRS * KEPT_BYTES) + lane * 16;
    if (helps) {
        for (uint p = 0; p < PAIRS; p++)
            keep(mine + p * KEPT_BYTES, total);
        if (warp == HELPERS && lane == 0) {
            for (uint i = 0; i < STAGES * (STEPS / QUARTER); i++)
                nv90_barrier_init(s.full + i * 8, 1);
            for (uint i = 0; i < STAGES; i++)
                nv90_barrier_init(s.free + i * 8, WARPS);
        }
        nv90_warp_sync();
        if (warp == HELPERS)
            for (uint i = 0; i < STAGES && i < stages; i++)
                bring_stage(a, s, i, m0);
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const halves_zeros one_zero = u4_unit_zeros((uint)a.zero * 0x11u);
    const uint lane_x = s.at + lane / 4 * X_PITCH + lane % 4 * 16;
    uint place = 0, phase = 0;
    _Pragma("unroll 1")
    while (now.stage < stages) {
        UNROLL
        for (uint j = 0; j < SETS; j++) {
            load_step(a, &v[(j + SETS - 1) % SETS], next, warp, ratio, zeros); // perhaps one too many
            next = after(next);
            const uint step = step_of(now, warp), in = step % STEPS;
            if (step < steps) {
                nv90_barrier_wait(s.full + (place * (STEPS / QUARTER) + in / QUARTER) * 8, phase);
                if (helps)
                    take(mine + now.i * KEPT_BYTES, total);
                multiply(a, unit, &v[j], lane_x + place * X_STAGE + in * (STEP_K * 2), one_zero, zeros,
                         total);
                if (helps)
                    keep(mine + now.i * KEPT_BYTES, total);
            }
            now = after(now);
            if (now.i == 0) {
                nv90_warp_sync();
                if (lane == 0)
                    nv90_barrier_arrive(s.free + place * 8);
                // What comes after the next stages, where all have left the one before.
                const uint more = now.stage - 2 + STAGES;
                if (warp == HELPERS && now.stage > 1 && more < stages)
                    bring_stage(a, s, more, m0);
                const bool wraps = ++place == STAGES;
                place = wraps ? 0 : place;
                phase ^= wraps;
                if (now.stage == stages)
                    break;
            }
        }
    }

    barrier(CLK_LOCAL_MEM_FENCE);
    if (helps)
        for (uint p = 0; p < PAIRS; p++) {
            take(mine + p * KEPT_BYTES, total);
            put_sums(sums + (HELPERS + (warp - HELPERS) * PAIRS + p) * PART_SUMS, unit, total);
        }
    else
        put_sums(sums + warp * PART_SUMS, unit, total);
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint first = (uint)get_group_id(0) * COLUMNS;
    for (uint o = (uint)get_local_id(0); o < X_ROWS * COLUMNS; o += ITEMS) {
        const uint c = o % COLUMNS, r = o / COLUMNS;
        if (first + c < a.n && m0 + r < a.m) {
            local const float *from = sums + c / 32 * PART_SUMS + r * SUM_PITCH + c % 32;
            float sum = 0.0f;
            UNROLL
            for (uint i = 0; i < 4; i++)
                sum += from[i * PAIRS * PART_SUMS];
            finish(a, m0 + r, first + c, sum * (1 / CODE_UNIT));
        }
    }
}

#define STREAM(name, zeros)                                                                        \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(1) void name(               \
        LINEAR_PARAMETERS)                                                                         \
    {                                                                                              \
        local uchar memory[STAGES * X_STAGE] __attribute__((aligned(128)));                        \
        local uchar kept[2 * PAIRS * KEPT_BYTES] __attribute__((aligned(128)));                    \
        local ulong barriers[STAGES * (STEPS / QUARTER + 1)];                                      \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        stream(a, (uint)(size_t)memory, (uint)(size_t)kept, (uint)(size_t)barriers,                \
               (local float *)memory, m_first, zeros);                                             \
    }

STREAM(linear_stream90_16, false)
STREAM(linear_stream90_16_zeros, true)
