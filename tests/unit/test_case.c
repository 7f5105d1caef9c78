/* test_case.c - the case harness itself: its text, its numbers, and that it notices what an
 * operator may do wrong. The operator here is a fake that works on the host and misbehaves on
 * request. */
#include "cases/case_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- A fake operator: y = 2 x ---- */

typedef struct fake_args {
    size_t struct_size;
    llmk_tensor x, y;
    int *object; /* of the set */
} fake_args;

typedef enum misdeed {
    NONE,
    WRONG_VALUE,
    WRONG_NAN,
    WRONG_INFINITY,
    UNWRITTEN,
    BEFORE,
    AFTER,
    FAR_AFTER,
    IN_GAP,
    CHANGED_INPUT,
    CHANGED_INPUT_GUARD,
    SHIFTED_CANARY,
    WITHIN_BOUND,
    REFUSED
} misdeed;

static misdeed deed;
static int calls, last_object;

static const char *const fake_modes[] = {"plain", "", "other", NULL};

static const case_field fake_fields[] = {
    {"rows", CASE_U64, 5, NULL, "rows"},
    {"cols", CASE_U64, 7, NULL, "columns"},
    {"x", CASE_ENUM, LLMK_F32, case_dtype_names, "dtype of x and y"},
    {"gap", CASE_U64, 0, NULL, "elements between rows"},
    {"pad", CASE_U64, 0, NULL, "elements before the first"},
    {"eps", CASE_FLOAT, 1e-6, NULL, "a number"},
    {"mode", CASE_ENUM, 0, fake_modes, "a choice"},
    {"in_place", CASE_FLAG, 0, NULL, "y over x"},
    {"exact", CASE_FLAG, 0, NULL, "no bound"},
    {"special", CASE_FLAG, 0, NULL, "NaN and infinities"},
};

static bool fake_prepare(case_run *run, const case_line *line, void *args)
{
    fake_args *a = args;
    const uint64_t dim[2] = {case_u64(line, "rows"), case_u64(line, "cols")};
    const llmk_dtype dtype = case_dtype(line, "x");
    if (dim[1] == 13)
        return case_refuse(run, "thirteen columns");
    if (dim[1] == 14)
        return case_skip(run, "fourteen columns");
    case_tensor *x = case_add_tensor(run, "x", CASE_INPUT, dtype, 2, dim, &a->x);
    case_tensor *y = case_add_tensor(run, "y", CASE_OUTPUT, dtype, 2, dim, &a->y);
    x->pad = y->pad = case_u64(line, "pad");
    if (case_flag(line, "in_place"))
        case_in_place(run, y, x);
    if (case_u64(line, "gap")) {
        case_set_row_stride(x, dim[1] + case_u64(line, "gap"));
        case_set_row_stride(y, dim[1] + case_u64(line, "gap"));
    }
    if (!case_declared(run))
        return false;
    if (case_is_float(dtype))
        case_fill_values(run, x, CASE_UNIFORM, 1, 1);
    else
        for (uint64_t i = 0; i < x->count; i++)
            x->values[i] = (double)(i % 8);
    if (case_flag(line, "special")) {
        x->values[0] = (double)NAN;
        x->values[1] = (double)INFINITY;
        x->values[2] = case_dtype(line, "x") == LLMK_F16 ? 60000 : 3e38;
    }
    if (case_timing_only(run))
        return true;
    double *expected = case_expect(run, y);
    for (uint64_t i = 0; i < y->count; i++)
        expected[i] = 2 * x->values[i];
    if (case_is_float(dtype) && !case_flag(line, "exact")) {
        double *bound = case_bound(run, y);
        for (uint64_t i = 0; i < y->count; i++)
            bound[i] = 0.01;
    }
    return true;
}

static bool fake_prepare_set(case_run *run, const case_line *line, void *args, size_t set)
{
    (void)line;
    fake_args *a = args;
    assert_non_null(a->x.buffer);
    a->object = case_alloc(run, sizeof *a->object);
    *a->object = 100 + (int)set;
    case_count_bytes(run, 1000, 0);
    return true;
}

