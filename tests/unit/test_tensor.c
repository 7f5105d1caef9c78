/* test_tensor.c - one tensor against plain enumeration of its elements: what is legal, how it folds
 * to rows, its extents, its alignment, self-overlap, the edges of 64 bits. */
#include "core/core.h"
#include "core/tensor.h"
#include "llmk_cmocka.h"
#include "support/tensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUFFER_BYTES 1024u
#define ALL_DTYPES   0x3feu

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

static llmk_status check_one(const llmk_tensor *t, llmk_role role, bool dry, llmk_view *view)
{
    llmk_checker c = llmk_check_begin(ctx, "test", dry);
    llmk_check_tensor(&c, "t", t, ALL_DTYPES, role, view);
    return llmk_check_end(&c);
}

/* ---- Random tensors ---- */

static const llmk_dtype dtypes[] = {LLMK_F32, LLMK_F16, LLMK_BF16, LLMK_I8, LLMK_U8, LLMK_U4};

static llmk_tensor any_tensor(rng *r)
{
    const llmk_dtype dtype = dtypes[rng_below(r, LLMK_COUNT(dtypes))];
    llmk_tensor t = random_tensor(r, buffer, dtype, (tensor_kind)rng_below(r, TENSOR_KINDS));
    for (uint32_t i = 0; dtype == LLMK_U4 && i < t.rank && rng_below(r, 8) > 0; i++)
        t.stride[i] = i + 1 == t.rank ? t.stride[i] != 0 : (t.stride[i] + 1) & ~(uint64_t)1;
    return t;
}

/* The statuses that `t` deserves, each its own bit; 0: it is legal. `*may` allows for a refusal
 * that is not needed: strides that interleave without meeting, in an output. */
#define FAULT(status) (1u << (status))

static uint32_t faults_of(const llmk_tensor *t, llmk_role role, const places *p, uint32_t *may)
{
    uint32_t faults = 0;
    bool given = false;
    *may = 0;
    for (uint32_t i = 0; i < t->rank; i++)
        given = given || t->stride[i] != 0;
    for (uint32_t i = 0; given && p->count > 0 && i < t->rank; i++) {
        const bool inner = i + 1 == t->rank;
        if (t->dim[i] > 1 && t->stride[i] == 0)
            faults |= FAULT(LLMK_INVALID_STRIDE);
        if (t->dtype == LLMK_U4 && t->dim[i] > 1 &&
            (inner ? t->stride[i] != 1 : t->stride[i] % 2 != 0))
            faults |= FAULT(LLMK_INVALID_STRIDE);
    }
    if (!given && t->dtype == LLMK_U4 && p->count > 0) { /* packed rows must be whole bytes */
        uint64_t run = t->dim[t->rank - 1];
        for (uint32_t i = t->rank - 1; i-- > 0; run *= t->dim[i])
            if (t->dim[i] > 1 && run % 2 != 0)
                faults |= FAULT(LLMK_INVALID_STRIDE);
    }
    if (p->bits >= 8 && t->offset % (p->bits / 8) != 0)
        faults |= FAULT(LLMK_INVALID_STRIDE);
    uint64_t last = t->offset * 8;
    uint8_t map[8192] = {0};
    for (uint64_t n = 0; n < p->count; n++)
        last = p->at[n] + p->bits > last ? p->at[n] + p->bits : last;
    if ((last + 7) / 8 > BUFFER_BYTES)
        faults |= FAULT(LLMK_BUFFER_TOO_SMALL);
    if (role == LLMK_OUTPUT && !places_mark(p, map, 8 * sizeof map))
        faults |= FAULT(LLMK_INVALID_STRIDE);
    for (uint32_t i = 0; role == LLMK_OUTPUT && i < t->rank; i++)
        for (uint32_t j = 0; j < t->rank;
             j++) /* does i step over j's whole extent, or j over i's? */
            if (i != j && t->dim[i] > 1 && t->dim[j] > 1 && t->stride[i] >= t->stride[j] &&
                t->stride[i] < t->dim[j] * t->stride[j])
                *may |= FAULT(LLMK_INVALID_STRIDE);
    return faults;
}

