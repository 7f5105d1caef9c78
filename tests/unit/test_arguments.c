/* test_arguments.c - every field of every operator's arguments, made bad in every way that the kind
 * of the field allows. Whatever is given: no crash, a status of the right family, a sentence that
 * names the field, and not a byte written where the status is an error; where the call is legal
 * after all, only the elements of its outputs. */
#include "cases/case_internal.h"
#include "core/core.h"
#include "llmk_cmocka.h"
#include "support/args_table.h"
#include "support/tensors.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#define MAX_ELEMENTS 65536u /* of a legal tensor here */
#define TAIL         64u    /* bytes behind the args, for a caller newer than the library */

typedef struct subject {
    const arg_table *table;
    const case_op *op;
    case_run *run;
    llmk_context *ctx, *foreign;
    cl_command_queue queue, foreign_queue;
    cl_mem foreign_buffer, spare; /* of 4 KiB */
    llmk_workspace *tiny, *foreign_workspace;
    llmk_weights *foreign_weights;
    llmk_moe_plan *foreign_plan;
    bool thorough; /* all kinds of mutations: the variant is `ref`, so no type needs a build */
    const char *line;
    size_t calls, errors;
} subject;

typedef union args_copy {
    max_align_t align;
    unsigned char bytes[2048];
} args_copy;

#define BIT(status) ((uint64_t)1 << (status))
#define ARGUMENT    BIT(LLMK_INVALID_ARGUMENT)
#define ANY_GEOMETRY                                                                               \
    (BIT(LLMK_OK) | BIT(LLMK_INVALID_SHAPE) | BIT(LLMK_INVALID_STRIDE) |                           \
     BIT(LLMK_BUFFER_TOO_SMALL) | BIT(LLMK_OVERLAP))

static args_copy copy_args(const subject *s)
{
    args_copy args;
    memset(&args, 0, sizeof args);
    memcpy(args.bytes, case_run_args(s->run, 0), s->table->size);
    return args;
}

static llmk_tensor *tensor_at(args_copy *args, const arg_field *f)
{
    return (llmk_tensor *)(void *)(args->bytes + f->offset);
}

/* As the case has it. */
static llmk_tensor original_of(const subject *s, const arg_field *f)
{
    llmk_tensor t;
    memcpy(&t, (const unsigned char *)case_run_args(s->run, 0) + f->offset, sizeof t);
    return t;
}

static bool is_tensor(const arg_field *f)
{
    return f->kind == ARG_INPUT || f->kind == ARG_OUTPUT;
}

/* ---- What a call may write ---- */

/* Calls `visit` with the bit where each element starts. */
static void each_element(const llmk_tensor *t,
                         void (*visit)(void *user, uint64_t bit, uint32_t bits), void *user)
{
    const uint32_t bits = llmk_dtype_bits(t->dtype);
    uint64_t stride[4], run = 1, count = 1;
    bool given = false;
    for (uint32_t i = 0; i < t->rank; i++) {
        given = given || t->stride[i] != 0;
        count *= t->dim[i];
    }
    for (uint32_t i = t->rank; i-- > 0; run *= t->dim[i])
        stride[i] = given ? t->stride[i] : run;
    assert_true(count <= MAX_ELEMENTS);
    for (uint64_t n = 0; n < count; n++) {
        uint64_t rest = n, element = 0;
        for (uint32_t i = t->rank; i-- > 0; rest /= t->dim[i])
            element += rest % t->dim[i] * stride[i];
        visit(user, t->offset * 8 + element * bits, bits);
    }
}

typedef struct bit_map {
    uint8_t *bytes;
    uint64_t size;
} bit_map;

static void mark(void *user, uint64_t bit, uint32_t bits)
{
    const bit_map *map = user;
    assert_true((bit + bits + 7) / 8 <= map->size);
    if (bits == 4)
        map->bytes[bit / 8] |= bit % 8 ? 0xf0 : 0x0f;
    for (uint64_t i = bit / 8; bits >= 8 && i < (bit + bits) / 8; i++)
        map->bytes[i] = 0xff;
}

