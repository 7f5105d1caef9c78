/* case.c - a case made concrete: tensors, their buffers in rotated sets, the args of each set. */
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS /* clCreateCommandQueue works on every version */
#include "cases/case_internal.h"
#include "cases/case_parallel.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct case_block {
    case_block *next;
    max_align_t data[];
};

struct case_cleaner {
    case_cleaner *next;
    void (*free_fn)(void *);
    void *object;
};

/* ---- What `prepare` calls ---- */

static const char skip_prefix[] = "skipped: ";

bool case_refuse(case_run *run, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vsnprintf(run->refusal, sizeof run->refusal, fmt, list);
    va_end(list);
    return false;
}

bool case_skip(case_run *run, const char *fmt, ...)
{
    const size_t used = sizeof skip_prefix - 1;
    memcpy(run->refusal, skip_prefix, used);
    va_list list;
    va_start(list, fmt);
    vsnprintf(run->refusal + used, sizeof run->refusal - used, fmt, list);
    va_end(list);
    return false;
}

bool case_is_skip(const char *error)
{
    return !strncmp(error, skip_prefix, sizeof skip_prefix - 1);
}

/* Leaves `prepare` or `prepare_set` from wherever it is. */
static _Noreturn void out_of_memory(case_run *run, size_t bytes)
{
    case_refuse(run, "the host has no memory for %zu bytes more", bytes);
    if (run->escape)
        longjmp(*run->escape, 1);
    fprintf(stderr, "%s\n", run->refusal);
    abort(); /* case_alloc by someone who is not making a case */
}

static void *try_alloc(case_run *run, size_t bytes)
{
    case_block *block = bytes <= SIZE_MAX - sizeof *block ? calloc(1, sizeof *block + bytes) : NULL;
    if (!block)
        return NULL;
    block->next = run->blocks;
    run->blocks = block;
    return block->data;
}

void *case_alloc(case_run *run, size_t bytes)
{
    void *memory = try_alloc(run, bytes);
    if (!memory)
        out_of_memory(run, bytes);
    return memory;
}

void case_cleanup(case_run *run, void (*free_fn)(void *), void *object)
{
    case_cleaner *cleaner = try_alloc(run, sizeof *cleaner);
    if (!cleaner) {
        free_fn(object);
        out_of_memory(run, sizeof *cleaner);
    }
    *cleaner = (case_cleaner){run->cleaners, free_fn, object};
    run->cleaners = cleaner;
}

static void free_workspace(void *workspace)
{
    llmk_workspace_free(workspace);
}

bool case_workspace(case_run *run, llmk_status status, uint64_t bytes, llmk_workspace **workspace)
{
    if (status != LLMK_OK || llmk_workspace_create(run->ctx, bytes, workspace) != LLMK_OK)
        return case_refuse(run, "%s", llmk_error_message());
    case_cleanup(run, free_workspace, *workspace);
    return true;
}

llmk_context *case_context(case_run *run)
{
    return run->ctx;
}

const case_line *case_run_line(case_run *run)
{
    return &run->line;
}

void case_keep(case_run *run, void *object)
{
    run->kept = object;
}

void *case_kept(case_run *run)
{
    return run->kept;
}

bool case_timing_only(case_run *run)
{
    return run->purpose == CASE_TO_TIME;
}

bool case_as_they_occur(case_run *run)
{
    return run->purpose != CASE_TO_CHECK;
}

bool case_samples(case_run *run)
{
    return run->purpose == CASE_TO_TUNE;
}

void case_count_bytes(case_run *run, uint64_t bytes_read, uint64_t bytes_written)
{
    if (run->counting) {
        run->counted_read += bytes_read;
        run->counted_written += bytes_written;
    }
}

case_tensor *case_add_tensor(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                             uint32_t rank, const uint64_t *dim, llmk_tensor *slot)
{
    case_item *item = case_alloc(run, sizeof *item);
    item->home = item;
    *run->last_item = item;
    run->last_item = &item->next;
    case_tensor *t = &item->t;
    t->name = name;
    t->role = role;
    t->dtype = dtype;
    t->rank = rank;
    t->slot = slot;
    t->count = 1;
    for (uint32_t i = 0; i < rank; i++)
        t->count = case_times(t->count, t->dim[i] = dim[i]);
    return t;
}

void case_set_row_stride(case_tensor *t, uint64_t stride)
{
    if (t->rank < 2)
        return;
    t->stride[t->rank - 1] = 1;
    for (uint32_t i = t->rank - 1; i-- > 0;) {
        t->stride[i] = stride;
        stride = case_times(stride, t->dim[i]);
    }
}

