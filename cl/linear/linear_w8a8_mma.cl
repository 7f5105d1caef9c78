// W8A8 on mma.sync m16n8k32 of bytes. The weights are the instruction's A, in the layout s8/nv: a
// lane's 16 bytes of a tile are its operand, but for the codes' offset of 128. x is B, its codes in
// the order of w8a8_nv_place, so that a lane's operands of two instructions are 16 bytes. The build
// chooses -DFRAGMENT_MMA, perhaps -DFRAGMENT_EMULATED, and
//
//     -DWAVES=4   a work-group computes 128 columns of y for 32, 64 or 128 rows
//     -DWAVES=8   256 columns for 128 rows, which need three quarters as much from the cache as 128
//                 columns; one such work-group fills a compute unit
//
// Copies of the next stages run while a stage is multiplied, as in linear_packed.cl.
#define FRAGMENT_TYPE s8
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/async_copy.clh"
#include "common/fragment.clh"
#include "linear/linear_finish.clh"
#include "linear/linear_nv.clh"
#include "linear/linear_w8a8.clh"

#define ITEMS  (WAVES * FRAGMENT_WAVE)
#define TILE_N (WAVES * 32)
#define STEP_K 64
#define STAGES (WAVES == 8 ? 2 : 3) // 48 KiB

// A stage of local memory: x, 4 chunks of 16 bytes a row, then W, 64 chunks for each block of 16 rows.
#define X_CHUNKS (STEP_K / 16)
#define LANES    64
#define W_CHUNKS (TILE_N / 16 * LANES)
#define STAGE(rows)  ((rows)*X_CHUNKS + W_CHUNKS)
#define X_COPIES(rows) ((rows)*X_CHUNKS / ITEMS)
#define W_COPIES     (W_CHUNKS / ITEMS)
#define MAX_X_COPIES 4
#define MAX_TILES    4 // blocks of 16 rows of W, of a wave
#define MAX_PARTS    8 // eights of rows of x, of a wave

// At the end the waves' sums lie in local memory as rows of y, so many eights of rows at a time.
#define END_PARTS (WAVES == 8 ? 2 : 4)
#define SUM_PITCH(tiles) ((tiles)*16 + 4)

typedef struct {
    global const uint4 *x[MAX_X_COPIES], *w[W_COPIES]; // chunks of the first step
} copies_t;

LINEAR_INLINE copies_t copies_of(const linear_t a, global const uchar *codes, uint code_pitch,
                                 ulong row, uint block, const uint rows)
{
    copies_t c;
    const uint item = (uint)get_local_id(0);
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(rows); i++) {
        const uint at = item + i * ITEMS;
        const ulong r = min(row + at / X_CHUNKS, a.m - 1);
        c.x[i] = (global const uint4 *)(codes + r * code_pitch) + at % X_CHUNKS;
    }
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++) {
        const uint at = item + i * ITEMS;
        const uint b = min(block + at / LANES, (a.n - 1) / 16);
        c.w[i] = (global const uint4 *)(a.data + b * a.pitch) + at % LANES;
    }
    return c;
}

LINEAR_INLINE void fetch(const copies_t *c, uint step, local uint4 *stage, const uint rows)
{
    uint4 held;
    local uint4 *to = stage + get_local_id(0);
    FRAGMENT_UNROLL
    for (uint i = 0; i < X_COPIES(rows); i++)
        async_copy(to + i * ITEMS, c->x[i] + step * X_CHUNKS, &held);
    to += rows * X_CHUNKS;
    FRAGMENT_UNROLL
    for (uint i = 0; i < W_COPIES; i++)
        async_copy(to + i * ITEMS, c->w[i] + step * LANES, &held);
}

typedef struct {
    int v[MAX_TILES][MAX_PARTS][4];
} sums_t;

LINEAR_INLINE void multiply(fragment_unit unit, sums_t *s, local const uint4 *x,
                            local const uint4 *w, const uint tiles, const uint parts)
{
    uint b[MAX_PARTS][4];
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        const uint4 v = x[p * 8 * X_CHUNKS + unit.lane]; // row lane / 4, chunk lane % 4
        b[p][0] = v.x;
        b[p][1] = v.y;
        b[p][2] = v.z;
        b[p][3] = v.w;
    }
    FRAGMENT_UNROLL
    for (uint half_k = 0; half_k < 2; half_k++) {
        FRAGMENT_UNROLL
        for (uint n = 0; n < tiles; n++) {
            const uint4 v = w[n * LANES + half_k * 32 + unit.lane] ^ 0x80808080u;
            const uint operand[4] = {v.x, v.z, v.y, v.w};
            FRAGMENT_UNROLL
            for (uint p = 0; p < parts; p++)
                mma_instruction(unit, s->v[n][p], operand, b[p] + 2 * half_k);
        }
    }
}

