/* fault.c (Linux): faults that a watcher knows are told to it; all others go where they would have gone
 * without weir.
 *
 *   kernel        fault_handle, with the flags and the mask of the program's action
 *   action_now    the program's action, as the kernel would keep it: what sigaction reads back, and what is
 * called behind the watchers
 *
 * Weir's handler stays in its place when the program installs one: os_fault_action stands for sigaction then.
 * The kernel's own record is asked each time: a handler that came past libc has displaced weir's, and is left
 * alone. A process that shares this memory but not the kernel's record (vfork) changes its own record only.
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

#include "arch/arch.h"
#include "base/atomic.h"
#include "os/linux/call.h"
#include "os/os.h"

/* Sync: written once, before the handlers are there. */
static uintptr_t fault_start;
static size_t fault_bytes;
static bool (*fault_tell)(const struct os_fault* fault);
static bool (*fault_tell_tag)(const struct os_fault* fault);
static uint32_t fault_is_watched; /* Sync: relaxed; a thread that sees it late is one that was early */
static int fault_process;         /* whose handlers these are; Sync: relaxed */

/* ---- Actions */

/* Sync: state; written once by who found it NONE, and never again, so that a handler may read it while
 * another thread, or the code that it interrupts, installs the next. One that a fork left half written is
 * left out. */
enum { RECORD_NONE = 0, RECORD_WRITTEN, RECORD_READY };
struct action_record {
    uintptr_t handler;
    uint64_t mask;
    uint32_t flags;
    uint32_t state;
};
/* As many different actions as a process may ask for; see os_fault_action for what comes after. */
enum { RECORDS_MAX = 256 };
WEIR_WIDE(actions) static struct action_record action_records[RECORDS_MAX];
enum { OF_SEGV, OF_BUS, WATCHED_COUNT };
static const int watched_number[WATCHED_COUNT] = {SIGSEGV, SIGBUS};
static const struct action_record* action_now[WATCHED_COUNT]; /* Sync: atomics; release publishes a record */

static unsigned watched_of(int number) { return number == SIGBUS ? OF_BUS : OF_SEGV; }

/* What the kernel keeps of the flags that it is given (5.11 and later), and who returns from handlers. */
enum {
    FLAG_EXPOSE_TAG = 0x800,
    FLAG_RESTORER = 0x04000000,
    FLAGS_KEPT = SA_NOCLDSTOP | SA_NOCLDWAIT | SA_SIGINFO | FLAG_EXPOSE_TAG | SA_ONSTACK | SA_RESTART |
                 SA_NODEFER | (int)SA_RESETHAND | FLAG_RESTORER
};

static bool action_is_handler(const struct action_record* r) {
    return r->handler != (uintptr_t)SIG_DFL && r->handler != (uintptr_t)SIG_IGN;
}

/* The record of an action; NULL: there are too many. */
static const struct action_record* action_find(uintptr_t handler, uint32_t flags, uint64_t mask) {
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        struct action_record* r = &action_records[i];
        uint32_t state = load_acquire(&r->state);
        if (state == RECORD_NONE && cas_acq_rel(&r->state, &state, (uint32_t)RECORD_WRITTEN)) {
            r->handler = handler;
            r->flags = flags;
            r->mask = mask;
            store_release(&r->state, (uint32_t)RECORD_READY);
            return r;
        }
        if (state == RECORD_READY && r->handler == handler && r->flags == flags && r->mask == mask) return r;
    }
    return NULL;
}

static const struct action_record* action_record_of(const struct sigaction* action,
                                                    const struct sigaction* kernel) {
    const uint64_t never = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1);
    uint64_t mask;
    __builtin_memcpy(&mask, &action->sa_mask, sizeof mask);
    uint32_t flags = (uint32_t)(action->sa_flags | (kernel->sa_flags & FLAG_RESTORER)) & (uint32_t)FLAGS_KEPT;
    return action_find((uintptr_t)action->sa_sigaction, flags, mask & ~never);
}

