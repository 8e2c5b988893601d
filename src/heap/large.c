/* large.c: see large.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/large.h"

#include "core/report.h"
#include "heap/registry.h"
#include "heap/visit.h"
#include "os/os.h"
#include "page/fence.h"
#include "page/hole.h"
#include "page/release.h"
#include "page/span.h"

/* Below this, copying is cheaper than changing page tables and keeping one more mapping. */
#define MOVE_MIN (1 * MIB)

static size_t large_bytes(size_t size) { return align_up(size, os_page_bytes()); }
static size_t large_slices(size_t bytes) { return (bytes + SLICE_BYTES - 1) >> SLICE_SHIFT; }

/* Where the span's last slice starts, from the block's start. A block that was moved and then shrunk may end
 * before it. */
static size_t large_last(const struct slice* s) { return (size_t)(s->span_slices - 1) << SLICE_SHIFT; }

/* The pages of the last slice that lie behind the block's end are holes; they stand in the record of the
 * first. */
static uint32_t large_tail(const struct slice* s) {
    size_t in_last = s->bytes > large_last(s) ? s->bytes - large_last(s) : 0;
    return hole_all() & ~((1u << (in_last >> page_shift)) - 1);
}

/* Take the holes behind the block's end back: its size is about to change. */
static void large_tail_take(const struct slice* s) {
    while (!hole_hide(s)) (void)release_wait(s);
}

static void* large_publish(struct slice* s) {
    store_release(&s->kind, (uint8_t)SLICE_LARGE); /* publishes the record to the release pass */
    hole_show(s, large_tail(s));
    return (void*)slice_address(s);
}

static void large_changed(void) {
    if (weir_unlikely(heap_long_hook != NULL)) heap_long_hook();
}

/* A span that keeps its slices has no record for the pages between the block's end and the last slice: they
 * go back at once. */
static void large_purge_between(const struct slice* s, size_t old_bytes) {
    size_t end = old_bytes < large_last(s) ? old_bytes : large_last(s);
    if (s->bytes < end && os_purge((void*)(slice_address(s) + s->bytes), end - s->bytes))
        add_relaxed(&span_totals.purged, end - s->bytes);
}

static void* large_set_bytes(struct slice* s, size_t old_bytes, size_t bytes) {
    add_relaxed(&span_totals.large, bytes - old_bytes); /* wraps where it shrinks */
    store_relaxed(&s->bytes, bytes);                    /* figures may be taken meanwhile */
    large_purge_between(s, old_bytes);
    void* p = large_publish(s);
    large_changed();
    return p;
}

/* Bytes of blocks that grew and were freed, less what was copied since. What is copied stays resident beside
 * its copy, but not what is moved: where such blocks come again and again that memory had been in use before,
 * and need not be given back each time and touched afresh. Sync: the page lock. */
static uint64_t grown_freed;
#define GROWN_FREED_MAX (64 * MIB)

static void large_forget(struct slice* s) {
    uint64_t more = GROWN_FREED_MAX - grown_freed;
    if ((s->flags & SLICE_GREW) != 0) grown_freed += s->bytes < more ? s->bytes : more;
    sub_relaxed(&span_totals.large, s->bytes);
    add_relaxed(&heap_totals.large_frees, 1);
    s->flags &= (uint8_t)~SLICE_KEPT;
}
/* Under one lock: as long as it is a large block, it is known to be freed. */
static void large_gone_locked(struct slice* s) {
    large_forget(s);
    span_free_locked(s);
}
static void large_gone(struct slice* s) {
    span_lock();
    large_gone_locked(s);
    os_lock_give(&page_lock);
}

/* Whether the caller is the one who frees the block. With fences a free costs a system call, and one lock
 * more tells two threads apart that free it at the same instant. */
