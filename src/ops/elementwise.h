/*
 * elementwise.h - how elementwise kernels are spread over work-groups: tiles of
 * 8 * vecs * local[0] columns along the first dimension, rows over the second. Kernels loop over
 * the rows that groups[1] does not reach.
 */
#ifndef LLMK_ELEMENTWISE_H
#define LLMK_ELEMENTWISE_H

#include "ops/operator.h"

typedef struct llmk_grid {
    size_t groups[3], local[3];
} llmk_grid;

/* For kernels that move `vecs` vectors of eight elements a work-item, in work-groups of at most
 * `items`; 0: what is usual for the device. */
llmk_grid llmk_tile_grid(const llmk_caps *caps, uint64_t rows, uint64_t cols, uint32_t vecs,
                         uint32_t items);
/* The `items` of a launch, of the configurations that operators of such kernels have. */
uint32_t llmk_tile_items(const llmk_launch *launch);
#define LLMK_TILE_CONFIG(variant, items)                                                           \
    {                                                                                              \
        variant, "items-" #items, {items}, items, 0                                                \
    }
#define LLMK_TILE_CONFIGS                                                                          \
    {                                                                                              \
        LLMK_TILE_CONFIG("nv", 64), LLMK_TILE_CONFIG("nv", 128), LLMK_TILE_CONFIG("nv", 256),      \
            LLMK_TILE_CONFIG("portable", 16), LLMK_TILE_CONFIG("portable", 64),                    \
            LLMK_TILE_CONFIG("portable", 128), LLMK_TILE_CONFIG("portable", 256),                  \
    }
/* For `ref` kernels: one work-item a column. */
llmk_grid llmk_element_grid(uint64_t rows, uint64_t cols);

/* What the typed kernels ask of each tensor: absent, or rows of unit stride. */
bool llmk_unit_rows(const llmk_view *const *views, const char *const *names, size_t count,
                    llmk_reason *why);
/* Every tensor that is present has its rows on 16-byte boundaries. */
bool llmk_aligned_rows(const llmk_view *const *views, size_t count);

/* The `nv` variants' devices. */
bool llmk_nv_supported(llmk_context *ctx, llmk_reason *why);

#endif
