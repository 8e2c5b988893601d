/* drive.c: runs a test in a child process, with a time limit, and judges how it ended.
 *
 * Who may call it: support/test-driver.c. The child leads a process group of its own, so that whatever it
 * left behind goes with it. A test fails when it ends in another way than it said it would, or when a check
 * failed in it or in one of its children. TIMEOUTFACTOR in the environment stretches the limit. It
 * deliberately does not know the malloc that is in place: proof.c looks at that.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"
#include "support/check.h"
#include "support/test-driver.h"

unsigned int test_verbose;
const char* test_dir = ".";

static long timeout_factor(void) {
    const char* text = getenv("TIMEOUTFACTOR");
    long factor = text != NULL ? strtol(text, NULL, 10) : 1;
    return factor > 0 ? factor : 1;
}

/* The child's side. It is not to outlive the driver, whose process group it leaves. */
static void child_run(const struct shim_test* test, int argc, char** argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    int status = test->plain != NULL ? test->plain() : test->with_arguments(argc, argv);
    exit(support_report_failure(status));
}

/* Waits for the child until the limit; false when it is still there. SIGCHLD is blocked by the caller. */
static bool child_wait(pid_t child, long seconds, int* status) {
    struct timespec now, end;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += seconds;
    for (;;) {
        if (waitpid(child, status, WNOHANG) == child) return true;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec >= end.tv_sec) return false;
        const struct timespec step = {.tv_sec = end.tv_sec - now.tv_sec};
        sigtimedwait(&signals, NULL, &step);
    }
}

static bool ended_as_expected(const struct shim_test* test, int status) {
    if (WIFSIGNALED(status)) {
        if (WTERMSIG(status) == test->expected_signal) return true;
        shim_say("driver: ended by signal %d (%s), expected %s\n", WTERMSIG(status),
                 strsignal(WTERMSIG(status)),
                 test->expected_signal != 0 ? strsignal(test->expected_signal) : "none");
        return false;
    }
    if (test->expected_signal != 0) {
        shim_say("driver: exit status %d, expected signal %d (%s)\n", WEXITSTATUS(status),
                 test->expected_signal, strsignal(test->expected_signal));
        return false;
    }
    if (WEXITSTATUS(status) == test->expected_status) return true;
    shim_say("driver: exit status %d, expected %d\n", WEXITSTATUS(status), test->expected_status);
    return false;
}

int shim_drive(const struct shim_test* test, int argc, char** argv) {
    const char* verbose = getenv("SHIM_VERBOSE");
    test_verbose = verbose != NULL ? (unsigned)strtoul(verbose, NULL, 10) : 0;
    /* Tests that count calls of malloc rely on it: printf takes no buffer from the heap. */
    setvbuf(stdout, NULL, _IONBF, 0);
    if (test->prepare != NULL) test->prepare(argc, argv);

    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    pid_t child = fork();
    if (child < 0) {
        shim_say("driver: fork: %s\n", strerror(errno));
        return 1;
    }
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        child_run(test, argc, argv);
    }
    setpgid(child, child);
    int status = 0;
    long seconds = test->timeout_s * timeout_factor();
    bool ended = child_wait(child, seconds, &status);
    kill(-child, SIGKILL);
    if (!ended) {
        waitpid(child, &status, 0);
        shim_say("driver: still running after %ld s\n", seconds);
    }
    if (test->clean_up != NULL) test->clean_up();
    shim_temp_files_remove();
    if (!ended) return 1;
    bool failed = !ended_as_expected(test, status);
    if (support_record_failure_is_failed()) {
        shim_say("driver: checks failed\n");
        failed = true;
    }
    if (!failed) return 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_UNSUPPORTED ? EXIT_UNSUPPORTED : 1;
}
