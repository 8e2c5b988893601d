/* refill.c: see refill.h.
 *
 * Order of preference: what the active slab has, unless others are just freeing it; the fullest of the
 * available slabs, an orphan, a new one; one that is scarce when there is no memory. The fullest first, so
 * that sparse slabs drain and can be released.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/refill.h"

#include "core/options.h"
#include "core/report.h"
#include "heap/available.h"
#include "heap/direct.h"
#include "heap/exposure.h"
#include "heap/full.h"
#include "heap/guard.h"
#include "heap/large.h"
#include "heap/medium.h"
#include "heap/orphan.h"
#include "heap/remote_bits.h"
#include "heap/slab.h"
#include "heap/spare.h"
#include "heap/tag_fault.h"
#include "page/release.h"

/* Walking every list would cost half as much again as the fast path itself (docs/adr/0005): all of a
 * thread's first ones are walked, which is all there are in most programs' tests, then a sample. A long one
 * counts as several, so that a program that is soon done is not kept waiting. */
static bool turn_is_checked(struct heap* h, uint32_t count) {
    enum { blocks_a_list = 64 };
    if (h->turn < core_options.check_first) {
        h->turn += 1 + count / blocks_a_list;
        return true;
    }
    if (++h->turns_unchecked < walk_every(h)) return false;
    h->turns_unchecked = 0;
    return true;
}

/* The last of a list of `count` blocks that is in nobody's hands; NULL: reported, and its blocks count as in
 * use. */
static block_t* list_end(struct slice* s, block_t* first, uint32_t count, const char* call) {
    uint32_t used = slab_used(s);
    slab_count(s, used + count, used + count, s->built);
    block_t* last = slab_walk(s, first, count, call);
    if (last != NULL) slab_count(s, used, used, s->built);
    return last;
}

/* A list of `count` blocks that is in nobody's hands is about to be used: check it when its turn has come.
 * False: reported, and its blocks count as in use. */
static bool list_check(struct heap* h, struct slice* s, block_t* first, uint32_t count, const char* call) {
    bool overrun = count > s->built;
    if (weir_likely(!overrun) && !turn_is_checked(h, count)) return true;
    if (overrun) {
        core_report("double-free", REPORT_FREED, first, call);
        slab_forget_free(s);
        return false;
    }
    return list_end(s, first, count, call) != NULL;
}

/* The last of the first `count` blocks of a list; NULL: none, or a link before it was written to. */
static block_t* list_nth(const struct slice* s, block_t* first, uint32_t count) {
    block_t* p = first;
    for (uint32_t i = 1; i < count && p != NULL; i++) {
        p = p->next;
        if (p != NULL && !slab_holds_block(s, p)) return NULL;
    }
    return count == 0 ? NULL : p;
}

/* The allocation after `given` blocks is sampled: those behind them stay on the slab's list. Returns how many
 * the bin gets: all, where the list cannot be followed so far. */
static WEIR_COLD uint32_t list_cut(struct slice* s, block_t** first, uint32_t given, uint32_t count) {
    weir_assert(s->free == NULL);
    block_t* last = list_nth(s, *first, given);
    if (given != 0 && last == NULL) return count;
    s->free = given == 0 ? *first : last->next;
    if (given == 0)
        *first = NULL;
    else
        last->next = NULL;
    return given;
}

/* Of a direct slab, whose own frees no list shows: whether more came since the last look than others'. */
static bool frees_own(const struct slice* s) {
    return slab_is_direct(s) && direct_freed(s) > slab_waiting(s);
}

/* The active slab's list is about to be used: whether it is of blocks that the thread freed itself, or that
 * others did. What was left of the last one tells nothing. */
static void class_learn(struct heap* h, unsigned c, const struct slice* s, bool own) {
    uint64_t bit = 1ull << c % 64;
    bool left = (h->left[c / 64] & bit) != 0;
    h->left[c / 64] &= ~bit;
    if ((s->free != NULL && !left) || own)
        h->passed[c / 64] &= ~bit;
    else if (slab_has_remote(s))
        h->passed[c / 64] |= bit;
}

/* Others free the blocks, and the active slab has a good many, all of them in use. Who has it when they come
 * back should be who needs some then: the thread goes on with another one. Where heaps are many, that is: of
 * few ones, what each has of a class adds up to little. What is not built of such slabs is addresses that
 * nobody uses until then, so only so many are given up. */
