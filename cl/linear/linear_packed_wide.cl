// The linear layer on mma.sync for weights of 4 or 8 bits and many rows of x, where all of K has one
// scale or (4 bits) groups are whole steps with f16 scales, x is plain rows (on 16-byte boundaries,
// one stride apart), K whole steps and N a work-group's columns or more. As linear_packed.cl, but a
// warp has 64 columns of y, so that what it reads of x serves four blocks of W. The build chooses
//
//     -DX=f16 | bf16   -DW=u4_nv | s8_nv   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DGROUPED=0 | 1   one scale a row of W, or one a group (of 4 bits)
//
// Codes of 4 bits: linear_packed_wide_32, 32 rows of y by 128 columns, where two warps share the columns
// and each takes half of every step along K; linear_packed_pair.cl has more rows. Of 8 bits:
// linear_packed_wide_128, 128 by 128, where two warps share the columns and each takes half of the
// rows.
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
#include "linear/linear_finish.clh"
#include "linear/linear_groups.clh"
#include "linear/linear_packed_place.clh"
#include "linear/linear_packed_turn.clh"
#include "linear/linear_plain_rows.clh"

#define WARPS     4
#define ITEMS     (WARPS * FRAGMENT_WAVE)
#define TILES     4                   // blocks of 16 rows of W, of a warp
#define STEP_K    (W_IS_U4 ? 64 : 32) // a chunk of each block for each lane
#define TALL      (W_IS_U4 ? 1 : 2)   // warps that share columns, for different rows
#define MAX_PARTS 8                   // of eight rows of x, of a warp

// What follows depends on the shape: `parts`, and `split`, the warps that share columns and rows.
#define WARP_COLUMNS(split) (WARPS / (split) / TALL)
#define COLUMNS(split)      (WARP_COLUMNS(split) * TILES * 16)
#define TILE_M(parts)       (TALL * (parts)*8)
#define HALVES(split)       (STEP_K / 32 / (split)) // of 32 along K, that a warp multiplies in a step
#define X_CHUNKS            (STEP_K / 8)            // of 16 bytes, of a row
#define W_CHUNKS            32                      // of a block of 16 rows
#define X_TILE(parts)       (TILE_M(parts) * X_CHUNKS)
#define W_TILE(split)       (COLUMNS(split) / 16 * W_CHUNKS)
#define X_COPIES(parts)     (X_TILE(parts) / ITEMS)
#define W_COPIES(split)     (W_TILE(split) / ITEMS)
#define MAX_X_COPIES        X_COPIES(MAX_PARTS)

// A stage of local memory: x, then W, its tiles one after the other.
#define STAGE(parts, split)  (X_TILE(parts) + W_TILE(split))
#define LOCAL                3072 // chunks: 48 KiB
#define STAGES(parts, split) (LOCAL / STAGE(parts, split))

// At the end sums lie in local memory as rows of y, two blocks of W at a time.
#define PASS_TILES 2
#define SUM_PITCH  (PASS_TILES * 16 + 4)

// The four lanes of a quad read half of 128 bytes, those of two quads different halves of the banks.
static inline uint x_index(uint row, uint chunk)
{
    return row * X_CHUNKS + (X_CHUNKS == 8 ? chunk ^ row % 2 * 4 : chunk);
}

// ---- Copies

typedef struct {
    global const uint4 *x, *w; // this item's first chunks
    uint x_at[MAX_X_COPIES];   // chunks from there, of rows that exist
    uint x_to, w_to, w_step;
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, ulong row, uint block, const uint parts,
                                 const uint split)
{
    copies_t c;
    const uint item = forgotten((uint)get_local_id(0));
    const uint last = (uint)min(a.m - 1 - row, (ulong)TILE_M(parts));
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0) +
          item % X_CHUNKS;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(parts); i++)
        c.x_at[i] = min((item + i * ITEMS) / X_CHUNKS, last) * (uint)(a.x_rows.s0 / 8);
    c.x_to = x_index(item / X_CHUNKS, item % X_CHUNKS); // of rows a multiple of 2 apart
    c.w = (global const uint4 *)(a.data + (block + item / W_CHUNKS) * a.pitch) + item % W_CHUNKS;
    c.w_to = X_TILE(parts) + item;
    c.w_step = ITEMS / W_CHUNKS * (uint)(a.pitch / 16);
    return c;
}

