// Grouped products on matrix units, through common/fragment.clh, for groups of many rows: f32 sums of
// f16 or bf16 x and weights of its type, or codes of 4 to 8 bits. A work-group of 2 x 2 waves computes a
// tile of 64 rows of a group by 128 of W. Of gated pairs, fragments of rows of the gate and of up
// alternate, so that a wave has both products of an output. The build chooses
//
//     -DX=f16 | bf16   the matrix unit, of common/fragment.clh   the copies, of common/async_copy.clh
//     -DW=u4 | s8 | q4_k | q6_k | u4_nv | s8_nv                  grouped_fragments_codes.clh
//     none: W is of X's type                                     grouped_fragments_rows.clh
//
// No early return of a whole work-group: PoCL 3 then forgets conditions after barriers.
#define FRAGMENT_TYPE X
#if defined(FRAGMENT_MMA) && !defined(FRAGMENT_EMULATED)
#include "common/nv.clh"
#endif
#include "common/async_copy.clh"
#include "common/fragment.clh"
#include "grouped_linear/grouped_common.clh"
#include "linear/linear_rows.clh"

#define TILE_M      64
#define TILE_N      128
#define CHUNKS      4 // of 16 bytes of halves along K that are copied at once
#define STAGE_K     (CHUNKS * 8)
#define WAVES       4
#define ITEMS       (WAVES * FRAGMENT_WAVE)
#define FRAGMENTS_M (TILE_M / 2 / FRAGMENT_SIZE)
#define FRAGMENTS_N (TILE_N / 2 / FRAGMENT_SIZE)
#define STEPS       (CHUNKS / FRAGMENT_CHUNKS)
#define X_COPIES    (TILE_M * CHUNKS / ITEMS) // of an item
#define W_COPIES    (TILE_N * CHUNKS / ITEMS)
#define W_TILE      (TILE_M * CHUNKS) // where W begins in a stage
#define STAGE       ((TILE_M + TILE_N) * CHUNKS)

// At the end a wave turns two fragments side by side into rows, so many at a time, through local memory.
#define PATCH_ROWS  16
#define PATCH_PITCH (2 * FRAGMENT_SIZE + 4)
#define PATCH_SIZE  (PATCH_ROWS * PATCH_PITCH)
#define PATCHES     (WAVES * PATCH_SIZE / 4) // chunks
#define LOCAL       (STAGES * STAGE > PATCHES ? STAGES * STAGE : PATCHES)

// What an item copies of every stage: the same chunk of rows ITEMS / CHUNKS apart, a multiple of 8, so
// that all are swizzled alike. This of x; grouped_fragments_rows.clh or _codes.clh of W.
LINEAR_INLINE void fetch_x(const linear_t a, global const ushort *const *rows, uint chunk,
                           local uint4 *to, uint4 *held)
{
    const bool vectors = a.x_access == X_ALIGNED && chunk < a.k / 8;
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES; i++) {
        if (vectors)
            async_copy(to + i * ITEMS, (global const uint4 *)rows[i] + chunk, held + i);
        else
            async_put(to + i * ITEMS, gather(a, rows[i], chunk * 8), held + i);
    }
}

// copies_t: what an item copies of every stage, fetch() and land(). sums_t: a wave's sums, and how the
// products of a step become part of them.
#ifdef W
#include "grouped_linear/grouped_fragments_codes.clh"
#else
#include "grouped_linear/grouped_fragments_rows.clh"
#endif

LINEAR_INLINE void multiply_tile(fragment_unit unit, local const uint4 *stage, sums_t *sums)
{
    FRAGMENT_UNROLL
    for (uint step = 0; step < STEPS; step++) {
        fragment_a x[FRAGMENTS_M];
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENTS_M; i++)
            x[i] = fragment_load_a(unit, stage, CHUNKS,
                                   unit.wave % 2 * (TILE_M / 2) + i * FRAGMENT_SIZE,
                                   step * FRAGMENT_CHUNKS);
        FRAGMENT_UNROLL
        for (uint j = 0; j < FRAGMENTS_N; j++) {
            const fragment_b w = fragment_load_b(unit, stage + W_TILE, CHUNKS,
                                                 unit.wave / 2 * (TILE_N / 2) + j * FRAGMENT_SIZE,
                                                 step * FRAGMENT_CHUNKS);
            FRAGMENT_UNROLL
            for (uint i = 0; i < FRAGMENTS_M; i++)
                fragment_multiply_add(unit, &sums->acc[i][j], x[i], w);
        }
        end_step(unit, sums, x, step);
    }
}

