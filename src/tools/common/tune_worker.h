/*
 * tune_worker.h - the process in which candidates run, since one may crash, hang or write where it
 * must not. It reads requests from stdin and answers each with a line of words between tabs:
 *
 *     case LINE                ok TYPES SHAPE DEFAULT CANDIDATE...   or  no SENTENCE
 *     again LINE               the same, without what check needs
 *     check CANDIDATE          ok                                    or  no SENTENCE
 *     time CANDIDATE SECONDS   ok US SPREAD                          or  no SENTENCE
 *     pair CANDIDATE SECONDS   ok US SPREAD US SPREAD Q1 MEDIAN Q3   or  no SENTENCE
 *     sustain CANDIDATE SECONDS   as time, of calls on end (tune_sustain.h)
 */
#ifndef LLMK_TUNE_WORKER_H
#define LLMK_TUNE_WORKER_H

/* Serves until stdin ends. */
int tune_worker(void);

#endif
