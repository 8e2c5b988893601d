/* registry.c: which thread has which heap: attach, detach, threads that ended unseen, fork.
 *
 * A heap's record is never freed: it waits for the next thread. A thread that uses the allocator after
 * its exit hook gets a heap again, which nobody gives back; it is found by asking the kernel whether
 * its thread still lives, when heaps are short.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/registry.h"

#include "core/options.h"
#include "heap/available.h"
#include "heap/depot.h"
#include "heap/exposure.h"
#include "heap/full.h"
#include "heap/guard.h"
#include "heap/heap.h"
#include "heap/large.h"
#include "heap/medium.h"
#include "heap/orphan.h"
#include "heap/refill.h"
#include "heap/retag.h"
#include "heap/remote_bits.h"
#include "heap/slab.h"
#include "heap/spare.h"
#include "heap/visit.h"
#include "os/os.h"
#include "page/release.h"
#include "page/span.h"
#include "tag/tag.h"

__attribute__((used)) WEIR_TLS_MODEL _Thread_local void* weir_thread_word = &heap_empty;

#define EMPTY_BINS                                                                                           \
    {                                                                                                        \
        [0 ... SLAB_CLASSES - 1] = { NULL, SLICE_BYTES }                                                     \
    }
/* Who waits for a heap's lock mostly waits for a visitor, who has it for less time than a sleep takes: see
 * docs/adr/0021. */
#define HEAP_LOCK {.rank = LOCK_HEAP, .spin_us = 50}
WEIR_UNWRITTEN WEIR_VAR struct heap heap_empty = {.bins = EMPTY_BINS, .lock = HEAP_LOCK};
WEIR_VAR struct os_lock heaps_lock = {.rank = LOCK_HEAPS};
WEIR_VAR struct heap_totals heap_totals;
WEIR_VAR void (*heap_attach_hook)(bool first);
WEIR_VAR void (*heap_detach_hook)(void);
WEIR_VAR void (*heap_tick_hook)(void);
WEIR_VAR void (*heap_long_hook)(void);

/* Sync: heaps_lock. */
static struct heap* registry;
static struct heap* spares;
static uint32_t registry_count;
static uint32_t sweep_at = 16; /* look for ended threads when the registry would grow past this */
static bool started;
static int registry_process; /* the process that `tid`s belong to */
enum { TID_UNKNOWN = -1 };
static int thread_id(void) {
    int tid = os_thread_id();
    return tid > 0 ? tid : TID_UNKNOWN;
}

/* Heaps of threads that ended, with all that they had: the next thread has one of them. Sync: heaps_lock;
 * the head is also read relaxed, to skip the lock. */
static struct heap* parked;
static uint32_t parked_count;
static uint32_t parked_times; /* that one was asked how much of it is in use, or knew it itself */
/* What a heap that is parked may have at most, and all of them together. */
enum { PARKED_MAX = 64, PARKED_BYTES_EACH = 2 << 20, PARKED_BYTES_ALL = 8 << 20 };

/* What is by class or slot, but for the bins. A new heap reads as zero, and what is not written there takes
 * no memory. */
static void heap_reset_tables(struct heap* h) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) h->active[c] = h->available[c] = h->scarce[c] = NULL;
    for (unsigned c = 0; c < SLAB_CLASSES; c++) h->short_turns[c] = 0;
    for (unsigned i = 0; i < OUTBOX_SLOTS; i++) h->outbox[i] = (struct outbox){0};
    for (unsigned i = 0; i < EXPOSED_SLOTS; i++) h->exposed_slabs[i] = NULL;
    for (unsigned row = 0; row < KEPT_RINGS; row++) {
        struct kept_medium* k = &h->kept_medium[row];
        if ((load_relaxed(&k->ends) | load_relaxed(&k->limit)) == 0) continue; /* maybe never written */
        store_relaxed(&k->limit, 0u); /* first: a fork's child may go on from here */
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        store_relaxed(&k->ends, (uint64_t)0);
    }
}

