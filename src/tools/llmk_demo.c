/*
 * llmk-demo - runs the MLP blocks of a real model on an OpenCL device and checks every layer; or
 * one mixture-of-experts layer of a model's shape.
 *
 * T rows of the embedding table go through all layers: RMSNorm, gate and up projections with SwiGLU
 * in one call, down projection with the residual. Each layer is compared with an f64 reference that
 * starts from the device's own input of that layer, so that errors do not hide in those of the
 * layers before.
 */
#include "core/core.h"
#include "core/half.h"
#include "formats/gguf_write.h"
#include "formats/new_file.h"
#include "tools/common/bench_stats.h"
#include "tools/common/mlp_model.h"
#include "tools/common/mlp_reference.h"
#include "tools/common/moe_demo.h"
#include "tools/common/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define MAX_ROWS     65536u
#define DEFAULT_ROWS 8u

static const char usage[] =
    "usage: llmk-demo MODEL.gguf [options]\n"
    "       llmk-demo MODEL.safetensors [options]   (config.json lies beside it)\n"
    "       llmk-demo --moe PRESET [options] [FIELD=VALUE ...]\n"
    "       llmk-demo --generate OUT.gguf\n"
    "       llmk-demo --generate-safetensors gptq|awq FOLDER\n"
    "\n"
    "Runs the MLP block of every layer of a model on the device, checks each layer against an f64\n"
    "reference, and prints time and bandwidth per operator. Exits with 1 if a bound is broken.\n"
    "With --moe, does the same with one mixture-of-experts layer of seeded weights in a model's\n"
    "shape, kernel by kernel; FIELD=VALUE as in llmk-bench --list: w=w4 group=128, routing=zipf.\n"
    "\n"
    "  -r, --rows T        rows (tokens) to run, default 8; at most those of the embedding table,\n"
    "                      and 65536\n"
    "  -n, --layers N      only the first N layers\n"
    "      --moe PRESET    mixtral-8x7b, deepseek-v3, qwen2-57b, gpt-oss-20b, ...\n"
    "      --scale S       with --moe: experts and widths divided by S, to fit a device\n"
    "      --unchecked     with --moe: times alone; one expert's weights stand for all, which a\n"
    "                      large layer is made of much sooner\n"
    "  -t, --dtype TYPE    f16 (default), bf16 or f32: the type of activations\n"
    "  -d, --device WHICH  an index, \"gpu\", \"cpu\" or a part of \"PLATFORM / DEVICE\"\n"
    "      --seconds S     how long to time each operator, default 0.3; 0: not at all\n"
    "      --slice OUT     write the T rows and N layers as a smaller GGUF file, and stop\n"
    "      --generate OUT  write a small synthetic model (Q4_1), and stop\n"
    "      --generate-safetensors METHOD\n"
    "                      write one of GPTQ (version 1, act-order) or AWQ weights into a folder\n"
    "  -h, --help          this text\n"
    "      --version       the library's version\n";

typedef struct options {
    const char *model, *slice, *generate, *method, *moe;
    uint64_t rows;   /* 0: DEFAULT_ROWS, or all where there are fewer */
    uint64_t layers; /* 0: all */
    uint64_t scale;
    llmk_dtype dtype;
    double seconds;
    bool unchecked;
} options;

/* Everything on the device. */
typedef struct demo {
    const options *opt;
    mlp_model model;
    llmk_context *ctx;
    cl_command_queue queue;
    uint64_t rows;
    uint32_t layer_count;
    mlp_device_layer *layers;
    cl_mem x, h, inner; /* activations; the block's output goes in place over x */
    llmk_workspace *workspace;
} demo;

/* Sentences on files begin with the name. */
static bool fail(const char *what, const char *why)
{
    const bool named = strncmp(why, what, strlen(what)) == 0;
    char *text = strdup(why);
    if (text)
        llmk_make_printable(text, true); /* it may be of a file's words */
    fprintf(stderr, "llmk-demo: %s%s%s\n", named ? "" : what, named ? "" : ": ",
            text ? text : "out of memory");
    free(text);
    return false;
}

