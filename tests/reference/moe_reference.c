/* moe_reference.c - routing and dispatch in f64. */
#include "reference/moe_reference.h"

#include "cases/case.h"
#include "reference/linear_reference.h"

#include <math.h>
#include <stdlib.h>

static const double U = 0x1p-24;     /* half an ulp of f32, relative */
static const double TINY = 0x1p-126; /* what a device that flushes subnormals may lose */

uint64_t moe_random(uint64_t seed, uint64_t index)
{
    uint64_t z = (seed << 32) + 0x9e3779b97f4a7c15u * (index + 1);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double moe_uniform(uint64_t seed, uint64_t index)
{
    return ldexp((double)(moe_random(seed, index) >> 11), -52) - 1;
}

/* ---- Routing ---- */

bool moe_router_room_make(moe_router_room *room, uint64_t experts)
{
    room->choice = calloc(experts + 1, sizeof *room->choice);
    room->choice_error = calloc(experts + 1, sizeof *room->choice_error);
    room->group = calloc(experts + 1, sizeof *room->group);
    room->state = calloc(experts + 1, 1);
    return room->choice && room->choice_error && room->group && room->state;
}

void moe_router_room_free(moe_router_room *room)
{
    free(room->choice);
    free(room->choice_error);
    free(room->group);
    free(room->state);
}

void moe_reference_logits(uint64_t hidden, uint64_t experts, const double *x, const double *gate,
                          const double *bias, double *logit, double *error)
{
    const double depth = linear_depth(hidden) * U;
    for (uint64_t e = 0; e < experts; e++) {
        double sum = 0, terms = 0;
        for (uint64_t h = 0; h < hidden; h++) {
            const double product = x[h] * gate[e * hidden + h];
            sum += product;
            terms += fabs(product);
        }
        const double b = bias ? bias[e] : 0;
        logit[e] = sum + b;
        error[e] =
            terms * depth / (1 - depth) + 2 * U * (terms + fabs(b)) + (double)(hidden + 2) * TINY;
    }
}

/* The softmax over some logits. */
typedef struct softmax {
    double largest, sum, error; /* error: of the logits, at most */
    double terms;
} softmax;

static void softmax_add(softmax *s, double logit, double error)
{
    s->largest = fmax(s->largest, logit);
    s->error = fmax(s->error, error);
    s->terms++;
}

/* A score and the bound on its error, relative to it: exp is right to 3 ulp, log1p to 2, division
 * to 2.5, sqrt to 3; an ulp is at most 2 U. */
static double score_of(llmk_moe_score score, double logit, double error, const softmax *s,
                       double *relative)
{
    if (score == LLMK_MOE_SIGMOID) {
        *relative = 16 * U + expm1(error);
        return 1 / (1 + exp(-logit));
    }
    if (score == LLMK_MOE_SQRT_SOFTPLUS) {
        *relative = 24 * U + expm1(error);
        return sqrt(fmax(logit, 0) + log1p(exp(-fabs(logit))));
    }
    /* logit - largest is rounded: its error counts as often as it is large. The terms of the sum
     * lose at most what the largest of |d| exp(-|d|) does. */
    const double distance = fmin(fabs(logit - s->largest), 200);
    *relative = (distance + 1 + 24 + 48 + ceil(s->terms / 32)) * U + expm1(2 * (error + s->error));
    return exp(logit - s->largest) / s->sum;
}

/* NaN is the least choice, and -inf the least that is one. */
static bool better(double a, double b)
{
    return isnan(b) ? !isnan(a) : a > b;
}

/* Whether a and b are what they seem in this order. */
static bool is_clear(double a, double a_error, double b, double b_error)
{
    if (!isfinite(a) || !isfinite(b) || (a_error == 0 && b_error == 0))
        return true;
    return fabs(a - b) > 1.01 * (a_error + b_error);
}

/* The best of first ... first + count - 1 in state 0. */
static uint64_t best_of(const moe_router_room *room, uint64_t first, uint64_t count)
{
    uint64_t best = first + count;
    for (uint64_t e = first; e < first + count; e++)
        if (!room->state[e] &&
            (best == first + count || better(room->choice[e], room->choice[best])))
            best = e;
    return best;
}

static double numbered(double choice)
{
    return isnan(choice) ? -(double)INFINITY : choice;
}

/* Marks the experts of groups that are not kept with 2. */
static bool exclude_groups(const moe_router_f64 *r, const moe_router_room *room)
{
    const uint64_t width = r->experts / r->groups;
    double worst_error = 0;
    for (uint64_t g = 0; g < r->groups; g++) {
        const uint64_t best = best_of(room, g * width, width);
        double score = numbered(room->choice[best]), error = room->choice_error[best];
        if (r->correction && width > 1) {
            room->state[best] = 1;
            const uint64_t second = best_of(room, g * width, width);
            room->state[best] = 0;
            score += numbered(room->choice[second]);
            error += room->choice_error[second] + U * (isfinite(score) ? fabs(score) : 0);
        }
        room->group[g] = score;
        worst_error = fmax(worst_error, error);
    }
    bool clear = true;
    double least_kept = 0;
    for (uint64_t i = 0; i < r->groups; i++) { /* from the best group on; taken: NaN with a mark */
        uint64_t best = r->groups;
        for (uint64_t g = 0; g < r->groups; g++)
            if (room->state[g * width] < 3 &&
                (best == r->groups || better(room->group[g], room->group[best])))
                best = g;
        if (i == r->top_groups)
            clear = is_clear(least_kept, worst_error, room->group[best], worst_error);
        least_kept = room->group[best];
        for (uint64_t e = best * width; e < (best + 1) * width; e++)
            room->state[e] = i < r->top_groups ? 3 : 4;
    }
    for (uint64_t e = 0; e < r->experts; e++)
        room->state[e] = room->state[e] == 4 ? 2 : 0;
    return clear;
}

bool moe_reference_route(const moe_router_f64 *r, const moe_router_room *room, const double *logit,
                         const double *error, double *ids, double *weights, double *bound)
{
    softmax all = {.largest = -(double)INFINITY}, chosen = all;
    for (uint64_t e = 0; e < r->experts; e++)
        softmax_add(&all, logit[e], error[e]);
    for (uint64_t e = 0; e < r->experts; e++)
        all.sum += exp(logit[e] - all.largest);
    for (uint64_t e = 0; e < r->experts; e++) {
        double choice = logit[e], choice_error = error[e], relative;
        if (r->correction) {
            if (r->score != LLMK_MOE_TOPK_SOFTMAX) {
                choice = score_of(r->score, logit[e], error[e], &all, &relative);
                choice_error = relative * fabs(choice) + TINY;
            }
            choice += r->correction[e];
            choice_error += U * fabs(choice);
        }
        room->choice[e] = choice;
        room->choice_error[e] = choice_error;
        room->state[e] = 0;
    }
    bool clear = r->groups <= 1 || exclude_groups(r, room);
    for (uint64_t j = 0, last = 0; j <= r->k; j++) {
        const uint64_t e = best_of(room, 0, r->experts);
        if (e == r->experts)
            break;
        if (j > 0)
            clear = clear && is_clear(room->choice[last], room->choice_error[last], room->choice[e],
                                      room->choice_error[e]);
        if (j == r->k)
            break;
        room->state[e] = 1;
        ids[j] = (double)e;
        last = e;
        softmax_add(&chosen, logit[e], error[e]);
    }
    for (uint64_t j = 0; j < r->k; j++)
        chosen.sum += exp(logit[(uint64_t)ids[j]] - chosen.largest);
    double total = 0, total_relative = 0;
    for (uint64_t j = 0; j < r->k; j++) {
        const uint64_t e = (uint64_t)ids[j];
        double relative;
        weights[j] = score_of(r->score, logit[e], error[e],
                              r->score == LLMK_MOE_TOPK_SOFTMAX ? &chosen : &all, &relative);
        bound[j] = relative;
        total += weights[j];
        total_relative = fmax(total_relative, relative);
    }
    const double divisor = total < r->eps ? r->eps : total;
    for (uint64_t j = 0; j < r->k; j++) {
        double relative = bound[j] + 2 * U;
        if (r->renormalize) {
            relative += total_relative + ((double)r->k / 32 + 48) * U;
            weights[j] /= divisor;
        }
        weights[j] *= r->scale;
        bound[j] =
            relative * fabs(weights[j]) + r->scale * TINY * (r->renormalize ? 1 / divisor : 1);
    }
    return clear;
}

/* ---- Dispatch ---- */

void moe_reference_permute(const double *ids, uint64_t pairs, const double *map, uint64_t map_count,
                           uint64_t experts, double *offsets, double *source, double *inverse)
{
    uint64_t row = 0;
    for (uint64_t i = 0; i < pairs; i++)
        source[i] = inverse[i] = -1;
    for (uint64_t e = 0; e < experts; e++) {
        offsets[e] = (double)row;
        for (uint64_t i = 0; i < pairs; i++) {
            if (!(ids[i] >= 0 && ids[i] < (double)(map ? map_count : experts)))
                continue;
            if ((map ? map[(uint64_t)ids[i]] : ids[i]) != (double)e)
                continue;
            inverse[i] = (double)row;
            source[row++] = (double)i;
        }
    }
    offsets[experts] = (double)row;
}
