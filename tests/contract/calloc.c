/* calloc.c: calloc gives zeros, whatever the memory held before.
 *
 * Who may call it: tests/contract/run.py. Dirties blocks of a size, frees them, and asks for them again,
 * in one thread and after another thread freed them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

enum { COUNT = 16 };

static void* blocks[COUNT];

static void* free_all(void* unused) {
    for (int k = 0; k < COUNT; k++) free(blocks[k]);
    return unused;
}

static void dirty(size_t n) {
    for (int k = 0; k < COUNT; k++) {
        blocks[k] = malloc(n);
        EXPECT(blocks[k] != NULL);
        memset(contract_opaque_pointer(blocks[k]), 0xa5, malloc_usable_size(blocks[k]));
    }
}

static void expect_zeros(size_t n) {
    for (int k = 0; k < COUNT; k++) {
        char* p = calloc(k % 2 ? n : 1, k % 2 ? 1 : n);
        EXPECT(p != NULL && contract_is_zero(p, n));
        EXPECT_EQ((uintptr_t)p % 16, 0);
        memset(p, 0x5a, n);
        blocks[k] = p;
    }
    free_all(NULL);
}

int main(void) {
    contract_begin();
    for (size_t n = 1; n < 6u << 20; n += n / 3 + 1) {
        dirty(n);
        free_all(NULL);
        expect_zeros(n);
        dirty(n);
        pthread_t thread;
        EXPECT_EQ(pthread_create(&thread, NULL, free_all, NULL), 0);
        pthread_join(thread, NULL);
        expect_zeros(n);
        /* A block that shrinks gives its tail back dirty; calloc may get the tail. */
        dirty(n);
        for (int k = 0; k < COUNT; k++) blocks[k] = realloc(blocks[k], n / 4 + 1);
        char* p = calloc(3, n / 4 + 1);
        EXPECT(p != NULL && contract_is_zero(p, 3 * (n / 4 + 1)));
        free(p);
        free_all(NULL);
        expect_zeros(n);
    }
    return contract_end();
}
