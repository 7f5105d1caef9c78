/* The library as a user meets it: the header, a call, the versions of both. */
#include <llmk/llmk.h>
#include <stdio.h>

int main(void)
{
    const unsigned header =
        LLMK_VERSION_MAJOR * 1000000u + LLMK_VERSION_MINOR * 1000u + LLMK_VERSION_PATCH;
    const unsigned library = (unsigned)llmk_version();
    printf("header %u, library %u\n", header, library);
    llmk_context *ctx = NULL; /* needs all that the library links */
    if (llmk_context_create(NULL, &ctx) != LLMK_OK)
        printf("no context: %s\n", llmk_error_message());
    llmk_context_free(ctx);
    return header == library ? 0 : 1;
}