LINEAR_INLINE void fetch_x(const copies_t *c, uint step, local uint4 *stage, const uint parts)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(parts); i++)
        async_copy(stage + c->x_to + i * ITEMS, c->x + (c->x_at[i] + step * X_CHUNKS), &held);
}

LINEAR_INLINE void fetch_w(const copies_t *c, uint step, local uint4 *stage, const uint split)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES(split); i++)
        async_copy(stage + c->w_to + i * ITEMS, c->w + (i * c->w_step + step * W_CHUNKS), &held);
}

// ---- A warp's products

typedef struct {
    float sum[TILES][MAX_PARTS][4];
    uint x[MAX_PARTS][4];   // of 32 weights along K
    uint codes[TILES][4];   // of a step
    uint w[2][4];           // an operand of a block, and the next one
    uint column, row, part; // this warp's place among the columns, its first row; place along K
    uint x_at, codes_at;    // in a stage, this lane's first chunks
    halves_zeros zero[TILES];
#if GROUPED
    groups_t groups;
#endif
} work_t;

#include "linear/linear_packed_beside.clh"

LINEAR_INLINE void load_x(fragment_unit unit, work_t *s, local const uint4 *stage, uint half_k,
                          uint p)
{
    const uint at = half_k && X_CHUNKS == 8 ? s->x_at ^ 4 : s->x_at;
    const uint4 v = load_local(stage + at + p * 8 * X_CHUNKS);
    s->x[p][0] = v.x;
    s->x[p][1] = v.y;
    s->x[p][2] = v.z;
    s->x[p][3] = v.w;
}

// Block n's; where warps share columns and rows, of the half that is this one's.
LINEAR_INLINE void load_codes_of(fragment_unit unit, work_t *s, local const uint4 *stage, uint n,
                                 const uint parts, const uint split)
{
    local const uint4 *from = stage + s->codes_at + n * W_CHUNKS;
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

// Where the stages are, and which step is to be asked for next.
typedef struct {
    local uint4 *memory;
    uint slot, step, steps;
} ring_t;

// The products of block n and operand j; half_k is theirs.
LINEAR_INLINE void multiply(fragment_unit unit, work_t *s, uint n, uint half_k, uint j,
                            const beside_t b, const uint parts)
{
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        mma_instruction(unit, s->sum[n][p], s->w[j], s->x[p] + 2 * j);
        if (b.turn)
            turn_pair(s, b.after, j * parts + p, *b.turn);
        if (p % (parts / 2) == 0 && j == 0)
            make_half(s, n, half_k, 1, p / (parts / 2));
        else if (p % (parts / 2) == 0)
            make_half(s, b.after, b.half_after, 0, p / (parts / 2));
    }
}

// Those of the last block and operand 1, after which x is that of `half_x` of a stage.
LINEAR_INLINE void multiply_last(fragment_unit unit, work_t *s, uint half_k, const beside_t b,
                                 local const uint4 *stage, uint half_x, const uint parts)
{
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        mma_instruction(unit, s->sum[TILES - 1][p], s->w[1], s->x[p] + 2);
        load_x(unit, s, stage, half_x, p);
        if (b.turn)
            turn_pair(s, b.after, parts + p, *b.turn);
        if (p % (parts / 2) == 0)
            make_half(s, b.after, b.half_after, 0, p / (parts / 2));
    }
}

