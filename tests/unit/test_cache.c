/* test_cache.c - the cache on disk: what comes back is what was put, or nothing. */
#include "core/core.h"
#include "llmk_cmocka.h"
#include "support/child.h"
#include "support/rng.h"
#include "support/scratch.h"

#include <fcntl.h>
#include <strings.h>
#include <time.h>

static char folder[SCRATCH_PATH]; /* the test's own */

/* ---- A log that counts ---- */

typedef struct log_count {
    unsigned lines;
    char last[2048];
} log_count;

static void on_log(void *user, llmk_log_level level, const char *message)
{
    (void)level;
    log_count *count = user;
    count->lines++;
    snprintf(count->last, sizeof count->last, "%s", message);
}

static log_count said;
static llmk_log test_log;
static llmk_times times;

static int set_up(void **state)
{
    (void)state;
    unsetenv("LLMK_CACHE");
    memset(&said, 0, sizeof said);
    test_log = (llmk_log){.callback = on_log, .user = &said, .level = LLMK_LOG_WARN};
    return scratch_make(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    chmod(folder, 0700);
    scratch_remove(folder);
    return 0;
}

static llmk_cache *open_cache(const char *dir)
{
    return llmk_cache_open(dir, &test_log, &times);
}

static void path_in(char path[2 * SCRATCH_PATH], const char *name)
{
    snprintf(path, 2 * SCRATCH_PATH, "%s/%s", folder, name);
}

/* ---- One blob ---- */

static void assert_blob(llmk_cache *cache, const char *key, const void *data, size_t size)
{
    size_t got_size = 0;
    char *got = llmk_cache_get(cache, key, &got_size);
    assert_non_null(got);
    assert_int_equal(got_size, size);
    assert_memory_equal(got, data, size);
    assert_int_equal(got[size], 0); /* so that texts can be used as they come */
    free(got);
}

static void assert_no_blob(llmk_cache *cache, const char *key)
{
    size_t size = 77;
    assert_null(llmk_cache_get(cache, key, &size));
}

static void test_round_trip(void **state)
{
    (void)state;
    char dir[2 * SCRATCH_PATH];
    path_in(dir, "a/b/c");
    llmk_cache *cache = open_cache(dir);
    assert_string_equal(llmk_cache_dir(cache), dir);
    struct stat st;
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_no_blob(cache, "key");
    rng r = {1};
    static char data[100000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)rng_next(&r);
    const size_t sizes[] = {sizeof data, 1, 0, 4096};
    for (size_t i = 0; i < LLMK_COUNT(sizes); i++) { /* each over the one before */
        llmk_cache_put(cache, "key", data, sizes[i]);
        assert_blob(cache, "key", data, sizes[i]);
    }
    char name[SCRATCH_PATH], path[3 * SCRATCH_PATH];
    assert_int_equal(scratch_list(dir, name), 1); /* no temporary file is left */
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    llmk_cache_put(cache, "other key", "x", 1);
    assert_blob(cache, "key", data, 4096);
    assert_blob(cache, "other key", "x", 1);
    llmk_cache_drop(cache, "key");
    assert_no_blob(cache, "key");
    assert_blob(cache, "other key", "x", 1);
    llmk_cache_close(cache);
    cache = open_cache(dir);
    assert_blob(cache, "other key", "x", 1);
    llmk_cache_close(cache);
    assert_int_equal(said.lines, 0);
}

/* ---- Damage ---- */

#define GOOD_KEY  "a key"
#define GOOD_DATA "some data that is worth keeping"

/* The header of cache.c, as it lies in the file. */
typedef struct header {
    uint32_t magic, key_size;
    uint64_t data_size, checksum;
} header;

typedef struct damage {
    const char *name;
    void (*apply)(unsigned char *bytes, size_t *size); /* NULL: by `truncate` */
    long long truncate;
    bool survives; /* may be ignored without being deleted */
} damage;

static void no_bytes(unsigned char *bytes, size_t *size)
{
    (void)bytes;
    *size = 0;
}
static void half_a_header(unsigned char *bytes, size_t *size)
{
    (void)bytes;
    *size = sizeof(header) / 2;
}
static void one_byte_short(unsigned char *bytes, size_t *size)
{
    (void)bytes;
    *size -= 1;
}
static void one_byte_more(unsigned char *bytes, size_t *size)
{
    bytes[(*size)++] = 0;
}
static void other_magic(unsigned char *bytes, size_t *size)
{
    (void)size;
    bytes[0] ^= 1;
}
static void flipped_data(unsigned char *bytes, size_t *size)
{
    bytes[*size - 1] ^= 0x80;
}
static void flipped_key(unsigned char *bytes, size_t *size)
{
    (void)size;
    bytes[sizeof(header)] ^= 1;
}
static void flipped_checksum(unsigned char *bytes, size_t *size)
{
    (void)size;
    bytes[offsetof(header, checksum)] ^= 1;
}
static void huge_data_size(unsigned char *bytes, size_t *size)
{
    (void)size;
    memset(bytes + offsetof(header, data_size), 0xff, sizeof(uint64_t));
}
static void huge_key_size(unsigned char *bytes, size_t *size)
{
    (void)size;
    memset(bytes + offsetof(header, key_size), 0xff, sizeof(uint32_t));
}
/* Sizes that add up again: the key takes a byte from the data. */
static void moved_border(unsigned char *bytes, size_t *size)
{
    (void)size;
    bytes[offsetof(header, key_size)]++;
    bytes[offsetof(header, data_size)]--;
}
/* Whole, but of another key: a collision, or a file that was renamed. */
static void other_key(unsigned char *bytes, size_t *size)
{
    header h;
    (void)size;
    memcpy(&h, bytes, sizeof h);
    bytes[sizeof h] ^= 1;
    h.checksum = llmk_hash(LLMK_HASH_SEED, bytes + sizeof h, h.key_size);
    h.checksum = llmk_hash(h.checksum, bytes + sizeof h + h.key_size, (size_t)h.data_size);
    memcpy(bytes, &h, sizeof h);
}

static const damage damages[] = {
    {"empty", no_bytes, 0, false},
    {"half a header", half_a_header, 0, false},
    {"one byte short", one_byte_short, 0, false},
    {"one byte more", one_byte_more, 0, false},
    {"another magic", other_magic, 0, false},
    {"a flipped bit of data", flipped_data, 0, false},
    {"a flipped bit of the key", flipped_key, 0, false},
    {"a flipped bit of the checksum", flipped_checksum, 0, false},
    {"a huge data size", huge_data_size, 0, false},
    {"a huge key size", huge_key_size, 0, false},
    {"a moved border", moved_border, 0, false},
    {"another key", other_key, 0, true},
    {"a file of 8 GiB", NULL, (long long)8 << 30, false}, /* sparse */
};

static size_t read_whole(const char *path, unsigned char *bytes, size_t capacity)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, capacity, f);
    fclose(f);
    return n;
}

