/* worker.c: decides what is called when: sizes, phases, hand-overs, forks.
 *
 * model.c runs workers on threads. All decisions come from the worker's own random numbers; the checks
 * are entry.c's, and nothing here knows the allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "worker.h"
#include "entry.h"
#include "mailbox.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__thread struct worker* worker_self;

#define FORK_CHILD_OPS 2000u

void worker_init(struct worker* w, unsigned index, uint64_t quota, unsigned forks) {
    const struct model_config* c = &model_config;
    rng_init(&w->rng, mix64(c->seed) + index);
    w->call = "start";
    w->quota = quota;
    w->index = index;
    w->next_id = index;
    w->slots = memory_map(c->slots * sizeof *w->slots);
    w->live_bytes_max = c->live_max / c->threads / 4 * 3;
    w->forks_left = forks;
    w->fork_at = forks > 0 ? quota / (forks + 1) : UINT64_MAX;
}

/* A number of bytes whose logarithm is evenly spread over [low, high]. */
static size_t size_spread(struct rng* r, size_t low, size_t high) {
    unsigned low_log2 = 63 - (unsigned)__builtin_clzll(low), high_log2 = 63 - (unsigned)__builtin_clzll(high);
    size_t base = (size_t)1 << (low_log2 + rng_below(r, high_log2 - low_log2 + 1));
    size_t size = base + (size_t)(((unsigned __int128)rng_next(r) * base) >> 64);
    return size < high ? size : high;
}

static size_t size_small(uint64_t x) {
    unsigned choice = (unsigned)(x & 7);
    return (size_t)pick(x, choice < 5 ? 129 : choice < 7 ? 513 : 1025);
}

static size_t size_choose(struct worker* w) {
    uint64_t x = rng_next(&w->rng);
    unsigned choice = (unsigned)((x >> 8) & 1023);
    size_t size;
    if (w->phase.size_fixed != 0)
        size = w->phase.size_fixed - (size_t)(x & 7);
    else if (model_config.mix == MIX_SMALL || (model_config.mix == MIX_MIXED && choice < 920))
        size = size_small(x);
    else if (model_config.mix == MIX_MIXED)
        size = choice < 1012   ? size_spread(&w->rng, 1024, 32768)
               : choice < 1023 ? size_spread(&w->rng, 32768, 1u << 20)
                               : size_spread(&w->rng, 1u << 20, model_config.size_max);
    else
        size = choice < 512   ? size_spread(&w->rng, 4096, 256u << 10)
               : choice < 960 ? size_spread(&w->rng, 32768, 4u << 20)
                              : size_spread(&w->rng, 1u << 20, model_config.size_max);
    return size < model_config.size_max ? size : model_config.size_max;
}

static void phase_next(struct worker* w) {
    uint64_t x = rng_next(&w->rng);
    struct phase* p = &w->phase;
    unsigned slots = model_config.slots;
    w->drain = p->ends_at != 0 && (x & 7) == 0;
    p->ends_at = w->ops + (1024u << ((x >> 3) & 7));
    p->slots = (x >> 6) & 1 ? slots : 1 + (unsigned)pick(x, slots);
    p->alloc_bias = (unsigned)((x >> 7) & 127);
    p->size_fixed = 0;
    if (((x >> 14) & 3) == 0) {
        size_t size = size_choose(w);
        p->size_fixed = size < 16 ? 16 : size;
    }
    atomic_store_explicit(&w->progress, w->ops, memory_order_relaxed);
}

/* Free something, from `start` on, to make room. */
static void make_room(struct worker* w, unsigned start) {
    for (unsigned i = 0; i < model_config.slots; i++) {
        struct block* b = &w->slots[(start + i) % model_config.slots];
        if (b->ptr == NULL) continue;
        entry_free(w, b, rng_next(&w->rng));
        if (w->live_bytes < w->live_bytes_max / 2 || i > 64) return;
    }
}

static void step_alloc(struct worker* w, struct block* b, unsigned slot) {
    size_t size = size_choose(w);
    if (__builtin_expect(w->live_bytes + size > w->live_bytes_max, 0)) {
        make_room(w, slot + 1);
        if (w->live_bytes + size > w->live_bytes_max) size &= 63;
    }
    entry_alloc(w, b, size, rng_next(&w->rng));
}

static void step_realloc(struct worker* w, struct block* b, uint64_t x) {
    size_t size;
    if (b->kind != KIND_MALLOC) {
        entry_free(w, b, x);
        return;
    }
    switch (x & 7) {
    case 0:
        size = 0;
        break;
    case 1:
        size = b->size + b->size / 2;
        break; /* as a vector grows */
    case 2:
        size = b->size * 2;
        break;
    case 3:
        size = b->size / 2;
        break;
    default:
        size = size_choose(w);
    }
    if ((x >> 3 & 15) != 0 && size == 0) size = 1;
    if (size > model_config.size_max) size = model_config.size_max;
    if (w->live_bytes - b->size + size > w->live_bytes_max) size = b->size / 2 + 1;
    entry_realloc(w, b, size, rng_next(&w->rng));
}

