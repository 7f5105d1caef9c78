/* tune_link.c - one worker process, asked over two pipes. */
#include "tools/common/tune_link.h"

#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Making a case computes its reference on the host. */
#define CASE_LIMIT 300.0
/* s: while the tuner is stopped (Ctrl-Z) its worker is as well, and no longer wait counts. */
#define LONGEST_POLL 1.0
/* Times so many seconds as asked for: slow calls of two by turns (bench_measure.h) need not hang. */
#define MOST_OVER 20

volatile sig_atomic_t tune_interrupted;

double tune_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- The process ---- */

static bool start(tune_link *link, char why[TUNE_WHY])
{
    int in[2], out[2];
    static char *const argv[] = {"llmk-tune", "--worker", NULL};
    if (pipe(in) != 0) {
        snprintf(why, TUNE_WHY, "no pipe to a worker: %s", strerror(errno));
        return false;
    }
    if (pipe(out) != 0) {
        snprintf(why, TUNE_WHY, "no pipe to a worker: %s", strerror(errno));
        close(in[0]);
        close(in[1]);
        return false;
    }
    fcntl(in[1], F_SETFD, FD_CLOEXEC);
    fcntl(out[0], F_SETFD, FD_CLOEXEC);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[0]);
        close(out[1]);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    if (pid < 0) {
        snprintf(why, TUNE_WHY, "no worker process: %s", strerror(errno));
        close(in[1]);
        close(out[0]);
        return false;
    }
    link->worker = pid;
    link->to = in[1];
    link->from = out[0];
    return true;
}

