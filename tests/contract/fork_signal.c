/* fork_signal.c: fork from a signal handler that interrupted malloc.
 *
 * Who may call it: tests/contract/run.py. A timer interrupts a loop of malloc, realloc and free at random
 * points; its handler forks and returns, in the child as well, so that both go on with the call that was
 * interrupted. With `mt`, other threads allocate at the same time: glibc's fork then takes locks that the
 * interrupted call may hold and blocks on itself, so that run is for the library alone.
 *
 * contract: name=single timeout=40
 * contract: name=mt args=mt timeout=60 glibc=skip
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

enum { FORKS = 250, SLOTS = 200 };

static void* slots[SLOTS];
static volatile sig_atomic_t forks;
static volatile sig_atomic_t is_child;
static volatile sig_atomic_t last_child;
static int stop;

static void on_alarm(int unused) {
    (void)unused;
    int saved_errno = errno;
    pid_t pid = fork();
    if (pid == 0)
        is_child = 1;
    else
        last_child = pid;
    forks = forks + 1;
    errno = saved_errno;
}

static void step(uint64_t* seed) {
    size_t i = contract_random(seed) % SLOTS;
    size_t n = contract_random(seed) % ((size_t)16 << contract_random(seed) % 12) + 8;
    if (contract_random(seed) % 64 == 0) n *= 40;
    if (n % 3 == 0) {
        unsigned char* p = realloc(slots[i], n);
        EXPECT(p != NULL && (slots[i] == NULL || p[0] == (unsigned char)i));
        slots[i] = p;
    } else {
        unsigned char* p = slots[i];
        if (p != NULL && p[0] != (unsigned char)i) EXPECT(!"content is kept");
        free(p);
        slots[i] = n % 5 == 0 ? calloc(1, n) : malloc(n);
    }
    *(unsigned char*)slots[i] = (unsigned char)i;
}

static void* churn(void* unused) {
    void* mine[64] = {0};
    uint64_t seed = 3;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        size_t i = contract_random(&seed) % 64;
        free(mine[i]);
        mine[i] = malloc(contract_random(&seed) % 3000);
    }
    for (int i = 0; i < 64; i++) free(mine[i]);
    return unused;
}

static void timer_start(uint64_t* seed) {
    struct itimerval once = {{0, 0}, {0, 20 + (long)(contract_random(seed) % 900)}};
    setitimer(ITIMER_REAL, &once, NULL);
}

static void child_finish(uint64_t* seed) {
    signal(SIGALRM, SIG_DFL);
    alarm(30);
    for (int i = 0; i < 3000; i++) step(seed);
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < 300; i++) step(seed);
        _exit(contract_failed());
    }
    EXPECT_CHILD_OK(pid);
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
    _exit(contract_failed());
}

int main(int argc, char** argv) {
    contract_begin();
    int is_mt = argc > 1 && strcmp(argv[1], "mt") == 0;
    pthread_t threads[2];
    sigset_t alarm_set;
    sigemptyset(&alarm_set);
    sigaddset(&alarm_set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_set, NULL);
    for (int i = 0; is_mt && i < 2; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, churn, NULL), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarm_set, NULL);
    signal(SIGALRM, on_alarm);

    uint64_t seed = 4711;
    for (int done = 0; done < FORKS; done++) {
        timer_start(&seed);
        while (forks == done && !is_child) step(&seed);
        if (is_child) child_finish(&seed);
        EXPECT_CHILD_OK((pid_t)last_child);
    }
    EXPECT_EQ(forks, FORKS);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; is_mt && i < 2; i++) pthread_join(threads[i], NULL);
    return contract_end();
}