static bool fail_status(const char *what)
{
    return fail(what, tool_error_message());
}

/* ---- Activations between host and device ---- */

static size_t element_size(const demo *d)
{
    return llmk_dtype_bits(d->opt->dtype) / 8;
}

static void encode(llmk_dtype dtype, double value, void *out)
{
    const float f = (float)value;
    const uint16_t bits = dtype == LLMK_F16 ? llmk_f32_to_f16(f) : llmk_f32_to_bf16(f);
    if (dtype == LLMK_F32)
        memcpy(out, &f, sizeof f);
    else
        memcpy(out, &bits, sizeof bits);
}

static double decode(llmk_dtype dtype, const void *in)
{
    float f;
    uint16_t bits;
    if (dtype == LLMK_F32) {
        memcpy(&f, in, sizeof f);
        return f;
    }
    memcpy(&bits, in, sizeof bits);
    return dtype == LLMK_F16 ? llmk_f16_to_f32(bits) : llmk_bf16_to_f32(bits);
}

static bool read_x(demo *d, double *values)
{
    const size_t count = (size_t)(d->rows * d->model.hidden), size = element_size(d);
    char *bytes = malloc(count * size);
    const bool ok = bytes && clEnqueueReadBuffer(d->queue, d->x, CL_TRUE, 0, count * size, bytes, 0,
                                                 NULL, NULL) == CL_SUCCESS;
    for (size_t i = 0; ok && i < count; i++)
        values[i] = decode(d->opt->dtype, bytes + i * size);
    free(bytes);
    return ok ? true : fail("reading activations", "the device did not give them back");
}

/* The first rows of the embedding table, rounded to the activations' type, to the device. */
static bool write_embeddings(demo *d, double *values)
{
    const mlp_model *m = &d->model;
    const size_t hidden = (size_t)m->hidden, size = element_size(d);
    float *row = malloc(hidden * sizeof *row);
    char *bytes = malloc((size_t)d->rows * hidden * size);
    bool ok = row && bytes;
    for (uint64_t r = 0; ok && r < d->rows; r++) {
        ok = mlp_matrix_row(&m->embedding, r, row);
        for (size_t k = 0; ok && k < hidden; k++) {
            char *where = bytes + (r * hidden + k) * size;
            encode(d->opt->dtype, (double)row[k], where);
            values[r * hidden + k] = decode(d->opt->dtype, where);
        }
    }
    if (!ok)
        fail("embeddings", "out of memory, or a type without a host conversion");
    ok = ok && clEnqueueWriteBuffer(d->queue, d->x, CL_TRUE, 0, (size_t)d->rows * hidden * size,
                                    bytes, 0, NULL, NULL) == CL_SUCCESS;
    free(row);
    free(bytes);
    return ok;
}

/* ---- The operators of a block ---- */

typedef enum step { STEP_NORM, STEP_GATED, STEP_DOWN, STEP_COUNT } step;
static const char *const step_names[STEP_COUNT] = {"rmsnorm", "linear gate, up + swiglu",
                                                   "linear down + residual"};

static llmk_tensor activations(const demo *d, cl_mem buffer, uint64_t columns)
{
    return llmk_matrix(buffer, d->opt->dtype, d->rows, columns);
}

static llmk_gated_linear_args gated_args(const demo *d, uint32_t index)
{
    llmk_gated_linear_args args = LLMK_INIT(llmk_gated_linear_args);
    args.activation = LLMK_SILU;
    args.x = activations(d, d->h, d->model.hidden);
    args.gate_weights = d->layers[index].gate;
    args.up_weights = d->layers[index].up;
    args.y = activations(d, d->inner, d->model.intermediate);
    args.workspace = d->workspace;
    return args;
}

