/*
 * checkpoint_reference.h - 4- and 8-bit weights as checkpoints pack them: GPTQ, AWQ,
 * compressed-tensors, and rows of nibbles. Written from the layouts' descriptions, field by field,
 * apart from the library's repacking.
 */
#ifndef CHECKPOINT_REFERENCE_H
#define CHECKPOINT_REFERENCE_H

#include "reference/linear_reference.h"

/* Whether the format has codes, scales and zeros in tensors of their own. */
bool checkpoint_has_tables(llmk_format format);
/* Sets the sizes of w from its format, shape and options. */
void checkpoint_sizes(linear_weights *w);
/* Seeded codes, scales, zeros and order. One group in eight has codes that all mean 0, and zeros of
 * 0 and of all ones occur. */
bool checkpoint_fill(const linear_weights *w, uint32_t seed);
/* Quantised from numbers as round-to-nearest does, the range of each group: row n begins at
 * numbers[n * k % period]. */
bool checkpoint_fill_from(const linear_weights *w, const double *numbers, uint64_t period,
                          uint32_t seed);
/* The same from codes of the caller's: q [k, n]; z and scale [groups, n]; g_idx as it is. */
void checkpoint_pack(const linear_weights *w, const uint8_t *q, const uint8_t *z,
                     const double *scale);
/* The weights of a row of W. */
void checkpoint_row(const linear_weights *w, uint64_t row, double *value);

#endif
