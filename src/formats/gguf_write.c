#include "formats/gguf_write.h"

#include "core/half.h"
#include "formats/bytes.h"
#include "formats/gguf_error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_ALIGNMENT = 32, LARGE_ARRAY_BYTES = 4096, MAX_BLOCKS = 4096 };

/* ---- A file under a temporary name; the first failure sticks, and is reported at the end ---- */

struct writer {
    FILE *stream;
    char *temporary;
    uint64_t at;
    int failure; /* an errno, 0 while all is well */
};

static bool writer_open(struct writer *w, const char *path, char *error, size_t error_size)
{
    const size_t room = strlen(path) + 48;
    struct stat there;
    memset(w, 0, sizeof *w);
    /* The rename at the end would put a file in the place of a device, a pipe or a link. */
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return llmk_gguf_fail(error, error_size, "%s exists and is not a regular file.", path);
    w->temporary = malloc(room);
    if (!w->temporary)
        return llmk_gguf_fail(error, error_size, "No memory for a path.");

    int file = -1;
    for (int attempt = 0; file < 0 && attempt < 100; attempt++) {
        (void)snprintf(w->temporary, room, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
        file = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file < 0 && errno != EEXIST)
            break;
    }
    if (file >= 0) {
        w->stream = fdopen(file, "wb");
        if (w->stream)
            return true;
        (void)close(file);
        (void)unlink(w->temporary);
    }
    llmk_gguf_report(error, error_size, "%s cannot be created: %s.", w->temporary, strerror(errno));
    free(w->temporary);
    return false;
}

static void put(struct writer *w, const void *bytes, size_t size)
{
    if (!w->failure && size && fwrite(bytes, 1, size, w->stream) != size)
        w->failure = errno ? errno : EIO;
    w->at += size;
}

static void put_u32(struct writer *w, uint32_t value)
{
    unsigned char bytes[4];
    llmk_store_u32(bytes, value);
    put(w, bytes, sizeof bytes);
}

static void put_u64(struct writer *w, uint64_t value)
{
    unsigned char bytes[8];
    llmk_store_u64(bytes, value);
    put(w, bytes, sizeof bytes);
}

static void put_string(struct writer *w, const char *string)
{
    put_u64(w, strlen(string));
    put(w, string, strlen(string));
}

static void pad(struct writer *w, uint32_t alignment)
{
    static const unsigned char zeros[256];
    for (uint64_t left = -w->at & (alignment - 1); left;) {
        const size_t part = left < sizeof zeros ? (size_t)left : sizeof zeros;
        put(w, zeros, part);
        left -= part;
    }
}

/* Ends the file: to disk, read back, renamed; or removed. `ok` is false when the caller has failed
 * (and said why). */
static bool writer_close(struct writer *w, bool ok, const char *path, char *error,
                         size_t error_size)
{
    if (!w->failure && (fflush(w->stream) != 0 || fsync(fileno(w->stream)) != 0))
        w->failure = errno;
    if (fclose(w->stream) != 0 && !w->failure)
        w->failure = errno;
    if (ok && w->failure)
        ok = llmk_gguf_fail(error, error_size, "%s cannot be written: %s.", w->temporary,
                            strerror(w->failure));
    if (ok) {
        llmk_gguf *written = NULL;
        ok = llmk_gguf_open(w->temporary, &written, error, error_size);
        llmk_gguf_close(written);
    }
    if (ok && rename(w->temporary, path) != 0)
        ok = llmk_gguf_fail(error, error_size, "%s cannot be renamed to %s: %s.", w->temporary,
                            path, strerror(errno));
    if (!ok)
        (void)unlink(w->temporary);
    free(w->temporary);
    return ok;
}

static void put_header(struct writer *w, uint64_t tensors, uint64_t pairs)
{
    put(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, tensors);
    put_u64(w, pairs);
}

static void put_tensor_info(struct writer *w, const llmk_gguf_tensor *tensor, uint64_t offset)
{
    put_string(w, tensor->name);
    put_u32(w, tensor->n_dims);
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        put_u64(w, tensor->dims[i]);
    put_u32(w, tensor->type);
    put_u64(w, offset);
}

/* The table of tensors, packed one after the other at the alignment. */
static void put_tensor_infos(struct writer *w, const llmk_gguf_tensor *tensors, size_t count,
                             uint32_t alignment)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        put_tensor_info(w, &tensors[i], offset);
        offset += tensors[i].bytes;
        offset += -offset & (alignment - 1);
    }
    pad(w, alignment);
}

/* ---- A slice ---- */

static bool is_large_tokenizer_array(const llmk_gguf_pair *pair)
{
    return pair->type == LLMK_GGUF_VALUE_ARRAY && pair->raw_bytes > LARGE_ARRAY_BYTES &&
           strncmp(pair->key, "tokenizer.", 10) == 0;
}

