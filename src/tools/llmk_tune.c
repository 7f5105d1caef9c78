/*
 * llmk-tune - measures which variant and configuration is fastest here, and keeps it for the
 * library: docs/tuning.md.
 */
#include "ops/operator.h"
#include "tools/common/tool.h"
#include "tools/common/tune_db.h"
#include "tools/common/tune_link.h"
#include "tools/common/tune_plan.h"
#include "tools/common/tune_pretend.h"
#include "tools/common/tune_worker.h"

#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char usage[] =
    "usage: llmk-tune [options] [CASE...]\n"
    "       llmk-tune [options] OP --shape M,N,K [--format FORMAT]\n"
    "       llmk-tune --list\n"
    "       llmk-tune --export FILE [--level device|architecture|vendor]\n"
    "\n"
    "Measures which variant and configuration of each operator is fastest on this device, checks\n"
    "every candidate against its reference first, and keeps what beats the library's own choice "
    "by\n"
    "more than the noise. The library uses it from the next context on. Without a case: the cases\n"
    "of all model lists, cheap ones first. Ctrl-C keeps what is found; the next run goes on "
    "there.\n"
    "\n"
    "      --budget S       seconds in all (600); 0: until all cases are measured\n"
    "      --shape SIZES    of one case: the operator's first fields, separated by commas\n"
    "      --format FORMAT  of its weights: f16, w8, w4 ...; groups are of 128\n"
    "      --model NAME     only the cases of a model\n"
    "      --tokens T,T     numbers of tokens (a CPU: 1,2,4,8,32,128; else "
    "1,2,4,8,16,64,512,2048)\n"
    "      --lists DIR      where the model lists are\n"
    "      --db FILE        the file to keep rows in (LLMK_TUNE_DB, or "
    "~/.config/llmk/tuning.json)\n"
    "      --again          measure also what the file has already\n"
    "  -d, --device WHICH   an index, \"gpu\", \"cpu\" or a part of \"PLATFORM / DEVICE\"\n"
    "      --seconds S      of the last comparison with the library's choice (0.3)\n"
    "      --seed N         of the order in which candidates take turns (1)\n"
    "  -l, --list           the rows of the file, and the configurations that there are\n"
    "      --export FILE    write this device's rows to a file that the library can take in\n"
    "      --level LEVEL    what exported rows are for (device)\n"
    "      --for ARCH       what they are for instead, as rows that were not measured there: "
    "sm_80\n"
    "  -h, --help           this text\n"
    "      --version        the library's version\n";

enum {
    BUDGET = 256,
    SHAPE,
    FORMAT,
    MODEL,
    TOKENS,
    LISTS,
    DB,
    AGAIN,
    SECONDS,
    SEED,
    EXPORT,
    LEVEL,
    FOR,
    WORKER,
    VERSION
};

static const struct option long_options[] = {
    {"budget", required_argument, NULL, BUDGET},
    {"shape", required_argument, NULL, SHAPE},
    {"format", required_argument, NULL, FORMAT},
    {"model", required_argument, NULL, MODEL},
    {"tokens", required_argument, NULL, TOKENS},
    {"lists", required_argument, NULL, LISTS},
    {"db", required_argument, NULL, DB},
    {"again", no_argument, NULL, AGAIN},
    {"device", required_argument, NULL, 'd'},
    {"seconds", required_argument, NULL, SECONDS},
    {"seed", required_argument, NULL, SEED},
    {"list", no_argument, NULL, 'l'},
    {"export", required_argument, NULL, EXPORT},
    {"level", required_argument, NULL, LEVEL},
    {"for", required_argument, NULL, FOR},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, VERSION},
    {"worker", no_argument, NULL, WORKER}, /* what llmk-tune starts itself as */
    {NULL, 0, NULL, 0},
};

#define BIT(option) (UINT32_C(1) << ((option)-BUDGET))
#define MOST_TOKENS 16

typedef struct settings {
    double budget, seconds;
    uint64_t seed, tokens[MOST_TOKENS];
    size_t token_count;
    const char *shape, *format, *model, *lists, *export_to, *other;
    tune_level level;
    bool again, list, worker;
    uint32_t given; /* a bit an option from BUDGET on */
    char db[TUNE_PATH];
} settings;

/* ---- The command line ---- */

