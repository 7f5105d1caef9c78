/* test_tuning.c - tuned rows: which of them a call heeds, files that make no sense, device limits,
 * and that every configuration computes what its variant does. */
#include "llmk_cmocka.h"

#include "cases/case.h"
#include "ops/operator.h"
#include "support/scratch.h"
#include "tools/common/tune_problem.h"

#include <stdio.h>
#include <stdlib.h>

static char folder[SCRATCH_PATH], path[SCRATCH_PATH + 32];

typedef struct heard {
    size_t lines;
    char last[2048];
} heard;

static void listen(void *user, llmk_log_level level, const char *message)
{
    heard *h = user;
    (void)level;
    if (strstr(message, "tuning.json") || strstr(message, "tuned rows")) {
        h->lines++;
        snprintf(h->last, sizeof h->last, "%s", message);
    }
}

static llmk_context *open_context(heard *h)
{
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    llmk_context *ctx = NULL;
    *h = (heard){0};
    options.log = listen;
    options.log_user = h;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    return ctx;
}

static void write_file(const void *bytes, size_t size)
{
    assert_true(scratch_write(folder, "tuning.json", bytes, size));
}

/* "cpu@2x4": what a call would use. */
static void find_choice(llmk_context *ctx, const char *text, char *choice, size_t size)
{
    llmk_variant_info infos[64];
    char error[512];
    size_t count = 0;
    case_line line;
    cl_command_queue queue = case_queue_new(ctx);
    assert_true(case_parse(text, &line, error, sizeof error));
    case_run *run = case_run_new(ctx, queue, &line, 1, CASE_TO_TIME, error, sizeof error);
    assert_non_null(run);
    assert_int_equal(
        llmk_explain(ctx, line.op->op, case_run_args(run, 0), infos, LLMK_COUNT(infos), &count),
        LLMK_OK);
    choice[0] = '\0';
    for (size_t i = 0; i < count; i++)
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN)
            snprintf(choice, size, "%s%s%s", infos[i].name, infos[i].config ? "@" : "",
                     infos[i].config ? infos[i].config : "");
    case_run_free(run);
    clReleaseCommandQueue(queue);
}

/* m=16 n=128 k=512; no row in the library, and groups that only `cpu` takes */
#define CALL "linear m=16 n=100 k=300 w=w8 group=7"
static const char *const call = CALL;
#define TYPES "x=f16 w=s8/portable,f32 y=f16"

/* A row, with a right hash, that asks for a choice; `more` are members with a comma before them. */
static const char *row_of(const char *op_name, const char *choice_text, const char *more)
{
    static char texts[8][512];
    static unsigned next;
    char *text = texts[next++ % 8], hash[17];
    const llmk_operator *op = llmk_operator_named(op_name);
    llmk_choice choice;
    assert_non_null(op);
    if (strcmp(choice_text, LLMK_TUNING_RULE) == 0) {
        snprintf(text, 512, "{\"op\": \"%s\", \"variant\": \"default\", \"measured\": {}%s}",
                 op_name, more);
        return text;
    }
    assert_true(llmk_choice_parse(op, choice_text, &choice));
    int n = snprintf(text, 512, "{\"op\": \"%s\", \"variant\": \"%s\", \"measured\": {}%s", op_name,
                     choice.variant->name, more);
    if (choice.config) {
        llmk_tuning_hash(op, choice.config, hash);
        n += snprintf(text + n, 512 - (size_t)n, ", \"config\": \"%s\", \"hash\": \"%s\"",
                      choice.config->name, hash);
    }
    snprintf(text + n, 512 - (size_t)n, "}");
    return text;
}

static void write_rows(const char *a, const char *b, const char *c)
{
    char text[4096];
    const int n = snprintf(text, sizeof text, "{\"llmk_tuning\": 1, \"rows\": [%s%s%s%s%s]}", a,
                           b ? ", " : "", b ? b : "", c ? ", " : "", c ? c : "");
    write_file(text, (size_t)n);
}

/* What a call uses with the file as it is; no complaint about it. */
static void assert_choice(const char *text, const char *expected)
{
    heard h;
    char choice[64];
    llmk_context *ctx = open_context(&h);
    find_choice(ctx, text, choice, sizeof choice);
    llmk_context_free(ctx);
    if (h.lines)
        fail_msg("%s", h.last);
    assert_string_equal(choice, expected);
}

