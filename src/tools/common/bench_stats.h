/*
 * bench_stats.h - order statistics of repeated measurements.
 */
#ifndef LLMK_BENCH_STATS_H
#define LLMK_BENCH_STATS_H

#include <stddef.h>

typedef struct bench_stats {
    size_t count;
    double least, p5, q1, median, q3, p95;
} bench_stats;

/* Sorts `values` on the way. All zero for none. */
bench_stats bench_stats_of(double *values, size_t count);
/* How far apart single measurements lie: (p95 - p5) / median; 0 for none. */
double bench_stats_spread(const bench_stats *stats);

#endif
