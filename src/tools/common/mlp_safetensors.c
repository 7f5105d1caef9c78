/* mlp_safetensors.c - finding the MLP blocks of a Hugging Face checkpoint of the Llama kind. */
#include "tools/common/mlp_model.h"

#include "formats/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#ifdef LLMK_HAVE_JANSSON

#include "formats/mapped_file.h"

#include <jansson.h>

#define MAX_LAYERS 4096u
#define MAX_CONFIG ((size_t)4 << 20)

/* A model being opened, and where failures go. */
typedef struct reader {
    mlp_model *m;
    llmk_format format; /* of linear layers; LLMK_FORMAT_NONE: not quantised */
    uint32_t bits;
    uint64_t group;
    bool symmetric;
    char *error;
    size_t size;
} reader;

#define REFUSE(r, ...) llmk_format_fail((r)->error, (r)->size, __VA_ARGS__)

/* ---- Configuration ---- */

/* `name` beside `path`; NULL with a sentence. */
static json_t *read_beside(const reader *r, const char *path, const char *name)
{
    char file[4096];
    const char *slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash - path) + 1 : 0;
    llmk_mapped_file map;
    json_t *json = NULL;
    if (snprintf(file, sizeof file, "%.*s%s", folder, path, name) >= (int)sizeof file) {
        llmk_format_report(r->error, r->size, "the path is too long");
        return NULL;
    }
    if (!llmk_map_file(file, &map, r->error, r->size))
        return NULL;
    if (map.size <= MAX_CONFIG)
        json = json_loadb(map.bytes, map.size, 0, NULL);
    llmk_unmap_file(&map);
    if (!json_is_object(json)) {
        json_decref(json);
        llmk_format_report(r->error, r->size, "%s is no JSON object of at most %zu bytes", file,
                           MAX_CONFIG);
        return NULL;
    }
    return json;
}

/* The first of the names that is there. */
static const json_t *get(const json_t *from, const char *name, const char *other)
{
    const json_t *value = json_object_get(from, name);
    return value ? value : json_object_get(from, other);
}

static bool text_is(const json_t *value, const char *expected)
{
    const char *text = json_string_value(value);
    return text && strcasecmp(text, expected) == 0;
}

static bool get_size(const reader *r, const json_t *config, const char *name, uint64_t *value)
{
    const json_t *v = json_object_get(config, name);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > UINT32_MAX)
        return REFUSE(r, "config.json has no usable %s (a number from 1 to 2^32 - 1)", name);
    *value = (uint64_t)json_integer_value(v);
    return true;
}

/* Bits and group size; a size of -1, or none, is all of K. */
static bool take_numbers(reader *r, const json_t *bits, const json_t *group)
{
    if (!json_is_integer(bits) || (json_integer_value(bits) != 4 && json_integer_value(bits) != 8))
        return REFUSE(r, "the quantisation has no bits that are 4 or 8");
    r->bits = (uint32_t)json_integer_value(bits);
    const json_int_t g = json_is_integer(group) ? json_integer_value(group) : -1;
    if (g < -1 || g == 0)
        return REFUSE(r, "the quantisation has no usable group_size");
    r->group = g == -1 ? 0 : (uint64_t)g;
    return true;
}

static bool take_compressed(reader *r, const json_t *q)
{
    const json_t *groups = json_object_get(q, "config_groups");
    const char *key;
    json_t *group;
    if (json_object_size(groups) != 1 || !text_is(json_object_get(q, "format"), "pack-quantized"))
        return REFUSE(r, "expected compressed-tensors of the format pack-quantized, one group");
    json_object_foreach((json_t *)groups, key, group)
    {
        const json_t *w = json_object_get(group, "weights");
        r->format = LLMK_FORMAT_COMPRESSED_TENSORS;
        r->symmetric = json_is_true(json_object_get(w, "symmetric"));
        if (!take_numbers(r, json_object_get(w, "num_bits"), json_object_get(w, "group_size")))
            return false;
    }
    return true;
}

