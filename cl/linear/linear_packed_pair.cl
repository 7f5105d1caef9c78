// The linear layer on mma.sync for codes of 4 bits and more rows of x than linear_packed_wide_32 takes,
// which are plain as linear_packed_wide.cl wants them; K is whole steps of 64, N a tile's columns or
// more. A tile is 64 x 448. Two groups of four warps have its columns: the first 256, four blocks of
// 16 rows of W a warp, and the other 192, three, so that every quarter of a compute unit has seven, and
// somebody has products while the other warp has not. The build chooses
//
//     -DX=f16 | bf16   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DGROUPED=0 | 1   one scale a row of W, or f16 scales of groups of whole steps
//
// Sums count in units of the scale of their group, as in linear_packed_wide.cl.
#define FRAGMENT_TYPE X
#define W             u4_nv
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/async_copy.clh"
#define SPLIT_LANE (forgotten((uint)get_local_id(0)) % 32)
#include "linear/linear_packed_turn.clh"

#include "linear/linear_packed_place.clh"
#include "linear/linear_plain_rows.clh"

#define WARPS     4 // of a group
#define ITEMS     (2 * WARPS * FRAGMENT_WAVE)
#define MAX_TILES 4                                     // blocks of 16 rows of W, of a warp
#define BLOCKS    (WARPS * (MAX_TILES + MAX_TILES - 1)) // of a tile
#define PARTS     8                                     // of eight rows of x
#define TILE_M    (PARTS * 8)
#define STEP_K    64

#define X_CHUNKS    (STEP_K / 8) // of 16 bytes, of a row
#define HALF_CHUNKS 4            // of 32 along K
#define W_CHUNKS    32           // of a block
#define X_HALF      (TILE_M * HALF_CHUNKS)
#define X_COPIES    (TILE_M * X_CHUNKS / ITEMS)

// Local memory, in bytes: two steps of W, then two of x, each 32 along K after 32 along K. All of it lies
// in the order in which items copy it, and lanes load it. Codes are loaded by the lane that copied
// them, so that the next ones may come as soon as they are in registers.
#define W_SLOT (2 * WARPS * MAX_TILES * W_CHUNKS * 16)
#define X_SLOT (TILE_M * X_CHUNKS * 16)
#define X_AT   (2 * W_SLOT)
#define LOCAL  ((2 * W_SLOT + 2 * X_SLOT) / 16) // chunks: 48 KiB

// At the end a warp's sums of so many rows of y lie in local memory.
#define ROUND_ROWS 16
#define SUM_PITCH  (MAX_TILES * 16 + 4)

// ---- A warp's place

// The same for all lanes of a warp, and compilers know it.
static inline uint of_warp(uint v)
{
#ifndef FRAGMENT_EMULATED
    __asm__ volatile("shfl.sync.idx.b32 %0, %0, 0, 0x1f, 0xffffffff;" : "+r"(v));
#endif
    return v;
}

// The blocks of a warp, and the first of them.
static inline uint own_tiles(uint warp)
{
    return warp < WARPS ? MAX_TILES : MAX_TILES - 1;
}
static inline uint own_block(uint warp)
{
    return warp * own_tiles(warp) + (warp < WARPS ? 0 : WARPS);
}

// ---- Copies

typedef struct {
    global const uint4 *x, *w; // this item's first chunks, of x and of the warp's first block
    uint w_step;               // chunks from block to block
    uint blocks;               // that there are from the warp's first on
} copies_t;

// turn: rows r of the tile lie as r ^ turn.
LINEAR_INLINE copies_t copies_of(const linear_t a, fragment_unit unit, ulong row, uint turn,
                                 uint block)
{
    copies_t c;
    const uint item = unit.wave * FRAGMENT_WAVE + unit.lane, own = own_block(unit.wave);
    const uint last = (uint)min(a.m - 1 - row, (ulong)TILE_M);
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0) +
          (min(item / HALF_CHUNKS ^ turn, last) * (uint)(a.x_rows.s0 / 8) + item % HALF_CHUNKS);
    c.w = (global const uint4 *)(a.data + (block + own) * a.pitch) + unit.lane;
    c.w_step = (uint)(a.pitch / 16);
    c.blocks = BLOCKS - own;
    return c;
}

LINEAR_INLINE void copy_x(const copies_t *c, uint step, local uint4 *to)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++)
        async_copy(to + i * X_HALF, c->x + step * X_CHUNKS + i * HALF_CHUNKS, &held);
}

