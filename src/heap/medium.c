/* medium.c: see medium.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/medium.h"

#include "core/options.h"
#include "core/report.h"
#include "heap/depot.h"
#include "heap/full.h"
#include "heap/large.h"
#include "heap/orphan.h"
#include "heap/refill.h"
#include "heap/registry.h"
#include "heap/retag.h"
#include "heap/visit.h"
#include "os/os.h"
#include "page/release.h"
#include "page/span.h"

/* The thread has so many blocks of the class that slabs serve it better, or has a slab that serves it. */
static bool medium_is_dense(struct heap* h, unsigned c) {
    uint64_t most = core_options.sparse_max;
    if (most == 0 || full_is_on()) return true;
    if (c >= SLAB_CLASSES) return false;
    if (h->active[c] != NULL || load_relaxed(&h->available[c]) != NULL) return true;
    return size_classes[c].bytes <= MEDIUM_DENSE_MAX &&
           load_relaxed(&h->medium_out[c - SMALL_CLASSES]) >= most;
}

/* A visitor has been here, or nobody used what is kept so far. What is kept from now on is told: somebody is
 * to come for it. */
static WEIR_COLD void gate_open(struct heap* h, unsigned gate) {
    enum { least = 65536 };
    os_lock_take(&h->lock); /* no visitor takes anything just now */
    store_relaxed(&h->gates[gate].state, (uint32_t)KEPT_OPEN);
    os_lock_give(&h->lock);
    visit_owed(h, least);
}

WEIR_FN uint32_t gate_enter_keep(struct heap* h, unsigned gate) {
    uint32_t inside;
    while (!gate_enter(&h->gates[gate], &inside)) gate_open(h, gate);
    return inside;
}

WEIR_FN uint32_t gate_enter_count(struct heap* h, unsigned gate) {
    struct gate* g = &h->gates[gate];
    if (load_acquire(&g->state) != KEPT_TAKEN) return gate_enter_keep(h, gate); /* pairs with kept_take */
    uint32_t inside = g->inside;
    store_relaxed(&g->inside, 1u);
    return inside;
}

/* So many blocks are the thread's from now on; so many, of so many bytes in all, are no more. */
static WEIR_NOINLINE void medium_came(struct heap* h, unsigned m, unsigned count) {
    if (m < LONG_CLASS && h->medium_out[m] <= UINT16_MAX - count)
        store_relaxed(&h->medium_out[m], (uint16_t)(h->medium_out[m] + count));
    if (m - LONGER_CLASS < LONG_CLASS - LONGER_CLASS && h->medium_out[m] > h->medium_many[m - LONGER_CLASS])
        h->medium_many[m - LONGER_CLASS] =
            h->medium_out[m] < UINT8_MAX ? (uint8_t)h->medium_out[m] : UINT8_MAX;
    store_relaxed(&h->medium_out_bytes, h->medium_out_bytes + count * medium_bytes(m));
}
static WEIR_NOINLINE void medium_gone(struct heap* h, unsigned m, unsigned count, size_t bytes) {
    if (m < LONG_CLASS) {
        uint16_t out = h->medium_out[m];
        store_relaxed(&h->medium_out[m], (uint16_t)(out < count ? 0 : out - count));
    }
    uint64_t all = h->medium_out_bytes;
    store_relaxed(&h->medium_out_bytes, all < bytes ? 0 : all - bytes);
}

/* Of what it took and did not give back: what the program has. */
static uint64_t medium_live_bytes(const struct heap* h) {
    ptrdiff_t kept = medium_kept_bytes(h);
    if (kept < 0) kept = 0; /* after a fork in the middle of a call */
    return h->medium_out_bytes > (uint64_t)kept ? h->medium_out_bytes - (uint64_t)kept : 0;
}

/* By how much that goes down and up again. */
static void medium_swing_learn(struct heap* h) {
    uint64_t live = medium_live_bytes(h);
    uint64_t back = live < h->medium_most ? live : h->medium_most;
    if (back > h->medium_least && back - h->medium_least > h->medium_swing)
        h->medium_swing = back - h->medium_least;
    if (live > h->medium_most) h->medium_most = h->medium_least = live;
    if (live < h->medium_least) h->medium_least = live;
}

/* Whether there is no helper, so that nobody comes for what threads keep. */
static bool nobody_comes(void) { return load_relaxed(&release_state) == RELEASE_ALONE; }

