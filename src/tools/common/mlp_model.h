/*
 * mlp_model.h - the MLP blocks of a model, as llmk-demo runs them: which tensors they are, their
 * sizes, and their weights on a device. From a GGUF file, or a safetensors file with config.json
 * beside it.
 */
#ifndef LLMK_TOOLS_MLP_MODEL_H
#define LLMK_TOOLS_MLP_MODEL_H

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "tools/common/mlp_matrix.h"

#include <llmk/llmk.h>

/* One layer: y = x + down(silu(gate(h)) * up(h)), h = rmsnorm(x). */
typedef struct mlp_layer {
    mlp_matrix norm, gate, up, down;
} mlp_layer;

typedef struct mlp_model {
    llmk_gguf *gguf; /* or */
    llmk_safetensors *safetensors;
    char architecture[64];
    char note[512]; /* what was guessed; "" where nothing was */
    uint64_t hidden, intermediate;
    uint32_t layer_count;
    float epsilon;
    mlp_matrix embedding; /* [rows, hidden] */
    mlp_layer *layers;
} mlp_model;

/* Opens a file, or model.safetensors in a folder, and finds every tensor, with its type and shape
 * checked. Texts that come of it can be printed, whatever the file says. */
bool mlp_model_open(const char *path, mlp_model *model, char *error, size_t error_size);
/* The part of it for safetensors (mlp_safetensors.c); the caller closes the model on failure. */
bool mlp_model_open_safetensors(const char *path, mlp_model *model, char *error, size_t error_size);
void mlp_model_close(mlp_model *model);
/* Writes the first `rows` embedding rows and the first `layers` blocks as a smaller file; GGUF
 * only. */
bool mlp_model_slice(const mlp_model *model, uint64_t rows, uint32_t layers, const char *path,
                     char *error, size_t error_size);

/* Whether there is such a method. */
bool mlp_model_generates(const char *method);
/* Writes a small synthetic checkpoint, "gptq" (version 1, act-order, asymmetric) or "awq", into
 * model.safetensors and config.json of a folder, which is made where it is not there. */
bool mlp_model_generate(const char *method, const char *folder, char *error, size_t error_size);

/* A layer in device memory. */
typedef struct mlp_device_layer {
    cl_mem norm; /* f32 [hidden] */
    llmk_weights *gate, *up, *down;
} mlp_device_layer;

/* Uploads; on failure llmk_error_message() says why and what was made is freed. */
llmk_status mlp_layer_upload(llmk_context *ctx, const mlp_model *model, uint32_t index,
                             mlp_device_layer *layer);
void mlp_layer_free(mlp_device_layer *layer);

#endif
