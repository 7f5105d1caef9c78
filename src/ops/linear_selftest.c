/* linear_selftest.c - small linear layers with known weights. */
#include "ops/linear_selftest.h"
#include "ops/linear_split.h"

#include "core/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Blocks, for the kinds of scale that only blocks have; the bytes written. */
static size_t put_q4_1(uint8_t *at, uint32_t *state, double *w)
{
    const float d = next_scale(state), m = -9 * d;
    put_f16(at, d);
    put_f16(at + 2, m);
    for (size_t i = 0; i < 32; i++) {
        const uint32_t q = next(state) & 15;
        at[4 + i % 16] = (uint8_t)(i < 16 ? q : at[4 + i % 16] | q << 4);
        w[i] = d * (double)q + m;
    }
    return 20;
}

/* Scales and minimums below 16: the simple half of their packing. */
static size_t put_q4_k(uint8_t *at, uint32_t *state, double *w)
{
    const float d = next_scale(state) / 8, m = next_scale(state) / 8;
    put_f16(at, d);
    put_f16(at + 2, m);
    for (size_t g = 0; g < 8; g++) {
        const uint32_t scale = next(state) & 15, minimum = next(state) & 15;
        if (g < 4) {
            at[4 + g] = (uint8_t)scale;
            at[8 + g] = (uint8_t)minimum;
        } else {
            at[8 + g] = (uint8_t)(scale | minimum << 4);
        }
        uint8_t *codes = at + 16 + g / 2 * 32;
        for (size_t i = 0; i < 32; i++) {
            const uint32_t q = next(state) & 15;
            codes[i] = (uint8_t)(g % 2 ? codes[i] | q << 4 : q);
            w[32 * g + i] = (double)d * scale * q - (double)m * minimum;
        }
    }
    return 144;
}

static size_t put_q6_k(uint8_t *at, uint32_t *state, double *w)
{
    const float d = next_scale(state) / 64;
    put_f16(at + 208, d);
    memset(at, 0, 192);
    for (size_t g = 0; g < 16; g++)
        at[192 + g] = (uint8_t)next(state);
    for (size_t i = 0; i < 256; i++) {
        const uint32_t q = next(state) & 63;
        const size_t half = i / 128, part = i % 128 / 32, l = i % 32;
        uint8_t *low = &at[64 * half + 32 * (part % 2) + l], *high = &at[128 + 32 * half + l];
        *low = (uint8_t)(*low | (q & 15) << part / 2 * 4);
        *high = (uint8_t)(*high | q >> 4 << 2 * part);
        w[i] = (double)d * (int8_t)at[192 + i / 16] * ((double)q - 32);
    }
    return 210;
}

static uint8_t *put_block(llmk_format format, uint8_t *at, uint32_t *state, double *w)
{
    if (format == LLMK_FORMAT_GGUF_Q4_1)
        return at + put_q4_1(at, state, w);
    return at + (format == LLMK_FORMAT_GGUF_Q4_K ? put_q4_k : put_q6_k)(at, state, w);
}

/* What make_weights builds, in as few formats as have every layout and kind of scale. */
typedef struct recipe {
    llmk_format format;
    uint32_t bits;
    llmk_dtype scale;
    bool zeros, order;
    uint32_t block; /* K is a multiple of it */
    llmk_layout_class layouts;
} recipe;

static recipe recipe_of(const llmk_weights *like)
{
    recipe r = {.format = like->format,
                .bits = 8,
                .block = 1,
                .zeros = like->has_zeros,
                .layouts = llmk_class_of(like->layout)};
    switch (like->scale_kind) {
    case LLMK_SCALE_NONE:
        return r;
    case LLMK_SCALE_F16_MIN:
        r.format = LLMK_FORMAT_GGUF_Q4_1;
        r.block = 32;
        return r;
    case LLMK_SCALE_Q4_K:
    case LLMK_SCALE_Q6_K:
        r.block = 256;
        return r;
    default:
        break;
    }
    r.format = LLMK_FORMAT_COMPRESSED_TENSORS;
    r.bits = llmk_layout_is_u4(like->layout) ? 4 : 8;
    r.scale = like->scale_kind == LLMK_SCALE_F32   ? LLMK_F32
              : like->scale_kind == LLMK_SCALE_F16 ? LLMK_F16
                                                   : LLMK_BF16;
    r.order = like->order != NULL;
    return r;
}

/* Words of codes, scales, zeros as bytes, groups of columns. */
typedef struct tables {
    uint8_t *codes, *scales;
    int8_t *zeros;
    int32_t *g_idx;
    uint64_t pitch, groups, group;
} tables;

