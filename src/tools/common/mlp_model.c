/* mlp_model.c - finding the MLP blocks of a GGUF model, and uploading those of any. */
#include "tools/common/mlp_model.h"

#include "core/core.h"
#include "formats/gguf_write.h"
#include "formats/mapped_file.h"
#include "formats/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MAX_LAYERS 4096u

static bool get_size(const mlp_model *m, const char *suffix, uint64_t *value, char *error,
                     size_t size)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->architecture, suffix);
    if (!llmk_gguf_get_u64(m->gguf, key, value) || *value == 0 || *value > UINT32_MAX)
        return llmk_format_fail(error, size,
                                "the file has no usable %s (a number from 1 to 2^32 - 1)", key);
    return true;
}

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
    case LLMK_GGUF_Q4_K:
        return LLMK_FORMAT_GGUF_Q4_K;
    case LLMK_GGUF_Q6_K:
        return LLMK_FORMAT_GGUF_Q6_K;
    default:
        return LLMK_FORMAT_NONE;
    }
}

/* rows 0: as many as there are. */
static bool find(const mlp_model *m, const char *name, uint64_t columns, uint64_t rows,
                 mlp_matrix *out, char *error, size_t size)
{
    const llmk_gguf_tensor *t = llmk_gguf_find_tensor(m->gguf, name, error, size);
    if (!t)
        return false;
    if (t->dims[0] != columns || (rows && t->dims[1] != rows) || t->dims[2] != 1 || t->dims[3] != 1)
        return llmk_format_fail(error, size,
                                "%s is %" PRIu64 " x %" PRIu64 "; expected %" PRIu64 " x %" PRIu64,
                                name, t->dims[0], t->dims[1], columns, rows ? rows : t->dims[1]);
    *out =
        (mlp_matrix){.desc = LLMK_INIT(llmk_weights_desc), .rows = t->dims[1], .columns = columns};
    out->desc.format = format_of(t->type);
    out->desc.n = out->rows;
    out->desc.k = columns;
    out->desc.data = mlp_matrix_source(out, t->data, t->bytes);
    if (out->desc.format == LLMK_FORMAT_NONE)
        return llmk_format_fail(error, size, "%s is of type %s, which is not supported", name,
                                llmk_gguf_type_of(t->type)->name);
    return true;
}

