/* moe_permute_cases.c - the dispatch: pairs of token and expert sorted by expert. */
#include "cases/case.h"
#include "reference/moe_reference.h"

enum { IDS_DISTINCT, IDS_ANY, IDS_ONE, IDS_WILD, IDS_FEW, IDS_NONE };
/* different ones in a token; any, so that some come twice; all of one expert; out of range too; of
 * few experts; all out of range */
static const char *const ids_names[] = {"distinct", "any", "one", "wild", "few", "none", NULL};

static const case_field fields[] = {
    {"t", CASE_U64, 1, NULL, "tokens"},
    {"k", CASE_U64, 2, NULL, "experts a token"},
    {"e", CASE_U64, 8, NULL, "experts held"},
    {"g", CASE_U64, 0, NULL, "experts in all, with a map to those held; 0: no map"},
    {"h", CASE_U64, 0, NULL, "columns of x; 0: no rows are gathered"},
    {"x", CASE_ENUM, LLMK_F16, case_float_names, "type of x"},
    {"ids", CASE_ENUM, IDS_DISTINCT, ids_names, "the ids"},
    {"gap", CASE_U64, 0, NULL, "elements between rows"},
    {"inner", CASE_U64, 1, NULL, "innermost stride"},
    {"pad", CASE_U64, 0, NULL, "elements by which tensors start off their alignment"},
};

static const case_entry entries[] = {
    {"", CASE_QUICK},
    {"t=0", CASE_QUICK},
    {"t=0 h=8", CASE_QUICK},
    {"t=5 h=0", CASE_QUICK},
    {"t=33 h=128", CASE_QUICK},
    {"t=32 k=4 e=64 h=72", CASE_QUICK},
    {"t=128 k=8 e=256", CASE_QUICK},
    {"t=17 k=8 e=8 h=9", CASE_QUICK},
    {"t=70 k=4 e=60 h=33 x=f32", CASE_QUICK},
    {"t=40 k=6 e=160 h=16 x=bf16", CASE_QUICK},
    {"t=9 k=10 e=512", CASE_QUICK},
    {"t=3 k=1024 e=1024", CASE_QUICK},
    {"t=50 k=1 e=1 h=8", CASE_QUICK},
    {"t=130 ids=any h=16", CASE_QUICK},
    {"t=130 ids=one h=16", CASE_QUICK},
    {"t=61 k=3 ids=few e=100 h=16", CASE_QUICK},
    {"t=130 k=5 ids=wild h=16", CASE_QUICK},
    {"t=13 k=5 ids=none h=16", CASE_QUICK},
    {"t=40 k=4 e=5 g=20 h=24", CASE_QUICK},
    {"t=40 k=4 e=5 g=20 ids=wild h=24 gap=3", CASE_QUICK},
    {"t=20 k=3 e=9 g=3", CASE_QUICK},
    {"t=20 k=3 h=40 gap=8", CASE_QUICK},
    {"t=20 k=3 h=40 gap=1 pad=1", CASE_QUICK},
    {"t=20 k=3 h=40 inner=2 g=11", CASE_QUICK},
    {"t=700 k=4 e=5 ids=wild", CASE_QUICK},
    {"t=2100 k=4 e=5", CASE_QUICK}, /* more pairs than have a bit each */
    {"t=2100 k=4 e=5 g=20 ids=wild", CASE_QUICK},

    {"t=1 k=2 e=8 h=128", CASE_FULL},
    {"t=1 k=2 e=8 h=1024", CASE_FULL},
    {"t=1 k=2 e=8 h=4096", CASE_FULL},
    {"t=32 k=2 e=8 h=128", CASE_FULL},
    {"t=32 k=2 e=8 h=1024", CASE_FULL},
    {"t=32 k=2 e=8 h=4096", CASE_FULL},
    {"t=128 k=2 e=8 h=128", CASE_FULL},
    {"t=128 k=2 e=8 h=1024", CASE_FULL},
    {"t=128 k=2 e=8 h=4096", CASE_FULL},
    {"t=512 k=2 e=8 h=128", CASE_FULL},
    {"t=512 k=2 e=8 h=1024", CASE_FULL},
    {"t=512 k=2 e=8 h=4096", CASE_FULL},
    {"t=1 k=4 e=64 h=128", CASE_FULL},
    {"t=1 k=4 e=64 h=1024", CASE_FULL},
    {"t=1 k=4 e=64 h=4096", CASE_FULL},
    {"t=32 k=4 e=64 h=128", CASE_FULL},
    {"t=32 k=4 e=64 h=1024", CASE_FULL},
    {"t=32 k=4 e=64 h=4096", CASE_FULL},
    {"t=128 k=4 e=64 h=128", CASE_FULL},
    {"t=128 k=4 e=64 h=1024", CASE_FULL},
    {"t=128 k=4 e=64 h=4096", CASE_FULL},
    {"t=512 k=4 e=64 h=128", CASE_FULL},
    {"t=512 k=4 e=64 h=1024", CASE_FULL},
    {"t=512 k=4 e=64 h=4096", CASE_FULL},
    {"t=1 k=8 e=256 h=128", CASE_FULL},
    {"t=1 k=8 e=256 h=1024", CASE_FULL},
    {"t=1 k=8 e=256 h=4096", CASE_FULL},
    {"t=32 k=8 e=256 h=128", CASE_FULL},
    {"t=32 k=8 e=256 h=1024", CASE_FULL},
    {"t=32 k=8 e=256 h=4096", CASE_FULL},
    {"t=128 k=8 e=256 h=128", CASE_FULL},
    {"t=128 k=8 e=256 h=1024", CASE_FULL},
    {"t=128 k=8 e=256 h=4096", CASE_FULL},
    {"t=512 k=8 e=256 h=128", CASE_FULL},
    {"t=512 k=8 e=256 h=1024", CASE_FULL},
    {"t=512 k=8 e=256 h=4096", CASE_FULL},
    {"t=2048 k=8 e=256", CASE_FULL},
    {"t=8192 k=2 e=8 ids=one", CASE_FULL},
};

