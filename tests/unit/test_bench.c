/* test_bench.c - what llmk-bench is made of: statistics, rotation, model lists, timing that notices
 * a slower operator, checking that notices a wrong one, and JSON that parses. The operator here is
 * a copy by the driver. */
#include "tools/common/bench_hold.h"
#include "tools/common/bench_models.h"
#include "tools/common/bench_report.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef LLMK_HAVE_JANSSON
#include <jansson.h>
#endif

/* ---- An operator: y = x ---- */

typedef struct copy_args {
    size_t struct_size;
    llmk_tensor x, y;
} copy_args;

static const case_field copy_fields[] = {
    {"n", CASE_U64, 1 << 20, NULL, "elements"},
    {"x", CASE_ENUM, LLMK_F32, case_dtype_names, "dtype"},
    {"skip", CASE_FLAG, 0, NULL, "is not for this device"},
    {"fail", CASE_FLAG, 0, NULL, "fails when it is called"},
};

static bool fail_calls;

static bool copy_prepare(case_run *run, const case_line *line, void *args)
{
    copy_args *a = args;
    const uint64_t dim[1] = {case_u64(line, "n")};
    if (case_flag(line, "skip"))
        return case_skip(run, "not here");
    fail_calls = case_flag(line, "fail");
    case_tensor *x = case_add_tensor(run, "x", CASE_INPUT, case_dtype(line, "x"), 1, dim, &a->x);
    case_tensor *y = case_add_tensor(run, "y", CASE_OUTPUT, case_dtype(line, "x"), 1, dim, &a->y);
    if (!case_declared(run))
        return false;
    case_fill_values(run, x, CASE_UNIFORM, 1, 1);
    memcpy(case_expect(run, y), x->values, x->count * sizeof *x->values);
    return true;
}

static llmk_status copy_call(llmk_context *ctx, cl_command_queue queue, const void *args,
                             const llmk_events *events)
{
    (void)ctx;
    (void)events;
    const copy_args *a = args;
    const size_t bytes = (size_t)a->x.dim[0] * llmk_dtype_bits(a->x.dtype) / 8;
    if (fail_calls)
        return LLMK_INVALID_SHAPE;
    return clEnqueueCopyBuffer(queue, a->x.buffer, a->y.buffer, (size_t)a->x.offset,
                               (size_t)a->y.offset, bytes, 0, NULL, NULL) == CL_SUCCESS
               ? LLMK_OK
               : LLMK_OPENCL_ERROR;
}

static double copy_flops(const case_line *line)
{
    return 3 * case_get(line, "n");
}

static const case_op copy_op = {
    .name = "copy",
    .args_size = sizeof(copy_args),
    .fields = copy_fields,
    .field_count = sizeof copy_fields / sizeof *copy_fields,
    .prepare = copy_prepare,
    .call = copy_call,
    .flops = copy_flops,
};

/* ---- A session ---- */

static bench_session session;

static int open_session(void **state)
{
    (void)state;
    char error[512];
    const bench_options options = {.seconds = 0.03};
    if (bench_session_open(&session, &options, error, sizeof error) &&
        bench_session_probe(&session, error, sizeof error))
        return 0;
    fprintf(stderr, "%s\n", error);
    return -1;
}

static int close_session(void **state)
{
    (void)state;
    bench_session_close(&session);
    return 0;
}

static bench_row time_case(const char *fields)
{
    case_line line;
    char error[256];
    bench_row row;
    if (!case_parse_fields(&copy_op, fields, &line, error, sizeof error))
        fail_msg("%s", error);
    bench_session_time(&session, &line, &row);
    return row;
}

/* ---- Tests ---- */

