/*
 * llmk-info - what the library finds on this machine: devices, capabilities, the cache, and which
 * variant each operator would use and why not the others.
 */
#include "cases/case.h"
#include "core/core.h"
#include "tools/common/tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <llmk/llmk.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_VARIANTS 64

static const char usage[] =
    "usage: llmk-info [options] ['OP key=value ...' ...]\n"
    "\n"
    "Lists the OpenCL devices, what the chosen one can do, and for every operator (or for the\n"
    "given cases, in llmk-bench's notation) which variant a call would use and why not the "
    "others.\n"
    "\n"
    "  -d, --device WHICH  an index, \"gpu\", \"cpu\" or a part of \"PLATFORM / DEVICE\"\n"
    "  -l, --list          only list the devices\n"
    "  -i, --images        list the kernel images inside the library, with their sizes\n"
    "  -t, --time          call the first case once, and show where the time to its first kernel "
    "goes\n"
    "  -h, --help          this text\n"
    "      --version       the library's version\n";

static int fail(const char *what)
{
    fprintf(stderr, "llmk-info: %s: %s\n", what, tool_error_message());
    return 1;
}

static const char *type_name(cl_device_type type)
{
    return type & CL_DEVICE_TYPE_GPU           ? "GPU"
           : type & CL_DEVICE_TYPE_CPU         ? "CPU"
           : type & CL_DEVICE_TYPE_ACCELERATOR ? "accelerator"
                                               : "other";
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

static int list_devices(cl_device_id chosen)
{
    size_t count = 0;
    if (llmk_device_list(NULL, 0, &count) != LLMK_OK)
        return fail("listing devices");
    const size_t room = count;
    llmk_device_info *devices = calloc(room ? room : 1, sizeof *devices);
    if (!devices)
        return 1;
    devices[0].struct_size = sizeof *devices;
    if (llmk_device_list(devices, room, &count) != LLMK_OK) {
        free(devices);
        return fail("listing devices");
    }
    printf("Devices (* the one used)\n");
    for (size_t i = 0; i < count && i < room; i++) { /* one may have come meanwhile */
        const llmk_device_info *d = &devices[i];
        printf("%c %zu  %s / %s\n       %s, %u compute units, %.1f GiB, driver %s, %s\n",
               d->device_id == chosen ? '*' : ' ', i, d->platform, d->name, type_name(d->type),
               d->compute_units, gib(d->global_bytes), d->driver, d->version);
    }
    if (count == 0)
        printf("  none\n"); /* why is said where a context is made */
    free(devices);
    return 0;
}

static int show_device(llmk_context *ctx)
{
    llmk_device_info d = LLMK_INIT(llmk_device_info);
    llmk_cache_info cache = LLMK_INIT(llmk_cache_info);
    if (llmk_context_device_info(ctx, &d) != LLMK_OK ||
        llmk_context_cache_info(ctx, &cache) != LLMK_OK)
        return fail("reading the device");
    printf("\nCapabilities (sub-groups and fp16 found by running, not by asking)\n");
    if (d.subgroup_size > 0)
        printf("  sub-groups          %u items\n", d.subgroup_size);
    else
        printf("  sub-groups          none\n");
    printf("  fp16 arithmetic     %s\n", d.fp16 ? "yes" : "no (f16 is a storage type)");
    printf("  SPIR-V              %s\n", d.spirv ? d.il_version : "no");
    if (d.compute_capability > 0)
        printf("  compute capability  %u.%u\n", d.compute_capability / 10,
               d.compute_capability % 10);
    printf("  local memory        %" PRIu64 " KiB\n", d.local_bytes / 1024);
    printf("  work-group          up to %u items\n", d.max_work_group);
    printf("  largest buffer      %.2f GiB\n", gib(d.max_alloc_bytes));
    if (cache.folder[0])
        printf("  cache               %s: %" PRIu64 " files, %" PRIu64 " KiB\n", cache.folder,
               cache.files, (cache.bytes + 1023) / 1024);
    else
        printf("  cache               off\n");
    return 0;
}

static const char *verdict_text(llmk_verdict verdict)
{
    static const char *const texts[] = {"chosen",         "would serve",     "not used",
                                        "does not build", "fails self-test", "overridden"};
    return (size_t)verdict < sizeof texts / sizeof texts[0] ? texts[verdict] : "?";
}

static int explain(llmk_context *ctx, cl_command_queue queue, const case_line *line)
{
    char text[512], error[512];
    case_print(line, text, sizeof text);
    printf("  %s\n", text);
    case_run *run = case_run_new(ctx, queue, line, 1, CASE_TO_TIME, error, sizeof error);
    if (!run) {
        printf("    %s\n", error);
        return case_is_skip(error) ? 0 : 1;
    }
    llmk_variant_info infos[MAX_VARIANTS];
    size_t count = 0;
    const llmk_status status =
        llmk_explain(ctx, line->op->op, case_run_args(run, 0), infos, MAX_VARIANTS, &count);
    for (size_t i = 0; status == LLMK_OK && i < count && i < MAX_VARIANTS; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s%s", infos[i].name, infos[i].config ? "@" : "",
                 infos[i].config ? infos[i].config : "");
        printf("    %c %-18s %-15s %s\n", infos[i].verdict == LLMK_VERDICT_CHOSEN ? '*' : ' ', name,
               verdict_text(infos[i].verdict), infos[i].reason);
    }
    case_run_free(run);
    return status == LLMK_OK ? 0 : fail(text);
}

