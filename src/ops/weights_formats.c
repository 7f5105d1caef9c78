/* weights_formats.c - the formats of weights, and their blocks in the order of our layouts. */
#include "ops/weights.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- Layouts ---- */

static const weights_layout layouts[] = {
    [LLMK_LAYOUT_F32_PORTABLE] = {"f32/portable", 32, 16, 1},
    [LLMK_LAYOUT_F16_PORTABLE] = {"f16/portable", 16, 16, 1},
    [LLMK_LAYOUT_BF16_PORTABLE] = {"bf16/portable", 16, 16, 1},
    [LLMK_LAYOUT_S8_PORTABLE] = {"s8/portable", 8, 16, 1},
    [LLMK_LAYOUT_U4_PORTABLE] = {"u4-affine/portable", 4, 32, 1},
    [LLMK_LAYOUT_Q6_K_PORTABLE] = {"q6_k/portable", 6, 64, 1},
    [LLMK_LAYOUT_Q4_K_PORTABLE] = {"q4_k/portable", 4, 32, 1},
    [LLMK_LAYOUT_U4_NV] = {"u4-affine/nv", 4, 128, 16},
    [LLMK_LAYOUT_S8_NV] = {"s8/nv", 8, 64, 16},
};

const weights_layout *llmk_weights_layout_of(llmk_layout layout)
{
    return (size_t)layout < LLMK_COUNT(layouts) && layouts[layout].name ? &layouts[layout] : NULL;
}

const char *llmk_layout_name(llmk_layout layout)
{
    const weights_layout *l = llmk_weights_layout_of(layout);
    return l ? l->name : NULL;
}

uint64_t llmk_weights_pitch(llmk_layout layout, uint64_t depth)
{
    const weights_layout *l = &layouts[layout];
    return (depth + l->chunk - 1) / l->chunk * l->chunk * l->bits / 8;
}

uint64_t llmk_weights_scale_pitch(llmk_scale_kind kind, uint64_t groups)
{
    switch (kind) {
    case LLMK_SCALE_NONE:
        return 0;
    case LLMK_SCALE_F16:
    case LLMK_SCALE_BF16:
        return 2 * groups;
    case LLMK_SCALE_F32:
    case LLMK_SCALE_F16_MIN:
        return 4 * groups;
    case LLMK_SCALE_Q4_K:
        return groups / 8 * 16;
    case LLMK_SCALE_Q6_K:
        return groups / 16 * 18;
    }
    return 0;
}

/* ---- Blocks ---- */

static void repack_q8_0(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    memcpy(scale, block, 2);
    memcpy(codes, block + 2, 32);
}

/* The low nibbles of count bytes, then the high ones, to pairs of neighbours: weight 2j in the low
 * half of byte j. */
static void repack_nibbles(const uint8_t *in, size_t count, uint8_t *codes)
{
    for (size_t j = 0; j < count / 2; j++) {
        const uint8_t a = in[2 * j], b = in[2 * j + 1];
        codes[j] = (uint8_t)((a & 15) | b << 4);
        codes[count / 2 + j] = (uint8_t)(a >> 4 | (b & 0xf0));
    }
}

static void repack_q4_0(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    memcpy(scale, block, 2);
    repack_nibbles(block + 2, 16, codes);
}

static void repack_q4_1(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    memcpy(scale, block, 4); /* scale, minimum */
    repack_nibbles(block + 4, 16, codes);
}

/* The six bits of scale and of minimum of each group become neighbours: 12 bits a group. */
static void repack_q4_k(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    const uint8_t *six = block + 4;
    memcpy(scale, block, 4); /* f16 d, f16 of the minimums */
    memset(scale + 4, 0, 12);
    for (unsigned g = 0; g < 8; g++) {
        const unsigned s = g < 4 ? six[g] & 63u : (six[g + 4] & 15u) | (six[g - 4] >> 6u) << 4;
        const unsigned m = g < 4 ? six[g + 4] & 63u : (six[g + 4] + 0u) >> 4 | (six[g] >> 6u) << 4;
        const unsigned both = (s | m << 6) << (g & 1) * 4;
        uint8_t *at = scale + 4 + (size_t)g * 3 / 2;
        at[0] = (uint8_t)(at[0] | (both & 255));
        at[1] = (uint8_t)(at[1] | both >> 8);
    }
    for (size_t j = 0; j < 4; j++)
        repack_nibbles(block + 16 + 32 * j, 32, codes + 32 * j);
}

/* Weight k of a block of Q6_K, without its scale. */
static unsigned q6_k_code(const uint8_t *block, unsigned k)
{
    const unsigned half = k / 128, part = k % 128 / 32, l = k % 32;
    const uint8_t low = block[64 * half + 32 * (part & 1) + l];
    const uint8_t high = block[128 + 32 * half + l];
    return (low >> part / 2 * 4 & 15u) | (high >> 2 * part & 3u) << 4;
}

/* 64 weights in 48 bytes: four bits of each, then two of each. */
static void repack_q6_k(const uint8_t *block, uint8_t *codes, uint8_t *scale)
{
    memcpy(scale, block + 192, 18); /* int8 scales[16], f16 d */
    memset(codes, 0, 192);
    for (unsigned k = 0; k < 256; k++) {
        const unsigned q = q6_k_code(block, k), i = k % 64;
        uint8_t *at = codes + (size_t)48 * (k / 64);
        at[i / 2] = (uint8_t)(at[i / 2] | (q & 15) << (i & 1) * 4);
        at[32 + i / 4] = (uint8_t)(at[32 + i / 4] | q >> 4 << (i & 3) * 2);
    }
}

/* ---- Formats ---- */