/* Whether what the thread's blocks take goes down and up again by much, and heaps are few, and looked at. */
static bool medium_swings(const struct heap* h) {
    enum { much = 4 };
    if (nobody_comes()) return false;
    return h->medium_swing != 0 && h->medium_swing >= h->medium_most / much && !heaps_are_many();
}

/* What the thread may keep: a part of what it took from chunks, since that is what comes and goes, and a
 * block as long as those that it frees; and of what goes down and up again by much, a share for each thread.
 * Of what comes and goes so much for the first HEAPS_MANY heaps at the most, which more of them share down to
 * a least each: what sleeping ones keep holds whole chunks. Less where there is no helper: nobody comes for
 * it, and threads do the helper's work only where they do not find what they kept. */
static ptrdiff_t medium_kept_max(const struct heap* h) {
    enum { least = 65536, parts = 4, steady = 3 << 20, steady_least = 524288, alone_most = 262144 };
    uint64_t most = core_options.thread_kept_max;
    uint64_t heaps = load_relaxed(&heap_totals.heaps_live); /* none, where this one is parked */
    uint64_t wanted = least + h->medium_longest + h->medium_out_bytes / parts;
    uint64_t steady_most = heaps > HEAPS_MANY ? HEAPS_MANY * (uint64_t)steady / heaps : steady;
    if (steady_most < steady_least) steady_most = steady_least;
    if (nobody_comes()) steady_most = alone_most;
    if (wanted > steady_most) wanted = steady_most;
    if (medium_swings(h)) {
        uint64_t share = heaps == 0 ? most : most / heaps;
        wanted += h->medium_swing < share ? h->medium_swing : share;
    }
    return (ptrdiff_t)(wanted < most ? wanted : most);
}

/* It may have changed. */
static WEIR_NOINLINE void kept_bound_learn(struct heap* h) {
    ptrdiff_t most = medium_kept_max(h);
    h->kept_medium_room += most - h->kept_medium_max;
    h->kept_medium_max = most;
}

/* Kept blocks of class m are left for others, or `own` ones for the thread itself, if there is a place. */
static bool depot_leave(struct heap* h, unsigned m, void* const* blocks, unsigned count, bool own,
                        bool* some) {
    enum { kept_least = 65536, own_least = 2 << 20 };
    bool tell;
    if (core_options.thread_kept_max < (own ? own_least : kept_least)) return false; /* who wants little */
    if (!own && h != &heap_empty && load_relaxed(&heap_totals.heaps_live) == 1)
        return false; /* there is nobody */
    if (depot_count_of(m) == 0 || !depot_put(m, blocks, count, own, &tell)) return false;
    if (tell) visit_owed(h, count * medium_bytes(m));
    *some = tell;
    return true;
}

/* Of a block that lies in a chunk. */
static uint16_t* block_known(const void* p) {
    return &load_acquire(&slice_find(p)->blocks)[(uintptr_t)p % SLICE_BYTES / GROUP_BYTES];
}

/* So many blocks of so many bytes may wait in the ring, more than do. A handler's fork may have its child go
 * on in between: while a ring has ends and no limit yet, no block is short enough for it. */
static void kept_limit_set(struct kept_medium* k, unsigned row, unsigned places, uint32_t bytes) {
    if (load_relaxed(&k->ends) == 0) {
        const uint64_t first = (row + 1) * sizeof(struct kept_ring);
        store_relaxed(&k->bytes, UINT32_MAX);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        store_relaxed(&k->ends, first << 32 | first);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
    }
    store_relaxed(&k->limit, (uint32_t)kept_place_plus(k->from, (int)places));
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_relaxed(&k->bytes, bytes);
}

/* Of kept blocks of class m that nobody has, the last ones are the thread's, as far as there is room. Returns
 * how many are not. Inside the gate. */
static unsigned medium_keep_some(struct heap* h, unsigned m, const struct kept_block* blocks,
                                 unsigned count) {
    struct kept_medium* k = &h->kept_medium[m];
    ptrdiff_t bytes = (ptrdiff_t)medium_bytes(m);
    kept_bound_learn(h);
    const unsigned places = medium_kept_count_max(h, m);
    if (medium_kept_count(k) >= places) return count; /* or the ring would have no limit any more */
    kept_limit_set(k, m, places, (uint32_t)bytes);
    unsigned left = count;
    uintptr_t to = k->to;
    ptrdiff_t room = h->kept_medium_room;
    for (; left != 0 && to != k->limit && room >= bytes; to = kept_place_plus(to, 1)) {
        left--;
        *medium_kept_at(h, to) = blocks[left].block;
        *medium_known_at(h, to) = blocks[left].known;
        room -= bytes;
    }
    medium_came(h, m, count - left);
    h->kept_medium_room = room;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_release(&k->to, (uint32_t)to); /* as in medium_keep */
    return left;
}

