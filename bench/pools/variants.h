/* variants.h: the ways to get an object and to give it back that are compared.
 *
 * Who may include it: the programs of this folder, once each. Everything is inlined into their loops, so that
 * no variant pays for being one of several. The lists are references written for this benchmark; they take
 * their objects from the malloc that serves the process, which is the C library's, and never give one back:
 * after the first round none of them calls malloc. That favours them, and `dwcas` could not do otherwise: it
 * reads an object that another thread may have by then, which crashes once objects go back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BENCH_POOLS_VARIANTS_H
#define BENCH_POOLS_VARIANTS_H

#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "weir/weir.h"
/* Only there where weir serves. */
#pragma weak weir_pool_create
#pragma weak weir_pool_alloc
#pragma weak weir_pool_free
#pragma weak weir_pool_alloc_slow
#pragma weak weir_pool_free_slow
#pragma weak weir_pool_stats_get
#include "weir/pool.h"

static uint64_t object_bytes = 64; /* of this process; Sync: set before its threads start */

struct link {
    struct link* next;
};

/* ---- none: the kernel each time */

static inline void* none_get(void) {
    void* p = mmap(NULL, object_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
static inline void none_put(void* object) { munmap(object, object_bytes); }

/* ---- malloc: the one that serves the process */

static inline void* malloc_get(void) { return malloc(object_bytes); }
static inline void malloc_put(void* object) { free(object); }

/* ---- mutex: a list behind a lock */

static struct {
    _Alignas(64) pthread_mutex_t mutex;
    struct link* head;
} locked = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static inline void* mutex_get(void) {
    pthread_mutex_lock(&locked.mutex);
    struct link* first = locked.head;
    if (first != NULL) locked.head = first->next;
    pthread_mutex_unlock(&locked.mutex);
    return first != NULL ? first : malloc(object_bytes);
}
static inline void mutex_put(void* object) {
    struct link* first = object;
    pthread_mutex_lock(&locked.mutex);
    first->next = locked.head;
    locked.head = first;
    pthread_mutex_unlock(&locked.mutex);
}

/* ---- dwcas: head and a counter, changed together */

struct head {
    struct link* first;
    uint64_t count;
};
static struct {
    _Alignas(64) struct head head;
} counted;

/* True: the head was `*seen` and is `to`. False: *seen is what it was. */
static inline bool head_change(struct head* head, struct head* seen, struct head to) {
#if defined(__x86_64__)
    bool done;
    __asm__ volatile("lock cmpxchg16b %1"
                     : "=@ccz"(done), "+m"(*head), "+a"(seen->first), "+d"(seen->count)
                     : "b"(to.first), "c"(to.count)
                     : "memory");
    return done;
#elif defined(__aarch64__)
    register struct link* first __asm__("x0") = seen->first;
    register uint64_t count __asm__("x1") = seen->count;
    register struct link* to_first __asm__("x2") = to.first;
    register uint64_t to_count __asm__("x3") = to.count;
    __asm__ volatile(".arch_extension lse\n\t"
                     "caspal x0, x1, x2, x3, %2"
                     : "+r"(first), "+r"(count), "+Q"(*head)
                     : "r"(to_first), "r"(to_count)
                     : "memory");
    bool done = first == seen->first && count == seen->count;
    *seen = (struct head){first, count};
    return done;
#else
#    error "no double-word compare and swap"
#endif
}

static inline struct head head_seen(void) {
    /* Of two moments, perhaps: then the change fails. */
    uint64_t count = __atomic_load_n(&counted.head.count, __ATOMIC_ACQUIRE);
    return (struct head){__atomic_load_n(&counted.head.first, __ATOMIC_ACQUIRE), count};
}
static inline void* dwcas_get(void) {
    struct head seen = head_seen();
    while (seen.first != NULL) {
        struct link* next = __atomic_load_n(&seen.first->next, __ATOMIC_RELAXED); /* the race */
        if (head_change(&counted.head, &seen, (struct head){next, seen.count + 1})) return seen.first;
    }
    return malloc(object_bytes);
}
static inline void dwcas_put(void* object) {
    struct link* first = object;
    struct head seen = head_seen();
    do __atomic_store_n(&first->next, seen.first, __ATOMIC_RELAXED);
    while (!head_change(&counted.head, &seen, (struct head){first, seen.count + 1}));
}

/* ---- self-locked: a head that is exchanged for a marker while its first object is looked at */

static struct link busy_marker;
#define BUSY (&busy_marker)
static struct {
    _Alignas(64) struct link* _Atomic head;
} marked;

static inline void processor_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}
/* The head as somebody leaves it; reading alone, so that the owner's line is not fought for. */
static inline struct link* marked_head(void) {
    struct link* first;
    while ((first = atomic_load_explicit(&marked.head, memory_order_relaxed)) == BUSY) processor_relax();
    return first;
}
static inline void* marked_get(void) {
    for (;;) {
        if (marked_head() == NULL) return malloc(object_bytes);
        struct link* first = atomic_exchange_explicit(&marked.head, BUSY, memory_order_acquire);
        if (first == BUSY) continue;
        atomic_store_explicit(&marked.head, first != NULL ? first->next : NULL, memory_order_release);
        if (first != NULL) return first;
    }
}
static inline void marked_put(void* object) {
    struct link* first = object;
    struct link* seen;
    do first->next = seen = marked_head();
    while (!atomic_compare_exchange_weak_explicit(&marked.head, &seen, first, memory_order_release,
                                                  memory_order_relaxed));
}

/* ---- weir-pool: by the functions, and as it is declared at file scope */

static struct weir_pool* pool_made;

static inline void* made_get(void) { return weir_pool_alloc(pool_made); }
static inline void made_put(void* object) { weir_pool_free(pool_made, object); }

#define DECLARED(size)                                                                                       \
    WEIR_POOL_DECLARE(of_##size, size, 0, 0);                                                                \
    static inline void* of_##size##_get(void) { return WEIR_POOL_ALLOC(of_##size); }                         \
    static inline void of_##size##_put(void* object) { WEIR_POOL_FREE(of_##size, object); }
DECLARED(64)
DECLARED(1024)
DECLARED(16384)
DECLARED(49152)
DECLARED(262144)
DECLARED(2097152)

/* ---- broken ones, for the self-test: each over the list behind a lock */

static atomic_uint broken_calls;
static inline bool is_faulty_call(void) { return atomic_fetch_add(&broken_calls, 1) % 4 == 3; }

/* Gives one object out twice. */
static inline void* twice_get(void) {
    static void* _Atomic last;
    void* again = atomic_load(&last);
    if (is_faulty_call() && again != NULL) return again;
    void* p = mutex_get();
    atomic_store(&last, p);
    return p;
}
static inline void twice_put(void* object) { mutex_put(object); }

/* Loses objects. */
static inline void* lost_get(void) { return mutex_get(); }
static inline void lost_put(void* object) {
    if (!is_faulty_call()) mutex_put(object);
}

/* Takes longer than the others, by its own clock: run.py knows by how much. */
enum { SLOW_NS = 2000 };
static inline void* slow_get(void) {
    for (double start = own_cpu_s(); (own_cpu_s() - start) * 1e9 < SLOW_NS;) {
    }
    return mutex_get();
}
static inline void slow_put(void* object) { mutex_put(object); }

/* ---- all of them: X(name of its functions, name, size of its objects alone or 0, reuses, pool) */

#define VARIANT_DECLARED(X, size) X(of_##size, "weir-pool", size, true, WEIR_POOL(of_##size))
#define VARIANTS(X)                                                                                          \
    X(none, "none", 0, false, NULL)                                                                          \
    X(malloc, "malloc", 0, false, NULL)                                                                      \
    X(mutex, "mutex", 0, true, NULL)                                                                         \
    X(dwcas, "dwcas", 0, true, NULL)                                                                         \
    X(marked, "self-locked", 0, true, NULL)                                                                  \
    X(made, "weir-pool-fn", 0, true, NULL)                                                                   \
    VARIANT_DECLARED(X, 64)                                                                                  \
    VARIANT_DECLARED(X, 1024)                                                                                \
    VARIANT_DECLARED(X, 16384)                                                                               \
    VARIANT_DECLARED(X, 49152)                                                                               \
    VARIANT_DECLARED(X, 262144)                                                                              \
    VARIANT_DECLARED(X, 2097152)                                                                             \
    X(twice, "broken-twice", 0, true, NULL)                                                                  \
    X(lost, "broken-lost", 0, true, NULL)                                                                    \
    X(slow, "broken-slow", 0, true, NULL)

struct calls {
    void* (*get)(void);
    void (*put)(void* object);
};
struct variant {
    const char* name;
    uint64_t size;
    bool reuses; /* what was freed is given out again before there is new memory */
    struct weir_pool* pool;
    struct calls calls;
};
#define VARIANT_ROW(id, name, size, reuses, pool) {name, size, reuses, pool, {id##_get, id##_put}},
static struct variant variants[] = {VARIANTS(VARIANT_ROW)};

/* The row of that name for objects of this process' size; a pool is ready then. */
static inline struct variant* variant_open(const char* name) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct variant* v = &variants[i];
        if (strcmp(v->name, name) != 0 || (v->size != 0 && v->size != object_bytes)) continue;
        if (strncmp(v->name, "weir-pool", 9) != 0) return v;
        if (!lies_with_malloc((void*)weir_pool_alloc) || !lies_with_malloc((void*)weir_pool_alloc_slow))
            give_up("the pools do not lie with malloc");
        if (v->pool == NULL) v->pool = pool_made = weir_pool_create("made", object_bytes, 0, 0);
        if (v->pool == NULL) give_up("no pool");
        return v;
    }
    give_up("no such variant for this size");
}

#endif
