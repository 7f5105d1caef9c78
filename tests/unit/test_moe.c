/* test_moe.c - plans of mixture-of-experts layers: refusals, kernels enqueued, sharing, bits. */
#include "cases/moe_models.h"
#include "core/weights.h"
#include "ops/moe_plan.h"
#include "reference/linear_reference.h"
#include "support/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXPERTS = 4, HIDDEN = 24, WIDTH = 16, MOST = 100 };

typedef struct layer {
    llmk_weights *gate, *up, *down;
    cl_mem router, x, y;
    llmk_moe_desc desc;
} layer;

static float values[EXPERTS * HIDDEN * WIDTH];

static llmk_weights *make_weights(fixture *f, uint64_t experts, uint64_t n, uint64_t k)
{
    llmk_weights_desc d = LLMK_INIT(llmk_weights_desc);
    llmk_weights *w = NULL;
    d.format = LLMK_FORMAT_F32;
    d.experts = experts;
    d.n = n;
    d.k = k;
    d.data = (llmk_source){.host = values, .size = experts * n * k * sizeof *values};
    assert_true(d.data.size <= sizeof values);
    assert_int_equal(llmk_weights_create(f->ctx, &d, &w), LLMK_OK);
    return w;
}

static cl_mem make_buffer(fixture *f, const void *data, size_t bytes)
{
    cl_mem buffer = clCreateBuffer(llmk_context_cl_context(f->ctx),
                                   CL_MEM_READ_WRITE | (data ? CL_MEM_COPY_HOST_PTR : 0), bytes,
                                   (void *)(uintptr_t)data, NULL);
    assert_non_null(buffer);
    return buffer;
}

static layer make_layer(fixture *f)
{
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = (float)(i * 7919 % 257) / 128 - 1;
    layer l = {make_weights(f, EXPERTS, WIDTH, HIDDEN),
               make_weights(f, EXPERTS, WIDTH, HIDDEN),
               make_weights(f, EXPERTS, HIDDEN, WIDTH),
               make_buffer(f, values + 100, EXPERTS * HIDDEN * sizeof(float)),
               make_buffer(f, NULL, (MOST + 1) * HIDDEN * sizeof(float)),
               make_buffer(f, NULL, (MOST + 1) * HIDDEN * sizeof(float)),
               LLMK_INIT(llmk_moe_desc)};
    float *x = malloc(MOST * HIDDEN * sizeof *x);
    for (size_t i = 0; i < (size_t)MOST * HIDDEN; i++)
        x[i] = (float)(i * 104729 % 1009) / 512 - 1;
    assert_int_equal(clEnqueueWriteBuffer(f->queue, l.x, CL_TRUE, 0, MOST * HIDDEN * sizeof *x, x,
                                          0, NULL, NULL),
                     CL_SUCCESS);
    free(x);
    l.desc.x_dtype = LLMK_F32;
    l.desc.experts_a_token = 2;
    l.desc.score = LLMK_MOE_SOFTMAX;
    l.desc.gate = llmk_matrix(l.router, LLMK_F32, EXPERTS, HIDDEN);
    l.desc.activation = LLMK_SILU;
    l.desc.gate_weights = l.gate;
    l.desc.up_weights = l.up;
    l.desc.down_weights = l.down;
    return l;
}

static void free_layer(layer *l)
{
    llmk_weights_free(l->gate);
    llmk_weights_free(l->up);
    llmk_weights_free(l->down);
    clReleaseMemObject(l->router);
    clReleaseMemObject(l->x);
    clReleaseMemObject(l->y);
}

