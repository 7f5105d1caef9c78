/*
 * llmk.h - LLM-inference kernels for any OpenCL device.
 *
 * This header is the whole public interface of libllmk_cl, with two that it includes: llmk_linear.h
 * and llmk_moe.h. What does not appear in them is not API.
 * It is C11 and can be included from C++. Where it says docs/NAME.md, that is installed as
 * share/doc/llmk_cl/docs/NAME.md.
 *
 *
 * 1. In one minute
 * ----------------
 * Create a context for a device, describe your buffers as tensors, call operators with your own
 * command queue:
 *
 *     llmk_context *ctx = NULL;
 *     if (llmk_context_create(NULL, &ctx) != LLMK_OK)
 *         fprintf(stderr, "%s\n", llmk_error_message());
 *     ...
 *     llmk_rmsnorm_args args = LLMK_INIT(llmk_rmsnorm_args);
 *     args.x = llmk_matrix(x, LLMK_F16, rows, hidden);
 *     args.weight = llmk_vector(w, LLMK_F16, hidden);
 *     args.y = llmk_matrix(y, LLMK_F16, rows, hidden);
 *     args.eps = 1e-5f;
 *     llmk_status s = llmk_rmsnorm(ctx, queue, &args, NULL);
 *
 *
 * 2. Rules that hold for every operator
 * -------------------------------------
 * - An operator enqueues kernels on the caller's queue and returns. It does not wait, read back or
 *   allocate once it is prepared. The first call of an operator with new types or options builds
 *   kernels and tests them, and may block for that; llmk_prepare() does it ahead of time.
 * - Argument structs begin with `size_t struct_size`; start from LLMK_INIT(type), which sets it and
 *   clears the rest. Every option's default is zero; sizes are literal. Where a literal zero is a
 *   legal choice (eps), a flag says that it is meant. A caller's struct may be of an older version
 *   (what it lacks is zero) or of a newer one, up to twice as long: what this version does not know
 *   must be zero, else LLMK_UNSUPPORTED. Any other struct_size is LLMK_INVALID_ARGUMENT, and
 *   nothing behind it is read. Structs for the library to fill that begin with it are filled as far
 *   as it reaches, and what a newer caller has beyond this version's fields becomes zero.
 * - All arguments are checked before anything is enqueued. A call that refuses its arguments (a
 *   status below 30) has written nothing; llmk_error_message() names the argument, what it was and
 *   what was expected. Where the driver fails when some of a call's kernels are on their way,
 *   outputs may be written in part. A call never writes anything but its outputs, its workspace and
 *   its plan.
 * - Tensors may have any strides; operators are fastest where the innermost stride is 1 and rows
 *   start on 16-byte boundaries. Zero-sized tensors are legal: a call whose output has no elements
 *   writes nothing. (An output that has some is written: llmk_linear with K = 0 gives bias +
 *   residual, llmk_error_report of nothing a report, llmk_moe_permute of no tokens offsets.) They
 *   too need a buffer, of any size, since a tensor without one is absent.
 * - Inputs are never written. Outputs must not overlap any other tensor of the call, unless it says
 *   that a pair may be "in place": then both are the very same elements in the same order (same
 *   buffer, offset, dtype and strides). Tensors count as overlapping where the ranges of memory
 *   they span do, unless they are columns side by side in the same rows. The strides of an output
 *   nest: each steps over all that the smaller ones reach.
 * - Arithmetic is done in f32 (accumulation included); f16 and bf16 are storage types. Results are
 *   deterministic: the same call on the same device with the same library and the same tuned rows
 *   gives the same bits. docs/numerics.md and the pages that it lists state each operator's error
 *   bound. NaN and infinities give what the formulas give in IEEE arithmetic, unless it says
 *   otherwise below.
 * - On an out-of-order queue the kernels of a call are chained with events; llmk_events orders the
 *   calls among each other.
 *
 *
 * 3. Threads and errors
 * ---------------------
 * All functions may be called from any thread, also with one context, except that an object must
 * not be freed while another call uses it. llmk_error_message() is per thread. The library never
 * exits, aborts or prints: messages go to the log callback, or to stderr if, and only if, the
 * environment variable LLMK_LOG asks for it.
 *
 *
 * 4. Environment
 * --------------
 * An empty value is none. Values other than these make llmk_context_create() fail with
 * LLMK_INVALID_ARGUMENT and a sentence; a device that is not there with LLMK_NO_DEVICE.
 *
 * - LLMK_DEVICE: a device, by its index in llmk_device_list(), "gpu", "cpu", or a part of
 *   "PLATFORM / DEVICE" with a letter or a digit in it, letters of either case. Ignored where the
 *   caller gives one.
 * - LLMK_VARIANT: "OP:NAME[,OP:NAME...]" forces variants, e.g. "linear:ref"; calls that the variant
 *   cannot serve fail and say why. Each OP at most once; it may be "*": every operator that has
 *   such a variant, and of several pairs that fit an operator the first counts. NAME@CONFIG
 *   forces a configuration as well, one of those that docs/tuning.md lists.
 * - LLMK_TUNE_DB: the file of tuned rows to use instead of $XDG_CONFIG_HOME/llmk/tuning.json
 *   (~/.config/llmk/tuning.json), where llmk-tune keeps them; "built-in": only the rows in the
 *   library; "off": no tuned rows at all. Read once, by llmk_context_create(); what makes no sense
 *   in it is ignored, with a line in the log.
 * - LLMK_IMAGE: the only kind of kernel image to use: "source", "spirv" or "native"; of the natives
 *   "ptx" or "cubin", or "sm_80", those that do not need compute capability 9.0. Without it the
 *   library takes what the device runs best: docs/images-and-caches.md.
 * - LLMK_LOG: "error", "warn", "info" or "debug": log to stderr; "none": do not.
 * - LLMK_CACHE: "off": keep nothing on disk; else the folder to use instead of
 *   $XDG_CACHE_HOME/llmk (~/.cache/llmk). What other versions of the library or of a driver left
 *   there is not used, and stays: the folder may be deleted at any time.
 * - LLMK_KERNEL_PATH: a folder of kernel sources to use instead of those in the library
 *   (development).
 * - LLMK_SUBGROUP: 16, 32 or 64, the size of sub-groups to require of a device that lists it, for
 *   tests of the variants named "subgroup": docs/adding-a-device.md.
 * - LLMK_COOPMAT: "on": try the variant on SPIR-V's cooperative matrices on a device that does not
 *   say that it has them: docs/matrix-units.md.
 */
