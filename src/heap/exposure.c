/* exposure.c: see exposure.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/exposure.h"

#include "core/options.h"
#include "page/release.h"

WEIR_FN void exposure_gain(struct heap* h, struct slice* s) {
    add_relaxed(&h->slab_bytes, (uint64_t)s->span_slices << SLICE_SHIFT);
    add_relaxed(&h->slab_count, 1);
    slice_pages(s)->charged = 0;
}

WEIR_FN void exposure_clear(struct heap* h, struct slice* s) {
    struct slice_pages* r = slice_pages(s);
    if (r->charged == 0) return;
    sub_relaxed(&h->exposed, (uint64_t)r->charged * slab_class(s)->bytes);
    r->charged = 0;
}

WEIR_FN void exposure_lose(struct heap* h, struct slice* s) {
    exposure_clear(h, s);
    sub_relaxed(&h->slab_bytes, (uint64_t)s->span_slices << SLICE_SHIFT);
    sub_relaxed(&h->slab_count, 1);
}

/* How many frees may go unlooked at. A heap that is no larger than the bound need not look at all. As long as
 * nothing of the slab is sorted, each of its pages was full when its list began: a page's worth of frees
 * makes one free page at most, and the bytes of the list say how much can be free. */
static uint32_t frees_unseen(const struct heap* h, const struct slice* s) {
    uint64_t most = core_options.thread_free_max;
    if (load_relaxed(&release_state) == RELEASE_OFF || load_relaxed(&h->slab_bytes) <= 2 * most)
        return UINT32_MAX;
    uint32_t frees = slab_frees_to_hole(s);
    if (slice_pages(s)->sorted != 0) return frees;
    uint32_t share = (uint32_t)(most / (load_relaxed(&h->slab_count) + 1)) / slab_class(s)->bytes;
    return share > frees ? share : frees;
}

WEIR_FN void exposure_arm(struct heap* h, struct slice* s, uint32_t used) {
    slab_count(s, used, frees_unseen(h, s), s->built);
}

/* Sort a slab that was charged some time ago, if it is still what it was. Under the heap's lock, so that
 * nobody steals it. */
static void exposure_sort(struct heap* h, struct slice* s) {
    os_lock_take(&h->lock);
    if (owner_heap(load_relaxed(&s->owner)) == h && load_relaxed(&s->kind) == SLICE_SLAB &&
        slice_pages(s)->charged != 0 && s->until != 0) {
        exposure_clear(h, s);
        slab_sort(s, "free");
        exposure_arm(h, s, slab_used(s));
    }
    os_lock_give(&h->lock);
}

static struct slice* exposure_oldest(struct heap* h) {
    struct slice** slot = &h->exposed_slabs[h->exposed_next++ % EXPOSED_SLOTS];
    struct slice* s = *slot;
    *slot = NULL;
    return s;
}

WEIR_FN void exposure_due(struct heap* h, struct slice* s) {
    struct slice_pages* r = slice_pages(s);
    struct slice* oldest = NULL;
    uint32_t unsorted = slab_unsorted(s);
    /* The records of a region but the first may go away: nothing is to point to them from here. */
    if (s->region != 0 || r->sorted != 0) {
        exposure_clear(h, s);
        slab_sort(s, "free");
        exposure_arm(h, s, slab_used(s));
        return;
    }
    if (r->charged == 0) {
        unsigned slot = h->exposed_next % EXPOSED_SLOTS;
        oldest = exposure_oldest(h);
        h->exposed_slabs[slot] = s;
    }
    add_relaxed(&h->exposed, (uint64_t)(unsorted - r->charged) * slab_class(s)->bytes);
    r->charged = (uint16_t)unsorted;
    exposure_arm(h, s, slab_used(s)); /* from here on it may be stolen */
    if (oldest != NULL) exposure_sort(h, oldest);
    for (unsigned i = 0; i < EXPOSED_SLOTS && load_relaxed(&h->exposed) > core_options.thread_free_max; i++) {
        oldest = exposure_oldest(h);
        if (oldest != NULL) exposure_sort(h, oldest);
    }
}
