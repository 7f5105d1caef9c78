/* status.c - status names and the error text of each thread. */
#include "core/core.h"

/* Long enough for the head of a driver's build log, where its first errors are. */
#define MESSAGE_SIZE 8192

static _Thread_local char message[MESSAGE_SIZE];

const char *llmk_error_message(void)
{
    return message;
}

llmk_status llmk_fail(llmk_status status, const char *fmt, ...)
{
    char text[MESSAGE_SIZE]; /* the arguments may point into `message` */
    va_list args;
    va_start(args, fmt);
    llmk_vprint(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(message, text, sizeof text);
    return status;
}

llmk_status llmk_fail_prefix(llmk_status status, const char *fmt, ...)
{
    char prefix[512];
    va_list args;
    va_start(args, fmt);
    llmk_vprint(prefix, sizeof prefix, fmt, args);
    va_end(args);
    return llmk_fail(status, "%s: %s", prefix, message);
}

llmk_status llmk_fail_cl(llmk_context *ctx, cl_int code, const char *call)
{
    /* NVIDIA's driver gives -9999 for a fault in a kernel; nothing works in that context again. */
    const bool lost = code == CL_DEVICE_NOT_AVAILABLE || code == -9999;
    if (lost && ctx)
        atomic_store(&ctx->lost, true);
    llmk_status status = LLMK_OPENCL_ERROR;
    if (lost)
        status = LLMK_DEVICE_LOST;
    else if (code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_INVALID_BUFFER_SIZE)
        status = LLMK_OUT_OF_DEVICE_MEMORY;
    else if (code == CL_OUT_OF_HOST_MEMORY)
        status = LLMK_OUT_OF_MEMORY;
    return llmk_fail(status, "%s failed: %s (%d)", call, llmk_cl_error_name(code), (int)code);
}

const char *llmk_status_string(llmk_status status)
{
#define NAME(s)                                                                                    \
    case s:                                                                                        \
        return #s
    switch (status) {
        NAME(LLMK_OK);
        NAME(LLMK_INVALID_ARGUMENT);
        NAME(LLMK_INVALID_SHAPE);
        NAME(LLMK_INVALID_DTYPE);
        NAME(LLMK_INVALID_STRIDE);
        NAME(LLMK_BUFFER_TOO_SMALL);
        NAME(LLMK_OVERLAP);
        NAME(LLMK_INVALID_QUEUE);
        NAME(LLMK_INVALID_BUFFER);
        NAME(LLMK_BUSY);
        NAME(LLMK_UNSUPPORTED);
        NAME(LLMK_NO_DEVICE);
        NAME(LLMK_NO_VARIANT);
        NAME(LLMK_BUILD_FAILED);
        NAME(LLMK_SELFTEST_FAILED);
        NAME(LLMK_OUT_OF_MEMORY);
        NAME(LLMK_OUT_OF_DEVICE_MEMORY);
        NAME(LLMK_DEVICE_LOST);
        NAME(LLMK_OPENCL_ERROR);
        NAME(LLMK_IO_ERROR);
        NAME(LLMK_CORRUPT_DATA);
        NAME(LLMK_INTERNAL);
    }
    return "LLMK_UNKNOWN_STATUS";
}

const char *llmk_cl_error_name(cl_int code)
{
    switch (code) {
        NAME(CL_SUCCESS);
        NAME(CL_DEVICE_NOT_FOUND);
        NAME(CL_DEVICE_NOT_AVAILABLE);
        NAME(CL_COMPILER_NOT_AVAILABLE);
        NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE);
        NAME(CL_OUT_OF_RESOURCES);
        NAME(CL_OUT_OF_HOST_MEMORY);
        NAME(CL_PROFILING_INFO_NOT_AVAILABLE);
        NAME(CL_MEM_COPY_OVERLAP);
        NAME(CL_BUILD_PROGRAM_FAILURE);
        NAME(CL_MAP_FAILURE);
        NAME(CL_MISALIGNED_SUB_BUFFER_OFFSET);
        NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
        NAME(CL_INVALID_VALUE);
        NAME(CL_INVALID_DEVICE_TYPE);
        NAME(CL_INVALID_PLATFORM);
        NAME(CL_INVALID_DEVICE);
        NAME(CL_INVALID_CONTEXT);
        NAME(CL_INVALID_QUEUE_PROPERTIES);
        NAME(CL_INVALID_COMMAND_QUEUE);
        NAME(CL_INVALID_HOST_PTR);
        NAME(CL_INVALID_MEM_OBJECT);
        NAME(CL_INVALID_BINARY);
        NAME(CL_INVALID_BUILD_OPTIONS);
        NAME(CL_INVALID_PROGRAM);
        NAME(CL_INVALID_PROGRAM_EXECUTABLE);
        NAME(CL_INVALID_KERNEL_NAME);
        NAME(CL_INVALID_KERNEL_DEFINITION);
        NAME(CL_INVALID_KERNEL);
        NAME(CL_INVALID_ARG_INDEX);
        NAME(CL_INVALID_ARG_VALUE);
        NAME(CL_INVALID_ARG_SIZE);
        NAME(CL_INVALID_KERNEL_ARGS);
        NAME(CL_INVALID_WORK_DIMENSION);
        NAME(CL_INVALID_WORK_GROUP_SIZE);
        NAME(CL_INVALID_WORK_ITEM_SIZE);
        NAME(CL_INVALID_GLOBAL_OFFSET);
        NAME(CL_INVALID_EVENT_WAIT_LIST);
        NAME(CL_INVALID_EVENT);
        NAME(CL_INVALID_OPERATION);
        NAME(CL_INVALID_BUFFER_SIZE);
        NAME(CL_INVALID_GLOBAL_WORK_SIZE);
        NAME(CL_INVALID_PROPERTY);
    case -1001:
        return "no OpenCL platform is installed";
    case -9999:
        return "the driver reports a fault in a kernel";
    default:
        return "unknown OpenCL error";
    }
#undef NAME
}

bool llmk_no(llmk_reason *why, const char *fmt, ...)
{
    va_list args;
    if (!why)
        return false;
    va_start(args, fmt);
    llmk_vprint(why->text, sizeof why->text, fmt, args);
    va_end(args);
    return false;
}