static bool slab_goes_early(const struct heap* h, unsigned c, const struct slice* s) {
    enum { passed_bytes = 8192 };
    return heap_is_passed(h, c) && heaps_are_many() && slab_used(s) == s->built &&
           slab_built_bytes(s) >= passed_bytes && early_may(s);
}

/* How many blocks of a list of `count` a bin is to have: what others freed comes in long lists, of which
 * nobody else sees anything while they are the bin's. That adds up where heaps are many. */
static uint32_t bin_share(struct heap* h, unsigned c, const struct slice* s, uint32_t count) {
    enum { passed_bytes = 4096 };
    if (!heap_is_passed(h, c) || !heaps_are_many()) return count;
    uint32_t most = passed_bytes / slab_class(s)->bytes;
    if (most < class_enough(slab_class(s))) most = class_enough(slab_class(s));
    if (count <= most) return count;
    h->left[c / 64] |= 1ull << c % 64;
    return most;
}

/* The blocks of a list, which is in nobody's hands, become the bin's, up to the next one that is sampled.
 * `kept`: what the slab holds is bounded otherwise. */
static void bin_fill(struct heap* h, unsigned c, struct slice* s, block_t* first, uint32_t count, bool kept) {
    if (heap_is_passed(h, c)) remote_bits_begin(s);
    uint32_t given = kept ? count : bin_share(h, c, s, count);
    if (c < SMALL_CLASSES) given = guard_lets(h, c, given);
    if (weir_unlikely(given != count)) count = list_cut(s, &first, given, count);
    if (direct_may(h, s, slab_used(s), count))
        direct_begin(h, s, slab_used(s) + count, count);
    else
        exposure_arm_active(h, s, slab_used(s) + count);
    h->bins[c].head = first;
    h->bins[c].base = slice_address(s);
    store_relaxed(&h->handed_out, h->handed_out + count);
}

/* The lists of the fullest pages, until there are enough blocks; NULL: none is sorted. */
static WEIR_NOINLINE block_t* slab_gather(struct slice* s, uint32_t* count) {
    block_t* first = slab_take_sorted(s, count);
    if (first == NULL) return NULL;
    while (*count < class_enough(slab_class(s))) {
        uint32_t more;
        block_t* next = slab_take_sorted(s, &more);
        block_t* last = next == NULL ? NULL : list_end(s, next, more, "malloc");
        if (last == NULL) break;
        last->next = first;
        first = next;
        *count += more;
    }
    slab_taken(s);
    return first;
}

/* What the pages of slab s have: pages' lists, or new blocks of so many pages at most. `clean`: also on pages
 * that are not resident. */
static block_t* slab_supply(struct slice* s, bool clean, uint32_t pages, bool* fresh, uint32_t* count) {
    block_t* first = slice_pages(s)->sorted == 0 ? NULL : slab_gather(s, count);
    *fresh = first == NULL;
    if (first == NULL && s->built < slab_class(s)->capacity) first = slab_build(s, clean, pages, count);
    return first;
}

/* How many pages are built at once: a 16th of those that the thread went on to in a row. One where heaps
 * are many, as what bins have adds up. */
static uint32_t grown_pages(const struct heap* h, unsigned c) {
    enum { part = 16, most_blocks = 64, most_bytes = 16384 };
    uint32_t pages = h->grown[c] / part;
    if (pages <= 1 || heaps_are_many()) return 1;
    uint32_t most = size_classes[c].bytes * most_blocks;
    if (most > most_bytes) most = most_bytes;
    most >>= page_shift;
    return pages <= most ? pages : most != 0 ? most : 1;
}
/* So many blocks were built. */
static void class_grew(struct heap* h, unsigned c, uint32_t count) {
    uint32_t pages = count * size_classes[c].bytes >> page_shift;
    uint32_t run = h->grown[c] + (pages != 0 ? pages : 1);
    h->grown[c] = (uint8_t)(run < UINT8_MAX ? run : UINT8_MAX);
}

/* checks=full: get slab s a free block on its own list. False: the slab has none. */
static WEIR_NOINLINE bool slab_stock(struct slice* s, bool clean) {
    slab_collect(s, "malloc");
    if (s->free == NULL) {
        uint32_t count;
        bool fresh;
        s->free = slab_supply(s, clean, 1, &fresh, &count);
        if (fresh) full_seal_list(s, s->free);
    }
    return s->free != NULL;
}