/* The bits of `buffer` that the outputs of `args` lie in. */
static void mark_outputs(const subject *s, args_copy *args, cl_mem buffer, bit_map map)
{
    memset(map.bytes, 0, map.size);
    for (const arg_field *f = s->table->fields; f->name; f++)
        if (f->kind == ARG_OUTPUT && tensor_at(args, f)->buffer == buffer)
            each_element(tensor_at(args, f), mark, &map);
}

/* Whether the buffers are as they were, but for the outputs where the call was legal. */
static const char *find_damage(subject *s, args_copy *args, llmk_status status)
{
    const char *damaged = NULL;
    for (case_item *item = s->run->items; item; item = item->next) {
        if (item->home != item)
            continue;
        const uint64_t size = item->buffer_bytes;
        uint8_t *seen = malloc(size), *allowed = calloc(size, 1);
        assert_true(seen && allowed);
        assert_int_equal(
            clEnqueueReadBuffer(s->queue, item->buffers[0], CL_TRUE, 0, size, seen, 0, NULL, NULL),
            CL_SUCCESS);
        if (status == LLMK_OK)
            mark_outputs(s, args, item->buffers[0], (bit_map){allowed, size});
        if (memcmp(seen, item->image, size) != 0) {
            for (uint64_t i = 0; i < size && !damaged; i++)
                if ((seen[i] ^ item->image[i]) & ~allowed[i])
                    damaged = item->t.name;
            clEnqueueWriteBuffer(s->queue, item->buffers[0], CL_TRUE, 0, size, item->image, 0, NULL,
                                 NULL);
        }
        free(seen);
        free(allowed);
    }
    return damaged;
}

/* ---- One call ---- */

/* `word` in `text`, as a word of its own. */
static bool has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)) != NULL; p += n)
        if ((p == text || !(isalnum((unsigned char)p[-1]) || p[-1] == '_')) &&
            !(isalnum((unsigned char)p[n]) || p[n] == '_'))
            return true;
    return false;
}

static bool names_a_field(const subject *s, const char *text)
{
    for (const arg_field *f = s->table->fields; f->name; f++)
        if (has_word(text, f->name))
            return true;
    return false;
}

static void complain(const subject *s, const char *what, llmk_status status, const char *why)
{
    fail_msg("%s '%s', %s: %s\n  %s: %s", s->table->op, s->line, what, why,
             llmk_status_string(status), status == LLMK_OK ? "" : llmk_error_message());
}

/* No buffer bounds the sizes then: whatever they are, it must only not crash. */
static void prepare_without_buffers(const subject *s, args_copy args)
{
    llmk_variant_info infos[8];
    size_t count;
    for (const arg_field *f = s->table->fields; f->name; f++)
        if (is_tensor(f))
            tensor_at(&args, f)->buffer = NULL;
    llmk_prepare(s->ctx, s->op->op, args.bytes);
    llmk_explain(s->ctx, s->op->op, args.bytes, infos, LLMK_COUNT(infos), &count);
}

/* The statuses in `wanted` will do. `name`: the word that the sentence must hold; NULL: the name of
 * any field. */
static llmk_status attempt(subject *s, args_copy *args, uint64_t wanted, const char *name,
                           const char *what)
{
    const llmk_status status = s->op->call(s->ctx, s->queue, args->bytes, NULL);
    s->calls++;
    s->errors += status != LLMK_OK;
    if (status < 0 || status > 63 || !(wanted >> status & 1))
        complain(s, what, status, "another status was expected");
    if (status != LLMK_OK) {
        const char *text = llmk_error_message();
        if (!has_word(text, s->table->op))
            complain(s, what, status, "the sentence does not name the operator");
        if (name ? !has_word(text, name) : !names_a_field(s, text))
            complain(s, what, status, "the sentence does not name the field");
    } else if (clFinish(s->queue) != CL_SUCCESS) {
        complain(s, what, status, "the queue failed");
    }
    const char *damaged = find_damage(s, args, status);
    if (damaged) {
        char why[128];
        snprintf(why, sizeof why, "bytes of %s were written that are nobody's to write", damaged);
        complain(s, what, status, why);
    }
    const llmk_status prepared = llmk_prepare(s->ctx, s->op->op, args->bytes);
    if (status == LLMK_OK && prepared != LLMK_OK)
        complain(s, what, prepared, "llmk_prepare refuses what the call accepts");
    prepare_without_buffers(s, *args);
    return status;
}