static void misbehave(uint8_t *x, uint8_t *y, const llmk_tensor *t)
{
    const uint64_t last = (t->dim[0] - 1) * t->stride[0] + t->dim[1] - 1;
    uint8_t *first = y + t->offset;
    const uint64_t end = t->offset + case_bytes(t->dtype, last + 1);
    switch (deed) {
    case WRONG_VALUE:
        case_encode(t->dtype, first, last, case_decode(t->dtype, first, last) + 0.5);
        break;
    case WRONG_NAN:
        case_encode(t->dtype, first, last, (double)NAN);
        break;
    case WRONG_INFINITY:
        case_encode(t->dtype, first, last, (double)INFINITY);
        break;
    case WITHIN_BOUND:
        case_encode(t->dtype, first, last, case_decode(t->dtype, first, last) + 0.005);
        break;
    case BEFORE:
        y[t->offset - 1] ^= 1;
        break;
    case AFTER:
        y[end] ^= 1;
        break;
    case FAR_AFTER:
        y[end + CASE_GUARD - 1] ^= 1;
        break;
    case IN_GAP:
        first[case_bytes(t->dtype, t->dim[1])] ^= 0x80;
        break;
    case CHANGED_INPUT:
        x[t->offset + case_bytes(t->dtype, 2)] ^= 1;
        break;
    case CHANGED_INPUT_GUARD:
        x[0] ^= 1;
        break;
    case SHIFTED_CANARY:
        memmove(y, y + 64, 64);
        break;
    default:
        break;
    }
}

static llmk_status fake_call(llmk_context *ctx, cl_command_queue queue, const void *args,
                             const llmk_events *events)
{
    (void)ctx;
    (void)events;
    const fake_args *a = args;
    calls++;
    last_object = *a->object;
    if (deed == REFUSED)
        return LLMK_INVALID_SHAPE;
    size_t bytes = 0;
    assert_int_equal(CL_SUCCESS,
                     clGetMemObjectInfo(a->y.buffer, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));
    uint8_t *x = malloc(bytes), *y = malloc(bytes);
    clEnqueueReadBuffer(queue, a->x.buffer, CL_TRUE, 0, bytes, x, 0, NULL, NULL);
    clEnqueueReadBuffer(queue, a->y.buffer, CL_TRUE, 0, bytes, y, 0, NULL, NULL);
    for (uint64_t r = 0; r < a->x.dim[0]; r++) {
        for (uint64_t c = 0; c < a->x.dim[1]; c++) {
            const uint64_t i = r * a->x.stride[0] + c;
            if (deed == UNWRITTEN && r == 1 && c == 3)
                continue;
            case_encode(a->y.dtype, y + a->y.offset, i,
                        2 * case_decode(a->x.dtype, x + a->x.offset, i));
        }
    }
    misbehave(x, y, &a->y);
    if (a->x.buffer != a->y.buffer)
        clEnqueueWriteBuffer(queue, a->x.buffer, CL_TRUE, 0, bytes, x, 0, NULL, NULL);
    clEnqueueWriteBuffer(queue, a->y.buffer, CL_TRUE, 0, bytes, y, 0, NULL, NULL);
    free(x);
    free(y);
    return LLMK_OK;
}

static const case_op fake = {
    .name = "fake",
    .args_size = sizeof(fake_args),
    .fields = fake_fields,
    .field_count = sizeof fake_fields / sizeof *fake_fields,
    .prepare = fake_prepare,
    .call = fake_call,
    .prepare_set = fake_prepare_set,
};

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

static case_run *new_run(const char *fields, size_t sets, case_purpose purpose)
{
    case_line line;
    char error[256] = "";
    if (!case_parse_fields(&fake, fields, &line, error, sizeof error))
        fail_msg("%s: %s", fields, error);
    case_run *run = case_run_new(ctx, queue, &line, sets, purpose, error, sizeof error);
    if (!run)
        fail_msg("%s: %s", fields, error);
    return run;
}

static case_result check(const char *fields, misdeed what)
{
    case_run *run = new_run(fields, 1, CASE_TO_CHECK);
    deed = what;
    const case_result result = case_run_check(run);
    deed = NONE;
    case_run_free(run);
    return result;
}

