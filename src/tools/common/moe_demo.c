/* moe_demo.c - the case of a model's layer, run and timed for people to read. */
#include "tools/common/moe_demo.h"

#include "cases/case.h"
#include "cases/moe_models.h"
#include "tools/common/bench_stats.h"
#include "tools/common/tool.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_KERNELS 32
#define MOST_PASSES  256

static int fail(int status, const char *what, const char *why)
{
    fprintf(stderr, "llmk-demo: %s: %s\n", what, why);
    return status;
}

/* ---- The case ---- */

/* gpt-oss has MXFP4 experts, which become 4-bit groups here. */
static bool is_quantised(const char *preset)
{
    return !strncmp(preset, "gpt-oss", 7);
}

static bool parse(const moe_demo_options *opt, case_line *line, char *error, size_t size)
{
    char text[1024];
    const moe_model *model = moe_model_find(opt->preset);
    const char *type = llmk_dtype_name(opt->dtype);
    bool format_given = false;
    int used =
        snprintf(text, sizeof text,
                 "moe_forward model=%s scale=%" PRIu64 " t=%" PRIu64 " x=%s y=%s%s", opt->preset,
                 opt->scale, opt->rows, type, type, model && model->shared_width ? " shared" : "");
    for (int i = 0; i < opt->field_count && used < (int)sizeof text; i++) {
        format_given = format_given || !strncmp(opt->fields[i], "w=", 2);
        used += snprintf(text + used, sizeof text - (size_t)used, " %s", opt->fields[i]);
    }
    if (!format_given && used < (int)sizeof text)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s",
                         is_quantised(opt->preset) ? " w=w4 group=32"
                         : opt->dtype == LLMK_F32  ? " w=f32"
                         : opt->dtype == LLMK_BF16 ? " w=bf16"
                                                   : " w=f16");
    if (used >= (int)sizeof text) {
        snprintf(error, size, "too many fields");
        return false;
    }
    return case_parse(text, line, error, size);
}

/* ---- Kernels, as the profiler reports them ---- */

typedef struct recorder {
    pthread_mutex_t lock;
    size_t count;
    llmk_profile_record records[MOST_KERNELS];
} recorder;

static void record(void *user, const llmk_profile_record *r)
{
    recorder *to = user;
    pthread_mutex_lock(&to->lock);
    if (to->count < MOST_KERNELS)
        to->records[to->count++] = *r;
    pthread_mutex_unlock(&to->lock);
}

static size_t recorded(recorder *r)
{
    pthread_mutex_lock(&r->lock);
    const size_t count = r->count;
    pthread_mutex_unlock(&r->lock);
    return count;
}

static int by_start(const void *a, const void *b)
{
    const uint64_t x = ((const llmk_profile_record *)a)->started_ns;
    const uint64_t y = ((const llmk_profile_record *)b)->started_ns;
    return (x > y) - (x < y);
}

/* One call; its kernels in the order in which they ran. Records come from a thread of the driver,
 * perhaps after the queue has finished. */
