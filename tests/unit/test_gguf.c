/* The GGUF reader: what it reads, and the hostile files that it must refuse with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/gguf_build.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* Opens a copy of exactly `size` bytes at an odd address, so that a sanitizer sees every read
 * outside. */
struct opened {
    unsigned char *copy;
    llmk_gguf *gguf;
    char error[512];
};

static bool open_copy(struct opened *o, const void *bytes, size_t size)
{
    memset(o, 0, sizeof *o);
    o->copy = malloc(size + 1);
    assert_non_null(o->copy);
    if (size)
        memcpy(o->copy + 1, bytes, size);
    const bool ok = llmk_gguf_open_memory(o->copy + 1, size, &o->gguf, o->error, sizeof o->error);
    assert_true(ok == (o->gguf != NULL));
    assert_true(ok || strlen(o->error) > 10);
    return ok;
}

static void close_copy(struct opened *o)
{
    llmk_gguf_close(o->gguf);
    free(o->copy);
}

static void assert_opens(const struct gguf_build *b)
{
    struct opened o;
    if (!open_copy(&o, b->bytes, b->size))
        fail_msg("refused: %s", o.error);
    close_copy(&o);
}

/* Refused, with a sentence that holds `part`. */
static void assert_refused(const struct gguf_build *b, const char *part)
{
    struct opened o;
    if (open_copy(&o, b->bytes, b->size))
        fail_msg("opened; expected: %s", part);
    if (!strstr(o.error, part))
        fail_msg("'%s' lacks '%s'", o.error, part);
    assert_int_equal(o.error[strlen(o.error) - 1], '.');
    close_copy(&o);
}

/* ---- What it reads ---- */

static void reads_metadata(void **state)
{
    (void)state;
    struct gguf_build b;
    struct opened o;
    uint64_t u64 = 7;
    float f32 = 7;
    const char *string = NULL;
    size_t length = 0;
    build_all(&b, 3);
    assert_true(open_copy(&o, b.bytes, b.size));
    const llmk_gguf *g = o.gguf;

    assert_int_equal(llmk_gguf_version(g), 3);
    assert_int_equal(llmk_gguf_alignment(g), 64);
    assert_int_equal(llmk_gguf_pair_count(g), BUILD_ALL_PAIRS);
    assert_null(llmk_gguf_pair_at(g, BUILD_ALL_PAIRS));
    assert_string_equal(llmk_gguf_pair_at(g, 1)->key, "general.architecture");

    assert_true(llmk_gguf_get_string(g, "general.architecture", &string, &length));
    assert_int_equal(length, 5);
    assert_memory_equal(string, "llama", 5);
    assert_true(llmk_gguf_get_u64(g, "u8", &u64) && u64 == 200);
    assert_true(llmk_gguf_get_u64(g, "u16", &u64) && u64 == 60000);
    assert_true(llmk_gguf_get_u64(g, "i16", &u64) && u64 == 1234);
    assert_true(llmk_gguf_get_u64(g, "u32", &u64) && u64 == 4000000000u);
    assert_true(llmk_gguf_get_u64(g, "u64", &u64) && u64 == UINT64_MAX);
    assert_true(llmk_gguf_get_u64(g, "i64", &u64) && u64 == INT64_MAX);
    assert_true(llmk_gguf_get_f32(g, "f32", &f32) && f32 == 1e-5f);
    assert_true(llmk_gguf_get_f32(g, "f64", &f32) && f32 == 0.5f);

    /* Neither absent, nor of another kind, nor out of range; and the value stays. */
    u64 = 7;
    f32 = 7;
    static const char *const not_integers[] = {
        "absent", "i8", "i32", "f32", "bool", "general.architecture", "array.i16"};
    for (size_t i = 0; i < sizeof not_integers / sizeof not_integers[0]; i++)
        assert_false(llmk_gguf_get_u64(g, not_integers[i], &u64));
    assert_false(llmk_gguf_get_f32(g, "u32", &f32));
    assert_false(llmk_gguf_get_f32(g, "f64.huge", &f32));
    assert_false(llmk_gguf_get_string(g, "u8", &string, &length));
    assert_false(llmk_gguf_get_string(g, "array.string", &string, &length));
    assert_true(u64 == 7 && f32 == 7);

    const llmk_gguf_pair *pair = llmk_gguf_find_pair(g, "array.string");
    assert_int_equal(pair->type, LLMK_GGUF_VALUE_ARRAY);
    assert_int_equal(pair->element_type, LLMK_GGUF_VALUE_STRING);
    assert_int_equal(pair->count, 3);
    close_copy(&o);
}

