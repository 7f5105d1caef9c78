#include "formats/gguf.h"

#include "core/half.h"
#include "formats/bytes.h"
#include "formats/mapped_file.h"
#include "formats/report.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Far above what real files hold, and low enough that a hostile one costs little. */
enum {
    MAX_PAIRS = 1 << 16,
    MAX_TENSORS = 1 << 18,
    MAX_KEY = 65535, /* the format's own limit */
    MAX_NAME = 255,
    MAX_DEPTH = 4, /* arrays in arrays */
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 1 << 20
};

/* The fewest bytes that an entry takes: lengths and types, a name of one byte, a value of one byte
 * or one dimension. */
enum { MIN_PAIR_BYTES = 8 + 1 + 4 + 1, MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8 };

struct llmk_gguf {
    const unsigned char *bytes;
    size_t size;
    llmk_mapped_file file; /* what close unmaps */
    uint32_t version;
    uint32_t alignment;
    llmk_gguf_pair *pairs;
    size_t pair_count;
    const llmk_gguf_pair **pairs_by_key;
    llmk_gguf_tensor *tensors;
    size_t tensor_count;
    const llmk_gguf_tensor **tensors_by_name;
};

/* ---- Reading, bounds first ---- */

struct cursor {
    const unsigned char *bytes;
    size_t size;
    size_t at;
    char *error;
    size_t error_size;
};

#define FAIL(cursor, ...) llmk_format_fail((cursor)->error, (cursor)->error_size, __VA_ARGS__)

static size_t remaining(const struct cursor *c)
{
    return c->size - c->at;
}

static bool take(struct cursor *c, uint64_t bytes, const char *what, const unsigned char **p)
{
    if (bytes > remaining(c))
        return FAIL(c, "%s at offset %zu takes %" PRIu64 " bytes, but the file ends at %zu.", what,
                    c->at, bytes, c->size);
    *p = c->bytes + c->at;
    c->at += (size_t)bytes;
    return true;
}

static bool take_u32(struct cursor *c, const char *what, uint32_t *value)
{
    const unsigned char *p;
    if (!take(c, 4, what, &p))
        return false;
    *value = llmk_load_u32(p);
    return true;
}

static bool take_u64(struct cursor *c, const char *what, uint64_t *value)
{
    const unsigned char *p;
    if (!take(c, 8, what, &p))
        return false;
    *value = llmk_load_u64(p);
    return true;
}

static bool take_count(struct cursor *c, const char *what, size_t most, size_t entry_bytes,
                       size_t *count)
{
    const size_t at = c->at;
    uint64_t value;
    if (!take_u64(c, what, &value))
        return false;
    if (value > most || value > remaining(c) / entry_bytes)
        return FAIL(c,
                    "%s at offset %zu is %" PRIu64
                    "; expected at most %zu, and no more than fit in the %zu bytes that follow.",
                    what, at, value, most, remaining(c));
    *count = (size_t)value;
    return true;
}

/* A key or a name: not empty, and free of control bytes, so that it is a C string and safe to
 * print. */
static bool take_name(struct cursor *c, const char *what, size_t most, const char **name)
{
    const size_t at = c->at;
    const unsigned char *p;
    uint64_t length;
    if (!take_u64(c, what, &length))
        return false;
    if (length == 0 || length > most)
        return FAIL(c, "%s at offset %zu has %" PRIu64 " bytes; expected 1 to %zu.", what, at,
                    length, most);
    if (!take(c, length, what, &p))
        return false;
    for (size_t i = 0; i < length; i++)
        if (p[i] < 32 || p[i] == 127)
            return FAIL(c, "%s at offset %zu holds the control byte 0x%02x.", what, at, p[i]);

    char *copy = malloc((size_t)length + 1);
    if (!copy)
        return FAIL(c, "No memory for a name of %" PRIu64 " bytes.", length);
    memcpy(copy, p, (size_t)length);
    copy[length] = 0;
    *name = copy;
    return true;
}

/* ---- Metadata ---- */

