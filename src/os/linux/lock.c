/* lock.c: the contended path of lock.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "os/lock.h"

#ifdef WEIR_DEBUG
WEIR_VAR _Thread_local uint32_t os_lock_ranks;
#endif

WEIR_FN void os_lock_take_slow(struct os_lock* lock, void* self) {
    enum { spins = 64 };
    for (unsigned spin = 0; spin < spins; spin++) {
        arch_pause();
        if (load_relaxed(&lock->owner) == NULL && os_lock_try(lock)) return;
    }
    weir_assert(load_relaxed(&lock->owner) != self);
    (void)self;
    __atomic_fetch_add(&lock->waiters, 1u, __ATOMIC_SEQ_CST); /* before the next look at the owner */
    for (;;) {
        uint32_t turn = load_acquire(&lock->turn); /* before the look, so that no wake is missed */
        if (os_lock_try(lock)) break;
        os_futex_wait(&lock->turn, turn);
    }
    sub_relaxed(&lock->waiters, 1u);
}

WEIR_FN void os_lock_wake(struct os_lock* lock) {
    __atomic_fetch_add(&lock->turn, 1u, __ATOMIC_RELEASE); /* pairs with the acquire above */
    os_futex_wake(&lock->turn, 1);
}
