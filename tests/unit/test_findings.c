/* test_findings.c - what is remembered on disk of trials: successes at once, failures only after
 * two runs and for a day, since a failure may be of the moment. clBuildProgram fails where told to.
 */
#include "cases/case_internal.h"
#include "core/core.h"
#include "llmk_cmocka.h"
#include "support/calls.h"
#include "support/scratch.h"

#include <stdlib.h>
#include <time.h>

static char folder[SCRATCH_PATH];
static bool builds_fail;
static unsigned builds;

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
    builds++;
    return builds_fail ? CL_BUILD_PROGRAM_FAILURE
                       : __real_clBuildProgram(program, count, devices, options, notify, user);
}

static int set_up(void **state)
{
    (void)state;
    builds_fail = false;
    return scratch_make(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static llmk_context *open_context(void)
{
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    llmk_context *ctx = NULL;
    options.cache_dir = folder;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    return ctx;
}

static llmk_status call(void)
{
    char sentence[CALL_TEXT];
    llmk_context *ctx = open_context();
    const llmk_status status = call_and_check(ctx, "add cols=24 rows=3", sentence);
    llmk_context_free(ctx);
    return status;
}

static void test_one_bad_run(void **state)
{
    (void)state;
    builds_fail = true;
    assert_int_equal(call(), LLMK_BUILD_FAILED);
    builds_fail = false;
    assert_int_equal(call(), LLMK_OK);
}

static bool believed(llmk_context *ctx, const char *expected)
{
    long value;
    char *text;
    if (!llmk_finding_recall(ctx, "something", &value, &text))
        return false;
    assert_int_equal(value, 7);
    assert_string_equal(text, expected);
    free(text);
    return true;
}

static void test_failures(void **state)
{
    (void)state;
    llmk_context *ctx = open_context();
    assert_false(believed(ctx, ""));
    llmk_finding_keep(ctx, "something", 7, true, "no 1");
    assert_false(believed(ctx, ""));
    llmk_finding_keep(ctx, "something", 7, true, "no 2");
    assert_true(believed(ctx, "no 2"));
    llmk_finding_keep(ctx, "something", 7, false, "yes");
    assert_true(believed(ctx, "yes"));
    llmk_finding_keep(ctx, "something", 7, true, "no 3"); /* counts from the start */
    assert_false(believed(ctx, ""));
    llmk_context_free(ctx);
}

static void test_age(void **state)
{
    (void)state;
    static const struct {
        int64_t age;
        bool believed;
    } ages[] = {{0, true}, {3600, true}, {86300, true}, {86500, false}, {-3600, false}};
    llmk_context *ctx = open_context();
    char key[1024], record[64];
    assert_true(llmk_finding_key(ctx, "something", key, sizeof key));
    for (size_t i = 0; i < LLMK_COUNT(ages); i++) {
        const int n = snprintf(record, sizeof record, "7 2 %lld old",
                               (long long)time(NULL) - (long long)ages[i].age);
        llmk_cache_put(ctx->cache, key, record, (size_t)n);
        assert_int_equal(believed(ctx, "old"), ages[i].believed);
    }
    /* A failure of long ago is not one of two in a row. */
    llmk_finding_keep(ctx, "something", 7, true, "new");
    assert_false(believed(ctx, ""));
    llmk_context_free(ctx);
}

static void test_two_bad_runs(void **state)
{
    (void)state;
    builds_fail = true;
    assert_int_equal(call(), LLMK_BUILD_FAILED);
    assert_int_equal(call(), LLMK_BUILD_FAILED);
    builds = 0;
    assert_int_equal(call(), LLMK_BUILD_FAILED); /* believed: nothing is built */
    assert_int_equal(builds, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_bad_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failures, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_age, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_bad_runs, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
