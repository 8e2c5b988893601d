/* pool.c: object pools in a whole library: words in TLS, threads that come and go, idle ones, fork, signals,
 * figures.
 *
 * Who may call it: tests/contract/run.py. glibc's malloc has no pools, so that nothing runs there; the linker
 * does not see the library, hence the weak names.
 *
 * contract: glibc=skip
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include "weir/weir.h"
#pragma weak weir_pool_create
#pragma weak weir_pool_destroy
#pragma weak weir_pool_alloc
#pragma weak weir_pool_zalloc
#pragma weak weir_pool_alloc_flags
#pragma weak weir_pool_free
#pragma weak weir_pool_flush
#pragma weak weir_pool_gc
#pragma weak weir_pool_stats_get
#pragma weak weir_pool_stats_next
#pragma weak weir_pool_alloc_slow
#pragma weak weir_pool_free_slow
#pragma weak weir_thread_idle
#pragma weak weir_stats_json
#include "weir/pool.h"
#include <pthread.h>

enum { THREADS = 8, ROUNDS = 200, OBJECTS = 300, BUFFER_BYTES = 1500 };

struct connection {
    long number;
    char text[200];
};
WEIR_POOL_DECLARE(buffers, BUFFER_BYTES, 64, 0);
WEIR_POOL_DECLARE_TYPED(connections, struct connection, WEIR_POOL_ZERO);

static struct weir_pool_stats stats(struct weir_pool* pool) {
    struct weir_pool_stats s = {.struct_size = sizeof s};
    EXPECT_EQ(weir_pool_stats_get(pool, &s), 0);
    return s;
}

static void expect_conserved(struct weir_pool* pool, unsigned long used) {
    struct weir_pool_stats s = stats(pool);
    EXPECT_EQ(s.used, used);
    EXPECT_EQ(s.allocated, s.used + s.cached);
}

static void use_pools(unsigned mark) {
    unsigned char* all[OBJECTS];
    int whole = 1;
    for (unsigned i = 0; i < OBJECTS; i++) {
        all[i] = WEIR_POOL_ALLOC(buffers);
        whole &= all[i] != NULL && (uintptr_t)all[i] % 64 == 0;
        all[i][0] = all[i][BUFFER_BYTES - 1] = (unsigned char)(mark + i);
        struct connection* c = WEIR_POOL_ALLOC(connections);
        whole &= c->number == 0 && c->text[199] == 0;
        c->number = mark;
        c->text[199] = 1;
        WEIR_POOL_FREE(connections, c);
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        whole &=
            all[i][0] == (unsigned char)(mark + i) && all[i][BUFFER_BYTES - 1] == (unsigned char)(mark + i);
        WEIR_POOL_FREE(buffers, all[i]);
    }
    EXPECT(whole);
}

static void* worker(void* number) {
    for (unsigned i = 0; i < 20; i++) use_pools((unsigned)(uintptr_t)number + i);
    return NULL;
}

/* Threads that end: what they cached serves those that come, and is not lost. */
static void test_threads(void) {
    for (unsigned round = 0; round < ROUNDS / THREADS; round++) {
        pthread_t threads[THREADS];
        for (unsigned i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, worker, (void*)(uintptr_t)(round + i));
        for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
    expect_conserved(WEIR_POOL(buffers), 0);
    expect_conserved(WEIR_POOL(connections), 0);
    EXPECT_EQ(stats(WEIR_POOL(buffers)).held, 0);
    weir_pool_gc();
    EXPECT_EQ(stats(WEIR_POOL(buffers)).allocated, 0);
}

/* Used by a destructor of another key, in each round of them: after the library's own has run. */
static pthread_key_t late_key;
static void late(void* rounds) {
    use_pools(7);
    uintptr_t left = (uintptr_t)rounds;
    if (left > 1) pthread_setspecific(late_key, (void*)(left - 1));
}
static void* late_worker(void* unused) {
    use_pools(3);
    pthread_setspecific(late_key, (void*)4);
    return unused;
}
static void test_late(void) {
    pthread_key_create(&late_key, late);
    for (unsigned i = 0; i < 30; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, late_worker, NULL);
        pthread_join(thread, NULL);
    }
    expect_conserved(WEIR_POOL(buffers), 0);
    EXPECT(stats(WEIR_POOL(buffers)).allocated < 30 * 100);
}

