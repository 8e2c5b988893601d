/* large.h: blocks that are too large for a slab: whole spans, usable to the last OS page.
 *
 * Internal to the heap layer. Each thread keeps the block that it freed last as it is, up to 1 MiB
 * (LARGE_KEPT_SLICES), for its next one of that size. A visitor takes it, with what else the thread keeps,
 * when it sleeps: see medium_visit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_LARGE_H
#define WEIR_HEAP_LARGE_H

#include "heap/heap.h"
#include "heap/medium.h"

/* A larger block is kept by no thread. */
enum { LARGE_KEPT_SLICES = 16 };
/* What stands for the size of one that has fences. */
enum { LARGE_FENCED = SLAB_MAX };

/* size > 0; align a power of two. *zeroed: the block reads as zero. NULL: no memory. */
WEIR_FN void* large_alloc(size_t size, size_t align, bool* zeroed);
WEIR_FN void large_free(struct slice* s, const char* call);
/* Whether the block was freed, and is kept by some thread. */
WEIR_INLINE bool large_is_kept(const struct slice* s) { return (s->flags & SLICE_KEPT) != 0; }
/* The records of another region may go away with it; what has fences is kept without the caller's knowing;
 * what grew is counted when it goes. */
WEIR_INLINE bool large_may_stay(const struct slice* s) {
    return s->span_slices <= LARGE_KEPT_SLICES && s->region == 0 &&
           (s->flags & (SLICE_MOVED | SLICE_FENCED | SLICE_GREW)) == 0;
}
/* Keep a freed block, as one of so many bytes; none is kept, and the owner is inside. At each instruction a
 * fork's child may go on with what is there. */
WEIR_INLINE void large_keep(struct heap* h, struct slice* s, size_t bytes) {
    s->flags |= SLICE_KEPT;
    h->kept_large_bytes = bytes;
    store_release(&h->kept_large, s); /* publishes the record to the census */
}
/* What the thread keeps, which is inside; NULL: a visitor has been here. */
WEIR_INLINE struct slice* large_unkeep(struct heap* h) {
    struct slice* s = load_relaxed(&h->kept_large);
    if (weir_unlikely(s == NULL)) return NULL;
    store_relaxed(&h->kept_large, NULL);
    s->flags &= (uint8_t)~SLICE_KEPT;
    h->kept_large_needed = true;
    store_relaxed(&h->kept_large_turns, h->kept_large_turns + 1);
    return s;
}
/* The block that the thread keeps, if `size` bytes take as many pages; NULL: large_alloc may know more. */
WEIR_INLINE void* large_alloc_kept(size_t size) {
    struct heap* h = heap_self();
    if (load_relaxed(&h->kept_large) == NULL) return NULL;
    if (h->kept_large_bytes - size >= (size_t)1 << page_shift) return NULL;
    uint32_t inside;
    if (weir_unlikely(!gate_enter(&h->gates[GATE_LARGE], &inside))) return NULL;
    struct slice* s = large_unkeep(h);
    gate_leave(&h->gates[GATE_LARGE], inside);
    return s == NULL ? NULL : (void*)slice_address(s);
}
/* Free block p of record s, if it is one that the thread can keep, beside no other, with nobody to be told.
 */
WEIR_INLINE bool large_free_kept(struct slice* s, const void* p) {
    struct heap* h = heap_self();
    if (h == &heap_empty || slice_address(s) != (uintptr_t)p || large_is_kept(s)) return false;
    if (!large_may_stay(s) || load_relaxed(&h->kept_large) != NULL || !load_relaxed(&h->kept_large_owed))
        return false;
    uint32_t inside;
    if (weir_unlikely(!gate_enter(&h->gates[GATE_LARGE], &inside))) return false;
    large_keep(h, s, s->bytes);
    gate_leave(&h->gates[GATE_LARGE], inside);
    return true;
}
/* Zero a block, from a page's start on: where few pages are resident only these, or by returning them. */
WEIR_FN void large_clear(void* p, size_t bytes);
/* Give back what a heap keeps. The caller owns it. */
WEIR_FN void large_drop(struct heap* h);
/* The same by a visitor, who may take what the heap keeps just now. */
WEIR_FN void large_take(struct heap* h);
/* Now and then, by the owner: give it back if it was not needed since the last time. */
WEIR_FN void large_age(struct heap* h);
/* Large blocks in the program's hands. Sync: exact when no thread allocates any. */
struct large_figures {
    uint64_t blocks;
    uint64_t bytes;
    uint64_t allocs; /* ever */
};
WEIR_FN struct large_figures large_live(void);
/* Resize in place, or by moving page tables; NULL: the caller has to copy. */
WEIR_FN WEIR_NOINLINE void* large_realloc(struct slice* s, size_t size);

#endif
