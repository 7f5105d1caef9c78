/*
 * llmk-bench - times operators, or checks them against their f64 references.
 */
#include "cases/case_sweep.h"
#include "core/image.h"
#include "tools/common/bench_clblast.h"
#include "tools/common/bench_models.h"
#include "tools/common/bench_report.h"
#include "tools/common/bench_roofline.h"
#include "tools/common/tool.h"

#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: llmk-bench [options] CASE...\n"
    "       llmk-bench [options] --model NAME [--phase decode|prefill] [--tokens T]\n"
    "       llmk-bench [options] --stdin\n"
    "       llmk-bench --list [NAME...]\n"
    "\n"
    "Times cases on a device: the median over many batches of calls, on buffers that rotate so\n"
    "that no cache holds them, beside the device's own copy bandwidth, multiply-add rate and\n"
    "launch cost. A CASE is an operator and its fields, 'rmsnorm rows=1 h=4096', in one argument\n"
    "or in several.\n"
    "\n"
    "      --model NAME     the cases of a model\n"
    "      --phase PHASE    decode (the default: 1 token) or prefill (2048 tokens)\n"
    "      --tokens T       another number of tokens\n"
    "      --lists DIR      where the model lists are\n"
    "      --check          check results instead of timing; exit status 1 where one is wrong\n"
    "      --variant NAME   force a variant, or \"op:name,op:name\"\n"
    "  -d, --device WHICH   an index, \"gpu\", \"cpu\" or a part of \"PLATFORM / DEVICE\"\n"
    "      --image KIND     the only kind of kernel image to use:\n"
    "                       " LLMK_IMAGE_WORDS "\n"
    "      --seconds S      timed for about this long, a case (0.5)\n"
    "      --sustain S      then call each case on and on for S seconds, and show how its time\n"
    "                       changes; bench/sustain does so beside peers\n"
    "      --sets N         sets of buffers to rotate over (as many as the caches need)\n"
    "      --json FILE      also write the results as JSON\n"
    "      --roofline NAME  also write NAME.dat, and with gnuplot NAME.svg and NAME.png: the cases "
    "as\n"
    "                       points under the measured roof\n"
    "      --stdin          read a case a line, answer with JSON a line; the device comes first\n"
    "  -l, --list           operators with their fields and variants, and models; or those named\n"
    "  -h, --help           this text\n"
    "      --version        the library's version\n";

enum {
    MODEL = 256,
    PHASE,
    TOKENS,
    LISTS,
    CHECK,
    VARIANT,
    IMAGE,
    SECONDS,
    SUSTAIN,
    SETS,
    JSON,
    ROOFLINE,
    STDIN,
    SABOTAGE,
    VERSION
};

static const struct option long_options[] = {
    {"model", required_argument, NULL, MODEL},
    {"phase", required_argument, NULL, PHASE},
    {"tokens", required_argument, NULL, TOKENS},
    {"lists", required_argument, NULL, LISTS},
    {"check", no_argument, NULL, CHECK},
    {"variant", required_argument, NULL, VARIANT},
    {"device", required_argument, NULL, 'd'},
    {"image", required_argument, NULL, IMAGE},
    {"seconds", required_argument, NULL, SECONDS},
    {"sustain", required_argument, NULL, SUSTAIN},
    {"sets", required_argument, NULL, SETS},
    {"json", required_argument, NULL, JSON},
    {"roofline", required_argument, NULL, ROOFLINE},
    {"stdin", no_argument, NULL, STDIN},
    {"list", no_argument, NULL, 'l'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, VERSION},
    {"sabotage", required_argument, NULL, SABOTAGE}, /* for tests: slow or wrong on purpose */
    {NULL, 0, NULL, 0},
};

typedef struct settings {
    bench_options bench;
    const char *model, *lists, *json, *roofline;
    uint64_t tokens;
    bool check, from_stdin, list;
} settings;

typedef struct job {
    char name[64]; /* in a model; "": from the command line */
    char text[512];
    case_line line;
} job;

