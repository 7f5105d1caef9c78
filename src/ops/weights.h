/*
 * weights.h - what the files of llmk_weights share: formats (weights_formats.c), act-order
 * (weights_order.c), repacking and upload (weights_upload.c), blocks of rows (weights_blocks.c);
 * weights.c puts them together.
 */
#ifndef LLMK_OPS_WEIGHTS_H
#define LLMK_OPS_WEIGHTS_H

#include "core/weights.h"

/* ---- Layouts ---- */

typedef struct weights_layout {
    const char *name;
    uint32_t bits;  /* of a weight */
    uint32_t chunk; /* rows are filled up to a multiple of so many weights */
    uint32_t block; /* rows that lie together; N is filled up to a multiple of them */
} weights_layout;

const weights_layout *llmk_weights_layout_of(llmk_layout layout);
uint64_t llmk_weights_pitch(llmk_layout layout, uint64_t depth); /* bytes of a row */
uint64_t llmk_weights_scale_pitch(llmk_scale_kind kind, uint64_t groups);

/* ---- Formats ---- */

/* Repacks one block of a row. */
typedef void (*weights_repack_fn)(const uint8_t *block, uint8_t *codes, uint8_t *scale);

/* How codes lie in formats that have scales apart from them. */
typedef enum weights_packing {
    WEIGHTS_BLOCKS = 0, /* elements, or blocks with their scales inside */
    WEIGHTS_W8,
    WEIGHTS_W4,
    WEIGHTS_GPTQ,
    WEIGHTS_AWQ,
    WEIGHTS_CT
} weights_packing;

typedef struct weights_format {
    const char *name;
    weights_repack_fn repack; /* NULL: as they are */
    llmk_format format;
    weights_packing packing;
    uint32_t block, block_bytes; /* WEIGHTS_BLOCKS: weights in a block along K; its bytes */
    uint32_t group;              /* WEIGHTS_BLOCKS: weights in a group; 0: no scales */
    llmk_layout layout;
    llmk_scale_kind scale_kind;
    float zero;
} weights_format;

const weights_format *llmk_weights_format_of(llmk_format format);

/* A tensor of a checkpoint: `rows` rows of `bytes` bytes, `pitch` apart. */
typedef struct weights_table {
    const char *name; /* in messages */
    llmk_source source;
    uint64_t rows, bytes, pitch;
} weights_table;

/* A checked description. */
typedef struct weights_plan {
    const weights_format *format;
    uint32_t bits, fields; /* of a code; codes in a word of 32 bits */
    bool by_column;        /* data and scales have a row for every word of K, or group */
    bool zeros_are_i8;     /* compressed-tensors, not packed */
    uint32_t source_groups;
    uint32_t scale_size; /* bytes of a scale */
    weights_table data, scales, zeros;
} weights_plan;

/* ---- Act-order ---- */

#define WEIGHTS_FILLER UINT32_MAX

/* How the weights of a row are rearranged, so that those of a group are neighbours. */
typedef struct weights_order {
    uint32_t *column; /* [depth]: where the weight was, or WEIGHTS_FILLER; NULL: all in place */
    uint32_t *group;  /* [groups]: whose scale it has; NULL: its own */
    uint64_t depth;
    uint32_t group_size, groups;
} weights_order;

/* g_idx NULL: in order. Fails with LLMK_CORRUPT_DATA where an index is no group. */
llmk_status llmk_weights_order_make(const uint32_t *g_idx, uint64_t k, uint32_t group_size,
                                    uint32_t groups, weights_order *order);
/* Makes an order that says "in order" one that has every weight listed. */
llmk_status llmk_weights_order_list(weights_order *order);
void llmk_weights_order_free(weights_order *order);

/* ---- Blocks of rows (weights_blocks.c) ---- */

/* Rows one after the other as portable layouts have them, filled up as w's layout wants; or the
 * same in w's blocks. Where w has none there may be anything. */
typedef struct weights_rows {
    uint8_t *data, *scales, *zeros;
} weights_rows;

/* What fills up the last block is not meant to be used. */
void llmk_weights_block_rows(const llmk_weights *w, uint64_t rows, const weights_rows *from,
                             const weights_rows *to);
/* Bytes of a row of zeros before that. */
uint64_t llmk_weights_zero_row(const llmk_weights *w);

/* ---- Upload ---- */

/* Repacks an expert's matrix into w's segments and w->order, which are there. */
llmk_status llmk_weights_upload(const llmk_weights *w, uint64_t expert, const weights_plan *plan,
                                const weights_order *order);
/* Reads `count` words of a source into `words`. */
llmk_status llmk_weights_read_words(llmk_context *ctx, const llmk_source *source, uint64_t count,
                                    uint32_t *words);

#endif