static void action_describe(const struct action_record* r, const struct sigaction* kernel,
                            struct sigaction* described) {
    *described = (struct sigaction){.sa_flags = (int)r->flags};
    described->sa_sigaction = (void (*)(int, siginfo_t*, void*))r->handler;
    if ((r->flags & (uint32_t)FLAG_RESTORER) != 0) described->sa_restorer = kernel->sa_restorer;
    __builtin_memcpy(&described->sa_mask, &r->mask, sizeof r->mask);
}

/* ---- Faults */

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

/* Whether the instruction meets the fault again when it is tried again. */
static bool fault_recurs(int number, const siginfo_t* info) {
    enum { memory_error_elsewhere = 5, tag_error_late = 8 }; /* BUS_MCEERR_AO, SEGV_MTEAERR */
    return info->si_code > 0 && info->si_code != (number == SIGBUS ? memory_error_elsewhere : tag_error_late);
}

/* What would have happened without us. */
static void fault_pass(int number, siginfo_t* info, void* context, const struct action_record* r) {
    if (r->handler == (uintptr_t)SIG_IGN && info->si_code <= 0) return; /* somebody sent it */
    if (!action_is_handler(r)) {
        os_action_default(number);
        if (!fault_recurs(number, info)) syscall(SYS_tgkill, os_process_id(), os_thread_id(), number);
        return;
    }
    if ((r->flags & (uint32_t)SA_RESETHAND) != 0) {
        const struct action_record* expected = r;
        const struct action_record* reset = action_find((uintptr_t)SIG_DFL, r->flags, r->mask);
        if (reset == NULL)
            os_action_default(number);
        else /* another thread's action stays, if there is one by now */
            (void)cas_acq_rel(&action_now[watched_of(number)], &expected, reset);
    }
    if (number == SIGSEGV && (r->flags & (uint32_t)FLAG_EXPOSE_TAG) == 0)
        info->si_addr = arch_tag_clear(info->si_addr);
    if ((r->flags & SA_SIGINFO) != 0)
        ((void (*)(int, siginfo_t*, void*))r->handler)(number, info, context);
    else
        ((void (*)(int))r->handler)(number);
}

static enum os_fault_kind fault_kind(int number, const siginfo_t* info, uintptr_t address) {
    enum { tag_late = 8, tag_now = 9 }; /* SEGV_MTEAERR, SEGV_MTESERR */
    if (number == SIGSEGV && info->si_code == tag_now) return OS_FAULT_TAG;
    if (number == SIGSEGV && info->si_code == tag_late) return OS_FAULT_TAG_LATE;
    return address - fault_start < fault_bytes ? OS_FAULT_RANGE : OS_FAULT_PLAIN;
}

/* Whether a watcher says that the access may be tried again. */
static bool fault_is_told(int number, const siginfo_t* info, const void* context) {
    struct os_fault fault = {.address = (uintptr_t)arch_tag_clear(info->si_addr),
                             .pointer = (uintptr_t)info->si_addr};
    fault.kind = fault_kind(number, info, fault.address);
    bool (*tell)(const struct os_fault*) = fault.kind == OS_FAULT_RANGE ? fault_tell : fault_tell_tag;
    if (tell == NULL) return false;
    fault_read(context, &fault);
    /* No other fault is met there; and what lies there may be read then. */
    fault.ends_handler = fault.kind == OS_FAULT_TAG_LATE && arch_ends_handler(fault.code);
    return tell(&fault);
}

/* Sync: relaxed; where two threads have faults in turns, both are new each time. */
WEIR_FN bool os_fault_repeats(const struct os_fault* fault) {
    static void* last_thread;
    static uintptr_t last_code;
    static uintptr_t last_pointer;
    bool same = load_relaxed(&last_thread) == arch_thread_pointer() &&
                load_relaxed(&last_code) == fault->code && load_relaxed(&last_pointer) == fault->pointer;
    store_relaxed(&last_thread, arch_thread_pointer());
    store_relaxed(&last_code, fault->code);
    store_relaxed(&last_pointer, fault->pointer);
    return same;
}

static void fault_handle(int number, siginfo_t* info, void* context) {
    int saved = errno;
    const struct action_record* r = load_acquire(&action_now[watched_of(number)]);
    bool again = info->si_code > 0 && fault_is_told(number, info, context);
    errno = saved;
    if (!again) fault_pass(number, info, context, r);
}

