/* test_image.c - which images a device is offered, and what happens to bad ones. */
#include "llmk_cmocka.h"

#include "core/image.h"
#include "ops/operator.h"

#include <stdio.h>
#include <stdlib.h>

#define PROBE        "common/probe.cl"
#define PROBE_DEFINE "-DPROBE_NONE" /* no kernels: builds everywhere */
#define STEM         "common/probe-PROBE_NONE"

static const unsigned char nothing[1] = {0};
static const char index_text[] = "0123456789abcdef\n" STEM "\nrmsnorm/rmsnorm_nv-X.f16-Y.bf16\n";

#define ROW(suffix)                                                                                \
    {                                                                                              \
        STEM suffix, nothing, sizeof nothing                                                       \
    }

/* One of each; none of them is a zstd frame. */
static const llmk_embedded_file all_files[] = {
    {"index", (const unsigned char *)index_text, sizeof index_text - 1},
    ROW(".gfx942.hsaco"),
    ROW(".sm_80.cubin"),
    ROW(".sm_80.ptx"),
    ROW(".sm_90.cubin"),
    ROW(".sm_90a.cubin"),
    ROW(".sm_90a.ptx"),
    ROW(".spv")};
static const size_t all_count = LLMK_COUNT(all_files);
static const llmk_image_set all = {all_files, &all_count};

typedef struct fixture {
    llmk_context *ctx;
    char log[16][2048];
    size_t lines;
} fixture;

static void on_log(void *user, llmk_log_level level, const char *message)
{
    fixture *f = user;
    (void)level;
    if (f->lines < LLMK_COUNT(f->log))
        snprintf(f->log[f->lines++], sizeof f->log[0], "%s", message);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.log = on_log;
    options.log_user = f;
    options.cache_dir = "off";
    if (llmk_context_create(&options, &f->ctx) != LLMK_OK) {
        free(f);
        return -1;
    }
    f->ctx->images = &all;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    llmk_context_free(f->ctx);
    free(f);
    return 0;
}

static void pretend(llmk_context *ctx, llmk_vendor vendor, uint32_t capability, bool spirv)
{
    ctx->caps.vendor = vendor;
    ctx->caps.compute_capability = capability;
    ctx->caps.spirv = spirv;
}

static void force(llmk_context *ctx, const char *word)
{
    free(ctx->forced_image);
    ctx->forced_image = word ? strdup(word) : NULL;
}

/* "cubin:sm_90a cubin:sm_90 ... source:", or the error. */
static const char *order(const llmk_context *ctx)
{
    static char text[512];
    llmk_image images[LLMK_MAX_IMAGES];
    size_t count = 0, n = 0;
    if (llmk_images_of(ctx, PROBE, PROBE_DEFINE, images, &count) != LLMK_OK)
        return llmk_error_message();
    for (size_t i = 0; i < count; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s:%s", i ? " " : "", images[i].kind,
                              images[i].target);
    return text;
}

static void test_order(void **state)
{
    llmk_context *ctx = ((fixture *)*state)->ctx;
    force(ctx, NULL);
    pretend(ctx, LLMK_VENDOR_NVIDIA, 90, false);
    assert_string_equal(order(ctx), "cubin:sm_90a cubin:sm_90 ptx:sm_90a ptx:sm_80 source:");
    pretend(ctx, LLMK_VENDOR_NVIDIA, 80, false);
    assert_string_equal(order(ctx), "cubin:sm_80 ptx:sm_80 source:");
    pretend(ctx, LLMK_VENDOR_NVIDIA, 120, false);
    assert_string_equal(order(ctx), "ptx:sm_80 source:");
    pretend(ctx, LLMK_VENDOR_NVIDIA, 75, false);
    assert_string_equal(order(ctx), "source:");
    pretend(ctx, LLMK_VENDOR_POCL, 0, true);
    assert_string_equal(order(ctx), "spirv: source:");
    pretend(ctx, LLMK_VENDOR_POCL, 0, false);
    assert_string_equal(order(ctx), "source:");
    pretend(ctx, LLMK_VENDOR_AMD, 0, false);
    snprintf(ctx->caps.device_name, sizeof ctx->caps.device_name, "gfx942:sramecc+:xnack-");
    assert_string_equal(order(ctx), "source:"); /* not yet: it has not run on the hardware */
}

