/* tensor.c - checking and folding tensors. */
#include "core/tensor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define MAX_ALIGN 256u

llmk_status llmk_take_struct(const char *op, const char *name, const void *args, size_t minimum,
                             size_t size, void *local)
{
    if (!args)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: %s is NULL", op, name);
    size_t given;
    memcpy(&given, args, sizeof given);
    /* No later version is twice as large: struct_size is garbage, and so is what would be read. */
    if (given < minimum || given > 2 * size)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "%s: %s.struct_size is %zu; expected %zu (set it with LLMK_INIT)", op,
                         name, given, size);
    /* A newer caller may have set what this version does not know. */
    const unsigned char *bytes = args;
    for (size_t i = size; i < given; i++)
        if (bytes[i] != 0)
            return llmk_fail(LLMK_UNSUPPORTED,
                             "%s: %s has a field set that this version of the library (struct_size "
                             "%zu, given %zu) does not have",
                             op, name, size, given);
    memset(local, 0, size);
    memcpy(local, args, given < size ? given : size);
    return LLMK_OK;
}

llmk_checker llmk_check_begin(llmk_context *ctx, const char *op, bool dry)
{
    return (llmk_checker){.ctx = ctx, .op = op, .dry = dry, .status = LLMK_OK};
}

static void set_failure(llmk_checker *c, llmk_status status, const char *fmt, va_list args)
    LLMK_PRINTF(3, 0);
static void set_failure(llmk_checker *c, llmk_status status, const char *fmt, va_list args)
{
    char text[1024];
    llmk_vprint(text, sizeof text, fmt, args);
    c->status = llmk_fail(status, "%s: %s", c->op, text);
}

static void fail(llmk_checker *c, llmk_status status, const char *fmt, ...) LLMK_PRINTF(3, 4);
static void fail(llmk_checker *c, llmk_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set_failure(c, status, fmt, args);
    va_end(args);
}

void llmk_check_that(llmk_checker *c, bool condition, llmk_status status, const char *fmt, ...)
{
    if (c->status != LLMK_OK || condition)
        return;
    va_list args;
    va_start(args, fmt);
    set_failure(c, status, fmt, args);
    va_end(args);
}

void llmk_check_flags(llmk_checker *c, uint32_t flags, uint32_t known)
{
    llmk_check_that(c, (flags & ~known) == 0, LLMK_INVALID_ARGUMENT,
                    "flags is 0x%x; expected bits of 0x%x only", flags, known);
}

/* ---- One tensor ---- */

/* "[2, 3, 4]" */
static const char *dims_text(char *text, size_t size, uint32_t rank, const uint64_t *dim)
{
    size_t n = (size_t)snprintf(text, size, "[");
    for (uint32_t i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%" PRIu64, i ? ", " : "", dim[i]);
    if (n < size)
        snprintf(text + n, size - n, "]");
    return text;
}

#define DIMS(t) dims_text((char[100]){0}, 100, (t)->rank, (t)->dim)

static void dtypes_text(char *text, size_t size, uint32_t dtypes)
{
    size_t n = 0;
    text[0] = '\0';
    for (uint32_t d = 1; d < 32 && n < size; d++)
        if (dtypes & (1u << d))
            n += (size_t)snprintf(text + n, size - n, "%s%s", n ? ", " : "",
                                  llmk_dtype_name((llmk_dtype)d));
}

static bool mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Strides of the view: the tensor's, or contiguous ones where it gives none. */
static bool fill_strides(const llmk_tensor *t, uint64_t stride[4])
{
    bool given = false;
    for (uint32_t i = 0; i < t->rank; i++)
        given = given || t->stride[i] != 0;
    uint64_t run = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        stride[i] = given ? t->stride[i] : run;
        if (!mul(run, t->dim[i] ? t->dim[i] : 1, &run))
            return false;
    }
    return true;
}

