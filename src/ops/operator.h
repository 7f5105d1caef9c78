/*
 * operator.h - what an operator is made of. An operator is one file here and one folder under cl/:
 * a check that turns the caller's args into a problem, a table of variants in order of preference
 * ending in `ref`, a key that says which problems share a verdict, and a self-test.
 * docs/adding-an-operator.md walks through one.
 */
#ifndef LLMK_OPERATOR_H
#define LLMK_OPERATOR_H

#include "core/core.h"
#include "core/tensor.h"
#include "core/tuning.h"

/* A way to run a variant, by name: what a tuned row or LLMK_VARIANT=op:variant@name asks for. It
 * serves every problem that the variant does, unless the operator's config_fits says otherwise. */
typedef struct llmk_config {
    const char *variant, *name;
    uint32_t value[3]; /* what the variant's launch makes of them */
    /* What a work-group needs of the device; 0: no more than the variant itself. */
    uint32_t items, local_bytes;
} llmk_config;

/* ---- Launching (launch.c) ---- */

/* One call of one operator on its way to the queue. */
typedef struct llmk_launch {
    llmk_context *ctx;
    cl_command_queue queue;
    const llmk_events *events;
    const char *op, *variant;
    const llmk_config *config; /* NULL: the variant's own rule */
    bool dry; /* llmk_prepare: build everything, enqueue nothing; buffers may be NULL */
    bool in_order;
    bool want_event;
    bool profile;
    unsigned enqueued;
    bool gave_up;  /* an operator within has lost a variant, so this one keeps its own */
    cl_event last; /* of the last kernel, where anybody needs it */
} llmk_launch;

/* A kernel being set up. Errors are sticky and come out of llmk_kernel_enqueue. */
typedef struct llmk_kernel {
    llmk_launch *launch;
    llmk_program *program;
    const char *name;
    llmk_kernel_object *object;
    cl_uint arg;
    size_t value; /* where the next argument's value is in object->values */
    llmk_status status;
} llmk_kernel;

/* Kernel `name` of cl/`file` built with `defines` (the spelling of cl/manifest.txt). */
llmk_kernel llmk_kernel_open(llmk_launch *launch, const char *file, const char *defines,
                             const char *name);
/* Arguments, in the kernel's order. */
void llmk_arg_view(llmk_kernel *k, const llmk_view *view); /* buffer, then its llmk_rows; absent:
                                                              NULL and one row at 0 */
void llmk_arg_buffer(llmk_kernel *k, cl_mem buffer);       /* may be NULL */
void llmk_arg_u64(llmk_kernel *k, uint64_t value);         /* ulong */
void llmk_arg_u32(llmk_kernel *k, uint32_t value);         /* uint */
void llmk_arg_f32(llmk_kernel *k, float value);
void llmk_arg_local(llmk_kernel *k, size_t bytes);
/* Work-groups along each dimension and items in a group; gives the kernel object back. */
llmk_status llmk_kernel_enqueue(llmk_kernel *k, const size_t groups[3], const size_t local[3]);

/* ---- Variants and selection (select.c) ---- */

typedef struct llmk_variant {
    const char *name;
    /* Steps one and two of the selection: vendor, device, features, types, shape. May probe. */
    bool (*supports)(llmk_context *ctx, const void *problem, llmk_reason *why);
    /* Enqueues the kernels. Called on problems it supports, and never on empty ones. */
    llmk_status (*launch)(llmk_launch *launch, const void *problem);
} llmk_variant;

/* For variants that take every problem on any device. */
bool llmk_any_supported(llmk_context *ctx, const void *problem, llmk_reason *why);

/* A variant, and how it is to run; config NULL: as its own rule has it. */
typedef struct llmk_choice {
    const llmk_variant *variant;
    const llmk_config *config;
} llmk_choice;

/* Whether LLMK_VARIANT or the option of that name forces this one. */
bool llmk_variant_is_forced(const llmk_context *ctx, const char *op, const char *name);

typedef struct llmk_trial llmk_trial;

llmk_verdicts *llmk_verdicts_new(void);
void llmk_verdicts_free(llmk_verdicts *verdicts);
/* That "op:name,..." or "op:name@config,..." (may be NULL) names what exists. `from`: where it was
 * given, for the sentence. */
llmk_status llmk_check_forced_variants(const char *text, const char *from);

typedef struct llmk_operator {
    llmk_op id;
    const char *name;
    size_t problem_size; /* at most LLMK_PROBLEM_SIZE */
    /* Turns args into a problem, checking everything. dry: buffers may be NULL. */
    llmk_status (*check)(llmk_context *ctx, const void *args, bool dry, void *problem);
    bool (*is_empty)(const void *problem); /* nothing to do */
    const llmk_variant *variants;          /* in order of preference; `ref` last */
    size_t variant_count;
    /* What a verdict depends on besides the variant: types and options, not shapes: "x=f16 y=f16".
     */
    void (*key)(const void *problem, char *key, size_t size);
    /* Step four: runs `t`'s variant on small problems of the same key; LLMK_SELFTEST_FAILED with a
     * sentence where it is wrong. */
    llmk_status (*self_test)(llmk_trial *t, const void *problem);
    /* The workspace that the problem uses, or NULL; the member itself may be NULL. */
    llmk_workspace *(*workspace)(const void *problem);
    /* How much of one it needs; absent where none. */
    uint64_t (*workspace_bytes)(const void *problem);

    /* What can be tuned (docs/tuning.md); all may be absent. */
    const char *const *size_names; /* of what decides how fast a variant is; NULL: nothing is */
    /* Those sizes; false where the choice is not to depend on them. */
    bool (*sizes)(const void *problem, uint64_t sizes[LLMK_TUNING_SIZES]);
    const llmk_config *configs;
    size_t config_count;
    bool (*config_fits)(const llmk_context *ctx, const void *problem, const llmk_config *config,
                        llmk_reason *why);
} llmk_operator;

