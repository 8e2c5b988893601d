/* signal.c: libc's calls that install handlers of signals, wrapped for SIGSEGV and SIGBUS alone, and for them
 * only where weir watches faults (guarded blocks, tags): its handler stays first, and the program's is called
 * behind it.
 *
 * Programs see no difference: each call reads back what the program set, with libc's results and errno. All
 * other signals, and all where nothing is watched, go on to whoever comes next: libc, or another library that
 * wraps these calls. Safe in signal handlers as libc's are. Weak, so that a program that is linked with all
 * of this may have its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <errno.h>
#include <signal.h>
#include <stddef.h>

#include "base/atomic.h"
#include "os/os.h"

typedef void (*signal_handler)(int);

/* The calls whose next definitions are asked; sigaction's is the OS layer's. */
enum signal_call {
    CALL_LIBC_SIGACTION,
    CALL_SIGNAL,
    CALL_BSD_SIGNAL,
    CALL_SSIGNAL,
    CALL_SYSV_SIGNAL,
    CALL_LIBC_SYSV_SIGNAL,
    CALL_SIGINTERRUPT,
    CALL_SIGIGNORE,
    CALL_SIGSET,
    CALLS
};

/* NULL: there is none, as in a static program. Sync: relaxed; each thread that looks finds the same. */
static void* nexts[CALLS];
static bool nexts_found; /* Sync: release, after all of them */

/* All of them at the first call of any one, which no handler of the program's can be before: a look takes the
 * dynamic linker's lock, and who holds it (a library's constructor) may wait for a thread whose handler calls
 * one of these for the first time. */
static WEIR_NOINLINE void signal_find(void) {
    store_relaxed(&nexts[CALL_LIBC_SIGACTION], os_symbol_next("__sigaction"));
    store_relaxed(&nexts[CALL_SIGNAL], os_symbol_next("signal"));
    store_relaxed(&nexts[CALL_BSD_SIGNAL], os_symbol_next("bsd_signal"));
    store_relaxed(&nexts[CALL_SSIGNAL], os_symbol_next("ssignal"));
    store_relaxed(&nexts[CALL_SYSV_SIGNAL], os_symbol_next("sysv_signal"));
    store_relaxed(&nexts[CALL_LIBC_SYSV_SIGNAL], os_symbol_next("__sysv_signal"));
    store_relaxed(&nexts[CALL_SIGINTERRUPT], os_symbol_next("siginterrupt"));
    store_relaxed(&nexts[CALL_SIGIGNORE], os_symbol_next("sigignore"));
    store_relaxed(&nexts[CALL_SIGSET], os_symbol_next("sigset"));
    os_action_find();
    store_release(&nexts_found, true);
}

/* NULL as well: faults are watched, and the signal is one of those. */
static void* signal_next(enum signal_call call, int number) {
    if (weir_unlikely(!load_acquire(&nexts_found))) signal_find(); /* acquire: pairs with its release */
    return os_fault_is_watched(number) ? NULL : load_relaxed(&nexts[call]);
}

static int signal_action(int number, const struct sigaction* action, struct sigaction* before) {
    if (weir_unlikely(!load_acquire(&nexts_found))) signal_find();
    if (weir_unlikely(os_fault_is_watched(number))) return os_fault_action(number, action, before);
    return os_action_next(number, action, before);
}

WEIR_EXPORT __attribute__((weak)) int sigaction(int number, const struct sigaction* action,
                                                struct sigaction* before) {
    return signal_action(number, action, before);
}

WEIR_EXPORT int weir_libc_sigaction(int number, const struct sigaction* action,
                                    struct sigaction* before) __asm__("__sigaction");
WEIR_EXPORT __attribute__((weak)) int weir_libc_sigaction(int number, const struct sigaction* action,
                                                          struct sigaction* before) {
    typedef int (*next_t)(int, const struct sigaction*, struct sigaction*);
    next_t next = (next_t)signal_next(CALL_LIBC_SIGACTION, number);
    return next != NULL ? next(number, action, before) : signal_action(number, action, before);
}

/* ---- Calls that make an action of a handler alone */

static sigset_t set_of(int number) {
    uint64_t bit = 1ull << (number - 1);
    sigset_t set = {0};
    __builtin_memcpy(&set, &bit, sizeof bit);
    return set;
}
static bool set_has(const sigset_t* set, int number) {
    uint64_t bits;
    __builtin_memcpy(&bits, set, sizeof bits);
    return (bits >> (number - 1) & 1) != 0;
}

static bool signal_is_wrong(int number) {
    if (number >= 1 && number < NSIG) return false;
    errno = EINVAL;
    return true;
}

