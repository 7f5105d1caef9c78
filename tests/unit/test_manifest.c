/*
 * test_manifest.c - every program that any case asks for on any kind of device is in
 * cl/manifest.txt. The devices are pretended: with LLMK_IMAGE=cubin and no cubins at hand nothing
 * is built, so that this shows what would be asked for and no more.
 */
#include "llmk_cmocka.h"

#include "cases/case.h"
#include "core/image.h"
#include "ops/operator.h"

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

/* Only the index: so every program fails before anything is built. */
static size_t one;
static llmk_image_set only_index = {NULL, &one};

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
    ctx->caps.compute_capability = device->compute_capability;
    ctx->caps.subgroup_sizes = device->subgroup_sizes;
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
    case_run *run = case_run_new(ctx, queue, &line, 1, true, error, sizeof error);
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

static void test_device(void **state)
{
    const pretence *device = *state;
    llmk_context *ctx = context_of(device);
    cl_command_queue queue = case_queue_new(ctx);
    assert_non_null(queue);
    size_t asked = 0;
    for (const case_op *const *op = case_ops; *op; op++)
        for (size_t i = 0; i < (*op)->entry_count; i++)
            if ((*op)->entries[i].tier == CASE_QUICK)
                asked += ask(ctx, queue, *op, (*op)->entries[i].text);
    clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
    assert_true(asked > 0);
    if (llmk_manifest_gap())
        fail_msg("not in cl/manifest.txt: %s", llmk_manifest_gap());
}

int main(void)
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
    if (one == 0) {
        fprintf(stderr, "this build has no images: skipped\n");
        return 77;
    }
    struct CMUnitTest tests[LLMK_COUNT(devices)];
    for (size_t i = 0; i < LLMK_COUNT(devices); i++)
        tests[i] = (struct CMUnitTest){devices[i].name[0] ? devices[i].name : "this device",
                                       test_device, NULL, NULL, (void *)(uintptr_t)&devices[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
