/* place.h: what lies at an address of the heap: for reports of accesses that went wrong.
 *
 * Internal to the heap layer. Takes no lock and allocates nothing, so that a handler of a fault may ask at
 * any instruction of the heap's own; what other threads change meanwhile may be told as it was or as it will
 * be. While it runs the calling thread must not compare tags. It deliberately knows nothing of faults.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_PLACE_H
#define WEIR_HEAP_PLACE_H

#include "page/slice.h"

/* GAP: between blocks and beside them, where none can lie: a slab's end, a fence, what is behind a large
 * block. NONE: no block is there any more, or was yet. */
enum place_kind { PLACE_BLOCK, PLACE_GAP, PLACE_NONE };
struct heap_place {
    enum place_kind kind;
    uintptr_t start; /* of the block, or of the gap */
    size_t bytes;
    bool tagged;  /* its memory may be asked for its tag */
    bool slotted; /* a slab's block: `slot` says which */
    uint32_t slot;
    struct slice* slice; /* record of the first slice of what it lies in */
};

/* What is at an address without a tag. False: nothing of weir's. */
WEIR_FN WEIR_COLD bool place_at(uintptr_t address, struct heap_place* place);
/* Whether the block was freed, or never given out. Follows lists. */
WEIR_FN WEIR_COLD bool place_is_free(const struct heap_place* place);

#endif
