// Grouped products on wgmma, for compute capability 9.0: f16 or bf16 x and W, f32 sums. From its sm_90a
// image only; docs/matrix-units.md and docs/moe.md explain it.
//
// The rows of W are A, those of x, which are B, any multiple of 32 (16 from 128 on): a group has as few
// tiles as can be, of alike heights, and each reads its W once. A work-group has 256 rows of W, each of
// two warpgroups half of them; of gated pairs, 64 rows of the gate and the same of up. A lane has four
// neighbouring outputs of a row of x, or two of gated pairs. Of a third warpgroup, one item brings boxes
// of x and W, and one tells which tile comes next: tiles differ in time.
//
//     -DX=f16 | bf16
#define TILE_M          192
#define NV90_PAIR_HALF  (TILE_M / 2)
#define NV90_PAIR_APART 128
#include "grouped_linear/grouped_wgmma.clh"
#include "common/nv90_pair.clh"

#define UNIT(is_gated) ((is_gated) ? 16 : 32) // rows of a map's blocks
#define TEAM_ROWS  (TILE_N / 2) // of W
#define W_BYTES    (TILE_N * NV90_ROW)
#define X_MAPS     2

// ---- The item that copies. Boxes are as few as can be: the copy unit takes them one after the other.

LINEAR_INLINE void bring_part(const grouped_t g, stages_t *s, const part_t p, ulong maps,
                              bool is_gated)
{
    const uint boxes = (p.rows + BOX - 1) / BOX, many = boxes / (MANY_BOX / BOX);
    const uint unit = UNIT(is_gated), column = is_gated ? p.column / 2 : p.column;
    const uint at = (p.group - g.first) * g.blocks + column / unit;
    const ulong w_map = maps + X_MAPS * NV90_MAP_BYTES;
    for (uint k = p.k; k < p.k_end; k += TILE_K) {
        const uint to = s->tiles + s->slot * STAGE, full = s->full + s->slot * 8;
        nv90_barrier_wait(s->free + s->slot * 8, s->phase ^ 1);
        nv90_barrier_expect(full, boxes * BOX * NV90_ROW + W_BYTES);
        nv90_box_units(to + X_BYTES, w_map, k, at, full);
        if (is_gated)
            nv90_box_units(to + X_BYTES + W_BYTES / 2, w_map + NV90_MAP_BYTES, k, at, full);
        _Pragma("unroll 1")
        for (uint i = 0; i < many; i++)
            nv90_box_rows(to + i * MANY_BOX * NV90_ROW, maps + NV90_MAP_BYTES, k,
                          p.begin + i * MANY_BOX, full);
        _Pragma("unroll 1")
        for (uint i = many * (MANY_BOX / BOX); i < boxes; i++)
            nv90_box_rows(to + i * BOX * NV90_ROW, maps, k, p.begin + i * BOX, full);
        next_stage(s);
    }
}

// ---- The end of sums

// What a lane has of a tile: from `column` on four outputs, or two of gated pairs, of rows row, row + 1,
// row + 8, row + 9 ... which begin at y + row * pitch.
typedef struct {
    uint group, column, row, rows;
    bool in;    // whether the outputs are
    bool first; // or only part of K, which gets no bias
    ulong y;
} share_t;

LINEAR_INLINE share_t share_of(const grouped_t g, const end_t e, const part_t p)
{
    // ptxas must not know that the item is always the same, or it keeps what it makes of it.
    uint item = (uint)get_local_id(0);
    asm volatile("" : "+r"(item));
    const uint team = item / 128, warp = item % 128 / 32;
    const uint each = e.is_gated ? 2 : 4, all = e.is_gated ? 2 : 1;
    const uint column = (p.column + team * TEAM_ROWS) / all + warp * 8 * each + item % 32 / 4 * each;
    share_t s = {p.group, column, item % 4 * 2, p.rows, column < g.columns / all, p.way == 0, 0};
    s.y = e.y_rows.offset + ((ulong)p.way * g.rows + p.begin) * e.y_rows.s0 + column;
    return s;
}

LINEAR_INLINE void store2_at(const end_t e, ulong at, float2 v)
{
    if (e.y_type == DT_F32)
        *(global float2 *)((global float *)e.y + at) = v;
    else if (e.y_type == DT_F16)
        *(global uint *)((global ushort *)e.y + at) = nv_float2_to_f16x2(v.x, v.y);
    else
        *(global uint *)((global ushort *)e.y + at) = nv_float2_to_bf16x2(v.x, v.y);
}

LINEAR_INLINE float2 bias2_of(global const void *bias, uint type, const rows_t rows, uint group,
                              uint c)
{
    return (float2)(bias_of(bias, type, rows, group, c), bias_of(bias, type, rows, group, c + 1));
}

// Sums of row 8 j + e of this lane: of both h in product b.
LINEAR_INLINE float2 two_of(const float *sums, uint b, uint j, uint e)
{
    const float *at = sums + b * NV90_PAIR_HALF + j * 4 + e;
    return (float2)(at[0], at[2]);
}