// A warp's block n; to: where its lanes load it from.
LINEAR_INLINE void copy_w(const copies_t *c, uint step, local uint4 *to, uint n)
{
    uint4 held;
#ifdef FRAGMENT_EMULATED // warps of three blocks take the last one again, and do not store it
    const uint block = min(n, c->blocks - 1);
#else
    const uint block = n;
#endif
    async_copy(to + n * W_CHUNKS, c->w + (block * c->w_step + step * W_CHUNKS), &held);
}

// ---- A warp's products

typedef struct {
    float sum[MAX_TILES][PARTS][4];
    uint x[PARTS][4];         // of 32 weights along K
    uint codes[MAX_TILES][4]; // of a step
    uint w[2][4];             // an operand of a block, and the next one
    uint x_at, codes_at;      // of the present step: this lane's first bytes
    uint x_to;                // and this item's
    halves_zeros zero[MAX_TILES];
#if GROUPED
    groups_t groups;
#endif
} work_t;

#include "linear/linear_packed_beside.clh"
#include "linear/linear_trade.clh"

// So many bytes behind p: they need no shift.
static inline local uint4 *bytes_from(local uint4 *p, uint bytes)
{
    return (local uint4 *)((local uchar *)p + bytes);
}

LINEAR_INLINE void load_x(work_t *s, local uint4 *memory, uint half_k, uint p)
{
    const uint4 v = load_local(bytes_from(memory, s->x_at) + half_k * X_HALF + p * 8 * HALF_CHUNKS);
    s->x[p][0] = v.x;
    s->x[p][1] = v.y;
    s->x[p][2] = v.z;
    s->x[p][3] = v.w;
}

LINEAR_INLINE void load_codes_of(work_t *s, local uint4 *memory, uint n)
{
    const uint4 v = load_local(bytes_from(memory, s->codes_at) + n * W_CHUNKS);
    s->codes[n][0] = v.x;
    s->codes[n][1] = v.y;
    s->codes[n][2] = v.z;
    s->codes[n][3] = v.w;
}

// Registers 2i and 2i + 1 of operand j of block n.
LINEAR_INLINE void make_half(work_t *s, uint n, uint half_k, uint j, uint i)
{
#if GROUPED
    turned_operand(s->codes[n][half_k * 2 + j], s->zero[n], i, s->w[j] + 2 * i);
#else
    u4_half_operand(s->codes[n][half_k * 2 + j], s->zero[n], i, s->w[j] + 2 * i);
#endif
}

// The products of block n and operand j; half_k is theirs.
LINEAR_INLINE void multiply(fragment_unit unit, work_t *s, uint n, uint half_k, uint j,
                            const beside_t b)
{
    FRAGMENT_UNROLL
    for (uint p = 0; p < PARTS; p++) {
        mma_instruction(unit, s->sum[n][p], s->w[j], s->x[p] + 2 * j);
        if (b.turn)
            turn_pair(s, b.after, j * PARTS + p, *b.turn);
        if (p % (PARTS / 2) == 0 && j == 0)
            make_half(s, n, half_k, 1, p / (PARTS / 2));
        else if (p % (PARTS / 2) == 0)
            make_half(s, b.after, b.half_after, 0, p / (PARTS / 2));
    }
}

// Those of the last block and operand 1, after which x is that of `half_x` of the step.
LINEAR_INLINE void multiply_last(fragment_unit unit, work_t *s, const beside_t b,
                                 local uint4 *memory, uint half_x, const uint tiles)
{
    FRAGMENT_UNROLL
    for (uint p = 0; p < PARTS; p++) {
        mma_instruction(unit, s->sum[tiles - 1][p], s->w[1], s->x[p] + 2);
        load_x(s, memory, half_x, p);
        if (b.turn)
            turn_pair(s, b.after, PARTS + p, *b.turn);
        if (p % (PARTS / 2) == 0)
            make_half(s, b.after, b.half_after, 0, p / (PARTS / 2));
    }
}

// The second half of a step, of all blocks but the last.
LINEAR_INLINE void multiply_rest(fragment_unit unit, work_t *s, const copies_t *copies,
                                 local uint4 *memory, uint step, uint last, const uint tiles)
{
    // x of the next step is there, and all warps have loaded that of this one.
    copy_x(copies, min(step + 2, last), bytes_from(memory, s->x_to));
    async_commit();
    s->x_at ^= X_SLOT;
    s->x_to ^= X_SLOT;
    FRAGMENT_UNROLL
    for (uint n = 0; n + 1 < tiles; n++) {
        const beside_t b = {n + 1, 1, 0};
        multiply(unit, s, n, 1, 0, b);
        load_codes_of(s, memory, n);
        multiply(unit, s, n, 1, 1, b);
    }
}

