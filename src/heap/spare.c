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

/* A span that is no longer in its slot goes back to the page layer. */
static void spare_leave(struct heap* h, struct slice* s) {
    h->spare_slices -= s->span_slices;
    spare_drop(s);
}

/* From now on one bit, in the first record, speaks of all of the span's pages. False: some are being purged
 * just now. First the kind, then the hole: the kind says where it lies. */
static bool spare_close(struct slice* s) {
    uint32_t records = load_relaxed(&s->kind) == SLICE_LARGE ? 1 : s->span_slices;
    uint32_t purged = 0;
    for (uint32_t i = 0; i < records; i++) {
        uint64_t* word = &slice_pages(s + i)->state;
        uint64_t state = load_relaxed(word); /* relaxed: the compare below decides */
        do {
            if (hole_busy(state) != 0) return false;
        } while (!cas_acq_rel(word, &state, (uint64_t)0));
        purged += (uint32_t)__builtin_popcountll(hole_clean(state) & state >> PAGES_OLD_SHIFT);
        if (i != 0) store_relaxed(&s[i].kind, (uint8_t)SLICE_NONE);
    }
    if (purged != 0)
        release_refaulted((size_t)purged << page_shift); /* as where a slab goes back: see span.c */
    store_release(&s->kind, (uint8_t)SLICE_SPARE);       /* publishes the record to the release pass */
    hole_add(s, 1);
    return true;
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
    if (!spare_close(s)) {
        spare_drop(s);
        return;
    }
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

WEIR_FN struct slice* spare_take(struct heap* h, uint32_t slices, bool* zeroed) {
    /* The last one put first: it is the likeliest to be resident. */
    for (unsigned i = 0; i < SPARE_SLOTS; i++) {
        struct slice** slot = &h->spares[(h->spare_turn - 1 - i) % SPARE_SLOTS];
        struct slice* s = *slot;
        if (s == NULL || s->span_slices != slices) continue;
        *zeroed = hole_clean(load_relaxed(&slice_pages(s)->state)) != 0;
        if (hole_take(s, 1) == 0) continue; /* it is being purged */
        *slot = NULL;
        h->spare_slices -= slices;
        if (*zeroed) release_refaulted(((size_t)slices << SLICE_SHIFT) - ((size_t)1 << page_shift));
        store_relaxed(&s->kind, (uint8_t)SLICE_META);
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
