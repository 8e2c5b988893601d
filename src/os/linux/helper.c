/* helper.c (Linux): the helper thread and what sandboxes allow it (os.h).
 *
 * A raw clone, because pthread_create allocates, takes locks, and tells libc that the process has threads; so
 * does every pthread that ends. It deliberately does not know what the helper does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <errno.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arch/arch.h"
#include "base/atomic.h"
#include "os/linux/call.h"
#include "os/lock.h"
#include "os/os.h"

/* Sanitizers keep records of each thread, and die of one that they did not see made. */
#if defined(__SANITIZE_ADDRESS__) || defined(WEIR_THREAD_SANITIZER)
#    define HELPER_SANITIZED 1
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#        define HELPER_SANITIZED 1
#    endif
#endif
#ifdef HELPER_SANITIZED
enum { config_helper_sanitized = 1 };
#else
enum { config_helper_sanitized = 0 };
#endif
/* Dynamic TLS is found through tables that libc fills in for its own threads. */
#if WEIR_TLS_IS_DYNAMIC || WEIR_TLS_IS_NAIVE
enum { config_helper_possible = 0 };
static intptr_t helper_word_offset(void) { return 0; }
#else
enum { config_helper_possible = !config_helper_sanitized };
static intptr_t helper_word_offset(void) { return arch_thread_word_offset(); }
#endif

#define HELPER_STACK_BYTES (64 * KIB)
/* Kept free on each side of the outermost thread-local variables: libc's record of the thread lies there,
 * which some of its functions look into. */
#define HELPER_SLACK_BYTES (4 * KIB)
#define HELPER_TLS_BYTES_MAX (64 * MIB)

/*  space:  [ guard page | stack ->...<- | variables below | thread pointer | variables above | control ]
 *
 *  Mapped once and kept. In the child of any fork, libc's or a raw one, the kernel hands it over as zeroes,
 *  where it can: tid == 0, no helper. A child that shares the memory also shares the helper. */
struct helper {
    uint32_t tid;   /* Sync: written by the kernel at start and, with a wake, at the end; read at any time */
    uint32_t last;  /* tid of the latest one, which may still be in the kernel; 0: it is not. Sync: atomic */
    uint32_t ended; /* body has returned. Sync: release by the helper, pairs with acquire in start */
    uint32_t own_files; /* Sync: the helper, and the next too */
    int exit_status;
    void (*body)(void*);
    void* argument;
};

static struct helper* helper;  /* Sync: relaxed; set once, under helper_starting */
static char* helper_stack_end; /* these two under helper_starting */
static char* helper_pointer;
static uint32_t helper_forbidden; /* Sync: atomic; how many calls are under way that it would disturb */
static uint32_t helper_starting;  /* Sync: taken by compare-and-swap (acquire), given with release */
static bool helper_wiped;         /* the kernel said that it hands it over as zeroes; Sync: as the two */
static bool helper_unforkable;    /* but it does not; Sync: as the next */
static int helper_process; /* the process that may have a helper; Sync: set while there is one thread */

/* Whether a filter was there when it was looked for; HIDDEN: nothing tells, and it may be. */
enum { SANDBOX_UNKNOWN, SANDBOX_NONE, SANDBOX_FOUND, SANDBOX_HIDDEN };
static uint32_t sandbox;           /* Sync: relaxed; the first answer stays */
static uint32_t sandbox_readers;   /* threads in os_sandbox_learn. Sync: os_sandbox_announced */
static uint32_t sandbox_announcer; /* the process that announced one, 0: none. Sync: os_sandbox_announced */
static uint32_t sandbox_threads;   /* Sync: relaxed; a helper that is made now could have been made before */

static uint32_t
    status_is_lost; /* could not be read any more when the helper looked; Sync: relaxed, set once */

/* A library that was loaded late comes behind libc: it does not see what the program does to itself. */
WEIR_FN void os_helper_enable(void) {
    helper_process = os_process_id();
    if (WEIR_TLS_IS_DYNAMIC) os_sandbox_learn();
}

static void sandbox_see(void* mode, unsigned line, char c) {
    (void)line;
    if (c >= '0' && c <= '9') *(char*)mode = c;
}

/* Whether a file could not be read just now, and may be later. */
static bool is_short_now(long error) {
    return error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -EINTR;
}

static uint32_t sandbox_read(void) {
    static const status_name_t name = "Seccomp";
    char mode = '\0';
    long error = os_status_scan(WEIR_TEXT("/proc/self/status"), &name, 1, sandbox_see, &mode);
    if (is_short_now(error) || error == -ECANCELED) return SANDBOX_UNKNOWN;
    return error != 0 || mode == '\0' ? SANDBOX_HIDDEN : mode == '0' ? SANDBOX_NONE : SANDBOX_FOUND;
}

