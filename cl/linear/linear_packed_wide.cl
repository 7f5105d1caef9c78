// The linear layer on mma.sync for weights of 4 bits and many rows of x, where all of K has one scale
// or groups are whole steps with f16 scales, and x is plain rows: as linear_packed.cl, but a warp has
// 64 columns of y, so that what it reads of x serves four blocks of W. The build chooses
//
//     -DX=f16 | bf16   -DW=u4_nv   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DGROUPED=0 | 1   one scale a row of W, or one a group
//     -DBLOCKS=14 | 16  of 16 columns, in a work-group
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
#define WARPS_N 4
#endif
#ifndef SPLIT_K
#define SPLIT_K 1
#endif
#ifndef SPLIT_M
#define SPLIT_M 1
#define RESIDENT_WG 2
#endif
#ifndef PARTS
#define PARTS 8
#define BLOCK_TURN
#endif
#define WARPS  (WARPS_N * SPLIT_K * SPLIT_M)
#define ITEMS  (WARPS * FRAGMENT_WAVE)
#define TILES  4 // blocks of 16 rows of W, of a warp
#ifndef BLOCKS
#define BLOCKS (WARPS_N * TILES)
#endif
#define TILE_N (BLOCKS * 16)
#define TILE_M (SPLIT_M * PARTS * 8)
#define STEP_K 64
#define TURNS  (2 / SPLIT_K) // halves of a step that a warp multiplies
// Where there are registers for it, x of the next half is loaded a half ahead, else in the place of
// this one's as its last block is multiplied.
#ifndef AHEAD
#define AHEAD (PARTS <= 4 && TURNS == 2)
#endif

// A stage of local memory: x, 8 chunks of 16 bytes a row, then W, its tiles one after the other.
#define X_CHUNKS (STEP_K / 8)
#define LANES    32 // chunks of a block of 16 rows
#define W_CHUNKS (BLOCKS * LANES)
#define X_TILE   (TILE_M * X_CHUNKS)
#define STAGE    (X_TILE + W_CHUNKS)
#ifndef LOCAL
#define LOCAL    3072 // chunks: 48 KiB
#endif
#define STAGES   (LOCAL / STAGE)
#define X_COPIES ((X_TILE + ITEMS - 1) / ITEMS)
#define W_COPIES ((W_CHUNKS + ITEMS - 1) / ITEMS)

// At the end sums lie in local memory as rows of y, two blocks of W at a time.
#define PASS_TILES 2
#define SUM_PITCH  (PASS_TILES * 16 + 4)

static inline uint x_index(uint row, uint chunk) { return row * X_CHUNKS + (chunk ^ row % 2 * 4); }

// ---- A warp's place

// Where there are not four blocks for each warp, those with three do without their first. Warps of
// the other half are turned by half their number, so that each quarter of a unit has as many.
#define FEWER (WARPS_N * TILES - BLOCKS)
#define FULL  (WARPS_N - FEWER) // columns of four

typedef struct {
    uint column, part; // which half of K or of the rows, if any
    uint block;        // the first; of those with three the one before theirs, which is another's
} place_t;

static inline place_t place_of(fragment_unit unit)
{
    place_t t;
    t.part = unit.wave / WARPS_N;
    t.column = FEWER ? (unit.wave + t.part * (WARPS_N / 2)) % WARPS_N : unit.wave % WARPS_N;
    t.block = t.column * TILES - (t.column >= FULL ? t.column - FULL + 1 : 0);
    return t;
}
// The emulator's calls are the same for all warps; what is superfluous is not stored.
#ifdef FRAGMENT_EMULATED
#define IS_SKIPPED(place, n) false
#else
#define IS_SKIPPED(place, n) ((n) == 0 && FEWER && (place).column >= FULL)
#endif

// ---- Copies: of both, chunks from the first of the work-group

