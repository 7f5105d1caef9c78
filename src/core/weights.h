/*
 * weights.h - weights as they lie in device memory.
 *
 * A layout belongs to a device class, not to a variant: weights record theirs, and every variant of
 * an operator says which layouts it reads. The bits are described in
 * docs/numerics-linear.md.
 */
#ifndef LLMK_WEIGHTS_H
#define LLMK_WEIGHTS_H

#include "core/core.h"

/* Numbered as in cl/linear/linear_any.clh; those of device classes from 16 on. */
typedef enum llmk_layout {
    LLMK_LAYOUT_F32_PORTABLE = 1,
    LLMK_LAYOUT_F16_PORTABLE = 2,
    LLMK_LAYOUT_BF16_PORTABLE = 3,
    LLMK_LAYOUT_S8_PORTABLE = 4,
    LLMK_LAYOUT_U4_PORTABLE = 5,
    LLMK_LAYOUT_Q6_K_PORTABLE = 6,
    LLMK_LAYOUT_Q4_K_PORTABLE = 7, /* codes as in u4 */
    LLMK_LAYOUT_U4_NV = 16,        /* operands of mma.sync, as are the next */
    LLMK_LAYOUT_S8_NV = 17
} llmk_layout;

#define LLMK_LAYOUT_BIT(layout) (1u << (layout))
#define LLMK_LAYOUTS_PORTABLE                                                                      \
    (LLMK_LAYOUT_BIT(LLMK_LAYOUT_F32_PORTABLE) | LLMK_LAYOUT_BIT(LLMK_LAYOUT_F16_PORTABLE) |       \
     LLMK_LAYOUT_BIT(LLMK_LAYOUT_BF16_PORTABLE) | LLMK_LAYOUT_BIT(LLMK_LAYOUT_S8_PORTABLE) |       \
     LLMK_LAYOUT_BIT(LLMK_LAYOUT_U4_PORTABLE) | LLMK_LAYOUTS_K_QUANTS)
#define LLMK_LAYOUTS_K_QUANTS                                                                      \
    (LLMK_LAYOUT_BIT(LLMK_LAYOUT_Q4_K_PORTABLE) | LLMK_LAYOUT_BIT(LLMK_LAYOUT_Q6_K_PORTABLE))

#define LLMK_LAYOUTS_NV (LLMK_LAYOUT_BIT(LLMK_LAYOUT_U4_NV) | LLMK_LAYOUT_BIT(LLMK_LAYOUT_S8_NV))

static inline bool llmk_layout_is_u4(llmk_layout layout)
{
    return layout == LLMK_LAYOUT_U4_PORTABLE || layout == LLMK_LAYOUT_U4_NV;
}

/* "u4-affine/portable". */
const char *llmk_layout_name(llmk_layout layout);

/* What lies beside the codes, for every group of every row; cl/linear/linear_common.clh. */
typedef enum llmk_scale_kind {
    LLMK_SCALE_NONE = 0,
    LLMK_SCALE_F32 = 1,
    LLMK_SCALE_F16 = 2,
    LLMK_SCALE_F16_MIN = 3, /* scale and minimum, f16 each */
    LLMK_SCALE_BF16 = 4,
    LLMK_SCALE_Q4_K = 5, /* 8 groups in 16 bytes */
    LLMK_SCALE_Q6_K = 6  /* 16 groups in 18 bytes */
} llmk_scale_kind;

/* Rows first ... first + rows - 1 of all experts' rows, whole experts where there are several.
 * Buffers of no bytes are NULL. */
typedef struct llmk_segment {
    uint64_t first, rows;
    cl_mem data, scales, zeros;
} llmk_segment;

struct llmk_weights {
    llmk_context *ctx; /* a reference */
    llmk_format format;
    llmk_layout layout;
    llmk_scale_kind scale_kind;
    float zero;       /* w = scale * (q - zero) + minimum */
    bool has_zeros;   /* a zero for every group of every row, instead of the one above */
    uint64_t experts; /* matrices [n, k], one after the other; at least 1 */
    uint64_t n, k;
    uint64_t described_group; /* as the caller gave it, or the format's own */
    uint64_t depth;      /* weights in a row as it lies in memory: k, and fillers of act-order */
    cl_mem order;        /* act-order: u32 [experts, depth], the column of x of each; else NULL */
    uint64_t order_hash; /* of the orders' columns; 0 without */
    uint32_t group_size, groups;
    uint32_t block; /* rows that lie together: 1; 16 in layouts of matrix units */
    uint64_t pitch, scale_pitch, zero_pitch; /* bytes of a block's data, scales and zeros */
    uint64_t device_bytes;
    size_t segment_count;
    llmk_segment segments[]; /* none where W is empty */
};

static inline uint64_t llmk_weights_first_rows(const llmk_weights *w)
{
    return w->segment_count ? w->segments[0].rows : 0;
}

/* Which layouts weights get. What a class has none for stays portable: formats, and groups that its
 * layout cannot hold. */
typedef enum llmk_layout_class {
    LLMK_CLASS_OF_DEVICE = 0, /* the best for the context's device */
    LLMK_CLASS_PORTABLE,
    LLMK_CLASS_NV
} llmk_layout_class;

static inline llmk_layout_class llmk_class_of(llmk_layout layout)
{
    return LLMK_LAYOUT_BIT(layout) & LLMK_LAYOUTS_NV ? LLMK_CLASS_NV : LLMK_CLASS_PORTABLE;
}

/* llmk_weights_create in a given class, with no buffer larger than max_buffer bytes (0: the
 * device's largest). */
llmk_status llmk_weights_create_as(llmk_context *ctx, const llmk_weights_desc *desc,
                                   llmk_layout_class layouts, uint64_t max_buffer,
                                   llmk_weights **out);

/* `experts` experts that are all the one of `one`, copied on the device: to time what takes long to
 * make. */
llmk_status llmk_weights_repeat(const llmk_weights *one, uint64_t experts, uint64_t max_buffer,
                                llmk_weights **out);

#endif
