/* test_environment.c - the environment variables, and a machine without OpenCL, seen from outside:
 * each case is a process of its own. */
#include "core/core.h"
#include "llmk_cmocka.h"
#include "support/child_call.h"
#include "support/scratch.h"

#include <strings.h>

#define CALL "call", "add cols=24 rows=3"

static char folder[SCRATCH_PATH];

static int set_up(void **state)
{
    (void)state;
    return scratch_make(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

typedef struct env_case {
    const char *mode, *argument;
    const char *env[3]; /* "%s" stands for the test's folder */
    llmk_status status;
    const char *out; /* in stdout */
    const char *err; /* in stderr; "": nothing is written there */
} env_case;

/* The cache goes to a folder of the test's own, unless a case says otherwise. */
static void run_case(const env_case *c, child *result)
{
    char text[4][SCRATCH_PATH + 256];
    const char *env[5] = {NULL};
    bool cache_given = false;
    size_t count = 0;
    for (; count < 3 && c->env[count]; count++) {
        const char *mark = strstr(c->env[count], "%s");
        snprintf(text[count], sizeof text[count], "%.*s%s%s",
                 (int)(mark ? mark - c->env[count] : (long)strlen(c->env[count])), c->env[count],
                 mark ? folder : "", mark ? mark + 2 : "");
        cache_given = cache_given || strncmp(c->env[count], "LLMK_CACHE", 10) == 0;
        env[count] = text[count];
    }
    if (!cache_given) {
        snprintf(text[count], sizeof text[count], "LLMK_CACHE=%s/cache", folder);
        env[count] = text[count];
    }
    child_run(result, c->mode, c->argument, env);
    if (!result->exited)
        fail_msg("%s: died of signal %d\n%s", c->env[0] ? c->env[0] : "", result->code,
                 result->err);
    const char *fault = NULL;
    if (result->code != (int)c->status)
        fault = "another status was expected";
    else if (!strstr(result->out, c->out))
        fault = "the output lacks what was expected";
    else if (c->err && (c->err[0] ? !strstr(result->err, c->err) : result->err[0] != '\0'))
        fault = "stderr is not as expected";
    if (fault)
        fail_msg("%s %s: %s\n%d %s\n%s", c->env[0] ? c->env[0] : "", c->mode, fault, result->code,
                 result->out, result->err);
}

static void run_cases(const env_case *cases, size_t count)
{
    static child result;
    for (size_t i = 0; i < count; i++)
        run_case(&cases[i], &result);
}

static void test_no_platform(void **state)
{
    (void)state;
    static const env_case cases[] = {
        {"list", "", {"OCL_ICD_VENDORS=%s", "OPENCL_VENDOR_PATH=%s"}, LLMK_OK, "count 0", ""},
        {"create",
         "",
         {"OCL_ICD_VENDORS=%s", "OPENCL_VENDOR_PATH=%s"},
         LLMK_NO_DEVICE,
         "no OpenCL device found",
         ""},
        {"create",
         "",
         {"OCL_ICD_VENDORS=/nonexistent", "LLMK_DEVICE=cpu"},
         LLMK_NO_DEVICE,
         "no OpenCL device found",
         ""},
    };
    run_cases(cases, LLMK_COUNT(cases));
}

static void test_device(void **state)
{
    (void)state;
    llmk_device_info infos[64];
    size_t count = 0;
    infos[0].struct_size = sizeof infos[0];
    assert_int_equal(llmk_device_list(infos, 64, &count), LLMK_OK);
    bool gpu = false, cpu = false;
    for (size_t i = 0; i < count; i++) {
        gpu = gpu || (infos[i].type & CL_DEVICE_TYPE_GPU);
        cpu = cpu || (infos[i].type & CL_DEVICE_TYPE_CPU);
    }
    char by_platform[300], by_name[300];
    snprintf(by_platform, sizeof by_platform, "LLMK_DEVICE=%s / ", infos[0].platform);
    snprintf(by_name, sizeof by_name, "LLMK_DEVICE=%.100s", infos[0].name);
    for (char *p = by_name + 12; *p; p++)
        *p = *p >= 'a' && *p <= 'z' ? (char)(*p - 32) : *p; /* letters of either case */
    const llmk_status with_gpu = gpu ? LLMK_OK : LLMK_NO_DEVICE;
    const llmk_status with_cpu = cpu ? LLMK_OK : LLMK_NO_DEVICE;
    const env_case cases[] = {
        {"create", "", {"LLMK_DEVICE="}, LLMK_OK, "created", ""},
        {"create", "", {"LLMK_DEVICE=0"}, LLMK_OK, "created", ""},
        {"create", "", {by_platform}, LLMK_OK, "created", ""},
        {"create", "", {by_name}, LLMK_OK, "created", ""},
        {"create", "", {"LLMK_DEVICE=GPU"}, with_gpu, "", ""},
        {"create", "", {"LLMK_DEVICE=cpu"}, with_cpu, "", ""},
        {"create", "", {"LLMK_DEVICE=999"}, LLMK_NO_DEVICE, "LLMK_DEVICE is \"999\"", ""},
        {"create", "", {"LLMK_DEVICE=-1"}, LLMK_NO_DEVICE, "names none of", ""},
        {"create", "", {"LLMK_DEVICE= "}, LLMK_INVALID_ARGUMENT, "LLMK_DEVICE is \" \"", ""},
        {"create", "", {"LLMK_DEVICE=/"}, LLMK_INVALID_ARGUMENT, "LLMK_DEVICE is \"/\"", ""},
        {"create", "", {"LLMK_DEVICE= / "}, LLMK_INVALID_ARGUMENT, "LLMK_DEVICE is", ""},
        {"create", "", {"LLMK_DEVICE=18446744073709551616"}, LLMK_NO_DEVICE, "names none of", ""},
        {"create", "", {"LLMK_DEVICE=no such device %n%s"}, LLMK_NO_DEVICE, "names none of", ""},
    };
    run_cases(cases, LLMK_COUNT(cases));
}

static void test_variant_and_image(void **state)
{
    (void)state;
    static const env_case cases[] = {
        {CALL, {"LLMK_VARIANT=add:ref"}, LLMK_OK, "variant ref", ""},
        {CALL, {"LLMK_VARIANT=linear:ref,add:portable"}, LLMK_OK, "variant portable", ""},
        {CALL, {"LLMK_VARIANT=linear:ref"}, LLMK_OK, "LLMK_OK", ""},
        {CALL, {"LLMK_VARIANT="}, LLMK_OK, "LLMK_OK", ""},
        {CALL, {"LLMK_VARIANT=*:ref"}, LLMK_OK, "variant ref", ""},
        {CALL,
         {"LLMK_VARIANT=add:ref,add:portable"},
         LLMK_INVALID_ARGUMENT,
         "two variants of operator add",
         ""},
        {CALL, {"LLMK_VARIANT=add"}, LLMK_INVALID_ARGUMENT, "LLMK_VARIANT: \"add\" is not", ""},
        {CALL, {"LLMK_VARIANT=add:fast"}, LLMK_INVALID_ARGUMENT, "no variant \"fast\"", ""},
        {CALL, {"LLMK_VARIANT=add:portable@items-16"}, LLMK_OK, "variant portable", ""},
        {CALL, {"LLMK_VARIANT=*:portable@items-16"}, LLMK_OK, "variant portable", ""},
        {CALL,
         {"LLMK_VARIANT=add:portable@items-7"},
         LLMK_INVALID_ARGUMENT,
         "it has portable@items-16,",
         ""},
        {CALL, {"LLMK_VARIANT=add:portable@"}, LLMK_INVALID_ARGUMENT, "no variant", ""},
        {CALL, {"LLMK_VARIANT=add:ref@items-16"}, LLMK_INVALID_ARGUMENT, "it has ref alone", ""},
        {"call",
         "quantize scheme=int8-channel n=3 k=8 inner=2",
         {"LLMK_VARIANT=quantize:portable"},
         LLMK_NO_VARIANT,
         "the forced variant does not serve",
         ""},
        {CALL, {"LLMK_IMAGE=source"}, LLMK_OK, "LLMK_OK", ""},
        {CALL, {"LLMK_IMAGE="}, LLMK_OK, "LLMK_OK", ""},
        {CALL, {"LLMK_IMAGE=garbage"}, LLMK_INVALID_ARGUMENT, "LLMK_IMAGE is \"garbage\"", ""},
        {CALL, {"LLMK_SUBGROUP=32"}, LLMK_OK, "LLMK_OK", ""},
        {CALL, {"LLMK_SUBGROUP="}, LLMK_OK, "LLMK_OK", ""},
        {CALL, {"LLMK_COOPMAT=on"}, LLMK_OK, "LLMK_OK", ""},
        {CALL, {"LLMK_COOPMAT=1"}, LLMK_INVALID_ARGUMENT, "LLMK_COOPMAT is \"1\"", ""},
        {CALL, {"LLMK_SUBGROUP=33"}, LLMK_INVALID_ARGUMENT, "LLMK_SUBGROUP is \"33\"", ""},
    };
    run_cases(cases, LLMK_COUNT(cases));
}

/* Nothing is printed but what LLMK_LOG asks for, and nothing of that to stdout. */
static void test_log(void **state)
{
    (void)state;
    static const struct {
        const char *env;
        llmk_log_level level;
    } cases[] = {{"LLMK_LOG", LLMK_LOG_NONE},       {"LLMK_LOG=", LLMK_LOG_NONE},
                 {"LLMK_LOG=none", LLMK_LOG_NONE},  {"LLMK_LOG=error", LLMK_LOG_ERROR},
                 {"LLMK_LOG=warn", LLMK_LOG_WARN},  {"LLMK_LOG=info", LLMK_LOG_INFO},
                 {"LLMK_LOG=DEBUG", LLMK_LOG_DEBUG}};
    static child result;
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        const llmk_log_level level = cases[i].level;
        const env_case quiet = {CALL,
                                {cases[i].env, "LLMK_CACHE=off"},
                                LLMK_OK,
                                "LLMK_OK",
                                level < LLMK_LOG_INFO ? "" : NULL};
        run_case(&quiet, &result);
        assert_int_equal(child_lines(result.err, "llmk info: device: "), level >= LLMK_LOG_INFO);
        assert_true((child_lines(result.err, "llmk debug: ") > 0) == (level >= LLMK_LOG_DEBUG));
        assert_int_equal(child_lines(result.err, ""), child_lines(result.err, "llmk "));
        assert_int_equal(child_lines(result.out, "llmk "), 0);
    }
    static const env_case refused[] = {
        {"create", "", {"LLMK_LOG=loud"}, LLMK_INVALID_ARGUMENT, "LLMK_LOG is \"loud\"", ""},
        {"create", "", {"LLMK_LOG=1"}, LLMK_INVALID_ARGUMENT, "LLMK_LOG is \"1\"", ""},
        {"create", "", {"LLMK_LOG=debugging"}, LLMK_INVALID_ARGUMENT, "LLMK_LOG is", ""},
        {"list", "", {"LLMK_LOG=loud"}, LLMK_INVALID_ARGUMENT, "count 99", ""},
    };
    run_cases(refused, LLMK_COUNT(refused));
}

/* ---- The cache between processes ---- */

/* Self-tests, probes and builds of trials show in the log at debug level. */
static size_t trials_in(const child *result)
{
    size_t count = 0;
    for (const char *p = result->err; (p = strstr(p, "built from")) != NULL; p++)
        count++;
    return count;
}

static void test_second_process(void **state)
{
    (void)state;
    static child first, second, off;
    const env_case debug = {CALL, {"LLMK_LOG=debug"}, LLMK_OK, "LLMK_OK", NULL};
    run_case(&debug, &first);
    run_case(&debug, &second);
    assert_true(trials_in(&second) < trials_in(&first)); /* no build in the trial's context */
    assert_null(strstr(second.err, "probe"));
    const env_case no_cache = {CALL, {"LLMK_LOG=debug", "LLMK_CACHE=off"}, LLMK_OK, "", NULL};
    run_case(&no_cache, &off);
    assert_int_equal(trials_in(&off), trials_in(&first));
}

static void test_cache_off(void **state)
{
    (void)state;
    static const env_case cases[] = {
        {CALL, {"LLMK_CACHE=off", "HOME=%s", "XDG_CACHE_HOME=%s/xdg"}, LLMK_OK, "", ""},
        {CALL, {"LLMK_CACHE=OFF", "HOME=%s", "XDG_CACHE_HOME=%s/xdg"}, LLMK_OK, "", ""},
    };
    static child result;
    char pocl[SCRATCH_PATH + 32], xdg[SCRATCH_PATH + 32];
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        run_case(&cases[i], &result);
        snprintf(pocl, sizeof pocl, "%s/.cache/llmk", folder); /* drivers keep theirs there too */
        snprintf(xdg, sizeof xdg, "%s/xdg/llmk", folder);
        assert_int_equal(access(pocl, F_OK), -1);
        assert_int_equal(access(xdg, F_OK), -1);
    }
}