/* The owner's list of slab s becomes the bin's. False: reported, list lost. */
static bool slab_turn_over(struct heap* h, unsigned c, struct slice* s, bool kept, const char* call) {
    uint32_t count = slab_list_count(s, s->free, slab_unsorted(s));
    block_t* first = s->free;
    s->free = NULL; /* out of the slab's hands while it is looked at: a handler of the abort may allocate */
    exposure_clear(h, s);
    if (!list_check(h, s, first, count, call)) return false;
    bin_fill(h, c, s, first, count, kept);
    return true;
}

/* A list of a few blocks that turns over all the time costs more than it saves in memory, which is as much as
 * few blocks are. True: it did so often enough, and the slab has more. */
static bool list_stays_short(struct heap* h, struct slice* s, uint32_t count) {
    uint8_t* turns = &h->short_turns[s->size_class];
    enum { small_slab = 16, few_of_larger = 4, few_bytes = 4096, often = 8 };
    const struct size_class* k = slab_class(s);
    if (k->bytes > SMALL_MAX) return false;
    uint32_t few = s->built < small_slab ? small_slab : few_of_larger;
    if (few * k->bytes < few_bytes) few = class_block_index(k, few_bytes);
    if (count >= few || (s->built == k->capacity && slice_pages(s)->sorted == 0)) *turns = 0;
    if (*turns >= often) return true;
    ++*turns;
    return false;
}

/* A list that stays short is joined by the slab's next page. */
static void slab_widen(struct heap* h, struct slice* s) {
    if (!list_stays_short(h, s, slab_unsorted(s))) return;
    h->short_turns[s->size_class] = 0;
    uint32_t count;
    bool fresh;
    block_t* first = slab_supply(s, true, 1, &fresh, &count);
    block_t* last = first == NULL ? NULL : list_end(s, first, count, "malloc");
    if (last == NULL) return;
    last->next = s->free;
    s->free = first;
}

/* The active slab of class c was kept, and is no more. */
static WEIR_NOINLINE void kept_end(struct heap* h, unsigned c, struct slice* s) {
    size_t built = slab_built_bytes(s);
    s->flags &= (uint8_t)~SLICE_KEPT;
    h->kept[c / 64] &= ~(1ull << c % 64);
    h->kept_bytes -= built < h->kept_bytes ? built : h->kept_bytes;
}

/* A closed slab is opened again. Where many are between two sweeps, the thread frees all that it took, again
 * and again, as one that serves requests does: as much as that is stays for a while. */
static void reopened_count(struct heap* h) {
    enum { many = SLAB_CLASSES + 1, sweeps = 4 }; /* more than a sweep closes */
    if (++h->reopened < many) return;
    h->reopened = 0;
    h->kept_widely = sweeps;
}

/* Fill the bin from the pages of slab s, whose list is empty. False: the slab is full, or what it has left is
 * not resident and `clean` not set. */
static WEIR_NOINLINE bool pages_fill_bin(struct heap* h, unsigned c, struct slice* s, bool clean) {
    if (full_is_on()) return slab_stock(s, clean);
    uint32_t count;
    bool fresh;
    block_t* first = slab_supply(s, clean, grown_pages(h, c), &fresh, &count);
    if (first == NULL || (!fresh && !list_check(h, s, first, count, "malloc"))) return false;
    if (!fresh || !clean) exposure_unpacked(h, count);
    if (fresh)
        class_grew(h, c, count);
    else
        h->grown[c] /= 2;
    bin_fill(h, c, s, first, count, false);
    return true;
}

/* Fill the bin from slab s, with what is resident. False: there is none. */
static bool slab_fill_bin(struct heap* h, unsigned c, struct slice* s) {
    bool own = frees_own(s);
    available_unlist_active(h, s);
    if (slab_is_kept(s)) kept_end(h, c, s);
    if ((s->flags & SLICE_CLOSED) != 0) reopened_count(h);
    s->flags &= (uint8_t)~SLICE_CLOSED;
    if (full_is_on()) return slab_stock(s, false);
    class_learn(h, c, s, own);
    slab_collect(s, "malloc");
    if (exposure_is_doubted(h, s))
        exposure_resolve(h, s, "malloc");
    else if (s->free != NULL && exposure_is_sparse(h, s))
        exposure_pack(h, s, "malloc");
    if (s->free != NULL) {
        h->grown[c] /= 2;
        slab_widen(h, s);
        if (slab_turn_over(h, c, s, false, "malloc")) return true;
    }
    return pages_fill_bin(h, c, s, false);
}

WEIR_FN void heap_adopt(struct heap* h, struct slice* s) {
    orphan_unlist(s);
    early_end(s);
    store_relaxed(&s->owner, h->owner_word);
    exposure_gain(h, s);
    available_put(h, s, "free");
}

