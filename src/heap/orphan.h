/* orphan.h: slabs that nobody owns, of which blocks are free: those of ended threads, and full ones that were
 * given up and of which others freed enough since. Threads that need a slab of the class take them before
 * new ones.
 *
 *   first -> slab <-> slab <-> ... <- last        of each class, in the order in which they came
 *
 * The one that came first goes first: while it waited most of its blocks came back. Who took the last one
 * would take what another thread is just freeing to, a few blocks at a time, and the two would wait for each
 * other's lines of the cache.
 *
 * A slab all of whose blocks are back stays on its list as it is, for the thread that comes for it next, up
 * to a bound for all of them (DRAINED_BYTES). Past it its memory goes to the page layer, as that of all of
 * them does when a visitor comes.
 *
 * Internal to the heap layer. It deliberately does not know when a heap needs a slab.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_ORPHAN_H
#define WEIR_HEAP_ORPHAN_H

#include "heap/heap.h"

/* So much may wait in slabs without a block in use. */
enum { DRAINED_BYTES = 1 << 20 };

/* By class. Sync: heaps_lock; `first` is also read relaxed, to skip the lock: a missed orphan is found next
 * time. */
struct orphans {
    struct slice* first;
    struct slice* last;
};
WEIR_VAR_DECL struct orphans orphans[SLAB_CLASSES];

/* One of class c, which is the caller's, who owns heap h; NULL: there is none, or it is found next time. */
WEIR_FN struct slice* orphan_take_first(struct heap* h, unsigned c);
WEIR_INLINE struct slice* orphan_take(struct heap* h, unsigned c) {
    return weir_likely(load_relaxed(&orphans[c].first) == NULL) ? NULL : orphan_take_first(h, c);
}
/* Give a slab to whoever wants it: of a thread that ends, or claimed by one that has no heap. The caller
 * owns it; it is on no heap's list. */
WEIR_FN void orphan_put(struct slice* s);
/* The same of one that was just claimed, with a few blocks that came back, which stay where they wait; or
 * all, which become its own list. */
WEIR_FN void orphan_give(struct slice* s);
/* The slab was claimed: it leaves the list if it is on it. */
WEIR_FN void orphan_unlist(struct slice* s);
/* Anybody: if slab s, whose pages' record is r, is nobody's, make holes of its free pages. The bytes of
 * blocks that this took a look at are added to *looked. */
WEIR_FN void orphan_visit(struct slice* s, const struct slice_pages* r, uint64_t* looked);
/* Give back the memory of those without a block in use. As part of a call that changes the caller's heap, if
 * it has one (heap_enter), as all that claims slabs. */
WEIR_FN void orphans_drop(void);
/* In the child of a fork that could not wait for the lists: orphans stay unowned, and on no list. */
WEIR_FN void orphans_forget(void);
/* In the child of a fork that interrupted this thread while it held heaps_lock: the lists may be half
 * changed. */
WEIR_FN void orphans_interrupted(void);
/* With heaps_lock, before anything is done that takes it again: if it was taken just now, that call has
 * ended, and the lists are whole. */
WEIR_FN void orphans_settle(void);

/* Slabs that were given up before they were full (SLICE_EARLY): whether one more may be; one is, or has not
 * been after all. By their owner. */
WEIR_FN bool early_may(const struct slice* s);
WEIR_FN void early_begin(struct slice* s);
WEIR_FN void early_end(struct slice* s);
/* Now and then: how many there may be is looked up again. */
WEIR_FN void early_forget(void);

#endif