/* The handler before, or SIG_ERR. */
static signal_handler signal_set(int number, signal_handler handler, int flags, bool blocks_itself) {
    struct sigaction action = {.sa_flags = flags};
    struct sigaction before;
    if (signal_is_wrong(number)) return SIG_ERR;
    action.sa_handler = handler;
    if (blocks_itself) action.sa_mask = set_of(number);
    return signal_action(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

/* Signals that interrupt calls, as siginterrupt said. Sync: relaxed atomic */
static uint64_t signals_interrupting;

static signal_handler signal_bsd(int number, signal_handler handler, enum signal_call call) {
    typedef signal_handler (*next_t)(int, signal_handler);
    next_t next = (next_t)signal_next(call, number);
    if (next != NULL) return next(number, handler);
    if (handler == SIG_ERR) number = 0; /* refused as well */
    bool interrupts = (load_relaxed(&signals_interrupting) >> ((unsigned)(number - 1) & 63) & 1) != 0;
    return signal_set(number, handler, interrupts ? 0 : SA_RESTART, true);
}

static signal_handler signal_sysv(int number, signal_handler handler, enum signal_call call) {
    typedef signal_handler (*next_t)(int, signal_handler);
    next_t next = (next_t)signal_next(call, number);
    if (next != NULL) return next(number, handler);
    if (handler == SIG_ERR) number = 0; /* refused as well */
    return signal_set(number, handler, (int)SA_RESETHAND | SA_NODEFER, false);
}

#define SIGNAL_WRAPPED(name, kind, call)                                                                     \
    WEIR_EXPORT signal_handler weir_wrapped_##name(int number, signal_handler handler) __asm__(#name);       \
    WEIR_EXPORT                                                                                              \
    __attribute__((weak)) signal_handler weir_wrapped_##name(int number, signal_handler handler) {           \
        return signal_##kind(number, handler, call);                                                         \
    }
SIGNAL_WRAPPED(signal, bsd, CALL_SIGNAL)
SIGNAL_WRAPPED(bsd_signal, bsd, CALL_BSD_SIGNAL)
SIGNAL_WRAPPED(ssignal, bsd, CALL_SSIGNAL)
SIGNAL_WRAPPED(sysv_signal, sysv, CALL_SYSV_SIGNAL)
SIGNAL_WRAPPED(__sysv_signal, sysv, CALL_LIBC_SYSV_SIGNAL)

WEIR_EXPORT __attribute__((weak)) int siginterrupt(int number, int interrupts) {
    typedef int (*next_t)(int, int);
    struct sigaction action;
    uint64_t bit = 1ull << ((unsigned)(number - 1) & 63);
    if (number >= 1 && number < NSIG && interrupts != 0)
        __atomic_fetch_or(&signals_interrupting, bit, __ATOMIC_RELAXED);
    if (number >= 1 && number < NSIG && interrupts == 0)
        __atomic_fetch_and(&signals_interrupting, ~bit, __ATOMIC_RELAXED);
    next_t next = (next_t)signal_next(CALL_SIGINTERRUPT, number);
    if (next != NULL) return next(number, interrupts);
    if (signal_action(number, NULL, &action) != 0) return -1;
    action.sa_flags = interrupts != 0 ? action.sa_flags & ~SA_RESTART : action.sa_flags | SA_RESTART;
    return signal_action(number, &action, NULL);
}

WEIR_EXPORT __attribute__((weak)) int sigignore(int number) {
    typedef int (*next_t)(int);
    next_t next = (next_t)signal_next(CALL_SIGIGNORE, number);
    if (next != NULL) return next(number);
    return signal_set(number, SIG_IGN, 0, false) == SIG_ERR ? -1 : 0;
}

/* SIG_HOLD blocks the signal and leaves its action; any other handler unblocks it. */
WEIR_EXPORT __attribute__((weak)) signal_handler sigset(int number, signal_handler handler) {
    typedef signal_handler (*next_t)(int, signal_handler);
    next_t next = (next_t)signal_next(CALL_SIGSET, number);
    if (next != NULL) return next(number, handler);
    struct sigaction action;
    sigset_t blocked;
    if (signal_is_wrong(number)) return SIG_ERR;
    sigset_t one = set_of(number);
    if (handler == SIG_HOLD) {
        if (sigprocmask(SIG_BLOCK, &one, &blocked) != 0) return SIG_ERR;
        if (set_has(&blocked, number)) return SIG_HOLD;
        return signal_action(number, NULL, &action) == 0 ? action.sa_handler : SIG_ERR;
    }
    signal_handler before = signal_set(number, handler, 0, false);
    if (before == SIG_ERR || sigprocmask(SIG_UNBLOCK, &one, &blocked) != 0) return SIG_ERR;
    return set_has(&blocked, number) ? SIG_HOLD : before;
}
