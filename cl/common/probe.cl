// The probes of src/core/probe.c: each asks one question of a compiler and its device.

#ifdef PROBE_SUBGROUP
#if __OPENCL_C_VERSION__ < 200
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
kernel void probe_subgroup(global uint *out)
{
    out[get_local_id(0)] = sub_group_reduce_add(1u);
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