static const struct {
    const char *name;
    size_t bytes; /* 0 where the size varies */
} value_types[] = {
    [LLMK_GGUF_VALUE_U8] = {"u8", 1},         [LLMK_GGUF_VALUE_I8] = {"i8", 1},
    [LLMK_GGUF_VALUE_U16] = {"u16", 2},       [LLMK_GGUF_VALUE_I16] = {"i16", 2},
    [LLMK_GGUF_VALUE_U32] = {"u32", 4},       [LLMK_GGUF_VALUE_I32] = {"i32", 4},
    [LLMK_GGUF_VALUE_F32] = {"f32", 4},       [LLMK_GGUF_VALUE_BOOL] = {"bool", 1},
    [LLMK_GGUF_VALUE_STRING] = {"string", 0}, [LLMK_GGUF_VALUE_ARRAY] = {"array", 0},
    [LLMK_GGUF_VALUE_U64] = {"u64", 8},       [LLMK_GGUF_VALUE_I64] = {"i64", 8},
    [LLMK_GGUF_VALUE_F64] = {"f64", 8},
};

enum { VALUE_TYPE_COUNT = sizeof value_types / sizeof value_types[0] };

const char *llmk_gguf_value_type_name(uint32_t type)
{
    return type < VALUE_TYPE_COUNT ? value_types[type].name : "unknown";
}

static bool take_value_type(struct cursor *c, const char *what, uint32_t *type)
{
    const size_t at = c->at;
    if (!take_u32(c, what, type))
        return false;
    if (*type >= VALUE_TYPE_COUNT)
        return FAIL(c, "%s at offset %zu is %" PRIu32 "; expected 0 to %d.", what, at, *type,
                    VALUE_TYPE_COUNT - 1);
    return true;
}

static bool skip_elements(struct cursor *c, uint32_t type, uint64_t count, int depth);

static bool take_array_header(struct cursor *c, uint32_t *type, uint64_t *count)
{
    return take_value_type(c, "The element type of an array", type) &&
           take_u64(c, "The length of an array", count);
}

/* One string or array that is itself an element: its work is paid for by the bytes that it takes.
 */
static bool skip_element(struct cursor *c, uint32_t type, int depth)
{
    const unsigned char *p;
    uint64_t count;
    uint32_t inner;
    if (type == LLMK_GGUF_VALUE_STRING)
        return take_u64(c, "The length of a string", &count) && take(c, count, "A string", &p);
    return take_array_header(c, &inner, &count) && skip_elements(c, inner, count, depth + 1);
}

static bool skip_elements(struct cursor *c, uint32_t type, uint64_t count, int depth)
{
    const size_t at = c->at;
    const size_t bytes = value_types[type].bytes;
    const unsigned char *p;
    if (depth > MAX_DEPTH)
        return FAIL(c, "The array at offset %zu is nested more than %d deep.", at, MAX_DEPTH);

    const size_t least = bytes                            ? bytes
                         : type == LLMK_GGUF_VALUE_STRING ? sizeof(uint64_t)
                                                          : sizeof(uint32_t) + sizeof(uint64_t);
    if (count > remaining(c) / least)
        return FAIL(c,
                    "The value at offset %zu has %" PRIu64
                    " elements of at least %zu bytes, but the file ends at %zu.",
                    at, count, least, c->size);
    if (!bytes) {
        for (uint64_t i = 0; i < count; i++)
            if (!skip_element(c, type, depth))
                return false;
        return true;
    }
    if (!take(c, count * bytes, "A value", &p))
        return false;
    if (type == LLMK_GGUF_VALUE_BOOL)
        for (uint64_t i = 0; i < count; i++)
            if (p[i] > 1)
                return FAIL(c, "The bool at offset %zu is %d; expected 0 or 1.", at + (size_t)i,
                            p[i]);
    return true;
}

static bool take_pair(struct cursor *c, llmk_gguf_pair *pair)
{
    const size_t start = c->at;
    if (!take_name(c, "A metadata key", MAX_KEY, &pair->key) ||
        !take_value_type(c, "The type of a metadata value", &pair->type))
        return false;

    pair->count = 1;
    uint32_t element = pair->type;
    if (pair->type == LLMK_GGUF_VALUE_STRING) {
        element = LLMK_GGUF_VALUE_U8;
        if (!take_u64(c, "The length of a string", &pair->count))
            return false;
    } else if (pair->type == LLMK_GGUF_VALUE_ARRAY) {
        if (!take_array_header(c, &pair->element_type, &pair->count))
            return false;
        element = pair->element_type;
    }
    pair->data = c->bytes + c->at;
    if (!skip_elements(c, element, pair->count, 1))
        return false;
    pair->raw = c->bytes + start;
    pair->raw_bytes = c->at - start;
    return true;
}

