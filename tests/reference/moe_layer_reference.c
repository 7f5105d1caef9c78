/* moe_layer_reference.c - gate, up, activation and down of one expert. */
#include "reference/moe_layer_reference.h"

#include "cases/case.h"
#include "reference/norm_reference.h"

#include <math.h>
#include <stdlib.h>

static const double U = 0x1p-24, TINY = 0x1p-126;

/* A row of weights, and the magnitudes of its terms. */
typedef struct weight_row {
    double *value, *magnitude;
} weight_row;

static bool make_row(weight_row *r, uint64_t k)
{
    r->value = malloc((k + 1) * sizeof *r->value);
    r->magnitude = malloc((k + 1) * sizeof *r->magnitude);
    return r->value && r->magnitude;
}

static void free_row(weight_row *r)
{
    free(r->value);
    free(r->magnitude);
}

/* x . w + bias; *error: its bound, where x itself errs by x_error (or NULL). */
static double product(const double *x, const double *x_error, const weight_row *w, uint64_t k,
                      double bias, double *error)
{
    const double depth = linear_depth(k) * U;
    double sum = 0, terms = 0, inherited = 0;
    for (uint64_t i = 0; i < k; i++) {
        const double xe = x_error ? x_error[i] : 0;
        sum += x[i] * w->value[i];
        terms += (fabs(x[i]) + xe) * w->magnitude[i];
        inherited += xe * fabs(w->value[i]);
    }
    *error = inherited + terms * depth / (1 - depth) + 2 * U * (terms + fabs(bias)) +
             (double)(k + 2) * TINY;
    return sum + bias;
}

/* h of a gate and an up that err: what the activation makes of the corners of where they may be,
 * and its own roundings. */
static double activated(const moe_experts_f64 *m, double gate, double gate_error, double up,
                        double up_error, double *error)
{
    gated_reference exact = {
        .activation = m->activation, .limit = m->limit, .alpha = m->alpha, .y_dtype = m->inner};
    double own, unused, spread = 0;
    const double h = reference_gated(&exact, gate, 0, up, 0, &own);
    for (int corner = 0; corner < 4; corner++) {
        const double g = gate + (corner & 1 ? gate_error : -gate_error);
        const double u = up + (corner & 2 ? up_error : -up_error);
        spread = fmax(spread, fabs(reference_gated(&exact, g, 0, u, 0, &unused) - h));
    }
    *error = 1.05 * (own + spread) + case_rounding(m->inner, fabs(h) + spread) -
             case_rounding(m->inner, h);
    return h;
}

static bool hidden_rows(const moe_experts_f64 *m, uint64_t e, uint64_t rows, const double *x,
                        double *h, double *h_error)
{
    const linear_weights *up = m->up ? m->up : m->gate;
    weight_row g = {0}, u = {0};
    const bool good = make_row(&g, m->hidden) && make_row(&u, m->hidden);
    for (uint64_t f = 0; good && f < m->width; f++) {
        const uint64_t bias_at = e * m->bias_pitch + f * m->step;
        const double gate_bias = m->gate_bias ? m->gate_bias[bias_at] : 0;
        const double up_bias = m->up_bias ? m->up_bias[bias_at + m->up_first] : 0;
        linear_weights_row(&m->gate[e], f * m->step, g.value, g.magnitude);
        linear_weights_row(&up[e], f * m->step + m->up_first, u.value, u.magnitude);
        for (uint64_t r = 0; r < rows; r++) {
            double ge, ue;
            const double gv = product(x + r * m->hidden, NULL, &g, m->hidden, gate_bias, &ge);
            const double uv = product(x + r * m->hidden, NULL, &u, m->hidden, up_bias, &ue);
            h[r * m->width + f] = activated(m, gv, ge, uv, ue, &h_error[r * m->width + f]);
        }
    }
    free_row(&g);
    free_row(&u);
    return good;
}

bool moe_reference_expert(const moe_experts_f64 *m, uint64_t e, uint64_t rows, const double *x,
                          double *out, double *bound)
{
    double *h = malloc((rows * m->width + 1) * sizeof *h);
    double *h_error = malloc((rows * m->width + 1) * sizeof *h_error);
    weight_row d = {0};
    const bool good =
        h && h_error && make_row(&d, m->width) && hidden_rows(m, e, rows, x, h, h_error);
    for (uint64_t c = 0; good && c < m->hidden; c++) {
        linear_weights_row(&m->down[e], c, d.value, d.magnitude);
        const double bias = m->down_bias ? m->down_bias[e * m->hidden + c] : 0;
        for (uint64_t r = 0; r < rows; r++)
            out[r * m->hidden + c] = product(h + r * m->width, h_error + r * m->width, &d, m->width,
                                             bias, &bound[r * m->hidden + c]);
    }
    free_row(&d);
    free(h);
    free(h_error);
    return good;
}
