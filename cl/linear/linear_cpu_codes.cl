// The linear layer on a CPU with weights of 4 or 8 bits: a work-item takes a strip of rows of W. It
// converts x to floats once for all of them, in the order in which words of codes fall apart: word
// i of a block of sixteen holds the weights FIELDS i ... FIELDS i + FIELDS-1, so that a shift and a
// mask of all sixteen words give a vector of codes, and the elements of x with the same index
// within their word lie side by side. Work-groups of one item, and no local memory.
#define LINEAR_COLD static __attribute__((noinline))
#define LINEAR_CPU
#include "linear/linear_typed.clh"

// -DROWS of x and COLUMNS of W, which share the codes and x.
#ifndef COLUMNS
#define COLUMNS (ROWS == 1 ? 4 : 2)
#endif

enum { u4_bits = 4, q4_k_bits = 4, s8_bits = 8 };
// What a stored code is more than its field, which is unsigned.
enum { u4_sign = 0, q4_k_sign = 0, s8_sign = 0x80 };

#define BITS   ((uint)LLMK_PASTE(W, _bits))
#define SIGN   ((uint)LLMK_PASTE(W, _sign))
#define FIELDS (32 / LLMK_PASTE(W, _bits)) // of a word
#define BLOCK  (16u * FIELDS)
#define STAGE  4096 // elements of x held as floats
#define STRIP  64   // rows of W, at most

#define EACH(i, count) _Pragma("unroll") for (uint i = 0; i < (count); i++)

// A field at bit p of a float's mantissa, under the exponent of 2^(23-p), is that power more than
// the field. Subtracting both it and the zero is exact: fields 0 ... of a word are taken where they
// are as long as they fit, the others after a shift.
#define PLACES   (BITS == 4 ? 3 : 2) // of fields between shifts
#define PLACE(j) ((j) % PLACES * BITS)
#define POWER(p) ((float)((1 << (23 - (p))) + SIGN))

LINEAR_INLINE float16 field(uint16 words, uint j, float16 base)
{
    const uint p = PLACE(j);
    const uint16 part = words >> (j * BITS - p) & (((1u << BITS) - 1) << p);
    return as_float16(part ^ ((150 - p) << 23 | SIGN << p)) - base;
}

// The compiler's prefetch is not for images.
#if defined(__x86_64__) || defined(__aarch64__)
#define PREFETCH(p) __builtin_prefetch((const void *)(size_t)(p), 0, 3)
#else
#define PREFETCH(p)
#endif
#define AHEAD 4 // rows

// x[k0 ... k0+BLOCK-1] of a row; element FIELDS i + j is element i of out[j].
LINEAR_INLINE void stage_block(const linear_t a, ulong row, uint k0, float16 *out, float16 *sum)
{
    global const elem(X) *x = (global const elem(X) *)a.x + row + k0;
    float16 v[FIELDS];
    if ((a.x_access == X_UNIT || a.x_access == X_ALIGNED) && k0 + BLOCK <= a.k) {
        EACH(j, FIELDS) v[j] = LLMK_PASTE(X, _unaligned16)(x + 16 * j);
    } else {
        for (uint j = 0; j < FIELDS; j++)
            v[j] = k0 + 16 * j < a.k ? x16(a, row, k0 + 16 * j) : 0.0f;
    }
    // Each pass moves the lowest bit of an element's index to the top.
    _Pragma("unroll") for (uint pass = 1; pass < FIELDS; pass *= 2)
    {
        float16 t[FIELDS];
        _Pragma("unroll") for (uint j = 0; j < FIELDS / 2; j++)
        {
            t[j] = (float16)(v[2 * j].even, v[2 * j + 1].even);
            t[j + FIELDS / 2] = (float16)(v[2 * j].odd, v[2 * j + 1].odd);
        }
        EACH(j, FIELDS) v[j] = t[j];
    }
    float16 all = 0.0f;
    EACH(j, FIELDS)
    {
        out[j] = v[j];
        all += v[j];
    }
    *sum = all;
}

