/* test_checkpoints.c - weights as checkpoints pack them: known words, zeros at their limits,
 * sources in buffers and in parts, sizes held, refusals. */
#include "core/weights.h"

#include "core/half.h"
#include "formats/gguf_blocks.h"
#include "reference/checkpoint_reference.h"
#include "support/refusals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static llmk_source host(const void *bytes, uint64_t size)
{
    return (llmk_source){.host = bytes, .size = size};
}

/* ---- Weights back from the device: x is the identity, so y[k][n] = W[k][n] ---- */

static float *weights_through_linear(fixture *f, const llmk_weights_desc *desc)
{
    const uint64_t n = desc->n, k = desc->k;
    cl_context cl = llmk_context_cl_context(f->ctx);
    float *x = calloc(k * k, sizeof *x), *y = calloc(k * n, sizeof *y);
    llmk_weights *w = NULL;
    if (llmk_weights_create(f->ctx, desc, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    for (uint64_t i = 0; i < k; i++)
        x[i * k + i] = 1;
    cl_mem bx = clCreateBuffer(cl, CL_MEM_COPY_HOST_PTR, k * k * sizeof *x, x, NULL);
    cl_mem by = clCreateBuffer(cl, 0, k * n * sizeof *y, NULL, NULL);
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_matrix(bx, LLMK_F32, k, k);
    args.weights = w;
    args.y = llmk_matrix(by, LLMK_F32, k, n);
    if (llmk_linear(f->ctx, f->queue, &args, NULL) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    assert_int_equal(
        clEnqueueReadBuffer(f->queue, by, CL_TRUE, 0, k * n * sizeof *y, y, 0, NULL, NULL),
        CL_SUCCESS);
    clReleaseMemObject(bx);
    clReleaseMemObject(by);
    llmk_weights_free(w);
    free(x);
    return y;
}

/* ---- The known words ---- */

#define EDGE 16

static unsigned known_q(unsigned k, unsigned n)
{
    return (3 * k + 5 * n + (k * n >> 2)) & 15;
}
static unsigned known_z(unsigned g, unsigned n)
{
    return (7 * g + n) % 15 + 1;
}

static const uint32_t gptq_words[2][EDGE] = {
    {0x52fc9630, 0xb852eb85, 0x2fb841da, 0x951ea62f, 0x0c840c84, 0x62ea51d9, 0xd940b72e, 0x4fa61c73,
     0xb61c72d8, 0x1c72c72d, 0x83d82d72, 0xf93e82c7, 0x60a4e82c, 0xc60a3d71, 0x3d6093c6,
     0xa3c6f81b},
    {0xda741eb8, 0x52fc852f, 0xeb740d96, 0x73fc840d, 0x0c840c84, 0x840c73fb, 0x1d84fb62, 0xa50c72d9,
     0x3e94fa50, 0xb61c61c7, 0x4f94e93e, 0xd71c60a5, 0x60a4e82c, 0xe82c5f93, 0x71a4d70a,
     0x092c5e71}};
static const uint32_t gptq_zeros_v2[4] = {0x87654321, 0x1fedcba9, 0xfedcba98, 0x87654321};
static const uint32_t gptq_zeros_v1[4] = {0x76543210, 0x0edcba98, 0xedcba987, 0x76543210};
static const uint32_t awq_words[4][2] = {{0x39f5e4a0, 0xb17d6c28},
                                         {0x7d2828d3, 0x17c2c27d},
                                         {0xc16b7c16, 0x8d2738d2},
                                         {0x15aeb049, 0xf38c9e27}};
static const uint32_t awq_zeros[4] = {0x86427531, 0x1ecafdb9, 0xfdb9eca8, 0x86427531};

/* The packer's words are the known ones. */
static void test_packer(void **state)
{
    (void)state;
    static const llmk_format formats[] = {LLMK_FORMAT_GPTQ_V1, LLMK_FORMAT_GPTQ_V2,
                                          LLMK_FORMAT_AWQ_GEMM};
    uint8_t q[EDGE * EDGE], z[2 * EDGE];
    double scale[2 * EDGE];
    for (unsigned n = 0; n < EDGE; n++) {
        for (unsigned k = 0; k < EDGE; k++)
            q[k * EDGE + n] = (uint8_t)known_q(k, n);
        for (unsigned g = 0; g < 2; g++) {
            z[g * EDGE + n] = (uint8_t)known_z(g, n);
            scale[g * EDGE + n] = 1;
        }
    }
    for (size_t i = 0; i < 3; i++) {
        linear_weights w;
        uint32_t words[2 * EDGE], zeros[4];
        uint16_t scales[2 * EDGE];
        linear_weights_sizes(&w, formats[i], EDGE, EDGE, 8, 0);
        assert_int_equal(w.data_bytes, sizeof words);
        assert_int_equal(w.zeros_bytes, sizeof zeros);
        assert_int_equal(w.scales_bytes, sizeof scales);
        w.data = (uint8_t *)words;
        w.zeros = (uint8_t *)zeros;
        w.scales = scales;
        checkpoint_pack(&w, q, z, scale);
        const bool awq = formats[i] == LLMK_FORMAT_AWQ_GEMM;
        assert_memory_equal(words, awq ? (const void *)awq_words : gptq_words,
                            awq ? sizeof awq_words : sizeof gptq_words);
        assert_memory_equal(zeros,
                            awq                                 ? awq_zeros
                            : formats[i] == LLMK_FORMAT_GPTQ_V1 ? gptq_zeros_v1
                                                                : gptq_zeros_v2,
                            sizeof zeros);
        double value[EDGE];
        for (unsigned n = 0; n < EDGE; n++) {
            checkpoint_row(&w, n, value);
            for (unsigned k = 0; k < EDGE; k++)
                assert_true(value[k] == (int)known_q(k, n) - (int)known_z(k / 8, n));
        }
    }
}

static llmk_weights_desc known(llmk_format format, const void *words, uint64_t bytes,
                               const uint32_t zeros[4])
{
    static uint16_t ones[2 * EDGE];
    for (size_t i = 0; i < 2 * EDGE; i++)
        ones[i] = 0x3c00;
    llmk_weights_desc d = LLMK_INIT(llmk_weights_desc);
    d.format = format;
    d.n = d.k = EDGE;
    d.group_size = 8;
    d.data = host(words, bytes);
    d.scales = host(ones, sizeof ones);
    d.zeros = host(zeros, 4 * sizeof *zeros);
    return d;
}

static void test_known_words(void **state)
{
    /* AWQ's other rows, from the same formula. */
    uint32_t awq[EDGE][2] = {{0}};
    static const unsigned column[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    for (unsigned k = 0; k < EDGE; k++)
        for (unsigned c = 0; c < 2; c++)
            for (unsigned i = 0; i < 8; i++)
                awq[k][c] |= (uint32_t)known_q(k, 8 * c + column[i]) << 4 * i;
    assert_memory_equal(awq, awq_words, sizeof awq_words);

    const llmk_weights_desc descs[] = {
        known(LLMK_FORMAT_GPTQ_V1, gptq_words, sizeof gptq_words, gptq_zeros_v1),
        known(LLMK_FORMAT_GPTQ_V2, gptq_words, sizeof gptq_words, gptq_zeros_v2),
        known(LLMK_FORMAT_AWQ_GEMM, awq, sizeof awq, awq_zeros)};
    for (size_t i = 0; i < 3; i++)
        for (int symmetric = 0; symmetric < 2; symmetric++) {
            llmk_weights_desc d = descs[i];
            d.flags = symmetric ? LLMK_WEIGHTS_SYMMETRIC : 0;
            float *w = weights_through_linear(*state, &d);
            for (unsigned k = 0; k < EDGE; k++)
                for (unsigned n = 0; n < EDGE; n++)
                    assert_true(
                        w[k * EDGE + n] ==
                        (float)((int)known_q(k, n) - (symmetric ? 8 : (int)known_z(k / 8, n))));
            free(w);
        }
}

/* One group of 8 x 8 codes of 0: a weight is minus its column's zero. */
static void check_zeros(fixture *f, llmk_format format, uint32_t word, const int expected[8])
{
    static const uint32_t codes[8];
    uint16_t ones[8];
    for (size_t i = 0; i < 8; i++)
        ones[i] = 0x3c00;
    llmk_weights_desc d = LLMK_INIT(llmk_weights_desc);
    d.format = format;
    d.n = d.k = 8;
    d.group_size = UINT64_MAX; /* -1 */
    d.data = host(codes, sizeof codes);
    d.scales = host(ones, sizeof ones);
    d.zeros = host(&word, sizeof word);
    float *w = weights_through_linear(f, &d);
    for (size_t n = 0; n < 8; n++)
        assert_true(w[n] == (float)-expected[n]);
    free(w);
}

static void test_zero_words(void **state)
{
    static const int eights[8] = {8, 8, 8, 8, 8, 8, 8, 8}, none[8] = {0};
    static const int borrowed[8] = {5, 0, 5, 15, 0, 0, 3, 7};
    static const int full[8] = {15, 15, 15, 15, 15, 15, 15, 15};
    check_zeros(*state, LLMK_FORMAT_GPTQ_V1, 0x77777777, eights);
    check_zeros(*state, LLMK_FORMAT_GPTQ_V2, 0x88888888, eights);
    check_zeros(*state, LLMK_FORMAT_AWQ_GEMM, 0x88888888, eights);
    check_zeros(*state, LLMK_FORMAT_GPTQ_V1, 0x61efe3f4, borrowed);
    /* A stored field of 15 is a zero of 0, and carries into the next, which it was borrowed from.
     */
    check_zeros(*state, LLMK_FORMAT_GPTQ_V1, 0xeeeeeeef, none);
    check_zeros(*state, LLMK_FORMAT_GPTQ_V1, 0xeeeeeeee, full);
    check_zeros(*state, LLMK_FORMAT_GPTQ_V2, 0xffffffff, full);
    check_zeros(*state, LLMK_FORMAT_GPTQ_V2, 0, none);
}

static void test_eight_bits(void **state)
{
    /* K = N = 4: bytes 4w ... of column n are q = 16 k + 4 n + 100, zeros 128 + n (v1: one less).
     */
    uint32_t codes[4] = {0};
    uint16_t scales[4] = {0x3c00, 0x3800, 0x4000, 0x3c00};
    static const float factor[4] = {1, 0.5f, 2, 1};
    for (unsigned n = 0; n < 4; n++)
        for (unsigned k = 0; k < 4; k++)
            codes[n] |= (uint32_t)(16 * k + 4 * n + 100) << 8 * k;
    static const uint32_t zeros[2] = {0x83828180 - 0x01010101, 0x83828180};
    for (int v = 0; v < 2; v++) {
        llmk_weights_desc d = LLMK_INIT(llmk_weights_desc);
        d.format = v ? LLMK_FORMAT_GPTQ_V2 : LLMK_FORMAT_GPTQ_V1;
        d.bits = 8;
        d.n = d.k = 4;
        d.data = host(codes, sizeof codes);
        d.scales = host(scales, sizeof scales);
        d.zeros = host(&zeros[v], sizeof zeros[v]);
        float *w = weights_through_linear(*state, &d);
        for (unsigned k = 0; k < 4; k++)
            for (unsigned n = 0; n < 4; n++)
                assert_true(w[4 * k + n] ==
                            factor[n] * (float)((int)(16 * k + 4 * n + 100) - (int)(128 + n)));
        free(w);
    }
}

/* ---- K-quants: a block of bytes from a known generator, dequantised by gguf-py 0.19 ---- */

static void fill_block(uint8_t *block, size_t bytes)
{
    uint32_t s = 1;
    for (size_t i = 0; i < bytes; i++) {
        s = s * 1664525u + 1013904223u;
        block[i] = (uint8_t)(s >> 24);
    }
}

static uint32_t hash(const float *w)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < 256; i++)
        h = (h ^ (uint32_t)(int32_t)(64 * w[i])) * 16777619u;
    return h;
}

static void test_k_quants(void **state)
{
    static const struct {
        llmk_format format;
        llmk_gguf_type type;
        size_t bytes, d;
        float first[8];
        uint32_t hash;
    } known_blocks[] = {{LLMK_FORMAT_GGUF_Q4_K,
                         LLMK_GGUF_Q4_K,
                         144,
                         0,
                         {128, 20, 152, 80, 68, 104, 8, -4},
                         0x2fe49044},
                        {LLMK_FORMAT_GGUF_Q6_K,
                         LLMK_GGUF_Q6_K,
                         210,
                         208,
                         {-1148, 82, 1271, 492, 820, -574, -902, 738},
                         0x3dcab9e8}};
    for (size_t i = 0; i < 2; i++) {
        uint8_t block[210];
        float w[256];
        double value[256], magnitude[256];
        fill_block(block, known_blocks[i].bytes);
        const uint16_t d = 0x2400, m = 0x2c00; /* 1/64, 1/16 */
        memcpy(block + known_blocks[i].d, &d, 2);
        if (i == 0)
            memcpy(block + 2, &m, 2);
        assert_true(llmk_gguf_dequantise(known_blocks[i].type, block, 256, w));
        for (size_t j = 0; j < 8; j++)
            assert_true(64 * w[j] == known_blocks[i].first[j]);
        assert_int_equal(hash(w), known_blocks[i].hash);

        linear_weights reference;
        linear_weights_sizes(&reference, known_blocks[i].format, 1, 256, 0, 0);
        assert_int_equal(reference.data_bytes, known_blocks[i].bytes);
        reference.data = block;
        linear_weights_row(&reference, 0, value, magnitude);
        const llmk_weights_desc desc = linear_weights_describe(&reference);
        float *back = weights_through_linear(*state, &desc);
        for (size_t j = 0; j < 256; j++)
            assert_true((float)value[j] == w[j] && back[j] == w[j]);
        free(back);
    }
}

/* What is timed: normal numbers, as near as codes of 4 and 6 bits come. */
static void test_k_quants_as_they_occur(void **state)
{
    enum { N = 3, K = 512 };
    static const double error[] = {0.09, 0.03}; /* at most, of the deviation */
    (void)state;
    linear_weights exact;
    linear_weights_sizes(&exact, LLMK_FORMAT_F32, N, K, 0, 0);
    assert_non_null(exact.data = malloc(exact.data_bytes));
    assert_true(linear_weights_fill_as_they_occur(&exact, 5));
    for (unsigned i = 0; i < 2; i++) {
        linear_weights w;
        linear_weights_sizes(&w, i ? LLMK_FORMAT_GGUF_Q6_K : LLMK_FORMAT_GGUF_Q4_K, N, K, 0, 0);
        assert_non_null(w.data = malloc(w.data_bytes));
        assert_true(linear_weights_fill_as_they_occur(&w, 5));
        double power = 0, wrong = 0;
        for (uint64_t row = 0; row < N; row++) {
            double v[K], value[K], magnitude[K];
            linear_weights_row(&exact, row, v, magnitude);
            linear_weights_row(&w, row, value, magnitude);
            for (size_t k = 0; k < K; k++) {
                power += v[k] * v[k];
                wrong += (value[k] - v[k]) * (value[k] - v[k]);
            }
        }
        assert_true(wrong > 0 && wrong < error[i] * error[i] * power);
        free(w.data);
    }
    free(exact.data);
}

/* ---- Sources ---- */

static linear_weights make(llmk_format format, uint64_t n, uint64_t k, uint64_t group,
                           uint32_t bits, linear_zeros zeros, linear_order order, uint64_t padding)
{
    linear_weights w = {.format = format,
                        .n = n,
                        .k = k,
                        .group = group,
                        .bits = bits,
                        .zeros_as = zeros,
                        .order = order,
                        .row_padding = padding};
    linear_weights_set_sizes(&w);
    w.data = calloc(1, w.data_bytes + 1);
    w.scales = calloc(1, w.scales_bytes + 1);
    w.zeros = w.zeros_bytes ? calloc(1, w.zeros_bytes) : NULL;
    w.g_idx = w.g_idx_bytes ? calloc(1, w.g_idx_bytes) : NULL;
    linear_weights_fill(&w, 5);
    return w;
}

static void unmake(linear_weights *w)
{
    free(w->data);
    free(w->scales);
    free(w->zeros);
    free(w->g_idx);
}

static const struct {
    llmk_format format;
    uint64_t n, k, group;
    uint32_t bits;
    linear_zeros zeros;
    linear_order order;
    double held; /* bytes */
} sizes[] = {
    /* codes + scales + zeros + order */
    {LLMK_FORMAT_W4, 48, 256, 64, 0, LINEAR_ZEROS, LINEAR_IN_ORDER, 48 * (128 + 4 * 4 + 2)},
    {LLMK_FORMAT_W4, 48, 256, 64, 0, LINEAR_SYMMETRIC, LINEAR_IN_ORDER, 48 * (128 + 4 * 4)},
    {LLMK_FORMAT_GPTQ_V1, 48, 256, 64, 4, LINEAR_ZEROS, LINEAR_IN_ORDER, 48 * (128 + 4 * 2 + 2)},
    {LLMK_FORMAT_GPTQ_V2, 48, 256, 64, 4, LINEAR_SYMMETRIC, LINEAR_ORDER_PLAIN, 48 * (128 + 4 * 2)},
    {LLMK_FORMAT_GPTQ_V2, 48, 256, 64, 4, LINEAR_ZEROS, LINEAR_ACT_ORDER,
     48 * (128 + 4 * 2 + 2) + 4 * 256},
    {LLMK_FORMAT_GPTQ_V1, 48, 256, 0, 8, LINEAR_ZEROS, LINEAR_IN_ORDER, 48 * (256 + 2 + 1)},
    {LLMK_FORMAT_AWQ_GEMM, 48, 256, 128, 0, LINEAR_ZEROS, LINEAR_IN_ORDER, 48 * (128 + 2 * 2 + 1)},
    {LLMK_FORMAT_COMPRESSED_TENSORS, 51, 256, 32, 4, LINEAR_ZEROS, LINEAR_IN_ORDER,
     51 * (128 + 8 * 2 + 4)},
    {LLMK_FORMAT_COMPRESSED_TENSORS, 51, 256, 32, 4, LINEAR_ZEROS_I8, LINEAR_ACT_ORDER,
     51 * (128 + 8 * 2 + 4) + 4 * 256},
    {LLMK_FORMAT_COMPRESSED_TENSORS, 51, 256, 256, 8, LINEAR_ZEROS_I8, LINEAR_IN_ORDER,
     51 * (256 + 2 + 1)},
    {LLMK_FORMAT_GGUF_Q4_K, 5, 512, 0, 0, LINEAR_ZEROS, LINEAR_IN_ORDER, 5 * 288},
    {LLMK_FORMAT_GGUF_Q6_K, 5, 512, 0, 0, LINEAR_ZEROS, LINEAR_IN_ORDER, 5 * 420},
};
#define SIZES (sizeof sizes / sizeof *sizes)

static linear_weights make_size(size_t i, uint64_t padding)
{
    return make(sizes[i].format, sizes[i].n, sizes[i].k, sizes[i].group, sizes[i].bits,
                sizes[i].zeros, sizes[i].order, padding);
}

static uint64_t buffer_bytes(cl_mem buffer)
{
    size_t bytes = 0;
    if (buffer)
        clGetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    return bytes;
}

/* What the device holds is the packed size; of blocks of rows, that of N filled up to 16 rows. */
static void test_held_in(fixture *f, llmk_layout_class layouts, size_t i)
{
    linear_weights source = make_size(i, 0);
    const llmk_weights_desc desc = linear_weights_describe(&source);
    llmk_weights *w = NULL;
    if (llmk_weights_create_as(f->ctx, &desc, layouts, 0, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    uint64_t held = buffer_bytes(w->order);
    const uint64_t order = held, rows = (sizes[i].n + w->block - 1) / w->block * w->block;
    for (size_t s = 0; s < w->segment_count; s++)
        held += buffer_bytes(w->segments[s].data) + buffer_bytes(w->segments[s].scales) +
                buffer_bytes(w->segments[s].zeros);
    assert_int_equal(held, ((uint64_t)sizes[i].held - order) / sizes[i].n * rows + order);
    llmk_weights_info info = LLMK_INIT(llmk_weights_info);
    assert_int_equal(llmk_weights_get_info(w, &info), LLMK_OK);
    assert_int_equal(info.device_bytes, held);
    assert_string_equal(llmk_format_name(info.format), llmk_format_name(sizes[i].format));
    llmk_weights_free(w);
    unmake(&source);
}

static void test_held(void **state)
{
    for (size_t i = 0; i < SIZES; i++) {
        test_held_in(*state, LLMK_CLASS_PORTABLE, i);
        if (i != 6) /* an odd number of zeros a row: half a byte less */
            test_held_in(*state, LLMK_CLASS_NV, i);
    }
}

static llmk_source in_buffer(fixture *f, llmk_source from, uint64_t offset)
{
    if (!from.host || from.size == 0)
        return from;
    uint8_t *image = calloc(1, from.size + offset);
    memcpy(image + offset, from.host, from.size);
    cl_mem buffer = clCreateBuffer(llmk_context_cl_context(f->ctx), CL_MEM_COPY_HOST_PTR,
                                   from.size + offset, image, NULL);
    assert_non_null(buffer);
    free(image);
    return (llmk_source){.buffer = buffer, .offset = offset, .size = from.size};
}

/* From buffers, with gaps between rows, in several segments: always the same weights. */
static void test_sources(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < SIZES; i++)
        for (int from_buffers = 0; from_buffers < 2; from_buffers++) {
            linear_weights source = make_size(i, from_buffers ? 20 : 0);
            llmk_weights_desc desc = linear_weights_describe(&source);
            llmk_source *sources[] = {&desc.data, &desc.scales, &desc.zeros, &desc.g_idx};
            double value[512], magnitude[512];
            for (size_t s = 0; from_buffers && s < 4; s++)
                *sources[s] = in_buffer(f, *sources[s], 8 * s + 4);
            float *w = weights_through_linear(f, &desc);
            for (uint64_t n = 0; n < source.n; n++) {
                linear_weights_row(&source, n, value, magnitude);
                for (uint64_t k = 0; k < source.k; k++)
                    assert_true(fabs((double)w[k * source.n + n] - value[k]) <=
                                0x1p-23 * magnitude[k]);
            }
            free(w);
            for (size_t s = 0; s < 4; s++)
                if (sources[s]->buffer)
                    clReleaseMemObject(sources[s]->buffer);
            unmake(&source);
        }
}

/* Columns 16 ... 31 of a matrix of 48, as a shard takes them. */
static void test_columns(void **state)
{
    static const llmk_format formats[] = {LLMK_FORMAT_GPTQ_V1, LLMK_FORMAT_AWQ_GEMM};
    for (size_t i = 0; i < 2; i++) {
        linear_weights source = make(formats[i], 48, 64, 32, 4, LINEAR_ZEROS, LINEAR_IN_ORDER, 0);
        const llmk_weights_desc whole = linear_weights_describe(&source);
        llmk_weights_desc part = whole;
        const uint64_t skip = i == 0 ? 16 * 4 : 16 / 8 * 4;
        part.n = 16;
        part.scale_row_bytes = 48 * 2;
        part.zero_row_bytes = 48 / 8 * 4;
        part.data.host = source.data + skip;
        part.data.size -= skip;
        part.scales.host = (const uint8_t *)source.scales + 16 * 2;
        part.scales.size -= 32;
        part.zeros.host = source.zeros + 16 / 8 * 4;
        part.zeros.size -= 8;
        float *a = weights_through_linear(*state, &whole);
        float *b = weights_through_linear(*state, &part);
        for (size_t k = 0; k < 64; k++)
            assert_memory_equal(b + k * 16, a + k * 48 + 16, 16 * sizeof *a);
        free(a);
        free(b);
        unmake(&source);
    }
}

/* The second half of K of an act-order matrix: weights of any of its groups. */
static void test_depth(void **state)
{
    linear_weights source =
        make(LLMK_FORMAT_GPTQ_V2, 16, 256, 64, 4, LINEAR_ZEROS, LINEAR_ACT_ORDER, 0);
    const llmk_weights_desc whole = linear_weights_describe(&source);
    llmk_weights_desc part = whole;
    part.k = 128;
    part.groups = 4;
    part.data.host = source.data + 128 / 8 * source.row_bytes;
    part.data.size /= 2;
    part.g_idx.host = source.g_idx + 128;
    part.g_idx.size /= 2;
    float *a = weights_through_linear(*state, &whole);
    float *b = weights_through_linear(*state, &part);
    assert_memory_equal(b, a + (size_t)128 * 16, (size_t)128 * 16 * sizeof *a);
    free(a);
    free(b);
    unmake(&source);
}

/* ---- Guessing ---- */

static void test_guess(void **state)
{
    (void)state;
    static const struct {
        uint32_t words[3];
        uint32_t bits;
        llmk_format guess;
        const char *says;
    } guesses[] = {
        {{0x77777777, 0x77777777, 0x77777777}, 4, LLMK_FORMAT_GPTQ_V1, "GPTQ v1"},
        {{0x88888888, 0x88888888, 0x88888888}, 4, LLMK_FORMAT_GPTQ_V2, "GPTQ v2"},
        {{0x88888888, 0x88888887, 0x88888888}, 4, LLMK_FORMAT_NONE, "2 are 88888888"},
        {{0x7f7f7f7f, 0x7f7f7f7f, 0x7f7f7f7f}, 8, LLMK_FORMAT_GPTQ_V1, "GPTQ v1"},
        {{0x80808080, 0x80808080, 0x80808080}, 8, LLMK_FORMAT_GPTQ_V2, "GPTQ v2"},
        {{0x77777777, 0x77777777, 0x77777777}, 8, LLMK_FORMAT_NONE, "no guess"},
    };
    llmk_format guess;
    char sentence[160];
    for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++) {
        assert_int_equal(llmk_guess_gptq_version(guesses[i].words, 12, guesses[i].bits, &guess,
                                                 sentence, sizeof sentence),
                         LLMK_OK);
        assert_int_equal(guess, guesses[i].guess);
        assert_non_null(strstr(sentence, guesses[i].says));
    }
    assert_int_equal(llmk_guess_gptq_version(NULL, 0, 4, &guess, NULL, 0), LLMK_OK);
    assert_int_equal(guess, LLMK_FORMAT_NONE);
    const struct {
        const void *qzeros;
        uint64_t size;
        uint32_t bits;
        llmk_format *guess;
        const char *says;
    } refused[] = {{NULL, 4, 4, &guess, "qzeros is NULL"},
                   {sentence, 7, 4, &guess, "size is 7; expected a multiple of 4"},
                   {sentence, 4, 3, &guess, "bits is 3; expected 4 or 8"},
                   {sentence, 4, 4, NULL, "guess is NULL"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(llmk_guess_gptq_version(refused[i].qzeros, refused[i].size,
                                                 refused[i].bits, refused[i].guess, NULL, 0),
                         LLMK_INVALID_ARGUMENT);
        assert_non_null(strstr(llmk_error_message(), refused[i].says));
    }
}

/* ---- Refusals ---- */

static void test_refusals(void **state)
{
    fixture *f = *state;
    linear_weights gptq =
        make(LLMK_FORMAT_GPTQ_V1, 16, 64, 32, 4, LINEAR_ZEROS, LINEAR_ACT_ORDER, 0);
    linear_weights ct =
        make(LLMK_FORMAT_COMPRESSED_TENSORS, 16, 64, 32, 4, LINEAR_ZEROS_I8, LINEAR_IN_ORDER, 0);
    linear_weights w4 = make(LLMK_FORMAT_W4, 16, 64, 32, 4, LINEAR_ZEROS, LINEAR_IN_ORDER, 0);
    llmk_weights_desc d;
#define REFUSE(source, status, mentioned, change)                                                  \
    do {                                                                                           \
        d = linear_weights_describe(source);                                                       \
        change;                                                                                    \
        refuse_weights(f, &d, status, mentioned);                                                  \
    } while (0)
    REFUSE(&gptq, LLMK_UNSUPPORTED, "awq_gemv,", d.format = LLMK_FORMAT_AWQ_GEMV);
    REFUSE(&gptq, LLMK_UNSUPPORTED, "awq_gemv_fast", d.format = LLMK_FORMAT_AWQ_GEMV_FAST);
    REFUSE(&gptq, LLMK_INVALID_ARGUMENT, "g_idx", d.format = LLMK_FORMAT_AWQ_GEMM);
    REFUSE(&gptq, LLMK_INVALID_ARGUMENT, "zeros has neither", d.zeros.host = NULL);
    REFUSE(&gptq, LLMK_BUFFER_TOO_SMALL, "zeros.size", d.zeros.size--);
    REFUSE(&gptq, LLMK_BUFFER_TOO_SMALL, "scales.size", d.scales.size--);
    REFUSE(&gptq, LLMK_BUFFER_TOO_SMALL, "g_idx.size", d.g_idx.size--);
    REFUSE(&gptq, LLMK_BUFFER_TOO_SMALL, "data.size", d.data.size--);
    REFUSE(&gptq, LLMK_INVALID_SHAPE, "k is 63", d.k = 63);
    REFUSE(&gptq, LLMK_INVALID_SHAPE, "n is 12", d.n = 12);
    REFUSE(&gptq, LLMK_INVALID_SHAPE, "groups is 1", d.groups = 1);
    REFUSE(&gptq, LLMK_INVALID_SHAPE, "groups is", d.groups = UINT64_MAX);
    REFUSE(&w4, LLMK_INVALID_ARGUMENT, "groups is 2", d.groups = 2);
    REFUSE(&gptq, LLMK_INVALID_ARGUMENT, "bits is 3", d.bits = 3);
    REFUSE(&gptq, LLMK_INVALID_ARGUMENT, "zero_dtype", d.zero_dtype = LLMK_I8);
    REFUSE(&gptq, LLMK_INVALID_DTYPE, "scale_dtype", d.scale_dtype = LLMK_I8);
    REFUSE(&gptq, LLMK_INVALID_ARGUMENT, "flags", d.flags = 2);
    REFUSE(&gptq, LLMK_INVALID_STRIDE, "row_bytes", d.row_bytes = 16 * 4 - 1);
    REFUSE(&gptq, LLMK_INVALID_STRIDE, "scale_row_bytes", d.scale_row_bytes = 31);
    REFUSE(&gptq, LLMK_INVALID_STRIDE, "zero_row_bytes", d.zero_row_bytes = 7);
    const uint32_t before = gptq.g_idx[5];
    gptq.g_idx[5] = 2;
    REFUSE(&gptq, LLMK_CORRUPT_DATA, "g_idx[5] is 2", (void)0);
    gptq.g_idx[5] = UINT32_MAX;
    REFUSE(&gptq, LLMK_CORRUPT_DATA, "g_idx[5] is -1", (void)0);
    gptq.g_idx[5] = before;

    REFUSE(&ct, LLMK_INVALID_ARGUMENT, "zero_dtype", d.zero_dtype = LLMK_U8);
    ct.zeros[3] = 8;
    REFUSE(&ct, LLMK_CORRUPT_DATA, "row 1, group 1", (void)0);
    w4.zeros[2] = 16;
    REFUSE(&w4, LLMK_CORRUPT_DATA, "row 1, group 0 is 16", (void)0);
    REFUSE(&w4, LLMK_INVALID_ARGUMENT, "bits", d.bits = 8);
    REFUSE(&w4, LLMK_INVALID_ARGUMENT, "zeros", d.format = LLMK_FORMAT_W8);
#undef REFUSE
    unmake(&gptq);
    unmake(&ct);
    unmake(&w4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packer),
        cmocka_unit_test_setup_teardown(test_known_words, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_zero_words, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_eight_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_k_quants, set_up, tear_down),
        cmocka_unit_test(test_k_quants_as_they_occur),
        cmocka_unit_test_setup_teardown(test_held, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sources, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_columns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_depth, set_up, tear_down),
        cmocka_unit_test(test_guess),
        cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
