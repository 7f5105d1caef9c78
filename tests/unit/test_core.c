/* test_core.c - the public interface around the operators: statuses, error texts, devices,
 * contexts and their options, workspaces. */
#include "core/core.h"
#include "llmk_cmocka.h"
#include "ops/operator.h"
#include "support/calls.h"
#include "support/scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* ---- Statuses ---- */

/* The values are a promise to programs that were compiled with an older header. */
static void test_pinned_values(void **state)
{
    (void)state;
    static const struct {
        int value;
        llmk_status status;
        const char *name;
    } cases[] = {
        {0, LLMK_OK, "LLMK_OK"},
        {10, LLMK_INVALID_ARGUMENT, "LLMK_INVALID_ARGUMENT"},
        {11, LLMK_INVALID_SHAPE, "LLMK_INVALID_SHAPE"},
        {12, LLMK_INVALID_DTYPE, "LLMK_INVALID_DTYPE"},
        {13, LLMK_INVALID_STRIDE, "LLMK_INVALID_STRIDE"},
        {14, LLMK_BUFFER_TOO_SMALL, "LLMK_BUFFER_TOO_SMALL"},
        {15, LLMK_OVERLAP, "LLMK_OVERLAP"},
        {16, LLMK_INVALID_QUEUE, "LLMK_INVALID_QUEUE"},
        {17, LLMK_INVALID_BUFFER, "LLMK_INVALID_BUFFER"},
        {20, LLMK_BUSY, "LLMK_BUSY"},
        {30, LLMK_UNSUPPORTED, "LLMK_UNSUPPORTED"},
        {31, LLMK_NO_DEVICE, "LLMK_NO_DEVICE"},
        {32, LLMK_NO_VARIANT, "LLMK_NO_VARIANT"},
        {33, LLMK_BUILD_FAILED, "LLMK_BUILD_FAILED"},
        {34, LLMK_SELFTEST_FAILED, "LLMK_SELFTEST_FAILED"},
        {40, LLMK_OUT_OF_MEMORY, "LLMK_OUT_OF_MEMORY"},
        {41, LLMK_OUT_OF_DEVICE_MEMORY, "LLMK_OUT_OF_DEVICE_MEMORY"},
        {50, LLMK_DEVICE_LOST, "LLMK_DEVICE_LOST"},
        {51, LLMK_OPENCL_ERROR, "LLMK_OPENCL_ERROR"},
        {60, LLMK_IO_ERROR, "LLMK_IO_ERROR"},
        {61, LLMK_CORRUPT_DATA, "LLMK_CORRUPT_DATA"},
        {90, LLMK_INTERNAL, "LLMK_INTERNAL"},
    };
    size_t next = 0;
    for (int value = -2; value < 300; value++) {
        const bool known = next < LLMK_COUNT(cases) && cases[next].value == value;
        assert_string_equal(llmk_status_string((llmk_status)value),
                            known ? cases[next].name : "LLMK_UNKNOWN_STATUS");
        if (known)
            assert_int_equal(cases[next++].status, value);
    }
    assert_int_equal(next, LLMK_COUNT(cases));
    assert_string_equal(llmk_status_string((llmk_status)INT32_MIN), "LLMK_UNKNOWN_STATUS");
    const int dtypes[] = {LLMK_DTYPE_NONE, LLMK_F32, LLMK_F16, LLMK_BF16,     LLMK_I8,
                          LLMK_I32,        LLMK_U8,  LLMK_U4,  LLMK_FP8_E4M3, LLMK_FP8_E5M2};
    const uint32_t bits[] = {0, 32, 16, 16, 8, 32, 8, 4, 8, 8};
    for (int i = -2; i < 20; i++) {
        const bool known = i >= 0 && i < (int)LLMK_COUNT(dtypes);
        if (known)
            assert_int_equal(dtypes[i], i);
        assert_int_equal(llmk_dtype_bits((llmk_dtype)i), known ? bits[i] : 0);
        assert_true((strcmp(llmk_dtype_name((llmk_dtype)i), "?") == 0) == !known);
    }
}