/* An option that would change nothing is a mistake. `allowed`: bits as in `given`. */
static int refuse_others(const settings *set, uint32_t allowed, const char *beside)
{
    for (const struct option *o = long_options; o->name; o++)
        if (o->val >= BUDGET && (set->given & ~allowed & BIT(o->val)))
            return tool_complain("--%s does not go with %s", o->name, beside);
    return 0;
}

static bool read_tokens(const char *text, settings *set)
{
    for (set->token_count = 0; *text && set->token_count < MOST_TOKENS;) {
        char *end;
        const unsigned long long n = strtoull(text, &end, 10);
        if (*text < '1' || *text > '9' || (*end && (*end != ',' || !end[1])) || n > 1u << 30)
            return false;
        set->tokens[set->token_count++] = n;
        text = *end ? end + 1 : end;
    }
    return set->token_count > 0 && !*text;
}

static int read_option(int option, settings *set)
{
    static const char *const levels[] = {"device", "architecture", "vendor"};
    double number;
    if (option >= BUDGET)
        set->given |= BIT(option);
    switch (option) {
    case BUDGET:
        return tool_number(optarg, 0, &set->budget)
                   ? 0
                   : tool_complain("--budget is a number of seconds, not \"%s\"", optarg);
    case SECONDS:
        return tool_number(optarg, 0, &set->seconds) && set->seconds > 0
                   ? 0
                   : tool_complain("--seconds is a number above 0, not \"%s\"", optarg);
    case SEED:
        if (!tool_number(optarg, 0, &number) || number != floor(number))
            return tool_complain("--seed is a whole number, not \"%s\"", optarg);
        set->seed = (uint64_t)number;
        return 0;
    case TOKENS:
        return read_tokens(optarg, set)
                   ? 0
                   : tool_complain(
                         "--tokens are up to %d whole numbers of at least 1, separated by "
                         "commas, not \"%s\"",
                         MOST_TOKENS, optarg);
    case SHAPE:
        set->shape = optarg;
        return 0;
    case FORMAT:
        set->format = optarg;
        return 0;
    case MODEL:
        set->model = optarg;
        return 0;
    case LISTS:
        set->lists = optarg;
        return 0;
    case DB:
        return snprintf(set->db, sizeof set->db, "%s", optarg) < (int)sizeof set->db
                   ? 0
                   : tool_complain("--db: the name is too long");
    case EXPORT:
        set->export_to = optarg;
        return 0;
    case LEVEL:
        for (size_t i = 0; i < LLMK_COUNT(levels); i++)
            if (strcmp(optarg, levels[i]) == 0) {
                set->level = (tune_level)i;
                return 0;
            }
        return tool_complain("--level is device, architecture or vendor, not \"%s\"", optarg);
    case FOR: {
        const size_t digits = strncmp(optarg, "sm_", 3) == 0 ? strspn(optarg + 3, "0123456789a")
                              : strncmp(optarg, "gfx", 3) == 0
                                  ? strspn(optarg + 3, "0123456789abcdef")
                                  : 0;
        if (digits == 0 || optarg[3 + digits] || digits > 8)
            return tool_complain("--for is an architecture, such as sm_80 or gfx942, not \"%s\"",
                                 optarg);
        set->other = optarg;
        return 0;
    }
    case AGAIN:
        set->again = true;
        return 0;
    case 'd':
        return tool_sets("LLMK_DEVICE", "--device", optarg);
    case 'l':
        set->list = true;
        return 0;
    case WORKER:
        set->worker = true;
        return 0;
    default:
        fputs("Try 'llmk-tune --help'.\n", stderr);
        return 2;
    }
}

/* ---- What is shown ---- */

typedef struct finding {
    char text[512];
    char fallback[TUNE_NAME];
    tune_result result;
    double when;
} finding;

/* s: a long case is timed once more when so much has happened to the device since, or at the end. */
#define LATER 30.0

typedef struct run {
    const settings *set;
    llmk_context *ctx;
    tune_link link;
    tune_plan plan;
    double started;
    finding *findings; /* one a case of the plan at most */
    size_t at;         /* cases of the plan that are behind */
    size_t found, skipped, known, dropped;
    size_t seen; /* findings that are not to be visited again, or have been */
    size_t visited;
    double later;         /* s */
    char first[TUNE_WHY]; /* why the first case was skipped */
    bool failed, unkept;
} run_state;

