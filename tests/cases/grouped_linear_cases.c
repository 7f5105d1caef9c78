/* grouped_linear_cases.c - linear layers of experts: distributions of rows, formats, shapes. */
#include "cases/expert_weights.h"
#include "reference/moe_reference.h"

enum { ROWS_EVEN, ROWS_ONE, ROWS_REST, ROWS_SKEWED, ROWS_SPARSE };
/* at random; all of one expert's; the last third nobody's; most of the first experts'; of every
 * third expert only */
static const char *const rows_names[] = {"even", "one", "rest", "skewed", "sparse", NULL};

static const case_field fields[] = {
    {"r", CASE_U64, 8, NULL, "rows"},
    {"e", CASE_U64, 8, NULL, "experts"},
    {"n", CASE_U64, 64, NULL, "out features"},
    {"k", CASE_U64, 64, NULL, "in features"},
    {"rows", CASE_ENUM, ROWS_EVEN, rows_names, "whose they are"},
    {"fan", CASE_U64, 0, NULL, "experts a token, with a source; 0: each row has its own of x"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "dtype of x"},
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "dtype of y"},
    {"bias", CASE_ENUM, LLMK_DTYPE_NONE, case_float_or_none_names, "dtype of the bias"},
    {"gap", CASE_U64, 0, NULL, "elements between rows"},
    {"inner", CASE_U64, 1, NULL, "innermost stride"},
    {"pad", CASE_U64, 0, NULL, "elements by which tensors start off their alignment"},
    EXPERT_WEIGHTS_FIELDS,
};

