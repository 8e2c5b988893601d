/* block.h: what the model remembers of one block, and the content that the block must have.
 *
 * The workers use it on blocks that they hold. It does not know how a block was come by, nor who else
 * holds blocks.
 *
 *   ptr                                  ptr+size      ptr+filled
 *    |  words key, key+K, key+2K ...        |  ...  tail |
 *    +--------------------------------------+------------+
 *
 * Word i of a block holds key + i*K, whatever the block's size, so that a prefix that survives realloc
 * can be checked as it is. Blocks above BLOCK_FULL_MAX hold it at both ends and at sampled words only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include "base.h"

#define BLOCK_FULL_MAX 2048u
#define BLOCK_EDGE_WORDS 8u

/** Which deallocation a block may see: what malloc gave goes to free, what new gave goes to delete. */
enum block_kind { KIND_MALLOC, KIND_NEW, KIND_NEW_ARRAY };

/** Invariants: ptr == NULL when the slot is empty; size <= filled <= malloc_usable_size(ptr);
 *  ptr % (1 << align_log2) == 0. Owned by the worker or the mailbox that holds it. */
struct block {
    unsigned char* ptr;
    size_t size;   /* bytes asked for */
    size_t filled; /* bytes written and claimed: `size`, or all of the usable size */
    uint32_t id;   /* with the seed, gives the content */
    uint8_t kind;  /* enum block_kind */
    uint8_t align_log2;
    uint8_t aligned; /* made by an aligned entry point: delete must name the alignment */
    uint8_t reserved;
};
_Static_assert(sizeof(struct block) == 32, "two to a cache line");

/** Write the content over [0, filled). */
void block_fill(const struct block* b);
/** Check the content of [0, n), n <= filled, that `b` says must be at `at`; `at` is b->ptr, or where
 *  realloc moved it. Dies when it differs. */
void block_verify_at(const struct block* b, const unsigned char* at, size_t n);
static inline void block_verify(const struct block* b) { block_verify_at(b, b->ptr, b->filled); }
/** Check that [0, n) is zero: all of it when small or `whole`, else ends and samples. */
void block_verify_zero(const unsigned char* p, size_t n, int whole);

#endif
