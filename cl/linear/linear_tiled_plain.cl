// linear_tiled.cl for plain rows of x, NVIDIA's matrix unit and asynchronous copies: rows of x on
// 16-byte boundaries and one stride apart, K in whole stages, N a multiple of 8 and at least a
// tile's. The sums have the bits of linear_tiled.cl's. A warp has one set of operands: fragments of
// W are asked for one ahead, those of x replaced as the last of W is multiplied by them. The build
// chooses
//
//     -DX=f16 | bf16   -DFRAGMENT_MMA -DASYNC_COPY_CP, or -DFRAGMENT_EMULATED instead of the latter
#define FRAGMENT_TYPE X

#include "common/async_copy.clh"
#include "common/fragment.clh"
#include "linear/linear_finish.clh"

#define WARPS_M   2
#define WARPS_N   2
#define FRAGMENTS 4 // in either direction, of a warp
#define CHUNKS    4 // of 16 bytes along K, in a stage
#define STAGES    3

#define ITEMS  (WARPS_M * WARPS_N * FRAGMENT_WAVE)
#define WARP   (FRAGMENTS * FRAGMENT_SIZE) // rows and columns
#define TILE   (2 * WARP)
#define STEPS  (CHUNKS / FRAGMENT_CHUNKS)
#define COPIES (TILE * CHUNKS / ITEMS) // of an item, of x and of W
#define W_TILE (TILE * CHUNKS)         // where W begins in a stage
#define STAGE  (2 * TILE * CHUNKS)

// At the end each warp turns its sums into rows, 16 at a time. The pitch spreads them over the
// banks.
#define PATCH_PITCH (WARP + 8)

typedef struct {
    global const uint4 *x, *w; // this item's first chunks
    uint x_at[COPIES];         // chunks from there, of rows that exist
    uint w_step, to;
} copies_t;

static inline copies_t copies_of(const linear_t a, ulong row, uint column)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    const uint last = (uint)min(a.m - 1 - row, (ulong)TILE);
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0) +
          item % CHUNKS;
    FRAGMENT_UNROLL
    for (uint i = 0; i < COPIES; i++)
        c.x_at[i] = min((item + i * ITEMS) / CHUNKS, last) * (uint)(a.x_rows.s0 / 8);
    c.w = (global const uint4 *)(a.data + (column + item / CHUNKS) * a.pitch) + item % CHUNKS;
    c.w_step = ITEMS / CHUNKS * (uint)(a.pitch / 16);
    c.to = tile_index(item / CHUNKS, item % CHUNKS, CHUNKS);
    return c;
}

static inline void fetch(const copies_t *c, uint stage, local uint4 *to)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < COPIES; i++)
        async_copy(to + c->to + i * ITEMS, c->x + (c->x_at[i] + stage * CHUNKS), &held);
    FRAGMENT_UNROLL
    for (uint i = 0; i < COPIES; i++)
        async_copy(to + c->to + W_TILE + i * ITEMS, c->w + (i * c->w_step + stage * CHUNKS), &held);
}

