/*
 * weights_blocks.c - rows of weights regrouped for NVIDIA's mma.sync: the layouts u4-affine/nv and
 * s8/nv, drawn in docs/numerics-linear.md.
 *
 * Sixteen rows are a block. Along K it is tiles of 512 bytes, of which lane 4g + q of a warp owns
 * 16: weights of the rows g and g + 8, in the order in which the instruction wants them.
 */
#include "ops/weights.h"

#define BLOCK 16u

uint64_t llmk_weights_zero_row(const llmk_weights *w)
{
    return llmk_layout_is_u4(w->layout) ? (w->groups + 1) / 2 : w->groups;
}

/* Where row r of a block comes among its scales and zeros: those of a lane are neighbours. */
static size_t place_of(size_t r)
{
    return r % 8 * 2 + r / 8;
}

/* Four nibbles, weights 2v + e of a lane's share, to nibbles 2v + 4e. */
static uint32_t spread(uint32_t four)
{
    return (four & 0x0f0f) | (four & 0xf0f0) << 12;
}

static uint32_t four_at(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

/* 64 weights of row g and of row g + 8, 32 bytes each, to the 16 bytes of each lane 4g + q. */
static void put_u4(const uint8_t *upper, const uint8_t *lower, uint8_t *lanes)
{
    for (size_t q = 0; q < 4; q++)
        for (size_t j = 0; j < 4; j++) {
            const size_t at = j / 2 * 16 + q * 4 + j % 2 * 2;
            const uint32_t word = spread(four_at(upper + at)) | spread(four_at(lower + at)) << 4;
            memcpy(lanes + q * 16 + j * 4, &word, sizeof word);
        }
}

/* 32 weights of each; codes count from 0 here. */
static void put_s8(const uint8_t *upper, const uint8_t *lower, uint8_t *lanes)
{
    for (size_t q = 0; q < 4; q++)
        for (size_t i = 0; i < 8; i++) {
            lanes[q * 16 + i] = upper[q * 8 + i] ^ 0x80;
            lanes[q * 16 + 8 + i] = lower[q * 8 + i] ^ 0x80;
        }
}

/* row[r]: the r-th row of the block, or zeros. */
static void put_data(const llmk_weights *w, const uint8_t *const row[BLOCK], uint8_t *to)
{
    const bool u4 = llmk_layout_is_u4(w->layout);
    for (uint64_t tile = 0; tile < w->pitch / 512; tile++)
        for (size_t g = 0; g < 8; g++)
            (u4 ? put_u4 : put_s8)(row[g] + tile * 32, row[g + 8] + tile * 32,
                                   to + tile * 512 + g * 64);
}

static void put_zeros(const llmk_weights *w, const uint8_t *from, uint64_t rows, uint8_t *to)
{
    const uint64_t pitch = llmk_weights_zero_row(w);
    memset(to, 0, w->zero_pitch);
    for (size_t r = 0; r < rows; r++)
        for (uint64_t g = 0; g < w->groups; g++) {
            const uint64_t at = g * BLOCK + place_of(r);
            if (!llmk_layout_is_u4(w->layout)) {
                to[at] = from[r * pitch + g];
                continue;
            }
            const unsigned zero = from[r * pitch + g / 2] >> g % 2 * 4 & 15;
            to[at / 2] = (uint8_t)(to[at / 2] | zero << at % 2 * 4);
        }
}

static void put_scales(const llmk_weights *w, const uint8_t *from, uint64_t rows, uint8_t *to)
{
    const uint64_t pitch = w->scale_pitch / BLOCK, size = pitch / w->groups;
    memset(to, 0, w->scale_pitch);
    for (size_t r = 0; r < rows; r++)
        for (uint64_t g = 0; g < w->groups; g++)
            memcpy(to + (g * BLOCK + place_of(r)) * size, from + r * pitch + g * size, size);
}

void llmk_weights_block_rows(const llmk_weights *w, uint64_t rows, const weights_rows *from,
                             const weights_rows *to)
{
    const uint64_t pitch = w->pitch / BLOCK;
    for (uint64_t first = 0; first < rows; first += BLOCK) {
        const uint64_t block = first / BLOCK, count = rows - first < BLOCK ? rows - first : BLOCK;
        const uint8_t *row[BLOCK];
        /* The last row stands in for those beyond it: their outputs are never stored. */
        for (uint64_t r = 0; r < BLOCK; r++)
            row[r] = from->data + (first + (r < count ? r : count - 1)) * pitch;
        put_data(w, row, to->data + block * w->pitch);
        if (w->scale_pitch)
            put_scales(w, from->scales + first * (w->scale_pitch / BLOCK), count,
                       to->scales + block * w->scale_pitch);
        if (w->zero_pitch)
            put_zeros(w, from->zeros + first * llmk_weights_zero_row(w), count,
                      to->zeros + block * w->zero_pitch);
    }
}