/* Of class m the thread keeps none, and another one, or itself, left some: the first one is the program's,
 * the others are kept as far as there is room, and else go back. NULL: there are none. */
static WEIR_NOINLINE void* medium_from_depot(struct heap* h, unsigned m, size_t align) {
    enum { takes = 2 };
    void* blocks[takes * DEPOT_BLOCKS];
    struct kept_block more[takes * DEPOT_BLOCKS];
    const unsigned together = align > UNIT_BYTES ? 0 : depot_count_of(m);
    unsigned count = together == 0 ? 0 : depot_take(m, blocks);
    if (count == 0) return NULL;
    const bool swings = medium_swings(h);
    const ptrdiff_t both = (ptrdiff_t)(takes * together * medium_bytes(m));
    if (swings && load_relaxed(&h->kept_medium_room) >= both) count += depot_take(m, blocks + count);
    for (unsigned i = 1; i < count; i++) more[i] = (struct kept_block){blocks[i], block_known(blocks[i])};
    uint32_t inside = gate_enter_keep(h, GATE_MEDIUM);
    medium_came(h, m, 1);
    const unsigned left = medium_keep_some(h, m, more + 1, count - 1);
    medium_leave(h, inside);
    for (unsigned i = 0, goes; i < left; i += goes) {
        bool some; /* the caller pokes */
        goes = left - i < together ? left - i : together;
        if (!depot_leave(h, m, blocks + 1 + i, goes, swings, &some)) (void)arena_free(blocks + 1 + i, goes);
    }
    owner_clear(block_known(blocks[0]), BLOCK_KEPT | BLOCK_FRESH);
    store_relaxed(&h->handed_out, h->handed_out + 1);
    return blocks[0];
}

/* What came along is the thread's; where there is less room since, as another thread came, it goes back. */
static WEIR_NOINLINE void more_keep(struct heap* h, unsigned m, const struct arena_more* more) {
    uint32_t inside = gate_enter_keep(h, GATE_MEDIUM);
    unsigned left = medium_keep_some(h, m, more->blocks, more->count);
    medium_leave(h, inside);
    void* back[ARENA_MORE];
    for (unsigned i = 0; i < left; i++) back[i] = more->blocks[i].block;
    if (left != 0) (void)arena_free(back, left);
}

/* Blocks on their way back to their chunks, so that a lock is taken for many. */
struct outgoing {
    unsigned count;
    bool some; /* there is something for a pass */
    void* blocks[64];
};

static void outgoing_start(struct outgoing* o) {
    o->count = 0;
    o->some = false;
}

static void outgoing_send(struct outgoing* o) {
    if (o->count != 0) o->some |= arena_free(o->blocks, o->count);
    o->count = 0;
}

/* The `count` oldest blocks of a ring are the thread's no more. */
static void outgoing_put(struct outgoing* o, struct heap* h, unsigned row, unsigned count) {
    struct kept_medium* k = &h->kept_medium[row];
    if (count == 0) return; /* a visitor writes nothing then: the owner may have gone on */
    if (o->count + count > sizeof o->blocks / sizeof o->blocks[0]) outgoing_send(o);
    for (unsigned i = 0; i < count; i++) {
        o->blocks[o->count++] = *medium_kept_at(h, k->from);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        store_relaxed(&k->from, (uint32_t)kept_place_plus(k->from, 1));
        store_relaxed(&k->limit, (uint32_t)kept_place_plus(k->limit, 1));
    }
    size_t bytes = (size_t)count * k->bytes;
    medium_gone(h, row, count, bytes);
    store_relaxed(&h->kept_medium_room, h->kept_medium_room + (ptrdiff_t)bytes);
}

/* How many may come along with one of class m. Of those that wait as many as have room, if the thread has
 * several of the class; where its use goes down and up again also if it has few just now, and more of them:
 * mostly it had them before. Of new ones a part of what it has, and only such as have memory where more than
 * a little is kept: others lie in the order in which they are taken, so that what is freed in that order is
 * free together. Outside the gate: a visitor may be taking what is kept. */
