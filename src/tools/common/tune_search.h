/*
 * tune_search.h - which of a case's candidates is to be kept: successive halving on short timings,
 * then the best against the default, batch by batch. Nothing here knows how times are taken.
 */
#ifndef LLMK_TUNE_SEARCH_H
#define LLMK_TUNE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TUNE_NAME       128
#define TUNE_CANDIDATES 64
#define TUNE_WHY        400

typedef struct tune_timing {
    double us, spread; /* of a call; (p95 - p5) / median, or how far apart two visits were */
} tune_timing;

/* Batches of a candidate and of the default in turn. */
typedef struct tune_pair {
    tune_timing candidate, fallback;
    double q1, median, q3; /* of candidate - default, pair by pair, in us */
} tune_pair;

typedef enum tune_answer {
    TUNE_OK,
    TUNE_BAD, /* the candidate is wrong, crashed or hung: `why` says */
    TUNE_STOP /* out of time, or interrupted */
} tune_answer;

/* What takes times. "default" is the library's own choice. */
typedef struct tune_bench {
    void *user;
    tune_answer (*check)(void *user, const char *candidate, char why[TUNE_WHY]);
    /* Of a call that takes longer than hopeless_us a rough time will do; 0: of none. */
    tune_answer (*time)(void *user, const char *candidate, double seconds, double hopeless_us,
                        tune_timing *timing, char why[TUNE_WHY]);
    tune_answer (*pair)(void *user, const char *candidate, double seconds, tune_pair *pair,
                        char why[TUNE_WHY]);
    /* Of calls on end, when the clocks are steady (tune_sustain.h); 0 seconds: only makes them so,
     * where calls are long. NULL: not on this device. */
    tune_answer (*sustain)(void *user, const char *candidate, double seconds, tune_timing *timing,
                           char why[TUNE_WHY]);
    /* Called for every candidate that falls away for being wrong. */
    void (*dropped)(void *user, const char *candidate, const char *why);
} tune_bench;

typedef struct tune_result {
    char winner[TUNE_NAME]; /* "default" where nothing was faster by more than the noise */
    tune_timing tuned, fallback;
    unsigned visits; /* of which these are the means; 0: the calls were not sustained */
    size_t tried, dropped;
} tune_result;

#define TUNE_DEFAULT "default"
/* What is so much slower than the default, by a short timing, is not compared with it. */
#define TUNE_MOST_LOSS 0.1
/* Shares of the default's time that a candidate must win. */
#define TUNE_LEAST_GAIN 0.02
/* Calls that take less are short: launches and the host count in them, and they draw little power. */
#define TUNE_LONG_US 50

/* TUNE_BAD: the default itself is no good, and `why` says what is wrong with it. */
tune_answer tune_search(const tune_bench *bench, const char (*candidates)[TUNE_NAME], size_t count,
                        double seconds, uint64_t seed, tune_result *result, char why[TUNE_WHY]);
/* For a case whose result has a visit, later: times both once more, takes the means, and how far apart
 * the visits were as the least spread. TUNE_BAD: the default could not be timed, and nothing changes. */
tune_answer tune_revisit(const tune_bench *bench, double seconds, tune_result *result,
                         char why[TUNE_WHY]);

#endif