/* The slab leaves its place as the active one. */
static void active_drop(struct heap* h, unsigned c) {
    struct slice* s = h->active[c];
    s->flags &= (uint8_t)~(SLICE_KEPT | SLICE_CLOSED);
    h->kept[c / 64] &= ~(1ull << c % 64);
    h->active[c] = NULL;
    h->bins[c] = (struct bin){NULL, SLICE_BYTES};
}

/* So many slabs have drained since the thread last needed a list: it only frees. */
enum { FREES_ALONE = 2 };
static bool frees_alone(const struct heap* h) {
    return h->settled_calls == h->slow_calls && h->settled_frees >= FREES_ALONE;
}

/* Whether all blocks of the active slab are free, on its list or in the bin. Looks at short bins only, where
 * the thread still allocates: a walk over a long one would cost more than it tells. */
static bool active_is_idle(const struct heap* h, unsigned c) {
    const uint32_t look = frees_alone(h) ? UINT32_MAX : 64;
    const struct slice* s = h->active[c];
    if (s == NULL || slab_used(s) > look) return false;
    uint32_t waiting = 0;
    for (const block_t* p = h->bins[c].head; p != NULL && waiting <= slab_used(s); p = p->next) {
        if (!slab_holds_block(s, p)) return false; /* written to: the next malloc reports it */
        waiting++;
    }
    return waiting == slab_used(s);
}

/* Let go of the active slab of class c, none of whose blocks is in use. */
static void active_release(struct heap* h, unsigned c) {
    struct slice* s = h->active[c];
    active_drop(h, c);
    available_put(h, s, "free");
}

/* Let go of all active slabs whose pages are holes. */
static void closed_release(struct heap* h) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++)
        if (h->active[c] != NULL && (h->active[c]->flags & SLICE_CLOSED) != 0) active_release(h, c);
    h->closed_bytes = 0;
}

/* The active slab of class c, none of whose blocks is in use, stays without its memory: the thread needs no
 * page call for the next block of the class, and the release pass has the pages. */
static void active_close(struct heap* h, unsigned c) {
    struct slice* s = h->active[c];
    h->bins[c] = (struct bin){NULL, SLICE_BYTES};
    h->kept[c / 64] &= ~(1ull << c % 64);
    exposure_clear(h, s);
    h->closed_bytes += slab_close(s);
    s->flags = (uint8_t)((s->flags & ~SLICE_KEPT) | SLICE_CLOSED);
    if (h->closed_bytes > CLOSED_BYTES_MAX) closed_release(h);
}

/* A slab that was direct until now: the `count` blocks in its bin become its list, unless that has some.
 * They are followed, as bin_return does it, when their turn has come or all of the slab is free: they were
 * freed long ago, and each link would be waited for. */
static void bin_list(struct heap* h, unsigned c, struct slice* s, uint32_t count, const char* call) {
    block_t* first = h->bins[c].head;
    bool known = first != NULL && count != 0 && count < slab_used(s) && !slab_forked && !config_trust_size;
    if (!known || s->free != NULL || turn_is_checked(h, count)) {
        bin_return(h, c, call);
        return;
    }
    h->bins[c] = (struct bin){NULL, SLICE_BYTES};
    s->free = first;
    slab_recount_used(s, slab_used(s) - count);
    store_relaxed(&h->handed_out, h->handed_out - count);
}

/* The active slab of class c was kept, or may be without use: close it if it is. */
static void active_settle(struct heap* h, unsigned c) {
    struct slice* s = h->active[c];
    uint32_t count = slab_is_direct(s) ? direct_waiting(s) : 0;
    available_unlist_active(h, s);
    if (slab_is_kept(s)) kept_end(h, c, s);
    if ((s->flags & SLICE_CLOSED) != 0) return;
    bool idle = active_is_idle(h, c);
    if (!idle && h->kept_widely == 0) {
        exposure_arm_active(h, s, slab_used(s));
        return;
    }
    bin_list(h, c, s, count, "free"); /* also where blocks are in use, if it may be much: for visitors */
    if (slab_used(s) == 0)
        active_close(h, c);
    else if (idle)
        active_release(h, c); /* the bin's list was written to */
    else
        exposure_arm_active(h, s, slab_used(s));
}

