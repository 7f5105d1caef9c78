// The router's choice: a row of a work-group's items has a token; the place of an expert is the number
// of experts that come before it, so that no rounds are needed and places are distinct whatever the
// logits.
//
// moe_select_dispatch is for so few tokens that one work-group has them all: it goes on and sorts
// the chosen pairs of token and expert. moe_route_one computes one token's logits, too, of few experts.
#include "common/chunk.clh"
#include "common/vectors.clh"
#include "moe_permute/moe_dispatch.clh"
#include "moe_route/moe_route.clh"

#define SELECT_PARAMETERS                                                                          \
    global const void *logits, const rows_t logits_rows, const uint logits_type,                   \
        global const void *router_bias, const rows_t router_bias_rows,                             \
        const uint router_bias_type, global const void *correction, const rows_t correction_rows,  \
        const uint correction_type, global int *ids, const rows_t ids_rows, global float *weights, \
        const rows_t weights_rows, const ulong tokens, const uint experts, const uint k,           \
        const uint score, const uint groups, const uint top_groups, const uint renormalize,        \
        const float scale, const float eps, local float *values, /* experts a row */               \
        local uint4 *keys,                                       /* the same, as numbers */        \
        local uint *group_keys,                                  /* twice the groups a row */      \
        local int *chosen,                                       /* k a row */                     \
        local float *scratch                                     /* an item each */

#define SELECT_ARGUMENTS                                                                           \
    logits, logits_rows, logits_type, router_bias, router_bias_rows, router_bias_type, correction, \
        correction_rows, correction_type, ids, ids_rows, weights, weights_rows, tokens, experts,   \
        k, score, groups, top_groups, renormalize, scale, eps, values, keys, group_keys, chosen,   \
        scratch

// A kernel of one work-group takes as long as its instructions take to arrive: loops are not unrolled, and
// what is needed several times is one function.
#define SHORT _Pragma("unroll 1")
#ifdef LLMK_IMAGE_NVPTX_CLH
#define ONCE __attribute__((noinline))
#define WHERE(condition) if (condition)
#define HOLDS(condition) true
#else // CPUs' compilers want functions with barriers inside their kernel, and make all that follows a barrier
      // under a condition twice: what is WHERE it holds is done for nothing where it does not.
#define ONCE inline
#define WHERE(condition) if (true)
#define HOLDS(condition) (condition)
#endif

enum { SUM, LARGEST }; // NaN left out

