/* huge.c: see huge.h.
 *
 * An extent is made huge in three calls: it may be, is, and may not be any more. The last takes nothing away,
 * but leaves the kernel's own thread out of it and one mapping where each extent would be one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "page/huge.h"

#include "base/atomic.h"
#include "core/options.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/span.h"

#include <string.h>

/* Bytes in use from which a heap is large: below, the processor's own tables reach far enough. */
#define HEAP_MIN (64 * MIB)
/* A kernel with larger ones (of 16 KiB pages and more) is left alone: an extent is hardly ever full. */
#define EXTENT_MAX (4 * MIB)
/* The most of a window, and in nanoseconds, that goes into making extents huge. */
enum { TIME_SHARE = 8, TIME_MAX_NS = 50000000 };
/* Holes in 1024ths of an extent: what a full one may have, and what a huge one keeps. The latter is resident
 * for nothing, and bounds by how much resident memory exceeds what is needed. */
enum { HOLES_FULL = 8, HOLES_KEPT = 16 };
/* What is known of an extent: 0 to AGE: looks in a row that found it full; from COOL down to AGE + 1: looks
 * until it is tried again; BROKEN: given up, but a huge page until a part of it is given back. */
enum { EXTENT_AGE = 4, EXTENT_COOL = 68, EXTENT_BROKEN = 254, EXTENT_HUGE = 255 };
/* Extents: looked at in a window, and between two takes of the page lock; made huge by one call; refused in a
 * row until there is no more asking. */
enum { LOOK_WINDOW = 2048, LOOK_STEP = 32, RUN_MAX = 4, RUNS = 64, REFUSED_MAX = 16 };

WEIR_VAR struct huge_totals huge_totals;
WEIR_VAR struct huge_ahead huge_ahead;
WEIR_VAR uint64_t huge_slow_ns = 1000000;
WEIR_VAR bool huge_learn_due;

static uint8_t* extents;       /* of the primary region, one each; Sync: the page lock */
static uint32_t extent_shift;  /* log2 of the slices in an extent; written before `extents` */
static enum os_huge huge_mode; /* the system's; written before `extents` */
static bool huge_off;          /* Sync: relaxed; nothing to be had, for good */
static uint32_t huge_refused;  /* Sync: release_lock; in a row */
static uint64_t looked_live;   /* Sync: relaxed; span_totals.live when looking started */
static uint32_t looks_left;    /* Sync: relaxed; times that the whole heap is to be looked at */

/* Where looking is. Sync: release_lock. */
static struct {
    uint32_t extent; /* the next one */
    uint32_t from;   /* the span that the last slice was of: slices [from, to) */
    uint32_t to;
    uint8_t kind; /* its; NONE: not known */
    bool clean;   /* a free one */
    bool work;    /* some are on their way to being huge */
} huge_look;

/* Extents that are to be huge, found by this window. Sync: release_lock. */
static struct {
    uint32_t count;
    struct {
        uint32_t extent;
        uint32_t length;
    } run[RUNS];
} huge_found;

/* Huge from the first touch: a part of what is in use at a time, and above GROWTH_FEW extents a smaller one,
 * where of the pages of so many last extents no more than one in PARTS is not in use. */
enum { GROWTH_SHARE = 4, GROWTH_FEW = 2, GROWTH_SHARE_MANY = 16 };
enum { DENSE_EXTENTS = 2, DENSE_PARTS = 4, LOST_SHARE = 32, PAGE_SHIFT_MIN = 12 };
/* Under a block that is large beside the heap, as much as large blocks were seen to be written to, up to so
 * many bytes: what is lost if it is not. */
#define PROVEN_MAX (32 * MIB)

struct extent_state {
    uint32_t holes; /* pages in slabs */
    bool dirty;     /* has free slices that are resident */
    bool clean;     /* has others */
    bool other;     /* has what may not be huge, or is not known */
};

/* Sync: the page lock. What is resident for nothing where blocks do not use what was opened is bounded, since
 * blocks to come may be unlike those that were seen: no extent is opened while `lost` is above a part of what
 * is in use. */
WEIR_WIDE(huge_growth) static struct {
    uint32_t looked;   /* slice up to which the last look went */
    uint32_t counted;  /* slice up to which `lost` goes */
    uint32_t wait;     /* slices of growth until the next one */
    uint32_t last;     /* slice from which on the heap grew when it became due */
    uint32_t sparse;   /* looks in a row that found no dense heap */
    bool dense;        /* the last look did */
    bool looking;      /* a thread, without the lock; the samples are its own */
    uint32_t huge;     /* extents that were opened, and are whole */
    uint64_t lost;     /* pages of theirs that no block has written to; */
    uint64_t lost_new; /* of newer slices, as of the last look: blocks may be about to be written */
    uint64_t proven;   /* pages of large blocks that were found written, by dense looks in a row */
    uint32_t fast;     /* timed extents in a row that were */
    uint32_t slow;     /* timed extents that were, since SURE were fast in a row */
    uint32_t single;   /* openings of one extent, since then */
    uint32_t pause;    /* slices of growth that are left of it */
    uint64_t known[2]; /* bit i % 128: slice i, of those before `looked`, was found written to */
} growth;

