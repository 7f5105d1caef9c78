/* The block formats of GGUF tensors: sizes of all the common ones, host conversion of the plain
 * ones.
 *
 * A row is a whole number of blocks. Packed data is little-endian and may lie at any address. */
#ifndef LLMK_FORMATS_GGUF_BLOCKS_H
#define LLMK_FORMATS_GGUF_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are those of the file format. */
typedef enum llmk_gguf_type {
    LLMK_GGUF_F32 = 0,
    LLMK_GGUF_F16 = 1,
    LLMK_GGUF_Q4_0 = 2,
    LLMK_GGUF_Q4_1 = 3,
    LLMK_GGUF_Q5_0 = 6,
    LLMK_GGUF_Q5_1 = 7,
    LLMK_GGUF_Q8_0 = 8,
    LLMK_GGUF_Q8_1 = 9,
    LLMK_GGUF_Q2_K = 10,
    LLMK_GGUF_Q3_K = 11,
    LLMK_GGUF_Q4_K = 12,
    LLMK_GGUF_Q5_K = 13,
    LLMK_GGUF_Q6_K = 14,
    LLMK_GGUF_Q8_K = 15,
    LLMK_GGUF_IQ4_NL = 20,
    LLMK_GGUF_IQ4_XS = 23,
    LLMK_GGUF_I8 = 24,
    LLMK_GGUF_I16 = 25,
    LLMK_GGUF_I32 = 26,
    LLMK_GGUF_I64 = 27,
    LLMK_GGUF_F64 = 28,
    LLMK_GGUF_BF16 = 30,
    LLMK_GGUF_MXFP4 = 39
} llmk_gguf_type;

typedef struct llmk_gguf_type_info {
    const char *name;
    uint32_t type;
    uint32_t block_elements;
    uint32_t block_bytes;
} llmk_gguf_type_info;

/* NULL when the type is not known. */
const llmk_gguf_type_info *llmk_gguf_type_of(uint32_t type);

/* The bytes of `elements` weights; false when the type is unknown, `elements` is not a whole number
 * of blocks, or the size does not fit. */
bool llmk_gguf_packed_bytes(uint32_t type, uint64_t elements, size_t *bytes);

/* Packed weights to float: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K. Everything is exact but
 * Q4_1's and Q4_K's final addition and Q6_K's product. False, with nothing written, for another
 * type or a partial block. */
bool llmk_gguf_dequantise(uint32_t type, const void *packed, size_t elements, float *weights);

/* Float to packed weights, the same types without K-quants. Blocks are those of the reference
 * quantisers of the format: absolute maximum (Q8_0, Q4_0) or range (Q4_1), round to nearest. False,
 * with `packed` undefined, for another type, a partial block, or when a block holds a value that is
 * not finite or needs a scale beyond f16. */
bool llmk_gguf_quantise(uint32_t type, const float *weights, size_t elements, void *packed);

#endif