static void show_progress(const run_state *r, const char *what, const char *text)
{
    enum { WIDTH = 20 };
    char bar[WIDTH + 1];
    char limit[32] = "";
    const double spent = tune_now() - r->started, budget = r->set->budget;
    const double done =
        fmax((double)r->at / (double)r->plan.count, budget > 0 ? spent / budget : 0);
    if (budget > 0)
        snprintf(limit, sizeof limit, " of %.0f", budget);
    memset(bar, ' ', WIDTH);
    memset(bar, '=', (size_t)(fmin(done, 1) * WIDTH));
    bar[WIDTH] = '\0';
    tool_progress("[%s] %zu/%zu cases, %.0f%s s  %s%s", bar,
                  r->at < r->plan.count ? r->at + 1 : r->at, r->plan.count, spent, limit, what,
                  text);
}

static void report_dropped(void *user, const char *candidate, const char *why)
{
    run_state *r = user;
    r->dropped++;
    tool_complain("%s: %s is dropped: %s", r->link.text, candidate, why);
}

static bool is_tuned(const finding *f)
{
    return strcmp(f->result.winner, TUNE_DEFAULT) != 0;
}

static size_t count_tuned(const run_state *r)
{
    size_t count = 0;
    for (size_t i = 0; i < r->found; i++)
        count += is_tuned(&r->findings[i]);
    return count;
}

static void print_findings(const run_state *r)
{
    int width = 4;
    for (size_t i = 0; i < r->found; i++) {
        const int length = (int)strlen(r->findings[i].text);
        width = length > width ? length : width;
    }
    if (r->found)
        printf("%-*s %-12s %12s %12s %7s  %s\n", width, "case", "default", "us", "tuned us", "gain",
               "tuned");
    for (size_t i = 0; i < r->found; i++) {
        const finding *f = &r->findings[i];
        const bool kept = is_tuned(f);
        const double before = f->result.fallback.us, after = kept ? f->result.tuned.us : before;
        printf("%-*s %-12s %12.2f %12.2f %6.1f%%  %s\n", width, f->text, f->fallback, before, after,
               before > 0 ? 100 * (1 - after / before) : 0, kept ? f->result.winner : "-");
    }
}

/* A line for programs: counts, and where the seconds went. */
static void print_summary(const run_state *r)
{
    size_t slower = 0;
    for (size_t i = 0; i < r->found; i++) {
        const tune_result *result = &r->findings[i].result;
        slower += is_tuned(&r->findings[i]) && result->fallback.us > 1.1 * result->tuned.us;
    }
    printf("summary cases=%zu measured=%zu tuned=%zu revisited=%zu known=%zu impossible=%zu "
           "dropped=%zu default_over_10_percent_slower=%zu seconds=%.1f making=%.1f checking=%.1f "
           "timing=%.1f\n",
           r->plan.count, r->found, count_tuned(r), r->visited, r->known, r->skipped, r->dropped,
           slower, tune_now() - r->started, r->link.making, r->link.checking, r->link.timing);
}

/* ---- One case after the other ---- */

static const llmk_operator *operator_of(const char *text)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, " "), text);
    return llmk_operator_named(name);
}

static bool unkept(run_state *r, const char *why)
{
    tool_complain("%s", why);
    r->unkept = r->failed = true;
    return false;
}

static bool keep(run_state *r, const char *text, const tune_problem *problem,
                 const tune_result *result)
{
    char variant[TUNE_NAME], hash[17], error[512];
    const llmk_operator *op = operator_of(text);
    const bool tuned = strcmp(result->winner, TUNE_DEFAULT) != 0;
    const char *keeps = tuned ? result->winner : problem->unchanged;
    const bool rule = strcmp(keeps, TUNE_DEFAULT) == 0;
    llmk_choice choice = {NULL, NULL};
    if (!op || (!rule && !llmk_choice_parse(op, keeps, &choice))) {
        snprintf(error, sizeof error, "%s: there is no %s", text, keeps);
        return unkept(r, error);
    }
    snprintf(variant, sizeof variant, "%s", rule ? LLMK_TUNING_RULE : choice.variant->name);
    llmk_tuning_row row = {
        .op = op->name, .types = problem->types, .shape = problem->shape, .variant = variant};
    if (choice.config) {
        llmk_tuning_hash(op, choice.config, hash);
        row.config = choice.config->name;
        row.hash = hash;
    }
    const tune_timing *best = tuned ? &result->tuned : &result->fallback;
    const tune_source source = {text,           best->us,         best->spread, result->fallback.us,
                                result->visits, problem->fallback};
    return tune_db_put(r->set->db, r->ctx, &row, &source, error, sizeof error) || unkept(r, error);
}