static bool large_claim(struct slice* s) {
    if (!fence_is_on) return !large_is_kept(s);
    span_lock();
    bool live = load_relaxed(&s->kind) == SLICE_LARGE && !large_is_kept(s);
    if (live) s->flags |= SLICE_KEPT;
    os_lock_give(&page_lock);
    return live;
}

/* True: somebody is to look whether it stays. */
static bool large_owes(struct heap* h, size_t bytes) {
    if (load_relaxed(&h->kept_large_owed)) return false;
    store_relaxed(&h->kept_large_owed, true);
    visit_owed(h, bytes);
    return true;
}

WEIR_FN void large_take(struct heap* h) {
    /* First, and also where none is kept just now: what comes from here on is told again. */
    store_relaxed(&h->kept_large_owed, false);
    if (load_relaxed(&h->kept_large) == NULL) return;
    /* Under the lock, so that a fork meanwhile does not leave its child a block that is nobody's. */
    span_lock();
    struct slice* s = load_relaxed(&h->kept_large);
    store_relaxed(&h->kept_large, NULL);
    if (s != NULL) large_gone_locked(s);
    os_lock_give(&page_lock);
}

WEIR_FN void large_drop(struct heap* h) {
    uint32_t inside = gate_enter_count(h, GATE_LARGE);
    large_take(h);
    gate_leave(&h->gates[GATE_LARGE], inside);
}

WEIR_FN void large_age(struct heap* h) {
    if (!h->kept_large_needed) large_drop(h);
    h->kept_large_needed = false;
}

/* Others go on meanwhile: what is read first is the smaller one, and nothing goes below 0. */
WEIR_FN struct large_figures large_live(void) {
    uint64_t frees = load_acquire(&heap_totals.large_frees);
    struct large_figures f = {.bytes = load_relaxed(&span_totals.large),
                              .allocs = load_relaxed(&heap_totals.large_allocs)};
    f.blocks = f.allocs > frees ? f.allocs - frees : 0;
    for (const struct heap* h = registry_first(); h != NULL; h = h->registry_next) {
        const struct slice* s = load_acquire(&h->kept_large);
        f.allocs += load_relaxed(&h->kept_large_turns);
        if (s == NULL) continue;
        uint64_t bytes = load_relaxed(&s->bytes);
        f.bytes -= bytes < f.bytes ? bytes : f.bytes;
        f.blocks -= f.blocks != 0;
    }
    return f;
}

/* The block that is kept, about to get another end; NULL: somebody took it. */
static struct slice* large_take_kept(struct heap* h) {
    uint32_t inside = gate_enter_count(h, GATE_LARGE);
    struct slice* s = large_unkeep(h);
    gate_leave(&h->gates[GATE_LARGE], inside);
    if (s != NULL) large_tail_take(s);
    return s;
}

/* The block that is kept, if it has as many slices, with another end. */
static void* large_alloc_resized(size_t bytes) {
    struct heap* h = heap_self();
    if (load_relaxed(&h->kept_large) == NULL) return NULL;
    if (large_slices(h->kept_large_bytes) != large_slices(bytes)) return NULL;
    struct slice* s = large_take_kept(h);
    return s == NULL ? NULL : large_set_bytes(s, s->bytes, bytes);
}

/* ---- Blocks with fences: the one that is kept is inaccessible, its memory stays. */

static bool large_is_fenced(const struct slice* s) { return (s->flags & SLICE_FENCED) != 0; }

/* The block that is kept, if it has as many slices. Past the inline paths, which do not know how to open it:
 * to them it is as large as no large block is. */
static void* large_alloc_fenced(size_t bytes) {
    struct heap* h = heap_self();
    if (load_relaxed(&h->kept_large) == NULL || h->kept_large_bytes != LARGE_FENCED) return NULL;
    if (fence_slices(h->kept_fenced_bytes) != fence_slices(bytes)) return NULL;
    struct slice* s = large_take_kept(h);
    if (s == NULL) return NULL;
    if (fence_open(s, bytes)) return large_set_bytes(s, s->bytes, bytes);
    large_publish(s);
    large_gone(s);
    return NULL;
}

