/* span.c: see span.h.
 *
 * Free spans hang in segregated lists (exact up to 31 slices, four lists per power of two above) with a
 * bitmap over them; neighbours in the same state are merged by boundary tags. Of a dirty one each slice's
 * word says which pages are clean, so that merging and cutting cost nothing more than a count.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "page/span.h"

#include "base/atomic.h"
#include "core/options.h"
#include "os/os.h"
#include "page/fence.h"
#include "page/hole.h"
#include "page/huge.h"
#include "page/release.h"

/* Any 32-bit number of slices has a bucket: the last one in use is 32 + (31 - 5) * 4 + 3. */
enum { BUCKET_EXACT = 32, BUCKET_COUNT = 192, BUCKET_SCAN = 16 };

/* Free spans that are too short for a chunk, and so many bytes of free spans that growth never pays with. */
enum { SHORT_SLICES = 16, SHORT_BYTES = 16 << 20 };

/* Of a shorter free span, what is recorded of its slices hardly fills a page. */
enum { RECORDS_SLICES = 64 };

struct span_lists {
    uint64_t used[BUCKET_COUNT / 64]; /* bit b: head[b] != NULL */
    struct slice* head[BUCKET_COUNT];
};

WEIR_VAR struct os_lock page_lock = {.rank = LOCK_PAGES};
WEIR_VAR struct span_totals span_totals;
WEIR_VAR void (*span_wipe_hook)(void* p, size_t bytes);
static struct span_lists span_lists[SPAN_STATES]; /* Sync: the page lock */

static unsigned bucket_of(size_t slices) {
    if (slices < BUCKET_EXACT) return (unsigned)slices;
    unsigned log = bit_high(slices);
    return BUCKET_EXACT + (log - 5) * 4 + (unsigned)((slices >> (log - 2)) & 3);
}

static uint64_t dirty_bytes(const struct slice* s) {
    return ((uint64_t)s->span_slices << SLICE_SHIFT) - ((uint64_t)s->clean << page_shift);
}

static void list_insert(struct slice* s, uint32_t slices, enum span_state state, size_t clean) {
    struct span_lists* l = &span_lists[state];
    unsigned b = bucket_of(slices);
    store_relaxed(&s->kind, (uint8_t)SLICE_FREE);
    store_relaxed(&s->state, (uint8_t)state);
    store_relaxed(&s->owner, NULL);
    s->flags = 0;
    s->span_slices = slices;
    s->clean = clean;
    s->prev = NULL;
    s->next = l->head[b];
    if (s->next != NULL) s->next->prev = s;
    l->head[b] = s;
    l->used[b / 64] |= 1ull << (b % 64);
    if (slices > 1) {
        struct slice* end = s + slices - 1;
        store_relaxed(&end->kind, (uint8_t)SLICE_FREE_END);
        store_relaxed(&end->owner, NULL);
        end->region = s->region;
        end->back = slices - 1;
    }
    if (state == SPAN_DIRTY) store_relaxed(&span_totals.dirty, span_totals.dirty + dirty_bytes(s));
    if (state == SPAN_UNCOMMITTED) store_relaxed(&span_totals.uncommitted, span_totals.uncommitted + 1);
}

static void list_remove(struct slice* s) {
    struct span_lists* l = &span_lists[s->state];
    unsigned b = bucket_of(s->span_slices);
    if (s->next != NULL) s->next->prev = s->prev;
    if (s->prev != NULL)
        s->prev->next = s->next;
    else if ((l->head[b] = s->next) == NULL)
        l->used[b / 64] &= ~(1ull << (b % 64));
    if (s->state == SPAN_DIRTY) store_relaxed(&span_totals.dirty, span_totals.dirty - dirty_bytes(s));
    if (s->state == SPAN_UNCOMMITTED) store_relaxed(&span_totals.uncommitted, span_totals.uncommitted - 1);
    store_relaxed(&s[s->span_slices - 1].kind, (uint8_t)SLICE_NONE);
    store_relaxed(&s->kind, (uint8_t)SLICE_NONE);
}

/* Dirty memory was taken for use, or purged, and what was left of its span is free again. */
static void dirty_was_taken(void) {
    if (span_totals.dirty < span_totals.dirty_low) span_totals.dirty_low = span_totals.dirty;
}

/* Slice i of the span at s; the records of slices inside a span do not say in which region they are. */
static uint32_t clean_at(const struct slice* s, size_t i) {
    return (uint32_t)__builtin_popcount(hole_clean(load_relaxed(&slice_pages(s)[i].state)));
}
static size_t clean_in(const struct slice* s, size_t slices) {
    size_t clean = 0;
    for (size_t i = 0; i < slices; i++) clean += clean_at(s, i);
    return clean;
}
static void words_clear(const struct slice* s, size_t slices) {
    for (size_t i = 0; i < slices; i++) store_relaxed(&slice_pages(s)[i].state, (uint64_t)0);
}