static void test_damage(void **state)
{
    (void)state;
    llmk_cache *cache = open_cache(folder);
    for (size_t i = 0; i < LLMK_COUNT(damages); i++) {
        char name[SCRATCH_PATH], path[2 * SCRATCH_PATH];
        unsigned char bytes[512];
        memset(&said, 0, sizeof said);
        llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
        assert_blob(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
        assert_int_equal(scratch_list(folder, name), 1);
        path_in(path, name);
        size_t size = read_whole(path, bytes, sizeof bytes - 1);
        if (damages[i].apply) {
            damages[i].apply(bytes, &size);
            assert_true(scratch_write(folder, name, bytes, size));
        } else if (truncate(path, damages[i].truncate) != 0) {
            continue; /* a file system without such files */
        }
        size_t got_size;
        if (llmk_cache_get(cache, GOOD_KEY, &got_size))
            fail_msg("%s: is trusted", damages[i].name);
        const size_t left = scratch_list(folder, NULL);
        if (left != 0 && !damages[i].survives)
            fail_msg("%s: is not deleted", damages[i].name);
        if (left == 0 && (said.lines != 1 || !strstr(said.last, name)))
            fail_msg("%s: %u log lines, the last: %s", damages[i].name, said.lines, said.last);
        /* and the next one works as ever */
        llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
        assert_blob(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
    }
    llmk_cache_close(cache);
}

/* A file of up to 300 bytes of anything, in the place of a blob. */
static void test_random_files(void **state)
{
    (void)state;
    rng r = rng_seed("random files", 3);
    llmk_cache *cache = open_cache(folder);
    char name[SCRATCH_PATH];
    llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
    scratch_list(folder, name);
    for (int round = 0; round < 3000; round++) {
        unsigned char bytes[300];
        const size_t size = rng_below(&r, sizeof bytes);
        for (size_t i = 0; i < size; i++)
            bytes[i] = (unsigned char)rng_next(&r);
        if (rng_one_in(&r, 2))
            memcpy(bytes, "LMK1", 4);
        assert_true(scratch_write(folder, name, bytes, size));
        assert_no_blob(cache, GOOD_KEY);
    }
    llmk_cache_close(cache);
}

/* What is no regular file stays unread, and nothing hangs. */
static void test_other_kinds_of_file(void **state)
{
    (void)state;
    llmk_cache *cache = open_cache(folder);
    char name[SCRATCH_PATH], path[2 * SCRATCH_PATH], target[2 * SCRATCH_PATH];
    llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
    scratch_list(folder, name);
    path_in(path, name);

    path_in(target, "target"); /* a link to a good blob, which is left alone */
    assert_int_equal(rename(path, target), 0);
    assert_int_equal(symlink(target, path), 0);
    assert_no_blob(cache, GOOD_KEY);
    llmk_cache_put(cache, GOOD_KEY, "new", 3);
    assert_blob(cache, GOOD_KEY, "new", 3);
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));

    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_no_blob(cache, GOOD_KEY);
    llmk_cache_put(cache, GOOD_KEY, "new", 3);
    assert_blob(cache, GOOD_KEY, "new", 3);

    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_no_blob(cache, GOOD_KEY);
    llmk_cache_put(cache, GOOD_KEY, "new", 3); /* cannot, and says so once */
    assert_no_blob(cache, GOOD_KEY);
    llmk_cache_close(cache);
}