static uint64_t row_at(const llmk_rows *rows, uint64_t r, uint64_t c)
{
    const uint64_t i2 = r % rows->n2, i1 = r / rows->n2 % rows->n1, i0 = r / rows->n2 / rows->n1;
    return rows->offset + i0 * rows->s0 + i1 * rows->s1 + i2 * rows->s2 + c * rows->inner;
}

static void assert_view(const llmk_view *v, const llmk_tensor *t, const places *p)
{
    uint64_t first = UINT64_MAX, last = 0;
    assert_true(v->present);
    assert_int_equal(v->count, p->count);
    assert_int_equal(v->nrows * v->ncols, p->count);
    assert_int_equal(v->ncols, t->dim[t->rank - 1]);
    for (uint64_t n = 0; n < p->count; n++) {
        const uint64_t r = n / v->ncols, c = n % v->ncols;
        assert_int_equal(row_at(&v->rows, r, c) * p->bits, p->at[n]);
        if (v->simple)
            assert_int_equal(v->rows.offset + r * v->rows.s0 + c * v->rows.inner,
                             p->at[n] / p->bits);
        if (v->unit)
            assert_int_equal(row_at(&v->rows, r, c), row_at(&v->rows, r, 0) + c);
        first = p->at[n] < first ? p->at[n] : first;
        last = p->at[n] + p->bits > last ? p->at[n] + p->bits : last;
    }
    if (p->count == 0) {
        assert_int_equal(v->begin, v->end);
        return;
    }
    assert_int_equal(v->begin, first / 8);
    assert_int_equal(v->end, (last + 7) / 8);
}

/* The largest power of two, within the limits, that divides every row's address. */
static void assert_align(const llmk_view *v, const places *p)
{
    uint64_t all = 256u | ctx->caps.base_align;
    for (uint64_t r = 0; r < v->nrows; r++)
        all |= p->at[r * v->ncols] / 8;
    assert_int_equal(v->align, all & (~all + 1));
}

static void test_random_tensors(void **state)
{
    (void)state;
    rng r = rng_seed("random tensors", 20250101);
    unsigned legal = 0, refused = 0, interleaved = 0;
    for (int round = 0; round < 60000; round++) {
        const llmk_tensor t = any_tensor(&r);
        const llmk_role role = rng_one_in(&r, 2) ? LLMK_OUTPUT : LLMK_INPUT;
        const places p = places_of(&t);
        char text[256];
        uint32_t may;
        const uint32_t faults = faults_of(&t, role, &p, &may);
        llmk_view v;
        const llmk_status status = check_one(&t, role, false, &v);
        const bool expected = faults ? (faults >> status & 1) || (may >> status & 1)
                                     : status == LLMK_OK || (may >> status & 1);
        if (!expected)
            fail_msg("%s as %s: %s (%s)", tensor_text(&t, text),
                     role == LLMK_OUTPUT ? "an output" : "an input", llmk_status_string(status),
                     status == LLMK_OK ? "accepted" : llmk_error_message());
        if (status == LLMK_OK) {
            assert_view(&v, &t, &p);
            if (p.count > 0)
                assert_align(&v, &p);
            legal++;
        } else if (faults) {
            refused++;
        } else {
            interleaved++;
        }
    }
    printf("%u legal, %u refused, %u refused for interleaved strides\n", legal, refused,
           interleaved);
    assert_true(legal > 10000 && refused > 5000);
}

static void assert_flat(llmk_view *view, const places *p)
{
    llmk_view *const views[1] = {view};
    const bool was_flat = view->nrows <= 1;
    llmk_views_flatten(views, 1);
    bool contiguous = true;
    for (uint64_t n = 0; n < p->count; n++) {
        assert_int_equal(row_at(&view->rows, n / view->ncols, n % view->ncols) * p->bits, p->at[n]);
        contiguous = contiguous && p->at[n] == p->at[0] + n * p->bits;
    }
    assert_int_equal(view->nrows * view->ncols, p->count);
    if (contiguous && p->count > 0) {
        assert_int_equal(view->nrows, 1);
        assert_true(view->simple && view->unit);
        assert_align(view, p); /* one row: the alignment is that of the first element */
    } else {
        assert_true(was_flat || view->nrows != 1);
    }
}

