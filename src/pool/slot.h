/* slot.h: the shared tier: slots of a cache line each, through which magazines change hands.
 *
 *     put:  CAS  0 -> word        take:  xchg(slot, 0) -> word or 0
 *
 * A word is a magazine's address and, in the bits that its alignment leaves, the number of its objects. Only
 * who took a word out may look into the magazine; nobody ever reads what lies behind a word that is still in
 * a slot, so that nothing can be given away under a reader's eyes. There is no lock whose owner could be
 * preempted. It deliberately knows nothing of objects, storages and threads. The explorer in tests/explore
 * compiles this very file with atomics of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_POOL_SLOT_H
#define WEIR_POOL_SLOT_H

#include "base/atomic.h"
#include "base/compiler.h"

enum { SLOT_COUNT_BITS = 6, SLOT_OBJECTS_MAX = (1 << SLOT_COUNT_BITS) - 1 };

/*  Invariant: word == 0, or word = magazine + count with 0 <= count <= SLOT_OBJECTS_MAX.
 *  Sync: word: atomic. touched: relaxed: the tier's turn when a word last came or went; a stale one keeps
 *  a magazine for one turn more. */
struct slot {
    _Alignas(64) uintptr_t word;
    uint32_t touched;
};

/*  shard 0 [ slot slot ... ]  shard 1 [ slot slot ... ]  ...      a thread begins at its own shard
 *  Invariant: shards is a power of two. */
struct tier {
    uint32_t shards;
    uint32_t per_shard;
    uint32_t turn; /* Sync: relaxed; of the look that comes next */
    struct slot slots[];
};

WEIR_INLINE bool slot_put(struct slot* s, uintptr_t word) {
    uintptr_t expected = 0;
    if (load_relaxed(&s->word) != 0) return false; /* stale: another slot is as good */
    /* Publishes what is in the magazine, to slot_take. */
    return cas_acq_rel(&s->word, &expected, word);
}

WEIR_INLINE uintptr_t slot_take(struct slot* s) {
    if (load_relaxed(&s->word) == 0) return 0;
    return xchg_acquire(&s->word, (uintptr_t)0);
}

WEIR_INLINE uint32_t tier_slots(const struct tier* t) { return t->shards * t->per_shard; }

/* Where one thread puts and finds: it makes a stack of the slots from its own shard on, so that a run of puts
 * and takes tries one slot each and what is not needed stays untouched. Sync: the thread's own; a guess,
 * which others make wrong at any time. */
struct tier_place {
    uint32_t shard;
    uint32_t depth; /* slots from its own first one on that it filled last */
    uint32_t other; /* where it last found what another thread had put */
};

enum { PLACE_LOOKS = 8 };

WEIR_INLINE struct slot* tier_slot(struct tier* t, uint32_t index) {
    return &t->slots[index % tier_slots(t)];
}
WEIR_INLINE uint32_t place_first(const struct tier* t, const struct tier_place* at) {
    return (at->shard & (t->shards - 1)) * t->per_shard;
}
WEIR_INLINE void slot_touch(struct tier* t, struct slot* s) {
    store_relaxed(&s->touched, load_relaxed(&t->turn));
}

/* Put a word into a free slot. False: all are taken. */
WEIR_INLINE bool tier_put(struct tier* t, struct tier_place* at, uintptr_t word) {
    uint32_t first = place_first(t, at);
    uint32_t depth = at->depth;
    /* Others have taken some: those are filled again first. */
    for (uint32_t i = 0; i < PLACE_LOOKS && depth != 0; i++, depth--)
        if (load_relaxed(&tier_slot(t, first + depth - 1)->word) != 0) break;
    for (uint32_t i = 0; i < tier_slots(t); i++) {
        struct slot* s = tier_slot(t, first + depth + i);
        if (!slot_put(s, word)) continue;
        slot_touch(t, s);
        at->depth = (depth + i) % tier_slots(t) + 1;
        return true;
    }
    return false;
}

/* Take a word. 0: there was none. */
WEIR_INLINE uintptr_t tier_take(struct tier* t, struct tier_place* at) {
    uint32_t first = place_first(t, at);
    for (uint32_t i = 0; i < PLACE_LOOKS && at->depth != 0; i++) {
        struct slot* s = tier_slot(t, first + --at->depth);
        uintptr_t word = slot_take(s);
        if (word == 0) continue;
        slot_touch(t, s);
        return word;
    }
    for (uint32_t i = 0; i < tier_slots(t); i++) {
        struct slot* s = tier_slot(t, at->other + i);
        uintptr_t word = slot_take(s);
        if (word == 0) continue;
        slot_touch(t, s);
        at->other = (at->other + i) % tier_slots(t);
        return word;
    }
    return 0;
}

WEIR_INLINE uint32_t slot_objects(uintptr_t word) { return (uint32_t)(word & SLOT_OBJECTS_MAX); }

#endif
