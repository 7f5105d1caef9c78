// The linear layer on mma.sync for weights of 4 or 8 bits and many rows of x, where all of K has one
// scale or groups are whole steps with f16 scales: as linear_packed.cl, but a warp has 64 columns of
// y, so that what it reads of x serves four blocks of W. The build chooses
//
//     -DX=f16 | bf16   -DW=u4_nv | s8_nv   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DGROUPED=0 | 1       one scale a row of W, or one a group
//     -DWARPS_N=2 | 4       warps side by side, 64 columns each
//     -DWARPS_K=1 | 2       warps that share the columns: each takes half of every step along K
//
// There are registers for one set of sums. With groups these count in units of the scale of their
// group: where the next one begins, they are multiplied by the quotient of the scales.
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/async_copy.clh"
#include "linear/linear_finish.clh"
#include "linear/linear_groups.clh"

#ifndef WARPS_N
#define WARPS_N 2
#define WARPS_K 2
#endif
#define WARPS  (WARPS_N * WARPS_K)
#define ITEMS  (WARPS * FRAGMENT_WAVE)
#ifndef TILES
#define TILES  4 // blocks of 16 rows of W, of a warp
#endif
#ifndef BLOCKS
#define BLOCKS (WARPS_N * TILES)
#endif
#define TILE_N (BLOCKS * 16)
#define STEP_K 64
#define HALVES 2
#define TURNS  (HALVES / WARPS_K) // halves of a step that a warp multiplies

// A stage of local memory: x, 8 chunks of 16 bytes a row, then W, its tiles one after the other.
#define X_CHUNKS (STEP_K / 8)
#define LANES    (W_IS_U4 ? 32 : 64) // chunks of a block of 16 rows
#define W_CHUNKS (BLOCKS * LANES)
#define X_TILE(parts)  ((parts)*8 * X_CHUNKS)
#define STAGE(parts) (X_TILE(parts) + W_CHUNKS)
#define LOCAL_CHUNKS 3072 // 48 KiB
#ifndef MAX_PARTS
#define MAX_PARTS    8 // of eight rows of x
#endif
#define X_COPIES(parts) ((parts)*8 * X_CHUNKS / ITEMS)
#define W_COPIES     ((W_CHUNKS + ITEMS - 1) / ITEMS)

// At the end sums lie in local memory as rows of y, two blocks of W at a time.
#define PASS_TILES 2
#define SUM_PITCH  (PASS_TILES * 16 + 4)

static inline uint x_index(uint row, uint chunk) { return row * X_CHUNKS + (chunk ^ row % 2 * 4); }

// ---- Copies: of both, chunks from the first of the work-group

typedef struct {
    global const uint4 *x, *w;
    uint x_at[MAX_PARTS], w_step; // of W, blocks an equal distance apart
    uint to;                      // of x
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, ulong row, uint block, const uint parts)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    const uint last_row = (uint)min(a.m - 1 - row, (ulong)parts * 8);
    c.to = x_index(item / X_CHUNKS, item % X_CHUNKS); // of rows a multiple of 2 apart
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0);
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(parts); i++)
        c.x_at[i] = min((item + i * ITEMS) / X_CHUNKS, last_row) * (uint)(a.x_rows.s0 / 8) +
                    item % X_CHUNKS;
    c.w = (global const uint4 *)(a.data + (block + item / LANES) * a.pitch) + item % LANES;
    c.w_step = ITEMS / LANES * (uint)(a.pitch / 16);
    return c;
}

LINEAR_INLINE void fetch(const copies_t *c, uint step, local uint4 *stage, const uint parts)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(parts); i++)
        async_copy(stage + c->to + i * ITEMS, c->x + (c->x_at[i] + step * X_CHUNKS), &held);
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++) {
        if ((i + 1) * ITEMS > W_CHUNKS && get_local_id(0) + i * ITEMS >= W_CHUNKS)
            break;
        async_copy(stage + X_TILE(parts) + get_local_id(0) + i * ITEMS,
                   c->w + (i * c->w_step + step * LANES), &held);
    }
}