/* ---- Folders ---- */

static void make_writable_by_others(const char *path)
{
    mkdir(path, 0700);
    chmod(path, 0777);
}
static void make_writable_by_the_group(const char *path)
{
    mkdir(path, 0700);
    chmod(path, 0770);
}
static void make_file(const char *path)
{
    FILE *f = fopen(path, "wb");
    if (f)
        fclose(f);
}
static void make_dangling_link(const char *path)
{
    (void)!symlink("/nonexistent/llmk", path);
}
static void make_loop(const char *path)
{
    (void)!symlink(path, path);
}
static void make_unwritable(const char *path)
{
    mkdir(path, 0500);
}
static void make_link_of_another(const char *path)
{
    (void)!symlink(folder, path);
    (void)!lchown(path, 12345, 12345);
}
static void make_of_another(const char *path)
{
    mkdir(path, 0700);
    (void)!chown(path, 12345, 12345);
}

static void test_bad_folders(void **state)
{
    (void)state;
    const bool root = geteuid() == 0;
    const struct {
        const char *name;
        void (*make)(const char *path);
        bool possible;
    } cases[] = {
        {"world-writable", make_writable_by_others, true},
        {"group-writable", make_writable_by_the_group, true},
        {"a file", make_file, true},
        {"a dangling link", make_dangling_link, true},
        {"a loop of links", make_loop, true},
        {"unwritable", make_unwritable, !root}, /* root may write anywhere */
        {"another user's link", make_link_of_another, root},
        {"another user's", make_of_another, root},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        char path[2 * SCRATCH_PATH];
        if (!cases[i].possible)
            continue;
        path_in(path, "cache");
        cases[i].make(path);
        for (int slash = 0; slash < 2; slash++, strcat(path, "/")) {
            memset(&said, 0, sizeof said);
            llmk_cache *cache = open_cache(path);
            if (llmk_cache_dir(cache))
                fail_msg("%s: is used", cases[i].name);
            if (said.lines != 1 || !strstr(said.last, path))
                fail_msg("%s: %u log lines, the last: %s", cases[i].name, said.lines, said.last);
            llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
            assert_no_blob(cache, GOOD_KEY);
            llmk_cache_drop(cache, GOOD_KEY);
            assert_int_equal(said.lines, 1);
            llmk_cache_close(cache);
        }
        path[strlen(path) - 2] = '\0';
        scratch_remove(path);
        unlink(path);
    }
}

