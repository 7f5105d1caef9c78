// The linear layer on wgmma where tiles are few and K is long: those of linear_wgmma.cl, each shared
// along K by 2 or 4 work-groups, which have as many stages of it (the last one zeros beyond K). In the
// end each finishes as many columns (linear_wgmma_trade.clh). Only where the copy unit can bring x and
// W, and where all work-groups can be on the device at one time. docs/matrix-units.md explains it.
//
//     -DX=f16 | bf16
#define NV90_TYPE X

#include "common/nv.clh"
#include "common/nv90.clh"
#include "linear/linear_common.clh"
#include "linear/linear_rows.clh"
#include "linear/linear_wgmma.clh"
#include "linear/linear_wgmma_end.clh"
#include "linear/linear_wgmma_start.clh"
#include "linear/linear_wgmma_trade.clh"

// What a work-group has.
typedef struct {
    tile_t tile;
    uint stages;
    uint begin; // element of K
    uint turn;  // columns: as many as it finishes, times its part
} part_t;

LINEAR_INLINE part_t part_at(const linear_t a, uint group, const uint parts, uint per)
{
    const uint rows = ((uint)a.m + TILE_M - 1) / TILE_M, columns = (a.n + TILE_N - 1) / TILE_N;
    const uint2 at = tile_in_bands(rows, columns, group / parts);
    const uint part = group % parts;
    return (part_t){
        {at.x * TILE_M, at.y * TILE_N, TILE_N}, per, part * per * TILE_K, part * (TILE_N / parts)};
}

// By one item x, by another W, after what bring_first brings. map: its own, of W in boxes of as many
// columns as a work-group finishes.
LINEAR_INLINE void box_part(const part_t p, stages_t s, const uint parts, ulong map, bool is_x)
{
    const uint brought = first_stages(p.stages), box = TILE_N / parts;
    skip_stages(&s, brought);
    for (uint i = brought; i < p.stages; i++) {
        const uint to = s.tiles + s.slot * STAGE, full = s.full + s.slot * 8;
        const uint k = p.begin + i * TILE_K;
        nv90_barrier_wait(s.free + s.slot * 8, s.phase ^ 1);
        nv90_barrier_expect(full, is_x ? X_BYTES : TILE_N * NV90_ROW);
        if (is_x)
            nv90_box_rows(to, map, k, p.tile.row, full);
        for (uint j = 0; !is_x && j < TILE_N; j += box)
            nv90_box_columns(to + X_BYTES + j * NV90_ROW, map, k,
                             (p.tile.column + (j + p.turn) % TILE_N) / 32, full);
        next_stage(&s);
    }
}

LINEAR_INLINE void copy_part(const linear_t a, const part_t p, stages_t s, uint map,
                             local uint *slot, const uint parts)
{
    const uint item = (uint)get_local_id(0);
    MAKE_MAPS(item, map, a, a.x_rows, TILE_M, item == W_ITEM,
              nv90_map_columns(map + NV90_MAP_BYTES, a.data, a.k, a.n / 32, a.pitch,
                               TILE_N / parts / 32),
              slot);
    if (item < SLOT_ITEM) {
        const ulong published = publish_map(item, map, slot);
        if (item == X_ITEM)
            box_part(p, s, parts, published, true);
        else if (item == W_ITEM)
            box_part(p, s, parts, published, false);
    }
}

LINEAR_INLINE void multiply_part(const linear_t a, const part_t p, stages_t s, const trader_t t)
{
    const uint item = (uint)get_local_id(0);
    const uint x_at = nv90_uniform(item / 128) * (64 * NV90_ROW);
    float sums[TILE_N / 2];
    UNROLL
    for (uint i = 0; i < TILE_N / 2; i++)
        sums[i] = 0.0f;
    // ptxas must neither take the zeros for part of the chain (C7515) nor think that there is none.
    nv90_end_256(sums);
    const uint k = (p.stages - (t.parts == 2 ? STAGES : 0)) * TILE_K;
    __builtin_assume(k > 0);
    multiply_tile_256(sums, &s, k, x_at, X_BYTES);
    if (t.parts == 2)
        trade_and_multiply(t, sums, s, x_at);
    else
        trade(t, sums);
    const tile_t own = {p.tile.row, p.tile.column + p.turn, TILE_N / t.parts};
    if (own.column < a.n)
        store_tile(a, sums, own, item);
}

// A kernel for each number of parts: ptxas finds too few registers for both in one (C7511).
#define KERNEL(parts)                                                                              \
    kernel __attribute__((reqd_work_group_size(384, 1, 1)))                                        \
    __attribute__((annotate("minnctapersm=1")))                                                    \
    void linear_wgmma_shared_##parts(LINEAR_PARAMETERS, TRADE_PARAMETERS)                          \
    {                                                                                              \
        BOX_LOCALS(2);                                                                             \
        local uint slot[1];                                                                        \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        const uint item = (uint)get_local_id(0), group = (uint)get_group_id(0);                    \
        const part_t p = part_at(a, group, parts, split_per);                                      \
        init_stages(item, s, 2);                                                                   \
        if (item < 256) {                                                                          \
            bring_first(a, p.tile, p.begin, p.turn, s, first_stages(p.stages));                    \
            nv90_registers_up(240);                                                                \
            multiply_part(a, p, s, trader_of(group, parts, split_sums, split_counts));             \
        } else {                                                                                   \
            nv90_registers_down(24);                                                               \
            copy_part(a, p, s, map, slot, parts);                                                  \
        }                                                                                          \
        end_boxes(item, slot);                                                                     \
    }
KERNEL(2)
KERNEL(4)
