#include "tools/common/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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

static int status_of_output(const char *tool, int status)
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

int tool_main(const char *tool, int (*run)(int argc, char **argv), int argc, char **argv)
{
    occupy_streams();
    return status_of_output(tool, run(argc, argv));
}
