/* pool.h: the records of pools, of the memory that they share, and of the threads that use them.
 *
 *     program  <->  cache (three words of TLS)  <->  magazine x 2   per thread and pool
 *                                                      |
 *                   tier of slots (slot.h)             |            per storage
 *                                                      |
 *                   heap
 *
 * The api layer calls it. Counting is by magazine: what went into a thread's magazines and came out of them,
 * less what is in them now, is what the program has. It deliberately knows nothing of slabs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_POOL_POOL_H
#define WEIR_POOL_POOL_H

#include "heap/heap.h"
#include "os/lock.h"
#include "pool/magazine.h"
#include "tag/tag.h"
#include "weir/pool.h"

enum { POOLS_MAX = 4096, CHUNK_POOLS = 16, CHUNKS = POOLS_MAX / CHUNK_POOLS };
enum { POOL_NAME_BYTES = 32, TICK_CALLS = 16 };

/* Memory that pools share: objects of one size in the heap.
 *
 *  Invariant when nobody is at work: allocated == used by its pools + in threads' magazines + in `full`.
 *  Sync: atomics where said; the rest pools_lock, but for what is only written before the storage is on the
 *  list. Records are never freed: one without users waits for the next pool of its kind, or one without
 *  objects as well for one whose magazines hold as many. */
struct storage {
    struct storage* next; /* of all; Sync: written once, release on the list's head publishes */
    size_t bytes;         /* asked of the heap for an object */
    size_t align;
    size_t block_bytes; /* what the heap gives for it */
    uint32_t flags;     /* WEIR_POOL_EXACT, or WEIR_POOL_NO_MERGE: of one pool alone */
    uint32_t capacity;  /* of its magazines */
    uint32_t spares;    /* empty magazines that a thread keeps at most */
    bool single;        /* a thread has one magazine, not two */
    bool lone;          /* and each slot of the tier holds an object, not a magazine */
    uint32_t id;
    uint32_t users;
    uint32_t reserve_calls; /* Sync: relaxed; no more than a rhythm */
    uint64_t reserve;       /* Sync: relaxed; objects that stay in `full` but for a flush: of all its pools */
    uint64_t needed;        /* Sync: relaxed */
    uint64_t peak;          /* Sync: relaxed; the most that was allocated since the last look */
    uint32_t epoch;         /* Sync: atomic; counts flushes */
    uint64_t allocated;     /* Sync: relaxed atomic */
    struct pool* pools;
    uint64_t gathered; /* number of the last look at figures that came by; what it found: */
    uint64_t shared;   /* objects in `full`, */
    uint64_t filled;   /* and in its pools' caches */
    struct tier* full;
    struct tier* empty;
    struct magazine* shelf; /* Sync: atomic; of empty ones */
};

/* Why a pool's calls are slow. */
enum { POOL_LIMITED = 1u, POOL_UNCACHED = 2u, POOL_DEBUGGED = 4u, POOL_FAILING = 8u };

/*  Invariant when nobody is at work: used = direct + folded + sum over its entries of (in - out - fill).
 *  Sync: as storage. */
struct pool {
    struct weir_pool* handle;
    struct storage* storage;
    struct pool* next;    /* of all, in the order of making */
    struct pool* sharing; /* of those with this one's storage */
    struct pool* spare_next;
    uint64_t number; /* counts all that were made, from 1; an id is used again */
    uint32_t id;
    uint32_t slow;  /* why no cache serves it: POOL_LIMITED ... */
    uint32_t flags; /* with what the options add */
    uint64_t limit;
    uint64_t failed; /* Sync: relaxed atomic */
    int64_t direct;  /* Sync: relaxed atomic; objects out past all caches, less those that came back so */
    int64_t folded;  /* of threads that ended */
    uint64_t reserve;
    struct pool_object* freed; /* debugged: the queue of those that are free */
    struct pool_object* freed_last;
    uint64_t freed_count;
    uint64_t calls; /* Sync: relaxed atomic; with fail_percent */
    uint32_t fail_percent;
    size_t size;
    size_t align;
    char name[POOL_NAME_BYTES];
};

/* A thread's cache of one pool.
 *
 *  loaded    the magazine that the cache's words point into: base = objects, end = base + capacity,
 *            base + fill = top; NULL: top == base == end, and every call is slow
 *  previous  one that is empty or full, so that a run of the same calls moves one magazine per `capacity`;
 *            none where the storage is `single`
 *
 * Where memory is tagged each object gets another tag when it is put, which nobody does inline: the words are
 * `own`, and where inline paths look there are none.
 *
 * Sync: the thread; in, out and held relaxed for statistics, with `version` odd while they and the words do
 * not fit together. Under pools_lock: who makes and ends entries. */
