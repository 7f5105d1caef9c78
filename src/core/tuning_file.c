/*
 * tuning_file.c - the user's file of tuned rows. Anybody may have written it: its size, its nesting
 * (jansson's parser stops at 2048) and the type of every member are checked, and what it asks for
 * is checked by tuning.c.
 */
#include "core/core.h"
#include "core/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef LLMK_HAVE_JANSSON
#include <jansson.h>
#endif

bool llmk_tuning_path(char *path, size_t size)
{
    const char *file = getenv("LLMK_TUNE_DB");
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int n = -1;
    if (file && file[0])
        n = snprintf(path, size, "%s", file);
    else if (xdg && xdg[0] == '/')
        n = snprintf(path, size, "%s/llmk/tuning.json", xdg);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.config/llmk/tuning.json", home);
    return n >= 0 && (size_t)n < size;
}

#ifdef LLMK_HAVE_JANSSON

/* The file's bytes, malloc'ed; NULL with a sentence, or with "" where there is no file. */
static char *read_bytes(const char *path, size_t *length, llmk_reason *why)
{
    struct stat st;
    char *bytes = NULL;
    why->text[0] = '\0';
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            llmk_no(why, "%s", strerror(errno));
        return NULL;
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        llmk_no(why, "it is not a regular file");
    } else if (st.st_size > (off_t)LLMK_TUNING_MAX_BYTES) {
        llmk_no(why, "it is larger than %u bytes", LLMK_TUNING_MAX_BYTES);
    } else if (!(bytes = malloc((size_t)st.st_size + 1))) {
        llmk_no(why, "no memory for it");
    } else {
        ssize_t got = 1;
        *length = 0;
        while (*length < (size_t)st.st_size && got > 0) {
            got = read(fd, bytes + *length, (size_t)st.st_size - *length);
            if (got > 0)
                *length += (size_t)got;
            else if (got < 0 && errno == EINTR)
                got = 1;
        }
    }
    close(fd);
    return bytes;
}

/* A member that is a string or not there; false where it is something else. */
static bool word(const json_t *row, const char *name, const char **value)
{
    const json_t *member = json_object_get(row, name);
    *value = json_string_value(member);
    return !member || *value;
}

/* A row without a measurement is a note. A member of another type than it should have reads as a
 * row without an operator, which tuning.c refuses. */
static void take_row(const json_t *row, size_t index,
                     void (*take)(void *user, size_t index, const llmk_tuning_row *row), void *user)
{
    llmk_tuning_row r = {0};
    const bool typed = word(row, "op", &r.op) && word(row, "types", &r.types) &&
                       word(row, "shape", &r.shape) && word(row, "variant", &r.variant) &&
                       word(row, "config", &r.config) && word(row, "hash", &r.hash) &&
                       word(row, "device", &r.device) &&
                       word(row, "architecture", &r.architecture) && word(row, "vendor", &r.vendor);
    const json_t *measured = json_object_get(row, "measured");
    if (!typed)
        r = (llmk_tuning_row){0};
    if (!typed || json_is_object(measured))
        take(user, index, &r);
}

bool llmk_tuning_read(const char *path,
                      void (*take)(void *user, size_t index, const llmk_tuning_row *row),
                      void *user, llmk_reason *why)
{
    size_t length = 0;
    json_error_t error;
    char *bytes = read_bytes(path, &length, why);
    if (!bytes)
        return !why->text[0];
    json_t *file = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &error);
    free(bytes);
    if (!file)
        return llmk_no(why, "it is not JSON (line %d: %.120s)", error.line, error.text);
    const json_t *version = json_object_get(file, "llmk_tuning");
    const json_t *rows = json_object_get(file, "rows");
    bool good = json_is_array(rows) && json_integer_value(version) == LLMK_TUNING_VERSION;
    if (!good)
        llmk_no(why,
                json_is_integer(version) ? "it is of version %lld; expected %d"
                                         : "it is JSON, but no file of tuned rows",
                (long long)json_integer_value(version), LLMK_TUNING_VERSION);
    for (size_t i = 0; good && i < json_array_size(rows); i++)
        take_row(json_array_get(rows, i), i, take, user);
    json_decref(file);
    return good;
}

#else

bool llmk_tuning_read(const char *path,
                      void (*take)(void *user, size_t index, const llmk_tuning_row *row),
                      void *user, llmk_reason *why)
{
    (void)take, (void)user;
    return access(path, F_OK) != 0 || llmk_no(why, "this library was built without jansson");
}

#endif
