// The linear layer on wgmma, for compute capability 9.0 and many rows of x: f16 or bf16 x and W, f32
// sums. From its sm_90a image only; docs/matrix-units.md explains it.
//
// A work-group is three warpgroups. Two multiply, 64 rows of x each; the third brings tiles of x and W,
// 64 of K at a time, into one of STAGES places in local memory. Two barriers a stage tell that it is
// full, and that it is free again. Work-groups stay and take one tile of y after the other.
//
//     -DX=f16 | bf16
#define NV90_TYPE X

#include "common/nv.clh"
#include "common/nv90.clh"
#include "linear/linear_common.clh"
#include "linear/linear_rows.clh"

#define TILE_M   128
#define TILE_N   256
#define TILE_K   64
#define STAGES   4
#define X_BYTES  (TILE_M * NV90_ROW)
#define STAGE    ((TILE_M + TILE_N) * NV90_ROW)
#define X_COPIES (TILE_M * 8 / 128) // of an item
#define W_COPIES (TILE_N * 8 / 128)

#define UNROLL   _Pragma("unroll")

#define pack8(T)    LLMK_PASTE(T, _pack8)
#define dtype_of(T) LLMK_PASTE(T, _dtype)
enum { f16_dtype = DT_F16, bf16_dtype = DT_BF16 };

// ---- The tiles of y

typedef struct {
    uint row, column, width;
} tile_t;

// Tile `index` of those of TILE_N columns until `whole`, of TILE_N / cut after that. Bands of BAND
// rows of tiles, column by column: those that are computed at one time share x and W in the cache.
#define BAND 8
static inline tile_t tile_at(const linear_t a, uint index, uint whole, uint cut)
{
    const uint rows = ((uint)a.m + TILE_M - 1) / TILE_M, columns = (a.n + TILE_N - 1) / TILE_N;
    const uint beyond = index < whole ? 0 : index - whole;
    const uint id = index < whole ? index : whole + beyond / cut;
    const uint first = id / (BAND * columns) * BAND, within = id % (BAND * columns);
    const uint height = min(rows - first, (uint)BAND);
    const uint width = index < whole ? TILE_N : TILE_N / cut;
    return (tile_t){(first + within % height) * TILE_M,
                    within / height * TILE_N + beyond % cut * width, width};
}

// ---- Stages

typedef struct {
    uint tiles, full, free; // addresses: of stage 0 and its barriers
    uint slot, phase;       // of the stage that comes next
} stages_t;

static inline void next_stage(stages_t *s)
{
    s->slot++;
    if (s->slot == STAGES) {
        s->slot = 0;
        s->phase ^= 1;
    }
}

// ---- The warpgroup that copies

// An item copies the same chunk of rows 16 apart, which are all swizzled alike. What is beyond the
// matrix is not copied: it makes sums that are not stored.
typedef struct {
    uint chunk, to;       // to: from the beginning of a tile
    uint row;             // of x, the first
    uint x_count, w_count; // copies within the matrix
    global const uchar *w;
} copies_t;

static inline copies_t copies_of(const linear_t a, tile_t tile)
{
    copies_t c;
    const uint item = (uint)get_local_id(0) % 128, row = item / 8;
    c.chunk = item % 8;
    c.to = nv90_offset(row, c.chunk);
    c.row = tile.row + row;
    c.x_count = c.row < a.m ? min(((uint)a.m - c.row + 15) / 16, (uint)X_COPIES) : 0;
    const uint column = tile.column + nv90_column(row);
    const uint left = a.n - min(column, a.n);
    c.w_count = min(left / 32 * 2 + (left % 32 > 0) + (left % 32 > 4), tile.width / 16);
    c.w = a.data + column * a.pitch;
    return c;
}

static inline void copy_w(const linear_t a, const copies_t *c, uint k, uint to)
{
    const uint at = k + c->chunk * 8, bytes = at < a.k ? 16 : 0;
    global const uchar *w = c->w + (ulong)at * 2;
    UNROLL
    for (uint i = 0; i < W_COPIES; i++) {
        nv90_copy(to + X_BYTES + i * 16 * NV90_ROW, w, bytes, i, c->w_count);
        w += (i % 2 ? 28 : 4) * a.pitch; // nv90_column: rows 16 apart, then 32
    }
}

// Any x.
static inline void copy_x(const linear_t a, const copies_t *c, uint k, uint to)
{
    _Pragma("unroll 1")
    for (uint i = 0; i < c->x_count; i++) {
        const ulong row = row_begin(a.x_rows, c->row + 16 * i);
        nv90_put(to + i * 16 * NV90_ROW,
                 gather(a, (global const ushort *)a.x + row, k + c->chunk * 8));
    }
}