static bool run_once(case_run *run, cl_command_queue queue, recorder *r, size_t kernels)
{
    r->count = 0;
    if (case_run_enqueue(run, 0, NULL) != LLMK_OK || clFinish(queue) != CL_SUCCESS)
        return false;
    for (int i = 0; i < 10000 && recorded(r) < kernels; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    pthread_mutex_lock(&r->lock);
    qsort(r->records, r->count, sizeof r->records[0], by_start);
    pthread_mutex_unlock(&r->lock);
    return true;
}

/* What kernel i does, by its name and its neighbours: products may all be one kernel by name, which
 * computes what there is. The first `shared` kernels are the shared expert's. */
static const char *stage_of(const recorder *r, size_t i, size_t shared)
{
    static const struct {
        const char *part, *stage;
    } stages[] = {{"route_few", "router, choice, dispatch"},
                  {"select_dispatch", "choice and dispatch"},
                  {"logits", "router product"},
                  {"select", "choice"},
                  {"route", "routing"},
                  {"unpermute", "combine"},
                  {"permute", "dispatch"},
                  {"gather", "rows of x"},
                  {"gated", "gate, up, activation"},
                  {"_combine", "down and combine"}};
    const char *kernel = r->records[i].kernel;
    const size_t begin = i < shared ? 0 : shared, end = i < shared ? shared : r->count;
    const bool product = strstr(kernel, "grouped") != NULL;
    const bool first = i == begin || !strstr(r->records[i - 1].kernel, "grouped");
    const bool last = i + 1 >= end || !strstr(r->records[i + 1].kernel, "grouped");
    if (i < shared)
        return !product ? "shared router" : first ? "shared gate, up, activation" : "shared down";
    for (size_t s = 0; s < sizeof stages / sizeof *stages; s++)
        if (strstr(kernel, stages[s].part))
            return stages[s].stage;
    if (!product)
        return kernel;
    return !first ? "down" : last ? "gate, up, activation, down" : "gate, up, activation";
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int time_stages(const moe_demo_options *opt, llmk_context *ctx, case_run *run,
                       cl_command_queue queue)
{
    static recorder r = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static double us[MOST_KERNELS][MOST_PASSES], whole[MOST_PASSES];
    const llmk_moe_forward_args *args = case_run_args(run, 0);
    const size_t kernels = llmk_moe_plan_kernels(args->plan, opt->rows);
    const case_line *line = case_run_line(run);
    size_t shared = 0; /* kernels of the shared expert, which come first */
    if (case_flag(line, "shared"))
        shared = moe_models[case_u64(line, "model")].shared_router ? 3 : 2;
    if (kernels > MOST_KERNELS)
        return fail(1, "timing", "more kernels than are kept");
    llmk_context_set_profiler(ctx, record, &r);
    size_t passes = 0;
    bool ok = run_once(run, queue, &r, kernels); /* warm-up */
    for (const double start = now(); ok && passes < MOST_PASSES && now() - start < opt->seconds;) {
        ok = run_once(run, queue, &r, kernels) && r.count == kernels;
        whole[passes] =
            ok ? 1e-3 * (double)(r.records[kernels - 1].ended_ns - r.records[0].started_ns) : 0;
        for (size_t i = 0; ok && i < kernels; i++)
            us[i][passes] = 1e-3 * (double)(r.records[i].ended_ns - r.records[i].started_ns);
        passes += ok;
    }
    llmk_context_set_profiler(ctx, NULL, NULL);
    if (!ok)
        return fail(1, "timing", "a call failed, or its kernels were not reported");
    for (size_t i = 0; i < kernels && passes > 0; i++) {
        const bench_stats s = bench_stats_of(us[i], passes);
        printf("stage=\"%s\" kernel=%s us=%.2f p5=%.2f p95=%.2f\n", stage_of(&r, i, shared),
               r.records[i].kernel, s.median, s.p5, s.p95);
    }
    if (passes > 0) {
        const bench_stats s = bench_stats_of(whole, passes);
        const double bytes = (double)(case_run_bytes_read(run) + case_run_bytes_written(run));
        printf("stage=\"whole layer\" kernels=%zu us=%.2f p5=%.2f p95=%.2f bytes=%.0f gb_s=%.2f\n",
               kernels, s.median, s.p5, s.p95, bytes, s.median > 0 ? 1e-3 * bytes / s.median : 0);
    }
    return 0;
}

static int check(case_run *run)
{
    const case_result result = case_run_check(run);
    printf("nmse=%.3e worst=%.3f %s\n", result.nmse, result.worst, result.ok ? "ok" : "BROKEN");
    fflush(stdout);
    return result.ok ? 0 : fail(1, "check", result.message);
}

static void print_sizes(const case_line *line)
{
    const moe_model m =
        moe_model_scaled(&moe_models[case_u64(line, "model")], case_u64(line, "scale"));
    printf("experts=%" PRIu64 " k=%" PRIu64 " hidden=%" PRIu64 " width=%" PRIu64 " shared=%" PRIu64
           "\n",
           m.experts, m.k, m.hidden, m.width, case_flag(line, "shared") ? m.shared_width : 0);
}

static int run_line(const moe_demo_options *opt, llmk_context *ctx, cl_command_queue queue,
                    const case_line *line)
{
    char error[512], text[1024];
    case_run *run = case_run_new(ctx, queue, line, 1, opt->checked ? CASE_TO_CHECK : CASE_TO_TIME,
                                 error, sizeof error);
    if (!run)
        return fail(1, opt->preset, error);
    case_print(line, text, sizeof text);
    printf("case=\"%s\"\n", text);
    print_sizes(line);
    int status = opt->checked ? check(run) : 0;
    if (status == 0 && opt->seconds > 0)
        status = time_stages(opt, ctx, run, queue);
    case_run_free(run);
    return status;
}

int moe_demo(const moe_demo_options *opt)
{
    char error[512];
    case_line line;
    if (!moe_model_find(opt->preset)) {
        size_t used = (size_t)snprintf(error, sizeof error, "no such preset; there are");
        for (size_t i = 1; moe_model_names[i] && used < sizeof error; i++)
            used += (size_t)snprintf(error + used, sizeof error - used, " %s", moe_model_names[i]);
        return fail(2, opt->preset, error);
    }
    if (!parse(opt, &line, error, sizeof error))
        return fail(2, opt->preset, error);
    llmk_context *ctx = NULL;
    if (llmk_context_create(NULL, &ctx) != LLMK_OK)
        return fail(1, "no context", tool_error_message());
    llmk_device_info info = LLMK_INIT(llmk_device_info);
    cl_command_queue queue = clCreateCommandQueue(
        llmk_context_cl_context(ctx), llmk_context_cl_device(ctx), CL_QUEUE_PROFILING_ENABLE, NULL);
    int status = 1;
    if (queue && llmk_context_device_info(ctx, &info) == LLMK_OK) {
        printf("device=\"%s / %s\"\n", info.platform, info.name);
        status = run_line(opt, ctx, queue, &line);
    } else {
        fail(1, "set-up", "cannot make a queue");
    }
    if (queue)
        clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
    return status;
}
