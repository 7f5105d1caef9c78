/*
 * test_manifest.c - every program that any case asks for on any kind of device is in
 * cl/manifest.txt, and the other way round. The devices are pretended, and nothing is built: the
 * functions of src/core/launch.c are replaced by ones that write down what a launch sets up.
 *
 *     test_manifest [FILE]
 *
 * FILE gets a line a launch that differs from the others, "STEM|KERNEL|X,Y,Z|ARGUMENT,...|amd", for
 * tests/images/check_images.py: an argument is "global", "local" or the bytes of a value, and the
 * last is empty on devices that are not AMD's.
 */
#include "llmk_cmocka.h"

#include "cases/case_sweep.h"
#include "core/image.h"
#include "ops/operator.h"
#include "tools/common/bench_probe.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct pretence {
    const char *name;
    llmk_vendor vendor;
    cl_device_type type;
    uint32_t compute_capability;
    uint32_t subgroup, subgroup_sizes, forced_subgroup;
} pretence;

static const pretence devices[] = {
    {"", LLMK_VENDOR_POCL, CL_DEVICE_TYPE_CPU, 0, 64, 16 | 32 | 64, 0},
    {"a GPU", LLMK_VENDOR_OTHER, CL_DEVICE_TYPE_GPU, 0, 8, 0, 0},
    {"an A100", LLMK_VENDOR_NVIDIA, CL_DEVICE_TYPE_GPU, 80, 0, 0, 0},
    {"an H100", LLMK_VENDOR_NVIDIA, CL_DEVICE_TYPE_GPU, 90, 0, 0, 0},
    {"gfx942", LLMK_VENDOR_AMD, CL_DEVICE_TYPE_GPU, 0, 64, 0, 0},
    {"a GPU of Intel", LLMK_VENDOR_INTEL, CL_DEVICE_TYPE_GPU, 0, 32, 8 | 16 | 32, 0},
    {"sub-groups of 32", LLMK_VENDOR_INTEL, CL_DEVICE_TYPE_GPU, 0, 32, 8 | 16 | 32, 32},
    {"sub-groups of 64", LLMK_VENDOR_OTHER, CL_DEVICE_TYPE_GPU, 0, 64, 64, 64},
};

static size_t one;
static llmk_image_set only_index = {NULL, &one};

/* ---- What is asked for ---- */

#define MAX_LINE 1024
#define SLOTS    (1u << 14)

/* A set of lines, by hash. */
typedef struct line_set {
    char *lines[SLOTS];
    size_t count;
} line_set;

static line_set asked, launches; /* stems; lines of FILE */

/* The slot of the line, or the free one where it belongs. */
static char **slot_of(line_set *set, const char *line)
{
    size_t i = llmk_hash(LLMK_HASH_SEED, line, strlen(line)) % SLOTS;
    while (set->lines[i] && strcmp(set->lines[i], line) != 0)
        i = (i + 1) % SLOTS;
    return &set->lines[i];
}

static void keep(line_set *set, const char *line)
{
    char **slot = slot_of(set, line);
    if (*slot)
        return;
    assert_true(set->count++ < SLOTS / 2);
    *slot = strdup(line);
    assert_non_null(*slot);
}

static void free_lines(line_set *set)
{
    for (size_t i = 0; i < SLOTS; i++)
        free(set->lines[i]);
    *set = (line_set){.count = 0};
}

/* As images/images.py names it. */
static void ask_for(const llmk_context *ctx, const char *file, const char *defines,
                    char stem[MAX_LINE])
{
    llmk_image images[LLMK_MAX_IMAGES];
    size_t count, n = strlen(file) - strlen(".cl");
    (void)llmk_images_of(ctx, file, defines, images, &count); /* notes what the manifest lacks */
    assert_true(n + strlen(defines) + 1 < MAX_LINE);
    memcpy(stem, file, n);
    for (const char *p = defines; *p; p++)
        if (strncmp(p, "-D", 2) == 0) {
            stem[n++] = '-';
            p++;
        } else if (*p != ' ')
            stem[n++] = *p == '=' ? '.' : *p;
    stem[n] = '\0';
    keep(&asked, stem);
}

/* ---- src/core/launch.c, without drivers ---- */

typedef struct launch_note {
    char stem[MAX_LINE], arguments[MAX_LINE];
} launch_note;

