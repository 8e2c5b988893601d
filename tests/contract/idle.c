/* idle.c: weir_thread_idle, called by workers that wait.
 *
 * Who may call it: tests/contract/run.py. A worker that says it is idle keeps no heap; what it cached serves
 * others; its blocks in use stay as they are, and others may free them; it allocates again afterwards. Where
 * the library has no such call, the same work runs without it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include "../../include/weir/weir.h"
#include <pthread.h>

enum { WORKERS = 8, BLOCKS = 4000, KEPT_EVERY = 40, ROUNDS = 20 };

static void (*thread_idle)(void);
static int (*stats_get)(struct weir_stats*);
static pthread_barrier_t barrier;
static unsigned char* kept[WORKERS][BLOCKS];

static struct weir_stats stats(void) {
    struct weir_stats s = {.struct_size = sizeof s};
    if (stats_get != NULL) EXPECT_EQ(stats_get(&s), 0);
    return s;
}

static size_t block_bytes(int i) { return 16 + (size_t)(i % 60) * 24; }

static void* worker(void* number_pointer) {
    int number = (int)(uintptr_t)number_pointer;
    int whole = 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            if (kept[number][i] != NULL) {
                whole &= kept[number][i][0] == (unsigned char)(number + i);
                continue;
            }
            kept[number][i] = malloc(block_bytes(i));
            kept[number][i][0] = (unsigned char)(number + i);
        }
        for (int i = 0; i < BLOCKS; i++) {
            if (i % KEPT_EVERY == 0) continue;
            free(kept[number][i]);
            kept[number][i] = NULL;
        }
        errno = 77;
        if (thread_idle != NULL) thread_idle();
        whole &= errno == 77;
        if (thread_idle != NULL) thread_idle(); /* again: nothing to do */
        pthread_barrier_wait(&barrier);
        /* What others hold may be freed while they idle: here by the neighbour. */
        int neighbour = (number + 1) % WORKERS;
        for (int i = 0; i < BLOCKS; i += 2 * KEPT_EVERY) {
            whole &= kept[neighbour][i][0] == (unsigned char)(neighbour + i);
            free(kept[neighbour][i]);
            kept[neighbour][i] = NULL;
        }
        if (thread_idle != NULL) thread_idle();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier); /* main looks at the figures between these two */
    }
    EXPECT(whole);
    return NULL;
}

int main(void) {
    contract_begin();
    thread_idle = (void (*)(void))dlsym(RTLD_DEFAULT, "weir_thread_idle");
    stats_get = (int (*)(struct weir_stats*))dlsym(RTLD_DEFAULT, "weir_stats_get");
    if (contract_is_weir()) EXPECT(thread_idle != NULL && stats_get != NULL);
    pthread_barrier_init(&barrier, NULL, WORKERS + 1);
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) pthread_create(&threads[i], NULL, worker, (void*)(uintptr_t)i);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        if (thread_idle != NULL) EXPECT(stats().heaps_live <= 1);
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    for (int n = 0; n < WORKERS; n++)
        for (int i = 0; i < BLOCKS; i++) free(kept[n][i]);
    if (thread_idle != NULL) {
        thread_idle();
        struct weir_stats s = stats();
        EXPECT_EQ(s.heaps_live, 0);
        EXPECT(s.cached_bytes < 1u << 20); /* orphaned slabs that still hold a block or two of libc's */
        void* p = malloc(100);             /* and it goes on */
        EXPECT(p != NULL);
        EXPECT_EQ(stats().heaps_live, 1);
        free(p);
    }
    return contract_end();
}
