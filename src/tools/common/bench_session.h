/*
 * bench_session.h - timing and checking cases on one device.
 */
#ifndef LLMK_BENCH_SESSION_H
#define LLMK_BENCH_SESSION_H

#include "cases/case.h"
#include "tools/common/bench_probe.h"

typedef struct bench_options {
    const char *variant; /* for every operator, or "op:name,..."; NULL: the library chooses */
    double seconds;      /* of timed batches, a case */
    double sustain;      /* s of calls without a pause after them; 0: none */
    size_t sets;         /* 0: as many as the cache needs */
    case_sabotage sabotage;
} bench_options;

typedef struct bench_session {
    bench_options options;
    llmk_context *ctx;
    cl_command_queue queue;
    llmk_device_info info;
    bench_probe *probe;
    bench_roof roof;
    /* The last case stays made, so that timing it again, alternating with something else, is quick.
     */
    case_run *kept;
    case_line kept_line;
} bench_session;

/* Windows of sustained calls at most; they are about a second long. */
#define BENCH_WINDOWS 120

/* What was measured of a case. */
typedef struct bench_row {
    char name[64]; /* in a model list; else "" */
    char text[512];
    char variant[64];
    char error[512]; /* "": it was measured */
    bool skipped;    /* the error is not a failure: not possible on this device or build */
    bench_timing timing;
    bench_timing launch; /* of an empty kernel, batch by batch beside it; no batches: not short */
    bench_stats beyond;  /* of the pairs of batches: what a call takes more than that */
    size_t sets;
    uint64_t rotation_bytes; /* of all sets */
    uint64_t bytes_read, bytes_written;
    double flops;
    double sustained_us[BENCH_WINDOWS]; /* of a call in consecutive windows */
    size_t windows;
    double copy_us; /* of a copy of as many bytes; 0 unknown */
    bool matrix;    /* its multiply-adds can be done by matrix units */
} bench_row;

/* Opens the default device. */
bool bench_session_open(bench_session *s, const bench_options *options, char *error,
                        size_t error_size);
/* Measures the roof; needed before timing, not for checking. */
bool bench_session_probe(bench_session *s, char *error, size_t error_size);
void bench_session_close(bench_session *s);

/* How many sets of buffers outlast the cache: four times the last-level cache, and 400 MB on a GPU,
 * where drivers do not report it reliably; at least two, at most 64, and half of the memory. */
size_t bench_choose_sets(const llmk_device_info *device, uint64_t set_bytes);

/* Fills all of `row` but its name. */
void bench_session_time(bench_session *s, const case_line *line, bench_row *row);
/* The variant and the outcome; false with a sentence where the case cannot be made. */
bool bench_session_check(bench_session *s, const case_line *line, case_result *result,
                         char *variant, size_t variant_size, char *error, size_t error_size);

/* ---- What follows from a row ---- */

double bench_row_gbs(const bench_row *row);
double bench_row_tflops(const bench_row *row);
/* What a call takes more than an empty kernel: both medians are over the same batches for short
 * cases, and the empty kernel's is that of the roof for others. */
double bench_row_beyond_us(const bench_row *row, const bench_roof *roof);
/* The least time that the device's copy bandwidth and multiply-add rate allow; 0 unknown. */
double bench_row_roof_us(const bench_row *row, const bench_roof *roof);

#endif
