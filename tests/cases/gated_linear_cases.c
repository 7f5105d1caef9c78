/* gated_linear_cases.c - gate and up in one call: activations, layouts, formats, strides. */
#include "cases/expert_weights.h"
#include "reference/gated_linear_reference.h"

static const char *const layout_names[] = {"split", "packed", "interleaved", NULL};
static const char *const activation_names[] = {"",      "silu",    "gelu_erf", "gelu_tanh",
                                               "relu2", "clamped", NULL};

static const case_field fields[] = {
    {"m", CASE_U64, 1, NULL, "rows of x"},
    {"n", CASE_U64, 64, NULL, "outputs of a row"},
    {"k", CASE_U64, 64, NULL, "in features"},
    {"act", CASE_ENUM, LLMK_SILU, activation_names, "activation"},
    {"layout", CASE_ENUM, LLMK_GATE_SPLIT, layout_names, "where gate and up lie"},
    {"limit", CASE_FLOAT, 0, NULL, "limit of the clamped activation"},
    {"alpha", CASE_FLOAT, 0, NULL, "alpha of the clamped activation"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "dtype of x"},
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "dtype of y"},
    {"gb", CASE_ENUM, LLMK_DTYPE_NONE, case_float_or_none_names,
     "dtype of the gate's (joined: the only) bias"},
    {"ub", CASE_ENUM, LLMK_DTYPE_NONE, case_float_or_none_names, "dtype of up's bias"},
    {"residual", CASE_ENUM, LLMK_DTYPE_NONE, case_float_or_none_names, "dtype of the residual"},
    {"inplace", CASE_FLAG, 0, NULL, "y over the residual"},
    {"batch", CASE_U64, 0, NULL, "x, residual and y are [batch, m / batch, ...] with gaps"},
    {"gap", CASE_U64, 0, NULL, "elements between rows"},
    {"pad", CASE_U64, 0, NULL, "elements by which tensors start past an aligned address"},
    {"bare", CASE_FLAG, 0, NULL, "without a workspace"},
    {"mixed", CASE_FLAG, 0, NULL, "up's weights are f32, whatever the gate's are"},
    {"invariant", CASE_FLAG, 0, NULL, "LLMK_LINEAR_BATCH_INVARIANT"},
    EXPERT_WEIGHTS_FIELDS,
};