#ifndef LLMK_LLMK_H
#define LLMK_LLMK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LLMK_VERSION_MAJOR 0
#define LLMK_VERSION_MINOR 1
#define LLMK_VERSION_PATCH 0

#if defined(_WIN32)
#if defined(LLMK_BUILD_SHARED)
#define LLMK_API __declspec(dllexport)
#else
#define LLMK_API
#endif
#else
#define LLMK_API __attribute__((visibility("default")))
#endif

/* ------------------------------------------------------------------------------------------------
 * Status
 * --------------------------------------------------------------------------------------------- */

/* Values are pinned: they never change between versions. Zero is success. */
typedef enum llmk_status {
    LLMK_OK = 0,

    /* The caller's arguments. Nothing was enqueued, nothing was written. */
    LLMK_INVALID_ARGUMENT =
        10,                   /* NULL, an unknown enum value or flag, a bad struct_size or number */
    LLMK_INVALID_SHAPE = 11,  /* rank or dimensions do not fit each other */
    LLMK_INVALID_DTYPE = 12,  /* this dtype is not accepted here */
    LLMK_INVALID_STRIDE = 13, /* strides that overlap themselves, or misaligned offsets */
    LLMK_BUFFER_TOO_SMALL = 14, /* the tensor reaches beyond its buffer */
    LLMK_OVERLAP = 15,          /* an output overlaps another tensor */
    LLMK_INVALID_QUEUE = 16,    /* the queue is of another context or device */
    LLMK_INVALID_BUFFER = 17,   /* not a buffer of this context, or an output in one that was made
                                   CL_MEM_READ_ONLY, an input in one made CL_MEM_WRITE_ONLY, or
                                   weights in one that the host must not read
                                   (CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_NO_ACCESS) */
    LLMK_BUSY = 20,             /* the workspace or plan is in use by an unfinished call */

    /* The device or the driver. */
    LLMK_UNSUPPORTED = 30,     /* legal, but not provided by this version */
    LLMK_NO_DEVICE = 31,       /* no OpenCL platform, no device, or none that LLMK_DEVICE names */
    LLMK_NO_VARIANT = 32,      /* no variant of the operator serves this call on this device */
    LLMK_BUILD_FAILED = 33,    /* the driver refused the kernels; its log is in the message */
    LLMK_SELFTEST_FAILED = 34, /* kernels built, but gave wrong results on this device */
    LLMK_OUT_OF_MEMORY = 40,
    LLMK_OUT_OF_DEVICE_MEMORY = 41,
    LLMK_DEVICE_LOST = 50,  /* sticky: every later call of this context returns it */
    LLMK_OPENCL_ERROR = 51, /* any other OpenCL error; the message names the call and the code */

    /* Data. */
    LLMK_IO_ERROR = 60,
    LLMK_CORRUPT_DATA = 61,

    LLMK_INTERNAL = 90 /* a fault of this library */
} llmk_status;

/* The name of a status, "LLMK_INVALID_SHAPE"; a fixed string for unknown values. Never NULL. */
LLMK_API const char *llmk_status_string(llmk_status status);