typedef struct {
    global const uint4 *x, *w;
    global const uint4 *ahead;
    uint x_at[X_COPIES], w_step; // of W, blocks an equal distance apart
    uint to;                      // of x
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, ulong row, uint block)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    const uint last_row = (uint)min(a.m - 1 - row, (ulong)TILE_M);
    c.to = x_index(item / X_CHUNKS, item % X_CHUNKS); // of rows a multiple of 2 apart
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0);
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++)
        c.x_at[i] = min((item + i * ITEMS) / X_CHUNKS, last_row) * (uint)(a.x_rows.s0 / 8) +
                    item % X_CHUNKS;
    c.w = (global const uint4 *)(a.data + (block + item / LANES) * a.pitch) + item % LANES;
    c.ahead = (global const uint4 *)(a.data + (block + min(item / 16, (uint)BLOCKS - 1)) * a.pitch) + item % 16 * 2;
    c.w_step = ITEMS / LANES * (uint)(a.pitch / 16);
    return c;
}

#ifndef DISTANCE
#define DISTANCE 0
#endif
LINEAR_INLINE void prefetch(const copies_t *c, uint step)
{
#if DISTANCE && defined(ASYNC_COPY_CP)
    FRAGMENT_UNROLL
    for (uint i = 0; i < 256 / ITEMS; i++)
        __asm__ volatile("prefetch.global.L2 [%0];" : : "l"(c->ahead + (i * (ITEMS / 16) * (c->w_step / (ITEMS / LANES)) + step * LANES)));
#endif
}

LINEAR_INLINE void fetch(const copies_t *c, uint step, local uint4 *stage)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++) {
        if ((i + 1) * ITEMS > X_TILE && get_local_id(0) + i * ITEMS >= X_TILE)
            break;
        async_copy(stage + c->to + i * ITEMS, c->x + (c->x_at[i] + step * X_CHUNKS), &held);
    }
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++) {
        if ((i + 1) * ITEMS > W_CHUNKS && get_local_id(0) + i * ITEMS >= W_CHUNKS)
            break;
        async_copy(stage + X_TILE + get_local_id(0) + i * ITEMS,
                   c->w + (i * c->w_step + step * LANES), &held);
    }
}

// ---- Scales

#if GROUPED

// Lane 8n + g has the scales of rows g and g + 8 of block n, side by side as halves, and asks for
// those of the next group.
typedef struct {
    uint scale, next_scale, next_zero;
    uint entry;      // in the tables, of group 0
    uint4 turn;      // quotients of the scales of the group before and this one; zeros
} groups_t;

// What is subtracted from codes, with a power of two that makes its sign and exponent hold the bits
// of the factor that codes are multiplied by: both are 0 where the scale is. Sums are so many times
// as large.
#if FRAGMENT_IS_F16 // 32 (1024 + code), 2 (1024 + 16 code)
#define ZERO_UPPER   0xf800u
#define FACTOR_UPPER 0x5000u
#define ZERO_LOWER   0xe800u
#define FACTOR_LOWER 0x4000u
#define ZERO_SHIFT   4
#define UNIT         0x1p-5f
#else // 2 (128 + code)
#define ZERO_UPPER   0xc380u
#define FACTOR_UPPER 0x4000u
#define ZERO_LOWER   ZERO_UPPER
#define FACTOR_LOWER FACTOR_UPPER
#define ZERO_SHIFT   0
#define UNIT         0.5f
#endif

#define TWICE(bits) ((bits) * 0x00010001u)

LINEAR_INLINE void ask_for_group(const linear_t a, groups_t *g, uint group)
{
    const uint i = g->entry + min(group, a.groups - 1) * 8;
    g->next_scale = ((global const uint *)a.scales)[i];
    g->next_zero = a.zeros ? a.zeros[i] : (uint)a.zero * 0x11u;
}

LINEAR_INLINE float2 scales_of(uint scale)
{
    return (float2)(f16_bits_to_float((ushort)scale), f16_bits_to_float((ushort)(scale >> 16)));
}

// a / b to the nearest, but for ties of its last bits.
LINEAR_INLINE float quotient(float a, float b)
{
#ifdef FRAGMENT_EMULATED
    return a / b;
#else
    const float r = nv_reciprocal(b), q = a * r;
    return fma(fma(-q, b, a), r, q);
#endif
}

