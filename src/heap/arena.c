/* arena.c: see arena.h.
 *
 * Free runs hang in lists by length, exact up to 15 units, then eight per power of two, which is where the
 * size classes lie, so that any run of a class's list fits. For each length a word says which of an arena's
 * chunks have such a run: the lowest chunk with the shortest run that fits is two looks away.
 *
 * A page that no block touches is idle first: free, resident, and the arena's own. When more than a few of
 * them are, they become holes (page/hole.h), which the release pass may have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/arena.h"

#include "os/lock.h"
#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"
#include "tag/tag.h"

enum { BIN_WORDS = (RUN_BINS + 63) / 64 };
/* Idle pages of an arena, in bytes, past which those of a chunk become holes. */
enum { IDLE_BYTES_MAX = 262144 };

struct arena {
    struct os_lock lock;
    bool torn;                           /* since a fork that interrupted the lock's owner; Sync: the lock */
    uint32_t idle_count;                 /* of all chunks; Sync: relaxed atomic, written under the lock */
    uint64_t bins[BIN_WORDS];            /* bit b: with[b] != 0 */
    uint64_t with[RUN_BINS];             /* bit i: chunk i has a run in list b */
    uint64_t made;                       /* bit i: chunk i has memory */
    uint64_t empty;                      /* bit i: and none of its blocks is in use */
    uint64_t quick_with[MEDIUM_CLASSES]; /* bit i: chunk i has a quick block of the class */
    uint32_t quick_units;  /* of all quick blocks; Sync: relaxed atomic, written under the lock */
    uint32_t quick_hand;   /* the class whose quick blocks go next, in turns */
    uint32_t quick_most;   /* so many units of them may wait */
    uint32_t quick_told;   /* so many are known to release_owed */
    uint32_t quick_pushed; /* blocks, since it was last seen how much may; */
    uint32_t swing;        /* units in use that went and came again meanwhile, at most: */
    uint32_t used_units;   /* those in use, */
    uint32_t used_high;    /* at the most, */
    uint32_t used_low;     /* and at the least since then */
    struct chunk* chunks[ARENA_CHUNKS];
    uint64_t used[MEDIUM_CLASSES]; /* Sync: relaxed atomic, written under the lock */
};
static_assert(ARENA_CHUNKS == 64, "a word has a bit for each");

static struct arena arenas[ARENA_COUNT_MAX];
static uint32_t arena_count; /* set by arena_start, before which there is none; Sync: relaxed */

static bool bit_is(const uint64_t* words, uint32_t i) { return (words[i / 64] >> (i % 64) & 1) != 0; }
static void bit_put(uint64_t* words, uint32_t i) { words[i / 64] |= 1ull << (i % 64); }
static void bit_clear(uint64_t* words, uint32_t i) { words[i / 64] &= ~(1ull << (i % 64)); }
static uint32_t class_units(unsigned m) { return size_classes[SMALL_CLASSES + m].bytes >> UNIT_SHIFT; }
static unsigned class_at(const struct chunk* k, uint32_t unit) {
    return block_class(load_relaxed(&k->blocks[unit / GROUP_UNITS]));
}
/* A block of class m is in use from now on, or no more. */
static void used_add(struct arena* a, unsigned m) {
    store_relaxed(&a->used[m], a->used[m] + 1);
    uint32_t used = a->used_units += class_units(m);
    uint32_t back = (used < a->used_high ? used : a->used_high) - a->used_low;
    if (back > a->swing) a->swing = back;
    if (used > a->used_high) a->used_high = a->used_low = used;
}
static void used_remove(struct arena* a, unsigned m) {
    store_relaxed(&a->used[m], a->used[m] - 1);
    uint32_t used = a->used_units -= class_units(m);
    if (used < a->used_low) a->used_low = used;
}

/* What was stored so far is true before what follows: a fork's child may meet the chunk at any instruction.
 */
