// Error report in three stages: maxima, sums, report. R, A: dtypes of reference and approximation.
// Innermost strides are 1.
#include "common/chunk.clh"
#include "common/rows.clh"
#include "common/types.clh"
#include "error_report/error_stats.clh"

// A chunk of both tensors: |r|, |a-r| and which elements count.
typedef struct {
    float8 magnitude, error;
    int8 counted;
} chunk_t;

static inline chunk_t fetch_pair(global const elem(R) *r, const rows_t rr, global const elem(A) *a,
                                 const rows_t ar, ulong2 at, ulong cols, uint wide)
{
    const ulong col = at.y * 8;
    const uint n = (uint)min(cols - col, (ulong)8);
    const float8 reference = fetch8(R)(r, row_begin(rr, at.x) + col, n, wide);
    const float8 error =
        fabs(fetch8(A)(a, row_begin(ar, at.x) + col, n, wide) - reference);
    chunk_t c;
    c.counted = (fabs(reference) <= FLT_MAX) & ((int8)(0, 1, 2, 3, 4, 5, 6, 7) < (int)n);
    c.magnitude = select((float8)(0.0f), fabs(reference), c.counted);
    // As error_of: an approximation that is not finite is infinitely wrong.
    c.error = select((float8)(0.0f), select(error, (float8)(INFINITY), isnan(error)), c.counted);
    return c;
}

static inline float max8(float8 v)
{
    const float4 m4 = fmax(v.lo, v.hi);
    const float2 m2 = fmax(m4.lo, m4.hi);
    return fmax(m2.x, m2.y);
}
static inline float sum8(float8 v)
{
    const float4 s4 = v.lo + v.hi;
    const float2 s2 = s4.lo + s4.hi;
    return s2.x + s2.y;
}
static inline uint count8(int8 mask)
{
    const int4 c4 = mask.lo + mask.hi;
    const int2 c2 = c4.lo + c4.hi;
    return (uint)-(c2.x + c2.y);
}

static inline maxima_t reduce_maxima(local maxima_t *scratch, maxima_t m)
{
    const uint lid = get_local_id(0);
    scratch[lid] = m;
    for (uint span = get_local_size(0) / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < span)
            scratch[lid] = fmax(scratch[lid], scratch[lid + span]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return scratch[0];
}

// The maxima of all work-groups' maxima, for every item.
static inline maxima_t join_maxima(local maxima_t *scratch, global const maxima_t *maxima, uint n)
{
    maxima_t m = (maxima_t)(0.0f);
    for (uint i = get_local_id(0); i < n; i += get_local_size(0))
        m = fmax(m, maxima[i]);
    return reduce_maxima(scratch, m);
}

// Item 0 gets the sums of the work-group.
static inline sums_t reduce_sums(local sums_t *scratch, const sums_t s)
{
    const uint lid = get_local_id(0);
    scratch[lid] = s;
    for (uint span = get_local_size(0) / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < span)
            scratch[lid] = sums_join(scratch[lid], scratch[lid + span]);
    }
    return scratch[lid];
}

kernel void error_maxima(global const elem(R) *r, const rows_t rr, global const elem(A) *a,
                         const rows_t ar, const ulong rows, const ulong cols, const uint wide,
                         global partials_t *partials, local maxima_t *scratch)
{
    const ulong row_chunks = (cols + 7) / 8, chunks = rows * row_chunks;
    maxima_t m = (maxima_t)(0.0f);
    for (ulong i = get_global_id(0); i < chunks; i += get_global_size(0)) {
        const chunk_t c = fetch_pair(r, rr, a, ar, divide(i, row_chunks), cols, wide);
        m = fmax(m, (maxima_t)(max8(c.magnitude), max8(c.error)));
    }
    m = reduce_maxima(scratch, m);
    if (get_local_id(0) == 0)
        partials->maxima[get_group_id(0)] = m;
}

kernel void error_sums(global const elem(R) *r, const rows_t rr, global const elem(A) *a,
                       const rows_t ar, const ulong rows, const ulong cols, const uint wide,
                       global partials_t *partials,
                       local maxima_t *maxima_scratch, local sums_t *sums_scratch)
{
    const maxima_t m = join_maxima(maxima_scratch, partials->maxima, get_num_groups(0));
    const float large = 0.1f * m.x;
    const float r_unit = power_of_two(-exponent_of(m.x)), e_unit = power_of_two(-exponent_of(m.y));
    const ulong row_chunks = (cols + 7) / 8, chunks = rows * row_chunks;
    sums_t s = sums_none();
    for (ulong i = get_global_id(0); i < chunks; i += get_global_size(0)) {
        const chunk_t c = fetch_pair(r, rr, a, ar, divide(i, row_chunks), cols, wide);
        const int8 is_large = c.magnitude > large;
        const float8 relative =
            select((float8)(0.0f), c.error / c.magnitude, is_large);
        const float8 signal = c.magnitude * r_unit, noise = c.error * e_unit;
        sums_add(&s, (float4)(sum8(noise), sum8(relative), sum8(signal * signal),
                              sum8(noise * noise)));
        s.count += count8(c.counted);
        s.large += count8(is_large);
    }
    s = reduce_sums(sums_scratch, s);
    if (get_local_id(0) == 0)
        partials->sums[get_group_id(0)] = s;
}

// One work-group.
kernel void error_report(global const partials_t *partials, const uint count, global float *report,
                         const rows_t rr,
                         local maxima_t *maxima_scratch, local sums_t *sums_scratch)
{
    const maxima_t m = join_maxima(maxima_scratch, partials->maxima, count);
    sums_t s = sums_none();
    for (uint i = get_local_id(0); i < count; i += get_local_size(0))
        s = sums_join(s, partials->sums[i]);
    s = reduce_sums(sums_scratch, s);
    if (get_local_id(0) == 0)
        error_finish(s, m, report, rr);
}
