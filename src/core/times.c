/* times.c - where the time to the first kernel goes. */
#include "core/core.h"

#include <time.h>

uint64_t llmk_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void llmk_times_add(llmk_times *times, llmk_phase phase, uint64_t since)
{
    atomic_fetch_add(&times->ns[phase], llmk_now() - since);
    atomic_fetch_add(&times->calls[phase], 1);
}

const char *llmk_phase_name(llmk_phase phase)
{
    static const char *const names[LLMK_PHASE_COUNT] = {
        "choosing the device",
        "creating the OpenCL context",
        "probes",
        "trials and self-tests",
        "reading the disk cache",
        "unpacking images",
        "programs, by the driver",
        "kernel objects",
    };
    return names[phase];
}