// A branch for each 32 rows, of all lanes alike, so that what is not there takes no time.
#define EACH_ROW(s)                                                                                \
    UNROLL                                                                                         \
    for (uint at = 0; at < TILE_M / 8; at += 4)                                                    \
        if (at * 8 < (s).rows)                                                                     \
            UNROLL                                                                                 \
    for (uint j = at; j < at + 4; j++)                                                             \
        UNROLL                                                                                     \
        for (uint i = 0; i < 2; i++)                                                               \
            if (j * 8 + (s).row + i < (s).rows)

LINEAR_INLINE void store_plain(const end_t e, const float *sums, const share_t s)
{
    const uint type = s.first ? e.bias_type : 0;
    const float4 b = (float4)(bias2_of(e.bias, type, e.bias_rows, s.group, s.column),
                              bias2_of(e.bias, type, e.bias_rows, s.group, s.column + 2));
    ulong y = s.y + s.row * e.y_rows.s0;
    EACH_ROW(s)
        store4_at(e, y + (j * 8 + i) * e.y_rows.s0,
                  (float4)(two_of(sums, 0, j, i), two_of(sums, 1, j, i)) + b);
}

LINEAR_INLINE float2 silu2(const end_t e, float2 g, float2 u)
{
    const float2 sigmoid = e.y_type == DT_F32
                               ? (float2)(nv_sigmoid(g.x), nv_sigmoid(g.y))
                               : (float2)(nv_sigmoid_short(g.x), nv_sigmoid_short(g.y));
    return u * g * sigmoid;
}

// Activations but SiLU, from one place of code for all sums.
LINEAR_INLINE void store_any_gated(const end_t e, const float *sums, const share_t s, float2 bias,
                                   float2 up_bias)
{
    _Pragma("unroll 1")
    for (uint pass = 0; pass < TILE_M / 4; pass++) {
        const uint row = pass / 2 * 8 + s.row + pass % 2;
        float2 gate = bias, up = up_bias;
        UNROLL
        for (uint j = 0; j < TILE_M / 4; j++)
            if (j == pass) {
                gate += two_of(sums, 0, j / 2, j % 2);
                up += two_of(sums, 1, j / 2, j % 2);
            }
        _Pragma("unroll 1")
        for (uint i = 0; i < 2; i++) {
            gate = (float2)(gate.y, gated(e.activation, gate.x, up.x, e.limit, e.alpha));
            up = up.yx;
        }
        if (row < s.rows)
            store2_at(e, s.y + row * e.y_rows.s0, gate);
    }
}

LINEAR_INLINE void store_gated(const end_t e, const float *sums, const share_t s)
{
    const float2 bias = bias2_of(e.bias, e.bias_type, e.bias_rows, s.group, s.column);
    const float2 up_bias =
        bias2_of(e.up_bias, e.up_bias_type, e.up_bias_rows, s.group, s.column);
    if (e.activation != SILU) {
        store_any_gated(e, sums, s, bias, up_bias);
        return;
    }
    EACH_ROW(s)
        store2_at(e, s.y + (j * 8 + s.row + i) * e.y_rows.s0,
                  silu2(e, two_of(sums, 0, j, i) + bias, two_of(sums, 1, j, i) + up_bias));
}

LINEAR_INLINE void store_zeros(const end_t e, const share_t s)
{
    for (uint row = s.row; row < s.rows; row += row % 2 ? 7 : 1)
        store4_at(e, s.y + row * e.y_rows.s0, (float4)(0.0f));
}

// ---- The warpgroups that multiply

MULTIPLY_PAIR(32)
MULTIPLY_PAIR(64)
MULTIPLY_PAIR(96)
MULTIPLY_PAIR(128)
MULTIPLY_PAIR(144)
MULTIPLY_PAIR(160)
MULTIPLY_PAIR(176)
MULTIPLY_PAIR(192)

LINEAR_INLINE void multiply_part(float *sums, stages_t *s, uint rows, uint k, uint w_at)
{
#define MULTIPLY(n, fewer)                                                                         \
    if (rows > (fewer))                                                                            \
        multiply_pair_##n(sums, s, k, w_at, 0);                                                    \
    else
    MULTIPLY(192, 176) MULTIPLY(176, 160) MULTIPLY(160, 144) MULTIPLY(144, 128) MULTIPLY(128, 96)
    MULTIPLY(96, 64) MULTIPLY(64, 32) multiply_pair_32(sums, s, k, w_at, 0);
}