static llmk_status run_step(demo *d, uint32_t index, step which)
{
    const mlp_device_layer *l = &d->layers[index];
    const uint64_t hidden = d->model.hidden;
    const llmk_tensor x = activations(d, d->x, hidden);
    switch (which) {
    case STEP_NORM: {
        llmk_rmsnorm_args args = LLMK_INIT(llmk_rmsnorm_args);
        args.x = x;
        args.weight = llmk_vector(l->norm, LLMK_F32, hidden);
        args.y = activations(d, d->h, hidden);
        args.eps = d->model.epsilon;
        args.flags = d->model.epsilon == 0 ? LLMK_RMSNORM_EPS_ZERO : 0;
        return llmk_rmsnorm(d->ctx, d->queue, &args, NULL);
    }
    case STEP_GATED: {
        const llmk_gated_linear_args args = gated_args(d, index);
        return llmk_gated_linear(d->ctx, d->queue, &args, NULL);
    }
    case STEP_DOWN: {
        llmk_linear_args args = LLMK_INIT(llmk_linear_args);
        args.x = activations(d, d->inner, d->model.intermediate);
        args.weights = l->down;
        args.residual = args.y = x; /* in place */
        return llmk_linear(d->ctx, d->queue, &args, NULL);
    }
    case STEP_COUNT:
        break;
    }
    return LLMK_INTERNAL;
}

/* True bytes of one step of one layer: each tensor once. */
static double step_bytes(const demo *d, uint32_t index, step which)
{
    const mlp_layer *l = &d->model.layers[index];
    const double size = (double)element_size(d), rows = (double)d->rows;
    const double x = rows * (double)d->model.hidden * size;
    const double inner = rows * (double)d->model.intermediate * size;
    switch (which) {
    case STEP_NORM:
        return 2 * x + (double)l->norm.bytes;
    case STEP_GATED:
        return x + inner + (double)l->gate.bytes + (double)l->up.bytes;
    case STEP_DOWN:
        return inner + 2 * x + (double)l->down.bytes;
    case STEP_COUNT:
        break;
    }
    return 0;
}

/* ---- Checking ---- */

/* Normalised mean squared error; the bound is four times what the reference's variances sum to. */
static bool report(const char *label, const double *got, const double *expected,
                   const double *variance, size_t count)
{
    double error = 0, power = 0, spread = 0;
    for (size_t i = 0; i < count; i++) {
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        power += expected[i] * expected[i];
        spread += variance ? variance[i] : 0;
    }
    const double floor = power > 0 ? power : 1;
    const double nmse = error / floor, bound = 4 * spread / floor;
    const bool ok = variance ? nmse <= bound : isfinite(nmse); /* NaN is never ok */
    if (variance)
        printf("%s nmse=%.3e bound=%.3e %s\n", label, nmse, bound, ok ? "ok" : "BROKEN");
    else
        printf("%s nmse=%.3e %s\n", label, nmse, ok ? "ok" : "BROKEN");
    return ok;
}

typedef struct check_buffers {
    double *input, *output, *expected, *variance, *chain, *chain_next;
} check_buffers;

static bool check_layer(demo *d, uint32_t index, check_buffers *b, bool *within)
{
    const size_t count = (size_t)(d->rows * d->model.hidden);
    char error[512], label[64];
    if (!read_x(d, b->input))
        return false;
    for (int s = 0; s < STEP_COUNT; s++)
        if (run_step(d, index, (step)s) != LLMK_OK)
            return fail_status(step_names[s]);
    if (!read_x(d, b->output))
        return false;
    if (!mlp_reference_layer(&d->model, index, d->rows, d->opt->dtype, b->input, b->expected,
                             b->variance, error, sizeof error) ||
        !mlp_reference_layer(&d->model, index, d->rows, d->opt->dtype, b->chain, b->chain_next,
                             NULL, error, sizeof error))
        return fail("reference", error);
    double *swap = b->chain;
    b->chain = b->chain_next;
    b->chain_next = swap;
    snprintf(label, sizeof label, "layer=%u", index);
    *within = report(label, b->output, b->expected, b->variance, count) && *within;
    fflush(stdout);
    return true;
}