/* How the thread used to free. */
static void heap_unlearn(struct heap* h) {
    __builtin_memset(h->grown, 0, sizeof h->grown);
    h->reopened = h->kept_widely = 0;
    h->medium_most = h->medium_least = h->medium_swing = 0;
}

/* All else. */
static void heap_reset(struct heap* h) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) h->bins[c] = (struct bin){NULL, SLICE_BYTES};
    h->owner_word = (char*)h + (full_is_on() ? OWNER_FULL : 0) + (tag_is_on() ? OWNER_TAGGED : 0);
    for (unsigned i = 0; i < SPARE_SLOTS; i++) h->spares[i] = NULL;
    h->spare_slices = 0;
    store_relaxed(&h->kept_large, NULL);
    h->kept_large_bytes = h->kept_fenced_bytes = 0;
    h->kept_large_needed = false;
    store_relaxed(&h->kept_large_owed, false);
    store_relaxed(&h->kept_large_turns, (uint64_t)0);
    for (unsigned m = 0; m < LONG_CLASS; m++) h->medium_out[m] = 0;
    __builtin_memset(h->medium_many, 0, sizeof h->medium_many);
    h->medium_out_bytes = 0;
    h->medium_longest = 0;
    store_relaxed(&h->kept_medium_room, (ptrdiff_t)0);
    h->kept_medium_max = 0;
    for (unsigned i = 0; i < GATES; i++) {
        store_relaxed(&h->gates[i].state, (uint32_t)KEPT_TAKEN);
        h->gates[i].inside = 0;
    }
    h->medium_hand = 0;
    h->arena = 0;
    h->medium_freed = 0;
    for (unsigned i = 0; i < KEPT_WORDS; i++) h->kept[i] = h->passed[i] = h->left[i] = 0;
    h->kept_bytes = h->closed_bytes = 0;
    heap_unlearn(h);
    h->walk_halvings = 0;
    h->busy = 0;
    h->set_aside = false;
    store_relaxed(&h->slab_bytes, (uint64_t)0);
    store_relaxed(&h->slab_count, (uint64_t)0);
    store_relaxed(&h->exposed, (uint64_t)0);
    h->exposed_told = false;
    h->exposed_shift = h->exposed_blocks = 0;
    h->exposed_handed_out = 0;
    exposure_pack_anew(h);
    guard_heap_reset(h);
    h->owed = 0;
    store_relaxed(&h->parked_bytes, 0u);
    h->visited = NULL;
    store_relaxed(&h->doubted, NULL);
    store_relaxed(&h->visit_calls, (uint64_t)0);
    store_relaxed(&h->visit_idle, false);
}

/* Under heaps_lock: a heap is in a thread's hands, or no more. */
static void heap_count_live(bool live) {
    if (!live) {
        sub_relaxed(&heap_totals.heaps_live, 1);
        return;
    }
    uint64_t now = add_relaxed(&heap_totals.heaps_live, 1) + 1;
    if (now > load_relaxed(&heap_totals.heaps_peak)) store_relaxed(&heap_totals.heaps_peak, now);
}

/* Under heaps_lock: move the figures of an ended heap to the totals and let another thread have it. */
static void heap_retire(struct heap* h) {
    add_relaxed(&heap_totals.handed_out, h->handed_out);
    add_relaxed(&heap_totals.slow_calls, h->slow_calls);
    add_relaxed(&heap_totals.remote_frees, h->remote_frees);
    add_relaxed(&heap_totals.large_allocs, h->kept_large_turns);
    add_relaxed(&heap_totals.large_frees, h->kept_large_turns);
    if (h->parked_bytes == 0) heap_count_live(false); /* others are in nobody's hands */
    store_relaxed(&h->handed_out, 0);
    store_relaxed(&h->slow_calls, 0);
    store_relaxed(&h->remote_frees, 0);
    heap_reset_tables(h);
    heap_reset(h);
    store_relaxed(&h->tid, 0);
    h->spare_next = spares;
    spares = h;
}

