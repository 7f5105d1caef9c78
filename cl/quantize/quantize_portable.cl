// Quantisation through local memory. X: x's dtype; Q: i8 or u4. Innermost strides are 1.
#include "common/chunk.clh"
#include "common/quant.clh"
#include "common/rows.clh"
#include "common/types.clh"

// One scale for each group of a row (a whole row is a group too). A team of 1 << team_log2
// work-items, which divides the work-group, takes one group.
kernel void quantize_groups(global const elem(X) *x, const rows_t xr, global uchar *q,
                            const rows_t qr, global float *scale, const rows_t sr,
                            global uchar *zero, const rows_t zr, const ulong rows,
                            const ulong cols, const ulong group_size, const ulong row_groups,
                            const uint scheme, const uint team_log2, const uint wide,
                            local float2 *ranges)
{
    const uint lid = get_local_id(0), team = 1u << team_log2, lane = lid & (team - 1);
    const ulong group = get_global_id(0) >> team_log2;
    const bool live = group < rows * row_groups;
    const ulong2 at = divide(live ? group : 0, row_groups); // row, group in the row
    const ulong first = at.y * group_size;
    const ulong from = row_begin(xr, at.x) + first;
    const uint length = live ? (uint)min(group_size, cols - first) : 0;

    float8 values = (float8)(0.0f);
    float2 range = (float2)(0.0f);
    for (uint i = lane * 8; i < length; i += team * 8) {
        values = fetch8(X)(x, from + i, min(length - i, 8u), wide);
        range = range_widen8(range, values);
    }
    ranges[lid] = range;
    for (uint half_team = team / 2; half_team > 0; half_team /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_team)
            ranges[lid] = range_join(ranges[lid], ranges[lid + half_team]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const quant_t t = quant_of_range(scheme, ranges[lid - lane]);
    const ulong to = row_begin(qr, at.x) + first;
    const bool held = length <= team * 8; // one chunk an item: still in registers
    for (uint i = lane * 8; i < length; i += team * 8) {
        if (!held)
            values = fetch8(X)(x, from + i, min(length - i, 8u), wide);
        codes_put8(Q)(q, to + i, min(length - i, 8u), wide, quant_code8(t, values));
    }
    if (live && lane == 0) {
        scale[row_begin(sr, at.x) + at.y * sr.inner] = t.scale;
        if (scheme == QUANT_INT4_ASYMMETRIC)
            zero[row_begin(zr, at.x) + at.y * zr.inner] = (uchar)t.zero;
    }
}

// The largest of `ranges` over the work-group, for every item.
static inline float2 reduce_range(local float2 *ranges, float2 range)
{
    const uint lid = get_local_id(0);
    ranges[lid] = range;
    for (uint span = get_local_size(0) / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < span)
            ranges[lid] = range_join(ranges[lid], ranges[lid + span]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return ranges[0];
}

// One scale for the tensor, first half: partial[g] = the range of what work-group g reads.
kernel void quantize_tensor_range(global const elem(X) *x, const rows_t xr, const ulong rows,
                                  const ulong cols, const uint wide, global float2 *partial,
                                  local float2 *ranges)
{
    const ulong row_chunks = (cols + 7) / 8, chunks = rows * row_chunks;
    float2 range = (float2)(0.0f);
    for (ulong chunk = get_global_id(0); chunk < chunks; chunk += get_global_size(0)) {
        const ulong2 at = divide(chunk, row_chunks);
        const ulong col = at.y * 8;
        const uint n = (uint)min(cols - col, (ulong)8);
        range = range_widen8(range, fetch8(X)(x, row_begin(xr, at.x) + col, n, wide));
    }
    range = reduce_range(ranges, range);
    if (get_local_id(0) == 0)
        partial[get_group_id(0)] = range;
}

// Second half: every work-group joins the partial ranges, then takes its share of the codes.
kernel void quantize_tensor_codes(global const elem(X) *x, const rows_t xr, global uchar *q,
                                  const rows_t qr, global float *scale, const rows_t sr,
                                  const ulong rows, const ulong cols, const uint wide,
                                  global const float2 *partial, const uint partials,
                                  local float2 *ranges)
{
    float2 range = (float2)(0.0f);
    for (uint i = get_local_id(0); i < partials; i += get_local_size(0))
        range = range_join(range, partial[i]);
    const quant_t t = quant_of_range(QUANT_INT8_TENSOR, reduce_range(ranges, range));
    if (get_global_id(0) == 0)
        scale[sr.offset] = t.scale;

    const ulong row_chunks = (cols + 7) / 8, chunks = rows * row_chunks;
    for (ulong chunk = get_global_id(0); chunk < chunks; chunk += get_global_size(0)) {
        const ulong2 at = divide(chunk, row_chunks);
        const ulong col = at.y * 8;
        const uint n = (uint)min(cols - col, (ulong)8);
        const float8 values = fetch8(X)(x, row_begin(xr, at.x) + col, n, wide);
        codes_put8(Q)(q, row_begin(qr, at.x) + col, n, wide, quant_code8(t, values));
    }
}
