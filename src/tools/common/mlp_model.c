/* mlp_model.c - finding and uploading the MLP blocks of a GGUF model. */
#include "tools/common/mlp_model.h"

#include "formats/gguf_write.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_LAYERS 4096u

static bool refuse(char *error, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static bool refuse(char *error, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(error, size, fmt, args);
    va_end(args);
    return false;
}

static bool get_size(const mlp_model *m, const char *suffix, uint64_t *value, char *error,
                     size_t size)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->architecture, suffix);
    if (!llmk_gguf_get_u64(m->gguf, key, value) || *value == 0 || *value > UINT32_MAX)
        return refuse(error, size, "the file has no usable %s (a number from 1 to 2^32 - 1)", key);
    return true;
}

static bool find(const mlp_model *m, const char *name, uint64_t columns, uint64_t rows,
                 const llmk_gguf_tensor **out, char *error, size_t size)
{
    const llmk_gguf_tensor *t = llmk_gguf_find_tensor(m->gguf, name, error, size);
    if (!t)
        return false;
    if (t->dims[0] != columns || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return refuse(error, size,
                      "%s is %" PRIu64 " x %" PRIu64 "; expected %" PRIu64 " x %" PRIu64, name,
                      t->dims[0], t->dims[1], columns, rows);
    *out = t;
    return true;
}

static bool find_layer(const mlp_model *m, uint32_t index, mlp_layer *layer, char *error,
                       size_t size)
{
    const struct {
        const char *name;
        uint64_t columns, rows;
        const llmk_gguf_tensor **out;
    } wanted[] = {{"ffn_norm", m->hidden, 1, &layer->norm},
                  {"ffn_gate", m->hidden, m->intermediate, &layer->gate},
                  {"ffn_up", m->hidden, m->intermediate, &layer->up},
                  {"ffn_down", m->intermediate, m->hidden, &layer->down}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", index, wanted[i].name);
        if (!find(m, name, wanted[i].columns, wanted[i].rows, wanted[i].out, error, size))
            return false;
    }
    if (layer->norm->type != LLMK_GGUF_F32)
        return refuse(error, size, "%s is of type %u; expected F32", layer->norm->name,
                      layer->norm->type);
    return true;
}

static bool fill(mlp_model *m, char *error, size_t size)
{
    const char *architecture = NULL;
    size_t length = 0;
    if (!llmk_gguf_get_string(m->gguf, "general.architecture", &architecture, &length) ||
        length == 0 || length >= sizeof m->architecture || memchr(architecture, '\0', length))
        return refuse(error, size, "the file has no usable general.architecture");
    memcpy(m->architecture, architecture, length);
    uint64_t layers = 0;
    if (!get_size(m, "embedding_length", &m->hidden, error, size) ||
        !get_size(m, "feed_forward_length", &m->intermediate, error, size) ||
        !get_size(m, "block_count", &layers, error, size))
        return false;
    char key[128];
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", m->architecture);
    if (!llmk_gguf_get_f32(m->gguf, key, &m->epsilon) || !(m->epsilon >= 0 && m->epsilon < 1))
        return refuse(error, size, "the file has no usable %s (a number from 0 to 1)", key);
    m->embedding = llmk_gguf_find_tensor(m->gguf, "token_embd.weight", error, size);
    if (!m->embedding)
        return false;
    if (m->embedding->dims[0] != m->hidden || m->embedding->dims[2] != 1 ||
        m->embedding->dims[3] != 1)
        return refuse(error, size, "token_embd.weight has rows of %" PRIu64 "; expected %" PRIu64,
                      m->embedding->dims[0], m->hidden);
    /* A slice's metadata describes the whole model: take the blocks that are there. */
    if (layers > MAX_LAYERS)
        return refuse(error, size, "the file claims %" PRIu64 " blocks; expected at most %u",
                      layers, MAX_LAYERS);
    m->layers = calloc((size_t)layers, sizeof *m->layers);
    if (!m->layers)
        return refuse(error, size, "out of memory for %" PRIu64 " blocks", layers);
    for (uint32_t i = 0; i < layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", i);
        if (i > 0 && !llmk_gguf_find_tensor(m->gguf, name, NULL, 0))
            break;
        if (!find_layer(m, i, &m->layers[i], error, size))
            return false;
        m->layer_count++;
    }
    return true;
}

bool mlp_model_open(const char *path, mlp_model *model, char *error, size_t error_size)
{
    memset(model, 0, sizeof *model);
    if (llmk_gguf_open(path, &model->gguf, error, error_size) && fill(model, error, error_size))
        return true;
    mlp_model_close(model);
    return false;
}

void mlp_model_close(mlp_model *model)
{
    free(model->layers);
    llmk_gguf_close(model->gguf);
    memset(model, 0, sizeof *model);
}

bool mlp_model_slice(const mlp_model *m, uint64_t rows, uint32_t layers, const char *path,
                     char *error, size_t error_size)
{
    const size_t count = 1 + 4 * (size_t)layers;
    llmk_gguf_slice *slices = calloc(count, sizeof *slices);
    if (!slices)
        return refuse(error, error_size, "out of memory for a list of %zu tensors", count);
    slices[0] = (llmk_gguf_slice){m->embedding->name, rows};
    for (uint32_t i = 0; i < layers; i++) {
        const mlp_layer *l = &m->layers[i];
        const llmk_gguf_tensor *const tensors[4] = {l->norm, l->gate, l->up, l->down};
        for (size_t j = 0; j < 4; j++)
            slices[1 + 4 * (size_t)i + j].name = tensors[j]->name;
    }
    const bool ok = llmk_gguf_write_slice(m->gguf, slices, count, path, error, error_size);
    free(slices);
    return ok;
}

/* ---- On a device ---- */

static llmk_format format_of(uint32_t type)
{
    switch (type) {
    case LLMK_GGUF_F32:
        return LLMK_FORMAT_F32;
    case LLMK_GGUF_F16:
        return LLMK_FORMAT_F16;
    case LLMK_GGUF_BF16:
        return LLMK_FORMAT_BF16;
    case LLMK_GGUF_Q8_0:
        return LLMK_FORMAT_GGUF_Q8_0;
    case LLMK_GGUF_Q4_0:
        return LLMK_FORMAT_GGUF_Q4_0;
    case LLMK_GGUF_Q4_1:
        return LLMK_FORMAT_GGUF_Q4_1;
    default:
        return LLMK_FORMAT_NONE; /* refused by llmk_weights_create, which names it */
    }
}

static llmk_status upload(llmk_context *ctx, const llmk_gguf_tensor *t, llmk_weights **out)
{
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = format_of(t->type);
    desc.n = t->dims[1];
    desc.k = t->dims[0];
    desc.data.host = t->data;
    desc.data.size = t->bytes;
    return llmk_weights_create(ctx, &desc, out);
}

llmk_status mlp_layer_upload(llmk_context *ctx, const mlp_model *model, uint32_t index,
                             mlp_device_layer *layer)
{
    const mlp_layer *l = &model->layers[index];
    memset(layer, 0, sizeof *layer);
    cl_int err;
    layer->norm =
        clCreateBuffer(llmk_context_cl_context(ctx), CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                       l->norm->bytes, (void *)l->norm->data, &err);
    llmk_status status = layer->norm ? LLMK_OK : LLMK_OUT_OF_DEVICE_MEMORY;
    if (status == LLMK_OK)
        status = upload(ctx, l->gate, &layer->gate);
    if (status == LLMK_OK)
        status = upload(ctx, l->up, &layer->up);
    if (status == LLMK_OK)
        status = upload(ctx, l->down, &layer->down);
    if (status != LLMK_OK)
        mlp_layer_free(layer);
    return status;
}

void mlp_layer_free(mlp_device_layer *layer)
{
    if (layer->norm)
        clReleaseMemObject(layer->norm);
    llmk_weights_free(layer->gate);
    llmk_weights_free(layer->up);
    llmk_weights_free(layer->down);
    memset(layer, 0, sizeof *layer);
}