static void note(llmk_kernel *k, const char *argument)
{
    launch_note *n = (launch_note *)(void *)k->program;
    const size_t length = strlen(n->arguments);
    assert_true(length + strlen(argument) + 1 < sizeof n->arguments);
    snprintf(n->arguments + length, sizeof n->arguments - length, "%s%s", length ? "," : "",
             argument);
}

static void note_value(llmk_kernel *k, size_t size)
{
    char text[16];
    snprintf(text, sizeof text, "%zu", size);
    note(k, text);
}

llmk_kernel __wrap_llmk_kernel_open(llmk_launch *launch, const char *file, const char *defines,
                                    const char *name);
llmk_kernel __wrap_llmk_kernel_open(llmk_launch *launch, const char *file, const char *defines,
                                    const char *name)
{
    launch_note *n = calloc(1, sizeof *n);
    assert_non_null(n);
    ask_for(launch->ctx, file, defines, n->stem);
    return (llmk_kernel){.launch = launch, .name = name, .program = (llmk_program *)(void *)n};
}

void __wrap_llmk_arg_view(llmk_kernel *k, const llmk_view *view);
void __wrap_llmk_arg_view(llmk_kernel *k, const llmk_view *view)
{
    note(k, "global");
    note_value(k, sizeof view->rows);
}

void __wrap_llmk_arg_buffer(llmk_kernel *k, cl_mem buffer);
void __wrap_llmk_arg_buffer(llmk_kernel *k, cl_mem buffer)
{
    (void)buffer;
    note(k, "global");
}

void __wrap_llmk_arg_u64(llmk_kernel *k, uint64_t value);
void __wrap_llmk_arg_u64(llmk_kernel *k, uint64_t value)
{
    note_value(k, sizeof value);
}

void __wrap_llmk_arg_u32(llmk_kernel *k, uint32_t value);
void __wrap_llmk_arg_u32(llmk_kernel *k, uint32_t value)
{
    note_value(k, sizeof value);
}

void __wrap_llmk_arg_f32(llmk_kernel *k, float value);
void __wrap_llmk_arg_f32(llmk_kernel *k, float value)
{
    note_value(k, sizeof value);
}

void __wrap_llmk_arg_local(llmk_kernel *k, size_t bytes);
void __wrap_llmk_arg_local(llmk_kernel *k, size_t bytes)
{
    (void)bytes;
    note(k, "local");
}

llmk_status __wrap_llmk_kernel_enqueue(llmk_kernel *k, const size_t groups[3],
                                       const size_t local[3]);
llmk_status __wrap_llmk_kernel_enqueue(llmk_kernel *k, const size_t groups[3],
                                       const size_t local[3])
{
    (void)groups;
    launch_note *n = (launch_note *)(void *)k->program;
    char line[2 * MAX_LINE + 128];
    const bool amd = k->launch->ctx->caps.vendor == LLMK_VENDOR_AMD;
    snprintf(line, sizeof line, "%s|%s|%zu,%zu,%zu|%s|%s", n->stem, k->name, local[0], local[1],
             local[2], n->arguments, amd ? "amd" : "");
    keep(&launches, line);
    free(n);
    k->program = NULL;
    return LLMK_OK;
}

/* Every image is there, so that the next is asked for too. */
bool __wrap_llmk_image_comes_first(const llmk_context *ctx, const char *file, const char *defines);
bool __wrap_llmk_image_comes_first(const llmk_context *ctx, const char *file, const char *defines)
{
    char stem[MAX_LINE];
    ask_for(ctx, file, defines, stem);
    return true;
}

/* ---- Asking ---- */

/* LLMK_TEST_STEP leaves cases out: what the others would ask for is then not missed. */
static size_t step, first, turn;

static bool is_left_out(void)
{
    return turn++ % step != first;
}

