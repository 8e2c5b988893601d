/* pool_glue.c: the calls of weir/pool.h on the pool layer as the api layer makes them, for the unit tests,
 * which have no api layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <string.h>

#include "page/release.h"
#include "pool/pool.h"
#include "pool_glue.h"

#define CALLER __builtin_return_address(0)

struct weir_pool* weir_pool_create(const char* name, size_t size, size_t align, unsigned flags) {
    int error;
    struct weir_pool* pool = pool_create(name, size, align, flags, &error);
    if (pool == NULL) errno = error;
    return pool;
}
int weir_pool_destroy(struct weir_pool* pool) { return pool_destroy(pool); }
void* weir_pool_alloc(struct weir_pool* pool) {
    const struct pool* record = load_acquire(&pool->record);
    void* p = record != NULL ? pool_alloc_fast(record) : NULL;
    return p != NULL ? p : pool_alloc_slow(pool, NULL, 0, CALLER);
}
void* weir_pool_alloc_flags(struct weir_pool* pool, unsigned flags) {
    return pool_alloc_slow(pool, NULL, flags, CALLER);
}
void weir_pool_free(struct weir_pool* pool, void* object) {
    const struct pool* record = load_acquire(&pool->record);
    if (record == NULL || !pool_free_fast(record, object)) pool_free_slow(pool, NULL, object, CALLER);
}
void* weir_pool_alloc_slow(struct weir_pool* pool, struct weir_pool_cache* cache) {
    return pool_alloc_slow(pool, cache, 0, CALLER);
}
void weir_pool_free_slow(struct weir_pool* pool, struct weir_pool_cache* cache, void* object) {
    pool_free_slow(pool, cache, object, CALLER);
}
int weir_pool_limit(struct weir_pool* pool, size_t objects) { return pool_limit(pool, objects); }
int weir_pool_reserve(struct weir_pool* pool, size_t objects) { return pool_reserve(pool, objects); }
void weir_pool_flush(struct weir_pool* pool) { pool_flush(pool); }
void weir_pool_gc(void) { pool_gc(); }
int weir_pool_stats_get(struct weir_pool* pool, struct weir_pool_stats* stats) {
    return pool_stats(pool, stats);
}
int weir_pool_stats_next(uint64_t after, struct weir_pool_stats* stats) {
    return pool_stats_next(after, stats);
}

uint32_t unit_pool_tick_calls(void) { return TICK_CALLS; }
uint64_t unit_pool_tick(void) {
    uint64_t shrunk;
    return storage_tick(&shrunk);
}
struct unit_rows {
    struct unit_pool* at;
    int count;
    int room;
};
static bool unit_row_add(const struct pool* pool, const struct weir_pool_stats* figures, void* context) {
    struct unit_rows* r = context;
    r->at[r->count++] = (struct unit_pool){pool->number, pool->id, *figures};
    return r->count < r->room;
}
int unit_pool_visit(uint64_t after, struct unit_pool* rows, int count, uint64_t* made) {
    struct unit_rows r = {rows, 0, count};
    os_lock_take(&pools_lock);
    *made = pool_visit(after, unit_row_add, &r);
    os_lock_give(&pools_lock);
    return r.count;
}
void unit_pool_fork_prepare(void) {
    while (!pool_fork_prepare()) {
    }
}
void unit_pool_fork_parent(void) { pool_fork_parent(); }
void unit_pool_fork_child(void) { pool_fork_child(); }
struct os_lock* unit_pools_lock(void) { return &pools_lock; }
void unit_pool_thread_hook(bool (*hook)(void)) { pool_thread_hook = hook; }
void unit_pool_between(struct weir_pool* pool, bool between) {
    static struct magazine* previous;
    struct pool_entry* e = entry_peek(heap_self()->above, pool->record);
    if (between) previous = e->previous;
    e->previous = between ? e->loaded : previous;
    e->version++;
}