void case_reserve(case_run *run, const char *name, uint64_t host_bytes, uint64_t device_bytes)
{
    if (host_bytes == UINT64_MAX || device_bytes == UINT64_MAX)
        case_refuse(run, "%s are larger than any memory", name);
    run->host_bytes = case_plus(run->host_bytes, host_bytes);
    run->device_bytes = case_plus(run->device_bytes, device_bytes);
}

bool case_declared(case_run *run)
{
    run->declared = !run->refusal[0] && case_lay_out(run);
    if (!run->declared || run->only_declare)
        return false;
    for (case_item *item = run->items; item; item = item->next)
        if (item->t.role != CASE_OUTPUT)
            item->t.values = case_alloc(run, item->t.count * sizeof *item->t.values);
    return true;
}

double *case_expect(case_run *run, case_tensor *t)
{
    if (!t->values)
        t->values = case_alloc(run, t->count * sizeof *t->values);
    return t->values;
}

double *case_bound(case_run *run, case_tensor *t)
{
    if (!t->bound)
        t->bound = case_alloc(run, t->count * sizeof *t->bound);
    return t->bound;
}

void case_in_place(case_run *run, case_tensor *t, case_tensor *other)
{
    if (!other) {
        case_refuse(run, "%s cannot be in place over a tensor that there is not", t->name);
        return;
    }
    other->role = CASE_INOUT;
    ((case_item *)t)->home = (case_item *)other;
}

/* ---- Where the elements lie ---- */

uint64_t case_part(const case_item *item)
{
    return item->t.dtype == LLMK_U4 ? item->t.count : CASE_PART;
}

case_walk case_walk_begin(const case_item *item)
{
    return (case_walk){.item = item};
}

case_walk case_walk_at(const case_item *item, uint64_t index)
{
    case_walk walk = {.item = item, .index = index};
    for (uint32_t i = item->t.rank; i-- > 0 && item->t.dim[i];) {
        walk.at[i] = index % item->t.dim[i];
        walk.element += walk.at[i] * item->stride[i];
        index /= item->t.dim[i];
    }
    return walk;
}

void case_walk_next(case_walk *walk)
{
    const case_tensor *t = &walk->item->t;
    walk->index++;
    for (uint32_t i = t->rank; i-- > 0;) {
        walk->element += walk->item->stride[i];
        if (++walk->at[i] < t->dim[i])
            return;
        walk->element -= walk->at[i] * walk->item->stride[i];
        walk->at[i] = 0;
    }
}

/* The pattern depends on the place, so that canaries copied elsewhere are noticed too. */
static uint8_t canary(uint64_t byte)
{
    return (uint8_t)(0xa5 ^ byte * 29 ^ byte >> 8);
}

/* Not what is expected, whatever that is: NaN, unless NaN is expected; integers' complement. */
static void poison(const case_item *item, uint8_t *first, const case_walk *walk)
{
    const case_tensor *t = &item->t;
    const double expected = t->values ? t->values[walk->index] : 0;
    if (case_is_float(t->dtype)) {
        case_encode(t->dtype, first, walk->element, expected != expected ? 0 : (double)NAN);
        return;
    }
    const bool nibble = t->dtype == LLMK_U4;
    const uint64_t size = nibble ? 1 : case_bytes(t->dtype, 1);
    uint8_t *bytes = first + (nibble ? walk->element / 2 : walk->element * size);
    case_encode(t->dtype, first, walk->element, expected);
    const uint8_t flip = !nibble ? 0xff : walk->element & 1 ? 0xf0 : 0x0f;
    for (uint64_t i = 0; i < size; i++)
        bytes[i] ^= flip;
}

static void paint_around(void *item_, uint64_t begin, uint64_t end)
{
    const case_item *item = item_;
    /* Around what is only read, NaN: a kernel that reads beyond, even times zero, shows. */
    const bool nan = item->t.role == CASE_INPUT && case_is_float(item->t.dtype);
    for (uint64_t i = begin; i < end; i++)
        item->image[i] = nan ? 0xff : canary(i);
}

static void paint_elements(void *item_, uint64_t begin, uint64_t end)
{
    const case_item *item = item_;
    uint8_t *first = item->image + item->begin;
    for (case_walk w = case_walk_at(item, begin); w.index < end; case_walk_next(&w)) {
        if (item->t.role == CASE_OUTPUT)
            poison(item, first, &w);
        else
            case_encode(item->t.dtype, first, w.element, item->t.values[w.index]);
    }
}

void case_item_paint(case_item *item)
{
    case_parallel(item->buffer_bytes, CASE_PART, paint_around, item);
    case_parallel(item->t.count, case_part(item), paint_elements, item);
}

static llmk_tensor describe(const case_item *item, size_t set)
{
    llmk_tensor tensor = {
        .buffer = item->home->buffers[set],
        .offset = item->begin,
        .dtype = item->t.dtype,
        .rank = item->t.rank,
    };
    memcpy(tensor.dim, item->t.dim, sizeof tensor.dim);
    memcpy(tensor.stride, item->stride, sizeof tensor.stride);
    return tensor;
}