/* A link of one's own is how a cache is moved to another disk. */
static void test_own_link(void **state)
{
    (void)state;
    char target[2 * SCRATCH_PATH], link[2 * SCRATCH_PATH];
    path_in(target, "target");
    path_in(link, "link");
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, link), 0);
    llmk_cache *cache = open_cache(link);
    llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
    assert_blob(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
    assert_int_equal(scratch_list(target, NULL), 1);
    llmk_cache_close(cache);
}

/* The folder vanishes, or fills up, after it was opened: one line, and no more. */
static void test_folder_vanishes(void **state)
{
    (void)state;
    char path[2 * SCRATCH_PATH];
    path_in(path, "cache");
    llmk_cache *cache = open_cache(path);
    rmdir(path);
    for (int i = 0; i < 3; i++) {
        llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
        assert_no_blob(cache, GOOD_KEY);
    }
    assert_int_equal(said.lines, 1);
    assert_non_null(strstr(said.last, "No such file"));
    llmk_cache_close(cache);
}

static void test_which_folder(void **state)
{
    (void)state;
    const char *const names[] = {"LLMK_CACHE", "XDG_CACHE_HOME", "HOME"};
    char saved[3][2 * SCRATCH_PATH];
    for (size_t i = 0; i < 3; i++)
        snprintf(saved[i], sizeof saved[i], "%s", getenv(names[i]) ? getenv(names[i]) : "");
    const struct {
        const char *env, *option, *xdg, *home; /* below the test's folder, but "off" and "rel" */
        const char *expected;                  /* NULL: off */
    } cases[] = {
        {NULL, NULL, "xdg", "home", "xdg/llmk"},
        {NULL, NULL, NULL, "home", "home/.cache/llmk"},
        {NULL, NULL, "rel", "home", "home/.cache/llmk"}, /* XDG: relative paths are ignored */
        {NULL, NULL, NULL, NULL, NULL},
        {NULL, "option", "xdg", "home", "option"},
        {"env", "option", "xdg", "home", "env"},
        {"env", "off", "xdg", "home", "env"},
        {"off", "option", "xdg", "home", NULL},
        {NULL, "off", "xdg", "home", NULL},
        {NULL, "OFF", "xdg", "home", NULL},
    };
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        char text[4][2 * SCRATCH_PATH] = {"", "", "", ""}, expected[2 * SCRATCH_PATH];
        const char *const given[4] = {cases[i].env, cases[i].xdg, cases[i].home, cases[i].option};
        for (size_t n = 0; n < 4; n++) {
            if (given[n] && strcasecmp(given[n], "off") != 0 && strcmp(given[n], "rel") != 0)
                path_in(text[n], given[n]);
            else if (given[n])
                snprintf(text[n], sizeof text[n], "%s", given[n]);
            if (n < 3 && given[n])
                setenv(names[n], text[n], 1);
            else if (n < 3)
                unsetenv(names[n]);
        }
        llmk_cache *cache = open_cache(given[3] ? text[3] : NULL);
        if (cases[i].expected) {
            path_in(expected, cases[i].expected);
            assert_string_equal(llmk_cache_dir(cache), expected);
        } else if (llmk_cache_dir(cache)) {
            fail_msg("case %zu: %s", i, llmk_cache_dir(cache));
        }
        llmk_cache_close(cache);
    }
    for (size_t i = 0; i < 3; i++)
        if (saved[i][0])
            setenv(names[i], saved[i], 1);
        else
            unsetenv(names[i]);
    assert_int_equal(said.lines, 0);
}

