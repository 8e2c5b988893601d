/* lock.h: the one kind of lock weir has: a futex mutex with a rank that its holder may take again
 * while it forks.
 *
 * Taken on slow paths only. A thread takes locks in falling rank, which debug builds check. It knows
 * nothing of what it protects.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_OS_LOCK_H
#define WEIR_OS_LOCK_H

#include "arch/arch.h"
#include "base/atomic.h"
#include "base/compiler.h"
#include "os/os.h"

/* A thread that holds a lock takes only locks of a larger rank. */
enum lock_rank { LOCK_START = 1, LOCK_HEAPS = 2, LOCK_PAGES = 3, LOCK_REPORT = 4 };

/*  state: 0 free, 1 held, 2 held and somebody sleeps.
 *  Invariant: depth > 0 == holder is the thread that holds it. */
struct os_lock {
    uint32_t state; /* Sync: atomic; acquire on take pairs with release on give */
    uint32_t depth; /* Sync: the holder */
    void* holder;   /* Sync: written by the holder; a reader compares it with itself only, so stale is safe */
    uint32_t rank;
};

WEIR_FN void os_lock_take_slow(struct os_lock* lock);

WEIR_INLINE void os_lock_take(struct os_lock* lock) {
    void* self = arch_thread_pointer();
    /* Only the forking thread, between the prepare and the parent or child handler, finds itself here. */
    if (weir_unlikely(load_relaxed(&lock->holder) == self)) {
        lock->depth++;
        return;
    }
    uint32_t expected = 0;
    if (weir_unlikely(!cas_acquire(&lock->state, &expected, 1u))) os_lock_take_slow(lock);
    weir_assert(lock->depth == 0);
    store_relaxed(&lock->holder, self);
    lock->depth = 1;
}

WEIR_INLINE void os_lock_give(struct os_lock* lock) {
    weir_assert(lock->depth > 0 && lock->holder == arch_thread_pointer());
    if (--lock->depth != 0) return;
    store_relaxed(&lock->holder, NULL);
    if (weir_unlikely(xchg_release(&lock->state, 0u) == 2)) os_futex_wake(&lock->state, 1);
}

/* In the child of fork: the other threads are gone, and with them those that slept. */
WEIR_INLINE void os_lock_forget_sleepers(struct os_lock* lock) {
    if (load_relaxed(&lock->state) == 2) store_relaxed(&lock->state, 1u);
}

#endif
