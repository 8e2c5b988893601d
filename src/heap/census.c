/* census.c: see census.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/census.h"

#include "heap/depot.h"
#include "heap/direct.h"
#include "heap/guard.h"
#include "heap/large.h"
#include "heap/medium.h"
#include "heap/registry.h"
#include "heap/slab.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/span.h"

/* Blocks in a bin of the calling thread, but for those of direct slabs, which say it themselves. Other
 * threads' bins cannot be walked: what is popped meanwhile is the program's memory. Their blocks count as
 * given out. */
static uint32_t bin_count(const struct heap* h, unsigned c) {
    if (h != heap_self() || (h->active[c] != NULL && slab_is_direct(h->active[c]))) return 0;
    uint32_t count = 0;
    for (const block_t* p = h->bins[c].head; count < size_classes[c].capacity; p = p->next) {
        if (!arch_distance_within((uintptr_t)p - h->bins[c].base,
                                  (size_t)size_classes[c].slices << SLICE_SHIFT))
            break;
        count++;
    }
    return count;
}

/* Blocks of a slab that are neither on its list nor on their way home, nor, where it is direct, in its bin:
 * *waiting are. */
static uint32_t slab_out(const struct slice* s, uint32_t* waiting) {
    uint32_t out = counts_used(load_relaxed(&s->counts));
    uint32_t remote = slab_waiting(s) + load_relaxed(&slice_pages(s)->ahead);
    *waiting = slab_is_direct(s) ? direct_waiting(s) : 0;
    remote += *waiting;
    return out > remote ? out - remote : 0;
}

/* Of records that were given back, of the last slices of a free span; about. */
static uint64_t bare_bytes(const struct slice* s) {
    const uint64_t bare = load_relaxed(&s->bare);
    if (bare == 0) return 0;
    const uint64_t end = slice_index(s) + s->span_slices;
    const uint64_t bits_end = region_bits_end < end ? region_bits_end : end;
    const uint64_t bits = bits_end > end - bare ? bits_end - (end - bare) : 0;
    return bare * (sizeof(struct slice) + sizeof(struct slice_pages)) +
           bits * (sizeof(struct slice_bits) + sizeof(struct slice_bits_far));
}

static void census_slice(struct slice* s, void* context) {
    struct census* t = context;
    uint8_t kind = load_acquire(&s->kind);
    uint32_t words = slice_kind_is_paged(kind) ? s->span_slices : kind == SLICE_LARGE;
    for (uint32_t i = 0; i < words; i++)
        t->hole_bytes += (uint64_t)__builtin_popcount(hole_dirty(load_relaxed(&slice_pages(s + i)->state)))
                         << page_shift;
    if (kind == SLICE_FREE) t->bare_bytes += bare_bytes(s);
    if (load_acquire(&s->kind) == SLICE_META) t->meta_bytes += (uint64_t)s->span_slices << SLICE_SHIFT;
    if (load_acquire(&s->kind) != SLICE_SLAB) return;
    struct census_class* k = &t->classes[s->size_class];
    uint32_t waiting;
    uint32_t out = slab_out(s, &waiting);
    uint32_t built = counts_built(load_relaxed(&s->counts));
    t->remote_frees += slab_waiting(s); /* those that nobody took in yet */
    t->alloc_calls += (uint64_t)direct_freed(s) - waiting;
    k->slabs++;
    k->live_blocks += out;
    k->cached_blocks += built > out ? built - out : 0;
}

/* Medium blocks in chunks; those that threads keep for their next allocation, or left for each other, are
 * none that live. */
static void census_chunks(struct census* t) {
    t->hole_bytes += arena_idle_bytes();
    uint64_t kept[MEDIUM_CLASSES] = {0};
    for (const struct heap* h = registry_first(); h != NULL; h = h->registry_next) {
        for (unsigned m = 0; m < LONG_CLASS; m++) kept[m] += medium_kept_count(&h->kept_medium[m]);
        const struct kept_medium* k = &h->kept_medium[KEPT_LONG];
        uint32_t bytes = load_relaxed(&k->bytes);
        bool is_told = bytes > SLAB_MAX && bytes <= CHUNK_MAX; /* the first one's may come to be seen later */
        if (medium_kept_count(k) != 0 && is_told) kept[class_of(bytes) - SMALL_CLASSES]++;
    }
    for (unsigned m = 0; m < LONG_CLASS; m++) kept[m] += depot_count(m);
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) {
        struct census_class* k = &t->classes[SMALL_CLASSES + m];
        uint64_t used = arena_used(m);
        if (kept[m] > used) kept[m] = used;
        k->live_blocks += used - kept[m];
        k->cached_blocks += kept[m];
    }
}

