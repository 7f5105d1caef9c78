// Error report, plainly, in the same three stages: n work-items take elements i, i + n, i + 2n ...
// Any dtypes, any strides.
#include "common/rows.clh"
#include "common/types.clh"
#include "error_report/error_stats.clh"

kernel void error_maxima(global const void *r, const rows_t rr, const uint rt,
                         global const void *a, const rows_t ar, const uint at, const ulong rows,
                         const ulong cols, global partials_t *partials)
{
    maxima_t m = (maxima_t)(0.0f);
    for (ulong i = get_global_id(0); i < rows * cols; i += get_global_size(0)) {
        const ulong row = i / cols, col = i % cols;
        const float x = load_any(r, rt, row_begin(rr, row) + col * rr.inner);
        const float y = load_any(a, at, row_begin(ar, row) + col * ar.inner);
        // Not a branch: PoCL 6's compiler gives up on that.
        const int counts = fabs(x) <= FLT_MAX;
        m = fmax(m, (maxima_t)(select(0.0f, fabs(x), counts),
                               select(0.0f, error_of(x, y), counts)));
    }
    partials->maxima[get_global_id(0)] = m;
}

static inline maxima_t join_maxima(global const maxima_t *maxima, uint n)
{
    maxima_t m = (maxima_t)(0.0f);
    for (uint i = 0; i < n; i++)
        m = fmax(m, maxima[i]);
    return m;
}

kernel void error_sums(global const void *r, const rows_t rr, const uint rt, global const void *a,
                       const rows_t ar, const uint at, const ulong rows, const ulong cols,
                       global partials_t *partials)
{
    const maxima_t m = join_maxima(partials->maxima, (uint)get_global_size(0));
    const float large = 0.1f * m.x;
    const float r_unit = power_of_two(-exponent_of(m.x)), e_unit = power_of_two(-exponent_of(m.y));
    sums_t s = sums_none();
    for (ulong i = get_global_id(0); i < rows * cols; i += get_global_size(0)) {
        const ulong row = i / cols, col = i % cols;
        const float x = load_any(r, rt, row_begin(rr, row) + col * rr.inner);
        const float y = load_any(a, at, row_begin(ar, row) + col * ar.inner);
        if (fabs(x) <= FLT_MAX) {
            const float error = error_of(x, y);
            const bool is_large = fabs(x) > large;
            const float signal = x * r_unit, noise = error * e_unit;
            sums_add(&s, (float4)(noise, is_large ? error / fabs(x) : 0.0f, signal * signal,
                                  noise * noise));
            s.count++;
            s.large += is_large;
        }
    }
    partials->sums[get_global_id(0)] = s;
}

// One work-item.
kernel void error_report(global const partials_t *partials, const uint count, global float *report,
                         const rows_t rr)
{
    sums_t s = sums_none();
    for (uint i = 0; i < count; i++)
        s = sums_join(s, partials->sums[i]);
    error_finish(s, join_maxima(partials->maxima, count), report, rr);
}