static void commit(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

/* ---- Free runs. */

static unsigned bin_of(uint32_t units) {
    if (units < BINS_EXACT) return units;
    unsigned log = bit_high(units);
    return BINS_EXACT + (log - 4) * 8 + (units >> (log - 3) & 7);
}
/* The first list all of whose runs have so many units. */
static unsigned bin_that_fits(uint32_t units) {
    return units < BINS_EXACT ? units : bin_of(units + (1u << (bit_high(units) - 3)) - 1);
}
static_assert(RUN_BINS == BINS_EXACT + (13 - 4) * 8 + 1 && CHUNK_UNITS == 1 << 13,
              "the longest run has a list");

static void bin_has(struct chunk* k, unsigned b) {
    struct arena* a = k->arena;
    a->with[b] |= 1ull << k->index;
    a->bins[b / 64] |= 1ull << (b % 64);
}
static void bin_has_none(struct chunk* k, unsigned b) {
    struct arena* a = k->arena;
    a->with[b] &= ~(1ull << k->index);
    if (a->with[b] == 0) a->bins[b / 64] &= ~(1ull << (b % 64));
}

/* The units become a free run: `free` first, then the start, so that nobody takes it for a block. */
static void run_insert(struct chunk* k, uint32_t unit, uint32_t units) {
    bit_put(k->free, unit);
    commit();
    bit_put(k->starts, unit);
    uint32_t last = unit + units - 1;
    bit_put(k->free, last);
    unsigned b = bin_of(units);
    uint32_t group = unit / GROUP_UNITS;
    k->length[group] = (uint16_t)units;
    k->start_of_last[last / GROUP_UNITS] = (uint16_t)unit;
    k->prev[group] = 0;
    k->next[group] = k->heads[b];
    if (k->heads[b] != 0)
        k->prev[(k->heads[b] - 1) / GROUP_UNITS] = (uint16_t)(unit + 1);
    else
        bin_has(k, b);
    k->heads[b] = (uint16_t)(unit + 1);
}

/* Off its list; its bits stay. */
static uint32_t run_remove(struct chunk* k, uint32_t unit) {
    uint32_t group = unit / GROUP_UNITS;
    uint32_t units = k->length[group];
    unsigned b = bin_of(units);
    uint16_t next = k->next[group];
    uint16_t prev = k->prev[group];
    if (next != 0) k->prev[(next - 1) / GROUP_UNITS] = prev;
    if (prev != 0)
        k->next[(prev - 1) / GROUP_UNITS] = next;
    else if ((k->heads[b] = next) == 0)
        bin_has_none(k, b);
    return units;
}

/* The shortest free run that holds so many units, in the lowest chunk. */
static struct chunk* run_find(const struct arena* a, uint32_t units, uint32_t* unit) {
    unsigned b = bin_that_fits(units);
    for (unsigned word = b / 64; word < BIN_WORDS; word++) {
        uint64_t bits = a->bins[word];
        if (word == b / 64) bits &= ~0ull << (b % 64);
        if (bits == 0) continue;
        b = word * 64 + bit_low(bits);
        struct chunk* k = a->chunks[bit_low(a->with[b])];
        *unit = k->heads[b] - 1u;
        return k;
    }
    return NULL;
}

/* Likewise, with room for them from a multiple of align_units on. */
static struct chunk* run_find_aligned(const struct arena* a, uint32_t units, uint32_t align_units,
                                      uint32_t* unit) {
    struct chunk* k = run_find(a, units, unit);
    if (k == NULL || align_units == 1) return k;
    uint32_t end = *unit + k->length[*unit / GROUP_UNITS];
    if (align_up(*unit, align_units) + units <= end) return k;
    return run_find(a, units + align_units - 1, unit);
}

/* Use [unit, unit + units) of a free run that starts at `start` for a block. */
static void run_take(struct chunk* k, uint32_t start, uint32_t unit, uint32_t units, unsigned m) {
    uint32_t length = run_remove(k, start);
    uint32_t end = start + length;
    if (unit != start) {
        bit_put(k->free, unit);
        commit();
        bit_put(k->starts, unit);
        run_insert(k, start, unit - start);
    }
    store_relaxed(&k->blocks[unit / GROUP_UNITS],
                  (uint16_t)((unit % GROUP_UNITS) << BLOCK_UNIT_SHIFT | (m + 1)));
    if (unit + units != end)
        run_insert(k, unit + units, end - unit - units);
    else
        bit_clear(k->free, end - 1);
    commit();
    bit_clear(k->free, unit);
}

/* A block becomes free, and one with the free runs beside it: *from and *to are then what it lies in. */
static void run_give(struct chunk* k, uint32_t unit, uint32_t units, uint32_t* from, uint32_t* to) {
    uint32_t start = unit;
    uint32_t end = unit + units;
    bit_put(k->free, unit);
    commit();
    store_relaxed(&k->blocks[unit / GROUP_UNITS], (uint16_t)0);
    if (end != CHUNK_UNITS && bit_is(k->free, end)) {
        uint32_t next = end;
        end += run_remove(k, next);
        bit_clear(k->starts, next);
        commit();
        bit_clear(k->free, next);
    }
    if (start != 0 && bit_is(k->free, start - 1)) {
        start = k->start_of_last[(unit - 1) / GROUP_UNITS];
        run_remove(k, start);
        bit_clear(k->starts, unit);
        commit();
        bit_clear(k->free, unit);
        if (unit - 1 != start) bit_clear(k->free, unit - 1);
    }
    run_insert(k, start, end - start);
    *from = start;
    *to = end;
}

/* ---- Pages. */

static uint32_t units_shift(void) { return page_shift - UNIT_SHIFT; }
/* Of the chunk's pages [from, to), those in slice i, as a mask of the slice's. */
static uint32_t pages_in(uint32_t i, uint32_t from, uint32_t to) {
    uint32_t count = slice_page_count();
    uint32_t first = i * count;
    if (from >= first + count || to <= first || from >= to) return 0;
    uint32_t low = from > first ? from - first : 0;
    uint32_t high = to < first + count ? to - first : count;
    return (2u << (high - 1)) - (1u << low);
}
static uint32_t slice_of_page(uint32_t page) { return page >> (SLICE_SHIFT - page_shift); }

static void idle_change(struct chunk* k, uint32_t changed) {
    k->idle_count += changed;
    store_relaxed(&k->arena->idle_count, k->arena->idle_count + changed);
}
static void idle_set(struct chunk* k, uint32_t i, uint32_t mask) {
    uint32_t changed = (uint32_t)__builtin_popcount(mask & ~(uint32_t)k->idle[i]);
    k->idle[i] |= (uint16_t)mask;
    idle_change(k, changed);
}
static void idle_clear(struct chunk* k, uint32_t i, uint32_t mask) {
    uint32_t idle = mask & k->idle[i];
    if (idle == 0) return;
    k->idle[i] &= (uint16_t)~mask;
    idle_change(k, 0 - (uint32_t)__builtin_popcount(idle));
}

enum pages { PAGES_TAKEN, PAGES_BUSY, PAGES_CLEAN };
/* Have the pages that a block is to touch: no holes any more. Nothing changed: one is being purged; or one
 * has no memory just now, and it is to be `resident`. */
static enum pages pages_take(struct chunk* k, uint32_t unit, uint32_t units, bool resident) {
    uint32_t from = unit >> units_shift();
    uint32_t to = ((unit + units - 1) >> units_shift()) + 1;
    uint32_t first = slice_of_page(from);
    uint32_t last = slice_of_page(to - 1);
    static_assert((int)SLAB_MAX <= (int)SLICE_BYTES, "a block lies in two slices at most");
    uint32_t mask[2] = {0, 0};
    uint32_t got[2] = {0, 0};
    for (uint32_t i = first; i <= last; i++) {
        mask[i - first] = pages_in(i, from, to);
        uint64_t state = load_relaxed(&k->pages[i].state);
        uint32_t holes = hole_of(state) & mask[i - first];
        bool clean = resident && (holes & hole_clean(state)) != 0;
        got[i - first] = holes == 0 || clean ? 0 : hole_take(k->slice + i, holes);
        if (got[i - first] == holes) continue;
        for (uint32_t j = first; j <= i; j++)
            if (got[j - first] != 0) hole_add(k->slice + j, got[j - first]);
        return clean ? PAGES_CLEAN : PAGES_BUSY;
    }
    for (uint32_t i = first; i <= last; i++) idle_clear(k, i, mask[i - first]);
    return PAGES_TAKEN;
}

/* The pages of a block that was freed that no other touches: it lies in the free run [from, to) now. */
static void pages_give(struct chunk* k, uint32_t unit, uint32_t units, uint32_t from, uint32_t to) {
    uint32_t round = (1u << units_shift()) - 1;
    uint32_t low = (from + round) >> units_shift();
    uint32_t high = to >> units_shift();
    uint32_t first = unit >> units_shift();
    uint32_t end = ((unit + units - 1) >> units_shift()) + 1;
    if (low < first) low = first;
    if (high > end) high = end;
    if (low >= high) return;
    for (uint32_t i = slice_of_page(low); i <= slice_of_page(high - 1); i++)
        k->idle[i] |= (uint16_t)pages_in(i, low, high);
    idle_change(k, high - low); /* the block was on each of them */
}

/* The idle pages become holes. */
static void pages_publish(struct chunk* k) {
    for (uint32_t i = 0; i < CHUNK_SLICES && k->idle_count != 0; i++) {
        if (k->idle[i] == 0) continue;
        hole_add(k->slice + i, k->idle[i]);
        idle_clear(k, i, k->idle[i]);
    }
}

/* ---- Tags, where memory has them. Under the lock, so that two neighbours do not choose at the same time. */

/* Those of the blocks on both sides, as a mask. A free run has none to differ from; nor is it looked at,
 * since it may have no memory. */
static uint32_t tags_beside(const struct chunk* k, uint32_t unit, uint32_t units) {
    uint32_t mask = TAG_NOT_NONE;
    const char* p = (const char*)(k->address + ((uintptr_t)unit << UNIT_SHIFT));
    uint32_t end = unit + units;
    if (unit != 0 && !bit_is(k->free, unit - 1)) mask |= 1u << tag_of(tag_read(p - TAG_GRANULE));
    if (end != chunk_end() && !bit_is(k->free, end))
        mask |= 1u << tag_of(tag_read(p + ((size_t)units << UNIT_SHIFT)));
    return mask;
}

/* Those that the blocks before had which had some of this one's memory. */
static uint32_t tags_before(const struct chunk* k, uint32_t unit, uint32_t units) {
    uint32_t mask = 0;
    if (k->formers == NULL) return 0;
    for (uint32_t i = unit; i < unit + units; i++) mask |= 1u << k->formers[i];
    return mask;
}

/* A new block gets its tag, and zeroes if wanted. */
static void* medium_tag(void* p, bool zero) {
    struct chunk* k = arena_chunk(p)->free;
    uint32_t unit = (uint32_t)(((uintptr_t)p - k->address) >> UNIT_SHIFT);
    uint16_t* block = &k->blocks[unit / GROUP_UNITS];
    uint32_t units = class_units(class_at(k, unit));
    if (k->formers == NULL) k->formers = span_meta_alloc(CHUNK_UNITS);
    uint32_t beside = tags_beside(k, unit, units);
    void* tagged = tag_choose(p, beside | tags_before(k, unit, units));
    if (tag_of(tagged) == 0) tagged = tag_choose(p, beside); /* there was one of each */
    size_t bytes = (size_t)units << UNIT_SHIFT;
    if (zero)
        tag_set_zero(tagged, bytes);
    else
        tag_set(tagged, bytes);
    store_relaxed(block, (uint16_t)(load_relaxed(block) | BLOCK_TAGGED));
    return tagged;
}

/* A block is about to become part of a free run. */
static void block_untag(struct chunk* k, uint32_t unit, uint32_t units) {
    char* p = (char*)(k->address + ((uintptr_t)unit << UNIT_SHIFT));
    tag_set(p, (size_t)units << UNIT_SHIFT);
}

WEIR_FN void* arena_retag(struct slice* s, void* p) {
    struct chunk* k = s->free;
    uint32_t unit = (uint32_t)(((uintptr_t)p - k->address) >> UNIT_SHIFT);
    os_lock_take(&k->arena->lock);
    if (!tag_fits(p) || arena_block_any(s, p) == NULL) {
        os_lock_give(&k->arena->lock);
        return NULL;
    }
    uint32_t units = class_units(class_at(k, unit));
    if (k->formers != NULL)
        for (uint32_t i = unit; i < unit + units; i++) k->formers[i] = (uint8_t)tag_of(p);
    void* tagged = tag_choose(p, tags_beside(k, unit, units));
    tag_set(tagged, (size_t)units << UNIT_SHIFT);
    os_lock_give(&k->arena->lock);
    return tagged;
}

/* ---- Chunks. */

static void chunk_forget(struct chunk* k) {
    k->used = k->idle_count = 0;
    for (unsigned i = 0; i < CHUNK_SLICES; i++) k->idle[i] = 0;
    for (unsigned b = 0; b < RUN_BINS; b++) k->heads[b] = 0;
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) k->quick[m] = 0;
}

