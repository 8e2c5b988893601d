/* region.h: address space set aside, and the way from a pointer to its slice record.
 *
 * One primary region, reserved at start, whose test is a single compare; further regions, found through
 * a two-level map, where limits or exhaustion forbid one. It deliberately knows nothing of free spans.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_REGION_H
#define WEIR_PAGE_REGION_H

#include "base/compiler.h"
#include "base/atomic.h"
#include "page/slice.h"

enum { REGION_COUNT_MAX = 2048, REGION_GRANULE_SHIFT = 22 };

/* The primary region as the fast path sees it: `slices` counts those whose records are accessible, so
 * that a wild pointer into the rest of the reservation is foreign and never faults. 0 before start.
 * Sync: written under the page lock, read relaxed: a block's slice was counted before the block was
 * given out, and whoever handed the block over ordered that. */
struct page_root {
    uintptr_t base;
    size_t slices;
    uintptr_t trusted; /* base, for who may go by more than the pointer (api/cxx.c); NEAR_NOBODY until then */
};
/* An address that no pointer is near, whatever its tag: bit 55 says whether it is the kernel's. */
#define NEAR_NOBODY (1ull << 55)
WEIR_VAR_DECL struct page_root page_root;

/*  Invariants: first <= frontier <= committed <= slices (committed may lag where commit is refused).
 *  Sync: the page lock. */
struct region {
    uintptr_t base;      /* 0: this row is not in use */
    uint32_t slices;     /* all of them, records included */
    uint32_t first;      /* first slice behind the records */
    uint32_t frontier;   /* slices from here on were never handed out */
    uint32_t committed;  /* slices below are accessible, unless a free span says otherwise */
    uint32_t live;       /* slices in spans that are not free */
    size_t record_bytes; /* of the record array, accessible */
    uintptr_t pages;     /* where the array of struct slice_pages starts, behind the records */
    size_t pages_bytes;  /* of it, accessible */
    uint64_t visitors;   /* threads that may still look at records of slabs they gave their last block to,
                          * and how often they were forgotten; Sync: atomic, see span_free */
};
WEIR_VAR_DECL struct region regions[REGION_COUNT_MAX];
WEIR_VAR_DECL uint32_t region_count;     /* rows ever used */
WEIR_VAR_DECL bool region_commit_strict; /* vm.overcommit_memory == 2 */
/* The kind of memory that blocks lie in: os_commit_as. Set before region_start. */
WEIR_VAR_DECL uint32_t region_memory_kind;

/* Of `visitors`: the lower half counts them, the upper one how often they were forgotten. */
enum { REGION_FORGOTTEN_SHIFT = 32 };
WEIR_INLINE uint32_t region_visitors(const struct region* r) { return (uint32_t)load_acquire(&r->visitors); }
/* The caller becomes a visitor, until region_let gets what this returns: r keeps its records. A handler may
 * fork at any instruction of it all: its child has forgotten who came before, and does not count them out. */
WEIR_INLINE uint32_t region_hold(struct region* r) {
    return (uint32_t)(add_relaxed(&r->visitors, 1) >> REGION_FORGOTTEN_SHIFT);
}
WEIR_INLINE void region_let(struct region* r, uint32_t held) {
    uint64_t word = load_relaxed(&r->visitors);
    while (word >> REGION_FORGOTTEN_SHIFT == held && !cas_acq_rel(&r->visitors, &word, word - 1)) {
    } /* release: pairs with span_free */
}
/* In a fork's child: the others are its parent's. */
WEIR_INLINE void region_forget_visitors(struct region* r) {
    uint64_t forgotten = (load_relaxed(&r->visitors) >> REGION_FORGOTTEN_SHIFT) + 1;
    store_relaxed(&r->visitors, forgotten << REGION_FORGOTTEN_SHIFT);
}

WEIR_INLINE struct slice* region_slices(const struct region* r) { return (struct slice*)r->base; }
WEIR_INLINE uintptr_t slice_address(const struct slice* s) {
    const struct region* r = &regions[s->region];
    return r->base + ((uintptr_t)(s - region_slices(r)) << SLICE_SHIFT);
}
WEIR_INLINE uint32_t slice_index(const struct slice* s) {
    return (uint32_t)(s - region_slices(&regions[s->region]));
}

/* What is known of the slice's OS pages; its record lies below the region's frontier, and is in use: one
 * within a span, but a slab's, may not say which region it is in. */
WEIR_INLINE struct slice_pages* slice_pages(const struct slice* s) {
    return (struct slice_pages*)regions[s->region].pages + slice_index(s);
}
/* The slice that the OS page records belong to, in region `row`. */
WEIR_INLINE struct slice* slice_of_pages(const struct region* r, const struct slice_pages* pages) {
    return region_slices(r) + (pages - (const struct slice_pages*)r->pages);
}

