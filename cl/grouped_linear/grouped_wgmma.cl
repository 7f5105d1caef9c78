// Grouped products on wgmma, for compute capability 9.0 and groups of many rows: f16 or bf16 x and
// W, f32 sums. From its sm_90a image only; docs/matrix-units.md and docs/moe.md explain it.
//
// A work-group is three warpgroups: two multiply; of the third, one item brings boxes of x and W, and
// one tells which tile comes next (tiles differ in time): up to 128 rows of a group and 256 rows of
// its expert's W. Where a tile has more than 64 rows, the two multiply 64 rows each with all of W's;
// else both multiply the same rows, each with half of W's.
//
// Of gated pairs, the rows of W are those of 32 outputs of the gate, the same of up, and so on: a lane
// has the gate and the up of the same outputs.
//
//     -DX=f16 | bf16
#include "grouped_linear/grouped_wgmma.clh"

#define HALF (TILE_M / 2)

// ---- The item that copies

LINEAR_INLINE void bring_part(const grouped_t g, stages_t *s, const part_t p, ulong maps,
                              bool is_gated)
{
    const uint x_boxes = (p.rows + BOX - 1) / BOX;
    const uint w_boxes = min(p.width, g.columns - p.column) / BOX;
    const uint block = (p.group - g.first) * g.blocks + p.column / BOX / (is_gated ? 2 : 1);
    for (uint k = 0; k < g.k; k += TILE_K) {
        const uint to = s->tiles + s->slot * STAGE, full = s->full + s->slot * 8;
        nv90_barrier_wait(s->free + s->slot * 8, s->phase ^ 1);
        nv90_barrier_expect(full, (x_boxes + w_boxes) * BOX_BYTES);
        for (uint i = 0; i < w_boxes; i++) {
            const ulong map = maps + (1 + (is_gated ? i % 2 : 0)) * NV90_MAP_BYTES;
            nv90_box_columns(to + X_BYTES + i * BOX_BYTES, map, k, block + (is_gated ? i / 2 : i),
                             full);
        }
        for (uint i = 0; i < x_boxes; i++)
            nv90_box_rows(to + i * BOX_BYTES, maps, k, p.begin + i * BOX, full);
        next_stage(s);
    }
}

// ---- The end of sums

// What a lane has of a tile.
typedef struct {
    uint group;
    uint column, width; // the first output, and how many there are from the warpgroup's first on
    ulong y[2];         // where it lies: of a row, and of the row 8 further
    bool in[2];         // whether the rows are
} share_t;

LINEAR_INLINE share_t share_of(const grouped_t g, const end_t e, const part_t p)
{
    const uint item = (uint)get_local_id(0), team = item / 128, lane = item % 128;
    const bool high = p.rows > HALF;
    const uint row = lane / 32 * 16 + lane % 32 / 4 + (high ? team * HALF : 0);
    const uint width = high ? p.width : p.width / 2, column = p.column + (high ? 0 : team * width);
    const uint left = g.columns - min(column, g.columns), outputs = e.is_gated ? 2 : 1;
    share_t s = {p.group, column / outputs + lane % 4 * 8, min(width, left) / outputs, {0, 0}, {0, 0}};
    UNROLL
    for (uint i = 0; i < 2; i++) {
        s.in[i] = row + i * 8 < p.rows;
        s.y[i] = row_begin(e.y_rows, p.begin + min(row + i * 8, p.rows - 1)) + s.column;
    }
    return s;
}

LINEAR_INLINE void store8_at(const end_t e, ulong at, float8 v)
{
    if (e.y_type == DT_F32)
        f32_store8((global float *)e.y, at, v);
    else if (e.y_type == DT_F16)
        *(global uint4 *)((global ushort *)e.y + at) = f16_pack8(v);
    else
        *(global uint4 *)((global ushort *)e.y + at) = bf16_pack8(v);
}

// The sums lie in registers, which must be named by constants: eight number f of 16, of the first row
// where f is even; of gated pairs the up products are those two after the gate's. In memory, block
// b of 32 outputs.
#define EACH_EIGHT(f, b, s, is_gated)                                                              \
    UNROLL                                                                                         \
    for (uint f = 0, b = 0; f < TILE_N / 16; f++, b = (is_gated) ? f / 4 : f / 2)                  \
        if (!((is_gated) && f / 2 % 2) && b * 32 < (s).width && (s).in[f % 2])

#define STORE_EIGHTS(STORE, is_gated)                                                              \
    EACH_EIGHT(f, b, s, is_gated)                                                                  \
        STORE(e.y, s.y[f % 2] + b * 32, eight_of(sums, f))
#define STORE_F32(y, at, v)  f32_store8((global float *)(y), at, v)
#define STORE_F16(y, at, v)  *(global uint4 *)((global ushort *)(y) + (at)) = f16_pack8(v)
#define STORE_BF16(y, at, v) *(global uint4 *)((global ushort *)(y) + (at)) = bf16_pack8(v)

LINEAR_INLINE void set_eight(float *sums, uint f, float8 v)
{
    float *at = sums + f / 2 * 16 + f % 2 * 2;
    at[0] = v.s0, at[1] = v.s1, at[4] = v.s2, at[5] = v.s3;
    at[8] = v.s4, at[9] = v.s5, at[12] = v.s6, at[13] = v.s7;
}
#define SILU8(sigmoid, g, u)                                                                       \
    ((u) * (g) * (float8)(sigmoid((g).s0), sigmoid((g).s1), sigmoid((g).s2), sigmoid((g).s3),      \
                          sigmoid((g).s4), sigmoid((g).s5), sigmoid((g).s6), sigmoid((g).s7)))

