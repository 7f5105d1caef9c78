/* mlp_generate.c - a small synthetic checkpoint as quantisers of the Llama kind write them. */
#include "core/half.h"
#include "formats/new_file.h"
#include "formats/report.h"
#include "reference/checkpoint_reference.h"
#include "tools/common/mlp_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { HIDDEN = 256, INTERMEDIATE = 704, LAYERS = 4, ROWS = 64, GROUP = 64 };
enum { MOST_TENSORS = 1 + LAYERS * (1 + 3 * 4) };

typedef struct generator {
    bool awq;
    uint32_t state;
    llmk_safetensors_tensor tensors[MOST_TENSORS];
    char names[MOST_TENSORS][80];
    size_t count;
    bool ok; /* false: out of memory */
} generator;

static uint32_t next(generator *g)
{
    g->state = g->state * 1664525u + 1013904223u;
    return g->state >> 16;
}

/* Room for a tensor; rows 0: a vector. NULL where there is none. */
static void *add(generator *g, const char *prefix, const char *suffix, llmk_safetensors_type type,
                 uint64_t rows, uint64_t columns)
{
    llmk_safetensors_tensor *t = &g->tensors[g->count];
    char *name = g->names[g->count];
    snprintf(name, sizeof g->names[0], "%s.%s", prefix, suffix);
    *t = (llmk_safetensors_tensor){.name = name, .type = type, .rank = rows ? 2 : 1};
    t->dims[0] = rows ? rows : columns;
    t->dims[1] = rows ? columns : 0;
    t->bytes = (size_t)((rows ? rows : 1) * columns) * llmk_safetensors_type_bytes(type);
    void *data = calloc(1, t->bytes);
    t->data = data;
    g->count++;
    g->ok = g->ok && data;
    return data;
}

/* f16 values uniform in [middle - spread, middle + spread]. */
static void add_floats(generator *g, const char *prefix, uint64_t rows, uint64_t columns,
                       double middle, double spread)
{
    uint16_t *at = add(g, prefix, "weight", LLMK_SAFETENSORS_F16, rows, columns);
    for (uint64_t i = 0; at && i < (rows ? rows : 1) * columns; i++)
        at[i] = llmk_f32_to_f16((float)(middle + spread * ((double)next(g) / 32768 - 1)));
}

/* Codes around zeros of 5 to 10, so that a weight's mean is near 0 and its size near 1 / sqrt(K).
 */
static void fill(generator *g, const linear_weights *w)
{
    const uint64_t groups = (w->k + GROUP - 1) / GROUP;
    uint8_t *q = malloc(w->n * w->k), *z = malloc(w->n * groups);
    double *scale = malloc(w->n * groups * sizeof *scale);
    g->ok = g->ok && q && z && scale;
    if (g->ok) {
        for (uint64_t i = 0; i < w->n * groups; i++) {
            z[i] = (uint8_t)(5 + next(g) % 6);
            scale[i] = (0.5 + (double)(next(g) % 1024) / 1024) / (4.6 * sqrt((double)w->k));
        }
        for (uint64_t i = 0; i < w->n * w->k; i++)
            q[i] = (uint8_t)(next(g) & 15);
        for (uint64_t k = 0; w->g_idx && k < w->k; k++) /* 37 and K are coprime */
            w->g_idx[k] = (uint32_t)(k * 37 % w->k / GROUP);
        checkpoint_pack(w, q, z, scale);
    }
    free(q);
    free(z);
    free(scale);
}

