/*
 * bench_measure.h - the time of one call among many.
 *
 * Calls are enqueued back to back on an in-order queue without profiling, rotating over sets of
 * buffers, and timed on the host's monotonic clock from the first enqueue to the end of clFinish.
 * A batch is long enough that what happens once in it (the first launch, waking up after clFinish;
 * tens of microseconds) does not count: it is not subtracted, so it can only make a call look slow.
 * Where the device is faster than the host can enqueue, the result is the host's time per call:
 * compare with the time of an empty kernel (bench_probe.h). With a hold (bench_hold.h) it is the
 * device's time.
 */
#ifndef LLMK_BENCH_MEASURE_H
#define LLMK_BENCH_MEASURE_H

#include "tools/common/bench_stats.h"

#include <CL/cl.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct bench_work {
    cl_command_queue queue;
    /* Enqueues one call on a set of buffers; false on failure, which ends the measurement. */
    bool (*enqueue)(void *user, size_t set);
    void *user;
    size_t sets;
    /* Not NULL: batches of calls shorter than BENCH_SHORT_US wait in the queue until all of one are
     * there. */
    const struct bench_hold *hold;
} bench_work;

#define BENCH_SHORT_US 50

typedef struct bench_timing {
    bench_stats us; /* of one call, over batches */
    uint64_t calls; /* in a batch */
} bench_timing;

/* Spends about `seconds` on timed batches, after a warm-up; at least a dozen batches of 2 ms,
 * unless a call is so slow that this would take ten times `seconds`. False where a call failed. */
bool bench_measure(const bench_work *work, double seconds, bench_timing *timing);

/* Calls on and on for `seconds`: us[i] is the time of one in the i-th of `count` windows of as long
 * each. call_us: of one call, as known. False where a call failed. */
bool bench_sustain(const bench_work *work, double seconds, double call_us, double *us,
                   size_t count);
double bench_now(void); /* s */
/* Microseconds of one call by itself, as the host sees it; negative where it failed. */
double bench_once_us(const bench_work *work);

/* Two works whose batches alternate, so that what happens to the host or the device happens to both
 * of them. */
typedef struct bench_pair {
    bench_timing first, second;
    bench_stats difference; /* first - second, over pairs of batches; count 0: first alone */
} bench_pair;

/* As bench_measure, for the first; the second takes as long again. It is left out where a call of
 * the first takes `below_us` or more. */
bool bench_measure_pair(const bench_work *first, const bench_work *second, double below_us,
                        double seconds, bench_pair *pair);

#endif
