/* test_tune_link.c - the tuner's side of a worker, which is this program once more: whatever it
 * answers, or however it ends, is a sentence; and only the time that both run counts as a hang. */
#include "llmk_cmocka.h"

#include "core/core.h"
#include "tools/common/tune_link.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void rest(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    while (nanosleep(&left, &left) != 0)
        ;
}

/* ---- The worker ---- */

static int work(void)
{
    char line[1024];
    bool lost = false;
    setvbuf(stdout, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        const char *word = strchr(line, ' ');
        if (strncmp(line, "case", 4) == 0) {
            printf("ok\tx=f16\tm=1\tcpu\tdefault\tcpu@1x4\tportable\n");
        } else if (lost || strncmp(word, " lost", 5) == 0) {
            lost = true; /* as a device that had a fault: nothing works from here on */
            printf("no\tthe device is lost\n");
        } else if (strncmp(word, " slow", 5) == 0) {
            rest(5.5);
            printf("ok\n");
        } else if (strncmp(word, " crash", 6) == 0) {
            raise(SIGKILL);
        } else if (strncmp(word, " half", 5) == 0) {
            printf("ok");
            return 3;
        } else if (strncmp(word, " endless", 8) == 0) {
            for (;;)
                printf("%0512d", 0);
        } else if (strncmp(word, " words", 6) == 0) {
            printf("ok\tsome words\n");
        } else if (strncmp(word, " hang", 5) == 0) {
            for (;;)
                pause();
        } else {
            printf("ok\t1.5\t0.25\n");
        }
    }
    return 0;
}

/* ---- The tests ---- */

static tune_link open_link(double limit)
{
    tune_link link = {.limit = limit};
    tune_problem problem;
    char why[TUNE_WHY];
    assert_int_equal(tune_link_case(&link, "linear", &problem, why), TUNE_OK);
    assert_string_equal(problem.fallback, "cpu");
    assert_int_equal(problem.count, 2);
    return link;
}

static void test_whatever_it_answers(void **state)
{
    (void)state;
    static const struct {
        const char *candidate, *sentence;
    } cases[] = {{"lost", "the device is lost"},   {"crash", "ended with signal 9"},
                 {"half", "exited with status 3"}, {"endless", "the worker crashed"},
                 {"words", "gave no times"},       {"hang", "no answer within 1 s"}};
    tune_link link = open_link(1);
    const tune_bench bench = tune_link_bench(&link);
    for (size_t i = 0; i < LLMK_COUNT(cases); i++) {
        tune_timing timing;
        char why[TUNE_WHY] = "";
        assert_int_equal(bench.time(bench.user, cases[i].candidate, 0, 0, &timing, why), TUNE_BAD);
        if (!strstr(why, cases[i].sentence))
            fail_msg("%s: \"%s\"; expected \"%s\"", cases[i].candidate, why, cases[i].sentence);
        assert_int_equal(bench.time(bench.user, "good", 0, 0, &timing, why), TUNE_OK);
        assert_true(timing.us == 1.5 && timing.spread == 0.25);
    }
    tune_link_close(&link);
}

/* As Ctrl-Z does, and fg a while later. */
static void test_a_stop_is_no_hang(void **state)
{
    (void)state;
    char why[TUNE_WHY] = "";
    tune_link link = open_link(3.5);
    const tune_bench bench = tune_link_bench(&link);
    const pid_t tuner = getpid(), other = fork();
    assert_true(other >= 0);
    if (other == 0) {
        rest(0.3);
        kill(tuner, SIGSTOP);
        rest(4.5);
        kill(tuner, SIGCONT);
        _exit(0);
    }
    const double began = tune_now();
    const tune_answer answer = bench.check(bench.user, "slow", why);
    const double took = tune_now() - began;
    waitpid(other, NULL, 0);
    tune_link_close(&link);
    if (answer != TUNE_OK)
        fail_msg("%s", why);
    assert_true(took > 4);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--worker") == 0)
        return work();
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whatever_it_answers),
                                       cmocka_unit_test(test_a_stop_is_no_hang)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
