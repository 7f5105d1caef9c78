/* test_full_faults.c - as test_faults, with every operator and no n left out. */
#define NEXT(n) ((n) + 1)
#define LINES                                                                                      \
    "rmsnorm h=24 r=f16 s=f16", "gated_activation d=24", "add cols=24",                            \
        "quantize scheme=int8-tensor n=3 k=24", "quantize scheme=int4-asymmetric n=3 k=24 g=8",    \
        "dequantize scheme=int8-channel n=3 k=24", "error_report n=3 k=24",                        \
        "linear m=2 n=8 k=32 w=q4_0", "gated_linear m=2 n=8 k=32", "add rows=0 cols=8"
#include "test_faults.c"