/* Empty a heap out: every block and slab goes where other threads can use it. The caller owns h. */
static void heap_disband(struct heap* h, const char* call) {
    outbox_flush_all(h);
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        bin_return(h, c, call);
        struct slice* s = h->active[c];
        h->active[c] = NULL;
        if (s != NULL) {
            s->flags &= (uint8_t)~(SLICE_KEPT | SLICE_CLOSED);
            orphan_put(s);
        }
        while ((s = available_take(h, c, false)) != NULL) orphan_put(s);
        while ((s = available_take_scarce(h, c)) != NULL) orphan_put(s);
    }
    medium_drop(h, 1);
    large_drop(h);
    spare_drop_all(h);
    h->kept_bytes = h->closed_bytes = 0;
}

/* Bytes in use in the slabs that a parked heap would be allocated from, with what its bins have; roughly,
 * since others free meanwhile. What it kept is next to nothing. */
static uint32_t parked_in_use(const struct heap* h) {
    uint64_t bytes = 0;
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        const struct slice* s = h->active[c];
        if (s == NULL || (s->flags & SLICE_KEPT) != 0) continue;
        uint32_t used = counts_used(load_relaxed(&s->counts));
        uint32_t back = slab_waiting(s);
        if (used > back) bytes += (uint64_t)(used - back) * slab_class(s)->bytes;
    }
    return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

/* Whether the heap of a thread that ends, `tid`, is now the next one's as it is. Not where nobody would come
 * by to empty it out if there is no next one, and not by a thread that could not be told from others. What it
 * has counts as something that a look is to see to. */
static bool heap_parks(struct heap* h, int tid) {
    uint32_t state = load_relaxed(&release_state);
    if (tid == TID_UNKNOWN || state == RELEASE_OFF || state == RELEASE_ALONE || full_is_on()) return false;
    outbox_flush_all(h);
    large_drop(h);
    uint64_t bytes = load_relaxed(&h->slab_bytes) + (uint64_t)medium_kept_bytes(h);
    h->parked_used = parked_in_use(h); /* the thread has the records at hand */
    os_lock_take(&heaps_lock);
    bool parks = load_relaxed(&os_sandbox_is_own) == 0 && parked_count < PARKED_MAX &&
                 bytes <= PARKED_BYTES_EACH && bytes + load_relaxed(&release_parked) <= PARKED_BYTES_ALL;
    if (parks) {
        heap_unlearn(h); /* the next thread is another one */
        store_relaxed(&h->wanted_by, 0);
        h->parked_asked = ++parked_times;
        store_relaxed(&h->parked_bytes, (uint32_t)bytes + 1); /* PARKED_BYTES_EACH at most */
        h->parked_tid = tid;
        add_relaxed(&release_parked, h->parked_bytes);
        heap_count_live(false);
        store_relaxed(&h->tid, 0);
        h->spare_next = parked;
        store_relaxed(&parked, h);
        parked_count++;
    }
    os_lock_give(&heaps_lock);
    return parks;
}

/* Under heaps_lock: take a parked heap off the list. The id first: a raw fork's child takes no heap for a
 * spare one that has something. */
static struct heap* heap_unpark(struct heap** link, int tid) {
    struct heap* h = *link;
    store_relaxed(&h->tid, tid);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_relaxed(link, h->spare_next);
    parked_count--;
    sub_relaxed(&release_parked, h->parked_bytes);
    store_relaxed(&h->parked_bytes, 0u);
    heap_count_live(true);
    return h;
}

/* Under heaps_lock: whether a heap waits that thread `tid` parked: it allocates after its exit hook has run,
 * and nobody takes from it again what it gets now. */
static bool parked_by(int tid) {
    const struct heap* h = parked;
    while (h != NULL && h->parked_tid != tid) h = h->spare_next;
    return h != NULL;
}

/* Known by its id, for which the kernel is asked once: another thread may have the same thread pointer later.
 */
WEIR_FN void heap_want(const struct slice* s) {
    /* Relaxed: whether it is parked still is seen under the lock. Records of heaps are never freed. */
    struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (h == NULL || load_relaxed(&h->parked_bytes) == 0 || load_relaxed(&h->wanted_by) != 0) return;
    int tid = thread_id();
    if (tid != TID_UNKNOWN) store_relaxed(&h->wanted_by, tid);
}

