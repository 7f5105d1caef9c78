// The linear layer on matrix units, for many rows of x: f16 or bf16 x and W, f32 sums.
//
// A work-group of WAVES_M x WAVES_N waves computes a tile of y, each wave FRAGMENTS_M x FRAGMENTS_N
// fragments of it. Tiles of x and W pass through local memory, CHUNKS 16-byte chunks of K at a time,
// STAGES of them on their way at once; a wave loads the fragments of its next step while it
// multiplies those of this one. The build chooses (src/ops/linear_tiled.c):
//
//     -DX=f16 | bf16   and the matrix unit, of common/fragment.clh; the copies, of
//     common/async_copy.clh (held copies have 2 stages); WAVES_M, WAVES_N, FRAGMENTS_M, FRAGMENTS_N,
//     CHUNKS, STAGES; PATCH, the fragments side by side that a wave stores at once
//
// Rows beyond M and N are computed from the last row and not stored; K is filled up with zeros.
#define FRAGMENT_TYPE X

#include "common/async_copy.clh"
#include "common/fragment.clh"
#include "linear/linear_finish.clh"

#define ITEMS    (WAVES_M * WAVES_N * FRAGMENT_WAVE)
#define WAVE_M   (FRAGMENTS_M * FRAGMENT_SIZE)
#define WAVE_N   (FRAGMENTS_N * FRAGMENT_SIZE)
#define TILE_M   (WAVES_M * WAVE_M)
#define TILE_N   (WAVES_N * WAVE_N)
#define STEPS    (CHUNKS / FRAGMENT_CHUNKS)
#define X_COPIES (TILE_M * CHUNKS / ITEMS) // of an item
#define W_COPIES (TILE_N * CHUNKS / ITEMS)
#define W_TILE   (TILE_M * CHUNKS) // where W begins in a stage
#define STAGE    ((TILE_M + TILE_N) * CHUNKS)

// At the end each wave turns its sums into rows, through a patch of local memory. The pitch spreads
// the rows over the banks.
#define PATCH_N     (PATCH * FRAGMENT_SIZE)
#define PATCH_PITCH (PATCH_N + 8)
#define PATCHES     (WAVES_M * WAVES_N * FRAGMENT_SIZE * PATCH_PITCH / 4) // chunks
#define LOCAL       (STAGES * STAGE > PATCHES ? STAGES * STAGE : PATCHES)

typedef struct {
    global const uint4 *x, *w;
    uint x_at[X_COPIES], w_step, to;
} copies_t;

static inline copies_t copies_of(const linear_t a, ulong row, uint column)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    const uint last_row = (uint)min(a.m - 1 - row, (ulong)TILE_M);
    c.to = tile_index(item / CHUNKS, item % CHUNKS, CHUNKS);
    c.x = (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset + row * a.x_rows.s0);
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++)
        c.x_at[i] = min((item + i * ITEMS) / CHUNKS, last_row) * (uint)(a.x_rows.s0 / 8) +
                    item % CHUNKS;
    c.w = (global const uint4 *)(a.data + (column + item / CHUNKS) * a.pitch) + item % CHUNKS;
    c.w_step = ITEMS / CHUNKS * (uint)(a.pitch / 16);
    return c;
}

static inline void fetch(const copies_t *c, uint tile, local uint4 *stage)
{
    uint4 held;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++)
        async_copy(stage + c->to + i * ITEMS, c->x + (c->x_at[i] + tile * CHUNKS), &held);
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++)
        async_copy(stage + c->to + W_TILE + i * ITEMS, c->w + (i * c->w_step + tile * CHUNKS),
                   &held);
}

