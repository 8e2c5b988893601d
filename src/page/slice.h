/* slice.h: the record of each 64 KiB slice, and how a pointer finds it by arithmetic.
 *
 * The heap reads and writes the records of its slabs; the page layer those of free spans; nobody else.
 * A record never lies next to user data. It deliberately does not know size classes or threads: the
 * owner is an opaque word.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_SLICE_H
#define WEIR_PAGE_SLICE_H

#include "base/atomic.h"
#include "base/compiler.h"

enum { SLICE_SHIFT = 16, SLICE_BYTES = 1 << SLICE_SHIFT, SLICE_RECORD_SHIFT = 7 };

enum slice_kind {
    SLICE_NONE = 0,  /* inside a span, beyond the frontier, or a record array's own */
    SLICE_FREE,      /* first slice of a free span */
    SLICE_FREE_END,  /* last slice of a free span of two or more */
    SLICE_META,      /* memory of weir's own */
    SLICE_FENCE,     /* one inaccessible slice in front of a large block */
    SLICE_LARGE,     /* first slice of a large block */
    SLICE_SLAB,      /* first slice of a slab */
    SLICE_SPARE,     /* first slice of a span that a thread keeps without its memory */
    SLICE_SLAB_REST, /* a further slice of a slab or spare span */
    SLICE_CHUNK,     /* first slice of a span in which blocks of several classes lie; heap/arena.h */
    SLICE_CHUNK_REST /* a further slice of such a span */
};

/* Whether the slice is a further one of its span, and says so. */
#define slice_kind_is_rest(kind) ((kind) == SLICE_SLAB_REST || (kind) == SLICE_CHUNK_REST)
/* Whether it is the first one of a span of which each slice says of its own pages which are holes. */
#define slice_kind_is_paged(kind) ((kind) >= SLICE_SLAB && !slice_kind_is_rest(kind))
/* Whether blocks of several classes lie in it: the fast path's question. */
#define slice_kind_is_of_chunk(kind) ((kind) >= SLICE_CHUNK)

/* What is known of a free span's pages. DIRTY: some may be resident; its slices' words say which are not. */
enum span_state { SPAN_DIRTY = 0, SPAN_CLEAN = 1, SPAN_UNCOMMITTED = 2, SPAN_STATES = 3 };

/* MOVED: a large block that came by changing page tables: in mappings of its own. ORPHAN: on the list of
 * slabs that nobody owns. KEPT: the active slab of its heap, kept though none, or few, of its blocks were in
 * use. CLOSED: the same, with all its pages holes. FENCED: a large block between inaccessible pages
 * (page/fence.h). EARLY: a slab that was given up before it was full. DRAINED: an ORPHAN, kept though none
 * of its blocks was in use. GREW: a large block that moved or was copied as it grew. */
enum {
    SLICE_MOVED = 1u,
    SLICE_ORPHAN = 2u,
    SLICE_KEPT = 4u,
    SLICE_CLOSED = 8u,
    SLICE_FENCED = 16u,
    SLICE_EARLY = 32u,
    SLICE_DRAINED = 64u,
    SLICE_GREW = 128u
};

/*  region  [ record 0 | record 1 | ... ][ slice k | slice k+1 | ... | frontier ......... end ]
 *            ^ records of the slices that hold the records themselves stay SLICE_NONE
 *
 *  Invariants, span at record s of n slices:
 *    s.span_slices == n;  s[i].kind in {NONE, CHUNK_REST, SLAB_REST} for 0 < i < n
 *    (FREE: s[n-1].kind == FREE_END)
 *    CHUNK_REST, SLAB_REST and FREE_END: s[i].back == i
 *    slab: used + blocks on `free` + sorted == built <= capacity of its class, used = until + rest, or what
 *    rest says alone: heap/slab.h
 *  Sync: the fields of a slab belong to its owner, who writes them with plain stores, but for `remote`
 *  (atomic) and `owner` (relaxed atomic: any thread compares it with itself, and only that thread ever
 *  stores that value; others may add a bit to it, which makes the compare fail). All other records and the
 * span fields: the page lock.
 *  Two lines of the cache, of which fast paths use the first: a processor that fetches a line often fetches
 * the other one of its pair as well (Intel's optimization manual: the spatial prefetcher), and would take it
 * from the thread whose slab is the next one, at each of its frees. */
