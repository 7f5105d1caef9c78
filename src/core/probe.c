/*
 * probe.c - features that a driver's claims do not settle, found by building and running a small
 * kernel. Probes run in the trial context, once a device and driver; the answer is kept on disk.
 */
#include "ops/operator.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef CL_DEVICE_MAX_NUM_SUB_GROUPS
#define CL_DEVICE_MAX_NUM_SUB_GROUPS 0x105C
#endif

#define PROBE_FILE   "common/probe.cl"
#define MAX_SUBGROUP 64u /* and the items of that probe */

/* What a probe found: 0 is "no". Not certain where it failed for a reason that may pass (memory, a
 * lost device): then it holds for this context only and is not kept on disk. */
typedef struct answer {
    int value;
    bool certain, ran; /* ran: a kernel was asked, not only the driver */
} answer;

static const answer no = {0, true, false};

/* Runs kernel `name` on one work-group of `items`; out[] gets its results. A kernel that does not
 * build is a certain "no". */
static bool run(llmk_context *trial, const char *defines, const char *name, size_t items,
                uint32_t *out, size_t count, answer *found)
{
    cl_int err;
    cl_mem buffer = clCreateBuffer(trial->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                   count * sizeof *out, out, &err);
    cl_command_queue queue =
        buffer ? clCreateCommandQueue(trial->cl, trial->caps.device, 0, &err) : NULL;
    llmk_status status = queue ? LLMK_OK : llmk_fail_cl(trial, err, "making a probe's buffer");
    if (queue) {
        llmk_launch launch = {
            .ctx = trial, .queue = queue, .op = "probe", .variant = name, .in_order = true};
        llmk_kernel k = llmk_kernel_open(&launch, PROBE_FILE, defines, name);
        llmk_arg_buffer(&k, buffer);
        const size_t one[3] = {1, 1, 1}, local[3] = {items, 1, 1};
        status = llmk_kernel_enqueue(&k, one, local);
        if (status == LLMK_OK) {
            err = clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, count * sizeof *out, out, 0, NULL,
                                      NULL);
            if (err != CL_SUCCESS) { /* whatever it is called, this context is not to be trusted */
                status = llmk_fail_cl(trial, err, "clEnqueueReadBuffer");
                atomic_store(&trial->lost, true);
            }
        }
        if (status != LLMK_OK)
            clFinish(queue);
        clReleaseCommandQueue(queue);
    }
    if (buffer)
        clReleaseMemObject(buffer);
    found->certain = status == LLMK_OK || status == LLMK_BUILD_FAILED;
    found->ran = true;
    return status == LLMK_OK;
}

static answer find_subgroup_size(llmk_context *trial)
{
    /* A driver that claims none is believed: PoCL's compiler complains on stderr when asked in
     * vain. */
    cl_uint most = 0;
    clGetDeviceInfo(trial->caps.device, CL_DEVICE_MAX_NUM_SUB_GROUPS, sizeof most, &most, NULL);
    if (most == 0 && !llmk_caps_extension(&trial->caps, "cl_khr_subgroups") &&
        !llmk_caps_extension(&trial->caps, "cl_intel_subgroups"))
        return no;
    /* What every item sees: all must agree on a size that divides the group, and a sub-group must
     * be neighbours. */
    struct {
        uint32_t size[MAX_SUBGROUP], sum_of_ids[MAX_SUBGROUP];
    } seen;
    answer found = no;
    memset(&seen, 0xff, sizeof seen);
    if (!run(trial, "-DPROBE_SUBGROUP", "probe_subgroup", MAX_SUBGROUP, (uint32_t *)&seen,
             sizeof seen / sizeof(uint32_t), &found))
        return found;
    const uint32_t size = seen.size[0];
    if (size < 1 || size > MAX_SUBGROUP || MAX_SUBGROUP % size != 0)
        return found;
    for (uint32_t i = 0; i < MAX_SUBGROUP; i++) {
        const uint32_t first = i - i % size;
        if (seen.size[i] != size || seen.sum_of_ids[i] != size * first + size * (size - 1) / 2)
            return found;
    }
    found.value = (int)size;
    return found;
}

