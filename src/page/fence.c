/* fence.c: see fence.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "page/fence.h"

#include "base/atomic.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/huge.h"

WEIR_VAR bool fence_is_on;
WEIR_VAR uint64_t fence_most;

WEIR_VAR uint32_t fence_was_opened;
static uint64_t fence_count; /* blocks that have some; Sync: relaxed, written under the page lock */

WEIR_FN bool fence_page_open(void* p) {
    store_relaxed(&fence_was_opened, 1u); /* before anybody can write */
    return os_commit((void*)align_down((uintptr_t)p, os_page_bytes()), os_page_bytes());
}

WEIR_FN void fence_start(void) {
    enum { usual = 65530, part = 8 }; /* two mappings for each: a quarter of what there may be */
    uint64_t mappings = os_mappings_max();
    store_relaxed(&fence_most, (mappings != 0 ? mappings : usual) / part);
    store_relaxed(&fence_is_on, true);
}

static bool fence_may(void) {
    uint64_t count = load_relaxed(&fence_count) + load_relaxed(&span_totals.uncommitted);
    return load_relaxed(&fence_is_on) && count < load_relaxed(&fence_most);
}

static size_t span_bytes(const struct slice* s) { return (size_t)s->span_slices << SLICE_SHIFT; }

/* Under the page lock: of a span of several slices, without a kind of its own yet, those from `at` on are
 * another one. The new one is whole first: see span_rebuild. */
static struct slice* span_split(struct slice* s, uint32_t at) {
    struct slice* rest = s + at;
    rest->region = s->region;
    store_relaxed(&rest->owner, NULL);
    rest->flags = rest->domain = 0;
    rest->span_slices = s->span_slices - at;
    store_relaxed(&slice_pages(rest)->state, (uint64_t)0);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_relaxed(&rest->kind, (uint8_t)SLICE_META);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    s->span_slices = at;
    return rest;
}

/* What is in the slice in front goes, with its charge; where there is nothing one call is enough. */
static void fence_make(const struct slice* s, size_t bytes, bool zeroed) {
    void* front = (void*)(slice_address(s) - SLICE_BYTES);
    if (zeroed && !region_commit_strict)
        (void)os_forbid(front, SLICE_BYTES);
    else
        (void)huge_cover(front, SLICE_BYTES, false);
    (void)os_forbid((void*)(slice_address(s) + bytes), span_bytes(s) - bytes);
}

WEIR_FN struct slice* fence_alloc(size_t bytes, size_t align_slices, bool* zeroed) {
    size_t slices = fence_slices(bytes);
    if (slices > UINT32_MAX / 4 || align_slices > UINT32_MAX / 4 || !fence_may()) return NULL;
    struct slice* first = span_alloc(slices + align_slices, 1, zeroed);
    if (first == NULL) return NULL;
    uintptr_t address = slice_address(first);
    uintptr_t start = align_up(address + SLICE_BYTES, align_slices << SLICE_SHIFT);
    uint32_t skip = (uint32_t)((start - address) >> SLICE_SHIFT);
    uint64_t known = load_relaxed(&slice_pages(first)->state);
    span_lock();
    store_relaxed(&slice_pages(first)->state, (uint64_t)0);
    struct slice* fence = skip == 1 ? first : span_split(first, skip - 1);
    struct slice* s = span_split(fence, 1);
    struct slice* rest = s->span_slices == slices ? NULL : span_split(s, (uint32_t)slices);
    if (rest != NULL) known = *zeroed ? (uint64_t)hole_all() << PAGES_CLEAN_SHIFT : 0;
    store_relaxed(&slice_pages(s)->state, known);
    s->flags = SLICE_FENCED;
    store_relaxed(&fence->kind, (uint8_t)SLICE_FENCE);
    store_relaxed(&fence_count, fence_count + 1);
    if (first != fence) span_free_locked(first);
    if (rest != NULL) span_free_locked(rest);
    os_lock_give(&page_lock);
    fence_make(s, bytes, *zeroed);
    return s;
}

/* What lies behind the new end is covered: it has no memory, nor a charge. */
static bool fence_shrink(struct slice* s, size_t bytes) {
    size_t slices = (s->flags & SLICE_MOVED) != 0 ? s->span_slices : fence_slices(bytes);
    if (!huge_cover((void*)(slice_address(s) + bytes), span_bytes(s) - bytes, false)) return false;
    store_relaxed(&slice_pages(s)->state, (uint64_t)hole_all() << PAGES_CLEAN_SHIFT);
    if (slices == s->span_slices) return true;
    span_lock();
    struct slice* rest = span_split(s, (uint32_t)slices);
    span_free_uncommitted(rest);
    os_lock_give(&page_lock);
    return true;
}

WEIR_FN bool fence_resize(struct slice* s, size_t old_bytes, size_t bytes) {
    if (bytes == old_bytes) return true;
    if (bytes < old_bytes) return fence_shrink(s, bytes);
    char* p = (char*)slice_address(s);
    uint32_t had = s->span_slices;
    size_t slices = fence_slices(bytes);
    if (slices > had && !span_resize(s, slices)) return false;
    if (!os_commit_as(p + old_bytes, bytes - old_bytes, region_memory_kind)) {
        if (slices > had) (void)span_resize(s, had);
        return false;
    }
    if (slices > had) (void)os_forbid(p + bytes, span_bytes(s) - bytes);
    return true;
}

WEIR_FN struct slice* fence_move(struct slice* s, size_t bytes, size_t content) {
    bool zeroed;
    struct slice* to = span_may_move(s, fence_slices(bytes)) ? fence_alloc(bytes, 1, &zeroed) : NULL;
    return to == NULL ? NULL : span_move_to(s, to, content);
}

WEIR_FN bool fence_close(const struct slice* s) { return os_forbid((void*)slice_address(s), s->bytes); }

WEIR_FN bool fence_open(const struct slice* s, size_t bytes) {
    return os_commit_as((void*)slice_address(s), bytes, region_memory_kind);
}

/* Of what may be accessible in parts, and partly be no mapping at all after a move that failed. */
static bool fence_cover(void* p, size_t bytes, enum span_state* state) {
    *state = SPAN_UNCOMMITTED;
    if (fence_may() && huge_cover(p, bytes, false)) return true;
    bool purged = os_purge(p, bytes);
    *state = purged ? SPAN_CLEAN : SPAN_DIRTY;
    if (os_commit_as(p, bytes, region_memory_kind)) return true;
    *state = SPAN_UNCOMMITTED; /* whoever takes it makes it accessible; as long, it reads as zero */
    return purged;
}

WEIR_FN struct slice* fence_remove(struct slice* s, enum span_state* state) {
    struct slice* fence = s - 1;
    uint32_t slices = 1 + s->span_slices;
    size_t bytes = (size_t)slices << SLICE_SHIFT;
    weir_assert(load_relaxed(&fence->kind) == SLICE_FENCE && fence->span_slices == 1);
    store_relaxed(&fence_count, fence_count - 1);
    if (!fence_cover((void*)slice_address(fence), bytes, state)) {
        store_relaxed(&s->kind, (uint8_t)SLICE_META);
        return NULL;
    }
    if (*state != SPAN_DIRTY) add_relaxed(&span_totals.purged, span_bytes(s));
    store_relaxed(&slice_pages(s)[s->span_slices - 1].state, (uint64_t)0);
    fence->span_slices = slices;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_relaxed(&s->kind, (uint8_t)SLICE_NONE);
    return fence;
}
