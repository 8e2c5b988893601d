/* launcher.c: starts one command from a process of a few pages, and reports what the kernel counted.
 *
 *     weir-launcher REPORT_FD FILE ARGUMENT0 ARGUMENT...
 *
 * A process's largest resident set (ru_maxrss) is kept over exec, and a child of fork begins with its
 * parent's memory: whatever a large tool starts looks at least as large as the tool. This program is some
 * 10 KiB, without a C library. It adopts the command's orphans and ends after the last of its children, or
 * with the tool that started it, taking the command along. Only `weir compare` calls it, with REPORT_FD open
 * for writing. It deliberately does not know what is measured for what.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "launcher.h"

#include <asm/unistd.h>
#include <linux/time_types.h>

/* Not in headers that a program without a C library may include. */
enum {
    SIGNAL_KILL = 9,
    SIGNAL_TERM = 15,
    SIGNAL_CHILD = 17,
    CLOCK_STEADY = 1,
    DESCRIPTOR_SET_FLAGS = 2,
    DESCRIPTOR_CLOSE_ON_EXEC = 1,
    MASK_SET = 2,
    PROCESS_DEATH_SIGNAL = 1,
    PROCESS_ADOPTS = 36,
    WAIT_NOTHING = 1,
    ERROR_INTERRUPTED = 4
};

/* In arch files: a system call by its number; the result is negative errno where it failed. */
long launcher_call(long number, long a, long b, long c, long d, long e);
int launcher_main(long* stack);

static unsigned long now_ns(void) {
    struct __kernel_timespec now = {0};
    launcher_call(__NR_clock_gettime, CLOCK_STEADY, (long)&now, 0, 0, 0);
    return (unsigned long)now.tv_sec * 1000000000ul + (unsigned long)now.tv_nsec;
}

static int number_of(const char* text) {
    int number = 0;
    while (*text >= '0' && *text <= '9') number = number * 10 + (*text++ - '0');
    return number;
}

static void report(int fd, const struct launcher_report* what) {
    while (launcher_call(__NR_write, fd, (long)what, sizeof *what, 0, 0) == -ERROR_INTERRUPTED) continue;
}

/* The command's side of the fork. */
static void command_start(int fd, char** arguments, char** environment, const unsigned long* mask) {
    struct launcher_report failed = {.kind = LAUNCHER_FAILED};
    launcher_call(__NR_setpgid, 0, 0, 0, 0, 0);
    launcher_call(__NR_rt_sigprocmask, MASK_SET, (long)mask, 0, sizeof *mask, 0);
    long error =
        launcher_call(__NR_execve, (long)arguments[0], (long)(arguments + 1), (long)environment, 0, 0);
    failed.status = (int)-error;
    report(fd, &failed);
    launcher_call(__NR_exit_group, 127, 0, 0, 0, 0);
}

static void usage_add(struct launcher_usage* sum, const struct launcher_rusage* usage) {
    sum->user_us += usage->user_s * 1000000 + usage->user_us;
    sum->system_us += usage->system_s * 1000000 + usage->system_us;
    if (usage->resident_max_kib > sum->resident_max_kib) sum->resident_max_kib = usage->resident_max_kib;
    sum->minor_faults += usage->minor_faults;
    sum->major_faults += usage->major_faults;
    sum->switches_voluntary += usage->switches_voluntary;
    sum->switches_involuntary += usage->switches_involuntary;
}

/* Waits for all children; reports when the command itself has ended. */
static void children_wait(int fd, long root, unsigned long start_ns, const unsigned long* signals) {
    struct launcher_report ended = {.kind = LAUNCHER_ENDED, .pid = (int)root, .start_ns = start_ns};
    for (;;) {
        struct launcher_rusage usage;
        int status = 0;
        long pid = launcher_call(__NR_wait4, -1, (long)&status, WAIT_NOTHING, (long)&usage, 0);
        if (pid > 0) {
            usage_add(&ended.usage, &usage);
            if (pid == root) {
                ended.end_ns = now_ns();
                ended.status = status;
                report(fd, &ended);
            }
        } else if (pid < 0) {
            return; /* no children are left */
        } else if (launcher_call(__NR_rt_sigtimedwait, (long)signals, 0, 0, sizeof *signals, 0) ==
                   SIGNAL_TERM) {
            launcher_call(__NR_kill, -root, SIGNAL_KILL, 0, 0, 0);
            launcher_call(__NR_kill, root, SIGNAL_KILL, 0, 0, 0);
            return;
        }
    }
}

int launcher_main(long* stack) {
    long count = stack[0];
    char** arguments = (char**)(stack + 1);
    char** environment = arguments + count + 1;
    if (count < 4) return 2;
    int fd = number_of(arguments[1]);
    unsigned long signals = 1ul << (SIGNAL_CHILD - 1) | 1ul << (SIGNAL_TERM - 1), mask = 0;
    struct {
        unsigned long handler, flags, restorer, mask;
    } by_default = {0, 0, 0, 0};
    launcher_call(__NR_fcntl, fd, DESCRIPTOR_SET_FLAGS, DESCRIPTOR_CLOSE_ON_EXEC, 0, 0);
    launcher_call(__NR_rt_sigaction, SIGNAL_CHILD, (long)&by_default, 0, sizeof mask, 0);
    launcher_call(__NR_rt_sigprocmask, 0, (long)&signals, (long)&mask, sizeof mask, 0);
    launcher_call(__NR_prctl, PROCESS_DEATH_SIGNAL, SIGNAL_TERM, 0, 0, 0);
    launcher_call(__NR_prctl, PROCESS_ADOPTS, 1, 0, 0, 0);

    struct launcher_report started = {.kind = LAUNCHER_STARTED, .start_ns = now_ns()};
    long root = launcher_call(__NR_clone, SIGNAL_CHILD, 0, 0, 0, 0);
    if (root == 0) command_start(fd, arguments + 2, environment, &mask);
    if (root < 0) {
        struct launcher_report failed = {.kind = LAUNCHER_FAILED, .status = (int)-root};
        report(fd, &failed);
        return 125;
    }
    started.pid = (int)root;
    report(fd, &started);
    children_wait(fd, root, started.start_ns, &signals);
    return 0;
}
