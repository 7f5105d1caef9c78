/* Writing small GGUF v3 files: a slice of a model, or a synthetic one.
 *
 * A file is written under a temporary name next to `path`, read back, and renamed, so that `path`
 * is either the whole new file or untouched; it may be the file that the source has open. */
#ifndef LLMK_FORMATS_GGUF_WRITE_H
#define LLMK_FORMATS_GGUF_WRITE_H

#include "formats/gguf.h"

typedef struct llmk_gguf_slice {
    const char *name;   /* a tensor of the source */
    uint64_t row_limit; /* keep at most that many of the first rows (dims[1]) of a matrix; 0 keeps
                           the tensor whole */
} llmk_gguf_slice;

/* The named tensors, in the order given, and all metadata but the large tokenizer arrays. The
 * metadata is copied as it is: it goes on to describe the whole model. */
bool llmk_gguf_write_slice(const llmk_gguf *source, const llmk_gguf_slice *slices, size_t count,
                           const char *path, char *error, size_t error_size);

/* A llama-style model that has token_embd.weight and, for each block, ffn_norm, ffn_gate, ffn_up
 * and ffn_down. Weights are bell-shaped and scaled by 1/sqrt(in features), norms lie around 1. A
 * tensor depends on the seed, its name and its shape alone, and is the same on every host. */
typedef struct llmk_gguf_synthetic {
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t blocks;
    uint32_t rows;           /* of token_embd.weight */
    uint32_t type;           /* of gate, up and down: F32, F16, BF16, Q8_0, Q4_0 or Q4_1 */
    uint32_t embedding_type; /* of token_embd.weight: the same choice */
    float rms_epsilon;       /* taken literally */
    uint64_t seed;
} llmk_gguf_synthetic;

bool llmk_gguf_write_synthetic(const llmk_gguf_synthetic *model, const char *path, char *error,
                               size_t error_size);

#endif
