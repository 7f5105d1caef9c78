// Grouped products for groups of few rows on mma.sync, where the time is that of reading the experts'
// weights once: as linear_stream.cl and linear_rows_stream.cl, with rows of W as the instruction's A
// and up to sixteen rows of one group as B, 32 where W is rows. The build chooses
//
//     -DX=f16 | bf16   -DFRAGMENT_MMA, and perhaps -DFRAGMENT_EMULATED
//     -DW=f16 | bf16, X's own                                        grouped_stream_rows.clh
//     -DW=u4_nv | s8_nv   -DSPAN=0 | 1 | 2 | 4, as linear_stream.cl  grouped_stream_codes.clh
//
// A work-group has 32 rows of W, of gated pairs 16 of the gate and the 16 of up that go with them,
// or, where it adds up each token's experts, 16. Its warps take turns along K.
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#define WARPS 8 // at most
#include "grouped_linear/grouped_common.clh"

#define CODE_BITS_f16   0
#define CODE_BITS_bf16  0
#define CODE_BITS_u4_nv 4
#define CODE_BITS_s8_nv 8
#define CODE_BITS       LLMK_PASTE(CODE_BITS_, W)
#define W_IS_CODES      (CODE_BITS > 0)

#if W_IS_CODES
#define HIGH 16 // rows of x of a tile at most
#else
#define HIGH 32
#endif
#define MAX_PARTS (HIGH / 8) // of eight rows of x

#include "linear/linear_stream.clh"

#define MAX_TILES 2 // blocks of 16 rows of W

// Kinds of kernels: x in whole vectors, K in whole steps, rows of W that are no codes in whole blocks, no
// zeros, and scales of two bytes or of whole rows; the same with zeros; any scales and zeros; any x, K and
// rows of W too; as the first, of rows, with work-groups that go through several tiles.
#define PLAIN    0
#define ZEROS    1
#define AFFINE   2
#define GATHERED 3
#define IN_TURN  4

// What a lane asks for in a step, over all blocks: so many times 64 bytes of rows, or 32 of codes.
#if CODE_BITS == 4 && (SPAN == 1 || SPAN == 2) // many scales
#define PIECES 1
#else
#define PIECES 2
#endif
#define MAX_HALVES 8 // times 32 weights along K in a step

// Where the 16 rows of W of a block are: `row`, and on by `step`, row `last` again beyond it.
typedef struct {
    global const uchar *data, *scales, *zeros;
    uint row, step, last;
    uint chunk; // of 16 bytes of x and of rows of W, from where on
} block_t;

LINEAR_INLINE void clear(float *sum)
{
    FRAGMENT_UNROLL
    for (uint e = 0; e < 4; e++)
        sum[e] = 0.0f;
}

// Where a row of x begins: gathered, its element; else by chunks of 16 bytes from the first row on,
// which takes a register less than a pointer.
LINEAR_INLINE ulong begin_of(const rows_t rows, uint row, const uint kind)
{
    return kind == GATHERED ? row_begin(rows, row) : row * (rows.s0 / 8);
}

// The x of `halves` times 32 weights, of this lane's row of each eight. Rows that a tile has not are its
// last one again: their sums are not used.
LINEAR_INLINE void load_x(const linear_t a, const ulong *x_row, uint k, const uint halves,
                          const uint parts, const uint kind, uint x[MAX_HALVES][MAX_PARTS][4])
{
    const bool vectors = a.x_access == X_ALIGNED && a.k % 8 == 0;
    FRAGMENT_UNROLL
    for (uint p = 0; p < parts; p++) {
        global const uint4 *row =
            (global const uint4 *)((global const ushort *)a.x + a.x_rows.offset) +
            ((uint)x_row[p] + k / 8);
        FRAGMENT_UNROLL
        for (uint h = 0; h < halves; h++) {
            const uint4 v = kind != GATHERED
                                ? (FRAGMENT_IS_PAST(k, a.k) ? (uint4)(0u) : row[h * 4])
                            : vectors ? x8(a, x_row[p], true, k + h * 32, false)
                                      : x8(a, x_row[p], true, k + h * 32, true);
            x[h][p][0] = v.x;
            x[h][p][1] = v.y;
            x[h][p][2] = v.z;
            x[h][p][3] = v.w;
        }
    }
}