/* Under heaps_lock: of the parked heaps the last one that thread `tid` wants; NULL: none. Not one where so
 * much is in use that it would not be parked again, with what the thread takes besides. */
static struct heap** parked_wanted(int tid) {
    for (struct heap** link = &parked; *link != NULL; link = &(*link)->spare_next)
        if (load_relaxed(&(*link)->wanted_by) == tid)
            return parked_in_use(*link) <= PARKED_BYTES_EACH / 2 ? link : NULL;
    return NULL;
}

/* Under heaps_lock: of so many parked heaps one is chosen. */
enum { PARKED_LOOK = 8 };
static void parked_ask(struct heap* h) {
    h->parked_used = parked_in_use(h);
    h->parked_asked = ++parked_times;
}
/* The one of them that was not asked for longest; there are some. */
static struct heap* parked_unasked(void) {
    struct heap* oldest = parked;
    struct heap* h = parked->spare_next;
    for (unsigned i = 1; i < PARKED_LOOK && h != NULL; i++, h = h->spare_next)
        if (parked_times - h->parked_asked > parked_times - oldest->parked_asked) oldest = h;
    return oldest;
}

/* The first of them of which three quarters are free (*free), or the one that has least in use, as far as is
 * known. */
static struct heap** parked_least(bool* free) {
    enum { part = 4 };
    struct heap** best = &parked;
    struct heap** link = &parked;
    for (unsigned i = 0; i < PARKED_LOOK && *link != NULL; i++, link = &(*link)->spare_next) {
        if ((*link)->parked_used < (*best)->parked_used) best = link;
        *free = (*best)->parked_used <= load_relaxed(&(*best)->slab_bytes) / part;
        if (*free) break;
    }
    return best;
}

/* Under heaps_lock: the parked heap that the next thread gets, which is thread `tid`. One that begins with
 * what another one took goes on with its work, and gets its heap: or else what it frees would go to others
 * for long. What a thread left in use others free else, by and by; a heap where much is left would have to
 * hold that and what its next thread takes. So of the last ones the first of which three quarters are free,
 * or the one that has least in use: by what is known of them. Not all are asked for it, which takes a line of
 * the cache for each slab, while the lock is everybody's: the last one is, of which most is freed just now,
 * and the one that was not for longest. */
static struct heap** parked_best(int tid) {
    struct heap** best = parked_wanted(tid);
    if (best != NULL) return best;
    if (parked->spare_next == NULL) return &parked;
    bool free = false;
    best = parked_least(&free);
    if (free) return best;
    parked_ask(parked);
    parked_ask(parked_unasked());
    return parked_least(&free);
}

WEIR_FN void heaps_unpark(bool all) {
    /* Relaxed: one that is missed is found next time. */
    if (load_relaxed(&parked) == NULL || load_relaxed(&os_sandbox_is_own) != 0) return;
    /* A handler that forked here would leave its child a heap that is half given away. */
    uint64_t signals;
    bool blocked = os_signals_block(&signals);
    for (;;) {
        os_lock_take(&heaps_lock);
        struct heap** link = &parked;
        while (!all && *link != NULL && !load_relaxed(&(*link)->visit_idle)) link = &(*link)->spare_next;
        struct heap* h = *link == NULL ? NULL : heap_unpark(link, TID_UNKNOWN);
        os_lock_give(&heaps_lock);
        if (h == NULL) break;
        heap_disband(h, "thread exit");
        os_lock_take(&heaps_lock);
        heap_retire(h);
        os_lock_give(&heaps_lock);
    }
    if (blocked) os_signals_restore(signals);
}

/* In a child that is made without fork handlers, and where the list may be half changed: parked heaps are
 * nobody's to take. */
static void parked_forget(void) {
    parked = NULL;
    parked_count = 0;
    store_relaxed(&release_parked, (uint64_t)0);
}

/* Under heaps_lock: heaps of threads that ended after their exit hook had run. No handler may fork while one
 * of them is half given away. */