static void test_forced(void **state)
{
    llmk_context *ctx = ((fixture *)*state)->ctx;
    pretend(ctx, LLMK_VENDOR_NVIDIA, 90, false);
    force(ctx, "source");
    assert_string_equal(order(ctx), "source:");
    force(ctx, "native");
    assert_string_equal(order(ctx), "cubin:sm_90a cubin:sm_90 ptx:sm_90a ptx:sm_80");
    force(ctx, "ptx");
    assert_string_equal(order(ctx), "ptx:sm_90a ptx:sm_80");
    force(ctx, "spirv");
    assert_non_null(strstr(order(ctx), "the device takes no SPIR-V"));
    pretend(ctx, LLMK_VENDOR_POCL, 0, true);
    assert_string_equal(order(ctx), "spirv:");
    force(ctx, "native");
    assert_non_null(strstr(order(ctx), "no such image is made for this device"));
    pretend(ctx, LLMK_VENDOR_AMD, 0, false);
    snprintf(ctx->caps.device_name, sizeof ctx->caps.device_name, "gfx942:sramecc+:xnack-");
    assert_string_equal(order(ctx), "gfx942:");
    pretend(ctx, LLMK_VENDOR_NVIDIA, 90, false);
    static const size_t none = 0;
    const llmk_image_set empty = {all_files, &none};
    ctx->images = &empty;
    assert_non_null(strstr(order(ctx), "the library has no such image of it"));
}

static void test_words(void **state)
{
    (void)state;
    llmk_context *ctx = NULL;
    setenv("LLMK_IMAGE", "binary", 1);
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_INVALID_ARGUMENT);
    assert_non_null(strstr(llmk_error_message(), "expected source, spirv, native"));
    unsetenv("LLMK_IMAGE");
}

static void test_kernel_path(void **state)
{
    llmk_context *ctx = ((fixture *)*state)->ctx;
    pretend(ctx, LLMK_VENDOR_NVIDIA, 90, false);
    setenv("LLMK_KERNEL_PATH", "/nowhere", 1);
    force(ctx, NULL);
    assert_string_equal(order(ctx), "source:");
    force(ctx, "native");
    assert_non_null(strstr(order(ctx), "LLMK_KERNEL_PATH replaces"));
    unsetenv("LLMK_KERNEL_PATH");
}

/* A build without images has no zstd to find them damaged with. */
static void need_zstd(void)
{
#ifndef LLMK_HAVE_ZSTD
    skip();
#endif
}

/* Each of the damaged images gives way to the next with one line in the log; the source is left. */
static void test_damaged(void **state)
{
    fixture *f = *state;
    need_zstd();
    pretend(f->ctx, LLMK_VENDOR_NVIDIA, 90, true);
    f->lines = 0;
    llmk_program *program = NULL;
    assert_int_equal(llmk_program_get(f->ctx, PROBE, PROBE_DEFINE, NULL, &program), LLMK_OK);
    assert_string_equal(llmk_program_image(program), "source");
    assert_int_equal(f->lines, 5);
    assert_non_null(strstr(f->log[0], "cubin of sm_90a is not used, next is cubin"));
    assert_non_null(strstr(f->log[0], "damaged"));
    assert_non_null(strstr(f->log[4], "spirv is not used, next is source"));
}

/* Nothing is left after the damaged ones: the build fails, saying so. */
static void test_damaged_and_forced(void **state)
{
    fixture *f = *state;
    need_zstd();
    pretend(f->ctx, LLMK_VENDOR_NVIDIA, 90, false);
    force(f->ctx, "cubin");
    llmk_program *program = NULL;
    assert_int_equal(llmk_program_get(f->ctx, PROBE, PROBE_DEFINE, NULL, &program),
                     LLMK_BUILD_FAILED);
    assert_non_null(strstr(llmk_error_message(), "damaged"));
}

