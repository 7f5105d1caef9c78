/* bench_models.c - reading the lists of cases by model. */
#include "tools/common/bench_models.h"

#include "core/core.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_BYTES ((size_t)1 << 20) /* of a list */

bool bench_models_dir(const char *given, char *dir, size_t size)
{
    static const char *const beside[] = {"../share/llmk/models", "../bench/models", "bench/models"};
    if (given)
        return snprintf(dir, size, "%s", given) < (int)size && access(dir, R_OK) == 0;
    char program[1024];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return false;
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (snprintf(dir, size, "%s/%s", program, beside[i]) < (int)size && access(dir, R_OK) == 0)
            return true;
    /* A build outside of the source tree, where it still is. */
    return snprintf(dir, size, "%s", LLMK_MODELS_DIR) < (int)size && access(dir, R_OK) == 0;
}

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length && strchr(" \t\r\n", text[length - 1]))
        text[--length] = '\0';
    return text;
}

/* Copies with {T} replaced. */
static bool expand(const char *from, uint64_t tokens, char *to, size_t size)
{
    size_t used = 0;
    while (*from) {
        int n;
        if (!strncmp(from, "{T}", 3)) {
            n = snprintf(to + used, size - used, "%llu", (unsigned long long)tokens);
            from += 3;
        } else {
            n = snprintf(to + used, size - used, "%c", *from++);
        }
        used += (size_t)n;
        if (used >= size)
            return false;
    }
    return true;
}

/* An empty name: the line holds no case. False: it makes no sense. */
static bool parse_line(char *line, uint64_t tokens, bench_model_case *out)
{
    out->name[0] = '\0';
    line[strcspn(line, "#")] = '\0';
    llmk_make_printable(line, false); /* its words come out again, */
    char *name = trim(line);
    if (!*name)
        return true;
    char *colon = strchr(name, ':');
    if (!colon || strchr(name, '"')) /* and between quotes */
        return false;
    *colon = '\0';
    return snprintf(out->name, sizeof out->name, "%s", trim(name)) < (int)sizeof out->name &&
           expand(trim(colon + 1), tokens, out->text, sizeof out->text);
}

bench_model_case *bench_models_load(const char *dir, const char *model, uint64_t tokens,
                                    size_t *count, char *error, size_t error_size)
{
    char path[1280];
    size_t length, number = 0;
    llmk_reason why;
    if (strchr(model, '/')) {
        snprintf(error, error_size, "no model \"%s\": names of models have no slash", model);
        return NULL;
    }
    snprintf(path, sizeof path, "%s/%s.txt", dir, model);
    char *text = llmk_read_file(path, MOST_BYTES, &length, &why);
    if (!text) {
        snprintf(error, error_size, "no model \"%s\" in %s: %s", model, dir, why.text);
        return NULL;
    }
    text[length] = '\0';
    bench_model_case *cases = NULL, *grown;
    bool good = true;
    *count = 0;
    for (char *line = text, *next; good && line && line < text + length; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        number++;
        grown = realloc(cases, (*count + 1) * sizeof *cases);
        good = grown != NULL;
        if (good) {
            cases = grown;
            good = parse_line(line, tokens, &cases[*count]);
            *count += good && cases[*count].name[0];
        }
    }
    free(text);
    if (good && *count)
        return cases;
    snprintf(error, error_size,
             good ? "%s:%zu: no cases" : "%s:%zu: expected \"name: operator key=value ...\"", path,
             number);
    free(cases);
    return NULL;
}

static int is_list(const struct dirent *entry)
{
    const size_t length = strlen(entry->d_name);
    return length > 4 && !strcmp(entry->d_name + length - 4, ".txt");
}

size_t bench_models_list(const char *dir, const char *name, FILE *out)
{
    struct dirent **entries;
    const int count = scandir(dir, &entries, is_list, alphasort);
    size_t listed = 0;
    for (int i = 0; i < count; i++) {
        char path[1280], entry[256], line[256] = "";
        size_t bytes;
        const size_t length = strlen(entries[i]->d_name) - 4;
        const bool wanted =
            !name || (strlen(name) == length && !strncmp(name, entries[i]->d_name, length));
        snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
        llmk_join(entry, sizeof entry, entries[i]->d_name, NULL);
        llmk_make_printable(entry, false);
        char *text = wanted ? llmk_read_file(path, MOST_BYTES, &bytes, NULL) : NULL;
        if (text && bytes && text[0] == '#') {
            text[bytes] = '\0';
            text[strcspn(text, "\n")] = '\0';
            llmk_join(line, sizeof line, text, NULL);
            llmk_make_printable(line, false);
        }
        free(text);
        if (wanted)
            fprintf(out, "    %-16.*s %s\n", (int)length, entry, line[0] ? trim(line + 1) : "");
        listed += wanted;
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return listed;
}
