/*
 * test_shared_tiles.c - the workspace of llmk_linear whose parts of tiles meet in it: which ones
 * are taken, what calls that take turns with one leave in it, and that calls without a use for one
 * leave it alone.
 */
#include "cases/case_internal.h"
#include "ops/operator.h"
#include "support/calls.h"
#include "support/device.h"

#include <stdlib.h>

#define LINES 3

typedef struct kind {
    const char *variant;
    const char *lines[LINES];
} kind;

#define PACKED(name)                                                                               \
    {                                                                                              \
        name,                                                                                      \
        {                                                                                          \
            "linear m=40 n=448 k=1152 w=w4 group=64 y=f32 layout=nv",                              \
                "linear m=40 n=448 k=2112 w=w4 group=128 y=f32 layout=nv",                         \
                "linear m=140 n=150 k=1056 w=w8 y=f32 layout=nv"                                   \
        }                                                                                          \
    }
#define TILED(name)                                                                                \
    {                                                                                              \
        name,                                                                                      \
        {                                                                                          \
            "linear m=20 n=264 k=544 y=f32", "linear m=140 n=264 k=544 x=bf16 w=bf16 y=f32",       \
                "linear m=20 n=264 k=576 y=f32"                                                    \
        }                                                                                          \
    }
static kind emulated_packed = PACKED("linear:emulated-nv-packed"),
            packed = PACKED("linear:nv-packed"), emulated_tiled = TILED("linear:emulated-nv"),
            tiled = TILED("linear:nv");

static case_run *make_run(const fixture *f, const char *line)
{
    char error[512];
    case_run *run = call_case(f->ctx, f->queue, line, error, sizeof error);
    if (!run)
        fail_msg("%s: %s", line, error);
    return run;
}

static llmk_linear_args args_of(const case_run *run)
{
    llmk_linear_args args;
    memcpy(&args, case_run_args(run, 0), sizeof args);
    return args;
}

static uint64_t needed(const fixture *f, const llmk_linear_args *args)
{
    uint64_t bytes = 0;
    assert_int_equal(llmk_linear_workspace_size(f->ctx, args, &bytes), LLMK_OK);
    return bytes;
}

static llmk_workspace *new_workspace(llmk_context *ctx, uint64_t bytes)
{
    llmk_workspace *w = NULL;
    assert_int_equal(llmk_workspace_create(ctx, bytes, &w), LLMK_OK);
    return w;
}

static void assert_counts_are_zero(const fixture *f, const llmk_workspace *w)
{
    static uint32_t counts[LLMK_WORKSPACE_COUNTS];
    assert_int_equal(
        clEnqueueReadBuffer(f->queue, w->counts, CL_TRUE, 0, sizeof counts, counts, 0, NULL, NULL),
        CL_SUCCESS);
    for (size_t i = 0; i < LLMK_WORKSPACE_COUNTS; i++)
        assert_int_equal(counts[i], 0);
}

static uint8_t *read_y(const fixture *f, const llmk_tensor *y, size_t bytes)
{
    uint8_t *values = malloc(bytes);
    assert_non_null(values);
    assert_int_equal(
        clEnqueueReadBuffer(f->queue, y->buffer, CL_TRUE, y->offset, bytes, values, 0, NULL, NULL),
        CL_SUCCESS);
    return values;
}

/* All sizes with one workspace, behind each other: right, and the same bits again. */
static void test_turns(void **state)
{
    const kind *tested = *state;
    fixture f;
    if (!open_fixture(&f, tested->variant)) {
        close_fixture(&f);
        skip();
    }
    case_run *runs[LINES];
    llmk_linear_args args[LINES];
    llmk_workspace *w = NULL;
    uint8_t *first[LINES];
    size_t size[LINES];
    for (size_t i = 0; i < LINES; i++) {
        runs[i] = make_run(&f, tested->lines[i]);
        args[i] = args_of(runs[i]);
        size[i] = (size_t)(args[i].y.dim[0] * args[i].y.dim[1] * sizeof(float));
        if (!w)
            w = new_workspace(f.ctx, needed(&f, &args[i]));
        assert_int_equal(needed(&f, &args[i]), llmk_workspace_bytes(w));
        args[i].workspace = w;
    }
    for (unsigned round = 0; round < 2; round++) {
        for (size_t i = 0; i < LINES; i++)
            assert_int_equal(llmk_linear(f.ctx, f.queue, &args[i], NULL), LLMK_OK);
        for (size_t i = 0; i < LINES; i++) {
            uint8_t *y = read_y(&f, &args[i].y, size[i]);
            if (round == 0)
                first[i] = y;
            else
                assert_memory_equal(first[i], y, size[i]);
            if (round > 0)
                free(y);
        }
        assert_counts_are_zero(&f, w);
    }
    for (size_t i = 0; i < LINES; i++) {
        const case_result result = case_run_check(runs[i]); /* with a workspace of its own */
        if (!result.ok)
            fail_msg("%s: %s", tested->lines[i], result.message);
        uint8_t *y = read_y(&f, &args[i].y, size[i]);
        assert_memory_equal(first[i], y, size[i]);
        free(y);
        free(first[i]);
        case_run_free(runs[i]);
    }
    llmk_workspace_free(w);
    close_fixture(&f);
}