/* A frame whose content is not what its checksum says, and one that is cut off. */
static void test_damage_is_seen(void **state)
{
    fixture *f = *state;
    const llmk_embedded_file *file = NULL;
    for (size_t i = 0; i < *llmk_images.count && !file; i++)
        if (llmk_images.files[i].size > 64 && strcmp(llmk_images.files[i].name, "index") != 0)
            file = &llmk_images.files[i];
    if (!file)
        skip(); /* a build without images */
    unsigned char *bytes = malloc(file->size), *data = NULL;
    size_t size = 0;
    assert_non_null(bytes);
    memcpy(bytes, file->data, file->size);
    llmk_embedded_file copy = {file->name, bytes, file->size};
    const llmk_image image = {"cubin", "sm_80", &copy};
    assert_int_equal(llmk_image_unpack(&image, &data, &size), LLMK_OK);
    assert_true(size > 0);
    free(data);
    bytes[file->size - 1] ^= 1; /* the checksum comes last */
    assert_int_equal(llmk_image_unpack(&image, &data, &size), LLMK_CORRUPT_DATA);
    bytes[file->size - 1] ^= 1;
    copy.size = file->size / 2;
    assert_int_equal(llmk_image_unpack(&image, &data, &size), LLMK_CORRUPT_DATA);
    assert_non_null(strstr(llmk_error_message(), file->name));
    assert_null(data);
    free(bytes);
    (void)f;
}

/* Good images for another vendor's device: this driver refuses them, and the source is used. */
static void test_refused(void **state)
{
    fixture *f = *state;
    static const char *const of[] = {"common/probe-PROBE_FP16.sm_90.cubin",
                                     "common/probe-PROBE_FP16.sm_80.ptx"};
    llmk_embedded_file files[] = {ROW(".sm_90.cubin"), ROW(".sm_80.ptx")};
    size_t count = 0;
    for (size_t i = 0; i < *llmk_images.count; i++)
        for (size_t j = 0; j < LLMK_COUNT(of); j++)
            if (strcmp(llmk_images.files[i].name, of[j]) == 0) {
                files[j].data = llmk_images.files[i].data;
                files[j].size = llmk_images.files[i].size;
                count++;
            }
    if (count < LLMK_COUNT(of) || f->ctx->caps.vendor == LLMK_VENDOR_NVIDIA)
        skip(); /* a build without native images, or a driver that takes them */
    const llmk_image_set set = {files, &count};
    f->ctx->images = &set;
    pretend(f->ctx, LLMK_VENDOR_NVIDIA, 90, false);
    f->lines = 0;
    llmk_program *program = NULL;
    assert_int_equal(llmk_program_get(f->ctx, PROBE, PROBE_DEFINE, NULL, &program), LLMK_OK);
    assert_string_equal(llmk_program_image(program), "source");
    assert_int_equal(f->lines, 2);
    assert_non_null(strstr(f->log[0], "clCreateProgramWithBinary"));
    assert_non_null(strstr(f->log[1], "next is source"));
}

/* A zstd frame of raw blocks. */
static unsigned char *frame_of(const unsigned char *data, size_t size, size_t *frame_size)
{
    enum { HEAD = 13, BLOCK = 65536 };
    static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd, 0xe0}; /* 8 bytes of size next */
    unsigned char *frame = calloc(1, HEAD + size + (size / BLOCK + 1) * 3), *at = frame + HEAD;
    assert_non_null(frame);
    memcpy(frame, magic, sizeof magic);
    for (size_t i = 0; i < 8; i++)
        frame[sizeof magic + i] = (unsigned char)((uint64_t)size >> 8 * i);
    for (size_t i = 0; i < size;) {
        const size_t n = size - i < BLOCK ? size - i : BLOCK, head = n << 3 | (i + n == size);
        for (size_t j = 0; j < 3; j++)
            *at++ = (unsigned char)(head >> 8 * j);
        memcpy(at, data + i, n);
        at += n;
        i += n;
    }
    *frame_size = (size_t)(at - frame);
    return frame;
}