// Sixteen words from weight k0 on of COLUMNS rows, from row n on; at the edge the last row again.
// Rows end at chunks of four words.
LINEAR_INLINE void words_at(const linear_t a, uint n, uint k0, uint16 *words)
{
    const ulong at = (ulong)k0 * BITS / 8;
    EACH(r, COLUMNS) PREFETCH(a.data + min(n + r + AHEAD, a.n - 1) * a.pitch + at);
    if (at + 64 <= a.pitch) {
        EACH(r, COLUMNS)
        words[r] = vload16(0, (global const uint *)(a.data + min(n + r, a.n - 1) * a.pitch + at));
        return;
    }
    const uint4 none = 0;
    EACH(r, COLUMNS)
    {
        global const uint4 *p = (global const uint4 *)(a.data + min(n + r, a.n - 1) * a.pitch + at);
        words[r] = (uint16)(p[0], at + 32 <= a.pitch ? p[1] : none,
                            at + 48 <= a.pitch ? p[2] : none, none);
    }
}

// Scales, minimums and zeros of a row's groups from a multiple of 8 to those of the stage's end,
// and room for fifteen behind them.
#define GROUPS (STAGE / 32 + 24)
typedef struct {
    float scale[GROUPS], minimum[GROUPS];
    float base[PLACES][GROUPS]; // zero + POWER
} terms_t;

LINEAR_COLD void put_term(terms_t *t, uint i, float2 scale, float zero)
{
    t->scale[i] = scale.x;
    t->minimum[i] = scale.y;
    for (uint j = 0; j < PLACES; j++)
        t->base[j][i] = zero + POWER(PLACE(j));
}

// Sixteen zeros, where they are all in memory.
LINEAR_INLINE float16 u4_zero16(const linear_t a, uint n, uint g)
{
    global const uchar *p = a.zeros + n * (ulong)((a.groups + 1) / 2) + g / 2;
    const uint8 both = convert_uint8(vload8(0, p));
    float16 v;
    v.even = convert_float8(as_int8(both & 15u));
    v.odd = convert_float8(as_int8(both >> 4));
    return v;
}
LINEAR_INLINE float16 s8_zero16(const linear_t a, uint n, uint g)
{
    global const char *p = (global const char *)a.zeros + (ulong)n * a.groups + g;
    return convert_float16(convert_int16(vload16(0, p)));
}