static const case_entry entries[] = {
    /* nothing, and next to nothing */
    {"m=0", CASE_QUICK},
    {"n=0", CASE_QUICK},
    {"n=0 layout=packed", CASE_QUICK},
    {"m=3 n=5 k=0 gb=f32 ub=f16 residual=f16", CASE_QUICK},
    {"n=1 k=1", CASE_QUICK},
    {"n=1 k=1 layout=interleaved gb=f16", CASE_QUICK},
    /* activations and layouts */
    {"n=48 k=192", CASE_QUICK},
    {"m=5 n=70 k=130 act=gelu_erf gb=f16 ub=f32 y=f32", CASE_QUICK},
    {"m=5 n=70 k=130 act=gelu_tanh layout=packed gb=f32 y=f32", CASE_QUICK},
    {"m=5 n=70 k=130 act=relu2 layout=interleaved gb=bf16 y=f32", CASE_QUICK},
    {"m=5 n=70 k=130 act=clamped gb=f16 ub=f16 y=f32", CASE_QUICK},
    {"m=5 n=70 k=130 act=clamped limit=2 alpha=1.5 layout=interleaved gb=f16 y=f32", CASE_QUICK},
    {"m=70 n=65 k=511 layout=packed y=f32", CASE_QUICK},
    {"m=130 n=96 k=256 layout=interleaved residual=f32", CASE_QUICK},
    {"m=65 n=129 k=200 gb=f32 ub=f32 residual=f16 y=f32", CASE_QUICK},
    /* formats, few rows and many */
    {"m=3 n=40 k=96 w=bf16 y=f32", CASE_QUICK},
    {"m=66 n=40 k=96 w=f32 y=f32 x=f32", CASE_QUICK},
    {"m=3 n=40 k=96 w=w8 y=f32", CASE_QUICK},
    {"m=66 n=40 k=100 w=w8 group=24 y=f32", CASE_QUICK},
    {"m=3 n=40 k=98 w=w4 group=14 y=f32 wscale=f32", CASE_QUICK},
    {"m=66 n=40 k=96 w=gptq_v1 group=32 layout=packed y=f32", CASE_QUICK},
    {"m=3 n=40 k=96 w=gptq_v2 group=32 order=act layout=packed y=f32", CASE_QUICK},
    {"m=3 n=40 k=97 w=awq_gemm group=32 y=f32", CASE_QUICK},
    {"m=66 n=37 k=96 w=ct group=32 y=f32", CASE_QUICK},
    {"m=3 n=37 k=96 w=q8_0 y=f32", CASE_QUICK},
    {"m=66 n=37 k=96 w=q4_0 y=f32", CASE_QUICK},
    {"m=3 n=37 k=96 w=q4_1 y=f32", CASE_QUICK},
    {"m=3 n=17 k=512 w=q4_k y=f32", CASE_QUICK},
    {"m=66 n=17 k=512 w=q6_k layout=interleaved y=f32", CASE_QUICK},
    {"m=5 n=40 k=96 w=q4_0 mixed y=f32", CASE_QUICK},
    {"m=5 n=17 k=256 w=q4_k mixed y=f32", CASE_QUICK},
    {"m=20 n=96 k=256 act=relu2 w=w8 nv", CASE_QUICK},
    {"m=5 n=300 k=64 w=w8 split=9000 gb=f32 ub=f32 residual=f16 y=f32", CASE_QUICK},
    {"m=5 n=300 k=64 w=w8 split=9000 layout=packed gb=f32 y=f32", CASE_QUICK},
    /* the layouts of NVIDIA's matrix unit: scales, zeros, groups, edges of blocks */
    {"n=48 k=192 w=w4 group=64 nv", CASE_QUICK},
    {"m=16 n=17 k=4104 w=w4 group=128 y=f32 nv", CASE_QUICK},
    {"m=9 n=1 k=192 w=w4 group=32 zeros=none y=f32 nv", CASE_QUICK},
    {"m=2 n=48 k=1000 w=w4 wscale=f32 gb=f32 ub=f16 y=f32 nv", CASE_QUICK},
    {"m=8 n=96 k=256 w=w4 group=128 zeros=none layout=packed gb=f16 residual=f16 nv", CASE_QUICK},
    {"m=8 n=40 k=256 w=w4 group=128 layout=packed y=f32 nv", CASE_QUICK},
    {"m=16 n=72 k=1032 w=gptq_v1 group=32 order=act layout=packed y=f32 nv", CASE_QUICK},
    {"m=15 n=65 k=992 w=q4_1 act=gelu_tanh y=f32 nv", CASE_QUICK},
    {"n=131 k=4096 w=q4_0 y=f32 residual=f32 nv", CASE_QUICK},
    {"n=33 k=511 w=w8 y=f32 nv", CASE_QUICK},
    {"m=16 n=97 k=1056 w=w8 group=96 act=clamped gb=f32 ub=f32 y=f32 nv", CASE_QUICK},
    {"m=16 n=64 k=512 w=w8 residual=f16 inplace nv", CASE_QUICK},
    {"m=7 n=67 k=511 x=bf16 w=ct group=32 zeros=i8 bits=8 y=bf16 nv", CASE_QUICK},
    {"m=10 n=60 k=96 w=w4 group=32 gap=3 pad=1 residual=f16 nv", CASE_QUICK},
    {"m=12 n=37 k=96 w=w8 split=2100 gb=f32 y=f32 nv", CASE_QUICK},
    {"m=70 n=48 k=192 w=w4 group=64 y=f32 nv", CASE_QUICK},
    {"m=5 n=48 k=192 x=f32 w=w8 y=f32 nv", CASE_QUICK},
    {"m=5 n=67 k=520 w=w4 group=64 invariant nv", CASE_QUICK},
    /* many rows, as the kernels of experts take them: their tiles, biases, rows with gaps */
    {"m=300 n=96 k=200 gb=f32 ub=f16 y=f32", CASE_QUICK},
    {"m=401 n=160 k=136 x=bf16 w=bf16 y=bf16 act=gelu_erf layout=packed gb=bf16", CASE_QUICK},
    {"m=33 n=32 k=64 act=clamped layout=interleaved gb=f16 gap=8", CASE_QUICK},
    {"m=257 n=224 k=136 gb=f16 ub=f32 residual=f16 inplace", CASE_QUICK},
    {"m=193 n=96 k=520 x=bf16 w=bf16 y=bf16 layout=packed gb=f32 gap=8", CASE_QUICK},
    {"m=260 n=208 k=64 layout=interleaved", CASE_QUICK},
    {"m=200 n=96 k=384 w=w4 group=128 gb=f32 ub=f32 y=f32 nv", CASE_QUICK},
    {"m=70 n=48 k=256 w=w4 group=128 wscale=f32 act=relu2 layout=packed gb=f16 nv", CASE_QUICK},
    {"m=300 n=160 k=512 x=bf16 w=w8 y=bf16 layout=interleaved gap=8 nv", CASE_QUICK},
    {"m=140 n=64 k=320 w=w8 group=64 bare y=f32 nv", CASE_QUICK},
    /* types, strides, in place */
    {"m=20 n=40 k=96 x=bf16 w=bf16 y=bf16 gb=bf16 ub=bf16 residual=bf16", CASE_QUICK},
    {"m=7 n=40 k=96 gap=3 residual=f32", CASE_QUICK},
    {"m=70 n=40 k=96 gap=8 pad=1 residual=f16 inplace", CASE_QUICK},
    {"m=12 batch=3 n=40 k=96 residual=f16", CASE_QUICK},
    {"m=72 batch=3 n=40 k=96 gap=8", CASE_QUICK},
    {"m=72 batch=3 n=40 k=96 gap=2 gb=f32 residual=f16 inplace", CASE_QUICK},
    /* without a workspace, and with more rows than its scratch holds */
    {"m=1 n=70 k=200 bare y=f32", CASE_QUICK},
    {"m=70 n=70 k=200 w=w8 bare gb=f16 y=f32", CASE_QUICK},
    {"m=20800 n=400 k=2 residual=f16 y=f32", CASE_QUICK},

    {"n=11008 k=4096 w=w4 group=128", CASE_FULL},
    {"m=16 n=11008 k=4096 w=w8", CASE_FULL},
    {"m=512 n=11008 k=4096", CASE_FULL},
    {"m=300 n=28672 k=512 w=w4 group=128", CASE_FULL},
};

