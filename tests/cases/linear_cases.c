/* linear_cases.c - linear layers: shapes, weight formats, types, strides. */
#include "cases/case.h"
#include "core/weights.h"
#include "reference/checkpoint_reference.h"
#include "reference/linear_reference.h"

#include <math.h>

/* Index = llmk_format, or: */
#define W8A8 (LLMK_FORMAT_COMPRESSED_TENSORS + 1) /* w8, with LLMK_LINEAR_W8A8 */
static const char *const format_names[] = {
    "",        "f32",     "f16",      "bf16", "",     "",   "",     "",  "", "",
    "w8",      "w4",      "",         "",     "",     "",   "",     "",  "", "",
    "q8_0",    "q4_0",    "q4_1",     "q4_k", "q6_k", "",   "",     "",  "", "",
    "gptq_v1", "gptq_v2", "awq_gemm", "",     "",     "ct", "w8a8", NULL};
/* Index = linear_zeros, linear_order. */
static const char *const zeros_names[] = {"packed", "none", "i8", NULL};
/* Index = llmk_layout_class. */
static const char *const class_names[] = {"device", "portable", "nv", NULL};
static const char *const order_names[] = {"none", "act", "uneven", "plain", "zero", NULL};

static const case_field fields[] = {
    {"m", CASE_U64, 1, NULL, "rows of x"},
    {"n", CASE_U64, 64, NULL, "out features"},
    {"k", CASE_U64, 64, NULL, "in features"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "dtype of x"},
    {"w", CASE_ENUM, LLMK_FORMAT_F16, format_names, "format of the weights"},
    {"group", CASE_U64, 0, NULL, "group size of formats with scales; 0: all of k"},
    {"bits", CASE_U64, 4, NULL, "4 or 8, of GPTQ and compressed-tensors"},
    {"scale", CASE_ENUM, LLMK_F16, case_float_names, "dtype of the scales of w4 and later formats"},
    {"zeros", CASE_ENUM, LINEAR_ZEROS, zeros_names, "the zeros of w4 and later formats"},
    {"order", CASE_ENUM, LINEAR_IN_ORDER, order_names, "g_idx of GPTQ and compressed-tensors"},
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "dtype of y"},
    {"bias", CASE_ENUM, LLMK_DTYPE_NONE, case_float_or_none_names, "dtype of the bias"},
    {"residual", CASE_ENUM, LLMK_DTYPE_NONE, case_float_or_none_names, "dtype of the residual"},
    {"inplace", CASE_FLAG, 0, NULL, "y over the residual"},
    {"batch", CASE_U64, 0, NULL, "x, residual and y are [batch, m / batch, ...] with gaps"},
    {"transposed", CASE_FLAG, 0, NULL, "x is stored column by column"},
    {"xgap", CASE_U64, 0, NULL, "elements between rows of x"},
    {"rgap", CASE_U64, 0, NULL, "elements between rows of the residual"},
    {"ygap", CASE_U64, 0, NULL, "elements between rows of y"},
    {"pad", CASE_U64, 0, NULL, "elements by which tensors start past an aligned address"},
    {"rowpad", CASE_U64, 0, NULL, "bytes between rows of the weights' source"},
    {"split", CASE_U64, 0, NULL, "largest buffer of the weights, in bytes"},
    {"layout", CASE_ENUM, LLMK_CLASS_OF_DEVICE, class_names, "class of the weights' layout"},
    {"invariant", CASE_FLAG, 0, NULL, "LLMK_LINEAR_BATCH_INVARIANT"},
    {"odd", CASE_FLAG, 0, NULL, "of w8a8: NaN, infinities, zeros and very small numbers in x"},
};

/* A shape of one cost: f16 with every layout, other types of x with some, since each pair is a
 * program to build. */
