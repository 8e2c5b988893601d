/* huge.h: which parts of the heap the kernel may back by huge pages.
 *
 * A region starts without any: its records stay so, and a small heap does not grow by huge steps where the
 * system makes everything huge. In a large heap the helper thread puts huge pages under extents, aligned
 * pieces of such a page's size, that have been full for some windows, and no more than a part of its time
 * goes into that. Where a heap of some size was dense so far, the extents that it grows by are huge from
 * their first touch on. They are broken up when enough of them is free. It deliberately knows nothing of
 * blocks.
 *
 *                 full for some windows               more than a few holes
 *   small     --------------------------> huge  ------------------------------> small, not tried for a while
 *                                         ^  its few holes stay
 *   the heap grows                        |
 *             ------> open: by the kernel, until something is given back or the helper looks
 *
 * But for that the kernel makes nothing huge here (hugepages=auto, never): what it fills would be resident
 * again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_HUGE_H
#define WEIR_PAGE_HUGE_H

#include "os/os.h"
#include "page/region.h"

/* Values of the option `hugepages`. */
enum huge_option { HUGE_AUTO, HUGE_NEVER, HUGE_ALWAYS };

/* Extents. Sync: relaxed atomics; figures for people. */
struct huge_totals {
    uint64_t made;
    uint64_t opened;  /* where the heap grew */
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
/* Where a dense heap grows, whole extents are open: the kernel may put huge pages under them when they are
 * first touched. Slices [from, end) of the primary region were open or are; they read as zero until they are
 * given out, but may be resident, also those behind the frontier. Sync: the page lock; `end` is read relaxed
 * without. */
struct huge_ahead {
    uint32_t from;
    uint32_t end;
    bool open;
};
WEIR_VAR_DECL struct huge_ahead huge_ahead;
WEIR_INLINE bool huge_is_ahead(uint32_t index, uint32_t count) {
    return index < huge_ahead.end && index + count > huge_ahead.from;
}
/* Bytes in use from which on extents are opened, with a block as long as one that the heap is about to grow
 * by; and bytes in use, with what it is about to grow by, from which on it is looked at, so that by then it
 * is known whether they may be. */
#define HUGE_GROWTH_MIN (8 * MIB)
#define HUGE_LOOK_MIN (7 * MIB)
/* Processor time for an extent's first touch from which on the kernel is slower with huge pages than with as
 * many small ones. Tests change it. */
WEIR_VAR_DECL uint64_t huge_slow_ns;
/* The next growth may open extents if what the heap grew by last is looked at first. Sync: relaxed; a look
 * more or less makes no difference. */
WEIR_VAR_DECL bool huge_learn_due;
/* Where it is due; with no lock held: reading memory may block. */
WEIR_FN WEIR_NOINLINE void huge_learn(void);
WEIR_INLINE void huge_learn_if_due(void) {
    if (weir_unlikely(load_relaxed(&huge_learn_due))) huge_learn();
}
/* In the child of fork, whose thread was not looking. */
WEIR_FN void huge_fork_child(void);
/* Under the page lock: the primary region, with that many in use, is about to grow by `count` slices. Not
 * inlined: what small processes run lies together (weir.ld), and they never get here. */
WEIR_FN WEIR_NOINLINE void huge_grow(uint32_t count);
/* Under the page lock: nothing is open any more. What is given back of an open extent would come back by a
 * whole huge page. */
WEIR_FN void huge_seal(void);
/* Under the page lock: nothing behind the frontier is or will be resident. */
WEIR_FN void huge_forget_ahead(void);
/* A look of those who return memory: where the heap has not grown since the last one, nothing is open any
 * more, and what is resident behind the frontier goes. */
WEIR_FN void huge_settle(void);
/* Under the page lock, before a range of the heap is given back: where a part of it is open, nothing is any
 * more. As open counts what was when it was closed last, behind the heap's end of then. Where in the range
 * the huge pages are of which it has a part, and how many: the caller splits them first (os_split_huge). */
WEIR_FN unsigned huge_breaks(struct os_range goes, void* split[2]);
/* For the release pass, under the page lock: whether the slice's holes are too few, with those around them,
 * to break a huge page up for. If not, it is broken up, and the holes around are marked for the next pass. */
WEIR_FN bool huge_keeps(const struct slice* s);
/* Under the page lock: mark the holes that were kept. */
WEIR_FN void huge_give_up(void);

#endif