// ---- Scales

// Of a lane's two rows of a block, g and g + 8, side by side as halves.
typedef struct {
    uint scale, zero;
} group_t;

#if GROUPED

// What is subtracted from codes, with a power of two that makes its sign and exponent hold the bits
// of the factor that codes are multiplied by: both are 0 where the scale is. Sums are so many times
// as large.
#if !W_IS_U4 && FRAGMENT_IS_F16 // 2 (1024 + 128 + code)
#define ZERO_UPPER   0xe880u
#define FACTOR_UPPER 0x4000u
#define ZERO_LOWER   ZERO_UPPER
#define FACTOR_LOWER FACTOR_UPPER
#define UNIT         0.5f
#elif FRAGMENT_IS_F16 // 32 (1024 + code), 2 (1024 + 16 code)
#define ZERO_UPPER   0xf800u
#define FACTOR_UPPER 0x5000u
#define ZERO_LOWER   0xe800u
#define FACTOR_LOWER 0x4000u
#define UNIT         0x1p-5f
#else // 2 (128 + code)
#define ZERO_UPPER   0xc380u
#define FACTOR_UPPER 0x4000u
#define ZERO_LOWER   ZERO_UPPER
#define FACTOR_LOWER FACTOR_UPPER
#define UNIT         0.5f
#endif

#define TWICE(bits) ((bits) * 0x00010001u)

LINEAR_INLINE group_t group_of(const linear_t a, uint block, uint group, uint g)
{
    const uint i = (block * a.groups + group) * 8 + g;
    group_t r;
    r.scale = ((global const uint *)a.scales)[i];
    r.zero = (uint)a.zero * 0x11u;
    if (a.zeros)
        r.zero = a.zeros[i];
    return r;
}

// The scale that a sum has once this group has begun, and the group's zeros.
LINEAR_INLINE group_t begin_group(group_t now, group_t next)
{
    const bool upper = (next.scale & 0x7fffu) != 0, lower = (next.scale & 0x7fff0000u) != 0;
    group_t r;
    r.scale = (upper ? next.scale & 0xffffu : now.scale & 0xffffu) |
              (lower ? next.scale & 0xffff0000u : now.scale & 0xffff0000u);
    r.zero = (upper ? ZERO_UPPER + (next.zero & 15) : 0) |
             (lower ? (ZERO_LOWER << 16) + (next.zero >> 4 << (FRAGMENT_IS_F16 ? 20 : 16)) : 0);
    return r;
}

LINEAR_INLINE float2 scales_of(uint scale)
{
    return (float2)(f16_bits_to_float((ushort)scale), f16_bits_to_float((ushort)(scale >> 16)));
}

// a / b to the nearest, but for a few of its last bits' ties.
LINEAR_INLINE float quotient(float a, float b)
{
#ifdef FRAGMENT_EMULATED
    return a / b;
#else
    const float r = nv_reciprocal(b), q = a * r;
    return fma(fma(-q, b, a), r, q);
#endif
}

LINEAR_INLINE void operands(uint w, group_t group, uint *v)
{
    const uint zu = bytes_select(group.zero, 0u, 0x1010), zl = bytes_select(group.zero, 0u, 0x3232);
    const uint fu = zu & TWICE(FACTOR_UPPER), fl = zl & TWICE(FACTOR_LOWER);
#if FRAGMENT_IS_F16
    for (uint i = 0; i < 2; i++) {
        const uint c = w >> i * 8;
        v[2 * i] = halves_fma(bits_onto(c, 0x000f000fu, 0x64006400u), fu, zu);
        v[2 * i + 1] = halves_fma(bits_onto(c, 0x00f000f0u, 0x64006400u), fl, zl);
    }
#else
    for (uint i = 0; i < 4; i++)
        v[i] = halves_fma(bits_onto(w >> i * 4, 0x000f000fu, 0x43004300u), i % 2 ? fl : fu,
                          i % 2 ? zl : zu);
#endif
}

