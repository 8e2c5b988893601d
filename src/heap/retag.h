/* retag.h: tags of blocks of any kind, for whoever does not know which kind a block is.
 *
 * The pools call heap_retag; the rest is internal to the heap layer. All of it only where tag_is_on().
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_RETAG_H
#define WEIR_HEAP_RETAG_H

#include "heap/heap.h"
#include "tag/tag.h"

/* Memory is tagged from now on: large blocks get fences, and what is given to the page layer has tag 0. Once,
 * before the first region. */
WEIR_FN WEIR_COLD void retag_start(void);
/* Block p is no longer in use, and not to be freed either: give it another tag. Returns p with that, or as it
 * is where the block has none (large ones, guarded ones); NULL after a report: no live block starts at p. */
WEIR_FN void* heap_retag(void* p, const char* call);

/* p carries another tag than its memory. */
WEIR_FN WEIR_COLD void retag_misuse(const void* p, const char* call);
/* False: the same, and it was reported. */
WEIR_INLINE bool retag_allows(const void* p, const char* call) {
    if (weir_likely(tag_fits(p))) return true;
    retag_misuse(p, call);
    return false;
}

#endif
