/* arena.c: see arena.h. Which chunk a block comes from, and what waits before it becomes a free run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/arena.h"

#include "heap/chunk.h"
#include "heap/heap.h"
#include "os/lock.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"
#include "tag/tag.h"

/* Idle pages of an arena, in bytes, past which those of a chunk become holes; or so small a part of what is
 * in use, where that is more. */
enum { IDLE_BYTES_MAX = 262144, IDLE_PART_SHIFT = 4 };
/* So many blocks are merged before others have the lock. */
enum { FLUSH_BLOCKS = 1024 };

/* What a small process has of the first one lies on one page. */
WEIR_WIDE(arenas) static struct arena arenas[ARENA_COUNT_MAX] __attribute__((aligned(4096)));
static_assert(offsetof(struct arena, more) <= 4096, "which has the first bank");
static uint32_t arena_count; /* set by arena_start, before which there is none; Sync: relaxed */
/* Which arena each processor has, + 1; 0: none yet. Sync: relaxed; of two threads that give one any wins. */
enum { CPUS_KNOWN = 256 };
static uint8_t arena_of_cpu[CPUS_KNOWN];
static uint32_t cpus_seen;

/* So many blocks of class m are in use from now on; one is no more. */
static void used_add(struct arena* a, unsigned m, unsigned count) {
    store_relaxed(&a->used[m], a->used[m] + count);
    uint32_t used = a->used_units += count * class_units(m);
    uint32_t back = (used < a->used_high ? used : a->used_high) - a->used_low;
    if (back > a->swing) a->swing = back;
    if (used > a->used_high) a->used_high = a->used_low = used;
}
static void used_remove(struct arena* a, unsigned m) {
    store_relaxed(&a->used[m], a->used[m] - 1);
    uint32_t used = a->used_units -= class_units(m);
    if (used < a->used_low) a->used_low = used;
}

/* The chunk that a block lies in. */
static struct chunk* chunk_with(const void* p) { return chunk_of(slice_find(tag_clear(p))); }

/* ---- Tags, where memory has them. Under the lock, so that two neighbours do not choose at the same time. */

/* Those of the blocks on both sides, as a mask. A free run has none to differ from; nor is it looked at,
 * since it may have no memory. */
