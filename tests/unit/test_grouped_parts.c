/*
 * test_grouped_parts.c - the tiles of cl/grouped_linear/grouped_parts.clh: together they are every
 * row of every group of a launch times every column, once, whatever the groups and the work-groups.
 */
#include "llmk_cmocka.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t part_uint;
static inline part_uint part_min(part_uint a, part_uint b)
{
    return a < b ? a : b;
}
static inline part_uint part_max(part_uint a, part_uint b)
{
    return a > b ? a : b;
}
#define uint part_uint
#define max  part_max
#define min  part_min
#define global
#define TILE_M 192
#define TILE_N 256
#define TILE_K 64
#include "../../cl/grouped_linear/grouped_schedule.clh"

#include "../../cl/grouped_linear/grouped_parts.clh"
#undef min
#undef max
#undef max
#undef uint

/* Rows of each group; ends with -1. */
static const int groups[][12] = {
    {0, -1},
    {1, -1},
    {0, 1, 63, 64, 65, 128, 129, 300, 0, 0, -1},
    {0, 0, 0, 1100, -1}, /* more than half a band of rows of tiles */
    {2100, 0, 128, 1024, 1025, -1},
    {16, 16, 16, 16, 16, 16, 16, 16, -1},
};
static const uint32_t columns[] = {32, 64, 128, 160, 256, 288, 1024, 1184};
static const uint32_t units[] = {1, 2, 7, 132};
static const uint32_t depths[] = {8, 64, 200, 1024};
static const uint32_t most_ways[] = {1, 8};

/* Every row and column is in tiles whose shares of K are K, once. */
static void cover(const grouped_t *g, uint32_t work_groups, uint32_t begin, uint32_t end)
{
    uint32_t *seen = calloc((size_t)(end - begin) + 1, g->columns / 32 * sizeof *seen);
    assert_non_null(seen);
    const parts_t parts = parts_of(*g, work_groups);
    assert_true(parts.ways >= 1 && parts.ways <= g->most_ways);
    for (uint32_t index = 0; index < parts.count + 3; index++) {
        const part_t p = part_at(*g, parts, index);
        assert_int_equal(p.rows > 0, index < parts.count);
        if (p.rows == 0)
            continue;
        assert_true(p.rows <= TILE_M && p.column % TILE_N == 0);
        assert_true(p.begin >= begin && p.begin + p.rows <= end);
        assert_true(p.way < parts.ways && p.k < p.k_end && p.k % TILE_K == 0 && p.k_end <= g->k);
        if (p.rows % GRAIN)
            assert_true((int)(p.begin + p.rows) ==
                        (g->schedule ? g->schedule[p.group + 1] : (int)end));
        if (g->schedule) {
            assert_true(p.group >= g->first && p.group < g->last);
            assert_true((int)p.begin >= g->schedule[p.group]);
            assert_true((int)(p.begin + p.rows) <= g->schedule[p.group + 1]);
        }
        for (uint32_t r = p.begin - begin; r < p.begin - begin + p.rows; r++)
            for (uint32_t c = p.column; c < p.column + TILE_N && c < g->columns; c += 32)
                seen[r * (g->columns / 32) + c / 32] += p.k_end - p.k;
    }
    for (size_t i = 0; i < (size_t)(end - begin) * (g->columns / 32); i++)
        assert_int_equal(seen[i], g->k);
    free(seen);
}

/* In all sizes. */
static void cover_all(grouped_t g, uint32_t begin, uint32_t end)
{
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
        for (size_t u = 0; u < sizeof units / sizeof *units; u++)
            for (size_t k = 0; k < sizeof depths / sizeof *depths; k++) {
                g.columns = columns[c];
                g.k = depths[k];
                g.most_ways = most_ways[(c + u + k) % 2];
                cover(&g, units[u], begin, end);
            }
}

static void test_schedules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        int schedule[24] = {0};
        grouped_t g = {.schedule = schedule, .empty = UINT32_MAX};
        while (groups[i][g.groups] >= 0)
            g.groups++;
        int *tiles = schedule + g.groups + 1;
        for (uint32_t e = 0; e < g.groups; e++) {
            schedule[e + 1] = schedule[e] + groups[i][e];
            tiles[e + 1] = tiles[e] + (groups[i][e] + TILE_M - 1) / TILE_M;
        }
        g.rows = (uint32_t)schedule[g.groups];
        for (g.first = 0; g.first < g.groups; g.first++)
            for (g.last = g.first + 1; g.last <= g.groups; g.last++)
                cover_all(g, (uint32_t)schedule[g.first], (uint32_t)schedule[g.last]);
    }
}

static void test_without(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 64, 65, 160, 161, 1024, 3000};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        cover_all((grouped_t){.groups = 1, .last = 1, .rows = rows[r], .empty = UINT32_MAX}, 0,
                  rows[r]);
}

/* Group by group, the rows of tiles of one column one after the other. */
static void test_order(void **state)
{
    (void)state;
    static const int schedule[] = {0, 500, 500, 620, 0, 3, 3, 4};
    static const uint32_t begins[] = {0, 176, 352};
    const grouped_t g = {.schedule = schedule,
                         .groups = 3,
                         .last = 3,
                         .rows = 620,
                         .empty = UINT32_MAX,
                         .columns = 1024,
                         .k = 64,
                         .most_ways = 1};
    const parts_t parts = parts_of(g, 20);
    assert_int_equal(parts.count, 16);
    for (uint32_t i = 0; i < parts.count; i++) {
        const part_t p = part_at(g, parts, i);
        assert_int_equal(p.column, (i < 12 ? i / 3 : i - 12) * TILE_N);
        assert_int_equal(p.begin, i < 12 ? begins[i % 3] : 500);
        assert_int_equal(p.group, i < 12 ? 0 : 2);
    }
}

