/* direct.h: the active slab whose owner's frees go to its bin.
 *
 *          malloc <- bin <-------- free       direct
 *          malloc <- bin <- list <- free      else: the list becomes the bin when that is empty
 *
 * A block that is freed is then the one that the thread is given next: it is in the cache, and what lives for
 * a moment leaves no gap between blocks that live on, so that a program finds side by side what it made one
 * after the other (docs/adr/0025). Blocks in the bin count as in use, hence the count of those stays as it is
 * while the slab is direct, and `until` counts down to the owner's next look. How many are in use without the
 * bin's it then knows from what came and went. Late checks need lists that turn over: now and then the frees
 * go to the slab's own list for one round.
 *
 * Internal to the heap layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_DIRECT_H
#define WEIR_HEAP_DIRECT_H

#include "core/options.h"
#include "heap/slab.h"

WEIR_INLINE bool slab_is_direct(const struct slice* s) { return counts_direct(load_relaxed(&s->counts)); }

/* Whether the active slab, whose bin is about to be filled or is to stay as it is, may be direct: where it
 * fits, but for lists that are to be walked. */
WEIR_FN bool direct_fits(const struct heap* h, const struct slice* s, uint32_t out, uint32_t count);
WEIR_INLINE bool direct_may(const struct heap* h, const struct slice* s, uint32_t out, uint32_t count) {
    return !walk_is_due(h) && direct_fits(h, s, out, count);
}
/* It is, with `used` blocks in use, `count` of which lie in the bin. With no visitor near. */
WEIR_FN void direct_begin(struct heap* h, struct slice* s, uint32_t used, uint32_t count);
/* The owner is about to do more to its slab than a push: frees go to the slab's own list again. Under the
 * heap's lock if the slab is listed. */
WEIR_FN void direct_end_now(struct heap* h, struct slice* s);
WEIR_INLINE void direct_end(struct heap* h, struct slice* s) {
    if (weir_unlikely(slab_is_direct(s))) direct_end_now(h, s);
}

/* The countdown of a direct slab ended. *count: blocks in the bin, as far as that is known without following
 * it. */
enum direct_state {
    DIRECT_GOES_ON, /* nearly always: the countdown began again */
    DIRECT_FEW,     /* few of its blocks, or none, are in use: it stays if what is kept so is little */
    DIRECT_LONG,    /* the bin has been long for long */
    DIRECT_IN_USE   /* a late check may be due */
};
WEIR_FN enum direct_state direct_look(struct heap* h, struct slice* s, uint32_t* count);

/* Anybody: how many blocks of slab s came to the bin since its owner last looked, 0 if it is not direct;
 * about, for other threads than that. */
WEIR_FN uint32_t direct_freed(const struct slice* s);
/* Anybody, of a direct slab: blocks in the bin, as far as is known without following that. What went into it
 * by its size (WEIR_TRUST_SIZE) was not counted, so that there may be more; what is in it twice was. About,
 * likewise. */
WEIR_FN uint32_t direct_waiting(const struct slice* s);

#endif
