/* rng.h - a seeded generator for property tests. LLMK_TEST_SEED replaces the seed; the seed in use
 * is printed, so that a failure can be run again. */
#ifndef LLMK_TESTS_RNG_H
#define LLMK_TESTS_RNG_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct rng {
    uint64_t state;
} rng;

static inline rng rng_seed(const char *test, uint64_t seed)
{
    const char *given = getenv("LLMK_TEST_SEED");
    char *end = NULL;
    errno = 0;
    if (given && *given)
        seed = strtoull(given, &end, 0);
    if (end && (*end || errno || given[0] < '0' || given[0] > '9')) {
        fprintf(stderr, "LLMK_TEST_SEED is \"%s\"; expected a number below 2^64\n", given);
        exit(2);
    }
    printf("%s: LLMK_TEST_SEED=%llu\n", test, (unsigned long long)seed);
    return (rng){seed};
}

/* splitmix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014. */
static inline uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* One of 0 ... n - 1. */
static inline uint64_t rng_below(rng *r, uint64_t n)
{
    return rng_next(r) % n;
}

static inline int rng_one_in(rng *r, uint64_t n)
{
    return rng_below(r, n) == 0;
}

#endif