static void test_statistics(void **state)
{
    (void)state;
    double values[] = {5, 1, 4, 2, 3};
    const bench_stats stats = bench_stats_of(values, 5);
    assert_true(stats.count == 5 && stats.least == 1 && stats.median == 3);
    assert_true(stats.q1 == 2 && stats.q3 == 4);
    assert_true(fabs(stats.p5 - 1.2) < 1e-12 && fabs(stats.p95 - 4.8) < 1e-12);
    assert_true(fabs(bench_stats_spread(&stats) - 1.2) < 1e-12);
    double even[] = {4, 1, 3, 2}, one[] = {7};
    assert_true(bench_stats_of(even, 4).median == 2.5);
    assert_true(bench_stats_of(one, 1).p95 == 7);
    const bench_stats none = bench_stats_of(NULL, 0);
    assert_true(none.count == 0 && bench_stats_spread(&none) == 0);
}

static void test_rotation(void **state)
{
    (void)state;
    llmk_device_info gpu = {
        .type = CL_DEVICE_TYPE_GPU, .cache_bytes = 60u << 20, .global_bytes = 140ull << 30};
    assert_int_equal(bench_choose_sets(&gpu, 100000000), 5);    /* beyond 400 MB */
    assert_int_equal(bench_choose_sets(&gpu, 10ull << 30), 2);  /* never in place */
    assert_int_equal(bench_choose_sets(&gpu, 16384), 64);       /* not without end */
    assert_int_equal(bench_choose_sets(&gpu, 100ull << 30), 1); /* as memory allows */
    gpu.cache_bytes = 200u << 20;
    assert_int_equal(bench_choose_sets(&gpu, 100u << 20), 9); /* beyond four caches */
    llmk_device_info cpu = {
        .type = CL_DEVICE_TYPE_CPU, .cache_bytes = 1 << 20, .global_bytes = 1 << 30};
    assert_int_equal(bench_choose_sets(&cpu, 1 << 20), 5);
    assert_int_equal(bench_choose_sets(&cpu, 0), 64);
}

static void test_timing(void **state)
{
    (void)state;
    const bench_row row = time_case("n=100000");
    if (row.error[0])
        fail_msg("%s", row.error);
    assert_string_equal(row.text, "copy n=100000");
    assert_int_equal(row.bytes_read, 400000);
    assert_int_equal(row.bytes_written, 400000);
    assert_true(row.flops == 300000 && row.sets >= 2);
    assert_int_equal(row.rotation_bytes, row.sets * 800000);
    assert_true(row.timing.us.count >= 3 && row.timing.us.median > 0);
    assert_true(row.timing.us.least <= row.timing.us.q1 && row.timing.us.q3 <= row.timing.us.p95);
    assert_true(session.roof.launch_us > 0 && session.roof.copy_gbs > 0 &&
                session.roof.fma_tflops > 0);
    const double roof = bench_row_roof_us(&row, &session.roof);
    assert_true(fabs(roof - 800000 / session.roof.copy_gbs * 1e-3) < 1e-9 * roof);
}

/* ---- Two works in turn ---- */

typedef struct counted_work {
    cl_command_queue queue;
    long pause; /* ns a call */
    unsigned calls;
    size_t sets_seen;
} counted_work;

static bool enqueue_pause(void *user, size_t set)
{
    counted_work *w = user;
    const struct timespec pause = {.tv_nsec = w->pause};
    w->calls++;
    if (set >= w->sets_seen)
        w->sets_seen = set + 1;
    nanosleep(&pause, NULL);
    return true;
}

static void test_pairs(void **state)
{
    (void)state;
    counted_work slow = {.pause = 400000}, quick = {.pause = 100000};
    const bench_work first = {session.queue, enqueue_pause, &slow, 3, NULL};
    const bench_work second = {session.queue, enqueue_pause, &quick, 1, NULL};
    bench_pair pair;
    assert_true(bench_measure_pair(&first, &second, 1e6, 0.03, &pair));
    assert_true(pair.first.us.count >= 3 && pair.difference.count == pair.first.us.count);
    assert_true(pair.second.us.count == pair.first.us.count);
    assert_true(pair.second.us.median >= 100 && pair.difference.median > 0);
    assert_true(pair.difference.p5 <= pair.difference.p95);
    assert_true(slow.sets_seen == 3 && quick.sets_seen == 1);
    quick.calls = 0;
    assert_true(bench_measure_pair(&first, &second, 300, 0.03, &pair)); /* too long for company */
    assert_true(pair.first.us.count >= 3 && pair.second.us.count == 0 && quick.calls == 0);
    assert_int_equal(pair.difference.count, 0);
}