/* What this driver makes of a program with one kernel, which none of the library's is like. */
static llmk_embedded_file program_of(const llmk_context *ctx, const char *name, const char *kernel)
{
    char text[128];
    const char *source = text;
    snprintf(text, sizeof text, "kernel void %s(global int *p) { *p = 1; }", kernel);
    cl_int err;
    cl_program program = clCreateProgramWithSource(ctx->cl, 1, &source, NULL, &err);
    size_t size = 0, frame_size;
    assert_non_null(program);
    assert_int_equal(clBuildProgram(program, 1, &ctx->caps.device, "", NULL, NULL), CL_SUCCESS);
    clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL);
    assert_true(size > 0);
    unsigned char *binary = malloc(size);
    assert_non_null(binary);
    assert_int_equal(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL),
                     CL_SUCCESS);
    clReleaseProgram(program);
    const unsigned char *frame = frame_of(binary, size, &frame_size);
    free(binary);
    return (llmk_embedded_file){name, frame, frame_size};
}

/* A good image of another program: the driver takes it, but it has not the kernel. */
static void test_other_program(void **state)
{
    fixture *f = *state;
    need_zstd();
    const llmk_embedded_file file = program_of(f->ctx, "add/add_ref.sm_90.cubin", "other");
    const size_t one = 1;
    const llmk_image_set set = {&file, &one};
    f->ctx->images = &set;
    pretend(f->ctx, LLMK_VENDOR_NVIDIA, 90, false);
    f->lines = 0;
    llmk_program *program = NULL;
    llmk_kernel_object *kernel = NULL;
    assert_int_equal(llmk_program_get(f->ctx, "add/add_ref.cl", "", "add_ref", &program), LLMK_OK);
    assert_string_equal(llmk_program_image(program), "source");
    assert_int_equal(f->lines, 1);
    assert_non_null(strstr(f->log[0], "cubin of sm_90 is not used, next is source"));
    assert_non_null(strstr(f->log[0], "CL_INVALID_KERNEL_NAME"));
    assert_int_equal(llmk_program_acquire(f->ctx, program, "add_ref", &kernel), LLMK_OK);
    llmk_program_release(program, "add_ref", kernel);
    free((void *)(uintptr_t)file.data);
}

/* Where it is the only one, the program has not built. */
static void test_other_program_forced(void **state)
{
    fixture *f = *state;
    need_zstd();
    const llmk_embedded_file file = program_of(f->ctx, "add/add_ref.sm_90.cubin", "other");
    const size_t one = 1;
    const llmk_image_set set = {&file, &one};
    f->ctx->images = &set;
    pretend(f->ctx, LLMK_VENDOR_NVIDIA, 90, false);
    force(f->ctx, "cubin");
    llmk_program *program = NULL;
    for (int i = 0; i < 2; i++) { /* the second time, from memory */
        assert_int_equal(llmk_program_get(f->ctx, "add/add_ref.cl", "", "add_ref", &program),
                         LLMK_BUILD_FAILED);
        assert_non_null(strstr(llmk_error_message(), "add_ref.sm_90.cubin lacks a kernel"));
    }
    assert_null(program);
    free((void *)(uintptr_t)file.data);
}

/* An image with the first kernel that is asked for and without the second: the next image has it,
 * for the calls that follow, and what is out goes on. */
