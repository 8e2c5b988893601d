/* tag.h (aarch64): the instructions of the memory tagging extension. Included by arch.h alone.
 *
 * An address carries a tag of four bits in its top byte, every 16 bytes of tagged memory have one. Only where
 * the processor has the extension may they be executed; arch_tag_clear and arch_tag_of run everywhere. Sizes
 * and addresses are multiples of a granule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_AARCH64_TAG_H
#define WEIR_ARCH_AARCH64_TAG_H

#include "base/compiler.h"

enum { ARCH_HAS_TAGS = 1, ARCH_TAG_SHIFT = 56, ARCH_TAG_GRANULE = 16 };

/* The instructions are spelled by their numbers: assemblers know the names only where all of the code is for
 * processors that have them, and this is for others too. ARCH_TAG_OP works where operands are whole
 * registers: the symbol .Lweir_xN is N. */
#define ARCH_TAG_NAMES                                                                                       \
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30\n\t"          \
    ".equ .Lweir_x\\n, \\n\n\t"                                                                              \
    ".endr\n\t"
#define ARCH_TAG_OP ARCH_TAG_NAMES ".inst "
/* Operand `n` as bits of the instruction, from bit `at` on. */
#define ARCH_TAG_REG(n, at) " | .Lweir_%x" #n " << " #at

/* Whether `distance`, a difference of two addresses, is less than `bytes`, a power of two. The processor
 * ignores the top byte of an address, and so does this: a test of bits takes no more than a compare. */
WEIR_INLINE bool arch_distance_within(uintptr_t distance, uintptr_t bytes) {
    return (distance & (~(uintptr_t)0 >> 8) & ~(bytes - 1)) == 0;
}

/* Whether it is less than `limit`, below 2^55. A compare takes its operand shifted. */
WEIR_INLINE bool arch_distance_below(uintptr_t distance, uintptr_t limit) {
    return distance << 8 < limit << 8;
}
/* The bits of an address that say on which page of 2^shift bytes it lies. */
WEIR_INLINE uintptr_t arch_page_mask(unsigned shift) { return ~(uintptr_t)0 >> 8 >> shift << shift; }
/* Two addresses' pages of 2^shift bytes are the same. */
WEIR_INLINE bool arch_page_is_same(uintptr_t a, uintptr_t b, unsigned shift) {
    return (a ^ b) << 8 >> shift >> 8 == 0;
}

/* The address without its top byte. */
WEIR_INLINE void* arch_tag_clear(const void* p) { return (void*)((uintptr_t)p & (~(uintptr_t)0 >> 8)); }
/* The tag that an address carries. */
WEIR_INLINE unsigned arch_tag_of(const void* p) { return (unsigned)((uintptr_t)p >> ARCH_TAG_SHIFT) & 15u; }

/* The address with the tag of the granule that it points to. */
WEIR_INLINE void* arch_tag_read(const void* p) {
    void* tagged = (void*)(uintptr_t)p;
    __asm__ volatile(ARCH_TAG_OP "0xd9600000" ARCH_TAG_REG(0, 0) ARCH_TAG_REG(0, 5) /* ldg %0, [%0] */
                     : "+r"(tagged));
    return tagged;
}

/* The mask with the bit set of the tag that the address carries. */
WEIR_INLINE uintptr_t arch_tag_exclude(const void* p, uintptr_t mask) {
    uintptr_t more;
    __asm__(ARCH_TAG_OP "0x9ac01400" ARCH_TAG_REG(0, 0) ARCH_TAG_REG(1, 5)
                ARCH_TAG_REG(2, 16) /* gmi %0, %1, %2 */
            : "=r"(more)
            : "r"(p), "r"(mask));
    return more;
}

/* The address with a random tag none of `excluded` (bit t: tag t). 0 when the thread may have no other. */
WEIR_INLINE void* arch_tag_choose(const void* p, uintptr_t excluded) {
    void* tagged;
    __asm__ volatile(ARCH_TAG_OP "0x9ac01000" ARCH_TAG_REG(0, 0) ARCH_TAG_REG(1, 5)
                         ARCH_TAG_REG(2, 16) /* irg */
                     : "=r"(tagged)
                     : "r"(p), "r"(excluded));
    return tagged;
}

/* Give one granule the tag that p carries. */
WEIR_INLINE void arch_tag_store_granule(void* p) {
    __asm__ volatile(ARCH_TAG_OP "0xd9200800" ARCH_TAG_REG(0, 0) ARCH_TAG_REG(0, 5) /* stg %0, [%0] */
                     :
                     : "r"(p)
                     : "memory");
}