static void put_scale(llmk_dtype dtype, uint8_t *at, float value)
{
    const uint16_t bits = dtype == LLMK_F16 ? llmk_f32_to_f16(value) : llmk_f32_to_bf16(value);
    memcpy(at, dtype == LLMK_F32 ? (const void *)&value : &bits, dtype == LLMK_F32 ? 4 : 2);
}

static void fill_tables(const recipe *r, uint64_t n, uint64_t k, const tables *t, double *w)
{
    const uint32_t size = llmk_dtype_bits(r->scale) / 8;
    const int32_t half = 1 << (r->bits - 1);
    uint32_t state = 20261129;
    for (uint64_t i = 0; i < k; i++)
        t->g_idx[i] = (int32_t)((r->order ? i * 5 % k : i) / t->group);
    for (uint64_t row = 0; row < n; row++) {
        float scale[64];
        for (uint64_t g = 0; g < t->groups; g++) {
            const uint64_t at = row * t->groups + g;
            scale[g] = next_scale(&state);
            put_scale(r->scale, t->scales + at * size, scale[g]);
            t->zeros[at] = (int8_t)(r->zeros ? (int32_t)(next(&state) % 16) - 8 : 0);
        }
        for (uint64_t i = 0; i < k; i++) {
            const uint32_t q = next(&state) & (uint32_t)(2 * half - 1);
            const int32_t g = t->g_idx[i];
            uint8_t *byte = &t->codes[row * t->pitch + i * r->bits / 8];
            *byte = (uint8_t)(*byte | q << i * r->bits % 8);
            w[row * k + i] =
                (double)scale[g] * ((int32_t)q - half - t->zeros[row * t->groups + (uint64_t)g]);
        }
    }
}

static llmk_status make_tables(llmk_trial *t, const recipe *r, uint64_t experts, uint64_t n,
                               uint64_t k, uint64_t group, double *w, llmk_weights **out)
{
    if (r->bits != 4 && r->bits != 8)
        return llmk_fail(LLMK_INTERNAL, "a self-test's codes have %u bits", r->bits);
    tables a = {.pitch = (k * r->bits + 31) / 32 * 4, .group = group ? group : k};
    a.groups = (k + a.group - 1) / a.group;
    const uint64_t rows = experts * n;
    a.codes = calloc(rows * a.pitch + 1, 1);
    a.scales = calloc(rows * a.groups, 4);
    a.zeros = calloc(rows, a.groups);
    a.g_idx = calloc(experts * k, sizeof *a.g_idx);
    llmk_status status;
    if (!a.codes || !a.scales || !a.zeros || !a.g_idx) {
        status = llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a self-test");
    } else {
        fill_tables(r, rows, k, &a, w);
        for (uint64_t e = 1; e < experts; e++)
            memcpy(a.g_idx + e * k, a.g_idx, k * sizeof *a.g_idx);
        llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
        desc.format = r->format;
        desc.bits = r->bits;
        desc.experts = experts;
        desc.n = n;
        desc.k = k;
        desc.group_size = group;
        desc.scale_dtype = r->scale;
        desc.zero_dtype = LLMK_I8;
        desc.data = (llmk_source){.host = a.codes, .size = rows * a.pitch};
        desc.scales = (llmk_source){.host = a.scales, .size = rows * a.groups * 4};
        if (r->zeros)
            desc.zeros = (llmk_source){.host = a.zeros, .size = rows * a.groups};
        desc.g_idx = (llmk_source){.host = a.g_idx, .size = experts * k * sizeof *a.g_idx};
        status = llmk_weights_create_as(t->ctx, &desc, r->layouts, 0, out);
    }
    free(a.codes);
    free(a.scales);
    free(a.zeros);
    free(a.g_idx);
    return status;
}

/* Weights on t's context, their values in w [experts, n, k]. group: of formats with tables. */
static llmk_status make_weights(llmk_trial *t, const recipe *r, uint64_t experts, uint64_t n,
                                uint64_t k, uint64_t group, double *w, llmk_weights **out)
{
    if (r->format == LLMK_FORMAT_COMPRESSED_TENSORS)
        return make_tables(t, r, experts, n, k, group, w, out);
    uint8_t *bytes = malloc(4 * experts * n * k); /* of the widest format */
    if (!bytes)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a self-test");
    uint32_t state = 20261129;
    uint8_t *at = bytes;
    for (uint64_t i = 0; i < experts * n * k; i += r->block)
        at = r->block > 1 ? put_block(r->format, at, &state, w + i)
                          : put_float(r->format, at, &state, w + i);
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = r->format;
    desc.experts = experts;
    desc.n = n;
    desc.k = k;
    desc.data = (llmk_source){.host = bytes, .size = (uint64_t)(at - bytes)};
    const llmk_status status = llmk_weights_create_as(t->ctx, &desc, r->layouts, 0, out);
    free(bytes);
    return status;
}

