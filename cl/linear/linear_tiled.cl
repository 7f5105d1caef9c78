// The linear layer on matrix units, for many rows of x: f16 or bf16 x and W, f32 sums; or W8A8, codes
// of x and of W, 32-bit sums.
//
// A work-group of WAVES_M x WAVES_N waves computes a tile of y, each wave FRAGMENTS_M x FRAGMENTS_N
// fragments of it. Tiles of x and W pass through local memory, CHUNKS 16-byte chunks of K at a time,
// STAGES of them on their way at once; a wave loads the fragments of its next step while it
// multiplies those of this one. The build chooses (src/ops/linear_tiled.c):
//
//     -DX=f16 | bf16 | s8   and the matrix unit, of common/fragment.clh; the copies, of
//     common/async_copy.clh (held copies have 2 stages); WAVES_M, WAVES_N, FRAGMENTS_M, FRAGMENTS_N,
//     CHUNKS, STAGES; PATCH, the fragments side by side that a wave stores at once
//
// Rows beyond M and N are computed from the last row and not stored; K is filled up with zeros.
#define FRAGMENT_TYPE X

#include "common/async_copy.clh"
#include "common/fragment.clh"
#include "linear/linear_finish.clh"
#include "linear/linear_w8a8.clh"

#if FRAGMENT_IS_S8 // CHUNKS is 4: rows of codes have whole tiles
#define CHUNK      16 // elements
#define PARAMETERS LINEAR_PARAMETERS, W8A8_PARAMETERS
#else
#define CHUNK      8
#define PARAMETERS LINEAR_PARAMETERS
#endif
#define ITEMS    (WAVES_M * WAVES_N * FRAGMENT_WAVE)
#define WAVE_M   (FRAGMENTS_M * FRAGMENT_SIZE)
#define WAVE_N   (FRAGMENTS_N * FRAGMENT_SIZE)
#define TILE_M   (WAVES_M * WAVE_M)
#define TILE_N   (WAVES_N * WAVE_N)
#define STEPS    (CHUNKS / FRAGMENT_CHUNKS)
#define X_COPIES (TILE_M * CHUNKS / ITEMS) // of an item
#define W_COPIES (TILE_N * CHUNKS / ITEMS)
#define MULTIPLICATIONS (FRAGMENT_PARTS * FRAGMENTS_M * FRAGMENTS_N) // of a step
#define W_TILE   (TILE_M * CHUNKS) // where W begins in a stage
#define STAGE    ((TILE_M + TILE_N) * CHUNKS)

// At the end each wave turns its sums into rows, through a patch of local memory. The pitch spreads
// the rows over the banks.
#define PATCH_N     (PATCH * FRAGMENT_SIZE)
#define PATCH_PITCH (PATCH_N + 8)
#define PATCHES     (WAVES_M * WAVES_N * FRAGMENT_SIZE * PATCH_PITCH / 4) // chunks
#define LOCAL       (STAGES * STAGE > PATCHES ? STAGES * STAGE : PATCHES)

// What an item copies of every stage: the same chunk of rows ITEMS / CHUNKS apart, a multiple of 8,
// so that all are swizzled alike.
typedef struct {
    global const uchar *x[X_COPIES]; // beginnings of rows
    global const uint4 *w0;
    uint w[W_COPIES]; // chunks from w0; the host sees to it that they fit
    uint chunk, to;
    uint4 held[X_COPIES + W_COPIES];
} copies_t;

static inline copies_t copies_of(const linear_t a, global const uchar *x, ulong pitch, ulong row,
                                 uint column)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    c.chunk = item % CHUNKS;
    c.to = tile_index(item / CHUNKS, c.chunk, CHUNKS);
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++) {
        const ulong r = min(row + (item + i * ITEMS) / CHUNKS, a.m - 1);
        c.x[i] = x + (FRAGMENT_IS_S8 ? r * pitch : 2 * row_begin(a.x_rows, r));
    }
    c.w0 = (global const uint4 *)(a.data + column * a.pitch);
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++)
        c.w[i] = min((item + i * ITEMS) / CHUNKS, a.n - 1 - column) * (uint)(a.pitch / 16);
    return c;
}

