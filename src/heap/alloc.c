/* alloc.c: allocation off the fast path, alignment, resizing and sizes of blocks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>

#include "core/report.h"
#include "heap/free.h"
#include "heap/full.h"
#include "heap/guard.h"
#include "heap/heap.h"
#include "heap/history.h"
#include "heap/large.h"
#include "heap/medium.h"
#include "heap/refill.h"
#include "heap/slab.h"
#include "heap/tagged.h"
#include "os/os.h"
#include "page/fence.h"
#include "page/huge.h"
#include "tag/tag.h"

/* Pop from a bin of any class; NULL: empty, or its list was written to. */
static inline block_t* bin_pop(struct bin* b, size_t slab_bytes) {
    block_t* p = b->head;
    if (!arch_distance_within((uintptr_t)p - b->base, slab_bytes)) return NULL;
    b->head = p->next;
    owner_increment(&bin_direct(b)->taken);
    return p;
}

/* What tells that an allocation is sampled: that the bin is empty, or where bins do not hold what the fast
 * path takes, a count. */
static bool class_is_sampled(struct heap* h, unsigned c) {
    bool by_bin = c < SMALL_CLASSES && !full_is_on();
    return by_bin ? guard_is_due(h, c) && h->bins[c].head == NULL : h != &heap_empty && guard_takes(h);
}

static void* class_alloc(struct heap* h, unsigned c, size_t size, size_t align) {
    struct bin* b = &h->bins[c];
    size_t slab_bytes = (size_t)size_classes[c].slices << SLICE_SHIFT;
    for (bool sampled = class_is_sampled(h, c);; sampled = guard_is_due(h, c) && b->head == NULL) {
        if (weir_unlikely(sampled)) {
            void* guarded = guard_alloc(h, c, size, align);
            if (guarded != NULL) return guarded;
        }
        block_t* p = bin_pop(b, slab_bytes);
        if (weir_likely(p != NULL)) return p;
        if (h == &heap_empty) {
            h = heap_attach();
            if (h == NULL) return NULL;
            b = &h->bins[c];
            continue; /* what attaching called may have allocated and filled the bin */
        }
        if (weir_unlikely(b->head != NULL)) {
            /* Dropped before it is reported: a handler of the abort may allocate. */
            const void* bad = b->head;
            if (arch_distance_within((uintptr_t)bad - b->base, slab_bytes))
                continue; /* a signal handler's fork filled it */
            b->head = NULL;
            core_report("corrupt-list", REPORT_WRITTEN, bad, "malloc");
        }
        if (c >= SMALL_CLASSES) {
            void* medium = medium_alloc(h, c, align);
            if (medium != NULL) return medium;
        }
        if (!refill(h, c)) return c < SMALL_CLASSES ? NULL : medium_alloc_last(h, c, align);
        if (full_is_on()) {
            heap_enter(h);
            void* sealed = full_pop(h->active[c]);
            /* Past the bin, which counts what it is given. */
            if (sealed != NULL) store_relaxed(&h->handed_out, h->handed_out + 1);
            heap_leave(h);
            if (sealed == NULL) continue;
            if (history_is_on()) history_note(HISTORY_ALLOC, sealed);
            return sealed;
        }
    }
}

/* A large block; when there is no memory for it, what this thread's heap holds for nothing goes first. */
static void* span_block_alloc(size_t size, size_t align, bool* zeroed) {
    huge_learn_if_due();
    if (heap_self() == &heap_empty && heap_attach() == NULL) return NULL;
    void* p = large_alloc(size, align, zeroed);
    if (p != NULL || size > PTRDIFF_MAX) return p;
    heap_collect();
    return large_alloc(size, align, zeroed);
}

/* A block of a class above the small ones, of which the thread keeps none, from its bin or a chunk; NULL:
 * class_alloc knows more. */
static void* medium_alloc_direct(struct heap* h, unsigned c) {
    if (weir_unlikely(h->guard_left <= 1 || load_relaxed(&h->gates[GATE_MEDIUM].state) == KEPT_ASKED))
        return NULL;
    h->guard_left--; /* heap_empty has none, and is never written to */
    void* p = h->bins[c].head == NULL ? medium_alloc_shared(h, c, 1)
                                      : bin_pop(&h->bins[c], (size_t)size_classes[c].slices << SLICE_SHIFT);
    if (p == NULL) h->guard_left++;
    return p;
}

/* A block of a class that slabs do not have; NULL: a span serves. Where memory has tags, spans have fences.
 */
