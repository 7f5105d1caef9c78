/* tune_worker.c - the worker's side. */
#include "tools/common/tune_worker.h"

#include "ops/operator.h"
#include "tools/common/bench_hold.h"
#include "tools/common/bench_session.h"
#include "tools/common/tune_pretend.h"
#include "tools/common/tune_problem.h"
#include "tools/common/tune_sustain.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef struct worker {
    FILE *answers;
    llmk_context *ctx;
    cl_command_queue queue;
    llmk_device_info info;
    bench_hold hold;
    case_run *run;
    size_t sets;
    llmk_choice fallback; /* what the library takes by itself; variant NULL: not to be asked for */
    const void *turn;     /* whose candidate is in use */
    tune_pretence pretence;
} worker;

__attribute__((format(printf, 2, 3))) static void answer(worker *w, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vfprintf(w->answers, fmt, list);
    va_end(list);
    fputc('\n', w->answers);
    fflush(w->answers);
}

static void refuse(worker *w, const char *sentence)
{
    char line[TUNE_WHY];
    llmk_join(line, sizeof line, sentence, NULL);
    llmk_make_printable(line, false);
    answer(w, "no\t%s", line);
}

/* ---- What tests ask for ---- */

/* A candidate that is none, for tests: does harm, and returns false. */
static bool is_harmless(worker *w, const char *candidate)
{
    if (strcmp(candidate, "test-hang") == 0)
        for (;;)
            pause();
    if (strcmp(candidate, "test-crash") == 0) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    case_run_sabotage(w->run, strcmp(candidate, "test-oob") == 0 ? CASE_OUTSIDE : CASE_HONEST);
    return true;
}

/* Of a call among those that go on for `seconds`; 0: at the clock as it is. */
static double pretended_us(worker *w, const char *candidate, double seconds, double noise)
{
    char text[512];
    case_print(case_run_line(w->run), text, sizeof text);
    return tune_pretend_us(&w->pretence, text, candidate, seconds, noise);
}

/* ---- Requests ---- */

static void take_case(worker *w, const char *text, case_purpose purpose)
{
    char error[512];
    case_line line;
    tune_problem problem;
    case_run_free(w->run);
    w->run = NULL;
    if (!case_parse(text, &line, error, sizeof error)) {
        refuse(w, error);
        return;
    }
    llmk_tuning_pin(w->ctx, NULL, NULL);
    w->run = case_run_new(w->ctx, w->queue, &line, 1, purpose, error, sizeof error);
    if (!w->run || !tune_problem_of(w->run, &problem, error, sizeof error)) {
        refuse(w, error);
        return;
    }
    if (!llmk_choice_parse(llmk_operator_get(line.op->op), problem.fallback, &w->fallback))
        w->fallback = (llmk_choice){NULL, NULL};
    w->sets = bench_choose_sets(&w->info, case_run_set_bytes(w->run));
    if (!case_run_grow(w->run, w->sets, error, sizeof error)) {
        case_run_free(w->run);
        w->run = NULL;
        refuse(w, error);
        return;
    }
    fprintf(w->answers, "ok\t%s\t%s\t%s\t%s", problem.types, problem.shape, problem.fallback,
            problem.unchanged);
    for (size_t i = 0; i < problem.count; i++)
        fprintf(w->answers, "\t%s", problem.candidates[i]);
    static const char *const pretended[] = {"oob", "hang", "crash"};
    for (size_t i = 0; i < LLMK_COUNT(pretended); i++)
        if (tune_pretends(&w->pretence, pretended[i]))
            fprintf(w->answers, "\ttest-%s", pretended[i]);
    answer(w, "%s", "");
}

static bool is_own(const char *candidate)
{
    return !strcmp(candidate, TUNE_DEFAULT) || !strncmp(candidate, "test-", 5);
}

/* From here on calls use the candidate, on the path that a tuned row takes them; the default too, or
 * where the host is what a short call waits for, its choosing would count against it. */
static bool use(worker *w, const char *candidate)
{
    const llmk_operator *op = llmk_operator_get(case_run_line(w->run)->op->op);
    const bool own = is_own(candidate);
    llmk_choice choice = w->fallback;
    return (own || llmk_choice_parse(op, candidate, &choice)) &&
           llmk_tuning_pin(w->ctx, op, choice.variant ? &choice : NULL);
}