/* No active slab is kept any more. */
static void kept_release(struct heap* h) {
    for (unsigned word = 0; word < KEPT_WORDS; word++)
        for (uint64_t left = h->kept[word]; left != 0; left &= left - 1)
            active_settle(h, word * 64 + bit_low(left));
    h->kept_bytes = 0;
}

/* Now and then: what was closed and has not been opened since goes, what is without use is closed. */
static void active_sweep(struct heap* h) {
    h->reopened = 0;
    if (h->kept_widely != 0) h->kept_widely--;
    closed_release(h);
    for (unsigned c = 0; c < SLAB_CLASSES; c++)
        if (h->active[c] != NULL) active_settle(h, c);
    h->kept_bytes = 0;
}

static struct slice* slab_new(struct heap* h, unsigned c) {
    struct slice* s = slab_make(h, c);
    if (s != NULL) exposure_gain(h, s);
    return s;
}

/* Another slab for the thread, one that it has, an orphan, or a new one; NULL: no memory. `first`: the thread
 * has had none to allocate from. */
static struct slice* slab_another(struct heap* h, unsigned c, bool first) {
    struct slice* s = available_take(h, c, false);
    if (s == NULL && first) s = available_take_scarce(h, c);
    if (s == NULL && (s = orphan_take(h, c)) != NULL)
        h->left[c / 64] |= 1ull << c % 64;         /* what others had of it tells nothing */
    if (s == NULL && (++h->slabs_new & 63) == 0) { /* where no visitor comes, nobody else does this */
        available_sweep(h, false, "malloc");
        s = available_take(h, c, false);
    }
    return s != NULL ? s : slab_new(h, c);
}

static struct slice* slab_next(struct heap* h, unsigned c, bool first) {
    struct slice* s = slab_another(h, c, first);
    if (s != NULL) return s;
    /* No memory: what this thread still holds for others and for itself may make room. */
    heap_collect();
    s = slab_new(h, c);
    if (s == NULL) s = available_take(h, c, false);
    return s != NULL ? s : available_take_scarce(h, c);
}

WEIR_FN void refill_chores(struct heap* h) {
    if (!chores_are_due(h)) return;
    outbox_flush_all(h);
    if ((h->slow_calls & 1023) != 0) return;
    early_forget();
    release_recheck();
    active_sweep(h);
    walks_learn(h);
    medium_age(h);
    large_age(h);
}

/* The active slab has nothing free that is resident. `busy`: slabs met whose pages were being purged. */
static bool refill_beyond(struct heap* h, unsigned c, struct slice* s, unsigned* busy) {
    struct slice* other = available_take(h, c, true);
    if (other != NULL) {
        active_drop(h, c);
        available_put(h, s, "malloc");
        h->active[c] = other;
        return slab_fill_bin(h, c, other);
    }
    bool early = slab_goes_early(h, c, s);
    if (!early && pages_fill_bin(h, c, s, true)) return true;
    active_drop(h, c);
    if (!early && s->built < slab_class(s)->capacity) {
        /* What it has left is being purged just now: it is no full slab, but another one serves. The second
         * time a new one, lest the two be tried in turns for as long as that takes. */
        h->active[c] = (*busy)++ == 0 ? slab_next(h, c, false) : slab_new(h, c);
        available_put(h, s, "malloc");
        return false;
    }
    if (early) early_begin(s);
    exposure_lose(h, s);
    if (slab_disown(s, given_enough(slab_class(s), s->counts))) return false;
    early_end(s);
    exposure_gain(h, s);
    h->active[c] = s;
    return false;
}

/* Whether the active slab, of a class that others free, is used up but for a few blocks that they freed. */
static WEIR_NOINLINE bool slab_has_few(const struct heap* h, const struct slice* s) {
    const uint64_t counts =
        load_relaxed(&s->counts); /* relaxed: where it is listed, a visitor may change them */
    if (full_is_on() || counts_direct(counts) || (s->flags & (SLICE_KEPT | SLICE_CLOSED)) != 0) return false;
    if (counts_used(counts) != slab_class(s)->capacity || exposure_is_doubted(h, s)) return false;
    const uint32_t waiting = slab_waiting(s);
    return waiting != 0 && waiting < given_enough(slab_class(s), counts);
}

/* Others free the blocks, and are just freeing these: who took what is there would be back for the next few
 * soon, and the two would wait for each other's lines of the cache. The slab is given up as a full one is, if
 * there is another one; what waits is part of what it is to have before anybody takes it. */
