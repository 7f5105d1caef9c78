/*
 * cache.c - small blobs on disk: built programs and verdicts of trials.
 *
 * One file a blob, named by the hash of its key; the key itself is in the file, so that a collision
 * reads as absent. A file is written under a temporary name and renamed, so readers see all of it
 * or nothing; whatever does not check is deleted, and what nobody has read for long.
 */
#include "core/core.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOB_MAGIC     0x314b4d4cu /* "LMK1" */
#define MAX_BLOB_BYTES (256u << 20)
#define MAX_KEY_BYTES  65536u
/* Seconds. The time of a blob's last change is kept as the last time that it was read, to an hour:
 * access times are often off. */
#define MAX_TEMPORARY_AGE INT64_C(86400)
#define TOUCH_AGE         INT64_C(3600)
#define SWEEP_AGE         INT64_C(86400)
#define MOST_AHEAD        INT64_C(3600) /* file systems keep finer times than time() tells */
#define MAX_BLOB_AGE      (90 * INT64_C(86400))
#define MAX_CROWDED_AGE   INT64_C(86400)
#define MANY_BLOBS        10000
#define SWEEP_STAMP       ".swept"

typedef struct blob_header {
    uint32_t magic;
    uint32_t key_size;
    uint64_t data_size;
    uint64_t checksum; /* of key and data */
} blob_header;

struct llmk_cache {
    const llmk_log *log;
    llmk_times *times;
    char *dir; /* NULL: off */
    atomic_bool broken, swept;
};

static char *joined(const char *folder, const char *rest)
{
    const size_t size = strlen(folder) + strlen(rest) + 1;
    char *path = malloc(size);
    if (path)
        llmk_join(path, size, folder, rest, NULL);
    return path;
}

/* LLMK_CACHE, then the option, then the XDG cache folder; NULL where off or nowhere. */
static char *choose_dir(const char *option)
{
    const char *dir = getenv("LLMK_CACHE");
    if (!dir || dir[0] == '\0')
        dir = option;
    if (dir && dir[0] != '\0')
        return strcasecmp(dir, "off") == 0 ? NULL : strdup(dir);
    const char *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    return xdg && xdg[0] == '/'     ? joined(xdg, "/llmk")
           : home && home[0] == '/' ? joined(home, "/.cache/llmk")
                                    : NULL;
}

/* mkdir -p with mode 0700; true if the folder is there, ours, and closed to writing by others. A
 * symbolic link must be ours as well, or another user could point us at any folder we own. */
static bool make_dir(const char *dir)
{
    char path[sizeof((llmk_cache_info *)NULL)->folder];
    if (strlen(dir) >= sizeof path)
        return false;
    snprintf(path, sizeof path, "%s", dir);
    for (char *p = path + 1;; p++) {
        const char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        mkdir(path, 0700); /* what comes of it shows below */
        *p = c;
        if (c == '\0')
            break;
    }
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/';)
        path[--n] = '\0'; /* lstat would follow the link */
    struct stat st;
    return lstat(path, &st) == 0 && st.st_uid == geteuid() && stat(path, &st) == 0 &&
           S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           (st.st_mode & (S_IWGRP | S_IWOTH)) == 0 && access(dir, R_OK | W_OK | X_OK) == 0;
}

llmk_cache *llmk_cache_open(const char *dir_option, const llmk_log *log, llmk_times *times)
{
    llmk_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return NULL;
    cache->log = log;
    cache->times = times;
    cache->dir = choose_dir(dir_option);
    if (cache->dir && !make_dir(cache->dir)) {
        char head[1025];
        llmk_join(head, sizeof head, cache->dir, NULL);
        llmk_log_write(log, LLMK_LOG_WARN,
                       "the cache folder %s cannot be used (it must be writable, and by its owner "
                       "alone): nothing is kept on disk",
                       head);
        free(cache->dir);
        cache->dir = NULL;
    }
    return cache;
}

void llmk_cache_close(llmk_cache *cache)
{
    if (!cache)
        return;
    free(cache->dir);
    free(cache);
}

const char *llmk_cache_dir(const llmk_cache *cache)
{
    return cache ? cache->dir : NULL;
}

