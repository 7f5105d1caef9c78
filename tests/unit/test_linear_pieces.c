/*
 * test_linear_pieces.c - how cl/linear/linear_pieces.clh shares out tiles: every stage of every
 * tile is some work-group's, once; the parts of a tile are counted right, in the order of K, and no
 * two have one place in memory.
 */
#include "llmk_cmocka.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define uint uint32_t
#include "../../cl/linear/linear_pieces.clh"
#undef uint

typedef struct seen {
    uint32_t group, end;
} seen;

/* left: of each tile that has an owner, for others; 0 where none has one. */
static void share_out(uint32_t groups, uint32_t tiles, uint32_t stages, uint32_t whole,
                      uint32_t left)
{
    const uint32_t rest = tiles - whole, others = left ? groups - rest : groups;
    const uint32_t row = rest * (left ? left : stages);
    const uint32_t per = rest ? (row + others - 1) / others : 1;
    const uint32_t own = left ? stages - left : 0;
    seen *by = calloc((size_t)tiles * stages, sizeof *by); /* where a piece begins */
    uint8_t *taken = calloc(2 * (size_t)groups, 1);
    assert_non_null(by);
    assert_non_null(taken);
    for (uint32_t g = 0; g < groups; g++) {
        const share_t s = {g, groups, tiles, stages, whole, per, own};
        uint32_t partial = 0, streamed = 0, owned = 0;
        for (piece_t p = piece_first(s); piece_is_there(s, p); p = piece_next(s, p)) {
            assert_true(p.begin < p.end && p.end <= stages);
            assert_int_equal(by[p.tile * stages + p.begin].end, 0);
            by[p.tile * stages + p.begin] = (seen){g, p.end};
            partial += !piece_is_whole(s, p);
            *(own && p.tile >= whole && p.begin == 0 ? &owned : &streamed) +=
                p.tile >= whole ? p.end - p.begin : 0;
            if (p.tile < whole) {
                assert_true(piece_is_whole(s, p));
                assert_int_equal(p.tile % groups, g);
            }
        }
        assert_true((own || partial <= 2) && streamed <= per);
        assert_true(!owned || (owned == own && streamed == 0 && g < rest));
    }
    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t part = 0, at = 0;
        const bool is_shared = t >= whole && by[t * stages].end < stages;
        const share_t s = {0, groups, tiles, stages, whole, per, own};
        while (at < stages) {
            const seen piece = by[t * stages + at];
            assert_true(piece.end > at);
            if (is_shared) {
                const parts_t parts = parts_of(s, t);
                const share_t its = {piece.group, groups, tiles, stages, whole, per, own};
                assert_int_equal(part_of(its, parts), part);
                const uint32_t place = part_place(parts, part);
                assert_true(place < 2 * groups);
                assert_int_equal(taken[place]++, 0);
            }
            at = piece.end;
            part++;
        }
        assert_int_equal(at, stages);
        if (is_shared)
            assert_int_equal(part, parts_of(s, t).count);
    }
    free(taken);
    free(by);
}

static void test_shares(void **state)
{
    (void)state;
    static const uint32_t tiles[] = {1, 2, 7, 16, 43, 112, 132, 133, 224, 300};
    static const uint32_t groups[] = {1, 3, 16, 132};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        for (size_t j = 0; j < sizeof groups / sizeof *groups; j++)
            for (uint32_t stages = 1; stages < 90; stages += stages < 10 ? 1 : 26) {
                const uint32_t whole = tiles[i] / groups[j] * groups[j];
                share_out(groups[j], tiles[i], stages, 0, 0);
                share_out(groups[j], tiles[i], stages, whole, 0);
                for (uint32_t left = 1; tiles[i] > whole && left < stages; left++)
                    share_out(groups[j], tiles[i], stages, whole, left);
                if (tiles[i] > groups[j])
                    share_out(groups[j], tiles[i], stages, groups[j], 0);
            }
}

/* As launches without parts have it. */
static void test_all_whole(void **state)
{
    (void)state;
    uint32_t count = 0;
    for (uint32_t g = 0; g < 132; g++) {
        const share_t s = {g, 132, 1000, 64, UINT32_MAX, 0, 0};
        for (piece_t p = piece_first(s); piece_is_there(s, p); p = piece_next(s, p)) {
            assert_true(piece_is_whole(s, p));
            count++;
        }
    }
    assert_int_equal(count, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_all_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
