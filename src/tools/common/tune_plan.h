/*
 * tune_plan.h - the cases that llmk-tune goes through.
 */
#ifndef LLMK_TUNE_PLAN_H
#define LLMK_TUNE_PLAN_H

#include "cases/case.h"

typedef struct tune_job {
    char text[512];
    double cost;   /* flops: small ones come first */
    uint32_t turn; /* among those of its operator */
    size_t op;
} tune_job;

typedef struct tune_plan {
    tune_job *list;
    size_t count;
} tune_plan;

/* Adds a case; one that is there already is not added again. */
bool tune_plan_add(tune_plan *plan, const case_line *line);
/* Adds the cases of all model lists, or of one, at the numbers of tokens; only those of operators
 * that are tuned. */
bool tune_plan_models(tune_plan *plan, const char *lists, const char *model, const uint64_t *tokens,
                      size_t token_count, char *error, size_t error_size);
/* One of each operator in turn, cheap ones first, so that a short budget reaches many. */
void tune_plan_sort(tune_plan *plan);
void tune_plan_free(tune_plan *plan);

/* "OP --shape 1,4096,4096 --format w4": the operator's first fields in their order, and `w`; groups
 * of 128 where the format has groups. */
bool tune_plan_line(const char *op, const char *shape, const char *format, case_line *line,
                    char *error, size_t error_size);

#endif
