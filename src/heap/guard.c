/* guard.c: see guard.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/guard.h"

#include "base/text.h"
#include "core/report.h"
#include "heap/trace.h"
#include "os/os.h"

enum { SLACK_MAX = 128, SLACK_BYTE = 0xb7 };
enum { TURN_SHIFT = 20 }; /* a cell of the ring: turn << TURN_SHIFT | slot */
static_assert(SMALL_CLASSES <= 64, "guard_due has a bit for each");

/* NONE: never used. FREEING: in the hands of the thread that frees it. */
enum slot_state { SLOT_NONE = 0, SLOT_LIVE, SLOT_FREEING, SLOT_FREED };

/*  base [guard page][ area 0 ... ][guard page][ area 1 ... ][guard page] ... [guard page]
 *                   [slack|block|slack]    accessible: the pages that the block touches, while it lives
 *
 *  Sync: atomic state; the rest belongs to who has the slot in hand, and to whoever holds the live block.
 * Readers that explain a fault take what they find. */
struct guard_slot {
    uint32_t state;
    uint32_t size;
    uintptr_t start;
    uint32_t opened; /* pages were made accessible after a report; relaxed atomic */
    bool apart;      /* its first page is a mapping of its own */
    struct trace allocated;
    struct trace freed;
};

WEIR_VAR struct guard_root guard_root;
static struct guard_figures guard_totals; /* Sync: relaxed atomics */

/* Sync: written once, before guard_root. */
static struct guard_slot* slot_records;
static uintptr_t* slot_frames; /* guard_frames for each allocation, and as many for each free */
static uint64_t* ring; /* freed slots, the oldest first; a cell that belongs to turn t holds t + 1. Atomics */
static uint32_t slot_count;
static uint32_t slots_apart; /* the first ones, which may keep mappings of their own */
static uint64_t live_most;   /* blocks at once: each is up to two mappings, which the heap needs too */
static size_t slot_stride;

static uint64_t ring_head; /* turns taken, and put; Sync: atomics: a cell is what counts, these follow it */
static uint64_t ring_tail;
static uint32_t slots_fresh; /* slots from here on were never used; Sync: relaxed atomic */

/* Lock-free, so that a fork in the middle of it, by a handler or beside it, leaves nothing half done: the
 * swap of the cell is the whole of it, and whoever finds the tail behind moves it on. A slot is in the ring
 * at most once, so that a turn's cell was taken before the next turn comes to it. */
static void ring_put(uint32_t slot) {
    for (;;) {
        uint64_t turn = load_acquire(&ring_tail);
        uint64_t* cell = &ring[turn % slot_count];
        uint64_t seen = load_acquire(cell);
        if (seen >> TURN_SHIFT > turn + 1) continue;
        bool put = seen >> TURN_SHIFT != turn + 1;
        if (put && !cas_acq_rel(cell, &seen, (turn + 1) << TURN_SHIFT | slot)) continue;
        (void)cas_acq_rel(&ring_tail, &turn, turn + 1);
        if (put) return;
    }
}

static struct guard_slot* ring_take(void) {
    for (;;) {
        uint64_t turn = load_acquire(&ring_head);
        uint64_t seen = load_acquire(&ring[turn % slot_count]); /* acquire: pairs with ring_put */
        if (seen >> TURN_SHIFT == turn + 1) {
            if (cas_acq_rel(&ring_head, &turn, turn + 1))
                return &slot_records[seen & ((1u << TURN_SHIFT) - 1)];
        } else if (load_acquire(&ring_head) == turn) {
            return NULL;
        }
    }
}

static struct guard_slot* guard_slot_take(void) {
    if (load_relaxed(&slots_fresh) < slot_count) {
        uint32_t fresh = add_relaxed(&slots_fresh, 1);
        if (fresh < slot_count) return &slot_records[fresh];
        store_relaxed(&slots_fresh, slot_count);
    }
    return ring_take();
}

static uintptr_t guard_slot_area(const struct guard_slot* s) {
    return guard_root.base + (uintptr_t)(s - slot_records) * slot_stride + os_page_bytes();
}
static uintptr_t guard_slot_end(const struct guard_slot* s) { return s->start + s->size; }

