/* refill.h: where a heap's blocks come from when a bin is empty, and where its slabs go.
 *
 * Internal to the heap layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_REFILL_H
#define WEIR_HEAP_REFILL_H

#include "heap/slab.h"

/* Make a slab of class c with free blocks the heap's active one: with checks=late they are then in the
 * bin, with checks=full on the slab's own list. False: no memory. */
WEIR_FN bool refill(struct heap* h, unsigned c);
/* What most refills of a small class come to in a heap of some size, without the rest of what refill looks
 * at: the active slab, which visitors may sort, has a list, which becomes the bin's. One slow call in 16
 * never ends so. False: nothing was done. Where refill_may_turn. */
WEIR_FN bool refill_turn(struct heap* h, unsigned c);
WEIR_INLINE bool refill_may_turn(const struct heap* h, unsigned c) {
    const struct slice* s = h->active[c];
    return s != NULL && load_relaxed(&s->listed) == LISTED_ACTIVE && h->bins[c].head == NULL;
}
/* What need not be done at each slow call, by how many there were: every one that counts itself asks. */
WEIR_FN void refill_chores(struct heap* h);
/* Whether there are any at this one. */
WEIR_INLINE bool chores_are_due(const struct heap* h) { return (h->slow_calls & 15) == 0; }
/* The heap got a slab by claiming it: take in its blocks and put it where it belongs. */
WEIR_FN void heap_adopt(struct heap* h, struct slice* s);
/* Put the rest of a bin back on its slab's list. */
WEIR_FN void bin_return(struct heap* h, unsigned c, const char* call);
/* Send every outbox. */
WEIR_FN void outbox_flush_all(struct heap* h);
/* Give a slab to whoever wants it: of a thread that ends, or claimed by one that has no heap. The caller
 * owns it; it is on no heap's list. */
WEIR_FN void orphan_put(struct slice* s);
/* The same of one that was just claimed, with a few blocks that came back: they stay where they wait. */
WEIR_FN void orphan_give(struct slice* s);
/* Anybody: if slab s, whose pages' record is r, is nobody's, make holes of its free pages. The bytes of
 * blocks that this took a look at are added to *looked. */
WEIR_FN void orphan_visit(struct slice* s, const struct slice_pages* r, uint64_t* looked);
/* In the child of a fork that could not wait for the lists: orphans stay unowned, and on no list. */
WEIR_FN void orphans_forget(void);
/* In the child of a fork that interrupted this thread while it held heaps_lock: the lists may be half
 * changed. */
WEIR_FN void orphans_interrupted(void);

#endif