/* A cache that cannot be used costs one line of warning, and nothing else. */
static void test_cache_unusable(void **state)
{
    (void)state;
    static const char *const folders[] = {"LLMK_CACHE=/proc/llmk", "LLMK_CACHE=/dev/null",
                                          "LLMK_CACHE=/dev/null/llmk", "LLMK_CACHE=/tmp"};
    static child result;
    for (size_t i = 0; i < LLMK_COUNT(folders); i++) {
        const env_case quiet = {CALL, {folders[i]}, LLMK_OK, "LLMK_OK", ""};
        run_case(&quiet, &result);
        const env_case warned = {CALL, {folders[i], "LLMK_LOG=warn"}, LLMK_OK, "", "cache folder"};
        run_case(&warned, &result);
        assert_int_equal(child_lines(result.err, "llmk warn"), 1);
        assert_int_equal(child_lines(result.err, ""), 1);
    }
}

/* Every file of the cache spoiled, in several ways: one line a file, and right results. */
static void spoil(const char *dir, int how)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
        char path[SCRATCH_PATH + 300];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        FILE *f = fopen(path, how == 0 ? "wb" : "r+b");
        assert_non_null(f);
        if (how == 1)
            fputs("garbage", f);
        if (how == 2 && fseek(f, -1, SEEK_END) == 0)
            fputc('?', f);
        fclose(f);
    }
    closedir(d);
}

