// Grouped products on wgmma for weights of 4 or 8 bits, for compute capability 9.0, from its sm_90a
// image only: the loop of linear_wgmma_packed.cl, W from registers as the instruction's A, rows of x, in
// the order of the groups, as B. docs/matrix-units.md explains it.
//
// A work-group has 256 rows of W in two sides of 128: of gated pairs one is the gate's, the other up's,
// where these do not alternate. Its tile has 32, 48, 64, 96 or 128 rows of a group, whichever holds what there
// is. Of the warpgroup that does not multiply one item finds tiles and brings x, one brings codes, and a
// warp for each side what groups of weights have in common.
//
//     -DX=f16 | bf16   -DW=u4_nv | s8_nv   -DGROUPED=0 | 1 | 2
#define NV90_TYPE     X
#define FRAGMENT_TYPE X
#define FRAGMENT_MMA
#define NV90_THREE_MAPS // x, either side
#define MOST          (GROUPED == 1 ? 64 : 128)
#define STAGE_ROWS    MOST
#define PART_BYTES(h) (W_BYTES(h) / 4)
// Where sums run through all of K, a loop beside that for 128 rows waits for its products in each stage:
// ptxas finds no registers for two that do not, and then waits after each product (C7512).
#define ENDS(h)       (GROUPED || T(h) < 128)
#include "linear/linear_wgmma_packed.clh"

#define tile_at tile_of_schedule // linear_finish.clh has one, too
#include "grouped_linear/grouped_common.clh"
#undef tile_at
#include "grouped_linear/grouped_counters.clh"

#define SHAPE_OF(t) SHAPE(t, 4, 1)
#define LARGEST     SHAPE_OF(MOST)
#define MULTIPLYING (WARPS(LARGEST) * 32) // items
#define SIDE        8                     // blocks of 16 rows of W
#define SIDE_BYTES  (W_BYTES(LARGEST) / 2)
#define BOX         32 // rows of x

// Of W, for either side; an expert has `blocks`, of which a tile's begin `tile_blocks` after those of the one
// before, and those of the second side `second` further.
typedef struct {
    linear_t side[2];
    uint blocks, tile_blocks, second;
    uint last;    // block that there is
    uint columns; // tiles
} weights_t;

// ---- Which tile comes next

typedef struct {
    global const int *schedule;
    uint groups, first, last, rows, empty; // as in GROUPED_PARAMETERS
} groups_t;

// Rows of a group from `begin` on, tile number `column` of W. No rows: there is no such tile.
typedef struct {
    uint group, begin, rows, column;
} cut_t;

// In bands, column by column, as grouped_parts.clh has them. A schedule's tiles have HEIGHT rows; of two
// parts of one, first parts come first: second ones are often not there.
#define CUT_BAND 16
#define HEIGHT   128
#define PARTS    (HEIGHT / MOST)
LINEAR_INLINE uint scheduled_tiles(const groups_t g)
{
    global const int *tiles = g.schedule + g.groups + 1;
    return g.schedule ? (uint)(tiles[g.last] - tiles[g.first]) : (g.rows + HEIGHT - 1) / HEIGHT;
}
LINEAR_INLINE cut_t cut_at(const groups_t g, uint columns, uint index)
{
    const uint all = scheduled_tiles(g);
    if (index >= PARTS * all * columns)
        return (cut_t){0, 0, 0, 0};
    const uint part = PARTS > 1 ? index / (all * columns) : 0;
    index -= part * all * columns;
    const uint bands = (all + CUT_BAND - 1) / CUT_BAND, band = (all + bands - 1) / bands;
    const uint first = index / (band * columns) * band, within = index % (band * columns);
    const uint height = min(all - first, band);
    const tile_t tile = tile_of_schedule(first + within % height, g.schedule, g.groups, g.first,
                                         g.last, g.rows, HEIGHT);
    const uint before = min(tile.rows, part * MOST);
    return (cut_t){tile.group, tile.begin + before, min(tile.rows - before, (uint)MOST),
                   within / height};
}

#define TOLD 16
// Tiles that are under way are no more than stages, and one: there is always a place for the next.
typedef struct {
    local cut_t *cuts;
    uint heard; // barriers, one of each place
} cuts_t;