#define F32L  LLMK_LAYOUT_F32_PORTABLE
#define F16L  LLMK_LAYOUT_F16_PORTABLE
#define BF16L LLMK_LAYOUT_BF16_PORTABLE
#define S8L   LLMK_LAYOUT_S8_PORTABLE
#define U4L   LLMK_LAYOUT_U4_PORTABLE
#define Q4L   LLMK_LAYOUT_Q4_K_PORTABLE
#define Q6L   LLMK_LAYOUT_Q6_K_PORTABLE

/* Layout, scale and zero of the formats with tables apart follow from the description. */
static const weights_format formats[] = {
    {"f32", NULL, LLMK_FORMAT_F32, WEIGHTS_BLOCKS, 1, 4, 0, F32L, LLMK_SCALE_NONE, 0},
    {"f16", NULL, LLMK_FORMAT_F16, WEIGHTS_BLOCKS, 1, 2, 0, F16L, LLMK_SCALE_NONE, 0},
    {"bf16", NULL, LLMK_FORMAT_BF16, WEIGHTS_BLOCKS, 1, 2, 0, BF16L, LLMK_SCALE_NONE, 0},
    {"q8_0", repack_q8_0, LLMK_FORMAT_GGUF_Q8_0, WEIGHTS_BLOCKS, 32, 34, 32, S8L, LLMK_SCALE_F16,
     0},
    {"q4_0", repack_q4_0, LLMK_FORMAT_GGUF_Q4_0, WEIGHTS_BLOCKS, 32, 18, 32, U4L, LLMK_SCALE_F16,
     8},
    {"q4_1", repack_q4_1, LLMK_FORMAT_GGUF_Q4_1, WEIGHTS_BLOCKS, 32, 20, 32, U4L,
     LLMK_SCALE_F16_MIN, 0},
    {"q4_k", repack_q4_k, LLMK_FORMAT_GGUF_Q4_K, WEIGHTS_BLOCKS, 256, 144, 32, Q4L, LLMK_SCALE_Q4_K,
     0},
    {"q6_k", repack_q6_k, LLMK_FORMAT_GGUF_Q6_K, WEIGHTS_BLOCKS, 256, 210, 16, Q6L, LLMK_SCALE_Q6_K,
     32},
    {.format = LLMK_FORMAT_W8, .name = "w8", .packing = WEIGHTS_W8},
    {.format = LLMK_FORMAT_W4, .name = "w4", .packing = WEIGHTS_W4},
    {.format = LLMK_FORMAT_GPTQ_V1, .name = "gptq_v1", .packing = WEIGHTS_GPTQ},
    {.format = LLMK_FORMAT_GPTQ_V2, .name = "gptq_v2", .packing = WEIGHTS_GPTQ},
    {.format = LLMK_FORMAT_AWQ_GEMM, .name = "awq_gemm", .packing = WEIGHTS_AWQ},
    {.format = LLMK_FORMAT_AWQ_GEMV, .name = "awq_gemv", .packing = WEIGHTS_AWQ},
    {.format = LLMK_FORMAT_AWQ_GEMV_FAST, .name = "awq_gemv_fast", .packing = WEIGHTS_AWQ},
    {.format = LLMK_FORMAT_COMPRESSED_TENSORS, .name = "ct", .packing = WEIGHTS_CT},
};

const weights_format *llmk_weights_format_of(llmk_format format)
{
    for (size_t i = 0; i < LLMK_COUNT(formats); i++)
        if (formats[i].format == format)
            return &formats[i];
    return NULL;
}

const char *llmk_format_name(llmk_format format)
{
    const weights_format *f = llmk_weights_format_of(format);
    return f ? f->name : NULL;
}

/* ---- Which version of GPTQ ---- */

llmk_status llmk_guess_gptq_version(const void *qzeros, uint64_t size, uint32_t bits,
                                    llmk_format *guess, char *sentence, size_t sentence_size)
{
    if (!guess || (!qzeros && size > 0))
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_guess_gptq_version: %s is NULL",
                         guess ? "qzeros" : "guess");
    if (size % 4 != 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "llmk_guess_gptq_version: size is %" PRIu64 "; expected a multiple of 4",
                         size);
    if (bits != 4 && bits != 8)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "llmk_guess_gptq_version: bits is %" PRIu32 "; expected 4 or 8", bits);
    const uint32_t v1 = bits == 4 ? 0x77777777u : 0x7f7f7f7fu,
                   v2 = v1 + (bits == 4 ? 0x11111111u : 0x01010101u);
    const uint64_t words = size / 4;
    uint64_t as_v1 = 0, as_v2 = 0;
    for (uint64_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)qzeros + 4 * i, sizeof word);
        as_v1 += word == v1;
        as_v2 += word == v2;
    }
    *guess = LLMK_FORMAT_NONE;
    if (words > 0 && as_v1 == words)
        *guess = LLMK_FORMAT_GPTQ_V1;
    if (words > 0 && as_v2 == words)
        *guess = LLMK_FORMAT_GPTQ_V2;
    if (!sentence || sentence_size == 0)
        return LLMK_OK;
    if (*guess != LLMK_FORMAT_NONE)
        snprintf(sentence, sentence_size,
                 "all %" PRIu64 " words of qzeros are %08" PRIx32
                 ": guessed to be symmetric GPTQ %s",
                 words, *guess == LLMK_FORMAT_GPTQ_V1 ? v1 : v2,
                 *guess == LLMK_FORMAT_GPTQ_V1 ? "v1" : "v2");
    else
        snprintf(sentence, sentence_size,
                 "of %" PRIu64 " words of qzeros %" PRIu64 " are %08" PRIx32 " and %" PRIu64
                 " are %08" PRIx32 ": no guess between GPTQ v1 and v2",
                 words, as_v1, v1, as_v2, v2);
    return LLMK_OK;
}
