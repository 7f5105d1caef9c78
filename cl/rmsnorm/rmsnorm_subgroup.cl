// RMSNorm with sub-groups, of whatever size runs: a row is whole sub-groups, whose sums meet in local
// memory; or a part of one, which shuffles; or something else, which takes local memory alone.
#include "common/local_sum.clh"
#include "common/subgroup.clh"

#define SCRATCH    1024 // one float a work-item
#define ATTRIBUTES SUBGROUP_REQUIRED

static inline float row_sum(float v, local float *scratch)
{
    const uint n = get_local_size(0), size = subgroup_size();
    const bool full = subgroups_full();
    if (full && n % size == 0) {
        v = subgroup_sum(v);
        if (n == size)
            return v;
        const uint subgroups = n / size;
        local float *row = scratch + get_local_id(1) * subgroups;
        if (get_local_id(0) % size == 0)
            row[get_local_id(0) / size] = v;
        barrier(CLK_LOCAL_MEM_FENCE);
        float sum = 0.0f;
        for (uint k = 0; k < subgroups; k++)
            sum += row[k];
        return sum;
    }
#ifdef SUBGROUP_SHUFFLES
    if (full && size % n == 0 && (n & (n - 1)) == 0) {
        for (uint lanes = n / 2; lanes > 0; lanes /= 2)
            v += subgroup_shuffle_xor(v, lanes);
        return v;
    }
#endif
    return local_sum(v, scratch);
}

#include "rmsnorm/rmsnorm_rows.clh"
