/* fork_step.c: a signal handler forks at each instruction of one call of malloc, free, realloc or a pool.
 *
 * Who may call it: tests/contract/run.py. It starts itself once per state of the heap, traced, and
 * single-steps the call that comes then; at each instruction of the library, the first times that the state's
 * calls come by, a handler forks two children. One returns to the call, finishes
 * it, and loses nothing: at its end it has the same figures as a child that was forked before the call. The
 * other one never returns: it allocates and frees in the handler, and ends. Both look at the content of every
 * block that the call does not have in hand, and every list of free blocks is walked. Instructions at which
 * signals are blocked have no handler. Not for glibc's malloc, which promises nothing to a handler.
 *
 * Of pools, whose calls a handler may not make, the child that returns has each object once and the figures.
 * One state runs as under the tool: every process writes its figures into a file.
 *
 * Covered: see `states`. Not covered: what needs a helper thread or a second thread at work, and the first
 * call of a thread.
 *
 * contract: timeout=360 glibc=skip
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <ucontext.h>

#include "weir/weir.h"
#pragma weak weir_pool_create
#pragma weak weir_pool_destroy
#pragma weak weir_pool_alloc
#pragma weak weir_pool_free
#pragma weak weir_pool_flush
#pragma weak weir_pool_limit
#pragma weak weir_pool_stats_get
#pragma weak weir_pool_alloc_slow
#pragma weak weir_pool_free_slow
#include "weir/pool.h"
#include "weir/wire.h"

enum { SLOTS = 2000, ROUNDS = 200, MINE = 96, FORKS_AT_LEAST = 250 };
enum { SIGNAL_FORK = SIGUSR1, SIGNAL_STEP = SIGUSR2, SIGNAL_DONE = SIGWINCH };

static struct slot {
    unsigned char* p;
    size_t bytes;
} slots[SLOTS];
static const char* state_name;
static volatile sig_atomic_t inside;   /* the call */
static volatile sig_atomic_t is_child; /* one that returns */
static bool blocks_are_mine = true;    /* what was given back to another thread's slab, the child has not */
static int in_hand = -1;               /* slot that the call frees or resizes; its content may be gone */
static unsigned long forks;
enum { LIBRARY_MAX = 1 << 19, PROGRAM_MAX = 1 << 16 };
static uintptr_t library; /* where its code begins */
static uintptr_t program;

static struct weir_pool* pool; /* that the state's objects in `slots` come from; NULL: they are malloc's */

struct figures {
    uint64_t pool_used, pool_allocated;
    uint64_t live_blocks, live_bytes, cached_bytes, heaps_live;
};
static struct figures* expected; /* shared with the children */

static size_t used_bytes[SLOTS]; /* of the blocks that the state has had */
static unsigned used_count;

static unsigned char tag_of(int i) { return (unsigned char)(i * 7 + 3); }

/* Only the ends: what is freed by mistake gets links at its start, and pages that are lost read as zero. */
static void slot_set(int i, void* p, size_t bytes) {
    EXPECT(p != NULL);
    slots[i] = (struct slot){p, bytes};
    used_bytes[used_count++ % SLOTS] = bytes < 70000 ? bytes : 70000;
    memset(p, tag_of(i), bytes < 32 ? bytes : 32);
    slots[i].p[bytes - 1] = tag_of(i);
}
static int slot_holds(int i) {
    const struct slot* s = &slots[i];
    for (size_t at = 0; at < s->bytes && at < 32; at++)
        if (s->p[at] != tag_of(i)) return 0;
    return s->p[s->bytes - 1] == tag_of(i);
}
static void slot_new(int i, size_t bytes) { slot_set(i, malloc(bytes), bytes); }
static void slot_free(int i) {
    if (pool != NULL)
        weir_pool_free(pool, slots[i].p);
    else
        free(slots[i].p);
    slots[i].p = NULL;
}
static void range_new(int from, int to, size_t bytes) {
    for (int i = from; i < to; i++) slot_new(i, bytes);
}
static void range_free(int from, int to) {
    for (int i = from; i < to; i++) slot_free(i);
}