// Sums keep their unit where the next scale is 0.
LINEAR_INLINE void turn_to_next(groups_t *g)
{
    const uint scale = g->next_scale;
    const bool upper = (scale & 0x7fffu) != 0, lower = (scale & 0x7fff0000u) != 0;
    const float2 now = scales_of(g->scale);
    g->scale = (upper ? scale & 0xffffu : g->scale & 0xffffu) |
               (lower ? scale & 0xffff0000u : g->scale & 0xffff0000u);
    const float2 next = scales_of(g->scale);
    g->turn.x = as_uint(quotient(now.x, next.x));
    g->turn.y = as_uint(quotient(now.y, next.y));
    g->turn.z = (upper ? ZERO_UPPER + (g->next_zero & 15) : 0) |
                (lower ? ZERO_LOWER + (g->next_zero >> 4 << ZERO_SHIFT) : 0) << 16;
}

// zero, factor: of the upper and of the lower row.
LINEAR_INLINE void operands(uint w, uint zero, uint factor, uint *v)
{
    const uint zu = bytes_select(zero, 0u, 0x1010), zl = bytes_select(zero, 0u, 0x3232);
    const uint fu = bytes_select(factor, 0u, 0x1010), fl = bytes_select(factor, 0u, 0x3232);
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

typedef struct {
    float sum[TILES][PARTS][4];
    uint x[1 + AHEAD][PARTS][4]; // of 32 weights along K
    uint codes[TILES][4]; // of a step
#if GROUPED
    uint zero[TILES], factor[TILES];
    groups_t groups;
#else
    halves_zeros zero[TILES];
#endif
} work_t;

LINEAR_INLINE void load_x(fragment_unit unit, work_t *s, place_t at, local const uint4 *stage,
                          uint half_k, uint p, uint buffer)
{
    const uint row = (SPLIT_M > 1 ? at.part * PARTS * 8 : 0) + p * 8 + unit.lane / 4;
    const uint4 v = load_local(stage + x_index(row, half_k * 4 + unit.lane % 4));
    s->x[buffer][p][0] = v.x;
    s->x[buffer][p][1] = v.y;
    s->x[buffer][p][2] = v.z;
    s->x[buffer][p][3] = v.w;
}

LINEAR_INLINE void load_codes_of(fragment_unit unit, work_t *s, place_t at,
                                 local const uint4 *stage, uint n)
{
    local const uint4 *from = stage + X_TILE + (at.block + n) * LANES + unit.lane;
    if (SPLIT_K == 2) { // of the half that is this warp's
        const uint2 v = load_local2((local const uint2 *)from + at.part);
        s->codes[n][0] = v.x;
        s->codes[n][1] = v.y;
    } else {
        const uint4 v = load_local(from);
        s->codes[n][0] = v.x;
        s->codes[n][1] = v.y;
        s->codes[n][2] = v.z;
        s->codes[n][3] = v.w;
    }
}

// Operand j of the 32 weights along K of block n.
LINEAR_INLINE void make(const work_t *s, uint n, uint turn, uint j, uint *w)
{
#if GROUPED
    operands(s->codes[n][turn * 2 + j], s->zero[n], s->factor[n], w);
#else
    u4_operands(s->codes[n][turn * 2 + j], s->zero[n], w);
#endif
}

LINEAR_INLINE void multiply(fragment_unit unit, work_t *s, uint n, uint j, const uint *w, uint buffer,
                            uint first, uint count)
{
    FRAGMENT_UNROLL
    for (uint p = first; p < first + count; p++)
        mma_instruction(unit, s->sum[n][p], w, s->x[buffer][p] + 2 * j);
}

// Block n begins a group.
LINEAR_INLINE void turn_block(fragment_unit unit, work_t *s, uint n)
{
#if GROUPED
    const uint4 t = lane_get(unit, s->groups.turn, n * 8 + unit.lane / 4);
    s->zero[n] = t.z;
    s->factor[n] = t.z & (FACTOR_UPPER | FACTOR_LOWER << 16);
    FRAGMENT_UNROLL
    for (uint p = 0; p < PARTS; p++) {
        FRAGMENT_UNROLL
        for (uint e = 0; e < 4; e++)
            s->sum[n][p][e] *= as_float(e < 2 ? t.x : t.y);
    }
#endif
}

// Where the stages are, and which step is next to be asked for.
typedef struct {
    local uint4 *memory;
    uint slot, step, steps;
} ring_t;

LINEAR_INLINE void multiply_step(fragment_unit unit, work_t *s, place_t at, const copies_t *copies,
                                 ring_t *r, const bool begins)
{
    FRAGMENT_UNROLL
    for (uint turn = 0; turn < TURNS; turn++) {
        const bool last = turn + 1 == TURNS;
        const uint now = AHEAD ? turn : 0, next = AHEAD ? 1 - turn : 0; // buffers of x
        const uint half_k = SPLIT_K == 2 ? at.part : last ? 0 : 1;     // of what comes next
        if (last) {
            async_wait(STAGES - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            // The next stage is there, and all warps have loaded what they need of this one.
            if (r->step < r->steps) {
                fetch(copies, r->step, r->memory + r->slot * STAGE);
                prefetch(copies, min(r->step + DISTANCE, r->steps - 1));
            }
            async_commit();
            r->step++;
            r->slot = r->slot + 1 < STAGES ? r->slot + 1 : 0;
        }
        local const uint4 *stage = r->memory + r->slot * STAGE;
        if (AHEAD) {
            FRAGMENT_UNROLL
            for (uint p = 0; p < PARTS; p++)
                load_x(unit, s, at, stage, half_k, p, next);
        }
        FRAGMENT_UNROLL
        for (uint n = 0; n < TILES; n++) {
            uint w[2][4];
            if (IS_SKIPPED(at, n))
                continue;
            if (begins && turn == 0)
                turn_block(unit, s, n);
            make(s, n, turn, 0, w[0]);
            make(s, n, turn, 1, w[1]);
            if (last)
                load_codes_of(unit, s, at, stage, n);
            if (AHEAD || n + 1 < TILES) {
                multiply(unit, s, n, 0, w[0], now, 0, PARTS);
                multiply(unit, s, n, 1, w[1], now, 0, PARTS);
                continue;
            }
            FRAGMENT_UNROLL
            for (uint first = 0; first < PARTS; first += PARTS / 2) {
                multiply(unit, s, n, 0, w[0], now, first, PARTS / 2);
                multiply(unit, s, n, 1, w[1], now, first, PARTS / 2);
                FRAGMENT_UNROLL
                for (uint p = first; p < first + PARTS / 2; p++)
                    load_x(unit, s, at, stage, half_k, p, next);
            }
        }
    }
}

LINEAR_INLINE void begin(const linear_t a, fragment_unit unit, work_t *s, uint block)
{
#if GROUPED
    s->groups.entry = (block + unit.lane / 8) * a.groups * 8 + unit.lane % 8;
    s->groups.scale = TWICE(0x3c00u);
#ifdef NO_TURN
    for (uint n = 0; n < TILES; n++) {
        s->zero[n] = 0xe800f800u + (uint)a.zero;
        s->factor[n] = 0x40005000u;
    }
#endif
    ask_for_group(a, &s->groups, 0);
#endif
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
#if !GROUPED
        s->zero[n] = group_zeros(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        FRAGMENT_UNROLL
        for (uint p = 0; p < PARTS; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] = 0.0f;
        }
    }
}

LINEAR_INLINE void apply_scales(const linear_t a, fragment_unit unit, work_t *s, uint block)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
#if GROUPED
        const uint4 own = {s->groups.scale, 0u, 0u, 0u};
        const float2 scale = scales_of(lane_get(unit, own, n * 8 + unit.lane / 4).x) * UNIT;
#else
        const float2 scale = group_scales(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        FRAGMENT_UNROLL
        for (uint p = 0; p < PARTS; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] *= e < 2 ? scale.x : scale.y;
        }
    }
}

