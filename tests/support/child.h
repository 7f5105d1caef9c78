/* child.h - a test runs itself anew, with another environment, and looks at what comes out: for
 * what a process decides once, and for what may kill it. */
#ifndef LLMK_TESTS_CHILD_H
#define LLMK_TESTS_CHILD_H

#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* What a child is called with: `program --child MODE ARGUMENT`. */
#define CHILD_OPTION "--child"

typedef struct child {
    pid_t pid;
    FILE *out_file, *err_file;
    bool exited;
    int code; /* of the exit, or the signal */
    char out[32768], err[32768];
} child;

#define CHILD_MAX_ENV 512

static inline bool child_same_name(const char *entry, const char *other)
{
    const size_t n = strcspn(entry, "=");
    return strncmp(entry, other, n) == 0 && (other[n] == '=' || other[n] == '\0');
}

/* `env`: "NAME=VALUE", or "NAME" to take it away; NULL-terminated, may be NULL. Nothing of LLMK_
 * is inherited but the seed. */
static inline void child_start(child *c, const char *mode, const char *argument,
                               const char *const *env)
{
    char *all[CHILD_MAX_ENV];
    size_t count = 0;
    for (char **e = environ; *e && count + 64 < CHILD_MAX_ENV; e++) {
        bool keep = strncmp(*e, "LLMK_", 5) != 0 || child_same_name("LLMK_TEST_SEED", *e);
        for (const char *const *o = env; keep && o && *o; o++)
            keep = !child_same_name(*o, *e);
        if (keep)
            all[count++] = *e;
    }
    for (const char *const *o = env; o && *o; o++)
        if (strchr(*o, '='))
            all[count++] = (char *)(void *)(size_t)*o;
    all[count] = NULL;

    memset(c, 0, sizeof *c);
    c->out_file = tmpfile();
    c->err_file = tmpfile();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(c->out_file), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(c->err_file), STDERR_FILENO);
    char *const argv[] = {(char *)"test", (char *)CHILD_OPTION, (char *)(void *)(size_t)mode,
                          (char *)(void *)(size_t)(argument ? argument : ""), NULL};
    if (posix_spawn(&c->pid, "/proc/self/exe", &actions, NULL, argv, all) != 0)
        c->pid = -1;
    posix_spawn_file_actions_destroy(&actions);
}

static inline void child_read(FILE *f, char *text, size_t size)
{
    rewind(f);
    text[fread(text, 1, size - 1, f)] = '\0';
    fclose(f);
}

static inline void child_finish(child *c)
{
    int status = -1;
    if (c->pid > 0)
        waitpid(c->pid, &status, 0);
    c->exited = c->pid > 0 && WIFEXITED(status);
    c->code = c->exited ? WEXITSTATUS(status) : WIFSIGNALED(status) ? WTERMSIG(status) : -1;
    child_read(c->out_file, c->out, sizeof c->out);
    child_read(c->err_file, c->err, sizeof c->err);
}

static inline void child_run(child *c, const char *mode, const char *argument,
                             const char *const *env)
{
    child_start(c, mode, argument, env);
    child_finish(c);
}

/* Lines of `text` that begin with `prefix`. */
static inline size_t child_lines(const char *text, const char *prefix)
{
    size_t count = 0;
    for (const char *p = text; p && *p; p = (p = strchr(p, '\n')) ? p + 1 : NULL)
        count += strncmp(p, prefix, strlen(prefix)) == 0;
    return count;
}

#endif
