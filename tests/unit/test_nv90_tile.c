/*
 * test_nv90_tile.c - where cl/common/nv90_tile.clh puts the operands of wgmma: the addresses are
 * one to one and swizzled as the hardware does, the descriptor says so, and the permutation of W
 * makes a lane's sums neighbours in y.
 */
#include "llmk_cmocka.h"

#include <stdint.h>
#include <stdlib.h>

#define uint  uint32_t
#define ulong uint64_t
#include "../../cl/common/nv90_tile.clh"
#undef uint
#undef ulong

#define ROWS 256u

static void test_offsets(void **state)
{
    (void)state;
    uint8_t seen[ROWS * 8] = {0};
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t chunk = 0; chunk < 8; chunk++) {
            const uint32_t at = nv90_offset(row, chunk);
            assert_int_equal(at % 16, 0);
            assert_true(at / 16 < ROWS * 8);
            assert_int_equal(seen[at / 16]++, 0);
            /* A row stays within its 128 bytes, its chunks exchanged by the row within the atom. */
            assert_int_equal(at / NV90_ROW, row);
            assert_int_equal(at % NV90_ROW / 16, chunk ^ row % 8);
        }
    assert_int_equal(nv90_offset(0, 3), 0x30);
    assert_int_equal(nv90_offset(5, 3), 5 * 128 + 6 * 16);
}

/* Eight rows that copies write, or wgmma reads, at one time: all 32 banks, each once. */
static void test_banks(void **state)
{
    (void)state;
    for (uint32_t row = 0; row < ROWS; row += 8)
        for (uint32_t chunk = 0; chunk < 8; chunk++) {
            unsigned banks = 0;
            for (uint32_t i = 0; i < 8; i++)
                banks |= 1u << nv90_offset(row + i, chunk) % 128 / 16;
            assert_int_equal(banks, 0xff);
        }
}

/* A lane reads words of all four lanes of its quad, whose 16 bytes lie in the order of lanes,
 * eight in a row: with each load a warp asks for sixteen words, in sixteen banks. */
static void test_quad_words(void **state)
{
    (void)state;
    for (uint32_t block = 0; block < ROWS; block += 4)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t banks = 0;
            for (uint32_t lane = 0; lane < 32; lane++) {
                const uint32_t row = block + lane / 8, other = lane / 4 * 4 + i;
                const uint32_t at = nv90_quad_word(row, lane) ^ 16 * i;
                assert_int_equal(at, nv90_offset(row, other % 8) + lane % 4 / 2 * 4);
                if (lane % 2 == 0) {
                    assert_int_equal(banks >> at % 128 / 4 & 1, 0);
                    banks |= (uint32_t)1 << at % 128 / 4;
                }
            }
        }
}

static void test_descriptor(void **state)
{
    (void)state;
    for (uint32_t address = 0; address < 1u << 18; address += 1024) {
        const uint64_t d = nv90_descriptor(address);
        assert_int_equal(d & 0x3fff, address >> 4);
        assert_int_equal(d >> 32 & 0x3fff, 1024 >> 4); /* from atom to atom */
        assert_int_equal(d >> 49 & 7, 0);              /* atoms begin at multiples of 1024 */
        assert_int_equal(d >> 62, 1);                  /* the 128-byte swizzle */
        assert_int_equal((d + 6) & 0x3fff, (address + 3 * 32) >> 4); /* 48 of K on: no carry */
    }
}

static void test_columns(void **state)
{
    (void)state;
    uint8_t seen[ROWS] = {0};
    for (uint32_t row = 0; row < ROWS; row++)
        assert_int_equal(seen[nv90_column(row)]++, 0);
    /* Lane q of four, register v of a product of eight columns: column 2 q + v. */
    for (uint32_t block = 0; block < ROWS; block += 32)
        for (uint32_t q = 0; q < 4; q++)
            for (uint32_t i = 0; i < 8; i++)
                assert_int_equal(nv90_column(block + i / 2 * 8 + 2 * q + i % 2), block + 8 * q + i);
    for (uint32_t block = 0; block < ROWS; block += 16)
        for (uint32_t q = 0; q < 4; q++)
            for (uint32_t i = 0; i < 4; i++)
                assert_int_equal(nv90_column_16(block + i / 2 * 8 + 2 * q + i % 2),
                                 block + 4 * q + i);
}

/* A box's rows, whose strides are unit / 8, 1, unit and 2 from the innermost on, and those of a
 * lane. */
static void test_units(void **state)
{
    (void)state;
    for (uint32_t unit = 16; unit <= 32; unit += 16) {
        uint32_t row = 0;
        for (uint32_t b = 0; b < unit / 16; b++)
            for (uint32_t w = 0; w < 8; w++)
                for (uint32_t h = 0; h < 2; h++)
                    for (uint32_t g = 0; g < 8; g++)
                        assert_int_equal(nv90_unit_row(row++, unit),
                                         unit / 8 * g + h + unit * w + 2 * b);
        for (uint32_t lane = 0; lane < 256; lane++) { /* of both warpgroups */
            const uint32_t first = lane / 32 * 16 + lane % 32 / 4, each = unit / 8;
            for (uint32_t i = 0; i < each; i++)
                assert_int_equal(nv90_unit_row(first + i / 2 * 128 + i % 2 * 8, unit),
                                 lane / 32 * unit + lane % 32 / 4 * each + i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offsets),    cmocka_unit_test(test_banks),
        cmocka_unit_test(test_quad_words), cmocka_unit_test(test_descriptor),
        cmocka_unit_test(test_columns),    cmocka_unit_test(test_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