typedef struct job_list {
    job *list;
    size_t count;
} job_list;

/* ---- The command line ---- */

static bool to_count(const char *text, double *value)
{
    return tool_number(text, 1, value) && *value == floor(*value);
}

static int read_option(int option, settings *set)
{
    double number;
    switch (option) {
    case MODEL:
        set->model = optarg;
        return 0;
    case PHASE:
        if (strcmp(optarg, "decode") != 0 && strcmp(optarg, "prefill") != 0)
            return tool_complain("--phase is decode or prefill, not \"%s\"", optarg);
        if (!set->tokens)
            set->tokens = optarg[0] == 'p' ? 2048 : 1;
        return 0;
    case TOKENS:
        if (!to_count(optarg, &number))
            return tool_complain("--tokens is a whole number of at least 1, not \"%s\"", optarg);
        set->tokens = (uint64_t)number;
        return 0;
    case LISTS:
        set->lists = optarg;
        return 0;
    case CHECK:
        set->check = true;
        return 0;
    case VARIANT:
        set->bench.variant = optarg;
        tool_names("llmk_context_create: options.variant", "--variant");
        unsetenv("LLMK_VARIANT"); /* it would win */
        return 0;
    case 'd':
        return tool_sets("LLMK_DEVICE", "--device", optarg);
    case IMAGE:
        return tool_sets("LLMK_IMAGE", "--image", optarg);
    case SECONDS:
        if (!tool_number(optarg, 0, &set->bench.seconds))
            return tool_complain("--seconds is a number of at least 0, not \"%s\"", optarg);
        return 0;
    case SUSTAIN:
        if (!tool_number(optarg, 0, &set->bench.sustain))
            return tool_complain("--sustain is a number of seconds, not \"%s\"", optarg);
        return 0;
    case SETS:
        if (!to_count(optarg, &number))
            return tool_complain("--sets is a whole number of at least 1, not \"%s\"", optarg);
        set->bench.sets = (size_t)number;
        return 0;
    case JSON:
        set->json = optarg;
        return 0;
    case ROOFLINE:
        set->roofline = optarg;
        return 0;
    case STDIN:
        set->from_stdin = true;
        return 0;
    case 'l':
        set->list = true;
        return 0;
    case SABOTAGE:
        set->bench.sabotage = !strcmp(optarg, "slow") ? CASE_SLOW : CASE_WRONG;
        return 0;
    default:
        fputs("Try 'llmk-bench --help'.\n", stderr);
        return 2;
    }
}

static bool add_job(job_list *jobs, const char *name, const char *text)
{
    job *grown = realloc(jobs->list, (jobs->count + 1) * sizeof *grown);
    if (!grown)
        return false;
    jobs->list = grown;
    job *added = &grown[jobs->count++];
    snprintf(added->name, sizeof added->name, "%s", name);
    return snprintf(added->text, sizeof added->text, "%s", text) < (int)sizeof added->text;
}

/* An argument is a case, or one more field of the case before it. */
static bool add_words(job_list *jobs, const char *words)
{
    if (jobs->count && strchr(words, '=') && !strpbrk(words, " \t")) {
        char *text = jobs->list[jobs->count - 1].text;
        const size_t used = strlen(text), room = sizeof jobs->list->text - used;
        return snprintf(text + used, room, " %s", words) < (int)room;
    }
    return add_job(jobs, "", words);
}

/* Cases that this version cannot make, for want of an operator or a format, are named and left out.
 */
static int add_model(job_list *jobs, const settings *set)
{
    char dir[1200], error[1400];
    size_t count;
    if (!bench_models_dir(set->lists, dir, sizeof dir))
        return tool_complain("no model lists at %s; --lists DIR says where they are",
                             set->lists ? set->lists : "the installed place");
    bench_model_case *cases = bench_models_load(dir, set->model, set->tokens ? set->tokens : 1,
                                                &count, error, sizeof error);
    if (!cases)
        return tool_complain("%s", error);
    int status = 0;
    for (size_t i = 0; i < count && !status; i++) {
        case_line line;
        if (!case_parse(cases[i].text, &line, error, sizeof error))
            fprintf(stderr, "llmk-bench: %s is not timed: %s\n", cases[i].name, error);
        else if (!add_job(jobs, cases[i].name, cases[i].text))
            status = tool_complain("%s: too long", cases[i].name);
    }
    free(cases);
    return status;
}

