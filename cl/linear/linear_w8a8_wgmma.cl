// W8A8 on wgmma, for compute capability 9.0, from its sm_90a image only. y^T = W x^T: the weights are
// the instruction's A, which it takes from registers: a lane's 16 bytes of a tile of s8/nv are its
// operand, but for the codes' offset of 128. x is B, in local memory, its codes in the order of
// w8a8_nv90_place. docs/matrix-units.md explains it.
//
// A work-group is three warpgroups. Two multiply; one warp of the third brings the codes of x and of
// the weights, 128 of K at a time. Work-groups stay and take one tile of y after the other, of which
// the last may be shared (linear_split.clh). A kernel's numbers are the rows of x and of W of its
// tile; a warpgroup has 64 of W, or 128 as a pair. Tiles of fewer rows of W, `width`, leave warps
// without any.
#define NV90_BYTES
#define W s8_nv

#include "linear/linear_wgmma_codes.clh"

#include "common/nv90_bytes.clh"
#include "linear/linear_w8a8.clh"

#define SPLIT_SUM int
#include "linear/linear_split.clh"

#define BLOCK   2048 // bytes of 16 rows of W in a stage
#define STAGE_K 128

// Of a tile of t rows of x and n of W: 128, or 256 for warpgroups that have a pair of products each.
#define PAIR(n)      ((n) == 256)
#define X_BYTES(t)   ((t)*STAGE_K)
#define STAGE(t, n)  (X_BYTES(t) + (n) / 16 * BLOCK)
#define STAGES(t, n) ((216 << 10) / STAGE(t, n))

// ---- The warp that copies

// Of each stage, so that those who multiply need not keep what it takes to find it.
typedef struct {
    uint stages; // of the piece of a tile that it belongs to; 0: the end
    uint tile, row, column;
} told_t;

LINEAR_INLINE void copy_tiles(const linear_t a, stages_t s, const share_t share, ulong map,
                              local told_t *told, uint width, const uint t, const uint tile_n)
{
    const uint lane = (uint)get_local_id(0) % 32;
    for (piece_t p = piece_first(share); piece_is_there(share, p); p = piece_next(share, p)) {
        const place_t tile = place_of_tile_anew(a, p.tile, t, width);
        const uint block = min(tile.column / 16 + lane, (a.n - 1) / 16);
        global const uchar *w = a.data + block * a.pitch + p.begin * (ulong)BLOCK;
        for (uint k = p.begin * STAGE_K; k < p.end * STAGE_K; k += STAGE_K) {
            const uint to = s.tiles + s.slot * STAGE(t, tile_n), full = s.full + s.slot * 8;
            // Beyond K are zeros in x; what is left there of other weights does not matter.
            const uint bytes = k + 64 < a.k ? BLOCK : BLOCK / 2;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            if (lane == 0) {
                told[s.slot] = (told_t){p.end - p.begin, p.tile, tile.row, tile.column};
                nv90_barrier_expect(full, X_BYTES(t) + width / 16 * bytes);
                nv90_box_rows(to, map, k, tile.row, full);
            }
            if (lane < width / 16)
                nv90_bulk(to + X_BYTES(t) + lane * BLOCK, w, bytes, full);
            w += BLOCK;
            s = stage_after(s, STAGES(t, tile_n));
        }
    }
    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
    if (lane == 0) {
        told[s.slot].stages = 0;
        nv90_barrier_arrive(s.full + s.slot * 8);
    }
}

// ---- The warpgroups that multiply

// A step is 64 of K: two tiles of the layout, or four of a pair, whose operands are a set.
#define STEPS       2
#define PRODUCTS(n) (PAIR(n) ? 2 : 1) // for 32 of K
#define SET(n)      (8 * PRODUCTS(n))
#define MAX_SET     16