/* ---- Weir's handler in the kernel */

/* With the flags and the mask of what it stands before, so that that one runs on the same stack and with the
 * same signals blocked. Where there is none all are, since a fault in another handler meanwhile would end the
 * process in the middle of a report. Two threads that install at once: who comes last sees which action is
 * the last. */
static int handler_install(unsigned w) {
    for (;;) {
        const struct action_record* r = load_acquire(&action_now[w]);
        struct sigaction own = {.sa_sigaction = fault_handle};
        uint32_t kept = SA_ONSTACK | SA_RESTART;
        if (action_is_handler(r)) kept = r->flags & (SA_ONSTACK | SA_RESTART | SA_NODEFER);
        own.sa_flags = (int)(kept | SA_SIGINFO | (fault_tell_tag != NULL ? FLAG_EXPOSE_TAG : 0));
        uint64_t mask = action_is_handler(r) ? r->mask : ~(uint64_t)0;
        __builtin_memcpy(&own.sa_mask, &mask, sizeof mask);
        int result = os_action_next(watched_number[w], &own, NULL);
        if (result != 0 || load_acquire(&action_now[w]) == r) return result;
    }
}

static bool handlers_start(void) {
    int saved = errno;
    struct sigaction found[WATCHED_COUNT];
    unsigned w = 0;
    for (; w < WATCHED_COUNT; w++) {
        if (os_action_next(watched_number[w], NULL, &found[w]) != 0) break;
        if (load_relaxed(&fault_is_watched) == 0) action_now[w] = action_record_of(&found[w], &found[w]);
        if (handler_install(w) != 0) break;
    }
    bool good = w == WATCHED_COUNT;
    while (!good && w-- != 0) (void)os_action_next(watched_number[w], &found[w], NULL);
    if (good) store_relaxed(&fault_process, os_process_id());
    if (good) store_relaxed(&fault_is_watched, 1u);
    errno = saved;
    return good;
}

WEIR_FN bool os_fault_watch(const void* start, size_t bytes, bool (*tell)(const struct os_fault* fault)) {
    fault_start = (uintptr_t)start;
    fault_tell = tell;
    fault_bytes = bytes;
    return handlers_start();
}

WEIR_FN bool os_fault_watch_tags(bool (*tell)(const struct os_fault* fault)) {
    fault_tell_tag = tell;
    return handlers_start();
}

WEIR_FN void os_fault_forked(void) {
    if (load_relaxed(&fault_is_watched) != 0) store_relaxed(&fault_process, os_process_id());
}

/* ---- The program's actions */

WEIR_FN bool os_fault_is_watched(int number) {
    return load_relaxed(&fault_is_watched) != 0 && (number == SIGSEGV || number == SIGBUS);
}

/* Whether the program's action is to be kept here: not in a process that only borrows this memory. */
static bool action_is_ours(void) {
    return load_relaxed(&os_sandbox_is_own) != 0 || os_process_id() == load_relaxed(&fault_process);
}

WEIR_FN int os_fault_action(int number, const struct sigaction* action, struct sigaction* before) {
    struct sigaction wanted;
    struct sigaction kernel;
    if (action != NULL) wanted = *action;
    int result = os_action_next(number, NULL, &kernel);
    if (result != 0) return result;
    if (kernel.sa_sigaction != fault_handle) return os_action_next(number, action, before);
    unsigned w = watched_of(number);
    const struct action_record* was = load_acquire(&action_now[w]);
    if (action != NULL) {
        const struct action_record* r = action_is_ours() ? action_record_of(&wanted, &kernel) : NULL;
        if (r != NULL) was = __atomic_exchange_n(&action_now[w], r, __ATOMIC_ACQ_REL); /* publishes r */
        /* Without a record the action goes to the kernel, and takes weir's place. */
        result = r != NULL ? handler_install(w) : os_action_next(number, &wanted, NULL);
    }
    if (result == 0 && before != NULL) action_describe(was, &kernel, before);
    return result;
}
