/* test_findings.c - what is remembered on disk of trials: successes at once, failures only after
 * two runs and for a day, since a failure may be of the moment. clBuildProgram fails where told to.
 * Contexts pretend to be of other processes: number 1 begins now, each other a minute later. */
#include "cases/case_internal.h"
#include "core/core.h"
#include "llmk_cmocka.h"
#include "support/calls.h"
#include "support/scratch.h"

#include <stdlib.h>
#include <time.h>

#define PORTABLE "-DVECS" /* in the options of add:portable, and not of add:ref */

static char folder[SCRATCH_PATH];
static const char *builds_fail; /* of programs with this in their options; "": all; NULL: none */
static unsigned builds;         /* of such, or of all */
static char warning[2048];      /* the last */
static unsigned warnings;

cl_int __real_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices,
                             const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                             void *user);
cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices,
                             const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                             void *user);
cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices,
                             const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                             void *user)
{
    const bool meant = !builds_fail || strstr(options, builds_fail);
    builds += meant;
    return builds_fail && meant
               ? CL_BUILD_PROGRAM_FAILURE
               : __real_clBuildProgram(program, count, devices, options, notify, user);
}

static int set_up(void **state)
{
    (void)state;
    builds_fail = NULL;
    return scratch_make(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static void on_log(void *user, llmk_log_level level, const char *message)
{
    (void)user;
    if (level > LLMK_LOG_WARN)
        return;
    snprintf(warning, sizeof warning, "%s", message);
    warnings++;
}

static int64_t start_of(int64_t run)
{
    return (int64_t)time(NULL) + 60 * (run - 1);
}

/* run: 0 for this process's own. */
static llmk_context *open_context(int64_t run)
{
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    llmk_context *ctx = NULL;
    options.cache_dir = folder;
    options.log = on_log;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    if (run)
        ctx->started = start_of(run);
    return ctx;
}

static llmk_status call(int64_t run)
{
    char sentence[CALL_TEXT];
    llmk_context *ctx = open_context(run);
    warnings = 0;
    const llmk_status status = call_and_check(ctx, "add cols=24 rows=3", sentence);
    llmk_context_free(ctx);
    return status;
}

static void test_one_bad_run(void **state)
{
    (void)state;
    builds_fail = "";
    assert_int_equal(call(1), LLMK_BUILD_FAILED);
    builds_fail = NULL;
    assert_int_equal(call(2), LLMK_OK);
}

static bool believed(llmk_context *ctx, const char *expected)
{
    llmk_finding found;
    if (!llmk_finding_recall(ctx, "something", &found))
        return false;
    assert_int_equal(found.value, 7);
    assert_int_equal(found.failed, strcmp(expected, "yes") != 0);
    assert_string_equal(found.text, expected);
    free(found.text);
    return true;
}

static void fail_in(llmk_context *ctx, int64_t run, long value, const char *text)
{
    ctx->started = start_of(run);
    llmk_finding_keep(ctx, "something", value, true, text);
}

static void test_failures(void **state)
{
    (void)state;
    llmk_context *ctx = open_context(0);
    assert_false(believed(ctx, ""));
    fail_in(ctx, 1, 7, "no 1");
    assert_false(believed(ctx, ""));
    fail_in(ctx, 2, 7, "no 2");
    assert_true(believed(ctx, "no 2"));
    fail_in(ctx, 2, 7, "no 2, again"); /* loses nothing */
    assert_true(believed(ctx, "no 2, again"));
    llmk_finding_keep(ctx, "something", 7, false, "yes");
    assert_true(believed(ctx, "yes"));
    fail_in(ctx, 3, 7, "no 3"); /* counts from the start */
    assert_false(believed(ctx, ""));
    llmk_context_free(ctx);
}

/* However often a process finds it. */
static void test_one_process(void **state)
{
    (void)state;
    llmk_context *ctx = open_context(0);
    for (unsigned i = 0; i < 4; i++)
        fail_in(ctx, 1, 7, "no");
    assert_false(believed(ctx, ""));
    fail_in(ctx, 2, 7, "no");
    assert_true(believed(ctx, "no"));
    llmk_context_free(ctx);
}

/* Two processes at once share a bad moment. */
static void test_at_once(void **state)
{
    (void)state;
    static const struct {
        int64_t after; /* seconds from the first failure to the second process's start */
        bool counts;
    } starts[] = {{-3600, false}, {0, false}, {30, false}, {60, true}, {3600, true}};
    llmk_context *ctx = open_context(0);
    for (size_t i = 0; i < LLMK_COUNT(starts); i++) {
        llmk_finding_keep(ctx, "something", 7, false, "yes"); /* from the start */
        fail_in(ctx, 1, 7, "no");
        ctx->started = (int64_t)time(NULL) + starts[i].after;
        llmk_finding_keep(ctx, "something", 7, true, "no");
        assert_int_equal(believed(ctx, "no"), starts[i].counts);
    }
    llmk_context_free(ctx);
}

/* Those that do not count do not put off the one that does. */
static void test_many_at_once(void **state)
{
    (void)state;
    llmk_context *ctx = open_context(0);
    char key[1024], record[64];
    const int64_t now = (int64_t)time(NULL);
    assert_true(llmk_finding_key(ctx, "something", key, sizeof key));
    const int n = snprintf(record, sizeof record, "7 1 %lld no", (long long)now - 100);
    llmk_cache_put(ctx->cache, key, record, (size_t)n);
    ctx->started = now - 90;
    llmk_finding_keep(ctx, "something", 7, true, "no");
    assert_false(believed(ctx, ""));
    ctx->started = now - 40;
    llmk_finding_keep(ctx, "something", 7, true, "no");
    assert_true(believed(ctx, "no"));
    llmk_context_free(ctx);
}

/* Another failure is not the same found twice. */
static void test_other_failure(void **state)
{
    (void)state;
    llmk_context *ctx = open_context(0);
    fail_in(ctx, 1, 7, "no");
    fail_in(ctx, 2, 8, "another");
    fail_in(ctx, 3, 7, "no");
    assert_false(believed(ctx, ""));
    fail_in(ctx, 4, 7, "no, twice");
    assert_true(believed(ctx, "no, twice"));
    fail_in(ctx, 5, 8, "another");
    assert_false(believed(ctx, ""));
    llmk_context_free(ctx);
}

/* Contexts of a process share its start. */
static void test_start(void **state)
{
    (void)state;
    llmk_context *a = open_context(0), *b = open_context(0);
    const int64_t start = llmk_finding_start();
    assert_true(a->started == start && b->started == start);
    assert_true(start > 0 && start <= (int64_t)time(NULL));
    llmk_context_free(a);
    llmk_context_free(b);
}

/* Bytes that nobody here wrote, under a right checksum. */
static void test_bad_records(void **state)
{
    (void)state;
    static const char *const records[] = {
        "",
        "7",
        "7 2 ",
        "7 2 9999999999 of the future",
        "7 3 1 no",
        "7 -1 1 no",
        "99999999999 0 1 no",
        "7 2 -9223372036854775808 no",
        "7 2 9223372036854775807 no",
        "x 0 1 no",
    };
    llmk_context *ctx = open_context(0);
    char key[1024];
    assert_true(llmk_finding_key(ctx, "something", key, sizeof key));
    for (size_t i = 0; i < LLMK_COUNT(records); i++) {
        llmk_cache_put(ctx->cache, key, records[i], strlen(records[i]));
        assert_false(believed(ctx, ""));
        fail_in(ctx, 2, 7, "no"); /* and is no first failure */
        assert_false(believed(ctx, ""));
    }
    llmk_context_free(ctx);
}

static void test_age(void **state)
{
    (void)state;
    static const struct {
        int64_t age;
        bool believed;
    } ages[] = {{0, true}, {3600, true}, {86300, true}, {86500, false}, {-3600, false}};
    llmk_context *ctx = open_context(0);
    char key[1024], record[64];
    assert_true(llmk_finding_key(ctx, "something", key, sizeof key));
    for (size_t i = 0; i < LLMK_COUNT(ages); i++) {
        const int n = snprintf(record, sizeof record, "7 2 %lld old",
                               (long long)time(NULL) - (long long)ages[i].age);
        llmk_cache_put(ctx->cache, key, record, (size_t)n);
        assert_int_equal(believed(ctx, "old"), ages[i].believed);
    }
    /* A failure of long ago is not one of two in a row. */
    fail_in(ctx, 2, 7, "new");
    assert_false(believed(ctx, ""));
    llmk_context_free(ctx);
}

static void test_two_bad_runs(void **state)
{
    (void)state;
    builds_fail = PORTABLE;
    assert_int_equal(call(1), LLMK_OK);
    assert_int_equal(call(2), LLMK_OK);
    builds = 0;
    assert_int_equal(call(3), LLMK_OK); /* believed: that is not built */
    assert_int_equal(builds, 0);
    assert_true(warnings > 0);
    assert_non_null(strstr(warning, "as in earlier runs"));
    assert_non_null(strstr(warning, folder));
}

/* Where nothing else is left, a failure is not believed but tried, in each run once. */
static void test_nothing_left(void **state)
{
    (void)state;
    char sentence[CALL_TEXT];
    builds_fail = "";
    assert_int_equal(call(1), LLMK_BUILD_FAILED);
    assert_int_equal(call(2), LLMK_BUILD_FAILED);
    llmk_context *ctx = open_context(3);
    builds = 0;
    assert_int_equal(call_and_check(ctx, "add cols=24 rows=3", sentence), LLMK_BUILD_FAILED);
    assert_true(builds > 0);
    builds = 0;
    assert_int_equal(call_and_check(ctx, "add cols=24 rows=3", sentence), LLMK_BUILD_FAILED);
    assert_int_equal(builds, 0);
    llmk_context_free(ctx);
    builds_fail = NULL;
    assert_int_equal(call(4), LLMK_OK);
    assert_int_equal(call(5), LLMK_OK);
    assert_int_equal(warnings, 0); /* the success is kept */
}

/* A success of an earlier run whose program does not build now: the next variant serves the call,
 * for this context, and the next run tries the first again. */
static void test_success_that_fails(void **state)
{
    (void)state;
    char sentence[CALL_TEXT];
    assert_int_equal(call(1), LLMK_OK);
    assert_int_equal(warnings, 0);
    llmk_context *ctx = open_context(2);
    builds_fail = PORTABLE;
    builds = warnings = 0;
    assert_int_equal(call_and_check(ctx, "add cols=24 rows=3", sentence), LLMK_OK);
    assert_int_equal(builds, 1); /* in the call, and no trial */
    assert_true(warnings > 0);
    assert_non_null(strstr(warning, "add:portable"));
    assert_non_null(strstr(warning, "is not used any more"));
    builds_fail = NULL;
    builds = warnings = 0;
    assert_int_equal(call_and_check(ctx, "add cols=24 rows=3", sentence), LLMK_OK);
    assert_int_equal(builds + warnings, 0);
    llmk_context_free(ctx);
    assert_int_equal(call(3), LLMK_OK);
    assert_int_equal(warnings, 0);
}

/* The same behind kernels that are on their way: the call fails, the next one has another variant. */
static void test_success_that_fails_midway(void **state)
{
    (void)state;
    static const char layer[] = "moe_forward t=2 e=4 k=2 h=64 f=64 x=f32 w=f32";
    char sentence[CALL_TEXT];
    llmk_context *ctx = open_context(1);
    assert_int_equal(call_and_check(ctx, layer, sentence), LLMK_OK);
    llmk_context_free(ctx);
    ctx = open_context(2);
    builds_fail = "-DW=f32"; /* in the options of the experts' products, and not of ref's */
    builds = warnings = 0;
    assert_int_equal(call_and_check(ctx, layer, sentence), LLMK_BUILD_FAILED);
    assert_int_equal(builds, 1);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(warning, "is not used any more"));
    assert_int_equal(call_and_check(ctx, layer, sentence), LLMK_OK);
    builds_fail = NULL;
    builds = warnings = 0;
    assert_int_equal(call_and_check(ctx, layer, sentence), LLMK_OK);
    assert_int_equal(builds + warnings, 0);
    llmk_context_free(ctx);
}

/* And none is left: each is said to have failed. */
static void test_all_fail_later(void **state)
{
    (void)state;
    char sentence[CALL_TEXT];
    assert_int_equal(call(1), LLMK_OK);
    llmk_context *ctx = open_context(2);
    builds_fail = "";
    assert_int_equal(call_and_check(ctx, "add cols=24 rows=3", sentence), LLMK_BUILD_FAILED);
    assert_non_null(strstr(llmk_error_message(), "no variant serves this call"));
    llmk_context_free(ctx);
    builds_fail = NULL;
    assert_int_equal(call(3), LLMK_OK);
}

/* The contexts of one process are one run. */
static void test_two_contexts(void **state)
{
    (void)state;
    builds_fail = "";
    assert_int_equal(call(0), LLMK_BUILD_FAILED);
    assert_int_equal(call(0), LLMK_BUILD_FAILED);
    builds = 0;
    assert_int_equal(call(0), LLMK_BUILD_FAILED);
    assert_true(builds > 0);
    builds_fail = NULL;
    assert_int_equal(call(0), LLMK_OK);
}

/* Asks whether a device that claims fp16 has it; its kernel does not build. */
static void ask_for_fp16(int64_t run)
{
    llmk_context *ctx = open_context(run), *trial;
    assert_int_equal(llmk_context_trial(ctx, &trial), LLMK_OK);
    free(trial->caps.extensions);
    assert_non_null(trial->caps.extensions = strdup("cl_khr_fp16"));
    builds = warnings = 0;
    assert_false(llmk_probe_fp16(ctx));
    llmk_context_free(ctx);
}

/* A probe that failed is believed as aloud as a trial. */
static void test_probe(void **state)
{
    (void)state;
    builds_fail = "";
    for (int run = 1; run <= 2; run++) {
        ask_for_fp16(run);
        assert_true(builds > 0);
        assert_true(warnings > 0); /* and from the first run on */
        assert_non_null(strstr(warning, "probe fp16"));
        assert_non_null(strstr(warning, "CL_BUILD_PROGRAM_FAILURE"));
    }
    ask_for_fp16(3);
    assert_int_equal(builds, 0);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(warning, "probe:fp16 is not used, as in earlier runs"));
    assert_non_null(strstr(warning, folder));
    assert_non_null(strstr(warning, "CL_BUILD_PROGRAM_FAILURE"));
}

/* That a driver lists no such feature is no failure, and nothing to warn of. */
static void test_probe_not_claimed(void **state)
{
    (void)state;
    llmk_context *ctx = open_context(1);
    llmk_finding_keep(ctx, "probe:fp16", 0, false, "");
    warnings = 0;
    assert_false(llmk_probe_fp16(ctx));
    assert_int_equal(warnings, 0);
    llmk_context_free(ctx);
}

int main(void)
{
    unsetenv("LLMK_CACHE"); /* they would win over what the contexts here are given */
    unsetenv("LLMK_KERNEL_PATH");
    unsetenv("LLMK_VARIANT");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_bad_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failures, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_age, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_bad_runs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_left, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_success_that_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_success_that_fails_midway, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_all_fail_later, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_process, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_at_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_at_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_failure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_records, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_contexts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_probe, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_probe_not_claimed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
