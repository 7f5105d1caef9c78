/* tensors.h - small random tensors, and where each of their elements lies, by plain enumeration. */
#ifndef LLMK_TESTS_TENSORS_H
#define LLMK_TESTS_TENSORS_H

#include "support/rng.h"

#include <llmk/llmk.h>

#define PLACES_MAX 1024

/* The bit at which each element starts, from the start of the buffer, in row-major order. */
typedef struct places {
    uint32_t bits; /* of an element */
    uint64_t count;
    uint64_t at[PLACES_MAX];
} places;

/* Written apart from the library: only for tensors whose numbers are small. */
static inline places places_of(const llmk_tensor *t)
{
    places p = {.bits = llmk_dtype_bits(t->dtype), .count = 1};
    uint64_t stride[4], run = 1;
    int given = 0;
    for (uint32_t i = 0; i < t->rank; i++) {
        given |= t->stride[i] != 0;
        p.count *= t->dim[i];
    }
    for (uint32_t i = t->rank; i-- > 0; run *= t->dim[i])
        stride[i] = given ? t->stride[i] : run;
    for (uint64_t n = 0; n < p.count; n++) {
        uint64_t rest = n, element = 0;
        for (uint32_t i = t->rank; i-- > 0; rest /= t->dim[i])
            element += rest % t->dim[i] * stride[i];
        p.at[n] = t->offset * 8 + element * p.bits;
    }
    return p;
}

/* Sets a bit of `map` for every 4 bits of every element; returns false where one was set. */
static inline bool places_mark(const places *p, uint8_t *map, uint64_t map_nibbles)
{
    bool fresh = true;
    for (uint64_t n = 0; n < p->count; n++)
        for (uint64_t at = p->at[n] / 4; at < (p->at[n] + p->bits) / 4 && at < map_nibbles; at++) {
            fresh = fresh && !(map[at / 8] >> at % 8 & 1);
            map[at / 8] |= (uint8_t)(1u << at % 8);
        }
    return fresh;
}

/* How random strides come about. */
typedef enum tensor_kind {
    TENSOR_PACKED,   /* strides all zero: contiguous */
    TENSOR_NESTED,   /* any order of dimensions, gaps between them */
    TENSOR_ROWS,     /* innermost stride 1, padded rows */
    TENSOR_ANYTHING, /* small strides of no order, zero among them */
    TENSOR_KINDS
} tensor_kind;

static inline void random_strides(rng *r, llmk_tensor *t, tensor_kind kind)
{
    uint32_t order[4] = {0, 1, 2, 3};
    uint64_t run = 1;
    for (uint32_t i = t->rank; kind == TENSOR_NESTED && i-- > 1;) {
        const uint32_t j = (uint32_t)rng_below(r, i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (uint32_t n = t->rank; n-- > 0;) {
        const uint32_t i = order[n];
        const bool gap = rng_one_in(r, 3) && !(kind == TENSOR_ROWS && n + 1 == t->rank);
        t->stride[i] = run + (gap ? rng_below(r, 5) : 0);
        run = t->stride[i] * (t->dim[i] ? t->dim[i] : 1);
        if (kind == TENSOR_ANYTHING)
            t->stride[i] = rng_below(r, 14);
        if (t->dim[i] == 1 && rng_one_in(r, 4)) /* may be anything, and must not matter */
            t->stride[i] = rng_next(r) >> rng_below(r, 64);
    }
}

static inline llmk_tensor random_tensor(rng *r, cl_mem buffer, llmk_dtype dtype, tensor_kind kind)
{
    llmk_tensor t = {.buffer = buffer, .dtype = dtype, .rank = 1 + (uint32_t)rng_below(r, 4)};
    for (uint32_t i = 0; i < t.rank; i++)
        t.dim[i] = rng_one_in(r, 24) ? 0 : 1 + rng_below(r, 5);
    if (kind != TENSOR_PACKED)
        random_strides(r, &t, kind);
    t.offset = rng_below(r, 33) * (llmk_dtype_bits(dtype) + 7) / 8;
    if (rng_one_in(r, 16))
        t.offset += 1;
    return t;
}

/* For the message of a failure. */
static inline const char *tensor_text(const llmk_tensor *t, char text[256])
{
    snprintf(text, 256, "%s rank %u dim %llu %llu %llu %llu stride %llu %llu %llu %llu offset %llu",
             llmk_dtype_name(t->dtype), t->rank, (unsigned long long)t->dim[0],
             (unsigned long long)t->dim[1], (unsigned long long)t->dim[2],
             (unsigned long long)t->dim[3], (unsigned long long)t->stride[0],
             (unsigned long long)t->stride[1], (unsigned long long)t->stride[2],
             (unsigned long long)t->stride[3], (unsigned long long)t->offset);
    return text;
}

#endif