static void all_hold(void) {
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].p != NULL && i != in_hand && !slot_holds(i)) EXPECT(!"content is kept");
}

static size_t used_size(uint64_t n) { return used_bytes[n % (used_count < SLOTS ? used_count : SLOTS)]; }
static struct slot mine[MINE];

static void mine_check(unsigned i) {
    const struct slot* m = &mine[i];
    if (m->p[0] != (unsigned char)i || m->p[m->bytes - 1] != (unsigned char)i) EXPECT(!"content is kept");
}
static void mine_new(unsigned i, size_t bytes) {
    mine[i] = (struct slot){malloc(bytes), bytes};
    if (mine[i].p == NULL) {
        EXPECT(!"a block");
        _exit(1);
    }
    mine[i].p[0] = mine[i].p[bytes - 1] = (unsigned char)i;
}
static void mine_free(unsigned i) {
    free(mine[i].p);
    mine[i].p = NULL;
}

/* The classes that the state has blocks of: at random, then many at once. */
static void use_heap(void) {
    static const size_t large[] = {9000, 40000, 70000, 100000};
    uint64_t seed = 99;
    for (unsigned n = 0; n < ROUNDS; n++) {
        unsigned i = (unsigned)(contract_random(&seed) % MINE);
        if (mine[i].p != NULL) {
            mine_check(i);
            mine_free(i);
        } else {
            mine_new(i, n % 64 == 0 ? large[n / 64 % 4] : used_size(contract_random(&seed)));
        }
    }
    for (unsigned i = 0; i < MINE; i++)
        if (mine[i].p == NULL) mine_new(i, used_size((uint64_t)i * 7));
    for (unsigned i = 0; i < MINE; i++) mine_check(i);
    for (unsigned i = 0; i < MINE; i++) mine_free(i);
}

static struct figures figures_now(void) {
    static int (*get)(struct weir_stats*);
    struct weir_stats stats = {.struct_size = sizeof stats};
    if (get == NULL) *(void**)&get = dlsym(RTLD_DEFAULT, "weir_stats_get");
    if (get != NULL) get(&stats);
    struct weir_pool_stats of_pool = {.struct_size = sizeof of_pool};
    if (pool != NULL) EXPECT_EQ(weir_pool_stats_get(pool, &of_pool), 0);
    EXPECT_EQ(of_pool.allocated, of_pool.used + of_pool.cached);
    return (struct figures){of_pool.used,     of_pool.allocated,  stats.live_blocks,
                            stats.live_bytes, stats.cached_bytes, stats.heaps_live};
}

/* A child that has finished a pool's call: none of the objects that it gets is out, nor one of the others. */
static void use_pool(void) {
    enum { objects = 300 };
    static unsigned char* got[objects];
    for (int i = 0; i < objects; i++) {
        got[i] = weir_pool_alloc(pool);
        EXPECT(got[i] != NULL);
        if (got[i] != NULL) memset(got[i], tag_of(i), 32);
    }
    all_hold();
    for (int i = 0; i < objects; i++) {
        if (got[i] == NULL) continue;
        EXPECT_EQ(got[i][0], tag_of(i));
        EXPECT_EQ(got[i][31], tag_of(i));
        weir_pool_free(pool, got[i]);
    }
}

/* A child that has finished the call. */
static void child_end(int is_first) {
    all_hold();
    use_heap();
    all_hold();
    if (pool != NULL) use_pool();
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].p != NULL) slot_free(i);
    malloc_trim(0);
    struct figures now = figures_now();
    if (is_first) *expected = now;
    EXPECT_EQ(now.pool_used, 0);
    EXPECT_EQ(now.pool_allocated, expected->pool_allocated);
    if (pool != NULL) EXPECT_EQ(weir_pool_destroy(pool), 0);
    if (blocks_are_mine) {
        EXPECT_EQ(now.live_blocks, expected->live_blocks);
        EXPECT_EQ(now.live_bytes, expected->live_bytes);
        EXPECT_EQ(now.cached_bytes, expected->cached_bytes);
    }
    EXPECT_EQ(now.heaps_live, expected->heaps_live);
    use_heap();
    _exit(contract_failed());
}

