// The linear layer on mma.sync for weights of 4 bits and many rows of x, where all of K has one
// scale or groups are whole steps with f16 scales, x is plain rows (on 16-byte boundaries, one
// stride apart), K whole steps and N a work-group's columns or more. As linear_packed.cl, but a
// warp has 64 columns of y, so that what it reads of x serves four blocks of W. The build chooses
//
//     -DX=f16 | bf16   -DW=u4_nv   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DGROUPED=0 | 1   one scale a row of W, or one a group
//
// linear_packed_wide_64: 64 rows of y by 256 columns. linear_packed_wide_32: 32 by 128, where two
// warps share the columns and each takes half of every step along K.
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

#define WARPS     4
#define ITEMS     (WARPS * FRAGMENT_WAVE)
#define TILES     4 // blocks of 16 rows of W, of a warp
#define STEP_K    64
#define MAX_PARTS 8 // of eight rows of x

// What follows depends on the shape: `parts`, and `split`, the warps that share columns.
#define COLUMNS(split)  (WARPS / (split)*TILES * 16)
#define TILE_M(parts)   ((parts)*8)
#define HALVES(split)   (2 / (split)) // of a step, that a warp multiplies
#define X_CHUNKS        (STEP_K / 8)  // of 16 bytes, of a row
#define W_CHUNKS        32            // of a block of 16 rows
#define X_TILE(parts)   (TILE_M(parts) * X_CHUNKS)
#define W_TILE(split)   (COLUMNS(split) / 16 * W_CHUNKS)
#define X_COPIES(parts) (X_TILE(parts) / ITEMS)
#define W_COPIES(split) (W_TILE(split) / ITEMS)
#define MAX_X_COPIES    X_COPIES(MAX_PARTS)

// A stage of local memory: x, then W, its tiles one after the other.
#define STAGE(parts, split)  (X_TILE(parts) + W_TILE(split))
#define LOCAL                3072 // chunks: 48 KiB
#define STAGES(parts, split) (LOCAL / STAGE(parts, split))

// At the end sums lie in local memory as rows of y, two blocks of W at a time.
#define PASS_TILES 2
#define SUM_PITCH  (PASS_TILES * 16 + 4)

// The four lanes of a quad read half a row, those of two quads different halves of the banks.
static inline uint x_index(uint row, uint chunk)
{
    return row * X_CHUNKS + (chunk ^ row % 2 * 4);
}

// ---- Copies

typedef struct {
    global const uint4 *x, *w; // this item's first chunks
    uint x_at[MAX_X_COPIES];   // chunks from there, of rows that exist
    uint w_step, to;
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, ulong row, uint block, const uint parts)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    const uint last = (uint)min(a.m - 1 - row, (ulong)TILE_M(parts));
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0) +
          item % X_CHUNKS;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(parts); i++)
        c.x_at[i] = min((item + i * ITEMS) / X_CHUNKS, last) * (uint)(a.x_rows.s0 / 8);
    c.w = (global const uint4 *)(a.data + (block + item / W_CHUNKS) * a.pitch) + item % W_CHUNKS;
    c.w_step = ITEMS / W_CHUNKS * (uint)(a.pitch / 16);
    c.to = x_index(item / X_CHUNKS, item % X_CHUNKS); // of rows a multiple of 2 apart
    return c;
}

LINEAR_INLINE void fetch(const copies_t *c, uint step, local uint4 *stage, const uint parts,
                         const uint split)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(parts); i++)
        async_copy(stage + c->to + i * ITEMS, c->x + (c->x_at[i] + step * X_CHUNKS), &held);
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES(split); i++)
        async_copy(stage + X_TILE(parts) + get_local_id(0) + i * ITEMS,
                   c->w + (i * c->w_step + step * W_CHUNKS), &held);
}

// ---- Scales

#if GROUPED

// Lane 8n + g has the scales of rows g and g + 8 of block n, side by side as halves, and asks for
// those of the next group.
typedef struct {
    uint scale, next_scale, next_zero;
    uint entry; // in the tables, of group 0
    uint4 turn; // quotients of the scales of the group before and this one; zeros
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

// a / b to within one unit of its last place.
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
    float sum[TILES][MAX_PARTS][4];
    uint x[MAX_PARTS][4]; // of 32 weights along K
    uint codes[TILES][4]; // of a step
    uint column, part;    // this warp's place among the columns, and along K
#if GROUPED
    uint zero[TILES], factor[TILES];
    groups_t groups;
#else
    halves_zeros zero[TILES];
#endif
} work_t;

