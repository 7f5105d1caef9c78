// The linear layer on mma.sync for weights of 4 or 8 bits and many rows of x, where all of K has one
// scale or (4 bits) groups are whole steps with f16 scales, x is plain rows (on 16-byte boundaries,
// one stride apart), K whole steps and N a work-group's columns or more. As linear_packed.cl, but a
// warp has 64 columns of y, so that what it reads of x serves four blocks of W. The build chooses
//
//     -DX=f16 | bf16   -DW=u4_nv | s8_nv   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DGROUPED=0 | 1   one scale a row of W, or one a group (of 4 bits)
//
// Codes of 4 bits: linear_packed_wide_64, 64 rows of y by 256 or 192 columns, and
// linear_packed_wide_32, 32 by 128, where two warps share the columns and each takes half of every
// step along K. Of 8 bits: linear_packed_wide_128, 128 by 128, where two warps share the columns and
// each takes half of the rows.
//
// Tiles of 64 rows come in two widths so that a compute unit has as much to do with one of either as
// there is (linear_packed.c).
//
// A warp has registers for one set of sums, and little else. With groups the sums count in units of
// the scale of their group: where the next one begins, they are multiplied by the quotient of the
// scales. While a block of W is multiplied, the next one's codes become halves, and its sums change
// their unit: there must always be something to do beside the products, as few warps find room.
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/async_copy.clh"
#define SPLIT_LANE (forgotten((uint)get_local_id(0)) % 32)
#include "linear/linear_finish.clh"
#include "linear/linear_groups.clh"
#include "linear/linear_packed_place.clh"
#include "linear/linear_packed_turn.clh"
#include "linear/linear_plain_rows.clh"

#define WARPS     4
#define ITEMS     (WARPS * FRAGMENT_WAVE)
#define MAX_TILES 4                   // blocks of 16 rows of W, of a warp
#define STEP_K    (W_IS_U4 ? 64 : 32) // a chunk of each block for each lane
#define TALL      (W_IS_U4 ? 1 : 2)   // warps that share columns, for different rows
#define MAX_PARTS 8                   // of eight rows of x, of a warp

// What follows depends on the shape: `parts` of x; `tiles`, and `split`, the warps that share columns
// and rows.
#define WARP_COLUMNS(s) (WARPS / (s).split / TALL)
#define BLOCKS(s)       (WARP_COLUMNS(s) * (s).tiles)
#define TILE_M(s)       (TALL * (s).parts * 8)
#define HALVES(s)       (STEP_K / 32 / (s).split) // of 32 along K, that a warp multiplies in a step
#define X_CHUNKS        (STEP_K / 8)              // of 16 bytes, of a row
#define HALF_CHUNKS     4                         // of 32 along K
#define W_CHUNKS        32                        // of a block of 16 rows
#define X_HALF(s)       (TILE_M(s) * HALF_CHUNKS)
#define X_TILE(s)       (TILE_M(s) * X_CHUNKS)
#define W_TILE(s)       (BLOCKS(s) * W_CHUNKS)
#define X_ROWS(s)       (X_HALF(s) / ITEMS) // of an item's copies
#define MAX_X_ROWS      (TALL * MAX_PARTS * 8 * HALF_CHUNKS / ITEMS)

// A stage of local memory: x, 32 along K after 32 along K, then W, its tiles one after the other. All
// of it lies in the order in which items copy it, and lanes load it.
#define STAGE(s)  (X_TILE(s) + W_TILE(s))
#define LOCAL     3072 // chunks: 48 KiB
#define STAGES(s) (LOCAL / STAGE(s))

typedef struct {
    uint parts, split, tiles;
} shape_t;

// At the end sums lie in local memory as rows of y, two blocks of W at a time.
#define PASS_TILES 2
#define SUM_PITCH  (PASS_TILES * 16 + 4)

// ---- Copies

