/*
 * tune_problem.h - a case as tuned rows name it, and what could serve it.
 */
#ifndef LLMK_TUNE_PROBLEM_H
#define LLMK_TUNE_PROBLEM_H

#include "cases/case.h"
#include "tools/common/tune_search.h"

typedef struct tune_problem {
    char types[256], shape[256]; /* members of a row */
    char fallback[TUNE_NAME];    /* what the library chooses, rows inside it included */
    char unchanged[TUNE_NAME];   /* what a row says that leaves it at that */
    char candidates[TUNE_CANDIDATES][TUNE_NAME];
    size_t count;
} tune_problem;

/* In a context without a user's rows and forced variants. False, with a sentence, where the
 * operator is not tuned for such a call, or no variant serves it. Runs nothing but the self-tests
 * of what the library itself would choose. */
bool tune_problem_of(case_run *run, tune_problem *problem, char *error, size_t error_size);

#endif
