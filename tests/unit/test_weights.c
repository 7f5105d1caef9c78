/* test_weights.c - llmk_weights: sizes, refusals, sources, segments; and that the linear layer's
 * bound notices one wrong nibble. */
#include "core/weights.h"

#include "reference/linear_reference.h"
#include "support/refusals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const llmk_format all_formats[] = {
    LLMK_FORMAT_F32,       LLMK_FORMAT_F16,       LLMK_FORMAT_BF16,     LLMK_FORMAT_W8,
    LLMK_FORMAT_GGUF_Q8_0, LLMK_FORMAT_GGUF_Q4_0, LLMK_FORMAT_GGUF_Q4_1};
#define FORMATS (sizeof all_formats / sizeof *all_formats)

/* ---- Sources ---- */

static linear_weights make_source(llmk_format format, uint64_t n, uint64_t k, uint64_t group,
                                  uint64_t row_padding)
{
    linear_weights w;
    linear_weights_sizes(&w, format, n, k, group, row_padding);
    w.data = malloc(w.data_bytes + 1);
    w.scales = malloc(w.scales_bytes + 1);
    memset(w.data, 0xff, w.data_bytes);
    linear_weights_fill(&w, 11);
    return w;
}

static void free_source(linear_weights *w)
{
    free(w->data);
    free(w->scales);
}