// ---- The warps that copy

LINEAR_INLINE uint stages_of(const linear_t a) { return (a.k + STAGE_K - 1) / STAGE_K; }
LINEAR_INLINE uint block_of_side(const groups_t g, const weights_t w, const cut_t c, uint side)
{
    return (c.group - g.first) * w.blocks + c.column * w.tile_blocks + side * w.second;
}

// While maps are made: the first codes of a tile's block are on their way.
LINEAR_INLINE void expect_first(const groups_t g, const weights_t w, uint block)
{
    const cut_t c = cut_at(g, w.columns, (uint)get_group_id(0));
    if (c.rows == 0 || c.group == g.empty)
        return;
    const uint side = block / SIDE, at = min(block_of_side(g, w, c, side) + block % SIDE, w.last);
    const ulong pitch = w.side[0].pitch;
    nv90_prefetch((side ? w.side[1].data : w.side[0].data) + at * pitch,
                  (uint)min(pitch, STAGES(LARGEST) * 1024ul));
}

#define COUNTERS(g) counters_of((g).schedule, (g).groups)

// By one item each, x and codes. The first one finds tiles. map, maps: of x, of either side.
LINEAR_INLINE void bring_x(const groups_t g, const weights_t w, stages_t s, cuts_t told, ulong map)
{
    const uint h = LARGEST;
    uint index = (uint)get_group_id(0);
    for (uint number = 0;; number++) {
        cut_t c = cut_at(g, w.columns, index);
        while (PARTS > 1 && c.rows == 0 && index < PARTS * scheduled_tiles(g) * w.columns) {
            index = take_tile(COUNTERS(g), index);
            c = cut_at(g, w.columns, index);
        }
        told.cuts[number % TOLD] = c;
        nv90_barrier_arrive(told.heard + number % TOLD * 8);
        if (c.rows == 0)
            break;
        index = take_tile(COUNTERS(g), index);
        const uint boxes = c.group == g.empty ? 0 : (c.rows + BOX - 1) / BOX;
        const uint count = c.group == g.empty ? 1 : stages_of(w.side[0]);
        for (uint stage = 0; stage < count; stage++) {
            const uint to = s.tiles + s.slot * STAGE(h), full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            nv90_barrier_expect(full, boxes * (BOX * STAGE_K * 2));
            _Pragma("unroll 1")
            for (uint i = 0; i < boxes; i++)
                for (uint part = 0; part < STAGE_K; part += 64)
                    nv90_box_rows(to + part * (MOST * 2) + i * (BOX * NV90_ROW), map,
                                  stage * STAGE_K + part, c.begin + i * BOX, full);
            s = next_stage(s, h);
        }
    }
    end_tiles(COUNTERS(g));
    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
    nv90_barrier_arrive(s.full + s.slot * 8);
}

LINEAR_INLINE cut_t hear_cut(cuts_t told, uint number)
{
    nv90_barrier_wait(told.heard + number % TOLD * 8, number / TOLD % 2);
    return told.cuts[number % TOLD];
}

LINEAR_INLINE void bring_codes(const groups_t g, const weights_t w, stages_t s, cuts_t told,
                                   ulong maps)
{
    const uint h = LARGEST;
    for (uint number = 0;; number++) {
        const cut_t c = hear_cut(told, number);
        if (c.rows == 0)
            break;
        const bool empty = c.group == g.empty;
        const uint gate = block_of_side(g, w, c, 0), other = block_of_side(g, w, c, 1);
        const uint count = empty ? 1 : stages_of(w.side[0]);
        for (uint stage = 0; stage < count; stage++) {
            const uint to = s.tiles + s.slot * STAGE(h) + X_BYTES(h), full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            nv90_barrier_expect(full, empty ? 0 : W_BYTES(h));
            if (!empty) {
                nv90_box_codes(to, maps, stage * 2, gate, full);
                nv90_box_codes(to + SIDE_BYTES, maps + NV90_MAP_BYTES, stage * 2, other, full);
            }
            s = next_stage(s, h);
        }
    }
    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
    nv90_barrier_arrive(s.full + s.slot * 8);
}

