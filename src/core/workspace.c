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

/* An idle queue is past a marker in some microseconds, or when the host's threads have run. */
#define POLLS   100
#define POLL_NS 50000

/* Whether what the last call enqueued, on another queue or one without an order, is not done yet. A
 * call on an in-order queue leaves no event behind, since an event is 2.7 us of NVIDIA's device for
 * each kernel: only who comes from another queue needs one, of all that its queue has by then. */
static bool is_busy(llmk_workspace *w)
{
    unsigned polls = 0;
    if (!w->last && w->queue) {
        if (clEnqueueMarkerWithWaitList(w->queue, 0, NULL, &w->last) != CL_SUCCESS) {
            w->last = NULL;
            clFinish(w->queue); /* nobody can be asked: it is over now */
            return false;
        }
        clFlush(w->queue);
        polls = POLLS;
    }
    if (!w->last)
        return false;
    for (;; polls--) {
        cl_int state = CL_QUEUED; /* where the driver does not tell */
        clGetEventInfo(w->last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
        if (state <= CL_COMPLETE) /* negative: it ended with an error */
            return false;
        if (polls == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

llmk_status llmk_workspace_begin(llmk_workspace *w, cl_command_queue queue, bool in_order)
{
    if (!w)
        return LLMK_OK;
    pthread_mutex_lock(&w->lock);
    if (!(in_order && w->queue == queue) && is_busy(w)) {
        pthread_mutex_unlock(&w->lock);
        return llmk_fail(LLMK_BUSY,
                         "workspace or plan is in use by a call that has not finished, on "
                         "another or an out-of-order queue");
    }
    return LLMK_OK; /* stays locked until llmk_workspace_end */
}

/* Whether the workspace can remember whom to ask. */
static bool remember(llmk_workspace *w, cl_command_queue queue, cl_event event)
{
    if (clRetainCommandQueue(queue) != CL_SUCCESS)
        return false;
    if (event && clRetainEvent(event) != CL_SUCCESS) {
        clReleaseCommandQueue(queue);
        return false;
    }
    w->queue = queue;
    w->last = event;
    return true;
}

void llmk_workspace_end(llmk_workspace *w, cl_command_queue queue, unsigned enqueued,
                        cl_event event)
{
    if (!w)
        return;
    if (enqueued > 0) {
        if (w->last)
            clReleaseEvent(w->last);
        if (w->queue)
            clReleaseCommandQueue(w->queue);
        w->last = NULL;
        w->queue = NULL;
        if (!remember(w, queue, event))
            clFinish(queue);
    }
    pthread_mutex_unlock(&w->lock);
}