// From the last block of the step before on. begins: whether a group of weights does; ends: whether the
// second half is multiplied, too; last: the step past which there is nothing to copy but again the
// last one, which nobody reads. What comes next takes the place of codes and x as soon as nobody needs
// them. A round of copies has codes, the next one x: codes are waited for a step later than x that is
// asked for after them.
LINEAR_INLINE void multiply_step(const linear_t a, fragment_unit unit, work_t *s,
                                 const copies_t *copies, local uint4 *memory, uint step, uint last,
                                 const bool begins, const bool ends, const uint tiles)
{
    float2 turn = begins ? turn_of(unit, s, 0) : (float2)(1.0f, 1.0f);
    const beside_t first = {0, 0, begins ? &turn : 0};
    multiply(unit, s, tiles - 1, 1, 0, first);
    load_codes_of(s, memory, tiles - 1);
    FRAGMENT_UNROLL
    for (uint n = 0; n < tiles; n++)
        copy_w(copies, min(step + 2, last), bytes_from(memory, s->codes_at), n);
    async_commit();
    s->codes_at ^= W_SLOT;
    multiply_last(unit, s, first, memory, 0, tiles);
    FRAGMENT_UNROLL
    for (uint n = 0; n < tiles; n++) {
        const bool turns = begins && n + 1 < tiles;
        if (turns)
            turn = turn_of(unit, s, n + 1);
        const beside_t b = {(n + 1) % tiles, n + 1 < tiles ? 0 : 1, turns ? &turn : 0};
        multiply(unit, s, n, 0, 0, b);
        if (n + 1 < tiles)
            multiply(unit, s, n, 0, 1, b);
        else
            multiply_last(unit, s, b, memory, 1, tiles);
    }
#if GROUPED
    if (begins)
        turn_to_next(a, &s->groups);
#endif
    async_wait(1);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (ends)
        multiply_rest(unit, s, copies, memory, step, last, tiles);
}

// Sums of block n have been in units.
LINEAR_INLINE void apply_scale(const linear_t a, fragment_unit unit, work_t *s, uint n, uint block,
                               uint blocks)
{
#if GROUPED
    const uint4 own = (uint4)(s->groups.scale, 0u, 0u, 0u);
    const float2 scale = unit_scales(quad_get(unit, own, n).x) / CODE_UNIT;
#else
    const float2 scale =
        group_scales(a, load_group(a, block + min(n, blocks - 1), 0, unit.lane / 4));
#endif
    FRAGMENT_UNROLL
    for (uint p = 0; p < PARTS; p++) {
        FRAGMENT_UNROLL
        for (uint e = 0; e < 4; e++)
            s->sum[n][p][e] *= e < 2 ? scale.x : scale.y;
    }
}

// Of tile `tile`, of which the last one in a row ends with W.
LINEAR_INLINE place_t place_of_tile(const linear_t a, uint tile)
{
    const uint columns = (forgotten(a.n) + BLOCKS * 16 - 1) / (BLOCKS * 16);
    place_t p;
    p.row = 0;
    _Pragma("unroll 1") for (; tile >= columns; tile -= columns)
        p.row += TILE_M;
    p.column = tile * BLOCKS * 16;
    p.block = min(p.column / 16, (a.n + 15) / 16 - BLOCKS);
    return p;
}

// Work-groups tile * parts ... have the parts of a tile, of so many steps: those that meet start one after
// the other.
LINEAR_INLINE trade_t trade_here(const linear_t a, const meet_t meet, uint group, uint parts,
                                 uint tile, uint wave)
{
    const place_t p = place_of_tile(a, tile);
    return trade_of(meet.sums, meet.counts, tile, parts, group - tile * parts,
                    (uint)min(a.m - p.row, (ulong)TILE_M), own_tiles(wave));
}

