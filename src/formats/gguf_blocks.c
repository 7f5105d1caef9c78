#include "formats/gguf_blocks.h"

#include "core/half.h"
#include "formats/bytes.h"

#include <float.h>
#include <math.h>

enum { BLOCK = 32 }; /* weights a block of Q8_0, Q4_0 and Q4_1 */

static const llmk_gguf_type_info types[] = {
    {"F32", LLMK_GGUF_F32, 1, 4},         {"F16", LLMK_GGUF_F16, 1, 2},
    {"Q4_0", LLMK_GGUF_Q4_0, 32, 18},     {"Q4_1", LLMK_GGUF_Q4_1, 32, 20},
    {"Q5_0", LLMK_GGUF_Q5_0, 32, 22},     {"Q5_1", LLMK_GGUF_Q5_1, 32, 24},
    {"Q8_0", LLMK_GGUF_Q8_0, 32, 34},     {"Q8_1", LLMK_GGUF_Q8_1, 32, 36},
    {"Q2_K", LLMK_GGUF_Q2_K, 256, 84},    {"Q3_K", LLMK_GGUF_Q3_K, 256, 110},
    {"Q4_K", LLMK_GGUF_Q4_K, 256, 144},   {"Q5_K", LLMK_GGUF_Q5_K, 256, 176},
    {"Q6_K", LLMK_GGUF_Q6_K, 256, 210},   {"Q8_K", LLMK_GGUF_Q8_K, 256, 292},
    {"IQ4_NL", LLMK_GGUF_IQ4_NL, 32, 18}, {"IQ4_XS", LLMK_GGUF_IQ4_XS, 256, 136},
    {"I8", LLMK_GGUF_I8, 1, 1},           {"I16", LLMK_GGUF_I16, 1, 2},
    {"I32", LLMK_GGUF_I32, 1, 4},         {"I64", LLMK_GGUF_I64, 1, 8},
    {"F64", LLMK_GGUF_F64, 1, 8},         {"BF16", LLMK_GGUF_BF16, 1, 2},
    {"MXFP4", LLMK_GGUF_MXFP4, 32, 17},
};

enum { TYPE_COUNT = sizeof types / sizeof types[0] };

const llmk_gguf_type_info *llmk_gguf_type_of(uint32_t type)
{
    for (size_t i = 0; i < TYPE_COUNT; i++)
        if (types[i].type == type)
            return &types[i];
    return NULL;
}

bool llmk_gguf_packed_bytes(uint32_t type, uint64_t elements, size_t *bytes)
{
    const llmk_gguf_type_info *info = llmk_gguf_type_of(type);
    if (!info || elements % info->block_elements)
        return false;
    const uint64_t blocks = elements / info->block_elements;
    if (blocks > SIZE_MAX / info->block_bytes)
        return false;
    *bytes = (size_t)blocks * info->block_bytes;
    return true;
}

static float load_f16(const unsigned char *p)
{
    return llmk_f16_to_f32(llmk_load_u16(p));
}

/* 256 weights in groups of 32; w = d * scale * q - m * minimum. */
static void dequantise_q4_k(const unsigned char *p, float *weights)
{
    const float d = load_f16(p);
    const float m = load_f16(p + 2);
    const unsigned char *s = p + 4; /* scales and minimums, 6 bits each */
    for (size_t g = 0; g < 8; g++) {
        const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        const int minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
        const float ds = d * (float)scale;
        const float ms = m * (float)minimum;
        for (size_t j = 0; j < 32; j++) {
            const unsigned char byte = p[16 + g / 2 * 32 + j];
            weights[g * 32 + j] = ds * (float)(g % 2 ? byte >> 4 : byte & 15) - ms;
        }
    }
}

/* 256 weights in groups of 16; w = d * scale * (q - 32). */
static void dequantise_q6_k(const unsigned char *p, float *weights)
{
    const float d = load_f16(p + 208);
    for (size_t i = 0; i < 256; i++) {
        const size_t half = i / 128;
        const size_t part = i % 128 / 32;
        const int low = p[64 * half + 32 * (part & 1) + i % 32] >> (part / 2 * 4) & 15;
        const int high = p[128 + 32 * half + i % 32] >> (2 * part) & 3;
        const int scale = p[192 + i / 16] < 128 ? p[192 + i / 16] : p[192 + i / 16] - 256;
        weights[i] = d * (float)scale * (float)((low | high << 4) - 32);
    }
}

bool llmk_gguf_dequantise(uint32_t type, const void *packed, size_t elements, float *weights)
{
    const unsigned char *p = packed;
    size_t bytes;
    if (!llmk_gguf_packed_bytes(type, elements, &bytes))
        return false;

    switch (type) {
    case LLMK_GGUF_F32:
        for (size_t i = 0; i < elements; i++)
            weights[i] = llmk_float_from_bits(llmk_load_u32(p + 4 * i));
        return true;
    case LLMK_GGUF_F16:
        for (size_t i = 0; i < elements; i++)
            weights[i] = load_f16(p + 2 * i);
        return true;
    case LLMK_GGUF_BF16:
        for (size_t i = 0; i < elements; i++)
            weights[i] = llmk_bf16_to_f32(llmk_load_u16(p + 2 * i));
        return true;
    case LLMK_GGUF_Q8_0:
        for (size_t i = 0; i < elements; i += BLOCK, p += 34) {
            const float d = load_f16(p);
            for (size_t j = 0; j < BLOCK; j++)
                weights[i + j] = d * (float)(p[2 + j] < 128 ? p[2 + j] : p[2 + j] - 256);
        }
        return true;
    case LLMK_GGUF_Q4_0:
        for (size_t i = 0; i < elements; i += BLOCK, p += 18) {
            const float d = load_f16(p);
            for (size_t j = 0; j < BLOCK / 2; j++) {
                weights[i + j] = d * (float)((p[2 + j] & 15) - 8);
                weights[i + j + BLOCK / 2] = d * (float)((p[2 + j] >> 4) - 8);
            }
        }
        return true;
    case LLMK_GGUF_Q4_1:
        for (size_t i = 0; i < elements; i += BLOCK, p += 20) {
            const float d = load_f16(p);
            const float m = load_f16(p + 2);
            for (size_t j = 0; j < BLOCK / 2; j++) {
                weights[i + j] = d * (float)(p[4 + j] & 15) + m;
                weights[i + j + BLOCK / 2] = d * (float)(p[4 + j] >> 4) + m;
            }
        }
        return true;
    case LLMK_GGUF_Q4_K:
        for (size_t i = 0; i < elements; i += 256, p += 144)
            dequantise_q4_k(p, weights + i);
        return true;
    case LLMK_GGUF_Q6_K:
        for (size_t i = 0; i < elements; i += 256, p += 210)
            dequantise_q6_k(p, weights + i);
        return true;
    default:
        return false;
    }
}

