/* medium.c: see medium.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/medium.h"

#include "core/options.h"
#include "core/report.h"
#include "heap/full.h"
#include "heap/refill.h"
#include "page/release.h"

static size_t medium_bytes(unsigned m) { return size_classes[SMALL_CLASSES + m].bytes; }

/* The thread has so many blocks of the class that slabs serve it better, or has a slab that serves it. */
static bool medium_is_dense(struct heap* h, unsigned c) {
    return h->active[c] != NULL || load_relaxed(&h->available[c]) != NULL ||
           h->medium_out[c - SMALL_CLASSES] >= core_options.sparse_max || full_is_on();
}

static void* medium_from_arena(struct heap* h, unsigned m, size_t align) {
    void* p = arena_alloc(&h->arena, m, align);
    if (p == NULL) return NULL;
    if (h->medium_out[m] != UINT16_MAX) h->medium_out[m]++;
    store_relaxed(&h->handed_out, h->handed_out + 1);
    return p;
}

WEIR_FN void* medium_alloc(struct heap* h, unsigned c, size_t align) {
    unsigned m = c - SMALL_CLASSES;
    const void* kept = h->kept_medium[m].block;
    if (kept != NULL && ((uintptr_t)kept & (align - 1)) == 0) return medium_unkeep(h, m);
    if (medium_is_dense(h, c)) return NULL;
    store_relaxed(&h->slow_calls, h->slow_calls + 1);
    if (heap_tick_hook != NULL) heap_tick_hook();
    heap_enter(h);
    refill_chores(h);
    heap_leave(h);
    void* p = medium_from_arena(h, m, align);
    release_poke();
    return p;
}

WEIR_FN void* medium_alloc_last(struct heap* h, unsigned c, size_t align) {
    return full_is_on() ? NULL : medium_from_arena(h, c - SMALL_CLASSES, align);
}

static WEIR_COLD void medium_misuse(const struct slice* s, const void* p, const uint16_t* block,
                                    const char* call) {
    if (block != NULL || arena_is_free(s, p))
        core_report("double-free", REPORT_FREED, p, call);
    else
        core_report("invalid-free", REPORT_INTERIOR, p, call);
}

/* A block that was kept goes back to its chunk. True: pages became holes. */
static bool medium_drop(struct heap* h, unsigned m) {
    void* p = h->kept_medium[m].block;
    store_relaxed(&h->kept_medium[m].block, NULL);
    h->kept_medium_bytes -= (uint32_t)medium_bytes(m);
    h->kept_medium_classes &= ~(1ull << m);
    return arena_free(arena_chunk(p), p);
}

/* Make room for `bytes` among the kept blocks, class by class in turn. */
static bool medium_make_room(struct heap* h, size_t bytes) {
    bool some = false;
    while (h->kept_medium_bytes + bytes > core_options.thread_kept_max) {
        uint64_t next = h->kept_medium_classes & ~0ull << h->medium_hand;
        unsigned m = bit_low(next != 0 ? next : h->kept_medium_classes);
        h->medium_hand = m + 1;
        some |= medium_drop(h, m);
    }
    return some;
}

static void medium_keep(struct heap* h, unsigned m, void* p, uint16_t* block) {
    store_relaxed(block, (uint16_t)(load_relaxed(block) | BLOCK_KEPT));
    h->kept_medium_bytes += (uint32_t)medium_bytes(m);
    h->kept_medium_classes |= 1ull << m;
    h->kept_medium[m].known = block;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_relaxed(&h->kept_medium[m].block, p);
}

WEIR_FN void medium_free(struct slice* s, void* p, const char* call) {
    struct heap* h = heap_self();
    uint16_t* block = arena_block(s, p);
    uint32_t known = block == NULL ? BLOCK_KEPT : load_relaxed(block);
    if (weir_unlikely((known & BLOCK_KEPT) != 0)) {
        medium_misuse(s, p, block, call);
        return;
    }
    unsigned m = block_class(known);
    size_t bytes = medium_bytes(m);
    bool some = false;
    if (h != &heap_empty && h->medium_out[m] != 0) h->medium_out[m]--;
    if (weir_likely(h != &heap_empty && bytes <= core_options.thread_kept_max)) {
        /* The block that was used last is the one to keep. */
        if (h->kept_medium[m].block != NULL)
            some = medium_drop(h, m);
        else if (h->kept_medium_bytes + bytes > core_options.thread_kept_max)
            some = medium_make_room(h, bytes);
        medium_keep(h, m, p, block);
    } else {
        some = arena_free(s, p);
    }
    if (some) release_poke();
}

WEIR_FN size_t medium_usable(const struct slice* s, const void* p, const char* call) {
    const uint16_t* block = arena_block(s, p);
    if (block != NULL && (load_relaxed(block) & BLOCK_KEPT) == 0)
        return medium_bytes(block_class(load_relaxed(block)));
    medium_misuse(s, p, block, call);
    return 0;
}

WEIR_FN void medium_drop_all(struct heap* h) {
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++)
        if (h->kept_medium[m].block != NULL) (void)medium_drop(h, m);
}

WEIR_FN void medium_age(struct heap* h) {
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) h->medium_out[m] /= 2;
}
