/* signal.c (Linux): what stands behind the calls of libc that this library wraps: their next definition,
 * which is libc's or another interposer's, and in static programs, which have none, the kernel itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/atomic.h"
#include "os/os.h"

/* The kernel's struct, and the one flag that no program sets. */
struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};
enum { KERNEL_RESTORER = 0x04000000, LIBC_OWN_FIRST = 32, LIBC_OWN_LAST = 33 };

#if defined(__x86_64__)
/* How a handler returns. Debuggers and unwinders know it by these two instructions; they look up the byte
 * before it, which must not be another function's. Their size is given as a number: `.` would be a local
 * symbol, and LLVM's link-time optimization imports nothing with assembly, the fast paths neither, from a
 * unit with one. */
__asm__(".pushsection .text\n"
        "nop\n"
        ".globl weir_signal_return\n"
        ".hidden weir_signal_return\n"
        ".type weir_signal_return, @function\n"
        "weir_signal_return:\n"
        "movq $15, %rax\n"
        "syscall\n"
        ".size weir_signal_return, 9\n"
        ".popsection");
extern __attribute__((visibility("hidden"))) void weir_signal_return(void);
static void kernel_action_prepare(struct kernel_action* k) {
    k->flags |= KERNEL_RESTORER;
    k->restorer = weir_signal_return;
}
#else
static void kernel_action_prepare(struct kernel_action* k) {
    (void)k;
} /* it has a page of its own for that */
#endif

static int action_of_kernel(int number, const struct sigaction* action, struct sigaction* before) {
    struct kernel_action wanted = {0};
    struct kernel_action found = {0};
    if (number >= LIBC_OWN_FIRST && number <= LIBC_OWN_LAST) {
        errno = EINVAL;
        return -1;
    }
    if (action != NULL) {
        wanted.handler = action->sa_handler;
        wanted.flags = (unsigned long)(unsigned)action->sa_flags;
        __builtin_memcpy(&wanted.mask, &action->sa_mask, sizeof wanted.mask);
        kernel_action_prepare(&wanted);
    }
    long result = syscall(SYS_rt_sigaction, number, action == NULL ? NULL : &wanted,
                          before == NULL ? NULL : &found, sizeof wanted.mask);
    if (result == 0 && before != NULL) {
        *before = (struct sigaction){.sa_flags = (int)found.flags, .sa_restorer = found.restorer};
        before->sa_handler = found.handler;
        __builtin_memcpy(&before->sa_mask, &found.mask, sizeof found.mask);
    }
    return (int)result;
}

/* Without an interpreter there is nothing to look a name up in. */
WEIR_FN void* os_symbol_next(const char* name) {
    int saved = errno;
    void* next = getauxval(AT_BASE) == 0 ? NULL : dlsym(RTLD_NEXT, name);
    errno = saved;
    return next;
}

typedef int (*action_t)(int, const struct sigaction*, struct sigaction*);
static action_t action_next; /* Sync: relaxed; each thread that finds none finds the same */

WEIR_FN WEIR_NOINLINE void os_action_find(void) {
    void* found = os_symbol_next("sigaction");
    store_relaxed(&action_next, found == NULL ? action_of_kernel : (action_t)found);
}

WEIR_FN int os_action_next(int number, const struct sigaction* action, struct sigaction* before) {
    if (weir_unlikely(load_relaxed(&action_next) == NULL)) os_action_find();
    return load_relaxed(&action_next)(number, action, before);
}

WEIR_FN void os_action_default(int number) {
    struct kernel_action none = {0};
    syscall(SYS_rt_sigaction, number, &none, NULL, sizeof none.mask);
}
