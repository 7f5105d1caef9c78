/*
 * bench_probe.h - what the device itself can do: the cost of a launch, copying, multiply-adds. The
 * roof that results are held against, measured in the same run.
 */
#ifndef LLMK_BENCH_PROBE_H
#define LLMK_BENCH_PROBE_H

#include "tools/common/bench_measure.h"

#include <llmk/llmk.h>

typedef struct bench_probe bench_probe;

/* Everything is in GB/s, TFLOP/s and microseconds; 0 where not known. */
typedef struct bench_roof {
    double launch_us;     /* an empty kernel, per launch in a batch */
    uint64_t copy_bytes;  /* read and written by the large copy */
    double copy_gbs;      /* of the large copy, read plus written */
    double fma_tflops;    /* f32 multiply-add */
    double matrix_tflops; /* f16 matrix unit with f32 accumulation */
    const char *matrix;   /* how it was reached: "wgmma", "mma.sync"; NULL where not known */
} bench_roof;

/* Builds kernels and allocates the buffers to copy. NULL with a sentence on failure. */
bench_probe *bench_probe_new(llmk_context *ctx, cl_command_queue queue, char *error,
                             size_t error_size);
void bench_probe_free(bench_probe *probe);
/* An empty kernel, to be measured beside something else. */
bench_work bench_probe_empty(bench_probe *probe);
/* Measures, `seconds` each. */
bool bench_probe_roof(bench_probe *probe, double seconds, bench_roof *roof);
/* Enqueues the probe of wgmma once, on so many work-groups; not LLMK_OK where there is none. */
llmk_status bench_probe_wgmma(llmk_context *ctx, cl_command_queue queue, cl_mem out, size_t groups);
/* A copy that moves `bytes` in all, half read and half written, rotated as everything else. Sizes
 * beyond the large copy are not possible: the result is then 0. */
double bench_probe_copy_us(bench_probe *probe, uint64_t bytes, double seconds);

#endif