static bool blob_path(const llmk_cache *cache, const char *key, char *path, size_t size)
{
    if (!cache || !cache->dir)
        return false;
    const uint64_t hash = llmk_hash(LLMK_HASH_SEED, key, strlen(key));
    return (size_t)snprintf(path, size, "%s/%016" PRIx64 ".blob", cache->dir, hash) < size;
}

static bool write_all(int fd, const void *data, size_t size)
{
    const char *p = data;
    while (size > 0) {
        const ssize_t n = write(fd, p, size);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return false;
        }
        p += n;
        size -= (size_t)n;
    }
    return true;
}

/* In two parts, here and there: llmk_hash of the whole is another number. */
static uint64_t checksum(const void *key, size_t key_size, const void *data, size_t size)
{
    return llmk_hash(llmk_hash(LLMK_HASH_SEED, key, key_size), data, size);
}

typedef enum blob_verdict { BLOB_GOOD, BLOB_OTHER_KEY, BLOB_DAMAGED, BLOB_FOREIGN } blob_verdict;

static blob_verdict read_blob(int fd, const char *key, void **data, size_t *size)
{
    struct stat st;
    blob_header h;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return BLOB_DAMAGED;
    /* A checksum is no proof of who wrote it. */
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return BLOB_FOREIGN;
    if (st.st_size < (off_t)sizeof h || !llmk_read_all(fd, &h, sizeof h))
        return BLOB_DAMAGED;
    /* Sizes are believed only where they add up to the file's. */
    if (h.magic != BLOB_MAGIC || h.key_size > MAX_KEY_BYTES || h.data_size > MAX_BLOB_BYTES ||
        (uint64_t)st.st_size != sizeof h + (uint64_t)h.key_size + h.data_size)
        return BLOB_DAMAGED;
    const size_t total = (size_t)h.key_size + (size_t)h.data_size;
    char *bytes = malloc(total + 1);
    if (!bytes)
        return BLOB_OTHER_KEY;
    if (!llmk_read_all(fd, bytes, total) ||
        checksum(bytes, h.key_size, bytes + h.key_size, (size_t)h.data_size) != h.checksum) {
        free(bytes);
        return BLOB_DAMAGED;
    }
    if (h.key_size != strlen(key) || memcmp(bytes, key, h.key_size) != 0) {
        free(bytes);
        return BLOB_OTHER_KEY;
    }
    memmove(bytes, bytes + h.key_size, (size_t)h.data_size);
    bytes[h.data_size] = '\0'; /* texts can be used as strings */
    *data = bytes;
    *size = (size_t)h.data_size;
    if (time(NULL) - st.st_mtime > TOUCH_AGE)
        futimens(fd, NULL);
    return BLOB_GOOD;
}

void *llmk_cache_get(llmk_cache *cache, const char *key, size_t *size)
{
    char path[4400];
    if (!blob_path(cache, key, path, sizeof path))
        return NULL;
    const uint64_t start = llmk_now();
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    void *data = NULL;
    blob_verdict verdict = BLOB_OTHER_KEY;
    if (fd >= 0) {
        verdict = read_blob(fd, key, &data, size);
        close(fd);
    }
    llmk_times_add(cache->times, LLMK_PHASE_CACHE, start);
    if (verdict == BLOB_DAMAGED || verdict == BLOB_FOREIGN) {
        llmk_log_write(cache->log, LLMK_LOG_WARN, "deleting the %s %s",
                       verdict == BLOB_DAMAGED ? "damaged cache file"
                                               : "cache file that others own or may write",
                       path);
        unlink(path);
    }
    return data;
}

typedef enum file_kind { FILE_BLOB, FILE_TEMPORARY, FILE_OTHER } file_kind;

/* "0123456789abcdef.blob", and with ".XXXXXX" */
static file_kind kind_of(const char *name)
{
    const size_t hash = strspn(name, "0123456789abcdef");
    if (hash != 16 || strncmp(name + hash, ".blob", 5) != 0)
        return FILE_OTHER;
    const char *rest = name + hash + 5;
    return rest[0] == '\0'                       ? FILE_BLOB
           : rest[0] == '.' && strlen(rest) == 7 ? FILE_TEMPORARY
                                                 : FILE_OTHER;
}

