/*
 * linear_reference.h - the linear layer in f64, and weights in the formats that the library reads:
 * quantised and dequantised here, from the formats' own definitions.
 */
#ifndef LINEAR_REFERENCE_H
#define LINEAR_REFERENCE_H

#include <llmk/llmk.h>

/* Options of formats with tensors of their own for scales and zeros. */
typedef enum linear_zeros {
    LINEAR_ZEROS = 0, /* as the format packs them */
    LINEAR_SYMMETRIC, /* none */
    LINEAR_ZEROS_I8   /* compressed-tensors, not packed */
} linear_zeros;

typedef enum linear_order {
    LINEAR_IN_ORDER = 0, /* no g_idx */
    LINEAR_ACT_ORDER,    /* groups of their size, shuffled */
    LINEAR_UNEVEN,       /* groups of any sizes */
    LINEAR_ORDER_PLAIN,  /* g_idx says k / group */
    LINEAR_ORDER_ZERO    /* g_idx is all zero, which says nothing */
} linear_order;

/* W [n, k] as a checkpoint holds it. */
typedef struct linear_weights {
    llmk_format format;
    uint64_t n, k;
    uint64_t group;     /* 0: all of K */
    uint64_t row_bytes; /* distance of two rows of data */
    uint64_t row_padding;
    uint32_t bits; /* of formats of 4 or 8; 0: 4 */
    llmk_dtype scale_type;
    linear_zeros zeros_as;
    linear_order order;
    uint64_t data_bytes, scales_bytes, zeros_bytes, g_idx_bytes;
    uint8_t *data;
    void *scales; /* LLMK_FORMAT_W8: f32 [n, ceil(k / group)] */
    uint8_t *zeros;
    uint32_t *g_idx;
} linear_weights;

/* Bytes of a packed row of formats that have rows. */
uint64_t linear_row_bytes(llmk_format format, uint64_t k);
/* Sets the sizes from the format, the shape and the options; data and the others are the caller's
 * to provide, data filled with anything. */
void linear_weights_set_sizes(linear_weights *w);
void linear_weights_sizes(linear_weights *w, llmk_format format, uint64_t n, uint64_t k,
                          uint64_t group, uint64_t row_padding);
/* What llmk_weights_create takes. */
llmk_weights_desc linear_weights_describe(const linear_weights *w);
/* Seeded weights uniform in [-1, 1], quantised. Padding between rows is left as it is. False where
 * memory ran out. */
bool linear_weights_fill(const linear_weights *w, uint32_t seed);
/* Weights as they occur: normal, of deviation 0.02, as those of bench/peers, and quantised from
 * such. Numbers, or rows, repeat after a while. */
bool linear_weights_fill_as_they_occur(const linear_weights *w, uint32_t seed);
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
    bool w8a8;              /* x is quantised, row by row */
    bool sample;            /* not more than is worth it for one of many candidates */
    llmk_dtype y_type;
    double *y, *bound; /* out: [m, n] */
} linear_problem_f64;

/* The result and the bound of docs/numerics-linear.md on its error, storage included. Above 2^31
 * multiply-adds only a sample of outputs is computed - the edges of 64 x 64 tiles, and several
 * others of every column; the rest gets an infinite bound. With `sample` that begins above 2^27,
 * and it is every eighth column, by chance, that has others. With w8a8 the result is that of the
 * codes, and the bound that of the roundings at the end; that it is as near to the product of x
 * itself as the documents say is asserted. False where memory ran out. */
bool linear_reference(const linear_problem_f64 *p);

/* Roundings that any one product goes through on its way into y. */
double linear_depth(uint64_t k);

/* A row of weights, and the magnitudes of its terms (linear_weights_row). */
typedef struct linear_row {
    double *value, *magnitude;
} linear_row;

bool linear_row_make(linear_row *r, uint64_t k);
void linear_row_free(linear_row *r);
/* x . w + bias; *error: its bound, where x itself errs by x_error (or NULL). */
double linear_row_product(const double *x, const double *x_error, const linear_row *w, uint64_t k,
                          double bias, double *error);

#endif
