/* spare.c: see spare.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/spare.h"

#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"

/* A span that is no longer in its slot goes back to the page layer. */
static void spare_leave(struct heap* h, struct slice* s) {
    h->spare_slices -= s->span_slices;
    span_free_paged(s);
}

/* All of the slab's pages are holes from now on. */
static void spare_close(struct slice* s) {
    store_release(&s->kind, (uint8_t)SLICE_SPARE); /* publishes the record to the pass */
    for (uint32_t i = 0; i < s->span_slices; i++) {
        uint32_t mask = hole_all() & ~hole_of(load_relaxed(&slice_pages(s + i)->state));
        if (mask != 0) hole_add(s + i, mask);
    }
}

WEIR_FN void spare_put(struct heap* h, struct slice* s) {
    store_relaxed(&s->owner, NULL);
    /* The records of another region may go away with it; its spans are not kept. */
    if (s->span_slices > SPARE_SLICES_MAX || s->region != 0) {
        span_free_paged(s);
        return;
    }
    spare_close(s);
    s->flags = 0;
    struct slice** slot = &h->spares[h->spare_turn++ % SPARE_SLOTS];
    struct slice* old = *slot;
    *slot = s;
    h->spare_slices += s->span_slices;
    if (old != NULL) spare_leave(h, old);
    for (unsigned i = 0; h->spare_slices > SPARE_SLICES_SUM && i < SPARE_SLOTS; i++) {
        slot = &h->spares[(h->spare_turn + i) % SPARE_SLOTS];
        old = *slot;
        *slot = NULL;
        if (old != NULL) spare_leave(h, old);
    }
}

/* The kept spans, the last one put first: it is the likeliest to be resident. */
static struct slice** spare_slot(struct heap* h, unsigned i) {
    return &h->spares[(h->spare_turn - 1 - i) % SPARE_SLOTS];
}

WEIR_FN struct slice* spare_take_slab(struct heap* h, uint32_t slices) {
    for (unsigned i = 0; i < SPARE_SLOTS; i++) {
        struct slice** slot = spare_slot(h, i);
        struct slice* s = *slot;
        if (s == NULL || s->span_slices != slices) continue;
        *slot = NULL;
        h->spare_slices -= slices;
        return s;
    }
    return NULL;
}

WEIR_FN void spare_drop_all(struct heap* h) {
    for (unsigned slot = 0; slot < SPARE_SLOTS; slot++) {
        struct slice* s = h->spares[slot];
        h->spares[slot] = NULL;
        if (s != NULL) spare_leave(h, s);
    }
}