static void test_cl_errors(void **state)
{
    (void)state;
    static const struct {
        cl_int code;
        llmk_status status;
    } cases[] = {
        {CL_DEVICE_NOT_AVAILABLE, LLMK_DEVICE_LOST},
        {-9999, LLMK_DEVICE_LOST},
        {CL_MEM_OBJECT_ALLOCATION_FAILURE, LLMK_OUT_OF_DEVICE_MEMORY},
        {CL_INVALID_BUFFER_SIZE,
         LLMK_OUT_OF_DEVICE_MEMORY}, /* -61: more than one allocation may be */
        {CL_OUT_OF_HOST_MEMORY, LLMK_OUT_OF_MEMORY},
        {CL_OUT_OF_RESOURCES, LLMK_OPENCL_ERROR},
        {CL_INVALID_VALUE, LLMK_OPENCL_ERROR},
        {-4242, LLMK_OPENCL_ERROR},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        char code[16];
        assert_int_equal(llmk_fail_cl(NULL, cases[i].code, "clFrobnicate"), cases[i].status);
        snprintf(code, sizeof code, "(%d)", (int)cases[i].code);
        assert_non_null(strstr(llmk_error_message(), "clFrobnicate"));
        assert_non_null(strstr(llmk_error_message(), code));
    }
}

/* ---- Error texts ---- */

static void *fail_elsewhere(void *unused)
{
    (void)unused;
    const bool fresh = strcmp(llmk_error_message(), "") == 0;
    llmk_context_create(NULL, NULL);
    llmk_prepare(NULL, LLMK_OP_ADD, NULL);
    return (void *)(uintptr_t)(fresh && strstr(llmk_error_message(), "ctx"));
}

static void test_error_texts(void **state)
{
    (void)state;
    pthread_t thread;
    void *right = NULL;
    assert_int_equal(llmk_device_list(NULL, 0, NULL), LLMK_INVALID_ARGUMENT);
    char mine[256];
    snprintf(mine, sizeof mine, "%s", llmk_error_message());
    assert_non_null(strstr(mine, "count"));
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, &right), 0);
    assert_non_null(right);
    assert_string_equal(llmk_error_message(), mine);

    /* A text may be made of the text before it, and one too long is cut. */
    static char long_text[20000];
    memset(long_text, 'x', sizeof long_text - 1);
    llmk_fail(LLMK_INTERNAL, "inner");
    llmk_fail_prefix(LLMK_INTERNAL, "outer %d", 1);
    llmk_fail(LLMK_INTERNAL, "%s", llmk_error_message());
    assert_string_equal(llmk_error_message(), "outer 1: inner");
    llmk_fail_prefix(LLMK_INTERNAL, "%s", long_text);
    llmk_fail(LLMK_INTERNAL, "%s", long_text);
    assert_in_range(strlen(llmk_error_message()), 4096, 16384);
}

/* ---- Devices ---- */

static void test_device_list(void **state)
{
    (void)state;
    size_t count = 99, again = 0;
    assert_int_equal(llmk_device_list(NULL, 0, &count), LLMK_OK);
    assert_in_range(count, 1, 64);
    assert_int_equal(llmk_device_list(NULL, 1, &again), LLMK_INVALID_ARGUMENT);
    llmk_device_info infos[66];
    memset(infos, 0x5a, sizeof infos);
    infos[0].struct_size = sizeof infos[0];
    assert_int_equal(llmk_device_list(infos, 65, &again), LLMK_OK);
    assert_int_equal(again, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(infos[i].struct_size, sizeof infos[i]);
        assert_non_null(infos[i].device_id);
        assert_true(infos[i].name[0] && infos[i].platform[0] && infos[i].version[0]);
        assert_true(infos[i].max_work_group >= 1 && infos[i].global_bytes > 0);
        assert_int_equal(infos[i].subgroup_size, 0); /* not probed */
    }
    const unsigned char *next = (const unsigned char *)&infos[count];
    for (size_t i = 0; i < sizeof infos[0]; i++)
        assert_int_equal(next[i], 0x5a); /* no more than there are */
    infos[0].struct_size = sizeof infos[0];
    memset(&infos[1], 0x5a, sizeof infos[1]);
    assert_int_equal(llmk_device_list(infos, 1, &again), LLMK_OK);
    assert_int_equal(*(const unsigned char *)&infos[1], 0x5a);
}

/* ---- Info structs of other versions ---- */

static llmk_weights *info_weights;

static llmk_status fill_device(llmk_context *ctx, void *info)
{
    return llmk_context_device_info(ctx, info);
}

static llmk_status fill_cache(llmk_context *ctx, void *info)
{
    return llmk_context_cache_info(ctx, info);
}

static llmk_status fill_weights(llmk_context *ctx, void *info)
{
    (void)ctx;
    return llmk_weights_get_info(info_weights, info);
}

static llmk_status fill_devices(llmk_context *ctx, void *info)
{
    size_t count;
    (void)ctx;
    return llmk_device_list(info, 1, &count);
}

