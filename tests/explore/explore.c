/* explore.c: every interleaving of two or three threads on the slots of object pools.
 *
 * Who may call it: the unit tests' ctest, or a person. It compiles src/pool/slot.h and src/pool/magazine.h as
 * they are, with atomics that hand control to a scheduler before each access to a shared word, and runs each
 * scenario once for every order in which its threads can make their steps (depth first; a run that comes to a
 * state that was seen before with the same steps left goes no further). After each run: no object lost, none
 * given out twice, and after a flush none of before it in the tier. With an argument, one mutant of the
 * protocol, which must fail: explore              all scenarios explore MUTANT       take_without_xchg,
 * put_without_cas, shelf_pop_one, share_without_look It deliberately does not explore what weaker memory
 * orders allow.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "atomic.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "pool/magazine.h"

enum { THREADS = 3, STACK = 65536, MAGAZINES = 4, STEPS_MAX = 200, SHARDS = 2, PER_SHARD = 1 };

/* ---- The scheduler: a path is the list of choices; paths are tried in order. */

static jmp_buf scheduler;
static struct {
    ucontext_t start;
    jmp_buf context;
    bool started;
    bool runs;
    uint64_t seen; /* hash of all that it found: with its body, what it does next */
    char stack[STACK];
} thread[THREADS];
static unsigned thread_count;
static int running = -1;
static unsigned char path[STEPS_MAX]; /* which of the threads that can run makes step i */
static unsigned char width[STEPS_MAX];
static unsigned depth;
static unsigned long runs_made;

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

void explore_saw(uintptr_t value) {
    if (running >= 0) thread[running].seen = mix(thread[running].seen + 1, value);
}

void explore_step(void) {
    if (running < 0) return; /* setting up, or looking at the result */
    thread[running].seen = mix(thread[running].seen, 1);
    if (_setjmp(thread[running].context) == 0) _longjmp(scheduler, 1);
}

static void thread_go_on(int i) {
    running = i;
    if (_setjmp(scheduler) == 0) {
        if (thread[i].started) _longjmp(thread[i].context, 1);
        thread[i].started = true;
        setcontext(&thread[i].start);
    }
    running = -1;
}

static unsigned runnable(unsigned* which) {
    unsigned count = 0;
    for (unsigned i = 0; i < thread_count; i++)
        if (thread[i].runs) which[count++] = i;
    return count;
}

/* ---- The model: a tier of two slots, magazines of one object each, the heap as a count. */

static _Alignas(64) unsigned char tier_room[sizeof(struct tier) + SHARDS * PER_SHARD * sizeof(struct slot)];
static struct tier* const tier = (struct tier*)(void*)tier_room;
static struct magazine* shelf;
static uint64_t epoch;
/* Magazines have the place of one object behind them; their addresses are multiples of 64. */
static _Alignas(64) unsigned char magazine_room[MAGAZINES][64];
static struct magazine* magazine(unsigned i) { return (struct magazine*)(void*)magazine_room[i]; }

enum where { IN_HEAP, IN_MAGAZINE, IN_PROGRAM };
static enum where object[MAGAZINES]; /* Sync: who has the magazine, or the program */
static bool drained_twice;

static void fill(unsigned i) {
    magazine(i)->count = 1;
    magazine(i)->capacity = 1;
    magazine(i)->objects[0] = &object[i];
    object[i] = IN_MAGAZINE;
}

/* What a thread has alone. */
static void drain(struct magazine* m) {
    if (m->count != 1) drained_twice = true;
    enum where* o = m->objects[0];
    if (*o != IN_MAGAZINE) drained_twice = true;
    *o = IN_HEAP;
    m->count = 0;
}

static enum { NONE, TAKE_WITHOUT_XCHG, PUT_WITHOUT_CAS, SHELF_POP_ONE, SHARE_WITHOUT_LOOK } mutant;