LINEAR_INLINE void load_step(uint *set, const stages_t *s, const uint step, uint codes_at,
                             const uint t, const uint tile_n)
{
    const uint from = s->tiles + s->slot * STAGE(t, tile_n) + codes_at + step * 1024;
    UNROLL
    for (uint i = 0; i < SET(tile_n); i += 4) {
        const uint4 v =
            nv90_get(from + i / 4 / PRODUCTS(tile_n) * 512 + i / 4 % PRODUCTS(tile_n) * BLOCK) ^
            0x80808080u;
        set[i] = v.x;
        set[i + 1] = v.z;
        set[i + 2] = v.y;
        set[i + 3] = v.w;
    }
}

LINEAR_INLINE void multiply(int *sums, const uint *set, const stages_t *s, const uint step,
                            uint keep, const uint t, const uint tile_n)
{
    const ulong x = nv90_descriptor(s->tiles + s->slot * STAGE(t, tile_n));
    nv90_bytes_begin();
    UNROLL
    for (uint i = 0; i < 2 * PRODUCTS(tile_n); i++) {
        const uint k = i / PRODUCTS(tile_n); // of the step, 32 each
        int *to = sums + i % PRODUCTS(tile_n) * (t / 2);
        const ulong b = x + step * 4 + k * 2;
        if (t == 32)
            nv90_bytes_multiply_32(to, set + 4 * i, b, keep || k);
        else if (t == 64)
            nv90_bytes_multiply_64(to, set + 4 * i, b, keep || k);
        else if (t == 128)
            nv90_bytes_multiply_128(to, set + 4 * i, b, keep || k);
        else
            nv90_bytes_multiply_256(to, set + 4 * i, b, keep || k);
    }
    nv90_bytes_commit();
}
LINEAR_INLINE void held(uint *set, const uint tile_n)
{
    if (PAIR(tile_n))
        nv90_bytes_held_16(set);
    else
        nv90_bytes_held_8(set);
}
LINEAR_INLINE void end(int *sums, const uint t, const uint tile_n)
{
    UNROLL
    for (uint i = 0; i < PRODUCTS(tile_n); i++) {
        int *of = sums + i * (t / 2);
        if (t == 32)
            nv90_bytes_end_32(of);
        else if (t == 64)
            nv90_bytes_end_64(of);
        else if (t == 128)
            nv90_bytes_end_128(of);
        else
            nv90_bytes_end_256(of);
    }
}
// So many stages, of which the first is there. The weights of a step are read while the one before it
// runs. Returns the last stage, which is not free yet.
LINEAR_INLINE stages_t sum_stages(uint count, stages_t s, uint codes_at, int *sums, const uint t,
                                  const uint tile_n)
{
    stages_t before = s;
    uint sets[2 * MAX_SET];
    UNROLL
    for (uint i = SET(tile_n); i < 2 * SET(tile_n); i++)
        sets[i] = 0;
    load_step(sets, &s, 0, codes_at, t, tile_n);
    for (uint n = 0; n < count; n++) {
        stages_t after = s;
        UNROLL
        for (uint step = 0; step < STEPS; step++) {
            uint *set = sets + step * SET(tile_n), *next = sets + (1 - step) * SET(tile_n);
            multiply(sums, set, &s, step, step > 0 || n > 0, t, tile_n);
            held(next, tile_n);
            if (step == 0) {
                if (n > 0)
                    free_stage(&before);
                load_step(next, &s, 1, codes_at, t, tile_n);
            } else {
                // The next stage; at the end, this one again.
                if (n + 1 < count) {
                    after = stage_after(s, STAGES(t, tile_n));
                    nv90_barrier_wait(after.full + after.slot * 8, after.phase);
                }
                load_step(next, &after, 0, codes_at, t, tile_n);
            }
        }
        before = s;
        s = after;
    }
    end(sums, t, tile_n);
    return s;
}

// Stages of which this warpgroup has no part, and of which the first is there.
LINEAR_INLINE void pass_stages(uint count, stages_t *s, const uint stages)
{
    for (uint n = 0; n < count; n++) {
        if (n > 0)
            nv90_barrier_wait(s->full + s->slot * 8, s->phase);
        free_stage(s);
        *s = stage_after(*s, stages);
    }
}

