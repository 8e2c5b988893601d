/* pool.c: making and ending pools, their calls off the fast path, flush, figures.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pool/pool.h"

#include <errno.h>

#include "base/text.h"
#include "core/options.h"
#include "core/report.h"
#include "heap/retag.h"
#include "page/release.h"
#include "page/span.h"
#include "pool/debug.h"

/* Sync: pools_lock. */
static struct pool* pools;
static struct pool* pools_last;
static struct pool* pools_seen;  /* where a look at one after the other has come to; NULL: nowhere */
static struct pool* pools_spare; /* their numbers are used again */
static uint32_t pool_count;
static uint64_t pools_made;
static uint64_t pools_looks; /* at figures */

WEIR_VAR void (*pool_tick_hook)(void);

static void name_copy(char* to, const char* from) {
    size_t length = from == NULL ? 0 : text_length(from, POOL_NAME_BYTES - 1);
    __builtin_memset(to, 0, POOL_NAME_BYTES);
    if (length != 0) __builtin_memcpy(to, from, length);
}

static struct pool* pool_record(void) {
    struct pool* pool = pools_spare;
    if (pool != NULL) {
        pools_spare = pool->spare_next;
        return pool;
    }
    if (pool_count == POOLS_MAX) return NULL;
    pool = span_meta_alloc(sizeof *pool);
    if (pool != NULL) pool->id = pool_count++;
    return pool;
}

static void pool_list(struct pool* pool) {
    pool->next = NULL;
    if (pools == NULL)
        pools = pool;
    else
        pools_last->next = pool;
    pools_last = pool;
}

static void pool_unlist(struct pool* pool) {
    struct pool* before = NULL;
    for (struct pool* p = pools; p != pool; p = p->next) before = p;
    if (before == NULL)
        pools = pool->next;
    else
        before->next = pool->next;
    if (pools_last == pool) pools_last = before;
    if (pools_seen == pool) pools_seen = before;
    pool->spare_next = pools_spare;
    pools_spare = pool;
}

/* Under pools_lock. */
static struct pool* pool_make(struct weir_pool* handle) {
    struct pool* pool = pool_record();
    if (pool == NULL) return NULL;
    *pool = (struct pool){.id = pool->id,
                          .number = pools_made + 1,
                          .handle = handle,
                          .size = handle->size,
                          .align = handle->align < GRANULE ? GRANULE : handle->align,
                          .flags = handle->flags};
    name_copy(pool->name, handle->name);
    debug_configure(pool);
    uint32_t own = (pool->slow & POOL_DEBUGGED) != 0 ? WEIR_POOL_NO_MERGE : 0u;
    pool->storage = storage_join(pool, debug_bytes(pool), pool->flags | own);
    if (pool->storage == NULL) {
        pool->spare_next = pools_spare;
        pools_spare = pool;
        return NULL;
    }
    pools_made++;
    pool_list(pool);
    store_relaxed(&heap_detach_hook, pool_thread_detach);
    store_relaxed(&release_above_hook, storage_tick);
    store_release(&handle->record, pool); /* publishes the record, to who loads it by acquire */
    return pool;
}

enum {
    FLAGS_KNOWN = WEIR_POOL_EXACT | WEIR_POOL_NO_MERGE | WEIR_POOL_ZERO | WEIR_POOL_NO_CACHE | POOL_WATCHED,
    ALLOC_FLAGS_KNOWN =
        WEIR_POOL_ALLOC_ZERO | WEIR_POOL_ALLOC_CACHED | WEIR_POOL_ALLOC_NO_CACHE | WEIR_POOL_ALLOC_NO_FAIL
};

static bool pool_is_wellformed(size_t size, size_t align, unsigned flags) {
    return size != 0 && (align == 0 || is_power_of_two(align)) && (flags & ~(unsigned)FLAGS_KNOWN) == 0;
}

WEIR_FN struct pool* pool_open(struct weir_pool* handle) {
    struct pool* pool = load_acquire(&handle->record);
    if (weir_likely(pool != NULL)) return pool;
    if (!pool_is_wellformed(handle->size, handle->align, handle->flags)) return NULL;
    if (handle->size > PTRDIFF_MAX / 2) return NULL;
    /* The heap may not have started. */
    if (heap_self() == &heap_empty && heap_attach() == NULL) return NULL;
    os_lock_take(&pools_lock);
    pool = load_relaxed(&handle->record);
    if (pool == NULL) pool = pool_make(handle);
    os_lock_give(&pools_lock);
    return pool;
}

