/* spare.c: see spare.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/spare.h"

#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"

static void spare_drop(struct slice* s) {
    for (uint32_t i = 1; i < s->span_slices; i++) store_relaxed(&s[i].kind, (uint8_t)SLICE_NONE);
    span_free(s);
}

/* All pages of the span become holes; the number of bytes that are resident, as far as is known. Of a large
 * block no page is one before. First the kind, then the holes: the kind says where they lie. */
static size_t spare_close(struct slice* s) {
    size_t pages = 0;
    bool large = load_relaxed(&s->kind) == SLICE_LARGE;
    for (uint32_t i = 0; i < s->span_slices; i++) {
        if (large) {
            s[i].region = s->region;
            s[i].back = i;
            if (i != 0) store_relaxed(&s[i].owner, NULL);
            if (i != 0) hole_start(s + i, 0, false);
        }
        /* Release: publishes the record to the release pass. */
        store_release(&s[i].kind, (uint8_t)(i == 0 ? SLICE_SPARE : SLICE_SLAB_REST));
        uint32_t mask = hole_all() & ~hole_of(load_relaxed(&slice_pages(s + i)->state));
        if (mask != 0) hole_add(s + i, mask);
        pages += (size_t)__builtin_popcount(hole_dirty(load_relaxed(&slice_pages(s + i)->state)));
    }
    return pages << page_shift;
}

WEIR_FN void spare_put(struct heap* h, struct slice* s) {
    store_relaxed(&s->owner, NULL);
    /* The records of another region may go away with it; its spans are not kept. */
    if (s->span_slices > SPARE_SLICES_MAX || s->region != 0 || (s->flags & SLICE_MOVED) != 0) {
        if (load_relaxed(&s->kind) == SLICE_SLAB)
            spare_drop(s);
        else
            span_free(s);
        return;
    }
    size_t bytes = spare_close(s);
    s->flags = 0;
    struct slice* old = h->spares[h->spare_turn % SPARE_SLOTS];
    size_t old_bytes = h->spare_bytes[h->spare_turn % SPARE_SLOTS];
    h->spares[h->spare_turn % SPARE_SLOTS] = s;
    h->spare_bytes[h->spare_turn++ % SPARE_SLOTS] = (uint32_t)bytes;
    h->spare_sum += bytes - (old == NULL ? 0 : old_bytes);
    if (old != NULL) spare_drop(old);
    for (unsigned i = 0; h->spare_sum > SPARE_BYTES_MAX && i < SPARE_SLOTS; i++) {
        unsigned slot = (h->spare_turn + i) % SPARE_SLOTS;
        old = h->spares[slot];
        h->spares[slot] = NULL;
        if (old == NULL) continue;
        h->spare_sum -= h->spare_bytes[slot];
        spare_drop(old);
    }
}

WEIR_FN struct slice* spare_take(struct heap* h, uint32_t slices) {
    /* The last one put first: it is the likeliest to be resident. */
    for (unsigned i = 0; i < SPARE_SLOTS; i++) {
        unsigned slot = (h->spare_turn - 1 - i) % SPARE_SLOTS;
        struct slice* s = h->spares[slot];
        if (s == NULL || s->span_slices != slices) continue;
        h->spares[slot] = NULL;
        h->spare_sum -= h->spare_bytes[slot];
        return s;
    }
    return NULL;
}

WEIR_FN bool spare_open(struct slice* s) {
    bool zeroed = true;
    for (uint32_t i = 0; i < s->span_slices; i++) {
        uint64_t* state = &slice_pages(s + i)->state;
        uint64_t before = load_relaxed(state);
        zeroed &= hole_clean(before) == hole_all();
        while (hole_of(before) != 0) {
            if (hole_take(s + i, hole_all()) == 0 && !release_wait()) return false;
            before = load_relaxed(state);
        }
    }
    return zeroed;
}

WEIR_FN void spare_drop_all(struct heap* h) {
    for (unsigned slot = 0; slot < SPARE_SLOTS; slot++) {
        struct slice* s = h->spares[slot];
        h->spares[slot] = NULL;
        if (s != NULL) spare_drop(s);
    }
    h->spare_sum = 0;
}