static WEIR_NOINLINE struct slice* active_changes(struct heap* h, unsigned c, struct slice* s) {
    available_unlist_active(h, s);
    if (!slab_has_few(h, s)) return s;
    struct slice* other = slab_another(h, c, false);
    if (other == NULL) return s;
    active_drop(h, c);
    exposure_lose(h, s);
    if (!slab_disown(s, given_enough(slab_class(s), s->counts))) {
        exposure_gain(h, s);
        available_put(h, s, "malloc");
    }
    h->active[c] = other;
    return other;
}

static bool refill_from(struct heap* h, unsigned c) {
    unsigned busy = 0;
    for (bool first = true;; first = false) {
        struct slice* s = h->active[c];
        if (s == NULL && (s = h->active[c] = slab_next(h, c, first)) == NULL) return false;
        if (first && heap_is_passed(h, c) && slab_has_few(h, s)) s = active_changes(h, c, s);
        if (slab_fill_bin(h, c, s) || refill_beyond(h, c, s, &busy)) return true;
    }
}

/* Whether the list of the active slab, of `count` blocks, may become the bin's as it is: no check is due, no
 * allocation on the way to its end is sampled, and it is not to be packed or to be joined by more. */
static bool list_serves(struct heap* h, unsigned c, struct slice* s, uint32_t count) {
    if (count > s->built || slab_forked) return false;
    if (exposure_is_doubted(h, s)) return false;
    if (heap_is_passed(h, c) && heaps_are_many()) return false;
    if (walk_is_due(h)) return false;
    if (count >= h->guard_left || h->guard_due != 0) return false;
    const bool sparse = exposure_is_sparse(h, s);
    if ((sparse && exposure_packs(h)) || list_stays_short(h, s, count)) return false;
    if (sparse) exposure_met(h, s);
    return true;
}

/* What others freed of the active slab becomes its list where it has none. False: it has one, and more came
 * in, which is to be joined to it; or these are few. With the heap's lock. */
static bool turn_collects(struct heap* h, unsigned c, struct slice* s, bool own) {
    if (!slab_has_remote(s)) return true; /* what comes in now is for the next time */
    if (heap_is_passed(h, c) && slab_has_few(h, s)) return false;
    if (s->free != NULL || tag_is_on()) return false;
    class_learn(h, c, s, own);
    h->left[c / 64] |= 1ull << c % 64; /* that was learnt, should the list not serve */
    slab_collect(s, "malloc");
    return true;
}

/* The list of slab s, which serves, leaves it: `count` blocks. With the heap's lock. */
static block_t* list_turn(struct heap* h, struct slice* s, uint32_t count) {
    block_t* first = s->free;
    uint32_t used = slab_used(s);
    s->free = NULL;
    if (heap_is_passed(h, s->size_class)) remote_bits_begin(s);
    exposure_turn(h, s, slice_pages(s), used + count);
    if (direct_may(h, s, used, count)) direct_begin(h, s, used + count, count);
    return first;
}

/* The best of the available slabs, where its list serves and no visitor's work waits on it; NULL: it does
 * not. With the heap's lock. */
static struct slice* turn_next(struct heap* h, unsigned c) {
    struct slice* s = available_best(h, c);
    if (s == NULL || slab_has_remote(s)) return NULL; /* as in turn_collects */
    const struct slice_pages* r = slice_pages(s);
    uint32_t count = slab_unsorted(s);
    if ((r->taken | r->ahead) != 0 || count < class_enough(slab_class(s))) return NULL;
    return list_serves(h, c, s, count) ? s : NULL;
}

/* All blocks of the active slab s are in use: another one takes its place. With the heap's lock. */
static void turn_changes(struct heap* h, unsigned c, struct slice* s, struct slice* other) {
    available_change(h, s, other);
    available_list_active(other);
    h->passed[c / 64] &= ~(1ull << c % 64); /* as class_learn has it: the thread freed these itself */
    h->active[c] = other;
}

/* Whether the active slab has nothing left and can get nothing: all that it has room for is in use. */
static bool slab_is_used_up(const struct slice* s) {
    return slab_used(s) == slab_class(s)->capacity && (s->flags & (SLICE_KEPT | SLICE_CLOSED)) == 0;
}

/* The list of the active slab, for which refill_may_turn, or of one that takes its place, becomes the bin's.
 * False: nothing was done. */
