/* depot.c: see depot.h.
 *
 *   a place   EMPTY --who gives--> FILLING --> so many blocks --who takes--> TAKING --> EMPTY
 *
 * Who changes the state from EMPTY, or from a number of blocks, has the place for itself. A fork may leave
 * its child a place that another thread had; it stays so there, and of what lay in it none is found in two
 * places.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/depot.h"

#include "base/atomic.h"

enum { DEPOT_EMPTY = 0, DEPOT_FILLING = DEPOT_BLOCKS + 1, DEPOT_TAKING };
enum { DEPOT_PLACES = 2 };

/* One line: with the state come the blocks. */
struct depot_place {
    uint32_t state; /* how many blocks, or DEPOT_; Sync: acquire and release, as above */
    uint32_t unused;
    void* blocks[DEPOT_BLOCKS];
};
static_assert(sizeof(struct depot_place) == 64, "a line of the cache");

WEIR_VAR bool depot_is_used;
WEIR_WIDE(depots) static struct depot_place depots[LONG_CLASS][DEPOT_PLACES] __attribute__((aligned(64)));

WEIR_FN bool depot_put(unsigned m, void* const* blocks, unsigned count) {
    for (unsigned i = 0; i < DEPOT_PLACES; i++) {
        struct depot_place* d = &depots[m][i];
        uint32_t expected = DEPOT_EMPTY;
        if (load_relaxed(&d->state) != DEPOT_EMPTY ||
            !cas_acquire(&d->state, &expected, (uint32_t)DEPOT_FILLING))
            continue;
        for (unsigned j = 0; j < count; j++) d->blocks[j] = blocks[j];
        store_release(&d->state, count); /* publishes them to who takes */
        if (!load_relaxed(&depot_is_used)) store_relaxed(&depot_is_used, true);
        return true;
    }
    return false;
}

WEIR_FN unsigned depot_take(unsigned m, void** blocks) {
    for (unsigned i = 0; i < DEPOT_PLACES; i++) {
        struct depot_place* d = &depots[m][i];
        uint32_t count = load_relaxed(&d->state);
        if (count - 1 >= DEPOT_BLOCKS || !cas_acquire(&d->state, &count, (uint32_t)DEPOT_TAKING)) continue;
        for (unsigned j = 0; j < count; j++) blocks[j] = d->blocks[j];
        store_release(&d->state, (uint32_t)DEPOT_EMPTY); /* who fills it next writes after that */
        return count;
    }
    return 0;
}

WEIR_FN uint64_t depot_count(unsigned m) {
    uint64_t count = 0;
    for (unsigned i = 0; i < DEPOT_PLACES && load_relaxed(&depot_is_used); i++) {
        uint32_t state = load_relaxed(&depots[m][i].state);
        if (state <= DEPOT_BLOCKS) count += state;
    }
    return count;
}

WEIR_FN void depot_empty(void) {
    for (unsigned m = 0; m < LONG_CLASS && load_relaxed(&depot_is_used); m++) {
        void* blocks[DEPOT_BLOCKS];
        for (unsigned i = 0, count; i < DEPOT_PLACES && (count = depot_take(m, blocks)) != 0; i++)
            (void)arena_free(blocks, count);
    }
}
