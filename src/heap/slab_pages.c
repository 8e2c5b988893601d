/* slab_pages.c: the OS pages of a slab: which block touches which, sorting by page, holes. See slab.h.
 *
 * Pages are numbered through the slab. A block belongs to the page where it starts, its home, and crosses
 * into those behind it: at most one block crosses into a page from before. A page is free when none of its
 * own blocks is in use and the one that crosses into it is not either.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "core/report.h"
#include "heap/remote_bits.h"
#include "heap/slab.h"
#include "heap/tagged.h"
#include "page/hole.h"

/* A slab with what is worked out from it once. */
struct view {
    struct slice* slab;
    const struct size_class* class;
    struct slice_pages* pages; /* of the first slice */
    uintptr_t start;           /* of the first block */
    uint32_t shift;            /* log2 of a page's bytes */
    uint32_t slice_shift;      /* log2 of the pages in a slice */
    bool visited;              /* not by its owner: what is wrong with it is left for the owner to report */
    bool tagged;
};

static struct view view_of(struct slice* s) {
    return (struct view){
        s,     slab_class(s), slice_pages(s), slice_address(s), page_shift, SLICE_SHIFT - page_shift,
        false, tag_is_on()};
}

static struct slice_pages* record_of(const struct view* v, uint32_t page) {
    return &v->pages[page >> v->slice_shift];
}
static uint32_t index_of(const struct view* v, uint32_t page) { return page & ((1u << v->slice_shift) - 1); }
static uint32_t page_count(const struct view* v) { return v->class->slices << v->slice_shift; }

static uint32_t block_home(const struct view* v, uint32_t block) {
    return (uint32_t)((size_t)block * v->class->bytes >> v->shift);
}
static uint32_t block_end(const struct view* v, uint32_t block) {
    return (uint32_t)(((size_t)(block + 1) * v->class->bytes - 1) >> v->shift);
}
/* The block that holds a page's first byte; capacity or more: none does. */
static uint32_t page_block(const struct view* v, uint32_t page) {
    return class_block_index(v->class, (size_t)page << v->shift);
}
/* The first block that starts on the page or behind it. */
static uint32_t page_first(const struct view* v, uint32_t page) {
    return class_block_index(v->class, ((size_t)page << v->shift) + v->class->bytes - 1);
}

static bool page_is_hole(const struct view* v, uint32_t page) {
    return (hole_of(load_relaxed(&record_of(v, page)->state)) >> index_of(v, page) & 1) != 0;
}
/* Those of the pages [from, to] that lie in a slice of the slab, as a mask of the slice's. */
static uint32_t mask_of(const struct view* v, uint32_t slice, uint32_t from, uint32_t to) {
    uint32_t first = slice << v->slice_shift;
    uint32_t last = first + (1u << v->slice_shift) - 1;
    from = from > first ? from - first : 0;
    to = to < last ? to - first : last - first;
    return (2u << to) - (1u << from);
}
/* Whether one of the pages [from, to] is a hole. */
static bool range_has_hole(const struct view* v, uint32_t from, uint32_t to) {
    for (uint32_t slice = from >> v->slice_shift; slice <= to >> v->slice_shift; slice++)
        if ((hole_of(load_relaxed(&v->pages[slice].state)) & mask_of(v, slice, from, to)) != 0) return true;
    return false;
}
static bool block_has_hole(const struct view* v, uint32_t block) {
    return range_has_hole(v, block_home(v, block), block_end(v, block));
}