static bool bin_turn(struct heap* h, unsigned c) {
    struct slice* s = h->active[c];
    os_lock_take(&h->lock);
    bool own = frees_own(s);
    direct_end(h, s);
    const struct slice_pages* r = slice_pages(s);
    bool whole = (r->taken | r->ahead) == 0 && turn_collects(h, c, s, own);
    bool serves = whole && s->free != NULL && list_serves(h, c, s, slab_unsorted(s));
    struct slice* other = whole && !serves && slab_is_used_up(s) ? turn_next(h, c) : NULL;
    if (other != NULL) {
        weir_assert(s->free == NULL);
        turn_changes(h, c, s, other);
        s = other;
        serves = true;
    }
    uint32_t count = slab_unsorted(s);
    h->turns_unchecked += serves; /* first: whether the slab may be direct depends on it */
    block_t* first = serves ? list_turn(h, s, count) : NULL;
    os_lock_give(&h->lock);
    if (!serves) return false;
    h->grown[c] /= 2;
    h->left[c / 64] &= ~(1ull << c % 64);
    h->guard_left -= count;
    h->bins[c].head = first;
    h->bins[c].base = slice_address(s);
    store_relaxed(&h->handed_out, h->handed_out + count);
    return true;
}

WEIR_FN bool refill_turn(struct heap* h, unsigned c) {
    if ((h->slow_calls & 15) == 15 || tag_is_on()) return false;
    if (heap_tick_hook != NULL) {
        heap_tick_hook();
        if (!refill_may_turn(h, c)) return false; /* it may have allocated */
    }
    heap_enter(h);
    bool turned = bin_turn(h, c);
    if (turned) store_relaxed(&h->slow_calls, h->slow_calls + 1);
    heap_leave(h);
    return turned;
}

WEIR_FN bool refill(struct heap* h, unsigned c) {
    store_relaxed(&h->slow_calls, h->slow_calls + 1);
    if (heap_tick_hook != NULL) heap_tick_hook();
    if (tag_is_on()) tag_fault_resume();
    heap_enter(h);
    refill_chores(h);
    bool filled = refill_from(h, c);
    heap_leave(h);
    release_poke();
    return filled;
}

WEIR_FN void bin_return(struct heap* h, unsigned c, const char* call) {
    struct slice* s = h->active[c];
    block_t* first = h->bins[c].head;
    h->bins[c] = (struct bin){NULL, SLICE_BYTES};
    if (s != NULL) available_unlist_active(h, s);
    if (first == NULL) return;
    guard_forget(h, c);
    uint32_t count = 0;
    block_t* last = NULL;
    for (block_t* p = first; p != NULL; p = p->next) {
        if (count == slab_used(s) || !slab_holds_block(s, p)) {
            slab_walk(s, first, count + (slab_holds_block(s, p) ? 0 : 1), call);
            return; /* reported; the blocks stay counted as in use */
        }
        last = p;
        count++;
    }
    last->next = s->free;
    s->free = first;
    slab_recount_used(s, slab_used(s) - count);
    store_relaxed(&h->handed_out, h->handed_out - count);
}

/* All blocks of a slab that is not active came back: it goes, its list checked when its turn has come. */
static void slab_drained(struct heap* h, struct slice* s, block_t* first) {
    uint32_t count = slab_list_count(s, first, slab_unsorted(s));
    s->free = NULL;
    if (count == 0 || list_check(h, s, first, count, "free")) available_release(h, s);
}

/* The countdown ended: whether blocks are still in use, so that nothing more than that is to be seen to. */
static bool slab_lives_on(struct heap* h, struct slice* s) {
    if (s->until != 0) return true; /* a fork's child: all blocks count as in use; see slab_forget_all */
    if (s->rest == 0) return false;
    slab_collect(s, "free"); /* while the countdown is at its end nobody steals the slab */
    if (slab_used(s) == 0) return false;
    bool scarce = s->listed == LISTED_SCARCE;
    if (scarce) available_relist(h, s);
    if (scarce && exposure_rearm(h, s)) return true;
    exposure_due(h, s);
    if (scarce) available_relist(h, s); /* pages may have become holes */
    return true;
}

/* The active slab of class c, of whose blocks none or few are in use, is kept. False: only so much is kept,
 * and it would be more. */
static bool kept_begin(struct heap* h, unsigned c, struct slice* s) {
    h->grown[c] = 0;
    if (slab_is_kept(s)) return true;
    if (!heap_may_keep(h, s)) return false;
    s->flags |= SLICE_KEPT;
    h->kept[c / 64] |= 1ull << c % 64;
    h->kept_bytes += slab_built_bytes(s);
    return true;
}

