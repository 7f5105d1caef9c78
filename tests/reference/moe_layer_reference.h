/* moe_layer_reference.h - experts of a mixture in f64, and the bounds on their outputs. */
#ifndef MOE_LAYER_REFERENCE_H
#define MOE_LAYER_REFERENCE_H

#include "reference/linear_reference.h"

/* Experts of a gated pair [.., H] and a down matrix [H, F]. Gate's output f is row f * step of its
 * matrix, up's row up_first + f * step of its own: the gate's where up is NULL. */
typedef struct moe_experts_f64 {
    uint64_t hidden, width; /* H, F */
    uint64_t made;          /* of how many experts there are weights: those of e % made */
    const linear_weights *gate, *up, *down;
    uint64_t step, up_first;
    const double *gate_bias,
        *up_bias; /* a row an expert, bias_pitch apart, as the matrices' rows */
    uint64_t bias_pitch;
    const double *down_bias; /* [experts, H] or NULL */
    llmk_activation activation;
    double limit, alpha;
    llmk_dtype inner;
} moe_experts_f64;

/* Expert e's outputs of `rows` rows of x [rows, H], and the bounds of their errors in f32: [rows,
 * H]. False where memory ran out. */
bool moe_reference_expert(const moe_experts_f64 *m, uint64_t e, uint64_t rows, const double *x,
                          double *out, double *bound);

#endif
