/* visit.c: see visit.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/visit.h"

#include "core/options.h"
#include "heap/available.h"
#include "heap/depot.h"
#include "heap/large.h"
#include "heap/medium.h"
#include "heap/orphan.h"
#include "heap/registry.h"
#include "heap/slab.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"

WEIR_FN void visit_owed(struct heap* h, size_t bytes) {
    enum { step = 65536 };
    if (h != &heap_empty && (h->owed += bytes) < step) return;
    add_relaxed(&release_owed, (uint64_t)(h != &heap_empty ? h->owed : bytes));
    if (h != &heap_empty) h->owed = 0;
}

/* Which heaps needed no list since this was last asked. */
static void registry_look(void) {
    for (struct heap* h = registry_first(); h != NULL; h = h->registry_next) {
        uint64_t calls = load_relaxed(&h->slow_calls);
        store_relaxed(&h->visit_idle, calls == load_relaxed(&h->visit_calls));
        store_relaxed(&h->visit_calls, calls);
    }
}

/* Which region, and which of its slices. */
struct visit_place {
    uint32_t row;
    uint32_t slice;
};
struct visit {
    struct visit_place next;
    uint64_t pause_ns; /* for whom it wakes; 0: it gives way to nobody */
    uint64_t owed_ns;  /* not paused yet */
    uint64_t paused_ns;
    uint64_t looked;     /* bytes of blocks that were looked at */
    uint64_t looked_few; /* after which free_least has to be free, or the visit is over */
    uint64_t free_least; /* these two: by hole_pending */
    uint64_t free_most;  /* with which it is over, too; 0: not for growth */
    bool woke;           /* an owner, just now */
    bool stops;
};
static struct visit_place visit_behind;   /* where the last one stopped. Sync: the helper */
static struct visit_place visit_for_next; /* where the next one begins that is for growth. Sync: the helper */

/* So long that an owner loses little, and so short that half of a window suffices for all spans. */
static uint64_t visit_pause_ns(void) {
    enum { most = 1000000 };
    uint64_t spans = load_relaxed(&span_totals.live) / SLICE_BYTES + 1;
    uint64_t share = load_relaxed(&release_totals.window_ns) / 2 / spans;
    return share > most ? most : share + 1;
}

/* An owner at work comes for its heap's lock once a slab, too. Whoever gives a lock and takes it again is
 * faster than who wakes up: the owner would sleep for one slab after the other. So a visitor pauses for whom
 * it woke, no longer than half of the time between two looks, and goes on at the next one. Not where all is
 * looked at, since memory is short or the process was quiet, or in threads of the program, whose own time
 * that would be. For growth it pauses for less: its look is short. */
static void visit_give_way(struct visit* v) {
    enum { least = 100000 };
    v->woke = false;
    v->owed_ns += v->pause_ns;
    if (v->owed_ns < least) return;
    uint64_t before = os_clock_ns();
    bool goes_on = release_pause(v->owed_ns, v->free_most != 0);
    v->owed_ns = 0;
    v->paused_ns += os_clock_ns() - before;
    v->stops |= !goes_on || v->paused_ns > core_options.release_delay * 1000000 / 2;
}

/* Of a visit for growth: whether it has found what it is for, or that there is little. */
static bool visit_suffices(const struct visit* v) {
    uint64_t bytes = load_relaxed(&hole_pending);
    return bytes >= v->free_most || (v->looked >= v->looked_few && bytes < v->free_least) ||
           release_helper_ends();
}

/* A first look without a lock: what it says may be old. */
static void slab_visit(const struct region* r, uint32_t index, struct visit* v) {
    struct slice* s = region_slices(r) + index;
    const struct slice_pages* pages = (const struct slice_pages*)r->pages + index;
    if (load_acquire(&s->kind) != SLICE_SLAB) return;
    struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (h == NULL)
        orphan_visit(s, pages, &v->looked);
    else if (h != heap_self() && load_relaxed(&s->listed) != 0)
        v->woke = available_visit(h, s, r->base + ((uintptr_t)index << SLICE_SHIFT), pages, &v->looked) &&
                  v->pause_ns != 0;
    v->stops |= v->free_most != 0 && visit_suffices(v);
}