/* Put a free span, `clean` of whose pages are, on its list, merged with neighbours in the same state. */
static void list_merge(struct slice* s, uint32_t slices, enum span_state state, size_t clean) {
    struct region* r = &regions[s->region];
    if (state == SPAN_DIRTY && clean == (size_t)slices * slice_page_count()) state = SPAN_CLEAN;
    if (state != SPAN_DIRTY && clean != 0) {
        words_clear(s, slices);
        clean = 0;
    }
    uint32_t index = slice_index(s);
    uint64_t bare = 0;
    if (index > r->first) {
        struct slice* before = s - 1;
        if (load_relaxed(&before->kind) == SLICE_FREE_END) before -= before->back;
        if (load_relaxed(&before->kind) == SLICE_FREE && before->state == state) {
            slices += before->span_slices;
            clean += before->clean;
            list_remove(before);
            s = before;
            index = slice_index(s);
        }
    }
    if (index + slices < r->frontier) {
        struct slice* after = s + slices;
        if (load_relaxed(&after->kind) == SLICE_FREE && after->state == state) {
            slices += after->span_slices;
            clean += after->clean;
            bare = load_relaxed(&after->bare);
            list_remove(after);
        }
    }
    list_insert(s, slices, state, clean);
    store_relaxed(&s->bare, bare); /* atomic, as in slab_make */
}

/* The smallest of the first spans of a list that holds `slices`. */
static struct slice* list_smallest(struct slice* s, size_t slices) {
    struct slice* best = NULL;
    for (unsigned i = 0; s != NULL && i < BUCKET_SCAN; s = s->next, i++)
        if (s->span_slices >= slices && (best == NULL || s->span_slices < best->span_slices)) best = s;
    return best;
}

/* Best fit, as far as a look at the first spans of a list tells. */
static struct slice* list_find(enum span_state state, size_t slices) {
    struct span_lists* l = &span_lists[state];
    unsigned b = bucket_of(slices);
    if (b >= BUCKET_EXACT) {
        struct slice* s = list_smallest(l->head[b], slices);
        if (s != NULL) return s;
        b++;
    }
    for (unsigned word = b / 64; word < BUCKET_COUNT / 64; word++) {
        uint64_t bits = l->used[word];
        if (word == b / 64) bits &= ~0ull << (b % 64);
        if (bits == 0) continue;
        b = word * 64 + bit_low(bits);
        return b < BUCKET_EXACT ? l->head[b] : list_smallest(l->head[b], slices);
    }
    return NULL;
}

static void span_give_out(struct slice* s, size_t slices) {
    regions[s->region].live += (uint32_t)slices;
    store_relaxed(&span_totals.live, span_totals.live + ((uint64_t)slices << SLICE_SHIFT));
    store_relaxed(&s->owner, NULL);
    s->flags = 0;
    s->domain = 0;
    s->span_slices = (uint32_t)slices;
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* before the kind: see span_rebuild */
    store_relaxed(&s->kind, (uint8_t)SLICE_META);
}

/* What is known of the pages of a span that is given out. The first `dirty` slices were a dirty span's: where
 * `words`, their own words say it, else nothing is known. Each of the others would say `each`. */
struct known {
    size_t dirty;
    bool words;
    uint64_t each;
};

static uint64_t known_fresh(void) { return (uint64_t)hole_all() << PAGES_CLEAN_SHIFT; }
static uint64_t known_purged(void) { return known_fresh() | (uint64_t)hole_all() << PAGES_OLD_SHIFT; }

/* What lies ahead reads as zero, but may be resident. */
static uint64_t known_each(const struct slice* s, size_t slices, struct known k) {
    bool ahead = s->region == 0 && huge_is_ahead(slice_index(s), (uint32_t)slices);
    return weir_unlikely(ahead) ? 0 : k.each;
}

/* Where a large block has it. True: all reads as zero. */
static bool known_to_block(const struct slice* s, size_t slices, struct known k) {
    bool more = k.dirty != slices;
    uint64_t behind = more ? known_each(s, slices, k) : 0;
    if (k.words) return hole_to_block(s, k.dirty, more ? &behind : NULL);
    store_relaxed(&slice_pages(s)->state, behind);
    if (behind == known_purged()) release_refaulted((slices - 1) << SLICE_SHIFT);
    return k.dirty == 0;
}

/* True: nothing was ever on it, and it may be resident. */
static bool known_to_slab(const struct slice* s, size_t slices, struct known k) {
    uint64_t each = known_each(s, slices, k);
    for (size_t i = 0; i < slices; i++) {
        uint64_t* word = &slice_pages(s)[i].state;
        store_relaxed(word, (i < k.dirty ? load_relaxed(word) : each) | hole_all());
    }
    return k.dirty == 0 && each == 0;
}