static int explain_all(llmk_context *ctx, char **texts, int count)
{
    cl_command_queue queue = case_queue_new(ctx);
    if (!queue) {
        fprintf(stderr, "llmk-info: cannot make a command queue\n");
        return 1;
    }
    int failed = 0;
    printf("\nOperators\n");
    for (int i = 0; i < count && !failed; i++) {
        case_line line;
        char error[512];
        if (!case_parse(texts[i], &line, error, sizeof error)) {
            fprintf(stderr, "llmk-info: %s\n", error);
            failed = 1;
        } else {
            failed = explain(ctx, queue, &line);
        }
    }
    for (size_t i = 0; count == 0 && case_ops[i] && !failed; i++) {
        case_line line;
        char error[512];
        failed = !case_parse(case_ops[i]->name, &line, error, sizeof error) ||
                 explain(ctx, queue, &line);
    }
    clReleaseCommandQueue(queue);
    return failed;
}

/* ---- Kernel images ---- */

static int list_images(void)
{
    size_t count = 0;
    if (llmk_image_list(NULL, 0, &count) != LLMK_OK)
        return fail("listing images");
    llmk_image_info *images = calloc(count ? count : 1, sizeof *images);
    if (!images)
        return 1;
    images[0].struct_size = sizeof *images;
    if (llmk_image_list(images, count, &count) != LLMK_OK) {
        free(images);
        return fail("listing images");
    }
    printf("kind    target      bytes   unpacked  name\n");
    for (size_t i = 0; i < count; i++)
        printf("%-7s %-7s %9" PRIu64 "  %9" PRIu64 "  %s\n", images[i].kind, images[i].target,
               images[i].bytes, images[i].unpacked_bytes, images[i].name);
    printf("\nkind    target      bytes   unpacked  images\n");
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = 0, unpacked = 0, n = 0;
        bool first = true;
        for (size_t j = 0; j < count; j++)
            if (strcmp(images[i].kind, images[j].kind) == 0 &&
                strcmp(images[i].target, images[j].target) == 0) {
                first = first && j >= i;
                bytes += images[j].bytes;
                unpacked += images[j].unpacked_bytes;
                n++;
            }
        if (first)
            printf("%-7s %-7s %9" PRIu64 "  %9" PRIu64 "  %" PRIu64 "\n", images[i].kind,
                   images[i].target, bytes, unpacked, n);
        total += images[i].bytes;
    }
    printf("all             %9" PRIu64 "\n", total);
    free(images);
    return 0;
}

