/* libFuzzer entry: opens the bytes as a GGUF file and uses everything that the reader hands out. */
#include "formats/gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort(); /* what the fuzzer reports */
}

static volatile unsigned sink;

static void touch(const void *data, size_t size)
{
    const unsigned char *p = data;
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += p[i];
    sink = sum;
}

static void use_pair(const llmk_gguf *gguf, const llmk_gguf_pair *pair)
{
    uint64_t u64;
    float f32;
    const char *string;
    size_t length;
    check(llmk_gguf_find_pair(gguf, pair->key) == pair);
    (void)llmk_gguf_get_u64(gguf, pair->key, &u64);
    (void)llmk_gguf_get_f32(gguf, pair->key, &f32);
    if (llmk_gguf_get_string(gguf, pair->key, &string, &length))
        touch(string, length);
    touch(pair->raw, pair->raw_bytes);
}

static void use_tensor(const llmk_gguf *gguf, const llmk_gguf_tensor *tensor)
{
    enum { MOST = 1024 };
    float weights[MOST];
    char error[64];
    const llmk_gguf_tensor *found = llmk_gguf_find_tensor(gguf, tensor->name, error, sizeof error);
    if (!found) {
        check(strlen(error) > 0 && !tensor->data && !tensor->bytes);
        return;
    }
    check(found == tensor && tensor->data && tensor->bytes);
    touch(tensor->data, tensor->bytes);

    const llmk_gguf_type_info *info = llmk_gguf_type_of(tensor->type);
    size_t elements = tensor->bytes / info->block_bytes * info->block_elements;
    if (elements > MOST)
        elements = MOST; /* a multiple of every block size */
    if (!llmk_gguf_dequantise(tensor->type, tensor->data, elements, weights))
        return;
    unsigned char packed[MOST * sizeof(float)];
    (void)llmk_gguf_quantise(LLMK_GGUF_F16, weights, elements, packed);
    const size_t whole = elements / 32 * 32;
    (void)llmk_gguf_quantise(LLMK_GGUF_Q8_0, weights, whole, packed);
    (void)llmk_gguf_quantise(LLMK_GGUF_Q4_0, weights, whole, packed);
    (void)llmk_gguf_quantise(LLMK_GGUF_Q4_1, weights, whole, packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    llmk_gguf *gguf;
    char error[256] = "";
    if (!llmk_gguf_open_memory(bytes, size, &gguf, error, sizeof error)) {
        check(!gguf && error[0]);
        return 0;
    }
    for (size_t i = 0; i < llmk_gguf_pair_count(gguf); i++)
        use_pair(gguf, llmk_gguf_pair_at(gguf, i));
    for (size_t i = 0; i < llmk_gguf_tensor_count(gguf); i++)
        use_tensor(gguf, llmk_gguf_tensor_at(gguf, i));
    llmk_gguf_close(gguf);
    return 0;
}
