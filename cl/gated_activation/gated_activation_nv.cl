// Gated activation for NVIDIA GPUs: streaming loads and stores, a short sigmoid.
#include "common/nv.clh"

#define f32_sigmoid  nv_sigmoid
#define f16_sigmoid  nv_sigmoid_short
#define bf16_sigmoid nv_sigmoid_short
#define sigmoid_to(T) LLMK_PASTE(T, _sigmoid)

#include "common/types.clh"

static inline float8 sigmoid8(float8 v)
{
    return (float8)(sigmoid_to(Y)(v.s0), sigmoid_to(Y)(v.s1), sigmoid_to(Y)(v.s2),
                    sigmoid_to(Y)(v.s3), sigmoid_to(Y)(v.s4), sigmoid_to(Y)(v.s5),
                    sigmoid_to(Y)(v.s6), sigmoid_to(Y)(v.s7));
}

#include "gated_activation/gated_activation_tiles.clh"
