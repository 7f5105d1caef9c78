/* norm_reference.c - RMSNorm, gated activations and addition in f64. */
#include "reference/norm_reference.h"

#include "cases/case.h"

#include <math.h>

static const double U = 0x1p-24; /* half an ulp of f32, relative */

/* What rounding the f64 value to f32 costs, in units of U: nothing where it fits. */
static double f32_cost(double value)
{
    return case_round(LLMK_F32, value) == value ? 0 : 1;
}

/* `value`, known in f32 to `units` of U, stored as `dtype`. */
static double stored_bound(llmk_dtype dtype, double value, double units)
{
    if (!isfinite(value) || (units == 0 && case_round(dtype, value) == value))
        return 0;
    /* An f32 store adds no rounding to that of the operation before it. */
    if (dtype == LLMK_F32 && units == 1)
        return case_rounding(dtype, value);
    return units * U * fabs(value) + case_rounding(dtype, value);
}

/* ---- RMSNorm ---- */

/* The longest chain of additions in any variant's sum of h squares. */
static double chain(uint64_t h)
{
    return (double)((h + 127) / 128) + 20;
}

void reference_rmsnorm(const rmsnorm_reference *r)
{
    const double add = r->residual ? 1 : 0;
    const double mean_units = 2 * add + 1 + chain(r->h) + 3; /* squares, their sum, / h, + eps */
    const double norm_units = add + mean_units / 2 + 4 + 1;  /* s, rsqrt to 2 ulp, product */
    for (uint64_t row = 0; row < r->rows; row++) {
        const uint64_t first = row * r->h;
        double squares = 0;
        for (uint64_t i = first; i < first + r->h; i++) {
            const double s = r->x[i] + (r->residual ? r->residual[i] : 0);
            squares += s * s;
        }
        const double scale = 1 / sqrt(squares / (double)r->h + r->eps);
        for (uint64_t c = 0; c < r->h; c++) {
            const uint64_t i = first + c;
            const double s = r->x[i] + (r->residual ? r->residual[i] : 0);
            const double w = r->weight ? r->weight[c] + (r->weight_plus_one ? 1 : 0) : 1;
            double n = s * scale, units = r->weight ? 2 : 0, slack = 0;
            if (r->double_rounding) {
                /* Near a tie the f32 value may round either way. */
                const double low = case_round(r->y_dtype, n * (1 - norm_units * U));
                const double high = case_round(r->y_dtype, n * (1 + norm_units * U));
                slack = isfinite(n) ? fabs((high - low) * w) : 0;
                n = case_round(r->y_dtype, n);
            } else {
                units += norm_units;
            }
            r->y[i] = n * w;
            r->y_bound[i] = stored_bound(r->y_dtype, n * w, units) + slack;
            if (r->sum) {
                r->sum[i] = s;
                r->sum_bound[i] = stored_bound(r->sum_dtype, s, f32_cost(s));
            }
        }
    }
}

/* ---- Gated activations ---- */

/* Where e^x overflows in f32 a quotient becomes 0 that in truth is at most this. */
static const double TINY = 0x1p-116;

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

double reference_gated(const gated_reference *r, double gate, double gate_bias, double up,
                       double up_bias, double *bound)
{
    double g = gate + gate_bias, u = up + up_bias, value, slack = 0;
    const double g_units = f32_cost(g), u_units = f32_cost(u);
    double units = u_units; /* of the result; an error of the gate counts as often as it is steep */
    switch (r->activation) {
    case LLMK_GELU_ERF:
        value = g / 2 * erfc(-g / sqrt(2)) * u;
        /* erfc to 16 ulp, its argument to 2 units and the gate's, two products */
        units += 32 + (2 + g_units) * (g < 0 ? g * g + 1 : 1) + g_units + 2;
        break;
    case LLMK_GELU_TANH: {
        const double t = 2 * sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g);
        value = g * sigmoid(t) * u;
        units += 13 + (7 + 3 * g_units) * fabs(t) * sigmoid(-t) + g_units;
        break;
    }
    case LLMK_RELU2:
        value = (g <= 0 ? 0 : g * g) * u;
        units += 2 * g_units + 2;
        break;
    case LLMK_SWIGLU_CLAMPED: {
        g = g > r->limit ? r->limit : g;
        u = u > r->limit ? r->limit : u < -r->limit ? -r->limit : u;
        const double activated = g * sigmoid(r->alpha * g);
        value = activated * (u + 1);
        units = 14 + (1 + g_units) * (1 + fabs(r->alpha * g)) * sigmoid(-r->alpha * g) + g_units;
        slack = u_units * U * fabs(u * activated); /* u + 1 may cancel */
        break;
    }
    default:
        value = g * sigmoid(g) * u;
        /* exp to 3 ulp, 1 + exp, quotient to 2.5 ulp, product */
        units += 6 + 1 + 5 + 1 + g_units * (1 + fabs(g) * sigmoid(-g));
        break;
    }
    *bound = stored_bound(r->y_dtype, value, units) + slack + TINY * fabs(u);
    return value;
}

/* ---- Addition ---- */

double reference_add(llmk_dtype y_dtype, double a, double b, double *bound)
{
    *bound = stored_bound(y_dtype, a + b, f32_cost(a + b));
    return a + b;
}
