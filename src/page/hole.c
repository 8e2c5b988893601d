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

WEIR_FN void hole_start(const struct slice* s, uint32_t mask, bool clean) {
    /* Release: a pass that claims these finds the kind that came before. */
    store_release(&slice_pages(s)->state, mask | (clean ? (uint64_t)mask << PAGES_CLEAN_SHIFT : 0));
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
    uint32_t refaulted = (uint32_t)(got & hole_clean(state) & state >> PAGES_OLD_SHIFT);
    if (refaulted != 0) release_refaulted((size_t)__builtin_popcount(refaulted) << page_shift);
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
