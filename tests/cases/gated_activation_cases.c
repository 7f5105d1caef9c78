/* gated_activation_cases.c - cases of llmk_gated_activation. */
#include "cases/layout.h"
#include "reference/norm_reference.h"

#include <math.h>

static const char *const over_names[] = {"none", "gate", "up", NULL};
static const char *const layout_names[] = {"split", "packed", "interleaved", NULL};
static const char *const activation_names[] = {"",      "silu",    "gelu_erf", "gelu_tanh",
                                               "relu2", "clamped", NULL};

static const case_field fields[] = {
    LAYOUT_FIELDS,
    {"d", CASE_U64, 64, NULL, "outputs of a row"},
    {"act", CASE_ENUM, LLMK_SILU, activation_names, "activation"},
    {"layout", CASE_ENUM, LLMK_GATE_SPLIT, layout_names, "where gate and up lie"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "type of gate and up"},
    {"gb", CASE_ENUM, 0, case_float_or_none_names,
     "type of the gate's (joined: the only) bias, or none"},
    {"ub", CASE_ENUM, 0, case_float_or_none_names, "type of up's bias, or none"},
    {"y", CASE_ENUM, LLMK_F16, case_float_names, "type of y"},
    {"over", CASE_ENUM, 0, over_names, "y in place over"},
    {"limit", CASE_FLOAT, 0, NULL, "limit of the clamped activation"},
    {"alpha", CASE_FLOAT, 0, NULL, "alpha of the clamped activation"},
    {"gscale", CASE_FLOAT, 2.2, NULL, "size of gate (joined: of both); 0: zeros"},
    {"uscale", CASE_FLOAT, 1.7, NULL, "size of up; 0: zeros"},
    {"odd", CASE_FLAG, 0, NULL, "NaN, infinities and very large numbers in the gate"},
};