/* ---- Making a run ---- */

/* The buffer of one more set: a copy of set 0's, which gets its contents from the host. */
static bool add_buffer(case_run *run, case_item *item, size_t set)
{
    cl_int code;
    cl_mem buffer = clCreateBuffer(run->cl, CL_MEM_READ_WRITE, item->buffer_bytes, NULL, &code);
    item->buffers[set] = buffer;
    if (code == CL_SUCCESS && set > 0) {
        code = clEnqueueCopyBuffer(run->queue, item->buffers[0], buffer, 0, 0, item->buffer_bytes,
                                   0, NULL, NULL);
    } else if (code == CL_SUCCESS) {
        item->image = malloc(item->buffer_bytes);
        if (!item->image)
            out_of_memory(run, item->buffer_bytes);
        case_item_paint(item);
        code = clEnqueueWriteBuffer(run->queue, buffer, CL_TRUE, 0, item->buffer_bytes, item->image,
                                    0, NULL, NULL);
    }
    if (run->purpose == CASE_TO_TIME) {
        free(item->image);
        item->image = NULL;
    }
    return code == CL_SUCCESS ||
           case_refuse(run, "%s: making its buffers failed with OpenCL error %d", item->t.name,
                       code);
}

/* A set's args: those that `prepare` filled, with the set's own tensors and objects. */
static bool add_args(case_run *run, size_t set)
{
    const case_op *op = run->line.op;
    uint8_t *args = run->set_args[set] = case_alloc(run, op->args_size);
    memcpy(args, run->args, op->args_size);
    for (const case_item *item = run->items; item; item = item->next) {
        if (!item->t.slot)
            continue;
        const size_t at = (size_t)((uint8_t *)item->t.slot - run->args);
        if (at > op->args_size - sizeof(llmk_tensor))
            return case_refuse(run, "%s: its slot is not in the args", item->t.name);
        const llmk_tensor tensor = describe(item, set);
        memcpy(args + at, &tensor, sizeof tensor);
    }
    run->counting = set == 0;
    return !op->prepare_set || op->prepare_set(run, &run->line, args, set);
}

/* Without memory the old block stays where it is known. */
static void *resize(case_run *run, void *memory, size_t bytes)
{
    void *grown = realloc(memory, bytes);
    if (!grown)
        out_of_memory(run, bytes);
    return grown;
}

static bool grow(case_run *run, size_t sets)
{
    if (sets <= run->sets)
        return true;
    if (!case_fits(run, sets))
        return false;
    run->set_args = resize(run, run->set_args, sets * sizeof *run->set_args);
    for (case_item *item = run->items; item; item = item->next)
        if (item->home == item)
            item->buffers = resize(run, item->buffers, sets * sizeof *item->buffers);
    for (size_t set = run->sets; set < sets; set++) {
        for (case_item *item = run->items; item; item = item->next)
            if (item->home == item)
                item->buffers[set] = NULL;
        run->sets = set + 1;
        for (case_item *item = run->items; item; item = item->next)
            if (item->home == item && !add_buffer(run, item, set))
                return false;
        if (!add_args(run, set))
            return false;
    }
    return clFinish(run->queue) == CL_SUCCESS || case_refuse(run, "clFinish failed");
}

static bool make(case_run *run)
{
    const case_op *op = run->line.op;
    run->args = case_alloc(run, op->args_size);
    memcpy(run->args, &op->args_size, sizeof op->args_size); /* struct_size comes first */
    run->counting = true;
    return op->prepare(run, &run->line, run->args) &&
           (run->declared || case_refuse(run, "%s does not call case_declared", op->name));
}

static bool make_and_grow(case_run *run, size_t sets)
{
    return make(run) && grow(run, sets);
}

/* A step that may run out of memory anywhere. */
static bool guarded(case_run *run, bool (*step)(case_run *run, size_t sets), size_t sets)
{
    jmp_buf escape;
    if (setjmp(escape) != 0) {
        run->escape = NULL;
        return false;
    }
    run->escape = &escape;
    const bool good = step(run, sets);
    run->escape = NULL;
    return good;
}

const void *case_run_args(const case_run *run, size_t set)
{
    return run->set_args[set];
}

static void explain(const case_run *run, char *error, size_t error_size)
{
    snprintf(error, error_size, "%s",
             run->refusal[0] ? run->refusal : "making the case failed without a reason");
}

bool case_run_grow(case_run *run, size_t sets, char *error, size_t error_size)
{
    run->refusal[0] = '\0';
    if (guarded(run, grow, sets))
        return true;
    explain(run, error, error_size);
    return false;
}

