/* pool_tsan.c: object pools in a program that ThreadSanitizer watches: an object that goes from one thread to
 * another by a pool is no race, and one that two threads have at once is.
 *
 * Who may call it: tests/contract/run.py, without an argument: it runs itself. glibc's malloc has no pools.
 *
 * contract: glibc=skip cflags=-fsanitize=thread
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#pragma weak weir_pool_create
#pragma weak weir_pool_alloc
#pragma weak weir_pool_zalloc
#pragma weak weir_pool_alloc_flags
#pragma weak weir_pool_free
#pragma weak weir_pool_flush
#pragma weak weir_pool_gc
#pragma weak weir_pool_reserve
#pragma weak weir_pool_alloc_slow
#pragma weak weir_pool_free_slow
#include "weir/pool.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 300, OBJECTS = 100, SIZE = 3000, TSAN_FOUND = 66, RACES = 10 };

WEIR_POOL_DECLARE(declared, SIZE, 0, 0);
static struct weir_pool* made;
static struct weir_pool* zeroed;

static void use(char* all[], char* (*take)(void), void (*give)(char*)) {
    for (unsigned i = 0; i < OBJECTS; i++) {
        all[i] = take();
        all[i][0] = all[i][SIZE - 1] = (char)i;
    }
    for (unsigned i = 0; i < OBJECTS; i++) give(all[i]);
}
static char* take_declared(void) { return WEIR_POOL_ALLOC(declared); }
static void give_declared(char* p) { WEIR_POOL_FREE(declared, p); }
static char* take_made(void) { return weir_pool_alloc(made); }
static void give_made(char* p) { weir_pool_free(made, p); }
static char* take_zeroed(void) {
    char* p = weir_pool_zalloc(zeroed);
    if (p[0] != 0 || p[SIZE - 1] != 0) _exit(1);
    return p;
}
static void give_zeroed(char* p) { weir_pool_free(zeroed, p); }

static void* worker(void* number) {
    char* all[OBJECTS];
    for (unsigned i = 0; i < ROUNDS; i++) {
        use(all, take_declared, give_declared);
        use(all, take_made, give_made);
        use(all, take_zeroed, give_zeroed);
        /* Memory of one pool becomes another's, and one size's another's. */
        if (number == NULL && i % 10 == 0) weir_pool_gc();
        struct weir_pool* other = weir_pool_create("other", 100 + i % 5 * 1000, 0, 0);
        char* p = weir_pool_alloc(other);
        memset(p, 1, 100 + i % 5 * 1000);
        weir_pool_free(other, p);
        weir_pool_flush(other);
    }
    return NULL;
}

static void hand_over(void) {
    made = weir_pool_create("made", SIZE, 0, 0);
    zeroed = weir_pool_create("zeroed", SIZE, 0, WEIR_POOL_ZERO);
    if (weir_pool_reserve(made, OBJECTS) != 0) _exit(1);
    void* ready = weir_pool_alloc_flags(made, WEIR_POOL_ALLOC_CACHED);
    if (ready == NULL) _exit(1);
    weir_pool_free(made, ready);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, worker, (void*)i);
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void* writer(void* object) {
    *(char*)object = 1;
    return NULL;
}

static void race(void) {
    char* p = WEIR_POOL_ALLOC(declared);
    pthread_t thread;
    pthread_create(&thread, NULL, writer, p);
    *p = 2;
    pthread_join(thread, NULL);
    WEIR_POOL_FREE(declared, p);
}

static int run_as(const char* how) {
    pid_t pid = fork();
    if (pid == 0) {
        if (*how == 'r') close(2); /* what is said of it is meant */
        execl("/proc/self/exe", "pool_tsan", how, (char*)NULL);
        _exit(2);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

int main(int argc, char** argv) {
    if (argc > 1) {
        *argv[1] == 'r' ? race() : hand_over();
        return 0;
    }
    EXPECT(weir_pool_create != NULL); /* whose malloc it is, is the sanitizer's affair */
    if (weir_pool_create == NULL) return contract_end();
    EXPECT_EQ(run_as("hand over"), 0);
    /* Of two writes at the same instant the sanitizer may see neither. */
    int found = 0;
    for (int i = 0; i < RACES && found != TSAN_FOUND; i++) found = run_as("race");
    EXPECT_EQ(found, TSAN_FOUND);
    return contract_end();
}
