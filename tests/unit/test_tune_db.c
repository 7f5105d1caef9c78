/* test_tune_db.c - the file that llmk-tune writes: several writers, and what cannot be written. */
#include "llmk_cmocka.h"

#include "support/scratch.h"
#include "tools/common/tune_db.h"

#include <sys/wait.h>

static char folder[SCRATCH_PATH], path[SCRATCH_PATH + 32], error[512];
static llmk_context *ctx;

/* A row for rmsnorm of rows=2^i h=2^j. */
static bool put(unsigned i, unsigned j)
{
    char shape[64];
    snprintf(shape, sizeof shape, "rows=%u h=%u", 1u << i, 1u << j);
    const llmk_tuning_row row = {.op = "rmsnorm", .shape = shape, .variant = LLMK_TUNING_RULE};
    const tune_source source = {"rmsnorm", 1, 0, 2};
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
    for (unsigned w = 0; w < WRITERS; w++) {
        int status = -1;
        assert_int_equal(waitpid(pids[w], &status, 0), pids[w]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(rows(), WRITERS * EACH);
    assert_true(put(0, 0)); /* in place of its own */
    assert_int_equal(rows(), WRITERS * EACH);
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
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
