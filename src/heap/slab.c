/* slab.c: see slab.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/slab.h"

#include "core/report.h"
#include "heap/available.h"
#include "heap/full.h"
#include "heap/medium.h"
#include "heap/remote_bits.h"
#include "heap/spare.h"
#include "heap/tagged.h"
#include "page/hole.h"
#include "page/span.h"

/* Memory that nobody has comes last: freed medium blocks may wait for the next of their class all over chunks
 * of which nothing is in use. Where heaps are small, or that is a small part of what is in use, it is left to
 * them. */
static struct slice* slab_span(struct heap* h, const struct size_class* k, bool first, bool* fresh) {
    enum { yields_from = 16 << 20, yields_part = 8, enough_part = 16 };
    uint64_t live = load_relaxed(&span_totals.live);
    if (!first && live >= yields_from && load_relaxed(&span_totals.dirty) < live / enough_part)
        medium_yield(h, live / yields_part, live / enough_part);
    return span_alloc_slab(k->slices, !first, fresh);
}

WEIR_FN struct slice* slab_make(struct heap* h, unsigned c) {
    const struct size_class* k = &size_classes[c];
    struct slice* s = spare_take_slab(h, k->slices);
    bool spare = s != NULL;
    if (tag_is_on() && spare && s->size_class != c) tagged_end(s);
    /* Of its first slab of a class a thread needs a page or two, for all anybody knows: the rest would keep
     * memory that others could use. */
    bool first = (h->opened[c / 64] >> (c % 64) & 1) == 0;
    bool fresh;
    if (s == NULL) s = slab_span(h, k, first, &fresh);
    if (s == NULL) return NULL;
    h->opened[c / 64] |= 1ull << (c % 64);
    s->free = NULL;
    /* Atomic: a thread that gave a block of the memory's earlier life may still be looking. */
    store_relaxed(&s->counts, (uint64_t)0);
    store_relaxed(&s->remote, (uint64_t)0);
    s->push_at = &s->free;
    store_relaxed(&s->listed, (uint8_t)0);
    store_relaxed(&s->size_class, (uint8_t)c); /* atomic: for blocks_prefetch */
    store_relaxed(&s->small_class, (int8_t)(c < SMALL_CLASSES ? (int)c : -1)); /* atomic: for huge_grow */
    struct slice_pages* pages = slice_pages(s);
    for (uint32_t i = 0; i < k->slices; i++) {
        for (unsigned p = 0; p < SLICE_PAGES_MAX; p++) pages[i].head[p] = pages[i].used[p] = 0;
        pages[i].cross = pages[i].listed = 0;
    }
    span_mark_rest(s);
    pages->charged = pages->taken = 0;
    /* Atomic, as `counts`: a visitor may be looking. */
    store_relaxed(&pages->sorted, (uint16_t)0);
    store_relaxed(&pages->ahead, (uint16_t)0);
    store_relaxed(&pages->least, (uint8_t)(class_counts_frees(k) ? UINT8_MAX : 0)); /* all are holes */
    store_release(&s->kind, (uint8_t)SLICE_SLAB); /* publishes the record to the census and the pass */
    store_release(&s->owner, h->owner_word);      /* publishes the record to available_steal */
    if (!spare)                                   /* whose pages were holes already */
        for (uint32_t i = 0; i < k->slices; i++) hole_publish(s + i);
    return s;
}

WEIR_FN void slab_release(struct slice* s) {
    weir_assert(!remote_bits_are_used(load_relaxed(&s->remote)));
    store_relaxed(&s->owner, NULL);
    span_free_paged(s);
}

WEIR_VAR bool slab_forked;

WEIR_FN WEIR_COLD uint32_t slab_recount_list(struct slice* s, const block_t* first, uint32_t count) {
    uint32_t n = 0;
    for (const block_t* p = first; p != NULL && n <= count && slab_holds_block(s, p); p = p->next) n++;
    if (n != count + 1 || slab_used(s) == 0) return count;
    slab_recount_used(s, slab_used(s) - 1);
    return n;
}

WEIR_INLINE bool holds_block(const struct slice* s, const void* p) {
    uint32_t block;
    return class_finds_block(slab_class(s), (uintptr_t)p - slice_address(s), &block);
}