/* A winner of a mixture of experts, found with rows spread evenly, must not lose where Zipf's law
 * spreads them; if it does, the default is kept. */
static tune_answer hold_against_zipf(run_state *r, const char *text, const tune_bench *bench,
                                     tune_result *result, char why[TUNE_WHY])
{
    char skewed[600];
    tune_problem problem;
    tune_pair pair = {.median = 0};
    if (strncmp(text, "moe_forward", 11) != 0 || strstr(text, "routing=") ||
        strcmp(result->winner, TUNE_DEFAULT) == 0)
        return TUNE_OK;
    snprintf(skewed, sizeof skewed, "%s routing=zipf", text);
    tune_answer answer = tune_link_case(&r->link, skewed, &problem, why);
    if (answer == TUNE_OK)
        answer = bench->check(bench->user, result->winner, why);
    if (answer == TUNE_OK)
        answer = bench->pair(bench->user, result->winner, r->set->seconds, &pair, why);
    if (answer == TUNE_STOP)
        return TUNE_STOP;
    if (answer == TUNE_BAD)
        report_dropped(r, result->winner, why);
    if (answer == TUNE_BAD || pair.median > 0)
        snprintf(result->winner, sizeof result->winner, "%s", TUNE_DEFAULT);
    return TUNE_OK;
}

/* False: it is time to end. */
static bool tune_one(run_state *r, const char *text)
{
    char why[TUNE_WHY] = "";
    tune_problem problem;
    finding *f = &r->findings[r->found];
    tune_answer answer = tune_link_case(&r->link, text, &problem, why);
    if (answer == TUNE_BAD) {
        if (r->skipped++ == 0)
            llmk_join(r->first, sizeof r->first, why, NULL);
        if (!r->link.worker || r->plan.count == 1) { /* the worker's end is nobody's choice */
            tool_complain("%s is not tuned: %s", text, why);
            r->failed = true;
        }
        return true;
    }
    const llmk_operator *op = operator_of(text);
    const llmk_tuning_row bucket = {
        .op = op ? op->name : "", .types = problem.types, .shape = problem.shape};
    if (answer == TUNE_OK && !r->set->again && tune_db_has(r->set->db, r->ctx, text, &bucket)) {
        r->known++;
        return true;
    }
    const tune_bench bench = tune_link_bench(&r->link);
    if (answer == TUNE_OK)
        answer = tune_search(&bench, (const char(*)[TUNE_NAME])problem.candidates, problem.count,
                             r->set->seconds, r->set->seed, &f->result, why);
    if (answer == TUNE_OK)
        answer = hold_against_zipf(r, text, &bench, &f->result, why);
    if (answer == TUNE_BAD) {
        tool_complain("%s: what the library uses, %s, is no good: %s", text, problem.fallback, why);
        r->failed = true;
    }
    if (answer != TUNE_OK)
        return answer != TUNE_STOP;
    snprintf(f->text, sizeof f->text, "%s", text);
    memcpy(f->fallback, problem.fallback, sizeof f->fallback);
    f->when = tune_now();
    r->found++;
    return keep(r, text, &problem, &f->result);
}

/* The first finding of a long case that was timed once only; NULL where there is none, or it is not
 * `age` seconds old. */
static finding *to_revisit(run_state *r, double age)
{
    while (r->seen < r->found && r->findings[r->seen].result.visits != 1)
        r->seen++;
    finding *f = r->seen < r->found ? &r->findings[r->seen] : NULL;
    return f && tune_now() - f->when >= age ? f : NULL;
}

/* False: it is time to end. */
static bool revisit(run_state *r, finding *f)
{
    char why[TUNE_WHY] = "";
    tune_problem problem;
    r->seen++;
    show_progress(r, "once more: ", f->text);
    tune_answer answer = tune_link_again(&r->link, f->text, &problem, why);
    const tune_bench bench = tune_link_bench(&r->link);
    if (answer == TUNE_OK)
        answer = tune_revisit(&bench, r->set->seconds, &f->result, why);
    if (answer == TUNE_BAD) {
        tool_complain("%s could not be timed once more: %s", f->text, why);
        r->failed = true;
    }
    if (answer != TUNE_OK)
        return answer != TUNE_STOP;
    r->visited++;
    return keep(r, f->text, &problem, &f->result);
}

static bool goes_on(const run_state *r)
{
    return !tune_interrupted && (r->link.deadline <= 0 || tune_now() < r->link.deadline);
}