static llmk_context *context_of(const pretence *device)
{
    llmk_context_options options = LLMK_INIT(llmk_context_options);
    options.cache_dir = "off";
    options.flags = LLMK_CONTEXT_NO_SELFTEST;
    llmk_context *ctx = NULL;
    assert_int_equal(llmk_context_create(&options, &ctx), LLMK_OK);
    ctx->images = &only_index;
    free(ctx->forced_image);
    ctx->forced_image = strdup("cubin");
    assert_non_null(ctx->forced_image);
    ctx->caps.vendor = device->vendor;
    ctx->caps.type = device->type;
    /* As src/core/device.c has it. */
    ctx->caps.max_work_group = device->vendor == LLMK_VENDOR_AMD ? 256 : 1024;
    ctx->caps.max_required_group = 1024;
    ctx->caps.compute_units = 2; /* small cases have few work-groups for it, or many */
    ctx->caps.compute_capability = device->compute_capability;
    ctx->caps.subgroup_sizes = device->subgroup_sizes;
    ctx->caps.cooperative_matrix = device->vendor != LLMK_VENDOR_NVIDIA;
    ctx->forced_subgroup = device->forced_subgroup;
    if (device->name[0])
        snprintf(ctx->caps.device_name, sizeof ctx->caps.device_name, "%s", device->name);
    atomic_store(&ctx->subgroup_size, (int)device->subgroup);
    atomic_store(&ctx->inline_ptx, device->vendor == LLMK_VENDOR_NVIDIA);
    atomic_store(&ctx->fp16, device->type == CL_DEVICE_TYPE_GPU);
    return ctx;
}

/* Whether that works does not matter here. */
static void force_and_prepare(llmk_context *ctx, const case_run *run, const llmk_operator *op,
                              llmk_choice choice)
{
    char name[64], forced[128];
    llmk_choice_print(&choice, name, sizeof name);
    snprintf(forced, sizeof forced, "%s:%s", op->name, name);
    assert_int_equal(llmk_context_force(ctx, forced), LLMK_OK);
    (void)llmk_prepare(ctx, op->id, case_run_args(run, 0));
}

/* Prepares the case with every variant and every configuration. */
static bool ask(llmk_context *ctx, cl_command_queue queue, const case_op *op, const char *text)
{
    case_line line;
    char error[512];
    assert_true(case_parse_fields(op, text, &line, error, sizeof error));
    case_run *run = case_run_new(ctx, queue, &line, 1, CASE_TO_TIME, error, sizeof error);
    if (!run)
        return false; /* too large for this device, say */
    const llmk_operator *all = llmk_operator_get(op->op);
    for (size_t i = 0; i < all->variant_count; i++) {
        const llmk_variant *v = &all->variants[i];
        force_and_prepare(ctx, run, all, (llmk_choice){v, NULL});
        for (size_t c = 0; c < all->config_count; c++)
            if (strcmp(all->configs[c].variant, v->name) == 0)
                force_and_prepare(ctx, run, all, (llmk_choice){v, &all->configs[c]});
    }
    case_run_free(run);
    return true;
}

