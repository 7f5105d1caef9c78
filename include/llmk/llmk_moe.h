/*
 * llmk_moe.h - mixtures of experts: a part of llmk.h.
 */
#ifndef LLMK_LLMK_MOE_H
#define LLMK_LLMK_MOE_H

#ifndef LLMK_LLMK_H
#error "include <llmk/llmk.h>, which includes this"
#endif

/* ------------------------------------------------------------------------------------------------
 * Mixture of experts: routing
 * --------------------------------------------------------------------------------------------- */

/* What a router's logits become. All are increasing, so that without a correction the k largest
 * logits are chosen. */
typedef enum llmk_moe_score {
    LLMK_MOE_SCORE_NONE = 0,
    LLMK_MOE_SOFTMAX = 1,       /* over all experts */
    LLMK_MOE_SIGMOID = 2,       /* of each */
    LLMK_MOE_SQRT_SOFTPLUS = 3, /* sqrt(log(1 + exp(logit))) */
    LLMK_MOE_TOPK_SOFTMAX = 4   /* the logit; softmax over the k chosen ones (gpt-oss) */
} llmk_moe_score;

/* Divide the weights of a token by their sum. */
#define LLMK_MOE_RENORMALIZE 1u

/* Chooses k of E experts for each of T tokens, and their weights; all of it in f32.
 *
 *     logit[t, e] = sum_h x[t, h] gate[e, h] + router_bias[e]
 *     choice = score(logit) + correction[e]
 *              (LLMK_MOE_TOPK_SOFTMAX: logit + correction[e])
 *     groups > 1: a group's score is the sum of its two best choices where there is a correction,
 *              else its best; experts outside of the top_groups best groups are not chosen
 *     ids[t] = the k largest choices, the largest first, ties to the lower index
 *     weights[t, j] = scale * score(logit of ids[t, j])
 *              (never of the corrected choice), with LLMK_MOE_RENORMALIZE divided by
 *              max(eps, the sum of the k scores)
 *
 * A NaN is the least of choices: whatever the logits, ids are k different ones of 0 ... E - 1.
 * Weights follow the formulas, NaN and infinities included. T E is less than 2^30. DeepSeek-AI,
 * "DeepSeek-V3 Technical Report", 2024. */
typedef struct llmk_moe_route_args {
    size_t struct_size;
    llmk_moe_score score;
    uint32_t flags;      /* LLMK_MOE_RENORMALIZE */
    uint64_t groups;     /* 0 or 1: none; else a divisor of E */
    uint64_t top_groups; /* with groups: 1 ... groups, together at least k experts; else 0 */
    float scale;         /* > 0; 0 means 1 */
    float eps;           /* > 0; 0 means 1e-20 */
    llmk_tensor x;       /* [..., H], f32, f16 or bf16; T is the product of the leading dimensions.
                            Absent: logits is given */
    llmk_tensor gate;    /* [E, H], any of the three, E at most 1024; with x */
    llmk_tensor logits;  /* [T, E], any of the three, instead of x and gate */
    llmk_tensor router_bias; /* [E], any of the three; absent: 0 */
    llmk_tensor correction;  /* [E], any of the three; absent: 0 */
    llmk_tensor ids;         /* out: i32 [T, k], k at most E */
    llmk_tensor weights;     /* out: f32 [T, k] */
    llmk_tensor out_logits;  /* out: f32 [T, E], router_bias included; with x; absent: not stored */
    llmk_workspace *workspace; /* llmk_moe_route_workspace_size() bytes; NULL where that is 0 */
} llmk_moe_route_args;

/* Bytes of workspace that the call needs: 0 where logits or out_logits is given. */
LLMK_API llmk_status llmk_moe_route_workspace_size(llmk_context *ctx,
                                                   const llmk_moe_route_args *args,
                                                   uint64_t *bytes);
/* Errors: as llmk_rmsnorm, and LLMK_BUSY. */
LLMK_API llmk_status llmk_moe_route(llmk_context *ctx, cl_command_queue queue,
                                    const llmk_moe_route_args *args, const llmk_events *events);

/* ------------------------------------------------------------------------------------------------
 * Mixture of experts: dispatch and combine
 * --------------------------------------------------------------------------------------------- */

/* Sorts pairs of token and expert by expert, stably. Pair t * k + j is ids[t, j].
 *
 *     expert e has rows offsets[e] ... offsets[e + 1] - 1, its pairs in their order
 *     source[row]   the pair of a row; -1 from offsets[E] on
 *     inverse[t, j] the row of a pair; -1 where it has none
 *     rows[row]     x[source[row] / k], the token's row of x; zeros from offsets[E] on
 *
 * A pair whose id is out of range, or that the map sends to no expert held here, has no row. An
 * expert may occur twice in a token's ids: it gets two rows. T = 0 is legal: offsets are written
 * then too, all zero. T k is less than 2^30. */
