/* medium.c: see medium.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/medium.h"

#include "core/options.h"
#include "core/report.h"
#include "heap/full.h"
#include "heap/refill.h"
#include "heap/retag.h"
#include "page/release.h"

static size_t medium_bytes(unsigned m) { return size_classes[SMALL_CLASSES + m].bytes; }

/* The thread has so many blocks of the class that slabs serve it better, or has a slab that serves it. From
 * two blocks to a page on they do: where a block has a page or more for itself, a slab's pages wait for one
 * class, and its holes cost more than runs. */
static bool medium_is_dense(struct heap* h, unsigned c) {
    enum { dense_bytes_max = 2048 };
    uint64_t most = core_options.sparse_max;
    if (h->active[c] != NULL || load_relaxed(&h->available[c]) != NULL || most == 0 || full_is_on())
        return true;
    return size_classes[c].bytes <= dense_bytes_max && h->medium_out[c - SMALL_CLASSES] >= most;
}

/* `zero`: where memory is tagged, the block is to be zero. */
static void* medium_from_arena(struct heap* h, unsigned m, size_t align, bool zero) {
    void* p = zero ? arena_alloc_zeroed(&h->arena, m, align) : arena_alloc(&h->arena, m, align);
    if (p == NULL) return NULL;
    if (zero) h->medium_zeroed = p;
    if (h->medium_out[m] != UINT16_MAX) h->medium_out[m]++;
    store_relaxed(&h->handed_out, h->handed_out + 1);
    return p;
}

WEIR_FN void* medium_alloc(struct heap* h, unsigned c, size_t align) {
    unsigned m = c - SMALL_CLASSES;
    if (((uintptr_t)h->kept_medium[m].block & (align - 1)) == 0) {
        void* kept = medium_unkeep(h, m);
        if (kept != NULL) return kept;
    }
    if (medium_is_dense(h, c)) return NULL;
    bool zero = h->medium_zero;
    h->medium_zero = false; /* what the hook allocates is another matter */
    store_relaxed(&h->slow_calls, h->slow_calls + 1);
    if (heap_tick_hook != NULL) heap_tick_hook();
    heap_enter(h);
    refill_chores(h);
    heap_leave(h);
    void* p = medium_from_arena(h, m, align, zero);
    release_poke();
    return p;
}

WEIR_FN void* medium_alloc_last(struct heap* h, unsigned c, size_t align) {
    return full_is_on() ? NULL : medium_from_arena(h, c - SMALL_CLASSES, align, false);
}

WEIR_FN void* medium_alloc_zeroable(size_t size, bool* zeroed) {
    struct heap* h = heap_self();
    if (h == &heap_empty) return heap_alloc_slow(size);
    h->medium_zeroed = NULL;
    h->medium_zero = true;
    void* p = heap_alloc_slow(size);
    h->medium_zero = false;
    *zeroed = p == h->medium_zeroed;
    return p;
}

static WEIR_COLD void medium_misuse(const struct slice* s, const void* p, const uint16_t* block,
                                    const char* call) {
    if (block != NULL || arena_is_free(s, p))
        core_report("double-free", REPORT_FREED, p, call);
    else
        core_report("invalid-free", REPORT_INTERIOR, p, call);
}

/* A block goes back to its chunk. True: pages became holes. */
static bool medium_give_back(struct heap* h, unsigned m, struct slice* s, void* p) {
    if (h != &heap_empty && h->medium_out[m] != 0) h->medium_out[m]--;
    return arena_free(s, p);
}

/* The block that is kept goes back; the room for it stays. */
static bool medium_drop(struct heap* h, unsigned m) {
    void* p = h->kept_medium[m].block;
    if (!medium_is_kept(p)) return false;
    store_relaxed(&h->kept_medium[m].block, MEDIUM_ROOM);
    return medium_give_back(h, m, arena_chunk(p), p);
}

static bool medium_close(struct heap* h, unsigned m) {
    bool some = medium_drop(h, m);
    store_relaxed(&h->kept_medium[m].block, NULL);
    h->kept_medium_classes &= ~(1ull << m);
    h->kept_medium_bytes -= (uint32_t)medium_bytes(m);
    return some;
}

static void medium_close_empty(struct heap* h) {
    for (uint64_t left = h->kept_medium_classes; left != 0; left &= left - 1)
        if (h->kept_medium[bit_low(left)].block == MEDIUM_ROOM) (void)medium_close(h, bit_low(left));
}

/* Have room for a block of class m: of the others the empty ones go first, then class by class in turn. */
static bool medium_make_room(struct heap* h, unsigned m) {
    size_t bytes = medium_bytes(m);
    bool some = false;
    if (h->kept_medium_bytes + bytes > core_options.thread_kept_max) medium_close_empty(h);
    while (h->kept_medium_bytes + bytes > core_options.thread_kept_max) {
        uint64_t next = h->kept_medium_classes & ~0ull << h->medium_hand;
        unsigned gone = bit_low(next != 0 ? next : h->kept_medium_classes);
        h->medium_hand = gone + 1;
        some |= medium_close(h, gone);
    }
    h->kept_medium_bytes += (uint32_t)bytes;
    h->kept_medium_classes |= 1ull << m;
    return some;
}

/* Block p is in nobody's hands but the caller's: another tag. NULL after a report. */
static void* medium_next(struct slice* s, void* p, const char* call) {
    if (!retag_allows(p, call)) return NULL;
    void* tagged = arena_retag(s, p);
    if (weir_unlikely(tagged == NULL)) core_report("double-free", REPORT_FREED, p, call);
    return tagged;
}

WEIR_FN void medium_free(struct slice* s, void* p, const char* call) {
    struct heap* h = heap_self();
    uint16_t* block = arena_block_any(s, p);
    uint32_t known = block == NULL ? BLOCK_KEPT : load_relaxed(block);
    if (weir_unlikely((known & BLOCK_KEPT) != 0)) {
        medium_misuse(s, p, block, call);
        return;
    }
    /* Also what goes at once: the arena notes the tag that p had. */
    if (tag_is_on() && (p = medium_next(s, p, call)) == NULL) return;
    unsigned m = block_class(known);
    bool some = false;
    if (h != &heap_empty && medium_bytes(m) <= core_options.thread_kept_max) {
        /* The block that was used last is the one to keep. */
        some = h->kept_medium[m].block == NULL ? medium_make_room(h, m) : medium_drop(h, m);
        medium_keep(&h->kept_medium[m], p, block);
    } else {
        some = medium_give_back(h, m, s, p);
    }
    if (some) release_poke();
}

WEIR_FN size_t medium_usable(const struct slice* s, const void* p, const char* call) {
    const uint16_t* block = arena_block_any(s, p);
    if (block == NULL || (load_relaxed(block) & BLOCK_KEPT) != 0) {
        medium_misuse(s, p, block, call);
        return 0;
    }
    if (tag_is_on() && !retag_allows(p, call)) return 0;
    return medium_bytes(block_class(load_relaxed(block)));
}

WEIR_FN void* medium_retag(struct slice* s, void* p, const char* call) {
    return medium_usable(s, p, call) == 0 ? NULL : medium_next(s, p, call);
}

WEIR_FN void medium_drop_all(struct heap* h) {
    while (h->kept_medium_classes != 0) (void)medium_close(h, bit_low(h->kept_medium_classes));
}

WEIR_FN void medium_age(struct heap* h) {
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) h->medium_out[m] /= 2;
}