static llmk_moe_plan *make_plan(fixture *f, const layer *l)
{
    llmk_moe_plan *plan = NULL;
    if (llmk_moe_plan_create(f->ctx, &l->desc, MOST, &plan) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    return plan;
}

static llmk_moe_forward_args make_args(const layer *l, llmk_moe_plan *plan, uint64_t tokens)
{
    llmk_moe_forward_args a = LLMK_INIT(llmk_moe_forward_args);
    a.plan = plan;
    a.x = llmk_matrix(l->x, LLMK_F32, tokens, HIDDEN);
    a.y = llmk_matrix(l->y, LLMK_F32, tokens, HIDDEN);
    return a;
}

/* ---- Refusals ---- */

static void refuse(fixture *f, const llmk_moe_desc *d, uint64_t tokens, llmk_status wanted,
                   const char *word)
{
    llmk_moe_plan *plan = (llmk_moe_plan *)(uintptr_t)1;
    const llmk_status status = llmk_moe_plan_create(f->ctx, d, tokens, &plan);
    if (status != wanted || !strstr(llmk_error_message(), word))
        fail_msg("%s: %s; expected %s and \"%s\"", llmk_status_string(status),
                 status == LLMK_OK ? "" : llmk_error_message(), llmk_status_string(wanted), word);
    assert_null(plan);
}

/* The limits that the header states, without the memory that they would take. */
static void test_sizes(void **state)
{
    fixture *f = *state;
    const uint64_t least = (uint64_t)1 << 30; /* that is refused */
    size_t count;
    llmk_moe_route_args r = LLMK_INIT(llmk_moe_route_args);
    r.score = LLMK_MOE_SOFTMAX;
    r.logits = llmk_matrix(NULL, LLMK_F32, least / 64, 64);
    r.ids = llmk_matrix(NULL, LLMK_I32, least / 64, 2);
    r.weights = llmk_matrix(NULL, LLMK_F32, least / 64, 2);
    assert_int_equal(llmk_explain(f->ctx, LLMK_OP_MOE_ROUTE, &r, NULL, 0, &count),
                     LLMK_INVALID_SHAPE);
    assert_non_null(strstr(llmk_error_message(), "logits has 16777216 tokens of 64 experts; "
                                                 "expected less than 2^30 logits"));
    llmk_moe_permute_args p = LLMK_INIT(llmk_moe_permute_args);
    p.experts = 64;
    p.ids = p.inverse = llmk_matrix(NULL, LLMK_I32, least / 2, 2);
    p.offsets = llmk_vector(NULL, LLMK_I32, 65);
    p.source = llmk_vector(NULL, LLMK_I32, least);
    assert_int_equal(llmk_explain(f->ctx, LLMK_OP_MOE_PERMUTE, &p, NULL, 0, &count),
                     LLMK_INVALID_SHAPE);
    assert_non_null(strstr(llmk_error_message(),
                           "ids has 1073741824 elements; at most 1073741823 are supported"));
    llmk_moe_unpermute_args u = LLMK_INIT(llmk_moe_unpermute_args);
    u.rows = llmk_matrix(NULL, LLMK_F32, least, 8);
    u.inverse = llmk_matrix(NULL, LLMK_I32, 1, 1);
    u.y = llmk_matrix(NULL, LLMK_F32, 1, 8);
    assert_int_equal(llmk_explain(f->ctx, LLMK_OP_MOE_UNPERMUTE, &u, NULL, 0, &count),
                     LLMK_INVALID_SHAPE);
    assert_non_null(strstr(llmk_error_message(), "1073741824 rows; expected rank 2, and at most "
                                                 "1073741823"));
}

static void test_plan_refusals(void **state)
{
    fixture *f = *state;
    layer l = make_layer(f);
    llmk_weights *wide = make_weights(f, EXPERTS, WIDTH / 2, HIDDEN);
    llmk_weights *one = make_weights(f, 1, WIDTH, HIDDEN);
    llmk_moe_desc d;
#define REFUSE(status, word, change)                                                               \
    do {                                                                                           \
        d = l.desc;                                                                                \
        change;                                                                                    \
        refuse(f, &d, 8, status, word);                                                            \
    } while (0)
    llmk_weights *no_rows = make_weights(f, 1, 0, HIDDEN);
    llmk_weights *no_columns = make_weights(f, 1, HIDDEN, 0);
    refuse(f, NULL, 8, LLMK_INVALID_ARGUMENT, "moe_plan: desc is NULL");
    assert_int_equal(llmk_moe_plan_create(NULL, &l.desc, 8, &(llmk_moe_plan *){NULL}),
                     LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_moe_plan_create(f->ctx, &l.desc, 8, NULL), LLMK_INVALID_ARGUMENT);
    refuse(f, &l.desc, 0, LLMK_INVALID_ARGUMENT, "max_tokens");
    refuse(f, &l.desc, (uint64_t)1 << 28, LLMK_INVALID_ARGUMENT,
           "max_tokens is 268435456; expected 1 to 268435455");
    refuse(f, &l.desc, UINT64_MAX, LLMK_INVALID_ARGUMENT, "max_tokens");
    refuse(f, &l.desc, 250000000, LLMK_OUT_OF_DEVICE_MEMORY, "max_tokens");
    REFUSE(LLMK_INVALID_ARGUMENT, "desc.struct_size is 16", d.struct_size = 16);
    REFUSE(LLMK_INVALID_DTYPE, "x_dtype", d.x_dtype = LLMK_I8);
    REFUSE(LLMK_INVALID_DTYPE, "inner", d.inner = LLMK_I8);
    REFUSE(LLMK_INVALID_ARGUMENT, "experts_a_token", d.experts_a_token = 0);
    REFUSE(LLMK_INVALID_ARGUMENT, "experts_a_token", d.experts_a_token = EXPERTS + 1);
    REFUSE(LLMK_INVALID_ARGUMENT, "score", d.score = (llmk_moe_score)5);
    REFUSE(LLMK_INVALID_ARGUMENT, "score", d.gate = (llmk_tensor){0});
    REFUSE(LLMK_INVALID_ARGUMENT, "flags", d.flags = 2);
    REFUSE(LLMK_INVALID_ARGUMENT, "groups", d.groups = 3);
    REFUSE(LLMK_INVALID_ARGUMENT, "top_groups", d.groups = 4; d.top_groups = 1);
    REFUSE(LLMK_INVALID_ARGUMENT, "activation", d.activation = LLMK_ACTIVATION_NONE);
    REFUSE(LLMK_INVALID_ARGUMENT, "limit", d.limit = 3);
    REFUSE(LLMK_INVALID_ARGUMENT, "up_weights", d.layout = LLMK_GATE_PACKED);
    REFUSE(LLMK_INVALID_ARGUMENT, "gate_weights", d.gate_weights = NULL);
    REFUSE(LLMK_INVALID_ARGUMENT, "up_weights", d.up_weights = NULL);
    REFUSE(LLMK_INVALID_ARGUMENT, "down_weights", d.down_weights = NULL);
    REFUSE(LLMK_INVALID_SHAPE, "up_weights", d.up_weights = wide);
    REFUSE(LLMK_INVALID_SHAPE, "down_weights", d.down_weights = l.gate);
    REFUSE(LLMK_INVALID_SHAPE, "experts", d.up_weights = one);
    REFUSE(LLMK_INVALID_SHAPE, "gate", d.gate.dim[0]--);
    REFUSE(LLMK_INVALID_SHAPE, "down_bias",
           d.down_bias = llmk_matrix(l.x, LLMK_F32, EXPERTS, HIDDEN + 1));
    REFUSE(LLMK_INVALID_ARGUMENT, "shared_router",
           d.shared_router = llmk_matrix(l.x, LLMK_F32, 1, HIDDEN));
    REFUSE(LLMK_INVALID_ARGUMENT, "shared_up_weights", d.shared_up_weights = one);
    REFUSE(LLMK_INVALID_ARGUMENT, "shared_up_weights", d.shared_gate_weights = one);
    REFUSE(LLMK_INVALID_SHAPE, "gate", d.map = llmk_vector(l.x, LLMK_I32, 9));
    REFUSE(LLMK_INVALID_SHAPE, "shared_gate_weights are empty", d.shared_gate_weights = no_rows;
           d.shared_up_weights = no_rows; d.shared_down_weights = no_columns);
#undef REFUSE
    llmk_moe_plan *plan = make_plan(f, &l);
    llmk_moe_forward_args a = make_args(&l, plan, MOST);
    a.x.dim[0] = a.y.dim[0] = MOST + 1;
    assert_int_equal(llmk_moe_forward(f->ctx, f->queue, &a, NULL), LLMK_INVALID_SHAPE);
    assert_non_null(strstr(llmk_error_message(), "the plan"));
    llmk_moe_plan_free(plan);
    llmk_moe_plan_free(NULL);
    assert_int_equal(llmk_moe_plan_kernels(NULL, 8), 0);
    llmk_weights_free(wide);
    llmk_weights_free(one);
    llmk_weights_free(no_rows);
    llmk_weights_free(no_columns);
    free_layer(&l);
}

/* GPTQ weights of two experts [64, 64] in act-order. */
static llmk_weights *make_ordered(fixture *f, uint32_t seed)
{
    linear_weights one = {.format = LLMK_FORMAT_GPTQ_V2,
                          .n = 64,
                          .k = 64,
                          .group = 16,
                          .bits = 4,
                          .scale_type = LLMK_F16,
                          .order = LINEAR_ACT_ORDER};
    linear_weights_set_sizes(&one);
    one.data = calloc(1, one.data_bytes);
    one.scales = calloc(1, one.scales_bytes);
    one.zeros = calloc(1, one.zeros_bytes);
    one.g_idx = calloc(1, one.g_idx_bytes);
    assert_true(linear_weights_fill(&one, seed));
    llmk_weights_desc d = linear_weights_describe(&one);
    const llmk_expert_source same = {d.data, d.scales, d.zeros, d.g_idx}, both[2] = {same, same};
    d.data = d.scales = d.zeros = d.g_idx = (llmk_source){0};
    d.experts = 2;
    d.expert_sources = both;
    llmk_weights *w = NULL;
    if (llmk_weights_create(f->ctx, &d, &w) != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    free(one.data);
    free(one.scales);
    free(one.zeros);
    free(one.g_idx);
    return w;
}

/* Gate and up are read with one order. */
static void test_orders(void **state)
{
    fixture *f = *state;
    llmk_weights *a = make_ordered(f, 1), *b = make_ordered(f, 1), *other = make_ordered(f, 2);
    llmk_moe_desc d = LLMK_INIT(llmk_moe_desc);
    llmk_moe_plan *plan = NULL;
    d.x_dtype = LLMK_F16;
    d.experts_a_token = 1;
    d.activation = LLMK_SILU;
    d.gate_weights = a;
    d.up_weights = other;
    d.down_weights = a;
    refuse(f, &d, 8, LLMK_UNSUPPORTED, "up_weights have another g_idx");
    d.up_weights = b;
    assert_int_equal(llmk_moe_plan_create(f->ctx, &d, 8, &plan), LLMK_OK);
    llmk_moe_plan_free(plan);
    llmk_weights_free(a);
    llmk_weights_free(b);
    llmk_weights_free(other);
}

/* What a call writes must lie outside of the plan's tensors as well as of its own. */
static void test_overlaps(void **state)
{
    enum { MAPPED = 6 };
    static const int32_t map[MAPPED] = {0, -1, 1, 2, -1, 3};
    static const llmk_gate_layout layouts[] = {LLMK_GATE_SPLIT, LLMK_GATE_PACKED,
                                               LLMK_GATE_INTERLEAVED};
    fixture *f = *state;
    layer l = make_layer(f);
    llmk_weights *both = make_weights(f, EXPERTS, 2 * WIDTH, HIDDEN / 2),
                 *down = make_weights(f, EXPERTS, HIDDEN / 2, WIDTH),
                 *up = make_weights(f, EXPERTS, WIDTH, HIDDEN / 2),
                 *gate = make_weights(f, EXPERTS, WIDTH, HIDDEN / 2),
                 *shared_down = make_weights(f, 1, HIDDEN / 2, WIDTH),
                 *shared = make_weights(f, 1, WIDTH, HIDDEN / 2),
                 *shared_both = make_weights(f, 1, 2 * WIDTH, HIDDEN / 2);
    const uint64_t hidden = HIDDEN / 2, bytes = sizeof values;
    cl_mem whole = make_buffer(f, NULL, 8 * bytes);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const bool split = layouts[i] == LLMK_GATE_SPLIT;
        const uint64_t wide = split ? WIDTH : 2 * WIDTH;
        llmk_moe_desc d = l.desc;
        llmk_moe_plan *plan = NULL;
        d.layout = layouts[i];
        d.gate_weights = split ? gate : both;
        d.up_weights = split ? up : NULL;
        d.down_weights = down;
        d.shared_gate_weights = split ? shared : shared_both;
        d.shared_up_weights = split ? shared : NULL;
        d.shared_down_weights = shared_down;
        d.gate = llmk_matrix_strided(whole, 0, LLMK_F32, MAPPED, hidden, hidden);
        d.router_bias = llmk_vector(whole, LLMK_F32, MAPPED);
        d.router_bias.offset = bytes;
        d.correction = llmk_vector(whole, LLMK_F32, MAPPED);
        d.correction.offset = 2 * bytes;
        d.map = llmk_vector(whole, LLMK_I32, MAPPED);
        d.map.offset = 3 * bytes;
        d.gate_bias = llmk_matrix_strided(whole, 4 * bytes, LLMK_F32, EXPERTS, wide, 100);
        if (split)
            d.up_bias = llmk_matrix_strided(whole, 5 * bytes, LLMK_F32, EXPERTS, wide, 100);
        d.down_bias = llmk_matrix_strided(whole, 6 * bytes, LLMK_F32, EXPERTS, hidden, hidden);
        d.shared_router = llmk_matrix_strided(whole, 7 * bytes, LLMK_F32, 1, hidden, hidden);
        assert_int_equal(clEnqueueWriteBuffer(f->queue, whole, CL_TRUE, 3 * bytes, sizeof map, map,
                                              0, NULL, NULL),
                         CL_SUCCESS);
        if (llmk_moe_plan_create(f->ctx, &d, 4, &plan) != LLMK_OK)
            fail_msg("%s", llmk_error_message());
        static const char *const names[] = {"gate",      "router_bias",  "correction",
                                            "map",       "gate_bias",    "up_bias",
                                            "down_bias", "shared_router"};
        for (size_t at = 0; at < 8; at++) {
            llmk_moe_forward_args a = make_args(&l, plan, 4);
            char sentence[80];
            a.x = llmk_matrix_strided(l.x, 0, LLMK_F32, 4, hidden, hidden);
            a.y = llmk_matrix_strided(whole, at * bytes + 4, LLMK_F32, 4, hidden, hidden);
            snprintf(sentence, sizeof sentence, "y overlaps the plan's %s", names[at]);
            if (!split && at == 5) {
                assert_int_equal(llmk_moe_forward(f->ctx, f->queue, &a, NULL), LLMK_OK);
                continue;
            }
            assert_int_equal(llmk_moe_forward(f->ctx, f->queue, &a, NULL), LLMK_OVERLAP);
            assert_non_null(strstr(llmk_error_message(), sentence));
        }
        /* The second half of the gate's biases is up's, and what lies beside it nobody's. */
        llmk_moe_forward_args a = make_args(&l, plan, 4);
        a.x = llmk_matrix_strided(l.x, 0, LLMK_F32, 4, hidden, hidden);
        a.y = llmk_matrix_strided(whole, 4 * bytes + 20 * sizeof(float), LLMK_F32, 4, hidden, 100);
        assert_int_equal(llmk_moe_forward(f->ctx, f->queue, &a, NULL),
                         split ? LLMK_OK : LLMK_OVERLAP);
        a.y.offset = 4 * bytes + 40 * sizeof(float);
        assert_int_equal(llmk_moe_forward(f->ctx, f->queue, &a, NULL), LLMK_OK);
        clFinish(f->queue);
        llmk_moe_plan_free(plan);
    }
    clReleaseMemObject(whole);
    llmk_weights *const all[] = {both, down, up, gate, shared_down, shared, shared_both};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        llmk_weights_free(all[i]);
    free_layer(&l);
}

/* ---- Kernels ---- */

typedef struct counter {
    pthread_mutex_t lock;
    uint32_t count;
} counter;

static void count_record(void *user, const llmk_profile_record *record)
{
    counter *c = user;
    assert_string_equal(record->op, "moe_forward");
    pthread_mutex_lock(&c->lock);
    c->count++;
    pthread_mutex_unlock(&c->lock);
}

/* Records arrive from a thread of the driver, perhaps after clFinish. */
static uint32_t settled(counter *c, uint32_t wanted)
{
    uint32_t count = 0;
    for (int i = 0; i < 2000; i++) {
        pthread_mutex_lock(&c->lock);
        count = c->count;
        pthread_mutex_unlock(&c->lock);
        if (count >= wanted)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return count;
}

static void test_kernels(void **state)
{
    static const uint64_t tokens[] = {1, 2, 8, 9, 33, MOST};
    fixture *f = *state;
    layer l = make_layer(f);
    llmk_moe_plan *plan = make_plan(f, &l);
    cl_command_queue queue =
        clCreateCommandQueue(llmk_context_cl_context(f->ctx), llmk_context_cl_device(f->ctx),
                             CL_QUEUE_PROFILING_ENABLE, NULL);
    assert_non_null(queue);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        counter c = {PTHREAD_MUTEX_INITIALIZER, 0};
        llmk_moe_forward_args a = make_args(&l, plan, tokens[i]);
        assert_int_equal(llmk_prepare(f->ctx, LLMK_OP_MOE_FORWARD, &a), LLMK_OK);
        llmk_context_set_profiler(f->ctx, count_record, &c);
        assert_int_equal(llmk_moe_forward(f->ctx, queue, &a, NULL), LLMK_OK);
        clFinish(queue);
        const uint32_t said = llmk_moe_plan_kernels(plan, tokens[i]);
        assert_int_equal(settled(&c, said), said);
        llmk_context_set_profiler(f->ctx, NULL, NULL);
        assert_true(tokens[i] > 8 || said <= 4);
    }
    assert_int_equal(llmk_moe_plan_kernels(plan, 0), 0);
    clReleaseCommandQueue(queue);
    llmk_moe_plan_free(plan);
    free_layer(&l);
}

/* NULL: any but ref. */
static void served_by(fixture *f, const llmk_moe_forward_args *a, const char *name)
{
    llmk_variant_info infos[16];
    size_t count, chosen = 0;
    assert_int_equal(llmk_explain(f->ctx, LLMK_OP_MOE_FORWARD, a, infos, 16, &count), LLMK_OK);
    assert_true(count <= 16);
    while (chosen < count && infos[chosen].verdict != LLMK_VERDICT_CHOSEN)
        chosen++;
    assert_true(chosen < count);
    if (name)
        assert_string_equal(infos[chosen].name, name);
    else
        assert_string_not_equal(infos[chosen].name, "ref");
}

/* A layer takes ref where a device has no room for any of its stages, the router's and the sort too. */
static void test_small_devices(void **state)
{
    fixture *f = *state;
    layer l = make_layer(f);
    llmk_moe_plan *plan = make_plan(f, &l);
    llmk_moe_forward_args a = make_args(&l, plan, 5), given = a;
    cl_mem ids = make_buffer(f, NULL, 5 * 2 * sizeof(cl_int));
    given.ids = llmk_matrix(ids, LLMK_I32, 5, 2);
    given.weights = llmk_matrix(l.router, LLMK_F32, 5, 2);
    const llmk_caps caps = f->ctx->caps;
    served_by(f, &a, NULL);
    f->ctx->caps.local_bytes = 1024; /* the choice takes more */
    served_by(f, &a, "ref");
    served_by(f, &given, NULL);
    f->ctx->caps = caps;
    f->ctx->caps.max_work_group = 128; /* the sort takes 256 */
    served_by(f, &a, "ref");
    served_by(f, &given, "ref");
    f->ctx->caps = caps;
    clReleaseMemObject(ids);
    llmk_moe_plan_free(plan);
    free_layer(&l);
}

/* ---- Sharing ---- */

static void test_busy(void **state)
{
    fixture *f = *state;
    layer l = make_layer(f);
    llmk_moe_plan *plan = make_plan(f, &l);
    llmk_moe_forward_args a = make_args(&l, plan, 5);
    cl_command_queue other = case_queue_new(f->ctx);
    cl_event gate = clCreateUserEvent(llmk_context_cl_context(f->ctx), NULL);
    const llmk_events wait = {1, &gate, NULL};
    assert_int_equal(llmk_moe_forward(f->ctx, f->queue, &a, &wait), LLMK_OK);
    assert_int_equal(llmk_moe_forward(f->ctx, other, &a, NULL), LLMK_BUSY);
    assert_non_null(strstr(llmk_error_message(), "plan"));
    assert_int_equal(llmk_moe_forward(f->ctx, f->queue, &a, NULL), LLMK_OK);
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(f->queue);
    assert_int_equal(llmk_moe_forward(f->ctx, other, &a, NULL), LLMK_OK);
    clFinish(other);
    clReleaseEvent(gate);
    clReleaseCommandQueue(other);
    llmk_moe_plan_free(plan);
    free_layer(&l);
}

/* ---- Bits ---- */

static void run(fixture *f, const layer *l, llmk_moe_plan *plan, uint64_t tokens,
                cl_command_queue queue, float *y)
{
    const llmk_moe_forward_args a = make_args(l, plan, tokens);
    cl_event done = NULL;
    const llmk_events events = {0, NULL, &done};
    const float poison = -1e30f;
    clEnqueueFillBuffer(f->queue, l->y, &poison, sizeof poison, 0, MOST * HIDDEN * sizeof *y, 0,
                        NULL, NULL);
    clFinish(f->queue);
    assert_int_equal(llmk_moe_forward(f->ctx, queue, &a, &events), LLMK_OK);
    clWaitForEvents(1, &done);
    clReleaseEvent(done);
    assert_int_equal(clEnqueueReadBuffer(f->queue, l->y, CL_TRUE, 0, tokens * HIDDEN * sizeof *y, y,
                                         0, NULL, NULL),
                     CL_SUCCESS);
}

/* The same call gives the same bits, on a new plan and on an out-of-order queue too. */
static void test_same_bits(void **state)
{
    static const uint64_t tokens[] = {3, MOST};
    static float first[MOST * HIDDEN], again[MOST * HIDDEN];
    fixture *f = *state;
    layer l = make_layer(f);
    cl_command_queue loose =
        clCreateCommandQueue(llmk_context_cl_context(f->ctx), llmk_context_cl_device(f->ctx),
                             CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, NULL);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        llmk_moe_plan *plan = make_plan(f, &l), *other = make_plan(f, &l);
        run(f, &l, plan, tokens[i], f->queue, first);
        for (int round = 0; round < 5; round++) {
            run(f, &l, round % 2 ? plan : other, tokens[i], loose && round > 2 ? loose : f->queue,
                again);
            assert_memory_equal(first, again, tokens[i] * HIDDEN * sizeof *first);
        }
        llmk_moe_plan_free(plan);
        llmk_moe_plan_free(other);
    }
    if (loose)
        clReleaseCommandQueue(loose);
    free_layer(&l);
}

