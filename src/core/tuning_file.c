/*
 * tuning_file.c - the user's file of tuned rows. Anybody may have written it: its size, its nesting
 * (jansson's parser stops at 2048) and the type of every member are checked, and what it asks for
 * is checked by tuning.c.
 */
#include "core/core.h"
#include "core/tuning.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef LLMK_HAVE_JANSSON
#include <jansson.h>
#endif

bool llmk_tuning_path(char *path, size_t size)
{
    const char *file = getenv("LLMK_TUNE_DB");
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int n = -1;
    path[0] = '\0';
    if (file && file[0])
        n = snprintf(path, size, "%s", file);
    else if (xdg && xdg[0] == '/')
        n = snprintf(path, size, "%s/llmk/tuning.json", xdg);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.config/llmk/tuning.json", home);
    return n >= 0 && (size_t)n < size;
}

#ifdef LLMK_HAVE_JANSSON

llmk_tuning_row llmk_tuning_row_of(const json_t *row)
{
    llmk_tuning_row r = {.not_text = json_is_object(row) ? NULL : ""};
    const struct {
        const char *name, **value;
    } members[] = {{"op", &r.op},         {"types", &r.types},
                   {"shape", &r.shape},   {"variant", &r.variant},
                   {"config", &r.config}, {"hash", &r.hash},
                   {"device", &r.device}, {"architecture", &r.architecture},
                   {"vendor", &r.vendor}, {"from", &r.from}};
    for (size_t i = 0; i < LLMK_COUNT(members); i++) {
        const json_t *member = json_object_get(row, members[i].name);
        *members[i].value = json_string_value(member);
        if (member && !*members[i].value && !r.not_text)
            r.not_text = members[i].name;
    }
    const json_t *image = json_object_get(json_object_get(row, "measured"), "image");
    r.image = json_string_value(image);
    if (image && !r.image && !r.not_text)
        r.not_text = "image";
    return r;
}

/* A row that neither was measured nor says where it comes from is a note. One that makes no sense
 * counts as one for this device, which tuning.c refuses. */
static void take_row(const json_t *row, size_t index,
                     void (*take)(void *user, size_t index, const llmk_tuning_row *row), void *user)
{
    llmk_tuning_row r = llmk_tuning_row_of(row);
    if (r.not_text)
        r = (llmk_tuning_row){.not_text = r.not_text};
    if (r.not_text || r.from || json_is_object(json_object_get(row, "measured")))
        take(user, index, &r);
}

bool llmk_tuning_read(const char *path,
                      void (*take)(void *user, size_t index, const llmk_tuning_row *row),
                      void *user, llmk_reason *why)
{
    size_t length = 0;
    json_error_t error;
    char text[121];
    char *bytes = llmk_read_file(path, LLMK_TUNING_MAX_BYTES, &length, why);
    if (!bytes)
        return errno == ENOENT || errno == ENOTDIR; /* none, and no fault */
    json_t *file = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &error);
    free(bytes);
    if (!file)
        return llmk_no(why, "it is not JSON (line %d: %s)", error.line,
                       llmk_tuning_word(text, sizeof text, error.text));
    const json_t *version = json_object_get(file, "llmk_tuning");
    const json_t *rows = json_object_get(file, "rows");
    bool good = false;
    if (!json_is_integer(version))
        llmk_no(why, "it is JSON, but no file of tuned rows");
    else if (json_integer_value(version) != LLMK_TUNING_VERSION)
        llmk_no(why, "it is of version %lld; expected %d", (long long)json_integer_value(version),
                LLMK_TUNING_VERSION);
    else if (!json_is_array(rows))
        llmk_no(why, rows ? "its \"rows\" are no array" : "it has no \"rows\"");
    else
        good = true;
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