static uintptr_t context_pc(void* context) {
    ucontext_t* u = context;
#ifdef __x86_64__
    return (uintptr_t)u->uc_mcontext.gregs[REG_RIP];
#else
    return (uintptr_t)u->uc_mcontext.pc;
#endif
}

static void child_wait(pid_t pid, const char* kind, uintptr_t pc) {
    if (EXPECT_CHILD_OK(pid)) return;
    Dl_info info = {0};
    dladdr((void*)pc, &info);
    contract_say(1, "state %s, fork %lu, the child that %s: interrupted at %s+0x%lx (%s)\n", state_name,
                 forks, kind, info.dli_fname, pc - (uintptr_t)info.dli_fbase, info.dli_sname);
    _exit(1); /* the checks of the children that come would be taken for failed, too */
}

/* Whether to fork here: in the library or what pools have inlined into the program. */
static bool is_ours(uintptr_t pc) {
    return inside && (pc - library < LIBRARY_MAX || (pool != NULL && pc - program < PROGRAM_MAX));
}

static void on_fork(int unused, siginfo_t* unused_info, void* context) {
    (void)unused, (void)unused_info;
    int saved_errno = errno;
    if (is_ours(context_pc(context))) {
        forks++;
        pid_t returns = fork();
        if (returns == 0) {
            alarm(20);
            is_child = 1;
            errno = saved_errno;
            return;
        }
        pid_t stays = fork();
        if (stays == 0) {
            alarm(20);
            all_hold();
            use_heap();
            all_hold();
            _exit(contract_failed());
        }
        child_wait(returns, "returns", context_pc(context));
        child_wait(stays, "stays in the handler", context_pc(context));
    }
    raise(SIGNAL_STEP); /* blocked here: the tracer sees it when this has returned */
    errno = saved_errno;
}

enum op {
    OP_MALLOC,
    OP_CALLOC,
    OP_FREE,
    OP_REALLOC,
    OP_ALIGNED,
    OP_TRIM,
    OP_POOL_ALLOC, /* by the functions */
    OP_POOL_FREE,
    OP_POOL_FLUSH,
    OP_WORDS_ALLOC, /* by the macros */
    OP_WORDS_FREE,
};
enum { OBJECT_BYTES = 3000 };
WEIR_POOL_DECLARE(declared, OBJECT_BYTES, 0, 0);

static bool op_gives(enum op op) {
    return op != OP_FREE && op != OP_TRIM && op != OP_POOL_FREE && op != OP_POOL_FLUSH && op != OP_WORDS_FREE;
}
static void pool_call(enum op op, void** p) {
    switch (op) {
    case OP_POOL_ALLOC:
        *p = weir_pool_alloc(pool);
        break;
    case OP_POOL_FREE:
        weir_pool_free(pool, *p);
        break;
    case OP_POOL_FLUSH:
        weir_pool_flush(pool);
        break;
    case OP_WORDS_ALLOC:
        *p = WEIR_POOL_ALLOC(declared);
        break;
    default:
        WEIR_POOL_FREE(declared, *p);
        break;
    }
}

static void call(enum op op, int i, size_t bytes) {
    void* p = slots[i].p;
    size_t kept = slots[i].bytes < bytes ? slots[i].bytes : bytes;
    inside = 1;
    switch (op) {
    case OP_MALLOC:
        p = malloc(bytes);
        break;
    case OP_CALLOC:
        p = calloc(1, bytes);
        break;
    case OP_FREE:
        free(p);
        break;
    case OP_REALLOC:
        p = realloc(p, bytes);
        break;
    case OP_ALIGNED:
        p = aligned_alloc(4096, bytes);
        break;
    case OP_TRIM:
        malloc_trim(0);
        break;
    default:
        pool_call(op, &p);
        break;
    }
    inside = 0;
    if (op == OP_CALLOC) EXPECT(contract_is_zero(p, bytes));
    if (op == OP_REALLOC) EXPECT(p != NULL && ((unsigned char*)p)[kept < 32 ? kept - 1 : 31] == tag_of(i));
    if (op == OP_FREE || op == OP_POOL_FREE || op == OP_WORDS_FREE) slots[i].p = NULL;
    if (op_gives(op)) slot_set(i, p, bytes);
    in_hand = -1;
}

