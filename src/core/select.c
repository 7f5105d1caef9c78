/*
 * select.c - choosing a variant: vendor and device, features (both in `supports`), trial build,
 * self-test; the first of an operator's table that passes all four is used.
 *
 * The last two run once for every operator, variant and key, in a context of their own, and their
 * verdicts are kept in memory and on disk.
 */
#include "ops/operator.h"

#include <stdio.h>
#include <stdlib.h>

static const llmk_operator *const operators[] = {
    &llmk_operator_rmsnorm,       &llmk_operator_gated_activation, &llmk_operator_add,
    &llmk_operator_quantize,      &llmk_operator_dequantize,       &llmk_operator_error_report,
    &llmk_operator_linear,        &llmk_operator_moe_route,        &llmk_operator_moe_permute,
    &llmk_operator_moe_unpermute, &llmk_operator_grouped_linear,   &llmk_operator_moe_forward,
    &llmk_operator_gated_linear,
};

const llmk_operator *llmk_operator_get(llmk_op op)
{
    for (size_t i = 0; i < LLMK_COUNT(operators); i++)
        if (operators[i] && operators[i]->id == op)
            return operators[i];
    return NULL;
}

const llmk_operator *llmk_operator_named(const char *name)
{
    for (size_t i = 0; i < LLMK_COUNT(operators); i++)
        if (strcmp(operators[i]->name, name) == 0)
            return operators[i];
    return NULL;
}

const char *llmk_op_name(llmk_op op)
{
    const llmk_operator *o = llmk_operator_get(op);
    return o ? o->name : NULL;
}

bool llmk_any_supported(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    (void)ctx, (void)problem, (void)why;
    return true;
}

/* ---- Choices: "name", "name@config" ---- */

static const llmk_variant *find_variant(const llmk_operator *op, const char *name, size_t length)
{
    for (size_t i = 0; i < op->variant_count; i++)
        if (strncmp(op->variants[i].name, name, length) == 0 && !op->variants[i].name[length])
            return &op->variants[i];
    return NULL;
}

bool llmk_choice_parse(const llmk_operator *op, const char *text, llmk_choice *choice)
{
    const size_t length = strcspn(text, "@");
    *choice = (llmk_choice){find_variant(op, text, length), NULL};
    if (!choice->variant || !text[length])
        return choice->variant != NULL;
    for (size_t i = 0; i < op->config_count && !choice->config; i++)
        if (strcmp(op->configs[i].variant, choice->variant->name) == 0 &&
            strcmp(op->configs[i].name, text + length + 1) == 0)
            choice->config = &op->configs[i];
    return choice->config != NULL;
}

void llmk_choice_print(const llmk_choice *choice, char *text, size_t size)
{
    llmk_join(text, size, choice->variant->name, choice->config ? "@" : "",
              choice->config ? choice->config->name : "", NULL);
}

bool llmk_config_runs(const llmk_context *ctx, const llmk_config *config, llmk_reason *why)
{
    if (!config ||
        (config->items <= ctx->caps.max_work_group && config->local_bytes <= ctx->caps.local_bytes))
        return true;
    return llmk_no(why, "%s@%s needs work-groups of %u items and %u bytes of local memory",
                   config->variant, config->name, config->items, config->local_bytes);
}

/* ---- Forced variants: "op:name,op:name@config" ---- */

/* Cuts the next pair off `*text`; false at the end or where the text is malformed (*text stays). */
static bool next_pair(const char **text, char op[64], char name[64])
{
    int length = 0;
    if (sscanf(*text, "%63[^:,]:%63[^:,]%n", op, name, &length) != 2)
        return false;
    const char *rest = *text + length;
    if (*rest != '\0' && (*rest != ',' || !rest[1]))
        return false;
    *text = *rest == ',' ? rest + 1 : rest;
    return true;
}

/* What an operator could be forced to instead of `name`, for the sentence. */
static void list_choices(const llmk_operator *op, const char *name, char *text, size_t size)
{
    const llmk_variant *v = find_variant(op, name, strcspn(name, "@"));
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; !v && i < op->variant_count && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%s", n ? ", " : "", op->variants[i].name);
    for (size_t i = 0; v && i < op->config_count && n < size; i++)
        if (strcmp(op->configs[i].variant, v->name) == 0)
            n += (size_t)snprintf(text + n, size - n, "%s%s@%s", n ? ", " : "", v->name,
                                  op->configs[i].name);
    if (v && !n)
        snprintf(text, size, "%s alone", v->name);
}