/* Two elements at one place: strides, from the smallest up, must step over what lies below them. */
static bool overlaps_itself(const llmk_tensor *t, const uint64_t stride[4])
{
    uint64_t reach = 1; /* elements spanned by the dimensions seen so far */
    bool used[4] = {false};
    for (uint32_t n = 0; n < t->rank; n++) {
        uint32_t least = 4;
        for (uint32_t i = 0; i < t->rank; i++)
            if (!used[i] && (least == 4 || stride[i] < stride[least]))
                least = i;
        used[least] = true;
        if (t->dim[least] == 1)
            continue;
        if (stride[least] < reach)
            return true;
        reach += (t->dim[least] - 1) * stride[least];
    }
    return false;
}

static void fold_rows(llmk_view *v, const uint64_t stride[4])
{
    uint64_t d[3] = {0}, s[3] = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i + 1 < v->rank; i++) {
        if (v->dim[i] == 1)
            continue;
        if (n > 0 && s[n - 1] == stride[i] * v->dim[i]) { /* the two step as one */
            d[n - 1] *= v->dim[i];
            s[n - 1] = stride[i];
        } else {
            d[n] = v->dim[i];
            s[n++] = stride[i];
        }
    }
    v->rows.n1 = n > 1 ? d[1] : 1;
    v->rows.n2 = n > 2 ? d[2] : 1;
    v->rows.s0 = s[0];
    v->rows.s1 = s[1];
    v->rows.s2 = s[2];
    v->rows.inner = v->ncols > 1 ? stride[v->rank - 1] : 1; /* one column's stride says nothing */
    v->simple = n <= 1;
    v->unit = v->rows.inner == 1;
}

static uint32_t lowest_bit(uint64_t bits)
{
    return (uint32_t)(bits & (~bits + 1));
}

/* The powers of two that the byte address of the first row, and of every row, is a multiple of. */
static void find_align(const llmk_checker *c, llmk_view *v, const void *host_pointer, uint64_t bits)
{
    uint64_t all = MAX_ALIGN | v->begin | (uintptr_t)host_pointer | c->ctx->caps.base_align;
    v->first_align = lowest_bit(all);
    const uint64_t steps[3] = {v->rows.s0, v->rows.s1, v->rows.s2};
    for (int i = 0; i < 3; i++)
        all |= steps[i] * bits / 8;
    v->align = lowest_bit(all);
}

llmk_status llmk_buffer_query(llmk_context *ctx, cl_mem buffer, llmk_buffer *b)
{
    *b = (llmk_buffer){0};
    cl_mem_object_type type = 0;
    cl_int err = clGetMemObjectInfo(buffer, CL_MEM_TYPE, sizeof type, &type, NULL);
    if (llmk_cl_is_invalid(err) || (err == CL_SUCCESS && type != CL_MEM_OBJECT_BUFFER))
        return LLMK_OK;
    b->is_buffer = true;
#define QUERY(what, value)                                                                         \
    if (err == CL_SUCCESS)                                                                         \
    err = clGetMemObjectInfo(buffer, what, sizeof(value), (void *)&(value), NULL)
    QUERY(CL_MEM_CONTEXT, b->owner);
    QUERY(CL_MEM_FLAGS, b->flags);
    QUERY(CL_MEM_SIZE, b->size);
    QUERY(CL_MEM_ASSOCIATED_MEMOBJECT, b->parent);
    if (b->parent)
        QUERY(CL_MEM_OFFSET, b->base);
    /* A CPU device uses the caller's memory where it lies, however that is aligned. */
    if (llmk_is_cpu(&ctx->caps) && (b->flags & CL_MEM_USE_HOST_PTR))
        QUERY(CL_MEM_HOST_PTR, b->host_pointer);
#undef QUERY
    return err == CL_SUCCESS ? LLMK_OK : llmk_fail_cl(ctx, err, "clGetMemObjectInfo");
}

