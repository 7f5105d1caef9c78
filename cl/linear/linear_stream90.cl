// The linear layer for nine to sixteen rows of x and weights of 4 bits on mma.sync, for compute
// capability 9.0, from its sm_90a image only. As linear_stream.cl, but a work-group fills a compute
// unit and has so many blocks of W that x is read a few times instead of once for every 32 columns;
// weights come by bulk copies into local memory, of which each warp has a ring of its own, so that
// warps wait for nobody until the end. docs/matrix-units.md explains it.
//
//     -DX=f16 | bf16   -DW=u4_nv
#define NV90_TYPE     X
#define FRAGMENT_TYPE X
#define FRAGMENT_MMA

#include "common/nv.clh"
#include "common/nv90.clh"
#include "linear/linear_groups.clh"

// Warps share columns, BLOCKS of 16 each, and K: each takes every DEPTH-th step.
#ifndef BLOCKS
#define BLOCKS 7
#define ACROSS 2
#define DEPTH  8
#endif
#define UNROLL_ _Pragma("unroll")
#define WARPS90 (ACROSS * DEPTH)
#define ITEMS (WARPS90 * 32)
#define STEP_K 128
#define COLUMNS (ACROSS * BLOCKS * 16)
#define PARTS 2

#define SLOT_BYTES 1024
#define RING_BYTES (BLOCKS * SLOT_BYTES) // a slot for each block
#define X_BYTES    (PARTS * 8 * STEP_K * 2)
#define SCALE_BYTES (BLOCKS * 32)
#define ZERO_BYTES  (BLOCKS * 8)
#define GROUP_BYTES (SCALE_BYTES + ZERO_BYTES) // twice
#define WARP_BYTES ((RING_BYTES + X_BYTES + 2 * GROUP_BYTES + 15) / 16 * 16)
#define PITCH (BLOCKS * 16 + 4)

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