static uintptr_t take(uint32_t shard) {
    struct tier_place at = {shard_first(tier, shard), 1, shard, 0}; /* it has put one before, and found one */
    if (mutant != TAKE_WITHOUT_XCHG) return tier_take(tier, &at);
    for (uint32_t i = 0; i < tier_slots(tier); i++) {
        uintptr_t word = load_relaxed(&tier->slots[i].word);
        if (word == 0) continue;
        store_relaxed(&tier->slots[i].word, (uintptr_t)0);
        return word;
    }
    return 0;
}

static bool put(uint32_t shard, uintptr_t word) {
    struct tier_place at = {shard_first(tier, shard), 1, shard, 0};
    if (mutant != PUT_WITHOUT_CAS) return tier_put(tier, &at, word);
    for (uint32_t i = 0; i < tier_slots(tier); i++) {
        if (load_relaxed(&tier->slots[i].word) != 0) continue;
        store_relaxed(&tier->slots[i].word, word);
        return true;
    }
    return false;
}

static void discard(struct magazine* m) { shelf_push(&shelf, m); }

static struct magazine* undiscard(void) {
    if (mutant != SHELF_POP_ONE) return shelf_pop(&shelf);
    struct magazine* m = load_relaxed(&shelf);
    struct magazine* next;
    do {
        if (m == NULL) return NULL;
        next = m->next; /* which may be another's by now */
        explore_step();
    } while (!cas_acq_rel(&shelf, &m, next));
    return m;
}

/* As storage_share, storage_empty and storage_trim do it. */
static void share(uint32_t shard, struct magazine* m, uint64_t of) {
    if (load_relaxed(&epoch) != of || !put(shard, magazine_word(m))) {
        drain(m);
        discard(m);
        return;
    }
    if (mutant == SHARE_WITHOUT_LOOK || load_relaxed(&epoch) == of) return;
    uintptr_t word = take(shard);
    if (word == 0) return;
    drain(magazine_of(word));
    discard(magazine_of(word));
}

static void flush(void) {
    store_relaxed(&epoch, epoch + 1);
    for (uint32_t i = 0; i < tier_slots(tier); i++) {
        uintptr_t word = slot_take(&tier->slots[i]);
        if (word == 0) continue;
        drain(magazine_of(word));
        discard(magazine_of(word));
    }
}

/* Half of a trim: what it takes out and does not drain goes back. Never during a flush: both have pools_lock.
 */
static void trim(void) {
    uintptr_t word = slot_take(&tier->slots[1]);
    if (word == 0) return;
    struct magazine* m = magazine_of(word);
    if (!slot_put(&tier->slots[1], magazine_word(m)) && !put(0, magazine_word(m))) {
        drain(m);
        discard(m);
    }
}

/* A program's: take one, give it back as full. */
static void turn(uint32_t shard, uint64_t of) {
    uintptr_t word = take(shard);
    if (word == 0) return;
    struct magazine* m = magazine_of(word);
    enum where* o = m->objects[0];
    if (m->count != 1 || *o != IN_MAGAZINE) drained_twice = true;
    *o = IN_PROGRAM;
    explore_step();
    if (*o != IN_PROGRAM) drained_twice = true;
    *o = IN_MAGAZINE;
    share(shard, m, of);
}

static void empties(void) {
    struct magazine* m = undiscard();
    if (m == NULL) return;
    if (m->count != 0) drained_twice = true;
    m->count = 7; /* it is this thread's */
    explore_step();
    if (m->count != 7) drained_twice = true;
    m->count = 0;
    discard(m);
}

/* ---- Scenarios: what each thread does, and how the tier is before. */

static uint64_t old_epoch;
static void do_put0(void) { share(0, magazine(0), old_epoch); }
static void do_put1(void) { share(1, magazine(1), old_epoch); }
static void do_put2(void) { share(0, magazine(2), old_epoch); }
static void do_turn0(void) { turn(0, old_epoch); }
static void do_turn1(void) { turn(1, old_epoch); }
static void do_flush(void) { flush(); }
static void do_trim(void) { trim(); }
static void do_empties(void) { empties(); }
static void do_empties_twice(void) {
    empties();
    empties();
}