static llmk_status fill_images(llmk_context *ctx, void *info)
{
    size_t count;
    (void)ctx;
    return llmk_image_list(info, 1, &count);
}

/* A caller that was built with an older header has a shorter struct, one with a newer header a
 * longer one: what both know is filled in, and no byte beyond the caller's struct is written. */
static void test_info_versions(void **state)
{
    (void)state;
    static const struct {
        llmk_status (*fill)(llmk_context *ctx, void *info);
        size_t size;
    } infos[] = {{fill_device, sizeof(llmk_device_info)},
                 {fill_cache, sizeof(llmk_cache_info)},
                 {fill_weights, sizeof(llmk_weights_info)},
                 {fill_devices, sizeof(llmk_device_info)},
                 {fill_images, sizeof(llmk_image_info)}};
    static max_align_t room[512];
    static unsigned char expected[sizeof room];
    unsigned char *bytes = (unsigned char *)room;
    const float w[16] = {0};
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.cache_dir = "off";
    llmk_context *ctx;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_F32;
    desc.n = desc.k = 4;
    desc.data = (llmk_source){.host = w, .size = sizeof w};
    assert_int_equal(llmk_weights_create(ctx, &desc, &info_weights), LLMK_OK);
    for (size_t i = 0; i < LLMK_COUNT(infos); i++) {
        const size_t known = infos[i].size;
        assert_true(3 * known < sizeof room);
        memset(expected, 0, sizeof expected);
        memcpy(expected, &known, sizeof known);
        assert_int_equal(infos[i].fill(ctx, expected), LLMK_OK);
        const size_t legal[] = {16, known / 2 / 8 * 8, known - 8, known, known + 24, 2 * known};
        for (size_t j = 0; j < LLMK_COUNT(legal); j++) {
            memset(bytes, 0x5a, sizeof room);
            memcpy(bytes, &legal[j], sizeof legal[j]);
            assert_int_equal(infos[i].fill(ctx, bytes), LLMK_OK);
            assert_memory_equal(bytes, &legal[j], sizeof legal[j]);
            for (size_t at = sizeof known; at < sizeof room; at++) {
                const int wanted = at >= legal[j] ? 0x5a : at < known ? expected[at] : 0;
                if (bytes[at] != wanted)
                    fail_msg("info %zu, struct_size %zu of %zu: byte %zu is %d, not %d", i,
                             legal[j], known, at, bytes[at], wanted);
            }
        }
        const size_t refused[] = {0, 1, sizeof(size_t), 2 * known + 1, SIZE_MAX};
        for (size_t j = 0; j < LLMK_COUNT(refused); j++) {
            memset(bytes, 0x5a, sizeof room);
            memcpy(bytes, &refused[j], sizeof refused[j]);
            assert_int_equal(infos[i].fill(ctx, bytes), LLMK_INVALID_ARGUMENT);
            assert_non_null(strstr(llmk_error_message(), "struct_size"));
            for (size_t at = sizeof known; at < sizeof room; at++)
                assert_int_equal(bytes[at], 0x5a);
        }
    }
    llmk_weights_free(info_weights);
    llmk_context_free(ctx);
}

/* Entries lie as far apart as the caller's struct is long. */
static void test_list_versions(void **state)
{
    (void)state;
    const size_t sizes[] = {24, sizeof(llmk_image_info), sizeof(llmk_image_info) + 16};
    static max_align_t room[512];
    static llmk_image_info exact[3];
    size_t count = 0;
    exact[0].struct_size = sizeof exact[0];
    assert_int_equal(llmk_image_list(exact, 3, &count), LLMK_OK);
    assert_true(count >= 3); /* the sources at least */
    for (size_t i = 0; i < LLMK_COUNT(sizes); i++) {
        unsigned char *bytes = (unsigned char *)room;
        memset(bytes, 0x5a, sizeof room);
        memcpy(bytes, &sizes[i], sizeof sizes[i]);
        assert_int_equal(llmk_image_list((llmk_image_info *)room, 3, &count), LLMK_OK);
        for (size_t n = 0; n < 3; n++) {
            const char *name;
            memcpy(&name, bytes + n * sizes[i] + offsetof(llmk_image_info, name), sizeof name);
            assert_ptr_equal(name, exact[n].name);
        }
        assert_int_equal(bytes[3 * sizes[i]], 0x5a);
    }
}

/* ---- Context options ---- */

static llmk_status try_options(const llmk_context_options *options)
{
    llmk_context *ctx = (llmk_context *)(uintptr_t)1;
    const llmk_status status = llmk_context_create(options, &ctx);
    assert_true((status == LLMK_OK) == (ctx != NULL)); /* NULL on failure */
    llmk_context_free(ctx);
    return status;
}

