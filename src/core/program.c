/*
 * program.c - programs of a context: found, loaded from the disk cache, or built; and their kernel
 * objects, handed out one caller at a time because clSetKernelArg is not thread-safe.
 */
#include "core/image.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_KERNELS 8  /* kernels of one file */
#define MAX_POOL    16 /* idle objects kept of one kernel */
#define MAX_KEY     256
#define BUCKETS     128

/* Emulated units compute for tests, which wait for compilers most of the time. */
#define EMULATED_OPTIONS " -cl-opt-disable"

typedef struct kernel_pool {
    const char *name; /* a literal of the operator's file */
    size_t idle_count;
    llmk_kernel_object *idle[MAX_POOL];
} kernel_pool;

struct llmk_program {
    llmk_program *next; /* in its bucket */
    char key[MAX_KEY];  /* file and defines */
    const char *image;
    size_t image_index; /* among those of llmk_images_of */
    bool from_image;    /* rather than from the source */
    cl_program cl;
    llmk_status status; /* of the build; a failure is remembered, with its message */
    char *failure;
    pthread_mutex_t lock; /* of the pools */
    size_t pool_count;
    kernel_pool pools[MAX_KERNELS];
};

struct llmk_programs {
    pthread_mutex_t lock;       /* of the table */
    pthread_mutex_t build_lock; /* one build at a time; lookups go on meanwhile */
    llmk_program *buckets[BUCKETS];
};

llmk_programs *llmk_programs_new(void)
{
    llmk_programs *programs = calloc(1, sizeof *programs);
    if (programs) {
        pthread_mutex_init(&programs->lock, NULL);
        pthread_mutex_init(&programs->build_lock, NULL);
    }
    return programs;
}

static void free_kernel(llmk_kernel_object *kernel)
{
    clReleaseKernel(kernel->cl);
    free(kernel);
}

static void free_program(llmk_program *p)
{
    for (size_t i = 0; i < p->pool_count; i++)
        for (size_t j = 0; j < p->pools[i].idle_count; j++)
            free_kernel(p->pools[i].idle[j]);
    if (p->cl)
        clReleaseProgram(p->cl);
    pthread_mutex_destroy(&p->lock);
    free(p->failure);
    free(p);
}

void llmk_programs_free(llmk_programs *programs)
{
    if (!programs)
        return;
    for (size_t i = 0; i < BUCKETS; i++)
        for (llmk_program *p = programs->buckets[i], *next; p; p = next) {
            next = p->next;
            free_program(p);
        }
    pthread_mutex_destroy(&programs->lock);
    pthread_mutex_destroy(&programs->build_lock);
    free(programs);
}

const char *llmk_program_image(const llmk_program *program)
{
    return program->image;
}

/* ---- Building ---- */

/* Not the kernel's fault, so that it is not held against it. */
static bool of_the_moment(llmk_status status)
{
    return status == LLMK_DEVICE_LOST || status == LLMK_OUT_OF_MEMORY ||
           status == LLMK_OUT_OF_DEVICE_MEMORY;
}

