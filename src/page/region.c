/* region.c: see region.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "page/region.h"

#include "base/atomic.h"
#include "core/options.h"
#include "os/os.h"
#include "page/huge.h"

WEIR_VAR struct page_root page_root;
WEIR_WIDE(regions) WEIR_VAR struct region regions[REGION_COUNT_MAX];
WEIR_VAR uint32_t region_count;
WEIR_VAR bool region_commit_strict;
WEIR_VAR uint32_t region_memory_kind;
WEIR_VAR uint32_t page_shift = 12;
WEIR_VAR struct slice_bits* region_bits;
WEIR_VAR struct slice_bits_far* region_bits_far;
WEIR_VAR uint32_t region_bits_end;

enum { RECORD_BYTES = sizeof(struct slice) + sizeof(struct slice_pages) };

/* Two-level map of the further regions: address >> 22 -> row + 1. A leaf covers 16 GiB.
 * Sync: written under the page lock; leaves are published with release and never freed, read with
 * acquire; rows are relaxed, since whoever holds a block got it after its region was entered. */
enum { MAP_LEAF_BITS = 12, MAP_ROOT_BITS = 48 - REGION_GRANULE_SHIFT - MAP_LEAF_BITS };
struct map_leaf {
    uint16_t row_plus_1[1u << MAP_LEAF_BITS];
};
WEIR_WIDE(region_map) static struct map_leaf* region_map[1u << MAP_ROOT_BITS];

#define REGION_GRANULE ((size_t)1 << REGION_GRANULE_SHIFT)

static bool map_set(uintptr_t base, size_t bytes, uint16_t value) {
    for (uintptr_t a = base; a < base + bytes; a += REGION_GRANULE) {
        uintptr_t granule = a >> REGION_GRANULE_SHIFT;
        if (granule >> MAP_LEAF_BITS >= 1u << MAP_ROOT_BITS) return false;
        struct map_leaf** leaf = &region_map[granule >> MAP_LEAF_BITS];
        if (*leaf == NULL && value == 0) continue;
        if (*leaf == NULL) {
            size_t leaf_bytes = align_up(sizeof(struct map_leaf), os_page_bytes());
            void* fresh = os_reserve(leaf_bytes, os_page_bytes());
            if (fresh == NULL) return false;
            if (!os_commit(fresh, leaf_bytes)) {
                os_unmap(fresh, leaf_bytes);
                return false;
            }
            store_release(leaf, (struct map_leaf*)fresh); /* publishes the zeroed leaf to slice_find */
        }
        store_relaxed(&(*leaf)->row_plus_1[granule & ((1u << MAP_LEAF_BITS) - 1)], value);
    }
    return true;
}

WEIR_FN struct slice* slice_find(const void* p) {
    uintptr_t a = (uintptr_t)p;
    const struct region* r = &regions[0];
    if (a - r->base >= (uintptr_t)r->slices << SLICE_SHIFT) {
        uintptr_t granule = a >> REGION_GRANULE_SHIFT;
        if (granule >> MAP_LEAF_BITS >= 1u << MAP_ROOT_BITS) return NULL;
        const struct map_leaf* leaf = load_acquire(&region_map[granule >> MAP_LEAF_BITS]);
        if (leaf == NULL) return NULL;
        uint16_t row = load_relaxed(&leaf->row_plus_1[granule & ((1u << MAP_LEAF_BITS) - 1)]);
        if (row == 0) return NULL;
        r = &regions[row - 1];
    }
    uintptr_t index = (a - r->base) >> SLICE_SHIFT;
    /* Relaxed: a block's slice was below the frontier before the block was given out. */
    if (index < r->first || index >= load_relaxed(&r->frontier)) return NULL;
    return region_slices(r) + index;
}

/* Lay a region's records out at its start and make the first of them accessible. The slices that hold the
 * records have records of their own, to which nobody writes, but none for their pages. */