LINEAR_INLINE void multiply_parts(const grouped_t g, const end_t e, stages_t s, told_t t)
{
    const uint w_at = X_BYTES + nv90_uniform((uint)get_local_id(0) / 128) * (TEAM_ROWS / 2 * NV90_ROW);
    for (;;) {
        const part_t p = hear_part(&t);
        if (p.rows == 0)
            break;
        float sums[NV90_PAIR_SUMS];
        UNROLL
        for (uint i = 0; i < NV90_PAIR_SUMS; i++)
            sums[i] = 0.0f;
        if (p.group != g.empty)
            multiply_part(sums, &s, p.rows, p.k_end - p.k, w_at);
        // What else a tile needs is read again: beside the sums there are no registers for it.
        const share_t share = share_of(g, e, t.parts[t.slot]);
        nv90_warp_sync();
        if (get_local_id(0) % 32 == 0)
            free_part(&t);
        next_told(&t);
        if (!share.in)
            continue;
        if (share.group == g.empty)
            store_zeros(e, share);
        else if (e.is_gated)
            store_gated(e, sums, share);
        else
            store_plain(e, sums, share);
    }
}

// ---- Kernels

LINEAR_INLINE void make_maps(uint map, const grouped_t g, const sources_t from, bool is_gated)
{
    const uint unit = UNIT(is_gated);
    nv90_map_rows(map, from.x, g.k, g.rows, from.x_pitch, BOX);
    nv90_map_rows(map + NV90_MAP_BYTES, from.x, g.k, g.rows, from.x_pitch, MANY_BOX);
    map += X_MAPS * NV90_MAP_BYTES;
    nv90_map_units(map, from.w, g.k, from.w_rows / unit, from.w_pitch, unit);
    nv90_map_units(map + NV90_MAP_BYTES, from.up, g.k, from.up_rows / unit, from.w_pitch, unit);
}

LINEAR_INLINE void bring_parts(const grouped_t g, stages_t s, told_t t, ulong maps, bool is_gated)
{
    for (;;) {
        const part_t p = hear_part(&t);
        if (p.rows == 0)
            break;
        free_part(&t);
        next_told(&t);
        if (p.group != g.empty)
            bring_part(g, &s, p, maps, is_gated);
    }
}

LINEAR_INLINE void run(const grouped_t g, const end_t e, const sources_t from, const locals_t l)
{
    const uint item = (uint)get_local_id(0), map = (uint)(size_t)l.maps;
    const stages_t s = stages_of(l);
    const told_t t = told_of(l);
    init_barriers(s, t);
    if (item == 256) {
        *l.slot = nv90_take_slot();
        make_maps(map, g, from, e.is_gated);
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    if (item < 256) {
        nv90_registers_up(232);
        multiply_parts(g, e, s, t);
    } else {
        nv90_registers_down(40);
        if (item < 256 + 32) {
            const ulong published = nv90_map_of(*l.slot, 0);
            for (uint i = 0; i < NV90_MAPS; i++)
                nv90_map_publish(published + i * NV90_MAP_BYTES, map + i * NV90_MAP_BYTES);
            if (item == 256)
                bring_parts(g, s, t, published, e.is_gated);
        } else if (item == 256 + 32) {
            tell_parts(g, parts_of(g, (uint)get_num_groups(0)), t);
        }
    }
    // All boxes have arrived.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 256)
        nv90_give_slot(*l.slot);
}

// x: a row for each row of the groups, in their order.
kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void grouped_wgmma(GROUPED_PARAMETERS, const uint most_ways)
{
    LOCALS;
    const grouped_t g = {schedule, schedule_groups, first, last, rows, empty, n, k,
                         n / UNIT(false), most_ways};
    const end_t e = {.bias = bias, .bias_rows = bias_rows, .bias_type = bias_type,
                     .y = y, .y_rows = y_rows, .y_type = y_type, .is_gated = false};
    const uint w_rows = (min(last, empty) - first) * n;
    const sources_t from = {.x = (global const ushort *)x + x_rows.offset, .x_pitch = x_rows.s0 * 2,
                            .w = data, .up = data, .w_pitch = pitch,
                            .w_rows = w_rows, .up_rows = w_rows};
    run(g, e, from, LOCALS_ARGUMENT);
}

kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void grouped_wgmma_gated(GROUPED_PARAMETERS, GATED_PARAMETERS)
{
    LOCALS;
    const grouped_t g = {schedule, schedule_groups, first, last, rows, empty, 2 * outputs, k,
                         n / step / UNIT(true), 1};
    const end_t e = {.bias = bias, .bias_rows = bias_rows, .bias_type = bias_type,
                     .up_bias = up_bias, .up_bias_rows = up_bias_rows, .up_bias_type = up_bias_type,
                     .y = y, .y_rows = y_rows, .y_type = y_type, .is_gated = true,
                     .activation = activation, .limit = limit, .alpha = alpha};
    const uint w_rows = (min(last, empty) - first) * n; // of which every step-th is one map's
    const sources_t from = {.x = (global const ushort *)x + x_rows.offset, .x_pitch = x_rows.s0 * 2,
                            .w = data, .up = up_data + up_first * pitch, .w_pitch = pitch * step,
                            .w_rows = w_rows / step,
                            .up_rows = (w_rows - up_first + step - 1) / step};
    run(g, e, from, LOCALS_ARGUMENT);
}
