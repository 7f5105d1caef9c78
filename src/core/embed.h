/* Files that the build puts into the library: see cmake/LlmkEmbed.cmake. */
#ifndef LLMK_CORE_EMBED_H
#define LLMK_CORE_EMBED_H

#include <stddef.h>

/* One embedded file. A NUL byte that size does not count follows the data, so that the text of a
 * kernel is also a C string. */
typedef struct llmk_embedded_file {
    const char *name; /* path relative to the embedded folder, with '/' */
    const unsigned char *data;
    size_t size;
} llmk_embedded_file;

/* Everything below cl/: kernels "<op>/<file>.cl" and headers "common/<file>.clh", sorted by name.
 * A row of zeros follows the last file. */
extern const llmk_embedded_file llmk_embedded_files[];
extern const size_t llmk_embedded_file_count;

#endif