/* Slabs are found by their records: lists would have to be locked for as long as a visit takes. Up to a slab
 * whose owner was woken, or with which the visit has seen enough. False: there are no more regions. */
static bool region_visit(struct visit* v) {
    os_lock_take(&page_lock);
    bool is_one = v->next.row < region_count;
    struct region* r = &regions[is_one ? v->next.row : 0];
    uint32_t first = r->first;
    uint32_t frontier = r->frontier;
    bool used = is_one && r->base != 0;        /* a row that is not may become another region's */
    uint32_t held = used ? region_hold(r) : 0; /* under the lock, so that the records stay */
    os_lock_give(&page_lock);
    if (used) {
        if (v->next.slice < first) v->next.slice = first;
        for (; v->next.slice < frontier && !v->woke && !v->stops; v->next.slice++)
            slab_visit(r, v->next.slice, v);
        region_let(r, held);
        if (v->woke || v->stops) return true;
    }
    v->next.row++;
    v->next.slice = 0;
    return is_one;
}

/* What threads keep, and what lies in arenas. */
static void kept_visit(bool all) {
    medium_visit(all);
    depot_empty();
    arena_publish_all();
    if (!all) registry_look();
    heaps_unpark(all);
    struct heap* own = heap_self(); /* which medium_visit passes by: its thread is at work */
    if (own != &heap_empty && (all || load_relaxed(&own->visit_idle))) large_drop(own);
}

WEIR_FN bool heaps_visit(enum release_look look) {
    bool helps = release_is_helper();
    struct visit v = {0};
    if (helps && look != RELEASE_LOOK_ALL) {
        v.next = visit_behind;
        v.pause_ns = visit_pause_ns();
    }
    /* A handler that forked here would leave its child a slab that is half changed. */
    uint64_t signals;
    bool blocked = os_signals_block(&signals);
    if (look == RELEASE_LOOK_ALL) store_relaxed(&release_owed, (uint64_t)0);
    if (look != RELEASE_LOOK_ON) kept_visit(look == RELEASE_LOOK_ALL);
    while (!v.stops && region_visit(&v))
        if (v.woke) visit_give_way(&v); /* with nothing in its hands */
    if (blocked) os_signals_restore(signals);
    if (helps) visit_behind = v.stops ? v.next : (struct visit_place){0};
    return v.stops;
}

WEIR_FN bool heaps_visit_for(uint64_t bytes) {
    enum { looked_part = 3, ahead = 4 };
    enum { pause_ns = 25000 }; /* of four that it wakes one pause, as long as waking up takes */
    uint64_t before = load_relaxed(&hole_pending);
    struct visit v = {.next = visit_for_next,
                      .pause_ns = pause_ns,
                      .looked_few = looked_part * bytes,
                      .free_least = before + bytes,
                      .free_most = before + ahead * bytes};
    for (unsigned rounds = 0; rounds < 2 && !v.stops; rounds++) {
        while (!v.stops && region_visit(&v))
            if (v.woke) visit_give_way(&v);
        if (!v.stops) v.next = (struct visit_place){0};
    }
    visit_for_next = v.next;
    return load_relaxed(&hole_pending) >= v.free_least;
}

WEIR_FN void heaps_visit_asked(void) {
    enum { pause_ns = 1000000 };
    static uint64_t visited_ns;                        /* Sync: relaxed: when such a visit last ended */
    if (load_relaxed(&os_sandbox_is_own) != 0) return; /* whose filter may kill who blocks signals */
    uint64_t ago = os_clock_ns() - load_relaxed(&visited_ns);
    if (load_relaxed(&release_state) != RELEASE_OFF && ago < pause_ns) return;
    (void)heaps_visit(RELEASE_LOOK_ALL);
    store_relaxed(&visited_ns, os_clock_ns());
}
