/* test_tune_search.c - what the tuner keeps, of candidates whose times are pretended: never one
 * that is slower than the default, the fastest where it is clear, nothing that is wrong. */
#include "llmk_cmocka.h"

#include "core/core.h"
#include "tools/common/tune_search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct pretence {
    uint64_t random;
    double noise; /* of a batch, relative */
    size_t count;
    double us[TUNE_CANDIDATES + 1]; /* true times; the last is the default's */
    const char *wrong, *dies;       /* candidates that fail their check, or when they are timed */
    size_t dropped, asked;
    size_t stop_at; /* the request that is interrupted; 0: none */
    bool sustains;
    double on_end[TUNE_CANDIDATES + 1]; /* what calls on end take of the true time; 0: as much */
    const char *tires;                  /* a candidate that fails on end */
    double drift; /* a share by which later sustained calls are slower than those before */
    size_t loads, sustained;
    bool timed_cold; /* something was timed before the device had been loaded */
} pretence;

static char names[TUNE_CANDIDATES][TUNE_NAME];

static double uniform(pretence *p)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(p->random >> 40) / 16777216;
}

static double true_us(const pretence *p, const char *name)
{
    return strcmp(name, TUNE_DEFAULT) == 0 ? p->us[p->count] : p->us[strtoul(name + 1, NULL, 10)];
}

static double batch_us(pretence *p, const char *name)
{
    /* Now and then the machine is busy with something else. */
    const double busy = p->noise > 0 && uniform(p) < 0.05 ? 1 + uniform(p) : 1;
    return true_us(p, name) * busy * (1 + p->noise * (uniform(p) - 0.5));
}

static bool stops(pretence *p)
{
    return ++p->asked == p->stop_at;
}

static tune_answer check(void *user, const char *candidate, char why[TUNE_WHY])
{
    pretence *p = user;
    if (stops(p))
        return TUNE_STOP;
    snprintf(why, TUNE_WHY, "%s is wrong", candidate);
    return p->wrong && strcmp(p->wrong, candidate) == 0 ? TUNE_BAD : TUNE_OK;
}

static int by_value(const void *a_, const void *b_)
{
    const double *a = a_, *b = b_;
    return (*a > *b) - (*a < *b);
}

enum { BATCHES = 13 };

static tune_answer time_one(void *user, const char *candidate, double seconds, double hopeless_us,
                            tune_timing *timing, char why[TUNE_WHY])
{
    (void)hopeless_us;
    pretence *p = user;
    double us[BATCHES];
    p->timed_cold = p->timed_cold || p->loads == 0;
    assert_true(seconds > 0);
    if (stops(p))
        return TUNE_STOP;
    snprintf(why, TUNE_WHY, "%s died", candidate);
    if (p->dies && strcmp(p->dies, candidate) == 0)
        return TUNE_BAD;
    for (size_t i = 0; i < BATCHES; i++)
        us[i] = batch_us(p, candidate);
    qsort(us, BATCHES, sizeof us[0], by_value);
    *timing = (tune_timing){us[BATCHES / 2], 0};
    return TUNE_OK;
}

static tune_answer time_pair(void *user, const char *candidate, double seconds, tune_pair *pair,
                             char why[TUNE_WHY])
{
    pretence *p = user;
    double a[BATCHES], b[BATCHES], difference[BATCHES];
    (void)seconds, (void)why;
    if (stops(p))
        return TUNE_STOP;
    for (size_t i = 0; i < BATCHES; i++) {
        a[i] = batch_us(p, candidate);
        b[i] = batch_us(p, TUNE_DEFAULT);
        difference[i] = a[i] - b[i];
    }
    qsort(a, BATCHES, sizeof a[0], by_value);
    qsort(b, BATCHES, sizeof b[0], by_value);
    qsort(difference, BATCHES, sizeof difference[0], by_value);
    *pair = (tune_pair){{a[BATCHES / 2], 0},
                        {b[BATCHES / 2], 0},
                        difference[BATCHES / 4],
                        difference[BATCHES / 2],
                        difference[3 * BATCHES / 4]};
    return TUNE_OK;
}

static tune_answer sustain(void *user, const char *candidate, double seconds, tune_timing *timing,
                           char why[TUNE_WHY])
{
    pretence *p = user;
    const bool own = strcmp(candidate, TUNE_DEFAULT) == 0;
    const double share = p->on_end[own ? p->count : strtoul(candidate + 1, NULL, 10)];
    if (stops(p))
        return TUNE_STOP;
    snprintf(why, TUNE_WHY, "%s tires", candidate);
    if (p->tires && strcmp(p->tires, candidate) == 0)
        return TUNE_BAD;
    p->loads += seconds <= 0;
    if (seconds > 0)
        *timing = (tune_timing){true_us(p, candidate) * (share > 0 ? share : 1) *
                                    (1 + p->drift * (double)p->sustained++),
                                0.01};
    return TUNE_OK;
}