// A stage is declared full when the copies of the one after it are under way.
static inline void copy_tiles(const linear_t a, stages_t s, uint whole, uint cut, uint tiles)
{
    uint last = STAGES;
    for (uint index = (uint)get_group_id(0); index < tiles; index += (uint)get_num_groups(0)) {
        const tile_t tile = tile_at(a, index, whole, cut);
        if (tile.column >= a.n)
            continue;
        const copies_t copies = copies_of(a, tile);
        for (uint k = 0; k < a.k; k += TILE_K) {
            const uint to = s.tiles + s.slot * STAGE + copies.to;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            copy_w(a, &copies, k, to);
            copy_x(a, &copies, k, to);
            nv90_copies_commit();
            if (last < STAGES) {
                nv90_copies_land(1);
                nv90_barrier_arrive(s.full + last * 8);
            }
            last = s.slot;
            next_stage(&s);
        }
    }
    nv90_copies_land(0);
    if (last < STAGES)
        nv90_barrier_arrive(s.full + last * 8);
}

// The same by one item, in boxes. map: of x, then of W.
static inline void box_tiles(const linear_t a, stages_t s, uint whole, uint cut, uint tiles, ulong map)
{
    for (uint index = (uint)get_group_id(0); index < tiles; index += (uint)get_num_groups(0)) {
        const tile_t tile = tile_at(a, index, whole, cut);
        if (tile.column >= a.n)
            continue;
        for (uint k = 0; k < a.k; k += TILE_K) {
            const uint to = s.tiles + s.slot * STAGE, full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            nv90_barrier_expect(full, X_BYTES + tile.width * NV90_ROW);
            nv90_box_rows(to, map, k, tile.row, full);
            for (uint i = 0; i < tile.width; i += 64)
                nv90_box_columns(to + X_BYTES + i * NV90_ROW, map + NV90_MAP_BYTES, k,
                                 (tile.column + i) / 32, full);
            next_stage(&s);
        }
    }
}

// ---- The warpgroups that multiply

static inline void free_stage(const stages_t *s, uint slot)
{
    if (get_local_id(0) % 32 == 0)
        nv90_barrier_arrive(s->free + slot * 8);
}

// The stage before is free as soon as its products are over, while those of this one run.
#define MULTIPLY_TILE(width)                                                                       \
    static inline void multiply_tile_##width(float *sums, stages_t *s, uint k, uint x_at)          \
    {                                                                                              \
        uint last = 0;                                                                             \
        for (uint at = 0; at < k; at += TILE_K) {                                                  \
            const uint stage = s->tiles + s->slot * STAGE;                                         \
            nv90_barrier_wait(s->full + s->slot * 8, s->phase);                                    \
            nv90_multiply_##width(sums, nv90_descriptor(stage + x_at),                             \
                                  nv90_descriptor(stage + X_BYTES), at);                           \
            if (at > 0)                                                                            \
                free_stage(s, last);                                                               \
            last = s->slot;                                                                        \
            next_stage(s);                                                                         \
        }                                                                                          \
        nv90_end_##width(sums);                                                                    \
        free_stage(s, last);                                                                       \
    }
MULTIPLY_TILE(256)
MULTIPLY_TILE(128)
MULTIPLY_TILE(64)

// y[row, column ...] of eight columns, as finish() does one. vectors: all may be read and written so.
static inline void finish8(const linear_t a, ulong row, uint column, float8 sums, bool vectors)
{
    const ulong c = (ulong)a.first + column;
    if (vectors && column + 8 <= a.n) {
        if (a.bias)
            sums += load8_any(a.bias, a.bias_type, a.bias_rows.offset + c);
        if (a.residual)
            sums += load8_any(a.residual, a.residual_type, row_begin(a.residual_rows, row) + c);
        const ulong at = row_begin(a.y_rows, row) + c;
        if (a.y_type == DT_F32)
            f32_store8((global float *)a.y, at, sums);
        else
            *(global uint4 *)((global ushort *)a.y + at) =
                a.y_type == DT_F16 ? f16_pack8(sums) : bf16_pack8(sums);
    } else {
        _Pragma("unroll 1")
        for (uint i = 0; i < 8 && column + i < a.n; i++) {
            finish(a, row, column + i, sums.s0);
            sums = sums.s12345677;
        }
    }
}

// Whether rows of eight columns from `column` on, a multiple of 8, lie on 16-byte boundaries.
static inline bool has_vectors(const linear_t a, ulong row, uint column)
{
    const ulong c = (ulong)a.first + column;
    return is_vector(a.y, a.y_type, row_begin(a.y_rows, row) + c, a.y_rows.inner) &&
           (!a.bias ||
            is_vector(a.bias, a.bias_type, a.bias_rows.offset + c, a.bias_rows.inner)) &&
           (!a.residual || is_vector(a.residual, a.residual_type,
                                     row_begin(a.residual_rows, row) + c, a.residual_rows.inner));
}

// Eight neighbouring sums of a lane, number f of 16: of its first row where f is even, its second
// where f is odd.
static inline float8 eight_of(const float *sums, uint f)
{
    const float *from = sums + f / 2 * 16 + f % 2 * 2;
    return (float8)(from[0], from[1], from[4], from[5], from[8], from[9], from[12], from[13]);
}

