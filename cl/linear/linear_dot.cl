// The linear layer for one or two rows of x and weights of x's own 16-bit type, on NVIDIA: the time is
// that of reading W once. A work-group takes two rows of W; its warps take turns at stretches of
// them, so that work-groups are short and all of them end together. The build chooses
//
//     -DX=f16 | bf16   and perhaps -DFRAGMENT_EMULATED: without NVIDIA's instructions
//
// The order of a sum does not depend on how many rows of x go together.
#define FRAGMENT_MMA // warps of 32, and its loads
#define FRAGMENT_TYPE X
#ifndef FRAGMENT_EMULATED
#include "common/nv.clh"
#endif
#include "common/halves.clh"
#include "linear/linear_typed.clh"

#define WARPS  8
#define WARP   32
#define ITEMS  (WARPS * WARP)
#define ROWS   2 // of W
#define CHUNKS 2 // of 16 bytes of each, in flight for an item
#define MAX_M  2
#define UNROLL _Pragma("unroll")

#define unpack8(T) LLMK_PASTE(T, _unpack8)

#ifdef FRAGMENT_EMULATED
static inline float8 f16_unpack8(uint4 v) { return vload_half8(0, (const half *)&v); }
#endif
static inline float8 bf16_unpack8(uint4 v)
{
    const float4 even = as_float4(v << 16), odd = as_float4(v & 0xffff0000u);
    return (float8)(even.x, odd.x, even.y, odd.y, even.z, odd.z, even.w, odd.w);
}

// A warp's sum of v, for its first item at least. The emulator needs ITEMS floats.
static inline float warp_sum(float v, local float *scratch)
{
#ifdef FRAGMENT_EMULATED
    const uint item = (uint)get_local_id(0);
    scratch[item] = v;
    for (uint lanes = WARP / 2; lanes > 0; lanes /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item % WARP < lanes)
            scratch[item] += scratch[item + lanes];
    }
    v = scratch[item];
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    UNROLL
    for (uint lanes = WARP / 2; lanes > 0; lanes /= 2)
        v += nv_shuffle_xor(v, lanes);
#endif
    return v;
}

// Rows 0 ... rows_m - 1 of x. At the edge of N the last row of W is read again, and not stored.
LINEAR_INLINE void dot_rows(const linear_t a, local float *parts, local float *scratch,
                            const uint rows_m)
{
    const uint item = (uint)get_local_id(0), lane = item % WARP, warp = item / WARP;
    const uint n0 = (uint)get_group_id(0) * ROWS, chunks = a.k / 8;
    global const uint4 *w[ROWS], *x[MAX_M];
    float sum[MAX_M][ROWS];
    UNROLL
    for (uint r = 0; r < ROWS; r++)
        w[r] = (global const uint4 *)(a.data + min(n0 + r, a.n - 1) * a.pitch);
    UNROLL
    for (uint m = 0; m < rows_m; m++) {
        x[m] = (global const uint4 *)((global const ushort *)a.x + row_begin(a.x_rows, m));
        UNROLL
        for (uint r = 0; r < ROWS; r++)
            sum[m][r] = 0.0f;
    }
    _Pragma("unroll 1")
    for (uint c = warp * (WARP * CHUNKS) + lane; c < chunks; c += ITEMS * CHUNKS) {
        uint4 held[CHUNKS][ROWS];
        UNROLL
        for (uint i = 0; i < CHUNKS; i++) {
            UNROLL
            for (uint r = 0; r < ROWS; r++)
                held[i][r] = load_codes(w[r] + min(c + i * WARP, chunks - 1));
        }
        UNROLL
        for (uint m = 0; m < rows_m; m++) {
            UNROLL
            for (uint i = 0; i < CHUNKS; i++) {
                const float8 v =
                    unpack8(X)(c + i * WARP < chunks ? x[m][c + i * WARP] : (uint4)(0u));
                UNROLL
                for (uint r = 0; r < ROWS; r++)
                    sum[m][r] = dot8(unpack8(X)(held[i][r]), v, sum[m][r]);
            }
        }
    }

    UNROLL
    for (uint m = 0; m < rows_m; m++) {
        UNROLL
        for (uint r = 0; r < ROWS; r++) {
            const float total = warp_sum(sum[m][r], scratch);
            if (lane == 0)
                parts[warp * (MAX_M * ROWS) + m * ROWS + r] = total;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < rows_m * ROWS && n0 + item % ROWS < a.n) {
        float total = 0.0f;
        for (uint i = 0; i < WARPS; i++)
            total += parts[i * (MAX_M * ROWS) + item];
        finish(a, item / ROWS, n0 + item % ROWS, total);
    }
}

#ifdef FRAGMENT_EMULATED
#define SCRATCH ITEMS
#else
#define SCRATCH 1
#endif
#define DOT(count)                                                                                 \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) RESIDENT(1) void                     \
        linear_dot_##count(LINEAR_PARAMETERS)                                                      \
    {                                                                                              \
        local float parts[WARPS * MAX_M * ROWS], scratch[SCRATCH];                                 \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        dot_rows(a, parts, scratch, count);                                                        \
    }
DOT(1)
DOT(2)
