/* test_threads.c - threads, queues and events: right results whoever calls from where, and cold
 * starts that several threads make at once. The sanitizers see what does not show in results. */
#include "cases/case_internal.h"
#include "core/core.h"
#include "llmk_cmocka.h"
#include "support/calls.h"
#include "support/rng.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define THREADS 4

/* Sizes of all kinds, every operator; few enough types that the programs are soon built. */
static const char *const lines[] = {
    "rmsnorm h=24 rows=3",
    "rmsnorm h=111 rows=7 r=f16 s=f16",
    "rmsnorm h=512 rows=9 over=x",
    "rmsnorm rows=0 h=8",
    "gated_activation d=64 rows=5",
    "gated_activation d=33 rows=2 layout=packed",
    "add cols=40 rows=3",
    "add cols=7 rows=20 gap=3",
    "quantize scheme=int8-tensor n=9 k=200",
    "quantize scheme=int8-tensor n=2 k=24",
    "quantize scheme=int4-asymmetric n=5 k=64 g=16",
    "dequantize scheme=int8-channel n=7 k=40",
    "error_report n=30 k=70",
    "linear m=1 n=48 k=192",
    "linear m=9 n=17 k=64 residual=f16",
    "gated_linear m=3 n=17 k=64",
};

/* Naps as long as a busy host may make them. */
static int
    long_naps; /* how many of them are left before the test fails; 0: naps are as asked for */

int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (!long_naps)
        return __real_nanosleep(time, left);
    assert_true(--long_naps > 0);
    return __real_nanosleep(&(struct timespec){.tv_nsec = 250000000}, left);
}

static void pause_us(long us)
{
    nanosleep(&(struct timespec){0, us * 1000}, NULL);
}

typedef struct worker {
    pthread_t thread;
    llmk_context *ctx;
    pthread_barrier_t *start;
    uint64_t seed;
    int rounds;
    char failure[CALL_TEXT + 128];
} worker;

static void *work(void *user)
{
    worker *w = user;
    rng r = {w->seed};
    char text[CALL_TEXT];
    pthread_barrier_wait(w->start);
    for (int i = 0; i < w->rounds && !w->failure[0]; i++) {
        const char *line = lines[rng_below(&r, LLMK_COUNT(lines))];
        const llmk_status status = call_and_check(w->ctx, line, text);
        if (status != LLMK_OK)
            snprintf(w->failure, sizeof w->failure, "%s: %s %s", line, llmk_status_string(status),
                     text);
    }
    return NULL;
}

/* Each thread has a queue of its own; thread i uses context i modulo `count`. */
static void work_on(llmk_context *const *contexts, size_t count, int rounds, uint64_t seed)
{
    static worker workers[THREADS];
    pthread_barrier_t start;
    memset(workers, 0, sizeof workers);
    pthread_barrier_init(&start, NULL, THREADS);
    for (size_t i = 0; i < THREADS; i++) {
        workers[i].ctx = contexts[i % count];
        workers[i].start = &start;
        workers[i].seed = seed + i;
        workers[i].rounds = rounds;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
    pthread_barrier_destroy(&start);
    for (size_t i = 0; i < THREADS; i++)
        if (workers[i].failure[0])
            fail_msg("thread %zu: %s", i, workers[i].failure);
}

static llmk_context *new_context(const char *cache)
{
    llmk_context *ctx;
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.cache_dir = cache;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    return ctx;
}

static void test_one_context(void **state)
{
    (void)state;
    llmk_context *ctx = new_context(NULL);
    work_on(&ctx, 1, 60, rng_seed("one context", 1).state);
    llmk_context_free(ctx);
}

static void test_two_contexts(void **state)
{
    (void)state;
    llmk_context *both[2] = {new_context(NULL), new_context(NULL)};
    work_on(both, 2, 30, rng_seed("two contexts", 2).state);
    llmk_context_free(both[0]);
    llmk_context_free(both[1]);
}

/* Nothing is built, probed or tested yet, and all threads come at once. */
static void test_cold_start(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        llmk_context *ctx = new_context("off");
        /* the same call of all threads first, then different ones */
        work_on(&ctx, 1, 4, round % 2 ? 40 + (uint64_t)round * THREADS : 7);
        llmk_context_free(ctx);
    }
}