typedef struct {
    global const uint4 *x, *w; // this item's first chunks
    uint x_at[MAX_X_ROWS];     // chunks from there, of rows that exist
    uint w_step;
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, ulong row, uint block, const shape_t h)
{
    copies_t c;
    const uint item = forgotten((uint)get_local_id(0));
    const uint last = (uint)min(a.m - 1 - row, (ulong)TILE_M(h));
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0) +
          item % HALF_CHUNKS;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_ROWS(h); i++)
        c.x_at[i] = min((item + i * ITEMS) / HALF_CHUNKS, last) * (uint)(a.x_rows.s0 / 8);
    c.w = (global const uint4 *)(a.data + (block + item / W_CHUNKS) * a.pitch) + item % W_CHUNKS;
    c.w_step = ITEMS / W_CHUNKS * (uint)(a.pitch / 16);
    return c;
}

LINEAR_INLINE void fetch(const copies_t *c, uint step, local uint4 *to, const shape_t h)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_TILE(h) / ITEMS; i++)
        async_copy(to + i * ITEMS,
                   c->x + (c->x_at[i % X_ROWS(h)] + step * X_CHUNKS) + i / X_ROWS(h) * HALF_CHUNKS,
                   &held);
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_TILE(h) / ITEMS; i++)
        async_copy(to + X_TILE(h) + i * ITEMS, c->w + (i * c->w_step + step * W_CHUNKS), &held);
    async_commit();
}

// ---- A warp's products

typedef struct {
    float sum[MAX_TILES][MAX_PARTS][4];
    uint x[MAX_PARTS][4];     // of 32 weights along K
    uint codes[MAX_TILES][4]; // of a step
    uint w[2][4];             // an operand of a block, and the next one
    uint column, row, part;   // this warp's place among the columns, its first row; place along K
    uint x_at, codes_at;      // in a stage, this lane's first bytes
    uint copies_at;           // and this item's
    halves_zeros zero[MAX_TILES];
#if GROUPED
    groups_t groups;
#endif
} work_t;

// So many bytes behind p: they need no shift.
static inline local uint4 *bytes_from(local uint4 *p, uint bytes)
{
    return (local uint4 *)((local uchar *)p + bytes);
}

LINEAR_INLINE void load_x(work_t *s, local uint4 *stage, uint half_k, uint p, const shape_t h)
{
    const uint4 v =
        load_local(bytes_from(stage, s->x_at) + half_k * X_HALF(h) + p * 8 * HALF_CHUNKS);
    s->x[p][0] = v.x;
    s->x[p][1] = v.y;
    s->x[p][2] = v.z;
    s->x[p][3] = v.w;
}

