/* quant_reference.c - see quant_reference.h. */
#include "reference/quant_reference.h"

#include <float.h>
#include <math.h>

#define U    0x1p-24 /* unit roundoff of f32 */
#define TINY 0x1p-100

/* ---- Geometry ---- */

static bool is_int4(llmk_quant_scheme scheme)
{
    return scheme == LLMK_QUANT_INT4_SYMMETRIC || scheme == LLMK_QUANT_INT4_ASYMMETRIC;
}

uint64_t quant_group_elements(const quant_shape *s)
{
    const uint64_t size = s->group_size && s->group_size < s->k ? s->group_size : s->k;
    return size ? size : 1;
}

uint64_t quant_row_groups(const quant_shape *s)
{
    const uint64_t size = quant_group_elements(s);
    return (s->k + size - 1) / size;
}

uint64_t quant_scales(const quant_shape *s)
{
    if (s->scheme == LLMK_QUANT_INT8_TENSOR)
        return 1;
    return s->scheme == LLMK_QUANT_INT8_CHANNEL ? s->n : s->n * quant_row_groups(s);
}

uint64_t quant_scale_of(const quant_shape *s, uint64_t index)
{
    if (s->scheme == LLMK_QUANT_INT8_TENSOR)
        return 0;
    const uint64_t row = index / s->k, group = index % s->k / quant_group_elements(s);
    return s->scheme == LLMK_QUANT_INT8_CHANNEL ? row : row * quant_row_groups(s) + group;
}

/* ---- Quantise ---- */

/* 1 where an f32 x / scale, which is at most 6 roundings off, may round to the other side. */
static double tie(double quotient)
{
    const double to_tie = fabs(fabs(quotient - floor(quotient)) - 0.5);
    return to_tie <= 6 * U * fabs(quotient) ? 1 : 0;
}

void quant_reference(const quant_shape *s, const double *x, const quant_result *r)
{
    const uint64_t count = s->n * s->k, scales = quant_scales(s);
    const bool asymmetric = s->scheme == LLMK_QUANT_INT4_ASYMMETRIC;
    const double low = is_int4(s->scheme) ? 0 : -127, high = is_int4(s->scheme) ? 15 : 127;
    const double steps = asymmetric ? 15 : is_int4(s->scheme) ? 7 : 127;
    /* Ranges first: scale[] holds the highest, scale_bound[] the lowest. */
    for (uint64_t i = 0; i < scales; i++)
        r->scale[i] = r->scale_bound[i] = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!isfinite(x[i]))
            continue;
        const uint64_t at = quant_scale_of(s, i);
        r->scale[at] = fmax(r->scale[at], x[i]);
        r->scale_bound[at] = fmin(r->scale_bound[at], x[i]);
    }
    for (uint64_t i = 0; i < scales; i++) {
        const double highest = r->scale[i], lowest = r->scale_bound[i];
        const double largest = fmax(highest, -lowest);
        const double scale = (asymmetric ? highest - lowest : largest) / steps;
        r->scale[i] = largest < TINY ? 1 : fmax(scale, TINY);
        r->scale_bound[i] = largest < TINY || scale < TINY * (1 - 4 * U)
                                ? 0
                                : (asymmetric ? 3.001 : 2.001) * U * scale;
        if (asymmetric) {
            r->zero[i] = rint(-lowest / r->scale[i]);
            r->zero_bound[i] = tie(-lowest / r->scale[i]);
        }
    }
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = quant_scale_of(s, i);
        const double zero = asymmetric ? r->zero[at] : is_int4(s->scheme) ? 8 : 0;
        const double quotient = x[i] / r->scale[at];
        r->q[i] = isnan(x[i]) ? zero : fmin(fmax(rint(quotient) + zero, low), high);
        r->q_bound[i] = (isfinite(x[i]) ? tie(quotient) : 0) + (asymmetric ? r->zero_bound[at] : 0);
    }
}

/* ---- Dequantise ---- */

void dequant_reference(const quant_shape *s, const double *q, const double *scale,
                       const double *zero, double *y, double *y_bound)
{
    for (uint64_t i = 0; i < s->n * s->k; i++) {
        const uint64_t at = quant_scale_of(s, i);
        const double shift = s->scheme == LLMK_QUANT_INT4_ASYMMETRIC ? zero[at]
                             : is_int4(s->scheme)                    ? 8
                                                                     : 0;
        y[i] = (q[i] - shift) * scale[at];
        y_bound[i] = U * fabs(y[i]);
    }
}

/* ---- Error report ---- */

void error_report_reference(uint64_t count, const double *reference, const double *approximation,
                            double stats[8], double bound[8])
{
    double largest = 0, max = 0, absolute = 0, relative = 0, signal = 0, noise = 0;
    uint64_t compared = 0, large = 0;
    for (uint64_t i = 0; i < count; i++)
        if (isfinite(reference[i]))
            largest = fmax(largest, fabs(reference[i]));
    const double threshold =
        (double)(0.1f * (float)largest); /* which elements are large is exact */
    for (uint64_t i = 0; i < count; i++) {
        if (!isfinite(reference[i]))
            continue;
        double error = fabs(approximation[i] - reference[i]);
        if (!isfinite((float)approximation[i] - (float)reference[i])) /* also beyond f32 */
            error = (double)INFINITY;
        max = fmax(max, error);
        absolute += error;
        signal += reference[i] * reference[i];
        noise += error * error;
        compared++;
        if (fabs(reference[i]) > threshold) {
            relative += error / fabs(reference[i]);
            large++;
        }
    }
    for (int i = 0; i < 8; i++)
        stats[i] = bound[i] = 0;
    stats[0] = max;
    stats[1] = compared ? absolute / (double)compared : 0;
    stats[2] = large ? relative / (double)large : 0;
    stats[3] = noise == 0    ? (double)INFINITY
               : signal == 0 ? -(double)INFINITY
                             : 10 * log10(signal / noise);
    stats[4] = (double)compared;
    bound[0] = U * max;
    bound[1] = 12 * U * stats[1];
    bound[2] = 17 * U * stats[2];
    bound[4] = U * stats[4];
    if (isfinite(stats[3])) {
        /* The part of the SNR that powers of two carry, and the rest. */
        const double exponents = 20 * log10(2) * (ilogb(largest) - ilogb(max));
        bound[3] = U * (83 + 8 * fabs(stats[3] - exponents) + 3 * fabs(exponents));
    }
    for (int i = 0; i < 4; i++)
        if (!isfinite(stats[i]))
            bound[i] = 0;
}