/* Probes race as well: all threads get one answer. */
static void *ask(void *user)
{
    llmk_context *ctx = user;
    llmk_device_info *info = calloc(1, sizeof *info);
    info->struct_size = sizeof *info;
    if (llmk_context_device_info(ctx, info) != LLMK_OK)
        info->struct_size = 0;
    return info;
}

static void test_probes(void **state)
{
    (void)state;
    llmk_context *ctx = new_context("off");
    pthread_t threads[THREADS];
    llmk_device_info *infos[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, ctx), 0);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], (void **)&infos[i]), 0);
    for (size_t i = 0; i < THREADS; i++) {
        assert_memory_equal(infos[0], infos[i], sizeof *infos[0]);
        assert_int_equal(infos[i]->struct_size, sizeof *infos[0]);
    }
    for (size_t i = 0; i < THREADS; i++)
        free(infos[i]);
    llmk_context_free(ctx);
}

/* ---- Events ---- */

static cl_command_queue new_queue(llmk_context *ctx, cl_command_queue_properties properties)
{
    return clCreateCommandQueue(llmk_context_cl_context(ctx), llmk_context_cl_device(ctx),
                                properties, NULL);
}

static cl_int state_of(cl_event event)
{
    cl_int state = -12345;
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    return state;
}

static case_run *make_run(llmk_context *ctx, cl_command_queue queue, const char *line)
{
    char error[512];
    case_run *run = call_case(ctx, queue, line, error, sizeof error);
    if (!run)
        fail_msg("%s: %s", line, error);
    return run;
}

static void check_run(case_run *run)
{
    const case_result result = case_run_check(run);
    if (!result.ok)
        fail_msg("%s", result.message);
}

/* The first output's buffer; the caller frees it. */
static uint8_t *first_output(case_run *run, const case_item **item)
{
    *item = run->items;
    while ((*item)->t.role != CASE_OUTPUT)
        *item = (*item)->next;
    *item = (*item)->home;
    uint8_t *bytes = malloc((*item)->buffer_bytes);
    assert_non_null(bytes);
    assert_int_equal(clEnqueueReadBuffer(run->queue, (*item)->buffers[0], CL_TRUE, 0,
                                         (*item)->buffer_bytes, bytes, 0, NULL, NULL),
                     CL_SUCCESS);
    return bytes;
}

/* The call waits for what it is told to, its event comes when all its kernels are done, and what
 * they wrote is what an undisturbed call writes. */
static void gated_call(llmk_context *ctx, cl_command_queue queue, const char *line)
{
    case_run *run = make_run(ctx, queue, line);
    cl_event gate = clCreateUserEvent(llmk_context_cl_context(ctx), NULL), done = NULL;
    const llmk_events events = {1, &gate, &done};
    assert_int_equal(case_run_enqueue(run, 0, &events), LLMK_OK);
    assert_non_null(done);
    clFlush(queue);
    pause_us(2000);
    if (state_of(done) <= CL_COMPLETE)
        fail_msg("%s: did not wait", line);
    clSetUserEventStatus(gate, CL_COMPLETE);
    assert_int_equal(clWaitForEvents(1, &done), CL_SUCCESS);
    const case_item *item;
    uint8_t *gated = first_output(run, &item);
    const case_result result = case_run_check(run);
    if (!result.ok)
        fail_msg("%s: %s", line, result.message);
    uint8_t *checked = first_output(run, &item);
    if (memcmp(gated, checked, item->buffer_bytes) != 0)
        fail_msg("%s: the event came before the result", line);
    free(gated);
    free(checked);
    clReleaseEvent(gate);
    clReleaseEvent(done);
    case_run_free(run);
}

static void test_events(void **state)
{
    (void)state;
    llmk_context *ctx = new_context(NULL);
    const cl_command_queue_properties kinds[] = {0, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE};
    for (size_t kind = 0; kind < LLMK_COUNT(kinds); kind++) {
        cl_command_queue queue = new_queue(ctx, kinds[kind]);
        for (size_t i = 0; queue && i < LLMK_COUNT(lines); i++)
            gated_call(ctx, queue, lines[i]);
        if (queue)
            clReleaseCommandQueue(queue);
    }
    llmk_context_free(ctx);
}

