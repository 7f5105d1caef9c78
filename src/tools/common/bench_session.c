/* bench_session.c - timing and checking cases on one device. */
#include "tools/common/bench_session.h"

#include "core/core.h"
#include "tools/common/tool.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- Opening ---- */

/* "NAME", for every operator that has it, in the spelling of llmk_context_options.variant;
 * malloc'ed. */
static char *spell_variant(const char *variant)
{
    const size_t size = strlen(variant) + 3;
    char *text = malloc(size);
    if (text)
        llmk_join(text, size, strchr(variant, ':') ? "" : "*:", variant, NULL);
    return text;
}

bool bench_session_open(bench_session *s, const bench_options *options, char *error,
                        size_t error_size)
{
    char *variant = NULL;
    llmk_context_options context = LLMK_INIT(llmk_context_options);
    memset(s, 0, sizeof *s);
    s->options = *options;
    s->info = LLMK_INIT(llmk_device_info);
    if (options->variant && !(variant = spell_variant(options->variant))) {
        snprintf(error, error_size, "out of memory for the variant's name");
        return false;
    }
    context.variant = variant;
    const llmk_status made = llmk_context_create(&context, &s->ctx);
    free(variant);
    if (made != LLMK_OK || llmk_context_device_info(s->ctx, &s->info) != LLMK_OK) {
        snprintf(error, error_size, "%s", tool_error_message());
    } else {
        s->queue = case_queue_new(s->ctx);
        if (s->queue)
            return true;
        snprintf(error, error_size, "the device gives no command queue");
    }
    bench_session_close(s);
    return false;
}

bool bench_session_probe(bench_session *s, char *error, size_t error_size)
{
    s->probe = bench_probe_new(s->ctx, s->queue, error, error_size);
    if (!s->probe)
        return false;
    if (bench_probe_roof(s->probe, s->options.seconds, &s->roof))
        return true;
    snprintf(error, error_size, "measuring the device's copy bandwidth failed");
    return false;
}

static void forget(bench_session *s)
{
    case_run_free(s->kept);
    s->kept = NULL;
}

void bench_session_close(bench_session *s)
{
    forget(s);
    bench_probe_free(s->probe);
    if (s->queue)
        clReleaseCommandQueue(s->queue);
    llmk_context_free(s->ctx);
    memset(s, 0, sizeof *s);
}

/* ---- Timing ---- */

/* Launching counts, and what else the host does shows, in calls shorter than this. */
#define SHORT_US 50

size_t bench_choose_sets(const llmk_device_info *device, uint64_t set_bytes)
{
    uint64_t target = 4 * device->cache_bytes;
    if (!(device->type & CL_DEVICE_TYPE_CPU) && target < 400000000)
        target = 400000000;
    const uint64_t bytes = set_bytes ? set_bytes : 1, fitting = device->global_bytes / 2 / bytes;
    uint64_t sets = target / bytes + 1;
    if (sets < 2)
        sets = 2;
    if (sets > 64)
        sets = 64;
    return (size_t)(sets <= fitting ? sets : fitting ? fitting : 1);
}

__attribute__((format(printf, 2, 3))) static void fail(bench_row *row, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vsnprintf(row->error, sizeof row->error, fmt, list);
    va_end(list);
    row->skipped = case_is_skip(row->error);
}

static bool same_case(const case_line *a, const case_line *b)
{
    bool same = a->op == b->op;
    for (size_t i = 0; same && i < a->op->field_count; i++)
        same = a->value[i] == b->value[i];
    return same;
}

/* The run to time: the last one again, or a new one with its sets. */
static case_run *prepare(bench_session *s, const case_line *line, bench_row *row)
{
    if (s->kept && same_case(&s->kept_line, line))
        return s->kept;
    forget(s);
    case_run *run =
        case_run_new(s->ctx, s->queue, line, 1, CASE_TO_TIME, row->error, sizeof row->error);
    if (run) {
        const size_t sets = s->options.sets ? s->options.sets
                                            : bench_choose_sets(&s->info, case_run_set_bytes(run));
        if (!case_run_grow(run, sets, row->error, sizeof row->error)) {
            case_run_free(run);
            run = NULL;
        }
    }
    row->skipped = !run && case_is_skip(row->error);
    s->kept = run;
    s->kept_line = *line;
    return run;
}