static void reads_tensors(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_build b;
        struct opened o;
        char error[256] = "";
        build_all(&b, version);
        assert_true(open_copy(&o, b.bytes, b.size));
        assert_int_equal(llmk_gguf_version(o.gguf), version);
        assert_int_equal(llmk_gguf_tensor_count(o.gguf), BUILD_ALL_TENSORS);
        assert_null(llmk_gguf_tensor_at(o.gguf, BUILD_ALL_TENSORS));

        const llmk_gguf_tensor *t = llmk_gguf_find_tensor(o.gguf, "quantised", NULL, 0);
        assert_non_null(t);
        assert_ptr_equal(t, llmk_gguf_tensor_at(o.gguf, 1));
        assert_int_equal(t->type, LLMK_GGUF_Q4_0);
        assert_int_equal(t->n_dims, 2);
        assert_true(t->dims[0] == 64 && t->dims[1] == 3 && t->dims[2] == 1 && t->dims[3] == 1);
        assert_int_equal(t->bytes, 3 * 2 * 18);
        const llmk_gguf_tensor *norm = llmk_gguf_find_tensor(o.gguf, "norm", NULL, 0);
        assert_ptr_equal(t->data, (const unsigned char *)norm->data + 128);

        t = llmk_gguf_find_tensor(o.gguf, "last", NULL, 0);
        assert_int_equal(t->bytes, 24);
        assert_ptr_equal((const unsigned char *)t->data + t->bytes, o.copy + 1 + b.size);

        /* A type that is not known is an error only for whoever asks. */
        t = llmk_gguf_tensor_at(o.gguf, 2);
        assert_string_equal(t->name, "strange");
        assert_true(!t->data && !t->bytes);
        assert_null(llmk_gguf_find_tensor(o.gguf, "strange", error, sizeof error));
        assert_non_null(strstr(error, "Tensor strange is of type 1000"));
        assert_null(llmk_gguf_find_tensor(o.gguf, "absent", error, sizeof error));
        assert_non_null(strstr(error, "no tensor absent"));
        close_copy(&o);
    }
}

static void reads_files(void **state)
{
    (void)state;
    char path[] = "/tmp/llmk-gguf-XXXXXX";
    char error[256] = "";
    struct gguf_build b;
    llmk_gguf *gguf;
    build_all(&b, 3);
    const int file = mkstemp(path);
    assert_true(file >= 0);

    assert_false(llmk_gguf_open(path, &gguf, error, sizeof error));
    assert_non_null(strstr(error, "not a regular file with content"));
    assert_int_equal(write(file, b.bytes, b.size), (ssize_t)b.size);
    assert_true(llmk_gguf_open(path, &gguf, error, sizeof error));
    assert_int_equal(llmk_gguf_tensor_count(gguf), BUILD_ALL_TENSORS);
    llmk_gguf_close(gguf);
    assert_int_equal(ftruncate(file, 100), 0);
    assert_false(llmk_gguf_open(path, &gguf, error, sizeof error));
    assert_null(gguf);
    (void)close(file);
    (void)unlink(path);

    assert_false(llmk_gguf_open(path, &gguf, error, sizeof error));
    assert_non_null(strstr(error, "cannot be opened"));
    assert_false(llmk_gguf_open("/tmp", &gguf, error, sizeof error));
    assert_false(llmk_gguf_open("/dev/null", &gguf, error, sizeof error));
    assert_false(llmk_gguf_open(path, &gguf, NULL, 0));
    llmk_gguf_close(NULL);
}

static void reads_an_empty_model(void **state)
{
    (void)state;
    struct gguf_build b;
    struct opened o;
    build_header(&b, 3, 0, 0);
    assert_true(open_copy(&o, b.bytes, b.size));
    assert_int_equal(llmk_gguf_alignment(o.gguf), 32);
    assert_null(llmk_gguf_find_pair(o.gguf, "general.alignment"));
    assert_null(llmk_gguf_find_tensor(o.gguf, "t", NULL, 0));
    assert_null(llmk_gguf_pair_at(o.gguf, 0));
    assert_null(llmk_gguf_tensor_at(o.gguf, 0));
    close_copy(&o);
}

static void error_fits_its_buffer(void **state)
{
    (void)state;
    char error[8] = "1234567";
    llmk_gguf *gguf;
    assert_false(llmk_gguf_open_memory("GGUX", 4, &gguf, error, 4));
    assert_memory_equal(error,
                        "The\0"
                        "567",
                        8);
    assert_false(llmk_gguf_open_memory("GGUX", 4, &gguf, error, 0));
    assert_memory_equal(error, "The", 4);
}

