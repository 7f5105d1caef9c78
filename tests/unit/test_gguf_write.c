/* Written GGUF files, read back: synthetic models and slices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/gguf_build.h"

#include "formats/gguf_write.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[] = "/tmp/llmk-gguf-XXXXXX";
static char first[64];
static char second[64];

static int make_directory(void **state)
{
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    (void)snprintf(first, sizeof first, "%s/first", directory);
    (void)snprintf(second, sizeof second, "%s/second", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    (void)unlink(first);
    (void)unlink(second);
    return rmdir(directory); /* fails when a temporary file is left behind */
}

static size_t count_files(void)
{
    size_t count = 0;
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e; e = readdir(d))
        count += e->d_name[0] != '.';
    (void)closedir(d);
    return count;
}

static llmk_gguf *open_file(const char *path)
{
    llmk_gguf *gguf;
    char error[256];
    if (!llmk_gguf_open(path, &gguf, error, sizeof error))
        fail_msg("%s", error);
    return gguf;
}

static const llmk_gguf_tensor *find(const llmk_gguf *gguf, const char *name)
{
    char error[256];
    const llmk_gguf_tensor *tensor = llmk_gguf_find_tensor(gguf, name, error, sizeof error);
    if (!tensor)
        fail_msg("%s", error);
    return tensor;
}

static llmk_gguf_synthetic small_model(uint32_t type)
{
    return (llmk_gguf_synthetic){.hidden = 64,
                                 .intermediate = 96,
                                 .blocks = 2,
                                 .rows = 10,
                                 .type = type,
                                 .embedding_type = LLMK_GGUF_Q8_0,
                                 .rms_epsilon = 1e-5f,
                                 .seed = 42};
}

static void write_model(const llmk_gguf_synthetic *model, const char *path)
{
    char error[256];
    if (!llmk_gguf_write_synthetic(model, path, error, sizeof error))
        fail_msg("%s", error);
}

static void write_slice(const llmk_gguf *source, const llmk_gguf_slice *slices, size_t count,
                        const char *path)
{
    char error[256];
    if (!llmk_gguf_write_slice(source, slices, count, path, error, sizeof error))
        fail_msg("%s", error);
}

static void synthetic_models(void **state)
{
    static const uint32_t types[] = {LLMK_GGUF_F32,  LLMK_GGUF_F16,  LLMK_GGUF_BF16,
                                     LLMK_GGUF_Q8_0, LLMK_GGUF_Q4_0, LLMK_GGUF_Q4_1};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const llmk_gguf_synthetic model = small_model(types[i]);
        uint64_t number;
        float epsilon;
        write_model(&model, first);
        llmk_gguf *g = open_file(first);
        assert_int_equal(llmk_gguf_version(g), 3);
        assert_int_equal(llmk_gguf_tensor_count(g), 9);
        assert_true(llmk_gguf_get_u64(g, "llama.block_count", &number) && number == 2);
        assert_true(llmk_gguf_get_u64(g, "llama.embedding_length", &number) && number == 64);
        assert_true(llmk_gguf_get_u64(g, "llama.feed_forward_length", &number) && number == 96);
        assert_true(llmk_gguf_get_f32(g, "llama.attention.layer_norm_rms_epsilon", &epsilon));
        assert_true(epsilon == 1e-5f);

        const llmk_gguf_tensor *t = find(g, "token_embd.weight");
        assert_true(t->type == LLMK_GGUF_Q8_0 && t->dims[0] == 64 && t->dims[1] == 10);
        t = find(g, "blk.1.ffn_norm.weight");
        assert_true(t->type == LLMK_GGUF_F32 && t->n_dims == 1 && t->dims[0] == 64);
        t = find(g, "blk.0.ffn_gate.weight");
        assert_true(t->type == types[i] && t->dims[0] == 64 && t->dims[1] == 96);
        t = find(g, "blk.1.ffn_up.weight");
        assert_true(t->type == types[i] && t->dims[0] == 64 && t->dims[1] == 96);
        t = find(g, "blk.1.ffn_down.weight");
        assert_true(t->type == types[i] && t->dims[0] == 96 && t->dims[1] == 64);

        /* Weights of 96 inputs: mean square 1/96, whatever they were rounded to. */
        static float w[96 * 64];
        double square = 0;
        assert_true(llmk_gguf_dequantise(t->type, t->data, sizeof w / sizeof w[0], w));
        for (size_t k = 0; k < sizeof w / sizeof w[0]; k++)
            square += (double)w[k] * (double)w[k];
        assert_true(fabs(square * 96 / (96 * 64) - 1) < 0.06);
        llmk_gguf_close(g);
    }
}

