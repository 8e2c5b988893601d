/* available.h: the slabs a heap owns besides its active ones, where another thread may end one.
 *
 * Internal to the heap layer. A slab whose blocks were all given back, the last ones by other threads,
 * is released by whoever notices: its owner may sleep for good. Hence these lists, alone of all that a
 * heap has, are under a lock, which the owner takes once per slab and others hardly ever.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_AVAILABLE_H
#define WEIR_HEAP_AVAILABLE_H

#include "heap/heap.h"

/* Owner: list a slab that is not active. Takes in what other threads freed first, and releases the slab
 * if none of its blocks is in use. */
WEIR_FN void available_put(struct heap* h, struct slice* s, const char* call);
/* Owner: the fullest of the first slabs of class c, off the list, one with enough free blocks before others;
 * NULL: none. `resident`: one with enough or none. None of those that are scarce. */
WEIR_FN struct slice* available_take(struct heap* h, unsigned c, bool resident);
/* Owner, with the heap's lock: which one that is. */
WEIR_FN struct slice* available_best(const struct heap* h, unsigned c);
/* Owner, with the heap's lock: slab s, which was active and all of whose blocks are in use, is listed, and
 * `other` is not any more. */
WEIR_FN void available_change(struct heap* h, struct slice* s, struct slice* other);
/* Owner: one with few free blocks. */
WEIR_FN struct slice* available_take_scarce(struct heap* h, unsigned c);
/* Under the lock of heap h: if slab s is listed as scarce and is not, it is available. */
WEIR_FN void available_relist(struct heap* h, struct slice* s);
/* Under the lock of heap h, or where nobody else is: its lists are empty; a slab that says that it is on one
 * is there again. */
WEIR_FN void available_unlist_all(struct heap* h);
WEIR_FN void available_list_again(struct heap* h, struct slice* s);
/* Owner: a listed slab's last block came back: release it. */
WEIR_FN void available_release(struct heap* h, struct slice* s);
/* Owner, who frees or has just freed a block of the slab: if it is listed, keep visitors away, and make what
 * they did part of it. True: heap h's lock is taken. */
WEIR_FN bool available_hold(struct heap* h, struct slice* s);
/* Owner, of its active slab, of which it changes nothing after this but by pushes: visitors may sort it. */
WEIR_FN void available_list_active(struct slice* s);
/* Owner, who is about to change its active slab by more than a push: no visitor comes to it any more, and
 * what they did is part of it. */
WEIR_FN void available_unlist_active(struct heap* h, struct slice* s);
/* Owner: take in what other threads freed of all listed slabs, and release the empty ones. `sort`: and make
 * holes of the others' free pages. */
WEIR_FN void available_sweep(struct heap* h, bool sort, const char* call);
/* Owner, where no visitors come any more: sort what they were told of, in active slabs too. */
WEIR_FN void available_sort_charged(struct heap* h);
/* Anybody: if slab s, which starts at `start` and whose pages' record is r, is listed by heap h, sort what it
 * has, or release it. The bytes of blocks that this took a look at are added to *looked. True: somebody slept
 * for the heap's lock meanwhile. */
WEIR_FN bool available_visit(struct heap* h, struct slice* s, uintptr_t start, const struct slice_pages* r,
                             uint64_t* looked);
/* Anybody: if slab s is listed by its owner and none of its blocks is in use, release it. */
WEIR_FN void available_steal(struct slice* s);

#endif