/* Two experts of 128 rows each and 4096 outputs keep 132 work-groups busy in four shares. */
static void test_ways(void **state)
{
    (void)state;
    static const int schedule[] = {0, 128, 256, 0, 1, 2};
    grouped_t g = {.schedule = schedule,
                   .groups = 2,
                   .last = 2,
                   .rows = 256,
                   .empty = UINT32_MAX,
                   .columns = 4096,
                   .k = 14336,
                   .most_ways = 8};
    assert_int_equal(parts_of(g, 132).ways, 4);
    g.most_ways = 3;
    assert_int_equal(parts_of(g, 132).ways, 3);
    g.most_ways = 8;
    g.columns = 32768; /* 256 tiles */
    assert_int_equal(parts_of(g, 132).ways, 1);
}

/* Whoever takes tiles in this order finds all of gate and up before down, and down reads rows
 * that a row of tiles of gate and up has written. */
static void test_layer(void **state)
{
    (void)state;
    static const int schedule[] = {0, 500, 500, 620, 0, 3, 3, 4};
    const grouped_t g = {.schedule = schedule,
                         .groups = 3,
                         .last = 3,
                         .rows = 620,
                         .empty = UINT32_MAX,
                         .columns = 1024,
                         .k = 128,
                         .most_ways = 1};
    layer_t l = {g, g};
    l.down.columns = 512;
    l.down.k = 256;
    uint32_t begins[4], rows[4];
    for (uint32_t i = 0; i < 4 * 4 + 4 * 2 * 2; i++) {
        const part_t p = layer_part(l, (order_t){0, 2}, i);
        assert_int_equal(p.down, i >= 4 * 4);
        assert_true(p.rows > 0 && p.tile < 4);
        assert_int_equal(p.k_end - p.k, 128);
        if (!p.down)
            begins[p.tile] = p.begin, rows[p.tile] = p.rows;
        assert_int_equal(begins[p.tile], p.begin);
        assert_int_equal(rows[p.tile], p.rows);
    }
    assert_int_equal(layer_part(l, (order_t){0, 2}, 4 * 4 + 4 * 2 * 2).rows, 0);
    const order_t whole = {0, 1};
    l.up.columns = 0;
    for (uint32_t i = 0; i < 4 * 2; i++)
        assert_true(layer_part(l, whole, i).down && layer_part(l, whole, i).rows > 0);
    l = (layer_t){g, g};
    l.down.columns = 0;
    assert_int_equal(layer_part(l, whole, 15).down, 0);
    assert_int_equal(layer_part(l, whole, 16).rows, 0);
}

/* Where some groups have many rows and others few, the first columns of all groups come first, then group by
 * group. All tiles are there once. */
static void test_across(void **state)
{
    (void)state;
    static const int schedule[] = {0, 500, 501, 501, 621, 0, 3, 4, 4, 5};
    static const int alike[] = {0, 500, 700, 700, 900, 0, 3, 5, 5, 7};
    layer_t l = {{.schedule = schedule,
                  .groups = 4,
                  .last = 4,
                  .rows = 621,
                  .empty = UINT32_MAX,
                  .columns = 8 * TILE_N,
                  .k = 128,
                  .most_ways = 1},
                 {0}};
    l.down = l.up;
    l.down.k = 1024;
    l.down.most_ways = 8;
    static const uint32_t launched[] = {1, 5, 7, 20, 132}, across[] = {7, 6, 5, 0, 0};
    for (size_t u = 0; u < 5; u++) {
        const order_t order = order_of(l, launched[u]);
        assert_int_equal(order.across, across[u]);
        assert_in_range(order.ways, 1, MIXED_WAYS);
        uint32_t seen[8][5] = {{0}}, first = across[u] * 5;
        for (uint32_t i = 0; i < 8 * 5; i++) {
            const part_t p = layer_part(l, order, i);
            assert_true(p.rows > 0 && !p.down && p.tile < 5 && p.column < l.up.columns);
            seen[p.column / TILE_N][p.tile]++;
            if (i < first) {
                assert_int_equal(p.column, i / 5 * TILE_N);
                assert_int_equal(p.tile, i % 5);
            } else {
                assert_true(p.column >= across[u] * TILE_N);
                assert_int_equal(p.group, i - first < 3 * (8 - across[u])   ? 0
                                          : i - first < 4 * (8 - across[u]) ? 1
                                                                            : 3);
            }
        }
        for (size_t i = 0; i < 8 * 5; i++)
            assert_int_equal(seen[i / 5][i % 5], 1);
        assert_true(layer_part(l, order, 8 * 5).down);
        assert_int_equal(layer_part(l, order, 8 * 5 * (1 + order.ways)).rows, 0);
    }
    assert_int_equal(order_of(l, 132).ways, 2);
    l.up.k = CACHED / 621 + 1;
    assert_int_equal(order_of(l, 1).across, 0);
    assert_int_equal(order_of(l, 132).ways, 3);
    l.up.k = 128;
    l.up.schedule = l.down.schedule = alike;
    assert_int_equal(order_of(l, 1).across, 0);
    l.up.schedule = NULL;
    assert_int_equal(order_of(l, 1).across, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules), cmocka_unit_test(test_without),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_ways),
        cmocka_unit_test(test_layer),     cmocka_unit_test(test_across)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
