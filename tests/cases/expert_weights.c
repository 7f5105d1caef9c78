/* expert_weights.c - seeded weights of experts, described to the library as one object. */
#include "cases/expert_weights.h"

#include "core/weights.h"
#include "reference/checkpoint_reference.h"

const char *const expert_format_names[] = {
    "",        "f32",     "f16",      "bf16", "",     "",   "",  "", "", "",
    "w8",      "w4",      "",         "",     "",     "",   "",  "", "", "",
    "q8_0",    "q4_0",    "q4_1",     "q4_k", "q6_k", "",   "",  "", "", "",
    "gptq_v1", "gptq_v2", "awq_gemm", "",     "",     "ct", NULL};
const char *const expert_zeros_names[] = {"packed", "none", "i8", NULL};
const char *const expert_order_names[] = {"none", "act", "uneven", "plain", "zero", NULL};

bool expert_weights_describe(case_run *run, expert_weights *w, uint64_t experts, uint64_t n,
                             uint64_t k)
{
    const case_line *line = case_run_line(run);
    const llmk_format format = (llmk_format)case_u64(line, "w");
    const uint64_t bits = case_u64(line, "bits");
    const llmk_dtype scale = case_dtype(line, "wscale");
    const bool tables = checkpoint_has_tables(format);
    const bool gptq = format == LLMK_FORMAT_GPTQ_V1 || format == LLMK_FORMAT_GPTQ_V2;
    const bool ct = format == LLMK_FORMAT_COMPRESSED_TENSORS;
    const bool k_quant = format == LLMK_FORMAT_GGUF_Q4_K || format == LLMK_FORMAT_GGUF_Q6_K;
    const bool gguf = format >= LLMK_FORMAT_GGUF_Q8_0 && !tables;
    if (!llmk_format_name(format))
        return case_refuse(run, "w is no weight format");
    if (bits != 4 && (bits != 8 || !(gptq || ct)))
        return case_refuse(run, "bits is %llu; expected 4, or 8 of GPTQ and compressed-tensors",
                           (unsigned long long)bits);
    const uint64_t k_step = k_quant ? 256 : gguf ? 32 : gptq ? 32 / bits : 1;
    if (k % k_step)
        return case_refuse(run, "weights have rows of %llu; expected a multiple of %llu for w=%s",
                           (unsigned long long)k, (unsigned long long)k_step,
                           llmk_format_name(format));
    if ((gptq || format == LLMK_FORMAT_AWQ_GEMM) && n % (32 / bits))
        return case_refuse(run, "weights have %llu rows; expected a multiple of %llu for w=%s",
                           (unsigned long long)n, (unsigned long long)(32 / bits),
                           llmk_format_name(format));
    if (case_u64(line, "group") && format != LLMK_FORMAT_W8 && !tables)
        return case_refuse(run, "group goes with w=w8 and formats with scales apart");
    if (case_u64(line, "order") && !gptq && !ct)
        return case_refuse(run, "order goes with GPTQ and compressed-tensors");
    if (case_u64(line, "zeros") && !tables)
        return case_refuse(run, "zeros goes with formats that have them");
    if (scale != LLMK_F32 && scale != LLMK_F16 && scale != LLMK_BF16)
        return case_refuse(run, "wscale is no float type");
    const uint64_t made = case_as_they_occur(run) && experts > 0 ? 1 : experts;
    *w = (expert_weights){.experts = experts,
                          .n = n,
                          .k = k,
                          .made = made,
                          .first = {.format = format,
                                    .n = n,
                                    .k = k,
                                    .group = case_u64(line, "group"),
                                    .bits = tables ? (uint32_t)bits : 0,
                                    .scale_type = scale,
                                    .zeros_as = (linear_zeros)case_u64(line, "zeros"),
                                    .order = (linear_order)case_u64(line, "order")}};
    if (case_times(case_times(4 * (experts + 1), n + 1), case_times(k + 1, 64)) == UINT64_MAX) {
        case_reserve(run, "the weights", UINT64_MAX, 0);
        return true; /* case_declared refuses */
    }
    linear_weights_set_sizes(&w->first);
    const linear_weights *f = &w->first;
    const uint64_t bytes = f->data_bytes + f->scales_bytes + f->zeros_bytes + f->g_idx_bytes;
    case_reserve(run, "the weights", made * bytes + (n + 16) * (k + 1), experts * bytes);
    return true;
}