static int tune_all(run_state *r)
{
    const settings *set = r->set;
    r->findings = calloc(r->plan.count, sizeof *r->findings);
    if (!r->findings)
        return tool_complain("out of memory") - 1;
    r->started = tune_now();
    r->link.deadline = set->budget > 0 ? r->started + set->budget : 0;
    bool going = true;
    finding *old;
    for (; going && r->at < r->plan.count && !tune_interrupted; r->at++) {
        const char *text = r->plan.list[r->at].text;
        if (!set->again && tune_db_has(set->db, r->ctx, text, NULL)) {
            r->known++;
            continue;
        }
        show_progress(r, "", text);
        going = tune_one(r, text) && goes_on(r);
        while (going && (old = to_revisit(r, r->later)) != NULL)
            going = revisit(r, old) && goes_on(r);
    }
    const bool all = going && r->at == r->plan.count;
    while (going && (old = to_revisit(r, 0)) != NULL)
        going = revisit(r, old) && goes_on(r);
    tool_progress("%s", "");
    print_findings(r);
    printf(
        "%s%zu of %zu cases measured%s, %zu of them tuned; %zu measured before, %zu not possible "
        "here; %zu candidates dropped\nrows: %s\n",
        r->found ? "\n" : "", r->found, r->plan.count,
        r->unkept          ? " until a row could not be kept"
        : tune_interrupted ? " until the interruption"
        : all              ? ""
                           : " within the budget",
        count_tuned(r), r->known, r->skipped, r->dropped, set->db);
    print_summary(r);
    if (r->skipped == r->plan.count && !r->failed && !tune_interrupted) {
        tool_complain("nothing can be tuned: %s", r->first);
        r->failed = true;
    }
    if (!all && !r->found && !r->failed && !tune_interrupted)
        tool_complain(
            "the budget of %g s ended before a case was done, whose candidates are checked "
            "first, and then timed: raise it with --budget",
            set->budget);
    free(r->findings);
    return tune_interrupted ? 130 : r->failed;
}

static int make_plan(run_state *r, char **words, int count)
{
    static const uint64_t for_cpus[] = {1, 2, 4, 8, 32, 128};
    static const uint64_t for_others[] = {1, 2, 4, 8, 16, 64, 512, 2048};
    const settings *set = r->set;
    char error[512];
    case_line line;
    if (set->shape || set->format) {
        if (count != 1 || strchr(words[0], ' '))
            return tool_complain("--shape and --format are for one operator");
        if (!tune_plan_line(words[0], set->shape, set->format, &line, error, sizeof error))
            return tool_complain("%s", error);
        return tune_plan_add(&r->plan, &line) ? 0 : tool_complain("out of memory");
    }
    for (int i = 0; i < count; i++) {
        if (!case_parse(words[i], &line, error, sizeof error))
            return tool_complain("%s", error);
        if (!tune_plan_add(&r->plan, &line))
            return tool_complain("out of memory");
    }
    if (count)
        return 0;
    const bool cpu = llmk_is_cpu(&r->ctx->caps);
    const uint64_t *tokens = set->token_count ? set->tokens : cpu ? for_cpus : for_others;
    const size_t token_count = set->token_count ? set->token_count
                               : cpu            ? LLMK_COUNT(for_cpus)
                                                : LLMK_COUNT(for_others);
    if (!tune_plan_models(&r->plan, set->lists, set->model, tokens, token_count, error,
                          sizeof error))
        return tool_complain("%s", error);
    tune_plan_sort(&r->plan);
    return r->plan.count ? 0 : tool_complain("the model lists have no case that is tuned");
}

/* ---- --list, --export ---- */

static int list_all(const settings *set, const llmk_context *ctx)
{
    char error[512];
    printf("Rows of %s\n", set->db);
    if (!tune_db_list(set->db, ctx, stdout, error, sizeof error))
        return tool_complain("%s", error) - 1;
    printf("\nRows in the library for this device\n");
    tune_db_list_built_in(ctx, stdout);
    printf("\nConfigurations\n");
    for (llmk_op id = 0; id < 64; id++) {
        const llmk_operator *op = llmk_operator_get(id);
        const char *variant = "";
        for (size_t i = 0; op && i < op->config_count; i++) {
            if (strcmp(variant, op->configs[i].variant) != 0)
                printf("%s%-16s %-10s", *variant || i ? "\n" : "", op->name,
                       op->configs[i].variant);
            variant = op->configs[i].variant;
            printf(" %s", op->configs[i].name);
        }
        if (op && op->config_count)
            putchar('\n');
    }
    return 0;
}