struct pool_entry {
    struct weir_pool_cache own;    /* the words, for a pool that has none in TLS */
    struct weir_pool_cache* cache; /* where inline paths look: &own, the program's words, or none */
    struct magazine* loaded;
    struct magazine* previous;
    struct magazine* spare; /* a list of empty ones */
    struct pool* pool;      /* NULL: no entry */
    uint64_t in;            /* objects that came into these magazines */
    uint64_t out;           /* that left them, other than to the program */
    uint32_t version;
    uint32_t held;           /* count of `previous` */
    uint32_t epoch;          /* the storage's, when what is cached came */
    uint32_t spares;         /* how many those are */
    uint32_t batch;          /* objects to take from the heap next time */
    struct tier_place full;  /* where it puts and finds full magazines */
    struct tier_place empty; /* and empty ones */
};

/* A thread's entries by the pools' numbers; lies in the thread's heap as `above`.
 * Sync: the thread; the list pools_lock. */
struct pool_thread {
    struct pool_entry* chunks[CHUNKS]; /* never NULL; `pool_chunk_none` where there are none */
    struct heap* heap;                 /* NULL: spare, or of a thread that a fork left behind (`left`) */
    struct pool_thread* next;
    uint32_t id;
    uint32_t epoch; /* pools_epoch, when it last looked */
    uint32_t slow_calls;
    bool left;
};

WEIR_VAR_DECL struct os_lock pools_lock;
WEIR_VAR_DECL uint32_t pools_epoch; /* Sync: atomic; changes when some storage's does */
WEIR_VAR_DECL struct pool_entry pool_chunk_none[CHUNK_POOLS];
/* Whether the calling thread's end will be seen, so that it may have words in TLS. Set by the api layer. */
WEIR_VAR_DECL bool (*pool_thread_hook)(void);

/* What a thread calls before one in TICK_CALLS of those that no cache serves; NULL: nothing. Set by the api
 * layer. */
WEIR_VAR_DECL void (*pool_tick_hook)(void);

/* The flags' names, for options and figures. The option pool_debug takes those from POOL_FLAG_OPTIONS on. */
enum { POOL_FLAG_OPTIONS = 2, POOL_FLAG_COUNT = 10 };
struct pool_flag {
    const char* word;
    uint32_t flag;
};
WEIR_VAR_DECL const struct pool_flag pool_flags[POOL_FLAG_COUNT];

struct pool_entry;

/* ---- storage.c */
/* The storage for such objects, with `pool` as one user more; under pools_lock. NULL: no memory. */
WEIR_FN struct storage* storage_join(struct pool* pool, size_t size, uint32_t flags);
WEIR_FN void storage_leave(struct pool* pool);
WEIR_FN struct storage* storage_first(void);
/* An empty magazine; NULL: no memory. */
WEIR_FN struct magazine* storage_magazine(struct storage* s, struct tier_place* at);
/* Keep an empty magazine for the next who needs one. */
WEIR_FN void storage_discard(struct storage* s, struct magazine* m, struct tier_place* at);
/* Fill a magazine with up to `wanted` objects of the heap's; the number that came. */
WEIR_FN uint32_t storage_fill(struct storage* s, struct magazine* m, uint32_t wanted);
/* Give a magazine's objects back to the heap. */
WEIR_FN void storage_drain(struct storage* s, struct magazine* m);
/* Hand an entry's magazine over to the other threads; false: there is no room, or enough already, for what
 * it still holds. */
WEIR_FN bool storage_share(struct storage* s, struct magazine* m, struct pool_entry* e);
/* Hand an object over by itself, or free it. */
WEIR_FN void storage_share_lone(struct storage* s, void* p, struct pool_entry* e);
WEIR_FN void* storage_object(struct storage* s);
WEIR_FN void storage_object_free(struct storage* s, void* p);
/* Objects in the shared tier. */
WEIR_FN uint64_t storage_shared(const struct storage* s);
/* Empty the shared tier down to `keep` objects; the number given back. */
WEIR_FN uint64_t storage_empty(struct storage* s, uint64_t keep);
/* Fill the shared tier up to `objects`; false: no memory, or no room. */
WEIR_FN bool storage_reserve(struct storage* s, uint64_t objects);
/* Give back what has not been needed lately, of all storages; see release_above_hook. */
WEIR_FN uint64_t storage_tick(uint64_t* shrunk);

