/*
 * llmk_linear.h - weights and linear layers: a part of llmk.h.
 */
#ifndef LLMK_LLMK_LINEAR_H
#define LLMK_LLMK_LINEAR_H

#ifndef LLMK_LLMK_H
#error "include <llmk/llmk.h>, which includes this"
#endif

/* ------------------------------------------------------------------------------------------------
 * Weights
 * --------------------------------------------------------------------------------------------- */

/* Where the bits come from. W is the logical matrix [N, K] (N out features, K in features), one row
 * of K an output; y = x W^T. g is the group size along K, G = ceil(K / g) the groups. Tensors of
 * int32 are words whose fields count from the lowest bits. Bit layouts: docs/numerics-linear.md.
 *
 * Names in checkpoints do not settle which of these a file is: the caller says so. */
typedef enum llmk_format {
    LLMK_FORMAT_NONE = 0,
    LLMK_FORMAT_F32 = 1,
    LLMK_FORMAT_F16 = 2,
    LLMK_FORMAT_BF16 = 3,
    LLMK_FORMAT_W8 = 10, /* data i8 [N, K]; scales [N, G]; w = q * scale */
    LLMK_FORMAT_W4 = 11, /* as llmk_quantize() gives it: data u4 [N, K], rows of ceil(K / 2) bytes;
                            scales [N, G]; zeros u8 [N, G] of 0 ... 15, or absent: 8;
                            w = (q - zero) * scale */
    LLMK_FORMAT_GGUF_Q8_0 = 20, /* GGUF blocks as stored, rows of K, K a multiple of 32 */
    LLMK_FORMAT_GGUF_Q4_0 = 21,
    LLMK_FORMAT_GGUF_Q4_1 = 22,
    LLMK_FORMAT_GGUF_Q4_K = 23, /* K a multiple of 256 */
    LLMK_FORMAT_GGUF_Q6_K = 24,
    /* GPTQ, 4 or 8 bits, F = 32 / bits fields a word: data (qweight) i32 [K / F, N]; zeros (qzeros)
     * i32 [G, N / F]; scales [G, N]; g_idx i32 [K] or absent. K and N are multiples of F. V1 files
     * (checkpoint_format absent or "gptq") hold zero - 1: read as word + 0x11111111 (0x01010101),
     * the inverse of writers that subtract from whole words, so that a stored field of all ones is
     * a zero of 0. V2 files ("gptq_v2") hold the zero itself. Files labelled V1 that hold the zero
     * exist: llmk_guess_gptq_version(). */
    LLMK_FORMAT_GPTQ_V1 = 30,
    LLMK_FORMAT_GPTQ_V2 = 31,
    /* AWQ, version "gemm": data (qweight) i32 [K, N / 8]; zeros (qzeros) i32 [G, N / 8]; scales
     * [G, N]. N is a multiple of 8. */
    LLMK_FORMAT_AWQ_GEMM = 32,
    LLMK_FORMAT_AWQ_GEMV = 33, /* versions "gemv" and "gemv_fast": named, so that they can be */
    LLMK_FORMAT_AWQ_GEMV_FAST = 34, /* told apart; LLMK_UNSUPPORTED */
    /* compressed-tensors "pack-quantized", 4 or 8 bits: data (weight_packed) i32 [N, ceil(K / F)];
     * scales (weight_scale) [N, G]; zeros (weight_zero_point) i32 [ceil(N / F), G], or i8 [N, G]
     * with zero_dtype LLMK_I8, or absent: symmetric; g_idx (weight_g_idx) i32 [K] or absent. */
    LLMK_FORMAT_COMPRESSED_TENSORS = 35
} llmk_format;

/* "f16", "w4", "q4_1", "gptq_v1", ...; NULL for unknown values. */
LLMK_API const char *llmk_format_name(llmk_format format);

/* Bytes in host memory, at any address, or in a buffer of the context; at most one of `host` and
 * `buffer`. Host memory is read during the call alone. */