/* None of its beginning, which would be another folder. */
static void test_long_folder(void **state)
{
    (void)state;
    const char *const names[] = {"LLMK_CACHE", "XDG_CACHE_HOME"};
    char saved[2][2 * SCRATCH_PATH], path[4 * SCRATCH_PATH];
    for (size_t i = 0; i < 2; i++)
        snprintf(saved[i], sizeof saved[i], "%s", getenv(names[i]) ? getenv(names[i]) : "");
    path_in(path, "xdg");
    while (strlen(path) < 4100)
        strcat(path, "/.");
    for (size_t i = 0; i < 2; i++) {
        setenv(names[1 - i], path, 1);
        unsetenv(names[i]);
        memset(&said, 0, sizeof said);
        llmk_cache *cache = open_cache(NULL);
        assert_null(llmk_cache_dir(cache));
        assert_int_equal(said.lines, 1);
        assert_non_null(strstr(said.last, "nothing is kept on disk"));
        llmk_cache_close(cache);
    }
    for (size_t i = 0; i < 2; i++)
        if (saved[i][0])
            setenv(names[i], saved[i], 1);
        else
            unsetenv(names[i]);
}

static void test_no_cache(void **state)
{
    (void)state;
    size_t size;
    assert_null(llmk_cache_get(NULL, "key", &size));
    llmk_cache_put(NULL, "key", "x", 1);
    llmk_cache_drop(NULL, "key");
    assert_null(llmk_cache_dir(NULL));
    llmk_cache_close(NULL);
}

/* ---- Several processes at once ---- */

#define KEYS   4
#define ROUNDS 300

/* Every blob says which key and round it is of; whatever is read must be whole. */
static int share(const char *dir)
{
    static char data[20000];
    rng r = {(uint64_t)getpid()};
    llmk_cache *cache = open_cache(dir);
    for (int round = 0; round < ROUNDS; round++) {
        const unsigned key = (unsigned)rng_below(&r, KEYS);
        char name[32];
        snprintf(name, sizeof name, "key %u", key);
        if (rng_one_in(&r, 2)) {
            memset(data, (int)rng_below(&r, 256), sizeof data);
            data[0] = (char)key;
            llmk_cache_put(cache, name, data, sizeof data - rng_below(&r, 10000));
            continue;
        }
        size_t size = 0;
        char *got = llmk_cache_get(cache, name, &size);
        for (size_t i = 2; got && i < size; i++)
            if (got[i] != got[1] || got[0] != (char)key)
                return 1;
        free(got);
    }
    llmk_cache_close(cache);
    return 0;
}

/* What killed processes left behind goes after a day, with the first blob that is written; nothing
 * else does. */
static void test_temporaries(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool old, stays;
    } files[] = {
        {"0123456789abcdef.blob.AbC123", true, false},
        {"fedcba9876543210.blob.zzzzzz", true, false},
        {"fedcba9876543210.blob.young1", false, true},
        {"0123456789abcdef.blob", true, true},
        {"0123456789abcdef.blob.AbC1234", true, true},
        {"notes.blob.AbC123", true, true},
        {"0123456789abcdef.text.AbC123", true, true},
    };
    char path[2 * SCRATCH_PATH];
    const struct timespec old[2] = {{time(NULL) - 2 * 24 * 60 * 60, 0},
                                    {time(NULL) - 2 * 24 * 60 * 60, 0}};
    for (size_t i = 0; i < LLMK_COUNT(files); i++) {
        assert_true(scratch_write(folder, files[i].name, "x", 1));
        path_in(path, files[i].name);
        if (files[i].old)
            assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    }
    llmk_cache *cache = open_cache(folder);
    llmk_cache_put(cache, "key", "data", 4);
    assert_blob(cache, "key", "data", 4);
    llmk_cache_close(cache);
    for (size_t i = 0; i < LLMK_COUNT(files); i++) {
        path_in(path, files[i].name);
        if ((access(path, F_OK) == 0) != files[i].stays)
            fail_msg("%s %s", files[i].name, files[i].stays ? "was removed" : "stays");
    }
}

static void set_age(const char *name, time_t seconds)
{
    char path[2 * SCRATCH_PATH];
    const struct timespec then[2] = {{time(NULL) - seconds, 0}, {time(NULL) - seconds, 0}};
    path_in(path, name);
    assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
}

#define DAY INT64_C(86400)

