/* slab.h: one slab: its blocks, the list checks, and who owns it.
 *
 * Internal to the heap layer. It deliberately knows nothing of bins: which slab a heap allocates from is
 * refill.c's business.
 *
 *   remote word   63       62 .. 32      31 .. 0
 *               [ UNOWNED |  count  | first block's granule + 1, 0: none ]
 *
 * Ownership. A slab is owned (owner word set, UNOWNED clear) or not. Only its owner sets UNOWNED, by a
 * release that publishes the whole record; whoever clears it by compare-and-swap, with acquire, is the
 * new owner. So a thread that sleeps for good never keeps a full slab from being used again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_SLAB_H
#define WEIR_HEAP_SLAB_H

#include "heap/heap.h"

#define REMOTE_UNOWNED (1ull << 63)
#define REMOTE_ONE (1ull << 32)
#define REMOTE_FIRST 0xffffffffull

WEIR_INLINE const struct size_class* slab_class(const struct slice* s) {
    return &size_classes[s->size_class];
}
WEIR_INLINE uint32_t remote_count(uint64_t word) { return (uint32_t)((word & ~REMOTE_UNOWNED) >> 32); }

WEIR_INLINE size_t slab_built_bytes(const struct slice* s) {
    return (size_t)s->carved * slab_class(s)->bytes;
}

/* A new slab of class c for heap h, without a block built; NULL: no memory. */
WEIR_FN struct slice* slab_make(struct heap* h, unsigned c);
/* Give the slab's memory back to the page layer. No block of it is in use; it is on no list. */
WEIR_FN void slab_release(struct slice* s);
/* Build the next OS page's worth of blocks; returns the first, *count their number (0: no room). */
WEIR_FN block_t* slab_build(struct slice* s, uint32_t* count);
/* Whether p is where a block of the slab starts. */
WEIR_FN bool slab_holds_block(const struct slice* s, const void* p);
/* Walk a list that must have `count` blocks of the slab and then end. Returns the last one, or NULL
 * after a report. count > 0. */
WEIR_FN block_t* slab_walk(const struct slice* s, block_t* first, uint32_t count, const char* call);
/* Owner: take in what other threads freed. */
WEIR_FN void slab_collect(struct slice* s, const char* call);
/* Owner: give up a slab that is on no list. False: blocks came in meanwhile, it is still the caller's. */
WEIR_FN bool slab_disown(struct slice* s);
/* Hand `count` linked blocks to the slab's owner. True: nobody owned it, and the caller does now. False:
 * the slab may be gone when the call returns. */
WEIR_FN bool slab_push_remote(struct slice* s, block_t* first, block_t* last, uint32_t count);
/* Take an unowned slab; false: somebody else did. */
WEIR_FN bool slab_claim(struct slice* s);
/* All of the slab's free blocks are lost to it from now on: after a report that lets the program go on,
 * and for slabs of threads that fork left behind. */
WEIR_FN void slab_forget_free(struct slice* s);

/* Lists of slabs, linked through the records. */
WEIR_FN void slab_list_push(struct slice** head, struct slice* s);
WEIR_FN void slab_list_remove(struct slice** head, struct slice* s);

#endif
