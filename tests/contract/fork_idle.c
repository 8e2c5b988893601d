/* fork_idle.c: a signal handler forks while its thread gives its heap away: in weir_thread_idle, and at
 * thread exit.
 *
 * Who may call it: tests/contract/run.py. A timer fires at a random moment of the call; the child goes on
 * from the handler, starts threads of its own and checks what they write. A heap that the child gave away
 * twice would serve two of them.
 *
 * contract: timeout=90
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

enum { FORKS = 150, TRIES_MAX = 60000, BLOCKS = 300, THREADS = 4 };

static void (*thread_idle)(void);
static volatile sig_atomic_t armed, is_child;
static int forks, bad;

static void* churn(void* mark_pointer) {
    unsigned char mark = (unsigned char)(uintptr_t)mark_pointer;
    static _Thread_local unsigned char* blocks[BLOCKS];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = malloc(16 + (size_t)i * 5);
            memset(blocks[i], mark, 16 + (size_t)i * 5);
        }
        sched_yield();
        for (int i = 0; i < BLOCKS; i++) {
            for (size_t k = 0; k < 16 + (size_t)i * 5; k++)
                if (blocks[i][k] != mark) _exit(9);
            free(blocks[i]);
        }
    }
    return NULL;
}

/* Runs on the thread whose call was interrupted, which goes on with it in parent and child. */
static void on_timer(int number) {
    (void)number;
    if (!armed || is_child) return;
    pid_t pid = fork();
    if (pid == 0) {
        is_child = 1;
        return;
    }
    int status = 1;
    forks++;
    bad += pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

static void child_ends(void) {
    pthread_t threads[THREADS];
    alarm(20);
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, churn, (void*)(i + 1)) != 0) _exit(8);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    _exit(0);
}

/* What the thread's heap has to give away, now and then with blocks left in use. */
static void heap_fill(uint64_t* seed) {
    static void* kept[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        void* p = malloc(16 + contract_random(seed) % 1500);
        if (i % 7 == 0) {
            free(kept[i]);
            kept[i] = p;
        } else {
            free(p);
        }
    }
}

static void* idle_or_exit(void* number_pointer) {
    uint64_t seed = 1 + (uint64_t)(uintptr_t)number_pointer;
    heap_fill(&seed);
    struct itimerval soon = {.it_value = {0, 1 + (long)(contract_random(&seed) % 30)}};
    struct itimerval never = {.it_value = {0, 0}};
    armed = 1;
    setitimer(ITIMER_REAL, &soon, NULL);
    if (thread_idle != NULL) thread_idle();
    for (volatile int spin = 0; spin < 2000; spin++) continue;
    armed = 0;
    setitimer(ITIMER_REAL, &never, NULL);
    if (is_child) child_ends();
    return NULL;
}

int main(void) {
    contract_begin();
    thread_idle = (void (*)(void))dlsym(RTLD_DEFAULT, "weir_thread_idle");
    struct sigaction action = {.sa_handler = on_timer};
    sigaction(SIGALRM, &action, NULL);
    for (int i = 0; i < TRIES_MAX && forks < FORKS; i++) idle_or_exit((void*)(uintptr_t)i);
    EXPECT(forks > 0);
    EXPECT_EQ(bad, 0);
    return contract_end();
}
