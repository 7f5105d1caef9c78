/* tool.h - what every tool does at its beginning and at its end. */
#ifndef LLMK_TOOL_H
#define LLMK_TOOL_H

/* Runs a tool, and returns its exit status: that of `run`, but 1 instead of 0 where not all of the
 * output could be written (a full disk), which it says to stderr. */
int tool_main(const char *tool, int (*run)(int argc, char **argv), int argc, char **argv);

#endif