/* workspace: may be NULL */
static llmk_status run_in(llmk_trial *t, llmk_dtype x, const recipe *r, llmk_dtype y, uint64_t m,
                          uint64_t n, uint64_t k, uint64_t group, llmk_workspace *workspace)
{
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
    LLMK_TRY(make_weights(t, r, 1, n, k, group, w, &weights));
    args.weights = weights;
    args.workspace = workspace;
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
    /* The bound of docs/numerics-linear.md for K about 1000: 40 + K / 32 roundings, twice for Q4_1.
     */
    llmk_trial_compare(t, "y", &args.y, expected, 0, 150.0 / 16777216 * largest);
    llmk_weights_free(weights);
    return t->status;
}

static llmk_status run(llmk_trial *t, llmk_dtype x, const recipe *r, llmk_dtype y, uint64_t m,
                       uint64_t n, uint64_t k, uint64_t group)
{
    return run_in(t, x, r, y, m, n, k, group, NULL);
}

llmk_status llmk_linear_self_test(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                  llmk_dtype y, uint64_t rows, bool even)
{
    const recipe r = recipe_of(like);
    if (rows <= 2) { /* of whole vectors */
        LLMK_TRY(run(t, x, &r, y, 1, 71, 1048, 0));
        return run(t, x, &r, y, rows, 71, 5000, 0);
    }
    /* More than a team's or a tile's share of K, and not a multiple of it. */
    const uint64_t k = r.block == 256 ? 1280 : r.block == 32 ? 1056 : 1043;
    const uint64_t whole = even || r.layouts == LLMK_CLASS_NV ? 32 : 24;
    const uint64_t group = r.format != LLMK_FORMAT_COMPRESSED_TENSORS ? 0 : whole;
    if (!r.order)
        LLMK_TRY(run(t, x, &r, y, 8, 70, k, 0));
    if (group)
        LLMK_TRY(run(t, x, &r, y, 8, 70, k, group));
    if (rows <= 8)
        return t->status;
    if (!even && r.block == 1 &&
        !group) /* for those that want 16-byte boundaries and N in round numbers */
        LLMK_TRY(run(t, x, &r, y, rows, LLMK_LINEAR_TRIAL_WIDE_N, 1048, 0));
    return run(t, x, &r, y, rows, 70, k, r.order ? group : 0);
}

llmk_status llmk_linear_self_test_wide(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                       llmk_dtype y)
{
    static const uint64_t shapes[][3] = {{20, 150, 128}, {40, 70, 128}, {70, 70, 128},
                                         {40, 70, 0},    {70, 70, 0},   {150, 70, 0}};
    const recipe r = recipe_of(like);
    const uint64_t k = 1048; /* of which the last step is a part */
    for (size_t i = 0; i < LLMK_COUNT(shapes); i++)
        LLMK_TRY(run(t, x, &r, y, shapes[i][0], shapes[i][1], k, shapes[i][2]));
    /* And with tiles that work-groups share. */
    llmk_workspace *workspace = NULL;
    LLMK_TRY(llmk_workspace_create(t->ctx, llmk_linear_split_bytes_on(t->ctx), &workspace));
    llmk_status status = LLMK_OK;
    for (size_t i = 0; status == LLMK_OK && i < LLMK_COUNT(shapes); i++)
        status = run_in(t, x, &r, y, shapes[i][0], shapes[i][1], k, shapes[i][2], workspace);
    llmk_workspace_free(workspace);
    return status;
}

llmk_status llmk_linear_self_test_tall(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                       llmk_dtype y)
{
    const recipe r = recipe_of(like);
    LLMK_TRY(run(t, x, &r, y, 270, 416, 136, 0));
    /* And tiles that work-groups share. */
    llmk_workspace *workspace = NULL;
    LLMK_TRY(llmk_workspace_create(t->ctx, llmk_linear_split_bytes_on(t->ctx), &workspace));
    llmk_status status = run_in(t, x, &r, y, 150, 288, 712, 0, workspace); /* by two of them */
    if (status == LLMK_OK)
        status = run_in(t, x, &r, y, 150, 288, 1048, 0, workspace); /* and by four */
    llmk_workspace_free(workspace);
    return status;
}

