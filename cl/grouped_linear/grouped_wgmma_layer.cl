// Both products of experts in one launch, on wgmma: gate and up with their activation, then down, by
// work-groups that stay. grouped_wgmma.cl has the same tiles one product at a time.
//
// Work-groups take tiles in one order, in which all tiles whose outputs a tile of the down product reads
// come before it. Those never wait, so that whoever waits for them waits for work-groups that run: there
// may be any number of work-groups. A counter for each row of tiles says how many of gate's and up's are
// in memory; W, which is nobody's output, is asked for before the wait.
//
//     -DX=f16 | bf16
#define LAYER
#include "grouped_linear/grouped_wgmma_tiles.clh"

#define MAPS_OF(down) ((down) ? 4 * NV90_MAP_BYTES : 0)

typedef struct {
    grouped_t up, down;
    uint lag; // groups between the tiles of both products
} layer_t;

LINEAR_INLINE uint columns_of(const grouped_t g) { return (g.columns + TILE_N - 1) / TILE_N; }

// Rows of tiles before group g, within this launch.
LINEAR_INLINE uint rows_before(const layer_t l, uint g)
{
    global const int *tiles = l.up.schedule + l.up.groups + 1;
    return (uint)(tiles[clamp(g, l.up.first, l.up.last)] - tiles[l.up.first]);
}

// Place i of the order has gate and up of group i, then down of the group `lag` before it.
LINEAR_INLINE part_t layer_part(const layer_t l, uint ways, uint index)
{
    const uint up_columns = columns_of(l.up), down_columns = columns_of(l.down) * ways;
    uint low = l.up.first, high = l.up.last + l.lag;
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (rows_before(l, middle) * up_columns +
                rows_before(l, max(middle, l.lag) - l.lag) * down_columns <=
            index)
            low = middle;
        else
            high = middle;
    }
    const uint here = rows_before(l, low), back = rows_before(l, max(low, l.lag) - l.lag);
    uint at = index - back * down_columns; // of gate and up
    grouped_t g = l.up;
    parts_t parts = {rows_before(l, l.up.last), up_columns, 1, 0};
    const uint ups = rows_before(l, low + 1) * up_columns;
    const bool down = at >= ups;
    if (down) {
        at = index - ups;
        g.columns = l.down.columns;
        g.k = l.down.k;
        parts.columns = columns_of(l.down);
        parts.ways = ways;
    }
    parts.count = parts.rows * parts.columns * parts.ways;
    (void)here;
    part_t p = part_at(g, parts, at);
    p.down = down;
    return p;
}

// ---- The item that copies

// Gate and up of a tile of rows are in memory, all columns.
LINEAR_INLINE bool is_ready(volatile global uint *ready, uint wanted)
{
    uint now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(ready) : "memory");
    if (now < wanted)
        return false;
    asm volatile("fence.proxy.async;" ::: "memory");
    return true;
}

LINEAR_INLINE void bring_x_boxes(uint to, ulong maps, uint k, const part_t p, uint full)
{
    const uint boxes = (p.rows + BOX - 1) / BOX, many = boxes / (MANY_BOX / BOX);
    _Pragma("unroll 1")
    for (uint i = 0; i < many; i++)
        nv90_box_rows(to + i * MANY_BOX * NV90_ROW, maps + NV90_MAP_BYTES, k,
                      p.begin + i * MANY_BOX, full);
    _Pragma("unroll 1")
    for (uint i = many * (MANY_BOX / BOX); i < boxes; i++)
        nv90_box_rows(to + i * BOX * NV90_ROW, maps, k, p.begin + i * BOX, full);
}

LINEAR_INLINE void bring_down(const layer_t l, stages_t *s, const part_t p, ulong maps,
                              volatile global uint *ready, uint wanted, uint soon)
{
    const uint boxes = (p.rows + BOX - 1) / BOX;
    const uint at = (p.group - l.down.first) * l.down.blocks + p.column / 32;
    const ulong w_map = maps + X_MAPS * NV90_MAP_BYTES;
    bool there = false;
    stages_t behind = *s; // of x
    uint x_k = p.k;
    for (uint k = p.k; k < p.k_end; k += TILE_K) {
        const uint to = s->tiles + s->slot * STAGE, full = s->full + s->slot * 8;
        nv90_barrier_wait(s->free + s->slot * 8, s->phase ^ 1);
        if (k == soon_at(p))
            nv90_barrier_arrive(soon);
        nv90_barrier_expect(full, boxes * BOX * NV90_ROW + W_BYTES);
        nv90_box_units(to + X_BYTES, w_map, k, at, full);
        next_stage(s);
        if (!there)
            while (!(there = is_ready(ready, wanted)) &&
                   (s->slot == behind.slot || k + TILE_K >= p.k_end)) {
            }
        for (; there && x_k <= k; x_k += TILE_K) {
            bring_x_boxes(behind.tiles + behind.slot * STAGE, maps, x_k, p,
                          behind.full + behind.slot * 8);
            next_stage(&behind);
        }
    }
}