static bool check_buffer(llmk_checker *c, const char *name, const llmk_tensor *t, llmk_role role,
                         llmk_view *v, uint64_t end, const void **host_pointer)
{
    llmk_buffer b;
    const llmk_status status = llmk_buffer_query(c->ctx, t->buffer, &b);
    if (status != LLMK_OK) {
        c->status = llmk_fail_prefix(status, "%s: %s.buffer", c->op, name);
        return false;
    }
    if (!b.is_buffer) {
        fail(c, LLMK_INVALID_BUFFER, "%s.buffer is not a buffer object", name);
        return false;
    }
    if (b.owner != c->ctx->cl) {
        fail(c, LLMK_INVALID_BUFFER, "%s.buffer belongs to another OpenCL context", name);
        return false;
    }
    if (b.flags & (role == LLMK_OUTPUT ? CL_MEM_READ_ONLY : CL_MEM_WRITE_ONLY)) {
        fail(c, LLMK_INVALID_BUFFER, "%s.buffer was made %s, and is %s", name,
             role == LLMK_OUTPUT ? "CL_MEM_READ_ONLY" : "CL_MEM_WRITE_ONLY",
             role == LLMK_OUTPUT ? "an output" : "an input");
        return false;
    }
    if (end > b.size) {
        fail(c, LLMK_BUFFER_TOO_SMALL, "%s reaches to byte %" PRIu64 " of a buffer of %zu bytes",
             name, end, b.size);
        return false;
    }
    *host_pointer = b.host_pointer;
    v->buffer = t->buffer;
    v->root = b.parent ? b.parent : t->buffer;
    v->begin = b.base + t->offset;
    v->end = b.base + end;
    return true;
}

/* For llmk_check_end to look for overlaps. */
static void remember(llmk_checker *c, const char *name, const llmk_view *view, llmk_role role)
{
    if (c->count == LLMK_MAX_VIEWS) {
        fail(c, LLMK_INTERNAL, "too many tensors");
        return;
    }
    c->views[c->count].name = name;
    c->views[c->count].view = view;
    c->views[c->count++].role = role;
}

