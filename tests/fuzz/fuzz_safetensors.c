/* libFuzzer entry: opens the bytes as a safetensors file and uses all that the reader hands out. */
#include "formats/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort(); /* what the fuzzer reports */
}

static volatile unsigned sink;

static void use_tensor(const llmk_safetensors *file, const llmk_safetensors_tensor *tensor)
{
    const unsigned char *p = tensor->data;
    unsigned sum = 0;
    check(llmk_safetensors_find(file, tensor->name) == tensor);
    check((p != NULL) == (tensor->bytes > 0) && tensor->rank <= LLMK_SAFETENSORS_MAX_DIMS);
    for (size_t i = 0; i < tensor->bytes; i++)
        sum += p[i];
    sink = sum;
    size_t bytes = llmk_safetensors_type_bytes(tensor->type);
    if (tensor->type == LLMK_SAFETENSORS_UNKNOWN)
        return;
    for (uint32_t i = 0; i < tensor->rank; i++)
        bytes *= (size_t)tensor->dims[i];
    check(bytes == tensor->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    llmk_safetensors *file;
    char error[256] = "";
    if (!llmk_safetensors_open_memory(bytes, size, &file, error, sizeof error)) {
        check(!file && error[0]);
        return 0;
    }
    const size_t count = llmk_safetensors_count(file);
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        use_tensor(file, llmk_safetensors_at(file, i));
        total += llmk_safetensors_at(file, i)->bytes;
    }
    check(total <= size && !llmk_safetensors_at(file, count));
    llmk_safetensors_close(file);
    return 0;
}
