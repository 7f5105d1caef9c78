/*
 * tune_pretend.h - what LLMK_TUNE_TEST asks for, so that tests know what the tuner will see.
 *
 *     timer=SEED   times that depend on SEED, the case and the candidate, with noise
 *     load=MS      besides: of a device whose clock falls under load, and rises while it is idle: for so
 *                  long when a case is made or a candidate checked
 *     oob hang crash   a candidate each that does harm
 */
#ifndef LLMK_TUNE_PRETEND_H
#define LLMK_TUNE_PRETEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tune_pretence {
    const char *words; /* separated by commas; NULL: nothing is pretended */
    uint64_t calls;
    double heat; /* 0: at rest; 1: as a long load leaves it */
} tune_pretence;

bool tune_pretends(const tune_pretence *p, const char *word);
/* The device has nothing to do for a while. */
void tune_pretend_pause(tune_pretence *p);
/* Microseconds of one of the calls that go on end for so many seconds, which may be 0; `noise` is the
 * share of them that is random. With "timer" only. */
double tune_pretend_us(tune_pretence *p, const char *text, const char *candidate, double seconds,
                       double noise);

#endif