llmk_status llmk_check_forced_variants(const char *text, const char *from)
{
    char op_name[64], name[64];
    while (text && *text) {
        if (!next_pair(&text, op_name, name))
            return llmk_fail(LLMK_INVALID_ARGUMENT,
                             "%s: \"%s\" is not of the form OP:NAME[,OP:NAME...]", from, text);
        const llmk_operator *op = llmk_operator_named(op_name);
        llmk_choice choice;
        bool has_it = false; /* "*" is every operator that has the variant */
        for (size_t i = 0; i < LLMK_COUNT(operators); i++)
            has_it = has_it || llmk_choice_parse(operators[i], name, &choice);
        if (strcmp(op_name, "*") == 0) {
            if (has_it)
                continue;
            return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: no operator has a variant \"%s\"", from,
                             name);
        }
        if (!op)
            return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: there is no operator \"%s\"", from,
                             op_name);
        if (!llmk_choice_parse(op, name, &choice)) {
            char known[256];
            list_choices(op, name, known, sizeof known);
            return llmk_fail(LLMK_INVALID_ARGUMENT,
                             "%s: operator %s has no variant \"%s\"; it has %s", from, op_name,
                             name, known);
        }
    }
    return LLMK_OK;
}

/* False: nothing is forced. */
static bool forced_choice(const llmk_context *ctx, const llmk_operator *op, llmk_choice *choice)
{
    char op_name[64], name[64];
    for (const char *text = ctx->forced_variants; text && next_pair(&text, op_name, name);)
        if (strcmp(op_name, op->name) == 0 || strcmp(op_name, "*") == 0)
            if (llmk_choice_parse(op, name, choice))
                return true;
    return false;
}

bool llmk_variant_is_forced(const llmk_context *ctx, const char *op, const char *name)
{
    const llmk_operator *o = llmk_operator_named(op);
    llmk_choice forced;
    return o && forced_choice(ctx, o, &forced) && strcmp(forced.variant->name, name) == 0;
}

llmk_status llmk_context_force(llmk_context *ctx, const char *text)
{
    LLMK_TRY(llmk_check_forced_variants(text, "llmk_context_force"));
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a variant's name");
    free(ctx->forced_variants);
    ctx->forced_variants = copy;
    return LLMK_OK;
}

/* ---- Verdicts ---- */

typedef struct verdict {
    struct verdict *next;
    char *key;
    llmk_status status;
    char *reason;  /* of a failure */
    bool believed; /* a failure that earlier runs found, not this one */
} verdict;

#define BUCKETS 128

struct llmk_verdicts {
    pthread_mutex_t lock;
    verdict *buckets[BUCKETS];
};

llmk_verdicts *llmk_verdicts_new(void)
{
    llmk_verdicts *v = calloc(1, sizeof *v);
    if (v)
        pthread_mutex_init(&v->lock, NULL);
    return v;
}

void llmk_verdicts_free(llmk_verdicts *verdicts)
{
    if (!verdicts)
        return;
    for (size_t i = 0; i < BUCKETS; i++)
        for (verdict *v = verdicts->buckets[i], *next; v; v = next) {
            next = v->next;
            free(v->key);
            free(v->reason);
            free(v);
        }
    pthread_mutex_destroy(&verdicts->lock);
    free(verdicts);
}

static verdict **bucket_of(llmk_verdicts *verdicts, const char *key)
{
    return &verdicts->buckets[llmk_hash(LLMK_HASH_SEED, key, strlen(key)) % BUCKETS];
}

/* Verdicts are never removed before the context is, so the pointer stays good. */
static const verdict *recall(llmk_verdicts *verdicts, const char *key)
{
    pthread_mutex_lock(&verdicts->lock);
    const verdict *v = *bucket_of(verdicts, key);
    while (v && strcmp(v->key, key) != 0)
        v = v->next;
    pthread_mutex_unlock(&verdicts->lock);
    return v;
}