static llmk_weights *create(fixture *f, const llmk_weights_desc *desc)
{
    llmk_weights *w = NULL;
    const llmk_status status = llmk_weights_create_as(f->ctx, desc, LLMK_CLASS_PORTABLE, 0, &w);
    if (status != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    return w;
}

/* All bytes held, data of every segment and then scales. */
static uint8_t *device_bytes(fixture *f, const llmk_weights *w)
{
    uint8_t *bytes = malloc(w->device_bytes + 1), *at = bytes;
    for (int scales = 0; scales < 2; scales++)
        for (size_t i = 0; i < w->segment_count; i++) {
            const llmk_segment *s = &w->segments[i];
            const size_t size = (size_t)(s->rows * (scales ? w->scale_pitch : w->pitch));
            if (size == 0)
                continue;
            assert_int_equal(clEnqueueReadBuffer(f->queue, scales ? s->scales : s->data, CL_TRUE, 0,
                                                 size, at, 0, NULL, NULL),
                             CL_SUCCESS);
            at += size;
        }
    assert_int_equal((uint64_t)(at - bytes), w->device_bytes);
    return bytes;
}

static void assert_same_weights(fixture *f, const llmk_weights *a, const llmk_weights *b)
{
    assert_int_equal(a->device_bytes, b->device_bytes);
    uint8_t *x = device_bytes(f, a), *y = device_bytes(f, b);
    assert_memory_equal(x, y, a->device_bytes ? a->device_bytes : 1);
    free(x);
    free(y);
}

/* ---- Sizes and layouts ---- */

static void test_info(void **state)
{
    static const struct {
        llmk_format format;
        uint64_t group;
        const char *name, *layout;
        double bits; /* of a weight, scales included */
        uint64_t group_size;
    } expected[] = {
        {LLMK_FORMAT_F32, 0, "f32", "f32/portable", 32, 0},
        {LLMK_FORMAT_F16, 0, "f16", "f16/portable", 16, 0},
        {LLMK_FORMAT_BF16, 0, "bf16", "bf16/portable", 16, 0},
        {LLMK_FORMAT_W8, 0, "w8", "s8/portable", 8 + 32.0 / 4096, 0},
        {LLMK_FORMAT_W8, 64, "w8", "s8/portable", 8.5, 64},
        {LLMK_FORMAT_GGUF_Q8_0, 0, "q8_0", "s8/portable", 8.5, 32},
        {LLMK_FORMAT_GGUF_Q4_0, 0, "q4_0", "u4-affine/portable", 4.5, 32},
        {LLMK_FORMAT_GGUF_Q4_1, 0, "q4_1", "u4-affine/portable", 5, 32},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const uint64_t n = 48, k = 4096;
        linear_weights source = make_source(expected[i].format, n, k, expected[i].group, 0);
        const llmk_weights_desc desc = linear_weights_describe(&source);
        llmk_weights *w = create(*state, &desc);
        llmk_weights_info info = LLMK_INIT(llmk_weights_info);
        assert_int_equal(llmk_weights_get_info(w, &info), LLMK_OK);
        assert_int_equal(info.format, expected[i].format);
        assert_string_equal(llmk_format_name(info.format), expected[i].name);
        assert_string_equal(info.layout, expected[i].layout);
        assert_int_equal(info.n, n);
        assert_int_equal(info.k, k);
        assert_int_equal(info.group_size, expected[i].group_size);
        assert_int_equal(info.device_bytes, (uint64_t)((double)(n * k) * expected[i].bits / 8));
        /* The buffers themselves. */
        uint64_t held = 0;
        for (size_t s = 0; s < w->segment_count; s++) {
            size_t data = 0, scales = 0;
            clGetMemObjectInfo(w->segments[s].data, CL_MEM_SIZE, sizeof data, &data, NULL);
            if (w->segments[s].scales)
                clGetMemObjectInfo(w->segments[s].scales, CL_MEM_SIZE, sizeof scales, &scales,
                                   NULL);
            held += data + scales;
        }
        assert_int_equal(held, info.device_bytes);
        llmk_weights_free(w);
        free_source(&source);
    }
    assert_null(llmk_format_name((llmk_format)9999));
    llmk_weights_info info = LLMK_INIT(llmk_weights_info);
    assert_int_equal(llmk_weights_get_info(NULL, &info), LLMK_INVALID_ARGUMENT);
    llmk_weights_free(NULL);
}

/* The codes of row 0 as docs/numerics-linear.md lays them out, found through the reference. */
static void test_bits(void **state)
{
    for (size_t i = 0; i < FORMATS; i++) {
        const uint64_t n = 3, k = all_formats[i] >= LLMK_FORMAT_GGUF_Q8_0 ? 96 : 77;
        linear_weights source = make_source(all_formats[i], n, k, 0, 5);
        const llmk_weights_desc desc = linear_weights_describe(&source);
        llmk_weights *w = create(*state, &desc);
        uint8_t *bytes = device_bytes(*state, w);
        const uint8_t *scales = bytes + n * w->pitch;
        assert_int_equal(w->pitch % 16, 0);
        for (uint64_t row = 0; row < n; row++) {
            double value[96], magnitude[96];
            linear_weights_row(&source, row, value, magnitude);
            const uint8_t *data = bytes + row * w->pitch;
            for (uint64_t j = 0; j < k; j++) {
                const uint8_t *scale =
                    scales + row * w->scale_pitch +
                    j / w->group_size * (w->scale_pitch / (w->groups ? w->groups : 1));
                const uint8_t *block = source.data + row * source.row_bytes;
                switch (all_formats[i]) {
                case LLMK_FORMAT_W8:
                    assert_int_equal(data[j], block[j]);
                    assert_memory_equal(scale, (const float *)source.scales + row, 4);
                    break;
                case LLMK_FORMAT_GGUF_Q8_0:
                    block += j / 32 * 34;
                    assert_int_equal(data[j], block[2 + j % 32]);
                    assert_memory_equal(scale, block, 2);
                    break;
                case LLMK_FORMAT_GGUF_Q4_0:
                case LLMK_FORMAT_GGUF_Q4_1: {
                    const uint64_t header = all_formats[i] == LLMK_FORMAT_GGUF_Q4_0 ? 2 : 4;
                    block += j / 32 * (16 + header);
                    const uint8_t byte = block[header + j % 16];
                    assert_int_equal(data[j / 2] >> j % 2 * 4 & 15,
                                     j % 32 < 16 ? byte & 15 : byte >> 4);
                    assert_memory_equal(scale, block, header);
                    break;
                }
                default: {
                    const size_t size = all_formats[i] == LLMK_FORMAT_F32 ? 4 : 2;
                    assert_memory_equal(data + j * size, block + j * size, size);
                }
                }
            }
            /* Padding is zero. */
            for (uint64_t b = linear_row_bytes(all_formats[i], k);
                 all_formats[i] <= LLMK_FORMAT_W8 && b < w->pitch; b++)
                assert_int_equal(data[b], 0);
        }
        free(bytes);
        llmk_weights_free(w);
        free_source(&source);
    }
}

/* ---- The layouts of NVIDIA's matrix unit, by positions worked out by hand from the drawings ----
 */

static llmk_weights *create_nv(fixture *f, const llmk_weights_desc *desc)
{
    llmk_weights *w = NULL;
    if (llmk_weights_create_as(f->ctx, desc, LLMK_CLASS_NV, 0, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    return w;
}

static void read_back(fixture *f, cl_mem buffer, size_t bytes, void *to)
{
    size_t size = 0;
    clGetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof size, &size, NULL);
    assert_int_equal(size, bytes);
    assert_int_equal(clEnqueueReadBuffer(f->queue, buffer, CL_TRUE, 0, bytes, to, 0, NULL, NULL),
                     CL_SUCCESS);
}

static void test_nv_u4(void **state)
{
    enum { N = 16, K = 128, G = 2 };
    static const struct {
        unsigned row, k, byte, shift;
    } at[] = {
        {0, 0, 0, 0},    {0, 1, 2, 0},     {0, 2, 1, 0},    {0, 3, 3, 0},      {8, 0, 0, 4},
        {8, 3, 3, 4},    {0, 4, 4, 0},     {0, 8, 16, 0},   {0, 32, 8, 0},     {1, 0, 64, 0},
        {5, 45, 350, 0}, {15, 63, 511, 4}, {3, 64, 704, 0}, {13, 100, 844, 4},
    };
    static const unsigned place[N] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
    float scales[N][G], held_scales[G][N];
    uint8_t zeros[N][G], held_zeros[G][N / 2], held[N * K / 2];
    for (unsigned r = 0; r < N; r++)
        for (unsigned g = 0; g < G; g++) {
            scales[r][g] = (float)(1 + r + 100 * g);
            zeros[r][g] = (uint8_t)((r + 5 * g) % 16);
        }
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        uint8_t codes[N][K / 2] = {{0}};
        codes[at[i].row][at[i].k / 2] = (uint8_t)(13u << at[i].k % 2 * 4);
        llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
        desc.format = LLMK_FORMAT_W4;
        desc.n = N;
        desc.k = K;
        desc.group_size = K / G;
        desc.data = (llmk_source){.host = codes, .size = sizeof codes};
        desc.scales = (llmk_source){.host = scales, .size = sizeof scales};
        desc.zeros = (llmk_source){.host = zeros, .size = sizeof zeros};
        llmk_weights *w = create_nv(*state, &desc);
        assert_string_equal(llmk_layout_name(w->layout), "u4-affine/nv");
        read_back(*state, w->segments[0].data, sizeof held, held);
        for (unsigned b = 0; b < sizeof held; b++)
            assert_int_equal(held[b], b == at[i].byte ? 13u << at[i].shift : 0);
        read_back(*state, w->segments[0].scales, sizeof held_scales, held_scales);
        read_back(*state, w->segments[0].zeros, sizeof held_zeros, held_zeros);
        for (unsigned r = 0; r < N; r++)
            for (unsigned g = 0; g < G; g++) {
                assert_true(held_scales[g][place[r]] == scales[r][g]);
                assert_int_equal(held_zeros[g][place[r] / 2] >> place[r] % 2 * 4 & 15, zeros[r][g]);
            }
        llmk_weights_free(w);
    }
}

/* Where a group's scale is 0, of either sign, its codes become the zero: kernels mask none. */
static void test_nv_u4_scales_of_0(void **state)
{
    enum { N = 16, K = 128, G = 2, CODE = 7 };
    float scales[N][G];
    uint8_t zeros[N][G], codes[N][K / 2];
    uint32_t held[N * K / 8];
    memset(codes, CODE * 0x11, sizeof codes);
    for (unsigned r = 0; r < N; r++)
        for (unsigned g = 0; g < G; g++) {
            scales[r][g] = r == 3 && g == 1 ? 0.0f : r == 9 && g == 0 ? -0.0f : 1.0f;
            zeros[r][g] = (uint8_t)((r + 5 * g + 1) % 16);
        }
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_W4;
    desc.n = N;
    desc.k = K;
    desc.group_size = K / G;
    desc.data = (llmk_source){.host = codes, .size = sizeof codes};
    desc.scales = (llmk_source){.host = scales, .size = sizeof scales};
    for (unsigned has_zeros = 0; has_zeros < 2; has_zeros++) {
        if (has_zeros)
            desc.zeros = (llmk_source){.host = zeros, .size = sizeof zeros};
        llmk_weights *w = create_nv(*state, &desc);
        read_back(*state, w->segments[0].data, sizeof held, held);
        for (unsigned r = 0; r < N; r++)
            for (unsigned k = 0; k < K; k++) {
                const unsigned lane = r % 8 * 4 + k / 8 % 4, j = k / 32 % 2 * 2 + k / 4 % 2;
                const unsigned nibble = r / 8 + k / 2 % 2 * 2 + k % 2 * 4, g = k / (K / G);
                const unsigned code = held[k / 64 * 128 + lane * 4 + j] >> 4 * nibble & 15;
                const bool silent = fpclassify(scales[r][g]) == FP_ZERO;
                assert_int_equal(code, !silent ? CODE : has_zeros ? zeros[r][g] : 8);
            }
        llmk_weights_free(w);
    }
}

static void test_nv_s8(void **state)
{
    enum { N = 16, K = 64 };
    static const struct {
        unsigned row, k, byte;
    } at[] = {{0, 0, 0},   {0, 7, 7},     {8, 0, 8},    {0, 9, 17},
              {2, 0, 128}, {15, 31, 511}, {5, 40, 848}, {13, 63, 895}};
    float scales[N] = {0};
    uint8_t held[N * K];
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        int8_t codes[N][K] = {{0}};
        codes[at[i].row][at[i].k] = -77;
        llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
        desc.format = LLMK_FORMAT_W8;
        desc.n = N;
        desc.k = K;
        desc.data = (llmk_source){.host = codes, .size = sizeof codes};
        desc.scales = (llmk_source){.host = scales, .size = sizeof scales};
        llmk_weights *w = create_nv(*state, &desc);
        assert_string_equal(llmk_layout_name(w->layout), "s8/nv");
        read_back(*state, w->segments[0].data, sizeof held, held);
        for (unsigned b = 0; b < sizeof held; b++)
            assert_int_equal(held[b], b == at[i].byte ? 128 - 77 : 128);
        llmk_weights_free(w);
    }
}