static void census_own_bins(struct census* t) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        uint32_t waiting = bin_count(heap_self(), c);
        struct census_class* k = &t->classes[c];
        if (waiting > k->live_blocks) waiting = (uint32_t)k->live_blocks;
        k->live_blocks -= waiting;
        k->cached_blocks += waiting;
        t->alloc_calls -= waiting;
    }
}

WEIR_FN void census_take(struct census* t) {
    heaps_unpark(true); /* what is in their bins counts as live otherwise */
    *t = (struct census){0};
    span_visit(census_slice, t);
    census_chunks(t);
    /* A heap that ended meanwhile would be missed. Not to wait for: a handler may have interrupted whom the
     * lock's owner waits for. */
    bool locked = os_lock_take_soon(&heaps_lock);
    struct large_figures large = large_live();
    t->alloc_calls += load_relaxed(&heap_totals.handed_out) + large.allocs;
    t->remote_frees += load_relaxed(&heap_totals.remote_frees);
    t->slow_calls = load_relaxed(&heap_totals.slow_calls);
    for (const struct heap* h = registry_first(); h != NULL; h = h->registry_next) {
        t->alloc_calls += load_relaxed(&h->handed_out);
        t->slow_calls += load_relaxed(&h->slow_calls);
        t->remote_frees += load_relaxed(&h->remote_frees);
    }
    if (locked) os_lock_give(&heaps_lock);
    census_own_bins(t);
    for (unsigned c = 0; c < CLASS_COUNT; c++) {
        t->live_blocks += t->classes[c].live_blocks;
        t->live_bytes += t->classes[c].live_blocks * size_classes[c].bytes;
        t->cached_bytes += t->classes[c].cached_blocks * size_classes[c].bytes;
    }
    t->large_bytes = large.bytes;
    t->large_blocks = large.blocks;
    t->live_bytes += large.bytes;
    t->live_blocks += large.blocks;
    /* What is kept is free, and resident as far as it was written. */
    t->cached_bytes += load_relaxed(&span_totals.large) - large.bytes;
    struct guard_figures guard = guard_figures_get();
    t->live_bytes += guard.live_bytes;
    t->live_blocks += guard.live_blocks;
    t->guarded_calls = guard.allocs;
    t->guarded_freed = guard.freed_blocks;
    os_lock_take(&page_lock);
    for (uint32_t row = 0; row < region_count; row++) {
        const struct region* r = &regions[row];
        if (r->base == 0) continue;
        /* Records of slices that were handed out; the others' pages were never touched. */
        t->record_bytes +=
            align_up((uint64_t)(r->frontier - r->first) << SLICE_RECORD_SHIFT, os_page_bytes()) +
            align_up((uint64_t)(r->frontier - r->first) * sizeof(struct slice_pages), os_page_bytes());
        t->reserved_bytes += (uint64_t)r->slices << SLICE_SHIFT;
        t->committed_bytes += ((uint64_t)(r->committed - r->first) << SLICE_SHIFT) + r->record_bytes -
                              region_own_bytes(r->first) + r->pages_bytes;
    }
    const struct arena_records chunks = arena_records();
    t->record_bytes += region_bits_bytes() + chunks.used;
    t->record_bytes -= t->bare_bytes < t->record_bytes ? t->bare_bytes : t->record_bytes;
    t->reserved_bytes += chunks.mapped;
    t->committed_bytes += region_bits_bytes() + chunks.mapped;
    os_lock_give(&page_lock);
}

static void census_heap_slice(struct slice* s, void* context) {
    struct census_heap* t = context;
    if (load_acquire(&s->kind) != SLICE_SLAB || owner_heap(load_relaxed(&s->owner)) != t->heap) return;
    uint32_t waiting;
    uint32_t out = slab_out(s, &waiting);
    uint32_t built = counts_built(load_relaxed(&s->counts));
    t->slabs++;
    t->live_bytes += (uint64_t)out * slab_class(s)->bytes;
    t->cached_bytes += (uint64_t)(built > out ? built - out : 0) * slab_class(s)->bytes;
}

WEIR_FN void census_take_heap(struct census_heap* t) {
    t->slabs = t->live_bytes = t->cached_bytes = 0;
    span_visit(census_heap_slice, t);
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        uint64_t bytes = (uint64_t)bin_count(t->heap, c) * size_classes[c].bytes;
        if (bytes > t->live_bytes) bytes = t->live_bytes;
        t->live_bytes -= bytes;
        t->cached_bytes += bytes;
    }
}