/* A free block, or one that is none yet, as lists lead to it: with its tag. */
static block_t* at_address(const struct view* v, uintptr_t address) {
    return config_tags && v->tagged ? tag_read((void*)address) : (block_t*)address;
}
static block_t* block_at(const struct view* v, uint32_t block) {
    return at_address(v, v->start + (size_t)block * v->class->bytes);
}
static bool page_is_same(const struct view* v, const block_t* a, const block_t* b) {
    return arch_page_is_same((uintptr_t)a, (uintptr_t)b, v->shift);
}
WEIR_INLINE block_t* list_at(const struct view* v, uint32_t page) {
    uint16_t head = record_of(v, page)->head[index_of(v, page)];
    if (head == 0) return NULL;
    uintptr_t slice = v->start + ((uintptr_t)(page >> v->slice_shift) << SLICE_SHIFT);
    return at_address(v, slice + (uintptr_t)(head - 1) * GRANULE);
}
WEIR_INLINE void list_start(const struct view* v, uint32_t page, const block_t* first) {
    struct slice_pages* r = record_of(v, page);
    uint32_t i = index_of(v, page);
    r->head[i] = (uint16_t)(((uintptr_t)first & (SLICE_BYTES - 1)) / GRANULE + 1);
    r->listed |= (uint16_t)(1u << i);
}
static void list_set(const struct view* v, uint32_t page, const block_t* first) {
    if (first != NULL) {
        list_start(v, page, first);
        return;
    }
    struct slice_pages* r = record_of(v, page);
    uint32_t i = index_of(v, page);
    r->head[i] = 0;
    r->listed &= (uint16_t)~(1u << i);
}

/* Atomic: visitors look at the count before they take a lock. */
static void sorted_add(const struct view* v, int32_t count) {
    store_relaxed(&v->pages->sorted, (uint16_t)(v->pages->sorted + count));
}

/* The block is, or is no longer, one that keeps the pages it crosses into. */
static void block_cross(const struct view* v, uint32_t block, uint32_t home, bool in_use) {
    uint32_t end = block_end(v, block);
    if (end == home) return;
    for (uint32_t slice = (home + 1) >> v->slice_shift; slice <= end >> v->slice_shift; slice++) {
        uint16_t mask = (uint16_t)mask_of(v, slice, home + 1, end);
        struct slice_pages* r = &v->pages[slice];
        r->cross = in_use ? r->cross | mask : r->cross & (uint16_t)~mask;
    }
}

/* Blocks at home on a page that are built: all but the last one where it reaches into a hole. */
static uint32_t page_built(const struct view* v, uint32_t page) {
    uint32_t first = page_first(v, page);
    uint32_t end = page_first(v, page + 1);
    if (end > v->class->capacity) end = v->class->capacity;
    if (first >= end) return 0;
    return end - first - (block_has_hole(v, end - 1) ? 1 : 0);
}

/* Take a block that is sorted off its page's list: it is about to become unbuilt. A link that leads
 * elsewhere ends the list: whoever wrote to the free block is told when the list turns over. */
static void sorted_drop(const struct view* v, uint32_t block, uint32_t home) {
    block_t* gone = block_at(v, block);
    block_t* p = list_at(v, home);
    block_t* next = gone->next;
    if (next != NULL && !page_is_same(v, next, gone)) return;
    if (p == gone) {
        list_set(v, home, next);
        return;
    }
    /* No list is longer than the slab has blocks; one that was written to may go in a circle. */
    for (uint32_t n = 0;
         n < v->class->capacity && p != NULL && p->next != gone && page_is_same(v, p->next, p); n++)
        p = p->next;
    if (p != NULL && p->next == gone) p->next = next;
}

/* No block touches the page: it becomes a hole, and the sorted blocks that touch it unbuilt. */
static uint32_t page_detach(const struct view* v, uint32_t page) {
    uint32_t lost = page_built(v, page);
    list_set(v, page, NULL);
    uint32_t crosser = page_block(v, page);
    uint32_t home = crosser < v->class->capacity ? block_home(v, crosser) : page;
    if (home != page && !block_has_hole(v, crosser)) {
        sorted_drop(v, crosser, home);
        lost++;
    }
    return lost;
}

/* Whether the list of a page that is to become a hole has all of its blocks, each once: one that was freed
 * twice would take the place of one that is in use. If not, all of them count as in use from now on. */
