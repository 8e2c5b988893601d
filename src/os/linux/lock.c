/* lock.c: the contended path of lock.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "os/lock.h"

#ifdef WEIR_DEBUG
WEIR_VAR _Thread_local uint32_t os_lock_ranks;
#endif

WEIR_VAR void (*os_lock_left_hook)(struct os_lock* lock);

/* Take the lock over from the helper that the child of a raw fork does not have. */
static bool lock_take_left(struct os_lock* lock, void* self) {
    void* gone = os_helper_left();
    if (gone == NULL || !cas_acquire(&lock->owner, &gone, self)) return false;
    lock->nest = 0;
    os_lock_rank_set(lock);
    if (os_lock_left_hook != NULL) os_lock_left_hook(lock);
    return true;
}

WEIR_VAR uint32_t os_lock_looks_us = 25;

static bool lock_look(struct os_lock* lock) {
    arch_pause();
    return load_relaxed(&lock->owner) == NULL && os_lock_try(lock);
}

/* The least of some tries: who measures may be stopped in it. */
WEIR_FN void os_lock_learn(void) {
    enum { tries = 3, looks = 512, looks_most = 1000 };
    struct os_lock held = {.owner = &held};
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < tries; i++) {
        uint64_t before = os_clock_ns();
        for (unsigned n = 0; n < looks; n++) (void)lock_look(&held);
        uint64_t took = os_clock_ns() - before;
        if (took < least) least = took;
    }
    if (least == 0) return; /* there is no clock */
    uint64_t looks_us = looks * 1000 / least;
    if (looks_us > looks_most) looks_us = looks_most;
    store_relaxed(&os_lock_looks_us, os_cpu_count() == 1 ? 0 : looks_us != 0 ? (uint32_t)looks_us : 1);
}

WEIR_FN void os_lock_take_slow(struct os_lock* lock, void* self) {
    enum { few = 64 };
    uint64_t left = lock->spin_us != 0 ? (uint64_t)lock->spin_us * load_relaxed(&os_lock_looks_us) : few;
    for (; left != 0; left--)
        if (lock_look(lock)) return;
    weir_assert(load_relaxed(&lock->owner) != self);
    /* Whoever was woken says again that the lock is wanted: there may be others. */
    for (;;) {
        __atomic_store_n(&lock->wanted, 1u, __ATOMIC_SEQ_CST); /* before the next look at the owner */
        if (os_lock_try(lock) || lock_take_left(lock, self)) return;
        os_futex_wait(&lock->wanted, 1);
    }
}

WEIR_FN bool os_lock_take_soon(struct os_lock* lock) {
    enum { tries = 20, pause_ns = 50000 };
    if (os_lock_is_mine(lock)) {
        lock->nest++;
        return true;
    }
    uint32_t never = 0;
    for (unsigned i = 0; i < tries; i++) {
        if (os_lock_try(lock) || lock_take_left(lock, arch_thread_pointer())) return true;
        os_futex_wait_for(&never, 0, pause_ns);
    }
    return false;
}

/* One call for each sleeper, however often the lock is given before it runs. */
WEIR_FN bool os_lock_wake(struct os_lock* lock) {
    return __atomic_exchange_n(&lock->wanted, 0u, __ATOMIC_SEQ_CST) != 0 &&
           os_futex_wake(&lock->wanted, 1) != 0;
}
