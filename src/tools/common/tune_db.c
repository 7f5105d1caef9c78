/* tune_db.c - reading, replacing and writing rows with jansson. */
#define _XOPEN_SOURCE 700 /* realpath */

#include "tools/common/tune_db.h"

#include "formats/new_file.h"
#include "ops/operator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef LLMK_HAVE_JANSSON
#include <jansson.h>
#endif

__attribute__((format(printf, 3, 4))) static bool fail(char *error, size_t size, const char *fmt,
                                                       ...)
{
    va_list list;
    va_start(list, fmt);
    vsnprintf(error, size, fmt, list);
    va_end(list);
    llmk_make_printable(error, false);
    return false;
}

static void print_row(FILE *out, const llmk_tuning_row *r, const char *times, const char *state)
{
    char op[64], shape[128], variant[128], config[128], types[256], from[256];
    fprintf(out, "%-16s %-30s %s%s%s  [%s]%s  %s%s%s\n", llmk_tuning_word(op, sizeof op, r->op),
            llmk_tuning_word(shape, sizeof shape, r->shape ? r->shape : "any shape"),
            llmk_tuning_word(variant, sizeof variant, r->variant), r->config ? "@" : "",
            llmk_tuning_word(config, sizeof config, r->config ? r->config : ""),
            llmk_tuning_word(types, sizeof types, r->types ? r->types : "any types"), times, state,
            r->from ? ", not measured on such a device: " : "",
            llmk_tuning_word(from, sizeof from, r->from ? r->from : ""));
}

void tune_db_list_built_in(const llmk_context *ctx, FILE *out)
{
    for (size_t i = 0; i < llmk_tuning_built_in_count; i++) {
        const llmk_tuning_row *row = &llmk_tuning_built_in[i];
        llmk_reason why = {"used"};
        if (!llmk_tuning_is_for(ctx, row))
            continue;
        llmk_tuning_check(ctx, row, &why);
        print_row(out, row, "", why.text);
    }
}

#ifdef LLMK_HAVE_JANSSON

static void ignore(void *user, size_t index, const llmk_tuning_row *row)
{
    (void)user, (void)index, (void)row;
}

/* The file's contents, or those of one that is yet to be written. */
static json_t *load(const char *path, char *error, size_t error_size)
{
    llmk_reason why;
    json_error_t json_error;
    if (!llmk_tuning_read(path, ignore, NULL, &why)) {
        fail(error, error_size, "%s: %s; move it away, or name another with --db", path, why.text);
        return NULL;
    }
    json_t *file = json_load_file(path, JSON_REJECT_DUPLICATES, &json_error);
    if (!file && json_error_code(&json_error) == json_error_cannot_open_file)
        file = json_pack("{s:i, s:[]}", "llmk_tuning", LLMK_TUNING_VERSION, "rows");
    if (!file)
        fail(error, error_size, "%s: %s", path, json_error.text);
    return file;
}

static const char *word(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Why the first of them that could not be made was not; 0: they are there. Whether that matters
 * shows when the file is made. */
static int make_folders(const char *path)
{
    char folder[TUNE_PATH];
    int why = 0;
    snprintf(folder, sizeof folder, "%s", path);
    for (char *p = folder + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST && !why)
            why = errno;
        *p = '/';
    }
    return why;
}

/* Where a link points to: a new file would take the place of the link itself. */
static const char *resolve(const char *path, char real[TUNE_PATH])
{
    char *found = realpath(path, NULL);
    const size_t size = found ? strlen(found) + 1 : 0;
    if (size && size <= TUNE_PATH)
        path = memcpy(real, found, size);
    free(found);
    return path;
}

/* Of the rows that count for a context. */
static size_t count_for(const llmk_context *ctx, const json_t *rows)
{
    const json_t *row;
    size_t i, count = 0;
    json_array_foreach(rows, i, row)
    {
        const llmk_tuning_row r = llmk_tuning_row_of(row);
        count += (r.from || json_is_object(json_object_get(row, "measured"))) &&
                 llmk_tuning_is_for(ctx, &r);
    }
    return count;
}