static bool page_is_whole(const struct view* v, uint32_t page) {
    struct slice* s = v->slab;
    uint32_t built = page_built(v, page);
    uint32_t n = 0;
    const block_t* first = list_at(v, page);
    const block_t* p = first;
    uint32_t block;
    for (; p != NULL && n <= built; p = p->next, n++)
        if (!class_finds_block(v->class, (uintptr_t)p - slice_address(s), &block) ||
            block_home(v, block) != page)
            break;
    if (n == built && p == NULL) return true;
    if (v->visited) return false;
    list_set(v, page, NULL);
    record_of(v, page)->used[index_of(v, page)] = (uint16_t)built;
    sorted_add(v, -(int32_t)(built < v->pages->sorted ? built : v->pages->sorted));
    slab_counts_move(s, (int32_t)built, 0);
    if (n > built)
        core_report("double-free", REPORT_FREED, first, "free");
    else
        core_report("corrupt-list", REPORT_WRITTEN, first, "free");
    return false;
}

/* `least` counts in as many blocks as a page has of 4 KiB pages. */
static uint32_t least_shift(void) { return page_shift - 12; }

/* Frees after which one of pages [from, to], which lie in one slice, may be without blocks; more than there
 * are blocks: they are holes. */
static uint32_t least_of(const struct view* v, uint32_t from, uint32_t to) {
    const struct slice_pages* r = record_of(v, from);
    uint32_t left = mask_of(v, from >> v->slice_shift, from, to) & ~hole_of(load_relaxed(&r->state));
    uint32_t least = UINT32_MAX;
    for (; left != 0; left &= left - 1) {
        unsigned i = bit_low(left);
        uint32_t used = r->used[i] + (r->cross >> i & 1u);
        if (used < least) least = used;
    }
    return least;
}
static void least_set(const struct view* v, uint32_t frees) {
    uint32_t least = frees >> least_shift();
    store_relaxed(&v->pages->least, (uint8_t)(least < UINT8_MAX ? least : UINT8_MAX));
}
static void least_recount(const struct view* v) {
    if (class_counts_frees(v->class)) least_set(v, least_of(v, 0, page_count(v) - 1));
}
/* Pages [from, to] are no holes any more. */
static void least_build(const struct view* v, uint32_t from, uint32_t to) {
    if (!class_counts_frees(v->class)) return;
    uint32_t least = least_of(v, from, to);
    if (least >> least_shift() < v->pages->least) least_set(v, least);
}

WEIR_FN uint32_t slab_frees_to_hole(const struct slice_pages* r) {
    uint32_t least = (uint32_t)load_relaxed(&r->least) << least_shift();
    return least == 0 ? 1 : least;
}

/* Make holes of the pages in [from, to] that no block touches. */
static void pages_detach(const struct view* v, uint32_t from, uint32_t to) {
    struct slice* s = v->slab;
    uint32_t lost = 0;
    bool some = false;
    for (uint32_t slice = from >> v->slice_shift; slice <= to >> v->slice_shift; slice++) {
        struct slice_pages* r = &v->pages[slice];
        uint32_t left = mask_of(v, slice, from, to) & ~(uint32_t)r->cross & ~hole_of(load_relaxed(&r->state));
        uint32_t free = 0;
        for (; left != 0; left &= left - 1)
            if (r->used[bit_low(left)] == 0) free |= left & -left;
        if (free == 0) continue;
        /* Upwards, each a hole before the next is looked at: a block that crosses between two is lost once.
         * It is the pass's only when all its blocks are off their lists: nothing of it is read any more. */
        for (left = free; left != 0; left &= left - 1) {
            uint32_t page = (slice << v->slice_shift) + bit_low(left);
            if (weir_unlikely(!page_is_whole(v, page))) {
                free &= ~(left & -left);
                continue;
            }
            lost += page_detach(v, page);
            hole_set(s + slice, left & -left);
        }
        if (free == 0) continue;
        hole_came(s + slice, free);
        some = true;
    }
    if (!some) return;
    sorted_add(v, -(int32_t)lost);
    slab_counts_move(s, 0, -(int32_t)lost);
    struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (h != NULL) sub_relaxed(&h->slab_bytes, (uint64_t)lost * v->class->bytes);
}

