/* place.c: see place.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/place.h"

#include "arch/arch.h"
#include "heap/arena.h"
#include "heap/full.h"
#include "heap/heap.h"
#include "heap/large.h"
#include "heap/remote_bits.h"
#include "heap/slab.h"
#include "page/hole.h"
#include "page/region.h"

/* Whether a list of blocks of the slab has the block at `start`. */
static bool list_has(const struct slice* s, const void* first, uintptr_t start) {
    const block_t* p = arch_tag_clear(first);
    for (uint32_t i = 0; p != NULL && i <= slab_class(s)->capacity && slab_holds_block(s, p); i++) {
        if ((uintptr_t)p == start) return true;
        p = arch_tag_clear(p->next);
    }
    return false;
}

static const void* block_at_granule(const struct slice* s, uint64_t granule) {
    return granule == 0 ? NULL : (const void*)(slice_address(s) + (granule - 1) * GRANULE);
}

static bool outboxes_have(const struct slice* s, uintptr_t start) {
    const struct outbox* o = heap_self()->outbox;
    for (const struct outbox* end = o + OUTBOX_SLOTS; o < end; o++)
        if (o->slab == s && load_relaxed(&o->count) != 0 && list_has(s, o->first, start)) return true;
    return false;
}

/* Whether the block touches a hole: it is not built, or not any more. */
static bool touches_hole(const struct slice* s, size_t offset) {
    size_t last = (offset + slab_class(s)->bytes - 1) >> page_shift;
    for (size_t page = offset >> page_shift; page <= last; page++) {
        uint32_t holes = hole_of(load_relaxed(&slice_pages(s)[page / slice_page_count()].state));
        if ((holes >> page % slice_page_count() & 1) != 0) return true;
    }
    return false;
}

/* Free blocks are on one of these lists, or not built. Those that another thread is about to send are taken
 * for live. */
static bool slab_block_is_free(struct slice* s, uintptr_t start) {
    size_t offset = start - slice_address(s);
    struct slice* own = s + (offset >> SLICE_SHIFT);
    struct slice_pages* pages = slice_pages(own);
    unsigned page = (unsigned)((offset & (SLICE_BYTES - 1)) >> page_shift);
    if (touches_hole(s, offset)) return true;
    if (full_is_on() && full_is_free((const void*)start)) return true;
    const struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (h != NULL) {
        const struct bin* b = &h->bins[s->size_class];
        if (list_has(s, load_relaxed(&b->head), start)) return true;
    }
    if (list_has(s, load_relaxed(&s->free), start)) return true;
    if (list_has(s, remote_first(s, load_relaxed(&s->remote)), start)) return true;
    if (remote_bits_have(s, (const void*)start)) return true;
    if (list_has(s, block_at_granule(s, load_relaxed(&pages->head[page])), start)) return true;
    return outboxes_have(s, start);
}

static void place_in_slab(struct slice* s, uintptr_t address, struct heap_place* place) {
    const struct size_class* k = slab_class(s);
    uintptr_t base = slice_address(s);
    uint32_t slot = class_block_index(k, address - base);
    place->tagged = true;
    if (slot >= k->capacity) {
        place->kind = PLACE_GAP;
        place->start = base + (size_t)k->capacity * k->bytes;
        place->bytes = base + ((size_t)k->slices << SLICE_SHIFT) - place->start;
        return;
    }
    place->start = base + (size_t)slot * k->bytes;
    place->bytes = k->bytes;
    place->slotted = true;
    place->slot = slot;
}

static bool unit_starts(const struct chunk* k, uint32_t unit) {
    return (load_relaxed(&k->bits[unit / 64].starts) >> unit % 64 & 1) != 0;
}

static void place_in_chunk(const struct slice* s, uintptr_t address, struct heap_place* place) {
    const struct chunk* k = chunk_of(s);
    uint32_t first = (uint32_t)((address - k->address) >> UNIT_SHIFT);
    uint32_t end = first + 1;
    bool last = first >= chunk_end();
    while (!last && first != 0 && !unit_starts(k, first)) first--;
    while (end < chunk_end() && !unit_starts(k, end)) end++;
    place->tagged = true;
    if (last) place->kind = PLACE_GAP;
    place->start = k->address + (size_t)first * UNIT_BYTES;
    place->bytes = (size_t)(end - first) * UNIT_BYTES;
}

static bool chunk_run_is_free(const struct slice* s, uintptr_t start) {
    const uint16_t* block = arena_block_any(s, (const void*)start);
    return block == NULL || (load_relaxed(block) & BLOCK_KEPT) != 0;
}

static void place_in_large(const struct slice* s, uintptr_t address, struct heap_place* place) {
    place->start = slice_address(s);
    place->bytes = s->bytes;
    if (address - place->start < place->bytes) return;
    place->kind = PLACE_GAP;
    place->start += s->bytes;
    place->bytes = slice_address(s) + ((size_t)s->span_slices << SLICE_SHIFT) - place->start;
}

WEIR_FN WEIR_COLD bool place_at(uintptr_t address, struct heap_place* place) {
    struct slice* s = slice_find((const void*)address);
    if (s == NULL) return false;
    *place = (struct heap_place){.kind = PLACE_BLOCK};
    s = slice_first(s);
    /* Inside other spans no record says what it belongs to: look for the span's first slice. */
    uint32_t first = regions[s->region].first;
    while (load_relaxed(&s->kind) == SLICE_NONE && slice_index(s) > first) s--;
    place->slice = s;
    switch (load_relaxed(&s->kind)) {
    case SLICE_SLAB:
        place_in_slab(s, address, place);
        break;
    case SLICE_CHUNK:
        place_in_chunk(s, address, place);
        break;
    case SLICE_LARGE:
        place_in_large(s, address, place);
        break;
    case SLICE_META:
        return false;
    case SLICE_FENCE:
        place->kind = PLACE_GAP;
        place->start = slice_address(s);
        place->bytes = SLICE_BYTES;
        break;
    default:
        place->kind = PLACE_NONE;
        place->start = slice_address(s);
        place->bytes = SLICE_BYTES;
        break;
    }
    return true;
}

WEIR_FN WEIR_COLD bool place_is_free(const struct heap_place* place) {
    if (place->kind != PLACE_BLOCK) return place->kind == PLACE_NONE;
    switch (load_relaxed(&place->slice->kind)) {
    case SLICE_SLAB:
        return slab_block_is_free(place->slice, place->start);
    case SLICE_CHUNK:
        return chunk_run_is_free(place->slice, place->start);
    case SLICE_LARGE:
        return large_is_kept(place->slice);
    default:
        return true;
    }
}