/* A plan keeps its context and the description's buffers. */
static void test_owns(void **state)
{
    fixture *f = *state;
    layer l = make_layer(f);
    static float first[MOST * HIDDEN], again[MOST * HIDDEN];
    llmk_moe_plan *plan = make_plan(f, &l);
    run(f, &l, plan, 9, f->queue, first);
    clReleaseMemObject(l.router);
    l.router = make_buffer(f, NULL, 64);
    run(f, &l, plan, 9, f->queue, again);
    assert_memory_equal(first, again, 9 * HIDDEN * sizeof *first);
    llmk_moe_plan_free(plan);
    free_layer(&l);
}

/* ---- Models ---- */

static void test_models(void **state)
{
    (void)state;
    assert_null(moe_model_find("no such model"));
    for (size_t i = 0; moe_model_names[i]; i++) {
        const moe_model *m = moe_model_find(moe_model_names[i]);
        assert_ptr_equal(m, &moe_models[i]);
        for (uint64_t scale = 1; scale <= 1024; scale *= 2) {
            const moe_model s = moe_model_scaled(m, scale);
            const uint64_t groups = s.groups ? s.groups : 1, kept = s.groups ? s.top_groups : 1;
            assert_true(s.k >= 1 && s.k <= s.experts && s.experts <= 1024);
            assert_int_equal(s.experts % groups, 0);
            assert_true(s.experts / groups * kept >= s.k);
            assert_true(s.hidden >= 64 && s.width >= 64);
        }
    }
}