static bool guard_slot_is_live(const struct guard_slot* s) { return load_acquire(&s->state) == SLOT_LIVE; }
/* Live, or freed and not yet in use again. */
static bool guard_slot_is_known(const struct guard_slot* s) { return load_acquire(&s->state) >= SLOT_LIVE; }

/* The pages that the slot's block touches. */
static uintptr_t pages_start(const struct guard_slot* s) { return align_down(s->start, os_page_bytes()); }
static uintptr_t pages_end(const struct guard_slot* s) {
    return align_up(guard_slot_end(s), os_page_bytes());
}

/* ---- When */

static uint64_t random_next(struct heap* h) {
    uint64_t x = h->guard_seed;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return h->guard_seed = x;
}

/* Each allocation is as likely to be sampled as any other, whatever came before: distances are geometric, cut
 * from an exponential by its logarithm, here in 1/65536. Between powers of two log2(1 + f) is f + 0.3438 f (1
 * - f), with which the mean is exact. */
WEIR_FN WEIR_COLD void guard_draw(struct heap* h) {
    uint64_t rate = core_options.guard_rate;
    uint64_t r = random_next(h);
    unsigned zeros = (unsigned)__builtin_clzll(r | 1);
    uint64_t f = r << zeros << 1 >> 48;
    uint64_t log2 = ((uint64_t)(zeros + 1) << 16) - f - (f * (65536 - f) >> 16) * 22531 / 65536;
    uint64_t ln = log2 * 45426 >> 16;
    h->guard_left = rate == 1 ? 1 : 1 + ((2 * rate - 1) * ln >> 17);
}

WEIR_FN void guard_heap_reset(struct heap* h) {
    h->guard_due = 0;
    h->guard_left = UINT64_MAX;
    h->guard_inside = false;
    if (load_relaxed(&guard_root.bytes) == 0) return;
    h->guard_seed = os_random() | 1;
    guard_draw(h);
}

WEIR_FN WEIR_COLD uint32_t guard_lets_slow(struct heap* h, unsigned c, uint32_t count) {
    if ((h->guard_due >> c & 1) != 0) return 0; /* its turn has come already */
    if (count < h->guard_left) {
        h->guard_left -= count;
        return count;
    }
    uint32_t lets = (uint32_t)h->guard_left - 1;
    h->guard_due |= 1ull << c;
    guard_draw(h);
    return lets;
}

/* ---- Reports */

static void say_slot(const struct guard_slot* s, bool freed) {
    trace_say("allocated", &s->allocated);
    if (freed) trace_say("freed", &s->freed);
}

/* "<verb> N bytes behind the end of block P of S bytes", and its like; `call`: who found it, or NULL. */
static void say_place(const char* code, const char* verb, const struct guard_slot* s, uintptr_t address,
                      const char* call) {
    char what[256];
    struct text t = text_make(what, sizeof what - 1);
    text_string(&t, verb);
    bool before = address < s->start;
    bool inside = !before && address < guard_slot_end(s);
    text_string(&t, inside ? " at byte " : " ");
    text_number(&t, before ? s->start - address : address - (inside ? s->start : guard_slot_end(s)));
    text_string(&t, inside ? " of " : before ? " bytes before " : " bytes behind the end of ");
    text_string(&t, guard_slot_is_live(s) || call != NULL ? "block " : "freed block ");
    text_hex(&t, s->start);
    text_string(&t, " of ");
    text_number(&t, s->size);
    text_string(&t, call == NULL ? " bytes" : " bytes, found in ");
    if (call != NULL) text_string(&t, call);
    what[t.length] = '\0';
    core_report_say(code, what);
}

/* ---- Faults */

