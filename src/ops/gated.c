/* gated.c - gated activations: options and, for self-tests, values. */
#include "ops/gated.h"

#include <math.h>

void llmk_check_gated(llmk_checker *c, llmk_activation activation, llmk_gate_layout layout,
                      float limit, float alpha)
{
    const bool clamped = activation == LLMK_SWIGLU_CLAMPED;
    llmk_check_that(c, activation >= LLMK_SILU && activation <= LLMK_SWIGLU_CLAMPED,
                    LLMK_INVALID_ARGUMENT, "activation is %d; expected %d to %d", (int)activation,
                    LLMK_SILU, LLMK_SWIGLU_CLAMPED);
    llmk_check_that(c, (unsigned)layout <= LLMK_GATE_INTERLEAVED, LLMK_INVALID_ARGUMENT,
                    "layout is %d; expected 0 to %d", (int)layout, LLMK_GATE_INTERLEAVED);
    llmk_check_that(c, clamped || (limit == 0 && alpha == 0), LLMK_INVALID_ARGUMENT,
                    "limit is %g and alpha %g; expected 0 except with LLMK_SWIGLU_CLAMPED",
                    (double)limit, (double)alpha);
    llmk_check_that(c, limit >= 0 && isfinite(limit), LLMK_INVALID_ARGUMENT,
                    "limit is %g; expected a finite number > 0, or 0", (double)limit);
    llmk_check_that(c, alpha >= 0 && isfinite(alpha), LLMK_INVALID_ARGUMENT,
                    "alpha is %g; expected a finite number > 0, or 0", (double)alpha);
}

float llmk_gated_limit(float limit)
{
    return limit > 0 ? limit : 7.0f;
}

float llmk_gated_alpha(float alpha)
{
    return alpha > 0 ? alpha : 1.702f;
}

double llmk_gated_host(llmk_activation activation, double limit, double alpha, double g, double u)
{
    switch (activation) {
    case LLMK_GELU_ERF:
        return g / 2 * erfc(-g / sqrt(2)) * u;
    case LLMK_GELU_TANH:
        return g / 2 * (1 + tanh(0.79788456080286536 * (g + 0.044715 * g * g * g))) * u;
    case LLMK_RELU2:
        return g > 0 ? g * g * u : 0;
    case LLMK_SWIGLU_CLAMPED:
        g = fmin(g, limit);
        return g / (1 + exp(-alpha * g)) * (fmax(-limit, fmin(u, limit)) + 1);
    default:
        return g / (1 + exp(-g)) * u;
    }
}
