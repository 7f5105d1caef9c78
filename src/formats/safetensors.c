#include "formats/safetensors.h"

#include "formats/bytes.h"
#include "formats/mapped_file.h"
#include "formats/new_file.h"
#include "formats/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [LLMK_SAFETENSORS_UNKNOWN] = {"?", 0},       [LLMK_SAFETENSORS_BOOL] = {"BOOL", 1},
    [LLMK_SAFETENSORS_U8] = {"U8", 1},           [LLMK_SAFETENSORS_I8] = {"I8", 1},
    [LLMK_SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1}, [LLMK_SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1},
    [LLMK_SAFETENSORS_U16] = {"U16", 2},         [LLMK_SAFETENSORS_I16] = {"I16", 2},
    [LLMK_SAFETENSORS_F16] = {"F16", 2},         [LLMK_SAFETENSORS_BF16] = {"BF16", 2},
    [LLMK_SAFETENSORS_U32] = {"U32", 4},         [LLMK_SAFETENSORS_I32] = {"I32", 4},
    [LLMK_SAFETENSORS_F32] = {"F32", 4},         [LLMK_SAFETENSORS_U64] = {"U64", 8},
    [LLMK_SAFETENSORS_I64] = {"I64", 8},         [LLMK_SAFETENSORS_F64] = {"F64", 8},
};

enum { TYPE_COUNT = sizeof types / sizeof types[0] };

const char *llmk_safetensors_type_name(llmk_safetensors_type type)
{
    return types[(unsigned)type < TYPE_COUNT ? type : LLMK_SAFETENSORS_UNKNOWN].name;
}

size_t llmk_safetensors_type_bytes(llmk_safetensors_type type)
{
    return (unsigned)type < TYPE_COUNT ? types[type].bytes : 0;
}

#ifdef LLMK_HAVE_JANSSON

#include <jansson.h>

/* The header of a model of a hundred thousand tensors; JSON takes some twenty times its size. */
#define MAX_HEADER  ((uint64_t)16 << 20)
#define MAX_TENSORS ((size_t)1 << 20)
#define MAX_NAME    ((size_t)1024)

struct llmk_safetensors {
    llmk_mapped_file file; /* what close unmaps */
    json_t *header;        /* holds the names */
    const unsigned char *data;
    uint64_t data_bytes;
    llmk_safetensors_tensor *tensors; /* in the order of their data */
    size_t count;
    const llmk_safetensors_tensor **by_name;
};

/* Where failures go. */
struct sink {
    char *error;
    size_t size;
};
#define FAIL(sink, ...) llmk_format_fail((sink)->error, (sink)->size, __VA_ARGS__)

/* ---- One tensor ---- */

/* Free of control bytes, so that it is safe to print. */
static bool check_name(const struct sink *to, const char *name)
{
    const size_t length = strlen(name);
    if (length == 0 || length > MAX_NAME)
        return FAIL(to, "A tensor's name has %zu bytes; expected 1 to %zu.", length, MAX_NAME);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < 32 || name[i] == 127)
            return FAIL(to, "A tensor's name holds the control byte 0x%02x.",
                        (unsigned)(unsigned char)name[i]);
    return true;
}

static llmk_safetensors_type type_named(const char *name)
{
    for (int i = LLMK_SAFETENSORS_UNKNOWN + 1; i < TYPE_COUNT; i++)
        if (strcmp(types[i].name, name) == 0)
            return (llmk_safetensors_type)i;
    return LLMK_SAFETENSORS_UNKNOWN;
}

static bool take_number(const struct sink *to, const char *name, const char *what,
                        const json_t *value, uint64_t *number)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return FAIL(to, "Tensor %.80s: %s holds something else than whole numbers from 0 on.", name,
                    what);
    *number = (uint64_t)json_integer_value(value);
    return true;
}

static bool take_shape(const struct sink *to, const json_t *shape, llmk_safetensors_tensor *tensor,
                       uint64_t *elements)
{
    if (!json_is_array(shape) || json_array_size(shape) > LLMK_SAFETENSORS_MAX_DIMS)
        return FAIL(to, "Tensor %.80s: shape is no list of at most %d numbers.", tensor->name,
                    LLMK_SAFETENSORS_MAX_DIMS);
    tensor->rank = (uint32_t)json_array_size(shape);
    *elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (!take_number(to, tensor->name, "shape", json_array_get(shape, i), &tensor->dims[i]))
            return false;
        if (__builtin_mul_overflow(*elements, tensor->dims[i], elements))
            return FAIL(to, "Tensor %.80s has more than 2^64 elements.", tensor->name);
    }
    return true;
}