static bool take_quantization(reader *r, const json_t *q, const char *fallback)
{
    const json_t *method = json_object_get(q, "quant_method");
    const json_t *version = json_object_get(q, "version");
    const char *name = json_is_string(method) ? json_string_value(method) : fallback;
    if (strcmp(name, "compressed-tensors") == 0)
        return take_compressed(r, q);
    if (!take_numbers(r, get(q, "bits", "w_bit"), get(q, "group_size", "q_group_size")))
        return false;
    if (strcmp(name, "gptq") == 0) {
        const bool v2 = text_is(json_object_get(q, "checkpoint_format"), "gptq_v2");
        r->format = v2 ? LLMK_FORMAT_GPTQ_V2 : LLMK_FORMAT_GPTQ_V1;
        r->symmetric = json_is_true(json_object_get(q, "sym"));
        return true;
    }
    if (strcmp(name, "awq") != 0)
        return REFUSE(r, "quant_method is %.40s; expected gptq, awq or compressed-tensors", name);
    r->format = text_is(version, "gemv")        ? LLMK_FORMAT_AWQ_GEMV
                : text_is(version, "gemv_fast") ? LLMK_FORMAT_AWQ_GEMV_FAST
                                                : LLMK_FORMAT_AWQ_GEMM;
    r->symmetric = json_is_false(json_object_get(q, "zero_point"));
    return true;
}

/* quantization_config of config.json, or the file that older writers put beside it. */
static bool find_quantization(reader *r, const json_t *config, const char *path)
{
    static const char *const files[][2] = {{"quantize_config.json", "gptq"},
                                           {"quant_config.json", "awq"}};
    const json_t *inside = json_object_get(config, "quantization_config");
    if (inside)
        return take_quantization(r, inside, "");
    for (size_t i = 0; i < 2; i++) {
        json_t *q = read_beside(r, path, files[i][0]);
        if (!q)
            continue; /* not there: perhaps not quantised */
        const bool ok = take_quantization(r, q, files[i][1]);
        json_decref(q);
        return ok;
    }
    return true;
}