/* Cases beside the quick ones, which leave pairs of types out: {a,b} stands for either. */
#define FLOATS  "{f32,f16,bf16}"
#define EXPERTS "t={4,12,30} e=4 k=2 h=256 f=256 x={f16,bf16}" /* few rows each, and more */
static const struct {
    const char *op, *text;
} more[] = {
    {"add", "rank1 cols=63 a=" FLOATS " b=" FLOATS " y=" FLOATS},
    {"add", "rank1 cols=64 a=" FLOATS " b=" FLOATS " y=" FLOATS},
    {"error_report", "n=4 k=256 r=" FLOATS " a=" FLOATS},
    {"gated_activation", "d={63,64} x=" FLOATS " y=" FLOATS},
    {"quantize", "scheme=int8-tensor n=4 k=64 x=" FLOATS},
    {"rmsnorm", "h={64,1000,4096} r={none,f32} x=" FLOATS " y=" FLOATS},
    {"rmsnorm", "h={63,9000,20000} x=" FLOATS " y=" FLOATS},
    {"moe_route", "t=2 h=64 x=" FLOATS " gate=" FLOATS},
    {"linear", "m={1,2,4,5,8,12,70} n={32,64} k=256 x=" FLOATS " w={f32,f16,bf16,w8,q4_k,q6_k}"},
    {"linear",
     "m={1,12,70} n={32,64} k=256 x=" FLOATS " w=w4 group={0,32,64,128} layout={portable,nv}"},
    {"linear",
     "m={1,12,70} n={32,64} k=256 x=" FLOATS " w=w8 group={0,32,64} layout={portable,nv}"},
    /* Plain rows of x. */
    {"linear", "m=70 n=256 k=256 x=f16 w=f16"},
    {"linear", "m=70 n=256 k=256 x=bf16 w=bf16"},
    {"linear", "m=70 n=64 k=1024 x=f16 w=f16"}, /* stages enough for two work-groups on wgmma */
    {"linear", "m=70 n=64 k=1024 x=bf16 w=bf16"},
    {"linear", "m={20,70} n=256 k=256 x={f16,bf16} w=w4 group={0,128} layout=nv"},
    {"linear", "m=70 n=256 k=256 x={f16,bf16} w=w8 layout=nv"},
    {"linear", "m={4,12} n={32,64,512} k=256 x={f16,bf16} w=w4 group={0,32,64,128} scale={f16,f32} "
               "zeros={packed,none} xgap={0,1} layout=nv"},
    {"linear", "m={4,12} n={32,64} k=256 x={f16,bf16} w=w8 group={0,32,64} scale={f16,f32} "
               "xgap={0,1} layout=nv"},
    {"linear", "m={4,12} n={32,512} k=256 x={f16,bf16} w={f16,bf16} xgap={0,1}"},
    {"linear", "m=70 n=256 k=32 x=f32 w=f32"}, /* enough tiles for linear_gemm_wide */
    {"gated_linear", "m={1,70} n=64 k=256 x=" FLOATS " w={f32,f16,bf16,w8,q4_k,q6_k}"},
    {"gated_linear", "m={1,70} n=64 k=256 x=" FLOATS " w=w4 group={0,32,64,128}"},
    {"gated_linear", "m={1,12} n={16,64} k=256 x=" FLOATS " w=w4 group={0,32,64,128} nv"},
    {"gated_linear", "m={1,12} n={16,64} k=256 x=" FLOATS " w=w8 group={0,32,64} nv"},
    {"grouped_linear", "r={8,70} e=4 n=64 k=256 x=" FLOATS " w={f32,f16,bf16,w8,q4_k,q6_k}"},
    {"grouped_linear", "r={8,70} e=4 n=64 k=256 x=" FLOATS " w=w4"},
    {"grouped_linear",
     "r={8,70} e=4 n=64 k=256 x={f16,bf16} w=w4 group={0,32,64,128} zeros={packed,none} "
     "gap={0,1} nv"},
    {"grouped_linear", "r={8,70} e=4 n=64 k=256 x={f16,bf16} w=w8 group={0,32,64} gap={0,1} nv"},
    {"grouped_linear", "r={8,70} e=4 n=64 k=256 x=" FLOATS " w=w4 group={0,32,64,128} nv"},
    {"grouped_linear", "r={8,70} e=4 n=64 k=256 x=" FLOATS " w=w8 group={0,32,64} nv"},
    {"grouped_linear", "r=300 e=4 n=64 k=256 x={f16,bf16} w={w4,w8} group={0,128} nv"},
    {"grouped_linear", "r={8,40} e=4 n=64 k=256 x={f16,bf16} w=gptq_v1 bits={4,8} "
                       "group={32,64,128} order=act nv"},
    {"moe_forward", EXPERTS " w=w4 group={0,32,64,128} zeros={packed,none} wscale={f16,f32} nv"},
    {"moe_forward", EXPERTS " w=w8 group={0,32,64} nv"},
    {"moe_forward", EXPERTS " w={q4_0,q4_1,q8_0} nv"},
    {"moe_forward", EXPERTS " w=gptq_v1 bits={4,8} group={32,64,128} order=act layout=packed nv"},
};

/* As images/images.py does; how many cases were made. */
static size_t ask_expanded(llmk_context *ctx, cl_command_queue queue, const case_op *op,
                           const char *text)
{
    const char *open = strchr(text, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!close) {
        if (!is_left_out() && !ask(ctx, queue, op, text))
            fail_msg("not made: %s %s", op->name, text);
        return 1;
    }
    size_t cases = 0;
    for (const char *p = open; p < close;) {
        char line[256];
        const size_t n = strcspn(++p, ",}");
        snprintf(line, sizeof line, "%.*s%.*s%s", (int)(open - text), text, (int)n, p, close + 1);
        cases += ask_expanded(ctx, queue, op, line);
        p += n;
    }
    return cases;
}

