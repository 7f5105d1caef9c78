/* case_ops.c - the operators that have cases. */
#include "cases/case.h"

/* One line an operator, which CMake reads too, for a test each. X(rmsnorm) stands for
 * `const case_op case_op_rmsnorm`, defined in rmsnorm_cases.c. */
/* clang-format off */
#define OPERATORS(X) \
    X(rmsnorm) \
    X(gated_activation) \
    X(add) \
    X(quantize) \
    X(dequantize) \
    X(error_report) \
    X(linear) \
    X(moe_route) \
    X(moe_permute) \
    X(moe_unpermute) \
    X(grouped_linear) \
    X(moe_forward) \
    X(gated_linear)
/* clang-format on */

#define DECLARE(name) extern const case_op case_op_##name;
#define ENTRY(name)   &case_op_##name,

OPERATORS(DECLARE)

const case_op *const case_ops[] = {OPERATORS(ENTRY) NULL};
