/* fiber.h: what a kind of fiber has to offer, and the work that every kind does.
 *
 * Who may include it: the switch_*.c and switch_*.cpp files of this directory, each of which is one kind of
 * fiber and one program with migrate.c. A fiber runs on whichever worker thread has it; each switch hands it
 * to the next one. It deliberately knows nothing of weir: malloc and its relatives are what the link put
 * there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FIBER_H
#define FIBER_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "weir/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FIBER_SLOTS = 16, FIBER_POOLED = 4, FIBER_POOLED_BYTES = 300, FIBER_STACK_BYTES = 65536 };

/* One fiber. Sync: belongs to the worker that runs it, and is handed over by the workers' queues. */
struct fiber {
    void* context;   /* the kind's own: where to go on */
    void* resumer;   /* the kind's own: where to go back to; written by the worker that resumes */
    uint32_t number; /* which one */
    uint32_t ended;  /* the body returned */
    uint64_t turns;  /* switches to make */
    uint64_t wrong;  /* blocks whose content was not what the fiber had written */
    uint64_t seed;
    unsigned char* blocks[FIBER_SLOTS];
    size_t sizes[FIBER_SLOTS];
    unsigned char* pooled[FIBER_POOLED];
};

/* One kind. `make` prepares a fiber that has not run; `resume` runs it until it switches away or ends; `drop`
 * frees what make took. */
struct fiber_kind {
    const char* name;
    void (*make)(struct fiber* fiber);
    void (*resume)(struct fiber* fiber);
    void (*drop)(struct fiber* fiber);
};
extern const struct fiber_kind fiber_kind_ucontext;
extern const struct fiber_kind fiber_kind_hand;
extern const struct fiber_kind fiber_kind_boost __attribute__((weak));     /* where Boost is there */
extern const struct fiber_kind fiber_kind_coroutine __attribute__((weak)); /* where C++20 is there */

/* A slot that all fibers share: the block put there comes back to whoever looks next, on whatever thread. */
unsigned char* fiber_exchange(unsigned char* block);

/* What the operators of C++ are called: this way C can call them too. */
void* _Znwm(size_t size);
void _ZdlPvm(void* p, size_t size);
#ifndef FIBER_NEW
#    define FIBER_NEW(size) _Znwm(size)
#    define FIBER_DELETE(p, size) _ZdlPvm(p, size)
#endif

/* A pool whose words are in the fibers' own TLS. FIBER_POOLS: 0: the library comes by dlopen, without them;
 * 1: it is linked; 2: it is preloaded, and the linker does not see it. */
#if FIBER_POOLS
#    if FIBER_POOLS == 2
#        pragma weak weir_pool_alloc_slow
#        pragma weak weir_pool_free_slow
#    endif
WEIR_POOL_EXTERN(fiber_pool, FIBER_POOLED_BYTES, 0, 0);
#    define FIBER_POOL_ALLOC() (unsigned char*)WEIR_POOL_ALLOC(fiber_pool)
#    define FIBER_POOL_FREE(p) WEIR_POOL_FREE(fiber_pool, p)
#else
#    define FIBER_POOL_ALLOC() (unsigned char*)malloc(FIBER_POOLED_BYTES)
#    define FIBER_POOL_FREE(p) free(p)
#endif

#ifdef __cplusplus
}
#endif

static inline uint64_t fiber_random(uint64_t* seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* A block says whose it is at both ends. */
static inline void fiber_fill(const struct fiber* f, unsigned char* block, size_t size, unsigned slot) {
    unsigned char mark = (unsigned char)(f->number * 31 + slot + 1);
    block[0] = mark;
    block[size - 1] = mark;
    block[size / 2] = mark;
}

static inline void fiber_check(struct fiber* f, unsigned slot) {
    const unsigned char* block = f->blocks[slot];
    size_t size = f->sizes[slot];
    unsigned char mark = (unsigned char)(f->number * 31 + slot + 1);
    f->wrong += block[0] != mark || block[size - 1] != mark || block[size / 2] != mark;
}

static inline void fiber_check_pooled(struct fiber* f, unsigned slot) {
    const unsigned char* object = f->pooled[slot];
    unsigned char mark = (unsigned char)(f->number * 31 + FIBER_SLOTS + slot + 1);
    f->wrong += object[0] != mark || object[FIBER_POOLED_BYTES - 1] != mark;
}

#endif