static bool cut(const llmk_gguf *source, const llmk_gguf_slice *slice, llmk_gguf_tensor *tensor,
                char *error, size_t error_size)
{
    const llmk_gguf_tensor *whole = llmk_gguf_find_tensor(source, slice->name, error, error_size);
    if (!whole)
        return false;
    *tensor = *whole;
    if (slice->row_limit == 0)
        return true;
    if (tensor->n_dims != 2)
        return llmk_gguf_fail(error, error_size,
                              "Tensor %s has %" PRIu32 " dimensions; rows are cut from 2.",
                              tensor->name, tensor->n_dims);
    if (slice->row_limit < tensor->dims[1]) {
        tensor->bytes = tensor->bytes / (size_t)tensor->dims[1] * (size_t)slice->row_limit;
        tensor->dims[1] = slice->row_limit;
    }
    return true;
}

static void put_slice(struct writer *w, const llmk_gguf *source, const llmk_gguf_tensor *tensors,
                      size_t count)
{
    const uint32_t alignment = llmk_gguf_alignment(source); /* its pair is copied with the others */
    const size_t pairs = llmk_gguf_pair_count(source);
    size_t kept = 0;
    for (size_t i = 0; i < pairs; i++)
        kept += !is_large_tokenizer_array(llmk_gguf_pair_at(source, i));

    put_header(w, count, kept);
    for (size_t i = 0; i < pairs; i++) {
        const llmk_gguf_pair *pair = llmk_gguf_pair_at(source, i);
        if (!is_large_tokenizer_array(pair))
            put(w, pair->raw, pair->raw_bytes);
    }
    put_tensor_infos(w, tensors, count, alignment);
    for (size_t i = 0; i < count; i++) {
        put(w, tensors[i].data, tensors[i].bytes);
        pad(w, alignment);
    }
}

bool llmk_gguf_write_slice(const llmk_gguf *source, const llmk_gguf_slice *slices, size_t count,
                           const char *path, char *error, size_t error_size)
{
    struct writer w;
    llmk_gguf_tensor *tensors = calloc(count ? count : 1, sizeof *tensors);
    if (!tensors)
        return llmk_gguf_fail(error, error_size, "No memory for %zu tensors.", count);

    bool ok = true;
    for (size_t i = 0; ok && i < count; i++)
        ok = cut(source, &slices[i], &tensors[i], error, error_size);
    if (ok && (ok = writer_open(&w, path, error, error_size))) {
        put_slice(&w, source, tensors, count);
        ok = writer_close(&w, true, path, error, error_size);
    }
    free(tensors);
    return ok;
}

/* ---- A synthetic model ---- */

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t tensor_seed(uint64_t seed, const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return next_random(&seed) ^ hash;
}

/* The sum of four uniform 16-bit integers, centred: mean 0, variance 1 but for 1e-9, an integer
 * until the last step. */
static float next_bell(uint64_t *state)
{
    const uint64_t bits = next_random(state);
    int sum = -2 * 65535;
    for (int shift = 0; shift < 64; shift += 16)
        sum += (int)(bits >> shift & 0xffff);
    return (float)sum * (1.7320508f / 2.0f / 32768.0f);
}

enum { PER_BLOCK = 4, NAME_BYTES = 40 };

struct synthetic {
    llmk_gguf_tensor *tensors;
    char (*names)[NAME_BYTES];
    size_t count;
};

static bool add(struct synthetic *s, const char *name, uint32_t type, uint32_t columns,
                uint32_t rows, char *error, size_t error_size)
{
    llmk_gguf_tensor *tensor = &s->tensors[s->count];
    (void)snprintf(s->names[s->count], NAME_BYTES, "%s", name);
    *tensor = (llmk_gguf_tensor){.name = s->names[s->count],
                                 .type = type,
                                 .n_dims = rows ? 2 : 1,
                                 .dims = {columns, rows ? rows : 1, 1, 1}};
    s->count++;

    const llmk_gguf_type_info *info = llmk_gguf_type_of(type);
    size_t row_bytes;
    if (!info || !llmk_gguf_packed_bytes(type, columns, &row_bytes))
        return llmk_gguf_fail(error, error_size,
                              "%s: rows of %" PRIu32 " weights cannot be of type %s.", name,
                              columns, info ? info->name : "unknown");
    if (row_bytes > SIZE_MAX / 2 / tensor->dims[1])
        return llmk_gguf_fail(error, error_size, "%s is too large.", name);
    tensor->bytes = row_bytes * (size_t)tensor->dims[1];
    return true;
}

