/* spare.h: spans that a thread keeps for its next slab, without keeping their memory.
 *
 * A thread whose slabs come and go would take the page lock each time. It keeps the last few
 * spans instead; all their pages are holes, so that the release pass returns what stays unused, whatever
 * the thread does. It deliberately does not know what becomes of a span.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_SPARE_H
#define WEIR_HEAP_SPARE_H

#include "heap/heap.h"

/* Keep span s, a slab's whose pages nobody uses, or give it back to the page layer; another one may go
 * instead. */
WEIR_FN void spare_put(struct heap* h, struct slice* s);
/* A kept span of `slices` slices for a slab: it stays a spare one until the caller says otherwise. NULL:
 * none. */
WEIR_FN struct slice* spare_take_slab(struct heap* h, uint32_t slices);
/* Give all of them back to the page layer. */
WEIR_FN void spare_drop_all(struct heap* h);

#endif
