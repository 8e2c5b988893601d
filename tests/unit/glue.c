/* glue.c: see glue.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "glue.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "heap/available.h"
#include "heap/census.h"
#include "heap/chunk.h"
#include "heap/depot.h"
#include "heap/direct.h"
#include "heap/exposure.h"
#include "heap/refill.h"
#include "heap/registry.h"
#include "heap/remote_bits.h"
#include "heap/guard.h"
#include "heap/history.h"
#include "heap/place.h"
#include "heap/heap.h"
#include "heap/large.h"
#include "heap/medium.h"
#include "heap/orphan.h"
#include "heap/slab.h"
#include "heap/visit.h"
#include "os/os.h"
#include "page/release.h"
#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"
#include "tag/tag.h"

void* unit_alloc(size_t size) { return heap_alloc(size); }
void unit_free(void* p) { heap_free(p, "free"); }
void* unit_alloc_aligned(size_t size, size_t align) { return heap_alloc_aligned(size, align); }
void* unit_alloc_zeroable(size_t size, bool* zeroed) { return heap_alloc_zeroable(size, zeroed); }
void* unit_realloc(void* p, size_t size) { return heap_realloc(p, size, "realloc"); }
size_t unit_usable(const void* p) { return heap_usable(p, "malloc_usable_size"); }
bool unit_size_matches(size_t usable, size_t size, size_t align) {
    return heap_size_matches(usable, size, align);
}

struct unit_place unit_place_at(const void* p) {
    struct heap_place at;
    struct unit_place place = {.kind = -1};
    uint64_t before = tag_is_on() ? arch_tag_ignore() : 0;
    if (place_at((uintptr_t)tag_clear(p), &at))
        place = (struct unit_place){.kind = (int)at.kind,
                                    .start = at.start,
                                    .bytes = at.bytes,
                                    .free = place_is_free(&at),
                                    .slotted = at.slotted,
                                    .slot = at.slot};
    if (tag_is_on()) arch_tag_ignore_end(before);
    return place;
}
void unit_history_start(uint64_t calls) {
    os_stack_start();
    history_start(calls);
}
void unit_history_note(bool is_free, const void* p) {
    history_note(is_free ? HISTORY_FREE : HISTORY_ALLOC, p);
}
int unit_history_find(bool is_free, const void* p, int* thread) {
    uintptr_t frames[TRACE_FRAMES_MAX];
    struct trace trace = {.frames = frames};
    if (!history_find(is_free ? HISTORY_FREE : HISTORY_ALLOC, p, &trace)) return -1;
    *thread = trace.thread;
    return (int)trace.count;
}
void unit_guard_start(uint64_t rate, uint64_t slots) {
    core_options.guard_rate = rate;
    if (slots != 0) core_options.guard_slots = slots;
    heap_attach();
    guard_start();
}
bool unit_guarded(const void* p) { return guard_holds(p); }
uint64_t unit_guard_allocs(void) { return guard_figures_get().allocs; }
uint64_t unit_guard_live_blocks(void) { return guard_figures_get().live_blocks; }
uint64_t unit_guard_live_bytes(void) { return guard_figures_get().live_bytes; }

struct heap* unit_attach(void) { return heap_attach(); }
void unit_list_again(struct slice* s) { available_list_again(heap_self(), s); }
bool unit_lists(unsigned c) { return heap_self()->available[c] != NULL; }
void unit_detach(void) { heap_detach("thread exit", false); }
void unit_end(void) { heap_detach("thread exit", true); }
uint64_t unit_parked(void) { return load_relaxed(&release_parked); }
unsigned unit_parked_count(void) {
    unsigned count = 0;
    for (const struct heap* h = registry_first(); h != NULL; h = h->registry_next)
        count += h->parked_bytes != 0;
    return count;
}
uint64_t unit_large_bytes(void) { return large_live().bytes; }
void unit_large_free(const void* p) { large_free(slice_find(p), "free"); }
bool unit_keeps_large(void) { return load_relaxed(&heap_self()->kept_large) != NULL; }
void unit_collect(void) { heap_collect(); }
void unit_outboxes_send(void) {
    struct heap* h = heap_self();
    heap_enter(h);
    outbox_flush_all(h);
    heap_leave(h);
}
void unit_medium_drop(void) { medium_drop(heap_self(), 1); }
void unit_clear(void* p, size_t bytes) { heap_clear(p, bytes); }
void unit_visit(bool all) { (void)heaps_visit(all ? RELEASE_LOOK_ALL : RELEASE_LOOK_DUE); }
bool unit_look(unsigned look) { return heaps_visit((enum release_look)look); }
bool unit_visit_for(uint64_t bytes) { return heaps_visit_for(bytes); }
void unit_visit_asked(void) { heaps_visit_asked(); }
struct heap* unit_self(void) { return heap_self() == &heap_empty ? NULL : heap_self(); }
void unit_fork_prepare(void) {
    do heap_fork_ready();
    while (!heap_fork_prepare(true));
}
bool unit_arenas_take(void) { return arenas_fork_take(); }
void unit_arenas_give(void) { arenas_fork_give(); }
bool unit_arena_is_mine(void) { return arena_is_mine(); }
bool unit_fork_tries(bool patient) { return heap_fork_prepare(patient); }
void unit_fork_parent(void) { heap_fork_parent(); }
void unit_fork_child(void) { heap_fork_child(); }

struct slice* unit_slice(const void* p) {
    struct slice* s = slice_find(tag_clear(p));
    return s == NULL ? NULL : slice_first(s);
}
uint32_t unit_used(const struct slice* s) { return slab_used(s); }
uint32_t unit_unsorted(const struct slice* s) { return slab_unsorted(s); }
struct slice* unit_active(unsigned c) { return heap_self()->active[c]; }
bool unit_is_shared(const struct slice* s) { return load_relaxed(&s->listed) == LISTED_ACTIVE; }
bool unit_is_direct(const struct slice* s) { return slab_is_direct(s); }
uint32_t unit_turns_unchecked(void) { return heap_self()->turns_unchecked; }
bool unit_packs(void) { return exposure_packs(heap_self()); }
uint64_t unit_exposed(void) { return load_relaxed(&heap_self()->exposed); }
size_t unit_kept_bytes(void) { return heap_self()->kept_bytes; }
size_t unit_kept_bytes_max(void) { return KEPT_BYTES_MAX; }
size_t unit_kept_bytes_wide(void) { return KEPT_BYTES_WIDE; }
uint64_t unit_slow_calls(void) { return heap_self()->slow_calls; }
uint64_t unit_remote_count(const struct slice* s) { return slab_waiting(s); }
bool unit_has_in_bin(unsigned c) { return heap_self()->bins[c].head != NULL; }
void unit_push_remote(void* p) { (void)slab_push_remote(unit_slice(p), p, p, 1, 0); }
bool unit_takes_bits(const struct slice* s) { return remote_bits_are_used(load_acquire(&s->remote)); }
bool unit_has_remote(const struct slice* s) { return slab_has_remote(s); }
bool unit_bits_far(const struct slice* s) { return slice_bits(s)->noted_far != 0; }
uint64_t unit_bits_count(const struct slice* s) { return remote_bits_count(s); }
bool unit_is_unowned(const struct slice* s) { return (load_acquire(&s->remote) & REMOTE_UNOWNED) != 0; }
bool unit_is_doubted(const struct slice* s) { return (load_acquire(&s->remote) & REMOTE_DOUBTED) != 0; }
bool unit_is_mine(const struct slice* s) { return owner_heap(load_relaxed(&s->owner)) == heap_self(); }
void unit_orphans_interrupted(void) { orphans_interrupted(); }
bool unit_is_orphan(const struct slice* s) { return (s->flags & SLICE_ORPHAN) != 0; }
size_t unit_drained_bytes_max(void) { return DRAINED_BYTES; }
bool unit_is_drained(const struct slice* s) { return (s->flags & SLICE_DRAINED) != 0; }
bool unit_is_large(const struct slice* s) { return load_relaxed(&s->kind) == SLICE_LARGE; }
struct os_lock* unit_heaps_lock(void) { return &heaps_lock; }
struct os_lock* unit_heap_lock(void) { return &heap_self()->lock; }
struct os_lock* unit_own_lock(void) { return &heap_self()->lock; }
uint64_t unit_heaps_live(void) { return load_relaxed(&heap_totals.heaps_live); }
uint64_t unit_heaps_made(void) { return load_relaxed(&heap_totals.heaps_made); }
uint64_t unit_heaps_peak(void) { return load_relaxed(&heap_totals.heaps_peak); }
void unit_set_hooks(void (*attach)(bool first), void (*tick)(void)) {
    heap_attach_hook = attach;
    heap_tick_hook = tick;
}

void* unit_arena_alloc(uint32_t* home, unsigned m, size_t align) { return arena_alloc(home, m, align, NULL); }
void* unit_arena_alloc_resident(uint32_t* home, unsigned m, size_t align) {
    return arena_alloc_resident(home, m, align, NULL);
}
unsigned unit_arena_alloc_some(uint32_t* home, unsigned m, unsigned most, void** all) {
    static_assert((int)UNIT_ARENA_MORE == (int)ARENA_MORE, "the same");
    static_assert(UNIT_ARENA_CHUNKS == ARENA_BANKS * BANK_CHUNKS, "likewise");
    struct arena_more more = {.most = most, .fresh = most};
    all[0] = arena_alloc(home, m, 1, &more);
    for (unsigned i = 0; i < more.count; i++) {
        all[i + 1] = more.blocks[i].block;
        weir_assert((load_relaxed(more.blocks[i].known) & (BLOCK_KEPT | BLOCK_QUICK)) == BLOCK_KEPT);
        weir_assert(more.blocks[i].known == arena_block_any(unit_slice(all[0]), all[i + 1]) ||
                    unit_slice(all[i + 1]) != unit_slice(all[0]));
    }
    return all[0] == NULL ? 0 : more.count + 1;
}
uint64_t unit_release_owed(void) { return load_relaxed(&release_owed); }
bool unit_arena_free(void* p) { return arena_free(&p, 1); }
bool unit_arena_grow(void* p, unsigned m) { return !tag_is_on() && arena_grow(unit_slice(p), p, m); }
bool unit_arena_check(void) { return arena_check(); }
void unit_arena_publish(void) { arena_publish_all(); }
static struct arena* arena_of(const void* p) { return chunk_of(unit_slice(p))->arena; }
void unit_arena_hold(const void* p, bool visits) {
    os_lock_take(&arena_of(p)->lock);
    store_relaxed(&arena_of(p)->visited, visits);
}
void unit_arena_leave(const void* p) {
    store_relaxed(&arena_of(p)->visited, false);
    os_lock_give(&arena_of(p)->lock);
}
const void* unit_arena_of(const void* p) { return arena_of(p); }
void unit_arena_trim(void) { arena_trim_all(); }
void* unit_arena_retag(void* p) { return arena_retag(unit_slice(p), p); }
uint64_t unit_arena_used(unsigned m) { return arena_used(m); }
uint64_t unit_arena_idle_bytes(void) { return arena_idle_bytes(); }
bool unit_in_chunk(const void* p) { return load_relaxed(&unit_slice(p)->kind) == SLICE_CHUNK; }
uint64_t unit_chunk_blocks(const void* p) {
    const struct chunk* k = chunk_of(unit_slice(p));
    uint64_t hash = 0;
    for (uint32_t word = 0; word < CHUNK_WORDS; word++)
        for (uint64_t left = k->bits[word].starts & ~k->bits[word].free; left != 0; left &= left - 1) {
            uint32_t unit = word * 64 + bit_low(left);
            uint64_t known = load_relaxed(&k->blocks[unit / GROUP_UNITS]);
            if ((known & BLOCK_QUICK) == 0) hash = (hash ^ unit ^ known << 16) * 0x9e3779b97f4a7c15u;
        }
    return hash;
}
unsigned unit_kept_count(unsigned m) {
    const struct kept_medium* k = &heap_self()->kept_medium[medium_ring(m)];
    return m >= LONG_CLASS && k->bytes != medium_bytes(m) ? 0 : medium_kept_count(k);
}
unsigned unit_kept_places(unsigned m) {
    const struct kept_medium* k = &heap_self()->kept_medium[medium_ring(m)];
    return (load_relaxed(&k->limit) - load_relaxed(&k->from)) % KEPT_RING_BYTES / KEPT_PLACE_BYTES;
}
bool unit_kept_is_round(unsigned m) {
    const struct kept_medium* k = &heap_self()->kept_medium[medium_ring(m)];
    return load_relaxed(&k->to) < load_relaxed(&k->from);
}
uint64_t unit_kept_place_plus(uint64_t place, int entries) { return kept_place_plus(place, entries); }
void unit_kept_age(void) { medium_age(heap_self()); }
unsigned unit_kept_count_max(unsigned m) { return medium_kept_count_max(heap_self(), medium_ring(m)); }
void* unit_kept_block(unsigned m) {
    return unit_kept_count(m) == 0
               ? NULL
               : *medium_kept_at(heap_self(), medium_youngest(heap_self(), medium_ring(m)));
}
size_t unit_kept_medium_max(void) { return (size_t)heap_self()->kept_medium_max; }
size_t unit_kept_medium_bytes(void) { return (size_t)medium_kept_bytes(heap_self()); }
unsigned unit_medium_out(unsigned m) { return heap_self()->medium_out[m]; }
uint64_t unit_medium_out_bytes(void) { return heap_self()->medium_out_bytes; }
void unit_long_hook(void (*hook)(void)) { heap_long_hook = hook; }
bool unit_has_heap(void) { return heap_self() != &heap_empty; }
bool unit_depot_put(unsigned m, void* const* blocks, unsigned count, bool own) {
    bool tell;
    return depot_put(m, blocks, count, own, &tell);
}
unsigned unit_depot_take(unsigned m, void** blocks) { return depot_take(m, blocks); }
void unit_depot_empty(void) { depot_empty(); }
uint64_t unit_depot_count(unsigned m) { return depot_count(m); }
unsigned unit_depot_count_of(unsigned m) { return depot_count_of(m); }
uint32_t unit_home_arena(void) { return heap_self()->arena; }
void unit_kept_enter(void) {
    uint32_t inside;
    (void)medium_enter(heap_self(), &inside);
}
void unit_kept_leave(void) { medium_leave(heap_self(), 0); }
static_assert((int)UNIT_QUICK_CHUNK_BYTES == (int)QUICK_CHUNK_BYTES &&
                  (int)UNIT_QUICK_BYTES == (int)QUICK_BYTES && (int)UNIT_QUICK_LOOK == (int)QUICK_LOOK,
              "glue.h has the heap's own number");
static_assert((uint32_t)UNIT_ARENA_BY_CPU == (uint32_t)ARENA_BY_CPU, "as in arena.h");
static_assert((int)UNIT_MEDIUM_CLASSES == (int)MEDIUM_CLASSES &&
                  (int)UNIT_CHUNK_BYTES == CHUNK_SLICES * SLICE_BYTES,
              "C++ cannot read arena.h");

void unit_census(struct unit_figures* out) {
    static struct census t;
    census_take(&t);
    *out = (struct unit_figures){.live_bytes = t.live_bytes,
                                 .live_blocks = t.live_blocks,
                                 .cached_bytes = t.cached_bytes,
                                 .hole_bytes = t.hole_bytes,
                                 .meta_bytes = t.meta_bytes,
                                 .record_bytes = t.record_bytes,
                                 .reserved_bytes = t.reserved_bytes,
                                 .committed_bytes = t.committed_bytes,
                                 .alloc_calls = t.alloc_calls,
                                 .remote_frees = t.remote_frees,
                                 .slow_calls = t.slow_calls,
                                 .guarded_calls = t.guarded_calls,
                                 .guarded_freed = t.guarded_freed};
    for (unsigned c = 0; c < CLASS_COUNT; c++) {
        out->slabs += t.classes[c].slabs;
        out->class_live[c] = t.classes[c].live_blocks;
    }
}

void unit_census_heap(const struct heap* h, struct unit_heap_figures* out) {
    struct census_heap t = {.heap = h};
    census_take_heap(&t);
    *out = (struct unit_heap_figures){t.slabs, t.live_bytes, t.cached_bytes};
}

enum { SEEN_FREE = 1, SEEN_SORTED = 2 };

static void mark(unsigned char* seen, const struct slice* s, const block_t* p, unsigned as,
                 const char** wrong) {
    if (!slab_holds_block(s, p)) {
        *wrong = "a list leaves the slab";
        return;
    }
    uint32_t index = (uint32_t)(((uintptr_t)tag_clear(p) - slice_address(s)) / slab_class(s)->bytes);
    if (tag_is_on() && ((tag_of(tag_read(p)) ^ index) & 1) != 0)
        *wrong = "a block has the other parity's tag";
    if (tag_is_on() && tag_of(tag_read(p)) == 0) *wrong = "a free block has no tag";
    if (seen[index] != 0) *wrong = "a block is listed twice";
    seen[index] = (unsigned char)as;
}

static bool is_hole(const struct slice* s, size_t page) {
    size_t per_slice = slice_page_count();
    return (hole_of(load_relaxed(&slice_pages(s)[page / per_slice].state)) >> page % per_slice & 1) != 0;
}

static bool is_built(const struct slice* s, size_t block) {
    size_t page = (size_t)1 << page_shift;
    size_t bytes = slab_class(s)->bytes;
    for (size_t g = block * bytes / page; g <= ((block + 1) * bytes - 1) / page; g++)
        if (is_hole(s, g)) return false;
    return true;
}

/* The pages' lists, and the counts and bits of each page against what the blocks say. */
static const char* pages_wrong(const struct slice* s, unsigned char* seen) {
    const char* wrong = NULL;
    const struct slice_pages* pages = slice_pages(s);
    size_t page = (size_t)1 << page_shift;
    size_t per_slice = slice_page_count();
    uint32_t sorted = 0;
    uint32_t built = 0;
    for (size_t g = 0; g < per_slice * s->span_slices; g++) {
        const struct slice_pages* r = &pages[g / per_slice];
        unsigned bit = (unsigned)(g % per_slice);
        if (((r->listed >> bit & 1) != 0) != (r->head[bit] != 0))
            return "listed is not whether there is a list";
        if (r->head[bit] == 0) continue;
        if (is_hole(s, g)) return "a hole has a list";
        uintptr_t slice = slice_address(s) + g / per_slice * SLICE_BYTES;
        const block_t* p = (const block_t*)(slice + (uintptr_t)(r->head[bit] - 1) * GRANULE);
        for (; p != NULL && wrong == NULL; p = ((const block_t*)tag_access(p))->next, sorted++) {
            p = tag_clear(p);
            if (((uintptr_t)p - slice_address(s)) / page != g) return "a page lists another one's block";
            mark(seen, s, p, SEEN_SORTED, &wrong);
        }
        if (wrong != NULL) return wrong;
    }
    if (sorted != pages->sorted) return "sorted is not the number of blocks on the pages' lists";
    static uint16_t used[SLICE_PAGES_MAX * 8];
    static bool cross[SLICE_PAGES_MAX * 8];
    memset(used, 0, sizeof used);
    memset(cross, 0, sizeof cross);
    for (size_t i = 0; i < slab_class(s)->capacity; i++) {
        bool is = is_built(s, i);
        built += is;
        if (!is && seen[i] != 0) return "a block that is not built is listed";
        if (!is || seen[i] == SEEN_SORTED) continue;
        size_t home = i * slab_class(s)->bytes / page;
        used[home]++;
        for (size_t g = home + 1; g <= ((i + 1) * slab_class(s)->bytes - 1) / page; g++) cross[g] = true;
    }
    if (built != s->built) return "built is not the number of blocks that touch no hole";
    for (size_t g = 0; g < per_slice * s->span_slices; g++) {
        const struct slice_pages* r = &pages[g / per_slice];
        if (r->used[g % per_slice] != used[g]) return "a page's count of blocks in use is wrong";
        if ((r->cross >> g % per_slice & 1) != cross[g]) return "a page's crossing bit is wrong";
        if (!is_hole(s, g) && g * page >= (size_t)slab_class(s)->capacity * slab_class(s)->bytes)
            return "a page on which no block lies is no hole";
        uint32_t frees = used[g] + cross[g] == 0 ? 1 : used[g] + cross[g];
        if (!is_hole(s, g) && slab_frees_to_hole(slice_pages(s)) > frees)
            return "a page is free after fewer frees";
    }
    return NULL;
}

