/*
 * tensor.h - checking an operator's arguments, once, before anything is enqueued.
 *
 * A checker is sticky: after the first failure the rest does nothing, so an operator's check is a
 * list of statements with one return at the end.
 */
#ifndef LLMK_TENSOR_H
#define LLMK_TENSOR_H

#include "core/core.h"

/* Sets of dtypes. */
#define LLMK_BIT(dtype) (1u << (dtype))
#define LLMK_FLOATS     (LLMK_BIT(LLMK_F32) | LLMK_BIT(LLMK_F16) | LLMK_BIT(LLMK_BF16))

/* Where row r, column c of a tensor lies, in elements:
 *     offset + i0*s0 + i1*s1 + i2*s2 + c*inner   with r = (i0*n1 + i1)*n2 + i2
 * The same struct is in cl/common/rows.clh; kernels take it by value. */
typedef struct llmk_rows {
    cl_ulong offset, n1, n2, s0, s1, s2, inner;
} llmk_rows;

/* A checked tensor, folded to rows x cols. */
typedef struct llmk_view {
    bool present;
    bool unit;   /* innermost stride 1; so it is where there is but one column */
    bool simple; /* one row stride: rows.n1 == rows.n2 == 1 */
    uint32_t
        align; /* largest power of two, at most 256, that divides the byte address of every row */
    uint32_t first_align; /* that of the first row alone */
    cl_mem buffer;        /* NULL in a dry run */
    llmk_dtype dtype;
    uint64_t count; /* elements: rows * cols */
    uint64_t nrows, ncols;
    uint32_t rank;
    uint64_t dim[4];
    llmk_rows rows;
    /* The bytes touched, in the root buffer; begin == end where empty. */
    cl_mem root;
    uint64_t begin, end;
} llmk_view;

/* For kernels: LLMK_DTYPE_NONE where it is absent. */
static inline uint32_t llmk_view_dtype(const llmk_view *view)
{
    return view->present ? (uint32_t)view->dtype : LLMK_DTYPE_NONE;
}

/* What OpenCL says of a memory object. */
typedef struct llmk_buffer {
    bool is_buffer; /* false: nothing else is known */
    cl_context owner;
    cl_mem_flags flags;
    size_t size;
    cl_mem parent; /* of a sub-buffer, which begins at `base` of it */
    size_t base;
    const void *host_pointer; /* on CPUs, of CL_MEM_USE_HOST_PTR */
} llmk_buffer;

/* Errors: the driver's. */
llmk_status llmk_buffer_query(llmk_context *ctx, cl_mem buffer, llmk_buffer *b);

typedef enum llmk_role { LLMK_INPUT = 0, LLMK_OUTPUT = 1 } llmk_role;

#define LLMK_MAX_VIEWS 16

typedef struct llmk_checker {
    llmk_context *ctx;
    const char *op;
    bool dry; /* llmk_prepare, llmk_explain: buffers may be NULL */
    llmk_status status;
    size_t count;
    struct {
        const char *name;
        const llmk_view *view;
        llmk_role role;
    } views[LLMK_MAX_VIEWS];
    size_t pairs;
    const llmk_view *pair[LLMK_MAX_VIEWS][2];
} llmk_checker;

llmk_checker llmk_check_begin(llmk_context *ctx, const char *op, bool dry);

/* Copies the caller's struct, of any version, to `local` of `size` bytes; `name` is the
 * parameter's, `minimum` the size of the struct's first version (the offset of what was added
 * first, once there is such). Reads at most 2 * size bytes. Not a checker's step, since everything
 * else needs its result. */
llmk_status llmk_take_struct(const char *op, const char *name, const void *args, size_t minimum,
                             size_t size, void *local);

static inline llmk_status llmk_take_args(const char *op, const void *args, size_t minimum,
                                         size_t size, void *local)
{
    return llmk_take_struct(op, "args", args, minimum, size, local);
}

/* A required / an optional tensor: rank, strides, dtype, extents, alignment, context. The view's
 * rows are all leading dimensions, its columns the last. A rank-1 tensor is one row. `view` must
 * live until llmk_check_end. In a dry run a tensor is present if its dtype is set; otherwise one
 * with a dtype and no buffer is refused. */
void llmk_check_tensor(llmk_checker *c, const char *name, const llmk_tensor *tensor,
                       uint32_t dtypes, llmk_role role, llmk_view *view);
void llmk_check_optional(llmk_checker *c, const char *name, const llmk_tensor *tensor,
                         uint32_t dtypes, llmk_role role, llmk_view *view);
/* An input that was checked before, of an object that the call uses: outputs must not overlap
 * it. */
void llmk_check_input_of(llmk_checker *c, const char *name, const llmk_view *view);
/* The tensor must be absent, because of `why` ("the layout is packed"). */
void llmk_check_absent(llmk_checker *c, const char *name, const llmk_tensor *tensor,
                       const char *why);
/* Same rank and dimensions. No-op where `view` is absent. */
void llmk_check_same_shape(llmk_checker *c, const char *name, const llmk_view *view,
                           const char *other_name, const llmk_view *other);
/* Same leading dimensions, and `cols` in the last. */
void llmk_check_rows_like(llmk_checker *c, const char *name, const llmk_view *view,
                          const char *other_name, const llmk_view *other, uint64_t cols);
/* Rank 1 with n elements / rank 2 with rows x cols. */
void llmk_check_vector(llmk_checker *c, const char *name, const llmk_view *view, uint64_t n);
void llmk_check_matrix(llmk_checker *c, const char *name, const llmk_view *view, uint64_t rows,
                       uint64_t cols);
/* Any condition: llmk_check_that(c, eps >= 0, LLMK_INVALID_ARGUMENT, "eps is %g; expected >= 0").
 */
void llmk_check_that(llmk_checker *c, bool condition, llmk_status status, const char *fmt, ...)
    LLMK_PRINTF(4, 5);
void llmk_check_flags(llmk_checker *c, uint32_t flags, uint32_t known);
/* `output` may be the very same elements as `other`. */
void llmk_check_in_place(llmk_checker *c, const llmk_view *output, const llmk_view *other);
/* The overlaps of all outputs, then the verdict on everything. */
llmk_status llmk_check_end(llmk_checker *c);

/* Of a checked view's columns `count`, from `first` on, `step` apart. The bytes touched stay those
 * of the whole. */
llmk_view llmk_view_columns(const llmk_view *whole, uint64_t first, uint64_t count, uint64_t step);

/* Elementwise operators: folds every view to as few rows as their strides allow (contiguous tensors
 * become one row). All views have the same count; absent ones are skipped. */
void llmk_views_flatten(llmk_view *const *views, size_t count);

#endif
