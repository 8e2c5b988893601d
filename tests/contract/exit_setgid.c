/* exit_setgid.c: threads that end answer another one that changes the process's ids.
 *
 * Who may call it: tests/contract/run.py. Libc signals every thread then, and waits for each answer: also for
 * that of one which ends, and which must not keep libc's signal from itself.
 *
 * contract: timeout=60
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 3000, MAKERS = 2 };
static atomic_int made;

static void* short_lived(void* unused) {
    void* blocks[50];
    for (int i = 0; i < 50; i++) blocks[i] = malloc(10 + (size_t)i * 30);
    for (int i = 0; i < 50; i += 2) free(blocks[i]);
    for (int i = 1; i < 50; i += 2) free(blocks[i]);
    return unused;
}

static void* maker(void* unused) {
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (!EXPECT_EQ(pthread_create(&thread, NULL, short_lived, NULL), 0)) break;
        pthread_join(thread, NULL);
    }
    made++;
    return unused;
}

int main(void) {
    contract_begin();
    alarm(50); /* where one does not answer, this process hangs */
    pthread_t makers[MAKERS];
    for (int i = 0; i < MAKERS; i++) EXPECT_EQ(pthread_create(&makers[i], NULL, maker, NULL), 0);
    unsigned long changes = 0;
    while (made != MAKERS) {
        EXPECT_EQ(setgid(getgid()), 0);
        changes++;
    }
    for (int i = 0; i < MAKERS; i++) pthread_join(makers[i], NULL);
    EXPECT_GE(changes, 100);
    return contract_end();
}
