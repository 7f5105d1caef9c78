// As linear_wgmma_packed.cl, for compute capability 9.0 and from its sm_90a image only, with tiles of 128
// rows of W: of 64 of x, where tiles are few and nothing can be shared, and of 256 for weights of 8
// bits with one scale a row, where to put x into another order would cost more of the local memory's
// time than there is. Codes are exchanged between lanes instead. docs/matrix-units.md explains it.
//
// A work-group is three warpgroups. Two multiply, 64 rows of W each; one warp of the third brings x
// and the packed weights, STAGE_K of K at a time, and another what groups have in common. Work-groups
// stay and take one tile of y after the other. A kernel's number is the rows of x of its tile. x has
// one stride, on 16-byte boundaries.
//
//     -DX=f16 | bf16   -DW=u4_nv | s8_nv
//     -DGROUPED=0   one scale a row of W     -DGROUPED=1   groups of a multiple of STAGE_K
#define W             s8_nv
#define GROUPED       0
#define NV90_TYPE     X
#define FRAGMENT_TYPE X
#define FRAGMENT_MMA

#include "linear/linear_wgmma_codes.clh"

// A stage has two parts, tiles of the layout, of 16 bytes a lane: PART instructions' A.
#define PART     (W_IS_U4 ? 4 : 2)
#define PRODUCTS (2 * PART)
#define STAGE_K  (PRODUCTS * 16)

#define TILE_N  128
#define W_BYTES (TILE_N / 16 * 1024) // two parts of each block of 16 rows
#define G_BYTES (GROUPED ? TILE_N / 2 * 16 : 0)
#define X_BYTES(t) ((t)*STAGE_K * 2)
#define COPIED(t)  (X_BYTES(t) + W_BYTES)
#define STAGE(t)   (COPIED(t) + G_BYTES)
#define STAGES(t)  (COPIED(t) > (24 << 10) ? 5 : 8)
#define MAX_T      (GROUPED || W_IS_U4 ? 64 : 256)

// ---- The warps that copy

LINEAR_INLINE void copy_tiles(const linear_t a, stages_t s, ulong map, const uint t)
{
    const uint lane = (uint)get_local_id(0) % 32, tiles = count_tiles(a, t, TILE_N);
    for (uint index = (uint)get_group_id(0); index < tiles; index += (uint)get_num_groups(0)) {
        const place_t tile = place_of_tile(a, index, t, TILE_N);
        const uint block = min(tile.column / 16 + lane, (a.n - 1) / 16);
        global const uchar *w = a.data + block * a.pitch;
        for (uint k = 0; k < a.k; k += STAGE_K) {
            const uint to = s.tiles + s.slot * STAGE(t), full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            if (lane == 0) {
                nv90_barrier_expect(full, COPIED(t));
                for (uint i = 0; i < STAGE_K; i += 64)
                    nv90_box_rows(to + i * (t * 2), map, k + i, tile.row, full);
            }
            if (lane < TILE_N / 16)
                nv90_bulk(to + X_BYTES(t) + lane * 1024, w, 1024, full);
            w += 1024;
            s = stage_after(s, STAGES(t));
        }
    }
}

// What the weights of a group have in common, for a lane's two rows.
typedef struct {
    float2 scale;
    halves_zeros zeros;
} group_t;

LINEAR_INLINE group_t group_of(const linear_t a, raw_group raw)
{
    return (group_t){group_scales(a, raw), group_zeros(a, raw)};
}

