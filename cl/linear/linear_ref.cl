// The linear layer, as the formula reads: one work-item an output, every type and layout at run
// time, any strides. Sums of 32 products are added up, which keeps the error as far below that of
// one long sum as the other variants' is.
#include "linear/linear_nv.clh"

// llmk_layout_id of src/core/weights.h.
enum {
    LAYOUT_F32 = 1,
    LAYOUT_F16 = 2,
    LAYOUT_BF16 = 3,
    LAYOUT_S8 = 4,
    LAYOUT_U4 = 5,
    LAYOUT_Q6_K = 6,
    LAYOUT_Q4_K = 7,
    LAYOUT_U4_NV = 16,
    LAYOUT_S8_NV = 17
};

// Weight k of row n in the layouts that have blocks of rows.
static inline float nv_weight(const linear_t a, uint layout, uint n, uint k)
{
    const uint g = group_at(a, k), k8 = k & ~7u;
    const float2 scale = nv_scale_at(a, n, g);
    if (layout == LAYOUT_S8_NV) {
        const uint2 codes = s8_nv_codes8(a, n, k8);
        const int q = (char)((k & 4 ? codes.y : codes.x) >> k % 4 * 8);
        return ((float)q - s8_nv_zero_at(a, n, g)) * scale.x;
    }
    const int q = u4_nv_codes8(a, n, k8) >> k % 8 * 4 & 15;
    return ((float)q - u4_nv_zero_at(a, n, g)) * scale.x + scale.y;
}


static inline float weight(const linear_t a, uint layout, uint n, uint k)
{
    global const uchar *row = a.data + n * a.pitch;
    if (layout == LAYOUT_F32)
        return load_any(row, DT_F32, k);
    if (layout == LAYOUT_F16)
        return load_any(row, DT_F16, k);
    if (layout == LAYOUT_BF16)
        return load_any(row, DT_BF16, k);
    if (layout >= LAYOUT_U4_NV)
        return nv_weight(a, layout, n, k);
    const uint g = group_at(a, k);
    const float2 scale = layout == LAYOUT_Q4_K   ? q4_k_scale_at(a, n, g)
                         : layout == LAYOUT_Q6_K ? q6_k_scale_at(a, n, g)
                                                 : scale_at(a, n, g);
    if (layout == LAYOUT_S8)
        return ((float)((global const char *)row)[k] - s8_zero_at(a, n, g)) * scale.x;
    if (layout == LAYOUT_U4 || layout == LAYOUT_Q4_K) {
        const int q = row[k / 2] >> (k % 2 * 4) & 15;
        return ((float)q - u4_zero_at(a, n, g)) * scale.x + scale.y;
    }
    row += k / 64 * 48; // 64 times 4 bits, then 64 times 2
    const int low = row[k % 64 / 2] >> (k % 2 * 4) & 15;
    const int high = row[32 + k % 64 / 4] >> (k % 4 * 2) & 3;
    return ((float)(low | high << 4) - a.zero) * scale.x;
}

kernel void linear_ref(LINEAR_PARAMETERS, const uint layout)
{
    const linear_t a = LINEAR_ARGUMENTS;
    const uint column = get_global_id(0);
    const ulong row = m_first + get_global_id(1);
    if (column >= n)
        return;
    const ulong begin = row_begin(x_rows, row);
    float sum = 0.0f;
    for (uint k0 = 0; k0 < k; k0 += 32) {
        float part = 0.0f;
        for (uint i = k0; i < min(k0 + 32, k); i++)
            part += load_any(x, x_type, begin + column_of(a, i) * x_rows.inner) *
                    weight(a, layout, column, i);
        sum += part;
    }
    finish(a, row, column, sum);
}
