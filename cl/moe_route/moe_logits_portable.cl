// The router's product: a team of 32 items computes four tokens by four experts. Of few tokens or few
// experts, two or four teams have the same ones and share K. What an item reads in a step is asked for
// before any of it is used: the time is that of waiting for memory, not of the products.
//
//     -DX=f32 | f16 | bf16 -DG=...   x, and the gate
#include "common/rows.clh"
#include "common/vectors.clh"
#include "moe_route/moe_logits.clh"

#define TEAM  32
#define TEAMS 4
#define BLOCK 4 // tokens, and experts of a team

#define ADD_PRODUCTS                                                                               \
    UNROLL                                                                                         \
    for (uint i = 0; i < BLOCK; i++)                                                               \
        UNROLL                                                                                     \
        for (uint j = 0; j < BLOCK; j++)                                                           \
            sum[i][j] += dot8(v[i], w[j])

// wide: rows of x and of gate are on 16-byte boundaries. ways: teams that share K.
kernel __attribute__((reqd_work_group_size(TEAM *TEAMS, 1, 1))) void
moe_logits(global const elem(X) *x, const rows_t x_rows, global const elem(G) *gate,
           const rows_t gate_rows, global const void *router_bias, const rows_t router_bias_rows,
           const uint router_bias_type, // 0: absent
           global float *logits, const rows_t logits_rows, const ulong first, const ulong tokens,
           const uint hidden, const uint experts, const uint wide, const uint ways)
{
    local float parts[BLOCK * BLOCK][TEAM * TEAMS + 1];
    const uint item = get_local_id(0), lane = item % TEAM, team = item / TEAM;
    const ulong t0 = first + get_group_id(1) * BLOCK;
    const uint e0 = ((uint)get_group_id(0) * (TEAMS / ways) + team / ways) * BLOCK;
    const uint step = TEAM * 8 * ways;
    uint h = (team % ways * TEAM + lane) * 8;
    global const elem(X) *x_row[BLOCK];
    global const elem(G) *gate_row[BLOCK];
    float sum[BLOCK][BLOCK];
    float8 v[BLOCK], w[BLOCK];
    UNROLL
    for (uint i = 0; i < BLOCK; i++) { // beyond the edge the last one again, not to be stored
        x_row[i] = x + row_begin(x_rows, min(t0 + i, tokens - 1));
        gate_row[i] = gate + row_begin(gate_rows, min(e0 + i, experts - 1));
        UNROLL
        for (uint j = 0; j < BLOCK; j++)
            sum[i][j] = 0.0f;
    }
    if (wide) {
        TWICE
        for (; h + 8 <= hidden; h += step) {
            raw8(X) xs[BLOCK];
            raw8(G) gates[BLOCK];
            UNROLL
            for (uint i = 0; i < BLOCK; i++) {
                xs[i] = cached_raw8(X)(x_row[i], h);
                gates[i] = cached_raw8(G)(gate_row[i], h);
            }
            UNROLL
            for (uint i = 0; i < BLOCK; i++) {
                v[i] = unpack8(X)(xs[i]);
                w[i] = unpack8(G)(gates[i]);
            }
            ADD_PRODUCTS;
        }
    }
    for (; h < hidden; h += step) {
        UNROLL
        for (uint i = 0; i < BLOCK; i++) {
            v[i] = gather8(X)(x_row[i], h, 1, hidden);
            w[i] = gather8(G)(gate_row[i], h, 1, hidden);
        }
        ADD_PRODUCTS;
    }
    UNROLL
    for (uint i = 0; i < BLOCK * BLOCK; i++)
        parts[i][item] = sum[i / BLOCK][i % BLOCK];
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint i = lane / BLOCK, e = e0 + lane % BLOCK;
    if (lane < BLOCK * BLOCK && t0 + i < tokens && e < experts && team % ways == 0) {
        float total = 0.0f;
        for (uint way = team; way < team + ways; way++) {
            float one = 0.0f; // a team at a time, for fewer roundings
            for (uint l = 0; l < TEAM; l++)
                one += parts[lane][way * TEAM + l];
            total += one;
        }
        if (router_bias_type)
            total += load_any(router_bias, router_bias_type,
                              router_bias_rows.offset + e * router_bias_rows.inner);
        logits[row_begin(logits_rows, t0 + i) + e * logits_rows.inner] = total;
    }
}