/* Of a direct slab, whose bin is the calling thread's or at rest. */
static const char* direct_wrong(const struct slice* s) {
    const struct heap* h = owner_heap(load_relaxed(&s->owner));
    const struct direct* d = &h->direct[s->size_class];
    if (h->active[s->size_class] != s) return "direct, and not active";
    if (s->push_at != (void**)&h->bins[s->size_class].head) return "direct, and frees go elsewhere";
    uint32_t waiting = 0;
    for (const block_t* p = h->bins[s->size_class].head; p != NULL; p = p->next) waiting++;
    uint32_t count = d->count + direct_freed(s) - d->taken;
    return waiting != count ? "what came and went is not what is in the bin" : NULL;
}

static const char* slab_wrong(const struct slice* s) {
    static unsigned char seen[SLICE_BYTES * 8 / GRANULE];
    const char* wrong = NULL;
    uint32_t listed = 0;
    memset(seen, 0, sizeof seen);
    if (s->span_slices != slab_class(s)->slices) return "span_slices is not the class's";
    if (s->built > slab_class(s)->capacity) return "more is built than fits";
    for (uint32_t i = 1; i < s->span_slices; i++)
        if (load_relaxed(&s[i].kind) != SLICE_SLAB_REST || s[i].back != i || s[i].owner != NULL)
            return "a further slice is no REST";
    const struct slice_pages* r = slice_pages(s);
    const block_t* taken =
        r->taken == 0 ? NULL : (const block_t*)(slice_address(s) + (r->taken - 1u) * GRANULE);
    for (const block_t* p = s->free; p != taken && p != NULL && wrong == NULL; p = p->next, listed++)
        mark(seen, s, p, SEEN_FREE, &wrong);
    if ((r->taken != 0 || r->ahead != 0) && s->listed == 0) return "visited, and on no list";
    if (wrong == NULL) wrong = pages_wrong(s, seen);
    if (wrong != NULL) return wrong;
    if (slab_used(s) - r->ahead + listed + r->sorted != s->built) return "used + list + sorted != built";
    if (s->until == 0 && s->rest != 0) return "the countdown has ended, and nobody has looked";
    uint64_t word = load_acquire(&s->remote);
    uint32_t count = 0;
    const block_t* last = NULL;
    for (const block_t* p = remote_first(s, word); p != NULL && wrong == NULL; last = p, p = p->next, count++)
        mark(seen, s, p, SEEN_FREE, &wrong);
    if (wrong != NULL) return wrong;
    if (count != remote_count(word)) return "remote count is not the list's length";
    if (count == 0 ? (word & (REMOTE_FIRST << REMOTE_LAST_SHIFT | REMOTE_FIRST)) != 0
                   : last != remote_last(s, word))
        return "the remote word has another last block";
    const bool bits = remote_bits_are_used(word);
    if (s->region == 0 && load_acquire(&region_bits_end) > slice_index(s)) {
        const struct slice_bits* b = slice_bits(s);
        uint32_t noted = 0;
        for (uint32_t i = 0; i < SLICE_BITS && wrong == NULL; i++) {
            if ((load_relaxed(slice_bits_word(s, i / 64)) >> i % 64 & 1) == 0) continue;
            if ((i < SLICE_BITS_NEAR ? b->noted : b->noted_far) == 0) return "bits that nobody looks for";
            if (i >= slab_class(s)->capacity) return "the bit of no block";
            mark(seen, s, (const block_t*)(slice_address(s) + (size_t)i * slab_class(s)->bytes), SEEN_FREE,
                 &wrong);
            noted++;
        }
        if (wrong != NULL) return wrong;
        if (noted != 0 && !bits) return "bits that nobody looks for";
        count += noted;
    }
    if (bits && (s->owner == NULL || s->listed == LISTED_AVAILABLE || s->listed == LISTED_SCARCE))
        return "bits are set of a slab that is not active";
    if (count + r->ahead > slab_used(s)) return "more came back than was out";
    if ((word & REMOTE_UNOWNED) != 0 && s->owner != NULL) return "unowned, with an owner";
    if (s->owner != NULL && (s->flags & SLICE_EARLY) != 0) return "given up early, and owned";
    return slab_is_direct(s) ? direct_wrong(s) : NULL;
}