struct scenario {
    const char* name;
    void (*body[THREADS])(void);
    unsigned in_tier; /* the first so many magazines are in their slots */
    unsigned on_shelf;
    bool flushes;
};
static const struct scenario scenarios[] = {
    {"two puts, one slot free", {do_put1, do_put2}, 1, 0, false},
    {"two puts and a take", {do_put0, do_put1, do_turn0}, 0, 0, false},
    {"two takes of one", {do_turn0, do_turn1}, 1, 0, false},
    {"three takes of two", {do_turn0, do_turn1, do_turn1}, 2, 0, false},
    {"flush on empty, put", {do_flush, do_put0}, 0, 0, true},
    {"flush and a turn", {do_flush, do_turn0}, 2, 0, true},
    {"flush, put and take", {do_flush, do_put0, do_turn1}, 0, 0, true},
    {"flush, two puts", {do_flush, do_put1, do_put0}, 0, 0, true},
    {"two flushes and a turn", {do_flush, do_flush, do_turn1}, 2, 0, true},
    {"trim, put and take", {do_trim, do_put2, do_turn1}, 2, 0, false},
    {"trim and two turns", {do_trim, do_turn0, do_turn1}, 2, 0, false},
    {"empties", {do_empties, do_empties_twice}, 0, 2, false},
    {"three for two empties", {do_empties, do_empties, do_empties}, 0, 3, false},
};

static const struct scenario* scenario;

static void prepare(void) {
    epoch = 0;
    memset(tier_room, 0, sizeof tier_room);
    tier_shape(tier, SHARDS, PER_SHARD);
    for (unsigned i = 0; i < SHARDS; i++) tier->reach[i] = PER_SHARD;
    shelf = NULL;
    drained_twice = false;
    old_epoch = epoch;
    for (unsigned i = 0; i < MAGAZINES; i++) fill(i);
    for (unsigned i = 0; i < scenario->in_tier; i++) tier->slots[i].word = magazine_word(magazine(i));
    for (unsigned i = 0; i < scenario->on_shelf; i++) {
        drain(magazine(i));
        discard(magazine(i));
    }
}

static bool on_shelf(const struct magazine* m) {
    unsigned left = MAGAZINES + 1;
    for (const struct magazine* s = shelf; s != NULL && left-- != 0; s = s->next)
        if (s == m) return true;
    return false;
}

/* Whether the threads' own magazines were given to the tier: those outside it at first that a body puts. */
static bool is_put(unsigned i) {
    for (unsigned k = 0; k < THREADS; k++)
        if ((i == 0 && scenario->body[k] == do_put0) || (i == 1 && scenario->body[k] == do_put1) ||
            (i == 2 && scenario->body[k] == do_put2))
            return true;
    return false;
}

/* NULL, or what is wrong now that all have ended. */
static const char* wrong(void) {
    if (drained_twice) return "an object or magazine was two threads' at once";
    for (unsigned i = 0; i < MAGAZINES; i++) {
        unsigned found = on_shelf(magazine(i)) ? 1 : 0;
        for (uint32_t k = 0; k < tier_slots(tier); k++) {
            if (tier->slots[k].word == 0 || magazine_of(tier->slots[k].word) != magazine(i)) continue;
            found += 1;
            if (scenario->flushes) return "a magazine of before the flush is in the tier";
            if (slot_objects(tier->slots[k].word) != magazine(i)->count) return "a slot's count is wrong";
        }
        bool was_out = i < scenario->in_tier || i < scenario->on_shelf || is_put(i);
        if (found != (was_out ? 1u : 0u))
            return found == 0 ? "a magazine is lost" : "a magazine is in two places";
        if (on_shelf(magazine(i)) && object[i] != IN_HEAP) return "an object is lost with its magazine";
        if (!on_shelf(magazine(i)) && object[i] != IN_MAGAZINE) return "an object is gone from its magazine";
    }
    return NULL;
}

static void thread_body(int i) {
    scenario->body[i]();
    thread[i].runs = false;
    _longjmp(scheduler, 1);
}

