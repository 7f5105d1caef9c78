/* tune_search.c - successive halving. */
#include "tools/common/tune_search.h"

#include "core/core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Those that reach the comparison with the default. */
#define FINALISTS 2
/* What is so much slower than the best falls away at once. */
#define HOPELESS 1.5

typedef struct contender {
    const char *name;
    double us;
} contender;

typedef struct search {
    const tune_bench *bench;
    contender list[TUNE_CANDIDATES];
    size_t count;
    uint64_t random;
    tune_result *result;
} search;

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* So that what drifts meanwhile does not always meet the same ones. */
static void shuffle(search *s)
{
    for (size_t i = s->count; i > 1; i--) {
        const size_t j = (size_t)(next_random(&s->random) % i);
        const contender c = s->list[i - 1];
        s->list[i - 1] = s->list[j];
        s->list[j] = c;
    }
}

static int by_time(const void *a_, const void *b_)
{
    const contender *a = a_, *b = b_;
    return a->us != b->us ? (a->us > b->us) - (a->us < b->us) : strcmp(a->name, b->name);
}

static void drop(search *s, size_t i, const char *why)
{
    s->result->dropped++;
    s->bench->dropped(s->bench->user, s->list[i].name, why);
    memmove(&s->list[i], &s->list[i + 1], (s->count - i - 1) * sizeof s->list[0]);
    s->count--;
}

/* What does not compute what it should is out. */
static bool check_all(search *s)
{
    char why[TUNE_WHY];
    for (size_t i = 0; i < s->count;) {
        const tune_answer answer = s->bench->check(s->bench->user, s->list[i].name, why);
        if (answer == TUNE_STOP)
            return false;
        if (answer == TUNE_OK)
            i++;
        else
            drop(s, i, why);
    }
    return true;
}

/* Times the default and all others, and keeps the better half. */
static tune_answer halve(search *s, double seconds, char why[TUNE_WHY])
{
    const tune_bench *bench = s->bench;
    tune_timing *fallback = &s->result->fallback;
    const tune_answer sound = bench->time(bench->user, TUNE_DEFAULT, seconds, 0, fallback, why);
    if (sound != TUNE_OK)
        return sound;
    double best = fallback->us;
    shuffle(s);
    for (size_t i = 0; i < s->count;) {
        tune_timing timing;
        const tune_answer answer =
            bench->time(bench->user, s->list[i].name, seconds, 2 * HOPELESS * best, &timing, why);
        if (answer == TUNE_STOP)
            return TUNE_STOP;
        if (answer == TUNE_OK) {
            best = timing.us < best ? timing.us : best;
            s->list[i++].us = timing.us;
        } else {
            drop(s, i, why);
        }
    }
    qsort(s->list, s->count, sizeof s->list[0], by_time);
    const size_t half = (s->count + 1) / 2;
    s->count = s->count <= FINALISTS ? s->count : half < FINALISTS ? FINALISTS : half;
    while (s->count > 1 && s->list[s->count - 1].us > HOPELESS * s->list[0].us)
        s->count--;
    return TUNE_OK;
}

static bool wins(const tune_pair *pair)
{
    return pair->q3 < 0 && pair->median < -TUNE_LEAST_GAIN * pair->fallback.us &&
           pair->candidate.us < (1 - TUNE_LEAST_GAIN) * pair->fallback.us;
}

/* Twice, since the best of several timings is the luckiest as well. */
static tune_answer challenge(search *s, size_t i, double seconds, bool *won, char why[TUNE_WHY])
{
    tune_pair pair;
    *won = true;
    for (int round = 0; round < 2 && *won; round++) {
        const tune_answer answer =
            s->bench->pair(s->bench->user, s->list[i].name, seconds, &pair, why);
        if (answer != TUNE_OK)
            return answer;
        *won = wins(&pair);
        s->result->fallback = pair.fallback;
        s->result->visits = 0;
    }
    if (*won) {
        s->result->tuned = pair.candidate;
        snprintf(s->result->winner, sizeof s->result->winner, "%s", s->list[i].name);
    }
    return TUNE_OK;
}

/* ---- Sustained times ---- */

static bool is_tuned(const tune_result *result)
{
    return strcmp(result->winner, TUNE_DEFAULT) != 0;
}

static void keep_default(tune_result *result)
{
    snprintf(result->winner, sizeof result->winner, "%s", TUNE_DEFAULT);
}