/* Memory held: packed, N filled up to 16 rows and K to 128 weights of 4 bits or 64 of 8. */
static void test_nv_bytes(void **state)
{
    static const struct {
        llmk_format format;
        uint64_t n, k, group;
        const char *layout;
        uint64_t data, scales; /* bytes */
    } expected[] = {
        {LLMK_FORMAT_W8, 48, 4096, 64, "s8/nv", UINT64_C(48) * 4096, UINT64_C(48) * 64 * 4},
        {LLMK_FORMAT_GGUF_Q8_0, 48, 4096, 0, "s8/nv", UINT64_C(48) * 4096, UINT64_C(48) * 128 * 2},
        {LLMK_FORMAT_GGUF_Q4_0, 48, 4096, 0, "u4-affine/nv", UINT64_C(48) * 2048,
         UINT64_C(48) * 128 * 2},
        {LLMK_FORMAT_GGUF_Q4_1, 48, 4096, 0, "u4-affine/nv", UINT64_C(48) * 2048,
         UINT64_C(48) * 128 * 4},
        {LLMK_FORMAT_GGUF_Q4_0, 17, 160, 0, "u4-affine/nv", UINT64_C(32) * 128,
         UINT64_C(32) * 5 * 2},
        {LLMK_FORMAT_W8, 3, 65, 0, "s8/nv", UINT64_C(16) * 128, UINT64_C(16) * 4},
        {LLMK_FORMAT_W8, 3, 65, 24, "s8/portable", UINT64_C(3) * 80, UINT64_C(3) * 3 * 4},
        {LLMK_FORMAT_F16, 3, 65, 0, "f16/portable", UINT64_C(3) * 160, 0},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        linear_weights source =
            make_source(expected[i].format, expected[i].n, expected[i].k, expected[i].group, 0);
        const llmk_weights_desc desc = linear_weights_describe(&source);
        llmk_weights *w = create_nv(*state, &desc);
        size_t data = 0, scales = 0;
        assert_string_equal(llmk_layout_name(w->layout), expected[i].layout);
        clGetMemObjectInfo(w->segments[0].data, CL_MEM_SIZE, sizeof data, &data, NULL);
        if (w->segments[0].scales)
            clGetMemObjectInfo(w->segments[0].scales, CL_MEM_SIZE, sizeof scales, &scales, NULL);
        assert_int_equal(data, expected[i].data);
        assert_int_equal(scales, expected[i].scales);
        assert_int_equal(w->device_bytes, data + scales);
        llmk_weights_free(w);
        free_source(&source);
    }
}

