/* large.c: see large.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/large.h"

#include "heap/spare.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"

/* Below this, copying is cheaper than changing page tables and keeping one more mapping. */
#define MOVE_MIN (1 * MIB)

static size_t large_bytes(size_t size) { return align_up(size, os_page_bytes()); }
static size_t large_slices(size_t bytes) { return (bytes + SLICE_BYTES - 1) >> SLICE_SHIFT; }

/* Where the span's last slice starts, from the block's start. A block that was moved and then shrunk may end
 * before it. */
static size_t large_last(const struct slice* s) { return (size_t)(s->span_slices - 1) << SLICE_SHIFT; }

/* The pages of the last slice that lie behind the block's end are holes; they stand in the record of the
 * first. */
static uint32_t large_tail(const struct slice* s) {
    size_t in_last = s->bytes > large_last(s) ? s->bytes - large_last(s) : 0;
    return hole_all() & ~((1u << (in_last >> page_shift)) - 1);
}

/* Take the holes behind the block's end back: its size is about to change. */
static void large_tail_take(const struct slice* s) {
    while (!hole_hide(s)) (void)release_wait(s);
}

static void* large_publish(struct slice* s) {
    store_release(&s->kind, (uint8_t)SLICE_LARGE); /* publishes the record to the release pass */
    hole_show(s, large_tail(s));
    return (void*)slice_address(s);
}

/* A span that this thread kept, all of it accessible and in use; NULL: none of that size. */
static struct slice* large_from_spare(size_t slices, bool* zeroed) {
    struct heap* h = heap_self();
    if (slices > SPARE_SLICES_MAX || h == &heap_empty) return NULL;
    heap_enter(h);
    struct slice* s = spare_take_block(h, (uint32_t)slices, zeroed);
    heap_leave(h);
    return s;
}

static void large_changed(void) {
    if (weir_unlikely(heap_large_hook != NULL)) heap_large_hook();
}

WEIR_FN void* large_alloc(size_t size, size_t align, bool* zeroed) {
    if (size > PTRDIFF_MAX || align > PTRDIFF_MAX / 2) return NULL;
    size_t bytes = large_bytes(size);
    size_t align_slices = align <= SLICE_BYTES ? 1 : align >> SLICE_SHIFT;
    struct slice* s = align_slices == 1 ? large_from_spare(large_slices(bytes), zeroed) : NULL;
    if (s == NULL) s = span_alloc(large_slices(bytes), align_slices, zeroed);
    if (s == NULL) return NULL;
    s->bytes = bytes;
    add_relaxed(&span_totals.large, bytes);
    add_relaxed(&heap_totals.large_allocs, 1);
    void* p = large_publish(s);
    large_changed();
    return p;
}

WEIR_FN void large_free(struct slice* s) {
    sub_relaxed(&span_totals.large, s->bytes);
    add_relaxed(&heap_totals.large_frees, 1);
    struct heap* h = heap_self();
    if (h != &heap_empty && s->span_slices <= SPARE_SLICES_MAX) {
        heap_enter(h);
        large_tail_take(s);
        spare_put(h, s);
        heap_leave(h);
    } else {
        span_free(s);
    }
    release_poke();
    large_changed();
}

/* A span that keeps its slices has no record for the pages between the block's end and the last slice: they
 * go back at once. */
static void large_purge_between(const struct slice* s, size_t old_bytes) {
    size_t end = old_bytes < large_last(s) ? old_bytes : large_last(s);
    if (s->bytes < end && os_purge((void*)(slice_address(s) + s->bytes), end - s->bytes))
        add_relaxed(&span_totals.purged, end - s->bytes);
}

static void* large_set_bytes(struct slice* s, size_t old_bytes, size_t bytes) {
    add_relaxed(&span_totals.large, bytes - old_bytes); /* wraps where it shrinks */
    s->bytes = bytes;
    large_purge_between(s, old_bytes);
    void* p = large_publish(s);
    large_changed();
    return p;
}

WEIR_FN void* large_realloc(struct slice* s, size_t size) {
    size_t bytes = large_bytes(size);
    size_t slices = large_slices(bytes);
    size_t old_bytes = s->bytes;
    /* A moved span keeps its slices, so that its mapping stays one piece: it shrinks by moving. */
    large_tail_take(s);
    bool wasteful = (s->flags & SLICE_MOVED) != 0 && slices < s->span_slices / 2;
    if (!wasteful && span_resize(s, slices)) return large_set_bytes(s, old_bytes, bytes);
    size_t content = bytes < old_bytes ? bytes : old_bytes;
    struct slice* to = NULL;
    if (content >= MOVE_MIN) to = span_move(s, slices, content); /* frees s, whose record may be gone then */
    if (to != NULL) return large_set_bytes(to, old_bytes, bytes);
    large_publish(s);
    return NULL;
}