/* The kernel that routes few pairs gathers rows. */
static void test_gathering(void **state)
{
    (void)state;
    const llmk_weights w = {.layout = LLMK_LAYOUT_F16_PORTABLE, .segment_count = 1};
    llmk_context ctx = {.caps = {.type = CL_DEVICE_TYPE_GPU,
                                 .vendor = LLMK_VENDOR_NVIDIA,
                                 .compute_units = 132,
                                 .max_work_group = 1024,
                                 .local_bytes = 48 << 10}};
    llmk_moe_plan plan = {.ctx = &ctx,
                          .x_dtype = LLMK_F16,
                          .inner = LLMK_F16,
                          .k = 8,
                          .id_end = 64,
                          .held = 64,
                          .hidden = 1 << 26,
                          .routing = {.groups = 1},
                          .gate_weights = &w,
                          .down_weights = &w};
    moe_steps few = llmk_moe_steps(&plan, 8, false, &llmk_grouped_nv90);
    moe_steps more = llmk_moe_steps(&plan, 65, false, &llmk_grouped_nv90);
    assert_true(few.route_few && few.gathers && !more.route_few && !more.gathers);
    assert_int_equal(more.kernels, few.kernels + 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sizes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_plan_refusals, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_orders, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_overlaps, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_kernels, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_small_devices, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_busy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_same_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_owns, set_up, tear_down),
        cmocka_unit_test(test_gathering),
        cmocka_unit_test(test_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