/* A tensor [m, columns] or [batch, m / batch, columns], with `gap` elements between rows and as
 * many rows between batches as keep them from folding. */
static case_tensor *add_rows(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                             uint64_t columns, llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    const uint64_t m = case_u64(line, "m"), batch = case_u64(line, "batch");
    const uint64_t gap = case_u64(line, "gap");
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

static case_tensor *add_bias(case_run *run, const char *name, llmk_dtype dtype, uint64_t n,
                             llmk_tensor *slot)
{
    case_tensor *t = dtype ? case_add_tensor(run, name, CASE_INPUT, dtype, 1, &n, slot) : NULL;
    if (t)
        t->pad = case_u64(case_run_line(run), "pad");
    return t;
}

typedef struct pair {
    expert_weights gate, up;
} pair;

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_gated_linear_args *args = args_;
    const uint64_t m = case_u64(line, "m"), n = case_u64(line, "n"), k = case_u64(line, "k");
    const uint64_t batch = case_u64(line, "batch");
    const llmk_dtype gb = case_dtype(line, "gb"), ub = case_dtype(line, "ub");
    const llmk_dtype residual_type = case_dtype(line, "residual"), y_type = case_dtype(line, "y");
    args->activation = (llmk_activation)case_get(line, "act");
    args->layout = (llmk_gate_layout)case_get(line, "layout");
    args->limit = (float)case_get(line, "limit");
    args->alpha = (float)case_get(line, "alpha");
    args->flags = case_flag(line, "invariant") ? LLMK_LINEAR_BATCH_INVARIANT : 0;
    const bool split = args->layout == LLMK_GATE_SPLIT,
               interleaved = args->layout == LLMK_GATE_INTERLEAVED;
    const uint64_t gate_rows = split ? n : case_times(2, n);
    if (!split && (ub || case_flag(line, "mixed")))
        return case_refuse(run, "a bias or a format of up's own is for the split layout");
    if (batch && m % batch)
        return case_refuse(run, "batch does not divide m");
    if (case_flag(line, "inplace") && residual_type != y_type)
        return case_refuse(run, "inplace: y and the residual need the same dtype");
    pair *w = case_alloc(run, sizeof *w);
    if (!expert_weights_describe(run, &w->gate, 1, gate_rows, k) ||
        (split && !expert_weights_describe(run, &w->up, 1, n, k)))
        return false;
    if (case_flag(line, "mixed")) {
        w->up.first = (linear_weights){.format = LLMK_FORMAT_F32, .n = n, .k = k};
        linear_weights_set_sizes(&w->up.first);
        case_reserve(run, "up's weights", w->up.first.data_bytes, w->up.first.data_bytes);
    }
    case_tensor *x = add_rows(run, "x", CASE_INPUT, case_dtype(line, "x"), k, &args->x);
    case_tensor *gate_bias = add_bias(run, "gate_bias", gb, gate_rows, &args->gate_bias);
    case_tensor *up_bias = add_bias(run, "up_bias", ub, n, &args->up_bias);
    case_tensor *residual =
        residual_type ? add_rows(run, "residual", CASE_INPUT, residual_type, n, &args->residual)
                      : NULL;
    case_tensor *y = add_rows(run, "y", CASE_OUTPUT, y_type, n, &args->y);
    if (case_flag(line, "inplace"))
        case_in_place(run, y, residual);
    if (!case_declared(run) || !expert_weights_fill(run, &w->gate, 7) ||
        (split && !expert_weights_fill(run, &w->up, 8)))
        return false;
    case_keep(run, w);
    case_fill_values(run, x, CASE_UNIFORM, case_as_they_occur(run) ? 0.3 : 1, 1);
    if (gate_bias)
        case_fill_values(run, gate_bias, CASE_UNIFORM, 2, 2);
    if (up_bias)
        case_fill_values(run, up_bias, CASE_UNIFORM, 2, 3);
    if (residual)
        case_fill_values(run, residual, CASE_UNIFORM, 2, 4);
    if (case_timing_only(run))
        return true;
    const gated_linear_f64 problem = {
        .gate = w->gate.each,
        .up = split ? w->up.each : w->gate.each,
        .step = interleaved ? 2 : 1,
        .up_first = split         ? 0
                    : interleaved ? 1
                                  : n,
        .m = m,
        .n = n,
        .x = x->values,
        .gate_bias = gate_bias ? gate_bias->values : NULL,
        .up_bias = split       ? up_bias ? up_bias->values : NULL
                   : gate_bias ? gate_bias->values
                               : NULL,
        .residual = residual ? residual->values : NULL,
        .activation = args->activation,
        .limit = args->limit > 0 ? (double)args->limit : 7,
        .alpha = args->alpha > 0 ? (double)args->alpha : (double)1.702f,
        .y_type = y_type,
        .y = case_expect(run, y),
        .bound = case_bound(run, y),
    };
    return reference_gated_linear(&problem) ||
           case_refuse(run, "the host has no memory for rows of the weights");
}

static bool prepare_set(case_run *run, const case_line *line, void *args_, size_t set)
{
    (void)set;
    llmk_gated_linear_args *args = args_;
    const pair *w = case_kept(run);
    uint64_t bytes = 0;
    if (!expert_weights_create(run, &w->gate, true, &args->gate_weights) ||
        (args->layout == LLMK_GATE_SPLIT &&
         !expert_weights_create(run, &w->up, true, &args->up_weights)))
        return false;
    if (case_flag(line, "bare"))
        return true;
    const llmk_status status = llmk_gated_linear_workspace_size(case_context(run), args, &bytes);
    return case_workspace(run, status, bytes, &args->workspace);
}

/* Two products; an exponential, an addition, a quotient, a product. */
static double flops(const case_line *line)
{
    return case_get(line, "m") * case_get(line, "n") * (4 * case_get(line, "k") + 4);
}

CASE_OP(gated_linear, LLMK_OP_GATED_LINEAR, prepare_set);
