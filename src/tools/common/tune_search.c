/* tune_search.c - successive halving. */
#include "tools/common/tune_search.h"

#include "core/core.h"

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
    }
    if (*won) {
        s->result->tuned = pair.candidate;
        snprintf(s->result->winner, sizeof s->result->winner, "%s", s->list[i].name);
    }
    return TUNE_OK;
}

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
        if (answer == TUNE_STOP || (answer == TUNE_OK && won))
            return answer;
        if (answer == TUNE_OK)
            i++;
        else
            drop(&s, i, why);
    }
    return result->fallback.us > 0
               ? TUNE_OK
               : bench->time(bench->user, TUNE_DEFAULT, seconds / 4, 0, &result->fallback, why);
}
