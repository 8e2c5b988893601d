/* large.h: blocks that are too large for a slab: whole spans, usable to the last OS page.
 *
 * Internal to the heap layer. Each thread keeps the block that it freed last as it is, up to 1 MiB
 * (LARGE_KEPT_SLICES), for its next one of that size. A visitor (visit.h) takes it when the thread sleeps.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_LARGE_H
#define WEIR_HEAP_LARGE_H

#include "heap/heap.h"

/* size > 0; align a power of two. *zeroed: the block reads as zero. NULL: no memory. */
WEIR_FN void* large_alloc(size_t size, size_t align, bool* zeroed);
WEIR_FN void large_free(struct slice* s, const char* call);
/* Whether the block was freed, and is kept by some thread. */
WEIR_INLINE bool large_is_kept(const struct slice* s) { return (s->flags & SLICE_KEPT) != 0; }
/* Give back what a heap keeps: by anybody. */
WEIR_FN void large_drop(struct heap* h);
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
WEIR_FN void* large_realloc(struct slice* s, size_t size);

#endif
