/* version.c - which library this is. */
#include "core/core.h"

uint32_t llmk_version(void)
{
    return LLMK_VERSION_MAJOR * 1000000u + LLMK_VERSION_MINOR * 1000u + LLMK_VERSION_PATCH;
}

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

const char *llmk_build_info(void)
{
    return "libllmk_cl " TEXT(LLMK_VERSION_MAJOR) "." TEXT(LLMK_VERSION_MINOR) "." TEXT(
        LLMK_VERSION_PATCH) ", compiler " __VERSION__ ", images: " LLMK_IMAGE_KINDS;
}

uint32_t llmk_dtype_bits(llmk_dtype dtype)
{
    switch (dtype) {
    case LLMK_F32:
    case LLMK_I32:
        return 32;
    case LLMK_F16:
    case LLMK_BF16:
        return 16;
    case LLMK_I8:
    case LLMK_U8:
    case LLMK_FP8_E4M3:
    case LLMK_FP8_E5M2:
        return 8;
    case LLMK_U4:
        return 4;
    case LLMK_DTYPE_NONE:
        break;
    }
    return 0;
}

const char *llmk_dtype_name(llmk_dtype dtype)
{
    static const char *const names[] = {"none", "f32", "f16", "bf16", "i8",
                                        "i32",  "u8",  "u4",  "e4m3", "e5m2"};
    return (unsigned)dtype < LLMK_COUNT(names) ? names[dtype] : "?";
}
