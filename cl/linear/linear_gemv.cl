// The linear layer for few rows of x, where the time is that of reading W once. A team of
// work-items takes four rows of W; each item reads 16-byte chunks of all four, a team's width
// apart, so that four loads are in flight and neighbouring items read neighbouring chunks. Every
// loaded chunk serves all rows of x. Partial sums meet in local memory, in a fixed order; with
// -DSUBGROUP=..., those of a sub-group without it.
#include "linear/linear_typed.clh"
#ifdef SUBGROUP
#include "common/subgroup.clh"
#else
#define SUBGROUP_REQUIRED
#endif

#define ITEMS    128u
#define MAX_ROWS 8
// The rows of x must be known where arrays of them become registers.
#define INLINE static inline __attribute__((always_inline))

#define unpack8(T) LLMK_PASTE(T, _unpack8)
#define advance(T) LLMK_PASTE(T, _advance)
#define packed(T)  LLMK_PASTE(T, _packed)
#define CHUNK(T)   LLMK_PASTE(T, _chunk)
#define SCALED(T)  (LLMK_PASTE(T, _scaled) != 0)
#define load_chunk(T) LLMK_PASTE(T, _load_chunk)
#define zero_at(T) LLMK_PASTE(T, _zero_at)
#define scales_at(T) LLMK_PASTE(T, _scale_at)

// ---- A chunk of W: what an item loads at once; its first eight elements, as q - zero; and the
// chunk with the next eight in front (no indexing by a variable, which would go through memory)

enum { f32_chunk = 8, f16_chunk = 8, bf16_chunk = 8 };
enum { s8_chunk = 16, u4_chunk = 32, q4_k_chunk = 32, q6_k_chunk = 16 };
enum { s8_nv_chunk = 8, u4_nv_chunk = 8 }; // what of a row lies together
enum { f32_scaled = 0, f16_scaled = 0, bf16_scaled = 0 };
enum { s8_scaled = 1, u4_scaled = 1, q4_k_scaled = 1, q6_k_scaled = 1 };
enum { s8_nv_scaled = 1, u4_nv_scaled = 1 };

typedef float8 f32_packed;
typedef uint4 f16_packed, bf16_packed, s8_packed, u4_packed, q4_k_packed;
typedef uint2 s8_nv_packed;
typedef uint u4_nv_packed;
typedef uint3 q6_k_packed; // two words of low bits, one of high ones

