/*
 * layout.h - fields of a case that say where the rows of its tensors lie, the same for all
 * operators that work row by row.
 */
#ifndef LLMK_LAYOUT_H
#define LLMK_LAYOUT_H

#include "cases/case.h"

#define LAYOUT_FIELDS                                                                              \
    {"d0", CASE_U64, 0, NULL, "first of four dimensions (0: fewer)"},                              \
        {"d1", CASE_U64, 0, NULL, "dimension before rows (0: rows are the first)"},                \
        {"rows", CASE_U64, 3, NULL, "rows"},                                                       \
        {"rank1", CASE_FLAG, 0, NULL, "vectors instead of one row"},                               \
        {"gap", CASE_U64, 0, NULL, "elements between rows, once, twice ... by tensor"},            \
        {"hole", CASE_U64, 0, NULL, "elements between blocks of rows, likewise"},                  \
        {"inner", CASE_U64, 1, NULL, "innermost stride"},                                          \
    {                                                                                              \
        "pad", CASE_U64, 0, NULL, "elements by which tensors miss their alignment"                 \
    }

/* A tensor [d0, d1, rows, cols] of the line's layout. Tensors of one case have different strides:
 * `number`, from 1, multiplies gap and hole. */
case_tensor *layout_tensor(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                           uint64_t cols, unsigned number, llmk_tensor *slot);
/* A vector, with the line's inner and pad. */
case_tensor *layout_vector(case_run *run, const char *name, llmk_dtype dtype, uint64_t n,
                           llmk_tensor *slot);
/* All leading dimensions together. */
uint64_t layout_rows(const case_line *line);

#endif
