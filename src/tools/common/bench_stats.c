/* bench_stats.c - order statistics. */
#include "tools/common/bench_stats.h"

#include <stdlib.h>

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Interpolates between the two nearest ranks. */
static double quantile(const double *sorted, size_t count, double q)
{
    const double rank = q * (double)(count - 1);
    const size_t below = (size_t)rank;
    if (below + 1 >= count)
        return sorted[count - 1];
    return sorted[below] + (rank - (double)below) * (sorted[below + 1] - sorted[below]);
}

bench_stats bench_stats_of(double *values, size_t count)
{
    if (!count)
        return (bench_stats){0};
    qsort(values, count, sizeof *values, compare);
    return (bench_stats){
        .count = count,
        .least = values[0],
        .p5 = quantile(values, count, 0.05),
        .q1 = quantile(values, count, 0.25),
        .median = quantile(values, count, 0.5),
        .q3 = quantile(values, count, 0.75),
        .p95 = quantile(values, count, 0.95),
    };
}

double bench_stats_spread(const bench_stats *stats)
{
    return stats->median > 0 ? (stats->p95 - stats->p5) / stats->median : 0;
}