/* The sentence that explains why this thread's last call failed, valid until its next llmk call.
 * After a call that succeeded it says nothing of use: what the library tried in vain on the way may
 * be in it. Never NULL. Build failures carry the driver's log. */
LLMK_API const char *llmk_error_message(void);

/* The version of the library in use, LLMK_VERSION_MAJOR * 1000000 + MINOR * 1000 + PATCH. */
LLMK_API uint32_t llmk_version(void);

/* One line: version, compiler, kinds of kernel images inside. */
LLMK_API const char *llmk_build_info(void);

/* A kernel image inside the library. */
typedef struct llmk_image_info {
    size_t struct_size;
    const char *name;   /* "rmsnorm/rmsnorm_nv-X.f16-Y.f16.sm_80.ptx"; static */
    const char *kind;   /* "source", "spirv", "ptx", "cubin" or "gfx942"; static */
    const char *target; /* of ptx and cubin: "sm_80"; else ""; static */
    uint64_t bytes;     /* in the library */
    uint64_t unpacked_bytes;
} llmk_image_info;

/* Lists the kernel images inside, as llmk_device_list() lists devices. */
LLMK_API llmk_status llmk_image_list(llmk_image_info *images, size_t capacity, size_t *count);

/* ------------------------------------------------------------------------------------------------
 * Devices and contexts
 * --------------------------------------------------------------------------------------------- */

typedef enum llmk_log_level {
    LLMK_LOG_NONE = 0, /* as an option: the default, errors and warnings */
    LLMK_LOG_ERROR = 1,
    LLMK_LOG_WARN = 2, /* something was worked around: a variant fell away, a damaged cache file */
    LLMK_LOG_INFO = 3, /* what was chosen and built */
    LLMK_LOG_DEBUG = 4
} llmk_log_level;

/* `message` is one line without a newline, valid during the call. May be called from any thread
 * that calls the library; must not call the library itself. */
typedef void (*llmk_log_callback)(void *user, llmk_log_level level, const char *message);

typedef enum llmk_vendor {
    LLMK_VENDOR_OTHER = 0,
    LLMK_VENDOR_NVIDIA = 1,
    LLMK_VENDOR_AMD = 2,
    LLMK_VENDOR_INTEL = 3,
    LLMK_VENDOR_POCL = 4,
    LLMK_VENDOR_MESA = 5
} llmk_vendor;

/* Sub-groups and fp16 are what a probe found by building and running, not what the driver says. */
typedef struct llmk_device_info {
    size_t struct_size;
    cl_platform_id platform_id;
    cl_device_id device_id;
    char platform[128];
    char name[128];
    char driver[128];  /* driver version */
    char version[128]; /* CL_DEVICE_VERSION */
    llmk_vendor vendor;
    cl_device_type type;
    uint32_t compute_units;
    uint32_t clock_mhz;
    uint64_t global_bytes;
    uint64_t max_alloc_bytes;    /* largest single buffer */
    uint64_t local_bytes;        /* local memory of a work-group, as kernels may use it */
    uint64_t cache_bytes;        /* last-level cache as reported; 0 unknown */
    uint32_t max_work_group;     /* items that the library launches at most */
    uint32_t compute_capability; /* NVIDIA: 10 * major + minor; else 0 */
    uint32_t subgroup_size;      /* probed; 0: none or not probed (llmk_device_list) */
    bool fp16;                   /* probed: half arithmetic compiles; false where not probed */
    bool spirv;                  /* CL_DEVICE_IL_VERSION is not empty */
    char il_version[64];
} llmk_device_info;

/* Lists every device of every platform. Writes at most `capacity` entries to `devices` (may be NULL
 * if capacity is 0) and the number that exist to `*count`. The struct_size of the first entry
 * (LLMK_INIT) says how far apart entries lie and how far each is filled; all get it. A device that
 * its driver does not describe is left out, with a line in the log. No OpenCL platform at all:
 * LLMK_OK, count 0. Errors: LLMK_INVALID_ARGUMENT, LLMK_OUT_OF_MEMORY; where no device at all can
 * be read, what that gave, as a rule LLMK_OPENCL_ERROR. */
LLMK_API llmk_status llmk_device_list(llmk_device_info *devices, size_t capacity, size_t *count);

/* All zero is the default. */
typedef struct llmk_context_options {
    size_t struct_size;
    cl_device_id device; /* NULL: LLMK_DEVICE, else the best: GPU before accelerator before CPU */
    struct _cl_context *cl_context; /* NULL: the library makes one; else it is retained and `device`
                              required, one of its devices */
    llmk_log_callback log;          /* NULL: no callback */
    void *log_user;
    llmk_log_level log_level; /* of the callback */
    const char *variant;      /* as LLMK_VARIANT, which takes precedence */
    const char *cache_dir;    /* as LLMK_CACHE, which takes precedence */
    uint32_t flags;           /* LLMK_CONTEXT_* */
} llmk_context_options;