static bool region_enter(struct region* r, void* base, size_t bytes) {
    size_t page = os_page_bytes();
    size_t slices = bytes >> SLICE_SHIFT;
    size_t records = align_up(slices << SLICE_RECORD_SHIFT, SLICE_BYTES);
    size_t first = (records + align_up(slices * sizeof(struct slice_pages), SLICE_BYTES)) >> SLICE_SHIFT;
    /* Enough for the record array's own slices and a first batch. */
    size_t record_bytes = align_up((first << SLICE_RECORD_SHIFT) + 8 * KIB, page);
    if (record_bytes > records) record_bytes = records;
    size_t own = region_own_bytes((uint32_t)first);
    huge_region((uintptr_t)base, first << SLICE_SHIFT, bytes);
    if (own != 0 && !os_commit_zeroes(base, own)) return false;
    if (!os_commit((char*)base + own, record_bytes - own) || !os_commit((char*)base + records, page))
        return false;
    weir_assert(region_visitors(r) == 0);
    *r = (struct region){.base = (uintptr_t)base,
                         .slices = (uint32_t)slices,
                         .first = (uint32_t)first,
                         .frontier = (uint32_t)first,
                         .committed = (uint32_t)first,
                         .record_bytes = record_bytes,
                         .pages = (uintptr_t)base + records - first * sizeof(struct slice_pages),
                         .pages_bytes = page,
                         .visitors = r->visitors}; /* how often they were forgotten */
    return true;
}

/* How much to try for. Some user-mode emulators keep a table entry for each reserved page: 4 GiB then
 * takes many milliseconds, where a kernel takes microseconds. */
static uint64_t region_probe(void) {
    uint64_t limit = os_address_space_limit();
    if (limit != UINT64_MAX) return align_down(limit / 8, REGION_GRANULE);
    if (os_tsan_is_blind()) return 64 * GIB; /* its runtime wants all mappings in the uppermost 1.5 TiB */
    uint64_t before = os_clock_ns();
    void* probe = os_reserve(GIB, os_page_bytes());
    if (probe != NULL) os_unmap(probe, GIB);
    return os_clock_ns() - before > 1000000 ? 2 * GIB : 1024 * GIB;
}

/* The fast path may read every record that is accessible. */
static void region_publish(void) {
    const struct region* r = &regions[0];
    size_t readable = r->record_bytes >> SLICE_RECORD_SHIFT;
    store_relaxed(&page_root.slices, readable < r->slices ? readable : r->slices);
}

WEIR_FN void region_start(uint64_t wanted) {
    region_commit_strict = os_overcommit_is_strict();
    page_shift = bit_high(os_page_bytes());
    region_count = 1; /* row 0 is the primary region's, there or not */
    uint64_t bytes = wanted != 0 ? align_up(wanted, REGION_GRANULE) : region_probe();
    for (; bytes >= REGION_GRANULE; bytes = align_down(bytes / 2, REGION_GRANULE)) {
        void* base = os_reserve(bytes, SLICE_BYTES);
        if (base == NULL) continue;
        if (region_enter(&regions[0], base, bytes)) {
            store_relaxed(&page_root.base, (uintptr_t)base);
            store_relaxed(&page_root.trusted, (uintptr_t)NEAR_NOBODY);
            region_publish();
            return;
        }
        os_unmap(base, bytes);
    }
}

WEIR_FN struct region* region_add(uint32_t slices) {
    uint32_t row = 1;
    while (row < region_count && regions[row].base != 0) row++;
    if (row == REGION_COUNT_MAX) return NULL;
    /* Slices that hold records, and what rounding to a granule adds, have records, too. */
    static_assert(RECORD_BYTES < SLICE_BYTES / 256, "they are fewer than one in 256");
    size_t records = ((size_t)slices + slices / 256 + 128) * RECORD_BYTES + (size_t)2 * SLICE_BYTES;
    size_t least = align_up(((size_t)slices << SLICE_SHIFT) + records, REGION_GRANULE);
    size_t bytes = (64 * MIB) << (row < 256 ? row / 16 : 16);
    /* Where address space is scarce, each region is small, so that it can go back when it is free. */
    uint64_t limit = os_address_space_limit();
    if (limit != UINT64_MAX && bytes > limit / 64) bytes = align_up(limit / 64, REGION_GRANULE);
    /* A large request gets what it needs: the rest of a common size would lie idle. */
    if (region_commit_strict || bytes < 4 * least) bytes = least;
    for (;; bytes = bytes / 2 < least ? least : align_up(bytes / 2, REGION_GRANULE)) {
        void* base = os_reserve(bytes, REGION_GRANULE);
        if (base != NULL) {
            struct region* r = &regions[row];
            if (region_enter(r, base, bytes) && map_set(r->base, bytes, (uint16_t)(row + 1))) {
                if (row == region_count) region_count++;
                return r;
            }
            if (r->base != 0) map_set(r->base, bytes, 0);
            r->base = 0;
            os_unmap(base, bytes);
        }
        if (bytes <= least) return NULL;
    }
}

WEIR_FN void region_drop(struct region* r) {
    size_t bytes = (size_t)r->slices << SLICE_SHIFT;
    void* base = (void*)r->base;
    map_set(r->base, bytes, 0);
    r->base = 0; /* first: a fork's child that finds it is to find it mapped */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    os_unmap(base, bytes);
}

