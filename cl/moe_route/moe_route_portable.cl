// The router's choice, several tokens a work-group. moe_select_dispatch is for so few tokens that one
// work-group has them all: it goes on and sorts the chosen pairs of token and expert.
#include "moe_route/moe_choice.clh"

kernel void moe_select(SELECT_PARAMETERS)
{
    select_experts(SELECT_ARGUMENTS, false, get_group_id(0) * get_local_size(1), true);
}

// All tokens, a row of items for each.
kernel void moe_select_dispatch(SELECT_PARAMETERS, DISPATCH_PARAMETERS, local int4 *sort)
{
    PLAN_SELECT(false, 0, true);
    barrier(CLK_LOCAL_MEM_FENCE);
    put_experts(ids, chosen, (uint)tokens * k, get_local_id(1) * get_local_size(0) + get_local_id(0),
                get_local_size(0) * get_local_size(1), sort, map, map_rows, id_end, held);
    PLAN_DISPATCH(true);
}
