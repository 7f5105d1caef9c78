/* linear_reference.c - the linear layer in f64, and its weights. */
#include "reference/linear_reference.h"

#include "cases/case_internal.h"
#include "cases/case_parallel.h"
#include "reference/checkpoint_reference.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- Weights ---- */

static uint64_t block_of(llmk_format format)
{
    return format == LLMK_FORMAT_GGUF_Q4_K || format == LLMK_FORMAT_GGUF_Q6_K ? 256 : 32;
}

static uint64_t blocks_of(const linear_weights *w)
{
    return w->k / block_of(w->format);
}

static uint64_t groups_of(const linear_weights *w)
{
    return w->group ? (w->k + w->group - 1) / w->group : 1;
}

uint64_t linear_row_bytes(llmk_format format, uint64_t k)
{
    switch (format) {
    case LLMK_FORMAT_F32:
        return 4 * k;
    case LLMK_FORMAT_F16:
    case LLMK_FORMAT_BF16:
        return 2 * k;
    case LLMK_FORMAT_W8:
        return k;
    case LLMK_FORMAT_GGUF_Q8_0:
        return k / 32 * 34;
    case LLMK_FORMAT_GGUF_Q4_0:
        return k / 32 * 18;
    case LLMK_FORMAT_GGUF_Q4_1:
        return k / 32 * 20;
    case LLMK_FORMAT_GGUF_Q4_K:
        return k / 256 * 144;
    case LLMK_FORMAT_GGUF_Q6_K:
        return k / 256 * 210;
    default:
        return 0;
    }
}

void linear_weights_set_sizes(linear_weights *w)
{
    if (checkpoint_has_tables(w->format)) {
        checkpoint_sizes(w);
        return;
    }
    const uint64_t packed = linear_row_bytes(w->format, w->k);
    w->row_bytes = packed + w->row_padding;
    w->data_bytes = w->n && packed ? (w->n - 1) * w->row_bytes + packed : 0;
    w->scale_type = LLMK_F32;
    if (w->format == LLMK_FORMAT_W8 && w->k)
        w->scales_bytes = w->n * groups_of(w) * sizeof(float);
}

void linear_weights_sizes(linear_weights *w, llmk_format format, uint64_t n, uint64_t k,
                          uint64_t group, uint64_t row_padding)
{
    *w = (linear_weights){
        .format = format, .n = n, .k = k, .group = group, .row_padding = row_padding};
    linear_weights_set_sizes(w);
}

llmk_weights_desc linear_weights_describe(const linear_weights *w)
{
    llmk_weights_desc d = LLMK_INIT(llmk_weights_desc);
    d.format = w->format;
    d.n = w->n;
    d.k = w->k;
    d.group_size = w->group;
    d.row_bytes = w->row_bytes;
    d.data = (llmk_source){.host = w->data, .size = w->data_bytes};
    if (w->scales_bytes) {
        d.scales = (llmk_source){.host = w->scales, .size = w->scales_bytes};
        d.scale_dtype = w->scale_type;
    }
    if (w->zeros_bytes)
        d.zeros = (llmk_source){.host = w->zeros, .size = w->zeros_bytes};
    if (w->g_idx_bytes)
        d.g_idx = (llmk_source){.host = w->g_idx, .size = w->g_idx_bytes};
    if (w->zeros_as == LINEAR_ZEROS_I8)
        d.zero_dtype = LLMK_I8;
    if (w->zeros_as == LINEAR_SYMMETRIC && checkpoint_has_tables(w->format))
        d.flags = LLMK_WEIGHTS_SYMMETRIC;
    if (w->bits == 8)
        d.bits = 8;
    return d;
}

/* Weights that a thread takes at a time. */
#define PART 65536u