static bool check_all(demo *d)
{
    const size_t count = (size_t)(d->rows * d->model.hidden);
    double *pool = malloc(6 * count * sizeof *pool);
    if (!pool)
        return fail("checking", "out of memory");
    check_buffers b = {
        pool, pool + count, pool + 2 * count, pool + 3 * count, pool + 4 * count, pool + 5 * count};
    bool within = true;
    bool ok = write_embeddings(d, b.chain);
    for (uint32_t i = 0; ok && i < d->layer_count; i++)
        ok = check_layer(d, i, &b, &within);
    if (ok) /* b.chain has gone through all layers in f64 alone */
        within = report("chained", b.output, b.chain, NULL, count) && within;
    free(pool);
    if (ok && !within)
        return fail("check", "at least one layer is outside its bound");
    return ok;
}

/* ---- Timing ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds for `passes` passes of the steps [first, last] over all layers; negative on failure. */
static double time_passes(demo *d, step first, step last, unsigned passes)
{
    const double start = now();
    for (unsigned p = 0; p < passes; p++)
        for (uint32_t i = 0; i < d->layer_count; i++)
            for (int s = (int)first; s <= (int)last; s++)
                if (run_step(d, i, (step)s) != LLMK_OK)
                    return -1;
    if (clFinish(d->queue) != CL_SUCCESS)
        return -1;
    return now() - start;
}

/* Batches whose spread is shown; where there are more, the last ones. */
#define MOST_BATCHES 512

static bool time_steps(demo *d, step first, step last, const char *name)
{
    double bytes = 0;
    for (uint32_t i = 0; i < d->layer_count; i++)
        for (int s = (int)first; s <= (int)last; s++)
            bytes += step_bytes(d, i, (step)s);
    unsigned passes = 1;
    size_t count = 0;
    double us[MOST_BATCHES], best = INFINITY, spent = time_passes(d, first, last, 1); /* warm-up */
    const double once = time_passes(d, first, last, 1);
    if (spent < 0 || once < 0)
        return fail_status(name);
    if (once < d->opt->seconds / 8)
        passes = (unsigned)(d->opt->seconds / 8 / (once > 1e-6 ? once : 1e-6)) + 1;
    for (spent = 0; spent < d->opt->seconds;) {
        const double t = time_passes(d, first, last, passes);
        if (t < 0)
            return fail_status(name);
        spent += t;
        best = t / passes < best ? t / passes : best;
        us[count++ % MOST_BATCHES] = 1e6 * t / passes / d->layer_count;
    }
    const bench_stats stats = bench_stats_of(us, count < MOST_BATCHES ? count : MOST_BATCHES);
    printf("%-24s %10.2f us/layer %10.2f GB/s %10.2f .. %.2f us\n", name,
           1e6 * best / d->layer_count, 1e-9 * bytes / best, stats.p5, stats.p95);
    fflush(stdout);
    return true;
}

static bool time_all(demo *d)
{
    printf("\n%-24s %19s %15s   %s\n", "operator", "least time", "bandwidth",
           "5 % .. 95 % of times");
    for (int s = 0; s < STEP_COUNT; s++)
        if (!time_steps(d, (step)s, (step)s, step_names[s]))
            return false;
    return time_steps(d, STEP_NORM, STEP_DOWN, "whole block");
}

/* ---- Set-up ---- */

static bool make_buffer(demo *d, cl_mem *buffer, uint64_t columns)
{
    cl_int err;
    *buffer = clCreateBuffer(llmk_context_cl_context(d->ctx), CL_MEM_READ_WRITE,
                             (size_t)(d->rows * columns) * element_size(d), NULL, &err);
    return *buffer ? true : fail("activations", "the device has no memory for them");
}

/* For the products of gate and up; all layers are of one shape. */
static bool make_workspace(demo *d)
{
    const llmk_gated_linear_args args = gated_args(d, 0);
    uint64_t bytes = 0;
    if (llmk_gated_linear_workspace_size(d->ctx, &args, &bytes) != LLMK_OK ||
        llmk_workspace_create(d->ctx, bytes, &d->workspace) != LLMK_OK)
        return fail_status("workspace");
    return true;
}