enum { MORE_BYTES = 32768, MORE_SWING_BYTES = 131072, MORE_BLOCKS = 8, MORE_PART = 8 };
static unsigned more_count(size_t bytes, size_t most_bytes, unsigned most) {
    return bytes * most <= most_bytes ? most : (unsigned)(most_bytes / bytes);
}
static WEIR_NOINLINE struct arena_more* medium_more(const struct heap* h, unsigned m,
                                                    struct arena_more* more) {
    const size_t bytes = medium_bytes(m);
    const ptrdiff_t room = load_relaxed(&h->kept_medium_room);
    const bool swings = room >= MORE_SWING_BYTES && medium_swings(h);
    const size_t most_bytes = swings ? MORE_SWING_BYTES : MORE_BYTES;
    more->count = 0;
    if (bytes > most_bytes / 2 || room < MORE_BYTES) return NULL;
    more->most = more_count(bytes, most_bytes, swings ? ARENA_MORE : MORE_BLOCKS);
    const unsigned fresh_most = bytes > MORE_BYTES / 2 ? 0 : more_count(bytes, MORE_BYTES, MORE_BLOCKS);
    more->fresh = load_relaxed(&h->medium_out[m]) / MORE_PART;
    if (more->fresh > fresh_most) more->fresh = fresh_most;
    more->resident = medium_kept_bytes(h) > MORE_BYTES + (ptrdiff_t)h->medium_longest;
    return more;
}

/* What may be kept from now on, in bytes and places. Not a visitor's business, which knows nothing of the
 * owner's use. */
static void kept_bounds_learn(struct heap* h) {
    kept_bound_learn(h);
    for (unsigned row = 0; row < KEPT_RINGS; row++) {
        struct kept_medium* k = &h->kept_medium[row];
        const unsigned places = medium_kept_count_max(h, row);
        if (load_relaxed(&k->limit) != 0 && medium_kept_count(k) < places) /* 0: none was kept yet */
            kept_limit_set(k, row, places, k->bytes);
    }
}

WEIR_FN void medium_drop(struct heap* h, unsigned parts) {
    unsigned left = 0;
    struct outgoing o;
    outgoing_start(&o);
    uint32_t inside = gate_enter_count(h, GATE_MEDIUM);
    for (unsigned row = 0; row < KEPT_RINGS; row++) {
        const unsigned count = medium_kept_count(&h->kept_medium[row]);
        const unsigned goes = (count + parts - 1) / parts;
        outgoing_put(&o, h, row, goes);
        left += count - goes;
    }
    if (left == 0)
        store_relaxed(&h->kept_medium_room, h->kept_medium_max); /* a fork may have had it otherwise */
    kept_bounds_learn(h);
    medium_leave(h, inside);
    outgoing_send(&o);
}

/* A few blocks that a thread keeps, one here and one there, hold chunks of which nothing else is in use.
 * Asked for by so many slabs before it is looked again, and by twice as many each time that nothing came of
 * it. Sync: relaxed; what two threads make of it at once does not matter. */
enum { YIELD_EVERY = 16, YIELD_DOUBLINGS = 6 };
static uint32_t yield_wait, yield_failed;
WEIR_FN void medium_yield(struct heap* h, uint64_t least, uint64_t enough) {
    uint32_t wait = load_relaxed(&yield_wait);
    if (wait != 0) {
        store_relaxed(&yield_wait, wait - 1);
        return;
    }
    uint32_t failed = load_relaxed(&yield_failed);
    store_relaxed(&yield_wait, (uint32_t)YIELD_EVERY << failed);
    if (arena_free_bytes() <= least) return;
    uint64_t before = load_relaxed(&span_totals.dirty);
    medium_drop(h, 1);
    arena_yield(enough);
    bool gone = load_relaxed(&span_totals.dirty) > before;
    store_relaxed(&yield_failed, gone ? 0 : failed + (failed < YIELD_DOUBLINGS));
    if (gone) store_relaxed(&yield_wait, 0u);
}

/* Of what is kept so much may stay while memory is added for the thread; a part of what it has only where
 * heaps are few. Outside the gate. */
enum { KEPT_GROWS = 65536 };
static ptrdiff_t medium_kept_grows(const struct heap* h) {
    enum { parts = 32 };
    const uint64_t part = heaps_are_many() ? 0 : load_relaxed(&h->medium_out_bytes) / parts;
    return KEPT_GROWS + (ptrdiff_t)h->medium_longest + (ptrdiff_t)part;
}