// From the last block of the step before on. begins: whether a group does. What comes next takes the
// place of codes and x as soon as nobody needs them.
LINEAR_INLINE void multiply_step(const linear_t a, fragment_unit unit, work_t *s,
                                 const copies_t *copies, ring_t *r, const bool begins,
                                 const uint parts, const uint split)
{
    local uint4 *stage = r->memory + r->slot * STAGE(parts, split), *free = stage;
    uint from = 0;
    float2 turn = begins ? turn_of(unit, s, 0) : (float2)(1.0f, 1.0f);
    const beside_t first = {0, 0, begins ? &turn : 0};
    multiply(unit, s, TILES - 1, HALVES(split) - 1, 0, first, parts);
    load_codes_of(unit, s, stage, TILES - 1, parts, split);
    multiply_last(unit, s, HALVES(split) - 1, first, stage, split == 2 ? s->part : 0, parts);
    FRAGMENT_UNROLL
    for (uint half_k = 0; half_k < HALVES(split); half_k++) {
        const bool last = half_k + 1 == HALVES(split);
        if (last) {
            async_wait(STAGES(parts, split) - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            // The next stage is there, and all warps have loaded what they need of this one, whose
            // place is filled again. Past the end that is with the last one, which nobody reads.
            from = min(r->step, r->steps - 1);
            r->step++;
            free = stage;
            r->slot = r->slot + 1 < STAGES(parts, split) ? r->slot + 1 : 0;
            stage = r->memory + r->slot * STAGE(parts, split);
        }
        FRAGMENT_UNROLL
        for (uint n = 0; n + last < TILES; n++) {
            const uint after = (n + 1) % TILES;
            const bool turns = begins && half_k == 0 && n + 1 < TILES;
            if (turns)
                turn = turn_of(unit, s, after);
            const beside_t b = {after, n + 1 < TILES ? half_k : half_k + 1, turns ? &turn : 0};
            if (last && n == 0)
                fetch_x(copies, from, free, parts);
            multiply(unit, s, n, half_k, 0, b, parts);
            if (last)
                load_codes_of(unit, s, stage, n, parts, split);
            if (last && n == 0)
                fetch_w(copies, from, free, split);
            if (n + 1 < TILES)
                multiply(unit, s, n, half_k, 1, b, parts);
            else
                multiply_last(unit, s, half_k, b, stage, half_k + 1, parts);
        }
        if (last)
            async_commit();
#if GROUPED
        if (begins && half_k == 0)
            turn_to_next(a, &s->groups);
#endif
    }
}

LINEAR_INLINE void begin(const linear_t a, fragment_unit unit, work_t *s, uint block, uint group,
                         uint groups, const uint parts)
{
#if GROUPED
    s->groups.entry = ((block + unit.lane % 4) * a.groups + group) * 8 + unit.lane / 4;
    s->groups.more = groups - group - 1;
    s->groups.scale = 0x3c003c00u; // of no products: any other than 0
    ask_for_group(a, &s->groups);
    turn_to_next(a, &s->groups);
#endif
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
#if GROUPED
        s->zero[n] = (halves_zeros){0, 0};
#else
        s->zero[n] = group_zeros(a, load_group(a, block + n, 0, unit.lane / 4));
#endif
        clear_sums(s, n, parts);
    }
    clear_step(s, TILES, parts);
}

LINEAR_INLINE void apply_scales(const linear_t a, fragment_unit unit, work_t *s, uint block,
                                const uint parts)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
#if GROUPED
        const uint4 own = (uint4)(s->groups.scale, 0u, 0u, 0u);
        const float2 scale = unit_scales(quad_get(unit, own, n).x) / CODE_UNIT;
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