static void registry_sweep(void) {
    uint32_t found = 0;
    orphans_settle();
    uint64_t signals;
    bool blocked = os_signals_block(&signals);
    for (struct heap* h = registry; h != NULL; h = h->registry_next) {
        int tid = load_relaxed(&h->tid);
        if (tid == 0 || tid == TID_UNKNOWN || os_thread_lives(tid)) continue;
        heap_disband(h, "thread exit");
        heap_retire(h);
        found++;
    }
    if (blocked) os_signals_restore(signals);
    /* What it found decides how soon to look again: the registry stays near twice the living threads. */
    if (found < registry_count / 4) sweep_at = registry_count + registry_count / 4 + 1;
}

/* A child that no fork handler has seen (_Fork, a raw clone) inherits thread ids that mean nothing here,
 * its own thread's too: heaps under them are nobody's to take, now or later. */
static void registry_check_process(void) {
    int process = os_process_id();
    if (process == registry_process) return;
    for (struct heap* h = registry; h != NULL; h = h->registry_next)
        if (load_relaxed(&h->tid) != 0 || h->parked_bytes != 0) store_relaxed(&h->tid, TID_UNKNOWN);
    parked_forget();
    registry_process = process;
}

/* Where a new heap starts to count its lists: of each one half as many as of the one before are walked in any
 * case, a 16th at least. What threads do resembles what others did before, and those that live for a short
 * time would walk all of theirs. */
static uint64_t first_turn(uint64_t id) {
    enum { halvings = 4 };
    return core_options.check_first - (core_options.check_first >> (id < halvings ? id : halvings));
}

static struct heap* heap_take(int tid) {
    registry_check_process();
    /* Thread ids are reused: a heap under our own id was left by a thread that is gone. */
    for (struct heap* h = registry; h != NULL && tid != TID_UNKNOWN; h = h->registry_next)
        if (load_relaxed(&h->tid) == tid) return h;
    if (parked != NULL && !parked_by(tid)) return heap_unpark(parked_best(tid), tid);
    if (spares == NULL && registry_count >= sweep_at) registry_sweep();
    struct heap* h = spares;
    if (h != NULL) {
        spares = h->spare_next;
        heap_reset_tables(h); /* again: a fork may have left it half emptied */
        heap_reset(h);
    } else {
        h = span_meta_alloc(HEAP_BYTES);
        if (h == NULL) return NULL;
        /* Once: others may hold it or wait for it whenever the record exists. */
        h->lock = (struct os_lock)HEAP_LOCK;
        heap_reset(h);
        h->id = registry_count++;
        h->turn = first_turn(h->id);
        h->registry_next = registry;
        store_release(&registry, h); /* publishes the record to registry_visit */
    }
    store_relaxed(&h->tid, tid);
    heap_count_live(true);
    store_relaxed(&heap_totals.heaps_made, registry_count);
    return h;
}

/* What was being changed while this process was made: what it led to is found again, or stays unused. */
static void registry_repair(struct heap* self) {
    orphans_forget();
    spares = NULL;
    for (struct heap* h = registry; h != NULL; h = h->registry_next) {
        if (h == self || load_relaxed(&h->tid) != 0 || h->parked_bytes != 0) continue;
        h->spare_next = spares;
        spares = h;
    }
}

static void slab_list_again(struct slice* s, struct slice_pages* pages, void* heap) {
    (void)pages;
    struct heap* h = heap;
    if (load_relaxed(&s->kind) == SLICE_SLAB && owner_heap(load_relaxed(&s->owner)) == h)
        available_list_again(h, s);
}

/* In the child of a raw fork, a lock that was the helper's is the caller's now: what the helper was changing
 * is put right. Of a slab that it was sorting all blocks count as in use. */
static void (*lock_left_below)(struct os_lock* lock);
static void heap_lock_left(struct os_lock* lock) {
    if (lock == &heaps_lock) {
        parked_forget();
        registry_repair(heap_self());
    }
    arena_lock_left(lock);
    if (lock->rank == LOCK_HEAP) {
        struct heap* h = (struct heap*)((char*)lock - offsetof(struct heap, lock));
        if (h->visited != NULL) slab_forget_all(h->visited);
        h->visited = NULL;
        available_unlist_all(h);
        span_visit_records(slab_list_again, h);
    }
    if (lock_left_below != NULL) lock_left_below(lock);
}