/* The call, single-stepped. */
static void stepped(enum op op, int i, size_t bytes) {
    in_hand = op == OP_TRIM || op == OP_POOL_FLUSH ? -1 : i;
    pid_t first = fork();
    if (first == 0) {
        call(op, i, bytes);
        child_end(1);
    }
    EXPECT_CHILD_OK(first);
    raise(SIGNAL_STEP);
    call(op, i, bytes);
    if (is_child) child_end(0);
    raise(SIGNAL_DONE);
}

/* ---- states ---- */

static pthread_barrier_t done;
static void idle(void) {
    void (*give_up)(void);
    *(void**)&give_up = dlsym(RTLD_DEFAULT, "weir_thread_idle");
    EXPECT(give_up != NULL);
    if (give_up != NULL) give_up();
}
/* What another thread does, which then sleeps, and keeps its heap. */
static void* other_main(void* work) {
    (*(void (**)(void))work)();
    pthread_barrier_wait(&done);
    for (;;) pause();
    return NULL;
}
static void other(void (*work)(void)) {
    pthread_t thread;
    pthread_barrier_init(&done, NULL, 2);
    EXPECT_EQ(pthread_create(&thread, NULL, other_main, &work), 0);
    pthread_barrier_wait(&done);
}

static void fast(void) {
    range_new(0, 20, 48);
    slot_free(3);
    stepped(OP_MALLOC, 20, 48);
    stepped(OP_FREE, 5, 0);
    stepped(OP_REALLOC, 6, 48 + 16);
}

/* 65 blocks to a slab. The bin is empty: the slab's list turns over, the next page's blocks are built, a slab
 * from the available ones comes in, a new one is made. */
static void refill(void) {
    range_new(0, 30, 1000);
    range_free(3, 9);
    range_new(30, 200, 1000);
    range_free(40, 50);
    for (int i = 200; i < 204; i++) stepped(OP_MALLOC, i, 1000);
    range_new(204, 258, 1000);
    for (int i = 258; i < 262; i++) stepped(OP_MALLOC, i, 1000);
}

/* The last block of a slab: of the active one, which is kept, and of others, which are set aside and at last
 * go back. */
static void last(void) {
    slot_new(0, 500);
    stepped(OP_FREE, 0, 0);
    stepped(OP_MALLOC, 0, 500);
    range_new(1, 1500, 500);
    for (int i = 1; i < 1500; i++) {
        if (i == 128 || i == 256 || i == 1290)
            stepped(OP_FREE, i, 0);
        else
            slot_free(i);
    }
}

/* Blocks that start in a slab's further slices are freed on the slow path, the last ones too. */
static void wide(void) {
    range_new(0, 150, 10000);
    range_free(0, 50);
    for (int i = 53; i < 148; i++) {
        if (i < 98 || i > 108)
            slot_free(i);
        else
            stepped(OP_FREE, i, 0);
    }
    for (int i = 50; i < 53; i++) stepped(OP_FREE, i, 0);
    stepped(OP_ALIGNED, 150, 12000);
}

static void spans(void) {
    slot_new(0, 100000);
    stepped(OP_MALLOC, 1, 100000);
    stepped(OP_REALLOC, 1, 120000);
    stepped(OP_FREE, 0, 0);
    stepped(OP_CALLOC, 2, 2000);
    slot_new(3, 3 << 20);
    slot_new(4, 1000);
    stepped(OP_REALLOC, 3, 5 << 20);
    stepped(OP_FREE, 3, 0);
}

static void owner_works(void) {
    range_new(1000, 1150, 1000);
    slot_free(1000); /* its slab was full: now it is on a list */
}
static void remote(void) {
    blocks_are_mine = false;
    range_new(0, 10, 48);
    other(owner_works);
    for (int i = 1001; i < 1065; i++) {
        if (i == 1001 || i == 1017)
            stepped(OP_FREE, i, 0);
        else
            slot_free(i);
    }
    stepped(OP_TRIM, 0, 0); /* the slab's last blocks arrive: it is taken away from its owner */
    stepped(OP_FREE, 1070, 0);
    stepped(OP_FREE, 1149, 0);
}