/* An extent is broken up: with it goes its share. One that the helper made counts as one that was opened. */
static void growth_shrinks(void) {
    if (growth.huge == 0) return;
    growth.lost -= growth.lost / growth.huge;
    growth.huge--;
}

WEIR_FN void huge_region(uintptr_t base, size_t records, size_t bytes) {
    /* One call for all that will ever be accessible: what is made accessible later keeps it. A kernel that
     * refuses has no huge pages. */
    size_t small = core_options.hugepages == HUGE_ALWAYS ? records : bytes;
    (void)os_advise_huge((void*)base, small, OS_HUGE_NEVER);
    if (small != bytes) (void)os_advise_huge((void*)(base + small), bytes - small, OS_HUGE_ALWAYS);
}

WEIR_FN bool huge_cover(void* p, size_t bytes, bool accessible) {
    if (!os_cover_as(p, bytes, accessible, region_memory_kind)) return false;
    (void)os_advise_huge(p, bytes, core_options.hugepages == HUGE_ALWAYS ? OS_HUGE_ALWAYS : OS_HUGE_NEVER);
    return true;
}

static bool huge_is_auto(void) {
    return core_options.hugepages == HUGE_AUTO && !load_relaxed(&huge_off) &&
           load_relaxed(&span_totals.live) >= HEAP_MIN;
}

static bool live_has_moved(void) {
    uint64_t live = load_relaxed(&span_totals.live);
    uint64_t before = load_relaxed(&looked_live);
    return (live > before ? live - before : before - live) > before / 16;
}

WEIR_FN bool huge_due(void) {
    if (load_relaxed(&huge_ahead.end) != 0) return true;
    return huge_is_auto() && (load_relaxed(&looks_left) != 0 || live_has_moved());
}

/* ---- Extents of the primary region, numbered from the one that holds its start. */

static uintptr_t extent_address(uint32_t extent) {
    unsigned shift = extent_shift + SLICE_SHIFT;
    return ((regions[0].base >> shift) + extent) << shift;
}
/* Extents [first, end) consist of slices below the frontier alone. */
static uint32_t extent_first(void) {
    unsigned shift = extent_shift + SLICE_SHIFT;
    uintptr_t start = regions[0].base + ((uintptr_t)regions[0].first << SLICE_SHIFT);
    return (uint32_t)((align_up(start, (size_t)1 << shift) >> shift) - (regions[0].base >> shift));
}
static uint32_t extent_end(void) {
    unsigned shift = extent_shift + SLICE_SHIFT;
    uintptr_t end = regions[0].base + ((uintptr_t)load_relaxed(&regions[0].frontier) << SLICE_SHIFT);
    return (uint32_t)((end >> shift) - (regions[0].base >> shift));
}
static struct slice* extent_slices(uint32_t extent) {
    return region_slices(&regions[0]) + ((extent_address(extent) - regions[0].base) >> SLICE_SHIFT);
}
/* Slices of an extent that are below the frontier: behind it there may not even be records. */
static uint32_t extent_reached(uint32_t extent) {
    uint32_t left = load_relaxed(&regions[0].frontier) - slice_index(extent_slices(extent));
    return left < 1u << extent_shift ? left : 1u << extent_shift;
}
static uint32_t extent_of(uintptr_t address) {
    unsigned shift = extent_shift + SLICE_SHIFT;
    return (uint32_t)((address >> shift) - (regions[0].base >> shift));
}
static uint32_t slice_at(uintptr_t address) { return (uint32_t)((address - regions[0].base) >> SLICE_SHIFT); }
static uint32_t extent_pages(uint32_t of_1024) {
    return (slice_page_count() << extent_shift) * of_1024 / 1024;
}

static bool extents_start(void) {
    if (extents != NULL) return true;
    size_t huge_bytes;
    huge_mode = os_huge_mode(&huge_bytes);
    bool usable = regions[0].base != 0 && huge_mode != OS_HUGE_NEVER && huge_bytes > SLICE_BYTES &&
                  huge_bytes <= EXTENT_MAX && (huge_bytes & (huge_bytes - 1)) == 0;
    if (usable) {
        extent_shift = bit_high(huge_bytes) - SLICE_SHIFT;
        size_t bytes = align_up(((size_t)regions[0].slices >> extent_shift) + 2, os_page_bytes());
        uint8_t* p = os_reserve(bytes, os_page_bytes());
        if (p != NULL && os_advise_huge(p, bytes, OS_HUGE_NEVER) && os_commit(p, bytes)) {
            os_lock_take(&page_lock);
            extents = p;
            os_lock_give(&page_lock);
        } else if (p != NULL) {
            os_unmap(p, bytes);
        }
    }
    if (extents == NULL) store_relaxed(&huge_off, true);
    return extents != NULL;
}

