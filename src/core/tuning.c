/* tuning.c - the tuned rows of a context: which are for its device, and which fits a call. */
#include "core/tuning.h"
#include "ops/operator.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define ANY_SIZE 255
#define WORD     81  /* bytes of what sentences repeat of a file, */
#define FROM     161 /* and of where a row comes from */

/* A row with its words looked up. */
typedef struct entry {
    const llmk_operator *op;
    char *types, *from;                  /* owned; NULL: any; measured */
    uint8_t exponent[LLMK_TUNING_SIZES]; /* sizes up to a power of two; or ANY_SIZE */
    llmk_choice choice;                  /* variant NULL: the operator's own order */
    unsigned rank, order;                /* lower ones come first */
} entry;

struct llmk_tuning {
    entry *list;
    size_t count;
    entry pinned; /* op NULL: none */
};

/* ---- Words ---- */

const char *llmk_tuning_vendor(const llmk_context *ctx)
{
    static const char *const names[] = {
        [LLMK_VENDOR_OTHER] = "other", [LLMK_VENDOR_NVIDIA] = "nvidia",
        [LLMK_VENDOR_AMD] = "amd",     [LLMK_VENDOR_INTEL] = "intel",
        [LLMK_VENDOR_POCL] = "pocl",   [LLMK_VENDOR_MESA] = "mesa"};
    return names[ctx->caps.vendor];
}

void llmk_tuning_architecture(const llmk_context *ctx, char *text, size_t size)
{
    const llmk_caps *caps = &ctx->caps;
    const int family = (int)strcspn(caps->device_name, ":"); /* "gfx942:sramecc+:xnack-" */
    text[0] = '\0';
    if (caps->compute_capability)
        snprintf(text, size, "sm_%u", caps->compute_capability);
    else if (caps->vendor == LLMK_VENDOR_AMD && !llmk_is_cpu(caps))
        snprintf(text, size, "%.*s", family, caps->device_name);
}

const char *llmk_tuning_word(char *out, size_t size, const char *text)
{
    llmk_join(out, size, text ? text : "?", NULL);
    llmk_make_printable(out, false);
    return out;
}

static uint8_t exponent_of(uint64_t size)
{
    uint8_t exponent = 0;
    while (exponent < 63 && (UINT64_C(1) << exponent) < size)
        exponent++;
    return exponent;
}