static llmk_status build(llmk_context *ctx, cl_program program, const char *options,
                         const char *what)
{
    const cl_int err = clBuildProgram(program, 1, &ctx->caps.device, options, NULL, NULL);
    if (err == CL_SUCCESS)
        return LLMK_OK;
    char *log = NULL;
    size_t size = 0;
    clGetProgramBuildInfo(program, ctx->caps.device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    if (size > 0 && (log = calloc(size + 1, 1)) != NULL)
        clGetProgramBuildInfo(program, ctx->caps.device, CL_PROGRAM_BUILD_LOG, size, log, NULL);
    const llmk_status status = llmk_fail_cl(ctx, err, "clBuildProgram");
    if (of_the_moment(status)) {
        free(log);
        return status;
    }
    llmk_fail(LLMK_BUILD_FAILED, "building %s (%s) on %s: %s (%d); the driver's log:\n%s", what,
              options, ctx->caps.device_name, llmk_cl_error_name(err), (int)err,
              log && log[0] ? log : "(empty)");
    free(log);
    return LLMK_BUILD_FAILED;
}

/* PoCL keeps its own cache, and a program binary taken from it is slower than that. */
static bool binaries_pay(const llmk_context *ctx)
{
    return ctx->caps.vendor != LLMK_VENDOR_POCL;
}

/* Code for the very device is loaded as it is. */
static bool compiled_by_driver(const llmk_image *image)
{
    return strcmp(image->kind, "cubin") != 0 && strcmp(image->kind, "gfx942") != 0;
}

static cl_program create_with_binary(llmk_context *ctx, const unsigned char *data, size_t size,
                                     cl_int *err)
{
    cl_int binary_status = CL_SUCCESS;
    cl_program program =
        clCreateProgramWithBinary(ctx->cl, 1, &ctx->caps.device, &size, &data, &binary_status, err);
    if (*err == CL_SUCCESS && binary_status != CL_SUCCESS)
        *err = binary_status;
    if (*err == CL_SUCCESS)
        return program;
    if (program)
        clReleaseProgram(program);
    return NULL;
}

static cl_program load_binary(llmk_context *ctx, const char *key)
{
    size_t size = 0;
    unsigned char *data = llmk_cache_get(ctx->cache, key, &size);
    if (!data)
        return NULL;
    cl_int err;
    const uint64_t start = llmk_now();
    cl_program program = create_with_binary(ctx, data, size, &err);
    free(data);
    const bool built =
        program && clBuildProgram(program, 1, &ctx->caps.device, "", NULL, NULL) == CL_SUCCESS;
    llmk_times_add(&ctx->times, LLMK_PHASE_BUILD, start);
    if (built)
        return program;
    if (program)
        clReleaseProgram(program);
    llmk_log_write(&ctx->log, LLMK_LOG_WARN, "the driver refuses a cached binary: rebuilding it");
    llmk_cache_drop(ctx->cache, key);
    return NULL;
}

/* `from` is what the program was made from: a driver that gives the same back has compiled
 * nothing that is worth keeping (NVIDIA's, with PTX). */
static void save_binary(llmk_context *ctx, const char *key, cl_program program,
                        const unsigned char *from, size_t from_size)
{
    /* Only a program that gives kernels is worth keeping. */
    cl_uint kernel_count = 0;
    if (clCreateKernelsInProgram(program, 0, NULL, &kernel_count) != CL_SUCCESS ||
        kernel_count == 0)
        return;
    cl_uint devices = 0;
    size_t size = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL) !=
            CL_SUCCESS ||
        devices != 1 ||
        clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) !=
            CL_SUCCESS ||
        size == 0)
        return;
    unsigned char *data = malloc(size);
    if (data &&
        clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, &data, NULL) == CL_SUCCESS &&
        !(size >= from_size && memcmp(data, from, from_size) == 0))
        llmk_cache_put(ctx->cache, key, data, size);
    free(data);
}

/* What the driver is given: the source, or the image as it was before it was embedded. */
static llmk_status load_image(const llmk_image *image, const char *file, unsigned char **data,
                              size_t *size)
{
    if (image->file)
        return llmk_image_unpack(image, data, size);
    char *source = NULL;
    LLMK_TRY(llmk_source_load(file, &source));
    *data = (unsigned char *)source;
    *size = strlen(source);
    return LLMK_OK;
}

static llmk_status create_and_build(llmk_context *ctx, const llmk_image *image, const char *what,
                                    const char *options, const unsigned char *data, size_t size,
                                    cl_program *out)
{
    cl_int err;
    cl_program program;
    const char *call;
    if (!image->file) {
        call = "clCreateProgramWithSource";
        program = clCreateProgramWithSource(ctx->cl, 1, (const char **)&data, &size, &err);
    } else if (strcmp(image->kind, "spirv") == 0) {
        call = "clCreateProgramWithIL";
        program = llmk_create_with_il(ctx, data, size, &err);
    } else {
        call = "clCreateProgramWithBinary";
        program = create_with_binary(ctx, data, size, &err);
    }
    if (!program) {
        const llmk_status status = llmk_fail_cl(ctx, err, call);
        return llmk_fail_prefix(of_the_moment(status) ? status : LLMK_BUILD_FAILED, "%s on %s",
                                what, ctx->caps.device_name);
    }
    const llmk_status status = build(ctx, program, options, what);
    if (status == LLMK_OK)
        *out = program;
    else
        clReleaseProgram(program);
    return status;
}

static llmk_status make_kernel(llmk_context *ctx, cl_program program, const char *name,
                               llmk_kernel_object **kernel)
{
    llmk_kernel_object *made = calloc(1, sizeof *made);
    if (!made)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a kernel");
    cl_int err;
    const uint64_t start = llmk_now();
    made->cl = clCreateKernel(program, name, &err);
    llmk_times_add(&ctx->times, LLMK_PHASE_KERNEL, start);
    if (!made->cl) {
        free(made);
        return llmk_fail_cl(ctx, err, name);
    }
    *kernel = made;
    return LLMK_OK;
}

