/* tagged.c: see tagged.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/tagged.h"

#include "core/report.h"
#include "heap/free.h"
#include "page/hole.h"
#include "page/release.h"

static void pages_untag(const struct slice* s, uint32_t mask) {
    for (; mask != 0; mask &= mask - 1)
        tag_set((void*)(slice_address(s) + ((uintptr_t)bit_low(mask) << page_shift)),
                (size_t)1 << page_shift);
}

WEIR_FN void tagged_end(struct slice* s) {
    for (uint32_t i = 0; i < s->span_slices; i++) {
        uint64_t* word = &slice_pages(s)[i].state;
        /* What is being purged has tag 0 afterwards, unless it stays: acquire pairs with the purge's end. */
        while (hole_busy(load_acquire(word)) != 0) (void)release_wait(s + i);
        uint32_t dirty = hole_dirty(load_relaxed(word));
        uint32_t got = dirty == 0 ? 0 : hole_take(s + i, dirty);
        pages_untag(s + i, got);
        if (got != 0) hole_add(s + i, got);
        if (got != dirty) i--; /* a pass came in between: once more */
    }
}

/* For small classes: how block starts are told from other offsets in a slab of one slice: those alone are
 * multiples of the class's size, and m = ceil(2^32 / size) has offset * m mod 2^32 < m for them alone. */
#define START(granules) ((0xffffffffu / ((granules) * GRANULE)) + 1)
#define STARTS4(n) START(n), START((n) + 1), START((n) + 2), START((n) + 3)
#define STARTS16(n) STARTS4(n), STARTS4((n) + 4), STARTS4((n) + 8), STARTS4((n) + 12)
static const uint32_t small_starts[SMALL_CLASSES] = {STARTS16(1), STARTS16(17), STARTS16(33), STARTS16(49)};

/* The block goes to its slab's list with another tag, if all is as it nearly always is. */
WEIR_FN void heap_free_tagged(void* p, void* h, uintptr_t distance, uintptr_t base, size_t slices,
                              const char* call) {
    uintptr_t index = (distance & (~(uintptr_t)0 >> 8)) >> SLICE_SHIFT;
    struct slice* s = (struct slice*)base + index;
    if (weir_unlikely(index >= slices || load_relaxed(&s->owner) != (char*)h + OWNER_TAGGED)) goto slow;
    uint32_t c = (uint8_t)s->small_class; /* of another class: -1, which is none */
    if (weir_unlikely(c >= SMALL_CLASSES || !tag_fits(p))) goto slow;
    block_t* tagged;
    if (c == 0) {
        if (weir_unlikely((uintptr_t)p % GRANULE != 0)) goto slow;
        tagged = tag_next(p);
        arch_tag_store_granule(tagged);
    } else {
        uint32_t start = small_starts[c];
        if (weir_unlikely((uint32_t)(uintptr_t)p % SLICE_BYTES * start >= start)) goto slow;
        tagged = tag_next(p);
        arch_tag_store_granules(tagged, c + 1);
    }
    slab_push(s, tagged);
    return;
slow:
    heap_free_slow(p, call);
}
