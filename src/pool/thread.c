/* thread.c: what each thread caches of each pool: entries, their magazines, threads that end, fork.
 *
 * An entry is its thread's alone; other threads read its figures, and end it with its pool. Entries with
 * words in TLS exist only in threads whose end is seen, so that their words are never read after the thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/registry.h"
#include "os/os.h"
#include "page/release.h"
#include "page/span.h"
#include "pool/pool.h"

WEIR_VAR struct os_lock pools_lock = {.rank = LOCK_POOLS};
WEIR_VAR uint32_t pools_epoch;
WEIR_VAR bool (*pool_thread_hook)(void);

static struct weir_pool_cache cache_none;
WEIR_VAR struct pool_entry pool_chunk_none[CHUNK_POOLS] = {
    [0 ... CHUNK_POOLS - 1] = {.cache = &cache_none},
};

/* Sync: pools_lock. */
static struct pool_thread* threads;
static uint32_t thread_count;
static bool threads_left; /* a fork left records behind */

/* ---- Words and magazines of an entry. */

/* The words that tell what it caches. */
static struct weir_pool_cache* entry_words(struct pool_entry* e) { return tag_is_on() ? &e->own : e->cache; }

static uint64_t words_fill(const struct weir_pool_cache* c) {
    return (uint64_t)(load_relaxed(&c->top) - load_relaxed(&c->base));
}

WEIR_INLINE void words_set(struct weir_pool_cache* c, struct magazine* m) {
    store_relaxed(&c->base, m == NULL ? NULL : m->objects);
    store_relaxed(&c->end, m == NULL ? NULL : m->objects + m->capacity);
    store_relaxed(&c->top, m == NULL ? NULL : m->objects + m->count);
}

