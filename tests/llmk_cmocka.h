/* cmocka.h with what it needs before it; clang-format would sort them otherwise. */
#ifndef LLMK_TESTS_CMOCKA_H
#define LLMK_TESTS_CMOCKA_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#endif
