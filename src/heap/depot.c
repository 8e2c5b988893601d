/* depot.c: see depot.h.
 *
 *   a place   0 to 7 blocks --who gives, who takes--> MOVING --> 0 to 7 blocks
 *
 * Who changes the state from a number of blocks has the place for itself. A fork may leave its child a place
 * that another thread had; it stays so there, and of what lay in it none is found in two places.
 *
 * What a thread left for itself lies in places of its own kind, which are filled from the first one on, and
 * emptied from the one that was filled last. That is but a hint, so that nobody waits for anybody: who finds
 * none, or no room, where it leads looks at all the others.
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
/* The place of a class that was filled or emptied last, of those for blocks of one's own, counted from the
 * first of these; and the class that is emptied next, in turns. Sync: relaxed atomics: any value serves. */
static uint8_t depot_last[LONG_CLASS];
static uint32_t depot_hand;

/* From `count` blocks on the place is the caller's. */
static bool place_take(struct depot_place* d, uint32_t count) {
    return cas_acquire(&d->state, &count, (uint32_t)DEPOT_MOVING);
}

static bool place_put(struct depot_place* d, unsigned most, void* const* blocks, unsigned count, bool* tell) {
    uint32_t before = load_relaxed(&d->state);
    if (before + count > most || !place_take(d, before)) return false;
    for (unsigned j = 0; j < count; j++) d->blocks[before + j] = blocks[j];
    *tell = load_relaxed(&d->told) == 0;
    if (*tell) store_relaxed(&d->told, 1u);
    store_release(&d->state, before + count); /* publishes them to who takes */
    if (!load_relaxed(&depot_is_used)) store_relaxed(&depot_is_used, true);
    return true;
}

static void last_is(unsigned m, unsigned place) {
    if (load_relaxed(&depot_last[m]) != place) store_relaxed(&depot_last[m], (uint8_t)place);
}

WEIR_FN bool depot_put(unsigned m, void* const* blocks, unsigned count, bool own, bool* tell) {
    const unsigned most = depot_count_of(m);
    *tell = false;
    if (!own) {
        for (unsigned i = 0; i < DEPOT_PASSED; i++)
            if (place_put(&depots[m][i], most, blocks, count, tell)) return true;
        return false;
    }
    const unsigned first = load_relaxed(&depot_last[m]);
    for (unsigned n = 0; n < DEPOT_OWN; n++) {
        const unsigned i = (first + n) % DEPOT_OWN;
        if (!place_put(&depots[m][DEPOT_PASSED + i], most, blocks, count, tell)) continue;
        last_is(m, i);
        /* Release, each time: who clears it and read this finds them, and else it is set from here on. */
        store_release(&depot_is_filled, true);
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

static unsigned own_take(unsigned m, void** blocks) {
    const unsigned first = load_relaxed(&depot_last[m]);
    for (unsigned n = 0; n < DEPOT_OWN; n++) {
        const unsigned i = (first - n) % DEPOT_OWN;
        unsigned count = place_empty(&depots[m][DEPOT_PASSED + i], blocks);
        if (count == 0) continue;
        last_is(m, i);
        return count;
    }
    last_is(m, 0);
    return 0;
}

WEIR_FN unsigned depot_take(unsigned m, void** blocks) {
    unsigned count = load_relaxed(&depot_is_filled) ? own_take(m, blocks) : 0;
    for (unsigned i = 0; i < DEPOT_PASSED && count == 0; i++) count = place_empty(&depots[m][i], blocks);
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
    unsigned m = load_relaxed(&depot_hand) % LONG_CLASS;
    if (!xchg_acquire(&depot_is_filled, false)) return false; /* pairs with depot_put */
    for (unsigned i = 0; i < LONG_CLASS && sum < enough; i++, m = (m + 1) % LONG_CLASS) {
        void* blocks[DEPOT_BLOCKS];
        for (unsigned count = 1; count != 0 && sum < enough; sum += count)
            if ((count = own_take(m, blocks)) != 0) (void)arena_free(blocks, count);
    }
    store_relaxed(&depot_hand, m);
    if (sum != 0) store_release(&depot_is_filled, true); /* there may be more */
    return sum != 0;
}

WEIR_FN void depot_empty(void) {
    (void)xchg_acquire(&depot_is_filled, false); /* pairs with depot_put */
    for (unsigned i = 0; i < LONG_CLASS * DEPOT_PLACES && load_relaxed(&depot_is_used); i++) {
        struct depot_place* d = &depots[i / DEPOT_PLACES][i % DEPOT_PLACES];
        void* blocks[DEPOT_BLOCKS];
        store_relaxed(&d->told, 0u); /* first: what comes from here on is told again */
        unsigned count = place_empty(d, blocks);
        if (count != 0) (void)arena_free(blocks, count);
    }
}