/* ---- Looking, under the page lock. */

static bool kind_is_slab(uint8_t kind) { return slice_kind_is_paged(kind) || slice_kind_is_rest(kind); }

/* The span that starts at slice i. Inside a span, which only happens where looking starts, nothing is known,
 * but that a slab's slices say what they are. */
static void look_at_span(uint32_t i) {
    const struct slice* s = region_slices(&regions[0]) + i;
    huge_look.kind = load_acquire(&s->kind); /* acquire: pairs with whoever made it a slab */
    huge_look.from = i;
    huge_look.to = i + 1;
    if (huge_look.kind == SLICE_FREE) huge_look.clean = s->state != SPAN_DIRTY;
    if (huge_look.kind == SLICE_FREE_END)
        huge_look.kind = SLICE_NONE;
    else if (huge_look.kind != SLICE_NONE && !slice_kind_is_rest(huge_look.kind))
        huge_look.to = i + s->span_slices;
    if (kind_is_slab(huge_look.kind)) huge_look.kind = SLICE_SLAB;
}

/* The page lock was given up: the span that the last slice was of may not be any more. */
static void look_again(void) {
    const struct slice* s = region_slices(&regions[0]) + huge_look.from;
    bool same = huge_look.kind != SLICE_NONE && huge_look.kind != SLICE_SLAB &&
                load_relaxed(&s->kind) == huge_look.kind && huge_look.from + s->span_slices == huge_look.to;
    if (!same) huge_look.to = 0;
    if (same && huge_look.kind == SLICE_FREE) huge_look.clean = s->state != SPAN_DIRTY;
}

static struct extent_state extent_look(uint32_t extent) {
    struct extent_state x = {0, false, false, false};
    const struct slice* s = extent_slices(extent);
    uint32_t index = slice_index(s);
    for (uint32_t i = 0; i < 1u << extent_shift; i++) {
        if (index + i >= huge_look.to) look_at_span(index + i);
        if (huge_look.kind == SLICE_SLAB)
            x.holes += (uint32_t)__builtin_popcount(hole_of(load_relaxed(&slice_pages(s + i)->state)));
        else if (huge_look.kind == SLICE_FREE)
            x.dirty |= !huge_look.clean, x.clean |= huge_look.clean;
        else /* A large block may never have been written to; where the system asks for nothing, no matter. */
            x.other |=
                huge_look.kind != SLICE_LARGE || index + i + 1 == huge_look.to || huge_mode != OS_HUGE_ALWAYS;
    }
    return x;
}

/* The slices of an extent that have dirty holes are for the next pass. Whether there are some. */
static bool extent_mark(uint32_t extent) {
    bool some = false;
    struct slice* s = extent_slices(extent);
    uint32_t count = extent_reached(extent);
    for (uint32_t i = 0; i < count; i++, s++) {
        if (!kind_is_slab(load_acquire(&s->kind))) continue; /* acquire: as in look_at_span */
        uint32_t dirty = hole_dirty(load_relaxed(&slice_pages(s)->state));
        if (dirty == 0) continue;
        add_relaxed(&hole_pending, (uint64_t)__builtin_popcount(dirty) << page_shift);
        hole_mark(s);
        some = true;
    }
    return some;
}

static void extent_break(uint32_t extent) {
    extents[extent] = EXTENT_BROKEN;
    add_relaxed(&huge_totals.broken, 1);
    growth_shrinks();
}

static void huge_found_add(uint32_t extent) {
    huge_look.work = true;
    if (huge_found.count != 0) {
        uint32_t last = huge_found.count - 1;
        if (huge_found.run[last].length < RUN_MAX &&
            huge_found.run[last].extent + huge_found.run[last].length == extent) {
            huge_found.run[last].length++;
            return;
        }
    }
    if (huge_found.count == RUNS) return;
    huge_found.run[huge_found.count].extent = extent;
    huge_found.run[huge_found.count++].length = 1;
}

static void extent_judge(uint32_t extent) {
    struct extent_state x = extent_look(extent);
    uint8_t* state = &extents[extent];
    if (*state == EXTENT_BROKEN) return;
    if (*state == EXTENT_HUGE) {
        if (x.clean || x.holes > extent_pages(HOLES_KEPT)) {
            (void)extent_mark(extent);
            extent_break(extent);
        }
    } else if (*state > EXTENT_AGE) {
        if (--*state == EXTENT_AGE) *state = 0;
    } else if (x.dirty || x.clean || x.other || x.holes > extent_pages(HOLES_FULL)) {
        *state = 0;
    } else if (*state < EXTENT_AGE) {
        ++*state;
        huge_look.work = true;
    } else {
        huge_found_add(extent);
    }
}

/* The whole heap was looked at. */
static void look_ends(void) {
    uint32_t left = load_relaxed(&looks_left);
    if (live_has_moved()) {
        store_relaxed(&looked_live, load_relaxed(&span_totals.live));
        left = EXTENT_AGE + 1;
    } else if (left > 1 || (left == 1 && !huge_look.work)) {
        left--;
    }
    store_relaxed(&looks_left, left);
    huge_look.work = false;
    huge_look.extent = 0;
}