static void test_flatten(void **state)
{
    (void)state;
    rng r = rng_seed("flatten", 7);
    for (int round = 0; round < 20000; round++) {
        const llmk_tensor t = any_tensor(&r);
        const places p = places_of(&t);
        llmk_view v;
        if (check_one(&t, LLMK_INPUT, false, &v) == LLMK_OK)
            assert_flat(&v, &p);
    }
}

/* One view that cannot be one row keeps the others as they are: rows must go together. */
static void test_flatten_together(void **state)
{
    (void)state;
    llmk_tensor packed = llmk_matrix(buffer, LLMK_F32, 4, 6);
    llmk_tensor padded = llmk_matrix_strided(buffer, 0, LLMK_F32, 4, 6, 8);
    llmk_view a, b, c, absent = {0};
    assert_int_equal(check_one(&packed, LLMK_INPUT, false, &a), LLMK_OK);
    assert_int_equal(check_one(&padded, LLMK_INPUT, false, &b), LLMK_OK);
    llmk_views_flatten((llmk_view *[]){&a, &absent, &b}, 3);
    assert_int_equal(a.nrows, 4);
    assert_int_equal(b.nrows, 4);
    assert_int_equal(check_one(&packed, LLMK_INPUT, false, &c), LLMK_OK);
    llmk_views_flatten((llmk_view *[]){&a, &absent, &c}, 3);
    assert_int_equal(a.nrows, 1);
    assert_int_equal(c.ncols, 24);
    assert_false(absent.present);
}

/* Some columns of a view are where they were, and their alignment is true before and after rows
 * become one. */
static void test_columns(void **state)
{
    (void)state;
    rng r = rng_seed("columns", 11);
    unsigned flat = 0;
    for (int round = 0; round < 20000; round++) {
        const llmk_tensor t = any_tensor(&r);
        llmk_view whole;
        if (check_one(&t, LLMK_INPUT, false, &whole) != LLMK_OK || whole.count == 0 ||
            t.dtype == LLMK_U4)
            continue;
        const places all = places_of(&t);
        const uint64_t step = 1 + rng_below(&r, 2), first = rng_below(&r, whole.ncols);
        const uint64_t count = 1 + rng_below(&r, (whole.ncols - 1 - first) / step + 1);
        llmk_view part = llmk_view_columns(&whole, first, count, step);
        places p = {.bits = all.bits};
        for (uint64_t n = 0; n < whole.count; n++) {
            const uint64_t c = n % whole.ncols;
            if (c >= first && (c - first) % step == 0 && (c - first) / step < count)
                p.at[p.count++] = all.at[n];
        }
        assert_int_equal(part.count, p.count);
        for (uint64_t n = 0; n < p.count; n++) {
            assert_int_equal(row_at(&part.rows, n / count, n % count) * p.bits, p.at[n]);
            assert_int_equal(p.at[n - n % count] / 8 % part.align, 0);
        }
        llmk_views_flatten((llmk_view *[]){&part}, 1);
        flat += part.nrows == 1;
        for (uint64_t n = 0; n < p.count; n++) {
            assert_int_equal(row_at(&part.rows, n / part.ncols, n % part.ncols) * p.bits, p.at[n]);
            assert_int_equal(p.at[n - n % part.ncols] / 8 % part.align, 0);
        }
    }
    assert_true(flat > 1000);
}

/* ---- The edges of 64 bits ---- */

#define T63 ((uint64_t)1 << 63)
#define T40 ((uint64_t)1 << 40)