static void test_a_row_is_heeded(void **state)
{
    (void)state;
    write_rows(row_of("linear", "cpu@4x4",
                      ", \"types\": \"" TYPES "\", \"shape\": "
                      "\"m=16 n=128 k=512\""),
               NULL, NULL);
    assert_choice(call, "cpu@4x4");
    assert_choice("linear m=16 n=128 k=257 w=w8 group=7", "cpu@4x4"); /* the same bucket */
    assert_choice("linear m=17 n=100 k=300 w=w8 group=7", "cpu");     /* others */
    assert_choice("linear m=16 n=129 k=300 w=w8 group=7", "cpu");
    assert_choice("linear m=16 n=100 k=300 w=w8 group=7 y=f32", "cpu");
    assert_choice("linear m=16 n=100 k=300 w=w8 group=7 invariant", "cpu"); /* whatever M */
    write_rows(row_of("linear", "portable", ""), NULL, NULL);
    assert_choice(call, "portable");
    write_rows(row_of("linear", "nv", ""), NULL, NULL); /* not on this device */
    assert_choice(call, "cpu");
}

/* Measured with some images alone: nothing is known of what is faster with others. */
static void test_images(void **state)
{
    (void)state;
    char text[1024], *measured;
    snprintf(text, sizeof text, "{\"llmk_tuning\": 1, \"rows\": [%s]}",
             row_of("linear", "cpu@4x4", ", \"note\": \"                       \""));
    measured = strstr(text, "{}");
    assert_non_null(measured);
    memmove(measured + 18, measured + 2, strlen(measured + 2) + 1);
    memcpy(measured, "{\"image\":\"source\"}", 18);
    write_file(text, strlen(text));
    assert_choice(call, "cpu");
    setenv("LLMK_IMAGE", "source", 1);
    assert_choice(call, "cpu@4x4");
    write_rows(row_of("linear", "cpu@8x3", ""), NULL, NULL); /* any will do */
    assert_choice(call, "cpu@8x3");
    unsetenv("LLMK_IMAGE");
}

static void test_environment(void **state)
{
    (void)state;
    char config[SCRATCH_PATH + 64];
    write_rows(row_of("linear", "cpu@4x4", ""), NULL, NULL);
    setenv("LLMK_VARIANT", "linear:cpu@8x3", 1);
    assert_choice(call, "cpu@8x3"); /* it wins */
    setenv("LLMK_VARIANT", "linear:cpu", 1);
    assert_choice(call, "cpu");
    unsetenv("LLMK_VARIANT");
    setenv("LLMK_TUNE_DB", "OFF", 1);
    assert_choice(call, "cpu");
    setenv("LLMK_TUNE_DB", "", 1);
    snprintf(config, sizeof config, "%s/xdg", folder);
    const char *row = row_of("linear", "cpu@1x8", "");
    char text[1024];
    const int n = snprintf(text, sizeof text, "{\"llmk_tuning\": 1, \"rows\": [%s]}", row);
    assert_true(scratch_write(folder, "xdg/.keep", "", 0));
    assert_true(scratch_write(folder, "xdg/llmk/tuning.json", text, (size_t)n));
    setenv("XDG_CONFIG_HOME", config, 1);
    assert_choice(call, "cpu@1x8");
    setenv("XDG_CONFIG_HOME", "relative", 1);
    unsetenv("HOME");
    assert_choice(call, "cpu");
    setenv("LLMK_TUNE_DB", path, 1);
}

static void test_levels(void **state)
{
    (void)state;
    heard h;
    llmk_context *ctx = open_context(&h);
    char device[256], other[256], vendor[64], types[512], shape[768];
    snprintf(device, sizeof device, ", \"device\": \"%s\"", ctx->caps.device_name);
    snprintf(vendor, sizeof vendor, ", \"vendor\": \"%s\"", llmk_tuning_vendor(ctx));
    llmk_context_free(ctx);
    const char *any_row = row_of("linear", "cpu@1x4", ", \"shape\": \"m=16 n=128 k=512\"");
    write_rows(any_row, row_of("linear", "cpu@2x4", vendor), NULL);
    assert_choice(call, "cpu@2x4"); /* a level counts for more than a shape */
    write_rows(row_of("linear", "cpu@2x4", vendor), row_of("linear", "cpu@4x4", device), any_row);
    assert_choice(call, "cpu@4x4");
    snprintf(other, sizeof other, ", \"device\": \"another\"");
    write_rows(row_of("linear", "cpu@2x4", other),
               row_of("linear", "cpu@4x4", ", \"vendor\": \"nvidia\""),
               row_of("linear", "cpu@8x3", ", \"architecture\": \"sm_90\""));
    assert_choice(call, "cpu");
    snprintf(types, sizeof types, "%s, \"types\": \"" TYPES "\"", vendor);
    snprintf(shape, sizeof shape, "%s, \"shape\": \"m=16 n=128 k=512\"", types);
    write_rows(row_of("linear", "cpu@1x4", vendor), row_of("linear", "cpu@4x4", shape),
               row_of("linear", "cpu@2x4", types));
    assert_choice(call, "cpu@4x4");
    assert_choice("linear m=1 n=100 k=300 w=w8 group=7", "cpu@2x4");
    assert_choice("linear m=1 n=100 k=300", "cpu@1x4");
    write_rows(row_of("linear", "cpu@1x4", ", \"shape\": \"m=16\""),
               row_of("linear", "cpu@4x4", ", \"shape\": \"m=16 k=512\""),
               row_of("linear", "cpu@8x3", ", \"shape\": \"n=128\""));
    assert_choice(call, "cpu@4x4");
    assert_choice("linear m=16 n=100 k=600 w=w8 group=7",
                  "cpu@1x4"); /* the first of as many sizes */
    assert_choice("linear m=1 n=100 k=600 w=w8 group=7", "cpu@8x3");
    write_rows(row_of("linear", "default", shape), row_of("linear", "cpu@2x4", types), NULL);
    assert_choice(call, "cpu"); /* measured: the library's own order is best here */
    assert_choice("linear m=1 n=100 k=300 w=w8 group=7", "cpu@2x4");
}

