/* bench_measure.c - warm-up, batches, statistics. */
#include "tools/common/bench_measure.h"

#include "tools/common/bench_hold.h"

#include <math.h>
#include <time.h>

#define LEAST_BATCHES 12
#define MOST_BATCHES  400
#define SHORT_BATCH   2e-3 /* s */
#define WARM_UP       0.05 /* s: clocks rise, caches of the driver fill */
/* Longer queues gain nothing, and some drivers keep an object for every command in one. */
#define MOST_CALLS 10000

/* Behind a hold: calls that fit into a driver's queue, and how often in turn it may fail. */
#define HELD_CALLS     200
#define LATE_PART      50 /* of them may be done before the clock is read */
#define MOST_TOO_SHORT 3
#define MOST_LATE      20

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds that `calls` calls take; sets go on rotating from one batch to the next. Negative on
 * failure. */
static double time_batch(const bench_work *work, uint64_t calls, size_t *set)
{
    const double start = bench_now();
    for (uint64_t i = 0; i < calls; i++) {
        if (!work->enqueue(work->user, *set))
            return -1;
        *set = (*set + 1) % work->sets;
    }
    return clFinish(work->queue) == CL_SUCCESS ? bench_now() - start : -1;
}

/* As time_batch, but the calls wait in the queue until all are there. Negative on failure; *held
 * tells whether they did wait. `hold_seconds` is at least as long as enqueuing takes. */
static double time_held(const bench_work *work, uint64_t calls, size_t *set, double hold_seconds,
                        bench_held *held)
{
    cl_event end, soon = NULL;
    if (!bench_hold_begin(work->hold, hold_seconds, &end))
        return -1;
    bool good = true;
    for (uint64_t i = 0; i < calls && good; i++) {
        good = work->enqueue(work->user, *set);
        *set = (*set + 1) % work->sets;
        if (i == calls / LATE_PART && good)
            good = clEnqueueMarkerWithWaitList(work->queue, 0, NULL, &soon) == CL_SUCCESS;
    }
    if (!soon) {
        clReleaseEvent(end);
        return -1;
    }
    good = clFlush(work->queue) == CL_SUCCESS && good;
    *held = bench_hold_wait(end, soon);
    const double start = bench_now();
    good = clFinish(work->queue) == CL_SUCCESS && good;
    return good ? bench_now() - start : -1;
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

/* One of the works that take turns. */
typedef struct turn {
    const bench_work *work;
    size_t set;
    uint64_t calls;
    double hold;         /* s that calls are held back; 0: they are not */
    int too_short, late; /* in turn */
    double us[MOST_BATCHES];
} turn;

static bool begin(turn *t, const bench_work *work, double seconds, double *call)
{
    t->work = work;
    t->set = 0;
    *call = warm_up(work, seconds, &t->set);
    if (*call < 0)
        return false;
    const double batch = fmax(SHORT_BATCH, seconds / (2 * LEAST_BATCHES));
    t->calls = (uint64_t)fmin(fmax(ceil(batch / fmax(*call, 1e-9)), 1), MOST_CALLS);
    t->hold = 0;
    t->too_short = t->late = 0;
    if (work->hold && *call * 1e6 < BENCH_SHORT_US) {
        t->calls = t->calls < HELD_CALLS ? t->calls : HELD_CALLS;
        t->hold = 1.5 * (double)t->calls * *call + 2e-4;
    }
    return true;
}

/* Takes batch number `index`, and returns the seconds until it is over; negative on failure. */
static double take(turn *t, size_t index)
{
    const double start = bench_now();
    double took = -1;
    while (t->hold > 0) {
        bench_held held = BENCH_TOO_SHORT;
        took = time_held(t->work, t->calls, &t->set, t->hold, &held);
        if (held == BENCH_HELD)
            t->too_short = t->late = 0;
        if (took < 0 || held == BENCH_HELD)
            break;
        t->too_short += held == BENCH_TOO_SHORT;
        t->late += held == BENCH_LATE;
        t->hold = t->too_short > MOST_TOO_SHORT || t->late > MOST_LATE ? 0
                  : held == BENCH_TOO_SHORT                            ? 2 * t->hold
                                                                       : t->hold;
    }
    if (t->hold <= 0)
        took = time_batch(t->work, t->calls, &t->set);
    t->us[index] = took * 1e6 / (double)t->calls;
    return took < 0 ? took : bench_now() - start;
}

/* Batches in turn; of `a` alone where `b` is NULL. */
static bool alternate(turn *a, turn *b, double seconds, bench_pair *pair)
{
    double difference[MOST_BATCHES], elapsed = 0;
    size_t count = 0;
    while (count < MOST_BATCHES && (count < LEAST_BATCHES || elapsed < seconds) &&
           (count < 3 || elapsed < 10 * seconds)) {
        const double took = take(a, count);
        if (took < 0 || (b && take(b, count) < 0))
            return false;
        if (b)
            difference[count] = a->us[count] - b->us[count];
        elapsed += took;
        count++;
    }
    pair->first = (bench_timing){bench_stats_of(a->us, count), a->calls};
    if (b) {
        pair->second = (bench_timing){bench_stats_of(b->us, count), b->calls};
        pair->difference = bench_stats_of(difference, count);
    }
    return true;
}

bool bench_measure_pair(const bench_work *first, const bench_work *second, double below_us,
                        double seconds, bench_pair *pair)
{
    turn a, b;
    double call, ignored;
    *pair = (bench_pair){.second = {.calls = 0}};
    if (!begin(&a, first, seconds, &call))
        return false;
    /* Where the warm-up was disturbed, only the median shows that a call is short. */
    if (call * 1e6 >= below_us || !second) {
        if (!alternate(&a, NULL, seconds, pair))
            return false;
        if (pair->first.us.median >= below_us || !second)
            return true;
    }
    return begin(&b, second, seconds, &ignored) && alternate(&a, &b, seconds, pair);
}

bool bench_sustain(const bench_work *work, double seconds, double call_us, double *us, size_t count)
{
    size_t set = 0;
    const double end = bench_now() + seconds;
    for (size_t i = 0; i < count; i++) {
        /* Until the window's end by the time of a call so far, in batches that a queue can hold. */
        const double window_end = end - seconds * (double)(count - 1 - i) / (double)count;
        double took = 0;
        uint64_t calls = 0;
        do {
            const double left = fmax((window_end - bench_now()) * 1e6 / call_us, 1);
            const uint64_t batch = (uint64_t)fmin(ceil(left), MOST_CALLS);
            const double one = time_batch(work, batch, &set);
            if (one < 0)
                return false;
            took += one;
            calls += batch;
            call_us = took * 1e6 / (double)calls;
        } while (bench_now() < window_end);
        us[i] = call_us;
    }
    return true;
}

double bench_once_us(const bench_work *work)
{
    size_t set = 0;
    return clFinish(work->queue) == CL_SUCCESS ? 1e6 * time_batch(work, 1, &set) : -1;
}

bool bench_measure(const bench_work *work, double seconds, bench_timing *timing)
{
    bench_pair pair;
    const bool good = bench_measure_pair(work, NULL, 0, seconds, &pair);
    *timing = pair.first;
    return good;
}
