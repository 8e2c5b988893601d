/* free.h: what freeing shares with the rest of the heap layer. Internal to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_FREE_H
#define WEIR_HEAP_FREE_H

#include "heap/heap.h"

/* Report a pointer into weir's address space that is no live block's start. */
WEIR_FN void block_misuse(const struct slice* s, const void* p, const char* call);

#endif