// The rest of the last step, and its last block: a block's sums are given to others while those after it have
// products. What is needed for it is worked out again: there were no registers.
LINEAR_INLINE void multiply_and_give(const linear_t a, fragment_unit unit, work_t *s, uint block,
                                     uint blocks, const meet_t meet, uint parts, const uint tiles)
{
    const uint group = forgotten((uint)get_group_id(0)), all = forgotten(parts);
    const gift_t gift = trade_gift(trade_here(a, meet, group, all, group / all, unit.wave));
    FRAGMENT_UNROLL
    for (uint n = 0; n < tiles; n++) {
        const beside_t b = {(n + 1) % tiles, 1, 0};
        multiply(unit, s, n, 1, 0, b);
        if (n > 0) {
            apply_scale(a, unit, s, n - 1, block, blocks);
            trade_give(gift, s, n - 1);
        }
        multiply(unit, s, n, 1, 1, b);
    }
    apply_scale(a, unit, s, tiles - 1, block, blocks);
    trade_give(gift, s, tiles - 1);
}

// The first group's scales and zeros are asked for before all copies.
LINEAR_INLINE void begin_groups(const linear_t a, fragment_unit unit, work_t *s, uint block,
                                uint blocks, uint step, uint steps, const uint tiles)
{
#if GROUPED
    const uint period = a.group_size / STEP_K, group = step / period;
    const uint n = min(unit.lane % 4, min(tiles, blocks) - 1);
    s->groups.entry = ((block + n) * a.groups + group) * 8 + unit.lane / 4;
    s->groups.more = (steps - 1) / period - group;
    s->groups.scale = 0x3c003c00u; // of no products: any other than 0
    ask_for_group(a, &s->groups);
#endif
}

LINEAR_INLINE void begin(const linear_t a, fragment_unit unit, work_t *s, uint block, uint blocks,
                         const uint tiles)
{
#if GROUPED
    turn_to_next(a, &s->groups);
#endif
    FRAGMENT_UNROLL
    for (uint n = 0; n < MAX_TILES; n++) {
#if GROUPED
        s->zero[n] = (halves_zeros){0, 0};
#else
        const uint at = block + min(n, min(tiles, blocks) - 1);
        s->zero[n] = group_zeros(a, load_group(a, at, 0, unit.lane / 4));
#endif
        clear_sums(s, n, PARTS);
    }
    clear_step(s, tiles, PARTS);
}

// Steps `step` to `steps` - 1, from row `row` of x and block `block` of W on.
LINEAR_INLINE void multiply_steps(const linear_t a, fragment_unit unit, work_t *s,
                                  local uint4 *memory, ulong row, uint turn, uint block, uint step,
                                  uint steps, const meet_t meet, uint parts, const bool gives,
                                  const uint tiles)
{
    const copies_t copies = copies_of(a, unit, row, turn, block);
    const uint last = steps - 1, period = GROUPED ? a.group_size / STEP_K : 1;
    s->x_at = X_AT + unit.lane * 16;
    s->x_to = X_AT + (unit.wave * FRAGMENT_WAVE + unit.lane) * 16;
    s->codes_at = (unit.wave * MAX_TILES * W_CHUNKS + unit.lane) * 16;
    const uint first = block + own_block(unit.wave);
    begin_groups(a, unit, s, first, copies.blocks, step, steps, tiles);
    FRAGMENT_UNROLL
    for (uint i = 0; i < 2; i++) {
        FRAGMENT_UNROLL
        for (uint n = 0; n < tiles; n++)
            copy_w(&copies, min(step + i, last), bytes_from(memory, s->codes_at ^ i * W_SLOT), n);
        copy_x(&copies, min(step + i, last), bytes_from(memory, s->x_to ^ i * X_SLOT));
        async_commit();
    }
    begin(a, unit, s, first, copies.blocks, tiles);
    async_wait(1);
    barrier(CLK_LOCAL_MEM_FENCE);
    FRAGMENT_UNROLL
    for (uint n = 0; n + 1 < tiles; n++)
        load_codes_of(s, memory, n);
    uint left = 0; // steps of this group of weights
    _Pragma("unroll 1") for (; gives || step <= last; step++)
    {
        if (GROUPED && left == 0) {
            left = period;
            multiply_step(a, unit, s, &copies, memory, step, last, true, !gives, tiles);
        } else {
            multiply_step(a, unit, s, &copies, memory, step, last, false, !gives, tiles);
        }
        left--;
        if (gives && step == last)
            break;
        if (gives)
            multiply_rest(unit, s, &copies, memory, step, last, tiles);
    }
    if (gives) {
        multiply_and_give(a, unit, s, first, copies.blocks, meet, parts, tiles);
    } else {
        const beside_t none = {0, 0, 0};
        multiply(unit, s, tiles - 1, 1, 0, none);
        FRAGMENT_UNROLL
        for (uint i = 0; i < PARTS; i++)
            mma_instruction(unit, s->sum[tiles - 1][i], s->w[1], s->x[i] + 2);
    }
    async_wait(0);
}

