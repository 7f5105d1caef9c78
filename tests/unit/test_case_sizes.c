/* test_case_sizes.c - cases that are too large, and hosts that run out of memory: refused with a
 * sentence, before anything is allocated where the sizes tell. */
#include "cases/case_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Memory that runs out ---- */

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);

static int failing_allocation; /* counts down: the one that reaches 0 fails; 0: none does */

static bool is_to_fail(void)
{
    return failing_allocation > 0 && --failing_allocation == 0;
}

void *__wrap_malloc(size_t size)
{
    return is_to_fail() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return is_to_fail() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return is_to_fail() ? NULL : __real_realloc(memory, size);
}

/* ---- A device ---- */

static llmk_context *ctx;
static cl_command_queue queue;

static int open_device(void **state)
{
    (void)state;
    if (llmk_context_create(NULL, &ctx) != LLMK_OK)
        return -1;
    queue = case_queue_new(ctx);
    return queue ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
    return 0;
}

/* ---- Sizes that nothing can hold ---- */

static const double huge[] = {9007199254740992, 4503599627370495, 99999999999999};

/* The case can be made, or is refused with a sentence, and both ways of asking agree, unless it is
 * the operator that refuses it, in its own words. Returns whether it was refused. */
static bool try_line(const case_line *line, case_purpose purpose, bool make)
{
    char possible[512] = "", made[512] = "", own_words[80];
    const bool expected = case_possible(ctx, line, purpose, possible, sizeof possible);
    assert_true(strlen(possible) > 10);
    case_run *run = make ? case_run_new(ctx, queue, line, 1, purpose, made, sizeof made) : NULL;
    snprintf(own_words, sizeof own_words, "%s: ", line->op->name);
    const bool operator_refuses =
        expected && make && !run && strncmp(made, own_words, strlen(own_words)) == 0;
    if (make && !run == expected && !operator_refuses) {
        char text[512];
        case_print(line, text, sizeof text);
        fail_msg("%s: \"%s\" but \"%s\"", text, possible, made);
    }
    if (make && !run && !operator_refuses)
        assert_string_equal(possible, made);
    case_run_free(run);
    return !expected || operator_refuses;
}

static bool is_size(const case_op *op, size_t i)
{
    return i < op->field_count && op->fields[i].kind == CASE_U64;
}

/* One field or two of the default line, both ways. */
static size_t try_fields(const case_op *op, double value)
{
    size_t refused = 0;
    char error[256];
    for (size_t i = 0; i < op->field_count; i++)
        for (size_t j = i; is_size(op, i) && j < op->field_count; j++) {
            case_line line;
            if (!is_size(op, j))
                continue;
            assert_true(case_parse_fields(op, "", &line, error, sizeof error));
            line.value[i] = line.value[j] = value;
            refused += try_line(&line, CASE_TO_TIME, true);
            refused += try_line(&line, CASE_TO_CHECK, true);
        }
    return refused;
}

/* One field of each line of the table. */
static size_t try_entries(const case_op *op, double value)
{
    size_t refused = 0;
    char error[256];
    for (size_t e = 0; e < op->entry_count; e++)
        for (size_t i = 0; i < op->field_count; i++) {
            case_line line;
            if (!is_size(op, i))
                continue;
            assert_true(case_parse_fields(op, op->entries[e].text, &line, error, sizeof error));
            line.value[i] = value;
            refused += try_line(&line, CASE_TO_CHECK, false);
        }
    return refused;
}

