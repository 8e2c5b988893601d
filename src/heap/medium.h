/* medium.h: blocks of more than SMALL_MAX bytes whose class the thread has few of: from chunks that threads
 * share (heap/arena.h), by way of one kept block per class. Classes of which it has more get slabs, which are
 * faster in bulk.
 *
 * Internal to the heap layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_MEDIUM_H
#define WEIR_HEAP_MEDIUM_H

#include "heap/heap.h"

/* The kept block of a medium class, which there is, for the program. */
WEIR_INLINE void* medium_unkeep(struct heap* h, unsigned m) {
    struct kept_medium* k = &h->kept_medium[m];
    void* p = k->block;
    store_relaxed(&k->block, NULL);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_relaxed(k->known, (uint16_t)(load_relaxed(k->known) & ~BLOCK_KEPT));
    h->kept_medium_classes &= ~(1ull << m);
    h->kept_medium_bytes -= size_classes[SMALL_CLASSES + m].bytes;
    if (h->medium_out[m] != UINT16_MAX) h->medium_out[m]++;
    store_relaxed(&h->handed_out, h->handed_out + 1);
    return p;
}
/* A block of class c >= SMALL_CLASSES at a multiple of `align`; NULL: it is for a slab to give. */
WEIR_FN void* medium_alloc(struct heap* h, unsigned c, size_t align);
/* The same where there is no memory for a slab: a chunk may have room all the same. */
WEIR_FN void* medium_alloc_last(struct heap* h, unsigned c, size_t align);
/* Free p, which lies in the chunk of first record s, for the calling thread. */
WEIR_FN void medium_free(struct slice* s, void* p, const char* call);
/* Usable bytes of the block at p; 0 after a report. */
WEIR_FN size_t medium_usable(const struct slice* s, const void* p, const char* call);
/* Free the blocks that a heap keeps. The caller owns it. */
WEIR_FN void medium_drop_all(struct heap* h);
/* Now and then: a class of which the thread had many has to show it again. */
WEIR_FN void medium_age(struct heap* h);

#endif
