// The linear layer for up to 32 rows of x and weights of 4 bits on mma.sync, for compute capability
// 9.0, from its sm_90a image only: for many columns of y. As linear_stream.cl, but a work-group fills
// a compute unit and has up to 14 blocks of 16 rows of W, for seven of which a warp reads x once; and
// weights come by bulk copies into local memory, where each warp has room of its own, so that warps
// wait for nobody until their sums meet. docs/matrix-units.md explains it.
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
    _Pragma("unroll")
    for (uint i = 0; i < 2; i++) {
        const uint c = w >> i * 8;
        v[2 * i] = halves_fma(c & 0x000f000fu, FACTOR_UPPER, z[0]);
        v[2 * i + 1] = halves_fma(c & 0x00f000f0u, FACTOR_LOWER, z[1]);
    }
}
static inline void nv90_copy8(uint to, global const void *from, uint i, uint count)
{
    asm volatile("{ .reg .pred wanted; setp.lt.u32 wanted, %2, %3; "
                 "@wanted cp.async.ca.shared.global [%0], [%1], 8; }" ::"r"(to),
                 "l"(from), "r"(i), "r"(count)
                 : "memory");
}

#define UNROLL _Pragma("unroll")

// ACROSS warps share the columns, up to BLOCKS of 16 each; `deep` others each take turns at steps along K.
#define ACROSS    2
#define BLOCKS    7
#define STEP_K    128
#define MAX_PARTS 4 // of eight rows of x

// A warp's local memory: a step's codes of each block; x, of each lane what it has of it; and, of two
// steps, scales and zeros. At the end its sums.
#define STEP_BYTES  (2 * NV_TILE_BYTES)
#define GROUP_BYTES (BLOCKS * 40)
#define X_AT        (BLOCKS * STEP_BYTES)
#define GROUPS_AT(parts) (X_AT + (parts) * 8 * STEP_K * 2)
#define WARP_BYTES(parts) (GROUPS_AT(parts) + 2 * GROUP_BYTES)
#define SUM_PITCH   (BLOCKS * 16 + 4) // in rows of x, spreads them over the banks

// What a lane copies of each step.
typedef struct {
    global const ushort *x[MAX_PARTS];
    global const uchar *scales, *zeros; // where lane < `scale_lanes`, `zero_lanes`
    uint to;                      // its warp's local memory
    uint scale_lanes, zero_lanes;
} lane_t;

// x and scales of a step.
LINEAR_INLINE void bring_step(const linear_t a, lane_t l, uint step, uint phase, const uint parts)
{
    const uint lane = (uint)get_local_id(0) % 32, group = group_of_k(a, step * STEP_K);
    const uint x_to = l.to + X_AT + lane * 16;
    const uint groups_to = l.to + GROUPS_AT(parts) + phase * GROUP_BYTES;
    UNROLL
    for (uint p = 0; p < parts; p++) {
        UNROLL
        for (uint h = 0; h < STEP_K / 32; h++)
            nv90_copy(x_to + (h * parts + p) * 512, l.x[p] + step * STEP_K + h * 32, 16, 0, 1);
    }
    nv90_copy(groups_to + lane * 16, l.scales + (ulong)group * 32, 16, lane, l.scale_lanes);
    nv90_copy8(groups_to + BLOCKS * 32 + lane * 8, l.zeros + (ulong)group * 8, lane, l.zero_lanes);
    nv90_copies_commit();
}

// A block's codes of a step. By one lane.
LINEAR_INLINE void bring_codes(ulong from, uint to, uint barrier_at)
{
    nv90_barrier_expect(barrier_at, STEP_BYTES);
    nv90_bulk(to, (global const void *)from, STEP_BYTES, barrier_at);
}

LINEAR_INLINE uint negative_zero(uint zero) { return halves_fma(zero * 0x00010001u, FACTOR_UPPER ^ SIGNS, 0u); }

