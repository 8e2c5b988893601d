/* worker.h: one stream of random operations and the blocks it holds.
 *
 * model.c starts workers, entry.c counts what they call, base.c names them in a failure. A worker
 * outlives its threads: when a thread ends, a successor goes on with the same worker, so that blocks of
 * dead threads are freed by live ones.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MODEL_WORKER_H
#define MODEL_WORKER_H

#include "block.h"

#include <stdatomic.h>

/* Every entry point of the allocator that the model calls. */
#define MODEL_CALLS(X)                                                                                       \
    X(malloc)                                                                                                \
    X(calloc)                                                                                                \
    X(realloc)                                                                                               \
    X(reallocarray)                                                                                          \
    X(aligned_alloc)                                                                                         \
    X(memalign)                                                                                              \
    X(posix_memalign)                                                                                        \
    X(valloc)                                                                                                \
    X(pvalloc)                                                                                               \
    X(free)                                                                                                  \
    X(malloc_usable_size)                                                                                    \
    X(free_sized)                                                                                            \
    X(free_aligned_sized)                                                                                    \
    X(malloc_trim)                                                                                           \
    X(operator_new)                                                                                          \
    X(operator_delete)                                                                                       \
    X(refused)                                                                                               \
    X(fork)

enum model_call {
#define X(name) CALL_##name,
    MODEL_CALLS(X)
#undef X
        CALL_COUNT
};

/** What a stretch of a worker's stream is like: fuller or emptier, mixed or of a single size. */
struct phase {
    uint64_t ends_at;    /* in the worker's calls */
    unsigned slots;      /* only the first so many slots are used */
    unsigned alloc_bias; /* of 256: how often a full slot is left alone in favour of an empty one */
    size_t size_fixed;   /* nonzero: every request is of about this size */
};

/** Invariants: live_bytes == sum of slots[i].size over the slots with ptr != NULL;
 *  sum of calls == ops. Everything belongs to the thread that runs the worker, except `progress`. */
struct worker {
    _Alignas(128) struct rng rng;
    const char* call;      /* the entry point it is in, for a failure's text */
    uint64_t ops;          /* calls made */
    uint64_t quota;        /* calls to make */
    uint64_t life_ends_at; /* the thread leaves when `ops` reaches it */
    struct phase phase;
    struct block* slots;
    size_t live_bytes;
    size_t live_bytes_max;
    uint32_t next_id;
    unsigned index;
    unsigned forks_left;
    uint64_t fork_at;
    int forked; /* this is the child of a fork */
    int drain;  /* leave the phase by freeing every block */
    uint64_t blocks_made, blocks_freed, taken, nomem;
    uint64_t calls[CALL_COUNT];
    /* Sync: written by the worker's thread, relaxed; read by main to see that something moves. */
    _Alignas(128) _Atomic uint64_t progress;
};

extern __thread struct worker* worker_self;

void worker_init(struct worker* w, unsigned index, uint64_t quota, unsigned forks);
/** Run until the quota or the end of the thread's life is reached. */
void worker_run(struct worker* w);
/** Check and free every block that the worker holds. */
void worker_drain(struct worker* w);

#endif
