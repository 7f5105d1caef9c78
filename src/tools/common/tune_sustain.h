/*
 * tune_sustain.h - the time of a call among many on end, once the device's clocks are steady.
 *
 * A card that is limited by its power is faster for a while after a pause, and how much depends on
 * the pause: an H200 multiplies for the first tenths of a second with clocks that it cannot keep.
 */
#ifndef LLMK_TUNE_SUSTAIN_H
#define LLMK_TUNE_SUSTAIN_H

#include "tools/common/tune_search.h"

typedef struct tune_load {
    void *user;
    /* Calls on and on for about so many seconds, at least once a window: us[i] is the time of a call
     * in the i-th of `count`. call_us: of one, as known. False where a call failed. */
    bool (*run)(void *user, double seconds, double call_us, double *us, size_t count);
} tune_load;

/* Loads the device until that makes no difference any more, and goes on for `seconds`, or for as long
 * as the least load: `us` is the mean of the windows' middle half, since clocks may hunt between two
 * states and a median would be one or the other; `spread` as anywhere. 0 seconds: the load is all, and none for short calls. False where a call
 * failed. */
bool tune_sustain(const tune_load *load, double seconds, tune_timing *timing);

#endif
