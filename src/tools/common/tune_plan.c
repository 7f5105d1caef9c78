/* tune_plan.c - cases from model lists and from the command line. */
#include "tools/common/tune_plan.h"

#include "ops/operator.h"
#include "tools/common/bench_models.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

bool tune_plan_add(tune_plan *plan, const case_line *line)
{
    tune_job job = {.cost = line->op->flops ? line->op->flops(line) : 0, .op = line->op->op};
    case_print(line, job.text, sizeof job.text);
    for (size_t i = 0; i < plan->count; i++)
        if (strcmp(plan->list[i].text, job.text) == 0)
            return true;
    tune_job *grown = realloc(plan->list, (plan->count + 1) * sizeof *grown);
    if (!grown)
        return false;
    plan->list = grown;
    grown[plan->count++] = job;
    return true;
}

static int by_turn(const void *a_, const void *b_)
{
    const tune_job *a = a_, *b = b_;
    return a->turn != b->turn ? (a->turn > b->turn) - (a->turn < b->turn)
                              : (a->op > b->op) - (a->op < b->op);
}

static int by_cost(const void *a_, const void *b_)
{
    const tune_job *a = a_, *b = b_;
    return a->cost != b->cost ? (a->cost > b->cost) - (a->cost < b->cost)
                              : strcmp(a->text, b->text);
}

void tune_plan_sort(tune_plan *plan)
{
    uint32_t turns[64] = {0};
    if (!plan->count)
        return;
    qsort(plan->list, plan->count, sizeof plan->list[0], by_cost);
    for (size_t i = 0; i < plan->count; i++)
        plan->list[i].turn = turns[plan->list[i].op % LLMK_COUNT(turns)]++;
    qsort(plan->list, plan->count, sizeof plan->list[0], by_turn);
}

void tune_plan_free(tune_plan *plan)
{
    free(plan->list);
    *plan = (tune_plan){NULL, 0};
}

static bool is_tuned(const case_op *op)
{
    const llmk_operator *o = llmk_operator_get(op->op);
    return o && o->size_names;
}

static bool add_model(tune_plan *plan, const char *dir, const char *model, uint64_t tokens,
                      char *error, size_t error_size)
{
    size_t count;
    char unused[512];
    bench_model_case *cases = bench_models_load(dir, model, tokens, &count, error, error_size);
    bool good = cases != NULL;
    for (size_t i = 0; good && i < count; i++) {
        case_line line;
        if (case_parse(cases[i].text, &line, unused, sizeof unused) && is_tuned(line.op))
            good = tune_plan_add(plan, &line);
    }
    free(cases);
    return good;
}

bool tune_plan_models(tune_plan *plan, const char *lists, const char *model, const uint64_t *tokens,
                      size_t token_count, char *error, size_t error_size)
{
    char dir[1200], name[256];
    if (!bench_models_dir(lists, dir, sizeof dir)) {
        snprintf(error, error_size, "no model lists at %s; --lists DIR says where they are",
                 lists ? lists : "the installed place");
        return false;
    }
    bool good = true;
    DIR *folder = model ? NULL : opendir(dir);
    for (const struct dirent *entry; folder && good && (entry = readdir(folder)) != NULL;) {
        const size_t length = strlen(entry->d_name);
        if (length <= 4 || length >= sizeof name || strcmp(entry->d_name + length - 4, ".txt") != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)length - 4, entry->d_name);
        for (size_t i = 0; good && i < token_count; i++)
            good = add_model(plan, dir, name, tokens[i], error, error_size);
    }
    if (folder)
        closedir(folder);
    for (size_t i = 0; model && good && i < token_count; i++)
        good = add_model(plan, dir, model, tokens[i], error, error_size);
    return good;
}

static bool has_groups(const char *format)
{
    static const char *const grouped[] = {"w4", "gptq_v1", "gptq_v2", "awq_gemm", "ct"};
    for (size_t i = 0; i < LLMK_COUNT(grouped); i++)
        if (strcmp(format, grouped[i]) == 0)
            return true;
    return false;
}

bool tune_plan_line(const char *op_name, const char *shape, const char *format, case_line *line,
                    char *error, size_t error_size)
{
    char text[512];
    const case_op *op = case_op_find(op_name);
    if (!op || !is_tuned(op)) {
        snprintf(error, error_size, op ? "operator %s is not tuned" : "there is no operator \"%s\"",
                 op_name);
        return false;
    }
    size_t used = (size_t)snprintf(text, sizeof text, "%s", op_name);
    for (size_t i = 0; shape && used < sizeof text; i++) {
        const size_t length = strcspn(shape, ",");
        if (i == op->field_count || op->fields[i].kind != CASE_U64) {
            snprintf(error, error_size, "--shape has more than the %zu sizes of %s", i, op_name);
            return false;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, " %s=%.*s", op->fields[i].name,
                                 (int)length, shape);
        shape = shape[length] ? shape + length + 1 : NULL;
    }
    if (format && used < sizeof text)
        snprintf(text + used, sizeof text - used, " w=%s%s", format,
                 has_groups(format) ? " group=128" : "");
    return case_parse(text, line, error, error_size);
}