WEIR_FN void heap_options_start(void) {
    static bool read; /* Sync: heaps_lock */
    os_lock_take(&heaps_lock);
    if (!read) {
        read = true;
        core_options_start();
    }
    os_lock_give(&heaps_lock);
}

WEIR_FN struct heap* heap_attach(void) {
    /* A handler that forked here would leave its child a heap that is nobody's. */
    uint64_t signals;
    bool blocked = os_signals_block(&signals);
    os_lock_take(&heaps_lock);
    if (!started) {
        started = true;
        heap_options_start();
        region_memory_kind = tag_start();
        if (tag_is_on()) retag_start();
        classes_start(tag_is_on());
        region_start(core_options.reserve);
        release_start(&heap_empty);
        release_look_hook = heaps_visit;
        release_growth_hook = heaps_visit_for;
        lock_left_below = os_lock_left_hook;
        os_lock_left_hook = heap_lock_left;
        full_start();
        arena_start();
    }
    int tid = thread_id();
    struct heap* h = heap_take(tid);
    bool first = tid != TID_UNKNOWN && tid == registry_process;
    if (h != NULL) arch_thread_word_set(h);
    os_lock_give(&heaps_lock);
    if (blocked) os_signals_restore(signals);
    if (h != NULL && heap_attach_hook != NULL) heap_attach_hook(first);
    return h;
}

WEIR_FN void heap_detach(const char* call, bool ends) {
    struct heap* h = heap_self();
    if (h == &heap_empty) return;
    void (*hook)(void) = load_relaxed(&heap_detach_hook);
    if (hook != NULL) hook();
    /* A handler that forked here would leave its child a heap that is nobody's and half given away. */
    uint64_t signals;
    bool blocked = os_signals_block(&signals);
    int tid = load_relaxed(&h->tid);
    if (tid == TID_UNKNOWN) tid = thread_id(); /* the child of a raw fork */
    /* No allocation under way here is to find the heap again by the thread's id. */
    store_relaxed(&h->tid, TID_UNKNOWN);
    arch_thread_word_set(&heap_empty);
    if (!ends || !heap_parks(h, tid)) {
        heap_disband(h, call);
        os_lock_take(&heaps_lock);
        heap_retire(h);
        os_lock_give(&heaps_lock);
    }
    if (blocked && ends)
        os_signals_restore_libcs(signals);
    else if (blocked)
        os_signals_restore(signals);
    release_poke();
}

WEIR_FN void heap_collect(void) {
    struct heap* h = heap_self();
    heaps_unpark(true);
    if (h == &heap_empty) {
        orphans_drop();
        return;
    }
    heap_enter(h);
    outbox_flush_all(h);
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        struct slice* s = h->active[c];
        if (s != NULL) {
            bin_return(h, c, "malloc_trim");
            h->active[c] = NULL;
            s->flags &= (uint8_t)~(SLICE_KEPT | SLICE_CLOSED);
            available_put(h, s, "malloc_trim");
        }
    }
    available_sweep(h, true, "malloc_trim");
    heap_unlearn(h);
    exposure_pack_anew(h);
    medium_drop(h, 1);
    large_drop(h);
    depot_empty();
    arena_trim_all();
    spare_drop_all(h);
    for (unsigned i = 0; i < KEPT_WORDS; i++) h->kept[i] = 0;
    h->kept_bytes = h->closed_bytes = 0;
    orphans_drop();
    heap_leave(h);
}

WEIR_FN struct heap* registry_first(void) { return load_acquire(&registry); }

/* A signal handler may fork while the thread it interrupted holds its heap's lock, an arena's, the page lock
 * or, returning memory, the release lock. Waiting for a lock that
 * is taken before that one could then be for ever, since its owner may wait for the page lock: such a
 * fork goes without it, and the child puts right what the lock's owner was doing. */
static bool fork_take(struct os_lock* lock, bool may_wait) {
    if (!may_wait && !os_lock_is_mine(lock)) return os_lock_try(lock);
    return os_lock_take_soon(lock);
}