/* Cut [skip, skip + slices) out of the free span s; what is left over stays free. */
static struct slice* span_cut(struct slice* s, size_t skip, size_t slices, struct known* k) {
    enum span_state state = s->state;
    uint32_t all = s->span_slices;
    size_t clean = s->clean;
    uint64_t bare = load_relaxed(&s->bare);
    struct slice* start = s + skip;
    if (state == SPAN_UNCOMMITTED && !os_commit_as((void*)(slice_address(s) + (skip << SLICE_SHIFT)),
                                                   slices << SLICE_SHIFT, region_memory_kind))
        return NULL;
    list_remove(s);
    uint16_t region = s->region;
    start->region = region;
    size_t before = clean == 0 ? 0 : clean_in(s, skip);
    size_t inside = clean == 0 ? 0 : clean_in(start, slices);
    if (skip != 0) list_merge(s, (uint32_t)skip, state, before);
    if (all > skip + slices) {
        struct slice* rest = start + slices;
        rest->region = region;
        list_merge(rest, (uint32_t)(all - skip - slices), state, clean - before - inside);
        store_relaxed(&rest->bare, bare < rest->span_slices ? bare : rest->span_slices);
    }
    bool written = state == SPAN_DIRTY || (state == SPAN_UNCOMMITTED && load_relaxed(&fence_was_opened) != 0);
    *k = (struct known){written ? slices : 0, inside != 0, known_purged()};
    span_give_out(start, slices);
    dirty_was_taken();
    return start;
}

static size_t align_skip(const struct slice* s, size_t align_slices) {
    uintptr_t a = slice_address(s);
    return (align_up(a, align_slices << SLICE_SHIFT) - a) >> SLICE_SHIFT;
}

static struct slice* span_from_lists(size_t slices, size_t align_slices, struct known* k) {
    for (unsigned state = 0; state < SPAN_STATES; state++) {
        struct slice* s = list_find(state, slices);
        if (s != NULL && align_slices > 1 && align_skip(s, align_slices) + slices > s->span_slices)
            s = list_find(state, slices + align_slices - 1);
        if (s == NULL) continue;
        struct slice* cut = span_cut(s, align_skip(s, align_slices), slices, k);
        if (cut != NULL) return cut;
    }
    return NULL;
}

/* The free span that ends at the region's frontier; NULL: none does. */
static struct slice* span_at_end(const struct region* r) {
    if (r->base == 0 || r->frontier == r->first) return NULL;
    struct slice* s = region_slices(r) + r->frontier - 1;
    if (load_relaxed(&s->kind) == SLICE_FREE_END) s -= s->back;
    return load_relaxed(&s->kind) == SLICE_FREE ? s : NULL;
}

/* The region's frontier, `count` slices on; the primary region may get huge pages there. */
static bool frontier_move(struct region* r, uint32_t count) {
    size_t bytes = (size_t)count << SLICE_SHIFT;
    if (r == &regions[0] && span_totals.live + bytes >= HUGE_LOOK_MIN) huge_grow(count);
    return region_extend(r, count);
}

/* Such a span, which is too small, with as much behind it as is lacking: fewer pages are touched for the
 * first time, and none of the free ones is left over. */
static struct slice* span_from_end(struct region* r, size_t slices, struct known* k) {
    struct slice* s = span_at_end(r);
    if (s == NULL || s->state == SPAN_UNCOMMITTED || s->span_slices >= slices || slices > r->slices)
        return NULL;
    size_t more = slices - s->span_slices;
    if (!frontier_move(r, (uint32_t)more)) return NULL;
    *k = (struct known){s->state == SPAN_DIRTY ? s->span_slices : 0, s->clean != 0, known_fresh()};
    list_remove(s);
    span_give_out(s, slices);
    dirty_was_taken();
    release_grew(more << SLICE_SHIFT);
    return s;
}

static struct slice* span_from_frontier(struct region* r, size_t slices, size_t align_slices) {
    uintptr_t at = r->base + ((uintptr_t)r->frontier << SLICE_SHIFT);
    size_t skip = (align_up(at, align_slices << SLICE_SHIFT) - at) >> SLICE_SHIFT;
    if (r->base == 0 || slices > r->slices || skip > r->slices) return NULL;
    uint16_t row = (uint16_t)(r - regions);
    struct slice* s = region_slices(r) + r->frontier;
    if (!frontier_move(r, (uint32_t)(skip + slices))) return NULL;
    if (skip != 0) {
        s->region = row;
        list_merge(s, (uint32_t)skip,
                   row == 0 && huge_is_ahead(slice_index(s), (uint32_t)skip) ? SPAN_DIRTY : SPAN_CLEAN, 0);
        s += skip;
    }
    s->region = row;
    span_give_out(s, slices);
    release_grew(slices << SLICE_SHIFT);
    return s;
}

WEIR_FN bool span_is_plausible(size_t fresh_slices) {
    size_t bytes = fresh_slices << SLICE_SHIFT;
    return bytes < 256 * MIB || os_charge_probe(bytes);
}

static void growth_pays(size_t slices);

static struct slice* span_try(size_t slices, size_t align_slices, struct known* k) {
    struct slice* s = span_from_lists(slices, align_slices, k);
    if (s != NULL || !span_is_plausible(slices)) return s;
    growth_pays(slices);
    for (uint32_t row = 0; row < region_count && align_slices == 1 && s == NULL; row++)
        s = span_from_end(&regions[row], slices, k);
    if (s != NULL) return s;
    *k = (struct known){0, false, known_fresh()};
    for (uint32_t row = 0; row < region_count && s == NULL; row++)
        s = span_from_frontier(&regions[row], slices, align_slices);
    return s;
}