/* The slot whose block an address is nearest to, of those that it lies in or between; NULL: none was used. */
static struct guard_slot* guard_slot_near(uintptr_t address) {
    size_t offset = address - guard_root.base;
    size_t index = offset / slot_stride;
    if (offset % slot_stride >= os_page_bytes())
        return guard_slot_is_known(&slot_records[index]) ? &slot_records[index] : NULL;
    struct guard_slot* below =
        index != 0 && guard_slot_is_known(&slot_records[index - 1]) ? &slot_records[index - 1] : NULL;
    struct guard_slot* above =
        index < slot_count && guard_slot_is_known(&slot_records[index]) ? &slot_records[index] : NULL;
    if (below == NULL || above == NULL) return below != NULL ? below : above;
    return address - guard_slot_end(below) < above->start - address ? below : above;
}

/* on_error=report: the page opens, and the program goes on. Who takes a slot beside it closes it again. */
static bool page_open(uintptr_t address) {
    size_t page = os_page_bytes();
    size_t index = (address - guard_root.base) / slot_stride;
    if (index < slot_count) store_relaxed(&slot_records[index].opened, 1u);
    if (index != 0) store_relaxed(&slot_records[index - 1].opened, 1u);
    return os_commit((void*)align_down(address, page), page);
}

static bool guard_fault(const struct os_fault* fault) {
    static const char* const verbs[] = {"access", "read", "write"};
    const struct guard_slot* s = guard_slot_near(fault->address);
    if (s == NULL) return false;
    bool freed = !guard_slot_is_live(s);
    if (!freed && fault->address >= s->start && fault->address < guard_slot_end(s)) return false;
    if (core_options.on_error == 0 && os_fault_repeats(fault)) return false;
    const char* code = freed                       ? "guard-use-after-free"
                       : fault->address < s->start ? "guard-underflow"
                                                   : "guard-overflow";
    say_place(code, verbs[fault->access], s, fault->address, NULL);
    trace_say_fault("access", fault);
    say_slot(s, freed);
    return core_options.on_error != 0 && page_open(fault->address);
}

/* ---- Blocks */

/* What lies beside the block on its pages, as far as it is looked at. */
static uintptr_t slack_start(const struct guard_slot* s) {
    uintptr_t start = pages_start(s);
    return s->start - start > SLACK_MAX ? s->start - SLACK_MAX : start;
}
static uintptr_t slack_end(const struct guard_slot* s) {
    uintptr_t end = pages_end(s);
    return end - guard_slot_end(s) > SLACK_MAX ? guard_slot_end(s) + SLACK_MAX : end;
}

static void slack_fill(const struct guard_slot* s) {
    __builtin_memset((void*)slack_start(s), SLACK_BYTE, s->start - slack_start(s));
    __builtin_memset((void*)guard_slot_end(s), SLACK_BYTE, slack_end(s) - guard_slot_end(s));
}

static bool slack_is_whole(uintptr_t start, uintptr_t end) {
    const uint64_t whole = 0x0101010101010101u * SLACK_BYTE;
    uint64_t word;
    for (; end - start >= sizeof word; start += sizeof word) {
        __builtin_memcpy(&word, (const void*)start, sizeof word);
        if (word != whole) return false;
    }
    while (start < end && *(const unsigned char*)start == SLACK_BYTE) start++;
    return start == end;
}

/* The byte of the slack nearest to the block that was written to; 0: none. */
static uintptr_t slack_written(const struct guard_slot* s) {
    uintptr_t start = slack_start(s);
    uintptr_t end = slack_end(s);
    if (slack_is_whole(start, s->start) && slack_is_whole(guard_slot_end(s), end)) return 0;
    for (uintptr_t a = guard_slot_end(s); a < end; a++)
        if (*(const unsigned char*)a != SLACK_BYTE) return a;
    for (uintptr_t a = s->start; a > start; a--)
        if (*(const unsigned char*)(a - 1) != SLACK_BYTE) return a - 1;
    return 0;
}

/* On the area's first pages: at their end, where what is behind faults at once, or at their start, where what
 * is before does. False: there is no such place in an area. */
static bool guard_slot_place(struct heap* h, struct guard_slot* s, size_t size, size_t align) {
    size_t page = os_page_bytes();
    uintptr_t area = guard_slot_area(s);
    bool right = (random_next(h) >> 32 & 1) != 0;
    s->size = (uint32_t)size;
    s->start = align_up(area, align);
    if (right && align <= page) s->start += align_down(align_up(size, page) - size, align);
    return guard_slot_end(s) <= area + slot_stride - page;
}

