/* shadow.c: the overlap check, a sparse bitmap of the address space in the test's own memory.
 *
 * Called by every worker around every allocation and free. It knows addresses only.
 *
 * A block claims its bits with atomic ORs and gives them up with atomic ANDs, and the old values tell
 * whether somebody else was there. A free is: release the bits, then call free. Hence a bit that is
 * already set at a claim means that the allocator gave the same bytes out twice.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "shadow.h"

#include <stdatomic.h>

#define ADDRESS_BITS 48
#define REGION_SHIFT 26
#define WORD_SHIFT 9
#define GRANULE_SHIFT 3
#define REGIONS ((size_t)1 << (ADDRESS_BITS - REGION_SHIFT))
#define LEAF_WORDS ((size_t)1 << (REGION_SHIFT - WORD_SHIFT))
#define LEAF_BYTES (LEAF_WORDS * 8)

typedef _Atomic uint64_t shadow_word;

/* Sync: entries go from NULL to a leaf, or to `leaf_none`, once, by CAS with release; readers acquire, so
 * that they see a zeroed leaf. */
static shadow_word* _Atomic* directory;
static shadow_word leaf_none_word;
#define leaf_none (&leaf_none_word)

static shadow_word* leaf_pool;
static unsigned leaf_pool_count;
static _Atomic unsigned leaf_pool_used;
static _Atomic uint64_t missing;

/* The bytes that it means: where the processor ignores an address's top byte, allocators may use it. */
static inline uintptr_t address_of(const void* p) {
#ifdef __aarch64__
    return (uintptr_t)p & (~(uintptr_t)0 >> 8);
#else
    return (uintptr_t)p;
#endif
}

void shadow_init(unsigned leaves) {
    if (model_config.overlap == OVERLAP_OFF) return;
    directory = memory_map(REGIONS * sizeof *directory);
    leaf_pool = memory_map(leaves * LEAF_BYTES);
    leaf_pool_count = leaves;
}

__attribute__((noinline)) static shadow_word* leaf_make(size_t region) {
    unsigned index = atomic_fetch_add_explicit(&leaf_pool_used, 1, memory_order_relaxed);
    shadow_word* leaf =
        index < leaf_pool_count ? leaf_pool + (size_t)index * LEAF_WORDS : memory_try(LEAF_BYTES);
    if (leaf == NULL) {
        leaf = leaf_none;
        atomic_fetch_add_explicit(&missing, 1, memory_order_relaxed);
    }
    shadow_word* expected = NULL;
    /* A leaf that lost the race is leaked: it is 1 MiB of untouched address space, and rare. */
    if (atomic_compare_exchange_strong_explicit(&directory[region], &expected, leaf, memory_order_acq_rel,
                                                memory_order_acquire))
        return leaf;
    return expected;
}

static inline shadow_word* leaf_of(size_t region, const void* p) {
    if (__builtin_expect(region >= REGIONS, 0)) model_fail("address: %p is beyond the user address space", p);
    shadow_word* leaf = atomic_load_explicit(&directory[region], memory_order_acquire);
    return __builtin_expect(leaf == NULL, 0) ? leaf_make(region) : leaf;
}

/* In sampled mode only one word (512 bytes of address space) in eight takes part; which ones depends on
 * the address alone, so that all blocks agree. */
static inline int word_skipped(size_t word) {
    return model_config.overlap == OVERLAP_SAMPLED && ((word * 0x9e3779b97f4a7c15ull) >> 61) != 0;
}

__attribute__((noinline, noreturn, cold)) static void
overlap_fail(const void* p, size_t n, size_t word, uint64_t bits, int claim, const char* what) {
    uintptr_t at =
        ((uintptr_t)word << WORD_SHIFT) + ((uintptr_t)(unsigned)__builtin_ctzll(bits) << GRANULE_SHIFT);
    model_fail(claim ? "overlap: %s gave %p of %zu bytes, but 0x%zx is in a live block"
                     : "overlap: %s of %p of %zu bytes, but 0x%zx is not recorded as live",
               what, p, n, (size_t)at);
}

static inline void range_update(const void* p, size_t n, int claim, const char* what) {
    if (model_config.overlap == OVERLAP_OFF) return;
    uintptr_t first = address_of(p) >> GRANULE_SHIFT;
    uintptr_t last = (address_of(p) + (n > 0 ? n - 1 : 0)) >> GRANULE_SHIFT;
    for (uintptr_t word = first >> 6; word <= last >> 6; word++) {
        unsigned low = word == first >> 6 ? (unsigned)(first & 63) : 0;
        unsigned high = word == last >> 6 ? (unsigned)(last & 63) : 63;
        uint64_t mask = (~0ull << low) & (~0ull >> (63 - high));
        if (word_skipped(word)) continue;
        shadow_word* leaf = leaf_of(word >> (REGION_SHIFT - WORD_SHIFT), p);
        if (leaf == leaf_none) continue;
        shadow_word* at = &leaf[word & (LEAF_WORDS - 1)];
        /* Relaxed: only the value of the one word matters, and its modification order decides who was
         * first. The block itself is handed over by the allocator or by a mailbox. */
        uint64_t old = claim ? atomic_fetch_or_explicit(at, mask, memory_order_relaxed)
                             : atomic_fetch_and_explicit(at, ~mask, memory_order_relaxed);
        uint64_t wrong = (claim ? old : ~old) & mask;
        if (__builtin_expect(wrong != 0, 0)) overlap_fail(p, n, word, wrong, claim, what);
    }
}

void shadow_claim(const void* p, size_t n, const char* what) { range_update(p, n, 1, what); }
void shadow_release(const void* p, size_t n, const char* what) { range_update(p, n, 0, what); }

uint64_t shadow_count(void) {
    uint64_t count = 0;
    if (model_config.overlap == OVERLAP_OFF) return 0;
    for (size_t region = 0; region < REGIONS; region++) {
        shadow_word* leaf = atomic_load_explicit(&directory[region], memory_order_acquire);
        if (leaf == NULL || leaf == leaf_none) continue;
        for (size_t i = 0; i < LEAF_WORDS; i++)
            count += (unsigned)__builtin_popcountll(atomic_load_explicit(&leaf[i], memory_order_relaxed));
    }
    return count;
}

uint64_t shadow_missing(void) { return atomic_load_explicit(&missing, memory_order_relaxed); }
