/*
 * case.h - one description of a problem for tests, llmk-bench and llmk-info.
 *
 * A case is an operator and a line of text, "rmsnorm rows=5 h=111 x=bf16 w=f32"; the text is what
 * the tables hold, what the command line takes and what a failure prints. An operator's case file
 * (tests/cases/<op>_cases.c) supplies the fields of its line, a table of lines, and a `prepare`
 * that declares tensors, fills the library's args and computes the reference in f64. Everything
 * else - buffers, canaries, poison, rotation, checking - is here and the same for all operators.
 */
#ifndef LLMK_CASE_H
#define LLMK_CASE_H

#include <llmk/llmk.h>
#include <stdio.h>

typedef enum case_field_kind {
    CASE_U64,   /* "h=4096" */
    CASE_FLOAT, /* "eps=1e-5" */
    CASE_FLAG,  /* "sum" or "sum=1"; printed only where set */
    CASE_ENUM   /* one of `names`, NULL-terminated; value = index (unnamed indices: "") */
} case_field_kind;

typedef struct case_field {
    const char *name;
    case_field_kind kind;
    double fallback;          /* the value where the line says nothing */
    const char *const *names; /* CASE_ENUM */
    const char *help;
} case_field;

#define CASE_MAX_FIELDS 32

/* Names of dtypes as a CASE_ENUM, index = llmk_dtype; "none" is 0. */
extern const char *const case_dtype_names[];
/* The same for what is f32, f16 or bf16; and for what may be absent as well. */
extern const char *const case_float_names[], *const case_float_or_none_names[];

typedef struct case_op case_op;

/* A parsed line. Values are doubles (exact up to 2^53) in the order of op->fields. */
typedef struct case_line {
    const case_op *op;
    double value[CASE_MAX_FIELDS];
} case_line;

/* Parses "op key=value ...". On failure returns false with a sentence in error. */
bool case_parse(const char *text, case_line *line, char *error, size_t error_size);
/* The same without the operator's name, as in the tables. */
bool case_parse_fields(const case_op *op, const char *text, case_line *line, char *error,
                       size_t error_size);
/* The shortest text that parses to the same line. */
void case_print(const case_line *line, char *text, size_t size);
double case_get(const case_line *line, const char *field); /* aborts on an unknown name: a bug */
uint64_t case_u64(const case_line *line, const char *field);
bool case_flag(const case_line *line, const char *field);
llmk_dtype case_dtype(const case_line *line, const char *field);

typedef enum case_tier { CASE_QUICK = 0, CASE_FULL = 1 } case_tier;

typedef struct case_entry {
    const char *text; /* without the operator's name */
    case_tier tier;
} case_entry;

/* ---- A case made concrete on a device ---- */

typedef struct case_run case_run;

/* What it is made for. The numbers of timed inputs are those of models: power, and so the clocks of
 * matrix units, depend on them (docs/benchmarking.md). */
typedef enum case_purpose {
    CASE_TO_CHECK, /* numbers that show mistakes, and the f64 reference */
    CASE_TO_TIME,  /* numbers as they occur, no reference */
    CASE_TO_TUNE   /* those numbers, and the reference of a sample of the outputs */
} case_purpose;

/* Sizes in a line may be anything. What overflows stays at UINT64_MAX, which nothing can hold. */
static inline uint64_t case_times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static inline uint64_t case_plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

typedef enum case_role { CASE_INPUT, CASE_OUTPUT, CASE_INOUT } case_role;

/* How inputs are filled: seeded, reproducible on every host. */
typedef enum case_fill {
    CASE_UNIFORM, /* uniform in [-scale, scale]; as they occur, CASE_NORMAL */
    CASE_NORMAL,  /* standard normal times scale */
    CASE_ZERO,
    CASE_CODES /* uniform integers over the dtype's range */
} case_fill;

/* One tensor of the case. `values` holds what is stored, after rounding to dtype, row-major and
 * without strides, as double (small integer codes too); in for inputs, the expected result for
 * outputs. `bound` is the allowed |error| of each output element (NULL: exact, NaN matches NaN). */
