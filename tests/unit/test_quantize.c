/* test_quantize.c - the quantisation utilities on the host: against the f64 reference, against the
 * device bit for bit, and what users rely on (SNR, round trip, odd values, refusals). */
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS /* clCreateCommandQueue works on every version */
#include "reference/quant_reference.h"
#include "support/device.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define U 0x1p-24

/* ---- Data ---- */

enum { MAX_COUNT = 64 * 520 };

static float next_uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static void fill_normal(float *x, size_t count, uint32_t seed, float scale)
{
    uint32_t state = seed;
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int j = 0; j < 12; j++)
            sum += next_uniform(&state);
        x[i] = scale * sum / 2; /* variance of a uniform is 1/3 */
    }
}

static bool is_int4(llmk_quant_scheme scheme)
{
    return scheme >= LLMK_QUANT_INT4_SYMMETRIC;
}

typedef struct coded {
    uint8_t q[MAX_COUNT];
    float scale[MAX_COUNT];
    uint8_t zero[MAX_COUNT];
} coded;

static int code_of(const quant_shape *s, const coded *c, uint64_t index)
{
    return is_int4(s->scheme) ? c->q[index / 2] >> index % 2 * 4 & 15 : (int8_t)c->q[index];
}

static int zero_of(const quant_shape *s, const coded *c, uint64_t index)
{
    return s->scheme == LLMK_QUANT_INT4_ASYMMETRIC ? c->zero[quant_scale_of(s, index)]
           : is_int4(s->scheme)                    ? 8
                                                   : 0;
}

static void quantize_host(const quant_shape *s, const float *x, coded *c)
{
    memset(c, 0, sizeof *c);
    assert_int_equal(
        llmk_quantize_host(s->scheme, s->n, s->k, s->group_size, x, c->q, c->scale, c->zero),
        LLMK_OK);
}

