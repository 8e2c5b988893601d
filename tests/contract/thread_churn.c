/* thread_churn.c: ten thousand short threads: their heaps are used again.
 *
 * Who may call it: tests/contract/run.py. Each thread allocates in many sizes, leaves some blocks behind
 * for the next one to free, and ends. Resident memory, address space and mappings must not grow.
 *
 * contract: timeout=120
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

enum { BATCH = 8, THREADS = 10000, KEPT = 40, PASSED = 2000 };

static void* left[BATCH][KEPT];

static void* thread_main(void* number) {
    void** mine = left[(uintptr_t)number];
    for (size_t i = 0; i < KEPT; i++) {
        unsigned char* old = mine[i];
        if (old != NULL && old[0] != (unsigned char)i) EXPECT(!"a block that an ended thread left is kept");
        free(old);
        unsigned char* p = malloc(i * i * 10 + 1);
        if (p == NULL)
            EXPECT(!"a block");
        else
            p[0] = (unsigned char)i;
        mine[i] = p;
        free(malloc(i * 3000));
    }
    return NULL;
}

static void run(int threads) {
    for (int i = 0; i < threads; i += BATCH) {
        pthread_t batch[BATCH];
        int started = 0;
        while (started < BATCH &&
               pthread_create(&batch[started], NULL, thread_main, (void*)(uintptr_t)started) == 0)
            started++;
        if (started != BATCH) EXPECT(!"a thread starts");
        for (int k = 0; k < started; k++) pthread_join(batch[k], NULL);
    }
}

/* What weir keeps beside slabs for blocks that others free is reserved when the first such slab is met, which
 * with the threads above may be at any time: some gigabytes of addresses, once. */
static void* free_all(void* blocks) {
    void** all = blocks;
    for (int i = 0; i < PASSED; i++) free(all[i]);
    return NULL;
}
static void pass_on(void) {
    static void* all[PASSED];
    for (int round = 0; round < 4; round++) {
        pthread_t other;
        for (int i = 0; i < PASSED; i++) all[i] = malloc(100);
        int refused = pthread_create(&other, NULL, free_all, all);
        EXPECT_EQ(refused, 0);
        if (refused == 0) pthread_join(other, NULL);
    }
}

static int mappings(void) {
    int count = 0;
    char text[4096];
    int fd = open("/proc/self/maps", O_RDONLY);
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++) count += text[i] == '\n';
    close(fd);
    return count;
}

int main(void) {
    contract_begin();
    pass_on();
    run(1000);
    long resident = contract_status_kib("VmRSS:");
    long virtual = contract_status_kib("VmSize:");
    int maps = mappings();
    EXPECT_GE(maps, 5);
    run(THREADS - 1000);
    EXPECT_LE(contract_status_kib("VmRSS:") - resident, 8 * 1024);
    EXPECT_LE(contract_status_kib("VmSize:") - virtual, 512 * 1024);
    EXPECT_LE(mappings() - maps, 200);
    EXPECT_LE(contract_status_kib("VmRSS:"), 64 * 1024);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < KEPT; i++) free(left[b][i]);
    return contract_end();
}