/* Trust the kernels: no trial builds or self-tests. A kernel that does not build then fails the
 * call instead of giving way to the next variant. */
#define LLMK_CONTEXT_NO_SELFTEST 1u

typedef struct llmk_context llmk_context;

/* Creates a context on a device. `options` may be NULL. `*out` is NULL on failure.
 * Errors: LLMK_NO_DEVICE, LLMK_INVALID_ARGUMENT, LLMK_UNSUPPORTED (a newer option),
 * LLMK_OPENCL_ERROR, LLMK_DEVICE_LOST, LLMK_OUT_OF_MEMORY, LLMK_OUT_OF_DEVICE_MEMORY. */
LLMK_API llmk_status llmk_context_create(const llmk_context_options *options, llmk_context **out);

/* Frees a context; NULL is accepted. Weights, workspaces and plans hold a reference, so they may be
 * freed in any order. Enqueued work goes on: OpenCL keeps what it needs. */
LLMK_API void llmk_context_free(llmk_context *ctx);

/* The OpenCL context and device inside; not retained for the caller. */
LLMK_API cl_context llmk_context_cl_context(const llmk_context *ctx);
LLMK_API cl_device_id llmk_context_cl_device(const llmk_context *ctx);

/* Fills `info` (struct_size set by the caller through LLMK_INIT); probes the device on first use.
 * Errors: LLMK_INVALID_ARGUMENT, LLMK_DEVICE_LOST. */
LLMK_API llmk_status llmk_context_device_info(llmk_context *ctx, llmk_device_info *info);

/* What is kept on disk for this user: built programs and verdicts of self-tests. */
typedef struct llmk_cache_info {
    size_t struct_size;
    char folder[1024]; /* "" where the cache is off */
    uint64_t files;
    uint64_t bytes;
} llmk_cache_info;

/* Errors: as llmk_context_device_info. */
LLMK_API llmk_status llmk_context_cache_info(llmk_context *ctx, llmk_cache_info *info);

/* Times of one kernel of one operator call, in ns of the device's clock. */
typedef struct llmk_profile_record {
    const char *op;      /* "rmsnorm" */
    const char *variant; /* "portable" */
    const char *kernel;
    uint64_t queued_ns, submitted_ns, started_ns, ended_ns;
} llmk_profile_record;

typedef void (*llmk_profile_callback)(void *user, const llmk_profile_record *record);

/* Calls `callback` after each kernel enqueued from now on, on queues created with
 * CL_QUEUE_PROFILING_ENABLE (others are not reported), from a thread of the driver. NULL stops it:
 * kernels enqueued before may still be reported. The callback must not call the library. Errors:
 * LLMK_INVALID_ARGUMENT (ctx is NULL), LLMK_DEVICE_LOST. */
LLMK_API llmk_status llmk_context_set_profiler(llmk_context *ctx, llmk_profile_callback callback,
                                               void *user);

/* ------------------------------------------------------------------------------------------------
 * Tensors
 * --------------------------------------------------------------------------------------------- */

typedef enum llmk_dtype {
    LLMK_DTYPE_NONE = 0,
    LLMK_F32 = 1,
    LLMK_F16 = 2,
    LLMK_BF16 = 3,
    LLMK_I8 = 4,
    LLMK_I32 = 5,
    LLMK_U8 = 6,
    LLMK_U4 = 7,       /* two a byte, the lower index in the low nibble */
    LLMK_FP8_E4M3 = 8, /* numbered for later */
    LLMK_FP8_E5M2 = 9
} llmk_dtype;

typedef enum llmk_memory {
    LLMK_MEMORY_BUFFER = 0 /* a cl_mem buffer; room is left for SVM and device addresses */
} llmk_memory;

/* A view of elements in a buffer, passed by value. dim[rank-1] is the innermost dimension. Strides
 * are in elements; all zero means contiguous. A zero among others is refused where its dimension
 * has more than one element: nothing is broadcast. U4 tensors have innermost stride 1 and even
 * outer strides. The byte offset is a multiple of the element size. Sub-buffers are accepted.
 *
 * A tensor with buffer NULL and dtype LLMK_DTYPE_NONE is "absent". With a dtype it is refused, so
 * that a clCreateBuffer that failed does not pass for a tensor that was not meant; but
 * llmk_prepare() and llmk_explain() take it as it will be. */
typedef struct llmk_tensor {
    cl_mem buffer;
    uint64_t offset; /* bytes */
    llmk_dtype dtype;
    llmk_memory memory;
    uint32_t rank; /* 1 ... 4 */
    uint32_t reserved;
    uint64_t dim[4];
    uint64_t stride[4];
} llmk_tensor;

