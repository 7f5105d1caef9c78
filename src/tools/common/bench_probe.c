/* bench_probe.c - measuring the roof. */
#include "tools/common/bench_probe.h"

#include "core/image.h"
#include "ops/operator.h"

#include <stdio.h>
#include <stdlib.h>

#define GROUP      256ul
#define MOST_SLOTS 64 /* as bench_choose_sets */

static const char copy_source[] =
    "kernel void empty(global uint *p) {}\n"
    "kernel void copy(global const uint4 *from, global uint4 *to, ulong first, ulong count)\n"
    "{\n"
    "    const ulong i = get_global_id(0);\n"
    "    if (i < count)\n"
    "        to[first + i] = from[first + i];\n"
    "}\n"
    /* Eight independent chains of 16: enough to fill the pipelines of a CPU core with 512-bit
     * vectors, and few enough registers for a GPU. */
    "kernel void multiply_add(global float *out, uint rounds)\n"
    "{\n"
    "    float16 a[8];\n"
    "    const float16 m = (float16)(0.999f + 1e-9f * get_global_id(0));\n"
    "    for (int j = 0; j < 8; j++)\n"
    "        a[j] = (float16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) +\n"
    "               (float16)(16 * j);\n" /* all different, or the compiler computes one for all */
    "    for (uint i = 0; i < rounds; i++) {\n"
    "        a[0] = fma(a[0], m, m); a[1] = fma(a[1], m, m);\n"
    "        a[2] = fma(a[2], m, m); a[3] = fma(a[3], m, m);\n"
    "        a[4] = fma(a[4], m, m); a[5] = fma(a[5], m, m);\n"
    "        a[6] = fma(a[6], m, m); a[7] = fma(a[7], m, m);\n"
    "    }\n"
    "    a[0] += a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];\n"
    "    const float8 b = a[0].lo + a[0].hi;\n"
    "    const float4 c = b.lo + b.hi;\n"
    "    if (c.x + c.y + c.z + c.w == 12345.0f)\n" /* never, but the compiler does not know */
    "        out[0] = c.x;\n"
    "}\n";
#define MULTIPLY_ADD_FLOPS (8.0 * 16 * 2) /* an item, a round */

/* Eight independent products of 16x8x16 a warp. */
static const char mma_source[] =
    "#define MMA(c) asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 \" \\\n"
    "    \"{%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};\" \\\n"
    "    : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3]) : \"r\"(a), \"r\"(b))\n"
    "kernel void multiply_add(global float *out, uint rounds)\n"
    "{\n"
    "    const uint id = (uint)get_global_id(0);\n"
    "    const uint a = 0x2c002c00u + id % 256u, b = 0x2c002c00u + id % 128u;\n" /* about 1/16 */
    "    float c[8][4];\n"
    "    for (int j = 0; j < 8; j++)\n"
    "        c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;\n"
    "    for (uint i = 0; i < rounds; i++) {\n"
    "        MMA(c[0]); MMA(c[1]); MMA(c[2]); MMA(c[3]);\n"
    "        MMA(c[4]); MMA(c[5]); MMA(c[6]); MMA(c[7]);\n"
    "    }\n"
    "    float sum = 0;\n"
    "    for (int j = 0; j < 8; j++)\n"
    "        sum += c[j][0] + c[j][3];\n"
    "    if (sum == 12345.0f)\n"
    "        out[0] = sum;\n"
    "}\n";
#define MMA_FLOPS (8.0 * 16 * 8 * 16 * 2 / 32) /* an item, a round */

struct bench_probe {
    llmk_context *ctx;
    cl_context cl;
    cl_device_id device;
    cl_command_queue queue;
    llmk_device_info info;
    cl_program copying;
    cl_kernel empty, copy;
    cl_mem from, to;
    uint64_t buffer_bytes;
    uint64_t slot_items; /* uint4 of one copy; slot s starts at s * slot_items */
};

/* ---- Making ---- */