static void test_refused(void **state)
{
    const kind *tested = *state;
    fixture f, other;
    const bool can = open_fixture(&f, tested->variant);
    open_fixture(&other, tested->variant);
    if (!can) {
        close_fixture(&other);
        close_fixture(&f);
        skip();
    }
    case_run *run = make_run(&f, tested->lines[0]);
    llmk_linear_args args = args_of(run);
    const uint64_t bytes = needed(&f, &args);
    assert_true(bytes > 0);
    llmk_workspace *small = new_workspace(f.ctx, bytes - 1);
    llmk_workspace *foreign = new_workspace(other.ctx, bytes);
    args.workspace = small;
    assert_int_equal(llmk_linear(f.ctx, f.queue, &args, NULL), LLMK_BUFFER_TOO_SMALL);
    args.workspace = foreign;
    assert_int_equal(llmk_linear(f.ctx, f.queue, &args, NULL), LLMK_INVALID_ARGUMENT);
    args.workspace = NULL;
    assert_int_equal(llmk_linear(f.ctx, f.queue, &args, NULL), LLMK_OK);
    assert_int_equal(clFinish(f.queue), CL_SUCCESS);
    llmk_workspace_free(small);
    llmk_workspace_free(foreign);
    case_run_free(run);
    close_fixture(&other);
    close_fixture(&f);
}

/* Codes of x have to lie somewhere. */
static void test_needed(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, "linear:ref");
    case_run *run = make_run(&f, "linear m=3 n=8 k=24 w=w8a8");
    llmk_linear_args args = args_of(run);
    args.workspace = NULL;
    assert_int_equal(llmk_linear(f.ctx, f.queue, &args, NULL), LLMK_INVALID_ARGUMENT);
    case_run_free(run);
    close_fixture(&f);
}

/* A call that needs no bytes leaves a workspace to whoever does: it may be in use on another
 * queue, or of another context. */
static void test_unused(void **state)
{
    (void)state;
    fixture f, other;
    open_fixture(&f, "linear:ref");
    open_fixture(&other, "linear:ref");
    case_run *run = make_run(&f, "linear m=3 n=17 k=64 x=f32 w=f32 y=f32");
    cl_command_queue second = case_queue_new(f.ctx);
    llmk_linear_args args = args_of(run);
    assert_int_equal(needed(&f, &args), 0);
    cl_event gate = clCreateUserEvent(llmk_context_cl_context(f.ctx), NULL);
    const llmk_events held = {1, &gate, NULL};
    llmk_workspace *own = new_workspace(f.ctx, 64), *foreign = new_workspace(other.ctx, 64);
    args.workspace = own;
    assert_int_equal(llmk_linear(f.ctx, f.queue, &args, &held), LLMK_OK);
    const llmk_status status = llmk_linear(f.ctx, second, &args, NULL);
    args.workspace = foreign;
    const llmk_status of_other = llmk_linear(f.ctx, second, &args, NULL);
    assert_null(own->last);
    assert_null(foreign->last);
    clSetUserEventStatus(gate, CL_COMPLETE);
    assert_int_equal(clFinish(f.queue), CL_SUCCESS);
    assert_int_equal(clFinish(second), CL_SUCCESS);
    assert_int_equal(status, LLMK_OK);
    assert_int_equal(of_other, LLMK_OK);
    clReleaseEvent(gate);
    llmk_workspace_free(own);
    llmk_workspace_free(foreign);
    case_run_free(run);
    clReleaseCommandQueue(second);
    close_fixture(&other);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"turns, emulated", test_turns, NULL, NULL, &emulated_packed},
        {"turns, nv-packed", test_turns, NULL, NULL, &packed},
        {"turns, emulated nv", test_turns, NULL, NULL, &emulated_tiled},
        {"turns, nv", test_turns, NULL, NULL, &tiled},
        {"refused, emulated", test_refused, NULL, NULL, &emulated_packed},
        {"refused, nv-packed", test_refused, NULL, NULL, &packed},
        cmocka_unit_test(test_needed),
        cmocka_unit_test(test_unused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
