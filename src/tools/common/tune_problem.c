/* tune_problem.c - candidates: what the operator's tables have, but for what cannot serve the call.
 */
#include "tools/common/tune_problem.h"

#include "ops/operator.h"

typedef union problem_buffer {
    max_align_t align;
    unsigned char bytes[LLMK_PROBLEM_SIZE];
} problem_buffer;

static void add(tune_problem *p, const llmk_choice *choice)
{
    char name[TUNE_NAME];
    llmk_choice_print(choice, name, sizeof name);
    if (p->count < TUNE_CANDIDATES && strcmp(name, p->fallback) != 0)
        memcpy(p->candidates[p->count++], name, sizeof name);
}

/* A row before those of the library has to repeat what one of them says: "default" would end at the
 * operator's own order. */
static void name_unchanged(const llmk_context *ctx, const llmk_operator *op, const void *problem,
                           tune_problem *p)
{
    llmk_choice choice;
    if (llmk_tuning_find(ctx, op, problem, &choice)) {
        llmk_choice_print(&choice, p->unchanged, sizeof p->unchanged);
        if (strcmp(p->unchanged, p->fallback) == 0)
            return;
    }
    snprintf(p->unchanged, sizeof p->unchanged, "%s", TUNE_DEFAULT);
}

/* Of variants that all refuse: one that could, if it were built, says most. */
static const llmk_variant_info *best_reason(const llmk_variant_info *infos, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (infos[i].verdict == LLMK_VERDICT_BUILD_FAILED ||
            infos[i].verdict == LLMK_VERDICT_SELFTEST_FAILED)
            return &infos[i];
    return &infos[0];
}

bool tune_problem_of(case_run *run, tune_problem *p, char *error, size_t error_size)
{
    llmk_context *ctx = case_context(run);
    const llmk_operator *op = llmk_operator_get(case_run_line(run)->op->op);
    llmk_variant_info infos[64];
    problem_buffer problem;
    llmk_reason why;
    size_t count = 0;
    *p = (tune_problem){.count = 0};
    memset(&problem, 0, sizeof problem);
    if (op->check(ctx, case_run_args(run, 0), false, &problem) != LLMK_OK ||
        llmk_explain(ctx, op->id, case_run_args(run, 0), infos, LLMK_COUNT(infos), &count) !=
            LLMK_OK) {
        snprintf(error, error_size, "%s", llmk_error_message());
        return false;
    }
    if (op->is_empty(&problem) || !llmk_tuning_shape(op, &problem, p->shape, sizeof p->shape)) {
        snprintf(error, error_size, "%s is not tuned for such calls", op->name);
        return false;
    }
    op->key(&problem, p->types, sizeof p->types);
    count = count < LLMK_COUNT(infos) ? count : LLMK_COUNT(infos);
    for (size_t i = 0; i < count; i++)
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN)
            llmk_join(p->fallback, sizeof p->fallback, infos[i].name, infos[i].config ? "@" : "",
                      infos[i].config ? infos[i].config : "", NULL);
    if (!p->fallback[0]) {
        const llmk_variant_info *info = best_reason(infos, count);
        snprintf(error, error_size, "no variant of %s serves it on this device: %s: %s", op->name,
                 info->name, info->reason);
        return false;
    }
    name_unchanged(ctx, op, &problem, p);
    for (size_t i = 0; i < op->variant_count; i++) {
        const llmk_variant *v = &op->variants[i];
        if (strcmp(v->name, "ref") == 0 || !v->supports(ctx, &problem, &why))
            continue;
        add(p, &(llmk_choice){v, NULL});
        for (size_t c = 0; c < op->config_count; c++)
            if (strcmp(op->configs[c].variant, v->name) == 0 &&
                llmk_config_runs(ctx, &op->configs[c], &why) &&
                (!op->config_fits || op->config_fits(ctx, &problem, &op->configs[c], &why)))
                add(p, &(llmk_choice){v, &op->configs[c]});
    }
    return true;
}