static inline void fetch(const linear_t a, copies_t *c, uint tile, local uint4 *stage)
{
    const uint chunk = tile * CHUNKS + c->chunk;
    local uint4 *to = stage + c->to;
    if (FRAGMENT_IS_S8 || (a.x_access == X_ALIGNED && chunk < a.k / 8)) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < X_COPIES; i++)
            async_copy(to + i * ITEMS, (global const uint4 *)c->x[i] + chunk, &c->held[i]);
    } else {
        FRAGMENT_UNROLL
        for (uint i = 0; i < X_COPIES; i++)
            async_put(to + i * ITEMS, gather(a, (global const ushort *)c->x[i], chunk * 8),
                      &c->held[i]);
    }
    if (chunk < (a.k + CHUNK - 1) / CHUNK) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < W_COPIES; i++)
            async_copy(to + W_TILE + i * ITEMS, c->w0 + (c->w[i] + chunk), &c->held[X_COPIES + i]);
    } else {
        FRAGMENT_UNROLL
        for (uint i = 0; i < W_COPIES; i++)
            async_put(to + W_TILE + i * ITEMS, (uint4)(0u), &c->held[X_COPIES + i]);
    }
}

// A tile of which every chunk is read as it is.
static inline void fetch_whole(copies_t *c, uint tile, local uint4 *stage)
{
    const uint chunk = tile * CHUNKS + c->chunk;
    local uint4 *to = stage + c->to;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++)
        async_copy(to + i * ITEMS, (global const uint4 *)c->x[i] + chunk, &c->held[i]);
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++)
        async_copy(to + W_TILE + i * ITEMS, c->w0 + (c->w[i] + chunk), &c->held[X_COPIES + i]);
}

static inline void land(const copies_t *c, local uint4 *stage)
{
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES + W_COPIES; i++)
        async_land(stage + c->to + i * ITEMS, c->held[i]);
}

// The operands of one step of a wave.
typedef struct {
    fragment_a x[FRAGMENTS_M];
    fragment_b w[FRAGMENTS_N];
} operands_t;

static inline operands_t load_step(fragment_unit unit, local const uint4 *stage, uint step)
{
    operands_t o;
    FRAGMENT_UNROLL
    for (uint i = 0; i < FRAGMENTS_M; i++)
        o.x[i] = fragment_load_a(unit, stage, CHUNKS,
                                 unit.wave % WAVES_M * WAVE_M + i * FRAGMENT_SIZE,
                                 step * FRAGMENT_CHUNKS);
    FRAGMENT_UNROLL
    for (uint j = 0; j < FRAGMENTS_N; j++)
        o.w[j] = fragment_load_b(unit, stage + W_TILE, CHUNKS,
                                 unit.wave / WAVES_M * WAVE_N + j * FRAGMENT_SIZE,
                                 step * FRAGMENT_CHUNKS);
    return o;
}

static inline void multiply_step(fragment_unit unit, fragment_acc acc[FRAGMENTS_M][FRAGMENTS_N],
                                 const operands_t *o)
{
    FRAGMENT_UNROLL
    for (uint f = 0; f < FRAGMENT_PARTS * FRAGMENTS_M * FRAGMENTS_N; f++) {
        const uint part = f / (FRAGMENTS_M * FRAGMENTS_N);
        const uint i = f / FRAGMENTS_N % FRAGMENTS_M, j = f % FRAGMENTS_N;
        fragment_multiply_part(unit, &acc[i][j], o->x[i], o->w[j], part);
    }
}

