/*
 * findings.c - what trials and probes found, on disk: "VALUE FAILURES SECONDS TEXT". Another format
 * is another number in llmk_finding_key.
 *
 * What succeeded is believed. What failed may have failed for reasons of the moment, a full disk or
 * a compiler without memory: it is believed after two runs in a row with the same value, and for a
 * day. The second must be a process that began a while after the first failed: contexts of one
 * process share its moment, and so do processes side by side.
 */
#include "core/core.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FAILURES_BELIEVED 2
#define SECONDS_BELIEVED  86400
#define SECONDS_APART     60 /* from a failure to the start of a process whose failure counts */

typedef struct record {
    long value;
    unsigned failures; /* in a row; 0: no failure */
    int64_t seconds;   /* since the epoch: when the last that counts was found */
    const char *text;
} record;

int64_t llmk_finding_start(void)
{
    static _Atomic int64_t first_call;
    int64_t known = 0;
    const int64_t now = (int64_t)time(NULL);
    return atomic_compare_exchange_strong(&first_call, &known, now) ? now : known;
}

static bool is_recent(const record *r)
{
    const int64_t now = (int64_t)time(NULL);
    return r->seconds <= now && r->seconds > now - SECONDS_BELIEVED;
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

bool llmk_finding_recall(llmk_context *ctx, const char *what, llmk_finding *found)
{
    char key[1024];
    record r;
    if (!llmk_finding_key(ctx, what, key, sizeof key))
        return false;
    char *bytes = read_record(ctx, key, &r);
    const bool believed =
        bytes && (r.failures == 0 || (r.failures >= FAILURES_BELIEVED && is_recent(&r)));
    *found = (llmk_finding){0, false, NULL};
    if (believed)
        *found = (llmk_finding){r.value, r.failures > 0, strdup(r.text)};
    free(bytes);
    return found->text != NULL;
}

void llmk_finding_warn(const llmk_context *ctx, const char *what, const llmk_finding *found)
{
    llmk_log_write(&ctx->log, LLMK_LOG_WARN,
                   "%s is not used, as in earlier runs (tried again after a day, or without %s): "
                   "%s",
                   what, llmk_cache_dir(ctx->cache), found->text);
}

void llmk_finding_keep(llmk_context *ctx, const char *what, long value, bool failed,
                       const char *text)
{
    char key[1024], bytes[2048];
    unsigned failures = failed;
    int64_t seconds = (int64_t)time(NULL);
    record r;
    if (!llmk_finding_key(ctx, what, key, sizeof key))
        return;
    char *known = failed ? read_record(ctx, key, &r) : NULL;
    if (known && is_recent(&r) && r.value == value && r.failures > 0) {
        const bool counts = ctx->started >= r.seconds + SECONDS_APART;
        failures = r.failures + (counts && r.failures < FAILURES_BELIEVED);
        seconds = counts ? seconds : r.seconds;
    }
    free(known);
    const int n =
        snprintf(bytes, sizeof bytes, "%ld %u %" PRId64 " %s", value, failures, seconds, text);
    llmk_cache_put(ctx->cache, key, bytes, (size_t)n < sizeof bytes ? (size_t)n : sizeof bytes - 1);
}