/* Bits of one element; 0 for unknown values. */
LLMK_API uint32_t llmk_dtype_bits(llmk_dtype dtype);
/* "f16"; "?" for unknown values. */
LLMK_API const char *llmk_dtype_name(llmk_dtype dtype);

/* A contiguous vector [n]. */
static inline llmk_tensor llmk_vector(cl_mem buffer, llmk_dtype dtype, uint64_t n)
{
    llmk_tensor t;
    memset(&t, 0, sizeof t);
    t.buffer = buffer;
    t.dtype = dtype;
    t.rank = 1;
    t.dim[0] = n;
    t.stride[0] = 1;
    return t;
}

/* A matrix [rows, cols] whose rows are row_stride elements apart, from a byte offset. */
static inline llmk_tensor llmk_matrix_strided(cl_mem buffer, uint64_t offset, llmk_dtype dtype,
                                              uint64_t rows, uint64_t cols, uint64_t row_stride)
{
    llmk_tensor t;
    memset(&t, 0, sizeof t);
    t.buffer = buffer;
    t.offset = offset;
    t.dtype = dtype;
    t.rank = 2;
    t.dim[0] = rows;
    t.dim[1] = cols;
    t.stride[0] = row_stride;
    t.stride[1] = 1;
    return t;
}

/* A contiguous matrix [rows, cols]. */
static inline llmk_tensor llmk_matrix(cl_mem buffer, llmk_dtype dtype, uint64_t rows, uint64_t cols)
{
    return llmk_matrix_strided(buffer, 0, dtype, rows, cols, cols);
}

/* ------------------------------------------------------------------------------------------------
 * Calling operators
 * --------------------------------------------------------------------------------------------- */

/* What an enqueued call waits for and the event that marks its end. All zero, or a NULL pointer: no
 * waiting, no event. A returned event is the caller's to release; also calls on empty tensors give
 * one. On failure *event is left as it was. */
typedef struct llmk_events {
    cl_uint num_wait;
    const cl_event *wait_list;
    cl_event *event;
} llmk_events;

/* An argument struct with struct_size set and everything else zero: usable as an initialiser's
 * right-hand side in C and in C++. */
#ifdef __cplusplus
#define LLMK_INIT(type) (llmk_init_<type>())
#else
#define LLMK_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

/* Device memory that operators use between their kernels. Belongs to one call until that call's
 * work is done: a later call on the same in-order queue is ordered behind it and legal; one on
 * another queue, or on an out-of-order queue, before it is done returns LLMK_BUSY. Calls on in-order
 * queues take no event of their own, so the first one from another queue is told LLMK_BUSY as long
 * as anything is under way on the queue before it. */
typedef struct llmk_workspace llmk_workspace;

/* Allocates `bytes` (0 is legal). The operators' llmk_<op>_workspace_size() say how many: they take
 * the arguments of the call, of which buffers may still be NULL as for llmk_prepare(), and the
 * workspace itself; `*bytes` is written on success alone. Their errors are the operator's for bad
 * arguments, LLMK_INVALID_ARGUMENT where `bytes` is NULL, and LLMK_DEVICE_LOST. Errors of this one:
 * LLMK_INVALID_ARGUMENT, LLMK_OUT_OF_MEMORY, LLMK_OUT_OF_DEVICE_MEMORY, LLMK_DEVICE_LOST,
 * LLMK_OPENCL_ERROR. */
LLMK_API llmk_status llmk_workspace_create(llmk_context *ctx, uint64_t bytes, llmk_workspace **out);
/* Frees a workspace; NULL is accepted. */
LLMK_API void llmk_workspace_free(llmk_workspace *workspace);
/* As it was made; 0 where workspace is NULL. */
LLMK_API uint64_t llmk_workspace_bytes(const llmk_workspace *workspace);

typedef enum llmk_op {
    LLMK_OP_RMSNORM = 1,
    LLMK_OP_GATED_ACTIVATION = 2,
    LLMK_OP_ADD = 3,
    LLMK_OP_QUANTIZE = 4,
    LLMK_OP_DEQUANTIZE = 5,
    LLMK_OP_ERROR_REPORT = 6,
    LLMK_OP_LINEAR = 7,
    LLMK_OP_MOE_ROUTE = 8,
    LLMK_OP_MOE_PERMUTE = 9,
    LLMK_OP_MOE_UNPERMUTE = 10,
    LLMK_OP_GROUPED_LINEAR = 11,
    LLMK_OP_MOE_FORWARD = 12,
    LLMK_OP_GATED_LINEAR = 13
} llmk_op;

/* "rmsnorm"; NULL for unknown values. The values from 1 up to the first NULL are all operators. */
LLMK_API const char *llmk_op_name(llmk_op op);

/* Builds and self-tests what the call `args` of `op` will use, so that the call itself does not
 * block. `args` points to the operator's own argument struct; buffers in its tensors may be NULL
 * where the tensor is present by its dtype. Blocks. Errors: as the operator. */
