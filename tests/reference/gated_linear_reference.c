/* gated_linear_reference.c - gate, up and activation in f64. */
#include "reference/gated_linear_reference.h"

#include "cases/case.h"
#include "cases/case_parallel.h"
#include "reference/norm_reference.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

static const double U = 0x1p-24;

double reference_activated(const gated_linear_f64 *p, double gate, double gate_error, double up,
                           double up_error, double *error)
{
    const gated_reference f = {
        .activation = p->activation, .limit = p->limit, .alpha = p->alpha, .y_dtype = LLMK_F32};
    double own, unused, spread = 0;
    const double h = reference_gated(&f, gate, 0, up, 0, &own);
    for (int corner = 0; corner < 4; corner++) {
        const double g = gate + (corner & 1 ? gate_error : -gate_error);
        const double u = up + (corner & 2 ? up_error : -up_error);
        spread = fmax(spread, fabs(reference_gated(&f, g, 0, u, 0, &unused) - h));
    }
    *error = 1.05 * (own + spread);
    return h;
}

static void compute(const gated_linear_f64 *p, uint64_t i, uint64_t f, const linear_row *g,
                    const linear_row *u)
{
    const uint64_t k = p->gate->k, at = i * p->n + f;
    const double gate_bias = p->gate_bias ? p->gate_bias[f * p->step] : 0;
    const double up_bias = p->up_bias ? p->up_bias[p->up_first + f * p->step] : 0;
    const double residual = p->residual ? p->residual[at] : 0;
    double gate_error, up_error, error;
    const double gate = linear_row_product(p->x + i * k, NULL, g, k, gate_bias, &gate_error);
    const double up = linear_row_product(p->x + i * k, NULL, u, k, up_bias, &up_error);
    const double h = reference_activated(p, gate, gate_error, up, up_error, &error);
    error += residual == 0 ? 0 : U * (fabs(h) + error + fabs(residual));
    p->y[at] = h + residual;
    p->bound[at] = error + case_rounding(p->y_type, fabs(p->y[at]) + error);
}

typedef struct pass {
    const gated_linear_f64 *p;
    uint64_t every;
    atomic_bool failed;
} pass;

static void compute_part(void *pass_, uint64_t begin, uint64_t end)
{
    pass *work = pass_;
    const gated_linear_f64 *p = work->p;
    linear_row g = {0}, u = {0};
    const bool good = linear_row_make(&g, p->gate->k) && linear_row_make(&u, p->gate->k);
    for (uint64_t f = begin; good && f < end; f++) {
        linear_weights_row(p->gate, f * p->step, g.value, g.magnitude);
        linear_weights_row(p->up, p->up_first + f * p->step, u.value, u.magnitude);
        for (uint64_t i = 0; i < p->m; i++) {
            p->bound[i * p->n + f] = (double)INFINITY;
            if ((i + f) % work->every == 0 || i == 0 || i + 1 == p->m)
                compute(p, i, f, &g, &u);
        }
    }
    if (!good)
        work->failed = true;
    linear_row_free(&g);
    linear_row_free(&u);
}

bool reference_gated_linear(const gated_linear_f64 *p)
{
    const double work = (double)p->m * (double)p->n * (double)p->gate->k;
    pass all = {.p = p, .every = work <= 0x1p30 ? 1 : (uint64_t)(work / 0x1p30) + 1};
    case_parallel(p->n, 8, compute_part, &all);
    return !all.failed;
}