/* 1 / d, or 0 where that would overflow: the block then quantises to zero, as its f16 scale does.
 */
static float inverse(float d)
{
    return fabsf(d) >= FLT_MIN ? 1.0f / d : 0.0f;
}

static bool fits_f16(float value)
{
    return fabsf(value) < 65520.0f; /* what rounds to a finite f16; false for a NaN */
}

static bool all_finite(const float *x)
{
    for (size_t j = 0; j < BLOCK; j++)
        if (!isfinite(x[j]))
            return false;
    return true;
}

static bool quantise_q8_0(const float *x, unsigned char *p)
{
    float top = 0;
    for (size_t j = 0; j < BLOCK; j++)
        top = fmaxf(top, fabsf(x[j]));

    const float d = top / 127.0f;
    const float id = inverse(d);
    if (!fits_f16(d))
        return false;
    llmk_store_u16(p, llmk_f32_to_f16(d));
    for (size_t j = 0; j < BLOCK; j++)
        p[2 + j] = (unsigned char)((int)roundf(x[j] * id) & 255);
    return true;
}

/* (int)(x * id + bias) clamped to a nibble. The product is rounded by itself, so that a fused
 * multiply-add cannot change a tie. */
static unsigned nibble(float x, float id, float bias)
{
    const float scaled = x * id;
    const int q = (int)(scaled + bias);
    return q > 15 ? 15u : (unsigned)(q < 0 ? 0 : q);
}

static bool quantise_q4_0(const float *x, unsigned char *p)
{
    float top = 0; /* the value of largest magnitude, with its sign: it becomes exactly -8 */
    for (size_t j = 0; j < BLOCK; j++)
        if (fabsf(x[j]) > fabsf(top))
            top = x[j];

    const float d = top / -8.0f;
    const float id = inverse(d);
    if (!fits_f16(d))
        return false;
    llmk_store_u16(p, llmk_f32_to_f16(d));
    for (size_t j = 0; j < BLOCK / 2; j++)
        p[2 + j] =
            (unsigned char)(nibble(x[j], id, 8.5f) | nibble(x[j + BLOCK / 2], id, 8.5f) << 4);
    return true;
}

static bool quantise_q4_1(const float *x, unsigned char *p)
{
    float low = x[0];
    float high = x[0];
    for (size_t j = 1; j < BLOCK; j++) {
        low = fminf(low, x[j]);
        high = fmaxf(high, x[j]);
    }

    const float d = (high - low) / 15.0f;
    const float id = inverse(d);
    if (!fits_f16(d) || !fits_f16(low))
        return false;
    llmk_store_u16(p, llmk_f32_to_f16(d));
    llmk_store_u16(p + 2, llmk_f32_to_f16(low));
    for (size_t j = 0; j < BLOCK / 2; j++)
        p[4 + j] = (unsigned char)(nibble(x[j] - low, id, 0.5f) |
                                   nibble(x[j + BLOCK / 2] - low, id, 0.5f) << 4);
    return true;
}

bool llmk_gguf_quantise(uint32_t type, const float *weights, size_t elements, void *packed)
{
    bool (*block)(const float *, unsigned char *) = NULL;
    unsigned char *p = packed;
    size_t bytes;
    if (!llmk_gguf_packed_bytes(type, elements, &bytes))
        return false;

    switch (type) {
    case LLMK_GGUF_F32:
        for (size_t i = 0; i < elements; i++)
            llmk_store_u32(p + 4 * i, llmk_float_bits(weights[i]));
        return true;
    case LLMK_GGUF_F16:
        for (size_t i = 0; i < elements; i++)
            llmk_store_u16(p + 2 * i, llmk_f32_to_f16(weights[i]));
        return true;
    case LLMK_GGUF_BF16:
        for (size_t i = 0; i < elements; i++)
            llmk_store_u16(p + 2 * i, llmk_f32_to_bf16(weights[i]));
        return true;
    case LLMK_GGUF_Q8_0:
        block = quantise_q8_0;
        break;
    case LLMK_GGUF_Q4_0:
        block = quantise_q4_0;
        break;
    case LLMK_GGUF_Q4_1:
        block = quantise_q4_1;
        break;
    default:
        return false;
    }

    const size_t block_bytes = llmk_gguf_type_of(type)->block_bytes;
    for (size_t i = 0; i < elements; i += BLOCK, p += block_bytes)
        if (!all_finite(weights + i) || !block(weights + i, p))
            return false;
    return true;
}
