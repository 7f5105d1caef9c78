/* test_devices.c - a machine where one driver is broken: its devices are left out, by listing and
 * by choosing alike, and indices count what is listed.
 *
 * The linker replaces the functions of test_devices.wrap by those here. */
#include "core/core.h"
#include "llmk_cmocka.h"

#include <stdio.h>
#include <stdlib.h>

/* Devices that no driver has: `broken` of them before those of every platform. */
static int places[2];
static cl_uint broken;
static bool nothing_works, no_devices;
/* What every device answers to cl_khr_spirv_queries; NULL: what it is. */
static const char *const *spirv_extensions;
static size_t spirv_extension_count;

/* What every device and platform says its name and driver are; NULL: what they are. */
static const char *name;

static cl_device_id broken_device(cl_uint i)
{
    return (cl_device_id)(void *)&places[i];
}

cl_int __real_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint capacity,
                             cl_device_id *devices, cl_uint *count);
cl_int __wrap_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint capacity,
                             cl_device_id *devices, cl_uint *count);
cl_int __wrap_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint capacity,
                             cl_device_id *devices, cl_uint *count)
{
    if (no_devices)
        return CL_DEVICE_NOT_FOUND;
    for (cl_uint i = 0; devices && i < broken; i++)
        devices[i] = broken_device(i);
    const cl_int err =
        __real_clGetDeviceIDs(platform, type, capacity > broken ? capacity - broken : 0,
                              devices ? devices + broken : NULL, count);
    if (count)
        *count += broken;
    return err;
}

#ifndef CL_DEVICE_IL_VERSION
#define CL_DEVICE_IL_VERSION 0x105B
#endif
#define CL_DEVICE_SPIRV_EXTENSIONS 0x12BA

static cl_int answer(const void *from, size_t bytes, size_t size, void *value, size_t *size_out)
{
    if (size_out)
        *size_out = bytes;
    if (value && size < bytes)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, from, bytes);
    return CL_SUCCESS;
}

cl_int __real_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t size, void *value,
                              size_t *size_out);
cl_int __wrap_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t size, void *value,
                              size_t *size_out);
cl_int __wrap_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t size, void *value,
                              size_t *size_out)
{
    if (nothing_works || device == broken_device(0) || device == broken_device(1))
        return CL_INVALID_DEVICE;
    if (name && (what == CL_DEVICE_NAME || what == CL_DRIVER_VERSION))
        return answer(name, strlen(name) + 1, size, value, size_out);
    if (spirv_extensions && what == CL_DEVICE_EXTENSIONS)
        return answer("cl_khr_spirv_queries", sizeof "cl_khr_spirv_queries", size, value, size_out);
    if (spirv_extensions && what == CL_DEVICE_IL_VERSION)
        return answer("SPIR-V_1.2", sizeof "SPIR-V_1.2", size, value, size_out);
    if (spirv_extensions && what == CL_DEVICE_SPIRV_EXTENSIONS)
        return answer(spirv_extensions, spirv_extension_count * sizeof *spirv_extensions, size,
                      value, size_out);
    return __real_clGetDeviceInfo(device, what, size, value, size_out);
}

cl_int __real_clGetPlatformInfo(cl_platform_id platform, cl_platform_info what, size_t size,
                                void *value, size_t *size_out);
cl_int __wrap_clGetPlatformInfo(cl_platform_id platform, cl_platform_info what, size_t size,
                                void *value, size_t *size_out);
cl_int __wrap_clGetPlatformInfo(cl_platform_id platform, cl_platform_info what, size_t size,
                                void *value, size_t *size_out)
{
    return name && what == CL_PLATFORM_NAME
               ? answer(name, strlen(name) + 1, size, value, size_out)
               : __real_clGetPlatformInfo(platform, what, size, value, size_out);
}

#define MOST 64

static size_t list(llmk_device_info infos[MOST])
{
    size_t count = 0;
    infos[0].struct_size = sizeof infos[0];
    assert_int_equal(llmk_device_list(infos, MOST, &count), LLMK_OK);
    return count;
}

static void test_left_out(void **state)
{
    (void)state;
    static llmk_device_info healthy[MOST], infos[MOST];
    broken = 0;
    const size_t count = list(healthy);
    assert_in_range(count, 1, MOST);
    for (broken = 1; broken <= 2; broken++) {
        size_t alone = 0;
        assert_int_equal(llmk_device_list(NULL, 0, &alone), LLMK_OK);
        assert_int_equal(alone, count);
        assert_int_equal(list(infos), count);
        assert_memory_equal(infos, healthy, count * sizeof infos[0]);
        for (size_t i = 0; i < count; i++) {
            char index[24];
            snprintf(index, sizeof index, "%zu", i);
            setenv("LLMK_DEVICE", index, 1);
            llmk_context *ctx = NULL;
            assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OK);
            assert_ptr_equal(llmk_context_cl_device(ctx), infos[i].device_id);
            llmk_context_free(ctx);
        }
        unsetenv("LLMK_DEVICE");
    }
    broken = 0;
}

