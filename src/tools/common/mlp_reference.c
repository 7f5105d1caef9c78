/* mlp_reference.c - one MLP block in f64. */
#include "tools/common/mlp_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define F32_EPSILON 0x1p-24

/* Unit roundoff of the storage type. */
static double epsilon_of(llmk_dtype dtype)
{
    return dtype == LLMK_F16 ? 0x1p-11 : dtype == LLMK_BF16 ? 0x1p-8 : F32_EPSILON;
}

static double rounding(double value, double epsilon)
{
    return value * value * epsilon * epsilon / 3;
}

/* Values and variances of a matrix, row by row. */
typedef struct noisy {
    double *value, *variance;
} noisy;

typedef struct scratch {
    float *weights; /* one dequantised row */
    noisy h, gate, up;
} scratch;

static bool allocate(noisy *m, size_t count)
{
    m->value = calloc(count, sizeof *m->value);
    m->variance = calloc(count, sizeof *m->variance);
    return m->value && m->variance;
}

static void release(noisy *m)
{
    free(m->value);
    free(m->variance);
}

/* out[r][n] = sum_k x[r][k] w[n][k] (+ add[r][n], exact), rounded to storage. */
static bool multiply(const mlp_matrix *w, uint64_t rows, const noisy *x, const double *add,
                     double epsilon, float *row, noisy *out)
{
    const uint64_t k_count = w->columns, n_count = w->rows;
    for (uint64_t n = 0; n < n_count; n++) {
        if (!mlp_matrix_row(w, n, row))
            return false;
        for (uint64_t r = 0; r < rows; r++) {
            const double *xv = x->value + r * k_count, *xs = x->variance + r * k_count;
            double sum = 0, squares = 0, spread = 0;
            for (uint64_t k = 0; k < k_count; k++) {
                const double p = xv[k] * (double)row[k];
                sum += p;
                squares += p * p;
                spread += xs[k] * (double)row[k] * (double)row[k];
            }
            if (add)
                sum += add[r * n_count + n];
            out->value[r * n_count + n] = sum;
            out->variance[r * n_count + n] =
                spread + (double)k_count * squares * F32_EPSILON * F32_EPSILON / 3 +
                rounding(sum, epsilon);
        }
    }
    return true;
}

static void normalise(const mlp_model *m, const float *weight, uint64_t rows, double epsilon,
                      const double *x, noisy *out)
{
    for (uint64_t r = 0; r < rows; r++) {
        const double *row = x + r * m->hidden;
        double squares = 0;
        for (uint64_t k = 0; k < m->hidden; k++)
            squares += row[k] * row[k];
        const double scale = 1 / sqrt(squares / (double)m->hidden + (double)m->epsilon);
        for (uint64_t k = 0; k < m->hidden; k++) {
            const double v = row[k] * scale * (double)weight[k];
            out->value[r * m->hidden + k] = v;
            out->variance[r * m->hidden + k] = rounding(v, epsilon) + rounding(v, 4 * F32_EPSILON);
        }
    }
}

/* gate = silu(gate) * up */
static void activate(uint64_t count, double epsilon, noisy *gate, const noisy *up)
{
    for (uint64_t i = 0; i < count; i++) {
        const double g = gate->value[i], u = up->value[i];
        const double s = 1 / (1 + exp(-g)), silu = g * s;
        const double slope = s * (1 + g * (1 - s));
        gate->value[i] = silu * u;
        gate->variance[i] = slope * slope * u * u * gate->variance[i] +
                            silu * silu * up->variance[i] + rounding(silu * u, epsilon) +
                            rounding(silu * u, 4 * F32_EPSILON);
    }
}

bool mlp_reference_layer(const mlp_model *m, uint32_t index, uint64_t rows, llmk_dtype dtype,
                         const double *x, double *y, double *variance, char *error,
                         size_t error_size)
{
    const mlp_layer *layer = &m->layers[index];
    const double epsilon = epsilon_of(dtype);
    const size_t longest = (size_t)(m->hidden > m->intermediate ? m->hidden : m->intermediate);
    scratch s = {.weights = malloc(longest * sizeof *s.weights)};
    noisy out = {y, malloc((size_t)(rows * m->hidden) * sizeof *out.variance)};
    bool ok = s.weights && out.variance;
    ok = allocate(&s.h, (size_t)(rows * m->hidden)) && ok;
    ok = allocate(&s.gate, (size_t)(rows * m->intermediate)) && ok;
    ok = allocate(&s.up, (size_t)(rows * m->intermediate)) && ok;
    if (!ok) {
        snprintf(error, error_size, "out of memory for the reference of layer %u", index);
    } else {
        ok = mlp_matrix_row(&layer->norm, 0, s.weights);
        if (ok)
            normalise(m, s.weights, rows, epsilon, x, &s.h);
        ok = ok && multiply(&layer->gate, rows, &s.h, NULL, epsilon, s.weights, &s.gate) &&
             multiply(&layer->up, rows, &s.h, NULL, epsilon, s.weights, &s.up);
        if (ok)
            activate(rows * m->intermediate, epsilon, &s.gate, &s.up);
        ok = ok && multiply(&layer->down, rows, &s.gate, x, epsilon, s.weights, &out);
        if (!ok)
            snprintf(error, error_size, "layer %u: a weight's type has no host conversion", index);
        if (ok && variance)
            memcpy(variance, out.variance, (size_t)(rows * m->hidden) * sizeof *variance);
    }
    free(out.variance);
    free(s.weights);
    release(&s.h);
    release(&s.gate);
    release(&s.up);
    return ok;
}