static int compare_keys(const void *a, const void *b)
{
    const llmk_gguf_pair *const *left = a;
    const llmk_gguf_pair *const *right = b;
    return strcmp((*left)->key, (*right)->key);
}

static bool take_pairs(struct cursor *c, llmk_gguf *gguf, size_t count)
{
    if (count == 0)
        return true;
    gguf->pairs = calloc(count, sizeof *gguf->pairs);
    gguf->pairs_by_key = calloc(count, sizeof(llmk_gguf_pair *));
    if (!gguf->pairs || !gguf->pairs_by_key)
        return FAIL(c, "No memory for %zu metadata pairs.", count);

    for (size_t i = 0; i < count; i++) {
        gguf->pairs_by_key[i] = &gguf->pairs[i];
        gguf->pair_count = i + 1; /* close frees the key even when the rest of the pair fails */
        if (!take_pair(c, &gguf->pairs[i]))
            return false;
    }
    qsort(gguf->pairs_by_key, count, sizeof(llmk_gguf_pair *), compare_keys);
    for (size_t i = 1; i < count; i++)
        if (strcmp(gguf->pairs_by_key[i - 1]->key, gguf->pairs_by_key[i]->key) == 0)
            return FAIL(c, "The metadata key %.80s occurs twice, the second time at offset %zu.",
                        gguf->pairs_by_key[i]->key,
                        (size_t)(gguf->pairs_by_key[i]->raw - c->bytes));
    return true;
}

static bool set_alignment(struct cursor *c, llmk_gguf *gguf)
{
    const llmk_gguf_pair *pair = llmk_gguf_find_pair(gguf, "general.alignment");
    gguf->alignment = 32;
    if (!pair)
        return true;
    const size_t at = (size_t)(pair->data - c->bytes);
    if (pair->type != LLMK_GGUF_VALUE_U32)
        return FAIL(c, "general.alignment at offset %zu is of type %s; expected u32.", at,
                    llmk_gguf_value_type_name(pair->type));
    const uint32_t value = llmk_load_u32(pair->data);
    if (value < MIN_ALIGNMENT || value > MAX_ALIGNMENT || (value & (value - 1)))
        return FAIL(c,
                    "general.alignment at offset %zu is %" PRIu32
                    "; expected a power of two from %d to %d.",
                    at, value, MIN_ALIGNMENT, MAX_ALIGNMENT);
    gguf->alignment = value;
    return true;
}

/* ---- Tensors ---- */

static bool take_dims(struct cursor *c, llmk_gguf_tensor *tensor)
{
    const size_t at = c->at;
    if (!take_u32(c, "A tensor's number of dimensions", &tensor->n_dims))
        return false;
    if (tensor->n_dims < 1 || tensor->n_dims > LLMK_GGUF_MAX_DIMS)
        return FAIL(c, "Tensor %s has %" PRIu32 " dimensions (offset %zu); expected 1 to %d.",
                    tensor->name, tensor->n_dims, at, LLMK_GGUF_MAX_DIMS);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < LLMK_GGUF_MAX_DIMS; i++) {
        const size_t dim_at = c->at;
        tensor->dims[i] = 1;
        if (i < tensor->n_dims && !take_u64(c, "A tensor's dimension", &tensor->dims[i]))
            return false;
        if (tensor->dims[i] == 0)
            return FAIL(c, "Dimension %" PRIu32 " of tensor %s at offset %zu is 0; expected more.",
                        i, tensor->name, dim_at);
        if (tensor->dims[i] > (uint64_t)INT64_MAX / elements)
            return FAIL(c,
                        "Tensor %s has more than 2^63 elements: dimension %" PRIu32
                        " at offset %zu is %" PRIu64 ".",
                        tensor->name, i, dim_at, tensor->dims[i]);
        elements *= tensor->dims[i];
    }
    return true;
}

