#include "formats/mapped_file.h"

#include "formats/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool llmk_map_file(const char *path, llmk_mapped_file *file, char *error, size_t error_size)
{
    struct stat status;
    void *map = MAP_FAILED;
    *file = (llmk_mapped_file){NULL, 0};
    const int handle = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block us */
    if (handle < 0 || fstat(handle, &status) != 0) {
        llmk_format_report(error, error_size, "%s cannot be opened: %s.", path, strerror(errno));
    } else if (!S_ISREG(status.st_mode) || status.st_size <= 0) {
        llmk_format_report(error, error_size, "%s is not a regular file with content.", path);
    } else if ((uint64_t)status.st_size > SIZE_MAX) {
        llmk_format_report(error, error_size, "%s is too large to map.", path);
    } else {
        map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, handle, 0);
        if (map == MAP_FAILED)
            llmk_format_report(error, error_size, "%s cannot be mapped: %s.", path,
                               strerror(errno));
        else
            *file = (llmk_mapped_file){map, (size_t)status.st_size};
    }
    if (handle >= 0)
        (void)close(handle);
    return map != MAP_FAILED;
}

void llmk_unmap_file(llmk_mapped_file *file)
{
    if (file->bytes)
        (void)munmap(file->bytes, file->size);
    *file = (llmk_mapped_file){NULL, 0};
}
