// Quantises the rows of x for W8A8, by the rule of llmk_quantize: a work-group a row. -DX=...
#define W s8
#include "common/quant.clh"
#include "linear/linear_typed.clh"
#include "linear/linear_w8a8.clh"

#define ITEMS 128

// codes_order: 0 as in x, 1 of w8a8_nv_place, 2 of w8a8_nv90_place.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
linear_w8a8_rows(LINEAR_PARAMETERS, W8A8_PARAMETERS, const uint codes_order)
{
    local float2 ranges[ITEMS];
    const linear_t a = LINEAR_ARGUMENTS;
    const uint item = get_local_id(0);
    const ulong row = m_first + get_group_id(1), begin = row_begin(x_rows, row);
    float2 range = (float2)(0.0f);
    for (uint at = item * 16; at < k; at += ITEMS * 16) {
        const float16 v = x16(a, begin, at);
        range = range_widen8(range_widen8(range, v.lo), v.hi);
    }
    ranges[item] = range;
    for (uint span = ITEMS / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < span)
            ranges[item] = range_join(ranges[item], ranges[item + span]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const quant_t t = quant_of_range(QUANT_INT8_CHANNEL, ranges[0]);
    if (item == 0)
        scales_of_x(codes, code_pitch, m)[row] = t.scale;
    global uchar *to = codes + row * code_pitch;
    for (uint at = item * 16; at < code_pitch; at += ITEMS * 16) {
        const float16 v = at < k ? x16(a, begin, at) : (float16)0.0f;
        const char8 low = convert_char8(quant_code8(t, v.lo));
        const char8 high = convert_char8(quant_code8(t, v.hi));
        if (codes_order == 2) {
            global char8 *both = (global char8 *)(to + w8a8_nv90_place(at));
            both[0] = (char8)(low.lo, high.lo);
            both[2] = (char8)(low.hi, high.hi);
        } else {
            *(global char8 *)(to + (codes_order ? w8a8_nv_place(at) : at)) = low;
            *(global char8 *)(to + (codes_order ? w8a8_nv_place(at + 8) : at + 8)) = high;
        }
    }
}