LINEAR_INLINE volatile global uint *ready_of(global const int *schedule, uint groups)
{
    return (volatile global uint *)schedule + 2 * (groups + 1) + 3;
}

LINEAR_INLINE void bring_layer(const layer_t l, stages_t s, told_t t, ulong maps, uint maps_there)
{
    const uint wanted = columns_of(l.up);
    bool has_maps = false;
    for (;;) {
        const part_t p = hear_part(&t);
        if (p.rows == 0)
            break;
        free_part(&t);
        next_told(&t);
        if (!p.down) {
            bring_part(l.up, &s, p, maps, true, t.soon);
            continue;
        }
        if (!has_maps) {
            nv90_barrier_wait(maps_there, 0);
            for (uint i = 4; i < 7; i++)
                asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(
                                 maps + i * NV90_MAP_BYTES)
                             : "memory");
            has_maps = true;
        }
        bring_down(l, &s, p, maps + MAPS_OF(true), ready_of(l.up.schedule, l.up.groups) + p.tile,
                   wanted, t.soon);
    }
}

// ---- By an item of its own: what all have stored of gate and up, is in memory.
LINEAR_INLINE void announce(const layer_t l, told_t t, uint stored)
{
    for (uint phase = 0;;) {
        const part_t p = hear_part(&t);
        if (p.rows == 0)
            break;
        free_part(&t);
        next_told(&t);
        if (p.down)
            continue;
        nv90_barrier_wait(stored, phase);
        phase ^= 1;
        asm volatile("fence.proxy.async; fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(
                         ready_of(l.up.schedule, l.up.groups) + p.tile)
                     : "memory");
    }
}

// ---- By one item, as tell_parts()
LINEAR_INLINE void tell_layer(const layer_t l, told_t t)
{
    const uint ways = l.down.most_ways > 100 ? l.down.most_ways - 100 : parts_of(l.down, (uint)get_num_groups(0)).ways;
    if (get_group_id(0) == 0)
        *counters_of(l.up.schedule, l.up.groups).ways = (int)ways;
    uint index = (uint)get_group_id(0), soon = 0;
    part_t p;
    do {
        nv90_barrier_wait(t.free + t.slot * 8, t.phase ^ 1);
        p = layer_part(l, ways, index);
        t.parts[t.slot] = p;
        nv90_barrier_arrive(t.full + t.slot * 8);
        next_told(&t);
        if (p.rows > 0) {
            nv90_barrier_wait(t.soon, soon);
            soon ^= 1;
            nv90_barrier_wait(t.free + t.slot * 8, t.phase ^ 1);
            index = take_tile(counters_of(l.up.schedule, l.up.groups), index);
        }
    } while (p.rows > 0);
    end_tiles(counters_of(l.up.schedule, l.up.groups));
}

// ---- The warpgroups that multiply

// Of which the compiler does not know that it is the same for all tiles, or it works out what follows from it
// before the first, and has no registers to keep that.
LINEAR_INLINE end_t hidden_end(end_t e)
{
    asm volatile("" : "+l"(e.y_rows.s0), "+r"(e.y_type), "+r"(e.bias_type), "+r"(e.up_bias_type));
    return e;
}

