/* case_sweep.c - a table of cases against every variant. */
#include "cases/case_sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VARIANTS 64
/* A broken operator fails everywhere: what is printed is enough to start with. */
#define MAX_PRINTED 10

typedef struct sweep {
    const case_op *op;
    const char *variant;
    size_t index; /* of the operator's variants */
    bool alone;   /* asked for by its name */
    FILE *out;
    llmk_context *ctx;
    cl_command_queue queue;
    size_t run, skipped, failed;
    double worst;
    char skip_reason[512]; /* of the last skipped case */
} sweep;

const char *case_run_variant(case_run *run, const char *variant, bool *broken, char *reason,
                             size_t size)
{
    llmk_variant_info infos[MAX_VARIANTS];
    size_t count = 0;
    *broken = false;
    const llmk_status status = llmk_explain(case_context(run), case_run_line(run)->op->op,
                                            case_run_args(run, 0), infos, MAX_VARIANTS, &count);
    for (size_t i = 0; status == LLMK_OK && i < count && i < MAX_VARIANTS; i++) {
        if (strcmp(infos[i].name, variant) != 0)
            continue;
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN)
            return NULL;
        *broken = infos[i].verdict != LLMK_VERDICT_UNSUPPORTED;
        snprintf(reason, size, "%s", infos[i].reason);
        return reason;
    }
    *broken = true;
    snprintf(reason, size, "llmk_explain: %s",
             status == LLMK_OK ? "does not list the variant" : llmk_error_message());
    return reason;
}

static void fail(sweep *s, const case_line *line, const char *why)
{
    char text[512];
    if (s->failed++ >= MAX_PRINTED)
        return;
    case_print(line, text, sizeof text);
    fprintf(s->out, "%s %s: %s\n    llmk-bench --check --variant %s '%s'\n", s->op->name,
            s->variant, why, s->variant, text);
}

static void skip(sweep *s, const char *why)
{
    s->skipped++;
    snprintf(s->skip_reason, sizeof s->skip_reason, "%s", why);
}

static void run_case(sweep *s, const case_line *line)
{
    char error[512];
    case_run *run = case_run_new(s->ctx, s->queue, line, 1, CASE_TO_CHECK, error, sizeof error);
    if (!run) {
        if (case_is_skip(error))
            skip(s, error);
        else
            fail(s, line, error);
        return;
    }
    bool broken;
    const char *why = case_run_variant(run, s->variant, &broken, error, sizeof error);
    if (why && broken) {
        fail(s, line, why);
    } else if (why) {
        skip(s, why);
    } else {
        const case_result result = case_run_check(run);
        s->run++;
        s->worst = fmax(s->worst, result.worst);
        if (!result.ok)
            fail(s, line, result.message);
    }
    case_run_free(run);
}

/* A context in which calls of the operator use one variant, and a queue. */
static bool open_context(sweep *s, uint32_t flags)
{
    char forced[128];
    snprintf(forced, sizeof forced, "%s:%s", s->op->name, s->variant);
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.variant = s->variant ? forced : NULL;
    options.flags = flags;
    if (llmk_context_create(&options, &s->ctx) != LLMK_OK) {
        fprintf(s->out, "%s: no context: %s\n", s->op->name, llmk_error_message());
        s->failed++;
        return false;
    }
    s->queue = case_queue_new(s->ctx);
    if (s->queue)
        return true;
    fprintf(s->out, "%s: no queue\n", s->op->name);
    s->failed++;
    llmk_context_free(s->ctx);
    return false;
}

static void close_context(sweep *s)
{
    clReleaseCommandQueue(s->queue);
    llmk_context_free(s->ctx);
}

static bool is_emulated(const char *variant)
{
    return strncmp(variant, "emulated-", 9) == 0;
}

/* A number of one to four digits: sscanf() takes signs and spaces, too. */
static bool take_number(const char **text, size_t *value)
{
    const size_t digits = strspn(*text, "0123456789");
    *value = digits > 0 && digits <= 4 ? strtoul(*text, NULL, 10) : 0;
    *text += digits;
    return digits > 0 && digits <= 4;
}

bool case_step(size_t *step, size_t *first, FILE *errors)
{
    const char *given = getenv("LLMK_TEST_STEP"), *p = given;
    *step = 1;
    *first = 0;
    if (!given || !*given ||
        (take_number(&p, step) && *p++ == '/' && take_number(&p, first) && !*p && *first < *step))
        return true;
    fprintf(errors,
            "LLMK_TEST_STEP is \"%s\"; expected STEP/FIRST, as 3/0, with STEP from 1 to 9999 and "
            "FIRST below it\n",
            given);
    return false;
}

/* LLMK_TEST_EMULATION=off: for compilers that the emulated matrix units are too much for. */
static bool emulates(bool *yes, FILE *errors)
{
    const char *given = getenv("LLMK_TEST_EMULATION");
    *yes = !given || !*given;
    if (*yes || strcmp(given, "off") == 0)
        return true;
    fprintf(errors, "LLMK_TEST_EMULATION is \"%s\"; expected off\n", given);
    return false;
}

