// The linear layer on a CPU: one work-item computes a block of outputs as dot products of 16-wide
// vectors along K, several rows of x and of W at once so that each loaded vector serves several
// products. No local memory: the caches do it.
#define LINEAR_COLD static __attribute__((noinline))
#define LINEAR_CPU
#include "linear/linear_typed.clh"

#define STRETCH 1024u // elements of K summed in registers before they are added to the totals

static inline float sum16(float16 v)
{
    const float8 a = v.lo + v.hi;
    const float4 b = a.lo + a.hi;
    return b.x + b.y + (b.z + b.w);
}

// Rows m0 ... m0+MB-1 of y, columns n0 ... n0+NB-1; at the edges the last row or column is
// computed again and not stored.
#define BLOCK(NAME, MB, NB)                                                                        \
    kernel void NAME(LINEAR_PARAMETERS)                                                            \
    {                                                                                              \
        const linear_t a = LINEAR_ARGUMENTS;                                                       \
        const uint n0 = (uint)get_group_id(0) * NB;                                                \
        const ulong m0 = m_first + get_group_id(1) * MB;                                           \
        ulong x_row[MB];                                                                           \
        for (uint i = 0; i < MB; i++)                                                              \
            x_row[i] = row_begin(x_rows, min(m0 + i, m - 1));                                      \
        uint w_row[NB];                                                                            \
        for (uint j = 0; j < NB; j++)                                                              \
            w_row[j] = min(n0 + j, n - 1);                                                         \
        float16 total[MB][NB];                                                                     \
        for (uint i = 0; i < MB; i++)                                                              \
            for (uint j = 0; j < NB; j++)                                                          \
                total[i][j] = 0.0f;                                                                \
        for (uint k0 = 0; k0 < k; k0 += STRETCH) {                                                 \
            float16 sum[MB][NB];                                                                   \
            _Pragma("unroll") for (uint i = 0; i < MB; i++)                                        \
                _Pragma("unroll") for (uint j = 0; j < NB; j++) sum[i][j] = 0.0f;                  \
            const uint end = min(k0 + STRETCH, k);                                                 \
            for (uint kk = k0; kk < end; kk += 16) {                                               \
                float16 w[NB];                                                                     \
                _Pragma("unroll") for (uint j = 0; j < NB; j++) w[j] =                             \
                    weight16(W)(a, w_row[j], kk);                                                  \
                _Pragma("unroll") for (uint i = 0; i < MB; i++)                                    \
                {                                                                                  \
                    const float16 v = x16(a, x_row[i], kk);                                        \
                    _Pragma("unroll") for (uint j = 0; j < NB; j++) sum[i][j] += v * w[j];         \
                }                                                                                  \
            }                                                                                      \
            for (uint i = 0; i < MB; i++)                                                          \
                for (uint j = 0; j < NB; j++)                                                      \
                    total[i][j] += sum[i][j];                                                      \
        }                                                                                          \
        for (uint i = 0; i < MB && m0 + i < m; i++)                                                \
            for (uint j = 0; j < NB && n0 + j < n; j++)                                            \
                finish(a, m0 + i, n0 + j, sum16(total[i][j]));                                     \
    }

#ifdef ROWS // a block that tuning found
BLOCK(linear_cpu_block, ROWS, COLUMNS)
#else
BLOCK(linear_cpu_1x4, 1, 4)
BLOCK(linear_cpu_8x3, 8, 3)
#endif
