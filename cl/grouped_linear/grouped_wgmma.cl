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
#include "grouped_linear/grouped_wgmma_tiles.clh"

// ---- Kernels

LINEAR_INLINE void bring_parts(const grouped_t g, stages_t s, told_t t, ulong maps, bool is_gated)
{
    for (;;) {
        const part_t p = hear_part(&t);
        if (p.rows == 0)
            break;
        free_part(&t);
        next_told(&t);
        if (p.group != g.empty)
            bring_part(g, &s, p, maps, is_gated, 0);
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
