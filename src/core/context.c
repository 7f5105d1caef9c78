/* context.c - a device with everything that belongs to it. */
#include "core/image.h"
#include "ops/operator.h"

#include <stdlib.h>

static void destroy(llmk_context *ctx)
{
    if (ctx->trial)
        llmk_context_free(ctx->trial);
    llmk_verdicts_free(ctx->verdicts);
    llmk_programs_free(ctx->programs);
    llmk_cache_close(ctx->cache);
    llmk_tuning_free(ctx->tuning);
    if (ctx->cl)
        clReleaseContext(ctx->cl);
    llmk_caps_release(&ctx->caps);
    pthread_mutex_destroy(&ctx->trial_lock);
    pthread_mutex_destroy(&ctx->profiler_lock);
    free(ctx->forced_variants);
    free(ctx->forced_image);
    free(ctx);
}

static const char *env_or(const char *name, const char *fallback)
{
    const char *value = getenv(name);
    return value && value[0] != '\0' ? value : fallback;
}

static llmk_status copy_text(const char *text, char **out)
{
    *out = text && text[0] != '\0' ? strdup(text) : NULL;
    if (text && text[0] != '\0' && !*out)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a context");
    return LLMK_OK;
}

/* Well-formed pairs: an operator has one variant. "*" may be there for several, since each is for
 * the operators that have it. */
static llmk_status refuse_repeats(const char *pairs, const char *from)
{
    for (const char *a = pairs, *next; a; a = next) {
        const size_t n = strcspn(a, ":") + 1;
        next = strchr(a, ',');
        next = next ? next + 1 : NULL;
        for (const char *b = next; b && a[0] != '*'; b = strchr(b, ',')) {
            b += *b == ',';
            if (strncmp(a, b, n) == 0)
                return llmk_fail(LLMK_INVALID_ARGUMENT,
                                 "%s: \"%s\" forces two variants of operator %.*s; expected one",
                                 from, pairs, (int)n - 1, a);
        }
    }
    return LLMK_OK;
}

static llmk_status read_environment(llmk_context *ctx, const llmk_context_options *options)
{
    const char *variant = env_or("LLMK_VARIANT", NULL);
    LLMK_TRY(copy_text(variant ? variant : options->variant, &ctx->forced_variants));
    LLMK_TRY(copy_text(env_or("LLMK_IMAGE", NULL), &ctx->forced_image));
    if (ctx->forced_image && !llmk_image_word(ctx->forced_image))
        return llmk_fail(LLMK_INVALID_ARGUMENT, "LLMK_IMAGE is \"%s\"; expected " LLMK_IMAGE_WORDS,
                         ctx->forced_image);
    const char *subgroup = env_or("LLMK_SUBGROUP", NULL);
    for (uint32_t size = 16; subgroup && size <= 64; size *= 2)
        if (strcmp(subgroup, llmk_digits(size)) == 0)
            ctx->forced_subgroup = size;
    if (subgroup && !ctx->forced_subgroup)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "LLMK_SUBGROUP is \"%s\"; expected 16, 32 or 64",
                         subgroup);
    const char *coopmat = env_or("LLMK_COOPMAT", NULL);
    ctx->believes_coopmat = coopmat != NULL;
    if (coopmat && strcmp(coopmat, "on") != 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "LLMK_COOPMAT is \"%s\"; expected on", coopmat);
    const char *from = variant ? "LLMK_VARIANT" : "llmk_context_create: options.variant";
    LLMK_TRY(llmk_check_forced_variants(ctx->forced_variants, from));
    return refuse_repeats(ctx->forced_variants, from);
}

static llmk_status attach(llmk_context *ctx, cl_device_id device, cl_context cl)
{
    LLMK_TRY(llmk_caps_read(device, &ctx->caps));
    if (ctx->believes_coopmat)
        ctx->caps.cooperative_matrix = true;
    cl_int err;
    if (!cl) {
        const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                                    (cl_context_properties)ctx->caps.platform, 0};
        const uint64_t start = llmk_now();
        ctx->cl = clCreateContext(properties, 1, &device, NULL, NULL, &err);
        llmk_times_add(&ctx->times, LLMK_PHASE_CONTEXT, start);
        return ctx->cl ? LLMK_OK : llmk_fail_cl(NULL, err, "clCreateContext");
    }
    cl_device_id devices[64];
    size_t bytes = 0;
    err = clGetContextInfo(cl, CL_CONTEXT_DEVICES, sizeof devices, devices, &bytes);
    if (err != CL_SUCCESS)
        return llmk_fail_cl(NULL, err, "clGetContextInfo");
    for (size_t i = 0; i < bytes / sizeof devices[0]; i++)
        if (devices[i] == device) {
            err = clRetainContext(cl);
            if (err != CL_SUCCESS)
                return llmk_fail_cl(NULL, err, "clRetainContext");
            ctx->cl = cl;
            return LLMK_OK;
        }
    return llmk_fail(LLMK_INVALID_ARGUMENT,
                     "llmk_context_create: options.device is not a device of options.cl_context");
}

