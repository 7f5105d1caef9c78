/* gguf_corpus DIRECTORY: writes the files that fuzz_gguf starts from into an existing directory. */
#include "support/gguf_build.h"

#include "formats/gguf_write.h"

#include <stdio.h>

static bool save(const char *directory, const char *name, const struct gguf_build *b)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s.gguf", directory, name);
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    const bool written = fwrite(b->bytes, 1, b->size, file) == b->size;
    return fclose(file) == 0 && written;
}

static bool save_synthetic(const char *directory, uint32_t type)
{
    const llmk_gguf_synthetic model = {.hidden = 32,
                                       .intermediate = 32,
                                       .blocks = 1,
                                       .rows = 2,
                                       .type = type,
                                       .embedding_type = LLMK_GGUF_Q8_0,
                                       .rms_epsilon = 1e-5f,
                                       .seed = 1};
    char path[4096];
    char error[256];
    (void)snprintf(path, sizeof path, "%s/%s.gguf", directory, llmk_gguf_type_of(type)->name);
    if (llmk_gguf_write_synthetic(&model, path, error, sizeof error))
        return true;
    (void)fprintf(stderr, "%s\n", error);
    return false;
}

int main(int count, char **arguments)
{
    static const uint32_t types[] = {LLMK_GGUF_F32,  LLMK_GGUF_F16,  LLMK_GGUF_BF16,
                                     LLMK_GGUF_Q8_0, LLMK_GGUF_Q4_0, LLMK_GGUF_Q4_1};
    struct gguf_build b;
    if (count != 2) {
        (void)fprintf(stderr, "usage: %s DIRECTORY\n", arguments[0]);
        return 2;
    }
    const char *directory = arguments[1];

    build_header(&b, 3, 0, 0);
    bool ok = save(directory, "empty", &b);
    build_all(&b, 2);
    ok = save(directory, "all-v2", &b) && ok;
    build_all(&b, 3);
    ok = save(directory, "all-v3", &b) && ok;
    build_header(&b, 3, 1, 0);
    build_tensor(&b, "t", 1, (const uint64_t[]){1}, LLMK_GGUF_F32, 0);
    build_pad(&b, 32);
    build_u32(&b, 1);
    ok = save(directory, "one-tensor", &b) && ok;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        ok = save_synthetic(directory, types[i]) && ok;
    return ok ? 0 : 1;
}
