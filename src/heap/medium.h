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

/* What stands in a slot of kept_medium that has room for a block and none. */
#define MEDIUM_ROOM ((void*)1)
WEIR_INLINE bool medium_is_kept(const void* block) { return (uintptr_t)block > (uintptr_t)MEDIUM_ROOM; }

/* The kept block of a medium class, for the program; NULL: there is none. */
WEIR_INLINE void* medium_unkeep(struct heap* h, unsigned m) {
    struct kept_medium* k = &h->kept_medium[m];
    void* p = k->block;
    if (!medium_is_kept(p)) return NULL;
    store_relaxed(&k->block, MEDIUM_ROOM);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_relaxed(k->known, (uint16_t)(load_relaxed(k->known) & ~BLOCK_KEPT));
    store_relaxed(&h->handed_out, h->handed_out + 1);
    return p;
}
WEIR_INLINE void medium_keep(struct kept_medium* k, void* p, uint16_t* known) {
    store_relaxed(known, (uint16_t)(load_relaxed(known) | BLOCK_KEPT));
    k->known = known;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_relaxed(&k->block, p);
}
/* Free p, in the chunk of first record s, if it is a block that there is room to keep. */
WEIR_INLINE bool medium_free_kept(const struct slice* s, void* p) {
    uint16_t* block = arena_block(s, p);
    if (weir_unlikely(block == NULL || (load_relaxed(block) & BLOCK_KEPT) != 0)) return false;
    struct kept_medium* k = &heap_self()->kept_medium[block_class(load_relaxed(block))];
    if (k->block != MEDIUM_ROOM) return false;
    medium_keep(k, p, block);
    return true;
}
/* A block of class c >= SMALL_CLASSES at a multiple of `align`; NULL: it is for a slab to give. */
WEIR_FN void* medium_alloc(struct heap* h, unsigned c, size_t align);
/* The same where there is no memory for a slab: a chunk may have room all the same. */
WEIR_FN void* medium_alloc_last(struct heap* h, unsigned c, size_t align);
/* The same as heap_alloc_slow for a medium size, where memory is tagged. *zeroed: the block reads as zero. */
WEIR_FN void* medium_alloc_zeroable(size_t size, bool* zeroed);
/* Block p is in nobody's hands but the caller's: another tag. Returns p with that; NULL after a report. */
WEIR_FN void* medium_retag(struct slice* s, void* p, const char* call);
/* Free p, which lies in the chunk of first record s, for the calling thread. */
WEIR_FN void medium_free(struct slice* s, void* p, const char* call);
/* Usable bytes of the block at p; 0 after a report. */
WEIR_FN size_t medium_usable(const struct slice* s, const void* p, const char* call);
/* Free the blocks that a heap keeps, and have no room for others. The caller owns it. */
WEIR_FN void medium_drop_all(struct heap* h);
/* Now and then: a class of which the thread had many has to show it again. */
WEIR_FN void medium_age(struct heap* h);

#endif