/* The size that type and dimensions give; `at` is where the file states the type. */
static bool set_bytes(struct cursor *c, llmk_gguf_tensor *tensor, size_t at)
{
    const llmk_gguf_type_info *info = llmk_gguf_type_of(tensor->type);
    if (!info)
        return true; /* an error only for whoever asks for this tensor */
    if (tensor->dims[0] % info->block_elements)
        return FAIL(c,
                    "Tensor %s is of type %s (offset %zu), blocks of %" PRIu32
                    ", but its rows have %" PRIu64 " elements.",
                    tensor->name, info->name, at, info->block_elements, tensor->dims[0]);
    uint64_t elements = tensor->dims[0];
    for (int i = 1; i < LLMK_GGUF_MAX_DIMS; i++)
        elements *= tensor->dims[i];
    if (!llmk_gguf_packed_bytes(tensor->type, elements, &tensor->bytes))
        return FAIL(c, "Tensor %s has %" PRIu64 " elements of type %s: too large to address.",
                    tensor->name, elements, info->name);
    return true;
}

/* `offset` receives where the data is, from the start of the data section, which is not known yet.
 */
static bool take_tensor(struct cursor *c, const llmk_gguf *gguf, llmk_gguf_tensor *tensor,
                        uint64_t *offset)
{
    if (!take_name(c, "A tensor name", MAX_NAME, &tensor->name) || !take_dims(c, tensor))
        return false;
    const size_t at = c->at;
    if (!take_u32(c, "A tensor's type", &tensor->type) || !set_bytes(c, tensor, at))
        return false;
    const size_t offset_at = c->at;
    if (!take_u64(c, "A tensor's offset", offset))
        return false;
    if (*offset % gguf->alignment)
        return FAIL(c,
                    "The data of tensor %s is at %" PRIu64
                    " (stated at offset %zu); expected a multiple of the alignment %" PRIu32 ".",
                    tensor->name, *offset, offset_at, gguf->alignment);
    return true;
}

static int compare_names(const void *a, const void *b)
{
    const llmk_gguf_tensor *const *left = a;
    const llmk_gguf_tensor *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static int compare_data(const void *a, const void *b)
{
    const llmk_gguf_tensor *const *left = a;
    const llmk_gguf_tensor *const *right = b;
    const uintptr_t l = (uintptr_t)(*left)->data;
    const uintptr_t r = (uintptr_t)(*right)->data;
    return (l > r) - (l < r);
}

static bool place_tensors(struct cursor *c, llmk_gguf *gguf, const uint64_t *offsets)
{
    const size_t mask = (size_t)gguf->alignment - 1;
    const size_t start = c->at + (-c->at & mask);
    if (start < c->at || start > c->size)
        return FAIL(c, "The data section should start at offset %zu, but the file ends at %zu.",
                    start, c->size);
    const size_t room = c->size - start;
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        llmk_gguf_tensor *tensor = &gguf->tensors[i];
        if (offsets[i] > room || tensor->bytes > room - (size_t)offsets[i])
            return FAIL(c,
                        "Tensor %s takes %zu bytes at %" PRIu64
                        " of the data section (offset %zu), which has %zu.",
                        tensor->name, tensor->bytes, offsets[i], start, room);
        if (tensor->bytes)
            tensor->data = c->bytes + start + (size_t)offsets[i];
    }
    return true;
}

