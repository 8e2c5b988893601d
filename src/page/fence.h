/* fence.h: large blocks between inaccessible pages.
 *
 * While fences are on (fence_start), a large block has one inaccessible slice in front of it, a span of its
 * own, and at least one inaccessible page behind it, in its own last slice. Freed, all of it is inaccessible
 * until somebody takes it. A fence is address space: no memory, no commit charge that outlives the block,
 * and a bounded part of the mappings that the process may have. Where it cannot be had the block comes
 * without. It deliberately does not know why fences are wanted.
 *
 *     [ FENCE: 1 slice ][ LARGE | FENCED: block ........ | tail ]
 *       inaccessible      accessible for `bytes`           inaccessible, a page at least
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_FENCE_H
#define WEIR_PAGE_FENCE_H

#include "os/os.h"
#include "page/span.h"

WEIR_VAR_DECL bool fence_is_on; /* Sync: relaxed; set once */
/* Such blocks, and inaccessible free spans, at most. Sync: relaxed; set by fence_start. */
WEIR_VAR_DECL uint64_t fence_most;

/* Somebody went on after a report of an access to memory that is inaccessible, and may have written to it:
 * what a free span without memory reads as is not known. Sync: relaxed; set by fence_page_open. */
WEIR_VAR_DECL uint32_t fence_was_opened;
/* Make the page at p accessible, for an access that was reported. Async-signal-safe. False: no memory. */
WEIR_FN bool fence_page_open(void* p);

/* From now on fence_alloc makes fences. Reads a file. */
WEIR_FN void fence_start(void);
/* Slices of a block of `bytes`, its tail included. */
WEIR_INLINE size_t fence_slices(size_t bytes) {
    return (bytes + os_page_bytes() + SLICE_BYTES - 1) >> SLICE_SHIFT;
}
/* A span for a block of `bytes` (whole pages) as span_alloc gives it, FENCED. NULL: no memory for it, or
 * enough fences already. */
WEIR_FN struct slice* fence_alloc(size_t bytes, size_t align_slices, bool* zeroed);
/* Another size for the block, in place. False: it is as it was. */
WEIR_FN bool fence_resize(struct slice* s, size_t old_bytes, size_t bytes);
/* span_move for such a block; `bytes`: its new size. */
WEIR_FN struct slice* fence_move(struct slice* s, size_t bytes, size_t content);
/* Make the block inaccessible while its memory stays, and accessible for `bytes`, in as many slices. */
WEIR_FN bool fence_close(const struct slice* s);
WEIR_FN bool fence_open(const struct slice* s, size_t bytes);
/* For span_free_locked, under the page lock: block and fences become one span, inaccessible and without
 * memory where that can be had. Its first slice, and what is known of it; NULL: nothing is certain of its
 * pages, and it is out of use for good. */
WEIR_FN struct slice* fence_remove(struct slice* s, enum span_state* state);

#endif
