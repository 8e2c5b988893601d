/* exposure.c: see exposure.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/exposure.h"

#include "core/options.h"
#include "heap/available.h"
#include "heap/full.h"
#include "heap/visit.h"
#include "page/release.h"

WEIR_FN void exposure_gain(struct heap* h, struct slice* s) {
    add_relaxed(&h->slab_bytes, (uint64_t)slab_built_bytes(s));
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
    sub_relaxed(&h->slab_bytes, (uint64_t)slab_built_bytes(s));
    sub_relaxed(&h->slab_count, 1);
}

/* Whether others sort the slab: its owner need not, and only tells how much waits. Not where nobody comes by
 * when all threads sleep, and not what checks=full allocates from without a lock. */
static bool is_visited(const struct slice* s) {
    return config_owner_publishes != 0 && load_relaxed(&release_state) != RELEASE_ALONE &&
           core_options.thread_free_max != 0 && (s->listed != LISTED_NOT || !full_is_on());
}

/* The bound for a slab's class. Looking at small blocks costs as much as allocating them: a thread that goes
 * through them in a circle, as many given out as come back, gets a larger one. */
static uint64_t most_of(const struct heap* h, const struct slice* s) {
    uint64_t most = core_options.thread_free_max;
    return slab_class(s)->bytes <= SMALL_MAX ? most << h->exposed_shift : most;
}

/* A heap that is no larger than the bound need not look at all; where there are many, than its share. */
static bool is_looked_at(const struct heap* h, uint64_t most) {
    uint64_t heaps = load_relaxed(&heap_totals.heaps_live);
    if (heaps > HEAPS_MANY) most = most * HEAPS_MANY / heaps;
    return load_relaxed(&release_state) != RELEASE_OFF && load_relaxed(&h->slab_bytes) > 2 * most;
}

/* So many small blocks were looked at: is the thread still going in a circle? What a heap grew by before its
 * first look is none. */
static void exposure_pace(struct heap* h, const struct slice* s, uint32_t blocks) {
    enum { enough = 2048, shift_max = 2 };
    if (slab_class(s)->bytes > SMALL_MAX) return;
    if (h->exposed_handed_out == 0) h->exposed_handed_out = h->handed_out;
    if ((h->exposed_blocks += blocks) < enough) return;
    bool circle = h->handed_out - h->exposed_handed_out > h->exposed_blocks / 2;
    if (circle && h->exposed_shift < shift_max) h->exposed_shift++;
    if (!circle && h->exposed_shift > 0) h->exposed_shift--;
    h->exposed_handed_out = h->handed_out;
    h->exposed_blocks = 0;
}

/* Where others sort: how many frees come between two times that they are told. */
static uint32_t frees_told(const struct slice* s) {
    enum { told_bytes = 16384 };
    uint32_t told = class_block_index(slab_class(s), told_bytes);
    return told != 0 ? told : 1;
}

/* How many frees may go unlooked at. As long as nothing of the slab is sorted, each of its pages was full
 * when its list began: a page's worth of frees makes one free page at most, and the bytes of the list say how
 * much can be free. */
static uint32_t frees_unseen(const struct heap* h, const struct slice* s) {
    uint64_t most = most_of(h, s);
    if (!is_looked_at(h, most)) return UINT32_MAX;
    if (is_visited(s)) return frees_told(s);
    uint32_t frees = slab_frees_to_hole(slice_pages(s));
    if (slice_pages(s)->sorted != 0) return frees;
    uint32_t share = (uint32_t)(most / (load_relaxed(&h->slab_count) + 1)) / slab_class(s)->bytes;
    return share > frees ? share : frees;
}

/* How many frees of a slab that is listed as scarce make it worth its turn. */
static uint32_t frees_scarce(const struct slice* s, uint32_t used) {
    if (s->listed != LISTED_SCARCE) return UINT32_MAX;
    uint32_t enough = class_enough(slab_class(s));
    uint32_t free = s->built - used;
    return free < enough ? enough - free : 1;
}

WEIR_FN void exposure_arm(struct heap* h, struct slice* s, uint32_t used) {
    uint32_t unseen = frees_unseen(h, s);
    uint32_t scarce = frees_scarce(s, used);
    slab_count(s, used, unseen < scarce ? unseen : scarce, s->built);
}

/* Whether the owner has others sort its active slab. */
static bool is_shared(const struct heap* h, const struct slice* s) {
    return is_looked_at(h, core_options.thread_free_max) && is_visited(s);
}

WEIR_FN void exposure_list_active(const struct heap* h, struct slice* s) {
    if (!slab_is_kept(s) && is_shared(h, s)) available_list_active(s);
}

