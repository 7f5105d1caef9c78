/* moe_layer_reference.c - gate, up, activation and down of one expert. */
#include "reference/moe_layer_reference.h"

#include "cases/case.h"
#include "reference/norm_reference.h"

#include <math.h>
#include <stdlib.h>

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
    linear_row g = {0}, u = {0};
    const bool good = linear_row_make(&g, m->hidden) && linear_row_make(&u, m->hidden);
    for (uint64_t f = 0; good && f < m->width; f++) {
        const uint64_t bias_at = e * m->bias_pitch + f * m->step;
        const double gate_bias = m->gate_bias ? m->gate_bias[bias_at] : 0;
        const double up_bias = m->up_bias ? m->up_bias[bias_at + m->up_first] : 0;
        linear_weights_row(&m->gate[e], f * m->step, g.value, g.magnitude);
        linear_weights_row(&up[e], f * m->step + m->up_first, u.value, u.magnitude);
        for (uint64_t r = 0; r < rows; r++) {
            double ge, ue;
            const double gv =
                linear_row_product(x + r * m->hidden, NULL, &g, m->hidden, gate_bias, &ge);
            const double uv =
                linear_row_product(x + r * m->hidden, NULL, &u, m->hidden, up_bias, &ue);
            h[r * m->width + f] = activated(m, gv, ge, uv, ue, &h_error[r * m->width + f]);
        }
    }
    linear_row_free(&g);
    linear_row_free(&u);
    return good;
}

bool moe_reference_expert(const moe_experts_f64 *m, uint64_t e, uint64_t rows, const double *x,
                          double *out, double *bound)
{
    double *h = malloc((rows * m->width + 1) * sizeof *h);
    double *h_error = malloc((rows * m->width + 1) * sizeof *h_error);
    linear_row d = {0};
    const bool good =
        h && h_error && linear_row_make(&d, m->width) && hidden_rows(m, e, rows, x, h, h_error);
    for (uint64_t c = 0; good && c < m->hidden; c++) {
        linear_weights_row(&m->down[e], c, d.value, d.magnitude);
        const double bias = m->down_bias ? m->down_bias[e * m->hidden + c] : 0;
        for (uint64_t r = 0; r < rows; r++)
            out[r * m->hidden + c] =
                linear_row_product(h + r * m->width, h_error + r * m->width, &d, m->width, bias,
                                   &bound[r * m->hidden + c]);
    }
    linear_row_free(&d);
    free(h);
    free(h_error);
    return good;
}
