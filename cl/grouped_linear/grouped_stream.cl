// Grouped products for groups of few rows on mma.sync, where the time is that of reading the experts'
// weights once: as linear_stream.cl and linear_rows_stream.cl, with rows of W as the instruction's A
// and up to sixteen rows of one group as B. The build chooses
//
//     -DX=f16 | bf16   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DW=f16 | bf16, X's own                                        grouped_stream_rows.clh
//     -DW=u4_nv | s8_nv   -DSPAN=0 | 1 | 2 | 4, as linear_stream.cl  grouped_stream_codes.clh
//
// A work-group has 32 rows of W, of gated pairs 16 of the gate and the 16 of up that go with them,
// or, where it adds up each token's experts, 16. Its warps share them and K.
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#define WARPS 8
#include "grouped_linear/grouped_common.clh"
#include "linear/linear_stream.clh"

#define HEIGHT    16 // rows of a tile of the schedule
#define MAX_TILES 2  // blocks of 16 rows of W
#define PIECES    4  // 16-byte loads of a row in a step, over all blocks

// Where the 16 rows of W of a block are: `row`, and on by `step`, row `last` again beyond it.
typedef struct {
    global const uchar *data, *scales, *zeros;
    uint row, step, last;
} block_t;

// How the warps share rows and K. With few rows of x, operands of eight rows and eight columns
// stand for 8 / segments rows, each of `segments` pieces of K that lie side by side in memory.
typedef struct {
    uint segments, rows; // rows: 8 / segments
    uint first;          // this warp's, of the work-group's rows of W
    uint turn, turns;    // along K
} share_t;

#define CODES_f16   0
#define CODES_bf16  0
#define CODES_u4_nv 1
#define CODES_s8_nv 1
#define W_IS_CODES  LLMK_PASTE(CODES_, W)

LINEAR_INLINE share_t share_of(fragment_unit unit, uint x_rows, const uint tiles)
{
    share_t s;
    s.segments = W_IS_CODES || x_rows > 4 ? 1 : x_rows > 2 ? 2 : x_rows > 1 ? 4 : 8;
    s.rows = 8 / s.segments;
    s.turns = WARPS / s.segments;
    s.turn = unit.wave % s.turns;
    s.first = unit.wave / s.turns * 2 * tiles * s.rows;
    return s;
}

// The product with row j of the work-group's rows of W and row m of x, from the sums of all warps.
LINEAR_INLINE float total_of(local const float *sums, share_t s, const uint tiles, uint j, uint m)
{
    const uint of_warp = 2 * tiles * s.rows, eight = j % of_warp / s.rows * 8, row = j % s.rows;
    float total = 0.0f;
    for (uint t = 0; t < s.turns; t++)
        for (uint i = 0; i < s.segments; i++)
            total += sums[((j / of_warp * s.turns + t) * 8 + i * s.rows + m) * SUM_PITCH(tiles) +
                          eight + i * s.rows + row];
    return total;
}

LINEAR_INLINE void clear(float *sum, uint count)
{
    FRAGMENT_UNROLL
    for (uint e = 0; e < count; e++)
        sum[e] = 0.0f;
}

// stream(): sum[n][p] = the products of block n with eight rows of x.
#if W_IS_CODES
#include "grouped_linear/grouped_stream_codes.clh"
#else
#include "grouped_linear/grouped_stream_rows.clh"
#endif

// ---- Which tile is whose

typedef struct {
    tile_t tile;
    uint column; // block of columns
} place_t;