static void expect_good(const char *fields, misdeed what)
{
    const case_result result = check(fields, what);
    if (!result.ok)
        fail_msg("%s: %s", fields, result.message);
}

/* The check fails, and its message says `text`. */
static void expect_found(const char *fields, misdeed what, const char *text)
{
    const case_result result = check(fields, what);
    if (result.ok || !strstr(result.message, text))
        fail_msg("%s: expected \"%s\", got %s\"%s\"", fields, text, result.ok ? "no error " : "",
                 result.message);
}

/* ---- Tests ---- */

static void test_good_operator_passes(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "",
        "x=f16",
        "x=bf16",
        "x=i8",
        "x=u8",
        "x=i32",
        "cols=8 x=u4",
        "gap=3",
        "gap=3 x=f16",
        "cols=8 gap=2 x=u4",
        "pad=1",
        "pad=3 gap=1 x=bf16",
        "in_place",
        "in_place gap=5 pad=1 x=f16",
        "rows=0",
        "cols=0",
        "exact",
        "special exact",
        "special exact x=f16",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect_good(lines[i], NONE);
}

static void test_wrong_values_are_found(void **state)
{
    (void)state;
    expect_found("", WRONG_VALUE, "y[4, 6] is");
    expect_found("", WRONG_VALUE, "(1 of 35 elements of y are wrong)");
    expect_found("exact", WITHIN_BOUND, "y[4, 6] is");
    expect_found("x=f16", WRONG_NAN, "y[4, 6] is nan");
    expect_found("x=bf16", WRONG_INFINITY, "y[4, 6] is inf");
    expect_found("x=u8", WRONG_NAN, "y[4, 6] is 0");
    expect_found("in_place", WRONG_VALUE, "y[4, 6] is");
    expect_good("", WITHIN_BOUND);
}