/* ---- Mutations ---- */

#define T40 ((uint64_t)1 << 40)
#define T63 ((uint64_t)1 << 63)

/* Field `f` of fresh args, after `change` has had its way with the tensor. */
#define TRY_TENSOR(s, f, wanted, word, change)                                                     \
    do {                                                                                           \
        args_copy args_ = copy_args(s);                                                            \
        llmk_tensor *const t = tensor_at(&args_, f);                                               \
        change;                                                                                    \
        attempt_tensor(s, f, &args_, wanted, word, #change);                                       \
    } while (0)

static void attempt_tensor(subject *s, const arg_field *f, args_copy *args, uint64_t wanted,
                           const char *word, const char *change)
{
    char what[512], text[256];
    snprintf(what, sizeof what, f->name, change, tensor_text(tensor_at(args, f), text));
    attempt(s, args, wanted, word, what);
}

static void mutate_header(subject *s, const arg_field *f)
{
    const uint64_t any_dtype = ANY_GEOMETRY | ARGUMENT | BIT(LLMK_INVALID_DTYPE);
    TRY_TENSOR(s, f, ARGUMENT, f->name, t->memory = (llmk_memory)1);
    TRY_TENSOR(s, f, ARGUMENT, f->name, t->memory = (llmk_memory)-1);
    TRY_TENSOR(s, f, ARGUMENT, f->name, t->reserved = 1);
    TRY_TENSOR(s, f, BIT(LLMK_INVALID_BUFFER), f->name, t->buffer = s->foreign_buffer);
    TRY_TENSOR(s, f, ARGUMENT, f->name, t->buffer = NULL);
    TRY_TENSOR(s, f, BIT(LLMK_INVALID_SHAPE), f->name, t->rank = 0);
    TRY_TENSOR(s, f, BIT(LLMK_INVALID_SHAPE), f->name, t->rank = 5);
    TRY_TENSOR(s, f, BIT(LLMK_INVALID_SHAPE), f->name, t->rank = UINT32_MAX);
    TRY_TENSOR(s, f, ANY_GEOMETRY, NULL, t->rank -= t->rank > 1);
    TRY_TENSOR(s, f, ANY_GEOMETRY, NULL, t->rank += t->rank < 4);
    static const int unknown[] = {-1, LLMK_DTYPE_NONE, 10, 31, 32, 33, 255, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < LLMK_COUNT(unknown); i++)
        TRY_TENSOR(s, f, BIT(LLMK_INVALID_DTYPE), f->name, t->dtype = (llmk_dtype)unknown[i]);
    for (int dtype = LLMK_F32; s->thorough && dtype <= LLMK_FP8_E5M2; dtype++)
        TRY_TENSOR(s, f, any_dtype, NULL, t->dtype = (llmk_dtype)dtype);
}

static void mutate_geometry(subject *s, const arg_field *f)
{
    const llmk_tensor original = original_of(s, f);
    const uint32_t bits = llmk_dtype_bits(original.dtype), size = (bits + 7) / 8;
    const uint64_t huge = ANY_GEOMETRY & ~BIT(LLMK_OK);
    const bool empty = original.dim[0] == 0;
    for (uint32_t i = 0; i < original.rank; i++) {
        const uint64_t dims[] = {0, 1, original.dim[i] - 1, original.dim[i] + 1,
                                 original.dim[i] * 2};
        for (size_t n = 0; n < LLMK_COUNT(dims); n++)
            TRY_TENSOR(s, f, ANY_GEOMETRY, NULL, t->dim[i] = dims[n]);
        TRY_TENSOR(s, f, huge, NULL, t->dim[i] = T40);
        TRY_TENSOR(s, f, huge, NULL, t->dim[i] = T63);
        TRY_TENSOR(s, f, huge, NULL, t->dim[i] = UINT64_MAX);
        const uint64_t strides[] = {
            0, 1, 2, original.stride[i] - 1, original.stride[i] + 1, T40, T63, UINT64_MAX};
        for (size_t n = 0; n < LLMK_COUNT(strides); n++) {
            const bool far = strides[n] >= T40 - 1 && original.dim[i] > 1 && !empty;
            TRY_TENSOR(s, f, far ? huge : ANY_GEOMETRY, f->name, t->stride[i] = strides[n]);
        }
    }
    for (uint32_t i = original.rank; i < 4; i++) /* beyond the rank nothing counts */
        TRY_TENSOR(s, f, BIT(LLMK_OK), NULL, (t->dim[i] = T63, t->stride[i] = T63));
    TRY_TENSOR(s, f, ANY_GEOMETRY, f->name, memset(t->stride, 0, sizeof t->stride));
    const uint64_t offsets[] = {0, original.offset + 1, original.offset + size,
                                original.offset - size, original.offset + 4 * size};
    for (size_t n = 0; n < LLMK_COUNT(offsets); n++)
        TRY_TENSOR(s, f, ANY_GEOMETRY, f->name, t->offset = offsets[n]);
    const uint64_t far[] = {T40, T63, UINT64_MAX - size + 1, UINT64_MAX};
    for (size_t n = 0; n < LLMK_COUNT(far); n++)
        TRY_TENSOR(s, f, huge, f->name, t->offset = far[n]);
}

/* A tensor that the case leaves out is given. */
static void mutate_absent(subject *s, const arg_field *f)
{
    const uint64_t any = ANY_GEOMETRY | ARGUMENT | BIT(LLMK_INVALID_DTYPE);
    TRY_TENSOR(s, f, ARGUMENT, f->name, *t = llmk_vector(NULL, LLMK_F32, 8));
    TRY_TENSOR(s, f, any, f->name, *t = llmk_vector(s->spare, LLMK_F32, 8));
    TRY_TENSOR(s, f, any, f->name, *t = llmk_matrix(s->spare, LLMK_U4, 3, 8));
    TRY_TENSOR(s, f, any, f->name, *t = llmk_vector(s->spare, LLMK_F32, 0));
    TRY_TENSOR(s, f, ARGUMENT | BIT(LLMK_INVALID_DTYPE), f->name, t->buffer = s->spare);
    TRY_TENSOR(s, f, ARGUMENT | BIT(LLMK_INVALID_BUFFER) | BIT(LLMK_INVALID_DTYPE), f->name,
               *t = llmk_vector(s->foreign_buffer, LLMK_F32, 8));
}

typedef struct place_list {
    size_t count;
    uint64_t at[MAX_ELEMENTS / 16];
    uint32_t bits;
} place_list;

static void add_place(void *user, uint64_t bit, uint32_t bits)
{
    place_list *list = user;
    assert_true(list->count < LLMK_COUNT(list->at));
    list->at[list->count++] = bit;
    list->bits = bits;
}

static bool lists_meet(const place_list *a, const place_list *b)
{
    for (size_t i = 0; i < a->count; i++)
        for (size_t j = 0; j < b->count; j++)
            if (a->at[i] < b->at[j] + b->bits && b->at[j] < a->at[i] + a->bits)
                return true;
    return false;
}

/* Output `f` laid over tensor `over`, a little off: the same elements at most. */
static void overlap(subject *s, const arg_field *f, const arg_field *over, int64_t shift)
{
    static place_list mine, others;
    args_copy args = copy_args(s);
    llmk_tensor *t = tensor_at(&args, f);
    const llmk_tensor *other = tensor_at(&args, over);
    char what[160];
    snprintf(what, sizeof what, "%s over %s and %lld bytes", f->name, over->name, (long long)shift);
    t->buffer = other->buffer;
    t->offset = other->offset + (uint64_t)shift;
    const llmk_status status =
        attempt(s, &args, ANY_GEOMETRY | BIT(LLMK_INVALID_DTYPE), NULL, what);
    if (status != LLMK_OK)
        return;
    mine.count = others.count = 0;
    each_element(t, add_place, &mine);
    each_element(other, add_place, &others);
    const bool same = t->dtype == other->dtype && mine.count == others.count &&
                      memcmp(mine.at, others.at, mine.count * sizeof mine.at[0]) == 0;
    if (!same && lists_meet(&mine, &others))
        complain(s, what, status, "an overlap that is not in place is accepted");
}

static void mutate_overlaps(subject *s, const arg_field *f)
{
    for (const arg_field *over = s->table->fields; over->name; over++) {
        if (over == f || !is_tensor(over) || !original_of(s, over).buffer)
            continue;
        const llmk_tensor o = original_of(s, over);
        const int64_t size = (llmk_dtype_bits(o.dtype) + 7) / 8;
        const int64_t row = (int64_t)(o.stride[0] * llmk_dtype_bits(o.dtype) / 8);
        const int64_t shifts[] = {0, size, -size, row, -row, 2 * row, 8 * size, 1};
        for (size_t i = 0; i < LLMK_COUNT(shifts); i++)
            overlap(s, f, over, shifts[i]);
    }
}

static void mutate_enum(subject *s, const arg_field *f)
{
    for (int value = -2; value < 40; value++) {
        args_copy args = copy_args(s);
        memcpy(args.bytes + f->offset, &value, f->size);
        char what[64];
        snprintf(what, sizeof what, "%s = %d", f->name, value);
        const bool unknown = value < 0 || value > 8;
        attempt(s, &args, unknown ? ARGUMENT : ANY_GEOMETRY | ARGUMENT | BIT(LLMK_INVALID_DTYPE),
                unknown ? f->name : NULL, what);
    }
}

static void mutate_u64(subject *s, const arg_field *f)
{
    static const uint64_t values[] = {0,  1,   2,   3,       4,       7,          8,
                                      16, T40, T63, T63 - 2, T63 + 1, UINT64_MAX, UINT64_MAX - 1};
    for (size_t i = 0; i < LLMK_COUNT(values); i++) {
        args_copy args = copy_args(s);
        memcpy(args.bytes + f->offset, &values[i], f->size);
        char what[64];
        snprintf(what, sizeof what, "%s = %llu", f->name, (unsigned long long)values[i]);
        attempt(s, &args, ANY_GEOMETRY | ARGUMENT, NULL, what);
    }
}

static void mutate_float(subject *s, const arg_field *f)
{
    static const float bad[] = {NAN, -NAN, -1.0f, INFINITY, -INFINITY, -FLT_MIN};
    static const float fair[] = {0.0f, -0.0f, FLT_MAX, FLT_MIN, 1e-45f, 1.0f};
    for (size_t i = 0; i < LLMK_COUNT(bad) + LLMK_COUNT(fair); i++) {
        const bool is_bad = i < LLMK_COUNT(bad);
        const float value = is_bad ? bad[i] : fair[i - LLMK_COUNT(bad)];
        args_copy args = copy_args(s);
        memcpy(args.bytes + f->offset, &value, f->size);
        char what[64];
        snprintf(what, sizeof what, "%s = %g", f->name, (double)value);
        attempt(s, &args, is_bad ? ARGUMENT : ARGUMENT | BIT(LLMK_OK), f->name, what);
    }
}

static void mutate_flags(subject *s, const arg_field *f)
{
    for (uint32_t bit = 0; bit <= 32; bit++) {
        args_copy args = copy_args(s);
        const uint32_t flags = bit < 32 ? (uint32_t)1 << bit : UINT32_MAX;
        memcpy(args.bytes + f->offset, &flags, f->size);
        char what[64];
        snprintf(what, sizeof what, "%s = 0x%x", f->name, flags);
        attempt(s, &args, bit < 8 ? ARGUMENT | BIT(LLMK_OK) : ARGUMENT, bit < 8 ? NULL : f->name,
                what);
    }
}

static void mutate_pointer(subject *s, const arg_field *f)
{
    const bool required = f->kind != ARG_WORKSPACE && f->kind != ARG_OPTIONAL_WORKSPACE;
    const void *const foreign = f->kind == ARG_WEIGHTS ? (const void *)s->foreign_weights
                                : f->kind == ARG_PLAN  ? (const void *)s->foreign_plan
                                                       : s->foreign_workspace;
    const void *const values[] = {NULL, foreign, s->tiny};
    static const char *const whats[] = {"NULL", "another context's", "too small"};
    bool unneeded = false; /* then whatever is given is ignored */
    llmk_workspace *given = NULL;
    if (!required)
        memcpy(&given, (const unsigned char *)case_run_args(s->run, 0) + f->offset, sizeof given);
    for (size_t i = 0; i < (required ? 2u : 3u); i++) {
        args_copy args = copy_args(s);
        memcpy(args.bytes + f->offset, &values[i], f->size);
        char what[64];
        snprintf(what, sizeof what, "%s = %s", f->name, whats[i]);
        const uint64_t refusal = i == 2 ? BIT(LLMK_BUFFER_TOO_SMALL) : ARGUMENT;
        const uint64_t wanted = unneeded ? BIT(LLMK_OK) : refusal;
        const bool may_do_without = !required && i == 0;
        const llmk_status status =
            attempt(s, &args, may_do_without ? wanted | BIT(LLMK_OK) : wanted, f->name, what);
        unneeded = status == LLMK_OK &&
                   !(f->kind == ARG_OPTIONAL_WORKSPACE && llmk_workspace_bytes(given) > 0);
    }
}

static void mutate_struct_size(subject *s, const arg_field *f)
{
    const size_t real = s->table->size;
    const struct {
        size_t size;
        int tail; /* the byte behind the struct */
        uint64_t wanted;
    } cases[] = {
        {0, 0, ARGUMENT},
        {sizeof(size_t), 0, ARGUMENT},
        {arg_first_size(s->table) - 1, 0, ARGUMENT},
        {real + 1, 0, BIT(LLMK_OK)},
        {real + TAIL, 0, BIT(LLMK_OK)},
        {real + 1, 1, BIT(LLMK_UNSUPPORTED)},
        {real + TAIL, 1, BIT(LLMK_UNSUPPORTED)},
        {real, 1, BIT(LLMK_OK)},
        {2 * real + 1, 0, ARGUMENT},
        {(size_t)1 << 20, 0, ARGUMENT},
        {SIZE_MAX, 0, ARGUMENT},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        args_copy args = copy_args(s);
        memcpy(args.bytes + f->offset, &cases[i].size, f->size);
        args.bytes[real] = (unsigned char)cases[i].tail;
        char what[64];
        snprintf(what, sizeof what, "struct_size = %zu, tail %d", cases[i].size, cases[i].tail);
        attempt(s, &args, cases[i].wanted, f->name, what);
    }
    /* A caller of the first version, which may lack what the case needs. */
    args_copy args = copy_args(s);
    const size_t first = arg_first_size(s->table);
    memcpy(args.bytes + f->offset, &first, f->size);
    attempt(s, &args, first < real ? BIT(LLMK_OK) | ARGUMENT : BIT(LLMK_OK), NULL,
            "struct_size of the first version");
}

static void mutate(subject *s, const arg_field *f)
{
    switch (f->kind) {
    case ARG_INPUT:
    case ARG_OUTPUT:
        if (!original_of(s, f).buffer) {
            mutate_absent(s, f);
            return;
        }
        if (s->thorough)
            mutate_header(s, f);
        mutate_geometry(s, f);
        if (f->kind == ARG_OUTPUT)
            mutate_overlaps(s, f);
        return;
    case ARG_ENUM:
        if (s->thorough)
            mutate_enum(s, f);
        return;
    case ARG_U64:
        mutate_u64(s, f);
        return;
    case ARG_F32:
        mutate_float(s, f);
        return;
    case ARG_FLAGS:
        mutate_flags(s, f);
        return;
    case ARG_WORKSPACE:
    case ARG_OPTIONAL_WORKSPACE:
    case ARG_WEIGHTS:
    case ARG_PLAN:
        mutate_pointer(s, f);
        return;
    case ARG_STRUCT_SIZE:
        mutate_struct_size(s, f);
        return;
    }
}

/* ---- What surrounds the args ---- */

static void refuse_call(subject *s, llmk_context *ctx, cl_command_queue queue, const void *args,
                        const llmk_events *events, llmk_status wanted, const char *word)
{
    const llmk_status status = s->op->call(ctx, queue, args, events);
    if (status != wanted || !has_word(llmk_error_message(), word))
        complain(s, word, status, "another answer was expected");
    args_copy copy = copy_args(s);
    if (find_damage(s, &copy, status))
        complain(s, word, status, "something was written");
}

static void mutate_call(subject *s)
{
    const void *args = case_run_args(s->run, 0);
    cl_event foreign = clCreateUserEvent(llmk_context_cl_context(s->foreign), NULL), out = foreign;
    cl_event none = NULL, both[2] = {foreign, foreign};
    const llmk_events missing = {1, NULL, &out}, null_event = {1, &none, &out},
                      other = {1, &foreign, &out}, others = {2, both, &out};
    refuse_call(s, NULL, s->queue, args, NULL, LLMK_INVALID_ARGUMENT, "ctx");
    refuse_call(s, s->ctx, NULL, args, NULL, LLMK_INVALID_QUEUE, "queue");
    refuse_call(s, s->ctx, s->foreign_queue, args, NULL, LLMK_INVALID_QUEUE, "queue");
    refuse_call(s, s->ctx, s->queue, NULL, NULL, LLMK_INVALID_ARGUMENT, "args");
    refuse_call(s, s->ctx, s->queue, args, &missing, LLMK_INVALID_ARGUMENT, "wait_list");
    refuse_call(s, s->ctx, s->queue, args, &null_event, LLMK_INVALID_ARGUMENT, "wait_list");
    refuse_call(s, s->ctx, s->queue, args, &other, LLMK_INVALID_ARGUMENT, "wait_list");
    refuse_call(s, s->ctx, s->queue, args, &others, LLMK_INVALID_ARGUMENT, "wait_list");
    assert_ptr_equal(out, foreign); /* a failed call leaves it as it was */
    clSetUserEventStatus(foreign, CL_COMPLETE);
    clReleaseEvent(foreign);
    llmk_variant_info infos[2];
    size_t count = 0;
    assert_int_equal(llmk_prepare(NULL, s->op->op, args), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_prepare(s->ctx, (llmk_op)0, args), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_prepare(s->ctx, (llmk_op)-1, args), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_prepare(s->ctx, s->op->op, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_explain(s->ctx, s->op->op, args, NULL, 2, &count), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_explain(s->ctx, s->op->op, args, infos, 2, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_explain(s->ctx, s->op->op, NULL, infos, 2, &count),
                     LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_explain(s->ctx, s->op->op, args, NULL, 0, &count), LLMK_OK);
    assert_true(count >= 2);
    assert_int_equal(llmk_explain(s->ctx, s->op->op, args, infos, 1, &count), LLMK_OK);
}

/* ---- The sweep ---- */

static void open_contexts(subject *s)
{
    char forced[64];
    snprintf(forced, sizeof forced, "%s:ref", s->table->op);
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.flags = LLMK_CONTEXT_NO_SELFTEST;
    options.variant = s->thorough ? forced : NULL;
    assert_int_equal(llmk_context_create(&options, &s->ctx), LLMK_OK);
    assert_int_equal(llmk_context_create(&options, &s->foreign), LLMK_OK);
    s->queue = case_queue_new(s->ctx);
    s->foreign_queue = case_queue_new(s->foreign);
    assert_true(s->queue && s->foreign_queue);
    s->spare = clCreateBuffer(llmk_context_cl_context(s->ctx), CL_MEM_READ_WRITE, 4096, NULL, NULL);
    s->foreign_buffer =
        clCreateBuffer(llmk_context_cl_context(s->foreign), CL_MEM_READ_WRITE, 65536, NULL, NULL);
    assert_true(s->spare && s->foreign_buffer);
    assert_int_equal(llmk_workspace_create(s->ctx, 1, &s->tiny), LLMK_OK);
    assert_int_equal(llmk_workspace_create(s->foreign, 1 << 20, &s->foreign_workspace), LLMK_OK);
    static const float w[64];
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_F32;
    desc.n = desc.k = 8;
    desc.data = (llmk_source){.host = w, .size = sizeof w};
    assert_int_equal(llmk_weights_create(s->foreign, &desc, &s->foreign_weights), LLMK_OK);
    llmk_moe_desc layer = LLMK_INIT(llmk_moe_desc);
    layer.x_dtype = LLMK_F16;
    layer.experts_a_token = 1;
    layer.activation = LLMK_SILU;
    layer.gate_weights = layer.up_weights = layer.down_weights = s->foreign_weights;
    assert_int_equal(llmk_moe_plan_create(s->foreign, &layer, 8, &s->foreign_plan), LLMK_OK);
}

static void close_contexts(subject *s)
{
    llmk_moe_plan_free(s->foreign_plan);
    llmk_weights_free(s->foreign_weights);
    llmk_workspace_free(s->foreign_workspace);
    llmk_workspace_free(s->tiny);
    clReleaseMemObject(s->foreign_buffer);
    clReleaseMemObject(s->spare);
    clReleaseCommandQueue(s->foreign_queue);
    clReleaseCommandQueue(s->queue);
    llmk_context_free(s->foreign);
    llmk_context_free(s->ctx);
}

static void sweep(const arg_table *table, bool thorough)
{
    subject s = {.table = table, .op = case_op_find(table->op), .thorough = thorough};
    assert_non_null(s.op);
    assert_int_equal(s.op->args_size, table->size);
    open_contexts(&s);
    for (size_t i = 0; i < ARGS_MAX_LINES && table->lines[i]; i++) {
        case_line line;
        char error[512];
        s.line = table->lines[i];
        if (!case_parse_fields(s.op, s.line, &line, error, sizeof error) ||
            !(s.run = case_run_new(s.ctx, s.queue, &line, 1, CASE_TO_CHECK, error, sizeof error)))
            fail_msg("%s '%s': %s", table->op, s.line, error);
        args_copy args = copy_args(&s);
        attempt(&s, &args, BIT(LLMK_OK), NULL, "unchanged");
        for (const arg_field *f = table->fields; f->name; f++)
            mutate(&s, f);
        mutate_call(&s);
        case_run_free(s.run);
    }
    close_contexts(&s);
    printf("%s: %zu calls, %zu refused\n", table->op, s.calls, s.errors);
}

static void test_reference(void **state)
{
    sweep(*state, true);
}

/* The variant that a user gets. */
static void test_chosen(void **state)
{
    sweep(*state, false);
}

/* The table covers every byte of its struct: what lies between two fields is padding. */
static void test_table(void **state)
{
    const arg_table *table = *state;
    size_t end = 0;
    for (const arg_field *f = table->fields; f->name; f++) {
        assert_true(f->offset >= end && f->offset - end < 8);
        assert_true(f->offset == end || f->offset % 8 == 0);
        end = f->offset + f->size;
    }
    assert_true(table->size >= end && table->size - end < 8);
}

static void test_every_operator(void **state)
{
    (void)state;
    size_t count = 0;
    while (case_ops[count])
        count++;
    if (count != LLMK_COUNT(arg_tables))
        fail_msg("%zu operators have cases, %zu a table in tests/support/args_table.h", count,
                 LLMK_COUNT(arg_tables));
    assert_null(llmk_op_name((llmk_op)(count + 1)));
}

/* An argument is a pattern of test names. */
int main(int argc, char **argv)
{
    enum { COUNT = LLMK_COUNT(arg_tables) };
    struct CMUnitTest tests[3 * COUNT + 1] = {cmocka_unit_test(test_every_operator)};
    char names[3 * COUNT][64];
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[] = {{"table", test_table}, {"ref", test_reference}, {"chosen", test_chosen}};
    for (size_t i = 0; i < 3 * COUNT; i++) {
        const arg_table *table = &arg_tables[i % COUNT];
        snprintf(names[i], sizeof names[i], "%s_%s", table->op, kinds[i / COUNT].name);
        tests[1 + i] = (struct CMUnitTest){names[i], kinds[i / COUNT].run, NULL, NULL,
                                           (void *)(uintptr_t)table};
    }
    unsetenv("LLMK_VARIANT");
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