static uint32_t tags_beside(const struct chunk* k, uint32_t unit, uint32_t units) {
    uint32_t mask = TAG_NOT_NONE;
    const char* p = (const char*)(k->address + ((uintptr_t)unit << UNIT_SHIFT));
    uint32_t end = unit + units;
    if (unit != 0 && !free_is(k, unit - 1)) mask |= 1u << tag_of(tag_read(p - TAG_GRANULE));
    if (end != chunk_end() && !free_is(k, end))
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
    struct chunk* k = chunk_with(p);
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
    struct chunk* k = chunk_of(s);
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

/* No block of chunk k is in use; one is. */
static void chunk_emptied(struct chunk* k) {
    k->bank->empty |= 1ull << k->index;
    k->arena->empty |= 1ull << k->bank_index;
}
static void chunk_used(struct chunk* k) {
    if ((k->bank->empty &= ~(1ull << k->index)) == 0) k->arena->empty &= ~(1ull << k->bank_index);
}
static bool bits_are_several(uint64_t word) { return (word & (word - 1)) != 0; }
static bool empty_are_several(struct arena* a) {
    return a->empty != 0 && (bits_are_several(a->empty) || bits_are_several(bank_first(a, a->empty)->empty));
}

/* ---- Quick lists: freed blocks that no run has swallowed yet. Their pages stay as they are. */

static void quick_change(struct arena* a, uint32_t changed) {
    store_relaxed(&a->quick_units, a->quick_units + changed);
}

static void quick_link(struct chunk* k, uint32_t unit, unsigned m) {
    k->groups[unit / GROUP_UNITS].quick_next = k->quick[m];
    k->quick[m] = (uint16_t)(unit + 1);
    k->bank->quick_with[m] |= 1ull << k->index;
    k->arena->quick_with[m] |= 1ull << k->bank_index;
    quick_change(k->arena, class_units(m));
}

static void quick_push(struct chunk* k, uint32_t unit, unsigned m) {
    uint16_t* block = &k->blocks[unit / GROUP_UNITS];
    store_relaxed(block, (uint16_t)(load_relaxed(block) | BLOCK_KEPT | BLOCK_QUICK));
    commit();
    quick_link(k, unit, m);
    k->arena->quick_pushed++;
    k->arena->quick_came += class_units(m);
}

/* The first quick block of class m in chunk k, which has one, is on the list no more. */
static uint32_t quick_unlink(struct chunk* k, unsigned m) {
    uint32_t unit = k->quick[m] - 1u;
    k->quick[m] = k->groups[unit / GROUP_UNITS].quick_next;
    if (k->quick[m] == 0 && (k->bank->quick_with[m] &= ~(1ull << k->index)) == 0)
        k->arena->quick_with[m] &= ~(1ull << k->bank_index);
    quick_change(k->arena, 0 - class_units(m));
    return unit;
}

/* One of class m, of which there are some. These bits of what is known of it are not any more. */
static struct kept_block quick_take(struct arena* a, unsigned m, uint32_t bits) {
    struct chunk* k = quick_chunk(a, m);
    uint32_t unit = quick_unlink(k, m);
    commit();
    uint16_t* known = &k->blocks[unit / GROUP_UNITS];
    store_relaxed(known, (uint16_t)(load_relaxed(known) & ~bits));
    return (struct kept_block){(void*)(k->address + ((uintptr_t)unit << UNIT_SHIFT)), known};
}

WEIR_NOINLINE static void* quick_pop(struct arena* a, unsigned m, uint32_t align_units,
                                     struct arena_more* more) {
    if (tag_is_on()) return NULL;
    const struct chunk* k = quick_chunk(a, m);
    if (((k->quick[m] - 1u) & (align_units - 1)) != 0) return NULL;
    void* p = quick_take(a, m, BLOCK_KEPT | BLOCK_QUICK | BLOCK_FRESH).block;
    unsigned along = 0;
    if (more != NULL) {
        while (along < more->most && a->quick_with[m] != 0)
            more->blocks[along++] = quick_take(a, m, BLOCK_QUICK);
        more->count = along;
    }
    used_add(a, m, along + 1);
    return p;
}

static bool block_give(struct chunk* k, uint32_t unit, unsigned m);

/* Of the quick blocks of class m so many become free runs, at most. True: pages became holes. */
static bool quick_flush_class(struct arena* a, unsigned m, uint32_t* most) {
    bool published = false;
    for (; a->quick_with[m] != 0 && *most != 0; --*most) {
        struct chunk* k = quick_chunk(a, m);
        published |= block_give(k, quick_unlink(k, m), m);
    }
    return published;
}

/* Those of the next class that has some, in turns. There are some. */
static bool quick_flush_next(struct arena* a, uint32_t* most) {
    do a->quick_hand = (a->quick_hand + 1) % MEDIUM_CLASSES;
    while (a->quick_with[a->quick_hand] == 0);
    return quick_flush_class(a, a->quick_hand, most);
}

/* Until no more than `left` units wait, or as much was done as others are to wait for. */
static bool quick_flush(struct arena* a, uint32_t left) {
    bool published = false;
    for (uint32_t most = FLUSH_BLOCKS; a->quick_units > left && most != 0;)
        published |= quick_flush_next(a, &most);
    return published;
}

/* A little may wait anyway. None where memory is tagged: a block that comes back gets another tag than its
 * neighbours under the lock. */
static void quick_allow(struct arena* a) {
    enum { chunks_most = QUICK_BYTES / QUICK_CHUNK_BYTES };
    uint32_t chunks = 0;
    for (unsigned i = 0; i < ARENA_BANKS && bank_at(a, i) != NULL && chunks < chunks_most; i++)
        chunks += (uint32_t)__builtin_popcountll(bank_at(a, i)->made);
    uint32_t least = (chunks < chunks_most ? chunks : chunks_most) * QUICK_CHUNK_BYTES;
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
    a->quick_pushed = a->quick_came = 0;
    a->swing = 0;
    a->used_high = a->used_low = a->used_units;
}

static uint32_t idle_least(void) { return (uint32_t)IDLE_BYTES_MAX >> page_shift; }
static uint32_t idle_most(const struct arena* a) {
    uint32_t part = a->used_units >> (IDLE_PART_SHIFT + units_shift());
    return part > idle_least() ? part : idle_least();
}
/* Units of idle pages that are more than are idle anyway. */
static uint32_t idle_more(const struct arena* a) {
    return a->idle_count <= idle_least() ? 0 : (a->idle_count - idle_least()) << units_shift();
}

/* After blocks came. True: there is something for a pass. How much may wait is seen anew once a bit more came
 * than was in use, so that what goes down and up does both meanwhile. */
static bool quick_settle(struct arena* a) {
    const uint32_t step = QUICK_BYTES >> UNIT_SHIFT;
    if (a->quick_pushed >= QUICK_LOOK && a->quick_came >= a->used_high + a->used_high / 8) quick_pace(a);
    bool some = false;
    if (weir_unlikely(a->quick_units > a->quick_most)) some = quick_flush(a, a->quick_most / 2);
    uint32_t waits = a->quick_units + idle_more(a);
    if (weir_unlikely(waits > a->told + step)) {
        a->told = waits;
        add_relaxed(&release_owed, (uint64_t)QUICK_BYTES);
        some = true;
    }
    return some;
}

WEIR_WIDE(arena_records)
static struct arena_records records; /* Sync: relaxed atomics */

/* A bank with the records of all of its chunks. In a mapping of its own: among the spans they would part what
 * is to be a long one again once the chunks are gone, for good. NULL: no memory. */
static struct bank* bank_make(void) {
    static_assert(sizeof(struct bank) % 64 == 0 && sizeof(struct chunk) % 64 == 0, "records lie on lines");
    size_t bytes = align_up(sizeof(struct bank) + BANK_CHUNKS * sizeof(struct chunk), os_page_bytes());
    struct bank* bank = os_reserve(bytes, os_page_bytes());
    if (bank == NULL) return NULL;
    (void)os_advise_huge(bank, bytes, OS_HUGE_NEVER);
    if (!os_commit(bank, bytes)) {
        os_unmap(bank, bytes);
        return NULL;
    }
    bank->records = (struct chunk*)(void*)(bank + 1);
    add_relaxed(&records.mapped, bytes);
    add_relaxed(&records.used, sizeof(struct bank));
    return bank;
}

/* The first bank that has room for a chunk; NULL: there is none. */
static struct bank* bank_with_room(struct arena* a, unsigned* index) {
    for (*index = 0; *index < ARENA_BANKS; ++*index) {
        struct bank* bank = bank_at(a, *index);
        if (bank == NULL) return a->more[*index - 1] = bank_make();
        if (~bank->made != 0) return bank;
    }
    return NULL;
}

static struct chunk* record_make(struct bank* bank, unsigned index) {
    return bank->records != NULL ? &bank->records[index] : span_meta_alloc(sizeof(struct chunk));
}

/* The record of chunk k, which has no memory, has some no more, as soon as a visitor comes. */
static void chunk_goes(struct chunk* k) {
    store_relaxed(&k->arena->gone, k->arena->gone | 1ull << k->bank_index);
    commit();
    store_relaxed(&k->bank->gone, k->bank->gone | 1ull << k->index);
}

static bool chunk_add(struct arena* a) {
    unsigned bank_index;
    struct bank* bank = bank_with_room(a, &bank_index);
    if (bank == NULL) return false;
    unsigned index = bit_low(~bank->made);
    struct chunk* k = bank->chunks[index];
    if (k == NULL) k = bank->chunks[index] = record_make(bank, index);
    if (k == NULL) return false;
    bank->held |= 1ull << index; /* before it is written to: see bank_purge */
    commit();
    store_relaxed(&bank->gone, bank->gone & ~(1ull << index));
    commit();
    store_relaxed(&k->arena, a);
    k->bank = bank;
    k->bank_index = (uint16_t)bank_index;
    k->index = (uint16_t)index;
    bool fresh;
    struct slice* s = span_alloc_slab(CHUNK_SLICES, true, &fresh);
    if (s == NULL) {
        chunk_goes(k);
        commit();
        bank->held &= ~(1ull << index);
        return false;
    }
    k->slice = s;
    k->address = slice_address(s);
    k->pages = slice_pages(s);
    k->untouched = fresh ? 0 : CHUNK_SLICES * slice_page_count();
    chunk_forget(k);
    for (unsigned i = 0; i < CHUNK_WORDS; i++) k->bits[i] = (struct unit_bits){0, 0};
    for (unsigned i = 0; i < CHUNK_GROUPS; i++) store_relaxed(&k->blocks[i], (uint16_t)0);
    span_mark_rest(s);
    s->back = 0;
    for (uint32_t i = 0; i < CHUNK_SLICES; i++) {
        store_relaxed(&s[i].blocks, &k->blocks[i * SLICE_GROUPS]);
        /* Release: publishes the record to the census and the pass. */
        store_release(&s[i].kind, (uint8_t)(i == 0 ? SLICE_CHUNK : SLICE_CHUNK_REST));
    }
    for (uint32_t i = 0; i < CHUNK_SLICES; i++) hole_publish(s + i);
    free_put(k, 0);
    starts_put(k, 0);
    chunk_emptied(k);
    commit();
    bank->made |= 1ull << index;
    commit();
    bank->held &= ~(1ull << index);
    if (bank->records != NULL) add_relaxed(&records.used, sizeof(struct chunk));
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
    if (--k->used == 0) chunk_emptied(k);
    if (a->idle_count <= idle_most(a)) return false;
    pages_publish(k);
    return true;
}

/* Under the lock: an empty chunk is the arena's no more. Returns its span, which is to be given
 * back without the lock. Until it is, what is freed into it once more is to meet no chunk, since the record
 * may be the next one's, or purged. */
static struct slice* chunk_remove(struct chunk* k) {
    struct slice* s = k->slice;
    struct bank* bank = k->bank;
    const uint64_t bit = 1ull << k->index;
    run_remove(k, 0);
    idle_change(k, 0 - k->idle_count);
    bank->held |= bit;
    commit();
    bank->made &= ~bit;
    if (bank->records != NULL) sub_relaxed(&records.used, sizeof(struct chunk));
    chunk_used(k);
    for (uint32_t i = 0; i < CHUNK_SLICES; i++) /* not before: a fork's child repairs what is made */
        store_release(&s[i].kind, (uint8_t)(i == 0 ? SLICE_SPARE : SLICE_SLAB_REST));
    chunk_goes(k); /* from here on a handler may purge the record */
    commit();
    bank->held &= ~bit;
    return s;
}

/* Spans that are to be given back without the lock, as many as are at once. */
enum { GONE_MOST = 64 };
struct gone {
    unsigned count;
    struct slice* slices[GONE_MOST];
};
static void gone_free(const struct gone* g) {
    for (unsigned i = 0; i < g->count; i++) span_free_paged(g->slices[i]);
}

/* Of the empty chunks one stays, the lowest; or more, where more are empty than go at once. */
static void empty_remove(struct arena* a, struct gone* g) {
    bool stays = false;
    for (unsigned i = 0; i < ARENA_BANKS && bank_at(a, i) != NULL; i++)
        for (uint64_t left = bank_at(a, i)->empty; left != 0; left &= left - 1) {
            if (g->count == GONE_MOST) return;
            if (stays) g->slices[g->count++] = chunk_remove(bank_at(a, i)->chunks[bit_low(left)]);
            stays = true;
        }
}

/* No block starts at the unit. */
static void block_forget(struct chunk* k, uint32_t unit) {
    uint16_t* block = &k->blocks[unit / GROUP_UNITS];
    uint32_t known = load_relaxed(block);
    if ((known >> BLOCK_UNIT_SHIFT & BLOCK_UNIT) == unit % GROUP_UNITS) store_relaxed(block, (uint16_t)0);
}

/* Nothing starts within the block that the units are: it may have just grown by a free run. */
static void block_clear(struct chunk* k, uint32_t unit, uint32_t units) {
    for (uint32_t i = unit + 1; i < unit + units; i++) {
        starts_clear(k, i);
        free_clear(k, i);
    }
}

/* All but the bits anew from the bits. */
static void chunk_rebuild(struct chunk* k) {
    uint32_t last = chunk_end();
    chunk_forget(k);
    uint32_t start = 0;  /* of the free run that goes on, or 0 where none does */
    uint32_t behind = 0; /* the last block: free where none starts, as several were being taken at once */
    bool open = false;
    for (uint32_t unit = 0; unit <= last; unit++) {
        bool ends = unit == last || (starts_is(k, unit) && !free_is(k, unit));
        bool starts = unit != last && !ends && (starts_is(k, unit) || unit == behind);
        if (starts && !open) {
            start = unit;
            open = true;
        } else if (unit != last && !ends) {
            starts_clear(k, unit);
            free_clear(k, unit);
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
        behind = unit + class_units(m);
        block_clear(k, unit, class_units(m));
        if ((load_relaxed(&k->blocks[unit / GROUP_UNITS]) & BLOCK_QUICK) != 0)
            quick_link(k, unit, m);
        else
            used_add(k->arena, m, 1);
    }
    if (k->used == 0) chunk_emptied(k);
}

static void bank_forget(struct bank* bank) {
    bank->empty = 0;
    for (unsigned b = 0; b < RUN_BINS; b++) bank->with[b] = 0;
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) bank->quick_with[m] = 0;
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
    for (unsigned i = 0; i < ARENA_BANKS && bank_at(a, i) != NULL; i++) bank_forget(bank_at(a, i));
    for (unsigned i = 0; i < ARENA_BANKS && bank_at(a, i) != NULL; i++)
        for (uint64_t left = bank_at(a, i)->made; left != 0; left &= left - 1)
            chunk_rebuild(bank_at(a, i)->chunks[bit_low(left)]);
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
    /* Nothing is written but in debug builds: an arena that is not used takes no memory. */
    for (unsigned i = 0; i < count; i++) os_lock_rank_give(&arenas[i].lock, LOCK_ARENA);
    store_relaxed(&arena_count, count);
}

/* A visitor is in the arena, and gone soon: what is free here is worth more than the wait. */
static bool arena_waits(struct arena* a) {
    return !os_lock_is_mine(&a->lock) && load_relaxed(&a->visited) && os_lock_take_soon(&a->lock);
}

/* The arena of the processor that the thread runs on. Processors get theirs in the order in which they are
 * seen, as those that a process may use can have any numbers. */
WEIR_NOINLINE static uint32_t cpu_arena(void) {
    uint32_t cpu = os_cpu_number();
    if (weir_unlikely(cpu == OS_CPU_UNKNOWN)) return 0;
    uint8_t* known = &arena_of_cpu[cpu % CPUS_KNOWN];
    uint32_t plus_one = load_relaxed(known);
    if (weir_unlikely(plus_one == 0)) {
        plus_one = add_relaxed(&cpus_seen, 1) % load_relaxed(&arena_count) + 1;
        store_relaxed(known, (uint8_t)plus_one);
    }
    return plus_one - 1;
}

/* Another thread is in arena `i`, and no visitor. The next one serves, from now on; or each processor's own
 * from now on, where there are more threads than arenas. */
WEIR_NOINLINE static struct arena* arena_next(uint32_t* home, uint32_t i) {
    uint32_t count = load_relaxed(&arena_count);
    bool by_cpu = load_relaxed(&heap_totals.heaps_live) > count && os_cpu_number() != OS_CPU_UNKNOWN;
    i = (i + 1) % count;
    *home = by_cpu ? ARENA_BY_CPU : i;
    os_lock_take(&arenas[i].lock);
    return &arenas[i];
}

/* The home's arena, locked; another one where somebody is in that just now. */
static struct arena* arena_enter(uint32_t* home) {
    uint32_t i = *home == ARENA_BY_CPU ? cpu_arena() : *home;
    struct arena* a = &arenas[i];
    if (weir_unlikely(os_lock_is_mine(&a->lock) || !os_lock_try(&a->lock)) && !arena_waits(a))
        a = arena_next(home, i);
    arena_settle(a);
    return a;
}

/* So many blocks were taken off a run of chunk k. */
static void run_taken(struct chunk* k, unsigned m, unsigned count) {
    k->used += count;
    chunk_used(k);
    used_add(k->arena, m, count);
}

/* Several blocks at once off the run that starts at `start` in chunk k. NULL: there are not several, or their
 * pages are not to be had. */
WEIR_NOINLINE static void* run_take_some(struct chunk* k, uint32_t start, unsigned m, bool resident,
                                         struct arena_more* more) {
    uint32_t units = class_units(m);
    uint32_t along = k->groups[start / GROUP_UNITS].length / units - 1;
    if (along > more->fresh) along = more->fresh;
    if (along == 0 || tag_is_on()) return NULL;
    if (pages_take(k, start, units * (along + 1), resident) != PAGES_TAKEN) return NULL;
    run_take(k, start, start, units * (along + 1), m);
    run_divide(k, start, units, m, along);
    for (unsigned i = 0; i < along; i++) {
        uint32_t at = start + (i + 1) * units;
        void* p = (void*)(k->address + ((uintptr_t)at << UNIT_SHIFT));
        more->blocks[i] = (struct kept_block){p, &k->blocks[at / GROUP_UNITS]};
    }
    more->count = along;
    run_taken(k, m, along + 1);
    return (void*)(k->address + ((uintptr_t)start << UNIT_SHIFT));
}

/* One attempt, under the lock. `resident`: none that needs more memory. */
static void* arena_try(struct arena* a, unsigned m, uint32_t align_units, bool resident,
                       struct arena_more* more, bool* busy) {
    uint32_t units = class_units(m);
    uint32_t start;
    uint32_t unit;
    struct chunk* k;
    *busy = false;
    if (a->quick_with[m] != 0) {
        void* quick = quick_pop(a, m, align_units, more);
        if (quick != NULL) return quick;
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
        if (weir_unlikely(more != NULL && more->fresh != 0 && align_units == 1)) {
            void* some = run_take_some(k, start, m, resident || merge || more->resident, more);
            if (some != NULL) return some;
        }
        enum pages pages = pages_take(k, unit, units, resident || merge);
        if (pages == PAGES_TAKEN) break;
        *busy = pages == PAGES_BUSY;
        if (pages == PAGES_BUSY || !merge) return NULL;
        uint32_t most = FLUSH_BLOCKS;
        quick_flush_next(a, &most);
    }
    run_take(k, start, unit, units, m);
    run_taken(k, m, 1);
    return (void*)(k->address + ((uintptr_t)unit << UNIT_SHIFT));
}

WEIR_INLINE void* alloc_as(uint32_t* home, unsigned m, size_t align, bool zero, bool resident,
                           struct arena_more* more) {
    enum { tries = 4 };
    uint32_t align_units = align > UNIT_BYTES ? (uint32_t)(align >> UNIT_SHIFT) : 1;
    void* p = NULL;
    for (unsigned i = 0; i < tries; i++) {
        bool busy;
        struct arena* a = arena_enter(home);
        p = arena_try(a, m, align_units, resident, more, &busy);
        if (tag_is_on() && p != NULL) p = medium_tag(p, zero);
        os_lock_give(&a->lock);
        if (!busy || !release_wait(NULL)) break;
    }
    return p;
}

WEIR_FN WEIR_NOINLINE void* arena_alloc(uint32_t* home, unsigned m, size_t align, struct arena_more* more) {
    return alloc_as(home, m, align, false, false, more);
}

WEIR_FN WEIR_NOINLINE void* arena_alloc_zeroed(uint32_t* home, unsigned m, size_t align) {
    return alloc_as(home, m, align, true, false, NULL);
}

WEIR_FN WEIR_NOINLINE void* arena_alloc_resident(uint32_t* home, unsigned m, size_t align,
                                                 struct arena_more* more) {
    return alloc_as(home, m, align, false, true, more);
}

/* Whether so many units are free behind the block's end. */
static bool run_is_behind(const struct chunk* k, uint32_t end, uint32_t units) {
    return end != chunk_end() && starts_is(k, end) && free_is(k, end) &&
           k->groups[end / GROUP_UNITS].length >= units;
}

WEIR_FN bool arena_grow(struct slice* s, const void* p, unsigned m) {
    struct chunk* k = chunk_of(s);
    struct arena* a = k->arena;
    uint32_t unit = (uint32_t)(((uintptr_t)p - k->address) >> UNIT_SHIFT);
    arena_lock(a);
    unsigned before = class_at(k, unit);
    bool grows = before < m && !is_quick(k, unit);
    if (grows) {
        uint32_t end = unit + class_units(before);
        uint32_t more = class_units(m) - class_units(before);
        grows = run_is_behind(k, end, more) && pages_take(k, end, more, false) == PAGES_TAKEN;
    }
    if (grows) {
        run_join(k, unit, m);
        used_remove(a, before);
        used_add(a, m, 1);
    }
    os_lock_give(&a->lock);
    return grows;
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
        struct chunk* k = chunk_with(blocks[i]);
        struct arena* a = k->arena;
        struct gone gone;
        gone.count = 0;
        arena_lock(a);
        while (k->arena == a) {
            block_wait(k, blocks[i]);
            if (++i == count) break;
            k = chunk_with(blocks[i]);
        }
        some |= quick_settle(a);
        if (empty_are_several(a)) empty_remove(a, &gone);
        os_lock_give(&a->lock);
        gone_free(&gone);
        some |= gone.count != 0;
    }
    return some;
}

