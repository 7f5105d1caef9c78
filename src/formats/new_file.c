#include "formats/new_file.h"

#include "formats/report.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool llmk_new_file_open(llmk_new_file *w, const char *path, char *error, size_t error_size)
{
    const size_t room = strlen(path) + 48;
    struct stat there;
    memset(w, 0, sizeof *w);
    if (!path[0])
        return llmk_format_fail(error, error_size, "A file has no name.");
    /* The rename at the end would put a file in the place of a device, a pipe or a link. */
    const bool replaces = lstat(path, &there) == 0;
    if (replaces && !S_ISREG(there.st_mode))
        return llmk_format_fail(error, error_size, "%s exists and is not a regular file.", path);
    w->temporary = malloc(room);
    if (!w->temporary)
        return llmk_format_fail(error, error_size, "No memory for a path.");

    /* What only its owner could read stays so. */
    const mode_t mode = replaces ? there.st_mode & 0777 : 0666;
    int file = -1;
    for (int attempt = 0; file < 0 && attempt < 100; attempt++) {
        (void)snprintf(w->temporary, room, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
        file = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (file < 0 && errno != EEXIST)
            break;
    }
    if (file >= 0) {
        if (replaces) /* what umask took off; not all file systems have modes */
            (void)fchmod(file, mode);
        w->stream = fdopen(file, "wb");
        if (w->stream)
            return true;
        const int why = errno; /* what follows may change it */
        (void)close(file);
        (void)unlink(w->temporary);
        errno = why;
    }
    llmk_format_report(error, error_size, "%s cannot be created: %s.", path, strerror(errno));
    free(w->temporary);
    return false;
}

void llmk_new_file_put(llmk_new_file *w, const void *bytes, size_t size)
{
    if (!w->failure && size && fwrite(bytes, 1, size, w->stream) != size)
        w->failure = errno ? errno : EIO;
    w->at += size;
}

/* Sentences are about the file that was asked for: nobody knows the temporary one, whose name is
 * the file's and more. */
static void name_path(char *error, size_t error_size, const char *temporary, const char *path)
{
    char *at = error && error_size ? strstr(error, temporary) : NULL;
    if (at) {
        char *rest = at + strlen(temporary);
        memmove(at + strlen(path), rest, strlen(rest) + 1);
    }
}

bool llmk_new_file_close(llmk_new_file *w, bool ok, const char *path,
                         bool (*verify)(const char *path, char *error, size_t error_size),
                         char *error, size_t error_size)
{
    if (!w->failure && (fflush(w->stream) != 0 || fsync(fileno(w->stream)) != 0))
        w->failure = errno;
    if (fclose(w->stream) != 0 && !w->failure)
        w->failure = errno;
    if (ok && w->failure)
        ok = llmk_format_fail(error, error_size, "%s cannot be written: %s.", path,
                              strerror(w->failure));
    if (ok && verify && !verify(w->temporary, error, error_size)) {
        name_path(error, error_size, w->temporary, path);
        ok = false;
    }
    if (ok && rename(w->temporary, path) != 0)
        ok =
            llmk_format_fail(error, error_size, "%s cannot be written: %s.", path, strerror(errno));
    if (!ok)
        (void)unlink(w->temporary);
    free(w->temporary);
    return ok;
}

bool llmk_new_file_possible(const char *path, char *error, size_t error_size)
{
    llmk_new_file trial;
    if (!llmk_new_file_open(&trial, path, error, error_size))
        return false;
    llmk_new_file_close(&trial, false, path, NULL, NULL, 0); /* and away with it */
    return true;
}

/* "NAME.1234-0.tmp" */
static bool is_temporary_of(const char *entry, const char *name)
{
    static const char digits[] = "0123456789";
    const size_t length = strlen(name);
    if (strncmp(entry, name, length) != 0 || entry[length] != '.')
        return false;
    const char *process = entry + length + 1, *dash = process + strspn(process, digits);
    const char *end = *dash == '-' ? dash + 1 + strspn(dash + 1, digits) : dash;
    return dash > process && end > dash + 1 && strcmp(end, ".tmp") == 0;
}

void llmk_new_file_sweep(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    char *folder = slash ? strndup(path, (size_t)(name - path)) : strdup(".");
    DIR *dir = folder ? opendir(folder) : NULL;
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;)
        if (is_temporary_of(entry->d_name, name))
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        (void)closedir(dir);
    free(folder);
}

bool llmk_same_file(const char *a, const char *b)
{
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}