/* What a report left open beside the block's pages, or the kernel would not close. */
static bool guard_slot_cover(struct guard_slot* s) {
    char* start = (char*)(guard_slot_area(s) - os_page_bytes());
    size_t bytes = slot_stride + os_page_bytes();
    if (!os_cover(start, bytes, false)) return false;
    s->apart = false;
    store_relaxed(&s->opened, 0u);
    return true;
}

static bool guard_slot_make(struct heap* h, struct guard_slot* s, size_t size, size_t align) {
    if (!guard_slot_place(h, s, size, align)) return false;
    if (load_relaxed(&s->opened) != 0 && !guard_slot_cover(s)) return false;
    if (!s->apart && (uint32_t)(s - slot_records) < slots_apart)
        s->apart = os_part((void*)guard_slot_area(s), os_page_bytes());
    if (!os_commit((void*)pages_start(s), pages_end(s) - pages_start(s))) return false;
    slack_fill(s);
    s->allocated.frames = slot_frames + (size_t)(s - slot_records) * 2 * core_options.guard_frames;
    s->freed.frames = s->allocated.frames + core_options.guard_frames;
    trace_take(&s->allocated);
    return true;
}

WEIR_FN WEIR_COLD void* guard_alloc(struct heap* h, unsigned c, size_t size, size_t align) {
    guard_forget(h, c);
    bool nested = h->guard_inside; /* the unwinder allocates */
    h->guard_inside = true;
    bool may = !nested && load_relaxed(&guard_totals.live_blocks) < live_most;
    struct guard_slot* s = may ? guard_slot_take() : NULL;
    if (size == 0) size = 1;
    bool made = s != NULL && guard_slot_make(h, s, size, align < GRANULE ? GRANULE : align);
    if (made) {
        if (load_relaxed(&s->state) == SLOT_FREED) sub_relaxed(&guard_totals.freed_blocks, 1);
        store_release(&s->state, (uint32_t)SLOT_LIVE); /* publishes the slot to guard_fault */
        add_relaxed(&guard_totals.live_blocks, 1);
        add_relaxed(&guard_totals.live_bytes, size);
        add_relaxed(&guard_totals.allocs, 1);
        store_relaxed(&h->handed_out, h->handed_out + 1); /* past the bin, which counts what it is given */
    } else {
        if (s != NULL) ring_put((uint32_t)(s - slot_records));
        if (h->guard_left < 2) h->guard_left = 2; /* the bin has a block for this allocation at least */
    }
    h->guard_inside = nested;
    return made ? (void*)s->start : NULL;
}

/* The slot whose block p is or was; NULL after a report. */
static struct guard_slot* guard_slot_of(const void* p, const char* call) {
    size_t offset = (uintptr_t)p - guard_root.base;
    struct guard_slot* s =
        offset % slot_stride < os_page_bytes() ? NULL : &slot_records[offset / slot_stride];
    bool known = s != NULL && guard_slot_is_known(s);
    if (known && s->start == (uintptr_t)p) return s;
    core_report_say_pointer("invalid-free", REPORT_INTERIOR, p, call);
    if (known) say_slot(s, !guard_slot_is_live(s));
    core_report_end();
    return NULL;
}

static void freed_report(const struct guard_slot* s, const char* call) {
    uintptr_t frames[TRACE_FRAMES_MAX];
    struct trace now = {.frames = frames};
    trace_take(&now);
    core_report_say_pointer("double-free", REPORT_FREED, (const void*)s->start, call);
    trace_say("called", &now);
    say_slot(s, true);
    core_report_end();
}

static void slack_report(const struct guard_slot* s, const char* call) {
    uintptr_t written = slack_written(s);
    if (written == 0) return;
    say_place(written < s->start ? "guard-underflow" : "guard-overflow", "written", s, written, call);
    say_slot(s, true);
    core_report_end();
}

/* The first page keeps its memory, so that the next block there costs no fault. Pages that the kernel will
 * not close go without theirs, and are closed when the slot is used again. */
