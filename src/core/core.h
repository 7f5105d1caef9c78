/*
 * core.h - what every file of the library shares: errors, logging, the context, its device.
 * Operator files include ops/operator.h, which includes this.
 */
#ifndef LLMK_CORE_H
#define LLMK_CORE_H

#include <llmk/llmk.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>

/* Returns from the enclosing function where `expr` is not LLMK_OK. */
#define LLMK_TRY(expr)                                                                             \
    do {                                                                                           \
        llmk_status llmk_try_ = (expr);                                                            \
        if (llmk_try_ != LLMK_OK)                                                                  \
            return llmk_try_;                                                                      \
    } while (0)

#define LLMK_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define LLMK_COUNT(array)      (sizeof(array) / sizeof((array)[0]))

/* ---- Errors (status.c) ---- */

/* Sets this thread's error text and returns `status`: `return llmk_fail(LLMK_INVALID_SHAPE, ...)`.
 */
llmk_status llmk_fail(llmk_status status, const char *fmt, ...) LLMK_PRINTF(2, 3);
/* Puts "prefix: " before this thread's error text; returns `status`. */
llmk_status llmk_fail_prefix(llmk_status status, const char *fmt, ...) LLMK_PRINTF(2, 3);
/* The status for an OpenCL error code, with the call's name in the text. Marks `ctx` (may be NULL)
 * lost where the code means that. */
llmk_status llmk_fail_cl(llmk_context *ctx, cl_int code, const char *call);
/* Whether an error is about what the call was given; else it is the driver's own. */
static inline bool llmk_cl_is_invalid(cl_int code)
{
    return code <= CL_INVALID_VALUE && code > -1000;
}
const char *llmk_cl_error_name(cl_int code);

/* Why not, in one line: llmk_no() writes it, where somebody wants to know (`why` is not NULL), and
 * returns false. */
typedef struct llmk_reason {
    char text[248];
} llmk_reason;
bool llmk_no(llmk_reason *why, const char *fmt, ...) LLMK_PRINTF(2, 3);

/* ---- Files (file.c) ---- */

/* False with errno, or with 0 where the file ends before. */
bool llmk_read_all(int fd, void *data, size_t size);
/* All of a regular file of at most so many bytes (whole MiB), malloc'ed. NULL with a sentence, and
 * errno: of opening it, ENOMEM, or 0. */
char *llmk_read_file(const char *path, size_t most, size_t *length, llmk_reason *why);

/* ---- Structs that the library fills in (info.c) ---- */

/* Refuses a struct_size that no version of the struct, of `size` bytes in this one, can have. */
llmk_status llmk_check_info(const char *function, size_t given, size_t size);
/* For functions that list: refuses NULL where there must be something, and as above by the first of
 * `capacity` structs, whose struct_size all of them have: `*entry`. `name`: of the parameter. */
llmk_status llmk_check_infos(const char *function, const char *name, const void *infos,
                             size_t capacity, const size_t *count, size_t size, size_t *entry);
/* Copies as much of `known` as the caller's struct holds; what this version does not know is zero.
 */
void llmk_fill_info(void *info, size_t given, const void *known, size_t size);

/* ---- Logging (log.c) ---- */

typedef struct llmk_log {
    llmk_log_callback callback;
    void *user;
    llmk_log_level level;     /* of the callback */
    llmk_log_level env_level; /* LLMK_LOG's, to stderr; LLMK_LOG_NONE: off */
} llmk_log;

/* LLMK_INVALID_ARGUMENT where LLMK_LOG is no level; then nothing goes to stderr. */
llmk_status llmk_log_init(llmk_log *log, const llmk_context_options *options);
void llmk_log_write(const llmk_log *log, llmk_log_level level, const char *fmt, ...)
    LLMK_PRINTF(3, 4);

/* ---- Times (times.c) ---- */

/* What happens before the first kernel. The phases do not overlap: what a probe or a trial does in
 * its own context is counted there and in PROBE or TRIAL here. */
typedef enum llmk_phase {
    LLMK_PHASE_DEVICE,
    LLMK_PHASE_CONTEXT,
    LLMK_PHASE_PROBE,
    LLMK_PHASE_TRIAL,
    LLMK_PHASE_CACHE,
    LLMK_PHASE_UNPACK,
    LLMK_PHASE_BUILD,
    LLMK_PHASE_KERNEL,
    LLMK_PHASE_COUNT
} llmk_phase;

typedef struct llmk_times {
    atomic_uint_least64_t ns[LLMK_PHASE_COUNT];
    atomic_uint calls[LLMK_PHASE_COUNT];
} llmk_times;

