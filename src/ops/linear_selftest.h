/* linear_selftest.h - small linear layers with known weights. */
#ifndef LLMK_LINEAR_SELFTEST_H
#define LLMK_LINEAR_SELFTEST_H

#include "ops/operator.h"

/* Runs t's variant; general: also on more rows of x than a tile has, and on groups of any size. */
llmk_status llmk_linear_self_test(llmk_trial *t, llmk_dtype x, llmk_format format, llmk_dtype y,
                                  bool general);

#endif
