/* release.c: see release.h.
 *
 * The rule "what a whole window did not need goes" is HAProxy's and tcmalloc's idea of a low-water mark: a
 * program that frees and allocates the same memory within a window keeps it, and one that stops gets rid of
 * all of it after two, with no threshold to choose for either.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "page/release.h"

#include "core/options.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/huge.h"
#include "page/span.h"

/* Dirty spans that stay where no helper thread may be: an idle process cannot return them. */
#define DIRTY_MAX_ALONE (32 * MIB)
/* How often threads on their slow path look at the clock, and for how long a refused helper is not asked for
 * again. */
enum { ALONE_CALLS = 64, RETRY_WINDOWS = 16, QUIET_WINDOWS = 4 };
enum { BATCH_SLICES = 256, BATCH_RANGES = 512 };

WEIR_VAR struct release_totals release_totals;
WEIR_VAR struct os_lock release_lock = {.rank = LOCK_RELEASE};
WEIR_VAR uint32_t release_state;
WEIR_VAR void (*release_tick_hook)(void);

static void* helper_thread_word;
static uint32_t helper_word;    /* Sync: atomic; what the helper sleeps on; 1: it is to end */
static uint64_t window_end;     /* Sync: relaxed; whoever moves it on ends the window */
static uint32_t alone_calls;    /* Sync: relaxed; no more than a rhythm */
static uint32_t alone_left;     /* Sync: relaxed; windows until a helper is tried again */
static uint64_t last_refaulted; /* Sync: release_lock; at the end of the window before */
static uint64_t last_purged[2]; /* Sync: release_lock; at the ends of the two windows before */
static bool window_is_dear;     /* Sync: release_lock; this and the next two: see window_adapt */
static uint32_t windows_dear;
static uint32_t windows_calm;

/* What is being purged. Sync: release_lock. */
struct batch {
    uint32_t slices;
    uint32_t ranges;
    struct {
        struct slice* slice;
        uint32_t mask;
        uint32_t last_range;
    } claimed[BATCH_SLICES];
    struct os_range range[BATCH_RANGES];
};
static struct batch batch;

WEIR_FN void release_start(void* thread_word) {
    helper_thread_word = thread_word;
    os_sandbox_look();
    store_relaxed(&release_totals.window_ns, core_options.release_delay * 1000000);
    if (core_options.release == 0) store_relaxed(&release_state, (uint32_t)RELEASE_OFF);
}

WEIR_FN void release_refaulted(size_t bytes) { add_relaxed(&release_totals.refaulted, bytes); }

WEIR_FN uint64_t release_dirty_max(void) {
    uint64_t most = load_relaxed(&core_options.dirty_max); /* mallopt may change it */
    if (load_relaxed(&release_state) == RELEASE_ALONE && most > DIRTY_MAX_ALONE) return DIRTY_MAX_ALONE;
    return most;
}

WEIR_FN bool release_wait(void) {
    if (os_lock_is_mine(&release_lock)) return false;
    os_lock_take(&release_lock);
    os_lock_give(&release_lock);
    return true;
}

/* Where the pages lie that the record's state is about: a large block's behind its end, a spare span's bit
 * stands for all of it. */
static struct os_range pages_range(const struct slice* s, unsigned from, unsigned count) {
    uint8_t kind = load_relaxed(&s->kind);
    uintptr_t address = slice_address(s);
    if (kind == SLICE_SPARE) return (struct os_range){(void*)address, (size_t)s->span_slices << SLICE_SHIFT};
    if (kind == SLICE_LARGE) address += (uintptr_t)(s->span_slices - 1) << SLICE_SHIFT;
    return (struct os_range){(void*)(address + ((uintptr_t)from << page_shift)), (size_t)count << page_shift};
}

static void batch_add(struct slice* s, uint32_t mask) {
    batch.claimed[batch.slices].slice = s;
    batch.claimed[batch.slices].mask = mask;
    while (mask != 0) {
        unsigned from = bit_low(mask);
        unsigned count = bit_low(~((uint64_t)mask >> from));
        mask &= ~(((1u << count) - 1) << from);
        struct os_range next = pages_range(s, from, count);
        struct os_range* before = batch.ranges == 0 ? NULL : &batch.range[batch.ranges - 1];
        if (before != NULL && (char*)before->start + before->bytes == (char*)next.start)
            before->bytes += next.bytes;
        else
            batch.range[batch.ranges++] = next;
    }
    batch.claimed[batch.slices++].last_range = batch.ranges - 1;
}