static void test_unwritten_elements_are_found(void **state)
{
    (void)state;
    static const char *const lines[] = {"",     "x=f16", "x=bf16",      "x=i8",
                                        "x=u8", "gap=3", "cols=8 x=u4", "x=i32"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect_found(lines[i], UNWRITTEN, "y[1, 3] is");
    /* where NaN is expected, NaN would be no poison */
    case_run *run = new_run("special exact", 1, CASE_TO_CHECK);
    const case_item *y = run->items->next;
    assert_true(case_decode(LLMK_F32, y->image + y->begin, 0) == 0);
    assert_true(isnan(case_decode(LLMK_F32, y->image + y->begin, 5)));
    /* what lies around an input is NaN */
    const case_item *x = run->items;
    assert_true(isnan(case_decode(LLMK_F32, x->image + x->begin, x->t.count)));
    case_run_free(run);
}

static void test_writes_elsewhere_are_found(void **state)
{
    (void)state;
    expect_found("", BEFORE, "y: written before its start, first 1 bytes before it");
    expect_found("pad=1", BEFORE, "y: written before its start, first 1 bytes");
    expect_found("", AFTER, "y: written past its end, first at 0 bytes after it");
    expect_found("gap=3", AFTER, "y: written past its end, first at 0 bytes after it");
    expect_found("x=f16", FAR_AFTER, "y: written past its end, first at 4095 bytes after it");
    expect_found("gap=3", IN_GAP, "y: the gap between rows was written, first at byte 28 of it");
    expect_found("gap=2 cols=8 x=u4", IN_GAP, "y: the gap between rows");
    expect_found("in_place gap=1", IN_GAP, "x: the gap between rows");
    expect_found("", CHANGED_INPUT, "x: an input was changed, first at byte 8");
    expect_found("", CHANGED_INPUT_GUARD, "x: written before its start");
    expect_found("", SHIFTED_CANARY, "y: written before its start");
}

static void test_failed_call_is_found(void **state)
{
    (void)state;
    expect_found("", REFUSED, "LLMK_INVALID_SHAPE: ");
}

static void test_error_figures(void **state)
{
    (void)state;
    const case_result good = check("", NONE), bad = check("", WITHIN_BOUND);
    assert_true(good.worst < 1e-3 && good.nmse < 1e-9);
    assert_true(bad.worst > 0.49 && bad.worst < 0.51);
    assert_true(bad.nmse > 1e-8 && bad.nmse < 1e-5);
}

static void test_refusals(void **state)
{
    (void)state;
    case_line line;
    char error[256];
    assert_true(case_parse_fields(&fake, "cols=13", &line, error, sizeof error));
    assert_null(case_run_new(ctx, queue, &line, 1, CASE_TO_CHECK, error, sizeof error));
    assert_string_equal(error, "thirteen columns");
    assert_false(case_is_skip(error));
    assert_true(case_parse_fields(&fake, "cols=14", &line, error, sizeof error));
    assert_null(case_run_new(ctx, queue, &line, 1, CASE_TO_CHECK, error, sizeof error));
    assert_true(case_is_skip(error));
}

static void test_sets_rotate(void **state)
{
    (void)state;
    case_run *run = new_run("", 3, CASE_TO_TIME);
    cl_mem seen[3];
    for (size_t set = 0; set < 3; set++) {
        assert_int_equal(LLMK_OK, case_run_enqueue(run, set, NULL));
        assert_int_equal(last_object, 100 + (int)set);
        const fake_args *args = case_run_args(run, set);
        assert_int_equal(args->struct_size, sizeof *args);
        seen[set] = args->y.buffer;
    }
    char error[256];
    assert_true(case_run_grow(run, 5, error, sizeof error));
    const fake_args *first = case_run_args(run, 0), *last = case_run_args(run, 4);
    assert_true(first->y.buffer == seen[0] && last->y.buffer != seen[0] && *last->object == 104);
    assert_true(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
    assert_int_equal(case_run_bytes_read(run), 35 * 4 + 1000);
    assert_int_equal(case_run_bytes_written(run), 35 * 4);
    assert_int_equal(case_run_set_bytes(run), 2 * 35 * 4 + 1000);
    assert_false(case_run_check(run).ok);
    case_run_free(run);
}

static void test_sabotage(void **state)
{
    (void)state;
    case_run *run = new_run("", 1, CASE_TO_CHECK);
    case_run_sabotage(run, CASE_WRONG);
    assert_non_null(strstr(case_run_check(run).message, "y[0, 0] is"));
    case_run_sabotage(run, CASE_SLOW);
    calls = 0;
    assert_true(case_run_check(run).ok);
    assert_true(calls > 4);
    case_run_free(run);
}

static void expect_text(const char *fields, const char *printed)
{
    case_line line;
    char error[256], text[256];
    if (!case_parse_fields(&fake, fields, &line, error, sizeof error))
        fail_msg("%s: %s", fields, error);
    case_print(&line, text, sizeof text);
    assert_string_equal(text, printed);
}

static void expect_bad_text(const char *fields, const char *why)
{
    case_line line;
    char error[256] = "";
    assert_false(case_parse_fields(&fake, fields, &line, error, sizeof error));
    if (!strstr(error, why))
        fail_msg("%s: expected \"%s\", got \"%s\"", fields, why, error);
}

static void test_text(void **state)
{
    (void)state;
    expect_text("", "fake");
    expect_text("  rows=5\tcols=9 ", "fake cols=9");
    expect_text("eps=0.1 mode=other x=bf16 in_place", "fake x=bf16 eps=0.1 mode=other in_place");
    expect_text("eps=1e-06 in_place=0 mode=plain", "fake");
    expect_text("rows=9007199254740992", "fake rows=9007199254740992");
    expect_bad_text("rows", "rows needs a value");
    expect_bad_text("rows=-1", "expected a whole number");
    expect_bad_text("rows=", "expected a whole number");
    expect_bad_text("rows=1 rows=2", "rows is given twice");
    expect_bad_text("rows=9007199254740993000", "up to 2^53");
    expect_bad_text("wors=1", "fake has no field \"wors\"; it has rows, cols");
    expect_bad_text("mode=", "expected one of plain, other");
    expect_bad_text("eps=nan", "expected a number");
    expect_bad_text("in_place=2", "expected 0 or 1");
    case_line line;
    char error[256];
    assert_false(case_parse("nothing x=1", &line, error, sizeof error));
    assert_non_null(strstr(error, "no operator \"nothing\""));
    assert_false(case_parse(" ", &line, error, sizeof error));
}

/* Every value of a 16-bit format survives, and the midpoints between neighbours go to the even. */
static void check_format(llmk_dtype dtype, unsigned infinity)
{
    for (unsigned bits = 0; bits < infinity; bits++) {
        const uint16_t stored[2] = {(uint16_t)bits, (uint16_t)(bits + 1)};
        uint16_t out[3];
        const double a = case_decode(dtype, (const uint8_t *)stored, 0);
        const double b = bits + 1 < infinity ? case_decode(dtype, (const uint8_t *)stored, 1)
                                             : 2 * case_overflow(dtype) - a;
        case_encode(dtype, (uint8_t *)out, 0, -a);
        case_encode(dtype, (uint8_t *)out, 1, (a + b) / 2);
        case_encode(dtype, (uint8_t *)out, 2, nextafter((a + b) / 2, a));
        assert_int_equal(out[0], bits | 0x8000);
        assert_int_equal(out[1], bits + (bits & 1));
        assert_int_equal(out[2], bits);
        assert_true(case_rounding(dtype, a) == (b - a) / 2);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    check_format(LLMK_F16, 0x7c00);
    check_format(LLMK_BF16, 0x7f80);
    for (int i = -400; i < 400; i++) {
        const double value = ldexp(1.2345678901234, i / 2);
        assert_true(case_round(LLMK_F32, value) == (double)(float)value);
    }
    assert_true(case_round(LLMK_F32, 1e-46) == 0 && case_round(LLMK_F32, 1e-45) > 0);
    assert_true(isinf(case_round(LLMK_F16, 65520)) && case_round(LLMK_F16, 65519.9) == 65504);
    assert_true(isnan(case_round(LLMK_BF16, (double)NAN)));
    assert_true(case_round(LLMK_I8, -200) == -128 && case_round(LLMK_I8, 2.5) == 2);
    assert_true(case_round(LLMK_U4, 99) == 15 && case_round(LLMK_I32, -3e9) == INT32_MIN);
    assert_true(case_epsilon(LLMK_F16) == ldexp(1, -11));
    assert_true(case_epsilon(LLMK_BF16) == ldexp(1, -8));
    assert_true(case_epsilon(LLMK_F32) == ldexp(1, -24));
}

static void test_fills(void **state)
{
    (void)state;
    case_run *run = new_run("rows=300 cols=500", 1, CASE_TO_TIME);
    case_tensor *x = &run->items->t;
    double sum = 0, squares = 0, largest = 0;
    case_fill_values(run, x, CASE_NORMAL, 2, 7);
    assert_true(x->values[0] == x->values[65521]); /* timed inputs repeat */
    for (uint64_t i = 0; i < x->count; i++) {
        sum += x->values[i];
        squares += x->values[i] * x->values[i];
    }
    assert_true(fabs(sum / (double)x->count) < 0.05);
    assert_true(fabs(squares / (double)x->count - 4) < 0.1);
    case_run_free(run);
    run = new_run("rows=300 cols=500", 1, CASE_TO_CHECK);
    x = &run->items->t;
    case_fill_values(run, x, CASE_UNIFORM, 3, 7);
    assert_true(x->values[0] != x->values[65521]);
    for (uint64_t i = 0; i < x->count; i++)
        largest = fmax(largest, fabs(x->values[i]));
    assert_true(largest > 2.99 && largest <= 3);
    case_run_free(run);
    run = new_run("rows=300 cols=500 x=u4", 1, CASE_TO_CHECK);
    x = &run->items->t;
    unsigned codes = 0;
    case_fill_values(run, x, CASE_CODES, 1, 7);
    for (uint64_t i = 0; i < x->count; i++)
        codes |= 1u << (unsigned)x->values[i];
    assert_int_equal(codes, 0xffff);
    case_run_free(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_operator_passes),
        cmocka_unit_test(test_wrong_values_are_found),
        cmocka_unit_test(test_unwritten_elements_are_found),
        cmocka_unit_test(test_writes_elsewhere_are_found),
        cmocka_unit_test(test_failed_call_is_found),
        cmocka_unit_test(test_error_figures),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_sets_rotate),
        cmocka_unit_test(test_sabotage),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_fills),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
