/*
 * source.c - kernel sources: embedded in the library, or read from LLMK_KERNEL_PATH; includes are
 * expanded here, since a driver's compiler cannot see them.
 */
#include "core/core.h"
#include "core/embed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_INCLUDES 32
#define MOST_BYTES   ((size_t)4 << 20) /* of a file */

typedef struct text {
    char *data;
    size_t size, capacity;
    bool failed;
} text;

static void append(text *t, const char *data, size_t size)
{
    if (t->failed)
        return;
    if (t->size + size + 1 > t->capacity) {
        const size_t capacity = 2 * (t->size + size) + 4096;
        char *grown = realloc(t->data, capacity);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->data = grown;
        t->capacity = capacity;
    }
    memcpy(t->data + t->size, data, size);
    t->size += size;
    t->data[t->size] = '\0';
}

static bool read_override(const char *folder, const char *name, text *out, llmk_reason *why)
{
    char path[4096];
    size_t length;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return llmk_no(why, "%s", strerror(ENAMETOOLONG));
    char *bytes = llmk_read_file(path, MOST_BYTES, &length, why);
    if (bytes)
        append(out, bytes, length);
    else
        out->failed = errno == ENOMEM;
    free(bytes);
    return bytes || out->failed;
}

bool llmk_source_overridden(void)
{
    const char *folder = getenv("LLMK_KERNEL_PATH");
    return folder && folder[0] != '\0';
}

/* A file as it stands; the caller frees out->data. */
static llmk_status read_file(const char *name, text *out)
{
    append(out, "", 0);
    if (llmk_source_overridden()) {
        const char *folder = getenv("LLMK_KERNEL_PATH");
        char head[1025];
        llmk_reason why;
        llmk_join(head, sizeof head, folder, NULL);
        if (!read_override(folder, name, out, &why))
            return llmk_fail(LLMK_IO_ERROR, "LLMK_KERNEL_PATH: cannot read %s/%s: %s", head, name,
                             why.text);
    } else {
        size_t i = 0;
        while (i < llmk_embedded_file_count && strcmp(llmk_embedded_files[i].name, name) != 0)
            i++;
        if (i == llmk_embedded_file_count)
            return llmk_fail(LLMK_INTERNAL, "kernel file %s is not in the library", name);
        append(out, (const char *)llmk_embedded_files[i].data, llmk_embedded_files[i].size);
    }
    return out->failed ? llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for kernel sources")
                       : LLMK_OK;
}

typedef struct include_list {
    char names[MAX_INCLUDES][128];
    size_t count;
} include_list;

/* Copies `name` to `out`, and what it includes where it is first included. #line directives keep
 * the driver's messages in terms of our files and lines. */
static llmk_status expand(const char *name, include_list *seen, text *out)
{
    for (size_t i = 0; i < seen->count; i++)
        if (strcmp(seen->names[i], name) == 0)
            return LLMK_OK;
    if (seen->count == MAX_INCLUDES || strlen(name) >= sizeof seen->names[0])
        return llmk_fail(LLMK_INTERNAL, "too many or too long kernel includes at %s", name);
    snprintf(seen->names[seen->count++], sizeof seen->names[0], "%s", name);

    text file = {0};
    llmk_status status = read_file(name, &file);
    char directive[192];
    unsigned line = 1;
    if (status == LLMK_OK)
        append(out, directive,
               (size_t)snprintf(directive, sizeof directive, "#line 1 \"%s\"\n", name));
    for (const char *p = file.data; status == LLMK_OK && p && *p; line++) {
        const char *end = strchr(p, '\n');
        const size_t length = end ? (size_t)(end - p) + 1 : strlen(p);
        char included[128];
        if (strncmp(p, "#include \"", 10) == 0 && sscanf(p + 10, "%127[^\"\n]", included) == 1) {
            status = expand(included, seen, out);
            append(
                out, directive,
                (size_t)snprintf(directive, sizeof directive, "#line %u \"%s\"\n", line + 1, name));
        } else {
            append(out, p, length);
        }
        p += length;
    }
    append(out, "\n", 1);
    free(file.data);
    if (status == LLMK_OK && out->failed)
        status = llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for kernel sources");
    return status;
}

llmk_status llmk_source_load(const char *file, char **source)
{
    include_list seen = {.count = 0};
    text out = {0};
    const llmk_status status = expand(file, &seen, &out);
    if (status != LLMK_OK) {
        free(out.data);
        return status;
    }
    *source = out.data;
    return LLMK_OK;
}

static uint64_t sources_hash;

static void hash_sources(void)
{
    sources_hash = LLMK_HASH_SEED;
    for (size_t i = 0; i < llmk_embedded_file_count; i++)
        sources_hash =
            llmk_hash(sources_hash, llmk_embedded_files[i].data, llmk_embedded_files[i].size);
}

uint64_t llmk_sources_hash(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hash_sources);
    return sources_hash;
}