LINEAR_INLINE void multiply_layer(const layer_t l, const end_t up, const end_t down, stages_t s,
                                  told_t t, uint stored)
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
        multiply_part(sums, &s, p.rows, p.k_end - p.k, w_at);
        // What else a tile needs is read again: beside the sums there are no registers for it.
        local const part_t *told = t.parts + t.slot;
        const bool is_down = nv90_uniform(told->down) != 0;
        share_t share;
        if (is_down)
            share = share_of(l.down, down, *told);
        else
            share = share_of(l.up, up, *told);
        nv90_warp_sync();
        if (get_local_id(0) % 32 == 0)
            free_part(&t);
        next_told(&t);
        if (is_down) {
            if (share.in)
                store_plain(hidden_end(down), sums, share);
        } else {
            if (share.in)
                store_gated(hidden_end(up), sums, share);
            nv90_warp_sync();
            if (get_local_id(0) % 32 == 0)
                nv90_barrier_arrive(stored);
        }
    }
}

// ---- The kernel

kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void grouped_wgmma_layer(GROUPED_PARAMETERS, GATED_PARAMETERS, global const uchar *down_data,
                         const ulong down_pitch, const uint down_n, const uint down_k,
                         global const void *down_bias, const rows_t down_bias_rows,
                         const uint down_bias_type, global float *down_y, const rows_t down_y_rows,
                         const uint most_ways, const uint lag)
{
    LOCALS;
    local ulong more_barriers[2];
    const uint stored = (uint)(size_t)more_barriers, maps_there = stored + 8;
    const uint item = (uint)get_local_id(0), map = (uint)(size_t)maps;
    const stages_t s = stages_of(LOCALS_ARGUMENT);
    const told_t t = told_of(LOCALS_ARGUMENT);
    layer_t l;
    l.up = (grouped_t){schedule, schedule_groups, first, last, rows, empty, 2 * outputs, k,
                       n / step / UNIT(true), 1};
    l.down = (grouped_t){schedule, schedule_groups, first, last, rows, empty, down_n, down_k,
                         down_n / UNIT(false), most_ways};
    l.lag = lag;
    init_barriers(s, t);
    if (item == 128) {
        nv90_barrier_init(stored, 8);
        nv90_barrier_init(maps_there, 1);
    }
    if (item == 256) {
        slot = nv90_take_slot();
        const uint w_rows = (min(last, empty) - first) * n;
        const sources_t from = {.x = (global const ushort *)x + x_rows.offset, .x_pitch = x_rows.s0 * 2,
                            .w = data, .up = up_data + up_first * pitch, .w_pitch = pitch * step,
                            .w_rows = w_rows / step,
                            .up_rows = (w_rows - up_first + step - 1) / step};
        make_maps(map, l.up, from, true);
    }
    if (item == 320) {
        const uint w_rows = (min(last, empty) - first) * down_n;
        const sources_t from = {.x = (global const ushort *)y + y_rows.offset, .x_pitch = y_rows.s0 * 2,
                            .w = down_data, .up = down_data, .w_pitch = down_pitch,
                            .w_rows = w_rows, .up_rows = w_rows};
        make_maps(map + 4 * NV90_MAP_BYTES, l.down, from, false);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < 256) {
        nv90_registers_up(232);
        const end_t up = {.bias = bias, .bias_rows = bias_rows, .bias_type = bias_type,
                     .up_bias = up_bias, .up_bias_rows = up_bias_rows, .up_bias_type = up_bias_type,
                     .y = y, .y_rows = y_rows, .y_type = y_type, .is_gated = true,
                     .activation = activation, .limit = limit, .alpha = alpha};
        const end_t down = {.bias = down_bias, .bias_rows = down_bias_rows, .bias_type = down_bias_type,
                     .y = down_y, .y_rows = down_y_rows, .y_type = DT_F32, .is_gated = false};
        multiply_layer(l, up, down, s, t, stored);
    } else {
        nv90_registers_down(40);
        const ulong published = nv90_map_of(slot, 0);
        if (item < 256 + 32) {
            for (uint i = 0; i < 4; i++)
                nv90_map_publish(published + i * NV90_MAP_BYTES, map + i * NV90_MAP_BYTES);
            if (item == 256)
                bring_layer(l, s, t, published, maps_there);
        } else if (item == 256 + 32) {
            tell_layer(l, t);
        } else if (item >= 320 && item < 320 + 32) {
            for (uint i = 4; i < 7; i++)
                nv90_map_publish(published + i * NV90_MAP_BYTES, map + i * NV90_MAP_BYTES);
            if (item == 320)
                nv90_barrier_arrive(maps_there);
        } else if (item == 352) {
            announce(l, t, stored);
        }
    }
    // All boxes have arrived.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 256)
        nv90_give_slot(slot);
}