static bool find_layer(const mlp_model *m, uint32_t index, mlp_layer *layer, char *error,
                       size_t size)
{
    const struct {
        const char *name;
        uint64_t columns, rows;
        mlp_matrix *out;
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
    return true;
}

static bool fill(mlp_model *m, char *error, size_t size)
{
    const char *architecture = NULL;
    size_t length = 0;
    if (!llmk_gguf_get_string(m->gguf, "general.architecture", &architecture, &length) ||
        length == 0 || length >= sizeof m->architecture || memchr(architecture, '\0', length))
        return llmk_format_fail(error, size, "the file has no usable general.architecture");
    memcpy(m->architecture, architecture, length);
    uint64_t layers = 0;
    if (!get_size(m, "embedding_length", &m->hidden, error, size) ||
        !get_size(m, "feed_forward_length", &m->intermediate, error, size) ||
        !get_size(m, "block_count", &layers, error, size))
        return false;
    char key[128];
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", m->architecture);
    if (!llmk_gguf_get_f32(m->gguf, key, &m->epsilon) || !(m->epsilon >= 0 && m->epsilon < 1))
        return llmk_format_fail(error, size, "the file has no usable %s (a number from 0 to 1)",
                                key);
    if (!find(m, "token_embd.weight", m->hidden, 0, &m->embedding, error, size))
        return false;
    /* A slice's metadata describes the whole model: take the blocks that are there. */
    if (layers > MAX_LAYERS)
        return llmk_format_fail(error, size,
                                "the file claims %" PRIu64 " blocks; expected at most %u", layers,
                                MAX_LAYERS);
    m->layers = calloc((size_t)layers, sizeof *m->layers);
    if (!m->layers)
        return llmk_format_fail(error, size, "out of memory for %" PRIu64 " blocks", layers);
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

static bool is_gguf(const char *path)
{
    llmk_mapped_file file;
    const bool ok =
        llmk_map_file(path, &file, NULL, 0) && file.size >= 4 && memcmp(file.bytes, "GGUF", 4) == 0;
    llmk_unmap_file(&file);
    return ok;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static bool open_any(const char *path, mlp_model *model, char *error, size_t size)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        char file[4096];
        if (snprintf(file, sizeof file, "%s/model.safetensors", path) >= (int)sizeof file)
            return llmk_format_fail(error, size, "the path is too long");
        return mlp_model_open_safetensors(file, model, error, size);
    }
    if (!is_gguf(path) && ends_with(path, ".safetensors"))
        return mlp_model_open_safetensors(path, model, error, size);
    return llmk_gguf_open(path, &model->gguf, error, size) && fill(model, error, size);
}

bool mlp_model_open(const char *path, mlp_model *model, char *error, size_t error_size)
{
    memset(model, 0, sizeof *model);
    error[0] = '\0';
    const bool good = open_any(path, model, error, error_size);
    llmk_make_printable(model->architecture, false);
    llmk_make_printable(model->note, false);
    llmk_make_printable(error, true);
    if (!good)
        mlp_model_close(model);
    return good;
}

void mlp_model_close(mlp_model *model)
{
    free(model->layers);
    llmk_gguf_close(model->gguf);
    llmk_safetensors_close(model->safetensors);
    memset(model, 0, sizeof *model);
}

bool mlp_model_slice(const mlp_model *m, uint64_t rows, uint32_t layers, const char *path,
                     char *error, size_t error_size)
{
    static const char *const parts[] = {"norm", "gate", "up", "down"};
    const size_t count = 1 + 4 * (size_t)layers;
    if (!m->gguf)
        return llmk_format_fail(error, error_size, "only GGUF models can be sliced");
    llmk_gguf_slice *slices = calloc(count, sizeof *slices);
    char(*names)[64] = calloc(count, sizeof *names);
    if (!slices || !names) {
        free(slices);
        free(names);
        return llmk_format_fail(error, error_size, "out of memory for a list of %zu tensors",
                                count);
    }
    slices[0] = (llmk_gguf_slice){"token_embd.weight", rows};
    for (size_t i = 1; i < count; i++) {
        snprintf(names[i], sizeof names[i], "blk.%zu.ffn_%s.weight", (i - 1) / 4,
                 parts[(i - 1) % 4]);
        slices[i].name = names[i];
    }
    const bool ok = llmk_gguf_write_slice(m->gguf, slices, count, path, error, error_size);
    free(slices);
    free(names);
    return ok;
}

/* ---- On a device ---- */

static llmk_status upload_norm(llmk_context *ctx, const mlp_matrix *norm, cl_mem *out)
{
    const size_t bytes = (size_t)norm->columns * sizeof(float);
    float *values = malloc(bytes);
    cl_int err;
    if (values && mlp_matrix_row(norm, 0, values))
        *out = clCreateBuffer(llmk_context_cl_context(ctx), CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                              bytes, values, &err);
    free(values);
    return *out ? LLMK_OK : LLMK_OUT_OF_DEVICE_MEMORY;
}

llmk_status mlp_layer_upload(llmk_context *ctx, const mlp_model *model, uint32_t index,
                             mlp_device_layer *layer)
{
    const mlp_layer *l = &model->layers[index];
    memset(layer, 0, sizeof *layer);
    llmk_status status = upload_norm(ctx, &l->norm, &layer->norm);
    if (status == LLMK_OK)
        status = llmk_weights_create(ctx, &l->gate.desc, &layer->gate);
    if (status == LLMK_OK)
        status = llmk_weights_create(ctx, &l->up.desc, &layer->up);
    if (status == LLMK_OK)
        status = llmk_weights_create(ctx, &l->down.desc, &layer->down);
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