// ---- Tiles, and parts of them

// Of a tile, steps `step` to `steps` - 1; behind it nobody needs them in local memory. gives: sums are not
// in units any more, and those of others' rows are given to them; or else apply_scale() is left to do.
LINEAR_INLINE void multiply_tile(const linear_t a, fragment_unit unit, work_t *s,
                                 local uint4 *memory, const place_t p, uint turn, uint step,
                                 uint steps, const meet_t meet, uint parts, const bool gives)
{
#ifdef FRAGMENT_EMULATED // whose items go the same way
    multiply_steps(a, unit, s, memory, p.row, turn, p.block, step, steps, meet, parts, gives,
                   MAX_TILES);
#else
    unit.lane = forgotten((uint)get_local_id(0)) % FRAGMENT_WAVE;
    unit.wave = of_warp(forgotten((uint)get_local_id(0)) / FRAGMENT_WAVE);
    if (unit.wave < WARPS)
        multiply_steps(a, unit, s, memory, p.row, turn, p.block, step, steps, meet, parts, gives,
                   MAX_TILES);
    else
        multiply_steps(a, unit, s, memory, p.row, turn, p.block, step, steps, meet, parts, gives,
                       MAX_TILES - 1);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
}

// A warp's sums of a tile's rows from `row` on, `rows` and at most `most`.
LINEAR_INLINE void store_rows(const linear_t a, fragment_unit unit, const work_t *s,
                              local uint4 *memory, const place_t p, uint row, uint rows,
                              const uint most)
{
    local float *sums = (local float *)memory + unit.wave * (ROUND_ROWS * SUM_PITCH);
    const uint first = (p.block + own_block(unit.wave)) * 16, columns = own_tiles(unit.wave) * 16;
    const rows8_t to = rows8_of(a, p.row + row, first, columns);
    const uint end = p.row + row < a.m ? (uint)min(a.m - (p.row + row), (ulong)rows) : 0;
    _Pragma("unroll 1") for (uint n = 0; n * ROUND_ROWS < rows; n++)
    {
        const uint this = forgotten(1u << n); // which must not become an index: sums are registers
        warp_barrier();
        FRAGMENT_UNROLL
        for (uint i = 0; i < most / ROUND_ROWS; i++) {
            if (!(this >> i & 1))
                continue;
            FRAGMENT_UNROLL
            for (uint part = 0; part < ROUND_ROWS / 8; part++) {
                FRAGMENT_UNROLL
                for (uint b = 0; b < MAX_TILES; b++) {
                    FRAGMENT_UNROLL
                    for (uint e = 0; e < 4; e++)
                        sums[(part * 8 + mma_column(unit, e)) * SUM_PITCH + b * 16 +
                             mma_row(unit, e)] = s->sum[b][i * (ROUND_ROWS / 8) + part][e];
                }
            }
        }
        warp_barrier();
        const uint c = unit.lane % 8 * 8;
        if (c >= columns || first + c < p.column)
            continue;
        if (to.plain) {
            FRAGMENT_UNROLL
            for (uint i = 0; i < ROUND_ROWS / 4; i++) {
                const uint r = unit.lane / 8 + i * 4;
                if (n * ROUND_ROWS + r < end)
                    store_row8(to, n * ROUND_ROWS + r, c, sums + r * SUM_PITCH + c);
            }
            continue;
        }
        _Pragma("unroll 1") for (uint r = unit.lane / 8; r < ROUND_ROWS; r += 4)
        {
            if (n * ROUND_ROWS + r < end && first + c < a.n)
                finish8(a, p.row + row + n * ROUND_ROWS + r, first + c, sums + r * SUM_PITCH + c);
        }
    }
}

// Stages of linear_pieces.clh: groups, of which the last may be short, or steps.
LINEAR_INLINE uint stage_steps(const linear_t a)
{
    return GROUPED ? a.group_size / STEP_K : 1;
}
LINEAR_INLINE share_t share_here(const linear_t a, uint whole, uint per)
{
    const uint stage = stage_steps(a);
    linear_t b = a;
    b.n = forgotten(a.n);
    return share_of(b, whole, per, TILE_M, BLOCKS, (forgotten(a.k) / STEP_K + stage - 1) / stage);
}