// Of this work-group. Those of one expert start together: the tiles of a block of columns, which
// share W, then those of the next block, which share x. found: of five values.
LINEAR_INLINE place_t place_of(global const int *schedule, uint groups, uint first, uint last,
                               uint rows, uint columns, local int *found)
{
    const ulong id = (ulong)get_group_id(1) * get_num_groups(0) + get_group_id(0);
    place_t p = {{0, 0, 0}, 0};
    if (!schedule) {
        const uint tiles = (rows + HEIGHT - 1) / HEIGHT;
        p.column = (uint)(id / tiles);
        p.tile.begin = (uint)(id % tiles) * HEIGHT;
        p.tile.rows = p.column < columns ? min((uint)HEIGHT, rows - p.tile.begin) : 0;
        return p;
    }
    global const int *tiles = schedule + groups + 1;
    const int begin = tiles[first], end = tiles[last], t = begin + (int)(id / columns);
    for (uint g = first + (uint)get_local_id(0); g < last; g += ITEMS) {
        const int from = tiles[g], to = tiles[g + 1], row = schedule[g], row_end = schedule[g + 1];
        if (from <= t && t < to) {
            found[0] = (int)g;
            found[1] = from;
            found[2] = to - from;
            found[3] = row;
            found[4] = row_end;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t >= end)
        return p;
    const ulong within = id - (ulong)(found[1] - begin) * columns;
    p.tile.group = (uint)found[0];
    p.tile.begin = (uint)found[3] + (uint)(within % (uint)found[2]) * HEIGHT;
    p.tile.rows = min((uint)HEIGHT, (uint)found[4] - p.tile.begin);
    p.column = (uint)(within / (uint)found[2]);
    return p;
}

#define PLACE(columns)                                                                             \
    place_of(schedule, schedule_groups, first, last, rows, columns, found)

// ---- The kernels

// Rows of x of this lane's column, eight and eight; beyond the tile there are none.
#define FIND_X_ROWS(share)                                                                         \
    ulong x_row[MAX_PARTS];                                                                        \
    bool is_row[MAX_PARTS];                                                                        \
    for (uint p = 0; p < MAX_PARTS; p++) {                                                         \
        const uint m = p * 8 + unit.lane / 4 % share.rows;                                         \
        is_row[p] = m < tile.rows;                                                                 \
        x_row[p] = row_begin(x_rows, x_row_of(tile.begin + min(m, tile.rows - 1), source,          \
                                              source_rows, fan, x_count));                         \
    }

// The tile's products, by the number of its rows.
#define STREAM(a, block, share, gathered)                                                          \
    if (tile.rows > 8)                                                                             \
        stream(a, unit, block, share, x_row, is_row, 2, 2, gathered, sum);                         \
    else                                                                                           \
        stream(a, unit, block, share, x_row, is_row, 2, 1, gathered, sum);

LINEAR_INLINE void put_part(fragment_unit unit, local float *sums, uint p,
                            float sum[MAX_TILES][MAX_PARTS][4])
{
    if (p > 0)
        barrier(CLK_LOCAL_MEM_FENCE);
    for (uint n = 0; n < 2; n++)
        put_sums(unit, sums, 2, n, p ? sum[n][1] : sum[n][0]);
    barrier(CLK_LOCAL_MEM_FENCE);
}

// Two blocks of 16 columns.
#define PLAIN(name, gathered)                                                                      \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(2) void name(               \
        GROUPED_PARAMETERS)                                                                        \
    {                                                                                              \
        local float sums[WARPS * 8 * SUM_PITCH(2)];                                                \
        local int found[5];                                                                        \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const place_t place = PLACE((n + 31) / 32);                                                \
        const tile_t tile = place.tile;                                                            \
        const uint n0 = place.column * 32;                                                         \
        const bool is_empty = tile.group == empty;                                                 \
        float sum[MAX_TILES][MAX_PARTS][4];                                                        \
        const share_t share = share_of(unit, tile.rows, 2);                                        \
        if (tile.rows > 0 && !is_empty) {                                                          \
            const linear_t a = GROUPED_EXPERT(tile.group);                                         \
            const uint base = (tile.group - first) * n;                                            \
            const block_t block[MAX_TILES] = {                                                     \
                {data, scales, zeros, base + n0, 1, base + n - 1},                                 \
                {data, scales, zeros, base + n0 + 16, 1, base + n - 1}};                           \
            FIND_X_ROWS(share)                                                                     \
            STREAM(a, block, share, gathered)                                                      \
        }                                                                                          \
        for (uint p = 0; p * 8 < tile.rows; p++) {                                                 \
            if (!is_empty)                                                                         \
                put_part(unit, sums, p, sum);                                                      \
            const uint j = (uint)get_local_id(0) % 32, m = (uint)get_local_id(0) / 32;             \
            const uint row = p * 8 + m, column = n0 + j;                                           \
            if (row < tile.rows && column < n) {                                                   \
                float v = 0.0f;                                                                    \
                if (!is_empty)                                                                     \
                    v = total_of(sums, share, 2, j, m) +                                           \
                        bias_of(bias, bias_type, bias_rows, tile.group, column);                   \
                store_any(y, y_type, row_begin(y_rows, tile.begin + row) + column * y_rows.inner,  \
                          v);                                                                      \
            }                                                                                      \
        }                                                                                          \
    }