/* Nothing that the library would not read. */
static bool write_file(const char *path, const llmk_context *ctx, const json_t *file, char *error,
                       size_t error_size)
{
    if (count_for(ctx, json_object_get(file, "rows")) > LLMK_TUNING_MAX_ROWS)
        return fail(error, error_size,
                    "%s would have more than %d rows for this device, which the library does not "
                    "read; name another with --db",
                    path, LLMK_TUNING_MAX_ROWS);
    char real[TUNE_PATH];
    llmk_new_file out;
    char *text = json_dumps(file, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    if (!text)
        return fail(error, error_size, "no memory for %s", path);
    if (strlen(text) + 1 > LLMK_TUNING_MAX_BYTES) {
        free(text);
        return fail(error, error_size,
                    "%s would be larger than %u bytes, which the library does not read; name "
                    "another with --db",
                    path, LLMK_TUNING_MAX_BYTES);
    }
    path = resolve(path, real);
    const bool open = llmk_new_file_open(&out, path, error, error_size);
    if (open) {
        llmk_new_file_put(&out, text, strlen(text));
        llmk_new_file_put(&out, "\n", 1);
    }
    free(text);
    return open && llmk_new_file_close(&out, true, path, NULL, error, error_size);
}

/* Writers are done within milliseconds; what holds the lock for longer is stopped, or none of them. */
#define LOCK_PAUSE 10000000 /* ns */
#define LOCK_TRIES 300

/* Held from reading a file until the new one is in its place: of two writers that had read the same
 * file, the second would undo what the first added. The file itself cannot be locked, since each
 * writer puts another in its place. Below 0, with a sentence, where there is none. */
static int lock(const char *path, char *error, size_t error_size)
{
    char real[TUNE_PATH], name[TUNE_PATH + 8];
    const int folders = make_folders(path);
    snprintf(name, sizeof name, "%s.lock", resolve(path, real));
    const int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int got = fd;
    for (int tries = 0; got >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; tries++)
        if ((errno == EWOULDBLOCK || errno == EINTR) && tries < LOCK_TRIES)
            nanosleep(&(struct timespec){0, LOCK_PAUSE}, NULL);
        else
            got = -1;
    if (fd < 0 && errno == ENOENT && folders)
        fail(error, error_size, "%s cannot be written: its folder cannot be made: %s", path,
             strerror(folders));
    else if (got < 0)
        fail(error, error_size, "%s cannot be written: %s: %s", path, name,
             errno == EWOULDBLOCK ? "another process holds the lock" : strerror(errno));
    if (got < 0 && fd >= 0)
        close(fd);
    return got;
}

bool tune_db_usable(const char *path, char *error, size_t error_size)
{
    char real[TUNE_PATH];
    if (path[0] && path[strlen(path) - 1] == '/')
        return fail(error, error_size, "%s is a folder's name; name a file in it", path);
    json_t *file = load(path, error, error_size);
    json_decref(file);
    const int locked = file ? lock(path, error, error_size) : -1;
    if (locked < 0)
        return false;
    path = resolve(path, real);
    llmk_new_file_sweep(path);
    const bool good = llmk_new_file_possible(path, error, error_size);
    close(locked);
    return good;
}

static const char *library_version(char text[32])
{
    snprintf(text, 32, "%d.%d.%d", LLMK_VERSION_MAJOR, LLMK_VERSION_MINOR, LLMK_VERSION_PATCH);
    return text;
}

static bool same_bucket(const llmk_tuning_row *a, const llmk_tuning_row *b)
{
    return same(a->op, b->op) && same(a->types, b->types) && same(a->shape, b->shape);
}

bool tune_db_has(const char *path, const llmk_context *ctx, const char *text,
                 const llmk_tuning_row *wanted)
{
    char error[512], version[32];
    json_t *file = load(path, error, sizeof error), *row;
    size_t i;
    bool found = false;
    json_array_foreach(json_object_get(file, "rows"), i, row)
    {
        const json_t *measured = json_object_get(row, "measured");
        llmk_tuning_row r = llmk_tuning_row_of(row);
        llmk_reason why;
        const bool meant =
            same(word(measured, "case"), text) || (wanted && same_bucket(&r, wanted));
        found = found || (meant && same(r.device, ctx->caps.device_name) &&
                          same(word(measured, "driver"), ctx->caps.driver) &&
                          same(word(measured, "library"), library_version(version)) &&
                          same(word(measured, "image"), ctx->forced_image) &&
                          llmk_tuning_check(ctx, &r, &why));
    }
    json_decref(file);
    return found;
}

static void set_word(json_t *object, const char *name, const char *value)
{
    if (value)
        json_object_set_new(object, name, json_string(value));
}

static json_t *measured_of(const llmk_context *ctx, const tune_source *source)
{
    char version[32], date[16] = "";
    const time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm))
        strftime(date, sizeof date, "%Y-%m-%d", &tm);
    json_t *m = json_object();
    set_word(m, "case", source->text);
    set_word(m, "device", ctx->caps.device_name);
    set_word(m, "driver", ctx->caps.driver);
    set_word(m, "library", library_version(version));
    set_word(m, "date", date);
    json_object_set_new(m, "us", json_real(source->us));
    json_object_set_new(m, "spread", json_real(source->spread));
    json_object_set_new(m, "default_us", json_real(source->default_us));
    if (source->visits)
        json_object_set_new(m, "visits", json_integer(source->visits));
    set_word(m, "default", source->fallback);
    set_word(m, "image", ctx->forced_image);
    return m;
}