static uint64_t mix(uint64_t v)
{
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

static double uniform(uint64_t seed, uint64_t index)
{
    return (double)(mix(seed * 0x9e3779b97f4a7c15u + index) >> 11) * 0x1p-52 - 1;
}

static double largest(const double *v, uint64_t count, bool with_sign)
{
    double most = 0;
    for (uint64_t i = 0; i < count; i++)
        if (fabs(v[i]) > fabs(most))
            most = v[i];
    return with_sign ? most : fabs(most);
}

static double clamp_round(double v, double low, double high)
{
    return fmin(fmax(rint(v), low), high);
}

/* K-quants of random content: scales, minimums and codes take all their values. */
static void fill_k_block(llmk_format format, const double *v, uint8_t *block)
{
    const uint64_t bytes = linear_row_bytes(format, 256);
    for (uint64_t i = 0; i < bytes; i++)
        block[i] = (uint8_t)(mix((uint64_t)(v[i % 256] * 0x1p50) + i) & 255);
    const double d = (1 + fabs(v[0])) / 4096;
    case_encode(LLMK_F16, block, format == LLMK_FORMAT_GGUF_Q4_K ? 0 : 104, d);
    if (format == LLMK_FORMAT_GGUF_Q4_K)
        case_encode(LLMK_F16, block, 1, (1 + v[1]) / 512);
}

/* And of numbers, by round to nearest: a scale, in Q4_K a minimum too, from the range of each
 * group, and those in units of the largest. */
static void quantise_q4_k(const double *v, uint8_t *block)
{
    double low[8], step[8], d = 0, m = 0;
    for (int g = 0; g < 8; g++) {
        double high = 0;
        low[g] = 0;
        for (int i = 32 * g; i < 32 * g + 32; i++) {
            low[g] = fmin(low[g], v[i]);
            high = fmax(high, v[i]);
        }
        step[g] = (high - low[g]) / 15;
        d = fmax(d, step[g] / 63);
        m = fmax(m, -low[g] / 63);
    }
    case_encode(LLMK_F16, block, 0, d);
    case_encode(LLMK_F16, block, 1, m);
    d = case_decode(LLMK_F16, block, 0);
    m = case_decode(LLMK_F16, block, 1);
    uint8_t *packed = block + 4, *codes = block + 16;
    memset(packed, 0, 140);
    for (int g = 0; g < 8; g++) {
        const unsigned scale = d > 0 ? (unsigned)clamp_round(step[g] / d, 0, 63) : 0;
        const unsigned minimum = m > 0 ? (unsigned)clamp_round(-low[g] / m, 0, 63) : 0;
        if (g < 4) {
            packed[g] = (uint8_t)scale;
            packed[g + 4] = (uint8_t)minimum;
        } else {
            packed[g + 4] = (uint8_t)((scale & 15) | (minimum & 15) << 4);
            packed[g - 4] |= (uint8_t)(scale >> 4 << 6);
            packed[g] |= (uint8_t)(minimum >> 4 << 6);
        }
        for (int l = 0; l < 32 && scale; l++) {
            const double q = clamp_round((v[32 * g + l] + m * minimum) / (d * scale), 0, 15);
            codes[g / 2 * 32 + l] |= (uint8_t)((unsigned)q << g % 2 * 4);
        }
    }
}

static void quantise_q6_k(const double *v, uint8_t *block)
{
    double step[16], d = 0;
    for (int g = 0; g < 16; g++) {
        step[g] = largest(v + 16 * g, 16, true) / -32;
        d = fmax(d, fabs(step[g]) / 127);
    }
    memset(block, 0, 210);
    case_encode(LLMK_F16, block, 104, d);
    d = case_decode(LLMK_F16, block, 104);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, part = i % 128 / 32, l = i % 32;
        const double scale = d > 0 ? clamp_round(step[i / 16] / d, -127, 127) : 0;
        const double code = scale != 0 ? clamp_round(v[i] / (d * scale), -32, 31) : 0;
        const unsigned q = (unsigned)(code + 32);
        block[192 + i / 16] = (uint8_t)(int8_t)scale;
        block[64 * half + 32 * (part % 2) + l] |= (uint8_t)((q & 15) << part / 2 * 4);
        block[128 + 32 * half + l] |= (uint8_t)(q >> 4 << 2 * part);
    }
}

