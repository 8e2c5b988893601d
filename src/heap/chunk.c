/* chunk.c: see chunk.h.
 *
 * Free runs hang in lists by length, exact up to 15 units, then eight per power of two, which is where the
 * size classes lie, so that any run of a class's list fits. For each length a word says which of an arena's
 * banks have such a run, and one of each bank which of its chunks: the lowest chunk with the shortest run
 * that fits is three looks away.
 *
 * A page that no block touches is idle first: free, resident, and the arena's own. When more than a few of
 * them are, they become holes (page/hole.h), which the release pass may have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/chunk.h"

#include "os/os.h"
#include "page/hole.h"
#include "page/span.h"

/* ---- Free runs. */

/* The first list all of whose runs have so many units. */
static unsigned bin_that_fits(uint32_t units) {
    return units < BINS_EXACT ? units : bin_of(units + (1u << (bit_high(units) - 3)) - 1);
}
static_assert(RUN_BINS == BINS_EXACT + (13 - 4) * 8 + 1 && CHUNK_UNITS == 1 << 13,
              "the longest run has a list");

static void bin_has(struct chunk* k, unsigned b) {
    struct arena* a = k->arena;
    k->bank->with[b] |= 1ull << k->index;
    a->with[b] |= 1ull << k->bank_index;
    a->bins[b / 64] |= 1ull << (b % 64);
}
static void bin_has_none(struct chunk* k, unsigned b) {
    struct arena* a = k->arena;
    if ((k->bank->with[b] &= ~(1ull << k->index)) != 0) return;
    if ((a->with[b] &= ~(1ull << k->bank_index)) == 0) a->bins[b / 64] &= ~(1ull << (b % 64));
}

WEIR_FN void run_insert(struct chunk* k, uint32_t unit, uint32_t units) {
    free_put(k, unit);
    commit();
    starts_put(k, unit);
    uint32_t last = unit + units - 1;
    free_put(k, last);
    unsigned b = bin_of(units);
    uint32_t group = unit / GROUP_UNITS;
    k->groups[group].length = (uint16_t)units;
    k->groups[last / GROUP_UNITS].start_of_last = (uint16_t)unit;
    k->groups[group].prev = 0;
    k->groups[group].next = k->heads[b];
    if (k->heads[b] != 0)
        k->groups[(k->heads[b] - 1) / GROUP_UNITS].prev = (uint16_t)(unit + 1);
    else
        bin_has(k, b);
    k->heads[b] = (uint16_t)(unit + 1);
}

WEIR_FN uint32_t run_remove(struct chunk* k, uint32_t unit) {
    uint32_t group = unit / GROUP_UNITS;
    uint32_t units = k->groups[group].length;
    unsigned b = bin_of(units);
    uint16_t next = k->groups[group].next;
    uint16_t prev = k->groups[group].prev;
    if (next != 0) k->groups[(next - 1) / GROUP_UNITS].prev = prev;
    if (prev != 0)
        k->groups[(prev - 1) / GROUP_UNITS].next = next;
    else if ((k->heads[b] = next) == 0)
        bin_has_none(k, b);
    return units;
}

/* The shortest free run that holds so many units, in the lowest chunk. */
static struct chunk* run_find(struct arena* a, uint32_t units, uint32_t* unit) {
    unsigned b = bin_that_fits(units);
    for (unsigned word = b / 64; word < BIN_WORDS; word++) {
        uint64_t bits = a->bins[word];
        if (word == b / 64) bits &= ~0ull << (b % 64);
        if (bits == 0) continue;
        b = word * 64 + bit_low(bits);
        const struct bank* bank = bank_first(a, a->with[b]);
        struct chunk* k = bank->chunks[bit_low(bank->with[b])];
        *unit = k->heads[b] - 1u;
        return k;
    }
    return NULL;
}

WEIR_FN struct chunk* run_find_aligned(struct arena* a, uint32_t units, uint32_t align_units,
                                       uint32_t* unit) {
    struct chunk* k = run_find(a, units, unit);
    if (k == NULL || align_units == 1) return k;
    uint32_t end = *unit + k->groups[*unit / GROUP_UNITS].length;
    if (align_up(*unit, align_units) + units <= end) return k;
    return run_find(a, units + align_units - 1, unit);
}

WEIR_FN void run_take(struct chunk* k, uint32_t start, uint32_t unit, uint32_t units, unsigned m) {
    uint32_t length = run_remove(k, start);
    uint32_t end = start + length;
    if (unit != start) {
        free_put(k, unit);
        commit();
        starts_put(k, unit);
        run_insert(k, start, unit - start);
    }
    store_relaxed(&k->blocks[unit / GROUP_UNITS],
                  (uint16_t)((unit % GROUP_UNITS) << BLOCK_UNIT_SHIFT | (m + 1)));
    if (unit + units != end)
        run_insert(k, unit + units, end - unit - units);
    else
        free_clear(k, end - 1);
    commit();
    free_clear(k, unit);
}

/* Until all have started there is a gap between two of them, where nothing does: see chunk_rebuild. */
WEIR_FN void run_divide(struct chunk* k, uint32_t unit, uint32_t units, unsigned m, unsigned more) {
    for (uint32_t at = unit + more * units; at != unit; at -= units) {
        store_relaxed(&k->blocks[at / GROUP_UNITS], (uint16_t)((at % GROUP_UNITS) << BLOCK_UNIT_SHIFT |
                                                               (m + 1) | BLOCK_KEPT | BLOCK_FRESH));
        commit();
        starts_put(k, at);
    }
}

