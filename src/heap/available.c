/* available.c: see available.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/available.h"

#include "heap/direct.h"
#include "heap/exposure.h"
#include "heap/remote_bits.h"
#include "heap/slab.h"
#include "heap/spare.h"
#include "heap/visit.h"

static struct slice** list_of(struct heap* h, const struct slice* s) {
    return s->listed == LISTED_SCARCE ? &h->scarce[s->size_class] : &h->available[s->size_class];
}

static void unlist(struct heap* h, struct slice* s) {
    slab_list_remove(list_of(h, s), s);
    store_relaxed(&s->listed, (uint8_t)LISTED_NOT);
}

static void list(struct heap* h, struct slice* s) {
    weir_assert(!remote_bits_are_used(load_relaxed(&s->remote)));
    store_relaxed(&s->listed, (uint8_t)(slab_is_scarce(s) ? LISTED_SCARCE : LISTED_AVAILABLE));
    slab_list_push(list_of(h, s), s);
}

WEIR_FN void available_relist(struct heap* h, struct slice* s) {
    if (s->listed != LISTED_SCARCE || slab_is_scarce(s)) return;
    slab_list_remove(list_of(h, s), s);
    list(h, s);
}

WEIR_FN void available_unlist_all(struct heap* h) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) h->available[c] = h->scarce[c] = NULL;
}

WEIR_FN void available_list_again(struct heap* h, struct slice* s) {
    uint8_t listed = load_relaxed(&s->listed);
    if (listed == LISTED_AVAILABLE || listed == LISTED_SCARCE) slab_list_push(list_of(h, s), s);
}

WEIR_FN void available_put(struct heap* h, struct slice* s, const char* call) {
    os_lock_take(&h->lock);
    remote_bits_end(s);
    slab_collect(s, call);
    if (slab_used(s) == 0 && slab_check_list(s, call)) {
        exposure_lose(h, s);
        spare_put(h, s);
    } else {
        list(h, s);
        exposure_arm(h, s, slab_used(s));
    }
    os_lock_give(&h->lock);
}

/* How well a slab serves to allocate from: better with `enough` free blocks, then with more in use, then the
 * lower one (of those within 512 GiB); in one number, as which of two is better is not to be predicted.
 * Relaxed: its owner is the caller. */
WEIR_INLINE uint64_t worth_of(const struct slice* s, uint32_t enough) {
    uint64_t counts = load_relaxed(&s->counts);
    uint32_t low = ~(uint32_t)((uintptr_t)s >> SLICE_RECORD_SHIFT);
    return (uint64_t)(counts_free(counts) >= enough) << 63 | (uint64_t)counts_used(counts) << 32 | low;
}

WEIR_FN struct slice* available_best(const struct heap* h, unsigned c) {
    enum { look = 8 };
    struct slice* best = h->available[c];
    if (best == NULL || best->next == NULL) return best;
    const uint32_t enough = class_enough(slab_class(best));
    uint64_t most = worth_of(best, enough);
    struct slice* s = best->next;
    for (unsigned i = 1; i < look && s != NULL; s = s->next, i++) {
        uint64_t worth = worth_of(s, enough);
        best = worth > most ? s : best;
        most = worth > most ? worth : most;
    }
    return best;
}

WEIR_FN struct slice* available_take(struct heap* h, unsigned c, bool resident) {
    /* Relaxed: others only take away. */
    if (load_relaxed(&h->available[c]) == NULL) return NULL;
    os_lock_take(&h->lock);
    struct slice* best = available_best(h, c);
    if (best != NULL) slab_settle(best);
    if (best != NULL && resident && counts_free(best->counts) < class_enough(slab_class(best))) best = NULL;
    if (best != NULL) unlist(h, best);
    os_lock_give(&h->lock);
    return best;
}

WEIR_FN struct slice* available_take_scarce(struct heap* h, unsigned c) {
    if (load_relaxed(&h->scarce[c]) == NULL) return NULL; /* relaxed: others only take away */
    os_lock_take(&h->lock);
    struct slice* s = h->scarce[c];
    if (s != NULL) {
        slab_settle(s);
        unlist(h, s);
    }
    os_lock_give(&h->lock);
    return s;
}

WEIR_FN void available_release(struct heap* h, struct slice* s) {
    os_lock_take(&h->lock);
    unlist(h, s);
    exposure_lose(h, s);
    os_lock_give(&h->lock);
    spare_put(h, s);
}

