/* test_faults.c - every OpenCL call and every allocation of the library fails once, the first time
 * it is made, the second, and so on: the right status, nothing leaks, and the next call is as good
 * as ever, unless the device is lost. And a prepared call makes none that it should not.
 *
 * The linker replaces the functions of test_faults.wrap by those here. */
#include "cases/case_internal.h"
#include "core/core.h"
#include "llmk_cmocka.h"
#include "support/args_table.h"
#include "support/calls.h"

#include <stdlib.h>

/* How the next n to try follows from n: the quick tier leaves some out. */
#ifndef NEXT
#define NEXT(n) ((n) + 1 + (n) / 2)
#endif

/* ---- Faults ---- */

#define CALLS(X)                                                                                   \
    X(malloc)                                                                                      \
    X(calloc)                                                                                      \
    X(realloc)                                                                                     \
    X(strdup)                                                                                      \
    X(clGetPlatformIDs)                                                                            \
    X(clGetDeviceIDs)                                                                              \
    X(clGetDeviceInfo)                                                                             \
    X(clGetMemObjectInfo)                                                                          \
    X(clGetCommandQueueInfo)                                                                       \
    X(clGetEventInfo)                                                                              \
    X(clCreateContext)                                                                             \
    X(clRetainContext)                                                                             \
    X(clRetainCommandQueue)                                                                        \
    X(clRetainMemObject)                                                                           \
    X(clRetainEvent)                                                                               \
    X(clCreateCommandQueue)                                                                        \
    X(clCreateBuffer)                                                                              \
    X(clCreateProgramWithSource)                                                                   \
    X(clBuildProgram)                                                                              \
    X(clCreateKernel)                                                                              \
    X(clSetKernelArg)                                                                              \
    X(clEnqueueNDRangeKernel)                                                                      \
    X(clEnqueueReadBuffer)                                                                         \
    X(clEnqueueWriteBuffer)                                                                        \
    X(clEnqueueMarkerWithWaitList)                                                                 \
    X(clSetEventCallback)                                                                          \
    X(clFinish)

#define CALL_ENUM(name) CALL_##name,
#define CALL_NAME(name) #name,
typedef enum call { CALLS(CALL_ENUM) CALL_COUNT } call;
static const char *const call_names[] = {CALLS(CALL_NAME)};

static struct {
    call which;
    unsigned at, seen; /* the at-th call fails */
    cl_int code;
    bool fired;
} fault;

/* Only what the library does in this thread, on behalf of a test, is counted and made to fail. */
static _Thread_local bool armed;
static unsigned calls_made[CALL_COUNT];

static cl_int fault_of(call which)
{
    if (!armed)
        return CL_SUCCESS;
    calls_made[which]++;
    if (which != fault.which || ++fault.seen != fault.at)
        return CL_SUCCESS;
    fault.fired = true;
    return fault.code;
}

/* ---- Objects alive ---- */

typedef enum object { CONTEXT, QUEUE, BUFFER, PROGRAM, KERNEL, EVENT, OBJECT_COUNT } object;
static const char *const object_names[] = {"context", "queue",  "buffer",
                                           "program", "kernel", "event"};
static atomic_int alive[OBJECT_COUNT];

/* A function that makes an object; its last parameter is `err`. */
#define WRAP_MAKE(name, type, what, parameters, arguments)                                         \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        const cl_int code = fault_of(CALL_##name);                                                 \
        if (code && err)                                                                           \
            *err = code;                                                                           \
        type made = code ? NULL : __real_##name arguments;                                         \
        atomic_fetch_add(&alive[what], made != NULL);                                              \
        return made;                                                                               \
    }