LLMK_API llmk_status llmk_prepare(llmk_context *ctx, llmk_op op, const void *args);

typedef enum llmk_verdict {
    LLMK_VERDICT_CHOSEN = 0,      /* the variant that the call uses */
    LLMK_VERDICT_ELIGIBLE = 1,    /* would serve, but a better one is chosen */
    LLMK_VERDICT_UNSUPPORTED = 2, /* device, types, shape or layout: `reason` says which */
    LLMK_VERDICT_BUILD_FAILED = 3,
    LLMK_VERDICT_SELFTEST_FAILED = 4,
    LLMK_VERDICT_OVERRIDDEN = 5 /* LLMK_VARIANT forces another */
} llmk_verdict;

typedef struct llmk_variant_info {
    const char *name;
    llmk_verdict verdict;
    char reason[248]; /* one line, "" where there is nothing to say */
    const char
        *config; /* of the chosen one: the name of its configuration; NULL: as its own rule */
} llmk_variant_info;

/* Says which variant the call `args` of `op` would use and why not the others, in order of
 * preference. Writes at most `capacity` entries and the number of variants to `*count`. Trial
 * builds and self-tests are run for variants up to the chosen one. Errors: as the operator for bad
 * `args`. */
LLMK_API llmk_status llmk_explain(llmk_context *ctx, llmk_op op, const void *args,
                                  llmk_variant_info *variants, size_t capacity, size_t *count);

/* ------------------------------------------------------------------------------------------------
 * RMSNorm, with the residual addition fused
 * --------------------------------------------------------------------------------------------- */

/*     s = x + residual                      (in f32; s = x where residual is absent)
 *     y = s * rsqrt(mean(s^2) + eps) * w    over the last dimension, H elements
 *
 * Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
 * The norm is taken of the unrounded f32 sum. */
typedef struct llmk_rmsnorm_args {
    size_t struct_size;
    llmk_tensor x;        /* [..., H], f32, f16 or bf16, H >= 1 */
    llmk_tensor weight;   /* [H], any of the three; absent: 1 */
    llmk_tensor residual; /* x's shape, any of the three; absent: 0 */
    llmk_tensor sum;      /* out: s, x's shape, any of the three; absent: not stored. In place over
                             residual or x allowed */
    llmk_tensor y;  /* out: x's shape, any of the three. In place over x or residual allowed */
    float eps;      /* >= 0; 0 means 1e-6 */
    uint32_t flags; /* LLMK_RMSNORM_* */
} llmk_rmsnorm_args;

/* Round s * rsqrt(...) to y's dtype before multiplying by the weight (Hugging Face Llama, vLLM);
 * without it there is one rounding, at the end. */
#define LLMK_RMSNORM_DOUBLE_ROUNDING 1u
/* Multiply by (1 + w), the sum taken in f32 (Gemma). */
#define LLMK_RMSNORM_WEIGHT_PLUS_ONE 2u
/* eps = 0 is meant literally. */
#define LLMK_RMSNORM_EPS_ZERO 4u

/* Errors: LLMK_INVALID_*, LLMK_BUFFER_TOO_SMALL, LLMK_OVERLAP, LLMK_UNSUPPORTED (a field of a newer
 * version), LLMK_NO_VARIANT, LLMK_BUILD_FAILED, LLMK_SELFTEST_FAILED, LLMK_OUT_OF_MEMORY,
 * LLMK_OUT_OF_DEVICE_MEMORY, LLMK_DEVICE_LOST, LLMK_OPENCL_ERROR; LLMK_IO_ERROR only where
 * LLMK_KERNEL_PATH names a folder that lacks a kernel. `sum` without `residual` is legal (a copy of
 * x). */
LLMK_API llmk_status llmk_rmsnorm(llmk_context *ctx, cl_command_queue queue,
                                  const llmk_rmsnorm_args *args, const llmk_events *events);

/* ------------------------------------------------------------------------------------------------
 * Gated activations: SwiGLU and kin
 * --------------------------------------------------------------------------------------------- */

typedef enum llmk_activation {
    LLMK_ACTIVATION_NONE = 0,
    LLMK_SILU = 1,           /* g / (1 + exp(-g)) */
    LLMK_GELU_ERF = 2,       /* g/2 (1 + erf(g / sqrt 2)) */
    LLMK_GELU_TANH = 3,      /* g/2 (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) */
    LLMK_RELU2 = 4,          /* max(g, 0)^2 */
    LLMK_SWIGLU_CLAMPED = 5, /* gpt-oss: g = min(g, limit), u = clamp(u, -limit, limit);
                                y = (u + 1) g sigmoid(alpha g) */
} llmk_activation;