struct slice {
    void* owner; /* owner word of the heap; NULL: nobody's, or no slab */
    union {
        void* free;   /* slab: blocks freed by the owner */
        size_t bytes; /* large: usable bytes */
        size_t clean; /* free span, dirty: OS pages of it that are clean; else 0 */
    };
    union {
        struct {
            uint32_t until; /* slab: frees by the owner until it is to look at the slab; 0: none in use */
            uint16_t rest;  /* slab: blocks in use that `until` does not count */
            uint16_t built; /* slab: blocks in use or on a list */
        };
        uint64_t counts; /* the three at once, for those who look without being the owner */
        uint64_t bare;   /* free span: what is recorded of its last slices, so many, was given back */
    };
    union {
        uint64_t remote; /* slab: blocks freed by others; heap/slab.h */
        /* CHUNK, CHUNK_REST: what is known of those that start in the slice; heap/arena.h. Sync: as `remote`,
         * since a free reads it before it knows what the slice is of. */
        uint16_t* blocks;
    };
    void** push_at;     /* slab: where the head is of the list that its owner's frees go to; heap/direct.h */
    struct slice* next; /* list links, with `prev`: the owner's lists, or the free lists of spans */
    uint32_t span_slices;
    uint32_t back; /* CHUNK, rests, FREE_END: distance to the first slice; MOVED: see move.c */
    uint8_t kind;  /* enum slice_kind */
    union {
        uint8_t state;  /* free span: enum span_state */
        uint8_t listed; /* slab: on which list of its owner (LISTED_); under the owner's lock */
    };
    uint16_t region;
    uint8_t size_class; /* slab */
    uint8_t flags;
    int8_t small_class; /* slab: size_class where the fast path serves it, else -1 */
    uint8_t domain;     /* opaque to page and heap: who may touch the blocks */
    /* The second line, for slow paths. */
    struct slice* prev;
} __attribute__((aligned(1 << SLICE_RECORD_SHIFT)));
static_assert(sizeof(struct slice) == 128, "two lines of the cache, found by a shift of 7");
static_assert(offsetof(struct slice, prev) == 64, "of which fast paths use the first");

/* The first record of the span that record s is of, where s says so; s itself elsewhere. */
WEIR_INLINE struct slice* slice_first(struct slice* s) {
    return slice_kind_is_rest(load_relaxed(&s->kind)) ? s - s->back : s;
}

/* OS pages of a slice: 16 of 4 KiB, 4 of 16 KiB, 1 of 64 KiB. */
enum { SLICE_PAGES_MAX = 16 };

/* What is known of a slice's OS pages, one bit each, four masks in one word.
 *   hole   no block is on it: its blocks wait to be built, and it may go back to the kernel at any time
 *   clean  a hole, or a page of a free span, that is not resident
 *   old    a dirty hole that was one already when a release pass last looked; a clean page that was purged
 *   busy   a hole that is being purged: its owner may not have it back just now
 * Whose word is about what: of a slab, a spare and a dirty free span each slice's about its own pages (the
 * latter's has no holes); of a large block, the first slice's about the last one. All other words are 0. */
#define PAGES_CLEAN_SHIFT 16
#define PAGES_OLD_SHIFT 32
#define PAGES_BUSY_SHIFT 48
#define PAGES_ALL 0xffffull

/* Beside each slice's record, in an array of its own: read and written on slow paths alone.
 *  Sync: `state` and `marked` atomic; `sorted`, `ahead` and `least` relaxed, for visitors; `mark_next`
 * belongs to the list of marked slices (page/hole.h); the rest to the owner of the slab; while it is
 * `listed`, under the owner's lock. */
struct slice_pages {
    uint64_t state;
    uint16_t sorted;  /* slab, first slice: blocks on the pages' lists */
    uint16_t charged; /* slab, first slice: blocks on `free` that its heap has counted as exposed */
    uint16_t taken;   /* slab, first slice: the block on `free`, in granules + 1, where a visitor took over */
    uint16_t ahead;   /* slab, first slice: blocks that `until` counts, though a visitor has sorted them */
    uint16_t cross;   /* slab: bit p: the block that reaches into page p from before is such */
    uint16_t listed;  /* slab: bit p: head[p] != 0 */
    uint16_t row;     /* region, once marked */
    uint8_t marked;   /* on the list of marked slices */
    uint8_t least;    /* slab, first slice: see slab_frees_to_hole */
    uint16_t head[SLICE_PAGES_MAX]; /* slab: first free block that starts on the page, in granules + 1 */
    uint16_t used[SLICE_PAGES_MAX]; /* slab: blocks that start on the page, are built and not on its list */
    struct slice_pages* mark_next;
};
static_assert(sizeof(struct slice_pages) == 96, "a slice's share of metadata is 224 bytes in 65536");

#endif