typedef struct held_work {
    bench_hold hold;
    unsigned calls;
} held_work;

static bool enqueue_fill(void *user, size_t set)
{
    held_work *w = user;
    const cl_uint one = 1;
    w->calls++;
    return clEnqueueFillBuffer(w->hold.queue, w->hold.buffer, &one, sizeof one, set << 16, 1u << 16,
                               0, NULL, NULL) == CL_SUCCESS;
}

static void test_calls_behind_a_hold(void **state)
{
    (void)state;
    held_work w = {.calls = 0};
    bench_timing timing;
    assert_true(
        bench_hold_open(&w.hold, llmk_context_cl_context(session.ctx), session.queue, 1u << 20));
    assert_true(w.hold.seconds > 0);
    const bench_work work = {session.queue, enqueue_fill, &w, 3, &w.hold};
    assert_true(bench_measure(&work, 0.02, &timing)); /* whether they wait, on a busy machine too */
    assert_true(timing.us.count >= 3 && timing.us.median > 0 && timing.calls <= w.calls);

    cl_event end, soon;
    bench_held held = BENCH_LATE;
    for (int attempt = 0; attempt < 10 && held != BENCH_HELD; attempt++) {
        assert_true(bench_hold_begin(&w.hold, 0.02, &end));
        assert_true(bench_hold_begin(&w.hold, 0.02, &soon));
        held = bench_hold_wait(end, soon);
    }
    assert_int_equal(held, BENCH_HELD);
    assert_true(bench_hold_begin(&w.hold, 0.02, &end));
    assert_true(bench_hold_begin(&w.hold, 0.001, &soon));
    assert_int_equal(clFinish(session.queue), CL_SUCCESS);
    assert_int_equal(bench_hold_wait(end, soon), BENCH_TOO_SHORT);
    assert_true(bench_hold_begin(&w.hold, 0.05, &end));
    clRetainEvent(end);
    assert_int_equal(bench_hold_wait(end, end), BENCH_LATE);
    clFinish(session.queue);
    bench_hold_close(&w.hold);
    assert_null(w.hold.buffer);
}

static void test_launch_beside_short_cases(void **state)
{
    (void)state;
    const bench_row shorts = time_case("n=64"), longs = time_case("n=4000000");
    if (shorts.timing.us.median < 50) { /* on any machine at rest */
        assert_int_equal(shorts.launch.us.count, shorts.timing.us.count);
        assert_true(shorts.launch.us.median > 0 && shorts.beyond.p5 <= shorts.beyond.p95);
        assert_true(bench_row_beyond_us(&shorts, &session.roof) ==
                    shorts.timing.us.median - shorts.launch.us.median);
    }
    assert_int_equal(longs.launch.us.count, 0);
    assert_true(bench_row_beyond_us(&longs, &session.roof) ==
                longs.timing.us.median - session.roof.launch_us);
}

static void test_slow_operator_looks_slow(void **state)
{
    (void)state;
    double honest = 0, slow = 0;
    /* A busy machine can make an honest call slow, but not again and again. */
    for (int attempt = 0; attempt < 5 && !(slow > 2 * honest); attempt++) {
        honest = time_case("n=1000").timing.us.median;
        session.options.sabotage = CASE_SLOW;
        slow = time_case("n=1000").timing.us.median;
        session.options.sabotage = CASE_HONEST;
    }
    if (!(slow > 2 * honest))
        fail_msg("%g us, slowed down %g us", honest, slow);
}

