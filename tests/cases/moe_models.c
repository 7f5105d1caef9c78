/* moe_models.c - shapes and routing of published mixture-of-experts layers. */
#include "cases/moe_models.h"

#include <string.h>

#define PLAIN .activation = LLMK_SILU, .layout = LLMK_GATE_SPLIT
#define NAMES                                                                                      \
    "none", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v2", "deepseek-v3", "qwen2-57b",            \
        "qwen2-57b-top4", "qwen1.5-moe", "qwen3-30b", "gpt-oss-20b", "gpt-oss-120b"

const char *const moe_model_names[] = {NAMES, NULL};

#define GPT_OSS(name, experts)                                                                     \
    {                                                                                              \
        name, experts, 4, 2880, 2880, LLMK_MOE_TOPK_SOFTMAX,                                       \
            .router_bias = true, .expert_bias = true, .scale = 1,                                  \
            .activation = LLMK_SWIGLU_CLAMPED, .layout = LLMK_GATE_INTERLEAVED                     \
    }

const moe_model moe_models[] = {
    {"none", 8, 2, 64, 64, LLMK_MOE_SOFTMAX, .scale = 1, PLAIN},
    {"mixtral-8x7b", 8, 2, 4096, 14336, LLMK_MOE_SOFTMAX, .renormalize = true, .scale = 1, PLAIN},
    {"mixtral-8x22b", 8, 2, 6144, 16384, LLMK_MOE_SOFTMAX, .renormalize = true, .scale = 1, PLAIN},
    {"deepseek-v2", 160, 6, 5120, 1536, LLMK_MOE_SOFTMAX, .groups = 8, .top_groups = 3, .scale = 16,
     .shared_width = 3072, PLAIN},
    {"deepseek-v3", 256, 8, 7168, 2048, LLMK_MOE_SIGMOID, .renormalize = true, .correction = true,
     .groups = 8, .top_groups = 4, .scale = 2.5, .shared_width = 2048, PLAIN},
    {"qwen2-57b", 64, 8, 3584, 2560, LLMK_MOE_SOFTMAX, .scale = 1, .shared_width = 20480,
     .shared_router = true, PLAIN},
    {"qwen2-57b-top4", 64, 4, 3584, 2560, LLMK_MOE_SOFTMAX, .scale = 1, .shared_width = 20480,
     .shared_router = true, PLAIN},
    {"qwen1.5-moe", 60, 4, 2048, 1408, LLMK_MOE_SOFTMAX, .scale = 1, .shared_width = 5632,
     .shared_router = true, PLAIN},
    {"qwen3-30b", 128, 8, 2048, 768, LLMK_MOE_SOFTMAX, .renormalize = true, .scale = 1, PLAIN},
    GPT_OSS("gpt-oss-20b", 32),
    GPT_OSS("gpt-oss-120b", 128),
};

const moe_model *moe_model_find(const char *name)
{
    for (size_t i = 0; moe_model_names[i]; i++)
        if (!strcmp(moe_models[i].name, name))
            return &moe_models[i];
    return NULL;
}

static uint64_t divided(uint64_t value, uint64_t divisor, uint64_t step, uint64_t least)
{
    value = value / divisor / step * step;
    return value < least ? least : value;
}

moe_model moe_model_scaled(const moe_model *model, uint64_t divisor)
{
    moe_model m = *model;
    if (divisor <= 1)
        return m;
    /* As many experts as the groups kept need to hold k. */
    const uint64_t groups = m.groups ? m.groups : 1, kept = m.groups ? m.top_groups : 1;
    const uint64_t least = (m.k + kept - 1) / kept * groups;
    m.experts = divided(m.experts, divisor, groups, least);
    m.hidden = divided(m.hidden, divisor, 64, 64);
    m.width = divided(m.width, divisor, 64, 64);
    if (m.shared_width)
        m.shared_width = divided(m.shared_width, divisor, 64, 64);
    return m;
}