typedef enum llmk_gate_layout {
    LLMK_GATE_SPLIT = 0,      /* gate [..., D] and up [..., D] are two tensors */
    LLMK_GATE_PACKED = 1,     /* one tensor [..., 2D]: gate first, up after it */
    LLMK_GATE_INTERLEAVED = 2 /* one tensor [..., 2D]: gate at even, up at odd positions */
} llmk_gate_layout;

/*     y = activation(gate + gate_bias) * (up + up_bias)     elementwise, in f32, rounded to y's
 *                                                           dtype at the end
 *
 * A finite gate gives no NaN with a finite up, except where the square of LLMK_RELU2 overflows and
 * up is 0. A NaN in gate or up gives NaN: the clamps keep it. A gate of -infinity
 * gives NaN, -infinity times 0, but 0 with LLMK_RELU2 (times up); one of +infinity counts as the
 * limit with LLMK_SWIGLU_CLAMPED, and gives an infinity elsewhere, or NaN where up is 0.
 *
 * Shazeer, "GLU Variants Improve Transformer", 2020. */
typedef struct llmk_gated_activation_args {
    size_t struct_size;
    llmk_activation activation; /* one of LLMK_SILU ... LLMK_SWIGLU_CLAMPED */
    llmk_gate_layout layout;
    llmk_tensor gate; /* [..., D], or [..., 2D] where packed or interleaved; f32, f16, bf16 */
    llmk_tensor up;   /* split: gate's shape and dtype; else absent */
    llmk_tensor
        gate_bias;       /* [D] ([2D], arranged as gate, where packed or interleaved); absent: 0 */
    llmk_tensor up_bias; /* [D]; split only; absent: 0 */
    llmk_tensor y;       /* out: [..., D]. Split: in place over gate or up allowed */
    float limit;         /* LLMK_SWIGLU_CLAMPED: > 0; 0 means 7 */
    float alpha;         /* LLMK_SWIGLU_CLAMPED: > 0; 0 means 1.702 */
    uint32_t flags;      /* none yet: 0 */
} llmk_gated_activation_args;

/* Errors: as llmk_rmsnorm. */
LLMK_API llmk_status llmk_gated_activation(llmk_context *ctx, cl_command_queue queue,
                                           const llmk_gated_activation_args *args,
                                           const llmk_events *events);

/* ------------------------------------------------------------------------------------------------
 * Addition
 * --------------------------------------------------------------------------------------------- */

/*     y = a + b     elementwise; rounded to f32, then to y's dtype */
typedef struct llmk_add_args {
    size_t struct_size;
    llmk_tensor a;  /* any shape; f32, f16 or bf16 */
    llmk_tensor b;  /* a's shape, any of the three */
    llmk_tensor y;  /* out: a's shape, any of the three. In place over a or b allowed */
    uint32_t flags; /* none yet: 0 */
} llmk_add_args;

/* Errors: as llmk_rmsnorm. */
LLMK_API llmk_status llmk_add(llmk_context *ctx, cl_command_queue queue, const llmk_add_args *args,
                              const llmk_events *events);

/* ------------------------------------------------------------------------------------------------
 * Quantisation utilities
 * --------------------------------------------------------------------------------------------- */

/* Rounding is to nearest, ties to even. A group (tensor, channel) of zeros gets scale 1; so does
 * one whose magnitudes are all below 2^-100, and no scale is less than 2^-100: scales and their
 * inverses are finite, normal numbers. NaN quantises to the code of zero and infinities saturate;
 * neither disturbs its group's scale: the range is taken over the finite values. In f32, scale =
 * max|x| * (1/127) and code = rint(x * (1/scale)), each operation rounded to nearest;
 * docs/numerics-quant.md has the rest. */
typedef enum llmk_quant_scheme {
    LLMK_QUANT_NONE = 0,
    LLMK_QUANT_INT8_TENSOR = 1,    /* scale = max|x| / 127, one for the tensor; q in [-127, 127] */
    LLMK_QUANT_INT8_CHANNEL = 2,   /* the same, one for each row */
    LLMK_QUANT_INT4_SYMMETRIC = 3, /* groups along the row: scale = max|x| / 7; stored code
                                      clamp(round(x / scale), -8, 7) + 8 */
    LLMK_QUANT_INT4_ASYMMETRIC = 4 /* range [min(x, 0), max(x, 0)]: scale = range / 15,
                                      zero = clamp(round(-min / scale), 0, 15),
                                      code = clamp(round(x / scale) + zero, 0, 15) */
} llmk_quant_scheme;

/* x [N, K] to codes and scales. Dequantised: (q - zero) * scale. G = ceil(K / group_size). */
typedef struct llmk_quantize_args {
    size_t struct_size;
    llmk_quant_scheme scheme;
    uint64_t group_size;       /* int4: along K, even, 0 means K; int8: 0 */
    llmk_tensor x;             /* [N, K], f32, f16 or bf16 */
    llmk_tensor q;             /* out: [N, K], i8, or u4 for the int4 schemes (K even) */
    llmk_tensor scale;         /* out: f32, [1], [N] or [N, G] by scheme */
    llmk_tensor zero;          /* out: u8 [N, G], LLMK_QUANT_INT4_ASYMMETRIC only; else absent */
    llmk_workspace *workspace; /* LLMK_QUANT_INT8_TENSOR; else may be NULL */
    uint32_t flags;            /* none yet: 0 */
} llmk_quantize_args;