static void add_linear(generator *g, const char *prefix, uint64_t n, uint64_t k)
{
    const uint64_t groups = k / GROUP;
    const llmk_safetensors_type words = LLMK_SAFETENSORS_I32;
    linear_weights w = {.format = g->awq ? LLMK_FORMAT_AWQ_GEMM : LLMK_FORMAT_GPTQ_V1,
                        .n = n,
                        .k = k,
                        .group = GROUP,
                        .order = g->awq ? LINEAR_IN_ORDER : LINEAR_ACT_ORDER};
    linear_weights_set_sizes(&w);
    w.data = add(g, prefix, "qweight", words, g->awq ? k : k / 8, g->awq ? n / 8 : n);
    w.zeros = add(g, prefix, "qzeros", words, groups, n / 8);
    w.scales = add(g, prefix, "scales", LLMK_SAFETENSORS_F16, groups, n);
    w.g_idx = g->awq ? NULL : add(g, prefix, "g_idx", words, 0, k);
    if (g->ok)
        fill(g, &w);
}

static void add_layer(generator *g, unsigned index)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model.layers.%u.post_attention_layernorm", index);
    add_floats(g, prefix, 0, HIDDEN, 1, 0.25);
    snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.gate_proj", index);
    add_linear(g, prefix, INTERMEDIATE, HIDDEN);
    snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.up_proj", index);
    add_linear(g, prefix, INTERMEDIATE, HIDDEN);
    snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.down_proj", index);
    add_linear(g, prefix, HIDDEN, INTERMEDIATE);
}

static bool any_file(const char *path, char *error, size_t error_size)
{
    (void)path, (void)error, (void)error_size;
    return true;
}

static bool write_config(const generator *g, const char *path, char *error, size_t error_size)
{
    char text[1024];
    llmk_new_file file;
    const int length = snprintf(
        text, sizeof text,
        "{\n  \"model_type\": \"llama\",\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": %d,\n"
        "  \"intermediate_size\": %d,\n  \"num_hidden_layers\": %d,\n  \"rms_norm_eps\": 1e-05,\n"
        "  \"quantization_config\": {\n    \"quant_method\": \"%s\",\n    \"bits\": 4,\n"
        "    \"group_size\": %d,\n    %s\n  }\n}\n",
        HIDDEN, INTERMEDIATE, LAYERS, g->awq ? "awq" : "gptq", GROUP,
        g->awq ? "\"version\": \"gemm\",\n    \"zero_point\": true"
               : "\"checkpoint_format\": \"gptq\",\n    \"desc_act\": true,\n    \"sym\": false");
    if (!llmk_new_file_open(&file, path, error, error_size))
        return false;
    llmk_new_file_put(&file, text, (size_t)length);
    return llmk_new_file_close(&file, true, path, any_file, error, error_size);
}

static bool write_all(const generator *g, const char *folder, char *error, size_t error_size)
{
    char path[4096];
    if (!g->ok)
        return llmk_format_fail(error, error_size, "out of memory");
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return llmk_format_fail(error, error_size, "the folder cannot be made: %s",
                                strerror(errno));
    if (snprintf(path, sizeof path, "%s/model.safetensors", folder) >= (int)sizeof path)
        return llmk_format_fail(error, error_size, "the path is too long");
    if (!llmk_safetensors_write(g->tensors, g->count, path, error, error_size))
        return false;
    snprintf(path, sizeof path, "%s/config.json", folder);
    return write_config(g, path, error, error_size);
}

bool mlp_model_generates(const char *method)
{
    return strcmp(method, "gptq") == 0 || strcmp(method, "awq") == 0;
}

bool mlp_model_generate(const char *method, const char *folder, char *error, size_t error_size)
{
    if (!mlp_model_generates(method))
        return llmk_format_fail(error, error_size, "\"%s\" is not gptq or awq", method);
    generator *g = calloc(1, sizeof *g);
    if (!g)
        return llmk_format_fail(error, error_size, "out of memory");
    g->awq = strcmp(method, "awq") == 0;
    g->state = 20261129;
    g->ok = true;
    add_floats(g, "model.embed_tokens", ROWS, HIDDEN, 0, 1);
    for (unsigned i = 0; i < LAYERS; i++)
        add_layer(g, i);
    const bool ok = write_all(g, folder, error, error_size);
    for (size_t i = 0; i < g->count; i++)
        free((void *)g->tensors[i].data);
    free(g);
    return ok;
}