/* What is known of the block decides where it ends: a start of a free run in it means nothing. */
WEIR_FN void run_join(struct chunk* k, uint32_t unit, unsigned m) {
    uint16_t* block = &k->blocks[unit / GROUP_UNITS];
    uint32_t known = load_relaxed(block);
    uint32_t start = unit + class_units(block_class(known));
    uint32_t end = start + run_remove(k, start);
    uint32_t rest = unit + class_units(m);
    if (rest != end) run_insert(k, rest, end - rest);
    commit();
    store_relaxed(block, (uint16_t)((known & ~BLOCK_CLASS) | (m + 1)));
    commit();
    starts_clear(k, start);
    commit();
    free_clear(k, start);
    if (rest == end) free_clear(k, end - 1);
}

WEIR_FN void run_give(struct chunk* k, uint32_t unit, uint32_t units, uint32_t* from, uint32_t* to) {
    uint32_t start = unit;
    uint32_t end = unit + units;
    free_put(k, unit);
    commit();
    store_relaxed(&k->blocks[unit / GROUP_UNITS], (uint16_t)0);
    if (end != CHUNK_UNITS && free_is(k, end)) {
        uint32_t next = end;
        end += run_remove(k, next);
        starts_clear(k, next);
        commit();
        free_clear(k, next);
    }
    if (start != 0 && free_is(k, start - 1)) {
        start = k->groups[(unit - 1) / GROUP_UNITS].start_of_last;
        run_remove(k, start);
        starts_clear(k, unit);
        commit();
        free_clear(k, unit);
        if (unit - 1 != start) free_clear(k, unit - 1);
    }
    run_insert(k, start, end - start);
    *from = start;
    *to = end;
}

/* ---- Pages. */

WEIR_FN uint32_t pages_in(uint32_t i, uint32_t from, uint32_t to) {
    uint32_t count = slice_page_count();
    uint32_t first = i * count;
    if (from >= first + count || to <= first || from >= to) return 0;
    uint32_t low = from > first ? from - first : 0;
    uint32_t high = to < first + count ? to - first : count;
    return (2u << (high - 1)) - (1u << low);
}

/* Of a slice's mask; without the function that compilers call for it where the processor may lack it. */
static uint32_t mask_pages(uint32_t mask) {
    static_assert(SLICE_PAGES_MAX == 16, "bits of a mask");
    mask -= mask >> 1 & 0x5555;
    mask = (mask & 0x3333) + (mask >> 2 & 0x3333);
    mask = (mask + (mask >> 4)) & 0x0f0f;
    return (mask + (mask >> 8)) & 0x1f;
}

WEIR_FN void idle_change(struct chunk* k, uint32_t changed) {
    k->idle_count += changed;
    store_relaxed(&k->arena->idle_count, k->arena->idle_count + changed);
}
WEIR_FN void idle_set(struct chunk* k, uint32_t i, uint32_t mask) {
    uint32_t changed = mask_pages(mask & ~(uint32_t)k->idle[i]);
    k->idle[i] |= (uint16_t)mask;
    idle_change(k, changed);
}
static void idle_clear(struct chunk* k, uint32_t i, uint32_t mask) {
    uint32_t idle = mask & k->idle[i];
    if (idle == 0) return;
    k->idle[i] &= (uint16_t)~mask;
    idle_change(k, 0 - mask_pages(idle));
}

WEIR_FN enum pages pages_take(struct chunk* k, uint32_t unit, uint32_t units, bool resident) {
    uint32_t from = unit >> units_shift();
    uint32_t to = ((unit + units - 1) >> units_shift()) + 1;
    uint32_t first = slice_of_page(from);
    uint32_t last = slice_of_page(to - 1);
    enum { most = CHUNK_MAX / SLICE_BYTES + 1 }; /* slices that a block lies in */
    uint32_t mask[most];
    uint32_t got[most];
    if (resident && to > k->untouched) return PAGES_CLEAN;
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
    if (to > k->untouched) k->untouched = to;
    return PAGES_TAKEN;
}

WEIR_FN void pages_give(struct chunk* k, uint32_t unit, uint32_t units, uint32_t from, uint32_t to) {
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

WEIR_FN void pages_publish(struct chunk* k) {
    for (uint32_t i = 0; i < CHUNK_SLICES && k->idle_count != 0; i++) {
        if (k->idle[i] == 0) continue;
        hole_add(k->slice + i, k->idle[i]);
        idle_clear(k, i, k->idle[i]);
    }
}

/* ---- Records. */

/* Record `index` of the bank; NULL: it was never made. */
static struct chunk* record_at(struct bank* bank, unsigned index) {
    return bank->records != NULL ? &bank->records[index] : bank->chunks[index];
}

/* Whether record `index` lies at k and is of no chunk. */
static bool record_is_left(struct bank* bank, unsigned index, const struct chunk* k) {
    return record_at(bank, index) == k && ((bank->made | bank->held) >> index & 1) == 0;
}

WEIR_FN void bank_purge(struct bank* bank) {
    for (uint64_t left = tag_is_on() ? 0 : bank->gone; left != 0;) {
        unsigned first = bit_low(left);
        unsigned last = first;
        struct chunk* start = record_at(bank, first);
        struct chunk* end = start + 1;
        while (first != 0 && record_is_left(bank, first - 1, start - 1)) first--, start--;
        while (last != BANK_CHUNKS - 1 && record_is_left(bank, last + 1, end)) last++, end++;
        left &= last == BANK_CHUNKS - 1 ? 0 : ~0ull << (last + 1);
        uintptr_t from = align_up((uintptr_t)start, os_page_bytes());
        uintptr_t to = align_down((uintptr_t)end, os_page_bytes());
        if (from < to && os_purge((void*)from, to - from)) add_relaxed(&span_totals.purged, to - from);
    }
    store_relaxed(&bank->gone, (uint64_t)0);
}
