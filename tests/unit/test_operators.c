/* test_operators.c - every quick case of every operator (or of those named as arguments) on every
 * variant that the device supports ("rmsnorm:subgroup": on that one; "linear:emulated"). Where some
 * selection ran no case at all, the exit code is 77, skipped. */
#include "cases/case_sweep.h"
#include "core/image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef TIER
#define TIER CASE_QUICK
#endif

#define MAX_OPERATORS 64

typedef struct selection {
    const case_op *op;
    const char *variant; /* NULL: all */
} selection;

static selection selections[MAX_OPERATORS];
static size_t nothing_ran; /* selections without a case that ran */

static void test_operator(void **state)
{
    const selection *s = *state;
    size_t run;
    const size_t failed = case_sweep(s->op, s->variant, TIER, stdout, &run);
    if (failed)
        fail_msg("%s: %zu failures", s->op->name, failed);
    if (run == 0) { /* a variant that this device has not */
        nothing_ran++;
        skip();
    }
}

static selection find(char *argument)
{
    char *colon = strchr(argument, ':');
    if (colon)
        *colon = '\0';
    return (selection){case_op_find(argument), colon ? colon + 1 : NULL};
}

int main(int argc, char **argv)
{
    struct CMUnitTest group[MAX_OPERATORS];
    size_t count = 0;
    unsetenv("LLMK_VARIANT"); /* it would win over the variants that the sweep forces */
    for (const case_op *const *op = case_ops; argc < 2 && *op && count < MAX_OPERATORS; op++)
        selections[count++] = (selection){*op, NULL};
    for (int i = 1; i < argc && count < MAX_OPERATORS; i++) {
        selections[count] = find(argv[i]);
        if (!selections[count++].op) {
            fprintf(stderr, "no operator \"%s\"\n", argv[i]);
            return 2;
        }
    }
    for (size_t i = 0; i < count; i++)
        group[i] =
            (struct CMUnitTest){selections[i].op->name, test_operator, NULL, NULL, &selections[i]};
    const int failed = _cmocka_run_group_tests("operators", group, count, NULL, NULL);
    if (llmk_manifest_gap()) { /* every program that a case asked for must have its images */
        fprintf(stderr, "not in cl/manifest.txt: %s\n", llmk_manifest_gap());
        return 1;
    }
    return failed || nothing_ran == 0 ? failed : 77;
}
