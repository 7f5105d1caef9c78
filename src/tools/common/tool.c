#include "tools/common/tool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int tool_exit(const char *tool, int status)
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
