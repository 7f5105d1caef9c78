/* device.h - set-up and tear-down of a cmocka test: a context on the default device, and a queue.
 */
#ifndef LLMK_TESTS_DEVICE_H
#define LLMK_TESTS_DEVICE_H

#include "cases/case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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

#endif