static llmk_status fill(llmk_context *ctx, const llmk_context_options *options)
{
    ctx->flags = options->flags;
    ctx->images = &llmk_images;
    ctx->started = llmk_finding_start();
    LLMK_TRY(read_environment(ctx, options));
    cl_device_id device = options->device;
    if (options->cl_context && !device)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_context_create: options.device is NULL; "
                                                "options.cl_context needs one of its devices");
    if (!device) {
        const uint64_t start = llmk_now();
        LLMK_TRY(llmk_device_choose(&ctx->log, &device));
        llmk_times_add(&ctx->times, LLMK_PHASE_DEVICE, start);
    }
    LLMK_TRY(attach(ctx, device, options->cl_context));
    ctx->programs = llmk_programs_new();
    ctx->verdicts = llmk_verdicts_new();
    const bool uncached = ctx->is_trial && !options->cache_dir; /* and it has been said why */
    if (!uncached)
        ctx->cache = llmk_cache_open(options->cache_dir, &ctx->log, &ctx->times);
    if (!ctx->programs || !ctx->verdicts || (!ctx->cache && !uncached))
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a context");
    ctx->tuning = llmk_tuning_open(ctx);
    return LLMK_OK;
}

static llmk_status create(const llmk_context_options *given, bool is_trial, llmk_context **out)
{
    llmk_context_options options = {.struct_size = sizeof options};
    if (given)
        LLMK_TRY(llmk_take_struct("llmk_context_create", "options", given, sizeof options,
                                  sizeof options, &options));
    if (options.flags & ~LLMK_CONTEXT_NO_SELFTEST)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "llmk_context_create: options.flags is 0x%x; expected bits of 0x%x only",
                         options.flags, LLMK_CONTEXT_NO_SELFTEST);
    if ((unsigned)options.log_level > LLMK_LOG_DEBUG)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "llmk_context_create: options.log_level is %d; expected 0 to %d",
                         (int)options.log_level, LLMK_LOG_DEBUG);
    llmk_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a context");
    ctx->is_trial = is_trial;
    atomic_init(&ctx->references, 1);
    atomic_init(&ctx->lost, false);
    atomic_init(&ctx->subgroup_size, -1);
    atomic_init(&ctx->fp16, -1);
    atomic_init(&ctx->inline_ptx, -1);
    atomic_init(&ctx->wgmma, -1);
    pthread_mutex_init(&ctx->trial_lock, NULL);
    pthread_mutex_init(&ctx->profiler_lock, NULL);
    llmk_status status = llmk_log_init(&ctx->log, &options);
    if (status == LLMK_OK)
        status = fill(ctx, &options);
    if (status != LLMK_OK) {
        destroy(ctx);
        return status;
    }
    if (!is_trial)
        llmk_log_write(&ctx->log, LLMK_LOG_INFO, "device: %s / %s, driver %s",
                       ctx->caps.platform_name, ctx->caps.device_name, ctx->caps.driver);
    *out = ctx;
    return LLMK_OK;
}

llmk_status llmk_context_create(const llmk_context_options *options, llmk_context **out)
{
    if (!out)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_context_create: out is NULL");
    *out = NULL;
    return create(options, false, out);
}

void llmk_context_retain(llmk_context *ctx)
{
    atomic_fetch_add(&ctx->references, 1);
}

void llmk_context_free(llmk_context *ctx)
{
    if (ctx && atomic_fetch_sub(&ctx->references, 1) == 1)
        destroy(ctx);
}

cl_context llmk_context_cl_context(const llmk_context *ctx)
{
    return ctx ? ctx->cl : NULL;
}

cl_device_id llmk_context_cl_device(const llmk_context *ctx)
{
    return ctx ? ctx->caps.device : NULL;
}

llmk_status llmk_context_usable(llmk_context *ctx)
{
    if (!ctx)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "ctx is NULL");
    if (atomic_load(&ctx->lost))
        return llmk_fail(LLMK_DEVICE_LOST,
                         "the device was lost in an earlier call; this context is of no more use");
    return LLMK_OK;
}

llmk_status llmk_context_device_info(llmk_context *ctx, llmk_device_info *info)
{
    LLMK_TRY(llmk_context_usable(ctx));
    llmk_device_info full;
    if (!info)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_context_device_info: info is NULL");
    LLMK_TRY(llmk_check_info("llmk_context_device_info", info->struct_size, sizeof full));
    llmk_caps_fill_info(&ctx->caps, &full);
    full.subgroup_size = llmk_probe_subgroup_size(ctx);
    full.fp16 = llmk_probe_fp16(ctx);
    llmk_fill_info(info, info->struct_size, &full, sizeof full);
    return LLMK_OK;
}

llmk_status llmk_context_set_profiler(llmk_context *ctx, llmk_profile_callback callback, void *user)
{
    LLMK_TRY(llmk_context_usable(ctx));
    pthread_mutex_lock(&ctx->profiler_lock);
    ctx->profiler = callback;
    ctx->profiler_user = user;
    pthread_mutex_unlock(&ctx->profiler_lock);
    return LLMK_OK;
}

llmk_status llmk_context_trial(llmk_context *ctx, llmk_context **trial)
{
    if (ctx->trial && atomic_load(&ctx->trial->lost)) {
        llmk_context_free(ctx->trial);
        ctx->trial = NULL;
    }
    if (!ctx->trial) {
        llmk_context_options options = LLMK_INIT(llmk_context_options);
        options.device = ctx->caps.device;
        options.log = ctx->log.callback;
        options.log_user = ctx->log.user;
        options.log_level = ctx->log.callback ? ctx->log.level : LLMK_LOG_NONE;
        options.cache_dir = llmk_cache_dir(ctx->cache);
        const llmk_status status = create(&options, true, &ctx->trial);
        if (status == LLMK_DEVICE_LOST) /* where no new context can be made, this one is lost too */
            atomic_store(&ctx->lost, true);
        LLMK_TRY(status);
    }
    *trial = ctx->trial;
    return LLMK_OK;
}
