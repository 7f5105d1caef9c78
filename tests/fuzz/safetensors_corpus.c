/* safetensors_corpus DIRECTORY: writes the files that fuzz_safetensors starts from. */
#include "formats/safetensors.h"

#include <stdio.h>
#include <string.h>

static bool save(const char *directory, const char *name, const char *header, size_t data)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s.safetensors", directory, name);
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    const size_t length = strlen(header);
    bool ok = true;
    for (int i = 0; i < 8; i++)
        ok = fputc((int)(length >> 8 * i & 255), file) != EOF && ok;
    ok = fwrite(header, 1, length, file) == length && ok;
    for (size_t i = 0; i < data; i++)
        ok = fputc((int)(i & 255), file) != EOF && ok;
    return fclose(file) == 0 && ok;
}

int main(int count, char **arguments)
{
    if (count != 2) {
        (void)fprintf(stderr, "usage: %s DIRECTORY\n", arguments[0]);
        return 2;
    }
    const char *to = arguments[1];
    bool ok = save(to, "empty", "{}", 0);
    ok = save(to, "metadata", "{\"__metadata__\":{\"format\":\"pt\"}}  ", 0) && ok;
    ok = save(to, "scalar", "{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4) &&
         ok;
    ok = save(to, "two",
              "{\"a\":{\"dtype\":\"I32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
              "\"b.c\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
              "\"none\":{\"dtype\":\"F64\",\"shape\":[0,7],\"data_offsets\":[24,24]}}",
              32) &&
         ok;
    ok =
        save(to, "unknown", "{\"x\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2) &&
        ok;
    return ok ? 0 : 1;
}
