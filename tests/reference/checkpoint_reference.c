/* checkpoint_reference.c - where every field of a 4- or 8-bit checkpoint is. */
#include "reference/checkpoint_reference.h"

#include "cases/case_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool checkpoint_has_tables(llmk_format format)
{
    return format == LLMK_FORMAT_W4 ||
           (format >= LLMK_FORMAT_GPTQ_V1 && format <= LLMK_FORMAT_COMPRESSED_TENSORS);
}

static bool is_gptq(const linear_weights *w)
{
    return w->format == LLMK_FORMAT_GPTQ_V1 || w->format == LLMK_FORMAT_GPTQ_V2;
}

static uint64_t up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

static uint64_t groups_of(const linear_weights *w)
{
    const uint64_t g = w->group && w->group < w->k ? w->group : w->k;
    return g ? up(w->k, g) : 0;
}

static uint64_t group_of(const linear_weights *w, uint64_t k)
{
    if (w->g_idx && w->order != LINEAR_ORDER_ZERO)
        return w->g_idx[k];
    return w->group ? k / w->group : 0;
}

/* ---- Where fields are ---- */

typedef struct field {
    uint64_t word; /* bytes from the start, of the 32-bit word or, of nibbles and bytes, the byte */
    unsigned shift;
} field;

static const unsigned awq_shift[8] = {0, 16, 4, 20, 8, 24, 12, 28};

static field code_field(const linear_weights *w, uint64_t n, uint64_t k)
{
    const uint64_t per_word = 32 / w->bits;
    if (is_gptq(w))
        return (field){k / per_word * w->row_bytes + 4 * n, (unsigned)(k % per_word) * w->bits};
    if (w->format == LLMK_FORMAT_AWQ_GEMM)
        return (field){k * w->row_bytes + n / 8 * 4, awq_shift[n % 8]};
    if (w->format == LLMK_FORMAT_W4)
        return (field){n * w->row_bytes + k / 2, k % 2 ? 4 : 0};
    return (field){n * w->row_bytes + k / per_word * 4, (unsigned)(k % per_word) * w->bits};
}

static field zero_field(const linear_weights *w, uint64_t n, uint64_t g)
{
    const uint64_t per_word = 32 / w->bits, groups = groups_of(w);
    if (is_gptq(w))
        return (field){(g * (w->n / per_word) + n / per_word) * 4,
                       (unsigned)(n % per_word) * w->bits};
    if (w->format == LLMK_FORMAT_AWQ_GEMM)
        return (field){(g * (w->n / 8) + n / 8) * 4, awq_shift[n % 8]};
    if (w->format == LLMK_FORMAT_W4 || w->zeros_as == LINEAR_ZEROS_I8)
        return (field){n * groups + g, 0};
    return (field){(n / per_word * groups + g) * 4, (unsigned)(n % per_word) * w->bits};
}

static uint64_t scale_index(const linear_weights *w, uint64_t n, uint64_t g)
{
    return is_gptq(w) || w->format == LLMK_FORMAT_AWQ_GEMM ? g * w->n + n : n * groups_of(w) + g;
}

/* Byte by byte, so that the last byte of a tensor can be part of no whole word. */
static void put(uint8_t *bytes, field f, unsigned bits, unsigned value)
{
    uint8_t *at = bytes + f.word + f.shift / 8;
    const unsigned mask = (1u << bits) - 1;
    *at = (uint8_t)((*at & ~(mask << f.shift % 8)) | value << f.shift % 8);
}

static unsigned get(const uint8_t *bytes, field f, unsigned bits)
{
    return bytes[f.word + f.shift / 8] >> f.shift % 8 & ((1u << bits) - 1);
}

/* ---- Sizes ---- */