static void check_tensor(llmk_checker *c, const char *name, const llmk_tensor *t, uint32_t dtypes,
                         llmk_role role, llmk_view *v)
{
    if (t->memory != LLMK_MEMORY_BUFFER || t->reserved != 0) {
        fail(c, LLMK_INVALID_ARGUMENT, "%s.memory is %d and reserved %u; expected 0 and 0", name,
             (int)t->memory, t->reserved);
        return;
    }
    if ((unsigned)t->dtype > 31 || !(dtypes & (1u << t->dtype))) {
        char wanted[96];
        dtypes_text(wanted, sizeof wanted, dtypes);
        fail(c, LLMK_INVALID_DTYPE, "%s.dtype is %s (%d); expected one of %s", name,
             llmk_dtype_name(t->dtype), (int)t->dtype, wanted);
        return;
    }
    if (t->rank < 1 || t->rank > 4) {
        fail(c, LLMK_INVALID_SHAPE, "%s.rank is %u; expected 1 to 4", name, t->rank);
        return;
    }
    const uint64_t bits = llmk_dtype_bits(t->dtype);
    v->present = true;
    v->dtype = t->dtype;
    v->rank = t->rank;
    v->count = 1;
    v->nrows = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        v->dim[i] = t->dim[i];
        uint64_t total;
        if (!mul(v->count, t->dim[i] ? t->dim[i] : 1, &v->count) || !mul(v->count, bits, &total)) {
            fail(c, LLMK_INVALID_SHAPE, "%s is %s, more than 2^64 bits", name, DIMS(t));
            return;
        }
        if (i + 1 < t->rank)
            v->nrows *= t->dim[i];
    }
    v->ncols = t->dim[t->rank - 1];
    v->count = v->nrows * v->ncols; /* 0 where any dimension is */

    uint64_t stride[4] = {0};
    if (!fill_strides(t, stride)) {
        fail(c, LLMK_INVALID_SHAPE, "%s is %s, too large", name, DIMS(t));
        return;
    }
    uint64_t last = 0, widest = 0; /* index of the last element; the largest part of it */
    uint32_t culprit = 0;
    for (uint32_t i = 0; v->count > 0 && i < t->rank; i++) {
        uint64_t step;
        if (v->count > 0 && t->dim[i] > 1 && stride[i] == 0) {
            fail(c, LLMK_INVALID_STRIDE,
                 "%s.stride[%u] is 0; expected at least 1 (all zero: contiguous)", name, i);
            return;
        }
        if (bits < 8 && t->dim[i] > 1 &&
            (i + 1 == t->rank ? stride[i] != 1 : stride[i] % (8 / bits) != 0)) {
            fail(c, LLMK_INVALID_STRIDE,
                 "%s.stride[%u] is %" PRIu64 "; %s needs an innermost stride of 1 and even others",
                 name, i, stride[i], llmk_dtype_name(t->dtype));
            return;
        }
        if (t->dim[i] <= 1)
            continue;
        const bool fits = mul(t->dim[i] - 1, stride[i], &step);
        if (!fits || step > widest) {
            widest = step;
            culprit = i;
        }
        if (!fits || __builtin_add_overflow(last, step, &last)) {
            fail(c, LLMK_INVALID_STRIDE, "%s.stride[%u] is %" PRIu64 ": elements lie beyond 2^64",
                 name, culprit, stride[culprit]);
            return;
        }
    }
    if (bits >= 8 && t->offset % (bits / 8) != 0) {
        fail(c, LLMK_INVALID_STRIDE,
             "%s.offset is %" PRIu64 " bytes; expected a multiple of the element size, %" PRIu64,
             name, t->offset, bits / 8);
        return;
    }
    uint64_t span, end = t->offset;
    if (v->count > 0 && (last > UINT64_MAX / 64 || !mul(last + 1, bits, &span) ||
                         __builtin_add_overflow(t->offset, (span + 7) / 8, &end))) {
        fail(c, LLMK_BUFFER_TOO_SMALL, "%s reaches beyond 2^64 bytes", name);
        return;
    }
    if (v->count > 0 && role == LLMK_OUTPUT && overlaps_itself(t, stride)) {
        fail(c, LLMK_INVALID_STRIDE,
             "%s is an output whose strides put two elements of %s at one place", name, DIMS(t));
        return;
    }
    const void *host_pointer = NULL;
    v->begin = t->offset; /* in a dry run too: the alignment decides about what is built */
    v->end = end;
    if (t->buffer && !check_buffer(c, name, t, role, v, end, &host_pointer))
        return;
    if (v->count > 0) {
        fold_rows(v, stride);
    } else {
        v->rows = (llmk_rows){.n1 = 1, .n2 = 1, .inner = 1};
        v->simple = v->unit = true;
    }
    v->rows.offset = t->offset * 8 / bits;
    find_align(c, v, host_pointer, bits);
    remember(c, name, v, role);
}

void llmk_check_input_of(llmk_checker *c, const char *name, const llmk_view *view)
{
    if (c->status == LLMK_OK && view->present)
        remember(c, name, view, LLMK_INPUT);
}

static bool is_present(const llmk_checker *c, const llmk_tensor *t)
{
    return t->buffer != NULL || (c->dry && t->dtype != LLMK_DTYPE_NONE);
}

void llmk_check_optional(llmk_checker *c, const char *name, const llmk_tensor *tensor,
                         uint32_t dtypes, llmk_role role, llmk_view *view)
{
    memset(view, 0, sizeof *view);
    /* A buffer that could not be made must not turn into a call without the tensor. */
    llmk_check_that(c, is_present(c, tensor) || tensor->dtype == LLMK_DTYPE_NONE,
                    LLMK_INVALID_ARGUMENT,
                    "%s.buffer is NULL and its dtype %s; expected a buffer, or nothing set where "
                    "the tensor is absent",
                    name, llmk_dtype_name(tensor->dtype));
    if (c->status == LLMK_OK && is_present(c, tensor))
        check_tensor(c, name, tensor, dtypes, role, view);
}

