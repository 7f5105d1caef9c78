/*
 * case_sweep.h - every case of an operator's table on every variant that the device supports.
 */
#ifndef LLMK_CASE_SWEEP_H
#define LLMK_CASE_SWEEP_H

#include "cases/case.h"

/* Instead of a variant: those that emulate a device's units, and those that do not. */
#define CASE_EMULATED     "emulated"
#define CASE_NOT_EMULATED "not-emulated"

/* Prints one summary line a variant to `out`, and for every failure what was wrong and the command
 * that shows it again. Returns the number of failures. `tier` is the largest that is run;
 * `variant`, unless NULL, the only one, or one of the two above. `*run` gets the number of cases
 * that ran. */
size_t case_sweep(const case_op *op, const char *variant, case_tier tier, FILE *out, size_t *run);

/* Every `step`th case from the one numbered `first` on: LLMK_TEST_STEP=STEP/FIRST, for a sweep
 * beside others that take the rest; all of them (1/0) without it. Where it says something else,
 * false, and a sentence to `errors`. */
bool case_step(size_t *step, size_t *first, FILE *errors);

/* The operator's variants on the default device, as llmk_explain gives them; returns how many. */
size_t case_variants(const case_op *op, llmk_variant_info *infos, size_t capacity, FILE *errors);

/* The reason why `variant` does not serve the run, or NULL where it does. `*broken`: it should, but
 * its kernels do not build or failed their self-test. The run's context must force the variant. */
const char *case_run_variant(case_run *run, const char *variant, bool *broken, char *reason,
                             size_t size);

#endif
