/* process.c: the life of the process and its threads: start, thread exit, fork, limits, exit.
 *
 * Nothing here runs before the first call of malloc or the library's constructor, and neither asks for
 * dlsym, stdio or a pthread key: the key is made when a second thread gets a heap.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/wire.h"
#include "core/options.h"
#include "heap/guard.h"
#include "heap/heap.h"
#include "heap/tag_fault.h"
#include "os/os.h"
#include "page/span.h"
#include "pool/pool.h"
#include "weir/weir.h"

/* A key past the first ones makes pthread_setspecific allocate, and the allocation that is under way may
 * be pthread_setspecific's own for the very same table: weir then does without a key, and ended threads
 * are found by asking the kernel. */
enum { KEYS_WITHOUT_ALLOCATION = 32 };
enum { KEY_NONE, KEY_MAKING, KEY_READY, KEY_REFUSED };
static uint32_t thread_key_state; /* Sync: acquire and release publish thread_key */
static pthread_key_t thread_key;

/* Other keys' destructors may allocate after ours: ours asks to run again, and empties the heap out in the
 * last round but one that libc promises. The last one is for a thread that had no heap until such a
 * destructor ran, after our turn in the first; and for what allocates after the heap is let go. */
enum {
    ROUND_FIRST = 1,
    ROUND_LAST = PTHREAD_DESTRUCTOR_ITERATIONS - 1,
    ROUND_OVER = PTHREAD_DESTRUCTOR_ITERATIONS
};
static void thread_exit(void* round) {
    pool_thread_detach(); /* it has words in the thread's TLS; from now on it gets none there */
    bool last = (uintptr_t)round >= ROUND_LAST;
    /* Once it is over, what allocates is not taken for a thread whose rounds begin. */
    uintptr_t next = last ? ROUND_OVER : (uintptr_t)round + 1;
    if (pthread_setspecific(thread_key, (void*)next) != 0 || last) heap_detach("thread exit", true);
}

/* Whether thread_exit is still to run in this thread for the first time. The first thread's TLS stays. */
static bool thread_end_is_seen(void) {
    int tid = os_thread_id();
    if (tid > 0 && tid == os_process_id()) return true;
    if (load_acquire(&thread_key_state) != KEY_READY) return false;
    return pthread_getspecific(thread_key) == (void*)(uintptr_t)ROUND_FIRST;
}

WEIR_EXPORT void weir_thread_idle(void) {
    int saved = errno;
    heap_detach("weir_thread_idle", false);
    errno = saved;
}

static void thread_attached(bool first) {
    int saved = errno;
    wire_reached();
    if (!first) {
        os_sandbox_thread_seen();
        os_sandbox_learn(); /* before threads are many, which may count on the numbers that descriptors get */
        uint32_t expected = KEY_NONE;
        if (cas_acq_rel(&thread_key_state, &expected, KEY_MAKING)) {
            bool made = pthread_key_create(&thread_key, thread_exit) == 0;
            bool usable = made && thread_key < KEYS_WITHOUT_ALLOCATION;
            if (made && !usable) pthread_key_delete(thread_key);
            store_release(&thread_key_state, usable ? KEY_READY : KEY_REFUSED); /* publishes thread_key */
        }
        while (load_acquire(&thread_key_state) == KEY_MAKING) arch_pause();
        /* A thread that is ending keeps its round: what allocates in the last ones is seen then. */
        if (load_acquire(&thread_key_state) == KEY_READY && pthread_getspecific(thread_key) == NULL)
            pthread_setspecific(thread_key, (void*)(uintptr_t)ROUND_FIRST);
    }
    errno = saved;
}

/* libc's fork takes the lock of its list of streams after the handlers ran. A thread may hold that lock and
 * wait for a stream whose owner waits for a lock of ours: ours must come second, as those of libc's own
 * malloc do. The lock is recursive. Libc resets it in a child of a threaded process before the handlers run,
 * and leaves it alone where there is one thread: so do these. Absent from C libraries other than glibc. */
extern void _IO_list_lock(void) __attribute__((weak));
extern void _IO_list_unlock(void) __attribute__((weak));
extern void _IO_list_resetlock(void) __attribute__((weak));
static bool fork_locks_streams; /* Sync: the lock itself, or there is one thread */