// A tile's groups are soon to be asked for, those of a side's block by each of eight lanes.
LINEAR_INLINE void expect_groups(const linear_t a, uint block)
{
    const uint bytes = a.scale_kind == SCALE_F32 ? 64 : 32, zero_bytes = W_IS_U4 ? 8 : 16;
    const ulong first = (ulong)block * a.groups;
    nv90_prefetch(a.scales + first * bytes, a.groups * bytes);
    if (a.zeros && (zero_bytes == 16 || a.groups % 2 == 0))
        nv90_prefetch(a.zeros + first * zero_bytes, a.groups * zero_bytes);
}

// By a warp for a side, of whose blocks a lane has every fourth. A stage's are asked for before those of the
// one before it are wanted.
LINEAR_INLINE void bring_groups(const groups_t g, const weights_t w, const uint side, stages_t s,
                                    cuts_t told)
{
    const uint h = LARGEST, lane = (uint)get_local_id(0) % 32;
    linear_t a = w.side[side];
    if (GROUPED == 2)
        a.scale_kind = SCALE_F16;
    for (uint number = 0;; number++) {
        const cut_t c = hear_cut(told, number);
        if (c.rows == 0)
            break;
        const bool empty = c.group == g.empty;
        const uint count = empty ? 1 : stages_of(a), first = block_of_side(g, w, c, side);
        uint unit[2] = {0x3c003c00u, 0x3c003c00u}; // 1
        uint from[2] = {0, 0};
        raw_group raw[2], next[2];
        if (!empty) {
            if (GROUPED && lane < SIDE)
                expect_groups(a, min(first + lane, w.last));
            UNROLL
            for (uint j = 0; j < 2; j++) {
                from[j] = min(first + lane / 8 + j * 4, w.last) * a.groups * 8 + lane % 8;
                next[j] = raw_of(a, from[j]);
            }
        }
        for (uint stage = 0; stage < count; stage++) {
            const uint to = s.tiles + s.slot * STAGE(h) + COPIED(h) + side * 1024 + lane * 16;
            const uint group = group_of_k(a, min(stage + 1, count - 1) * STAGE_K);
            UNROLL
            for (uint j = 0; j < 2; j++) {
                raw[j] = next[j];
                if (GROUPED && !empty)
                    next[j] = raw_of(a, from[j] + group * 8);
            }
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            UNROLL
            for (uint j = 0; j < 2 && !empty; j++)
                nv90_put(to + j * 512, record_of(a, raw[j], unit + j));
            nv90_warp_sync();
            if (lane == 0)
                nv90_barrier_arrive(s.full + s.slot * 8);
            s = next_stage(s, h);
        }
    }
    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
    if (lane == 0)
        nv90_barrier_arrive(s.full + s.slot * 8);
}

// ---- The end of a tile

#include "grouped_linear/grouped_wgmma_end.clh"

// The two warps whose rows of W are of the gate and of up.
static inline void sync_pair(uint warp)
{
    asm volatile("bar.sync %0, 64;" ::"r"(1 + warp % SIDE) : "memory");
}

LINEAR_INLINE float4 get4(local const float *from) { return *(local const float4 *)from; }
LINEAR_INLINE float4 bias4_of(global const void *bias, uint type, const rows_t rows, uint group,
                              uint c)
{
    if (type == 0)
        return (float4)(0.0f);
    const ulong at = rows.offset + group * rows.s0 + c * rows.inner, next = rows.inner;
    return (float4)(load_any(bias, type, at), load_any(bias, type, at + next),
                    load_any(bias, type, at + 2 * next), load_any(bias, type, at + 3 * next));
}
// Rows of y, and those of biases, have one stride.
LINEAR_INLINE ulong y_of(const end_t e, uint row) { return e.y_rows.offset + row * e.y_rows.s0; }
LINEAR_INLINE float4 gated4(const end_t e, float4 gate, float4 up)
{
    if (e.activation == SILU) {
        float4 s;
        if (e.y_type == DT_F32)
            s = (float4)(nv_sigmoid(gate.x), nv_sigmoid(gate.y), nv_sigmoid(gate.z),
                         nv_sigmoid(gate.w));
        else
            s = (float4)(nv_sigmoid_short(gate.x), nv_sigmoid_short(gate.y),
                         nv_sigmoid_short(gate.z), nv_sigmoid_short(gate.w));
        return up * gate * s;
    }
    _Pragma("unroll 1")
    for (uint i = 0; i < 4; i++) { // from one place of code
        gate = (float4)(gate.yzw, gated(e.activation, gate.x, up.x, e.limit, e.alpha));
        up = up.yzwx;
    }
    return gate;
}

