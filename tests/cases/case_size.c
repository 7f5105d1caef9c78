/* case_size.c - where a case's tensors lie in their buffers, and whether there is memory for them.
 */
#include "cases/case_internal.h"

#include <string.h>
#include <unistd.h>

/* So far from the end of 64 bits that adding guards does not overflow; no memory is that large. */
#define LARGEST (UINT64_MAX / 8)

uint64_t case_host_memory;

static uint64_t host_memory(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    if (case_host_memory)
        return case_host_memory;
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : LARGEST;
}

static uint64_t device_number(case_run *run, cl_device_info what)
{
    cl_ulong number = 0;
    clGetDeviceInfo(llmk_context_cl_device(run->ctx), what, sizeof number, &number, NULL);
    return number;
}

static unsigned long long mib(uint64_t bytes)
{
    return bytes >> 20;
}

/* "x [5, 64]" */
static const char *name_shape(const case_tensor *t, char *text, size_t size)
{
    int used = snprintf(text, size, "%s [", t->name);
    for (uint32_t i = 0; i < t->rank && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%llu", i ? ", " : "",
                         (unsigned long long)t->dim[i]);
    if (used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, "]");
    return text;
}

static bool can_store(llmk_dtype dtype)
{
    return case_is_float(dtype) || dtype == LLMK_I8 || dtype == LLMK_I32 || dtype == LLMK_U8 ||
           dtype == LLMK_U4;
}

/* Strides and extents. An empty tensor counts as if its empty dimensions were one: the others are
 * walked, if not stored. */
static uint64_t stretch(case_item *item)
{
    const case_tensor *t = &item->t;
    bool given = false;
    for (uint32_t i = 0; i < t->rank; i++)
        given |= t->stride[i] != 0;
    uint64_t contiguous = 1, extent = 1, reach = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        item->stride[i] = given ? t->stride[i] : contiguous;
        contiguous = case_times(contiguous, t->dim[i]);
        if (t->dim[i]) {
            extent = case_times(extent, t->dim[i]);
            reach = case_plus(reach, case_times(t->dim[i] - 1, item->stride[i]));
        }
    }
    item->span = t->count ? reach : 0;
    return reach > extent ? reach : extent;
}

static bool lay_out(case_run *run, case_item *item)
{
    const case_tensor *t = &item->t;
    char shape[128];
    if (!can_store(t->dtype))
        return case_refuse(run, "%s: cases have no tensors of type %s", t->name,
                           case_dtype_names[t->dtype]);
    const uint64_t extent = stretch(item); /* with its gaps */
    if (extent > LARGEST / 8 || t->pad > LARGEST / 8)
        return case_refuse(run, "%s is larger than any memory", name_shape(t, shape, sizeof shape));
    if (case_bytes(t->dtype, extent) > device_number(run, CL_DEVICE_MAX_MEM_ALLOC_SIZE))
        return case_skip(run, "%s takes a buffer of %llu MiB; the device's limit is %llu",
                         name_shape(t, shape, sizeof shape), mib(case_bytes(t->dtype, extent)),
                         mib(device_number(run, CL_DEVICE_MAX_MEM_ALLOC_SIZE)));
    if (item->home != item) {
        const case_tensor *other = &item->home->t;
        if (other->dtype != t->dtype || other->count != t->count)
            return case_refuse(run, "%s cannot be in place over %s", t->name, other->name);
        item->begin = item->home->begin;
        memcpy(item->stride, item->home->stride, sizeof item->stride);
        return true;
    }
    if (t->dtype == LLMK_U4 && t->pad % 2)
        return case_refuse(run, "%s: u4 tensors start on a whole byte", t->name);
    item->begin = CASE_GUARD + case_bytes(t->dtype, t->pad);
    item->buffer_bytes = item->begin + case_bytes(t->dtype, item->span) + CASE_GUARD;
    return true;
}

bool case_fits(case_run *run, size_t sets)
{
    const uint64_t largest = device_number(run, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    const uint64_t memory = device_number(run, CL_DEVICE_GLOBAL_MEM_SIZE);
    /* Bytes counted are those of a call, which may leave some of the weights alone. */
    uint64_t total = run->counted_read > run->device_bytes ? run->counted_read : run->device_bytes;
    for (const case_item *item = run->items; item; item = item->next) {
        total = case_plus(total, item->buffer_bytes);
        if (item->buffer_bytes > largest)
            return case_skip(run, "%s takes a buffer of %llu MiB; the device's limit is %llu",
                             item->t.name, mib(item->buffer_bytes), mib(largest));
    }
    if (total > memory / 10 * 9 / sets)
        return case_skip(run, "%zu set%s of %llu MiB do%s not fit the device's %llu MiB", sets,
                         sets == 1 ? "" : "s", mib(total), sets == 1 ? "es" : "", mib(memory));
    return true;
}

/* Values of inputs; of outputs what is expected and its bound; of buffers what they held before and
 * after. */
static uint64_t host_bytes(const case_run *run)
{
    const bool timed = run->purpose == CASE_TO_TIME;
    uint64_t bytes = run->host_bytes, largest = 0;
    for (const case_item *item = run->items; item; item = item->next) {
        const uint64_t values = item->t.role != CASE_OUTPUT ? 1 : timed ? 0 : 2;
        bytes = case_plus(bytes, item->t.count * values * sizeof(double));
        if (!timed)
            bytes = case_plus(bytes, 2 * item->buffer_bytes);
        if (item->buffer_bytes > largest)
            largest = item->buffer_bytes;
    }
    return case_plus(bytes, timed ? largest : 0);
}

bool case_lay_out(case_run *run)
{
    for (case_item *item = run->items; item; item = item->next)
        if (!lay_out(run, item))
            return false;
    if (host_bytes(run) > host_memory())
        return case_skip(run, "the case takes %llu MiB of the host's memory, which has %llu",
                         mib(host_bytes(run)), mib(host_memory()));
    return case_fits(run, 1);
}