/* ---- Quick lists: freed blocks that no run has swallowed yet. Their pages stay as they are. */

static void quick_change(struct arena* a, uint32_t changed) {
    store_relaxed(&a->quick_units, a->quick_units + changed);
}

/* Whether the block that starts at the unit is free already. */
static bool is_quick(const struct chunk* k, uint32_t unit) {
    return (load_relaxed(&k->blocks[unit / GROUP_UNITS]) & BLOCK_QUICK) != 0;
}

static void quick_link(struct chunk* k, uint32_t unit, unsigned m) {
    k->quick_next[unit / GROUP_UNITS] = k->quick[m];
    k->quick[m] = (uint16_t)(unit + 1);
    k->arena->quick_with[m] |= 1ull << k->index;
    quick_change(k->arena, class_units(m));
}

static void quick_push(struct chunk* k, uint32_t unit, unsigned m) {
    uint16_t* block = &k->blocks[unit / GROUP_UNITS];
    store_relaxed(block, (uint16_t)(load_relaxed(block) | BLOCK_KEPT | BLOCK_QUICK));
    commit();
    quick_link(k, unit, m);
    k->arena->quick_pushed++;
}

/* The first quick block of class m in chunk k, which has one, is on the list no more. */
static uint32_t quick_unlink(struct chunk* k, unsigned m) {
    uint32_t unit = k->quick[m] - 1u;
    k->quick[m] = k->quick_next[unit / GROUP_UNITS];
    if (k->quick[m] == 0) k->arena->quick_with[m] &= ~(1ull << k->index);
    quick_change(k->arena, 0 - class_units(m));
    return unit;
}