/* Where the sorting of a list stopped: a block that is free already, or none. */
static void sort_report(const struct slice* s, block_t* p, const block_t* last, const char* call) {
    if (p != NULL && slab_holds_block(s, p))
        core_report("double-free", REPORT_FREED, p, call);
    else if (last == NULL && p != NULL &&
             arch_distance_below((uintptr_t)p - slice_address(s), (size_t)s->span_slices << SLICE_SHIFT))
        core_report("invalid-free", REPORT_INTERIOR, p, call);
    else
        core_report("corrupt-list", REPORT_WRITTEN, last != NULL ? last : p, call);
}

/* Whether a block is among the first ones on its page's list: what was freed twice in a short while is. A
 * link that leads elsewhere ends the look: whoever follows it reports it. */
WEIR_INLINE bool list_starts_with(const struct view* v, const block_t* p, const block_t* block) {
    enum { look = 8 };
    /* Bits in which no block of the page differs from another; the list's end does. */
    const uintptr_t same = arch_page_mask(v->shift) | (GRANULE - 1);
    for (unsigned n = 0; n < look; p = p->next, n++) {
        if (p == block) return true;
        if ((((uintptr_t)p ^ (uintptr_t)block) & same) != 0) return false;
    }
    return false;
}

/* A list that goes to the pages' lists: what is left of it, the last block that went, and the pages that the
 * blocks touch. */
struct sorting {
    block_t* left;
    block_t* last;
    uint32_t from;
    uint32_t to;
};

/* Sort the blocks of l->left before `end`, `most` at most; stops at one that is none, or free already.
 * Returns their number. */
static uint32_t list_sort(const struct view* v, struct sorting* l, const block_t* end, uint32_t most) {
    const struct size_class* k = v->class;
    uint32_t done = 0;
    block_t* p = l->left;
    l->last = NULL;
    for (; done < most && p != end && p != NULL; done++) {
        uint32_t block;
        if (!class_finds_block(k, (uintptr_t)p - v->start, &block)) break;
        uint32_t offset = block * k->bytes;
        uint32_t home = offset >> v->shift;
        uint32_t last_page = (offset + k->bytes - 1) >> v->shift;
        struct slice_pages* r = record_of(v, home);
        uint32_t i = index_of(v, home);
        block_t* first = list_at(v, home);
        if (r->used[i] == 0 || list_starts_with(v, first, p)) break; /* free already */
        block_t* next = p->next;
        r->used[i]--;
        if (last_page != home) block_cross(v, block, home, false);
        p->next = first;
        list_start(v, home, p);
        if (home < l->from) l->from = home;
        if (last_page > l->to) l->to = last_page;
        l->last = p;
        p = next;
    }
    l->left = p;
    sorted_add(v, (int32_t)done);
    return done;
}

WEIR_FN bool slab_sort(struct slice* s, const char* call) {
    struct view v = view_of(s);
    slab_settle(s);
    uint32_t count = slab_list_count(s, s->free, slab_unsorted(s));
    struct sorting l = {.left = s->free, .from = UINT32_MAX};
    s->free = NULL;
    uint32_t done = list_sort(&v, &l, NULL, count);
    bool good = done == count && l.left == NULL;
    /* What is left of the list is lost, and counts as in use. */
    if (done != count) slab_count(s, s->built - v.pages->sorted, s->until, s->built);
    if (done != 0) pages_detach(&v, l.from, l.to);
    least_recount(&v);
    if (!good) sort_report(s, l.left, l.last, call);
    return good;
}