static void quantise_k_block(llmk_format format, const double *v, uint8_t *block)
{
    (format == LLMK_FORMAT_GGUF_Q4_K ? quantise_q4_k : quantise_q6_k)(v, block);
}

/* GGUF's own quantisers: d from the value of largest magnitude, which gets the code -8 in Q4_0. */
static void fill_block(llmk_format format, const double *v, uint8_t *block)
{
    if (format == LLMK_FORMAT_GGUF_Q8_0) {
        case_encode(LLMK_F16, block, 0, largest(v, 32, false) / 127);
        const double d = case_decode(LLMK_F16, block, 0);
        for (int i = 0; i < 32; i++)
            block[2 + i] = (uint8_t)(int8_t)(d > 0 ? clamp_round(v[i] / d, -127, 127) : 0);
        return;
    }
    double low = v[0], high = v[0];
    for (int i = 1; i < 32; i++) {
        low = fmin(low, v[i]);
        high = fmax(high, v[i]);
    }
    const bool affine = format == LLMK_FORMAT_GGUF_Q4_1;
    case_encode(LLMK_F16, block, 0, affine ? (high - low) / 15 : largest(v, 32, true) / -8);
    if (affine)
        case_encode(LLMK_F16, block, 1, low);
    const double d = case_decode(LLMK_F16, block, 0);
    const double origin = affine ? case_decode(LLMK_F16, block, 1) : -8 * d;
    uint8_t *nibbles = block + (affine ? 4 : 2);
    for (int j = 0; j < 16; j++) {
        const double a = d != 0 ? clamp_round((v[j] - origin) / d, 0, 15) : 0;
        const double b = d != 0 ? clamp_round((v[j + 16] - origin) / d, 0, 15) : 0;
        nibbles[j] = (uint8_t)((unsigned)a | (unsigned)b << 4);
    }
}

static void fill_w8_row(const linear_weights *w, uint64_t row, const double *v, uint8_t *bytes)
{
    const uint64_t size = w->group ? w->group : w->k;
    for (uint64_t g = 0; g < groups_of(w); g++) {
        const uint64_t first = g * size, count = w->k - first < size ? w->k - first : size;
        const float scale = (float)(largest(v + first, count, false) / 127);
        case_encode(LLMK_F32, w->scales, row * groups_of(w) + g, (double)scale);
        for (uint64_t i = first; i < first + count; i++)
            bytes[i] = (uint8_t)(int8_t)clamp_round(v[i] / (double)scale, -127, 127);
    }
}

/* ---- Weights as they occur ---- */

/* Numbers repeat after so many: a prime, so that rows differ. Of quantised weights so many rows are
 * made, and repeated: a prime as well, so that no tile looks like its neighbour. */
#define PERIOD 65521u
#define ROWS   61u

/* PERIOD + k normal numbers of deviation 0.02, of which row r begins at r * k % PERIOD. */
static double *normal_numbers(uint64_t k, uint32_t seed)
{
    double *numbers = malloc((PERIOD + k) * sizeof *numbers);
    for (uint64_t i = 0; numbers && i < PERIOD + k; i++)
        numbers[i] = i < PERIOD ? 0.02 * case_normal(seed, i) : numbers[i - PERIOD];
    return numbers;
}

static bool fill_floats(const linear_weights *w, const double *numbers)
{
    const llmk_dtype dtype = (llmk_dtype)w->format; /* they are numbered alike */
    const uint64_t size = linear_row_bytes(w->format, 1);
    uint8_t *stored = malloc((PERIOD + w->k) * size);
    for (uint64_t i = 0; stored && i < PERIOD + w->k; i++)
        case_encode(dtype, stored, i, numbers[i]);
    for (uint64_t row = 0; stored && row < w->n; row++)
        memcpy(w->data + row * w->row_bytes, stored + row * w->k % PERIOD * size, w->k * size);
    free(stored);
    return stored != NULL;
}

