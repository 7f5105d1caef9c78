/*
 * quantize_host.c - the quantisation utilities on host arrays. The f32 operations are those of
 * cl/common/quant.clh, one for one.
 */
#include "ops/quant.h"

#include <float.h>
#include <math.h>

/* ---- The formulas ---- */

#define TINY 0x1p-100f

typedef struct quant {
    float scale, inverse, zero, low, high;
} quant;

typedef struct range {
    float lowest, highest; /* of the finite values and 0 */
} range;

static quant quant_of_range(llmk_quant_scheme scheme, range r)
{
    const bool int4 = llmk_quant_is_int4(scheme);
    const float largest = fmaxf(r.highest, -r.lowest);
    float scale;
    if (scheme == LLMK_QUANT_INT4_ASYMMETRIC)
        scale = (r.highest * 0.5f - r.lowest * 0.5f) * (1.0f / 7.5f);
    else
        scale = largest * (int4 ? 1.0f / 7.0f : 1.0f / 127.0f);
    quant t = {.low = int4 ? 0.0f : -127.0f, .high = int4 ? 15.0f : 127.0f};
    t.scale = largest < TINY ? 1.0f : fmaxf(scale, TINY);
    t.inverse = 1.0f / t.scale;
    if (scheme == LLMK_QUANT_INT4_SYMMETRIC)
        t.zero = 8.0f;
    if (scheme == LLMK_QUANT_INT4_ASYMMETRIC)
        t.zero = fminf(rintf(-r.lowest * t.inverse), 15.0f);
    return t;
}

static int quant_code(const quant *t, float x)
{
    if (isnan(x))
        return (int)t->zero;
    return (int)fminf(fmaxf(rintf(x * t->inverse) + t->zero, t->low), t->high);
}

static range range_widen(range r, const float *x, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (isfinite(x[i])) {
            r.lowest = fminf(r.lowest, x[i]);
            r.highest = fmaxf(r.highest, x[i]);
        }
    return r;
}

/* ---- Quantise ---- */

/* Codes of `count` values to q, from element `at` on. */
static void put_codes(llmk_quant_scheme scheme, const quant *t, const float *x, uint64_t count,
                      void *q, uint64_t at)
{
    if (llmk_quant_is_int4(scheme)) {
        uint8_t *bytes = (uint8_t *)q + at / 2;
        for (uint64_t i = 0; i < count; i += 2)
            bytes[i / 2] = (uint8_t)(quant_code(t, x[i]) | quant_code(t, x[i + 1]) << 4);
    } else {
        for (uint64_t i = 0; i < count; i++)
            ((int8_t *)q)[at + i] = (int8_t)quant_code(t, x[i]);
    }
}

static llmk_status check_arrays(const char *who, llmk_quant_scheme scheme, uint64_t n, uint64_t k,
                                const void *x, const void *q, const void *scale, const void *zero)
{
    uint64_t count;
    if (__builtin_mul_overflow(n, k, &count))
        return llmk_fail(LLMK_INVALID_SHAPE, "%s: n * k is beyond 2^64", who);
    if (count > 0 && (!x || !q || !scale))
        return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: %s is NULL", who,
                         !scale ? "scale"
                         : !q   ? "q"
                                : "the array of values");
    if (count > 0 && scheme == LLMK_QUANT_INT4_ASYMMETRIC && !zero)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "%s: zero is NULL; expected an array with the asymmetric scheme", who);
    return LLMK_OK;
}