llmk_status llmk_linear_self_test_boxes(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                        llmk_dtype y)
{
    static const uint64_t rows[] = {128, 40, 39, 5};
    const recipe r = recipe_of(like);
    llmk_workspace *workspace = NULL;
    LLMK_TRY(run(t, x, &r, y, 17, 288, 1048, 0));
    LLMK_TRY(llmk_workspace_create(t->ctx, llmk_linear_split_bytes_on(t->ctx), &workspace));
    llmk_status status = LLMK_OK;
    for (size_t i = 0; status == LLMK_OK && i < LLMK_COUNT(rows); i++)
        status = run_in(t, x, &r, y, rows[i], 288, 1048, 0, workspace);
    llmk_workspace_free(workspace);
    return status;
}

llmk_status llmk_linear_self_test_plain(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                        llmk_dtype y, uint64_t m, uint64_t n)
{
    const recipe r = recipe_of(like);
    if (r.format == LLMK_FORMAT_COMPRESSED_TENSORS)
        LLMK_TRY(run(t, x, &r, y, m, n, 1024, 128));
    return r.order ? t->status : run(t, x, &r, y, m, n, 1024, 0);
}

llmk_status llmk_linear_self_test_codes(llmk_trial *t, llmk_dtype x, const llmk_weights *like,
                                        llmk_dtype y)
{
    static const uint64_t shapes[][2] = {{1, 128}, {8, 32}, {1, 0}, {8, 0}}; /* rows, group */
    const recipe r = recipe_of(like);
    const bool grouped = r.format == LLMK_FORMAT_COMPRESSED_TENSORS;
    const uint64_t k = r.block == 256 ? 1280 : r.block == 32 ? 1056 : 1043;
    for (size_t i = grouped ? 0 : 2; i < (r.order ? 2 : LLMK_COUNT(shapes)); i++)
        LLMK_TRY(run(t, x, &r, y, shapes[i][0], 70, k, shapes[i][1]));
    return t->status;
}

/* Of any of the kernels, with blocks of 32. */
#define WHOLE_STEPS 256u

uint64_t llmk_linear_trial_depth(const llmk_weights *like, bool steps)
{
    const recipe r = recipe_of(like);
    if (steps && r.block < 256 && !r.order)
        return WHOLE_STEPS;
    if (r.block > 1)
        return r.block == 256 ? 512 : 96;
    const bool halves = r.format == LLMK_FORMAT_F16 || r.format == LLMK_FORMAT_BF16;
    return r.layouts == LLMK_CLASS_NV || halves ? 112
                                                : 101; /* blocks of rows, vectors of x; neither */
}

llmk_status llmk_linear_trial_weights(llmk_trial *t, const llmk_weights *like, uint64_t experts,
                                      uint64_t n, uint64_t k, bool whole, double **w,
                                      llmk_weights **out)
{
    const recipe r = recipe_of(like);
    const char *name = t->variant->name;
    const bool any = !strcmp(name, "portable") || !strcmp(name, "ref");
    *w = llmk_trial_doubles(t, experts * n * k);
    if (!*w)
        return t->status;
    uint64_t group = !strcmp(name, "nv90-packed") ? 128 : 32;
    if (any && r.layouts != LLMK_CLASS_NV)
        group = 24;
    if (whole || r.format != LLMK_FORMAT_COMPRESSED_TENSORS)
        group = 0;
    return make_weights(t, &r, experts, n, k, group, *w, out);
}

uint64_t llmk_linear_trial_columns(const llmk_weights *like, bool odd)
{
    const recipe r = recipe_of(like);
    return r.block == 256                       ? 512
           : r.layouts == LLMK_CLASS_NV && !odd ? WHOLE_STEPS
           : r.block == 32                      ? 160
           : odd                                ? 133
                                                : 136;
}

llmk_status llmk_linear_trial_matrix(llmk_trial *t, const llmk_weights *like, uint64_t n,
                                     uint64_t k, bool grouped, double **w, llmk_weights **out)
{
    const recipe r = recipe_of(like);
    const bool groups = r.format == LLMK_FORMAT_COMPRESSED_TENSORS && (grouped || r.order);
    *w = llmk_trial_doubles(t, n * k);
    if (!*w)
        return t->status;
    return make_weights(t, &r, 1, n, k,
                        !groups                      ? 0
                        : r.layouts == LLMK_CLASS_NV ? 32
                                                     : 24,
                        *w, out);
}