/* How many bytes one instruction tags, or zeroes and tags; 0: there is none. */
WEIR_INLINE uintptr_t arch_tag_block(void) {
    uintptr_t id;
    __asm__("mrs %0, dczid_el0" : "=r"(id));
    return (id & 16) != 0 ? 0 : (uintptr_t)4 << (id & 15);
}

/* name(p, bytes) by three instructions: one granule and two, to [%0] with the tag of %1, %0 to behind them;
 * and a block, at %0, which carries the tag. */
#define ARCH_TAG_RANGE(name, one, two, block)                                                                \
    WEIR_INLINE void name##_few(uintptr_t at, size_t bytes) {                                                \
        uintptr_t tag = at;                                                                                  \
        if ((bytes & 16) != 0)                                                                               \
            __asm__ volatile(ARCH_TAG_OP one ARCH_TAG_REG(1, 0) ARCH_TAG_REG(0, 5)                           \
                             : "+r"(at)                                                                      \
                             : "r"(tag)                                                                      \
                             : "memory");                                                                    \
        for (uintptr_t end = tag + bytes; at != end;)                                                        \
            __asm__ volatile(ARCH_TAG_OP two ARCH_TAG_REG(1, 0) ARCH_TAG_REG(0, 5)                           \
                             : "+r"(at)                                                                      \
                             : "r"(tag)                                                                      \
                             : "memory");                                                                    \
    }                                                                                                        \
    WEIR_INLINE void name(void* p, size_t bytes) {                                                           \
        uintptr_t at = (uintptr_t)p;                                                                         \
        uintptr_t end = at + bytes;                                                                          \
        uintptr_t whole = bytes < 512 ? 0 : arch_tag_block();                                                \
        if (whole != 0 && bytes >= 2 * whole) {                                                              \
            size_t head = ((uintptr_t)0 - at) & (whole - 1);                                                 \
            name##_few(at, head);                                                                            \
            for (at += head; end - at >= whole; at += whole)                                                 \
                __asm__ volatile("sys #3, c7, c4, " block ", %0" : : "r"(at) : "memory");                    \
        }                                                                                                    \
        name##_few(at, end - at);                                                                            \
    }
/* The memory [p, p + bytes) gets the tag that p carries: stg, st2g, dc gva. */
ARCH_TAG_RANGE(arch_tag_store, "0xd9201400", "0xd9a02400", "#3")
/* The same, and it reads as zero afterwards: stzg, stz2g, dc gzva. */
ARCH_TAG_RANGE(arch_tag_store_zero, "0xd9601400", "0xd9e02400", "#4")
#undef ARCH_TAG_RANGE

/* This thread compares no tags from here on: PSTATE.TCO, as it was before, for arch_tag_ignore_end. */
WEIR_INLINE uint64_t arch_tag_ignore(void) {
    uint64_t before;
    __asm__ volatile("mrs %0, s3_3_c4_c2_7" : "=r"(before) : : "memory"); /* tco */
    __asm__ volatile(".inst 0xd503419f" : : : "memory");                  /* msr tco, #1 */
    return before;
}
WEIR_INLINE void arch_tag_ignore_end(uint64_t before) {
    __asm__ volatile("msr s3_3_c4_c2_7, %0" : : "r"(before) : "memory");
}

/* arch_tag_store for up to 127 granules, without a loop. */
WEIR_INLINE void arch_tag_store_granules(void* p, size_t granules) {
    uintptr_t at = (uintptr_t)p;
#define ARCH_TAG_TWO(times)                                                                                  \
    __asm__ volatile(ARCH_TAG_NAMES ".rept " #times "\n\t"                                                   \
                                    ".inst 0xd9a02400" ARCH_TAG_REG(1, 0)                                    \
                                        ARCH_TAG_REG(0, 5) "\n\t"                                            \
                                                           ".endr" /* st2g %1, [%0], #32 */                  \
                     : "+r"(at)                                                                              \
                     : "r"(p)                                                                                \
                     : "memory")
    if ((granules & 1) != 0)
        __asm__ volatile(ARCH_TAG_OP "0xd9201400" ARCH_TAG_REG(1, 0)
                             ARCH_TAG_REG(0, 5) /* stg %1, [%0], #16 */
                         : "+r"(at)
                         : "r"(p)
                         : "memory");
    if ((granules & 2) != 0) ARCH_TAG_TWO(1);
    if ((granules & 4) != 0) ARCH_TAG_TWO(2);
    if ((granules & 8) != 0) ARCH_TAG_TWO(4);
    if ((granules & 16) != 0) ARCH_TAG_TWO(8);
    if ((granules & 32) != 0) ARCH_TAG_TWO(16);
    if ((granules & 64) != 0) ARCH_TAG_TWO(32);
#undef ARCH_TAG_TWO
}

#endif
