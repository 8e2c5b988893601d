/* chunk.h: what arenas are made of: the free runs of a chunk, and its pages.
 *
 * For arena.c and arena_check.c alone; the caller holds the arena's lock. It deliberately knows nothing of
 * which freed blocks wait, and of where chunks come from: that is the arena's business.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_CHUNK_H
#define WEIR_HEAP_CHUNK_H

#include "base/atomic.h"
#include "heap/arena.h"
#include "os/lock.h"
#include "page/region.h"

enum { BIN_WORDS = (RUN_BINS + 63) / 64 };

/* Chunks for which a word has a bit each. What such a word says of a bank's chunks, a bit of the arena's says
 * of the bank:
 *
 *     bit i of arena.with[b]        is set where bank i's with[b]        != 0
 *     bit i of arena.quick_with[m]  is set where bank i's quick_with[m]  != 0
 *     bit i of arena.empty          is set where bank i's empty          != 0
 *
 * (bank_check, between calls). Banks are made in order and stay. */
struct bank {
    uint64_t with[RUN_BINS];             /* bit i: chunk i has a run in list b */
    uint64_t quick_with[MEDIUM_CLASSES]; /* bit i: chunk i has a quick block of the class */
    uint64_t made;                       /* bit i: chunk i has memory */
    uint64_t empty;                      /* bit i: and none of its blocks is in use */
    uint64_t gone; /* bit i: chunk i has none any more, but its record has; Sync: as idle_count */
    uint64_t held; /* bit i: chunk i is being made, or goes, just now: its record is in use */
    struct chunk* chunks[BANK_CHUNKS];
    struct chunk* records; /* of all chunks of a further bank; NULL: each has one by itself */
} __attribute__((aligned(64)));
struct arena {
    struct os_lock lock;
    bool torn;                /* since a fork that interrupted the lock's owner; Sync: the lock */
    bool visited;             /* its lock's owner is at all of it; Sync: relaxed atomic, likewise */
    uint32_t idle_count;      /* of all chunks; Sync: relaxed atomic, written under the lock */
    uint64_t bins[BIN_WORDS]; /* bit b: with[b] != 0 */
    uint64_t with[RUN_BINS];  /* bit i: bank i has a run in list b */
    uint64_t quick_with[MEDIUM_CLASSES]; /* bit i: bank i has a quick block of the class */
    uint64_t empty;                      /* bit i: bank i has an empty chunk */
    uint64_t gone;                 /* bit i: bank i may have chunks that are gone; Sync: as idle_count */
    uint32_t quick_units;          /* of all quick blocks; Sync: relaxed atomic, written under the lock */
    uint32_t quick_hand;           /* the class whose quick blocks go next, in turns */
    uint32_t quick_most;           /* so many units of them may wait */
    uint32_t told;                 /* so many units that wait, or are idle, are known to release_owed */
    uint32_t quick_pushed;         /* blocks that came to wait since it was last seen how much may, */
    uint32_t quick_came;           /* and their units; */
    uint32_t swing;                /* units in use that went and came again meanwhile, at most: */
    uint32_t used_units;           /* those in use, */
    uint32_t used_high;            /* at the most, */
    uint32_t used_low;             /* and at the least since then */
    uint64_t used[MEDIUM_CLASSES]; /* Sync: relaxed atomic, written under the lock */
    struct bank first;             /* bank 0: small programs have no other */
    struct bank* more[ARENA_BANKS - 1];
};
static_assert(BANK_CHUNKS == 64 && ARENA_BANKS == 64, "a word has a bit for each");

/* Bank i; NULL: it has not been made yet. */
WEIR_INLINE struct bank* bank_at(struct arena* a, unsigned i) { return i == 0 ? &a->first : a->more[i - 1]; }
/* The first one of those in the word, which are made. */
WEIR_INLINE struct bank* bank_first(struct arena* a, uint64_t banks) { return bank_at(a, bit_low(banks)); }
/* The first chunk of the first bank that has a quick block of class m; there is one. */
WEIR_INLINE struct chunk* quick_chunk(struct arena* a, unsigned m) {
    const struct bank* bank = bank_first(a, a->quick_with[m]);
    return bank->chunks[bit_low(bank->quick_with[m])];
}

