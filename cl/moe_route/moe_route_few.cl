// Few tokens: the router's product, the choice of experts, their dispatch, and where x's rows are to lie
// in the order of the sorted pairs, that, in one launch.
//
// A work-group computes the logits of one or two tokens by eight experts. The last one that has these tokens
// chooses their experts, and the last one that chooses sorts. Rows are copied by work-groups of later
// tickets, one a token, which wait for all choices and find by themselves where theirs go.
//
//     -DTOKENS=1 | 2   of a work-group
#include "common/chunk.clh"
#include "common/meet.clh"
#include "common/vectors.clh"
#include "moe_permute/moe_dispatch.clh"
#include "moe_route/moe_choice.clh"
#include "moe_route/moe_logits.clh"

#define EXPERTS 8
#define ITEMS   256
#define LANES   (ITEMS / TOKENS)
#define SUMS    (TOKENS * EXPERTS)
#define SHARES  (ITEMS / SUMS) // items that add up a sum

// The rows of a work-group, beyond the edge the last one again.
typedef struct {
    ulong x[TOKENS], gate[EXPERTS];
} places_t;

// Whole vectors of h on 16-byte boundaries, all of a step's asked for before any is used.
#define PRODUCTS(X, G, unroll)                                                                     \
    unroll                                                                                         \
    for (; h + 8 <= hidden; h += ITEMS * 8) {                                                      \
        raw8(X) xs[TOKENS];                                                                        \
        raw8(G) gates[EXPERTS];                                                                    \
        UNROLL                                                                                     \
        for (uint i = 0; i < TOKENS; i++)                                                          \
            xs[i] = cached_raw8(X)((global const elem(X) *)x, at.x[i] + h);                        \
        UNROLL                                                                                     \
        for (uint j = 0; j < EXPERTS; j++)                                                         \
            gates[j] = cached_raw8(G)((global const elem(G) *)gate, at.gate[j] + h);               \
        UNROLL                                                                                     \
        for (uint j = 0; j < EXPERTS; j++) {                                                       \
            const float8 w = unpack8(G)(gates[j]);                                                 \
            UNROLL                                                                                 \
            for (uint i = 0; i < TOKENS; i++)                                                      \
                sum[i * EXPERTS + j] += dot8(unpack8(X)(xs[i]), w);                                \
        }                                                                                          \
    }