/* ---- Files that make no sense ---- */

typedef struct hostile {
    const char *name, *text;
    const char *sentence; /* in the one line about it */
} hostile;

#define FILE_OF(rows) "{\"llmk_tuning\": 1, \"rows\": [" rows "]}"
#define ROW(members)  FILE_OF("{\"measured\": {}, " members "}")
#define LINEAR        "\"op\": \"linear\", \"variant\": \"cpu\""

static const hostile files[] = {
    {"empty", "", "it is not JSON"},
    {"truncated", "{\"llmk_tuning\": 1, \"rows\": [{\"op\": \"lin", "it is not JSON (line 1"},
    {"foreign", "{\"name\": \"package\"}", "no file of tuned rows"},
    {"an array", "[1, 2]", "no file of tuned rows"},
    {"a number", "[[1]] 2", "it is not JSON"},
    {"another version", "{\"llmk_tuning\": 2, \"rows\": []}", "version 2; expected 1"},
    {"no version", "{\"llmk_tuning\": 1.0, \"rows\": []}", "no file of tuned rows"},
    {"no rows", "{\"llmk_tuning\": 1}", "it has no \"rows\""},
    {"rows of no kind", "{\"llmk_tuning\": 1, \"rows\": {}}", "its \"rows\" are no array"},
    {"twice", "{\"llmk_tuning\": 1, \"llmk_tuning\": 1, \"rows\": []}", "it is not JSON"},
    {"bytes", "\xff\xfe\x01", "it is not JSON"},
    {"not UTF-8", ROW("\"op\": \"\xff\xc0\""), "it is not JSON"},
    {"a row that is none", FILE_OF("7"), "1 of its rows ignored, first row 1: it is no object"},
    {"rows that are none", FILE_OF("null, []"), "2 of its rows ignored"},
    {"a note", FILE_OF("{\"op\": \"nothing\"}"), NULL},
    {"no operator", ROW("\"variant\": \"cpu\""), "it has no \"op\""},
    {"no variant", ROW("\"op\": \"linear\""), "it has no \"variant\""},
    {"a number for a word", ROW("\"op\": 7, \"variant\": \"cpu\""), "its \"op\" is no string"},
    {"a number for a configuration", ROW(LINEAR ", \"config\": 5"), "its \"config\" is no string"},
    {"a number for where it is from", FILE_OF("{" LINEAR ", \"from\": 1}"),
     "its \"from\" is no string"},
    {"a number for images", FILE_OF("{" LINEAR ", \"measured\": {\"image\": 1}}"),
     "its \"image\" is no string"},
    {"from elsewhere", FILE_OF("{\"op\": \"attention\", \"variant\": \"cpu\", \"from\": \"x\"}"),
     "unknown operator"},
    {"null for a word", ROW(LINEAR ", \"shape\": null"), "its \"shape\" is no string"},
    {"an unknown operator", ROW("\"op\": \"attention\", \"variant\": \"cpu\""), "unknown operator"},
    {"an operator that is not tuned", ROW("\"op\": \"quantize\", \"variant\": \"ref\""),
     "\"quantize\" is not tuned"},
    {"an unknown variant", ROW("\"op\": \"linear\", \"variant\": \"gpu\""),
     "linear has no \"gpu\""},
    {"two words in one", ROW("\"op\": \"linear\", \"variant\": \"cpu@1x4\""), "linear has no"},
    {"no word", ROW("\"op\": \"linear\", \"variant\": \"\""), "linear has no \"\""},
    {"an unknown configuration", ROW(LINEAR ", \"config\": \"9x9\", \"hash\": \"0\""),
     "linear has no \"cpu@9x9\""},
    {"another's configuration", ROW(LINEAR ", \"config\": \"team-32\", \"hash\": \"0\""),
     "linear has no \"cpu@team-32\""},
    {"no hash", ROW(LINEAR ", \"config\": \"2x4\""), "means something else"},
    {"another hash", ROW(LINEAR ", \"config\": \"2x4\", \"hash\": \"0123456789abcdef\""),
     "means something else"},
    {"a configuration of the rule",
     ROW("\"op\": \"linear\", \"variant\": \"default\", \"config\": \"2x4\""), "of no variant"},
    {"a shape without sizes", ROW(LINEAR ", \"shape\": \"\""), "is no shape of linear"},
    {"sizes in another order", ROW(LINEAR ", \"shape\": \"n=2 m=1\""), "is no shape"},
    {"a size twice", ROW(LINEAR ", \"shape\": \"m=1 m=1\""), "is no shape"},
    {"a blank too many", ROW(LINEAR ", \"shape\": \"m=1  n=2\""), "is no shape"},
    {"a blank at the end", ROW(LINEAR ", \"shape\": \"m=1 \""), "is no shape"},
    {"too many sizes", ROW(LINEAR ", \"shape\": \"m=1 n=2 k=4 l=8\""), "is no shape"},
    {"other sizes", ROW(LINEAR ", \"shape\": \"rows=1 n=2 k=4\""), "is no shape"},
    {"no power of two", ROW(LINEAR ", \"shape\": \"m=3 n=2 k=4\""), "is no shape"},
    {"a size of 0", ROW(LINEAR ", \"shape\": \"m=0 n=2 k=4\""), "is no shape"},
    {"a negative size", ROW(LINEAR ", \"shape\": \"m=-1 n=2 k=4\""), "is no shape"},
    {"a size beyond counting", ROW(LINEAR ", \"shape\": \"m=99999999999999999999 n=2 k=4\""),
     "is no shape"},
    {"two levels", ROW(LINEAR ", \"vendor\": \"pocl\", \"device\": \"d\""), NULL},
    {"two levels that fit", ROW(LINEAR ", \"vendor\": \"pocl\", \"architecture\": \"\""), NULL},
};

