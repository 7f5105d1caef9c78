/* f16 and bf16: every half both ways, and the rounding at every boundary between two neighbours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/half.h"

#include <float.h>
#include <math.h>

struct format {
    int mantissa_bits;
    int bias;
    uint16_t infinity;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
};

static const struct format f16 = {10, 15, 0x7c00, llmk_f16_to_f32, llmk_f32_to_f16};
static const struct format bf16 = {7, 127, 0x7f80, llmk_bf16_to_f32, llmk_f32_to_bf16};

/* The definition of the format, apart from infinities and NaNs. */
static double value_of(const struct format *f, uint16_t half)
{
    const int exponent = (half & 0x7fff) >> f->mantissa_bits;
    const int mantissa = half & ((1 << f->mantissa_bits) - 1);
    const int significand = exponent ? mantissa + (1 << f->mantissa_bits) : mantissa;
    const double magnitude =
        ldexp(significand, (exponent ? exponent : 1) - f->bias - f->mantissa_bits);
    return half & 0x8000 ? -magnitude : magnitude;
}

static void check_every_half(const struct format *f)
{
    const uint16_t quiet = (uint16_t)(1u << (f->mantissa_bits - 1));
    for (unsigned i = 0; i < 65536; i++) {
        const uint16_t half = (uint16_t)i;
        const float value = f->widen(half);
        if ((half & 0x7fff) > f->infinity) {
            assert_true(isnan(value));
            assert_int_equal(f->narrow(value), half | quiet);
            continue;
        }
        if ((half & 0x7fff) == f->infinity)
            assert_true(isinf(value));
        else
            assert_true((double)value == value_of(f, half));
        assert_int_equal(signbit(value) != 0, half >> 15);
        assert_int_equal(f->narrow(value), half);
    }
}

/* Between neighbours a < b the only boundary is the middle: it goes to the even one, and the floats
 * next to it to a and b. Past the largest half, b is where the next one would be. */
static void check_every_boundary(const struct format *f)
{
    for (unsigned i = 0; i < f->infinity; i++) {
        const uint16_t a = (uint16_t)i;
        const uint16_t b = (uint16_t)(i + 1);
        const double middle = (value_of(f, a) + value_of(f, b)) / 2;
        const float boundary = (float)middle;
        assert_true((double)boundary == middle);
        for (int sign = 0; sign < 2; sign++) {
            const uint16_t bit = sign ? 0x8000 : 0;
            const float at = sign ? -boundary : boundary;
            assert_int_equal(f->narrow(at), bit | (a & 1 ? b : a));
            assert_int_equal(f->narrow(nextafterf(at, 0.0f)), bit | a);
            assert_int_equal(f->narrow(nextafterf(at, sign ? -INFINITY : INFINITY)), bit | b);
        }
    }
}

static void every_f16(void **state)
{
    (void)state;
    check_every_half(&f16);
    check_every_boundary(&f16);
}

static void every_bf16(void **state)
{
    (void)state;
    check_every_half(&bf16);
    check_every_boundary(&bf16);
}

static void known_f16(void **state)
{
    (void)state;
    assert_int_equal(llmk_f32_to_f16(1.0f), 0x3c00);
    assert_int_equal(llmk_f32_to_f16(-2.0f), 0xc000);
    assert_int_equal(llmk_f32_to_f16(0.1f), 0x2e66);
    assert_int_equal(llmk_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(llmk_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(llmk_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(llmk_f32_to_f16(-FLT_MAX), 0xfc00);
    assert_int_equal(llmk_f32_to_f16(0x1p-14f), 0x0400);
    assert_int_equal(llmk_f32_to_f16(0x1p-24f), 0x0001);
    assert_int_equal(llmk_f32_to_f16(0x1p-25f), 0x0000);
    assert_int_equal(llmk_f32_to_f16(0x1.000002p-25f), 0x0001);
    assert_int_equal(llmk_f32_to_f16(0x1.8p-24f), 0x0002);
    assert_int_equal(llmk_f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(llmk_f32_to_f16(FLT_TRUE_MIN), 0x0000);
    /* A payload only in the bits that are dropped still gives a NaN, not an infinity. */
    assert_int_equal(llmk_f32_to_f16(llmk_float_from_bits(0xff800001u)), 0xfe00);
}

static void known_bf16(void **state)
{
    (void)state;
    assert_int_equal(llmk_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(llmk_f32_to_bf16(0.1f), 0x3dcd);
    assert_int_equal(llmk_f32_to_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(llmk_f32_to_bf16(llmk_float_from_bits(0x3f808000u)), 0x3f80);
    assert_int_equal(llmk_f32_to_bf16(llmk_float_from_bits(0x3f818000u)), 0x3f82);
    assert_int_equal(llmk_f32_to_bf16(llmk_float_from_bits(0x7f800001u)), 0x7fc0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16),
        cmocka_unit_test(every_bf16),
        cmocka_unit_test(known_f16),
        cmocka_unit_test(known_bf16),
    };
    return cmocka_run_group_tests_name("half", tests, NULL, NULL);
}
