/* safetensors files: what the reader hands out, what it refuses and says, and the writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/safetensors.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LLMK_HAVE_JANSSON

/* Header and data at an odd address, since a file in memory may lie anywhere. */
typedef struct image {
    unsigned char *bytes;
    size_t size;
} image;

static image build(const char *header, size_t length, size_t data)
{
    image i = {malloc(1 + 8 + length + data), 8 + length + data};
    unsigned char *p = i.bytes + 1;
    for (int b = 0; b < 8; b++)
        p[b] = (unsigned char)(length >> 8 * b & 255);
    memcpy(p + 8, header, length);
    for (size_t b = 0; b < data; b++)
        p[8 + length + b] = (unsigned char)b;
    return i;
}

static llmk_safetensors *open_text(const char *header, size_t data, image *i)
{
    llmk_safetensors *file;
    char error[256] = "";
    *i = build(header, strlen(header), data);
    if (!llmk_safetensors_open_memory(i->bytes + 1, i->size, &file, error, sizeof error))
        fail_msg("%s", error);
    return file;
}

static void reads(void **state)
{
    (void)state;
    image i;
    llmk_safetensors *file =
        open_text("{\"__metadata__\":{\"format\":\"pt\"},"
                  "\"z\":{\"dtype\":\"I32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                  "\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                  "\"none\":{\"dtype\":\"F64\",\"shape\":[0,7],\"data_offsets\":[28,28]},"
                  "\"new\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[28,30]},"
                  "\"one\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[30,31]}}  ",
                  31, &i);
    assert_int_equal(llmk_safetensors_count(file), 5);
    assert_string_equal(llmk_safetensors_at(file, 0)->name, "a");
    assert_string_equal(llmk_safetensors_at(file, 1)->name, "z");
    assert_null(llmk_safetensors_at(file, 5));
    const llmk_safetensors_tensor *z = llmk_safetensors_find(file, "z");
    assert_int_equal(z->type, LLMK_SAFETENSORS_I32);
    assert_int_equal(z->rank, 2);
    assert_int_equal(z->dims[0], 2);
    assert_int_equal(z->dims[1], 3);
    assert_int_equal(z->bytes, 24);
    assert_int_equal(((const unsigned char *)z->data)[23], 27);
    const llmk_safetensors_tensor *none = llmk_safetensors_find(file, "none");
    assert_null(none->data);
    assert_int_equal(none->bytes, 0);
    const llmk_safetensors_tensor *unknown = llmk_safetensors_find(file, "new");
    assert_int_equal(unknown->type, LLMK_SAFETENSORS_UNKNOWN);
    assert_int_equal(unknown->bytes, 2);
    assert_int_equal(llmk_safetensors_find(file, "one")->rank, 0);
    assert_null(llmk_safetensors_find(file, "__metadata__"));
    llmk_safetensors_close(file);
    free(i.bytes);

    file = open_text("{}", 0, &i);
    assert_int_equal(llmk_safetensors_count(file), 0);
    assert_null(llmk_safetensors_find(file, "a"));
    llmk_safetensors_close(file);
    free(i.bytes);
    llmk_safetensors_close(NULL);
    assert_string_equal(llmk_safetensors_type_name(LLMK_SAFETENSORS_BF16), "BF16");
    assert_string_equal(llmk_safetensors_type_name((llmk_safetensors_type)99), "?");
    assert_int_equal(llmk_safetensors_type_bytes((llmk_safetensors_type)99), 0);
}

static void refuse_bytes(const void *bytes, size_t size, const char *mentioned)
{
    llmk_safetensors *file = (llmk_safetensors *)bytes; /* must become NULL */
    char error[256] = "";
    assert_false(llmk_safetensors_open_memory(bytes, size, &file, error, sizeof error));
    assert_null(file);
    if (!strstr(error, mentioned))
        fail_msg("\"%s\" does not mention \"%s\"", error, mentioned);
    assert_false(llmk_safetensors_open_memory(bytes, size, &file, NULL, 0));
}

static void refuse(const char *header, size_t data, const char *mentioned)
{
    const image i = build(header, strlen(header), data);
    refuse_bytes(i.bytes + 1, i.size, mentioned);
    free(i.bytes);
}

