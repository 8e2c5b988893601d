/* release_idle.c: a process that frees most of what it had and then does nothing becomes small, without a
 * call, and costs nothing afterwards.
 *
 * Who may call it: tests/contract/run.py. glibc's malloc keeps what is not at its heap's end, so that it
 * passes `off` alone. A second is the time that is given: 50 naps, see release.h.
 *
 * contract: name=single args=single glibc=skip
 * contract: name=small args=small glibc=skip
 * contract: name=large args=large glibc=skip
 * contract: name=threads args=threads glibc=skip
 * contract: name=others args=others glibc=skip
 * contract: name=fork args=fork glibc=skip
 * contract: name=gone args=gone glibc=skip
 * contract: name=off args=off env=WEIR_OPTIONS=release=off
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "release.h"
#include <sys/single_threaded.h>

enum { THREADS = 8, SECOND = 50, MORE_KIB = 6 << 10, THREAD_KIB = 256 };

static void test_single(size_t least, size_t most) {
    struct release_shape* shape = release_shape_new(least + 1);
    release_grow(shape, 96 << 20, least, most);
    long peak = release_resident_kib(&shape, 1);
    EXPECT_GE(peak, 96 << 10);
    release_free(shape, 50);
    EXPECT(release_shrinks(&shape, 1, MORE_KIB, SECOND, NULL));
    EXPECT(release_holds(shape));
    /* Again: what went back is usable. */
    release_grow(shape, 64 << 20, least, most);
    release_free(shape, 50);
    EXPECT(release_shrinks(&shape, 1, MORE_KIB, SECOND, NULL));
    release_end(shape);
}

static struct release_shape* of_threads[THREADS];
static pthread_barrier_t barrier;

static void* freeing_thread(void* argument) {
    struct release_shape* shape = of_threads[(uintptr_t)argument];
    release_grow(shape, 12 << 20, 16, 6000);
    pthread_barrier_wait(&barrier);
    release_free(shape, 40);
    pthread_barrier_wait(&barrier);
    for (;;) pause();
    return NULL;
}

/* Threads that block for good keep no more than a bounded amount each. */
static void test_threads(void) {
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        of_threads[i] = release_shape_new((uint64_t)i + 7);
        EXPECT_EQ(pthread_create(&thread, NULL, freeing_thread, (void*)(uintptr_t)i), 0);
    }
    pthread_barrier_wait(&barrier);
    /* The kernel adds what a thread touched to the process's count 64 pages at a time (proc(5) calls it
     * inaccurate). */
    const long page_kib = sysconf(_SC_PAGESIZE) / 1024;
    EXPECT_GE(release_resident_kib(of_threads, THREADS), THREADS * ((12 << 10) - 64 * page_kib));
    pthread_barrier_wait(&barrier);
    EXPECT(release_shrinks(of_threads, THREADS, MORE_KIB + THREADS * THREAD_KIB, SECOND, NULL));
    for (int i = 0; i < THREADS; i++) EXPECT(release_holds(of_threads[i]));
}

/* Nor is more kept of what others free for a thread that blocks for good. */
static void test_others(void) {
    struct release_shape* shape = release_owner_sleeps();
    EXPECT_GE(release_resident_kib(&shape, 1), 96 << 10);
    release_free(shape, 50);
    EXPECT(release_shrinks(&shape, 1, MORE_KIB, SECOND, NULL));
    release_end(shape);
}

/* The child has no thread but its own until it needs one, and the parent is none the wiser. */
static void test_fork(void) {
    struct release_shape* shape = release_shape_new(3);
    release_grow(shape, 64 << 20, 16, 6000);
    release_free(shape, 8);
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork(); /* at first with much to return, then when all has been */
        if (pid == 0) {
            alarm(40);
            EXPECT_EQ(release_tasks(), 1);
            EXPECT(release_holds(shape));
            struct release_shape* more[] = {shape, release_shape_new(11)};
            release_grow(more[1], 32 << 20, 16, 6000);
            release_free(more[1], 50);
            EXPECT(release_shrinks(more, 2, MORE_KIB, SECOND, NULL));
            release_end(more[1]);
            EXPECT(release_holds(shape));
            _exit(contract_failed());
        }
        EXPECT_CHILD_OK(pid);
        EXPECT(release_shrinks(&shape, 1, MORE_KIB, SECOND, NULL));
        EXPECT(release_holds(shape));
        release_grow(shape, 32 << 20, 16, 6000);
        release_free(shape, 16);
    }
    release_end(shape);
}

/* With nothing to return there is no thread and no work; libc never knew of one. */
static void test_gone(void) {
    int single = __libc_single_threaded;
    struct release_shape* shape = release_shape_new(5);
    release_grow(shape, 64 << 20, 16, 6000);
    release_free(shape, 50);
    EXPECT(release_shrinks(&shape, 1, MORE_KIB, SECOND, NULL));
    EXPECT_EQ(__libc_single_threaded, single);
    int naps = 0;
    while (release_tasks() != 1 && naps < 5 * SECOND) {
        release_nap();
        naps++;
    }
    EXPECT_EQ(release_tasks(), 1);
    double before = release_cpu_seconds();
    usleep(1500000);
    EXPECT(release_cpu_seconds() - before < 0.0005);
    EXPECT_EQ(release_tasks(), 1);
    EXPECT_EQ(__libc_single_threaded, 1);
    EXPECT(release_holds(shape));
}

static void test_off(void) {
    struct release_shape* shape = release_shape_new(6);
    release_grow(shape, 64 << 20, 16, 6000);
    long peak = release_resident_kib(&shape, 1);
    release_free(shape, 50);
    for (int i = 0; i < 2 * SECOND; i++) release_nap();
    EXPECT_GE(release_resident_kib(&shape, 1), peak * 9 / 10);
    EXPECT_EQ(release_tasks(), 1);
    EXPECT_EQ(malloc_trim(0), 1);
    EXPECT(release_shrinks(&shape, 1, MORE_KIB, 0, NULL));
    release_end(shape);
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[argc - 1] : "";
    contract_begin();
    alarm(50);
    if (strcmp(what, "single") == 0) test_single(16, 6000);
    if (strcmp(what, "small") == 0) test_single(100, 200);
    if (strcmp(what, "large") == 0) test_single(20000, 300000);
    if (strcmp(what, "threads") == 0) test_threads();
    if (strcmp(what, "others") == 0) test_others();
    if (strcmp(what, "fork") == 0) test_fork();
    if (strcmp(what, "gone") == 0) test_gone();
    if (strcmp(what, "off") == 0) test_off();
    return contract_end();
}