static const case_entry entries[] = {
    /* sizes */
    {"rank1 d=1", CASE_QUICK},
    {"rank1 d=7", CASE_QUICK},
    {"rank1 d=1024", CASE_QUICK},
    {"rank1 d=1032", CASE_QUICK},
    {"rank1 d=1025", CASE_QUICK},
    {"d=64", CASE_QUICK},
    {"d=111 rows=5", CASE_QUICK},
    {"d=2880 rows=4 x=bf16 y=bf16", CASE_QUICK},
    {"d=4096 rows=2", CASE_QUICK},
    {"d=11008 rows=2", CASE_QUICK},
    {"d=13824 rows=2 x=bf16 y=bf16", CASE_QUICK},
    {"d=2 rows=33000 gap=1", CASE_QUICK},
    {"rows=0", CASE_QUICK},
    {"d=0", CASE_QUICK},
    {"d=0 layout=packed", CASE_QUICK},
    {"d=0 layout=interleaved", CASE_QUICK},
    {"rows=0 layout=packed", CASE_QUICK},
    /* activations and layouts */
    {"d=200 layout=packed", CASE_QUICK},
    {"d=201 layout=packed", CASE_QUICK},
    {"d=204 layout=packed", CASE_QUICK},
    {"d=1200 layout=interleaved", CASE_QUICK},
    {"d=201 layout=interleaved", CASE_QUICK},
    {"d=1 layout=packed", CASE_QUICK},
    {"d=1 layout=interleaved", CASE_QUICK},
    {"d=200 act=gelu_erf", CASE_QUICK},
    {"d=200 act=gelu_tanh layout=packed", CASE_QUICK},
    {"d=200 act=relu2 layout=interleaved", CASE_QUICK},
    {"d=200 act=clamped layout=interleaved x=bf16 y=bf16", CASE_QUICK},
    {"d=200 act=clamped gscale=8 uscale=8", CASE_QUICK},
    {"d=201 act=clamped gscale=8 uscale=8 limit=3 alpha=1", CASE_QUICK},
    {"d=201 act=gelu_erf x=bf16 y=bf16", CASE_QUICK},
    {"d=200 x=f32 y=f32", CASE_QUICK},
    {"d=200 act=gelu_erf x=f32 y=f32 gscale=4", CASE_QUICK},
    {"d=200 act=gelu_tanh x=f32 y=f32 gscale=4", CASE_QUICK},
    {"d=200 act=relu2 x=f32 y=f32", CASE_QUICK},
    {"d=200 act=clamped x=f32 y=f32 gscale=5 uscale=5", CASE_QUICK},
    {"d=201 act=gelu_tanh x=f32 y=f32 layout=interleaved", CASE_QUICK},
    /* types */
    {"d=72 x=f32 y=f16", CASE_QUICK},
    {"d=72 x=bf16 y=f32", CASE_QUICK},
    {"d=73 x=f16 y=f32", CASE_QUICK},
    /* biases */
    {"d=72 gb=f16 ub=f16", CASE_QUICK},
    {"d=73 gb=f32 ub=bf16", CASE_QUICK},
    {"d=72 gb=f32 x=f32 y=f32", CASE_QUICK},
    {"d=72 ub=bf16 x=f32 y=f32", CASE_QUICK},
    {"d=72 gb=f16 layout=packed", CASE_QUICK},
    {"d=73 gb=f32 layout=packed", CASE_QUICK},
    {"d=1200 gb=bf16 layout=interleaved act=clamped x=bf16 y=bf16", CASE_QUICK},
    {"d=73 gb=bf16 layout=interleaved act=clamped x=bf16 y=bf16", CASE_QUICK},
    {"d=72 gb=f32 ub=f32 act=clamped x=f32 y=f32", CASE_QUICK},
    {"d=72 gb=f32 ub=f32 act=gelu_erf x=f32 y=f32", CASE_QUICK},
    {"d=72 gb=f32 ub=f32 act=gelu_tanh x=f32 y=f32", CASE_QUICK},
    {"d=72 gb=f32 ub=f32 act=relu2 x=f32 y=f32", CASE_QUICK},
    /* in place */
    {"d=64 over=gate", CASE_QUICK},
    {"d=64 over=up", CASE_QUICK},
    {"d=67 over=gate gap=3", CASE_QUICK},
    {"d=67 over=up gap=3", CASE_QUICK},
    /* strides and alignment */
    {"rows=5 d=64 gap=8", CASE_QUICK},
    {"rows=5 d=64 gap=1 layout=packed", CASE_QUICK},
    {"rows=5 d=64 gap=8 layout=interleaved", CASE_QUICK},
    {"rows=5 d=64 gap=4 layout=interleaved", CASE_QUICK},
    {"d=64 pad=1", CASE_QUICK},
    {"d=64 pad=1 layout=packed", CASE_QUICK},
    {"d=64 pad=1 layout=interleaved gb=f16", CASE_QUICK},
    {"d=64 pad=8 layout=interleaved gb=f16", CASE_QUICK},
    {"d=64 inner=2 gb=f32 ub=f16", CASE_QUICK},
    {"d=65 inner=3 gap=5 layout=packed gb=f16", CASE_QUICK},
    {"d=65 inner=2 layout=interleaved gb=f16", CASE_QUICK},
    {"d1=3 rows=5 d=64 hole=8", CASE_QUICK},
    {"d0=2 d1=3 rows=5 d=64 gap=8 hole=16 layout=packed", CASE_QUICK},
    {"d0=2 d1=3 rows=2 d=33 gap=1 hole=7 layout=interleaved", CASE_QUICK},
    {"d0=2 d1=3 rows=5 d=96", CASE_QUICK},
    /* values */
    {"d=112 gscale=0", CASE_QUICK},
    {"d=112 uscale=0", CASE_QUICK},
    {"d=112 gscale=10 uscale=10", CASE_QUICK},
    {"d=112 gscale=1e-4 uscale=1e-4", CASE_QUICK},
    {"d=112 gscale=1e4 uscale=1 x=bf16 y=bf16", CASE_QUICK},
    {"d=112 gscale=1e4 uscale=1e4 x=bf16 y=bf16", CASE_QUICK},
    {"d=112 gscale=300 uscale=300", CASE_QUICK},
    {"d=112 gscale=30 x=f32 y=f32", CASE_QUICK},
    {"d=112 gscale=30 act=gelu_erf x=f32 y=f32", CASE_QUICK},
    {"d=112 gscale=1e20 act=gelu_tanh x=f32 y=f32", CASE_QUICK},
    {"d=112 gscale=1e20 act=clamped x=f32 y=f32", CASE_QUICK},
    {"d=112 odd", CASE_QUICK},
    {"d=112 odd act=gelu_erf", CASE_QUICK},
    {"d=113 odd act=gelu_tanh", CASE_QUICK},
    {"d=112 odd act=relu2", CASE_QUICK},
    {"d=112 odd act=clamped", CASE_QUICK},

    {"rows=128 d=4096 x=f32 y=f32", CASE_FULL},
    {"rows=16384 d=11008", CASE_FULL},
    {"rows=16384 d=11008 layout=packed", CASE_FULL},
    {"rows=2048 d=11008", CASE_FULL},
    {"rows=2048 d=11008 x=bf16 y=bf16 layout=packed", CASE_FULL},
    {"rows=1 d=11008", CASE_FULL},
    {"rows=2048 d=13824 x=bf16 y=bf16", CASE_FULL},
    {"rows=4096 d=2880 act=clamped layout=interleaved gb=bf16 x=bf16 y=bf16", CASE_FULL},
    {"rows=2048 d=5125 act=gelu_tanh", CASE_FULL},
    {"rows=2048 d=4096 act=gelu_erf x=bf16 y=bf16", CASE_FULL},
};

