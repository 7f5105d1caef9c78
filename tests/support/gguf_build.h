/* GGUF files put together field by field, valid or not, for the tests and the fuzzer's corpus. */
#ifndef LLMK_TESTS_GGUF_BUILD_H
#define LLMK_TESTS_GGUF_BUILD_H

#include "core/half.h"
#include "formats/bytes.h"
#include "formats/gguf.h"

#include <stdlib.h>
#include <string.h>

struct gguf_build {
    unsigned char bytes[1 << 14];
    size_t size;
};

static inline void build_bytes(struct gguf_build *b, const void *bytes, size_t size)
{
    if (size > sizeof b->bytes - b->size)
        abort(); /* the test is wrong, not the library */
    if (size)
        memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
}

static inline void build_u8(struct gguf_build *b, unsigned value)
{
    const unsigned char byte = (unsigned char)(value & 255);
    build_bytes(b, &byte, 1);
}

static inline void build_u16(struct gguf_build *b, unsigned value)
{
    unsigned char bytes[2];
    llmk_store_u16(bytes, (uint16_t)(value & 0xffff));
    build_bytes(b, bytes, sizeof bytes);
}

static inline void build_u32(struct gguf_build *b, uint32_t value)
{
    unsigned char bytes[4];
    llmk_store_u32(bytes, value);
    build_bytes(b, bytes, sizeof bytes);
}

static inline void build_u64(struct gguf_build *b, uint64_t value)
{
    unsigned char bytes[8];
    llmk_store_u64(bytes, value);
    build_bytes(b, bytes, sizeof bytes);
}

static inline void build_f64(struct gguf_build *b, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    build_u64(b, bits);
}

static inline void build_string(struct gguf_build *b, const char *string)
{
    build_u64(b, strlen(string));
    build_bytes(b, string, strlen(string));
}

static inline void build_header(struct gguf_build *b, uint32_t version, uint64_t tensors,
                                uint64_t pairs)
{
    b->size = 0;
    build_bytes(b, "GGUF", 4);
    build_u32(b, version);
    build_u64(b, tensors);
    build_u64(b, pairs);
}

/* The value follows. */
static inline void build_key(struct gguf_build *b, const char *key, uint32_t type)
{
    build_string(b, key);
    build_u32(b, type);
}

static inline void build_array(struct gguf_build *b, uint32_t element_type, uint64_t count)
{
    build_u32(b, element_type);
    build_u64(b, count);
}

static inline void build_u32_pair(struct gguf_build *b, const char *key, uint32_t value)
{
    build_key(b, key, LLMK_GGUF_VALUE_U32);
    build_u32(b, value);
}

static inline void build_tensor(struct gguf_build *b, const char *name, uint32_t n_dims,
                                const uint64_t *dims, uint32_t type, uint64_t offset)
{
    build_string(b, name);
    build_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        build_u64(b, dims[i]);
    build_u32(b, type);
    build_u64(b, offset);
}

static inline void build_pad(struct gguf_build *b, size_t alignment)
{
    while (b->size % alignment)
        build_u8(b, 0);
}

static inline void build_fill(struct gguf_build *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        build_u8(b, (unsigned)(i * 37 + 11));
}

/* Every kind of metadata value; 17 pairs. */
static inline void build_all_pairs(struct gguf_build *b)
{
    build_u32_pair(b, "general.alignment", 64);
    build_key(b, "general.architecture", LLMK_GGUF_VALUE_STRING);
    build_string(b, "llama");
    build_key(b, "u8", LLMK_GGUF_VALUE_U8);
    build_u8(b, 200);
    build_key(b, "i8", LLMK_GGUF_VALUE_I8);
    build_u8(b, 0x80);
    build_key(b, "u16", LLMK_GGUF_VALUE_U16);
    build_u16(b, 60000);
    build_key(b, "i16", LLMK_GGUF_VALUE_I16);
    build_u16(b, 1234);
    build_u32_pair(b, "u32", 4000000000u);
    build_key(b, "i32", LLMK_GGUF_VALUE_I32);
    build_u32(b, 0xffffffffu);
    build_key(b, "u64", LLMK_GGUF_VALUE_U64);
    build_u64(b, UINT64_MAX);
    build_key(b, "i64", LLMK_GGUF_VALUE_I64);
    build_u64(b, INT64_MAX);
    build_key(b, "f32", LLMK_GGUF_VALUE_F32);
    build_u32(b, llmk_float_bits(1e-5f));
    build_key(b, "f64", LLMK_GGUF_VALUE_F64);
    build_f64(b, 0.5);
    build_key(b, "f64.huge", LLMK_GGUF_VALUE_F64);
    build_f64(b, 1e300);
    build_key(b, "bool", LLMK_GGUF_VALUE_BOOL);
    build_u8(b, 1);
    build_key(b, "array.i16", LLMK_GGUF_VALUE_ARRAY);
    build_array(b, LLMK_GGUF_VALUE_I16, 3);
    build_fill(b, 6);
    build_key(b, "array.string", LLMK_GGUF_VALUE_ARRAY);
    build_array(b, LLMK_GGUF_VALUE_STRING, 3);
    build_string(b, "one");
    build_string(b, "");
    build_string(b, "three");
    build_key(b, "array.array", LLMK_GGUF_VALUE_ARRAY);
    build_array(b, LLMK_GGUF_VALUE_ARRAY, 2);
    build_array(b, LLMK_GGUF_VALUE_BOOL, 2);
    build_u16(b, 0x0100);
    build_array(b, LLMK_GGUF_VALUE_STRING, 1);
    build_string(b, "x");
}

enum { BUILD_ALL_PAIRS = 17, BUILD_ALL_TENSORS = 5 };

/* All pairs and five tensors, one of them of an unknown type; ends with the last byte of the last
 * tensor. */
static inline void build_all(struct gguf_build *b, uint32_t version)
{
    build_header(b, version, BUILD_ALL_TENSORS, BUILD_ALL_PAIRS);
    build_all_pairs(b);
    build_tensor(b, "norm", 1, (const uint64_t[]){8}, LLMK_GGUF_F32, 0);
    build_tensor(b, "quantised", 2, (const uint64_t[]){64, 3}, LLMK_GGUF_Q4_0, 128);
    build_tensor(b, "strange", 2, (const uint64_t[]){7, 3}, 1000, 64);
    build_tensor(b, "k", 3, (const uint64_t[]){256, 1, 2}, LLMK_GGUF_Q4_K, 256);
    build_tensor(b, "last", 4, (const uint64_t[]){2, 1, 3, 2}, LLMK_GGUF_BF16, 576);
    build_pad(b, 64);
    build_fill(b, 576 + 24);
}

#endif