/* The variant that a run's calls use; "" where there is none. */
static void find_variant(case_run *run, char *variant, size_t size)
{
    llmk_variant_info infos[64];
    size_t count = 0;
    variant[0] = '\0';
    if (llmk_explain(case_context(run), case_run_line(run)->op->op, case_run_args(run, 0), infos,
                     sizeof infos / sizeof *infos, &count) != LLMK_OK)
        return;
    for (size_t i = 0; i < count && i < sizeof infos / sizeof *infos; i++)
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN)
            snprintf(variant, size, "%s%s%s", infos[i].name, infos[i].config ? "@" : "",
                     infos[i].config ? infos[i].config : "");
}

typedef struct timed_case {
    case_run *run;
    llmk_status status;
} timed_case;

static bool enqueue_case(void *user, size_t set)
{
    timed_case *timed = user;
    timed->status = case_run_enqueue(timed->run, set, NULL);
    return timed->status == LLMK_OK;
}

/* Matrix units take 16-bit floats: the roof is theirs where the operator's x is of that kind. */
static bool has_matrix_types(const case_line *line)
{
    for (size_t i = 0; i < line->op->field_count; i++)
        if (!strcmp(line->op->fields[i].name, "x"))
            return line->value[i] == LLMK_F16 || line->value[i] == LLMK_BF16;
    return false;
}

void bench_session_time(bench_session *s, const case_line *line, bench_row *row)
{
    *row = (bench_row){.matrix = has_matrix_types(line)};
    case_print(line, row->text, sizeof row->text);
    case_run *run = prepare(s, line, row);
    if (!run)
        return;
    case_run_sabotage(run, s->options.sabotage);
    find_variant(run, row->variant, sizeof row->variant);
    row->sets =
        s->options.sets ? s->options.sets : bench_choose_sets(&s->info, case_run_set_bytes(run));
    row->rotation_bytes = row->sets * case_run_set_bytes(run);
    row->bytes_read = case_run_bytes_read(run);
    row->bytes_written = case_run_bytes_written(run);
    row->flops = line->op->flops ? line->op->flops(line) : 0;
    timed_case timed = {run, LLMK_OK};
    const bench_work work = {s->queue, enqueue_case, &timed, row->sets, NULL};
    const bench_work empty = bench_probe_empty(s->probe);
    bench_pair pair;
    if (!bench_measure_pair(&work, &empty, SHORT_US, s->options.seconds, &pair)) {
        if (timed.status == LLMK_OK)
            fail(row, "clFinish failed while it was timed");
        else
            fail(row, "%s: %s", llmk_status_string(timed.status), llmk_error_message());
        return;
    }
    row->timing = pair.first;
    row->launch = pair.second;
    row->beyond = pair.difference;
    if (s->options.sustain > 0) {
        row->windows = (size_t)fmin(fmax(s->options.sustain, 2), BENCH_WINDOWS);
        if (!bench_sustain(&work, s->options.sustain, row->timing.us.median, row->sustained_us,
                           row->windows)) {
            fail(row, "a call failed while calls were sustained");
            return;
        }
    }
    row->copy_us =
        bench_probe_copy_us(s->probe, row->bytes_read + row->bytes_written, s->options.seconds / 4);
}

/* ---- Checking ---- */

bool bench_session_check(bench_session *s, const case_line *line, case_result *result,
                         char *variant, size_t variant_size, char *error, size_t error_size)
{
    case_run *run = case_run_new(s->ctx, s->queue, line, 1, CASE_TO_CHECK, error, error_size);
    if (!run)
        return false;
    case_run_sabotage(run, s->options.sabotage);
    find_variant(run, variant, variant_size);
    *result = case_run_check(run);
    case_run_free(run);
    return true;
}

/* ---- What follows from a row ---- */

double bench_row_gbs(const bench_row *row)
{
    const double us = row->timing.us.median;
    return us > 0 ? (double)(row->bytes_read + row->bytes_written) / us * 1e-3 : 0;
}

double bench_row_tflops(const bench_row *row)
{
    const double us = row->timing.us.median;
    return us > 0 ? row->flops / us * 1e-6 : 0;
}

double bench_row_beyond_us(const bench_row *row, const bench_roof *roof)
{
    return row->timing.us.median - (row->launch.us.count ? row->launch.us.median : roof->launch_us);
}

double bench_row_roof_us(const bench_row *row, const bench_roof *roof)
{
    const double rate =
        row->matrix && roof->matrix_tflops > 0 ? roof->matrix_tflops : roof->fma_tflops;
    const double bytes = (double)(row->bytes_read + row->bytes_written);
    const double moving = roof->copy_gbs > 0 ? bytes / roof->copy_gbs * 1e-3 : 0;
    const double computing = rate > 0 ? row->flops / rate * 1e-6 : 0;
    return moving > computing ? moving : computing;
}