static void* chunk_block_alloc(struct heap* h, unsigned c) {
    return h == &heap_empty || fence_is_on ? NULL : medium_alloc(h, c, 1);
}

static WEIR_COLD void* no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

/* All that the thread held for nothing has gone back: for what chunks have it may lie there. */
static WEIR_COLD void* alloc_last(size_t size) {
    bool may = size > SLAB_MAX && size <= CHUNK_MAX;
    void* p = may ? chunk_block_alloc(heap_self(), class_of(size)) : NULL;
    return p != NULL ? p : no_memory();
}

static WEIR_NOINLINE void* alloc_unkept(size_t size) {
    bool zeroed;
    huge_learn_if_due();
    if (size > SMALL_MAX && size <= SLAB_MAX) {
        void* p = medium_alloc_direct(heap_self(), class_of(size));
        if (weir_likely(p != NULL)) return p;
    }
    if (size > SLAB_MAX && size <= CHUNK_MAX) {
        void* p = chunk_block_alloc(heap_self(), class_of(size));
        if (weir_likely(p != NULL)) return p;
    }
    void* p = size > SLAB_MAX ? span_block_alloc(size, 1, &zeroed)
                              : class_alloc(heap_self(), class_of(size == 0 ? 1 : size), size, 1);
    return weir_likely(p != NULL) ? p : alloc_last(size);
}

/* Of a small class whose bin is empty, where the active slab's list mostly serves. */
static WEIR_NOINLINE void* alloc_turned(size_t size) {
    struct heap* h = heap_self();
    unsigned c = class_of(size);
    block_t* p = refill_turn(h, c) ? bin_pop(&h->bins[c], SLICE_BYTES) : NULL;
    return weir_likely(p != NULL) ? p : alloc_unkept(size);
}

static WEIR_NOINLINE void* alloc_large(size_t size) {
    void* p = NULL;
    if (weir_unlikely(size == 0)) return alloc_unkept(size);
    if (size <= CHUNK_MAX) p = medium_unkeep_long(heap_self(), class_of(size) - SMALL_CLASSES);
    if (p == NULL) p = large_alloc_kept(size);
    return weir_likely(p != NULL) ? p : alloc_unkept(size);
}

/* Of a medium class of which the thread keeps none, while no sample is due. Without a frame, too. */
static WEIR_NOINLINE void* alloc_next(size_t size) {
    struct heap* h = heap_self();
    if (weir_unlikely(!medium_next_serves(size))) {
        block_t* p = bin_pop(&h->bins[class_of(size)], SLICE_BYTES);
        if (weir_unlikely(p == NULL)) return alloc_unkept(size);
        h->guard_left--; /* as below: heap_empty's bins are empty */
        return p;
    }
    unsigned m = class_of(size) + 1 - SMALL_CLASSES;
    unsigned least = 1;
    if (medium_freed_count(h, m) < least) m++, least = 2;
    void* p = medium_freed_count(h, m) < least ? NULL : medium_unkeep(h, m);
    if (p == NULL) return alloc_unkept(size);
    h->guard_left--; /* heap_empty has none, and is never written to */
    return p;
}

/* What the thread keeps of larger blocks is found here, without a frame. */
WEIR_AT_LINE WEIR_FN void* heap_alloc_above(size_t size) {
    if (size - 1 >= SLAB_MAX) return alloc_large(size);
    if (size <= SMALL_MAX) __builtin_unreachable();
    struct heap* h = heap_self();
    if (weir_unlikely(h->guard_left <= 1)) return alloc_unkept(size);
    void* p = medium_unkeep(h, class_of(size) - SMALL_CLASSES);
    if (weir_unlikely(p == NULL)) return alloc_next(size);
    h->guard_left--;
    return p;
}

WEIR_FN void* heap_alloc_slow(size_t size) {
    if (size - 1 >= SMALL_MAX) return heap_alloc_above(size);
    return refill_may_turn(heap_self(), class_of(size)) ? alloc_turned(size) : alloc_unkept(size);
}

WEIR_FN void heap_clear(void* p, size_t bytes) {
    enum { look_least = 8 << 20 };
    if (bytes < look_least)
        __builtin_memset(p, 0, bytes);
    else
        large_clear(p, bytes);
}

WEIR_FN void* heap_alloc_zeroable(size_t size, bool* zeroed) {
    *zeroed = false;
    if (tag_is_on() && size > SMALL_MAX && size <= SLAB_MAX) return medium_alloc_zeroable(size, zeroed);
    if (size <= SLAB_MAX) return heap_alloc(size);
    return span_block_alloc(size, 1, zeroed);
}

