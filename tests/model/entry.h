/* entry.h: the allocator's entry points, each wrapped in what must hold before and after it.
 *
 * A worker calls these on blocks that it holds. They check alignment, zeroes, content, overlap and errno;
 * they do not decide what is called when, apart from picking among equivalent entry points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MODEL_ENTRY_H
#define MODEL_ENTRY_H

#include "worker.h"

/** Look up the entry points that not every allocator has. Once, before the first thread. */
void entry_init(void);
/** Make a block of `size` bytes through an entry point that `r` picks, and fill it. Returns 0 when memory
 *  ran out and that is allowed. */
int entry_alloc(struct worker* w, struct block* b, size_t size, uint64_t r);
/** Check the block and free it by an entry point that suits it. */
void entry_free(struct worker* w, struct block* b, uint64_t r);
/** Resize the block; its content must survive. Only for blocks with kind KIND_MALLOC. */
void entry_realloc(struct worker* w, struct block* b, size_t size, uint64_t r);
/** Check that malloc_usable_size has not changed its mind. */
void entry_usable(struct worker* w, struct block* b);
/** Ask for the impossible; must be refused, and `b` (which may be empty) must stay as it is. */
void entry_refused(struct worker* w, struct block* b, uint64_t r);
void entry_trim(struct worker* w);

#endif