/* No two tensors may share bytes or a name. Leaves the index sorted by name. */
static bool index_tensors(struct cursor *c, llmk_gguf *gguf)
{
    const llmk_gguf_tensor **sorted = gguf->tensors_by_name;
    const size_t count = gguf->tensor_count;

    qsort(sorted, count, sizeof(llmk_gguf_tensor *), compare_data);
    for (size_t i = 1; i < count; i++) {
        const unsigned char *previous = sorted[i - 1]->data;
        const unsigned char *data = sorted[i]->data;
        if (previous && (size_t)(data - previous) < sorted[i - 1]->bytes)
            return FAIL(c, "Tensors %s and %s overlap at offset %zu.", sorted[i - 1]->name,
                        sorted[i]->name, (size_t)(data - c->bytes));
    }
    qsort(sorted, count, sizeof(llmk_gguf_tensor *), compare_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return FAIL(c, "The tensor name %s occurs twice.", sorted[i]->name);
    return true;
}

static bool take_tensors(struct cursor *c, llmk_gguf *gguf, size_t count)
{
    if (count == 0)
        return true;
    gguf->tensors = calloc(count, sizeof *gguf->tensors);
    gguf->tensors_by_name = calloc(count, sizeof(llmk_gguf_tensor *));
    uint64_t *offsets = calloc(count, sizeof *offsets);
    bool ok = gguf->tensors && gguf->tensors_by_name && offsets;
    if (!ok)
        llmk_format_report(c->error, c->error_size, "No memory for %zu tensors.", count);

    for (size_t i = 0; ok && i < count; i++) {
        gguf->tensors_by_name[i] = &gguf->tensors[i];
        gguf->tensor_count = i + 1;
        ok = take_tensor(c, gguf, &gguf->tensors[i], &offsets[i]);
    }
    ok = ok && place_tensors(c, gguf, offsets) && index_tensors(c, gguf);
    free(offsets);
    return ok;
}

/* ---- The file ---- */

static bool take_file(struct cursor *c, llmk_gguf *gguf)
{
    const unsigned char *p;
    size_t tensors;
    size_t pairs;
    if (!take(c, 4, "The magic", &p))
        return false;
    if (memcmp(p, "GGUF", 4) != 0)
        return FAIL(c, "The file starts with %02x %02x %02x %02x; expected \"GGUF\".", p[0], p[1],
                    p[2], p[3]);
    if (!take_u32(c, "The version", &gguf->version))
        return false;
    if (gguf->version == 2u << 24 || gguf->version == 3u << 24)
        return FAIL(c,
                    "The file is big-endian (the version at offset 4 is 0x%08" PRIx32
                    "); expected little-endian.",
                    gguf->version);
    if (gguf->version != 2 && gguf->version != 3)
        return FAIL(c, "The version at offset 4 is %" PRIu32 "; expected 2 or 3.", gguf->version);

    return take_count(c, "The tensor count", MAX_TENSORS, MIN_TENSOR_BYTES, &tensors) &&
           take_count(c, "The metadata count", MAX_PAIRS, MIN_PAIR_BYTES, &pairs) &&
           take_pairs(c, gguf, pairs) && set_alignment(c, gguf) && take_tensors(c, gguf, tensors);
}

bool llmk_gguf_open_memory(const void *bytes, size_t size, llmk_gguf **out, char *error,
                           size_t error_size)
{
    struct cursor c = {.bytes = bytes, .size = size, .error = error, .error_size = error_size};
    *out = NULL;
    llmk_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf)
        return FAIL(&c, "No memory for %zu bytes.", sizeof *gguf);
    gguf->bytes = bytes;
    gguf->size = size;
    if (!take_file(&c, gguf)) {
        llmk_gguf_close(gguf);
        return false;
    }
    *out = gguf;
    return true;
}

bool llmk_gguf_open(const char *path, llmk_gguf **out, char *error, size_t error_size)
{
    llmk_mapped_file file;
    *out = NULL;
    if (!llmk_map_file(path, &file, error, error_size))
        return false;
    if (!llmk_gguf_open_memory(file.bytes, file.size, out, error, error_size)) {
        llmk_unmap_file(&file);
        return false;
    }
    (*out)->file = file;
    return true;
}

void llmk_gguf_close(llmk_gguf *gguf)
{
    if (!gguf)
        return;
    for (size_t i = 0; i < gguf->pair_count; i++)
        free((void *)gguf->pairs[i].key);
    for (size_t i = 0; i < gguf->tensor_count; i++)
        free((void *)gguf->tensors[i].name);
    free(gguf->pairs);
    free(gguf->pairs_by_key);
    free(gguf->tensors);
    free(gguf->tensors_by_name);
    llmk_unmap_file(&gguf->file);
    free(gguf);
}

/* ---- Asking ---- */

uint32_t llmk_gguf_version(const llmk_gguf *gguf)
{
    return gguf->version;
}

uint32_t llmk_gguf_alignment(const llmk_gguf *gguf)
{
    return gguf->alignment;
}

size_t llmk_gguf_pair_count(const llmk_gguf *gguf)
{
    return gguf->pair_count;
}

const llmk_gguf_pair *llmk_gguf_pair_at(const llmk_gguf *gguf, size_t index)
{
    return index < gguf->pair_count ? &gguf->pairs[index] : NULL;
}

const llmk_gguf_pair *llmk_gguf_find_pair(const llmk_gguf *gguf, const char *key)
{
    const llmk_gguf_pair wanted = {.key = key};
    const llmk_gguf_pair *pointer = &wanted;
    if (gguf->pair_count == 0)
        return NULL;
    const llmk_gguf_pair **found = bsearch(&pointer, gguf->pairs_by_key, gguf->pair_count,
                                           sizeof(llmk_gguf_pair *), compare_keys);
    return found ? *found : NULL;
}