static void test_idle(void) {
    use_pools(1);
    EXPECT(stats(WEIR_POOL(buffers)).held > 0);
    weir_thread_idle();
    EXPECT_EQ(stats(WEIR_POOL(buffers)).held, 0);
    use_pools(2);
    weir_pool_flush(WEIR_POOL(buffers));
    expect_conserved(WEIR_POOL(buffers), 0);
    EXPECT_EQ(stats(WEIR_POOL(buffers)).allocated, 0);
}

/* ---- Fork, by main and by a handler, while others are at work. */

static volatile int stop;
static void* busy(void* number) {
    while (!stop) use_pools((unsigned)(uintptr_t)number);
    return NULL;
}

static void in_child(void) {
    alarm(60);
    use_pools(9);
    weir_pool_gc();
    pthread_t thread;
    pthread_create(&thread, NULL, worker, NULL);
    pthread_join(thread, NULL);
    struct weir_pool* pool = weir_pool_create("child", 100, 0, 0);
    weir_pool_free(pool, weir_pool_alloc(pool));
    EXPECT_EQ(weir_pool_destroy(pool), 0);
}

static void fork_once(void) {
    pid_t pid = fork();
    if (pid == 0) {
        in_child();
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
}

static void on_signal(int number) {
    (void)number;
    fork_once();
}

static void test_fork(void) {
    pthread_t threads[3];
    for (unsigned i = 0; i < 3; i++) pthread_create(&threads[i], NULL, busy, (void*)(uintptr_t)i);
    void* own = WEIR_POOL_ALLOC(buffers);
    for (unsigned i = 0; i < 40; i++) fork_once();
    signal(SIGUSR1, on_signal);
    for (unsigned i = 0; i < 10; i++) {
        raise(SIGUSR1); /* between two calls */
        use_pools(i);
    }
    WEIR_POOL_FREE(buffers, own);
    stop = 1;
    for (unsigned i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    expect_conserved(WEIR_POOL(buffers), 0);
}

/* ---- Functions and figures. */

static void test_functions(void) {
    errno = 77;
    struct weir_pool* pool = weir_pool_create("functions", 300, 0, 0);
    EXPECT(pool != NULL);
    char* p = weir_pool_zalloc(pool);
    EXPECT(p[0] == 0 && p[299] == 0);
    memset(p, 1, 300);
    weir_pool_free(pool, p);
    p = weir_pool_alloc_flags(pool, WEIR_POOL_ALLOC_ZERO | WEIR_POOL_ALLOC_CACHED);
    EXPECT(p != NULL && p[0] == 0 && p[299] == 0);
    weir_pool_free(pool, p);
    weir_pool_free(pool, NULL);
    EXPECT_EQ(errno, 77);
    unsigned seen = 0;
    struct weir_pool_stats s = {.struct_size = sizeof s};
    while (weir_pool_stats_next(s.number, &s) == 0)
        seen += strcmp(s.name, "buffers") == 0 || strcmp(s.name, "connections") == 0 ||
                strcmp(s.name, "functions") == 0;
    EXPECT_EQ(seen, 3);
    EXPECT_EQ(weir_pool_destroy(pool), 0);
    EXPECT(weir_pool_create("none", 0, 0, 0) == NULL && errno == EINVAL);
}

static void test_json(void) {
    char text[65536];
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(weir_stats_json(ends[1]), 0);
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;) length += (size_t)n;
    text[length] = '\0';
    const char* row = strstr(text, "\"pools\":[{");
    EXPECT(row != NULL);
    EXPECT(row != NULL &&
           strstr(row, "{\"name\":\"buffers\",\"object_bytes\":1500,\"block_bytes\":1536,") != NULL);
}

int main(void) {
    contract_begin();
    EXPECT(weir_pool_create != NULL);
    if (weir_pool_create == NULL) return contract_end();
    test_threads();
    test_idle();
    test_functions();
    test_json();
    test_fork();
    test_late();
    return contract_end();
}
