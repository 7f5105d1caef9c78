/* child_call.h - what the children of environment tests do: make a context, or a whole call, and
 * print what came of it. The exit code is the status. */
#ifndef LLMK_TESTS_CHILD_CALL_H
#define LLMK_TESTS_CHILD_CALL_H

#include "support/calls.h"
#include "support/child.h"

static inline const char *child_chosen_variant(llmk_context *ctx, case_run *run, const case_op *op)
{
    llmk_variant_info infos[64];
    size_t count = 0;
    llmk_explain(ctx, op->op, case_run_args(run, 0), infos, LLMK_COUNT(infos), &count);
    for (size_t i = 0; i < count && i < 32; i++)
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN)
            return infos[i].name;
    return "none";
}

static inline int child_call(llmk_context *ctx, const char *text)
{
    char sentence[CALL_TEXT];
    const llmk_status status = call_and_check(ctx, text, sentence);
    printf("%s %s\n", llmk_status_string(status), sentence);
    case_line line;
    cl_command_queue queue = case_queue_new(ctx);
    case_run *run = call_case(ctx, queue, text, sentence, sizeof sentence);
    if (run && case_parse(text, &line, sentence, sizeof sentence))
        printf("variant %s\n", child_chosen_variant(ctx, run, line.op));
    case_run_free(run);
    clReleaseCommandQueue(queue);
    return (int)status;
}

/* Modes: "create"; "call LINE"; "list". */
static inline int child_main(const char *mode, const char *argument)
{
    llmk_context *ctx = NULL;
    size_t count = 99;
    if (strcmp(mode, "list") == 0) {
        const llmk_status status = llmk_device_list(NULL, 0, &count);
        printf("%s count %zu\n", llmk_status_string(status), count);
        return (int)status;
    }
    llmk_status status = llmk_context_create(NULL, &ctx);
    if (status != LLMK_OK || strcmp(mode, "call") != 0)
        printf("%s %s\n", llmk_status_string(status),
               status == LLMK_OK ? "created" : llmk_error_message());
    else
        status = (llmk_status)child_call(ctx, argument);
    llmk_context_free(ctx);
    return (int)status;
}

#define CHILD_IS_ONE(argc, argv) ((argc) == 4 && strcmp((argv)[1], CHILD_OPTION) == 0)

#endif