/* Whether such a block may be kept; it is inaccessible then. */
static bool large_close_fenced(struct slice* s) {
    bool small = s->span_slices <= LARGE_KEPT_SLICES && s->region == 0 && (s->flags & SLICE_MOVED) == 0;
    return small && fence_close(s);
}

static struct slice* large_span(size_t bytes, size_t align_slices, bool* zeroed) {
    struct slice* s = fence_is_on ? fence_alloc(bytes, align_slices, zeroed) : NULL;
    return s != NULL ? s : span_alloc(large_slices(bytes), align_slices, zeroed);
}

WEIR_FN void* large_alloc(size_t size, size_t align, bool* zeroed) {
    if (size > PTRDIFF_MAX || align > PTRDIFF_MAX / 2) return NULL;
    size_t bytes = large_bytes(size);
    size_t align_slices = align <= SLICE_BYTES ? 1 : align >> SLICE_SHIFT;
    *zeroed = false;
    void* kept = align_slices != 1 ? NULL : large_alloc_kept(size);
    if (kept == NULL && align_slices == 1) kept = large_alloc_resized(bytes);
    if (fence_is_on && kept == NULL && align_slices == 1) kept = large_alloc_fenced(bytes);
    if (kept != NULL) return kept;
    struct slice* s = large_span(bytes, align_slices, zeroed);
    if (s == NULL) return NULL;
    s->bytes = bytes;
    add_relaxed(&span_totals.large, bytes);
    add_relaxed(&heap_totals.large_allocs, 1);
    void* p = large_publish(s);
    large_changed();
    return p;
}

WEIR_FN void large_free(struct slice* s, const char* call) {
    if (weir_unlikely(!large_claim(s))) {
        core_report("double-free", REPORT_FREED, (void*)slice_address(s), call);
        return;
    }
    struct heap* h = heap_self();
    struct slice* gone = s;
    bool owes = false;
    bool fenced = large_is_fenced(s);
    if (h != &heap_empty && (fenced ? large_close_fenced(s) : large_may_stay(s))) {
        size_t bytes = s->bytes;
        uint32_t inside = gate_enter_keep(h, GATE_LARGE);
        gone = load_relaxed(&h->kept_large);
        store_relaxed(&h->kept_large, NULL);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        if (fenced) h->kept_fenced_bytes = bytes;
        large_keep(h, s, fenced ? (size_t)LARGE_FENCED : bytes);
        owes = large_owes(h, bytes);
        gate_leave(&h->gates[GATE_LARGE], inside);
    }
    if (gone != NULL) large_gone(gone);
    if (gone == NULL && !owes) return;
    release_poke();
    large_changed();
}

enum { CLEAR_WINDOW = 4 << 20 };

/* Pages that are resident, and in how many runs they lie. */
static size_t resident_count(const unsigned char* there, size_t pages, size_t* runs) {
    size_t resident = 0;
    *runs = 0;
    for (size_t i = 0, before = 0; i < pages; before = there[i++] & 1) {
        resident += there[i] & 1;
        *runs += (there[i] & 1) > before;
    }
    return resident;
}

/* Zero what is resident; what is swapped out counts as not, and goes. */
static void clear_runs(char* p, const unsigned char* there, size_t pages) {
    for (size_t i = 0, end; i < pages; i = end) {
        for (end = i + 1; end < pages && ((there[end] ^ there[i]) & 1) == 0;) end++;
        char* at = p + (i << page_shift);
        size_t bytes = (end - i) << page_shift;
        if ((there[i] & 1) != 0 || !os_purge(at, bytes)) __builtin_memset(at, 0, bytes);
    }
}

/* Some pages of a block. False: they are to be zeroed as they are. A page that goes and is touched again
 * costs as much as ten that are zeroed. */