/* The same seed gives the same file; another seed, another; and a type changes the rounding only.
 */
static void synthetic_is_seeded(void **state)
{
    (void)state;
    llmk_gguf_synthetic model = small_model(LLMK_GGUF_F32);
    write_model(&model, first);
    write_model(&model, second);
    llmk_gguf *a = open_file(first);
    llmk_gguf *b = open_file(second);
    const llmk_gguf_tensor *t = find(a, "blk.0.ffn_up.weight");
    assert_memory_equal(t->data, find(b, "blk.0.ffn_up.weight")->data, t->bytes);
    assert_memory_not_equal(t->data, find(a, "blk.1.ffn_up.weight")->data, t->bytes);
    assert_memory_not_equal(t->data, find(a, "blk.0.ffn_gate.weight")->data, t->bytes);
    llmk_gguf_close(b);

    model.type = LLMK_GGUF_Q8_0;
    write_model(&model, second);
    b = open_file(second);
    static float exact[64 * 96];
    static float rounded[64 * 96];
    const llmk_gguf_tensor *q = find(b, "blk.0.ffn_up.weight");
    assert_true(llmk_gguf_dequantise(t->type, t->data, (size_t)64 * 96, exact));
    assert_true(llmk_gguf_dequantise(q->type, q->data, (size_t)64 * 96, rounded));
    for (size_t i = 0; i < (size_t)64 * 96; i++)
        assert_true(fabsf(exact[i] - rounded[i]) < 0.005f);
    llmk_gguf_close(b);

    model.type = LLMK_GGUF_F32;
    model.seed++;
    write_model(&model, second);
    b = open_file(second);
    assert_memory_not_equal(t->data, find(b, "blk.0.ffn_up.weight")->data, t->bytes);
    llmk_gguf_close(b);

    /* The first weights are pinned: they must not depend on the host or the release. */
    float head[4];
    assert_true(llmk_gguf_dequantise(t->type, t->data, 4, head));
    assert_true(head[0] == -0x1.28aaf6p-6f && head[1] == -0x1.df88d4p-5f &&
                head[2] == 0x1.d7b694p-4f && head[3] == 0x1.528c5cp-4f);
    llmk_gguf_close(a);
}

static void synthetic_refusals(void **state)
{
    (void)state;
    char error[256];
    llmk_gguf_synthetic good = small_model(LLMK_GGUF_Q4_0);
    llmk_gguf_synthetic bad = good;
    const size_t files = count_files();
    bad.hidden = 0;
    assert_false(llmk_gguf_write_synthetic(&bad, second, error, sizeof error));
    assert_non_null(strstr(error, "A model of hidden 0"));
    bad = good;
    bad.blocks = UINT32_MAX;
    assert_false(llmk_gguf_write_synthetic(&bad, second, error, sizeof error));
    bad = good;
    bad.intermediate = 100;
    assert_false(llmk_gguf_write_synthetic(&bad, second, error, sizeof error));
    assert_non_null(strstr(error, "blk.0.ffn_down.weight: rows of 100 weights"));
    bad = good;
    bad.type = 1000;
    assert_false(llmk_gguf_write_synthetic(&bad, second, error, sizeof error));
    bad = good;
    bad.hidden = 256;
    bad.intermediate = 256;
    bad.type = LLMK_GGUF_Q4_K;
    assert_false(llmk_gguf_write_synthetic(&bad, second, error, sizeof error));
    assert_non_null(strstr(error, "type Q4_K cannot be generated"));
    assert_false(llmk_gguf_write_synthetic(&good, "/nonexistent/x", error, sizeof error));
    assert_non_null(strstr(error, "cannot be created"));
    assert_false(llmk_gguf_write_synthetic(&good, directory, error, sizeof error));
    assert_non_null(strstr(error, "is not a regular file"));
    assert_int_equal(count_files(), files); /* nothing left behind */
}