/* A context's first blob; whether the file `name` is still there. */
static bool survives(const char *name)
{
    char path[2 * SCRATCH_PATH];
    llmk_cache *cache = open_cache(folder);
    llmk_cache_put(cache, "another", "data", 4);
    llmk_cache_close(cache);
    path_in(path, name);
    return access(path, F_OK) == 0;
}

/* Blobs that nobody has read for long are removed, by a sweep that comes once a day. */
static void test_old_blobs(void **state)
{
    (void)state;
    char name[SCRATCH_PATH];
    llmk_cache *cache = open_cache(folder);
    llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
    assert_int_equal(scratch_list(folder, name), 1);
    set_age(name, 80 * DAY);
    set_age(".swept", 2 * DAY);
    assert_true(survives(name));
    set_age(name, 100 * DAY);
    assert_true(survives(name)); /* no sweep is due */
    set_age(".swept", -2);
    assert_true(survives(name));
    set_age(".swept", 2 * DAY);
    assert_blob(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA); /* read now */
    assert_true(survives(name));
    set_age(".swept", 2 * DAY);
    set_age(name, 100 * DAY);
    assert_false(survives(name));
    set_age(".swept", -2 * DAY); /* a clock that was wrong does not stop it */
    assert_true(scratch_write(folder, name, "x", 1));
    set_age(name, 100 * DAY);
    assert_false(survives(name));
    llmk_cache_close(cache);
}

/* Where there are very many, sooner. */
static void test_many_blobs(void **state)
{
    (void)state;
    char name[32];
    for (unsigned i = 0; i <= 10000; i++) {
        snprintf(name, sizeof name, "%016x.blob", i);
        assert_true(scratch_write(folder, name, "x", 1));
        if (i < 9000)
            set_age(name, 2 * DAY);
    }
    assert_true(survives("0000000000002710.blob"));
    assert_int_equal(scratch_list(folder, NULL), 10001 - 9000 + 1);
    assert_int_equal(said.lines, 0);
}

/* A file that somebody else wrote, or could have: never believed, whatever its checksum. */
static void test_foreign_blobs(void **state)
{
    (void)state;
    static const struct {
        mode_t mode;
        uid_t owner; /* 0: stays */
        bool believed;
    } files[] = {{0600, 0, true},  {0644, 0, true},  {0666, 0, false},
                 {0620, 0, false}, {0602, 0, false}, {0600, 12345, false}};
    llmk_cache *cache = open_cache(folder);
    for (size_t i = 0; i < LLMK_COUNT(files); i++) {
        char name[SCRATCH_PATH], path[2 * SCRATCH_PATH];
        size_t size;
        memset(&said, 0, sizeof said);
        llmk_cache_put(cache, GOOD_KEY, GOOD_DATA, sizeof GOOD_DATA);
        assert_int_equal(scratch_list(folder, name), 1);
        path_in(path, name);
        assert_int_equal(chmod(path, files[i].mode), 0);
        if (files[i].owner && chown(path, files[i].owner, (gid_t)-1) != 0)
            continue; /* only root may */
        char *got = llmk_cache_get(cache, GOOD_KEY, &size);
        if ((got != NULL) != files[i].believed)
            fail_msg("%zu: is%s believed", i, got ? "" : " not");
        free(got);
        assert_int_equal(said.lines, !files[i].believed);
        if (!files[i].believed)
            assert_non_null(strstr(said.last, "others own or may write"));
    }
    llmk_cache_close(cache);
}

static void test_processes(void **state)
{
    (void)state;
    static child children[4];
    for (size_t i = 0; i < LLMK_COUNT(children); i++)
        child_start(&children[i], "share", folder, NULL);
    for (size_t i = 0; i < LLMK_COUNT(children); i++) {
        child_finish(&children[i]);
        if (!children[i].exited || children[i].code != 0)
            fail_msg("a process read half a blob, or died: %d\n%s", children[i].code,
                     children[i].err);
    }
    assert_in_range(scratch_list(folder, NULL), 1, KEYS);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], CHILD_OPTION) == 0)
        return share(argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damage, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_random_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_kinds_of_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_folders, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_own_link, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folder_vanishes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_which_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_temporaries, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_foreign_blobs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_old_blobs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_blobs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_processes, set_up, tear_down),
        cmocka_unit_test(test_no_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