static void span_retire_region(struct region* r) {
    uint32_t i = r->first;
    while (i < r->frontier) {
        struct slice* s = region_slices(r) + i;
        i += s->span_slices;
        list_remove(s);
    }
    dirty_was_taken();
    hole_forget_region(r);
    region_drop(r);
}

/* Regions that were still looked at when their last span was freed, or of which a part was being purged. */
static WEIR_NOINLINE void span_retire_idle(void) {
    for (uint32_t row = 1; row < region_count; row++) {
        struct region* r = &regions[row];
        if (r->base != 0 && r->live == 0 && region_visitors(r) == 0) span_retire_region(r);
    }
}

/* A span in nobody's hands any more becomes a free one, `clean` of whose pages are. */
static void span_put_back(struct slice* s, enum span_state state, size_t clean) {
    uint32_t slices = s->span_slices;
    regions[s->region].live -= slices;
    store_relaxed(&span_totals.live, span_totals.live - ((uint64_t)slices << SLICE_SHIFT));
    store_relaxed(&s->kind, (uint8_t)SLICE_NONE);
    list_merge(s, slices, state, clean);
}

/* Spans that are being purged with the lock released, and by whom: for a fork's child. What is more than fit
 * is lost to it. Sync: the page lock. */
static struct purging {
    struct slice* span; /* NULL: unused */
    void* thread;
} purging[8];

static struct purging* purge_begin(struct slice* s) {
    for (unsigned i = 0; i < sizeof purging / sizeof *purging; i++) {
        if (purging[i].span != NULL) continue;
        purging[i].thread = arch_thread_pointer();
        __atomic_signal_fence(__ATOMIC_SEQ_CST); /* a handler may fork here */
        purging[i].span = s;
        return &purging[i];
    }
    return NULL;
}

WEIR_FN void span_purges_left(void) {
    for (unsigned i = 0; i < sizeof purging / sizeof *purging; i++) {
        struct slice* s = purging[i].span;
        if (s == NULL || purging[i].thread == arch_thread_pointer()) continue;
        purging[i].span = NULL;
        enum span_state state = SPAN_DIRTY;
        if (region_commit_strict) { /* it may be inaccessible already */
            state = SPAN_CLEAN;
            if (!huge_cover((void*)slice_address(s), (size_t)s->span_slices << SLICE_SHIFT, true)) continue;
        }
        span_put_back(s, state, clean_in(s, s->span_slices));
    }
}

/* Purge the last `slices` slices of a dirty free span, with the lock released meanwhile. From the end: what
 * is allocated next is cut off its start. Returns the pages that went. */
static uint64_t span_purge_end(struct slice* s, uint32_t slices) {
    uint32_t all = s->span_slices;
    uint16_t region = s->region;
    size_t clean = s->clean;
    list_remove(s);
    struct slice* rest = s;
    s += all - slices;
    s->region = region;
    size_t inside = clean == 0 ? 0 : clean_in(s, slices);
    if (all > slices) list_merge(rest, all - slices, SPAN_DIRTY, clean - inside);
    uintptr_t address = slice_address(s);
    size_t bytes = (size_t)slices << SLICE_SHIFT;
    span_give_out(s, slices);
    struct purging* purge = purge_begin(s);
    void* split[2];
    unsigned splits = huge_breaks((struct os_range){(void*)address, bytes}, split);
    os_lock_give(&page_lock);
    while (splits != 0) os_split_huge(split[--splits]);
    enum span_state state = SPAN_DIRTY;
    /* Each uncommitted span is a mapping; past the bound its charge stays. */
    add_relaxed(&release_totals.calls, 1);
    if (region_commit_strict && load_relaxed(&span_totals.uncommitted) < core_options.map_count_max &&
        huge_cover((void*)address, bytes, false))
        state = SPAN_UNCOMMITTED;
    else if (os_purge((void*)address, bytes))
        state = SPAN_CLEAN;
    os_lock_take(&page_lock);
    if (purge != NULL) purge->span = NULL;
    uint64_t pages = state == SPAN_DIRTY ? 0 : (uint64_t)slices * slice_page_count() - inside;
    add_relaxed(&span_totals.purged, pages << page_shift);
    span_put_back(s, state, inside);
    dirty_was_taken();
    return pages;
}

/* How many slices at the end of a dirty span have that many pages that may be resident; all: it has fewer. */
static uint32_t dirty_end(const struct slice* s, uint64_t pages) {
    uint32_t each = slice_page_count();
    uint32_t n = 0;
    for (; n < s->span_slices && pages != 0; n++) {
        uint32_t dirty = s->clean == 0 ? each : each - clean_at(s, s->span_slices - 1 - n);
        pages -= dirty < pages ? dirty : pages;
    }
    return n;
}

