// Both products of a layer of experts in one launch, on wgmma: gate and up with their activation, then
// down, in the tiles of grouped_wgmma.cl. From its sm_90a image only; docs/matrix-units.md and docs/moe.md
// explain it.
//
// Work-groups that stay take tiles in one order, in which all tiles whose outputs a tile of down reads come
// before it. Those never wait, so that whoever waits for them waits for work-groups that run, however many
// there are. A counter for each row of tiles says how many of gate's and up's are in memory; W, which is
// nobody's output, is asked for before the wait.
//
//     -DX=f16 | bf16
#define LAYER
#include "grouped_linear/grouped_wgmma_tiles.clh"

#define DOWN_MAP 4 // of a slot's maps, the first one of down

LINEAR_INLINE uint take_any(const layer_t l)
{
    return (uint)atomic_inc(counters_of(l.up.schedule, l.up.groups).next);
}

// By one item.
LINEAR_INLINE void tell_layer(const layer_t l, told_t t)
{
    const order_t order = order_of(l, (uint)get_num_groups(0));
    if (get_group_id(0) == 0)
        *counters_of(l.up.schedule, l.up.groups).ways = (int)order.ways;
    // The first one, too, is taken: a work-group that does not run yet holds none.
    uint index = take_any(l), soon = 0;
    part_t p;
    do {
        nv90_barrier_wait(t.free + t.slot * 8, t.phase ^ 1);
        layer_t again = l; // made again each time: there are no registers to keep more
        again.up.last = hidden(l.up.last);
        p = layer_part(again, order, index);
        t.parts[t.slot] = p;
        nv90_barrier_arrive(t.full + t.slot * 8);
        next_told(&t);
        if (p.rows > 0) {
            nv90_barrier_wait(t.soon, soon);
            soon ^= 1;
            nv90_barrier_wait(t.free + t.slot * 8, t.phase ^ 1);
            index = take_any(l);
        }
    } while (p.rows > 0);
    end_tiles(counters_of(l.up.schedule, l.up.groups));
}

// ---- The item that copies

LINEAR_INLINE volatile global uint *ready_of(const grouped_t g, const part_t p)
{
    return (volatile global uint *)counters_of(g.schedule, g.groups).ready + p.tile;
}

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

// x follows as soon as it is there, W of the stages that are free is asked for before.
LINEAR_INLINE void bring_down(const layer_t l, stages_t *s, const part_t p, ulong maps, uint soon)
{
    const uint wanted = columns_of(l.up), boxes = (p.rows + BOX - 1) / BOX;
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
            while (!(there = is_ready(ready_of(l.up, p), wanted)) &&
                   (s->slot == behind.slot || k + TILE_K >= p.k_end)) {
            }
        for (; there && x_k <= k; x_k += TILE_K) {
            bring_x(behind.tiles + behind.slot * STAGE, maps, x_k, p,
                          behind.full + behind.slot * 8);
            next_stage(&behind);
        }
    }
}

LINEAR_INLINE void bring_layer(const layer_t l, stages_t s, told_t t, ulong maps, uint maps_there)
{
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
            for (uint i = DOWN_MAP; i < DOWN_MAP + MAPS; i++)
                nv90_map_acquire(maps + i * NV90_MAP_BYTES);
            has_maps = true;
        }
        bring_down(l, &s, p, maps + DOWN_MAP * NV90_MAP_BYTES, t.soon);
    }
}

// ---- By an item of its own: what all have stored of gate and up is in memory. Whoever multiplies need not
// wait for that.
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
        asm volatile("fence.proxy.async; fence.acq_rel.gpu; "
                     "red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(ready_of(l.up, p))
                     : "memory");
    }
}

// ---- The warpgroups that multiply

