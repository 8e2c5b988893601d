/* orphan.c: see orphan.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/orphan.h"

#include "core/options.h"
#include "heap/exposure.h"
#include "heap/remote_bits.h"
#include "heap/slab.h"
#include "heap/visit.h"
#include "os/os.h"
#include "page/huge.h"
#include "page/release.h"
#include "page/span.h"

WEIR_WIDE(orphans) WEIR_VAR struct orphans orphans[SLAB_CLASSES];
static bool orphans_torn;       /* since a fork; Sync: heaps_lock */
static uint16_t drained_slices; /* of slabs with SLICE_DRAINED; Sync: heaps_lock, read relaxed */

static size_t slab_bytes(const struct slice* s) { return (size_t)s->span_slices << SLICE_SHIFT; }

WEIR_FN void orphans_interrupted(void) { orphans_torn = true; }

/* In the child of a fork that interrupted the holder of the lock: it holds it still. If that call goes on,
 * it finds all as it left it; whoever comes before it, in the handler, does without the lists. */
static void orphans_lock(void) {
    os_lock_take(&heaps_lock);
    if (weir_likely(!orphans_torn)) return;
    orphans_torn = false;
    if (heaps_lock.nest != 0) orphans_forget();
}

WEIR_FN void orphans_settle(void) {
    if (heaps_lock.nest == 0) orphans_torn = false;
}

/* Under the lock: the slab is the last one of its class. */
static void orphan_list(struct slice* s) {
    struct orphans* o = &orphans[s->size_class];
    s->flags |= SLICE_ORPHAN;
    s->next = NULL;
    s->prev = o->last;
    if (o->last != NULL)
        o->last->next = s;
    else
        store_relaxed(&o->first, s);
    o->last = s;
}

/* Under the lock, of a listed one. */
static void orphan_leaves(struct slice* s) {
    struct orphans* o = &orphans[s->size_class];
    if (s->next != NULL)
        s->next->prev = s->prev;
    else
        o->last = s->prev;
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        store_relaxed(&o->first, s->next);
    if ((s->flags & SLICE_DRAINED) != 0)
        store_relaxed(&drained_slices, (uint16_t)(drained_slices - s->span_slices));
    s->flags &= (uint8_t)~(SLICE_ORPHAN | SLICE_DRAINED);
}

WEIR_FN struct slice* orphan_take_first(struct heap* h, unsigned c) {
    orphans_lock();
    struct slice* s = orphans[c].first;
    /* One that somebody has claimed by freeing into it leaves the list by its claimant's hand. */
    while (s != NULL && !slab_claim(s)) s = s->next;
    if (s != NULL) {
        orphan_leaves(s);
        early_end(s);
        store_relaxed(&s->owner, h->owner_word);
        exposure_gain(h, s);
    }
    os_lock_give(&heaps_lock);
    return s;
}

WEIR_FN void orphan_unlist(struct slice* s) {
    if ((s->flags & SLICE_ORPHAN) == 0) return;
    orphans_lock();
    orphan_leaves(s);
    os_lock_give(&heaps_lock);
}

WEIR_FN void orphan_put(struct slice* s) {
    orphan_unlist(s);
    remote_bits_end(s);
    for (;;) {
        slab_collect(s, "free");
        /* What is on its own list was not followed before: where a block is on it twice, one is in use. */
        if (slab_used(s) == 0 && (s->free == NULL || slab_check_list(s, "free"))) {
            early_end(s);
            slab_release(s);
            return;
        }
        slab_sort(s, "free"); /* what it has free is to be seen by the release pass */
        slab_count(s, slab_used(s), slab_used(s), s->built);
        orphans_lock();
        orphan_list(s);
        bool gone = slab_disown(s, 1);
        if (!gone) orphan_leaves(s);
        os_lock_give(&heaps_lock);
        if (gone) return;
    }
}

static_assert(DRAINED_BYTES / SLICE_BYTES <= UINT16_MAX, "they can be counted");
/* How much may wait in slabs without a block in use: no more than may be free and resident at all. */
static uint64_t drained_bytes_max(void) {
    uint64_t most = release_dirty_max();
    return most < DRAINED_BYTES ? most : DRAINED_BYTES;
}

/* All blocks of the caller's slab are back, on its remote list. They become the slab's own list, which is
 * checked when its turn has come, by who takes it; and the slab waits as it is, or goes, its list checked.
 * False: reported, and some count as in use. */
