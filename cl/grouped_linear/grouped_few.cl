// Grouped products for groups of few rows, where the time is that of reading the experts' weights
// once. A tile is up to four rows of one group; a team of 32 items takes four rows of W, or two
// gate and up pairs, and every weight that it loads serves all rows of the tile.
//
// grouped_few_combine also adds up each token's experts: a work-group has sixteen columns of y for
// up to eight tokens and goes through all tiles, in the order of the experts.
//
// With -DSUBGROUP=N (common/subgroup.clh) the sums of a sub-group meet in registers, where a team is
// whole ones.
#ifdef SUBGROUP
#include "common/subgroup.clh"
#else
#define SUBGROUP_REQUIRED
#endif
#include "grouped_linear/grouped_common.clh"
#include "linear/linear_typed.clh"

#define ITEMS 128
#define TEAM  32
#define ROWS  4
#define COLUMNS (ITEMS / TEAM * 4) // rows of W of a work-group

LINEAR_INLINE float dot16(float16 a, float16 b)
{
    const float16 p = a * b;
    const float8 q = p.lo + p.hi;
    const float4 r = q.lo + q.hi;
    return r.x + r.y + (r.z + r.w);
}

// Neighbouring items whose sums meet before they are in local memory.
LINEAR_INLINE uint few_step(void)
{
#ifdef SUBGROUP
    if (subgroups_full() && TEAM % subgroup_size() == 0)
        return subgroup_size();
#endif
    return 1;
}

// The products of a tile's rows with four rows of W, the even ones of `a` and the odd ones of `b`:
// parts[i][item] is this item's part of row i's.
LINEAR_INLINE void few_product(const linear_t a, const linear_t b, const ulong *x_row,
                               const uint4 w_row, uint rows, local float4 (*parts)[ITEMS])
{
    const uint item = get_local_id(0);
    float4 sum[ROWS];
#pragma unroll
    for (uint i = 0; i < ROWS; i++)
        sum[i] = 0.0f;
    for (uint at = item % TEAM * 16; at < a.k; at += TEAM * 16) {
        const float16 w0 = weight16(W)(a, w_row.x, at), w1 = weight16(W)(b, w_row.y, at);
        const float16 w2 = weight16(W)(a, w_row.z, at), w3 = weight16(W)(b, w_row.w, at);
#pragma unroll
        for (uint i = 0; i < ROWS; i++)
            if (i < rows) {
                const float16 v = x16(a, x_row[i], at);
                sum[i] += (float4)(dot16(v, w0), dot16(v, w1), dot16(v, w2), dot16(v, w3));
            }
    }
    const uint step = few_step();
#ifdef SUBGROUP
    for (uint i = 0; i < ROWS && step > 1; i++)
        sum[i] = (float4)(subgroup_sum(sum[i].x), subgroup_sum(sum[i].y), subgroup_sum(sum[i].z),
                          subgroup_sum(sum[i].w));
#endif
#pragma unroll
    for (uint i = 0; i < ROWS; i++)
        if (item % step == 0)
            parts[i][item] = sum[i];
    barrier(CLK_LOCAL_MEM_FENCE);
}

// The product of row i with the team's j-th row of W.
LINEAR_INLINE float few_total(local const float4 (*parts)[ITEMS], uint i, uint j)
{
    const uint team = get_local_id(0) / TEAM * TEAM;
    local const float *part = (local const float *)&parts[i][team] + j;
    float sum = 0.0f;
    for (uint l = 0; l < TEAM; l += few_step())
        sum += part[4 * l];
    return sum;
}

#define FEW_TILE(i) tile_at(i, schedule, schedule_groups, first, last, rows, ROWS)
// Beyond the tile the last row again, not to be stored.
#define FEW_X_ROWS                                                                                 \
    ulong x_row[ROWS];                                                                             \
    _Pragma("unroll") for (uint i = 0; i < ROWS; i++) x_row[i] = row_begin(                        \
        x_rows,                                                                                    \
        x_row_of(tile.begin + min(i, tile.rows - 1), source, source_rows, fan, x_count))

// No early return of a whole work-group: PoCL 3 then forgets conditions after the barrier.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) SUBGROUP_REQUIRED void
grouped_few(GROUPED_PARAMETERS)
{
    local float4 parts[ROWS][ITEMS];
    const tile_t tile = FEW_TILE((uint)get_group_id(0));
    const uint lane = get_local_id(0) % TEAM;
    const uint n0 = (uint)get_group_id(1) * COLUMNS + get_local_id(0) / TEAM * 4;
    const bool is_empty = tile.group == empty;
    if (!is_empty && tile.rows > 0) {
        const linear_t a = GROUPED_EXPERT(tile.group);
        FEW_X_ROWS;
        few_product(a, a, x_row,
                    (tile.group - first) * n + min(n0 + (uint4)(0, 1, 2, 3), (uint4)(n - 1)),
                    tile.rows, parts);
    }
    for (uint o = lane; o < 4 * tile.rows; o += TEAM) {
        const uint i = o / 4, column = n0 + o % 4;
        float v = 0.0f;
        if (!is_empty)
            v = few_total(parts, i, o % 4) +
                bias_of(bias, bias_type, bias_rows, tile.group, min(column, n - 1));
        if (column < n)
            store_any(y, y_type, row_begin(y_rows, tile.begin + i) + column * y_rows.inner, v);
    }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) SUBGROUP_REQUIRED void
