// The probes of src/core/probe.c: each asks one question of a compiler and its device.

#ifdef PROBE_SUBGROUP
#define SUBGROUP 0
#include "common/subgroup.clh"
// out[i], out[items + i]: how many items add up where i is, and the sum of their ids.
kernel void probe_subgroup(global uint *out)
{
    const uint i = get_local_id(0);
    const float count = subgroup_sum(1.0f), sum = subgroup_sum((float)i);
    out[i] = subgroups_full() && subgroup_size() == (uint)count ? (uint)count : 0;
    out[get_local_size(0) + i] = (uint)sum;
}
#endif

#ifdef PROBE_FP16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
kernel void probe_fp16(global uint *out)
{
    volatile half one = (half)1.0f;
    out[0] = (uint)as_short((half)(one + (half)2.0f));
}
#endif

#ifdef PROBE_PTX
kernel void probe_ptx(global uint *out)
{
    const uint lane = (uint)get_local_id(0);
    uint other;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;" : "=r"(other) : "r"(lane));
    out[lane] = other;
}
#endif