static void* quick_pop(struct arena* a, unsigned m, uint32_t align_units) {
    if (a->quick_with[m] == 0 || tag_is_on()) return NULL;
    struct chunk* k = a->chunks[bit_low(a->quick_with[m])];
    if (((k->quick[m] - 1u) & (align_units - 1)) != 0) return NULL;
    uint32_t unit = quick_unlink(k, m);
    commit();
    uint16_t* block = &k->blocks[unit / GROUP_UNITS];
    store_relaxed(block, (uint16_t)(load_relaxed(block) & ~(BLOCK_KEPT | BLOCK_QUICK)));
    return (void*)(k->address + ((uintptr_t)unit << UNIT_SHIFT));
}

static bool block_give(struct chunk* k, uint32_t unit, unsigned m);

/* The quick blocks of class m become free runs. True: pages became holes. */
static bool quick_flush_class(struct arena* a, unsigned m) {
    bool published = false;
    while (a->quick_with[m] != 0) {
        struct chunk* k = a->chunks[bit_low(a->quick_with[m])];
        published |= block_give(k, quick_unlink(k, m), m);
    }
    return published;
}

/* Those of the next class that has some, in turns. There are some. */
static bool quick_flush_next(struct arena* a) {
    do a->quick_hand = (a->quick_hand + 1) % MEDIUM_CLASSES;
    while (a->quick_with[a->quick_hand] == 0);
    return quick_flush_class(a, a->quick_hand);
}

static bool quick_flush(struct arena* a, uint32_t most) {
    bool published = false;
    while (a->quick_units > most) published |= quick_flush_next(a);
    return published;
}

/* A little may wait anyway. None where memory is tagged: a block that comes back gets another tag than its
 * neighbours under the lock. */
static void quick_allow(struct arena* a) {
    uint32_t least = (uint32_t)__builtin_popcountll(a->made) * QUICK_CHUNK_BYTES;
    if (least > QUICK_BYTES) least = QUICK_BYTES;
    if (a->quick_most < least >> UNIT_SHIFT) a->quick_most = least >> UNIT_SHIFT;
    if (tag_is_on()) a->quick_most = 0;
}

/* How much may wait: more where use went down and up again by much, since it is going to again; else little,
 * as runs that are merged at once serve all classes. */
