// The linear layer on mma.sync for codes of 4 bits in groups of 128 weights with f16 scales, and more
// than 64 rows of x, which are plain as linear_packed_wide.cl wants them; K is whole groups, N a
// tile's columns or more. A tile is 128 x 128, a warp has all 128 rows by 32 columns: what is made of
// codes serves sixteen products, not eight. In return all of x passes through each warp's registers,
// two parts of eight rows ahead of their products. The build chooses
//
//     -DX=f16 | bf16   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//
// Sums count in units of their group's scale, as in linear_packed_wide.cl. A group is two steps of
// 64 along K, unrolled, so that places in local memory are constants. There are two stages of local
// memory: x of one step, and W of the step after it, whose operands are made while this one is
// multiplied. W has been asked into the L2 some groups before.
#define FRAGMENT_TYPE X
#define W             u4_nv
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/async_copy.clh"
#include "linear/linear_packed_place.clh"
#include "linear/linear_packed_turn.clh"
#include "linear/linear_plain_rows.clh"

#define WARPS   4
#define ITEMS   (WARPS * FRAGMENT_WAVE)
#define BLOCKS  2  // of 16 rows of W, of a warp
#define PARTS   16 // of eight rows of x
#define PAIRS   (PARTS / 2)
#define TILE_M  (PARTS * 8)
#define GROUP_K 128
#define STEP_K  64
#define HALVES  2 // of a step
#define AHEAD   3 // groups

#define X_CHUNKS (STEP_K / 8) // of 16 bytes, of a row
#define W_CHUNKS 32           // of a block of 16 rows
#define X_TILE   (TILE_M * X_CHUNKS)
#define W_TILE   (WARPS * BLOCKS * W_CHUNKS)
#define STAGE    (X_TILE + W_TILE)
#define X_COPIES (X_TILE / ITEMS)
#define W_COPIES (W_TILE / ITEMS)

// At the end sums lie in local memory as rows of y, of half a tile's rows.
#define SUM_PITCH (BLOCKS * 16 + 4)
#define PASSES    2
#define PASS_M    (TILE_M / PASSES)

static inline uint x_index(uint row, uint chunk)
{
    return row * X_CHUNKS + (chunk ^ row % 2 * 4);
}

// ---- Copies

typedef struct {
    global const uint4 *x, *w; // this item's first chunks
    uint x_at, x_last, x_step; // of x, in chunks: the first, of the last row, from one to the next
    uint w_step, x_to, w_to;
    uint ahead; // chunks from w, modulo 2^32: what this item asks into the L2
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, ulong row, uint block)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    const uint pitch = (uint)(a.x_rows.s0 / 8);
    c.x_at = item / X_CHUNKS * pitch;
    c.x_last = (uint)min(a.m - 1 - row, (ulong)TILE_M - 1) * pitch;
    c.x_step = ITEMS / X_CHUNKS * pitch;
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0) +
          item % X_CHUNKS;
    c.x_to = x_index(item / X_CHUNKS, item % X_CHUNKS); // of rows a multiple of 2 apart
    c.w = (global const uint4 *)(a.data + (block + item / W_CHUNKS) * a.pitch) + item % W_CHUNKS;
    c.w_step = ITEMS / W_CHUNKS * (uint)(a.pitch / 16);
    c.w_to = X_TILE + item;
    c.ahead = item / 8 % (WARPS * BLOCKS) * (uint)(a.pitch / 16) + item % 8 * 8 -
              (item / W_CHUNKS * (uint)(a.pitch / 16) + item % W_CHUNKS);
    return c;
}

LINEAR_INLINE void fetch_x(const copies_t *c, uint step, local uint4 *stage)
{
    uint4 held;
    const uint at = forgotten(c->x_at) + step * X_CHUNKS, last = c->x_last + step * X_CHUNKS;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++)
        async_copy(stage + c->x_to + i * ITEMS, c->x + min(at + i * c->x_step, last), &held);
}

LINEAR_INLINE void fetch_w(const copies_t *c, uint step, local uint4 *stage)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++)
        async_copy(stage + c->w_to + i * ITEMS, c->w + (i * c->w_step + step * W_CHUNKS), &held);
}