static inline fragment_a load_x(fragment_unit unit, local const uint4 *stage, uint step, uint i)
{
    return fragment_load_a(unit, stage, CHUNKS, unit.wave % WAVES_M * WAVE_M + i * FRAGMENT_SIZE,
                           step * FRAGMENT_CHUNKS);
}
static inline fragment_b load_w(fragment_unit unit, local const uint4 *stage, uint step, uint j)
{
    return fragment_load_b(unit, stage + W_TILE, CHUNKS,
                           unit.wave / WAVES_M * WAVE_N + j * FRAGMENT_SIZE,
                           step * FRAGMENT_CHUNKS);
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(RESIDENT_WG) void linear_tiled(LINEAR_PARAMETERS)
{
    local uint4 tiles[LOCAL];
    FRAGMENT_UNIT(unit, WAVES_M * WAVES_N);
    const linear_t a = LINEAR_ARGUMENTS;
    const ulong2 tile = tile_of();
    const ulong row = m_first + tile.y * TILE_M;
    const uint first_column = (uint)tile.x * TILE_N, column = min(first_column, n - TILE_N);
    const uint count = k / (CHUNKS * 8);

    copies_t copies = copies_of(a, row, column);
    FRAGMENT_UNROLL
    for (uint s = 0; s < STAGES; s++) {
        if (s < count)
            fetch(&copies, s, tiles + s * STAGE);
        async_commit();
    }
    async_wait(STAGES - 1);
    barrier(CLK_LOCAL_MEM_FENCE);

    fragment_acc acc[FRAGMENTS_M][FRAGMENTS_N];
    FRAGMENT_UNROLL
    for (uint i = 0; i < FRAGMENTS_M; i++) {
        FRAGMENT_UNROLL
        for (uint j = 0; j < FRAGMENTS_N; j++)
            acc[i][j] = fragment_zero();
    }
    fragment_a x_now[FRAGMENTS_M];
    fragment_b w_now[2];
    FRAGMENT_UNROLL
    for (uint i = 0; i < FRAGMENTS_M; i++)
        x_now[i] = load_x(unit, tiles, 0, i);
    w_now[0] = load_w(unit, tiles, 0, 0);
    uint slot = 0; // the stage that holds tile t
    _Pragma("unroll 1")
    for (uint t = 0; t < count; t++) {
        FRAGMENT_UNROLL
        for (uint step = 0; step < STEPS; step++) {
            FRAGMENT_UNROLL
            for (uint j = 0; j + 1 < FRAGMENTS_N; j++) {
                w_now[(j + 1) % 2] = load_w(unit, tiles + slot * STAGE, step, j + 1);
                FRAGMENT_UNROLL
                for (uint i = 0; i < FRAGMENTS_M; i++)
                    fragment_multiply_add(unit, &acc[i][j], x_now[i], w_now[j % 2]);
            }
            if (step + 1 == STEPS) {
                async_wait(STAGES - 2);
                barrier(CLK_LOCAL_MEM_FENCE);
                if (t + STAGES < count)
                    fetch(&copies, t + STAGES, tiles + slot * STAGE);
                async_commit();
                slot = slot + 1 < STAGES ? slot + 1 : 0;
            }
            const uint next = (step + 1) % STEPS;
            w_now[0] = load_w(unit, tiles + slot * STAGE, next, 0);
            FRAGMENT_UNROLL
            for (uint i = 0; i < FRAGMENTS_M; i++) {
                fragment_multiply_add(unit, &acc[i][FRAGMENTS_N - 1], x_now[i], w_now[1]);
                x_now[i] = load_x(unit, tiles + slot * STAGE, next, i);
            }
        }
    }

    // One pass for every patch: sums in registers must be named by constants, the rest is there once.
    local float *patch = (local float *)tiles + unit.wave * FRAGMENT_SIZE * PATCH_PITCH;
    _Pragma("unroll 1")
    for (uint pass = 0; pass < FRAGMENTS_M * FRAGMENTS_N / PATCH; pass++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        FRAGMENT_UNROLL
        for (uint f = 0; f < FRAGMENTS_M * FRAGMENTS_N; f++) {
            if (f / PATCH != pass)
                continue;
            FRAGMENT_UNROLL
            for (uint e = 0; e < FRAGMENT_ELEMENTS; e++)
                patch[fragment_row(unit, e) * PATCH_PITCH + f % PATCH * FRAGMENT_SIZE +
                      fragment_column(unit, e)] =
                    fragment_get(acc[f / FRAGMENTS_N][f % FRAGMENTS_N], e);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const ulong r0 = row + unit.wave % WAVES_M * WAVE_M +
                         pass * PATCH / FRAGMENTS_N * FRAGMENT_SIZE;
        const uint c0 = column + unit.wave / WAVES_M * WAVE_N +
                        pass * PATCH % FRAGMENTS_N * FRAGMENT_SIZE;
        _Pragma("unroll 1")
        for (uint v = unit.lane; v < FRAGMENT_SIZE * PATCH_N / 8; v += FRAGMENT_WAVE) {
            const uint r = v / (PATCH_N / 8), c = v % (PATCH_N / 8) * 8;
            if (r0 + r < m && c0 + c >= first_column)
                finish8(a, r0 + r, c0 + c, patch + r * PATCH_PITCH + c);
        }
    }
}
