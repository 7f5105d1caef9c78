/* device.h - set-up and tear-down of a cmocka test: a context on the default device, and a queue.
 */
#ifndef LLMK_TESTS_DEVICE_H
#define LLMK_TESTS_DEVICE_H

#include "cases/case.h"
#include "core/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    llmk_context *ctx;
    cl_command_queue queue;
} fixture;

static inline int set_up(void **state)
{
    fixture *f = test_calloc(1, sizeof *f);
    assert_int_equal(llmk_context_create(NULL, &f->ctx), LLMK_OK);
    f->queue = case_queue_new(f->ctx);
    assert_non_null(f->queue);
    *state = f;
    return 0;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;
    clReleaseCommandQueue(f->queue);
    llmk_context_free(f->ctx);
    test_free(f);
    return 0;
}

/* Whether a test can force a variant here: those of one vendor on its devices, emulated matrix
 * units where local memory has room for the emulator. */
static inline bool can_force(const llmk_context *ctx, const char *variant)
{
    const bool nvidia = ctx->caps.vendor == LLMK_VENDOR_NVIDIA;
    return strstr(variant, ":emulated") ? !nvidia : nvidia || !strstr(variant, ":nv");
}

/* The same with a variant forced; false where it can not be. To be closed in either case. */
static inline bool open_fixture(fixture *f, const char *variant)
{
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.variant = variant;
    assert_int_equal(llmk_context_create(&options, &f->ctx), LLMK_OK);
    f->queue = case_queue_new(f->ctx);
    assert_non_null(f->queue);
    return can_force(f->ctx, variant);
}

static inline void close_fixture(fixture *f)
{
    clReleaseCommandQueue(f->queue);
    llmk_context_free(f->ctx);
}

#endif
