/* How readers and writers of files report a failure. */
#ifndef LLMK_FORMATS_REPORT_H
#define LLMK_FORMATS_REPORT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline void
llmk_format_report(char *error, size_t error_size, const char *format, ...)
{
    if (error && error_size) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(error, error_size, format, arguments);
        va_end(arguments);
    }
}

/* Reports and is false, so that a check can end in it; a macro, for static analysis to see that. */
#define llmk_format_fail(error, error_size, ...)                                                   \
    (llmk_format_report(error, error_size, __VA_ARGS__), false)

#endif
