/* visit.c: see visit.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/visit.h"

#include "heap/available.h"
#include "heap/large.h"
#include "heap/medium.h"
#include "heap/refill.h"
#include "heap/registry.h"
#include "heap/slab.h"
#include "os/os.h"
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

/* An owner at work that comes for one slab after the other must not find its lock taken each time, and give
 * its processor away for each: it loses a slab's sort, some 50 us, out of a millisecond at the most. Not in
 * threads of the program, whose own time that would be: the helper has no heap. */
static void visit_give_way(void) {
    enum { pause_ns = 1000000 };
    if (heap_self() == &heap_empty) release_pause(pause_ns);
}

/* A first look without a lock: what it says may be old. */
static void slab_visit(struct slice* s, const struct slice_pages* pages) {
    if (load_acquire(&s->kind) != SLICE_SLAB) return;
    struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (h == NULL)
        orphan_visit(s, pages);
    else if (h != heap_self() && load_relaxed(&s->listed) != 0 && available_visit(h, s, pages))
        visit_give_way();
}

/* Slabs are found by their records: lists would have to be locked for as long as a visit takes. False: there
 * are no more regions. */
static bool region_visit(uint32_t row) {
    os_lock_take(&page_lock);
    bool is_one = row < region_count;
    struct region* r = &regions[is_one ? row : 0];
    uint32_t first = r->first;
    uint32_t frontier = r->frontier;
    bool used = is_one && r->base != 0;     /* a row that is not may become another region's */
    if (used) add_relaxed(&r->visitors, 1); /* under the lock, so that the records stay */
    os_lock_give(&page_lock);
    if (!used) return is_one;
    for (uint32_t i = first; i < frontier; i++)
        slab_visit(region_slices(r) + i, (const struct slice_pages*)r->pages + i);
    __atomic_fetch_sub(&r->visitors, 1, __ATOMIC_RELEASE); /* pairs with span_free */
    return true;
}

WEIR_FN void heaps_visit(bool all) {
    /* A handler that forked here would leave its child a slab that is half changed. */
    uint64_t signals;
    bool blocked = os_signals_block(&signals);
    if (all) store_relaxed(&release_owed, (uint64_t)0);
    medium_visit(all);
    arena_publish_all();
    if (!all) registry_look();
    heaps_unpark(all);
    struct heap* own = heap_self(); /* which medium_visit passes by: its thread is at work */
    if (own != &heap_empty && (all || load_relaxed(&own->visit_idle))) large_drop(own);
    for (uint32_t row = 0; region_visit(row);) row++;
    if (blocked) os_signals_restore(signals);
}

WEIR_FN void heaps_visit_asked(void) {
    enum { pause_ns = 1000000 };
    static uint64_t visited_ns;                        /* Sync: relaxed: when such a visit last ended */
    if (load_relaxed(&os_sandbox_is_own) != 0) return; /* whose filter may kill who blocks signals */
    uint64_t ago = os_clock_ns() - load_relaxed(&visited_ns);
    if (load_relaxed(&release_state) != RELEASE_OFF && ago < pause_ns) return;
    heaps_visit(true);
    store_relaxed(&visited_ns, os_clock_ns());
}