static bool set_up(demo *d)
{
    if (llmk_context_create(NULL, &d->ctx) != LLMK_OK)
        return fail_status("no context");
    llmk_device_info info = LLMK_INIT(llmk_device_info);
    if (llmk_context_device_info(d->ctx, &info) != LLMK_OK)
        return fail_status("reading the device");
    cl_int err;
    d->queue = clCreateCommandQueue(llmk_context_cl_context(d->ctx), llmk_context_cl_device(d->ctx),
                                    0, &err);
    d->layers = calloc(d->layer_count, sizeof *d->layers);
    if (!d->queue || !d->layers)
        return fail("set-up", "cannot make a queue");
    uint64_t weight_bytes = 0;
    for (uint32_t i = 0; i < d->layer_count; i++) {
        if (mlp_layer_upload(d->ctx, &d->model, i, &d->layers[i]) != LLMK_OK)
            return fail_status("uploading weights");
        const mlp_layer *l = &d->model.layers[i];
        weight_bytes += l->gate.bytes + l->up.bytes + l->down.bytes;
    }
    printf("device=\"%s / %s\"\n", info.platform, info.name);
    printf("model=\"%s\" architecture=%s hidden=%" PRIu64 " intermediate=%" PRIu64
           " layers=%u rows=%" PRIu64 " activations=%s gate=%s weights=%.1f MiB\n",
           d->opt->model, d->model.architecture, d->model.hidden, d->model.intermediate,
           d->layer_count, d->rows, llmk_dtype_name(d->opt->dtype),
           llmk_format_name(d->model.layers[0].gate.desc.format), (double)weight_bytes / (1 << 20));
    fflush(stdout);
    return make_buffer(d, &d->x, d->model.hidden) && make_buffer(d, &d->h, d->model.hidden) &&
           make_buffer(d, &d->inner, d->model.intermediate) && make_workspace(d);
}

static void tear_down(demo *d)
{
    cl_mem const buffers[] = {d->x, d->h, d->inner};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i])
            clReleaseMemObject(buffers[i]);
    for (uint32_t i = 0; d->layers && i < d->layer_count; i++)
        mlp_layer_free(&d->layers[i]);
    free(d->layers);
    llmk_workspace_free(d->workspace);
    if (d->queue)
        clReleaseCommandQueue(d->queue);
    llmk_context_free(d->ctx);
    mlp_model_close(&d->model);
}

/* As many as asked for, or a refusal. */
static bool choose_sizes(demo *d)
{
    const options *opt = d->opt;
    const uint64_t rows = d->model.embedding.rows;
    char why[128];
    if (opt->rows > rows) {
        snprintf(why, sizeof why, "the embedding table has %" PRIu64 " rows; --rows is %" PRIu64,
                 rows, opt->rows);
        return fail(opt->model, why);
    }
    if (opt->layers > d->model.layer_count) {
        snprintf(why, sizeof why, "the model has %u layers; --layers is %" PRIu64,
                 d->model.layer_count, opt->layers);
        return fail(opt->model, why);
    }
    d->rows = opt->rows ? opt->rows : rows < DEFAULT_ROWS ? rows : DEFAULT_ROWS;
    d->layer_count = opt->layers ? (uint32_t)opt->layers : d->model.layer_count;
    return true;
}

static bool run(const options *opt)
{
    demo d = {.opt = opt};
    char error[512];
    if (!mlp_model_open(opt->model, &d.model, error, sizeof error))
        return fail(opt->model, error);
    if (d.model.note[0])
        printf("note: %s\n", d.model.note);
    bool ok = choose_sizes(&d);
    if (!ok) {
        /* and it has been said why */
    } else if (opt->slice && llmk_same_file(opt->slice, opt->model)) {
        ok = fail(opt->slice, "is the model itself; a slice goes to a file of its own");
    } else if (opt->slice) {
        ok = mlp_model_slice(&d.model, d.rows, d.layer_count, opt->slice, error, sizeof error) ||
             fail(opt->slice, error);
        if (ok)
            printf("wrote %s: %" PRIu64 " rows, %u layers\n", opt->slice, d.rows, d.layer_count);
    } else {
        ok = set_up(&d) && check_all(&d) && (opt->seconds <= 0 || time_all(&d));
    }
    tear_down(&d);
    return ok;
}

