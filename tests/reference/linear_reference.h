/*
 * linear_reference.h - the linear layer in f64, and weights in the formats that the library reads:
 * quantised and dequantised here, from the formats' own definitions.
 */
#ifndef LINEAR_REFERENCE_H
#define LINEAR_REFERENCE_H

#include <llmk/llmk.h>

/* W [n, k] as a checkpoint holds it. */
typedef struct linear_weights {
    llmk_format format;
    uint64_t n, k;
    uint64_t group;     /* LLMK_FORMAT_W8; 0: one scale a row */
    uint64_t row_bytes; /* distance of two rows of data */
    uint64_t data_bytes, scales_bytes;
    uint8_t *data;
    float *scales; /* [n, ceil(k / group)] */
} linear_weights;

/* Bytes of a packed row. */
uint64_t linear_row_bytes(llmk_format format, uint64_t k);
/* Sets the sizes; data and scales are the caller's to provide, data filled with anything. */
void linear_weights_sizes(linear_weights *w, llmk_format format, uint64_t n, uint64_t k,
                          uint64_t group, uint64_t row_padding);
/* Seeded weights uniform in [-1, 1], quantised. Padding between rows is left as it is. */
void linear_weights_fill(const linear_weights *w, uint32_t seed);
/* value[k]: the weights of a row. magnitude[k]: the sum of the magnitudes of their terms, which
 * exceeds |value| where a minimum is added. */
void linear_weights_row(const linear_weights *w, uint64_t row, double *value, double *magnitude);

/* y = x W^T + bias + residual. */
typedef struct linear_problem_f64 {
    const linear_weights *w;
    uint64_t m;
    const double *x;        /* [m, k] */
    const double *bias;     /* [n] or NULL */
    const double *residual; /* [m, n] or NULL */
    llmk_dtype y_type;
    double *y, *bound; /* out: [m, n] */
} linear_problem_f64;

/* The result and the bound of docs/numerics.md on its error, storage included. Above 2^31
 * multiply-adds only a sample of outputs is computed - the edges of 64 x 64 tiles, and several
 * others of every column; the rest gets an infinite bound. */
void linear_reference(const linear_problem_f64 *p);

/* Roundings that any one product goes through on its way into y. */
double linear_depth(uint64_t k);

#endif