typedef struct llmk_moe_permute_args {
    size_t struct_size;
    uint64_t experts; /* E, the experts held here, 1 ... 1024 */
    llmk_tensor ids;  /* i32 [T, k] */
    llmk_tensor map;  /* i32 [G]: of G experts the one held here, or -1 (any other value outside of
                         0 ... E - 1 counts as -1). Absent: ids are those of the experts held */
    llmk_tensor x;    /* [T, H], f32, f16 or bf16; absent where rows is */
    llmk_tensor offsets; /* out: i32 [E + 1] */
    llmk_tensor source;  /* out: i32 [T k] */
    llmk_tensor inverse; /* out: i32 [T, k] */
    llmk_tensor rows;    /* out: [T k, H], x's dtype; absent: not gathered */
    uint32_t flags;      /* none yet: 0 */
} llmk_moe_permute_args;

/* Errors: as llmk_rmsnorm. */
LLMK_API llmk_status llmk_moe_permute(llmk_context *ctx, cl_command_queue queue,
                                      const llmk_moe_permute_args *args, const llmk_events *events);

/*     y[t] = residual[t] + sum_j weights[t, j] rows[inverse[t, j]]
 *
 * in f32, j in ascending order, rounded once. A pair without a row (inverse outside of 0 ... R - 1)
 * counts as zero, whatever its weight. R is less than 2^30. */
typedef struct llmk_moe_unpermute_args {
    size_t struct_size;
    llmk_tensor rows;     /* [R, H], f32, f16 or bf16 */
    llmk_tensor inverse;  /* i32 [T, k] */
    llmk_tensor weights;  /* [T, k], any of the three; absent: 1 */
    llmk_tensor residual; /* [T, H], any of the three; absent: 0 */
    llmk_tensor y;        /* out: [T, H], any of the three. In place over residual allowed */
    uint32_t flags;       /* none yet: 0 */
} llmk_moe_unpermute_args;

/* Errors: as llmk_rmsnorm. */
LLMK_API llmk_status llmk_moe_unpermute(llmk_context *ctx, cl_command_queue queue,
                                        const llmk_moe_unpermute_args *args,
                                        const llmk_events *events);

/* ------------------------------------------------------------------------------------------------
 * Grouped linear layers
 * --------------------------------------------------------------------------------------------- */

/* A linear layer for each expert, of rows that llmk_moe_permute has put together:
 *
 *     y[r, n] = sum_k x[source[r] / k_a_token, k] W[e, n, k] + bias[e, n]
 *                                                     for offsets[e] <= r < offsets[e + 1]
 *
 * accumulated in f32 and rounded once. Offsets are read on the device, never by the host.
 * offsets[0] counts as 0, and whatever the others hold, nothing is read or written outside of the
 * tensors; rows from offsets[E] on are zeros. R and T are less than 2^30. */
typedef struct llmk_grouped_linear_args {
    size_t struct_size;
    uint64_t experts_a_token;    /* k_a_token of the formula; 0: 1. Only with source */
    llmk_tensor x;               /* [R, K], f32, f16 or bf16; with source [T, K] */
    const llmk_weights *weights; /* E matrices [N, K] (llmk_weights_desc.experts), E at most 1024 */
    llmk_tensor offsets;         /* i32 [E + 1] */
    llmk_tensor source; /* i32 [R]: whose row of x a row has (llmk_moe_permute's). Elements that
                           point outside of x read some row of it. Absent: its own */
    llmk_tensor bias;   /* [E, N], f32, f16 or bf16; absent: 0 */
    llmk_tensor y;      /* out: [R, N], any of the three */
    llmk_workspace *workspace; /* llmk_grouped_linear_workspace_size() bytes */
    uint32_t flags;            /* none yet: 0 */
} llmk_grouped_linear_args;

/* Bytes of workspace that the call needs: some integers for each expert, whatever R is. */
LLMK_API llmk_status llmk_grouped_linear_workspace_size(llmk_context *ctx,
                                                        const llmk_grouped_linear_args *args,
                                                        uint64_t *bytes);
/* Errors: as llmk_rmsnorm, and LLMK_BUSY. */
LLMK_API llmk_status llmk_grouped_linear(llmk_context *ctx, cl_command_queue queue,
                                         const llmk_grouped_linear_args *args,
                                         const llmk_events *events);

/* ------------------------------------------------------------------------------------------------
 * Mixture of experts: the whole layer
 * --------------------------------------------------------------------------------------------- */

/* A layer of E experts, of which k serve a token.
 *
 *     ids, weights = llmk_moe_route of x, or given
 *     h[t, j] = activation(x[t] Wg[e]^T + gate_bias[e]) * (x[t] Wu[e]^T + up_bias[e]),
 *         e = ids[t, j], rounded once to inner
 *     y[t] = sum_j weights[t, j] (h[t, j] Wd[e]^T + down_bias[e])
 *          + sigmoid(x[t] . shared_router) (activation(x[t] Sg^T) * (x[t] Su^T)) Sd^T
 *
 * in f32 but for h, rounded once more at the end. Without shared_router the shared expert counts
 * whole. Experts of a token that are not held here (map) count as zero: the sum over all devices is
 * the layer.
 *
 * The gate's and up's weights are two objects (LLMK_GATE_SPLIT) or the halves, or the even and odd
 * rows, of one; biases are arranged as they are. */
