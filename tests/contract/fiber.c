/* fiber.c: a fiber that allocates in one thread and goes on in another.
 *
 * Who may call it: tests/contract/run.py. Fibers of ucontext are handed round a ring of threads; each
 * switches away in the middle of a loop of malloc and free and comes back elsewhere, so that every call
 * must find the heap of the thread that it runs on now.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>
#include <ucontext.h>

enum { THREADS = 3, FIBERS = 12, SWITCHES = 400, SLOTS = 50, STACK = 256 * 1024 };

struct fiber {
    ucontext_t context;
    ucontext_t* resumer;
    unsigned char* slots[SLOTS];
    int number;
    int switches;
    int threads_seen;
    int thread;
};

static struct fiber fibers[FIBERS];
static struct fiber* queue[FIBERS];
static int queued;
static int ended;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fiber_main(int number) {
    struct fiber* self = &fibers[number];
    uint64_t seed = 100 + (uint64_t)number;
    int kept = 1;
    for (; self->switches < SWITCHES; self->switches++) {
        for (int k = 0; k < 20; k++) {
            size_t i = contract_random(&seed) % SLOTS;
            size_t n = contract_random(&seed) % 2000 + 1;
            kept &= self->slots[i] == NULL || self->slots[i][0] == (unsigned char)(number + (int)i);
            free(self->slots[i]);
            if (k == 10) swapcontext(&self->context, self->resumer);
            self->slots[i] = malloc(n);
            self->slots[i][0] = (unsigned char)(number + (int)i);
        }
    }
    EXPECT(kept);
    for (int i = 0; i < SLOTS; i++) free(self->slots[i]);
}

static struct fiber* fiber_take(void) {
    struct fiber* fiber = NULL;
    pthread_mutex_lock(&lock);
    if (queued > 0) {
        fiber = queue[0];
        memmove(queue, queue + 1, (size_t)--queued * sizeof *queue);
    }
    pthread_mutex_unlock(&lock);
    return fiber;
}

static void* thread_main(void* number) {
    ucontext_t here;
    while (__atomic_load_n(&ended, __ATOMIC_ACQUIRE) < FIBERS) {
        struct fiber* fiber = fiber_take();
        if (fiber == NULL) {
            sched_yield();
            continue;
        }
        fiber->threads_seen |= 1 << (int)(uintptr_t)number;
        fiber->resumer = &here;
        fiber->context.uc_link = &here;
        swapcontext(&here, &fiber->context);
        if (fiber->switches >= SWITCHES) {
            __atomic_fetch_add(&ended, 1, __ATOMIC_ACQ_REL);
            continue;
        }
        pthread_mutex_lock(&lock);
        queue[queued++] = fiber;
        pthread_mutex_unlock(&lock);
        if (contract_opaque((size_t)fiber->switches) % 8 == 0) sched_yield();
    }
    return NULL;
}

/* Of a fiber's end: it returns to the context of the thread that resumed it last. */
static void fiber_start(int number) {
    fiber_main(number);
    setcontext(fibers[number].resumer);
}

int main(void) {
    contract_begin();
    for (int i = 0; i < FIBERS; i++) {
        struct fiber* fiber = &fibers[i];
        fiber->number = i;
        EXPECT_EQ(getcontext(&fiber->context), 0);
        fiber->context.uc_stack.ss_sp =
            mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        fiber->context.uc_stack.ss_size = STACK;
        EXPECT(fiber->context.uc_stack.ss_sp != MAP_FAILED);
        makecontext(&fiber->context, (void (*)(void))fiber_start, 1, i);
        queue[queued++] = fiber;
    }
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, thread_main, (void*)i), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    int moved = 0;
    for (int i = 0; i < FIBERS; i++) {
        EXPECT_EQ(fibers[i].switches, SWITCHES);
        moved += (fibers[i].threads_seen & (fibers[i].threads_seen - 1)) != 0;
    }
    EXPECT_GE(moved, 1);
    return contract_end();
}