// Sixteen columns of h. In interleaved layouts of blocks each of the two blocks has eight pairs.
#define GATED(name, gathered)                                                                      \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(2) void name(               \
        GROUPED_PARAMETERS, GATED_PARAMETERS)                                                      \
    {                                                                                              \
        local float sums[WARPS * 8 * SUM_PITCH(2)];                                                \
        local int found[5];                                                                        \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const place_t place = PLACE((outputs + 15) / 16);                                          \
        const tile_t tile = place.tile;                                                            \
        const uint f0 = place.column * 16;                                                         \
        const bool pairs = W_IS_CODES && step == 2;                                                \
        float sum[MAX_TILES][MAX_PARTS][4];                                                        \
        const share_t share = share_of(unit, tile.rows, 2);                                        \
        if (tile.rows > 0) {                                                                       \
            const linear_t a = GROUPED_EXPERT(tile.group);                                         \
            const uint base = (tile.group - first) * n + f0 * step;                                \
            const uint last_f = (outputs - 1 - f0) * step, up = pairs ? 16 : up_first;             \
            const block_t block[MAX_TILES] = {                                                     \
                {data, scales, zeros, base, step, base + last_f},                                  \
                {up_data, up_scales, up_zeros, base + up, step, base + last_f + up_first}};        \
            FIND_X_ROWS(share)                                                                     \
            STREAM(a, block, share, gathered)                                                      \
        }                                                                                          \
        for (uint p = 0; p * 8 < tile.rows; p++) {                                                 \
            put_part(unit, sums, p, sum);                                                          \
            const uint j = (uint)get_local_id(0) % 16, m = (uint)get_local_id(0) / 16;             \
            const uint row = p * 8 + m, f = f0 + j;                                                \
            if (m < 8 && row < tile.rows && f < outputs) {                                         \
                const float g = total_of(sums, share, 2, pairs ? 2 * j : j, m) +                   \
                                bias_of(bias, bias_type, bias_rows, tile.group, f);                \
                const float u = total_of(sums, share, 2, pairs ? 2 * j + 1 : 16 + j, m) +          \
                                bias_of(up_bias, up_bias_type, up_bias_rows, tile.group, f);       \
                store_any(y, y_type, row_begin(y_rows, tile.begin + row) + f * y_rows.inner,       \
                          gated(activation, g, u, limit, alpha));                                  \
            }                                                                                      \
        }                                                                                          \
    }

// ---- Adding up: y[t] = sum of weights * (rows of t) + residual * sigmoid(residual_logit)
//
// For up to eight tokens, which are the columns of the instruction: where a token has none of a
// tile's rows, its column is not used. The tiles come in the order of the experts.

#define TABLE (ITEMS / 8) // tiles whose rows are looked up at once

typedef struct {
    uint group[TABLE], begin[TABLE], rows[TABLE];
    int row[TABLE * 8];      // of each token; -1: it has none
    float weight[TABLE * 8]; // duplicates' sum
} table_t;

