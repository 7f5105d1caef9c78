/* args_table.h - every field of every operator's args struct, for tests that walk them. */
#ifndef LLMK_TESTS_ARGS_TABLE_H
#define LLMK_TESTS_ARGS_TABLE_H

#include <llmk/llmk.h>

typedef enum arg_kind {
    ARG_STRUCT_SIZE,
    ARG_INPUT,
    ARG_OUTPUT,
    ARG_ENUM,
    ARG_U64,
    ARG_F32,
    ARG_FLAGS,
    ARG_WORKSPACE,
    ARG_OPTIONAL_WORKSPACE, /* NULL is legal, a bad one is not */
    ARG_WEIGHTS,
    ARG_PLAN
} arg_kind;

typedef struct arg_field {
    const char *name;
    size_t offset, size;
    arg_kind kind;
} arg_field;

#define ARGS_MAX_FIELDS 24
#define ARGS_MAX_LINES  8

/* The fields in their order, and lines of cases that between them set every one. */
typedef struct arg_table {
    const char *op;
    size_t size;
    arg_field fields[ARGS_MAX_FIELDS];
    const char *lines[ARGS_MAX_LINES];
} arg_table;

#define ARG(type, member, kind)                                                                    \
    {                                                                                              \
#member, offsetof(type, member), sizeof(((type *)0)->member), kind                         \
    }

/* clang-format off */
static const arg_table arg_tables[] = {
#define A llmk_rmsnorm_args
    {"rmsnorm", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, x, ARG_INPUT), ARG(A, weight, ARG_INPUT),
      ARG(A, residual, ARG_INPUT), ARG(A, sum, ARG_OUTPUT), ARG(A, y, ARG_OUTPUT),
      ARG(A, eps, ARG_F32), ARG(A, flags, ARG_FLAGS)},
     {"h=24 rows=3 r=f16 s=f16 gap=8", "h=9 rows=2 w=none pad=1", "h=8 rank1",
      "h=16 rows=3 r=f16 s=f16 sover=residual over=x", "h=8 d0=2 d1=3 rows=2 hole=8 s=f32",
      "rows=0 h=8"}},
#undef A
#define A llmk_gated_activation_args
    {"gated_activation", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, activation, ARG_ENUM), ARG(A, layout, ARG_ENUM),
      ARG(A, gate, ARG_INPUT), ARG(A, up, ARG_INPUT), ARG(A, gate_bias, ARG_INPUT),
      ARG(A, up_bias, ARG_INPUT), ARG(A, y, ARG_OUTPUT), ARG(A, limit, ARG_F32),
      ARG(A, alpha, ARG_F32), ARG(A, flags, ARG_FLAGS)},
     {"d=24 rows=3 gb=f16 ub=f32 gap=8", "d=8 rows=2 layout=packed gb=f16",
      "d=9 rows=3 layout=interleaved act=clamped limit=5 alpha=1.5",
      "d=16 rows=2 over=gate act=gelu_erf", "rank1 d=40", "rows=0 d=8"}},
#undef A
#define A llmk_add_args
    {"add", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, a, ARG_INPUT), ARG(A, b, ARG_INPUT),
      ARG(A, y, ARG_OUTPUT), ARG(A, flags, ARG_FLAGS)},
     {"cols=24 rows=3 gap=8", "cols=7 rows=2 b=f32", "rank1 cols=40", "cols=16 rows=3 over=b",
      "cols=1 rows=4", "rows=0 cols=8"}},
#undef A
#define A llmk_quantize_args
    {"quantize", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, scheme, ARG_ENUM), ARG(A, group_size, ARG_U64),
      ARG(A, x, ARG_INPUT), ARG(A, q, ARG_OUTPUT), ARG(A, scale, ARG_OUTPUT),
      ARG(A, zero, ARG_OUTPUT), ARG(A, workspace, ARG_WORKSPACE), ARG(A, flags, ARG_FLAGS)},
     {"scheme=int8-tensor n=3 k=24", "scheme=int8-channel n=3 k=24 stride=32",
      "scheme=int4-symmetric n=3 k=40 g=16", "scheme=int4-asymmetric n=2 k=32 g=8 scale_inner=2",
      "scheme=int8-channel n=0 k=8"}},
#undef A
#define A llmk_dequantize_args
    {"dequantize", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, scheme, ARG_ENUM), ARG(A, group_size, ARG_U64),
      ARG(A, q, ARG_INPUT), ARG(A, scale, ARG_INPUT), ARG(A, zero, ARG_INPUT),
      ARG(A, y, ARG_OUTPUT), ARG(A, flags, ARG_FLAGS)},
     {"scheme=int8-tensor n=3 k=24", "scheme=int8-channel n=3 k=24 stride=32",
      "scheme=int4-symmetric n=3 k=40 g=16", "scheme=int4-asymmetric n=2 k=32 g=8 scale_inner=2",
      "scheme=int8-channel n=0 k=8"}},
#undef A
#define A llmk_error_report_args
    {"error_report", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, reference, ARG_INPUT),
      ARG(A, approximation, ARG_INPUT), ARG(A, report, ARG_OUTPUT),
      ARG(A, workspace, ARG_WORKSPACE), ARG(A, flags, ARG_FLAGS)},
     {"n=3 k=24", "b=2 n=3 k=7 a_stride=9", "n=2 k=16 inner=2 report_inner=2"}},