WEIR_FN bool slab_holds_block(const struct slice* s, const void* p) { return holds_block(s, p); }

static bool slab_contains(const struct slice* s, const void* p) {
    return arch_distance_below((uintptr_t)p - slice_address(s), (size_t)s->span_slices << SLICE_SHIFT);
}

/* The first block that a list of `count` links meets a second time; the list is known to have one. */
static WEIR_COLD block_t* list_repeated(block_t* first, uint32_t count) {
    uint32_t i = 0;
    for (block_t* p = first; i < count; p = p->next, i++) {
        block_t* q = p->next;
        for (uint32_t j = i + 1; j <= count && q != NULL; q = q->next, j++)
            if (q == p) return p;
    }
    return first;
}

/* In a heap that caches do not hold each block that is walked is a miss: half as many lists with each
 * doubling, down to an eighth. Who wants all walked has all. */
WEIR_FN void walks_learn(struct heap* h) {
    enum { cached = 8 << 20, halvings_max = 3 };
    uint32_t halvings = 0;
    for (uint64_t bytes = load_relaxed(&h->slab_bytes) / cached; bytes > 1; bytes /= 2) halvings++;
    if (halvings > halvings_max) halvings = halvings_max;
    h->walk_halvings = core_options.check_every == 1 ? 0 : halvings;
}

WEIR_FN block_t* slab_walk(const struct slice* s, block_t* first, uint32_t count, const char* call) {
    block_t* last = NULL;
    block_t* p = first;
    for (uint32_t i = 0; i < count; i++) {
        if (weir_unlikely(!holds_block(s, p))) {
            if (p != NULL && slab_contains(s, p))
                core_report("invalid-free", REPORT_INTERIOR, p, call);
            else
                core_report("corrupt-list", REPORT_WRITTEN, last != NULL ? last : p, call);
            return NULL;
        }
        last = p;
        p = p->next;
    }
    if (weir_likely(p == NULL)) return last;
    if (slab_holds_block(s, p))
        core_report("double-free", REPORT_FREED, list_repeated(first, count), call);
    else
        core_report("corrupt-list", REPORT_WRITTEN, last, call);
    return NULL;
}

WEIR_FN void slab_forget_free(struct slice* s) {
    uint32_t used = s->built - slice_pages(s)->sorted;
    s->free = NULL;
    slab_count(s, used, used, s->built);
}

WEIR_FN bool slab_check_list(struct slice* s, const char* call) {
    uintptr_t start = slice_address(s);
    size_t last = ((size_t)s->span_slices << SLICE_SHIFT) - GRANULE;
    uint32_t count = slab_list_count(s, s->free, slab_unsorted(s));
    block_t* first = s->free;
    block_t* p = first;
    uint32_t left = count;
    for (; left != 0 && arch_distance_below((uintptr_t)p - start, last + 1); left--) p = p->next;
    if (weir_likely(left == 0 && p == NULL)) return true;
    slab_forget_free(s); /* first: a handler of the abort may allocate */
    slab_walk(s, first, count, call);
    return false;
}

/* So many blocks that others freed are on the owner's list from now on. */
WEIR_INLINE void remote_came(struct slice* s, uint32_t count) {
    slab_recount_used(s, slab_used(s) - count);
    struct heap* h = heap_self();
    if (h != &heap_empty)
        store_relaxed(&h->remote_frees, h->remote_frees + count);
    else
        add_relaxed(&heap_totals.remote_frees, count);
}

/* What others noted in bits becomes part of the owner's list. */
static void noted_collect(struct slice* s, const char* call) {
    uint32_t count;
    block_t* last;
    block_t* first = remote_bits_take(s, false, &last, &count);
    if (count > slab_used(s)) {
        core_report("double-free", REPORT_FREED, first, call);
    } else if (count != 0) {
        last->next = s->free;
        s->free = first;
        remote_came(s, count);
    }
}

