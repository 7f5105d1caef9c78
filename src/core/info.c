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

llmk_status llmk_check_infos(const char *function, const char *name, const void *infos,
                             size_t capacity, const size_t *count, size_t size, size_t *entry)
{
    char first[64];
    *entry = 0;
    if (!count || (!infos && capacity > 0))
        return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: %s is NULL", function, count ? name : "count");
    if (capacity == 0)
        return LLMK_OK;
    memcpy(entry, infos, sizeof *entry);
    llmk_join(first, sizeof first, function, ": ", name, "[0]", NULL);
    return llmk_check_info(first, *entry, size);
}

void llmk_fill_info(void *info, size_t given, const void *known, size_t size)
{
    unsigned char *bytes = info;
    const size_t both = given < size ? given : size;
    memcpy(bytes, known, both);
    memset(bytes + both, 0, given - both);
    memcpy(bytes, &given, sizeof given);
}
