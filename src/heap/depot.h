/* depot.h: freed medium blocks on their way from threads that free more of a class than they take to threads
 * that take more than they free, several at a time and without a lock; and those of a thread whose use goes
 * down and up again, from one to the other.
 *
 * Where they come from an arena's lists would be written by both for each block, which costs what it costs to
 * move each line of them from one processor to the other, and a lock and several lists each way. It
 * deliberately knows nothing of who gives and who takes: that is medium.c's business. To arenas a block in a
 * depot is in use, and known to be kept.
 *
 * Bonwick and Adams, "Magazines and Vmem" (USENIX 2001), has depots of full magazines; here each has a place
 * of its own, so that there is no list of them that could be changed by two at once.
 *
 * Internal to the heap layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_DEPOT_H
#define WEIR_HEAP_DEPOT_H

#include "base/compiler.h"
#include "heap/arena.h"

/* Blocks of one class that go together, and what they may be in bytes. */
enum { DEPOT_BLOCKS = 7, DEPOT_BYTES = 131072 };
/* Places of a class: so many for what goes from thread to thread, and those for blocks that a thread leaves
 * for itself. A power of two. */
enum { DEPOT_PASSED = 2, DEPOT_OWN = 16, DEPOT_PLACES = DEPOT_PASSED + DEPOT_OWN };
static_assert((DEPOT_OWN & (DEPOT_OWN - 1)) == 0, "places go round");

/* Whether any block was ever left: until then nobody looks. Sync: relaxed atomic. */
WEIR_VAR_DECL bool depot_is_used;
/* Whether there may be some that threads left for themselves: these are for who would need more memory. Sync:
 * see depot_put. */
WEIR_VAR_DECL bool depot_is_filled;

/* How many of class m go together; 0: none ever do. */
WEIR_INLINE unsigned depot_count_of(unsigned m) {
    if (m >= LONG_CLASS || tag_is_on()) return 0; /* where memory is tagged neighbours are to be known */
    size_t most = DEPOT_BYTES / size_classes[SMALL_CLASSES + m].bytes;
    return most < DEPOT_BLOCKS ? (unsigned)most : DEPOT_BLOCKS;
}
/* Leave so many kept blocks of class m in one place, with what lies there; they are the caller's no more
 * then. `own`: for itself. *tell: a visitor is to come for them, and knows of none there. False: no place has
 * room for all of them, or others are at it just now. */
WEIR_FN bool depot_put(unsigned m, void* const* blocks, unsigned count, bool own, bool* tell);
/* Take those that somebody left, into `blocks`, with places for DEPOT_BLOCKS. Their number; they are kept
 * ones still, and the caller's. */
WEIR_FN unsigned depot_take(unsigned m, void** blocks);
/* How many of class m lie there. */
WEIR_FN uint64_t depot_count(unsigned m);
/* Some of what threads left for themselves goes back to its arenas, class by class in turn. False: nothing is
 * left. */
WEIR_FN bool depot_empty_some(void);
/* All of them go back to their arenas. */
WEIR_FN void depot_empty(void);

#endif