static void assert_refused(const llmk_context_options *options, llmk_status status,
                           const char *word)
{
    assert_int_equal(try_options(options), status);
    if (!strstr(llmk_error_message(), word))
        fail_msg("\"%s\" is not in: %s", word, llmk_error_message());
}

static void test_options(void **state)
{
    (void)state;
    assert_int_equal(llmk_context_create(NULL, NULL), LLMK_INVALID_ARGUMENT);
    llmk_context_options o = LLMK_INIT(llmk_context_options);
    assert_int_equal(try_options(NULL), LLMK_OK);
    assert_int_equal(try_options(&o), LLMK_OK);
    const size_t bad_sizes[] = {0, 1, sizeof o - 1, (size_t)1 << 20, SIZE_MAX};
    for (size_t i = 0; i < LLMK_COUNT(bad_sizes); i++) {
        o.struct_size = bad_sizes[i];
        assert_refused(&o, LLMK_INVALID_ARGUMENT, "options.struct_size is ");
    }
    struct {
        llmk_context_options o;
        unsigned char later[16];
    } newer = {.o = {.struct_size = sizeof newer}};
    assert_int_equal(try_options(&newer.o), LLMK_OK);
    newer.later[15] = 1;
    assert_refused(&newer.o, LLMK_UNSUPPORTED, "struct_size");

    o = LLMK_INIT(llmk_context_options);
    for (uint32_t bit = 0; bit < 32; bit++) {
        o.flags = (uint32_t)1 << bit;
        if (o.flags != LLMK_CONTEXT_NO_SELFTEST)
            assert_refused(&o, LLMK_INVALID_ARGUMENT, "flags");
    }
    o.flags = 0;
    const int bad_levels[] = {-1, LLMK_LOG_DEBUG + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < LLMK_COUNT(bad_levels); i++) {
        o.log_level = (llmk_log_level)bad_levels[i];
        assert_refused(&o, LLMK_INVALID_ARGUMENT, "log_level");
    }
}

static void test_forced_variants(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *word; /* NULL: fine */
    } cases[] = {
        {"", NULL},
        {"add:ref", NULL},
        {"add:ref,linear:ref", NULL},
        {"add:ref,add:portable", "forces two variants of operator add"},
        {"add:ref,linear:ref,add:ref", "forces two variants of operator add"},
        {"linear:ref,add:ref", NULL},
        {"*:subgroup,*:ref", NULL},
        {"add", "OP:NAME"},
        {"add:", "OP:NAME"},
        {":ref", "OP:NAME"},
        {":", "OP:NAME"},
        {",", "OP:NAME"},
        {"add:ref:more", "OP:NAME"},
        {"add:ref,,linear:ref", "OP:NAME"},
        {"add:ref,", "OP:NAME"},
        {"*:ref,", "OP:NAME"},
        {"add:ref;linear:ref", "OP:NAME"},
        {"add:ref linear", "no variant \"ref linear\""},
        {"add : ref", "no operator \"add \""},
        {"multiply:ref", "no operator \"multiply\""},
        {"ADD:ref", "no operator \"ADD\""},
        {"*:ref", NULL},
        {"*:subgroup,add:ref", NULL},
        {"*:fastest", "no operator has a variant \"fastest\""},
        {"*", "OP:NAME"},
        {"add:fastest", "it has "},
        {"add:%s%n%x", "no variant"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:ref",
         "OP:NAME"},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        llmk_context_options o = LLMK_INIT(llmk_context_options);
        o.variant = cases[i].text;
        if (cases[i].word) {
            assert_refused(&o, LLMK_INVALID_ARGUMENT, cases[i].word);
            assert_refused(&o, LLMK_INVALID_ARGUMENT, "llmk_context_create: options.variant: ");
            assert_null(strstr(llmk_error_message(), "LLMK_VARIANT"));
        } else {
            assert_int_equal(try_options(&o), LLMK_OK);
        }
    }
}

/* The environment wins, and is then what the sentence names. */
static void test_forced_variants_twice(void **state)
{
    (void)state;
    llmk_context_options o = LLMK_INIT(llmk_context_options);
    o.variant = "add:fastest";
    setenv("LLMK_VARIANT", "add:ref", 1);
    assert_int_equal(try_options(&o), LLMK_OK);
    o.variant = "add:ref";
    setenv("LLMK_VARIANT", "add:fastest", 1);
    assert_refused(&o, LLMK_INVALID_ARGUMENT, "LLMK_VARIANT: operator add has no variant");
    assert_null(strstr(llmk_error_message(), "options.variant"));
    unsetenv("LLMK_VARIANT");
}