// Block n's; where warps share columns and rows, of the half that is this one's.
LINEAR_INLINE void load_codes_of(work_t *s, local uint4 *stage, uint n, const shape_t h)
{
    local const uint4 *from = bytes_from(stage, s->codes_at) + n * W_CHUNKS;
    if (h.split == 2) {
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

// Registers 2i and 2i + 1 of operand j of block n.
LINEAR_INLINE void make_half(work_t *s, uint n, uint half_k, uint j, uint i)
{
    uint *v = s->w[j] + 2 * i;
#if GROUPED
    turned_operand(s->codes[n][half_k * 2 + j], s->zero[n], i, v);
#else
    if (W_IS_U4) {
        u4_half_operand(s->codes[n][half_k * 2 + j], s->zero[n], i, v);
    } else {
        v[0] = s8_halves(s->codes[n][j], i, s->zero[n].upper);
        v[1] = s8_halves(s->codes[n][2 + j], i, s->zero[n].lower);
    }
#endif
}

// Where a group begins: the quotients for block n's sums.
LINEAR_INLINE float2 turn_of(fragment_unit unit, work_t *s, uint n)
{
#if GROUPED
    const uint4 t = quad_get(unit, s->groups.turn, n);
    s->zero[n] = turned_zeros(t.z);
    return as_float2(t.xy);
#else
    return 1.0f;
#endif
}

// A pair of block n's sums, of 2 `parts`.
LINEAR_INLINE void turn_pair(work_t *s, uint n, uint pair, float2 turn)
{
    s->sum[n][pair / 2][pair % 2 * 2] *= pair % 2 ? turn.y : turn.x;
    s->sum[n][pair / 2][pair % 2 * 2 + 1] *= pair % 2 ? turn.y : turn.x;
}

// Where the stages are, and which step is to be asked for next.
typedef struct {
    local uint4 *memory, *stage;
    uint step, steps;
} ring_t;

// What a block's products are given to do beside them: the block after it, its half of the step, and
// where a group begins the quotients of its scales, else NULL.
typedef struct {
    uint after, half_after;
    const float2 *turn;
} beside_t;

// The products of block n and operand j; half_k is theirs.
LINEAR_INLINE void multiply(fragment_unit unit, work_t *s, uint n, uint half_k, uint j,
                            const beside_t b, const shape_t h)
{
    FRAGMENT_UNROLL
    for (uint p = 0; p < h.parts; p++) {
        mma_instruction(unit, s->sum[n][p], s->w[j], s->x[p] + 2 * j);
        if (b.turn)
            turn_pair(s, b.after, j * h.parts + p, *b.turn);
        if (p % (h.parts / 2) == 0 && j == 0)
            make_half(s, n, half_k, 1, p / (h.parts / 2));
        else if (p % (h.parts / 2) == 0)
            make_half(s, b.after, b.half_after, 0, p / (h.parts / 2));
    }
}

// Those of the last block and operand 1, after which x is that of `half_x` of a stage.
LINEAR_INLINE void multiply_last(fragment_unit unit, work_t *s, const beside_t b,
                                 local uint4 *stage, uint half_x, const shape_t h)
{
    FRAGMENT_UNROLL
    for (uint p = 0; p < h.parts; p++) {
        mma_instruction(unit, s->sum[h.tiles - 1][p], s->w[1], s->x[p] + 2);
        load_x(s, stage, half_x, p, h);
        if (b.turn)
            turn_pair(s, b.after, h.parts + p, *b.turn);
        if (p % (h.parts / 2) == 0)
            make_half(s, b.after, b.half_after, 0, p / (h.parts / 2));
    }
}

// From the last block of the step before on. begins: whether a group does. What comes next takes the
// place of codes and x as soon as nobody needs them.
LINEAR_INLINE void multiply_step(const linear_t a, fragment_unit unit, work_t *s,
                                 const copies_t *copies, ring_t *r, const bool begins,
                                 const shape_t h)
{
    local uint4 *stage = r->stage;
    float2 turn = begins ? turn_of(unit, s, 0) : (float2)(1.0f, 1.0f);
    const beside_t first = {0, 0, begins ? &turn : 0};
    multiply(unit, s, h.tiles - 1, HALVES(h) - 1, 0, first, h);
    load_codes_of(s, stage, h.tiles - 1, h);
    multiply_last(unit, s, first, stage, h.split == 2 ? s->part : 0, h);
    FRAGMENT_UNROLL
    for (uint half_k = 0; half_k < HALVES(h); half_k++) {
        const bool last = half_k + 1 == HALVES(h);
        if (last) {
            async_wait(STAGES(h) - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            // The next stage is there, and all warps have loaded what they need of this one, whose
            // place is filled again. Past the end that is with the last one, which nobody reads.
            fetch(copies, min(r->step, r->steps - 1), bytes_from(stage, s->copies_at), h);
            r->step++;
            stage += STAGE(h);
            if (stage == r->memory + STAGES(h) * STAGE(h))
                stage = r->memory;
            r->stage = stage;
        }
        FRAGMENT_UNROLL
        for (uint n = 0; n + last < h.tiles; n++) {
            const uint after = (n + 1) % h.tiles;
            const bool turns = begins && half_k == 0 && n + 1 < h.tiles;
            if (turns)
                turn = turn_of(unit, s, after);
            const beside_t b = {after, n + 1 < h.tiles ? half_k : half_k + 1, turns ? &turn : 0};
            multiply(unit, s, n, half_k, 0, b, h);
            if (last)
                load_codes_of(s, stage, n, h);
            if (n + 1 < h.tiles)
                multiply(unit, s, n, half_k, 1, b, h);
            else
                multiply_last(unit, s, b, stage, half_k + 1, h);
        }
#if GROUPED
        if (begins && half_k == 0)
            turn_to_next(a, &s->groups);
#endif
    }
}

LINEAR_INLINE void begin(const linear_t a, fragment_unit unit, work_t *s, uint block, uint group,
                         uint groups, const shape_t h)
{
#if GROUPED
    const uint n = min(unit.lane % 4, h.tiles - 1);
    s->groups.entry = ((block + n) * a.groups + group) * 8 + unit.lane / 4;
    s->groups.more = groups - group - 1;
    s->groups.scale = 0x3c003c00u; // of no products: any other than 0
    ask_for_group(a, &s->groups);
    turn_to_next(a, &s->groups);
#endif
    FRAGMENT_UNROLL
    for (uint n = 0; n < h.tiles; n++) {
#if GROUPED
        s->zero[n] = (halves_zeros){0, 0};
#else
        s->zero[n] = group_zeros(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        FRAGMENT_UNROLL
        for (uint p = 0; p < h.parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] = 0.0f;
        }
    }
    // The first step begins with a block of the one before it.
    FRAGMENT_UNROLL
    for (uint i = 0; i < 4; i++) {
        s->w[0][i] = s->codes[h.tiles - 1][i] = 0;
        FRAGMENT_UNROLL
        for (uint p = 0; p < h.parts; p++)
            s->x[p][i] = 0;
    }
}

LINEAR_INLINE void apply_scales(const linear_t a, fragment_unit unit, work_t *s, uint block,
                                const shape_t h)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < h.tiles; n++) {
#if GROUPED
        const uint4 own = (uint4)(s->groups.scale, 0u, 0u, 0u);
        const float2 scale = unit_scales(quad_get(unit, own, n).x) / CODE_UNIT;
#else
        const float2 scale = group_scales(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        FRAGMENT_UNROLL
        for (uint p = 0; p < h.parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s->sum[n][p][e] *= e < 2 ? scale.x : scale.y;
        }
    }
}

// Sums of blocks 2 pass and 2 pass + 1 as rows, those of the other half of K first. Where warps do not
// share columns and rows, each does that by itself.
LINEAR_INLINE void put_sums(fragment_unit unit, const work_t *s, local float *sums, uint pass,
                            const shape_t h)
{
    FRAGMENT_UNROLL
    for (uint from = 0; from < h.split; from++) {
        if (h.split == 2)
            barrier(CLK_LOCAL_MEM_FENCE);
        else
            warp_barrier();
        FRAGMENT_UNROLL
        for (uint n = 0; n < h.tiles; n++) {
            if (n / PASS_TILES != pass || (h.split == 2 && s->part == from))
                continue;
            FRAGMENT_UNROLL
            for (uint p = 0; p < h.parts; p++) {
                FRAGMENT_UNROLL
                for (uint e = 0; e < 4; e++) {
                    local float *to = &sums[(p * 8 + mma_column(unit, e)) * SUM_PITCH +
                                            n % PASS_TILES * 16 + mma_row(unit, e)];
                    *to = from > 0 ? *to + s->sum[n][p][e] : s->sum[n][p][e];
                }
            }
        }
    }
    if (h.split == 2)
        barrier(CLK_LOCAL_MEM_FENCE);
    else
        warp_barrier();
}

// ---- Tiles, and parts of them

// Steps of a stage of linear_pieces.clh: those of a group, of which the last may have fewer.
LINEAR_INLINE uint stage_steps(const linear_t a)
{
    return GROUPED ? a.group_size / STEP_K : 1;
}
LINEAR_INLINE uint stages_of(const linear_t a)
{
    return (forgotten(a.k) / STEP_K + stage_steps(a) - 1) / stage_steps(a);
}

// Columns whose tiles are equally wide, and the work-groups that have them.
typedef struct {
    uint column, end;
    uint group, groups;
} region_t;

// Worked out again wherever they are needed.
LINEAR_INLINE uint row_tiles(const linear_t a, const shape_t h)
{
    return (uint)((a.m + forgotten(TILE_M(h) - 1)) / TILE_M(h));
}
LINEAR_INLINE uint column_tiles(const region_t r, const shape_t h)
{
    return (r.end - r.column + forgotten(BLOCKS(h) * 16 - 1)) / (BLOCKS(h) * 16);
}

LINEAR_INLINE share_t share_of_region(const linear_t a, const region_t r, uint whole, uint per,
                                      const shape_t h)
{
    const share_t s = {(uint)get_group_id(0) - r.group, r.groups, row_tiles(a, h) * column_tiles(r, h),
                       stages_of(a), whole, per, 0};
    return s;
}

// This work-group's n-th piece.
LINEAR_INLINE place_t place_in(const linear_t a, const region_t r, const share_t share, uint n,
                               const shape_t h)
{
    place_t p;
    p.piece = piece_first(share);
    for (; n > 0; n--)
        p.piece = piece_next(share, p.piece);
    const ulong2 tile = tile_at(p.piece.tile, column_tiles(r, h), row_tiles(a, h));
    p.row = tile.y * TILE_M(h);
    p.column = r.column + (uint)tile.x * BLOCKS(h) * 16;
    p.block = min(p.column / 16, (a.n + 15) / 16 - BLOCKS(h));
    return p;
}

LINEAR_INLINE void multiply_piece(const linear_t a, fragment_unit unit, work_t *s,
                                  local uint4 *memory, const place_t p, const shape_t h)
{
    const copies_t copies = copies_of(a, p.row, p.block, h);
    const uint period = stage_steps(a), first = p.piece.begin * period;
    ring_t ring = {memory, memory, first + STAGES(h), min(p.piece.end * period, a.k / STEP_K)};
    FRAGMENT_UNROLL
    for (uint i = 0; i < STAGES(h); i++)
        fetch(&copies, min(first + i, ring.steps - 1),
              bytes_from(memory, s->copies_at) + i * STAGE(h), h);
    begin(a, unit, s, p.block + s->column * h.tiles, p.piece.begin, p.piece.end, h);
    async_wait(STAGES(h) - 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    FRAGMENT_UNROLL
    for (uint n = 0; n + 1 < h.tiles; n++)
        load_codes_of(s, memory, n, h);

    uint left = 0; // steps of this group
    _Pragma("unroll 1") while (ring.step - STAGES(h) < ring.steps)
    {
        if (GROUPED && left == 0) {
            left = period;
            multiply_step(a, unit, s, &copies, &ring, true, h);
        } else {
            multiply_step(a, unit, s, &copies, &ring, false, h);
        }
        left--;
    }
    const beside_t none = {0, 0, 0};
    multiply(unit, s, h.tiles - 1, HALVES(h) - 1, 0, none, h);
    FRAGMENT_UNROLL
    for (uint i = 0; i < h.parts; i++)
        mma_instruction(unit, s->sum[h.tiles - 1][i], s->w[1], s->x[i] + 2);
    async_wait(0);
}

LINEAR_INLINE void store_tile(const linear_t a, fragment_unit unit, work_t *s, local uint4 *memory,
                              const place_t p, const shape_t h)
{
    const uint place = unit.wave % (WARPS / h.split);
    local float *sums = (local float *)memory + place * (h.parts * 8 * SUM_PITCH);
    const ulong row = p.row + s->row;
    _Pragma("unroll 1") for (uint pass = 0; pass * PASS_TILES < h.tiles; pass++)
    {
        put_sums(unit, s, sums, pass, h);
        const uint first = (p.block + s->column * h.tiles + pass * PASS_TILES) * 16;
        const uint columns = min(h.tiles - pass * PASS_TILES, (uint)PASS_TILES) * 16;
        const rows8_t to = rows8_of(a, row, first, columns);
        if (h.split == 1 && to.plain && first >= p.column) {
            FRAGMENT_UNROLL
            for (uint i = 0; i < h.parts * PASS_TILES / 2; i++) {
                const uint at = unit.lane + i * FRAGMENT_WAVE;
                const uint r = at / (PASS_TILES * 2), c = at % (PASS_TILES * 2) * 8;
                if (row + r < a.m && c < columns)
                    store_row8(to, r, c, sums + r * SUM_PITCH + c);
            }
            continue;
        }
        _Pragma("unroll 1") for (uint i = unit.lane + s->part * FRAGMENT_WAVE;
                                 i < h.parts * 8 * PASS_TILES * 2; i += FRAGMENT_WAVE * h.split)
        {
            const uint r = i / (PASS_TILES * 2), c = i % (PASS_TILES * 2) * 8;
            if (row + r < a.m && c < columns && first + c >= p.column && first + c < a.n)
                finish8(a, row + r, first + c, sums + r * SUM_PITCH + c);
        }
    }
}

// The first `wide` work-groups have tiles of MAX_TILES blocks a warp, the others those of the columns
// behind them. All have them where there are no others, else none has more than a tile or a part of
// one.
LINEAR_INLINE region_t region_of(const linear_t a, uint wide, uint per, const shape_t h)
{
    wide = forgotten(wide);
    const uint groups = forgotten((uint)get_num_groups(0));
    const region_t all = {0, a.n, 0, groups};
    if (wide >= groups)
        return all;
    const uint tiles = per ? wide * per / stages_of(a) : wide;
    const uint end = tiles / row_tiles(a, h) * (WARP_COLUMNS(h) * MAX_TILES * 16);
    const region_t first = {0, end, 0, wide}, second = {end, a.n, wide, groups - wide};
    return h.tiles == MAX_TILES ? first : second;
}

LINEAR_INLINE void place_warp(fragment_unit unit, work_t *s, const shape_t h)
{
    s->column = unit.wave % WARP_COLUMNS(h);
    s->part = h.split == 2 ? unit.wave / WARP_COLUMNS(h) : 0;
    s->row = TALL == 2 ? unit.wave / WARP_COLUMNS(h) * h.parts * 8 : 0;
    s->x_at = (s->row * HALF_CHUNKS + unit.lane) * 16;
    s->codes_at = (X_TILE(h) + s->column * h.tiles * W_CHUNKS + unit.lane) * 16;
    s->copies_at = (unit.wave * FRAGMENT_WAVE + unit.lane) * 16;
}

// After the products, which leave no registers, all of this is worked out again.
LINEAR_INLINE void packed(const linear_t a, fragment_unit unit, local uint4 *memory,
                          const meet_t meet, uint wide, uint whole, uint per, const shape_t h)
{
    work_t s;
    _Pragma("unroll 1") for (uint n = 0;; n++)
    {
        const region_t r = region_of(a, wide, per, h);
        const share_t share = share_of_region(a, r, whole, per, h);
        const place_t p = place_in(a, r, share, n, h);
        if (!piece_is_there(share, p.piece))
            break;
        place_warp(unit, &s, h);
        multiply_piece(a, unit, &s, memory, p, h);
        barrier(CLK_LOCAL_MEM_FENCE); // all have loaded the last stage
        n = forgotten(n);
        unit.lane = forgotten((uint)get_local_id(0)) % FRAGMENT_WAVE;
        unit.wave = forgotten((uint)get_local_id(0)) / FRAGMENT_WAVE;
        place_warp(unit, &s, h);
        const region_t again = region_of(a, wide, per, h);
        const share_t own = share_of_region(a, again, whole, per, h);
        const place_t q = place_in(a, again, own, n, h);
        apply_scales(a, unit, &s, q.block + s.column * h.tiles, h);
        bool stores = true;
        if (h.split == 1 && !piece_is_whole(own, q.piece)) {
            // Behind the places and counts of those before.
            const meet_t here = {meet.sums + (ulong)again.group * 2 * TILE_M(h) * MAX_TILES * 64,
                                 meet.counts + again.group * WARPS};
            stores = packed_meet(own, q.piece, here, &s.sum[0][0][0], h.tiles * MAX_PARTS * 4,
                                 memory, unit.wave, WARPS);
        }
        if (stores)
            store_tile(a, unit, &s, memory, q, h);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#define PACKED(name, resident, ...)                                                                \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(resident) void name(        \
        LINEAR_PARAMETERS, const uint wide, SPLIT_PARAMETERS)                                      \
    {                                                                                              \
        local uint4 memory[LOCAL];                                                                 \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        const meet_t meet = {split_sums, split_counts};                                            \
        const shape_t shape = {__VA_ARGS__, MAX_TILES};                                            \
        shape_t other = shape;                                                                     \
        other.tiles = MAX_TILES - 1;                                                               \
        if (TALL == 2 || shape.split == 2 || (uint)get_group_id(0) < wide)                         \
            packed(a, unit, memory, meet, wide, split_whole, split_per, shape);                    \
        else                                                                                       \
            packed(a, unit, memory, meet, wide, split_whole, split_per, other);                    \
    }

#if TALL == 2
PACKED(linear_packed_wide_128, 2, 8, 1)
#else
PACKED(linear_packed_wide_32, 3, 4, 2)
PACKED(linear_packed_wide_64, 2, 8, 1)
#endif
