/* test_full_operators.c - as test_operators, with the cases that take longer. */
#define TIER CASE_FULL
#include "test_operators.c"