/* The same, where it is made already without a call. */
WEIR_INLINE struct pool* pool_opened(struct weir_pool* handle) {
    struct pool* pool = load_acquire(&handle->record);
    return weir_likely(pool != NULL) ? pool : pool_open(handle);
}

/* Why there is none. */
static int pool_error(const struct weir_pool* handle) {
    return pool_is_wellformed(handle->size, handle->align, handle->flags) ? ENOMEM : EINVAL;
}

/* What tells a handle that pool_create made from one at file scope. */
enum { HANDLE_MADE = 1 };

WEIR_FN struct weir_pool* pool_create(const char* name, size_t size, size_t align, unsigned flags,
                                      int* error) {
    *error = EINVAL;
    if (!pool_is_wellformed(size, align, flags)) return NULL;
    *error = ENOMEM;
    struct weir_pool* handle = heap_alloc(sizeof *handle);
    if (handle == NULL) return NULL;
    *handle = (struct weir_pool){
        .name = name, .size = size, .align = align, .flags = flags, .reserved = HANDLE_MADE};
    if (pool_open(handle) != NULL) return handle;
    heap_free(handle, "weir_pool_create");
    return NULL;
}

/* ---- Calls that no cache serves. */

/* The hook asks the clock, by a system call. */
static void pool_tick(void) {
    if (weir_likely(pool_tick_hook == NULL)) return;
    struct pool_thread* t = heap_self()->above;
    if (t != NULL && t->slow_calls++ % TICK_CALLS == 0) pool_tick_hook();
}

/* One more object is out; false: the limit is reached. */
static bool direct_count(struct pool* pool) {
    int64_t out = load_relaxed(&pool->direct);
    if ((pool->slow & POOL_LIMITED) == 0) {
        add_relaxed(&pool->direct, 1);
        return true;
    }
    do {
        if (out >= (int64_t)pool->limit) return false;
    } while (!cas_acquire(&pool->direct, &out, out + 1));
    return true;
}

static void* alloc_direct(struct pool* pool, bool cached_only, const void* caller) {
    bool debugged = (pool->slow & POOL_DEBUGGED) != 0;
    if ((cached_only && !debugged) || !direct_count(pool)) return NULL;
    void* p = debugged ? debug_alloc(pool, cached_only, caller) : storage_object(pool->storage);
    if (p == NULL) sub_relaxed(&pool->direct, 1);
    return p;
}

static void free_direct(struct pool* pool, void* p, const void* caller) {
    if ((pool->slow & POOL_DEBUGGED) == 0)
        storage_object_free(pool->storage, p);
    else if (!debug_free(pool, p, caller))
        return;
    sub_relaxed(&pool->direct, 1);
}

static void* alloc_by(struct pool* pool, struct weir_pool_cache* cache, unsigned flags, const void* caller) {
    bool cached_only = (flags & WEIR_POOL_ALLOC_CACHED) != 0;
    if (weir_unlikely((flags & ~(unsigned)ALLOC_FLAGS_KNOWN) != 0)) return NULL;
    bool may_fail = (pool->slow & POOL_FAILING) != 0 && (flags & WEIR_POOL_ALLOC_NO_FAIL) == 0;
    if (may_fail && debug_fails(pool)) return NULL;
    if (pool->slow != 0 || (flags & WEIR_POOL_ALLOC_NO_CACHE) != 0)
        return alloc_direct(pool, cached_only, caller);
    struct pool_entry* e = entry_find(pool, cache);
    void* p = e == NULL ? NULL : entry_alloc(e, cached_only);
    return p == NULL ? alloc_direct(pool, cached_only, caller) : p; /* without a magazine, if need be */
}

/* Under pools_lock. False: no memory, or no room. */
static bool reserve_fill(struct pool* pool) {
    if ((pool->slow & POOL_DEBUGGED) != 0) return debug_reserve(pool, pool->reserve);
    return storage_reserve(pool->storage, load_relaxed(&pool->storage->reserve));
}

/* Now and then, what was taken of a reserve is made again. Nobody waits for that. */
static void reserve_refill(struct pool* pool) {
    struct storage* s = pool->storage;
    uint32_t calls = load_relaxed(&s->reserve_calls);
    store_relaxed(&s->reserve_calls, calls + 1);
    if (calls % TICK_CALLS != 0 || !os_lock_try(&pools_lock)) return;
    (void)reserve_fill(pool);
    os_lock_give(&pools_lock);
}

