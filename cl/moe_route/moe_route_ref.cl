// The router, as the formulas read: one work-item a token, any types, any strides.
#include "moe_route/moe_route.clh"

// The best expert of first ... first + count - 1 that is not taken.
static inline uint best_of(const float *choice, const uchar *taken, uint first, uint count)
{
    uint best = first;
    bool found = false;
    for (uint e = first; e < first + count; e++)
        if (!taken[e] && (!found || choice_key(choice[e]) > choice_key(choice[best]))) {
            best = e;
            found = true;
        }
    return best;
}

static inline float group_score(const float *choice, uchar *taken, uint first, uint width, bool two)
{
    const uint best = best_of(choice, taken, first, width);
    float sum = choice_of(choice_key(choice[best]));
    if (two && width > 1) {
        taken[best] = 1;
        sum += choice_of(choice_key(choice[best_of(choice, taken, first, width)]));
        taken[best] = 0;
    }
    return sum;
}

kernel void moe_route_ref(global const void *x, const rows_t x_rows, const uint x_type,
                          global const void *gate, const rows_t gate_rows, const uint gate_type,
                          global const void *logits, const rows_t logits_rows,
                          const uint logits_type, // 0: x and gate
                          global const void *router_bias, const rows_t router_bias_rows,
                          const uint router_bias_type, // 0: absent
                          global const void *correction, const rows_t correction_rows,
                          const uint correction_type, // 0: absent
                          global int *ids, const rows_t ids_rows,
                          global float *weights, const rows_t weights_rows,
                          global float *out_logits, const rows_t out_logits_rows, // may be NULL
                          const ulong tokens, const ulong hidden, const uint experts, const uint k,
                          const uint score, const uint groups, const uint top_groups,
                          const uint renormalize, const float scale, const float eps)
{
    const ulong t = get_global_id(0);
    if (t >= tokens)
        return;
    float logit[MAX_EXPERTS], choice[MAX_EXPERTS], largest = -INFINITY, sum = 0.0f;
    uchar taken[MAX_EXPERTS];
    for (uint e = 0; e < experts; e++) {
        float v = 0.0f;
        if (logits_type)
            v = load_any(logits, logits_type, row_begin(logits_rows, t) + e * logits_rows.inner);
        for (ulong h0 = 0; !logits_type && h0 < hidden; h0 += 32) {
            float part = 0.0f;
            for (ulong h = h0; h < min(h0 + 32, hidden); h++)
                part += load_any(x, x_type, row_begin(x_rows, t) + h * x_rows.inner) *
                        load_any(gate, gate_type, row_begin(gate_rows, e) + h * gate_rows.inner);
            v += part;
        }
        if (router_bias_type)
            v += load_any(router_bias, router_bias_type,
                          router_bias_rows.offset + e * router_bias_rows.inner);
        if (out_logits)
            out_logits[row_begin(out_logits_rows, t) + e * out_logits_rows.inner] = v;
        logit[e] = v;
        largest = fmax(largest, v);
        taken[e] = 0;
    }
    for (uint e = 0; e < experts; e++)
        sum += exp(logit[e] - largest);
    for (uint e = 0; e < experts; e++) {
        choice[e] = logit[e];
        if (correction_type) {
            if (score != TOPK_SOFTMAX)
                choice[e] = score_of(score, logit[e], largest, sum);
            choice[e] += load_any(correction, correction_type,
                                  correction_rows.offset + e * correction_rows.inner);
        }
    }

    // The worst groups are excluded one by one: of equals, the last.
    const uint width = experts / max(groups, 1u);
    for (uint left = groups; left > top_groups; left--) {
        uint worst = groups;
        float least = 0.0f;
        for (uint g = 0; g < groups; g++) {
            if (taken[g * width] == 2)
                continue;
            const float v = group_score(choice, taken, g * width, width, correction_type != 0);
            if (worst == groups || choice_key(v) <= choice_key(least)) {
                worst = g;
                least = v;
            }
        }
        for (uint e = worst * width; e < (worst + 1) * width; e++)
            taken[e] = 2;
    }

    global int *id = ids + row_begin(ids_rows, t);
    float chosen_largest = -INFINITY;
    for (uint j = 0; j < k; j++) {
        const uint e = best_of(choice, taken, 0, experts);
        taken[e] = 1;
        id[j * ids_rows.inner] = e;
        chosen_largest = fmax(chosen_largest, logit[e]);
    }
    if (score == TOPK_SOFTMAX) {
        largest = chosen_largest;
        sum = 0.0f;
        for (uint j = 0; j < k; j++)
            sum += exp(logit[id[j * ids_rows.inner]] - largest);
    }
    float total = 0.0f;
    for (uint j = 0; j < k; j++)
        total += score_of(score, logit[id[j * ids_rows.inner]], largest, sum);
    const float divisor = total < eps ? eps : total;
    for (uint j = 0; j < k; j++) {
        const float s = score_of(score, logit[id[j * ids_rows.inner]], largest, sum);
        weights[row_begin(weights_rows, t) + j * weights_rows.inner] =
            (renormalize ? s / divisor : s) * scale;
    }
}
