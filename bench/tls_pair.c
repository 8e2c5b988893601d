/* tls_pair.c: nanoseconds per pair of malloc(1) and free on one pinned core.
 *
 *     tls_pair PAIRS CPU
 *
 * Who may call it: tls.py, which links it with the allocator in several ways. Prints one number. The barrier
 * keeps the compiler from removing the pair as unused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char** argv) {
    long pairs = argc > 1 ? atol(argv[1]) : 0;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(argc > 2 ? (size_t)atoi(argv[2]) : 0, &one);
    if (pairs < 1 || sched_setaffinity(0, sizeof one, &one) != 0) return 2;
    for (long i = 0; i < 100000; i++) free(malloc(1 + (size_t)i % 8));
    double start = now_ns();
    for (long i = 0; i < pairs; i++) {
        void* p = malloc(1);
        __asm__ volatile("" : "+r"(p) : : "memory");
        free(p);
    }
    printf("%.4f\n", (now_ns() - start) / (double)pairs);
    return 0;
}
