/*
 * bench_clblast.h - CLBlast's matrix product beside the dense linear cases, where the build found
 * CLBlast.
 */
#ifndef LLMK_BENCH_CLBLAST_H
#define LLMK_BENCH_CLBLAST_H

#include "tools/common/bench_session.h"

/* Fills a row for CLBlast on the same product; returns the number of rows, 0 or 1: not every case
 * is a product that CLBlast has. */
size_t bench_clblast_time(bench_session *s, const case_line *line, bench_row *row);
/* One line where CLBlast is absent; else NULL. */
const char *bench_clblast_note(void);

#endif
