/* tune_sustain.c - load until the clock is steady, then windows of calls. */
#include "tools/common/tune_sustain.h"

#include "tools/common/bench_stats.h"

#include <math.h>

/* s: at least two, since a card may take a tenth or two to take back what it allowed at first. */
#define STEP 0.15
/* Where it goes on hunting by more, nothing is steady. */
#define MOST_STEPS 8
#define STEADY     0.01
#define WINDOWS    24
#define FEWEST     3 /* of a call that is slow */

/* Until one step is as fast as that before it. */
static bool load_up(const tune_load *load, double *call_us)
{
    double before;
    int steps = 0;
    do {
        before = *call_us;
        if (!load->run(load->user, STEP, before, call_us, 1))
            return false;
        steps++;
    } while (steps < 2 || (fabs(*call_us - before) > STEADY * before && steps < MOST_STEPS &&
                           *call_us < STEP * 1e6));
    return true;
}

bool tune_sustain(const tune_load *load, double seconds, tune_timing *timing)
{
    double us[WINDOWS], call_us;
    *timing = (tune_timing){.us = 0};
    if (!load->run(load->user, 0, 1, &call_us, 1))
        return false;
    if (seconds <= 0 && call_us < TUNE_LONG_US)
        return true;
    if (!load_up(load, &call_us))
        return false;
    if (seconds <= 0)
        return true;
    seconds = fmax(seconds, 2 * STEP);
    const double fitting = fmin(seconds * 1e6 / call_us, WINDOWS);
    const size_t count = fitting > FEWEST ? (size_t)fitting : FEWEST;
    if (!load->run(load->user, seconds, call_us, us, count))
        return false;
    const bench_stats stats = bench_stats_of(us, count);
    const size_t cut = count / 4;
    double sum = 0;
    for (size_t i = cut; i < count - cut; i++)
        sum += us[i];
    *timing = (tune_timing){sum / (double)(count - 2 * cut), bench_stats_spread(&stats)};
    return true;
}
