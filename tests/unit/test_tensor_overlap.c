/* test_tensor_overlap.c - two tensors in one buffer: which pairs the checker refuses, against the
 * sets of bits that they touch. */
#include "core/core.h"
#include "core/tensor.h"
#include "llmk_cmocka.h"
#include "support/tensors.h"

#define BUFFER_BYTES 4096u

static llmk_context *ctx;
static cl_mem buffer;

static int set_up(void **state)
{
    (void)state;
    if (llmk_context_create(NULL, &ctx) != LLMK_OK)
        return -1;
    buffer =
        clCreateBuffer(llmk_context_cl_context(ctx), CL_MEM_READ_WRITE, BUFFER_BYTES, NULL, NULL);
    return buffer ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    clReleaseMemObject(buffer);
    llmk_context_free(ctx);
    return 0;
}

#define ALL_DTYPES 0x3feu

/* The verdict on output `y` beside `x`. */
static llmk_status check_pair(const llmk_tensor *y, const llmk_tensor *x, llmk_role x_role,
                              bool in_place)
{
    llmk_view vy, vx;
    llmk_checker c = llmk_check_begin(ctx, "test", false);
    llmk_check_tensor(&c, "y", y, ALL_DTYPES, LLMK_OUTPUT, &vy);
    llmk_check_tensor(&c, "x", x, ALL_DTYPES, x_role, &vx);
    if (in_place)
        llmk_check_in_place(&c, &vy, &vx);
    return llmk_check_end(&c);
}

static bool legal_alone(const llmk_tensor *t, llmk_role role)
{
    llmk_view v;
    llmk_checker c = llmk_check_begin(ctx, "test", false);
    llmk_check_tensor(&c, "t", t, ALL_DTYPES, role, &v);
    return llmk_check_end(&c) == LLMK_OK;
}

static bool meet(const places *a, const places *b)
{
    uint8_t map[2][BUFFER_BYTES / 4] = {{0}}, common = 0; /* a bit for every 4 */
    places_mark(a, map[0], 2 * BUFFER_BYTES);
    places_mark(b, map[1], 2 * BUFFER_BYTES);
    for (size_t i = 0; i < sizeof map[0]; i++)
        common |= map[0][i] & map[1][i];
    return common != 0;
}

/* Byte ranges, which is what the checker goes by except for rows side by side. */
static bool ranges_meet(const places *a, const places *b)
{
    uint64_t range[2][2] = {{UINT64_MAX, 0}, {UINT64_MAX, 0}};
    for (int i = 0; i < 2; i++) {
        const places *p = i ? b : a;
        for (uint64_t n = 0; n < p->count; n++) {
            const uint64_t first = p->at[n] / 8, end = (p->at[n] + p->bits + 7) / 8;
            range[i][0] = first < range[i][0] ? first : range[i][0];
            range[i][1] = end > range[i][1] ? end : range[i][1];
        }
    }
    return range[0][0] < range[1][1] && range[1][0] < range[0][1];
}

static bool same_places(const places *a, const places *b)
{
    return a->count == b->count && memcmp(a->at, b->at, a->count * sizeof a->at[0]) == 0;
}

static bool same_shape(const llmk_tensor *a, const llmk_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]) == 0;
}

static void fail_pair(const char *what, const llmk_tensor *y, const llmk_tensor *x)
{
    char y_text[256], x_text[256];
    fail_msg("%s:\n  y %s\n  x %s\n  %s", what, tensor_text(y, y_text), tensor_text(x, x_text),
             llmk_error_message());
}

static const llmk_dtype dtypes[] = {LLMK_F32, LLMK_F16, LLMK_BF16, LLMK_I8, LLMK_U4};