static inline void copy16(uint to, global const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
static inline void copy4(uint to, global const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
static inline uint get1(uint from)
{
    uint v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}
static inline uint get1b(uint from)
{
    uint v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

LINEAR_INLINE void bring_codes(const linear_t a, ulong at, uint to, uint barrier_at)
{
    nv90_barrier_expect(barrier_at, SLOT_BYTES);
    nv90_bulk(to, (global const void *)at, SLOT_BYTES, barrier_at);
}

// Where a lane's copies of a step begin.
typedef struct {
    global const ushort *x;       // row g, chunk q
    uint second;                  // bytes to row g + 8
    uint entry;                   // of scales: word lane % 8 of block lane / 8, group 0
} lane_t;

// x and what groups have in common of a step
LINEAR_INLINE void bring_x(const linear_t a, lane_t l, uint to, uint groups_to, uint step,
                           const bool zeros)
{
    const uint lane = (uint)get_local_id(0) % 32;
    global const uchar *x = (global const uchar *)(l.x + step * STEP_K);
    UNROLL_
    for (uint h = 0; h < 4; h++)
        copy16(to + h * 1024, x + h * 64);
    x += l.second;
    UNROLL_
    for (uint h = 0; h < 4; h++)
        copy16(to + h * 1024 + 512, x + h * 64);
    const uint group = a.groups == 1 ? 0 : group_at(a, step * STEP_K);
    global const uint *scales = (global const uint *)a.scales + (l.entry + group * 8);
    UNROLL_
    for (uint i = 0; i < BLOCKS * 8; i += 32)
        if (i + 32 <= BLOCKS * 8 || lane < BLOCKS * 8 - i)
            copy4(groups_to + lane * 4 + i * 4, scales + i * a.groups);
    if (zeros && lane < BLOCKS * 2)
        copy4(groups_to + SCALE_BYTES + lane * 4,
              a.zeros + (l.entry / 8 * 8) - (lane / 8 * 8 * a.groups) + lane / 2 * a.groups * 8 +
                  group * 8 + lane % 2 * 4);
    nv90_copies_commit();
}

LINEAR_INLINE float2 pair_of(const linear_t a, uint raw)
{
    if (a.scale_kind == SCALE_BF16)
        return as_float2((uint2)(raw << 16, raw & 0xffff0000u));
    return (float2)(f16_bits_to_float((ushort)raw), f16_bits_to_float((ushort)(raw >> 16)));
}

LINEAR_INLINE void operands(uint w, uint zu, uint zl, uint *v)
{
    const uint c = w >> 8;
    v[0] = halves_fma(w & 0x000f000fu, FACTOR_UPPER, zu);
    v[1] = halves_fma(w & 0x00f000f0u, FACTOR_LOWER, zl);
    v[2] = halves_fma(c & 0x000f000fu, FACTOR_UPPER, zu);
    v[3] = halves_fma(c & 0x00f000f0u, FACTOR_LOWER, zl);
}

LINEAR_INLINE void stream90(const linear_t a, local uchar *memory, local ulong *all_barriers,
                            const ulong m0, const bool zeros)
{
    const uint lane = (uint)get_local_id(0) % 32, warp = nv90_uniform((uint)get_local_id(0) / 32);
    const fragment_unit unit = {lane, warp};
    const uint g = lane / 4, q = lane % 4;
    const uint across = warp % ACROSS, depth = warp / ACROSS;
    const uint blocks = (a.n + 15) / 16;
    const uint first = min((uint)get_group_id(0) * (ACROSS * BLOCKS), blocks - ACROSS * BLOCKS);
    const uint block = first + across * BLOCKS;
    const uint steps = a.k / STEP_K;
    const uint ring = (uint)(size_t)memory + warp * WARP_BYTES;
    const uint x_at = ring + RING_BYTES + lane * 16;
    const uint groups_at = ring + RING_BYTES + X_BYTES;
    const uint barriers = (uint)(size_t)all_barriers + warp * BLOCKS * 8;
    ulong codes = (ulong)a.data + block * a.pitch + depth * SLOT_BYTES;

    if (lane == 0) {
        UNROLL_
        for (uint b = 0; b < BLOCKS; b++)
            nv90_barrier_init(barriers + b * 8, 1);
        if (depth < steps) {
            UNROLL_
            for (uint b = 0; b < BLOCKS; b++)
                bring_codes(a, codes + b * a.pitch, ring + b * SLOT_BYTES, barriers + b * 8);
        }
    }
    const ulong row = min(m0 + g, a.m - 1), second = min(m0 + 8 + g, a.m - 1);
    const lane_t l = {(global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0 + q * 8,
                      (uint)((second - row) * a.x_rows.s0 * 2),
                      (block + lane / 8) * a.groups * 8 + lane % 8};
    if (depth < steps)
        bring_x(a, l, x_at, groups_at, depth, zeros);
    nv90_warp_sync();

    float total[BLOCKS][PARTS][4];
    UNROLL_
    for (uint b = 0; b < BLOCKS; b++) {
        UNROLL_
        for (uint e = 0; e < 8; e++)
            total[b][e / 4][e % 4] = 0.0f;
    }
    const uint all_zero = halves_fma((uint)a.zero * 0x00010001u, FACTOR_UPPER ^ SIGNS, 0u);
    uint phase = 0;
    _Pragma("unroll 1")
    for (uint step = depth; step < steps; step += DEPTH) {
        const bool more = step + DEPTH < steps;
        const uint groups_here = groups_at + phase * GROUP_BYTES;
        uint xs[4][PARTS][4];
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        nv90_warp_sync();
        UNROLL_
        for (uint i = 0; i < 8; i++) {
            const uint4 v = nv90_get(x_at + i * 512);
            xs[i / 2][i % 2][0] = v.x;
            xs[i / 2][i % 2][1] = v.y;
            xs[i / 2][i % 2][2] = v.z;
            xs[i / 2][i % 2][3] = v.w;
        }
        codes += DEPTH * SLOT_BYTES;
        ulong from = codes;
        UNROLL_
        for (uint b = 0; b < BLOCKS; b++) {
            const uint slot = ring + b * SLOT_BYTES;
            nv90_barrier_wait(barriers + b * 8, phase);
            const uint4 first_codes = nv90_get(slot + lane * 16);
            const uint4 second_codes = nv90_get(slot + 512 + lane * 16);
            const uint raw = get1(groups_here + b * 32 + g * 4);
            uint zu = all_zero, zl = all_zero;
            if (zeros) {
                const uint z = get1b(groups_here + SCALE_BYTES + b * 8 + g);
                zu = halves_fma((z & 15) * 0x00010001u, FACTOR_UPPER ^ SIGNS, 0u);
                zl = halves_fma((z >> 4) * 0x00010001u, FACTOR_UPPER ^ SIGNS, 0u);
            }
            float sum[PARTS][4];
            UNROLL_
            for (uint e = 0; e < 8; e++)
                sum[e / 4][e % 4] = 0.0f;
            UNROLL_
            for (uint i = 0; i < 8; i++) {
                const uint4 c = i < 4 ? first_codes : second_codes;
                const uint w = i % 4 == 0 ? c.x : i % 4 == 1 ? c.y : i % 4 == 2 ? c.z : c.w;
                uint v[4];
                operands(w, zu, zl, v);
                UNROLL_
                for (uint p = 0; p < PARTS; p++)
                    mma_instruction(unit, sum[p], v, xs[i / 2][p] + i % 2 * 2);
            }
            const float2 scale = pair_of(a, raw);
            UNROLL_
            for (uint e = 0; e < 8; e++)
                total[b][e / 4][e % 4] += (e % 4 < 2 ? scale.x : scale.y) * sum[e / 4][e % 4];
            asm volatile("" : "+f"(total[b][0][0]), "+f"(total[b][0][1]), "+f"(total[b][0][2]), "+f"(total[b][0][3]),
                              "+f"(total[b][1][0]), "+f"(total[b][1][1]), "+f"(total[b][1][2]), "+f"(total[b][1][3]) :: "memory");
            nv90_warp_sync();
            if (more && lane == 0)
                bring_codes(a, from, slot, barriers + b * 8);
            from += a.pitch;
            if (b == 0 && more)
                bring_x(a, l, x_at, groups_at + (phase ^ 1) * GROUP_BYTES, step + DEPTH, zeros);
        }
        phase ^= 1;
    }

    nv90_warp_sync();
    local float *sums = (local float *)(memory + warp * WARP_BYTES);
    UNROLL_
    for (uint b = 0; b < BLOCKS; b++) {
        UNROLL_
        for (uint e = 0; e < 8; e++)
            sums[(e / 4 * 8 + mma_column(unit, e % 4)) * PITCH + b * 16 + mma_row(unit, e % 4)] =
                total[b][e / 4][e % 4];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint o = (uint)get_local_id(0); o < PARTS * 8 * COLUMNS; o += ITEMS) {
        const uint c = o % COLUMNS, r = o / COLUMNS, column = first * 16 + c;
        if (column < a.n && m0 + r < a.m) {
            local const float *at = (local const float *)(memory + c / (BLOCKS * 16) * WARP_BYTES) +
                                    r * PITCH + c % (BLOCKS * 16);
            float sum = 0.0f;
            UNROLL_
            for (uint d = 0; d < DEPTH; d++)
                sum += at[d * ACROSS * WARP_BYTES / 4];
            finish(a, m0 + r, column, sum * (1 / CODE_UNIT));
        }
    }
}

#define STREAM90(name, zeros)                                                                      \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(1) void name(               \
        LINEAR_PARAMETERS)                                                                         \
    {                                                                                              \
        local uchar memory[WARPS90 * WARP_BYTES] __attribute__((aligned(1024)));                   \
        local ulong barriers[WARPS90 * BLOCKS];                                                    \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        stream90(a, memory, barriers, m_first, zeros);                                             \
    }
STREAM90(linear_stream90_16, false)
STREAM90(linear_stream90_16_zeros, true)