static void test_cache_spoiled(void **state)
{
    (void)state;
    static child result;
    char dir[SCRATCH_PATH + 32];
    snprintf(dir, sizeof dir, "%s/cache", folder);
    const env_case warn = {CALL, {"LLMK_LOG=warn"}, LLMK_OK, "LLMK_OK", NULL};
    run_case(&warn, &result);
    const size_t files = scratch_list(dir, NULL);
    assert_true(files > 0);
    for (int how = 0; how < 3; how++) {
        spoil(dir, how);
        run_case(&warn, &result);
        assert_int_equal(child_lines(result.err, "llmk warn: deleting the damaged"), files);
        run_case(&warn, &result);
        assert_string_equal(result.err, "");
        assert_int_equal(scratch_list(dir, NULL), files);
    }
}

/* Whole blobs that say nonsense: verdicts, and the answers of probes. */
static void test_cache_nonsense(void **state)
{
    (void)state;
    static const char *const texts[] = {"",       " ", "-1 no", "7 what?", "99999999999999999999 ",
                                        "garbage"};
    static child result;
    char dir[SCRATCH_PATH + 32];
    snprintf(dir, sizeof dir, "%s/cache", folder);
    const env_case debug = {CALL, {"LLMK_LOG=debug"}, LLMK_OK, "LLMK_OK", NULL};
    run_case(&debug, &result);
    const size_t trials = trials_in(&result);
    for (size_t i = 0; i < LLMK_COUNT(texts); i++) {
        /* The keys are in the files: rewrite each with other data. */
        DIR *d = opendir(dir);
        assert_non_null(d);
        for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
            char path[SCRATCH_PATH + 300], bytes[4096];
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
            FILE *f = fopen(path, "rb");
            const size_t n = f ? fread(bytes, 1, sizeof bytes - 1, f) : 0;
            uint32_t key_size = 0;
            if (f)
                fclose(f);
            memcpy(&key_size, bytes + 4, sizeof key_size);
            assert_true(n > 24 + key_size && key_size < 2000);
            char key[2000];
            memcpy(key, bytes + 24, key_size);
            key[key_size] = '\0';
            static const llmk_log silent;
            static llmk_times times;
            llmk_cache *cache = llmk_cache_open(dir, &silent, &times);
            llmk_cache_put(cache, key, texts[i], strlen(texts[i]));
            llmk_cache_close(cache);
        }
        closedir(d);
        run_case(&debug, &result);
        if (trials_in(&result) != trials)
            fail_msg("\"%s\" is taken for a verdict\n%s", texts[i], result.err);
    }
}

static void test_processes(void **state)
{
    (void)state;
    static child children[4];
    char env[SCRATCH_PATH + 32];
    snprintf(env, sizeof env, "LLMK_CACHE=%s/cache", folder);
    const char *const all[] = {env, "LLMK_LOG=warn", NULL};
    for (size_t i = 0; i < LLMK_COUNT(children); i++)
        child_start(&children[i], "call", i % 2 ? "add cols=24 rows=3" : "rmsnorm h=24", all);
    for (size_t i = 0; i < LLMK_COUNT(children); i++) {
        child_finish(&children[i]);
        assert_true(children[i].exited);
        assert_int_equal(children[i].code, LLMK_OK);
        assert_string_equal(children[i].err, "");
    }
}

int main(int argc, char **argv)
{
    if (CHILD_IS_ONE(argc, argv))
        return child_main(argv[2], argv[3]);
    unsetenv("LLMK_CACHE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_platform, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_device, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_variant_and_image, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_log, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_second_process, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cache_off, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cache_unusable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cache_spoiled, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cache_nonsense, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_processes, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