// Multiplies tile t, which lies in stage *slot and whose first step is in *now; loads the first step of
// the next; starts the copy of the tile STAGES further on, of which all chunks are `whole`, or which
// may not be.
LINEAR_INLINE void pass_tile(fragment_unit unit, const linear_t a, copies_t *copies,
                             local uint4 *tiles, fragment_acc acc[FRAGMENTS_M][FRAGMENTS_N],
                             operands_t *now, uint *slot, uint t, uint count, const bool whole)
{
    FRAGMENT_UNROLL
    for (uint step = 1; step < STEPS; step++) {
        const operands_t next = load_step(unit, tiles + *slot * STAGE, step);
        multiply_step(unit, acc, now);
        *now = next;
    }
    const uint following = *slot + 1 < STAGES ? *slot + 1 : 0;
    land(copies, tiles + following * STAGE);
    async_wait(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
    // Tile t + 1 is there, and all waves have loaded the last of tile t. Past the end what is loaded
    // here is not used.
    if (whole)
        fetch_whole(copies, t + STAGES, tiles + *slot * STAGE);
    else if (t + STAGES < count)
        fetch(a, copies, t + STAGES, tiles + *slot * STAGE);
    async_commit();
    *slot = following;
    const operands_t next = load_step(unit, tiles + *slot * STAGE, 0);
    multiply_step(unit, acc, now);
    *now = next;
#ifdef FRAGMENT_MFMA
    if (whole) {
        MFMA_ORDER(MFMA_LOCAL_READ, FRAGMENTS_M + FRAGMENTS_N, 2)
        MFMA_REST(MULTIPLICATIONS - (FRAGMENTS_M + FRAGMENTS_N) / 2 - X_COPIES - W_COPIES);
        MFMA_ORDER(MFMA_LOCAL_WRITE, X_COPIES + W_COPIES, 1)
        MFMA_ORDER(MFMA_GLOBAL_READ, X_COPIES + W_COPIES, 1)
        MFMA_ORDER(MFMA_LOCAL_READ, FRAGMENTS_M + FRAGMENTS_N, 2)
        MFMA_REST(MULTIPLICATIONS - (FRAGMENTS_M + FRAGMENTS_N) / 2 - X_COPIES - W_COPIES);
    }
#endif
}

#if FRAGMENT_IS_S8
#define VALUE(sum, row, column)                                                                    \
    w8a8_value(sum, scales_of_x(codes, code_pitch, m)[min(row, m - 1)],                            \
               scale_at(a, min(column, n - 1), 0).x)
#else
#define VALUE(sum, row, column) (sum)
#endif

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void linear_tiled(PARAMETERS)
{
    local uint4 tiles[LOCAL];
    FRAGMENT_UNIT(unit, WAVES_M * WAVES_N);
    const linear_t a = LINEAR_ARGUMENTS;
    const ulong2 tile = tile_of();
    const ulong row = m_first + tile.y * TILE_M;
    const uint column = (uint)tile.x * TILE_N;
    const uint count = (k + CHUNKS * CHUNK - 1) / (CHUNKS * CHUNK);

#if FRAGMENT_IS_S8
    copies_t copies = copies_of(a, codes, code_pitch, row, column);
#else
    copies_t copies = copies_of(a, x, 0, row, column);
#endif
    FRAGMENT_UNROLL
    for (uint s = 0; s < STAGES; s++) {
        if (s > 0)
            land(&copies, tiles + (s - 1) * STAGE);
        if (s < count)
            fetch(a, &copies, s, tiles + s * STAGE);
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
    operands_t now = load_step(unit, tiles, 0);
    uint slot = 0, t = 0; // the stage that holds tile t
#ifdef ASYNC_COPY_HELD
    // Of whole chunks in their places: without branches, so that compilers put the copies between the
    // multiplications.
    const uint whole = FRAGMENT_IS_S8 || x_access == X_ALIGNED ? k / (CHUNKS * CHUNK) : 0;
    for (; t + STAGES < whole; t++)
        pass_tile(unit, a, &copies, tiles, acc, &now, &slot, t, count, true);
#endif
    for (; t < count; t++)
        pass_tile(unit, a, &copies, tiles, acc, &now, &slot, t, count, false);

    // One pass for every patch: sums in registers must be named by constants, the rest is there once.
    local float *patch = (local float *)tiles + unit.wave * FRAGMENT_SIZE * PATCH_PITCH;
    _Pragma("unroll 1")
    for (uint pass = 0; pass < FRAGMENTS_M * FRAGMENTS_N / PATCH; pass++) {
        const ulong r0 = row + unit.wave % WAVES_M * WAVE_M +
                         pass * PATCH / FRAGMENTS_N * FRAGMENT_SIZE;
        const uint c0 = column + unit.wave / WAVES_M * WAVE_N +
                        pass * PATCH % FRAGMENTS_N * FRAGMENT_SIZE;
        barrier(CLK_LOCAL_MEM_FENCE);
        FRAGMENT_UNROLL
        for (uint f = 0; f < FRAGMENTS_M * FRAGMENTS_N; f++) {
            if (f / PATCH != pass)
                continue;
            FRAGMENT_UNROLL
            for (uint e = 0; e < FRAGMENT_ELEMENTS; e++) {
                const uint r = fragment_row(unit, e);
                const uint c = f % PATCH * FRAGMENT_SIZE + fragment_column(unit, e);
                patch[r * PATCH_PITCH + c] = VALUE(
                    fragment_get(acc[f / FRAGMENTS_N][f % FRAGMENTS_N], e), r0 + r, c0 + c);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        _Pragma("unroll 1")
        for (uint v = unit.lane; v < FRAGMENT_SIZE * PATCH_N / 8; v += FRAGMENT_WAVE) {
            const uint r = v / (PATCH_N / 8), c = v % (PATCH_N / 8) * 8;
            if (r0 + r < m && c0 + c < n)
                finish8(a, r0 + r, c0 + c, patch + r * PATCH_PITCH + c);
        }
    }
}