LINEAR_INLINE void packed(const linear_t a, fragment_unit unit, local uint4 *memory,
                          const meet_t meet, uint whole, uint per)
{
    work_t s;
    _Pragma("unroll 1") for (uint n = 0;; n++)
    {
        const share_t share = share_here(a, whole, per);
        const place_t p = place_of(a, share, n, TILE_M, BLOCKS);
        if (!piece_is_there(share, p.piece))
            break;
        const uint step = p.piece.begin * stage_steps(a),
                   steps = min(p.piece.end * stage_steps(a), a.k / STEP_K);
        multiply_tile(a, unit, &s, memory, p, 0, step, steps, meet, 0, false);
        // Worked out again, all this needs no registers while there are products.
        n = forgotten(n);
        unit.lane = forgotten((uint)get_local_id(0)) % FRAGMENT_WAVE;
        unit.wave = forgotten((uint)get_local_id(0)) / FRAGMENT_WAVE;
        const share_t again = share_here(a, whole, per);
        const place_t q = place_of(a, again, n, TILE_M, BLOCKS);
        const uint first = own_block(unit.wave);
        FRAGMENT_UNROLL
        for (uint i = 0; i < MAX_TILES; i++)
            apply_scale(a, unit, &s, i, q.block + first, BLOCKS - first);
        bool stores = true;
        if (!piece_is_whole(again, q.piece))
            stores = packed_meet(again, q.piece, meet, &s.sum[0][0][0], MAX_TILES * PARTS * 4,
                                 memory, unit.wave, 2 * WARPS);
        if (stores)
            store_rows(a, unit, &s, memory, q, 0, TILE_M, TILE_M);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
RESIDENT(1) void linear_packed_pair(LINEAR_PARAMETERS, SPLIT_PARAMETERS)
{
    local uint4 memory[LOCAL];
    FRAGMENT_UNIT(unit, 2 * WARPS);
    const linear_t a = LINEAR_ARGUMENTS;
    const meet_t meet = {split_sums, split_counts};
    packed(a, unit, memory, meet, split_whole, split_per);
}

// ---- Parts of tiles, one for each work-group, which finish their tile together (linear_trade.clh)

LINEAR_INLINE void packed_part(const linear_t a, fragment_unit unit, local uint4 *memory,
                               const meet_t meet, uint parts, uint per)
{
    work_t s;
    uint group = (uint)get_group_id(0), tile = group / parts;
    {
        const trade_t t = trade_here(a, meet, group, parts, tile, unit.wave);
        const uint step = t.part * per;
        multiply_tile(a, unit, &s, memory, place_of_tile(a, tile), trade_turn(t) * 8, step,
                      min(step + per, a.k / STEP_K), meet, parts, true);
    }
    // As in packed(), worked out again.
    group = forgotten((uint)get_group_id(0));
    parts = forgotten(parts);
    tile = group / parts;
    unit.lane = forgotten((uint)get_local_id(0)) % FRAGMENT_WAVE;
    unit.wave = forgotten((uint)get_local_id(0)) / FRAGMENT_WAVE;
    const place_t p = place_of_tile(a, tile);
    trade_t t = trade_here(a, meet, group, parts, tile, unit.wave);
    uint left = trade(t, &s, (local uint *)memory);
    if (!left)
        return;
#ifndef FRAGMENT_EMULATED
    const uint served = popcount(left), before = nv_trade_over(t.count, served);
#endif
    _Pragma("unroll 1") for (; left; left &= ~(1u << t.part))
    {
        if (!(left >> t.part & 1))
            t = trade_for(t, &s, 31 - clz(left));
        trade_add(t, &s);
        store_rows(a, unit, &s, memory, p, trade_turn(t) * 8, t.own * 8, TRADE_ROUND * 8);
    }
#ifndef FRAGMENT_EMULATED
    nv_trade_end(t.count, before, served, PARTS >> t.shift);
#endif
}

// parts: of a tile; per: the steps of one.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
RESIDENT(1) void linear_packed_pair_parts(LINEAR_PARAMETERS, SPLIT_PARAMETERS)
{
    local uint4 memory[LOCAL];
    FRAGMENT_UNIT(unit, 2 * WARPS);
    const linear_t a = LINEAR_ARGUMENTS;
    const meet_t meet = {split_sums, split_counts};
    packed_part(a, unit, memory, meet, split_whole, split_per);
}