static void look_around(void) {
    uint32_t budget = LOOK_WINDOW;
    os_lock_take(&page_lock);
    uint32_t end = extent_end();
    if (huge_look.extent < extent_first()) huge_look.extent = extent_first();
    while (budget != 0 && huge_look.extent < end) {
        look_again();
        for (uint32_t i = 0; i < LOOK_STEP && huge_look.extent < end; i++, budget--)
            extent_judge(huge_look.extent++);
        os_lock_give(&page_lock);
        os_lock_take(&page_lock);
        end = extent_end();
    }
    if (huge_look.extent >= end) look_ends();
    os_lock_give(&page_lock);
}

/* ---- Where a dense heap grows: a look at what it has grown by lately, then extents that are opened. */

/* A slice of the last ones in front of the frontier, for those around it. */
struct look_sample {
    uintptr_t address;
    uint32_t used; /* pages that blocks lie on, or did; see samples_ask */
    bool huge;     /* all pages are resident, written to or not */
    bool known;    /* it was found that blocks have written to it */
    bool told;     /* a slab of small blocks: built page by page, as it is used */
    bool large;    /* a part of a large block */
    bool first;    /* not looked at before */
    bool judged;   /* of what the heap has grown by since the last look, or of the last extents */
    bool counts;   /* not counted in `lost` before */
    bool recent;   /* nor is it now, but in `lost_new` */
};
/* Each slice of two extents, and of half a one that is looked at again. */
enum { LOOK_SAMPLES = 80, LOOK_WAIT_MAX = 8 };
/* The kernel may take longer for a huge page than for as many small ones: it moves others' memory away first,
 * or the host of a virtual machine has to find some. What is quick to have comes first, and behind it all is
 * slow. So many extents are opened in steps, of one, then twice as many as before, up to STEP_MAX or one of
 * STEP_PARTS of all, and the first of each step is timed; where one is opened, it is, and once SURE were fast
 * in a row each PROBE_EVERYth, as others wait for pages meanwhile. Behind a slow one there are none for so
 * many slices of growth, twice as many behind the next. */
enum { STEP_MAX = 4, STEP_PARTS = 8, SURE = 16, PROBE_EVERY = 4 };
enum { PAUSE_MIN = 1 << 10, PAUSE_DOUBLINGS = 6 };

/* Sync: growth.looking. What the kernel says of the samples' pages, and then copies of some in turns: of two
 * microseconds for a page one is the call's own. */
enum { PEEK_PAGES = 8 };
WEIR_WIDE(huge_samples) static struct look_sample samples[LOOK_SAMPLES];
WEIR_WIDE(huge_peek) static uint64_t peeked[PEEK_PAGES][(1 << PAGE_SHIFT_MIN) / sizeof(uint64_t)];

/* Slices in front of the frontier whose blocks may just have been given out. */
static uint32_t look_new(void) { return (1u << extent_shift) / 2; }

static bool has_small_blocks(const struct slice* s, uint8_t kind) {
    return kind == SLICE_SLAB && load_relaxed(&s->small_class) >= 0;
}

/* Which slice of so many stands for them: another one each time, as it comes (Knuth's multiplicative hash),
 * so that blocks which lie at multiples of that distance are not all seen at the same place. */
static uint32_t sample_place(uint32_t number) { return number * 2654435761u >> 16; }

enum { KNOWN_SLICES = 64 * (sizeof growth.known / sizeof *growth.known) };
static uint64_t* known_word(uint32_t index) { return &growth.known[index % KNOWN_SLICES / 64]; }

/* Under the page lock: what was found of slices [from, end) holds no more. */
static void known_forget(uint32_t from, uint32_t end) {
    if (end - from > KNOWN_SLICES)
        from = end > KNOWN_SLICES ? end - KNOWN_SLICES : 0; /* or the heap was cut */
    for (; from < end; from++) *known_word(from) &= ~(1ull << from % 64);
}
static bool slice_is_known(uint32_t index, uint32_t end) {
    return end - index <= KNOWN_SLICES && (*known_word(index) >> index % 64 & 1) != 0;
}

/* Samples of `slices` from s on, one in each `stride` of them; returns how many there are of slices that are
 * not free. */