static int parse_jobs(job_list *jobs)
{
    char error[512];
    for (size_t i = 0; i < jobs->count; i++)
        if (!case_parse(jobs->list[i].text, &jobs->list[i].line, error, sizeof error))
            return tool_complain("%s", error);
    return 0;
}

/* Names the cases of the command line that make no sense or have no room here, and counts them.
 * A model's become rows: its other cases are worth timing. */
static size_t count_impossible(const bench_session *s, const job_list *jobs, case_purpose purpose)
{
    char error[512];
    size_t count = 0;
    for (size_t i = 0; i < jobs->count; i++)
        if (!jobs->list[i].name[0] &&
            !case_possible(s->ctx, &jobs->list[i].line, purpose, error, sizeof error)) {
            tool_complain("%s: %s", jobs->list[i].text, error);
            count++;
        }
    return count;
}

/* Whether a row may say that this device cannot, and all be well: a model's, or CLBlast's. */
static bool may_skip(const job *j, size_t row)
{
    return j->name[0] || row > 0;
}

/* ---- --list ---- */

static const char *kind_text(const case_field *field, char *text, size_t size)
{
    size_t used = 0;
    switch (field->kind) {
    case CASE_U64:
    case CASE_FLOAT:
        snprintf(text, size, "%g", field->fallback);
        break;
    case CASE_FLAG:
        snprintf(text, size, "flag");
        break;
    case CASE_ENUM:
        text[0] = '\0';
        for (size_t i = 0; field->names[i] && used < size; i++)
            if (field->names[i][0])
                used += (size_t)snprintf(text + used, size - used, "%s%s%s", used ? "|" : "",
                                         field->names[i], (double)i == field->fallback ? "*" : "");
        break;
    }
    return text;
}

static void list_operator(const case_op *op)
{
    llmk_variant_info infos[64];
    char text[256];
    printf("\n  %s\n", op->name);
    for (size_t i = 0; i < op->field_count; i++) {
        const case_field *field = &op->fields[i];
        printf("    %-16s %-34s %s\n", field->name, kind_text(field, text, sizeof text),
               field->help ? field->help : "");
    }
    const size_t count = case_variants(op, infos, sizeof infos / sizeof *infos, stderr);
    printf("    variants:       ");
    for (size_t i = 0; i < count; i++)
        printf(" %s", infos[i].name);
    putchar('\n');
}

/* Everything, or what has one of the names. */
static int list(const settings *set, char *const *names, int count)
{
    static const char head[] =
        "Operators: fields with their default values (* in a choice), then variants";
    char dir[1200];
    const bool has_models = bench_models_dir(set->lists, dir, sizeof dir);
    int status = 0;
    if (set->lists && !has_models)
        return tool_complain("no model lists at %s", set->lists);
    if (count == 0) {
        puts(head);
        for (const case_op *const *op = case_ops; *op; op++)
            list_operator(*op);
        if (has_models) {
            printf("\nModels (%s)\n", dir);
            bench_models_list(dir, NULL, stdout);
        }
    }
    for (int i = 0; i < count; i++) {
        const case_op *op = case_op_find(names[i]);
        if (op)
            list_operator(op);
        else if (!has_models || !bench_models_list(dir, names[i], stdout))
            status = tool_complain("no operator or model is named \"%s\"", names[i]);
    }
    return status;
}

/* ---- Checking ---- */

