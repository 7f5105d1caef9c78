/* bench_measure.c - warm-up, batches, statistics. */
#include "tools/common/bench_measure.h"

#include <math.h>
#include <time.h>

#define LEAST_BATCHES 12
#define MOST_BATCHES  400
#define SHORT_BATCH   2e-3 /* s */
#define WARM_UP       0.05 /* s: clocks rise, caches of the driver fill */
/* Longer queues gain nothing, and some drivers keep an object for every command in one. */
#define MOST_CALLS 10000

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds that `calls` calls take; sets go on rotating from one batch to the next. Negative on
 * failure. */
static double time_batch(const bench_work *work, uint64_t calls, size_t *set)
{
    const double start = now();
    for (uint64_t i = 0; i < calls; i++) {
        if (!work->enqueue(work->user, *set))
            return -1;
        *set = (*set + 1) % work->sets;
    }
    return clFinish(work->queue) == CL_SUCCESS ? now() - start : -1;
}

/* Warms up, and returns the seconds of one call as known by then. */
static double warm_up(const bench_work *work, double seconds, size_t *set)
{
    double took = time_batch(work, 1, set), total = took;
    if (took < 0 || took > fmax(seconds, WARM_UP))
        return took;                      /* so slow a call shows nothing but its own time */
    for (uint64_t calls = work->sets;;) { /* the first call on a set may map its memory */
        took = time_batch(work, calls, set);
        total += took;
        const bool enough = took >= SHORT_BATCH && total >= WARM_UP;
        if (took < 0 || enough || calls >= MOST_CALLS)
            return took < 0 ? took : took / (double)calls;
        if (took < SHORT_BATCH)
            calls *= 2;
    }
}

bool bench_measure(const bench_work *work, double seconds, bench_timing *timing)
{
    double us[MOST_BATCHES], elapsed = 0;
    size_t set = 0, count = 0;
    const double call = warm_up(work, seconds, &set);
    if (call < 0)
        return false;
    const double batch = fmax(SHORT_BATCH, seconds / (2 * LEAST_BATCHES));
    timing->calls = (uint64_t)fmin(fmax(ceil(batch / fmax(call, 1e-9)), 1), MOST_CALLS);
    while (count < MOST_BATCHES && (count < LEAST_BATCHES || elapsed < seconds) &&
           (count < 3 || elapsed < 10 * seconds)) {
        const double took = time_batch(work, timing->calls, &set);
        if (took < 0)
            return false;
        us[count++] = took * 1e6 / (double)timing->calls;
        elapsed += took;
    }
    timing->us = bench_stats_of(us, count);
    return true;
}