static uint32_t samples_take(const struct slice* s, uint32_t slices, uint32_t judged, uint32_t stride) {
    uint32_t count = 0;
    uint32_t last = UINT32_MAX; /* slice of the large block that was met last, and its holes */
    uint32_t behind = 0;
    for (uint32_t i = 0; i < slices && count < LOOK_SAMPLES; i++) {
        uint8_t kind = load_acquire(&s[i].kind); /* acquire: as in look_at_span */
        if (kind == SLICE_FREE) {
            i += s[i].span_slices - 1;
            continue;
        }
        if (kind == SLICE_LARGE) {
            last = i + s[i].span_slices - 1;
            behind = hole_of(load_relaxed(&slice_pages(s + i)->state));
        }
        if (i % stride != sample_place(i / stride) % stride) continue;
        uint32_t used = kind == SLICE_FENCE ? 0 : hole_all();
        if (i == last) used &= ~behind;
        if (kind_is_slab(kind)) used &= ~hole_of(load_relaxed(&slice_pages(s + i)->state));
        uintptr_t address = slice_address(s + i);
        uint32_t index = slice_index(s) + i;
        samples[count++] = (struct look_sample){
            .address = address,
            .used = used,
            .huge = extents[extent_of(address)] > EXTENT_AGE,
            .known = slice_is_known(index, slice_index(s) + slices),
            .told = has_small_blocks(s + i, kind),
            .large = !kind_is_slab(kind) && kind != SLICE_FENCE,
            .first = index >= growth.looked,
            .judged = i + judged >= slices,
            .counts = index >= growth.counted,
            .recent = i + look_new() >= slices,
        };
    }
    return count;
}

/* Of samples that are not huge only resident pages count as used from here on: one call for those that lie
 * side by side. None where the kernel does not say. */
static void samples_ask(uint32_t count) {
    unsigned char* there = (unsigned char*)peeked;
    static_assert(LOOK_SAMPLES * SLICE_PAGES_MAX <= sizeof peeked, "a byte for each page");
    for (uint32_t i = 0, end; i < count; i = end) {
        end = i + 1;
        if (samples[i].huge) continue;
        while (end < count && !samples[end].huge &&
               samples[end].address == samples[end - 1].address + SLICE_BYTES)
            end++;
        size_t bytes = (size_t)(end - i) << SLICE_SHIFT;
        bool known = os_resident_pages((void*)samples[i].address, bytes, there);
        for (uint32_t page = 0; page < (end - i) * slice_page_count(); page++) {
            bool resident = known && (there[page] & 1) != 0;
            uint32_t* used = &samples[i + page / slice_page_count()].used;
            if (!resident) *used &= ~(1u << page % slice_page_count());
        }
    }
}

/* Of a huge page one page of the slice stands for all of `used`; any of them, as it comes. */
static void* sample_page(const struct look_sample* x) {
    uint32_t from = (uint32_t)(x->address >> SLICE_SHIFT) * 5 % slice_page_count();
    uint32_t behind = x->used & ~0u << from;
    uint32_t page = (uint32_t)__builtin_ctz(behind != 0 ? behind : x->used);
    return (void*)(x->address + ((uintptr_t)page << page_shift));
}

/* Whether the page that was copied was ever written to, as far as it can be told: it does not read as zero.
 * The copy is wiped. */
static bool copy_is_written(uint64_t* copy) {
    uint64_t any = 0;
    for (size_t i = 0; i < sizeof *peeked / sizeof **peeked; i++) any |= copy[i], copy[i] = 0;
    return any != 0;
}

/* Pages that stand for the samples of numbers `of`. They are copied by the kernel, since the program may have
 * made them inaccessible: of one that is not copied nothing is known. */
static void pages_peek(const struct os_range* pages, const uint32_t* of, uint32_t count) {
    for (uint32_t at = 0; at < count; at++) {
        size_t got = os_peek(pages + at, count - at, peeked) / sizeof *peeked;
        for (size_t copy = 0; copy < got; copy++, at++) samples[of[at]].known = copy_is_written(peeked[copy]);
    }
}

static void samples_peek(uint32_t count) {
    struct os_range pages[PEEK_PAGES];
    uint32_t of[PEEK_PAGES];
    uint32_t some = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct look_sample* x = &samples[i];
        if (!x->huge || x->told || x->known || x->used == 0) continue;
        of[some] = i;
        pages[some++] = (struct os_range){sample_page(x), sizeof *peeked};
        if (some == PEEK_PAGES) pages_peek(pages, of, some), some = 0;
    }
    pages_peek(pages, of, some);
}

static uint32_t pages_written(const struct look_sample* x) {
    return !x->huge || x->told || x->known ? (uint32_t)__builtin_popcount(x->used) : 0;
}

/* Under the page lock: what was found of the samples of slices up to `end` need not be looked at again. */
static void samples_keep(uint32_t count, uint32_t end) {
    if (regions[0].frontier < end) return; /* the heap was cut meanwhile */
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = slice_at(samples[i].address);
        if (samples[i].known && end - index <= KNOWN_SLICES) *known_word(index) |= 1ull << index % 64;
    }
}