/* Segments are whole blocks; where not even one fits, rows stay by themselves. */
static void test_nv_segments(void **state)
{
    fixture *f = *state;
    linear_weights source = make_source(LLMK_FORMAT_GGUF_Q4_0, 300, 256, 0, 0);
    const llmk_weights_desc desc = linear_weights_describe(&source);
    llmk_weights *w = NULL;
    assert_int_equal(llmk_weights_create_as(f->ctx, &desc, LLMK_CLASS_NV, 128 * 50, &w), LLMK_OK);
    assert_int_equal(w->block, 16);
    assert_int_equal(w->segment_count, 7); /* 48 rows each */
    for (size_t i = 0; i < w->segment_count; i++) {
        assert_int_equal(w->segments[i].first, 48 * i);
        assert_int_equal(w->segments[i].rows, i < 6 ? 48 : 12);
    }
    llmk_weights_free(w);
    assert_int_equal(llmk_weights_create_as(f->ctx, &desc, LLMK_CLASS_NV, 128 * 15, &w), LLMK_OK);
    assert_string_equal(llmk_layout_name(w->layout), "u4-affine/portable");
    llmk_weights_free(w);
    free_source(&source);
}

/* ---- Where the bits come from ---- */

static cl_mem buffer_of(fixture *f, const void *data, uint64_t bytes, uint64_t offset)
{
    uint8_t *image = malloc(bytes + offset);
    memset(image, 0x77, offset);
    memcpy(image + offset, data, bytes);
    cl_mem buffer =
        clCreateBuffer(llmk_context_cl_context(f->ctx), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                       bytes + offset, image, NULL);
    free(image);
    assert_non_null(buffer);
    return buffer;
}