/* From what has memory, if the thread keeps more than may stay, or threads left some for themselves; where
 * there is none, some of that goes, and may serve. */
static WEIR_NOINLINE void* medium_from_resident(struct heap* h, unsigned m, size_t align,
                                                struct arena_more* more) {
    enum { parts = 4, rounds = 64 }; /* all of it would mostly come again, block by block */
    const bool keeps = medium_kept_bytes(h) > medium_kept_grows(h);
    if (!keeps && !load_relaxed(&depot_is_filled)) return NULL;
    void* p = arena_alloc_resident(&h->arena, m, align, more);
    for (unsigned i = 0; p == NULL && i < rounds && depot_empty_some(); i++)
        p = arena_alloc_resident(&h->arena, m, align, more);
    if (p == NULL && keeps) medium_drop(h, parts);
    return p;
}

/* What would need more memory gets some of what the thread keeps first, if that is more than may stay.
 * `zero`: where memory is tagged, the block is to be zero. */
static void* medium_from_arena(struct heap* h, unsigned m, size_t align, bool zero) {
    struct arena_more room;
    struct arena_more* more = NULL;
    void* p = NULL;
    if (weir_unlikely(load_relaxed(&depot_is_used)) && (p = medium_from_depot(h, m, align)) != NULL) return p;
    if (m < LONG_CLASS && (load_relaxed(&h->medium_out[m]) >= MORE_PART || medium_swings(h)))
        more = medium_more(h, m, &room);
    if ((medium_kept_bytes(h) > KEPT_GROWS || load_relaxed(&depot_is_filled)) && !zero)
        p = medium_from_resident(h, m, align, more);
    if (p == NULL)
        p = zero ? arena_alloc_zeroed(&h->arena, m, align) : arena_alloc(&h->arena, m, align, more);
    if (p == NULL) return NULL;
    if (zero) h->medium_zeroed = p;
    uint32_t inside = gate_enter_count(h, GATE_MEDIUM);
    medium_came(h, m, 1);
    if (h->kept_medium_room < MORE_BYTES) kept_bound_learn(h); /* it may never have freed one */
    medium_swing_learn(h);
    medium_leave(h, inside);
    if (more != NULL && more->count != 0) more_keep(h, m, more);
    store_relaxed(&h->handed_out, h->handed_out + 1);
    return p;
}

static WEIR_NOINLINE void medium_chores(struct heap* h) {
    heap_enter(h);
    refill_chores(h);
    heap_leave(h);
}

WEIR_FN void* medium_alloc_shared(struct heap* h, unsigned c, size_t align) {
    unsigned m = c - SMALL_CLASSES;
    if (medium_is_dense(h, c)) return NULL;
    bool zero = h->medium_zero;
    h->medium_zero = false; /* what the hook allocates is another matter */
    store_relaxed(&h->slow_calls, h->slow_calls + 1);
    if (weir_unlikely(heap_tick_hook != NULL)) heap_tick_hook();
    if (weir_unlikely(chores_are_due(h))) medium_chores(h);
    void* p = medium_from_arena(h, m, align, zero);
    release_poke();
    return p;
}

WEIR_FN void* medium_alloc(struct heap* h, unsigned c, size_t align) {
    unsigned m = c - SMALL_CLASSES;
    unsigned row = medium_ring(m);
    if (weir_unlikely(load_relaxed(&h->gates[GATE_MEDIUM].state) == KEPT_ASKED)) gate_open(h, GATE_MEDIUM);
    if (medium_kept_count(&h->kept_medium[row]) != 0 &&
        ((uintptr_t)*medium_kept_at(h, medium_youngest(h, row)) & (align - 1)) == 0) {
        void* kept = row == KEPT_LONG ? medium_unkeep_long(h, m) : medium_unkeep(h, row);
        if (kept != NULL) return kept;
    }
    return medium_alloc_shared(h, c, align);
}

WEIR_FN void* medium_alloc_last(struct heap* h, unsigned c, size_t align) {
    return full_is_on() ? NULL : medium_from_arena(h, c - SMALL_CLASSES, align, false);
}

WEIR_FN void* medium_alloc_zeroable(size_t size, bool* zeroed) {
    struct heap* h = heap_self();
    if (h == &heap_empty) return heap_alloc_slow(size);
    h->medium_zeroed = NULL;
    h->medium_zero = true;
    void* p = heap_alloc_slow(size);
    h->medium_zero = false;
    *zeroed = p == h->medium_zeroed;
    return p;
}

