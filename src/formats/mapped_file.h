/* A whole file in memory, read-only. It must not be truncated meanwhile. */
#ifndef LLMK_FORMATS_MAPPED_FILE_H
#define LLMK_FORMATS_MAPPED_FILE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct llmk_mapped_file {
    void *bytes; /* NULL: nothing is mapped */
    size_t size;
} llmk_mapped_file;

/* Regular files with content only; else false, with a sentence. */
bool llmk_map_file(const char *path, llmk_mapped_file *file, char *error, size_t error_size);
void llmk_unmap_file(llmk_mapped_file *file);

#endif