static void slice_round_trip(void **state)
{
    (void)state;
    const llmk_gguf_synthetic model = small_model(LLMK_GGUF_Q4_1);
    const llmk_gguf_slice slices[] = {{"blk.0.ffn_down.weight", 0},
                                      {"token_embd.weight", 3},
                                      {"blk.0.ffn_norm.weight", 0},
                                      {"blk.0.ffn_up.weight", 1000}};
    write_model(&model, first);
    llmk_gguf *a = open_file(first);
    write_slice(a, slices, 4, second);
    llmk_gguf *b = open_file(second);

    assert_int_equal(llmk_gguf_tensor_count(b), 4);
    for (size_t i = 0; i < 4; i++) {
        const llmk_gguf_tensor *whole = find(a, slices[i].name);
        const llmk_gguf_tensor *part = llmk_gguf_tensor_at(b, i);
        const uint64_t rows = i == 1 ? 3 : whole->dims[1];
        assert_string_equal(part->name, slices[i].name);
        assert_int_equal(part->type, whole->type);
        assert_int_equal(part->n_dims, whole->n_dims);
        assert_true(part->dims[0] == whole->dims[0] && part->dims[1] == rows);
        assert_int_equal(part->bytes, whole->bytes / whole->dims[1] * rows);
        assert_memory_equal(part->data, whole->data, part->bytes);
    }
    assert_int_equal(llmk_gguf_pair_count(b), llmk_gguf_pair_count(a));
    for (size_t i = 0; i < llmk_gguf_pair_count(a); i++) {
        const llmk_gguf_pair *p = llmk_gguf_pair_at(a, i);
        const llmk_gguf_pair *q = llmk_gguf_pair_at(b, i);
        assert_int_equal(p->raw_bytes, q->raw_bytes);
        assert_memory_equal(p->raw, q->raw, p->raw_bytes);
    }
    llmk_gguf_close(b);

    /* Over the file that the source has open. */
    write_slice(a, slices, 1, first);
    assert_int_equal(llmk_gguf_tensor_count(a), 9);
    llmk_gguf_close(a);
    a = open_file(first);
    assert_int_equal(llmk_gguf_tensor_count(a), 1);
    llmk_gguf_close(a);
}

/* Version 2, an alignment of its own, large arrays: of the tokenizer's and of another key. */
static void slice_metadata(void **state)
{
    (void)state;
    static struct gguf_build b;
    llmk_gguf *source;
    const llmk_gguf_slice slice = {"quantised", 1};
    build_header(&b, 2, 1, BUILD_ALL_PAIRS + 3);
    build_all_pairs(&b);
    build_key(&b, "tokenizer.ggml.tokens", LLMK_GGUF_VALUE_ARRAY);
    build_array(&b, LLMK_GGUF_VALUE_U8, 4200);
    build_fill(&b, 4200);
    build_key(&b, "tokenizer.ggml.small", LLMK_GGUF_VALUE_ARRAY);
    build_array(&b, LLMK_GGUF_VALUE_U8, 42);
    build_fill(&b, 42);
    build_key(&b, "other.large", LLMK_GGUF_VALUE_ARRAY);
    build_array(&b, LLMK_GGUF_VALUE_U8, 4200);
    build_fill(&b, 4200);
    build_tensor(&b, "quantised", 2, (const uint64_t[]){64, 3}, LLMK_GGUF_Q5_1, 0);
    build_pad(&b, 64);
    build_fill(&b, 3 * 2 * 24);
    assert_true(llmk_gguf_open_memory(b.bytes, b.size, &source, NULL, 0));
    write_slice(source, &slice, 1, second);

    llmk_gguf *g = open_file(second);
    assert_int_equal(llmk_gguf_version(g), 3);
    assert_int_equal(llmk_gguf_alignment(g), 64);
    assert_int_equal(llmk_gguf_pair_count(g), BUILD_ALL_PAIRS + 2);
    assert_null(llmk_gguf_find_pair(g, "tokenizer.ggml.tokens"));
    assert_non_null(llmk_gguf_find_pair(g, "tokenizer.ggml.small"));
    assert_non_null(llmk_gguf_find_pair(g, "other.large"));
    assert_int_equal(find(g, "quantised")->bytes, 2 * 24);
    assert_memory_equal(find(g, "quantised")->data, find(source, "quantised")->data, 48);
    llmk_gguf_close(g);
    llmk_gguf_close(source);
}