static WEIR_COLD void medium_misuse(const struct slice* s, const void* p, const uint16_t* block,
                                    const char* call) {
    if (block != NULL || arena_is_free(s, p))
        core_report("double-free", REPORT_FREED, p, call);
    else
        core_report("invalid-free", REPORT_INTERIOR, p, call);
}

/* The oldest of the `count` blocks of a ring go to others, or back: of a class of which the thread has none
 * of its own as many as go together; where its use goes down and up again half of them, as many as go
 * together at a time. Returns how many. */
static unsigned ring_leave(struct outgoing* o, struct heap* h, unsigned row, unsigned count) {
    const unsigned together = depot_count_of(row);
    const bool own = together != 0 && load_relaxed(&h->medium_out[row]) != 0;
    if (together == 0 || (own && !medium_swings(h))) return 0;
    const unsigned most = own ? count / 2 / together * together : count < together ? count : together;
    for (unsigned left = 0; left < most; left += together) {
        const unsigned goes = most < together ? most : together;
        if (o->count + goes > sizeof o->blocks / sizeof o->blocks[0]) outgoing_send(o);
        const unsigned before = o->count;
        outgoing_put(o, h, row, goes);
        bool some = false;
        if (depot_leave(h, row, &o->blocks[before], goes, own, &some)) o->count = before;
        o->some |= some;
    }
    return most;
}

/* Have room for a block of so many bytes in the ring, where so many may wait: of what is there the older half
 * goes, of all, ring by ring in turn, until a quarter of the room is free. */
static bool medium_make_room(struct heap* h, unsigned row, unsigned places, ptrdiff_t bytes) {
    enum { rounds = 6 };
    static_assert(KEPT_RING <= 1 << (rounds - 1), "halves of a full ring, until none is left, but once");
    struct outgoing o;
    outgoing_start(&o);
    unsigned count = medium_kept_count(&h->kept_medium[row]);
    count -= ring_leave(&o, h, row, count);
    if (count >= places) outgoing_put(&o, h, row, count - places / 2);
    if (h->kept_medium_room < bytes) {
        ptrdiff_t enough = h->kept_medium_max / 4;
        if (enough < bytes) enough = bytes;
        for (unsigned i = 0; h->kept_medium_room < enough && i < rounds * KEPT_RINGS; i++) {
            h->medium_hand = (uint8_t)((h->medium_hand + 1) % KEPT_RINGS);
            count = medium_kept_count(&h->kept_medium[h->medium_hand]);
            unsigned left = ring_leave(&o, h, h->medium_hand, count);
            if (left != 0 && i < KEPT_RINGS) continue;
            outgoing_put(&o, h, h->medium_hand, (count - left + 1) / 2);
        }
        if (h->kept_medium_room < enough)
            h->kept_medium_room = h->kept_medium_max; /* none is left: see outgoing_put_all */
    }
    outgoing_send(&o);
    return o.some;
}

/* Block p is in nobody's hands but the caller's: another tag. NULL after a report. */
static void* medium_next(struct slice* s, void* p, const char* call) {
    if (!retag_allows(p, call)) return NULL;
    void* tagged = arena_retag(s, p);
    if (weir_unlikely(tagged == NULL)) core_report("double-free", REPORT_FREED, p, call);
    return tagged;
}

/* Block p is what heap h, the caller's, keeps, or goes back. True: there is something for a pass. *went: of
 * what is kept, or of p, something went to its chunk. */
static bool medium_free_own(struct heap* h, unsigned m, void* p, uint16_t* block, bool* went) {
    bool some = false;
    uint32_t bytes = (uint32_t)medium_bytes(m);
    unsigned row = medium_ring(m);
    struct kept_medium* k = &h->kept_medium[row];
    uint32_t inside = gate_enter_keep(h, GATE_MEDIUM);
    if (row == KEPT_LONG && bytes > h->medium_longest) h->medium_longest = bytes;
    medium_swing_learn(h);
    kept_bound_learn(h);
    if (bytes <= h->kept_medium_max) {
        unsigned places = medium_kept_count_max(h, row);
        *went = medium_kept_count(k) >= places || h->kept_medium_room < bytes;
        if (*went) some = medium_make_room(h, row, places, bytes);
        weir_assert(medium_kept_count(k) < places); /* or the ring would have no limit any more */
        kept_limit_set(k, row, places, bytes);      /* a long one's: none is kept now */
        h->kept_medium_room -= bytes;
        medium_keep(h, k, k->to, p, block);
    } else {
        medium_gone(h, m, 1, bytes);
        some = arena_free(&p, 1);
    }
    medium_leave(h, inside);
    return some;
}