// The sums over K: sum j of token i is total[i * EXPERTS + j], of the work-group, after a barrier.
static inline __attribute__((always_inline)) void
products(global const void *x, const uint x_type, global const void *gate, const uint gate_type,
         const places_t at, const uint hidden, const uint wide, const uint item,
         local float (*parts)[ITEMS + SHARES], local float (*shares)[SHARES + 1], local float *total)
{
    float sum[SUMS];
    uint h = item * 8;
    UNROLL
    for (uint i = 0; i < SUMS; i++)
        sum[i] = 0.0f;
    if (wide) {
        if (x_type == DT_F16 && gate_type == DT_F16) {
            PRODUCTS(f16, f16, TWICE)
        } else if (x_type == DT_BF16 && gate_type == DT_BF16) {
            PRODUCTS(bf16, bf16, TWICE)
        } else if (x_type == DT_F16 && gate_type == DT_F32) {
            PRODUCTS(f16, f32, SHORT)
        } else if (x_type == DT_BF16 && gate_type == DT_F32) {
            PRODUCTS(bf16, f32, SHORT)
        }
    }
    SHORT
    for (; h < hidden; h += ITEMS * 8) {
        const uint n = min(hidden - h, 8u);
        float8 v[TOKENS];
        UNROLL
        for (uint i = 0; i < TOKENS; i++)
            v[i] = fetch8_any(x, x_type, at.x[i] + h, n, wide);
        UNROLL
        for (uint j = 0; j < EXPERTS; j++) {
            const float8 w = fetch8_any(gate, gate_type, at.gate[j] + h, n, wide);
            UNROLL
            for (uint i = 0; i < TOKENS; i++)
                sum[i * EXPERTS + j] += dot8(v[i], w);
        }
    }
    UNROLL
    for (uint i = 0; i < SUMS; i++)
        parts[i][item] = sum[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    float one = 0.0f;
    UNROLL
    for (uint i = 0; i < ITEMS; i += SHARES)
        one += parts[item / SHARES][i + item % SHARES];
    shares[item / SHARES][item % SHARES] = one;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < SUMS) {
        float all = 0.0f;
        UNROLL
        for (uint i = 0; i < SHARES; i++)
            all += shares[item][i];
        total[item] = all;
    }
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

// A row of x, as often as its token has experts held here. copies: false for nothing but barriers.
static inline void copy_row(const bool copies, global const ushort *from, global ushort *to,
                            const uint token, const uint cols, const uint pairs, const uint k,
                            const uint wide, const uint item, local const int *expert,
                            local int *place)
{
    SHORT
    for (uint j = item; j < k; j += ITEMS)
        place[j] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    // Sixteen items a pair: more would wait for each other's sums.
    const uint quads = SORT_QUADS(pairs);
    SHORT
    for (uint i = item; i < 16 * k; i += ITEMS) {
        const uint part = i % 16, of = token * k + i / 16;
        atomic_add(&place[i / 16], pairs_before((local const int4 *)expert, of, expert[of],
                                                quads * part / 16, quads * (part + 1) / 16));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    SHORT
    for (uint c = item * 8; c < cols && copies; c += ITEMS * 8)
        for (uint j = 0; j < k; j++)
            if (expert[token * k + j] >= 0)
                copy8(from + c, to + (ulong)place[j] * cols + c, min(cols - c, 8u), wide);
}

// Of meet, where work-groups meet, all 0 before and after a call.
enum { TICKETS, CHOICES, LEFT, BLOCKS /* one for TOKENS tokens */ };

// wide: x, its rows and those of gate and gathered are on 16-byte boundaries.
kernel __attribute__((reqd_work_group_size(LANES, TOKENS, 1))) RESIDENT(2) void
moe_route_few(global const void *x, const rows_t x_rows, const uint x_type, global const void *gate,
              const rows_t gate_rows, const uint gate_type, const uint hidden, const uint wide,
              global const void *gate_bias, const rows_t gate_bias_rows,
              const uint gate_bias_type,                                // 0: absent
              SELECT_PARAMETERS, DISPATCH_PARAMETERS, local int4 *sort,
              local int *told, // one; PoCL 3.1 has one for all work-groups where it is the kernel's own
              volatile global int *meet, global ushort *gathered /* NULL: not */)
{
    local float sums[SUMS][ITEMS + SHARES], shares[SUMS][SHARES + 1], total[SUMS];
    const bool alone = tokens <= TOKENS && !gathered; // the one work-group that chooses
    const uint item = get_local_id(1) * LANES + get_local_id(0), pairs = (uint)tokens * k;
    const uint parts = (experts + EXPERTS - 1) / EXPERTS;
    const uint blocks = (uint)(tokens + TOKENS - 1) / TOKENS;
    // Nobody waits where nothing is gathered.
    const uint next = (uint)meet_ticket(gathered != 0, &meet[TICKETS], told);
    const uint ticket = gathered ? next : (uint)get_group_id(0);
    const bool copies = ticket >= blocks * parts;
    bool mine = !copies; // what follows is this work-group's
    WHERE (mine) {
        const uint block = HOLDS(mine) ? ticket / parts : 0, part = ticket % parts;
        places_t at;
        UNROLL
        for (uint i = 0; i < TOKENS; i++)
            at.x[i] = row_begin(x_rows, min((ulong)block * TOKENS + i, tokens - 1));
        UNROLL
        for (uint j = 0; j < EXPERTS; j++)
            at.gate[j] = row_begin(gate_rows, min(part * EXPERTS + j, experts - 1));
        products(x, x_type, gate, gate_type, at, hidden, wide, item, sums, shares, total);
        const uint row = item / EXPERTS, e = part * EXPERTS + item % EXPERTS;
        if (item < SUMS && e < experts) {
            float logit = total[item];
            if (gate_bias_type)
                logit += load_any(gate_bias, gate_bias_type,
                                  gate_bias_rows.offset + e * gate_bias_rows.inner);
            if (parts == 1)
                values[row * experts + e] = logit;
            else if (block * TOKENS + row < tokens && HOLDS(mine))
                ((global float *)logits)[(ulong)(block * TOKENS + row) * experts + e] = logit;
        }
        volatile global int *met = parts == 1 ? 0 : &meet[BLOCKS + block];
        mine = meet_last(HOLDS(mine), met, parts, told);
        LEAVE_UNLESS(mine);
        if (item == 0 && met && HOLDS(mine))
            *met = 0;
        PLAN_SELECT(parts == 1, (ulong)block * TOKENS, HOLDS(mine));
        mine = meet_last(HOLDS(mine), alone ? 0 : &meet[CHOICES], blocks, told);
        LEAVE_UNLESS(mine);
        put_experts(ids, alone ? chosen : 0, pairs, item, ITEMS, sort, map, map_rows, id_end, held);
        PLAN_DISPATCH(HOLDS(mine));
    }
    WHERE (copies) {
        const uint token = HOLDS(copies) ? ticket - blocks * parts : 0;
        meet_all(HOLDS(copies), &meet[CHOICES], blocks);
        put_experts(ids, 0, pairs, item, ITEMS, sort, map, map_rows, id_end, held);
        copy_row(HOLDS(copies), (global const ushort *)x + row_begin(x_rows, token), gathered, token,
                 hidden, pairs, k, wide, item, (local const int *)sort, chosen);
    }
    // Who leaves last sets the counts back.
    mine = meet_last(mine || copies, gathered ? &meet[LEFT] : 0, 1 + (uint)tokens, told);
    if (item == 0 && mine && !alone)
        meet[TICKETS] = meet[CHOICES] = meet[LEFT] = 0;
}