static const quant_shape shapes[] = {
    {LLMK_QUANT_INT8_TENSOR, 64, 520, 0},      {LLMK_QUANT_INT8_TENSOR, 1, 1, 0},
    {LLMK_QUANT_INT8_TENSOR, 3, 37, 0},        {LLMK_QUANT_INT8_CHANNEL, 64, 520, 0},
    {LLMK_QUANT_INT8_CHANNEL, 7, 1, 0},        {LLMK_QUANT_INT8_CHANNEL, 5, 111, 0},
    {LLMK_QUANT_INT4_SYMMETRIC, 64, 520, 32},  {LLMK_QUANT_INT4_SYMMETRIC, 6, 200, 128},
    {LLMK_QUANT_INT4_SYMMETRIC, 5, 94, 0},     {LLMK_QUANT_INT4_SYMMETRIC, 4, 60, 14},
    {LLMK_QUANT_INT4_ASYMMETRIC, 64, 520, 64}, {LLMK_QUANT_INT4_ASYMMETRIC, 6, 200, 128},
    {LLMK_QUANT_INT4_ASYMMETRIC, 5, 94, 0},    {LLMK_QUANT_INT4_ASYMMETRIC, 4, 60, 14},
    {LLMK_QUANT_INT4_ASYMMETRIC, 3, 2, 128},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

enum { KINDS = 7 };

/* Ordinary data and what breaks formulas: `kind` of KINDS. */
static void fill_kind(const quant_shape *s, float *x, int kind)
{
    const size_t count = s->n * s->k;
    static const float scales[KINDS] = {1, 1e-4f, 3e38f / 6, 0x1p-99f, 0x1p-140f, 1, 1};
    fill_normal(x, count, 7u + (uint32_t)kind, scales[kind]);
    for (size_t i = 0; i < count; i++) {
        if (kind == 2 && i % 9 == 4)
            x[i] = i % 2 ? FLT_MAX : -FLT_MAX;
        if (kind == 5 && i % 5 == 0)
            x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
        if (kind == 6) /* halves and zeros: ties, and groups of zeros */
            x[i] = i % 200 < 64 ? 0 : i % 2 ? 63.5f : (float)((int)(i * 37 % 255) - 127) / 2;
    }
}

/* ---- The host against f64 ---- */

static void test_host_against_reference(void **state)
{
    (void)state;
    float *x = malloc(MAX_COUNT * sizeof *x);
    double *f64 = malloc(7 * MAX_COUNT * sizeof *f64);
    coded *c = malloc(sizeof *c);
    assert_true(x && f64 && c);
    const quant_result r = {f64 + MAX_COUNT,     f64 + 2 * MAX_COUNT, f64 + 3 * MAX_COUNT,
                            f64 + 4 * MAX_COUNT, f64 + 5 * MAX_COUNT, f64 + 6 * MAX_COUNT};
    for (int i = 0; i < SHAPES * KINDS; i++) {
        const quant_shape *s = &shapes[i / KINDS];
        fill_kind(s, x, i % KINDS);
        quantize_host(s, x, c);
        for (uint64_t j = 0; j < s->n * s->k; j++)
            f64[j] = x[j];
        quant_reference(s, f64, &r);
        for (uint64_t j = 0; j < quant_scales(s); j++) {
            assert_true(fabs(c->scale[j] - r.scale[j]) <= r.scale_bound[j]);
            if (s->scheme == LLMK_QUANT_INT4_ASYMMETRIC)
                assert_true(fabs(c->zero[j] - r.zero[j]) <= r.zero_bound[j]);
        }
        for (uint64_t j = 0; j < s->n * s->k; j++)
            assert_true(fabs(code_of(s, c, j) - r.q[j]) <= r.q_bound[j]);
    }
    free(c);
    free(f64);
    free(x);
}

/* Half a scale, and what f32 adds: |x / scale - (q - zero)| <= 1/2 + 2u |x / scale|, and one
 * rounding of the product. Not where the product leaves f32's range. */
static void test_round_trip(void **state)
{
    (void)state;
    float *x = malloc(MAX_COUNT * sizeof *x), *y = malloc(MAX_COUNT * sizeof *y);
    coded *c = malloc(sizeof *c);
    assert_true(x && y && c);
    for (int i = 0; i < SHAPES * KINDS; i++) {
        const quant_shape *s = &shapes[i / KINDS];
        fill_kind(s, x, i % KINDS);
        quantize_host(s, x, c);
        assert_int_equal(
            llmk_dequantize_host(s->scheme, s->n, s->k, s->group_size, c->q, c->scale, c->zero, y),
            LLMK_OK);
        for (uint64_t j = 0; j < s->n * s->k; j++) {
            const double scale = c->scale[quant_scale_of(s, j)];
            const int steps = code_of(s, c, j) - zero_of(s, c, j);
            assert_true(scale > 0 && scale < (double)INFINITY);
            if (!isfinite(x[j]))
                continue;
            if (fabs(steps * scale) < (double)FLT_MAX)
                assert_true(fabs((double)x[j] - y[j]) <= scale / 2 + 3 * U * fabs((double)x[j]));
            assert_true(fabs(x[j] / scale - steps) <= 0.5 + 2 * U * fabs(x[j] / scale));
        }
    }
    free(c);
    free(y);
    free(x);
}

static void test_odd_values(void **state)
{
    (void)state;
    const float x[8] = {NAN, INFINITY, -INFINITY, 0.6f, -2, 0, -0.0f, 3};
    int8_t q8[8];
    uint8_t q4[4], zero;
    float scale;
    assert_int_equal(llmk_quantize_host(LLMK_QUANT_INT8_CHANNEL, 1, 8, 0, x, q8, &scale, NULL),
                     LLMK_OK);
    assert_memory_equal(q8, ((int8_t[]){0, 127, -127, 25, -85, 0, 0, 127}), 8);
    assert_int_equal(llmk_quantize_host(LLMK_QUANT_INT4_SYMMETRIC, 1, 8, 0, x, q4, &scale, NULL),
                     LLMK_OK);
    assert_memory_equal(q4, ((uint8_t[]){0xf8, 0x90, 0x83, 0xf8}), 4); /* 8 15 0 9, 3 8 8 15 */
    assert_int_equal(llmk_quantize_host(LLMK_QUANT_INT4_ASYMMETRIC, 1, 8, 0, x, q4, &scale, &zero),
                     LLMK_OK);
    assert_int_equal(zero, 6);
    assert_memory_equal(q4, ((uint8_t[]){0xf6, 0x80, 0x60, 0xf6}), 4);

    const float nothing[4] = {0, NAN, INFINITY, -0.0f};
    assert_int_equal(llmk_quantize_host(LLMK_QUANT_INT8_TENSOR, 1, 4, 0, nothing, q8, &scale, NULL),
                     LLMK_OK);
    assert_float_equal(scale, 1, 0);
    assert_memory_equal(q8, ((int8_t[]){0, 0, 127, 0}), 4);
    assert_int_equal(
        llmk_quantize_host(LLMK_QUANT_INT4_ASYMMETRIC, 1, 4, 0, nothing, q4, &scale, &zero),
        LLMK_OK);
    assert_float_equal(scale, 1, 0);
    assert_int_equal(zero, 0);
}

/* A range that does not include 0 by itself must not saturate. */
static void test_one_sign(void **state)
{
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        float x[32], y[32], scale;
        uint8_t q[16], zero;
        for (int i = 0; i < 32; i++)
            x[i] = (float)sign * (10 + (float)i / 31);
        assert_int_equal(
            llmk_quantize_host(LLMK_QUANT_INT4_ASYMMETRIC, 1, 32, 32, x, q, &scale, &zero),
            LLMK_OK);
        assert_int_equal(zero, sign > 0 ? 0 : 15);
        assert_true(fabs(scale * 15.0 / 11 - 1) < 1e-6);
        assert_int_equal(
            llmk_dequantize_host(LLMK_QUANT_INT4_ASYMMETRIC, 1, 32, 32, q, &scale, &zero, y),
            LLMK_OK);
        for (int i = 0; i < 32; i++)
            assert_true(fabsf(x[i] - y[i]) <= scale / 2 * (1 + 1e-5f));
    }
}

