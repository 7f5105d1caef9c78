/* test_tune_db.c - the file that llmk-tune writes: several writers, and what cannot be written. */
#include "llmk_cmocka.h"

#include "support/scratch.h"
#include "tools/common/tune_db.h"

#include <sys/wait.h>

static char folder[SCRATCH_PATH], path[SCRATCH_PATH + 32], error[512];
static llmk_context *ctx;

#define FILE_OF(rows) "{\"llmk_tuning\": 1, \"rows\": [" rows "]}"

/* A row for rmsnorm of rows=2^i h=2^j. */
static bool put(unsigned i, unsigned j)
{
    char shape[64];
    snprintf(shape, sizeof shape, "rows=%u h=%u", 1u << i, 1u << j);
    const llmk_tuning_row row = {.op = "rmsnorm", .shape = shape, .variant = LLMK_TUNING_RULE};
    const tune_source source = {.text = "rmsnorm", .us = 1, .default_us = 2};
    return tune_db_put(path, ctx, &row, &source, error, sizeof error);
}

static void count(void *user, size_t index, const llmk_tuning_row *row)
{
    (void)index, (void)row;
    ++*(size_t *)user;
}

static size_t rows(void)
{
    size_t found = 0;
    llmk_reason why;
    if (!llmk_tuning_read(path, count, &found, &why))
        fail_msg("%s", why.text);
    return found;
}

static void test_writers_take_turns(void **state)
{
    (void)state;
    enum { WRITERS = 4, EACH = 12 };
    pid_t pids[WRITERS];
    for (unsigned w = 0; w < WRITERS; w++) {
        pids[w] = fork();
        assert_true(pids[w] >= 0);
        if (pids[w] == 0) {
            bool good = true;
            for (unsigned i = 0; i < EACH; i++)
                good = put(w, i) && good;
            _exit(!good);
        }
    }
    /* Contexts meanwhile find a whole file, and never one with less in it. */
    size_t before = 0;
    for (unsigned running = WRITERS, w = 0; running > 0;) {
        int status = -1;
        const size_t found = rows();
        assert_true(found >= before);
        before = found;
        if (waitpid(pids[w], &status, WNOHANG) == 0)
            continue;
        assert_int_equal(status, 0);
        running--;
        w++;
    }
    assert_int_equal(rows(), WRITERS * EACH);
    assert_true(put(0, 0)); /* in place of its own */
    assert_int_equal(rows(), WRITERS * EACH);
}

static void test_a_link_is_followed(void **state)
{
    (void)state;
    char target[SCRATCH_PATH + 32];
    struct stat st;
    snprintf(target, sizeof target, "%s/real/tuning.json", folder);
    assert_true(scratch_write(folder, "real/tuning.json", FILE_OF(""), strlen(FILE_OF(""))));
    assert_int_equal(symlink("real/tuning.json", path), 0);
    assert_true(tune_db_usable(path, error, sizeof error));
    assert_true(put(1, 1));
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(rows(), 1);
    unlink(target); /* a link to nothing is refused before anything is measured */
    assert_false(tune_db_usable(path, error, sizeof error));
}

static void test_usable(void **state)
{
    (void)state;
    assert_false(tune_db_usable("/proc/none/tuning.json", error, sizeof error));
    assert_true(strlen(error) > 0);
    assert_false(tune_db_usable(folder, error, sizeof error));
    snprintf(path, sizeof path, "%s/a/b/tuning.json", folder);
    assert_true(tune_db_usable(path, error, sizeof error));
    assert_int_equal(access(path, F_OK), -1); /* nothing but the folder and the lock */
    assert_true(put(1, 1));
    assert_true(tune_db_usable(path, error, sizeof error));
    assert_int_equal(rows(), 1);
}

/* Rows that the file has already, with `padding` bytes in each. */
static void write_rows(size_t count, size_t padding)
{
    const size_t size = count * (padding + 128) + 64;
    char *text = malloc(size);
    assert_non_null(text);
    size_t used = (size_t)sprintf(text, "{\"llmk_tuning\": 1, \"rows\": [");
    for (size_t i = 0; i < count; i++)
        used += (size_t)sprintf(text + used,
                                "%s{\"op\":\"add\",\"variant\":\"default\",\"measured\":{},"
                                "\"note\":\"%0*d\"}",
                                i ? "," : "", (int)padding, 0);
    used += (size_t)sprintf(text + used, "]}");
    assert_true(used < size && scratch_write(folder, "tuning.json", text, used));
    free(text);
}

