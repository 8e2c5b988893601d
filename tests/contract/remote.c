/* remote.c: blocks that one thread makes and another frees: memory stays bounded.
 *
 * Who may call it: tests/contract/run.py. A ring hands blocks from makers to enders; at most a few MiB are
 * alive at any time. Resident memory must follow what is alive, not what went by, in each pattern: buffers of
 * one size, of mixed sizes, made in a thread that ends nothing itself, and a maker that pauses for good.
 *
 * contract: timeout=120
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

enum { RING = 256, BLOCKS = 60000, RESIDENT_MAX_KIB = 40 * 1024 };

/* Sync: `made` is written by the maker with release, `ended` by the ender; each acquires the other's. */
static struct {
    char* blocks[RING];
    unsigned long made;
    unsigned long ended;
} ring;
static size_t size_least;
static size_t size_most;
static long resident_most;

static void* make(void* unused) {
    uint64_t seed = 11;
    for (unsigned long i = 0; i < BLOCKS; i++) {
        while (i - __atomic_load_n(&ring.ended, __ATOMIC_ACQUIRE) >= RING) sched_yield();
        size_t n = size_least + contract_random(&seed) % (size_most - size_least + 1);
        char* p = malloc(n);
        if (p == NULL)
            EXPECT(!"a block");
        else
            memset(p, (int)i, n);
        ring.blocks[i % RING] = p;
        __atomic_store_n(&ring.made, i + 1, __ATOMIC_RELEASE);
    }
    return unused;
}

static void* end(void* unused) {
    for (unsigned long i = 0; i < BLOCKS; i++) {
        while (__atomic_load_n(&ring.made, __ATOMIC_ACQUIRE) <= i) sched_yield();
        char* p = ring.blocks[i % RING];
        if (p != NULL && (p[0] != (char)i || p[size_least - 1] != (char)i))
            EXPECT(!"content is kept on the way");
        free(p);
        __atomic_store_n(&ring.ended, i + 1, __ATOMIC_RELEASE);
        if (i % 2000 == 0) {
            long now = contract_status_kib("VmRSS:");
            resident_most = now > resident_most ? now : resident_most;
        }
    }
    return unused;
}

/* At most RING blocks of `most` bytes are alive: below 8 MiB in every call here. */
static void test_ring(size_t least, size_t most, int maker_is_new) {
    pthread_t thread;
    ring.made = ring.ended = 0;
    size_least = least;
    size_most = most;
    resident_most = 0;
    EXPECT_EQ(pthread_create(&thread, NULL, maker_is_new ? make : end, NULL), 0);
    (maker_is_new ? end : make)(NULL);
    pthread_join(thread, NULL);
    contract_say(1, "blocks of %zu to %zu bytes: %ld KiB resident at most\n", least, most, resident_most);
    EXPECT_GE(resident_most, 500);
    EXPECT_LE(resident_most, RESIDENT_MAX_KIB);
}

/* Like a server's threads: both make and end, and each ends mostly what the other made. */
static void* slots[64];
static void* trade(void* number) {
    uint64_t seed = 17 + (uintptr_t)number;
    for (int i = 0; i < 400000; i++) {
        size_t n = contract_random(&seed) % 4 == 0 ? 16384 + contract_random(&seed) % 20000
                                                   : contract_random(&seed) % 600 + 16;
        char* p = malloc(n);
        if (p == NULL)
            EXPECT(!"a block");
        else
            p[0] = p[n - 1] = 1;
        free(__atomic_exchange_n(&slots[contract_random(&seed) % 64], p, __ATOMIC_ACQ_REL));
        if (i % 20000 == 0 && number == NULL) {
            long now = contract_status_kib("VmRSS:");
            resident_most = now > resident_most ? now : resident_most;
        }
    }
    return NULL;
}

static void test_trade(void) {
    pthread_t thread;
    resident_most = 0;
    EXPECT_EQ(pthread_create(&thread, NULL, trade, slots), 0);
    trade(NULL);
    pthread_join(thread, NULL);
    contract_say(1, "trade: %ld KiB resident at most\n", resident_most);
    EXPECT_LE(resident_most, RESIDENT_MAX_KIB);
    for (int i = 0; i < 64; i++) free(slots[i]);
}

/* A server with a thread that writes replies: the first thread makes a batch and ends half of it, the other
 * thread ends the other half and makes nothing. Both wait for each other, batch by batch. */
enum { BATCH = 160, BATCHES = 1500 };
static char* batch[BATCH];
static pthread_barrier_t batch_is_made;
static pthread_barrier_t batch_is_ended;

static void* end_odd(void* unused) {
    for (int round = 0; round < BATCHES; round++) {
        pthread_barrier_wait(&batch_is_made);
        for (int i = 1; i < BATCH; i += 2) free(batch[i]);
        pthread_barrier_wait(&batch_is_ended);
    }
    return unused;
}

static void test_batches(size_t least, size_t most) {
    pthread_t thread;
    uint64_t seed = 23;
    pthread_barrier_init(&batch_is_made, NULL, 2);
    pthread_barrier_init(&batch_is_ended, NULL, 2);
    EXPECT_EQ(pthread_create(&thread, NULL, end_odd, NULL), 0);
    resident_most = 0;
    for (int round = 0; round < BATCHES; round++) {
        for (int i = 0; i < BATCH; i++) {
            size_t n = least + contract_random(&seed) % (most - least + 1);
            batch[i] = malloc(n);
            if (batch[i] == NULL)
                EXPECT(!"a block");
            else
                memset(contract_opaque_pointer(batch[i]), 1, n);
        }
        pthread_barrier_wait(&batch_is_made);
        for (int i = 0; i < BATCH; i += 2) free(batch[i]);
        pthread_barrier_wait(&batch_is_ended);
        if (round % 100 == 0) {
            long now = contract_status_kib("VmRSS:");
            resident_most = now > resident_most ? now : resident_most;
        }
    }
    pthread_join(thread, NULL);
    contract_say(1, "batches of %zu to %zu bytes: %ld KiB resident at most\n", least, most, resident_most);
    EXPECT_LE(resident_most, RESIDENT_MAX_KIB);
}

int main(void) {
    contract_begin();
    for (int maker_is_new = 0; maker_is_new < 2; maker_is_new++) {
        test_ring(100, 100, maker_is_new);
        test_ring(1, 3000, maker_is_new);
        test_ring(16384, 16384, maker_is_new);
        test_ring(20000, 24000, maker_is_new);
        test_ring(1000, 30000, maker_is_new);
    }
    test_trade();
    test_batches(100, 400);
    test_batches(16384, 16384);
    test_batches(16384, 17000);
    test_batches(16384, 40000);
    return contract_end();
}