/* Bytes of workspace that the call needs; 0 where none. */
LLMK_API llmk_status llmk_quantize_workspace_size(llmk_context *ctx, const llmk_quantize_args *args,
                                                  uint64_t *bytes);
/* Errors: as llmk_rmsnorm, and LLMK_BUSY. */
LLMK_API llmk_status llmk_quantize(llmk_context *ctx, cl_command_queue queue,
                                   const llmk_quantize_args *args, const llmk_events *events);

/* The inverse: y = (q - zero) * scale, rounded to f32, then to y's dtype. Tensors as in
 * llmk_quantize_args. */
typedef struct llmk_dequantize_args {
    size_t struct_size;
    llmk_quant_scheme scheme;
    uint64_t group_size;
    llmk_tensor q;
    llmk_tensor scale;
    llmk_tensor zero;
    llmk_tensor y;  /* out: [N, K], f32, f16 or bf16 */
    uint32_t flags; /* none yet: 0 */
} llmk_dequantize_args;

/* Errors: as llmk_rmsnorm. */
LLMK_API llmk_status llmk_dequantize(llmk_context *ctx, cl_command_queue queue,
                                     const llmk_dequantize_args *args, const llmk_events *events);

/* How far an approximation is from its reference. Elements where the reference is not finite are
 * left out; `count` says how many were compared. Where only the approximation is not finite, or
 * a - r is beyond the largest f32, the error is infinite, and with it max_abs, mean_abs and
 * -snr_db, and mean_rel where such an r counts there. Nothing to compare: all zero, snr_db +inf. */
typedef struct llmk_error_stats {
    float max_abs;  /* max |a - r| */
    float mean_abs; /* mean |a - r| */
    float mean_rel; /* mean |a - r| / |r| where |r| > 0.1 max|r| */
    float snr_db;   /* 10 log10(sum r^2 / sum (a - r)^2); +inf where equal, else -inf where r = 0 */
    float count;
    float reserved[3];
} llmk_error_stats;

typedef struct llmk_error_report_args {
    size_t struct_size;
    llmk_tensor reference;     /* any shape; f32, f16 or bf16 */
    llmk_tensor approximation; /* reference's shape, any of the three */
    llmk_tensor report;        /* out: f32 [8], an llmk_error_stats */
    llmk_workspace *workspace; /* llmk_error_report_workspace_size() bytes */
    uint32_t flags;            /* none yet: 0 */
} llmk_error_report_args;

/* Bytes of workspace that the call needs, whatever the tensors: some tens of KiB at most. */
LLMK_API llmk_status llmk_error_report_workspace_size(llmk_context *ctx,
                                                      const llmk_error_report_args *args,
                                                      uint64_t *bytes);
/* Writes a report of empty tensors too. Errors: as llmk_quantize. */
LLMK_API llmk_status llmk_error_report(llmk_context *ctx, cl_command_queue queue,
                                       const llmk_error_report_args *args,
                                       const llmk_events *events);

/* The same three on the host, on contiguous arrays, f32 [N, K]. They give the codes that the device
 * gives, except where x / scale lies within an f32 rounding of a tie. `zero` may be NULL except for
 * LLMK_QUANT_INT4_ASYMMETRIC. Errors: LLMK_INVALID_ARGUMENT, LLMK_INVALID_SHAPE. */
LLMK_API llmk_status llmk_quantize_host(llmk_quant_scheme scheme, uint64_t n, uint64_t k,
                                        uint64_t group_size, const float *x, void *q, float *scale,
                                        uint8_t *zero);
LLMK_API llmk_status llmk_dequantize_host(llmk_quant_scheme scheme, uint64_t n, uint64_t k,
                                          uint64_t group_size, const void *q, const float *scale,
                                          const uint8_t *zero, float *y);
LLMK_API llmk_status llmk_error_report_host(uint64_t count, const float *reference,
                                            const float *approximation, llmk_error_stats *stats);

/* ------------------------------------------------------------------------------------------------
 * The rest: weights and linear layers; mixtures of experts
 * --------------------------------------------------------------------------------------------- */

#include "llmk_linear.h"
#include "llmk_moe.h"

#ifdef __cplusplus
} /* extern "C" */

template <typename T> static inline T llmk_init_()
{
    T t;
    memset(&t, 0, sizeof t);
    t.struct_size = sizeof t;
    return t;
}
#endif

#endif /* LLMK_LLMK_H */
