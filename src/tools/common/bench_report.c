/* bench_report.c - results as a table and as JSON. */
#include "tools/common/bench_report.h"

#include "formats/new_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef LLMK_HAVE_JANSSON
#include <jansson.h>
#endif

/* ---- The table ---- */

void bench_print_device(FILE *out, const bench_session *s)
{
    const bench_roof *roof = &s->roof;
    fprintf(out, "%s / %s, driver %s\n%s\n", s->info.platform, s->info.name, s->info.driver,
            llmk_build_info());
    fprintf(out,
            "copy of %.0f MB: %.0f GB/s;  empty kernel: %.2f us;  f32 multiply-add: %.2f TFLOP/s",
            (double)roof->copy_bytes * 1e-6, roof->copy_gbs, roof->launch_us, roof->fma_tflops);
    if (roof->matrix)
        fprintf(out, ";  f16 %s: %.0f TFLOP/s", roof->matrix, roof->matrix_tflops);
    fputs("\n\n", out);
}

void bench_print_head(FILE *out, int width)
{
    fprintf(out, "%-*s %-11s %10s %7s %8s %8s %7s %7s %7s %9s\n", width, "case", "variant", "us",
            "spread", "GB/s", "TFLOP/s", "% copy", "% roof", "launch", "- launch");
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

void bench_print_row(FILE *out, const bench_row *row, const bench_roof *roof, int width)
{
    const char *name = row->name[0] ? row->name : row->text;
    if (row->error[0]) {
        fprintf(out, "%-*s %-11s %s\n", width, name, row->variant, row->error);
        return;
    }
    const bench_stats *us = &row->timing.us;
    char launch[16] = "";
    if (row->launch.us.count)
        snprintf(launch, sizeof launch, "%.2f", row->launch.us.median);
    fprintf(out, "%-*s %-11s %10.2f %6.1f%% %8.0f %8.2f %6.1f%% %6.1f%% %7s %9.2f\n", width, name,
            row->variant, us->median, 100 * bench_stats_spread(us), bench_row_gbs(row),
            bench_row_tflops(row), percent(row->copy_us, us->median),
            percent(bench_row_roof_us(row, roof), us->median), launch,
            bench_row_beyond_us(row, roof));
    if (!row->windows)
        return;
    double sorted[BENCH_WINDOWS];
    memcpy(sorted, row->sustained_us, sizeof sorted);
    const bench_stats s = bench_stats_of(sorted, row->windows);
    fprintf(out,
            "%-*s sustained: first %.2f, median %.2f, last %.2f us in %zu windows, %.2f to %.2f\n",
            width, "", row->sustained_us[0], s.median, row->sustained_us[row->windows - 1],
            row->windows, s.least, sorted[row->windows - 1]);
}

/* ---- JSON ---- */

#ifdef LLMK_HAVE_JANSSON

/* Device names and messages come from drivers: what is not UTF-8 is left out. */
static void put_text(json_t *object, const char *key, const char *text)
{
    json_t *value = json_string(text);
    json_object_set_new(object, key, value ? value : json_string("?"));
}

static void put_real(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, json_real(value));
}