LINEAR_INLINE void load_x(fragment_unit unit, work_t *s, local const uint4 *stage, uint half_k,
                          uint p)
{
    const uint4 v = load_local(stage + x_index(p * 8 + unit.lane / 4, half_k * 4 + unit.lane % 4));
    s->x[p][0] = v.x;
    s->x[p][1] = v.y;
    s->x[p][2] = v.z;
    s->x[p][3] = v.w;
}

// Block n's; where warps share columns, of the half that is this one's.
LINEAR_INLINE void load_codes_of(fragment_unit unit, work_t *s, local const uint4 *stage, uint n,
                                 const uint parts, const uint split)
{
    local const uint4 *from =
        stage + X_TILE(parts) + (s->column * TILES + n) * W_CHUNKS + unit.lane;
    if (split == 2) {
        const uint2 v = load_local2((local const uint2 *)from + s->part);
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
LINEAR_INLINE void make(const work_t *s, uint n, uint half_k, uint j, uint *w)
{
#if GROUPED
    operands(s->codes[n][half_k * 2 + j], s->zero[n], s->factor[n], w);
#else
    u4_operands(s->codes[n][half_k * 2 + j], s->zero[n], w);
#endif
}

LINEAR_INLINE void multiply(fragment_unit unit, work_t *s, uint n, uint j, const uint *w,
                            uint first, uint count)
{
    FRAGMENT_UNROLL
    for (uint p = first; p < first + count; p++)
        mma_instruction(unit, s->sum[n][p], w, s->x[p] + 2 * j);
}

// A group begins, and the one after it is asked for.
LINEAR_INLINE void begin_group(const linear_t a, fragment_unit unit, work_t *s, uint next,
                               const uint parts)
{
#if GROUPED
    turn_to_next(&s->groups);
    ask_for_group(a, &s->groups, next);
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        const uint4 t = lane_get(unit, s->groups.turn, n * 8 + unit.lane / 4);
        s->zero[n] = t.z;
        s->factor[n] = t.z & (FACTOR_UPPER | FACTOR_LOWER << 16);
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] *= as_float(e < 2 ? t.x : t.y);
        }
    }
#endif
}

// Where the stages are, and which step is to be asked for next.
typedef struct {
    local uint4 *memory;
    uint slot, step, steps;
} ring_t;

LINEAR_INLINE void multiply_step(fragment_unit unit, work_t *s, const copies_t *copies, ring_t *r,
                                 const uint parts, const uint split)
{
    FRAGMENT_UNROLL
    for (uint half_k = 0; half_k < HALVES(split); half_k++) {
        const bool last = half_k + 1 == HALVES(split);
        const uint next = split == 2 ? s->part : last ? 0 : 1; // half of what comes next
        if (last) {
            async_wait(STAGES(parts, split) - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            // The next stage is there, and all warps have loaded what they need of this one.
            if (r->step < r->steps)
                fetch(copies, r->step, r->memory + r->slot * STAGE(parts, split), parts, split);
            async_commit();
            r->step++;
            r->slot = r->slot + 1 < STAGES(parts, split) ? r->slot + 1 : 0;
        }
        local const uint4 *stage = r->memory + r->slot * STAGE(parts, split);
        // What comes next takes the place of codes as halves are made of them, and of x as the last
        // block is multiplied. Past the end what is loaded here is not used.
        FRAGMENT_UNROLL
        for (uint n = 0; n < TILES; n++) {
            uint w[2][4];
            make(s, n, half_k, 0, w[0]);
            make(s, n, half_k, 1, w[1]);
            if (last)
                load_codes_of(unit, s, stage, n, parts, split);
            if (n + 1 < TILES) {
                multiply(unit, s, n, 0, w[0], 0, parts);
                multiply(unit, s, n, 1, w[1], 0, parts);
                continue;
            }
            FRAGMENT_UNROLL
            for (uint first = 0; first < parts; first += parts / 2) {
                multiply(unit, s, n, 0, w[0], first, parts / 2);
                multiply(unit, s, n, 1, w[1], first, parts / 2);
                FRAGMENT_UNROLL
                for (uint p = first; p < first + parts / 2; p++)
                    load_x(unit, s, stage, next, p);
            }
        }
    }
}

LINEAR_INLINE void begin(const linear_t a, fragment_unit unit, work_t *s, uint block,
                         const uint parts)
{
#if GROUPED
    s->groups.entry = (block + unit.lane / 8) * a.groups * 8 + unit.lane % 8;
    s->groups.scale = 0x3c003c00u; // of no products: any other than 0
    ask_for_group(a, &s->groups, 0);
#endif
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
#if !GROUPED
        s->zero[n] = group_zeros(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] = 0.0f;
        }
    }
}