grouped_few_gated(GROUPED_PARAMETERS, GATED_PARAMETERS)
{
    local float4 parts[ROWS][ITEMS];
    const tile_t tile = FEW_TILE((uint)get_group_id(0));
    const uint lane = get_local_id(0) % TEAM;
    const uint f0 = (uint)get_group_id(1) * (COLUMNS / 2) + get_local_id(0) / TEAM * 2;
    if (tile.rows > 0) {
        const linear_t a = GROUPED_EXPERT(tile.group);
        linear_t b = a;
        b.data = up_data;
        b.scales = up_scales;
        b.zeros = up_zeros;
        FEW_X_ROWS;
        const uint2 f = min((uint2)(f0, f0 + 1), (uint2)(outputs - 1)) * step;
        few_product(a, b, x_row,
                    (tile.group - first) * n + (uint4)(f.x, f.x + up_first, f.y, f.y + up_first),
                    tile.rows, parts);
    }
    for (uint o = lane; o < 2 * tile.rows; o += TEAM) {
        const uint i = o / 2, column = f0 + o % 2, c = min(column, outputs - 1);
        const float gate = few_total(parts, i, o % 2 * 2) +
                           bias_of(bias, bias_type, bias_rows, tile.group, c);
        const float up = few_total(parts, i, o % 2 * 2 + 1) +
                         bias_of(up_bias, up_bias_type, up_bias_rows, tile.group, c);
        if (column < outputs)
            store_any(y, y_type, row_begin(y_rows, tile.begin + i) + column * y_rows.inner,
                      gated(activation, gate, up, limit, alpha));
    }
}

// y[t] = sum of weights * (rows of t) + residual * sigmoid(residual_logit).
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) SUBGROUP_REQUIRED void
grouped_few_combine(GROUPED_PARAMETERS, global const void *weights, const rows_t weights_rows,
                    const uint weights_type, const uint tokens, const uint experts_a_token,
                    global const float *residual, const rows_t residual_rows, // may be NULL
                    global const float *residual_logit) // NULL: the residual counts whole
{
    local float4 parts[ROWS][ITEMS];
    local float totals[ROWS][COLUMNS];
    const uint item = get_local_id(0), lane = item % TEAM;
    const uint n0 = (uint)get_group_id(0) * COLUMNS, team_n0 = n0 + item / TEAM * 4;
    const uint token = item / COLUMNS, column = n0 + item % COLUMNS; // of y
    const bool live = token < tokens && column < n;
    float sum = 0.0f;
    if (residual && live) {
        sum = residual[row_begin(residual_rows, token) + column * residual_rows.inner];
        if (residual_logit)
            sum /= 1.0f + exp(-residual_logit[token]);
    }
    const uint tiles = schedule[schedule_groups + 1 + last];
    for (uint t = 0; t < tiles; t++) {
        const tile_t tile = FEW_TILE(t);
        const linear_t a = GROUPED_EXPERT(tile.group);
        ulong x_row[ROWS]; // a row of x for each pair: no source here
#pragma unroll
        for (uint i = 0; i < ROWS; i++)
            x_row[i] = row_begin(x_rows, tile.begin + min(i, tile.rows - 1));
        few_product(a, a, x_row,
                    (tile.group - first) * n +
                        min(team_n0 + (uint4)(0, 1, 2, 3), (uint4)(n - 1)),
                    tile.rows, parts);
        for (uint o = lane; o < 4 * ROWS; o += TEAM)
            totals[o / 4][item / TEAM * 4 + o % 4] =
                few_total(parts, o / 4, o % 4) +
                bias_of(bias, bias_type, bias_rows, tile.group, min(team_n0 + o % 4, n - 1));
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = 0; i < tile.rows && live; i++) {
            const uint pair = source[source_rows.offset + (tile.begin + i) * source_rows.inner];
            if (pair / experts_a_token == token)
                sum += totals[i][item % COLUMNS] *
                       load_any(weights, weights_type,
                                row_begin(weights_rows, token) +
                                    pair % experts_a_token * weights_rows.inner);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (live)
        store_any(y, y_type, row_begin(y_rows, token) + column * y_rows.inner, sum);
}
