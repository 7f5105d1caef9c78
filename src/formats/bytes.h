/* Little-endian integers at any address. */
#ifndef LLMK_FORMATS_BYTES_H
#define LLMK_FORMATS_BYTES_H

#include <stdint.h>

static inline uint16_t llmk_load_u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t llmk_load_u32(const unsigned char *p)
{
    return (uint32_t)llmk_load_u16(p) | (uint32_t)llmk_load_u16(p + 2) << 16;
}

static inline uint64_t llmk_load_u64(const unsigned char *p)
{
    return (uint64_t)llmk_load_u32(p) | (uint64_t)llmk_load_u32(p + 4) << 32;
}

static inline void llmk_store_u16(unsigned char *p, uint16_t value)
{
    p[0] = (unsigned char)(value & 255);
    p[1] = (unsigned char)(value >> 8);
}

static inline void llmk_store_u32(unsigned char *p, uint32_t value)
{
    llmk_store_u16(p, (uint16_t)(value & 0xffff));
    llmk_store_u16(p + 2, (uint16_t)(value >> 16));
}

static inline void llmk_store_u64(unsigned char *p, uint64_t value)
{
    llmk_store_u32(p, (uint32_t)(value & 0xffffffff));
    llmk_store_u32(p + 4, (uint32_t)(value >> 32));
}

#endif