/* Whether the thread has none of these locks. */
static bool fork_may_wait(void) {
    bool may_wait = !os_lock_is_mine(&page_lock) && !os_lock_is_mine(&release_lock) && !arena_is_mine();
    for (struct heap* h = registry_first(); h != NULL && may_wait; h = h->registry_next)
        may_wait = !os_lock_is_mine(&h->lock);
    return may_wait;
}

static bool fork_has_heaps_lock; /* Sync: the page lock, from prepare to parent or child */
static bool fork_has_own_lock;   /* likewise */
static struct heap* fork_heap;   /* likewise: whose lock that is; a handler may give the thread a heap */
static bool fork_has_others;     /* likewise: all other heaps' locks and the arenas' */

/* What lies free in parked heaps is the child's that way. */
WEIR_FN void heap_fork_ready(void) {
    if (fork_may_wait() && !os_lock_is_mine(&heaps_lock)) heaps_unpark(true);
}

static void fork_give_heaps(const struct heap* own) {
    for (struct heap* h = registry_first(); h != NULL; h = h->registry_next)
        if (h != own && os_lock_is_mine(&h->lock)) os_lock_give(&h->lock);
}

/* Under heaps_lock. A thread that has one of these may wait for the page lock, until the fork is over; a
 * fork handler of the program that runs after this one, and allocates, would wait for that thread. */
static bool fork_take_others(const struct heap* own) {
    bool have = true;
    for (struct heap* h = registry_first(); h != NULL && have; h = h->registry_next)
        have = h == own || os_lock_take_soon(&h->lock);
    have = have && arenas_fork_take();
    if (!have) fork_give_heaps(own);
    return have;
}

/* Another thread may be about to fork in a handler, with one of the locks, and wait for what the caller has:
 * the caller then gives way. */
WEIR_FN bool heap_fork_prepare(bool patient) {
    struct heap* self = heap_self();
    bool may_wait = fork_may_wait();
    bool have_heaps = fork_take(&heaps_lock, may_wait);
    bool have_own = (have_heaps || !may_wait) && fork_take(&self->lock, may_wait);
    bool have_others = may_wait && have_own && fork_take_others(self);
    bool have = !may_wait || (have_own && (have_others || !patient));
    if (!have || !os_lock_take_soon(&page_lock)) {
        if (have_others) arenas_fork_give();
        if (have_others) fork_give_heaps(self);
        if (have_own) os_lock_give(&self->lock);
        if (have_heaps) os_lock_give(&heaps_lock);
        return false;
    }
    fork_has_heaps_lock = have_heaps;
    fork_has_own_lock = have_own;
    fork_has_others = have_others;
    fork_heap = self;
    return true;
}

WEIR_FN void heap_fork_parent(void) {
    bool have_heaps = fork_has_heaps_lock;
    struct heap* self = fork_heap;
    bool have_own = fork_has_own_lock;
    bool have_others = fork_has_others;
    os_lock_give(&page_lock);
    if (have_others) arenas_fork_give();
    if (have_others) fork_give_heaps(self);
    if (have_own) os_lock_give(&self->lock);
    if (have_heaps) os_lock_give(&heaps_lock);
}

/* A slab whose owner did not come along: nobody's now. Which of its free blocks were where, only the
 * owner knew, so they count as in use. The survivor's go back on its lists if another thread was about to
 * take one away. */
static void slab_leave_behind(struct slice* s, struct slice_pages* pages, void* survivor) {
    (void)pages;
    if (load_relaxed(&s->kind) != SLICE_SLAB) return;
    struct heap* self = survivor;
    struct heap* owner = owner_heap(load_relaxed(&s->owner));
    /* With no owner, and not to be had: in the hands of a call, perhaps of the one that was interrupted. */
    if (owner == NULL &&
        ((load_relaxed(&s->remote) & REMOTE_UNOWNED) != 0 || self->busy != 0 || self == &heap_empty))
        return;
    if (owner != NULL && owner->set_aside) return;
    if (owner == self && self != &heap_empty) {
        if (!fork_has_own_lock && self->visited == s) slab_forget_all(s);
        if (!fork_has_own_lock) available_list_again(self, s);
        return;
    }
    slab_forget_all(s);
    remote_bits_forget(s);
    store_relaxed(&s->listed, (uint8_t)0);
    store_relaxed(&s->owner, NULL);
    store_release(&s->remote, REMOTE_UNOWNED);
}