WEIR_FN void os_sandbox_learn(void) {
    uint32_t expected = SANDBOX_UNKNOWN;
    if (load_relaxed(&sandbox) != SANDBOX_UNKNOWN) return;
    (void)__atomic_fetch_add(&sandbox_readers, 1u, __ATOMIC_SEQ_CST);
    uint32_t found = sandbox_read();
    /* Relaxed: the word is all there is to know. */
    (void)__atomic_compare_exchange_n(&sandbox, &expected, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    (void)__atomic_fetch_sub(&sandbox_readers, 1u, __ATOMIC_SEQ_CST);
}

static bool sandbox_may_be(void) {
    os_sandbox_learn();
    return load_relaxed(&sandbox) != SANDBOX_NONE;
}

/* Sync: a thread in os_sandbox_learn says so before it looks whether a sandbox is announced, and one that
 * announces it looks for such threads afterwards (seq_cst). It waits for them, as a filter for all threads
 * may kill for what they do; 10 ms at most, as its handler may have interrupted one. */
WEIR_FN void os_sandbox_announced(void) {
    enum { tries = 100, try_ns = 100000 };
    if (!os_sandbox_is_announced()) {
        os_overcommit_remember();
        os_sandbox_learn();
    }
    store_relaxed(&sandbox_threads, 0u);
    __atomic_store_n(&sandbox_announcer, (uint32_t)os_process_id(), __ATOMIC_SEQ_CST);
    uint32_t readers;
    for (unsigned i = 0; i < tries && (readers = load_seq_cst(&sandbox_readers)) != 0; i++)
        os_futex_wait_for(&sandbox_readers, readers, try_ns);
}

WEIR_FN void os_sandbox_thread_seen(void) {
    if (load_relaxed(&sandbox_threads) == 0) store_relaxed(&sandbox_threads, 1u);
}

WEIR_VAR uint32_t os_sandbox_is_own;
WEIR_FN bool os_sandbox_is_announced(void) { return load_seq_cst(&sandbox_announcer) != 0; }

WEIR_FN bool os_sandboxed(void) { return os_sandbox_is_announced() || sandbox_may_be(); }

/* A child of vfork announces into its parent's memory: the parent is not bound by that. */
static bool helper_is_allowed(void) {
    if (!config_helper_possible || helper_process == 0 || getauxval(AT_SECURE) != 0) return false;
    if (helper_unforkable || load_relaxed(&status_is_lost) != 0 || os_tsan_is_blind()) return false;
    if (__atomic_load_n(&helper_forbidden, __ATOMIC_SEQ_CST) != 0) return false;
    bool confined = load_relaxed(&sandbox_announcer) == (uint32_t)helper_process || sandbox_may_be();
    if (confined && load_relaxed(&sandbox_threads) == 0) return false; /* before clone: a filter may kill */
    return os_process_id() == helper_process;
}

/* Distances from the thread pointer of what the helper's code touches by it. */
static void helper_extent(intptr_t* low, intptr_t* high) {
    intptr_t pointer = (intptr_t)arch_thread_pointer();
    intptr_t offsets[] = {
        (intptr_t)&errno - pointer,
        helper_word_offset(),
#ifdef WEIR_DEBUG
        (intptr_t)&os_lock_ranks - pointer,
#endif
    };
    *low = *high = 0;
    for (unsigned i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        if (offsets[i] < *low) *low = offsets[i];
        if (offsets[i] > *high) *high = offsets[i];
    }
}

static bool helper_map(void) {
    intptr_t low, high;
    helper_extent(&low, &high);
    if (low < -(intptr_t)HELPER_TLS_BYTES_MAX || high > (intptr_t)HELPER_TLS_BYTES_MAX) return false;
    size_t page = os_page_bytes();
    size_t below = align_up((uintptr_t)-low + HELPER_SLACK_BYTES, page);
    size_t above = align_up((uintptr_t)high + HELPER_SLACK_BYTES + sizeof(struct helper), page);
    size_t bytes = page + HELPER_STACK_BYTES + below + above;
    char* space = os_reserve(bytes, page);
    if (space == NULL) return false;
    if (!os_commit(space + page, bytes - page)) {
        os_unmap(space, bytes);
        return false;
    }
    helper_wiped =
        os_call3(OS_OTHER, SYS_madvise, (long)(space + page), (long)(bytes - page), MADV_WIPEONFORK) == 0;
    helper_stack_end = space + page + HELPER_STACK_BYTES;
    helper_pointer = helper_stack_end + below;
    store_release(&helper, (struct helper*)(void*)(space + bytes - sizeof(struct helper)));
    return true;
}

/* Without descriptors: a file or a pipe that the process closes is closed, and one that sets its own table
 * apart from other threads' (unshare, close_range) leaves none behind here. */
static void helper_leave_files(struct helper* me) {
    me->own_files = os_call3(OS_OTHER, SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE) == 0;
}

static int helper_main(void* argument) {
    struct helper* me = argument;
    store_relaxed(&me->last, load_relaxed(&me->tid)); /* the kernel's next store to tid comes after it */
    if (!os_sandboxed()) {
        os_call3(OS_OTHER, SYS_prctl, PR_SET_NAME, (long)WEIR_TEXT("weir-release"), 0);
        helper_leave_files(me);
    }
    me->body(me->argument);
    os_pressure_forget();
    store_release(&me->ended, 1u);
    return me->exit_status; /* clone's wrapper ends the thread, and no more than that */
}

static bool helper_clone(void (*body)(void*), void* argument, void* thread_word) {
    struct helper* me = helper;
    if (load_acquire(&me->tid) != 0) return false;
    me->ended = 0;
    me->own_files = 0;
    me->exit_status = 0;
    me->body = body;
    me->argument = argument;
    arch_thread_block_fill((uintptr_t*)(void*)helper_pointer);
    *(void**)(void*)(helper_pointer + helper_word_offset()) = thread_word;
#ifdef WEIR_DEBUG
    *(uint32_t*)(void*)(helper_pointer + ((char*)&os_lock_ranks - (char*)arch_thread_pointer())) = 0;
#endif
    /* The flags that pthread_create uses, to the bit: filters compare them. */
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    int saved = errno;
    add_relaxed(&os_call_counts[OS_OTHER], 1);
    int tid = clone(helper_main, helper_stack_end, flags, me, &me->tid, helper_pointer, &me->tid);
    errno = saved;
    return tid > 0;
}

/* Whether the calling thread is the helper, which a sandbox may refuse to tell it by its id. */
static bool helper_calls(void) { return arch_thread_pointer() == helper_pointer; }

WEIR_FN bool os_helper_files_are_own(void) {
    struct helper* me = load_acquire(&helper);
    if (me == NULL || !helper_calls()) return false;
    if (me->own_files == 0) helper_leave_files(me);
    return me->own_files != 0;
}

WEIR_FN void os_helper_signal(int number) {
    struct helper* me = load_acquire(&helper);
    uint32_t tid = me == NULL ? 0 : load_acquire(&me->tid);
    if (tid != 0 && load_acquire(&me->ended) == 0)
        os_call3(OS_OTHER, SYS_tgkill, helper_process, tid, number);
}

/* Until the kernel needs the helper's stack no more. It wakes one sleeper, as of a word that processes share:
 * hence no private futex, and a limit. */
static void helper_wait(struct helper* me, uint32_t tid) {
    struct timespec limit = {0, 10000000};
    while (load_acquire(&me->tid) == tid)
        os_call6(OS_OTHER, SYS_futex, (long)&me->tid, FUTEX_WAIT, tid, (long)&limit, 0, 0);
}

WEIR_FN WEIR_NOINLINE bool os_helper_start(void (*body)(void*), void* argument, void* thread_word) {
    struct helper* last = load_acquire(&helper); /* pairs with helper_map */
    uint32_t tid = last == NULL ? 0 : load_acquire(&last->tid);
    if (!helper_is_allowed() || (tid != 0 && load_acquire(&last->ended) == 0)) return false;
    if (tid != 0) helper_wait(last, tid);
    uint64_t signals;
    uint32_t expected = 0;
    bool started = false;
    if (!os_signals_block(&signals)) return false; /* no handler may run in it, nor fork between two steps */
    if (cas_acquire(&helper_starting, &expected, 1u)) {
        started = (helper != NULL || helper_map()) && helper_clone(body, argument, thread_word);
        store_release(&helper_starting, 0u);
    }
    os_signals_restore(signals);
    return started;
}

WEIR_FN void* os_helper_left(void) {
    const struct helper* me = load_acquire(&helper); /* pairs with helper_map */
    return me != NULL && helper_wiped && me->body == NULL ? helper_pointer : NULL;
}

WEIR_FN bool os_helper_runs(void) {
    const struct helper* me = load_acquire(&helper); /* pairs with helper_map: what it points to is mapped */
    return me != NULL && load_relaxed(&me->tid) != 0;
}

/* What a status file says of a thread: `hash` differs where two threads' identity or confinement does. */
struct identity {
    uint64_t hash; /* FNV-1a */
    unsigned threads;
    char state;
};

static void identity_see(void* identity, unsigned line, char c) {
    enum { state, threads };
    struct identity* id = identity;
    if (line == state) {
        if (c >= 'A' && id->state == '\0') id->state = c; /* what it stands for follows */
    } else if (line == threads) {
        if (c >= '0' && c <= '9') id->threads = id->threads * 10 + (unsigned)(c - '0');
    } else {
        id->hash = (id->hash ^ (unsigned char)c) * 0x100000001b3u;
    }
}

/* 0, or a negative errno. */
static long identity_read(const char* path, struct identity* id) {
    static const status_name_t names[] = {
        "State",  "Threads", "Uid",    "Gid",     "Groups",     "CapInh",         "CapPrm",
        "CapEff", "CapBnd",  "CapAmb", "Seccomp", "NoNewPrivs", "Seccomp_filters"};
    *id = (struct identity){.hash = 0xcbf29ce484222325u};
    long error = os_status_scan(path, names, sizeof names / sizeof *names, identity_see, id);
    return error == 0 && id->state == '\0' ? -ENOENT : error;
}

/* What the first thread ended with, from the last field of its line. A process that ends thread by thread may
 * get the last one's status from the kernel, which is the helper's. */
static int helper_status_of_first(void) {
    char line[1024];
    size_t length = os_read_file(WEIR_TEXT("/proc/self/stat"), line, sizeof line);
    if (length == 0 || length == sizeof line) return 0;
    size_t at = length;
    while (at != 0 && line[at - 1] != ' ') at--;
    int status = 0;
    for (; at < length && line[at] >= '0' && line[at] <= '9'; at++) status = status * 10 + (line[at] - '0');
    return status >> 8;
}

WEIR_FN bool os_helper_fits(void) {
    /* Nothing to see, or a filter has come since the program's start that may forbid a look. */
    if (load_relaxed(&sandbox) == SANDBOX_HIDDEN ||
        load_relaxed(&sandbox_announcer) == (uint32_t)helper_process)
        return true;
    struct identity first, mine;
    long error = identity_read(WEIR_TEXT("/proc/self/status"), &first);
    if (error == 0) error = identity_read(WEIR_TEXT("/proc/thread-self/status"), &mine);
    if (error != 0) {
        bool lost = error != -ECANCELED && !is_short_now(error);
        if (lost) store_relaxed(&status_is_lost, 1u); /* a new root directory */
        return error == -ECANCELED;                   /* announced just now, or by a child of vfork */
    }
    /* The first thread may have ended before the others: its remains count as a thread. */
    bool last = first.state == 'Z' && first.threads <= 2;
    if (last) helper->exit_status = helper_status_of_first();
    return !last && first.hash == mine.hash;
}

WEIR_FN void os_helper_await(void) {
    struct helper* me = load_acquire(&helper);
    uint32_t tid = me == NULL ? 0 : load_acquire(&me->tid);
    if (tid != 0 && !helper_calls()) helper_wait(me, tid);
}

WEIR_FN void os_helper_forbid(bool forbid) {
    if (forbid)
        (void)__atomic_fetch_add(&helper_forbidden, 1u, __ATOMIC_SEQ_CST);
    else
        (void)__atomic_fetch_sub(&helper_forbidden, 1u, __ATOMIC_SEQ_CST);
}

WEIR_FN void os_helper_join(void) {
    struct helper* me = load_acquire(&helper);
    if (me == NULL) return;
    uint32_t tid = load_acquire(&me->tid);
    if (tid == 0) tid = load_relaxed(&me->last);
    if (tid == 0 || helper_calls()) return;
    helper_wait(me, tid);
    /* The word is cleared early in its end. It is off the process's list of threads, which is what makes a
     * process single-threaded, when no signal finds it and the lock of signals has been free since. */
    struct timespec step = {0, 50000};
    for (unsigned i = 0; i < 20000; i++) {
        if (os_call_error(OS_OTHER, SYS_tgkill, helper_process, tid, 0, 0, 0, 0) == -ESRCH) break;
        os_call3(OS_OTHER, SYS_nanosleep, (long)&step, 0, 0);
    }
    uint64_t pending;
    os_call3(OS_OTHER, SYS_rt_sigpending, (long)&pending, sizeof pending, 0);
    (void)cas_acq_rel(&me->last, &tid, 0u); /* unless there is a new one */
}

WEIR_FN void os_helper_fork_child(void) {
    store_relaxed(&helper_starting, 0u);
    os_pressure_forget();
    if (helper != NULL) {
        /* A user-mode emulator, and some (qemu 7.2) die of a thread made in the child of a process of
         * several. */
        if (helper_wiped && helper->body != NULL) helper_unforkable = true;
        store_relaxed(&helper->tid, 0u);
        store_relaxed(&helper->last, 0u);
    }
    store_relaxed(&sandbox_readers, 0u);
    helper_process = os_process_id();
    /* Filters are inherited, and so is what was learned of them. */
    if (sandbox_announcer != 0) sandbox_announcer = (uint32_t)helper_process;
}