// A row of x and four outputs of a patch, or of the gate's and up's patches, are a lane's.
LINEAR_INLINE void store_gated(const end_t e, const cut_t c, uint from, uint warp, uint lane,
                               local const float *patches)
{
    local const float *patch = patches + warp % SIDE * PATCH_SIZE;
    uint row, f;
    float4 gate, up;
    if (e.alternate) {
        patch = patches + warp * PATCH_SIZE + lane / 2 * PATCH_PITCH + lane % 2 * 8;
        const float4 a = get4(patch), b = get4(patch + 4);
        gate = (float4)(a.even, b.even);
        up = (float4)(a.odd, b.odd);
        row = lane / 2;
        f = c.column * (SIDE * 16) + warp * 8 + lane % 2 * 4;
    } else {
        row = warp / SIDE * 8 + lane / 4;
        patch += row * PATCH_PITCH + lane % 4 * 4;
        gate = get4(patch);
        up = get4(patch + SIDE * PATCH_SIZE);
        f = c.column * (SIDE * 16) + warp % SIDE * 16 + lane % 4 * 4;
    }
    row += from;
    if (row >= c.rows || f >= e.outputs)
        return;
    gate += bias4_of(e.bias, e.bias_type, e.bias_rows, c.group, f);
    up += bias4_of(e.up_bias, e.up_bias_type, e.up_bias_rows, c.group, f);
    store4_at(e, y_of(e, c.begin + row) + f, gated4(e, gate, up));
}

LINEAR_INLINE void store_sums(const end_t e, const cut_t c, uint from, uint warp, uint lane,
                               local const float *patches)
{
    const uint f = c.column * (2 * SIDE * 16) + warp * 16 + lane % 4 * 4;
    local const float *patch = patches + warp * PATCH_SIZE + lane % 4 * 4;
    const float4 b = bias4_of(e.bias, e.bias_type, e.bias_rows, c.group, min(f, e.outputs - 4));
    _Pragma("unroll 1")
    for (uint row = lane / 4; row < PATCH && from + row < c.rows; row += 8)
        if (f < e.outputs)
            store4_at(e, y_of(e, c.begin + from + row) + f, get4(patch + row * PATCH_PITCH) + b);
}

LINEAR_INLINE void sync_warps(const end_t e, uint warp)
{
    if (e.is_gated && !e.alternate)
        sync_pair(warp);
    else
        nv90_warp_sync();
}

// Sixteen rows of x at a time, from one place of code.
LINEAR_INLINE void store_all(const end_t e, const cut_t c, const float *total,
                             local float *patches, const uint h)
{
    _Pragma("unroll 1")
    for (uint from = 0; from < c.rows; from += PATCH) {
        const uint item = hidden((uint)get_local_id(0)), lane = item % 32, warp = item / 32;
        UNROLL
        for (uint i = 0; i < T(h); i += PATCH)
            if (i == from)
                put_patch(total + i / 2, patches + warp * PATCH_SIZE, lane);
        sync_warps(e, warp);
        if (e.is_gated)
            store_gated(e, c, from, warp, lane, patches);
        else
            store_sums(e, c, from, warp, lane, patches);
        sync_warps(e, warp);
    }
}

// Rows that no expert has.
LINEAR_INLINE void store_zeros(const end_t e, const cut_t c)
{
    const uint item = (uint)get_local_id(0);
    const uint f = c.column * (2 * SIDE * 16) + item % (4 * SIDE * 2) * 4;
    for (uint row = item / (4 * SIDE * 2); row < c.rows && f < e.outputs;
         row += MULTIPLYING / (4 * SIDE * 2))
        store4_at(e, y_of(e, c.begin + row) + f, (float4)(0.0f));
}