typedef void block_filler(llmk_format format, const double *v, uint8_t *block);

static void fill_row(const linear_weights *w, uint64_t row, const double *v, block_filler *k_quant)
{
    uint8_t *bytes = w->data + row * w->row_bytes;
    const uint64_t size = block_of(w->format);
    if (w->format == LLMK_FORMAT_W8)
        fill_w8_row(w, row, v, bytes);
    else
        for (uint64_t b = 0; b < blocks_of(w); b++)
            (size == 256 ? k_quant : fill_block)(w->format, v + size * b,
                                                 bytes + b * linear_row_bytes(w->format, size));
}

/* Copies what belongs to the first rows to all others, `bytes` a row. */
static void repeat_rows(void *rows, uint64_t bytes, uint64_t n)
{
    for (uint64_t row = ROWS; bytes && row < n; row++)
        memcpy((uint8_t *)rows + row * bytes, (uint8_t *)rows + row % ROWS * bytes, bytes);
}

static bool fill_codes(const linear_weights *w, const double *numbers, uint32_t seed)
{
    const bool tables = checkpoint_has_tables(w->format);
    linear_weights first = *w;
    if (w->n > ROWS && (!tables || w->format == LLMK_FORMAT_W4)) { /* rows lie apart */
        first.n = ROWS;
        linear_weights_set_sizes(&first);
    }
    if (tables && !checkpoint_fill_from(&first, numbers, PERIOD, seed))
        return false;
    for (uint64_t row = 0; !tables && row < first.n; row++)
        fill_row(&first, row, numbers + row * w->k % PERIOD, quantise_k_block);
    if (first.n < w->n) {
        for (uint64_t row = ROWS; row < w->n; row++) /* without the padding */
            memcpy(w->data + row * w->row_bytes, w->data + row % ROWS * w->row_bytes,
                   w->row_bytes - w->row_padding);
        repeat_rows(w->scales, first.scales_bytes / ROWS, w->n);
        repeat_rows(w->zeros, first.zeros_bytes / ROWS, w->n);
    }
    return true;
}

bool linear_weights_fill_as_they_occur(const linear_weights *w, uint32_t seed)
{
    const bool is_float = w->format == LLMK_FORMAT_F32 || w->format == LLMK_FORMAT_F16 ||
                          w->format == LLMK_FORMAT_BF16;
    if (w->k == 0)
        return true;
    double *numbers = normal_numbers(w->k, seed);
    const bool good =
        numbers && (is_float ? fill_floats(w, numbers) : fill_codes(w, numbers, seed));
    free(numbers);
    return good;
}

/* ---- Weights that show mistakes ---- */

typedef struct filling {
    const linear_weights *w;
    uint32_t seed;
    atomic_bool failed;
} filling;

static void fill_rows(void *filling_, uint64_t begin, uint64_t end)
{
    filling *f = filling_;
    const linear_weights *w = f->w;
    const bool is_float = w->format == LLMK_FORMAT_F32 || w->format == LLMK_FORMAT_F16 ||
                          w->format == LLMK_FORMAT_BF16;
    double *v = malloc((w->k + 1) * sizeof *v);
    for (uint64_t row = begin; v && row < end; row++) {
        for (uint64_t i = 0; i < w->k; i++)
            v[i] = uniform(f->seed, row * w->k + i);
        for (uint64_t i = 0; is_float && i < w->k; i++) /* numbered as their dtypes */
            case_encode((llmk_dtype)w->format, w->data + row * w->row_bytes, i, v[i]);
        if (!is_float)
            fill_row(w, row, v, fill_k_block);
    }
    if (!v)
        f->failed = true;
    free(v);
}