/* In front of an older one of the same key, which is recalled no more. */
static const verdict *remember(llmk_verdicts *verdicts, const char *key, llmk_status status,
                               const char *reason, bool believed)
{
    verdict *v = calloc(1, sizeof *v);
    if (!v || !(v->key = strdup(key)) || !(v->reason = strdup(reason))) {
        if (v) {
            free(v->key);
            free(v);
        }
        return NULL;
    }
    v->status = status;
    v->believed = believed;
    pthread_mutex_lock(&verdicts->lock);
    verdict **bucket = bucket_of(verdicts, key);
    v->next = *bucket;
    *bucket = v;
    pthread_mutex_unlock(&verdicts->lock);
    return v;
}

static const verdict *recall_from_disk(llmk_context *ctx, const char *key)
{
    llmk_finding found;
    const verdict *v = NULL;
    if (!llmk_finding_recall(ctx, key, &found))
        return NULL;
    const bool failed = found.value == LLMK_BUILD_FAILED || found.value == LLMK_SELFTEST_FAILED;
    if (failed)
        llmk_finding_warn(ctx, key, &found);
    if (failed || found.value == LLMK_OK)
        v = remember(ctx->verdicts, key, (llmk_status)found.value, found.text, failed);
    free(found.text);
    return v;
}

/* Runs the trial; hold ctx->trial_lock. NULL, with `*failure` and the error text set, where it says
 * nothing about the variant (out of memory). */
static const verdict *try_choice(llmk_context *ctx, const llmk_operator *op, llmk_choice choice,
                                 const void *problem, const char *key, llmk_status *failure)
{
    bool ran, keep = true;
    const uint64_t start = llmk_now();
    llmk_status status = *failure = llmk_trial_of(ctx, op, choice, problem, &ran);
    llmk_times_add(&ctx->times, LLMK_PHASE_TRIAL, start);
    if (!ran || status == LLMK_OUT_OF_MEMORY || status == LLMK_OUT_OF_DEVICE_MEMORY)
        return NULL;
    if (status == LLMK_DEVICE_LOST) { /* only the trial's own context was lost */
        status = llmk_fail_prefix(LLMK_SELFTEST_FAILED, "the self-test lost its context");
    } else if (status != LLMK_OK && status != LLMK_BUILD_FAILED && status != LLMK_SELFTEST_FAILED) {
        keep = false;                /* perhaps of the moment: for this context only */
        if (status != LLMK_IO_ERROR) /* of LLMK_KERNEL_PATH */
            status = LLMK_SELFTEST_FAILED;
    }
    const char *reason = status == LLMK_OK ? "" : llmk_error_message();
    if (status != LLMK_OK)
        llmk_log_write(&ctx->log, LLMK_LOG_WARN, "%s:%s (%s) is not used: %s", op->name,
                       choice.variant->name, key, reason);
    const verdict *v = remember(ctx->verdicts, key, status, reason, false);
    if (v && keep)
        llmk_finding_keep(ctx, key, status, status != LLMK_OK, reason);
    if (!v)
        *failure = llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a verdict");
    return v;
}

#define MAX_KEY 256

static void key_of(const llmk_operator *op, llmk_choice choice, const void *problem,
                   char key[MAX_KEY])
{
    llmk_join(key, MAX_KEY, op->name, ":", choice.variant->name, choice.config ? "@" : "",
              choice.config ? choice.config->name : "", " ", NULL);
    const size_t n = strlen(key);
    op->key(problem, key + n, MAX_KEY - n);
}

/* anew: failures of earlier runs are not believed, but tried. */
static const verdict *verdict_of(llmk_context *ctx, const llmk_operator *op, llmk_choice choice,
                                 const void *problem, bool anew, llmk_status *failure)
{
    static const verdict trusted = {.status = LLMK_OK, .reason = ""};
    if (ctx->flags & LLMK_CONTEXT_NO_SELFTEST)
        return &trusted;
    char key[MAX_KEY];
    key_of(op, choice, problem, key);
    const verdict *v = recall(ctx->verdicts, key);
    if (v && !(anew && v->believed))
        return v;
    pthread_mutex_lock(&ctx->trial_lock);
    v = recall(ctx->verdicts, key); /* another thread may have tried meanwhile */
    if (!v && !anew)
        v = recall_from_disk(ctx, key);
    if (!v || (anew && v->believed))
        v = try_choice(ctx, op, choice, problem, key, failure);
    pthread_mutex_unlock(&ctx->trial_lock);
    return v;
}