WEIR_FN void exposure_count_active(struct heap* h, struct slice* s, uint32_t used) {
    if (slab_is_kept(s))
        slab_count(s, used, UINT32_MAX, s->built);
    else if (is_shared(h, s))
        slab_count(s, used, frees_told(s), s->built);
    else
        exposure_arm(h, s, used);
}

WEIR_FN void exposure_arm_active(struct heap* h, struct slice* s, uint32_t used) {
    exposure_count_active(h, s, used);
    exposure_list_active(h, s);
}

WEIR_FN void exposure_turn(struct heap* h, struct slice* s, const struct slice_pages* r, uint32_t used) {
    if (r->charged != 0) exposure_clear(h, s);
    slab_count(s, used, frees_told(s), s->built);
}

/* Whether neighbours on the slab's list mostly lie on different pages. Follows links no further than the
 * slab; that they lead to blocks whoever uses the list finds out. */
static bool list_is_strewn(const struct slice* s) {
    enum { look = 8 };
    const uintptr_t start = slice_address(s);
    const size_t end = ((size_t)s->span_slices << SLICE_SHIFT) - GRANULE + 1;
    unsigned apart = 0;
    unsigned n = 0;
    const block_t* p = s->free;
    if (!arch_distance_below((uintptr_t)p - start, end)) return true; /* whoever sorts the list reports it */
    for (const block_t* next = p->next; n < look && arch_distance_below((uintptr_t)next - start, end); n++) {
        if (!arch_page_is_same((uintptr_t)p, (uintptr_t)next, page_shift)) apart++;
        p = next;
        next = p->next;
    }
    return 2 * apart > n;
}

/* A thread that takes as much as it frees, all over its slabs, is given what was packed as soon as what was
 * not: packing is work for nothing then. It stops where sparse slabs' lists are a small part of what is given
 * out, and as many blocks came from pages' lists and resident holes as were packed. It goes on when sparse
 * ones are a larger part than that, as where a thread has come to free more than it takes, and now and then
 * to see. */
static void pack_pace(struct heap* h) {
    enum { met_packing = 512, met_else = 256, circles_enough = 2, windows_most = 128 };
    enum { unit = 16, rate_least = 40, rate_low = 24, fewer = 4 }; /* given out for each 16 met */
    const bool packing = exposure_packs(h);
    if (h->pack_met < (packing ? met_packing : met_else)) return;
    /* Less, where blocks went back from bins. */
    const uint64_t given = h->handed_out > h->pack_handed_out ? h->handed_out - h->pack_handed_out : 0;
    const uint64_t rate = given * unit / h->pack_met;
    h->pack_windows++;
    if (packing) {
        if (rate < rate_least || h->pack_out < h->pack_met / 8 * 5) h->pack_windows = 0;
        h->pack_circle = h->pack_windows >= circles_enough ? rate : 0;
    } else if (rate < rate_low || rate < h->pack_circle / fewer || h->pack_windows >= windows_most) {
        h->pack_circle = 0;
    }
    if (packing != exposure_packs(h)) h->pack_windows = 0;
    h->pack_met = 0;
}

WEIR_FN bool exposure_is_sparse_shared(const struct heap* h, const struct slice* s) {
    enum { pages_few = 3 }; /* of which half are to give a whole one */
    const bool many = slab_built_bytes(s) > (size_t)pages_few << page_shift;
    /* Where no block is in use no page is fuller than another one. */
    return many && slab_used(s) != 0 && is_shared(h, s) && list_is_strewn(s);
}

WEIR_FN void exposure_met(struct heap* h, const struct slice* s) {
    const uint32_t blocks = slab_unsorted(s);
    if (h->pack_met == 0) {
        h->pack_out = 0;
        h->pack_handed_out = h->handed_out;
    }
    h->pack_met += blocks < s->built ? blocks : s->built;
    pack_pace(h);
}

WEIR_FN void exposure_pack(struct heap* h, struct slice* s, const char* call) {
    const bool packs = exposure_packs(h);
    exposure_met(h, s);
    if (packs) exposure_sort(h, s, call);
}

/* How many frees are left of those that may go unlooked at; 0: none. */
static uint32_t frees_left(const struct heap* h, const struct slice* s) {
    uint32_t scarce = frees_scarce(s, slab_used(s));
    uint32_t frees = frees_unseen(h, s);
    if (frees == UINT32_MAX) return scarce;
    uint32_t came = slab_unsorted(s) - slice_pages(s)->charged; /* since the last look */
    uint32_t left = frees > came ? frees - came : 0;
    return left < scarce ? left : scarce;
}

WEIR_FN void exposure_advance(const struct heap* h, struct slice* s) {
    uint32_t left = frees_left(h, s);
    if (left == 0) left = 1;
    if (left < s->until) slab_count(s, slab_used(s), left, s->built);
}