/* Whether they do: where its self-test fails, the library goes on without it. */
static bool is_used(const worker *w, const char *candidate, char *why, size_t size)
{
    llmk_variant_info infos[64];
    size_t count = 0;
    const size_t length = strcspn(candidate, "@");
    if (llmk_explain(w->ctx, case_run_line(w->run)->op->op, case_run_args(w->run, 0), infos,
                     LLMK_COUNT(infos), &count) != LLMK_OK)
        return false;
    if (is_own(candidate))
        return true;
    snprintf(why, size, "%s does not build, or fails its self-test", candidate);
    for (size_t i = 0; i < count && i < LLMK_COUNT(infos); i++)
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN)
            return strncmp(infos[i].name, candidate, length) == 0 && !infos[i].name[length] &&
                   strcmp(infos[i].config ? infos[i].config : "",
                          candidate[length] ? candidate + length + 1 : "") == 0;
    return false;
}

static void check(worker *w, const char *candidate)
{
    char why[TUNE_WHY] = "it cannot be asked for";
    if (!w->run || !use(w, candidate) || !is_used(w, candidate, why, sizeof why) ||
        !is_harmless(w, candidate)) {
        refuse(w, w->run ? why : "no case");
        return;
    }
    const case_result result = case_run_check(w->run);
    if (result.ok)
        answer(w, "ok");
    else
        refuse(w, result.message);
}

typedef struct turn {
    worker *worker;
    const char *candidate;
} turn;

static bool enqueue(void *user, size_t set)
{
    const turn *t = user;
    worker *w = t->worker;
    if (w->turn != t && !use(w, t->candidate))
        return false;
    w->turn = t;
    return case_run_enqueue(w->run, set, NULL) == LLMK_OK;
}

/* Of a hold's buffer: 60 us on the fastest cards, which are many launches. */
#define HOLD_BYTES (256u << 20)
/* What a single call may take beyond its own time. */
#define CALL_US 200
/* s, pretended, as bench_measure.c takes for it */
#define WARM_UP 0.05

static bench_work work_of(worker *w, turn *t)
{
    return (bench_work){w->queue, enqueue, t, w->sets, w->hold.buffer ? &w->hold : NULL};
}

static void time_one(worker *w, const char *candidate, double seconds, double hopeless_us)
{
    turn t = {w, candidate};
    w->turn = NULL;
    const bench_work work = work_of(w, &t);
    bench_timing timing;
    double once_us = 0;
    for (int i = 0; w->run && hopeless_us > 0 && i < 2 && !tune_pretends(&w->pretence, "timer");
         i++) {
        const double us = bench_once_us(&work);
        once_us = i == 0 || us < once_us ? us : once_us;
    }
    if (once_us > hopeless_us + CALL_US)
        answer(w, "ok\t%.6f\t%.4f", once_us, 0.0);
    else if (w->run && tune_pretends(&w->pretence, "timer")) {
        pretended_us(w, candidate, WARM_UP, 0);
        answer(w, "ok\t%.6f\t%.4f", pretended_us(w, candidate, seconds, 0.02), 0.02);
    } else if (w->run && bench_measure(&work, seconds, &timing))
        answer(w, "ok\t%.6f\t%.4f", timing.us.median, bench_stats_spread(&timing.us));
    else
        refuse(w, w->run ? llmk_error_message() : "no case");
}

static void time_pair(worker *w, const char *candidate, double seconds)
{
    turn t = {w, candidate}, fallback = {w, TUNE_DEFAULT};
    w->turn = NULL;
    const bench_work first = work_of(w, &t), second = work_of(w, &fallback);
    bench_pair pair;
    if (w->run && tune_pretends(&w->pretence, "timer")) {
        pretended_us(w, candidate, WARM_UP + 2 * seconds, 0);
        const double a = pretended_us(w, candidate, 0, 0.02),
                     b = pretended_us(w, TUNE_DEFAULT, 0, 0.02);
        answer(w, "ok\t%.6f\t%.4f\t%.6f\t%.4f\t%.6f\t%.6f\t%.6f", a, 0.02, b, 0.02, a - b - 1,
               a - b, a - b + 1);
    } else if (w->run && bench_measure_pair(&first, &second, (double)INFINITY, seconds, &pair)) {
        answer(w, "ok\t%.6f\t%.4f\t%.6f\t%.4f\t%.6f\t%.6f\t%.6f", pair.first.us.median,
               bench_stats_spread(&pair.first.us), pair.second.us.median,
               bench_stats_spread(&pair.second.us), pair.difference.q1, pair.difference.median,
               pair.difference.q3);
    } else {
        refuse(w, w->run ? llmk_error_message() : "no case");
    }
}