static void test_second_kernel(void **state)
{
    fixture *f = *state;
    static const char *const file = "quantize/quantize_portable.cl",
                             *const defines = "-DX=f32 -DQ=i8",
                             *const first = "quantize_tensor_range",
                             *const second = "quantize_tensor_codes";
    need_zstd();
    const llmk_embedded_file image =
        program_of(f->ctx, "quantize/quantize_portable-X.f32-Q.i8.sm_90.cubin", first);
    const size_t one = 1;
    const llmk_image_set set = {&image, &one};
    f->ctx->images = &set;
    pretend(f->ctx, LLMK_VENDOR_NVIDIA, 90, false);
    f->lines = 0;
    llmk_launch launch = {.ctx = f->ctx, .dry = true};
    llmk_kernel early = llmk_kernel_open(&launch, file, defines, first);
    assert_int_equal(early.status, LLMK_OK);
    assert_string_equal(llmk_program_image(early.program), "cubin");
    assert_int_equal(f->lines, 0);
    const char *const names[] = {second, first, second};
    for (size_t i = 0; i < LLMK_COUNT(names); i++) {
        llmk_kernel k = llmk_kernel_open(&launch, file, defines, names[i]);
        if (k.status != LLMK_OK)
            fail_msg("%s: %s", names[i], llmk_error_message());
        assert_string_equal(llmk_program_image(k.program), "source");
        assert_int_equal(llmk_kernel_enqueue(&k, (size_t[]){1, 1, 1}, (size_t[]){1, 1, 1}),
                         LLMK_OK);
    }
    assert_int_equal(f->lines, 1);
    assert_non_null(strstr(f->log[0], "cubin lacks a kernel"));
    assert_int_equal(llmk_kernel_enqueue(&early, (size_t[]){1, 1, 1}, (size_t[]){1, 1, 1}),
                     LLMK_OK);

    /* Where it is the only image, the second has not built, and the first is as good as ever. */
    llmk_context *ctx = f->ctx;
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.cache_dir = "off";
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    ctx->images = &set;
    pretend(ctx, LLMK_VENDOR_NVIDIA, 90, false);
    force(ctx, "cubin");
    launch.ctx = ctx;
    for (int i = 0; i < 2; i++) {
        llmk_kernel k = llmk_kernel_open(&launch, file, defines, first);
        assert_int_equal(llmk_kernel_enqueue(&k, (size_t[]){1, 1, 1}, (size_t[]){1, 1, 1}),
                         LLMK_OK);
        k = llmk_kernel_open(&launch, file, defines, second);
        assert_int_equal(k.status, LLMK_BUILD_FAILED);
        assert_non_null(strstr(llmk_error_message(), second));
    }
    llmk_context_free(ctx);
    free((void *)(uintptr_t)image.data);
}

static void test_gap(void **state)
{
    fixture *f = *state;
    llmk_image images[LLMK_MAX_IMAGES];
    size_t count = 0;
    assert_null(llmk_manifest_gap());
    assert_int_equal(
        llmk_images_of(f->ctx, "rmsnorm/rmsnorm_nv.cl", "-DX=f16 -DY=bf16", images, &count),
        LLMK_OK);
    assert_null(llmk_manifest_gap());
    f->lines = 0;
    assert_int_equal(llmk_images_of(f->ctx, "rmsnorm/rmsnorm_nv.cl", "-DX=f16", images, &count),
                     LLMK_OK);
    assert_string_equal(llmk_manifest_gap(), "rmsnorm/rmsnorm_nv.cl (-DX=f16)");
    assert_int_equal(f->lines, 1);
    assert_non_null(strstr(f->log[0], "manifest.txt"));
}

static void test_list(void **state)
{
    (void)state;
    size_t count = 0, got = 0;
    assert_int_equal(llmk_image_list(NULL, 0, NULL), LLMK_INVALID_ARGUMENT);
    assert_int_equal(llmk_image_list(NULL, 0, &count), LLMK_OK);
    assert_true(count > 0);
    llmk_image_info *images = calloc(count, sizeof *images);
    assert_non_null(images);
    assert_int_equal(llmk_image_list(images, count, &got), LLMK_INVALID_ARGUMENT);
    images[0].struct_size = sizeof *images;
    assert_int_equal(llmk_image_list(images, count, &got), LLMK_OK);
    assert_int_equal(got, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(images[i].bytes > 0 && images[i].unpacked_bytes > 0);
        assert_non_null(strstr(llmk_build_info(), images[i].kind));
    }
    free(images);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    unsetenv("LLMK_CACHE"); /* it would win over "off" */
    unsetenv("LLMK_IMAGE");
    unsetenv("LLMK_KERNEL_PATH");
    const struct CMUnitTest tests[] = {
        TEST(test_order),          TEST(test_forced),
        TEST(test_words),          TEST(test_kernel_path),
        TEST(test_damaged),        TEST(test_damaged_and_forced),
        TEST(test_damage_is_seen), TEST(test_refused),
        TEST(test_list),           TEST(test_gap),
        TEST(test_other_program),  TEST(test_other_program_forced),
        TEST(test_second_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
