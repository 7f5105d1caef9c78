/*
 * weights_order.c - act-order: the weights of a row sorted by group.
 *
 * Sorted stably by g_idx, groups are runs. Where each run is as long as a group should be (the last
 * may be shorter), group i of the result is group i of the source. Else, as in parts of an
 * act-order matrix along K, runs are cut into groups of FINE weights, their ends filled up with
 * weights of value 0.
 */
#include "ops/weights.h"

#include <inttypes.h>
#include <stdlib.h>

#define FINE 32u

/* All zero is what some writers put where there is nothing to say. */
static bool is_trivial(const uint32_t *g_idx, uint64_t k, uint32_t group_size)
{
    bool zero = true, plain = true;
    for (uint64_t i = 0; i < k && (zero || plain); i++) {
        zero = zero && g_idx[i] == 0;
        plain = plain && g_idx[i] == i / group_size;
    }
    return zero || plain;
}

static bool is_even(const uint64_t *count, uint64_t k, uint32_t group_size, uint32_t groups)
{
    uint64_t left = k;
    for (uint32_t g = 0; g < groups; g++) {
        if (count[g] != (left < group_size ? left : group_size))
            return false;
        left -= count[g];
    }
    return true;
}

/* begin[g]: where the weights of group g start; the rest of `order` but column's content. */
static llmk_status lay_out(const uint64_t *count, uint64_t k, weights_order *order, uint64_t *begin)
{
    const uint32_t source_groups = order->groups;
    const bool even = is_even(count, k, order->group_size, source_groups);
    const uint32_t quantum = even ? 1 : FINE;
    uint64_t at = 0;
    for (uint32_t g = 0; g < source_groups; g++) {
        begin[g] = at;
        at += (count[g] + quantum - 1) / quantum * quantum;
    }
    if (at > (uint64_t)INT32_MAX)
        return llmk_fail(LLMK_INVALID_SHAPE,
                         "weights: groups of these sizes take %" PRIu64
                         " weights a row; at most 2^31 - 1 fit",
                         at);
    order->depth = at;
    order->column = malloc((size_t)(at + 1) * sizeof *order->column);
    if (!order->column)
        return llmk_fail(LLMK_OUT_OF_MEMORY,
                         "weights: no memory for the order of %" PRIu64 " weights", at);
    for (uint64_t i = 0; i < at; i++)
        order->column[i] = WEIGHTS_FILLER;
    if (even)
        return LLMK_OK;
    order->group_size = FINE;
    order->groups = (uint32_t)(at / FINE);
    order->group = malloc(((size_t)order->groups + 1) * sizeof *order->group);
    if (!order->group)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "weights: no memory for %" PRIu32 " groups",
                         order->groups);
    uint32_t fine = 0;
    for (uint32_t g = 0; g < source_groups; g++)
        for (uint64_t done = 0; done < count[g]; done += FINE)
            order->group[fine++] = g;
    return LLMK_OK;
}

/* count, zeroed, and begin: of every group. */
static llmk_status sort(const uint32_t *g_idx, uint64_t k, uint64_t *count, uint64_t *begin,
                        weights_order *order)
{
    for (uint64_t i = 0; i < k; i++) {
        if (g_idx[i] >= order->groups)
            return llmk_fail(LLMK_CORRUPT_DATA,
                             "weights: g_idx[%" PRIu64 "] is %" PRId32 "; there are %" PRIu32
                             " groups of %" PRIu32,
                             i, (int32_t)g_idx[i], order->groups, order->group_size);
        count[g_idx[i]]++;
    }
    LLMK_TRY(lay_out(count, k, order, begin));
    for (uint64_t i = 0; i < k; i++)
        order->column[begin[g_idx[i]]++] = (uint32_t)i;
    return LLMK_OK;
}

llmk_status llmk_weights_order_make(const uint32_t *g_idx, uint64_t k, uint32_t group_size,
                                    uint32_t groups, weights_order *order)
{
    *order = (weights_order){.depth = k, .group_size = group_size, .groups = groups};
    if (!g_idx || is_trivial(g_idx, k, group_size))
        return LLMK_OK;
    uint64_t *count = calloc(groups, sizeof *count), *begin = calloc(groups, sizeof *begin);
    const llmk_status status =
        count && begin
            ? sort(g_idx, k, count, begin, order)
            : llmk_fail(LLMK_OUT_OF_MEMORY, "weights: no memory for %" PRIu32 " groups", groups);
    free(count);
    free(begin);
    return status;
}

llmk_status llmk_weights_order_list(weights_order *order)
{
    if (order->column)
        return LLMK_OK;
    order->column = malloc((size_t)(order->depth + 1) * sizeof *order->column);
    if (!order->column)
        return llmk_fail(LLMK_OUT_OF_MEMORY,
                         "weights: no memory for the order of %" PRIu64 " weights", order->depth);
    for (uint64_t i = 0; i < order->depth; i++)
        order->column[i] = (uint32_t)i;
    return LLMK_OK;
}

void llmk_weights_order_free(weights_order *order)
{
    free(order->column);
    free(order->group);
    *order = (weights_order){0};
}