// ---- The warpgroups that multiply

LINEAR_INLINE void multiply_cut(const linear_t a, const end_t e, stages_t *s, lane_t l,
                                cuts_t told, uint number, local float *patches, const uint h)
{
    float sums[MOST / 2], totals[GROUPED == 1 ? MOST / 2 : 1]; // of which T(h) / 2 are used
    float *total = GROUPED == 1 ? totals : sums;
    UNROLL
    for (uint i = 0; i < T(h) / 2; i++)
        sums[i] = 0.0f;
    sum_stages(a, stages_of(a), s, l, sums, total, h);
    // Sums are scaled before what the end needs is found: there are no registers for both.
    uint scaled[MOST / 2];
    UNROLL
    for (uint i = 0; i < T(h) / 2; i++)
        scaled[i] = as_uint(total[i]);
    nv90_make_first(a.pitch == 0, s->full, scaled, GROUPED ? 0 : T(h) / 2);
    store_all(e, told.cuts[hidden(number) % TOLD], total, patches, h);
}

LINEAR_INLINE void multiply_cuts(const groups_t g, const linear_t a, const end_t e, stages_t s,
                                 cuts_t told, local float *patches)
{
    const uint h = LARGEST, item = (uint)get_local_id(0), lane = item % 32, warp = item / 32;
    const uint row = warp % SIDE * 4 + lane / 8; // of 128 bytes, of two rows of W
    const lane_t l = {X_BYTES(h) + warp / SIDE * SIDE_BYTES + nv90_quad_word(row, lane),
                      COPIED(h) + (warp * 8 + lane / 4) * 16, pairs_of(lane),
                      nv90_descriptor(s.tiles)};
    for (uint number = 0;; number++) {
        nv90_barrier_wait(s.full + s.slot * 8, s.phase);
        local const cut_t *cut = told.cuts + number % TOLD;
        const uint rows = nv90_uniform(cut->rows);
        if (rows == 0)
            break;
        if (nv90_uniform(cut->group) == g.empty) {
            leave_stage(&s);
            s = next_stage(s, h);
            store_zeros(e, *cut);
        } else if (rows <= 32) {
            multiply_cut(a, e, &s, l, told, number, patches, SHAPE_OF(32));
        } else if (rows <= 48) {
            multiply_cut(a, e, &s, l, told, number, patches, SHAPE_OF(48));
        } else if (rows <= 64) {
            multiply_cut(a, e, &s, l, told, number, patches, SHAPE_OF(64));
#if GROUPED != 1
        } else if (rows <= 96) {
            multiply_cut(a, e, &s, l, told, number, patches, SHAPE_OF(96));
        } else {
            multiply_cut(a, e, &s, l, told, number, patches, SHAPE_OF(128));
#endif
        }
    }
}

// ---- Kernels