/* The sentence has the names of all that there are, the last one whole. */
static void test_forced_variants_that_there_are_not(void **state)
{
    (void)state;
    for (llmk_op id = 0; id < 64; id++) {
        const llmk_operator *op = llmk_operator_get(id);
        char text[128], last[192];
        llmk_context_options o = LLMK_INIT(llmk_context_options);
        if (!op)
            continue;
        llmk_join(text, sizeof text, op->name, ":none", NULL);
        llmk_join(last, sizeof last, ", ", op->variants[op->variant_count - 1].name, NULL);
        o.variant = text;
        assert_refused(&o, LLMK_INVALID_ARGUMENT, last);
        assert_string_equal(strrchr(llmk_error_message(), ','), last);
        for (size_t i = 0; i < op->config_count; i++) {
            const char *variant = op->configs[i].variant;
            if (i + 1 < op->config_count && strcmp(variant, op->configs[i + 1].variant) == 0)
                continue; /* the last of a variant's */
            llmk_join(text, sizeof text, op->name, ":", variant, "@none", NULL);
            llmk_join(last, sizeof last, " ", variant, "@", op->configs[i].name, NULL);
            assert_refused(&o, LLMK_INVALID_ARGUMENT, last);
            assert_string_equal(strrchr(llmk_error_message(), ' '), last);
        }
    }
}

/* A variant that is never chosen on a CPU, unless forced: by its operator's name or by "*". */
static void test_forced_where_it_is_not_chosen(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool forced;
    } cases[] = {{"rmsnorm:subgroup", true},
                 {"*:subgroup", true},
                 {"add:ref,*:subgroup", true},
                 {"*:subgroup,rmsnorm:ref", true}, /* the first that fits */
                 {"rmsnorm:ref,*:subgroup", false},
                 {"*:ref,*:subgroup", false},
                 {"add:ref", false}};
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        llmk_context *ctx;
        llmk_context_options o = LLMK_INIT(llmk_context_options);
        o.variant = cases[i].text;
        assert_int_equal(llmk_context_create(&o, &ctx), LLMK_OK);
        if (llmk_variant_is_forced(ctx, "rmsnorm", "subgroup") != cases[i].forced)
            fail_msg("%s", cases[i].text);
        llmk_context_free(ctx);
    }
}

/* A forced variant that cannot serve the call: not another in its stead. */
static void test_forced_variant_cannot(void **state)
{
    (void)state;
    char text[CALL_TEXT];
    llmk_context *ctx;
    llmk_context_options o = LLMK_INIT(llmk_context_options);
    o.variant = "quantize:portable";
    assert_int_equal(llmk_context_create(&o, &ctx), LLMK_OK);
    /* portable wants unit strides */
    const char *line = "quantize scheme=int8-channel n=3 k=8 inner=2";
    assert_int_equal(call_and_check(ctx, line, text), LLMK_NO_VARIANT);
    assert_non_null(
        strstr(text, "quantize: the forced variant does not serve this call: portable: "));
    assert_int_equal(call_and_check(ctx, "add cols=8", text), LLMK_OK);
    llmk_context_free(ctx);
}

