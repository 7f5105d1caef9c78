/* The library as a user meets it: the header, a call, the versions of both. */
#include <llmk/llmk.h>
#include <stdio.h>

int main(void)
{
    const unsigned header =
        LLMK_VERSION_MAJOR * 1000000u + LLMK_VERSION_MINOR * 1000u + LLMK_VERSION_PATCH;
    const unsigned library = (unsigned)llmk_version();
    printf("header %u, library %u\n", header, library);
    return header == library ? 0 : 1;
}
