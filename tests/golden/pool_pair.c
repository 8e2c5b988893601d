/* pool_pair.c: one and two pairs of allocation and free on a pool that is declared here.
 *
 * Who may call it: check/pool_pair.py, which compiles it and counts in the disassembly; nothing runs. The
 * second function's excess over the first is what a pair costs inside a function. The barrier keeps the
 * object from being known.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "weir/pool.h"

WEIR_POOL_DECLARE(buffers, 16384, 0, 0);

void pairs_one(void);
void pairs_two(void);

static inline __attribute__((always_inline)) void pair(void) {
    void* object = WEIR_POOL_ALLOC(buffers);
    __asm__ volatile("" : "+r"(object));
    WEIR_POOL_FREE(buffers, object);
}

void pairs_one(void) { pair(); }

void pairs_two(void) {
    pair();
    pair();
}
