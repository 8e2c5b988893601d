/* exit_signal.c: a signal that a thread sends to its process at its end reaches the thread that waits for it.
 *
 * Who may call it: tests/contract/run.py. The kernel wakes the first thread for it, but whichever thread
 * looks at its signals first takes it; one that ends, and unblocks signals on its way, would be sooner where
 * the processors are busy. wrk waits like this.
 *
 * contract: timeout=120
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { ROUNDS = 100, ELSEWHERE_MAX = 10, HOGS = 8 };
static pthread_t first;
static atomic_int taken, taken_elsewhere, over;

static void on_signal(int unused) {
    (void)unused;
    if (pthread_equal(pthread_self(), first))
        taken++;
    else
        taken_elsewhere++;
}

static void* hog(void* unused) {
    while (!over) {
    }
    return unused;
}

static void* sender(void* unused) {
    void* blocks[100];
    for (int i = 0; i < 100; i++) blocks[i] = malloc(10 + (size_t)i * 30);
    usleep(2000); /* the first thread sleeps by now */
    for (int i = 0; i < 100; i++) free(blocks[i]);
    kill(getpid(), SIGUSR1);
    return unused;
}

int main(void) {
    contract_begin();
    first = pthread_self();
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t hogs[HOGS];
    for (int i = 0; i < HOGS; i++) EXPECT_EQ(pthread_create(&hogs[i], NULL, hog, NULL), 0);
    int rounds = 0;
    for (; rounds < ROUNDS && taken_elsewhere <= ELSEWHERE_MAX; rounds++) {
        pthread_t thread;
        EXPECT_EQ(pthread_create(&thread, NULL, sender, NULL), 0);
        struct timespec most = {2, 0};
        while (taken + taken_elsewhere == rounds && nanosleep(&most, &most) != 0) {
        }
        pthread_join(thread, NULL);
    }
    over = 1;
    for (int i = 0; i < HOGS; i++) pthread_join(hogs[i], NULL);
    /* It happens on any malloc, to one in some hundred. */
    EXPECT_EQ(taken + taken_elsewhere, rounds);
    EXPECT_LE(taken_elsewhere, ELSEWHERE_MAX);
    return contract_end();
}