/* The library's own choice, and at most one line, which says what is wrong. */
static void assert_ignored(const char *name, const char *sentence)
{
    heard h;
    char choice[64];
    llmk_context *ctx = open_context(&h);
    find_choice(ctx, call, choice, sizeof choice);
    llmk_context_free(ctx);
    if (strcmp(choice, "cpu") != 0 || h.lines > 1 || (sentence && !h.lines) ||
        (sentence && !strstr(h.last, sentence)))
        fail_msg("%s: %s, %zu lines, \"%s\"; expected \"%s\"", name, choice, h.lines, h.last,
                 sentence ? sentence : "");
}

static void test_hostile_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < LLMK_COUNT(files); i++) {
        write_file(files[i].text, strlen(files[i].text));
        assert_ignored(files[i].name, files[i].sentence);
    }
}

/* Every prefix of a good file, and the file with each byte another. */
static void test_damage(void **state)
{
    (void)state;
    char text[1024];
    heard h;
    llmk_context *ctx = open_context(&h);
    const int n = snprintf(text, sizeof text, FILE_OF("%s"),
                           row_of("linear", "cpu@4x4", ", \"types\": \"" TYPES "\""));
    for (int i = 0; i < n; i++) {
        write_file(text, (size_t)i);
        llmk_tuning_free(llmk_tuning_open(ctx));
        for (unsigned flip = 1; flip < 256; flip *= 2) {
            text[i] = (char)(text[i] ^ (char)flip);
            write_file(text, (size_t)n);
            llmk_tuning_free(llmk_tuning_open(ctx));
            text[i] = (char)(text[i] ^ (char)flip);
        }
    }
    llmk_context_free(ctx);
    write_file(text, (size_t)n);
    assert_choice(call, "cpu@4x4");
}

