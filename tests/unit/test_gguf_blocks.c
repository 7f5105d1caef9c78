/* Block formats: known blocks, the error bound of each quantiser, and what they refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/gguf_blocks.h"

#include <float.h>
#include <math.h>
#include <string.h>

static void sizes(void **state)
{
    size_t bytes = 7;
    (void)state;
    assert_true(llmk_gguf_packed_bytes(LLMK_GGUF_Q4_K, 512, &bytes));
    assert_int_equal(bytes, 288);
    assert_true(llmk_gguf_packed_bytes(LLMK_GGUF_BF16, 3, &bytes));
    assert_int_equal(bytes, 6);
    assert_false(llmk_gguf_packed_bytes(LLMK_GGUF_Q4_0, 33, &bytes));
    assert_false(llmk_gguf_packed_bytes(4, 32, &bytes)); /* a type that was withdrawn */
    assert_false(llmk_gguf_packed_bytes(LLMK_GGUF_F64, UINT64_MAX / 8 + 1, &bytes));
    assert_int_equal(bytes, 6);

    assert_null(llmk_gguf_type_of(UINT32_MAX));
    assert_string_equal(llmk_gguf_type_of(LLMK_GGUF_Q6_K)->name, "Q6_K");
}

/* d = 0.5 (f16 0x3800); bytes 0x10, 0x32, ...: element j is the low nibble of byte j, j + 16 the
 * high one. */
static void known_q4_0(void **state)
{
    unsigned char block[1 + 18] = {0, 0x00, 0x38}; /* at an odd address */
    float w[32];
    (void)state;
    for (int j = 0; j < 16; j++)
        block[3 + j] = (unsigned char)(j | (15 - j) << 4);
    assert_true(llmk_gguf_dequantise(LLMK_GGUF_Q4_0, block + 1, 32, w));
    for (int j = 0; j < 16; j++) {
        assert_true(w[j] == 0.5f * (float)(j - 8));
        assert_true(w[j + 16] == 0.5f * (float)(7 - j));
    }

    unsigned char again[18];
    assert_true(llmk_gguf_quantise(LLMK_GGUF_Q4_0, w, 32, again));
    assert_memory_equal(again, block + 1, sizeof again);
}

static void known_q4_1(void **state)
{
    unsigned char block[20] = {0x00, 0x34, 0x00, 0xbc}; /* d = 0.25, m = -1 */
    unsigned char again[20];
    float w[32];
    (void)state;
    for (int j = 0; j < 16; j++)
        block[4 + j] = (unsigned char)(j | (15 - j) << 4);
    assert_true(llmk_gguf_dequantise(LLMK_GGUF_Q4_1, block, 32, w));
    for (int j = 0; j < 16; j++) {
        assert_true(w[j] == 0.25f * (float)j - 1);
        assert_true(w[j + 16] == 0.25f * (float)(15 - j) - 1);
    }
    assert_true(llmk_gguf_quantise(LLMK_GGUF_Q4_1, w, 32, again));
    assert_memory_equal(again, block, sizeof again);
}

static void known_q8_0(void **state)
{
    unsigned char block[34] = {0x00, 0x40}; /* d = 2 */
    unsigned char again[34];
    float w[32];
    (void)state;
    for (int j = 0; j < 32; j++)
        block[2 + j] = (unsigned char)((j * 8 - 127) & 255); /* -127 to 121 */
    assert_true(llmk_gguf_dequantise(LLMK_GGUF_Q8_0, block, 32, w));
    for (int j = 0; j < 32; j++)
        assert_true(w[j] == 2.0f * (float)(j * 8 - 127));
    assert_true(llmk_gguf_quantise(LLMK_GGUF_Q8_0, w, 32, again));
    assert_memory_equal(again, block, sizeof again);
}

static void known_scalars(void **state)
{
    static const unsigned char f32[] = {0x00, 0x00, 0xc0, 0x3f, 0x00, 0x00, 0x00, 0xc0};
    static const unsigned char f16[] = {0x00, 0x3e, 0x00, 0xc0};
    static const unsigned char bf16[] = {0xc0, 0x3f, 0x00, 0xc0};
    static const struct {
        uint32_t type;
        const unsigned char *packed;
        size_t size;
    } cases[] = {{LLMK_GGUF_F32, f32, sizeof f32},
                 {LLMK_GGUF_F16, f16, sizeof f16},
                 {LLMK_GGUF_BF16, bf16, sizeof bf16}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        float w[2];
        unsigned char packed[8];
        assert_true(llmk_gguf_dequantise(cases[i].type, cases[i].packed, 2, w));
        assert_true(w[0] == 1.5f && w[1] == -2.0f);
        assert_true(llmk_gguf_quantise(cases[i].type, w, 2, packed));
        assert_memory_equal(packed, cases[i].packed, cases[i].size);
    }
}