// Of the wave's parts `first` ... first + END_PARTS - 1: rows of y from `row` on, of m; columns from
// `column` on.
LINEAR_INLINE void put_rows(const linear_t a, fragment_unit unit, const sums_t *s,
                            local float *sums, global const float *x_scale, ulong row, uint column,
                            const uint tiles, const uint first)
{
    FRAGMENT_UNROLL
    for (uint n = 0; n < tiles; n++) {
        float scale[2];
        FRAGMENT_UNROLL
        for (uint h = 0; h < 2; h++)
            scale[h] = nv_scale_at(a, min(column + n * 16 + unit.lane / 4 + h * 8, a.n - 1), 0).x;
        FRAGMENT_UNROLL
        for (uint p = 0; p < END_PARTS; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++) {
                const uint r = p * 8 + mma_column(unit, e);
                sums[r * SUM_PITCH(tiles) + n * 16 + mma_row(unit, e)] = w8a8_value(
                    s->v[n][first + p][e], x_scale[min(row + r, a.m - 1)], scale[e / 2]);
            }
        }
    }
}

LINEAR_INLINE void w8a8(const linear_t a, fragment_unit unit, local uint4 *memory,
                        global uchar *codes, uint code_pitch, ulong m_first, const uint waves_m,
                        const uint tiles, const uint parts)
{
    const uint rows = waves_m * parts * 8;
    const ulong2 tile = tile_of();
    const ulong row = m_first + tile.y * rows;
    const uint column = (uint)tile.x * TILE_N;
    const uint wave_m = unit.wave % waves_m, wave_n = unit.wave / waves_m;
    const uint steps = (a.k + STEP_K - 1) / STEP_K;

    const copies_t copies = copies_of(a, codes, code_pitch, row, column / 16, rows);
    FRAGMENT_UNROLL
    for (uint i = 0; i < STAGES - 1; i++) {
        if (i < steps)
            fetch(&copies, i, memory + i * STAGE(rows), rows);
        async_commit();
    }
    sums_t s;
    FRAGMENT_UNROLL
    for (uint n = 0; n < tiles; n++) {
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                s.v[n][p][e] = 0;
        }
    }
    uint slot = 0; // the stage of this step
    for (uint step = 0; step < steps; step++) {
        async_wait(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);
        // The stage before this one is free: all waves are past it.
        if (step + STAGES - 1 < steps)
            fetch(&copies, step + STAGES - 1,
                  memory + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE(rows), rows);
        async_commit();
        local const uint4 *stage = memory + slot * STAGE(rows);
        multiply(unit, &s, stage + wave_m * parts * 8 * X_CHUNKS,
                 stage + rows * X_CHUNKS + wave_n * tiles * LANES, tiles, parts);
        slot = slot + 1 < STAGES ? slot + 1 : 0;
    }

    async_wait(0);
    global const float *x_scale = scales_of_x(codes, code_pitch, a.m);
    local float *sums = (local float *)memory + unit.wave * (END_PARTS * 8 * SUM_PITCH(tiles));
    const uint wave_column = column + wave_n * tiles * 16;
    FRAGMENT_UNROLL
    for (uint first = 0; first < parts; first += END_PARTS) {
        const ulong wave_row = row + (wave_m * parts + first) * 8;
        barrier(CLK_LOCAL_MEM_FENCE);
        put_rows(a, unit, &s, sums, x_scale, wave_row, wave_column, tiles, first);
        barrier(CLK_LOCAL_MEM_FENCE);
        _Pragma("unroll 1")
        for (uint i = unit.lane; i < END_PARTS * 8 * tiles * 2; i += FRAGMENT_WAVE) {
            const uint r = i / (tiles * 2), c = i % (tiles * 2) * 8;
            if (wave_row + r < a.m && wave_column + c < a.n)
                finish8(a, wave_row + r, wave_column + c, sums + r * SUM_PITCH(tiles) + c);
        }
    }
}

#define W8A8(name, bound, waves_m, tiles, parts)                                                   \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) bound void name(LINEAR_PARAMETERS,   \
                                                                              W8A8_PARAMETERS)     \
    {                                                                                              \
        local uint4 memory[STAGES * STAGE(waves_m * parts * 8)];                                   \
        FRAGMENT_UNIT(unit, WAVES);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        w8a8(a, unit, memory, codes, code_pitch, m_first, waves_m, tiles, parts);                  \
    }

// By rows of x.
#if WAVES == 8
W8A8(linear_w8a8_wide, RESIDENT(1), 2, 4, 8)
#else
W8A8(linear_w8a8_32, RESIDENT(2), 1, 2, 4)
W8A8(linear_w8a8_64, RESIDENT(2), 1, 2, 8)
W8A8(linear_w8a8_128, RESIDENT(2), 2, 4, 8)
#endif
