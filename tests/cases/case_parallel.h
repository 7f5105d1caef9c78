/*
 * case_parallel.h - what the host computes for a case, on all of its processors.
 */
#ifndef LLMK_CASE_PARALLEL_H
#define LLMK_CASE_PARALLEL_H

#include <stdint.h>

/* Calls body(user, first, end) for parts that make up 0 ... count - 1, `grain` long but for the
 * last, in any order and at a time; returns after all of them. */
void case_parallel(uint64_t count, uint64_t grain,
                   void (*body)(void *user, uint64_t first, uint64_t end), void *user);

#endif