static void test_huge_numbers(void **state)
{
    (void)state;
    static const struct {
        uint32_t rank;
        uint64_t dim[4], stride[4], offset;
        uint32_t wanted; /* the statuses that will do */
    } cases[] = {
        {1, {T63}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {1, {T63 - 1}, {1}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {1, {UINT64_MAX}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {1, {T63 / 16}, {0}, 0, FAULT(LLMK_BUFFER_TOO_SMALL) | FAULT(LLMK_INVALID_SHAPE)},
        {1, {T40}, {0}, 0, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {1, {257}, {0}, 0, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {1, {256}, {0}, 4, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {1, {256}, {0}, 0, FAULT(LLMK_OK)},
        {2, {T63, 2}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {2, {(uint64_t)1 << 32, (uint64_t)1 << 32}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {4, {T40, T40, T40, T40}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {2, {0, T40}, {0}, 0, FAULT(LLMK_OK)},
        {4, {T63, T63, 0, T63}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {2, {2, 1}, {T63, 1}, 0, FAULT(LLMK_INVALID_STRIDE) | FAULT(LLMK_BUFFER_TOO_SMALL)},
        {2, {2, 1}, {UINT64_MAX, 1}, 0, FAULT(LLMK_INVALID_STRIDE) | FAULT(LLMK_BUFFER_TOO_SMALL)},
        {2, {3, 1}, {T63, 1}, 0, FAULT(LLMK_INVALID_STRIDE)},
        {2, {2, 2}, {T63, T63}, 0, FAULT(LLMK_INVALID_STRIDE)},
        {2, {2, 2}, {UINT64_MAX, 1}, 0, FAULT(LLMK_INVALID_STRIDE)},
        {2, {2, 4}, {UINT64_MAX / 4 + 2, 1}, 0, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {2, {2, 4}, {((uint64_t)1 << 62) + 1, 1}, 4, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {2, {5, 4}, {((uint64_t)1 << 62), 1}, 0, FAULT(LLMK_INVALID_STRIDE)},
        {4, {1, 1, 1, 1}, {UINT64_MAX, UINT64_MAX, T63, T40}, 0, FAULT(LLMK_OK)},
        {1, {1}, {0}, UINT64_MAX - 3, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {1, {1}, {0}, T63, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {1, {0}, {0}, UINT64_MAX - 3, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {1, {1}, {0}, 1020, FAULT(LLMK_OK)},
        {1, {1}, {0}, 1024, FAULT(LLMK_BUFFER_TOO_SMALL)},
        {0, {0}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {5, {1, 1, 1, 1}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
        {UINT32_MAX, {1, 1, 1, 1}, {0}, 0, FAULT(LLMK_INVALID_SHAPE)},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++)
        for (int role = LLMK_INPUT; role <= LLMK_OUTPUT; role++)
            for (int dry = 0; dry < 2; dry++) {
                llmk_tensor t = {.buffer = dry ? NULL : buffer,
                                 .dtype = LLMK_F32,
                                 .rank = cases[i].rank,
                                 .offset = cases[i].offset};
                memcpy(t.dim, cases[i].dim, sizeof t.dim);
                memcpy(t.stride, cases[i].stride, sizeof t.stride);
                llmk_view v;
                const llmk_status status = check_one(&t, (llmk_role)role, dry, &v);
                const bool fits = dry && (cases[i].wanted >> LLMK_BUFFER_TOO_SMALL & 1);
                if (!(cases[i].wanted >> status & 1) && !(fits && status == LLMK_OK))
                    fail_msg("case %zu, role %d, dry %d: %s (%s)", i, role, dry,
                             llmk_status_string(status), llmk_error_message());
            }
}

/* The stride that is named is the one to look at. */
static void test_culprit(void **state)
{
    (void)state;
    static const struct {
        uint64_t dim[3], stride[3];
        const char *name;
    } cases[] = {
        {{2, 2, 2}, {UINT64_MAX, 2, 1}, "t.stride[0] is 18446744073709551615"},
        {{2, 2, 2}, {8, UINT64_MAX, 1}, "t.stride[1] is 18446744073709551615"},
        {{3, 2, 2}, {T63, 2, 1}, "t.stride[0] is 9223372036854775808"},
        {{2, 2, 2}, {T63, T63 + 1, 1}, "t.stride[1] is 9223372036854775809"},
        {{2, 2, 2}, {4, 2, UINT64_MAX}, "t.stride[2] is 18446744073709551615"},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        llmk_tensor t = {.buffer = buffer, .dtype = LLMK_F32, .rank = 3};
        memcpy(t.dim, cases[i].dim, sizeof cases[i].dim);
        memcpy(t.stride, cases[i].stride, sizeof cases[i].stride);
        llmk_view v;
        assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_INVALID_STRIDE);
        if (!strstr(llmk_error_message(), cases[i].name))
            fail_msg("\"%s\" is not in: %s", cases[i].name, llmk_error_message());
    }
}

/* ---- Buffers ---- */

/* A tensor is absent where nothing of it is set, not where its buffer could not be made. */
static void test_absent(void **state)
{
    (void)state;
    llmk_tensor t = llmk_vector(NULL, LLMK_F16, 4);
    llmk_view v;
    for (int dry = 0; dry < 2; dry++) {
        llmk_checker c = llmk_check_begin(ctx, "test", dry);
        llmk_check_optional(&c, "t", &t, ALL_DTYPES, LLMK_INPUT, &v);
        assert_int_equal(llmk_check_end(&c), dry ? LLMK_OK : LLMK_INVALID_ARGUMENT);
        assert_int_equal(v.present, dry);
        if (!dry)
            assert_non_null(strstr(llmk_error_message(), "t.buffer is NULL and its dtype f16"));
        const llmk_tensor nothing = {0};
        c = llmk_check_begin(ctx, "test", dry);
        llmk_check_optional(&c, "t", &nothing, ALL_DTYPES, LLMK_INPUT, &v);
        assert_int_equal(llmk_check_end(&c), LLMK_OK);
        assert_false(v.present);
    }
}

static void test_bad_buffers(void **state)
{
    (void)state;
    llmk_tensor t = llmk_vector(NULL, LLMK_F32, 4);
    llmk_view v;
    assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_INVALID_ARGUMENT);
    assert_non_null(strstr(llmk_error_message(), "t.buffer is NULL"));
    t.dtype = LLMK_DTYPE_NONE;
    assert_int_equal(check_one(&t, LLMK_INPUT, true, &v), LLMK_INVALID_ARGUMENT);

    llmk_context *other;
    assert_int_equal(llmk_context_create(NULL, &other), LLMK_OK);
    cl_mem foreign =
        clCreateBuffer(llmk_context_cl_context(other), CL_MEM_READ_WRITE, 64, NULL, NULL);
    t = llmk_vector(foreign, LLMK_F32, 4);
    assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_INVALID_BUFFER);
    clReleaseMemObject(foreign);
    llmk_context_free(other);

    for (int dtype = -1; dtype < 40; dtype++) {
        t = llmk_vector(buffer, (llmk_dtype)dtype, 4);
        const llmk_status status = check_one(&t, LLMK_INPUT, false, &v);
        assert_int_equal(status, llmk_dtype_bits((llmk_dtype)dtype) ? LLMK_OK : LLMK_INVALID_DTYPE);
    }
    t = llmk_vector(buffer, LLMK_F32, 4);
    t.reserved = 1;
    assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_INVALID_ARGUMENT);
    t.reserved = 0;
    t.memory = (llmk_memory)1;
    assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_INVALID_ARGUMENT);
}

/* What a buffer was made for is what it is used for. */
static void test_access(void **state)
{
    (void)state;
    static const struct {
        cl_mem_flags flags;
        llmk_role role;
        llmk_status status;
    } cases[] = {
        {CL_MEM_READ_ONLY, LLMK_INPUT, LLMK_OK},
        {CL_MEM_READ_ONLY, LLMK_OUTPUT, LLMK_INVALID_BUFFER},
        {CL_MEM_WRITE_ONLY, LLMK_INPUT, LLMK_INVALID_BUFFER},
        {CL_MEM_WRITE_ONLY, LLMK_OUTPUT, LLMK_OK},
        {CL_MEM_READ_WRITE, LLMK_INPUT, LLMK_OK},
        {CL_MEM_READ_WRITE, LLMK_OUTPUT, LLMK_OK},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        cl_mem made = clCreateBuffer(llmk_context_cl_context(ctx), cases[i].flags, 64, NULL, NULL);
        const llmk_tensor t = llmk_vector(made, LLMK_F32, 4);
        llmk_view v;
        assert_int_equal(check_one(&t, cases[i].role, false, &v), cases[i].status);
        clReleaseMemObject(made);
    }
}

static void test_image_is_no_buffer(void **state)
{
    (void)state;
    cl_bool images = CL_FALSE;
    clGetDeviceInfo(llmk_context_cl_device(ctx), CL_DEVICE_IMAGE_SUPPORT, sizeof images, &images,
                    NULL);
    const cl_image_format format = {CL_RGBA, CL_FLOAT};
    const cl_image_desc desc = {
        .image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 16};
    cl_mem image = images ? clCreateImage(llmk_context_cl_context(ctx), CL_MEM_READ_WRITE, &format,
                                          &desc, NULL, NULL)
                          : NULL;
    if (!image)
        skip();
    llmk_tensor t = llmk_vector(image, LLMK_F32, 4);
    llmk_view v;
    assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_INVALID_BUFFER);
    clReleaseMemObject(image);
}

/* A sub-buffer is a window of its parent: sizes are its own, places the parent's. */
static void test_sub_buffers(void **state)
{
    (void)state;
    cl_mem sub[2];
    for (size_t i = 0; i < 2; i++) {
        const cl_buffer_region region = {i * 256, 384};
        sub[i] = clCreateSubBuffer(buffer, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region,
                                   NULL);
        assert_non_null(sub[i]);
    }
    llmk_view v;
    llmk_tensor t = llmk_matrix_strided(sub[1], 8, LLMK_F32, 2, 4, 8);
    assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_OK);
    assert_ptr_equal(v.buffer, sub[1]);
    assert_ptr_equal(v.root, buffer);
    assert_int_equal(v.rows.offset, 2); /* the kernel gets the sub-buffer */
    assert_int_equal(v.begin, 256 + 8);
    assert_int_equal(v.end, 256 + 8 + (8 + 4) * 4);
    t = llmk_vector(sub[1], LLMK_F32, 97);
    assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_BUFFER_TOO_SMALL);

    /* Bytes 256 to 384 of the parent belong to both. */
    const struct {
        uint64_t offset;
        llmk_status status;
    } places_of_output[] = {{0, LLMK_OVERLAP}, {124, LLMK_OVERLAP}, {128, LLMK_OK}};
    for (size_t i = 0; i < LLMK_COUNT(places_of_output); i++) {
        const llmk_tensor x = llmk_vector(sub[0], LLMK_F32, 96);
        llmk_tensor y = llmk_vector(sub[1], LLMK_F32, 4);
        y.offset = places_of_output[i].offset;
        llmk_view vx, vy;
        llmk_checker c = llmk_check_begin(ctx, "test", false);
        llmk_check_tensor(&c, "x", &x, LLMK_FLOATS, LLMK_INPUT, &vx);
        llmk_check_tensor(&c, "y", &y, LLMK_FLOATS, LLMK_OUTPUT, &vy);
        assert_int_equal(llmk_check_end(&c), places_of_output[i].status);
    }
    clReleaseMemObject(sub[0]);
    clReleaseMemObject(sub[1]);
}

/* A CPU device uses the caller's memory in place: its address is part of the alignment. */
static void test_host_pointers(void **state)
{
    (void)state;
    static _Alignas(256) unsigned char memory[1024];
    if (!llmk_is_cpu(&ctx->caps))
        skip();
    for (size_t shift = 0; shift <= 64; shift = shift ? shift * 2 : 1) {
        cl_mem wrapped =
            clCreateBuffer(llmk_context_cl_context(ctx), CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                           512, memory + shift, NULL);
        assert_non_null(wrapped);
        llmk_tensor t = llmk_matrix(wrapped, LLMK_F32, 2, 64);
        llmk_view v;
        assert_int_equal(check_one(&t, LLMK_INPUT, false, &v), LLMK_OK);
        const uint64_t all = 256u | ctx->caps.base_align | (uintptr_t)(memory + shift);
        assert_int_equal(v.align, all & (~all + 1));
        clReleaseMemObject(wrapped);
    }
}

/* llmk_prepare must build what the call will use, so a dry view has the same shape and alignment.
 */
static void test_dry_views(void **state)
{
    (void)state;
    rng r = rng_seed("dry views", 11);
    for (int round = 0; round < 5000; round++) {
        llmk_tensor t = any_tensor(&r);
        llmk_view wet, dry;
        if (check_one(&t, LLMK_OUTPUT, false, &wet) != LLMK_OK)
            continue;
        t.buffer = NULL;
        assert_int_equal(check_one(&t, LLMK_OUTPUT, true, &dry), LLMK_OK);
        assert_memory_equal(&wet.rows, &dry.rows, sizeof wet.rows);
        assert_int_equal(wet.align, dry.align);
        assert_int_equal(wet.simple, dry.simple);
        assert_int_equal(wet.unit, dry.unit);
        assert_int_equal(wet.count, dry.count);
    }
}

/* ---- struct_size ---- */

static void test_take_args(void **state)
{
    (void)state;
    struct {
        size_t struct_size;
        unsigned char rest[120];
    } given;
    struct {
        size_t struct_size;
        unsigned char rest[24];
    } local;
    const struct {
        size_t size;
        size_t set; /* the byte of `rest` that is 1 */
        llmk_status status;
    } cases[] = {
        {0, 0, LLMK_INVALID_ARGUMENT},
        {1, 0, LLMK_INVALID_ARGUMENT},
        {15, 0, LLMK_INVALID_ARGUMENT},
        {16, 7, LLMK_OK},
        {24, 15, LLMK_OK},
        {32, 23, LLMK_OK},
        {64, 23, LLMK_OK},
        {64, 24, LLMK_UNSUPPORTED},
        {64, 55, LLMK_UNSUPPORTED},
        {65, 0, LLMK_INVALID_ARGUMENT},
        {65536, 0, LLMK_INVALID_ARGUMENT},
        {SIZE_MAX, 0, LLMK_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        memset(&given, 0, sizeof given);
        memset(&local, 0xff, sizeof local);
        given.struct_size = cases[i].size;
        given.rest[cases[i].set] = 1;
        const llmk_status status = llmk_take_args("test", &given, 16, sizeof local, &local);
        assert_int_equal(status, cases[i].status);
        if (status != LLMK_OK) {
            assert_non_null(strstr(llmk_error_message(), "struct_size"));
            continue;
        }
        assert_int_equal(local.rest[cases[i].set], 1);
        if (cases[i].size < sizeof local) /* what the caller's version lacks is zero */
            assert_int_equal(local.rest[sizeof local.rest - 1], 0);
    }
    assert_int_equal(llmk_take_args("test", NULL, 16, sizeof local, &local), LLMK_INVALID_ARGUMENT);
}

/* A struct_size that is garbage makes nothing be read beyond the caller's memory. */
static void test_guard_page(void **state)
{
    (void)state;
    enum { SIZE = 40 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char local[SIZE];
    const int zero = open("/dev/zero", O_RDWR);
    unsigned char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0);
    assert_true(map != MAP_FAILED);
    close(zero);
    assert_int_equal(mprotect(map + page, page, PROT_NONE), 0);
    unsigned char *args = map + page - SIZE;
    const size_t garbage[] = {2 * SIZE + 1, 4096, 65536, SIZE_MAX / 2, SIZE_MAX};
    for (size_t i = 0; i < LLMK_COUNT(garbage); i++) {
        memcpy(args, &garbage[i], sizeof garbage[i]);
        assert_int_equal(llmk_take_args("test", args, SIZE, SIZE, local), LLMK_INVALID_ARGUMENT);
        assert_non_null(strstr(llmk_error_message(), "struct_size"));
    }
    munmap(map, 2 * page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_tensors),   cmocka_unit_test(test_flatten),
        cmocka_unit_test(test_flatten_together), cmocka_unit_test(test_huge_numbers),
        cmocka_unit_test(test_bad_buffers),      cmocka_unit_test(test_image_is_no_buffer),
        cmocka_unit_test(test_access),           cmocka_unit_test(test_sub_buffers),
        cmocka_unit_test(test_host_pointers),    cmocka_unit_test(test_dry_views),
        cmocka_unit_test(test_take_args),        cmocka_unit_test(test_guard_page),
        cmocka_unit_test(test_absent),           cmocka_unit_test(test_columns),
        cmocka_unit_test(test_culprit),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
