/* Conversions between float and the two 16-bit storage types, bit exact on every host.
 *
 * Narrowing rounds to nearest, ties to even; a NaN stays a NaN (quiet, sign and leading payload
 * kept). */
#ifndef LLMK_CORE_HALF_H
#define LLMK_CORE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t llmk_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float llmk_float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float llmk_f16_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 31u;
    const uint32_t mantissa = half & 0x3ffu;

    if (exponent == 31) {
        const uint32_t quiet = mantissa ? 0x400000u : 0;
        return llmk_float_from_bits(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    if (exponent == 0) {
        /* Zero and the subnormals are mantissa * 2^-24, exact in a float. */
        const float magnitude = (float)mantissa * 0x1p-24f;
        return llmk_float_from_bits(sign | llmk_float_bits(magnitude));
    }
    return llmk_float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* `bits` >> `shift` rounded to nearest even; 1 <= shift <= 31. */
static inline uint32_t llmk_shift_round_even(uint32_t bits, uint32_t shift)
{
    const uint32_t quotient = bits >> shift;
    const uint32_t rest = bits & ((1u << shift) - 1);
    const uint32_t middle = 1u << (shift - 1);
    return quotient + (rest > middle || (rest == middle && (quotient & 1)));
}

static inline uint16_t llmk_f32_to_f16(float value)
{
    const uint32_t bits = llmk_float_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x47800000u) /* 2^16 */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x33000000u) /* 2^-25, half of the smallest subnormal */
        return (uint16_t)sign;
    if (magnitude < 0x38800000u) { /* 2^-14: the result is subnormal, in units of 2^-24 */
        const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
        return (uint16_t)(sign | llmk_shift_round_even(significand, 126 - (magnitude >> 23)));
    }
    /* A carry out of the mantissa moves to the next exponent, and from the last one to infinity. */
    return (uint16_t)(sign | llmk_shift_round_even(magnitude - (112u << 23), 13));
}

static inline float llmk_bf16_to_f32(uint16_t bfloat)
{
    const uint32_t bits = (uint32_t)bfloat << 16;
    const uint32_t quiet = (bits & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0;
    return llmk_float_from_bits(bits | quiet);
}

static inline uint16_t llmk_f32_to_bf16(float value)
{
    const uint32_t bits = llmk_float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)llmk_shift_round_even(bits, 16);
}

#endif