/* Blocks may be freed and their pages given back meanwhile: the outcome is an estimate. */
WEIR_FN void huge_learn(void) {
    os_lock_take(&page_lock);
    const struct region* r = &regions[0];
    /* Of a slab or chunk that is new nothing may have been given out. */
    bool new_slab =
        growth.last < r->frontier && kind_is_slab(load_relaxed(&region_slices(r)[growth.last].kind));
    uint32_t end = new_slab ? growth.last : r->frontier;
    uint32_t judged = DENSE_EXTENTS << extent_shift;
    bool goes = load_relaxed(&huge_learn_due) && !growth.looking && end - r->first >= judged;
    store_relaxed(&huge_learn_due, false);
    if (growth.looked < end && end - growth.looked > judged) judged = end - growth.looked;
    if (judged > end - r->first) judged = end - r->first;
    uint32_t slices = judged;
    if (growth.counted < end && end - growth.counted > slices) slices = end - growth.counted;
    if (slices > end - r->first) slices = end - r->first;
    uint32_t stride = (slices + LOOK_SAMPLES - 1) / LOOK_SAMPLES;
    if (goes) known_forget(growth.looked, end); /* which came since */
    uint32_t count = goes ? samples_take(region_slices(r) + end - slices, slices, judged, stride) : 0;
    growth.looking |= goes;
    os_lock_give(&page_lock);
    if (!goes) return;
    /* Without a lock: what is peeked at may be the program's mapping by now, which a thread has to serve. */
    uint32_t pages = 0;
    uint32_t written = 0;
    uint32_t lost[2] = {0, 0}; /* for good, and until the next look */
    uint32_t proven = 0;
    samples_ask(count);
    samples_peek(count);
    for (uint32_t i = 0; i < count; i++) {
        const struct look_sample* x = &samples[i];
        uint32_t now = pages_written(x);
        if (x->judged) pages += slice_page_count(), written += now;
        if (x->huge && x->counts) lost[x->recent] += (uint32_t)__builtin_popcount(x->used) - now;
        if (x->large && x->first) proven += now;
    }
    uint32_t all = judged / stride * slice_page_count();
    os_lock_take(&page_lock);
    growth.looking = false;
    samples_keep(count, end);
    growth.looked = end;
    growth.counted = end - look_new();
    growth.lost += (uint64_t)lost[false] * stride;
    growth.lost_new = (uint64_t)lost[true] * stride;
    /* Where most is free again there is little to go by, but what large blocks have shown before. */
    growth.dense = pages < all / 4 ? growth.proven != 0 : written >= pages / DENSE_PARTS * (DENSE_PARTS - 1);
    growth.proven = growth.dense ? growth.proven + (uint64_t)proven * stride : 0;
    growth.sparse = growth.dense ? 0 : growth.sparse + 1;
    uint32_t each = 1u << extent_shift;
    growth.wait =
        growth.dense ? each / 2 : each * (growth.sparse < LOOK_WAIT_MAX ? growth.sparse : LOOK_WAIT_MAX);
    os_lock_give(&page_lock);
}

WEIR_FN void huge_fork_child(void) {
    if (growth.looking) memset(peeked, 0, sizeof peeked); /* its copies came along */
    growth.looking = false;
}

/* The heap's frontier goes to `end`: before it gets to the end of what is open, a look is due, which tells
 * whether the next extents are to be opened. */
static void look_when_due(uint32_t frontier, uint32_t end) {
    uint32_t soon = (1u << extent_shift) / 4;
    if (huge_ahead.open && end + soon < huge_ahead.end) return;
    if (end - growth.looked < growth.wait) return;
    growth.last = frontier;
    store_relaxed(&huge_learn_due, true);
}

static bool look_allows(uint32_t frontier) {
    return growth.dense && frontier - growth.looked < (uint32_t)DENSE_EXTENTS << extent_shift &&
           (growth.lost + growth.lost_new) << page_shift <= load_relaxed(&span_totals.live) / LOST_SHARE;
}

/* Touches the extent at p for the first time, which reads as zero then as well. False: that took long. */
static bool extent_touch(void* p) {
    uint64_t before = os_thread_cpu_ns();
    store_relaxed((uint64_t*)p, (uint64_t)0);
    if (os_thread_cpu_ns() - before < huge_slow_ns) {
        if (++growth.fast >= SURE) growth.slow = 0;
        return true;
    }
    growth.pause = PAUSE_MIN << (growth.slow < PAUSE_DOUBLINGS ? growth.slow : PAUSE_DOUBLINGS);
    growth.slow++;
    growth.fast = growth.single = 0;
    return false;
}

static bool opening_is_timed(uint32_t count) {
    return count > 1 || growth.fast < SURE || growth.single++ % PROBE_EVERY == 0;
}

static bool growth_pauses(uint32_t count) {
    bool pauses = growth.pause != 0;
    growth.pause -= count < growth.pause ? count : growth.pause;
    return pauses;
}

static void* ahead_address(uint32_t index) {
    return (void*)(regions[0].base + ((uintptr_t)index << SLICE_SHIFT));
}

