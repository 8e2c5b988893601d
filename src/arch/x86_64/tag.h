/* tag.h (x86-64): there is no memory tagging; what would need it ends the process. Included by arch.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_X86_64_TAG_H
#define WEIR_ARCH_X86_64_TAG_H

#include "base/compiler.h"

enum { ARCH_HAS_TAGS = 0, ARCH_TAG_SHIFT = 56, ARCH_TAG_GRANULE = 16 };

/* Whether `distance`, a difference of two addresses, is less than `bytes`, a power of two. */
WEIR_INLINE bool arch_distance_within(uintptr_t distance, uintptr_t bytes) { return distance < bytes; }

/* Whether it is less than `limit`. */
WEIR_INLINE bool arch_distance_below(uintptr_t distance, uintptr_t limit) { return distance < limit; }
/* The bits of an address that say on which page of 2^shift bytes it lies. */
WEIR_INLINE uintptr_t arch_page_mask(unsigned shift) { return ~(uintptr_t)0 << shift; }
/* Two addresses' pages of 2^shift bytes are the same. */
WEIR_INLINE bool arch_page_is_same(uintptr_t a, uintptr_t b, unsigned shift) {
    return a >> shift == b >> shift;
}

WEIR_INLINE void* arch_tag_clear(const void* p) { return (void*)(uintptr_t)p; }
WEIR_INLINE unsigned arch_tag_of(const void* p) {
    (void)p;
    return 0;
}

WEIR_NORETURN WEIR_INLINE void arch_tag_none(void) { __builtin_trap(); }
WEIR_INLINE void* arch_tag_read(const void* p) {
    (void)p;
    arch_tag_none();
}
WEIR_INLINE uintptr_t arch_tag_exclude(const void* p, uintptr_t mask) {
    (void)p, (void)mask;
    arch_tag_none();
}
WEIR_INLINE void* arch_tag_choose(const void* p, uintptr_t excluded) {
    (void)p, (void)excluded;
    arch_tag_none();
}
WEIR_INLINE void arch_tag_store_granule(void* p) {
    (void)p;
    arch_tag_none();
}
WEIR_INLINE void arch_tag_store(void* p, size_t bytes) {
    (void)p, (void)bytes;
    arch_tag_none();
}
WEIR_INLINE void arch_tag_store_granules(void* p, size_t granules) {
    (void)p, (void)granules;
    arch_tag_none();
}
WEIR_INLINE void arch_tag_store_zero(void* p, size_t bytes) {
    (void)p, (void)bytes;
    arch_tag_none();
}

WEIR_INLINE uint64_t arch_tag_ignore(void) {
    arch_tag_none();
    return 0;
}
WEIR_INLINE void arch_tag_ignore_end(uint64_t before) {
    (void)before;
    arch_tag_none();
}

#endif