// The groups of BATCH stages are asked for at one time: they come from far away. An item has those
// of 64 pairs of rows that are 32 apart.
#define BATCH 4
LINEAR_INLINE void copy_groups(const linear_t a, stages_t s, const uint t)
{
    const uint lane = (uint)get_local_id(0) % 32, tiles = count_tiles(a, t, TILE_N);
    for (uint index = (uint)get_group_id(0); index < tiles; index += (uint)get_num_groups(0)) {
        const uint block = place_of_tile(a, index, t, TILE_N).column / 16 + lane / 8, last = (a.n - 1) / 16;
        for (uint k = 0; k < a.k; k += BATCH * STAGE_K) {
            raw_group raw[BATCH][2];
            UNROLL
            for (uint i = 0; i < BATCH; i++) {
                raw[i][0] = load_group(a, min(block, last), k + i * STAGE_K, lane % 8);
                raw[i][1] = load_group(a, min(block + 4, last), k + i * STAGE_K, lane % 8);
            }
            UNROLL
            for (uint i = 0; i < BATCH; i++) {
                if (k + i * STAGE_K < a.k) {
                    const uint to = s.tiles + s.slot * STAGE(t) + COPIED(t) + lane * 16;
                    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
                    UNROLL
                    for (uint half_of = 0; half_of < 2; half_of++) {
                        const group_t g = group_of(a, raw[i][half_of]);
                        nv90_put(to + half_of * 512,
                                 (uint4)(as_uint(g.scale.x), as_uint(g.scale.y), g.zeros.upper,
                                         g.zeros.lower));
                    }
                    nv90_warp_sync();
                    if (lane == 0)
                        nv90_barrier_arrive(s.full + s.slot * 8);
                    s = stage_after(s, STAGES(t));
                }
            }
        }
    }
}

// ---- Weights to operands
//
// The layout gives lane q of a quad weights 8q ... 8q+7 of every 32 along K, two words of two pairs
// each. wgmma, with x in its own order, wants of it pair q of each of the four lanes.

typedef struct {
    bool upper;                      // q >= 2
    uint mine, others, first, second; // selectors of bytes
} quad_t;

static inline quad_t quad_of(uint lane)
{
    // Pair p of a word: bytes p and p + 2 of 4-bit codes, 2p and 2p + 1 of 8 bits. Of two words.
#define PAIRS(a, b)                                                                                \
    (W_IS_U4 ? (a) | (b) << 4 | ((a) + 2) << 8 | ((b) + 2) << 12                                   \
             : (a)*2 | ((a)*2 + 1) << 4 | ((b)*2) << 8 | ((b)*2 + 1) << 12)
#define OTHER (W_IS_U4 ? 4u : 2u) // the same pair of the second word
    const uint pair = lane & 1;
    quad_t q;
    q.upper = lane & 2;
    // Two words, of lanes q and q ^ 2: the lower lane's first.
    q.mine = q.upper ? PAIRS(OTHER + pair, pair) : PAIRS(pair, OTHER + pair);
    q.others = q.upper ? PAIRS(OTHER + 1 - pair, 1 - pair) : PAIRS(1 - pair, OTHER + 1 - pair);
    q.first = pair ? PAIRS(OTHER, 0u) : PAIRS(0u, OTHER);
    q.second = pair ? PAIRS(OTHER + 1, 1u) : PAIRS(1u, OTHER + 1);
    return q;
#undef PAIRS
#undef OTHER
}

static inline uint shuffle(uint v, uint lanes)
{
    uint other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=r"(other)
                 : "r"(v), "r"(lanes));
    return other;
}

// w[i]: pair q of lanes 2i and 2i + 1.
LINEAR_INLINE void exchange(quad_t q, uint w0, uint w1, uint *w)
{
    const uint kept = q.upper ? w1 : w0;
    const uint given = shuffle(q.upper ? w0 : w1, 2);
    const uint mine = bytes_select(kept, given, q.mine);
    const uint others = shuffle(bytes_select(kept, given, q.others), 1);
    w[0] = bytes_select(mine, others, q.first);
    w[1] = bytes_select(mine, others, q.second);
}

// The words of a part, and the operands of its product j of PART.
LINEAR_INLINE void words_of(quad_t q, uint4 codes, uint *w)
{
    exchange(q, codes.x, codes.y, w);
    exchange(q, codes.z, codes.w, w + 2);
}
LINEAR_INLINE void operands(uint *a, const uint *w, const uint j, halves_zeros z)
{
#if W_IS_U4
    u4_operands(w[j], z, a);
#else
    s8_operands(w[j], w[2 + j], z, a);
#endif
}

// ---- The warpgroups that multiply

typedef struct {
    uint codes_at, group_at; // in a stage
    quad_t quad;
} lane_t;