typedef struct case_tensor {
    const char *name;
    case_role role;
    llmk_dtype dtype;
    uint32_t rank;
    uint64_t dim[4];
    uint64_t stride[4]; /* elements; all zero: contiguous */
    uint64_t pad;       /* elements by which the tensor starts past its guard, to break alignment */
    uint64_t count;
    double *values;
    double *bound;
    llmk_tensor *slot; /* where in the args struct the device tensor goes, set for every call */
} case_tensor;

/* Declares tensors, in `prepare`. The returned pointer lives as long as the run. `slot` is a member
 * of the args given to `prepare`, or NULL. A dimension may be anything: case_declared refuses. */
case_tensor *case_add_tensor(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                             uint32_t rank, const uint64_t *dim, llmk_tensor *slot);
/* Row stride for the second-last dimension. No effect on vectors. */
void case_set_row_stride(case_tensor *t, uint64_t stride);
/* Declares memory that `prepare` will take with case_alloc for what is no tensor, and how much of
 * the device its like will take. */
void case_reserve(case_run *run, const char *name, uint64_t host_bytes, uint64_t device_bytes);
/* Ends the declarations: to be called by `prepare`, which gives up where it is false. What would
 * not fit the host or the device has then been refused, before anything was allocated or filled.
 * From here on an input's values[] are there, all zero, and may be written directly (keep to what
 * the dtype can store, see case_round). */
bool case_declared(case_run *run);
void case_fill_values(case_run *run, case_tensor *t, case_fill fill, double scale, uint32_t seed);
/* values[] of an output: what the reference computes. bound[] likewise, where not exact. */
double *case_expect(case_run *run, case_tensor *t);
double *case_bound(case_run *run, case_tensor *t);
/* Declares that output `t` lives in the same memory as `other`, an input (in place): `other`
 * becomes CASE_INOUT, its canaries still hold, and it is filled anew before every checked run. */
void case_in_place(case_run *run, case_tensor *t, case_tensor *other);
/* Zeroed memory that lives as long as the run. Never NULL: where there is none, `prepare` (or
 * `prepare_set`) does not go on, and the case is refused. */
void *case_alloc(case_run *run, size_t bytes);
/* One pointer that `prepare` leaves for `prepare_set`. */
void case_keep(case_run *run, void *object);
void *case_kept(case_run *run);
/* Registers a cleanup (weights, workspaces). */
void case_cleanup(case_run *run, void (*free_fn)(void *), void *object);
/* For `prepare_set`: a workspace of the size that the operator's function said, with the status
 * that it returned; released with the run. */
bool case_workspace(case_run *run, llmk_status status, uint64_t bytes, llmk_workspace **workspace);
llmk_context *case_context(case_run *run);
const case_line *case_run_line(case_run *run);
/* true: the device is only timed; skip computing the reference (values of outputs stay unset). */
bool case_timing_only(case_run *run);
/* Whether numbers are as they occur, rather than such as show mistakes. */
bool case_as_they_occur(case_run *run);
/* Whether a sample of large outputs will do: others have an infinite bound. */
bool case_samples(case_run *run);
/* A tensor whose device memory a caller-made object holds (weights): counted in bytes, not made.
 * Calls from `prepare_set` count for set 0 only, so that bytes are those of one call. */
void case_count_bytes(case_run *run, uint64_t bytes_read, uint64_t bytes_written);

struct case_op {
    const char *name;
    llmk_op op;
    size_t args_size;
    const case_field *fields;
    size_t field_count;
    const case_entry *entries;
    size_t entry_count;
    /* Fills `args` (zeroed, struct_size set), declares tensors, and after case_declared fills the
     * inputs and computes the reference. Refuses a line that makes no sense with a sentence through
     * case_refuse. */
    bool (*prepare)(case_run *run, const case_line *line, void *args);
    /* The public function. */
    llmk_status (*call)(llmk_context *ctx, cl_command_queue queue, const void *args,
                        const llmk_events *events);
    /* Useful operations of the case, for the roofline; bytes follow from the tensors. */
    double (*flops)(const case_line *line);
    /* Where the args hold objects that rotate with the sets (weights): makes those of one set.
     * Called after `prepare` for every set, 0 included, on that set's own copy of the args, in
     * which the tensors are already real. NULL otherwise. */
    bool (*prepare_set)(case_run *run, const case_line *line, void *args, size_t set);
};