// Tiles base ... base + TABLE - 1.
LINEAR_INLINE void look_up(local table_t *table, global const int *schedule, uint groups, uint last,
                           uint base, uint end, global const int *source, const rows_t source_rows,
                           global const void *weights, const rows_t weights_rows, uint weights_type,
                           uint experts_a_token)
{
    const uint item = (uint)get_local_id(0), i = item / 8, token = item % 8;
    global const int *tiles = schedule + groups + 1;
    barrier(CLK_LOCAL_MEM_FENCE); // of the last ones nothing is read any more
    for (uint g = item; g < last; g += ITEMS) {
        const uint from = (uint)tiles[g], to = (uint)tiles[g + 1];
        const uint row = (uint)schedule[g], row_end = (uint)schedule[g + 1];
        for (uint t = max(from, base); t < min(to, base + TABLE); t++) {
            const uint begin = row + (t - from) * HEIGHT;
            table->group[t - base] = g;
            table->begin[t - base] = begin;
            table->rows[t - base] = min((uint)HEIGHT, row_end - begin);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (base + i < end) {
        int found = -1;
        float weight = 0.0f;
        for (uint r = table->rows[i]; r > 0; r--) {
            const uint row = table->begin[i] + r - 1;
            const uint pair = (uint)source[source_rows.offset + row * source_rows.inner];
            if (pair / experts_a_token == token) {
                found = (int)row;
                weight += load_any(weights, weights_type,
                                   row_begin(weights_rows, token) +
                                       pair % experts_a_token * weights_rows.inner);
            }
        }
        table->row[item] = found;
        table->weight[item] = weight;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

#define COMBINE(name, gathered)                                                                    \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(2) void name(               \
        GROUPED_PARAMETERS, global const void *weights, const rows_t weights_rows,                 \
        const uint weights_type, const uint tokens, const uint experts_a_token,                    \
        global const float *residual, const rows_t residual_rows, /* may be NULL */                \
        global const float *residual_logit) /* NULL: the residual counts whole */                  \
    {                                                                                              \
        local float sums[WARPS * 8 * SUM_PITCH(1)];                                                \
        local table_t table;                                                                       \
        FRAGMENT_UNIT(unit, WARPS);                                                                \
        const uint n0 = (uint)get_group_id(0) * 16;                                                \
        const uint j = (uint)get_local_id(0) % 16, token = (uint)get_local_id(0) / 16;             \
        const bool live = token < tokens && n0 + j < n;                                            \
        const share_t share = share_of(unit, tokens, 1);                                           \
        const uint own = unit.lane / 4 % share.rows, end = (uint)schedule[schedule_groups + 1 + last]; \
        float total[4], of_biases = 0.0f;                                                          \
        clear(total, 4);                                                                           \
        for (uint base = 0; base < end; base += TABLE) {                                           \
            look_up(&table, schedule, schedule_groups, last, base, end, source, source_rows,       \
                    weights, weights_rows, weights_type, experts_a_token);                         \
            for (uint t = 0; t < min((uint)TABLE, end - base); t++) {                              \
                const uint e = table.group[t];                                                     \
                const linear_t a = GROUPED_EXPERT(e);                                              \
                const block_t block[1] = {                                                         \
                    {data, scales, zeros, (e - first) * n + n0, 1, (e - first) * n + n - 1}};      \
                const int row = table.row[t * 8 + own];                                            \
                const ulong x_row = row_begin(x_rows, (ulong)max(row, 0));                         \
                const bool is_row = row >= 0;                                                      \
                float sum[MAX_TILES][MAX_PARTS][4];                                                \
                stream(a, unit, block, share, &x_row, &is_row, 1, 1, gathered, sum);               \
                FRAGMENT_UNROLL                                                                    \
                for (uint i = 0; i < 4; i++) {                                                     \
                    const uint at = t * 8 + mma_column(unit, i) % share.rows;                      \
                    if (table.row[at] >= 0)                                                        \
                        total[i] += table.weight[at] * sum[0][0][i];                               \
                }                                                                                  \
                if (bias_type && live && table.row[t * 8 + token] >= 0)                            \
                    of_biases += table.weight[t * 8 + token] *                                     \
                                 bias_of(bias, bias_type, bias_rows, e, n0 + j);                   \
            }                                                                                      \
        }                                                                                          \
        put_sums(unit, sums, 1, 0, total);                                                         \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        if (live) {                                                                                \
            float v = of_biases;                                                                   \
            if (residual) {                                                                        \
                const float r =                                                                    \
                    residual[row_begin(residual_rows, token) + (n0 + j) * residual_rows.inner];    \
                v += residual_logit ? r / (1.0f + exp(-residual_logit[token])) : r;                \
            }                                                                                      \
            store_any(y, y_type, row_begin(y_rows, token) + (n0 + j) * y_rows.inner,               \
                      v + total_of(sums, share, 1, j, token));                                     \
        }                                                                                          \
    }

PLAIN(grouped_stream, false)
PLAIN(grouped_stream_gathered, true)
GATED(grouped_stream_gated, false)
GATED(grouped_stream_gated_gathered, true)
COMBINE(grouped_stream_combine, false)
COMBINE(grouped_stream_combine_gathered, true)