/* What the library would not read is not written. */
static void test_full_files(void **state)
{
    (void)state;
    write_rows(LLMK_TUNING_MAX_ROWS - 1, 1);
    assert_true(put(0, 0));
    assert_int_equal(rows(), LLMK_TUNING_MAX_ROWS);
    assert_true(put(0, 0));
    assert_false(put(0, 1));
    assert_non_null(strstr(error, "more than 4096 rows for this device"));
    assert_int_equal(rows(), LLMK_TUNING_MAX_ROWS);
    write_rows(4, LLMK_TUNING_MAX_BYTES / 4 - 128);
    assert_false(put(0, 0));
    assert_non_null(strstr(error, "larger than 4194304 bytes"));
    assert_int_equal(rows(), 4);
}

/* What a file says does not reach the terminal as it is. */
static void test_escapes(void **state)
{
    (void)state;
    static const char *const files[] = {
        FILE_OF(
            "{\"op\": \"\\u001b[31mevil\\n\\u009b\", \"variant\": \"\\u0007\", \"measured\": {}}"),
        FILE_OF("{\"op\": \"add\", \"variant\": \"\\u001b[2J\", \"measured\": {}}")};
    for (size_t i = 0; i < LLMK_COUNT(files); i++) {
        char text[4096];
        assert_true(scratch_write(folder, "tuning.json", files[i], strlen(files[i])));
        FILE *out = tmpfile();
        assert_non_null(out);
        assert_true(tune_db_list(path, ctx, out, error, sizeof error));
        rewind(out);
        const size_t length = fread(text, 1, sizeof text - 1, out);
        fclose(out);
        text[length] = '\0';
        assert_true(length > 0 && strchr(text, '\n') == text + length - 1);
        for (const char *p = text; p[1]; p++)
            assert_true((unsigned char)*p >= ' ' && strncmp(p, "\xc2\x9b", 2) != 0);
    }
}

/* Sentences repeat a file's words in parts, and never a part of a character. */
static void test_words(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t size;
        const char *word;
    } cases[] = {{"abc", 4, "abc"},
                 {"abc", 3, "ab"},
                 {"abc", 1, ""},
                 {NULL, 8, "?"},
                 {"a\xc3\xa9", 4, "a\xc3\xa9"},
                 {"a\xc3\xa9", 3, "a"},
                 {"\xe2\x82\xac\xe2\x82\xac", 6, "\xe2\x82\xac"},
                 {"\xf0\x9f\x98\x80", 4, ""},
                 {"\x1b[2J\n\xc2\x9b", 16, " [2J   "}};
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        char word[16];
        assert_string_equal(llmk_tuning_word(word, cases[i].size, cases[i].text), cases[i].word);
    }
}

static void name_device(const char *name)
{
    assert_true(strlen(name) < sizeof ctx->caps.device_name);
    memcpy(ctx->caps.device_name, name, strlen(name) + 1);
}

/* Names of devices: whole in what is exported, with the images that were measured; and text. */
static void test_names(void **state)
{
    (void)state;
    char own[sizeof ctx->caps.device_name], name[256] = "a", to[SCRATCH_PATH + 32];
    char text[4096], *image = ctx->forced_image;
    size_t count = 0;
    memcpy(own, ctx->caps.device_name, sizeof own);
    for (size_t i = 0; i < 60; i++)
        memcpy(name + 1 + 2 * i, "\xc3\xa9", 3);
    name_device(name);
    ctx->forced_image = (char[]){"source"};
    const bool written = put(1, 1);
    ctx->forced_image = image;
    snprintf(to, sizeof to, "%s/to.json", folder);
    const bool exported =
        tune_db_export(path, ctx, to, TUNE_DEVICE, "sm_80", &count, error, sizeof error);
    name_device("caf\xe9");
    const bool odd = put(2, 2);
    name_device(own);
    assert_true(written && exported && count == 1);
    assert_false(odd);
    assert_non_null(strstr(error, "no UTF-8"));
    assert_int_equal(rows(), 1);
    FILE *file = fopen(to, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *from = strstr(text, name);
    assert_non_null(from);
    assert_int_equal(strncmp(from + strlen(name), ", images of source: 1 us\"", 25), 0);
}

static int set_up(void **state)
{
    (void)state;
    if (!scratch_make(folder))
        return -1;
    snprintf(path, sizeof path, "%s/tuning.json", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static int open_context(void **state)
{
    (void)state;
    return llmk_context_create(NULL, &ctx) != LLMK_OK;
}

static int close_context(void **state)
{
    (void)state;
    llmk_context_free(ctx);
    return 0;
}

int main(void)
{
#ifndef LLMK_HAVE_JANSSON
    fprintf(stderr, "built without jansson: skipped\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_writers_take_turns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_link_is_followed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_usable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_escapes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_names, set_up, tear_down),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