#endif

// ---- A warp's products

// Its columns: where there are not four blocks for each warp, those with three do without their
// first. The warps of both halves of K are such that each quarter of a unit has as many.
#define FEWER (WARPS_N * TILES - BLOCKS)
static inline uint warp_column(fragment_unit unit)
{
    return FEWER ? (unit.wave + unit.wave / WARPS_N * (WARPS_N / 2)) % WARPS_N : unit.wave % WARPS_N;
}
#ifdef FRAGMENT_EMULATED
#define IS_FEWER(column) false
#else
#define IS_FEWER(column) (FEWER && (column) >= WARPS_N - FEWER)
#endif
// The first block; of those with three the one before theirs, which is another's.
static inline uint warp_block(uint column)
{
    return column * TILES - (column > WARPS_N - FEWER ? column - (WARPS_N - FEWER) : 0) -
           (column >= WARPS_N - FEWER);
}

typedef struct {
    float sum[TILES][MAX_PARTS][4];
    uint x[MAX_PARTS][4];  // of 32 weights along K
    uint codes[TILES][4];  // of a step, or (8 bits) of half a step
    group_t group[TILES], next[TILES];
    halves_zeros zeros[TILES];
} work_t;

LINEAR_INLINE void load_x(fragment_unit unit, work_t *s, local const uint4 *stage, uint half_k,
                          uint p)
{
    const uint4 v = stage[x_index(p * 8 + unit.lane / 4, half_k * 4 + unit.lane % 4)];
    s->x[p][0] = v.x;
    s->x[p][1] = v.y;
    s->x[p][2] = v.z;
    s->x[p][3] = v.w;
}

// Of 4 bits a lane has both halves of a step in 16 bytes.
LINEAR_INLINE void load_codes_of(fragment_unit unit, work_t *s, local const uint4 *stage,
                                 uint half_k, const uint parts)
{
    local const uint4 *from =
        stage + X_TILE(parts) + warp_block(warp_column(unit)) * LANES + unit.lane;
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        if (W_IS_U4 && WARPS_K == 2) {
            const uint2 v = ((local const uint2 *)(from + n * LANES))[half_k];
            s->codes[n][0] = v.x;
            s->codes[n][1] = v.y;
        } else {
            const uint4 v = from[n * LANES + (W_IS_U4 ? 0 : half_k * 32)];
            s->codes[n][0] = v.x;
            s->codes[n][1] = v.y;
            s->codes[n][2] = v.z;
            s->codes[n][3] = v.w;
        }
    }
}

// Operand j of the 32 weights along K of block n.
LINEAR_INLINE void make(const work_t *s, uint n, uint turn, uint j, uint *w)
{
#if GROUPED
    operands(s->codes[n][turn * 2 + j], s->group[n], w);
#else
    if (W_IS_U4)
        u4_operands(s->codes[n][turn * 2 + j], s->zeros[n], w);
    else
        s8_operands(s->codes[n][j], s->codes[n][2 + j], s->zeros[n], w);
#endif
}

LINEAR_INLINE void multiply(fragment_unit unit, work_t *s, uint n, uint j, const uint *w, uint first,
                            uint count)
{
    FRAGMENT_UNROLL
    for (uint p = first; p < first + count; p++)
        mma_instruction(unit, s->sum[n][p], w, s->x[p] + 2 * j);
}

LINEAR_INLINE void ask_for_group(const linear_t a, fragment_unit unit, work_t *s, uint block, uint group)
{
#if GROUPED
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++)
        s->next[n] = group_of(a, block + n, group, unit.lane / 4);
#endif
}

