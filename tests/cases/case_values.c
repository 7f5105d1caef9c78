/* case_values.c - numbers as they are stored, their rounding, and seeded inputs. */
#include "cases/case_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Binary floating point formats, by their exponent and mantissa bits ---- */

typedef struct float_format {
    int exponent, mantissa;
} float_format;

static const float_format formats[] = {
    [LLMK_F32] = {8, 23}, [LLMK_F16] = {5, 10}, [LLMK_BF16] = {8, 7}};

bool case_is_float(llmk_dtype dtype)
{
    return dtype == LLMK_F32 || dtype == LLMK_F16 || dtype == LLMK_BF16;
}

static int bias_of(float_format f)
{
    return (1 << (f.exponent - 1)) - 1;
}

/* Rounds to nearest, ties to even, straight from double: there is no second rounding. */
static uint32_t float_encode(float_format f, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (uint32_t)(bits >> 63) << (f.exponent + f.mantissa);
    const uint32_t infinity = ((1u << f.exponent) - 1) << f.mantissa;
    const int exponent = (int)(bits >> 52 & 0x7ff) - 1023, bias = bias_of(f);
    uint64_t mantissa = bits & ((1ull << 52) - 1);
    if (exponent == 1024)
        return sign | infinity | (mantissa ? 1u << (f.mantissa - 1) : 0);
    if (exponent > bias)
        return sign | infinity;
    int shift = 52 - f.mantissa;
    if (exponent > -bias) {
        mantissa |= (uint64_t)(exponent + bias) << 52;
    } else { /* subnormal: the leading one becomes explicit */
        shift += 1 - bias - exponent;
        if (shift > 53)
            return sign;
        mantissa |= 1ull << 52;
    }
    uint64_t kept = mantissa >> shift, rest = mantissa & ((1ull << shift) - 1);
    const uint64_t half = 1ull << (shift - 1);
    if (rest > half || (rest == half && (kept & 1)))
        kept++; /* a carry runs into the exponent, and from the largest number to infinity */
    return sign | (uint32_t)kept;
}

static double float_decode(float_format f, uint32_t bits)
{
    const uint32_t exponent = bits >> f.mantissa & ((1u << f.exponent) - 1);
    const uint32_t mantissa = bits & ((1u << f.mantissa) - 1);
    double value;
    if (exponent == (1u << f.exponent) - 1) {
        value = mantissa ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        value = ldexp(mantissa, 1 - bias_of(f) - f.mantissa);
    } else {
        uint64_t wide = (uint64_t)((int)exponent - bias_of(f) + 1023) << 52 |
                        (uint64_t)mantissa << (52 - f.mantissa);
        memcpy(&value, &wide, sizeof value);
    }
    return bits >> (f.exponent + f.mantissa) ? -value : value;
}

/* ---- Integers ---- */

static bool integer_range(llmk_dtype dtype, double *low, double *high)
{
    switch (dtype) {
    case LLMK_I8:
        *low = INT8_MIN, *high = INT8_MAX;
        return true;
    case LLMK_I32:
        *low = INT32_MIN, *high = INT32_MAX;
        return true;
    case LLMK_U8:
        *low = 0, *high = UINT8_MAX;
        return true;
    case LLMK_U4:
        *low = 0, *high = 15;
        return true;
    default:
        return false;
    }
}

static int64_t to_integer(llmk_dtype dtype, double value)
{
    double low = 0, high = 0;
    integer_range(dtype, &low, &high);
    return isnan(value) ? 0 : (int64_t)rint(fmin(fmax(value, low), high));
}

/* ---- Elements ---- */

void case_encode(llmk_dtype dtype, uint8_t *bytes, uint64_t index, double value)
{
    uint32_t wide;
    uint16_t narrow;
    switch (dtype) {
    case LLMK_F32:
        wide = float_encode(formats[dtype], value);
        memcpy(bytes + 4 * index, &wide, sizeof wide);
        break;
    case LLMK_F16:
    case LLMK_BF16:
        narrow = (uint16_t)float_encode(formats[dtype], value);
        memcpy(bytes + 2 * index, &narrow, sizeof narrow);
        break;
    case LLMK_I32:
        wide = (uint32_t)to_integer(dtype, value);
        memcpy(bytes + 4 * index, &wide, sizeof wide);
        break;
    case LLMK_I8:
    case LLMK_U8:
        bytes[index] = (uint8_t)to_integer(dtype, value);
        break;
    case LLMK_U4: {
        const int shift = index & 1 ? 4 : 0;
        const unsigned code = (unsigned)to_integer(dtype, value);
        bytes[index / 2] = (uint8_t)((bytes[index / 2] & ~(0xfu << shift)) | code << shift);
        break;
    }
    default:
        abort();
    }
}