static bool generate(const char *path)
{
    const llmk_gguf_synthetic model = {.hidden = 256,
                                       .intermediate = 704,
                                       .blocks = 4,
                                       .rows = 64,
                                       .type = LLMK_GGUF_Q4_1,
                                       .embedding_type = LLMK_GGUF_Q8_0,
                                       .rms_epsilon = 1e-5f,
                                       .seed = 1};
    char error[512];
    if (!llmk_gguf_write_synthetic(&model, path, error, sizeof error))
        return fail(path, error);
    printf("wrote %s: a synthetic model, %u layers\n", path, model.blocks);
    return true;
}

static bool generate_safetensors(const char *method, const char *folder)
{
    char error[512];
    if (!mlp_model_generate(method, folder, error, sizeof error))
        return fail(folder, error);
    printf("wrote %s/model.safetensors and config.json: a synthetic model, %s\n", folder, method);
    return true;
}

/* ---- Command line ---- */

static bool parse_count(const char *text, uint64_t most, uint64_t *value)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long v = strtoull(text, &end, 10);
    if (errno || end == text || *end != '\0' || text[0] == '-' || v == 0 || v > most)
        return false;
    *value = v;
    return true;
}

static bool parse_dtype(const char *text, llmk_dtype *dtype)
{
    for (int d = LLMK_F32; d <= LLMK_BF16; d++)
        if (strcasecmp(text, llmk_dtype_name((llmk_dtype)d)) == 0) {
            *dtype = (llmk_dtype)d;
            return true;
        }
    return false;
}

static bool parse_seconds(const char *text, double *seconds)
{
    char *end = NULL;
    *seconds = strtod(text, &end);
    return end != text && *end == '\0' && *seconds >= 0 && *seconds <= 3600;
}

/* Why the command line makes no sense. */
static int refuse(const char *fmt, const char *text)
{
    fputs("llmk-demo: ", stderr);
    fprintf(stderr, fmt, text);
    fputs("\nTry 'llmk-demo --help'.\n", stderr);
    return 2;
}

enum {
    OPT_SECONDS = 256,
    OPT_SLICE,
    OPT_GENERATE,
    OPT_SAFETENSORS,
    OPT_MOE,
    OPT_SCALE,
    OPT_UNCHECKED,
    OPT_VERSION
};

/* 0, or the exit status of a refusal. `*runs`: the first option that says how to run a model. */
static int read_option(int option, options *opt, const char **runs)
{
    const char *name = NULL;
    switch (option) {
    case 'r':
        name = "--rows";
        if (!parse_count(optarg, MAX_ROWS, &opt->rows))
            return refuse("--rows is a whole number from 1 to 65536, not \"%s\"", optarg);
        break;
    case 'n':
        name = "--layers";
        if (!parse_count(optarg, UINT32_MAX, &opt->layers))
            return refuse("--layers is a whole number of at least 1, not \"%s\"", optarg);
        break;
    case 't':
        name = "--dtype";
        if (!parse_dtype(optarg, &opt->dtype))
            return refuse("--dtype is f32, f16 or bf16, not \"%s\"", optarg);
        break;
    case 'd':
        name = "--device";
        tool_sets("LLMK_DEVICE", "--device", optarg);
        break;
    case OPT_SECONDS:
        name = "--seconds";
        if (!parse_seconds(optarg, &opt->seconds))
            return refuse("--seconds is a number from 0 to 3600, not \"%s\"", optarg);
        break;
    case OPT_SLICE:
        name = "--slice";
        opt->slice = optarg;
        break;
    case OPT_GENERATE:
        opt->generate = optarg;
        break;
    case OPT_SAFETENSORS:
        opt->method = optarg;
        break;
    case OPT_MOE:
        opt->moe = optarg;
        break;
    case OPT_SCALE:
        if (!parse_count(optarg, UINT32_MAX, &opt->scale))
            return refuse("--scale is a whole number of at least 1, not \"%s\"", optarg);
        break;
    case OPT_UNCHECKED:
        opt->unchecked = true;
        break;
    default: /* getopt_long has said what is wrong */
        fputs("Try 'llmk-demo --help'.\n", stderr);
        return 2;
    }
    *runs = *runs ? *runs : name;
    return 0;
}

