/* linear.h - what the files of the linear layer share. */
#ifndef LLMK_LINEAR_H
#define LLMK_LINEAR_H

#include "core/weights.h"
#include "ops/operator.h"

/* The other half of a gated pair of products: output f is made of rows f * step of the weights and
 * up_first + f * step of up's. */
typedef struct linear_gate {
    const llmk_weights *up; /* the gate's own where both are in one object */
    uint64_t outputs;
    uint32_t step, up_first;
    llmk_view up_bias;
    llmk_activation activation;
    float limit, alpha;
} linear_gate;

typedef struct linear_problem {
    const llmk_weights *weights;
    llmk_view x, bias, residual, y;
    bool batch_invariant;      /* only variants that sum alike for every number of rows */
    const linear_gate *gate;   /* llmk_gated_linear; else NULL */
    bool w8a8;                 /* x is quantised, into the workspace */
    llmk_workspace *workspace; /* of codes of x, or of tiles' parts (linear_split.h), or NULL */
} linear_problem;

/* A kernel, the block of outputs that a work-group computes, and its items. */
typedef struct linear_recipe {
    const char *file, *defines, *kernel;
    uint64_t rows, columns; /* of y, in a work-group */
    size_t local[3];
    uint32_t groups; /* work-groups in all, which share the blocks; 0: one for each */
    bool has_codes;  /* W8A8_PARAMETERS after the common ones */
    bool has_last;
    uint32_t last;  /* the last argument */
    bool has_split; /* SPLIT_PARAMETERS after all others (linear_split.h) */
    uint32_t whole, per;
} linear_recipe;

/* "-DX=f16 -DW=u4", in `text`. */
const char *llmk_linear_defines(llmk_dtype x, llmk_layout layout, char text[32]);
/* What a kernel sees of weights: layout, scales, whether there are zeros and an order. */
void llmk_linear_weights_key(const llmk_weights *w, char *text, size_t size);
/* How kernels may read x (X_STRIDED ... of cl/linear/linear_common.clh), and log2 of a power of
 * two, else 32. */
uint32_t llmk_linear_access(const llmk_weights *w, const llmk_view *x);
uint32_t llmk_linear_shift(uint32_t v);

/* The weights along K that a kernel on mma.sync applies one scale to, in units of 32; 0: a row of
 * W. And whether x is other than rows of one stride, of whole vectors and a multiple of `step`
 * elements in W's order. (linear_stream.c) */
uint32_t llmk_linear_span(const llmk_weights *w);
bool llmk_linear_gathers(const llmk_weights *w, const llmk_view *x, uint32_t step);
/* Whether nv-stream has its work-groups of all sizes for this call, or those of eight warps alone.
 */
bool llmk_linear_stream_has_sizes(const linear_problem *p);
/* And for more than eight rows of x its work-groups of 112 columns, and the configuration that asks
 * for them. */
bool llmk_linear_stream_may_be_wide(const llmk_context *ctx, const linear_problem *p, bool emulated,
                                    llmk_reason *why);
#define LLMK_STREAM_WIDE 3

/* Enqueues the kernel for a segment of the weights, and for all of them. */
llmk_status llmk_linear_run_segment(llmk_launch *launch, const linear_problem *p,
                                    const linear_recipe *r, const llmk_segment *segment);
llmk_status llmk_linear_run(llmk_launch *launch, const linear_problem *p, const linear_recipe *r);

/* Whether one kernel can compute both of a gated pair: it sees one of them and the other's buffers.
 * `why`: what `up` has that the gate's weights have not. */
bool llmk_linear_goes_with(const llmk_weights *gate, const llmk_weights *up, llmk_reason *why);

/* Whether the call takes a variant that is for some numbers of rows only. */
bool llmk_linear_may_vary(const linear_problem *p, llmk_reason *why);

/* Whether this is a device for the kernels on wgmma, and their images are there. */
bool llmk_linear_has_wgmma(llmk_context *ctx, llmk_reason *why);

/* Whether x is multiplied as it is. What reads weights of 8 bits and does not quantise x asks. */
bool llmk_linear_is_plain(const linear_problem *p, llmk_reason *why);

/* Whether the weights are f16 or bf16, and x too. */
bool llmk_linear_is_half(const linear_problem *p, llmk_reason *why);

/* ---- Matrix units (linear_tiled.c): rows of the table of variants ---- */

#define LLMK_LINEAR_DECLARE(id)                                                                    \
    bool llmk_linear_##id##_supports(llmk_context *ctx, const void *problem, llmk_reason *why);    \
    llmk_status llmk_linear_##id##_launch(llmk_launch *launch, const void *problem)
#define LLMK_LINEAR_ROW(name, id)                                                                  \
    {                                                                                              \
        name, llmk_linear_##id##_supports, llmk_linear_##id##_launch                               \
    }

LLMK_LINEAR_DECLARE(nv90); /* linear_nv90.c */
/* Whether its kernel of tall tiles can serve: that has boxes, and ends with vectors, alone. */
bool llmk_linear_nv90_is_even(const linear_problem *p);
/* Whether its tiles that do not fill a round may be shared along K, and the configuration that asks
 * for it. */
