/* test_bad_kernels.c - kernels that do not build, that compute nonsense, that write nothing: the
 * next variant is used, or the call fails with a sentence; never a wrong result. */
#include "core/core.h"
#include "core/embed.h"
#include "llmk_cmocka.h"
#include "support/child_call.h"
#include "support/scratch.h"

static char folder[SCRATCH_PATH], kernels[SCRATCH_PATH + 16], cache[SCRATCH_PATH + 16];
static char kernel_env[SCRATCH_PATH + 48], cache_env[SCRATCH_PATH + 48];
static const char *const env[] = {kernel_env, cache_env, "LLMK_LOG=warn", "LLMK_IMAGE=source",
                                  NULL};

static int set_up(void **state)
{
    (void)state;
    if (!scratch_make(folder))
        return -1;
    snprintf(kernels, sizeof kernels, "%s/cl", folder);
    snprintf(cache, sizeof cache, "%s/cache", folder);
    snprintf(kernel_env, sizeof kernel_env, "LLMK_KERNEL_PATH=%s", kernels);
    snprintf(cache_env, sizeof cache_env, "LLMK_CACHE=%s", cache);
    mkdir(kernels, 0700);
    for (size_t i = 0; i < llmk_embedded_file_count; i++)
        if (!scratch_write(kernels, llmk_embedded_files[i].name, llmk_embedded_files[i].data,
                           llmk_embedded_files[i].size))
            return -1;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

/* ---- Ways to break a kernel file ---- */

/* Writes every kernel file whose name begins with `prefix`, with `from` replaced by `to` wherever
 * it stands after `where`. Returns how many files changed. */
static size_t rewrite(const char *prefix, const char *where, const char *from, const char *to)
{
    size_t changed = 0;
    for (size_t i = 0; i < llmk_embedded_file_count; i++) {
        static char text[1 << 18];
        const llmk_embedded_file *file = &llmk_embedded_files[i];
        if (strncmp(file->name, prefix, strlen(prefix)) != 0)
            continue;
        size_t size = 0;
        bool hit = false;
        const char *p = (const char *)file->data, *armed = strstr(p, where);
        while (armed && (p = strstr(p, from)) != NULL) {
            if (p >= armed) {
                const size_t head = (size_t)(p - (const char *)file->data);
                memcpy(text, file->data, head);
                size = head + (size_t)sprintf(text + head, "%s%s", to, p + strlen(from));
                hit = true;
                break;
            }
            p++;
        }
        if (hit)
            assert_true(scratch_write(kernels, file->name, text, size));
        changed += hit;
    }
    return changed;
}

static void does_not_build(const char *prefix)
{
    assert_true(rewrite(prefix, "", "//", "#error this_is_no_opencl_c\n//") > 0);
}

static const char *next_kernel(const char *text)
{
    const char *plain = strstr(text, "kernel void "), *sized = strstr(text, "kernel __attribute__");
    return !plain || (sized && sized < plain) ? sized : plain;
}

/* Each kernel returns at once. */
static void writes_nothing(const char *prefix)
{
    static const char define[] = "#define BROKEN return;\n";
    for (size_t i = 0; i < llmk_embedded_file_count; i++) {
        const llmk_embedded_file *file = &llmk_embedded_files[i];
        if (strncmp(file->name, prefix, strlen(prefix)) != 0)
            continue;
        static char text[1 << 18];
        size_t size = (size_t)sprintf(text, "%s", define);
        for (const char *p = (const char *)file->data; *p;) {
            const char *kernel = next_kernel(p), *body = kernel ? strchr(kernel, '{') : NULL;
            const char *end = body ? body + 1 : p + strlen(p);
            memcpy(text + size, p, (size_t)(end - p));
            size += (size_t)(end - p);
            if (body)
                size += (size_t)sprintf(text + size, " BROKEN ");
            p = end;
        }
        assert_true(scratch_write(kernels, file->name, text, size));
    }
}

/* ---- Looking at a call ---- */

static void call(child *result, const char *line, llmk_status wanted, const char *out)
{
    child_run(result, "call", line, env);
    if (!result->exited || result->code != (int)wanted || !strstr(result->out, out))
        fail_msg("%s: %d, expected %d and \"%s\"\n%s%s", line, result->code, wanted, out,
                 result->out, result->err);
}

static child result;

static void test_all_good(void **state)
{
    (void)state;
    call(&result, "add cols=24 rows=3", LLMK_OK, "LLMK_OK");
    assert_string_equal(result.err, "");
}

static void test_build_failure(void **state)
{
    (void)state;
    does_not_build("add/");
    call(&result, "add cols=24 rows=3", LLMK_BUILD_FAILED, "the driver's log");
    assert_non_null(strstr(result.out, "this_is_no_opencl_c")); /* what the compiler says */
    assert_non_null(strstr(result.out, "add/add_ref.cl"));
    assert_non_null(strstr(result.out, "add: no variant serves this call"));
    call(&result, "rmsnorm h=24", LLMK_OK, "LLMK_OK"); /* the others are as ever */
}

static void test_one_variant_broken(void **state)
{
    (void)state;
    does_not_build("add/add_portable");
    does_not_build("add/add_nv");
    call(&result, "add cols=24 rows=3", LLMK_OK, "variant ref");
    const size_t lines = child_lines(result.err, "llmk warn");
    assert_int_equal(child_lines(result.err, "llmk "), lines);
    assert_in_range(lines, 1, 2); /* one for each variant that would have come first */
    assert_non_null(strstr(result.err, "is not used"));
}

static void test_nonsense(void **state)
{
    (void)state;
    assert_true(rewrite("add/add_ref", "load_any(a", "+\n", "-\n") == 1);
    does_not_build("add/add_portable");
    does_not_build("add/add_nv");
    call(&result, "add cols=24 rows=3", LLMK_SELFTEST_FAILED, "self-test");
}

/* Outputs are poisoned before a self-test, so that a kernel that does nothing does not pass. */
static void test_writes_nothing(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "rmsnorm h=24",
        "gated_activation d=24",
        "add cols=24",
        "quantize scheme=int8-channel n=3 k=24",
        "quantize scheme=int8-tensor n=3 k=24",
        "quantize scheme=int4-asymmetric n=3 k=24 g=8",
        "dequantize scheme=int8-channel n=3 k=24",
        "error_report n=3 k=24",
        "linear m=2 n=8 k=32",
        "linear m=2 n=8 k=32 w=q4_0",
        "gated_linear m=2 n=8 k=32",
    };
    for (size_t i = 0; i < llmk_embedded_file_count; i++)
        if (strncmp(llmk_embedded_files[i].name, "common/", 7) != 0)
            writes_nothing(llmk_embedded_files[i].name);
    for (size_t i = 0; i < LLMK_COUNT(lines); i++)
        call(&result, lines[i], LLMK_SELFTEST_FAILED, "self-test");
}