// ---- The end of a tile
//
// Of 16 rows of x a warp has 16 columns of y, the rows of a block of W, or 32. They pass through the
// warp's own weights of the last stage.

typedef struct {
    local uchar *patch;   // BLOCK bytes for each of the warp's blocks
    local float *x_scale; // of the rows of the tile
    raw_group w_scale[2]; // of the blocks, a lane's rows
    uint block;           // the first
    place_t tile;
} end_t;

// Scales are asked for when a tile begins.
LINEAR_INLINE raw_group block_scales(const linear_t a, uint block)
{
    return load_group(a, min(block, (a.n - 1) / 16), 0, (uint)get_local_id(0) % 32 / 4);
}

// Sum i of eight that a lane has of 16 rows of x is of row end_row(i, lane), and of W's row g where i / 2
// is even, else g + 8.
LINEAR_INLINE uint end_row(uint i, uint lane)
{
    return i / 4 * 8 + lane % 4 * 2 + i % 2;
}

// Any y, bias and residual: 16 rows at a time, from one place of code for all sums.
LINEAR_INLINE void store_any_rows(linear_t a, const int *sums, end_t e, const uint t,
                                  const uint tile_n)
{
    if (PAIR(tile_n)) // no registers for divisions: the host gives these tiles only such rows
        a.y_rows.n1 = a.y_rows.n2 = a.residual_rows.n1 = a.residual_rows.n2 = 1;
    const uint parts = t / 16;
    local float *patch = (local float *)e.patch;
    _Pragma("unroll 1")
    for (uint pass = 0; pass < (PAIR(tile_n) ? 2 : 1) * parts; pass++) {
        const uint lane = hidden((uint)get_local_id(0)) % 32;
        const uint second = pass >= parts, block = e.block + second, from = pass % parts * 16;
        const float2 scales[2] = {group_scales(a, e.w_scale[0]), group_scales(a, e.w_scale[1])};
        const float2 scale = PAIR(tile_n) && second ? scales[1] : scales[0];
        int v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        UNROLL
        for (uint p = 0; p < (PAIR(tile_n) ? 2 : 1) * parts; p++) {
            if (p == pass) {
                UNROLL
                for (uint i = 0; i < 8; i++)
                    v[i] = sums[8 * p + i];
            }
        }
        float sum[8];
        UNROLL
        for (uint i = 0; i < 8; i++)
            sum[i] =
                w8a8_value(v[i], e.x_scale[from + end_row(i, lane)], i / 2 % 2 ? scale.y : scale.x);
        finish_patch(a, sum, e.tile.row + from, block * 16, patch, lane);
    }
}

// 64 rows at a time. Chunks of 16 bytes change places within their row, so that those of eight rows lie
// in different banks.
LINEAR_INLINE uint chunk_at(uint row, uint chunk, const uint tile_n)
{
    return PAIR(tile_n) ? row * 64 + (chunk ^ row / 2 % 4) * 16
                        : row * 32 + (chunk ^ row / 4 % 2) * 16;
}