double case_decode(llmk_dtype dtype, const uint8_t *bytes, uint64_t index)
{
    uint32_t wide;
    uint16_t narrow;
    switch (dtype) {
    case LLMK_F32:
        memcpy(&wide, bytes + 4 * index, sizeof wide);
        return float_decode(formats[dtype], wide);
    case LLMK_F16:
    case LLMK_BF16:
        memcpy(&narrow, bytes + 2 * index, sizeof narrow);
        return float_decode(formats[dtype], narrow);
    case LLMK_I32:
        memcpy(&wide, bytes + 4 * index, sizeof wide);
        return (int32_t)wide;
    case LLMK_I8:
        return (int8_t)bytes[index];
    case LLMK_U8:
        return bytes[index];
    case LLMK_U4:
        return bytes[index / 2] >> (index & 1 ? 4 : 0) & 0xf;
    default:
        abort();
    }
}

uint64_t case_bytes(llmk_dtype dtype, uint64_t count)
{
    switch (dtype) {
    case LLMK_F32:
    case LLMK_I32:
        return 4 * count;
    case LLMK_F16:
    case LLMK_BF16:
        return 2 * count;
    case LLMK_U4:
        return (count + 1) / 2;
    default:
        return count;
    }
}

double case_round(llmk_dtype dtype, double value)
{
    return case_is_float(dtype) ? float_decode(formats[dtype], float_encode(formats[dtype], value))
                                : (double)to_integer(dtype, value);
}

double case_epsilon(llmk_dtype dtype)
{
    return case_is_float(dtype) ? ldexp(1, -formats[dtype].mantissa - 1) : 0;
}

double case_rounding(llmk_dtype dtype, double value)
{
    if (!case_is_float(dtype))
        return 0.5;
    const int bias = bias_of(formats[dtype]), mantissa = formats[dtype].mantissa;
    int exponent = 1 - bias; /* of the subnormals, and of the smallest normal numbers */
    if (value != 0 && isfinite(value) && ilogb(value) > exponent)
        exponent = ilogb(value) < bias ? ilogb(value) : bias;
    return ldexp(0.5, exponent - mantissa);
}

double case_overflow(llmk_dtype dtype)
{
    if (!case_is_float(dtype))
        return (double)INFINITY;
    const int bias = bias_of(formats[dtype]), mantissa = formats[dtype].mantissa;
    return ldexp(2 - ldexp(0.5, -mantissa), bias);
}

/* ---- Inputs ---- */

/* The `index`th number of a stream (splitmix64): counted, so that inputs do not depend on the order
 * of filling, and exact in integers, so that every host makes the same ones. */
static uint64_t random_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = (seed << 32) + 0x9e3779b97f4a7c15u * (index + 1);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In [-1, 1]. */
static double random_uniform(uint64_t seed, uint64_t index)
{
    return ldexp((double)(random_bits(seed, index) >> 11), -52) - 1;
}

/* Standard normal as far as 12 summed uniforms are: no libm, which differs between hosts. */
double case_normal(uint64_t seed, uint64_t index)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t bits = random_bits(seed, 3 * index + i);
        sum += (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    }
    return ((double)sum + 6) / 65536 - 6;
}

static double random_value(const case_tensor *t, case_fill fill, double scale, uint32_t seed,
                           uint64_t index)
{
    double low = 0, high = 0;
    switch (fill) {
    case CASE_UNIFORM:
        return case_round(t->dtype, scale * random_uniform(seed, index));
    case CASE_NORMAL:
        return case_round(t->dtype, scale * case_normal(seed, index));
    case CASE_CODES:
        if (!integer_range(t->dtype, &low, &high))
            abort(); /* codes of a floating point tensor: a mistake in a case file */
        return low + (double)(random_bits(seed, index) % (uint64_t)(high - low + 1));
    case CASE_ZERO:
        break;
    }
    return 0;
}

/* Timing depends on how many different values there are only where there are few: numbers as they
 * occur repeat after a while, which saves most of their making. A prime, so that rows differ. */
#define PERIOD 65521u

void case_fill_values(case_run *run, case_tensor *t, case_fill fill, double scale, uint32_t seed)
{
    uint64_t fresh = t->count;
    if (case_as_they_occur(run)) {
        fresh = fresh > PERIOD ? PERIOD : fresh;
        if (fill == CASE_UNIFORM && case_is_float(t->dtype))
            fill = CASE_NORMAL;
    }
    for (uint64_t i = 0; i < fresh; i++)
        t->values[i] = random_value(t, fill, scale, seed, i);
    for (uint64_t i = fresh; i < t->count; i++)
        t->values[i] = t->values[i - fresh];
}
