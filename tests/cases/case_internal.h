/*
 * case_internal.h - what the files that implement case.h share.
 */
#ifndef LLMK_CASE_INTERNAL_H
#define LLMK_CASE_INTERNAL_H

#include "cases/case.h"

#include <setjmp.h>

/* ---- Storage (case_values.c), written independently of the library's own conversions ---- */

/* One element of an array of dtype; `index` counts elements from `bytes`. */
void case_encode(llmk_dtype dtype, uint8_t *bytes, uint64_t index, double value);
double case_decode(llmk_dtype dtype, const uint8_t *bytes, uint64_t index);
/* The smallest magnitude that a store to dtype turns into infinity; infinite for integers. */
double case_overflow(llmk_dtype dtype);
bool case_is_float(llmk_dtype dtype);
/* The index-th of a stream of standard normal numbers, the same on every host. */
double case_normal(uint64_t seed, uint64_t index);
/* Bytes that `count` elements take. */
uint64_t case_bytes(llmk_dtype dtype, uint64_t count);

/* ---- A run (case.c) ---- */

/* Bytes of canary before and after each tensor. A multiple of every alignment that a kernel could
 * profit from, so that `pad` alone decides the alignment. */
#define CASE_GUARD 4096u

/* Elements, or bytes, that a thread walks at a time. */
#define CASE_PART 65536u

/* A tensor and its memory: guard, pad, elements and the gaps between their rows, guard. */
typedef struct case_item {
    case_tensor t; /* first: the public pointer is the item's */
    struct case_item *next;
    struct case_item *home; /* whose buffer this is in: its own, or the input's it overwrites */
    uint64_t stride[4];     /* as used: those of `t`, or contiguous */
    uint64_t begin;         /* byte of the first element */
    uint64_t span;          /* elements from the first to just after the last, gaps included */
    uint64_t buffer_bytes;
    uint8_t *image; /* what the buffer holds before a checked call */
    uint8_t *seen;  /* what it held after it */
    cl_mem *buffers;
} case_item;

typedef struct case_block case_block;
typedef struct case_cleaner case_cleaner;

struct case_run {
    llmk_context *ctx;
    cl_context cl;
    cl_command_queue queue;
    case_line line;
    size_t sets;
    case_purpose purpose;
    bool counting;                     /* case_count_bytes has an effect */
    bool only_declare;                 /* case_possible: case_declared is the end */
    bool declared;                     /* case_declared found no fault */
    uint64_t host_bytes, device_bytes; /* case_reserve */
    jmp_buf *escape;                   /* where to go without memory; NULL: nowhere */
    case_sabotage sabotage;
    case_item *items, **last_item;
    case_block *blocks;
    case_cleaner *cleaners;
    void *kept;         /* case_keep */
    uint8_t *args;      /* as `prepare` filled them */
    uint8_t **set_args; /* a copy a set */
    uint64_t counted_read, counted_written;
    char refusal[400];
};

/* The host's memory in bytes, where a test says how much; else 0. */
extern uint64_t case_host_memory;
/* Places every tensor and refuses what fits neither host nor device (case_size.c). */
bool case_lay_out(case_run *run);
/* Whether the device has room for so many sets; refuses where not. */
bool case_fits(case_run *run, size_t sets);

/* The part of an item's elements that one thread may take: all where two share a byte. */
uint64_t case_part(const case_item *item);
/* Fills the image: canaries, inputs, poison. */
void case_item_paint(case_item *item);

/* Walks the elements of a tensor in row-major order: `element` is the position in memory, counted
 * in elements from the first, `index` the position in values[]. */
typedef struct case_walk {
    const case_item *item;
    uint64_t index, element;
    uint64_t at[4];
} case_walk;

case_walk case_walk_begin(const case_item *item);
/* Begins at an index, for walks of parts. */
case_walk case_walk_at(const case_item *item, uint64_t index);
void case_walk_next(case_walk *walk);

#endif