static cl_program build(const bench_probe *p, const char *source)
{
    cl_program program = clCreateProgramWithSource(p->cl, 1, &source, NULL, NULL);
    if (program && clBuildProgram(program, 1, &p->device, NULL, NULL, NULL) == CL_SUCCESS)
        return program;
    if (program)
        clReleaseProgram(program);
    return NULL;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* A zeroed buffer, so that its pages exist. */
static cl_mem zeroed(const bench_probe *p, uint64_t bytes)
{
    const cl_uint zero = 0;
    cl_mem buffer = clCreateBuffer(p->cl, CL_MEM_READ_WRITE, bytes, NULL, NULL);
    if (buffer && clEnqueueFillBuffer(p->queue, buffer, &zero, sizeof zero, 0, bytes, 0, NULL,
                                      NULL) == CL_SUCCESS)
        return buffer;
    if (buffer)
        clReleaseMemObject(buffer);
    return NULL;
}

bench_probe *bench_probe_new(llmk_context *ctx, cl_command_queue queue, char *error,
                             size_t error_size)
{
    bench_probe *p = calloc(1, sizeof *p);
    if (!p) {
        snprintf(error, error_size, "out of memory");
        return NULL;
    }
    p->ctx = ctx;
    p->cl = llmk_context_cl_context(ctx);
    p->device = llmk_context_cl_device(ctx);
    p->queue = queue;
    p->info = LLMK_INIT(llmk_device_info);
    const bool gpu =
        llmk_context_device_info(ctx, &p->info) == LLMK_OK && !(p->info.type & CL_DEVICE_TYPE_CPU);
    const uint64_t wanted = gpu ? 1ull << 30 : 1ull << 28;
    p->buffer_bytes = least(wanted, least(p->info.max_alloc_bytes, p->info.global_bytes / 8));
    p->buffer_bytes -= p->buffer_bytes % (16 * GROUP);
    p->copying = build(p, copy_source);
    if (p->copying) {
        p->empty = clCreateKernel(p->copying, "empty", NULL);
        p->copy = clCreateKernel(p->copying, "copy", NULL);
        p->from = zeroed(p, p->buffer_bytes);
        p->to = zeroed(p, p->buffer_bytes);
    }
    if (p->empty && p->copy && p->from && p->to && clFinish(queue) == CL_SUCCESS) {
        clSetKernelArg(p->empty, 0, sizeof p->to, &p->to);
        clSetKernelArg(p->copy, 0, sizeof p->from, &p->from);
        clSetKernelArg(p->copy, 1, sizeof p->to, &p->to);
        return p;
    }
    snprintf(error, error_size, "the device's copy bandwidth cannot be measured: %s",
             p->copying ? "no memory for two buffers" : "the kernel does not build");
    bench_probe_free(p);
    return NULL;
}

void bench_probe_free(bench_probe *p)
{
    if (!p)
        return;
    clFinish(p->queue);
    if (p->empty)
        clReleaseKernel(p->empty);
    if (p->copy)
        clReleaseKernel(p->copy);
    if (p->copying)
        clReleaseProgram(p->copying);
    if (p->from)
        clReleaseMemObject(p->from);
    if (p->to)
        clReleaseMemObject(p->to);
    free(p);
}

/* ---- Launching and copying ---- */

static bool launch(const bench_probe *p, cl_kernel kernel, uint64_t groups)
{
    const size_t local = GROUP, global = (size_t)groups * GROUP;
    return clEnqueueNDRangeKernel(p->queue, kernel, 1, NULL, &global, &local, 0, NULL, NULL) ==
           CL_SUCCESS;
}

static bool enqueue_empty(void *user, size_t set)
{
    const bench_probe *p = user;
    (void)set;
    return launch(p, p->empty, 1);
}

bench_work bench_probe_empty(bench_probe *p)
{
    return (bench_work){p->queue, enqueue_empty, p, 1, NULL};
}

static bool enqueue_copy(void *user, size_t set)
{
    const bench_probe *p = user;
    const cl_ulong first = set * p->slot_items, count = p->slot_items;
    clSetKernelArg(p->copy, 2, sizeof first, &first);
    clSetKernelArg(p->copy, 3, sizeof count, &count);
    return launch(p, p->copy, (count + GROUP - 1) / GROUP);
}

double bench_probe_copy_us(bench_probe *p, uint64_t bytes, double seconds)
{
    p->slot_items = (bytes / 2 + 15) / 16;
    if (!p->slot_items || p->slot_items * 16 > p->buffer_bytes)
        return 0;
    bench_timing timing;
    const uint64_t slots = p->buffer_bytes / (p->slot_items * 16);
    const bench_work work = {p->queue, enqueue_copy, p, least(slots, MOST_SLOTS), NULL};
    return bench_measure(&work, seconds, &timing) ? timing.us.median : 0;
}

/* ---- Multiply-adds ---- */

typedef struct multiply_add {
    const bench_probe *probe;
    cl_kernel kernel;
    uint64_t groups;
} multiply_add;

static bool enqueue_multiply_add(void *user, size_t set)
{
    const multiply_add *m = user;
    (void)set;
    return launch(m->probe, m->kernel, m->groups);
}

/* TFLOP/s of a work whose calls have so many operations; 0 where it fails. */
static double rate(const bench_work *work, double flops, double seconds)
{
    bench_timing timing;
    return bench_measure(work, seconds, &timing) ? flops / timing.us.median * 1e-6 : 0;
}

/* TFLOP/s of a kernel `multiply_add(out, rounds)`; 0 where it does not build. */
static double measure_flops(bench_probe *p, const char *source, double flops, double seconds)
{
    cl_program program = build(p, source);
    cl_kernel kernel = program ? clCreateKernel(program, "multiply_add", NULL) : NULL;
    const cl_uint rounds = 2048;
    multiply_add m = {p, kernel, 16ull * (p->info.compute_units ? p->info.compute_units : 1)};
    const bench_work work = {p->queue, enqueue_multiply_add, &m, 1, NULL};
    double tflops = 0;
    if (kernel) {
        clSetKernelArg(kernel, 0, sizeof p->to, &p->to);
        clSetKernelArg(kernel, 1, sizeof rounds, &rounds);
        tflops = rate(&work, flops * rounds * (double)(m.groups * GROUP), seconds);
        clReleaseKernel(kernel);
    }
    if (program)
        clReleaseProgram(program);
    return tflops;
}

/* ---- wgmma, which no driver assembles from source ---- */

#define WGMMA_FILE   "common/probe_wgmma.cl"
#define WGMMA_FLOPS  (64.0 * 256 * 64 * 2 / 128) /* an item, a round */
#define WGMMA_ROUNDS 2048u

llmk_status bench_probe_wgmma(llmk_context *ctx, cl_command_queue queue, cl_mem out, size_t groups)
{
    llmk_launch launch = {
        .ctx = ctx, .queue = queue, .op = "probe", .variant = "wgmma", .in_order = true};
    if (!llmk_image_comes_first(ctx, WGMMA_FILE, ""))
        return LLMK_UNSUPPORTED;
    llmk_kernel k = llmk_kernel_open(&launch, WGMMA_FILE, "", "probe_wgmma");
    llmk_arg_buffer(&k, out);
    llmk_arg_u32(&k, WGMMA_ROUNDS);
    return llmk_kernel_enqueue(&k, (const size_t[3]){groups, 1, 1}, (const size_t[3]){GROUP, 1, 1});
}

static bool enqueue_wgmma(void *user, size_t set)
{
    const multiply_add *m = user;
    (void)set;
    return bench_probe_wgmma(m->probe->ctx, m->probe->queue, m->probe->to, (size_t)m->groups) ==
           LLMK_OK;
}

/* What the matrix units do at most, of what can be asked of them here. */
static void measure_matrix(bench_probe *p, double seconds, bench_roof *roof)
{
    if (p->info.vendor != LLMK_VENDOR_NVIDIA || p->info.compute_capability < 80)
        return;
    multiply_add m = {p, NULL, p->info.compute_units};
    const bench_work work = {p->queue, enqueue_wgmma, &m, 1, NULL};
    const double flops = WGMMA_FLOPS * WGMMA_ROUNDS * (double)(m.groups * GROUP);
    if (p->info.compute_capability == 90)
        roof->matrix_tflops = rate(&work, flops, seconds);
    roof->matrix = "wgmma";
    if (roof->matrix_tflops > 0)
        return;
    roof->matrix_tflops = measure_flops(p, mma_source, MMA_FLOPS, seconds);
    roof->matrix = roof->matrix_tflops > 0 ? "mma.sync" : NULL;
}

bool bench_probe_roof(bench_probe *p, double seconds, bench_roof *roof)
{
    bench_timing timing;
    const bench_work empty = bench_probe_empty(p);
    *roof = (bench_roof){.copy_bytes = 2 * p->buffer_bytes};
    if (!bench_measure(&empty, seconds, &timing))
        return false;
    roof->launch_us = timing.us.median;
    const double copy_us = bench_probe_copy_us(p, roof->copy_bytes, seconds);
    if (copy_us <= 0)
        return false;
    roof->copy_gbs = (double)roof->copy_bytes / copy_us * 1e-3;
    roof->fma_tflops = measure_flops(p, copy_source, MULTIPLY_ADD_FLOPS, seconds);
    measure_matrix(p, seconds, roof);
    return true;
}