/* Of the default and of what won, in the same way; a winner that cannot is none. */
static tune_answer sustain_both(const tune_bench *bench, double seconds, tune_result *result,
                                char why[TUNE_WHY])
{
    tune_answer answer = bench->sustain(bench->user, TUNE_DEFAULT, seconds, &result->fallback, why);
    if (answer != TUNE_OK || !is_tuned(result))
        return answer;
    answer = bench->sustain(bench->user, result->winner, seconds, &result->tuned, why);
    if (answer != TUNE_BAD)
        return answer;
    result->dropped++;
    bench->dropped(bench->user, result->winner, why);
    keep_default(result);
    return TUNE_OK;
}

/* What won batch by batch has to win by itself as well: it may draw more power. */
static void judge(tune_result *result)
{
    if (is_tuned(result) && result->tuned.us >= (1 - TUNE_LEAST_GAIN) * result->fallback.us)
        keep_default(result);
}

static tune_answer finish(const tune_bench *bench, double seconds, tune_result *result,
                          char why[TUNE_WHY])
{
    if (!bench->sustain || result->fallback.us < TUNE_LONG_US ||
        (is_tuned(result) && result->tuned.us < TUNE_LONG_US))
        return TUNE_OK;
    const tune_answer answer = sustain_both(bench, seconds, result, why);
    result->visits = 1;
    judge(result);
    return answer;
}

static void merge(const tune_timing *first, tune_timing *second)
{
    const double apart = fabs(first->us - second->us) / fmin(first->us, second->us);
    second->spread = fmax(fmax(first->spread, second->spread), apart);
    second->us = (first->us + second->us) / 2;
}

tune_answer tune_revisit(const tune_bench *bench, double seconds, tune_result *result,
                         char why[TUNE_WHY])
{
    tune_result second = *result;
    const tune_answer answer = sustain_both(bench, seconds, &second, why);
    if (answer != TUNE_OK)
        return answer;
    merge(&result->fallback, &second.fallback);
    if (is_tuned(&second))
        merge(&result->tuned, &second.tuned);
    second.visits = 2;
    judge(&second);
    *result = second;
    return TUNE_OK;
}

/* ---- The whole ---- */

tune_answer tune_search(const tune_bench *bench, const char (*candidates)[TUNE_NAME], size_t count,
                        double seconds, uint64_t seed, tune_result *result, char why[TUNE_WHY])
{
    search s = {.bench = bench, .random = seed, .result = result};
    *result = (tune_result){.winner = TUNE_DEFAULT, .tried = count};
    for (; s.count < count && s.count < TUNE_CANDIDATES; s.count++)
        s.list[s.count].name = candidates[s.count];
    tune_answer sound = bench->check(bench->user, TUNE_DEFAULT, why);
    if (sound != TUNE_OK)
        return sound;
    if (!check_all(&s))
        return TUNE_STOP;
    /* Or those that are timed first have a clock that the others no longer get. */
    tune_timing ignored;
    if (bench->sustain && s.count > 0)
        sound = bench->sustain(bench->user, TUNE_DEFAULT, 0, &ignored, why);
    static const double rounds[] = {1.0 / 16, 1.0 / 8, 1.0 / 4, 1.0 / 2};
    for (size_t i = 0; sound == TUNE_OK && s.count > FINALISTS && i < LLMK_COUNT(rounds); i++)
        sound = halve(&s, rounds[i] * seconds, why);
    if (sound == TUNE_OK && s.count > 0)
        sound = halve(&s, seconds / 4, why);
    if (sound != TUNE_OK)
        return sound;
    for (size_t i = 0; i < s.count;) {
        bool won;
        if (s.list[i].us > (1 + TUNE_MOST_LOSS) * result->fallback.us)
            break; /* as all after it */
        const tune_answer answer = challenge(&s, i, seconds, &won, why);
        if (answer == TUNE_STOP)
            return answer;
        if (answer == TUNE_BAD) {
            drop(&s, i, why);
            continue;
        }
        if (won && (sound = finish(bench, seconds, result, why)) != TUNE_OK)
            return sound;
        if (is_tuned(result))
            return TUNE_OK;
        i++;
    }
    if (result->fallback.us <= 0)
        sound = bench->time(bench->user, TUNE_DEFAULT, seconds / 4, 0, &result->fallback, why);
    return sound == TUNE_OK && !result->visits ? finish(bench, seconds, result, why) : sound;
}