/* The block from which on a visitor took the owner's list; NULL: none did. */
static block_t* taken_at(const struct view* v) {
    if (v->pages->taken == 0) return NULL;
    return at_address(v, slice_address(v->slab) + (uintptr_t)(v->pages->taken - 1) * GRANULE);
}

/* Whether a list of `*count` blocks at most ends where it should, and how many it has. */
static bool list_is_sound(const struct slice* s, const block_t* p, const block_t* end, uint32_t* count) {
    uint32_t n = 0;
    for (; p != end && n < *count && slab_holds_block(s, p); n++) p = p->next;
    *count = n;
    return p == end;
}

/* A visitor sorts a sound list. A block that is free already stays with all behind it: it goes to the remote
 * list, where the owner will find it. Returns how many went. */
static uint32_t visitor_sorts(const struct view* v, struct sorting* l, const block_t* end, uint32_t count) {
    uint32_t done = list_sort(v, l, end, count);
    if (done == count) return done;
    block_t* last = l->left;
    while (last->next != end) last = last->next;
    slab_push_remote(v->slab, l->left, last, count - done, REMOTE_DOUBTED);
    return done;
}

/* The owner may be in the middle of a push: it has read the head, and will link its block to it. So the head
 * stays what it is, and from now on stands for the end of the list: nothing of it is read any more. False:
 * the list is not sound, or a block on it was free already. */
static bool visitor_takes_own(const struct view* v, struct sorting* l) {
    struct slice* s = v->slab;
    if (!config_owner_publishes) return true;
    block_t* head = load_acquire(&s->free); /* acquire: pairs with slab_push, and the links of its list */
    const block_t* end = taken_at(v);
    uint32_t count = s->built;
    if (head == end) return true;
    if (!list_is_sound(s, head, end, &count)) return false;
    l->left = head;
    v->pages->taken = (uint16_t)(((uintptr_t)tag_clear(head) - slice_address(s)) / GRANULE + 1);
    uint32_t done = visitor_sorts(v, l, end, count);
    slab_counts_move(s, (int32_t)(count - done), 0); /* what is on the remote list counts as in use */
    return done == count;
}

/* What other threads freed the owner counts as in use. What it can do without knowing, as it may be counting
 * down, comes off `rest`; the others wait in `ahead`. False: a block was free already. */
static bool visitor_sorts_remote(const struct view* v, struct sorting* l, uint32_t count) {
    struct slice* s = v->slab;
    uint32_t done = visitor_sorts(v, l, NULL, count);
    uint32_t rest = (uint32_t)(load_relaxed(&s->counts) >> 32 & 0xffff);
    uint32_t known = done < rest ? done : rest;
    uint16_t ahead = (uint16_t)(v->pages->ahead + done - known);
    store_relaxed(&v->pages->ahead, ahead);
    /* Release: who sees it sees how many. */
    if (ahead != 0) (void)__atomic_fetch_or(&s->remote, REMOTE_AHEAD, __ATOMIC_RELEASE);
    slab_counts_move(s, -(int32_t)known, 0);
    add_relaxed(&heap_totals.remote_frees, done);
    return done == count;
}

/* False: as with its own. */
static bool visitor_takes_remote(const struct view* v, struct sorting* l) {
    struct slice* s = v->slab;
    uint64_t word = load_acquire(&s->remote); /* acquire: pairs with slab_push_remote */
    uint32_t count = remote_count(word);
    if (count == 0) return true;
    l->left = remote_first(s, word);
    if (!list_is_sound(s, l->left, NULL, &count)) return false;
    /* Blocks that come in meanwhile are for another time. */
    if (!cas_acq_rel(&s->remote, &word, word & REMOTE_KEPT)) return true;
    return visitor_sorts_remote(v, l, count);
}
/* The same of those that they noted. */
static bool visitor_takes_noted(const struct view* v, struct sorting* l) {
    struct slice* s = v->slab;
    if (!slab_has_noted(s, load_acquire(&s->remote))) return true; /* acquire: region_bits */
    uint32_t count;
    block_t* last;
    l->left = remote_bits_take(s, false, &last, &count);
    return count == 0 || visitor_sorts_remote(v, l, count);
}