/* Ends a case file: `const case_op case_op_NAME`, made of the file's `fields`, `entries`, `prepare`
 * and `flops`, and a call of llmk_NAME. `set`: its prepare_set, or NULL. */
#define CASE_OP(op_name, op_id, set)                                                               \
    static llmk_status call(llmk_context *ctx, cl_command_queue queue, const void *args,           \
                            const llmk_events *events)                                             \
    {                                                                                              \
        return llmk_##op_name(ctx, queue, args, events);                                           \
    }                                                                                              \
    const case_op case_op_##op_name = {                                                            \
        .name = #op_name,                                                                          \
        .op = op_id,                                                                               \
        .args_size = sizeof(llmk_##op_name##_args),                                                \
        .fields = fields,                                                                          \
        .field_count = sizeof fields / sizeof *fields,                                             \
        .entries = entries,                                                                        \
        .entry_count = sizeof entries / sizeof *entries,                                           \
        .prepare = prepare,                                                                        \
        .call = call,                                                                              \
        .flops = flops,                                                                            \
        .prepare_set = set,                                                                        \
    }

/* Refuses in `prepare` or `prepare_set`, with a sentence; returns false. case_skip is for a line
 * that makes sense, but not on this device (too little memory): tests count it as skipped. */
bool case_refuse(case_run *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool case_skip(case_run *run, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether the sentence that case_run_new gave is case_skip's. */
bool case_is_skip(const char *error);

extern const case_op *const case_ops[]; /* NULL-terminated (case_ops.c) */
const case_op *case_op_find(const char *name);

/* An in-order queue on the context's device, released with clReleaseCommandQueue; NULL on failure.
 */
cl_command_queue case_queue_new(llmk_context *ctx);

/* Makes the case on a context: host values, reference, `sets` sets of device buffers. On failure
 * returns NULL and a sentence. */
case_run *case_run_new(llmk_context *ctx, cl_command_queue queue, const case_line *line,
                       size_t sets, case_purpose purpose, char *error, size_t error_size);
void case_run_free(case_run *run);
/* Whether case_run_new would take the case, as far as its line, the host's and the device's memory
 * tell: nothing is allocated. False with the same sentence. */
bool case_possible(llmk_context *ctx, const case_line *line, case_purpose purpose, char *error,
                   size_t error_size);
/* Adds sets until there are `sets`; false with a sentence where there is no memory for them, the
 * run being then good for case_run_free only. Knowing case_run_set_bytes() of one set, a caller can
 * choose how many it wants. */
bool case_run_grow(case_run *run, size_t sets, char *error, size_t error_size);
/* Enqueues the operator on one set. */
llmk_status case_run_enqueue(case_run *run, size_t set, const llmk_events *events);
/* The args of a set, as the operator gets them. */
const void *case_run_args(const case_run *run, size_t set);
/* True bytes of one call: each tensor once. */
uint64_t case_run_bytes_read(const case_run *run);
uint64_t case_run_bytes_written(const case_run *run);
/* Bytes of one set, weights included: for choosing how many sets to rotate. */
uint64_t case_run_set_bytes(const case_run *run);

typedef struct case_result {
    bool ok;
    double nmse;       /* normalised mean squared error over all outputs with a bound */
    double worst;      /* largest |error| / bound: at most 1 where ok */
    char message[512]; /* which element of which tensor, got, expected, bound; or which canary */
} case_result;

/* Poisons the outputs of set 0 with NaN (integers with the complement of what is expected), runs,
 * and checks every output element against its bound, the canaries around and between rows, and that
 * inputs are unchanged. Not for timing-only runs. */
case_result case_run_check(case_run *run);

/* For testing the tools that use this: makes every call of the run take as long as several, or
 * spoil an output, or write just outside of one. */
typedef enum case_sabotage { CASE_HONEST, CASE_SLOW, CASE_WRONG, CASE_OUTSIDE } case_sabotage;
void case_run_sabotage(case_run *run, case_sabotage how);

/* Unit roundoff of a dtype: half an ulp, relative. */
double case_epsilon(llmk_dtype dtype);
/* |error| from rounding `value` once to dtype, half of its ulp there, subnormals included. */
double case_rounding(llmk_dtype dtype, double value);
/* The value after a round trip through dtype: to nearest even; integers saturate. */
double case_round(llmk_dtype dtype, double value);

#endif
