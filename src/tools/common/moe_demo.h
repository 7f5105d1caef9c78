/* moe_demo.h - one mixture-of-experts layer of a model: checked against f64, timed kernel by
 * kernel.
 */
#ifndef LLMK_TOOLS_MOE_DEMO_H
#define LLMK_TOOLS_MOE_DEMO_H

#include <llmk/llmk.h>

typedef struct moe_demo_options {
    const char *preset;  /* of moe_models */
    uint64_t scale;      /* divides its experts and widths; at least 1 */
    uint64_t rows;       /* tokens */
    llmk_dtype dtype;    /* of activations: x and y */
    double seconds;      /* of timing; 0: none */
    bool checked;        /* else one expert's weights stand for all */
    char *const *fields; /* more of the case's line, "w=w4" */
    int field_count;
} moe_demo_options;

/* Prints what was found to stdout, a fault to stderr. Returns the program's exit status: 1 where
 * the layer is outside of its bound or cannot run, 2 where there is no such preset or field. */
int moe_demo(const moe_demo_options *opt);

#endif