WEIR_FN bool slab_sort_as_visitor(struct slice* s) {
    struct view v = view_of(s);
    v.visited = true;
    struct sorting l = {.from = UINT32_MAX};
    bool good = visitor_takes_own(&v, &l);
    good &= visitor_takes_remote(&v, &l);
    good &= visitor_takes_noted(&v, &l);
    if (l.from <= l.to) pages_detach(&v, l.from, l.to);
    least_recount(&v);
    return good;
}

WEIR_FN void slab_settle_visited(struct slice* s) {
    struct view v = view_of(s);
    const block_t* end = taken_at(&v);
    block_t* last = NULL;
    block_t* p = s->free;
    for (uint32_t n = 0; end != NULL && p != end && n < s->built && slab_holds_block(s, p); n++) {
        last = p;
        p = p->next;
    }
    if (end != NULL && last == NULL) s->free = NULL;
    if (end != NULL && last != NULL && p == end) last->next = NULL; /* if not, it was written to */
    uint32_t used = slab_used(s);
    uint32_t ahead = v.pages->ahead;
    v.pages->taken = 0;
    store_relaxed(&v.pages->ahead, (uint16_t)0);
    slab_recount_used(s, used > ahead ? used - ahead : 0);
    if (ahead != 0) (void)__atomic_fetch_and(&s->remote, ~REMOTE_AHEAD, __ATOMIC_RELAXED);
}

WEIR_FN block_t* slab_take_sorted(struct slice* s, uint32_t* count) {
    struct view v = view_of(s);
    *count = 0;
    if (v.pages->sorted == 0) return NULL;
    uint32_t slice = 0;
    while (v.pages[slice].listed == 0)
        if (++slice == v.class->slices) return NULL;
    const struct slice_pages* r = &v.pages[slice];
    uint32_t best = bit_low(r->listed);
    /* The page with the most blocks in use, so that the others drain. */
    for (uint32_t left = r->listed & (r->listed - 1u); left != 0; left &= left - 1)
        if (r->used[bit_low(left)] > r->used[best]) best = bit_low(left);
    uint32_t page = (slice << v.slice_shift) + best;
    block_t* first = list_at(&v, page);
    uint32_t n = page_built(&v, page) - r->used[best];
    list_set(&v, page, NULL);
    v.pages[slice].used[best] += (uint16_t)n;
    sorted_add(&v, -(int32_t)n);
    /* The last block at home may cross into the next pages; if it was in use, it does so already. */
    uint32_t end = page_first(&v, page + 1);
    uint32_t block = (end < v.class->capacity ? end : v.class->capacity) - 1;
    if (!block_has_hole(&v, block)) block_cross(&v, block, page, true);
    *count = n;
    return first;
}

WEIR_FN void slab_taken(struct slice* s) {
    struct view v = view_of(s);
    least_recount(&v);
}

/* Holes of a slice to be had, dirty or clean as asked. */
static uint32_t holes_free(uint64_t state, bool clean) {
    return clean ? hole_of(state) & ~hole_busy(state) : hole_dirty(state);
}

/* The lowest page of the slab that is a hole to be had, dirty or clean as asked; page_count: none. */
static uint32_t lowest_hole(const struct view* v, bool clean) {
    for (uint32_t slice = 0; slice < v->class->slices; slice++) {
        uint32_t mask = holes_free(load_relaxed(&v->pages[slice].state), clean);
        for (; mask != 0; mask &= mask - 1) {
            uint32_t page = (slice << v->slice_shift) + bit_low(mask);
            if (page_block(v, page) < v->class->capacity) return page;
        }
    }
    return page_count(v);
}

/* The last one of those that follow each other in a slice from hole `page` on, `most` at most. None behind
 * the last block. */
