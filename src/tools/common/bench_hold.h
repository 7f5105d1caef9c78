/*
 * bench_hold.h - keeps a device busy while calls are put into its queue.
 *
 * Where a call is shorter than the host takes to enqueue it, a batch from the first enqueue to the
 * end is the host's time, which differs from process to process. A batch behind a hold waits in the
 * queue until all of it is there, and is timed from then on: the device's time with a full queue.
 */
#ifndef LLMK_BENCH_HOLD_H
#define LLMK_BENCH_HOLD_H

#include <CL/cl.h>
#include <stdbool.h>

typedef struct bench_hold {
    cl_command_queue queue;
    cl_mem buffer;  /* that is filled again and again; NULL: there is no hold */
    size_t bytes;   /* of it */
    double seconds; /* of one fill */
} bench_hold;

/* False where the device makes none: calls are then timed as they are. */
bool bench_hold_open(bench_hold *hold, cl_context ctx, cl_command_queue queue, size_t bytes);
void bench_hold_close(bench_hold *hold);

/* Occupies the queue for about so many seconds; `end` is set to the event of its last command. */
bool bench_hold_begin(const bench_hold *hold, double seconds, cl_event *end);
typedef enum bench_held {
    BENCH_HELD,
    BENCH_TOO_SHORT, /* it was over before: what was enqueued meanwhile did not wait for it */
    BENCH_LATE       /* this thread woke long after its end */
} bench_held;

/* Waits until the hold is over, and releases both events; `soon` is of something that is done soon
 * after: where it is when this thread wakes, that was too late. */
bench_held bench_hold_wait(cl_event end, cl_event soon);

#endif