static void quick_pace(struct arena* a) {
    enum { much = 8 };
    if (a->swing < a->used_high / much)
        a->quick_most /= 2;
    else if (a->quick_most < a->used_high)
        a->quick_most *= 2;
    quick_allow(a);
    a->quick_pushed = 0;
    a->swing = 0;
    a->used_high = a->used_low = a->used_units;
}

/* After blocks came. True: there is something for a pass. */
static bool quick_settle(struct arena* a) {
    const uint32_t step = QUICK_BYTES >> UNIT_SHIFT;
    if (a->quick_pushed >= QUICK_LOOK) quick_pace(a);
    bool some = false;
    if (weir_unlikely(a->quick_units > a->quick_most)) some = quick_flush(a, a->quick_most / 2);
    if (weir_unlikely(a->quick_units > a->quick_told + step)) {
        a->quick_told = a->quick_units;
        add_relaxed(&release_owed, (uint64_t)QUICK_BYTES);
        some = true;
    }
    return some;
}

static bool chunk_add(struct arena* a) {
    if (~a->made == 0) return false;
    unsigned index = bit_low(~a->made);
    struct chunk* k = a->chunks[index];
    if (k == NULL) k = a->chunks[index] = span_meta_alloc(sizeof *k);
    if (k == NULL) return false;
    struct slice* s = span_alloc_slab(CHUNK_SLICES, true);
    if (s == NULL) return false;
    k->slice = s;
    k->address = slice_address(s);
    k->pages = slice_pages(s);
    k->arena = a;
    k->index = index;
    chunk_forget(k);
    for (unsigned i = 0; i < CHUNK_WORDS; i++) k->starts[i] = k->free[i] = 0;
    for (unsigned i = 0; i < CHUNK_GROUPS; i++) store_relaxed(&k->blocks[i], (uint16_t)0);
    s->free = k;
    span_mark_rest(s);
    store_release(&s->kind, (uint8_t)SLICE_CHUNK); /* publishes the record to the census and the pass */
    for (uint32_t i = 0; i < CHUNK_SLICES; i++) hole_publish(s + i);
    bit_put(k->free, 0);
    bit_put(k->starts, 0);
    a->empty |= 1ull << index;
    commit();
    a->made |= 1ull << index;
    run_insert(k, 0, chunk_end());
    quick_allow(a);
    return true;
}

/* A block becomes free. True: pages became holes. */
static bool block_give(struct chunk* k, uint32_t unit, unsigned m) {
    struct arena* a = k->arena;
    uint32_t units = class_units(m);
    uint32_t from;
    uint32_t to;
    if (tag_is_on()) block_untag(k, unit, units);
    run_give(k, unit, units, &from, &to);
    pages_give(k, unit, units, from, to);
    if (--k->used == 0) a->empty |= 1ull << k->index;
    if (a->idle_count <= (uint32_t)IDLE_BYTES_MAX >> page_shift) return false;
    pages_publish(k);
    return true;
}

/* Under the lock: an empty chunk is the arena's no more. Returns its span, which is to be given
 * back without the lock. */
static struct slice* chunk_remove(struct chunk* k) {
    struct arena* a = k->arena;
    run_remove(k, 0);
    idle_change(k, 0 - k->idle_count);
    a->made &= ~(1ull << k->index);
    a->empty &= ~(1ull << k->index);
    return k->slice;
}

/* Spans that are to be given back without the lock. */
struct gone {
    unsigned count;
    struct slice* slices[ARENA_CHUNKS];
};
static void gone_free(const struct gone* g) {
    for (unsigned i = 0; i < g->count; i++) span_free_paged(g->slices[i]);
}

/* Of the empty chunks one stays. */
static void empty_remove(struct arena* a, struct gone* g) {
    for (uint64_t left = a->empty & (a->empty - 1); left != 0; left &= left - 1)
        g->slices[g->count++] = chunk_remove(a->chunks[bit_low(left)]);
}

/* No block starts at the unit. */
static void block_forget(struct chunk* k, uint32_t unit) {
    uint16_t* block = &k->blocks[unit / GROUP_UNITS];
    uint32_t known = load_relaxed(block);
    if ((known >> BLOCK_UNIT_SHIFT & BLOCK_UNIT) == unit % GROUP_UNITS) store_relaxed(block, (uint16_t)0);
}

/* All but the bits anew from the bits. */
static void chunk_rebuild(struct chunk* k) {
    uint32_t last = chunk_end();
    chunk_forget(k);
    uint32_t start = 0; /* of the free run that goes on, or 0 where none does */
    bool open = false;
    for (uint32_t unit = 0; unit <= last; unit++) {
        bool ends = unit == last || (bit_is(k->starts, unit) && !bit_is(k->free, unit));
        bool starts = unit != last && bit_is(k->starts, unit) && bit_is(k->free, unit);
        if (starts && !open) {
            start = unit;
            open = true;
        } else if (unit != last && !ends) {
            bit_clear(k->starts, unit);
            bit_clear(k->free, unit);
        }
        if (!ends) {
            block_forget(k, unit);
            continue;
        }
        if (open) {
            run_insert(k, start, unit - start);
            for (uint32_t i = 0; i < CHUNK_SLICES; i++) {
                uint32_t round = (1u << units_shift()) - 1;
                uint32_t mask = pages_in(i, (start + round) >> units_shift(), unit >> units_shift());
                idle_set(k, i, mask & ~hole_of(load_relaxed(&k->pages[i].state)));
            }
        }
        open = false;
        if (unit == last) break;
        k->used++;
        unsigned m = class_at(k, unit);
        if (m >= MEDIUM_CLASSES) continue;
        if ((load_relaxed(&k->blocks[unit / GROUP_UNITS]) & BLOCK_QUICK) != 0)
            quick_link(k, unit, m);
        else
            used_add(k->arena, m);
    }
    if (k->used == 0) k->arena->empty |= 1ull << k->index;
}

