/* span.h: runs of slices, given out, taken back, grown in place and moved.
 *
 * The heap layer calls it for slabs and large blocks, on its slow paths. Free spans are kept by what is
 * known of their pages: dirty (may be resident), clean (accessible, read as zero) and uncommitted. It
 * deliberately knows nothing of size classes, threads or tags.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_SPAN_H
#define WEIR_PAGE_SPAN_H

#include "base/compiler.h"
#include "os/lock.h"
#include "page/region.h"
#include "page/slice.h"

WEIR_VAR_DECL struct os_lock page_lock;

/* Sync: the page lock; read relaxed by statistics. Bytes. */
struct span_totals {
    uint64_t live;        /* in spans given out */
    uint64_t large;       /* usable bytes of large blocks; relaxed atomic, also changed without the lock */
    uint64_t dirty;       /* of pages in free spans that may be resident */
    uint64_t dirty_low;   /* the least that `dirty` was since span_window */
    uint64_t purged;      /* given back to the kernel since the start */
    uint64_t moved;       /* number of live spans that sit in a mapping of their own */
    uint64_t meta_unused; /* of spans for weir's own records, not yet given out */
    uint64_t uncommitted; /* number of free spans that are inaccessible */
};
WEIR_VAR_DECL struct span_totals span_totals;

/* A span of `slices` slices whose address is a multiple of `align_slices` slices (a power of two), of
 * kind META until the caller says otherwise. *zeroed: its memory reads as zero. What is known of its pages
 * stands where a large block has it. NULL: no memory. */
WEIR_FN struct slice* span_alloc(size_t slices, size_t align_slices, bool* zeroed);
/* The same for a slab: all pages of its slices are holes. `resident`: of memory that is resident if there is
 * such; otherwise of what is not, as far as it goes. *fresh: nothing was ever on it, though it may be
 * resident, as huge pages are from their first touch on. */
WEIR_FN struct slice* span_alloc_slab(size_t slices, bool resident, bool* fresh);
/* Each further slice of such a span says from now on where the span starts, and of its own pages which are
 * holes. Then the first slice gets a kind that is so (slice_kind_is_paged, or SPARE). */
WEIR_FN void span_mark_rest(struct slice* s);
/* Give such a span back. */
WEIR_FN void span_free_paged(struct slice* s);
/* Give a span back. Purges the largest dirty spans when more than release_dirty_max() is dirty. */
WEIR_FN void span_free(struct slice* s);
/* The same for a caller who has the page lock, which is taken by span_lock (and given by os_lock_give). */
WEIR_FN void span_lock(void);
WEIR_FN void span_free_locked(struct slice* s);
/* The same for one that the caller made inaccessible, without memory or charge. */
WEIR_FN void span_free_uncommitted(struct slice* s);
/* Grow or shrink in place; false: the neighbour is in use, the span is as it was. */
WEIR_FN bool span_resize(struct slice* s, size_t slices);
/* A program that asks for more than the machine has is to hear so now, as from mmap, and not to be killed on
 * its first touch: reserved space is uncharged, so the kernel is asked explicitly. */
WEIR_FN bool span_is_plausible(size_t fresh_slices);
/* Move a large span to a new one of `slices` slices, and `room` more where there are so many, by changing
 * page tables. Returns the new span, with the old one freed; NULL: not possible (the caller copies), nothing
 * changed. `bytes` of content: of the last slice that has some all pages move. */
WEIR_FN struct slice* span_move(struct slice* s, size_t slices, size_t room, size_t bytes);
/* The same in two steps, for a caller who makes the new span himself: whether one of so many slices may be
 * moved to; and the move to span `to`, which is given back where it is refused. */
WEIR_FN bool span_may_move(const struct slice* s, size_t slices);
WEIR_FN struct slice* span_move_to(struct slice* s, struct slice* to, size_t bytes);
/* Mappings that came so and that a live span's block consists of, beside what it grew by since. */
WEIR_FN uint32_t span_pieces(const struct slice* s);
/* Called under the page lock for memory of a span whose slices spoke for themselves (slice_kind_is_paged) and
 * that becomes free, as far as it may be resident: what its user left beside the contents is to go. NULL:
 * nothing did. Set by the heap layer. */
WEIR_VAR_DECL void (*span_wipe_hook)(void* p, size_t bytes);
/* Purge dirty spans, the largest first, until `bytes` are purged or none is left. True: something was given
 * back. */
WEIR_FN bool span_purge(uint64_t bytes);
/* Give back what is recorded of the slices inside long free spans that have no memory themselves. True: there
 * is more, for another time. */
WEIR_FN bool span_drop_records(void);
/* A window ends: the bytes of dirty spans that were not needed during it. */
WEIR_FN uint64_t span_window(void);
/* `bytes` of zeroed memory for weir's own records, aligned to 64, never freed; NULL: no memory. */
WEIR_FN void* span_meta_alloc(size_t bytes);
/* Call `visit` for the first slice of every span of every region, under the page lock. */
WEIR_FN void span_visit(void (*visit)(struct slice* s, void* context), void* context);
/* The same for every record below the frontiers, whether it starts a span or not, with what is known of its
 * pages: right even when the page layer was interrupted half-way. One within a span may not say which region
 * it is in. Takes no lock: for the only thread of a fork's child. */
typedef void record_visit(struct slice* s, struct slice_pages* pages, void* context);
WEIR_FN void span_visit_records(record_visit* visit, void* context);
/* In the child of a fork that interrupted this thread while it held the page lock: the lists may be half
 * changed. Holds until the lock is taken next. */
WEIR_FN void span_interrupted(void);
/* In the child of fork, under the page lock: what other threads were purging is free. */
WEIR_FN void span_purges_left(void);
/* Under the page lock, of a process that was made while somebody who is not there held it. */
WEIR_FN void span_rebuild(void);
/* Return address space that no block needs, where a limit on it was lowered: what is free at the end of
 * the primary region and what was never used of it. */
WEIR_FN void span_trim(void);
/* Walk every region and check every invariant of slice.h and of the free lists; true when all hold. */
WEIR_FN bool span_check(void);

#endif
