/* lock.c: the contended path of lock.h, after Drepper's "Futexes Are Tricky", mutex 2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "os/lock.h"

WEIR_FN void os_lock_take_slow(struct os_lock* lock) {
    for (unsigned spin = 0; spin < 64; spin++) {
        uint32_t expected = 0;
        if (load_relaxed(&lock->state) == 0 && cas_acquire(&lock->state, &expected, 1u)) return;
        arch_pause();
    }
    while (xchg_acquire(&lock->state, 2u) != 0) os_futex_wait(&lock->state, 2);
}
