/*
 * findings.c - what trials and probes found, on disk: "VALUE FAILURES SECONDS TEXT".
 *
 * What succeeded is believed. What failed may have failed for reasons of the moment, a full disk or
 * a compiler without memory: it is believed after two runs in a row, and for a day.
 */
#include "core/core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FAILURES_BELIEVED 2
#define SECONDS_BELIEVED  86400

typedef struct record {
    long value;
    unsigned failures; /* in a row; 0: no failure */
    int64_t seconds;   /* since the epoch */
    const char *text;
} record;

static bool is_recent(const record *r)
{
    const int64_t age = (int64_t)time(NULL) - r->seconds;
    return age >= 0 && age < SECONDS_BELIEVED;
}

static bool parse(const char *bytes, record *r)
{
    int64_t numbers[3];
    for (size_t i = 0; i < LLMK_COUNT(numbers); i++) {
        char *end;
        numbers[i] = strtoll(bytes, &end, 10);
        if (end == bytes || *end != ' ')
            return false;
        bytes = end + 1;
    }
    if (numbers[0] < INT32_MIN || numbers[0] > INT32_MAX || numbers[1] < 0 ||
        numbers[1] > FAILURES_BELIEVED)
        return false;
    *r = (record){(long)numbers[0], (unsigned)numbers[1], numbers[2], bytes};
    return true;
}

/* The bytes to free, or NULL. */
static char *read_record(llmk_context *ctx, const char *key, record *r)
{
    size_t size = 0;
    char *bytes = llmk_cache_get(ctx->cache, key, &size);
    if (bytes && parse(bytes, r))
        return bytes;
    free(bytes);
    return NULL;
}

bool llmk_finding_recall(llmk_context *ctx, const char *what, long *value, char **text)
{
    char key[1024];
    record r;
    if (!llmk_finding_key(ctx, what, key, sizeof key))
        return false;
    char *bytes = read_record(ctx, key, &r);
    const bool believed =
        bytes && (r.failures == 0 || (r.failures >= FAILURES_BELIEVED && is_recent(&r)));
    *value = believed ? r.value : 0;
    *text = believed ? strdup(r.text) : NULL;
    free(bytes);
    return believed && *text;
}

void llmk_finding_keep(llmk_context *ctx, const char *what, long value, bool failed,
                       const char *text)
{
    char key[1024], bytes[2048];
    unsigned failures = failed;
    record r;
    if (!llmk_finding_key(ctx, what, key, sizeof key))
        return;
    char *known = failed ? read_record(ctx, key, &r) : NULL;
    if (known && is_recent(&r) && r.failures < FAILURES_BELIEVED)
        failures += r.failures;
    free(known);
    const int n = snprintf(bytes, sizeof bytes, "%ld %u %" PRId64 " %s", value, failures,
                           (int64_t)time(NULL), text);
    llmk_cache_put(ctx->cache, key, bytes, (size_t)n < sizeof bytes ? (size_t)n : sizeof bytes - 1);
}
