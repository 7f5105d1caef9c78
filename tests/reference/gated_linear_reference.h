/*
 * gated_linear_reference.h - gate, up and activation in f64.
 */
#ifndef GATED_LINEAR_REFERENCE_H
#define GATED_LINEAR_REFERENCE_H

#include "reference/linear_reference.h"

/* Output f is made of rows f * step of `gate` and up_first + f * step of `up`; biases lie alike. */
typedef struct gated_linear_f64 {
    const linear_weights *gate, *up;
    uint64_t step, up_first, m, n;
    const double *x;                   /* [m, k] */
    const double *gate_bias, *up_bias; /* or NULL */
    const double *residual;            /* [m, n] or NULL */
    llmk_activation activation;
    double limit, alpha;
    llmk_dtype y_type;
    double *y, *bound; /* out: [m, n] */
} gated_linear_f64;

/* The result and the bound of docs/numerics-linear.md. Above 2^30 multiply-adds a sample of the
 * rows of x only, the first and the last among them; the rest gets an infinite bound. False where
 * memory ran out. */
bool reference_gated_linear(const gated_linear_f64 *p);

/* activation(gate) * up, both in error by so much at most, and *error of the result before it is
 * stored: what the activation makes of the corners, and its own roundings. */
double reference_activated(const gated_linear_f64 *p, double gate, double gate_error, double up,
                           double up_error, double *error);

#endif