WEIR_FN bool available_hold(struct heap* h, struct slice* s) {
    /* Relaxed: only its owner lists a slab, and no other takes one away that has a block in use. */
    bool listed = load_relaxed(&s->listed) != LISTED_NOT;
    if (listed) os_lock_take(&h->lock);
    direct_end(h, s);
    if (listed) slab_settle(s);
    return listed;
}

WEIR_FN void available_list_active(struct slice* s) {
    store_release(&s->listed, (uint8_t)LISTED_ACTIVE); /* publishes the record to is_listed_by */
}

WEIR_FN void available_unlist_active(struct heap* h, struct slice* s) {
    bool listed = load_relaxed(&s->listed) == LISTED_ACTIVE; /* relaxed: the caller's store */
    if (listed) os_lock_take(&h->lock);
    direct_end(h, s);
    if (!listed) return;
    slab_settle(s);
    store_relaxed(&s->listed, (uint8_t)LISTED_NOT);
    os_lock_give(&h->lock);
}

static void sweep_list(struct heap* h, struct slice* s, bool sort, const char* call) {
    struct slice* next;
    for (; s != NULL; s = next) {
        next = s->next;
        if (next != NULL) __builtin_prefetch(slice_pages(next));
        slab_settle(s);
        slab_collect(s, call);
        if (slab_used(s) == 0 && slab_check_list(s, call)) {
            unlist(h, s);
            exposure_lose(h, s);
            spare_put(h, s);
            continue;
        }
        if (sort && slab_unsorted(s) != 0 && slab_unsorted(s) >= slab_frees_to_hole(slice_pages(s)))
            exposure_sort(h, s, call);
        available_relist(h, s);
    }
}

WEIR_FN void available_sweep(struct heap* h, bool sort, const char* call) {
    os_lock_take(&h->lock);
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        sweep_list(h, h->available[c], sort, call);
        sweep_list(h, h->scarce[c], sort, call);
    }
    os_lock_give(&h->lock);
}

static void list_sort_charged(struct heap* h, struct slice* s) {
    struct slice* next;
    for (; s != NULL; s = next) {
        next = s->next;
        if (slice_pages(s)->charged != 0) exposure_sort(h, s, "free");
        available_relist(h, s);
    }
}

WEIR_FN void available_sort_charged(struct heap* h) {
    os_lock_take(&h->lock);
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        struct slice* active = h->active[c];
        if (active != NULL && slice_pages(active)->charged != 0) exposure_sort(h, active, "free");
        list_sort_charged(h, h->available[c]);
        list_sort_charged(h, h->scarce[c]);
    }
    os_lock_give(&h->lock);
}

/* Under the lock of heap h: whether slab s, whatever it was before, is on its list, and its owner is not
 * looking at it: its countdown has not ended. Not where the lock is taken again: by the child of a fork in
 * the middle of a call that had it, or among fork handlers. */
static bool is_listed_by(const struct heap* h, const struct slice* s) {
    return h->lock.nest == 0 && owner_heap(load_acquire(&s->owner)) == h &&
           load_relaxed(&s->kind) == SLICE_SLAB && load_acquire(&s->listed) != 0;
}

/* Whether the remote list has as many blocks as its word says, and no more: one that was freed twice has the
 * list meet itself. */
static bool remote_is_whole(const struct slice* s, uint64_t word) {
    uint32_t left = remote_count(word);
    const block_t* p = remote_first(s, word);
    for (; left != 0 && p != NULL && slab_holds_block(s, p); left--) p = p->next;
    return left == 0 && p == NULL;
}

/* Under the same lock: release the slab if all its blocks are back. */
static bool release_if_empty(struct heap* h, struct slice* s) {
    if (s->listed == LISTED_ACTIVE) return false; /* its owner allocates from it */
    /* Acquire: pairs with the owner's last push and the release of the other givers. */
    uint64_t counts = load_acquire(&s->counts);
    uint64_t word = load_acquire(&s->remote);
    uint32_t waiting = remote_count(word);
    uint32_t back = waiting + slice_pages(s)->ahead;
    /* A countdown that has ended: its owner is looking at the slab, or about to. And what is wrong with a
     * list is for it to report. */
    if (counts_until(counts) == 0 || counts_used(counts) != back || !remote_is_whole(s, word)) return false;
    add_relaxed(&heap_totals.remote_frees, waiting);
    unlist(h, s);
    exposure_lose(h, s);
    slab_release(s);
    return true;
}