static struct slice* span_largest_dirty(void) {
    const struct span_lists* l = &span_lists[SPAN_DIRTY];
    for (unsigned word = BUCKET_COUNT / 64; word-- != 0;)
        if (l->used[word] != 0) return l->head[word * 64 + bit_high(l->used[word])];
    return NULL;
}

/* Purge the largest spans until `bytes` are purged. A span that the kernel would not take (locked memory)
 * ends the attempt. */
static bool span_purge_locked(uint64_t bytes) {
    uint64_t left = (bytes >> page_shift) + ((bytes & ((1u << page_shift) - 1)) != 0);
    bool some = false;
    while (left != 0) {
        struct slice* s = span_largest_dirty();
        if (s == NULL) break;
        uint64_t pages = span_purge_end(s, dirty_end(s, left));
        if (pages == 0) break;
        some = true;
        left -= pages < left ? pages : left;
    }
    if (some) span_retire_idle();
    return some;
}

static struct slice* span_longest_short(unsigned slices_max) {
    const struct span_lists* l = &span_lists[SPAN_DIRTY];
    static_assert((int)SHORT_SLICES < (int)BUCKET_EXACT && BUCKET_EXACT <= 64,
                  "a bit of the first word for each length");
    uint64_t used = l->used[0] & ((2ull << slices_max) - 1);
    return used == 0 ? NULL : l->head[bit_high(used)];
}

/* No free span is long enough, and the heap is about to grow by so many slices. What slabs that drained left
 * between others that stay serves slabs alone: where a good part of what is in use lies there, as much of it
 * goes, so that a peak does not stand on top of it. */
static void growth_pays(size_t slices) {
    enum { part = 4, spans_most = 64 };
    uint64_t most = span_totals.live / part;
    uint64_t left = (uint64_t)slices * slice_page_count();
    unsigned longest = slices <= SHORT_SLICES ? (unsigned)slices - 1 : SHORT_SLICES - 1;
    bool some = false;
    if (most < SHORT_BYTES) most = SHORT_BYTES;
    for (unsigned i = 0; i < spans_most && left != 0; i++) {
        if (core_options.release == 0 || span_totals.dirty <= most) break;
        struct slice* s = span_longest_short(longest);
        uint64_t pages = s == NULL ? 0 : span_purge_end(s, s->span_slices);
        if (pages == 0) break; /* or the kernel would not take it */
        some = true;
        left -= pages < left ? pages : left;
    }
    if (some) span_retire_idle();
}

/* Past the bound, half of it goes: one large purge instead of many small ones. */
static void span_purge_excess(void) {
    uint64_t most = release_dirty_max();
    if (span_totals.dirty > most) span_purge_locked(span_totals.dirty - most / 2);
}

static struct slice* span_alloc_locked(size_t slices, size_t align_slices, struct known* k) {
    struct slice* s = span_try(slices, align_slices, k);
    if (s != NULL) return s;
    if (span_purge_locked(span_totals.dirty)) s = span_try(slices, align_slices, k);
    if (s != NULL) return s;
    span_retire_idle();
    /* Where there are addresses it was memory that was refused, which another region would not get either. */
    if (!span_is_plausible(slices) || region_has_room(&regions[0], slices + align_slices - 1)) return NULL;
    struct region* r = region_add((uint32_t)(slices + align_slices - 1));
    if (r != NULL) s = span_from_frontier(r, slices, align_slices);
    *k = (struct known){0, false, known_fresh()};
    return s;
}

static struct slice* block_alloc_locked(size_t slices, size_t align_slices, bool* zeroed) {
    struct known k;
    struct slice* s = span_alloc_locked(slices, align_slices, &k);
    if (s != NULL) *zeroed = known_to_block(s, slices, k);
    return s;
}

static bool span_torn; /* since a fork; Sync: the page lock */

WEIR_FN void span_interrupted(void) { span_torn = true; }

static bool span_is_taken(const struct slice* s) {
    uint8_t kind = load_relaxed(&s->kind);
    return kind >= SLICE_META && !slice_kind_is_rest(kind);
}

/* Lists and totals afresh, from what the records say of live spans: their kind is the last that is written of
 * them and the first that goes. What is between them, free or in the interrupted call's hands, is out of use
 * from now on. */
WEIR_FN void span_rebuild(void) {
    for (unsigned state = 0; state < SPAN_STATES; state++) span_lists[state] = (struct span_lists){0};
    span_totals.dirty = span_totals.dirty_low = span_totals.uncommitted = 0;
    store_relaxed(&span_totals.live, (uint64_t)0);
    for (uint32_t row = 0; row < region_count; row++) {
        struct region* r = &regions[row];
        if (r->base == 0) continue;
        r->live = 0;
        for (uint32_t i = r->first; i < r->frontier;) {
            struct slice* s = region_slices(r) + i;
            uint32_t slices = 0;
            if (span_is_taken(s)) {
                slices = s->span_slices;
                r->live += slices;
                store_relaxed(&span_totals.live, span_totals.live + ((uint64_t)slices << SLICE_SHIFT));
            } else {
                for (; i + slices < r->frontier && !span_is_taken(s + slices); slices++)
                    store_relaxed(&s[slices].kind, (uint8_t)SLICE_NONE);
                s->region = (uint16_t)row;
                span_give_out(s, slices);
            }
            i += slices;
        }
    }
}