static inline fragment_a load_x(fragment_unit unit, local const uint4 *stage, uint step, uint i)
{
    return fragment_load_a(unit, stage, CHUNKS, unit.wave % WARPS_M * WARP + i * FRAGMENT_SIZE,
                           step * FRAGMENT_CHUNKS);
}
static inline fragment_b load_w(fragment_unit unit, local const uint4 *stage, uint step, uint j)
{
    return fragment_load_b(unit, stage + W_TILE, CHUNKS,
                           unit.wave / WARPS_M * WARP + j * FRAGMENT_SIZE, step * FRAGMENT_CHUNKS);
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
RESIDENT(2) void linear_tiled_plain(LINEAR_PARAMETERS)
{
    local uint4 tiles[STAGES * STAGE];
    FRAGMENT_UNIT(unit, WARPS_M * WARPS_N);
    const linear_t a = LINEAR_ARGUMENTS;
    const ulong2 tile = tile_of();
    const ulong row = m_first + tile.y * TILE;
    // The last tile ends with W, and begins within the one before it.
    const uint first_column = (uint)tile.x * TILE, column = min(first_column, n - TILE);
    const uint count = k / (CHUNKS * 8);

    const copies_t copies = copies_of(a, row, column);
    FRAGMENT_UNROLL
    for (uint s = 0; s < STAGES; s++) {
        if (s < count)
            fetch(&copies, s, tiles + s * STAGE);
        async_commit();
    }
    async_wait(STAGES - 1);
    barrier(CLK_LOCAL_MEM_FENCE);

    fragment_acc acc[FRAGMENTS][FRAGMENTS];
    fragment_a x_now[FRAGMENTS];
    fragment_b w_now[2];
    FRAGMENT_UNROLL
    for (uint i = 0; i < FRAGMENTS; i++) {
        FRAGMENT_UNROLL
        for (uint j = 0; j < FRAGMENTS; j++)
            acc[i][j] = fragment_zero();
        x_now[i] = load_x(unit, tiles, 0, i);
    }
    w_now[0] = load_w(unit, tiles, 0, 0);
    uint slot = 0; // the stage that holds tile t
    _Pragma("unroll 1")
    for (uint t = 0; t < count; t++) {
        FRAGMENT_UNROLL
        for (uint step = 0; step < STEPS; step++) {
            FRAGMENT_UNROLL
            for (uint j = 0; j + 1 < FRAGMENTS; j++) {
                w_now[(j + 1) % 2] = load_w(unit, tiles + slot * STAGE, step, j + 1);
                FRAGMENT_UNROLL
                for (uint i = 0; i < FRAGMENTS; i++)
                    fragment_multiply_add(unit, &acc[i][j], x_now[i], w_now[j % 2]);
            }
            if (step + 1 == STEPS) {
                async_wait(STAGES - 2);
                barrier(CLK_LOCAL_MEM_FENCE);
                // Tile t + 1 is there, and all warps have loaded the last of tile t. Past the end
                // what is loaded here is not used.
                if (t + STAGES < count)
                    fetch(&copies, t + STAGES, tiles + slot * STAGE);
                async_commit();
                slot = slot + 1 < STAGES ? slot + 1 : 0;
            }
            const uint next = (step + 1) % STEPS;
            w_now[0] = load_w(unit, tiles + slot * STAGE, next, 0);
            FRAGMENT_UNROLL
            for (uint i = 0; i < FRAGMENTS; i++) {
                fragment_multiply_add(unit, &acc[i][FRAGMENTS - 1], x_now[i], w_now[1]);
                x_now[i] = load_x(unit, tiles + slot * STAGE, next, i);
            }
        }
    }

    // One pass for every row of fragments: sums in registers must be named by constants, the rest
    // is there once.
    local float *patch = (local float *)tiles + unit.wave * FRAGMENT_SIZE * PATCH_PITCH;
    _Pragma("unroll 1")
    for (uint pass = 0; pass < FRAGMENTS; pass++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        FRAGMENT_UNROLL
        for (uint f = 0; f < FRAGMENTS * FRAGMENTS; f++) {
            if (f / FRAGMENTS != pass)
                continue;
            FRAGMENT_UNROLL
            for (uint e = 0; e < FRAGMENT_ELEMENTS; e++)
                patch[fragment_row(unit, e) * PATCH_PITCH + f % FRAGMENTS * FRAGMENT_SIZE +
                      fragment_column(unit, e)] =
                    fragment_get(acc[f / FRAGMENTS][f % FRAGMENTS], e);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const ulong r0 = row + unit.wave % WARPS_M * WARP + pass * FRAGMENT_SIZE;
        const uint c0 = column + unit.wave / WARPS_M * WARP;
        _Pragma("unroll 1")
        for (uint v = unit.lane; v < FRAGMENT_SIZE * WARP / 8; v += FRAGMENT_WAVE) {
            const uint r = v / (WARP / 8), c = v % (WARP / 8) * 8;
            if (r0 + r < m && c0 + c >= first_column)
                finish8(a, r0 + r, c0 + c, patch + r * PATCH_PITCH + c);
        }
    }
}