/* All blocks of the active slab came back. It stays, its blocks back in the bin, so that a lone block that
 * comes and goes costs next to nothing; but only so much memory stays for nothing. Past that, it stays
 * without its memory. True: it was kept with it, and nothing else went. */
static bool slab_keep(struct heap* h, unsigned c, struct slice* s) {
    available_unlist_active(h, s);
    bool at_once = kept_begin(h, c, s);
    if (!at_once) {
        kept_release(h);
        if (!kept_begin(h, c, s)) {
            uint32_t count = slab_list_count(s, s->free, slab_unsorted(s));
            block_t* first = s->free;
            s->free = NULL;
            if (count == 0 || list_check(h, s, first, count, "free")) active_close(h, c);
            return false;
        }
    }
    if (full_is_on()) return at_once;
    if (h->kept_bytes < heap_kept_max(h)) {
        h->kept_bytes -= slab_built_bytes(s);
        slab_widen(h, s);
        h->kept_bytes += slab_built_bytes(s);
    }
    slab_turn_over(h, c, s, true, "free");
    return at_once;
}

/* A thread that frees for some time and allocates nothing needs no bins: what waits there keeps whole pages
 * in use, and slabs from being empty. Direct slabs' are looked at by themselves. */
static WEIR_NOINLINE void bins_settle(struct heap* h) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        struct slice* s = h->active[c];
        if (s == NULL || (s->flags & (SLICE_KEPT | SLICE_CLOSED)) != 0 || slab_is_direct(s)) continue;
        bin_return(h, c, "free");
        if (slab_used(s) != 0)
            exposure_arm_active(h, s, slab_used(s));
        else
            (void)slab_keep(h, c, s);
    }
}

/* A slab has drained. Once for each such time the bins go. */
static void drained_count(struct heap* h) {
    if (h->settled_calls != h->slow_calls) h->settled_frees = 0;
    h->settled_calls = h->slow_calls;
    if (++h->settled_frees == FREES_ALONE && !full_is_on()) bins_settle(h);
}

/* A look at a direct slab, with `count` blocks in its bin, found something: it stays direct, or its frees go
 * to its own list from now on, where late checks see them; where its bin is not to stay, all that is in it
 * does too. */
static WEIR_NOINLINE void direct_due(struct heap* h, struct slice* s, enum direct_state state,
                                     uint32_t count) {
    unsigned c = s->size_class;
    available_unlist_active(h, s);
    if (count > slab_used(s)) count = slab_used(s); /* what is in the bin twice counts twice */
    uint32_t out = slab_used(s) - count;
    bool stays = state == DIRECT_IN_USE;
    if (state == DIRECT_FEW) stays = (out != 0 || !turn_is_checked(h, count)) && kept_begin(h, c, s);
    if (stays) {
        if (direct_may(h, s, out, count))
            direct_begin(h, s, slab_used(s), count);
        else
            exposure_arm_active(h, s, slab_used(s));
        return;
    }
    if (slab_is_kept(s)) kept_end(h, c, s);
    bin_list(h, c, s, count, "free");
    if (slab_used(s) != 0) {
        exposure_due(h, s);
        return;
    }
    (void)slab_keep(h, c, s);
    drained_count(h);
}

/* The countdown of a slab ended whose list, that starts with p, is its own. True: there is nothing for others
 * to see to. */
static bool list_due(struct heap* h, struct slice* s, block_t* p) {
    weir_assert(s->free == p);
    bool kept = false;
    bool held = available_hold(h, s);
    bool whole = s->rest == 0; /* the list starts with p, still, if it has any block */
    bool drained = !slab_lives_on(h, s);
    if (drained) {
        if (h->active[s->size_class] == s)
            kept = slab_keep(h, s->size_class, s);
        else
            slab_drained(h, s, whole ? p : s->free);
    }
    if (held) os_lock_give(&h->lock);
    if (drained) drained_count(h);
    return kept;
}

WEIR_FN void heap_free_last(block_t* p, struct slice* s) {
    /* Not the thread's word: in a fork's child the heap may be set aside while its own call goes on. */
    struct heap* h = owner_heap(load_relaxed(&s->owner));
    bool direct = slab_is_direct(s);
    uint32_t count = 0;
    enum direct_state state = direct ? direct_look(h, s, &count) : DIRECT_IN_USE;
    if (state == DIRECT_GOES_ON) return;
    heap_enter(h);
    bool kept = false;
    if (direct)
        direct_due(h, s, state, count);
    else
        kept = list_due(h, s, p);
    heap_leave(h);
    if (!kept) release_poke();
}