/* What the thread has at hand for a size of more than SMALL_MAX, at a multiple of what all medium blocks
 * start at; NULL: class_alloc knows more. */
static void* aligned_kept(size_t size) {
    struct heap* h = heap_self();
    if (weir_unlikely(size > SLAB_MAX || h->guard_left <= 1)) return NULL;
    void* p = medium_unkeep(h, class_of(size) - SMALL_CLASSES);
    if (weir_likely(p != NULL)) h->guard_left--; /* heap_empty has none */
    return p;
}

WEIR_FN void* heap_alloc_aligned(size_t size, size_t align) {
    bool zeroed;
    if (align <= GRANULE) return heap_alloc(size);
    /* A multiple of the alignment is a small class's size, and all of its blocks start at one. */
    size_t last = ((size == 0 ? 1 : size) - 1) | (align - 1);
    void* p = NULL;
    if (last < SMALL_MAX)
        p = heap_alloc_fast(last);
    else if (align <= UNIT_BYTES)
        p = aligned_kept(size);
    if (weir_likely(p != NULL)) return p;
    if (size <= SLAB_MAX && align <= SLAB_MAX)
        return class_alloc(heap_self(), class_of_aligned(size == 0 ? 1 : size, align), size, align);
    return span_block_alloc(size == 0 ? 1 : size, align, &zeroed);
}

/* The record of the slab, chunk or large block that the block at `address`, p without its tag, lies in, and
 * its usable bytes; NULL after a report. */
static struct slice* block_find_at(const void* address, const void* p, size_t* usable, const char* call) {
    struct slice* s = slice_find(address);
    if (s == NULL) {
        core_report("invalid-free", REPORT_FOREIGN, p, call);
        return NULL;
    }
    s = slice_first(s);
    if (load_relaxed(&s->kind) == SLICE_CHUNK) {
        *usable = medium_usable(s, p, call);
        return *usable == 0 ? NULL : s;
    }
    if (load_relaxed(&s->kind) == SLICE_LARGE && slice_address(s) == (uintptr_t)address) {
        *usable = s->bytes;
        if (weir_likely(!large_is_kept(s))) return s;
        core_report("double-free", REPORT_FREED, p, call);
        return NULL;
    }
    if (load_relaxed(&s->kind) == SLICE_SLAB && slab_holds_block(s, address)) {
        *usable = slab_class(s)->bytes;
        if (!full_is_on() || !full_is_free(tag_access(address))) return s;
        core_report_say_pointer("double-free", REPORT_FREED, p, call);
        history_say(p, true);
        core_report_end();
        return NULL;
    }
    block_misuse(s, p, call);
    return NULL;
}

static struct slice* block_find(const void* p, size_t* usable, const char* call) {
    struct slice* s = block_find_at(tag_strip(p), p, usable, call);
    if (s == NULL || load_relaxed(&s->kind) == SLICE_CHUNK) return s;
    bool fits = load_relaxed(&s->kind) == SLICE_LARGE ? tagged_fits_large(p, call) : tagged_fits(p, call);
    return fits ? s : NULL;
}

/* Usable bytes of the block at p where a look at its slice's record tells; 0: ask block_find. */
static size_t usable_near(const void* p) {
    const struct slice* s = slice_near(p);
    if (weir_unlikely(s == NULL || full_is_on() || tag_is_on())) return 0;
    uint16_t* blocks = load_acquire(&s->blocks);
    unsigned kind = load_relaxed(&s->kind); /* last: see arena_chunk_stays */
    if (slice_kind_is_of_chunk(kind)) {
        uint32_t m;
        return arena_block(blocks, p, &m) == NULL ? 0 : medium_bytes(m);
    }
    unsigned c = (uint8_t)load_relaxed(&s->small_class); /* of another class: -1, which is none */
    if (kind != SLICE_SLAB || c >= SMALL_CLASSES) return 0;
    const struct size_class* k = &size_classes[c];
    uint32_t block;
    return class_finds_block(k, (uintptr_t)p % SLICE_BYTES, &block) ? k->bytes : 0;
}

WEIR_FN size_t heap_usable(const void* p, const char* call) {
    size_t near = usable_near(p);
    if (weir_likely(near != 0)) return near;
    if (p == NULL) return 0;
    if (weir_unlikely(guard_holds(p))) return guard_usable(p, call);
    size_t usable;
    return block_find(p, &usable, call) == NULL ? 0 : usable;
}