static unsigned left_out_lines;

static void on_log(void *user, llmk_log_level level, const char *message)
{
    (void)user;
    left_out_lines += level == LLMK_LOG_WARN && strstr(message, "is left out: ") != NULL;
}

static void test_said(void **state)
{
    (void)state;
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.log = on_log;
    llmk_context *ctx = NULL;
    broken = 1;
    left_out_lines = 0;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    llmk_context_free(ctx);
    broken = 0;
    assert_true(left_out_lines >= 1); /* one a platform */
}

/* Nothing but broken ones is no machine without devices. */
static void test_nothing_works(void **state)
{
    (void)state;
    size_t count = 99;
    llmk_context *ctx = NULL;
    nothing_works = true;
    assert_int_equal(llmk_device_list(NULL, 0, &count), LLMK_OPENCL_ERROR);
    assert_non_null(strstr(llmk_error_message(), "clGetDeviceInfo"));
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_OPENCL_ERROR);
    nothing_works = false;
    assert_int_equal(llmk_device_list(NULL, 0, &count), LLMK_OK);
    assert_true(count >= 1);
}

/* A driver that is installed need not be, once more. */
static void test_no_devices(void **state)
{
    (void)state;
    size_t count = 99;
    llmk_context *ctx = NULL;
    no_devices = true;
    name = "A platform";
    assert_int_equal(llmk_context_create(NULL, &ctx), LLMK_NO_DEVICE);
    name = NULL;
    assert_non_null(strstr(llmk_error_message(), "\"A platform\" is there and has none"));
    assert_null(strstr(llmk_error_message(), "install"));
    assert_int_equal(llmk_device_list(NULL, 0, &count), LLMK_OK);
    assert_int_equal(count, 0);
    no_devices = false;
}

static bool says_coopmat(const char *const *names, size_t count)
{
    llmk_device_info infos[MOST];
    llmk_caps caps;
    assert_true(list(infos) >= 1);
    spirv_extensions = names;
    spirv_extension_count = count;
    assert_int_equal(llmk_caps_read(infos[0].device_id, &caps), LLMK_OK);
    spirv_extensions = NULL;
    const bool found = caps.cooperative_matrix;
    llmk_caps_release(&caps);
    return found;
}

static void test_spirv_extensions(void **state)
{
    (void)state;
    static const char *const names[] = {"SPV_KHR_expect_assume", "SPV_KHR_cooperative_matrix",
                                        "SPV_KHR_linkonce_odr"};
    static const char *const others[] = {"SPV_KHR_cooperative_matrix_not", NULL};
    assert_false(says_coopmat(NULL, 0));
    assert_false(says_coopmat(names, 0));
    assert_false(says_coopmat(names, 1));
    assert_true(says_coopmat(names, 2));
    assert_true(says_coopmat(names, 3));
    assert_false(says_coopmat(others, 2));
}

/* As much of it as there is room for, and no part of a character, however long it is. */
static void test_long_names(void **state)
{
    (void)state;
    static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t c = 0; c < LLMK_COUNT(characters); c++)
        for (size_t before = 0; before < 4; before++) {
            llmk_device_info infos[MOST];
            char text[4096] = "";
            const size_t width = strlen(characters[c]), room = sizeof infos[0].name - 1;
            for (size_t i = 0; i < before; i++)
                text[i] = 'x';
            for (size_t n = before; n + width < sizeof text; n += width)
                memcpy(text + n, characters[c], width + 1);
            name = text;
            const size_t count = list(infos);
            name = NULL;
            assert_true(count >= 1);
            const size_t kept = before + (room - before) / width * width;
            const char *const names[] = {infos[0].name, infos[0].platform, infos[0].driver};
            for (size_t i = 0; i < LLMK_COUNT(names); i++) {
                assert_int_equal(strlen(names[i]), kept);
                assert_memory_equal(names[i], text, kept);
            }
        }
    name = "caf\xe9"; /* not UTF-8, and not cut */
    llmk_device_info infos[MOST];
    assert_true(list(infos) >= 1);
    assert_string_equal(infos[0].name, name);
    name = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_out),         cmocka_unit_test(test_said),
        cmocka_unit_test(test_nothing_works),    cmocka_unit_test(test_no_devices),
        cmocka_unit_test(test_spirv_extensions), cmocka_unit_test(test_long_names),
    };
    unsetenv("LLMK_DEVICE");
    unsetenv("LLMK_LOG");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
