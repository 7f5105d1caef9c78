/*
 * quant.h - what quantize, dequantize and their host functions share: the schemes' arguments. The
 * formulas are in cl/common/quant.clh and quantize_host.c.
 */
#ifndef LLMK_QUANT_H
#define LLMK_QUANT_H

#include "ops/operator.h"

/* Work-groups of the kernels that reduce a tensor in stages, at most. */
#define LLMK_PARTIALS 1024u

typedef struct llmk_quant_problem {
    llmk_quant_scheme scheme;
    uint64_t group_size; /* 1 ... columns; groups of a row: */
    uint64_t row_groups;
    llmk_view x; /* the values: x of quantize, y of dequantize */
    llmk_view q, scale, zero;
    llmk_workspace *workspace;
} llmk_quant_problem;

static inline bool llmk_quant_is_int4(llmk_quant_scheme scheme)
{
    return scheme == LLMK_QUANT_INT4_SYMMETRIC || scheme == LLMK_QUANT_INT4_ASYMMETRIC;
}

/* Checks a scheme and a group size for rows of k columns and gives the group size in elements, 1 or
 * more. `who` begins the error text. */
llmk_status llmk_quant_geometry(const char *who, llmk_quant_scheme scheme, uint64_t k,
                                uint64_t group_size, uint64_t *elements, uint64_t *row_groups);

/* Fills all of `p` but the workspace. `x_name` is "x" or "y"; the codes have the other role than
 * `x_role`. Ends the check. */
llmk_status llmk_check_quant(llmk_checker *c, const char *x_name, const llmk_tensor *x,
                             llmk_role x_role, const llmk_tensor *q, const llmk_tensor *scale,
                             const llmk_tensor *zero, llmk_quant_scheme scheme, uint64_t group_size,
                             llmk_quant_problem *p);

/* Codes and values can be moved 8 at a time. */
bool llmk_quant_wide(const llmk_quant_problem *p);
/* No 8 elements from a multiple of 8 on belong to two groups. */
static inline bool llmk_quant_one_scale(const llmk_quant_problem *p)
{
    return p->row_groups == 1 || p->group_size % 8 == 0;
}
/* Why the portable kernels do not serve `p`, if they do not. */
bool llmk_quant_portable_supports(llmk_context *ctx, const void *problem, llmk_reason *why);

/* Work-items of a group for kernels without a size of their own: a power of two, the same for all
 * on a CPU, where every new size is compiled anew. */
static inline size_t llmk_quant_local(const llmk_context *ctx)
{
    size_t local = llmk_is_cpu(&ctx->caps) ? 64 : 256;
    while (local > ctx->caps.max_work_group)
        local /= 2;
    return local;
}

/* Work-groups of a stage over `chunks` chunks of 8, an item each or more. */
static inline uint32_t llmk_quant_stage_groups(const llmk_context *ctx, uint64_t chunks)
{
    const uint64_t local = llmk_quant_local(ctx), most = 8 * (uint64_t)ctx->caps.compute_units;
    uint64_t groups = (chunks + local - 1) / local;
    if (groups > most)
        groups = most;
    return groups < 1 ? 1 : groups > LLMK_PARTIALS ? LLMK_PARTIALS : (uint32_t)groups;
}

/* Self-tests: rows of COLS elements, PITCH apart, so that full and short chunks are tried. */
enum {
    LLMK_QUANT_TEST_ROWS = 5,
    LLMK_QUANT_TEST_COLS = 202,
    LLMK_QUANT_TEST_PITCH = 208,
    LLMK_QUANT_TEST_COUNT = LLMK_QUANT_TEST_ROWS * LLMK_QUANT_TEST_COLS
};

#endif
