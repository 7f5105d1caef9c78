/* safetensors files, for the tools.
 *
 * The reader checks everything at open, so that what it hands out can be used as it is: the tensors
 * fill the file behind the header without gaps or overlaps, as the format asks, and each has the
 * size that its type and shape say. Nothing is printed; a function that fails writes one sentence
 * to `error` (which may be NULL), always terminated.
 *
 * An open file is read-only and may be used by several threads. It is mapped, so it must not be
 * truncated meanwhile. Without a JSON library in the build no file opens. */
#ifndef LLMK_FORMATS_SAFETENSORS_H
#define LLMK_FORMATS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LLMK_SAFETENSORS_MAX_DIMS 8

typedef struct llmk_safetensors llmk_safetensors;

typedef enum llmk_safetensors_type {
    LLMK_SAFETENSORS_UNKNOWN = 0,
    LLMK_SAFETENSORS_BOOL,
    LLMK_SAFETENSORS_U8,
    LLMK_SAFETENSORS_I8,
    LLMK_SAFETENSORS_F8_E4M3,
    LLMK_SAFETENSORS_F8_E5M2,
    LLMK_SAFETENSORS_U16,
    LLMK_SAFETENSORS_I16,
    LLMK_SAFETENSORS_F16,
    LLMK_SAFETENSORS_BF16,
    LLMK_SAFETENSORS_U32,
    LLMK_SAFETENSORS_I32,
    LLMK_SAFETENSORS_F32,
    LLMK_SAFETENSORS_U64,
    LLMK_SAFETENSORS_I64,
    LLMK_SAFETENSORS_F64
} llmk_safetensors_type;

/* "I32"; "?" for unknown ones. */
const char *llmk_safetensors_type_name(llmk_safetensors_type type);
size_t llmk_safetensors_type_bytes(llmk_safetensors_type type); /* 0 for unknown ones */

/* dims[0] is the outermost dimension; rank 0 is one element. The data lies at any address; NULL
 * where there are no elements. The size of a tensor of a type that is not known is the file's word.
 */
typedef struct llmk_safetensors_tensor {
    const char *name;
    llmk_safetensors_type type;
    uint32_t rank;
    uint64_t dims[LLMK_SAFETENSORS_MAX_DIMS];
    const void *data;
    size_t bytes;
} llmk_safetensors_tensor;

bool llmk_safetensors_open(const char *path, llmk_safetensors **out, char *error,
                           size_t error_size);
/* The bytes are borrowed until close, and may lie at any address. */
bool llmk_safetensors_open_memory(const void *bytes, size_t size, llmk_safetensors **out,
                                  char *error, size_t error_size);
void llmk_safetensors_close(llmk_safetensors *file); /* NULL accepted */

size_t llmk_safetensors_count(const llmk_safetensors *file);
/* In the order of their data; NULL past the end. */
const llmk_safetensors_tensor *llmk_safetensors_at(const llmk_safetensors *file, size_t index);
const llmk_safetensors_tensor *llmk_safetensors_find(const llmk_safetensors *file,
                                                     const char *name); /* or NULL */

/* Writes a file of `count` tensors, in that order; their data must have the bytes that type and
 * shape say. It is written under a temporary name, read back, and renamed. */
bool llmk_safetensors_write(const llmk_safetensors_tensor *tensors, size_t count, const char *path,
                            char *error, size_t error_size);

#endif
