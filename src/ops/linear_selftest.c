/* linear_selftest.c - small linear layers with known weights. */
#include "ops/linear_selftest.h"

#include "core/half.h"

#include <math.h>
#include <stdlib.h>

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

/* One of eight values that every float type holds, around 1/64. */
static float next_scale(uint32_t *state)
{
    return (float)(next(state) % 8 + 4) / 512.0f;
}

static void put_f16(uint8_t *at, float value)
{
    const uint16_t bits = llmk_f32_to_f16(value);
    memcpy(at, &bits, sizeof bits);
}

/* A float weight, exact in every float type. */
static uint8_t *put_float(llmk_format format, uint8_t *at, uint32_t *state, double *w)
{
    const float v = (float)((int)(next(state) % 65) - 32) / 32.0f;
    const uint16_t bits = format == LLMK_FORMAT_F16 ? llmk_f32_to_f16(v) : llmk_f32_to_bf16(v);
    const size_t size = format == LLMK_FORMAT_F32 ? sizeof v : sizeof bits;
    memcpy(at, format == LLMK_FORMAT_F32 ? (const void *)&v : &bits, size);
    *w = v;
    return at + size;
}

/* A GGUF block of 32 weights. */
static uint8_t *put_block(llmk_format format, uint8_t *at, uint32_t *state, double *w)
{
    const float d = next_scale(state), m = format == LLMK_FORMAT_GGUF_Q4_1 ? -9 * d : 0;
    put_f16(at, d);
    at += 2;
    if (format == LLMK_FORMAT_GGUF_Q4_1) {
        put_f16(at, m);
        at += 2;
    }
    for (size_t i = 0; i < 32; i++) {
        const uint32_t r = next(state);
        if (format == LLMK_FORMAT_GGUF_Q8_0) {
            at[i] = (uint8_t)r;
            w[i] = d * (double)(int8_t)at[i];
        } else {
            const uint32_t q = r & 15;
            at[i % 16] = (uint8_t)(i < 16 ? q : at[i % 16] | q << 4);
            w[i] = d * ((double)q - (format == LLMK_FORMAT_GGUF_Q4_0 ? 8 : 0)) + m;
        }
    }
    return at + (format == LLMK_FORMAT_GGUF_Q8_0 ? 32 : 16);
}

/* Weights in `format` on t's context, their values in w [n, k]. group: of W8. */
static llmk_status make_weights(llmk_trial *t, llmk_format format, uint64_t n, uint64_t k,
                                uint64_t group, double *w, llmk_weights **out)
{
    const uint64_t groups = group ? (k + group - 1) / group : 1;
    uint8_t *bytes = malloc(4 * n * k); /* of the widest format */
    float *scales = malloc(n * groups * sizeof *scales);
    if (!bytes || !scales) {
        free(bytes);
        free(scales);
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a self-test");
    }
    uint32_t state = 20261129;
    uint8_t *at = bytes;
    for (uint64_t i = 0; i < n * k;) {
        if (format == LLMK_FORMAT_W8) {
            float *scale = &scales[i / k * groups + (group ? i % k / group : 0)];
            if (group ? i % k % group == 0 : i % k == 0)
                *scale = next_scale(&state);
            *at = (uint8_t)next(&state);
            w[i++] = (double)*scale * (int8_t)*at++;
        } else if (format >= LLMK_FORMAT_GGUF_Q8_0) {
            at = put_block(format, at, &state, w + i);
            i += 32;
        } else {
            at = put_float(format, at, &state, w + i);
            i++;
        }
    }
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = format;
    desc.n = n;
    desc.k = k;
    desc.group_size = group;
    desc.data = (llmk_source){.host = bytes, .size = (uint64_t)(at - bytes)};
    if (format == LLMK_FORMAT_W8)
        desc.scales = (llmk_source){.host = scales, .size = n * groups * sizeof *scales};
    const llmk_status status = llmk_weights_create(t->ctx, &desc, out);
    free(bytes);
    free(scales);
    return status;
}

static llmk_status run(llmk_trial *t, llmk_dtype x, llmk_format format, llmk_dtype y, uint64_t m,
                       uint64_t k, uint64_t group)
{
    const uint64_t n = 70;
    const float *xs, *bias, *residual;
    llmk_weights *weights = NULL;
    llmk_linear_args args = LLMK_INIT(llmk_linear_args);
    args.x = llmk_trial_input(t, x, m, k, 1, 1.0f, &xs);
    args.bias = llmk_trial_input(t, LLMK_F32, 1, n, 2, 1.0f, &bias);
    args.bias = llmk_vector(args.bias.buffer, LLMK_F32, n);
    args.residual = llmk_trial_input(t, x, m, n, 3, 1.0f, &residual);
    args.y = llmk_trial_output(t, y, m, n);
    double *w = llmk_trial_doubles(t, n * k), *expected = llmk_trial_doubles(t, m * n);
    if (t->status != LLMK_OK)
        return t->status;
    LLMK_TRY(make_weights(t, format, n, k, group, w, &weights));
    args.weights = weights;
    llmk_trial_run(t, &args);

    double largest = 0; /* sum |x w| of an output */
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++) {
            double sum = (double)bias[j] + residual[i * n + j], magnitude = 0;
            for (uint64_t l = 0; l < k; l++) {
                const double product = xs[i * k + l] * w[j * k + l];
                sum += product;
                magnitude += fabs(product);
            }
            expected[i * n + j] = sum;
            largest = fmax(largest, magnitude);
        }
    /* The bound of docs/numerics.md for K about 1000: 40 + K / 32 roundings, twice for Q4_1. */
    llmk_trial_compare(t, "y", &args.y, expected, 0, 150.0 / 16777216 * largest);
    llmk_weights_free(weights);
    return t->status;
}

llmk_status llmk_linear_self_test(llmk_trial *t, llmk_dtype x, llmk_format format, llmk_dtype y,
                                  bool general)
{
    /* More than a team's or a tile's share of K, and not a multiple of it. */
    const uint64_t k = format >= LLMK_FORMAT_GGUF_Q8_0 ? 1056 : 1043;
    LLMK_TRY(run(t, x, format, y, 8, k, 0));
    if (format == LLMK_FORMAT_W8)
        LLMK_TRY(run(t, x, format, y, 8, k, general ? 24 : 32));
    return general ? run(t, x, format, y, 70, k, 0) : t->status;
}