static uint32_t holes_end(const struct view* v, uint32_t page, bool clean, uint32_t most) {
    uint32_t left = holes_free(load_relaxed(&record_of(v, page)->state), clean) >> index_of(v, page);
    uint32_t count = bit_low(~left | 1u << (most - 1) << 1);
    uint32_t end = block_end(v, v->class->capacity - 1);
    uint32_t last = page + (count != 0 ? count - 1 : 0);
    return last < end ? last : end;
}

/* Take the holes among pages [*from, *to] back, of one block or all of them holes, and say which they were:
 * they lie next to each other. False: one is being purged, none was taken. */
static bool holes_take(const struct view* v, uint32_t* from, uint32_t* to) {
    uint32_t first = *from >> v->slice_shift;
    uint32_t last = *to >> v->slice_shift;
    uint32_t got[2] = {0, 0};
    static_assert((int)SLAB_MAX <= (int)SLICE_BYTES, "a block lies in two slices at most");
    for (uint32_t slice = first; slice <= last; slice++) {
        uint32_t mask = hole_of(load_relaxed(&v->pages[slice].state)) & mask_of(v, slice, *from, *to);
        got[slice - first] = mask == 0 ? 0 : hole_take(v->slab + slice, mask);
        if (got[slice - first] == mask) continue;
        for (; slice + 1 > first; slice--)
            if (got[slice - first] != 0) hole_add(v->slab + slice, got[slice - first]);
        return false;
    }
    uint64_t all = got[0] | (uint64_t)got[1] << (1u << v->slice_shift);
    if (all == 0) return false;
    *from = (first << v->slice_shift) + bit_low(all);
    *to = (first << v->slice_shift) + bit_high(all);
    return true;
}

/* The lowest hole and those behind it, `pages` at most, or where no block lies on it alone, those of the
 * block that reaches into it. False: none to be had. */
static bool build_take(const struct view* v, bool clean, uint32_t pages, uint32_t* from, uint32_t* to) {
    bool is_clean = false;
    uint32_t page = lowest_hole(v, is_clean);
    if (page == page_count(v) && clean) {
        is_clean = true;
        page = lowest_hole(v, is_clean);
    }
    if (page == page_count(v)) return false;
    *from = *to = page;
    uint32_t own = page_first(v, page);
    if (own >= v->class->capacity || block_end(v, own) != page) {
        uint32_t block = page_block(v, page);
        *from = block_home(v, block);
        *to = block_end(v, block);
    } else if (pages > 1) {
        *to = holes_end(v, page, is_clean, pages);
    }
    return holes_take(v, from, to);
}

/* Link blocks [block, end), which lie on the page as a whole. Returns where the next one's address goes. */
static block_t** build_run(const struct view* v, uint32_t page, uint32_t block, uint32_t end,
                           block_t** link) {
    uint32_t bytes = v->class->bytes;
    uintptr_t address = v->start + (size_t)block * bytes;
    record_of(v, page)->used[index_of(v, page)] += (uint16_t)(end - block);
    for (; block < end; block++, address += bytes) {
        *link = (block_t*)address;
        link = &(*link)->next;
    }
    return link;
}

/* Link a block, unless a page that it touches is a hole. */
static block_t** build_one(const struct view* v, uint32_t block, block_t** link) {
    if (block_has_hole(v, block)) return link;
    uint32_t home = block_home(v, block);
    record_of(v, home)->used[index_of(v, home)]++;
    block_cross(v, block, home, true);
    *link = block_at(v, block);
    if (config_tags && v->tagged) *link = tagged_build(v->slab, *link, block);
    return &(*link)->next;
}

