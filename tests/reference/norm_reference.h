/*
 * norm_reference.h - RMSNorm, gated activations and addition in f64, with the error that f32
 * arithmetic may leave. docs/numerics-norm.md derives the bounds.
 */
#ifndef LLMK_NORM_REFERENCE_H
#define LLMK_NORM_REFERENCE_H

#include <llmk/llmk.h>

/* Values are what the tensors hold, row-major without strides; absent tensors are NULL. */
typedef struct rmsnorm_reference {
    uint64_t rows, h;
    const double *x, *weight, *residual;
    double eps;
    bool double_rounding, weight_plus_one;
    llmk_dtype y_dtype, sum_dtype;
    double *y, *y_bound, *sum, *sum_bound; /* out; sum may be NULL */
} rmsnorm_reference;

void reference_rmsnorm(const rmsnorm_reference *r);

/* One element, from what gate, up and the biases hold. */
typedef struct gated_reference {
    llmk_activation activation;
    double limit, alpha;
    llmk_dtype y_dtype;
} gated_reference;

double reference_gated(const gated_reference *r, double gate, double gate_bias, double up,
                       double up_bias, double *bound);

double reference_add(llmk_dtype y_dtype, double a, double b, double *bound);

#endif