static answer find_fp16(llmk_context *trial)
{
    /* NVIDIA's driver has it without listing it; others are believed where they do not. */
    if (trial->caps.vendor != LLMK_VENDOR_NVIDIA &&
        !llmk_caps_extension(&trial->caps, "cl_khr_fp16"))
        return no;
    uint32_t bits[1] = {0xffffffffu};
    answer found = no;
    found.value = run(trial, "-DPROBE_FP16", "probe_fp16", 1, bits, 1, &found) &&
                  bits[0] == 0x4200; /* 1 + 2 */
    return found;
}

static answer find_inline_ptx(llmk_context *trial)
{
    if (trial->caps.vendor != LLMK_VENDOR_NVIDIA) /* never hand it to another vendor's compiler */
        return no;
    uint32_t sums[32];
    answer found = no;
    memset(sums, 0xff, sizeof sums);
    if (!run(trial, "-DPROBE_PTX", "probe_ptx", LLMK_COUNT(sums), sums, LLMK_COUNT(sums), &found))
        return found;
    for (size_t i = 0; i < LLMK_COUNT(sums); i++)
        if (sums[i] != (i ^ 1)) /* a butterfly shuffle of the lane ids */
            return found;
    found.value = 1;
    return found;
}

/* -1 where it is not known or makes no sense. */
static int recall(llmk_context *ctx, const char *what)
{
    llmk_finding found;
    if (!llmk_finding_recall(ctx, what, &found))
        return -1;
    const bool sensible = found.value >= 0 && found.value <= MAX_SUBGROUP;
    if (sensible && found.failed)
        llmk_finding_warn(ctx, what, &found);
    free(found.text);
    return sensible ? (int)found.value : -1;
}

static int probe(llmk_context *ctx, atomic_int *result, const char *name,
                 answer (*find)(llmk_context *trial))
{
    const int known = atomic_load(result);
    if (known >= 0)
        return known;
    answer found = no;
    if (ctx->is_trial) /* called from a self-test, under the lock of the context it serves */
        found = find(ctx);
    else {
        char what[64];
        llmk_join(what, sizeof what, "probe:", name, NULL);
        found.value = recall(ctx, what);
        if (found.value < 0) {
            llmk_context *trial;
            pthread_mutex_lock(&ctx->trial_lock);
            const uint64_t start = llmk_now();
            llmk_fail(LLMK_OK, "the answer of the kernel");
            found = llmk_context_trial(ctx, &trial) == LLMK_OK ? find(trial)
                                                               : (answer){0, false, false};
            llmk_times_add(&ctx->times, LLMK_PHASE_PROBE, start);
            pthread_mutex_unlock(&ctx->trial_lock);
            const bool failed = found.ran && found.value == 0;
            if (found.certain)
                llmk_finding_keep(ctx, what, found.value, failed,
                                  failed ? llmk_error_message() : "");
            llmk_log_write(&ctx->log, failed ? LLMK_LOG_WARN : LLMK_LOG_DEBUG, "probe %s: %d (%s)",
                           name, found.value, llmk_error_message());
        }
    }
    atomic_store(result, found.value);
    return found.value;
}

uint32_t llmk_probe_subgroup_size(llmk_context *ctx)
{
    return (uint32_t)probe(ctx, &ctx->subgroup_size, "subgroup_size", find_subgroup_size);
}

bool llmk_probe_fp16(llmk_context *ctx)
{
    return probe(ctx, &ctx->fp16, "fp16", find_fp16) != 0;
}

bool llmk_probe_inline_ptx(llmk_context *ctx)
{
    return probe(ctx, &ctx->inline_ptx, "inline_ptx", find_inline_ptx) != 0;
}
