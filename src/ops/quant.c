/* quant.c - the arguments of quantize and dequantize. */
#include "ops/quant.h"

llmk_status llmk_quant_geometry(const char *who, llmk_quant_scheme scheme, uint64_t k,
                                uint64_t group_size, uint64_t *elements, uint64_t *row_groups)
{
    if (scheme < LLMK_QUANT_INT8_TENSOR || scheme > LLMK_QUANT_INT4_ASYMMETRIC)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: scheme is %d; expected one of 1 to 4", who,
                         (int)scheme);
    if (!llmk_quant_is_int4(scheme) && group_size != 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "%s: group_size is %llu; expected 0 with an int8 scheme", who,
                         (unsigned long long)group_size);
    if (group_size % 2 != 0)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "%s: group_size is %llu; expected an even number",
                         who, (unsigned long long)group_size);
    if (llmk_quant_is_int4(scheme) && k % 2 != 0)
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "%s: rows have %llu elements; expected an even number with int4", who,
                         (unsigned long long)k);
    *elements = group_size == 0 || group_size > k ? k : group_size;
    if (*elements == 0)
        *elements = 1;
    *row_groups = k / *elements + (k % *elements != 0);
    return LLMK_OK;
}

static void check_scales(llmk_checker *c, const char *name, llmk_quant_scheme scheme,
                         const llmk_quant_problem *p, llmk_view *view)
{
    if (scheme == LLMK_QUANT_INT8_TENSOR) {
        llmk_check_vector(c, name, view, 1);
        view->rows.s0 = 0; /* the same for all rows */
    } else if (scheme == LLMK_QUANT_INT8_CHANNEL) {
        llmk_check_vector(c, name, view, p->x.nrows);
        view->rows.s0 = view->rows.inner; /* a column */
    } else {
        llmk_check_matrix(c, name, view, p->x.nrows, p->row_groups);
    }
}

llmk_status llmk_check_quant(llmk_checker *c, const char *x_name, const llmk_tensor *x,
                             llmk_role x_role, const llmk_tensor *q, const llmk_tensor *scale,
                             const llmk_tensor *zero, llmk_quant_scheme scheme, uint64_t group_size,
                             llmk_quant_problem *p)
{
    const llmk_role q_role = x_role == LLMK_INPUT ? LLMK_OUTPUT : LLMK_INPUT;
    p->scheme = scheme;
    llmk_check_tensor(c, x_name, x, LLMK_FLOATS, x_role, &p->x);
    llmk_check_that(c, p->x.rank == 2, LLMK_INVALID_SHAPE, "%s.rank is %u; expected 2", x_name,
                    p->x.rank);
    if (c->status == LLMK_OK)
        c->status = llmk_quant_geometry(c->op, scheme, p->x.ncols, group_size, &p->group_size,
                                        &p->row_groups);
    llmk_check_tensor(c, "q", q, LLMK_BIT(llmk_quant_is_int4(scheme) ? LLMK_U4 : LLMK_I8), q_role,
                      &p->q);
    llmk_check_same_shape(c, "q", &p->q, x_name, &p->x);
    llmk_check_tensor(c, "scale", scale, LLMK_BIT(LLMK_F32), q_role, &p->scale);
    check_scales(c, "scale", scheme, p, &p->scale);
    if (scheme == LLMK_QUANT_INT4_ASYMMETRIC) {
        llmk_check_tensor(c, "zero", zero, LLMK_BIT(LLMK_U8), q_role, &p->zero);
        check_scales(c, "zero", scheme, p, &p->zero);
    } else {
        llmk_check_absent(c, "zero", zero, "the scheme is symmetric");
    }
    LLMK_TRY(llmk_check_end(c));
    if (scheme == LLMK_QUANT_INT8_TENSOR) {
        llmk_views_flatten((llmk_view *[]){&p->x, &p->q}, 2);
        p->group_size = p->x.ncols > 0 ? p->x.ncols : 1;
    }
    return LLMK_OK;
}

bool llmk_quant_wide(const llmk_quant_problem *p)
{
    return p->x.align >= 16 && p->q.align >= (llmk_quant_is_int4(p->scheme) ? 4 : 8) &&
           llmk_quant_one_scale(p);
}

bool llmk_quant_portable_supports(llmk_context *ctx, const void *problem, llmk_reason *why)
{
    const llmk_quant_problem *p = problem;
    (void)ctx;
    if (!p->x.unit || !p->q.unit)
        return llmk_no(why, "the innermost stride of a matrix is not 1");
    if (p->scheme != LLMK_QUANT_INT8_TENSOR && p->group_size > INT32_MAX)
        return llmk_no(why, "a group has %llu elements, 2^31 or more",
                       (unsigned long long)p->group_size);
    return true;
}