static void test_huge_cases_are_refused(void **state)
{
    (void)state;
    for (const case_op *const *op = case_ops; *op; op++)
        for (size_t v = 0; v < sizeof huge / sizeof *huge; v++) {
            assert_true(try_fields(*op, huge[v]) > 10);
            assert_true(try_entries(*op, huge[v]) > 10);
        }
    static const struct {
        const char *line, *why;
    } refusals[] = {
        {"rmsnorm rows=99999999999 h=99999999", "x [99999999999, 99999999] is larger than any"},
        {"rmsnorm rows=0 h=9007199254740992", "x [0, 9007199254740992] takes a buffer of"},
        {"add rows=99999999999 cols=64", "a [99999999999, 64] takes a buffer of"},
        {"linear n=99999999999 k=99999999", "the weights are larger than any memory"},
        {"linear n=99999999 k=999999", "skipped: "},
        {"linear w=gptq_v1 bits=33", "bits is 33; expected 4"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        case_line line;
        char error[512] = "";
        assert_true(case_parse(refusals[i].line, &line, error, sizeof error));
        assert_null(case_run_new(ctx, queue, &line, 1, CASE_TO_TIME, error, sizeof error));
        if (!strstr(error, refusals[i].why))
            fail_msg("%s: expected \"%s\", got \"%s\"", refusals[i].line, refusals[i].why, error);
    }
}

/* What llmk-bench --list offers as a dtype the operator takes, and other dtypes are no text. */
static void test_offered_dtypes(void **state)
{
    (void)state;
    size_t tried = 0;
    char error[512];
    for (const case_op *const *op = case_ops; *op; op++)
        for (size_t i = 0; i < (*op)->field_count; i++) {
            const case_field *field = &(*op)->fields[i];
            if (field->kind != CASE_ENUM || !field->help || !strstr(field->help, "type of"))
                continue;
            for (size_t v = 0; field->names[v]; v++) {
                case_line line;
                if (!field->names[v][0])
                    continue;
                assert_true(case_parse_fields(*op, "", &line, error, sizeof error));
                line.value[i] = (double)v;
                case_run *run =
                    case_run_new(ctx, queue, &line, 1, CASE_TO_CHECK, error, sizeof error);
                if (!run || case_run_enqueue(run, 0, NULL) != LLMK_OK)
                    fail_msg("%s %s=%s: %s", (*op)->name, field->name, field->names[v],
                             run ? llmk_error_message() : error);
                clFinish(queue);
                case_run_free(run);
                tried++;
            }
            char text[64];
            case_line line;
            snprintf(text, sizeof text, "%s=fp8_e4m3", field->name);
            assert_false(case_parse_fields(*op, text, &line, error, sizeof error));
            assert_non_null(strstr(error, "expected one of "));
        }
    assert_true(tried > 40);
}

static void test_no_room_on_the_host(void **state)
{
    (void)state;
    case_line line;
    char error[512];
    assert_true(case_parse("add", &line, error, sizeof error));
    assert_true(case_possible(ctx, &line, CASE_TO_CHECK, error, sizeof error));
    case_host_memory = 100;
    assert_null(case_run_new(ctx, queue, &line, 1, CASE_TO_CHECK, error, sizeof error));
    case_host_memory = 0;
    assert_true(case_is_skip(error));
    assert_non_null(strstr(error, "of the host's memory"));
}

/* Every allocation in turn is the one that fails. */
static void test_failing_allocations(void **state)
{
    (void)state;
    static const char *const lines[] = {"add rows=2 cols=8 over=a", "quantize n=2 k=8",
                                        "linear n=8 k=8 w=w4 bias=f16", "linear n=8 k=8"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        case_line line;
        case_run *run = NULL;
        char error[512];
        int failed = 0;
        assert_true(case_parse(lines[i], &line, error, sizeof error));
        for (int nth = 1; !run && nth < 1000; nth++) {
            error[0] = '\0';
            failing_allocation = nth;
            run = case_run_new(ctx, queue, &line, 2, CASE_TO_CHECK, error, sizeof error);
            failing_allocation = 0;
            if (!run) {
                assert_true(strlen(error) > 10);
                failed++;
            }
        }
        assert_non_null(run);
        assert_true(failed > 10);
        assert_true(case_run_check(run).ok);
        case_run_free(run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_huge_cases_are_refused),
        cmocka_unit_test(test_offered_dtypes),
        cmocka_unit_test(test_no_room_on_the_host),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
