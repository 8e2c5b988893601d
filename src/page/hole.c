/* hole.c: see hole.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "page/hole.h"

#include "page/release.h"

WEIR_VAR uint64_t hole_pending;

static struct slice_pages* marked; /* Sync: atomic; pushed by anybody, taken whole under the page lock */
static struct slice_pages* taken;  /* Sync: the page lock */

static void push(struct slice_pages* p) {
    struct slice_pages* head = load_relaxed(&marked); /* relaxed: the compare below decides */
    do {
        p->mark_next = head;
        /* Release: publishes the link. */
    } while (!cas_acq_rel(&marked, &head, p));
}

WEIR_FN void hole_mark(const struct slice* s) {
    struct slice_pages* p = slice_pages(s);
    /* Release: the pass, which clears the mark before it reads the state, sees what was added before. */
    if (__atomic_exchange_n(&p->marked, (uint8_t)1, __ATOMIC_ACQ_REL) != 0) return;
    p->row = s->region;
    push(p);
}

WEIR_FN void hole_came(const struct slice* s, uint32_t mask) {
    add_relaxed(&hole_pending, (uint64_t)__builtin_popcount(mask) << page_shift);
    hole_mark(s);
}

WEIR_FN bool hole_hide(const struct slice* s) {
    uint64_t* word = &slice_pages(s)->state;
    uint64_t state = load_relaxed(word); /* relaxed: the compare below decides */
    do {
        if (hole_busy(state) != 0) return false;
    } while (!cas_acq_rel(word, &state, hole_known(state))); /* acquire: the purge is over */
    return true;
}

static void count_refaulted(size_t pages) {
    if (pages != 0) release_refaulted(pages << page_shift);
}

WEIR_FN void hole_show(const struct slice* s, uint32_t mask) {
    uint64_t* word = &slice_pages(s)->state;
    uint64_t state = load_relaxed(word); /* relaxed: the compare below decides */
    uint64_t clean;
    do {
        clean = mask & hole_clean(state);
        /* Release: a pass that sees holes finds the kind that came before. */
    } while (!cas_acq_rel(word, &state, hole_known(state | clean) | clean));
    count_refaulted((size_t)__builtin_popcountll(state >> PAGES_OLD_SHIFT & ~(uint64_t)mask));
    if (clean != mask) hole_add(s, mask & ~(uint32_t)clean);
}

WEIR_FN bool hole_to_block(const struct slice* s, size_t slices, const uint64_t* behind) {
    struct slice_pages* p = slice_pages(s);
    size_t purged = 0;
    bool zeroed = true;
    uint64_t last = 0;
    for (size_t i = 0; i < slices; i++) {
        purged += (size_t)__builtin_popcountll(last >> PAGES_OLD_SHIFT);
        last = load_relaxed(&p[i].state);
        zeroed &= hole_clean(last) == hole_all();
        if (last != 0) store_relaxed(&p[i].state, (uint64_t)0);
    }
    if (behind != NULL) purged += (size_t)__builtin_popcountll(last >> PAGES_OLD_SHIFT);
    store_relaxed(&p->state, behind != NULL ? *behind : last);
    count_refaulted(purged);
    return zeroed;
}

WEIR_FN void hole_from_block(const struct slice* s) {
    struct slice_pages* p = slice_pages(s);
    uint64_t state = load_relaxed(&p->state);
    store_relaxed(&p->state, (uint64_t)0);
    store_relaxed(&p[s->span_slices - 1].state, state);
}

WEIR_FN void hole_publish(const struct slice* s) {
    uint32_t dirty = hole_dirty(load_relaxed(&slice_pages(s)->state));
    if (dirty != 0) hole_came(s, dirty);
}

WEIR_FN void hole_set(const struct slice* s, uint32_t mask) {
    /* Release: the pass sees the owner's last stores to the pages before it purges them. */
    (void)__atomic_fetch_or(&slice_pages(s)->state, (uint64_t)mask, __ATOMIC_RELEASE);
}

WEIR_FN void hole_add(const struct slice* s, uint32_t mask) {
    hole_set(s, mask);
    hole_came(s, mask);
}

WEIR_FN uint32_t hole_take(const struct slice* s, uint32_t mask) {
    struct slice_pages* p = slice_pages(s);
    uint64_t state = load_relaxed(&p->state); /* relaxed: the compare below decides */
    uint64_t got;
    uint64_t wanted;
    do {
        got = mask & hole_of(state) & ~hole_busy(state);
        wanted = state & ~(got | got << PAGES_CLEAN_SHIFT | got << PAGES_OLD_SHIFT);
    } while (got != 0 && !cas_acq_rel(&p->state, &state, wanted)); /* acquire: the purge is over */
    /* A clean hole that is not old was never resident. */
    uint64_t refaulted = got & hole_clean(state) & state >> PAGES_OLD_SHIFT;
    if (refaulted != 0) count_refaulted((size_t)__builtin_popcountll(refaulted));
    return (uint32_t)got;
}

WEIR_FN void hole_pass_start(void) {
    struct slice_pages* p = xchg_acquire(&marked, NULL); /* acquire: pairs with push */
    if (taken == NULL) {
        taken = p;
        return;
    }
    /* A pass was cut off by a fork: its rest goes first. */
    struct slice_pages* last = taken;
    while (last->mark_next != NULL) last = last->mark_next;
    last->mark_next = p;
}

static bool has_holes(const struct slice* s) {
    uint8_t kind = load_acquire(&s->kind); /* acquire: pairs with whoever made it a slab or a block */
    return kind >= SLICE_LARGE;
}

WEIR_FN struct slice* hole_pass_next(void) {
    while (taken != NULL) {
        struct slice_pages* p = taken;
        taken = p->mark_next;
        struct slice* s = slice_of_pages(&regions[p->row], p);
        (void)__atomic_exchange_n(&p->marked, (uint8_t)0, __ATOMIC_ACQ_REL); /* pairs with hole_mark */
        if (has_holes(s)) return s;
    }
    return NULL;
}

static struct slice_pages* without_region(struct slice_pages* list, uint16_t row) {
    struct slice_pages* kept = NULL;
    struct slice_pages** end = &kept;
    for (struct slice_pages* p = list; p != NULL; p = p->mark_next) {
        if (p->row == row) continue;
        *end = p;
        end = &p->mark_next;
    }
    *end = NULL;
    return kept;
}

WEIR_FN void hole_forget_region(const struct region* r) {
    uint16_t row = (uint16_t)(r - regions);
    taken = without_region(taken, row);
    struct slice_pages* list = without_region(xchg_acquire(&marked, NULL), row);
    while (list != NULL) {
        struct slice_pages* next = list->mark_next;
        push(list);
        list = next;
    }
}
