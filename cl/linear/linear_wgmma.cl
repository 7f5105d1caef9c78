// The linear layer on wgmma, for compute capability 9.0 and many rows of x: f16 or bf16 x and W,
// f32 sums. From its sm_90a image only; docs/matrix-units.md explains it.
//
// A work-group is three warpgroups. Two multiply, 64 rows of x each; the third brings tiles of x and
// W, 64 of K at a time, into one of STAGES places in local memory. Two barriers a stage tell that it
// is full, and that it is free again. Work-groups stay and take one tile of y after the other.
//
//     -DX=f16 | bf16
#define NV90_TYPE X

#include "common/nv.clh"
#include "common/nv90.clh"
#include "linear/linear_common.clh"
#include "linear/linear_rows.clh"
#include "linear/linear_wgmma.clh"
#include "linear/linear_wgmma_end.clh"
#include "linear/linear_wgmma_start.clh"

#define X_COPIES (TILE_M * 8 / 128) // of an item
#define W_COPIES (TILE_N * 8 / 128)

// ---- The tiles of y

// Tiles have TILE_N columns until `whole`, TILE_N / cut after that: 1, 2 or 4 in one.
typedef struct {
    uint count, whole, cut;
} order_t;

LINEAR_INLINE order_t order_of(const linear_t a, uint cut)
{
    uint all = ((uint)a.m + TILE_M - 1) / TILE_M * ((a.n + TILE_N - 1) / TILE_N);
    asm volatile("" : "+r"(all)); // made by each warpgroup, lest ptxas keep it in memory
    const uint rest = cut > 1 ? all % (uint)get_num_groups(0) : 0, whole = all - rest;
    return (order_t){whole + rest * cut, whole, cut};
}

LINEAR_INLINE tile_t tile_at(const linear_t a, const order_t o, uint index)
{
    const uint rows = ((uint)a.m + TILE_M - 1) / TILE_M, columns = (a.n + TILE_N - 1) / TILE_N;
    const uint beyond = index < o.whole ? 0 : index - o.whole;
    const uint id = index < o.whole ? index : o.whole + beyond / o.cut;
    const uint2 at = tile_in_bands(rows, columns, id);
    const uint width = index < o.whole ? TILE_N : TILE_N / o.cut;
    return (tile_t){at.x * TILE_M, at.y * TILE_N + beyond % o.cut * width, width};
}

// Stages of a work-group's first tile that those who multiply bring.
LINEAR_INLINE uint brought_of(const linear_t a, const order_t o)
{
    const uint first = (uint)get_group_id(0);
    const bool is_there = first < o.count && tile_at(a, o, first).column < a.n;
    return is_there ? first_stages((a.k + TILE_K - 1) / TILE_K) : 0;
}

// ---- The warpgroup that copies

// An item copies the same chunk of rows 16 apart, which are all swizzled alike. What is beyond the
// matrix is not copied: it makes sums that are not stored.
typedef struct {
    uint chunk, to;        // to: from the beginning of a tile
    uint row;              // of x, the first
    uint x_count, w_count; // copies within the matrix
    global const uchar *w;
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, tile_t tile)
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

LINEAR_INLINE void copy_w(const linear_t a, const copies_t *c, uint k, uint to)
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
LINEAR_INLINE void copy_x(const linear_t a, const copies_t *c, uint k, uint to)
{
    _Pragma("unroll 1")
    for (uint i = 0; i < c->x_count; i++) {
        const ulong row = row_begin(a.x_rows, c->row + 16 * i);
        nv90_put(to + i * 16 * NV90_ROW,
                 gather(a, (global const ushort *)a.x + row, k + c->chunk * 8));
    }
}

// A stage is declared full when the copies of the one after it are under way.
LINEAR_INLINE void copy_tiles(const linear_t a, stages_t s, const order_t o)
{
    uint last = STAGES;
    EACH_TILE(index, o.count) {
        const tile_t tile = tile_at(a, o, index);
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

// The same in boxes, of x by one item and of W by another, after what bring_first brings. map: its own.
LINEAR_INLINE void box_tiles(const linear_t a, stages_t s, const order_t o, ulong map, bool is_x)
{
    uint brought = brought_of(a, o);
    skip_stages(&s, brought);
    EACH_TILE(index, o.count) {
        const tile_t tile = tile_at(a, o, index);
        if (tile.column >= a.n)
            continue;
        for (uint k = brought * TILE_K; k < a.k; k += TILE_K) {
            const uint to = s.tiles + s.slot * STAGE, full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            nv90_barrier_expect(full, is_x ? X_BYTES : tile.width * NV90_ROW);
            if (is_x)
                nv90_box_rows(to, map, k, tile.row, full);
            for (uint i = 0; !is_x && i < tile.width; i += 64)
                nv90_box_columns(to + X_BYTES + i * NV90_ROW, map, k, (tile.column + i) / 32, full);
            next_stage(&s);
        }
        brought = 0;
    }
}

// ---- The warpgroups that multiply

LINEAR_INLINE void multiply_tiles(const linear_t a, stages_t s, const order_t o)
{
    const uint item = (uint)get_local_id(0);
    const uint x_at = nv90_uniform(item / 128) * (64 * NV90_ROW);
    EACH_TILE(index, o.count) {
        const tile_t tile = tile_at(a, o, index);
        if (tile.column >= a.n)
            continue;
        float sums[TILE_N / 2];
        UNROLL
        for (uint i = 0; i < TILE_N / 2; i++)
            sums[i] = 0.0f;
        if (tile.width == 256)
            multiply_tile_256(sums, &s, a.k, x_at, X_BYTES);
        else if (tile.width == 128)
            multiply_tile_128(sums, &s, a.k, x_at, X_BYTES);
        else
            multiply_tile_64(sums, &s, a.k, x_at, X_BYTES);
        store_tile(a, sums, tile, item);
    }
}

// cut: into how many parts, 1, 2 or 4, the tiles of the last round are cut.
kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void linear_wgmma(LINEAR_PARAMETERS, const uint cut)
{
    BOX_LOCALS(2);
    local uint slot[1];
    const linear_t a = LINEAR_ARGUMENTS;
    const uint item = (uint)get_local_id(0);
    // Whether the copy unit can: one stride between rows, on 16-byte boundaries; whole blocks of W.
    const bool boxes = x_access == X_ALIGNED && x_rows.n1 * x_rows.n2 <= 1 && x_rows.s0 > 0 &&
                       x_rows.s0 % 8 == 0 && n % 32 == 0;
    init_stages(item, s, boxes ? 2 : 128);

    if (item < 256) {
        if (boxes) {
            const order_t o = order_of(a, cut);
            bring_first(a, tile_at(a, o, (uint)get_group_id(0)), 0, 0, s, brought_of(a, o));
        }
        nv90_registers_up(216);
        const order_t o = order_of(a, cut);
        multiply_tiles(a, s, o);
    } else {
        nv90_registers_down(72);
        const order_t o = order_of(a, cut);
        if (!boxes) {
            copy_tiles(a, s, o);
        } else {
            MAKE_MAPS(item, map, a, x_rows, TILE_M, item == W_ITEM,
                      nv90_map_columns(map + NV90_MAP_BYTES, data, k, n / 32, pitch, 2), slot);
            if (item < SLOT_ITEM) {
                const ulong published = publish_map(item, map, slot);
                if (item == X_ITEM)
                    box_tiles(a, s, o, published, true);
                else if (item == W_ITEM)
                    box_tiles(a, s, o, published, false);
            }
        }
    }
    // All boxes have arrived.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (boxes && item == SLOT_ITEM)
        nv90_give_slot(slot[0]);
}