#define LLMK_PROBLEM_SIZE 2048

/* The operators by llmk_op; NULL for unknown values. */
const llmk_operator *llmk_operator_get(llmk_op op);
const llmk_operator *llmk_operator_named(const char *name); /* or NULL */
/* The choice "variant" or "variant@config" of an operator; false where it has no such. */
bool llmk_choice_parse(const llmk_operator *op, const char *text, llmk_choice *choice);
/* The same text. */
void llmk_choice_print(const llmk_choice *choice, char *text, size_t size);
/* Whether the device can run work-groups of the configuration's (NULL: can). */
bool llmk_config_runs(const llmk_context *ctx, const llmk_config *config, llmk_reason *why);
/* Forces variants from the next call on; for tools and tests, while no call is made. */
llmk_status llmk_context_force(llmk_context *ctx, const char *text);
extern const llmk_operator llmk_operator_rmsnorm, llmk_operator_gated_activation, llmk_operator_add,
    llmk_operator_quantize, llmk_operator_dequantize, llmk_operator_error_report,
    llmk_operator_linear, llmk_operator_moe_route, llmk_operator_moe_permute,
    llmk_operator_moe_unpermute, llmk_operator_grouped_linear, llmk_operator_moe_forward,
    llmk_operator_gated_linear;

/* The whole of a public operator function: check, select, launch. */
llmk_status llmk_operate(const llmk_operator *op, llmk_context *ctx, cl_command_queue queue,
                         const void *args, const llmk_events *events);

/* The whole of a public llmk_<op>_workspace_size. */
llmk_status llmk_operate_workspace_size(const llmk_operator *op, llmk_context *ctx,
                                        const void *args, uint64_t *bytes);

/* For operators made of others: selects a variant of `op` for a checked problem, and enqueues its
 * kernels as part of `launch`. */
llmk_status llmk_operate_within(llmk_launch *launch, const llmk_operator *op, const void *problem);

/* Runs one variant, without selection, on checked and non-empty problems. */
llmk_status llmk_launch_variant(const llmk_operator *op, llmk_choice choice, llmk_context *ctx,
                                cl_command_queue queue, const void *problem,
                                const llmk_events *events, bool dry);

/* ---- Self-tests (trial.c) ---- */

/* A variant under test, in the trial context. Steps are sticky as a checker's are; the driver frees
 * what was made. */
struct llmk_trial {
    llmk_context *ctx; /* the trial context */
    cl_command_queue queue;
    const llmk_operator *op;
    const llmk_variant *variant;
    const llmk_config *config;
    bool config_ran; /* on a problem that it serves */
    llmk_status status;
    size_t buffer_count, host_count;
    cl_mem buffers[48];
    void *hosts[192];
};

/* Runs `op`'s self-test of a choice in a context of its own kind; the status and the error text
 * say how it went. `*ran` is false where it did not come to that. Hold ctx->trial_lock. */
llmk_status llmk_trial_of(llmk_context *ctx, const llmk_operator *op, llmk_choice choice,
                          const void *problem, bool *ran);

/* A matrix of seeded values uniform in [-scale, scale], rounded to dtype (floats only). `*host`
 * (where not NULL) gets the rounded values; they live as long as the trial. */
llmk_tensor llmk_trial_input(llmk_trial *t, llmk_dtype dtype, uint64_t rows, uint64_t cols,
                             uint32_t seed, float scale, const float **host);
/* A buffer with a copy of `bytes` bytes of data. */
cl_mem llmk_trial_buffer(llmk_trial *t, const void *data, size_t bytes);
/* A matrix of NaN (of 0xff bytes, for integers). */
llmk_tensor llmk_trial_output(llmk_trial *t, llmk_dtype dtype, uint64_t rows, uint64_t cols);
/* Scratch memory of the trial for expected values. */
double *llmk_trial_doubles(llmk_trial *t, size_t count);
/* Runs the variant under test on `args` and waits; in its configuration, where that serves them. */
void llmk_trial_run(llmk_trial *t, const void *args);
/* |tensor - expected| <= atol + (rtol + epsilon of its dtype) * |expected|, everywhere; NaN where
 * NaN is expected. */
void llmk_trial_compare(llmk_trial *t, const char *name, const llmk_tensor *tensor,
                        const double *expected, double rtol, double atol);

/* ---- Workspaces (workspace.c) ---- */

#define LLMK_WORKSPACE_COUNTS 8192u

struct llmk_workspace {
    llmk_context *ctx;
    uint64_t bytes;
    cl_mem buffer;
    cl_mem counts; /* LLMK_WORKSPACE_COUNTS of 32 bits, 0 between kernels */
    pthread_mutex_t lock;
    cl_command_queue queue; /* of the last call; retained */
    cl_event last;          /* of it, or NULL: that is asked for when another queue comes */
};

/* Claims `w` (may be NULL) for a call: LLMK_BUSY if an unfinished call elsewhere has it. After
 * LLMK_OK the caller must end the claim, with how many kernels were enqueued and the last one's
 * event, which on in-order queues may be NULL. */
llmk_status llmk_workspace_begin(llmk_workspace *w, cl_command_queue queue, bool in_order);
void llmk_workspace_end(llmk_workspace *w, cl_command_queue queue, unsigned enqueued,
                        cl_event event);

/* A checker's step: present, of this context, and at least `bytes` long. */
void llmk_check_workspace(llmk_checker *c, const llmk_workspace *workspace, uint64_t bytes);

#endif