LINEAR_INLINE void store_plain_rows(const linear_t a, const int *sums, end_t e, const uint t,
                                    const uint tile_n)
{
    const uint lane = hidden((uint)get_local_id(0)) % 32, chunks = PAIR(tile_n) ? 4 : 2;
    const uint patch = (uint)(size_t)e.patch;
    const uint put_row = lane / 16 * 8 + lane % 8, put_chunk = lane / 8 % 2;
    const uint get_row = lane / chunks, chunk = lane % chunks;
    const uint column = e.block * 16 + chunk * 8;
    float2 scale[2];
    scale[0] = group_scales(a, e.w_scale[0]);
    scale[1] = PAIR(tile_n) ? group_scales(a, e.w_scale[1]) : scale[0];
    global ushort *y = (global ushort *)a.y + a.y_rows.offset + a.first + column +
                       (ulong)(e.tile.row + get_row) * a.y_rows.s0;
    UNROLL
    for (uint from = 0; from < t; from += 64) {
        if (e.tile.row + from < a.m) {
            UNROLL
            for (uint p = from / 16; p < min(from + 64, t) / 16; p++) {
                float x[4];
                UNROLL
                for (uint i = 0; i < 4; i++)
                    x[i] = e.x_scale[p * 16 + end_row(i / 2 * 4 + i % 2, lane)];
                UNROLL
                for (uint b = 0; b < (PAIR(tile_n) ? 2 : 1); b++) {
                    uint v[4];
                    UNROLL
                    for (uint i = 0; i < 4; i++) {
                        const int *two = sums + b * (t / 2) + p * 8 + 2 * i;
                        const float w = i % 2 ? scale[b].y : scale[b].x;
                        const float low = w8a8_value(two[0], x[i / 2 * 2], w);
                        const float high = w8a8_value(two[1], x[i / 2 * 2 + 1], w);
                        v[i] = a.y_type == DT_F16 ? nv_float2_to_f16x2(low, high)
                                                  : nv_float2_to_bf16x2(low, high);
                    }
                    nv90_put_transposed(
                        patch + chunk_at(p % 4 * 16 + put_row, 2 * b + put_chunk, tile_n), v);
                }
            }
            nv90_warp_sync();
            UNROLL
            for (uint r = 0; r < min(t - from, 64u); r += 32 / chunks) {
                if (e.tile.row + from + r + get_row < a.m && column < a.n)
                    *(global uint4 *)y = nv90_get(patch + chunk_at(r + get_row, chunk, tile_n));
                y += 32 / chunks * a.y_rows.s0;
            }
            nv90_warp_sync();
        }
    }
}

LINEAR_INLINE void store_tile(const linear_t a, const int *sums, end_t e, const uint t,
                              const uint tile_n)
{
    nv90_warp_sync(); // the weights have been read
    if (is_plain(a))
        store_plain_rows(a, sums, e, t, tile_n);
    else
        store_any_rows(a, sums, e, t, tile_n);
    nv90_proxy_fence();
    nv90_warp_sync();
}

// meet: where parts of tiles meet.
typedef struct {
    uint whole, per;
    global float *sums;
    global uint *counts;
} meet_t;

LINEAR_INLINE bool is_whole(const linear_t a, const meet_t m, uint count, uint tile, int *sums,
                            const uint t, const uint tile_n)
{
    const uint stages = (a.k + STAGE_K - 1) / STAGE_K;
    const share_t share = {(uint)get_group_id(0), 0, 0, stages, m.whole, hidden(m.per)};
    const piece_t piece = {tile, 0, 0, 0};
    return count == stages ||
           split_meet(share, piece, m.sums, m.counts, sums, PAIR(tile_n) ? t : t / 2,
                      hidden((uint)get_local_id(0)) / 32, 8);
}

