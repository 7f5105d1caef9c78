/* linear_selftest.h - small linear layers with known weights. */
#ifndef LLMK_LINEAR_SELFTEST_H
#define LLMK_LINEAR_SELFTEST_H

#include "core/weights.h"
#include "ops/operator.h"

/* The N of its widest products. In a trial f32 takes its wide tile from there on. */
#define LLMK_LINEAR_TRIAL_WIDE_N 96

/* Runs t's variant on weights that look to kernels as `like` does: on 8 rows of x and on `rows`;
 * even: on groups of whole chunks only. */
llmk_status llmk_linear_self_test(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                  llmk_dtype y, uint64_t rows, bool even);

/* The same for variants that want x on 16-byte boundaries and groups of many weights: on 20, 40, 70
 * and 150 rows of x. */
llmk_status llmk_linear_self_test_wide(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                       llmk_dtype y);

/* And for tiles of 256 rows of x, of float weights: two above each other and two side by side. */
llmk_status llmk_linear_self_test_tall(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                       llmk_dtype y);

/* For up to 128 rows of x that boxes can bring, of float weights, with and without a workspace. */
llmk_status llmk_linear_self_test_boxes(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                        llmk_dtype y);

/* The same for those that have a kernel for rows of x on 16-byte boundaries and K in whole steps:
 * on m rows, for n outputs. */
llmk_status llmk_linear_self_test_plain(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                        llmk_dtype y, uint64_t m, uint64_t n);

/* The same for variants that want groups of 32, 64 or multiples of 128 weights: on one row of x and
 * on eight. */
llmk_status llmk_linear_self_test_codes(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                        llmk_dtype y);

/* A K for the next, with several groups; steps: whole steps of the kernels for few rows, if x is
 * not gathered anyhow. */
uint64_t llmk_linear_trial_depth(const llmk_weights *like, bool steps);
/* Experts [experts, n, k] that look to kernels as `like` does; their values, which live as long as
 * the trial, in *w. Groups are of a size that t's variant takes; whole: of all of a row. */
llmk_status llmk_linear_trial_weights(llmk_trial *t, const llmk_weights *like, uint64_t experts,
                                      uint64_t n, uint64_t k, bool whole, double **w,
                                      llmk_weights **out);

/* A K for one matrix; odd: no multiple of 8, where the format can, and not whole steps. */
uint64_t llmk_linear_trial_columns(const llmk_weights *like, bool odd);
/* The matrix [n, k], which looks to kernels as `like` does. grouped: several groups along K, where
 * it has such. */
llmk_status llmk_linear_trial_matrix(llmk_trial *t, const llmk_weights *like, uint64_t n,
                                     uint64_t k, bool grouped, double **w, llmk_weights **out);

#endif