static bool take_tensor(const struct sink *to, const llmk_safetensors *file, const char *name,
                        const json_t *entry, llmk_safetensors_tensor *tensor)
{
    const json_t *type = json_object_get(entry, "dtype");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t elements;
    uint64_t begin;
    uint64_t end;
    uint64_t bytes;
    if (!check_name(to, name))
        return false;
    tensor->name = name;
    if (!json_is_string(type))
        return FAIL(to, "Tensor %.80s has no dtype that is a string.", name);
    tensor->type = type_named(json_string_value(type));
    if (!take_shape(to, json_object_get(entry, "shape"), tensor, &elements))
        return false;
    if (json_array_size(offsets) != 2)
        return FAIL(to, "Tensor %.80s: data_offsets is no list of two numbers.", name);
    if (!take_number(to, name, "data_offsets", json_array_get(offsets, 0), &begin) ||
        !take_number(to, name, "data_offsets", json_array_get(offsets, 1), &end))
        return false;
    if (begin > end || end > file->data_bytes)
        return FAIL(to,
                    "Tensor %.80s: data_offsets are %" PRIu64 " and %" PRIu64
                    "; expected them in order and within the %" PRIu64 " bytes of data.",
                    name, begin, end, file->data_bytes);
    if (tensor->type != LLMK_SAFETENSORS_UNKNOWN &&
        (__builtin_mul_overflow(elements, types[tensor->type].bytes, &bytes) ||
         bytes != end - begin))
        return FAIL(to,
                    "Tensor %.80s of %s has %" PRIu64 " elements, but data_offsets give it %" PRIu64
                    " bytes.",
                    name, types[tensor->type].name, elements, end - begin);
    tensor->bytes = (size_t)(end - begin);
    tensor->data = file->data + begin; /* for sorting; NULL later where empty */
    return true;
}

/* ---- All of them ---- */

static int compare_data(const void *a, const void *b)
{
    const llmk_safetensors_tensor *left = a;
    const llmk_safetensors_tensor *right = b;
    const uintptr_t l = (uintptr_t)left->data;
    const uintptr_t r = (uintptr_t)right->data;
    if (l != r)
        return l < r ? -1 : 1;
    return (left->bytes > right->bytes) - (left->bytes < right->bytes); /* empty ones first */
}

static int compare_names(const void *a, const void *b)
{
    const llmk_safetensors_tensor *const *left = a;
    const llmk_safetensors_tensor *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

/* Each begins where the one before ends, and the last ends with the file. */
static bool check_places(const struct sink *to, llmk_safetensors *file)
{
    uint64_t at = 0;
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_data);
    for (size_t i = 0; i < file->count; i++) {
        llmk_safetensors_tensor *t = &file->tensors[i];
        const uint64_t begin = (uint64_t)((const unsigned char *)t->data - file->data);
        if (begin < at)
            return FAIL(to, "Tensors %.80s and %.80s overlap at byte %" PRIu64 " of the data.",
                        file->tensors[i - 1].name, t->name, begin);
        if (begin > at)
            return FAIL(to,
                        "No tensor has the bytes from %" PRIu64 " to %" PRIu64
                        " of the data, before %.80s.",
                        at, begin, t->name);
        at += t->bytes;
        if (t->bytes == 0)
            t->data = NULL;
    }
    if (at != file->data_bytes)
        return FAIL(to, "The tensors end at byte %" PRIu64 " of the data, which has %" PRIu64 ".",
                    at, file->data_bytes);
    return true;
}

static bool check_metadata(const struct sink *to, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return FAIL(to, "__metadata__ is no object.");
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return FAIL(to, "__metadata__ holds something else than strings.");
    }
    return true;
}

static bool take_tensors(const struct sink *to, llmk_safetensors *file)
{
    const size_t most = json_object_size(file->header);
    const char *name;
    json_t *entry;
    if (most > MAX_TENSORS)
        return FAIL(to, "The header has %zu entries; expected at most %zu.", most, MAX_TENSORS);
    file->tensors = calloc(most + 1, sizeof *file->tensors);
    file->by_name = calloc(most + 1, sizeof(llmk_safetensors_tensor *));
    if (!file->tensors || !file->by_name)
        return FAIL(to, "No memory for %zu tensors.", most);
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            if (!check_metadata(to, entry))
                return false;
        } else if (!take_tensor(to, file, name, entry, &file->tensors[file->count++])) {
            return false;
        }
    }
    if (!check_places(to, file))
        return false;
    for (size_t i = 0; i < file->count; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, file->count, sizeof(llmk_safetensors_tensor *), compare_names);
    return true;
}

static bool take_file(const struct sink *to, const unsigned char *bytes, size_t size,
                      llmk_safetensors *file)
{
    json_error_t why;
    if (size < 8)
        return FAIL(to, "The file has %zu bytes; expected at least the 8 of the header's size.",
                    size);
    const uint64_t header = llmk_load_u64(bytes);
    if (header > MAX_HEADER || header > size - 8)
        return FAIL(to,
                    "The header should have %" PRIu64 " bytes; expected at most %" PRIu64
                    " and no more than the %zu that follow.",
                    header, MAX_HEADER, size - 8);
    file->data = bytes + 8 + header;
    file->data_bytes = size - 8 - header;
    file->header =
        json_loadb((const char *)bytes + 8, (size_t)header, JSON_REJECT_DUPLICATES, &why);
    if (!file->header)
        return FAIL(to, "The header is not JSON, or names a tensor twice (before byte %d of it).",
                    why.position);
    if (!json_is_object(file->header))
        return FAIL(to, "The header is no JSON object.");
    return take_tensors(to, file);
}

