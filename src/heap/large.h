/* large.h: blocks that are too large for a slab: whole spans, usable to the last OS page.
 *
 * Internal to the heap layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_LARGE_H
#define WEIR_HEAP_LARGE_H

#include "heap/heap.h"

/* size > 0; align a power of two. *zeroed: the block reads as zero. NULL: no memory. */
WEIR_FN void* large_alloc(size_t size, size_t align, bool* zeroed);
WEIR_FN void large_free(struct slice* s);
/* Resize in place, or by moving page tables; NULL: the caller has to copy. */
WEIR_FN void* large_realloc(struct slice* s, size_t size);

#endif