static bool put(const char *path, const llmk_context *ctx, const llmk_tuning_row *row,
                const tune_source *source, char *error, size_t error_size)
{
    json_t *file = load(path, error, error_size);
    if (!file)
        return false;
    json_t *rows = json_object_get(file, "rows");
    for (size_t i = json_array_size(rows); i-- > 0;) {
        const llmk_tuning_row r = llmk_tuning_row_of(json_array_get(rows, i));
        if (same_bucket(&r, row) && same(r.device, ctx->caps.device_name))
            json_array_remove(rows, i);
    }
    json_t *added = json_object();
    set_word(added, "op", row->op);
    set_word(added, "types", row->types);
    set_word(added, "shape", row->shape);
    set_word(added, "device", ctx->caps.device_name);
    set_word(added, "variant", row->variant);
    set_word(added, "config", row->config);
    set_word(added, "hash", row->hash);
    json_object_set_new(added, "measured", measured_of(ctx, source));
    json_array_append_new(rows, added);
    if (!word(added, "device")) {
        json_decref(file);
        return fail(error, error_size, "%s: its name is no UTF-8, as a row would need it",
                    ctx->caps.device_name);
    }
    const bool good = write_file(path, ctx, file, error, error_size);
    json_decref(file);
    return good;
}

bool tune_db_put(const char *path, const llmk_context *ctx, const llmk_tuning_row *row,
                 const tune_source *source, char *error, size_t error_size)
{
    const int locked = lock(path, error, error_size);
    const bool good = locked >= 0 && put(path, ctx, row, source, error, error_size);
    if (locked >= 0)
        close(locked);
    return good;
}

/* "nv-stream@small" in place of "default"; nothing where a row does not know what that was. */
static void name_default(const json_t *measured, json_t *row)
{
    const llmk_operator *op = llmk_operator_named(word(row, "op"));
    const char *fallback = word(measured, "default");
    llmk_choice choice;
    char hash[17];
    if (!same(word(row, "variant"), LLMK_TUNING_RULE) || !fallback || !op ||
        !llmk_choice_parse(op, fallback, &choice))
        return;
    set_word(row, "variant", choice.variant->name);
    if (choice.config) {
        llmk_tuning_hash(op, choice.config, hash);
        set_word(row, "config", choice.config->name);
        set_word(row, "hash", hash);
    }
}

/* The row, measured on the device of a name of its `own`, becomes one for another architecture. */
static void move_to(const char *architecture, const char *own, json_t *row)
{
    char device[128], image[32], us[32] = "", from[256];
    json_t *measured = json_incref(json_object_get(row, "measured"));
    const double time = json_number_value(json_object_get(measured, "us"));
    const char *images = word(measured, "image");
    name_default(measured, row);
    if (time > 0)
        snprintf(us, sizeof us, ": %.4g us", time);
    snprintf(from, sizeof from, "%s%s%s%s", llmk_tuning_word(device, sizeof device, own),
             images ? ", images of " : "",
             llmk_tuning_word(image, sizeof image, images ? images : ""), us);
    set_word(row, "architecture", architecture);
    set_word(row, "from", from);
    json_object_set_new(row, "measured", json_false());
    set_word(row, "case", word(measured, "case"));
    json_decref(measured);
}