/* The promise of every quantiser of this kind, on standard normal weights. */
static void test_snr(void **state)
{
    (void)state;
    float *x = malloc(MAX_COUNT * sizeof *x), *y = malloc(MAX_COUNT * sizeof *y);
    coded *c = malloc(sizeof *c);
    assert_true(x && y && c);
    static const struct {
        quant_shape shape;
        float snr, relative;
    } wanted[] = {
        {{LLMK_QUANT_INT8_TENSOR, 64, 520, 0}, 30, 0.05f},
        {{LLMK_QUANT_INT8_CHANNEL, 64, 520, 0}, 35, 0.05f},
        {{LLMK_QUANT_INT4_SYMMETRIC, 64, 520, 32}, 18, 0.2f},
        {{LLMK_QUANT_INT4_ASYMMETRIC, 64, 520, 32}, 19, 0.2f},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const quant_shape *s = &wanted[i].shape;
        llmk_error_stats stats;
        fill_normal(x, MAX_COUNT, 3, 0.02f);
        quantize_host(s, x, c);
        assert_int_equal(
            llmk_dequantize_host(s->scheme, s->n, s->k, s->group_size, c->q, c->scale, c->zero, y),
            LLMK_OK);
        assert_int_equal(llmk_error_report_host(s->n * s->k, x, y, &stats), LLMK_OK);
        if (stats.snr_db <= wanted[i].snr || stats.mean_rel >= wanted[i].relative)
            fail_msg("scheme %d: SNR %g dB, mean relative error %g", (int)s->scheme,
                     (double)stats.snr_db, (double)stats.mean_rel);
    }
    free(c);
    free(y);
    free(x);
}

/* ---- The device against the host ---- */

static cl_mem make_buffer(fixture *d, const void *data, size_t bytes)
{
    cl_mem buffer =
        clCreateBuffer(llmk_context_cl_context(d->ctx), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                       bytes ? bytes : 1, (void *)(uintptr_t)data, NULL);
    assert_non_null(buffer);
    return buffer;
}

static void read_buffer(fixture *d, cl_mem buffer, void *data, size_t bytes)
{
    assert_int_equal(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, bytes, data, 0, NULL, NULL),
                     CL_SUCCESS);
}

static llmk_tensor scales_of(const quant_shape *s, cl_mem buffer, llmk_dtype dtype)
{
    return is_int4(s->scheme) ? llmk_matrix(buffer, dtype, s->n, quant_row_groups(s))
                              : llmk_vector(buffer, dtype, quant_scales(s));
}