// Of v over this row of items: sixteen, or all if fewer, take the others' together, then everybody the
// sixteen's. scratch has a float an item, and may be written at once afterwards.
static ONCE float together(float v, local float *scratch, uint how)
{
    const uint i = get_local_id(0), n = get_local_size(0), heads = min(n, 16u);
    local float *row = scratch + get_local_id(1) * n;
    row[i] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    WHERE (n > heads) {
        if (i < heads) {
            SHORT
            for (uint o = i + heads; o < n; o += heads)
                v = how == SUM ? v + row[o] : fmax(v, row[o]);
            row[i] = v;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float all = row[0];
    for (uint o = 1; o < heads; o++)
        all = how == SUM ? all + row[o] : fmax(all, row[o]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return all;
}

static ONCE float share_of_one(uint kind, float logit, float largest, float sum)
{
    return score_of(kind, logit, largest, sum);
}

static inline float logit_at(global const void *logits, uint type, ulong at, ulong inner,
                             global const void *bias, uint bias_type, const rows_t bias_rows,
                             uint e)
{
    const float v = load_any(logits, type, at + e * inner);
    return bias_type ? v + load_any(bias, bias_type, bias_rows.offset + e * bias_rows.inner) : v;
}

// How many of `count` keys come before the i-th: larger ones, and equal ones of a lower index. No key is
// the largest number. quads: they are read four at a time.
static inline uint place_of(local const uint *key, uint count, uint i, bool quads)
{
    const uint mine = key[i];
    if (!quads) {
        uint place = 0;
        SHORT
        for (uint o = 0; o < count; o++)
            place += key[o] + (o < i) > mine;
        return place;
    }
    local const uint4 *key4 = (local const uint4 *)key;
    int4 before = 0;
    SHORT
    for (uint o = 0; o < count; o += 4) {
        const int4 lower = (int4)(0, 1, 2, 3) < (int4)((int)i - (int)o); // -1 where it is
        before -= key4[o / 4] - as_uint4(lower) > (uint4)(mine);
    }
    return (uint)(before.x + before.y + (before.z + before.w));
}

static inline void exclude_groups(local uint *key, local uint *group_key, uint experts, uint groups,
                                  uint top_groups, bool two)
{
    const uint lane = get_local_id(0), lanes = get_local_size(0), width = experts / (HOLDS(groups > 1) ? groups : 1);
    SHORT
    for (uint g = lane; g < groups; g += lanes) {
        uint best = 0, second = 0;
        SHORT
        for (uint e = g * width; e < (g + 1) * width; e++) {
            second = max(second, min(best, key[e]));
            best = max(best, key[e]);
        }
        float v = choice_of(best);
        if (two && width > 1)
            v += choice_of(second);
        group_key[g] = choice_key(v);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    SHORT
    for (uint g = lane; g < groups; g += lanes)
        group_key[groups + g] = place_of(group_key, groups, g, false);
    barrier(CLK_LOCAL_MEM_FENCE);
    SHORT
    for (uint e = lane; e < experts; e += lanes)
        if (HOLDS(groups > 1) && group_key[groups + e / width] >= top_groups)
            key[e] = KEY_EXCLUDED;
    barrier(CLK_LOCAL_MEM_FENCE);
}

// given: the values are there, of one token for all rows of items. The first row's token is `first`.
static inline __attribute__((always_inline)) void
select_experts(SELECT_PARAMETERS, const bool given, const ulong first, const bool writes)
{
    const uint lane = get_local_id(0), lanes = get_local_size(0), row = get_local_id(1);
    const ulong token = first + row, t = min(token, tokens - 1);
    local uint *key = (local uint *)keys + row * experts;
    local int *id = chosen + row * k;
    // Each item reads what it has written itself, until there has been a barrier.
    local float *logit = given ? values : values + row * experts;
    const ulong at = given ? 0 : row_begin(logits_rows, t);
    SHORT
    for (uint e = lane; e < experts && !given; e += lanes)
        logit[e] = logit_at(logits, logits_type, at, logits_rows.inner, router_bias,
                            router_bias_type, router_bias_rows, e);

    float largest = -INFINITY, sum = 0.0f;
    WHERE (score == SOFTMAX) {
        SHORT
        for (uint e = lane; e < experts && HOLDS(score == SOFTMAX); e += lanes)
            largest = fmax(largest, logit[e]);
        largest = together(largest, scratch, LARGEST);
        SHORT
        for (uint e = lane; e < experts && HOLDS(score == SOFTMAX); e += lanes)
            sum += exp(logit[e] - largest);
        sum = together(sum, scratch, SUM);
    }
    SHORT
    for (uint e = lane; e < experts; e += lanes) {
        float choice = logit[e];
        if (correction_type) {
            if (score != TOPK_SOFTMAX)
                choice = share_of_one(score, choice, largest, sum);
            choice += load_any(correction, correction_type,
                               correction_rows.offset + e * correction_rows.inner);
        }
        key[e] = choice_key(choice);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    WHERE (groups > 1)
        exclude_groups(key, group_keys + row * 2 * groups, experts, groups, top_groups,
                       correction_type != 0);
    SHORT
    for (uint e = lane; e < experts; e += lanes) {
        const uint place = place_of(key, experts, e, experts % 4 == 0);
        if (place < k)
            id[place] = e;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    WHERE (score == TOPK_SOFTMAX) {
        float most = largest, all = sum;
        SHORT
        for (uint j = lane; j < k; j += lanes)
            most = fmax(most, logit[id[j]]);
        most = together(most, scratch, LARGEST);
        SHORT
        for (uint j = lane; j < k; j += lanes)
            all += exp(logit[id[j]] - most);
        all = together(all, scratch, SUM);
        if (HOLDS(score == TOPK_SOFTMAX)) {
            largest = most;
            sum = all;
        }
    }
    float total = 0.0f;
    SHORT
    for (uint j = lane; j < k; j += lanes)
        total += share_of_one(score, logit[id[j]], largest, sum);
    total = together(total, scratch, SUM);
    const float divisor = total < eps ? eps : total;
    SHORT
    for (uint j = lane; j < k && token < tokens && writes; j += lanes) {
        const float s = share_of_one(score, logit[id[j]], largest, sum);
        ids[row_begin(ids_rows, t) + j * ids_rows.inner] = id[j];
        weights[row_begin(weights_rows, t) + j * weights_rows.inner] =
            (renormalize ? s / divisor : s) * scale;
    }
}

kernel void moe_select(SELECT_PARAMETERS)
{
    select_experts(SELECT_ARGUMENTS, false, get_group_id(0) * get_local_size(1), true);
}

// Elements of 16 bits. wide: rows are on 16-byte boundaries.
static inline void copy8(global const ushort *from, global ushort *to, uint n, uint wide)
{
    if (wide && n == 8)
        *(global uint4 *)to = *(global const uint4 *)from;
    else
        for (uint i = 0; i < n; i++)
            to[i] = from[i];
}

// What a plan has of its own lies densely. A kernel of one work-group takes as long as its instructions
// take to arrive: what need not be there costs.
#define DENSE(first, pitch) ((rows_t){first, 1, 1, pitch, 0, 0, 1})
#define PLAN_SELECT(given, first, writes)                                                          \
    select_experts(logits, DENSE(0, experts), DT_F32, 0, DENSE(0, 0), 0, correction,               \
                   correction_rows, correction_type, ids, DENSE(0, k), weights, DENSE(0, k),       \
                   tokens, experts, k, score, groups, top_groups, renormalize, scale, eps, values, \
                   keys, group_keys, chosen, scratch, given, first, writes)
#define PLAN_DISPATCH(pairs, writes)                                                               \
    dispatch_few(chosen, pairs, sort, writes, k, map, map_rows, id_end, held, height, offsets,     \
                 DENSE(offsets_rows.offset, 0), tiles, tiles_at, zeros, source,                    \
                 DENSE(source_rows.offset, 0), inverse, DENSE(inverse_rows.offset, k))

// All tokens, a row of items for each. Where x's rows are to lie in the order of the sorted pairs, in
// gathered, several work-groups do the same, of which the first one writes, and share out the rows.
kernel void moe_select_dispatch(SELECT_PARAMETERS, DISPATCH_PARAMETERS, local int4 *sort,
                                global const ushort *x, const rows_t x_rows,
                                global ushort *gathered, // NULL: not
                                const ulong cols, const uint wide)
{
    const bool writes = get_group_id(0) == 0;
    const uint pairs = (uint)tokens * k;
    PLAN_SELECT(false, 0, writes);
    barrier(CLK_LOCAL_MEM_FENCE);
    PLAN_DISPATCH(pairs, writes);
    if (!gathered)
        return;
    local const int *order = SORT_ORDER(sort, pairs); // there have been barriers
    // pairs * cols < 2^32: llmk_moe_steps sees to it.
    const uint chunks = (uint)((cols + 7) / 8), step = get_local_size(0) * get_local_size(1);
    const uint item = get_local_id(1) * get_local_size(0) + get_local_id(0);
    for (uint i = (uint)get_group_id(0) * step + item; i < pairs * chunks;
         i += step * (uint)get_num_groups(0)) {
        const uint row = i / chunks;
        const ulong c = i % chunks * 8;
        const int pair = order[row];
        if (pair >= 0)
            copy8(x + row_begin(x_rows, (uint)pair / k) + c, gathered + row * cols + c,
                  (uint)min(cols - c, (ulong)8), wide);
    }
}

// ---- One token

#define ONE_ITEMS 512
#define TEAM      32 // items that add up an expert's sums
#define TOGETHER  8  // experts whose rows are asked for at once

static inline float dot_of(float8 a, float8 b)
{
    const float4 q = a.lo * b.lo + a.hi * b.hi;
    return q.x + q.y + (q.z + q.w);
}
static inline float8 unpack_any(uint type, uint4 raw)
{
    return type == DT_F16 ? f16_unpack8(raw) : bf16_unpack8(raw);
}

// wide: x and the rows of gate are on 16-byte boundaries. All rows of items choose the same, the first
// one writes.
kernel __attribute__((reqd_work_group_size(TEAM, ONE_ITEMS / TEAM, 1))) void
moe_route_one(global const void *x, const rows_t x_rows, const uint x_type, global const void *gate,
              const rows_t gate_rows, const uint gate_type, const uint hidden, const uint wide,
              global const void *gate_bias, const rows_t gate_bias_rows,
              const uint gate_bias_type, // 0: absent
              SELECT_PARAMETERS, DISPATCH_PARAMETERS, local int4 *sort)
{
    local float parts[TOGETHER][ONE_ITEMS], sums[TOGETHER][TEAM];
    const uint lane = get_local_id(0), team = get_local_id(1), item = team * TEAM + lane;
    for (uint e0 = 0; e0 < experts; e0 += TOGETHER) {
        float sum[TOGETHER];
        for (uint e = 0; e < TOGETHER; e++)
            sum[e] = parts[e][item] = 0.0f;
        SHORT
        for (uint h = item * 8; h < hidden; h += ONE_ITEMS * 8) {
            const uint n = min(hidden - h, 8u);
            if (wide && n == 8 && x_type != DT_F32 && gate_type != DT_F32) {
                // All is asked for before any of it is used.
                const uint4 x_raw =
                    *(global const uint4 *)((global const ushort *)x + x_rows.offset + h);
                uint4 raw[TOGETHER];
                UNROLL
                for (uint e = 0; e < TOGETHER; e++)
                    raw[e] =
                        *(global const uint4 *)((global const ushort *)gate + gate_rows.offset +
                                                min(e0 + e, experts - 1) * gate_rows.s0 + h);
                UNROLL
                for (uint e = 0; e < TOGETHER; e++)
                    sum[e] += dot_of(unpack_any(x_type, x_raw), unpack_any(gate_type, raw[e]));
            } else {
                const float8 v = fetch8_any(x, x_type, x_rows.offset + h, n, wide);
                SHORT
                for (uint e = 0; e < TOGETHER; e++)
                    parts[e][item] +=
                        dot_of(v, fetch8_any(gate, gate_type,
                                             gate_rows.offset +
                                                 min(e0 + e, experts - 1) * gate_rows.s0 + h,
                                             n, wide));
            }
        }
        UNROLL
        for (uint e = 0; e < TOGETHER; e++)
            parts[e][item] += sum[e];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (team < TOGETHER) {
            float one = 0.0f;
            for (uint i = lane; i < ONE_ITEMS; i += TEAM)
                one += parts[team][i];
            sums[team][lane] = one;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane == 0 && team < TOGETHER && e0 + team < experts) {
            float total = 0.0f;
            for (uint l = 0; l < TEAM; l++)
                total += sums[team][l];
            if (gate_bias_type)
                total += load_any(gate_bias, gate_bias_type,
                                  gate_bias_rows.offset + (e0 + team) * gate_bias_rows.inner);
            values[e0 + team] = total;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    PLAN_SELECT(true, 0, true);
    barrier(CLK_LOCAL_MEM_FENCE);
    PLAN_DISPATCH(k, true);
}