/* Under the page lock: claim the slice's holes that are to go. Returns the bytes of dirty ones that stay. */
static size_t slice_claim(struct slice* s, bool all) {
    uint64_t* word = &slice_pages(s)->state;
    uint64_t state = load_acquire(word); /* acquire: pairs with hole_add */
    uint64_t goes;
    uint64_t stays;
    uint64_t wanted;
    bool kept = !all && huge_keeps(s); /* not marked, so that nobody stays awake for them */
    do {
        uint64_t dirty = hole_dirty(state);
        goes = all ? dirty : kept ? 0 : dirty & state >> PAGES_OLD_SHIFT;
        stays = dirty & ~goes;
        wanted = state | goes << PAGES_BUSY_SHIFT | dirty << PAGES_OLD_SHIFT;
    } while (wanted != state && !cas_acq_rel(word, &state, wanted));
    add_relaxed(&release_totals.scanned, SLICE_BYTES);
    if (goes != 0) batch_add(s, (uint32_t)goes);
    if (kept) return 0;
    if (stays != 0) hole_mark(s);
    return (size_t)__builtin_popcountll(stays) << page_shift;
}

/* Under the page lock: the first `done` ranges were purged, and nothing of the batch is busy any more. */
static void batch_finish(uint32_t done) {
    for (uint32_t i = 0; i < done; i++) add_relaxed(&span_totals.purged, batch.range[i].bytes);
    for (uint32_t i = 0; i < batch.slices; i++) {
        uint64_t* word = &slice_pages(batch.claimed[i].slice)->state;
        uint64_t mask = batch.claimed[i].mask;
        /* Release: whoever takes the pages back, or the span, sees them purged. */
        if (batch.claimed[i].last_range < done)
            (void)__atomic_fetch_or(word, mask << PAGES_CLEAN_SHIFT, __ATOMIC_RELEASE);
        else
            hole_mark(batch.claimed[i].slice); /* for another time; nobody is woken for it */
        (void)__atomic_fetch_and(word, ~(mask << PAGES_BUSY_SHIFT), __ATOMIC_RELEASE);
    }
    batch.slices = batch.ranges = 0;
}

/* Fill the batch. Under the page lock, under which all claims are made, so that what is claimed is no span
 * that is being given back. False: there are no more marked slices. */
static bool batch_fill(bool all, size_t* stays) {
    while (batch.slices < BATCH_SLICES && batch.ranges + SLICE_PAGES_MAX / 2 <= BATCH_RANGES) {
        struct slice* s = hole_pass_next();
        if (s == NULL) return false;
        *stays += slice_claim(s, all);
    }
    return true;
}

/* Under release_lock. Returns the bytes that were returned. */
static uint64_t holes_pass(bool all) {
    uint64_t before = load_relaxed(&span_totals.purged);
    size_t stays = 0;
    store_relaxed(&hole_pending, (uint64_t)0);
    os_lock_take(&page_lock);
    hole_pass_start();
    for (bool more = true; more;) {
        more = batch_fill(all, &stays);
        if (batch.ranges == 0) continue;
        os_lock_give(&page_lock);
        uint64_t calls = load_relaxed(&os_call_counts[OS_PURGE]);
        bool locked;
        uint32_t done = os_purge_many(batch.range, batch.ranges, &locked);
        add_relaxed(&release_totals.calls, load_relaxed(&os_call_counts[OS_PURGE]) - calls);
        os_lock_take(&page_lock);
        more &= done == batch.ranges; /* refused (locked memory): the next pages would be, too */
        batch_finish(done);
    }
    os_lock_give(&page_lock);
    add_relaxed(&hole_pending, (uint64_t)stays);
    return load_relaxed(&span_totals.purged) - before;
}

/* Under release_lock: the window follows what came back. A page that is returned and needed again costs two
 * passages through the kernel and its zeroing. Where what went in this window and the two before and is in
 * use again cost more than one part in 16 of the window's time, memory was returned too early; once is a
 * change of phase, the third time is a rhythm, for which the window is made longer. What came back later than
 * that was rightly away. In the long run without such windows the window is made shorter again. */
static void window_adapt(void) {
    enum { page_cost_ns = 600, dear = 16, rhythm = 3, calm = 32 };
    uint64_t least = core_options.release_delay * 1000000;
    uint64_t most = core_options.release_delay_max * 1000000;
    uint64_t window = load_relaxed(&release_totals.window_ns);
    uint64_t refaulted = load_relaxed(&release_totals.refaulted);
    uint64_t purged = load_relaxed(&span_totals.purged);
    uint64_t back = refaulted - last_refaulted;
    uint64_t lately = purged - last_purged[1];
    bool was_dear = window_is_dear;
    window_is_dear = ((back < lately ? back : lately) >> page_shift) * page_cost_ns > window / dear;
    last_refaulted = refaulted;
    last_purged[1] = last_purged[0];
    last_purged[0] = purged;
    if (window_is_dear) {
        windows_calm = 0;
        if (!was_dear && ++windows_dear >= rhythm) window *= 2;
    } else if (++windows_calm == calm) {
        windows_calm = 0;
        if (windows_dear != 0) windows_dear--;
        window /= 2;
    }
    if (window > most) window = most;
    if (window < least) window = least;
    store_relaxed(&release_totals.window_ns, window);
}