// Sums of blocks 2 pass and 2 pass + 1 as rows, those of the other half of K first. Where warps do not
// share columns and rows, each does that by itself.
LINEAR_INLINE void put_sums(fragment_unit unit, const work_t *s, local float *sums, uint pass,
                            const uint parts, const uint split)
{
    FRAGMENT_UNROLL
    for (uint from = 0; from < split; from++) {
        if (split == 2)
            barrier(CLK_LOCAL_MEM_FENCE);
        else
            warp_barrier();
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
    if (split == 2)
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

LINEAR_INLINE void multiply_piece(const linear_t a, fragment_unit unit, work_t *s,
                                  local uint4 *memory, const place_t p, const uint parts,
                                  const uint split)
{
    const copies_t copies = copies_of(a, p.row, p.block, parts, split);
    const uint period = stage_steps(a), first = p.piece.begin * period;
    ring_t ring = {memory, 0, first + STAGES(parts, split),
                   min(p.piece.end * period, a.k / STEP_K)};
    FRAGMENT_UNROLL
    for (uint i = 0; i < STAGES(parts, split); i++) {
        const uint from = min(first + i, ring.steps - 1);
        fetch_x(&copies, from, memory + i * STAGE(parts, split), parts);
        fetch_w(&copies, from, memory + i * STAGE(parts, split), split);
        async_commit();
    }
    begin(a, unit, s, p.block + s->column * TILES, p.piece.begin, p.piece.end, parts);
    async_wait(STAGES(parts, split) - 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    FRAGMENT_UNROLL
    for (uint n = 0; n + 1 < TILES; n++)
        load_codes_of(unit, s, memory, n, parts, split);

    uint left = 0; // steps of this group
    _Pragma("unroll 1") while (ring.step - STAGES(parts, split) < ring.steps)
    {
        if (GROUPED && left == 0) {
            left = period;
            multiply_step(a, unit, s, &copies, &ring, true, parts, split);
        } else {
            multiply_step(a, unit, s, &copies, &ring, false, parts, split);
        }
        left--;
    }
    const beside_t none = {0, 0, 0};
    multiply(unit, s, TILES - 1, HALVES(split) - 1, 0, none, parts);
    FRAGMENT_UNROLL
    for (uint i = 0; i < parts; i++)
        mma_instruction(unit, s->sum[TILES - 1][i], s->w[1], s->x[i] + 2);
    async_wait(0);
}

LINEAR_INLINE void store_tile(const linear_t a, fragment_unit unit, work_t *s, local uint4 *memory,
                              const place_t p, const uint parts, const uint split)
{
    const uint place = unit.wave % (WARPS / split);
    local float *sums = (local float *)memory + place * (parts * 8 * SUM_PITCH);
    const ulong row = p.row + s->row;
    _Pragma("unroll 1") for (uint pass = 0; pass < TILES / PASS_TILES; pass++)
    {
        put_sums(unit, s, sums, pass, parts, split);
        const uint first = (p.block + s->column * TILES + pass * PASS_TILES) * 16;
        const rows8_t to = rows8_of(a, row, first, PASS_TILES * 16);
        if (split == 1 && to.plain && first >= p.column) {
            FRAGMENT_UNROLL
            for (uint i = 0; i < parts * PASS_TILES / 2; i++) {
                const uint at = unit.lane + i * FRAGMENT_WAVE;
                const uint r = at / (PASS_TILES * 2), c = at % (PASS_TILES * 2) * 8;
                if (row + r < a.m)
                    store_row8(to, r, c, sums + r * SUM_PITCH + c);
            }
            continue;
        }
        _Pragma("unroll 1") for (uint i = unit.lane + s->part * FRAGMENT_WAVE;
                                 i < parts * 8 * PASS_TILES * 2; i += FRAGMENT_WAVE * split)
        {
            const uint r = i / (PASS_TILES * 2), c = i % (PASS_TILES * 2) * 8;
            if (row + r < a.m && first + c >= p.column && first + c < a.n)
                finish8(a, row + r, first + c, sums + r * SUM_PITCH + c);
        }
    }
}

LINEAR_INLINE void packed(const linear_t a, fragment_unit unit, local uint4 *memory,
                          const meet_t meet, const uint whole, const uint per, const uint parts,
                          const uint split)
{
    work_t s;
    s.column = unit.wave % WARP_COLUMNS(split);
    s.part = split == 2 ? unit.wave / WARP_COLUMNS(split) : 0;
    s.row = TALL == 2 ? unit.wave / WARP_COLUMNS(split) * parts * 8 : 0;
    s.x_at = x_index(s.row + unit.lane / 4, unit.lane % 4);
    s.codes_at = X_TILE(parts) + s.column * TILES * W_CHUNKS + unit.lane;
    _Pragma("unroll 1") for (uint n = 0;; n++)
    {
        const share_t share =
            share_of(a, whole, per, TILE_M(parts), COLUMNS(split) / 16, stages_of(a));
        const place_t p = place_of(a, share, n, TILE_M(parts), COLUMNS(split) / 16);
        if (!piece_is_there(share, p.piece))
            break;
        multiply_piece(a, unit, &s, memory, p, parts, split);
        barrier(CLK_LOCAL_MEM_FENCE); // all have loaded the last stage
        n = forgotten(n);
        unit.lane = forgotten(unit.lane);
        const share_t again =
            share_of(a, whole, per, TILE_M(parts), COLUMNS(split) / 16, stages_of(a));
        const place_t q = place_of(a, again, n, TILE_M(parts), COLUMNS(split) / 16);
        apply_scales(a, unit, &s, q.block + s.column * TILES, parts);
        bool stores = true;
        if (split == 1 && !piece_is_whole(again, q.piece))
            stores = packed_meet(again, q.piece, meet, &s.sum[0][0][0], TILES * MAX_PARTS * 4,
                                 memory, unit.wave, WARPS);
        if (stores)
            store_tile(a, unit, &s, memory, q, parts, split);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#define PACKED(name, resident, parts, split)                                                       \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(resident) void name(        \
        LINEAR_PARAMETERS, SPLIT_PARAMETERS)                                                       \
    {                                                                                              \
        local uint4 memory[LOCAL];                                                                 \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        const meet_t meet = {split_sums, split_counts};                                            \
        packed(a, unit, memory, meet, split_whole, split_per, parts, split);                       \
    }

#if TALL == 2
PACKED(linear_packed_wide_128, 2, 8, 1)
#else
PACKED(linear_packed_wide_32, 3, 4, 2)
#endif
