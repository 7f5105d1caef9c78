// A schedule from the caller's offsets: whatever they are, groups lie one after the other within
// the rows. The last group has what is left. One work-group; an item has a stretch of the experts.
#include "common/rows.clh"

#define ITEMS       128
#define MAX_EXPERTS 1024

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
grouped_schedule(global const int *offsets, const rows_t offsets_rows, const uint experts,
                 const uint rows, const uint height, global int *schedule)
{
    local int end[MAX_EXPERTS + 1], of_item[ITEMS];
    const uint item = get_local_id(0), groups = experts + 1;
    const uint stretch = (groups + ITEMS - 1) / ITEMS;
    const uint first = min(item * stretch, groups), last = min(first + stretch, groups);
    global int *tiles = schedule + groups + 1;
    for (uint g = item; g < groups; g += ITEMS)
        end[g] = g < experts
                     ? clamp(offsets[offsets_rows.offset + (g + 1) * offsets_rows.inner], 0,
                             (int)rows)
                     : (int)rows;
    barrier(CLK_LOCAL_MEM_FENCE);
    int largest = 0;
    for (uint g = first; g < last; g++)
        largest = max(largest, end[g]);
    of_item[item] = largest;
    barrier(CLK_LOCAL_MEM_FENCE);
    int begin = 0;
    for (uint i = 0; i < item; i++)
        begin = max(begin, of_item[i]);
    barrier(CLK_LOCAL_MEM_FENCE);
    int sum = 0;
    for (uint g = first, at = begin; g < last; g++) {
        const int next = max((int)at, end[g]);
        sum += (next - (int)at + (int)height - 1) / (int)height;
        end[g] = at = next;
    }
    of_item[item] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    int tile = 0;
    for (uint i = 0; i < item; i++)
        tile += of_item[i];
    for (uint g = first; g < last; g++) {
        tile += (end[g] - begin + (int)height - 1) / (int)height;
        begin = end[g];
        schedule[g + 1] = begin;
        tiles[g + 1] = tile;
    }
    if (item == 0)
        schedule[0] = tiles[0] = tiles[experts + 2] = tiles[experts + 3] = 0;
}