/* In the child of a fork that interrupted the holder of the lock, it is held still. If that call goes on, it
 * finds all as it left it; a call that comes before, in the handler, has to make do with what is certain. */
WEIR_FN void span_lock(void) {
    os_lock_take(&page_lock);
    if (weir_likely(!span_torn)) return;
    span_torn = false;
    if (page_lock.nest != 0) span_rebuild();
}

WEIR_FN struct slice* span_alloc(size_t slices, size_t align_slices, bool* zeroed) {
    if (slices > UINT32_MAX / 4 || align_slices > UINT32_MAX / 4) return NULL;
    span_lock();
    struct slice* s = block_alloc_locked(slices, align_slices, zeroed);
    os_lock_give(&page_lock);
    return s;
}

/* Memory that is not resident, if any is left that was given out before or never. */
static struct slice* span_not_resident(size_t slices, struct known* k) {
    struct slice* s = list_find(SPAN_CLEAN, slices);
    if (s != NULL) return span_cut(s, 0, slices, k);
    if (region_commit_strict) return NULL; /* what there is has been charged */
    *k = (struct known){0, false, known_fresh()};
    return span_from_frontier(&regions[0], slices, 1);
}

WEIR_FN struct slice* span_alloc_slab(size_t slices, bool resident, bool* fresh) {
    struct known k;
    span_lock();
    struct slice* s = resident ? NULL : span_not_resident(slices, &k);
    if (s == NULL) s = span_alloc_locked(slices, 1, &k);
    if (s != NULL) *fresh = known_to_slab(s, slices, k);
    os_lock_give(&page_lock);
    return s;
}

/* Under the page lock, which is given up meanwhile: none of the span's holes is being purged any more. */
static void span_settle(const struct slice* s) {
    uint32_t slices = slice_kind_is_paged(load_relaxed(&s->kind)) ? s->span_slices : 1;
    /* All of them at once, under one hold of the lock: after a wait those before may be busy again. */
    for (uint32_t i = 0; i < slices;) {
        /* Acquire: pairs with the end of the purge. */
        if (hole_busy(load_acquire(&slice_pages(s + i)->state)) == 0) {
            i++;
            continue;
        }
        os_lock_give(&page_lock);
        (void)release_wait(s + i);
        os_lock_take(&page_lock);
        i = 0;
    }
}

/* The pages of a slice that may be resident, run by run. */
static void slice_wipe(uintptr_t address, uint32_t pages) {
    while (pages != 0) {
        unsigned from = bit_low(pages);
        unsigned count = bit_low(~((uint64_t)pages >> from));
        pages &= ~(((1u << count) - 1) << from);
        span_wipe_hook((void*)(address + ((uintptr_t)from << page_shift)), (size_t)count << page_shift);
    }
}

/* A span that is given back has no holes any more; its slices' words say which pages are clean. Their number.
 */
static size_t span_take_holes(const struct slice* s) {
    uint8_t kind = load_relaxed(&s->kind);
    if (!slice_kind_is_paged(kind) && kind != SLICE_LARGE) {
        words_clear(s, 1);
        return 0;
    }
    span_settle(s);
    for (uint32_t i = 0; i < (kind == SLICE_LARGE ? 1 : s->span_slices); i++) {
        uint64_t* word = &slice_pages(s)[i].state;
        store_relaxed(word, hole_known(load_relaxed(word)));
        if (weir_unlikely(span_wipe_hook != NULL) && kind != SLICE_LARGE)
            slice_wipe(slice_address(s) + ((uintptr_t)i << SLICE_SHIFT),
                       hole_all() & ~hole_clean(load_relaxed(word)));
    }
    if (kind != SLICE_LARGE) return clean_in(s, s->span_slices);
    hole_from_block(s);
    return clean_at(s, s->span_slices - 1);
}

WEIR_FN void span_free(struct slice* s) {
    span_lock();
    span_free_locked(s);
    os_lock_give(&page_lock);
}

WEIR_FN void span_free_locked(struct slice* s) {
    struct region* r = &regions[s->region];
    uint32_t slices = s->span_slices;
    weir_assert(slices != 0 && r->live >= slices);
    enum span_state state = SPAN_DIRTY;
    size_t clean = span_take_holes(s);
    if ((s->flags & SLICE_MOVED) != 0) store_relaxed(&span_totals.moved, span_totals.moved - span_pieces(s));
    if (weir_unlikely((s->flags & SLICE_FENCED) != 0)) {
        s = fence_remove(s, &state);
        if (s == NULL) return;
        clean = 0;
    } else if ((s->flags & SLICE_MOVED) != 0 &&
               huge_cover((void*)slice_address(s), (size_t)slices << SLICE_SHIFT, true)) {
        state = SPAN_CLEAN;
        store_relaxed(&slice_pages(s)[slices - 1].state, (uint64_t)0); /* the only one that says anything */
        clean = 0;
        add_relaxed(&span_totals.purged, (uint64_t)slices << SLICE_SHIFT);
    }
    span_put_back(s, state, clean);
    /* Acquire: pairs with the release by which a visitor leaves. One that comes gave no block yet, so that
     * the region is not free of live spans. */
    if (r != &regions[0] && r->live == 0 && region_visitors(r) == 0)
        span_retire_region(r);
    else
        span_purge_excess();
}

