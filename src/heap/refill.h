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
/* A visitor, who has the heap's lock and found that its gate may be taken: what waits in its outboxes goes to
 * OUTBOX_SLOTS of its own; and from there, with no heap's lock held, to its slabs. */
WEIR_FN WEIR_NOINLINE void outboxes_take(struct heap* h, struct outbox* outboxes);
WEIR_FN WEIR_NOINLINE void outboxes_give(struct outbox* outboxes);

#endif