enum { LEFT = 1000, LEFT_BYTES = 400 };
static void leaver_works(void) { range_new(LEFT, LEFT + 400, LEFT_BYTES); }
/* The blocks of the slab that slot i's lies in, which is nobody's: the last one is left, and returned. */
static int slab_free_but_one(int i, int stepped_from, int stepped_to) {
    const uintptr_t slab = (uintptr_t)slots[i].p >> 16;
    int last = -1;
    for (int freed = 0; i < LEFT + 400; i++) {
        if (slots[i].p == NULL || (uintptr_t)slots[i].p >> 16 != slab) continue;
        if (last >= 0) {
            freed++;
            if (freed >= stepped_from && freed < stepped_to)
                stepped(OP_FREE, last, 0);
            else
                slot_free(last);
        }
        last = i;
    }
    return last;
}
/* Full slabs of another thread, which are nobody's: the blocks with which there are enough, the last one, and
 * what becomes of a slab that is whole. */
static void left(void) {
    range_new(0, 10, 48);
    other(leaver_works);
    int last = slab_free_but_one(LEFT, 15, 22);
    stepped(OP_FREE, last, 0);
    stepped(OP_TRIM, 0, 0);
    last = slab_free_but_one(last + 1, 0, 0);
    stepped(OP_FREE, last, 0);
    stepped(OP_MALLOC, 10, LEFT_BYTES);
}

static void freer_works(void) {
    for (int i = 0; i < 190; i++)
        if (i % 3 != 0) slot_free(i);
    idle();
}
/* Another thread has freed blocks of the slabs; the next free takes them in. */
static void nudged(void) {
    range_new(0, 190, 1000);
    slot_free(0);
    slot_free(66);
    other(freer_works);
    stepped(OP_FREE, 63, 0);
    for (int i = 3; i < 60; i += 3) slot_free(i);
    stepped(OP_FREE, 60, 0);
    stepped(OP_FREE, 189, 0);
}

static void full(void) {
    range_new(0, 70, 1000);
    range_free(10, 12);
    stepped(OP_MALLOC, 70, 1000);
    stepped(OP_FREE, 20, 0);
    range_free(21, 69);
    range_free(0, 10);
    for (int i = 12; i < 19; i++) slot_free(i);
    stepped(OP_FREE, 19, 0);
}

static void objects_new(int from, int to) {
    for (int i = from; i < to; i++) slot_set(i, weir_pool_alloc(pool), OBJECT_BYTES);
}
/* The first calls of a thread and of a pool, magazines from the heap, those that turn, that go to the tier
 * and come from there; a flush that finds some everywhere. */
static void pool_functions(void) {
    pool = weir_pool_create("functions", OBJECT_BYTES, 0, 0);
    used_bytes[used_count++] = 100; /* for what else the children do */
    stepped(OP_POOL_ALLOC, 0, OBJECT_BYTES);
    objects_new(1, 500);
    stepped(OP_POOL_ALLOC, 500, OBJECT_BYTES);
    for (int i = 0; i < 490; i++) {
        if (i > 360 && i < 420)
            stepped(OP_POOL_FREE, i, 0);
        else
            slot_free(i);
    }
    stepped(OP_POOL_FLUSH, 0, 0);
    stepped(OP_POOL_ALLOC, 0, OBJECT_BYTES);
    range_free(490, 500);
    objects_new(1, 60);
    for (int i = 60; i < 64; i++) stepped(OP_POOL_ALLOC, i, OBJECT_BYTES);
}
/* First by functions, then by the macros: what is cached moves into the words. */
static void pool_words(void) {
    pool = WEIR_POOL(declared);
    objects_new(0, 100);
    range_free(0, 40);
    stepped(OP_WORDS_ALLOC, 0, OBJECT_BYTES);
    stepped(OP_POOL_FREE, 50, 0);
    for (int i = 51; i < 90; i++) stepped(OP_WORDS_FREE, i, 0);
    for (int i = 1; i < 40; i++) stepped(OP_WORDS_ALLOC, i, OBJECT_BYTES);
}
static void pool_limited(void) {
    pool = weir_pool_create("limited", OBJECT_BYTES, 0, 0);
    EXPECT_EQ(weir_pool_limit(pool, 1000), 0);
    objects_new(0, 50);
    for (int i = 50; i < 150; i++) {
        if (i % 16 == 0)
            stepped(OP_POOL_ALLOC, i, OBJECT_BYTES);
        else
            objects_new(i, i + 1);
    }
    stepped(OP_POOL_FREE, 0, 0);
}

