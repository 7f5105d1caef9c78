/*
 * test_route_few.c - the kernel that routes few tokens, whose work-groups meet, on any device: choices,
 * the sorted pairs and the rows of x in their order, call after call on the same counters.
 */
#include "ops/moe.h"
#include "reference/moe_reference.h"
#include "support/device.h"

#include <llmk/llmk.h>
#include <math.h>
#include <stdlib.h>

enum { ROUNDS = 3, HEIGHT = 8, ZEROS = 5 };

typedef struct shape {
    uint64_t tokens, experts, k, hidden;
    bool gathers, mapped;
    llmk_dtype x, gate;
} shape;

static cl_mem make(const fixture *f, const void *data, uint64_t bytes)
{
    cl_int err;
    cl_mem buffer =
        clCreateBuffer(llmk_context_cl_context(f->ctx), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                       bytes, (void *)data, &err);
    assert_non_null(buffer);
    return buffer;
}

/* Of nothing that a kernel may leave as it is. */
static cl_mem make_poisoned(const fixture *f, uint64_t bytes)
{
    void *data = malloc(bytes);
    memset(data, 0xa5, bytes);
    cl_mem buffer = make(f, data, bytes);
    free(data);
    return buffer;
}

static void *read_all(const fixture *f, cl_mem buffer, uint64_t bytes)
{
    void *data = malloc(bytes);
    assert_int_equal(clEnqueueReadBuffer(f->queue, buffer, CL_TRUE, 0, bytes, data, 0, NULL, NULL),
                     CL_SUCCESS);
    return data;
}

/* Small whole numbers, so that logits are exact, and some alike. */
static void *make_numbers(llmk_dtype type, uint64_t seed, uint64_t count, double *values)
{
    static const cl_ushort f16[] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000};
    static const cl_ushort bf16[] = {0xc000, 0xbf80, 0, 0x3f80, 0x4000};
    cl_ushort *out = malloc(count * sizeof(cl_float));
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t n = moe_random(seed, i) % 5;
        values[i] = (double)n - 2;
        if (type == LLMK_F32)
            ((cl_float *)(void *)out)[i] = (cl_float)values[i];
        else
            out[i] = type == LLMK_F16 ? f16[n] : bf16[n];
    }
    return out;
}

/* Ids and weights of one token, by rounds of taking the best; top-k, then softmax. */
static void choose(const shape *s, const double *x, const double *gate, double *ids,
                   double *weights)
{
    double *logit = calloc(s->experts, sizeof *logit), sum = 0;
    for (uint64_t e = 0; e < s->experts; e++)
        for (uint64_t c = 0; c < s->hidden; c++)
            logit[e] += x[c] * gate[e * s->hidden + c];
    for (uint64_t j = 0; j < s->k; j++) {
        uint64_t best = 0;
        for (uint64_t e = 1; e < s->experts; e++)
            best = logit[e] > logit[best] ? e : best;
        ids[j] = (double)best;
        weights[j] = j == 0 ? 1 : exp(logit[best] - weights[s->k]);
        weights[s->k] = j == 0 ? logit[best] : weights[s->k]; /* the largest, behind them */
        sum += weights[j];
        logit[best] = -INFINITY;
    }
    for (uint64_t j = 0; j < s->k; j++)
        weights[j] /= sum;
    free(logit);
}

static void compare_ints(const fixture *f, const char *what, cl_mem buffer, uint64_t first,
                         const double *expected, uint64_t count)
{
    cl_int *got = read_all(f, buffer, (first + count) * sizeof *got);
    for (uint64_t i = 0; i < count; i++)
        if (got[first + i] != (cl_int)expected[i])
            fail_msg("%s[%d] is %d; expected %d", what, (int)i, got[first + i], (int)expected[i]);
    free(got);
}

static llmk_view view_at(cl_mem buffer, uint64_t first, uint64_t rows, uint64_t cols)
{
    llmk_view v = llmk_moe_view(buffer, LLMK_I32, rows, cols);
    v.rows.offset = first;
    return v;
}

