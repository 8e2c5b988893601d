/* debug.h: pools under suspicion: objects whose every coming and going is looked at.
 *
 * Internal to the pool layer. A pool that is debugged has no caches, so that all of its calls arrive here;
 * nobody else pays for it. All pools are where ThreadSanitizer watches the program: it is told here what
 * comes before what, and sees nothing of the caches. Its objects have records of their own, out of the
 * program's reach, and its freed objects wait in a queue. All of it is under pools_lock.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_POOL_DEBUG_H
#define WEIR_POOL_DEBUG_H

#include "pool/pool.h"

enum {
    POOL_WATCHED = WEIR_POOL_POISON | WEIR_POOL_INTEGRITY | WEIR_POOL_CALLER | WEIR_POOL_TAG |
                   WEIR_POOL_COLD_FIRST | WEIR_POOL_GUARD
};

/* Add what the option pool_debug asks for to the flags of a new pool, and say what makes it slow. */
WEIR_FN void debug_configure(struct pool* pool);
/* What an object takes, with what is put behind it. */
WEIR_FN size_t debug_bytes(const struct pool* pool);

/* What was done wrong, with copies of all that is said of it: nothing is locked while it is said. */
struct debug_fault {
    const char* code; /* NULL: nothing was */
    const char* what;
    const void* p;
    size_t offset;            /* SIZE_MAX: none is said */
    const void* alloc_caller; /* NULL: callers are not said */
    const void* free_caller;
    int alloc_thread;
    int free_thread;
    char name[POOL_NAME_BYTES];
};
WEIR_FN void debug_report(const struct debug_fault* fault, const char* call);

/* NULL: no memory, or none that was freed where only such is wanted. */
WEIR_FN void* debug_alloc(struct pool* pool, bool cached_only, const void* caller);
/* False: it was misuse, and nothing came back. */
WEIR_FN bool debug_free(struct pool* pool, void* p, const void* caller);
/* Whether this call is to fail. */
WEIR_FN bool debug_fails(struct pool* pool);
/* Give the freed objects back but for `keep`; true: it stopped at one that was written to. Under pools_lock.
 */
WEIR_FN bool debug_empty(struct pool* pool, uint64_t keep, struct debug_fault* fault);
/* Have as many freed ones as `objects`; false: no memory. Under pools_lock. */
WEIR_FN bool debug_reserve(struct pool* pool, uint64_t objects);
/* Who allocated one of the pool's objects that are out, as part of a report; no text where that is not known.
 * Under pools_lock. */
WEIR_FN void debug_holder(const struct pool* pool, char* line, size_t bytes);

#endif