static void test_callers_context(void **state)
{
    (void)state;
    llmk_context *own;
    assert_int_equal(llmk_context_create(NULL, &own), LLMK_OK);
    cl_device_id device = llmk_context_cl_device(own);
    cl_context cl = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
    assert_non_null(cl);
    llmk_context_options o = LLMK_INIT(llmk_context_options);
    o.cl_context = cl;
    assert_refused(&o, LLMK_INVALID_ARGUMENT, "options.device is NULL");
    o.device = device;
    llmk_context *ctx;
    assert_int_equal(llmk_context_create(&o, &ctx), LLMK_OK);
    assert_ptr_equal(llmk_context_cl_context(ctx), cl);
    assert_ptr_equal(llmk_context_cl_device(ctx), device);
    char text[CALL_TEXT];
    assert_int_equal(call_and_check(ctx, "add cols=24 rows=3", text), LLMK_OK);
    /* The library holds its own reference, and gives it back. */
    cl_uint references = 0;
    clReleaseContext(cl);
    assert_int_equal(call_and_check(ctx, "rmsnorm h=24 rows=3", text), LLMK_OK);
    clRetainContext(cl);
    llmk_context_free(ctx);
    for (int i = 0; i < 1000 && references != 1; i++) { /* the driver's threads let go late */
        clGetContextInfo(cl, CL_CONTEXT_REFERENCE_COUNT, sizeof references, &references, NULL);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    assert_int_equal(references, 1);
    clReleaseContext(cl);
    llmk_context_free(own);
}

/* A context of two devices: the queue must be of the one that the library serves. */
static void test_two_devices(void **state)
{
    (void)state;
    llmk_device_info infos[2] = {LLMK_INIT(llmk_device_info)};
    size_t count = 0;
    assert_int_equal(llmk_device_list(infos, 2, &count), LLMK_OK);
    if (count < 2 || infos[0].platform_id != infos[1].platform_id)
        skip();
    const cl_device_id part[2] = {infos[0].device_id, infos[1].device_id};
    llmk_context_options o = LLMK_INIT(llmk_context_options);
    o.cl_context = clCreateContext(NULL, 2, part, NULL, NULL, NULL);
    o.device = part[0];
    llmk_context *ctx;
    assert_non_null(o.cl_context);
    assert_int_equal(llmk_context_create(&o, &ctx), LLMK_OK);
    const llmk_add_args args = LLMK_INIT(llmk_add_args);
    char text[CALL_TEXT];
    cl_command_queue other = clCreateCommandQueue(o.cl_context, part[1], 0, NULL);
    assert_non_null(other);
    assert_int_equal(llmk_add(ctx, other, &args, NULL), LLMK_INVALID_QUEUE);
    assert_non_null(strstr(llmk_error_message(), "another device"));
    assert_int_equal(call_and_check(ctx, "add cols=24 rows=3", text), LLMK_OK);
    clReleaseCommandQueue(other);
    llmk_context_free(ctx);
    clReleaseContext(o.cl_context);

    /* A device that is not one of the context's. */
    o.cl_context = clCreateContext(NULL, 1, part, NULL, NULL, NULL);
    o.device = part[1];
    assert_non_null(o.cl_context);
    assert_refused(&o, LLMK_INVALID_ARGUMENT, "not a device of options.cl_context");
    clReleaseContext(o.cl_context);
}

/* A folder's name is said whole, or there is no folder. */
static void test_long_cache_folders(void **state)
{
    (void)state;
    char scratch[SCRATCH_PATH], folder[5000];
    assert_true(scratch_make(scratch));
    const char *before = getenv("LLMK_CACHE");
    char *kept = before ? strdup(before) : NULL;
    for (size_t length = 600; length < sizeof folder - 1; length += 600) {
        llmk_context *ctx;
        llmk_cache_info cache = LLMK_INIT(llmk_cache_info);
        size_t used = (size_t)snprintf(folder, sizeof folder, "%s", scratch);
        while (used < length)
            used += (size_t)snprintf(folder + used, sizeof folder - used, "/%0*d",
                                     length - used > 200 ? 199 : (int)(length - used), 0);
        setenv("LLMK_CACHE", folder, 1);
        assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
        assert_int_equal(llmk_context_cache_info(ctx, &cache), LLMK_OK);
        llmk_context_free(ctx);
        /* The system takes names of up to 4095 bytes, with what is below the folder. */
        if (cache.folder[0] || used < 4000)
            assert_string_equal(cache.folder, folder);
    }
    if (kept)
        setenv("LLMK_CACHE", kept, 1);
    else
        unsetenv("LLMK_CACHE");
    free(kept);
    scratch_remove(scratch);
}

static void test_sentences_end_in_whole_characters(void **state)
{
    (void)state;
    llmk_reason why;
    char text[4], many[20000] = "";
    for (size_t before = 0; before < 3; before++) {
        for (size_t i = 0; i < before; i++)
            many[i] = 'x';
        for (size_t n = before; n + 3 < sizeof many; n += 3)
            memcpy(many + n, "\xe2\x82\xac", 4);
        llmk_no(&why, "%s", many);
        llmk_fail(LLMK_INTERNAL, "%s", many);
        llmk_fail_prefix(LLMK_INTERNAL, "%s", many);
        const char *const texts[] = {why.text, llmk_error_message()};
        for (size_t i = 0; i < LLMK_COUNT(texts); i++) {
            const size_t length = strlen(texts[i]);
            assert_true(length > 3 && length < sizeof many / 2);
            assert_string_equal(texts[i] + length - 3, "\xe2\x82\xac");
        }
    }
    static const struct {
        const char *parts[2], *joined;
    } joins[] = {{{"ab", "c"}, "abc"},
                 {{"ab", "cd"}, "abc"},
                 {{"ab", "\xc3\xa9"}, "ab"},
                 {{"a", "\xc3\xa9"}, "a\xc3\xa9"},
                 {{"\xe2\x82", "\xac"}, "\xe2\x82\xac"},
                 {{"\xf0\x9f\x98", "\x80"}, ""},
                 {{"\x80\x80\x80", "\x80"}, "\x80\x80\x80"}};
    for (size_t i = 0; i < LLMK_COUNT(joins); i++) {
        llmk_join(text, sizeof text, joins[i].parts[0], joins[i].parts[1], NULL);
        assert_string_equal(text, joins[i].joined);
    }
    llmk_join(text, 1, "abc", NULL);
    assert_string_equal(text, "");
}

static void test_infos(void **state)
{
    (void)state;
    llmk_context *ctx;
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
    llmk_device_info device = LLMK_INIT(llmk_device_info);
    llmk_cache_info cache = LLMK_INIT(llmk_cache_info);
    assert_int_equal(llmk_context_device_info(ctx, &device), LLMK_OK);
    assert_ptr_equal(device.device_id, llmk_context_cl_device(ctx));
    assert_int_equal(llmk_context_cache_info(ctx, &cache), LLMK_OK);
    assert_int_equal(llmk_context_device_info(ctx, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_context_cache_info(ctx, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_context_device_info(NULL, &device), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_context_cache_info(NULL, &cache), LLMK_INVALID_ARGUMENT);
    device.struct_size = 8;
    cache.struct_size = 8;
    assert_int_equal(llmk_context_device_info(ctx, &device), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_context_cache_info(ctx, &cache), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_context_set_profiler(NULL, NULL, NULL), LLMK_INVALID_ARGUMENT);
    assert_null(llmk_context_cl_context(NULL));
    assert_null(llmk_context_cl_device(NULL));
    llmk_context_free(ctx);
    llmk_context_free(NULL);
}

/* ---- The callback ---- */

typedef struct level_counts {
    unsigned of[LLMK_LOG_DEBUG + 1];
    unsigned newlines;
} level_counts;

static void test_printable(void **state)
{
    (void)state;
    char text[] = "a\x1b[31m\tb\r\nc\x7f \xc2\x9b\xc3\xa9\xc2\xa0\xc2";
    llmk_make_printable(text, true);
    assert_string_equal(text, "a [31m b \nc    \xc3\xa9\xc2\xa0\xc2");
    llmk_make_printable(text, false);
    assert_string_equal(text, "a [31m b  c    \xc3\xa9\xc2\xa0\xc2");
}

static void count_level(void *user, llmk_log_level level, const char *message)
{
    level_counts *counts = user;
    counts->of[level]++;
    counts->newlines += strpbrk(message, "\r\n") != NULL;
}

static void test_callback_levels(void **state)
{
    (void)state;
    for (int level = LLMK_LOG_NONE; level <= LLMK_LOG_DEBUG; level++) {
        level_counts counts = {{0}, 0};
        llmk_context_options o = LLMK_INIT(llmk_context_options);
        o.log = count_level;
        o.log_user = &counts;
        o.log_level = (llmk_log_level)level;
        o.cache_dir = "off";
        llmk_context *ctx;
        char text[CALL_TEXT];
        assert_int_equal(llmk_context_create(&o, &ctx), LLMK_OK);
        assert_int_equal(call_and_check(ctx, "add cols=24 rows=3", text), LLMK_OK);
        llmk_log_write(&ctx->log, LLMK_LOG_ERROR, "an error\nof two lines");
        llmk_log_write(&ctx->log, LLMK_LOG_WARN, "%s", "a warning");
        llmk_context_free(ctx);
        assert_int_equal(counts.newlines, 0);
        assert_int_equal(counts.of[LLMK_LOG_ERROR], 1);
        /* None: the default, errors and warnings. */
        assert_int_equal(counts.of[LLMK_LOG_WARN], level == LLMK_LOG_ERROR ? 0 : 1);
        assert_true((counts.of[LLMK_LOG_INFO] > 0) == (level >= LLMK_LOG_INFO));
        assert_true((counts.of[LLMK_LOG_DEBUG] > 0) == (level >= LLMK_LOG_DEBUG));
    }
}

/* ---- Workspaces, weights and the context that they hold ---- */

static void test_lifetimes(void **state)
{
    (void)state;
    llmk_context *ctx;
    llmk_workspace *w, *none;
    llmk_weights *weights;
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
    assert_int_equal(llmk_workspace_create(NULL, 8, &w), LLMK_INVALID_ARGUMENT);
    assert_null(w);
    assert_int_equal(llmk_workspace_create(ctx, 8, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_workspace_create(ctx, UINT64_MAX, &w), LLMK_OUT_OF_DEVICE_MEMORY);
    assert_null(w);
    assert_int_equal(llmk_workspace_create(ctx, 0, &none), LLMK_OK);
    assert_int_equal(llmk_workspace_create(ctx, 100, &w), LLMK_OK);
    assert_int_equal(llmk_workspace_bytes(w), 100);
    assert_int_equal(llmk_workspace_bytes(none), 0);
    assert_int_equal(llmk_workspace_bytes(NULL), 0);
    static const float data[64];
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = LLMK_FORMAT_F32;
    desc.n = desc.k = 8;
    desc.data = (llmk_source){.host = data, .size = sizeof data};
    assert_int_equal(llmk_weights_create(ctx, &desc, &weights), LLMK_OK);
    llmk_context_free(ctx);
    llmk_weights_info info = LLMK_INIT(llmk_weights_info);
    assert_int_equal(llmk_weights_get_info(weights, &info), LLMK_OK);
    llmk_workspace_free(none);
    llmk_weights_free(weights);
    llmk_workspace_free(w); /* the last reference */
    llmk_workspace_free(NULL);
    llmk_weights_free(NULL);
}

/* The loss of the device sticks to its context, and to no other. */
static void test_device_lost(void **state)
{
    (void)state;
    llmk_context *ctx, *other;
    char text[CALL_TEXT];
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
    assert_int_equal(llmk_context_create(NULL, &other), LLMK_OK);
    assert_int_equal(llmk_fail_cl(ctx, CL_DEVICE_NOT_AVAILABLE, "clFinish"), LLMK_DEVICE_LOST);
    llmk_workspace *w;
    llmk_device_info info = LLMK_INIT(llmk_device_info);
    llmk_add_args args = LLMK_INIT(llmk_add_args);
    size_t count;
    assert_int_equal(call_and_check(ctx, "add cols=8", text), LLMK_DEVICE_LOST);
    assert_int_equal(llmk_workspace_create(ctx, 8, &w), LLMK_DEVICE_LOST);
    assert_int_equal(llmk_context_device_info(ctx, &info), LLMK_DEVICE_LOST);
    assert_int_equal(llmk_prepare(ctx, LLMK_OP_ADD, &args), LLMK_DEVICE_LOST);
    assert_int_equal(llmk_explain(ctx, LLMK_OP_ADD, &args, NULL, 0, &count), LLMK_DEVICE_LOST);
    assert_int_equal(call_and_check(other, "add cols=8", text), LLMK_OK);
    llmk_context_free(ctx);
    llmk_context_free(other);
}

static void test_version(void **state)
{
    (void)state;
    char text[32];
    assert_int_equal(llmk_version(),
                     LLMK_VERSION_MAJOR * 1000000 + LLMK_VERSION_MINOR * 1000 + LLMK_VERSION_PATCH);
    snprintf(text, sizeof text, "%d.%d.%d", LLMK_VERSION_MAJOR, LLMK_VERSION_MINOR,
             LLMK_VERSION_PATCH);
    assert_non_null(strstr(llmk_build_info(), text));
    assert_null(strchr(llmk_build_info(), '\n'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printable),
        cmocka_unit_test(test_pinned_values),
        cmocka_unit_test(test_cl_errors),
        cmocka_unit_test(test_error_texts),
        cmocka_unit_test(test_device_list),
        cmocka_unit_test(test_info_versions),
        cmocka_unit_test(test_list_versions),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_forced_variants),
        cmocka_unit_test(test_forced_variants_twice),
        cmocka_unit_test(test_forced_variants_that_there_are_not),
        cmocka_unit_test(test_forced_where_it_is_not_chosen),
        cmocka_unit_test(test_forced_variant_cannot),
        cmocka_unit_test(test_callers_context),
        cmocka_unit_test(test_two_devices),
        cmocka_unit_test(test_infos),
        cmocka_unit_test(test_long_cache_folders),
        cmocka_unit_test(test_sentences_end_in_whole_characters),
        cmocka_unit_test(test_callback_levels),
        cmocka_unit_test(test_lifetimes),
        cmocka_unit_test(test_device_lost),
        cmocka_unit_test(test_version),
    };
    setenv("POCL_DEVICES", "pthread basic", 0); /* two devices of one platform, on any machine */
    unsetenv("LLMK_CACHE"); /* it would win over what the contexts here are given */
    unsetenv("LLMK_VARIANT");
    unsetenv("LLMK_LOG");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
