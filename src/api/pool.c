/* pool.c: weir_pool_*: what the library exports of pools.
 *
 * Each call is thread-safe, keeps errno but for weir_pool_create, and reads the thread's word afresh. It
 * deliberately knows nothing of magazines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pool/pool.h"

#include <errno.h>
#include <string.h>

/* Who called the exported function. */
#define CALLER __builtin_return_address(0)

WEIR_EXPORT struct weir_pool* weir_pool_create(const char* name, size_t size, size_t align, unsigned flags) {
    int error;
    struct weir_pool* pool = pool_create(name, size, align, flags, &error);
    if (pool == NULL) errno = error;
    return pool;
}

WEIR_EXPORT int weir_pool_destroy(struct weir_pool* pool) { return pool_destroy(pool); }

WEIR_EXPORT void* weir_pool_alloc_slow(struct weir_pool* pool, struct weir_pool_cache* cache) {
    return pool_alloc_slow(pool, cache, 0, CALLER);
}

WEIR_EXPORT void weir_pool_free_slow(struct weir_pool* pool, struct weir_pool_cache* cache, void* object) {
    pool_free_slow(pool, cache, object, CALLER);
}

WEIR_INLINE void* alloc_plain(struct weir_pool* handle, const void* caller) {
    const struct pool* pool = load_acquire(&handle->record);
    void* p = weir_likely(pool != NULL) ? pool_alloc_fast(pool) : NULL;
    return weir_likely(p != NULL) ? p : pool_alloc_slow(handle, NULL, 0, caller);
}

static WEIR_NOINLINE void* zeroed(void* p, size_t size) { return p == NULL ? NULL : memset(p, 0, size); }

WEIR_EXPORT void* weir_pool_alloc(struct weir_pool* pool) {
    void* p = alloc_plain(pool, CALLER);
    return weir_unlikely((pool->flags & WEIR_POOL_ZERO) != 0) ? zeroed(p, pool->size) : p;
}

WEIR_EXPORT void* weir_pool_zalloc(struct weir_pool* pool) {
    return zeroed(alloc_plain(pool, CALLER), pool->size);
}

WEIR_EXPORT void* weir_pool_alloc_flags(struct weir_pool* pool, unsigned flags) {
    bool plain = (flags & ~WEIR_POOL_ALLOC_ZERO) == 0;
    void* p = plain ? alloc_plain(pool, CALLER) : pool_alloc_slow(pool, NULL, flags, CALLER);
    bool zero = (flags & WEIR_POOL_ALLOC_ZERO) != 0 || (pool->flags & WEIR_POOL_ZERO) != 0;
    return zero ? zeroed(p, pool->size) : p;
}

WEIR_EXPORT void weir_pool_free(struct weir_pool* pool, void* object) {
    if (weir_unlikely(object == NULL)) return;
    const struct pool* record = load_acquire(&pool->record);
    if (weir_likely(record != NULL) && pool_free_fast(record, object)) return;
    pool_free_slow(pool, NULL, object, CALLER);
}

WEIR_EXPORT int weir_pool_limit(struct weir_pool* pool, size_t objects) { return pool_limit(pool, objects); }
WEIR_EXPORT int weir_pool_reserve(struct weir_pool* pool, size_t objects) {
    return pool_reserve(pool, objects);
}
WEIR_EXPORT void weir_pool_flush(struct weir_pool* pool) { pool_flush(pool); }
WEIR_EXPORT void weir_pool_gc(void) { pool_gc(); }
WEIR_EXPORT int weir_pool_stats_get(struct weir_pool* pool, struct weir_pool_stats* stats) {
    return pool_stats(pool, stats);
}
WEIR_EXPORT int weir_pool_stats_next(uint64_t after, struct weir_pool_stats* stats) {
    return pool_stats_next(after, stats);
}
