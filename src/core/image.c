/* image.c - the images in the library, and which of them a device takes. */
#include "core/image.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef LLMK_HAVE_ZSTD
#include <zstd.h>
#endif

#define MAX_STEM        256
#define MAX_IMAGE_BYTES (64u << 20)

extern const llmk_embedded_file llmk_embedded_images[];
extern const size_t llmk_embedded_image_count;

const llmk_image_set llmk_images = {llmk_embedded_images, &llmk_embedded_image_count};

/* ---- Which device takes what ---- */

static bool is_nvidia(const llmk_context *ctx, uint32_t from, uint32_t to)
{
    return ctx->caps.vendor == LLMK_VENDOR_NVIDIA && ctx->caps.compute_capability >= from &&
           ctx->caps.compute_capability <= to;
}
static bool is_cc90(const llmk_context *ctx)
{
    return is_nvidia(ctx, 90, 90);
}
static bool is_cc80(const llmk_context *ctx)
{
    return is_nvidia(ctx, 80, 80);
}
static bool from_cc80(const llmk_context *ctx)
{
    return is_nvidia(ctx, 80, UINT32_MAX);
}

/* Only where asked for, until it has run on the hardware. */
static bool is_gfx942(const llmk_context *ctx)
{
    return ctx->forced_image && ctx->caps.vendor == LLMK_VENDOR_AMD &&
           strncmp(ctx->caps.device_name, "gfx942", 6) == 0;
}
static bool takes_spirv(const llmk_context *ctx)
{
    return ctx->caps.spirv;
}

/* In the order to try. Cubins run on exactly one compute capability; sm_90a is not even forward
 * compatible as PTX. */
static const struct target {
    const char *suffix, *kind, *name;
    bool (*fits)(const llmk_context *ctx);
} targets[] = {
    {".sm_90a.cubin", "cubin", "sm_90a", is_cc90},
    {".sm_90.cubin", "cubin", "sm_90", is_cc90},
    {".sm_80.cubin", "cubin", "sm_80", is_cc80},
    {".sm_90a.ptx", "ptx", "sm_90a", is_cc90},
    {".sm_80.ptx", "ptx", "sm_80", from_cc80},
    {".gfx942.hsaco", "gfx942", "", is_gfx942},
    {".spv", "spirv", "", takes_spirv},
};
_Static_assert(LLMK_COUNT(targets) < LLMK_MAX_IMAGES, "room for all targets and the source");

/* LLMK_IMAGE_WORDS */
static const char *const words[] = {"source", "spirv", "native", "ptx", "cubin", "sm_80"};