/* So many extents from slice `from` on are huge from their first touch on. */
static bool extents_open(uint32_t from, uint32_t count) {
    const struct region* r = &regions[0];
    void* p = ahead_address(from);
    if (!os_advise_huge(p, (size_t)count << (SLICE_SHIFT + extent_shift), OS_HUGE_ALWAYS)) {
        store_relaxed(&huge_off, true);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) extents[extent_of((uintptr_t)p) + i] = EXTENT_HUGE;
    if (!huge_ahead.open && r->frontier >= huge_ahead.end) huge_ahead.from = from;
    store_relaxed(&huge_ahead.end, from + (count << extent_shift));
    huge_ahead.open = true;
    growth.huge += count;
    add_relaxed(&huge_totals.opened, count);
    return true;
}

/* Of so many slices, whole extents, how many may be opened. */
static uint32_t slices_allowed(uint32_t slices) {
    uint64_t live = load_relaxed(&span_totals.live);
    uint64_t most =
        live / (slices <= (uint32_t)GROWTH_FEW << extent_shift ? GROWTH_SHARE : GROWTH_SHARE_MANY);
    uint64_t proven = growth.proven << page_shift;
    if ((uint64_t)slices << SLICE_SHIFT <= most) return slices;
    if (proven > PROVEN_MAX) proven = PROVEN_MAX;
    uint32_t some = (uint32_t)(proven >> (SLICE_SHIFT + extent_shift)) << extent_shift;
    return some < slices ? some : slices;
}

WEIR_FN void huge_grow(uint32_t count) {
    const struct region* r = &regions[0];
    uint32_t end = r->frontier + count;
    if (core_options.hugepages != HUGE_AUTO || core_options.release == 0) return;
    if (count > r->slices - r->frontier) return; /* another region serves */
    if (load_relaxed(&huge_off) || growth_pauses(count) || os_sandboxed() || !extents_start()) return;
    look_when_due(r->frontier, end);
    uint32_t each = 1u << extent_shift;
    uint64_t grows =
        count < each ? 0 : (uint64_t)count << SLICE_SHIFT; /* by little: not before it is so large */
    if (load_relaxed(&span_totals.live) + grows < HUGE_GROWTH_MIN) return;
    if ((huge_ahead.open && end <= huge_ahead.end) || !look_allows(r->frontier)) return;
    uint32_t shift = (uint32_t)(r->base >> SLICE_SHIFT) & (each - 1);
    uint32_t from = (uint32_t)align_up(r->frontier + shift, each) - shift;
    end = (uint32_t)align_up(end + shift, each) - shift;
    if (from < huge_ahead.end) from = huge_ahead.end;
    if (end <= from) return;
    end = from + slices_allowed(end - from);
    if (end == from || !region_reach(&regions[0], end)) return;
    uint32_t left = (end - from) >> extent_shift;
    uint32_t most = left / STEP_PARTS > STEP_MAX ? left / STEP_PARTS : STEP_MAX;
    bool timed = opening_is_timed(left);
    for (uint32_t step = 1; left != 0; step = step * 2 < most ? step * 2 : most) {
        uint32_t some = step < left ? step : left;
        if (!extents_open(from, some) || (timed && !extent_touch(ahead_address(from)))) break;
        from += some << extent_shift;
        left -= some;
    }
}

WEIR_FN void huge_seal(void) {
    if (weir_likely(!huge_ahead.open)) return;
    uint32_t from = huge_ahead.from;
    (void)os_advise_huge(ahead_address(from), (size_t)(huge_ahead.end - from) << SLICE_SHIFT, OS_HUGE_NEVER);
    huge_ahead.from = regions[0].frontier;
    huge_ahead.open = false;
}

WEIR_FN void huge_forget_ahead(void) {
    huge_seal();
    store_relaxed(&huge_ahead.end, 0u);
    growth.known[0] = growth.known[1] = 0; /* the heap may have been cut */
}

WEIR_FN void huge_settle(void) {
    static uint32_t frontier; /* Sync: the page lock; the last time */
    if (load_relaxed(&huge_ahead.end) == 0) return;
    os_lock_take(&page_lock);
    uint32_t now = regions[0].frontier;
    if (now == frontier) {
        struct os_range goes = {ahead_address(now), (size_t)(huge_ahead.end - now) << SLICE_SHIFT};
        void* split[2];
        if (huge_ahead.end > now) {
            if (huge_breaks(goes, split) != 0) os_split_huge(goes.start);
            (void)os_purge(goes.start, goes.bytes);
        }
        huge_forget_ahead();
    }
    frontier = now;
    os_lock_give(&page_lock);
}

/* ---- Making extents huge. */

/* Their clean holes are resident from now on. */
static void holes_fill(uint32_t extent) {
    struct slice* s = extent_slices(extent);
    for (uint32_t i = 0; i < 1u << extent_shift; i++, s++)
        if (kind_is_slab(load_acquire(&s->kind))) /* acquire: as in look_at_span */
            (void)__atomic_fetch_and(&slice_pages(s)->state, ~(PAGES_ALL << PAGES_CLEAN_SHIFT),
                                     __ATOMIC_RELAXED);
}