LINEAR_INLINE void apply_scales(const linear_t a, fragment_unit unit, work_t *s, uint block,
                                const uint parts)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
#if GROUPED
        const uint4 own = (uint4)(s->groups.scale, 0u, 0u, 0u);
        const float2 scale = scales_of(lane_get(unit, own, n * 8 + unit.lane / 4).x) * UNIT;
#else
        const float2 scale = group_scales(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] *= e < 2 ? scale.x : scale.y;
        }
    }
}

// Sums of blocks 2 pass and 2 pass + 1 as rows, those of the other half of K first.
LINEAR_INLINE void put_sums(fragment_unit unit, const work_t *s, local float *sums, uint pass,
                            const uint parts, const uint split)
{
    FRAGMENT_UNROLL
    for (uint from = 0; from < split; from++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        FRAGMENT_UNROLL
        for (uint n = 0; n < TILES; n++) {
            if (n / PASS_TILES != pass || (split == 2 && s->part == from))
                continue;
            FRAGMENT_UNROLL
            for (uint p = 0; p < parts; p++) {
                FRAGMENT_UNROLL
                for (uint e = 0; e < 4; e++) {
                    local float *to = &sums[(p * 8 + mma_column(unit, e)) * SUM_PITCH +
                                            n % PASS_TILES * 16 + mma_row(unit, e)];
                    *to = from > 0 ? *to + s->sum[n][p][e] : s->sum[n][p][e];
                }
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

LINEAR_INLINE void packed(const linear_t a, fragment_unit unit, local uint4 *memory, ulong m_first,
                          const uint parts, const uint split)
{
    const ulong2 tile = tile_of();
    const ulong row = m_first + tile.y * TILE_M(parts);
    // The last tile ends with W, and begins within the one before it.
    const uint first_column = (uint)tile.x * COLUMNS(split);
    const uint first_block = min(first_column / 16, (a.n + 15) / 16 - COLUMNS(split) / 16);
    work_t s;
    s.column = unit.wave % (WARPS / split);
    s.part = unit.wave / (WARPS / split);
    const uint block = first_block + s.column * TILES;

    const copies_t copies = copies_of(a, row, first_block, parts);
    ring_t ring = {memory, 0, STAGES(parts, split), a.k / STEP_K};
    FRAGMENT_UNROLL
    for (uint i = 0; i < STAGES(parts, split); i++) {
        if (i < ring.steps)
            fetch(&copies, i, memory + i * STAGE(parts, split), parts, split);
        async_commit();
    }
    begin(a, unit, &s, block, parts);
    async_wait(STAGES(parts, split) - 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++)
        load_codes_of(unit, &s, memory, n, parts, split);
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++)
        load_x(unit, &s, memory, s.part, p);

    uint group = 0, left = 0; // the next group; steps of this one
    _Pragma("unroll 1")
    for (uint step = 0; step < ring.steps; step++) {
        if (GROUPED && left == 0) {
            begin_group(a, unit, &s, ++group, parts);
            left = a.group_size / STEP_K;
        }
        left--;
        multiply_step(unit, &s, &copies, &ring, parts, split);
    }

    async_wait(0);
    apply_scales(a, unit, &s, block, parts);
    local float *sums = (local float *)memory + s.column * (TILE_M(parts) * SUM_PITCH);
    _Pragma("unroll 1")
    for (uint pass = 0; pass < TILES / PASS_TILES; pass++) {
        put_sums(unit, &s, sums, pass, parts, split);
        _Pragma("unroll 1")
        for (uint i = unit.lane + s.part * FRAGMENT_WAVE;
             i < TILE_M(parts) * PASS_TILES * 2; i += FRAGMENT_WAVE * split) {
            const uint r = i / (PASS_TILES * 2), c = i % (PASS_TILES * 2) * 8;
            const uint column = (block + pass * PASS_TILES) * 16 + c;
            if (row + r < a.m && column >= first_column && column < a.n)
                finish8(a, row + r, column, sums + r * SUM_PITCH + c);
        }
    }
}

#define PACKED(name, resident, parts, split)                                                       \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(resident) void name(        \
        LINEAR_PARAMETERS)                                                                         \
    {                                                                                              \
        local uint4 memory[LOCAL];                                                                 \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        packed(a, unit, memory, m_first, parts, split);                                            \
    }

PACKED(linear_packed_wide_32, 3, 4, 2)
PACKED(linear_packed_wide_64, 2, 8, 1)