/* ---- thread.c */
/* The calling thread's entry for the pool; NULL: no memory. `cache`: words in TLS, or NULL. */
WEIR_FN struct pool_entry* entry_get(struct pool* pool, struct weir_pool_cache* cache);
WEIR_FN void* entry_alloc(struct pool_entry* e, bool cached_only);
/* False: not taken, for want of memory. */
WEIR_FN bool entry_free(struct pool_entry* e, void* p);
/* What threads that a fork left behind had cached serves the others. Under pools_lock. */
WEIR_FN void threads_reclaim(void);
/* Of all threads' entries, under pools_lock. */
struct pool_sums {
    int64_t net; /* objects that went through caches into the program's hands */
    uint64_t fill;
    uint32_t entries;
};
WEIR_FN struct pool_sums entries_sum(const struct pool* pool);
/* Take all that threads cache of a pool that nobody uses, and forget their entries; under pools_lock. */
WEIR_FN void entries_end(struct pool* pool);
/* Empty the calling thread's caches of storages that were flushed. Under pools_lock. */
WEIR_FN void pool_thread_catch_up(struct pool_thread* t);
/* The calling thread's heap is about to go: give all back. */
WEIR_FN void pool_thread_detach(void);
WEIR_FN bool pool_fork_prepare(void); /* false: not now */
WEIR_FN void pool_fork_parent(void);
WEIR_FN void pool_fork_child(void);

/* ---- pool.c */
/* The pool behind a handle, made if need be; NULL: no memory. */
WEIR_FN struct pool* pool_open(struct weir_pool* handle);
WEIR_FN struct weir_pool* pool_create(const char* name, size_t size, size_t align, unsigned flags,
                                      int* error);
WEIR_FN int pool_destroy(struct weir_pool* handle);
/* What the fast paths cannot serve. */
WEIR_FN WEIR_NOINLINE void* pool_alloc_slow(struct weir_pool* handle, struct weir_pool_cache* cache,
                                            unsigned flags, const void* caller);
WEIR_FN WEIR_NOINLINE void pool_free_slow(struct weir_pool* handle, struct weir_pool_cache* cache, void* p,
                                          const void* caller);
WEIR_FN int pool_limit(struct weir_pool* handle, size_t objects);
WEIR_FN int pool_reserve(struct weir_pool* handle, size_t objects);
WEIR_FN void pool_flush(struct weir_pool* handle);
WEIR_FN void pool_gc(void);
WEIR_FN int pool_stats(struct weir_pool* handle, struct weir_pool_stats* out);
WEIR_FN int pool_stats_next(uint64_t after, struct weir_pool_stats* out);
/* Call `visit` for the pools that were made after number `after`, in the order of making, until it says
 * false. Returns how many were ever made. Under pools_lock. */
typedef bool pool_visitor(const struct pool* pool, const struct weir_pool_stats* figures, void* context);
WEIR_FN uint64_t pool_visit(uint64_t after, pool_visitor* visit, void* context);

/* The calling thread's entry, without looking whether there is one: of a thread or pool without, an empty
 * one. */
WEIR_INLINE struct pool_entry* entry_peek(const struct pool_thread* t, const struct pool* pool) {
    return &t->chunks[pool->id / CHUNK_POOLS][pool->id % CHUNK_POOLS];
}

/* entry_get, without a call where the entry is there and nothing is to be caught up with. */
WEIR_INLINE struct pool_entry* entry_find(struct pool* pool, struct weir_pool_cache* cache) {
    struct pool_thread* t = heap_self()->above;
    if (tag_is_on()) cache = NULL; /* no entry has those */
    if (weir_unlikely(t == NULL || t->epoch != load_relaxed(&pools_epoch))) return entry_get(pool, cache);
    struct pool_entry* e = entry_peek(t, pool);
    if (weir_unlikely(e->pool == NULL || (cache != NULL && e->cache != cache))) return entry_get(pool, cache);
    return e;
}

/* A pool's number is the number of an entry that may be another pool's, which had it before: such an entry is
 * ended with its pool, so that its words are empty. */
WEIR_INLINE void* pool_alloc_fast(const struct pool* pool) {
    const struct pool_thread* t = heap_self()->above;
    if (weir_unlikely(t == NULL)) return NULL;
    struct weir_pool_cache* c = entry_peek(t, pool)->cache;
    void** top = c->top;
    if (weir_unlikely(top == c->base)) return NULL;
    void* p = top[-1];
    store_relaxed(&c->top, top - 1);
    return p;
}

WEIR_INLINE bool pool_free_fast(const struct pool* pool, void* p) {
    const struct pool_thread* t = heap_self()->above;
    if (weir_unlikely(t == NULL)) return false;
    struct weir_pool_cache* c = entry_peek(t, pool)->cache;
    void** top = c->top;
    if (weir_unlikely(top == c->end)) return false;
    *top = p;
    store_relaxed(&c->top, top + 1);
    return true;
}

#endif