static void extents_set(uint32_t extent, uint32_t count, uint8_t state) {
    os_lock_take(&page_lock);
    for (uint32_t i = 0; i < count; i++) {
        extents[extent + i] = state;
        if (state == EXTENT_HUGE)
            holes_fill(extent + i);
        else
            (void)extent_mark(extent + i); /* what was kept meanwhile */
    }
    os_lock_give(&page_lock);
}

static bool extents_collapse(uint32_t extent, uint32_t count) {
    void* p = (void*)extent_address(extent);
    size_t bytes = (size_t)count << (extent_shift + SLICE_SHIFT);
    bool done = os_advise_huge(p, bytes, OS_HUGE_ALWAYS) && os_collapse(p, bytes);
    (void)os_advise_huge(p, bytes, OS_HUGE_NEVER);
    return done;
}

/* A run that is refused may be huge in part: each extent is asked for by itself then. */
static void extents_make_huge(uint32_t extent, uint32_t count) {
    extents_set(extent, count, EXTENT_HUGE);
    bool all = extents_collapse(extent, count);
    uint32_t made = all ? count : 0;
    for (uint32_t i = 0; i < count && !all; i++) {
        if (count > 1 && extents_collapse(extent + i, 1))
            made++;
        else
            extents_set(extent + i, 1, EXTENT_COOL);
    }
    add_relaxed(&huge_totals.made, made);
    add_relaxed(&huge_totals.refused, count - made);
    huge_refused = made != 0 ? 0 : huge_refused + 1;
    if (huge_refused == REFUSED_MAX) store_relaxed(&huge_off, true);
}

WEIR_FN void huge_window(uint64_t window_ns) {
    huge_settle();
    if (!huge_is_auto() || !extents_start()) return;
    huge_found.count = 0;
    look_around();
    uint64_t time = window_ns / TIME_SHARE < TIME_MAX_NS ? window_ns / TIME_SHARE : TIME_MAX_NS;
    uint64_t end = os_clock_ns() + time;
    for (uint32_t i = 0; i < huge_found.count; i++) {
        extents_make_huge(huge_found.run[i].extent, huge_found.run[i].length);
        if (os_clock_ns() >= end) break;
    }
}

/* ---- For the release pass. */

WEIR_FN bool huge_keeps(const struct slice* s) {
    if (extents == NULL || s->region != 0 || !kind_is_slab(load_relaxed(&s->kind))) return false;
    uint32_t extent = extent_of(slice_address(s));
    if (extents[extent] != EXTENT_HUGE) return false;
    const struct slice* first = extent_slices(extent);
    uint32_t most = extent_pages(HOLES_KEPT);
    uint32_t holes = 0;
    uint32_t count = extent_reached(extent);
    for (uint32_t i = 0; i < count && holes <= most; i++)
        if (kind_is_slab(load_acquire(&first[i].kind))) /* acquire: as in look_at_span */
            holes += (uint32_t)__builtin_popcount(hole_of(load_relaxed(&slice_pages(first + i)->state)));
    if (holes <= most) return true;
    (void)extent_mark(extent);
    extent_break(extent);
    return false;
}

/* A part of an extent goes, and so may what was kept in the rest. */
static bool extent_breaks(uintptr_t address) {
    uint32_t extent = extent_of(address);
    if (extents[extent] < EXTENT_BROKEN) return false;
    if (extents[extent] == EXTENT_HUGE) {
        (void)extent_mark(extent);
        extent_break(extent);
    }
    extents[extent] = EXTENT_COOL;
    return true;
}

WEIR_FN unsigned huge_breaks(struct os_range goes, void* split[2]) {
    uintptr_t start = (uintptr_t)goes.start;
    uintptr_t end = start + goes.bytes;
    size_t bytes = (size_t)SLICE_BYTES << extent_shift;
    unsigned count = 0;
    bool ahead = end > (uintptr_t)ahead_address(huge_ahead.from);
    if (ahead && start < (uintptr_t)ahead_address(huge_ahead.end)) huge_seal();
    if (extents == NULL || start - regions[0].base >= (uintptr_t)regions[0].slices << SLICE_SHIFT) return 0;
    known_forget(slice_at(start), slice_at(end - 1) + 1);
    bool whole = align_down(start, bytes) == start && start + bytes <= end;
    if (!whole && extent_breaks(start)) split[count++] = (void*)start;
    if (align_down(end, bytes) != end && extent_breaks(end - 1)) split[count++] = (void*)(end - 1);
    for (uintptr_t at = align_up(start, bytes); at + bytes <= end; at += bytes) {
        if (extents[extent_of(at)] == EXTENT_HUGE) extent_break(extent_of(at));
        extents[extent_of(at)] = 0;
    }
    return count;
}

WEIR_FN void huge_give_up(void) {
    if (extents == NULL) return;
    uint32_t end = extent_end();
    for (uint32_t extent = extent_first(); extent < end; extent++)
        if (extents[extent] == EXTENT_HUGE && extent_mark(extent)) extent_break(extent);
}