/* With WEIR_WIRE set. */
static void pool_wired(void) { pool_functions(); }

#define WALKED "check_first=1000000:check_every=1"
static const struct state {
    const char* name;
    const char* options;
    void (*run)(void);
    unsigned times; /* that the handler runs at an instruction */
} states[] = {
    {"fast", WALKED, fast, 2},
    {"refill", WALKED ":release=off", refill, 2},
    {"last", WALKED ":release=off", last, 2},
    {"wide", WALKED ":release=off", wide, 2},
    {"spans", WALKED ":release=off", spans, 2},
    {"remote", WALKED ":release=off", remote, 2},
    {"left", WALKED ":release=off", left, 2},
    {"nudged", WALKED ":release=off", nudged, 2},
    {"sorted", WALKED ":thread_free_max=0", nudged, 2},
    {"full", "checks=full:release=off", full, 2},
    {"pool by its functions", WALKED ":release=off", pool_functions, 1},
    {"pool by its macros", WALKED ":release=off", pool_words, 1},
    {"limited pool", WALKED ":release=off", pool_limited, 1},
    {"pool under the tool", WALKED ":release=off", pool_wired, 1},
};
enum { STATES = sizeof states / sizeof *states };

static void state_main(const struct state* state) {
    expected = mmap(NULL, sizeof *expected, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sigaction fork_action = {.sa_sigaction = on_fork, .sa_flags = SA_SIGINFO};
    sigfillset(&fork_action.sa_mask);
    sigdelset(&fork_action.sa_mask, SIGALRM); /* ends a child that hangs */
    sigaction(SIGNAL_FORK, &fork_action, NULL);
    Dl_info info = {0};
    EXPECT_NE(dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info), 0);
    library = (uintptr_t)info.dli_fbase;
    EXPECT_NE(dladdr((void*)(uintptr_t)state_main, &info), 0);
    program = (uintptr_t)info.dli_fbase;
    state_name = state->name;
    state->run();
    EXPECT_GE(forks, FORKS_AT_LEAST);
    _exit(contract_failed());
}

/* How often the handler ran at each instruction of the state, by its address; open addressing. */
enum { PLACES = 1 << 16 };
static struct place {
    uintptr_t pc;
    unsigned times;
} places[PLACES];
static unsigned places_taken;

static struct place* place_of(uintptr_t pc) {
    size_t at = (pc * 0x9e3779b97f4a7c15u) >> 48;
    while (places[at].pc != 0 && places[at].pc != pc) at = (at + 1) % PLACES;
    if (places[at].pc == 0 && ++places_taken == PLACES) {
        EXPECT(!"a place for each instruction");
        exit(contract_end());
    }
    places[at].pc = pc;
    return &places[at];
}

static uintptr_t stopped_at(pid_t pid) {
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, pid, (void*)NT_PRSTATUS, &all) != 0) EXPECT(!"registers");
#ifdef __x86_64__
    return registers.rip;
#else
    return registers.pc;
#endif
}

/* The tracer and whom it traces run in turns, which costs less on one processor than on two. But the library
 * starts with all there are: it makes as many arenas. */
static cpu_set_t everywhere, here;
static void processors_learn(void) {
    EXPECT_EQ(sched_getaffinity(0, sizeof everywhere, &everywhere), 0);
    CPU_ZERO(&here);
    CPU_SET((unsigned)sched_getcpu(), &here);
}
static void processors_set(pid_t pid, const cpu_set_t* set) {
    EXPECT_EQ(sched_setaffinity(pid, sizeof *set, set), 0);
}