#ifndef RESIDENT_WG
#define RESIDENT_WG 1
#endif
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(RESIDENT_WG) void
linear_packed_wide(LINEAR_PARAMETERS)
{
    local uint4 memory[LOCAL];
    FRAGMENT_UNIT(unit, WARPS);
    const linear_t a = LINEAR_ARGUMENTS;
    const ulong2 tile = tile_of();
    const ulong row = m_first + tile.y * TILE_M;
    // The last tile ends with W, and begins within the one before it.
    const uint first_column = (uint)tile.x * TILE_N;
    const uint first_block = min(first_column / 16, (a.n + 15) / 16 - BLOCKS);
    const place_t at = place_of(unit);
    const uint block = first_block + at.block;
    const uint period = GROUPED ? a.group_size / STEP_K : 1;

    const copies_t copies = copies_of(a, row, first_block);
    ring_t ring = {memory, 0, STAGES, a.k / STEP_K};
    FRAGMENT_UNROLL
    for (uint i = 0; i < STAGES; i++) {
        if (i < ring.steps)
            fetch(&copies, i, memory + i * STAGE);
        async_commit();
    }
    work_t s;
    begin(a, unit, &s, block);
    async_wait(STAGES - 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++)
        load_codes_of(unit, &s, at, memory, n);
    FRAGMENT_UNROLL
    for (uint p = 0; p < PARTS; p++)
        load_x(unit, &s, at, memory, SPLIT_K == 2 ? at.part : 0, p, 0);

    uint phase = 0, group = 0; // the step within its group
    (void)phase, (void)group, (void)period;
    _Pragma("unroll 1")
    for (uint step = 0; step < ring.steps; step++) {
#ifdef NO_TURN
        multiply_step(unit, &s, at, &copies, &ring, false);
#elif GROUPED
        if (phase == 0) {
            turn_to_next(&s.groups);
            ask_for_group(a, &s.groups, ++group);
#ifdef BLOCK_TURN
            FRAGMENT_UNROLL
            for (uint n = 0; n < TILES; n++)
                turn_block(unit, &s, n);
        }
        multiply_step(unit, &s, at, &copies, &ring, false);
#else
            multiply_step(unit, &s, at, &copies, &ring, true);
        } else {
            multiply_step(unit, &s, at, &copies, &ring, false);
        }
#endif
        phase = phase + 1 < period ? phase + 1 : 0;
#else
        multiply_step(unit, &s, at, &copies, &ring, false);
#endif
    }

    async_wait(0);
    apply_scales(a, unit, &s, block);
    local float *sums = (local float *)memory + at.column * (TILE_M * SUM_PITCH);
    const uint first_row = SPLIT_M > 1 ? at.part * PARTS * 8 : 0;
    _Pragma("unroll 1")
    for (uint pass = 0; pass < TILES / PASS_TILES; pass++) {
        FRAGMENT_UNROLL
        for (uint from = 0; from < SPLIT_K; from++) { // the first half of K is added last
            barrier(CLK_LOCAL_MEM_FENCE);
            FRAGMENT_UNROLL
            for (uint n = 0; n < TILES; n++) {
                if (n / PASS_TILES != pass || (SPLIT_K == 2 && at.part == from))
                    continue;
                FRAGMENT_UNROLL
                for (uint p = 0; p < PARTS; p++) {
                    FRAGMENT_UNROLL
                    for (uint e = 0; e < 4; e++) {
                        local float *to = &sums[(first_row + p * 8 + mma_column(unit, e)) * SUM_PITCH +
                                                n % PASS_TILES * 16 + mma_row(unit, e)];
                        *to = from > 0 ? *to + s.sum[n][p][e] : s.sum[n][p][e];
                    }
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        _Pragma("unroll 1")
        for (uint i = unit.lane + at.part * FRAGMENT_WAVE; i < TILE_M * PASS_TILES * 2;
             i += FRAGMENT_WAVE * SPLIT_K * SPLIT_M) {
            const uint r = i / (PASS_TILES * 2), c = i % (PASS_TILES * 2) * 8;
            const uint column = (block + pass * PASS_TILES) * 16 + c;
            const bool another = FEWER && at.column >= FULL && pass == 0 && c < 16;
            if (row + r < a.m && column >= first_column && column < a.n && !another)
                finish8(a, row + r, column, sums + r * SUM_PITCH + c);
        }
    }
}