/* Powers of ten from far below to far above what exp can take, of both signs. */
static void put_odd_values(case_tensor *gate)
{
    const double large = gate->dtype == LLMK_F16 ? 65504 : 3e38;
    const double odd[] = {
        (double)NAN, (double)INFINITY, large, -large, 1000, -1000, 100, -100, 88.5, -88.5, 0, -0.0};
    for (uint64_t i = 0; i < gate->count && i < sizeof odd / sizeof *odd; i++)
        gate->values[i] = case_round(gate->dtype, odd[i]);
}

static void fill(case_run *run, case_tensor *t, double scale, uint32_t seed)
{
    case_fill_values(run, t, scale == 0 ? CASE_ZERO : CASE_NORMAL, scale, seed);
}

/* Where the tensors' columns lie: column c of gate at c * step, of up at up + c * step. */
typedef struct columns {
    uint64_t width, step, up;
} columns;

static void expect(case_run *run, const case_line *line, const gated_reference *reference,
                   const columns *at, const case_tensor *gate, const case_tensor *up,
                   const case_tensor *gate_bias, const case_tensor *up_bias, case_tensor *y)
{
    const uint64_t d = case_u64(line, "d"), rows = layout_rows(line);
    double *expected = case_expect(run, y), *bound = case_bound(run, y);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < d; c++) {
            const uint64_t g = c * at->step, u = at->up + c * at->step;
            expected[r * d + c] = reference_gated(
                reference, gate->values[r * at->width + g], gate_bias ? gate_bias->values[g] : 0,
                up->values[r * at->width + u], up_bias ? up_bias->values[u] : 0, &bound[r * d + c]);
        }
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_gated_activation_args *args = args_;
    const uint64_t d = case_u64(line, "d");
    const llmk_dtype x = case_dtype(line, "x"), y = case_dtype(line, "y");
    const llmk_dtype gb = case_dtype(line, "gb"), ub = case_dtype(line, "ub");
    args->activation = (llmk_activation)case_get(line, "act");
    args->layout = (llmk_gate_layout)case_get(line, "layout");
    args->limit = (float)case_get(line, "limit");
    args->alpha = (float)case_get(line, "alpha");
    const bool split = args->layout == LLMK_GATE_SPLIT;
    const columns at = {
        .width = split ? d : 2 * d,
        .step = args->layout == LLMK_GATE_INTERLEAVED ? 2 : 1,
        .up = split                              ? 0
              : args->layout == LLMK_GATE_PACKED ? d
                                                 : 1,
    };
    if (ub && !split)
        return case_refuse(run, "a bias of up is for the split layout");

    case_tensor *gate = layout_tensor(run, "gate", CASE_INPUT, x, at.width, 1, &args->gate);
    case_tensor *up = split ? layout_tensor(run, "up", CASE_INPUT, x, d, 2, &args->up) : gate;
    case_tensor *gate_bias =
        gb ? layout_vector(run, "gate_bias", gb, at.width, &args->gate_bias) : NULL;
    case_tensor *up_bias = ub ? layout_vector(run, "up_bias", ub, d, &args->up_bias) : NULL;
    case_tensor *ty = layout_tensor(run, "y", CASE_OUTPUT, y, d, 3, &args->y);
    if (case_get(line, "over") != 0)
        case_in_place(run, ty, case_get(line, "over") == 1 ? gate : up);
    if (!case_declared(run))
        return false;
    fill(run, gate, case_get(line, "gscale"), 1);
    if (case_flag(line, "odd"))
        put_odd_values(gate);
    if (split)
        fill(run, up, case_get(line, "uscale"), 2);
    if (gate_bias)
        fill(run, gate_bias, 1, 3);
    if (up_bias)
        fill(run, up_bias, 1, 4);
    if (case_timing_only(run))
        return true;
    const gated_reference reference = {
        .activation = args->activation,
        .limit = args->limit > 0 ? (double)args->limit : 7,
        .alpha = args->alpha > 0 ? (double)args->alpha : (double)1.702f,
        .y_dtype = y,
    };
    expect(run, line, &reference, &at, gate, up, gate_bias, split ? up_bias : gate_bias, ty);
    return true;
}

/* An exponential, an addition, a quotient, a product. */
static double flops(const case_line *line)
{
    return 4 * (double)layout_rows(line) * case_get(line, "d");
}

CASE_OP(gated_activation, LLMK_OP_GATED_ACTIVATION, NULL);