LINEAR_INLINE void multiply_tiles(const linear_t a, stages_t s, local uchar *tiles,
                                  local const told_t *told, local float *x_scales,
                                  global const float *x_scale, uint width, const meet_t meet,
                                  const uint t, const uint tile_n)
{
    const uint item = (uint)get_local_id(0), lane = item % 32,
               blocks = PRODUCTS(tile_n); // of a warp
    const uint codes_at = X_BYTES(t) + item / 32 * (blocks * BLOCK) + lane * 16;
    // A warpgroup may have nothing of a narrow tile, and leaves the tensor cores to the other.
    const bool works = nv90_uniform(item) / 128 * (blocks * 64) < width;
    for (;;) {
        // Numbers that descriptors are made of.
        s.slot = nv90_uniform(s.slot);
        nv90_barrier_wait(s.full + s.slot * 8, s.phase);
        const uint count = nv90_uniform(told[s.slot].stages);
        if (count == 0)
            break;
        if (!works) {
            pass_stages(count, &s, STAGES(t, tile_n));
            continue;
        }
        const uint first = hidden(item) / 32 * blocks;
        end_t e = {.x_scale = x_scales + item / 32 * t,
                   .block = told[s.slot].column / 16 + first,
                   .tile = {told[s.slot].row, told[s.slot].column}};
        float scale[8];
        UNROLL
        for (uint i = 0; i < t / 32; i++)
            scale[i] = x_scale[min(e.tile.row + 32 * i + lane, (uint)a.m - 1)];
        UNROLL
        for (uint i = 0; i < blocks; i++)
            e.w_scale[i] = block_scales(a, e.block + i);
        int sums[128];
        UNROLL
        for (uint i = 0; i < blocks * (t / 2); i++)
            sums[i] = 0;
        s = sum_stages(count, s, codes_at, sums, t, tile_n);
        // A warp may have none of a narrower tile.
        if (first * 16 < width && is_whole(a, meet, count, told[s.slot].tile, sums, t, tile_n)) {
            UNROLL
            for (uint i = 0; i < t / 32; i++)
                e.x_scale[32 * i + lane] = scale[i];
            e.patch = tiles + s.slot * STAGE(t, tile_n) + X_BYTES(t) + first * BLOCK;
            store_tile(a, sums, e, t, tile_n);
        }
        free_stage(&s);
        s = stage_after(s, STAGES(t, tile_n));
    }
}

#define W8A8(t, n_)                                                                                \
    kernel __attribute__((reqd_work_group_size(384, 1, 1)))                                        \
    RESIDENT(1) void linear_w8a8_wgmma_##t##x##n_(LINEAR_PARAMETERS, W8A8_PARAMETERS,              \
                                                  const uint width, SPLIT_PARAMETERS)              \
    {                                                                                              \
        local uchar tiles[STAGES(t, n_) * STAGE(t, n_)] __attribute__((aligned(1024)));            \
        local uchar map[NV90_MAP_BYTES] __attribute__((aligned(128)));                             \
        local ulong barriers[2 * STAGES(t, n_)];                                                   \
        local told_t told[STAGES(t, n_)];                                                          \
        local float x_scales[8 * t]; /* of each warp */                                            \
        local uint slot;                                                                           \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        const uint item = (uint)get_local_id(0), full = (uint)(size_t)barriers;                    \
        const stages_t s = {(uint)(size_t)tiles, full, full + STAGES(t, n_) * 8, 0, 0};            \
        if (item < STAGES(t, n_)) {                                                                \
            nv90_barrier_init(s.full + item * 8, 1);                                               \
            nv90_barrier_init(s.free + item * 8, 8); /* warps that multiply */                     \
        }                                                                                          \
        if (item == 256) {                                                                         \
            slot = nv90_take_slot();                                                               \
            nv90_map_rows((uint)(size_t)map, codes, code_pitch, (uint)m, code_pitch, t);           \
        }                                                                                          \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (item < 256) {                                                                          \
            nv90_registers_up(216);                                                                \
            const meet_t meet = {split_whole, split_per, split_sums + w8a8_floats(m, code_pitch),  \
                                 split_counts};                                                    \
            multiply_tiles(a, s, tiles, told, x_scales, scales_of_x(codes, code_pitch, m), width,  \
                           meet, t, n_);                                                           \
        } else {                                                                                   \
            nv90_registers_down(72);                                                               \
            const share_t share =                                                                  \
                SPLIT_SHARE(count_tiles(a, t, width), (k + STAGE_K - 1) / STAGE_K);                \
            if (item < 256 + 32) {                                                                 \
                const ulong published = nv90_map_of(slot, 0);                                      \
                nv90_map_publish(published, (uint)(size_t)map);                                    \
                copy_tiles(a, s, share, published, told, width, t, n_);                            \
            }                                                                                      \
        }                                                                                          \
        /* All boxes have arrived. */                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (hidden(item) == 256)                                                                   \
            nv90_give_slot(slot);                                                                  \
    }

W8A8(32, 128)
W8A8(64, 128)
W8A8(128, 128)
W8A8(256, 128)
W8A8(32, 256)
W8A8(64, 256)
W8A8(128, 256)