/* The same of a thread without a heap. */
static WEIR_COLD bool medium_free_heapless(unsigned m, void* p, uint16_t* block) {
    bool some = false;
    owner_set(block, BLOCK_KEPT);
    return depot_leave(&heap_empty, m, &p, 1, false, &some) ? some : arena_free(&p, 1);
}

static WEIR_NOINLINE void medium_tell(void) {
    if (heap_long_hook != NULL) heap_long_hook();
}

WEIR_FN void medium_free(void* p, struct slice* s, const char* call) {
    struct heap* h = heap_self();
    s = slice_first(s);
    uint16_t* block = arena_block_any(s, p);
    uint32_t known = block == NULL ? BLOCK_KEPT : load_relaxed(block);
    if (weir_unlikely((known & BLOCK_KEPT) != 0)) {
        medium_misuse(s, p, block, call);
        return;
    }
    if ((known & BLOCK_GROWN) != 0) owner_clear(block, BLOCK_GROWN);
    /* Also what goes at once: the arena notes the tag that p had. */
    if (tag_is_on() && (p = medium_next(s, p, call)) == NULL) return;
    unsigned m = block_class(known);
    bool went = true;
    bool some = h == &heap_empty ? medium_free_heapless(m, p, block) : medium_free_own(h, m, p, block, &went);
    if (some) release_poke();
    if (went && m >= LONG_CLASS) medium_tell();
}

WEIR_FN WEIR_COLD void medium_free_asked(void* p, const char* call) {
    struct slice* s = slice_find(p);
    if (weir_likely(s != NULL))
        medium_free(p, s, call);
    else /* another thread frees it as well, and its region went */
        core_report("double-free", REPORT_FREED, p, call);
}

WEIR_FN WEIR_NOINLINE void medium_free_crowded(void* p, const char* call, uint32_t inside, struct heap* h,
                                               const struct kept_medium* k) {
    h->kept_medium_room += k->bytes;
    medium_leave(h, inside);
    medium_free_asked(p, call);
}

WEIR_FN size_t medium_usable(const struct slice* s, const void* p, const char* call) {
    const uint16_t* block = arena_block_any(s, p);
    if (block == NULL || (load_relaxed(block) & BLOCK_KEPT) != 0) {
        medium_misuse(s, p, block, call);
        return 0;
    }
    if (tag_is_on() && !retag_allows(p, call)) return 0;
    return medium_bytes(block_class(load_relaxed(block)));
}

WEIR_FN bool medium_has_grown(const struct slice* s, const void* p) {
    const uint16_t* block = arena_block_any(s, p);
    return block != NULL && (load_relaxed(block) & BLOCK_GROWN) != 0;
}

WEIR_FN void medium_note_grown(const struct slice* s, const void* p, bool grew) {
    uint16_t* block = arena_block_any(s, p);
    if (block == NULL) return;
    if (grew)
        owner_set(block, BLOCK_GROWN);
    else
        owner_clear(block, BLOCK_GROWN);
}

/* What it had on its last page it has still: nothing is copied, and no second block is there meanwhile. */
WEIR_FN bool medium_grow(struct slice* s, const void* p, size_t size) {
    struct heap* h = heap_self();
    const uint16_t* block = arena_block_any(s, p);
    if (size > CHUNK_MAX || tag_is_on() || block == NULL) return false;
    unsigned before = block_class(load_relaxed(block));
    /* One that grows by much outgrows the chunk soon, and leaves a hole: a span goes on to grow where it
     * lies. */
    if (size > SLAB_MAX && size >= medium_bytes(before) + medium_bytes(before) / 2) return false;
    unsigned m = class_of(size) - SMALL_CLASSES;
    if (!arena_grow(s, p, m)) return false;
    if (h == &heap_empty) return true;
    uint32_t inside = gate_enter_count(h, GATE_MEDIUM);
    medium_gone(h, before, 1, medium_bytes(before));
    medium_came(h, m, 1);
    medium_leave(h, inside);
    return true;
}

WEIR_FN void* medium_retag(struct slice* s, void* p, const char* call) {
    return medium_usable(s, p, call) == 0 ? NULL : medium_next(s, p, call);
}

