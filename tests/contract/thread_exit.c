/* thread_exit.c: destructors of thread-specific data that allocate and free, round after round.
 *
 * Who may call it: tests/contract/run.py. Keys are made before and after the allocator's first use in the
 * thread; each destructor frees its value, allocates, and sets a new one until the rounds are used up, so
 * that the last of them run after any that the allocator may have. Threads then hand blocks to others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include "../../include/weir/weir.h"
#include <limits.h>
#include <pthread.h>

enum { KEYS = 20, THREADS = 400 };

static pthread_key_t keys[KEYS];
static unsigned long runs[KEYS];
static unsigned long late_runs;
static void* survivors[THREADS];

extern int __cxa_thread_atexit_impl(void (*function)(void*), void* object, void* dso);
extern void* __dso_handle;

struct value {
    int key;
    int round;
    char fill[500];
};

static struct value* value_make(int key, int round) {
    struct value* v = malloc(sizeof *v);
    if (!EXPECT(v != NULL)) abort();
    v->key = key;
    v->round = round;
    contract_fill(v->fill, sizeof v->fill, (unsigned)(key + round));
    return v;
}

static void key_destroy(void* p) {
    struct value* v = p;
    int key = v->key;
    int round = v->round;
    if (!contract_holds(v->fill, sizeof v->fill, (unsigned)(key + round)))
        EXPECT(!"a thread-specific value is kept");
    __atomic_fetch_add(&runs[key], 1, __ATOMIC_RELAXED);
    void* large = malloc(40000 + (size_t)key * 1000);
    free(v);
    void* small = calloc(1, 24);
    free(large);
    free(small);
    /* One round fewer than the limit: nothing leaks. */
    if (round + 1 < PTHREAD_DESTRUCTOR_ITERATIONS) pthread_setspecific(keys[key], value_make(key, round + 1));
}

static void at_thread_exit(void* object) {
    free(object);
    free(malloc(contract_opaque(3000)));
    __atomic_fetch_add(&late_runs, 1, __ATOMIC_RELAXED);
}

static void* thread_main(void* number) {
    for (int k = 0; k < KEYS; k++) pthread_setspecific(keys[k], value_make(k, 0));
    EXPECT_EQ(__cxa_thread_atexit_impl(at_thread_exit, malloc(100), &__dso_handle), 0);
    survivors[(uintptr_t)number] = malloc(1000);
    contract_fill(survivors[(uintptr_t)number], 1000, (unsigned)(uintptr_t)number);
    if ((uintptr_t)number % 2 == 0) pthread_exit(NULL);
    return NULL;
}

/* A thread whose first and only use of the heap is in a destructor. */
static pthread_key_t virgin_key;
static void virgin_destroy(void* unused) {
    (void)unused;
    void* p = malloc(300);
    EXPECT(p != NULL);
    free(p);
    __atomic_fetch_add(&late_runs, 1, __ATOMIC_RELAXED);
}

static void* virgin_main(void* unused) {
    pthread_setspecific(virgin_key, &virgin_key);
    return unused;
}

/* The allocator lets go what such threads had, where it says so. */
static void test_virgins(void) {
    enum { VIRGINS = 50, AT_ONCE = 10 };
    unsigned long before = late_runs;
    for (int i = 0; i < VIRGINS; i += AT_ONCE) {
        pthread_t threads[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) EXPECT_EQ(pthread_create(&threads[k], NULL, virgin_main, NULL), 0);
        for (int k = 0; k < AT_ONCE; k++) EXPECT_EQ(pthread_join(threads[k], NULL), 0);
    }
    EXPECT_EQ(late_runs, before + VIRGINS);
    int (*get)(struct weir_stats*) = (int (*)(struct weir_stats*))dlsym(RTLD_DEFAULT, "weir_stats_get");
    struct weir_stats s = {.struct_size = sizeof s};
    if (get != NULL && EXPECT_EQ(get(&s), 0)) EXPECT_EQ(s.heaps_live, 1);
}

int main(void) {
    contract_begin();
    for (int k = 0; k < KEYS; k++) EXPECT_EQ(pthread_key_create(&keys[k], key_destroy), 0);
    EXPECT_EQ(pthread_key_create(&virgin_key, virgin_destroy), 0);
    long resident = 0;
    for (uintptr_t i = 0; i < THREADS; i += 4) {
        pthread_t threads[4];
        for (uintptr_t k = 0; k < 4; k++)
            EXPECT_EQ(pthread_create(&threads[k], NULL, thread_main, (void*)(i + k)), 0);
        for (int k = 0; k < 4; k++) EXPECT_EQ(pthread_join(threads[k], NULL), 0);
        if (i == 40) resident = contract_status_kib("VmRSS:");
    }
    for (int k = 0; k < KEYS; k++) EXPECT_EQ(runs[k], (unsigned long)THREADS * PTHREAD_DESTRUCTOR_ITERATIONS);
    EXPECT_EQ(late_runs, THREADS);
    EXPECT_LE(contract_status_kib("VmRSS:") - resident, 8 * 1024);
    for (int i = 0; i < THREADS; i++) {
        EXPECT(contract_holds(survivors[i], 1000, (unsigned)i));
        free(survivors[i]);
    }
    test_virgins();
    /* A key that is made now comes after any of the allocator's, but is not one that libc allocates for. */
    pthread_key_t before;
    pthread_key_delete(virgin_key);
    EXPECT_EQ(pthread_key_create(&before, NULL), 0); /* in its place */
    EXPECT_EQ(pthread_key_create(&virgin_key, virgin_destroy), 0);
    test_virgins();

    /* The initial thread may end first; the last one ends the process. */
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        for (int k = 0; k < KEYS; k++) pthread_setspecific(keys[k], value_make(k, 0));
        pthread_exit(NULL);
    }
    EXPECT_CHILD_OK(pid);
    return contract_end();
}