/* A program that was good in its trial, perhaps long ago, may not build when it is called: this
 * context has done with the variant, and the next run tries it again. False: choose no more. */
static bool give_up(llmk_context *ctx, const llmk_operator *op, llmk_choice choice,
                    const void *problem)
{
    char key[MAX_KEY];
    if (ctx->flags & LLMK_CONTEXT_NO_SELFTEST)
        return false;
    key_of(op, choice, problem, key);
    const char *reason = llmk_error_message();
    llmk_log_write(&ctx->log, LLMK_LOG_WARN, "%s:%s (%s) is not used any more: %s", op->name,
                   choice.variant->name, key, reason);
    llmk_finding_keep(ctx, key, LLMK_BUILD_FAILED, true, reason);
    return remember(ctx->verdicts, key, LLMK_BUILD_FAILED, reason, false) != NULL;
}

/* ---- Selection ---- */

/* Why no variant serves a call: one after the other. */
typedef struct refusals {
    char text[2048];
    size_t length;
} refusals;

static void refuse(refusals *r, const char *name, const char *why)
{
    if (r->length < sizeof r->text)
        r->length += (size_t)snprintf(r->text + r->length, sizeof r->text - r->length, "%s%s: %s",
                                      r->length ? "; " : "", name, why);
}

static bool can(llmk_context *ctx, const llmk_operator *op, const void *problem,
                const llmk_choice *choice, llmk_reason *why)
{
    return choice->variant->supports(ctx, problem, why) &&
           llmk_config_runs(ctx, choice->config, why) &&
           (!choice->config || !op->config_fits ||
            op->config_fits(ctx, problem, choice->config, why));
}

/* What a tuned row asks for, where it serves the call; else variant NULL. */
static llmk_status choose_tuned(llmk_context *ctx, const llmk_operator *op, const void *problem,
                                llmk_choice *tuned)
{
    llmk_reason why;
    llmk_status no_verdict = LLMK_INTERNAL;
    if (!llmk_tuning_find(ctx, op, problem, tuned) || !can(ctx, op, problem, tuned, &why)) {
        tuned->variant = NULL;
        return LLMK_OK;
    }
    const verdict *tried = verdict_of(ctx, op, *tuned, problem, false, &no_verdict);
    if (!tried)
        return no_verdict;
    if (tried->status != LLMK_OK)
        tuned->variant = NULL;
    return LLMK_OK;
}

/* How a choice is made. */
typedef struct choosing {
    bool anew;                /* what earlier runs found refuses nothing */
    bool reasons;             /* sentences are wanted; each takes as long as a launch's argument */
    llmk_variant_info *infos; /* gets the verdicts on all variants, as far as `capacity` reaches */
    size_t capacity;
    bool believed; /* out: a variant was refused for what earlier runs found */
} choosing;