#undef A
#define A llmk_linear_args
    {"linear", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, x, ARG_INPUT), ARG(A, weights, ARG_WEIGHTS),
      ARG(A, bias, ARG_INPUT), ARG(A, residual, ARG_INPUT), ARG(A, y, ARG_OUTPUT),
      ARG(A, flags, ARG_FLAGS), ARG(A, workspace, ARG_OPTIONAL_WORKSPACE)},
     {"m=3 n=12 k=32 w=q4_0 bias=f32 residual=f16", "m=2 n=8 k=24 xgap=8 ygap=4",
      "m=4 batch=2 n=8 k=16 w=w8 residual=f16 inplace", "m=0 n=8 k=16",
      "m=3 n=8 k=24 w=w8a8 bias=f32"}},
#undef A
#define A llmk_moe_route_args
    {"moe_route", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, score, ARG_ENUM), ARG(A, flags, ARG_FLAGS),
      ARG(A, groups, ARG_U64), ARG(A, top_groups, ARG_U64), ARG(A, scale, ARG_F32),
      ARG(A, eps, ARG_F32), ARG(A, x, ARG_INPUT), ARG(A, gate, ARG_INPUT),
      ARG(A, logits, ARG_INPUT), ARG(A, router_bias, ARG_INPUT), ARG(A, correction, ARG_INPUT),
      ARG(A, ids, ARG_OUTPUT), ARG(A, weights, ARG_OUTPUT), ARG(A, out_logits, ARG_OUTPUT),
      ARG(A, workspace, ARG_WORKSPACE)},
     {"t=3 e=12 k=2 h=16", "t=3 e=12 k=2 h=16 out rb=f32 corr=f32 groups=4 top=2 renorm",
      "t=3 e=12 k=2 gap=4 corr=f16 scale=2", "t=0 e=8 k=2"}},
#undef A
#define A llmk_moe_permute_args
    {"moe_permute", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, experts, ARG_U64), ARG(A, ids, ARG_INPUT),
      ARG(A, map, ARG_INPUT), ARG(A, x, ARG_INPUT), ARG(A, offsets, ARG_OUTPUT),
      ARG(A, source, ARG_OUTPUT), ARG(A, inverse, ARG_OUTPUT), ARG(A, rows, ARG_OUTPUT),
      ARG(A, flags, ARG_FLAGS)},
     {"t=5 k=2 e=4 h=16", "t=5 k=2 e=7 g=12 gap=4 h=8", "t=6 k=3 e=8 ids=any", "t=0 e=3 h=8"}},
#undef A
#define A llmk_moe_unpermute_args
    {"moe_unpermute", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, rows, ARG_INPUT), ARG(A, inverse, ARG_INPUT),
      ARG(A, weights, ARG_INPUT), ARG(A, residual, ARG_INPUT), ARG(A, y, ARG_OUTPUT),
      ARG(A, flags, ARG_FLAGS)},
     {"t=4 k=2 h=16 res=f16", "t=3 k=2 h=8 w=none gap=4", "t=3 k=2 h=8 res=f16 inplace", "t=0"}},
#undef A
#define A llmk_grouped_linear_args
    {"grouped_linear", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, experts_a_token, ARG_U64),
      ARG(A, x, ARG_INPUT), ARG(A, weights, ARG_WEIGHTS), ARG(A, offsets, ARG_INPUT),
      ARG(A, source, ARG_INPUT), ARG(A, bias, ARG_INPUT), ARG(A, y, ARG_OUTPUT),
      ARG(A, workspace, ARG_WORKSPACE), ARG(A, flags, ARG_FLAGS)},
     {"r=6 e=3 n=8 k=16 bias=f32", "r=6 e=3 n=8 k=16 fan=2 gap=4", "r=30 e=3 n=12 k=32 w=q4_0",
      "r=0 e=3 n=8 k=16"}},
#undef A
#define A llmk_moe_forward_args
    {"moe_forward", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, plan, ARG_PLAN), ARG(A, x, ARG_INPUT),
      ARG(A, ids, ARG_INPUT), ARG(A, weights, ARG_INPUT), ARG(A, y, ARG_OUTPUT),
      ARG(A, flags, ARG_FLAGS)},
     {"t=3 h=16 f=8 e=3", "t=3 h=16 f=8 e=3 ids=any gap=4", "t=30 h=8 f=8 e=3 max=40 shared",
      "t=0 h=8 f=8"}},
#undef A
#define A llmk_gated_linear_args
    {"gated_linear", sizeof(A),
     {ARG(A, struct_size, ARG_STRUCT_SIZE), ARG(A, activation, ARG_ENUM), ARG(A, layout, ARG_ENUM),
      ARG(A, x, ARG_INPUT), ARG(A, gate_weights, ARG_WEIGHTS), ARG(A, up_weights, ARG_WEIGHTS),
      ARG(A, gate_bias, ARG_INPUT), ARG(A, up_bias, ARG_INPUT), ARG(A, residual, ARG_INPUT),
      ARG(A, y, ARG_OUTPUT), ARG(A, limit, ARG_F32), ARG(A, alpha, ARG_F32),
      ARG(A, workspace, ARG_OPTIONAL_WORKSPACE), ARG(A, flags, ARG_FLAGS)},
     {"m=3 n=12 k=32 w=q4_0 gb=f32 ub=f16 residual=f16", "m=2 n=8 k=24 gap=8",
      "m=4 batch=2 n=8 k=16 w=w8 residual=f16 inplace act=clamped limit=5 alpha=1.5",
      "m=0 n=8 k=16"}},
#undef A
};
/* clang-format on */

/* The size of a struct's first version. */
static inline size_t arg_first_size(const arg_table *table)
{
    return strcmp(table->op, "linear") == 0 ? offsetof(llmk_linear_args, workspace) : table->size;
}

#endif
