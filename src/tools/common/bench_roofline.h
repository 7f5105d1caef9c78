/*
 * bench_roofline.h - results as points under the measured roof: data, and figures by gnuplot.
 */
#ifndef LLMK_BENCH_ROOFLINE_H
#define LLMK_BENCH_ROOFLINE_H

#include "tools/common/bench_session.h"

/* What a row's time is bound by at best. */
typedef enum bench_bound { BENCH_BY_MEMORY, BENCH_BY_ARITHMETIC, BENCH_BY_LAUNCH } bench_bound;

/* By launch: where an empty kernel takes longer than the roof allows the case. */
bench_bound bench_row_bound(const bench_row *row, const bench_roof *roof);
/* FLOPs a byte. */
double bench_row_intensity(const bench_row *row);

/* Whether all its files can be made, before anything is measured for them. */
bool bench_roofline_writable(const char *prefix, char *error, size_t error_size);
/* Whether one of them would be `path`. */
bool bench_roofline_makes(const char *prefix, const char *path);
/* Writes PREFIX.dat and PREFIX.gp; where there is gnuplot, it makes PREFIX.svg and PREFIX.png of
 * them. `note` gets what there is to say about that, or "". False, with a sentence, where the data
 * cannot be written. */
bool bench_roofline_write(const char *prefix, const bench_session *s, const bench_row *rows,
                          size_t count, char *note, size_t note_size, char *error,
                          size_t error_size);

#endif