static void step_send(struct worker* w, struct block* b, uint64_t x) {
    if (mailbox_bytes() + b->size > model_config.live_max / 4) return;
    if (!mailbox_put((unsigned)pick(x, mailbox_count()), b)) return;
    w->live_bytes -= b->size;
    b->ptr = NULL;
}

/* A block from another thread: free it here, resize it here, or keep it. */
static int step_take(struct worker* w, struct block* b, uint64_t x) {
    if (!mailbox_take((unsigned)pick(x, mailbox_count()), b)) return 0;
    w->live_bytes += b->size;
    w->taken++;
    if ((x & 3) < 2)
        entry_free(w, b, rng_next(&w->rng));
    else if ((x & 3) == 2)
        step_realloc(w, b, rng_next(&w->rng));
    else
        block_verify(b);
    return 1;
}

static inline void step(struct worker* w) {
    uint64_t x = rng_next(&w->rng);
    unsigned slot = (unsigned)pick(x, w->phase.slots);
    unsigned action = (unsigned)((x >> 8) & 255);
    struct block* b = &w->slots[slot];
    if (b->ptr == NULL) {
        if (action >= 24 || !step_take(w, b, x << 20)) step_alloc(w, b, slot);
        return;
    }
    if (action < w->phase.alloc_bias) return;
    if (action < 208)
        entry_free(w, b, x >> 16);
    else if (action < 232)
        step_realloc(w, b, x >> 16);
    else if (action < 248)
        step_send(w, b, x << 20);
    else
        entry_usable(w, b);
}

/* Rare things, once in a few thousand calls. */
static void step_rare(struct worker* w) {
    uint64_t x = rng_next(&w->rng);
    struct block* b = &w->slots[pick(x, model_config.slots)];
    if ((x & 7) < 4) entry_refused(w, b, x >> 3);
    if (model_config.trim && ((x >> 8) & 1023) == 0) entry_trim(w);
}

static void steps(struct worker* w, uint64_t end) {
    uint64_t rare_at = w->ops + 2048;
    while (w->ops < end) {
        uint64_t stop = w->phase.ends_at < end ? w->phase.ends_at : end;
        if (rare_at < stop) stop = rare_at;
        while (w->ops < stop) step(w);
        if (w->ops >= rare_at) {
            step_rare(w);
            rare_at = w->ops + 2048;
        }
        if (w->ops >= w->phase.ends_at) phase_next(w);
        if (w->drain) {
            w->drain = 0;
            worker_drain(w);
        }
    }
}

/* In the child: what was inherited is intact, and the heap works. Other threads' blocks may be half
 * made, so only our own and those in mailboxes are looked at. */
__attribute__((noreturn)) static void fork_child(struct worker* w) {
    w->forked = 1;
    alarm(model_config.stall_seconds); /* a hang ends with SIGALRM */
    for (unsigned i = 0; i < 256; i++) {
        struct block* b = &w->slots[rng_below(&w->rng, model_config.slots)];
        w->call = "the check of inherited blocks";
        if (b->ptr != NULL) block_verify(b);
    }
    steps(w, w->ops + FORK_CHILD_OPS);
    if (rng_below(&w->rng, 8) == 0) worker_drain(w);
    if (rng_below(&w->rng, 8) == 0) { /* a fork in the child, as shells do */
        int status = 0;
        pid_t pid = fork();
        if (pid < 0) model_fail("fork in a child: error %d (%s)", errno, strerror(errno));
        if (pid == 0) {
            steps(w, w->ops + FORK_CHILD_OPS / 4);
            _exit(0);
        }
        if (waitpid(pid, &status, 0) != pid || status != 0)
            model_fail("grandchild: status 0x%x, expected 0", status);
    }
    _exit(0);
}

static void step_fork(struct worker* w) {
    int status = 0;
    pid_t done;
    w->call = "fork";
    pid_t pid = fork();
    if (pid < 0) model_fail("fork: error %d (%s)", errno, strerror(errno));
    if (pid == 0) fork_child(w);
    w->calls[CALL_fork]++;
    w->ops++;
    do done = waitpid(pid, &status, 0);
    while (done < 0 && errno == EINTR);
    if (done != pid || status != 0)
        model_fail("fork: the child ended with status 0x%x%s, expected 0", status,
                   WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? " (it hung)" : "");
    w->forks_left--;
    w->fork_at = w->forks_left > 0 ? w->ops + (w->quota - w->ops) / (w->forks_left + 1) : UINT64_MAX;
}

void worker_run(struct worker* w) {
    uint64_t end = w->life_ends_at < w->quota ? w->life_ends_at : w->quota;
    while (w->ops < end) {
        steps(w, w->fork_at < end ? w->fork_at : end);
        if (w->ops >= w->fork_at) step_fork(w);
    }
    atomic_store_explicit(&w->progress, w->ops, memory_order_relaxed);
}

void worker_drain(struct worker* w) {
    for (unsigned i = 0; i < model_config.slots; i++)
        if (w->slots[i].ptr != NULL) entry_free(w, &w->slots[i], rng_next(&w->rng));
}
