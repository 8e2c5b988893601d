/* spare.h: spans that a thread keeps for its next slab or large block, without keeping their memory.
 *
 * A thread whose slabs and large blocks come and go would take the page lock each time. It keeps the last few
 * spans instead; all their pages are holes, so that the release pass returns what stays unused, whatever
 * the thread does. It deliberately does not know what becomes of a span.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_SPARE_H
#define WEIR_HEAP_SPARE_H

#include "heap/heap.h"

/* Keep span s, a slab's or a large block's whose pages nobody uses, or give it back to the page layer;
 * another one may go instead. No page of a large block is a hole any more. */
WEIR_FN void spare_put(struct heap* h, struct slice* s);
/* A kept span of `slices` slices for a slab: it stays a spare one until the caller says otherwise. NULL:
 * none. */
WEIR_FN struct slice* spare_take_slab(struct heap* h, uint32_t slices);
/* The same as span_alloc gives; NULL: none. */
WEIR_FN struct slice* spare_take_block(struct heap* h, uint32_t slices, bool* zeroed);
/* Give all of them back to the page layer. */
WEIR_FN void spare_drop_all(struct heap* h);

#endif
