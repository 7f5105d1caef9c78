/* A file written under a temporary name next to its own, read back, and renamed, so that the path
 * is either the whole new file, as open to others as the old one was, or untouched. The first
 * failure sticks, and is reported at the end. */
#ifndef LLMK_FORMATS_NEW_FILE_H
#define LLMK_FORMATS_NEW_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct llmk_new_file {
    FILE *stream;
    char *temporary;
    uint64_t at;
    int failure; /* an errno, 0 while all is well */
} llmk_new_file;

bool llmk_new_file_open(llmk_new_file *file, const char *path, char *error, size_t error_size);
void llmk_new_file_put(llmk_new_file *file, const void *bytes, size_t size);
/* To disk, read back by `verify` (may be NULL), renamed; or removed. `ok` is false when the caller
 * has failed (and said why). */
bool llmk_new_file_close(llmk_new_file *file, bool ok, const char *path,
                         bool (*verify)(const char *path, char *error, size_t error_size),
                         char *error, size_t error_size);
/* Whether such a file can be made, before anything is measured for it: one is, and removed. */
bool llmk_new_file_possible(const char *path, char *error, size_t error_size);
/* Removes what writers of the file that were killed left beside it; for a caller that knows that
 * none is at it. */
void llmk_new_file_sweep(const char *path);
/* Whether both names are there, and are one file's: writing the one would take the other. */
bool llmk_same_file(const char *a, const char *b);

#endif