LINEAR_INLINE float8 pick_eight(const float *sums, uint which)
{
    float8 v = (float8)(0.0f);
    UNROLL
    for (uint f = 0; f < TILE_N / 16; f++)
        if (f == which)
            v = eight_of(sums, f);
    return v;
}

// Any activation and biases, from one place of code for all sums.
LINEAR_INLINE void store_any_part(const end_t e, const float *sums, const share_t s)
{
    _Pragma("unroll 1")
    for (uint pass = 0; pass < (e.is_gated ? TILE_N / 32 : TILE_N / 16); pass++) {
        const uint b = pass / 2, column = s.column + b * 32;
        if (b * 32 >= s.width)
            break;
        float8 v = pick_eight(sums, e.is_gated ? b * 4 + pass % 2 : pass);
        float8 up = e.is_gated ? pick_eight(sums, b * 4 + 2 + pass % 2) : v;
        _Pragma("unroll 1")
        for (uint i = 0; i < 8; i++) {
            float one =
                v.s0 + bias_of(e.bias, e.bias_type, e.bias_rows, s.group, column + i);
            if (e.is_gated)
                one = gated(e.activation, one,
                            up.s0 + bias_of(e.up_bias, e.up_bias_type, e.up_bias_rows, s.group,
                                            column + i),
                            e.limit, e.alpha);
            v = (float8)(v.s123, v.s4567, one);
            up = up.s12345670;
        }
        if (pass % 2 == 0 ? s.in[0] : s.in[1])
            store8_at(e, (pass % 2 == 0 ? s.y[0] : s.y[1]) + b * 32, v);
    }
}

LINEAR_INLINE void store_part(const end_t e, float *sums, const share_t s)
{
    if (e.bias_type || (e.is_gated && (e.up_bias_type || e.activation != SILU))) {
        store_any_part(e, sums, s);
        return;
    }
    if (e.is_gated) {
        if (e.y_type == DT_F32) {
            EACH_EIGHT(f, b, s, true)
                set_eight(sums, f, SILU8(nv_sigmoid, eight_of(sums, f), eight_of(sums, f + 2)));
        } else {
            EACH_EIGHT(f, b, s, true)
                set_eight(sums, f,
                          SILU8(nv_sigmoid_short, eight_of(sums, f), eight_of(sums, f + 2)));
        }
    }
    if (e.y_type == DT_F32) {
        STORE_EIGHTS(STORE_F32, e.is_gated);
    } else if (e.y_type == DT_F16) {
        STORE_EIGHTS(STORE_F16, e.is_gated);
    } else {
        STORE_EIGHTS(STORE_BF16, e.is_gated);
    }
}

LINEAR_INLINE void store_zeros(const end_t e, const share_t s)
{
    for (uint b = 0; b * 32 < s.width; b++)
        for (uint i = 0; i < 2; i++)
            if (s.in[i])
                store8_at(e, s.y[i] + b * 32, (float8)(0.0f));
}

// ---- The warpgroups that multiply

LINEAR_INLINE void multiply_parts(const grouped_t g, const end_t e, stages_t s, told_t t)
{
    const uint team = (uint)get_local_id(0) / 128;
    for (;;) {
        const part_t p = hear_part(&t);
        if (p.width == 0)
            break;
        if (p.group == g.empty) {
            nv90_warp_sync();
            if (get_local_id(0) % 32 == 0)
                free_part(&t);
            next_told(&t);
            store_zeros(e, share_of(g, e, p));
            continue;
        }
        const bool high = p.rows > HALF;
        const uint width = high ? p.width : p.width / 2;
        const uint x_at = high ? team * (HALF * NV90_ROW) : 0;
        const uint w_at = X_BYTES + (high ? 0 : team * width * NV90_ROW);
        float sums[TILE_N / 2];
        UNROLL
        for (uint i = 0; i < TILE_N / 2; i++)
            sums[i] = 0.0f;
        if (width == 256)
            multiply_tile_256(sums, &s, g.k, x_at, w_at);
        else if (width == 128)
            multiply_tile_128(sums, &s, g.k, x_at, w_at);
        else
            multiply_tile_64(sums, &s, g.k, x_at, w_at);
        if (get_local_id(0) % 32 == 0)
            free_part(&t);
        next_told(&t);
        store_part(e, sums, share_of(g, e, p));
    }
}

// ---- Kernels

LINEAR_INLINE void make_maps(uint map, const grouped_t g, const sources_t from, bool is_gated)
{
    nv90_map_rows(map, from.x, g.k, g.rows, from.x_pitch, BOX);
    nv90_map_columns(map + NV90_MAP_BYTES, from.w, g.k, from.w_rows / BOX, from.w_pitch, 1);
    nv90_map_columns(map + 2 * NV90_MAP_BYTES, from.up, g.k, from.up_rows / BOX, from.w_pitch, 1);
}

#define UNIT(is_gated) BOX
#define BALANCED       0
#define CUT_FOR        (uint)get_num_groups(0)
#define NAME           grouped_wgmma
#define NAME_GATED     grouped_wgmma_gated
#include "grouped_linear/grouped_wgmma_kernels.clh"