LINEAR_INLINE uint4 codes_of(const stages_t *s, uint part, lane_t l, const uint t)
{
    return nv90_get(s->tiles + s->slot * STAGE(t) + l.codes_at + part * 512);
}
LINEAR_INLINE group_t stage_group(const stages_t *s, lane_t l, const uint t)
{
    const uint4 v = nv90_get(s->tiles + s->slot * STAGE(t) + l.group_at);
    return (group_t){(float2)(as_float(v.x), as_float(v.y)), {v.z, v.w}};
}

// Product i of PRODUCTS of a stage.
LINEAR_INLINE void multiply(float *sums, const uint *a, const stages_t *s, const uint i, uint keep,
                            const uint t)
{
    // Rows of a tile of x are 64 of K.
    const uint x = s->tiles + s->slot * STAGE(t);
    const ulong b = nv90_descriptor(x + i / 4 * (t * NV90_ROW) + i % 4 * 32);
    if (t == 64)
        nv90_multiply_a1_64(sums, a, b, keep);
#if MAX_T == 256
    else
        nv90_multiply_a1_256(sums, a, b, keep);
#endif
}
LINEAR_INLINE void end(float *sums, const uint t)
{
    if (t == 64)
        nv90_end_64(sums);
#if MAX_T == 256
    else
        nv90_end_256(sums);
#endif
}

// Sum i of a lane is of its row g where i / 2 is even, else of g + 8.
LINEAR_INLINE void scale(float *to, const float *sums, float2 scale, const uint t)
{
    UNROLL
    for (uint i = 0; i < t / 2; i++) {
        const float f = i / 2 % 2 ? scale.y : scale.x;
        to[i] = GROUPED ? to[i] + f * sums[i] : f * sums[i];
    }
}

// All of K. Operands are made two products ahead, while those before are running: four sets of them.
// group: of the rows, where they have one.
LINEAR_INLINE void sum_tile(const linear_t a, stages_t *stages, lane_t l, group_t group, float *sums,
                            float *total, const uint t)
{
    const bool never = a.pitch == 0;
    stages_t s = *stages, after = s;
    uint set[16], first[4], second[4]; // words of the parts
    UNROLL
    for (uint i = 0; i < t / 2; i++)
        *(GROUPED ? total + i : sums + i) = 0.0f;
    UNROLL
    for (uint i = 8; i < 16; i++)
        set[i] = 0;
    nv90_barrier_wait(s.full + s.slot * 8, s.phase);
    if (GROUPED)
        group = stage_group(&s, l, t);
    words_of(l.quad, codes_of(&s, 0, l, t), first);
    uint4 codes = codes_of(&s, 1, l, t);
    operands(set, first, 0, group.zeros);
    operands(set + 4, first, 1, group.zeros);
    for (uint k = 0; k < a.k; k += STAGE_K) {
        group_t next = group;
        UNROLL
        for (uint i = 0; i < PRODUCTS; i++) {
            multiply(sums, set + i % 4 * 4, &s, i, GROUPED ? i > 0 : 1, t);
            if (i == PART - 2)
                words_of(l.quad, codes, second);
            nv90_held_1(set + (i + 2) % 4 * 4);
            if (!GROUPED && i == 1 && k > 0)
                free_stage(&after); // that of the stage before
            if (i + 2 < PART)
                operands(set + (i + 2) % 4 * 4, first, i + 2, group.zeros);
            else if (i + 2 < PRODUCTS)
                operands(set + (i + 2) % 4 * 4, second, i + 2 - PART, group.zeros);
            else
                operands(set + (i + 2) % 4 * 4, first, i + 2 - PRODUCTS, next.zeros);
            if (i == PART - 1) {
                // The next stage; at the end, this one again.
                after = s;
                if (k + STAGE_K < a.k) {
                    after = stage_after(s, STAGES(t));
                    nv90_barrier_wait(after.full + after.slot * 8, after.phase);
                }
                if (GROUPED)
                    next = stage_group(&after, l, t);
                words_of(l.quad, codes_of(&after, 0, l, t), first);
                codes = codes_of(&after, 1, l, t);
            }
        }
        if (GROUPED) {
            nv90_make_first(never, s.full, set, 8);
            end(sums, t);
            free_stage(&s);
            scale(total, sums, group.scale, t);
            group = next;
        }
        const stages_t done = s;
        s = after;
        after = done;
    }
    if (!GROUPED) {
        end(sums, t);
        free_stage(&s);
        scale(total, sums, group.scale, t);
    }
    *stages = stage_after(s, STAGES(t));
}

