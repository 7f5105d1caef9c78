/* quant_fields.h - what the lines of quantize and dequantize have in common. */
#ifndef LLMK_QUANT_FIELDS_H
#define LLMK_QUANT_FIELDS_H

#include "cases/case.h"
#include "reference/quant_reference.h"

/* Index: llmk_quant_scheme. */
static const char *const quant_scheme_names[] = {
    "", "int8-tensor", "int8-channel", "int4-symmetric", "int4-asymmetric", NULL};

#define QUANT_FIELDS                                                                               \
    {"scheme", CASE_ENUM, LLMK_QUANT_INT8_CHANNEL, quant_scheme_names, "quantisation scheme"},     \
        {"n", CASE_U64, 1, NULL, "rows"}, {"k", CASE_U64, 1, NULL, "columns"},                     \
        {"g", CASE_U64, 0, NULL, "int4: group size along the row; 0: the row"},                    \
        {"pad", CASE_U64, 0, NULL, "elements by which matrices start off their alignment"},        \
        {"stride", CASE_U64, 0, NULL, "row stride of the matrices; 0: packed"},                    \
        {"inner", CASE_U64, 1, NULL, "innermost stride of the floats"},                            \
    {                                                                                              \
        "scale_inner", CASE_U64, 1, NULL, "innermost stride of scales and zeros"                   \
    }

static inline quant_shape quant_shape_of(const case_line *line)
{
    return (quant_shape){
        .scheme = (llmk_quant_scheme)case_get(line, "scheme"),
        .n = case_u64(line, "n"),
        .k = case_u64(line, "k"),
        .group_size = case_u64(line, "g"),
    };
}

/* The float matrix or the codes: strides and pad by the line. */
static inline case_tensor *quant_add_matrix(case_run *run, const char *name, case_role role,
                                            llmk_dtype dtype, const quant_shape *s,
                                            llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    const uint64_t inner = dtype == LLMK_U4 || dtype == LLMK_I8 ? 1 : case_u64(line, "inner");
    const uint64_t stride = case_u64(line, "stride");
    case_tensor *t = case_add_tensor(run, name, role, dtype, 2, (uint64_t[]){s->n, s->k}, slot);
    t->stride[1] = inner;
    t->stride[0] = case_times(stride ? stride : s->k, inner);
    t->pad = case_u64(line, "pad") * (dtype == LLMK_U4 ? 2 : 1);
    return t;
}

/* Scales or zeros, of the rank that the scheme asks for. Those of an empty matrix are not written,
 * and so, to the test, inputs. */
static inline case_tensor *quant_add_scales(case_run *run, const char *name, case_role role,
                                            llmk_dtype dtype, const quant_shape *s,
                                            llmk_tensor *slot)
{
    const uint64_t inner = case_u64(case_run_line(run), "scale_inner");
    const bool int4 = s->scheme >= LLMK_QUANT_INT4_SYMMETRIC;
    const uint64_t groups = quant_row_groups(s);
    const uint64_t dim[2] = {int4 ? s->n : quant_scales(s), groups};
    const bool empty = s->n == 0 || s->k == 0;
    case_tensor *t =
        case_add_tensor(run, name, empty ? CASE_INPUT : role, dtype, int4 ? 2 : 1, dim, slot);
    t->stride[int4] = inner;
    if (int4)
        t->stride[0] = case_times(groups, inner);
    return t;
}

/* The line makes sense; said by case_refuse where it does not. */
static inline bool quant_line_ok(case_run *run, const quant_shape *s)
{
    const uint64_t stride = case_u64(case_run_line(run), "stride");
    if (stride && stride < s->k)
        return case_refuse(run, "stride is less than k");
    if (s->scheme >= LLMK_QUANT_INT4_SYMMETRIC && (s->k % 2 || s->group_size % 2 || stride % 2))
        return case_refuse(run, "k, g and stride are even with int4");
    if (s->scheme < LLMK_QUANT_INT4_SYMMETRIC && s->group_size)
        return case_refuse(run, "g is 0 with int8");
    return true;
}

#endif