/* Emulated units are slow: where all are swept, each variant has a part of the quick cases, and the
 * next one another part. A whole layer of experts says little of one that products of experts do not say. */
static size_t parts_of(const sweep *s, case_tier tier)
{
    if (tier != CASE_QUICK || s->alone || !is_emulated(s->variant))
        return 1;
    return s->op->op == LLMK_OP_MOE_FORWARD ? 3 : s->op->op == LLMK_OP_LINEAR ? 2 : 1;
}

static void run_entry(sweep *s, const case_entry *entry)
{
    case_line line;
    char error[512];
    if (case_parse_fields(s->op, entry->text, &line, error, sizeof error)) {
        run_case(s, &line);
    } else {
        fprintf(s->out, "%s: bad entry \"%s\": %s\n", s->op->name, entry->text, error);
        s->failed++;
    }
}

/* Each type's self-test takes an emulated unit longer than all of its cases: one case of eight has
 * one, the others go without. */
#define EMULATED_TESTS 8

static void run_variant(sweep *s, case_tier tier, size_t step, size_t first)
{
    const size_t parts = parts_of(s, tier), own = s->index % parts;
    const size_t each = tier == CASE_QUICK && is_emulated(s->variant) ? EMULATED_TESTS : 1;
    for (int tested = each > 1 ? 0 : 1; tested < 2; tested++) {
        if (!open_context(s, tested ? 0 : LLMK_CONTEXT_NO_SELFTEST))
            return;
        size_t turn = 0;
        for (size_t i = own + parts * first; i < s->op->entry_count; i += parts * step)
            if (s->op->entries[i].tier <= tier && (turn++ % each == 0) == tested)
                run_entry(s, &s->op->entries[i]);
        close_context(s);
    }
    fprintf(s->out,
            "%-18s %-12s %4zu run %4zu skipped %4zu failed  worst error %.3g of its bound%s%s\n",
            s->op->name, s->variant, s->run, s->skipped, s->failed, s->worst,
            s->run || !s->skipped ? "" : "  ", s->run || !s->skipped ? "" : s->skip_reason);
    fflush(s->out);
}

/* Any case's explanation lists all variants. */
size_t case_variants(const case_op *op, llmk_variant_info *infos, size_t capacity, FILE *errors)
{
    sweep s = {.op = op, .out = errors};
    size_t count = 0;
    if (!open_context(&s, 0))
        return 0;
    for (size_t i = 0; i < op->entry_count && !count; i++) {
        case_line line;
        char error[512];
        if (op->entries[i].tier != CASE_QUICK ||
            !case_parse_fields(op, op->entries[i].text, &line, error, sizeof error))
            continue;
        case_run *run = case_run_new(s.ctx, s.queue, &line, 1, CASE_TO_TIME, error, sizeof error);
        if (run &&
            llmk_explain(s.ctx, op->op, case_run_args(run, 0), infos, capacity, &count) != LLMK_OK)
            snprintf(error, sizeof error, "llmk_explain: %s", llmk_error_message());
        if (!count)
            fprintf(errors, "%s %s: %s\n", op->name, op->entries[i].text, error);
        case_run_free(run);
    }
    close_context(&s);
    return count < capacity ? count : capacity;
}

/* All variants, those that emulate a unit, those that do not, or one by its name. */
static bool is_wanted(const char *wanted, const char *variant, bool emulation)
{
    const bool emulated = is_emulated(variant);
    if (!wanted)
        return emulation || !emulated;
    if (strcmp(wanted, CASE_EMULATED) == 0)
        return emulated && emulation;
    if (strcmp(wanted, CASE_NOT_EMULATED) == 0)
        return !emulated;
    return strcmp(wanted, variant) == 0;
}

size_t case_sweep(const case_op *op, const char *variant, case_tier tier, FILE *out, size_t *run)
{
    llmk_variant_info infos[MAX_VARIANTS];
    size_t step, first, failed = 0, swept = 0;
    bool emulation;
    *run = 0;
    if (!case_step(&step, &first, out) || !emulates(&emulation, out))
        return 1;
    const size_t count = case_variants(op, infos, MAX_VARIANTS, out);
    if (!count) {
        fprintf(out, "%s: its variants cannot be listed\n", op->name);
        return 1;
    }
    const bool one = variant && strcmp(variant, CASE_EMULATED) != 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_wanted(variant, infos[i].name, emulation))
            continue;
        sweep s = {.op = op, .variant = infos[i].name, .index = i, .alone = one, .out = out};
        run_variant(&s, tier, step, first);
        failed += s.failed;
        *run += s.run;
        swept++;
    }
    if (!swept && one)
        fprintf(out, "%s has no variant \"%s\"\n", op->name, variant);
    return swept || !one ? failed : 1;
}