static bool take_config(reader *r, const json_t *config, const char *path, uint64_t *layers)
{
    const json_t *eps = json_object_get(config, "rms_norm_eps");
    const json_t *activation = json_object_get(config, "hidden_act");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    snprintf(r->m->architecture, sizeof r->m->architecture, "%.40s", type ? type : "unknown");
    for (char *c = r->m->architecture; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
    if (activation && !text_is(activation, "silu"))
        return REFUSE(r, "config.json has another hidden_act than silu");
    if (!get_size(r, config, "hidden_size", &r->m->hidden) ||
        !get_size(r, config, "intermediate_size", &r->m->intermediate) ||
        !get_size(r, config, "num_hidden_layers", layers))
        return false;
    if (*layers > MAX_LAYERS)
        return REFUSE(r, "config.json claims %" PRIu64 " layers; expected at most %u", *layers,
                      MAX_LAYERS);
    r->m->epsilon = (float)json_number_value(eps);
    if (!json_is_number(eps) || !(r->m->epsilon >= 0 && r->m->epsilon < 1))
        return REFUSE(r, "config.json has no usable rms_norm_eps (a number from 0 to 1)");
    return find_quantization(r, config, path);
}

/* ---- Tensors ---- */

static llmk_dtype dtype_of(llmk_safetensors_type type)
{
    return type == LLMK_SAFETENSORS_F32    ? LLMK_F32
           : type == LLMK_SAFETENSORS_F16  ? LLMK_F16
           : type == LLMK_SAFETENSORS_BF16 ? LLMK_BF16
                                           : LLMK_DTYPE_NONE;
}

static const llmk_safetensors_tensor *lookup(const reader *r, const char *prefix,
                                             const char *suffix)
{
    char name[192];
    snprintf(name, sizeof name, "%s.%s", prefix, suffix);
    return llmk_safetensors_find(r->m->safetensors, name);
}

/* A tensor of so many elements: [rows, columns], or [columns] where rows is 0. type UNKNOWN: any
 * float. */
static const llmk_safetensors_tensor *find(const reader *r, const char *prefix, const char *suffix,
                                           llmk_safetensors_type type, uint64_t rows,
                                           uint64_t columns)
{
    const llmk_safetensors_tensor *t = lookup(r, prefix, suffix);
    if (!t) {
        llmk_format_report(r->error, r->size, "the file has no tensor %s.%s", prefix, suffix);
        return NULL;
    }
    if (type ? t->type != type : dtype_of(t->type) == LLMK_DTYPE_NONE) {
        llmk_format_report(r->error, r->size, "%s is of type %s; expected %s", t->name,
                           llmk_safetensors_type_name(t->type),
                           type ? llmk_safetensors_type_name(type) : "F32, F16 or BF16");
        return NULL;
    }
    if (t->rank != (rows ? 2u : 1u) || t->dims[t->rank - 1] != columns ||
        (rows && t->dims[0] != rows)) {
        llmk_format_report(r->error, r->size, "%s has another shape than %" PRIu64 " x %" PRIu64,
                           t->name, rows ? rows : 1, columns);
        return NULL;
    }
    return t;
}

static mlp_matrix matrix_of(uint64_t rows, uint64_t columns)
{
    mlp_matrix m = {.desc = LLMK_INIT(llmk_weights_desc), .rows = rows, .columns = columns};
    m.desc.n = rows;
    m.desc.k = columns;
    return m;
}

/* prefix.weight, plain. rows 0: a vector. */
static bool find_plain(const reader *r, const char *prefix, uint64_t rows, uint64_t columns,
                       mlp_matrix *out)
{
    const llmk_safetensors_tensor *t =
        find(r, prefix, "weight", LLMK_SAFETENSORS_UNKNOWN, rows, columns);
    if (!t)
        return false;
    *out = matrix_of(rows ? rows : 1, columns);
    out->desc.format = (llmk_format)dtype_of(t->type); /* numbered alike */
    out->desc.data = mlp_matrix_source(out, t->data, t->bytes);
    return true;
}

/* The tensors of a linear layer, by name, and their shapes: rows 0 for vectors. */
typedef struct names {
    const char *data, *scales, *zeros, *g_idx;
    uint64_t data_shape[2], scale_shape[2], zero_shape[2];
} names;

static names names_of(const reader *r, uint64_t n, uint64_t k)
{
    const uint64_t g = r->group && r->group < k ? (k + r->group - 1) / r->group : 1;
    const uint64_t f = 32 / r->bits;
    if (r->format == LLMK_FORMAT_COMPRESSED_TENSORS)
        return (names){"weight_packed",      "weight_scale", "weight_zero_point", "weight_g_idx",
                       {n, (k + f - 1) / f}, {n, g},         {(n + f - 1) / f, g}};
    names a = {"qweight", "scales", "qzeros", "g_idx", {k / f, n}, {g, n}, {g, n / f}};
    if (r->format != LLMK_FORMAT_GPTQ_V1 && r->format != LLMK_FORMAT_GPTQ_V2) {
        a.g_idx = NULL;
        a.data_shape[0] = k;
        a.data_shape[1] = n / f;
    }
    return a;
}

static bool find_linear(const reader *r, const char *prefix, uint64_t n, uint64_t k,
                        mlp_matrix *out)
{
    if (r->format == LLMK_FORMAT_NONE)
        return find_plain(r, prefix, n, k, out);
    const names a = names_of(r, n, k);
    const llmk_safetensors_tensor *data =
        find(r, prefix, a.data, LLMK_SAFETENSORS_I32, a.data_shape[0], a.data_shape[1]);
    const llmk_safetensors_tensor *scales =
        data ? find(r, prefix, a.scales, LLMK_SAFETENSORS_UNKNOWN, a.scale_shape[0],
                    a.scale_shape[1])
             : NULL;
    if (!scales)
        return false;
    *out = matrix_of(n, k);
    llmk_weights_desc *d = &out->desc;
    d->format = r->format;
    d->group_size = r->group;
    d->bits = r->bits == 8 ? 8 : 0;
    d->scale_dtype = dtype_of(scales->type);
    d->data = mlp_matrix_source(out, data->data, data->bytes);
    d->scales = mlp_matrix_source(out, scales->data, scales->bytes);
    if (r->symmetric) {
        d->flags = LLMK_WEIGHTS_SYMMETRIC;
    } else {
        const llmk_safetensors_tensor *zeros =
            find(r, prefix, a.zeros, LLMK_SAFETENSORS_I32, a.zero_shape[0], a.zero_shape[1]);
        if (!zeros)
            return false;
        d->zeros = mlp_matrix_source(out, zeros->data, zeros->bytes);
    }
    if (!a.g_idx || !lookup(r, prefix, a.g_idx))
        return true;
    const llmk_safetensors_tensor *g_idx = find(r, prefix, a.g_idx, LLMK_SAFETENSORS_I32, 0, k);
    if (g_idx)
        d->g_idx = mlp_matrix_source(out, g_idx->data, g_idx->bytes);
    return g_idx != NULL;
}

static bool find_layer(const reader *r, uint32_t index, mlp_layer *layer)
{
    const mlp_model *m = r->m;
    char norm[96], gate[96], up[96], down[96];
    snprintf(norm, sizeof norm, "model.layers.%u.post_attention_layernorm", index);
    snprintf(gate, sizeof gate, "model.layers.%u.mlp.gate_proj", index);
    snprintf(up, sizeof up, "model.layers.%u.mlp.up_proj", index);
    snprintf(down, sizeof down, "model.layers.%u.mlp.down_proj", index);
    return find_plain(r, norm, 0, m->hidden, &layer->norm) &&
           find_linear(r, gate, m->intermediate, m->hidden, &layer->gate) &&
           find_linear(r, up, m->intermediate, m->hidden, &layer->up) &&
           find_linear(r, down, m->hidden, m->intermediate, &layer->down);
}

/* Labels lie: says so where the zeros look like those of the other version. */
static void compare_label(reader *r)
{
    const llmk_weights_desc *d = &r->m->layers[0].gate.desc;
    llmk_format guess = LLMK_FORMAT_NONE;
    char sentence[256];
    if ((d->format != LLMK_FORMAT_GPTQ_V1 && d->format != LLMK_FORMAT_GPTQ_V2) || !d->zeros.host ||
        llmk_guess_gptq_version(d->zeros.host, d->zeros.size, r->bits, &guess, sentence,
                                sizeof sentence) != LLMK_OK ||
        guess == LLMK_FORMAT_NONE || guess == d->format)
        return;
    snprintf(r->m->note, sizeof r->m->note,
             "the file is labelled %s, but %s; the label is followed", llmk_format_name(d->format),
             sentence);
}

static bool find_all(reader *r, uint64_t layers)
{
    mlp_model *m = r->m;
    const llmk_safetensors_tensor *t = lookup(r, "model.embed_tokens", "weight");
    if (!t || t->rank != 2 || t->dims[0] == 0)
        return REFUSE(r, "the file has no model.embed_tokens.weight that is a matrix");
    if (!find_plain(r, "model.embed_tokens", t->dims[0], m->hidden, &m->embedding))
        return false;
    m->layers = calloc((size_t)layers, sizeof *m->layers);
    if (!m->layers)
        return REFUSE(r, "out of memory for %" PRIu64 " layers", layers);
    for (uint32_t i = 0; i < layers; i++) {
        if (!find_layer(r, i, &m->layers[i]))
            return false;
        m->layer_count++;
    }
    compare_label(r);
    return true;
}

bool mlp_model_open_safetensors(const char *path, mlp_model *model, char *error, size_t error_size)
{
    reader r = {.m = model, .error = error, .size = error_size};
    uint64_t layers = 0;
    if (!llmk_safetensors_open(path, &model->safetensors, error, error_size))
        return false;
    json_t *config = read_beside(&r, path, "config.json");
    if (!config)
        return false;
    const bool ok = take_config(&r, config, path, &layers) && find_all(&r, layers);
    json_decref(config);
    return ok;
}

#else

bool mlp_model_open_safetensors(const char *path, mlp_model *model, char *error, size_t error_size)
{
    (void)path, (void)model;
    return llmk_format_fail(error, error_size,
                            "this build has no JSON library to read config.json with");
}

#endif
