/* log.c - messages to the caller's callback and, where LLMK_LOG asks for it, to stderr. */
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static const char *const level_names[] = {"none", "error", "warn", "info", "debug"};

llmk_status llmk_log_init(llmk_log *log, const llmk_context_options *options)
{
    log->callback = options->log;
    log->user = options->log_user;
    log->level = options->log_level == LLMK_LOG_NONE ? LLMK_LOG_WARN : options->log_level;
    log->env_level = LLMK_LOG_NONE;
    const char *env = getenv("LLMK_LOG");
    if (!env || env[0] == '\0')
        return LLMK_OK;
    for (int i = LLMK_LOG_NONE; i <= LLMK_LOG_DEBUG; i++)
        if (strcasecmp(env, level_names[i]) == 0) {
            log->env_level = (llmk_log_level)i;
            return LLMK_OK;
        }
    return llmk_fail(LLMK_INVALID_ARGUMENT,
                     "LLMK_LOG is \"%s\"; expected none, error, warn, info or debug", env);
}

void llmk_log_write(const llmk_log *log, llmk_log_level level, const char *fmt, ...)
{
    const bool to_callback = log->callback && level <= log->level;
    const bool to_stderr = level <= log->env_level;
    if (!to_callback && !to_stderr)
        return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    llmk_vprint(text, sizeof text, fmt, args);
    va_end(args);
    llmk_make_printable(text, false);
    if (to_callback)
        log->callback(log->user, level, text);
    if (to_stderr)
        fprintf(stderr, "llmk %s: %s\n", level_names[level], text);
}