static void quantize_device(fixture *d, const quant_shape *s, const float *x, coded *c)
{
    memset(c, 0, sizeof *c);
    cl_mem xb = make_buffer(d, x, s->n * s->k * sizeof *x), qb = make_buffer(d, c->q, sizeof c->q);
    cl_mem sb = make_buffer(d, c->scale, sizeof c->scale);
    cl_mem zb = make_buffer(d, c->zero, sizeof c->zero);
    llmk_quantize_args a = LLMK_INIT(llmk_quantize_args);
    a.scheme = s->scheme;
    a.group_size = s->group_size;
    a.x = llmk_matrix(xb, LLMK_F32, s->n, s->k);
    a.q = llmk_matrix(qb, is_int4(s->scheme) ? LLMK_U4 : LLMK_I8, s->n, s->k);
    a.scale = scales_of(s, sb, LLMK_F32);
    if (s->scheme == LLMK_QUANT_INT4_ASYMMETRIC)
        a.zero = scales_of(s, zb, LLMK_U8);
    uint64_t bytes;
    assert_int_equal(llmk_quantize_workspace_size(d->ctx, &a, &bytes), LLMK_OK);
    assert_int_equal(bytes > 0, s->scheme == LLMK_QUANT_INT8_TENSOR);
    assert_int_equal(llmk_workspace_create(d->ctx, bytes, &a.workspace), LLMK_OK);
    const llmk_status status = llmk_quantize(d->ctx, d->queue, &a, NULL);
    if (status != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    const size_t row_bytes = is_int4(s->scheme) ? s->k / 2 : s->k;
    read_buffer(d, qb, c->q, s->n * row_bytes);
    read_buffer(d, sb, c->scale, quant_scales(s) * sizeof *c->scale);
    if (s->scheme == LLMK_QUANT_INT4_ASYMMETRIC)
        read_buffer(d, zb, c->zero, quant_scales(s));
    llmk_workspace_free(a.workspace);
    clReleaseMemObject(xb);
    clReleaseMemObject(qb);
    clReleaseMemObject(sb);
    clReleaseMemObject(zb);
}

static void test_device_equals_host(void **state)
{
    fixture *d = *state;
    float *x = malloc(MAX_COUNT * sizeof *x);
    coded *host = malloc(sizeof *host), *dev = malloc(sizeof *dev);
    assert_true(x && host && dev);
    for (int i = 0; i < SHAPES * KINDS; i++) {
        const quant_shape *s = &shapes[i / KINDS];
        fill_kind(s, x, i % KINDS);
        quantize_host(s, x, host);
        if (s->scheme != LLMK_QUANT_INT4_ASYMMETRIC) /* the device gives none */
            memset(host->zero, 0, sizeof host->zero);
        quantize_device(d, s, x, dev);
        assert_memory_equal(host, dev, sizeof *host);
    }
    free(dev);
    free(host);
    free(x);
}

static llmk_error_stats report_device(fixture *d, cl_command_queue queue, uint64_t n,
                                      const float *reference, const float *approximation)
{
    llmk_error_stats stats;
    memset(&stats, 0xff, sizeof stats);
    cl_mem rb = make_buffer(d, reference, n * sizeof *reference);
    cl_mem ab = make_buffer(d, approximation, n * sizeof *approximation);
    cl_mem out = make_buffer(d, &stats, sizeof stats);
    llmk_error_report_args a = LLMK_INIT(llmk_error_report_args);
    a.reference = llmk_vector(rb, LLMK_F32, n);
    a.approximation = llmk_vector(ab, LLMK_F32, n);
    a.report = llmk_vector(out, LLMK_F32, 8);
    uint64_t bytes;
    assert_int_equal(llmk_error_report_workspace_size(d->ctx, &a, &bytes), LLMK_OK);
    assert_int_equal(llmk_workspace_create(d->ctx, bytes, &a.workspace), LLMK_OK);
    const llmk_status status = llmk_error_report(d->ctx, queue, &a, NULL);
    if (status != LLMK_OK)
        fail_msg("%s", llmk_error_message());
    assert_int_equal(clFinish(queue), CL_SUCCESS);
    read_buffer(d, out, &stats, sizeof stats);
    llmk_workspace_free(a.workspace);
    clReleaseMemObject(rb);
    clReleaseMemObject(ab);
    clReleaseMemObject(out);
    return stats;
}

static void assert_stats(llmk_error_stats got, double max, double mean, double relative, double snr,
                         double count)
{
    assert_true(got.max_abs == max && got.mean_abs == mean && got.mean_rel == relative &&
                got.snr_db == snr && got.count == count);
    assert_true(got.reserved[0] == 0 && got.reserved[1] == 0 && got.reserved[2] == 0);
}

/* Reports with one possible answer, from host and device alike. */
static void test_plain_reports(void **state)
{
    fixture *d = *state;
    const double inf = (double)INFINITY;
    static const float zeros[4] = {0}, x[4] = {1, -2, 4, 0.25f};
    static const float off[4] = {1, -2, 5, 0.25f}, bad[4] = {1, -2, NAN, 0.25f};
    static const float gaps[4] = {NAN, -2, INFINITY, 0.25f};
    static const float huge[2] = {0x1p127f, 1}, far[2] = {-0x1p127f, 1}; /* beyond f32 apart */
    const struct {
        const float *reference, *approximation;
        uint64_t count;
        double max, mean, relative, snr, compared;
    } cases[] = {
        {x, x, 0, 0, 0, 0, inf, 0},
        {x, x, 4, 0, 0, 0, inf, 4},
        {zeros, zeros, 4, 0, 0, 0, inf, 4},
        {zeros, x, 1, 1, 1, 0, -inf, 1},
        {x, bad, 4, inf, inf, inf, -inf, 4},
        {gaps, bad, 4, 0, 0, 0, inf, 2},
        {huge, far, 2, inf, inf, inf, -inf, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        llmk_error_stats host;
        assert_int_equal(llmk_error_report_host(cases[i].count, cases[i].reference,
                                                cases[i].approximation, &host),
                         LLMK_OK);
        assert_stats(host, cases[i].max, cases[i].mean, cases[i].relative, cases[i].snr,
                     cases[i].compared);
        assert_stats(
            report_device(d, d->queue, cases[i].count, cases[i].reference, cases[i].approximation),
            cases[i].max, cases[i].mean, cases[i].relative, cases[i].snr, cases[i].compared);
    }
    llmk_error_stats host;
    assert_int_equal(llmk_error_report_host(4, x, off, &host), LLMK_OK);
    assert_true(host.max_abs == 1 && host.mean_abs == 0.25f && host.count == 4);
    assert_true(fabs(host.mean_rel - 0.25 / 3) < 1e-7); /* 0.25 is below a tenth of 4 */
    assert_true(fabs(host.snr_db - 10 * log10(21.0625)) < 1e-5);
}

/* The same bits again, and from an out-of-order queue. */
static void test_report_is_deterministic(void **state)
{
    fixture *d = *state;
    float *r = malloc(MAX_COUNT * sizeof *r), *a = malloc(MAX_COUNT * sizeof *a);
    assert_true(r && a);
    fill_normal(r, MAX_COUNT, 1, 1);
    fill_normal(a, MAX_COUNT, 2, 1);
    const llmk_error_stats first = report_device(d, d->queue, MAX_COUNT, r, a);
    const llmk_error_stats second = report_device(d, d->queue, MAX_COUNT, r, a);
    assert_memory_equal(&first, &second, sizeof first);
    cl_command_queue unordered =
        clCreateCommandQueue(llmk_context_cl_context(d->ctx), llmk_context_cl_device(d->ctx),
                             CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, NULL);
    if (unordered) {
        const llmk_error_stats third = report_device(d, unordered, MAX_COUNT, r, a);
        assert_memory_equal(&first, &third, sizeof first);
        clReleaseCommandQueue(unordered);
    }
    free(a);
    free(r);
}

/* ---- Refusals ---- */

static void test_host_refusals(void **state)
{
    (void)state;
    float x[4] = {1, 2, 3, 4}, scale[4];
    uint8_t q[4], zero[4];
    const llmk_quant_scheme sym = LLMK_QUANT_INT4_SYMMETRIC, asym = LLMK_QUANT_INT4_ASYMMETRIC;
    assert_int_equal(llmk_quantize_host(LLMK_QUANT_NONE, 1, 4, 0, x, q, scale, zero),
                     LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_quantize_host(sym, 1, 3, 0, x, q, scale, zero), LLMK_INVALID_SHAPE);
    assert_int_equal(llmk_quantize_host(sym, 1, 1, 0, x, q, scale, zero), LLMK_INVALID_SHAPE);
    assert_int_equal(llmk_quantize_host(sym, 1, 4, 3, x, q, scale, zero), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_quantize_host(LLMK_QUANT_INT8_CHANNEL, 1, 4, 2, x, q, scale, zero),
                     LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_quantize_host(asym, 1, 4, 0, x, q, scale, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_quantize_host(sym, 1, 4, 0, NULL, q, scale, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_quantize_host(sym, UINT64_MAX, 4, 0, x, q, scale, NULL),
                     LLMK_INVALID_SHAPE);
    assert_int_equal(llmk_dequantize_host(asym, 1, 4, 0, q, scale, NULL, x), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_dequantize_host(sym, 0, 4, 0, NULL, NULL, NULL, NULL), LLMK_OK);
    assert_int_equal(llmk_error_report_host(4, NULL, x, NULL), LLMK_INVALID_ARGUMENT);
}

static void test_device_refusals(void **state)
{
    fixture *d = *state;
    float zeros[64] = {0};
    cl_mem x = make_buffer(d, zeros, sizeof zeros), q = make_buffer(d, zeros, sizeof zeros);
    cl_mem scale = make_buffer(d, zeros, sizeof zeros), zero = make_buffer(d, zeros, sizeof zeros);
    llmk_quantize_args a = LLMK_INIT(llmk_quantize_args);
    a.scheme = LLMK_QUANT_INT4_ASYMMETRIC;
    a.group_size = 4;
    a.x = llmk_matrix(x, LLMK_F32, 2, 6);
    a.q = llmk_matrix(q, LLMK_U4, 2, 6);
    a.scale = llmk_matrix(scale, LLMK_F32, 2, 2);
    a.zero = llmk_matrix(zero, LLMK_U8, 2, 2);
    assert_int_equal(llmk_quantize(d->ctx, d->queue, &a, NULL), LLMK_OK);

#define REFUSED(status, ...)                                                                       \
    do {                                                                                           \
        llmk_quantize_args good = a;                                                               \
        __VA_ARGS__;                                                                               \
        assert_int_equal(llmk_quantize(d->ctx, d->queue, &a, NULL), status);                       \
        a = good;                                                                                  \
    } while (0)
    REFUSED(LLMK_INVALID_ARGUMENT, a.scheme = 5);
    REFUSED(LLMK_INVALID_ARGUMENT, a.group_size = 3);
    REFUSED(LLMK_INVALID_ARGUMENT, a.flags = 1);
    REFUSED(LLMK_INVALID_ARGUMENT, a.zero.buffer = NULL);
    REFUSED(LLMK_INVALID_ARGUMENT, a.scheme = LLMK_QUANT_INT4_SYMMETRIC); /* zero is given */
    REFUSED(LLMK_INVALID_ARGUMENT, a.scheme = LLMK_QUANT_INT8_CHANNEL);   /* a group size too */
    REFUSED(LLMK_INVALID_SHAPE, a.x.dim[1] = a.q.dim[1] = 5);
    REFUSED(LLMK_INVALID_SHAPE, a.x = llmk_vector(x, LLMK_F32, 6));
    REFUSED(LLMK_INVALID_SHAPE, a.scale.dim[1] = 1);
    REFUSED(LLMK_INVALID_SHAPE, a.group_size = 6); /* one group a row, not two */
    REFUSED(LLMK_INVALID_DTYPE, a.q.dtype = LLMK_I8);
    REFUSED(LLMK_INVALID_DTYPE, a.x.dtype = LLMK_I8);
    REFUSED(LLMK_OVERLAP, a.scale.buffer = x);

    a.scheme = LLMK_QUANT_INT8_TENSOR;
    a.group_size = 0;
    a.q = llmk_matrix(q, LLMK_I8, 2, 6);
    a.scale = llmk_vector(scale, LLMK_F32, 1);
    a.zero = (llmk_tensor){.buffer = NULL};
    REFUSED(LLMK_INVALID_ARGUMENT, a.workspace = NULL);
    assert_int_equal(llmk_workspace_create(d->ctx, 4, &a.workspace), LLMK_OK);
    REFUSED(LLMK_BUFFER_TOO_SMALL, (void)0);
    llmk_workspace_free(a.workspace);
#undef REFUSED
    clReleaseMemObject(x);
    clReleaseMemObject(q);
    clReleaseMemObject(scale);
    clReleaseMemObject(zero);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_against_reference),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_one_sign),
        cmocka_unit_test(test_snr),
        cmocka_unit_test(test_device_equals_host),
        cmocka_unit_test(test_plain_reports),
        cmocka_unit_test(test_report_is_deterministic),
        cmocka_unit_test(test_host_refusals),
        cmocka_unit_test(test_device_refusals),
    };
    return cmocka_run_group_tests_name("quantize", tests, set_up, tear_down);
}