bool linear_weights_fill(const linear_weights *w, uint32_t seed)
{
    if (checkpoint_has_tables(w->format))
        return checkpoint_fill(w, seed);
    filling f = {.w = w, .seed = seed};
    if (w->k)
        case_parallel(w->n, 1 + PART / w->k, fill_rows, &f);
    return !f.failed;
}

/* ---- Reading weights ---- */

static void read_block(llmk_format format, const uint8_t *block, double *value, double *magnitude)
{
    const double d = case_decode(LLMK_F16, block, 0);
    const bool affine = format == LLMK_FORMAT_GGUF_Q4_1;
    const double minimum = affine ? case_decode(LLMK_F16, block, 1) : 0;
    for (int i = 0; i < 32; i++) {
        double q;
        if (format == LLMK_FORMAT_GGUF_Q8_0)
            q = (int8_t)block[2 + i];
        else if (i < 16)
            q = (block + (affine ? 4 : 2))[i] & 15;
        else
            q = (block + (affine ? 4 : 2))[i - 16] >> 4;
        if (format == LLMK_FORMAT_GGUF_Q4_0)
            q -= 8;
        value[i] = d * q + minimum;
        magnitude[i] = fabs(d * q) + fabs(minimum);
    }
}

/* The scales and minimums of Q4_K, 6 bits each: of groups 0 to 3 the low bits of bytes 0 to 7, of 4
 * to 7 the nibbles of bytes 8 to 11 under the high bits of bytes 0 to 7. */
static void read_q4_k(const uint8_t *block, double *value, double *magnitude)
{
    const double d = case_decode(LLMK_F16, block, 0), m = case_decode(LLMK_F16, block, 1);
    const uint8_t *packed = block + 4, *codes = block + 16;
    for (int g = 0; g < 8; g++) {
        int scale = packed[g % 4] & 63, minimum = packed[g % 4 + 4] & 63;
        if (g >= 4) {
            scale = (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4;
            minimum = packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
        }
        for (int l = 0; l < 32; l++) {
            const int q = g % 2 ? codes[g / 2 * 32 + l] >> 4 : codes[g / 2 * 32 + l] & 15;
            value[32 * g + l] = d * scale * q - m * minimum;
            magnitude[32 * g + l] = fabs(d * scale * q) + fabs(m * minimum);
        }
    }
}

/* Of each half, 128 weights: 64 bytes of low nibbles, 32 of pairs of high bits. */
static void read_q6_k(const uint8_t *block, double *value, double *magnitude)
{
    const double d = case_decode(LLMK_F16, block, 104);
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *low = block + 64 * half + l;
            const int high = block[128 + 32 * half + l];
            const int q[4] = {
                (low[0] & 15) | (high & 3) << 4, (low[32] & 15) | (high >> 2 & 3) << 4,
                low[0] >> 4 | (high >> 4 & 3) << 4, low[32] >> 4 | (high >> 6 & 3) << 4};
            for (int part = 0; part < 4; part++) {
                const int i = 128 * half + 32 * part + l;
                value[i] = d * (int8_t)block[192 + i / 16] * (q[part] - 32);
                magnitude[i] = fabs(value[i]);
            }
        }
}

