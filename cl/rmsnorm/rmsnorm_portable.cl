// RMSNorm with nothing but local memory.
#define SCRATCH 1024 // one float a work-item

// Two barriers whatever the number of work-items: sixteen (or all, if fewer) add up the others,
// then everybody adds up the sixteen.
static inline float row_sum(float v, local float *scratch)
{
    const uint i = get_local_id(0), n = get_local_size(0), heads = min(n, 16u);
    local float *row = scratch + get_local_id(1) * n;
    row[i] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < heads) {
        for (uint k = i + heads; k < n; k += heads)
            v += row[k];
        row[i] = v;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = 0.0f;
    for (uint k = 0; k < heads; k++)
        sum += row[k];
    return sum;
}

#include "rmsnorm/rmsnorm_rows.clh"
