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

#define PROBE_FILE "common/probe.cl"

/* Runs kernel `name` on one work-group of `items`; out[] gets its results. Any failure is "no". */
static bool run(llmk_context *trial, const char *defines, const char *name, size_t items,
                uint32_t *out, size_t count)
{
    cl_int err;
    cl_mem buffer = clCreateBuffer(trial->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                   count * sizeof *out, out, &err);
    cl_command_queue queue =
        buffer ? clCreateCommandQueue(trial->cl, trial->caps.device, 0, &err) : NULL;
    bool ok = false;
    if (queue) {
        llmk_launch launch = {
            .ctx = trial, .queue = queue, .op = "probe", .variant = name, .in_order = true};
        llmk_kernel k = llmk_kernel_open(&launch, PROBE_FILE, defines, name);
        llmk_arg_buffer(&k, buffer);
        const size_t one[3] = {1, 1, 1}, local[3] = {items, 1, 1};
        ok = llmk_kernel_enqueue(&k, one, local) == LLMK_OK &&
             clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, count * sizeof *out, out, 0, NULL,
                                 NULL) == CL_SUCCESS;
        if (!ok)
            clFinish(queue);
        clReleaseCommandQueue(queue);
    }
    if (buffer)
        clReleaseMemObject(buffer);
    return ok;
}

static int find_subgroup_size(llmk_context *trial)
{
    /* A driver that claims none is believed: PoCL's compiler complains on stderr when asked in
     * vain. */
    cl_uint most = 0;
    clGetDeviceInfo(trial->caps.device, CL_DEVICE_MAX_NUM_SUB_GROUPS, sizeof most, &most, NULL);
    if (most == 0 && !llmk_caps_extension(&trial->caps, "cl_khr_subgroups") &&
        !llmk_caps_extension(&trial->caps, "cl_intel_subgroups"))
        return 0;
    /* Every item adds 1 within its sub-group: all must agree on a size that divides the group. */
    uint32_t sums[64];
    memset(sums, 0xff, sizeof sums);
    if (!run(trial, "-DPROBE_SUBGROUP", "probe_subgroup", LLMK_COUNT(sums), sums, LLMK_COUNT(sums)))
        return 0;
    for (size_t i = 0; i < LLMK_COUNT(sums); i++)
        if (sums[i] != sums[0])
            return 0;
    return sums[0] >= 1 && sums[0] <= 64 ? (int)sums[0] : 0;
}

static int find_fp16(llmk_context *trial)
{
    /* NVIDIA's driver has it without listing it; others are believed where they do not. */
    if (trial->caps.vendor != LLMK_VENDOR_NVIDIA &&
        !llmk_caps_extension(&trial->caps, "cl_khr_fp16"))
        return 0;
    uint32_t bits[1] = {0xffffffffu};
    return run(trial, "-DPROBE_FP16", "probe_fp16", 1, bits, 1) && bits[0] == 0x4200; /* 1 + 2 */
}

static int find_inline_ptx(llmk_context *trial)
{
    if (trial->caps.vendor != LLMK_VENDOR_NVIDIA) /* never hand it to another vendor's compiler */
        return 0;
    uint32_t sums[32];
    memset(sums, 0xff, sizeof sums);
    if (!run(trial, "-DPROBE_PTX", "probe_ptx", LLMK_COUNT(sums), sums, LLMK_COUNT(sums)))
        return 0;
    for (size_t i = 0; i < LLMK_COUNT(sums); i++)
        if (sums[i] != (i ^ 1)) /* a butterfly shuffle of the lane ids */
            return 0;
    return 1;
}

static int probe(llmk_context *ctx, atomic_int *result, const char *name,
                 int (*find)(llmk_context *trial))
{
    int value = atomic_load(result);
    if (value >= 0)
        return value;
    if (ctx->is_trial) /* called from a self-test, under the lock of the context it serves */
        value = find(ctx);
    else {
        char key[1024];
        char what[64];
        snprintf(what, sizeof what, "probe %s", name);
        size_t size = 0;
        const bool kept = llmk_finding_key(ctx, what, key, sizeof key);
        char *text = kept ? llmk_cache_get(ctx->cache, key, &size) : NULL;
        value = text ? (int)strtol(text, NULL, 10) : -1;
        free(text);
        if (value < 0) {
            llmk_context *trial;
            pthread_mutex_lock(&ctx->trial_lock);
            const uint64_t start = llmk_now();
            llmk_fail(LLMK_OK, "the answer of the kernel");
            value = llmk_context_trial(ctx, &trial) == LLMK_OK ? find(trial) : 0;
            llmk_times_add(&ctx->times, LLMK_PHASE_PROBE, start);
            pthread_mutex_unlock(&ctx->trial_lock);
            char digits[16];
            const int n = snprintf(digits, sizeof digits, "%d", value);
            if (kept)
                llmk_cache_put(ctx->cache, key, digits, (size_t)n);
            llmk_log_write(&ctx->log, LLMK_LOG_DEBUG, "probe %s: %d (%s)", name, value,
                           llmk_error_message());
        }
    }
    atomic_store(result, value);
    return value;
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