static void guard_slot_close(struct guard_slot* s) {
    uintptr_t start = pages_start(s);
    uintptr_t end = pages_end(s);
    uintptr_t kept = guard_slot_area(s) + os_page_bytes();
    bool closed = os_forbid((void*)start, end - start);
    if (closed && start < kept) start = kept;
    if (start < end) (void)os_purge((void*)start, end - start);
    if (!closed) store_relaxed(&s->opened, 1u);
}

WEIR_FN WEIR_COLD void guard_free(void* p, const char* call) {
    struct guard_slot* s = guard_slot_of(p, call);
    uint32_t live = SLOT_LIVE;
    if (s == NULL) return;
    if (!cas_acq_rel(&s->state, &live, (uint32_t)SLOT_FREEING)) {
        freed_report(s, call);
        return;
    }
    trace_take(&s->freed);
    slack_report(s, call);
    sub_relaxed(&guard_totals.live_blocks, 1);
    sub_relaxed(&guard_totals.live_bytes, s->size);
    add_relaxed(&guard_totals.freed_blocks, 1);
    guard_slot_close(s);
    store_release(&s->state, (uint32_t)SLOT_FREED);
    ring_put((uint32_t)(s - slot_records));
}

WEIR_FN WEIR_COLD size_t guard_usable(const void* p, const char* call) {
    const struct guard_slot* s = guard_slot_of(p, call);
    if (s == NULL) return 0;
    if (guard_slot_is_live(s)) return s->size;
    freed_report(s, call);
    return 0;
}

WEIR_FN struct guard_figures guard_figures_get(void) {
    return (struct guard_figures){.live_blocks = load_relaxed(&guard_totals.live_blocks),
                                  .live_bytes = load_relaxed(&guard_totals.live_bytes),
                                  .allocs = load_relaxed(&guard_totals.allocs),
                                  .freed_blocks = load_relaxed(&guard_totals.freed_blocks)};
}

/* ---- Start */

/* Records and areas for `count` slots in one piece of address space, nothing of it touched. */
static bool slots_reserve(uint32_t count) {
    size_t page = os_page_bytes();
    size_t records = align_up(count * sizeof(struct guard_slot), page);
    size_t cells = align_up(count * sizeof(uint64_t), page);
    size_t frames = align_up(count * 2 * core_options.guard_frames * sizeof(uintptr_t), page);
    size_t areas = count * slot_stride + page;
    size_t own = records + cells + frames;
    size_t bytes = own + areas;
    uint64_t limit = os_address_space_limit();
    if (limit != UINT64_MAX && bytes > limit / 8) return false;
    char* p = os_reserve(bytes, page);
    if (p == NULL) return false;
    if (!os_commit(p, own)) {
        os_unmap(p, bytes);
        return false;
    }
    slot_records = (struct guard_slot*)(void*)p;
    ring = (uint64_t*)(void*)(p + records);
    slot_frames = (uintptr_t*)(void*)(p + records + cells);
    slot_count = count;
    uint64_t mappings = os_mappings_max();
    slots_apart = (uint32_t)(mappings / 8); /* two mappings each: a quarter of what there may be */
    live_most = mappings == 0 ? UINT64_MAX : mappings / 8; /* and as much again */
    store_relaxed(&guard_root.base, (uintptr_t)p + own);
    store_relaxed(&guard_root.bytes, areas);
    return true;
}

WEIR_FN void guard_start(void) {
    if (core_options.guard_rate == 0) return;
    slot_stride = align_up(GUARD_BLOCK_MAX, os_page_bytes()) + os_page_bytes();
    os_stack_start();
    uint32_t count = (uint32_t)core_options.guard_slots;
    while (count != 0 && !slots_reserve(count)) count /= 2;
    if (count == 0) return;
    (void)os_fault_watch((const void*)guard_root.base, guard_root.bytes, guard_fault);
    struct heap* h = heap_self();
    if (h == &heap_empty) return;
    heap_collect(); /* what is in bins was put there unasked */
    guard_heap_reset(h);
}