static void slice_refusals(void **state)
{
    (void)state;
    char error[256];
    struct gguf_build b;
    llmk_gguf *source;
    struct stat before;
    struct stat after;
    const llmk_gguf_synthetic model = small_model(LLMK_GGUF_F16);
    write_model(&model, second);
    assert_int_equal(stat(second, &before), 0);
    build_all(&b, 3);
    assert_true(llmk_gguf_open_memory(b.bytes, b.size, &source, NULL, 0));
    const size_t files = count_files();

    const struct {
        llmk_gguf_slice slices[2];
        size_t count;
        const char *part;
    } cases[] = {{{{"absent", 0}}, 1, "no tensor absent"},
                 {{{"norm", 0}, {"strange", 0}}, 2, "Tensor strange is of type 1000"},
                 {{{"norm", 0}, {"norm", 0}}, 2, "name norm occurs twice"},
                 {{{"norm", 2}}, 1, "has 1 dimensions"},
                 {{{"k", 1}}, 1, "has 3 dimensions"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_false(llmk_gguf_write_slice(source, cases[i].slices, cases[i].count, second, error,
                                           sizeof error));
        if (!strstr(error, cases[i].part))
            fail_msg("'%s' lacks '%s'", error, cases[i].part);
    }
    assert_int_equal(count_files(), files);
    assert_int_equal(stat(second, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);

    /* No tensors at all is a file too. */
    write_slice(source, NULL, 0, second);
    llmk_gguf_close(source);
}

/* The rename at the end would replace them by a file. */
static void outputs_that_are_no_files(void **state)
{
    (void)state;
    char error[256], fifo[80], link[80], dangling[80], folder[80];
    const llmk_gguf_synthetic model = small_model(LLMK_GGUF_F16);
    write_model(&model, first);
    llmk_gguf *source = open_file(first);
    (void)snprintf(fifo, sizeof fifo, "%s/fifo", directory);
    (void)snprintf(link, sizeof link, "%s/link", directory);
    (void)snprintf(dangling, sizeof dangling, "%s/dangling", directory);
    (void)snprintf(folder, sizeof folder, "%s/folder", directory);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink(first, link), 0);
    assert_int_equal(symlink("nothing", dangling), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    const char *const paths[] = {fifo, link, dangling, folder, "/dev/null"};
    const size_t files = count_files();
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct stat before, after;
        assert_int_equal(lstat(paths[i], &before), 0);
        for (int slice = 0; slice < 2; slice++) {
            error[0] = '\0';
            assert_false(slice
                             ? llmk_gguf_write_slice(source, NULL, 0, paths[i], error, sizeof error)
                             : llmk_gguf_write_synthetic(&model, paths[i], error, sizeof error));
            if (!strstr(error, "exists and is not a regular file"))
                fail_msg("%s: %s", paths[i], error);
        }
        assert_int_equal(lstat(paths[i], &after), 0);
        assert_true(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
    }
    assert_int_equal(count_files(), files);
    llmk_gguf_close(source);
    source = open_file(first); /* which the link did not lead to */
    llmk_gguf_close(source);
    (void)unlink(fifo);
    (void)unlink(link);
    (void)unlink(dangling);
    (void)rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synthetic_models),
        cmocka_unit_test(synthetic_is_seeded),
        cmocka_unit_test(synthetic_refusals),
        cmocka_unit_test(slice_round_trip),
        cmocka_unit_test(slice_metadata),
        cmocka_unit_test(slice_refusals),
        cmocka_unit_test(outputs_that_are_no_files),
    };
    return cmocka_run_group_tests_name("gguf_write", tests, make_directory, remove_directory);
}
