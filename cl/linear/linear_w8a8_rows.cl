// Quantises the rows of x for W8A8, by the rule of llmk_quantize: a work-group a row. -DX=...
#define W s8
#include "common/quant.clh"
#include "linear/linear_typed.clh"
#include "linear/linear_w8a8.clh"

#define ITEMS 128
#define CHUNK 16 // codes of an item at a time

// The sum that rounds must not be one with the product before it.
#pragma OPENCL FP_CONTRACT OFF

// quant_code, but 128 more, in the low byte of a float's bits, 0x4b400000: what is added to 1.5 * 2^23
// is rounded as by rint. finite: all of the row is, and so no code beyond its range.
LINEAR_INLINE uint code_bits(const quant_t t, float x, const bool finite)
{
    float v = x * t.inverse;
    if (!finite)
        v = isnan(x) ? 0.0f : clamp(v, t.low, t.high);
    return as_uint(v + (0x1.8p23f + 128.0f));
}
LINEAR_INLINE uint codes4(const quant_t t, float4 x, const bool finite)
{
    const uint a = code_bits(t, x.x, finite), b = code_bits(t, x.y, finite);
    const uint c = code_bits(t, x.z, finite), d = code_bits(t, x.w, finite);
    return (((d * 256 + c) * 256 + b) * 256 + a - 0x8b400000u) ^ 0x80808080u;
}

// codes_order: 0 as in x, 1 of w8a8_nv_place, 2 of w8a8_nv90_place. Zeros from K on.
LINEAR_INLINE void put16(const linear_t a, global uchar *to, uint at, uint codes_order,
                         const quant_t t, float16 v, const bool finite)
{
    const uint within = at < a.k ? 0xffffffffu : 0u;
    const uint2 low = (uint2)(codes4(t, v.s0123, finite), codes4(t, v.s4567, finite)) & within;
    const uint2 high = (uint2)(codes4(t, v.s89ab, finite), codes4(t, v.scdef, finite)) & within;
    if (codes_order == 2) {
        global uint2 *both = (global uint2 *)(to + w8a8_nv90_place(at));
        both[0] = (uint2)(low.x, high.x);
        both[2] = (uint2)(low.y, high.y);
    } else {
        *(global uint2 *)(to + (codes_order ? w8a8_nv_place(at) : at)) = low;
        *(global uint2 *)(to + (codes_order ? w8a8_nv_place(at + 8) : at + 8)) = high;
    }
}

// Elements at ... at+15. plain: x has aligned vectors, and K whole chunks; beyond it is the last one.
LINEAR_INLINE float16 chunk_of(const linear_t a, ulong begin, uint at, const bool plain)
{
    if (!plain)
        return at < a.k ? x16(a, begin, at) : (float16)(0.0f);
    global const elem(X) *x = (global const elem(X) *)a.x;
    const ulong from = begin + min(at, a.k - CHUNK);
    return (float16)(load8(X)(x, from), load8(X)(x, from + 8));
}

static inline float largest16(float16 v)
{
    const float8 v8 = fmax(fabs(v.lo), fabs(v.hi));
    const float4 v4 = fmax(v8.lo, v8.hi);
    return fmax(fmax(v4.x, v4.y), fmax(v4.z, v4.w));
}

// The largest magnitude in the row; of its finite values where `finite` says so, else infinite where one
// is not.
LINEAR_INLINE float largest_of(const linear_t a, ulong begin, local float *largest,
                               const bool finite, const bool plain)
{
    const uint item = get_local_id(0), step = ITEMS * CHUNK;
    float most = 0.0f;
    float16 zero = (float16)(0.0f); // or NaN
    for (uint at = item * CHUNK; at < a.k; at += step) {
        float16 v = chunk_of(a, begin, at, plain);
        if (finite)
            v = select((float16)(0.0f), v, fabs(v) <= FLT_MAX);
        else
            zero = fma(v, (float16)(0.0f), zero);
        most = fmax(most, largest16(v));
    }
    const float8 zero8 = zero.lo + zero.hi;
    const float4 zero4 = zero8.lo + zero8.hi;
    largest[item] = zero4.x + zero4.y + zero4.z + zero4.w == 0.0f ? most : INFINITY;
    for (uint span = ITEMS / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < span)
            largest[item] = fmax(largest[item], largest[item + span]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return largest[0];
}

LINEAR_INLINE void put_row(const linear_t a, ulong begin, global uchar *to, uint code_pitch,
                           uint codes_order, const quant_t t, const bool finite, const bool plain)
{
    for (uint at = get_local_id(0) * CHUNK; at < code_pitch; at += ITEMS * CHUNK)
        put16(a, to, at, codes_order, t, chunk_of(a, begin, at, plain), finite);
}

LINEAR_INLINE void quantise_row(const linear_t a, local float *largest, global uchar *codes,
                                uint code_pitch, ulong m_first, uint codes_order, const bool plain)
{
    const ulong row = m_first + get_group_id(1), begin = row_begin(a.x_rows, row);
    global uchar *to = codes + row * code_pitch;
    float most = largest_of(a, begin, largest, false, plain);
    const bool finite = most <= FLT_MAX;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!finite)
        most = largest_of(a, begin, largest, true, plain);
    const quant_t t = quant_of_range(QUANT_INT8_CHANNEL, (float2)(0.0f, most));
    if (get_local_id(0) == 0)
        scales_of_x(codes, code_pitch, a.m)[row] = t.scale;
    if (finite)
        put_row(a, begin, to, code_pitch, codes_order, t, true, plain);
    else
        put_row(a, begin, to, code_pitch, codes_order, t, false, plain);
}

#define ROWS(name, plain)                                                                          \
    kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void name(                           \
        LINEAR_PARAMETERS, W8A8_PARAMETERS, const uint codes_order)                                \
    {                                                                                              \
        local float largest[ITEMS];                                                                \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        quantise_row(a, largest, codes, code_pitch, m_first, codes_order, plain);                  \
    }

ROWS(linear_w8a8_rows, false)
ROWS(linear_w8a8_rows_plain, true)
