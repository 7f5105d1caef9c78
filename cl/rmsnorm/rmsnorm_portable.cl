// RMSNorm with nothing but local memory.
#include "common/local_sum.clh"

#define SCRATCH 1024 // one float a work-item

static inline float row_sum(float v, local float *scratch)
{
    return local_sum(v, scratch);
}

#include "rmsnorm/rmsnorm_rows.clh"
