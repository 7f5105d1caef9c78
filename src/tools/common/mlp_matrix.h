/* mlp_matrix.h - a matrix of a model as its file holds it. */
#ifndef LLMK_TOOLS_MLP_MATRIX_H
#define LLMK_TOOLS_MLP_MATRIX_H

#include <llmk/llmk.h>

/* [rows, columns], out and in features; a vector has one row. The sources of `desc` point into the
 * file. */
typedef struct mlp_matrix {
    llmk_weights_desc desc;
    uint64_t rows, columns;
    uint64_t bytes; /* all its tensors */
} mlp_matrix;

/* Adds a tensor to the bytes of a matrix, and is the source that it makes. */
llmk_source mlp_matrix_source(mlp_matrix *m, const void *data, uint64_t bytes);
/* One row as floats, converted on the host apart from the library. False where memory runs out or
 * the format has no host conversion. */
bool mlp_matrix_row(const mlp_matrix *m, uint64_t row, float *values);

#endif