#define ENTRY(name, type, shape, offsets)                                                          \
    "\"" name "\":{\"dtype\":" type ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void refuses(void **state)
{
    (void)state;
    static const unsigned char huge[16] = {255, 255, 255, 255, 255, 255, 255, 255};
    refuse_bytes("1234567", 7, "has 7 bytes");
    refuse_bytes(huge, sizeof huge, "18446744073709551615 bytes");
    refuse_bytes("\1\0\0\0\0\0\0\0", 8, "the 0 that follow");
    refuse("", 0, "not JSON");
    refuse("[]", 0, "no JSON object");
    refuse("{\"a\":", 0, "not JSON");
    refuse("{} x", 0, "not JSON");
    refuse("{" ENTRY("a", "\"U8\"", "[1]", "[0,1]") "," ENTRY("a", "\"U8\"", "[1]", "[1,2]") "}", 2,
           "twice");
    refuse("{\"a\":3}", 0, "no dtype");
    refuse("{" ENTRY("a", "8", "[1]", "[0,1]") "}", 1, "no dtype");
    refuse("{" ENTRY("", "\"U8\"", "[1]", "[0,1]") "}", 1, "name has 0 bytes");
    refuse("{" ENTRY("\\u001b", "\"U8\"", "[1]", "[0,1]") "}", 1, "control byte 0x1b");
    refuse("{" ENTRY("a", "\"U8\"", "1", "[0,1]") "}", 1, "shape");
    refuse("{" ENTRY("a", "\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "shape");
    refuse("{" ENTRY("a", "\"U8\"", "[-1]", "[0,1]") "}", 1, "shape holds");
    refuse("{" ENTRY("a", "\"U8\"", "[1.0]", "[0,1]") "}", 1, "shape holds");
    refuse("{" ENTRY("a", "\"U8\"", "[4294967296,4294967296]", "[0,1]") "}", 1, "2^64");
    refuse("{" ENTRY("a", "\"F64\"", "[4611686018427387904]", "[0,0]") "}", 0, "elements");
    refuse("{" ENTRY("a", "\"U8\"", "[1]", "[0]") "}", 1, "data_offsets");
    refuse("{" ENTRY("a", "\"U8\"", "[1]", "[0,-1]") "}", 1, "data_offsets holds");
    refuse("{" ENTRY("a", "\"U8\"", "[1]", "[1,0]") "}", 1, "in order");
    refuse("{" ENTRY("a", "\"U8\"", "[2]", "[0,2]") "}", 1, "within the 1 bytes");
    refuse("{" ENTRY("a", "\"F16\"", "[2]", "[0,3]") "}", 3, "2 elements");
    refuse("{" ENTRY("a", "\"U8\"", "[2]", "[0,2]") "," ENTRY("b", "\"U8\"", "[2]", "[1,3]") "}", 3,
           "a and b overlap at byte 1");
    refuse("{" ENTRY("a", "\"U8\"", "[1]", "[0,1]") "," ENTRY("b", "\"U8\"", "[1]", "[2,3]") "}", 3,
           "from 1 to 2");
    refuse("{" ENTRY("a", "\"U8\"", "[1]", "[0,1]") "}", 2, "end at byte 1");
    refuse("{\"__metadata__\":[]}", 0, "no object");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, "strings");

    /* A NUL inside, and nesting without end. */
    const image nul = build("{\"a\0\":1}", 8, 0);
    refuse_bytes(nul.bytes + 1, nul.size, "not JSON");
    free(nul.bytes);
    char *deep = malloc(1 << 20);
    memset(deep, '[', 1 << 20);
    const image nested = build(deep, 1 << 20, 0);
    refuse_bytes(nested.bytes + 1, nested.size, "not JSON");
    free(nested.bytes);
    free(deep);
}

static void writes(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH], path[SCRATCH_PATH + 32], error[256] = "";
    assert_true(scratch_make(folder));
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    const float values[3] = {1, 2, 3};
    const int32_t words[2] = {-1, 7};
    const llmk_safetensors_tensor tensors[] = {
        {"first", LLMK_SAFETENSORS_F32, 1, {3}, values, sizeof values},
        {"second.qweight", LLMK_SAFETENSORS_I32, 2, {2, 1}, words, sizeof words}};
    if (!llmk_safetensors_write(tensors, 2, path, error, sizeof error))
        fail_msg("%s", error);
    llmk_safetensors *file;
    if (!llmk_safetensors_open(path, &file, error, sizeof error))
        fail_msg("%s", error);
    assert_int_equal(llmk_safetensors_count(file), 2);
    for (size_t i = 0; i < 2; i++) {
        const llmk_safetensors_tensor *t = llmk_safetensors_at(file, i);
        assert_string_equal(t->name, tensors[i].name);
        assert_int_equal(t->type, tensors[i].type);
        assert_int_equal(t->rank, tensors[i].rank);
        assert_memory_equal(t->dims, tensors[i].dims, sizeof t->dims);
        assert_int_equal(t->bytes, tensors[i].bytes);
        assert_memory_equal(t->data, tensors[i].data, t->bytes);
        assert_int_equal((uintptr_t)t->data % 4, 0);
    }
    llmk_safetensors_close(file);

    /* What would not read back is not kept. */
    llmk_safetensors_tensor wrong = tensors[0];
    wrong.bytes = 8;
    assert_false(llmk_safetensors_write(&wrong, 1, path, error, sizeof error));
    assert_non_null(strstr(error, "3 elements"));
    assert_true(llmk_safetensors_open(path, &file, error, sizeof error));
    llmk_safetensors_close(file);
    assert_false(llmk_safetensors_open(folder, &file, error, sizeof error));
    assert_non_null(strstr(error, "not a regular file"));
    snprintf(path, sizeof path, "%s/none", folder);
    assert_false(llmk_safetensors_open(path, &file, error, sizeof error));
    assert_non_null(strstr(error, "cannot be opened"));
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads), cmocka_unit_test(refuses),
                                       cmocka_unit_test(writes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return 77; /* no JSON library, no safetensors files */
}

#endif