// Terms g ... g+15 at i. Those beyond a row's are the next one's, but the last rows' are put one by
// one.
LINEAR_INLINE bool has_terms16(const linear_t a, uint n, uint g)
{
    return (ulong)(a.n - n) * (a.groups / 2) >= g / 2 + 8; // whole bytes of zeros too
}
LINEAR_INLINE void put_terms16(const linear_t a, uint n, uint g, uint i, float16 zero, bool bases,
                               terms_t *t)
{
    const ulong at = (ulong)n * a.groups + g;
    float16 scale;
    if (a.scale_kind == SCALE_F16) {
        scale = f16_unaligned16((global const ushort *)a.scales + at);
    } else if (a.scale_kind == SCALE_F16_MIN) {
        const float16 lo = f16_unaligned16((global const ushort *)a.scales + 2 * at);
        const float16 hi = f16_unaligned16((global const ushort *)a.scales + 2 * at + 16);
        scale = (float16)(lo.even, hi.even);
        vstore16((float16)(lo.odd, hi.odd), 0, t->minimum + i);
    } else if (a.scale_kind == SCALE_BF16) {
        scale = bf16_unaligned16((global const ushort *)a.scales + at);
    } else {
        scale = vload16(0, (global const float *)a.scales + at);
    }
    vstore16(scale, 0, t->scale + i);
    if (bases) {
        EACH(j, PLACES) vstore16(zero + POWER(PLACE(j)), 0, t->base[j] + i);
    }
}
LINEAR_INLINE void u4_terms16(const linear_t a, uint n, uint g, uint i, bool bases, terms_t *t)
{
    if (has_terms16(a, n, g)) {
        put_terms16(a, n, g, i, a.zeros ? u4_zero16(a, n, g) : (float16)a.zero, bases, t);
        return;
    }
    for (uint j = 0; j < 16 && g + j < a.groups; j++)
        put_term(t, i + j, scale_at(a, n, g + j), u4_zero_at(a, n, g + j));
}
LINEAR_INLINE void s8_terms16(const linear_t a, uint n, uint g, uint i, bool bases, terms_t *t)
{
    if (has_terms16(a, n, g)) {
        put_terms16(a, n, g, i, a.zeros ? s8_zero16(a, n, g) : (float16)a.zero, bases, t);
        return;
    }
    for (uint j = 0; j < 16 && g + j < a.groups; j++)
        put_term(t, i + j, scale_at(a, n, g + j), s8_zero_at(a, n, g + j));
}
// Two blocks of eight groups, or the row's last; no zeros. The 12 bytes are fields of 12 bits.
LINEAR_INLINE void q4_k_terms16(const linear_t a, uint n, uint g, uint i, bool bases, terms_t *t)
{
    for (uint j = 0; j < 16 && g + j < a.groups; j += 8) {
        global const uchar *p = a.scales + ((ulong)n * a.groups + g + j) * 2;
        const uint4 v = *(global const uint4 *)p;
        const float2 d = vload_half2(0, (global const half *)p);
        const uint8 both = (uint8)(v.yyy, v.zzz, v.ww) >> (uint8)(0, 12, 24, 4, 16, 28, 8, 20) |
                           (uint8)(0, 0, v.z << 8, 0, 0, v.w << 4, 0, 0);
        vstore8(d.x * convert_float8(as_int8(both & 63u)), 0, t->scale + i + j);
        vstore8(-d.y * convert_float8(as_int8(both >> 6 & 63u)), 0, t->minimum + i + j);
    }
}

#define terms16(T) LLMK_PASTE(T, _terms16)

// A term of the words of a block, which lie in one group, or in two or four.
LINEAR_INLINE float16 spread2(const float *p)
{
    return (float16)((float8)p[0], (float8)p[1]);
}
LINEAR_INLINE float16 spread4(const float *p)
{
    return vload4(0, p).s0000111122223333;
}
LINEAR_INLINE float16 spread(const float *p, uint parts)
{
    return parts == 1 ? (float16)p[0] : parts == 2 ? spread2(p) : spread4(p);
}
// Bases are looked up (`bases`) but where all have one zero and a block four groups.
LINEAR_INLINE void bases_at(const linear_t a, const terms_t *t, uint i, uint parts, bool bases,
                            float16 *base)
{
    EACH(j, PLACES)
    base[j] = bases ? spread(t->base[j] + i, parts) : (float16)(a.zero + POWER(PLACE(j)));
}

// The blocks of x that are staged, and of W what they share.
typedef struct {
    float16 x[STAGE / BLOCK * FIELDS]; // [block][row of x][field]
    float16 x_sum[STAGE / BLOCK];      // [block][row of x], of the fields
    ushort group[STAGE / ROWS / BLOCK];
    terms_t terms[COLUMNS];
} stage_t;

// Adds the products of the staged blocks, from weight k0 on, and of COLUMNS rows of W, from n on.
LINEAR_INLINE void add_blocks(const linear_t a, const stage_t *s, uint n, uint k0, uint blocks,
                              uint parts, bool bases, float16 sum[ROWS][COLUMNS])
{
    const bool minimum = has_minimum(a);
    for (uint b = 0; b < blocks; b++) {
        const float16 *x = s->x + b * ROWS * FIELDS;
        const uint g = s->group[b];
        uint16 words[COLUMNS];
        float16 base[COLUMNS][PLACES], part[ROWS][COLUMNS];
        words_at(a, n, k0 + b * BLOCK, words);
        for (uint r = 0; r < COLUMNS; r++)
            bases_at(a, &s->terms[r], g, parts, bases, base[r]);
        EACH(j, FIELDS)
        EACH(r, COLUMNS)
        {
            const float16 w = field(words[r], j, base[r][j % PLACES]);
            EACH(i, ROWS)
            part[i][r] = j ? part[i][r] + x[i * FIELDS + j] * w : x[i * FIELDS + j] * w;
        }
        EACH(r, COLUMNS)
        {
            const float16 scale = spread(s->terms[r].scale + g, parts);
            EACH(i, ROWS) sum[i][r] += part[i][r] * scale;
        }
        if (minimum) {
            EACH(r, COLUMNS)
            {
                const float16 low = spread(s->terms[r].minimum + g, parts);
                EACH(i, ROWS) sum[i][r] += s->x_sum[b * ROWS + i] * low;
            }
        }
    }
}