/* Rows enough for several rounds of the staging buffer (4 MiB). */
static void test_buffers(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < FORMATS; i++) {
        linear_weights source = make_source(all_formats[i], 2100, 1024,
                                            all_formats[i] == LLMK_FORMAT_W8 ? 100 : 0, 2048);
        llmk_weights_desc desc = linear_weights_describe(&source);
        llmk_weights *from_host = create(f, &desc);
        desc.data.buffer = buffer_of(f, source.data, source.data_bytes, 24);
        desc.data.host = NULL;
        desc.data.offset = 24;
        if (source.format == LLMK_FORMAT_W8) {
            desc.scales.buffer = buffer_of(f, source.scales, source.scales_bytes, 8);
            desc.scales.host = NULL;
            desc.scales.offset = 8;
        }
        llmk_weights *from_buffer = create(f, &desc);
        assert_same_weights(f, from_host, from_buffer);
        clReleaseMemObject(desc.data.buffer);
        if (desc.scales.buffer)
            clReleaseMemObject(desc.scales.buffer);
        llmk_weights_free(from_host);
        llmk_weights_free(from_buffer);
        free_source(&source);
    }
}

static void test_segments(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < FORMATS; i++) {
        linear_weights source = make_source(all_formats[i], 300, 256, 0, 0);
        const llmk_weights_desc desc = linear_weights_describe(&source);
        llmk_weights *whole = create(f, &desc), *parts = NULL;
        const uint64_t limit = whole->pitch * 70;
        assert_int_equal(whole->segment_count, 1);
        assert_int_equal(llmk_weights_create_as(f->ctx, &desc, LLMK_CLASS_PORTABLE, limit, &parts),
                         LLMK_OK);
        assert_int_equal(parts->segment_count, 5); /* 64 rows each, whole tiles */
        uint64_t next = 0;
        for (size_t s = 0; s < parts->segment_count; s++) {
            assert_int_equal(parts->segments[s].first, next);
            next += parts->segments[s].rows;
            assert_true(parts->segments[s].rows * parts->pitch <= limit);
        }
        assert_int_equal(next, 300);
        assert_same_weights(f, whole, parts);
        llmk_weights_free(parts);
        assert_int_equal(
            llmk_weights_create_as(f->ctx, &desc, LLMK_CLASS_PORTABLE, whole->pitch - 1, &parts),
            LLMK_OUT_OF_DEVICE_MEMORY);
        assert_null(parts);
        llmk_weights_free(whole);
        free_source(&source);
    }
}

/* One expert copied on the device is the same as its source given for each of five. */
static void test_repeat(void **state)
{
    enum { EXPERTS = 5, N = 16, K = 40 };
    fixture *f = *state;
    linear_weights source = make_source(LLMK_FORMAT_W8, N, K, 0, 0);
    llmk_weights_desc desc = linear_weights_describe(&source);
    llmk_weights *one = create(f, &desc), *repeated = NULL, *given = NULL;
    const uint64_t buffer = 2 * N * one->pitch; /* two experts */
    llmk_expert_source sources[EXPERTS];
    for (size_t e = 0; e < EXPERTS; e++)
        sources[e] = (llmk_expert_source){desc.data, desc.scales, desc.zeros, desc.g_idx};
    desc.experts = EXPERTS;
    desc.expert_sources = sources;
    desc.data = desc.scales = (llmk_source){0};
    assert_int_equal(llmk_weights_create_as(f->ctx, &desc, LLMK_CLASS_PORTABLE, buffer, &given),
                     LLMK_OK);
    assert_int_equal(llmk_weights_repeat(one, EXPERTS, buffer, &repeated), LLMK_OK);
    assert_int_equal(repeated->experts, EXPERTS);
    assert_int_equal(repeated->segment_count, 3);
    assert_same_weights(f, repeated, given);
    llmk_weights *again = NULL; /* of more than one expert */
    assert_int_equal(llmk_weights_repeat(given, 2, 0, &again), LLMK_INTERNAL);
    llmk_weights_free(repeated);
    llmk_weights_free(given);
    llmk_weights_free(one);
    free_source(&source);
}

