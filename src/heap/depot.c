/* depot.c: see depot.h.
 *
 *   a place   0 to 7 blocks --who gives, who takes--> MOVING --> 0 to 7 blocks
 *
 * Who changes the state from a number of blocks has the place for itself. A fork may leave its child a place
 * that another thread had; it stays so there, and of what lay in it none is found in two places.
 *
 * A class's places are filled from the first one on, and emptied from the last one that was filled. That is
 * but a hint, as threads at once may leave some beyond it: who finds none before it looks there, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/depot.h"

#include "base/atomic.h"

enum { DEPOT_MOVING = DEPOT_BLOCKS + 1 };

/* One line: with the state come the blocks. */
struct depot_place {
    uint32_t state; /* how many blocks, or DEPOT_MOVING; Sync: acquire and release, as above */
    uint32_t told;  /* visitors know since they last emptied it; Sync: relaxed atomic */
    void* blocks[DEPOT_BLOCKS];
};
static_assert(sizeof(struct depot_place) == 64, "a line of the cache");

WEIR_VAR bool depot_is_used;
WEIR_VAR bool depot_is_filled;
WEIR_WIDE(depots) static struct depot_place depots[LONG_CLASS][DEPOT_PLACES] __attribute__((aligned(64)));
static uint8_t depot_last[LONG_CLASS]; /* the place that was filled or emptied last; Sync: relaxed atomics */
static uint32_t depot_hand;            /* the class that is emptied next, in turns; Sync: relaxed atomic */

/* From `count` blocks on the place is the caller's. */
static bool place_take(struct depot_place* d, uint32_t count) {
    return cas_acquire(&d->state, &count, (uint32_t)DEPOT_MOVING);
}

static void last_is(unsigned m, unsigned place) {
    if (load_relaxed(&depot_last[m]) != place) store_relaxed(&depot_last[m], (uint8_t)place);
}

WEIR_FN bool depot_put(unsigned m, void* const* blocks, unsigned count, unsigned places, bool* tell) {
    const unsigned most = depot_count_of(m);
    const unsigned last = load_relaxed(&depot_last[m]);
    *tell = false;
    for (unsigned i = last < places ? last : 0; i < places; i++) {
        struct depot_place* d = &depots[m][i];
        uint32_t before = load_relaxed(&d->state);
        if (before + count > most || !place_take(d, before)) continue;
        for (unsigned j = 0; j < count; j++) d->blocks[before + j] = blocks[j];
        *tell = load_relaxed(&d->told) == 0;
        if (*tell) store_relaxed(&d->told, 1u);
        store_release(&d->state, before + count); /* publishes them to who takes */
        last_is(m, i);
        if (!load_relaxed(&depot_is_used)) store_relaxed(&depot_is_used, true);
        if (places > DEPOT_PASSED && !load_relaxed(&depot_is_filled)) store_relaxed(&depot_is_filled, true);
        return true;
    }
    return false;
}

static unsigned place_empty(struct depot_place* d, void** blocks) {
    uint32_t count = load_relaxed(&d->state);
    if (count - 1 >= DEPOT_BLOCKS || !place_take(d, count)) return 0;
    for (unsigned i = 0; i < count; i++) blocks[i] = d->blocks[i];
    store_release(&d->state, 0u); /* who fills it next writes after that */
    return count;
}

WEIR_FN unsigned depot_take(unsigned m, void** blocks) {
    const unsigned last = load_relaxed(&depot_last[m]);
    unsigned i = last;
    unsigned count = place_empty(&depots[m][i], blocks);
    while (count == 0 && i != 0) count = place_empty(&depots[m][--i], blocks);
    const unsigned end = load_relaxed(&depot_is_filled) ? DEPOT_PLACES : DEPOT_PASSED;
    for (unsigned beyond = last + 1; count == 0 && beyond < end; beyond++)
        count = place_empty(&depots[m][i = beyond], blocks);
    last_is(m, count == 0 ? 0 : i);
    return count;
}

WEIR_FN uint64_t depot_count(unsigned m) {
    uint64_t count = 0;
    for (unsigned i = 0; i < DEPOT_PLACES && load_relaxed(&depot_is_used); i++) {
        uint32_t state = load_relaxed(&depots[m][i].state);
        if (state <= DEPOT_BLOCKS) count += state;
    }
    return count;
}

WEIR_FN bool depot_empty_some(void) {
    enum { enough = 64 };
    unsigned sum = 0;
    for (unsigned i = 0; i < LONG_CLASS && sum < enough && load_relaxed(&depot_is_filled); i++) {
        unsigned m = load_relaxed(&depot_hand) % LONG_CLASS;
        store_relaxed(&depot_hand, m + 1);
        void* blocks[DEPOT_BLOCKS];
        for (unsigned count; (count = depot_take(m, blocks)) != 0; sum += count)
            (void)arena_free(blocks, count);
    }
    if (sum == 0) store_relaxed(&depot_is_filled, false);
    return sum != 0;
}

WEIR_FN void depot_empty(void) {
    store_relaxed(&depot_is_filled, false);
    for (unsigned i = 0; i < LONG_CLASS * DEPOT_PLACES && load_relaxed(&depot_is_used); i++) {
        struct depot_place* d = &depots[i / DEPOT_PLACES][i % DEPOT_PLACES];
        void* blocks[DEPOT_BLOCKS];
        store_relaxed(&d->told, 0u); /* first: what comes from here on is told again */
        unsigned count = place_empty(d, blocks);
        if (count != 0) (void)arena_free(blocks, count);
    }
}
