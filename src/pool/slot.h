/* slot.h: the shared tier: slots of 16 bytes, four to a cache line, through which magazines change hands.
 *
 *     put:  CAS  0 -> word        take:  xchg(slot, 0) -> word or 0
 *
 * A word is a magazine's address and, in the bits that its alignment leaves, the number
 * of its objects. Only who took a word out may look into the magazine; nobody ever reads what lies behind a
 * word that is still in a slot, so that nothing can be given away under a reader's eyes. There is no lock
 * whose owner could be preempted. It deliberately knows nothing of objects, storages and threads. The
 * explorer in tests/explore compiles this very file with atomics of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_POOL_SLOT_H
#define WEIR_POOL_SLOT_H

#include "base/atomic.h"
#include "base/compiler.h"

enum { SLOT_COUNT_BITS = 6, SLOT_OBJECTS_MAX = (1 << SLOT_COUNT_BITS) - 1 };

/*  Invariant: word == 0, or word = address + count with 0 <= count <= SLOT_OBJECTS_MAX.
 *  Sync: word: atomic. touched: relaxed: the tier's turn when a word last came or went; a stale one keeps
 *  a magazine for one turn more. */
struct slot {
    _Alignas(16) uintptr_t word;
    uint32_t touched;
};

enum { SHARDS_MAX = 32 };

/*  shard 0 [ slot slot ... ]  shard 1 [ slot slot ... ]  ...      a thread begins at its own shard
 *  Invariant: shards and per_shard are powers of two: no slot is found by a division.
 *  reach: of each shard, as many slots as a take need look at. Sync: relaxed: one that is too low hides words
 * from others' takes until the next look, which goes through all slots, as flushes do. */
struct tier {
    uint32_t shards;
    uint32_t per_shard;
    uint32_t last; /* slot; shards * per_shard - 1 */
    uint32_t turn; /* Sync: relaxed; of the look that comes next */
    uint32_t reach[SHARDS_MAX];
    _Alignas(64) struct slot slots[];
};

WEIR_INLINE bool slot_put(struct slot* s, uintptr_t word) {
    uintptr_t expected = 0;
    if (load_relaxed(&s->word) != 0) return false; /* stale: another slot is as good */
    /* Publishes what is in the magazine, to slot_take; in one order with flushes, see storage_share. */
    return cas_seq_cst(&s->word, &expected, word);
}

WEIR_INLINE uintptr_t slot_take(struct slot* s) {
    if (load_relaxed(&s->word) == 0) return 0;
    return xchg_acquire(&s->word, (uintptr_t)0);
}

WEIR_INLINE void tier_shape(struct tier* t, uint32_t shards, uint32_t per_shard) {
    t->shards = shards;
    t->per_shard = per_shard;
    t->last = shards * per_shard - 1;
}

WEIR_INLINE uint32_t tier_slots(const struct tier* t) { return t->last + 1; }

/* Where one thread puts and finds: it makes a stack of the slots from its own shard on, so that a run of puts
 * and takes tries one slot each and what is not needed stays untouched. Sync: the thread's own; a guess,
 * which others make wrong at any time. */
struct tier_place {
    uint32_t first;       /* slot of its own shard */
    uint32_t depth;       /* slots from that one on that it filled last */
    uint32_t other_shard; /* where it last found what another thread had put */
    uint32_t other;       /* slot of that shard */
};

enum { PLACE_LOOKS = 8, PUT_LOOKS = 64 };

WEIR_INLINE struct slot* tier_slot(struct tier* t, uint32_t index) { return &t->slots[index & t->last]; }
WEIR_INLINE uint32_t shard_first(const struct tier* t, uint32_t shard) {
    return (shard & (t->shards - 1)) * t->per_shard;
}
WEIR_INLINE void slot_touch(struct tier* t, struct slot* s) {
    store_relaxed(&s->touched, load_relaxed(&t->turn));
}

WEIR_INLINE void tier_reach(struct tier* t, uint32_t index) {
    uint32_t* reach = &t->reach[index >> __builtin_ctz(t->per_shard)];
    uint32_t wanted = (index & (t->per_shard - 1)) + 1;
    uint32_t seen = load_relaxed(reach);
    while (seen < wanted && !cas_acq_rel(reach, &seen, wanted)) {
    }
}

WEIR_INLINE bool tier_put_from(struct tier* t, struct tier_place* at, uint32_t depth, uintptr_t word) {
    for (uint32_t i = 0; i < PUT_LOOKS && i <= t->last; i++) {
        struct slot* s = tier_slot(t, at->first + depth + i);
        if (!slot_put(s, word)) continue;
        slot_touch(t, s);
        tier_reach(t, (at->first + depth + i) & t->last);
        at->depth = ((depth + i) & t->last) + 1;
        return true;
    }
    return false;
}

/* Put a word into a free slot. False: none was found where this thread looks. */
WEIR_INLINE bool tier_put(struct tier* t, struct tier_place* at, uintptr_t word) {
    uint32_t depth = at->depth;
    /* Others have taken some: those are filled again first. */
    for (uint32_t i = 0; i < PLACE_LOOKS && depth != 0; i++, depth--)
        if (load_relaxed(&tier_slot(t, at->first + depth - 1)->word) != 0) break;
    if (tier_put_from(t, at, depth, word)) return true;
    /* Others have put many where its stack begins: on top of theirs. */
    uint32_t reach = load_relaxed(&t->reach[at->first >> __builtin_ctz(t->per_shard)]);
    return reach > depth && tier_put_from(t, at, reach, word);
}

/* Take the highest word of a shard below `top` slots. */
WEIR_INLINE uintptr_t tier_find_below(struct tier* t, struct tier_place* at, uint32_t shard, uint32_t top) {
    uint32_t reach = load_relaxed(&t->reach[shard]);
    for (uint32_t i = top < reach ? top : reach; i-- != 0;) {
        struct slot* s = &t->slots[shard * t->per_shard + i];
        uintptr_t word = slot_take(s);
        if (word == 0) continue;
        slot_touch(t, s);
        at->other_shard = shard;
        at->other = i;
        return word;
    }
    return 0;
}

/* Take a word that another thread put: from the top of its stack as far as this one knows it, so that what
 * came last, whose objects are warm, goes first, and what is not needed stays untouched. 0: there was none.
 */
WEIR_INLINE uintptr_t tier_find(struct tier* t, struct tier_place* at) {
    uint32_t shard = at->other_shard;
    uint32_t top = at->other + PLACE_LOOKS;
    for (uint32_t n = 0; n <= t->shards; n++) { /* what lies higher in the first one comes last */
        uintptr_t word = tier_find_below(t, at, shard, top);
        if (word != 0) return word;
        top = t->per_shard;
        shard = (shard + 1) & (t->shards - 1);
    }
    return 0;
}

/* Take a word. 0: there was none. */
WEIR_INLINE uintptr_t tier_take(struct tier* t, struct tier_place* at) {
    for (uint32_t i = 0; i < PLACE_LOOKS && at->depth != 0; i++) {
        struct slot* s = tier_slot(t, at->first + --at->depth);
        uintptr_t word = slot_take(s);
        if (word == 0) continue;
        slot_touch(t, s);
        return word;
    }
    return tier_find(t, at);
}

WEIR_INLINE uint32_t slot_objects(uintptr_t word) { return (uint32_t)(word & SLOT_OBJECTS_MAX); }

#endif