/* A call on empty tensors has nothing to do, but keeps its place in an in-order queue. */
static void test_empty_call(void **state)
{
    (void)state;
    llmk_context *ctx = new_context(NULL);
    cl_command_queue queue = new_queue(ctx, 0);
    case_run *run = make_run(ctx, queue, "add rows=0 cols=8");
    cl_event gate = clCreateUserEvent(llmk_context_cl_context(ctx), NULL), behind = NULL,
             free_event = NULL;
    const llmk_events only_event = {0, NULL, &free_event}, only_wait = {1, &gate, NULL};
    assert_int_equal(case_run_enqueue(run, 0, NULL), LLMK_OK);
    assert_int_equal(case_run_enqueue(run, 0, &only_event), LLMK_OK);
    assert_int_equal(clWaitForEvents(1, &free_event), CL_SUCCESS);
    assert_int_equal(case_run_enqueue(run, 0, &only_wait), LLMK_OK);
    assert_int_equal(clEnqueueMarkerWithWaitList(queue, 0, NULL, &behind), CL_SUCCESS);
    clFlush(queue);
    pause_us(2000);
    assert_true(state_of(behind) > CL_COMPLETE);
    clSetUserEventStatus(gate, CL_COMPLETE);
    assert_int_equal(clWaitForEvents(1, &behind), CL_SUCCESS);
    clReleaseEvent(gate);
    clReleaseEvent(behind);
    clReleaseEvent(free_event);
    case_run_free(run);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

/* ---- Workspaces ---- */

/* A call with a workspace, and what holds it back. */
typedef struct workspace_call {
    case_run *run;
    const case_op *op;
    const void *args;
    cl_event gate;
} workspace_call;

static workspace_call new_call(llmk_context *ctx, cl_command_queue queue)
{
    case_run *run = make_run(ctx, queue, "quantize scheme=int8-tensor n=3 k=24");
    return (workspace_call){.run = run,
                            .op = run->line.op,
                            .args = case_run_args(run, 0),
                            .gate = clCreateUserEvent(llmk_context_cl_context(ctx), NULL)};
}

/* What it wrote is right. */
static void end_call(const workspace_call *call)
{
    check_run(call->run);
    clReleaseEvent(call->gate);
    case_run_free(call->run);
}

/* The first call is held back by an event; who else may have its workspace meanwhile? */
static void busy_case(llmk_context *ctx, bool same_queue, bool out_of_order, llmk_status wanted)
{
    const cl_command_queue_properties kind =
        out_of_order ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0;
    cl_command_queue first = new_queue(ctx, kind), other = new_queue(ctx, kind);
    cl_command_queue second = same_queue ? first : other;
    const workspace_call call = new_call(ctx, first);
    const case_op *op = call.op;
    const void *args = call.args;
    cl_event done = NULL, untouched = call.gate;
    const llmk_events held = {1, &call.gate, &done}, none = {0, NULL, &untouched};
    /* A refused call does not claim the workspace. */
    llmk_quantize_args bad;
    memcpy(&bad, args, sizeof bad);
    bad.flags = 1;
    assert_int_equal(op->call(ctx, second, &bad, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(op->call(ctx, first, args, &held), LLMK_OK);
    const llmk_status status = op->call(ctx, second, args, wanted == LLMK_OK ? NULL : &none);
    if (status != wanted)
        fail_msg("same queue %d, out of order %d: %s", same_queue, out_of_order,
                 llmk_status_string(status));
    if (status == LLMK_BUSY)
        assert_non_null(strstr(llmk_error_message(), "workspace"));
    assert_ptr_equal(untouched, call.gate);
    clSetUserEventStatus(call.gate, CL_COMPLETE);
    assert_int_equal(clFinish(first), CL_SUCCESS);
    assert_int_equal(clFinish(second), CL_SUCCESS);
    assert_int_equal(op->call(ctx, second, args, NULL), LLMK_OK);
    clReleaseEvent(done);
    end_call(&call);
    clReleaseCommandQueue(first);
    clReleaseCommandQueue(other);
}

static void test_busy(void **state)
{
    (void)state;
    llmk_context *ctx = new_context(NULL);
    busy_case(ctx, true, false, LLMK_OK); /* ordered behind the first */
    busy_case(ctx, false, false, LLMK_BUSY);
    cl_command_queue queue = new_queue(ctx, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    if (queue) {
        clReleaseCommandQueue(queue);
        busy_case(ctx, true, true, LLMK_BUSY);
        busy_case(ctx, false, true, LLMK_BUSY);
    }
    llmk_context_free(ctx);
}

/* A call that asked for no event is followed by one on another queue: refused before it is over, served
 * as soon as it is, every time and whatever became of the caller's reference to the queue. */
static void test_handover(void **state)
{
    (void)state;
    llmk_context *ctx = new_context(NULL);
    cl_command_queue queue = new_queue(ctx, 0), next = NULL;
    const workspace_call call = new_call(ctx, queue);
    const case_op *op = call.op;
    const void *args = call.args;
    for (int i = 0; i < 100; i++) {
        cl_command_queue own = new_queue(ctx, 0);
        assert_int_equal(op->call(ctx, own, args, NULL), LLMK_OK);
        clFinish(own);
        clReleaseCommandQueue(own);
    }
    next = new_queue(ctx, 0);
    const llmk_events held = {1, &call.gate, NULL};
    assert_int_equal(op->call(ctx, queue, args, &held), LLMK_OK);
    assert_int_equal(op->call(ctx, next, args, NULL), LLMK_BUSY);
    assert_int_equal(op->call(ctx, next, args, NULL), LLMK_BUSY);
    assert_int_equal(op->call(ctx, queue, args, NULL), LLMK_OK);
    clSetUserEventStatus(call.gate, CL_COMPLETE);
    clFinish(queue);
    assert_int_equal(op->call(ctx, next, args, NULL), LLMK_OK);
    clFinish(next);
    assert_int_equal(case_run_enqueue(call.run, 0, NULL), LLMK_OK);
    end_call(&call);
    clReleaseCommandQueue(queue);
    clReleaseCommandQueue(next);
    llmk_context_free(ctx);
}

/* A call is refused after the second that llmk.h speaks of, however long the waiting host's naps are. */
static void test_patience(void **state)
{
    (void)state;
    llmk_context *ctx = new_context(NULL);
    cl_command_queue queue = new_queue(ctx, 0), next = new_queue(ctx, 0);
    case_run *run = make_run(ctx, queue, "quantize scheme=int8-tensor n=3 k=24");
    const case_op *op = run->line.op;
    const void *args = case_run_args(run, 0);
    cl_event gate = clCreateUserEvent(llmk_context_cl_context(ctx), NULL);
    const llmk_events held = {1, &gate, NULL};
    assert_int_equal(op->call(ctx, queue, args, &held), LLMK_OK);
    long_naps = 6;
    const llmk_status status = op->call(ctx, next, args, NULL);
    long_naps = 0;
    assert_int_equal(status, LLMK_BUSY);
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(queue);
    clReleaseEvent(gate);
    case_run_free(run);
    clReleaseCommandQueue(queue);
    clReleaseCommandQueue(next);
    llmk_context_free(ctx);
}

/* Two threads with one workspace and a queue each: every call is served or refused, none is lost
 * and none is wrong. */
typedef struct sharer {
    pthread_t thread;
    llmk_context *ctx;
    const case_op *op;
    const void *args;
    int served, refused, failed;
} sharer;

static void *share(void *user)
{
    sharer *s = user;
    cl_command_queue queue = new_queue(s->ctx, 0);
    for (int i = 0; i < 200; i++) {
        const llmk_status status = s->op->call(s->ctx, queue, s->args, NULL);
        s->served += status == LLMK_OK;
        s->refused += status == LLMK_BUSY;
        s->failed += status != LLMK_OK && status != LLMK_BUSY;
    }
    clFinish(queue);
    clReleaseCommandQueue(queue);
    return NULL;
}

static void test_shared_workspace(void **state)
{
    (void)state;
    llmk_context *ctx = new_context(NULL);
    cl_command_queue queue = new_queue(ctx, 0);
    case_run *run = make_run(ctx, queue, "error_report n=30 k=70");
    assert_int_equal(case_run_enqueue(run, 0, NULL), LLMK_OK);
    clFinish(queue);
    sharer sharers[2];
    for (size_t i = 0; i < 2; i++) {
        sharers[i] = (sharer){.ctx = ctx, .op = run->line.op, .args = case_run_args(run, 0)};
        assert_int_equal(pthread_create(&sharers[i].thread, NULL, share, &sharers[i]), 0);
    }
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(sharers[i].thread, NULL), 0);
    assert_int_equal(sharers[0].failed + sharers[1].failed, 0);
    assert_true(sharers[0].served + sharers[1].served > 0);
    check_run(run);
    case_run_free(run);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

/* ---- The profiler ---- */

typedef struct records {
    pthread_mutex_t lock;
    unsigned count, odd;
    char op[32], variant[32], kernel[64];
} records;

static void on_record(void *user, const llmk_profile_record *record)
{
    records *r = user;
    pthread_mutex_lock(&r->lock);
    r->count++;
    r->odd += record->queued_ns > record->submitted_ns ||
              record->submitted_ns > record->started_ns || record->started_ns > record->ended_ns ||
              record->ended_ns == 0;
    snprintf(r->op, sizeof r->op, "%s", record->op);
    snprintf(r->variant, sizeof r->variant, "%s", record->variant);
    snprintf(r->kernel, sizeof r->kernel, "%s", record->kernel);
    pthread_mutex_unlock(&r->lock);
}

/* Callbacks come from a thread of the driver, perhaps after clFinish. */
static unsigned count_after(records *r, unsigned wanted)
{
    unsigned count = 0;
    for (int i = 0; i < 2000 && count < wanted; i++) {
        pthread_mutex_lock(&r->lock);
        count = r->count;
        pthread_mutex_unlock(&r->lock);
        pause_us(count < wanted ? 1000 : 0);
    }
    return count;
}

static void test_profiler(void **state)
{
    (void)state;
    records seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
    llmk_context *ctx = new_context(NULL);
    cl_command_queue plain = new_queue(ctx, 0);
    cl_command_queue profiled = new_queue(ctx, CL_QUEUE_PROFILING_ENABLE);
    case_run *run = make_run(ctx, profiled, "quantize scheme=int8-tensor n=3 k=24");
    const case_op *op = run->line.op;
    const void *args = case_run_args(run, 0);
    assert_int_equal(op->call(ctx, profiled, args, NULL), LLMK_OK); /* nobody listens yet */
    assert_int_equal(llmk_context_set_profiler(ctx, on_record, &seen), LLMK_OK);
    clFinish(profiled);
    assert_int_equal(op->call(ctx, plain, args, NULL), LLMK_OK);
    clFinish(plain);
    assert_int_equal(seen.count, 0);
    assert_int_equal(op->call(ctx, profiled, args, NULL), LLMK_OK);
    clFinish(profiled);
    const unsigned kernels = count_after(&seen, 2); /* two kernels at least */
    assert_true(kernels >= 2);
    pause_us(20000);
    pthread_mutex_lock(&seen.lock);
    const unsigned a_call = seen.count;
    assert_string_equal(seen.op, "quantize");
    assert_true(seen.variant[0] && seen.kernel[0]);
    assert_int_equal(seen.odd, 0);
    pthread_mutex_unlock(&seen.lock);
    for (int i = 0; i < 10; i++)
        assert_int_equal(op->call(ctx, profiled, args, NULL), LLMK_OK);
    clFinish(profiled);
    assert_int_equal(count_after(&seen, 11 * a_call), 11 * a_call);
    assert_int_equal(llmk_context_set_profiler(ctx, NULL, NULL), LLMK_OK);
    assert_int_equal(op->call(ctx, profiled, args, NULL), LLMK_OK);
    clFinish(profiled);
    pause_us(20000);
    assert_int_equal(seen.count, 11 * a_call);

    /* The context is freed before the kernel has run: the record holds it. */
    assert_int_equal(llmk_context_set_profiler(ctx, on_record, &seen), LLMK_OK);
    cl_event gate = clCreateUserEvent(llmk_context_cl_context(ctx), NULL);
    const llmk_events held = {1, &gate, NULL};
    case_run *late = make_run(ctx, profiled, "add cols=24 rows=3");
    assert_int_equal(case_run_enqueue(late, 0, &held), LLMK_OK);
    llmk_context_free(ctx);
    clFlush(profiled);
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(profiled);
    assert_int_equal(count_after(&seen, 11 * a_call + 1), 11 * a_call + 1);
    clReleaseEvent(gate);
    case_run_free(late);
    case_run_free(run);
    clReleaseCommandQueue(plain);
    clReleaseCommandQueue(profiled);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_context), cmocka_unit_test(test_two_contexts),
        cmocka_unit_test(test_cold_start),  cmocka_unit_test(test_probes),
        cmocka_unit_test(test_events),      cmocka_unit_test(test_empty_call),
        cmocka_unit_test(test_busy),        cmocka_unit_test(test_handover),
        cmocka_unit_test(test_patience),    cmocka_unit_test(test_shared_workspace),
        cmocka_unit_test(test_profiler),
    };
    unsetenv("LLMK_CACHE"); /* it would win over what the contexts here are given */
    unsetenv("LLMK_VARIANT");
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