static bool drained_put(struct slice* s) {
    slab_collect(s, "free");
    if (slab_used(s) != 0) return false;
    const size_t bytes = slab_bytes(s);
    orphans_lock();
    /* Who was late with a claim may have one that waits already. */
    const bool counts = (s->flags & SLICE_DRAINED) != 0;
    bool stays = !release_is_helper() &&
                 (counts || (size_t)drained_slices * SLICE_BYTES + bytes <= drained_bytes_max());
    if (stays) {
        if ((s->flags & SLICE_ORPHAN) == 0) orphan_list(s);
        s->flags |= SLICE_DRAINED;
        if (!counts) store_relaxed(&drained_slices, (uint16_t)(drained_slices + s->span_slices));
        stays = slab_disown(s, 1);
        if (!stays) orphan_leaves(s); /* a block came that was back already */
    }
    os_lock_give(&heaps_lock);
    if (stays)
        visit_owed(&heap_empty, bytes); /* somebody is to come for it, as for a free span */
    else
        orphan_put(s);
    return true;
}

/* Where others come by, what waits stays as it is until one does. */
WEIR_FN void orphan_give(struct slice* s) {
    if (load_relaxed(&release_state) == RELEASE_ALONE) {
        orphan_put(s);
        return;
    }
    const struct records held = records_hold(s);
    do {
        /* Acquire: where all are back, the number is the last one's. */
        bool drained = remote_count(load_acquire(&s->remote)) == slab_used(s);
        if (drained && drained_put(s)) break;
        orphans_lock();
        if ((s->flags & SLICE_ORPHAN) == 0) orphan_list(s);
        drained = slab_leave(s);
        os_lock_give(&heaps_lock);
        if (!drained) break;
    } while (slab_claim(s)); /* of whatever it is by now, as in slab_give_remote */
    records_let(held);
}

WEIR_FN void orphan_visit(struct slice* s, const struct slice_pages* r, uint64_t* looked) {
    uint64_t word = load_acquire(&s->remote); /* acquire: the counts of that time; slab_claim decides */
    if ((word & REMOTE_UNOWNED) == 0) return;
    uint32_t waiting = remote_count(word);
    bool drained = counts_used(load_relaxed(&s->counts)) == 0;
    if (!drained && (waiting == 0 || waiting < slab_frees_to_hole(r))) return;
    if (!slab_claim(s)) return;
    *looked += slab_built_bytes(s);
    orphan_put(s);
}

/* One without a block in use, of class *c or a later one, which *c is then: claimed, and off the list. NULL:
 * there is none. */
static struct slice* drained_take(unsigned* c) {
    struct slice* s = NULL;
    orphans_lock();
    for (; *c < SLAB_CLASSES; ++*c) {
        s = orphans[*c].first;
        while (s != NULL && ((s->flags & SLICE_DRAINED) == 0 || !slab_claim(s))) s = s->next;
        if (s != NULL) break;
    }
    if (s != NULL) orphan_leaves(s);
    os_lock_give(&heaps_lock);
    return s;
}

WEIR_FN void orphans_drop(void) {
    unsigned c = 0;
    if (load_relaxed(&drained_slices) == 0) return;
    for (struct slice* s; (s = drained_take(&c)) != NULL;) orphan_put(s);
}

static void orphan_forget(struct slice* s, struct slice_pages* pages, void* context) {
    (void)pages;
    (void)context;
    if (load_relaxed(&s->kind) == SLICE_SLAB) s->flags &= (uint8_t)~(SLICE_ORPHAN | SLICE_DRAINED);
}

WEIR_FN void orphans_forget(void) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) orphans[c] = (struct orphans){NULL, NULL};
    drained_slices = 0;
    span_visit_records(orphan_forget, NULL);
}

/* Bytes of the slabs with SLICE_EARLY, and how many there may be: EARLY_UNKNOWN until somebody asks. Sync:
 * relaxed atomics: a bound, which threads at once may pass by a slab each. */
enum { EARLY_UNKNOWN = 0, EARLY_NONE = 1 };
static uint64_t early_bytes, early_most;

/* None where addresses are scarce, or all that slabs have is resident. */
static uint64_t early_bound(void) {
    enum { early_part = 8 };
    const uint64_t least = 64u << 20;
    uint64_t most = load_relaxed(&early_most);
    if (most != EARLY_UNKNOWN) return most;
    most = load_relaxed(&span_totals.live) / early_part;
    if (most < least) most = least;
    if (core_options.hugepages == HUGE_ALWAYS || region_commit_strict || os_memory_is_limited())
        most = EARLY_NONE;
    store_relaxed(&early_most, most);
    return most;
}

WEIR_FN bool early_may(const struct slice* s) {
    return s->region == 0 && load_relaxed(&early_bytes) + slab_bytes(s) <= early_bound();
}

WEIR_FN void early_begin(struct slice* s) {
    s->flags |= SLICE_EARLY;
    add_relaxed(&early_bytes, (uint64_t)slab_bytes(s));
}

WEIR_FN void early_end(struct slice* s) {
    if ((s->flags & SLICE_EARLY) == 0) return;
    s->flags &= (uint8_t)~SLICE_EARLY;
    sub_relaxed(&early_bytes, (uint64_t)slab_bytes(s));
}

WEIR_FN void early_forget(void) { store_relaxed(&early_most, (uint64_t)EARLY_UNKNOWN); }