/* ---- The time to the first kernel ---- */

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static int show_times(const llmk_context *ctx, uint64_t create, uint64_t call, uint64_t run)
{
    printf("\nTime to the first kernel, ms\n");
    double rest = ms(create + call);
    for (llmk_phase phase = 0; phase < LLMK_PHASE_COUNT; phase++) {
        const double spent = ms(atomic_load(&ctx->times.ns[phase]));
        printf("  %-32s %9.3f  (%u)\n", llmk_phase_name(phase), spent,
               atomic_load(&ctx->times.calls[phase]));
        rest -= spent;
    }
    printf("  %-32s %9.3f\n", "everything else", rest);
    printf("  %-32s %9.3f  llmk_context_create\n", "so the library took", ms(create));
    printf("  %-32s %9.3f  the first call, until it returned\n", "", ms(call));
    printf("  %-32s %9.3f  until its kernels had run\n", "and the device", ms(run));
    return 0;
}

static int time_first(const char *text)
{
    case_line line;
    char error[512];
    if (!case_parse(text, &line, error, sizeof error)) {
        fprintf(stderr, "llmk-info: %s\n", error);
        return 1;
    }
    llmk_context *ctx = NULL;
    uint64_t start = llmk_now();
    if (llmk_context_create(NULL, &ctx) != LLMK_OK)
        return fail("no context");
    const uint64_t create = llmk_now() - start;
    cl_command_queue queue = case_queue_new(ctx);
    case_run *run =
        queue ? case_run_new(ctx, queue, &line, 1, CASE_TO_TIME, error, sizeof error) : NULL;
    int failed = 0;
    if (!run) {
        fprintf(stderr, "llmk-info: %s\n", queue ? error : "cannot make a command queue");
        failed = 1;
    } else {
        start = llmk_now();
        const llmk_status status = case_run_enqueue(run, 0, NULL);
        const uint64_t returned = llmk_now();
        clFinish(queue);
        failed = status != LLMK_OK
                     ? fail(text)
                     : show_times(ctx, create, returned - start, llmk_now() - returned);
        case_run_free(run);
    }
    if (queue)
        clReleaseCommandQueue(queue);
    llmk_context_free(ctx);
    return failed;
}

static int run(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"list", no_argument, NULL, 'l'},
                                            {"images", no_argument, NULL, 'i'},
                                            {"time", no_argument, NULL, 't'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'V'},
                                            {NULL, 0, NULL, 0}};
    bool only_list = false, images = false, times = false;
    int c;
    while ((c = tool_option(argc, argv, "d:lith", options)) != -1) {
        switch (c) {
        case 'd':
            tool_sets("LLMK_DEVICE", "--device", optarg);
            break;
        case 'l':
            only_list = true;
            break;
        case 'i':
            images = true;
            break;
        case 't':
            times = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 0;
        case 'V':
            puts(llmk_build_info());
            return 0;
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (times && argc - optind > 1) {
        fprintf(stderr,
                "llmk-info: --time takes one case, and \"%s\" is another: write a case with "
                "its fields in quotes\n",
                argv[optind + 1]);
        return 2;
    }
    if ((images || only_list) && optind < argc) {
        fprintf(stderr, "llmk-info: %s takes no cases, such as \"%s\"\n",
                images ? "--images" : "--list", argv[optind]);
        return 2;
    }
    puts(llmk_build_info());
    if (images)
        return list_images();
    if (times && (optind < argc || case_ops[0]))
        return time_first(optind < argc ? argv[optind] : case_ops[0]->name);
    llmk_context *ctx = NULL;
    if (llmk_context_create(NULL, &ctx) != LLMK_OK) {
        list_devices(NULL);
        return fail("no context");
    }
    int failed = list_devices(llmk_context_cl_device(ctx));
    if (!failed && !only_list)
        failed = show_device(ctx) || explain_all(ctx, argv + optind, argc - optind);
    llmk_context_free(ctx);
    return failed;
}

int main(int argc, char **argv)
{
    return tool_main("llmk-info", run, argc, argv);
}
