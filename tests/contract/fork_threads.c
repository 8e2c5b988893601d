/* fork_threads.c: fork while other threads allocate; the child goes on allocating and forks again.
 *
 * Who may call it: tests/contract/run.py. Threads keep replacing blocks in a table of slots, so that at
 * any fork the table holds live blocks and nothing else. The child frees them all (blocks of threads
 * that it does not have), allocates in every size, starts threads, and forks once more. An alarm turns a
 * deadlock into a failure.
 *
 * contract: timeout=120
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

enum { THREADS = 4, SLOTS = 400, FORKS = 150 };

/* Sync: taken by exchange with NULL, given by a store with release: whoever holds a block owns it. */
static void* slots[SLOTS];
static int stop;

static size_t size_random(uint64_t* seed) {
    unsigned shift = (unsigned)(contract_random(seed) % 20);
    return contract_random(seed) % ((size_t)16 << (shift < 18 ? shift % 12 : shift)) + 8;
}

static void slot_replace(uint64_t* seed) {
    size_t i = contract_random(seed) % SLOTS;
    free(__atomic_exchange_n(&slots[i], NULL, __ATOMIC_ACQUIRE));
    size_t n = size_random(seed);
    unsigned char* p = malloc(n);
    if (p == NULL) return;
    memset(p, (int)i, 8);
    free(__atomic_exchange_n(&slots[i], p, __ATOMIC_ACQ_REL));
}

static void* churn(void* number) {
    uint64_t seed = 77 + (uintptr_t)number;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) slot_replace(&seed);
    return NULL;
}

static void* child_thread(void* unused) {
    uint64_t seed = 5;
    for (int i = 0; i < 500; i++) slot_replace(&seed);
    return unused;
}

__attribute__((noreturn)) static void child_run(int generation);

static void child_fork(int generation) {
    pid_t pid = fork();
    if (pid == 0) child_run(generation);
    EXPECT_CHILD_OK(pid);
}

static void child_run(int generation) {
    alarm(30);
    int kept = 1;
    for (size_t i = 0; i < SLOTS; i++) {
        unsigned char* p = __atomic_exchange_n(&slots[i], NULL, __ATOMIC_ACQUIRE);
        for (int k = 0; p != NULL && k < 8; k++) kept &= p[k] == (unsigned char)i;
        free(p);
    }
    EXPECT(kept);
    uint64_t seed = (uint64_t)generation + 9;
    for (int i = 0; i < 1000; i++) slot_replace(&seed);
    if (generation < 2) {
        pthread_t thread;
        EXPECT_EQ(pthread_create(&thread, NULL, child_thread, NULL), 0);
        child_fork(generation + 1);
        EXPECT_EQ(pthread_join(thread, NULL), 0);
    }
    if (generation == 0) exit(contract_failed()); /* exit with its handlers must work in a child too */
    _exit(contract_failed());
}

int main(void) {
    contract_begin();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, churn, (void*)i), 0);
    uint64_t seed = 1;
    for (int i = 0; i < FORKS; i++) {
        for (int k = 0; k < 200; k++) slot_replace(&seed);
        child_fork(i % 10 == 0 ? 0 : 2);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
    return contract_end();
}
