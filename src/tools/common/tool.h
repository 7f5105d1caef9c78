/* tool.h - what every tool does at its beginning and at its end. */
#ifndef LLMK_TOOL_H
#define LLMK_TOOL_H

#include <stdbool.h>

/* Runs a tool, and returns its exit status: that of `run`, but 1 instead of 0 where not all of the
 * output could be written (a full disk), which it says to stderr. */
int tool_main(const char *name, int (*run)(int argc, char **argv), int argc, char **argv);

struct option;
/* getopt_long, for which an empty value is a mistake: '?', which has been said. */
int tool_option(int argc, char **argv, const char *letters, const struct option *options);

/* Says a sentence after the tool's name, in the place of a progress line. Returns 2, the status of a
 * command line that makes no sense. */
int tool_complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Where stderr is a terminal: shows a line in the place of the last, cut to the terminal's width. ""
 * takes it away. */
void tool_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A number from `least` to less than 10^15, and nothing else; false where it is none. */
bool tool_number(const char *text, double least, double *value);

/* Sentences of the library that begin with `what`, the name of a variable or a field, are to begin
 * with the option that has set it. */
void tool_names(const char *what, const char *option);
/* Sets an environment variable that the library reads to what the option says. */
int tool_sets(const char *variable, const char *option, const char *value);
/* llmk_error_message() with those names. */
const char *tool_error_message(void);

#endif