typedef struct llmk_source {
    const void *host;
    cl_mem buffer;
    uint64_t offset; /* bytes into buffer; 0 with host */
    uint64_t size;   /* bytes available; checked against what the format needs */
} llmk_source;

/* What differs from expert to expert; as the members of llmk_weights_desc of the same names. */
typedef struct llmk_expert_source {
    llmk_source data;
    llmk_source scales;
    llmk_source zeros;
    llmk_source g_idx;
} llmk_expert_source;

/* What a format does not have must be zero. Distances of rows: 0 means that they are packed; others
 * let a part of a larger matrix be loaded, columns of GPTQ and AWQ tensors among them. */
typedef struct llmk_weights_desc {
    size_t struct_size;
    llmk_format format;
    uint32_t flags;      /* LLMK_WEIGHTS_* */
    uint64_t n, k;       /* at most 2^31 - 1 each */
    uint64_t group_size; /* along K, of formats with scales; 0 (or -1, as checkpoints say): K. State
                            it: shapes of shards do not tell */
    llmk_source data;
    llmk_source scales;
    uint64_t row_bytes; /* distance of two rows in data */
    llmk_source zeros;
    llmk_source g_idx;      /* the group of each k ("act-order", "desc_act"), of 0 ... G - 1 in any
                               order. Absent, all zero, or k / g: the weights lie in order */
    llmk_dtype scale_dtype; /* f32, f16 or bf16; 0: f32 for W8 and W4, else f16 */
    llmk_dtype zero_dtype;  /* LLMK_FORMAT_COMPRESSED_TENSORS: 0 or LLMK_I8 */
    uint32_t bits;          /* 8: GPTQ and compressed-tensors of 8 bits; 0: the format's own, 4 */
    uint64_t scale_row_bytes; /* distance of two rows in scales */
    uint64_t zero_row_bytes;  /* distance of two rows in zeros */
    uint64_t groups; /* with g_idx: G, at most 2^24, where it is more than ceil(K / g): a part of an
                        act-order matrix along K has weights of any of the whole's groups */
    uint64_t experts; /* matrices [n, k] in one object, for llmk_grouped_linear and mixtures of
                         experts; 0: one. data, scales, zeros and g_idx then hold expert after
                         expert, each as long as its rows are apart times their number */
    const llmk_expert_source *expert_sources; /* [experts], instead of data, scales, zeros, g_idx */
} llmk_weights_desc;

/* Ignore `zeros` and take the middle of the codes (8; 128 of 8 bits). For checkpoints with "sym":
 * their qzeros are redundant, and the part of the file that is most often wrong. */
#define LLMK_WEIGHTS_SYMMETRIC 1u

/* Guesses the version of a GPTQ checkpoint from `size` bytes of its qzeros, in host memory. The
 * zeros of a symmetric one are all stored as 7 (LLMK_FORMAT_GPTQ_V1) or all as 8
 * (LLMK_FORMAT_GPTQ_V2); 127 and 128 of 8 bits. Anything else says nothing: *guess is
 * LLMK_FORMAT_NONE. `bits` is 4 or 8: 0, which llmk_weights_desc takes for 4, is refused here,
 * since the zeros alone do not tell. `sentence` (may be NULL) gets what was seen and what was made
 * of it, to be shown to whoever runs the model. Errors: LLMK_INVALID_ARGUMENT (also a size that is
 * no multiple of 4). */
LLMK_API llmk_status llmk_guess_gptq_version(const void *qzeros, uint64_t size, uint32_t bits,
                                             llmk_format *guess, char *sentence,
                                             size_t sentence_size);

typedef struct llmk_weights llmk_weights;