WEIR_FN void* pool_alloc_slow(struct weir_pool* handle, struct weir_pool_cache* cache, unsigned flags,
                              const void* caller) {
    pool_tick();
    struct pool* pool = pool_opened(handle);
    if (pool == NULL) return NULL;
    void* p = alloc_by(pool, cache, flags, caller);
    if (p == NULL) add_relaxed(&pool->failed, 1);
    bool may_fill = (flags & WEIR_POOL_ALLOC_CACHED) == 0;
    if (weir_unlikely(load_relaxed(&pool->storage->reserve) != 0) && may_fill) reserve_refill(pool);
    return p;
}

WEIR_FN void pool_free_slow(struct weir_pool* handle, struct weir_pool_cache* cache, void* p,
                            const void* caller) {
    pool_tick();
    struct pool* pool = pool_opened(handle);
    if (p == NULL || pool == NULL) return;
    struct pool_entry* e = pool->slow == 0 ? entry_find(pool, cache) : NULL;
    if (tag_is_on() && e != NULL && (p = heap_retag(p, "weir_pool_free")) == NULL) return;
    if (e == NULL || !entry_free(e, p)) free_direct(pool, p, caller);
}

/* ---- What a program sets. */

WEIR_FN int pool_limit(struct weir_pool* handle, size_t objects) {
    struct pool* pool = pool_open(handle);
    if (pool == NULL) return pool_error(handle);
    if (objects > INT64_MAX) objects = INT64_MAX;
    os_lock_take(&pools_lock);
    threads_reclaim();
    /* A limit looks at `direct` alone: whoever has a cache counts past it, if by now all came back or not. */
    bool used = entries_sum(pool).entries != 0 || pool->folded != 0 || load_relaxed(&pool->direct) != 0 ||
                pool->reserve != 0;
    if (!used) {
        pool->limit = objects;
        pool->slow = objects == 0 ? pool->slow & ~(uint32_t)POOL_LIMITED : pool->slow | POOL_LIMITED;
    }
    os_lock_give(&pools_lock);
    return used ? EBUSY : 0;
}

WEIR_FN int pool_reserve(struct weir_pool* handle, size_t objects) {
    struct pool* pool = pool_open(handle);
    if (pool == NULL) return pool_error(handle);
    if (pool->slow != 0 && (pool->slow & POOL_DEBUGGED) == 0) return ENOTSUP; /* it has no use for a tier */
    os_lock_take(&pools_lock);
    struct storage* s = pool->storage;
    store_relaxed(&s->reserve, load_relaxed(&s->reserve) - pool->reserve + objects);
    pool->reserve = objects;
    bool good = reserve_fill(pool);
    os_lock_give(&pools_lock);
    return good ? 0 : ENOMEM;
}

/* ---- Flush. */

/* Under pools_lock. Threads that look at the epochs later give back what they cache. */
static void storage_flush(struct storage* s, uint64_t keep) {
    __atomic_fetch_add(&s->epoch, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&pools_epoch, 1, __ATOMIC_RELEASE); /* after it: who sees this one sees that */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);               /* pairs with storage_share */
    storage_empty(s, keep);
}

/* Under pools_lock: what the caller itself caches is given back when the call returns. */
static void own_catch_up(void) {
    struct pool_thread* t = heap_self()->above;
    if (t != NULL) pool_thread_catch_up(t);
}

/* Give a debugged pool's freed objects back, and say what was done to them. Under pools_lock, which is not
 * held while something is said. */
static void freed_drop(struct pool* pool, uint64_t keep, const char* call) {
    struct debug_fault fault;
    while (debug_empty(pool, keep, &fault)) {
        os_lock_give(&pools_lock);
        debug_report(&fault, call);
        os_lock_take(&pools_lock);
    }
}

WEIR_FN void pool_flush(struct weir_pool* handle) {
    struct pool* pool = load_acquire(&handle->record);
    if (pool == NULL) return;
    os_lock_take(&pools_lock);
    freed_drop(pool, 0, "weir_pool_flush");
    storage_flush(pool->storage, 0);
    own_catch_up();
    os_lock_give(&pools_lock);
}

WEIR_FN void pool_gc(void) {
    os_lock_take(&pools_lock);
    /* A pool that ends while something is said leads on to those that were made after it. */
    for (struct pool* pool = pools; pool != NULL; pool = pool->next)
        freed_drop(pool, pool->reserve, "weir_pool_gc");
    for (struct storage* s = storage_first(); s != NULL; s = s->next)
        storage_flush(s, load_relaxed(&s->reserve));
    own_catch_up();
    os_lock_give(&pools_lock);
}

/* ---- Figures, and the end of a pool. */