static void put_count(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static json_t *row_object(const bench_row *row, const bench_roof *roof)
{
    json_t *o = json_object();
    put_text(o, "case", row->text);
    if (row->name[0])
        put_text(o, "name", row->name);
    put_text(o, "variant", row->variant);
    if (row->error[0]) {
        put_text(o, row->skipped ? "skipped" : "error", row->error);
        return o;
    }
    const bench_stats *us = &row->timing.us;
    put_real(o, "us", us->median);
    put_real(o, "us_p5", us->p5);
    put_real(o, "us_q1", us->q1);
    put_real(o, "us_q3", us->q3);
    put_real(o, "us_p95", us->p95);
    put_real(o, "spread", bench_stats_spread(us));
    put_count(o, "batches", us->count);
    put_count(o, "launches_per_batch", row->timing.calls);
    put_count(o, "sets", row->sets);
    put_count(o, "rotation_bytes", row->rotation_bytes);
    put_count(o, "bytes_read", row->bytes_read);
    put_count(o, "bytes_written", row->bytes_written);
    put_count(o, "bytes", row->bytes_read + row->bytes_written);
    put_real(o, "flops", row->flops);
    put_real(o, "gbs", bench_row_gbs(row));
    put_real(o, "tflops", bench_row_tflops(row));
    put_real(o, "beyond_launch_us", bench_row_beyond_us(row, roof));
    if (row->launch.us.count) {
        put_real(o, "launch_us", row->launch.us.median);
        put_real(o, "beyond_launch_us_p5", row->beyond.p5);
        put_real(o, "beyond_launch_us_p95", row->beyond.p95);
    }
    json_t *windows = row->windows ? json_array() : NULL;
    for (size_t i = 0; i < row->windows; i++)
        json_array_append_new(windows, json_real(row->sustained_us[i]));
    if (windows)
        json_object_set_new(o, "sustained_us", windows);
    put_real(o, "copy_us", row->copy_us);
    put_real(o, "percent_copy", percent(row->copy_us, us->median));
    put_real(o, "percent_roofline", percent(bench_row_roof_us(row, roof), us->median));
    return o;
}

static json_t *device_object(const bench_session *s)
{
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const char *image = getenv("LLMK_IMAGE");
    json_t *o = json_object();
    put_text(o, "tool", "llmk-bench");
    put_text(o, "date", date);
    put_text(o, "library", llmk_build_info());
    put_count(o, "library_version", llmk_version());
    put_text(o, "image", image ? image : "any");
    put_text(o, "platform", s->info.platform);
    put_text(o, "device", s->info.name);
    put_text(o, "driver", s->info.driver);
    put_count(o, "cache_bytes", s->info.cache_bytes);
    put_real(o, "launch_us", s->roof.launch_us);
    put_count(o, "copy_bytes", s->roof.copy_bytes);
    put_real(o, "copy_gbs", s->roof.copy_gbs);
    put_real(o, "fma_tflops", s->roof.fma_tflops);
    put_real(o, "matrix_tflops", s->roof.matrix_tflops);
    put_text(o, "matrix", s->roof.matrix ? s->roof.matrix : "");
    return o;
}

static char *to_line(json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(7));
    json_decref(object);
    return text;
}

char *bench_json_row(const bench_row *row, const bench_roof *roof)
{
    return to_line(row_object(row, roof));
}

char *bench_json_note(const char *text, const char *key, const char *message)
{
    json_t *o = json_object();
    put_text(o, "case", text);
    put_text(o, key, message);
    return to_line(o);
}

char *bench_json_device(const bench_session *s)
{
    return to_line(device_object(s));
}

/* ---- The file ---- */

/* A pipe or a device cannot be replaced by a file; it is written to. */
static bool is_stream(const char *path)
{
    struct stat there;
    return stat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode);
}

bool bench_json_writable(const char *path, char *error, size_t error_size)
{
    if (access(path, W_OK) != 0 && errno != ENOENT) {
        snprintf(error, error_size, "%s: %s", path, strerror(errno));
        return false;
    }
    if (is_stream(path)) /* and opening it twice could end it */
        return true;
    return llmk_new_file_possible(path, error, error_size);
}

static bool write_stream(const char *path, const char *text, char *error, size_t error_size)
{
    FILE *out = fopen(path, "w");
    bool good = out && fputs(text, out) >= 0;
    if (out)
        good = fclose(out) == 0 && good;
    if (!good)
        snprintf(error, error_size, "%s: %s", path, strerror(errno));
    return good;
}

static bool write_file(const char *path, const char *text, char *error, size_t error_size)
{
    llmk_new_file file;
    if (!llmk_new_file_open(&file, path, error, error_size))
        return false;
    llmk_new_file_put(&file, text, strlen(text));
    return llmk_new_file_close(&file, true, path, NULL, error, error_size);
}

bool bench_json_write(const char *path, const bench_session *s, const bench_row *rows, size_t count,
                      char *error, size_t error_size)
{
    json_t *document = device_object(s), *results = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(results, row_object(&rows[i], &s->roof));
    json_object_set_new(document, "results", results);
    char *text = json_dumps(document, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
    json_decref(document);
    if (!text) {
        snprintf(error, error_size, "%s: no memory for the results", path);
        return false;
    }
    const bool good = (is_stream(path) ? write_stream : write_file)(path, text, error, error_size);
    free(text);
    return good;
}

#else

char *bench_json_row(const bench_row *row, const bench_roof *roof)
{
    (void)row, (void)roof;
    return NULL;
}

char *bench_json_note(const char *text, const char *key, const char *message)
{
    (void)text, (void)key, (void)message;
    return NULL;
}

char *bench_json_device(const bench_session *s)
{
    (void)s;
    return NULL;
}

bool bench_json_writable(const char *path, char *error, size_t error_size)
{
    snprintf(error, error_size, "%s: this llmk-bench was built without jansson, and writes no JSON",
             path);
    return false;
}

bool bench_json_write(const char *path, const bench_session *s, const bench_row *rows, size_t count,
                      char *error, size_t error_size)
{
    (void)path, (void)s, (void)rows, (void)count;
    snprintf(error, error_size, "this llmk-bench was built without jansson, and writes no JSON");
    return false;
}

#endif