/* ---- Hostile files ---- */

/* Every prefix of a file is refused, since the last tensor ends with the file. */
static void truncated_anywhere(void **state)
{
    (void)state;
    struct gguf_build b;
    struct opened o;
    build_all(&b, 3);
    for (size_t size = 0; size < b.size; size++) {
        if (open_copy(&o, b.bytes, size))
            fail_msg("opened when truncated to %zu bytes", size);
        close_copy(&o);
    }
    assert_opens(&b);
}

/* Any field, length or not, may hold anything: whatever opens must then be usable. */
static void every_byte_offset_hostile(void **state)
{
    static const uint64_t values[] = {0,
                                      1,
                                      0x7fffffff,
                                      0xffffffff,
                                      UINT64_C(1) << 32,
                                      UINT64_C(1) << 61,
                                      INT64_MAX,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX - 7,
                                      UINT64_MAX};
    (void)state;
    struct gguf_build whole;
    struct gguf_build b;
    build_all(&whole, 3);
    for (size_t at = 0; at + 8 <= whole.size; at++)
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            struct opened o;
            b = whole;
            llmk_store_u64(b.bytes + at, values[i]);
            if (open_copy(&o, b.bytes, b.size)) {
                for (size_t k = 0; k < llmk_gguf_tensor_count(o.gguf); k++) {
                    const llmk_gguf_tensor *t = llmk_gguf_tensor_at(o.gguf, k);
                    const unsigned char *data = t->data;
                    assert_true(!data || (data > o.copy && t->bytes &&
                                          t->bytes <= (size_t)(o.copy + 1 + b.size - data)));
                }
            }
            close_copy(&o);
        }
}

static void bad_headers(void **state)
{
    (void)state;
    static const struct {
        uint32_t version;
        const char *part;
    } versions[] = {{0, "is 0; expected 2 or 3"},
                    {1, "is 1; expected 2 or 3"},
                    {4, "is 4; expected 2 or 3"},
                    {0x03000000, "big-endian"},
                    {UINT32_MAX, "is 4294967295"}};
    struct gguf_build b;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        build_header(&b, versions[i].version, 0, 0);
        assert_refused(&b, versions[i].part);
    }
    build_header(&b, 3, 0, 0);
    b.bytes[3] = 'X';
    assert_refused(&b, "starts with 47 47 55 58; expected \"GGUF\"");

    /* Counts: more than the bytes that follow can hold, and more than is sane. */
    static const uint64_t counts[] = {1, 1u << 20, UINT64_C(1) << 60, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        build_header(&b, 3, counts[i], 0);
        assert_refused(&b, "The tensor count at offset 8 is");
        build_header(&b, 3, 0, counts[i]);
        assert_refused(&b, "The metadata count at offset 16 is");
    }
}

static const uint64_t huge[] = {
    5000,           0x7fffffff, 0xffffffff,        UINT64_C(1) << 32, INT64_MAX, UINT64_C(1) << 63,
    UINT64_MAX - 7, UINT64_MAX, UINT64_MAX / 4 + 1};
enum { HUGE_COUNT = sizeof huge / sizeof huge[0] };

static void huge_lengths(void **state)
{
    (void)state;
    struct gguf_build b;
    for (size_t i = 0; i < HUGE_COUNT; i++) {
        build_header(&b, 3, 0, 1);
        build_u64(&b, huge[i]); /* the key */
        build_fill(&b, 64);
        assert_refused(&b, "A metadata key at offset ");

        build_header(&b, 3, 0, 1);
        build_key(&b, "k", LLMK_GGUF_VALUE_STRING);
        build_u64(&b, huge[i]);
        build_fill(&b, 64);
        assert_refused(&b, "but the file ends at 109");

        for (uint32_t type = 0; type <= LLMK_GGUF_VALUE_F64; type++) {
            build_header(&b, 3, 0, 1);
            build_key(&b, "k", LLMK_GGUF_VALUE_ARRAY);
            build_array(&b, type, huge[i]);
            build_fill(&b, 64);
            assert_refused(&b, "but the file ends at 113");
        }
        build_header(&b, 3, 0, 1);
        build_key(&b, "k", LLMK_GGUF_VALUE_ARRAY);
        build_array(&b, LLMK_GGUF_VALUE_STRING, 2);
        build_u64(&b, huge[i]);
        build_fill(&b, 64);
        assert_refused(&b, "A string at offset 57");

        build_header(&b, 3, 1, 0);
        build_u64(&b, huge[i]); /* the tensor's name */
        build_fill(&b, 64);
        assert_refused(&b, "A tensor name at offset 24");
    }
}

