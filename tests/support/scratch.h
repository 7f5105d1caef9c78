/* scratch.h - a folder of a test's own, and files in it. */
#ifndef LLMK_TESTS_SCRATCH_H
#define LLMK_TESTS_SCRATCH_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCRATCH_PATH 2048 /* more than any path here takes */

/* Makes a new folder, below TMPDIR or /tmp. */
static inline bool scratch_make(char path[SCRATCH_PATH])
{
    const char *base = getenv("TMPDIR");
    snprintf(path, SCRATCH_PATH, "%s/llmk-test-XXXXXX", base && base[0] ? base : "/tmp");
    return mkdtemp(path) != NULL;
}

/* Removes a folder and all below it; does not follow links. */
static inline void scratch_remove(const char *path)
{
    DIR *dir = opendir(path);
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char below[2 * SCRATCH_PATH];
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= (int)sizeof below)
            continue;
        if (lstat(below, &st) == 0 && S_ISDIR(st.st_mode))
            scratch_remove(below);
        else
            unlink(below);
    }
    if (dir)
        closedir(dir);
    rmdir(path);
}

/* Writes a file, and the folders of `name` where they are missing. */
static inline bool scratch_write(const char *folder, const char *name, const void *data,
                                 size_t size)
{
    char path[2 * SCRATCH_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *p = path + strlen(folder) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "wb");
    const bool ok = f && fwrite(data, 1, size, f) == size;
    return f && fclose(f) == 0 && ok;
}

/* The number of entries of a folder; the name of the last to `name` (may be NULL). 0 where it is
 * not there. */
static inline size_t scratch_list(const char *folder, char name[SCRATCH_PATH])
{
    DIR *dir = opendir(folder);
    size_t count = 0;
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        if (name)
            snprintf(name, SCRATCH_PATH, "%s", entry->d_name);
        count++;
    }
    if (dir)
        closedir(dir);
    return count;
}

#endif