llmk_status llmk_quantize_host(llmk_quant_scheme scheme, uint64_t n, uint64_t k,
                               uint64_t group_size, const float *x, void *q, float *scale,
                               uint8_t *zero)
{
    uint64_t elements, row_groups;
    LLMK_TRY(
        llmk_quant_geometry("llmk_quantize_host", scheme, k, group_size, &elements, &row_groups));
    LLMK_TRY(check_arrays("llmk_quantize_host", scheme, n, k, x, q, scale, zero));
    if (n * k == 0)
        return LLMK_OK;
    if (scheme == LLMK_QUANT_INT8_TENSOR) {
        const quant t = quant_of_range(scheme, range_widen((range){0, 0}, x, n * k));
        put_codes(scheme, &t, x, n * k, q, 0);
        scale[0] = t.scale;
        return LLMK_OK;
    }
    for (uint64_t row = 0; row < n; row++)
        for (uint64_t group = 0; group < row_groups; group++) {
            const uint64_t first = group * elements, at = row * k + first;
            const uint64_t count = k - first < elements ? k - first : elements;
            const quant t = quant_of_range(scheme, range_widen((range){0, 0}, x + at, count));
            put_codes(scheme, &t, x + at, count, q, at);
            scale[row * row_groups + group] = t.scale;
            if (scheme == LLMK_QUANT_INT4_ASYMMETRIC)
                zero[row * row_groups + group] = (uint8_t)t.zero;
        }
    return LLMK_OK;
}

/* ---- Dequantise ---- */

llmk_status llmk_dequantize_host(llmk_quant_scheme scheme, uint64_t n, uint64_t k,
                                 uint64_t group_size, const void *q, const float *scale,
                                 const uint8_t *zero, float *y)
{
    uint64_t elements, row_groups;
    LLMK_TRY(
        llmk_quant_geometry("llmk_dequantize_host", scheme, k, group_size, &elements, &row_groups));
    LLMK_TRY(check_arrays("llmk_dequantize_host", scheme, n, k, y, q, scale, zero));
    for (uint64_t row = 0; row < n; row++)
        for (uint64_t col = 0; col < k; col++) {
            const uint64_t at = row * k + col;
            const uint64_t group =
                scheme == LLMK_QUANT_INT8_TENSOR ? 0 : row * row_groups + col / elements;
            if (llmk_quant_is_int4(scheme)) {
                const int code = ((const uint8_t *)q)[at / 2] >> at % 2 * 4 & 15;
                const int shift = scheme == LLMK_QUANT_INT4_ASYMMETRIC ? zero[group] : 8;
                y[at] = (float)(code - shift) * scale[group];
            } else {
                y[at] = (float)((const int8_t *)q)[at] * scale[group];
            }
        }
    return LLMK_OK;
}

/* ---- Error report ---- */

/* As cl/error_report/error_stats.clh, with sums in f64, where no square of an f32 overflows. */
llmk_status llmk_error_report_host(uint64_t count, const float *reference,
                                   const float *approximation, llmk_error_stats *stats)
{
    if (!stats || (count > 0 && (!reference || !approximation)))
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_error_report_host: %s is NULL",
                         !stats       ? "stats"
                         : !reference ? "reference"
                                      : "approximation");
    float largest = 0.0f;
    for (uint64_t i = 0; i < count; i++)
        if (isfinite(reference[i]))
            largest = fmaxf(largest, fabsf(reference[i]));
    const float threshold = 0.1f * largest;

    double max = 0, absolute = 0, relative = 0, signal = 0, noise = 0;
    uint64_t compared = 0, large = 0;
    for (uint64_t i = 0; i < count; i++) {
        const double r = reference[i];
        double error = fabs((double)approximation[i] - r);
        if (!isfinite(r))
            continue;
        /* As the device has it: NaN, or beyond f32. */
        if (!isfinite(approximation[i] - reference[i]))
            error = (double)INFINITY;
        compared++;
        max = fmax(max, error);
        absolute += error;
        signal += r * r;
        noise += error * error;
        if (fabsf(reference[i]) > threshold) {
            large++;
            relative += error / fabs(r);
        }
    }
    *stats = (llmk_error_stats){
        .max_abs = (float)max,
        .mean_abs = compared ? (float)(absolute / (double)compared) : 0.0f,
        .mean_rel = large ? (float)(relative / (double)large) : 0.0f,
        .snr_db = noise == 0    ? INFINITY
                  : signal == 0 ? -INFINITY
                                : (float)(10 * log10(signal / noise)),
        .count = (float)compared,
    };
    return LLMK_OK;
}