WEIR_FN void span_free_uncommitted(struct slice* s) { span_put_back(s, SPAN_UNCOMMITTED, 0); }

WEIR_FN void span_mark_rest(struct slice* s) {
    for (uint32_t i = 1; i < s->span_slices; i++) {
        if (s[i].region != s->region)
            s[i].region = s->region; /* others may be looking, from an earlier life */
        s[i].back = i;
        store_relaxed(&s[i].owner, NULL);
        store_release(&s[i].kind, (uint8_t)SLICE_SLAB_REST); /* publishes its pages to the release pass */
    }
}

WEIR_FN void span_free_paged(struct slice* s) {
    for (uint32_t i = 1; i < s->span_slices; i++) store_relaxed(&s[i].kind, (uint8_t)SLICE_NONE);
    span_free(s);
}

static void span_shrink(struct slice* s, uint32_t slices) {
    uint32_t left = s->span_slices - slices;
    struct slice* rest = s + slices;
    rest->region = s->region;
    hole_from_block(s);
    s->span_slices = slices;
    regions[s->region].live -= left;
    store_relaxed(&span_totals.live, span_totals.live - ((uint64_t)left << SLICE_SHIFT));
    list_merge(rest, left, SPAN_DIRTY, clean_at(rest, left - 1));
    span_purge_excess();
}

/* What lies behind a span, given out to be a part of it. */
static bool span_cut_behind(struct slice* piece, uint32_t more, struct known* k) {
    struct region* r = &regions[piece->region];
    if (load_relaxed(&piece->kind) != SLICE_FREE) return false;
    if (piece->span_slices >= more) return span_cut(piece, 0, more, k) != NULL;
    return piece == span_at_end(r) && span_is_plausible(more) && span_from_end(r, more, k) != NULL;
}

static bool span_grow(struct slice* s, uint32_t slices) {
    struct region* r = &regions[s->region];
    uint32_t more = slices - s->span_slices;
    uint32_t end = slice_index(s) + s->span_slices;
    struct known k = {0, false, known_fresh()};
    struct slice* piece = s + s->span_slices;
    if (end == r->frontier) {
        if (!span_is_plausible(more) || !frontier_move(r, more)) return false;
        piece->region = s->region;
        release_grew((size_t)more << SLICE_SHIFT);
    } else {
        if (!span_cut_behind(piece, more, &k)) return false;
        store_relaxed(&piece->kind, (uint8_t)SLICE_NONE);
        r->live -= more;
        store_relaxed(&span_totals.live, span_totals.live - ((uint64_t)more << SLICE_SHIFT));
    }
    r->live += more;
    store_relaxed(&span_totals.live, span_totals.live + ((uint64_t)more << SLICE_SHIFT));
    s->span_slices = slices;
    (void)known_to_block(piece, more, k);
    uint64_t last = load_relaxed(&slice_pages(piece)->state);
    words_clear(piece, 1);
    store_relaxed(&slice_pages(s)->state, last);
    return true;
}

WEIR_FN bool span_resize(struct slice* s, size_t slices) {
    if (slices > UINT32_MAX / 4) return false;
    bool done = true;
    span_lock();
    if (slices < s->span_slices && (s->flags & SLICE_MOVED) == 0)
        span_shrink(s, (uint32_t)slices);
    else if (slices > s->span_slices)
        done = (s->flags & SLICE_MOVED) == 0 && span_grow(s, (uint32_t)slices);
    os_lock_give(&page_lock);
    return done;
}

WEIR_FN bool span_purge(uint64_t bytes) {
    span_lock();
    bool some = span_purge_locked(bytes);
    os_lock_give(&page_lock);
    return some;
}

/* Give back what is recorded of slices of a free span, `most` at most, from the end, as what is allocated
 * next is cut off its start. Returns their number; 0: the kernel refused. */
static uint32_t span_bare(struct slice* s, uint32_t most) {
    uint32_t all = s->span_slices;
    uint32_t done = (uint32_t)load_relaxed(&s->bare);
    uint32_t count = all - done < most ? all - done : most;
    /* So many of those that are done share a page with others. */
    uint32_t shared = (uint32_t)(os_page_bytes() / sizeof(struct slice_bits));
    uint32_t end = done <= shared ? all - 1 : all - done + shared; /* the last one stays */
    uint32_t start = all - done - count;                           /* and the first one */
    if (!region_drop_records(slice_index(s) + (start == 0 ? 1 : start), slice_index(s) + end)) return 0;
    store_relaxed(&s->bare, (uint64_t)done + count);
    return count;
}