static bool plan(struct synthetic *s, const llmk_gguf_synthetic *m, char *error, size_t error_size)
{
    static const char *const parts[PER_BLOCK] = {"norm", "gate", "up", "down"};
    if (!add(s, "token_embd.weight", m->embedding_type, m->hidden, m->rows, error, error_size))
        return false;
    for (uint32_t block = 0; block < m->blocks; block++) {
        for (int part = 0; part < PER_BLOCK; part++) {
            const bool norm = part == 0;
            const bool down = part == PER_BLOCK - 1;
            char name[NAME_BYTES];
            (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_%s.weight", block, parts[part]);
            if (!add(s, name, norm ? (uint32_t)LLMK_GGUF_F32 : m->type,
                     down ? m->intermediate : m->hidden,
                     norm   ? 0
                     : down ? m->hidden
                            : m->intermediate,
                     error, error_size))
                return false;
        }
    }
    return true;
}

static void put_u32_pair(struct writer *w, const char *key, uint32_t value)
{
    put_string(w, key);
    put_u32(w, LLMK_GGUF_VALUE_U32);
    put_u32(w, value);
}

static void put_string_pair(struct writer *w, const char *key, const char *value)
{
    put_string(w, key);
    put_u32(w, LLMK_GGUF_VALUE_STRING);
    put_string(w, value);
}

static bool put_random_tensor(struct writer *w, const llmk_gguf_tensor *tensor, uint64_t seed,
                              char *error, size_t error_size)
{
    const size_t columns = (size_t)tensor->dims[0];
    const size_t row_bytes = tensor->bytes / (size_t)tensor->dims[1];
    const bool norm = tensor->n_dims == 1;
    const float scale = norm ? 0.1f : 1.0f / sqrtf((float)columns);
    float *row = malloc(columns * sizeof *row);
    unsigned char *packed = malloc(row_bytes);
    bool ok = row && packed;
    if (!ok)
        llmk_gguf_report(error, error_size, "No memory for a row of %zu weights.", columns);

    uint64_t state = tensor_seed(seed, tensor->name);
    for (uint64_t i = 0; ok && i < tensor->dims[1]; i++) {
        for (size_t j = 0; j < columns; j++) {
            const float value = next_bell(&state) * scale; /* rounded before the sum, everywhere */
            row[j] = norm ? value + 1.0f : value;
        }
        ok = llmk_gguf_quantise(tensor->type, row, columns, packed);
        if (ok)
            put(w, packed, row_bytes);
        else
            llmk_gguf_report(error, error_size, "%s: type %s cannot be generated.", tensor->name,
                             llmk_gguf_type_of(tensor->type)->name);
    }
    pad(w, DEFAULT_ALIGNMENT);
    free(row);
    free(packed);
    return ok;
}

static bool put_synthetic(struct writer *w, const struct synthetic *s, const llmk_gguf_synthetic *m,
                          char *error, size_t error_size)
{
    put_header(w, s->count, 7);
    put_string_pair(w, "general.architecture", "llama");
    put_string_pair(w, "general.name", "synthetic");
    put_u32_pair(w, "llama.block_count", m->blocks);
    put_u32_pair(w, "llama.embedding_length", m->hidden);
    put_u32_pair(w, "llama.feed_forward_length", m->intermediate);
    put_u32_pair(w, "llama.vocab_size", m->rows);
    put_string(w, "llama.attention.layer_norm_rms_epsilon");
    put_u32(w, LLMK_GGUF_VALUE_F32);
    put_u32(w, llmk_float_bits(m->rms_epsilon));
    put_tensor_infos(w, s->tensors, s->count, DEFAULT_ALIGNMENT);
    for (size_t i = 0; i < s->count; i++)
        if (!put_random_tensor(w, &s->tensors[i], m->seed, error, error_size))
            return false;
    return true;
}

bool llmk_gguf_write_synthetic(const llmk_gguf_synthetic *model, const char *path, char *error,
                               size_t error_size)
{
    struct writer w;
    if (!model->hidden || !model->intermediate || !model->rows || !model->blocks ||
        model->blocks > MAX_BLOCKS)
        return llmk_gguf_fail(
            error, error_size,
            "A model of hidden %" PRIu32 ", intermediate %" PRIu32 ", rows %" PRIu32
            ", blocks %" PRIu32 "; expected all positive and at most %d blocks.",
            model->hidden, model->intermediate, model->rows, model->blocks, MAX_BLOCKS);

    const size_t most = 1 + (size_t)model->blocks * PER_BLOCK;
    struct synthetic s = {.tensors = calloc(most, sizeof *s.tensors),
                          .names = calloc(most, sizeof *s.names)};
    bool ok = s.tensors && s.names;
    if (!ok)
        llmk_gguf_report(error, error_size, "No memory for %zu tensors.", most);
    ok = ok && plan(&s, model, error, error_size) && writer_open(&w, path, error, error_size);
    if (ok) {
        ok = put_synthetic(&w, &s, model, error, error_size);
        ok = writer_close(&w, ok, path, error, error_size);
    }
    free(s.tensors);
    free(s.names);
    return ok;
}
