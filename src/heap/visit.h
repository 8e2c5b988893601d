/* visit.h: what a thread that sleeps for good holds, sorted by others.
 *
 * The release pass has every heap's listed slabs visited, and so has malloc_trim: what their owners and other
 * threads freed is sorted by page, as the owners would, and free pages become holes. Owners may run
 * meanwhile: see slab_sort_as_visitor. It deliberately leaves active slabs alone, one of each class, whose
 * owners take lists without a lock.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_VISIT_H
#define WEIR_HEAP_VISIT_H

#include "heap/heap.h"
#include "page/release.h"

/* Visit the heaps; what threads keep goes too: all of it, or with RELEASE_LOOK_DUE what needed no list since
 * the last visit. With no lock held. True, in the helper: it gave way to
 * owners at work, or was told something, and is to go on. */
WEIR_FN bool heaps_visit(enum release_look look);
/* Visit slabs, on from where the last such visit ended, until four times `bytes` of their pages became holes,
 * or fewer than `bytes` of the first three times as much that it looked at. In the helper, with no lock held.
 * Whether `bytes` did. */
WEIR_FN bool heaps_visit_for(uint64_t bytes);
/* Visit all heaps for a program that asked for it, and may ask again and again: there is a millisecond at
 * least between two such visits. What is freed meanwhile the next one finds, or the helper. */
WEIR_FN void heaps_visit_asked(void);
/* So many bytes were given to slabs of others. `h`: the giver's heap, maybe heap_empty. */
WEIR_FN void visit_owed(struct heap* h, size_t bytes);

#endif
