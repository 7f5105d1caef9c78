/* GGUF files (versions 2 and 3, little-endian), for the tools.
 *
 * The reader checks everything at open, so that what it hands out can be used as it is: every
 * tensor of a known type lies inside the file, overlaps no other and has the size that its
 * dimensions say. Nothing is printed; a function that fails writes one sentence to `error` (which
 * may be NULL), always terminated.
 *
 * An open file is read-only and may be used by several threads. It is mapped, so it must not be
 * truncated meanwhile. */
#ifndef LLMK_FORMATS_GGUF_H
#define LLMK_FORMATS_GGUF_H

#include "formats/gguf_blocks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LLMK_GGUF_MAX_DIMS 4

typedef struct llmk_gguf llmk_gguf;

/* Types of metadata values; the numbers are those of the file format. */
typedef enum llmk_gguf_value_type {
    LLMK_GGUF_VALUE_U8 = 0,
    LLMK_GGUF_VALUE_I8 = 1,
    LLMK_GGUF_VALUE_U16 = 2,
    LLMK_GGUF_VALUE_I16 = 3,
    LLMK_GGUF_VALUE_U32 = 4,
    LLMK_GGUF_VALUE_I32 = 5,
    LLMK_GGUF_VALUE_F32 = 6,
    LLMK_GGUF_VALUE_BOOL = 7,
    LLMK_GGUF_VALUE_STRING = 8,
    LLMK_GGUF_VALUE_ARRAY = 9,
    LLMK_GGUF_VALUE_U64 = 10,
    LLMK_GGUF_VALUE_I64 = 11,
    LLMK_GGUF_VALUE_F64 = 12
} llmk_gguf_value_type;

/* One metadata pair. Arrays are validated and not interpreted. `data` is the value proper: scalar,
 * string bytes, array elements; `raw` the whole pair as the file holds it, from the length of the
 * key on. */
typedef struct llmk_gguf_pair {
    const char *key;
    uint32_t type;         /* llmk_gguf_value_type */
    uint32_t element_type; /* arrays only */
    uint64_t count;        /* elements of an array, bytes of a string, else 1 */
    const unsigned char *data;
    const unsigned char *raw;
    size_t raw_bytes;
} llmk_gguf_pair;

/* One tensor: dims[0] is the contiguous dimension (in features of a weight), unused ones are 1. A
 * tensor of a type that is not known has neither data nor size. */
typedef struct llmk_gguf_tensor {
    const char *name;
    uint32_t type; /* llmk_gguf_type, or a number that this reader does not know */
    uint32_t n_dims;
    uint64_t dims[LLMK_GGUF_MAX_DIMS];
    const void *data;
    size_t bytes;
} llmk_gguf_tensor;

bool llmk_gguf_open(const char *path, llmk_gguf **out, char *error, size_t error_size);
/* The bytes are borrowed until close, and may lie at any address. */
bool llmk_gguf_open_memory(const void *bytes, size_t size, llmk_gguf **out, char *error,
                           size_t error_size);
void llmk_gguf_close(llmk_gguf *gguf); /* NULL accepted */

uint32_t llmk_gguf_version(const llmk_gguf *gguf);
uint32_t llmk_gguf_alignment(const llmk_gguf *gguf);

size_t llmk_gguf_pair_count(const llmk_gguf *gguf);
/* In file order; NULL past the end. */
const llmk_gguf_pair *llmk_gguf_pair_at(const llmk_gguf *gguf, size_t index);
const llmk_gguf_pair *llmk_gguf_find_pair(const llmk_gguf *gguf, const char *key);
const char *llmk_gguf_value_type_name(uint32_t type);

/* Typed look-ups: false, with *value untouched, when the key is absent or its value does not fit
 * the type asked for. Integers convert from every integer type that holds the number, f32 from f32
 * and f64. */
bool llmk_gguf_get_u64(const llmk_gguf *gguf, const char *key, uint64_t *value);
bool llmk_gguf_get_f32(const llmk_gguf *gguf, const char *key, float *value);
/* The bytes are the file's: *length of them, not terminated, anything among them. */
bool llmk_gguf_get_string(const llmk_gguf *gguf, const char *key, const char **value,
                          size_t *length);

size_t llmk_gguf_tensor_count(const llmk_gguf *gguf);
/* In file order; NULL past the end. */
const llmk_gguf_tensor *llmk_gguf_tensor_at(const llmk_gguf *gguf, size_t index);
/* NULL, with a sentence, when there is no such tensor or its type is not known. */
const llmk_gguf_tensor *llmk_gguf_find_tensor(const llmk_gguf *gguf, const char *name, char *error,
                                              size_t error_size);

#endif
