/* info.c - structs that the library fills in for callers of its own, an older or a newer version.
 */
#include "core/core.h"

llmk_status llmk_check_info(const char *function, size_t given, size_t size)
{
    if (given > sizeof given && given <= 2 * size)
        return LLMK_OK;
    return llmk_fail(LLMK_INVALID_ARGUMENT,
                     "%s: struct_size is %zu; expected %zu (set it with LLMK_INIT)", function,
                     given, size);
}

void llmk_fill_info(void *info, size_t given, const void *known, size_t size)
{
    unsigned char *bytes = info;
    const size_t both = given < size ? given : size;
    memcpy(bytes, known, both);
    memset(bytes + both, 0, given - both);
    memcpy(bytes, &given, sizeof given);
}
