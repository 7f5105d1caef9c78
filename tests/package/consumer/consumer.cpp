// The header is C++ clean, without extensions, and its functions have C linkage.
#include <llmk/llmk.h>

#include <cstdio>

int main()
{
    const unsigned header =
        LLMK_VERSION_MAJOR * 1000000u + LLMK_VERSION_MINOR * 1000u + LLMK_VERSION_PATCH;
    const unsigned library = static_cast<unsigned>(llmk_version());
    std::printf("header %u, library %u\n", header, library);
    llmk_context *ctx = NULL; /* needs all that the library links */
    if (llmk_context_create(NULL, &ctx) != LLMK_OK)
        std::printf("no context: %s\n", llmk_error_message());
    llmk_context_free(ctx);
    return header == library ? 0 : 1;
}