static void run(const fixture *f, const shape *s, cl_mem meet, uint64_t seed)
{
    const uint64_t pairs = s->tokens * s->k, held = s->mapped ? (s->experts + 1) / 2 : s->experts;
    const uint64_t xs = s->tokens * s->hidden, gates = s->experts * s->hidden;
    double *x = malloc(xs * sizeof *x), *gate = malloc(gates * sizeof *gate);
    cl_ushort *x_bits = make_numbers(s->x, seed, xs, x);
    void *gate_bits = make_numbers(s->gate, seed + 1, gates, gate);
    double *ids = malloc(pairs * sizeof *ids), *weights = malloc((pairs + 1) * sizeof *weights);
    double *source = malloc(pairs * sizeof *source), *inverse = malloc(pairs * sizeof *inverse);
    double *offsets = malloc((held + 1) * sizeof *offsets);
    double *map = malloc(s->experts * sizeof *map),
           *tiles = calloc(held + 1 + ZEROS, sizeof *tiles);
    cl_int *map_bits = malloc(s->experts * sizeof *map_bits);
    for (uint64_t e = 0; e < s->experts; e++)
        map[e] = map_bits[e] = e % 2 ? -1 : (cl_int)(e / 2);
    for (uint64_t t = 0; t < s->tokens; t++)
        choose(s, x + t * s->hidden, gate, ids + t * s->k, weights + t * s->k);
    moe_reference_permute(ids, pairs, s->mapped ? map : NULL, s->experts, held, offsets, source,
                          inverse);
    for (uint64_t e = 0; e < held; e++)
        tiles[e + 1] = tiles[e] + ceil((offsets[e + 1] - offsets[e]) / HEIGHT);

    const uint64_t tiles_at = held + 1, source_at = tiles_at + held + 1 + ZEROS;
    cl_mem bx = make(f, x_bits, xs * 4), bg = make(f, gate_bits, gates * 4);
    cl_mem bm = make(f, map_bits, s->experts * sizeof *map_bits);
    cl_mem logits = make_poisoned(f, s->tokens * s->experts * 4);
    cl_mem bi = make_poisoned(f, pairs * 4), bw = make_poisoned(f, pairs * 4);
    cl_mem sort = make_poisoned(f, (source_at + 2 * pairs) * 4);
    cl_mem gathered = make_poisoned(f, pairs * s->hidden * 2);
    const moe_route_problem p = {
        .x = llmk_moe_view(bx, s->x, s->tokens, s->hidden),
        .gate = llmk_moe_view(bg, s->gate, s->experts, s->hidden),
        .logits = llmk_moe_view(logits, LLMK_F32, s->tokens, s->experts),
        .ids = llmk_moe_view(bi, LLMK_I32, s->tokens, s->k),
        .weights = llmk_moe_view(bw, LLMK_F32, s->tokens, s->k),
        .tokens = s->tokens,
        .experts = (uint32_t)s->experts,
        .k = (uint32_t)s->k,
        .routing = {LLMK_MOE_TOPK_SOFTMAX, false, 1, 1, 1, 1e-20f},
    };
    const moe_dispatch d = {
        .map = s->mapped ? view_at(bm, 0, 1, s->experts) : (llmk_view){0},
        .offsets = view_at(sort, 0, 1, held + 1),
        .tiles = sort,
        .tiles_at = (uint32_t)tiles_at,
        .zeros = ZEROS,
        .height = HEIGHT,
        .id_end = (uint32_t)s->experts,
        .experts = (uint32_t)held,
        .source = view_at(sort, source_at, 1, pairs),
        .inverse = view_at(sort, source_at + pairs, s->tokens, s->k),
        .gathered = s->gathers ? gathered : NULL,
    };
    llmk_launch launch = {.ctx = f->ctx, .queue = f->queue, .op = "moe_forward", .in_order = true};
    if (llmk_moe_launch_route_few(&launch, &p, &d, meet) != LLMK_OK)
        fail_msg("%s", llmk_error_message());

    compare_ints(f, "ids", bi, 0, ids, pairs);
    compare_ints(f, "offsets", sort, 0, offsets, held + 1);
    compare_ints(f, "tiles", sort, tiles_at, tiles, held + 1 + ZEROS);
    compare_ints(f, "source", sort, source_at, source, pairs);
    compare_ints(f, "inverse", sort, source_at + pairs, inverse, pairs);
    const double zeros[MOE_MEET_SIZE] = {0};
    compare_ints(f, "meet", meet, 0, zeros, MOE_MEET_SIZE);
    cl_float *w = read_all(f, bw, pairs * sizeof *w);
    for (uint64_t i = 0; i < pairs; i++)
        if (!(fabs(w[i] - weights[i]) <= 1e-5))
            fail_msg("weights[%d] is %g; expected %g", (int)i, (double)w[i], weights[i]);
    cl_ushort *rows = read_all(f, gathered, pairs * s->hidden * 2);
    for (uint64_t r = 0; s->gathers && r < pairs; r++)
        if (source[r] >= 0 &&
            memcmp(rows + r * s->hidden, x_bits + (uint64_t)source[r] / s->k * s->hidden,
                   s->hidden * 2) != 0)
            fail_msg("row %d of x is not where it should be", (int)r);
    cl_mem buffers[] = {bx, bg, bm, logits, bi, bw, sort, gathered};
    for (size_t i = 0; i < LLMK_COUNT(buffers); i++)
        clReleaseMemObject(buffers[i]);
    void *arrays[] = {x,       gate,    x_bits, gate_bits, ids,      weights, source,
                      inverse, offsets, map,    tiles,     map_bits, w,       rows};
    for (size_t i = 0; i < LLMK_COUNT(arrays); i++)
        free(arrays[i]);
}

static void test_shapes(void **state)
{
    static const shape shapes[] = {
        {1, 8, 2, 4096, false, false, LLMK_F16, LLMK_F16},
        {1, 8, 2, 64, true, false, LLMK_BF16, LLMK_BF16},
        {2, 8, 8, 100, false, false, LLMK_F16, LLMK_F32},
        {2, 8, 2, 64, true, false, LLMK_F16, LLMK_F16},
        {3, 8, 2, 2048, false, false, LLMK_F32, LLMK_F32},
        {3, 4, 2, 71, true, false, LLMK_F16, LLMK_BF16},
        {5, 60, 4, 256, false, true, LLMK_BF16, LLMK_F32},
        {7, 20, 3, 4104, true, true, LLMK_F16, LLMK_F32},
        {8, 256, 8, 64, false, false, LLMK_BF16, LLMK_BF16},
        {32, 64, 4, 512, true, false, LLMK_F16, LLMK_F16},
        {33, 64, 4, 520, false, false, LLMK_BF16, LLMK_F16},
        {128, 8, 2, 4096, true, false, LLMK_F16, LLMK_F16},
        {128, 17, 4, 264, true, true, LLMK_BF16, LLMK_BF16},
    };
    const fixture *f = *state;
    const cl_int zeros[MOE_MEET_SIZE] = {0};
    cl_mem meet = make(f, zeros, sizeof zeros);
    for (size_t i = 0; i < LLMK_COUNT(shapes); i++)
        for (uint64_t round = 0; round < ROUNDS; round++)
            run(f, &shapes[i], meet, 10 * i + round);
    clReleaseMemObject(meet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_shapes, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
