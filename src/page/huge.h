/* huge.h: which parts of the heap the kernel may back by huge pages.
 *
 * A region starts without any: its records stay so, and a small heap does not grow by huge steps where the
 * system makes everything huge. In a large heap the helper thread puts huge pages under extents, aligned
 * pieces of such a page's size, that have been full for some windows, and no more than a part of its time
 * goes into that. They are broken up when enough of them is free. It deliberately knows nothing of blocks.
 *
 *              full for some windows               more than a few holes
 *   small  --------------------------> huge  ------------------------------> small, not tried for a while
 *                                       its few holes stay
 *
 * The kernel itself never makes anything huge here (hugepages=auto, never): what it fills would be resident
 * again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_HUGE_H
#define WEIR_PAGE_HUGE_H

#include "page/region.h"

/* Values of the option `hugepages`. */
enum huge_option { HUGE_AUTO, HUGE_NEVER, HUGE_ALWAYS };

/* Extents. Sync: relaxed atomics; figures for people. */
struct huge_totals {
    uint64_t made;
    uint64_t refused; /* the kernel had no huge page */
    uint64_t broken;
};
WEIR_VAR_DECL struct huge_totals huge_totals;

/* A region is reserved, and nothing of it accessible: `records` bytes of records, then the heap. */
WEIR_FN void huge_region(uintptr_t base, size_t records, size_t bytes);
/* os_cover for a part of the heap: what was said of it holds for the fresh pages, too. */
WEIR_FN bool huge_cover(void* p, size_t bytes, bool accessible);
/* Whether huge_window has something to do, so that a helper is wanted. Cheap. */
WEIR_FN bool huge_due(void);
/* In the helper, at the end of a window of `window_ns`, under release_lock. */
WEIR_FN void huge_window(uint64_t window_ns);
/* For the release pass, under the page lock: whether the slice's holes are too few, with those around them,
 * to break a huge page up for. If not, it is broken up, and the holes around are marked for the next pass. */
WEIR_FN bool huge_keeps(const struct slice* s);
/* Under the page lock: mark the holes that were kept. */
WEIR_FN void huge_give_up(void);

#endif
