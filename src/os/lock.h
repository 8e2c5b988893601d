/* lock.h: the one kind of lock weir has: a futex mutex that its owner may take again.
 *
 * Taken on slow paths only. A thread that holds a lock takes only locks of a larger rank, or one it has.
 * It knows nothing of what it protects.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_OS_LOCK_H
#define WEIR_OS_LOCK_H

#include "arch/arch.h"
#include "base/atomic.h"
#include "base/compiler.h"
#include "os/os.h"

enum lock_rank {
    LOCK_POOLS = 0,
    LOCK_HEAPS = 1,
    LOCK_HEAP = 2,
    LOCK_ARENA = 3,
    LOCK_RELEASE = 4,
    LOCK_PAGES = 5
};

/*  owner == 0: free. nest: how often the owner has taken it again.
 *
 *  The owner's name is the lock word itself, so that a signal handler that forks finds out at every
 *  instruction whether the thread it interrupted holds the lock. */
struct os_lock {
    void* owner;     /* Sync: atomic; acquire on take pairs with release on give */
    uint32_t nest;   /* Sync: the owner */
    uint32_t wanted; /* somebody sleeps for it, or is about to; Sync: atomic, seq_cst with owner: a giver sees
                      * the waiter or the waiter the gift */
    uint32_t rank;
    uint32_t spin_us; /* awake so long before it sleeps; 0: not long, as its owner may have been stopped */
};

/* Called with a lock that the helper thread held when this process was made without fork handlers; the caller
 * holds it now. What the helper was doing under it is to be put right. Set by the page layer. */
WEIR_VAR_DECL void (*os_lock_left_hook)(struct os_lock* lock);

/* How many looks at a lock, with an arch_pause each, take a microsecond: what a pause takes differs between
 * processors. 0: there is one, so that who has the lock does not run. Sync: relaxed. */
WEIR_VAR_DECL uint32_t os_lock_looks_us;
/* Measure it: some tens of microseconds. */
WEIR_FN void os_lock_learn(void);

WEIR_FN void os_lock_take_slow(struct os_lock* lock, void* self);
WEIR_FN bool os_lock_wake(struct os_lock* lock);

/* Debug builds: the ranks that the calling thread holds, checked at each take that may wait. */
#ifdef WEIR_DEBUG
WEIR_VAR_DECL _Thread_local uint32_t os_lock_ranks;
#    define os_lock_rank_check(lock) weir_assert(os_lock_ranks < 1u << (lock)->rank)
#    define os_lock_rank_set(lock) (os_lock_ranks |= 1u << (lock)->rank)
#    define os_lock_rank_clear(lock) (os_lock_ranks &= ~(1u << (lock)->rank))
#    define os_lock_rank_forget() (os_lock_ranks = 0)
#    define os_lock_rank_give(lock, of) ((lock)->rank = (of))
#else
#    define os_lock_rank_check(lock) ((void)(lock))
#    define os_lock_rank_set(lock) ((void)(lock))
#    define os_lock_rank_clear(lock) ((void)(lock))
#    define os_lock_rank_forget() ((void)0)
#    define os_lock_rank_give(lock, of) ((void)(lock))
#endif

WEIR_INLINE bool os_lock_is_mine(struct os_lock* lock) {
    return load_relaxed(&lock->owner) == arch_thread_pointer(); /* only this thread writes that value */
}

WEIR_INLINE bool os_lock_try(struct os_lock* lock) {
    void* expected = NULL;
    bool got = __atomic_compare_exchange_n(&lock->owner, &expected, arch_thread_pointer(), false,
                                           __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    if (got) os_lock_rank_set(lock);
    return got;
}

WEIR_INLINE void os_lock_take(struct os_lock* lock) {
    if (os_lock_is_mine(lock)) {
        lock->nest++;
        return;
    }
    os_lock_rank_check(lock);
    if (weir_unlikely(!os_lock_try(lock))) os_lock_take_slow(lock, arch_thread_pointer());
}

/* The same, but false where it is not to be had for a millisecond: its owner may be waiting for what the
 * caller has. */
WEIR_FN bool os_lock_take_soon(struct os_lock* lock);

/* True: somebody slept for it, and was woken. Whoever takes it again at once is faster. */
WEIR_INLINE bool os_lock_give_waking(struct os_lock* lock) {
    weir_assert(os_lock_is_mine(lock));
    if (lock->nest != 0) {
        lock->nest--;
        return false;
    }
    os_lock_rank_clear(lock);
    /* Release, and before the load of wanted: an exchange, as emulators of aarch64 (qemu 7.2) let a load pass
     * a store of this order. */
    (void)__atomic_exchange_n(&lock->owner, NULL, __ATOMIC_SEQ_CST);
    return weir_unlikely(__atomic_load_n(&lock->wanted, __ATOMIC_SEQ_CST) != 0) && os_lock_wake(lock);
}
WEIR_INLINE void os_lock_give(struct os_lock* lock) { (void)os_lock_give_waking(lock); }

/* In the child of fork, the only thread: those that slept are gone. `steal`: so is the owner. */
WEIR_INLINE void os_lock_fork_child(struct os_lock* lock, bool steal) {
    store_relaxed(&lock->wanted, 0u);
    if (!steal) return;
    lock->nest = 0;
    os_lock_rank_set(lock);
    store_relaxed(&lock->owner, arch_thread_pointer());
}

#endif