bool llmk_image_word(const char *word)
{
    for (size_t i = 0; i < LLMK_COUNT(words); i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

/* Whether LLMK_IMAGE (`word`, may be NULL) leaves images of `kind` for the target. "sm_80": on a
 * newer device what an A100 would run; a cubin of sm_90 is made of that PTX, one of sm_90a is not.
 */
static bool wanted(const char *word, const char *kind, const char *name)
{
    if (!word || strcmp(word, kind) == 0)
        return true;
    if (strcmp(word, "sm_80") == 0)
        return (strcmp(kind, "ptx") == 0 || strcmp(kind, "cubin") == 0) &&
               strcmp(name, "sm_90a") != 0;
    return strcmp(word, "native") == 0 && strcmp(kind, "source") != 0 && strcmp(kind, "spirv") != 0;
}

/* ---- Finding ---- */

/* "rmsnorm/rmsnorm_nv.cl" and "-DX=f16 -DY=f32" become "rmsnorm/rmsnorm_nv-X.f16-Y.f32"; the same
 * is in images/images.py. */
static bool stem_of(const char *file, const char *defines, char stem[MAX_STEM])
{
    const size_t base = strlen(file), extension = strlen(".cl");
    size_t n = 0;
    if (base < extension || strcmp(file + base - extension, ".cl") != 0 ||
        base + strlen(defines) >= MAX_STEM)
        return false;
    memcpy(stem, file, n = base - extension);
    for (const char *p = defines; *p; p++)
        if (strncmp(p, "-D", 2) == 0) {
            stem[n++] = '-';
            p++;
        } else if (*p != ' ') {
            stem[n++] = *p;
            if (*p == '=')
                stem[n - 1] = '.';
        }
    stem[n] = '\0';
    return true;
}

static const llmk_embedded_file *find(const llmk_image_set *set, const char *stem,
                                      const char *suffix)
{
    const size_t n = strlen(stem);
    for (size_t i = 0; i < *set->count; i++)
        if (strncmp(set->files[i].name, stem, n) == 0 &&
            strcmp(set->files[i].name + n, suffix) == 0)
            return &set->files[i];
    return NULL;
}

/* ---- The manifest ---- */

static pthread_mutex_t gap_lock = PTHREAD_MUTEX_INITIALIZER;
static char gap[MAX_STEM + 64];

const char *llmk_manifest_gap(void)
{
    pthread_mutex_lock(&gap_lock);
    const char *text = gap[0] ? gap : NULL;
    pthread_mutex_unlock(&gap_lock);
    return text;
}

/* The index follows its first line with the stems of all configurations of the manifest, whether
 * this build has images of them or not. A build without any images has no index. */
static void check_manifest(const llmk_context *ctx, const char *file, const char *defines,
                           const char *stem)
{
    const llmk_embedded_file *index = find(ctx->images, "index", "");
    char line[MAX_STEM + 2];
    snprintf(line, sizeof line, "\n%s\n", stem);
    if (!index || strstr((const char *)index->data, line))
        return;
    llmk_log_write(&ctx->log, LLMK_LOG_WARN,
                   "%s (%s) is not in cl/manifest.txt: there are no images of it", file, defines);
    pthread_mutex_lock(&gap_lock);
    if (!gap[0])
        snprintf(gap, sizeof gap, "%s (%s)", file, defines);
    pthread_mutex_unlock(&gap_lock);
}

/* Changes when any image does. */
static uint64_t images_hash(const llmk_image_set *set)
{
    const llmk_embedded_file *index = find(set, "index", "");
    return index ? strtoull((const char *)index->data, NULL, 16) : 0;
}

bool llmk_finding_key(const llmk_context *ctx, const char *what, char *key, size_t size)
{
    snprintf(key, size, "finding 3|%s|%016" PRIx64 "|%016" PRIx64 "|%s|%u|%s", ctx->caps.identity,
             llmk_sources_hash(), images_hash(ctx->images),
             ctx->forced_image ? ctx->forced_image : "", ctx->forced_subgroup, what);
    return !llmk_source_overridden();
}

/* ---- What to try ---- */

static llmk_status nothing_left(const llmk_context *ctx, const char *file, const char *defines,
                                bool device_takes)
{
    const char *why = "the library has no such image of it";
    if (llmk_source_overridden())
        why = "LLMK_KERNEL_PATH replaces the kernels of the library, and its images with them";
    else if (!device_takes && strcmp(ctx->forced_image, "spirv") == 0)
        why = "the device takes no SPIR-V (its CL_DEVICE_IL_VERSION names none)";
    else if (!device_takes)
        why = "no such image is made for this device";
    return llmk_fail(LLMK_BUILD_FAILED, "%s (%s) on %s, LLMK_IMAGE is \"%s\": %s", file, defines,
                     ctx->caps.device_name, ctx->forced_image, why);
}

llmk_status llmk_images_of(const llmk_context *ctx, const char *file, const char *defines,
                           llmk_image images[LLMK_MAX_IMAGES], size_t *count)
{
    char stem[MAX_STEM];
    if (!stem_of(file, defines, stem))
        return llmk_fail(LLMK_INTERNAL, "no kernel file, or too long: %s (%s)", file, defines);
    *count = 0;
    bool device_takes = false;
    if (!llmk_source_overridden()) {
        check_manifest(ctx, file, defines, stem);
        for (size_t i = 0; i < LLMK_COUNT(targets); i++) {
            const struct target *t = &targets[i];
            if (!wanted(ctx->forced_image, t->kind, t->name) || !t->fits(ctx))
                continue;
            device_takes = true;
            const llmk_embedded_file *found = find(ctx->images, stem, t->suffix);
            if (found)
                images[(*count)++] = (llmk_image){t->kind, t->name, found};
        }
    }
    if (wanted(ctx->forced_image, "source", ""))
        images[(*count)++] = (llmk_image){"source", "", NULL};
    return *count > 0 ? LLMK_OK : nothing_left(ctx, file, defines, device_takes);
}

bool llmk_image_comes_first(const llmk_context *ctx, const char *file, const char *defines)
{
    llmk_image images[LLMK_MAX_IMAGES];
    size_t count;
    images[0].file = NULL;
    return llmk_images_of(ctx, file, defines, images, &count) == LLMK_OK && images[0].file;
}

/* ---- Contents ---- */

llmk_status llmk_image_unpack(const llmk_image *image, unsigned char **data, size_t *size)
{
    *data = NULL;
#ifdef LLMK_HAVE_ZSTD
    const unsigned long long n = ZSTD_getFrameContentSize(image->file->data, image->file->size);
    if (n > MAX_IMAGE_BYTES) /* the codes of errors are larger still */
        return llmk_fail(LLMK_CORRUPT_DATA, "image %s is damaged: no zstd frame",
                         image->file->name);
    *size = (size_t)n;
    unsigned char *bytes = malloc(*size + 1);
    if (!bytes)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for image %s", image->file->name);
    const size_t got = ZSTD_decompress(bytes, *size, image->file->data, image->file->size);
    if (got != *size) {
        free(bytes);
        return llmk_fail(LLMK_CORRUPT_DATA, "image %s is damaged: %s", image->file->name,
                         ZSTD_isError(got) ? ZSTD_getErrorName(got) : "its size is wrong");
    }
    bytes[*size] = '\0';
    *data = bytes;
    return LLMK_OK;
#else
    *size = 0;
    return llmk_fail(LLMK_INTERNAL, "this library was built without zstd: image %s cannot be read",
                     image->file->name);
#endif
}

/* Entry `i` of an array whose entries have `entry` bytes. */
static void describe(const llmk_embedded_file *file, void *array, size_t entry, size_t i)
{
    llmk_image_info info = {.name = file->name,
                            .kind = "source",
                            .target = "",
                            .bytes = file->size,
                            .unpacked_bytes = file->size};
    const size_t n = strlen(file->name);
    for (size_t t = 0; t < LLMK_COUNT(targets); t++) {
        const size_t suffix = strlen(targets[t].suffix);
        if (n < suffix || strcmp(file->name + n - suffix, targets[t].suffix) != 0)
            continue;
        info.kind = targets[t].kind;
        info.target = targets[t].name;
#ifdef LLMK_HAVE_ZSTD
        info.unpacked_bytes = ZSTD_getFrameContentSize(file->data, file->size);
#endif
    }
    llmk_fill_info((unsigned char *)array + i * entry, entry, &info, sizeof info);
}

llmk_status llmk_image_list(llmk_image_info *images, size_t capacity, size_t *count)
{
    size_t entry;
    LLMK_TRY(llmk_check_infos("llmk_image_list", "images", images, capacity, count, sizeof *images,
                              &entry));
    *count = 0;
    for (size_t i = 0; i < llmk_embedded_file_count; i++, (*count)++)
        if (*count < capacity)
            describe(&llmk_embedded_files[i], images, entry, *count);
    for (size_t i = 0; i < llmk_embedded_image_count; i++) {
        if (strcmp(llmk_embedded_images[i].name, "index") == 0)
            continue;
        if (*count < capacity)
            describe(&llmk_embedded_images[i], images, entry, *count);
        (*count)++;
    }
    return LLMK_OK;
}

/* ---- clCreateProgramWithIL ---- */

/* OpenCL 2.1 has it, the extension cl_khr_il_program under another name. Weak, so that the library
 * links and loads with a loader of OpenCL 1.2. */
#pragma weak clCreateProgramWithIL

cl_program llmk_create_with_il(const llmk_context *ctx, const void *il, size_t size, cl_int *err)
{
    typedef cl_program(CL_API_CALL * create_function)(cl_context, const void *, size_t, cl_int *);
    union { /* the loader hands out an object pointer */
        void *object;
        create_function function;
    } create = {NULL};
    if (llmk_caps_extension(&ctx->caps, "cl_khr_il_program"))
        create.object = clGetExtensionFunctionAddressForPlatform(ctx->caps.platform,
                                                                 "clCreateProgramWithILKHR");
    if (!create.object)
        create.function = clCreateProgramWithIL;
    if (!create.function) {
        *err = CL_INVALID_OPERATION;
        return NULL;
    }
    return create.function(ctx->cl, il, size, err);
}