static void dropped(void *user, const char *candidate, const char *why)
{
    pretence *p = user;
    assert_non_null(strstr(why, candidate));
    p->dropped++;
}

static tune_answer search(pretence *p, uint64_t seed, tune_result *result)
{
    const tune_bench bench = {p, check, time_one, time_pair, p->sustains ? sustain : NULL, dropped};
    char why[TUNE_WHY];
    for (size_t i = 0; i < p->count; i++)
        snprintf(names[i], TUNE_NAME, "c%zu", i);
    return tune_search(&bench, (const char(*)[TUNE_NAME])names, p->count, 0.3, seed, result, why);
}

static double kept_us(const pretence *p, const tune_result *result)
{
    return true_us(p, result->winner);
}

/* A deterministic timer: the fastest, or the default where that is within what counts as noise. */
static void test_without_noise(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        pretence p = {.random = seed, .count = seed % 23};
        tune_result result;
        double best = 1e9;
        for (size_t i = 0; i <= p.count; i++) {
            p.us[i] = 50 + 100 * uniform(&p);
            best = i < p.count ? fmin(best, p.us[i]) : best;
        }
        assert_int_equal(search(&p, seed, &result), TUNE_OK);
        const double kept = kept_us(&p, &result), fallback = p.us[p.count];
        assert_true(kept <= fallback);
        if (best < (1 - TUNE_LEAST_GAIN) * fallback)
            assert_true(kept == best);
        else
            assert_string_equal(result.winner, TUNE_DEFAULT);
    }
}

/* With noise of a fifth, and candidates that are all as fast as the default or slower. */
static void test_with_noise(void **state)
{
    (void)state;
    size_t slower = 0;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        pretence p = {.random = seed, .count = 12, .noise = 0.2};
        tune_result result;
        for (size_t i = 0; i <= p.count; i++)
            p.us[i] = 100 * (i < p.count ? 1 + 0.2 * uniform(&p) : 1);
        assert_int_equal(search(&p, seed, &result), TUNE_OK);
        slower += strcmp(result.winner, TUNE_DEFAULT) != 0;
    }
    if (slower > 2) /* of 2000, each with twelve chances */
        fail_msg("%zu were kept that are no faster than the default", slower);
}

static void test_clear_winner_in_noise(void **state)
{
    (void)state;
    size_t found = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        pretence p = {.random = seed, .count = 12, .noise = 0.2};
        tune_result result;
        for (size_t i = 0; i <= p.count; i++)
            p.us[i] = 100 + 10 * uniform(&p);
        p.us[seed % p.count] = 70;
        assert_int_equal(search(&p, seed, &result), TUNE_OK);
        found += kept_us(&p, &result) == 70;
    }
    assert_true(found >= 475);
}

static void test_what_is_wrong(void **state)
{
    (void)state;
    tune_result result;
    pretence p = {.count = 3, .us = {10, 20, 30, 100}, .wrong = "c0"};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, "c1");
    assert_true(p.dropped == 1 && result.dropped == 1 && result.tried == 3);
    assert_true(result.tuned.us > 0 && result.fallback.us > result.tuned.us);
    p = (pretence){.count = 3, .us = {10, 20, 30, 100}, .dies = "c0"};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, "c1");
    p = (pretence){.count = 3, .us = {10, 20, 30, 100}, .wrong = TUNE_DEFAULT};
    assert_int_equal(search(&p, 1, &result), TUNE_BAD);
    p = (pretence){.count = 0, .us = {100}};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, TUNE_DEFAULT);
    assert_true(result.fallback.us > 0);
    p = (pretence){.count = 1, .us = {10, 100}, .wrong = "c0"};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_true(result.fallback.us > 0);
}

static void test_interruption(void **state)
{
    (void)state;
    tune_result result;
    for (int sustains = 0; sustains < 2; sustains++) {
        const pretence new = {
            .count = 9, .us = {90, 80, 70, 60, 55, 60, 70, 80, 90, 100}, .sustains = sustains};
        pretence p = new;
        assert_int_equal(search(&p, 1, &result), TUNE_OK);
        const size_t requests = p.asked;
        assert_true(requests > 15);
        for (size_t at = 1; at <= requests; at++) {
            pretence again = new;
            again.stop_at = at;
            assert_int_equal(search(&again, 1, &result), TUNE_STOP);
        }
    }
}

/* ---- Times on end ---- */

