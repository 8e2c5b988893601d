/* pools.c: what it costs to get an object and to give it back, in one process for each variant.
 *
 *     pools --variant NAME [--pattern pairs|handoff|bursts] [--size 64] [--threads 1] [--touch none|64|all]
 *           [--milliseconds 20] [--expect FILE]
 *
 * Who may call it: run.py, or a person who types a line for each step. First a step in which everything is
 * looked at: no object is anybody else's, none is lost. Prints "NAME VALUE" lines; then for each byte on
 * stdin "pairs, seconds, seconds of CPU time" of a step that is only timed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "variants.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum pattern { PATTERN_PAIRS, PATTERN_HANDOFF, PATTERN_BURSTS, PATTERNS };
static const char* const patterns[] = {"pairs", "handoff", "bursts", NULL};
enum { TOUCHED_NONE, TOUCHED_64, TOUCHED_ALL };
static const char* const touched[] = {"none", "64", "all", NULL};

static const char* variant_name = "malloc";
static unsigned pattern, touch;
static uint64_t thread_count = 1, milliseconds = 20;
static const char* expected;

static const struct option_row rows[] = {
    {"variant", OPTION_TEXT, &variant_name, "one of variants.h", NULL},
    {"pattern", OPTION_CHOICE, &pattern, "pairs, handoff or bursts (pairs)", patterns},
    {"size", OPTION_BYTES, &object_bytes, "of an object (64)", NULL},
    {"threads", OPTION_COUNT, &thread_count, "number of threads: 1 or even (1)", NULL},
    {"touch", OPTION_CHOICE, &touch, "bytes of each object that are written: none, 64 or all (none)",
     touched},
    {"milliseconds", OPTION_COUNT, &milliseconds, "of a step (20)", NULL},
    {"expect", OPTION_TEXT, &expected, "file in which malloc must lie, or system", NULL},
    {NULL, OPTION_COUNT, NULL, NULL, NULL},
};

/* ---- what a thread holds */

enum { HELD = 4, MANY = 256, MANY_BYTES = 128 << 20, LEAST = 4 }; /* bytes: of all threads */

struct held {
    unsigned char* at;
    uint64_t stamp; /* when everything is looked at: what its first and last 8 bytes hold */
};

/* From a producer to its consumer. Each publishes in batches, so that the ring's own lines cost little. */
struct ring {
    _Alignas(64) _Atomic uint64_t head; /* Sync: the producer; release publishes the objects */
    atomic_bool done;
    _Alignas(64) _Atomic uint64_t tail; /* Sync: the consumer */
    _Alignas(64) struct held slots[MANY];
};

/* Sync: its thread during a step, the main thread otherwise. */
struct worker {
    _Alignas(64) uint64_t pairs;
    uint64_t stamps;
    struct held burst[MANY];
};

static struct worker workers[CREW_MAX];
static struct ring rings[CREW_MAX];
static _Alignas(64) atomic_bool stop;
static uint64_t burst_objects, ring_objects;
static size_t touch_bytes;

/* Objects of one of so many holders. */
static uint64_t objects_many(uint64_t holders) {
    uint64_t count = MANY_BYTES / holders / object_bytes;
    return count > MANY ? MANY : count < LEAST ? LEAST : count;
}

static bool is_stopped(void) { return atomic_load_explicit(&stop, memory_order_relaxed); }

/* ---- looking at everything */

enum { SEEN_SLOTS = 1 << 20 };
static _Atomic uintptr_t* seen_slots; /* addresses of objects: each once */
static _Atomic uint64_t seen_count;
static uint64_t seen_most;

/* A variant that loses objects gives out ever new ones. */
static void object_saw(const void* at) {
    uintptr_t address = (uintptr_t)at;
    size_t slot = (address * 0x9e3779b97f4a7c15u >> 20) % SEEN_SLOTS;
    for (;; slot = (slot + 1) % SEEN_SLOTS) {
        uintptr_t found = atomic_load_explicit(&seen_slots[slot], memory_order_relaxed);
        if (found == address) return;
        if (found != 0) continue;
        if (atomic_compare_exchange_strong(&seen_slots[slot], &found, address)) break;
        if (found == address) return;
    }
    if (atomic_fetch_add(&seen_count, 1) >= seen_most) give_up("objects are lost");
}