bool expert_weights_fill(case_run *run, expert_weights *w, uint32_t seed)
{
    const linear_weights *f = &w->first;
    w->each = case_alloc(run, w->made * sizeof *w->each);
    uint8_t *data = case_alloc(run, w->made * f->data_bytes);
    uint8_t *scales = case_alloc(run, w->made * f->scales_bytes);
    uint8_t *zeros = f->zeros_bytes ? case_alloc(run, w->made * f->zeros_bytes) : NULL;
    uint8_t *g_idx = f->g_idx_bytes ? case_alloc(run, w->made * f->g_idx_bytes) : NULL;
    for (uint64_t e = 0; e < w->made; e++) {
        linear_weights *one = &w->each[e];
        *one = *f;
        one->data = data + e * f->data_bytes;
        one->scales = scales + e * f->scales_bytes;
        one->zeros = zeros ? zeros + e * f->zeros_bytes : NULL;
        one->g_idx = g_idx ? (uint32_t *)(void *)(g_idx + e * f->g_idx_bytes) : NULL;
        if (!(case_as_they_occur(run) ? linear_weights_fill_as_they_occur
                                      : linear_weights_fill)(one, seed + (uint32_t)e))
            return case_refuse(run, "the host has no memory to fill the weights");
    }
    return true;
}

static void free_weights(void *weights)
{
    llmk_weights_free(weights);
}

/* The one expert that there is, for all. */
static llmk_status repeat(llmk_context *ctx, const llmk_weights_desc *desc,
                          llmk_layout_class layouts, uint64_t experts, uint64_t split,
                          llmk_weights **out)
{
    llmk_weights *one = NULL;
    llmk_status status = llmk_weights_create_as(ctx, desc, layouts, split, &one);
    if (status == LLMK_OK && one->n % one->block) { /* experts share no blocks */
        llmk_weights_free(one);
        status = llmk_weights_create_as(ctx, desc, LLMK_CLASS_PORTABLE, split, &one);
    }
    if (status == LLMK_OK)
        status = llmk_weights_repeat(one, experts, split, out);
    llmk_weights_free(one);
    return status;
}

bool expert_weights_create(case_run *run, const expert_weights *w, bool count,
                           const llmk_weights **out)
{
    const case_line *line = case_run_line(run);
    const uint64_t split = case_u64(line, "split");
    const llmk_layout_class layouts = case_flag(line, "nv") ? LLMK_CLASS_NV : LLMK_CLASS_OF_DEVICE;
    llmk_weights *weights = NULL;
    llmk_weights_desc desc = linear_weights_describe(w->made ? &w->each[0] : &w->first);
    desc.experts = w->made;
    if (case_flag(line, "array")) {
        llmk_expert_source *sources = case_alloc(run, w->made * sizeof *sources);
        for (uint64_t e = 0; e < w->made; e++) {
            const llmk_weights_desc one = linear_weights_describe(&w->each[e]);
            sources[e] = (llmk_expert_source){one.data, one.scales, one.zeros, one.g_idx};
        }
        desc.expert_sources = sources;
        desc.data = desc.scales = desc.zeros = desc.g_idx = (llmk_source){0};
    } else {
        desc.data.size *= w->made;
        desc.scales.size *= w->made;
        desc.zeros.size *= w->made;
        desc.g_idx.size *= w->made;
    }
    const llmk_status status =
        w->made == w->experts
            ? llmk_weights_create_as(case_context(run), &desc, layouts, split, &weights)
            : repeat(case_context(run), &desc, layouts, w->experts, split, &weights);
    if (status == LLMK_OUT_OF_DEVICE_MEMORY)
        return case_skip(run, "weights: %s", llmk_error_message());
    if (status != LLMK_OK)
        return case_refuse(run, "weights: %s", llmk_error_message());
    case_cleanup(run, free_weights, weights);
    *out = weights;
    llmk_weights_info info = LLMK_INIT(llmk_weights_info);
    if (count && llmk_weights_get_info(weights, &info) == LLMK_OK)
        case_count_bytes(run, info.device_bytes, 0);
    return true;
}