/* The tracer: a step, the handler, a step; or the next step where the handler ran often enough. */
static void trace(pid_t pid, unsigned times) {
    int stepping = 0;
    memset(places, 0, sizeof places);
    places_taken = 0;
    for (;;) {
        int status;
        if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) {
            EXPECT_EQ(status, 0);
            return;
        }
        int signal = WSTOPSIG(status);
        struct place* place = signal == SIGTRAP && stepping ? place_of(stopped_at(pid)) : NULL;
        if (place != NULL && place->times < times) {
            uint64_t blocked = 0;
            ptrace(PTRACE_GETSIGMASK, pid, (void*)sizeof blocked, &blocked);
            if ((blocked >> (SIGNAL_FORK - 1) & 1) == 0) {
                place->times++;
                ptrace(PTRACE_CONT, pid, NULL, (void*)SIGNAL_FORK);
                continue;
            }
        }
        if (signal == SIGNAL_STEP && !stepping) {
            processors_set(pid, &here);
            stepping = 1;
        }
        if (signal == SIGNAL_DONE) stepping = 0;
        int is_known =
            signal == SIGTRAP || signal == SIGNAL_STEP || signal == SIGNAL_DONE || signal == SIGCHLD;
        ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL,
               (void*)(intptr_t)(is_known ? 0 : signal));
    }
}

/* The file through which the tool learns of processes, in the current folder. */
enum { WIRE_SLOTS = WEIR_WIRE_SLOT_COUNT_MAX, WIRE_POOLS = WEIR_WIRE_POOL_COUNT_MAX };
static struct weir_wire_header* wire_make(void) {
    size_t bytes = sizeof(struct weir_wire_header) + WIRE_SLOTS * sizeof(struct weir_wire_slot) +
                   WIRE_POOLS * sizeof(struct weir_wire_pool);
    int fd = open("wire", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(ftruncate(fd, (off_t)bytes), 0);
    struct weir_wire_header* file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    *file = (struct weir_wire_header){.magic = WEIR_WIRE_MAGIC,
                                      .version = WEIR_WIRE_VERSION,
                                      .slot_count = WIRE_SLOTS,
                                      .slot_bytes = sizeof(struct weir_wire_slot),
                                      .pool_count = WIRE_POOLS,
                                      .pool_bytes = sizeof(struct weir_wire_pool)};
    return file;
}

/* All children had slots, and none left a process's rows in the middle of a change. */
static void wire_check(struct weir_wire_header* file) {
    const struct weir_wire_slot* slot = (const struct weir_wire_slot*)(file + 1);
    EXPECT_GE(file->slots_claimed, FORKS_AT_LEAST);
    EXPECT_EQ(file->slots_refused, 0);
    EXPECT_GE(slot->pools_turn, 2);
    for (uint32_t i = 0; i < file->slots_claimed && i < WIRE_SLOTS; i++) EXPECT_EQ(slot[i].pools_turn % 2, 0);
}

int main(int argc, char** argv) {
    contract_begin();
    if (argc == 1) {
        processors_learn();
        processors_set(0, &here);
    }
    for (int i = 0; i < STATES; i++) {
        if (argc > 1 && strcmp(argv[1], states[i].name) == 0) state_main(&states[i]);
        if (argc > 1) continue;
        struct weir_wire_header* wire = states[i].run == pool_wired ? wire_make() : NULL;
        pid_t pid = fork();
        if (pid == 0) {
            processors_set(0, &everywhere);
            if (wire != NULL) setenv("WEIR_WIRE", "wire", 1);
            setenv("WEIR_OPTIONS", states[i].options, 1);
            EXPECT_EQ(ptrace(PTRACE_TRACEME, 0, NULL, NULL), 0);
            execl("/proc/self/exe", argv[0], states[i].name, NULL);
            _exit(99);
        }
        trace(pid, states[i].times);
        if (wire != NULL) wire_check(wire);
    }
    return contract_end();
}