// Sums in registers must be named by constants: what is common is unrolled, the rest is there once.
static inline void store_tile(const linear_t a, const float *sums, tile_t tile, uint item)
{
    const uint row = tile.row + item / 32 * 16 + item % 32 / 4;
    const uint column = tile.column + item % 4 * 8;
    const bool vectors[2] = {row < a.m && has_vectors(a, row, column),
                             row + 8 < a.m && has_vectors(a, row + 8, column)};
    if (!a.bias && !a.residual && a.y_type == dtype_of(X) && vectors[0] && vectors[1] &&
        tile.column + tile.width <= a.n) {
        global ushort *y = (global ushort *)a.y + a.first + column;
        global ushort *y0 = y + row_begin(a.y_rows, row), *y1 = y + row_begin(a.y_rows, row + 8);
        UNROLL
        for (uint f = 0; f < TILE_N / 16; f++)
            if (f < tile.width / 16)
                *(global uint4 *)((f % 2 ? y1 : y0) + f / 2 * 32) = pack8(X)(eight_of(sums, f));
        return;
    }
    _Pragma("unroll 1")
    for (uint pass = 0; pass < tile.width / 16; pass++) {
        float8 eight = (float8)(0.0f);
        UNROLL
        for (uint f = 0; f < TILE_N / 16; f++)
            if (f == pass)
                eight = eight_of(sums, f);
        const uint r = row + pass % 2 * 8, c = column + pass / 2 * 32;
        if (r < a.m && c < a.n)
            finish8(a, r, c, eight, pass % 2 ? vectors[1] : vectors[0]);
    }
}

static inline void multiply_tiles(const linear_t a, stages_t s, uint whole, uint cut, uint tiles)
{
    const uint item = (uint)get_local_id(0);
    const uint x_at = item / 128 * (64 * NV90_ROW);
    for (uint index = (uint)get_group_id(0); index < tiles; index += (uint)get_num_groups(0)) {
        const tile_t tile = tile_at(a, index, whole, cut);
        if (tile.column >= a.n)
            continue;
        float sums[TILE_N / 2];
        if (tile.width == 256)
            multiply_tile_256(sums, &s, a.k, x_at);
        else if (tile.width == 128)
            multiply_tile_128(sums, &s, a.k, x_at);
        else
            multiply_tile_64(sums, &s, a.k, x_at);
        store_tile(a, sums, tile, item);
    }
}

// cut: into how many parts, 1, 2 or 4, the tiles of the last round are cut.
kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void linear_wgmma(LINEAR_PARAMETERS, const uint cut)
{
    local uchar tiles[STAGES * STAGE] __attribute__((aligned(1024)));
    local uchar maps[2 * NV90_MAP_BYTES] __attribute__((aligned(128)));
    local ulong barriers[2 * STAGES];
    local uint slot;
    const linear_t a = LINEAR_ARGUMENTS;
    const uint item = (uint)get_local_id(0);
    const uint full = (uint)(size_t)barriers, map = (uint)(size_t)maps;
    const stages_t s = {(uint)(size_t)tiles, full, full + STAGES * 8, 0, 0};
    // Whether the copy unit can: one stride between rows, on 16-byte boundaries, and whole blocks of W.
    const bool boxes = x_access == X_ALIGNED && x_rows.n1 * x_rows.n2 <= 1 && x_rows.s0 > 0 &&
                       x_rows.s0 % 8 == 0 && n % 32 == 0;
    if (item < STAGES) {
        nv90_barrier_init(s.full + item * 8, boxes ? 1 : 128); // items that copy
        nv90_barrier_init(s.free + item * 8, 8);               // warps that multiply
    }
    if (boxes && item == 256) {
        slot = nv90_take_slot();
        nv90_map_rows(map, (global const ushort *)x + x_rows.offset, k, (uint)m, x_rows.s0 * 2);
        nv90_map_columns(map + NV90_MAP_BYTES, data, k, n / 32, pitch);
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const uint all = ((uint)m + TILE_M - 1) / TILE_M * ((n + TILE_N - 1) / TILE_N);
    const uint rest = cut > 1 ? all % (uint)get_num_groups(0) : 0;
    const uint whole = all - rest, count = whole + rest * cut;
    if (item < 256) {
        nv90_registers_up(216);
        multiply_tiles(a, s, whole, cut, count);
    } else {
        nv90_registers_down(72);
        if (!boxes) {
            copy_tiles(a, s, whole, cut, count);
        } else if (item < 256 + 32) {
            const ulong published = nv90_map_of(slot, 0);
            nv90_map_publish(published, map);
            nv90_map_publish(published + NV90_MAP_BYTES, map + NV90_MAP_BYTES);
            if (item == 256)
                box_tiles(a, s, whole, cut, count, published);
        }
    }
    // All boxes have arrived.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (boxes && item == 256)
        nv90_give_slot(slot);
}
