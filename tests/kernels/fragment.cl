// Products through the fragment interface, and what the lanes held on the way: the kernel of
// tests/unit/test_fragment.c. Two waves, one above the other, each multiply a row of fragments by
// two fragments of B. The test puts common/fragment.clh before it.
//
//   -DCHUNKS=4 | 8                         16-byte chunks along K
//   -DMAPS_ARGUMENT -DFRAGMENT_MAPS=maps   the emulator's maps are the last argument

#define ROWS (2 * FRAGMENT_SIZE)

// a and b are [ROWS][CHUNKS] chunks, d is [ROWS][ROWS]; registers are those of the first step,
// [wave][j][lane]: 4 words of a, 4 of b, and the accumulators.
kernel void fragment_test(global const uint4 *a, global const uint4 *b, global fragment_value *d,
                          global uint4 *a_words, global uint4 *b_words,
                          global fragment_value *acc_words
#ifdef MAPS_ARGUMENT
                          ,
                          global const fragment_map *maps
#endif
)
{
    local uint4 a_tile[ROWS * CHUNKS], b_tile[ROWS * CHUNKS];
    FRAGMENT_UNIT(unit, 2);
    for (uint i = (uint)get_local_id(0); i < ROWS * CHUNKS; i += 2 * FRAGMENT_WAVE) {
        const uint to = tile_index(i / CHUNKS, i % CHUNKS, CHUNKS);
        a_tile[to] = a[i];
        b_tile[to] = b[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    FRAGMENT_UNROLL
    for (uint j = 0; j < 2; j++) {
        const uint place = (unit.wave * 2 + j) * FRAGMENT_WAVE + unit.lane;
        fragment_acc acc = fragment_zero();
        FRAGMENT_UNROLL
        for (uint chunk = 0; chunk < CHUNKS; chunk += FRAGMENT_CHUNKS) {
            const fragment_a fa =
                fragment_load_a(unit, a_tile, CHUNKS, unit.wave * FRAGMENT_SIZE, chunk);
            const fragment_b fb = fragment_load_b(unit, b_tile, CHUNKS, j * FRAGMENT_SIZE, chunk);
            fragment_multiply_add(unit, &acc, fa, fb);
            if (chunk == 0) {
                a_words[place] = (uint4)(fa.v[0], fa.v[1], fa.v[2], fa.v[3]);
                b_words[place] = (uint4)(fb.v[0], fb.v[1], fb.v[2], fb.v[3]);
                FRAGMENT_UNROLL
                for (uint e = 0; e < FRAGMENT_ELEMENTS; e++)
                    acc_words[place * FRAGMENT_ELEMENTS + e] = fragment_get(acc, e);
            }
        }
        FRAGMENT_UNROLL
        for (uint e = 0; e < FRAGMENT_ELEMENTS; e++) {
            const uint row = unit.wave * FRAGMENT_SIZE + fragment_row(unit, e);
            d[row * ROWS + j * FRAGMENT_SIZE + fragment_column(unit, e)] = fragment_get(acc, e);
        }
    }
}