static llmk_status lacks_kernel(llmk_status status, const char *image)
{
    return of_the_moment(status) ? status
                                 : llmk_fail_prefix(LLMK_BUILD_FAILED, "%s lacks a kernel", image);
}

/* An image may be taken and be another program's all the same: it must have the kernel that is
 * wanted (NULL: any will do), which then is the first of the pool. */
static llmk_status check_image(llmk_context *ctx, llmk_program *p, const llmk_image *image,
                               const char *kernel)
{
    llmk_kernel_object *made = NULL;
    if (!image->file || !kernel)
        return LLMK_OK;
    const llmk_status status = make_kernel(ctx, p->cl, kernel, &made);
    if (status == LLMK_OK) {
        llmk_program_release(p, kernel, made);
        return LLMK_OK;
    }
    clReleaseProgram(p->cl);
    p->cl = NULL;
    return lacks_kernel(status, image->file->name);
}

static llmk_status build_image(llmk_context *ctx, llmk_program *p, const llmk_image *image,
                               const char *file, const char *defines, const char *kernel)
{
    unsigned char *data = NULL;
    size_t size = 0;
    uint64_t start = llmk_now();
    LLMK_TRY(load_image(image, file, &data, &size));
    llmk_times_add(&ctx->times, LLMK_PHASE_UNPACK, start);

    char options[512] = "";
    if (!image->file)
        snprintf(options, sizeof options, "%s %s%s", ctx->caps.source_options, defines,
                 strstr(defines, "_EMULATED") ? EMULATED_OPTIONS : "");
    char key[1400];
    snprintf(key, sizeof key, "program|%s|%s|%s|%s|%s|%016" PRIx64, ctx->caps.identity, file,
             defines, image->kind, image->target, llmk_hash(LLMK_HASH_SEED, data, size));
    const bool cached = compiled_by_driver(image) && binaries_pay(ctx);
    llmk_status status = LLMK_OK;
    p->cl = cached ? load_binary(ctx, key) : NULL;
    if (p->cl) {
        status = check_image(ctx, p, image, kernel);
    } else {
        start = llmk_now();
        status = create_and_build(ctx, image, image->file ? image->file->name : file, options, data,
                                  size, &p->cl);
        llmk_times_add(&ctx->times, LLMK_PHASE_BUILD, start);
        if (status == LLMK_OK)
            status = check_image(ctx, p, image, kernel);
        if (status == LLMK_OK && cached)
            save_binary(ctx, key, p->cl, data, size);
    }
    free(data);
    return status;
}

/* From the first image, from `first` on, that this driver accepts and that has the kernel. */
static llmk_status build_any(llmk_context *ctx, llmk_program *p, const char *file,
                             const char *defines, const char *kernel, size_t first)
{
    llmk_image images[LLMK_MAX_IMAGES];
    size_t count;
    LLMK_TRY(llmk_images_of(ctx, file, defines, images, &count));
    if (first >= count)
        return llmk_fail(LLMK_BUILD_FAILED, "%s (%s): no image has kernel %s", file, defines,
                         kernel ? kernel : "(any)");
    for (size_t i = first;; i++) {
        p->image = images[i].kind;
        p->image_index = i;
        p->from_image = images[i].file != NULL;
        const llmk_status status = build_image(ctx, p, &images[i], file, defines, kernel);
        if ((status != LLMK_BUILD_FAILED && status != LLMK_CORRUPT_DATA) || i + 1 == count)
            return status == LLMK_CORRUPT_DATA ? LLMK_BUILD_FAILED : status;
        llmk_log_write(&ctx->log, LLMK_LOG_WARN, "%s (%s): %s%s%s is not used, next is %s: %s",
                       file, defines, p->image, images[i].target[0] ? " of " : "", images[i].target,
                       images[i + 1].kind, llmk_error_message());
    }
}

/* ---- The table ---- */

static llmk_program **bucket_of(llmk_programs *programs, const char *key)
{
    return &programs->buckets[llmk_hash(LLMK_HASH_SEED, key, strlen(key)) % BUCKETS];
}

static llmk_program *find(llmk_programs *programs, const char *key)
{
    pthread_mutex_lock(&programs->lock);
    llmk_program *p = *bucket_of(programs, key);
    while (p && strcmp(p->key, key) != 0)
        p = p->next;
    pthread_mutex_unlock(&programs->lock);
    return p;
}