static void test_large_and_deep(void **state)
{
    (void)state;
    const size_t size = LLMK_TUNING_MAX_BYTES + 1;
    char *bytes = malloc(size + 1);
    assert_non_null(bytes);
    memset(bytes, ' ', size);
    write_file(bytes, size);
    assert_ignored("large", "larger than");
    memset(bytes, '[', size - 1);
    write_file(bytes, size - 1);
    assert_ignored("deep", "it is not JSON");
    /* More rows than are kept, each of them good. */
    const char *row = row_of("linear", "cpu@4x4", "");
    size_t used = (size_t)sprintf(bytes, "{\"llmk_tuning\": 1, \"rows\": [");
    for (size_t i = 0; i <= LLMK_TUNING_MAX_ROWS; i++)
        used += (size_t)sprintf(bytes + used, "%s%s", i ? "," : "", row);
    used += (size_t)sprintf(bytes + used, "]}");
    assert_true(used < size);
    write_file(bytes, used);
    free(bytes);
    heard h;
    llmk_context_free(open_context(&h));
    assert_int_equal(h.lines, 1);
    assert_non_null(strstr(h.last, "more than 4096 rows"));
    remove(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_ignored("a folder", "not a regular file");
    rmdir(path);
    assert_ignored("a file that is not there", "No such file");
    char name[4097];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    setenv("LLMK_TUNE_DB", name, 1);
    assert_ignored("a name that is too long", "more than 4095 characters");
    name[0] = '/';
    setenv("LLMK_TUNE_DB", "", 1);
    setenv("XDG_CONFIG_HOME", name, 1);
    assert_ignored("a folder's name that is too long", "more than 4095 characters");
    /* the default one need not be */
    setenv("XDG_CONFIG_HOME", folder, 1);
    assert_choice(call, "cpu");
    setenv("LLMK_TUNE_DB", path, 1);
}

static void test_limits(void **state)
{
    (void)state;
    heard h;
    write_rows(row_of("linear", "gemv@team-64", ""), NULL, NULL);
    assert_choice("linear m=1 n=100 k=300 w=w8", "gemv@team-64");
    llmk_context *ctx = open_context(&h);
    ctx->caps.max_work_group = 64;
    llmk_tuning_free(llmk_tuning_open(ctx));
    assert_int_equal(h.lines, 1);
    assert_non_null(strstr(h.last, "1 of its rows ignored, first row 1: gemv@team-64 needs "
                                   "work-groups of 128 items"));
    llmk_context_free(ctx);
    write_rows(row_of("moe_forward", "portable@height-64", ""), NULL, NULL);
    assert_choice("moe_forward t=4", "portable"); /* the configuration is not for so few tokens */
}

/* ---- What is built in ---- */

#define BUILT_IN_CALL "linear m=2 n=64 k=64" /* tuning/pocl.json has a row for it */

/* The tuner's baseline: what the library does without the user's file. */
static void test_built_in_alone(void **state)
{
    (void)state;
    heard h;
    char choice[64], error[512];
    write_rows(row_of("linear", "portable", ""), NULL, NULL);
    assert_choice(BUILT_IN_CALL, "portable");
    setenv("LLMK_TUNE_DB", LLMK_TUNING_BUILT_IN, 1);
    llmk_context *ctx = open_context(&h);
    const llmk_operator *op = llmk_operator_named("linear");
    llmk_choice pinned;
    find_choice(ctx, call, choice, sizeof choice);
    assert_string_equal(choice, "cpu");
    find_choice(ctx, BUILT_IN_CALL, choice, sizeof choice);
    assert_string_equal(choice, "cpu@2x4");
    assert_true(llmk_choice_parse(op, "cpu@4x4", &pinned));
    assert_true(llmk_tuning_pin(ctx, op, &pinned));
    find_choice(ctx, BUILT_IN_CALL, choice, sizeof choice);
    assert_string_equal(choice, "cpu@4x4");
    assert_true(llmk_tuning_pin(ctx, NULL, NULL)); /* the row is still there */
    find_choice(ctx, BUILT_IN_CALL, choice, sizeof choice);
    assert_string_equal(choice, "cpu@2x4");

    static const char *const texts[][3] = {{BUILT_IN_CALL, "cpu@2x4", "cpu@2x4"},
                                           {CALL, "cpu", "default"}};
    cl_command_queue queue = case_queue_new(ctx);
    for (size_t i = 0; i < LLMK_COUNT(texts); i++) {
        case_line line;
        tune_problem problem;
        assert_true(case_parse(texts[i][0], &line, error, sizeof error));
        case_run *run = case_run_new(ctx, queue, &line, 1, CASE_TO_TIME, error, sizeof error);
        assert_non_null(run);
        assert_true(tune_problem_of(run, &problem, error, sizeof error));
        assert_string_equal(problem.fallback, texts[i][1]);
        assert_string_equal(problem.unchanged, texts[i][2]);
        case_run_free(run);
    }
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
    setenv("LLMK_TUNE_DB", path, 1);
}

static void test_built_in_rows(void **state)
{
    (void)state;
    heard h;
    llmk_context *ctx = open_context(&h);
    ctx->caps.max_work_group = 1024;
    ctx->caps.local_bytes = 1 << 20;
    llmk_reason why;
    for (size_t i = 0; i < llmk_tuning_built_in_count; i++)
        if (!llmk_tuning_check(ctx, &llmk_tuning_built_in[i], &why))
            fail_msg("built-in row %zu (%s): %s", i, llmk_tuning_built_in[i].op, why.text);
    assert_null(llmk_tuning_built_in[llmk_tuning_built_in_count].op);
    llmk_context_free(ctx);
}

typedef struct pretence {
    const char *name;
    llmk_vendor vendor;
    uint32_t compute_capability;
    const char *architecture; /* of the rows that it takes; NULL: of none */
} pretence;

static const pretence devices[] = {
    {"NVIDIA A100-SXM4-80GB", LLMK_VENDOR_NVIDIA, 80, "sm_80"},
    {"NVIDIA GeForce RTX 3090", LLMK_VENDOR_NVIDIA, 86, NULL},
    {"NVIDIA L40", LLMK_VENDOR_NVIDIA, 89, NULL},
    {"NVIDIA H200", LLMK_VENDOR_NVIDIA, 90, "sm_90"},
    {"gfx942:sramecc+:xnack-", LLMK_VENDOR_AMD, 0, "gfx942"},
    {"gfx90a:sramecc+:xnack-", LLMK_VENDOR_AMD, 0, NULL},
    {"Intel(R) Arc(TM) A770", LLMK_VENDOR_INTEL, 0, NULL},
    {"gfx942", LLMK_VENDOR_OTHER, 0, NULL},
};

static llmk_context *pretend(heard *h, const pretence *device)
{
    setenv("LLMK_TUNE_DB", LLMK_TUNING_BUILT_IN, 1);
    llmk_context *ctx = open_context(h);
    setenv("LLMK_TUNE_DB", path, 1);
    ctx->caps.vendor = device->vendor;
    ctx->caps.type = CL_DEVICE_TYPE_GPU;
    ctx->caps.compute_capability = device->compute_capability;
    ctx->caps.max_work_group = device->vendor == LLMK_VENDOR_AMD ? 256 : 1024;
    ctx->caps.max_required_group = 1024;
    ctx->caps.local_bytes = device->vendor == LLMK_VENDOR_AMD ? 64 << 10 : 48 << 10;
    ctx->caps.compute_units = 108;
    snprintf(ctx->caps.device_name, sizeof ctx->caps.device_name, "%s", device->name);
    atomic_store(&ctx->inline_ptx, device->vendor == LLMK_VENDOR_NVIDIA);
    atomic_store(&ctx->subgroup_size, device->vendor == LLMK_VENDOR_AMD ? 64 : 0);
    setenv("LLMK_TUNE_DB", LLMK_TUNING_BUILT_IN, 1);
    llmk_tuning_free(ctx->tuning);
    ctx->tuning = llmk_tuning_open(ctx);
    setenv("LLMK_TUNE_DB", path, 1);
    return ctx;
}

/* Rows in the library are for the cards that they name and for no other; each makes sense there. */
static void test_built_in_rows_of_devices(void **state)
{
    (void)state;
    for (size_t d = 0; d < LLMK_COUNT(devices); d++) {
        heard h;
        llmk_reason why;
        size_t count = 0;
        llmk_context *ctx = pretend(&h, &devices[d]);
        for (size_t i = 0; i < llmk_tuning_built_in_count; i++) {
            const llmk_tuning_row *row = &llmk_tuning_built_in[i];
            const bool is_for = llmk_tuning_is_for(ctx, row);
            const bool expected = row->architecture && devices[d].architecture &&
                                  strcmp(row->architecture, devices[d].architecture) == 0;
            if (is_for != expected)
                fail_msg("%s, row %zu: %d", devices[d].name, i, is_for);
            if (is_for && !llmk_tuning_check(ctx, row, &why))
                fail_msg("%s, row %zu: %s", devices[d].name, i, why.text);
            count += is_for;
            if (is_for) /* of these only an H200 was there */
                assert_int_equal(row->from == NULL, strcmp(row->architecture, "sm_90") == 0);
        }
        assert_int_equal(count > 0, devices[d].architecture != NULL);
        assert_int_equal(h.lines, 0);
        assert_int_equal(ctx->tuning != NULL,
                         count > 0); /* without rows nothing is any different */
        llmk_context_free(ctx);
    }
}

/* What a row asks for on a device, and that the operator's rules allow it there. */
static void test_a_device_takes_its_row(void **state)
{
    (void)state;
    static const struct {
        size_t device;
        const char *text, *choice, *from;
    } calls[] = {
        {0, "linear m=1 n=9000 k=3072 w=w4 group=128 layout=nv", "nv-stream", "NVIDIA H200"},
        {0, "linear m=16 n=9000 k=3072 w=w8 layout=nv", "nv-stream@small", "NVIDIA H200"},
        {0, "linear m=1 n=3000 k=9000", "nv-dot", "NVIDIA H200"},
        {0, "linear m=3 n=9000 k=3072 w=w8 layout=nv", NULL, NULL},
        {0, "linear m=1 n=3000 k=9000 x=bf16", NULL, NULL},
        {1, "linear m=1 n=9000 k=3072 w=w4 group=128 layout=nv", NULL, NULL},
        {3, "linear m=1 n=9000 k=3072 w=w4 group=128 layout=nv", NULL, NULL},
        {3, "linear m=16 n=9000 k=3072 w=w8 layout=nv", "nv-stream@small", NULL},
        {4, "linear m=1 n=9000 k=3072 w=w4 group=128", "subgroup@team-64", "occupancy"},
        {4, "linear m=8 n=3000 k=9000 w=w8", "subgroup@team-128", "occupancy"},
        {4, "linear m=9 n=3000 k=9000 w=w8", "", "occupancy"}, /* too many rows for it */
        {5, "linear m=1 n=9000 k=3072 w=w4 group=128", NULL, NULL},
    };
    max_align_t problem[LLMK_PROBLEM_SIZE / sizeof(max_align_t)];
    for (size_t i = 0; i < LLMK_COUNT(calls); i++) {
        heard h;
        char error[512], name[64];
        case_line line;
        llmk_reason why;
        llmk_choice choice;
        llmk_context *ctx = pretend(&h, &devices[calls[i].device]);
        cl_command_queue queue = case_queue_new(ctx);
        assert_true(case_parse(calls[i].text, &line, error, sizeof error));
        case_run *run = case_run_new(ctx, queue, &line, 1, CASE_TO_TIME, error, sizeof error);
        if (!run)
            fail_msg("%s: %s", calls[i].text, error);
        const llmk_operator *op = llmk_operator_get(line.op->op);
        memset(problem, 0, sizeof problem);
        assert_int_equal(op->check(ctx, case_run_args(run, 0), false, problem), LLMK_OK);
        const bool found = llmk_tuning_find(ctx, op, problem, &choice);
        const char *from = llmk_tuning_from(ctx, op, problem);
        const bool can = found && choice.variant->supports(ctx, problem, &why) &&
                         llmk_config_runs(ctx, choice.config, &why) &&
                         (!choice.config || op->config_fits(ctx, problem, choice.config, &why));
        if (found != (calls[i].choice != NULL) || (from != NULL) != (calls[i].from != NULL))
            fail_msg("%s on %s: %d, %s", calls[i].text, devices[calls[i].device].name, found,
                     from ? from : "");
        if (from)
            assert_int_equal(strncmp(from, calls[i].from, strlen(calls[i].from)), 0);
        if (can != (found && calls[i].choice[0]))
            fail_msg("%s on %s: %s", calls[i].text, devices[calls[i].device].name, why.text);
        if (can) {
            llmk_choice_print(&choice, name, sizeof name);
            assert_string_equal(name, calls[i].choice);
        }
        case_run_free(run);
        clReleaseCommandQueue(queue);
        llmk_context_free(ctx);
    }
}

/* A row of the user's that was measured elsewhere says so where it is used. */
static void test_from(void **state)
{
    (void)state;
    heard h;
    char error[512];
    llmk_variant_info infos[64];
    size_t count = 0, chosen = 0;
    case_line line;
    const char *text = "{\"llmk_tuning\": 1, \"rows\": [{\"op\": \"linear\", \"variant\": "
                       "\"portable\", \"from\": \"a friend\", \"measured\": false}]}";
    write_file(text, strlen(text));
    assert_choice(call, "portable");
    llmk_context *ctx = open_context(&h);
    cl_command_queue queue = case_queue_new(ctx);
    assert_true(case_parse(call, &line, error, sizeof error));
    case_run *run = case_run_new(ctx, queue, &line, 1, CASE_TO_TIME, error, sizeof error);
    assert_non_null(run);
    assert_int_equal(
        llmk_explain(ctx, line.op->op, case_run_args(run, 0), infos, LLMK_COUNT(infos), &count),
        LLMK_OK);
    for (size_t i = 0; i < count; i++)
        if (infos[i].verdict == LLMK_VERDICT_CHOSEN && ++chosen)
            assert_string_equal(infos[i].reason,
                                "as tuned, not measured on such a device: a friend");
    assert_int_equal(chosen, 1);
    case_run_free(run);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
}

static void test_names(void **state)
{
    (void)state;
    char hashes[256][17];
    size_t count = 0;
    for (llmk_op id = 0; id < 64; id++) {
        const llmk_operator *op = llmk_operator_get(id);
        for (size_t i = 0; op && i < op->config_count; i++) {
            char text[64];
            llmk_choice choice = {NULL, &op->configs[i]}, found;
            snprintf(text, sizeof text, "%s@%s", op->configs[i].variant, op->configs[i].name);
            assert_true(llmk_choice_parse(op, text, &found));
            assert_ptr_equal(found.config, choice.config); /* no name twice */
            llmk_tuning_hash(op, choice.config, hashes[count]);
            for (size_t j = 0; j < count; j++)
                assert_string_not_equal(hashes[j], hashes[count]);
            assert_true(++count < LLMK_COUNT(hashes));
        }
    }
    assert_true(count > 20);
}

/* ---- Configurations ---- */

static const char *const lines[] = {
    "rmsnorm rows=5 h=111 y=f32",
    "rmsnorm rows=3 h=4096 r=f16 s=f16",
    "rmsnorm rows=70 h=520 x=bf16 y=bf16",
    "gated_activation rows=3 d=1000",
    "gated_activation rows=5 d=77 layout=interleaved",
    "add rows=3 cols=1031",
    "linear m=1 n=67 k=511 w=w4 group=64 y=f32",
    "linear m=3 n=66 k=1100 bias=f32 residual=f16",
    "linear m=9 n=35 k=523 w=ct group=64 bits=8 zeros=i8 order=act y=f32",
    "linear m=8 n=97 k=1056 w=w8 group=96 y=f32 xgap=3",
    "linear m=6 n=130 k=4096 w=q4_0 layout=nv y=f32",
    "linear m=11 n=130 k=640 w=w4 group=128 layout=nv y=f32 bias=f16 xgap=8",
    "linear m=16 n=230 k=1152 x=bf16 w=ct group=384 layout=nv y=f32 residual=f32",
    "linear m=9 n=50 k=768 w=w4 zeros=none layout=nv y=f32",
    "grouped_linear r=70 n=37 k=65 e=5",
    "moe_forward t=20",
};

static size_t check_config(llmk_context *ctx, const llmk_operator *op, const llmk_config *config,
                           case_run *run, const char *line)
{
    char forced[128];
    llmk_variant_info infos[64];
    size_t count = 0;
    snprintf(forced, sizeof forced, "%s:%s@%s", op->name, config->variant, config->name);
    assert_int_equal(llmk_context_force(ctx, forced), LLMK_OK);
    assert_int_equal(
        llmk_explain(ctx, op->id, case_run_args(run, 0), infos, LLMK_COUNT(infos), &count),
        LLMK_OK);
    for (size_t i = 0; i < count; i++) {
        if (infos[i].verdict == LLMK_VERDICT_BUILD_FAILED ||
            infos[i].verdict == LLMK_VERDICT_SELFTEST_FAILED)
            fail_msg("%s, %s: %s", forced, line, infos[i].reason);
        if (infos[i].verdict != LLMK_VERDICT_CHOSEN)
            continue;
        assert_ptr_equal(infos[i].config, config->name);
        const case_result result = case_run_check(run);
        if (!result.ok)
            fail_msg("llmk-bench --check --variant %s '%s': %s", forced, line, result.message);
        return 1;
    }
    return 0;
}

static void test_configurations(void **state)
{
    (void)state;
    heard h;
    char error[512];
    size_t checked = 0;
    llmk_context *ctx = open_context(&h);
    cl_command_queue queue = case_queue_new(ctx);
    for (size_t i = 0; i < LLMK_COUNT(lines); i++) {
        case_line line;
        if (!case_parse(lines[i], &line, error, sizeof error))
            fail_msg("%s: %s", lines[i], error);
        case_run *run = case_run_new(ctx, queue, &line, 1, CASE_TO_CHECK, error, sizeof error);
        if (!run)
            fail_msg("%s: %s", lines[i], error);
        const llmk_operator *op = llmk_operator_get(line.op->op);
        for (size_t c = 0; c < op->config_count; c++)
            checked += check_config(ctx, op, &op->configs[c], run, lines[i]);
        case_run_free(run);
    }
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
    assert_true(checked > 40);
}

static int set_up(void **state)
{
    (void)state;
    if (!scratch_make(folder))
        return -1;
    snprintf(path, sizeof path, "%s/tuning.json", folder);
    return setenv("LLMK_TUNE_DB", path, 1);
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    unsetenv("LLMK_VARIANT");
#ifndef LLMK_HAVE_JANSSON
    fprintf(stderr, "built without jansson: skipped\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_a_row_is_heeded),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_hostile_files),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_large_and_deep),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_built_in_rows),
        cmocka_unit_test(test_built_in_alone),
        cmocka_unit_test(test_configurations),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_from),
        cmocka_unit_test(test_built_in_rows_of_devices),
        cmocka_unit_test(test_a_device_takes_its_row),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
