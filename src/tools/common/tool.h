/* tool.h - what every tool does at its end. */
#ifndef LLMK_TOOL_H
#define LLMK_TOOL_H

/* The exit status of a tool that would exit with `status`: where not all of its output could be
 * written (a full disk), it says so to stderr, and 0 becomes 1. Call it last. */
int tool_exit(const char *tool, int status);

#endif
