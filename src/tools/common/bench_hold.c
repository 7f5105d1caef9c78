/* bench_hold.c - fills of a buffer: long, and launched in no time. */
#include "tools/common/bench_hold.h"

#include "tools/common/bench_measure.h"

#include <math.h>

#define MOST_FILLS 400

static bool fill(const bench_hold *hold, size_t count, cl_event *end)
{
    const cl_uint zero[4] = {0};
    for (size_t i = 0; i < count; i++)
        if (clEnqueueFillBuffer(hold->queue, hold->buffer, zero, sizeof zero, 0, hold->bytes, 0,
                                NULL, end && i + 1 == count ? end : NULL) != CL_SUCCESS)
            return false;
    return true;
}

bool bench_hold_open(bench_hold *hold, cl_context ctx, cl_command_queue queue, size_t bytes)
{
    cl_int err;
    *hold = (bench_hold){.queue = queue, .bytes = bytes};
    hold->buffer = clCreateBuffer(ctx, CL_MEM_READ_WRITE, bytes, NULL, &err);
    for (int round = 0; hold->buffer && round < 2; round++) { /* the first makes the memory */
        const double start = bench_now();
        if (!fill(hold, 8, NULL) || clFinish(queue) != CL_SUCCESS)
            bench_hold_close(hold);
        hold->seconds = (bench_now() - start) / 8;
    }
    return hold->buffer != NULL;
}

void bench_hold_close(bench_hold *hold)
{
    if (hold->buffer)
        clReleaseMemObject(hold->buffer);
    hold->buffer = NULL;
}

bool bench_hold_begin(const bench_hold *hold, double seconds, cl_event *end)
{
    const double fills = ceil(seconds / fmax(hold->seconds, 1e-6));
    return fill(hold, (size_t)fmin(fmax(fills, 1), MOST_FILLS), end);
}

static bool is_over(cl_event event)
{
    cl_int state = CL_COMPLETE;
    return clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL) !=
               CL_SUCCESS ||
           state <= CL_COMPLETE;
}

bench_held bench_hold_wait(cl_event end, cl_event soon)
{
    const bool was_over = is_over(end);
    const bool late = clWaitForEvents(1, &end) != CL_SUCCESS || is_over(soon);
    clReleaseEvent(end);
    clReleaseEvent(soon);
    return was_over ? BENCH_TOO_SHORT : late ? BENCH_LATE : BENCH_HELD;
}
