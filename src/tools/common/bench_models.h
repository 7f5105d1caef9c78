/*
 * bench_models.h - the cases of a model, by name: bench/models/NAME.txt.
 *
 * A line of such a file is "name: case", where {T} in the case stands for the number of tokens;
 * '#' begins a comment.
 */
#ifndef LLMK_BENCH_MODELS_H
#define LLMK_BENCH_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct bench_model_case {
    char name[64];
    char text[448];
} bench_model_case;

/* The folder of the lists: `given` if not NULL, else where they lie beside this program, installed
 * or in a build tree, else in the source tree. False where there is none. */
bool bench_models_dir(const char *given, char *dir, size_t size);
/* The cases of a model at `tokens`, malloc'ed. NULL with a sentence. */
bench_model_case *bench_models_load(const char *dir, const char *model, uint64_t tokens,
                                    size_t *count, char *error, size_t error_size);
/* Prints the names of the models in a folder, and the first comment of each; of `name` alone unless
 * that is NULL. Returns how many. */
size_t bench_models_list(const char *dir, const char *name, FILE *out);

#endif