bool llmk_linear_nv90_may_share(const llmk_context *ctx, const linear_problem *p);
#define LLMK_NV90_SHARED 3
LLMK_LINEAR_DECLARE(nv90_few); /* linear_nv90_few.c */
LLMK_LINEAR_DECLARE(nv_wide);
LLMK_LINEAR_DECLARE(nv);
LLMK_LINEAR_DECLARE(amd_wide);
LLMK_LINEAR_DECLARE(amd);
LLMK_LINEAR_DECLARE(emulated_nv);
LLMK_LINEAR_DECLARE(emulated_nv_wide);
LLMK_LINEAR_DECLARE(emulated_amd);
LLMK_LINEAR_DECLARE(emulated_amd_wide);

/* And for few rows of x (linear_stream.c). */
LLMK_LINEAR_DECLARE(nv_stream);
LLMK_LINEAR_DECLARE(emulated_nv_stream);
LLMK_LINEAR_DECLARE(nv_dot);
LLMK_LINEAR_DECLARE(emulated_nv_dot);
LLMK_LINEAR_DECLARE(nv_rows);
LLMK_LINEAR_DECLARE(emulated_nv_rows);

/* And for more of them, with weights of 4 or 8 bits (linear_packed.c). */
LLMK_LINEAR_DECLARE(nv_packed);
LLMK_LINEAR_DECLARE(emulated_nv_packed);
/* Whether groups are short, or have minimums: then tiles of 32 rows are the only ones. */
bool llmk_linear_packed_is_short(const llmk_weights *w);
/* Whether there is a tile of so many rows and columns for plain rows of x, and it takes x, and the
 * weights. */
bool llmk_linear_packed_takes_tile(const linear_problem *p, uint32_t rows, uint32_t columns);
LLMK_LINEAR_DECLARE(nv90_packed); /* linear_nv90_packed.c */

/* And with x quantised (linear_w8a8.c). */
LLMK_LINEAR_DECLARE(nv90_w8a8);
LLMK_LINEAR_DECLARE(nv_w8a8_wide);
LLMK_LINEAR_DECLARE(nv_w8a8);
LLMK_LINEAR_DECLARE(emulated_nv_w8a8_wide);
LLMK_LINEAR_DECLARE(emulated_nv_w8a8);
LLMK_LINEAR_DECLARE(amd_w8a8_wide); /* linear_tiled.c */
LLMK_LINEAR_DECLARE(amd_w8a8);
LLMK_LINEAR_DECLARE(emulated_amd_w8a8);
llmk_status llmk_linear_w8a8_ref_launch(llmk_launch *launch, const linear_problem *p);
llmk_status llmk_linear_w8a8_portable_launch(llmk_launch *launch, const linear_problem *p);
llmk_status llmk_linear_w8a8_self_test(llmk_trial *t, const linear_problem *like);
/* x to the workspace, its codes in an order of linear_w8a8.clh. */
typedef enum linear_code_order {
    LINEAR_CODES_PLAIN,
    LINEAR_CODES_NV,  /* of mma.sync */
    LINEAR_CODES_NV90 /* of wgmma */
} linear_code_order;
llmk_status llmk_linear_w8a8_quantise(llmk_launch *launch, const linear_problem *p,
                                      linear_code_order order);
/* That the weights are such as LLMK_LINEAR_W8A8 takes; the workspace it needs. */
void llmk_linear_w8a8_check(llmk_checker *c, const llmk_weights *w);
uint64_t llmk_linear_w8a8_bytes(uint64_t m, uint64_t k);
bool llmk_linear_w8a8_may_pair(const linear_problem *p); /* on wgmma */
/* The arguments in the order of W8A8_PARAMETERS. */
void llmk_linear_w8a8_arguments(llmk_kernel *k, const linear_problem *p);

/* And on SPIR-V's cooperative matrices (linear_coopmat.c). */
LLMK_LINEAR_DECLARE(coopmat);
LLMK_LINEAR_DECLARE(emulated_coopmat);

#define LLMK_LINEAR_TILED_VARIANTS                                                                 \
    LLMK_LINEAR_ROW("nv90", nv90), LLMK_LINEAR_ROW("nv-wide", nv_wide), LLMK_LINEAR_ROW("nv", nv), \
        LLMK_LINEAR_ROW("amd-wide", amd_wide), LLMK_LINEAR_ROW("amd", amd)

/* For tests: never chosen, only forced. */
#define LLMK_LINEAR_EMULATED_VARIANTS                                                              \
    LLMK_LINEAR_ROW("emulated-nv-wide", emulated_nv_wide),                                         \
        LLMK_LINEAR_ROW("emulated-nv", emulated_nv),                                               \
        LLMK_LINEAR_ROW("emulated-amd", emulated_amd),                                             \
        LLMK_LINEAR_ROW("emulated-amd-wide", emulated_amd_wide),                                   \
        LLMK_LINEAR_ROW("emulated-coopmat", emulated_coopmat),                                     \
        LLMK_LINEAR_ROW("emulated-nv-stream", emulated_nv_stream),                                 \
        LLMK_LINEAR_ROW("emulated-nv-dot", emulated_nv_dot),                                       \
        LLMK_LINEAR_ROW("emulated-nv-rows", emulated_nv_rows),                                     \
        LLMK_LINEAR_ROW("emulated-nv-packed", emulated_nv_packed),                                 \
        LLMK_LINEAR_ROW("emulated-nv-w8a8-wide", emulated_nv_w8a8_wide),                           \
        LLMK_LINEAR_ROW("emulated-nv-w8a8", emulated_nv_w8a8),                                     \
        LLMK_LINEAR_ROW("emulated-amd-w8a8", emulated_amd_w8a8)

#endif
