/*
 * bench_report.h - results as an aligned table and as JSON.
 */
#ifndef LLMK_BENCH_REPORT_H
#define LLMK_BENCH_REPORT_H

#include "tools/common/bench_session.h"

/* The device, the library and the roof, in a few lines. */
void bench_print_device(FILE *out, const bench_session *s);
/* `width`: of the column of cases. */
void bench_print_head(FILE *out, int width);
void bench_print_row(FILE *out, const bench_row *row, const bench_roof *roof, int width);

/* A row as an object on one line, malloc'ed; NULL without jansson. */
char *bench_json_row(const bench_row *row, const bench_roof *roof);
/* {"case": text, key: message}, likewise. */
char *bench_json_note(const char *text, const char *key, const char *message);
/* Everything but the rows, likewise. */
char *bench_json_device(const bench_session *s);
/* Whether bench_json_write could write there, as far as can be known before; false with a
 * sentence. The file stays as it is. */
bool bench_json_writable(const char *path, char *error, size_t error_size);
/* The object of bench_json_device with the rows as its "results". A file that was there is replaced
 * when the new one is complete; a device or a pipe is written to. False with a sentence. */
bool bench_json_write(const char *path, const bench_session *s, const bench_row *rows, size_t count,
                      char *error, size_t error_size);

#endif