static const case_entry entries[] = {
    /* Nothing, and next to nothing. */
    {"m=0", CASE_QUICK},
    {"n=0", CASE_QUICK},
    {"m=5 n=67 k=520 invariant", CASE_QUICK},
    {"m=3 n=5 k=0 bias=f32 residual=f16", CASE_QUICK},
    {"n=1 k=1", CASE_QUICK},
    {"n=1 k=1 w=w8", CASE_QUICK},
    {"m=9 n=1 k=32 w=q4_0", CASE_QUICK},

    /* One row: every format, odd sizes, more than one round of a team along K. */
    {"n=48 k=192", CASE_QUICK},
    {"n=5 k=511", CASE_QUICK},
    {"n=67 k=4099 y=f32", CASE_QUICK},
    {"n=48 k=192 w=bf16", CASE_QUICK},
    {"n=33 k=2047 w=bf16 bias=bf16", CASE_QUICK},
    {"n=48 k=192 w=f32", CASE_QUICK},
    {"n=7 k=1025 w=f32 y=f32", CASE_QUICK},
    {"n=48 k=192 w=w8", CASE_QUICK},
    {"n=33 k=511 w=w8", CASE_QUICK},
    {"n=256 k=256 w=w8", CASE_QUICK},
    {"n=130 k=4096 w=w8 group=128", CASE_QUICK},
    {"n=65 k=1000 w=w8 group=7 y=f32", CASE_QUICK},
    {"n=65 k=1001 w=w8 group=24 y=f32", CASE_QUICK},
    {"n=65 k=1000 w=w8 group=1", CASE_QUICK},
    {"n=48 k=192 w=q8_0", CASE_QUICK},
    {"n=131 k=4096 w=q8_0 y=f32", CASE_QUICK},
    {"n=48 k=192 w=q4_0", CASE_QUICK},
    {"n=1 k=32 w=q4_0", CASE_QUICK},
    {"n=131 k=4096 w=q4_0 y=f32", CASE_QUICK},
    {"n=514 k=2048 w=q4_0 bias=f16 residual=f16", CASE_QUICK},
    {"n=48 k=192 w=q4_1", CASE_QUICK},
    {"n=131 k=4096 w=q4_1 y=f32", CASE_QUICK},

    /* Two to eight rows. */
    {"m=2 n=66 k=100", CASE_QUICK},
    {"m=2 n=66 k=128 w=q4_0", CASE_QUICK},
    {"m=3 n=66 k=513 bias=f32", CASE_QUICK},
    {"m=4 n=63 k=256 w=q4_0", CASE_QUICK},
    {"m=5 n=61 k=320 w=q4_1 y=f32", CASE_QUICK},
    {"m=7 n=67 k=1030 y=f32 bias=f16 residual=f32", CASE_QUICK},
    {"m=8 n=128 k=512 w=q8_0", CASE_QUICK},
    {"m=8 n=97 k=1056 w=w8 group=96 y=f32", CASE_QUICK},
    {"m=8 n=257 k=2048 w=q4_0 residual=f16", CASE_QUICK},
    {"m=8 n=50 k=77 w=f32 y=f32", CASE_QUICK},
    {"m=8 n=50 k=77 w=bf16", CASE_QUICK},

    /* Codes on CPUs: blocks of 64 or 128 weights in one group, two or four, the last a part; fewer
     * groups than are read at once; stages of K; strips of rows and their last ones. */
    {"n=67 k=1000 w=w4 group=128 y=f32", CASE_QUICK},
    {"n=1 k=129 w=w4 group=128", CASE_QUICK},
    {"n=130 k=4200 w=w4 group=64 scale=bf16 y=f32", CASE_QUICK},
    {"n=37 k=8321 w=w4 scale=f32 y=f32", CASE_QUICK},
    {"n=70 k=5000 w=w4 group=384 zeros=none y=f32", CASE_QUICK},
    {"n=66 k=1043 w=ct bits=8 group=32 zeros=i8 y=f32", CASE_QUICK},
    {"n=35 k=768 w=q4_k y=f32", CASE_QUICK},
    {"m=2 n=33 k=999 w=w4 group=32 y=f32", CASE_QUICK},
    {"m=2 n=67 k=2300 w=w8 group=64 transposed y=f32", CASE_QUICK},
    {"m=3 n=63 k=1120 w=q4_1 pad=1 y=f32", CASE_QUICK},
    {"m=4 n=72 k=1300 w=ct group=128 zeros=none order=act y=f32", CASE_QUICK},
    {"m=11 n=45 k=2560 w=q4_k y=f32 invariant", CASE_QUICK},
    {"m=8 n=259 k=640 w=w4 group=32 bias=f16 residual=f16", CASE_QUICK},
    {"m=2 n=21 k=512 w=q4_k", CASE_QUICK},
    {"m=2 n=19 k=256 x=f32 w=q4_k y=f32", CASE_QUICK},
    {"m=2 n=19 k=300 x=f32 w=w8 y=f32", CASE_QUICK},
    {"m=2 n=19 k=300 x=f32 w=w4 group=64 y=f32", CASE_QUICK},
    {"m=4 n=23 k=256 x=f32 w=q4_k y=f32", CASE_QUICK},
    {"m=4 n=23 k=300 x=f32 w=w8 y=f32", CASE_QUICK},
    {"m=4 n=23 k=300 x=f32 w=w4 group=64 y=f32", CASE_QUICK},
    {"m=2 n=19 k=256 x=bf16 w=q4_k y=f32", CASE_QUICK},
    {"m=2 n=19 k=300 x=bf16 w=w8 y=f32", CASE_QUICK},
    {"m=2 n=19 k=300 x=bf16 w=w4 group=64 y=f32", CASE_QUICK},
    {"m=4 n=23 k=256 x=bf16 w=q4_k y=f32", CASE_QUICK},
    {"m=4 n=23 k=300 x=bf16 w=w8 y=f32", CASE_QUICK},
    {"m=4 n=23 k=300 x=bf16 w=w4 group=64 y=f32", CASE_QUICK},

    /* Tiles and their edges. */
    {"m=9 n=64 k=64", CASE_QUICK},
    {"m=16 n=512 k=256 w=q4_0", CASE_QUICK},
    {"m=63 n=65 k=33", CASE_QUICK},
    {"m=64 n=64 k=32", CASE_QUICK},
    {"m=65 n=63 k=31 y=f32", CASE_QUICK},
    {"m=130 n=129 k=511 bias=f32 residual=f16", CASE_QUICK},
    {"m=33 n=191 k=1024 w=f32 y=f32", CASE_QUICK},
    {"m=70 n=70 k=200 w=bf16 y=bf16", CASE_QUICK},
    {"m=70 n=70 k=200 w=w8", CASE_QUICK},
    {"m=66 n=66 k=1003 w=w8 group=5 y=f32", CASE_QUICK},
    {"m=66 n=66 k=1003 w=w8 group=64", CASE_QUICK},
    {"m=32 n=1024 k=1024 w=w8 bias=f16", CASE_QUICK},
    {"m=70 n=70 k=224 w=q8_0 y=f32", CASE_QUICK},
    {"m=65 n=129 k=1056 w=q4_0 y=f32", CASE_QUICK},
    {"m=65 n=129 k=1056 w=q4_1 y=f32 bias=bf16", CASE_QUICK},
    {"m=64 n=512 k=1024 w=q4_0", CASE_QUICK},

    /* Tiles of 128 x 256 x 64 and their parts, on devices of about 132 units; N in whole blocks of
     * 32 and not. */
    {"m=64 n=48 k=8", CASE_QUICK},
    {"m=65 n=256 k=64 y=f32", CASE_QUICK},
    {"m=127 n=257 k=72 bias=f16", CASE_QUICK},
    {"m=127 n=288 k=72 bias=f16", CASE_QUICK},
    {"m=128 n=1024 k=192 x=bf16 w=bf16 y=bf16 residual=bf16", CASE_QUICK},
    {"m=129 n=1000 k=200 bias=f32 residual=f16 y=f32", CASE_QUICK},
    {"m=300 n=288 k=200 x=bf16 w=bf16 y=f32 bias=f32 residual=f16", CASE_QUICK},
    {"m=72 batch=3 n=320 k=136", CASE_QUICK},
    {"m=70 n=64 k=136 xgap=8 ygap=1 residual=f32 rgap=3", CASE_QUICK},
    {"m=500 n=2528 k=88 ygap=8 y=f32", CASE_QUICK},
    {"m=129 n=16992 k=24", CASE_QUICK},
    /* And of 256 x up to 192 x 64. */
    {"m=1000 n=4128 k=40 bias=f32 residual=f16", CASE_QUICK},
    {"m=700 n=4096 k=72 x=bf16 w=bf16 residual=f32 y=f32", CASE_QUICK},
    {"m=300 n=13216 k=8 bias=bf16 ygap=8 y=bf16", CASE_QUICK},

    /* Four bits as checkpoints pack them. */
    {"n=48 k=192 w=w4 group=128", CASE_QUICK},
    {"n=67 k=511 w=w4 group=64 y=f32", CASE_QUICK},
    {"n=33 k=1000 w=w4 group=40 scale=f32 zeros=none y=f32", CASE_QUICK},
    {"m=70 n=70 k=1001 w=w4 group=7 scale=bf16 y=f32", CASE_QUICK},
    {"m=8 n=130 k=4096 w=w4 group=128 bias=f16 residual=f16", CASE_QUICK},
    {"n=48 k=192 w=gptq_v1 group=128", CASE_QUICK},
    {"n=48 k=192 w=gptq_v2 group=64 y=f32", CASE_QUICK},
    {"n=40 k=1000 w=gptq_v1 group=1000 zeros=none", CASE_QUICK},
    {"n=56 k=1048 w=gptq_v1 y=f32", CASE_QUICK},
    {"n=8 k=8 w=gptq_v2", CASE_QUICK},
    {"m=8 n=72 k=1032 w=gptq_v1 group=32 order=act y=f32", CASE_QUICK},
    {"n=72 k=1032 w=gptq_v2 group=128 order=act", CASE_QUICK},
    {"m=66 n=72 k=520 w=gptq_v1 group=24 order=act y=f32", CASE_QUICK},
    {"m=3 n=72 k=520 w=gptq_v2 group=64 order=uneven y=f32", CASE_QUICK},
    {"m=66 n=40 k=264 w=gptq_v1 group=8 order=uneven zeros=none y=f32", CASE_QUICK},
    {"n=48 k=192 w=gptq_v1 group=64 order=plain", CASE_QUICK},
    {"n=48 k=192 w=gptq_v1 group=64 order=zero", CASE_QUICK},
    {"n=48 k=192 w=gptq_v2 group=64 bits=8", CASE_QUICK},
    {"m=9 n=48 k=196 w=gptq_v1 group=28 bits=8 order=act y=f32", CASE_QUICK},
    {"m=5 n=48 k=188 w=gptq_v2 group=32 bits=8 order=uneven zeros=none y=f32", CASE_QUICK},
    {"n=48 k=192 w=awq_gemm group=64", CASE_QUICK},
    {"m=8 n=72 k=1029 w=awq_gemm group=128 y=f32", CASE_QUICK},
    {"m=66 n=136 k=513 w=awq_gemm group=32 scale=bf16 y=f32", CASE_QUICK},
    {"n=48 k=192 w=ct group=64 zeros=none", CASE_QUICK},
    {"n=67 k=511 w=ct group=32 y=f32", CASE_QUICK},
    {"m=66 n=33 k=516 w=ct group=48 zeros=i8 scale=bf16 y=f32", CASE_QUICK},
    {"m=8 n=35 k=523 w=ct group=128 order=act y=f32", CASE_QUICK},
    {"n=35 k=523 w=ct group=64 bits=8 zeros=i8 order=act y=f32", CASE_QUICK},
    {"m=4 n=61 k=512 w=q4_k y=f32", CASE_QUICK},
    {"n=131 k=4096 w=q4_k", CASE_QUICK},
    {"m=70 n=70 k=768 w=q4_k y=f32 bias=f32", CASE_QUICK},
    {"m=4 n=61 k=512 w=q6_k y=f32", CASE_QUICK},
    {"n=131 k=4096 w=q6_k", CASE_QUICK},
    {"m=70 n=70 k=768 w=q6_k y=f32", CASE_QUICK},
    {"m=8 n=40 k=96 w=gptq_v1 group=32 order=act xgap=3 pad=1", CASE_QUICK},
    {"m=6 n=40 k=96 w=gptq_v2 group=32 order=act transposed", CASE_QUICK},
    {"m=70 n=40 k=100 w=ct group=32 order=uneven transposed rowpad=8", CASE_QUICK},
    {"m=2 n=72 k=96 w=gptq_v1 group=32 rowpad=12 split=150", CASE_QUICK},
    {"m=2 n=72 k=96 w=awq_gemm group=32 rowpad=12 split=150", CASE_QUICK},
    {"m=2 n=37 k=96 w=ct group=1 split=400 order=act", CASE_QUICK},
    {"m=33 n=40 k=64 x=f32 w=gptq_v1 group=16 order=act y=f32", CASE_QUICK},
    {"n=40 k=64 x=bf16 w=awq_gemm group=32 y=bf16", CASE_QUICK},
    {"n=0 k=64 w=gptq_v1 group=32", CASE_QUICK},
    {"n=8 k=0 w=awq_gemm", CASE_QUICK},

    /* The layouts of NVIDIA's matrix unit on any device: formats, kinds of scale and zero, groups
     * of one to four steps of 32, edges of blocks of 16 rows and tiles of 64 along K. */
    {"n=48 k=192 w=w4 group=64 layout=nv", CASE_QUICK},
    {"m=16 n=17 k=4104 w=w4 group=128 y=f32 layout=nv", CASE_QUICK},
    {"m=9 n=1 k=192 w=w4 group=32 zeros=none y=f32 layout=nv", CASE_QUICK},
    {"m=2 n=48 k=1000 w=w4 scale=f32 y=f32 layout=nv", CASE_QUICK},
    {"m=7 n=36 k=8 w=gptq_v2 bits=8 y=f32 layout=nv", CASE_QUICK},
    {"m=8 n=48 k=200 w=gptq_v1 group=32 layout=nv", CASE_QUICK},
    {"m=15 n=40 k=264 w=gptq_v2 group=96 scale=bf16 y=f32 layout=nv", CASE_QUICK},
    {"m=16 n=72 k=1032 w=gptq_v1 group=32 order=act y=f32 layout=nv", CASE_QUICK},
    {"m=3 n=72 k=520 w=gptq_v2 group=128 order=uneven y=f32 layout=nv", CASE_QUICK},
    {"m=9 n=48 k=520 w=gptq_v2 group=64 bits=8 order=act y=f32 layout=nv", CASE_QUICK},
    {"m=2 n=136 k=513 w=awq_gemm group=64 y=f32 layout=nv", CASE_QUICK},
    {"m=16 n=50 k=523 w=ct group=64 bits=8 zeros=i8 scale=f32 y=f32 layout=nv", CASE_QUICK},
    {"m=7 n=67 k=511 w=ct group=32 zeros=i8 y=f32 layout=nv", CASE_QUICK},
    {"n=131 k=4096 w=q4_0 y=f32 layout=nv", CASE_QUICK},
    {"m=16 n=65 k=992 w=q4_1 y=f32 bias=bf16 layout=nv", CASE_QUICK},
    {"n=48 k=192 w=q4_1 layout=nv", CASE_QUICK},
    {"m=9 n=65 k=992 w=q8_0 y=f32 layout=nv", CASE_QUICK},
    {"n=33 k=511 w=w8 y=f32 layout=nv", CASE_QUICK},
    {"m=8 n=97 k=1056 w=w8 group=96 y=f32 layout=nv", CASE_QUICK},
    {"m=4 n=61 k=512 w=q4_k y=f32 layout=nv", CASE_QUICK}, /* stays portable, as the next */
    {"m=5 n=61 k=515 w=w4 group=7 y=f32 layout=nv", CASE_QUICK},
    {"m=9 n=17 k=4104 x=bf16 w=w4 group=128 y=f32 layout=nv", CASE_QUICK},
    {"m=16 n=48 k=192 x=bf16 w=w4 group=64 y=bf16 layout=nv", CASE_QUICK},
    {"m=15 n=65 k=992 x=bf16 w=q4_1 y=f32 layout=nv", CASE_QUICK},
    {"m=2 n=50 k=523 x=bf16 w=ct group=32 bits=8 zeros=i8 y=f32 layout=nv", CASE_QUICK},
    {"m=8 n=33 k=511 x=bf16 w=w8 y=f32 layout=nv", CASE_QUICK},
    {"n=100 k=320 x=f32 w=q4_0 y=f32 layout=nv", CASE_QUICK},
    {"m=67 n=100 k=320 x=f32 w=q8_0 y=bf16 layout=nv", CASE_QUICK},
    {"m=66 n=33 k=1003 w=w4 group=64 y=f32 layout=nv", CASE_QUICK},
    {"m=70 n=470 k=448 w=w4 group=64 y=f32 layout=nv", CASE_QUICK}, /* wide tiles of nv-packed */
    {"m=140 n=150 k=416 w=w8 bias=f16 y=f32 layout=nv", CASE_QUICK},
    {"m=40 n=448 k=768 w=w4 group=64 y=f32 layout=nv", CASE_QUICK}, /* tiles shared along K */
    {"m=70 n=520 k=640 w=w4 group=128 layout=nv", CASE_QUICK},
    {"m=57 n=448 k=2112 w=w4 group=64 zeros=none bias=f16 layout=nv", CASE_QUICK}, /* many parts */
    {"m=40 n=456 k=832 w=w4 group=128 y=f32 layout=nv", CASE_QUICK}, /* the last group is short */
    {"m=20 n=130 k=448 w=w4 group=128 y=f32 layout=nv", CASE_QUICK},
    {"m=70 n=140 k=864 x=bf16 w=w8 y=bf16 layout=nv", CASE_QUICK},
    {"m=33 n=456 k=256 x=bf16 w=w4 y=f32 bias=f16 residual=f32 layout=nv", CASE_QUICK},
    {"m=20 n=150 k=640 w=w4 group=128 zeros=none y=f32 layout=nv", CASE_QUICK},
    {"m=29 n=264 k=256 x=bf16 w=w4 group=256 residual=f32 y=f32 layout=nv", CASE_QUICK},
    {"m=130 n=200 k=160 y=f32 residual=f32", CASE_QUICK}, /* plain rows, for nv */
    {"m=70 n=136 k=512 x=bf16 w=bf16 y=f32", CASE_QUICK},
    {"m=66 n=35 k=523 w=ct group=32 bits=8 order=act y=f32 layout=nv", CASE_QUICK},
    {"m=8 n=40 k=96 w=gptq_v1 group=32 order=act xgap=3 pad=1 layout=nv", CASE_QUICK},
    {"m=10 n=60 k=256 w=q4_0 pad=1 residual=f16 bias=f16 layout=nv", CASE_QUICK},
    {"m=7 n=60 k=104 w=w8 xgap=3 ygap=5 rgap=7 residual=f16 layout=nv", CASE_QUICK},
    {"m=6 n=60 k=96 w=q4_0 transposed layout=nv", CASE_QUICK},
    {"m=6 batch=3 n=60 k=96 w=q4_0 residual=f16 layout=nv", CASE_QUICK},
    {"m=5 n=60 k=96 w=q8_0 residual=f16 inplace layout=nv", CASE_QUICK},
    {"m=3 n=300 k=256 w=q4_0 split=9000 bias=f32 y=f32 layout=nv", CASE_QUICK},
    {"m=5 n=70 k=896 w=w4 group=128 y=f32 layout=nv", CASE_QUICK},
    {"m=13 n=40 k=640 w=w8 residual=f16 layout=nv", CASE_QUICK},
    {"n=101 k=2056 bias=f32 y=f32", CASE_QUICK},
    {"m=2 n=33 k=8 x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"m=2 n=64 k=4104 residual=f16 ygap=8", CASE_QUICK},
    {"m=2 n=300 k=256 split=9000 residual=f16 bias=f16", CASE_QUICK},
    {"m=12 n=37 k=96 w=w8 group=32 split=2100 y=f32 layout=nv", CASE_QUICK},
    /* Whole chunks of x and groups of many weights, for wgmma: edges of its tiles and of K. */
    {"m=20 n=150 k=648 w=w4 group=128 y=f32 layout=nv", CASE_QUICK},
    {"m=17 n=40 k=264 w=gptq_v1 group=128 xgap=8 ygap=3 layout=nv", CASE_QUICK},
    {"m=40 n=72 k=1032 w=ct group=256 scale=f32 zeros=i8 y=f32 layout=nv", CASE_QUICK},
    {"m=33 n=130 k=392 x=bf16 w=w4 group=128 scale=bf16 bias=f32 residual=bf16 y=bf16 layout=nv",
     CASE_QUICK},
    {"m=130 n=136 k=640 w=awq_gemm group=128 bias=f16 layout=nv", CASE_QUICK},
    {"m=129 n=72 k=72 w=w4 y=f32 layout=nv", CASE_QUICK},
    {"m=66 n=140 k=200 w=w8 y=f32 layout=nv", CASE_QUICK},
    {"m=24 n=48 k=328 w=w8 group=64 y=f32 layout=nv", CASE_QUICK},
    {"m=300 n=72 k=136 x=bf16 w=w8 residual=f16 y=f32 layout=nv", CASE_QUICK},
    {"m=64 n=64 k=512 w=ct group=128 bits=8 zeros=i8 layout=nv", CASE_QUICK},
    {"m=90 n=300 k=256 w=w4 group=128 split=19000 layout=nv", CASE_QUICK},
    /* So few tiles, and so deep, that work-groups share them. */
    {"m=70 n=80 k=5128 w=w4 group=128 bias=f32 y=f32 layout=nv", CASE_QUICK},
    {"m=130 n=72 k=5192 x=bf16 w=w8 residual=f16 y=f32 layout=nv", CASE_QUICK},
    {"n=0 k=64 w=w4 layout=nv", CASE_QUICK},
    {"m=3 n=5 k=0 w=w8 bias=f32 layout=nv", CASE_QUICK},

    /* Types of x, y, bias and residual. */
    {"n=100 k=300 x=f32 w=f32 y=f32", CASE_QUICK},
    {"m=8 n=100 k=300 x=f32 w=f32 y=f32 bias=f32 residual=f32", CASE_QUICK},
    {"m=67 n=100 k=301 x=f32 w=f32 y=f32", CASE_QUICK},
    {"n=100 k=320 x=f32 w=q4_0 y=f32", CASE_QUICK},
    {"m=67 n=100 k=320 x=f32 w=q4_1 y=bf16 bias=f16", CASE_QUICK},
    {"n=100 k=300 x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"m=8 n=100 k=300 x=bf16 w=bf16 y=bf16 bias=bf16 residual=bf16", CASE_QUICK},
    {"m=67 n=100 k=301 x=bf16 w=bf16 y=f16 residual=f32", CASE_QUICK},
    {"n=100 k=300 x=bf16 w=w8 y=f32", CASE_QUICK},
    {"m=67 n=100 k=320 x=bf16 w=q8_0 y=bf16", CASE_QUICK},

    /* Strides, alignment, in place. */
    {"m=8 n=60 k=256 w=q4_0 pad=1", CASE_QUICK},
    {"n=60 k=256 w=q4_0 pad=1 bias=f16", CASE_QUICK},
    {"m=7 n=60 k=100 xgap=3 ygap=5 rgap=7 residual=f16", CASE_QUICK},
    {"m=70 n=60 k=100 xgap=3 ygap=5 rgap=7 pad=3 residual=f32", CASE_QUICK},
    {"m=70 n=60 k=96 xgap=8 ygap=8 residual=f16 rgap=8 inplace", CASE_QUICK},
    {"m=5 n=60 k=96 w=q8_0 residual=f16 inplace", CASE_QUICK},
    {"m=6 n=60 k=96 transposed", CASE_QUICK},
    {"m=70 n=60 k=130 transposed ygap=1", CASE_QUICK},
    {"m=6 batch=3 n=60 k=96 w=q4_0 residual=f16", CASE_QUICK},
    {"m=72 batch=3 n=60 k=100 residual=f32 ygap=2 bias=f32", CASE_QUICK},
    {"n=60 k=100 rowpad=6", CASE_QUICK},
    {"m=8 n=60 k=96 w=q4_0 rowpad=2", CASE_QUICK},
    {"m=8 n=60 k=96 w=w8 rowpad=1 group=32", CASE_QUICK},

    /* Weights in several buffers. */
    {"n=300 k=256 w=q4_0 split=9000 bias=f32", CASE_QUICK},
    {"m=66 n=300 k=100 split=20000 residual=f16 bias=f32", CASE_QUICK},
    {"m=8 n=37 k=96 w=w8 group=1 split=400", CASE_QUICK},

    /* Activations quantised on the way: both layouts, tiles and their edges, types, strides. */
    {"m=0 w=w8a8", CASE_QUICK},
    {"m=3 n=5 k=0 w=w8a8 bias=f32 residual=f16", CASE_QUICK},
    {"n=1 k=1 w=w8a8 y=f32", CASE_QUICK},
    {"n=48 k=192 w=w8a8", CASE_QUICK},
    {"m=5 n=67 k=519 w=w8a8 y=f32", CASE_QUICK},
    {"m=70 n=130 k=1000 w=w8a8 bias=f32 residual=f16 y=f32", CASE_QUICK},
    {"m=31 n=33 k=64 x=f32 w=w8a8 odd y=f32", CASE_QUICK},
    {"m=20 n=33 k=100 x=bf16 w=w8a8 odd y=f32", CASE_QUICK},
    {"m=6 n=40 k=100 w=w8a8 transposed y=f32", CASE_QUICK},
    {"m=72 batch=3 n=40 k=100 w=w8a8 residual=f16 inplace ygap=3 rgap=3 pad=1", CASE_QUICK},
    {"m=9 n=300 k=64 w=w8a8 split=9000 bias=f32 y=f32", CASE_QUICK},
    {"n=1 k=1 w=w8a8 y=f32 layout=nv", CASE_QUICK},
    {"m=32 n=48 k=192 w=w8a8 layout=nv", CASE_QUICK},
    {"m=5 n=67 k=519 w=w8a8 bias=f32 y=f32 layout=nv", CASE_QUICK},
    {"m=33 n=129 k=544 w=w8a8 y=f32 layout=nv", CASE_QUICK},
    {"m=130 n=130 k=1000 w=w8a8 bias=f32 residual=f16 y=f32 layout=nv", CASE_QUICK},
    {"m=257 n=2000 k=72 w=w8a8 layout=nv", CASE_QUICK},
    {"m=31 n=33 k=64 x=f32 w=w8a8 odd y=f32 layout=nv", CASE_QUICK},
    {"m=40 n=40 k=100 x=bf16 w=w8a8 xgap=3 ygap=5 pad=1 y=bf16 layout=nv", CASE_QUICK},
    {"m=12 n=37 k=96 w=w8a8 split=2100 y=f32 layout=nv", CASE_QUICK},
    {"m=5 n=17 k=20000 w=w8a8 y=f32 layout=nv", CASE_QUICK},

    /* More rows than one launch takes. */
    {"m=33000 n=2 k=3 y=f32", CASE_QUICK},

    /* W8A16, W4A16 and real layers. */
    {"n=1024 k=1024 w=w8", CASE_FULL},
    {"n=4096 k=4096 w=w8", CASE_FULL},
    {"m=32 n=1024 k=1024 w=w8", CASE_FULL},
    {"m=128 n=4096 k=4096 w=w8", CASE_FULL},
    {"m=2048 n=11008 k=4096 w=w8", CASE_FULL},
    {"m=2048 n=4096 k=11008 w=w8", CASE_FULL},
    {"n=512 k=256 w=q4_0", CASE_FULL},
    {"n=512 k=4096 w=q4_1", CASE_FULL},
    {"m=8 n=256 k=2048 w=q4_1", CASE_FULL},
    {"m=16 n=512 k=256 w=q4_1", CASE_FULL},
    {"m=64 n=512 k=1024 w=q4_1", CASE_FULL},
    {"m=128 n=4096 k=4096 w=q4_0", CASE_FULL},
    {"n=11008 k=4096 w=q4_0", CASE_FULL},
    {"n=4096 k=11008 w=q4_1 x=bf16 y=bf16", CASE_FULL},
    {"n=4096 k=4096 w=f16 bias=f16 residual=f16", CASE_FULL},
    {"m=8 n=11008 k=4096 w=q4_0", CASE_FULL},
    {"m=8 n=4096 k=11008 w=q8_0", CASE_FULL},
    {"m=512 n=4096 k=4096 w=bf16 x=bf16 y=bf16", CASE_FULL},
    {"m=1024 n=1024 k=1024 x=f32 w=f32 y=f32", CASE_FULL},
    {"n=28672 k=8192 w=q4_0", CASE_FULL},
    {"n=28672 k=8192 w=w4 group=128", CASE_FULL},
    {"m=8 n=11008 k=4096 w=gptq_v1 group=128", CASE_FULL},
    {"m=16 n=4096 k=11008 w=gptq_v2 group=128 order=act", CASE_FULL},
    {"m=64 n=4096 k=4096 w=awq_gemm group=128", CASE_FULL},
    {"m=16 n=4096 k=4096 w=ct group=128 x=bf16 scale=bf16 y=bf16", CASE_FULL},
    {"m=128 n=4096 k=4096 w=q4_k", CASE_FULL},
    {"m=3 n=4096 k=4096 w=q6_k x=f32 y=f32", CASE_FULL},
    {"n=2880 k=2880 x=f32 w=f16", CASE_FULL},
    {"m=100 n=5125 k=511 x=f32 w=w8 group=100 y=bf16", CASE_FULL},
    {"m=5 n=769 k=3584 x=f32 w=q8_0", CASE_FULL},
    {"m=77 n=500 k=2880 x=bf16 w=f32 y=f32", CASE_FULL},
    {"m=77 n=500 k=2880 x=f32 w=bf16 y=f32", CASE_FULL},
    {"m=77 n=500 k=2880 x=bf16 w=q4_0 y=f32", CASE_FULL},
    {"m=77 n=500 k=2880 x=bf16 w=f16 y=f32", CASE_FULL},
    {"m=70000 n=3 k=70 w=f32 y=f32 bias=f32", CASE_FULL},
    {"m=2048 n=11008 k=4096 w=w8a8", CASE_FULL},
    {"m=70000 n=3 k=70 w=w8a8 y=f32", CASE_FULL},
    {"m=301 n=1100 k=2200 w=w8a8 bias=f32 residual=f16", CASE_FULL},
    {"m=200 n=536 k=2112 w=w8a8 y=bf16", CASE_FULL},
};

/* A tensor [m, columns] or [batch, m / batch, columns], with `gap` elements between rows and as
 * many rows between batches as keep them from folding. */
static case_tensor *add_rows(case_run *run, const case_line *line, const char *name, case_role role,
                             llmk_dtype dtype, uint64_t columns, uint64_t gap, llmk_tensor *slot)
{
    const uint64_t m = case_u64(line, "m"), batch = case_u64(line, "batch");
    const uint64_t flat[2] = {m, columns}, deep[3] = {batch, batch ? m / batch : 0, columns};
    case_tensor *t =
        case_add_tensor(run, name, role, dtype, batch ? 3 : 2, batch ? deep : flat, slot);
    if (gap || batch)
        case_set_row_stride(t, case_plus(columns, gap));
    if (batch)
        t->stride[0] = case_plus(t->stride[0], 8);
    t->pad = case_u64(line, "pad");
    return t;
}

/* The format, shape and options of the weights. */
static bool describe(case_run *run, const case_line *line, llmk_format format, linear_weights *w)
{
    const uint64_t n = case_u64(line, "n"), k = case_u64(line, "k"), bits = case_u64(line, "bits");
    const linear_order order = (linear_order)case_u64(line, "order");
    const linear_zeros zeros = (linear_zeros)case_u64(line, "zeros");
    const bool tables = checkpoint_has_tables(format),
               ct = format == LLMK_FORMAT_COMPRESSED_TENSORS;
    const bool gptq = format == LLMK_FORMAT_GPTQ_V1 || format == LLMK_FORMAT_GPTQ_V2;
    const bool k_quant = format == LLMK_FORMAT_GGUF_Q4_K || format == LLMK_FORMAT_GGUF_Q6_K;
    const bool gguf = format >= LLMK_FORMAT_GGUF_Q8_0 && !tables;
    if (bits != 4 && (bits != 8 || !(gptq || ct)))
        return case_refuse(run, "bits is %llu; expected 4, or 8 of GPTQ and compressed-tensors",
                           (unsigned long long)bits);
    const uint64_t k_step = k_quant ? 256 : gguf ? 32 : gptq ? 32 / bits : 1;
    if (k % k_step)
        return case_refuse(run, "k is %llu; expected a multiple of %llu for w=%s",
                           (unsigned long long)k, (unsigned long long)k_step,
                           llmk_format_name(format));
    if (case_u64(line, "group") && format != LLMK_FORMAT_W8 && !tables)
        return case_refuse(run, "group goes with w=w8 and formats with scales apart");
    if ((gptq || format == LLMK_FORMAT_AWQ_GEMM) && n % (32 / bits))
        return case_refuse(run, "n is %llu; expected a multiple of %llu for w=%s",
                           (unsigned long long)n, (unsigned long long)(32 / bits),
                           llmk_format_name(format));
    if (order != LINEAR_IN_ORDER && !gptq && !ct)
        return case_refuse(run, "order goes with GPTQ and compressed-tensors");
    if (zeros != LINEAR_ZEROS && (!tables || (zeros == LINEAR_ZEROS_I8 && !ct)))
        return case_refuse(run,
                           "zeros goes with formats that have them, i8 with compressed-tensors");
    const llmk_dtype scale = case_dtype(line, "scale");
    if (scale != LLMK_F32 && scale != LLMK_F16 && scale != LLMK_BF16)
        return case_refuse(run, "scale is no float type");
    *w = (linear_weights){.format = format,
                          .n = n,
                          .k = k,
                          .group = case_u64(line, "group"),
                          .row_padding = case_u64(line, "rowpad"),
                          .bits = tables ? (uint32_t)bits : 0,
                          .scale_type = scale,
                          .zeros_as = zeros,
                          .order = order};
    return true;
}

/* Their sizes, unless n and k are such that computing these would overflow. */
static void reserve_weights(case_run *run, linear_weights *w)
{
    const uint64_t rows = (w->n > w->k ? w->n : w->k) + 1; /* some formats store k rows of n */
    const uint64_t most =
        case_plus(case_times(4 * (w->n + 1), w->k + 1), case_times(rows, w->row_padding));
    if (most > UINT64_MAX / 64) {
        case_reserve(run, "the weights", UINT64_MAX, 0);
        return;
    }
    linear_weights_set_sizes(w);
    const uint64_t bytes = w->data_bytes + w->scales_bytes + w->zeros_bytes + w->g_idx_bytes;
    /* filling takes a byte for a weight and f64 for a scale, or a row in f64 */
    case_reserve(run, "the weights", bytes + (w->n + 16) * (w->k + 1), bytes);
}

static bool make_weights(case_run *run, linear_weights *w)
{
    w->data = case_alloc(run, w->data_bytes);
    w->scales = case_alloc(run, w->scales_bytes);
    w->zeros = w->zeros_bytes ? case_alloc(run, w->zeros_bytes) : NULL;
    w->g_idx = w->g_idx_bytes ? case_alloc(run, w->g_idx_bytes) : NULL;
    memset(w->data, 0xa5, w->data_bytes);
    case_keep(run, w);
    return (case_as_they_occur(run) ? linear_weights_fill_as_they_occur : linear_weights_fill)(w,
                                                                                               7) ||
           case_refuse(run, "the host has no memory to fill the weights");
}

/* Of nine rows one of zeros, one of next to nothing, one with a NaN and infinities. */
static void put_odd_values(case_tensor *x)
{
    const uint64_t k = x->dim[x->rank - 1], rows = k ? x->count / k : 0;
    for (uint64_t r = 0; r < rows; r++) {
        double *row = x->values + r * k;
        for (uint64_t i = 0; i < k && (r % 9 == 0 || r % 9 == 3); i++)
            row[i] = r % 9 == 0 ? 0 : case_round(x->dtype, row[i] * 1e-36);
        if (r % 9 == 6) {
            row[0] = (double)NAN;
            row[k / 2] = (double)INFINITY;
            row[k - 1] = -(double)INFINITY;
        }
    }
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_linear_args *args = args_;
    const uint64_t m = case_u64(line, "m"), n = case_u64(line, "n"), k = case_u64(line, "k");
    const uint64_t batch = case_u64(line, "batch");
    const bool w8a8 = case_u64(line, "w") == W8A8;
    const llmk_format format = w8a8 ? LLMK_FORMAT_W8 : (llmk_format)case_u64(line, "w");
    const llmk_dtype bias_type = case_dtype(line, "bias"), y_type = case_dtype(line, "y");
    const llmk_dtype residual_type = case_dtype(line, "residual");
    if (!llmk_format_name(format))
        return case_refuse(run, "w is no weight format");
    linear_weights *w = case_alloc(run, sizeof *w);
    if (!describe(run, line, format, w))
        return false;
    if (batch && m % batch)
        return case_refuse(run, "batch does not divide m");
    if (w8a8 ? case_u64(line, "group") || k > 131072 : case_flag(line, "odd"))
        return case_refuse(run,
                           "w=w8a8 has one scale a row, and k of 131072 at most; odd is for it");
    args->flags = (case_flag(line, "invariant") ? LLMK_LINEAR_BATCH_INVARIANT : 0) |
                  (w8a8 ? LLMK_LINEAR_W8A8 : 0);
    if (case_flag(line, "transposed") && batch)
        return case_refuse(run, "transposed and batch exclude each other");
    if (case_flag(line, "inplace") &&
        (residual_type != y_type || case_u64(line, "rgap") != case_u64(line, "ygap")))
        return case_refuse(run, "inplace: y and the residual need the same dtype and gaps");

    reserve_weights(run, w);
    case_tensor *x = add_rows(run, line, "x", CASE_INPUT, case_dtype(line, "x"), k,
                              case_u64(line, "xgap"), &args->x);
    if (case_flag(line, "transposed")) {
        x->stride[0] = 1;
        x->stride[1] = m;
    }
    case_tensor *bias = NULL, *residual = NULL;
    if (bias_type) {
        bias = case_add_tensor(run, "bias", CASE_INPUT, bias_type, 1, &n, &args->bias);
        bias->pad = case_u64(line, "pad");
    }
    if (residual_type)
        residual = add_rows(run, line, "residual", CASE_INPUT, residual_type, n,
                            case_u64(line, "rgap"), &args->residual);
    case_tensor *y =
        add_rows(run, line, "y", CASE_OUTPUT, y_type, n, case_u64(line, "ygap"), &args->y);
    if (case_flag(line, "inplace"))
        case_in_place(run, y, residual);
    if (!case_declared(run) || !make_weights(run, w))
        return false;
    case_fill_values(run, x, CASE_UNIFORM, case_as_they_occur(run) ? 0.3 : 1, 1);
    if (case_flag(line, "odd"))
        put_odd_values(x);
    if (bias)
        case_fill_values(run, bias, CASE_UNIFORM, 2, 2);
    if (residual)
        case_fill_values(run, residual, CASE_UNIFORM, 2, 3);
    if (case_timing_only(run))
        return true;
    const linear_problem_f64 problem = {.w = w,
                                        .m = m,
                                        .x = x->values,
                                        .bias = bias ? bias->values : NULL,
                                        .residual = residual ? residual->values : NULL,
                                        .w8a8 = w8a8,
                                        .sample = case_samples(run),
                                        .y_type = y_type,
                                        .y = case_expect(run, y),
                                        .bound = case_bound(run, y)};
    return linear_reference(&problem) ||
           case_refuse(run, "the host has no memory for a row of the weights");
}

static void free_weights(void *weights)
{
    llmk_weights_free(weights);
}

static bool prepare_set(case_run *run, const case_line *line, void *args_, size_t set)
{
    (void)set;
    llmk_linear_args *args = args_;
    const linear_weights *w = case_kept(run);
    const llmk_weights_desc desc = linear_weights_describe(w);
    llmk_weights *weights = NULL;
    const llmk_status status = llmk_weights_create_as(case_context(run), &desc,
                                                      (llmk_layout_class)case_u64(line, "layout"),
                                                      case_u64(line, "split"), &weights);
    if (status == LLMK_OUT_OF_DEVICE_MEMORY)
        return case_skip(run, "weights: %s", llmk_error_message());
    if (status != LLMK_OK)
        return case_refuse(run, "weights: %s", llmk_error_message());
    case_cleanup(run, free_weights, weights);
    args->weights = weights;
    llmk_weights_info info = LLMK_INIT(llmk_weights_info);
    if (llmk_weights_get_info(weights, &info) == LLMK_OK)
        case_count_bytes(run, info.device_bytes, 0);
    uint64_t bytes = 0;
    const llmk_status sized = llmk_linear_workspace_size(case_context(run), args, &bytes);
    if (sized == LLMK_OK && bytes == 0)
        return true;
    return case_workspace(run, sized, bytes, &args->workspace);
}

static double flops(const case_line *line)
{
    return 2.0 * case_get(line, "m") * case_get(line, "n") * case_get(line, "k");
}

CASE_OP(linear, LLMK_OP_LINEAR, prepare_set);