static void arena_rebuild(struct arena* a) {
    store_relaxed(&a->idle_count, 0u);
    store_relaxed(&a->quick_units, 0u);
    a->used_units = a->used_low = a->used_high = a->swing = 0;
    a->empty = 0;
    for (unsigned b = 0; b < RUN_BINS; b++) a->with[b] = 0;
    for (unsigned word = 0; word < BIN_WORDS; word++) a->bins[word] = 0;
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) {
        store_relaxed(&a->used[m], (uint64_t)0);
        a->quick_with[m] = 0;
    }
    for (uint64_t left = a->made; left != 0; left &= left - 1) chunk_rebuild(a->chunks[bit_low(left)]);
}

/* ---- Arenas. */

/* In the child of a fork that interrupted the lock's owner, it is held still. If that call goes on, it finds
 * all as it left it; a call that comes before, in the handler, builds anew what follows from the bits. */
static void arena_settle(struct arena* a) {
    if (weir_likely(!a->torn)) return;
    a->torn = false;
    if (a->lock.nest != 0) arena_rebuild(a);
}

static void arena_lock(struct arena* a) {
    os_lock_take(&a->lock);
    arena_settle(a);
}

WEIR_FN void arena_start(void) {
    uint32_t cpus = os_cpu_count();
    uint32_t count = cpus < ARENA_COUNT_MAX ? cpus : ARENA_COUNT_MAX;
    for (unsigned i = 0; i < count; i++) arenas[i].lock = (struct os_lock){.rank = LOCK_ARENA};
    store_relaxed(&arena_count, count);
}

/* The arena that was used last; where another thread is in it just now, the next one from now on. */
static struct arena* arena_enter(uint32_t* home) {
    struct arena* a = &arenas[*home];
    if (weir_unlikely(os_lock_is_mine(&a->lock) || !os_lock_try(&a->lock))) {
        *home = (*home + 1) % load_relaxed(&arena_count);
        a = &arenas[*home];
        os_lock_take(&a->lock);
    }
    arena_settle(a);
    return a;
}

/* One attempt, under the lock. `resident`: none that needs more memory. */
static void* arena_try(struct arena* a, unsigned m, uint32_t align_units, bool resident, bool* busy) {
    uint32_t units = class_units(m);
    uint32_t start;
    uint32_t unit;
    struct chunk* k;
    *busy = false;
    void* quick = quick_pop(a, m, align_units);
    if (quick != NULL) {
        used_add(a, m);
        return quick;
    }
    for (;;) {
        k = run_find_aligned(a, units, align_units, &start);
        if (k == NULL) {
            if (a->quick_units != 0)
                quick_flush(a, 0);
            else if (resident || !chunk_add(a))
                return NULL;
            continue;
        }
        unit = (uint32_t)align_up(start, align_units);
        bool merge = a->quick_units > QUICK_BYTES_GROWS >> UNIT_SHIFT;
        enum pages pages = pages_take(k, unit, units, resident || merge);
        if (pages == PAGES_TAKEN) break;
        *busy = pages == PAGES_BUSY;
        if (pages == PAGES_BUSY || !merge) return NULL;
        quick_flush_next(a);
    }
    run_take(k, start, unit, units, m);
    k->used++;
    a->empty &= ~(1ull << k->index);
    used_add(a, m);
    return (void*)(k->address + ((uintptr_t)unit << UNIT_SHIFT));
}

WEIR_INLINE void* alloc_as(uint32_t* home, unsigned m, size_t align, bool zero, bool resident) {
    enum { tries = 4 };
    uint32_t align_units = align > UNIT_BYTES ? (uint32_t)(align >> UNIT_SHIFT) : 1;
    void* p = NULL;
    for (unsigned i = 0; i < tries; i++) {
        bool busy;
        struct arena* a = arena_enter(home);
        p = arena_try(a, m, align_units, resident, &busy);
        if (tag_is_on() && p != NULL) p = medium_tag(p, zero);
        os_lock_give(&a->lock);
        if (!busy || !release_wait(NULL)) break;
    }
    return p;
}

WEIR_FN void* arena_alloc(uint32_t* home, unsigned m, size_t align) {
    return alloc_as(home, m, align, false, false);
}

WEIR_FN void* arena_alloc_zeroed(uint32_t* home, unsigned m, size_t align) {
    return alloc_as(home, m, align, true, false);
}

WEIR_FN void* arena_alloc_resident(uint32_t* home, unsigned m, size_t align) {
    return alloc_as(home, m, align, false, true);
}

/* Under the lock. Nothing, where two threads freed it at the same instant. */
static void block_wait(struct chunk* k, const void* p) {
    uint32_t unit = (uint32_t)(((uintptr_t)p - k->address) >> UNIT_SHIFT);
    unsigned m = class_at(k, unit);
    if (weir_unlikely(m >= MEDIUM_CLASSES || is_quick(k, unit))) return;
    quick_push(k, unit, m);
    used_remove(k->arena, m);
}