static void bad_names(void **state)
{
    (void)state;
    struct gguf_build b;
    build_header(&b, 3, 0, 1);
    build_u32_pair(&b, "", 1);
    build_fill(&b, 1);
    assert_refused(&b, "A metadata key at offset 24 has 0 bytes");
    build_header(&b, 3, 0, 1);
    build_u32_pair(&b, "a\033[2J", 1);
    assert_refused(&b, "the control byte 0x1b");
    build_header(&b, 3, 0, 1);
    build_u64(&b, 3);
    build_bytes(&b, "a\0b", 3);
    build_u32(&b, LLMK_GGUF_VALUE_U32);
    build_u32(&b, 1);
    assert_refused(&b, "the control byte 0x00");

    build_header(&b, 3, 0, 3);
    build_u32_pair(&b, "twice", 1);
    build_u32_pair(&b, "once", 1);
    build_u32_pair(&b, "twice", 2);
    assert_refused(&b, "The metadata key twice occurs twice");

    build_header(&b, 3, 2, 0);
    build_tensor(&b, "t", 1, (const uint64_t[]){1}, LLMK_GGUF_F32, 0);
    build_tensor(&b, "t", 1, (const uint64_t[]){1}, LLMK_GGUF_F32, 32);
    build_pad(&b, 32);
    build_fill(&b, 64);
    assert_refused(&b, "The tensor name t occurs twice");
}

static void bad_values(void **state)
{
    (void)state;
    struct gguf_build b;
    build_header(&b, 3, 0, 1);
    build_key(&b, "k", 13);
    build_fill(&b, 64);
    assert_refused(&b, "The type of a metadata value at offset 33 is 13; expected 0 to 12");
    build_header(&b, 3, 0, 1);
    build_key(&b, "k", LLMK_GGUF_VALUE_ARRAY);
    build_array(&b, UINT32_MAX, 1);
    build_fill(&b, 64);
    assert_refused(&b, "The element type of an array");
    build_header(&b, 3, 0, 1);
    build_key(&b, "k", LLMK_GGUF_VALUE_BOOL);
    build_u8(&b, 2);
    assert_refused(&b, "The bool at offset 37 is 2");

    for (int depth = 1; depth < 300; depth++) {
        build_header(&b, 3, 0, 1);
        build_key(&b, "k", LLMK_GGUF_VALUE_ARRAY);
        for (int i = 1; i < depth; i++)
            build_array(&b, LLMK_GGUF_VALUE_ARRAY, 1);
        build_array(&b, LLMK_GGUF_VALUE_U8, 1);
        build_u8(&b, 1);
        if (depth <= 4)
            assert_opens(&b);
        else
            assert_refused(&b, "nested more than 4 deep");
    }
}

static void build_aligned(struct gguf_build *b, uint32_t alignment, uint64_t offset)
{
    build_header(b, 3, 1, 1);
    build_u32_pair(b, "general.alignment", alignment);
    build_tensor(b, "t", 1, (const uint64_t[]){1}, LLMK_GGUF_F32, offset);
    build_pad(b, 256);
    build_fill(b, 512);
}

static void alignments(void **state)
{
    static const uint32_t bad[] = {0, 1, 4, 24, 33, 1u << 21, 1u << 31, UINT32_MAX};
    (void)state;
    struct gguf_build b;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        build_aligned(&b, bad[i], 0);
        assert_refused(&b, "expected a power of two from 8 to 1048576");
    }
    for (uint32_t alignment = 8; alignment <= 256; alignment *= 2) {
        build_aligned(&b, alignment, alignment);
        assert_opens(&b);
        build_aligned(&b, alignment, alignment / 2);
        assert_refused(&b, "expected a multiple of the alignment");
    }
    build_aligned(&b, 1u << 20, 0);
    assert_refused(&b, "The data section should start at offset 1048576");

    build_header(&b, 3, 0, 1);
    build_key(&b, "general.alignment", LLMK_GGUF_VALUE_U64);
    build_u64(&b, 32);
    assert_refused(&b, "is of type u64; expected u32");
}

/* One tensor, and 96 bytes of data. */
static void build_one(struct gguf_build *b, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                      uint64_t offset)
{
    build_header(b, 3, 1, 0);
    build_tensor(b, "t", n_dims, dims, type, offset);
    build_pad(b, 32);
    build_fill(b, 96);
}