WEIR_FN void available_change(struct heap* h, struct slice* s, struct slice* other) {
    unlist(h, other);
    remote_bits_end(s);
    list(h, s);
    exposure_arm(h, s, slab_used(s));
    release_if_empty(h, s); /* others may have noted all of it meanwhile */
}

/* Who has the heaps' lock, as who sends what waits in outboxes of others, waits for no heap: its owner may be
 * in a handler that waits for a thread that begins. False: a visitor is to come for the slab, who waits
 * without that lock. */
static bool heap_lock_for_steal(struct heap* h) {
    if (os_lock_is_mine(&heaps_lock) && !os_lock_is_mine(&h->lock)) return os_lock_try(&h->lock);
    os_lock_take(&h->lock);
    return true;
}

/* The caller has given the slab a block and may no longer rely on anything it says: by now it may have
 * been released and be another one. Under the lock of the heap it names, what it says holds. */
WEIR_FN void available_steal(struct slice* s) {
    struct heap* h = owner_heap(load_relaxed(&s->owner));
    uint64_t word = load_relaxed(&s->remote);
    if (h == NULL || counts_used(load_relaxed(&s->counts)) != remote_count(word) + remote_ahead(s, word))
        return;
    if (!heap_lock_for_steal(h)) {
        visit_owed(&heap_empty, SLICE_BYTES);
        return;
    }
    if (is_listed_by(h, s)) release_if_empty(h, s);
    os_lock_give(&h->lock);
}

/* Whether so many blocks wait to be sorted that a page may be free, or all of them. */
static bool is_worth_a_visit(const struct slice* s, const struct slice_pages* r) {
    uint64_t counts = load_relaxed(&s->counts);
    if (counts_until(counts) == 0) return false; /* its owner is looking at it */
    uint32_t waiting = slab_waiting(s);
    uint32_t ahead = load_relaxed(&r->ahead);
    if (waiting + ahead >= counts_used(counts)) return true;
    if (config_owner_publishes)
        waiting += counts_built(counts) + ahead - counts_used(counts) - load_relaxed(&r->sorted);
    return waiting != 0 && waiting >= slab_frees_to_hole(r);
}

/* The lists that a visit follows lead through blocks that another processor wrote last: each link is waited
 * for, and the owner with it, once the lock is held. So most of what they may lead to comes all at once
 * before: as many blocks as are built, which are the first ones but where pages before are holes. A prefetch
 * reads nothing, and may be of what is no slab's any more. A processor that has no room for more lines on
 * their way, which is for 10 to 24, may drop what comes then: so they go in turns of which each is there
 * before the next, about. */
static void blocks_prefetch(const struct slice* s, uintptr_t start) {
    enum { line = 64, turn = 16, pauses = 3 };
    uint32_t bytes = size_classes[load_relaxed(&s->size_class)].bytes;
    const char* p = (const char*)start; /* which the record cannot be asked for without the lock */
    const char* end = p + (size_t)counts_built(load_relaxed(&s->counts)) * bytes;
    for (unsigned lines = 1; p < end; p += bytes < line ? line : bytes, lines++) {
        __builtin_prefetch(p);
        for (unsigned i = 0; lines % turn == 0 && i < pauses; i++) arch_pause();
    }
}

WEIR_FN bool available_visit(struct heap* h, struct slice* s, uintptr_t start, const struct slice_pages* r,
                             uint64_t* looked) {
    if (!is_worth_a_visit(s, r)) return false; /* a first look without the lock: what it says may be old */
    blocks_prefetch(s, start);
    os_lock_take(&h->lock);
    if (is_listed_by(h, s) && !release_if_empty(h, s) && is_worth_a_visit(s, r)) {
        *looked += slab_built_bytes(s);
        /* Before any change: the child of a fork may find the slab half sorted. */
        (void)__atomic_exchange_n(&h->visited, s, __ATOMIC_SEQ_CST);
        if (!slab_sort_as_visitor(s)) store_relaxed(&h->doubted, s);
        if (config_owner_publishes) exposure_clear(h, s);
        if (!release_if_empty(h, s)) available_relist(h, s);
        store_release(&h->visited, NULL);
    }
    return os_lock_give_waking(&h->lock);
}
