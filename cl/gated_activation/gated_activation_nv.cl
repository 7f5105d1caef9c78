// Gated activation for NVIDIA GPUs: streaming loads and stores, a short exponential.
#include "common/nv.clh"

static inline float8 exp_8(float8 v)
{
    return (float8)(nv_exp(v.s0), nv_exp(v.s1), nv_exp(v.s2), nv_exp(v.s3), nv_exp(v.s4),
                    nv_exp(v.s5), nv_exp(v.s6), nv_exp(v.s7));
}

#include "gated_activation/gated_activation_tiles.clh"