void linear_weights_row(const linear_weights *w, uint64_t row, double *value, double *magnitude)
{
    const uint8_t *bytes = w->data + row * w->row_bytes;
    if (checkpoint_has_tables(w->format)) {
        checkpoint_row(w, row, value);
        for (uint64_t i = 0; i < w->k; i++)
            magnitude[i] = fabs(value[i]);
        return;
    }
    if (w->format >= LLMK_FORMAT_GGUF_Q8_0) {
        const uint64_t size = block_of(w->format);
        for (uint64_t b = 0; b < blocks_of(w); b++) {
            const uint8_t *block = bytes + b * linear_row_bytes(w->format, size);
            double *v = value + size * b, *m = magnitude + size * b;
            if (w->format == LLMK_FORMAT_GGUF_Q4_K)
                read_q4_k(block, v, m);
            else if (w->format == LLMK_FORMAT_GGUF_Q6_K)
                read_q6_k(block, v, m);
            else
                read_block(w->format, block, v, m);
        }
        return;
    }
    for (uint64_t i = 0; i < w->k; i++) {
        if (w->format == LLMK_FORMAT_W8)
            value[i] = case_decode(LLMK_F32, w->scales,
                                   row * groups_of(w) + (w->group ? i / w->group : 0)) *
                       (int8_t)bytes[i];
        else
            value[i] = case_decode((llmk_dtype)w->format, bytes, i);
        magnitude[i] = fabs(value[i]);
    }
}

/* ---- The product ---- */

#define UNIT_F32 0x1p-24
#define TINY_F32 0x1p-126 /* what a device that flushes subnormals may lose at once */

double linear_depth(uint64_t k)
{
    return 48 + ceil((double)k / 32);
}

/* The codes of rows of x, by the rule of llmk_quantize in its own f32 operations, and the scales
 * behind them. */
static void quantise_rows(const linear_problem_f64 *p, double *codes)
{
    const uint64_t k = p->w->k;
    const float tiny = 0x1p-100f, part = 1.0f / 127.0f;
    for (uint64_t i = 0; i < p->m; i++) {
        const double *x = p->x + i * k;
        float largest = 0;
        for (uint64_t l = 0; l < k; l++)
            if (isfinite(x[l]) && (float)fabs(x[l]) > largest)
                largest = (float)fabs(x[l]);
        const float product = largest * part;
        const float scale = largest < tiny ? 1 : product > tiny ? product : tiny;
        const float inverse = 1.0f / scale;
        for (uint64_t l = 0; l < k; l++) {
            const float quotient = (float)x[l] * inverse;
            codes[i * k + l] = isnan(x[l]) ? 0 : fmax(-127, fmin(127, rint((double)quotient)));
        }
        codes[p->m * k + i] = (double)scale;
    }
}

/* Of codes instead of x: three roundings, then the epilogue. */
static void compute_w8a8(const linear_problem_f64 *p, const double *codes, uint64_t i, uint64_t j,
                         const double *value)
{
    const uint64_t k = p->w->k, at = i * p->w->n + j;
    const double scale = codes[p->m * k + i];
    double sum = 0, exact = 0, magnitude = 0;
    bool finite = true;
    for (uint64_t l = 0; l < k; l++) {
        const double x = p->x[i * k + l];
        sum += codes[i * k + l] * value[l];
        exact += x * value[l];
        magnitude += fabs(value[l]);
        finite = finite && isfinite(x);
    }
    sum *= scale;
    const bool near = fabs(sum - exact) <= scale * (0.5 + 0x1p-15) * magnitude + 0x1p-40;
    assert(!finite || near);
    (void)finite, (void)near; /* in a Release build */
    const double bias = p->bias ? p->bias[j] : 0, residual = p->residual ? p->residual[at] : 0;
    const double error = 3.001 * UNIT_F32 * fabs(sum) +
                         2.001 * UNIT_F32 * (fabs(sum) + fabs(bias) + fabs(residual)) +
                         4 * TINY_F32;
    p->y[at] = sum + bias + residual;
    p->bound[at] = error + case_rounding(p->y_type, fabs(p->y[at]) + error);
}