static void test_wrong_operator_looks_wrong(void **state)
{
    (void)state;
    case_line line;
    case_result result;
    char error[256], variant[64];
    assert_true(case_parse_fields(&copy_op, "n=1000 x=f16", &line, error, sizeof error));
    assert_true(bench_session_check(&session, &line, &result, variant, sizeof variant, error,
                                    sizeof error));
    assert_true(result.ok);
    session.options.sabotage = CASE_WRONG;
    assert_true(bench_session_check(&session, &line, &result, variant, sizeof variant, error,
                                    sizeof error));
    session.options.sabotage = CASE_HONEST;
    assert_false(result.ok);
    assert_non_null(strstr(result.message, "y[0] is"));
}

static void test_failures_are_rows(void **state)
{
    (void)state;
    const bench_row skipped = time_case("skip");
    assert_true(skipped.skipped && strstr(skipped.error, "not here"));
    const bench_row failed = time_case("fail");
    assert_true(!failed.skipped && strstr(failed.error, "LLMK_INVALID_SHAPE"));
}

static void test_huge_cases_are_rows(void **state)
{
    (void)state;
    for (const case_op *const *op = case_ops; *op; op++) {
        case_line line;
        bench_row row;
        char error[256];
        assert_true(case_parse_fields(*op, "", &line, error, sizeof error));
        for (size_t i = 0; i < (*op)->field_count; i++)
            if ((*op)->fields[i].kind == CASE_U64)
                line.value[i] = 9007199254740992;
        bench_session_time(&session, &line, &row);
        assert_true(strlen(row.error) > 10 && row.timing.us.count == 0);
    }
}