typedef struct llmk_moe_desc {
    size_t struct_size;
    llmk_dtype x_dtype;       /* of x in every call: f32, f16 or bf16 */
    llmk_dtype inner;         /* of h: f32, f16 or bf16; 0: x_dtype. With f16, h beyond 65504 is
                                 infinite */
    uint64_t experts_a_token; /* k */

    /* Routing: as llmk_moe_route_args. Without a gate the calls give ids and weights. */
    llmk_moe_score score;
    uint32_t flags; /* LLMK_MOE_RENORMALIZE */
    uint64_t groups, top_groups;
    float scale, eps;
    llmk_tensor gate;        /* [E, H] */
    llmk_tensor router_bias; /* [E]; absent: 0 */
    llmk_tensor correction;  /* [E]; absent: 0 */
    llmk_tensor map; /* i32 [E]: of E experts the one held here, or -1; absent: all are, in order */

    /* Experts: as llmk_gated_activation_args. F is the width of h. */
    llmk_activation activation;
    llmk_gate_layout layout;
    float limit, alpha;
    const llmk_weights *gate_weights; /* [F, H], or [2F, H] where packed or interleaved */
    const llmk_weights *up_weights;   /* [F, H]; split only. Repacked into the same layout, with the
                                         same groups and the same g_idx as gate_weights */
    const llmk_weights *down_weights; /* [H, F] */
    llmk_tensor gate_bias;            /* [held, F] or [held, 2F]; absent: 0 */
    llmk_tensor up_bias;              /* [held, F]; split only; absent: 0 */
    llmk_tensor down_bias;            /* [held, H]; absent: 0 */

    /* The shared expert, of a width of its own; several are one of their widths together. */
    const llmk_weights *shared_gate_weights, *shared_up_weights, *shared_down_weights; /* or NULL */
    llmk_tensor shared_router; /* [1, H]; absent: the shared expert counts whole */
} llmk_moe_desc;

/* A layer ready to run, with its scratch. Belongs to one call until that call's work is done, as
 * workspaces do. */
typedef struct llmk_moe_plan llmk_moe_plan;

/* Makes a plan for up to max_tokens tokens a call, at least 1; max_tokens times the larger of k and
 * E is less than 2^30. It keeps the buffers of the description's tensors; the weights must not be
 * freed before it. Device memory held is about max_tokens * k * (4 H + F * size of h) bytes, and as
 * much of a shared expert with k = 1; where max_tokens * k * 4 H is less than 64 MiB, eight times
 * that or 64 MiB instead; where kernels want rows of x in the order of the experts,
 * max_tokens * k * 2 H more. Errors: LLMK_INVALID_*, LLMK_BUFFER_TOO_SMALL, LLMK_UNSUPPORTED (gate
 * and up that do not go together), LLMK_OUT_OF_DEVICE_MEMORY, LLMK_OUT_OF_MEMORY,
 * LLMK_OPENCL_ERROR. `*out` is NULL on failure. */
LLMK_API llmk_status llmk_moe_plan_create(llmk_context *ctx, const llmk_moe_desc *desc,
                                          uint64_t max_tokens, llmk_moe_plan **out);
/* Frees a plan; NULL is accepted. */
LLMK_API void llmk_moe_plan_free(llmk_moe_plan *plan);
/* Kernels that llmk_moe_forward enqueues for so many tokens, routed by the plan where it has a
 * gate, whatever the routing: 3 or 4 of up to 8 tokens as a rule, else 3 to 7. A shared expert adds
 * 2, with its router 3; weights of the experts, one for every further buffer that they lie in. 0
 * where plan is NULL. */
LLMK_API uint32_t llmk_moe_plan_kernels(const llmk_moe_plan *plan, uint64_t tokens);

typedef struct llmk_moe_forward_args {
    size_t struct_size;
    llmk_moe_plan *plan;
    llmk_tensor x;       /* [T, H], the plan's x_dtype, T at most its max_tokens */
    llmk_tensor ids;     /* i32 [T, k]: the routing, given; elements out of range count as zero.
                            Absent: the plan's router says */
    llmk_tensor weights; /* [T, k], f32, f16 or bf16; with ids */
    llmk_tensor y;       /* out: [T, H], any of the three; not over the plan's tensors either */
    uint32_t flags;      /* none yet: 0 */
} llmk_moe_forward_args;

/* Reads nothing back and allocates nothing. Only the weights of chosen experts are read. Errors: as
 * llmk_rmsnorm, and LLMK_BUSY (the plan is in use). */
LLMK_API llmk_status llmk_moe_forward(llmk_context *ctx, cl_command_queue queue,
                                      const llmk_moe_forward_args *args, const llmk_events *events);

#endif /* LLMK_LLMK_MOE_H */