static int check_jobs(bench_session *s, const job_list *jobs)
{
    int status = 0;
    for (size_t i = 0; i < jobs->count; i++) {
        const case_line *line = &jobs->list[i].line;
        case_result result = {.ok = false};
        char error[512], text[512], variant[64] = "";
        case_print(line, text, sizeof text);
        const bool made =
            bench_session_check(s, line, &result, variant, sizeof variant, error, sizeof error);
        if (result.ok) {
            printf("ok    %s  [%s]  worst error %.3g of its bound, nmse %.3g\n", text, variant,
                   result.worst, result.nmse);
        } else if (!made && case_is_skip(error)) {
            printf("skip  %s  %s\n", text, error);
            status |= !may_skip(&jobs->list[i], 0);
        } else {
            printf("FAIL  %s  [%s]  %s\n", text, variant, made ? result.message : error);
            const char *with = variant[0] ? variant : s->options.variant;
            printf("      llmk-bench --check%s%s '%s'\n", with ? " --variant " : "",
                   with ? with : "", text);
            status = 1;
        }
    }
    return status;
}

/* ---- Timing ---- */

static int table_width(const job_list *jobs)
{
    size_t width = 4;
    for (size_t i = 0; i < jobs->count; i++) {
        const job *j = &jobs->list[i];
        const size_t length = strlen(j->name[0] ? j->name : j->text);
        width = length > width ? length : width;
    }
    return (int)width;
}

static int time_jobs(bench_session *s, const job_list *jobs, const settings *set)
{
    const int width = table_width(jobs);
    char error[512];
    int status = 0;
    size_t count = 0;
    /* CLBlast may add one to each. */
    bench_row *rows = calloc(jobs->count ? 2 * jobs->count : 1, sizeof *rows);
    if (!rows)
        return tool_complain("out of memory");
    tool_progress("measuring the device");
    if (!bench_session_probe(s, error, sizeof error)) {
        free(rows);
        return tool_complain("%s", error) - 1;
    }
    tool_progress("%s", "");
    bench_print_device(stdout, s);
    if (bench_clblast_note())
        printf("%s\n\n", bench_clblast_note());
    bench_print_head(stdout, width);
    for (size_t i = 0; i < jobs->count; i++) {
        const case_line *line = &jobs->list[i].line;
        const size_t first = count;
        tool_progress("[%zu/%zu] %s", i + 1, jobs->count, jobs->list[i].text);
        bench_session_time(s, line, &rows[count++]);
        count += bench_clblast_time(s, line, &rows[count]);
        tool_progress("%s", "");
        for (size_t r = first; r < count; r++) {
            memcpy(rows[r].name, jobs->list[i].name, sizeof rows[r].name);
            bench_print_row(stdout, &rows[r], &s->roof, width);
            status |= rows[r].error[0] && !(rows[r].skipped && may_skip(&jobs->list[i], r - first));
        }
        fflush(stdout);
    }
    if (set->json && !bench_json_write(set->json, s, rows, count, error, sizeof error))
        status = tool_complain("%s", error) - 1;
    if (set->roofline) {
        char note[1200];
        if (!bench_roofline_write(set->roofline, s, rows, count, note, sizeof note, error,
                                  sizeof error))
            status = tool_complain("%s", error) - 1;
        else if (note[0])
            tool_complain("%s", note);
    }
    free(rows);
    return status;
}

static bool put_line(char *json)
{
    if (json)
        puts(json);
    fflush(stdout);
    free(json);
    return json != NULL;
}

/* The answer to one line: a row, or what is not known about the case. */
static char *answer(bench_session *s, const char *text)
{
    static const char clblast[] = "clblast ";
    const bool peer = !strncmp(text, clblast, sizeof clblast - 1);
    const char *wanted = peer ? text + sizeof clblast - 1 : text;
    case_line line;
    char error[512];
    bench_row row;
    if (!case_parse(wanted, &line, error, sizeof error))
        return bench_json_note(wanted, "unknown", error);
    if (!peer)
        bench_session_time(s, &line, &row);
    else if (!bench_clblast_time(s, &line, &row))
        return bench_json_note(wanted, "unknown",
                               bench_clblast_note() ? bench_clblast_note()
                                                    : "CLBlast has no such product");
    snprintf(row.text, sizeof row.text, "%s", wanted); /* as it was asked for */
    return bench_json_row(&row, &s->roof);
}

