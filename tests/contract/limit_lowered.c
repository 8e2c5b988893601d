/* limit_lowered.c: a limit of address space that is lowered and raised while the program runs.
 *
 * Who may call it: tests/contract/run.py. With `heap`, requests that cannot fit under the lowered limit
 * give NULL and ENOMEM, small ones go on working, and all is well once it is raised. With `others`, the
 * rest of the process must be able to map memory that fits under the limit: the allocator's own address
 * space must not use it up.
 *
 * contract: name=heap args=heap
 * contract: name=others args=others
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

static void limit_set(rlim_t bytes) {
    struct rlimit limit;
    EXPECT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

static void small_ones_work(void) {
    void* blocks[100];
    for (int i = 0; i < 100; i++) {
        blocks[i] = malloc((size_t)i * 50 + 1);
        EXPECT(blocks[i] != NULL);
    }
    for (int i = 0; i < 100; i++) free(blocks[i]);
}

static void test_heap(void) {
    enum { COUNT = 4096 };
    static void* blocks[COUNT];
    for (int round = 0; round < 3; round++) {
        limit_set(RLIM_INFINITY);
        char* kept = malloc(50000);
        contract_fill(kept, 50000, 3);
        void* large = malloc(1u << 30);
        EXPECT(large != NULL);
        free(large);
        limit_set(400u << 20);
        errno = 0;
        EXPECT((large = malloc(contract_opaque(1u << 30))) == NULL);
        EXPECT_EQ(errno, ENOMEM);
        free(large);
        small_ones_work();
        /* Blocks of 1 MiB run out below the limit. */
        int count = 0;
        errno = 0;
        while (count < COUNT && (blocks[count] = malloc(1 << 20)) != NULL)
            memset(contract_opaque_pointer(blocks[count++]), 1, 4096);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT_LE(count, 400);
        EXPECT_GE(count, 200);
        errno = 0;
        EXPECT(realloc(contract_opaque_pointer(kept), 500u << 20) == NULL);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT(contract_holds(kept, 50000, 3));
        for (int i = 0; i < count; i++) free(blocks[i]);
        small_ones_work();
        limit_set(RLIM_INFINITY);
        large = malloc(1u << 30);
        EXPECT(large != NULL);
        free(large);
        kept = realloc(kept, 600u << 20);
        EXPECT(kept != NULL && contract_holds(kept, 50000, 3));
        free(kept);
    }
}

static void* thread_main(void* unused) {
    small_ones_work();
    return unused;
}

static void test_others(void) {
    free(malloc(100000));
    limit_set((rlim_t)1 << 30);
    void* mapping = mmap(NULL, 64u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(mapping != MAP_FAILED);
    if (mapping != MAP_FAILED) munmap(mapping, 64u << 20);
    pthread_t thread;
    if (EXPECT_EQ(pthread_create(&thread, NULL, thread_main, NULL), 0)) pthread_join(thread, NULL);
    small_ones_work();
}

int main(int argc, char** argv) {
    contract_begin();
    if (argc > 1 && strcmp(argv[1], "others") == 0)
        test_others();
    else
        test_heap();
    return contract_end();
}