WEIR_FN bool heap_size_matches(size_t usable, size_t size, size_t align) {
    if (size == 0) size = 1;
    if (size >= usable) return size == usable; /* of a guarded block just that is true */
    if (size > SLAB_MAX && size <= CHUNK_MAX && size_classes[class_of(size)].bytes == usable) return true;
    if (usable > SLAB_MAX || (size <= SLAB_MAX && align > SLAB_MAX)) return usable - size < os_page_bytes();
    unsigned c = class_of(size);
    if (size_classes[c].bytes == usable) return true;
    if (medium_next_serves(size) && !full_is_on() &&
        (size_classes[c + 1].bytes == usable || size_classes[c + 2].bytes == usable))
        return true;
    return align > GRANULE && size_classes[class_of_aligned(size, align)].bytes == usable;
}

/* Keep the block when it fits and at most half of it would lie idle; a quarter of what may be long. */
static bool realloc_stays(size_t usable, size_t size) {
    size_t least = usable > SLAB_MAX ? usable - usable / 4 : usable / 2;
    return size <= usable && size >= least;
}

/* Whether a block with a span of its own becomes one of a chunk. Where it lay it would leave free what is too
 * short for the next one of that length; so it leaves all of the span, which has memory. */
static bool realloc_leaves_span(size_t usable, size_t size) {
    return size <= CHUNK_MAX && size < usable / 2 && !fence_is_on;
}

/* Whether the block grows by a quarter or less, to what has a next class but one. Not where memory is tagged:
 * more behind a block than there has to be would hide an overflow (with checks=full none lies in a chunk). */
static bool realloc_is_step(size_t usable, size_t size) {
    enum { parts = 4 };
    if (size <= usable || size - usable > usable / parts) return false;
    return medium_next_serves(size) && !tag_is_on();
}

/* The block of record s, at p, is to grow by such a step, and moves. What grew by one before is likely to
 * grow again: it gets what the next class but one has, where any of its size might have that. Without memory
 * for more it gets as much as it asks for. */
static WEIR_NOINLINE void* realloc_step(const struct slice* s, const void* p, size_t size) {
    bool chunk = load_relaxed(&s->kind) == SLICE_CHUNK;
    bool grew = chunk && medium_has_grown(s, p);
    void* to = grew ? class_alloc(heap_self(), class_of(size) + 2, size, 1) : NULL;
    if (to == NULL) to = heap_alloc_above(size);
    struct slice* of_to = chunk ? slice_find(to) : NULL; /* NULL: a sampled one, or none */
    if (of_to == NULL) return to;
    of_to = slice_first(of_to);
    if (load_relaxed(&of_to->kind) == SLICE_CHUNK) medium_note_grown(of_to, to, true);
    if (grew) medium_note_grown(s, p, false); /* to be freed by the fast path */
    return to;
}

static void* realloc_copy(const struct slice* s, void* p, size_t usable, size_t size, const char* call) {
    bool zeroed;
    bool grows = size > SLAB_MAX && size > usable; /* and goes on to, maybe: a span does where it lies */
    void* to;
    if (s != NULL && realloc_is_step(usable, size))
        to = realloc_step(s, p, size);
    else
        to = grows ? span_block_alloc(size, 1, &zeroed) : heap_alloc(size);
    if (to == NULL) return size <= usable ? p : NULL;
    __builtin_memcpy(to, p, size < usable ? size : usable);
    heap_free(p, call);
    return to;
}

/* A guarded block always moves, so that pointers to where it was are found out. */
static WEIR_COLD void* realloc_guarded(void* p, size_t size, const char* call) {
    size_t usable = guard_usable(p, call);
    return usable == 0 || size > PTRDIFF_MAX ? NULL : realloc_copy(NULL, p, usable, size, call);
}

WEIR_FN void* heap_realloc(void* p, size_t size, const char* call) {
    if (weir_unlikely(guard_holds(p))) return realloc_guarded(p, size, call);
    size_t usable;
    struct slice* s = block_find(p, &usable, call);
    if (s == NULL || size > PTRDIFF_MAX) return NULL;
    if (load_relaxed(&s->kind) == SLICE_LARGE && size > SLAB_MAX && !realloc_leaves_span(usable, size)) {
        void* same = large_realloc(s, size);
        if (same != NULL) return same;
    } else {
        bool grows = load_relaxed(&s->kind) == SLICE_CHUNK && size > usable && medium_grow(s, p, size);
        if (grows || realloc_stays(usable, size)) return p;
    }
    return realloc_copy(s, p, usable, size, call);
}