static llmk_status choose_once(llmk_context *ctx, const llmk_operator *op, const void *problem,
                               choosing *c, llmk_choice *chosen)
{
    llmk_choice forced, tuned = {NULL, NULL};
    const bool is_forced = forced_choice(ctx, op, &forced);
    llmk_status failure = LLMK_NO_VARIANT;
    refusals refused = {.length = 0};
    c->believed = false;
    *chosen = tuned;
    if (!is_forced)
        LLMK_TRY(choose_tuned(ctx, op, problem, &tuned));
    if (tuned.variant && !c->infos) {
        *chosen = tuned;
        return LLMK_OK;
    }
    for (size_t i = 0; i < op->variant_count; i++) {
        const llmk_variant *v = &op->variants[i];
        const llmk_choice choice = is_forced && v == forced.variant      ? forced
                                   : tuned.variant && v == tuned.variant ? tuned
                                                                         : (llmk_choice){v, NULL};
        llmk_reason why = {""};
        llmk_verdict verdict_is = LLMK_VERDICT_ELIGIBLE;
        if (is_forced && v != forced.variant) {
            verdict_is = LLMK_VERDICT_OVERRIDDEN;
        } else if (!can(ctx, op, problem, &choice, c->reasons ? &why : NULL)) {
            verdict_is = LLMK_VERDICT_UNSUPPORTED;
            if (c->reasons)
                refuse(&refused, v->name, why.text);
        } else if (!chosen->variant && (!tuned.variant || v == tuned.variant)) {
            llmk_status no_verdict = LLMK_INTERNAL;
            const verdict *tried = verdict_of(ctx, op, choice, problem, c->anew, &no_verdict);
            if (!tried)
                return no_verdict;
            if (tried->status == LLMK_OK) {
                verdict_is = LLMK_VERDICT_CHOSEN;
                *chosen = choice;
                if (!c->infos)
                    return LLMK_OK;
            } else {
                failure = tried->status;
                c->believed = c->believed || tried->believed;
                verdict_is = tried->status == LLMK_BUILD_FAILED ? LLMK_VERDICT_BUILD_FAILED
                                                                : LLMK_VERDICT_SELFTEST_FAILED;
                snprintf(why.text, sizeof why.text, "%.240s", tried->reason);
                refuse(&refused, v->name, tried->reason);
            }
        }
        if (c->infos && i < c->capacity) {
            llmk_variant_info *info = &c->infos[i];
            const bool is_chosen = verdict_is == LLMK_VERDICT_CHOSEN;
            info->name = v->name;
            info->verdict = verdict_is;
            info->config = is_chosen && choice.config ? choice.config->name : NULL;
            if (is_chosen && tuned.variant) {
                const char *from = llmk_tuning_from(ctx, op, problem);
                llmk_no(&why, "as tuned%s%s", from ? ", not measured on such a device: " : "",
                        from ? from : "");
            }
            memcpy(info->reason, why.text, sizeof why.text);
        }
    }
    if (chosen->variant)
        return LLMK_OK;
    if (is_forced)
        return llmk_fail(failure, "%s: the forced variant does not serve this call: %s", op->name,
                         refused.text);
    return llmk_fail(failure, "%s: no variant serves this call: %s", op->name, refused.text);
}

/* What earlier runs found is not to be the reason why nothing serves the call. */
static llmk_status choose(llmk_context *ctx, const llmk_operator *op, const void *problem,
                          llmk_choice *chosen, llmk_variant_info *infos, size_t capacity)
{
    choosing c = {.reasons = infos != NULL, .infos = infos, .capacity = capacity};
    llmk_status status = choose_once(ctx, op, problem, &c, chosen);
    if (!chosen->variant && !(c.reasons && !c.believed)) {
        c.anew = c.believed;
        c.reasons = true;
        status = choose_once(ctx, op, problem, &c, chosen);
    }
    return status;
}

/* ---- Calls ---- */

typedef union problem_buffer {
    max_align_t align;
    unsigned char bytes[LLMK_PROBLEM_SIZE];
} problem_buffer;

static llmk_status check_problem(const llmk_operator *op, llmk_context *ctx, const void *args,
                                 bool dry, problem_buffer *problem)
{
    if (op->problem_size > sizeof *problem)
        return llmk_fail(LLMK_INTERNAL, "the problem of %s is too large", op->name);
    memset(problem, 0, op->problem_size);
    return op->check(ctx, args, dry, problem);
}

static llmk_status check_queue(const llmk_operator *op, llmk_context *ctx, cl_command_queue queue)
{
    cl_context owner = NULL;
    cl_device_id device = NULL;
    if (!queue)
        return llmk_fail(LLMK_INVALID_QUEUE, "%s: queue is NULL", op->name);
    cl_int err = clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof owner, &owner, NULL);
    if (err == CL_SUCCESS)
        err = clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    if (llmk_cl_is_invalid(err))
        return llmk_fail(LLMK_INVALID_QUEUE, "%s: queue is not a command queue", op->name);
    if (err != CL_SUCCESS)
        return llmk_fail_prefix(llmk_fail_cl(ctx, err, "clGetCommandQueueInfo"), "%s: queue",
                                op->name);
    if (owner != ctx->cl)
        return llmk_fail(LLMK_INVALID_QUEUE, "%s: queue belongs to another OpenCL context",
                         op->name);
    if (device != ctx->caps.device)
        return llmk_fail(LLMK_INVALID_QUEUE, "%s: queue belongs to another device", op->name);
    return LLMK_OK;
}

