/* tune_pretend.c - times that depend on nothing but a seed, and a clock that depends on load. */
#include "tools/common/tune_pretend.h"

#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLOWER  0.4 /* are calls under load for ever, than at rest */
#define HEATING 0.2 /* s until 63 % of that */
#define COOLING 1.0

/* What follows "WORD" or "WORD=" among the words; NULL: nothing does. */
static const char *find(const tune_pretence *p, const char *word)
{
    const size_t n = strlen(word);
    for (const char *w = p->words; w && (w = strstr(w, word)) != NULL; w++)
        if ((w == p->words || w[-1] == ',') && (!w[n] || w[n] == ',' || w[n] == '='))
            return w + n + (w[n] == '=');
    return NULL;
}

static uint64_t number(const tune_pretence *p, const char *word)
{
    const char *text = find(p, word);
    return text ? strtoull(text, NULL, 10) : 0;
}

static double uniform(uint64_t hash)
{
    return (double)(hash >> 40) / 16777216;
}

bool tune_pretends(const tune_pretence *p, const char *word)
{
    return find(p, word) != NULL;
}

void tune_pretend_pause(tune_pretence *p)
{
    p->heat *= exp(-1e-3 * (double)number(p, "load") / COOLING);
}

double tune_pretend_us(tune_pretence *p, const char *text, const char *candidate, double seconds,
                       double noise)
{
    const uint64_t h =
        llmk_hash(llmk_hash(number(p, "timer"), text, strlen(text)), candidate, strlen(candidate));
    p->calls++;
    const uint64_t n = llmk_hash(h, &p->calls, sizeof p->calls);
    double us = (50 + 100 * uniform(h)) * (1 + noise * (uniform(n) - 0.5));
    if (!tune_pretends(p, "load"))
        return us;
    const double left = exp(-seconds / HEATING); /* of how far it was from being hot */
    const double mean = seconds > 0 ? 1 - (1 - p->heat) * (1 - left) * HEATING / seconds : p->heat;
    p->heat = 1 - (1 - p->heat) * left;
    return us * (1 + SLOWER * mean);
}
