#include "tools/common/tool.h"

#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Where a standard stream is closed, no file or pipe of ours is to take its place. */
static void occupy_streams(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0 && fd <= STDERR_FILENO)
        ;
    if (fd >= 0)
        close(fd);
}

static const char *tool; /* its name */

static int status_of_output(int status)
{
    errno = 0;
    const int failed = fflush(stdout);
    const int why = errno;
    if (!failed && !ferror(stdout))
        return status;
    /* What stdio wrote before this has lost its errno. */
    fprintf(stderr, "%s: the output cannot be written: %s\n", tool,
            failed && why ? strerror(why) : "an earlier write failed");
    return status ? status : 1;
}

int tool_main(const char *name, int (*run)(int argc, char **argv), int argc, char **argv)
{
    tool = name;
    occupy_streams();
    return status_of_output(run(argc, argv));
}

int tool_option(int argc, char **argv, const char *letters, const struct option *options)
{
    const int option = getopt_long(argc, argv, letters, options, NULL);
    for (; option != -1 && option != '?' && optarg && !*optarg && options->name; options++)
        if (options->val == option) {
            tool_complain("--%s is empty", options->name);
            return '?';
        }
    return option;
}

void tool_progress(const char *fmt, ...)
{
    char text[512];
    struct winsize window;
    va_list list;
    if (!isatty(STDERR_FILENO))
        return;
    /* A line that goes on in the next could not be taken away again. */
    size_t size =
        ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col ? window.ws_col : 80;
    size = size < sizeof text ? size : sizeof text;
    va_start(list, fmt);
    llmk_vprint(text, size, fmt, list);
    va_end(list);
    fprintf(stderr, "\r\033[K%s", text);
}

int tool_complain(const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    tool_progress("%s", "");
    fprintf(stderr, "%s: ", tool);
    vfprintf(stderr, fmt, list);
    fputc('\n', stderr);
    va_end(list);
    return 2;
}

bool tool_number(const char *text, double least, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && *value >= least && *value < 1e15;
}

/* ---- Sentences ---- */

static struct {
    const char *what, *option;
} names[4];

void tool_names(const char *what, const char *option)
{
    size_t i = 0;
    while (i + 1 < sizeof names / sizeof *names && names[i].what &&
           strcmp(names[i].what, what) != 0)
        i++;
    names[i].what = what;
    names[i].option = option;
}

int tool_sets(const char *variable, const char *option, const char *value)
{
    tool_names(variable, option);
    return setenv(variable, value, 1);
}

const char *tool_error_message(void)
{
    static char text[8192];
    const char *message = llmk_error_message();
    for (size_t i = 0; i < sizeof names / sizeof *names && names[i].what; i++) {
        const size_t length = strlen(names[i].what);
        if (strncmp(message, names[i].what, length) == 0) {
            snprintf(text, sizeof text, "%s%s", names[i].option, message + length);
            return text;
        }
    }
    return message;
}