/* Sign extension of the low `bits` bits, without shifting into a sign bit. */
static int64_t sign_extend(uint64_t value, unsigned bits)
{
    const uint64_t sign = (uint64_t)1 << (bits - 1);
    return value & sign ? -(int64_t)(sign - 1 - (value & (sign - 1))) - 1 : (int64_t)value;
}

bool llmk_gguf_get_u64(const llmk_gguf *gguf, const char *key, uint64_t *value)
{
    const llmk_gguf_pair *pair = llmk_gguf_find_pair(gguf, key);
    if (!pair)
        return false;
    switch (pair->type) {
    case LLMK_GGUF_VALUE_U8:
        *value = pair->data[0];
        return true;
    case LLMK_GGUF_VALUE_U16:
        *value = llmk_load_u16(pair->data);
        return true;
    case LLMK_GGUF_VALUE_U32:
        *value = llmk_load_u32(pair->data);
        return true;
    case LLMK_GGUF_VALUE_U64:
        *value = llmk_load_u64(pair->data);
        return true;
    default:
        break;
    }

    int64_t number = -1;
    if (pair->type == LLMK_GGUF_VALUE_I8)
        number = sign_extend(pair->data[0], 8);
    else if (pair->type == LLMK_GGUF_VALUE_I16)
        number = sign_extend(llmk_load_u16(pair->data), 16);
    else if (pair->type == LLMK_GGUF_VALUE_I32)
        number = sign_extend(llmk_load_u32(pair->data), 32);
    else if (pair->type == LLMK_GGUF_VALUE_I64)
        number = sign_extend(llmk_load_u64(pair->data), 64);
    if (number < 0)
        return false;
    *value = (uint64_t)number;
    return true;
}

bool llmk_gguf_get_f32(const llmk_gguf *gguf, const char *key, float *value)
{
    const llmk_gguf_pair *pair = llmk_gguf_find_pair(gguf, key);
    if (!pair)
        return false;
    if (pair->type == LLMK_GGUF_VALUE_F32) {
        *value = llmk_float_from_bits(llmk_load_u32(pair->data));
        return true;
    }
    if (pair->type != LLMK_GGUF_VALUE_F64)
        return false;
    const uint64_t bits = llmk_load_u64(pair->data);
    double number;
    memcpy(&number, &bits, sizeof number);
    if (isfinite(number) && fabs(number) > (double)FLT_MAX)
        return false;
    *value = (float)number;
    return true;
}

bool llmk_gguf_get_string(const llmk_gguf *gguf, const char *key, const char **value,
                          size_t *length)
{
    const llmk_gguf_pair *pair = llmk_gguf_find_pair(gguf, key);
    if (!pair || pair->type != LLMK_GGUF_VALUE_STRING)
        return false;
    *value = (const char *)pair->data;
    *length = (size_t)pair->count;
    return true;
}

size_t llmk_gguf_tensor_count(const llmk_gguf *gguf)
{
    return gguf->tensor_count;
}

const llmk_gguf_tensor *llmk_gguf_tensor_at(const llmk_gguf *gguf, size_t index)
{
    return index < gguf->tensor_count ? &gguf->tensors[index] : NULL;
}

const llmk_gguf_tensor *llmk_gguf_find_tensor(const llmk_gguf *gguf, const char *name, char *error,
                                              size_t error_size)
{
    const llmk_gguf_tensor wanted = {.name = name};
    const llmk_gguf_tensor *pointer = &wanted;
    const llmk_gguf_tensor **found = NULL;
    if (gguf->tensor_count)
        found = bsearch(&pointer, gguf->tensors_by_name, gguf->tensor_count,
                        sizeof(llmk_gguf_tensor *), compare_names);
    if (!found) {
        llmk_format_report(error, error_size, "The file has no tensor %s (it has %zu tensors).",
                           name, gguf->tensor_count);
        return NULL;
    }
    if (!(*found)->data) {
        llmk_format_report(error, error_size,
                           "Tensor %s is of type %" PRIu32 ", which this reader does not know.",
                           name, (*found)->type);
        return NULL;
    }
    return *found;
}
