/* layout.c - tensors with gaps, holes and odd strides. */
#include "cases/layout.h"

#include <string.h>

case_tensor *layout_tensor(case_run *run, const char *name, case_role role, llmk_dtype dtype,
                           uint64_t cols, unsigned number, llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    const uint64_t lead[3] = {case_u64(line, "d0"), case_u64(line, "d1"), case_u64(line, "rows")};
    const uint64_t gap = case_u64(line, "gap"), hole = case_u64(line, "hole");
    const uint64_t inner = case_u64(line, "inner");
    uint64_t dim[4];
    uint32_t rank = 0;
    for (int i = 0; i < 3; i++)
        if (!case_flag(line, "rank1") && (i == 2 || lead[i] > 0))
            dim[rank++] = lead[i];
    dim[rank++] = cols;
    case_tensor *t = case_add_tensor(run, name, role, dtype, rank, dim, slot);
    t->pad = case_u64(line, "pad");
    if (gap == 0 && hole == 0 && inner == 1)
        return t;
    uint64_t step = case_plus(case_times(cols, inner), case_times(gap, number));
    t->stride[rank - 1] = inner;
    for (uint32_t i = rank - 1; i-- > 0;) {
        t->stride[i] = step;
        step = case_plus(case_times(step, dim[i]), case_times(hole, number));
    }
    return t;
}

case_tensor *layout_vector(case_run *run, const char *name, llmk_dtype dtype, uint64_t n,
                           llmk_tensor *slot)
{
    const case_line *line = case_run_line(run);
    case_tensor *t = case_add_tensor(run, name, CASE_INPUT, dtype, 1, &n, slot);
    t->pad = case_u64(line, "pad");
    t->stride[0] = case_u64(line, "inner");
    return t;
}

uint64_t layout_rows(const case_line *line)
{
    const uint64_t d0 = case_u64(line, "d0"), d1 = case_u64(line, "d1");
    if (case_flag(line, "rank1"))
        return 1;
    return case_times(case_times(d0 ? d0 : 1, d1 ? d1 : 1), case_u64(line, "rows"));
}
