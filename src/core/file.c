/* file.c - reading what anybody may have put there: regular files alone, and not without end. */
#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

bool llmk_read_all(int fd, void *data, size_t size)
{
    char *p = data;
    errno = 0;
    while (size > 0) {
        const ssize_t n = read(fd, p, size);
        if (n <= 0) {
            if (n < 0 && errno == EINTR)
                continue;
            return false;
        }
        p += n;
        size -= (size_t)n;
    }
    return true;
}

char *llmk_read_file(const char *path, size_t most, size_t *length, llmk_reason *why)
{
    struct stat st;
    char *bytes = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block us */
    int error = fd < 0 ? errno : 0;
    if (fd < 0) {
        llmk_no(why, "%s", strerror(error));
    } else if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        llmk_no(why, "it is not a regular file");
    } else if (st.st_size > (off_t)most) {
        llmk_no(why, "it is larger than %zu MiB", most >> 20);
    } else if (!(bytes = malloc((size_t)st.st_size + 1))) {
        error = ENOMEM;
        llmk_no(why, "no memory for it");
    } else if (!llmk_read_all(fd, bytes, (size_t)st.st_size)) {
        llmk_no(why, "%s", errno ? strerror(errno) : "it becomes shorter");
        free(bytes);
        bytes = NULL;
    } else {
        *length = (size_t)st.st_size;
    }
    if (fd >= 0)
        close(fd);
    errno = error;
    return bytes;
}
