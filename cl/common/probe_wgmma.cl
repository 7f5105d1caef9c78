// The rate of wgmma with f16 operands in local memory and nothing else to do: the roof of
// src/tools/common/bench_probe.c. Operands are about normal numbers of deviation 0.3, since power, and
// so the clock, depends on them.
#define NV90_TYPE f16
#include "common/nv90.clh"

#define ITEMS  256u // two warpgroups, 64 x 256 x 64 each at a time
#define TILE_A (64u * NV90_ROW)
#define TILE_B (256u * NV90_ROW)

static inline uint mixed(uint v)
{
    v = (v ^ v >> 16) * 0x85ebca6bu;
    v = (v ^ v >> 13) * 0xc2b2ae35u;
    return v ^ v >> 16;
}

// The sum of four bytes: of deviation 148.
static inline float about_normal(uint bits)
{
    const uint pairs = (bits & 0x00ff00ffu) + (bits >> 8 & 0x00ff00ffu);
    return ((float)((pairs & 0xffff) + (pairs >> 16)) - 510.0f) * (0.3f / 148.0f);
}

kernel void __attribute__((reqd_work_group_size(ITEMS, 1, 1))) probe_wgmma(global float *out, uint rounds)
{
    local uint4 tiles[(2 * TILE_A + TILE_B) / 16] __attribute__((aligned(1024)));
    const uint id = (uint)get_local_id(0), at = (uint)(ulong)tiles;
    local uint *words = (local uint *)tiles;
    for (uint i = id; i < sizeof tiles / 4; i += ITEMS) {
        const float low = about_normal(mixed(2 * i)), high = about_normal(mixed(2 * i + 1));
        asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(high), "f"(low));
    }
    nv90_proxy_fence();
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong a = nv90_descriptor(at + id / 128 * TILE_A), b = nv90_descriptor(at + 2 * TILE_A);
    float sums[128];
    _Pragma("unroll") for (uint i = 0; i < 128; i++) sums[i] = 0;
    for (uint i = 0; i < rounds; i++)
        nv90_multiply_256(sums, a, b);
    nv90_end_256(sums);
    float sum = 0;
    _Pragma("unroll") for (uint i = 0; i < 128; i++) sum += sums[i];
    if (sum == 12345.0f) // never, but the compiler does not know
        out[0] = sum;
}
