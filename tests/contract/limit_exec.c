/* limit_exec.c: a program started under a limit of address space: out of memory, and back.
 *
 * Who may call it: tests/contract/run.py, which sets RLIMIT_AS before exec. Allocates until NULL, frees
 * all, and again, in several sizes: most of what the limit allows must be usable each time, errno must be
 * ENOMEM, a longer block must find what is freed side by side, and the program must be able to go on.
 *
 * contract: name=small as_mib=100
 * contract: name=medium as_mib=300
 * contract: name=large as_mib=2500
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <malloc.h>
#include <pthread.h>

enum { COUNT = 400000 };

static void** blocks; /* a mapping of its own: it is not on trial */

/* Bytes that fit, in blocks of n. */
static size_t fill(size_t n) {
    size_t count = 0;
    errno = 0;
    while (count < COUNT && (blocks[count] = malloc(n)) != NULL) {
        ((char*)blocks[count])[0] = 1;
        ((char*)blocks[count])[n - 1] = 2;
        count++;
        errno = 0;
    }
    int code = errno;
    if (count < COUNT) {
        EXPECT_EQ(code, ENOMEM);
        /* The other calls fail in the same way, and a failed realloc keeps its block. */
        errno = 0;
        EXPECT(calloc(1, n) == NULL || n < 4096);
        EXPECT(n < 4096 || errno == ENOMEM);
        if (count > 0 && n >= 4096) {
            errno = 0;
            EXPECT(realloc(contract_opaque_pointer(blocks[0]), n * 64) == NULL);
            EXPECT_EQ(errno, ENOMEM);
            EXPECT(((char*)blocks[0])[n - 1] == 2);
        }
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    return count * n;
}

/* Where nothing is left, a longer block is had as soon as so much is free in one place, whatever the thread
 * keeps of it: what malloc_trim makes room for malloc has found before. */
static void neighbours_serve(void) {
    enum { TRIES = 40, RUN = 96, LONGER = 500000 };
    static const size_t sizes[] = {2000,  3000,  4000,  5000,  6000,  7000,  8000,  9000,
                                   10000, 12000, 14000, 16000, 20000, 24000, 28000, 32000};
    void* longer[TRIES];
    size_t count = 0, served = 0, late = 0;
    while (count < COUNT && (blocks[count] = malloc(sizes[count % 16])) != NULL) count++;
    for (size_t i = 0; i < TRIES; i++) {
        size_t first = count / TRIES * i;
        for (size_t j = first; j < first + RUN && j < count; j++) free(blocks[j]), blocks[j] = NULL;
        longer[i] = malloc(LONGER);
        served += longer[i] != NULL;
        if (longer[i] != NULL) continue;
        malloc_trim(0);
        longer[i] = malloc(LONGER);
        late += longer[i] != NULL;
    }
    contract_say(1, "of %d longer blocks %zu are served\n", TRIES, served);
    EXPECT(served != 0);
    EXPECT_EQ(late, (size_t)0);
    for (size_t i = 0; i < TRIES; i++) free(longer[i]);
    for (size_t i = 0; i < count; i++) free(blocks[i]);
}

static void* thread_main(void* unused) {
    void* p = malloc(1000);
    EXPECT(p != NULL);
    free(p);
    return unused;
}

int main(void) {
    contract_begin();
    struct rlimit limit;
    EXPECT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
    if (!EXPECT(limit.rlim_cur != RLIM_INFINITY)) return contract_end();
    size_t room = limit.rlim_cur - (16u << 20); /* code, stack and this table are in the limit too */
    blocks = mmap(NULL, COUNT * sizeof *blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!EXPECT(blocks != MAP_FAILED)) return contract_end();
    static const size_t sizes[] = {20 << 20, 1 << 20, 100000, 10000, 1 << 20, 1000, 20 << 20, 100};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t n = sizes[i];
            size_t got = fill(n);
            contract_say(1, "limit %zu MiB, blocks of %zu: %zu MiB\n", (size_t)limit.rlim_cur >> 20, n,
                         got >> 20);
            EXPECT_LE(got, limit.rlim_cur);
            if ((size_t)COUNT * n > room) EXPECT_GE(got, room * 6 / 10);
        }
        /* Half of the limit in one piece. */
        void* half = malloc(limit.rlim_cur / 2);
        EXPECT(half != NULL);
        free(half);
        errno = 0;
        EXPECT(malloc(contract_opaque(limit.rlim_cur + 4096)) == NULL);
        EXPECT_EQ(errno, ENOMEM);
        neighbours_serve();
    }
    /* The rest of the process has its share of address space. */
    void* mapping = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(mapping != MAP_FAILED);
    munmap(mapping, 1 << 20);
    pthread_t thread;
    if (EXPECT_EQ(pthread_create(&thread, NULL, thread_main, NULL), 0)) pthread_join(thread, NULL);
    return contract_end();
}