static case_tensor *add(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                        uint32_t rank, const uint64_t *dim, llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    case_tensor *t = case_add_tensor(run, name, role, dtype, rank, dim, slot);
    const uint64_t inner = case_u64(line, "inner");
    t->pad = case_u64(line, "pad");
    t->stride[rank - 1] = inner;
    if (rank == 2)
        t->stride[0] = case_plus(case_times(dim[1], inner), case_u64(line, "gap"));
    return t;
}

/* range: ids are less. */
static double id_of(int ids, uint64_t range, uint64_t k, uint64_t pair)
{
    const uint64_t token = pair / k, j = pair % k, r = moe_random(11, pair);
    switch (ids) {
    case IDS_ONE:
        return (double)(range / 2);
    case IDS_WILD:
        return r % 4       ? (double)(r / 4 % range)
               : r / 4 % 2 ? -(double)(r / 8 % 2147483648)
                           : (double)range + (double)(r / 8 % 1000000);
    case IDS_FEW:
        return (double)(range - 1 - r % (range < 3 ? range : 3));
    case IDS_NONE:
        return pair % 2 ? -1 : (double)range;
    case IDS_ANY:
        return (double)(r % range);
    default: /* steps of a size that has no factor in common with the range */
        return (double)((moe_random(11, token) + j) % range);
    }
}

static bool prepare(case_run *run, const case_line *line, void *args_)
{
    llmk_moe_permute_args *args = args_;
    const uint64_t tokens = case_u64(line, "t"), k = case_u64(line, "k"), e = case_u64(line, "e"),
                   g = case_u64(line, "g"), h = case_u64(line, "h");
    const llmk_dtype type = case_dtype(line, "x");
    const int kind = (int)case_get(line, "ids");
    if (e < 1 || e > 1024 || k < 1)
        return case_refuse(run, "expected 1 to 1024 experts, and at least one a token");
    args->experts = e;
    const uint64_t pairs = case_times(tokens, k), ends = e + 1;
    case_tensor *ids =
        add(run, "ids", CASE_INPUT, LLMK_I32, 2, (uint64_t[]){tokens, k}, &args->ids);
    case_tensor *map = g ? add(run, "map", CASE_INPUT, LLMK_I32, 1, &g, &args->map) : NULL;
    case_tensor *x =
        h ? add(run, "x", CASE_INPUT, type, 2, (uint64_t[]){tokens, h}, &args->x) : NULL;
    case_tensor *offsets = add(run, "offsets", CASE_OUTPUT, LLMK_I32, 1, &ends, &args->offsets);
    case_tensor *source = add(run, "source", CASE_OUTPUT, LLMK_I32, 1, &pairs, &args->source);
    case_tensor *inverse =
        add(run, "inverse", CASE_OUTPUT, LLMK_I32, 2, (uint64_t[]){tokens, k}, &args->inverse);
    case_tensor *rows =
        h ? add(run, "rows", CASE_OUTPUT, type, 2, (uint64_t[]){pairs, h}, &args->rows) : NULL;
    if (!case_declared(run))
        return false;
    for (uint64_t i = 0; i < pairs; i++)
        ids->values[i] = id_of(kind, g ? g : e, k, i);
    for (uint64_t i = 0; i < g; i++) /* every third is held elsewhere */
        map->values[i] = i % 3 == 1 ? -1 - (double)(i % 5) : (double)(i * 7 % e);
    if (x)
        case_fill_values(run, x, CASE_UNIFORM, 2, 1);
    if (case_timing_only(run))
        return true;
    moe_reference_permute(ids->values, pairs, map ? map->values : NULL, g, e,
                          case_expect(run, offsets), case_expect(run, source),
                          case_expect(run, inverse));
    double *expected = rows ? case_expect(run, rows) : NULL;
    for (uint64_t i = 0; rows && i < pairs; i++)
        for (uint64_t c = 0; c < h; c++)
            expected[i * h + c] =
                source->values[i] < 0 ? 0 : x->values[(uint64_t)source->values[i] / k * h + c];
    return true;
}

/* A comparison a pair. */
static double flops(const case_line *line)
{
    return case_get(line, "t") * case_get(line, "k");
}

CASE_OP(moe_permute, LLMK_OP_MOE_PERMUTE, NULL);