void llmk_check_tensor(llmk_checker *c, const char *name, const llmk_tensor *tensor,
                       uint32_t dtypes, llmk_role role, llmk_view *view)
{
    llmk_check_that(c, is_present(c, tensor), LLMK_INVALID_ARGUMENT,
                    c->dry ? "%s is absent" : "%s.buffer is NULL", name);
    llmk_check_optional(c, name, tensor, dtypes, role, view);
}

void llmk_check_absent(llmk_checker *c, const char *name, const llmk_tensor *tensor,
                       const char *why)
{
    llmk_check_that(c, tensor->buffer == NULL && tensor->dtype == LLMK_DTYPE_NONE,
                    LLMK_INVALID_ARGUMENT, "%s is given; expected none, since %s", name, why);
}

/* ---- Shapes ---- */

void llmk_check_same_shape(llmk_checker *c, const char *name, const llmk_view *view,
                           const char *other_name, const llmk_view *other)
{
    llmk_check_rows_like(c, name, view, other_name, other, other->ncols);
}

void llmk_check_rows_like(llmk_checker *c, const char *name, const llmk_view *view,
                          const char *other_name, const llmk_view *other, uint64_t cols)
{
    if (c->status != LLMK_OK || !view->present || !other->present)
        return;
    uint64_t expected[4];
    memcpy(expected, other->dim, sizeof expected);
    expected[other->rank - 1] = cols;
    if (view->rank == other->rank &&
        memcmp(view->dim, expected, view->rank * sizeof *expected) == 0)
        return;
    char got[100], want[100];
    fail(c, LLMK_INVALID_SHAPE, "%s is %s; expected %s to go with %s", name,
         dims_text(got, sizeof got, view->rank, view->dim),
         dims_text(want, sizeof want, other->rank, expected), other_name);
}

static void check_dims(llmk_checker *c, const char *name, const llmk_view *view, uint32_t rank,
                       const uint64_t *dim)
{
    if (c->status != LLMK_OK || !view->present ||
        (view->rank == rank && memcmp(view->dim, dim, rank * sizeof *dim) == 0))
        return;
    char got[100], want[100];
    fail(c, LLMK_INVALID_SHAPE, "%s is %s; expected %s", name,
         dims_text(got, sizeof got, view->rank, view->dim),
         dims_text(want, sizeof want, rank, dim));
}

void llmk_check_vector(llmk_checker *c, const char *name, const llmk_view *view, uint64_t n)
{
    check_dims(c, name, view, 1, &n);
}

void llmk_check_matrix(llmk_checker *c, const char *name, const llmk_view *view, uint64_t rows,
                       uint64_t cols)
{
    const uint64_t dim[2] = {rows, cols};
    check_dims(c, name, view, 2, dim);
}

/* ---- Overlaps ---- */

void llmk_check_in_place(llmk_checker *c, const llmk_view *output, const llmk_view *other)
{
    if (c->status != LLMK_OK || !output->present || !other->present)
        return;
    if (c->pairs == LLMK_MAX_VIEWS) {
        fail(c, LLMK_INTERNAL, "too many pairs");
        return;
    }
    c->pair[c->pairs][0] = output;
    c->pair[c->pairs++][1] = other;
}

static bool may_be_in_place(const llmk_checker *c, const llmk_view *a, const llmk_view *b)
{
    for (size_t i = 0; i < c->pairs; i++)
        if ((c->pair[i][0] == a && c->pair[i][1] == b) ||
            (c->pair[i][0] == b && c->pair[i][1] == a))
            return true;
    return false;
}