static void compute(const linear_problem_f64 *p, const double *codes, uint64_t i, uint64_t j,
                    const double *value, const double *magnitude)
{
    if (codes) {
        compute_w8a8(p, codes, i, j, value);
        return;
    }
    const uint64_t k = p->w->k, at = i * p->w->n + j;
    const double *x = p->x + i * k;
    double sum = 0, terms = 0;
    for (uint64_t l = 0; l < k; l++) {
        sum += x[l] * value[l];
        terms += fabs(x[l]) * magnitude[l];
    }
    const double bias = p->bias ? p->bias[j] : 0, residual = p->residual ? p->residual[at] : 0;
    const double depth = linear_depth(k) * UNIT_F32;
    const double error = terms * depth / (1 - depth) +
                         2 * UNIT_F32 * (terms + fabs(bias) + fabs(residual)) +
                         (double)(k + 2) * TINY_F32;
    p->y[at] = sum + bias + residual;
    p->bound[at] = error + case_rounding(p->y_type, fabs(p->y[at]) + error);
}

static bool is_edge(uint64_t i, uint64_t count)
{
    return i % 64 == 0 || i % 64 == 63 || i + 1 == count;
}

typedef struct product {
    const linear_problem_f64 *p;
    const double *codes;
    bool all;
    uint64_t picks; /* of a column, but for edges */
    atomic_bool failed;
} product;

static void compute_columns(void *product_, uint64_t begin, uint64_t end)
{
    product *d = product_;
    const linear_problem_f64 *p = d->p;
    const linear_weights *w = p->w;
    linear_row r;
    const bool good = linear_row_make(&r, w->k);
    for (uint64_t j = begin; good && j < end; j++) {
        const bool edge = is_edge(j, w->n), picked = !p->sample || mix(j) % 8 == 0;
        if (d->all || edge || picked)
            linear_weights_row(w, j, r.value, r.magnitude);
        for (uint64_t i = 0; i < p->m; i++) {
            p->bound[i * w->n + j] = (double)INFINITY;
            if (d->all || (edge && is_edge(i, p->m)))
                compute(p, d->codes, i, j, r.value, r.magnitude);
        }
        for (uint64_t pick = 0; !d->all && picked && pick < d->picks; pick++)
            compute(p, d->codes, mix(j * d->picks + pick) % p->m, j, r.value, r.magnitude);
    }
    if (!good)
        d->failed = true;
    linear_row_free(&r);
}

bool linear_reference(const linear_problem_f64 *p)
{
    const linear_weights *w = p->w;
    product d = {.p = p, .picks = 2 + 4096 / (w->n + 1)};
    d.all = (double)p->m * (double)w->n * (double)w->k <= (p->sample ? 0x1p27 : 0x1p31);
    double *codes = p->w8a8 ? calloc(p->m * (w->k + 1) + 1, sizeof *codes) : NULL;
    if (codes)
        quantise_rows(p, codes);
    d.codes = codes;
    if (codes || !p->w8a8)
        case_parallel(w->n, 1 + PART / (w->k + 1), compute_columns, &d);
    const bool good = !d.failed && (codes || !p->w8a8);
    free(codes);
    return good;
}

bool linear_row_make(linear_row *r, uint64_t k)
{
    r->value = malloc((k + 1) * sizeof *r->value);
    r->magnitude = malloc((k + 1) * sizeof *r->magnitude);
    return r->value && r->magnitude;
}

void linear_row_free(linear_row *r)
{
    free(r->value);
    free(r->magnitude);
}

double linear_row_product(const double *x, const double *x_error, const linear_row *w, uint64_t k,
                          double bias, double *error)
{
    const double depth = linear_depth(k) * UNIT_F32;
    double sum = 0, terms = 0, inherited = 0;
    for (uint64_t i = 0; i < k; i++) {
        const double xe = x_error ? x_error[i] : 0;
        sum += x[i] * w->value[i];
        terms += (fabs(x[i]) + xe) * w->magnitude[i];
        inherited += xe * fabs(w->value[i]);
    }
    *error = inherited + terms * depth / (1 - depth) + 2 * UNIT_F32 * (terms + fabs(bias)) +
             (double)(k + 2) * TINY_F32;
    return sum + bias;
}