static int export_rows(const settings *set, const llmk_context *ctx)
{
    char error[512];
    size_t count;
    if (!tune_db_export(set->db, ctx, set->export_to, set->level, set->other, &count, error,
                        sizeof error))
        return tool_complain("%s", error) - 1;
    printf("wrote %s: %zu rows\n", set->export_to, count);
    return 0;
}

static void interrupt(int signal_number)
{
    (void)signal_number;
    tune_interrupted = 1;
}

static double seconds_for_tests(const char *variable, double otherwise)
{
    const char *value = getenv(variable);
    return value ? strtod(value, NULL) : otherwise;
}

static int with_context(const settings *set, char **words, int count)
{
    run_state r = {.set = set};
    char error[512];
    if (llmk_context_create(NULL, &r.ctx) != LLMK_OK)
        return tool_complain("%s", tool_error_message()) - 1;
    int status = 0;
    if (set->list) {
        status = list_all(set, r.ctx);
    } else if (set->export_to) {
        status = export_rows(set, r.ctx);
    } else if (!tune_db_usable(set->db, error, sizeof error)) {
        status = tool_complain("%s", error) - 1;
    } else if ((status = make_plan(&r, words, count)) == 0) {
        const tune_pretence pretence = {.words = getenv("LLMK_TUNE_TEST")};
        r.later = seconds_for_tests("LLMK_TUNE_TEST_LATER", LATER);
        r.link =
            (tune_link){.limit = seconds_for_tests("LLMK_TUNE_TEST_LIMIT", 60), /* a request */
                        .sustains = !llmk_is_cpu(&r.ctx->caps) || tune_pretends(&pretence, "load"),
                        .dropped = report_dropped,
                        .user = &r};
        status = tune_all(&r);
        tune_link_close(&r.link);
    }
    tune_plan_free(&r.plan);
    llmk_context_free(r.ctx);
    return status;
}

static int check_options(const settings *set, int words, const char *first)
{
    const uint32_t exports = BIT(LEVEL) | BIT(FOR), models = BIT(MODEL) | BIT(TOKENS) | BIT(LISTS),
                   file = BIT(DB);
    if ((set->list || set->export_to) && words)
        return tool_complain("%s takes no cases, such as \"%s\"", set->list ? "--list" : "--export",
                             first);
    if ((set->given & exports) && !set->export_to)
        return tool_complain("%s goes with --export", set->other ? "--for" : "--level");
    if (set->list && set->export_to)
        return tool_complain("--list and --export do not go together");
    if ((set->given & exports) == exports)
        return tool_complain("--level and --for do not go together");
    return set->list        ? refuse_others(set, file, "--list")
           : set->export_to ? refuse_others(set, file | BIT(EXPORT) | exports, "--export")
           : words          ? refuse_others(set, ~models, "a case")
                            : 0;
}

static int run(int argc, char **argv)
{
    settings set = {.budget = 600, .seconds = 0.3, .seed = 1};
    int option, status;
    while ((option = tool_option(argc, argv, "d:lh", long_options)) != -1) {
        if (option == 'h')
            return fputs(usage, stdout) < 0;
        if (option == VERSION)
            return puts(llmk_build_info()) < 0;
        if ((status = read_option(option, &set)) != 0)
            return status;
    }
    if (set.worker)
        return tune_worker();
    if ((status = check_options(&set, argc - optind, argv[optind])) != 0)
        return status;
    if (!set.db[0] && !llmk_tuning_path(set.db, sizeof set.db))
        return tool_complain("%s: name a file with --db",
                             set.db[0] ? "the name of the file to keep rows in is too long"
                                       : "there is no home folder to keep rows in");
    if (strcasecmp(set.db, "off") == 0 || strcasecmp(set.db, LLMK_TUNING_BUILT_IN) == 0)
        return tool_complain("%s is %s: name a file with --db",
                             set.given & BIT(DB) ? "--db" : "LLMK_TUNE_DB", set.db);
    /* The user's rows say nothing about what the library would choose by itself. */
    setenv("LLMK_TUNE_DB", LLMK_TUNING_BUILT_IN, 1);
    unsetenv("LLMK_VARIANT");
    struct sigaction action = {.sa_handler = interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is one that cannot be written */
    return with_context(&set, argv + optind, argc - optind);
}

int main(int argc, char **argv)
{
    return tool_main("llmk-tune", run, argc, argv);
}