static bool same_elements(const llmk_view *a, const llmk_view *b)
{
    return a->begin == b->begin && a->dtype == b->dtype && a->nrows == b->nrows &&
           a->ncols == b->ncols && a->rows.n1 == b->rows.n1 && a->rows.n2 == b->rows.n2 &&
           (a->nrows == 1 ||
            (a->rows.s0 == b->rows.s0 && a->rows.s1 == b->rows.s1 && a->rows.s2 == b->rows.s2)) &&
           (a->ncols == 1 || a->rows.inner == b->rows.inner);
}

/* Columns of one buffer, row by row beside each other (a slice of a fused QKV, say). */
static bool side_by_side(const llmk_view *a, const llmk_view *b)
{
    const uint64_t bits_a = llmk_dtype_bits(a->dtype), bits_b = llmk_dtype_bits(b->dtype);
    const uint64_t pitch = a->rows.s0 * bits_a / 8;
    if (!a->simple || !b->simple || !a->unit || !b->unit || a->nrows < 2 || b->nrows < 2 ||
        pitch == 0 || b->rows.s0 * bits_b / 8 != pitch)
        return false;
    const uint64_t width_a = (a->ncols * bits_a + 7) / 8, width_b = (b->ncols * bits_b + 7) / 8;
    const uint64_t distance = (pitch + b->begin % pitch - a->begin % pitch) % pitch;
    return distance >= width_a && distance + width_b <= pitch;
}

static bool share_memory(const llmk_view *a, const llmk_view *b)
{
    return a->root != NULL && a->root == b->root && a->count > 0 && b->count > 0 &&
           a->begin < b->end && b->begin < a->end && !side_by_side(a, b);
}

llmk_status llmk_check_end(llmk_checker *c)
{
    for (size_t i = 0; c->status == LLMK_OK && i < c->count; i++) {
        const llmk_view *a = c->views[i].view;
        for (size_t j = 0; c->status == LLMK_OK && j < c->count; j++) {
            const llmk_view *b = c->views[j].view;
            const bool once = c->views[j].role == LLMK_INPUT || i < j;
            if (c->views[i].role != LLMK_OUTPUT || i == j || !once || !share_memory(a, b))
                continue;
            if (!may_be_in_place(c, a, b))
                fail(c, LLMK_OVERLAP, "%s overlaps %s in memory", c->views[i].name,
                     c->views[j].name);
            else if (!same_elements(a, b))
                fail(c, LLMK_OVERLAP,
                     "%s overlaps %s without being in place: expected the same offset, dtype and "
                     "strides",
                     c->views[i].name, c->views[j].name);
        }
    }
    return c->status;
}

/* ---- Parts ---- */

llmk_view llmk_view_columns(const llmk_view *whole, uint64_t first, uint64_t count, uint64_t step)
{
    llmk_view part = *whole;
    if (!whole->present)
        return part;
    part.dim[part.rank - 1] = count;
    part.ncols = count;
    part.count = part.nrows * count;
    part.rows.offset += first * whole->rows.inner;
    part.rows.inner = count > 1 ? whole->rows.inner * step : 1;
    part.unit = part.rows.inner == 1;
    const uint64_t bytes = first * whole->rows.inner * llmk_dtype_bits(whole->dtype) / 8;
    while (bytes % part.align != 0)
        part.align /= 2;
    while (bytes % part.first_align != 0)
        part.first_align /= 2;
    return part;
}

/* ---- Elementwise ---- */

void llmk_views_flatten(llmk_view *const *views, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const llmk_view *v = views[i];
        if (v->present && !(v->simple && v->unit && (v->nrows <= 1 || v->rows.s0 == v->ncols)))
            return;
    }
    for (size_t i = 0; i < count; i++) {
        llmk_view *v = views[i];
        if (!v->present)
            continue;
        v->ncols = v->count;
        v->nrows = v->count > 0 ? 1 : 0;
        v->rows.s0 = 0;
        v->align = v->first_align;
    }
}