/* Now and then the very same tensor, or one that differs from it in a single number. */
static llmk_tensor companion(rng *r, const llmk_tensor *y)
{
    llmk_tensor x = *y;
    const uint32_t i = (uint32_t)rng_below(r, y->rank);
    switch (rng_below(r, 6)) {
    case 0:
        break;
    case 1:
        x.offset += (llmk_dtype_bits(x.dtype) + 7) / 8 * rng_below(r, 8);
        break;
    case 2:
        x.stride[i] += rng_below(r, 3);
        break;
    case 3:
        x.dim[i] += rng_below(r, 2);
        break;
    case 4:
        x.dtype = x.dtype == LLMK_F16 ? LLMK_BF16 : x.dtype;
        break;
    default:
        x = random_tensor(r, buffer, dtypes[rng_below(r, LLMK_COUNT(dtypes))],
                          (tensor_kind)rng_below(r, TENSOR_KINDS));
        x.offset += rng_below(r, 40) * 16;
        break;
    }
    return x;
}

static void test_random_pairs(void **state)
{
    (void)state;
    rng r = rng_seed("random pairs", 4);
    unsigned apart = 0, together = 0, in_place = 0, cautious = 0;
    for (int round = 0; round < 60000; round++) {
        const llmk_tensor y = random_tensor(&r, buffer, dtypes[rng_below(&r, LLMK_COUNT(dtypes))],
                                            (tensor_kind)rng_below(&r, TENSOR_KINDS));
        const llmk_tensor x = companion(&r, &y);
        const llmk_role role = rng_one_in(&r, 2) ? LLMK_OUTPUT : LLMK_INPUT;
        const bool allowed = rng_one_in(&r, 2);
        if (!legal_alone(&y, LLMK_OUTPUT) || !legal_alone(&x, role))
            continue;
        const places py = places_of(&y), px = places_of(&x);
        const llmk_status status = check_pair(&y, &x, role, allowed);
        if (status != LLMK_OK && status != LLMK_OVERLAP)
            fail_pair(llmk_status_string(status), &y, &x);
        const bool overlap = meet(&py, &px);
        if (overlap && allowed && y.dtype == x.dtype && same_places(&py, &px)) {
            if (status != LLMK_OK && same_shape(&y, &x))
                fail_pair("the same elements are refused in place", &y, &x);
            in_place++;
        } else if (overlap) {
            if (status == LLMK_OK)
                fail_pair("an overlap is accepted", &y, &x);
            together++;
        } else if (!ranges_meet(&py, &px)) {
            if (status != LLMK_OK)
                fail_pair("tensors apart are refused", &y, &x);
            apart++;
        } else {
            cautious += status != LLMK_OK;
        }
    }
    printf("%u apart, %u overlapping, %u in place, %u refused out of caution\n", apart, together,
           in_place, cautious);
    assert_true(apart > 2000 && together > 2000 && in_place > 500);
}

/* Slices of the columns of one matrix, of one or two dtypes: decided exactly. */
static void test_column_slices(void **state)
{
    (void)state;
    rng r = rng_seed("column slices", 5);
    unsigned accepted = 0, refused = 0;
    for (int round = 0; round < 40000; round++) {
        llmk_tensor t[2];
        const uint64_t pitch = 64, rows = 2 + rng_below(&r, 6); /* pitch: bytes */
        for (int i = 0; i < 2; i++) {
            const llmk_dtype dtype = dtypes[rng_below(&r, LLMK_COUNT(dtypes))];
            const uint64_t bits = llmk_dtype_bits(dtype), size = (bits + 7) / 8;
            t[i] = llmk_matrix_strided(buffer, rng_below(&r, 3 * pitch / size) * size, dtype, rows,
                                       1 + rng_below(&r, pitch * 8 / bits / 2), pitch * 8 / bits);
            if (rng_one_in(&r, 3)) { /* the same rows in two dimensions */
                t[i].rank = 3;
                t[i].dim[2] = t[i].dim[1];
                t[i].dim[1] = rows;
                t[i].dim[0] = 1 + rng_below(&r, 2);
                t[i].stride[2] = 1;
                t[i].stride[1] = t[i].stride[0];
                t[i].stride[0] *= rows;
            }
        }
        const places py = places_of(&t[0]), px = places_of(&t[1]);
        /* Bytes, not bits: a slice of half a byte is not to be had beside another half. */
        const llmk_status status = check_pair(&t[0], &t[1], LLMK_OUTPUT, false);
        if (meet(&py, &px)) {
            if (status != LLMK_OVERLAP)
                fail_pair("overlapping slices are accepted", &t[0], &t[1]);
            refused++;
        } else if (t[0].dtype != LLMK_U4 && t[1].dtype != LLMK_U4) {
            if (status != LLMK_OK)
                fail_pair("slices side by side are refused", &t[0], &t[1]);
            accepted++;
        }
    }
    assert_true(accepted > 1000 && refused > 1000);
}

