// The linear layer on wgmma for many rows of x and weights of 8 bits with one scale a row of W, from its
// sm_90a image only. As linear_wgmma_packed.cl, but with tiles of 128 rows of W by 256 of x: so many
// that to put x into another order would cost more of the local memory's time than there is, and codes
// are exchanged between lanes instead. docs/matrix-units.md explains both.
//
// A work-group is three warpgroups. Two multiply, 64 rows of W each; a warp of the third brings x and
// the codes, 64 of K at a time. x has one stride, on 16-byte boundaries.
//
//     -DX=f16 | bf16
#define W             s8_nv
#define NV90_TYPE     X
#define FRAGMENT_TYPE X
#define FRAGMENT_MMA

#include "common/nv.clh"
#include "common/nv90.clh"
#include "linear/linear_groups.clh"
#include "linear/linear_finish.clh"

#define UNROLL _Pragma("unroll")

// A stage has two parts, tiles of the layout, of 16 bytes a lane: two instructions' A each.
#define PRODUCTS 4
#define STAGE_K  64
#define TILE_M   256
#define TILE_N   128
#define SUMS     (TILE_M / 2)
#define W_BYTES  (TILE_N / 16 * 1024) // two parts of each block of 16 rows
#define X_BYTES  (TILE_M * STAGE_K * 2)
#define STAGE    (X_BYTES + W_BYTES)
#define STAGES   5

// ---- The tiles of y

typedef struct {
    uint row, column;
} place_t;

static inline uint tiles_of(const linear_t a)
{
    return ((uint)a.m + TILE_M - 1) / TILE_M * ((a.n + TILE_N - 1) / TILE_N);
}

// As tile_of() of linear_finish.clh: tiles that are computed at one time share x and W in the cache.
#define TILE_BAND 8
static inline place_t place_of(const linear_t a, uint index)
{
    const uint rows = ((uint)a.m + TILE_M - 1) / TILE_M, columns = (a.n + TILE_N - 1) / TILE_N;
    const uint first = index / (TILE_BAND * columns) * TILE_BAND;
    const uint within = index % (TILE_BAND * columns), height = min(rows - first, (uint)TILE_BAND);
    return (place_t){(first + within % height) * TILE_M, within / height * TILE_N};
}

// ---- Stages

typedef struct {
    uint tiles, full, free; // addresses: of stage 0 and its barriers
    uint slot, phase;       // of the stage that comes next
} stages_t;

LINEAR_INLINE stages_t next_stage(stages_t s)
{
    const bool last = s.slot + 1 == STAGES;
    s.phase ^= last;
    s.slot = last ? 0 : s.slot + 1;
    return s;
}

// ---- The warps that copy

LINEAR_INLINE void copy_tiles(const linear_t a, stages_t s, ulong map)
{
    const uint lane = (uint)get_local_id(0) % 32, tiles = tiles_of(a);
    for (uint index = (uint)get_group_id(0); index < tiles; index += (uint)get_num_groups(0)) {
        const place_t tile = place_of(a, index);
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
            s = next_stage(s);
        }
    }
}

// What a lane's two rows of W have in common.
typedef struct {
    float2 scale;
    halves_zeros zeros;
} group_t;