static void test_device(void **state)
{
    const pretence *device = *state;
    llmk_context *ctx = context_of(device);
    cl_command_queue queue = case_queue_new(ctx);
    assert_non_null(queue);
    size_t cases = 0;
    for (const case_op *const *op = case_ops; *op; op++)
        for (size_t i = 0; i < (*op)->entry_count; i++)
            if ((*op)->entries[i].tier == CASE_QUICK && !is_left_out())
                cases += ask(ctx, queue, *op, (*op)->entries[i].text);
    assert_true(cases > 0);
    for (size_t i = 0; i < LLMK_COUNT(more); i++)
        for (const case_op *const *op = case_ops; *op; op++)
            if (strcmp((*op)->name, more[i].op) == 0)
                ask_expanded(ctx, queue, *op, more[i].text);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
    if (llmk_manifest_gap())
        fail_msg("not in cl/manifest.txt: %s", llmk_manifest_gap());
}

/* The kernels of src/core/probe.c and of llmk-bench's roof. What they find is of no interest. */
static void test_probes(void **state)
{
    (void)state;
    llmk_context *ctx =
        context_of(&(pretence){"", LLMK_VENDOR_NVIDIA, CL_DEVICE_TYPE_GPU, 80, 0, 0, 0});
    free(ctx->caps.extensions);
    ctx->caps.extensions = strdup("cl_khr_subgroups cl_khr_fp16");
    assert_non_null(ctx->caps.extensions);
    ctx->is_trial = true;
    atomic_store(&ctx->subgroup_size, -1);
    atomic_store(&ctx->fp16, -1);
    atomic_store(&ctx->inline_ptx, -1);
    (void)llmk_probe_subgroup_size(ctx);
    (void)llmk_probe_fp16(ctx);
    (void)llmk_probe_inline_ptx(ctx);
    ctx->caps.compute_capability = 90;
    assert_int_equal(bench_probe_wgmma(ctx, NULL, NULL, 1), LLMK_OK);
    ctx->is_trial = false;
    llmk_context_free(ctx);
    if (llmk_manifest_gap())
        fail_msg("not in cl/manifest.txt: %s", llmk_manifest_gap());
}

/* What the manifest lists is asked for: the tests above saw everything, and nothing is left over.
 */
static void test_nothing_left_over(void **state)
{
    (void)state;
    char line[MAX_LINE];
    size_t left = 0;
    if (step > 1)
        skip();
    const char *p = strchr((const char *)only_index.files->data, '\n') + 1;
    for (; *p; p += strcspn(p, "\n") + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        if (!*slot_of(&asked, line)) {
            print_error("in cl/manifest.txt, and never asked for: %s\n", line);
            left++;
        }
    }
    assert_int_equal(left, 0);
}

static bool write_launches(const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    for (size_t i = 0; i < SLOTS; i++)
        if (launches.lines[i])
            fprintf(file, "%s\n", launches.lines[i]);
    return fclose(file) == 0;
}

int main(int argc, char **argv)
{
    unsetenv("LLMK_IMAGE");
    unsetenv("LLMK_KERNEL_PATH");
    unsetenv("LLMK_CACHE"); /* it would win over what the contexts here are given */
    unsetenv("LLMK_VARIANT");
    for (size_t i = 0; i < *llmk_images.count; i++)
        if (strcmp(llmk_images.files[i].name, "index") == 0) {
            only_index.files = &llmk_images.files[i];
            one = 1;
        }
    if (!case_step(&step, &first, stderr))
        return 1;
    if (one == 0) {
        fprintf(stderr, "this build has no images: skipped\n");
        return 77;
    }
    struct CMUnitTest tests[LLMK_COUNT(devices) + 2];
    for (size_t i = 0; i < LLMK_COUNT(devices); i++)
        tests[i] = (struct CMUnitTest){devices[i].name[0] ? devices[i].name : "this device",
                                       test_device, NULL, NULL, (void *)(uintptr_t)&devices[i]};
    tests[LLMK_COUNT(devices)] = (struct CMUnitTest)cmocka_unit_test(test_probes);
    tests[LLMK_COUNT(devices) + 1] = (struct CMUnitTest)cmocka_unit_test(test_nothing_left_over);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed && argc > 1)
        remove(argv[1]); /* not to be taken for what this program would write */
    else if (argc > 1 && !write_launches(argv[1])) {
        perror(argv[1]);
        failed = 1;
    }
    free_lines(&asked);
    free_lines(&launches);
    return failed;
}