bool llmk_tuning_shape(const llmk_operator *op, const void *problem, char *text, size_t size)
{
    uint64_t sizes[LLMK_TUNING_SIZES];
    size_t used = 0;
    text[0] = '\0';
    if (!op->size_names || !op->sizes(problem, sizes))
        return false;
    for (size_t i = 0; op->size_names[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s=%" PRIu64, i ? " " : "",
                                 op->size_names[i], UINT64_C(1) << exponent_of(sizes[i]));
    return used < size;
}

/* The inverse of llmk_tuning_shape: sizes in their order, of which some may be left out. */
static bool parse_shape(const llmk_operator *op, const char *text,
                        uint8_t exponent[LLMK_TUNING_SIZES])
{
    bool first = true;
    memset(exponent, ANY_SIZE, LLMK_TUNING_SIZES);
    for (size_t i = 0; text && *text && op->size_names[i]; i++) {
        const size_t length = strlen(op->size_names[i]);
        const char *word = text + !first;
        if (strncmp(word, op->size_names[i], length) != 0 || word[length] != '=')
            continue;
        const char *digits = word + length + 1;
        char *end;
        if ((!first && *text != ' ') || *digits < '1' || *digits > '9')
            return false;
        const unsigned long long value = strtoull(digits, &end, 10);
        if (value & (value - 1))
            return false;
        exponent[i] = exponent_of(value);
        text = end;
        first = false;
    }
    return !text || (!first && !*text);
}

static unsigned missing_sizes(const llmk_operator *op, const uint8_t exponent[LLMK_TUNING_SIZES])
{
    unsigned missing = 0;
    for (size_t i = 0; op->size_names[i]; i++)
        missing += exponent[i] == ANY_SIZE;
    return missing;
}

void llmk_tuning_hash(const llmk_operator *op, const llmk_config *config, char text[17])
{
    const uint32_t numbers[] = {config->value[0], config->value[1], config->value[2], config->items,
                                config->local_bytes};
    char name[128];
    llmk_join(name, sizeof name, op->name, ":", config->variant, "@", config->name, NULL);
    snprintf(text, 17, "%016" PRIx64,
             llmk_hash(llmk_hash(LLMK_HASH_SEED, name, strlen(name)), numbers, sizeof numbers));
}

/* ---- Rows ---- */

static bool is(const char *word, const char *value)
{
    return word && strcmp(word, value) == 0;
}

bool llmk_tuning_is_for(const llmk_context *ctx, const llmk_tuning_row *row)
{
    char architecture[128];
    llmk_tuning_architecture(ctx, architecture, sizeof architecture);
    if (row->image && !is(ctx->forced_image, row->image))
        return false;
    return row->device         ? is(row->device, ctx->caps.device_name)
           : row->architecture ? is(row->architecture, architecture)
           : row->vendor       ? is(row->vendor, llmk_tuning_vendor(ctx))
                               : true;
}

/* The row as an entry; its own strings are not copied yet. */
static bool resolve(const llmk_context *ctx, const llmk_tuning_row *row, entry *e, llmk_reason *why)
{
    char wanted[160], hash[17], word[WORD];
    *e = (entry){.types = NULL};
    if (row->not_text)
        return row->not_text[0] ? llmk_no(why, "its \"%s\" is no string", row->not_text)
                                : llmk_no(why, "it is no object");
    if (!row->op || !row->variant)
        return llmk_no(why, "it has no %s", row->op ? "\"variant\"" : "\"op\"");
    if ((row->device != NULL) + (row->architecture != NULL) + (row->vendor != NULL) > 1)
        return llmk_no(why, "it is for more than one of a device, an architecture and a vendor");
    e->op = llmk_operator_named(row->op);
    if (!e->op || !e->op->size_names)
        return llmk_no(why, e->op ? "operator \"%s\" is not tuned" : "unknown operator \"%s\"",
                       llmk_tuning_word(word, WORD / 2, row->op));
    if (!parse_shape(e->op, row->shape, e->exponent))
        return llmk_no(why, "\"%s\" is no shape of %s", llmk_tuning_word(word, WORD, row->shape),
                       e->op->name);
    e->rank = (row->device         ? 0
               : row->architecture ? 16
               : row->vendor       ? 32
                                   : 48) +
              (row->types ? 0 : 8) + missing_sizes(e->op, e->exponent);
    if (is(row->variant, LLMK_TUNING_RULE))
        return !row->config || llmk_no(why, "a configuration of no variant");
    const bool has_config = row->config && !is(row->config, LLMK_TUNING_RULE);
    llmk_join(wanted, sizeof wanted, row->variant, has_config ? "@" : "",
              has_config ? row->config : "", NULL);
    if (strlen(row->variant) > 63 || (has_config && strlen(row->config) > 63) ||
        strchr(row->variant, '@') || !llmk_choice_parse(e->op, wanted, &e->choice))
        return llmk_no(why, "%s has no \"%s\"", e->op->name, llmk_tuning_word(word, WORD, wanted));
    if (!has_config)
        return true;
    llmk_tuning_hash(e->op, e->choice.config, hash);
    if (!is(row->hash, hash))
        return llmk_no(why, "%s:%s means something else in this version (hash %s)", e->op->name,
                       wanted, hash);
    return llmk_config_runs(ctx, e->choice.config, why);
}

bool llmk_tuning_check(const llmk_context *ctx, const llmk_tuning_row *row, llmk_reason *why)
{
    entry e;
    return resolve(ctx, row, &e, why);
}

/* ---- A context's rows ---- */

typedef struct reading {
    llmk_context *ctx;
    llmk_tuning *tuning;
    unsigned rank; /* added to that of every row */
    size_t taken, ignored, first_ignored;
    llmk_reason why; /* of the first */
} reading;

static void take(void *user, size_t index, const llmk_tuning_row *row)
{
    reading *r = user;
    llmk_tuning *t = r->tuning;
    entry e;
    llmk_reason why;
    char from[FROM];
    if (!llmk_tuning_is_for(r->ctx, row))
        return;
    bool good = resolve(r->ctx, row, &e, &why);
    if (good && r->taken == LLMK_TUNING_MAX_ROWS)
        good = llmk_no(&why, "more than %d rows", LLMK_TUNING_MAX_ROWS);
    if (good && ((row->types && !(e.types = strdup(row->types))) ||
                 (row->from && !(e.from = strdup(llmk_tuning_word(from, FROM, row->from))))))
        good = llmk_no(&why, "no memory for it");
    if (!good) {
        free(e.types);
        if (r->ignored++ == 0) {
            r->first_ignored = index;
            r->why = why;
        }
        return;
    }
    r->taken++;
    e.rank += r->rank;
    e.order = (unsigned)t->count;
    t->list[t->count++] = e;
}

static int in_order(const void *a_, const void *b_)
{
    const entry *a = a_, *b = b_;
    return a->rank != b->rank ? (a->rank > b->rank) - (a->rank < b->rank)
                              : (a->order > b->order) - (a->order < b->order);
}

static void read_users(reading *r)
{
    char path[4096], head[41];
    llmk_reason why;
    if (!llmk_tuning_path(path, sizeof path)) {
        llmk_join(head, sizeof head, path, NULL);
        if (path[0])
            llmk_log_write(&r->ctx->log, LLMK_LOG_WARN,
                           "no tuned rows are taken from the file that LLMK_TUNE_DB, "
                           "XDG_CONFIG_HOME or HOME names: %s... has more than %zu characters",
                           head, sizeof path - 1);
        return;
    }
    const char *named = getenv("LLMK_TUNE_DB");
    if (named && named[0] && access(path, F_OK) != 0)
        llmk_log_write(&r->ctx->log, LLMK_LOG_WARN,
                       "no tuned rows are taken from LLMK_TUNE_DB, %s: %s", path, strerror(errno));
    else if (!llmk_tuning_read(path, take, r, &why))
        llmk_log_write(&r->ctx->log, LLMK_LOG_WARN, "no tuned rows are taken from %s: %s", path,
                       why.text);
    else if (r->ignored)
        llmk_log_write(&r->ctx->log, LLMK_LOG_WARN,
                       "%s: %zu of its rows ignored, first row %zu: %s", path, r->ignored,
                       r->first_ignored + 1, r->why.text);
}

llmk_tuning *llmk_tuning_open(llmk_context *ctx)
{
    const char *file = getenv("LLMK_TUNE_DB");
    if (ctx->is_trial || (file && strcasecmp(file, "off") == 0))
        return NULL;
    const bool own_only = file && strcasecmp(file, LLMK_TUNING_BUILT_IN) == 0;
    llmk_tuning *t = calloc(1, sizeof *t);
    const size_t most = LLMK_TUNING_MAX_ROWS + llmk_tuning_built_in_count;
    if (!t || !(t->list = calloc(most, sizeof *t->list))) {
        free(t);
        return NULL; /* rows are advice */
    }
    reading users = {.ctx = ctx, .tuning = t}, built_in = {.ctx = ctx, .tuning = t, .rank = 64};
    if (!own_only)
        read_users(&users);
    for (size_t i = 0; i < llmk_tuning_built_in_count; i++)
        take(&built_in, i, &llmk_tuning_built_in[i]);
    if (built_in.ignored)
        llmk_log_write(&ctx->log, LLMK_LOG_WARN,
                       "%zu of the library's own tuned rows are ignored: %s", built_in.ignored,
                       built_in.why.text);
    qsort(t->list, t->count, sizeof *t->list, in_order);
    entry *fitting = realloc(t->list, (t->count ? t->count : 1) * sizeof *t->list);
    t->list = fitting ? fitting : t->list;
    if (t->count)
        return t;
    llmk_tuning_free(t);
    return NULL;
}

void llmk_tuning_free(llmk_tuning *tuning)
{
    if (!tuning)
        return;
    for (size_t i = 0; i < tuning->count; i++) {
        free(tuning->list[i].types);
        free(tuning->list[i].from);
    }
    free(tuning->list);
    free(tuning);
}

bool llmk_tuning_pin(llmk_context *ctx, const llmk_operator *op, const llmk_choice *choice)
{
    if (!ctx->tuning && choice)
        ctx->tuning = calloc(1, sizeof *ctx->tuning);
    if (ctx->tuning)
        ctx->tuning->pinned = choice ? (entry){.op = op, .choice = *choice} : (entry){.op = NULL};
    return ctx->tuning || !choice;
}

/* The first row that fits; NULL where none does. */
static const entry *find(const llmk_context *ctx, const llmk_operator *op, const void *problem)
{
    const llmk_tuning *t = ctx->tuning;
    uint64_t sizes[LLMK_TUNING_SIZES];
    uint8_t exponent[LLMK_TUNING_SIZES] = {0};
    char types[192] = "";
    if (!t || !op->size_names || !op->sizes(problem, sizes))
        return NULL;
    if (t->pinned.op == op)
        return &t->pinned;
    for (size_t i = 0; i < LLMK_TUNING_SIZES && op->size_names[i]; i++)
        exponent[i] = exponent_of(sizes[i]);
    for (size_t i = 0; i < t->count; i++) {
        const entry *e = &t->list[i];
        bool same = e->op == op;
        for (size_t d = 0; same && d < LLMK_TUNING_SIZES && op->size_names[d]; d++)
            same = e->exponent[d] == ANY_SIZE || e->exponent[d] == exponent[d];
        if (same && e->types) {
            if (!types[0])
                op->key(problem, types, sizeof types);
            same = strcmp(e->types, types) == 0;
        }
        if (same)
            return e;
    }
    return NULL;
}

bool llmk_tuning_find(const llmk_context *ctx, const llmk_operator *op, const void *problem,
                      llmk_choice *choice)
{
    const entry *e = find(ctx, op, problem);
    if (e)
        *choice = e->choice;
    return e && e->choice.variant;
}

const char *llmk_tuning_from(const llmk_context *ctx, const llmk_operator *op, const void *problem)
{
    const entry *e = find(ctx, op, problem);
    return e ? e->from : NULL;
}