bool llmk_safetensors_open_memory(const void *bytes, size_t size, llmk_safetensors **out,
                                  char *error, size_t error_size)
{
    const struct sink to = {error, error_size};
    *out = NULL;
    llmk_safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return FAIL(&to, "No memory for %zu bytes.", sizeof *file);
    if (!take_file(&to, bytes, size, file)) {
        llmk_safetensors_close(file);
        return false;
    }
    *out = file;
    return true;
}

bool llmk_safetensors_open(const char *path, llmk_safetensors **out, char *error, size_t error_size)
{
    llmk_mapped_file file;
    *out = NULL;
    if (!llmk_map_file(path, &file, error, error_size))
        return false;
    if (!llmk_safetensors_open_memory(file.bytes, file.size, out, error, error_size)) {
        llmk_unmap_file(&file);
        return false;
    }
    (*out)->file = file;
    return true;
}

void llmk_safetensors_close(llmk_safetensors *file)
{
    if (!file)
        return;
    json_decref(file->header);
    free(file->tensors);
    free(file->by_name);
    llmk_unmap_file(&file->file);
    free(file);
}

/* ---- Asking ---- */

size_t llmk_safetensors_count(const llmk_safetensors *file)
{
    return file->count;
}

const llmk_safetensors_tensor *llmk_safetensors_at(const llmk_safetensors *file, size_t index)
{
    return index < file->count ? &file->tensors[index] : NULL;
}

const llmk_safetensors_tensor *llmk_safetensors_find(const llmk_safetensors *file, const char *name)
{
    const llmk_safetensors_tensor wanted = {.name = name};
    const llmk_safetensors_tensor *pointer = &wanted;
    const llmk_safetensors_tensor **found = bsearch(
        &pointer, file->by_name, file->count, sizeof(llmk_safetensors_tensor *), compare_names);
    return found ? *found : NULL;
}

/* ---- Writing ---- */

static bool add_entry(json_t *header, const llmk_safetensors_tensor *t, uint64_t at)
{
    json_t *shape = json_array();
    const uint64_t end = at + t->bytes;
    for (uint32_t i = 0; i < t->rank && i < LLMK_SAFETENSORS_MAX_DIMS; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[t->type].name, "shape", shape,
                              "data_offsets", (json_int_t)at, (json_int_t)end);
    return entry && json_object_set_new(header, t->name, entry) == 0;
}

static bool readable(const char *path, char *error, size_t error_size)
{
    llmk_safetensors *written = NULL;
    const bool ok = llmk_safetensors_open(path, &written, error, error_size);
    llmk_safetensors_close(written);
    return ok;
}

bool llmk_safetensors_write(const llmk_safetensors_tensor *tensors, size_t count, const char *path,
                            char *error, size_t error_size)
{
    json_t *header = json_object();
    uint64_t at = 0;
    bool ok = header != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        ok = add_entry(header, &tensors[i], at);
        at += tensors[i].bytes;
    }
    char *text = ok ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        return llmk_format_fail(error, error_size, "No memory for a header of %zu tensors.", count);

    llmk_new_file file;
    const size_t length = strlen(text), padding = -length & 7; /* spaces, for aligned data */
    unsigned char size[8];
    llmk_store_u64(size, length + padding);
    ok = llmk_new_file_open(&file, path, error, error_size);
    if (ok) {
        llmk_new_file_put(&file, size, sizeof size);
        llmk_new_file_put(&file, text, length);
        llmk_new_file_put(&file, "       ", padding);
        for (size_t i = 0; i < count; i++)
            llmk_new_file_put(&file, tensors[i].data, tensors[i].bytes);
        ok = llmk_new_file_close(&file, true, path, readable, error, error_size);
    }
    free(text);
    return ok;
}

#else /* without a JSON library */

static bool no_json(char *error, size_t error_size)
{
    return llmk_format_fail(error, error_size,
                            "This build has no JSON library, which safetensors files need.");
}

bool llmk_safetensors_open_memory(const void *bytes, size_t size, llmk_safetensors **out,
                                  char *error, size_t error_size)
{
    (void)bytes, (void)size;
    *out = NULL;
    return no_json(error, error_size);
}

bool llmk_safetensors_open(const char *path, llmk_safetensors **out, char *error, size_t error_size)
{
    (void)path;
    *out = NULL;
    return no_json(error, error_size);
}

void llmk_safetensors_close(llmk_safetensors *file)
{
    (void)file;
}

size_t llmk_safetensors_count(const llmk_safetensors *file)
{
    (void)file;
    return 0;
}

const llmk_safetensors_tensor *llmk_safetensors_at(const llmk_safetensors *file, size_t index)
{
    (void)file, (void)index;
    return NULL;
}

const llmk_safetensors_tensor *llmk_safetensors_find(const llmk_safetensors *file, const char *name)
{
    (void)file, (void)name;
    return NULL;
}

bool llmk_safetensors_write(const llmk_safetensors_tensor *tensors, size_t count, const char *path,
                            char *error, size_t error_size)
{
    (void)tensors, (void)count, (void)path;
    return no_json(error, error_size);
}

#endif