// W of a group, into the L2: 1 KiB of each block.
LINEAR_INLINE void ask_ahead(const copies_t *c, uint group)
{
#ifndef FRAGMENT_EMULATED
    __asm__ volatile(
        "prefetch.global.L2 [%0];" ::"l"(c->w + (int)(c->ahead + group * (2 * W_CHUNKS))));
#endif
}

// ---- A warp's products

typedef struct {
    float sum[BLOCKS][PARTS][4];
    uint x[2][2][4];         // two parts of 32 weights along K, and the next two
    uint codes[BLOCKS][4];   // of a step
    uint w[2][BLOCKS][2][4]; // operands of 32 along K, and the next
    halves_zeros zero[BLOCKS];
    groups_t groups;
    uint x_at, codes_at; // in a stage, this lane's first chunks
} work_t;

// Two parts: `pair` of a half of the step whose x is in `stage`.
LINEAR_INLINE void load_x(work_t *s, local const uint4 *stage, uint half_k, uint pair)
{
    FRAGMENT_UNROLL
    for (uint i = 0; i < 2; i++) {
        const uint4 v =
            load_local(stage + (half_k ? s->x_at ^ 4 : s->x_at) + (pair * 2 + i) * 8 * X_CHUNKS);
        s->x[pair % 2][i][0] = v.x;
        s->x[pair % 2][i][1] = v.y;
        s->x[pair % 2][i][2] = v.z;
        s->x[pair % 2][i][3] = v.w;
    }
}

LINEAR_INLINE void load_codes_of(work_t *s, local const uint4 *stage)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < BLOCKS; n++) {
        const uint4 v = load_local(stage + s->codes_at + n * W_CHUNKS);
        s->codes[n][0] = v.x;
        s->codes[n][1] = v.y;
        s->codes[n][2] = v.z;
        s->codes[n][3] = v.w;
    }
}

// The i-th of eight pairs of registers of the operands of a half.
LINEAR_INLINE void make_pair(work_t *s, uint half_k, uint i)
{
    const uint n = i / 4, j = i / 2 % 2;
    turned_operand(s->codes[n][half_k * 2 + j], s->zero[n], i % 2, s->w[half_k][n][j] + i % 2 * 2);
}

LINEAR_INLINE void turn_part(work_t *s, uint p, const float4 turn)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < BLOCKS; n++) {
        FRAGMENT_UNROLL
        for (uint e = 0; e < 4; e++)
            s->sum[n][p][e] *= n ? (e < 2 ? turn.z : turn.w) : (e < 2 ? turn.x : turn.y);
    }
}

// The products of a pair of parts, and beside them a pair of the next half's registers.
LINEAR_INLINE void multiply_pair(fragment_unit unit, work_t *s, uint half_k, uint pair)
{
    FRAGMENT_UNROLL
    for (uint j = 0; j < 2; j++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < 2; i++) {
            FRAGMENT_UNROLL
            for (uint n = 0; n < BLOCKS; n++)
                mma_instruction(unit, s->sum[n][pair * 2 + i], s->w[half_k][n][j],
                                s->x[pair % 2][i] + 2 * j);
        }
        if (j == 0)
            make_pair(s, half_k ^ 1, pair);
    }
}

// Of the step that begins at the last pair of the one before: its quotients, if it begins a group.
LINEAR_INLINE float4 turn_of(fragment_unit unit, const work_t *s)
{
    const uint4 first = quad_get(unit, s->groups.turn, 0),
                second = quad_get(unit, s->groups.turn, 1);
    return as_float4((uint4)(first.xy, second.xy));
}
LINEAR_INLINE void zeros_of_next(fragment_unit unit, work_t *s)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < BLOCKS; n++)
        s->zero[n] = turned_zeros(quad_get(unit, s->groups.turn, n).z);
}

