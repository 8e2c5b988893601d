/* guard.h: sampled blocks on pages of their own, between pages that nobody may touch (option guard_rate).
 *
 * Internal to the heap layer, but for guard_start. Which allocations are sampled is decided when blocks go to
 * a bin: the bin gets those before the sampled one and runs empty there, so that the fast path knows nothing
 * of it. Guarded blocks lie in no region, so that every call with one arrives on the slow paths. It
 * deliberately knows nothing of slabs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_GUARD_H
#define WEIR_HEAP_GUARD_H

#include "core/options.h"
#include "heap/heap.h"

enum { GUARD_BLOCK_MAX = SLAB_MAX };

/* Where guarded blocks lie. Sync: written once, before the first of them; relaxed. */
struct guard_root {
    uintptr_t base;
    size_t bytes; /* 0: there are none */
};
WEIR_VAR_DECL struct guard_root guard_root;

/* Blocks there are, there were, and whose slot waits to be used again. */
struct guard_figures {
    uint64_t live_blocks;
    uint64_t live_bytes;
    uint64_t allocs;
    uint64_t freed_blocks;
};
WEIR_FN struct guard_figures guard_figures_get(void);

/* Set the slots and the fault handler up, where the options ask for it; the calling thread's bins are
 * emptied. Once, with no lock held, where a library may be loaded. */
WEIR_FN void guard_start(void);
/* The heap is new, or another thread's: when its first sampled allocation comes. */
WEIR_FN void guard_heap_reset(struct heap* h);

/* `count` blocks are about to go to the bin of small class c: how many may. Fewer: the allocation after them
 * is sampled. */
WEIR_FN WEIR_COLD uint32_t guard_lets_slow(struct heap* h, unsigned c, uint32_t count);
WEIR_INLINE uint32_t guard_lets(struct heap* h, unsigned c, uint32_t count) {
    if (weir_unlikely(count >= h->guard_left || h->guard_due != 0)) return guard_lets_slow(h, c, count);
    h->guard_left -= count;
    return count;
}
/* An allocation that no bin of a small class serves: whether it is sampled. */
WEIR_FN WEIR_COLD void guard_draw(struct heap* h);
WEIR_INLINE bool guard_takes(struct heap* h) {
    if (weir_likely(--h->guard_left != 0)) return false;
    guard_draw(h);
    return true;
}
/* Whether the next allocation of class c, whose bin is empty, is sampled. */
WEIR_INLINE bool guard_is_due(const struct heap* h, unsigned c) {
    return weir_unlikely(h->guard_due != 0) && c < SMALL_CLASSES && (h->guard_due >> c & 1) != 0;
}
/* What was left in the bin of class c goes elsewhere, and its turn with it. */
WEIR_INLINE void guard_forget(struct heap* h, unsigned c) {
    if (c < SMALL_CLASSES) h->guard_due &= ~(1ull << c);
}
/* The sampled allocation of class c; NULL: an ordinary one takes its place. */
WEIR_FN WEIR_COLD void* guard_alloc(struct heap* h, unsigned c, size_t size, size_t align);

WEIR_INLINE bool guard_holds(const void* p) {
    return (uintptr_t)p - load_relaxed(&guard_root.base) < load_relaxed(&guard_root.bytes);
}
/* For p that guard_holds. A block's usable size is what was asked for, 1 for 0; 0: reported. */
WEIR_FN WEIR_COLD void guard_free(void* p, const char* call);
WEIR_FN WEIR_COLD size_t guard_usable(const void* p, const char* call);

#endif