// Of which the compiler does not know that it is the same for all tiles, or it works out what follows from it
// before the first, and has no registers to keep that.
LINEAR_INLINE end_t hidden_end(end_t e)
{
    asm volatile(""
                 : "+l"(e.y_rows.s0), "+l"(e.bias_rows.n1), "+l"(e.up_bias_rows.n1),
                   "+r"(e.y_type), "+r"(e.bias_type), "+r"(e.up_bias_type), "+r"(e.activation));
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

#define ROW_BLOCKS(rows, step, is_gated) ((rows) / (step) / UNIT(is_gated))

LINEAR_INLINE void run_layer(const layer_t l, const end_t up, const end_t down, const sources_t up_from,
                       const sources_t down_from, const locals_t l_)
{
    const uint item = (uint)get_local_id(0), map = (uint)(size_t)l_.maps;
    const stages_t s = stages_of(l_);
    const told_t t = told_of(l_);
    const uint stored = t.soon + 8, maps_there = stored + 8;
    init_barriers(s, t);
    if (item == 128) {
        nv90_barrier_init(stored, 8);
        nv90_barrier_init(maps_there, 1);
    }
    if (item == 256) {
        *l_.slot = nv90_take_slot();
        make_maps(map, l.up, up_from, true);
    }
    if (item == 320)
        make_maps(map + DOWN_MAP * NV90_MAP_BYTES, l.down, down_from, false);
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint role = hidden(item);
    if (role < 256) {
        nv90_registers_up(232);
        multiply_layer(l, up, down, s, t, stored);
    } else {
        nv90_registers_down(40);
        const ulong published = nv90_map_of(*l_.slot, 0);
        if (role < 256 + 32) {
            for (uint i = 0; i < DOWN_MAP; i++)
                nv90_map_publish(published + i * NV90_MAP_BYTES, map + i * NV90_MAP_BYTES);
            if (role == 256)
                bring_layer(l, s, t, published, maps_there);
        } else if (role == 256 + 32) {
            tell_layer(l, t);
        } else if (role >= 320 && role < 320 + 32) {
            for (uint i = DOWN_MAP; i < DOWN_MAP + MAPS; i++)
                nv90_map_publish(published + i * NV90_MAP_BYTES, map + i * NV90_MAP_BYTES);
            if (role == 320)
                nv90_barrier_arrive(maps_there);
        } else if (role == 352) {
            announce(l, t, stored);
        }
    }
    // All boxes have arrived.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (hidden(item) == 256)
        nv90_give_slot(*l_.slot);
}

// x: a row for each row of the groups, in their order. y is h, which down reads.
kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void grouped_wgmma_layer(GROUPED_PARAMETERS, GATED_PARAMETERS, global const uchar *down_data,
                         const ulong down_pitch, const uint down_n, const uint down_k,
                   global const void *down_bias, const rows_t down_bias_rows,
                   const uint down_bias_type, global void *down_y, const rows_t down_y_rows,
                   const uint down_y_type, const uint most_ways)
{
    LOCALS;
    const layer_t l = {{schedule, schedule_groups, first, last, rows, empty, 2 * outputs, k,
                        ROW_BLOCKS(n, step, true), 1},
                       {schedule, schedule_groups, first, last, rows, empty, down_n, down_k,
                        ROW_BLOCKS(down_n, 1, false), most_ways}};
    const end_t up = {.bias = bias, .bias_rows = bias_rows, .bias_type = bias_type,
                      .up_bias = up_bias, .up_bias_rows = up_bias_rows, .up_bias_type = up_bias_type,
                      .y = y, .y_rows = y_rows, .y_type = y_type, .is_gated = true,
                      .activation = activation, .limit = limit, .alpha = alpha};
    const end_t down = {.bias = down_bias, .bias_rows = down_bias_rows,
                        .bias_type = down_bias_type, .y = down_y, .y_rows = down_y_rows,
                        .y_type = down_y_type, .is_gated = false};
    const uint experts = min(last, empty) - first, w_rows = experts * n; // every step-th is one map's
    const sources_t up_from = {.x = (global const ushort *)x + x_rows.offset,
                               .x_pitch = x_rows.s0 * 2, .w = data,
                               .up = up_data + up_first * pitch, .w_pitch = pitch * step,
                               .w_rows = w_rows / step,
                               .up_rows = (w_rows - up_first + step - 1) / step};
    const sources_t down_from = {.x = (global const ushort *)y + y_rows.offset,
                                 .x_pitch = y_rows.s0 * 2, .w = down_data, .up = down_data,
                                 .w_pitch = down_pitch, .w_rows = experts * down_n,
                                 .up_rows = experts * down_n};
    run_layer(l, up, down, up_from, down_from, LOCALS_ARGUMENT);
}
