/* launch.c - one call of an operator on its way to the queue: kernels, arguments, events. */
#include "ops/operator.h"

#include <stdlib.h>

llmk_kernel llmk_kernel_open(llmk_launch *launch, const char *file, const char *defines,
                             const char *name)
{
    llmk_kernel k = {.launch = launch, .name = name};
    k.status = llmk_program_get(launch->ctx, file, defines, name, &k.program);
    while (k.status == LLMK_OK) {
        k.status = llmk_program_acquire(launch->ctx, k.program, name, &k.object);
        if (k.status != LLMK_BUILD_FAILED)
            break;
        k.status = llmk_program_replace(launch->ctx, file, defines, name, &k.program);
    }
    return k;
}

/* Arguments that are the driver's to resolve: buffers, local memory. */
static void set_arg(llmk_kernel *k, size_t size, const void *value)
{
    if (k->status != LLMK_OK)
        return;
    const cl_int err = clSetKernelArg(k->object->cl, k->arg, size, value);
    if (err != CL_SUCCESS) {
        const llmk_status status = llmk_fail_cl(k->launch->ctx, err, "clSetKernelArg");
        k->status = llmk_fail_prefix(llmk_cl_is_invalid(err) ? LLMK_INTERNAL : status,
                                     "argument %u of kernel %s", k->arg, k->name);
    }
    k->arg++;
}

/* Arguments that are plain values: they stay set in the kernel object from call to call. */
static void set_value(llmk_kernel *k, size_t size, const void *value)
{
    if (k->status != LLMK_OK)
        return;
    llmk_kernel_object *o = k->object;
    const size_t end = k->value + size;
    if (end <= o->known && memcmp(o->values + k->value, value, size) == 0) {
        k->arg++;
    } else {
        if (k->value < o->known && end > o->known)
            o->known = k->value;
        set_arg(k, size, value);
        if (k->status == LLMK_OK && end <= sizeof o->values && k->value <= o->known) {
            memcpy(o->values + k->value, value, size);
            o->known = end > o->known ? end : o->known;
        } else if (k->value < o->known) {
            o->known = k->value;
        }
    }
    k->value = end;
}

void llmk_arg_view(llmk_kernel *k, const llmk_view *view)
{
    /* Compilers move divisions by n1 and n2 to where the tensor need not be there. */
    static const llmk_rows absent = {.n1 = 1, .n2 = 1, .inner = 1};
    llmk_arg_buffer(k, view->buffer);
    set_value(k, sizeof view->rows, view->present ? &view->rows : &absent);
}

void llmk_arg_buffer(llmk_kernel *k, cl_mem buffer)
{
    set_arg(k, sizeof buffer, buffer ? &buffer : NULL);
}

void llmk_arg_u64(llmk_kernel *k, uint64_t value)
{
    const cl_ulong v = value;
    set_value(k, sizeof v, &v);
}

void llmk_arg_u32(llmk_kernel *k, uint32_t value)
{
    const cl_uint v = value;
    set_value(k, sizeof v, &v);
}

void llmk_arg_f32(llmk_kernel *k, float value)
{
    const cl_float v = value;
    set_value(k, sizeof v, &v);
}

void llmk_arg_local(llmk_kernel *k, size_t bytes)
{
    set_arg(k, bytes, NULL);
}

/* ---- Profiling ---- */

typedef struct profile_note {
    llmk_context *ctx;
    const char *op, *variant, *kernel; /* literals */
} profile_note;

static void CL_CALLBACK on_complete(cl_event event, cl_int state, void *data)
{
    profile_note *note = data;
    llmk_profile_record record = {note->op, note->variant, note->kernel, 0, 0, 0, 0};
    cl_ulong times[4] = {0};
    const cl_profiling_info what[4] = {CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_SUBMIT,
                                       CL_PROFILING_COMMAND_START, CL_PROFILING_COMMAND_END};
    bool ok = state == CL_COMPLETE;
    for (int i = 0; i < 4; i++)
        ok = ok && clGetEventProfilingInfo(event, what[i], sizeof times[i], &times[i], NULL) ==
                       CL_SUCCESS;
    record.queued_ns = times[0];
    record.submitted_ns = times[1];
    record.started_ns = times[2];
    record.ended_ns = times[3];
    pthread_mutex_lock(&note->ctx->profiler_lock);
    if (ok && note->ctx->profiler)
        note->ctx->profiler(note->ctx->profiler_user, &record);
    pthread_mutex_unlock(&note->ctx->profiler_lock);
    llmk_context_free(note->ctx);
    free(note);
}

static void note_profile(const llmk_kernel *k, cl_event event)
{
    profile_note *note = malloc(sizeof *note);
    if (!note)
        return; /* a missing record is no reason to fail the call */
    *note = (profile_note){k->launch->ctx, k->launch->op, k->launch->variant, k->name};
    llmk_context_retain(note->ctx);
    if (clSetEventCallback(event, CL_COMPLETE, on_complete, note) != CL_SUCCESS) {
        llmk_context_free(note->ctx);
        free(note);
    }
}

/* ---- Enqueuing ---- */

static llmk_status enqueue(llmk_kernel *k, const size_t groups[3], const size_t local[3])
{
    llmk_launch *l = k->launch;
    const size_t global[3] = {groups[0] * local[0], groups[1] * local[1], groups[2] * local[2]};
    cl_uint wait_count = 0;
    const cl_event *wait_list = NULL;
    if (l->enqueued == 0 && l->events) {
        wait_count = l->events->num_wait;
        wait_list = wait_count > 0 ? l->events->wait_list : NULL;
    } else if (l->enqueued > 0 && !l->in_order) {
        wait_count = 1;
        wait_list = &l->last;
    }
    cl_event event = NULL;
    const bool need_event = l->want_event || l->profile || !l->in_order;
    const cl_int err = clEnqueueNDRangeKernel(l->queue, k->object->cl, 3, NULL, global, local,
                                              wait_count, wait_list, need_event ? &event : NULL);
    if (err != CL_SUCCESS) {
        const llmk_status status = llmk_fail_cl(l->ctx, err, "clEnqueueNDRangeKernel");
        return llmk_fail_prefix(status, "%s: kernel %s with work-groups of %zux%zux%zu", l->op,
                                k->name, local[0], local[1], local[2]);
    }
    if (l->profile)
        note_profile(k, event);
    if (l->last)
        clReleaseEvent(l->last);
    l->last = event;
    l->enqueued++;
    return LLMK_OK;
}

llmk_status llmk_kernel_enqueue(llmk_kernel *k, const size_t groups[3], const size_t local[3])
{
    if (k->status == LLMK_OK && !k->launch->dry)
        k->status = enqueue(k, groups, local);
    if (k->object)
        llmk_program_release(k->program, k->name, k->object);
    k->object = NULL;
    return k->status;
}