static void check_slab(struct slice* s, void* context) {
    long* count = context;
    if (load_relaxed(&s->kind) != SLICE_SLAB || *count < 0) return; /* an arena's pass may change it */
    const char* wrong = slab_wrong(s);
    if (wrong == NULL) {
        ++*count;
        return;
    }
    printf("slab of %u bytes: %s (until %u rest %u sorted %u built %u)\n", slab_class(s)->bytes, wrong,
           s->until, s->rest, slice_pages(s)->sorted, s->built);
    *count = -1;
}

uint32_t unit_visitors(void) {
    uint32_t visitors = 0;
    for (uint32_t row = 0; row < region_count; row++) visitors += region_visitors(&regions[row]);
    return visitors;
}

/* Take the page lock while no visitor is in any region: a slab that one sorts is not right until it has
 * gone. What is left of ended threads the helper may still be giving away. False: one does not go. */
static bool no_visitors_lock(void) {
    enum { tries = 100000, pause_us = 100 };
    for (unsigned i = 0; i < tries; i++) {
        span_lock();
        if (unit_visitors() == 0) return true;
        os_lock_give(&page_lock);
        usleep(pause_us);
    }
    printf("a visitor does not go\n");
    return false;
}

long unit_check_slabs(void) {
    long count = 0;
    if (!arena_check()) {
        printf("a chunk is wrong\n");
        return -1;
    }
    if (!no_visitors_lock()) return -1;
    span_visit(check_slab, &count);
    os_lock_give(&page_lock);
    return count;
}