/* The remote list, as its word was; `doubt`: REMOTE_DOUBTED or 0. */
static void list_collect(struct slice* s, uint64_t word, uint64_t doubt, const char* call) {
    uint32_t count = remote_count(word);
    block_t* first = remote_first(s, word);
    block_t* last = remote_last(s, word);
    if (count > slab_used(s)) {
        core_report("double-free", REPORT_FREED, first, call);
        return;
    }
    if (weir_unlikely(((word | doubt) & REMOTE_DOUBTED) != 0)) {
        last = slab_walk(s, first, count, call);
        if (last == NULL) return; /* reported; the blocks stay counted as in use */
    }
    if (s->free != NULL) last->next = s->free;
    s->free = first;
    remote_came(s, count);
}

static WEIR_NOINLINE void remote_collect(struct slice* s, uint64_t doubt, const char* call) {
    uint64_t word = load_acquire(&s->remote); /* acquire: region_bits; the exchange below decides */
    if (remote_count(word) != 0) {
        /* Acquire: pairs with the release of slab_push_remote, which published the links. That others set
         * bits the owner alone changes. */
        word = xchg_acquire(&s->remote, word & REMOTE_KEPT);
        list_collect(s, word, doubt, call);
    }
    if (slab_has_noted(s, word)) noted_collect(s, call);
}

WEIR_FN uint32_t slab_waiting(const struct slice* s) {
    return remote_count(load_relaxed(&s->remote)) + remote_bits_count(s);
}

/* What a look misses is found next time. With tags, or checks=full, every list is followed. */
WEIR_FN void slab_collect(struct slice* s, const char* call) {
    if (slab_has_remote(s)) remote_collect(s, tag_is_on() || full_is_on() ? REMOTE_DOUBTED : 0, call);
}

WEIR_FN void slab_collect_doubted(struct slice* s, const char* call) {
    if (slab_has_remote(s)) remote_collect(s, REMOTE_DOUBTED, call);
}

WEIR_FN bool slab_disown(struct slice* s, uint32_t enough) {
    remote_bits_end(s);
    uint64_t word = load_relaxed(&s->remote); /* relaxed: the compare below decides */
    void* owner = load_relaxed(&s->owner);
    store_relaxed(&s->owner, NULL);
    /* Release: publishes the record to the thread that claims it. */
    while (remote_count(word) < enough)
        if (cas_acq_rel(&s->remote, &word, word | REMOTE_UNOWNED)) return true;
    store_relaxed(&s->owner, owner);
    return false;
}

WEIR_FN bool slab_leave(struct slice* s) {
    uint64_t word = load_relaxed(&s->remote); /* relaxed: the compare below decides */
    uint32_t used = slab_used(s);
    /* Release: publishes the record to the thread that claims it. Those who gave the blocks that wait
     * published their links to whoever reads this word: a compare-and-swap goes on with what they released.
     */
    while (!cas_acq_rel(&s->remote, &word, word | REMOTE_UNOWNED)) {
    }
    return remote_count(word) == used;
}

WEIR_FN void slab_nudge(struct slice* s) {
    void* owner = load_seq_cst(&s->owner); /* after what the caller did to have blocks seen */
    if (owner == NULL || ((uintptr_t)owner & OWNER_NUDGED) != 0) return;
    /* Fails where the slab changed hands meanwhile; whoever took it took the blocks in. */
    cas_acq_rel(&s->owner, &owner, (void*)((uintptr_t)owner | OWNER_NUDGED));
}

/* Returns the remote word as it was. `doubt`: as that of slab_push_remote. `patient`: an unowned slab stays
 * so until enough blocks wait, *enough. */
WEIR_INLINE uint64_t push_remote(struct slice* s, block_t* first, block_t* last, uint32_t count,
                                 uint64_t doubt, bool patient, uint32_t* enough) {
    uint64_t first_word = remote_first_word(s, first);
    uint64_t last_word = remote_first_word(s, last);
    uint64_t word =
        load_acquire(&s->remote); /* acquire, here and below: the counts are the word's, or later */
    uint64_t wanted;
    do {
        *enough = 0;
        if (weir_unlikely((word & REMOTE_OVER) != 0)) return word & ~REMOTE_UNOWNED; /* dropped */
        last->next = remote_beside(first, first_word, word);
        uint32_t all = remote_count(word) + count;
        *enough = patient ? given_enough(slab_class(s), load_relaxed(&s->counts)) : 0;
        wanted = remote_joined(word, first_word, last_word, count) | doubt;
        if (!patient || given_passes(all, count, *enough)) wanted &= ~REMOTE_UNOWNED;
        /* Release: publishes the links to slab_collect. Acquire: if the slab was unowned, its record. */
    } while (!cas_acq_rel(&s->remote, &word, wanted));
    if ((word & (REMOTE_UNOWNED | REMOTE_FIRST)) == 0) slab_nudge(s);
    return word;
}

