/* moe_layer_reference.c - gate, up, activation and down of one expert. */
#include "reference/moe_layer_reference.h"

#include "cases/case.h"
#include "cases/case_parallel.h"
#include "reference/norm_reference.h"

#include <math.h>
#include <stdatomic.h>
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

/* One expert's rows, on their way. */
typedef struct passing {
    const moe_experts_f64 *m;
    uint64_t e, rows;
    const double *x;
    double *h, *h_error, *out, *bound;
    atomic_bool failed;
} passing;

/* Outputs of gate and up that a thread takes at a time, and of down. */
#define PART 8

static void hidden_part(void *passing_, uint64_t begin, uint64_t end)
{
    passing *p = passing_;
    const moe_experts_f64 *m = p->m;
    const linear_weights *gate = &m->gate[p->e % m->made];
    const linear_weights *up = m->up ? &m->up[p->e % m->made] : gate;
    linear_row g = {0}, u = {0};
    const bool good = linear_row_make(&g, m->hidden) && linear_row_make(&u, m->hidden);
    for (uint64_t f = begin; good && f < end; f++) {
        const uint64_t bias_at = p->e * m->bias_pitch + f * m->step;
        const double gate_bias = m->gate_bias ? m->gate_bias[bias_at] : 0;
        const double up_bias = m->up_bias ? m->up_bias[bias_at + m->up_first] : 0;
        linear_weights_row(gate, f * m->step, g.value, g.magnitude);
        linear_weights_row(up, f * m->step + m->up_first, u.value, u.magnitude);
        for (uint64_t r = 0; r < p->rows; r++) {
            const double *x = p->x + r * m->hidden;
            const uint64_t at = r * m->width + f;
            double ge, ue;
            const double gv = linear_row_product(x, NULL, &g, m->hidden, gate_bias, &ge);
            const double uv = linear_row_product(x, NULL, &u, m->hidden, up_bias, &ue);
            p->h[at] = activated(m, gv, ge, uv, ue, &p->h_error[at]);
        }
    }
    if (!good)
        p->failed = true;
    linear_row_free(&g);
    linear_row_free(&u);
}

static void down_part(void *passing_, uint64_t begin, uint64_t end)
{
    passing *p = passing_;
    const moe_experts_f64 *m = p->m;
    linear_row d = {0};
    const bool good = linear_row_make(&d, m->width);
    for (uint64_t c = begin; good && c < end; c++) {
        linear_weights_row(&m->down[p->e % m->made], c, d.value, d.magnitude);
        const double bias = m->down_bias ? m->down_bias[p->e * m->hidden + c] : 0;
        for (uint64_t r = 0; r < p->rows; r++)
            p->out[r * m->hidden + c] =
                linear_row_product(p->h + r * m->width, p->h_error + r * m->width, &d, m->width,
                                   bias, &p->bound[r * m->hidden + c]);
    }
    if (!good)
        p->failed = true;
    linear_row_free(&d);
}

bool moe_reference_expert(const moe_experts_f64 *m, uint64_t e, uint64_t rows, const double *x,
                          double *out, double *bound)
{
    passing p = {.m = m, .e = e, .rows = rows, .x = x, .out = out, .bound = bound};
    p.h = malloc((rows * m->width + 1) * sizeof *p.h);
    p.h_error = malloc((rows * m->width + 1) * sizeof *p.h_error);
    p.failed = !p.h || !p.h_error;
    if (!p.failed)
        case_parallel(m->width, PART, hidden_part, &p);
    if (!p.failed)
        case_parallel(m->hidden, PART, down_part, &p);
    free(p.h);
    free(p.h_error);
    return !p.failed;
}