void checkpoint_sizes(linear_weights *w)
{
    if (!w->bits)
        w->bits = 4;
    if (!w->scale_type)
        w->scale_type = w->format == LLMK_FORMAT_W4 ? LLMK_F32 : LLMK_F16;
    const uint64_t per_word = 32 / w->bits, groups = groups_of(w);
    uint64_t rows = w->n, row = up(w->k, per_word) * 4;
    uint64_t zeros = up(w->n, per_word) * groups * 4;
    if (is_gptq(w)) {
        rows = w->k / per_word;
        row = 4 * w->n;
    } else if (w->format == LLMK_FORMAT_AWQ_GEMM) {
        rows = w->k;
        row = w->n / 8 * 4;
    } else if (w->format == LLMK_FORMAT_W4) {
        row = up(w->k, 2);
        zeros = w->n * groups;
    } else if (w->zeros_as == LINEAR_ZEROS_I8) {
        zeros = w->n * groups;
    }
    w->row_bytes = row + w->row_padding;
    w->data_bytes = w->n && rows && row ? (rows - 1) * w->row_bytes + row : 0;
    w->scales_bytes = w->n * groups * (w->scale_type == LLMK_F32 ? 4 : 2);
    w->zeros_bytes = w->zeros_as == LINEAR_SYMMETRIC ? 0 : zeros;
    w->g_idx_bytes = w->order == LINEAR_IN_ORDER ? 0 : 4 * w->k;
}

/* ---- Writing ---- */

/* GPTQ's first version: one less in every field, subtracted from whole words. */
static void lessen_zeros(const linear_weights *w)
{
    const uint32_t one = w->bits == 4 ? 0x11111111u : 0x01010101u;
    for (uint64_t i = 0; i < w->zeros_bytes; i += 4) {
        uint32_t word;
        memcpy(&word, w->zeros + i, 4);
        word -= one;
        memcpy(w->zeros + i, &word, 4);
    }
}

void checkpoint_pack(const linear_weights *w, const uint8_t *q, const uint8_t *z,
                     const double *scale)
{
    const unsigned half = 1u << (w->bits - 1);
    for (uint64_t n = 0; n < w->n; n++) {
        for (uint64_t k = 0; k < w->k; k++)
            put(w->data, code_field(w, n, k), w->bits, q[k * w->n + n]);
        for (uint64_t g = 0; g < groups_of(w); g++) {
            const uint64_t at = g * w->n + n;
            case_encode(w->scale_type, w->scales, scale_index(w, n, g), scale[at]);
            if (w->zeros_bytes && w->zeros_as == LINEAR_ZEROS_I8)
                w->zeros[zero_field(w, n, g).word] = (uint8_t)(z[at] - half);
            else if (w->zeros_bytes)
                put(w->zeros, zero_field(w, n, g), w->format == LLMK_FORMAT_W4 ? 8 : w->bits,
                    z[at]);
        }
    }
    if (w->format == LLMK_FORMAT_GPTQ_V1)
        lessen_zeros(w);
}