static bool run_on_end(void *user, double seconds, double call_us, double *us, size_t count)
{
    turn *t = user;
    const bench_work work = work_of(t->worker, t);
    if (!tune_pretends(&t->worker->pretence, "timer"))
        return bench_sustain(&work, seconds, call_us, us, count);
    for (size_t i = 0; i < count; i++)
        us[i] = pretended_us(t->worker, t->candidate, seconds / (double)count, 0.02);
    return true;
}

static void sustain(worker *w, const char *candidate, double seconds)
{
    char why[TUNE_WHY] = "it cannot be asked for";
    turn t = {w, candidate};
    const tune_load load = {&t, run_on_end};
    tune_timing timing;
    w->turn = NULL;
    if (!w->run || !use(w, candidate) || !is_used(w, candidate, why, sizeof why))
        refuse(w, w->run ? why : "no case");
    else if (tune_sustain(&load, seconds, &timing))
        answer(w, "ok\t%.6f\t%.4f", timing.us, timing.spread);
    else
        refuse(w, llmk_error_message());
}

static void serve(worker *w, char *line)
{
    char *word = strchr(line, ' ');
    if (!word) {
        refuse(w, "no request");
        return;
    }
    *word++ = '\0';
    if (strcmp(line, "check") == 0 || strcmp(line, "case") == 0 || strcmp(line, "again") == 0)
        tune_pretend_pause(&w->pretence);
    char *space = strchr(word, ' ');
    char *rest = space;
    const double seconds = space ? strtod(space, &rest) : 0;
    const double hopeless_us = space ? strtod(rest, NULL) : 0;
    if (strcmp(line, "case") == 0) {
        take_case(w, word, CASE_TO_TUNE);
        return;
    }
    if (strcmp(line, "again") == 0) {
        take_case(w, word, CASE_TO_TIME);
        return;
    }
    if (space)
        *space = '\0';
    if (strcmp(line, "check") == 0)
        check(w, word);
    else if (strcmp(line, "time") == 0)
        time_one(w, word, seconds, hopeless_us);
    else if (strcmp(line, "pair") == 0)
        time_pair(w, word, seconds);
    else if (strcmp(line, "sustain") == 0)
        sustain(w, word, seconds);
    else
        refuse(w, "no request");
}

int tune_worker(void)
{
    char line[1024];
    worker w = {.pretence.words = getenv("LLMK_TUNE_TEST"), .info = LLMK_INIT(llmk_device_info)};
    /* Not to outlive the tuner; not to end before it where a signal is for both, which would count
     * against a candidate; and to keep what drivers print apart. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    const int fd = dup(STDOUT_FILENO);
    w.answers = fd < 0 ? NULL : fdopen(fd, "w");
    if (!w.answers || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return 1;
    setenv("LLMK_TUNE_DB", LLMK_TUNING_BUILT_IN, 1);
    unsetenv("LLMK_VARIANT");
    if (llmk_context_create(NULL, &w.ctx) != LLMK_OK ||
        llmk_context_device_info(w.ctx, &w.info) != LLMK_OK || !(w.queue = case_queue_new(w.ctx))) {
        refuse(&w, llmk_error_message());
        return 1;
    }
    /* A CPU would be busy with the fills instead of enqueuing. */
    if (!llmk_is_cpu(&w.ctx->caps))
        bench_hold_open(&w.hold, llmk_context_cl_context(w.ctx), w.queue, HOLD_BYTES);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        serve(&w, line);
    }
    case_run_free(w.run);
    bench_hold_close(&w.hold);
    clReleaseCommandQueue(w.queue);
    llmk_context_free(w.ctx);
    fclose(w.answers);
    return 0;
}