static void test_empty(void **state)
{
    static const uint64_t shapes[][2] = {{0, 0}, {0, 64}, {5, 0}};
    for (size_t i = 0; i < FORMATS; i++)
        for (size_t s = 0; s < 3; s++) {
            llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
            desc.format = all_formats[i];
            desc.n = shapes[s][0];
            desc.k = shapes[s][1];
            llmk_weights *w = create(*state, &desc);
            assert_int_equal(w->device_bytes, 0);
            llmk_weights_free(w);
        }
}

/* As many as there may be, in an instant. */
static void test_empty_experts(void **state)
{
    static const uint64_t shapes[][2] = {{0, 0}, {0, 64}, {1, 0}};
    alarm(60);
    for (size_t i = 0; i < FORMATS; i++)
        for (size_t s = 0; s < 3; s++) {
            llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
            llmk_weights_info info = LLMK_INIT(llmk_weights_info);
            desc.format = all_formats[i];
            desc.n = shapes[s][0];
            desc.k = shapes[s][1];
            desc.experts = INT32_MAX;
            llmk_weights *w = create(*state, &desc);
            assert_int_equal(w->device_bytes, 0);
            assert_int_equal(llmk_weights_get_info(w, &info), LLMK_OK);
            assert_int_equal(info.experts, INT32_MAX);
            llmk_weights_free(w);
        }
    alarm(0);
}

static void test_freed_after_context(void **state)
{
    (void)state;
    llmk_context *ctx = NULL;
    llmk_weights *w = NULL;
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
    linear_weights source = make_source(LLMK_FORMAT_GGUF_Q4_0, 8, 64, 0, 0);
    const llmk_weights_desc desc = linear_weights_describe(&source);
    assert_int_equal(llmk_weights_create(ctx, &desc, &w), LLMK_OK);
    llmk_context_free(ctx);
    llmk_weights_info info = LLMK_INIT(llmk_weights_info);
    assert_int_equal(llmk_weights_get_info(w, &info), LLMK_OK);
    llmk_weights_free(w);
    free_source(&source);
}

/* ---- Refusals ---- */