LINEAR_INLINE group_t row_group(const linear_t a, uint block, uint lane)
{
    return group_of(a, load_group(a, min(block, (a.n - 1) / 16), 0, lane / 4));
}

LINEAR_INLINE void multiply_tiles(const linear_t a, stages_t s, local float *patches, const uint t)
{
    const uint item = (uint)get_local_id(0), warp = item / 32, lane = item % 32;
    const uint tiles = count_tiles(a, t, TILE_N);
    const lane_t l = {X_BYTES(t) + warp * 1024 + lane * 16, COPIED(t) + item / 4 * 16,
                      quad_of(lane)};
    float sums[MAX_T / 2], total[MAX_T / 2];
    UNROLL
    for (uint i = 0; i < t / 2; i++)
        sums[i] = 0.0f;
    uint index = (uint)get_group_id(0);
    place_t tile = place_of_tile(a, index, t, TILE_N);
    const bool plain = is_plain(a);
    group_t group = {};
    if (!GROUPED)
        group = row_group(a, tile.column / 16 + warp, lane);
    while (index < tiles) {
        const place_t done = tile;
        sum_tile(a, &s, l, group, sums, total, t);
        index += (uint)get_num_groups(0);
        if (index < tiles) {
            tile = place_of_tile(a, index, t, TILE_N);
            if (!GROUPED) // of the next tile, before this one is stored
                group = row_group(a, tile.column / 16 + warp, lane);
        }
        if (plain)
            store_plain(a, total, done.row, (done.column / 16 + warp) * 16,
                        patches + warp * PATCH_SIZE, lane, t);
        UNROLL
        for (uint i = 0; i < t; i += PATCH)
            if (!plain && done.row + i < a.m)
                finish_patch(a, total + i / 2, done.row + i, (done.column / 16 + warp) * 16,
                             patches + warp * PATCH_SIZE, lane);
    }
}

#define NARROW(t)                                                                                  \
    kernel __attribute__((reqd_work_group_size(384, 1, 1))) RESIDENT(1) void                       \
        linear_wgmma_narrow_##t(LINEAR_PARAMETERS)                                                 \
    {                                                                                              \
        local uchar tiles[STAGES(t) * STAGE(t)] __attribute__((aligned(1024)));                    \
        local uchar map[NV90_MAP_BYTES] __attribute__((aligned(128)));                             \
        local float patches[8 * PATCH_SIZE] __attribute__((aligned(16)));                          \
        local ulong barriers[2 * STAGES(t)];                                                       \
        local uint slot;                                                                           \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        const uint item = (uint)get_local_id(0), full = (uint)(size_t)barriers;                    \
        const stages_t s = {(uint)(size_t)tiles, full, full + STAGES(t) * 8, 0, 0};                \
        if (item < STAGES(t)) {                                                                    \
            nv90_barrier_init(s.full + item * 8, GROUPED ? 2 : 1);                                 \
            nv90_barrier_init(s.free + item * 8, 8); /* warps that multiply */                     \
        }                                                                                          \
        if (item == 256) {                                                                         \
            slot = nv90_take_slot();                                                               \
            nv90_map_rows((uint)(size_t)map, (global const ushort *)x + x_rows.offset, k, (uint)m, \
                          m > 1 ? x_rows.s0 * 2 : 16, t);                                                      \
        }                                                                                          \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (item < 256) {                                                                          \
            nv90_registers_up(216);                                                                \
            multiply_tiles(a, s, patches, t);                                                      \
        } else {                                                                                   \
            nv90_registers_down(72);                                                               \
            if (item < 256 + 32) {                                                                 \
                const ulong published = nv90_map_of(slot, 0);                                      \
                nv90_map_publish(published, (uint)(size_t)map);                                    \
                copy_tiles(a, s, published, t);                                                    \
            } else if (GROUPED && item < 256 + 64) {                                               \
                copy_groups(a, s, t);                                                              \
            }                                                                                      \
        }                                                                                          \
        /* All boxes have arrived. */                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (item == 256)                                                                           \
            nv90_give_slot(slot);                                                                  \
    }

NARROW(256)
