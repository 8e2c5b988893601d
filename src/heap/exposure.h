/* exposure.h: what a thread holds in free pages that nobody else can return, and its bound.
 *
 * Where visitors (visit.h) sort what threads have on their slabs' lists, owners do not: they tell them how
 * much there is, now and then. Elsewhere (a helper thread may not be; processors on which a push is not
 * published) lists of free blocks belong to their slab's owner alone, and a thread that blocks for good would
 * keep every free page on them for ever; so no more than `thread_free_max` bytes of frees go unlooked at, and
 * as much again looked at but not sorted by page. Each slab's countdown ends after its share; the bytes on
 * its list are then charged to the heap, which sorts the slabs that were charged first once the sum passes
 * the bound. A slab all of whose blocks come back in the meantime is gone, and costs nothing more than its
 * charges. One of which something is sorted already is sorted again at once whenever a page of it may have
 * become free.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_EXPOSURE_H
#define WEIR_HEAP_EXPOSURE_H

#include "heap/slab.h"

/* The heap has become the owner of a slab, or is about to stop being it. */
WEIR_FN void exposure_gain(struct heap* h, struct slice* s);
WEIR_FN void exposure_lose(struct heap* h, struct slice* s);
/* The slab's list was emptied. */
WEIR_FN void exposure_clear(struct heap* h, struct slice* s);
/* Set the countdown for `used` blocks in use. Owner; afterwards, a slab on the available list is to be looked
 * at under the heap's lock alone. */
WEIR_FN void exposure_arm(struct heap* h, struct slice* s, uint32_t used);
/* The same for the active slab, which visitors may sort from here on, where there are any. One that is kept
 * without use has no countdown but to its last block. */
WEIR_FN void exposure_arm_active(struct heap* h, struct slice* s, uint32_t used);
/* The two halves of that. */
WEIR_FN void exposure_count_active(struct heap* h, struct slice* s, uint32_t used);
WEIR_FN void exposure_list_active(const struct heap* h, struct slice* s);
/* The same for the active slab, whose pages' record is r, where visitors may sort it already, with its heap's
 * lock: its list goes. */
WEIR_FN void exposure_turn(struct heap* h, struct slice* s, const struct slice_pages* r, uint32_t used);
/* The rest of exposure_is_sparse, of a slab less than half of which is in use. */
WEIR_FN bool exposure_is_sparse_shared(const struct heap* h, const struct slice* s);
/* Whether little of s, which is its owner's active slab and has a list, is in use, and the list would have
 * the owner allocate all over its pages. */
WEIR_INLINE bool exposure_is_sparse(const struct heap* h, const struct slice* s) {
    return slab_used(s) < s->built / 2u && exposure_is_sparse_shared(h, s);
}
/* Whether the owner sorts such a list before it allocates from it; anew: it does, until that is of no use. */
WEIR_INLINE bool exposure_packs(const struct heap* h) { return h->pack_circle == 0; }
WEIR_INLINE void exposure_pack_anew(struct heap* h) { h->pack_met = h->pack_circle = h->pack_windows = 0; }
/* Such a list is about to be used, which counts, once for each; pack: it is sorted, if the owner packs. */
WEIR_FN void exposure_met(struct heap* h, const struct slice* s);
WEIR_FN void exposure_pack(struct heap* h, struct slice* s, const char* call);
/* So many blocks of pages' lists or resident holes go to a bin. */
WEIR_INLINE void exposure_unpacked(struct heap* h, uint32_t blocks) { h->pack_out += blocks; }
/* Sort the slab's list, uncharge it, and set its countdown anew. Owner; if it is listed, under the heap's
 * lock. */
WEIR_FN void exposure_sort(struct heap* h, struct slice* s, const char* call);
/* Whether a visitor found something wrong with the lists of s, which only its owner reports; resolve: the
 * owner, before it uses or leaves the list, with no visitor near: look, report, sort what is right. */
WEIR_INLINE bool exposure_is_doubted(const struct heap* h, const struct slice* s) {
    return weir_unlikely(load_relaxed(&h->doubted) == s);
}
WEIR_FN WEIR_COLD void exposure_resolve(struct heap* h, struct slice* s, const char* call);
/* Blocks came to the list, or were sorted, past the countdown: it ends as if the owner had freed them. */
WEIR_FN void exposure_advance(const struct heap* h, struct slice* s);
/* The countdown of s, which was listed as scarce, ended. False: not for that alone, and it is due. */
WEIR_FN bool exposure_rearm(const struct heap* h, struct slice* s);
/* The countdown of s ended while blocks are in use: charge it, and sort what has to be. */
WEIR_FN void exposure_due(struct heap* h, struct slice* s);

#endif