static void heap_set_aside(struct heap* h) {
    h->set_aside = true;
    store_relaxed(&h->tid, TID_UNKNOWN);
    sub_relaxed(&heap_totals.heaps_live, 1);
    arch_thread_word_set(&heap_empty);
}

WEIR_FN void heap_resume(struct heap* h) {
    if (h->busy != 0 || heap_self() != &heap_empty) return; /* in the handler, the thread got another one */
    h->set_aside = false;
    store_relaxed(&h->tid, thread_id());
    add_relaxed(&heap_totals.heaps_live, 1);
    arch_thread_word_set(h);
}

/* What the child of a fork may rely on. Forked between two calls of the allocator, it has all blocks of its
 * own thread, live and free, and the live ones of all others. Forked by a signal handler in the middle of a
 * call, it has the same and may do one of two things. It may return from the handler without having allocated
 * or freed there: the call goes on and ends as in the parent, and nothing is lost. Or it may allocate and
 * free in the handler and never return to the call: then what the call had in hand is lost to it, and what
 * lay free in the heap, in spans or among the orphans, where that is what the call was changing; a second
 * thread may wait for ever for a lock that the call holds.
 *
 * Which of them is not known here. So what is half changed stays as it is, set aside, until the interrupted
 * call ends (heap_resume) or one comes that takes again a lock which it holds (span_lock, orphans_lock). */
WEIR_FN void heap_fork_child(void) {
    struct heap* self = heap_self();
    slab_forked = true;
    os_lock_rank_forget(); /* nobody is left to wait for */
    bool clean = fork_has_heaps_lock && fork_has_own_lock;
    if (fork_has_heaps_lock && heaps_lock.nest != 0) orphans_interrupted();
    bool torn = page_lock.nest != 0;
    if (torn)
        span_interrupted();
    else
        span_purges_left();
    os_lock_fork_child(&page_lock, false);
    os_lock_fork_child(&heaps_lock, !fork_has_heaps_lock);
    os_lock_fork_child(&fork_heap->lock, !fork_has_own_lock);
    release_fork_child();
    arena_fork_child(fork_has_others);
    if (!fork_has_heaps_lock) registry_repair(self);
    if (!fork_has_own_lock) available_unlist_all(self);
    if (!clean || parked != NULL || load_relaxed(&heap_totals.heaps_live) != (self == &heap_empty ? 0 : 1)) {
        parked_forget();
        span_visit_records(slab_leave_behind, self);
        for (struct heap* h = registry; h != NULL; h = h->registry_next)
            if (h != self && (load_relaxed(&h->tid) != 0 || h->parked_bytes != 0) && !h->set_aside) {
                medium_fork_child(h);
                /* Not into lists that are half changed: they would not be there any more for the call. */
                if (!torn && !arena_is_torn()) medium_drop(h, 1);
                if (!torn) large_drop(h);
                if (!torn) spare_drop_all(h);
                heap_retire(h);
            }
    }
    for (struct heap* h = registry; h != NULL; h = h->registry_next) {
        if (h == fork_heap) continue;
        if (!os_lock_is_mine(&h->lock)) h->lock = (struct os_lock)HEAP_LOCK;
        os_lock_fork_child(&h->lock, false);
    }
    for (uint32_t row = 0; row < region_count; row++) region_forget_visitors(&regions[row]);
    for (unsigned c = 0; c < SLAB_CLASSES; c++)
        if (self->active[c] != NULL) remote_bits_look(self->active[c]);
    if (self != &heap_empty) store_relaxed(&self->tid, os_thread_id());
    if (self->busy != 0) heap_set_aside(self);
    registry_process = os_process_id();
    fork_has_heaps_lock = fork_has_own_lock = true;
    heap_fork_parent();
    os_lock_rank_forget();
}