WEIR_FN bool arena_is_free(const struct slice* s, const void* p) {
    struct chunk* k;
    struct arena* a = arena_chunk_stays(s, &k) ? load_relaxed(&k->arena) : NULL;
    if (a == NULL) return true; /* the record's memory went with the chunk */
    os_lock_take(&a->lock);
    bool is_free = k->slice != s; /* another chunk's by now */
    if (!is_free) {
        uint32_t unit = (uint32_t)(((uintptr_t)p - k->address) >> UNIT_SHIFT);
        while (unit != 0 && !starts_is(k, unit)) unit--;
        is_free = free_is(k, unit) || is_quick(k, unit);
    }
    os_lock_give(&a->lock);
    return is_free;
}

static void visit_begin(struct arena* a) {
    arena_lock(a);
    store_relaxed(&a->visited, true);
}
static void visit_end(struct arena* a) {
    store_relaxed(&a->visited, false);
    os_lock_give(&a->lock);
}

/* What waits becomes runs, and chunks without a block go, all but one; `all`: that one too. No more at once
 * than others are to wait for. True: there is more. */
static bool arena_drain(struct arena* a, bool all) {
    struct gone gone;
    gone.count = 0;
    visit_begin(a);
    quick_flush(a, 0);
    a->told = 0;
    empty_remove(a, &gone);
    bool more = a->quick_units != 0 || gone.count == GONE_MOST;
    if (all && !more && a->empty != 0) {
        struct bank* bank = bank_first(a, a->empty);
        gone.slices[gone.count++] = chunk_remove(bank->chunks[bit_low(bank->empty)]);
    }
    visit_end(a);
    gone_free(&gone);
    return more;
}

