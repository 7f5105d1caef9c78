/* expert_weights.h - seeded weights of experts for cases, in any format that checkpoints have. */
#ifndef LLMK_EXPERT_WEIGHTS_H
#define LLMK_EXPERT_WEIGHTS_H

#include "cases/case.h"
#include "reference/linear_reference.h"

/* Index = llmk_format, linear_zeros, linear_order. */
extern const char *const expert_format_names[];
extern const char *const expert_zeros_names[];
extern const char *const expert_order_names[];

#define EXPERT_WEIGHTS_FIELDS                                                                      \
    {"w", CASE_ENUM, LLMK_FORMAT_F16, expert_format_names, "format of the experts' weights"},      \
        {"group", CASE_U64, 0, NULL, "group size of formats with scales; 0: all of a row"},        \
        {"bits", CASE_U64, 4, NULL, "4 or 8, of GPTQ and compressed-tensors"},                     \
        {"wscale", CASE_ENUM, LLMK_F16, case_float_names,                                          \
         "dtype of the scales of w4 and later formats"},                                           \
        {"zeros", CASE_ENUM, LINEAR_ZEROS, expert_zeros_names,                                     \
         "the zeros of w4 and later formats"},                                                     \
        {"order", CASE_ENUM, LINEAR_IN_ORDER, expert_order_names,                                  \
         "g_idx of GPTQ and compressed-tensors"},                                                  \
        {"split", CASE_U64, 0, NULL, "largest buffer of weights, in bytes"},                       \
        {"nv", CASE_FLAG, 0, NULL, "weights in the layouts of mma.sync"},                          \
    {                                                                                              \
        "array", CASE_FLAG, 0, NULL, "experts are described one by one"                            \
    }

/* W [experts, n, k]. Of runs made for timing there is one expert, which stands for all. */
typedef struct expert_weights {
    uint64_t experts, n, k;
    uint64_t made;        /* experts that there are */
    linear_weights first; /* sizes and options of each */
    linear_weights *each; /* [made] */
} expert_weights;

/* Sizes, by the line's fields, and the memory they take; refuses what the format cannot hold.
 * Before case_declared. */
bool expert_weights_describe(case_run *run, expert_weights *w, uint64_t experts, uint64_t n,
                             uint64_t k);
/* Fills them: uniform in [-scale, scale] where the format is one of floats or blocks. */
bool expert_weights_fill(case_run *run, expert_weights *w, uint32_t seed);
/* On the device; released with the run, bytes counted where `count`. */
bool expert_weights_create(case_run *run, const expert_weights *w, bool count,
                           const llmk_weights **out);

#endif