static void insert(llmk_programs *programs, llmk_program *p)
{
    pthread_mutex_lock(&programs->lock);
    llmk_program **bucket = bucket_of(programs, p->key);
    p->next = *bucket; /* where it replaces one, that is found no more */
    *bucket = p;
    pthread_mutex_unlock(&programs->lock);
}

static llmk_status make(llmk_context *ctx, const char *file, const char *defines,
                        const char *kernel, const char *key, size_t first, llmk_program **out)
{
    llmk_program *p = calloc(1, sizeof *p);
    if (!p)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a program");
    pthread_mutex_init(&p->lock, NULL);
    memcpy(p->key, key, strlen(key) + 1);
    p->status = build_any(ctx, p, file, defines, kernel, first);
    if (p->status == LLMK_OK) {
        llmk_log_write(&ctx->log, LLMK_LOG_DEBUG, "%s (%s): built from %s", file, defines,
                       p->image);
    } else if (p->status == LLMK_BUILD_FAILED && first == 0) {
        p->failure = strdup(llmk_error_message());
    } else { /* may go better next time, or other kernels are well: do not remember it */
        const llmk_status status = p->status;
        free_program(p);
        return status;
    }
    insert(ctx->programs, p);
    *out = p;
    return LLMK_OK;
}

llmk_status llmk_program_get(llmk_context *ctx, const char *file, const char *defines,
                             const char *kernel, llmk_program **program)
{
    char key[MAX_KEY];
    llmk_join(key, sizeof key, file, " ", defines, NULL);
    if (strlen(file) + 1 + strlen(defines) >= sizeof key)
        return llmk_fail(LLMK_INTERNAL, "the defines of %s are too long: %s", file, defines);
    llmk_program *p = find(ctx->programs, key);
    if (!p) {
        pthread_mutex_lock(&ctx->programs->build_lock);
        p = find(ctx->programs, key); /* another thread may have built it meanwhile */
        const llmk_status status = p ? LLMK_OK : make(ctx, file, defines, kernel, key, 0, &p);
        pthread_mutex_unlock(&ctx->programs->build_lock);
        if (!p)
            return status;
    }
    if (p->status != LLMK_OK)
        return llmk_fail(p->status, "%s", p->failure ? p->failure : file);
    *program = p;
    return LLMK_OK;
}

llmk_status llmk_program_replace(llmk_context *ctx, const char *file, const char *defines,
                                 const char *kernel, llmk_program **program)
{
    llmk_status status = LLMK_OK;
    llmk_program *const old = *program;
    pthread_mutex_lock(&ctx->programs->build_lock);
    llmk_program *p = find(ctx->programs, old->key);
    if (p == old) { /* else another thread has done so */
        llmk_log_write(&ctx->log, LLMK_LOG_WARN, "%s (%s): %s is not used any more: %s", file,
                       defines, old->image, llmk_error_message());
        status = make(ctx, file, defines, kernel, old->key, old->image_index + 1, &p);
    }
    pthread_mutex_unlock(&ctx->programs->build_lock);
    if (status == LLMK_OK)
        *program = p;
    return status;
}

/* ---- Kernels ---- */

static kernel_pool *pool_of(llmk_program *p, const char *name)
{
    for (size_t i = 0; i < p->pool_count; i++)
        if (strcmp(p->pools[i].name, name) == 0)
            return &p->pools[i];
    if (p->pool_count == MAX_KERNELS)
        return NULL;
    p->pools[p->pool_count].name = name;
    return &p->pools[p->pool_count++];
}

llmk_status llmk_program_acquire(llmk_context *ctx, llmk_program *program, const char *name,
                                 llmk_kernel_object **kernel)
{
    pthread_mutex_lock(&program->lock);
    kernel_pool *pool = pool_of(program, name);
    *kernel = pool && pool->idle_count > 0 ? pool->idle[--pool->idle_count] : NULL;
    pthread_mutex_unlock(&program->lock);
    if (*kernel)
        return LLMK_OK;
    const llmk_status status = make_kernel(ctx, program->cl, name, kernel);
    return status == LLMK_OK || !program->from_image ? status
                                                     : lacks_kernel(status, program->image);
}

void llmk_program_release(llmk_program *program, const char *name, llmk_kernel_object *kernel)
{
    pthread_mutex_lock(&program->lock);
    kernel_pool *pool = pool_of(program, name);
    if (pool && pool->idle_count < MAX_POOL) {
        pool->idle[pool->idle_count++] = kernel;
        kernel = NULL;
    }
    pthread_mutex_unlock(&program->lock);
    if (kernel)
        free_kernel(kernel);
}