/* Under pools_lock. */
static int64_t pool_used(const struct pool* pool) {
    return entries_sum(pool).net + pool->folded + load_relaxed(&pool->direct);
}

/* The first pool that was made after number `after`. Under pools_lock. */
static struct pool* pool_after(uint64_t after) {
    struct pool* pool = pools_seen != NULL && pools_seen->number <= after ? pools_seen : pools;
    while (pool != NULL && pool->number <= after) pool = pool->next;
    if (pool != NULL) pools_seen = pool;
    return pool;
}

/* What the pools of a storage cache: each is looked at once in a look. Under pools_lock. */
static void storage_gather(struct storage* s, uint64_t look) {
    if (s->gathered == look) return;
    s->gathered = look;
    s->shared = storage_shared(s);
    s->filled = 0;
    for (const struct pool* p = s->pools; p != NULL; p = p->sharing)
        s->filled += entries_sum(p).fill + p->freed_count;
}

/* After a gathering. What moves during the call may leave fewer than none in use. */
static void stats_fill_pool(const struct pool* pool, struct weir_pool_stats* out) {
    const struct storage* s = pool->storage;
    struct pool_sums sums = entries_sum(pool);
    int64_t used = sums.net + pool->folded + load_relaxed(&pool->direct);
    *out = (struct weir_pool_stats){
        .struct_size = sizeof *out,
        .flags = pool->flags,
        .number = pool->number,
        .object_bytes = pool->size,
        .block_bytes = s->block_bytes,
        .used = used > 0 ? (uint64_t)used : 0,
        .held = sums.fill + pool->freed_count,
        .failed = load_relaxed(&pool->failed),
        .limit = pool->limit,
        .storage = s->id,
        .users = s->users,
        .allocated = load_relaxed(&s->allocated),
        .cached = s->shared + s->filled,
        .shared = s->shared,
        .needed = load_relaxed(&s->needed),
        .magazine = s->lone ? 1 : s->capacity,
    };
    __builtin_memcpy(out->name, pool->name, sizeof out->name);
}

static int stats_give(const struct pool* pool, struct weir_pool_stats* out) {
    struct weir_pool_stats all;
    uint32_t size = out->struct_size;
    if (size < 2 * sizeof(uint32_t) || size > sizeof all) return EINVAL;
    threads_reclaim();
    storage_gather(pool->storage, ++pools_looks);
    stats_fill_pool(pool, &all);
    __builtin_memcpy(out, &all, size);
    out->struct_size = size;
    return 0;
}

WEIR_FN int pool_stats(struct weir_pool* handle, struct weir_pool_stats* out) {
    const struct pool* pool = pool_open(handle);
    if (pool == NULL) return EINVAL;
    os_lock_take(&pools_lock);
    int error = stats_give(pool, out);
    os_lock_give(&pools_lock);
    return error;
}

WEIR_FN int pool_stats_next(uint64_t after, struct weir_pool_stats* out) {
    os_lock_take(&pools_lock);
    const struct pool* pool = pool_after(after);
    int error = pool == NULL ? ENOENT : stats_give(pool, out);
    os_lock_give(&pools_lock);
    return error;
}

WEIR_FN uint64_t pool_visit(uint64_t after, pool_visitor* visit, void* context) {
    uint64_t look = ++pools_looks;
    for (const struct pool* pool = pool_after(after); pool != NULL; pool = pool->next) {
        struct weir_pool_stats figures;
        storage_gather(pool->storage, look);
        stats_fill_pool(pool, &figures);
        if (!visit(pool, &figures, context)) break;
    }
    return pools_made;
}

WEIR_FN int pool_destroy(struct weir_pool* handle) {
    os_lock_take(&pools_lock);
    threads_reclaim();
    struct pool* pool = load_relaxed(&handle->record);
    int64_t used = pool == NULL ? 0 : pool_used(pool);
    char name[POOL_NAME_BYTES];
    char holder[80] = "";
    if (pool != NULL) __builtin_memcpy(name, pool->name, sizeof name);
    if (used != 0) debug_holder(pool, holder, sizeof holder);
    if (pool != NULL && used == 0) {
        entries_end(pool);
        freed_drop(pool, 0, "weir_pool_destroy");
        storage_leave(pool);
        pool_unlist(pool);
        store_release(&handle->record, NULL);
    }
    os_lock_give(&pools_lock);
    if (used != 0) {
        core_say_busy(name, used, holder);
        return EBUSY;
    }
    if (handle->reserved == HANDLE_MADE) heap_free(handle, "weir_pool_destroy");
    return 0;
}
