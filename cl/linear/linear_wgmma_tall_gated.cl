// Gate, up and SiLU on wgmma with tiles of 256 rows of x by up to 96 outputs: as linear_wgmma_tall.cl, but
// the first half of a tile's W is the gate's and the other up's, so that both sums of an output are in
// the same lane. All columns of tiles have one width, 64, 80 or 96; what of the last is beyond W, is zeros.
// Of y of 16 bits. docs/matrix-units.md explains it.
//
//     -DX=f16 | bf16
#define END_COLUMNS 96
// Maps are of x, the gate's W and up's.
#include "linear/linear_wgmma_tall.clh"
#include "linear/linear_gated.clh"

LINEAR_INLINE void bring_both(plan_t p, uint k_end, stages_t s, ulong maps)
{
    const uint count = tiles_of(p), bytes = p.width * NV90_ROW;
    EACH_TILE(index, count) {
        const uint at = tile_at(p, index).column / UNIT;
        for (uint k = 0; k < k_end; k += TILE_K) {
            const uint to = s.tiles + s.slot * STAGE + X_BYTES, full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            nv90_barrier_expect(full, 2 * bytes);
            nv90_box_columns(to, maps, k, at, full);
            nv90_box_columns(to + bytes, maps + NV90_MAP_BYTES, k, at, full);
            next_stage(&s);
        }
    }
    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
    nv90_barrier_arrive(s.full + s.slot * 8);
}

// ---- The warpgroups that multiply

MULTIPLY_PAIR(128)
MULTIPLY_PAIR(160)
MULTIPLY_PAIR(192)

// 64 rows of a warpgroup's part of a tile with `held` sums of the gate's in a lane, and as many of up's
// behind them; otherwise as store_part of linear_wgmma_tall.cl.
LINEAR_INLINE void store_gated(linear_t a, const gate_t gate, float *sums, tile_t tile, uint from,
                               uint held)
{
    uint item = (uint)get_local_id(0);
    asm volatile("" : "+r"(item));
    a.n = gate.outputs;
    a.y_rows.n1 = a.y_rows.n2 = a.residual_rows.n1 = a.residual_rows.n2 = 1;
    tile.row += item / 128 * TEAM + from;
    const held_t share = held_of(a, tile, item % 128);
    const places_t at = places_of(a, share);
    if (a.bias)
        add_vectors(sums, share, a.bias, a.bias_type, at.bias);
    if (gate.bias) {
        const ulong b = gate.bias_rows.offset + share.column, bias_at[2] = {b, b};
        add_vectors(sums + held, share, gate.bias, gate.bias_type, bias_at);
    }
    UNROLL
    for (uint i = 0; i < held; i++)
        sums[i] *= nv_sigmoid_short(sums[i]) * sums[held + i];
    if (a.residual)
        add_vectors(sums, share, a.residual, a.residual_type, at.residual);
    store_vectors(sums, share, a.y, a.y_type, at.y);
}

LINEAR_INLINE void multiply_tiles(const linear_t a, const gate_t gate, stages_t s,
                                  local const tile_t *told)
{
    const uint x_at = nv90_uniform((uint)get_local_id(0) / 128) * (TEAM * NV90_ROW);
    for (;;) {
        nv90_barrier_wait(s.full + s.slot * 8, s.phase);
        const tile_t tile = told[s.slot];
        if (tile.width == 0)
            break;
        float sums[NV90_PAIR_SUMS];
        UNROLL
        for (uint i = 0; i < NV90_PAIR_SUMS; i++)
            sums[i] = 0.0f;
#define MULTIPLY(n)                                                                                \
    {                                                                                              \
        multiply_pair_##n(sums, &s, a.k, x_at, X_BYTES);                                           \
        store_gated(a, gate, sums, tile, 0, (n) / 4);                                              \
        store_gated(a, gate, sums + NV90_PAIR_HALF, tile, TEAM / 2, (n) / 4);                      \
    }
        if (tile.width == 96)
            MULTIPLY(192)
        else if (tile.width == 80)
            MULTIPLY(160)
        else
            MULTIPLY(128)
    }
}

// units: of 16 outputs, in a tile.
kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void linear_wgmma_tall_gated(LINEAR_PARAMETERS, GATE_PARAMETERS, const uint units)
{
    BOX_LOCALS(3);
    local tile_t told[STAGES];
    local uint slot[1];
    const linear_t a = LINEAR_ARGUMENTS;
    const gate_t gate = GATE_ARGUMENTS;
    const uint item = (uint)get_local_id(0), lane = item % 32;
    init_stages(item, s, 2);

    if (item < 256) {
        nv90_registers_up(240);
        multiply_tiles(a, gate, s, told);
    } else {
        nv90_registers_down(24);
        MAKE_MAPS(item, map, a, x_rows, TEAM, item - lane == W_ITEM && lane < 2,
                  nv90_map_blocks(map + (1 + lane) * NV90_MAP_BYTES,
                                  lane ? up_data + up_first * pitch : data, k, outputs / UNIT,
                                  pitch * step, units, UNIT),
                  slot);
        const plan_t p = {(uint)m, ((uint)m + TILE_M - 1) / TILE_M,
                          (outputs / UNIT + units - 1) / units, 0, units * UNIT};
        const ulong published = nv90_map_of(slot[0], 0);
        if (item - lane == X_ITEM) {
            nv90_map_publish(published, map);
            if (lane == 0)
                bring_x(p, k, 0, s, told, published);
        } else if (item - lane == W_ITEM) {
            nv90_map_publish(published + NV90_MAP_BYTES, map + NV90_MAP_BYTES);
            nv90_map_publish(published + 2 * NV90_MAP_BYTES, map + 2 * NV90_MAP_BYTES);
            if (lane == 0)
                bring_both(p, k, s, published + NV90_MAP_BYTES);
        }
    }
    end_boxes(item, slot);
}