/* What goes with what; `left` arguments are not options. 0, or the exit status of a refusal. */
static int check_command(const options *opt, const char *runs, int left)
{
    if (opt->generate && opt->method)
        return refuse("%s does not go with --generate-safetensors", "--generate");
    if (opt->moe && (opt->generate || opt->method || opt->slice || opt->layers))
        return refuse(
            "%s does not go with --generate, --generate-safetensors, --slice and --layers",
            "--moe");
    if (opt->moe)
        return 0; /* what is left are fields */
    if (opt->scale != 1 || opt->unchecked)
        return refuse("%s goes with --moe", opt->scale != 1 ? "--scale" : "--unchecked");
    if ((opt->generate || opt->method) && runs)
        return refuse("%s is for running a model, and does not go with generating one", runs);
    if (opt->generate && left > 0)
        return refuse("%s takes one file, and no model", "--generate");
    if (opt->method && left != 1)
        return refuse("%s takes a method and one folder", "--generate-safetensors");
    if (opt->method && !mlp_model_generates(opt->method))
        return refuse("--generate-safetensors is gptq or awq, not \"%s\"", opt->method);
    if (!opt->generate && left != 1)
        return refuse("%s", left == 0 ? "no model is given" : "one model at a time");
    return 0;
}

static int run_command(int argc, char **argv)
{
    static const struct option known[] = {
        {"rows", required_argument, NULL, 'r'},
        {"layers", required_argument, NULL, 'n'},
        {"dtype", required_argument, NULL, 't'},
        {"device", required_argument, NULL, 'd'},
        {"seconds", required_argument, NULL, OPT_SECONDS},
        {"slice", required_argument, NULL, OPT_SLICE},
        {"generate", required_argument, NULL, OPT_GENERATE},
        {"generate-safetensors", required_argument, NULL, OPT_SAFETENSORS},
        {"moe", required_argument, NULL, OPT_MOE},
        {"scale", required_argument, NULL, OPT_SCALE},
        {"unchecked", no_argument, NULL, OPT_UNCHECKED},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, OPT_VERSION},
        {NULL, 0, NULL, 0}};
    options opt = {.scale = 1, .dtype = LLMK_F16, .seconds = 0.3};
    const char *runs = NULL;
    int option, status = 0;
    while (!status && (option = tool_option(argc, argv, "r:n:t:d:h", known)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        if (option == OPT_VERSION) {
            puts(llmk_build_info());
            return 0;
        }
        status = read_option(option, &opt, &runs);
    }
    if (!status)
        status = check_command(&opt, runs, argc - optind);
    if (status)
        return status;
    if (opt.moe) {
        const moe_demo_options moe = {
            opt.moe,       opt.scale,    opt.rows ? opt.rows : DEFAULT_ROWS,
            opt.dtype,     opt.seconds,  !opt.unchecked,
            argv + optind, argc - optind};
        return moe_demo(&moe);
    }
    if (opt.generate)
        return generate(opt.generate) ? 0 : 1;
    if (opt.method)
        return generate_safetensors(opt.method, argv[optind]) ? 0 : 1;
    opt.model = argv[optind];
    return run(&opt) ? 0 : 1;
}

int main(int argc, char **argv)
{
    return tool_main("llmk-demo", run_command, argc, argv);
}