static void outgoing_put_all(struct outgoing* o, struct heap* h) {
    for (unsigned row = 0; row < KEPT_RINGS; row++)
        outgoing_put(o, h, row, medium_kept_count(&h->kept_medium[row]));
    store_relaxed(&h->kept_medium_room,
                  h->kept_medium_max); /* a fork in the middle of a call may have had it otherwise */
}

WEIR_FN void medium_age(struct heap* h) {
    uint32_t inside = gate_enter_count(h, GATE_MEDIUM);
    for (unsigned m = 0; m < LONG_CLASS; m++) h->medium_out[m] /= 2;
    for (unsigned i = 0; i < LONG_CLASS - LONGER_CLASS; i++) h->medium_many[i] /= 2;
    h->medium_longest = 0;
    h->medium_most = h->medium_least = medium_live_bytes(h); /* what it had long ago says nothing */
    h->medium_swing /= 2;
    medium_leave(h, inside);
}

/* ---- Visitors. */

static bool kept_any(uint32_t state) {
    for (struct heap* h = registry_first(); h != NULL; h = h->registry_next)
        for (unsigned i = 0; i < GATES; i++)
            if (h != heap_self() && load_relaxed(&h->gates[i].state) == state) return true;
    return false;
}

static void gates_change(struct heap* h, uint32_t from, uint32_t to) {
    for (unsigned i = 0; i < GATES; i++)
        if (load_relaxed(&h->gates[i].state) == from) store_relaxed(&h->gates[i].state, to);
}

/* Owners that use what they keep from now on open the gate first, under the heap's lock. The lock here, so
 * that who finds a gate asked knows of the barrier after it; without one nobody was asked. */
static void kept_ask(void) {
    if (!kept_any(KEPT_OPEN) || !os_barrier_ready()) return;
    os_lock_take(&heaps_lock);
    for (struct heap* h = registry_first(); h != NULL; h = h->registry_next)
        if (h != heap_self()) gates_change(h, KEPT_OPEN, KEPT_ASKED);
    bool asked = os_barrier(); /* pairs with gate_enter */
    for (struct heap* h = registry_first(); h != NULL && !asked; h = h->registry_next)
        gates_change(h, KEPT_ASKED, KEPT_OPEN);
    os_lock_give(&heaps_lock);
}

/* Whether the owner was asked and did not open since. One that is inside is let alone: it may have been
 * stopped there, or be a handler's. */
static bool gate_may_be_taken(const struct gate* g) {
    return load_relaxed(&g->state) == KEPT_ASKED && load_acquire(&g->inside) == 0; /* pairs with gate_leave */
}

static void kept_take(struct heap* h) {
    struct outbox outboxes[OUTBOX_SLOTS];
    bool some = false;
    os_lock_take(&heaps_lock);
    orphans_settle();
    if (os_lock_try(&h->lock)) {
        struct outgoing o;
        outgoing_start(&o);
        if (gate_may_be_taken(&h->gates[GATE_MEDIUM])) {
            outgoing_put_all(&o, h);
            /* Release: pairs with gate_enter_count. */
            store_release(&h->gates[GATE_MEDIUM].state, (uint32_t)KEPT_TAKEN);
        }
        if (gate_may_be_taken(&h->gates[GATE_LARGE])) {
            large_take(h);
            store_release(&h->gates[GATE_LARGE].state, (uint32_t)KEPT_TAKEN); /* likewise */
        }
        if (gate_may_be_taken(&h->gates[GATE_OUTBOX])) {
            some = true;
            outboxes_take(h, outboxes);
            store_release(&h->gates[GATE_OUTBOX].state, (uint32_t)KEPT_TAKEN); /* likewise */
        }
        outgoing_send(&o);
        os_lock_give(&h->lock);
    } else {
        visit_owed(&heap_empty, SLICE_BYTES); /* somebody is to come again */
    }
    if (some) outboxes_give(outboxes);
    os_lock_give(&heaps_lock);
}

static void kept_take_asked(void) {
    for (struct heap* h = registry_first(); h != NULL; h = h->registry_next)
        for (unsigned i = 0; i < GATES; i++)
            if (h != heap_self() && load_relaxed(&h->gates[i].state) == KEPT_ASKED) kept_take(h);
}

WEIR_FN void medium_visit(bool all) {
    if (!all) kept_take_asked();
    kept_ask();
    if (all) kept_take_asked();
}

WEIR_FN void medium_fork_child(struct heap* h) {
    for (unsigned i = 0; i < GATES; i++) store_relaxed(&h->gates[i].state, (uint32_t)KEPT_OPEN);
}
