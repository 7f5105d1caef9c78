/* test_operators.c - every quick case of every operator (or of those named as arguments) on every
 * variant that the device supports. */
#include "cases/case_sweep.h"
#include "core/image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#ifndef TIER
#define TIER CASE_QUICK
#endif

#define MAX_OPERATORS 64

static void test_operator(void **state)
{
    const case_op *op = *state;
    const size_t failed = case_sweep(op, TIER, stdout);
    if (failed)
        fail_msg("%s: %zu failures", op->name, failed);
}

static struct CMUnitTest test_of(const case_op *op)
{
    return (struct CMUnitTest){op->name, test_operator, NULL, NULL, (void *)(uintptr_t)op};
}

int main(int argc, char **argv)
{
    struct CMUnitTest group[MAX_OPERATORS];
    size_t count = 0;
    unsetenv("LLMK_VARIANT"); /* it would win over the variants that the sweep forces */
    for (const case_op *const *op = case_ops; argc < 2 && *op && count < MAX_OPERATORS; op++)
        group[count++] = test_of(*op);
    for (int i = 1; i < argc && count < MAX_OPERATORS; i++) {
        const case_op *op = case_op_find(argv[i]);
        if (!op) {
            fprintf(stderr, "no operator \"%s\"\n", argv[i]);
            return 2;
        }
        group[count++] = test_of(op);
    }
    const int failed = _cmocka_run_group_tests("operators", group, count, NULL, NULL);
    if (llmk_manifest_gap()) { /* every program that a case asked for must have its images */
        fprintf(stderr, "not in cl/manifest.txt: %s\n", llmk_manifest_gap());
        return 1;
    }
    return failed;
}