static void ends_write(const struct held* h) {
    __builtin_memcpy(h->at + object_bytes - 8, &h->stamp, 8);
    __builtin_memcpy(h->at, &h->stamp, 8);
}
static void ends_check(const struct held* h) {
    uint64_t first, last;
    __builtin_memcpy(&first, h->at, 8);
    __builtin_memcpy(&last, h->at + object_bytes - 8, 8);
    if (first != h->stamp || last != h->stamp) give_up("an object is somebody else's too");
}

/* ---- the patterns, inlined for each variant */

#define INLINED static inline __attribute__((always_inline))

INLINED struct held take(const struct calls* calls, size_t number, bool looks) {
    struct held h = {calls->get(), 0};
    if (h.at == NULL) give_up("no object");
    if (touch_bytes == 64)
        __builtin_memset(h.at, 1, 64);
    else if (touch_bytes != 0)
        memset(h.at, 1, touch_bytes);
    if (looks) {
        object_saw(h.at);
        h.stamp = ++workers[number].stamps << 8 | number;
        ends_write(&h);
    }
    return h;
}
INLINED void give(const struct calls* calls, struct held h, bool looks) {
    if (looks) ends_check(&h);
    calls->put(h.at);
}

INLINED void pairs_run(const struct calls* calls, size_t number, bool looks) {
    struct held held[HELD];
    uint64_t count = HELD;
    for (unsigned i = 0; i < HELD; i++) held[i] = take(calls, number, looks);
    for (unsigned i = 0; !is_stopped(); i = (i + 1) % HELD, count++) {
        struct held h = take(calls, number, looks);
        give(calls, held[i], looks);
        held[i] = h;
    }
    for (unsigned i = 0; i < HELD; i++) give(calls, held[i], looks);
    workers[number].pairs = count;
}

INLINED void bursts_run(const struct calls* calls, size_t number, bool looks) {
    struct worker* w = &workers[number];
    uint64_t count = 0;
    do {
        uint64_t got = 0;
        do w->burst[got++] = take(calls, number, looks);
        while (got < burst_objects && !is_stopped());
        for (uint64_t i = 0; i < got; i++) give(calls, w->burst[i], looks);
        count += got;
    } while (!is_stopped());
    w->pairs = count;
}

INLINED void produce(const struct calls* calls, size_t number, bool looks, struct ring* ring) {
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    do {
        uint64_t room = ring_objects - (head - atomic_load_explicit(&ring->tail, memory_order_acquire));
        if (room > ring_objects / LEAST) room = ring_objects / LEAST;
        if (room == 0) sched_yield();
        for (; room != 0; room--) ring->slots[head++ % ring_objects] = take(calls, number, looks);
        atomic_store_explicit(&ring->head, head, memory_order_release);
    } while (!is_stopped());
    atomic_store_explicit(&ring->done, true, memory_order_release);
}
/* All that is there. */
INLINED uint64_t consume(const struct calls* calls, bool looks, struct ring* ring) {
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint64_t count = atomic_load_explicit(&ring->head, memory_order_acquire) - tail;
    for (uint64_t i = 0; i < count; i++) give(calls, ring->slots[tail++ % ring_objects], looks);
    atomic_store_explicit(&ring->tail, tail, memory_order_release);
    return count;
}

/* One thread alone fills the ring and empties it in turn. */
INLINED void alternate(const struct calls* calls, size_t number, bool looks, struct ring* ring) {
    uint64_t head = ring->head, count = 0;
    do {
        for (uint64_t i = 0; i < ring_objects; i++)
            ring->slots[head++ % ring_objects] = take(calls, number, looks);
        atomic_store_explicit(&ring->head, head, memory_order_relaxed);
        count += consume(calls, looks, ring);
    } while (!is_stopped());
    workers[number].pairs = count;
}

INLINED void handoff_run(const struct calls* calls, size_t number, bool looks) {
    struct ring* ring = &rings[number / 2];
    workers[number].pairs = 0;
    if (thread_count == 1) {
        alternate(calls, number, looks, ring);
    } else if (number % 2 == 0) {
        produce(calls, number, looks, ring);
    } else {
        for (bool done = false; !done;) {
            done = atomic_load_explicit(&ring->done, memory_order_acquire);
            uint64_t count = consume(calls, looks, ring);
            workers[number].pairs += count;
            if (count == 0 && !done) sched_yield();
        }
    }
}

/* ---- the variants' loops, in the order of their table */