static size_t count_blobs(DIR *dir)
{
    size_t count = 0;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += kind_of(entry->d_name) == FILE_BLOB;
    rewinddir(dir);
    return count;
}

/* A sweep looks at every file: once a day will do, whoever does it. */
static bool sweep_is_due(int dir, time_t now)
{
    struct stat st;
    if (fstatat(dir, SWEEP_STAMP, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        st.st_mtime - now < MOST_AHEAD && now - st.st_mtime < SWEEP_AGE)
        return false;
    const int stamp =
        openat(dir, SWEEP_STAMP, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (stamp >= 0) {
        futimens(stamp, NULL);
        close(stamp);
    }
    return true;
}

/* Removes what processes that were killed between write and rename left behind (nobody writes for a
 * day), and blobs that nobody has read for long; not for so long where there are many. */
static void sweep(const llmk_cache *cache)
{
    DIR *dir = opendir(cache->dir);
    const time_t now = time(NULL);
    if (dir && sweep_is_due(dirfd(dir), now)) {
        const int64_t blob_age = count_blobs(dir) > MANY_BLOBS ? MAX_CROWDED_AGE : MAX_BLOB_AGE;
        for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
            struct stat st;
            const file_kind kind = kind_of(entry->d_name);
            const int64_t most = kind == FILE_TEMPORARY ? MAX_TEMPORARY_AGE : blob_age;
            if (kind != FILE_OTHER &&
                fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                S_ISREG(st.st_mode) && now - st.st_mtime > most)
                unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    if (dir)
        closedir(dir);
}

void llmk_cache_put(llmk_cache *cache, const char *key, const void *data, size_t size)
{
    char path[4400], temporary[4500];
    const size_t key_size = strlen(key);
    if (size > MAX_BLOB_BYTES || key_size > MAX_KEY_BYTES ||
        !blob_path(cache, key, path, sizeof path))
        return;
    const uint64_t start = llmk_now();
    if (!atomic_exchange(&cache->swept, true))
        sweep(cache);
    /* A random name: process ids are not unique where containers share the folder. */
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    const int fd = mkstemp(temporary);
    bool ok = fd >= 0;
    int why = errno;
    if (ok) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        const blob_header h = {BLOB_MAGIC, (uint32_t)key_size, size,
                               checksum(key, key_size, data, size)};
        ok = write_all(fd, &h, sizeof h) && write_all(fd, key, key_size) &&
             write_all(fd, data, size);
        ok = close(fd) == 0 && ok;
        ok = ok && rename(temporary, path) == 0;
        why = errno;
        if (!ok)
            unlink(temporary);
    }
    if (!ok && !atomic_exchange(&cache->broken, true))
        llmk_log_write(cache->log, LLMK_LOG_WARN, "cannot write to the cache folder %s: %s",
                       cache->dir, strerror(why));
    llmk_times_add(cache->times, LLMK_PHASE_CACHE, start);
}

void llmk_cache_drop(llmk_cache *cache, const char *key)
{
    char path[4400];
    if (blob_path(cache, key, path, sizeof path))
        unlink(path);
}

llmk_status llmk_context_cache_info(llmk_context *ctx, llmk_cache_info *info)
{
    LLMK_TRY(llmk_context_usable(ctx));
    if (!info)
        return llmk_fail(LLMK_INVALID_ARGUMENT, "llmk_context_cache_info: info is NULL");
    llmk_cache_info full = {0};
    LLMK_TRY(llmk_check_info("llmk_context_cache_info", info->struct_size, sizeof full));
    const char *folder = llmk_cache_dir(ctx->cache);
    DIR *dir = folder ? opendir(folder) : NULL;
    if (dir)
        snprintf(full.folder, sizeof full.folder, "%s", folder);
    const struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) {
        struct stat st;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode) && strcmp(entry->d_name, SWEEP_STAMP) != 0) {
            full.files++;
            full.bytes += (uint64_t)st.st_size;
        }
    }
    if (dir)
        closedir(dir);
    llmk_fill_info(info, info->struct_size, &full, sizeof full);
    return LLMK_OK;
}
