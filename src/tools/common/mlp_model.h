/*
 * mlp_model.h - the MLP blocks of a GGUF model, as llmk-demo runs them: which tensors they are,
 * their sizes, and their weights on a device.
 */
#ifndef LLMK_TOOLS_MLP_MODEL_H
#define LLMK_TOOLS_MLP_MODEL_H

#include "formats/gguf.h"

#include <llmk/llmk.h>

/* One layer: y = x + down(silu(gate(h)) * up(h)), h = rmsnorm(x). */
typedef struct mlp_layer {
    const llmk_gguf_tensor *norm, *gate, *up, *down;
} mlp_layer;

typedef struct mlp_model {
    llmk_gguf *gguf;
    char architecture[64];
    uint64_t hidden, intermediate;
    uint32_t layer_count;
    float epsilon;
    const llmk_gguf_tensor *embedding; /* [rows][hidden] */
    mlp_layer *layers;
} mlp_model;

/* Opens a file and finds every tensor, with its type and shape checked. */
bool mlp_model_open(const char *path, mlp_model *model, char *error, size_t error_size);
void mlp_model_close(mlp_model *model);
/* Writes the first `rows` embedding rows and the first `layers` blocks as a smaller file. */
bool mlp_model_slice(const mlp_model *model, uint64_t rows, uint32_t layers, const char *path,
                     char *error, size_t error_size);

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