// A step, from the last pair of the one before on. slot: its stage, and whether it begins a group.
LINEAR_INLINE void multiply_step(const linear_t a, fragment_unit unit, work_t *s,
                                 const copies_t *copies, local uint4 *memory, const uint slot,
                                 uint step, uint steps)
{
    const bool begins = slot == 0;
    local uint4 *stage = memory + slot * STAGE, *other = memory + (slot ^ 1) * STAGE;
    async_wait(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    // x of this step and W of the next are there, and all warps have loaded what they need of x of
    // the step before and of W of this one. Past the end what is copied is the last, which nobody
    // reads.
    if (begins)
        ask_ahead(copies, min(step / 2 + AHEAD, steps / 2 - 1));
    const float4 turn = begins ? turn_of(unit, s) : (float4)1.0f;
    load_x(s, stage, 0, 0);
    if (begins) {
        turn_part(s, 0, turn);
        turn_part(s, 1, turn);
    }
    fetch_x(copies, min(step + 1, steps - 1), other);
    fetch_w(copies, min(step + 2, steps - 1), other);
    async_commit();
    multiply_pair(unit, s, 1, PAIRS - 1);
    FRAGMENT_UNROLL
    for (uint half_k = 0; half_k < HALVES; half_k++) {
        if (half_k == 1) {
            load_codes_of(s, stage);
            if (!begins)
                zeros_of_next(unit, s);
        }
        FRAGMENT_UNROLL
        for (uint pair = 0; pair + half_k < PAIRS; pair++) {
            if (pair + 1 < PAIRS)
                load_x(s, stage, half_k, pair + 1);
            else
                load_x(s, stage, 1, 0);
            if (begins && half_k == 0 && pair + 1 < PAIRS) {
                turn_part(s, pair * 2 + 2, turn);
                turn_part(s, pair * 2 + 3, turn);
            }
            multiply_pair(unit, s, half_k, pair);
        }
        if (begins && half_k == 0)
            turn_to_next(a, &s->groups);
    }
}

LINEAR_INLINE void begin(const linear_t a, fragment_unit unit, work_t *s, uint block, uint group,
                         uint groups)
{
    s->groups.entry = ((block + unit.lane % BLOCKS) * a.groups + group) * 8 + unit.lane / 4;
    s->groups.more = groups - group - 1;
    s->groups.scale = 0x3c003c00u; // of no products: any other than 0
    ask_for_group(a, &s->groups);
    turn_to_next(a, &s->groups);
    FRAGMENT_UNROLL
    for (uint n = 0; n < BLOCKS; n++) {
        FRAGMENT_UNROLL
        for (uint p = 0; p < PARTS; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] = 0.0f;
        }
    }
    // The first step begins with products of the one before it.
    FRAGMENT_UNROLL
    for (uint i = 0; i < 4; i++) {
        s->x[1][0][i] = s->x[1][1][i] = 0;
        FRAGMENT_UNROLL
        for (uint n = 0; n < BLOCKS; n++)
            s->w[1][n][0][i] = s->w[1][n][1][i] = 0;
    }
}

LINEAR_INLINE void multiply_piece(const linear_t a, fragment_unit unit, work_t *s,
                                  local uint4 *memory, const place_t p)
{
    const copies_t copies = copies_of(a, p.row, p.block);
    const uint steps = p.piece.end * 2, first = p.piece.begin * 2;
    fetch_w(&copies, first, memory + STAGE);
    async_commit();
    fetch_x(&copies, first, memory);
    fetch_w(&copies, first + 1, memory);
    async_commit();
    begin(a, unit, s, p.block + unit.wave * BLOCKS, p.piece.begin, p.piece.end);
    async_wait(1);
    barrier(CLK_LOCAL_MEM_FENCE);
    load_codes_of(s, memory + STAGE);
    zeros_of_next(unit, s);
    FRAGMENT_UNROLL
    for (uint i = 0; i + 1 < PAIRS; i++)
        make_pair(s, 0, i);
    _Pragma("unroll 1") for (uint step = first; step < steps; step += 2)
    {
        multiply_step(a, unit, s, &copies, memory, 0, step, steps);
        multiply_step(a, unit, s, &copies, memory, 1, step + 1, steps);
    }
    multiply_pair(unit, s, 1, PAIRS - 1);
    async_wait(0);
}