#define LOOPS(id, name, size, reuses, pool)                                                                  \
    static const struct calls calls_##id = {id##_get, id##_put};                                             \
    static void pairs_##id(size_t n) { pairs_run(&calls_##id, n, false); }                                   \
    static void handoff_##id(size_t n) { handoff_run(&calls_##id, n, false); }                               \
    static void bursts_##id(size_t n) { bursts_run(&calls_##id, n, false); }                                 \
    static void pairs_looked_##id(size_t n) { pairs_run(&calls_##id, n, true); }                             \
    static void handoff_looked_##id(size_t n) { handoff_run(&calls_##id, n, true); }                         \
    static void bursts_looked_##id(size_t n) { bursts_run(&calls_##id, n, true); }
VARIANTS(LOOPS)

typedef void job(size_t number);
#define JOBS_TIMED(id, name, size, reuses, pool) {pairs_##id, handoff_##id, bursts_##id},
#define JOBS_LOOKED(id, name, size, reuses, pool)                                                            \
    {pairs_looked_##id, handoff_looked_##id, bursts_looked_##id},
static job* const timed[][PATTERNS] = {VARIANTS(JOBS_TIMED)};
static job* const looked[][PATTERNS] = {VARIANTS(JOBS_LOOKED)};

/* ---- steps */

struct cost {
    uint64_t pairs;
    double wall_s, cpu_s;
};

static struct cost step(job* run, double seconds) {
    struct cost cost = {0};
    for (uint64_t i = 0; i < thread_count; i++) atomic_store(&rings[i].done, false);
    atomic_store(&stop, false);
    double start = now_s(), cpu = now_cpu_s();
    crew_begin(run);
    rest_s(seconds);
    atomic_store(&stop, true);
    crew_end();
    cost.wall_s = now_s() - start, cost.cpu_s = now_cpu_s() - cpu;
    for (uint64_t i = 0; i < thread_count; i++) cost.pairs += workers[i].pairs;
    if (cost.pairs == 0) give_up("nothing was done");
    return cost;
}

/* Each object that was taken is back, by the pool's own count; and it is this pool that served. */
static void pool_check(struct weir_pool* pool) {
    struct weir_pool_stats s = {.struct_size = sizeof s};
    if (weir_pool_stats_get(pool, &s) != 0 || s.allocated == 0) give_up("the pool was not used");
    if (s.used != 0 || s.allocated != s.cached) give_up("the pool's figures do not add up");
}

static void look(const struct variant* v, double seconds) {
    uint64_t each = pattern == PATTERN_PAIRS    ? HELD + 1
                    : pattern == PATTERN_BURSTS ? burst_objects
                                                : ring_objects;
    /* What threads may cache beyond what is held: two magazines of 62 objects. */
    seen_most = v->reuses ? thread_count * (3 * each + 256) : SEEN_SLOTS / 2;
    seen_slots = memory_map(SEEN_SLOTS * sizeof *seen_slots);
    struct cost cost = step(looked[v - variants][pattern], seconds);
    if (v->pool != NULL) pool_check(v->pool);
    result_count("looked_pairs", cost.pairs);
    result_count("looked_objects", seen_count);
    memory_unmap((void*)seen_slots, SEEN_SLOTS * sizeof *seen_slots);
}

int main(int argc, char** argv) {
    options_read(argc, argv, rows);
    bool is_even = thread_count == 1 || thread_count % 2 == 0;
    if (thread_count < 1 || thread_count > CREW_MAX || !is_even || object_bytes < 64 || milliseconds < 1)
        give_up("out of range");
    touch_bytes = touch == TOUCHED_ALL ? object_bytes : touch == TOUCHED_64 ? 64 : 0;
    burst_objects = objects_many(thread_count);
    ring_objects = objects_many((thread_count + 1) / 2);
    allocator_prove(expected);
    const struct variant* v = variant_open(variant_name);
    crew_open(thread_count);
    double seconds = (double)milliseconds / 1000;
    look(v, seconds);
    result_text("ready", v->name);
    result_flush();
    for (char letter; read(0, &letter, 1) == 1;) {
        (void)step(timed[v - variants][pattern],
                   seconds / 4); /* it waited for its turn: into its stride again */
        struct cost cost = step(timed[v - variants][pattern], seconds);
        char line[96];
        int length = snprintf(line, sizeof line, "%llu %.9f %.9f\n", (unsigned long long)cost.pairs,
                              cost.wall_s, cost.cpu_s);
        if (write(1, line, (size_t)length) != length) give_up("nobody reads");
    }
    _exit(0);
}
