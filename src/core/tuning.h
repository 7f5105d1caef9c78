/*
 * tuning.h - tuned rows: which variant and configuration measured fastest, for which types and
 * sizes, on which devices. docs/tuning.md describes files of them.
 *
 * A context reads the rows that concern its device once, the user's file before those in the
 * library. Rows are advice: what they ask for must be in the operator's tables, within the device's
 * limits, supported, and pass its self-test like any variant; else the operator's own order holds.
 */
#ifndef LLMK_TUNING_H
#define LLMK_TUNING_H

#include "core/core.h"

struct llmk_operator;
struct llmk_choice;
struct llmk_config;

#define LLMK_TUNING_VERSION   1
#define LLMK_TUNING_SIZES     4          /* that an operator's choice may depend on */
#define LLMK_TUNING_BUILT_IN  "built-in" /* as LLMK_TUNE_DB: no user's file */
#define LLMK_TUNING_MAX_ROWS  4096
#define LLMK_TUNING_MAX_BYTES (4u << 20)
#define LLMK_TUNING_RULE                                                                           \
    "default" /* as a variant: the operator's own order; as a configuration:                       \
                 the variant's own rule */

/* A row as files have it. What is NULL is not there: types and shape are then any. Of device,
 * architecture and vendor at most one is there; without any a row is for every device. */
typedef struct llmk_tuning_row {
    const char *op, *types, *shape;
    const char *variant, *config, *hash;
    const char *device, *architecture, *vendor;
    const char *image; /* not NULL: measured where LLMK_IMAGE was that, and good there alone */
    const char *from;  /* not NULL: it was not measured on what it is for, but comes from there */
    const char *not_text; /* a member that should be a string; "": the row is no object */
} llmk_tuning_row;

/* The rows in the library: tuning/ *.json, those that are no notes (cmake/LlmkTuning.cmake). */
extern const llmk_tuning_row llmk_tuning_built_in[];
extern const size_t llmk_tuning_built_in_count;

/* The rows for ctx's device; NULL where there are none. */
llmk_tuning *llmk_tuning_open(llmk_context *ctx);
void llmk_tuning_free(llmk_tuning *tuning);
/* What the first row that fits asks for; false where none does, or it asks for the operator's own
 * order. */
bool llmk_tuning_find(const llmk_context *ctx, const struct llmk_operator *op, const void *problem,
                      struct llmk_choice *choice);
/* Where that row comes from if it was not measured on such a device, else NULL. */
const char *llmk_tuning_from(const llmk_context *ctx, const struct llmk_operator *op,
                             const void *problem);

/* Before all rows: calls of `op` are to use the choice, which stays the caller's; with NULL the
 * rows hold again. For the tuner, while no call is made. False without memory. */
bool llmk_tuning_pin(llmk_context *ctx, const struct llmk_operator *op,
                     const struct llmk_choice *choice);

/* Whether a row is for ctx's device, with the images that ctx is held to. */
bool llmk_tuning_is_for(const llmk_context *ctx, const llmk_tuning_row *row);
/* Whether its words make sense on ctx's device; writes a sentence where not. */
bool llmk_tuning_check(const llmk_context *ctx, const llmk_tuning_row *row, llmk_reason *why);
/* A file's word for a sentence: at most size - 1 bytes, no character cut, none that a terminal would
 * obey. Returns `out`; "?" for NULL. */
const char *llmk_tuning_word(char *out, size_t size, const char *text);
/* Words for rows: of the device, of a problem's sizes ("m=8 n=16384 k=4096": up to so many, powers
 * of two), of a configuration's meaning (16 digits). False where the operator is not tuned, or not
 * for this problem. */
const char *llmk_tuning_vendor(const llmk_context *ctx);
void llmk_tuning_architecture(const llmk_context *ctx, char *text, size_t size);
bool llmk_tuning_shape(const struct llmk_operator *op, const void *problem, char *text,
                       size_t size);
void llmk_tuning_hash(const struct llmk_operator *op, const struct llmk_config *config,
                      char text[17]);

/* ---- The user's file (tuning_file.c) ---- */

/* LLMK_TUNE_DB, else the XDG configuration folder's llmk/tuning.json; false where neither is known.
 */
bool llmk_tuning_path(char *path, size_t size);
#ifdef LLMK_HAVE_JANSSON
struct json_t;
/* A row as JSON has it, whose words it points into. */
llmk_tuning_row llmk_tuning_row_of(const struct json_t *row);
#endif
/* Calls `take` for every row of a file. False, with a sentence, where it is no file of rows; a file
 * that is not there has none. */
bool llmk_tuning_read(const char *path,
                      void (*take)(void *user, size_t index, const llmk_tuning_row *row),
                      void *user, llmk_reason *why);

#endif
