/* case_check.c - running a case once and looking at every byte that it may, or must not, touch. */
#include "cases/case_internal.h"
#include "cases/case_parallel.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* What has been found so far. The first finding is the message. */
typedef struct finding {
    case_result result;
    double error_squares, expected_squares;
} finding;

__attribute__((format(printf, 2, 3))) static void report(finding *f, const char *fmt, ...)
{
    if (!f->result.ok)
        return;
    f->result.ok = false;
    va_list list;
    va_start(list, fmt);
    vsnprintf(f->result.message, sizeof f->result.message, fmt, list);
    va_end(list);
}

/* "y[3, 17]" */
static void name_element(const case_walk *walk, char *text, size_t size)
{
    const case_tensor *t = &walk->item->t;
    int used = snprintf(text, size, "%s[", t->name);
    for (uint32_t i = 0; i < t->rank && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%llu", i ? ", " : "",
                         (unsigned long long)walk->at[i]);
    if (used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, "]");
}

/* How far off an element is, as a multiple of what is allowed; infinite where nothing would make it
 * right. */
static double excess(llmk_dtype dtype, double got, double expected, const double *bound)
{
    if (isnan(expected) || isnan(got))
        return isnan(expected) && isnan(got) ? 0 : (double)INFINITY;
    if (!bound)
        return got == case_round(dtype, expected) ? 0 : (double)INFINITY;
    if (isinf(expected))
        return got == expected ? 0 : (double)INFINITY;
    if (isinf(got)) /* right only where the tolerance reaches the edge of the dtype's range */
        return signbit(got) == signbit(expected) && fabs(expected) + *bound >= case_overflow(dtype)
                   ? 0
                   : (double)INFINITY;
    const double error = fabs(got - expected);
    return error == 0 ? 0 : *bound > 0 ? error / *bound : (double)INFINITY;
}

/* What comparing an output's elements found, part by part. */
typedef struct comparison {
    const case_item *item;
    pthread_mutex_t lock;
    double error_squares, expected_squares, worst;
    uint64_t wrong, first_wrong;
    char detail[256]; /* of the first */
} comparison;

static void describe_wrong(const case_walk *w, double got, double expected, const double *bound,
                           char *text, size_t size)
{
    char name[96];
    name_element(w, name, sizeof name);
    snprintf(text, size, "%s is %.9g, expected %.9g within %.3g", name, got,
             bound ? expected : case_round(w->item->t.dtype, expected), bound ? *bound : 0);
}

/* Compares elements, then puts the poison back, so that what still differs from the image is a
 * broken canary. */
static void compare_part(void *comparison_, uint64_t begin, uint64_t end)
{
    comparison *all = comparison_;
    const case_item *item = all->item;
    const case_tensor *t = &item->t;
    const llmk_dtype dtype = t->dtype;
    uint8_t *first = item->home->seen + item->begin;
    const uint8_t *image = item->home->image + item->begin;
    comparison part = {.first_wrong = UINT64_MAX};
    for (case_walk w = case_walk_at(item, begin); w.index < end; case_walk_next(&w)) {
        const double got = case_decode(dtype, first, w.element), expected = t->values[w.index];
        const double *bound = t->bound ? &t->bound[w.index] : NULL;
        const double ratio = excess(dtype, got, expected, bound);
        if (bound && isfinite(*bound) && isfinite(expected) && isfinite(got)) {
            part.error_squares += (got - expected) * (got - expected);
            part.expected_squares += expected * expected;
        }
        part.worst = fmax(part.worst, ratio);
        if (!(ratio <= 1) && part.wrong++ == 0) {
            part.first_wrong = w.index;
            describe_wrong(&w, got, expected, bound, part.detail, sizeof part.detail);
        }
        if (dtype == LLMK_U4) {
            const uint8_t mask = w.element & 1 ? 0xf0 : 0x0f;
            uint8_t *byte = &first[w.element / 2];
            *byte = (uint8_t)((*byte & ~mask) | (image[w.element / 2] & mask));
        } else {
            const uint64_t at = case_bytes(dtype, w.element), size = case_bytes(dtype, 1);
            memcpy(first + at, image + at, size);
        }
    }
    pthread_mutex_lock(&all->lock);
    all->error_squares += part.error_squares;
    all->expected_squares += part.expected_squares;
    all->worst = fmax(all->worst, part.worst);
    all->wrong += part.wrong;
    if (part.first_wrong < all->first_wrong) {
        all->first_wrong = part.first_wrong;
        memcpy(all->detail, part.detail, sizeof all->detail);
    }
    pthread_mutex_unlock(&all->lock);
}

