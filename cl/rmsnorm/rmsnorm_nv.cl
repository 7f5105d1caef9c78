// RMSNorm for NVIDIA GPUs: shuffles within a sub-group, streaming loads and stores. Work-groups are
// multiples of 32 work-items, rows of more than 32 too.
#include "common/nv.clh"

#define SCRATCH 32 // one float a sub-group

static inline float row_sum(float v, local float *scratch)
{
    const uint n = get_local_size(0);
    for (uint lanes = min(n, 32u) / 2; lanes > 0; lanes /= 2)
        v += nv_shuffle_xor(v, lanes);
    if (n <= 32)
        return v;
    const uint subgroups = n / 32;
    local float *row = scratch + get_local_id(1) * subgroups;
    if (get_local_id(0) % 32 == 0)
        row[get_local_id(0) / 32] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = 0.0f;
    for (uint k = 0; k < subgroups; k++)
        sum += row[k];
    return sum;
}

#include "rmsnorm/rmsnorm_rows.clh"