#define WRAP_CODE(name, parameters, arguments)                                                     \
    cl_int __real_##name parameters;                                                               \
    cl_int __wrap_##name parameters;                                                               \
    cl_int __wrap_##name parameters                                                                \
    {                                                                                              \
        const cl_int code = fault_of(CALL_##name);                                                 \
        return code ? code : __real_##name arguments;                                              \
    }

/* A command: the event that it may return is an object too. */
#define WRAP_COMMAND(name, parameters, arguments)                                                  \
    cl_int __real_##name parameters;                                                               \
    cl_int __wrap_##name parameters;                                                               \
    cl_int __wrap_##name parameters                                                                \
    {                                                                                              \
        cl_int code = fault_of(CALL_##name);                                                       \
        if (!code && (code = __real_##name arguments) == CL_SUCCESS)                               \
            atomic_fetch_add(&alive[EVENT], event != NULL);                                        \
        return code;                                                                               \
    }

#define WRAP_RETAIN(name, type, what)                                                              \
    cl_int __real_##name(type thing);                                                              \
    cl_int __wrap_##name(type thing);                                                              \
    cl_int __wrap_##name(type thing)                                                               \
    {                                                                                              \
        const cl_int code = fault_of(CALL_##name);                                                 \
        atomic_fetch_add(&alive[what], !code);                                                     \
        return code ? code : __real_##name(thing);                                                 \
    }

#define WRAP_RELEASE(name, type, what)                                                             \
    cl_int __real_##name(type thing);                                                              \
    cl_int __wrap_##name(type thing);                                                              \
    cl_int __wrap_##name(type thing)                                                               \
    {                                                                                              \
        atomic_fetch_sub(&alive[what], 1);                                                         \
        return __real_##name(thing);                                                               \
    }

#define WRAP_MEMORY(name, parameters, arguments)                                                   \
    void *__real_##name parameters;                                                                \
    void *__wrap_##name parameters;                                                                \
    void *__wrap_##name parameters                                                                 \
    {                                                                                              \
        return fault_of(CALL_##name) ? NULL : __real_##name arguments;                             \
    }

WRAP_MEMORY(malloc, (size_t size), (size))
WRAP_MEMORY(calloc, (size_t count, size_t size), (count, size))
WRAP_MEMORY(realloc, (void *old, size_t size), (old, size))
WRAP_MEMORY(strdup, (const char *text), (text))

WRAP_CODE(clGetPlatformIDs, (cl_uint n, cl_platform_id *ids, cl_uint *count), (n, ids, count))
WRAP_CODE(clGetDeviceIDs,
          (cl_platform_id platform, cl_device_type type, cl_uint n, cl_device_id *ids,
           cl_uint *count),
          (platform, type, n, ids, count))
#define INFO(type, what) (type thing, what name, size_t size, void *value, size_t *got)
WRAP_CODE(clGetDeviceInfo, INFO(cl_device_id, cl_device_info), (thing, name, size, value, got))
WRAP_CODE(clGetMemObjectInfo, INFO(cl_mem, cl_mem_info), (thing, name, size, value, got))
WRAP_CODE(clGetCommandQueueInfo, INFO(cl_command_queue, cl_command_queue_info),
          (thing, name, size, value, got))
WRAP_CODE(clGetEventInfo, INFO(cl_event, cl_event_info), (thing, name, size, value, got))

typedef void(CL_CALLBACK *context_notify)(const char *, const void *, size_t, void *);
WRAP_MAKE(clCreateContext, cl_context, CONTEXT,
          (const cl_context_properties *p, cl_uint n, const cl_device_id *devices,
           context_notify notify, void *user, cl_int *err),
          (p, n, devices, notify, user, err))
WRAP_MAKE(clCreateCommandQueue, cl_command_queue, QUEUE,
          (cl_context cl, cl_device_id device, cl_command_queue_properties p, cl_int *err),
          (cl, device, p, err))
WRAP_MAKE(clCreateBuffer, cl_mem, BUFFER,
          (cl_context cl, cl_mem_flags flags, size_t size, void *host, cl_int *err),
          (cl, flags, size, host, err))
WRAP_MAKE(clCreateProgramWithSource, cl_program, PROGRAM,
          (cl_context cl, cl_uint n, const char **texts, const size_t *sizes, cl_int *err),
          (cl, n, texts, sizes, err))
WRAP_MAKE(clCreateKernel, cl_kernel, KERNEL, (cl_program program, const char *name, cl_int *err),
          (program, name, err))

typedef void(CL_CALLBACK *program_notify)(cl_program, void *);
WRAP_CODE(clBuildProgram,
          (cl_program program, cl_uint n, const cl_device_id *devices, const char *options,
           program_notify notify, void *user),
          (program, n, devices, options, notify, user))
WRAP_CODE(clSetKernelArg, (cl_kernel kernel, cl_uint index, size_t size, const void *value),
          (kernel, index, size, value))
WRAP_CODE(clFinish, (cl_command_queue queue), (queue))
typedef void(CL_CALLBACK *event_notify)(cl_event, cl_int, void *);
WRAP_CODE(clSetEventCallback, (cl_event event, cl_int type, event_notify notify, void *user),
          (event, type, notify, user))

WRAP_COMMAND(clEnqueueNDRangeKernel,
             (cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset,
              const size_t *global, const size_t *local, cl_uint waits, const cl_event *list,
              cl_event *event),
             (queue, kernel, dims, offset, global, local, waits, list, event))
WRAP_COMMAND(clEnqueueReadBuffer,
             (cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size,
              void *to, cl_uint waits, const cl_event *list, cl_event *event),
             (queue, buffer, blocking, offset, size, to, waits, list, event))
WRAP_COMMAND(clEnqueueWriteBuffer,
             (cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size,
              const void *from, cl_uint waits, const cl_event *list, cl_event *event),
             (queue, buffer, blocking, offset, size, from, waits, list, event))
WRAP_COMMAND(clEnqueueMarkerWithWaitList,
             (cl_command_queue queue, cl_uint waits, const cl_event *list, cl_event *event),
             (queue, waits, list, event))

WRAP_RETAIN(clRetainContext, cl_context, CONTEXT)
WRAP_RELEASE(clReleaseContext, cl_context, CONTEXT)
WRAP_RETAIN(clRetainCommandQueue, cl_command_queue, QUEUE)
WRAP_RELEASE(clReleaseCommandQueue, cl_command_queue, QUEUE)
WRAP_RETAIN(clRetainMemObject, cl_mem, BUFFER)
WRAP_RELEASE(clReleaseMemObject, cl_mem, BUFFER)
WRAP_RELEASE(clReleaseProgram, cl_program, PROGRAM)
WRAP_RELEASE(clReleaseKernel, cl_kernel, KERNEL)
WRAP_RETAIN(clRetainEvent, cl_event, EVENT)
WRAP_RELEASE(clReleaseEvent, cl_event, EVENT)

/* ---- A life: from the first call of the library to the last ---- */

typedef struct plan {
    call which;
    cl_int code;
    llmk_status allowed[4]; /* besides LLMK_OK: a fault may be got over */
} plan;

static const plan *current;

static void complain(const char *step, const char *line, const char *why, llmk_status status)
{
    fail_msg("%s '%s', %s failing with %d the %u. time: %s: %s (%s)", step, line ? line : "",
             call_names[current->which], (int)current->code, fault.at, why,
             llmk_status_string(status), status == LLMK_OK ? "" : llmk_error_message());
}

static bool is_allowed(llmk_status status)
{
    for (size_t i = 0; i < LLMK_COUNT(current->allowed); i++)
        if (current->allowed[i] == status)
            return true;
    return false;
}

/* One step of the library, under fault; where it fails it is done again without. Returns false
 * where it cannot be done any more, as it must be where the device is lost. */
static bool step(const char *name, const char *line, llmk_status (*run)(void *), void *user)
{
    armed = true;
    const llmk_status status = run(user);
    armed = false;
    if (status == LLMK_OK)
        return true;
    if (!fault.fired)
        complain(name, line, "failed without a fault", status);
    if (!is_allowed(status))
        complain(name, line, "another status was expected", status);
    if (llmk_error_message()[0] == '\0')
        complain(name, line, "no sentence", status);
    const llmk_status again = run(user);
    const bool sticky = status == LLMK_DEVICE_LOST || status == LLMK_BUILD_FAILED;
    if (again != (sticky ? status : LLMK_OK) && again != LLMK_OK)
        complain(name, line, "does not recover", again);
    return again == LLMK_OK;
}

typedef struct life {
    const char *line;
    llmk_context *ctx;
    cl_command_queue queue, plain; /* plain: without profiling, whose calls make no events */
    case_run *run;
    llmk_workspace *workspace;
    llmk_weights *weights;
    cl_mem gate;
    llmk_moe_plan *plan;
} life;

static llmk_status make_context(void *user)
{
    life *l = user;
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.cache_dir = "off";
    return llmk_context_create(&options, &l->ctx);
}

static llmk_status make_workspace(void *user)
{
    life *l = user;
    return llmk_workspace_create(l->ctx, 100, &l->workspace);
}

static llmk_status make_weights(void *user)
{
    static const uint8_t blocks[32 * 20];
    life *l = user;
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_GGUF_Q4_1;
    desc.n = 32;
    desc.k = 32;
    desc.data = (llmk_source){.host = blocks, .size = sizeof blocks};
    return llmk_weights_create(l->ctx, &desc, &l->weights);
}

/* The plan retains the router's weights. */
static llmk_status make_plan(void *user)
{
    life *l = user;
    llmk_moe_desc desc = LLMK_INIT(llmk_moe_desc);
    desc.x_dtype = LLMK_F32;
    desc.experts_a_token = 1;
    desc.score = LLMK_MOE_SOFTMAX;
    desc.activation = LLMK_SILU;
    desc.gate = llmk_matrix(l->gate, LLMK_F32, 1, 32);
    desc.gate_weights = desc.up_weights = l->weights;
    desc.down_weights = l->weights;
    return llmk_moe_plan_create(l->ctx, &desc, 2, &l->plan);
}

static llmk_status look(void *user)
{
    const life *l = user;
    llmk_device_info info = LLMK_INIT(llmk_device_info);
    size_t count;
    LLMK_TRY(llmk_device_list(&info, 1, &count));
    return llmk_context_device_info(l->ctx, &info);
}

static llmk_status prepare(void *user)
{
    life *l = user;
    return llmk_prepare(l->ctx, l->run->line.op->op, case_run_args(l->run, 0));
}

static llmk_status call_twice(void *user)
{
    life *l = user;
    cl_event first = NULL, second = NULL;
    llmk_events events = {0, NULL, &first};
    llmk_status status = case_run_enqueue(l->run, 0, &events);
    if (status == LLMK_OK) {
        events = (llmk_events){1, &first, &second};
        status = case_run_enqueue(l->run, 0, &events);
        clReleaseEvent(first);
    }
    if (status == LLMK_OK)
        clReleaseEvent(second);
    return status;
}

/* A workspace goes from a queue to another. */
static llmk_status call_elsewhere(void *user)
{
    const life *l = user;
    const case_op *op = l->run->line.op;
    const void *args = case_run_args(l->run, 0);
    clFinish(l->queue);
    LLMK_TRY(op->call(l->ctx, l->plain, args, NULL));
    clFinish(l->plain);
    return op->call(l->ctx, l->queue, args, NULL);
}

static void ignore_record(void *user, const llmk_profile_record *record)
{
    (void)user;
    (void)record;
}

static void live(const char *line)
{
    life l = {.line = line};
    char error[512];
    if (step("llmk_context_create", NULL, make_context, &l) &&
        step("device infos", NULL, look, &l) &&
        step("llmk_workspace_create", NULL, make_workspace, &l) &&
        step("llmk_weights_create", NULL, make_weights, &l) &&
        (l.gate = clCreateBuffer(llmk_context_cl_context(l.ctx), CL_MEM_READ_ONLY, 128, NULL,
                                 NULL)) != NULL &&
        step("llmk_moe_plan_create", NULL, make_plan, &l)) {
        l.queue =
            clCreateCommandQueue(llmk_context_cl_context(l.ctx), llmk_context_cl_device(l.ctx),
                                 CL_QUEUE_PROFILING_ENABLE, NULL);
        l.plain = clCreateCommandQueue(llmk_context_cl_context(l.ctx),
                                       llmk_context_cl_device(l.ctx), 0, NULL);
        l.run = call_case(l.ctx, l.queue, line, error, sizeof error);
        assert_non_null(l.run);
        llmk_context_set_profiler(l.ctx, ignore_record, NULL);
        if (step("llmk_prepare", line, prepare, &l) && step("the call", line, call_twice, &l) &&
            step("the calls on two queues", line, call_elsewhere, &l)) {
            const case_result result = case_run_check(l.run);
            if (!result.ok)
                complain("the results", line, result.message, LLMK_OK);
        }
        /* Callbacks hold the context: drain them before counting. */
        clFinish(l.queue);
        for (int i = 0; i < 5000 && atomic_load(&l.ctx->references) > 1 + 2; i++)
            clFinish(l.queue);
    }
    case_run_free(l.run);
    if (l.queue)
        clReleaseCommandQueue(l.queue);
    if (l.plain)
        clReleaseCommandQueue(l.plain);
    llmk_moe_plan_free(l.plan);
    if (l.gate)
        clReleaseMemObject(l.gate);
    llmk_weights_free(l.weights);
    llmk_workspace_free(l.workspace);
    llmk_context_free(l.ctx);
    for (int i = 0; i < OBJECT_COUNT; i++)
        if (atomic_load(&alive[i]) != 0)
            complain("the end", line, object_names[i], LLMK_OK);
}

/* ---- Plans ---- */

#define LOST    LLMK_DEVICE_LOST
#define ERROR   LLMK_OPENCL_ERROR
#define MEMORY  LLMK_OUT_OF_MEMORY
#define DMEMORY LLMK_OUT_OF_DEVICE_MEMORY

static const plan plans[] = {
    {CALL_malloc, 1, {MEMORY}},
    {CALL_calloc, 1, {MEMORY}},
    {CALL_realloc, 1, {MEMORY}},
    {CALL_strdup, 1, {MEMORY}},
    {CALL_clGetPlatformIDs, CL_OUT_OF_HOST_MEMORY, {MEMORY, LLMK_NO_DEVICE}},
    {CALL_clGetDeviceIDs, CL_OUT_OF_HOST_MEMORY, {MEMORY, LLMK_NO_DEVICE}},
    {CALL_clGetDeviceInfo, CL_OUT_OF_RESOURCES, {ERROR, LLMK_NO_DEVICE, DMEMORY}},
    {CALL_clGetMemObjectInfo, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clGetCommandQueueInfo, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clGetCommandQueueInfo, CL_INVALID_COMMAND_QUEUE, {LLMK_INVALID_QUEUE}},
    {CALL_clGetEventInfo, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clGetEventInfo, CL_INVALID_EVENT, {LLMK_INVALID_ARGUMENT, ERROR}}, /* theirs, ours */
    {CALL_clRetainCommandQueue, CL_OUT_OF_RESOURCES, {0}},
    {CALL_clRetainMemObject, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clRetainEvent, CL_OUT_OF_HOST_MEMORY, {0}},
    {CALL_clCreateContext, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clCreateContext, CL_OUT_OF_HOST_MEMORY, {MEMORY}},
    {CALL_clCreateContext, CL_DEVICE_NOT_AVAILABLE, {LOST}},
    {CALL_clCreateCommandQueue, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clCreateCommandQueue, CL_OUT_OF_HOST_MEMORY, {MEMORY}},
    {CALL_clCreateBuffer, CL_MEM_OBJECT_ALLOCATION_FAILURE, {DMEMORY}},
    {CALL_clCreateBuffer, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clCreateProgramWithSource, CL_OUT_OF_HOST_MEMORY, {MEMORY}},
    {CALL_clBuildProgram, CL_BUILD_PROGRAM_FAILURE, {LLMK_BUILD_FAILED}},
    {CALL_clBuildProgram, CL_OUT_OF_HOST_MEMORY, {MEMORY}},
    {CALL_clBuildProgram, -9999, {LOST}},
    {CALL_clCreateKernel, CL_OUT_OF_HOST_MEMORY, {MEMORY}},
    {CALL_clCreateKernel, CL_INVALID_KERNEL_NAME, {ERROR}},
    {CALL_clSetKernelArg, CL_INVALID_ARG_SIZE, {LLMK_INTERNAL}},
    {CALL_clSetKernelArg, CL_OUT_OF_HOST_MEMORY, {MEMORY}},
    {CALL_clSetKernelArg, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clEnqueueNDRangeKernel, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clEnqueueNDRangeKernel, CL_MEM_OBJECT_ALLOCATION_FAILURE, {DMEMORY}},
    {CALL_clEnqueueNDRangeKernel, -9999, {LOST}},
    {CALL_clEnqueueReadBuffer, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clEnqueueReadBuffer, -9999, {LOST}},
    {CALL_clEnqueueWriteBuffer, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clEnqueueMarkerWithWaitList, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clSetEventCallback, CL_OUT_OF_HOST_MEMORY, {0}},
    {CALL_clFinish, CL_OUT_OF_RESOURCES, {ERROR}},
    {CALL_clFinish, -9999, {LOST}},
};

#ifndef LINES
#define LINES "quantize scheme=int8-tensor n=3 k=24"
#endif
static const char *const lines[] = {LINES};

static void test_plan(void **state)
{
    current = *state;
    unsigned lives = 0;
    for (int i = 0; i < OBJECT_COUNT; i++) /* what an earlier plan may have left */
        atomic_store(&alive[i], 0);
    for (size_t i = 0; i < LLMK_COUNT(lines); i++)
        for (unsigned at = 1;; at = NEXT(at), lives++) {
            fault.which = current->which;
            fault.code = current->code;
            fault.at = at;
            fault.seen = 0;
            fault.fired = false;
            live(lines[i]);
            if (!fault.fired)
                break;
        }
    printf("%s, %d: %u times\n", call_names[current->which], (int)current->code, lives);
}

/* ---- What a prepared call does ---- */

/* Everything but setting arguments, enqueuing and asking what the arguments are. */
static const call not_on_the_path[] = {
    CALL_malloc,         CALL_calloc,           CALL_realloc,
    CALL_strdup,         CALL_clCreateContext,  CALL_clCreateCommandQueue,
    CALL_clCreateBuffer, CALL_clBuildProgram,   CALL_clCreateProgramWithSource,
    CALL_clCreateKernel, CALL_clFinish,         CALL_clEnqueueReadBuffer,
    CALL_clGetDeviceIDs, CALL_clGetPlatformIDs, CALL_clGetDeviceInfo,
};

/* llmk_prepare gets no buffers, and yet builds all that the call needs: that one neither builds nor
 * allocates, waits or reads. */
static void prepared_call(const arg_table *table, const char *fields)
{
    life l = {.line = fields};
    char text[512], error[512];
    snprintf(text, sizeof text, "%s %s", table->op, fields);
    assert_int_equal(make_context(&l), LLMK_OK);
    l.queue = case_queue_new(l.ctx);
    l.run = call_case(l.ctx, l.queue, text, error, sizeof error);
    if (!l.run)
        fail_msg("%s: %s", text, error);
    union {
        max_align_t align;
        unsigned char bytes[2048];
    } args;
    memcpy(args.bytes, case_run_args(l.run, 0), table->size);
    for (const arg_field *f = table->fields; f->name; f++)
        if (f->kind == ARG_INPUT || f->kind == ARG_OUTPUT)
            ((llmk_tensor *)(void *)(args.bytes + f->offset))->buffer = NULL;
        else if (f->kind == ARG_WORKSPACE)
            memset(args.bytes + f->offset, 0, f->size);
    assert_int_equal(llmk_prepare(l.ctx, l.run->line.op->op, args.bytes), LLMK_OK);
    memset(calls_made, 0, sizeof calls_made);
    fault.at = 0; /* none */
    armed = true;
    const llmk_status status = case_run_enqueue(l.run, 0, NULL);
    armed = false;
    if (status != LLMK_OK)
        fail_msg("%s: %s", text, llmk_error_message());
    for (size_t i = 0; i < LLMK_COUNT(not_on_the_path); i++)
        if (calls_made[not_on_the_path[i]] > 0)
            fail_msg("%s: a prepared call makes %u calls of %s", text,
                     calls_made[not_on_the_path[i]], call_names[not_on_the_path[i]]);
    case_run_free(l.run);
    clReleaseCommandQueue(l.queue);
    llmk_context_free(l.ctx);
}

static void test_prepared_calls(void **state)
{
    (void)state;
    for (size_t i = 0; i < LLMK_COUNT(arg_tables); i++)
        for (size_t n = 0; n < ARGS_MAX_LINES && arg_tables[i].lines[n]; n++)
            prepared_call(&arg_tables[i], arg_tables[i].lines[n]);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[LLMK_COUNT(plans) + 1];
    char names[LLMK_COUNT(plans)][64];
    unsetenv("LLMK_CACHE"); /* it would win over what the contexts here are given */
    unsetenv("LLMK_VARIANT");
    for (size_t i = 0; i < LLMK_COUNT(plans); i++) {
        snprintf(names[i], sizeof names[i], "%s_%d", call_names[plans[i].which],
                 -(int)plans[i].code);
        tests[i] =
            (struct CMUnitTest){names[i], test_plan, NULL, NULL, (void *)(uintptr_t)&plans[i]};
    }
    tests[LLMK_COUNT(plans)] = (struct CMUnitTest)cmocka_unit_test(test_prepared_calls);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