static uint64_t mix(uint64_t v)
{
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

static void fill_order(const linear_weights *w, uint32_t seed)
{
    const uint64_t groups = groups_of(w);
    for (uint64_t i = 0; w->g_idx_bytes && i < w->k; i++)
        w->g_idx[i] = w->order == LINEAR_ORDER_ZERO ? 0 : (uint32_t)(w->group ? i / w->group : 0);
    if (w->order == LINEAR_ACT_ORDER)
        for (uint64_t i = w->k; i > 1; i--) {
            const uint64_t j = mix(seed * 977u + i) % i;
            const uint32_t swap = w->g_idx[i - 1];
            w->g_idx[i - 1] = w->g_idx[j];
            w->g_idx[j] = swap;
        }
    if (w->order == LINEAR_UNEVEN)
        for (uint64_t i = 0; i < w->k; i++)
            w->g_idx[i] = (uint32_t)(mix(seed * 977u + i) % groups);
}

bool checkpoint_fill(const linear_weights *w, uint32_t seed)
{
    const uint64_t groups = groups_of(w);
    const unsigned mask = (1u << w->bits) - 1, half = (mask + 1) / 2;
    uint8_t *q = malloc(w->n * w->k + 1), *z = malloc(w->n * groups + 1);
    double *scale = malloc((w->n * groups + 1) * sizeof *scale);
    const bool good = q && z && scale;
    if (good) {
        fill_order(w, seed);
        for (uint64_t i = 0; i < w->n * groups; i++) {
            const uint64_t r = mix((uint64_t)seed << 32 | i);
            z[i] = (uint8_t)(r % 8 == 0 ? 0 : r % 8 == 1 ? mask : r >> 8 & mask);
            if (w->zeros_as == LINEAR_SYMMETRIC)
                z[i] = (uint8_t)half;
            scale[i] = (1 + (double)(r >> 16 & 1023) / 512) / (8 * half);
        }
        for (uint64_t k = 0; k < w->k; k++)
            for (uint64_t n = 0; n < w->n; n++) {
                const uint64_t at = group_of(w, k) * w->n + n;
                const uint64_t r = mix((uint64_t)seed << 40 | (k * w->n + n));
                const bool null = mix(at + seed) % 8 == 0;
                q[k * w->n + n] = (uint8_t)(null ? z[at] : r & mask);
            }
        if (w->zeros_bytes)
            memset(w->zeros, 0, w->zeros_bytes);
        checkpoint_pack(w, q, z, scale);
    }
    free(q);
    free(z);
    free(scale);
    return good;
}

/* q, z and scale of row n, as checkpoint_pack takes them; low and high: room for a group each. */
static void quantise_row(const linear_weights *w, uint64_t n, const double *v, double *low,
                         double *high, uint8_t *q, uint8_t *z, double *scale)
{
    const uint64_t groups = groups_of(w);
    const double most = (1 << w->bits) - 1, half = 1 << (w->bits - 1);
    for (uint64_t g = 0; g < groups; g++)
        low[g] = high[g] = 0;
    for (uint64_t k = 0; k < w->k; k++) {
        const uint64_t g = group_of(w, k);
        low[g] = fmin(low[g], v[k]);
        high[g] = fmax(high[g], v[k]);
    }
    for (uint64_t g = 0; g < groups; g++) {
        const bool symmetric = w->zeros_as == LINEAR_SYMMETRIC;
        const double range = symmetric ? 2 * fmax(-low[g], high[g]) : high[g] - low[g];
        const double step = range > 0 ? range / most : 1;
        scale[g * w->n + n] = step;
        z[g * w->n + n] = (uint8_t)(symmetric ? half : rint(-low[g] / step));
    }
    for (uint64_t k = 0; k < w->k; k++) {
        const uint64_t at = group_of(w, k) * w->n + n;
        q[k * w->n + n] = (uint8_t)fmin(fmax(rint(v[k] / scale[at]) + z[at], 0), most);
    }
}

bool checkpoint_fill_from(const linear_weights *w, const double *numbers, uint64_t period,
                          uint32_t seed)
{
    const uint64_t groups = groups_of(w);
    uint8_t *q = malloc(w->n * w->k + 1), *z = malloc(w->n * groups + 1);
    double *scale = malloc((w->n * groups + 1) * sizeof *scale);
    double *range = malloc((2 * groups + 1) * sizeof *range);
    const bool good = q && z && scale && range;
    if (good) {
        fill_order(w, seed);
        for (uint64_t n = 0; n < w->n; n++)
            quantise_row(w, n, numbers + n * w->k % period, range, range + groups, q, z, scale);
        if (w->zeros_bytes)
            memset(w->zeros, 0, w->zeros_bytes);
        checkpoint_pack(w, q, z, scale);
    }
    free(q);
    free(z);
    free(scale);
    free(range);
    return good;
}

/* ---- Reading ---- */

static int zero_at(const linear_weights *w, uint64_t n, uint64_t g)
{
    const int half = 1 << (w->bits - 1);
    if (!w->zeros_bytes)
        return half;
    const field f = zero_field(w, n, g);
    if (w->zeros_as == LINEAR_ZEROS_I8)
        return (int8_t)w->zeros[f.word] + half;
    if (w->format == LLMK_FORMAT_W4)
        return w->zeros[f.word];
    if (w->format != LLMK_FORMAT_GPTQ_V1)
        return (int)get(w->zeros, f, w->bits);
    uint32_t word;
    memcpy(&word, w->zeros + f.word, 4);
    word += w->bits == 4 ? 0x11111111u : 0x01010101u;
    return (int)(word >> f.shift & ((1u << w->bits) - 1));
}

void checkpoint_row(const linear_weights *w, uint64_t row, double *value)
{
    for (uint64_t k = 0; k < w->k; k++) {
        const uint64_t g = group_of(w, k);
        const int q = (int)get(w->data, code_field(w, row, k), w->bits);
        value[k] = (q - zero_at(w, row, g)) *
                   case_decode(w->scale_type, w->scales, scale_index(w, row, g));
    }
}