static void check_output(finding *f, const case_item *item)
{
    const case_tensor *t = &item->t;
    comparison all = {.item = item, .lock = PTHREAD_MUTEX_INITIALIZER, .first_wrong = UINT64_MAX};
    if (!t->values) {
        report(f, "%s: the case gives no expected values", t->name);
        return;
    }
    case_parallel(t->count, case_part(item), compare_part, &all);
    f->error_squares += all.error_squares;
    f->expected_squares += all.expected_squares;
    f->result.worst = fmax(f->result.worst, all.worst);
    if (all.wrong)
        report(f, "%s (%llu of %llu elements of %s are wrong)", all.detail,
               (unsigned long long)all.wrong, (unsigned long long)t->count, t->name);
}

/* What is left must be the image, byte for byte. */
static void check_untouched(finding *f, const case_item *item)
{
    uint64_t first = item->buffer_bytes, count = 0;
    if (memcmp(item->seen, item->image, item->buffer_bytes) == 0)
        return;
    for (uint64_t i = 0; i < item->buffer_bytes; i++) {
        if (item->seen[i] != item->image[i] && count++ == 0)
            first = i;
    }
    const uint64_t end = item->begin + case_bytes(item->t.dtype, item->span);
    const char *name = item->t.name;
    const unsigned long long bytes = count;
    if (first < item->begin)
        report(f, "%s: written before its start, first %llu bytes before it (%llu bytes in all)",
               name, (unsigned long long)(item->begin - first), bytes);
    else if (first >= end)
        report(f, "%s: written past its end, first at %llu bytes after it (%llu bytes in all)",
               name, (unsigned long long)(first - end), bytes);
    else
        report(f, "%s: %s at byte %llu of it (%llu bytes in all)", name,
               item->t.role == CASE_INPUT ? "an input was changed, first"
                                          : "the gap between rows was written, first",
               (unsigned long long)(first - item->begin), bytes);
}

/* Every buffer of set 0 to what a checked call starts from. */
static bool write_images(case_run *run, finding *f)
{
    for (const case_item *item = run->items; item; item = item->next) {
        if (item->home != item)
            continue;
        cl_int code = clEnqueueWriteBuffer(run->queue, item->buffers[0], CL_TRUE, 0,
                                           item->buffer_bytes, item->image, 0, NULL, NULL);
        if (code != CL_SUCCESS)
            report(f, "%s: writing its buffer failed with OpenCL error %d", item->t.name, code);
    }
    return f->result.ok;
}

static bool read_back(case_run *run, finding *f)
{
    for (case_item *item = run->items; item; item = item->next) {
        if (item->home != item)
            continue;
        if (!item->seen)
            item->seen = malloc(item->buffer_bytes);
        cl_int code = item->seen
                          ? clEnqueueReadBuffer(run->queue, item->buffers[0], CL_TRUE, 0,
                                                item->buffer_bytes, item->seen, 0, NULL, NULL)
                          : CL_OUT_OF_HOST_MEMORY;
        if (code != CL_SUCCESS)
            report(f, "%s: reading its buffer failed with OpenCL error %d", item->t.name, code);
    }
    return f->result.ok;
}

static bool call_once(case_run *run, finding *f)
{
    const llmk_status status = case_run_enqueue(run, 0, NULL);
    if (status != LLMK_OK) {
        report(f, "%s: %s", llmk_status_string(status), llmk_error_message());
        return false;
    }
    const cl_int code = clFinish(run->queue);
    if (code != CL_SUCCESS)
        report(f, "clFinish failed with OpenCL error %d", code);
    return code == CL_SUCCESS;
}

case_result case_run_check(case_run *run)
{
    finding f = {.result = {.ok = true}};
    if (run->purpose == CASE_TO_TIME)
        report(&f, "a run made for timing has nothing to check against");
    else if (write_images(run, &f) && call_once(run, &f) && read_back(run, &f)) {
        /* Outputs first: they restore their poison, also in inputs that they overwrite. */
        for (const case_item *item = run->items; item; item = item->next)
            if (item->t.role == CASE_OUTPUT)
                check_output(&f, item);
        for (const case_item *item = run->items; item; item = item->next)
            if (item->home == item)
                check_untouched(&f, item);
    }
    f.result.nmse = f.expected_squares > 0 ? f.error_squares / f.expected_squares
                                           : (f.error_squares > 0 ? (double)INFINITY : 0);
    return f.result;
}
