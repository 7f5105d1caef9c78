// The linear layer on wgmma with tiles of 256 rows of x by up to 192 of W: as linear_wgmma.cl, but each
// warpgroup multiplies 128 rows of x, and a product takes 22 % fewer bytes out of the L2. Only where
// the copy unit can bring x and W. docs/matrix-units.md explains it.
//
// Columns of tiles are of two widths: the first `wide` of them have `units` times 16 columns of y, the
// others 16 less, so that the host can make work-groups end together. The wide ones come first.
//
//     -DX=f16 | bf16
// Maps are of x, and of W in columns of the one and of the other width.
#include "linear/linear_wgmma_tall.clh"

LINEAR_INLINE plan_t plan_of(uint m, uint n, uint wide, uint units)
{
    const uint left = n / UNIT - wide * units;
    return (plan_t){m, (m + TILE_M - 1) / TILE_M, wide, left ? left / (units - 1) : 0, units * UNIT};
}

// maps: of the wide, then of the narrow tiles.
LINEAR_INLINE void bring_w(plan_t p, uint k_end, uint brought, stages_t s, ulong maps)
{
    const uint count = tiles_of(p);
    uint k = brought * TILE_K;
    skip_stages(&s, brought);
    EACH_TILE(index, count) {
        const tile_t tile = tile_at(p, index);
        const ulong map = maps + (is_narrow(p, index) ? NV90_MAP_BYTES : 0);
        for (; k < k_end; k += TILE_K) {
            const uint to = s.tiles + s.slot * STAGE, full = s.full + s.slot * 8;
            nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
            nv90_barrier_expect(full, tile.width * NV90_ROW);
            nv90_box_columns(to + X_BYTES, map, k, tile.column / UNIT, full);
            next_stage(&s);
        }
        k = 0;
    }
    nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
    nv90_barrier_arrive(s.full + s.slot * 8);
}

// ---- The warpgroups that multiply

MULTIPLY_PAIR(16)
MULTIPLY_PAIR(32)
MULTIPLY_PAIR(48)
MULTIPLY_PAIR(64)
MULTIPLY_PAIR(80)
MULTIPLY_PAIR(96)
MULTIPLY_PAIR(112)
MULTIPLY_PAIR(128)
MULTIPLY_PAIR(144)
MULTIPLY_PAIR(160)
MULTIPLY_PAIR(176)
MULTIPLY_PAIR(192)

// 64 rows of a warpgroup's part of a tile, from row `from` of it. Vectors, of rows of one stride: the
// host has seen to that, and there are no registers for more. Nor for what lies around from one tile to
// the next: ptxas must not know that the item is the same.
LINEAR_INLINE void store_part(linear_t a, float *sums, tile_t tile, uint from)
{
    uint item = (uint)get_local_id(0);
    asm volatile("" : "+r"(item));
    a.y_rows.n1 = a.y_rows.n2 = a.residual_rows.n1 = a.residual_rows.n2 = 1;
    tile.row += item / 128 * TEAM + from;
    const held_t share = held_of(a, tile, item % 128);
    store_all_vectors(a, sums, share, places_of(a, share));
}

LINEAR_INLINE void multiply_tiles(const linear_t a, stages_t s, local const tile_t *told)
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
    if (tile.width == n)                                                                           \
        multiply_pair_##n(sums, &s, a.k, x_at, X_BYTES);                                           \
    else
        MULTIPLY(192) MULTIPLY(176) MULTIPLY(160) MULTIPLY(144) MULTIPLY(128) MULTIPLY(112)
        MULTIPLY(96) MULTIPLY(80) MULTIPLY(64) MULTIPLY(48) MULTIPLY(32)
            multiply_pair_16(sums, &s, a.k, x_at, X_BYTES);
        store_part(a, sums, tile, 0);
        store_part(a, sums + NV90_PAIR_HALF, tile, TEAM / 2);
    }
}

// columns: 16 wide + units.
kernel __attribute__((reqd_work_group_size(384, 1, 1))) __attribute__((annotate("minnctapersm=1")))
void linear_wgmma_tall(LINEAR_PARAMETERS, const uint columns)
{
    BOX_LOCALS(3);
    local tile_t told[STAGES];
    local uint slot[1];
    const linear_t a = LINEAR_ARGUMENTS;
    const uint item = (uint)get_local_id(0), lane = item % 32;
    init_stages(item, s, 2);

    if (item < 256) {
        const plan_t p = plan_of((uint)m, n, columns / 16, columns % 16);
        const tile_t tile = tile_at(p, (uint)get_group_id(0));
        if (item == 0)
            told[0] = tile;
        bring_first(a, tile, 0, 0, s, first_stages((k + TILE_K - 1) / TILE_K));
        nv90_registers_up(240);
        multiply_tiles(a, s, told);
    } else {
        nv90_registers_down(24);
        MAKE_MAPS(item, map, a, x_rows, TEAM, item - lane == W_ITEM && lane < 2,
                  nv90_map_blocks(map + (1 + lane) * NV90_MAP_BYTES, data, k, n / UNIT, pitch,
                                  max(columns % 16 - lane, 1u), UNIT),
                  slot);
        const plan_t p = plan_of((uint)m, n, columns / 16, columns % 16);
        const uint brought = first_stages((k + TILE_K - 1) / TILE_K);
        const ulong published = nv90_map_of(slot[0], 0);
        if (item - lane == X_ITEM) {
            nv90_map_publish(published, map);
            if (lane == 0)
                bring_x(p, k, brought, s, told, published);
        } else if (item - lane == W_ITEM) {
            nv90_map_publish(published + NV90_MAP_BYTES, map + NV90_MAP_BYTES);
            if (p.narrow)
                nv90_map_publish(published + 2 * NV90_MAP_BYTES, map + 2 * NV90_MAP_BYTES);
            if (lane == 0)
                bring_w(p, k, brought, s, published + NV90_MAP_BYTES);
        }
    }
    end_boxes(item, slot);
}