static void test_refusals(void **state)
{
    fixture *f = *state;
    linear_weights source = make_source(LLMK_FORMAT_W8, 6, 64, 16, 3);
    llmk_weights_desc good = linear_weights_describe(&source), d;
    good.scale_dtype = LLMK_DTYPE_NONE; /* f32 then, and no word of it where the format has none */
    llmk_weights *w = NULL;
    assert_int_equal(llmk_weights_create(NULL, &good, &w), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_weights_create(f->ctx, &good, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_weights_create(f->ctx, NULL, &w), LLMK_INVALID_ARGUMENT);
    assert_non_null(strstr(llmk_error_message(), "desc is NULL"));

#define REFUSE(status, mentioned, change)                                                          \
    do {                                                                                           \
        d = good;                                                                                  \
        change;                                                                                    \
        refuse_weights(f, &d, status, mentioned);                                                  \
    } while (0)
    REFUSE(LLMK_INVALID_ARGUMENT, "desc.struct_size is 8", d.struct_size = 8);
    REFUSE(LLMK_INVALID_ARGUMENT, "format", d.format = LLMK_FORMAT_NONE);
    REFUSE(LLMK_INVALID_ARGUMENT, "format", d.format = (llmk_format)7);
    REFUSE(LLMK_INVALID_ARGUMENT, "flags", d.flags = 1);
    REFUSE(LLMK_INVALID_SHAPE, "n is", d.n = (uint64_t)1 << 40);
    REFUSE(LLMK_INVALID_SHAPE, "k is", d.k = (uint64_t)1 << 31);
    REFUSE(LLMK_INVALID_SHAPE, "n is 18446744073709551615", d.n = UINT64_MAX; d.k = UINT64_MAX);
    REFUSE(LLMK_INVALID_SHAPE, "64 bits", d.n = INT32_MAX; d.row_bytes = (uint64_t)1 << 40);
    REFUSE(LLMK_BUFFER_TOO_SMALL, "data.size", d.n = INT32_MAX; d.k = INT32_MAX; d.row_bytes = 0);
    REFUSE(LLMK_INVALID_SHAPE, "k is 48", d.format = LLMK_FORMAT_GGUF_Q4_0; d.k = 48);
    REFUSE(LLMK_INVALID_ARGUMENT, "group_size", d.format = LLMK_FORMAT_GGUF_Q4_0);
    REFUSE(LLMK_INVALID_ARGUMENT, "scales", d.format = LLMK_FORMAT_F16; d.group_size = 0;
           d.row_bytes = 0; d.k = 8);
    REFUSE(LLMK_INVALID_STRIDE, "row_bytes", d.row_bytes = 63);
    REFUSE(LLMK_INVALID_ARGUMENT, "data has neither", d.data.host = NULL);
    REFUSE(LLMK_INVALID_ARGUMENT, "scales has neither", d.scales.host = NULL);
    REFUSE(LLMK_INVALID_ARGUMENT, "data.offset", d.data.offset = 1);
    REFUSE(LLMK_BUFFER_TOO_SMALL, "data.size", d.data.size--);
    REFUSE(LLMK_BUFFER_TOO_SMALL, "scales.size", d.scales.size--);

    const llmk_expert_source each[2] = {{.data = good.data, .scales = good.scales}};
    REFUSE(LLMK_BUFFER_TOO_SMALL, "data.size is 399 bytes; expected at least 801 for 2 experts",
           d.experts = 2);
    REFUSE(LLMK_BUFFER_TOO_SMALL, "scales.size is 96 bytes; expected at least 192 for 2 experts",
           d.experts = 2;
           d.data.size *= 3);
    /* Where the second expert begins is beyond any memory. */
    REFUSE(LLMK_BUFFER_TOO_SMALL, "expected at least 9223372036854775872 for 2 experts",
           d.experts = 2;
           d.n = 1; d.row_bytes = (uint64_t)1 << 63);
    REFUSE(LLMK_INVALID_SHAPE, "64 bits", d.experts = 3; d.n = 1; d.row_bytes = (uint64_t)1 << 63);
    REFUSE(LLMK_INVALID_SHAPE, "experts is", d.experts = (uint64_t)1 << 40);
    REFUSE(LLMK_INVALID_ARGUMENT, "expert_sources", d.experts = 2; d.expert_sources = each);
    REFUSE(LLMK_INVALID_ARGUMENT, "expert_sources", d.expert_sources = each);
    REFUSE(LLMK_INVALID_ARGUMENT, "expert 1", d.experts = 2; d.expert_sources = each;
           d.data.host = d.scales.host = NULL);

    cl_mem buffer = buffer_of(f, source.data, source.data_bytes, 0);
    REFUSE(LLMK_INVALID_ARGUMENT, "data has both", d.data.buffer = buffer);
    static const cl_mem_flags unreadable[] = {CL_MEM_HOST_NO_ACCESS, CL_MEM_HOST_WRITE_ONLY};
    for (size_t i = 0; i < 2; i++) {
        cl_mem hidden = clCreateBuffer(llmk_context_cl_context(f->ctx), unreadable[i],
                                       source.data_bytes, NULL, NULL);
        assert_non_null(hidden);
        REFUSE(LLMK_INVALID_BUFFER, "data.buffer was made CL_MEM_HOST", d.data.host = NULL;
               d.data.buffer = hidden);
        clReleaseMemObject(hidden);
    }
    REFUSE(LLMK_BUFFER_TOO_SMALL, "data.offset", d.data.host = NULL; d.data.buffer = buffer;
           d.data.offset = 1);
    REFUSE(LLMK_BUFFER_TOO_SMALL, "data.offset", d.data.host = NULL; d.data.buffer = buffer;
           d.data.offset = UINT64_MAX);
    REFUSE(LLMK_BUFFER_TOO_SMALL, "data.size", d.data.host = NULL; d.data.buffer = buffer;
           d.data.size--);
    clReleaseMemObject(buffer);

    llmk_context *other = NULL;
    assert_int_equal(llmk_context_create(NULL, &other), LLMK_OK);
    buffer = clCreateBuffer(llmk_context_cl_context(other), 0, source.data_bytes, NULL, NULL);
    REFUSE(LLMK_INVALID_BUFFER, "data.buffer", d.data.host = NULL; d.data.buffer = buffer);
    clReleaseMemObject(buffer);
    llmk_context_free(other);
#undef REFUSE
    free_source(&source);
}

/* ---- The linear layer ---- */

static llmk_linear_args small_layer(fixture *f, const llmk_weights *w, cl_mem *x, cl_mem *y)
{
    const float ones[64] = {1};
    *x = buffer_of(f, ones, sizeof ones, 0);
    *y = clCreateBuffer(llmk_context_cl_context(f->ctx), 0, 64, NULL, NULL);
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_matrix(*x, LLMK_F32, 1, 64);
    args.weights = w;
    args.y = llmk_matrix(*y, LLMK_F32, 1, 8);
    return args;
}

static void test_linear_refusals(void **state)
{
    fixture *f = *state;
    linear_weights source = make_source(LLMK_FORMAT_GGUF_Q4_0, 8, 64, 0, 0);
    const llmk_weights_desc desc = linear_weights_describe(&source);
    llmk_weights *w = create(f, &desc);
    cl_mem x, y;
    const llmk_linear_args good = small_layer(f, w, &x, &y);
    llmk_linear_args args = good;
    args.weights = NULL;
    assert_int_equal(llmk_linear(f->ctx, f->queue, &args, NULL), LLMK_INVALID_ARGUMENT);
    args = good;
    args.x.dim[1] = 63;
    assert_int_equal(llmk_linear(f->ctx, f->queue, &args, NULL), LLMK_INVALID_SHAPE);
    assert_non_null(strstr(llmk_error_message(), "k = 64"));
    args = good;
    args.y.dim[1] = 7;
    assert_int_equal(llmk_linear(f->ctx, f->queue, &args, NULL), LLMK_INVALID_SHAPE);
    args = good;
    args.bias = llmk_vector(x, LLMK_F32, 9);
    assert_int_equal(llmk_linear(f->ctx, f->queue, &args, NULL), LLMK_INVALID_SHAPE);
    args = good;
    args.x.dtype = LLMK_I8;
    assert_int_equal(llmk_linear(f->ctx, f->queue, &args, NULL), LLMK_INVALID_DTYPE);
    args = good;
    args.y.buffer = x;
    assert_int_equal(llmk_linear(f->ctx, f->queue, &args, NULL), LLMK_OVERLAP);

    llmk_context *other = NULL;
    assert_int_equal(llmk_context_create(NULL, &other), LLMK_OK);
    llmk_weights *foreign = NULL;
    assert_int_equal(llmk_weights_create(other, &desc, &foreign), LLMK_OK);
    args = good;
    args.weights = foreign;
    assert_int_equal(llmk_linear(f->ctx, f->queue, &args, NULL), LLMK_INVALID_ARGUMENT);
    assert_non_null(strstr(llmk_error_message(), "another context"));
    llmk_weights_free(foreign);
    llmk_context_free(other);

    args = good;
    args.x.buffer = args.y.buffer = NULL;
    assert_int_equal(llmk_prepare(f->ctx, LLMK_OP_LINEAR, &args), LLMK_OK);
    assert_int_equal(llmk_linear(f->ctx, f->queue, &good, NULL), LLMK_OK);
    clFinish(f->queue);
    clReleaseMemObject(x);
    clReleaseMemObject(y);
    llmk_weights_free(w);
    free_source(&source);
}

/* One nibble of 4096 x 64, changed by one step, must put an output outside its bound: the bound is
 * tight enough to see a wrong or missing weight. */
static void test_bound_sees_a_nibble(void **state)
{
    (void)state;
    const uint64_t n = 64, k = 4096;
    linear_weights w = make_source(LLMK_FORMAT_GGUF_Q4_0, n, k, 0, 0);
    double *x = malloc(k * sizeof *x), *right = malloc(n * sizeof *right);
    double *wrong = malloc(n * sizeof *wrong), *bound = malloc(n * sizeof *bound);
    for (uint64_t i = 0; i < k; i++)
        x[i] = i % 2 ? 0.5 : -0.5;
    for (uint64_t row = 0; row < n; row++) {
        linear_problem_f64 p = {
            .w = &w, .m = 1, .x = x, .y_type = LLMK_F16, .y = right, .bound = bound};
        linear_reference(&p);
        uint8_t *byte = &w.data[row * w.row_bytes + row * 18 + 2 + row % 16];
        const uint8_t before = *byte, step = row % 2 ? 1 : 16;
        *byte = (uint8_t)(*byte ^ step);
        p.y = wrong;
        linear_reference(&p);
        *byte = before;
        assert_true(fabs(wrong[row] - right[row]) > 2 * bound[row]);
    }
    free(x);
    free(right);
    free(wrong);
    free(bound);
    free_source(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_info, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nv_u4, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nv_u4_scales_of_0, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nv_s8, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nv_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nv_segments, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_buffers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_segments, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_repeat, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_empty, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_empty_experts, set_up, tear_down),
        cmocka_unit_test(test_freed_after_context),
        cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_linear_refusals, set_up, tear_down),
        cmocka_unit_test(test_bound_sees_a_nibble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
