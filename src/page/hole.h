/* hole.h: OS pages inside live slabs and behind large blocks that no block touches.
 *
 * The owner of a slab (or the maker of a large block) says which pages are holes; from then on anybody may
 * purge them, until the owner takes them back. Neither waits for the other: a page that is being purged
 * just now is not to be had. It deliberately knows nothing of blocks.
 *
 *              hole_add                 purge claims                  purged
 *   owner's  ------------> hole, dirty --------------> hole, busy ---------------> hole, clean
 *            <------------ hole_take
 *            <----------------------------------------------------- hole_take (a refault)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_HOLE_H
#define WEIR_PAGE_HOLE_H

#include "base/atomic.h"
#include "page/region.h"

WEIR_INLINE uint32_t hole_all(void) { return (uint32_t)((1u << slice_page_count()) - 1); }
WEIR_INLINE uint32_t hole_of(uint64_t state) { return (uint32_t)(state & PAGES_ALL); }
WEIR_INLINE uint32_t hole_clean(uint64_t state) { return (uint32_t)(state >> PAGES_CLEAN_SHIFT & PAGES_ALL); }
WEIR_INLINE uint32_t hole_busy(uint64_t state) { return (uint32_t)(state >> PAGES_BUSY_SHIFT); }
/* Holes that are resident, as far as is known, and not being purged. */
WEIR_INLINE uint32_t hole_dirty(uint64_t state) {
    return hole_of(state) & ~hole_clean(state) & ~hole_busy(state);
}

/* Bytes of dirty holes, roughly: exact after each pass, then what came. Sync: relaxed atomic. */
WEIR_VAR_DECL uint64_t hole_pending;

/* What of a state outlives its holes: which are clean, and which of these were purged. */
WEIR_INLINE uint64_t hole_known(uint64_t state) {
    uint64_t clean = hole_clean(state) & hole_of(state);
    return clean << PAGES_CLEAN_SHIFT | (clean & state >> PAGES_OLD_SHIFT) << PAGES_OLD_SHIFT;
}

/* No page of the slice is a hole any more; what is known of them stays. False: one is being purged, and
 * nothing has changed. */
WEIR_FN bool hole_hide(const struct slice* s);
/* The reverse, for the pages of `mask`; nothing is known of the others from now on. The slice has a kind that
 * a pass looks at: it says where the pages lie. */
WEIR_FN void hole_show(const struct slice* s, uint32_t mask);
/* A span without holes: what is known of its first `slices` slices becomes what is known of a large block's.
 * There are more, of which the last is `behind`, where that is not 0. True: all of the first read as zero. */
WEIR_FN bool hole_to_block(const struct slice* s, size_t slices, const uint64_t* behind);
/* What is known of a large block's pages becomes what is known of its last slice's. */
WEIR_FN void hole_from_block(const struct slice* s);
/* The slice has got a kind that a pass looks at, and had holes before. */
WEIR_FN void hole_publish(const struct slice* s);
/* The pages of `mask`, none of them a hole, become holes; then the pass is told, for all of a slice's new
 * ones at once. */
WEIR_FN void hole_set(const struct slice* s, uint32_t mask);
WEIR_FN void hole_came(const struct slice* s, uint32_t mask);
/* The two in one. */
WEIR_FN void hole_add(const struct slice* s, uint32_t mask);
/* Take those pages of `mask` back that are holes and not busy; which they were. */
WEIR_FN uint32_t hole_take(const struct slice* s, uint32_t mask);

/* For the release pass. Under the page lock: the marked slices so far, taken off the common list onto the
 * pass's own. */
WEIR_FN void hole_pass_start(void);
/* Under the page lock: the next marked slice that may have holes to purge; NULL: no more. Not marked any
 * more. */
WEIR_FN struct slice* hole_pass_next(void);
/* Put a slice (back) on the list. */
WEIR_FN void hole_mark(const struct slice* s);
/* Under the page lock: forget the marked slices of a region that goes away. */
WEIR_FN void hole_forget_region(const struct region* r);

#endif