WEIR_FN bool slab_push_remote(struct slice* s, block_t* first, block_t* last, uint32_t count,
                              uint64_t doubt) {
    const struct records held = records_hold(s);
    uint32_t enough;
    uint64_t word = push_remote(s, first, last, count, doubt, false, &enough);
    bool mine = (word & REMOTE_UNOWNED) != 0;
    if (!mine) available_steal(s);
    records_let(held);
    return mine;
}

/* All blocks of a slab wait on its remote list. Of one that was unowned when the last one came: its counts
 * stay until somebody claims it, and of whatever it is by then an unowned slab is anybody's to claim. */
static bool drained_claim(struct slice* s, bool was_unowned) {
    if (was_unowned) return slab_claim(s);
    available_steal(s);
    return false;
}

/* Of so many of `all` blocks that wait others know, and of so many more with the last `count`. */
WEIR_INLINE uint32_t given_told(uint32_t all, uint32_t enough) {
    const uint32_t steps = all - all % GIVEN_STEP;
    return all >= enough && steps < enough ? enough : steps;
}
WEIR_INLINE uint32_t given_untold(uint32_t all, uint32_t count, uint32_t enough) {
    return given_told(all, enough) - given_told(all - count, enough);
}

WEIR_FN uint32_t slab_given(struct slice* s, uint32_t all) {
    if (all == 1) slab_nudge(s);
    uint64_t counts = load_acquire(&s->counts); /* acquire: as in slab_give_remote */
    uint32_t part = counts_built(counts) / GIVEN_PART;
    if (counts_used(counts) == all + remote_ahead(s, load_relaxed(&s->remote))) available_steal(s);
    return given_untold(all, 1, part != 0 ? part : 1);
}

WEIR_FN bool slab_give_remote(struct slice* s, block_t* first, block_t* last, uint32_t count, uint64_t doubt,
                              uint32_t* waiting) {
    uint32_t enough;
    const struct records held = records_hold(s);
    uint64_t word = push_remote(s, first, last, count, doubt, true, &enough);
    bool was_unowned = (word & REMOTE_UNOWNED) != 0;
    uint32_t all = remote_count(word) + count;
    *waiting = given_untold(all, count, enough);
    bool mine = was_unowned && given_passes(all, count, enough);
    /* Acquire: of an unowned slab, the compare above read what its owner released when it gave the slab up.
     */
    if (!mine && weir_unlikely(counts_used(load_acquire(&s->counts)) == all + remote_ahead(s, word)))
        mine = drained_claim(s, was_unowned);
    records_let(held);
    return mine;
}

WEIR_FN bool slab_left_given(struct slice* s, uint32_t all) {
    return counts_used(load_acquire(&s->counts)) == all && slab_claim(s); /* as in slab_give_remote */
}

WEIR_FN bool slab_claim(struct slice* s) {
    uint64_t word = load_relaxed(&s->remote); /* relaxed: the compare below decides */
    while ((word & REMOTE_UNOWNED) != 0)
        if (cas_acq_rel(&s->remote, &word, word & ~REMOTE_UNOWNED)) return true; /* acquire: the record */
    return false;
}

/* The heads are also looked at without the list's lock, to skip taking it. */
WEIR_FN void slab_list_push(struct slice** head, struct slice* s) {
    s->prev = NULL;
    s->next = *head;
    if (s->next != NULL) s->next->prev = s;
    store_relaxed(head, s);
}

WEIR_FN void slab_list_remove(struct slice** head, struct slice* s) {
    if (s->next != NULL) s->next->prev = s->prev;
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        store_relaxed(head, s->next);
}