/* What bank i has idle becomes holes, and records without a chunk go. False: there is no such bank. */
static bool bank_tidy(struct arena* a, unsigned i) {
    visit_begin(a);
    struct bank* bank = bank_at(a, i);
    if (bank != NULL) {
        for (uint64_t left = bank->made; left != 0; left &= left - 1)
            pages_publish(bank->chunks[bit_low(left)]);
        bank_purge(bank);
        store_relaxed(&a->gone, a->gone & ~(1ull << i));
    }
    visit_end(a);
    return bank != NULL;
}

/* What waits when it starts, and no more: other threads may bring more all the time. */
static uint32_t rounds_for(uint32_t quick_units) {
    return quick_units / (FLUSH_BLOCKS * (GROUP_UNITS + 1)) + ARENA_BANKS + 1;
}
static void arena_tidy(struct arena* a, bool all) {
    uint32_t rounds = rounds_for(load_relaxed(&a->quick_units));
    while (rounds-- != 0 && arena_drain(a, all)) continue;
    for (unsigned i = 0; i < ARENA_BANKS && bank_tidy(a, i);) i++;
}

WEIR_FN void arena_publish_all(void) {
    for (uint32_t i = 0; i < load_relaxed(&arena_count); i++) {
        struct arena* a = &arenas[i];
        bool some = load_relaxed(&a->idle_count) != 0 || load_relaxed(&a->quick_units) != 0;
        if (some || load_relaxed(&a->gone) != 0) arena_tidy(a, false);
    }
}