static llmk_status check_events(const llmk_operator *op, llmk_context *ctx,
                                const llmk_events *events)
{
    if (!events || events->num_wait == 0)
        return LLMK_OK;
    if (!events->wait_list)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: events.wait_list is NULL, num_wait is %u",
                         op->name, events->num_wait);
    for (cl_uint i = 0; i < events->num_wait; i++) {
        cl_context owner = NULL;
        if (!events->wait_list[i])
            return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: events.wait_list[%u] is NULL", op->name,
                             i);
        const cl_int err =
            clGetEventInfo(events->wait_list[i], CL_EVENT_CONTEXT, sizeof owner, &owner, NULL);
        if (llmk_cl_is_invalid(err))
            return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: events.wait_list[%u] is not an event",
                             op->name, i);
        if (err != CL_SUCCESS)
            return llmk_fail_prefix(llmk_fail_cl(ctx, err, "clGetEventInfo"),
                                    "%s: events.wait_list[%u]", op->name, i);
        if (owner != ctx->cl)
            return llmk_fail(LLMK_INVALID_ARGUMENT,
                             "%s: events.wait_list[%u] belongs to another OpenCL context", op->name,
                             i);
    }
    return LLMK_OK;
}

static llmk_status launch_variant(const llmk_operator *op, llmk_choice choice, llmk_context *ctx,
                                  cl_command_queue queue, const void *problem,
                                  const llmk_events *events, bool dry, llmk_launch *launch)
{
    cl_command_queue_properties properties = 0;
    if (!dry)
        clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    llmk_workspace *workspace = op->workspace && !dry ? op->workspace(problem) : NULL;
    *launch = (llmk_launch){.ctx = ctx,
                            .queue = queue,
                            .events = events,
                            .op = op->name,
                            .variant = choice.variant->name,
                            .config = choice.config,
                            .dry = dry,
                            .in_order = !(properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE),
                            .want_event = events && events->event};
    if (properties & CL_QUEUE_PROFILING_ENABLE) {
        pthread_mutex_lock(&ctx->profiler_lock);
        launch->profile = ctx->profiler != NULL;
        pthread_mutex_unlock(&ctx->profiler_lock);
    }
    LLMK_TRY(llmk_workspace_begin(workspace, queue, launch->in_order));
    const llmk_status status = choice.variant->launch(launch, problem);
    llmk_workspace_end(workspace, queue, launch->enqueued, launch->last);
    if (status == LLMK_OK && events && events->event)
        *events->event = launch->last;
    else if (launch->last)
        clReleaseEvent(launch->last);
    return status;
}

llmk_status llmk_launch_variant(const llmk_operator *op, llmk_choice choice, llmk_context *ctx,
                                cl_command_queue queue, const void *problem,
                                const llmk_events *events, bool dry)
{
    llmk_launch launch;
    return launch_variant(op, choice, ctx, queue, problem, events, dry, &launch);
}

/* By the best variant; by the next best where that turns out not to build. Where some of a call's
 * kernels are on their way by then, that call fails: what they write may be an input, too. The
 * next call has another variant. */
static llmk_status serve(const llmk_operator *op, llmk_context *ctx, cl_command_queue queue,
                         const void *problem, const llmk_events *events, bool dry)
{
    for (;;) {
        llmk_choice choice;
        llmk_launch launch;
        llmk_status status = choose(ctx, op, problem, &choice, NULL, 0);
        if (!choice.variant)
            return status;
        status = launch_variant(op, choice, ctx, queue, problem, events, dry, &launch);
        if (status != LLMK_BUILD_FAILED || launch.gave_up || !give_up(ctx, op, choice, problem) ||
            launch.enqueued > 0)
            return status;
    }
}

/* Nothing to enqueue, but a caller who wants an event gets one that comes after what it waits for,
 * and an in-order queue is held back as it is by any call. */