LINEAR_INLINE void run(const groups_t g, const weights_t w, const end_t e, stages_t s, cuts_t told,
                       local float *patches, uint map, local uint *slot)
{
    const linear_t a = w.side[0];
    const uint item = hidden((uint)get_local_id(0)), h = LARGEST;
    if (item < STAGES(h)) {
        nv90_barrier_init(s.full + item * 8, 4);
        nv90_barrier_init(s.free + item * 8, WARPS(h));
    }
    if (item < TOLD)
        nv90_barrier_init(told.heard + item * 8, 1);
    if (item == MULTIPLYING)
        nv90_map_rows(map, (global const ushort *)a.x + a.x_rows.offset, a.k, g.rows,
                      a.x_rows.s0 * 2, BOX);
    else if (item == MULTIPLYING + 32)
        nv90_map_codes(map + NV90_MAP_BYTES, a.data, a.pitch, w.last + 1, SIDE);
    else if (item == MULTIPLYING + 64)
        nv90_map_codes(map + 2 * NV90_MAP_BYTES, w.side[1].data, a.pitch, w.last + 1, SIDE);
    else if (item == MULTIPLYING + 96)
        *slot = nv90_take_slot();
    else if (item < 2 * SIDE)
        expect_first(g, w, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < MULTIPLYING) {
        take_registers(SHAPE_OF(128)); // as many as can be, whatever the tile
        multiply_cuts(g, a, e, s, told, patches);
    } else {
        give_registers(SHAPE_OF(128));
        const uint warp = hidden((uint)get_local_id(0)) / 32 - WARPS(h);
        const bool one = hidden((uint)get_local_id(0)) % 32 == 0;
        const ulong published = nv90_map_of(*slot, 0);
        if (warp == 0) {
            nv90_map_publish(published, map);
            if (one)
                bring_x(g, w, s, told, published);
        } else if (warp == 3) {
            nv90_maps_publish(published + NV90_MAP_BYTES, map + NV90_MAP_BYTES);
            if (one)
                bring_codes(g, w, s, told, published + NV90_MAP_BYTES);
        } else if (warp == 1) {
            bring_groups(g, w, 0, s, told);
        } else if (warp == 2) {
            bring_groups(g, w, 1, s, told);
        }
    }
    // All boxes have arrived.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (hidden((uint)get_local_id(0)) == MULTIPLYING)
        nv90_give_slot(*slot);
}

#define LOCALS                                                                                     \
    local uchar tiles[STAGES(LARGEST) * STAGE(LARGEST)] __attribute__((aligned(1024)));            \
    local uchar maps[NV90_MAPS * NV90_MAP_BYTES] __attribute__((aligned(128)));                    \
    local float patches[WARPS(LARGEST) * PATCH_SIZE] __attribute__((aligned(16)));                 \
    local ulong barriers[2 * STAGES(LARGEST) + TOLD];                                              \
    local cut_t cuts[TOLD];                                                                        \
    local uint slot;                                                                               \
    const uint full = (uint)(size_t)barriers;                                                      \
    const stages_t s = {(uint)(size_t)tiles, full, full + STAGES(LARGEST) * 8, 0, 0};              \
    const cuts_t told = {cuts, full + STAGES(LARGEST) * 16};                                       \
    const groups_t g = {schedule, schedule_groups, first, last, rows, empty};                      \
    const linear_t a = GROUPED_EXPERT(0);                                                          \
    const uint last_block = (min(last, empty) - first) * (n / 16) - 1

kernel __attribute__((reqd_work_group_size(MULTIPLYING + 128, 1, 1))) RESIDENT(1) void
grouped_wgmma_packed(GROUPED_PARAMETERS)
{
    LOCALS;
    const weights_t w = {{a, a}, n / 16, 2 * SIDE, SIDE, last_block, (n + 255) / 256};
    const end_t e = {.bias = bias, .bias_rows = bias_rows, .bias_type = bias_type, .y = y,
                     .y_rows = y_rows, .y_type = y_type, .outputs = n, .is_gated = false};
    run(g, w, e, s, told, patches, (uint)(size_t)maps, &slot);
}

kernel __attribute__((reqd_work_group_size(MULTIPLYING + 128, 1, 1))) RESIDENT(1) void
grouped_wgmma_packed_gated(GROUPED_PARAMETERS, GATED_PARAMETERS)
{
    LOCALS;
    linear_t up = a;
    up.data = up_data;
    up.scales = up_scales;
    up.zeros = up_zeros;
    const bool alternate = step == 2;
    const weights_t w = {{a, up}, n / 16, alternate ? 2 * SIDE : SIDE,
                         alternate ? SIDE : up_first / 16, last_block, (outputs + 127) / 128};
    const end_t e = {.bias = bias, .bias_rows = bias_rows, .bias_type = bias_type,
                     .up_bias = up_bias, .up_bias_rows = up_bias_rows, .up_bias_type = up_bias_type,
                     .y = y, .y_rows = y_rows, .y_type = y_type, .outputs = outputs,
                     .is_gated = true, .alternate = alternate, .activation = activation,
                     .limit = limit, .alpha = alpha};
    run(g, w, e, s, told, patches, (uint)(size_t)maps, &slot);
}