/* Repacks weights once into the layout that this device's kernels read and uploads them. Blocks;
 * the source may be freed afterwards; work that fills a source buffer must be done before. Device
 * memory held is the packed size of the format, K rounded up to a multiple of 32 (4 bits) or 16 (of
 * codes in the layouts of NVIDIA's matrix unit 128 or 64, and N of 16), in as many buffers as the
 * device's largest allocation asks for. Where g_idx gives groups of uneven
 * sizes, as in parts of an act-order matrix, each is filled up to a multiple of 32 (not with
 * several experts: LLMK_UNSUPPORTED). An expert lies in one buffer; where any of several has an
 * order, all are kept with one. Errors: LLMK_INVALID_ARGUMENT, LLMK_INVALID_SHAPE,
 * LLMK_INVALID_DTYPE (scale_dtype), LLMK_INVALID_STRIDE (distances of rows), LLMK_INVALID_BUFFER,
 * LLMK_BUFFER_TOO_SMALL (a source is too short), LLMK_CORRUPT_DATA (a zero or a g_idx out of
 * range), LLMK_UNSUPPORTED, LLMK_OUT_OF_DEVICE_MEMORY, LLMK_OUT_OF_MEMORY, LLMK_DEVICE_LOST,
 * LLMK_OPENCL_ERROR. `*out` is NULL on failure. */
LLMK_API llmk_status llmk_weights_create(llmk_context *ctx, const llmk_weights_desc *desc,
                                         llmk_weights **out);
/* Frees weights; NULL is accepted. */
LLMK_API void llmk_weights_free(llmk_weights *weights);

typedef struct llmk_weights_info {
    size_t struct_size;
    llmk_format format;
    const char *layout; /* the layout in device memory, "u4-affine/portable" */
    uint64_t n, k;
    uint64_t group_size;   /* as described, or the block format's own; 0: K, or no scales at all */
    uint64_t device_bytes; /* device memory held, all of it */
    uint64_t experts;      /* matrices [n, k], at least 1 */
} llmk_weights_info;
/* Fills `info` (struct_size set by the caller through LLMK_INIT). Errors: LLMK_INVALID_ARGUMENT
 * (one of the two is NULL, or struct_size is none). */
LLMK_API llmk_status llmk_weights_get_info(const llmk_weights *weights, llmk_weights_info *info);

/* ------------------------------------------------------------------------------------------------
 * Linear layers
 * --------------------------------------------------------------------------------------------- */

/* A row of y has the same bits whatever M is and whatever the other rows are, for the same weights
 * and x of the same type, strides and alignment: one variant and one order of summation serve every
 * M. Without it kernels are chosen by M; results then are the same from call to call, but not from
 * one M to another. What it costs is in docs/numerics-linear.md. */
#define LLMK_LINEAR_BATCH_INVARIANT UINT32_C(1)

/* W8A8: each row of x is quantised on the way as llmk_quantize does by LLMK_QUANT_INT8_CHANNEL,
 *
 *     y[m, n] = sx[m] sw[n] sum_k qx[m, k] qw[n, k] + bias[n] + residual[m, n]
 *
 * with the sum exact, in 32-bit integers. For weights of 8 bits with one scale a row and no zeros,
 * K at most 2^17; needs a workspace. Meant for many rows of x, where products of bytes cost less
 * than products of halves; the price is the error of x, at most sx / 2 for each element,
 * sx = max|x[m]| / 127 (docs/numerics-linear.md). A NaN in x counts as 0, an infinity as the row's
 * largest finite value. A row of y has the same bits whatever M is. */
#define LLMK_LINEAR_W8A8 UINT32_C(2)

/*     y[m, n] = sum_k x[m, k] W[n, k] + bias[n] + residual[m, n]
 *
 * accumulated in f32 and rounded once, to y's dtype. Leading dimensions of x are folded into M.
 *
 * NaN and infinities of x go where the sum takes them, and no further than their row of y, with one
 * addition: weights that fill up groups of uneven sizes (llmk_weights_create) are exactly 0, but
 * each takes some element of its row of x, as a rule x[m, 0], and where that is not finite all of
 * the row of y is NaN. */