LINEAR_INLINE float sum16(float16 v)
{
    const float8 a = v.lo + v.hi;
    const float4 b = a.lo + a.hi;
    return b.x + b.y + (b.z + b.w);
}

// ROWS rows of y, `strip` columns; at the edges the last row or column is computed again and not
// stored. Every output has one order of summation, whatever ROWS, COLUMNS and strip.
kernel void linear_cpu_codes(LINEAR_PARAMETERS, const uint strip)
{
    const linear_t a = LINEAR_ARGUMENTS;
    const uint n0 = (uint)get_group_id(0) * strip;
    const uint n_end = min(n0 + strip, n);
    const ulong m0 = m_first + get_group_id(1) * ROWS;
    const uint parts = a.groups > 1 && a.group_size < BLOCK ? BLOCK / a.group_size : 1;
    const bool bases = parts < 4 || a.zeros;
    stage_t s;
    float16 total[STRIP / COLUMNS][ROWS][COLUMNS];
    for (uint k0 = 0; k0 < k; k0 += STAGE / ROWS) {
        const uint k_end = min(k, k0 + STAGE / ROWS);
        const uint blocks = (k_end - k0 + BLOCK - 1) / BLOCK;
        const uint g0 = group_at(a, k0) & ~7u, g_end = group_at(a, k_end - 1) + 1;
        for (uint b = 0; b < blocks; b++) {
            s.group[b] = group_at(a, k0 + b * BLOCK) - g0;
            for (uint i = 0; i < ROWS; i++)
                stage_block(a, row_begin(x_rows, min(m0 + i, m - 1)), k0 + b * BLOCK,
                            &s.x[(b * ROWS + i) * FIELDS], &s.x_sum[b * ROWS + i]);
        }
        for (uint c = 0; n0 + c < n_end; c += COLUMNS) {
            for (uint r = 0; r < COLUMNS; r++) {
                for (uint g = g0; g < g_end; g += 16)
                    terms16(W)(a, min(n0 + c + r, n - 1), g, g - g0, bases, &s.terms[r]);
                // Of groups behind the row's last, which meet zeros of x.
                for (uint g = g_end - g0; g < s.group[blocks - 1] + parts; g++)
                    put_term(&s.terms[r], g, 0.0f, 0.0f);
            }
            float16 sum[ROWS][COLUMNS];
            EACH(i, ROWS) EACH(r, COLUMNS) sum[i][r] = k0 ? total[c / COLUMNS][i][r] : 0.0f;
            if (parts == 1)
                add_blocks(a, &s, n0 + c, k0, blocks, 1, true, sum);
            else if (parts == 2)
                add_blocks(a, &s, n0 + c, k0, blocks, 2, true, sum);
            else if (bases)
                add_blocks(a, &s, n0 + c, k0, blocks, 4, true, sum);
            else
                add_blocks(a, &s, n0 + c, k0, blocks, 4, false, sum);
            EACH(i, ROWS) EACH(r, COLUMNS) total[c / COLUMNS][i][r] = sum[i][r];
        }
    }
    for (uint c = 0; n0 + c < n_end; c++)
        for (uint i = 0; i < ROWS && m0 + i < m; i++)
            finish(a, m0 + i, n0 + c, k ? sum16(total[c / COLUMNS][i][c % COLUMNS]) : 0.0f);
}