WEIR_FN bool arena_free(void* const* blocks, unsigned count) {
    bool some = false;
    for (unsigned i = 0; i < count;) {
        struct chunk* k = arena_chunk(blocks[i])->free;
        struct arena* a = k->arena;
        struct gone gone;
        gone.count = 0;
        arena_lock(a);
        while (k->arena == a) {
            block_wait(k, blocks[i]);
            if (++i == count) break;
            k = arena_chunk(blocks[i])->free;
        }
        some |= quick_settle(a);
        if ((a->empty & (a->empty - 1)) != 0) empty_remove(a, &gone);
        os_lock_give(&a->lock);
        gone_free(&gone);
        some |= gone.count != 0;
    }
    return some;
}

WEIR_FN bool arena_is_free(const struct slice* s, const void* p) {
    const struct chunk* k = s->free;
    os_lock_take(&k->arena->lock);
    uint32_t unit = (uint32_t)(((uintptr_t)p - k->address) >> UNIT_SHIFT);
    while (unit != 0 && !bit_is(k->starts, unit)) unit--;
    bool is_free = bit_is(k->free, unit) || is_quick(k, unit);
    os_lock_give(&k->arena->lock);
    return is_free;
}

WEIR_FN struct slice* arena_chunk(const void* p) {
    struct slice* s = slice_find(tag_clear(p));
    return load_relaxed(&s->kind) == SLICE_SLAB_REST ? s - s->back : s;
}

/* `all`: the last empty chunk too. */
static void arena_tidy(struct arena* a, bool all) {
    struct gone gone;
    gone.count = 0;
    arena_lock(a);
    quick_flush(a, 0);
    a->quick_told = 0;
    empty_remove(a, &gone);
    if (all && a->empty != 0) gone.slices[gone.count++] = chunk_remove(a->chunks[bit_low(a->empty)]);
    for (uint64_t left = a->made; left != 0; left &= left - 1) pages_publish(a->chunks[bit_low(left)]);
    os_lock_give(&a->lock);
    gone_free(&gone);
}

WEIR_FN void arena_publish_all(void) {
    for (uint32_t i = 0; i < load_relaxed(&arena_count); i++) {
        struct arena* a = &arenas[i];
        if (load_relaxed(&a->idle_count) != 0 || load_relaxed(&a->quick_units) != 0) arena_tidy(a, false);
    }
}

WEIR_FN void arena_trim_all(void) {
    for (uint32_t i = 0; i < load_relaxed(&arena_count); i++) arena_tidy(&arenas[i], true);
}

WEIR_FN uint64_t arena_used(unsigned m) {
    uint64_t used = 0;
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++) used += load_relaxed(&arenas[i].used[m]);
    return used;
}

WEIR_FN uint64_t arena_idle_bytes(void) {
    uint64_t idle = 0;
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++) {
        idle += (uint64_t)load_relaxed(&arenas[i].idle_count) << page_shift;
        idle += (uint64_t)load_relaxed(&arenas[i].quick_units) << UNIT_SHIFT;
    }
    return idle;
}

WEIR_FN bool arena_is_mine(void) {
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++)
        if (os_lock_is_mine(&arenas[i].lock)) return true;
    return false;
}

WEIR_FN void arena_lock_left(struct os_lock* lock) {
    arena_rebuild((struct arena*)((char*)lock - offsetof(struct arena, lock)));
}

WEIR_FN void arena_fork_child(void) {
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++) {
        struct arena* a = &arenas[i];
        if (os_lock_is_mine(&a->lock)) {
            a->torn = true;
            os_lock_fork_child(&a->lock, false);
        } else if (load_relaxed(&a->lock.owner) != NULL) {
            a->lock = (struct os_lock){.rank = LOCK_ARENA};
            arena_rebuild(a);
        }
    }
}

/* ---- Checks. */

static bool pages_check_block(const struct chunk* k, uint32_t unit, uint32_t units) {
    for (uint32_t page = unit >> units_shift(); page <= (unit + units - 1) >> units_shift(); page++) {
        uint32_t i = slice_of_page(page);
        uint32_t holes = hole_of(load_relaxed(&k->pages[i].state));
        if (((holes | k->idle[i]) & pages_in(i, page, page + 1)) != 0) return false;
    }
    return true;
}

/* Each page of a free run is idle or a hole. */
static bool pages_check_free(const struct chunk* k, uint32_t unit, uint32_t units) {
    uint32_t from = (unit + (1u << units_shift()) - 1) >> units_shift();
    uint32_t to = (unit + units) >> units_shift();
    for (uint32_t page = from; page < to; page++) {
        uint32_t i = slice_of_page(page);
        uint32_t mask = pages_in(i, page, page + 1);
        bool is_hole = (hole_of(load_relaxed(&k->pages[i].state)) & mask) != 0;
        if (is_hole == ((k->idle[i] & mask) != 0)) return false;
    }
    return true;
}

/* A block has one tag, none of the block before; returned in *tag. */
static bool tags_check_block(const struct chunk* k, uint32_t unit, uint32_t units, unsigned* tag) {
    const char* p = (const char*)(k->address + ((uintptr_t)unit << UNIT_SHIFT));
    unsigned before = *tag;
    *tag = tag_of(tag_read(p));
    if (*tag == 0 || *tag == before) return false;
    for (size_t at = 0; at < (size_t)units << UNIT_SHIFT; at += TAG_GRANULE)
        if (tag_of(tag_read(p + at)) != *tag) return false;
    return true;
}

