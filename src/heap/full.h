/* full.h: checks=full: every misuse is caught at the call.
 *
 * Internal to the heap layer. Bins stay empty and owner words never equal a heap, so that every call
 * comes here by the slow path and the fast path has no test for the mode. A free block carries a seal
 * (a hash of its address and a secret) in its first word and a poison pattern behind its link.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_FULL_H
#define WEIR_HEAP_FULL_H

#include "core/options.h"
#include "heap/heap.h"

WEIR_INLINE bool full_is_on(void) { return core_options.checks != 0; }

/* Choose the secret; before the first block is given out. */
WEIR_FN void full_start(void);
/* Pop a block from the active slab's own list, which is not empty; NULL after a report (list dropped). */
WEIR_FN void* full_pop(struct slice* s);
/* Whether the block at p, a block of slab s, carries a seal: it is free. */
WEIR_FN bool full_is_free(const void* p);
/* Seal and poison a block that is being freed, or all the blocks of a list. */
WEIR_FN void full_seal(const struct slice* s, block_t* p);
WEIR_FN void full_seal_list(const struct slice* s, block_t* first);

#endif