bool tune_db_export(const char *path, const llmk_context *ctx, const char *to, tune_level level,
                    const char *other, size_t *count, char *error, size_t error_size)
{
    static const char *const members[] = {"device", "architecture", "vendor"};
    char architecture[128];
    llmk_tuning_architecture(ctx, architecture, sizeof architecture);
    const char *const values[] = {ctx->caps.device_name, architecture, llmk_tuning_vendor(ctx)};
    if (!values[level][0])
        return fail(error, error_size, "%s has no architecture that rows could be for",
                    ctx->caps.device_name);
    if (llmk_same_file(path, to))
        return fail(error, error_size, "%s is the file that the rows are taken from", to);
    json_t *file = load(path, error, error_size), *row;
    if (!file)
        return false;
    json_t *out = json_array();
    size_t i;
    json_array_foreach(json_object_get(file, "rows"), i, row)
    {
        const llmk_tuning_row r = llmk_tuning_row_of(row);
        llmk_reason why;
        if (!same(r.device, ctx->caps.device_name) || !llmk_tuning_check(ctx, &r, &why) ||
            !json_is_object(json_object_get(row, "measured")))
            continue;
        json_object_del(row, "device");
        if (other)
            move_to(other, ctx->caps.device_name, row);
        else
            set_word(row, members[level], values[level]);
        json_array_append(out, row);
    }
    *count = json_array_size(out);
    json_t *whole = json_pack("{s:i, s:o}", "llmk_tuning", LLMK_TUNING_VERSION, "rows", out);
    const bool good = *count ? write_file(to, ctx, whole, error, error_size)
                             : fail(error, error_size, "%s has no rows that hold on %s%s", path,
                                    ctx->caps.device_name,
                                    access(path, F_OK) != 0 ? ": there is no such file" : "");
    json_decref(whole);
    json_decref(file);
    return good;
}

bool tune_db_list(const char *path, const llmk_context *ctx, FILE *out, char *error,
                  size_t error_size)
{
    json_t *file = load(path, error, error_size), *row;
    size_t i;
    if (!file)
        return false;
    if (access(path, F_OK) != 0)
        fputs("none: there is no such file yet\n", out);
    json_array_foreach(json_object_get(file, "rows"), i, row)
    {
        const llmk_tuning_row r = llmk_tuning_row_of(row);
        const json_t *measured = json_object_get(row, "measured");
        const double us = json_number_value(json_object_get(measured, "us"));
        const double fallback = json_number_value(json_object_get(measured, "default_us"));
        llmk_reason why = {"used"};
        if (!r.not_text && !r.from && !json_is_object(measured))
            llmk_no(&why, "a note: not measured");
        else if (!r.not_text && !llmk_tuning_is_for(ctx, &r))
            llmk_no(&why, r.image && !same(r.image, ctx->forced_image)
                              ? "for where LLMK_IMAGE is as it was measured"
                              : "for another device");
        else
            llmk_tuning_check(ctx, &r, &why);
        char times[128] = "", image[32];
        const char *images = word(measured, "image");
        if (us > 0)
            snprintf(times, sizeof times, "  %.2f us, default %.2f us%s%s", us, fallback,
                     images ? ", images of " : "",
                     llmk_tuning_word(image, sizeof image, images ? images : ""));
        print_row(out, &r, times, why.text);
    }
    json_decref(file);
    return true;
}

#else

static bool no_json(char *error, size_t size)
{
    return fail(error, size, "this llmk-tune was built without jansson, and writes no files");
}

bool tune_db_usable(const char *path, char *error, size_t error_size)
{
    (void)path;
    return no_json(error, error_size);
}

bool tune_db_has(const char *path, const llmk_context *ctx, const char *text,
                 const llmk_tuning_row *wanted)
{
    (void)path, (void)ctx, (void)text, (void)wanted;
    return false;
}

bool tune_db_put(const char *path, const llmk_context *ctx, const llmk_tuning_row *row,
                 const tune_source *source, char *error, size_t error_size)
{
    (void)path, (void)ctx, (void)row, (void)source;
    return no_json(error, error_size);
}

bool tune_db_export(const char *path, const llmk_context *ctx, const char *to, tune_level level,
                    const char *other, size_t *count, char *error, size_t error_size)
{
    (void)path, (void)ctx, (void)to, (void)level, (void)other, (void)count;
    return no_json(error, error_size);
}

bool tune_db_list(const char *path, const llmk_context *ctx, FILE *out, char *error,
                  size_t error_size)
{
    (void)path, (void)ctx, (void)out;
    return no_json(error, error_size);
}

#endif