/* Link the block that starts on the page and ends on the next one, unless that is a hole. */
static block_t** build_tail(const struct view* v, uint32_t page, uint32_t block, block_t** link) {
    struct slice_pages* r = record_of(v, page);
    uint32_t next = index_of(v, page) + 1;
    if (next >> v->slice_shift != 0 || block_end(v, block) != page + 1) return build_one(v, block, link);
    if ((hole_of(load_relaxed(&r->state)) >> next & 1) != 0) return link;
    r->used[next - 1]++;
    r->cross |= (uint16_t)(1u << next);
    *link = block_at(v, block);
    return &(*link)->next;
}

/* Link the blocks that touch pages [from, to], which were holes, and no other hole. Returns their number. */
static uint32_t build_blocks(const struct view* v, uint32_t from, uint32_t to, block_t** first) {
    const uint32_t capacity = v->class->capacity;
    uint32_t built = 0;
    uint32_t block = page_block(v, from);
    block_t** link = first;
    bool tagged = config_tags && v->tagged;
    for (uint32_t page = from; page <= to; page++) {
        uint32_t run = page_first(v, page); /* the first one that starts on the page */
        uint32_t end = page_block(v, page + 1);
        if (end > capacity) end = capacity;
        for (; block < end && (tagged || block < run); block++) {
            block_t** before = link;
            link = build_one(v, block, link);
            built += link != before ? 1 : 0;
        }
        if (block < end) {
            link = build_run(v, page, block, end, link);
            built += end - block;
            block = end;
        }
        if (block < capacity && block == end && block_home(v, block) <= page) {
            block_t** before = link;
            bool whole = tagged || block_home(v, block) != page;
            link = whole ? build_one(v, block, link) : build_tail(v, page, block, link);
            built += link != before ? 1 : 0;
            block++;
        }
    }
    *link = NULL;
    return built;
}

WEIR_FN block_t* slab_build(struct slice* s, bool clean, uint32_t pages, uint32_t* count) {
    struct view v = view_of(s);
    block_t* first = NULL;
    uint32_t from;
    uint32_t to;
    *count = 0;
    if (!build_take(&v, clean, pages, &from, &to)) return NULL;
    *count = build_blocks(&v, from, to, &first);
    least_build(&v, from, to);
    slab_set_built(s, s->built + *count);
    return first;
}

WEIR_FN size_t slab_close(struct slice* s) {
    struct slice_pages* pages = slice_pages(s);
    size_t closed = 0;
    s->free = NULL;
    slab_set_built(s, 0);
    slab_count(s, 0, 0, 0);
    pages->charged = 0;
    store_relaxed(&pages->sorted, (uint16_t)0);
    for (uint32_t i = 0; i < s->span_slices; i++) {
        struct slice_pages* r = &pages[i];
        uint32_t mask = hole_all() & ~hole_of(load_relaxed(&r->state));
        if (mask == 0) continue;
        for (unsigned p = 0; p < SLICE_PAGES_MAX; p++) r->head[p] = r->used[p] = 0;
        r->cross = r->listed = 0;
        hole_add(s + i, mask);
        closed += (size_t)__builtin_popcount(mask);
    }
    return closed << page_shift;
}

WEIR_FN void slab_forget_all(struct slice* s) {
    struct view v = view_of(s);
    uint32_t built = 0;
    for (uint32_t page = 0; page < page_count(&v); page++) {
        struct slice_pages* r = record_of(&v, page);
        uint32_t i = index_of(&v, page);
        uint32_t n = page_is_hole(&v, page) ? 0 : page_built(&v, page);
        list_set(&v, page, NULL);
        r->used[i] = (uint16_t)n;
        r->cross = 0;
        built += n;
    }
    for (uint32_t block = 0; block < v.class->capacity; block++)
        if (!block_has_hole(&v, block)) block_cross(&v, block, block_home(&v, block), true);
    least_recount(&v);
    v.pages->charged = v.pages->taken = 0;
    store_relaxed(&v.pages->sorted, (uint16_t)0);
    store_relaxed(&v.pages->ahead, (uint16_t)0);
    s->free = NULL;
    s->push_at = &s->free;
    slab_count(s, built, built, built);
}