static llmk_status finish_empty(llmk_context *ctx, cl_command_queue queue,
                                const llmk_events *events)
{
    if (!events || (!events->event && events->num_wait == 0))
        return LLMK_OK;
    const cl_int err = clEnqueueMarkerWithWaitList(
        queue, events->num_wait, events->num_wait ? events->wait_list : NULL, events->event);
    return err == CL_SUCCESS ? LLMK_OK : llmk_fail_cl(ctx, err, "clEnqueueMarkerWithWaitList");
}

llmk_status llmk_operate(const llmk_operator *op, llmk_context *ctx, cl_command_queue queue,
                         const void *args, const llmk_events *events)
{
    problem_buffer problem;
    LLMK_TRY(llmk_context_usable(ctx));
    LLMK_TRY(check_queue(op, ctx, queue));
    LLMK_TRY(check_events(op, ctx, events));
    LLMK_TRY(check_problem(op, ctx, args, false, &problem));
    if (op->is_empty(&problem))
        return finish_empty(ctx, queue, events);
    return serve(op, ctx, queue, &problem, events, false);
}

llmk_status llmk_operate_workspace_size(const llmk_operator *op, llmk_context *ctx,
                                        const void *args, uint64_t *bytes)
{
    problem_buffer problem;
    LLMK_TRY(llmk_context_usable(ctx));
    if (!bytes)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_%s_workspace_size: bytes is NULL", op->name);
    LLMK_TRY(check_problem(op, ctx, args, true, &problem));
    *bytes = op->workspace_bytes(&problem);
    return LLMK_OK;
}

llmk_status llmk_operate_within(llmk_launch *launch, const llmk_operator *op, const void *problem)
{
    const llmk_config *outer = launch->config;
    const unsigned enqueued = launch->enqueued;
    if (op->is_empty(problem))
        return LLMK_OK;
    for (;;) {
        llmk_choice choice;
        llmk_status status = choose(launch->ctx, op, problem, &choice, NULL, 0);
        if (!choice.variant)
            return status;
        launch->config = choice.config;
        status = choice.variant->launch(launch, problem);
        launch->config = outer;
        if (status != LLMK_BUILD_FAILED || launch->gave_up ||
            !give_up(launch->ctx, op, choice, problem))
            return status;
        if (launch->enqueued > enqueued) {
            launch->gave_up = true;
            return status;
        }
    }
}

static llmk_status find_operator(llmk_op id, const llmk_operator **op)
{
    *op = llmk_operator_get(id);
    return *op ? LLMK_OK : llmk_fail(LLMK_INVALID_ARGUMENT, "op is %d, no operator", (int)id);
}

llmk_status llmk_prepare(llmk_context *ctx, llmk_op id, const void *args)
{
    problem_buffer problem;
    const llmk_operator *op;
    LLMK_TRY(llmk_context_usable(ctx));
    LLMK_TRY(find_operator(id, &op));
    LLMK_TRY(check_problem(op, ctx, args, true, &problem));
    if (op->is_empty(&problem))
        return LLMK_OK;
    return serve(op, ctx, NULL, &problem, NULL, true);
}

llmk_status llmk_explain(llmk_context *ctx, llmk_op id, const void *args,
                         llmk_variant_info *variants, size_t capacity, size_t *count)
{
    problem_buffer problem;
    const llmk_operator *op;
    llmk_choice chosen;
    LLMK_TRY(llmk_context_usable(ctx));
    LLMK_TRY(find_operator(id, &op));
    if (!count || (!variants && capacity > 0))
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_explain: %s is NULL",
                         count ? "variants" : "count");
    LLMK_TRY(check_problem(op, ctx, args, true, &problem));
    *count = op->variant_count;
    llmk_variant_info unused;
    const llmk_status status =
        choose(ctx, op, &problem, &chosen, capacity ? variants : &unused, capacity);
    /* That nothing serves the call is an answer here, not an error. */
    const bool answered = chosen.variant || status == LLMK_NO_VARIANT ||
                          status == LLMK_BUILD_FAILED || status == LLMK_SELFTEST_FAILED ||
                          status == LLMK_IO_ERROR;
    return answered ? LLMK_OK : status;
}
