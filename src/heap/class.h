/* class.h: size classes: 16-byte steps to 1 KiB, then eight per power of two (at most 12.5 % apart).
 *
 * A class's blocks lie in slabs of `slices` slices, from the slab's first byte on, without gaps, so that
 * a block is aligned to every power of two that divides its size. The last ones, above SLAB_MAX, have no
 * slabs: see heap/arena.h. It knows sizes alone, no memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_CLASS_H
#define WEIR_HEAP_CLASS_H

#include "arch/arch.h"
#include "base/compiler.h"
#include "page/slice.h"

enum {
    GRANULE = 16,
    SMALL_MAX = 1024, /* the fast path serves sizes up to here */
    SMALL_CLASSES = SMALL_MAX / GRANULE,
    SLAB_MAX = 65536, /* largest block that lives in a slab */
    SLAB_SLICES = 8,  /* of the longest one */
    SLAB_CLASSES = SMALL_CLASSES + 6 * 8,
    CHUNK_MAX = 8 * SLAB_MAX, /* largest block that has a class */
    CLASS_COUNT = SLAB_CLASSES + 3 * 8
};

/* The bits of a tag in an address. */
enum { CLASS_TAG_BITS = ARCH_HAS_TAGS ? 8 : 0 };
struct size_class {
    uint32_t bytes;    /* of a block */
    uint32_t slices;   /* of a slab; 0: there are none, and no capacity */
    uint32_t capacity; /* blocks in a slab; with tagging, the slab does not end with the last one */
    uint16_t enough;   /* see class_enough */
    uint16_t turn;     /* twos + CLASS_TAG_BITS, where bytes == odd << twos */
    uint64_t inverse;  /* ceil(2^40 / bytes): offset * inverse >> 40 == offset / bytes below 512 KiB */
    uint64_t exact;    /* exact * odd == 1 << CLASS_TAG_BITS modulo 2^64: see class_finds_block */
};
WEIR_VAR_DECL struct size_class size_classes[CLASS_COUNT]; /* written by classes_start alone */

/* Before the first slab is made. `apart`: behind the last block of each slab there is to be a granule that no
 * block has. */
WEIR_FN void classes_start(bool apart);

/* By (size - 1) / MEDIUM_STEP, for sizes above SMALL_MAX and up to SLAB_MAX: the class, less SMALL_CLASSES.
 * Looked up, as the instruction that finds the highest bit is many micro-operations on some processors. No
 * constant: it lies on a page that every process has. */
enum { MEDIUM_STEP = SMALL_MAX / 8, MEDIUM_STEPS = SLAB_MAX / MEDIUM_STEP };
WEIR_VAR_DECL uint8_t medium_of_steps[MEDIUM_STEPS];

/* Class of the smallest blocks that hold `size` bytes, 1 <= size <= CHUNK_MAX. */
WEIR_INLINE unsigned class_of(size_t size) {
    size_t last = size - 1;
    if (weir_likely(last < SMALL_MAX)) return (unsigned)(last / GRANULE);
    if (weir_likely(last < SLAB_MAX)) return SMALL_CLASSES + medium_of_steps[last / MEDIUM_STEP];
    unsigned log = bit_high(last);
    return SMALL_CLASSES + (log - 10) * 8 + (unsigned)((last >> (log - 3)) & 7);
}

/* The smallest class of blocks of at least `size` bytes that are all aligned to `align` <= SLAB_MAX. */
WEIR_INLINE unsigned class_of_aligned(size_t size, size_t align) {
    unsigned c = class_of(size < align ? align : size);
    while ((size_classes[c].bytes & (align - 1)) != 0) c++;
    return c;
}

/* Index of the block that holds the byte at `offset` of a slab; exact for offsets below 512 KiB. */
WEIR_INLINE uint32_t class_block_index(const struct size_class* k, size_t offset) {
    return (uint32_t)((offset * k->inverse) >> 40);
}

/* So many free blocks make it worth while to go on to another slab: with fewer, a heap that is nearly full
 * would go from slab to slab for a block each. An eighth of a slab at most is left lying for it. */
WEIR_INLINE uint32_t class_enough(const struct size_class* k) { return k->enough; }

/* Whether a block of a slab starts at `distance` from its start, the difference of two addresses of which one
 * may carry a tag; *block is its index. A multiple of `bytes` times the inverse of its odd part is its
 * quotient, shifted; what is none comes out above each quotient, once turned back (T. Granlund and P. L.
 * Montgomery, "Division by invariant integers using multiplication", PLDI 1994, section 9). So one compare
 * tells of both ends and of what is between blocks. `exact` is shifted by the bits of a tag, which thereby
 * goes. */
WEIR_INLINE bool class_finds_block(const struct size_class* k, uintptr_t distance, uint32_t* block) {
    uint64_t product = distance * k->exact;
    uint64_t quotient = product >> k->turn | product << (-(unsigned)k->turn & 63);
    *block = (uint32_t)quotient;
    return quotient < k->capacity;
}

#endif
