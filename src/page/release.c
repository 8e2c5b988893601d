/* release.c: see release.h.
 *
 * The rule "what a whole window did not need goes" is HAProxy's and tcmalloc's idea of a low-water mark: a
 * program that frees and allocates the same memory within a window keeps it, and one that stops gets rid of
 * all of it after two, with no threshold to choose for either.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "page/release.h"

#include "arch/arch.h"
#include "core/options.h"
#include "os/os.h"
#include "page/hole.h"
#include "page/huge.h"
#include "page/span.h"

/* Dirty spans that stay where no helper thread may be, and dirty holes, about: an idle process cannot return
 * them. */
#define DIRTY_MAX_ALONE (32 * MIB)
/* How often threads on their slow path look at the clock, and for how long a refused helper is not asked for
 * again. */
enum { ALONE_CALLS = 64, RETRY_WINDOWS = 16, QUIET_WINDOWS = 4 };
enum { BATCH_SLICES = 256, BATCH_RANGES = 512, MARKS = 4 };
/* Slices that are looked at in one hold of the page lock. */
enum { LOOK_SLICES = 512 };

/* Which holes go: none; those that were there when a look last marked them, without or with marking the
 * others; the younger ones as well; and those that are
 * kept so that a huge page stays one. */
enum purge { PURGE_NONE, PURGE_GROWN, PURGE_OLD, PURGE_YOUNG, PURGE_ALL };

WEIR_VAR struct release_totals release_totals;
WEIR_VAR struct os_lock release_lock = {.rank = LOCK_RELEASE};
WEIR_VAR uint32_t release_state;
/* Lines of their own: all threads look at the one on their slow paths, and those that free for others write
 * the other. */
WEIR_VAR uint32_t release_busy __attribute__((aligned(64)));
WEIR_VAR uint64_t release_owed __attribute__((aligned(64)));
WEIR_VAR uint64_t release_parked;
WEIR_VAR bool (*release_look_hook)(enum release_look look);
WEIR_VAR bool (*release_growth_hook)(uint64_t bytes);
WEIR_VAR void (*release_tick_hook)(void);
WEIR_VAR uint64_t (*release_above_hook)(uint64_t* shrunk);
WEIR_VAR uint64_t release_above;

static void* helper_thread_word;
static void* helper_self; /* Sync: relaxed; the thread pointer of the helper that there is, or was */
/* A heap that grows by so much has its helper look whether it could do with less. */
#define GROWTH_STEP (8 * MIB)
enum { HELPER_SLEEPS = 0, HELPER_ENDS = 1, HELPER_GROWTH = 2 };
static uint64_t grown;       /* Sync: relaxed, written under the page lock; bytes, ever */
static uint64_t grown_seen;  /* of them; the helper's, and before it starts, who starts it */
static uint32_t helper_word; /* Sync: atomic; what the helper sleeps on */
static uint64_t window_end;  /* Sync: relaxed; whoever moves it on ends the window */
static uint32_t alone_calls; /* Sync: relaxed; no more than a rhythm */
/* Sync: relaxed; bytes of holes, as far as is known, from which on threads look how many there are. */
static uint64_t alone_holes = DIRTY_MAX_ALONE;
static uint32_t alone_left;     /* Sync: relaxed; windows until a helper is tried again */
static uint64_t last_refaulted; /* Sync: release_lock; at the end of the window before */
static uint64_t last_purged[2]; /* Sync: release_lock; at the ends of the two windows before */
static bool look_is_dear;       /* Sync: release_lock; this and the rest: see delays_adapt and helper_look */
static uint32_t looks_dear;     /* a score, not a number */
static uint32_t looks_calm;
static bool purged_in_quiet;          /* the last purge's kind */
static uint64_t purged_before_window; /* the last one's */
static uint64_t quiet_ns;             /* how long a process has to be quiet */
static uint64_t since_busy_ns;
static uint64_t since_window_ns;
static uint64_t since_marked_ns;
static uint64_t last_cpu_ns;
static bool stirred;              /* Sync: the helper; something was poked since all heaps were looked at */
static bool unlooked;             /* Sync: the helper; the last look at the heaps is not finished */
static bool growth_found;         /* Sync: the helper; this and the rest: see growth_look */
static uint64_t growth_owed;      /* release_owed at the last look */
static uint64_t growth_went;      /* at the last steps */
static uint64_t growth_back;      /* at the last steps */
static uint64_t growth_refaulted; /* release_totals.refaulted at the last one */
enum { growth_waits_most = 8 };
static uint32_t growth_waits; /* for so many parts of growth, */
static uint64_t growth_grown; /* from here on, by grown_seen */