/* A line without its end; false where there is none, or it is too long: then `text` is what fits,
 * and the rest is gone. */
static bool read_line(char *text, size_t size, bool *whole)
{
    if (!fgets(text, (int)size, stdin))
        return false;
    const size_t length = strcspn(text, "\n");
    *whole = text[length] == '\n' || length + 1 < size;
    text[length] = '\0';
    for (int c = *whole ? '\n' : 0; c != '\n' && c != EOF;)
        c = getchar();
    return true;
}

/* For programs that alternate with something else: a case a line, answered by a line of JSON;
 * "clblast CASE" times CLBlast on it. */
static int serve(bench_session *s)
{
    char text[512], error[512];
    bool whole;
    if (!bench_session_probe(s, error, sizeof error))
        return tool_complain("%s", error) - 1;
    if (!put_line(bench_json_device(s)))
        return tool_complain("--stdin needs jansson, without which this llmk-bench was built");
    while (!ferror(stdout) && read_line(text, sizeof text, &whole))
        put_line(whole ? answer(s, text)
                       : bench_json_note(text, "unknown", "a case has at most 510 characters"));
    return 0;
}

static int make_jobs(job_list *jobs, const settings *set, char **words, int count)
{
    int status;
    for (int i = 0; i < count; i++)
        if (!add_words(jobs, words[i]))
            return tool_complain("\"%.40s...\" is too long", words[i]);
    if (set->model && (status = add_model(jobs, set)) != 0)
        return status;
    if (jobs->count && set->from_stdin)
        return tool_complain("--stdin reads its cases, and does not go with others");
    if (!jobs->count && !set->from_stdin)
        return tool_complain("nothing to do: give a case or a model, or see --help");
    return parse_jobs(jobs);
}

static int check_options(const settings *set)
{
    char error[512];
    if ((set->json || set->roofline) && (set->check || set->from_stdin))
        return tool_complain("%s is for timing, and does not go with --check or --stdin",
                             set->json ? "--json" : "--roofline");
    if (set->bench.sustain > 0 && set->check)
        return tool_complain("--sustain is for timing, and does not go with --check");
    if (set->json && set->roofline && bench_roofline_makes(set->roofline, set->json))
        return tool_complain("--json: %s is a file that --roofline makes", set->json);
    if (set->json && !bench_json_writable(set->json, error, sizeof error))
        return tool_complain("--json: %s", error);
    if (set->roofline && !bench_roofline_writable(set->roofline, error, sizeof error))
        return tool_complain("--roofline: %s", error);
    return 0;
}

static int with_session(const settings *set, const job_list *jobs)
{
    char error[512];
    bench_session session;
    if (!bench_session_open(&session, &set->bench, error, sizeof error))
        return tool_complain("%s", error) - 1;
    const int status =
        set->from_stdin ? serve(&session)
        : count_impossible(&session, jobs, set->check ? CASE_TO_CHECK : CASE_TO_TIME) > 0 ? 1
        : set->check ? check_jobs(&session, jobs)
                     : time_jobs(&session, jobs, set);
    bench_session_close(&session);
    return status;
}

static int run(int argc, char **argv)
{
    settings set = {.bench = {.seconds = 0.5}};
    job_list jobs = {NULL, 0};
    int option, status = 0;
    while ((option = tool_option(argc, argv, "d:lh", long_options)) != -1) {
        if (option == 'h')
            return fputs(usage, stdout) < 0;
        if (option == VERSION)
            return puts(llmk_build_info()) < 0;
        status = read_option(option, &set);
        if (status)
            return status;
    }
    if (set.list)
        return list(&set, argv + optind, argc - optind);
    status = make_jobs(&jobs, &set, argv + optind, argc - optind);
    if (!status)
        status = check_options(&set);
    if (!status)
        status = with_session(&set, &jobs);
    free(jobs.list);
    return status;
}

int main(int argc, char **argv)
{
    return tool_main("llmk-bench", run, argc, argv);
}