// stream(): sum[n][p] = this warp's products of block n with eight rows of x.
#if W_IS_CODES
#include "grouped_linear/grouped_stream_codes.clh"
#else
#include "grouped_linear/grouped_stream_rows.clh"
#endif

// The product with row j of the work-group's rows of W and row m of x, from the sums of all warps.
LINEAR_INLINE float total_of(local const float *sums, const uint warps, const uint tiles, uint j,
                             uint m)
{
    float total = 0.0f;
    for (uint w = 0; w < warps; w++)
        total += sums[(w * 8 + m) * SUM_PITCH(tiles) + j];
    return total;
}

// ---- Which tile is whose

// A tile, a block of columns, and of K, where it is split, share `way`: k elements from a chunk on.
typedef struct {
    tile_t tile;
    uint column, way, chunk, k;
    bool is_last; // of this work-group's
} place_t;
#define CAN_SPLIT(kind) (!W_IS_CODES && (kind) != GATHERED)

// Place `id`. Those of one expert start together: the tiles of a block of columns, which share
// W, then those of the next block, which share x. In local memory, so that the end needs no registers.
// No rows: there are no more.
//
// K is split into shares while that makes no more places than `room`, for which there is room at one time:
// the first one says how many behind the schedule.
LINEAR_INLINE void find_place(local place_t *place, uint id, global const int *schedule, uint groups,
                              uint first, uint last, uint rows, uint height, uint columns, uint k,
                              uint most_ways, uint room)
{
    global const int *tiles = schedule + groups + 1;
    const uint begin = schedule ? (uint)tiles[first] : 0;
    const uint end = schedule ? (uint)tiles[last] : (rows + height - 1) / height;
    const uint all = (end - begin) * columns, steps = (k + STEP_K - 1) / STEP_K;
    uint ways = 1, way = 0;
    if (most_ways > 1 && all > 0) {
        ways = clamp(room / all, 1u, min(most_ways, steps));
        way = id / all;
    }
    const uint of_way = id - way * all, t = begin + of_way / columns;
    if (get_local_id(0) == 0) {
        if (t >= end || way >= ways)
            place->tile.rows = 0;
        place->is_last = id + (uint)get_num_groups(0) >= all * ways;
        place->way = way;
        place->chunk = steps * way / ways * (STEP_K / 8);
        place->k = min(k, steps * (way + 1) / ways * STEP_K) - place->chunk * 8;
        if (schedule && get_group_id(0) == 0)
            ((global int *)schedule)[2 * (groups + 1) + 2] = (int)ways;
    }
    for (uint g = first + (uint)get_local_id(0); way < ways && g < last;
         g += (uint)get_local_size(0)) {
        const uint from = schedule ? (uint)tiles[g] : 0, to = schedule ? (uint)tiles[g + 1] : end;
        const uint row = schedule ? (uint)schedule[g] : 0;
        const uint row_end = schedule ? (uint)schedule[g + 1] : rows;
        if (from <= t && t < to) {
            const uint within = of_way - (from - begin) * columns, column = within / (to - from);
            place->tile.group = g;
            place->tile.begin = row + (within - column * (to - from)) * height;
            place->tile.rows = min(height, row_end - place->tile.begin);
            place->column = column;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// A place a work-group; or, IN_TURN, fewer work-groups than there may be places go through them: of many
// experts most may not be there. (What is the same in all turns is worked out before all else, 0.3 µs.)
#define EACH_PLACE(columns, most_ways, room)                                                       \
    for (uint id = (uint)get_group_id(0);; id += (uint)get_num_groups(0)) {                        \
        find_place(&place, id, schedule, schedule_groups, first, last, rows, height, columns, k,   \
                   most_ways, room);                                                               \
        if (place.tile.rows == 0)                                                                  \
            break;
#define NEXT_PLACE(kind)                                                                           \
    if ((kind) != IN_TURN || place.is_last)                                                        \
        break;                                                                                     \
    barrier(CLK_LOCAL_MEM_FENCE)

// ---- The kernels, for tiles of up to eight rows (and schedules of that height), or HIGH

// Rows of x of this lane's column, one of each eight.
#define FIND_X_ROWS(most, kind, chunk)                                                                 \
    ulong x_row[MAX_PARTS];                                                                        \
    FRAGMENT_UNROLL                                                                                \
    for (uint p = 0; p < (most) / 8; p++) {                                                        \
        const ulong row = x_row_of(tile.begin + min(p * 8 + unit.lane / 4, tile.rows - 1), source, \
                                   source_rows, fan, x_count);                                     \
        x_row[p] = begin_of(x_rows, (uint)row, kind) + chunk;                                      \
    }

// The tile's products, by the number of its rows. Emulated, which is slow anyway, there is less to
// compile.
#ifdef FRAGMENT_EMULATED
#define IS_UP_TO(tile, n) false
#else
#define IS_UP_TO(tile, n) (tile.rows <= (n))
#endif
#define STREAM(a, block, warps, most, kind)                                                        \
    if ((most) > 8 && IS_UP_TO(tile, 8))                                                           \
        stream(a, unit, block, x_row, warps, 2, 1, kind, sum);                                     \
    else if ((most) > 16 && IS_UP_TO(tile, 16))                                                    \
        stream(a, unit, block, x_row, warps, 2, 2, kind, sum);                                     \
    else                                                                                           \
        stream(a, unit, block, x_row, warps, 2, (most) / 8, kind, sum);

LINEAR_INLINE void put_part(fragment_unit unit, local float *sums, uint p,
                            float sum[MAX_TILES][MAX_PARTS][4])
{
    if (p > 0)
        barrier(CLK_LOCAL_MEM_FENCE);
    FRAGMENT_UNROLL
    for (uint n = 0; n < 2; n++)
        put_sums(unit, sums, 2, n, sum[n][p]);
    barrier(CLK_LOCAL_MEM_FENCE);
}

// Two blocks of 16 columns.
#define LINEAR(name, warps, bound, most, kind)                                                     \
    kernel __attribute__((reqd_work_group_size((warps)*32, 1, 1))) bound void name(                     \
        GROUPED_PARAMETERS, const uint height, const uint most_ways, const uint room)              \
    {                                                                                              \
        local float sums[(warps)*8 * SUM_PITCH(2)];                                                \
        local place_t place;                                                                       \
        FRAGMENT_UNIT(unit, warps);                                                                \
        EACH_PLACE((n + 31) / 32, CAN_SPLIT(kind) ? most_ways : 1, room)                           \
        float sum[MAX_TILES][MAX_PARTS][4];                                                        \
        if (place.tile.group != empty) {                                                           \
            const tile_t tile = place.tile;                                                        \
            const uint n0 = place.column * 32;                                                     \
            linear_t a = GROUPED_EXPERT(tile.group);                                               \
            const uint chunk = CAN_SPLIT(kind) ? place.chunk : 0;                                  \
            if (CAN_SPLIT(kind))                                                                   \
                a.k = place.k;                                                                     \
            const uint base = (tile.group - first) * n;                                            \
            const block_t block[MAX_TILES] = {                                                     \
                {data, scales, zeros, base + n0, 1, base + n - 1, chunk},                          \
                {data, scales, zeros, base + n0 + 16, 1, base + n - 1, chunk}};                    \
            FIND_X_ROWS(most, kind, chunk)                                                                \
            STREAM(a, block, warps, most, kind)                                                     \
        }                                                                                          \
        FRAGMENT_UNROLL                                                                            \
        for (uint p = 0; p < (most) / 8; p++) {                                                    \
            if (p * 8 < place.tile.rows && place.tile.group != empty)                              \
                put_part(unit, sums, p, sum);                                                      \
            for (uint o = (uint)get_local_id(0); o < 8 * 32; o += (warps)*32) {                    \
                const uint row = p * 8 + o / 32, column = place.column * 32 + o % 32;              \
                if (row >= place.tile.rows || column >= n)                                         \
                    continue;                                                                      \
                float v = 0.0f;                                                                    \
                if (place.tile.group != empty)                                                     \
                    v = total_of(sums, warps, 2, o % 32, o / 32) +                                 \
                        bias_of(bias, place.way ? 0 : bias_type, bias_rows, place.tile.group,      \
                                column);                                                           \
                const ulong y_row = (ulong)place.way * rows + place.tile.begin + row;              \
                store_any(y, y_type, row_begin(y_rows, y_row) + column * y_rows.inner, v);         \
            }                                                                                      \
        }                                                                                          \
        NEXT_PLACE(kind);                                                                                \
        }                                                                                          \
    }

// Sixteen columns of h. Where W is blocks and gate and up alternate, each block has eight pairs.
#define GATED(name, warps, bound, most, kind)                                                      \
    kernel __attribute__((reqd_work_group_size((warps)*32, 1, 1))) bound void name(                     \
        GROUPED_PARAMETERS, GATED_PARAMETERS, const uint height)                                   \
    {                                                                                              \
        local float sums[(warps)*8 * SUM_PITCH(2)];                                                \
        local place_t place;                                                                       \
        FRAGMENT_UNIT(unit, warps);                                                                \
        EACH_PLACE((outputs + 15) / 16, 1, 0)                                                      \
        const bool pairs = W_IS_CODES && step == 2;                                                \
        float sum[MAX_TILES][MAX_PARTS][4];                                                        \
        {                                                                                          \
            const tile_t tile = place.tile;                                                        \
            const uint f0 = place.column * 16;                                                     \
            const linear_t a = GROUPED_EXPERT(tile.group);                                         \
            const uint base = (tile.group - first) * n + f0 * step;                                \
            const uint last_f = (outputs - 1 - f0) * step, up = pairs ? 16 : up_first;             \
            const block_t block[MAX_TILES] = {                                                     \
                {data, scales, zeros, base, step, base + last_f, 0},                                \
                {up_data, up_scales, up_zeros, base + up, step, base + last_f + up_first, 0}};     \
            FIND_X_ROWS(most, kind, 0)                                                              \
            STREAM(a, block, warps, most, kind)                                                      \
        }                                                                                          \
        FRAGMENT_UNROLL                                                                            \
        for (uint p = 0; p < (most) / 8; p++) {                                                    \
            if (p * 8 < place.tile.rows)                                                           \
                put_part(unit, sums, p, sum);                                                      \
            for (uint o = (uint)get_local_id(0); o < 8 * 16; o += (warps)*32) {                    \
                const uint row = p * 8 + o / 16, j = o % 16, f = place.column * 16 + j;            \
                if (row >= place.tile.rows || f >= outputs)                                        \
                    continue;                                                                      \
                const float g = total_of(sums, warps, 2, pairs ? 2 * j : j, o / 16) +                     \
                                bias_of(bias, bias_type, bias_rows, place.tile.group, f);          \
                const float u =                                                                    \
                    total_of(sums, warps, 2, pairs ? 2 * j + 1 : 16 + j, o / 16) +                        \
                    bias_of(up_bias, up_bias_type, up_bias_rows, place.tile.group, f);             \
                store_any(y, y_type,                                                               \
                          row_begin(y_rows, place.tile.begin + row) + f * y_rows.inner,            \
                          gated(activation, g, u, limit, alpha));                                  \
            }                                                                                      \
        }                                                                                          \
        NEXT_PLACE(kind);                                                                                \
        }                                                                                          \
    }

// ---- Adding up: y[t] = sum of weights * (rows of t) + residual * sigmoid(residual_logit)
//
// For up to eight tokens, which are the columns of the instruction: where a token has none of a
// tile's rows, its column is not used. The tiles come in the order of the experts.

#define TABLE 32 // tiles whose rows are looked up at once

typedef struct {
    uint group[TABLE], begin[TABLE], rows[TABLE];
    int row[TABLE * 8];      // of each token; -1: it has none
    float weight[TABLE * 8]; // duplicates' sum
} table_t;

// Tiles base ... base + TABLE - 1.
LINEAR_INLINE void look_up(local table_t *table, global const int *schedule, uint groups, uint last,
                           uint height, uint base, uint end, global const int *source, const rows_t source_rows,
                           global const void *weights, const rows_t weights_rows, uint weights_type,
                           uint experts_a_token)
{
    const uint item = (uint)get_local_id(0), i = item / 8, token = item % 8;
    global const int *tiles = schedule + groups + 1;
    barrier(CLK_LOCAL_MEM_FENCE); // of the last ones nothing is read any more
    for (uint g = item; g < last; g += (uint)get_local_size(0)) {
        const uint from = (uint)tiles[g], to = (uint)tiles[g + 1];
        const uint row = (uint)schedule[g], row_end = (uint)schedule[g + 1];
        for (uint t = max(from, base); t < min(to, base + TABLE); t++) {
            const uint begin = row + (t - from) * height;
            table->group[t - base] = g;
            table->begin[t - base] = begin;
            table->rows[t - base] = min(height, row_end - begin);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < TABLE && base + i < end) {
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

// The weighted biases of these tiles' experts, for column c of y and this item's token.
LINEAR_INLINE void add_biases(local float *biases, local const table_t *table, uint tiles,
                              global const void *bias, uint type, const rows_t rows, uint c)
{
    const uint item = (uint)get_local_id(0), token = item / 16;
    for (uint t = 0; t < tiles && token < 8; t++)
        if (table->row[t * 8 + token] >= 0)
            biases[item] += table->weight[t * 8 + token] *
                            bias_of(bias, type, rows, table->group[t], c);
}

#define COMBINE(name, warps, bound, kind)                                                          \
    kernel __attribute__((reqd_work_group_size((warps)*32, 1, 1))) bound void name(                     \
        GROUPED_PARAMETERS, global const void *weights, const rows_t weights_rows,                 \
        const uint weights_type, const uint tokens, const uint experts_a_token,                    \
        global const float *residual, const rows_t residual_rows, /* may be NULL */                \
        global const float *residual_logit /* NULL: the residual counts whole */,                  \
        const uint height)                                                                         \
    {                                                                                              \
        local float sums[(warps)*8 * SUM_PITCH(1)];                                                \
        local table_t table;                                                                       \
        /* Each item's, where they take no registers from the product: of its sums, and of an      \
           element of y. */                                                                        \
        local float totals[4][(warps)*32], biases[(warps)*32];                                               \
        FRAGMENT_UNIT(unit, warps);                                                                \
        const uint n0 = (uint)get_group_id(0) * 16;                                                \
        const uint end = (uint)schedule[schedule_groups + 1 + last];                               \
        const uint item = (uint)get_local_id(0);                                                   \
        biases[item] = 0.0f;                                                                       \
        for (uint i = 0; i < 4; i++)                                                               \
            totals[i][item] = 0.0f;                                                                \
        for (uint base = 0; base < end; base += TABLE) {                                           \
            look_up(&table, schedule, schedule_groups, last, height, base, end, source,            \
                    source_rows, weights, weights_rows, weights_type, experts_a_token);            \
            for (uint t = 0; t < min((uint)TABLE, end - base); t++) {                              \
                const uint e = table.group[t];                                                     \
                const linear_t a = GROUPED_EXPERT(e);                                              \
                const block_t block[1] = {                                                         \
                    {data, scales, zeros, (e - first) * n + n0, 1, (e - first) * n + n - 1, 0}};      \
                const int row = table.row[t * 8 + unit.lane / 4];                                  \
                const ulong x_row = begin_of(x_rows, (uint)max(row, 0), kind);                       \
                float sum[MAX_TILES][MAX_PARTS][4];                                                \
                stream(a, unit, block, &x_row, warps, 1, 1, kind, sum);                            \
                FRAGMENT_UNROLL                                                                    \
                for (uint i = 0; i < 4; i++) {                                                     \
                    const uint at = t * 8 + mma_column(unit, i);                                   \
                    if (table.row[at] >= 0)                                                        \
                        totals[i][item] += table.weight[at] * sum[0][0][i];                        \
                }                                                                                  \
            }                                                                                      \
            if (bias_type)                                                                         \
                add_biases(biases, &table, min((uint)TABLE, end - base), bias, bias_type,          \
                           bias_rows, min(n0 + item % 16, n - 1));                                 \
        }                                                                                          \
        const float total[4] = {totals[0][item], totals[1][item], totals[2][item],                 \
                                totals[3][item]};                                                  \
        put_sums(unit, sums, 1, 0, total);                                                         \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        const uint j = item % 16, token = item / 16;                                               \
        if (token < tokens && n0 + j < n) {                                                        \
            float v = biases[item];                                                                \
            if (residual) {                                                                        \
                const float r =                                                                    \
                    residual[row_begin(residual_rows, token) + (n0 + j) * residual_rows.inner];    \
                v += residual_logit ? r / (1.0f + exp(-residual_logit[token])) : r;                \
            }                                                                                      \
            store_any(y, y_type, row_begin(y_rows, token) + (n0 + j) * y_rows.inner,               \
                      v + total_of(sums, warps, 1, j, token));                                            \
        }                                                                                          \
    }

// Warps, and how many work-groups find room on a compute unit, which bounds their registers.
#define MORE_ROWS(macro, name, kind) macro(name, 4, RESIDENT(4), HIGH, kind)
#if W_IS_CODES
#define FEW_ROWS(macro, name, kind) macro(name, 2, RESIDENT(14), 8, kind)
#else
#define FEW_ROWS(macro, name, kind) macro(name, 8, RESIDENT(3), 8, kind)
#endif
#if W_IS_CODES && PIECES == 2
#define ADD_UP_WARPS 16
#else
#define ADD_UP_WARPS 8
#endif

FEW_ROWS(LINEAR, grouped_stream_low, PLAIN)
MORE_ROWS(LINEAR, grouped_stream_high, PLAIN)
LINEAR(grouped_stream_gathered, 4, RESIDENT(3), HIGH, GATHERED)
FEW_ROWS(GATED, grouped_stream_gated_low, PLAIN)
MORE_ROWS(GATED, grouped_stream_gated_high, PLAIN)
GATED(grouped_stream_gated_gathered, 4, RESIDENT(3), HIGH, GATHERED)
COMBINE(grouped_stream_combine, ADD_UP_WARPS, RESIDENT(2), PLAIN)
COMBINE(grouped_stream_combine_gathered, ADD_UP_WARPS, RESIDENT(1), GATHERED)
#if !W_IS_CODES
FEW_ROWS(LINEAR, grouped_stream_low_turns, IN_TURN)
MORE_ROWS(LINEAR, grouped_stream_high_turns, IN_TURN)
FEW_ROWS(GATED, grouped_stream_gated_low_turns, IN_TURN)
MORE_ROWS(GATED, grouped_stream_gated_high_turns, IN_TURN)
#endif
#if W_IS_CODES
FEW_ROWS(LINEAR, grouped_stream_low_zeros, ZEROS)
MORE_ROWS(LINEAR, grouped_stream_high_zeros, ZEROS)
LINEAR(grouped_stream_low_affine, 2, RESIDENT(10), 8, AFFINE)
MORE_ROWS(LINEAR, grouped_stream_high_affine, AFFINE)
FEW_ROWS(GATED, grouped_stream_gated_low_zeros, ZEROS)
MORE_ROWS(GATED, grouped_stream_gated_high_zeros, ZEROS)
GATED(grouped_stream_gated_low_affine, 2, RESIDENT(10), 8, AFFINE)
MORE_ROWS(GATED, grouped_stream_gated_high_affine, AFFINE)
COMBINE(grouped_stream_combine_zeros, ADD_UP_WARPS, RESIDENT(2), ZEROS)
COMBINE(grouped_stream_combine_affine, ADD_UP_WARPS, RESIDENT(1), AFFINE)
#endif