typedef struct llmk_linear_args {
    size_t struct_size;
    llmk_tensor x; /* [..., K], f32, f16 or bf16 */
    const llmk_weights *weights;
    llmk_tensor bias;          /* [N], any of the three; absent: 0 */
    llmk_tensor residual;      /* [..., N], any of the three; absent: 0 */
    llmk_tensor y;             /* out: [..., N], any of the three. In place over residual allowed */
    uint32_t flags;            /* LLMK_LINEAR_* */
    llmk_workspace *workspace; /* llmk_linear_workspace_size() bytes, ignored where that is 0; may
                                  be NULL unless LLMK_LINEAR_W8A8 is set, which takes fewer, too */
} llmk_linear_args;

/* Bytes of workspace: with LLMK_LINEAR_W8A8 the call needs M (K + 4), K rounded up to a multiple
 * of 64; else none. On some devices a few tens of MiB more (the same for all calls, which may
 * take turns with one) make it faster where the tiles of y do not fill the device evenly; the
 * last bits of y may then be others than without, but not of batch-invariant calls or with
 * LLMK_LINEAR_W8A8. */
LLMK_API llmk_status llmk_linear_workspace_size(llmk_context *ctx, const llmk_linear_args *args,
                                                uint64_t *bytes);
/* Errors: as llmk_rmsnorm, and LLMK_BUSY. */
LLMK_API llmk_status llmk_linear(llmk_context *ctx, cl_command_queue queue,
                                 const llmk_linear_args *args, const llmk_events *events);

/* Gate and up of an MLP block in one call:
 *
 *     y[m, n] = activation(x[m] . Wg[n] + gate_bias[n]) * (x[m] . Wu[n] + up_bias[n])
 *             + residual[m, n]
 *
 * in f32, rounded once, to y's dtype. NaN and infinities as in llmk_gated_activation.
 *
 * The weights are two objects (LLMK_GATE_SPLIT) or the halves, or the even and odd rows, of one;
 * biases are arranged as they are. Some kernels compute both products and the activation at once:
 * of up to 16 rows of x in the layouts of NVIDIA's matrix unit, of more rows on matrix units (as
 * a rule without a residual, from weights in one buffer), and plain ones that any device has.
 * They want gate and up in one format with the same groups and the same g_idx. Given a workspace,
 * the rest is done by llmk_linear's kernels, twice, and one for the activation, and the plain
 * ones are left alone: give one, unless memory is scarce. Any pair of weights will do then. */
typedef struct llmk_gated_linear_args {
    size_t struct_size;
    llmk_activation activation;       /* one of LLMK_SILU ... LLMK_SWIGLU_CLAMPED */
    llmk_gate_layout layout;          /* of weights and biases */
    llmk_tensor x;                    /* [..., K], f32, f16 or bf16 */
    const llmk_weights *gate_weights; /* [N, K], or [2N, K] where packed or interleaved */
    const llmk_weights *up_weights;   /* [N, K]; split only; else NULL */
    llmk_tensor gate_bias; /* [N] ([2N] where packed or interleaved), any of the three; absent: 0 */
    llmk_tensor up_bias;   /* [N]; split only; absent: 0 */
    llmk_tensor residual;  /* [..., N], any of the three; absent: 0 */
    llmk_tensor y;         /* out: [..., N], any of the three. In place over residual allowed */
    float limit, alpha;    /* as in llmk_gated_activation_args */
    llmk_workspace *workspace; /* llmk_gated_linear_workspace_size() bytes; or NULL */
    uint32_t flags;            /* LLMK_LINEAR_BATCH_INVARIANT */
} llmk_gated_linear_args;

/* Bytes of workspace that the call can use: 8 M N, N rounded up to a multiple of 8, at most about
 * 64 MiB. */
LLMK_API llmk_status llmk_gated_linear_workspace_size(llmk_context *ctx,
                                                      const llmk_gated_linear_args *args,
                                                      uint64_t *bytes);
/* Errors: as llmk_rmsnorm, and LLMK_BUSY. */
LLMK_API llmk_status llmk_gated_linear(llmk_context *ctx, cl_command_queue queue,
                                       const llmk_gated_linear_args *args,
                                       const llmk_events *events);

#endif /* LLMK_LLMK_LINEAR_H */