LINEAR_INLINE group_t row_group(const linear_t a, uint block, uint lane)
{
    const raw_group raw = load_group(a, min(block, (a.n - 1) / 16), 0, lane / 4);
    return (group_t){group_scales(a, raw), group_zeros(a, raw)};
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
    // Pair p of a word, bytes 2p and 2p + 1, of two words.
#define BYTES(a, b) ((a)*2 | ((a)*2 + 1) << 4 | ((b)*2) << 8 | ((b)*2 + 1) << 12)
#define OTHER 2u // the same pair of the second word
    const uint pair = lane & 1;
    quad_t q;
    q.upper = lane & 2;
    // Two words, of lanes q and q ^ 2: the lower lane's first.
    q.mine = q.upper ? BYTES(OTHER + pair, pair) : BYTES(pair, OTHER + pair);
    q.others = q.upper ? BYTES(OTHER + 1 - pair, 1 - pair) : BYTES(1 - pair, OTHER + 1 - pair);
    q.first = pair ? BYTES(OTHER, 0u) : BYTES(0u, OTHER);
    q.second = pair ? BYTES(OTHER + 1, 1u) : BYTES(1u, OTHER + 1);
    return q;
#undef BYTES
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

// The words of a part, and the operands of its product j.
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

typedef struct {
    uint codes_at; // in a stage
    quad_t quad;
} lane_t;

static inline uint4 get(uint from)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

LINEAR_INLINE uint4 codes_of(const stages_t *s, uint part, lane_t l)
{
    return get(s->tiles + s->slot * STAGE + l.codes_at + part * 512);
}
// Product i of a stage.
LINEAR_INLINE void multiply(float *sums, const uint *a, const stages_t *s, const uint i)
{
    nv90_multiply_a1_256(sums, a, nv90_descriptor(s->tiles + s->slot * STAGE + i * 32), 1);
}
static inline void free_stage(const stages_t *s)
{
    if (get_local_id(0) % 32 == 0)
        nv90_barrier_arrive(s->free + s->slot * 8);
}

// All of K. Operands are made two products ahead, while those before are running: four sets of them.
// Sum i of a lane is of its row g where i / 2 is even, else of g + 8.
LINEAR_INLINE void sum_tile(const linear_t a, stages_t *stages, lane_t l, group_t group,
                            float *sums)
{
    stages_t s = *stages, after = s;
    uint set[16], first[4], second[4]; // words of the parts
    UNROLL
    for (uint i = 0; i < SUMS; i++)
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
            multiply(sums, set + i * 4, &s, i);
            if (i == 0)
                words_of(l.quad, codes, second);
            nv90_held_1(set + (i + 2) % 4 * 4);
            if (i == 1 && k > 0)
                free_stage(&after); // that of the stage before
            operands(set + (i + 2) % 4 * 4, i < 2 ? second : first, i % 2, group.zeros);
            if (i == 1) {
                // The next stage; at the end, this one again.
                after = s;
                if (k + STAGE_K < a.k) {
                    after = next_stage(s);
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
    for (uint i = 0; i < SUMS; i++)
        sums[i] *= i / 2 % 2 ? group.scale.y : group.scale.x;
    *stages = next_stage(s);
}

// A warp's rows of W are sixteen columns of y: PATCH rows at a time they pass through local memory.
#define PATCH       16
#define PATCH_PITCH (16 + 4)

LINEAR_INLINE void store_tile(const linear_t a, const float *total, place_t tile, uint block,
                              local float *patch)
{
    const uint lane = (uint)get_local_id(0) % 32, g = lane / 4, q = lane % 4;
    UNROLL
    for (uint p = 0; p < TILE_M / PATCH; p++) {
        if (tile.row + p * PATCH < a.m) {
            UNROLL
            for (uint i = 0; i < PATCH / 2; i++)
                patch[(i / 4 * 8 + 2 * q + i % 2) * PATCH_PITCH + g + i / 2 % 2 * 8] =
                    total[p * (PATCH / 2) + i];
            nv90_warp_sync();
            const uint row = tile.row + p * PATCH + lane / 2, c = lane % 2 * 8;
            if (row < a.m && block * 16 + c < a.n)
                finish8(a, row, block * 16 + c, patch + lane / 2 * PATCH_PITCH + c);
            nv90_warp_sync();
        }
    }
}

LINEAR_INLINE void multiply_tiles(const linear_t a, stages_t s, local float *patches)
{
    const uint item = (uint)get_local_id(0), warp = item / 32, lane = item % 32;
    const uint tiles = tiles_of(a);
    const lane_t l = {X_BYTES + warp * 1024 + lane * 16, quad_of(lane)};
    float sums[SUMS];
    uint index = (uint)get_group_id(0);
    place_t tile = place_of(a, index);
    group_t group = row_group(a, tile.column / 16 + warp, lane);
    while (index < tiles) {
        const place_t done = tile;
        sum_tile(a, &s, l, group, sums);
        index += (uint)get_num_groups(0);
        if (index < tiles) { // of the next tile, before this one is stored
            tile = place_of(a, index);
            group = row_group(a, tile.column / 16 + warp, lane);
        }
        store_tile(a, sums, done, done.column / 16 + warp,
                   patches + warp * (PATCH * PATCH_PITCH));
    }
}

kernel __attribute__((reqd_work_group_size(384, 1, 1))) RESIDENT(1) void
linear_wgmma_s8(LINEAR_PARAMETERS)
{
    local uchar stages[STAGES * STAGE] __attribute__((aligned(1024)));
    local uchar map[NV90_MAP_BYTES] __attribute__((aligned(128)));
    local float patches[8 * PATCH * PATCH_PITCH] __attribute__((aligned(16)));
    local ulong barriers[2 * STAGES];
    local uint slot;
    const linear_t a = LINEAR_ARGUMENTS;
    const uint item = (uint)get_local_id(0), full = (uint)(size_t)barriers;
    const stages_t s = {(uint)(size_t)stages, full, full + STAGES * 8, 0, 0};
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
    // All boxes have arrived.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 256)
        nv90_give_slot(slot);
}
