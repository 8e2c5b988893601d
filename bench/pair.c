/* pair.c: nanoseconds per pair of malloc and free, for one block that comes and goes and for batches.
 *
 * Anybody runs it, with an allocator preloaded or not: cc -O2 -fno-builtin bench/pair.c -o pair. It is the
 * measurement behind docs/adr/0005 (WEIR_CHECK_EVERY=1 against the default) and knows no allocator.
 * Prints the best of several rounds; compare runs that alternate on one machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 5, BATCH = 1000, BATCHES = 100, STRIDE = 7 };

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double lone(size_t size, long pairs) {
    double start = now_ns();
    for (long i = 0; i < pairs; i++) {
        void* p = malloc(size);
        __asm__ volatile("" : : "r"(p) : "memory");
        free(p);
    }
    return (now_ns() - start) / (double)pairs;
}

/* Blocks of 16 to 515 bytes, freed in another order than they were made in. */
static double batch(void) {
    static void* blocks[BATCH];
    unsigned x = 1;
    double start = now_ns();
    for (int round = 0; round < BATCHES; round++) {
        for (int i = 0; i < BATCH; i++) {
            x = x * 1103515245u + 12345u;
            blocks[i] = malloc(16 + (x >> 16) % 500);
        }
        for (int i = 0; i < BATCH; i++) free(blocks[i * STRIDE % BATCH]);
    }
    return (now_ns() - start) / (BATCH * BATCHES);
}

int main(void) {
    static const size_t sizes[] = {16, 64, 256, 1024, 8192, 65536, 1u << 20};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double best = 1e9;
        for (int round = 0; round < ROUNDS; round++) {
            double ns = lone(sizes[s], sizes[s] > 16384 ? 200000 : 10000000);
            if (ns < best) best = ns;
        }
        printf("%8zu B: %6.2f ns\n", sizes[s], best);
    }
    double best = 1e9;
    for (int round = 0; round < 4 * ROUNDS; round++) {
        double ns = batch();
        if (ns < best) best = ns;
    }
    printf("   batch: %6.2f ns\n", best);
    return 0;
}
