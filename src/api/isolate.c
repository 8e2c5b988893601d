/* isolate.c: libc's calls by which a process confines or detaches itself, wrapped for the helper thread's
 * sake, and for what is read of the process before it does.
 *
 * The kernel asks for a process of one thread before it lets it into another user, mount or time namespace,
 * and a filter of system calls may forbid what the helper does. So it ends first. The calls do nothing else
 * than libc's, errno included. Weak, so that a program that is linked with all of this may have its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <linux/sched.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/os.h"
#include "page/release.h"

/* Whatever is unshared: where one thread is enough, the helper would keep the old namespace or files alive.
 */
WEIR_EXPORT __attribute__((weak)) int unshare(int flags) {
    release_helper_stop();
    os_sandbox_learn();
    long result = syscall(SYS_unshare, flags);
    release_helper_allow();
    return (int)result;
}

/* Servers change a thread's network often, and need no helper to end for it. 0: whatever the descriptor is
 * of. */
WEIR_EXPORT __attribute__((weak)) int setns(int fd, int kind) {
    int of_threads = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP | CLONE_NEWPID;
    bool stop = kind == 0 || (kind & ~of_threads) != 0;
    if (stop) {
        release_helper_stop();
        os_sandbox_learn();
    }
    long result = syscall(SYS_setns, fd, kind);
    if (stop) release_helper_allow();
    return (int)result;
}

/* What the new root directory may have no file to tell is read before. Libraries that emulate a root
 * directory have a definition of it, too. */
WEIR_EXPORT __attribute__((weak)) int chroot(const char* path) {
    os_sandbox_learn();
    int (*next)(const char*) = (int (*)(const char*))os_symbol_next("chroot");
    return next != NULL ? next(path) : (int)syscall(SYS_chroot, path);
}

/* libc's takes four further words whatever the option; so does the kernel. PR_SET_NO_NEW_PRIVS comes before
 * every filter of an unprivileged process, also before those that are set by a raw system call. */
WEIR_EXPORT __attribute__((weak)) int prctl(int option, ...) {
    va_list rest;
    unsigned long word[4];
    va_start(rest, option);
    for (unsigned i = 0; i < 4; i++) word[i] = va_arg(rest, unsigned long);
    va_end(rest);
    bool stop = option == PR_SET_NO_NEW_PRIVS || option == PR_SET_SECCOMP;
    if (stop) {
        release_helper_stop();
        os_sandbox_announced();
        store_relaxed(&os_sandbox_is_own, 1u);
    }
    long result = syscall(SYS_prctl, option, word[0], word[1], word[2], word[3]);
    if (stop) release_helper_allow();
    return (int)result;
}