uint64_t llmk_now(void); /* ns */
/* Adds the time since `since`. */
void llmk_times_add(llmk_times *times, llmk_phase phase, uint64_t since);
const char *llmk_phase_name(llmk_phase phase);

/* ---- Devices (device.c) and what running on them showed (probe.c) ---- */

typedef struct llmk_caps {
    cl_platform_id platform;
    cl_device_id device;
    char platform_name[128], device_name[128], driver[128], version[128], il_version[64];
    llmk_vendor vendor;
    cl_device_type type;
    uint32_t compute_units, clock_mhz, max_work_group, compute_capability;
    uint32_t max_required_group; /* of kernels that require their size; AMD's: more than others */
    uint64_t global_bytes, max_alloc_bytes, local_bytes, cache_bytes;
    uint32_t base_align; /* bytes */
    bool spirv;
    bool cooperative_matrix;    /* the device says that it runs SPV_KHR_cooperative_matrix */
    const char *source_options; /* how kernel sources are built; a literal */
    /* Sizes of sub-groups that a kernel may require, or'ed together; 0 where it cannot. */
    uint32_t subgroup_sizes;
    char *extensions; /* owned */
    /* "vendor|device|driver|library": what a verdict or a binary on disk is valid for. */
    char identity[512];
} llmk_caps;

llmk_status llmk_caps_read(cl_device_id device, llmk_caps *caps);
void llmk_caps_release(llmk_caps *caps);
bool llmk_caps_extension(const llmk_caps *caps, const char *name);
/* LLMK_DEVICE or the best device. */
llmk_status llmk_device_choose(const llmk_log *log, cl_device_id *device);
/* All but what probes find. */
void llmk_caps_fill_info(const llmk_caps *caps, llmk_device_info *info);

static inline bool llmk_is_cpu(const llmk_caps *caps)
{
    return (caps->type & CL_DEVICE_TYPE_CPU) != 0;
}

/* Probes build and run a small kernel once a context; results are kept on disk as verdicts are. */
uint32_t llmk_probe_subgroup_size(llmk_context *ctx); /* 0: none */
bool llmk_probe_fp16(llmk_context *ctx);
bool llmk_probe_inline_ptx(llmk_context *ctx);

/* ---- The context (context.c) ---- */

typedef struct llmk_programs llmk_programs;   /* program.c */
typedef struct llmk_verdicts llmk_verdicts;   /* select.c */
typedef struct llmk_cache llmk_cache;         /* cache.c */
typedef struct llmk_tuning llmk_tuning;       /* tuning.c */
typedef struct llmk_image_set llmk_image_set; /* image.h */

struct llmk_context {
    atomic_uint references;
    cl_context cl;
    llmk_caps caps;
    llmk_log log;
    uint32_t flags;
    char *forced_variants;    /* "op:name,..." or NULL */
    char *forced_image;       /* LLMK_IMAGE, or NULL */
    uint32_t forced_subgroup; /* LLMK_SUBGROUP, or 0 */
    bool believes_coopmat;    /* LLMK_COOPMAT: whatever the device says of cooperative matrices */
    const llmk_image_set *images;
    atomic_bool lost;
    llmk_programs *programs;
    llmk_verdicts *verdicts;
    llmk_cache *cache;
    int64_t started;     /* llmk_finding_start; a test may pretend to be another process */
    llmk_tuning *tuning; /* NULL: no rows */
    /* Trial builds and self-tests run in a context of their own, since a fault would kill this one.
     * Made when first needed, under trial_lock; NULL inside a trial context. */
    pthread_mutex_t trial_lock;
    llmk_context *trial;
    bool is_trial;
    /* Results of the probes: -1 not probed yet. */
    atomic_int subgroup_size, fp16, inline_ptx;
    atomic_int wgmma; /* llmk_linear_has_wgmma: whether there are images; -1 not looked yet */
    llmk_times times;
    pthread_mutex_t profiler_lock;
    llmk_profile_callback profiler;
    void *profiler_user;
};

void llmk_context_retain(llmk_context *ctx);
/* The context for trials of `ctx`, made anew if the last one was lost. Hold ctx->trial_lock. */
llmk_status llmk_context_trial(llmk_context *ctx, llmk_context **trial);
/* LLMK_DEVICE_LOST once the device is lost. */
llmk_status llmk_context_usable(llmk_context *ctx);

/* ---- Disk (cache.c) ---- */

/* Small named blobs in a private folder. A key is text; damaged files are deleted and read as
 * absent. Never fails loudly: a cache that cannot be used is logged once and switched off. */
