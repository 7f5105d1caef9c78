/*
 * tune_db.h - the user's file of tuned rows, as llmk-tune writes it. docs/tuning.md describes it,
 * and core/tuning.h reads it. Needs jansson.
 */
#ifndef LLMK_TUNE_DB_H
#define LLMK_TUNE_DB_H

#include "core/tuning.h"

#include <stdio.h>

/* What a row says of where it comes from. */
typedef struct tune_source {
    const char *text; /* the case */
    double us, spread, default_us;
    unsigned visits;      /* of which these are means; 0: the calls were not sustained */
    const char *fallback; /* what the library took by itself; NULL: not known */
} tune_source;

typedef enum tune_level { TUNE_DEVICE, TUNE_ARCHITECTURE, TUNE_VENDOR } tune_level;

#define TUNE_PATH 4096 /* bytes of a file's name at most */

/* Whether there is a file to be added to, or none yet, and rows can be kept there: its folder is
 * made, and a file written in it for trial. False where there is something else, which is not to be
 * lost. Links are followed, here and below. */
bool tune_db_usable(const char *path, char *error, size_t error_size);
/* Whether the file has a row for the device that this driver and this library measured: with the
 * case, or (`row` not NULL) for the same operator, types and shape. */
bool tune_db_has(const char *path, const llmk_context *ctx, const char *text,
                 const llmk_tuning_row *row);
/* Adds a row for ctx's device, in place of the one for the same operator, types and shape. The file
 * is the old one or the new one, whole, at every moment. Writers of one file take turns, by a lock
 * on PATH.lock, which stays. */
bool tune_db_put(const char *path, const llmk_context *ctx, const llmk_tuning_row *row,
                 const tune_source *source, char *error, size_t error_size);
/* Writes the device's rows to another file, for a level: what the library can take in. `other`, unless
 * NULL, is an architecture that they are for instead, as rows that were not measured there; they name
 * what the library took by itself where that was best, since it may take something else there. */
bool tune_db_export(const char *path, const llmk_context *ctx, const char *to, tune_level level,
                    const char *other, size_t *count, char *error, size_t error_size);
/* A line a row: what it is for, and whether it would be used. */
bool tune_db_list(const char *path, const llmk_context *ctx, FILE *out, char *error,
                  size_t error_size);
/* The same of those in the library that are for ctx's device. */
void tune_db_list_built_in(const llmk_context *ctx, FILE *out);

#endif
