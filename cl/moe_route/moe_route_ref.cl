// The router, as the formulas read, any types and strides: one work-item a logit, then one a token.
#include "moe_route/moe_route.clh"

kernel void moe_logits_ref(global const void *x, const rows_t x_rows, const uint x_type,
                           global const void *gate, const rows_t gate_rows, const uint gate_type,
                           global const void *router_bias, const rows_t router_bias_rows,
                           const uint router_bias_type, // 0: absent
                           global float *logits, const rows_t logits_rows, const ulong tokens,
                           const ulong hidden, const uint experts)
{
    const uint e = get_global_id(0);
    if (e >= experts)
        return;
    for (ulong t = get_global_id(1); t < tokens; t += get_global_size(1)) {
        float sum = 0.0f;
        for (ulong h0 = 0; h0 < hidden; h0 += 32) {
            float part = 0.0f;
            for (ulong h = h0; h < min(h0 + 32, hidden); h++)
                part += load_any(x, x_type, row_begin(x_rows, t) + h * x_rows.inner) *
                        load_any(gate, gate_type, row_begin(gate_rows, e) + h * gate_rows.inner);
            sum += part;
        }
        if (router_bias_type)
            sum += load_any(router_bias, router_bias_type,
                            router_bias_rows.offset + e * router_bias_rows.inner);
        logits[row_begin(logits_rows, t) + e * logits_rows.inner] = sum;
    }
}

// A token's logits, and what becomes of them.
typedef struct {
    global const void *logits;
    ulong begin, inner;
    uint type;
    global const void *bias;
    rows_t bias_rows;
    uint bias_type;
    global const void *correction;
    rows_t correction_rows;
    uint correction_type;
    uint score;
    float largest, sum; // of the softmax over all experts
} token_t;

static inline float logit_of(const token_t *t, uint e)
{
    const float v = load_any(t->logits, t->type, t->begin + e * t->inner);
    if (!t->bias_type)
        return v;
    return v + load_any(t->bias, t->bias_type, t->bias_rows.offset + e * t->bias_rows.inner);
}

static inline uint key_of(const token_t *t, uint e)
{
    float choice = logit_of(t, e);
    if (t->correction_type) {
        if (t->score != TOPK_SOFTMAX)
            choice = score_of(t->score, choice, t->largest, t->sum);
        choice += load_any(t->correction, t->correction_type,
                           t->correction_rows.offset + e * t->correction_rows.inner);
    }
    return choice_key(choice);
}

static inline uint group_key(const token_t *t, uint g, uint width)
{
    uint best = KEY_EXCLUDED, second = KEY_EXCLUDED;
    for (uint e = g * width; e < (g + 1) * width; e++) {
        const uint key = key_of(t, e);
        if (key > best) {
            second = best;
            best = key;
        } else if (key > second) {
            second = key;
        }
    }
    return choice_key(t->correction_type && width > 1 ? choice_of(best) + choice_of(second)
                                                      : choice_of(best));
}

kernel void moe_route_ref(global const void *logits, const rows_t logits_rows,
                          const uint logits_type, global const void *router_bias,
                          const rows_t router_bias_rows,
                          const uint router_bias_type, // 0: absent
                          global const void *correction, const rows_t correction_rows,
                          const uint correction_type, // 0: absent
                          global int *ids, const rows_t ids_rows, global float *weights,
                          const rows_t weights_rows, const ulong tokens, const uint experts,
                          const uint k, const uint score, const uint groups,
                          const uint top_groups, const uint renormalize, const float scale,
                          const float eps)
{
    const ulong row = get_global_id(0);
    if (row >= tokens)
        return;
    token_t t = {logits, row_begin(logits_rows, row), logits_rows.inner, logits_type,
                 router_bias, router_bias_rows, router_bias_type,
                 correction, correction_rows, correction_type, score, -INFINITY, 0.0f};
    for (uint e = 0; e < experts; e++)
        t.largest = fmax(t.largest, logit_of(&t, e));
    for (uint e = 0; e < experts; e++)
        t.sum += exp(logit_of(&t, e) - t.largest);

    uint kept[MAX_EXPERTS / 32]; // a bit a group
    for (uint i = 0; i < MAX_EXPERTS / 32; i++)
        kept[i] = groups > 1 ? 0 : ~0u;
    const uint width = groups > 1 ? experts / groups : experts;
    for (uint g = 0; groups > 1 && g < groups; g++) {
        const uint mine = group_key(&t, g, width);
        uint place = 0;
        for (uint o = 0; o < groups; o++) {
            const uint other = group_key(&t, o, width);
            place += other > mine || (other == mine && o < g);
        }
        if (place < top_groups)
            kept[g / 32] |= 1u << g % 32;
    }

    // The next best comes after the last one: a lesser key, or the same and a higher index.
    global int *id = ids + row_begin(ids_rows, row);
    uint last_key = 0xffffffffu;
    int last = -1;
    float chosen_largest = -INFINITY;
    for (uint j = 0; j < k; j++) {
        uint best_key = KEY_EXCLUDED;
        int best = 0;
        for (int e = 0; e < (int)experts; e++) {
            const uint g = e / width, key = key_of(&t, e);
            const bool is_kept = kept[g / 32] >> g % 32 & 1;
            if (is_kept && (key < last_key || (key == last_key && e > last)) && key > best_key) {
                best_key = key;
                best = e;
            }
        }
        id[j * ids_rows.inner] = last = best;
        last_key = best_key;
        chosen_largest = fmax(chosen_largest, logit_of(&t, best));
    }

    float largest = t.largest, sum = t.sum, total = 0.0f;
    if (score == TOPK_SOFTMAX) {
        largest = chosen_largest;
        sum = 0.0f;
        for (uint j = 0; j < k; j++)
            sum += exp(logit_of(&t, id[j * ids_rows.inner]) - largest);
    }
    for (uint j = 0; j < k; j++)
        total += score_of(score, logit_of(&t, id[j * ids_rows.inner]), largest, sum);
    const float divisor = total < eps ? eps : total;
    for (uint j = 0; j < k; j++) {
        const float s = score_of(score, logit_of(&t, id[j * ids_rows.inner]), largest, sum);
        weights[row_begin(weights_rows, row) + j * weights_rows.inner] =
            (renormalize ? s / divisor : s) * scale;
    }
}