static void test_missing_files(void **state)
{
    (void)state;
    scratch_remove(kernels);
    call(&result, "add cols=24 rows=3", LLMK_IO_ERROR, "LLMK_KERNEL_PATH: cannot read");
    assert_non_null(strstr(result.out, kernels));
}

/* They cost a sentence, not a process that waits, or all memory. */
static void test_files_that_are_none(void **state)
{
    (void)state;
    char path[2 * SCRATCH_PATH];
    snprintf(path, sizeof path, "%s/common/types.clh", kernels);
    remove(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    call(&result, "add cols=24 rows=3", LLMK_IO_ERROR, "types.clh: it is not a regular file");
    remove(path);
    assert_true(scratch_write(kernels, "common/types.clh", "", 0));
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    call(&result, "add cols=24 rows=3", LLMK_IO_ERROR, "types.clh: it is larger than 4 MiB");
}

/* What was found out about other kernels is not remembered about the library's own, or the other
 * way round. */
static void test_verdicts_are_apart(void **state)
{
    (void)state;
    const char *const own[] = {cache_env, "LLMK_LOG=warn", "LLMK_IMAGE=source", NULL};
    does_not_build("add/");
    call(&result, "add cols=24 rows=3", LLMK_BUILD_FAILED, "");
    child_run(&result, "call", "add cols=24 rows=3", own);
    assert_int_equal(result.code, LLMK_OK);
    assert_string_equal(result.err, "");
    call(&result, "add cols=24 rows=3", LLMK_BUILD_FAILED, "");
}

int main(int argc, char **argv)
{
    if (CHILD_IS_ONE(argc, argv))
        return child_main(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_good, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_build_failure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_variant_broken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nonsense, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_writes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_missing_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_files_that_are_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_verdicts_are_apart, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