/* Not in the middle of another pass of the same thread, as in a signal handler that interrupted it: what is
 * being purged is its. */
static bool pass_start(void) {
    os_lock_take(&release_lock);
    if (release_lock.nest == 0) return true;
    os_lock_give(&release_lock);
    return false;
}

/* The end of a window. */
static void window_pass(bool in_helper) {
    if (!pass_start()) return;
    span_purge(span_window());
    holes_pass(false);
    window_adapt();
    if (in_helper) huge_window(load_relaxed(&release_totals.window_ns));
    os_lock_give(&release_lock);
}

WEIR_FN bool release_all(void) {
    if (!pass_start()) return false;
    bool some = span_purge(UINT64_MAX);
    os_lock_take(&page_lock);
    huge_give_up();
    os_lock_give(&page_lock);
    some |= holes_pass(true) != 0;
    os_lock_give(&release_lock);
    return some;
}

static uint64_t returnable(void) { return load_relaxed(&span_totals.dirty) + load_relaxed(&hole_pending); }

/* Without a helper for a while. */
static void alone_start(void) {
    store_relaxed(&window_end, os_clock_ns() + load_relaxed(&release_totals.window_ns));
    store_relaxed(&alone_left, (uint32_t)RETRY_WINDOWS);
    store_relaxed(&release_state, (uint32_t)RELEASE_ALONE);
}

static void helper_body(void* unused) {
    (void)unused;
    /* A fork in the middle of release_rouse has its child start a helper of its own. */
    uint32_t asleep = RELEASE_ASLEEP;
    (void)cas_acq_rel(&release_state, &asleep, RELEASE_HELPER);
    for (unsigned quiet = 0; quiet < QUIET_WINDOWS;) {
        os_futex_wait_for(&helper_word, 0, load_relaxed(&release_totals.window_ns));
        if (load_acquire(&helper_word) != 0) return; /* who ends it sets the state */
        if (!os_helper_fits()) {
            alone_start();
            return;
        }
        window_pass(true);
        if (release_tick_hook != NULL) release_tick_hook();
        quiet = returnable() == 0 && !huge_due() ? quiet + 1 : 0;
        if (quiet < QUIET_WINDOWS) continue;
        /* Asleep first, then a last look (seq_cst): whoever adds later finds it asleep. */
        __atomic_store_n(&release_state, (uint32_t)RELEASE_ASLEEP, __ATOMIC_SEQ_CST);
        if (returnable() == 0) return;
        uint32_t expected = RELEASE_ASLEEP;
        if (!cas_acq_rel(&release_state, &expected, RELEASE_HELPER)) return; /* another helper was made */
        quiet = 0;
    }
}

/* No helper may be: the threads that allocate and free do its work, when they come by and it is time. */
static void alone_tick(void) {
    uint32_t calls = load_relaxed(&alone_calls) + 1;
    store_relaxed(&alone_calls, calls);
    if (calls % ALONE_CALLS != 0) return;
    uint64_t now = os_clock_ns();
    uint64_t end = load_relaxed(&window_end);
    if (now < end || !cas_acq_rel(&window_end, &end, now + load_relaxed(&release_totals.window_ns))) return;
    if (returnable() != 0) window_pass(false);
    uint32_t left = load_relaxed(&alone_left);
    store_relaxed(&alone_left, left - 1);
    uint32_t expected = RELEASE_ALONE;
    if (left == 0) (void)cas_acq_rel(&release_state, &expected, RELEASE_ASLEEP);
}

WEIR_FN void release_rouse(void) {
    uint32_t state = load_relaxed(&release_state);
    if (state == RELEASE_ALONE) alone_tick();
    bool enough = returnable() >= core_options.release_floor && returnable() != 0;
    if (state != RELEASE_ASLEEP || (!enough && !huge_due())) return;
    if (!cas_acq_rel(&release_state, &state, RELEASE_HELPER)) return;
    /* One that has just gone to sleep may be on its way out. */
    os_helper_join();
    store_relaxed(&helper_word, 0u);
    if (os_helper_start(helper_body, NULL, helper_thread_word)) return;
    alone_start();
}

WEIR_FN void release_helper_stop(void) {
    if (load_relaxed(&release_state) != RELEASE_HELPER) return;
    store_release(&helper_word, 1u);
    os_futex_wake(&helper_word, 1);
    os_helper_join();
    uint32_t expected = RELEASE_HELPER;
    (void)cas_acq_rel(&release_state, &expected, RELEASE_ASLEEP);
}

WEIR_FN void release_fork_child(void) {
    os_helper_fork_child();
    uint32_t expected = RELEASE_HELPER;
    (void)cas_acq_rel(&release_state, &expected, RELEASE_ASLEEP);
    if (os_lock_is_mine(&release_lock)) {
        os_lock_fork_child(&release_lock, false);
        return;
    }
    release_lock = (struct os_lock){.rank = LOCK_RELEASE};
    batch_finish(0);
}