// The sums of block n are to count in units of the next group's scale.
LINEAR_INLINE void turn_to_group(work_t *s, uint n, const uint parts)
{
#if GROUPED
    const float2 now = scales_of(s->group[n].scale);
    s->group[n] = begin_group(s->group[n], s->next[n]);
    const float2 next = scales_of(s->group[n].scale);
    const float upper = quotient(now.x, next.x), lower = quotient(now.y, next.y);
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        FRAGMENT_UNROLL
        for (uint e = 0; e < 4; e++)
            s->sum[n][p][e] *= e < 2 ? upper : lower;
    }
#endif
}

// Where the stages are, and which step is next to be asked for.
typedef struct {
    local uint4 *memory;
    uint slot, step, steps;
} ring_t;

LINEAR_INLINE void multiply_step(fragment_unit unit, work_t *s, const copies_t *copies, ring_t *r,
                                 const bool begins, const uint parts, const uint stages)
{
    const uint part_k = unit.wave / WARPS_N;
    FRAGMENT_UNROLL
    for (uint turn = 0; turn < TURNS; turn++) {
        uint w[2][4];
        FRAGMENT_UNROLL
        for (uint n = 0; n + 1 < TILES; n++) {
            if (n == 0 && IS_FEWER(warp_column(unit)))
                continue;
            if (begins && turn == 0)
                turn_to_group(s, n, parts);
            make(s, n, turn, 0, w[0]);
            multiply(unit, s, n, 0, w[0], 0, parts);
            make(s, n, turn, 1, w[1]);
            multiply(unit, s, n, 1, w[1], 0, parts);
        }
        // While the last block is multiplied, what comes next takes the place of x.
        if (begins && turn == 0)
            turn_to_group(s, TILES - 1, parts);
        make(s, TILES - 1, turn, 0, w[0]);
        make(s, TILES - 1, turn, 1, w[1]);
        uint next = part_k;
        if (turn + 1 < TURNS) {
            next = turn + 1;
            if (!W_IS_U4)
                load_codes_of(unit, s, r->memory + r->slot * STAGE(parts), next, parts);
        } else {
            async_wait(stages - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            // The next stage is there, and all warps have loaded what they need of this one.
            if (r->step < r->steps)
                fetch(copies, r->step, r->memory + r->slot * STAGE(parts), parts);
            async_commit();
            r->step++;
            r->slot = r->slot + 1 < stages ? r->slot + 1 : 0;
            load_codes_of(unit, s, r->memory + r->slot * STAGE(parts), next, parts);
        }
        FRAGMENT_UNROLL
        for (uint first = 0; first < parts; first += parts / 2) {
            multiply(unit, s, TILES - 1, 0, w[0], first, parts / 2);
            multiply(unit, s, TILES - 1, 1, w[1], first, parts / 2);
            FRAGMENT_UNROLL
            for (uint p = first; p < first + parts / 2; p++)
                load_x(unit, s, r->memory + r->slot * STAGE(parts), next, p);
        }
    }
}

LINEAR_INLINE void packed(const linear_t a, fragment_unit unit, local uint4 *memory, ulong m_first,
                          const uint parts, const uint stages)
{
    const ulong2 tile = tile_of();
    const ulong row = m_first + tile.y * parts * 8;
    // The last tile ends with W, and begins within the one before it.
    const uint first_column = (uint)tile.x * TILE_N;
    const uint first_block = min(first_column / 16, (a.n + 15) / 16 - BLOCKS);
    const uint block = first_block + warp_block(warp_column(unit)); // of this warp
    const uint part_k = unit.wave / WARPS_N; // its half, where they have one
    const uint steps = a.k / STEP_K;
    const uint period = GROUPED ? a.group_size / STEP_K : steps;

    const copies_t copies = copies_of(a, row, first_block, parts);
    FRAGMENT_UNROLL
    for (uint i = 0; i < stages; i++) {
        if (i < steps)
            fetch(&copies, i, memory + i * STAGE(parts), parts);
        async_commit();
    }
    work_t s;
    ask_for_group(a, unit, &s, block, 0);
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
#if GROUPED
        s.group[n].scale = TWICE(0x3c00u);
#else
        s.zeros[n] = group_zeros(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s.sum[n][p][e] = 0.0f;
        }
    }
    async_wait(stages - 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    load_codes_of(unit, &s, memory, part_k, parts);
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++)
        load_x(unit, &s, memory, part_k, p);

    ring_t ring = {memory, 0, stages, steps};
    uint phase = 0, group = 0; // the step within its group
    _Pragma("unroll 1")
    for (uint step = 0; step < steps; step++) {
        const bool begins = phase == 0;
        phase = phase + 1 < period ? phase + 1 : 0;
        if (GROUPED && phase == 0 && !begins)
            ask_for_group(a, unit, &s, block, min(++group, a.groups - 1));
#ifdef BLOCK_TURN
        if (begins)
            FRAGMENT_UNROLL
            for (uint n = 0; n < TILES; n++)
                turn_to_group(&s, n, parts);
        multiply_step(unit, &s, &copies, &ring, false, parts, stages);
#elif defined(NO_TURN)
        multiply_step(unit, &s, &copies, &ring, false, parts, stages);
#else
        if (GROUPED && begins)
            multiply_step(unit, &s, &copies, &ring, true, parts, stages);
        else
            multiply_step(unit, &s, &copies, &ring, false, parts, stages);
#endif
        if (GROUPED && phase == 0 && begins) // groups of one step
            ask_for_group(a, unit, &s, block, min(++group, a.groups - 1));
    }

    async_wait(0);
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
#if GROUPED
        const float2 scale = scales_of(s.group[n].scale) * UNIT;
#else
        const float2 scale = group_scales(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s.sum[n][p][e] *= e < 2 ? scale.x : scale.y;
        }
    }
    local float *sums = (local float *)memory + warp_column(unit) * (parts * 8 * SUM_PITCH);
    _Pragma("unroll 1")
    for (uint pass = 0; pass < TILES / PASS_TILES; pass++) {
        FRAGMENT_UNROLL
        for (uint from = 0; from < WARPS_K; from++) { // the first half of K is added last
            barrier(CLK_LOCAL_MEM_FENCE);
            FRAGMENT_UNROLL
            for (uint n = 0; n < TILES; n++) {
                if (n / PASS_TILES != pass || part_k != WARPS_K - 1 - from)
                    continue;
                FRAGMENT_UNROLL
                for (uint p = 0; p < parts; p++) {
                    FRAGMENT_UNROLL
                    for (uint e = 0; e < 4; e++) {
                        local float *to = &sums[(p * 8 + mma_column(unit, e)) * SUM_PITCH +
                                                n % PASS_TILES * 16 + mma_row(unit, e)];
                        *to = from > 0 ? *to + s.sum[n][p][e] : s.sum[n][p][e];
                    }
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        _Pragma("unroll 1")
        for (uint i = unit.lane + part_k * FRAGMENT_WAVE; i < parts * 8 * PASS_TILES * 2;
             i += FRAGMENT_WAVE * WARPS_K) {
            const uint r = i / (PASS_TILES * 2), c = i % (PASS_TILES * 2) * 8;
            const uint column = (block + pass * PASS_TILES) * 16 + c;
            if (row + r < a.m && column >= first_column && column < a.n &&
                !(pass == 0 && c < 16 && warp_column(unit) >= WARPS_N - FEWER))
                finish8(a, row + r, column, sums + r * SUM_PITCH + c);
        }
    }
}

#ifndef STAGES
#define STAGES(parts) (LOCAL_CHUNKS / STAGE(parts))
#endif
#ifndef RESIDENT_WG
#define RESIDENT_WG 2
#endif
#define PACKED(name, parts)                                                                        \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(RESIDENT_WG) void name(     \
        LINEAR_PARAMETERS)                                                                         \
    {                                                                                              \
        local uint4 memory[LOCAL_CHUNKS];                                                          \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        packed(a, unit, memory, m_first, parts, STAGES(parts));                                    \
    }

PACKED(linear_packed_wide, MAX_PARTS)
