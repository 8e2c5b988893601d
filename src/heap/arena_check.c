/* arena_check.c: every invariant of arenas and chunks (arena.h, chunk.h), looked at one by one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/chunk.h"
#include "page/hole.h"

static bool pages_check_block(const struct chunk* k, uint32_t unit, uint32_t units) {
    if ((unit + units - 1) >> units_shift() >= k->untouched) return false;
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
        for (uint32_t at = k->heads[b]; at != 0; at = k->groups[(at - 1) / GROUP_UNITS].next) {
            uint32_t group = (at - 1) / GROUP_UNITS;
            bool is_run = starts_is(k, at - 1) && free_is(k, at - 1);
            if (runs-- == 0 || !is_run || bin_of(k->groups[group].length) != b ||
                k->groups[group].prev != before)
                return false;
            before = at;
        }
        if ((k->heads[b] != 0) != bit_is(&k->bank->with[b], k->index)) return false;
    }
    return runs == 0;
}

static bool run_check(const struct chunk* k, uint32_t unit, uint32_t units, bool is_free) {
    if (units == 0 || unit + units > chunk_end()) return false;
    for (uint32_t i = unit + 1; i < unit + units; i++)
        if (starts_is(k, i) || free_is(k, i) != (is_free && i == unit + units - 1)) return false;
    if (!is_free) return pages_check_block(k, unit, units);
    return k->groups[(unit + units - 1) / GROUP_UNITS].start_of_last == unit &&
           pages_check_free(k, unit, units);
}

/* The quick lists hold so many blocks, each of its list's class; *units grows by theirs. */
static bool quick_check(const struct chunk* k, uint32_t count, uint32_t* units) {
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) {
        for (uint32_t at = k->quick[m]; at != 0; at = k->groups[(at - 1) / GROUP_UNITS].quick_next) {
            bool is_block = starts_is(k, at - 1) && !free_is(k, at - 1);
            if (count-- == 0 || !is_block || !is_quick(k, at - 1) || class_at(k, at - 1) != m) return false;
            *units += class_units(m);
        }
        if ((k->quick[m] != 0) != bit_is(&k->bank->quick_with[m], k->index)) return false;
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
        bool is_free = free_is(k, unit);
        if (!starts_is(k, unit) || (is_free && before_free)) return false;
        if (!is_free && (known == 0 || (known >> BLOCK_UNIT_SHIFT & BLOCK_UNIT) != unit % GROUP_UNITS))
            return false;
        uint32_t units = is_free ? k->groups[group].length : class_units(block_class(known));
        if (!is_free && (known & (BLOCK_KEPT | BLOCK_FRESH)) == BLOCK_FRESH) return false;
        if (!is_free && (known & BLOCK_KEPT) != 0 && (known & BLOCK_GROWN) != 0) return false;
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

/* What a bank's words say of its chunks the arena's words say of its banks. */
static bool bank_check(const struct arena* a, const struct bank* bank, unsigned i) {
    bool good = (bank->empty & ~bank->made) == 0 && bit_is(&a->empty, i) == (bank->empty != 0);
    for (unsigned b = 0; b < RUN_BINS; b++) good &= bit_is(&a->with[b], i) == (bank->with[b] != 0);
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++)
        good &= bit_is(&a->quick_with[m], i) == (bank->quick_with[m] != 0);
    return good && (bit_is(&a->gone, i) || bank->gone == 0);
}

WEIR_FN bool arena_is_sound(struct arena* a) {
    uint64_t used[MEDIUM_CLASSES] = {0};
    bool good = true;
    uint32_t idle = 0;
    uint32_t quick = 0;
    for (unsigned i = 0; i < ARENA_BANKS && bank_at(a, i) != NULL; i++) {
        const struct bank* bank = bank_at(a, i);
        good &= bank_check(a, bank, i);
        for (uint64_t left = bank->made; left != 0; left &= left - 1) {
            const struct chunk* k = bank->chunks[bit_low(left)];
            idle += k->idle_count;
            good &= k->arena == a && k->bank == bank && k->bank_index == i && k->index == bit_low(left);
            good &= chunk_check(k, used, &quick) && (k->used == 0) == bit_is(&bank->empty, k->index);
        }
    }
    uint64_t banks = 0;
    for (unsigned i = 0; i < ARENA_BANKS && bank_at(a, i) != NULL; i++) banks |= 1ull << i;
    good &= ((a->empty | a->gone) & ~banks) == 0;
    for (unsigned b = 0; b < RUN_BINS; b++)
        good &= bit_is(a->bins, b) == (a->with[b] != 0) && (a->with[b] & ~banks) == 0;
    uint64_t used_units = 0;
    for (unsigned m = 0; m < MEDIUM_CLASSES; m++) {
        good &= (a->quick_with[m] & ~banks) == 0;
        good &= used[m] == load_relaxed(&a->used[m]);
        used_units += used[m] * class_units(m);
    }
    return good && used_units == a->used_units && idle == a->idle_count && quick == a->quick_units;
}
