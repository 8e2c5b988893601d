/* tag.h: heap tagging: which tag memory gets, and whether it gets any.
 *
 * The heap and the pools call it, behind `if (tag_is_on())`; where nothing can be tagged what stores and
 * reads tags ends the process. Addresses that carry a tag are good for access; what does arithmetic with
 * them, or compares them, clears it first. It deliberately knows nothing of blocks.
 *
 *   0                       weir's own memory, free spans, what no program's block lies in
 *   2, 4, 6, 8, 10, 12, 14  blocks in even slots        a block never has its neighbour's tag,
 *   1, 3, 5, 7, ... 15      blocks in odd slots         nor the tag that it had before
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_TAG_TAG_H
#define WEIR_TAG_TAG_H

#include "arch/arch.h"
#include "base/compiler.h"

enum { TAG_GRANULE = ARCH_TAG_GRANULE };
/* Masks for tag_choose: tags that an even or an odd slot may not have. */
enum { TAG_NOT_EVEN = 0xaaab, TAG_NOT_ODD = 0x5555, TAG_NOT_NONE = 1 };

/* What tag_start found. Sync: written before the second thread exists, read-only afterwards. */
struct tag_state {
    bool on;
    uint32_t mode; /* OS_TAGS_ bits */
};
WEIR_VAR_DECL struct tag_state tag_state;

/* Read the options and set the calling thread's mode, which all that it makes have from it. Says on stderr
 * what was asked for and cannot be had, or not in all threads. Once, before any memory is mapped. Returns the
 * kind of memory that blocks are to lie in. */
WEIR_FN uint32_t tag_start(void);

WEIR_INLINE bool tag_is_on(void) { return config_tags && weir_unlikely(tag_state.on); }

/* The address without its tag. */
WEIR_INLINE void* tag_clear(const void* p) { return config_tags ? arch_tag_clear(p) : (void*)(uintptr_t)p; }
/* The tag that an address carries, 0 to 15. */
WEIR_INLINE unsigned tag_of(const void* p) { return arch_tag_of(p); }

/* An address that carries none, with a tag. */
WEIR_INLINE void* tag_with(uintptr_t address, unsigned tag) {
    return (void*)(config_tags ? address | (uintptr_t)tag << ARCH_TAG_SHIFT : address);
}

/* The rest only where tag_is_on(). The address with the tag of its memory. */
WEIR_INLINE void* tag_read(const void* p) { return arch_tag_read(p); }
/* Whether the address carries the tag of its memory, and nothing beside it: of the top byte the processor
 * compares the lower half alone. */
WEIR_INLINE bool tag_fits(const void* p) {
    return tag_read((const void*)((uintptr_t)p & ~(uintptr_t)0 >> 4)) == p;
}
/* The address with another tag than it carries, none of the mask `excluded`. */
WEIR_INLINE void* tag_choose(const void* p, uintptr_t excluded) {
    return arch_tag_choose(p, arch_tag_exclude(p, excluded));
}
/* The address with another tag of the same parity. It carries its memory's, and not 0; nor does it get 0: the
 * kernel was told to exclude it (os_tags_set). */
WEIR_INLINE void* tag_next(const void* p) {
    const uint32_t every_other = 0xaaaaaaaa;
    return tag_choose(p, every_other >> ((uintptr_t)p >> ARCH_TAG_SHIFT));
}
/* Give [p, p + bytes), whole granules, the tag that p carries; tag_set_zero: and zeroes. */
WEIR_INLINE void tag_set(void* p, size_t bytes) { arch_tag_store(p, bytes); }
WEIR_INLINE void tag_set_zero(void* p, size_t bytes) { arch_tag_store_zero(p, bytes); }

/* For addresses from anywhere: as they are where tagging is off, so that a top byte that is not ours is still
 * no block. */
WEIR_INLINE void* tag_strip(const void* p) { return tag_is_on() ? arch_tag_clear(p) : (void*)(uintptr_t)p; }
/* The address for access to memory whose tag is not known. */
WEIR_INLINE void* tag_access(const void* p) { return tag_is_on() ? tag_read(p) : (void*)(uintptr_t)p; }

#endif