LINEAR_INLINE void apply_scales(fragment_unit unit, work_t *s)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < BLOCKS; n++) {
        const uint4 own = (uint4)(s->groups.scale, 0u, 0u, 0u);
        const float2 scale = unit_scales(quad_get(unit, own, n).x) / CODE_UNIT;
        FRAGMENT_UNROLL
        for (uint p = 0; p < PARTS; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] *= e < 2 ? scale.x : scale.y;
        }
    }
}

// A warp's, half of the rows at a time.
LINEAR_INLINE void store_tile(const linear_t a, fragment_unit unit, const work_t *s,
                              local uint4 *memory, const place_t p)
{
    local float *sums = (local float *)memory + unit.wave * (PASS_M * SUM_PITCH);
    const uint first = (p.block + unit.wave * BLOCKS) * 16;
    const rows8_t to = rows8_of(a, p.row, first, BLOCKS * 16);
    _Pragma("unroll 1") for (uint pass = 0; pass < PASSES; pass++)
    {
        warp_barrier();
        FRAGMENT_UNROLL
        for (uint i = 0; i < PARTS; i++) {
            if (i / (PARTS / PASSES) != pass)
                continue;
            FRAGMENT_UNROLL
            for (uint n = 0; n < BLOCKS; n++) {
                FRAGMENT_UNROLL
                for (uint e = 0; e < 4; e++)
                    sums[(i % (PARTS / PASSES) * 8 + mma_column(unit, e)) * SUM_PITCH + n * 16 +
                         mma_row(unit, e)] = s->sum[n][i][e];
            }
        }
        warp_barrier();
        const uint begin_row = pass * PASS_M;
        _Pragma("unroll 4") for (uint i = unit.lane; i < PASS_M * BLOCKS * 2; i += FRAGMENT_WAVE)
        {
            const uint r = i / (BLOCKS * 2), c = i % (BLOCKS * 2) * 8;
            const ulong row = p.row + begin_row + r;
            if (row >= a.m)
                continue;
            if (to.plain && first >= p.column)
                store_row8(to, begin_row + r, c, sums + r * SUM_PITCH + c);
            else if (first + c >= p.column && first + c < a.n)
                finish8(a, row, first + c, sums + r * SUM_PITCH + c);
        }
    }
}

LINEAR_INLINE void packed(const linear_t a, fragment_unit unit, local uint4 *memory,
                          const meet_t meet, const uint whole, const uint per)
{
    work_t s;
    s.x_at = x_index(unit.lane / 4, unit.lane % 4);
    s.codes_at = X_TILE + unit.wave * BLOCKS * W_CHUNKS + unit.lane;
    _Pragma("unroll 1") for (uint n = 0;; n++)
    {
        const share_t share =
            share_of(a, whole, per, TILE_M, WARPS * BLOCKS, forgotten(a.k) / GROUP_K);
        const place_t p = place_of(a, share, n, TILE_M, WARPS * BLOCKS);
        if (!piece_is_there(share, p.piece))
            break;
        multiply_piece(a, unit, &s, memory, p);
        barrier(CLK_LOCAL_MEM_FENCE); // all have loaded the last stage
        n = forgotten(n);
        // Asked for again, they need no registers while there are products.
        unit.lane = forgotten((uint)get_local_id(0)) % FRAGMENT_WAVE;
        unit.wave = forgotten((uint)get_local_id(0)) / FRAGMENT_WAVE;
        const share_t again =
            share_of(a, whole, per, TILE_M, WARPS * BLOCKS, forgotten(a.k) / GROUP_K);
        const place_t q = place_of(a, again, n, TILE_M, WARPS * BLOCKS);
        apply_scales(unit, &s);
        bool stores = true;
        if (!piece_is_whole(again, q.piece))
            stores = packed_meet(again, q.piece, meet, &s.sum[0][0][0], BLOCKS * PARTS * 4, memory,
                                 unit.wave, WARPS);
        if (stores)
            store_tile(a, unit, &s, memory, q);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
RESIDENT(2) void linear_packed_tall(LINEAR_PARAMETERS, SPLIT_PARAMETERS)
{
    local uint4 memory[2 * STAGE];
    FRAGMENT_UNIT(unit, WARPS);
    const linear_t a = LINEAR_ARGUMENTS;
    const meet_t meet = {split_sums, split_counts};
    packed(a, unit, memory, meet, split_whole, split_per);
}
