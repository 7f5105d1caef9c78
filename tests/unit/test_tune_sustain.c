/* test_tune_sustain.c - times of calls on end on devices that are pretended: whatever they did before,
 * the time is that of a clock that lasts. */
#include "llmk_cmocka.h"

#include "core/core.h"
#include "tools/common/tune_sustain.h"

#include <math.h>

/* A call takes `us`, and `slower` more under load, which it approaches with a constant of `heating`
 * seconds. */
typedef struct device {
    double us, slower, heating, heat;
    double jump;  /* s of load after which calls take that much at once; 0: they do not */
    double hunts; /* a share by which every other window is slower */
    double busy;  /* s of load so far */
    size_t windows, fails_at;
} device;

static bool run(void *user, double seconds, double call_us, double *us, size_t count)
{
    device *d = user;
    assert_true(call_us > 0 && count > 0);
    for (size_t i = 0; i < count; i++) {
        const double window = fmax(seconds / (double)count, 1e-6 * d->us);
        const double left = exp(-window / d->heating);
        const double mean = 1 - (1 - d->heat) * (1 - left) * d->heating / window;
        d->heat = 1 - (1 - d->heat) * left;
        d->busy += window;
        us[i] = d->us * (1 + (d->jump > 0 ? d->busy > d->jump ? d->slower : 0 : d->slower * mean));
        us[i] *= d->windows % 2 ? 1 + d->hunts : 1;
        if (++d->windows == d->fails_at)
            return false;
    }
    return true;
}

static void near(double value, double wanted, double share)
{
    if (fabs(value - wanted) > share * wanted)
        fail_msg("%g, not within %g of %g", value, share, wanted);
}

/* Cold or hot before: the same, which a timing of 0.05 s behind as much of load is not. */
static void test_history(void **state)
{
    (void)state;
    static const double heatings[] = {0.01, 0.05, 0.1, 0.2, 0.3},
                        lengths[] = {60, 900, 2500, 40000};
    for (size_t h = 0; h < LLMK_COUNT(heatings); h++)
        for (size_t l = 0; l < LLMK_COUNT(lengths); l++)
            for (int hot = 0; hot < 2; hot++) {
                device d = {.us = lengths[l], .slower = 0.3, .heating = heatings[h], .heat = hot};
                tune_timing timing;
                assert_true(tune_sustain((const tune_load[]){{&d, run}}, 0.15, &timing));
                near(timing.us, 1.3 * d.us, 0.015);
                assert_true(timing.spread < 0.03);
                assert_true(d.busy >= 0.6 && d.busy < 2.0);
            }
    device cold = {.us = 900, .slower = 0.3, .heating = 0.2};
    double us;
    assert_true(run(&cold, 0.05, 900, &us, 1) && run(&cold, 0.05, 900, &us, 1));
    assert_true(us < 0.9 * 1.3 * 900);
}

/* Some cards allow a peak for a while, and then take it back. */
static void test_late_fall(void **state)
{
    (void)state;
    device d = {.us = 900, .slower = 0.1, .heating = 1, .jump = 0.25};
    tune_timing timing;
    assert_true(tune_sustain((const tune_load[]){{&d, run}}, 0.15, &timing));
    near(timing.us, 990, 0.001);
    /* One that comes later than the load shows in the spread. */
    d = (device){.us = 900, .slower = 0.1, .heating = 1, .jump = 0.5};
    assert_true(tune_sustain((const tune_load[]){{&d, run}}, 0.15, &timing));
    assert_true(timing.us >= 900 && timing.us <= 990 && timing.spread > 0.09);
}

/* Between two states: the mean, not one or the other, and a spread that says so; no endless load. */
static void test_hunting(void **state)
{
    (void)state;
    device d = {.us = 100, .heating = 1, .hunts = 0.1};
    tune_timing timing;
    assert_true(tune_sustain((const tune_load[]){{&d, run}}, 0.3, &timing));
    near(timing.us, 105, 0.001);
    assert_true(timing.spread > 0.09 && d.busy < 2.0);
}

static void test_slow_calls(void **state)
{
    (void)state;
    device d = {.us = 3e6, .heating = 0.1};
    tune_timing timing;
    assert_true(tune_sustain((const tune_load[]){{&d, run}}, 0.15, &timing));
    near(timing.us, 3e6, 1e-6);
    assert_true(d.windows <= 6);
}

static void test_load_alone(void **state)
{
    (void)state;
    device d = {.us = 200, .slower = 0.3, .heating = 0.1};
    tune_timing timing;
    assert_true(tune_sustain((const tune_load[]){{&d, run}}, 0, &timing));
    assert_true(d.heat > 0.95 && d.busy < 1.3);
    d = (device){.us = 20, .slower = 0.3, .heating = 0.1};
    assert_true(tune_sustain((const tune_load[]){{&d, run}}, 0, &timing));
    assert_true(d.windows == 1);
}

static void test_failures(void **state)
{
    (void)state;
    device all = {.us = 100, .heating = 0.1};
    tune_timing timing;
    assert_true(tune_sustain((const tune_load[]){{&all, run}}, 0.3, &timing));
    for (size_t at = 1; at <= all.windows; at++) {
        device d = {.us = 100, .heating = 0.1, .fails_at = at};
        assert_false(tune_sustain((const tune_load[]){{&d, run}}, 0.3, &timing));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_history),    cmocka_unit_test(test_late_fall),
        cmocka_unit_test(test_hunting),    cmocka_unit_test(test_slow_calls),
        cmocka_unit_test(test_load_alone), cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