/* What is being purged. Sync: release_lock. */
struct batch {
    uint32_t slices;
    uint32_t ranges;
    uint32_t splits;
    void* split[BATCH_SLICES + 1]; /* in huge pages, which are split first */
    struct {
        struct slice* slice;
        uint32_t mask;
        uint32_t last_range;
    } claimed[BATCH_SLICES];
    struct os_range range[BATCH_RANGES];
};
WEIR_WIDE(batch) static struct batch batch;
static uint64_t pass_purged;   /* Sync: release_lock; span_totals.purged when it began */
static bool pass_refused;      /* Sync: release_lock; the kernel kept something of it (locked memory) */
static bool records_left;      /* Sync: relaxed; the last pass was not done with what is recorded of slices */
static uint64_t refused_bytes; /* Sync: relaxed; free bytes of which it took nothing when asked last */
static uint32_t batches;       /* Sync: atomic; that ended, for those who wait for one */

static void busy_forget(struct slice* s, struct slice_pages* pages, void* context) {
    (void)context;
    if (hole_busy(load_relaxed(&pages->state)) == 0) return;
    hole_mark(s);
    (void)__atomic_fetch_and(&pages->state, ~(PAGES_ALL << PAGES_BUSY_SHIFT), __ATOMIC_RELEASE);
}

/* In a child: nobody ends the batch. It may be half made, a busy slice not in it yet, or half finished, and
 * what is finished may be out of use since, with its region: what is busy says each page itself. */
static void batch_abandon(void) {
    span_visit_records(busy_forget, NULL);
    batch.slices = batch.ranges = batch.splits = 0;
}

/* A raw fork's child takes over what the helper held. */
static void release_left(struct os_lock* lock) {
    if (lock == &page_lock) span_rebuild();
    if (lock != &release_lock) return;
    os_lock_take(&page_lock);
    batch_abandon();
    os_lock_give(&page_lock);
    uint32_t expected = RELEASE_HELPER;
    (void)cas_acq_rel(&release_state, &expected, RELEASE_ASLEEP);
}

WEIR_FN void release_start(void* thread_word) {
    helper_thread_word = thread_word;
    os_lock_left_hook = release_left;
    os_helper_enable();
    quiet_ns = core_options.release_delay * 1000000;
    store_relaxed(&release_totals.window_ns, core_options.release_window * 1000000);
    if (core_options.release == 0) store_relaxed(&release_state, (uint32_t)RELEASE_OFF);
}

static void helper_wake(void) {
    os_futex_wake(&helper_word, 1);
    if (core_options.pressure != 0) os_pressure_wake();
}

WEIR_FN void release_grew(size_t bytes) {
    uint64_t before = load_relaxed(&grown);
    store_relaxed(&grown, before + bytes);
    if (before / GROWTH_STEP == (before + bytes) / GROWTH_STEP) return;
    if (load_relaxed(&release_state) != RELEASE_HELPER) return;
    uint32_t expected = HELPER_SLEEPS;
    if (cas_acq_rel(&helper_word, &expected, HELPER_GROWTH)) helper_wake();
}

WEIR_FN void release_refaulted(size_t bytes) { add_relaxed(&release_totals.refaulted, bytes); }

WEIR_FN uint64_t release_dirty_max(void) {
    uint64_t most = load_relaxed(&core_options.dirty_max); /* mallopt may change it */
    if (load_relaxed(&release_state) == RELEASE_ALONE && most > DIRTY_MAX_ALONE) return DIRTY_MAX_ALONE;
    return most;
}

static void batch_forget(const struct slice* s) {
    for (uint32_t i = 0; i < batch.slices; i++)
        if (batch.claimed[i].slice == s) batch.claimed[i].mask = 0;
    (void)__atomic_fetch_and(&slice_pages(s)->state, ~(PAGES_ALL << PAGES_BUSY_SHIFT), __ATOMIC_RELAXED);
}

WEIR_FN bool release_wait(const struct slice* s) {
    enum { wait_ns = 1000000 }; /* the batch may have ended between the caller's look and this one */
    if (os_lock_is_mine(&release_lock)) {
        if (s != NULL) batch_forget(s);
        return false;
    }
    if (os_helper_left() != NULL) { /* whose batch nobody ends: who takes its lock over does */
        os_lock_take(&release_lock);
        os_lock_give(&release_lock);
        return true;
    }
    os_futex_wait_for(&batches, load_acquire(&batches), wait_ns);
    return true;
}

