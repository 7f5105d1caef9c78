/* moe_models.h - mixture-of-experts layers of models by name, for cases, benchmark and demo. */
#ifndef LLMK_MOE_MODELS_H
#define LLMK_MOE_MODELS_H

#include <llmk/llmk.h>

typedef struct moe_model {
    const char *name;
    uint64_t experts, k, hidden, width; /* E, experts a token, H, F */
    llmk_moe_score score;
    bool renormalize;
    bool correction, router_bias, expert_bias;
    uint64_t groups, top_groups;
    double scale;
    uint64_t shared_width; /* 0: no shared expert */
    bool shared_router;
    llmk_activation activation;
    llmk_gate_layout layout;
} moe_model;

/* Index 0 is a small layer of no model, "none". NULL-terminated names, as a CASE_ENUM's. */
extern const moe_model moe_models[];
extern const char *const moe_model_names[];
/* NULL where there is none. */
const moe_model *moe_model_find(const char *name);
/* The model with E, H and F (not k) divided, rounded to what its groups and formats need: E a
 * multiple of its groups and at least k, H and F multiples of 64. */
moe_model moe_model_scaled(const moe_model *model, uint64_t divisor);

#endif
