// As linear_wgmma_packed.cl, for compute capability 9.0 and from its sm_90a image only, with tiles of 128
// rows of W by 256 of x, for weights of 8 bits with one scale a row. Products take so much of the local
// memory's time there that codes are exchanged between lanes. docs/matrix-units.md explains it.
//
// A work-group is three warpgroups. Two multiply, 64 rows of W each; a warp of the third brings x and
// the packed weights, STAGE_K of K at a time. Work-groups stay and take one tile of y after the other.
// x has one stride, on 16-byte boundaries.
//
//     -DX=f16 | bf16
#define W             s8_nv
#define GROUPED       0
#define NV90_TYPE     X
#define FRAGMENT_TYPE X
#define FRAGMENT_MMA

#include "linear/linear_wgmma_codes.clh"

// A stage has two parts, tiles of the layout, of 16 bytes a lane: A of two products each.
#define PART     2
#define PRODUCTS (2 * PART)
#define STAGE_K  (PRODUCTS * 16)

#define TILE_M  256
#define TILE_N  128
#define X_BYTES (TILE_M * STAGE_K * 2)
#define W_BYTES (TILE_N / 16 * 1024) // two parts of each block of 16 rows
#define STAGE   (X_BYTES + W_BYTES)
#define STAGES  5

// ---- The warp that copies

LINEAR_INLINE void copy_tiles(const linear_t a, stages_t s, ulong map)
{
    const uint lane = (uint)get_local_id(0) % 32, tiles = count_tiles(a, TILE_M, TILE_N);
    for (uint index = (uint)get_group_id(0); index < tiles; index += (uint)get_num_groups(0)) {
        const place_t tile = place_of_tile(a, index, TILE_M, TILE_N);
        const uint block = min(tile.column / 16 + lane, (a.n - 1) / 16);
        global const uchar *w = a.data + block * a.pitch;
        for (uint k = 0; k < a.k; k += STAGE_K) {
            const uint to = s.tiles + s.slot * STAGE, full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            if (lane == 0) {
                nv90_barrier_expect(full, STAGE);
                nv90_box_rows(to, map, k, tile.row, full);
            }
            if (lane < TILE_N / 16)
                nv90_bulk(to + X_BYTES + lane * 1024, w, 1024, full);
            w += 1024;
            s = stage_after(s, STAGES);
        }
    }
}

// ---- Weights to operands
//
// The layout gives lane q of a quad weights 8q ... 8q+7 of every 32 along K, two words of two pairs
// each. wgmma, with x in its own order, wants of it pair q of each of the four lanes.

typedef struct {
    bool upper;                       // q >= 2
    uint mine, others, first, second; // selectors of bytes
} quad_t;

static inline quad_t quad_of(uint lane)
{
    // Pair p of a word: bytes 2p and 2p + 1. Of two words.
#define PAIRS(a, b) ((a)*2 | ((a)*2 + 1) << 4 | ((b)*2) << 8 | ((b)*2 + 1) << 12)
#define OTHER       2u // the same pair of the second word
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
    s8_operands(w[j], w[2 + j], z, a);
}

// ---- The warpgroups that multiply

// What the weights of a row have in common, for a lane's two rows.
typedef struct {
    float2 scale;
    halves_zeros zeros;
} group_t;

LINEAR_INLINE group_t row_group(const linear_t a, uint block, uint lane)
{
    const raw_group raw = load_group(a, min(block, (a.n - 1) / 16), 0, lane / 4);
    return (group_t){group_scales(a, raw), group_zeros(a, raw)};
}

typedef struct {
    uint codes_at; // in a stage
    quad_t quad;
} lane_t;

LINEAR_INLINE uint4 codes_of(const stages_t *s, uint part, lane_t l)
{
    return nv90_get(s->tiles + s->slot * STAGE + l.codes_at + part * 512);
}

// Product i of PRODUCTS of a stage.
LINEAR_INLINE void multiply(float *sums, const uint *a, const stages_t *s, const uint i)
{
    nv90_multiply_a1_256(sums, a, nv90_descriptor(s->tiles + s->slot * STAGE + i * 32), 1);
}