#define LLMK_DEFINE_LOAD_CHUNK(T)                                                                  \
    INLINE T##_packed T##_load_chunk(const linear_t a, uint n, uint c)                             \
    {                                                                                              \
        return ((global const T##_packed *)(a.data + n * a.pitch))[c];                             \
    }
LLMK_DEFINE_LOAD_CHUNK(f32)
LLMK_DEFINE_LOAD_CHUNK(f16)
LLMK_DEFINE_LOAD_CHUNK(bf16)
LLMK_DEFINE_LOAD_CHUNK(s8)
LLMK_DEFINE_LOAD_CHUNK(u4)
LLMK_DEFINE_LOAD_CHUNK(q4_k)
INLINE uint3 q6_k_load_chunk(const linear_t a, uint n, uint c)
{
    global const uchar *row = a.data + n * a.pitch + c / 4 * 48;
    return (uint3)(((global const uint2 *)row)[c % 4], ((global const uint *)row)[8 + c % 4]);
}

INLINE uint2 s8_nv_load_chunk(const linear_t a, uint n, uint c)
{
    return s8_nv_codes8(a, n, c * 8);
}
INLINE uint u4_nv_load_chunk(const linear_t a, uint n, uint c)
{
    return u4_nv_codes8(a, n, c * 8);
}

// Scales and zeros of layouts that have none, or the matrix one for all.
static inline float f32_zero_at(const linear_t a, uint n, uint g) { return 0.0f; }
static inline float f16_zero_at(const linear_t a, uint n, uint g) { return 0.0f; }
static inline float bf16_zero_at(const linear_t a, uint n, uint g) { return 0.0f; }
static inline float q4_k_zero_at(const linear_t a, uint n, uint g) { return 0.0f; }
static inline float q6_k_zero_at(const linear_t a, uint n, uint g) { return a.zero; }
#define f32_scale_at  scale_at
#define f16_scale_at  scale_at
#define bf16_scale_at scale_at

static inline float8 f32_unpack8(float8 v, float zero)
{
    return v;
}
static inline float8 f32_advance(float8 v)
{
    return v;
}

static inline float8 f16_unpack8(uint4 v, float zero)
{
    return vload_half8(0, (const half *)&v);
}
static inline uint4 f16_advance(uint4 v)
{
    return v;
}

static inline float8 bf16_unpack8(uint4 v, float zero)
{
    const float4 even = as_float4(v << 16), odd = as_float4(v & 0xffff0000u);
    return (float8)(even.x, odd.x, even.y, odd.y, even.z, odd.z, even.w, odd.w);
}
static inline uint4 bf16_advance(uint4 v)
{
    return v;
}

static inline float8 s8_unpack8(uint4 v, float zero)
{
    return convert_float8(convert_int8(as_char8(v.lo))) - zero;
}
static inline uint4 s8_advance(uint4 v)
{
    return v.zwxy;
}

// Or'ed into the mantissa of 2^23, a nibble at bit 4j reads as 2^23 + q 16^j. One exact
// multiply-add makes it q - zero: an integer conversion is several times slower on many GPUs.
static inline float4 u4_unpack4(uint v, float zero)
{
    const float4 f = as_float4(((uint4)v & (uint4)(0xfu, 0xf0u, 0xf00u, 0xf000u)) | 0x4b000000u);
    return f * (float4)(1.0f, 0x1p-4f, 0x1p-8f, 0x1p-12f) -
           ((float4)(0x1p23f, 0x1p19f, 0x1p15f, 0x1p11f) + zero);
}
static inline float8 u4_unpack8(uint4 v, float zero)
{
    return (float8)(u4_unpack4(v.x, zero), u4_unpack4(v.x >> 16, zero));
}
static inline uint4 u4_advance(uint4 v)
{
    return v.yzwx;
}

static inline float8 s8_nv_unpack8(uint2 v, float zero)
{
    return convert_float8(convert_int8(as_char8(v))) - zero;
}
static inline uint2 s8_nv_advance(uint2 v)
{
    return v;
}
static inline float8 u4_nv_unpack8(uint v, float zero)
{
    return (float8)(u4_unpack4(v, zero), u4_unpack4(v >> 16, zero));
}
static inline uint u4_nv_advance(uint v)
{
    return v;
}

static inline float8 q4_k_unpack8(uint4 v, float zero)
{
    return u4_unpack8(v, 0.0f);
}
static inline uint4 q4_k_advance(uint4 v)
{
    return u4_advance(v);
}

static inline float8 q6_k_unpack8(uint3 v, float zero)
{
    const uint8 at = (uint8)(0, 1, 2, 3, 4, 5, 6, 7);
    const uint8 q = ((uint8)v.x >> at * 4 & 15u) | ((uint8)v.z >> at * 2 & 3u) << 4;
    return convert_float8(as_int8(q)) - zero;
}
static inline uint3 q6_k_advance(uint3 v)
{
    return (uint3)(v.y, v.x, v.z >> 16);
}

// ---- x

INLINE float8 x8(const linear_t a, ulong row, uint k)
{
    global const elem(X) *x = (global const elem(X) *)a.x;
    if (a.x_access == X_ALIGNED && k + 8 <= a.k)
        return load8(X)(x, row + k);
    if (a.x_access == X_ORDERED && k + 8 <= a.k)
        return ordered8(a, x + row, k);
    float8 v = 0.0f; // filled from the end, rolled: rarely run, and code is not free either
#pragma unroll 1
    for (uint i = k; i < k + 8; i++)
        v = (float8)(v.s1, v.s23, v.s4567, 
                     i < a.k ? load(X)(x, row + column_of(a, i) * a.x_rows.inner) : 0.0f);
    return v;
}

static inline float sum8(float8 v)
{
    const float4 s = v.lo + v.hi;
    return s.x + s.y + (s.z + s.w);
}

INLINE void read_scales(const linear_t a, const uint *n, uint g, float4 *scale, float4 *minimum)
{
    const float2 s0 = scales_at(W)(a, n[0], g), s1 = scales_at(W)(a, n[1], g),
                 s2 = scales_at(W)(a, n[2], g), s3 = scales_at(W)(a, n[3], g);
    *scale = (float4)(s0.x, s1.x, s2.x, s3.x);
    *minimum = (float4)(s0.y, s1.y, s2.y, s3.y);
}

// Adds to sum[i] the products of chunk c of rows n[0 ... 3] of W with row i of x, i < MB.
// Groups are whole chunks.
INLINE void add_chunk(const linear_t a, const uint *n, const ulong *x_row, uint c, const uint MB,
                      float4 *sum)
{
    packed(W) w[4];
#pragma unroll
    for (uint r = 0; r < 4; r++)
        w[r] = load_chunk(W)(a, n[r], c);

    const uint k = c * CHUNK(W);
    const uint g = SCALED(W) ? group_at(a, k) : 0;
    float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (SCALED(W)) {
#pragma unroll
        for (uint r = 0; r < 4; r++)
            zero[r] = zero_at(W)(a, n[r], g);
    }
    // With few rows of x the scales are asked for before the products, with more rows after them:
    // there registers are scarcer than time.
    float4 scale = 1.0f, minimum = 0.0f;
    if (SCALED(W) && MB < 4)
        read_scales(a, n, g, &scale, &minimum);
    float4 part[MAX_ROWS];
    float x_sum[MAX_ROWS];
#pragma unroll
    for (uint i = 0; i < MB; i++) {
        part[i] = 0.0f;
        x_sum[i] = 0.0f;
    }
#pragma unroll 1
    for (uint s = 0; s < CHUNK(W) / 8; s++) {
        float8 q[4];
#pragma unroll
        for (uint r = 0; r < 4; r++) {
            q[r] = unpack8(W)(w[r], zero[r]);
            w[r] = advance(W)(w[r]);
        }
#pragma unroll
        for (uint i = 0; i < MB; i++) {
            const float8 v = x8(a, x_row[i], k + 8 * s);
            part[i] = (float4)(dot8(v, q[0], part[i].x), dot8(v, q[1], part[i].y),
                               dot8(v, q[2], part[i].z), dot8(v, q[3], part[i].w));
            if (SCALED(W) && has_minimum(a))
                x_sum[i] += sum8(v);
        }
    }
    if (SCALED(W) && MB >= 4)
        read_scales(a, n, g, &scale, &minimum);
#pragma unroll
    for (uint i = 0; i < MB; i++) {
        sum[i] += part[i] * scale;
        if (SCALED(W) && has_minimum(a))
            sum[i] += x_sum[i] * minimum;
    }
}

// The sums of a team meet in local memory. Those of row i of x are parts[i * ITEMS + first] and the
// next count - 1: the result is (first, count).
INLINE uint2 meet(local float4 *parts, const float4 *sum, const uint team, const uint MB)
{
    const uint item = get_local_id(0), lane = item & (team - 1);
#ifdef SUBGROUP
    const uint size = subgroup_size();
    if (subgroups_full() && team % size == 0) {
        for (uint i = 0; i < MB; i++) {
            const float4 s = (float4)(subgroup_sum(sum[i].x), subgroup_sum(sum[i].y),
                                      subgroup_sum(sum[i].z), subgroup_sum(sum[i].w));
            if (item % size == 0)
                parts[i * ITEMS + item / size] = s;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        return (uint2)((item - lane) / size, team / size);
    }
#endif
#pragma unroll
    for (uint i = 0; i < MB; i++)
        parts[i * ITEMS + item] = sum[i];
    for (uint width = team / 2; width > 0; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < width)
            for (uint i = 0; i < MB; i++)
                parts[i * ITEMS + item] += parts[i * ITEMS + item + width];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return (uint2)(item - lane, 1);
}

// A work-group's outputs: rows m0 ... m0+MB-1 of y, four columns a team. At the edges the last row
// or column is computed again and not stored.
INLINE void gemv(const linear_t a, local float4 *parts, const ulong m_first, const uint team,
                 const uint MB)
{
    const uint item = get_local_id(0), lane = item & (team - 1);
    const uint n0 = ((uint)get_group_id(0) * (ITEMS / team) + item / team) * 4;
    const ulong m0 = m_first + get_group_id(1) * MB;
    uint n[4];
    for (uint r = 0; r < 4; r++)
        n[r] = min(n0 + r, a.n - 1);
    ulong x_row[MAX_ROWS];
    float4 sum[MAX_ROWS];
#pragma unroll
    for (uint i = 0; i < MB; i++) {
        x_row[i] = row_begin(a.x_rows, min(m0 + i, a.m - 1));
        sum[i] = 0.0f;
    }
    const uint chunks = (a.k + CHUNK(W) - 1) / CHUNK(W);
    for (uint c = lane; c < chunks; c += team)
        add_chunk(a, n, x_row, c, MB, sum);

    const uint2 met = meet(parts, sum, team, MB);
    local const float *first = (local const float *)(parts + met.x);
    for (uint o = lane; o < 4 * MB; o += team)
        if (m0 + o / 4 < a.m && n0 + o % 4 < a.n) {
            local const float *part = first + o / 4 * (4 * ITEMS) + o % 4;
            float total = part[0];
            for (uint i = 1; i < met.y; i++)
                total += part[4 * i];
            finish(a, m0 + o / 4, n0 + o % 4, total);
        }
}

#define GEMV(MB)                                                                                   \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) SUBGROUP_REQUIRED void               \
        linear_gemv_##MB(LINEAR_PARAMETERS, const uint team)                                       \
    {                                                                                              \
        local float4 parts[MB * ITEMS];                                                            \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        gemv(a, parts, m_first, team, MB);                                                         \
    }

// team, the items of a team: a power of two that divides ITEMS.
GEMV(1)
GEMV(2)
GEMV(4)
GEMV(8)
