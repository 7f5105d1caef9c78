/*
 * image.h - kernel images: what the library embeds of a program besides its source, and which of it
 * a device takes. docs/images-and-caches.md describes them.
 */
#ifndef LLMK_CORE_IMAGE_H
#define LLMK_CORE_IMAGE_H

#include "core/core.h"
#include "core/embed.h"

/* The embedded images; a test may give a context others. */
struct llmk_image_set {
    const llmk_embedded_file *files; /* "OP/STEM.SUFFIX", compressed; and "index" */
    const size_t *count;
};
extern const llmk_image_set llmk_images;

typedef struct llmk_image {
    const char *kind;               /* "source", "spirv", "ptx", "cubin", "gfx942" */
    const char *target;             /* "sm_80"; "" where the kind says it all */
    const llmk_embedded_file *file; /* NULL: the source */
} llmk_image;

#define LLMK_MAX_IMAGES 8

/* Whether `word` is a value of LLMK_IMAGE, and all of those for a sentence. */
#define LLMK_IMAGE_WORDS "source, spirv, native, ptx, cubin or sm_80"
bool llmk_image_word(const char *word);

/* What there is of a program for this device, in the order to try. Not empty where it succeeds: it
 * fails where LLMK_IMAGE leaves nothing. */
llmk_status llmk_images_of(const llmk_context *ctx, const char *file, const char *defines,
                           llmk_image images[LLMK_MAX_IMAGES], size_t *count);

/* Whether the first to try is not the source. */
bool llmk_image_comes_first(const llmk_context *ctx, const char *file, const char *defines);

/* Decompresses into a malloc'ed block with a NUL byte behind it. */
llmk_status llmk_image_unpack(const llmk_image *image, unsigned char **data, size_t *size);

/* A program asked for so far that cl/manifest.txt does not list, as "FILE (DEFINES)"; or NULL. */
const char *llmk_manifest_gap(void);

/* clCreateProgramWithIL, from wherever this driver and loader have it. */
cl_program llmk_create_with_il(const llmk_context *ctx, const void *il, size_t size, cl_int *err);

#endif
