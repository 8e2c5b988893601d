/* migrate.c: worker threads in a ring that hand fibers on, and the verdict.
 *
 *     migrate KIND SWITCHES [THREADS [FIBERS]]
 *
 * Who may call it: run.py, or a person. Each switch of a fiber is a migration: the worker that ran it gives
 * it to the next worker of the ring. Workers end every now and then, with fibers suspended that last ran on
 * them, and are replaced by new threads. Prints one line: the kind, the migrations made, the blocks that were
 * wrong. Exit status 0: none was. It deliberately does not know how a fiber switches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fiber.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { THREADS_MAX = 16, RING = 1024, RESUMES_PER_LIFE = 200000, IDLE_SPINS = 100 };

/* Called by a worker that has waited for a while, where the allocator has it. */
void weir_thread_idle(void) __attribute__((weak));

/* Fibers on their way from one worker to the next.
 * Sync: `head` belongs to the taker, `tail` to the giver; release on either publishes the slots. */
struct queue {
    struct fiber* slots[RING];
    _Alignas(64) uint32_t head;
    _Alignas(64) uint32_t tail;
};

static const struct fiber_kind* kind;
static struct queue queues[THREADS_MAX];
static unsigned thread_count = 3;
static unsigned fiber_count = 32;
static unsigned fibers_ended;
static uint64_t migrations;

unsigned char* fiber_exchange(unsigned char* block) {
    static unsigned char* shared;
    return __atomic_exchange_n(&shared, block, __ATOMIC_ACQ_REL);
}

static struct fiber* queue_take(struct queue* q) {
    if (__atomic_load_n(&q->tail, __ATOMIC_ACQUIRE) == q->head) return NULL;
    struct fiber* fiber = q->slots[q->head % RING];
    __atomic_store_n(&q->head, q->head + 1, __ATOMIC_RELEASE);
    return fiber;
}

/* Never full: there are fewer fibers than slots. */
static void queue_give(struct queue* q, struct fiber* fiber) {
    q->slots[q->tail % RING] = fiber;
    __atomic_store_n(&q->tail, q->tail + 1, __ATOMIC_RELEASE);
}

static int is_over(void) { return __atomic_load_n(&fibers_ended, __ATOMIC_ACQUIRE) == fiber_count; }

/* One life of the worker at place `place` of the ring. */
static void* worker(void* place_pointer) {
    unsigned place = (unsigned)(uintptr_t)place_pointer;
    struct queue* from = &queues[place];
    struct queue* to = &queues[(place + 1) % thread_count];
    uint64_t resumed = 0;
    unsigned idle = 0;
    while (resumed < RESUMES_PER_LIFE && !is_over()) {
        struct fiber* fiber = queue_take(from);
        if (fiber == NULL) {
            if (++idle > 20) sched_yield();
            if (idle == IDLE_SPINS && weir_thread_idle != NULL) weir_thread_idle();
            continue;
        }
        idle = 0;
        kind->resume(fiber);
        resumed++;
        if (fiber->ended)
            __atomic_fetch_add(&fibers_ended, 1, __ATOMIC_ACQ_REL);
        else
            queue_give(to, fiber);
    }
    __atomic_fetch_add(&migrations, resumed, __ATOMIC_RELAXED);
    return NULL;
}

/* Keeps one place of the ring manned. */
static void* keeper(void* place) {
    while (!is_over()) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, place) != 0) abort();
        pthread_join(thread, NULL);
    }
    return NULL;
}

static const struct fiber_kind* kind_named(const char* name) {
    const struct fiber_kind* const kinds[] = {&fiber_kind_ucontext, &fiber_kind_hand, &fiber_kind_boost,
                                              &fiber_kind_coroutine};
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i] != NULL && strcmp(kinds[i]->name, name) == 0) return kinds[i];
    return NULL;
}

int main(int argc, char** argv) {
    kind = argc > 1 ? kind_named(argv[1]) : NULL;
    uint64_t switches = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    if (argc > 3) thread_count = (unsigned)atoi(argv[3]);
    if (argc > 4) fiber_count = (unsigned)atoi(argv[4]);
    if (kind == NULL || switches == 0 || thread_count < 2 || thread_count > THREADS_MAX || fiber_count == 0 ||
        fiber_count >= RING) {
        fprintf(stderr, "usage: migrate KIND SWITCHES [THREADS (2 to %d) [FIBERS (1 to %d)]]\n", THREADS_MAX,
                RING - 1);
        return 2;
    }
    static struct fiber fibers[RING];
    for (unsigned i = 0; i < fiber_count; i++) {
        fibers[i].number = i;
        fibers[i].seed = 0x9e3779b97f4a7c15u * (i + 1);
        fibers[i].turns = switches / fiber_count + 1;
        kind->make(&fibers[i]);
        queue_give(&queues[i % thread_count], &fibers[i]);
    }
    pthread_t keepers[THREADS_MAX];
    for (unsigned i = 0; i < thread_count; i++)
        if (pthread_create(&keepers[i], NULL, keeper, (void*)(uintptr_t)i) != 0) abort();
    for (unsigned i = 0; i < thread_count; i++) pthread_join(keepers[i], NULL);
    free(fiber_exchange(NULL));
    uint64_t wrong = 0;
    for (unsigned i = 0; i < fiber_count; i++) {
        wrong += fibers[i].wrong;
        kind->drop(&fibers[i]);
    }
    printf("%s: %" PRIu64 " migrations, %" PRIu64 " wrong\n", kind->name, migrations, wrong);
    return wrong != 0;
}