// The products of a tile's rows, `count` stages deep: copies run STAGES - 1 stages ahead.
LINEAR_INLINE void multiply(fragment_unit unit, const linear_t a, copies_t *copies,
                            local uint4 *tiles, uint count, sums_t *sums)
{
    FRAGMENT_UNROLL
    for (uint s = 0; s < STAGES; s++) {
        if (s > 0)
            land(copies, tiles + (s - 1) * STAGE, s - 1);
        if (s < count)
            fetch(a, copies, s, tiles + s * STAGE);
        async_commit();
    }
    async_wait(STAGES - 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint t = 0, slot = 0; t < count; t++) {
        const uint following = slot + 1 < STAGES ? slot + 1 : 0;
        begin_stage(sums, t, slot);
        multiply_tile(unit, tiles + slot * STAGE, sums);
        land(copies, tiles + following * STAGE, following);
        async_wait(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (t + STAGES < count)
            fetch(a, copies, t + STAGES, tiles + slot * STAGE);
        async_commit();
        slot = following;
    }
}

// Of two fragments, j and the next, PATCH_ROWS rows in this wave's patch.
#define SLICES (FRAGMENT_SIZE / PATCH_ROWS) // of a fragment
LINEAR_INLINE void put_patch(fragment_unit unit, local float *patch, const sums_t *sums, uint pass)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    FRAGMENT_UNROLL
    for (uint f = 0; f < FRAGMENTS_M * FRAGMENTS_N; f++) {
        if (f / 2 != pass / SLICES)
            continue;
        FRAGMENT_UNROLL
        for (uint e = 0; e < FRAGMENT_ELEMENTS; e++) {
            const uint row = fragment_row(unit, e);
            if (row / PATCH_ROWS == pass % SLICES)
                patch[row % PATCH_ROWS * PATCH_PITCH + f % 2 * FRAGMENT_SIZE +
                      fragment_column(unit, e)] = sum_at(sums, f, e);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

#define PASSES (FRAGMENTS_M * FRAGMENTS_N / 2 * SLICES)
// The row of a pass's first, and the fragment's column.
#define PASS_ROW(pass)      ((pass) / SLICES * 2 / FRAGMENTS_N * FRAGMENT_SIZE + (pass) % SLICES * PATCH_ROWS)
#define PASS_FRAGMENT(pass) ((pass) / SLICES * 2 % FRAGMENTS_N)

// What both kernels begin with: this work-group's tile, and an item's rows of x and of W, of which row r of
// the tile is W_ROW(r) of an expert's. W_OF(r, name): data, scales or zeros, where that row lies.
#define BEGIN(W_ROW, W_OF)                                                                         \
    local uint4 tiles[LOCAL];                                                                      \
    FRAGMENT_UNIT(unit, WAVES);                                                                    \
    const tile_t tile =                                                                            \
        tile_at((uint)get_group_id(0), schedule, schedule_groups, first, last, rows, TILE_M);      \
    const uint item = (uint)get_local_id(0);                                                       \
    const linear_t a = GROUPED_EXPERT(tile.group);                                                 \
    copies_t copies;                                                                               \
    copies.chunk = item % CHUNKS;                                                                  \
    copies.to = tile_index(item / CHUNKS, copies.chunk, CHUNKS);                                   \
    const bool some = tile.rows > 0 && tile.group != empty;                                        \
    FRAGMENT_UNROLL                                                                                \
    for (uint i = 0; i < X_COPIES; i++) {                                                          \
        const uint r = tile.begin + min((item + i * ITEMS) / CHUNKS, max(tile.rows, 1u) - 1);      \
        copies.x[i] = (global const ushort *)x;                                                    \
        if (some)                                                                                  \
            copies.x[i] += row_begin(x_rows, x_row_of(r, source, source_rows, fan, x_count));      \
    }                                                                                              \
    const uint w_row0 = some ? (tile.group - first) * n : 0;                                       \
    FIND_W(W_ROW, W_OF);                                                                           \
    sums_t sums;                                                                                   \
    BEGIN_SUMS;                                                                                    \
    multiply(unit, a, &copies, tiles, some ? (k + STAGE_K - 1) / STAGE_K : 0, &sums);              \
    end_sums(unit, &sums);                                                                         \
    local float *patch = (local float *)tiles + unit.wave * PATCH_SIZE;                            \
    const uint row0 = unit.wave % 2 * (TILE_M / 2)

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void grouped_fragments(GROUPED_PARAMETERS)
{
#define PLAIN_ROW(r) min((uint)get_group_id(1) * TILE_N + (r), n - 1)
#define PLAIN_OF(r, name) name
    BEGIN(PLAIN_ROW, PLAIN_OF);
    const uint column0 = (uint)get_group_id(1) * TILE_N + unit.wave / 2 * (TILE_N / 2);
    _Pragma("unroll 1")
    for (uint pass = 0; pass < PASSES; pass++) {
        put_patch(unit, patch, &sums, pass);
        const uint r0 = row0 + PASS_ROW(pass);
        const uint c0 = column0 + PASS_FRAGMENT(pass) * FRAGMENT_SIZE;
        _Pragma("unroll 1")
        for (uint v = unit.lane; v < PATCH_ROWS * 2 * FRAGMENT_SIZE; v += FRAGMENT_WAVE) {
            const uint r = v / (2 * FRAGMENT_SIZE), c = v % (2 * FRAGMENT_SIZE), column = c0 + c;
            if (r0 + r >= tile.rows || column >= n)
                continue;
            const float b =
                some ? bias_of(bias, bias_type, bias_rows, tile.group, column) : 0.0f;
            store_any(y, y_type, row_begin(y_rows, tile.begin + r0 + r) + column * y_rows.inner,
                      patch[r * PATCH_PITCH + c] + b);
        }
    }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
grouped_fragments_gated(GROUPED_PARAMETERS, GATED_PARAMETERS)
{
#define IS_UP(r)     ((r) / FRAGMENT_SIZE % 2)
#define GATED_OUT(r) ((r) / (2 * FRAGMENT_SIZE) * FRAGMENT_SIZE + (r) % FRAGMENT_SIZE)
#define GATED_ROW(r)                                                                               \
    (min((uint)get_group_id(1) * (TILE_N / 2) + GATED_OUT(r), outputs - 1) * step +                \
     (IS_UP(r) ? up_first : 0))
#define GATED_OF(r, name) (IS_UP(r) ? up_##name : name)
    BEGIN(GATED_ROW, GATED_OF);
    const uint column0 = (uint)get_group_id(1) * (TILE_N / 2) + unit.wave / 2 * (TILE_N / 4);
    _Pragma("unroll 1")
    for (uint pass = 0; pass < PASSES; pass++) {
        put_patch(unit, patch, &sums, pass);
        const uint r0 = row0 + PASS_ROW(pass);
        const uint f0 = column0 + PASS_FRAGMENT(pass) / 2 * FRAGMENT_SIZE;
        _Pragma("unroll 1")
        for (uint v = unit.lane; v < PATCH_ROWS * FRAGMENT_SIZE; v += FRAGMENT_WAVE) {
            const uint r = v / FRAGMENT_SIZE, c = v % FRAGMENT_SIZE, f = f0 + c;
            if (r0 + r >= tile.rows || f >= outputs)
                continue;
            local const float *at = patch + r * PATCH_PITCH + c;
            const float gate = at[0] + bias_of(bias, bias_type, bias_rows, tile.group, f);
            const float up = at[FRAGMENT_SIZE] +
                             bias_of(up_bias, up_bias_type, up_bias_rows, tile.group, f);
            store_any(y, y_type, row_begin(y_rows, tile.begin + r0 + r) + f * y_rows.inner,
                      gated(activation, gate, up, limit, alpha));
        }
    }
}
