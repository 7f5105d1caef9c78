/* linear_cases.c - linear layers: shapes, weight formats, types, strides. */
#include "cases/case.h"
#include "core/weights.h"
#include "reference/linear_reference.h"

/* Index = llmk_format. */
static const char *const format_names[] = {"", "f32", "f16", "bf16", "",     "",     "",     "",
                                           "", "",    "w8",  "",     "",     "",     "",     "",
                                           "", "",    "",    "",     "q8_0", "q4_0", "q4_1", NULL};

static const case_field fields[] = {
    {"m", CASE_U64, 1, NULL, "rows of x"},
    {"n", CASE_U64, 64, NULL, "out features"},
    {"k", CASE_U64, 64, NULL, "in features"},
    {"x", CASE_ENUM, LLMK_F16, case_dtype_names, "dtype of x"},
    {"w", CASE_ENUM, LLMK_FORMAT_F16, format_names, "format of the weights"},
    {"group", CASE_U64, 0, NULL, "group size of w8; 0: one scale a row"},
    {"y", CASE_ENUM, LLMK_F16, case_dtype_names, "dtype of y"},
    {"bias", CASE_ENUM, LLMK_DTYPE_NONE, case_dtype_names, "dtype of the bias"},
    {"residual", CASE_ENUM, LLMK_DTYPE_NONE, case_dtype_names, "dtype of the residual"},
    {"inplace", CASE_FLAG, 0, NULL, "y over the residual"},
    {"batch", CASE_U64, 0, NULL, "x, residual and y are [batch, m / batch, ...] with gaps"},
    {"transposed", CASE_FLAG, 0, NULL, "x is stored column by column"},
    {"xgap", CASE_U64, 0, NULL, "elements between rows of x"},
    {"rgap", CASE_U64, 0, NULL, "elements between rows of the residual"},
    {"ygap", CASE_U64, 0, NULL, "elements between rows of y"},
    {"pad", CASE_U64, 0, NULL, "elements by which tensors start past an aligned address"},
    {"rowpad", CASE_U64, 0, NULL, "bytes between rows of the weights' source"},
    {"split", CASE_U64, 0, NULL, "largest buffer of the weights, in bytes"},
};

/* A shape of one cost: f16 with every layout, other types of x with some, since each pair is a
 * program to build. */
