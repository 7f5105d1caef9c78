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
static bool nothing_works;

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
    for (cl_uint i = 0; devices && i < broken; i++)
        devices[i] = broken_device(i);
    const cl_int err =
        __real_clGetDeviceIDs(platform, type, capacity > broken ? capacity - broken : 0,
                              devices ? devices + broken : NULL, count);
    if (count)
        *count += broken;
    return err;
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
    return __real_clGetDeviceInfo(device, what, size, value, size_out);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_said),
        cmocka_unit_test(test_nothing_works),
    };
    unsetenv("LLMK_DEVICE");
    unsetenv("LLMK_LOG");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