static const case_entry entries[] = {
    {"", CASE_QUICK},
    {"r=0", CASE_QUICK},
    {"n=0", CASE_QUICK},
    {"r=3 e=1 n=5 k=0 bias=f32", CASE_QUICK},
    {"r=1 e=1 n=1 k=1", CASE_QUICK},
    {"r=5 e=3 n=17 k=33 bias=f16", CASE_QUICK},
    {"r=40 e=8 n=48 k=192", CASE_QUICK},
    {"r=200 e=5 n=70 k=100 y=f32 bias=f32", CASE_QUICK},
    {"r=130 e=2 n=65 k=511 fan=2 y=f32", CASE_QUICK},
    {"r=64 e=60 n=33 k=72 fan=4", CASE_QUICK},
    {"r=24 e=160 n=20 k=40 fan=6 y=f32", CASE_QUICK},
    {"r=20 e=512 n=8 k=16 fan=10", CASE_QUICK},
    {"r=9 e=1024 n=4 k=8 y=f32", CASE_QUICK},
    {"r=150 e=7 n=40 k=64 rows=one y=f32", CASE_QUICK},
    {"r=30 e=7 n=40 k=64 rows=one y=f32", CASE_QUICK},
    {"r=150 e=7 n=40 k=64 rows=rest bias=f16", CASE_QUICK},
    {"r=30 e=7 n=40 k=64 rows=rest y=f32 bias=f32", CASE_QUICK},
    {"r=300 e=16 n=33 k=64 rows=skewed y=f32", CASE_QUICK},
    {"r=70 e=16 n=33 k=64 rows=sparse y=f32", CASE_QUICK},
    /* formats, few rows and many */
    {"r=20 e=4 n=40 k=96 w=bf16 y=f32", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 w=f32 y=f32", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 w=w8 y=f32", CASE_QUICK},
    {"r=20 e=1 n=40 k=96 w=w8 y=f32", CASE_QUICK},
    {"r=100 e=4 n=40 k=100 w=w8 group=24 y=f32", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 w=w4 group=32 y=f32", CASE_QUICK},
    {"r=100 e=4 n=40 k=98 w=w4 group=14 y=f32 wscale=f32", CASE_QUICK},
    {"r=20 e=4 n=37 k=96 w=w4 group=32 zeros=none y=f32 array", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 w=gptq_v1 group=32 y=f32", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 w=gptq_v1 group=32 order=act y=f32", CASE_QUICK},
    {"r=100 e=4 n=40 k=96 w=gptq_v2 group=32 order=act y=f32 fan=2", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 w=gptq_v2 group=32 order=act y=f32 array split=4000", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 w=gptq_v1 group=32 order=plain y=f32", CASE_QUICK},
    {"r=100 e=4 n=40 k=100 w=gptq_v2 group=20 bits=8 zeros=none y=f32", CASE_QUICK},
    {"r=20 e=4 n=40 k=97 w=awq_gemm group=32 y=f32", CASE_QUICK},
    {"r=100 e=4 n=40 k=96 w=awq_gemm group=16 y=f32 array", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 w=ct group=32 y=f32", CASE_QUICK},
    {"r=100 e=4 n=37 k=99 w=ct group=33 zeros=i8 order=act y=f32", CASE_QUICK},
    {"r=20 e=4 n=37 k=96 w=q8_0 y=f32", CASE_QUICK},
    {"r=20 e=4 n=37 k=96 w=q4_0 y=f32", CASE_QUICK},
    {"r=100 e=4 n=37 k=96 w=q4_1 y=f32", CASE_QUICK},
    {"r=20 e=3 n=17 k=512 w=q4_k y=f32", CASE_QUICK},
    {"r=100 e=3 n=17 k=512 w=q6_k y=f32", CASE_QUICK},
    /* layouts of one expert */
    {"r=3 e=1 n=40 k=96 w=w4 group=32 nv y=f32", CASE_QUICK},
    {"r=70 e=1 n=37 k=96 w=w8 nv y=f32 bias=f32", CASE_QUICK},
    /* K in whole steps: tiles of up to 8 rows, of up to 16, several of an expert */
    {"r=14 e=8 n=80 k=384 y=f32 bias=f32", CASE_QUICK},
    {"r=40 e=8 n=48 k=256 y=f32", CASE_QUICK},
    {"r=90 e=8 n=50 k=128 rows=skewed y=f32 fan=2", CASE_QUICK},
    {"r=12 e=8 n=48 k=256 x=bf16 w=bf16 rows=sparse y=bf16", CASE_QUICK},
    /* many experts, of whose tiles most may not be there: work-groups take turns */
    {"r=70 e=40 n=64 k=128 rows=sparse y=f32 bias=f32", CASE_QUICK},
    {"r=40 e=60 n=64 k=128 y=f32", CASE_QUICK},
    /* experts in layouts of matrix units */
    {"r=7 e=4 n=48 k=512 w=w4 group=128 zeros=none nv y=f32", CASE_QUICK},
    {"r=30 e=4 n=48 k=256 w=w4 group=128 zeros=none nv y=f32", CASE_QUICK},
    {"r=8 e=4 n=48 k=256 w=w4 group=128 nv y=f32", CASE_QUICK},
    {"r=60 e=4 n=48 k=256 w=w4 group=128 nv y=f32 rows=skewed bias=f32", CASE_QUICK},
    {"r=40 e=3 n=32 k=512 w=w4 group=64 zeros=none nv x=bf16 y=f32 rows=one", CASE_QUICK},
    {"r=6 e=4 n=16 k=256 w=w4 group=32 zeros=none nv y=f32", CASE_QUICK},
    {"r=30 e=4 n=48 k=256 w=w4 nv y=f32", CASE_QUICK},
    {"r=20 e=4 n=48 k=256 w=w8 nv y=f32 rows=rest bias=f16", CASE_QUICK},
    {"r=8 e=4 n=48 k=128 w=w8 group=64 nv y=f32", CASE_QUICK},
    {"r=30 e=4 n=48 k=256 w=q4_1 nv y=f32", CASE_QUICK},
    {"r=20 e=4 n=48 k=256 w=gptq_v2 group=32 order=act nv y=f32 array", CASE_QUICK},
    {"r=24 e=4 n=48 k=256 w=w4 group=128 wscale=f32 nv y=f32 split=14000", CASE_QUICK},
    {"r=20 e=4 n=40 k=256 w=w4 group=32 nv y=f32", CASE_QUICK}, /* no whole blocks */
    /* types, strides, buffers */
    {"r=20 e=4 n=40 k=96 x=f32 w=f32 y=f32 bias=f32", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 x=bf16 w=bf16 y=bf16 bias=bf16", CASE_QUICK},
    {"r=100 e=4 n=40 k=96 x=bf16 w=w4 group=32 y=bf16", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 gap=3 bias=f16", CASE_QUICK},
    {"r=100 e=4 n=40 k=96 gap=8 pad=1 fan=3", CASE_QUICK},
    {"r=20 e=4 n=40 k=96 inner=2 bias=f16 fan=2", CASE_QUICK},
    {"r=40 e=10 n=40 k=96 split=20000 y=f32 bias=f32", CASE_QUICK},
    {"r=100 e=5 n=40 k=96 split=8000 y=f32 rows=rest", CASE_QUICK},

    /* for wgmma: rows in the order of the groups, multiples of 32 outputs */
    {"r=1 e=1 n=32 k=8 y=f32", CASE_QUICK},
    {"r=63 e=1 n=256 k=64 y=f32", CASE_QUICK},
    {"r=64 e=1 n=288 k=200 y=f32", CASE_QUICK},
    {"r=65 e=1 n=160 k=72", CASE_QUICK},
    {"r=128 e=1 n=96 k=328 y=f32 bias=f16", CASE_QUICK},
    {"r=129 e=1 n=64 k=136 x=bf16 w=bf16 y=bf16", CASE_QUICK},
    {"r=300 e=2 n=96 k=136 x=bf16 w=bf16 y=f32 bias=bf16", CASE_QUICK},
    {"r=700 e=5 n=160 k=96 rows=skewed", CASE_QUICK},
    {"r=500 e=60 n=64 k=72 rows=sparse y=f32", CASE_QUICK},
    {"r=300 e=3 n=96 k=64 rows=rest bias=f32", CASE_QUICK},
    {"r=260 e=5 n=96 k=96 split=20000 rows=rest y=f32", CASE_QUICK},
    {"r=200 e=3 n=64 k=64 gap=8 y=f32", CASE_QUICK},
    {"r=160 e=1 n=288 k=72 y=f32", CASE_QUICK},
    {"r=161 e=1 n=96 k=328 y=f32", CASE_QUICK},
    {"r=300 e=1 n=288 k=200 y=f32", CASE_QUICK},
    {"r=385 e=1 n=64 k=136 x=bf16 w=bf16 y=bf16 bias=f32", CASE_QUICK},
    {"r=900 e=3 n=160 k=328 rows=skewed", CASE_QUICK},
    {"r=800 e=3 n=96 k=64 rows=rest bias=f16 y=f32", CASE_QUICK},
    {"r=700 e=2 n=96 k=96 split=20000 rows=rest y=f32", CASE_QUICK},
    /* codes, and many rows */
    {"r=90 e=3 n=96 k=128 w=w4 group=128 nv y=f32", CASE_QUICK},
    {"r=300 e=3 n=272 k=264 w=w4 group=128 nv rows=rest bias=f16 y=f32", CASE_QUICK},
    {"r=200 e=2 n=80 k=320 w=w4 group=128 wscale=bf16 nv rows=skewed y=f32", CASE_QUICK},
    {"r=160 e=1 n=64 k=256 w=w4 zeros=none nv x=bf16 y=bf16", CASE_QUICK},
    {"r=200 e=3 n=256 k=192 w=w8 nv rows=skewed y=f32", CASE_QUICK},
    {"r=150 e=2 n=48 k=192 w=w8 group=64 nv x=bf16 y=f32", CASE_QUICK},
    {"r=150 e=3 n=64 k=128 w=w8 nv rows=one split=20000 bias=f32 y=f32", CASE_QUICK},
    {"r=100 e=4 n=37 k=100 w=w4 group=32 zeros=none y=f32", CASE_QUICK},
    {"r=70 e=2 n=140 k=96 w=q8_0 x=bf16 y=f32", CASE_QUICK},
    {"r=70 e=3 n=17 k=512 w=q4_k y=f32", CASE_QUICK},

    {"r=64 e=8 n=512 k=256 fan=2", CASE_FULL},
    {"r=256 e=8 n=512 k=256 fan=2", CASE_FULL},
    {"r=1024 e=8 n=512 k=256 fan=2", CASE_FULL},
    {"r=128 e=16 n=512 k=256 fan=4", CASE_FULL},
    {"r=512 e=16 n=512 k=256 fan=4", CASE_FULL},
    {"r=2048 e=16 n=512 k=256 fan=4", CASE_FULL},
    {"r=64 e=8 n=256 k=512", CASE_FULL},
    {"r=256 e=8 n=256 k=512", CASE_FULL},
    {"r=1024 e=8 n=256 k=512", CASE_FULL},
    {"r=128 e=16 n=256 k=512", CASE_FULL},
    {"r=512 e=16 n=256 k=512", CASE_FULL},
    {"r=2048 e=16 n=256 k=512", CASE_FULL},
    {"r=512 e=16 n=512 k=256 rows=skewed x=bf16 w=bf16 y=bf16", CASE_FULL},
    {"r=512 e=64 n=768 k=2048 fan=8 w=w4 group=128", CASE_FULL},
    {"r=64 e=8 n=1024 k=1024 fan=2 w=q8_0", CASE_FULL},
};

static case_tensor *add(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                        uint32_t rank, const uint64_t *dim, llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    const uint64_t inner = case_u64(line, "inner");
    case_tensor *t = case_add_tensor(run, name, role, dtype, rank, dim, slot);
    t->pad = case_u64(line, "pad");
    t->stride[rank - 1] = inner;
    if (rank == 2)
        t->stride[0] = case_plus(case_times(dim[1], inner), case_u64(line, "gap"));
    return t;
}

/* The expert of a row, before rows are put together; `experts`: none. */
static uint64_t expert_of(int rows, uint64_t experts, uint64_t count, uint64_t row)
{
    const uint64_t random = moe_random(5, row);
    switch (rows) {
    case ROWS_ONE:
        return experts / 2;
    case ROWS_REST:
        return row >= count - count / 3 ? experts : random % experts;
    case ROWS_SKEWED:
        return random % 4 ? random / 4 % (experts < 3 ? experts : 3) : random / 4 % experts;
    case ROWS_SPARSE:
        return random % ((experts + 2) / 3) * 3;
    default:
        return random % experts;
    }
}

static bool expect(case_run *run, const case_line *line, const expert_weights *w,
                   const case_tensor *x, const case_tensor *offsets, const case_tensor *source,
                   const case_tensor *bias, case_tensor *y)
{
    const uint64_t rows = case_u64(line, "r"), fan = case_u64(line, "fan");
    double *expected = case_expect(run, y), *bound = case_bound(run, y);
    double *gathered = case_alloc(run, (rows * w->k + 1) * sizeof *gathered);
    for (uint64_t r = 0; r < rows; r++)
        memcpy(gathered + r * w->k,
               x->values + (fan ? (uint64_t)source->values[r] / fan : r) * w->k,
               w->k * sizeof *gathered);
    for (uint64_t e = 0; e < w->experts; e++) {
        const uint64_t begin = (uint64_t)offsets->values[e], end = (uint64_t)offsets->values[e + 1];
        const linear_problem_f64 problem = {.w = &w->each[e % w->made],
                                            .m = end - begin,
                                            .x = gathered + begin * w->k,
                                            .bias = bias ? bias->values + e * w->n : NULL,
                                            .sample = case_samples(run),
                                            .y_type = y->dtype,
                                            .y = expected + begin * w->n,
                                            .bound = bound + begin * w->n};
        if (!linear_reference(&problem))
            return case_refuse(run, "the host has no memory for a row of the weights");
    }
    return true;
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_grouped_linear_args *args = args_;
    const uint64_t rows = case_u64(line, "r"), experts = case_u64(line, "e"),
                   n = case_u64(line, "n"), k = case_u64(line, "k"), fan = case_u64(line, "fan");
    const uint64_t tokens = fan ? (rows + fan - 1) / fan : rows, ends = experts + 1;
    const llmk_dtype bias_type = case_dtype(line, "bias");
    if (experts < 1 || experts > 1024)
        return case_refuse(run, "expected 1 to 1024 experts");
    if (fan > 1 << 20)
        return case_refuse(run, "fan is more than 2^20");
    expert_weights *w = case_alloc(run, sizeof *w);
    if (!expert_weights_describe(run, w, experts, n, k))
        return false;
    args->experts_a_token = fan;
    case_tensor *x =
        add(run, "x", CASE_INPUT, case_dtype(line, "x"), 2, (uint64_t[]){tokens, k}, &args->x);
    case_tensor *offsets = add(run, "offsets", CASE_INPUT, LLMK_I32, 1, &ends, &args->offsets);
    case_tensor *source =
        fan ? add(run, "source", CASE_INPUT, LLMK_I32, 1, &rows, &args->source) : NULL;
    case_tensor *bias = bias_type ? add(run, "bias", CASE_INPUT, bias_type, 2,
                                        (uint64_t[]){experts, n}, &args->bias)
                                  : NULL;
    case_tensor *y =
        add(run, "y", CASE_OUTPUT, case_dtype(line, "y"), 2, (uint64_t[]){rows, n}, &args->y);
    if (!case_declared(run) || !expert_weights_fill(run, w, 7))
        return false;
    case_keep(run, w);
    case_fill_values(run, x, CASE_UNIFORM, 1, 1);
    if (bias)
        case_fill_values(run, bias, CASE_UNIFORM, 2, 2);
    double *count = case_alloc(run, (experts + 1) * sizeof *count);
    for (uint64_t r = 0; r < rows; r++)
        count[expert_of((int)case_get(line, "rows"), experts, rows, r)]++;
    for (uint64_t e = 0; e < experts; e++)
        offsets->values[e + 1] = offsets->values[e] + count[e];
    for (uint64_t r = 0; source && r < rows; r++)
        source->values[r] = (double)(moe_random(9, r) % (tokens * fan));
    return case_timing_only(run) || expect(run, line, w, x, offsets, source, bias, y);
}

static bool prepare_set(case_run *run, const case_line *line, void *args_, size_t set)
{
    (void)line, (void)set;
    llmk_grouped_linear_args *args = args_;
    uint64_t bytes = 0;
    if (!expert_weights_create(run, case_kept(run), true, &args->weights))
        return false;
    const llmk_status status = llmk_grouped_linear_workspace_size(case_context(run), args, &bytes);
    return case_workspace(run, status, bytes, &args->workspace);
}

static double flops(const case_line *line)
{
    return 2 * case_get(line, "r") * case_get(line, "n") * case_get(line, "k");
}

CASE_OP(grouped_linear, LLMK_OP_GROUPED_LINEAR, prepare_set);