/* |w - dequantised| in steps d, of blocks drawn at scales from 2^-12 to 2^11. Rounding to nearest
 * gives half a step; Q4_0 clamps +8 to +7, which gives a whole one; d itself is rounded to f16
 * (2^-11 relative, absolute below 2^-14), which moves up to 127, 8 or 15 steps by that much; Q4_1's
 * minimum is rounded too. */
static void error_bounds(void **state)
{
    static const struct {
        uint32_t type;
        double levels, steps;
    } cases[] = {{LLMK_GGUF_Q8_0, 127, 0.5}, {LLMK_GGUF_Q4_0, 8, 1}, {LLMK_GGUF_Q4_1, 15, 0.5}};
    uint32_t random = 1;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        for (int scale = -12; scale < 12; scale++) {
            float w[32];
            float back[32];
            unsigned char packed[34];
            double top = 0;
            double low = INFINITY;
            double high = -INFINITY;
            for (int j = 0; j < 32; j++) {
                random = random * 1664525u + 1013904223u;
                w[j] = ldexpf((float)(int32_t)random, scale - 31);
                top = fmax(top, fabs((double)w[j]));
                low = fmin(low, (double)w[j]);
                high = fmax(high, (double)w[j]);
            }
            assert_true(llmk_gguf_quantise(cases[i].type, w, 32, packed));
            assert_true(llmk_gguf_dequantise(cases[i].type, packed, 32, back));
            const bool affine = cases[i].type == LLMK_GGUF_Q4_1;
            const double d = (affine ? high - low : top) / cases[i].levels;
            const double d_error = fmax(d * 0x1p-11, 0x1p-25);
            const double low_error = affine ? fmax(fabs(low) * 0x1p-11, 0x1p-25) : 0;
            const double bound =
                cases[i].steps * d * 1.00001 + cases[i].levels * d_error + low_error;
            for (int j = 0; j < 32; j++)
                assert_true(fabs((double)w[j] - (double)back[j]) <= bound);
        }
    }
}

static void constant_and_tiny_blocks(void **state)
{
    static const uint32_t types[] = {LLMK_GGUF_Q8_0, LLMK_GGUF_Q4_0, LLMK_GGUF_Q4_1};
    static const float tiny[] = {0.0f, FLT_TRUE_MIN, FLT_MIN, 1e-37f, 1e-9f};
    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < sizeof tiny / sizeof tiny[0]; k++) {
            float w[32];
            float back[32];
            unsigned char packed[34];
            for (int j = 0; j < 32; j++)
                w[j] = j & 1 ? tiny[k] : -tiny[k];
            assert_true(llmk_gguf_quantise(types[i], w, 32, packed));
            assert_true(llmk_gguf_dequantise(types[i], packed, 32, back));
            for (int j = 0; j < 32; j++)
                assert_true(back[j] == 0);
        }
}

static void refusals(void **state)
{
    static const uint32_t types[] = {LLMK_GGUF_Q8_0, LLMK_GGUF_Q4_0, LLMK_GGUF_Q4_1};
    static const float bad[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 1e7f};
    float w[64] = {0};
    unsigned char packed[68];
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
            /* 127 steps let Q8_0 reach 8.3e6. */
            w[63] = bad[k] == 1e7f && types[i] != LLMK_GGUF_Q8_0 ? 4e6f : bad[k];
            w[62] = -w[63];
            assert_false(llmk_gguf_quantise(types[i], w, 64, packed));
        }
        assert_false(llmk_gguf_quantise(types[i], w, 31, packed));
        assert_false(llmk_gguf_dequantise(types[i], packed, 31, w));
        assert_true(llmk_gguf_quantise(types[i], w, 0, packed));
    }
    assert_false(llmk_gguf_quantise(LLMK_GGUF_Q4_K, w, 0, packed));
    assert_false(llmk_gguf_dequantise(LLMK_GGUF_Q5_K, packed, 0, w));
    assert_false(llmk_gguf_dequantise(1000, packed, 0, w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),         cmocka_unit_test(known_q4_0),
        cmocka_unit_test(known_q4_1),    cmocka_unit_test(known_q8_0),
        cmocka_unit_test(known_scalars), cmocka_unit_test(error_bounds),
        cmocka_unit_test(refusals),      cmocka_unit_test(constant_and_tiny_blocks),
    };
    return cmocka_run_group_tests_name("gguf_blocks", tests, NULL, NULL);
}
