/*
 * quant_reference.h - quantize, dequantize and error_report in f64, with the error that their f32
 * forms may have. docs/numerics-quant.md derives the bounds.
 */
#ifndef LLMK_QUANT_REFERENCE_H
#define LLMK_QUANT_REFERENCE_H

#include <llmk/llmk.h>

typedef struct quant_shape {
    llmk_quant_scheme scheme;
    uint64_t n, k;
    uint64_t group_size; /* as in llmk_quantize_args */
} quant_shape;

/* Elements of a group, 1 or more; groups of a row; scales in all. */
uint64_t quant_group_elements(const quant_shape *s);
uint64_t quant_row_groups(const quant_shape *s);
uint64_t quant_scales(const quant_shape *s);
/* Which scale element `index` has. */
uint64_t quant_scale_of(const quant_shape *s, uint64_t index);

/* Results and their bounds, row-major and contiguous. zero and its bound: asymmetric only. */
typedef struct quant_result {
    double *q, *q_bound, *scale, *scale_bound, *zero, *zero_bound;
} quant_result;
void quant_reference(const quant_shape *s, const double *x, const quant_result *result);

/* y and its bound before the store to y's dtype. */
void dequant_reference(const quant_shape *s, const double *q, const double *scale,
                       const double *zero, double *y, double *y_bound);

/* stats and bound: the eight members of llmk_error_stats. */
void error_report_reference(uint64_t count, const double *reference, const double *approximation,
                            double stats[8], double bound[8]);

#endif