WEIR_FN void arena_trim_all(void) {
    for (uint32_t i = 0; i < load_relaxed(&arena_count); i++) arena_tidy(&arenas[i], true);
}

WEIR_FN uint64_t arena_free_bytes(void) {
    uint64_t units = 0;
    for (uint32_t n = 0; n < load_relaxed(&arena_count); n++) {
        struct arena* a = &arenas[n];
        arena_lock(a);
        for (unsigned i = 0; i < ARENA_BANKS && bank_at(a, i) != NULL; i++)
            units += (uint64_t)__builtin_popcountll(bank_at(a, i)->made) * CHUNK_UNITS;
        units -= a->used_units;
        os_lock_give(&a->lock);
    }
    return units << UNIT_SHIFT;
}

WEIR_FN void arena_yield(uint64_t enough) {
    for (uint32_t i = 0; i < load_relaxed(&arena_count); i++) {
        struct arena* a = &arenas[i];
        uint32_t rounds = rounds_for(load_relaxed(&a->quick_units));
        while (rounds-- != 0 && load_relaxed(&span_totals.dirty) < enough && arena_drain(a, false)) continue;
    }
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

WEIR_FN struct arena_records arena_records(void) {
    return (struct arena_records){load_relaxed(&records.mapped), load_relaxed(&records.used)};
}

WEIR_FN bool arena_is_mine(void) {
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++)
        if (os_lock_is_mine(&arenas[i].lock)) return true;
    return false;
}