/* Between these, a reader finds that figures and words need not fit together. */
static void entry_begin(struct pool_entry* e) {
    store_relaxed(&e->version, e->version + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* pairs with entry_read */
}
static void entry_end(struct pool_entry* e) { store_release(&e->version, e->version + 1); }

/* The magazine in the cache learns what the fast paths did. */
static void entry_sync(struct pool_entry* e) {
    const struct weir_pool_cache* c = entry_words(e);
    if (e->loaded != NULL) e->loaded->count = (uint32_t)(c->top - c->base);
}

static void entry_load(struct pool_entry* e, struct magazine* m) {
    e->loaded = m;
    words_set(entry_words(e), m);
}

static void entry_keep(struct pool_entry* e, struct magazine* m) {
    e->previous = m;
    store_relaxed(&e->held, m == NULL ? 0u : m->count);
}

/* `m` is the one to serve now, what did so until now the one before. */
static void entry_turn(struct pool_entry* e, struct magazine* m) {
    entry_keep(e, e->loaded);
    entry_load(e, m);
}

static struct magazine* entry_magazine(struct pool_entry* e) {
    struct magazine* m = e->spare;
    if (m == NULL) return storage_magazine(e->pool->storage, &e->empty);
    e->spare = m->next;
    e->spares--;
    return m;
}

static void entry_discard(struct pool_entry* e, struct magazine* m) {
    if (e->spares == e->pool->storage->spares) {
        storage_discard(e->pool->storage, m, &e->empty);
        return;
    }
    m->next = e->spare;
    store_release(&e->spare, m); /* with its link: a fork's child may find it so */
    e->spares++;
}

/* Give all that an entry holds to the others, or where its storage was flushed to the heap. */
static void entry_empty(struct pool_entry* e, bool share) {
    struct storage* s = e->pool->storage;
    entry_sync(e);
    struct magazine* all[2] = {e->loaded, e->previous};
    entry_begin(e);
    for (unsigned i = 0; i < 2; i++)
        if (all[i] != NULL) store_relaxed(&e->out, e->out + all[i]->count);
    entry_keep(e, NULL);
    entry_load(e, NULL);
    entry_end(e);
    for (unsigned i = 0; i < 2; i++) {
        if (all[i] == NULL) continue;
        if (share && all[i]->count != 0 && storage_share(s, all[i], e)) continue;
        storage_drain(s, all[i]);
        entry_discard(e, all[i]);
    }
    while (e->spare != NULL) storage_discard(s, entry_magazine(e), &e->empty);
}

static struct magazine* entry_filled(struct pool_entry* e) {
    struct storage* s = e->pool->storage;
    struct magazine* m = entry_magazine(e);
    if (m == NULL) return NULL;
    if (storage_fill(s, m, e->batch) == 0) {
        entry_discard(e, m);
        return NULL;
    }
    if (e->batch < s->capacity) e->batch *= 2;
    return m;
}

/* The cache is empty: the previous magazine if that is not, one of the shared tier, one from the heap. */
static bool entry_refill(struct pool_entry* e, bool cached_only) {
    struct storage* s = e->pool->storage;
    entry_sync(e);
    if (e->previous != NULL && e->previous->count != 0) {
        entry_begin(e);
        entry_turn(e, e->previous);
        entry_end(e);
        return true;
    }
    uintptr_t word = tier_take(s->full, &e->full);
    struct magazine* m = word != 0 ? magazine_of(word) : NULL;
    if (m == NULL && !cached_only) m = entry_filled(e);
    if (m == NULL) return false;
    struct magazine* old = s->single ? e->loaded : e->previous;
    entry_begin(e);
    store_relaxed(&e->in, e->in + m->count);
    if (s->single)
        entry_load(e, m);
    else
        entry_turn(e, m);
    entry_end(e);
    if (old != NULL) entry_discard(e, old);
    return true;
}

/* The only magazine is full: it goes to the others. */
static bool entry_make_room_single(struct pool_entry* e) {
    struct storage* s = e->pool->storage;
    entry_sync(e);
    struct magazine* m = e->loaded;
    struct magazine* empty = entry_magazine(e);
    entry_begin(e);
    if (m != NULL) store_relaxed(&e->out, e->out + m->count);
    entry_load(e, empty);
    entry_end(e);
    if (m != NULL && (empty == NULL || !storage_share(s, m, e))) {
        storage_drain(s, m);
        entry_discard(e, m);
    }
    return empty != NULL;
}

/* The cache is full: the previous magazine if that is empty, or else it goes to the others. */
static bool entry_make_room(struct pool_entry* e) {
    struct storage* s = e->pool->storage;
    if (s->single) return entry_make_room_single(e);
    entry_sync(e);
    struct magazine* m = e->previous;
    if (m != NULL && m->count == 0) {
        entry_begin(e);
        entry_turn(e, e->previous);
        entry_end(e);
        return true;
    }
    struct magazine* empty = entry_magazine(e);
    if (empty == NULL && m == NULL) return false;
    entry_begin(e);
    if (m != NULL) store_relaxed(&e->out, e->out + m->count);
    entry_keep(e, NULL);
    entry_end(e);
    if (m != NULL && (empty == NULL || !storage_share(s, m, e))) {
        storage_drain(s, m);
        if (empty != NULL) entry_discard(e, m);
        if (empty == NULL) empty = m;
    }
    entry_begin(e);
    entry_turn(e, empty);
    entry_end(e);
    return true;
}

/* Objects that go through the tier by themselves pass the magazine by: it is empty, or full. */
static void* alloc_lone(struct pool_entry* e, bool cached_only) {
    struct storage* s = e->pool->storage;
    uintptr_t word = tier_take(s->full, &e->full);
    void* p = word != 0 ? object_of(word) : cached_only ? NULL : storage_object(s);
    if (p != NULL) store_relaxed(&e->in, e->in + 1);
    return p;
}

static void free_lone(struct pool_entry* e, void* p) {
    store_relaxed(&e->out, e->out + 1);
    storage_share_lone(e->pool->storage, p, e);
}

WEIR_FN void* entry_alloc(struct pool_entry* e, bool cached_only) {
    struct weir_pool_cache* c = entry_words(e);
    if (c->top == c->base) {
        if (e->pool->storage->lone) return alloc_lone(e, cached_only);
        if (!entry_refill(e, cached_only)) return NULL;
    }
    void* p = c->top[-1];
    store_relaxed(&c->top, c->top - 1);
    return p;
}

WEIR_FN bool entry_free(struct pool_entry* e, void* p) {
    struct weir_pool_cache* c = entry_words(e);
    if (c->top == c->end) {
        if (e->pool->storage->lone && e->loaded != NULL) {
            free_lone(e, p);
            return true;
        }
        if (!entry_make_room(e)) return false;
    }
    *c->top = p;
    store_relaxed(&c->top, c->top + 1);
    return true;
}

/* ---- Records of threads. */

/* What is left of an entry whose magazines are gone. Under pools_lock. */
static void entry_fold(struct pool_entry* e) {
    e->pool->folded += (int64_t)(e->in - e->out);
    *e = (struct pool_entry){.cache = &cache_none};
}

/* Call `visit` for each of the thread's entries. */
static void entries_visit(struct pool_thread* t, void (*visit)(struct pool_entry* e, void* context),
                          void* context) {
    for (unsigned c = 0; c < CHUNKS; c++) {
        if (t->chunks[c] == pool_chunk_none) continue;
        for (unsigned i = 0; i < CHUNK_POOLS; i++)
            if (t->chunks[c][i].pool != NULL) visit(&t->chunks[c][i], context);
    }
}

static void visit_leave(struct pool_entry* e, void* unused) {
    (void)unused;
    entry_empty(e, true);
    entry_fold(e);
}

WEIR_FN void threads_reclaim(void) {
    if (!threads_left) return;
    threads_left = false;
    for (struct pool_thread* t = threads; t != NULL; t = t->next) {
        if (!t->left) continue;
        entries_visit(t, visit_leave, NULL);
        t->left = false;
    }
}

static struct pool_thread* thread_make(void) {
    struct pool_thread* t = span_meta_alloc(sizeof *t);
    if (t == NULL) return NULL;
    for (unsigned c = 0; c < CHUNKS; c++) t->chunks[c] = pool_chunk_none;
    t->id = thread_count++;
    t->next = threads;
    threads = t;
    return t;
}

static struct pool_thread* thread_attach(void) {
    if (heap_self() == &heap_empty && heap_attach() == NULL) return NULL;
    struct heap* h = heap_self();
    if (h->above != NULL) return h->above;
    os_lock_take(&pools_lock);
    threads_reclaim();
    struct pool_thread* t = threads;
    while (t != NULL && t->heap != NULL) t = t->next;
    if (t == NULL) t = thread_make();
    if (t != NULL) {
        t->heap = h;
        t->epoch = load_acquire(&pools_epoch);
        h->above = t;
    }
    os_lock_give(&pools_lock);
    return t;
}

static void visit_catch_up(struct pool_entry* e, void* unused) {
    (void)unused;
    uint32_t epoch = load_acquire(&e->pool->storage->epoch);
    if (e->epoch == epoch) return;
    entry_empty(e, false);
    e->epoch = epoch;
}

WEIR_FN void pool_thread_catch_up(struct pool_thread* t) {
    threads_reclaim();
    t->epoch = load_acquire(&pools_epoch); /* first: a flush that comes now is seen next time */
    entries_visit(t, visit_catch_up, NULL);
}

/* Nobody waits here; as long as the lock is taken, what this thread hands over is drained by its epoch. */
static void thread_catch_up_try(struct pool_thread* t) {
    if (!os_lock_try(&pools_lock)) return;
    pool_thread_catch_up(t);
    os_lock_give(&pools_lock);
}

/* The words belong to the calling thread, and another record of it still has them: one that a fork in the
 * middle of a call set aside. */
static void words_reclaim(const struct pool* pool, const struct weir_pool_cache* cache) {
    for (struct pool_thread* t = threads; t != NULL; t = t->next) {
        struct pool_entry* e = entry_peek(t, pool);
        if (e->pool == NULL || e->cache != cache) continue;
        entry_empty(e, true);
        entry_fold(e);
    }
}

static bool chunk_make(struct pool_thread* t, uint32_t chunk) {
    struct pool_entry* entries = span_meta_alloc(CHUNK_POOLS * sizeof entries[0]);
    if (entries == NULL) return false;
    for (unsigned i = 0; i < CHUNK_POOLS; i++) entries[i].cache = &cache_none;
    t->chunks[chunk] = entries;
    return true;
}

static struct pool_entry* entry_make(struct pool_thread* t, struct pool* pool,
                                     struct weir_pool_cache* cache) {
    os_lock_take(&pools_lock);
    struct pool_entry* e = NULL;
    if (t->chunks[pool->id / CHUNK_POOLS] != pool_chunk_none || chunk_make(t, pool->id / CHUNK_POOLS)) {
        if (cache != NULL && cache->end != NULL) words_reclaim(pool, cache);
        e = entry_peek(t, pool);
        *e = (struct pool_entry){.cache = tag_is_on()     ? &cache_none
                                          : cache != NULL ? cache
                                                          : &e->own,
                                 .pool = pool,
                                 .epoch = load_acquire(&pool->storage->epoch),
                                 .batch = 1,
                                 .full = {.first = shard_first(pool->storage->full, t->id)},
                                 .empty = {.first = shard_first(pool->storage->empty, t->id)}};
    }
    os_lock_give(&pools_lock);
    return e;
}

/* The pool was used through its functions before, and now through the words. */
static void entry_move(struct pool_entry* e, struct weir_pool_cache* cache) {
    os_lock_take(&pools_lock);
    entry_sync(e);
    entry_begin(e);
    e->cache = cache;
    entry_load(e, e->loaded);
    e->own = (struct weir_pool_cache){NULL, NULL, NULL};
    entry_end(e);
    os_lock_give(&pools_lock);
}

WEIR_FN struct pool_entry* entry_get(struct pool* pool, struct weir_pool_cache* cache) {
    struct pool_thread* t = heap_self()->above;
    if (t == NULL && (t = thread_attach()) == NULL) return NULL;
    if (weir_unlikely(t->epoch != load_relaxed(&pools_epoch))) thread_catch_up_try(t);
    struct pool_entry* e = entry_peek(t, pool);
    if (tag_is_on()) cache = NULL;
    bool moves = cache != NULL && e->cache != cache;
    /* Words in TLS end with their thread, which must be seen. */
    if (moves && pool_thread_hook != NULL && !pool_thread_hook()) {
        cache = NULL;
        moves = false;
    }
    if (e->pool == NULL) return entry_make(t, pool, cache);
    if (moves) entry_move(e, cache);
    return e;
}

WEIR_FN void pool_thread_detach(void) {
    struct pool_thread* t = heap_self()->above;
    if (t == NULL) return;
    uint64_t signals;
    bool blocked = os_signals_block(&signals);
    os_lock_take(&pools_lock);
    entries_visit(t, visit_leave, NULL);
    t->heap->above = NULL;
    t->heap = NULL;
    os_lock_give(&pools_lock);
    if (blocked) os_signals_restore(signals);
}

/* ---- Figures, and ends of pools. Under pools_lock. */

enum { READS = 16 };

/* An entry's figures, of one moment if its thread lets one have them. */
static struct pool_sums entry_read(struct pool_entry* e) {
    struct pool_sums sums = {0};
    for (unsigned i = 0; i < READS; i++) {
        uint32_t version = load_acquire(&e->version);
        sums.fill = words_fill(entry_words(e));
        if (sums.fill > e->pool->storage->capacity) sums.fill = 0; /* of two moments */
        sums.fill += load_relaxed(&e->held);
        sums.net = (int64_t)(load_relaxed(&e->in) - load_relaxed(&e->out) - sums.fill);
        __atomic_thread_fence(__ATOMIC_ACQUIRE); /* pairs with entry_begin */
        if (version % 2 == 0 && load_relaxed(&e->version) == version) break;
    }
    return sums;
}

WEIR_FN struct pool_sums entries_sum(const struct pool* pool) {
    struct pool_sums all = {0};
    for (struct pool_thread* t = threads; t != NULL; t = t->next) {
        struct pool_entry* e = entry_peek(t, pool);
        if (e->pool != pool) continue;
        struct pool_sums one = entry_read(e);
        all.net += one.net;
        all.fill += one.fill;
        all.entries++;
    }
    return all;
}

WEIR_FN void entries_end(struct pool* pool) {
    for (struct pool_thread* t = threads; t != NULL; t = t->next) {
        struct pool_entry* e = entry_peek(t, pool);
        if (e->pool != pool) continue;
        entry_empty(e, false);
        entry_fold(e);
    }
}

/* ---- Fork. */

static bool fork_has_lock; /* Sync: pools_lock where true; else this thread */

WEIR_FN bool pool_fork_prepare(void) {
    /* As heap_fork_prepare: a handler may fork while its thread holds what the lock's owner waits for. */
    bool may_wait =
        !os_lock_is_mine(&page_lock) && !os_lock_is_mine(&release_lock) && !os_lock_is_mine(&heaps_lock);
    for (struct heap* h = registry_first(); h != NULL && may_wait; h = h->registry_next)
        may_wait = !os_lock_is_mine(&h->lock);
    if (may_wait || os_lock_is_mine(&pools_lock)) {
        if (!os_lock_take_soon(&pools_lock)) return false;
        fork_has_lock = true;
    } else {
        fork_has_lock = os_lock_try(&pools_lock);
    }
    return true;
}

WEIR_FN void pool_fork_parent(void) {
    if (fork_has_lock) os_lock_give(&pools_lock);
}

/* A thread that did not come along. Its words are still there, and may be another thread's soon. */
static void visit_left(struct pool_entry* e, void* unused) {
    (void)unused;
    if (!tag_is_on()) {
        e->own = *e->cache;
        e->cache = &e->own;
    }
    if (e->version % 2 == 0) return;
    /* It was between two magazines, which may stand here twice, or with words that are not theirs: they are
     * lost to the child. */
    entry_keep(e, NULL);
    entry_load(e, NULL);
    e->version++;
}

WEIR_FN void pool_fork_child(void) {
    os_lock_fork_child(&pools_lock, !fork_has_lock);
    fork_has_lock = true;
    /* The heap may be half changed, and the call that changes it may go on: nothing is freed here. */
    for (struct pool_thread* t = threads; t != NULL; t = t->next) {
        if (t->heap == NULL || t->heap == heap_self()) continue;
        entries_visit(t, visit_left, NULL);
        if (t->heap->above == t) t->heap->above = NULL;
        t->heap = NULL;
        t->left = threads_left = true;
    }
    if (threads_left) store_relaxed(&pools_epoch, pools_epoch + 1);
    pool_fork_parent();
}