llmk_cache *llmk_cache_open(const char *dir_option, const llmk_log *log, llmk_times *times);
void llmk_cache_close(llmk_cache *cache);
/* Returns a malloc'ed blob, or NULL. */
void *llmk_cache_get(llmk_cache *cache, const char *key, size_t *size);
void llmk_cache_put(llmk_cache *cache, const char *key, const void *data, size_t size);
void llmk_cache_drop(llmk_cache *cache, const char *key);
/* NULL where the cache is off. */
const char *llmk_cache_dir(const llmk_cache *cache);

/* A 64-bit hash of any bytes, eight at a time; not for adversaries. Start from LLMK_HASH_SEED, or
 * from another part's hash: parts cut otherwise give another number. */
#define LLMK_HASH_SEED 0xcbf29ce484222325u
uint64_t llmk_hash(uint64_t seed, const void *data, size_t size);

/* Writes the strings up to a NULL one after the other to `out`, cut where it ends, but no character
 * of UTF-8 in two: what snprintf does with %s, at a tenth of the time, for the keys and defines of
 * every call. */
void llmk_join(char *out, size_t size, ...) __attribute__((sentinel));
/* vsnprintf that cuts as llmk_join does. */
void llmk_vprint(char *out, size_t size, const char *fmt, va_list args) LLMK_PRINTF(3, 0);
/* Puts blanks in the place of control characters, which a terminal would obey, in a text that files
 * or devices had a hand in. Line feeds stay where `lines` may be several. */
void llmk_make_printable(char *text, bool lines);
/* "0" ... "99" as fixed strings; "?" beyond. */
const char *llmk_digits(uint32_t value);

/* ---- Kernel sources (source.c) ---- */

/* A kernel file with its includes expanded, malloc'ed and NUL-terminated; file is relative to cl/.
 */
llmk_status llmk_source_load(const char *file, char **text);
/* Whether LLMK_KERNEL_PATH replaces the kernels of the library. */
bool llmk_source_overridden(void);
/* Changes when any kernel source does. */
uint64_t llmk_sources_hash(void);

/* The key on disk of what running this context's kernels showed: it changes with the device, the
 * driver, the library and everything that the kernels are made from. False where LLMK_KERNEL_PATH
 * replaces the kernels: then nothing is kept. */
bool llmk_finding_key(const llmk_context *ctx, const char *what, char *key, size_t size);

/* ---- What was found in earlier runs (findings.c) ---- */

typedef struct llmk_finding {
    long value;
    bool failed;
    char *text; /* to be freed */
} llmk_finding;

/* When this process first asked, in seconds since the epoch. */
int64_t llmk_finding_start(void);
/* Whether `what` is known, and to be believed. */
bool llmk_finding_recall(llmk_context *ctx, const char *what, llmk_finding *found);
/* failed: of the moment, perhaps. */
void llmk_finding_keep(llmk_context *ctx, const char *what, long value, bool failed,
                       const char *text);
/* Says of a failure that it is believed, and how to have it tried again. */
void llmk_finding_warn(const llmk_context *ctx, const char *what, const llmk_finding *found);

/* ---- Programs and kernels (program.c) ---- */

llmk_programs *llmk_programs_new(void);
void llmk_programs_free(llmk_programs *programs);

typedef struct llmk_program llmk_program;

/* The program of `file` with `defines` ("-DX=f16 -DY=f16", in the manifest's spelling), built or
 * loaded on first use: from the first image that the driver takes and that has `kernel` (NULL: is
 * not asked). Thread-safe; blocks on first use. */
llmk_status llmk_program_get(llmk_context *ctx, const char *file, const char *defines,
                             const char *kernel, llmk_program **program);
/* A kernel object and the values that its arguments have now, one after the other: what has not
 * changed since the last call need not be set again. Buffers are always set, since a new buffer may
 * have an old one's handle. */
typedef struct llmk_kernel_object {
    cl_kernel cl;
    size_t known; /* bytes of `values` that hold */
    unsigned char values[512];
} llmk_kernel_object;

/* Takes a kernel object out of the program's pool: nobody else sets its arguments meanwhile.
 * LLMK_BUILD_FAILED where the image that the program was made from lacks the kernel. */
llmk_status llmk_program_acquire(llmk_context *ctx, llmk_program *program, const char *name,
                                 llmk_kernel_object **kernel);
void llmk_program_release(llmk_program *program, const char *name, llmk_kernel_object *kernel);
/* For a program that llmk_program_acquire said LLMK_BUILD_FAILED of: the same from the next image
 * that has `kernel`. Kernel objects of the old one stay good. */
llmk_status llmk_program_replace(llmk_context *ctx, const char *file, const char *defines,
                                 const char *kernel, llmk_program **program);
/* "source", "spirv", "ptx", "cubin", "gfx942": what the program was made from. */
const char *llmk_program_image(const llmk_program *program);

#endif