WEIR_FN bool arena_is_torn(void) {
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++)
        if (arenas[i].torn) return true;
    return false;
}

WEIR_FN bool arenas_fork_take(void) {
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++) {
        if (os_lock_take_soon(&arenas[i].lock)) continue;
        while (i-- != 0) os_lock_give(&arenas[i].lock);
        return false;
    }
    return true;
}

WEIR_FN void arenas_fork_give(void) {
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++) os_lock_give(&arenas[i].lock);
}

WEIR_FN void arena_lock_left(struct os_lock* lock) {
    uintptr_t at = (uintptr_t)lock - (uintptr_t)arenas;
    if (at < sizeof arenas) arena_rebuild(&arenas[at / sizeof arenas[0]]);
}

WEIR_FN void arena_fork_child(bool complete) {
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++) {
        struct arena* a = &arenas[i];
        store_relaxed(&a->visited, false);
        if (complete) {
            os_lock_fork_child(&a->lock, false);
        } else if (os_lock_is_mine(&a->lock)) {
            a->torn = true;
            os_lock_fork_child(&a->lock, false);
        } else if (load_relaxed(&a->lock.owner) != NULL) {
            a->lock = (struct os_lock){.rank = LOCK_ARENA};
            arena_rebuild(a);
        }
    }
}

WEIR_FN bool arena_check(void) {
    bool good = true;
    for (unsigned i = 0; i < load_relaxed(&arena_count); i++) {
        arena_lock(&arenas[i]);
        good &= arena_is_sound(&arenas[i]);
        os_lock_give(&arenas[i].lock);
    }
    return good;
}
