/* gated.h - what the operators with a gated activation share. */
#ifndef LLMK_GATED_H
#define LLMK_GATED_H

#include "ops/operator.h"

/* Checks the options of a gated activation. */
void llmk_check_gated(llmk_checker *c, llmk_activation activation, llmk_gate_layout layout,
                      float limit, float alpha);
/* What 0 means. */
float llmk_gated_limit(float limit);
float llmk_gated_alpha(float alpha);

/* activation(g) * u in f64, for self-tests. */
double llmk_gated_host(llmk_activation activation, double limit, double alpha, double g, double u);
/* How large x of a self-test is: ReLU2 squares what may be stored as f16. */
static inline float llmk_gated_trial_size(llmk_activation activation)
{
    return activation == LLMK_RELU2 ? 0.5f : 1.0f;
}

/* y = activation(gate) * up as a part of another call. Of interleaved pairs gate and up are every
 * other column of one tensor. */
llmk_status llmk_gated_activation_within(llmk_launch *launch, const llmk_view *gate,
                                         const llmk_view *up, const llmk_view *y,
                                         llmk_activation activation, float limit, float alpha);

#endif