/* The lists hold each of the chunk's free runs once. */
static bool lists_check(const struct chunk* k, uint32_t runs) {
    for (unsigned b = 0; b < RUN_BINS; b++) {
        uint32_t before = 0;
        for (uint32_t at = k->heads[b]; at != 0; at = k->next[(at - 1) / GROUP_UNITS]) {
            uint32_t group = (at - 1) / GROUP_UNITS;
            bool is_run = bit_is(k->starts, at - 1) && bit_is(k->free, at - 1);
            if (runs-- == 0 || !is_run || bin_of(k->length[group]) != b || k->prev[group] != before)
                return false;
            before = at;
        }
        if ((k->heads[b] != 0) != bit_is(&k->arena->with[b], k->index)) return false;
    }
    return runs == 0;
}

static bool run_check(const struct chunk* k, uint32_t unit, uint32_t units, bool is_free) {
    if (units == 0 || unit + units > chunk_end()) return false;
    for (uint32_t i = unit + 1; i < unit + units; i++)
        if (bit_is(k->starts, i) || bit_is(k->free, i) != (is_free && i == unit + units - 1)) return false;
    if (!is_free) return pages_check_block(k, unit, units);
    return k->start_of_last[(unit + units - 1) / GROUP_UNITS] == unit && pages_check_free(k, unit, units);
}

/* The quick lists hold so many blocks, each of its list's class; *units grows by theirs. */
static bool quick_check(const struct chunk* k, uint32_t count, uint32_t* units) {
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) {
        for (uint32_t at = k->quick[m]; at != 0; at = k->quick_next[(at - 1) / GROUP_UNITS]) {
            bool is_block = bit_is(k->starts, at - 1) && !bit_is(k->free, at - 1);
            if (count-- == 0 || !is_block || !is_quick(k, at - 1) || class_at(k, at - 1) != m) return false;
            *units += class_units(m);
        }
        if ((k->quick[m] != 0) != bit_is(&k->arena->quick_with[m], k->index)) return false;
    }
    return count == 0;
}

/* Counts the chunk's blocks in `used`, by class, and the units of quick ones. */
static bool chunk_check(const struct chunk* k, uint64_t* used, uint32_t* quick_units) {
    uint32_t blocks = 0;
    uint32_t quick_blocks = 0;
    uint32_t runs = 0;
    bool before_free = false;
    unsigned tag = 0;
    for (uint32_t unit = 0; unit < chunk_end();) {
        uint32_t group = unit / GROUP_UNITS;
        uint32_t known = load_relaxed(&k->blocks[group]);
        bool is_free = bit_is(k->free, unit);
        if (!bit_is(k->starts, unit) || (is_free && before_free)) return false;
        if (!is_free && (known == 0 || (known >> BLOCK_UNIT_SHIFT & BLOCK_UNIT) != unit % GROUP_UNITS))
            return false;
        uint32_t units = is_free ? k->length[group] : class_units(block_class(known));
        if (!run_check(k, unit, units, is_free)) return false;
        if (is_free) tag = 0;
        if (tag_is_on() && !is_free && !tags_check_block(k, unit, units, &tag)) return false;
        bool quick = !is_free && (known & BLOCK_QUICK) != 0;
        quick_blocks += quick;
        if (!is_free && !quick) used[block_class(known)]++;
        blocks += !is_free;
        runs += is_free;
        before_free = is_free;
        unit += units;
    }
    uint32_t known = 0;
    for (uint32_t group = 0; group < CHUNK_GROUPS; group++) known += load_relaxed(&k->blocks[group]) != 0;
    uint32_t idle = 0;
    for (uint32_t i = 0; i < CHUNK_SLICES; i++) idle += (uint32_t)__builtin_popcount(k->idle[i]);
    return blocks == k->used && known == blocks && idle == k->idle_count && lists_check(k, runs) &&
           quick_check(k, quick_blocks, quick_units);
}

static bool arena_check_one(const struct arena* a) {
    uint64_t used[MEDIUM_CLASSES] = {0};
    bool good = true;
    uint32_t idle = 0;
    uint32_t quick = 0;
    for (uint64_t left = a->made; left != 0; left &= left - 1) {
        const struct chunk* k = a->chunks[bit_low(left)];
        idle += k->idle_count;
        good &= chunk_check(k, used, &quick) && (k->used == 0) == bit_is(&a->empty, k->index);
    }
    for (unsigned b = 0; b < RUN_BINS; b++) good &= bit_is(a->bins, b) == (a->with[b] != 0);
    uint64_t used_units = 0;
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) {
        good &= used[m] == load_relaxed(&a->used[m]);
        used_units += used[m] * class_units(m);
    }
    return good && used_units == a->used_units && idle == a->idle_count && quick == a->quick_units &&
           (a->empty & ~a->made) == 0;
}

WEIR_FN bool arena_check(void) {
    bool good = true;
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++) {
        arena_lock(&arenas[i]);
        good &= arena_check_one(&arenas[i]);
        os_lock_give(&arenas[i].lock);
    }
    return good;
}
