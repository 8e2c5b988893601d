/* fault.c (Linux): faults inside a range of addresses are told to weir; all others go where they went before.
 *
 * The handler takes its flags and its mask from the one that it stands before, so that this one runs on the
 * same stack and with the same signals blocked. A handler that the program installs later takes its place.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "os/linux/call.h"
#include "os/os.h"

/* Sync: written once, before the handlers are there. */
static uintptr_t fault_start;
static size_t fault_bytes;
static bool (*fault_tell)(const struct os_fault* fault);
static struct sigaction segv_before;
static struct sigaction bus_before;

#if defined(__x86_64__)
static void fault_read(const ucontext_t* context, struct os_fault* fault) {
    enum { page_fault = 14, was_write = 2 };
    const greg_t* registers = context->uc_mcontext.gregs;
    fault->code = (uintptr_t)registers[REG_RIP];
    if (registers[REG_TRAPNO] == page_fault)
        fault->access = (registers[REG_ERR] & was_write) != 0 ? OS_ACCESS_WRITE : OS_ACCESS_READ;
}
#else
/* The records behind the registers: a magic number and a size each, the last one all zero. */
static void fault_read(const ucontext_t* context, struct os_fault* fault) {
    enum { was_write = 1 << 6 };
    const uint32_t esr_magic = 0x45535201;
    struct record {
        uint32_t magic;
        uint32_t size;
        uint64_t word;
    };
    fault->code = context->uc_mcontext.pc;
    const char* at = (const char*)context->uc_mcontext.__reserved;
    const char* end = at + sizeof context->uc_mcontext.__reserved - sizeof(struct record);
    while (at <= end) {
        const struct record* r = (const struct record*)at;
        if (r->magic == esr_magic) {
            fault->access = (r->word & was_write) != 0 ? OS_ACCESS_WRITE : OS_ACCESS_READ;
            return;
        }
        if (r->size < 2 * sizeof(uint32_t)) return;
        at += r->size;
    }
}
#endif

/* What would have happened without us. */
static void fault_pass(int number, siginfo_t* info, void* context, const struct sigaction* before) {
    bool takes_info = (before->sa_flags & SA_SIGINFO) != 0;
    if (!takes_info && before->sa_handler == SIG_IGN && info->si_code <= 0) return; /* somebody sent it */
    if (!takes_info && (before->sa_handler == SIG_DFL || before->sa_handler == SIG_IGN)) {
        struct sigaction none = {.sa_handler = SIG_DFL};
        sigaction(number, &none, NULL);
        /* A fault comes again when the instruction is tried again; a signal that was sent does not. */
        if (info->si_code <= 0) syscall(SYS_tgkill, os_process_id(), os_thread_id(), number);
        return;
    }
    if ((before->sa_flags & (int)SA_RESETHAND) != 0) {
        struct sigaction none = {.sa_handler = SIG_DFL};
        sigaction(number, &none, NULL);
    }
    if (takes_info)
        before->sa_sigaction(number, info, context);
    else
        before->sa_handler(number);
}

static void fault_handle(int number, siginfo_t* info, void* context) {
    int saved = errno;
    struct os_fault fault = {.address = (uintptr_t)info->si_addr, .access = OS_ACCESS_UNKNOWN};
    if (info->si_code > 0 && fault.address - fault_start < fault_bytes) {
        fault_read(context, &fault);
        if (fault_tell(&fault)) {
            errno = saved;
            return;
        }
    }
    errno = saved;
    fault_pass(number, info, context, number == SIGBUS ? &bus_before : &segv_before);
}

static bool fault_install(int number, struct sigaction* before) {
    if (sigaction(number, NULL, before) != 0) return false;
    struct sigaction own = {.sa_sigaction = fault_handle, .sa_mask = before->sa_mask};
    bool has_one = (before->sa_flags & SA_SIGINFO) != 0 ||
                   (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN);
    own.sa_flags = SA_SIGINFO | (has_one ? before->sa_flags & (SA_ONSTACK | SA_RESTART | (int)SA_NODEFER)
                                         : SA_ONSTACK | SA_RESTART);
    return sigaction(number, &own, NULL) == 0;
}

WEIR_FN bool os_fault_watch(const void* start, size_t bytes, bool (*tell)(const struct os_fault* fault)) {
    int saved = errno;
    fault_start = (uintptr_t)start;
    fault_bytes = bytes;
    fault_tell = tell;
    bool good = fault_install(SIGSEGV, &segv_before);
    if (good && !fault_install(SIGBUS, &bus_before)) {
        sigaction(SIGSEGV, &segv_before, NULL);
        good = false;
    }
    errno = saved;
    return good;
}