static void threads_make(void) {
    for (thread_count = 0; thread_count < THREADS && scenario->body[thread_count] != NULL; thread_count++) {
        unsigned i = thread_count;
        getcontext(&thread[i].start);
        thread[i].start.uc_stack.ss_sp = thread[i].stack;
        thread[i].start.uc_stack.ss_size = STACK;
        thread[i].started = false;
        thread[i].runs = true;
        thread[i].seen = 0;
        makecontext(&thread[i].start, (void (*)(void))thread_body, 1, (int)i);
    }
}

/* ---- States that were seen: what is shared, and what each thread found so far. */

enum { STATES_LOG2 = 22 };
static uint64_t states[1 << STATES_LOG2];
static unsigned long states_count;

static uint64_t state_now(void) {
    uint64_t hash = epoch;
    const unsigned char* parts[] = {tier_room, (const unsigned char*)magazine_room,
                                    (const unsigned char*)object};
    const size_t sizes[] = {sizeof tier_room, sizeof magazine_room, sizeof object};
    for (unsigned k = 0; k < 3; k++)
        for (size_t i = 0; i < sizes[k]; i += 8) {
            uint64_t word;
            memcpy(&word, parts[k] + i, 8);
            hash = mix(hash, word);
        }
    hash = mix(mix(hash, (uintptr_t)shelf), drained_twice);
    for (unsigned i = 0; i < thread_count; i++) hash = mix(mix(hash, thread[i].seen), thread[i].runs);
    return hash | 1;
}

/* Whether the state is new. */
static bool state_add(uint64_t hash) {
    size_t i = hash >> (64 - STATES_LOG2);
    while (states[i] != 0 && states[i] != hash) i = (i + 1) % (1 << STATES_LOG2);
    if (states[i] == hash) return false;
    states[i] = hash;
    if (++states_count > (1 << STATES_LOG2) / 2) {
        printf("too many states\n");
        exit(1);
    }
    return true;
}

/* Run along the path, and where it ends by the first thread that can, until all have ended or the state is
 * one that was seen, whose every continuation was tried. */
static const char* run(void) {
    prepare();
    threads_make();
    runs_made++;
    unsigned which[THREADS];
    unsigned step = 0;
    for (unsigned count; (count = runnable(which)) != 0; step++) {
        if (step == STEPS_MAX) return "it does not end";
        if (step >= depth) {
            if (!state_add(state_now())) {
                depth = step;
                return NULL;
            }
            path[step] = 0;
        }
        width[step] = (unsigned char)count;
        thread_go_on((int)which[path[step]]);
    }
    depth = step;
    return wrong();
}

/* The next path in order; false: that was the last. */
static bool advance(void) {
    while (depth != 0 && path[depth - 1] + 1 == width[depth - 1]) depth--;
    if (depth == 0) return false;
    path[depth - 1]++;
    return true;
}

static bool explore(void) {
    runs_made = 0;
    depth = 0;
    states_count = 0;
    memset(states, 0, sizeof states);
    do {
        const char* fault = run();
        if (fault == NULL) continue;
        printf("FAIL %s: %s; steps by thread:", scenario->name, fault);
        for (unsigned i = 0; i < depth; i++) printf(" %u", path[i]);
        printf("\n");
        return false;
    } while (advance());
    printf("ok   %s: %lu states, %lu runs\n", scenario->name, states_count, runs_made);
    return true;
}

int main(int argc, char** argv) {
    static const char* const mutants[] = {"", "take_without_xchg", "put_without_cas", "shelf_pop_one",
                                          "share_without_look"};
    for (unsigned i = 1; argc > 1 && i < sizeof mutants / sizeof mutants[0]; i++)
        if (strcmp(argv[1], mutants[i]) == 0) mutant = i;
    if (argc > 1 && mutant == NONE) return 2;
    unsigned passed = 0;
    unsigned failed = 0;
    for (unsigned i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        scenario = &scenarios[i];
        explore() ? passed++ : failed++;
        fflush(stdout);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