static bool clear_sparse(char* p, size_t pages) {
    enum { most_runs = 32, few = 16 };
    unsigned char there[CLEAR_WINDOW >> 12]; /* pages of 4 KiB are the smallest */
    if (!os_resident_pages(p, pages << page_shift, there)) return false;
    size_t runs;
    size_t resident = resident_count(there, pages, &runs);
    if (resident > pages / 2 || runs > most_runs)
        return resident <= pages / few && os_purge(p, pages << page_shift);
    clear_runs(p, there, pages);
    return true;
}

WEIR_FN void large_clear(void* p, size_t bytes) {
    char* end = (char*)p + bytes;
    char* left = p; /* from here on to `at` it is to be zeroed, in one go */
    for (char* at = p; at < end; at += CLEAR_WINDOW) {
        size_t size = end - at < CLEAR_WINDOW ? (size_t)(end - at) : CLEAR_WINDOW;
        size_t pages = size >> page_shift; /* whole ones */
        if (pages == 0 || !clear_sparse(at, pages)) continue;
        __builtin_memset(left, 0, (size_t)(at - left));
        left = at + (pages << page_shift);
    }
    __builtin_memset(left, 0, (size_t)(end - left));
}

/* Whether a block that grows by a third or more is copied, so that in all three times its bytes are at most.
 */
static bool large_copies(size_t old_bytes, size_t bytes) {
    enum { parts = 3 };
    if (bytes < old_bytes + old_bytes / parts || old_bytes > GROWN_FREED_MAX) return false;
    span_lock();
    bool copies = grown_freed >= old_bytes;
    if (copies) grown_freed -= old_bytes;
    os_lock_give(&page_lock);
    return copies;
}

static struct slice* large_copy(struct slice* s, size_t slices, size_t content) {
    bool zeroed;
    struct slice* to = span_alloc(slices, 1, &zeroed);
    if (to == NULL) return NULL;
    __builtin_memcpy((void*)slice_address(to), (void*)slice_address(s), content);
    span_free(s);
    return to;
}

/* Another span for the block, which frees s. A moved block grows nowhere else than in its span, and two that
 * grow in turns would move for each slice: it gets room for half as much again. NULL: it stays. */
static WEIR_NOINLINE struct slice* large_move(struct slice* s, size_t bytes, size_t content) {
    if (large_is_fenced(s)) return fence_move(s, bytes, content);
    size_t slices = large_slices(bytes);
    struct slice* to = large_copies(content, bytes) ? large_copy(s, slices, content) : NULL;
    if (to == NULL) to = span_move(s, slices, slices > s->span_slices ? slices / 2 : 0, content);
    if (to != NULL && bytes > content) to->flags |= SLICE_GREW;
    return to;
}

WEIR_FN WEIR_NOINLINE void* large_realloc(struct slice* s, size_t size) {
    size_t bytes = large_bytes(size);
    bool fenced = large_is_fenced(s);
    size_t slices = fenced ? fence_slices(bytes) : large_slices(bytes);
    size_t old_bytes = s->bytes;
    if (bytes == old_bytes)
        return (void*)slice_address(s); /* in whole pages, as who appends bytes finds it */
    /* A moved span keeps its slices, and shrinks by moving: to a third of them, which is half of what one
     * with room moved for. */
    large_tail_take(s);
    bool wasteful = (s->flags & SLICE_MOVED) != 0 && slices < s->span_slices / 3;
    bool resized = !wasteful && (fenced ? fence_resize(s, old_bytes, bytes) : span_resize(s, slices));
    if (resized) {
        void* p = large_set_bytes(s, old_bytes, bytes);
        if (bytes < old_bytes) release_poke(); /* what it no longer has is free */
        return p;
    }
    size_t content = bytes < old_bytes ? bytes : old_bytes;
    struct slice* to = content < MOVE_MIN ? NULL : large_move(s, bytes, content);
    if (to != NULL) return large_set_bytes(to, old_bytes, bytes);
    large_publish(s);
    return NULL;
}