/* A huge page that is to come with the first touch has to be accessible as a whole. */
static uint32_t region_whole(const struct region* r, uint32_t target) {
    if (region_commit_strict || core_options.hugepages != HUGE_ALWAYS) return target;
    return (uint32_t)((align_up(r->base + ((uintptr_t)target << SLICE_SHIFT), 2 * MIB) - r->base) >>
                      SLICE_SHIFT);
}

static bool region_commit(struct region* r, uint32_t need) {
    /* Steps grow with the region, so that their number stays small; under strict accounting each page
     * is charged when it becomes accessible, so that only what is needed is. */
    uint32_t step = (r->committed - r->first) / 8;
    uint32_t step_max = (uint32_t)(64 * MIB >> SLICE_SHIFT);
    if (step > step_max) step = step_max;
    if (step < 8) step = 8;
    uint32_t target = need;
    if (!region_commit_strict && target < r->committed + step) target = r->committed + step;
    target = region_whole(r, target);
    if (target > r->slices) target = r->slices;
    void* start = (void*)(r->base + ((uintptr_t)r->committed << SLICE_SHIFT));
    while (!os_commit_as(start, (size_t)(target - r->committed) << SLICE_SHIFT, region_memory_kind)) {
        if (target == need) return false;
        target = need; /* there may be as much */
    }
    r->committed = target;
    return true;
}

/* Make an array of records, of which *bytes are accessible, accessible to `need` bytes at least. */
static bool region_extend_records(uintptr_t start, size_t* bytes, size_t need, size_t most) {
    if (need <= *bytes) return true;
    size_t step = region_commit_strict ? os_page_bytes() : 64 * KIB;
    size_t target = align_up(need, step);
    if (target > most) target = most;
    if (!os_commit((void*)(start + *bytes), target - *bytes)) return false;
    *bytes = target;
    return true;
}

WEIR_FN bool region_extend(struct region* r, uint32_t count) {
    if (r->base == 0 || count > r->slices - r->frontier) return false;
    uint32_t end = r->frontier + count;
    uintptr_t pages_start = r->pages + r->first * sizeof(struct slice_pages);
    uintptr_t pages_end = r->base + ((uintptr_t)r->first << SLICE_SHIFT);
    size_t records = (size_t)end << SLICE_RECORD_SHIFT;
    size_t pages = (end - r->first) * sizeof(struct slice_pages);
    if (!region_extend_records(pages_start, &r->pages_bytes, pages, pages_end - pages_start)) return false;
    if (!region_extend_records(r->base, &r->record_bytes, records, pages_start - r->base)) return false;
    if (r == &regions[0]) region_publish();
    if (end > r->committed && !region_commit(r, end)) return false;
    store_relaxed(&r->frontier, end); /* relaxed: see slice_find */
    return true;
}

WEIR_FN bool region_reach(struct region* r, uint32_t end) {
    return end <= r->committed || (end <= r->slices && region_commit(r, end));
}

/* The two arrays of bits: reserved together, the near ones first. */
static struct {
    uintptr_t near, far;
    size_t near_bytes, far_bytes; /* of them, accessible */
} bit_arrays;
/* Bytes of an array of `each` bytes a slice for the slices below `end`, in whole pages. */
static size_t bits_bytes(uint32_t end, size_t each) {
    return align_up((end - regions[0].first) * each, os_page_bytes());
}

static bool bits_reserve(void) {
    enum { near_each = sizeof(struct slice_bits), far_each = sizeof(struct slice_bits_far) };
    const struct region* r = &regions[0];
    size_t near_most = bits_bytes(r->slices, near_each);
    size_t most = near_most + bits_bytes(r->slices, far_each);
    uintptr_t near = (uintptr_t)os_reserve(most, os_page_bytes());
    if (near == 0) return false;
    huge_region(near, most, most); /* no part of it is ever huge */
    bit_arrays.far = near + near_most;
    region_bits = (struct slice_bits*)(near - r->first * (size_t)near_each);
    region_bits_far = (struct slice_bits_far*)(bit_arrays.far - r->first * (size_t)far_each);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    bit_arrays.near = near; /* last: a fork's child that finds it finds all */
    return true;
}