static void bad_dimensions(void **state)
{
    (void)state;
    struct gguf_build b;
    const uint64_t ones[5] = {1, 1, 1, 1, 1};
    for (uint32_t n = 1; n <= 4; n++) {
        build_one(&b, n, ones, LLMK_GGUF_F32, 0);
        assert_opens(&b);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t dims[4] = {1, 1, 1, 1};
            dims[i] = 0;
            build_one(&b, n, dims, LLMK_GGUF_F32, 0);
            assert_refused(&b, "of tensor t at offset");
            for (size_t k = 0; k < HUGE_COUNT; k++) {
                dims[i] = huge[k];
                build_one(&b, n, dims, LLMK_GGUF_F32, 0);
                assert_refused(&b, "Tensor t ");
            }
        }
    }
    build_one(&b, 0, ones, LLMK_GGUF_F32, 0);
    assert_refused(&b, "has 0 dimensions (offset 33); expected 1 to 4");
    build_one(&b, 5, ones, LLMK_GGUF_F32, 0);
    assert_refused(&b, "has 5 dimensions");
    b.size = 24;
    build_string(&b, "t");
    build_u32(&b, UINT32_MAX);
    build_fill(&b, 64);
    assert_refused(&b, "has 4294967295 dimensions");

    /* Products that wrap to something small. */
    build_one(&b, 2, (const uint64_t[]){UINT64_C(1) << 32, UINT64_C(1) << 32}, LLMK_GGUF_F32, 0);
    assert_refused(&b, "more than 2^63 elements");
    build_one(&b, 4, (const uint64_t[]){3, UINT64_C(0xaaaaaaaaaaaaaaab), 1, 1}, LLMK_GGUF_F32, 0);
    assert_refused(&b, "more than 2^63 elements");
    build_one(&b, 2, (const uint64_t[]){UINT64_C(1) << 31, UINT64_C(1) << 31}, LLMK_GGUF_F64, 0);
    assert_refused(&b, "too large to address");

    build_one(&b, 2, (const uint64_t[]){31, 32}, LLMK_GGUF_Q4_0, 0);
    assert_refused(&b, "is of type Q4_0");
    build_one(&b, 1, (const uint64_t[]){128}, LLMK_GGUF_Q6_K, 0);
    assert_refused(&b, "blocks of 256, but its rows have 128");
}

static void bad_extents(void **state)
{
    (void)state;
    struct gguf_build b;
    const uint64_t eight[] = {8}; /* 32 bytes of f32 */
    build_one(&b, 1, eight, LLMK_GGUF_F32, 64);
    assert_opens(&b);
    static const uint64_t offsets[] = {96, 128, UINT64_C(1) << 32, UINT64_C(1) << 63,
                                       UINT64_MAX - 31};
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        build_one(&b, 1, eight, LLMK_GGUF_F32, offsets[i]);
        assert_refused(&b, "Tensor t takes 32 bytes at");
    }
    build_one(&b, 1, eight, 1000, 128); /* even when its size is not known */
    assert_refused(&b, "Tensor t takes 0 bytes at 128");
    build_one(&b, 1, (const uint64_t[]){25}, LLMK_GGUF_F32, 0);
    assert_refused(&b, "takes 100 bytes");

    /* Overlaps: the same place, a partial one, one inside another. */
    static const struct {
        uint64_t first, elements, second;
        bool good;
    } pairs[] = {{0, 8, 32, true},  {32, 8, 0, true},   {0, 8, 0, false},
                 {0, 9, 32, false}, {32, 8, 32, false}, {0, 24, 32, false}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        build_header(&b, 3, 2, 0);
        build_tensor(&b, "a", 1, &pairs[i].elements, LLMK_GGUF_F32, pairs[i].first);
        build_tensor(&b, "b", 1, eight, LLMK_GGUF_F32, pairs[i].second);
        build_pad(&b, 32);
        build_fill(&b, 96);
        if (pairs[i].good)
            assert_opens(&b);
        else
            assert_refused(&b, " overlap at offset ");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_metadata),
        cmocka_unit_test(reads_tensors),
        cmocka_unit_test(reads_files),
        cmocka_unit_test(reads_an_empty_model),
        cmocka_unit_test(error_fits_its_buffer),
        cmocka_unit_test(truncated_anywhere),
        cmocka_unit_test(every_byte_offset_hostile),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(huge_lengths),
        cmocka_unit_test(bad_names),
        cmocka_unit_test(bad_values),
        cmocka_unit_test(alignments),
        cmocka_unit_test(bad_dimensions),
        cmocka_unit_test(bad_extents),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