/* The same of free spans in a state, *left at most, as far as a look at so many tells: those that came last
 * come first. In further regions records say which region they are of, and go with it. False: refused. */
static bool spans_bare(enum span_state state, uint32_t* left) {
    enum { looks_most = 4096 };
    const struct span_lists* l = &span_lists[state];
    unsigned looks = 0;
    for (unsigned b = bucket_of(RECORDS_SLICES); b < BUCKET_COUNT; b++) {
        for (struct slice* s = l->head[b]; s != NULL && looks < looks_most && *left != 0;
             s = s->next, looks++) {
            if (s->region != 0 || load_relaxed(&s->bare) == s->span_slices) continue;
            uint32_t count = span_bare(s, *left);
            if (count == 0) return false;
            *left -= count;
        }
    }
    return true;
}

/* Under the lock, so that the span can be had all the time: a piece of it at a time, and none once somebody
 * has waited. */
WEIR_FN WEIR_NOINLINE bool span_drop_records(void) {
    enum { piece = 2048, pieces = 16 };
    for (unsigned i = 0; i < pieces; i++) {
        uint32_t left = piece;
        span_lock();
        bool more = spans_bare(SPAN_CLEAN, &left) && spans_bare(SPAN_UNCOMMITTED, &left) && left == 0;
        bool woke = os_lock_give_waking(&page_lock);
        if (!more) return false;
        if (woke) break;
    }
    return true;
}

WEIR_FN uint64_t span_window(void) {
    span_lock();
    uint64_t low = span_totals.dirty_low;
    span_totals.dirty_low = span_totals.dirty;
    os_lock_give(&page_lock);
    return low;
}

WEIR_FN void span_visit(void (*visit)(struct slice* s, void* context), void* context) {
    span_lock();
    for (uint32_t row = 0; row < region_count; row++) {
        const struct region* r = &regions[row];
        if (r->base == 0) continue;
        for (uint32_t i = r->first; i < r->frontier;) {
            struct slice* s = region_slices(r) + i;
            i += s->span_slices;
            visit(s, context);
        }
    }
    os_lock_give(&page_lock);
}

WEIR_FN void span_visit_records(record_visit* visit, void* context) {
    for (uint32_t row = 0; row < region_count; row++) {
        const struct region* r = &regions[row];
        if (r->base == 0) continue;
        for (uint32_t i = r->first; i < r->frontier; i++)
            visit(region_slices(r) + i, (struct slice_pages*)r->pages + i, context);
    }
}

WEIR_FN void span_trim(void) {
    span_lock();
    struct region* r = &regions[0];
    huge_forget_ahead();
    for (struct slice* s; (s = span_at_end(r)) != NULL;) {
        uint32_t slices = s->span_slices;
        list_remove(s);
        r->frontier -= slices;
    }
    dirty_was_taken();
    region_trim();
    os_lock_give(&page_lock);
}

static bool span_check_free(const struct slice* s) {
    unsigned b = bucket_of(s->span_slices);
    bool linked = s->prev != NULL ? s->prev->next == s : span_lists[s->state].head[b] == s;
    bool ended = s->span_slices == 1 || (s[s->span_slices - 1].kind == SLICE_FREE_END &&
                                         s[s->span_slices - 1].back == s->span_slices - 1);
    bool known = s->clean == clean_in(s, s->span_slices) && (s->state == SPAN_DIRTY || s->clean == 0);
    known &= load_relaxed(&s->bare) <= (s->state == SPAN_DIRTY ? 0 : s->span_slices);
    for (uint32_t i = 0; i < s->span_slices; i++) {
        uint64_t state = load_relaxed(&slice_pages(s)[i].state);
        known &= hole_known(state | hole_clean(state)) == state;
    }
    return linked && ended && known && s->owner == NULL;
}

WEIR_FN bool span_check(void) {
    bool good = true;
    uint64_t live = 0;
    uint64_t dirty = 0;
    span_lock();
    for (uint32_t row = 0; row < region_count; row++) {
        const struct region* r = &regions[row];
        if (r->base == 0) continue;
        good &= r->first <= r->frontier && r->frontier <= r->committed && r->committed <= r->slices;
        uint32_t i = r->first;
        while (i < r->frontier && good) {
            const struct slice* s = region_slices(r) + i;
            good &= s->span_slices != 0 && s->span_slices <= r->frontier - i && s->region == row;
            if (load_relaxed(&s->kind) == SLICE_FREE) {
                good &= span_check_free(s);
                if (s->state == SPAN_DIRTY) dirty += dirty_bytes(s);
            } else {
                good &= span_is_taken(s);
                live += (uint64_t)s->span_slices << SLICE_SHIFT;
            }
            i += s->span_slices;
        }
    }
    good &= live == span_totals.live && dirty == span_totals.dirty;
    os_lock_give(&page_lock);
    return good;
}