cl_command_queue case_queue_new(llmk_context *ctx)
{
    return clCreateCommandQueue(llmk_context_cl_context(ctx), llmk_context_cl_device(ctx), 0, NULL);
}

static case_run *new_run(llmk_context *ctx, cl_command_queue queue, const case_line *line,
                         case_purpose purpose)
{
    case_run *run = calloc(1, sizeof *run);
    if (!run)
        return NULL;
    run->ctx = ctx;
    run->cl = llmk_context_cl_context(ctx);
    run->queue = queue;
    run->line = *line;
    run->purpose = purpose;
    run->last_item = &run->items;
    return run;
}

case_run *case_run_new(llmk_context *ctx, cl_command_queue queue, const case_line *line,
                       size_t sets, case_purpose purpose, char *error, size_t error_size)
{
    case_run *run = new_run(ctx, queue, line, purpose);
    if (!run) {
        snprintf(error, error_size, "the host has no memory");
        return NULL;
    }
    if (guarded(run, make_and_grow, sets ? sets : 1))
        return run;
    explain(run, error, error_size);
    case_run_free(run);
    return NULL;
}

bool case_possible(llmk_context *ctx, const case_line *line, case_purpose purpose, char *error,
                   size_t error_size)
{
    case_run *run = new_run(ctx, NULL, line, purpose);
    bool possible = false;
    if (run) {
        run->only_declare = true;
        possible = !guarded(run, make_and_grow, 1) && run->declared && !run->refusal[0];
        explain(run, error, error_size);
    } else {
        snprintf(error, error_size, "the host has no memory");
    }
    case_run_free(run);
    return possible;
}

void case_run_free(case_run *run)
{
    if (!run)
        return;
    if (run->queue)
        clFinish(run->queue);
    for (case_cleaner *cleaner = run->cleaners; cleaner; cleaner = cleaner->next)
        cleaner->free_fn(cleaner->object);
    for (case_item *item = run->items; item; item = item->next) {
        for (size_t set = 0; item->buffers && set < run->sets; set++)
            if (item->buffers[set])
                clReleaseMemObject(item->buffers[set]);
        free(item->buffers);
        free(item->image);
        free(item->seen);
    }
    free(run->set_args);
    while (run->blocks) {
        case_block *block = run->blocks;
        run->blocks = block->next;
        free(block);
    }
    free(run);
}

/* ---- Calling it ---- */

/* How often a call is repeated to be slow. */
#define SLOWNESS 8

/* Overwrites the first element of the first output, or the byte before it, after the operator. */
static llmk_status spoil(case_run *run, size_t set)
{
    const case_item *item = run->items;
    while (item && (item->t.role != CASE_OUTPUT || !item->t.count))
        item = item->next;
    if (!item)
        return LLMK_OK;
    const uint8_t wrong = 0x55;
    const bool outside = run->sabotage == CASE_OUTSIDE;
    cl_int code =
        clEnqueueFillBuffer(run->queue, item->home->buffers[set], &wrong, 1, item->begin - outside,
                            outside ? 1 : case_bytes(item->t.dtype, 1), 0, NULL, NULL);
    return code == CL_SUCCESS ? LLMK_OK : LLMK_OPENCL_ERROR;
}

llmk_status case_run_enqueue(case_run *run, size_t set, const llmk_events *events)
{
    const case_op *op = run->line.op;
    const void *args = run->set_args[set];
    for (int i = 1; run->sabotage == CASE_SLOW && i < SLOWNESS; i++)
        op->call(run->ctx, run->queue, args, NULL);
    llmk_status status = op->call(run->ctx, run->queue, args, events);
    if (status == LLMK_OK && (run->sabotage == CASE_WRONG || run->sabotage == CASE_OUTSIDE))
        return spoil(run, set);
    return status;
}

void case_run_sabotage(case_run *run, case_sabotage how)
{
    run->sabotage = how;
}

/* ---- Bytes ---- */

uint64_t case_run_bytes_read(const case_run *run)
{
    uint64_t bytes = run->counted_read;
    for (const case_item *item = run->items; item; item = item->next)
        if (item->t.role != CASE_OUTPUT)
            bytes += case_bytes(item->t.dtype, item->t.count);
    return bytes;
}

uint64_t case_run_bytes_written(const case_run *run)
{
    uint64_t bytes = run->counted_written;
    for (const case_item *item = run->items; item; item = item->next)
        if (item->t.role == CASE_OUTPUT)
            bytes += case_bytes(item->t.dtype, item->t.count);
    return bytes;
}

uint64_t case_run_set_bytes(const case_run *run)
{
    uint64_t bytes = run->counted_read;
    for (const case_item *item = run->items; item; item = item->next)
        if (item->home == item)
            bytes += case_bytes(item->t.dtype, item->t.count);
    return bytes;
}
