/* workspace.c - device memory between the kernels of a call, and who is using it. */
#include "ops/operator.h"

#include <stdlib.h>
#include <time.h>

llmk_status llmk_workspace_create(llmk_context *ctx, uint64_t bytes, llmk_workspace **out)
{
    if (!out)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_workspace_create: out is NULL");
    *out = NULL;
    LLMK_TRY(llmk_context_usable(ctx));
    if (bytes > ctx->caps.max_alloc_bytes)
        return llmk_fail(LLMK_OUT_OF_DEVICE_MEMORY,
                         "llmk_workspace_create: %llu bytes are more than the %llu of the device's "
                         "largest allocation",
                         (unsigned long long)bytes, (unsigned long long)ctx->caps.max_alloc_bytes);
    llmk_workspace *w = calloc(1, sizeof *w);
    if (!w)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a workspace");
    if (bytes > 0) {
        cl_int err;
        w->buffer = clCreateBuffer(ctx->cl, CL_MEM_READ_WRITE, (size_t)bytes, NULL, &err);
        if (!w->buffer) {
            free(w);
            return llmk_fail_cl(ctx, err, "clCreateBuffer");
        }
        uint32_t zeros[LLMK_WORKSPACE_COUNTS] = {0};
        w->counts = clCreateBuffer(ctx->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof zeros,
                                   zeros, &err);
        if (!w->counts) {
            clReleaseMemObject(w->buffer);
            free(w);
            return llmk_fail_cl(ctx, err, "clCreateBuffer");
        }
    }
    w->ctx = ctx;
    w->bytes = bytes;
    pthread_mutex_init(&w->lock, NULL);
    llmk_context_retain(ctx);
    *out = w;
    return LLMK_OK;
}

void llmk_workspace_free(llmk_workspace *w)
{
    if (!w)
        return;
    if (w->last)
        clReleaseEvent(w->last);
    if (w->queue)
        clReleaseCommandQueue(w->queue);
    if (w->buffer)
        clReleaseMemObject(w->buffer);
    if (w->counts)
        clReleaseMemObject(w->counts);
    pthread_mutex_destroy(&w->lock);
    llmk_context_free(w->ctx);
    free(w);
}

uint64_t llmk_workspace_bytes(const llmk_workspace *w)
{
    return w ? w->bytes : 0;
}

void llmk_check_workspace(llmk_checker *c, const llmk_workspace *w, uint64_t bytes)
{
    if (bytes == 0 || (c->dry && !w))
        return;
    llmk_check_that(c, w != NULL, LLMK_INVALID_ARGUMENT,
                    "workspace is NULL; expected one of at least %llu bytes",
                    (unsigned long long)bytes);
    if (!w)
        return;
    llmk_check_that(c, w->ctx == c->ctx, LLMK_INVALID_ARGUMENT,
                    "workspace belongs to another llmk_context");
    llmk_check_that(c, w->bytes >= bytes, LLMK_BUFFER_TOO_SMALL,
                    "workspace has %llu bytes; expected at least %llu",
                    (unsigned long long)w->bytes, (unsigned long long)bytes);
}

/* How long a call on another queue waits for the one before. Where that is over, which no event
 * tells, the driver says so in microseconds; on a busy host it may take long. */
#define PATIENCE_NS 1000000000u
#define NAP_NS      50000

/* Whether the last call is over. A call on an in-order queue makes no event, since one costs the
 * device 2 to 3 us: the first who asks does. */
static llmk_status is_over(llmk_workspace *w, bool *over)
{
    const uint64_t start = llmk_now();
    bool is_new = false;
    if (!w->last) {
        const cl_int err = clEnqueueMarkerWithWaitList(w->queue, 0, NULL, &w->last);
        if (err != CL_SUCCESS) {
            w->last = NULL;
            return llmk_fail_cl(w->ctx, err, "clEnqueueMarkerWithWaitList");
        }
        clFlush(w->queue);
        is_new = true;
    }
    for (;;) {
        cl_int state = CL_QUEUED;
        const cl_int err =
            clGetEventInfo(w->last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
        if (err != CL_SUCCESS)
            return llmk_fail_cl(w->ctx, err, "clGetEventInfo");
        *over = state <= CL_COMPLETE; /* negative: it ended with an error */
        /* By the clock: naps take longer than asked for, several times on a busy host. */
        if (*over || !is_new || llmk_now() - start >= PATIENCE_NS)
            return LLMK_OK;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

llmk_status llmk_workspace_begin(llmk_workspace *w, cl_command_queue queue, bool in_order)
{
    if (!w)
        return LLMK_OK;
    pthread_mutex_lock(&w->lock);
    bool over = true;
    llmk_status status = LLMK_OK;
    if (w->queue && !(in_order && w->queue == queue))
        status = is_over(w, &over);
    if (status == LLMK_OK && !over)
        status = llmk_fail(LLMK_BUSY, "workspace or plan is in use by a call that has not "
                                      "finished, on another or an out-of-order queue");
    if (status != LLMK_OK)
        pthread_mutex_unlock(&w->lock);
    return status; /* stays locked until llmk_workspace_end */
}

void llmk_workspace_end(llmk_workspace *w, cl_command_queue queue, bool used, cl_event event)
{
    if (!w)
        return;
    if (used) {
        const bool keeps_event = !event || clRetainEvent(event) == CL_SUCCESS;
        const bool keeps_queue = clRetainCommandQueue(queue) == CL_SUCCESS;
        if (!keeps_event || !keeps_queue) { /* nobody could be told to wait: it is over now */
            clFinish(queue);
            if (keeps_event && event)
                clReleaseEvent(event);
            if (keeps_queue)
                clReleaseCommandQueue(queue);
            event = NULL;
            queue = NULL;
        }
        if (w->last)
            clReleaseEvent(w->last);
        if (w->queue)
            clReleaseCommandQueue(w->queue);
        w->last = event;
        w->queue = queue;
    }
    pthread_mutex_unlock(&w->lock);
}