static void fork_prepare(void) {
    enum { patience = 100 }; /* at most a millisecond each */
    bool locks = !__libc_single_threaded && _IO_list_lock != NULL && _IO_list_unlock != NULL;
    for (unsigned tries = 0;; tries++) {
        heap_fork_ready();
        if (locks) _IO_list_lock();
        if (pool_fork_prepare()) {
            if (heap_fork_prepare(tries < patience)) break;
            pool_fork_parent();
        }
        /* A thread that forks in a handler may have one of ours and wait for that of the streams: it is
         * first. */
        if (locks) _IO_list_unlock();
        uint32_t never = 0;
        os_futex_wait_for(&never, 0, 200000);
    }
    fork_locks_streams = locks;
}

static void fork_parent(void) {
    heap_fork_parent();
    pool_fork_parent();
    if (fork_locks_streams) _IO_list_unlock();
}

static void fork_child(void) {
    if (fork_locks_streams && _IO_list_resetlock != NULL) _IO_list_resetlock();
    /* The thread that was making the key did not come along. */
    if (load_relaxed(&thread_key_state) == KEY_MAKING) store_relaxed(&thread_key_state, (uint32_t)KEY_NONE);
    os_fault_forked();
    pool_fork_child(); /* first: the thread's heap may be set aside by the other */
    heap_fork_child();
    wire_forked();
}

static __attribute__((constructor(101))) void library_start(void) {
    wire_open();
    heap_attach_hook = thread_attached;
    pool_thread_hook = thread_end_is_seen;
    if (heap_self() != &heap_empty) wire_reached();
    pthread_atfork(fork_prepare, fork_parent, fork_child);
    heap_options_start();
    if (core_options.guard_rate != 0) guard_start();
    if (core_options.tagging != 0) tag_fault_start();
}

static __attribute__((destructor)) void library_end(void) {
    wire_ended();
    if (core_options.stats != 0) weir_stats_json(2);
}

/* RLIMIT_AS counts address space that is only set aside: when a program lowers the limit, what is behind
 * the heap's frontier goes, so that the program's own mappings fit. */
static int limit_set(int pid, unsigned resource, const struct rlimit* limit, struct rlimit* old) {
    if (resource == RLIMIT_NOFILE && limit != NULL)
        os_sandbox_learn(); /* while there is a descriptor for it */
    int result = (int)syscall(SYS_prlimit64, pid, resource, limit, old);
    if (result == 0 && resource == RLIMIT_AS && limit != NULL && (pid == 0 || pid == os_process_id()) &&
        limit->rlim_cur < 2 * ((uint64_t)regions[0].slices << SLICE_SHIFT))
        span_trim();
    return result;
}

/* Declared here under other types than libc's headers give: the kernel's struct is the same for both. */
WEIR_EXPORT int weir_setrlimit(unsigned resource, const struct rlimit* limit) __asm__("setrlimit");
WEIR_EXPORT int weir_setrlimit(unsigned resource, const struct rlimit* limit) {
    return limit_set(0, resource, limit, NULL);
}
WEIR_EXPORT int weir_setrlimit64(unsigned resource, const struct rlimit* limit) __asm__("setrlimit64");
WEIR_EXPORT int weir_setrlimit64(unsigned resource, const struct rlimit* limit) {
    return limit_set(0, resource, limit, NULL);
}
WEIR_EXPORT int weir_prlimit(int pid, unsigned resource, const struct rlimit* limit,
                             struct rlimit* old) __asm__("prlimit");
WEIR_EXPORT int weir_prlimit(int pid, unsigned resource, const struct rlimit* limit, struct rlimit* old) {
    return limit_set(pid, resource, limit, old);
}
WEIR_EXPORT int weir_prlimit64(int pid, unsigned resource, const struct rlimit* limit,
                               struct rlimit* old) __asm__("prlimit64");
WEIR_EXPORT int weir_prlimit64(int pid, unsigned resource, const struct rlimit* limit, struct rlimit* old) {
    return limit_set(pid, resource, limit, old);
}