// All of K. Operands are made two products ahead, while those before are running: four sets of them.
LINEAR_INLINE void sum_tile(const linear_t a, stages_t *stages, lane_t l, group_t group,
                            float *sums)
{
    stages_t s = *stages, after = s;
    uint set[16], first[4], second[4]; // words of the parts
    UNROLL
    for (uint i = 0; i < TILE_M / 2; i++)
        sums[i] = 0.0f;
    UNROLL
    for (uint i = 8; i < 16; i++)
        set[i] = 0;
    nv90_barrier_wait(s.full + s.slot * 8, s.phase);
    words_of(l.quad, codes_of(&s, 0, l), first);
    uint4 codes = codes_of(&s, 1, l);
    operands(set, first, 0, group.zeros);
    operands(set + 4, first, 1, group.zeros);
    for (uint k = 0; k < a.k; k += STAGE_K) {
        UNROLL
        for (uint i = 0; i < PRODUCTS; i++) {
            multiply(sums, set + i % 4 * 4, &s, i);
            if (i == PART - 2)
                words_of(l.quad, codes, second);
            nv90_held_1(set + (i + 2) % 4 * 4);
            if (i == 1 && k > 0)
                free_stage(&after); // that of the stage before
            if (i + 2 < PART)
                operands(set + (i + 2) % 4 * 4, first, i + 2, group.zeros);
            else if (i + 2 < PRODUCTS)
                operands(set + (i + 2) % 4 * 4, second, i + 2 - PART, group.zeros);
            else
                operands(set + (i + 2) % 4 * 4, first, i + 2 - PRODUCTS, group.zeros);
            if (i == PART - 1) {
                // The next stage; at the end, this one again.
                after = s;
                if (k + STAGE_K < a.k) {
                    after = stage_after(s, STAGES);
                    nv90_barrier_wait(after.full + after.slot * 8, after.phase);
                }
                words_of(l.quad, codes_of(&after, 0, l), first);
                codes = codes_of(&after, 1, l);
            }
        }
        const stages_t done = s;
        s = after;
        after = done;
    }
    nv90_end_256(sums);
    free_stage(&s);
    UNROLL
    for (uint i = 0; i < TILE_M / 2; i++) // of row g where i / 2 is even, else of g + 8
        sums[i] *= i / 2 % 2 ? group.scale.y : group.scale.x;
    *stages = stage_after(s, STAGES);
}

LINEAR_INLINE void multiply_tiles(const linear_t a, stages_t s, local float *patches)
{
    const uint item = (uint)get_local_id(0), warp = item / 32, lane = item % 32;
    const uint tiles = count_tiles(a, TILE_M, TILE_N);
    const lane_t l = {X_BYTES + warp * 1024 + lane * 16, quad_of(lane)};
    float sums[TILE_M / 2];
    UNROLL
    for (uint i = 0; i < TILE_M / 2; i++)
        sums[i] = 0.0f;
    uint index = (uint)get_group_id(0);
    place_t tile = place_of_tile(a, index, TILE_M, TILE_N);
    const bool plain = is_plain(a);
    group_t group = row_group(a, tile.column / 16 + warp, lane);
    while (index < tiles) {
        const place_t done = tile;
        sum_tile(a, &s, l, group, sums);
        index += (uint)get_num_groups(0);
        if (index < tiles) {
            tile = place_of_tile(a, index, TILE_M, TILE_N);
            group = row_group(a, tile.column / 16 + warp, lane); // before this one is stored
        }
        if (plain)
            store_plain(a, sums, done.row, (done.column / 16 + warp) * 16,
                        patches + warp * PATCH_SIZE, lane, TILE_M);
        UNROLL
        for (uint i = 0; i < TILE_M; i += PATCH)
            if (!plain && done.row + i < a.m)
                finish_patch(a, sums + i / 2, done.row + i, (done.column / 16 + warp) * 16,
                             patches + warp * PATCH_SIZE, lane);
    }
}

kernel __attribute__((reqd_work_group_size(384, 1, 1)))
RESIDENT(1) void linear_wgmma_narrow_256(LINEAR_PARAMETERS)
{
    local uchar tiles[STAGES * STAGE] __attribute__((aligned(1024)));
    local uchar map[NV90_MAP_BYTES] __attribute__((aligned(128)));
    local float patches[8 * PATCH_SIZE] __attribute__((aligned(16)));
    local ulong barriers[2 * STAGES];
    local uint slot;
    const linear_t a = LINEAR_ARGUMENTS;
    const uint item = (uint)get_local_id(0), full = (uint)(size_t)barriers;
    const stages_t s = {(uint)(size_t)tiles, full, full + STAGES * 8, 0, 0};
    if (item < STAGES) {
        nv90_barrier_init(s.full + item * 8, 1);
        nv90_barrier_init(s.free + item * 8, 8); // warps that multiply
    }
    if (item == 256) {
        slot = nv90_take_slot();
        nv90_map_rows((uint)(size_t)map, (global const ushort *)x + x_rows.offset, k, (uint)m,
                      m > 1 ? x_rows.s0 * 2 : 16, TILE_M);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < 256) {
        nv90_registers_up(216);
        multiply_tiles(a, s, patches);
    } else {
        nv90_registers_down(72);
        if (item < 256 + 32) {
            const ulong published = nv90_map_of(slot, 0);
            nv90_map_publish(published, (uint)(size_t)map);
            copy_tiles(a, s, published);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE); // all boxes have arrived
    if (item == 256)
        nv90_give_slot(slot);
}