WEIR_FN bool region_bits_reach(uint32_t end) {
    const struct region* r = &regions[0];
    if (bit_arrays.near == 0 && !bits_reserve()) return false;
    size_t near = bits_bytes(end, sizeof(struct slice_bits));
    size_t far = bits_bytes(end, sizeof(struct slice_bits_far));
    size_t near_most = bits_bytes(r->slices, sizeof(struct slice_bits));
    if (!region_extend_records(bit_arrays.near, &bit_arrays.near_bytes, near, near_most)) return false;
    size_t far_most = bits_bytes(r->slices, sizeof(struct slice_bits_far));
    if (!region_extend_records(bit_arrays.far, &bit_arrays.far_bytes, far, far_most)) return false;
    size_t reached = bit_arrays.far_bytes / sizeof(struct slice_bits_far);
    if (reached > bit_arrays.near_bytes / sizeof(struct slice_bits))
        reached = bit_arrays.near_bytes / sizeof(struct slice_bits);
    /* Release: publishes the arrays to who finds that it needs not ask. */
    store_release(&region_bits_end, r->first + (uint32_t)reached);
    return true;
}

WEIR_FN size_t region_bits_bytes(void) { return bit_arrays.near_bytes + bit_arrays.far_bytes; }

/* What is behind the bits of the slices that are left goes; there were as many slices before. */
static void bits_trim(uint32_t before) {
    if (bit_arrays.near == 0) return;
    size_t near = bits_bytes(regions[0].slices, sizeof(struct slice_bits));
    size_t far = bits_bytes(regions[0].slices, sizeof(struct slice_bits_far));
    size_t far_most = bits_bytes(before, sizeof(struct slice_bits_far));
    if (near < bit_arrays.near_bytes) near = bit_arrays.near_bytes;
    if (far < bit_arrays.far_bytes) far = bit_arrays.far_bytes;
    if (bit_arrays.near + near < bit_arrays.far)
        os_unmap((void*)(bit_arrays.near + near), bit_arrays.far - bit_arrays.near - near);
    if (far < far_most) os_unmap((void*)(bit_arrays.far + far), far_most - far);
}

/* The pages on which there is nothing but what lies in [from, to). */
static bool array_drop(const void* from, const void* to) {
    uintptr_t start = align_up((uintptr_t)from, os_page_bytes());
    uintptr_t end = align_down((uintptr_t)to, os_page_bytes());
    return start >= end || os_purge((void*)start, end - start);
}

/* To look whether one is marked that is not there maps a page of zeroes, which goes at once. */
static bool pages_drop(const struct slice_pages* from, const struct slice_pages* to) {
    bool done = true;
    for (const struct slice_pages* p = from; p < to; p++) {
        if (weir_likely(load_relaxed(&p->marked) == 0)) continue;
        done &= array_drop(from, p);
        from = p + 1;
    }
    return array_drop(from, to) && done;
}

WEIR_FN WEIR_NOINLINE bool region_drop_records(uint32_t from, uint32_t to) {
    const struct slice* slices = region_slices(&regions[0]);
    const struct slice_pages* pages = (const struct slice_pages*)regions[0].pages;
    if (!array_drop(slices + from, slices + to) || !pages_drop(pages + from, pages + to)) return false;
    if (to > region_bits_end) to = region_bits_end;
    return from >= to || (array_drop(region_bits + from, region_bits + to) &&
                          array_drop(region_bits_far + from, region_bits_far + to));
}

WEIR_FN void region_trim(void) {
    struct region* r = &regions[0];
    if (r->base == 0) return;
    uint32_t keep = r->frontier;
    if (keep >= r->slices) return;
    os_unmap((void*)(r->base + ((uintptr_t)keep << SLICE_SHIFT)), (size_t)(r->slices - keep) << SLICE_SHIFT);
    uintptr_t pages_start = r->pages + r->first * sizeof(struct slice_pages);
    size_t records_end = pages_start - r->base;
    size_t records_keep = align_up((size_t)keep << SLICE_RECORD_SHIFT, os_page_bytes());
    if (records_keep < r->record_bytes) records_keep = r->record_bytes;
    uint32_t before = r->slices;
    r->committed = keep;
    r->slices = keep;
    region_publish();
    bits_trim(before);
    if (records_keep < records_end) os_unmap((void*)(r->base + records_keep), records_end - records_keep);
    uintptr_t pages_end = r->base + ((uintptr_t)r->first << SLICE_SHIFT);
    size_t pages_keep = align_up((keep - r->first) * sizeof(struct slice_pages), os_page_bytes());
    if (pages_keep < r->pages_bytes) pages_keep = r->pages_bytes;
    if (pages_keep < pages_end - pages_start)
        os_unmap((void*)(pages_start + pages_keep), pages_end - pages_start - pages_keep);
}
