/*
 * mlp_reference.h - one MLP block in f64, with the error that a device storing its intermediate
 * results in a 16- or 32-bit type is entitled to.
 */
#ifndef LLMK_TOOLS_MLP_REFERENCE_H
#define LLMK_TOOLS_MLP_REFERENCE_H

#include "tools/common/mlp_model.h"

/* Runs layer `index` on `rows` rows of x. y gets the result; variance (may be NULL) the variance
 * that roundings to `dtype` after every operator, and f32 accumulation, give each element of y:
 *
 *     rounding v to dtype        (epsilon v)^2 / 3         uniform in an interval of +-epsilon |v|
 *     a sum of K products p      K (2^-24)^2 / 3 sum p^2   a random walk of f32 roundings
 *     y = f(x)                   f'(x)^2 var(x)            first order, independent errors
 *
 * Returns false, with a sentence, where memory runs out or a weight's type has no host conversion.
 */
bool mlp_reference_layer(const mlp_model *model, uint32_t index, uint64_t rows, llmk_dtype dtype,
                         const double *x, double *y, double *variance, char *error,
                         size_t error_size);

#endif