LINEAR_INLINE void stream(linear_t a, local uchar *memory, local ulong *all_barriers,
                          const ulong m0, const uint count, const uint parts, const uint deep,
                          const bool zeros)
{
    a.scale_kind = a.scale_kind == SCALE_BF16 ? SCALE_BF16 : SCALE_F16; // spares asking for others
    const uint lane = (uint)get_local_id(0) % 32;
    const uint warp = nv90_uniform((uint)get_local_id(0) / 32);
    const fragment_unit unit = {lane, warp};
    const uint g = lane / 4, across = warp % ACROSS, depth = warp / ACROSS;
    // The last work-group's columns end with the last; it does not store those of the one before it.
    const uint blocks = (a.n + 15) / 16;
    const uint first = min((uint)get_group_id(0) * (ACROSS * count), blocks - ACROSS * count);
    const uint block = first + across * count;
    const uint steps = a.k / STEP_K;
    const uint mine = (uint)(size_t)memory + warp * WARP_BYTES(parts);
    const uint barriers = (uint)(size_t)all_barriers + warp * BLOCKS * 8;
    ulong codes = (ulong)a.data + block * a.pitch + depth * STEP_BYTES;

    if (lane == 0) {
        UNROLL
        for (uint b = 0; b < BLOCKS; b++) {
            nv90_barrier_init(barriers + b * 8, 1);
            if (b < count && depth < steps)
                bring_codes(codes + b * a.pitch, mine + b * STEP_BYTES, barriers + b * 8);
        }
    }
    lane_t l = {.to = mine, .scale_lanes = 2 * count, .zero_lanes = zeros ? count : 0};
    l.scales = a.scales + (ulong)(block + lane / 2) * a.groups * 32 + lane % 2 * 16;
    l.zeros = a.zeros + (ulong)(block + lane) * a.groups * 8;
    UNROLL
    for (uint p = 0; p < parts; p++)
        l.x[p] = (global const ushort *)a.x + a.x_rows.offset +
                 min(m0 + p * 8 + g, a.m - 1) * a.x_rows.s0 + lane % 4 * 8;
    if (depth < steps)
        bring_step(a, l, depth, 0, parts);

    float total[BLOCKS][MAX_PARTS][4];
    UNROLL
    for (uint b = 0; b < BLOCKS; b++) {
        UNROLL
        for (uint i = 0; i < 4 * parts; i++)
            total[b][i / 4][i % 4] = 0.0f;
    }
    const uint one_zero = negative_zero((uint)a.zero);
    uint phase = 0;
    _Pragma("unroll 1")
    for (uint step = depth; step < steps; step += deep) {
        const bool more = step + deep < steps;
        local const uchar *groups = memory + warp * WARP_BYTES(parts) + GROUPS_AT(parts) + phase * GROUP_BYTES;
        uint x[STEP_K / 32][MAX_PARTS][4];
        nv90_copies_land(0);
        nv90_warp_sync();
        UNROLL
        for (uint i = 0; i < STEP_K / 32 * parts; i++) {
            const uint4 v = nv90_get(mine + X_AT + lane * 16 + i * 512);
            x[i / parts][i % parts][0] = v.x;
            x[i / parts][i % parts][1] = v.y;
            x[i / parts][i % parts][2] = v.z;
            x[i / parts][i % parts][3] = v.w;
        }
        codes += deep * STEP_BYTES;
        ulong from = codes;
        UNROLL
        for (uint b = 0; b < BLOCKS; b++) {
            if (b >= count)
                break;
            const uint slot = mine + b * STEP_BYTES;
            nv90_barrier_wait(barriers + b * 8, phase);
            const uint4 upper = nv90_get(slot + lane * 16);
            const uint4 lower = nv90_get(slot + NV_TILE_BYTES + lane * 16);
            const uint raw = ((local const uint *)groups)[b * 8 + g];
            uint z[2] = {one_zero, one_zero};
            if (zeros) {
                const uint both = groups[BLOCKS * 32 + b * 8 + g];
                z[0] = negative_zero(both & 15);
                z[1] = negative_zero(both >> 4);
            }
            float sum[MAX_PARTS][4];
            UNROLL
            for (uint i = 0; i < 4 * parts; i++)
                sum[i / 4][i % 4] = 0.0f;
            UNROLL
            for (uint i = 0; i < STEP_K / 16; i++) {
                const uint4 c = i < 4 ? upper : lower;
                const uint w = i % 4 == 0 ? c.x : i % 4 == 1 ? c.y : i % 4 == 2 ? c.z : c.w;
                uint v[4];
                subnormal_operands(w, z, v);
                UNROLL
                for (uint p = 0; p < parts; p++)
                    mma_instruction(unit, sum[p], v, x[i / 2][p] + i % 2 * 2);
            }
            const float2 scale = group_scales(a, (raw_group){(uint2)(raw, 0u), 0});
            UNROLL
            for (uint i = 0; i < 4 * parts; i++)
                total[b][i / 4][i % 4] += (i % 4 < 2 ? scale.x : scale.y) * sum[i / 4][i % 4];
            // Now, or all blocks' sums would be kept until the end of the step.
            UNROLL
            for (uint i = 0; i < 4 * parts; i++)
                asm volatile("" : "+f"(total[b][i / 4][i % 4]));
            nv90_warp_sync();
            if (more && lane == 0)
                bring_codes(from, slot, barriers + b * 8);
            from += a.pitch;
            if (b == 0 && more)
                bring_step(a, l, step + deep, phase ^ 1, parts);
        }
        phase ^= 1;
    }

    nv90_warp_sync();
    local float *sums = (local float *)(memory + warp * WARP_BYTES(parts));
    UNROLL
    for (uint b = 0; b < BLOCKS; b++) {
        UNROLL
        for (uint i = 0; i < 4 * parts; i++)
            sums[(i / 4 * 8 + mma_column(unit, i % 4)) * SUM_PITCH + b * 16 + mma_row(unit, i % 4)] =
                total[b][i / 4][i % 4];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint width = count * 16;
    for (uint o = (uint)get_local_id(0); o < parts * 8 * ACROSS * width; o += ACROSS * deep * 32) {
        const uint c = o % (ACROSS * width), column = first * 16 + c;
        const ulong m = m0 + o / (ACROSS * width);
        if (column >= (uint)get_group_id(0) * (ACROSS * width) && column < a.n && m < a.m) {
            local const float *at =
                (local const float *)(memory + c / width * WARP_BYTES(parts)) + o / (ACROSS * width) * SUM_PITCH + c % width;
            float sum = 0.0f;
            UNROLL
            for (uint d = 0; d < deep; d++)
                sum += at[d * ACROSS * WARP_BYTES(parts) / 4];
            finish(a, m, column, sum * (1 / CODE_UNIT));
        }
    }
}

#define STREAM(name, parts, deep, zeros)                                                           \
    kernel __attribute__((reqd_work_group_size(ACROSS *deep * 32, 1, 1))) RESIDENT(1) void name(   \
        LINEAR_PARAMETERS, const uint count)                                                       \
    {                                                                                              \
        local uchar memory[ACROSS * deep * WARP_BYTES(parts)] __attribute__((aligned(1024)));      \
        local ulong barriers[ACROSS * deep * BLOCKS];                                              \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        stream(a, memory, barriers, m_first, count, parts, deep, zeros);                           \
    }

STREAM(linear_stream90_8, 1, 8, false)
STREAM(linear_stream90_8_zeros, 1, 8, true)
STREAM(linear_stream90_16, 2, 8, false)
STREAM(linear_stream90_16_zeros, 2, 8, true)
STREAM(linear_stream90_32, 4, 4, false)
STREAM(linear_stream90_32_zeros, 4, 4, true)
