/* atomic.h: base/atomic.h as the explorer sees it: before each operation on a shared word another thread may
 * go on instead, and what an operation finds is remembered.
 *
 * Stands in the place of src/base/atomic.h (same guard) in front of pool/slot.h and pool/magazine.h, which
 * are compiled as they are. Words of 32 bits are figures there, which decide nothing, and are no points to
 * switch at. Order is sequential: what weaker orders allow is not explored.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_BASE_ATOMIC_H
#define WEIR_BASE_ATOMIC_H

#include "base/compiler.h"

/* Let the scheduler choose who makes the next step; what the calling thread found in its step. */
void explore_step(void);
void explore_saw(uintptr_t value);

#define EXPLORE(p, old, action)                                                                              \
    ({                                                                                                       \
        if (sizeof *(p) > sizeof(uint32_t)) explore_step();                                                  \
        __typeof__(*(p)) old = *(p);                                                                         \
        action;                                                                                              \
        explore_saw((uintptr_t)old);                                                                         \
        old;                                                                                                 \
    })
#define load_relaxed(p) EXPLORE(p, explore_old, (void)0)
#define load_acquire(p) load_relaxed(p)
#define load_seq_cst(p) load_relaxed(p)
#define store_relaxed(p, v) ((void)EXPLORE(p, explore_old, *(p) = (v)))
#define xchg_acquire(p, v) EXPLORE(p, explore_old, *(p) = (v))
#define cas_acq_rel(p, expected, v)                                                                          \
    ({                                                                                                       \
        __typeof__(*(p)) explore_wanted = *(expected);                                                       \
        *(expected) = EXPLORE(p, explore_old, if (explore_old == explore_wanted) * (p) = (v));               \
        *(expected) == explore_wanted;                                                                       \
    })
#define cas_seq_cst(p, expected, v) cas_acq_rel(p, expected, v)

#endif