/* Where the pages lie that the record's state is about: a large block's are those of its last slice. */
static struct os_range pages_range(const struct slice* s, unsigned from, unsigned count) {
    uint8_t kind = load_relaxed(&s->kind);
    uintptr_t address = slice_address(s);
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

/* Under release_lock: what a pass looked at. Bytes. */
struct pass {
    enum purge what;
    uint64_t most;  /* that it is to return, about */
    uint64_t goes;  /* that it claimed */
    uint64_t stays; /* of dirty holes that it left */
};

/* Under the page lock: claim the slice's holes that are to go. */
static void slice_claim(struct slice* s, struct pass* pass) {
    enum purge what = pass->what;
    uint64_t* word = &slice_pages(s)->state;
    uint64_t state = load_acquire(word); /* acquire: pairs with hole_add */
    uint64_t goes;
    uint64_t stays;
    uint64_t wanted;
    bool kept = what != PURGE_ALL && huge_keeps(s); /* not marked, so that nobody stays awake for them */
    do {
        uint64_t dirty = hole_dirty(state);
        uint64_t old = dirty & state >> PAGES_OLD_SHIFT;
        goes = kept || what == PURGE_NONE ? 0 : what <= PURGE_OLD ? old : dirty;
        stays = dirty & ~goes;
        wanted = state | goes << PAGES_BUSY_SHIFT | (what == PURGE_GROWN ? goes : dirty) << PAGES_OLD_SHIFT;
    } while (wanted != state && !cas_acq_rel(word, &state, wanted));
    add_relaxed(&release_totals.scanned, SLICE_BYTES);
    if (goes != 0) {
        batch.splits += huge_breaks(pages_range(s, bit_low(goes), 1), &batch.split[batch.splits]);
        batch_add(s, (uint32_t)goes);
    }
    pass->goes += (uint64_t)__builtin_popcountll(goes) << page_shift;
    if (kept || stays == 0) return;
    hole_mark(s);
    pass->stays += (uint64_t)__builtin_popcountll(stays) << page_shift;
}

/* The first `done` ranges were purged, and nothing of the batch is busy any more. Returns the bytes that
 * went. Without the page lock: a thread may be about to fork, with that lock, and wait for one of the pages.
 */
static uint64_t batch_finish(uint32_t done) {
    uint64_t purged = 0;
    for (uint32_t i = 0; i < batch.slices; i++) {
        struct slice* s = batch.claimed[i].slice;
        uint64_t* word = &slice_pages(s)->state;
        uint64_t mask = batch.claimed[i].mask;
        bool went = batch.claimed[i].last_range < done;
        if (!went) hole_mark(s); /* for another time; nobody is woken for it */
        uint64_t state = load_relaxed(word);
        uint64_t ends;
        uint64_t wanted;
        do {
            ends = mask & hole_busy(state);
            wanted = (state | (went ? ends << PAGES_CLEAN_SHIFT : 0)) & ~(ends << PAGES_BUSY_SHIFT);
        } while (!cas_acq_rel(word, &state, wanted)); /* release: who takes the pages sees them purged */
        if (went) purged += (uint64_t)__builtin_popcountll(ends) << page_shift;
    }
    batch.slices = batch.ranges = batch.splits = 0;
    __atomic_fetch_add(&batches, 1u, __ATOMIC_RELEASE); /* after the last page was let go */
    os_futex_wake(&batches, INT32_MAX);
    return purged;
}

/* Fill the batch, as far as one hold of the lock goes. Under the page lock, under which all claims are made,
 * so that what is claimed is no span that is being given back. False: there are no more marked slices. */
static bool batch_fill(struct pass* pass) {
    for (uint32_t i = 0; i < LOOK_SLICES && batch.slices < BATCH_SLICES &&
                         batch.ranges + SLICE_PAGES_MAX / 2 <= BATCH_RANGES && pass->goes < pass->most;
         i++) {
        struct slice* s = hole_pass_next();
        if (s == NULL) return false;
        slice_claim(s, pass);
    }
    return true;
}

/* Returns how many ranges went. */
static uint32_t batch_purge(void) {
    if (batch.ranges == 0) return 0;
    for (uint32_t i = 0; i < batch.splits; i++) os_split_huge(batch.split[i]);
    uint64_t calls = load_relaxed(&os_call_counts[OS_PURGE]);
    bool locked;
    uint32_t done = os_purge_many(batch.range, batch.ranges, &locked);
    add_relaxed(&release_totals.calls, load_relaxed(&os_call_counts[OS_PURGE]) - calls);
    return done;
}

/* Under release_lock. Returns the bytes that were returned, no more than about `most`. */
static uint64_t holes_pass(enum purge what, uint64_t most) {
    uint64_t before = load_relaxed(&span_totals.purged);
    struct pass pass = {what, most, 0, 0};
    uint64_t pending = xchg_acquire(&hole_pending, (uint64_t)0);
    bool left = true;
    os_lock_take(&page_lock);
    hole_pass_start();
    for (bool more = true; more && pass.goes < most;) {
        more = left = batch_fill(&pass);
        os_lock_give(&page_lock);
        uint32_t done = batch_purge();
        if (done != batch.ranges) more = false, pass_refused = true; /* the next pages would be, too */
        uint64_t purged = batch.slices != 0 ? batch_finish(done) : 0;
        os_lock_take(&page_lock);
        add_relaxed(&span_totals.purged, purged);
    }
    os_lock_give(&page_lock);
    /* Where slices are left, what they have is known roughly. */
    if (left) pass.stays = pending > pass.goes ? pending - pass.goes : 0;
    add_relaxed(&hole_pending, pass.stays);
    return load_relaxed(&span_totals.purged) - before;
}

/* How much of the time between two looks may go into pages that come back: one part in 256; and of a process
 * that works little, one in 64 of the processor time that it used, but for what is next to nothing. */
static uint64_t cost_most_ns(uint64_t elapsed_ns) {
    enum { of_time = 256, of_cpu = 64, of_time_least = 2048 };
    uint64_t now = os_cpu_ns();
    uint64_t used = now - last_cpu_ns;
    last_cpu_ns = now;
    uint64_t most = used / of_cpu;
    if (most < elapsed_ns / of_time_least) most = elapsed_ns / of_time_least;
    return most < elapsed_ns / of_time ? most : elapsed_ns / of_time;
}

/* Looks without a dear one until delays are shorter again: what went with a window comes back in the next. */
static uint64_t looks_calm_most(uint64_t elapsed_ns) {
    enum { least = 32 };
    uint64_t looks = 2 * load_relaxed(&release_totals.window_ns) / elapsed_ns;
    return looks > least ? looks : least;
}

/* Under release_lock, after each look: the delays follow what came back. A page that is returned and needed
 * again costs two passages through the kernel and its zeroing. Where what went lately (since the last
 * window's end; where the process was quiet, in the last three looks) and is in use again cost too much, it
 * was returned too early: the look is dear. Once is a change of phase: only when such looks go on, or come
 * again and again, is the delay made longer by which it went. What came back later than that was rightly
 * away. In the long run without them, delays are made shorter. */
static void delays_adapt(uint64_t elapsed_ns) {
    enum { page_cost_ns = 600, anew = 6, again = 2, enough = 16 };
    uint64_t least_quiet = core_options.release_delay * 1000000;
    uint64_t least_window = core_options.release_window * 1000000;
    uint64_t most = core_options.release_delay_max * 1000000;
    uint64_t* delay = purged_in_quiet ? &quiet_ns : &release_totals.window_ns;
    uint64_t refaulted = load_relaxed(&release_totals.refaulted);
    uint64_t purged = load_relaxed(&span_totals.purged);
    uint64_t back = refaulted - last_refaulted;
    uint64_t before = last_purged[1];
    if (!purged_in_quiet && purged_before_window < before) before = purged_before_window;
    uint64_t lately = purged - before;
    bool was_dear = look_is_dear;
    look_is_dear = ((back < lately ? back : lately) >> page_shift) * page_cost_ns > cost_most_ns(elapsed_ns);
    last_refaulted = refaulted;
    last_purged[1] = last_purged[0];
    last_purged[0] = purged;
    if (look_is_dear) {
        looks_calm = 0;
        looks_dear += was_dear ? again : anew;
    } else {
        looks_calm++;
        if (looks_dear != 0) looks_dear--;
    }
    if (looks_dear >= enough) {
        looks_dear = 0;
        store_relaxed(delay, *delay * 2 < most ? *delay * 2 : most);
    } else if (looks_calm >= looks_calm_most(elapsed_ns)) {
        looks_calm = 0;
        quiet_ns = quiet_ns / 2 > least_quiet ? quiet_ns / 2 : least_quiet;
        uint64_t window = release_totals.window_ns / 2;
        store_relaxed(&release_totals.window_ns, window > least_window ? window : least_window);
    }
}

/* Not in the middle of another pass of the same thread, as in a signal handler that interrupted it: what is
 * being purged is its. */
static bool pass_start(void) {
    os_lock_take(&release_lock);
    if (release_lock.nest == 0) {
        pass_refused = false;
        pass_purged = load_relaxed(&span_totals.purged);
        return true;
    }
    os_lock_give(&release_lock);
    return false;
}

static uint64_t free_bytes(void) { return load_relaxed(&span_totals.dirty) + load_relaxed(&hole_pending); }

/* Nobody stays awake for what the kernel keeps, until there is more. */
static void pass_end(void) {
    uint64_t bytes = free_bytes();
    uint64_t purged = load_relaxed(&span_totals.purged) - pass_purged;
    uint64_t before = purged != 0 ? 0 : load_relaxed(&refused_bytes);
    store_relaxed(&refused_bytes, pass_refused && purged == 0 ? bytes : before < bytes ? before : bytes);
    os_lock_give(&release_lock);
}

/* Under release_lock: of dirty spans what was not needed since the last time. */
static void spans_pass(void) {
    uint64_t bytes = span_window();
    if (bytes != 0 && !span_purge(bytes) && load_relaxed(&span_totals.dirty) >= bytes) pass_refused = true;
}

/* Under release_lock: what spans did not need goes, and holes; then, as a pass over holes leaves hardly a
 * free slice marked, what is recorded of those that have gone. */
static void all_pass(enum purge holes) {
    spans_pass();
    holes_pass(holes, UINT64_MAX);
    store_relaxed(&records_left, span_drop_records());
}

/* Under release_lock: the end of a window: what a whole one did not need goes. */
static void window_pass(void) {
    purged_in_quiet = false;
    purged_before_window = load_relaxed(&span_totals.purged);
    all_pass(PURGE_OLD);
}

/* Where there is no helper nobody sees that a process is quiet: windows are as short as the delay, and grow
 * as windows do. */
static uint64_t alone_window_ns(void) {
    return load_relaxed(&release_totals.window_ns) / core_options.release_window * core_options.release_delay;
}

/* Where the program asked for a filter itself, only calls for memory are made: no clock is read, and no
 * signals are blocked, which looking at other threads' heaps takes. */
static bool alone_is_confined(void) { return load_relaxed(&os_sandbox_is_own) != 0; }

/* A window ends where there is no helper. */
static void alone_pass(void) {
    bool confined = alone_is_confined();
    if (release_look_hook != NULL && !confined) (void)release_look_hook(RELEASE_LOOK_DUE);
    if (!pass_start()) return;
    window_pass();
    huge_settle();
    if (!confined) delays_adapt(alone_window_ns());
    pass_end();
}

/* Whether a window ends with this slow call: by the clock, or every so many calls where there is none. */
static bool alone_window_ended(uint32_t calls) {
    if (alone_is_confined()) return calls % (ALONE_CALLS * ALONE_CALLS) == 0;
    uint64_t now = os_clock_ns();
    uint64_t end = load_relaxed(&window_end);
    return now >= end && cas_acq_rel(&window_end, &end, now + alone_window_ns());
}

/* What threads hold for themselves becomes holes: all of it once the process is quiet, else what they freed,
 * whenever holes are marked, so that windows see them. */
static void heaps_look(uint64_t elapsed) {
    bool quiet = load_relaxed(&release_busy) == 0;
    bool due = since_marked_ns + elapsed >= load_relaxed(&release_totals.window_ns) / MARKS;
    stirred |= !quiet;
    if (release_look_hook == NULL || (!due && !unlooked && (!quiet || !stirred))) return;
    if (quiet) stirred = false;
    unlooked = release_look_hook(quiet ? RELEASE_LOOK_ALL : due ? RELEASE_LOOK_DUE : RELEASE_LOOK_ON);
}

/* One of the helper's looks, `release_delay` apart. A process that has needed nothing of the page layer since
 * the last one is quiet: what is free then goes at once. One that works on is looked at window by window. */
static void helper_look(void) {
    uint64_t elapsed = core_options.release_delay * 1000000;
    heaps_look(elapsed);
    if (!pass_start()) return;
    bool quiet = __atomic_exchange_n(&release_busy, 0u, __ATOMIC_RELAXED) == 0;
    since_busy_ns = quiet ? since_busy_ns + elapsed : 0;
    since_window_ns += elapsed;
    since_marked_ns += elapsed;
    if (quiet && since_busy_ns >= quiet_ns) {
        purged_in_quiet = true;
        all_pass(PURGE_YOUNG);
    } else if (since_window_ns >= load_relaxed(&release_totals.window_ns)) {
        since_window_ns = since_marked_ns = 0;
        growth_waits /= 2;
        window_pass();
    } else if (since_marked_ns >= release_totals.window_ns / MARKS && since_marked_ns > elapsed) {
        since_marked_ns = 0;
        holes_pass(PURGE_NONE, UINT64_MAX); /* so that a heap that grows knows which are old */
    }
    delays_adapt(elapsed);
    huge_window(elapsed);
    pass_end();
}

WEIR_FN bool release_all(void) {
    if (!pass_start()) return false;
    bool some = span_purge(UINT64_MAX);
    os_lock_take(&page_lock);
    huge_give_up();
    os_lock_give(&page_lock);
    some |= holes_pass(PURGE_ALL, UINT64_MAX) != 0;
    store_relaxed(&records_left, span_drop_records());
    os_lock_give(&release_lock);
    return some;
}

static uint64_t returnable(void) {
    uint64_t bytes = free_bytes();
    uint64_t refused = load_relaxed(&refused_bytes);
    return (bytes > refused ? bytes - refused : 0) + load_relaxed(&release_owed) +
           load_relaxed(&release_parked) + load_relaxed(&release_above);
}

/* Without a helper for a while. */
static void alone_start(void) {
    if (!alone_is_confined()) store_relaxed(&window_end, os_clock_ns() + alone_window_ns());
    store_relaxed(&alone_left, (uint32_t)RETRY_WINDOWS);
    store_relaxed(&release_state, (uint32_t)RELEASE_ALONE);
}

/* Half of what is resident, about: what was purged may have been of slabs that are gone. */
static uint64_t growth_least(void) {
    enum { least = 32 * MIB };
    uint64_t live = load_relaxed(&span_totals.live);
    uint64_t away = load_relaxed(&span_totals.purged) - load_relaxed(&release_totals.refaulted);
    uint64_t resident = away < live / 4 * 3 ? live - away : live / 4;
    return resident / 2 > least ? resident / 2 : least;
}

/* Whether by what is owed since the last look so much may be free. */
static bool growth_is_owed(uint64_t least) {
    uint64_t owed = load_relaxed(&release_owed);
    if (owed < growth_owed) growth_owed = 0; /* all was looked at since */
    return owed - growth_owed >= least;
}

/* No more of what is not old goes until the heap has grown by so many parts. */
static void growth_ends(uint32_t waits) {
    growth_found = false;
    growth_grown = grown_seen;
    growth_waits = waits < growth_waits_most ? waits : growth_waits_most;
}

/* The heap grew by `bytes` more than could be returned at once: whether a look finds more. As long as looks
 * do, they go on; else they wait for frees. */
static void growth_look(uint64_t bytes) {
    enum { part = 4, first = 2 };
    const uint64_t most = 2 * GROWTH_STEP; /* so that a look does not last */
    bool found_before = growth_found;
    if (!growth_found) {
        uint64_t least = growth_least();
        if (grown_seen - growth_grown < least / part * growth_waits) return;
        if (!growth_is_owed(least)) return;
    }
    if (release_growth_hook == NULL) return;
    growth_found = release_growth_hook(bytes < most ? bytes : most);
    growth_owed = load_relaxed(&release_owed);
    if (growth_found) growth_waits = 0;
    if (!growth_found && !found_before) growth_ends(growth_waits == 0 ? first : growth_waits * 2);
}

static uint64_t growth_pass(enum purge what, uint64_t bytes) {
    if (!pass_start()) return 0;
    purged_in_quiet = false;
    uint64_t went = holes_pass(what, bytes);
    os_lock_give(&release_lock);
    return went;
}

/* A helper knows nothing of what came back while there was none. */
static void growth_starts(void) {
    growth_found = false;
    growth_grown = grown_seen;
    growth_went = growth_back = 0;
    growth_refaulted = load_relaxed(&release_totals.refaulted);
}

/* Whether pages came back of half as much as went for growth, most of all at the last steps. */
static bool growth_comes_back(void) {
    uint64_t refaulted = load_relaxed(&release_totals.refaulted);
    growth_went -= growth_went / 4;
    growth_back += refaulted - growth_refaulted - growth_back / 4;
    growth_refaulted = refaulted;
    return growth_back > growth_went / 2 + MIB;
}

/* The heap grows: as much goes of what it did not need for a while; or of all that is free, where much is. */
static void helper_growth(void) {
    uint64_t bytes = load_relaxed(&grown) - grown_seen;
    grown_seen += bytes;
    if (growth_comes_back() && growth_found) growth_ends(growth_waits_most);
    uint64_t went = growth_pass(growth_found ? PURGE_YOUNG : PURGE_GROWN, bytes);
    if (went < bytes) growth_look(bytes - went);
    if (went < bytes && growth_found) went += growth_pass(PURGE_YOUNG, bytes - went);
    growth_went += went;
}

/* Sleep until `until`, or until somebody wakes the helper, or memory is short: then all goes. */
static void helper_sleep(uint64_t until, bool* watches) {
    uint64_t now = os_clock_ns();
    uint64_t left = until > now ? until - now : 0;
    enum os_pressure pressure = OS_PRESSURE_LOST;
    if (*watches) pressure = os_pressure_wait(left);
    if (pressure == OS_PRESSURE_LOST) {
        *watches = false;
        os_futex_wait_for(&helper_word, HELPER_SLEEPS, left);
    }
    if (pressure != OS_PRESSURE_SOME) return;
    if (release_look_hook != NULL) unlooked = release_look_hook(RELEASE_LOOK_ALL);
    release_all();
}

/* Whether the helper has gone to sleep for good: it had nothing to do for a while. */
static bool helper_retires(void) {
    /* Asleep first, then a last look (seq_cst): whoever adds later finds it asleep. */
    __atomic_store_n(&release_state, (uint32_t)RELEASE_ASLEEP, __ATOMIC_SEQ_CST);
    uint32_t expected = RELEASE_ASLEEP;
    return returnable() == 0 || !cas_acq_rel(&release_state, &expected, RELEASE_HELPER);
}

/* What a layer above gives back does not make the process a busy one, and what its program needs no more need
 * not be found out by waiting. */
static void helper_above(void) {
    uint64_t (*above)(uint64_t*) = load_relaxed(&release_above_hook);
    if (above == NULL) return;
    uint64_t shrunk;
    uint32_t busy = load_relaxed(&release_busy);
    store_relaxed(&release_above, above(&shrunk));
    if (busy == 0) store_relaxed(&release_busy, 0u);
    if (shrunk < core_options.release_floor || shrunk == 0 || !pass_start()) return;
    purged_in_quiet = false;
    uint64_t before = load_relaxed(&span_totals.purged);
    span_purge(shrunk);
    uint64_t done = load_relaxed(&span_totals.purged) - before;
    if (done < shrunk) holes_pass(PURGE_YOUNG, shrunk - done);
    os_lock_give(&release_lock);
}

WEIR_FN bool release_is_helper(void) { return load_relaxed(&helper_self) == arch_thread_pointer(); }

WEIR_FN bool release_pause(uint64_t ns, bool grows) {
    uint32_t word = load_acquire(&helper_word);
    if (word == HELPER_SLEEPS || (word == HELPER_GROWTH && grows)) os_futex_wait_for(&helper_word, word, ns);
    word = load_acquire(&helper_word);
    return word == HELPER_SLEEPS || (word == HELPER_GROWTH && grows);
}

WEIR_FN bool release_helper_ends(void) { return load_acquire(&helper_word) == HELPER_ENDS; }

static void helper_body(void* unused) {
    (void)unused;
    store_relaxed(&helper_self, arch_thread_pointer());
    os_lock_learn(); /* from here on threads may wait for it */
    /* A fork in the middle of release_rouse has its child start a helper of its own. */
    uint32_t asleep = RELEASE_ASLEEP;
    (void)cas_acq_rel(&release_state, &asleep, RELEASE_HELPER);
    bool watches = core_options.pressure != 0 && os_pressure_open();
    const uint64_t delay = core_options.release_delay * 1000000;
    uint64_t look = os_clock_ns();
    growth_starts();
    for (unsigned quiet = 0; quiet < QUIET_WINDOWS || !helper_retires();) {
        /* From when the last one was due on, since it may have taken long. */
        uint64_t now = os_clock_ns();
        if (now >= look) look = look + delay > now + delay / 2 ? look + delay : now + delay / 2;
        helper_sleep(look, &watches);
        uint32_t word = load_acquire(&helper_word);
        if (word == HELPER_ENDS) return; /* who ends it sets the state */
        if (word == HELPER_GROWTH && cas_acq_rel(&helper_word, &word, HELPER_SLEEPS)) helper_growth();
        if (os_clock_ns() < look) continue;
        if (!os_helper_fits()) {
            alone_start();
            return;
        }
        helper_above();
        helper_look();
        if (release_tick_hook != NULL) release_tick_hook();
        bool idle = returnable() == 0 && !huge_due() && !watches && !load_relaxed(&records_left);
        quiet = idle ? quiet + 1 : 0;
    }
}

/* Past the bound half of it stays, as of spans. */
static void alone_bound(void) {
    if (!pass_start()) return;
    if (load_relaxed(&hole_pending) > load_relaxed(&alone_holes)) {
        holes_pass(PURGE_NONE, UINT64_MAX); /* how many there are */
        uint64_t bytes = load_relaxed(&hole_pending);
        if (bytes > DIRTY_MAX_ALONE) holes_pass(PURGE_YOUNG, bytes - DIRTY_MAX_ALONE / 2);
        bytes = load_relaxed(&hole_pending) + DIRTY_MAX_ALONE / 2;
        store_relaxed(&alone_holes, bytes > DIRTY_MAX_ALONE ? bytes : DIRTY_MAX_ALONE);
    }
    pass_end();
}

/* No helper may be: the threads that allocate and free do its work, when they come by and it is time. */
static void alone_tick(void) {
    if (load_relaxed(&hole_pending) > load_relaxed(&alone_holes)) alone_bound();
    uint32_t calls = load_relaxed(&alone_calls) + 1;
    store_relaxed(&alone_calls, calls);
    if (calls % ALONE_CALLS != 0 || !alone_window_ended(calls)) return;
    bool ahead = load_relaxed(&huge_ahead.end) != 0;
    if (ahead || free_bytes() + load_relaxed(&release_owed) + load_relaxed(&release_parked) != 0)
        alone_pass();
    uint32_t left = load_relaxed(&alone_left);
    store_relaxed(&alone_left, left - 1);
    uint32_t expected = RELEASE_ALONE;
    if (left == 0) (void)cas_acq_rel(&release_state, &expected, RELEASE_ASLEEP);
}

WEIR_FN void release_recheck(void) {
    uint32_t state = load_relaxed(&release_state);
    if (state == RELEASE_HELPER && os_helper_left() != NULL)
        (void)cas_acq_rel(&release_state, &state, RELEASE_ASLEEP);
}

WEIR_FN void release_rouse(void) {
    uint32_t state = load_relaxed(&release_state);
    if (state == RELEASE_ALONE) alone_tick();
    bool enough = returnable() >= core_options.release_floor && returnable() != 0;
    enough |= core_options.pressure != 0; /* somebody is to watch */
    if (state != RELEASE_ASLEEP || (!enough && !huge_due())) return;
    if (!cas_acq_rel(&release_state, &state, RELEASE_HELPER)) return;
    /* One that has just gone to sleep may be on its way out. */
    os_helper_await();
    store_relaxed(&helper_word, (uint32_t)HELPER_SLEEPS);
    grown_seen = load_relaxed(&grown);
    if (os_helper_start(helper_body, NULL, helper_thread_word)) return;
    alone_start();
}

WEIR_FN void release_helper_stop(void) {
    os_helper_forbid(true);
    if (load_relaxed(&release_state) != RELEASE_HELPER) {
        os_helper_join(); /* one that retired may be on its way out */
        return;
    }
    store_release(&helper_word, (uint32_t)HELPER_ENDS);
    helper_wake();
    os_helper_join();
    uint32_t expected = RELEASE_HELPER;
    (void)cas_acq_rel(&release_state, &expected, RELEASE_ASLEEP);
}

WEIR_FN void release_helper_allow(void) { os_helper_forbid(false); }

WEIR_FN void release_fork_child(void) {
    os_helper_fork_child();
    huge_fork_child();
    uint32_t expected = RELEASE_HELPER;
    (void)cas_acq_rel(&release_state, &expected, RELEASE_ASLEEP);
    if (os_lock_is_mine(&release_lock)) {
        os_lock_fork_child(&release_lock, false);
        return;
    }
    release_lock = (struct os_lock){.rank = LOCK_RELEASE};
    if (batch.slices != 0) batch_abandon(); /* claims are made under the page lock, as forks are */
}