WEIR_INLINE bool bit_is(const uint64_t* words, uint32_t i) { return (words[i / 64] >> (i % 64) & 1) != 0; }
WEIR_INLINE bool starts_is(const struct chunk* k, uint32_t unit) {
    return (k->bits[unit / 64].starts >> (unit % 64) & 1) != 0;
}
WEIR_INLINE void starts_put(struct chunk* k, uint32_t unit) {
    k->bits[unit / 64].starts |= 1ull << (unit % 64);
}
WEIR_INLINE void starts_clear(struct chunk* k, uint32_t unit) {
    k->bits[unit / 64].starts &= ~(1ull << (unit % 64));
}
WEIR_INLINE bool free_is(const struct chunk* k, uint32_t unit) {
    return (k->bits[unit / 64].free >> (unit % 64) & 1) != 0;
}
WEIR_INLINE void free_put(struct chunk* k, uint32_t unit) { k->bits[unit / 64].free |= 1ull << (unit % 64); }
WEIR_INLINE void free_clear(struct chunk* k, uint32_t unit) {
    k->bits[unit / 64].free &= ~(1ull << (unit % 64));
}
WEIR_INLINE uint32_t class_units(unsigned m) { return size_classes[SMALL_CLASSES + m].bytes >> UNIT_SHIFT; }
WEIR_INLINE unsigned class_at(const struct chunk* k, uint32_t unit) {
    return block_class(load_relaxed(&k->blocks[unit / GROUP_UNITS]));
}
/* Whether the block that starts at the unit is free already. */
WEIR_INLINE bool is_quick(const struct chunk* k, uint32_t unit) {
    return (load_relaxed(&k->blocks[unit / GROUP_UNITS]) & BLOCK_QUICK) != 0;
}
/* What was stored so far is true before what follows: a fork's child may meet the chunk at any instruction.
 */
WEIR_INLINE void commit(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
/* The list of runs of so many units. */
WEIR_INLINE unsigned bin_of(uint32_t units) {
    if (units < BINS_EXACT) return units;
    unsigned log = bit_high(units);
    return BINS_EXACT + (log - 4) * 8 + (units >> (log - 3) & 7);
}

/* The units become a free run: `free` first, then the start, so that nobody takes it for a block. */
WEIR_FN void run_insert(struct chunk* k, uint32_t unit, uint32_t units);
/* Off its list; its bits stay. Returns its length. */
WEIR_FN uint32_t run_remove(struct chunk* k, uint32_t unit);
/* The shortest free run that holds so many units from a multiple of align_units on, in the lowest chunk: it
 * starts at *unit. NULL: none was found. */
WEIR_FN struct chunk* run_find_aligned(struct arena* a, uint32_t units, uint32_t align_units, uint32_t* unit);
/* Use [unit, unit + units) of a free run that starts at `start` for a block. */
WEIR_FN WEIR_NOINLINE void run_take(struct chunk* k, uint32_t start, uint32_t unit, uint32_t units,
                                    unsigned m);
/* What was taken at `unit` for one block has room for `more` behind it: they are blocks of their own, kept
 * ones. */
WEIR_FN void run_divide(struct chunk* k, uint32_t unit, uint32_t units, unsigned m, unsigned more);
/* The block that starts at `unit`, behind whose end there is a free run that is long enough, is one of the
 * larger class m from now on. */
WEIR_FN void run_join(struct chunk* k, uint32_t unit, unsigned m);
/* A block becomes free, and one with the free runs beside it: *from and *to are then what it lies in. */
WEIR_FN void run_give(struct chunk* k, uint32_t unit, uint32_t units, uint32_t* from, uint32_t* to);

WEIR_INLINE uint32_t units_shift(void) { return page_shift - UNIT_SHIFT; }
WEIR_INLINE uint32_t slice_of_page(uint32_t page) { return page >> (SLICE_SHIFT - page_shift); }
/* Of the chunk's pages [from, to), those in slice i, as a mask of the slice's. */
WEIR_FN uint32_t pages_in(uint32_t i, uint32_t from, uint32_t to);
/* So many pages more are idle. */
WEIR_FN void idle_change(struct chunk* k, uint32_t changed);
/* Those of slice i in the mask are. */
WEIR_FN void idle_set(struct chunk* k, uint32_t i, uint32_t mask);

enum pages { PAGES_TAKEN, PAGES_BUSY, PAGES_CLEAN };
/* Have the pages that a block is to touch: no holes any more. BUSY, CLEAN: they are not to be had, as one is
 * being purged, or as one has no memory just now and the block is to be `resident`; some may be known as
 * dirty from then on, though they have no memory. */
WEIR_FN enum pages pages_take(struct chunk* k, uint32_t unit, uint32_t units, bool resident);
/* The pages of a block that was freed that no other touches: it lies in the free run [from, to) now. */
WEIR_FN void pages_give(struct chunk* k, uint32_t unit, uint32_t units, uint32_t from, uint32_t to);
/* The idle pages become holes. */
WEIR_FN void pages_publish(struct chunk* k);

/* Under the arena's lock: records that are gone, whose whole pages go, and those that lie in two such ones
 * beside each other, as those of a further bank do, and those that were made one after the other. Where
 * memory is tagged they know of what is theirs, and stay. */
WEIR_FN void bank_purge(struct bank* bank);

/* Whether every invariant of the arena holds. */
WEIR_FN bool arena_is_sound(struct arena* a);

#endif
