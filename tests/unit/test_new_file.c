/* test_new_file.c - files that cannot be made: the sentence names the file that was asked for, not
 * the temporary one, and the reason is that of the call that failed.
 *
 * The linker replaces the functions of test_new_file.wrap by those here. */
#include "formats/new_file.h"
#include "llmk_cmocka.h"
#include "support/scratch.h"

#include <errno.h>

static bool fail_fdopen;

FILE *__real_fdopen(int file, const char *mode);
FILE *__wrap_fdopen(int file, const char *mode);
FILE *__wrap_fdopen(int file, const char *mode)
{
    if (!fail_fdopen)
        return __real_fdopen(file, mode);
    errno = ENOMEM;
    return NULL;
}

int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path)
{
    const int status = __real_unlink(path);
    errno = EROFS; /* which is nobody's business */
    return status;
}

static char folder[SCRATCH_PATH], path[2 * SCRATCH_PATH];

static int set_up(void **state)
{
    (void)state;
    const bool made = scratch_make(folder);
    snprintf(path, sizeof path, "%s/out.gguf", folder);
    return made ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static void assert_nothing_left(void)
{
    assert_int_equal(scratch_list(folder, NULL), 0);
}

static void test_reason(void **state)
{
    (void)state;
    llmk_new_file file;
    char error[512] = "", expected[3 * SCRATCH_PATH];
    fail_fdopen = true;
    assert_false(llmk_new_file_open(&file, path, error, sizeof error));
    fail_fdopen = false;
    snprintf(expected, sizeof expected, "%s cannot be created: %s.", path, strerror(ENOMEM));
    assert_string_equal(error, expected);
    assert_nothing_left();
}

static void test_no_folder(void **state)
{
    (void)state;
    llmk_new_file file;
    char error[512] = "";
    assert_false(llmk_new_file_open(&file, "/nonexistent/out.gguf", error, sizeof error));
    assert_string_equal(error,
                        "/nonexistent/out.gguf cannot be created: No such file or directory.");
}

static bool refuse(const char *name, char *error, size_t error_size)
{
    snprintf(error, error_size, "%s: at offset 8 there is no sense.", name);
    return false;
}

static void test_read_back(void **state)
{
    (void)state;
    llmk_new_file file;
    char error[512] = "", expected[3 * SCRATCH_PATH];
    assert_true(llmk_new_file_open(&file, path, error, sizeof error));
    llmk_new_file_put(&file, "x", 1);
    assert_false(llmk_new_file_close(&file, true, path, refuse, error, sizeof error));
    snprintf(expected, sizeof expected, "%s: at offset 8 there is no sense.", path);
    assert_string_equal(error, expected);
    assert_nothing_left();
    assert_true(llmk_new_file_open(&file, path, error, sizeof error));
    char small[12] = "";
    assert_false(llmk_new_file_close(&file, true, path, refuse, small, sizeof small));
    assert_true(strlen(small) < sizeof small);
}

/* The new file is as open to others as the one it replaces. */
static void test_mode(void **state)
{
    (void)state;
    static const mode_t modes[] = {0600, 0664, 0640};
    llmk_new_file file;
    struct stat st;
    char error[512] = "";
    assert_true(scratch_write(folder, "out.gguf", "x", 1));
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_true(llmk_new_file_open(&file, path, error, sizeof error));
        assert_true(llmk_new_file_close(&file, true, path, NULL, error, sizeof error));
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, modes[i]);
    }
}

static void test_rename(void **state)
{
    (void)state;
    llmk_new_file file;
    char error[512] = "";
    assert_true(llmk_new_file_open(&file, path, error, sizeof error));
    assert_int_equal(mkdir(path, 0700), 0); /* meanwhile */
    assert_false(llmk_new_file_close(&file, true, path, NULL, error, sizeof error));
    char expected[3 * SCRATCH_PATH];
    snprintf(expected, sizeof expected, "%s cannot be written: %s.", path, strerror(EISDIR));
    assert_string_equal(error, expected);
    assert_int_equal(scratch_list(folder, NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reason, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_read_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_mode, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rename, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