/* Bits for the heap's use beside the slices of the primary region, in two arrays of their own, so that a
 * slice of which the first ones are used takes no more than a line of the cache: those of the slices below
 * region_bits_end, 0 at first. Sync: all three are written under the page lock; `end` is published with
 * release. What the words say is the heap's. */
enum { SLICE_BITS = 4096, SLICE_BITS_NEAR = 384 };
struct slice_bits {
    uint32_t noted;     /* some of `words` may be set */
    uint32_t noted_far; /* some of the others may */
    uint32_t looks;
    uint32_t unused;
    uint64_t words[SLICE_BITS_NEAR / 64];
};
struct slice_bits_far {
    uint64_t words[(SLICE_BITS - SLICE_BITS_NEAR) / 64];
};
static_assert(sizeof(struct slice_bits) == 64, "one line of the cache");
WEIR_VAR_DECL struct slice_bits* region_bits;
WEIR_VAR_DECL struct slice_bits_far* region_bits_far;
WEIR_VAR_DECL uint32_t region_bits_end;
WEIR_INLINE struct slice_bits* slice_bits(const struct slice* s) {
    return region_bits + (s - region_slices(&regions[0]));
}
WEIR_INLINE struct slice_bits_far* slice_bits_far(const struct slice* s) {
    return region_bits_far + (s - region_slices(&regions[0]));
}
/* Where word i of a slice's bits lies. */
WEIR_INLINE uint64_t* slice_bits_word(const struct slice* s, uint32_t i) {
    const uint32_t near = SLICE_BITS_NEAR / 64;
    return i < near ? &slice_bits(s)->words[i] : &slice_bits_far(s)->words[i - near];
}

/* log2 of an OS page's bytes, and the number of them in a slice. Set by region_start. */
WEIR_VAR_DECL uint32_t page_shift;
WEIR_INLINE uint32_t slice_page_count(void) { return SLICE_BYTES >> page_shift; }

/* Bytes of a region's first records that are of slices which hold records, by whole pages: readable alone. */
WEIR_INLINE size_t region_own_bytes(uint32_t first) {
    return align_down((size_t)first << SLICE_RECORD_SHIFT, (size_t)1 << page_shift);
}

/* Record of the slice that holds p; NULL: foreign, or behind a region's frontier, where records may not be
 * read. */
WEIR_FN struct slice* slice_find(const void* p);
/* The same where p lies in the primary region; NULL: maybe elsewhere. */
WEIR_INLINE struct slice* slice_near(const void* p) {
    const struct region* r = &regions[0];
    uintptr_t index = ((uintptr_t)p - r->base) >> SLICE_SHIFT;
    /* Relaxed: a block's slice was below the frontier before the block was given out. */
    bool near = index - r->first < (uintptr_t)load_relaxed(&r->frontier) - r->first;
    return near ? region_slices(r) + index : NULL;
}

/* Set the primary region up. `wanted` bytes, 0: choose by machine and limits. Leaves no region when
 * nothing can be reserved; the fallback then serves. Call once. */
WEIR_FN void region_start(uint64_t wanted);
/* A further region with at least `slices` usable ones, under the page lock; NULL: not to be had. */
WEIR_FN struct region* region_add(uint32_t slices);
/* Whether so many slices lie beyond its frontier; the same. */
WEIR_INLINE bool region_has_room(const struct region* r, size_t slices) {
    return r->base != 0 && slices <= r->slices - r->frontier;
}
/* Return a region, all of whose spans are free and off the lists, under the page lock. */
WEIR_FN void region_drop(struct region* r);
/* Make slices [frontier, frontier + count) usable, under the page lock. False: refused. */
WEIR_FN bool region_extend(struct region* r, uint32_t count);
/* Make slices below `end` accessible, whether they are usable yet or not; the same. */
WEIR_FN bool region_reach(struct region* r, uint32_t end);
/* Make the bits of the slices of the primary region below `end` accessible, under the page lock. False:
 * refused. */
WEIR_FN bool region_bits_reach(uint32_t end);
/* Bytes of the arrays of bits that are accessible; the same. */
WEIR_FN size_t region_bits_bytes(void);
/* Give back whole pages of all that is recorded of slices [from, to) of the primary region, which are no
 * span's first or last: it reads as zero from now on. Pages with a slice that is marked (page/hole.h) stay.
 * The same; false: the kernel refused. */
WEIR_FN bool region_drop_records(uint32_t from, uint32_t to);
/* Unmap what lies behind the frontier of the primary region, which then grows no more; under the page
 * lock. */
WEIR_FN void region_trim(void);

#endif