/* What is told is sustained, of the default and of the winner, and nothing is timed before a load. */
static void test_sustained(void **state)
{
    (void)state;
    tune_result result;
    pretence p = {
        .count = 3, .us = {60, 70, 80, 100}, .on_end = {1.2, 1.2, 1.2, 1.1}, .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, "c0");
    assert_true(fabs(result.tuned.us - 72) < 1e-9 && fabs(result.fallback.us - 110) < 1e-9);
    assert_true(result.visits == 1 && p.loads == 1 && p.sustained == 2 && !p.timed_cold);
    assert_true(result.tuned.spread > 0 && result.fallback.spread > 0);
    /* where nothing comes as far as a comparison, or there is nothing to compare, too */
    p = (pretence){.count = 1, .us = {200, 100}, .on_end = {1.2, 1.1}, .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, TUNE_DEFAULT);
    assert_true(fabs(result.fallback.us - 110) < 1e-9 && result.visits == 1 && !p.timed_cold);
    p = (pretence){.us = {100}, .on_end = {1.1}, .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_true(fabs(result.fallback.us - 110) < 1e-9 && result.visits == 1);
    /* short calls are not, nor any where the device is not asked to */
    p = (pretence){.count = 1, .us = {20, 100}, .on_end = {2, 2}, .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_true(result.tuned.us == 20 && result.fallback.us == 100 && result.visits == 0);
    p = (pretence){.count = 1, .us = {60, 100}, .on_end = {2, 2}};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_true(result.tuned.us == 60 && result.fallback.us == 100 && result.visits == 0);
}

/* What wins by turns and not alone is not kept, nor what fails alone. */
static void test_loses_on_end(void **state)
{
    (void)state;
    tune_result result;
    pretence p = {.count = 2, .us = {80, 90, 100}, .on_end = {1.24, 1.0, 1.0}, .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, "c1"); /* 99.2 us are no gain of 2 %; 90 are */
    assert_true(fabs(result.tuned.us - 90) < 1e-9 && p.dropped == 0);
    p = (pretence){.count = 2, .us = {80, 90, 100}, .on_end = {1.3, 1.2, 1}, .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, TUNE_DEFAULT);
    assert_true(result.fallback.us == 100 && result.visits == 1);
    p = (pretence){.count = 2, .us = {80, 99, 100}, .on_end = {2, 1, 1.1}, .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, TUNE_DEFAULT);
    assert_true(fabs(result.fallback.us - 110) < 1e-9 && result.visits == 1);
    p = (pretence){.count = 2, .us = {80, 90, 100}, .tires = "c0", .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_OK);
    assert_string_equal(result.winner, "c1");
    assert_true(p.dropped == 1 && result.dropped == 1);
    p = (pretence){.count = 2, .us = {80, 90, 100}, .tires = TUNE_DEFAULT, .sustains = true};
    assert_int_equal(search(&p, 1, &result), TUNE_BAD);
}

static void test_revisit(void **state)
{
    (void)state;
    char why[TUNE_WHY];
    pretence p = {.count = 2, .us = {80, 90, 100}, .drift = 0.1, .sustains = true};
    const tune_bench bench = {&p, check, time_one, time_pair, sustain, dropped};
    tune_result result, first;
    assert_int_equal(search(&p, 1, &result), TUNE_OK); /* 100 and 80 * 1.1 */
    first = result;
    assert_int_equal(tune_revisit(&bench, 0.3, &result, why), TUNE_OK); /* 120 and 80 * 1.3 */
    assert_string_equal(result.winner, "c0");
    assert_int_equal(result.visits, 2);
    assert_true(fabs(result.fallback.us - 110) < 1e-9 && fabs(result.tuned.us - 96) < 1e-9);
    assert_true(fabs(result.fallback.spread - 0.2) < 1e-9);
    assert_true(fabs(result.tuned.spread - 16.0 / 88) < 1e-9);
    /* a winner that falls behind, one that fails, a default that fails */
    result = first;
    p.on_end[0] = 2;
    assert_int_equal(tune_revisit(&bench, 0.3, &result, why), TUNE_OK);
    assert_string_equal(result.winner, TUNE_DEFAULT);
    result = first;
    p.tires = "c0";
    assert_int_equal(tune_revisit(&bench, 0.3, &result, why), TUNE_OK);
    assert_string_equal(result.winner, TUNE_DEFAULT);
    assert_true(result.visits == 2 && p.dropped == 1);
    for (int i = 0; i < 3; i++) {
        result = first;
        p.tires = i == 0 ? TUNE_DEFAULT : NULL;
        p.stop_at = i == 0 ? 0 : p.asked + (size_t)i;
        assert_int_equal(tune_revisit(&bench, 0.3, &result, why), i == 0 ? TUNE_BAD : TUNE_STOP);
        assert_memory_equal(&result, &first, sizeof result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_noise),         cmocka_unit_test(test_with_noise),
        cmocka_unit_test(test_clear_winner_in_noise), cmocka_unit_test(test_what_is_wrong),
        cmocka_unit_test(test_interruption),          cmocka_unit_test(test_sustained),
        cmocka_unit_test(test_loses_on_end),          cmocka_unit_test(test_revisit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