/* A short run of every operator that there is. */
static void test_every_operator(void **state)
{
    (void)state;
    for (const case_op *const *op = case_ops; *op; op++) {
        case_line line;
        bench_row row;
        char error[256];
        assert_true((*op)->entry_count > 0);
        if (!case_parse_fields(*op, (*op)->entries[0].text, &line, error, sizeof error))
            fail_msg("%s", error);
        bench_session_time(&session, &line, &row);
        if (row.error[0])
            fail_msg("%s: %s", row.text, row.error);
        assert_true(row.timing.us.median > 0 && row.variant[0]);
        assert_true(row.bytes_read + row.bytes_written > 0);
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_models(void **state)
{
    (void)state;
    char dir[] = "/tmp/llmk-models-XXXXXX", path[64], error[1400];
    size_t count;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tiny.txt", dir);
    write_file(path,
               "# a model\n\n  norm : rmsnorm rows={T} h=64  # of {T}\nup: linear m={T} n={T}\n");
    bench_model_case *cases = bench_models_load(dir, "tiny", 17, &count, error, sizeof error);
    assert_non_null(cases);
    assert_int_equal(count, 2);
    assert_string_equal(cases[0].name, "norm");
    assert_string_equal(cases[0].text, "rmsnorm rows=17 h=64");
    assert_string_equal(cases[1].text, "linear m=17 n=17");
    free(cases);
    write_file(path, "norm: rmsnorm\nno colon here\n");
    assert_null(bench_models_load(dir, "tiny", 1, &count, error, sizeof error));
    assert_non_null(strstr(error, "tiny.txt:2: expected"));
    write_file(path, "# nothing\n");
    assert_null(bench_models_load(dir, "tiny", 1, &count, error, sizeof error));
    assert_null(bench_models_load(dir, "../tiny", 1, &count, error, sizeof error));
    assert_null(bench_models_load(dir, "none", 1, &count, error, sizeof error));
    unlink(path);
    rmdir(dir);
}

static void test_json(void **state)
{
    (void)state;
#ifdef LLMK_HAVE_JANSSON
    char path[] = "/tmp/llmk-json-XXXXXX", error[512];
    bench_row rows[2] = {time_case("n=1000"), time_case("fail")};
    snprintf(rows[0].name, sizeof rows[0].name, "a \"name\"");
    close(mkstemp(path));
    assert_true(bench_json_write(path, &session, rows, 2, error, sizeof error));
    json_t *document = json_load_file(path, 0, NULL);
    assert_non_null(document);
    static const char *const texts[] = {"tool",     "date",   "library", "image",
                                        "platform", "device", "driver"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_true(json_is_string(json_object_get(document, texts[i])));
    assert_true(json_real_value(json_object_get(document, "copy_gbs")) > 0);
    const json_t *results = json_object_get(document, "results");
    assert_int_equal(json_array_size(results), 2);
    const json_t *row = json_array_get(results, 0);
    assert_string_equal(json_string_value(json_object_get(row, "case")), "copy n=1000");
    assert_string_equal(json_string_value(json_object_get(row, "name")), "a \"name\"");
    static const char *const reals[] = {
        "us", "us_q1", "us_q3", "spread", "gbs", "tflops", "percent_roofline", "copy_us"};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        assert_true(json_is_real(json_object_get(row, reals[i])));
    assert_int_equal(json_integer_value(json_object_get(row, "bytes")), 8000);
    assert_true(json_integer_value(json_object_get(row, "launches_per_batch")) > 0);
    row = json_array_get(results, 1);
    assert_true(json_is_string(json_object_get(row, "error")));
    assert_null(json_object_get(row, "us"));
    json_decref(document);
    unlink(path);
    assert_false(bench_json_write("/nowhere/at/all", &session, rows, 2, error, sizeof error));
    assert_non_null(strstr(error, "/nowhere/at/all"));
    assert_false(bench_json_write("/dev/full", &session, rows, 2, error, sizeof error));
    assert_non_null(strstr(error, "/dev/full: "));

    char *line = bench_json_row(&rows[0], &session.roof);
    assert_null(strchr(line, '\n'));
    document = json_loads(line, 0, NULL);
    assert_true(json_is_object(document));
    json_decref(document);
    free(line);
#else
    skip();
#endif
}

#ifdef LLMK_HAVE_JANSSON
static size_t count_files(const char *folder)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 2;
}
#endif

static void test_json_file(void **state)
{
    (void)state;
#ifdef LLMK_HAVE_JANSSON
    char dir[] = "/tmp/llmk-out-XXXXXX", path[64], link[64], error[512];
    struct stat info;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/rows.json", dir);
    snprintf(link, sizeof link, "%s/link.json", dir);
    assert_true(bench_json_writable(path, error, sizeof error));
    assert_int_equal(count_files(dir), 0); /* asking leaves nothing */
    write_file(path, "as it was");
    assert_int_equal(symlink("rows.json", link), 0);
    assert_false(bench_json_writable(link, error, sizeof error));
    assert_non_null(strstr(error, "link.json exists and is not a regular file"));
    assert_true(bench_json_writable(path, error, sizeof error));
    assert_true(stat(path, &info) == 0 && info.st_size == 9);
    assert_true(bench_json_write(path, &session, NULL, 0, error, sizeof error));
    assert_true(stat(path, &info) == 0 && info.st_size > 9);
    assert_int_equal(count_files(dir), 2);
    assert_true(bench_json_writable("/dev/null", error, sizeof error));
    assert_false(bench_json_writable(dir, error, sizeof error));
    assert_non_null(strstr(error, "not a regular file"));
    assert_false(bench_json_writable("/nowhere/at/all", error, sizeof error));
    assert_non_null(strstr(error, "/nowhere/at/all"));
    assert_non_null(strstr(error, "cannot be created: No such file"));
    unlink(link);
    unlink(path);
    rmdir(dir);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_timing),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_calls_behind_a_hold),
        cmocka_unit_test(test_launch_beside_short_cases),
        cmocka_unit_test(test_slow_operator_looks_slow),
        cmocka_unit_test(test_wrong_operator_looks_wrong),
        cmocka_unit_test(test_failures_are_rows),
        cmocka_unit_test(test_huge_cases_are_rows),
        cmocka_unit_test(test_every_operator),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_file),
    };
    return cmocka_run_group_tests(tests, open_session, close_session);
}