WEIR_FN bool exposure_rearm(const struct heap* h, struct slice* s) {
    uint32_t left = frees_left(h, s);
    if (left != 0) slab_count(s, slab_used(s), left, s->built);
    return left != 0;
}

WEIR_FN void exposure_sort(struct heap* h, struct slice* s, const char* call) {
    exposure_clear(h, s);
    slab_sort(s, call);
    exposure_arm(h, s, slab_used(s));
}

/* Sort a slab that was charged some time ago, if it is still what it was. Under the heap's lock, so that
 * nobody steals it. */
static void exposure_sort_charged(struct heap* h, struct slice* s) {
    os_lock_take(&h->lock);
    if (owner_heap(load_relaxed(&s->owner)) == h && load_relaxed(&s->kind) == SLICE_SLAB &&
        slice_pages(s)->charged != 0 && s->until != 0) {
        exposure_sort(h, s, "free");
        available_relist(h, s);
    }
    os_lock_give(&h->lock);
}

static struct slice* exposure_oldest(struct heap* h) {
    struct slice** slot = &h->exposed_slabs[h->exposed_next++ % EXPOSED_SLOTS];
    struct slice* s = *slot;
    *slot = NULL;
    return s;
}

static void exposure_sort_oldest(struct heap* h) {
    struct slice* s = exposure_oldest(h);
    if (s != NULL) exposure_sort_charged(h, s);
}

/* Whether the list is to be walked, as those that turn over are (docs/adr/0005): one that is as long as what
 * the slab has in use. It may not turn over for long, or not before the slab has gone. */
static bool tell_is_checked(struct heap* h, const struct slice* s) {
    enum { blocks_a_list = 16 }; /* of the first ones: so many of these are worth a list that turns over */
    uint32_t blocks = slab_unsorted(s);
    if (blocks < slab_used(s)) return false;
    if (h->told_blocks < (uint64_t)core_options.check_first * blocks_a_list) {
        h->told_blocks += blocks;
        return true;
    }
    if (++h->tells_unchecked < walk_every(h)) return false;
    h->tells_unchecked = 0;
    return true;
}

WEIR_FN void exposure_resolve(struct heap* h, struct slice* s, const char* call) {
    store_relaxed(&h->doubted, NULL);
    if (slab_check_list(s, call))
        exposure_sort(h, s, call);
    else
        exposure_clear(h, s); /* its list is gone */
}

/* Others are to sort the slab: they are told how much came. */
static void exposure_tell(struct heap* h, struct slice* s) {
    struct slice_pages* r = slice_pages(s);
    if (exposure_is_doubted(h, s))
        exposure_resolve(h, s, "free");
    else if (tell_is_checked(h, s) && !slab_check_list(s, "free"))
        exposure_clear(h, s);
    uint32_t unsorted = slab_unsorted(s);
    uint64_t bytes = (uint64_t)(unsorted - r->charged) * slab_class(s)->bytes;
    add_relaxed(&h->exposed, bytes);
    r->charged = (uint16_t)unsorted;
    h->exposed_told = true;
    visit_owed(h, bytes);
    bool active = s->listed == LISTED_NOT;
    exposure_arm(h, s, slab_used(s)); /* from here on it may be stolen */
    if (active) available_list_active(s);
}

WEIR_FN void exposure_due(struct heap* h, struct slice* s) {
    if (is_visited(s)) {
        exposure_tell(h, s);
        return;
    }
    /* Nobody comes any more: what others were told of is in no ring, and the thread's own to sort. */
    if (weir_unlikely(h->exposed_told) && load_relaxed(&release_state) == RELEASE_ALONE) {
        h->exposed_told = false;
        available_sort_charged(h);
    }
    struct slice_pages* r = slice_pages(s);
    uint32_t unsorted = slab_unsorted(s);
    uint64_t most = most_of(h, s);
    exposure_pace(h, s, unsorted - r->charged);
    /* The records of a region but the first may go away: nothing is to point to them from here. */
    if (s->region != 0 || r->sorted != 0) {
        exposure_sort(h, s, "free");
        return;
    }
    unsigned slot = h->exposed_next % EXPOSED_SLOTS;
    bool listed = r->charged != 0;
    add_relaxed(&h->exposed, (uint64_t)(unsorted - r->charged) * slab_class(s)->bytes);
    r->charged = (uint16_t)unsorted;
    exposure_arm(h, s, slab_used(s)); /* from here on it may be stolen */
    if (!listed) {
        exposure_sort_oldest(h);
        h->exposed_slabs[slot] = s;
    }
    for (unsigned i = 0; i < EXPOSED_SLOTS && load_relaxed(&h->exposed) > most; i++) exposure_sort_oldest(h);
}
