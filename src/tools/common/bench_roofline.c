/* bench_roofline.c - a table that gnuplot reads, and the script that plots it. */
#include "tools/common/bench_roofline.h"

#include "core/core.h"
#include "formats/new_file.h"

#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PATH 1100

static const char *const ends[] = {".dat", ".gp", ".svg", ".png"};

double bench_row_intensity(const bench_row *row)
{
    const double bytes = (double)(row->bytes_read + row->bytes_written);
    return bytes > 0 ? row->flops / bytes : 0;
}

static double peak_of(const bench_row *row, const bench_roof *roof)
{
    return row->matrix && roof->matrix_tflops > 0 ? roof->matrix_tflops : roof->fma_tflops;
}

bench_bound bench_row_bound(const bench_row *row, const bench_roof *roof)
{
    const double launch = row->launch.us.count ? row->launch.us.median : roof->launch_us;
    if (launch > bench_row_roof_us(row, roof))
        return BENCH_BY_LAUNCH;
    /* GB/s times FLOPs a byte are GFLOP/s. */
    return bench_row_intensity(row) * roof->copy_gbs < peak_of(row, roof) * 1e3
               ? BENCH_BY_MEMORY
               : BENCH_BY_ARITHMETIC;
}

/* ---- Text files ---- */

__attribute__((format(printf, 2, 3))) static void put(llmk_new_file *out, const char *fmt, ...)
{
    char text[2 * MAX_PATH + 1024];
    va_list list;
    va_start(list, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    llmk_new_file_put(out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static bool is_point(const bench_row *row)
{
    return !row->error[0] && row->timing.us.median > 0 && row->flops > 0;
}

static size_t operator_length(const bench_row *row)
{
    return strcspn(row->text, " ");
}

static bool same_operator(const bench_row *a, const bench_row *b)
{
    const size_t n = operator_length(a);
    return n == operator_length(b) && memcmp(a->text, b->text, n) == 0;
}

/* Whether no row before has the same operator. */
static bool begins_operator(const bench_row *rows, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (is_point(&rows[i]) && same_operator(&rows[i], &rows[index]))
            return false;
    return is_point(&rows[index]);
}

static void put_row(llmk_new_file *out, const bench_row *row, const bench_roof *roof)
{
    static const char *const bounds[] = {"memory", "arithmetic", "launch"};
    const double us = row->timing.us.median, best = bench_row_roof_us(row, roof);
    put(out, "\"%s\" %s %llu %.0f %.4g %.3f %.4f %.2f %.5f %.3f %.1f %s \"%s\"\n",
        row->name[0] ? row->name : row->text, row->variant,
        (unsigned long long)row->bytes_read + row->bytes_written, row->flops,
        bench_row_intensity(row), us, bench_stats_spread(&row->timing.us), bench_row_gbs(row),
        bench_row_tflops(row), best, 100 * best / us, bounds[bench_row_bound(row, roof)],
        row->text);
}

/* Of the operator of `like`, or of all. */
static size_t points_of(const bench_row *rows, size_t count, const bench_row *like)
{
    size_t points = 0;
    for (size_t i = 0; i < count; i++)
        points += is_point(&rows[i]) && (!like || same_operator(&rows[i], like));
    return points;
}

/* A block an operator, which gnuplot calls an index. */
static void put_data(llmk_new_file *out, const bench_session *s, const bench_row *rows,
                     size_t count)
{
    put(out, "# %s / %s, driver %s\n# %s\n", s->info.platform, s->info.name, s->info.driver,
        llmk_build_info());
    put(out,
        "# copy %.2f GB/s, f32 multiply-add %.4f TFLOP/s, f16 matrix %.2f TFLOP/s, launch "
        "%.2f us\n",
        s->roof.copy_gbs, s->roof.fma_tflops, s->roof.matrix_tflops, s->roof.launch_us);
    put(out, "# name variant bytes flops flops/byte us spread GB/s TFLOP/s roof_us %%roof bound "
             "case\n");
    for (size_t i = 0; i < count; i++) {
        if (!begins_operator(rows, i))
            continue;
        put(out, "\n\n# %.*s\n", (int)operator_length(&rows[i]), rows[i].text);
        for (size_t j = i; j < count; j++)
            if (is_point(&rows[j]) && same_operator(&rows[i], &rows[j]))
                put_row(out, &rows[j], &s->roof);
    }
}

/* gnuplot's single-quoted strings. */
static void quote(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (; *text && n + 3 < size; text++) {
        if (*text == '\'')
            out[n++] = '\'';
        out[n++] = *text;
    }
    out[n] = '\0';
}

/* Names of more points would lie over each other: those get their numbers in the data. */
#define MOST_NAMES 16

static void put_script(llmk_new_file *out, const char *prefix, const bench_session *s,
                       const bench_row *rows, size_t count)
{
    char name[2 * MAX_PATH], title[600], device[300];
    quote(prefix, name, sizeof name);
    snprintf(device, sizeof device, "%s / %s", s->info.platform, s->info.name);
    quote(device, title, sizeof title);
    const bool matrix = s->roof.matrix_tflops > 0;
    const size_t points = points_of(rows, count, NULL);
    put(out, "data = '%s.dat'\ncopy = %.6g # TB/s\nfma = %.6g # TFLOP/s\nmatrix = %.6g\n", name,
        s->roof.copy_gbs * 1e-3, s->roof.fma_tflops, s->roof.matrix_tflops);
    put(out, "set title '%s' noenhanced\nset xlabel 'FLOPs a byte'\nset ylabel 'TFLOP/s'\n", title);
    put(out, "set logscale xy\nset samples 1000\nset grid\nset key bottom right\nset xrange "
             "[0.05:10000]\n"
             "low(a, b) = a < b ? a : b\n");
    static const char *const outputs[][2] = {{"svg size 960,640 background 'white'", "svg"},
                                             {"pngcairo size 960,640", "png"}};
    for (size_t f = 0; f < LLMK_COUNT(outputs); f++) {
        put(out,
            "set terminal %s\nset output '%s.%s'\nplot low(copy * x, fma) with lines lw 2 "
            "lc 'black' title 'copy and f32 multiply-adds, measured'",
            outputs[f][0], name, outputs[f][1]);
        if (matrix)
            put(out, ", \\\n    low(copy * x, matrix) with lines lw 2 dt 2 lc 'black' title 'f16 "
                     "matrix units, measured'");
        for (size_t i = 0, index = 0, first = 1; i < count; i++)
            if (begins_operator(rows, i)) {
                char label[48] = "1";
                if (points > MOST_NAMES)
                    snprintf(label, sizeof label, "(sprintf('%%d', $0 + %zu))", first);
                put(out,
                    ", \\\n    data index %zu using 5:9 with points pt 7 ps 1.2 lc %zu title "
                    "'%.*s' noenhanced, \\\n    data index %zu using 5:9:%s with labels left "
                    "offset 0.8,0 font ',8' noenhanced notitle",
                    index, index + 1, (int)operator_length(&rows[i]), rows[i].text, index, label);
                index++;
                first += points_of(rows, count, &rows[i]);
            }
        put(out, "\n");
    }
}

static bool write_text(const char *prefix, const char *end, const bench_session *s,
                       const bench_row *rows, size_t count, char *error, size_t error_size)
{
    char path[MAX_PATH];
    llmk_new_file out;
    snprintf(path, sizeof path, "%s%s", prefix, end);
    if (!llmk_new_file_open(&out, path, error, error_size))
        return false;
    if (strcmp(end, ends[0]) == 0)
        put_data(&out, s, rows, count);
    else
        put_script(&out, prefix, s, rows, count);
    return llmk_new_file_close(&out, true, path, NULL, error, error_size);
}

bool bench_roofline_writable(const char *prefix, char *error, size_t error_size)
{
    char path[MAX_PATH];
    for (size_t i = 0; i < LLMK_COUNT(ends); i++) {
        if ((size_t)snprintf(path, sizeof path, "%s%s", prefix, ends[i]) >= sizeof path) {
            snprintf(error, error_size, "the name is too long");
            return false;
        }
        if (!llmk_new_file_possible(path, error, error_size))
            return false;
    }
    return true;
}

bool bench_roofline_makes(const char *prefix, const char *path)
{
    const size_t length = strlen(prefix);
    bool makes = false;
    for (size_t i = 0; i < LLMK_COUNT(ends) && strncmp(path, prefix, length) == 0; i++)
        makes = makes || strcmp(path + length, ends[i]) == 0;
    return makes;
}

/* The exit status; 127 where there is no gnuplot. It reads the script as its input: a name that
 * begins with "-" would be an option. */
static int plot(const char *prefix)
{
    char path[MAX_PATH];
    int status = 0;
    snprintf(path, sizeof path, "%s.gp", prefix);
    const int script = open(path, O_RDONLY | O_CLOEXEC);
    const pid_t pid = script < 0 ? -1 : fork();
    if (pid == 0) {
        const int null = open("/dev/null", O_WRONLY);
        if (null >= 0)
            dup2(null, STDERR_FILENO);
        dup2(script, STDIN_FILENO);
        execlp("gnuplot", "gnuplot", (char *)NULL);
        _exit(127);
    }
    if (script >= 0)
        close(script);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

bool bench_roofline_write(const char *prefix, const bench_session *s, const bench_row *rows,
                          size_t count, char *note, size_t note_size, char *error,
                          size_t error_size)
{
    size_t points = 0;
    note[0] = '\0';
    for (size_t i = 0; i < count; i++)
        points += is_point(&rows[i]);
    if (!points) {
        snprintf(error, error_size, "--roofline: no case gave a point");
        return false;
    }
    if (!write_text(prefix, ends[0], s, rows, count, error, error_size) ||
        !write_text(prefix, ends[1], s, rows, count, error, error_size))
        return false;
    const int status = plot(prefix);
    if (status == 127)
        snprintf(note, note_size, "gnuplot is not installed: %s.gp makes the figures where it is",
                 prefix);
    else if (status != 0)
        snprintf(note, note_size, "gnuplot failed on %s.gp", prefix);
    return true;
}