/* An output beside two inputs and another output: every pair counts, and inputs may share. */
static void test_several(void **state)
{
    (void)state;
    const struct {
        uint64_t x, residual, sum, y; /* offsets of vectors of 16 bytes */
        llmk_status status;
        const char *names;
    } cases[] = {
        {0, 16, 32, 48, LLMK_OK, ""},
        {0, 0, 32, 48, LLMK_OK, ""},
        {0, 4, 32, 48, LLMK_OK, ""},
        {0, 16, 32, 0, LLMK_OK, ""}, /* y in place over x */
        {0, 16, 32, 4, LLMK_OVERLAP, "y overlaps x without being in place"},
        {0, 16, 32, 12, LLMK_OVERLAP, "y overlaps x"},
        {0, 16, 32, 16, LLMK_OVERLAP, "y overlaps residual"},
        {0, 16, 16, 0, LLMK_OK, ""}, /* sum over residual, y over x */
        {0, 16, 32, 32, LLMK_OVERLAP, "sum overlaps y"},
        {0, 16, 32, 44, LLMK_OVERLAP, "sum overlaps y"},
        {0, 0, 0, 0, LLMK_OVERLAP, ""},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        const uint64_t offsets[4] = {cases[i].x, cases[i].residual, cases[i].sum, cases[i].y};
        const char *const names[4] = {"x", "residual", "sum", "y"};
        llmk_view v[4];
        llmk_checker c = llmk_check_begin(ctx, "test", false);
        for (int n = 0; n < 4; n++) {
            llmk_tensor t = llmk_vector(buffer, LLMK_F32, 4);
            t.offset = offsets[n];
            llmk_check_tensor(&c, names[n], &t, LLMK_FLOATS, n < 2 ? LLMK_INPUT : LLMK_OUTPUT,
                              &v[n]);
        }
        llmk_check_in_place(&c, &v[3], &v[0]);
        llmk_check_in_place(&c, &v[2], &v[1]);
        const llmk_status status = llmk_check_end(&c);
        if (status != cases[i].status ||
            (status != LLMK_OK && !strstr(llmk_error_message(), cases[i].names)))
            fail_msg("case %zu: %s (%s)", i, llmk_status_string(status), llmk_error_message());
    }
}

/* After the first failure nothing else is said. */
static void test_sticky(void **state)
{
    (void)state;
    llmk_tensor bad = llmk_vector(buffer, LLMK_I8, 4), worse = llmk_vector(NULL, LLMK_F32, 4);
    llmk_view a, b;
    llmk_checker c = llmk_check_begin(ctx, "test", false);
    llmk_check_tensor(&c, "a", &bad, LLMK_FLOATS, LLMK_INPUT, &a);
    llmk_check_tensor(&c, "b", &worse, LLMK_FLOATS, LLMK_OUTPUT, &b);
    llmk_check_same_shape(&c, "a", &a, "b", &b);
    llmk_check_rows_like(&c, "a", &a, "b", &b, 9);
    llmk_check_vector(&c, "a", &a, 9);
    llmk_check_matrix(&c, "a", &a, 9, 9);
    llmk_check_flags(&c, 0xffffffffu, 0);
    llmk_check_that(&c, false, LLMK_INTERNAL, "not reached");
    llmk_check_absent(&c, "a", &bad, "not reached");
    llmk_check_in_place(&c, &a, &b);
    assert_int_equal(llmk_check_end(&c), LLMK_INVALID_DTYPE);
    assert_non_null(strstr(llmk_error_message(), "test: a.dtype is i8 (4); expected one of f32"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_pairs),
        cmocka_unit_test(test_column_slices),
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_sticky),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
