// Quantises the rows of x for W8A8, by the rule of llmk_quantize: a work-group a row. -DX=...
#define W s8
#include "common/quant.clh"
#include "linear/linear_typed.clh"
#include "linear/linear_w8a8.clh"

#define ITEMS  128
#define CHUNK  16 // codes of an item at a time
#define UNROLL _Pragma("unroll")

// quant_code, but 128 more, in the low byte of a float's bits, 0x4b400000: what is added to 1.5 * 2^23
// is rounded as by rint.
static inline uint code_bits(const quant_t t, float x)
{
    return as_uint((isnan(x) ? 0.0f : clamp(x * t.inverse, t.low, t.high)) + (0x1.8p23f + 128.0f));
}
static inline uint codes4(const quant_t t, float4 x)
{
    const uint four =
        ((code_bits(t, x.w) * 256 + code_bits(t, x.z)) * 256 + code_bits(t, x.y)) * 256 +
        code_bits(t, x.x);
    return (four - 0x8b400000u) ^ 0x80808080u;
}

// codes_order: 0 as in x, 1 of w8a8_nv_place, 2 of w8a8_nv90_place. Zeros from K on.
LINEAR_INLINE void put16(const linear_t a, global uchar *to, uint at, uint codes_order,
                         const quant_t t, float16 v)
{
    const uint within = at < a.k ? 0xffffffffu : 0u;
    const uint2 low = (uint2)(codes4(t, v.s0123), codes4(t, v.s4567)) & within;
    const uint2 high = (uint2)(codes4(t, v.s89ab), codes4(t, v.scdef)) & within;
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

// The largest magnitude of finite values.
static inline float largest16(float16 v)
{
    const float16 f = select((float16)(0.0f), fabs(v), fabs(v) <= FLT_MAX);
    const float8 f8 = fmax(f.lo, f.hi);
    const float4 f4 = fmax(f8.lo, f8.hi);
    return fmax(fmax(f4.x, f4.y), fmax(f4.z, f4.w));
}

LINEAR_INLINE void quantise_row(const linear_t a, local float *largest, global uchar *codes,
                                uint code_pitch, ulong m_first, uint codes_order, const bool plain)
{
    const uint item = get_local_id(0), first = item * CHUNK, step = ITEMS * CHUNK;
    const ulong row = m_first + get_group_id(1), begin = row_begin(a.x_rows, row);
    float most = 0.0f;
    for (uint at = first; at < a.k; at += 2 * step) {
        const float16 v = chunk_of(a, begin, at, plain), w = chunk_of(a, begin, at + step, plain);
        most = fmax(most, fmax(largest16(v), largest16(w)));
    }
    largest[item] = most;
    for (uint span = ITEMS / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < span)
            largest[item] = fmax(largest[item], largest[item + span]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const quant_t t = quant_of_range(QUANT_INT8_CHANNEL, (float2)(0.0f, largest[0]));
    if (item == 0)
        scales_of_x(codes, code_pitch, a.m)[row] = t.scale;
    global uchar *to = codes + row * code_pitch;
    for (uint at = first; at < code_pitch; at += 2 * step) {
        const float16 v = chunk_of(a, begin, at, plain), w = chunk_of(a, begin, at + step, plain);
        put16(a, to, at, codes_order, t, v);
        if (at + step < code_pitch)
            put16(a, to, at + step, codes_order, t, w);
    }
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
