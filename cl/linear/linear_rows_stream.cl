// The linear layer for up to sixteen rows of x and weights of x's own 16-bit type, on mma.sync: as
// linear_stream.cl, with W as rows. A lane's operands are 16 consecutive bytes of row g and of row
// g + 8 for every 32 weights, in the order of K in which it reads x.
//
//     -DX=f16 | bf16   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DWARPS=8 | 16   share 32 rows of W: each takes every WARPS-th step along K
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "linear/linear_stream.clh"

#define TILES  2 // blocks of 16 rows of W
#define HALVES 2 // times 32 weights along K in a step
#define STEP_K (HALVES * 32)

typedef struct {
    global const uint4 *row[2]; // g and g + 8
    uint w[HALVES][2][4];       // of this step
    float sum[MAX_PARTS][4];
} tile_t;

LINEAR_INLINE void load_step(const linear_t a, tile_t *t, uint step, uint q)
{
    FRAGMENT_UNROLL
    for (uint h = 0; h < HALVES; h++) {
        // Rows are filled up to whole chunks, not to whole steps.
        const uint chunk = (step * HALVES + h) * 4 + q;
        const bool in = chunk < (uint)(a.pitch / 16);
        FRAGMENT_UNROLL
        for (uint i = 0; i < 2; i++) {
            const uint4 v = load_codes(t->row[i] + (in ? chunk : 0));
            t->w[h][i][0] = in ? v.x : 0u;
            t->w[h][i][1] = in ? v.y : 0u;
            t->w[h][i][2] = in ? v.z : 0u;
            t->w[h][i][3] = in ? v.w : 0u;
        }
    }
}

// A work-group's outputs: 32 rows of W by 8 `parts` rows of x. Beyond N the last row is computed
// again, beyond M from an x of 0, and neither is stored.
LINEAR_INLINE void stream(const linear_t a, fragment_unit unit, local float *sums, const ulong m0,
                          const uint parts, const bool gathered)
{
    const uint g = unit.lane / 4, q = unit.lane % 4;
    const uint first_block = (uint)get_group_id(0) * TILES;
    tile_t t[TILES];
    ulong x_row[MAX_PARTS];
    bool is_row[MAX_PARTS];
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        const ulong m = m0 + p * 8 + g;
        x_row[p] = row_begin(a.x_rows, min(m, a.m - 1));
        is_row[p] = m < a.m;
    }
    FRAGMENT_UNROLL
    for (uint n = 0; n < TILES; n++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < 2; i++) {
            const uint row = min((first_block + n) * 16 + g + i * 8, a.n - 1);
            t[n].row[i] = (global const uint4 *)(a.data + row * a.pitch);
        }
        FRAGMENT_UNROLL
        for (uint p = 0; p < parts; p++) {
            FRAGMENT_UNROLL
            for (uint e = 0; e < 4; e++)
                t[n].sum[p][e] = 0.0f;
        }
    }

    const uint steps = (a.k + STEP_K - 1) / STEP_K, turns = FRAGMENT_TURNS(steps, WARPS);
    for (uint step = unit.wave; step < turns; step += WARPS) {
        FRAGMENT_UNROLL
        for (uint n = 0; n < TILES; n++)
            load_step(a, &t[n], min(step, steps - 1), q);
        FRAGMENT_UNROLL
        for (uint h = 0; h < HALVES; h++) {
            uint x[MAX_PARTS][4];
            FRAGMENT_UNROLL
            for (uint p = 0; p < parts; p++) {
                const uint4 v =
                    x8(a, x_row[p], is_row[p], step * STEP_K + h * 32 + q * 8, gathered);
                x[p][0] = v.x;
                x[p][1] = v.y;
                x[p][2] = v.z;
                x[p][3] = v.w;
            }
            FRAGMENT_UNROLL
            for (uint j = 0; j < 2; j++) {
                FRAGMENT_UNROLL
                for (uint n = 0; n < TILES; n++) {
                    const uint w[4] = {t[n].w[h][0][2 * j], t[n].w[h][1][2 * j],
                                       t[n].w[h][0][2 * j + 1], t[n].w[h][1][2 * j + 1]};
                    FRAGMENT_UNROLL
                    for (uint p = 0; p < parts; p++)
                        mma_instruction(unit, t[n].sum[p], w, x[p] + 2 * j);
                }
            }
        }
    }

    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        if (p > 0)
            barrier(CLK_LOCAL_MEM_FENCE);
        FRAGMENT_UNROLL
        for (uint n = 0; n < TILES; n++)
            put_sums(unit, sums, TILES, n, t[n].sum[p]);
        finish_part(a, sums, TILES, first_block, m0 + p * 8, false);
    }
}

#define STREAM(name, parts, gathered)                                                              \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void name(LINEAR_PARAMETERS)            \
    {                                                                                              \
        local float sums[WARPS * 8 * SUM_PITCH(TILES)];                                            \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        stream(a, unit, sums, m_first, parts, gathered);                                           \
    }

// By rows of x, eight or sixteen.
STREAM(linear_rows_stream_8, 1, false)
STREAM(linear_rows_stream_16, 2, false)
STREAM(linear_rows_stream_8_gathered, 1, true)
STREAM(linear_rows_stream_16_gathered, 2, true)
