/* calls.h - one case, run and checked, for tests of what surrounds the operators. */
#ifndef LLMK_TESTS_CALLS_H
#define LLMK_TESTS_CALLS_H

#include "cases/case.h"

#include <stdio.h>

#define CALL_TEXT 8192

/* A case ("add cols=24 rows=3") on a context; NULL, with a sentence, where it cannot be made. */
static inline case_run *call_case(llmk_context *ctx, cl_command_queue queue, const char *text,
                                  char *error, size_t size)
{
    case_line line;
    if (!case_parse(text, &line, error, size))
        return NULL;
    return case_run_new(ctx, queue, &line, 1, false, error, size);
}

/* Calls the operator and checks what it gives. LLMK_INTERNAL where a result is wrong; the sentence
 * to `text`. */
static inline llmk_status call_and_check(llmk_context *ctx, const char *line, char text[CALL_TEXT])
{
    cl_command_queue queue = case_queue_new(ctx);
    case_run *run = queue ? call_case(ctx, queue, line, text, CALL_TEXT) : NULL;
    llmk_status status = LLMK_INTERNAL;
    if (run && (status = case_run_enqueue(run, 0, NULL)) != LLMK_OK) {
        snprintf(text, CALL_TEXT, "%s", llmk_error_message());
    } else if (run) {
        const case_result result = case_run_check(run);
        snprintf(text, CALL_TEXT, "%s", result.message);
        status = result.ok ? LLMK_OK : LLMK_INTERNAL;
    }
    case_run_free(run);
    if (queue)
        clReleaseCommandQueue(queue);
    return status;
}

#endif