/* Ends the worker, whatever it is at; says how it ended by itself, or "". */
static void stop(tune_link *link, char *how, size_t size)
{
    int status = 0;
    how[0] = '\0';
    if (!link->worker)
        return;
    close(link->to);
    close(link->from);
    /* A worker that closed its pipe is about to end by itself: a moment for its status. */
    pid_t done = 0;
    for (int i = 0; i < 20 && done == 0; i++) {
        done = waitpid(link->worker, &status, WNOHANG);
        if (done == 0)
            nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    if (done == 0) {
        kill(link->worker, SIGKILL);
        waitpid(link->worker, &status, 0);
    } else if (WIFSIGNALED(status)) {
        snprintf(how, size, "it ended with signal %d", WTERMSIG(status));
    } else {
        snprintf(how, size, "it exited with status %d", WEXITSTATUS(status));
    }
    link->worker = 0;
}

void tune_link_close(tune_link *link)
{
    char how[64];
    stop(link, how, sizeof how);
}

/* ---- Requests ---- */

typedef enum reply { REPLY_LINE, REPLY_ENDED, REPLY_LATE, REPLY_STOP } reply;

static bool put(const tune_link *link, const char *text)
{
    size_t size = strlen(text);
    while (size > 0) {
        const ssize_t n = write(link->to, text, size);
        if (n < 0 && errno != EINTR)
            return false;
        text += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static reply get(tune_link *link, double limit)
{
    size_t length = 0;
    double before = tune_now();
    for (;;) {
        const double now = tune_now();
        limit -= fmin(now - before, LONGEST_POLL);
        before = now;
        if (tune_interrupted || (link->deadline > 0 && now >= link->deadline))
            return REPLY_STOP;
        if (limit <= 0)
            return REPLY_LATE;
        double wait = limit;
        if (link->deadline > 0)
            wait = fmin(wait, link->deadline - now);
        struct pollfd fd = {.fd = link->from, .events = POLLIN};
        if (poll(&fd, 1, (int)fmin(ceil(wait * 1000), 200)) <= 0)
            continue;
        const ssize_t n = read(link->from, link->answer + length, sizeof link->answer - 1 - length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return REPLY_ENDED;
        length += (size_t)n;
        link->answer[length] = '\0';
        if (link->answer[length - 1] == '\n') {
            link->answer[length - 1] = '\0';
            return REPLY_LINE;
        }
        if (length == sizeof link->answer - 1)
            return REPLY_ENDED; /* no worker of ours */
    }
}

/* TUNE_OK: link->answer begins behind "ok\t". */
static tune_answer ask(tune_link *link, const char *request, double limit, char why[TUNE_WHY])
{
    char how[64];
    const double began = tune_now();
    reply r = put(link, request) ? get(link, limit) : REPLY_ENDED;
    *(strncmp(request, link->with, strlen(link->with)) == 0 ? &link->making
      : strncmp(request, "check", 5) == 0                   ? &link->checking
                                                            : &link->timing) += tune_now() - began;
    if (r == REPLY_STOP) {
        kill(link->worker, SIGKILL);
        stop(link, how, sizeof how);
        return TUNE_STOP;
    }
    if (r == REPLY_LINE && strncmp(link->answer, "ok", 2) == 0) {
        memmove(link->answer, link->answer + 2, strlen(link->answer + 2) + 1);
        return TUNE_OK;
    }
    if (r == REPLY_LINE) {
        llmk_join(why, TUNE_WHY,
                  strncmp(link->answer, "no\t", 3) == 0 ? link->answer + 3 : link->answer, NULL);
        return TUNE_BAD;
    }
    if (r == REPLY_LATE)
        kill(link->worker, SIGKILL);
    stop(link, how, sizeof how);
    if (r == REPLY_LATE)
        snprintf(why, TUNE_WHY, "no answer within %g s: it hangs", limit);
    else
        snprintf(why, TUNE_WHY, "the worker crashed: %s", how[0] ? how : "it closed its pipe");
    return TUNE_BAD;
}

static tune_answer give_case(tune_link *link, char why[TUNE_WHY])
{
    char request[600];
    if (!link->worker && !start(link, why))
        return TUNE_BAD;
    snprintf(request, sizeof request, "%s %s\n", link->with, link->text);
    return ask(link, request, CASE_LIMIT, why);
}

static tune_answer take(tune_link *link, const char *with, const char *text, tune_problem *problem,
                        char why[TUNE_WHY])
{
    link->with = with;
    *problem = (tune_problem){.count = 0};
    snprintf(link->text, sizeof link->text, "%s", text);
    const tune_answer answer = give_case(link, why);
    if (answer != TUNE_OK)
        return answer;
    char *word = link->answer;
    for (size_t i = 0; word; i++) {
        char *tab = strchr(word, '\t');
        if (tab)
            *tab = '\0';
        if (i == 1)
            llmk_join(problem->types, sizeof problem->types, word, NULL);
        else if (i == 2)
            llmk_join(problem->shape, sizeof problem->shape, word, NULL);
        else if (i == 3)
            llmk_join(problem->fallback, sizeof problem->fallback, word, NULL);
        else if (i == 4)
            llmk_join(problem->unchanged, sizeof problem->unchanged, word, NULL);
        else if (i > 4 && problem->count < TUNE_CANDIDATES)
            llmk_join(problem->candidates[problem->count++], TUNE_NAME, word, NULL);
        word = tab ? tab + 1 : NULL;
    }
    return TUNE_OK;
}

tune_answer tune_link_case(tune_link *link, const char *text, tune_problem *problem,
                           char why[TUNE_WHY])
{
    return take(link, "case", text, problem, why);
}

tune_answer tune_link_again(tune_link *link, const char *text, tune_problem *problem,
                            char why[TUNE_WHY])
{
    return take(link, "again", text, problem, why);
}

/* A request about a candidate, with a worker that has the case. */
static tune_answer ask_about(tune_link *link, const char *request, double seconds,
                             char why[TUNE_WHY])
{
    char how[64];
    if (!link->worker) {
        const tune_answer answer = give_case(link, why);
        if (answer != TUNE_OK)
            return answer;
    }
    const tune_answer answer = ask(link, request, link->limit + MOST_OVER * seconds, why);
    if (answer == TUNE_BAD && link->worker) {
        /* What wrote something wrong may have written elsewhere as well, and what failed on the
         * device may have left a context in which nothing works. */
        kill(link->worker, SIGKILL);
        stop(link, how, sizeof how);
    }
    return answer;
}

static tune_answer check(void *user, const char *candidate, char why[TUNE_WHY])
{
    char request[TUNE_NAME + 32];
    snprintf(request, sizeof request, "check %s\n", candidate);
    return ask_about(user, request, 0, why);
}

/* The numbers of an answer; false where there are fewer. */
static bool read_numbers(const char *text, double *const *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *end;
        *numbers[i] = strtod(text, &end);
        if (end == text)
            return false;
        text = end;
    }
    return true;
}

static tune_answer ask_time(tune_link *link, const char *request, double seconds,
                            tune_timing *timing, char why[TUNE_WHY])
{
    double *const numbers[] = {&timing->us, &timing->spread};
    snprintf(why, TUNE_WHY, "its worker gave no times");
    const tune_answer answer = ask_about(link, request, seconds, why);
    return answer != TUNE_OK || read_numbers(link->answer, numbers, LLMK_COUNT(numbers)) ? answer
                                                                                         : TUNE_BAD;
}

static tune_answer time_one(void *user, const char *candidate, double seconds, double hopeless_us,
                            tune_timing *timing, char why[TUNE_WHY])
{
    char request[TUNE_NAME + 64];
    snprintf(request, sizeof request, "time %s %g %g\n", candidate, seconds, hopeless_us);
    return ask_time(user, request, seconds, timing, why);
}

static tune_answer sustain(void *user, const char *candidate, double seconds, tune_timing *timing,
                           char why[TUNE_WHY])
{
    char request[TUNE_NAME + 64];
    snprintf(request, sizeof request, "sustain %s %g\n", candidate, seconds);
    return ask_time(user, request, seconds, timing, why);
}

static tune_answer time_pair(void *user, const char *candidate, double seconds, tune_pair *pair,
                             char why[TUNE_WHY])
{
    tune_link *link = user;
    char request[TUNE_NAME + 64];
    double *const numbers[] = {
        &pair->candidate.us, &pair->candidate.spread, &pair->fallback.us, &pair->fallback.spread,
        &pair->q1,           &pair->median,           &pair->q3};
    snprintf(request, sizeof request, "pair %s %g\n", candidate, seconds);
    snprintf(why, TUNE_WHY, "its worker gave no times");
    const tune_answer answer = ask_about(link, request, seconds, why);
    return answer != TUNE_OK || read_numbers(link->answer, numbers, LLMK_COUNT(numbers)) ? answer
                                                                                         : TUNE_BAD;
}

static void dropped(void *user, const char *candidate, const char *why)
{
    const tune_link *link = user;
    if (link->dropped)
        link->dropped(link->user, candidate, why);
}

tune_bench tune_link_bench(tune_link *link)
{
    return (tune_bench){link, check, time_one, time_pair, link->sustains ? sustain : NULL, dropped};
}