static const case_entry entries[] = {
    /* Nothing, and next to nothing. */
    {"m=0", CASE_QUICK},
    {"n=0", CASE_QUICK},
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
    {"n=2880 k=2880 x=f32 w=f16", CASE_FULL},
    {"m=100 n=5125 k=511 x=f32 w=w8 group=100 y=bf16", CASE_FULL},
    {"m=5 n=769 k=3584 x=f32 w=q8_0", CASE_FULL},
    {"m=77 n=500 k=2880 x=bf16 w=f32 y=f32", CASE_FULL},
    {"m=77 n=500 k=2880 x=f32 w=bf16 y=f32", CASE_FULL},
    {"m=77 n=500 k=2880 x=bf16 w=q4_0 y=f32", CASE_FULL},
    {"m=77 n=500 k=2880 x=bf16 w=f16 y=f32", CASE_FULL},
    {"m=70000 n=3 k=70 w=f32 y=f32 bias=f32", CASE_FULL},
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
        case_set_row_stride(t, columns + gap);
    if (batch)
        t->stride[0] += 8;
    t->pad = case_u64(line, "pad");
    return t;
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_linear_args *args = args_;
    const uint64_t m = case_u64(line, "m"), n = case_u64(line, "n"), k = case_u64(line, "k");
    const uint64_t batch = case_u64(line, "batch");
    const llmk_format format = (llmk_format)case_u64(line, "w");
    const llmk_dtype bias_type = case_dtype(line, "bias"), y_type = case_dtype(line, "y");
    const llmk_dtype residual_type = case_dtype(line, "residual");
    if (!llmk_format_name(format))
        return case_refuse(run, "w is no weight format");
    if (format >= LLMK_FORMAT_GGUF_Q8_0 && k % 32)
        return case_refuse(run, "k is %llu; expected a multiple of 32", (unsigned long long)k);
    if (case_u64(line, "group") && format != LLMK_FORMAT_W8)
        return case_refuse(run, "group goes with w=w8");
    if (batch && m % batch)
        return case_refuse(run, "batch does not divide m");
    if (case_flag(line, "transposed") && batch)
        return case_refuse(run, "transposed and batch exclude each other");
    if (case_flag(line, "inplace") &&
        (residual_type != y_type || case_u64(line, "rgap") != case_u64(line, "ygap")))
        return case_refuse(run, "inplace: y and the residual need the same dtype and gaps");

    linear_weights *w = case_alloc(run, sizeof *w);
    linear_weights_sizes(w, format, n, k, case_u64(line, "group"), case_u64(line, "rowpad"));
    w->data = case_alloc(run, w->data_bytes);
    w->scales = case_alloc(run, w->scales_bytes);
    memset(w->data, 0xa5, w->data_bytes);
    linear_weights_fill(w, 7);
    case_keep(run, w);

    case_tensor *x = add_rows(run, line, "x", CASE_INPUT, case_dtype(line, "x"), k,
                              case_u64(line, "xgap"), &args->x);
    if (case_flag(line, "transposed")) {
        x->stride[0] = 1;
        x->stride[1] = m;
    }
    case_fill_values(run, x, CASE_UNIFORM, 1, 1);
    case_tensor *bias = NULL, *residual = NULL;
    if (bias_type) {
        bias = case_add_tensor(run, "bias", CASE_INPUT, bias_type, 1, &n, &args->bias);
        bias->pad = case_u64(line, "pad");
        case_fill_values(run, bias, CASE_UNIFORM, 2, 2);
    }
    if (residual_type) {
        residual = add_rows(run, line, "residual", CASE_INPUT, residual_type, n,
                            case_u64(line, "rgap"), &args->residual);
        case_fill_values(run, residual, CASE_UNIFORM, 2, 3);
    }
    case_tensor *y =
        add_rows(run, line, "y", CASE_OUTPUT, y_type, n, case_u64(line, "ygap"), &args->y);
    if (case_flag(line, "inplace"))
        case_in_place(run, y, residual);
    if (case_timing_only(run))
        return true;
    linear_reference(&(linear_problem_f64){.w = w,
                                           .m = m,
                                           .x = x->values,
                                           .bias = bias ? bias->values : NULL,
                                           .residual = residual ? residual->values : NULL,
                                           .y_type = y_type,
                                           .y = case_expect(run, y),
                                           .bound = case_bound(run, y)});
    return true;
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
    const uint64_t split = case_u64(line, "split");
    llmk_weights_desc desc = LLMK_INIT(llmk_weights_desc);
    desc.format = w->format;
    desc.n = w->n;
    desc.k = w->k;
    desc.group_size = w->group;
    desc.row_bytes = w->row_bytes;
    desc.data = (llmk_source){.host = w->data, .size = w->data_bytes};
    if (w->format == LLMK_FORMAT_W8)
        desc.scales = (llmk_source){.host = w->scales, .size = w->scales_bytes};
    llmk_weights *weights = NULL;
    const llmk_status status =
        split ? llmk_weights_create_split(case_context(run), &desc, split, &weights)
              : llmk_weights_create(case_context(run), &desc, &weights);
    if (status == LLMK_OUT_OF_DEVICE_MEMORY)
        return case_skip(run, "weights: %s", llmk_error_message());
    if (status != LLMK_OK)
        return case_refuse(run, "weights: %s", llmk_error_message());
    case_cleanup(run, free_weights, weights);
    args->weights = weights;
    llmk_weights_info info = LLMK_INIT(llmk_weights_info);
    if (llmk_weights_get_info(weights, &info) == LLMK_OK)
        case_count_bytes(run, info.device_bytes, 0);
    return true;
}

static llmk_status call(llmk_context *ctx, cl_command_queue queue, const void *args,
                        const llmk_events *events)
{
    return llmk_linear(ctx, queue, args, events);
}

static double flops(const case_line *line)
{
    return 2.0 * case_get(line, "m") * case_get(line, "n") * case_get(line, "k");
}

const case_op case_op_linear = {
    .name = "linear",
    .op = LLMK_OP_LINEAR,
    .args_size = sizeof(llmk_linear_args),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .entries = entries,
    .entry_count = sizeof entries / sizeof *entries,
    .prepare = prepare,
    .call = call,
    .flops = flops,
    .prepare_set = prepare_set,
};
