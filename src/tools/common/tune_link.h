/*
 * tune_link.h - the tuner's side of its worker: requests with a time limit, and a new worker after
 * a crash, a hang or a wrong result.
 */
#ifndef LLMK_TUNE_LINK_H
#define LLMK_TUNE_LINK_H

#include "tools/common/tune_problem.h"

#include <signal.h>
#include <sys/types.h>

typedef struct tune_link {
    pid_t worker; /* 0: none yet */
    int to, from;
    double limit;     /* s, of a request but `case`, beyond the timing it asks for */
    double deadline;  /* of bench time, s on the monotonic clock; 0: none */
    bool sustains;    /* whether long calls are timed on end */
    char text[512];   /* the case */
    const char *with; /* "case" or "again": how a worker is given it */
    char answer[8192];
    double making, checking, timing; /* s spent on each kind of request */
    /* For every candidate that falls away. */
    void (*dropped)(void *user, const char *candidate, const char *why);
    void *user;
} tune_link;

/* Set by a signal's handler: what is asked ends with TUNE_STOP. */
extern volatile sig_atomic_t tune_interrupted;

double tune_now(void); /* s */

/* Makes a worker where there is none, gives it the case, and says how rows name it. TUNE_BAD: the
 * case cannot be made, or is not tuned. */
tune_answer tune_link_case(tune_link *link, const char *text, tune_problem *problem,
                           char why[TUNE_WHY]);
/* The same for a case that is only to be timed once more, without references. */
tune_answer tune_link_again(tune_link *link, const char *text, tune_problem *problem,
                            char why[TUNE_WHY]);
tune_bench tune_link_bench(tune_link *link);
void tune_link_close(tune_link *link);

#endif
